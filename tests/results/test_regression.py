"""Whether two measurements are the same: round-off, exact values, and a test that a planted shift must not pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from attnrepro import stats
from attnrepro.results.regression import ALPHA, EPS, PAIRED, SIGN, WELCH, difference, equal, exact_agrees

from .test_statistics_page import says, table

F64, F32 = 2.0**-52, 2.0**-23


def side(estimate: float, sd: float = math.nan, n: int = 1) -> dict[str, Any]:
    return {"estimate": estimate, "sd": sd, "n": n, "by_seed": {}}


def seeds(values: Iterable[float], first: int = 0) -> dict[str, Any]:
    """An estimate from one value a seed."""
    chosen = np.asarray(list(values), dtype=float)
    by_seed = {str(first + i): float(value) for i, value in enumerate(chosen)}
    return {"estimate": float(chosen.mean()), "sd": float(chosen.std(ddof=1)), "n": chosen.size, "by_seed": by_seed}


def normal(count: int, seed: int = 0) -> np.ndarray:
    """Values with mean 0 and sd 1 exactly that are no two groups."""
    values = scipy_stats.norm.ppf((np.random.default_rng(seed).permutation(count) + 0.5) / count)
    return np.asarray((values - values.mean()) / values.std(ddof=1))


def stuck(count: int) -> np.ndarray:
    """Accuracies of seeds of which every fourth has not solved its task."""
    return np.where(np.arange(count) % 4 == 0, 0.60, 0.93)


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
    assert difference(side(*a), side(*b), F64).p == pytest.approx(expected, rel=1e-9)


def test_without_a_spread_nothing_is_tested() -> None:
    assert math.isnan(difference(side(1.0), side(2.0), F64).p)
    assert math.isnan(difference(side(1.0, 0.1, 10), side(2.0), F64).p)
    assert math.isnan(difference(side(1.0), side(1.0), F64).p), "and it is not counted as tested"


def test_draws_that_are_all_the_same_may_differ_by_round_off_only() -> None:
    assert difference(side(1.0, 0.0, 10), side(1.0 + 8 * F64, 0.0, 10), F64).p == 1
    assert difference(side(1.0, 0.0, 10), side(1.1, 0.0, 10), F64).p == 0
    # No difference between two devices is found in the last bits because the draws vary even less.
    assert difference(side(1.0, 1e-12, 10**6), side(1.0 + 1e-7, 1e-12, 10**6), F32).p == 1


@pytest.mark.parametrize("row", table("Against the reference"))
def test_the_worked_numbers(row: dict[str, str]) -> None:
    shift, n = float(row["difference in standard errors of the difference"]), int(row["n on either side"])
    count = int(row["points compared"])
    p = difference(side(shift * math.sqrt(2 / n), 1.0, n), side(0.0, 1.0, n), F64).p
    adjusted = float(stats.holm([p, *[1.0] * (count - 1)])[0])
    says(row["p after Holm"], adjusted)
    assert row["verdict"] == ("differs" if adjusted <= ALPHA else "same")


def test_two_runs_of_the_same_are_not_told_apart() -> None:
    """A thousand points, two independent samples of 400 draws each; one point shifted by 6 standard errors is."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1000, 400))
    b[7] += 6 * math.sqrt(2 / 400)
    sides = [[side(float(x.mean()), float(x.std(ddof=1)), x.size) for x in sample] for sample in (a, b)]
    adjusted = stats.holm([difference(x, y, F64).p for x, y in zip(*sides, strict=True)])
    assert np.flatnonzero(adjusted <= ALPHA).tolist() == [7]


def test_a_planted_shift_of_trained_seeds_is_found_and_paired_noise_is_none() -> None:
    """64 seeds that differ by 0.02 among themselves and by 0.001 between two machines; unpaired, 0.010 is nothing."""
    rng = np.random.default_rng(1)
    before = 0.7 + 0.02 * rng.standard_normal(64)
    after = before + 0.001 * rng.standard_normal(64)
    same, shifted = difference(seeds(after), seeds(before), F32), difference(seeds(after + 0.010), seeds(before), F32)
    assert (same.test, shifted.test) == (PAIRED, PAIRED)
    assert same.p > 0.01
    assert shifted.p < 1e-40
    assert shifted.p == pytest.approx(scipy_stats.ttest_rel(after + 0.010, before).pvalue, rel=1e-6)
    unpaired = difference(seeds(after + 0.010, first=100), seeds(before), F32)
    assert unpaired.test == WELCH
    assert unpaired.p > ALPHA
    assert unpaired.p == pytest.approx(scipy_stats.ttest_ind(after + 0.010, before, equal_var=False).pvalue, rel=1e-9)


