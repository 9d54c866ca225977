"""Attention on paper: worked examples in decimal arithmetic of 50 digits, and what a Monte Carlo variance can show.

Inputs are the decimals that an example prints, taken as exact, so that a result is right to more digits than anybody
prints. Nothing here touches floating point until the end.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation, localcontext

DIGITS = 50


def numbers(row: str) -> list[Decimal]:
    """A printed row of decimals, as in ``0.9 0.3``.

    Raises:
        ValueError: something that is no finite decimal, or nothing at all.
    """
    try:
        found = [Decimal(word) for word in row.split()]
    except InvalidOperation:
        found = []
    if not found or not all(value.is_finite() for value in found):
        raise ValueError(f"{row!r} must be decimal numbers with blanks between them")
    return found


def dot(a: Sequence[Decimal], b: Sequence[Decimal]) -> Decimal:
    """Dot product of two vectors of the same length."""
    with localcontext(prec=DIGITS):
        return sum((x * y for x, y in zip(a, b, strict=True)), Decimal(0))


def scaled(score: Decimal, head_dim: int) -> Decimal:
    """``score / sqrt(head_dim)`` (Vaswani et al. 2017, equation 1)."""
    with localcontext(prec=DIGITS):
        return score / Decimal(head_dim).sqrt()


def softmax(logits: Sequence[Decimal | None]) -> list[Decimal]:
    """Weights of one query; a key whose logit is None is masked and gets exactly 0.

    Raises:
        ValueError: every key is masked.
    """
    if all(logit is None for logit in logits):
        raise ValueError(f"logits={list(logits)} must leave at least one key to attend to")
    with localcontext(prec=DIGITS):
        parts = [Decimal(0) if logit is None else logit.exp() for logit in logits]
        total = sum(parts, Decimal(0))
        return [part / total for part in parts]


def mix(weights: Sequence[Decimal], values: Sequence[Sequence[Decimal]]) -> list[Decimal]:
    """Output of one query: the values ``[num_keys][dim]`` added up with its weights."""
    return [dot(weights, column) for column in zip(*values, strict=True)]


def needed_logit(logits: Sequence[Decimal], index: int, weight: Decimal) -> Decimal:
    """The logit of key ``index`` that gives it ``weight`` while the others keep theirs.

    ``ln(w / (1 - w))`` above the logarithm of the sum of the others' exponentials.

    Raises:
        ValueError: a weight that no finite logit gives, or no other key.
    """
    if not 0 < weight < 1 or len(logits) < 2:
        raise ValueError(f"weight={weight} must lie strictly between 0 and 1, and be shared with another key")
    with localcontext(prec=DIGITS):
        others = sum((logit.exp() for i, logit in enumerate(logits) if i != index), Decimal(0))
        return (weight / (1 - weight)).ln() + others.ln()


def needed_temperature(gap: Decimal, weight: Decimal) -> Decimal:
    """The temperature at which the larger of two logits, ``gap`` apart, gets ``weight``: gap / ln(w / (1 - w)).

    Raises:
        ValueError: a gap that is not positive, or a weight that no positive temperature gives it.
    """
    if not gap > 0 or not Decimal("0.5") < weight < 1:
        raise ValueError(f"gap={gap} must be positive and weight={weight} between a half and 1")
    with localcontext(prec=DIGITS):
        return gap / (weight / (1 - weight)).ln()


def largest_distance(rows: Iterable[Sequence[Decimal]], others: Iterable[Sequence[Decimal]]) -> Decimal:
    """Largest absolute difference between two matrices of the same shape."""
    return max(abs(a - b) for row, other in zip(rows, others, strict=True) for a, b in zip(row, other, strict=True))


def variance_standard_error(head_dim: int, n: int) -> float:
    """Standard error of the variance of ``n`` dot products of two vectors of N(0,1)^head_dim.

    A product of two N(0,1) has fourth moment 9, so that the dot product has variance d and fourth moment
    3 d^2 + 6 d; its square has variance d^2 (2 + 6/d).
    """
    return head_dim * math.sqrt((2 + 6 / head_dim) / n)
