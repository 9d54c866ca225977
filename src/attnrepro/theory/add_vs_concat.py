"""Sum or pair of token and position code: what a linear map can absorb, and the best accuracy without positions.

A layer with m outputs makes x W1 + p W2 of the pair, (x + p) W of the sum. With another code p' in place of p the sum
gives x W1 + p' W1, so that p' W1 = p W2 is wanted: m equations with d unknowns for every position. They have a solution
for every p W2 if m <= d; else a random right-hand side, whose direction is uniform, keeps its part outside of a
d-dimensional subspace.

Source: document 002, section on the equivalence.
"""

import math
from fractions import Fraction


def residual_share(outputs: int, embed_dim: int) -> Fraction:
    """Mean share of squares of random outputs that no relearned code gives: 1 - d / m, 0 for m <= d."""
    if min(outputs, embed_dim) < 1:
        raise ValueError(f"outputs={outputs} and embed_dim={embed_dim} must be 1 or more")
    return max(Fraction(0), 1 - Fraction(embed_dim, outputs))


def head_parameters(
    content: int, code: int, width: int, head_dim: int, *, vocabulary: int, symbols: int, places: int
) -> int:
    """Parameters of a head: embeddings, codes, queries, keys and values of ``width`` inputs, and the output."""
    return vocabulary * content + places * code + 3 * width * head_dim + head_dim * symbols


def equal_widths(width: int, head_dim: int, *, vocabulary: int, symbols: int, places: int) -> tuple[int, int]:
    """Components of content and code, as alike as possible, whose pair has the parameters of a sum of ``width``.

    Of the pairs that differ by at most one component, that with the nearest number of parameters, the smaller first.
    """
    sizes = {"vocabulary": vocabulary, "symbols": symbols, "places": places}
    wanted = head_parameters(width, width, width, head_dim, **sizes)
    pairs = [(a, b) for a in range(1, width + 1) for b in (a - 1, a, a + 1) if b > 0]

    def gap(pair: tuple[int, int]) -> int:
        return abs(head_parameters(pair[0], pair[1], sum(pair), head_dim, **sizes) - wanted)

    return min(pairs, key=gap)


def bag_accuracy(length: int, symbols: int) -> float:
    """Best accuracy in naming the symbol at a random place of a bag of ``length`` uniform symbols.

    The commonest symbol is the best answer: E[largest count] / length. The largest count is at most m with the
    probability length! / symbols^length times the coefficient of x^length in (sum over i <= m of x^i / i!)^symbols.

    Raises:
        ValueError: a size below 1.
    """
    if min(length, symbols) < 1:
        raise ValueError(f"length={length} and symbols={symbols} must be 1 or more")
    at_most = [_at_most(length, symbols, m) for m in range(length + 1)]
    expected = sum(m * (at_most[m] - at_most[m - 1]) for m in range(1, length + 1))
    return float(expected / length)


def _at_most(length: int, symbols: int, largest: int) -> Fraction:
    """Probability that no symbol stands more than ``largest`` times."""
    ways = [Fraction(1)] + [Fraction(0)] * length
    for _ in range(symbols):
        ways = [
            sum((ways[n - i] / math.factorial(i) for i in range(min(largest, n) + 1)), Fraction(0))
            for n in range(length + 1)
        ]
    return ways[length] * Fraction(math.factorial(length), symbols**length)
