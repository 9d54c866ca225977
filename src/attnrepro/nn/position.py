"""Position encodings: codes that are added to the tokens, a rotation of queries and keys, a bias of the logits."""

import math

import torch
from torch import Tensor


def sinusoidal(
    length: int,
    embed_dim: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Sines and cosines of geometrically falling frequencies.

    Component 2i of row n is ``sin(n / base^(2i / embed_dim))`` and component 2i + 1 its cosine; with an odd
    ``embed_dim`` the last sine stands without its cosine. Computed in float64.

    Returns:
        Code [length, embed_dim], dimensionless; a row of even ``embed_dim`` has the norm sqrt(embed_dim / 2).

    Raises:
        ValueError: a size below 1, or a base that is not positive and finite.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.5.
    """
    _at_least_one(length=length, embed_dim=embed_dim)
    angle = _angles(torch.arange(length, dtype=torch.float64), embed_dim, base)
    code = torch.empty(length, embed_dim, dtype=torch.float64)
    code[:, 0::2] = angle.sin()
    code[:, 1::2] = angle[:, : embed_dim // 2].cos()
    return code.to(dtype=dtype, device=device)


def one_hot(
    length: int,
    embed_dim: int,
    *,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """A component of its own for each position: row n is the unit vector of component ``first + n``.

    Returns:
        Code [length, embed_dim], rows orthonormal.

    Raises:
        ValueError: a size below 1, ``first`` below 0, or ``first + length`` above ``embed_dim``.

    Source: the standard basis; a comparison to the sinusoids of document 000, section on position.
    """
    _at_least_one(length=length, embed_dim=embed_dim)
    if not 0 <= first <= embed_dim - length:
        raise ValueError(f"first={first} must be 0 or more and leave {length} components of embed_dim={embed_dim}")
    code = torch.zeros(length, embed_dim, dtype=dtype, device=device)
    code.diagonal(first).fill_(1)
    return code


def random_orthogonal(
    length: int, embed_dim: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Orthonormal rows in a random direction, uniform over all such frames (Haar measure).

    The QR decomposition of a Gaussian matrix is not yet uniform: it becomes so when the signs are chosen such that the
    diagonal of R is positive. Drawn in float64 on the generator's device.

    Returns:
        Code [length, embed_dim], rows orthonormal.

    Raises:
        ValueError: a size below 1, or ``length`` above ``embed_dim``.

    Source: Mezzadri 2007, How to Generate Random Matrices from the Classical Compact Groups, section 5.
    """
    _at_least_one(length=length, embed_dim=embed_dim)
    if length > embed_dim:
        raise ValueError(f"length={length} must be at most embed_dim={embed_dim}, for the rows to be orthogonal")
    q, r = torch.linalg.qr(random_gaussian(embed_dim, length, generator, dtype=torch.float64))
    frame: Tensor = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return frame.mT.to(dtype)


def random_gaussian(
    length: int, embed_dim: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Independent N(0, 1) components, drawn in float64 on the generator's device.

    Returns:
        Code [length, embed_dim]; the squared norm of a row has the mean ``embed_dim``.

    Raises:
        ValueError: a size below 1.

    Source: the usual start of a learned code, as torch.nn.Embedding.
    """
    _at_least_one(length=length, embed_dim=embed_dim)
    device = generator.device
    return torch.randn(length, embed_dim, generator=generator, dtype=torch.float64, device=device).to(dtype)


def at_row_norm(code: Tensor, norm: float) -> Tensor:
    """Scale every row [..., embed_dim] to the same Euclidean norm, so that codes are compared at equal strength.

    Returns:
        Code of the same shape, dtype and directions.

    Raises:
        ValueError: a norm that is negative or not finite, or a row that has no direction (zeros, NaN, infinity).

    Source: document 000, section on position (its strengths are multiples of one code).
    """
    if not 0 <= norm < math.inf:
        raise ValueError(f"norm={norm} must be finite and 0 or more")
    now = torch.linalg.vector_norm(code, dim=-1, keepdim=True)
    if not ((now > 0) & now.isfinite()).all():
        raise ValueError(f"norm={norm} must have a direction in every row, and a row of the code is zero or not finite")
    scaled: Tensor = code / now * norm
    return scaled


def rotary(x: Tensor, positions: Tensor | None = None, *, base: float = 10000.0) -> Tensor:
    """Turn components (2i, 2i + 1) of queries or keys by the angle ``position / base^(2i / head_dim)``.

    A rotation: norms stay, and the dot product of a query at m with a key at n depends on m - n only.

    Args:
        x: queries or keys [..., length, head_dim], ``head_dim`` even.
        positions: position of each row [length]; 0, 1, 2, ... if not given.
        base: the slowest pair turns nearly ``base`` times slower than the first.

    Returns:
        Turned queries or keys, shape and dtype of ``x``; the angles are computed in float64.

    Raises:
        ValueError: ``x`` not of floating point or with fewer than two dimensions, an odd ``head_dim``, a base that is
            not positive and finite, or positions that are not one for each row.

    Source: Su et al. 2021, RoFormer, equations 15 and 34.
    """
    if x.ndim < 2 or not x.is_floating_point():
        raise ValueError(f"x={tuple(x.shape)} {x.dtype} must be [..., length, head_dim] of floating point")
    length, head_dim = x.shape[-2:]
    if head_dim % 2:
        raise ValueError(f"head_dim={head_dim} must be even, since components are turned in pairs")
    if positions is None:
        positions = torch.arange(length, device=x.device)
    if positions.shape != (length,):
        raise ValueError(f"positions={tuple(positions.shape)} must be of shape ({length},), one for each row")
    angle = _angles(positions.to(dtype=torch.float64, device=x.device), head_dim, base)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def alibi_bias(
    num_queries: int,
    num_keys: int,
    slope: float,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """A penalty on distance that is added to the logits: ``-slope |i + offset - j|`` for query i and key j.

    The symmetric form, for attention to both sides; under a causal mask it is the published one.

    Args:
        num_queries: queries, at positions offset, offset + 1, ...
        num_keys: keys, at positions 0, 1, ...
        slope: logits for each step of distance.
        offset: position of the first query.
        dtype: of the bias.
        device: of the bias.

    Returns:
        Bias of the logits [num_queries, num_keys].

    Raises:
        ValueError: a size below 1.

    Source: Press et al. 2021, Train Short, Test Long, section 3.
    """
    _at_least_one(num_queries=num_queries, num_keys=num_keys)
    query = torch.arange(offset, offset + num_queries, device=device)
    key = torch.arange(num_keys, device=device)
    return -slope * (query[:, None] - key).abs().to(dtype)


def _angles(positions: Tensor, dim: int, base: float) -> Tensor:
    """Position over ``base^(2i / dim)`` [length, ceil(dim / 2)], in float64."""
    if not 0 < base < math.inf:
        raise ValueError(f"base={base} must be positive and finite")
    exponent = torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
    return positions[:, None] / base**exponent


def _at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}={size} must be 1 or more")
