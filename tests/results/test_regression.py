"""Whether two measurements are the same: round-off, exact values, and a test that a planted shift must not pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnrepro import stats
from attnrepro.results.regression import ALPHA, EPS, difference_p, equal, exact_agrees

from .test_statistics_page import says, table

F64, F32 = 2.0**-52, 2.0**-23


def side(estimate: float, sd: float = math.nan, n: int = 1) -> dict[str, float]:
    return {"estimate": estimate, "sd": sd, "n": n}


@pytest.mark.parametrize(("name", "dtype"), [("float64", np.float64), ("float32", np.float32), ("float16", np.float16)])
def test_eps_is_that_of_the_dtype(name: str, dtype: type) -> None:
    assert EPS[name] == np.finfo(dtype).eps


def test_bfloat16_keeps_seven_bits() -> None:
    """As a float32 of which the lower 16 bits are cut off: the next number after 1 is 1 + 2^-7."""
    after = (np.array(1.0, np.float32).view(np.uint32) + np.uint32(1 << 16)).view(np.float32)
    assert EPS["bfloat16"] == float(after) - 1


@pytest.mark.parametrize(
    ("a", "b", "eps", "same"),
    [
        (0.0, 0.0, F64, True),
        (1.0, 1.0 + 30 * F64, F64, True),
        (1.0, 1.0 + 34 * F64, F64, False),
        (-1e9, -1e9 * (1 + 30 * F64), F64, True),
        (1.0, 1.000003, F32, True),
        (1.0, 1.000005, F32, False),
        (1.0, -1.0, F32, False),
        (0.0, 1e-300, F64, False),
        (math.inf, math.inf, F64, True),
    ],
)
def test_equal_up_to_round_off(a: float, b: float, eps: float, same: bool) -> None:
    assert equal(a, b, eps) == equal(b, a, eps) == same


@pytest.mark.parametrize(
    ("quantity", "fresh", "reference", "eps", "agrees"),
    [
        ("count", 256, 256, F32, True),
        ("count", 257, 256, F32, False),
        ("bound", 0.5, 0.25, F64, False),
        ("error", 8.9e-16, 1.1e-16, F64, True),
        ("error", 0.0, 8.9e-16, F64, True),
        ("error", 8.9e-16, 0.0, F64, True),  # 4 eps, and 0 counts as one
        ("error", 2.5e-15, 0.0, F64, False),
        ("error", 9.1e-15, 8.9e-16, F64, False),
        ("error", 3.5e-13, 3.4e-14, F64, False),
        ("error", 3.3e-13, 3.4e-14, F64, True),
        ("error", 5e-7, 1e-7, F32, True),
        ("error", 5e-7, 1e-7, F64, False),  # no round-off in float64
        ("error_eps", 9.5, 4.0, F64, True),
        ("error_eps", 41.0, 4.0, F64, False),
        ("error_eps", 11.0, 0.5, F64, False),
        ("error", 11.0, 4.0, F64, False),
        ("breakage_eps", 2e14, 1e14, F64, False),
        ("breakage_eps", 1e14 * (1 + F64), 1e14, F64, True),
    ],
)
def test_exact_values(quantity: str, fresh: float, reference: float, eps: float, agrees: bool) -> None:
    assert exact_agrees(quantity, fresh, reference, eps) == agrees


@pytest.mark.parametrize(
    ("a", "b"),
    [((1.0, 0.5, 100), (1.1, 0.7, 50)), ((0.3, 0.01, 8), (0.31, 0.05, 64)), ((2.0, 0.0, 10), (2.1, 0.3, 10))],
)
def test_the_test_is_welchs(a: tuple[float, float, int], b: tuple[float, float, int]) -> None:
    expected = scipy_stats.ttest_ind_from_stats(*a, *b, equal_var=False).pvalue
    assert difference_p(side(*a), side(*b), F64) == pytest.approx(expected, rel=1e-9)


def test_without_a_spread_nothing_is_tested() -> None:
    assert math.isnan(difference_p(side(1.0), side(2.0), F64))
    assert math.isnan(difference_p(side(1.0, 0.1, 10), side(2.0), F64))
    assert math.isnan(difference_p(side(1.0), side(1.0), F64)), "and it is not counted as tested"


def test_draws_that_are_all_the_same_may_differ_by_round_off_only() -> None:
    assert difference_p(side(1.0, 0.0, 10), side(1.0 + 8 * F64, 0.0, 10), F64) == 1
    assert difference_p(side(1.0, 0.0, 10), side(1.1, 0.0, 10), F64) == 0
    # No difference between two devices is found in the last bits because the draws vary even less.
    assert difference_p(side(1.0, 1e-12, 10**6), side(1.0 + 1e-7, 1e-12, 10**6), F32) == 1


@pytest.mark.parametrize("row", table("Against the reference"))
def test_the_worked_numbers(row: dict[str, str]) -> None:
    shift, n = float(row["difference in standard errors of the difference"]), int(row["n on either side"])
    count = int(row["points compared"])
    p = difference_p(side(shift * math.sqrt(2 / n), 1.0, n), side(0.0, 1.0, n), F64)
    adjusted = float(stats.holm([p, *[1.0] * (count - 1)])[0])
    says(row["p after Holm"], adjusted)
    assert row["verdict"] == ("differs" if adjusted <= ALPHA else "same")


def test_two_runs_of_the_same_are_not_told_apart() -> None:
    """A thousand points, two independent samples of 400 draws each; one point shifted by 6 standard errors is."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1000, 400))
    b[7] += 6 * math.sqrt(2 / 400)
    sides = [[side(float(x.mean()), float(x.std(ddof=1)), x.size) for x in sample] for sample in (a, b)]
    adjusted = stats.holm([difference_p(x, y, F64) for x, y in zip(*sides, strict=True)])
    assert np.flatnonzero(adjusted <= ALPHA).tolist() == [7]
