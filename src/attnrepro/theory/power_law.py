"""Exponents of costs from a few sizes: one power, or a smaller one of known exponent beside it."""

import math
from collections.abc import Sequence
from typing import NamedTuple

HIGHEST = 4.0
# The free exponent stays so far above the known one: where both are equal, two terms are one.
APART = 0.05
_GOLDEN = (math.sqrt(5) - 1) / 2


class Fit(NamedTuple):
    """``lower_factor n^lower + factor n^exponent``, and the largest relative error of the fitted values."""

    exponent: float
    factor: float
    lower_factor: float
    error: float


def local_exponent(sizes: tuple[int, int], values: tuple[float, float]) -> float:
    """Slope of the logarithm of the value against that of the size between two sizes."""
    return math.log(values[1] / values[0]) / math.log(sizes[1] / sizes[0])


def fit(sizes: Sequence[int], values: Sequence[float], lower: float | None = None) -> Fit:
    """Least squares of the relative errors of ``a n^lower + b n^p`` with p free, or of ``b n^p`` (``lower`` None).

    For every p the factors are the solution of a linear problem, so that p alone is searched for: by golden section
    between ``lower + 0.05`` and 4, or, of one power, from the slope of the logarithms. Exact values of that form give
    their exponent to about 1e-7.

    Raises:
        ValueError: fewer than three sizes (four with ``lower``), sizes that repeat, or a value that is not positive.
    """
    least = 3 if lower is None else 4
    if len(set(sizes)) != len(sizes) or len(sizes) < least or len(sizes) != len(values):
        raise ValueError(f"sizes={list(sizes)} must be {least} or more different ones with a value each")
    if not all(value > 0 for value in values):
        raise ValueError(f"values={list(values)} must be positive")
    if lower is None:
        return _one_power(sizes, values)
    low, high = lower + APART, HIGHEST
    while high - low > 1e-10:
        a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if _two_powers(sizes, values, lower, a)[1] < _two_powers(sizes, values, lower, b)[1]:
            high = b
        else:
            low = a
    return _two_powers(sizes, values, lower, (low + high) / 2)[0]


def _one_power(sizes: Sequence[int], values: Sequence[float]) -> Fit:
    # Against the first value, so that equal ones have the exponent 0 exactly.
    x, y = [math.log(n) for n in sizes], [math.log(value / values[0]) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    exponent = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    factor = values[0] * math.exp(mean_y - exponent * mean_x)
    error = max(abs(factor * n**exponent / value - 1) for n, value in zip(sizes, values, strict=True))
    return Fit(exponent, factor, 0.0, error)


def _two_powers(sizes: Sequence[int], values: Sequence[float], lower: float, exponent: float) -> tuple[Fit, float]:
    """The best factors at this exponent, and the sum of the squared relative errors."""
    # In units of the largest size, so that both columns are of one order.
    largest = max(sizes)
    u = [(n / largest) ** lower / value for n, value in zip(sizes, values, strict=True)]
    v = [(n / largest) ** exponent / value for n, value in zip(sizes, values, strict=True)]
    # Gram-Schmidt instead of normal equations, which would square the condition.
    uu = sum(a * a for a in u)
    along = sum(a * b for a, b in zip(u, v, strict=True)) / uu
    w = [b - along * a for a, b in zip(u, v, strict=True)]
    first, second = sum(u) / uu, sum(w) / sum(c * c for c in w)
    errors = [first * a + second * c - 1 for a, c in zip(u, w, strict=True)]
    a, b = (first - along * second) / largest**lower, second / largest**exponent
    return Fit(exponent, b, a, max(map(abs, errors))), sum(e * e for e in errors)
