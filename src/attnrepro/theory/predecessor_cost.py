"""What the predecessors of the Transformer in vision cost on a map of N = height x width places and C channels.

Parameters, FLOPs of one forward pass of one map (two for each multiply-add; norms, softmax, activations, poolings and
biases are not counted, as torch's counter does not) and scores: entries of everything that goes through a softmax, and
of a relation module its pairs. h heads, m = C / 2, r = C / 8 components, f = C / 4 hidden ones:

=========================  ======================================  ================================
block                      FLOPs                                   scores
=========================  ======================================  ================================
``squeeze_excitation``     4 C C/16                                none
``global_average_add``     4 C C/16                                none
``global_context``         4 N C + 4 C C/16                        N
``non_local``              8 N C m + 4 N^2 m                       N^2
``non_local_pooled``       8 N C m + 4 N (N/4) m                   N^2 / 4
``non_local_as_printed``   8 (N/4) C m + 4 (N/4)^2 m               N^2 / 16
``criss_cross``            2 N C (C + 2 r) + 2 N (H + W) (C + r)   N (H + W)
``criss_cross_twice``      twice as many                           2 N (H + W)
``sagan``                  8 N C r + 4 N^2 r                       N^2
``relation``               4 N C f + 2 N^2 f^2 + 2 f^2 + 2 f C     N^2
``capsules``               2 N P C e + (2 t - 1) 2 N P e           t N P
``swin_pair``              16 N C^2 + 8 N w^2 C + 32 N C^2         2 h N w^2
``convnext``               98 N C + 16 N C^2                       none
``map_attention``          8 N C^2 + 4 N^2 C                       h N^2
``strided``                8 N C^2 + 4 C (3 N^1.5 + N)             h (3 N^1.5 + N), stride N^0.5
``window``                 8 N C^2 + 4 N k C                       h N k, k neighbours
``linear``                 8 N C^2 + 4 N C^2 / h + 2 N C           none
``low_rank``               8 N C^2 + 8 N k C                       h N k, k mixtures
=========================  ======================================  ================================

Capsules: P parents of e components, t iterations, every place a child; Swin: windows of w x w, two blocks with an MLP
of 4 C. Sources: the modules' own papers; document 004, sections 3, 4.2 and 6.
"""

import math
from typing import NamedTuple

from attnrepro.theory import capsules, complexity, window_blocks
from attnrepro.theory.image_models import Cost

BLOCKS = (
    *("squeeze_excitation", "global_average_add", "global_context", "non_local", "non_local_pooled"),
    *("non_local_as_printed", "criss_cross", "criss_cross_twice", "sagan", "relation", "capsules", "swin_pair"),
    *("convnext", "map_attention", "strided", "window", "linear", "low_rank"),
)
# The highest power of N in the FLOPs and in the scores of a square map, and the next one where there is one.
_CONSTANT, _LINEAR, _CROSS, _PAIRS = (0.0, None), (1.0, None), (1.5, 1.0), (2.0, 1.0)
_FLOP_POWERS: dict[str, tuple[float, float | None]] = {
    **dict.fromkeys(("squeeze_excitation", "global_average_add"), _CONSTANT),
    "global_context": (1.0, 0.0),
    **dict.fromkeys(("criss_cross", "criss_cross_twice", "strided"), _CROSS),
    **dict.fromkeys(("capsules", "swin_pair", "convnext", "window", "linear", "low_rank"), _LINEAR),
}
_SCORE_POWERS: dict[str, tuple[float, float | None]] = {
    **dict.fromkeys(("global_context", "capsules", "swin_pair", "window", "low_rank"), _LINEAR),
    **dict.fromkeys(("criss_cross", "criss_cross_twice"), (1.5, None)),
    "strided": _CROSS,
}
WITHOUT_SCORES = ("squeeze_excitation", "global_average_add", "convnext", "linear")


