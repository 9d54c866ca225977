"""A scalar t in [0, 1] as inputs of a network: sines and cosines of chosen frequencies."""

import math

import torch
from torch import Tensor


def diffusion_frequencies(embed_dim: int, *, steps: float = 1000.0, base: float = 10000.0) -> Tensor:
    """Angular frequencies of the usual time embedding of diffusion models, ``[embed_dim / 2]``, float64.

    ``steps / base^(2i / embed_dim)``, i = 0, 1, ...: the position code of Vaswani et al. 2017 (section 3.5) at the
    position ``steps`` t, as in Ho, Jain and Abbeel 2020 (Denoising diffusion probabilistic models, appendix B).

    Raises:
        ValueError: ``embed_dim`` is odd or below 2.
    """
    if embed_dim < 2 or embed_dim % 2:
        raise ValueError(f"embed_dim={embed_dim} must be even and at least 2")
    i = torch.arange(embed_dim // 2, dtype=torch.float64)
    return steps / base ** (2 * i / embed_dim)


def octave_frequencies(count: int) -> Tensor:
    """Angular frequencies pi 2^i, i = 0 .. count - 1, float64 (Tancik et al. 2020, Fourier features, section 6).

    Raises:
        ValueError: ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"count={count} must be 1 or more")
    return math.pi * 2.0 ** torch.arange(count, dtype=torch.float64)


def sinusoids(t: Tensor, frequencies: Tensor) -> Tensor:
    """Sines, then cosines, of ``frequencies`` ``[m]`` times t ``[...]``: ``[..., 2m]``, in the dtype of t.

    Angles are made in float64, where 1000 t keeps its digits.
    """
    angle = t.double()[..., None] * frequencies.to(t.device)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).to(t.dtype)
