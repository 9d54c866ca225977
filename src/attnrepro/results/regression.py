"""Whether two measurements of one point are the same: equal up to round-off, or not told apart by a test."""

import math
from collections.abc import Mapping
from typing import Any

from attnrepro import stats

# Family-wise error of one comparison of everything with the reference.
ALPHA = 0.001
# What two exact computations may differ by, in eps, and by how much a round-off error may be the larger one.
ROUND_OFF_EPS = 32.0
SAME_ORDER = 10.0
# By dtype of a row, else by precision of its cell.
EPS = {
    **dict.fromkeys(("float64", "64-true"), 2.0**-52),
    **dict.fromkeys(("float32", "32-true"), 2.0**-23),
    **dict.fromkeys(("float16", "16-mixed"), 2.0**-10),
    **dict.fromkeys(("bfloat16", "bf16-mixed", "bf16-true"), 2.0**-7),
}


def equal(a: float, b: float, eps: float) -> bool:
    """Whether two results of the same exact computation differ by no more than its round-off."""
    return a == b or abs(a - b) <= ROUND_OFF_EPS * eps * max(abs(a), abs(b))


def exact_agrees(quantity: str, fresh: float, reference: float, eps: float) -> bool:
    """Whether an exact value is still what it was; quantities named ``..._eps`` are counted in eps.

    A value below sqrt(eps) is taken for a round-off error: it may be smaller, and up to ten times as large (one
    below eps counts as eps), because the order of a sum decides it.
    """
    unit = eps if quantity.endswith("_eps") else 1.0
    now, before = abs(fresh) * unit, abs(reference) * unit
    if equal(fresh, reference, eps):
        return True
    return before <= math.sqrt(eps) and now <= SAME_ORDER * max(before, eps)


def difference_p(fresh: Mapping[str, Any], reference: Mapping[str, Any], eps: float) -> float:
    """Welch's p that two estimates (``estimate``, ``sd``, ``n``) are of different things; nan where one has no spread.

    Estimates that differ by round-off alone are the same (p = 1) even if neither varies.
    """
    if math.isnan(fresh["sd"]) or math.isnan(reference["sd"]):
        return math.nan
    if equal(fresh["estimate"], reference["estimate"], eps):
        return 1.0
    sides = [(side["estimate"], side["sd"], side["n"]) for side in (fresh, reference)]
    return stats.welch_p(*sides[0], *sides[1])