class Sizes(NamedTuple):
    """Sizes of all blocks: channels, heads, side of a window of Swin, neighbours, mixtures, and those of capsules."""

    channels: int
    num_heads: int
    window: int
    neighbours: int
    mixtures: int
    parents: int
    parent_dim: int
    iterations: int

    @property
    def inner(self) -> int:
        """Components of a non-local block's queries, keys and values."""
        return max(1, self.channels // 2)

    @property
    def narrow(self) -> int:
        """Components of queries and keys of criss-cross and SAGAN attention."""
        return max(1, self.channels // 8)

    @property
    def hidden(self) -> int:
        """Components inside a relation module."""
        return max(1, self.channels // 4)

    @property
    def squeezed(self) -> int:
        """Components between the two matrices of squeeze and excitation and of global context."""
        return self.channels // 16


def powers(block: str, what: str) -> tuple[float, float | None]:
    """Highest and next power of N of ``flops`` or ``scores``; the next is None where one power is all (but 1 in 1000).

    Raises:
        ValueError: scores of a block that has none.
    """
    if what == "flops":
        return _FLOP_POWERS.get(block, _PAIRS)
    if block in WITHOUT_SCORES:
        raise ValueError(f"block={block} must have scores")
    return _SCORE_POWERS.get(block, (2.0, None))


def cost(block: str, height: int, width: int, s: Sizes) -> Cost:
    """Parameters and FLOPs. Sides are even for the sub-sampled blocks and multiples of Swin's window."""
    n, c = height * width, s.channels
    return Cost(_parameters(block, n, s), _flops(block, n, height, width, c, s))


def scores(block: str, height: int, width: int, s: Sizes) -> int:
    """Entries that go through a softmax; pairs of a relation module."""
    n = height * width
    if block in WITHOUT_SCORES:
        return 0
    found = {
        "global_context": n,
        "non_local_pooled": n * n // 4,
        "non_local_as_printed": (n // 4) ** 2,
        "criss_cross": n * (height + width),
        "criss_cross_twice": 2 * n * (height + width),
        "capsules": s.iterations * n * s.parents,
        "swin_pair": 2 * s.num_heads * n * s.window**2,
        "map_attention": s.num_heads * n * n,
        "strided": s.num_heads * n * (2 * stride(n) + 1 + -(-n // stride(n))),
        "window": s.num_heads * n * s.neighbours,
        "low_rank": s.num_heads * n * s.mixtures,
    }
    return found.get(block, n * n)


def used_weights(height: int, width: int) -> int:
    """Weights of one pass of criss-cross attention that are not zero: H + W - 1 for each place."""
    return height * width * (height + width - 1)


def stride(places: int) -> int:
    """Stride of strided attention: the root of the number of places, rounded down."""
    return math.isqrt(places)


def _parameters(block: str, n: int, s: Sizes) -> int:
    c, q, m, r, f = s.channels, s.squeezed, s.inner, s.narrow, s.hidden
    if block in ("strided", "window", "linear"):
        return 4 * c * c
    if block.startswith("non_local"):
        return 4 * c * m + 3 * m + c
    if block.startswith("criss_cross"):
        return 2 * c * r + 2 * r + c * c + c + 1
    if block == "swin_pair":
        return window_blocks.swin_pair(c, 1, 1, num_heads=s.num_heads, window=s.window).parameters
    found = {
        "squeeze_excitation": 2 * c * q,
        "global_average_add": 2 * c * q + c + 3 * q,
        "global_context": 2 * c * q + 2 * c + 3 * q + 1,
        "sagan": 4 * c * r + 1,
        "relation": 3 * c * f + 2 * f * f + 3 * f + c,
        "capsules": s.parents * c * s.parent_dim,
        "convnext": window_blocks.convnext(c, 1, 1).parameters,
        "map_attention": 4 * c * c + 2 * c,
        "low_rank": 4 * c * c + 2 * s.mixtures * n,
    }
    return found[block]


def _flops(block: str, n: int, height: int, width: int, c: int, s: Sizes) -> int:
    q, m, r, f = s.squeezed, s.inner, s.narrow, s.hidden
    if block in ("squeeze_excitation", "global_average_add"):
        return 4 * c * q
    if block.startswith("criss_cross"):
        one = 2 * n * c * (c + 2 * r) + 2 * n * (height + width) * (c + r)
        return one if block == "criss_cross" else 2 * one
    if block in ("window", "low_rank"):
        return complexity.flops(block, n, c, s.neighbours if block == "window" else s.mixtures)
    if block == "swin_pair":
        return window_blocks.swin_pair(c, height, width, num_heads=s.num_heads, window=s.window).flops
    quarter = n // 4
    found = {
        "global_context": 4 * n * c + 4 * c * q,
        "non_local": 8 * n * c * m + 4 * n * n * m,
        "non_local_pooled": 8 * n * c * m + 4 * n * quarter * m,
        "non_local_as_printed": 8 * quarter * c * m + 4 * quarter**2 * m,
        "sagan": 8 * n * c * r + 4 * n * n * r,
        "relation": 4 * n * c * f + 2 * n * n * f * f + 2 * f * f + 2 * f * c,
        "capsules": capsules.layer(n, s.parents, c, s.parent_dim, s.iterations, shared=True).flops,
        "convnext": window_blocks.convnext(c, height, width).flops,
        "map_attention": complexity.flops("attention", n, c),
        "strided": 8 * n * c * c + s.num_heads * window_blocks.strided_flops(n, c // s.num_heads, stride(n)),
        "linear": complexity.flops("linear", n, c, h=s.num_heads),
    }
    return found[block]
