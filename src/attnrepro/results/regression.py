"""Whether two measurements of one point are the same: equal up to round-off, or not told apart by a test."""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from attnrepro import stats

# Family-wise error of one comparison of everything with the reference.
ALPHA = 0.001
# What two exact computations may differ by, in eps, and by how much a round-off error may be the larger one.
ROUND_OFF_EPS = 32.0
SAME_ORDER = 10.0
# Fewer common seeds than these are not compared seed by seed.
LEAST_PAIRS = 5
WELCH, PAIRED, SIGN = "Welch's t", "paired t", "sign test"
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


class Difference(NamedTuple):
    """p that two estimates are of different things (nan: one of them has no spread), and the test that it is from."""

    p: float
    test: str


def difference(fresh: Mapping[str, Any], reference: Mapping[str, Any], eps: float) -> Difference:
    """Whether two estimates (``estimate``, ``sd``, ``n``, ``by_seed``: value by seed or empty) differ.

    The same seeds are trained on the same data from the same start, so they are compared pair by pair: by a paired t,
    or by the sign test where seeds are stuck on either side or in between. Other estimates: Welch. Estimates that
    differ by round-off alone are the same (p = 1) even if neither varies.
    """
    a, b = fresh["by_seed"], reference["by_seed"]
    pairs = [(a[seed], b[seed]) for seed in a] if len(a) >= LEAST_PAIRS and a.keys() == b.keys() else []
    differences = [one - other for one, other in pairs]
    stuck = any(stats.is_bistable(values) for values in (a.values(), b.values(), differences)) if pairs else False
    test = WELCH if not pairs else SIGN if stuck else PAIRED
    if math.isnan(fresh["sd"]) or math.isnan(reference["sd"]):
        return Difference(math.nan, test)
    if equal(fresh["estimate"], reference["estimate"], eps):
        return Difference(1.0, test)
    if test == SIGN:
        return Difference(stats.sign_test_p(differences), test)
    if test == PAIRED:
        error = statistics.stdev(differences) / math.sqrt(len(differences))
        return Difference(stats.t_p(stats.z_score(statistics.fmean(differences), error), len(differences) - 1), test)
    sides = [(side["estimate"], side["sd"], side["n"]) for side in (fresh, reference)]
    return Difference(stats.welch_p(*sides[0], *sides[1]), test)
