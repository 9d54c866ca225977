"""Cheaper kinds of attention on paper: parameters and FLOPs of an encoder, and how local equal weights are.

==============  ===============================================  ==========================================
kind            a position looks at                              FLOPs of one layer beside 8 n d^2
==============  ===============================================  ==========================================
``full``        everybody                                        4 n^2 d
``linear``      everybody, by products of features               4 n d^2 / h + 2 n d
``low_rank``    k mixtures of everybody                          8 n k d
``window``      the w around it                                  4 n w d
``strided``     |i - j| <= s and multiples of s                  4 d (n (2 s + 1) + s ceil(n / s)^2)
==============  ===============================================  ==========================================

Sources: Vaswani et al. 2017; Katharopoulos et al. 2020; Wang et al. 2020; Beltagy et al. 2020; Child et al. 2019.
"""

from dataclasses import dataclass, replace
from fractions import Fraction

from attnrepro.theory import complexity, window_blocks

KINDS = ("full", "linear", "low_rank", "window", "strided")
# Kinds whose weights do not know where a token stands, as long as the token does not say so.
BLIND = ("full", "linear", "low_rank")


@dataclass(frozen=True)
class Sizes:
    """Of an encoder, see ``attnrepro.nn.efficient_encoder``.

    Raises:
        ValueError: a size below 1, heads that do not divide ``embed_dim``, or an even ``width``.
    """

    length: int
    vocabulary: int
    outputs: int
    embed_dim: int
    num_heads: int
    depth: int
    rank: int
    width: int
    stride: int

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        if self.embed_dim % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} must divide embed_dim={self.embed_dim}")
        if self.width % 2 == 0:
            raise ValueError(f"width={self.width} must be odd, so that a position stands in the middle")


def parameters(kind: str, sizes: Sizes) -> int:
    """Embedding, positions, four matrices a layer, readout, and the mixtures of ``low_rank``."""
    d = sizes.embed_dim
    count = (sizes.vocabulary + sizes.length + sizes.outputs) * d + 4 * sizes.depth * d**2
    return count + (sizes.depth * sizes.rank * sizes.length if _known(kind) == "low_rank" else 0)


def with_parameters(kind: str, sizes: Sizes, budget: int) -> Sizes:
    """The same encoder with the ``embed_dim``, a multiple of the heads, that comes nearest to ``budget``."""

    def made(heads: int) -> Sizes:
        return replace(sizes, embed_dim=heads * sizes.num_heads)

    def distance(heads: int) -> int:
        return abs(parameters(kind, made(heads)) - budget)

    head_dim = 1
    while distance(head_dim + 1) < distance(head_dim):
        head_dim += 1
    return made(head_dim)


def flops(kind: str, sizes: Sizes) -> int:
    """One sequence through all layers and the readout, two for each multiply-add."""
    n, d, h = sizes.length, sizes.embed_dim, sizes.num_heads
    if _known(kind) == "strided":
        layer = 8 * n * d**2 + h * window_blocks.strided_flops(n, d // h, sizes.stride)
    else:
        name = {"full": "attention"}.get(kind, kind)
        layer = complexity.flops(name, n, d, {"window": sizes.width, "low_rank": sizes.rank}.get(kind, 1), h)
    return sizes.depth * layer + 2 * n * d * sizes.outputs


def equal_weights_locality(kind: str, length: int, radius: int, width: int, stride: int) -> float:
    """Share of the outputs' variance from others that comes from within ``radius``, weights all equal.

    An output that looks at m positions, itself among them, has 1 / m² from each. For ``low_rank``, and for weights that
    are not equal but exchangeable, it is the expectation: every pair of different positions has the same share.
    """
    near = others = Fraction(0)
    for i in range(length):
        seen = [abs(i - j) for j in range(length) if looks_at(kind, i, j, width, stride)]
        near += Fraction(sum(0 < distance <= radius for distance in seen), len(seen) ** 2)
        others += Fraction(len(seen) - 1, len(seen) ** 2)
    if not others:
        raise ValueError(f"length={length} must leave {kind} somebody to look at")
    return float(near / others)


def looks_at(kind: str, i: int, j: int, width: int, stride: int) -> bool:
    """Whether the output at i depends on the value at j."""
    distance = abs(i - j)
    if _known(kind) == "window":
        return distance <= width // 2
    return kind != "strided" or distance <= stride or distance % stride == 0


def patch_locality(length: int, radius: int, patch: int) -> float:
    """The same of an embedding of patches: each output is a patch, seen from each of its own positions."""
    if length % patch:
        raise ValueError(f"patch={patch} must divide length={length}")
    pairs = [(i, j) for i in range(patch) for j in range(patch) if i != j]
    return sum(abs(i - j) <= radius for i, j in pairs) / len(pairs)


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kind={kind} must be one of {', '.join(KINDS)}")
    return kind