def test_pairs_are_made_by_the_seed_and_not_by_the_order() -> None:
    before = seeds(0.7 + 0.02 * normal(8))
    after = seeds(np.array(list(before["by_seed"].values())) + 0.001 * (1 + normal(8, seed=1)))
    turned = after | {"by_seed": dict(reversed(after["by_seed"].items()))}
    assert difference(turned, before, F32) == difference(after, before, F32)
    assert difference(after, before, F32).p < 0.05


def test_seeds_that_are_stuck_are_compared_by_sign() -> None:
    before = stuck(64)
    noise = 0.001 * normal(64)
    assert difference(seeds(before + noise), seeds(before), F32) == (scipy_stats.binomtest(32, 64).pvalue, SIGN)
    up = difference(seeds(before + noise + 0.010), seeds(before), F32)
    assert up == (pytest.approx(2 * 0.5**64), SIGN)
    # A seed that another machine solves and this one does not is an outlier of the differences.
    lone = 0.7 + 0.02 * normal(64)
    flipped = lone + 0.001 * normal(64, seed=1)
    flipped[3] += 0.3
    assert difference(seeds(flipped), seeds(lone), F32).test == SIGN
    assert difference(seeds(flipped), seeds(lone), F32).p > 0.5


def test_equal_seeds_are_equal() -> None:
    values = 0.7 + 0.02 * normal(8)
    assert difference(seeds(values), seeds(values), F32) == (1.0, PAIRED)
    assert difference(seeds(stuck(8)), seeds(stuck(8)), F32).p == 1
    assert difference(seeds(values * (1 + 8 * F32)), seeds(values), F32).p == 1, "round-off, though it goes one way"
    assert difference(seeds(values + 0.25), seeds(values), F32).p < 1e-50, "all by the same"


@pytest.mark.parametrize(("count", "test"), [(4, WELCH), (5, PAIRED)])
def test_five_pairs_are_needed(count: int, test: str) -> None:
    values = 0.7 + 0.02 * normal(count)
    found = difference(seeds(values + 0.001 * (1 + normal(count, seed=1))), seeds(values), F32)
    assert found.test == test


def test_a_seed_that_is_there_on_one_side_only_leaves_no_pairs() -> None:
    values = 0.7 + 0.02 * normal(8)
    one_gone = seeds(values[:7] + 0.01)
    assert difference(one_gone, seeds(values), F32).test == WELCH


def smallest(differs: Callable[[float], bool]) -> float:
    """Where something that grows begins to differ."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if differs(middle) else (middle, high)
    return high


@pytest.mark.parametrize("row", table("Against the reference, seed by seed"))
def test_what_can_be_found_seed_by_seed(row: dict[str, str]) -> None:
    count, points = int(row["seeds"]), int(row["points compared"])

    def differs(after: np.ndarray, before: np.ndarray, test: str, first: int = 0) -> bool:
        found = difference(seeds(after, first), seeds(before), F32)
        assert found.test == test
        return bool(stats.holm([found.p, *[1.0] * (points - 1)])[0] <= ALPHA)

    base, noise = 0.7 + 0.02 * normal(count), 0.001 * normal(count, seed=1)
    says(row["mean difference, paired sd 0.001"], smallest(lambda d: differs(base + noise + d, base, PAIRED)))
    says(row["mean difference, Welch at sd 0.02"], smallest(lambda d: differs(base + d, base, WELCH, 1000)))
    signs = [
        up
        for up in range(count // 2, count + 1)
        if differs(stuck(count) + np.where(np.arange(count) < up, 0.002, -0.001), stuck(count), SIGN)
    ]
    assert row["seeds that go one way, sign test"] == (str(signs[0]) if signs else "cannot")
