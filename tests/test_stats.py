"""Intervals and tests against independent implementations, and against wrong input."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from attnrepro import stats

RNG = np.random.default_rng(0)
P = st.floats(0, 1)
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


# --- intervals ---


def test_mean_interval_is_students() -> None:
    values = RNG.normal(3, 2, 12)
    got = stats.mean_interval(values, 0.9)
    expected = reference.t.interval(0.9, 11, loc=values.mean(), scale=reference.sem(values))
    assert got == pytest.approx((values.mean(), *expected))


def test_monte_carlo_interval_is_normal_at_many_draws_and_wider_at_few_clusters() -> None:
    many = stats.monte_carlo_interval(1.0, 2.0, 1_000_000)
    assert many.high - 1 == pytest.approx(1.959964 * 2 / 1000, rel=1e-4)
    assert stats.monte_carlo_interval(1.0, 2.0, 4).high - 1 > 1.5 * 1.96


def test_one_value_has_no_interval() -> None:
    for interval in (
        stats.mean_interval([2.0]),
        stats.median_interval([2.0]),
        stats.monte_carlo_interval(2.0, 0.0, 1),
    ):
        assert interval.value == 2.0
        assert math.isnan(interval.low) and math.isnan(interval.high)
    assert math.isnan(stats.loglog_slope([1, 2], [1, 2]).low)
    assert math.isnan(stats.t_prediction_p(2.0, 0.1, [2.0]))
    assert math.isnan(stats.welch_p(1.0, math.nan, 1, 1.0, 1.0, 9))


def test_equal_values_have_an_interval_of_no_width() -> None:
    # The mean of equal values can differ from them by rounding; the interval must not.
    assert stats.mean_interval([0.1] * 7) == (0.1, 0.1, 0.1)
    assert stats.median_interval([0.1] * 7) == (0.1, 0.1, 0.1)


def test_pooled_halves_are_the_whole() -> None:
    values = RNG.normal(size=101)
    parts = [(float(v.mean()), float(v.std(ddof=1)), v.size) for v in (values[:30], values[30:])]
    assert stats.pool(parts) == pytest.approx((values.mean(), values.std(ddof=1), 101))
    assert stats.pool([(2.0, 0.0, 1)]) == (2.0, 0.0, 1)
    with pytest.raises(ValueError, match="n >= 1"):
        stats.pool([(1.0, 1.0, 0)])


@pytest.mark.parametrize(("successes", "n"), [(0, 20), (3, 20), (20, 20), (1, 1), (500, 1000)])
def test_share_interval_is_clopper_pearson(successes: int, n: int) -> None:
    expected = reference.binomtest(successes, n).proportion_ci(method="exact")
    assert stats.share_interval(successes, n)[1:] == pytest.approx((expected.low, expected.high))


def test_share_interval_refuses_what_is_no_share() -> None:
    for successes, n in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ValueError, match="no share"):
            stats.share_interval(successes, n)


def test_median_interval_takes_the_order_statistics_of_the_textbook() -> None:
    assert stats.median_interval(np.arange(1.0, 21)) == (10.5, 6, 15)
    assert stats.median_interval(np.arange(1.0, 7)) == (3.5, 1, 6)
    assert math.isnan(stats.median_interval(np.arange(1.0, 6)).low)


def test_median_interval_covers_skewed_data() -> None:
    samples = RNG.exponential(size=(2000, 15))
    inside = [i.low <= math.log(2) <= i.high for i in map(stats.median_interval, samples)]
    assert 0.94 < np.mean(inside) < 0.99


def test_paired_difference_removes_what_the_pairs_share() -> None:
    common = RNG.normal(0, 10, 8)
    gain = np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.1, 0.9])
    assert stats.paired_difference(common + gain, common).low > 0.8
    with pytest.raises(ValueError, match="pairs"):
        stats.paired_difference([1, 2], [1])


def test_loglog_slope() -> None:
    x = np.array([64, 128, 256, 512, 1024])
    noise = np.exp(RNG.normal(0, 0.05, 5))
    got, fit = (
        stats.loglog_slope(x, 3 * x**1.5 * noise),
        reference.linregress(np.log(x), 1.5 * np.log(x) + np.log(noise)),
    )
    half = reference.t.ppf(0.975, 3) * fit.stderr
    assert got == pytest.approx((fit.slope, fit.slope - half, fit.slope + half))
    for bad in ([1, 2, -3], [2, 2, 2]):
        with pytest.raises(ValueError, match="log-log"):
            stats.loglog_slope(bad, [1, 2, 3])


def test_not_a_number_is_refused_everywhere() -> None:
    nan = [1.0, math.nan, 2.0]
    good = [1.0, 2.0, 3.0]
    for call in (
        lambda: stats.mean_interval(nan),
        lambda: stats.mean_interval([1.0, math.inf]),
        lambda: stats.mean_interval([]),
        lambda: stats.median_interval(nan),
        lambda: stats.paired_difference(nan, good),
        lambda: stats.loglog_slope(good, nan),
        lambda: stats.monte_carlo_interval(math.nan, 1.0, 3),
        lambda: stats.monte_carlo_interval(1.0, math.nan, 3),
        lambda: stats.pool([(1.0, math.nan, 3)]),
        lambda: stats.holm([0.1, math.nan]),
        lambda: stats.rank_p(0.5, 0.1, nan),
        lambda: stats.rank_p(math.nan, 0.1, good),
        lambda: stats.t_prediction_p(0.5, 0.1, nan),
        lambda: stats.z_score(math.nan, 1.0),
        lambda: stats.z_p(math.nan),
        lambda: stats.t_p(math.nan, 3),
        lambda: stats.welch_p(math.nan, 1, 3, 1, 1, 3),
        lambda: stats.welch_p(1, math.nan, 3, 1, 1, 3),
        lambda: stats.sign_test_p(nan),
        lambda: stats.hotelling_p([math.nan], [0.0], [[1.0]], 9),
        lambda: stats.satterthwaite_sum_of_squares_p(math.nan, 3, 3),
        lambda: stats.is_bistable(nan),
    ):
        with pytest.raises(ValueError):
            call()


# --- tests ---


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]).size == 0
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.holm([0.5, 1.2])


@given(st.lists(P, max_size=12))
def test_holm_lies_between_raw_and_bonferroni_and_keeps_the_order(p: list[float]) -> None:
    raw, adjusted = np.array(p), stats.holm(p)
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, raw * len(p)) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(raw, kind="stable")]) >= 0).all()


@given(st.lists(P, max_size=10), st.randoms(use_true_random=False))
def test_holm_does_not_depend_on_the_order_of_lines(p: list[float], random: Random) -> None:
    order = list(range(len(p)))
    random.shuffle(order)
    assert stats.holm([p[i] for i in order]).tolist() == stats.holm(p)[order].tolist()


@given(st.lists(P, max_size=10))
def test_families_of_one_are_plain_holm(p: list[float]) -> None:
    assert stats.holm_families(p, range(len(p))) == stats.holm(p).tolist()


def test_a_family_counts_once_and_each_member_keeps_its_own_p() -> None:
    p, families = [0.01, 0.5, 0.02, 0.9], ["a", "a", "b", "c"]
    assert stats.holm_families(p, families) == pytest.approx([0.03, 1.0, 0.04, 0.9])
    assert stats.holm(p)[0] == pytest.approx(0.04)
    with pytest.raises(ValueError, match="family"):
        stats.holm_families(p, ["a"])


def test_rank_p_by_hand() -> None:
    samples = np.arange(1, 240)
    assert stats.rank_p(0, 0.5, samples) == pytest.approx(2 / 240)
    assert stats.rank_p(120, 0.5, samples) == 1
    assert stats.rank_p(3, 0, samples) == pytest.approx(2 * 4 / 240)
    assert stats.rank_p(3, 1.5, samples) == pytest.approx(2 * 5 / 240)


def test_rank_p_counts_a_draw_on_the_edge_of_the_rounding() -> None:
    # 0.580 + 0.0005 is below 0.5805 in binary.
    assert stats.rank_p(0.580, 0.0005, [0.5805] * 39) == 1


def test_rank_p_of_a_coarse_print_is_one() -> None:
    assert stats.rank_p(0.5, 10.0, [0.1, 0.2, 0.9]) == 1


@given(VALUES, st.floats(-1e6, 1e6), st.floats(0, 1e3))
def test_rank_p_is_a_p_mirrors_and_forgives_coarser_prints(x: list[float], published: float, r: float) -> None:
    p = stats.rank_p(published, r, x)
    assert 2 / (len(x) + 1) <= p <= 1 or p == 1
    assert p == stats.rank_p(-published, r, [-v for v in x])
    assert p <= stats.rank_p(published, 2 * r, x)


def test_rank_p_keeps_its_level() -> None:
    draws = RNG.normal(size=(2000, 40))
    rejected = np.mean([stats.rank_p(row[0], 0.0, row[1:]) <= 0.05 for row in draws])
    assert 0.03 < rejected < 0.07


def test_t_prediction_p() -> None:
    samples = RNG.normal(0.58, 0.016, 20)
    mean, sd = samples.mean(), samples.std(ddof=1)
    edge = mean + reference.t.ppf(0.975, 19) * sd * math.sqrt(1 + 1 / 20)
    assert stats.t_prediction_p(edge, 0.0, samples) == pytest.approx(0.05)
    assert stats.t_prediction_p(edge, 0.05, samples) > 0.3
    assert stats.t_prediction_p(0.7, 0.0005, samples) < 1e-4
    assert stats.t_prediction_p(0.5, 0.0, [0.5, 0.5]) == 1
    assert stats.t_prediction_p(0.6, 0.0, [0.5, 0.5]) == 0


def test_z() -> None:
    assert stats.z_score(-0.221, 0.083, 0.0005) == pytest.approx(-2.6626, abs=1e-4)
    assert stats.z_score(0.3, 0.0, 0.3) == pytest.approx(math.sqrt(3))
    assert stats.z_score(0.0, 0.0) == 0 and stats.z_score(-1.0, 0.0) == -math.inf
    assert stats.z_p(-1.959964) == pytest.approx(0.05, rel=1e-5)
    assert stats.z_p(math.inf) == 0 and stats.z_p(0) == 1
    with pytest.raises(ValueError, match="not negative"):
        stats.z_score(1.0, -1.0)


def test_t_p() -> None:
    assert stats.t_p(2.5, 3.7) == pytest.approx(2 * reference.t.sf(2.5, 3.7))
    assert stats.t_p(-30, 200) == pytest.approx(2 * reference.t.sf(30, 200))
    with pytest.raises(ValueError, match="degrees"):
        stats.t_p(1.0, 0)


def test_bonferroni_z() -> None:
    assert stats.bonferroni_z(1, 0.05) == pytest.approx(1.959964)
    assert stats.bonferroni_z(30) == pytest.approx(reference.norm.isf(0.001 / 60))
    with pytest.raises(ValueError, match="comparison"):
        stats.bonferroni_z(0)


def test_hotelling_of_one_number_is_the_t_prediction() -> None:
    x = RNG.normal(size=30)
    expected = stats.t_prediction_p(1.7, 0.0, x)
    assert stats.hotelling_p([1.7], [x.mean()], [[x.var(ddof=1)]], 30) == pytest.approx(expected)


def test_hotelling_keeps_its_level_and_sees_what_single_numbers_hide() -> None:
    cov = np.array([[1.0, 0.95], [0.95, 1.0]])
    draws = RNG.multivariate_normal([0, 0], cov, size=(1500, 21))
    p = [stats.hotelling_p(d[0], d[1:].mean(0), np.cov(d[1:].T), 20) for d in draws]
    assert 0.035 < np.mean(np.array(p) <= 0.05) < 0.065
    assert stats.hotelling_p([1.0, -1.0], [0, 0], cov, 200) < 1e-6


def test_hotelling_does_not_hang_on_units_and_has_no_answer_without_rank() -> None:
    cov = np.array([[1.0, 0.5], [0.5, 1.0]])
    units = np.diag([1e-9, 1e9])
    plain = stats.hotelling_p([1, 2], [0, 0], cov, 20)
    assert stats.hotelling_p(units @ [1, 2], [0, 0], units @ cov @ units, 20) == pytest.approx(plain)
    assert math.isnan(stats.hotelling_p([1, 2], [0, 0], np.ones((2, 2)), 20))
    assert math.isnan(stats.hotelling_p([1, 2], [0, 0], np.zeros((2, 2)), 20))
    assert math.isnan(stats.hotelling_p([1, 2], [0, 0], cov, 2))
    with pytest.raises(ValueError, match="k x k"):
        stats.hotelling_p([1, 2], [0, 0], [[1.0]], 20)


def test_welch() -> None:
    a, b = RNG.normal(0, 1, 9), RNG.normal(1, 3, 14)
    got = stats.welch_p(a.mean(), a.std(ddof=1), 9, b.mean(), b.std(ddof=1), 14)
    assert got == pytest.approx(reference.ttest_ind(a, b, equal_var=False).pvalue)
    assert stats.welch_p(1.0, 0.0, 5, 1.0, 0.0, 5) == 1
    assert stats.welch_p(1.0, 0.0, 5, 1.1, 0.0, 5) == 0
    # A planted shift of 5 standard errors is seen at 0.1 % even among 30 numbers.
    assert 30 * stats.welch_p(0.0, 1.0, 10_000, 5 * math.sqrt(2) / 100, 1.0, 10_000) < 0.001


def test_sign_test() -> None:
    assert stats.sign_test_p([1, 2, 3, -1, 0, 5, 4, 2, 1, 1, 1]) == pytest.approx(reference.binomtest(1, 10).pvalue)
    assert stats.sign_test_p([0.0, 0.0]) == 1
    assert stats.sign_test_p([1.0, -1.0]) == 1


def test_sum_of_squares_is_chi_square_when_independent_and_one_square_when_all_the_same() -> None:
    assert stats.satterthwaite_sum_of_squares_p(43.0, 30, 30) == pytest.approx(reference.chi2.sf(43, 30))
    assert stats.satterthwaite_sum_of_squares_p(30 * 2.0, 30, 900) == pytest.approx(reference.chi2.sf(2, 1))
    for frobenius_sq in (29.0, 901.0):
        with pytest.raises(ValueError, match="correlations"):
            stats.satterthwaite_sum_of_squares_p(43.0, 30, frobenius_sq)


def test_sum_of_squares_keeps_its_level_under_correlation() -> None:
    c = 0.6 ** np.abs(np.subtract.outer(np.arange(10), np.arange(10)))
    z = RNG.multivariate_normal(np.zeros(10), c, size=4000)
    p = [stats.satterthwaite_sum_of_squares_p(float(v), 10, float((c**2).sum())) for v in (z**2).sum(1)]
    assert 0.03 < np.mean(np.array(p) <= 0.05) < 0.07


# --- stuck seeds ---


@pytest.mark.parametrize("n", [5, 8, 10, 32, 128])
def test_ordinary_seeds_are_rarely_called_bistable(n: int) -> None:
    assert np.mean([stats.is_bistable(x) for x in RNG.normal(size=(1000, n))]) < 0.015


@pytest.mark.parametrize(("stuck", "n"), [(1, 6), (1, 10), (4, 10), (20, 64), (32, 64)])
def test_stuck_seeds_are_seen(stuck: int, n: int) -> None:
    good, bad = RNG.normal(0.95, 0.005, n - stuck), RNG.normal(0.55, 0.03, stuck)
    assert stats.is_bistable([*good, *bad])


@settings(max_examples=50)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=2))
def test_two_values_cannot_show_two_groups(x: list[float]) -> None:
    assert not stats.is_bistable(x)


def test_the_joint_rank_is_exact_for_any_distribution() -> None:
    """Under the hypothesis p is uniform on 1/(S+1), 2/(S+1), ...: so many vectors, each once the point."""
    rng = np.random.default_rng(0)
    joined = np.column_stack([rng.standard_cauchy(40), rng.exponential(size=40), rng.normal(size=40)])
    found = sorted(stats.joint_rank_p(joined[i], np.delete(joined, i, axis=0)) for i in range(40))
    assert found == pytest.approx([(i + 1) / 40 for i in range(40)])


def test_the_joint_rank_sees_a_vector_whose_numbers_are_ordinary_one_by_one() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(size=199)
    samples = np.column_stack([first, first + 0.1 * rng.normal(size=199)])
    assert stats.joint_rank_p([1.0, -1.0], samples) == 1 / 200
    assert stats.joint_rank_p([1.0, 1.0], samples) > 0.1
    with_stuck = np.vstack([samples[:-5], np.full((5, 2), 30.0)])
    assert stats.joint_rank_p([1.0, -1.0], with_stuck) <= 6 / 200


def test_the_joint_rank_needs_more_seeds_than_numbers_and_spread_in_each() -> None:
    assert math.isnan(stats.joint_rank_p([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]))
    assert math.isnan(stats.joint_rank_p([0.0, 0.0], [[1.0, 2.0], [2.0, 2.0], [3.0, 2.0], [4.0, 2.0]]))
    with pytest.raises(ValueError, match="as long as the point"):
        stats.joint_rank_p([0.0], [[1.0, 2.0], [2.0, 1.0], [0.0, 1.0]])
