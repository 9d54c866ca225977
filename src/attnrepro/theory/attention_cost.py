"""FLOPs of one attention head against the length, and what a table of rounded times and multiples says about itself.

Two FLOPs are a multiply-add; softmax is not counted. L tokens of d components:

===========  =========================  ==========================================================
part         forward                    backward
===========  =========================  ==========================================================
projections  2 P L d^2, P matrices      4 P L d^2: gradients of tokens and of matrices
scores       4 L^2 d                    8 L^2 d; fused 10 L^2 d, which forms the dot products anew
===========  =========================  ==========================================================

Sources: document 000, section on the cost of length; Dao et al. 2022, FlashAttention, algorithm 4 (five products).
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

# Products with all pairs of tokens, by attention and phase; either costs 2 L^2 d.
_PRODUCTS = {
    ("naive", "forward"): 2,
    ("naive", "backward"): 4,
    ("fused", "forward"): 2,
    ("fused", "backward"): 5,
    ("numpy", "forward"): 2,
    ("none", "forward"): 0,
}


def projection_flops(length: int, head_dim: int, projections: int, phase: str = "forward") -> int:
    """FLOPs of ``projections`` products of ``length`` tokens with a ``head_dim x head_dim`` matrix."""
    return (2 if phase == "forward" else 4) * projections * length * head_dim**2


def score_flops(attention: str, length: int, head_dim: int, phase: str = "forward") -> int:
    """FLOPs of dot products and weighted sums. Raises ``ValueError`` for an attention that has no such phase."""
    if (attention, phase) not in _PRODUCTS:
        raise ValueError(f"attention={attention} has no phase {phase}")
    return 2 * _PRODUCTS[attention, phase] * length**2 * head_dim


def flops(attention: str, projections: int, phase: str, length: int, head_dim: int) -> int:
    """FLOPs of a whole head for one sequence."""
    scores = score_flops(attention, length, head_dim, phase)
    return scores + projection_flops(length, head_dim, projections, phase)


def score_share(length: int, head_dim: int, projections: int = 3) -> Fraction:
    """What the products with all pairs have of the FLOPs of a forward pass."""
    total = flops("naive", projections, "forward", length, head_dim)
    return Fraction(score_flops("naive", length, head_dim), total)


def crossover(projections: int) -> Fraction:
    """Length at which either part costs the same, in units of head_dim: 2 P L d^2 = 4 L^2 d."""
    return Fraction(projections, 2)


def affordable_layers(length: int, head_dim: int, kernel: int, projections: int = 3) -> int:
    """Convolutions of ``kernel`` taps and head_dim channels that cost no more FLOPs than one attention layer."""
    attention = flops("naive", projections, "forward", length, head_dim)
    return attention // (2 * kernel * length * head_dim**2)


def reach(layers: int, kernel: int) -> int:
    """Largest distance of two inputs that one output of ``layers`` convolutions depends on."""
    return layers * (kernel - 1)


# --- a printed column of times and one of their multiples ---


def covered(printed: str) -> tuple[Fraction, Fraction]:
    """The numbers that round to a printed decimal: half a unit of its last digit to either side."""
    decimals = len(printed.partition(".")[2])
    value, half = Fraction(printed), Fraction(1, 2 * 10**decimals)
    return value - half, value + half


def base_bounds(times: Sequence[str], multiples: Sequence[str]) -> list[tuple[Fraction, Fraction]]:
    """For each printed multiple, the unrounded first times that agree with it; the first is the first time's own."""
    found = [covered(times[0])]
    for time, multiple in zip(times[1:], multiples[1:], strict=True):
        (a, b), (c, d) = covered(time), covered(multiple)
        found.append((a / d, b / c))
    return found


def most_consistent(times: Sequence[str], multiples: Sequence[str]) -> tuple[int, Fraction, Fraction]:
    """How many multiples agree with one unrounded first time, and the least and largest such first time."""
    (first, last), *others = base_bounds(times, multiples)
    ends = sorted({first, last, *(end for pair in others for end in pair if first <= end <= last)})

    def count(base: Fraction) -> int:
        return sum(low <= base <= high for low, high in others)

    most = max(map(count, ends))
    best = [base for base in ends if count(base) == most]
    return most, best[0], best[-1]


def doubling_factors(printed: Sequence[str]) -> list[Fraction]:
    """Each printed number over the one before."""
    values = [Fraction(text) for text in printed]
    return [later / earlier for earlier, later in pairwise(values)]


def steps_towards(factors: Sequence[Fraction], limit: int = 4) -> int:
    """Steps from one factor to the next that go up and stay at or below ``limit``."""
    return sum(a < b <= limit for a, b in pairwise(factors))
