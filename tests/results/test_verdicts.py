"""Every verdict class is fed numbers that are right and numbers that are wrong, and must tell them apart."""

import math
from dataclasses import replace

import numpy as np
import pytest

from attnrepro import stats
from attnrepro.results.published import PublishedLine
from attnrepro.results.verdicts import (
    FITTED,
    Case,
    Estimate,
    Judgement,
    Protocol,
    Verdict,
    check_monte_carlo,
    judge,
)

EPS = 2.0**-52
RNG = np.random.default_rng(0)


def published(
    klass: str,
    printed: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    margin: str = "",
    statistic: str = "mean",
    d: str = "4",
) -> PublishedLine:
    number = float(printed) if printed else None
    return PublishedLine(
        "s0-x", (("head_dim", d),), "q", statistic, number, printed, low, high, klass, margin, "because"
    )


def one(line: PublishedLine, theory: float | None, estimate: Estimate | None, **more: object) -> Judgement:
    return judge([Case(line, theory, estimate, **more)])[0]  # type: ignore[arg-type]


def of_seeds(seeds: list[float], n_failed: int = 0) -> Estimate:
    interval = stats.mean_interval(seeds)
    sd = float(np.std(seeds, ddof=1)) if len(seeds) > 1 else None
    return Estimate(interval.value, len(seeds), n_failed, sd, interval.low, interval.high, tuple(seeds))


# --- our measurement against our theory ---


@pytest.mark.parametrize("klass", ["exact", "sampling"])
def test_a_planted_shift_of_five_standard_errors_is_our_own_bug(klass: str) -> None:
    line = published(klass, "2.00", margin="100" if klass == "sampling" else "")
    assert one(line, 2.0, Estimate(2.0 + 3.9e-3, 10_000, sd=0.1)).verdict != Verdict.FAILED
    judgement = one(line, 2.0, Estimate(2.0 + 5e-3, 10_000, sd=0.1))
    assert judgement.verdict == Verdict.FAILED
    assert "5 standard errors apart" in judgement.note


def test_an_exact_computation_must_meet_theory_to_ten_digits() -> None:
    line = published("exact", "2.77")
    exact = math.log(16)
    assert one(line, exact, Estimate(exact * (1 + 1e-11), 1)).verdict == Verdict.REPRODUCED
    assert one(line, exact, Estimate(exact * (1 + 1e-9), 1)).verdict == Verdict.FAILED
    assert one(line, exact, Estimate(exact * (1 + 1e-9), 60, sd=0.0)).verdict == Verdict.FAILED


def test_a_theory_of_zero_is_met_by_round_off_only() -> None:
    line = published("exact", "0")
    assert one(line, 0.0, Estimate(3e-16, 1)).verdict == Verdict.REPRODUCED
    assert one(line, 0.0, Estimate(3e-14, 1)).verdict == Verdict.FAILED
    assert one(line, 0.0, Estimate(3e-14, 1), scale=100.0).verdict == Verdict.REPRODUCED
    assert one(published("exact", "5"), 0.0, Estimate(3e-16, 1)).verdict == Verdict.SOURCE_ERROR
    assert one(line, 4e-16, Estimate(8e-16, 1)).verdict == Verdict.FAILED


def test_a_share_without_a_single_event_is_not_exact() -> None:
    line = published("exact", "0.00", statistic="share")
    assert one(line, 1e-4, Estimate(0.0, 1000, sd=0.0)).verdict == Verdict.REPRODUCED
    assert one(line, 0.05, Estimate(0.0, 1000, sd=0.0)).verdict == Verdict.FAILED
    # Half of the time in every single draw is exact, though.
    half = published("exact", "0.50", statistic="share")
    assert one(half, 0.5004, Estimate(0.5, 1000, sd=0.0)).verdict == Verdict.FAILED
    # The same numbers as a mean: nothing was drawn, and 0 is not 1e-4.
    assert one(published("exact", "0.00"), 1e-4, Estimate(0.0, 1000, sd=0.0)).verdict == Verdict.FAILED


def test_an_interval_stands_for_the_spread_where_there_is_no_sd() -> None:
    line = published("exact", "0.50", statistic="median")
    assert one(line, 0.5, Estimate(0.51, 64, low=0.49, high=0.53)).verdict == Verdict.REPRODUCED
    assert one(line, 0.5, Estimate(0.51, 64, low=0.509, high=0.511)).verdict == Verdict.FAILED
    wrong = published("exact", "0.60", statistic="median")
    assert one(wrong, 0.5, Estimate(0.51, 64, low=0.49, high=0.53)).verdict == Verdict.SOURCE_ERROR
    assert one(wrong, 0.5, Estimate(0.51, 64, low=0.41, high=0.61)).verdict == Verdict.DIFFERS
    assert one(wrong, 0.5, Estimate(0.539, 64, low=0.519, high=0.559)).verdict == Verdict.DIFFERS


# --- exact ---


def test_exact_holds_the_print_against_theory_and_not_against_chance() -> None:
    # Theory rounds to another last digit; the measurement alone would have let the print pass.
    estimate = Estimate(0.41117, 1_000_000, sd=0.40)
    assert one(published("exact", "0.4105"), 0.41049, estimate).verdict == Verdict.REPRODUCED
    assert one(published("exact", "0.4110"), 0.41049, estimate).verdict == Verdict.DIFFERS
    assert one(published("exact", "0.4317"), 0.41049, estimate).verdict == Verdict.SOURCE_ERROR


def test_source_error_needs_both_locks() -> None:
    line, theory = published("exact", "0.6150"), 163 / 256
    sharp, blunt = Estimate(0.6365, 200_000, sd=0.481), Estimate(0.6365, 500, sd=0.481)
    off = Estimate(0.6365 + 3.9 * 0.0011, 200_000, sd=0.481)
    assert one(line, theory, sharp).verdict == Verdict.SOURCE_ERROR
    assert one(line, theory, blunt).verdict == Verdict.DIFFERS
    # Within four standard errors of theory, but its 99.9 % interval misses it: no second witness.
    assert one(line, theory, off).verdict == Verdict.DIFFERS
    assert one(line, theory, Estimate(theory, 1)).verdict == Verdict.SOURCE_ERROR


def test_exact_ranges_are_taken_as_a_whole() -> None:
    decades = math.log10(1024 / 4)
    assert one(published("exact", "5"), decades, Estimate(decades, 1)).verdict == Verdict.SOURCE_ERROR
    inside = published("exact", low=2.0, high=3.0)
    assert one(inside, decades, Estimate(decades, 1)).verdict == Verdict.REPRODUCED
    at_least = published("exact", low=2.5)
    assert one(at_least, decades, Estimate(decades, 1)).verdict == Verdict.SOURCE_ERROR


def test_exact_without_theory_spread_or_measurement_is_not_judged() -> None:
    line = published("exact", "0.6150")
    assert one(line, None, Estimate(0.615, 1)).verdict == Verdict.NOT_JUDGED
    assert one(line, 0.615, of_seeds([0.9])).verdict == Verdict.INCONCLUSIVE
    assert one(line, 0.615, None) == Judgement(Verdict.NOT_RUN, None, "no measurement")
    assert one(line, 0.615, None, not_run="needs CUDA").note == "needs CUDA"
    assert one(line, 0.615, Estimate(math.nan, 0, 5)) == Judgement(Verdict.NOT_RUN, None, "all 5 runs failed")


def test_a_mean_over_survivors_is_marked() -> None:
    judgement = one(published("exact", "2.0"), 2.0, of_seeds([1.99, 2.0, 2.01], n_failed=1))
    assert judgement.verdict == Verdict.REPRODUCED
    assert judgement.note.startswith("mean over survivors: 1 of 4 runs failed; ")


# --- structural ---


@pytest.mark.parametrize(
    ("error", "n", "verdict"),
    [
        (32 * EPS * 3.0, 60, Verdict.REPRODUCED),
        (0.0, 60, Verdict.REPRODUCED),
        (33 * EPS * 3.0, 60, Verdict.INCONCLUSIVE),
        (32 * EPS * 3.0, 59, Verdict.INCONCLUSIVE),
        (0.9e6 * EPS * 3.0, 60, Verdict.INCONCLUSIVE),
        (1e6 * EPS * 3.0, 60, Verdict.SOURCE_ERROR),
        (0.67, 1, Verdict.SOURCE_ERROR),
    ],
)
def test_structural_holds_at_round_off_and_falls_to_a_counter_example(error: float, n: int, verdict: Verdict) -> None:
    assert one(published("structural"), None, Estimate(error, n), scale=3.0).verdict == verdict


def test_structural_knows_the_precision() -> None:
    single = 2.0**-23
    assert one(published("structural"), None, Estimate(2e-7, 60), eps=single).verdict == Verdict.REPRODUCED
    assert one(published("structural"), None, Estimate(2e-7, 60)).verdict == Verdict.SOURCE_ERROR


def test_a_printed_round_off_must_be_round_off() -> None:
    estimate = Estimate(4 * EPS, 140)
    assert one(published("structural", "6.661e-16"), None, estimate).verdict == Verdict.REPRODUCED
    assert one(published("structural", "0.000e+00"), None, estimate).verdict == Verdict.REPRODUCED
    assert one(published("structural", "6.661e-10"), None, estimate).verdict == Verdict.DIFFERS


def test_structural_refuses_a_signed_error() -> None:
    with pytest.raises(ValueError, match="not negative"):
        one(published("structural"), None, Estimate(-1e-16, 60))


# --- sampling ---

SHARP = Estimate(2.0, 1_000_000, sd=0.83)


def test_sampling_with_the_sources_own_n() -> None:
    line = published("sampling", "1.779", margin="100")
    judgement = one(line, 2.0, SHARP)
    assert judgement.verdict == Verdict.DIFFERS
    assert judgement.p == pytest.approx(stats.z_p(-0.221 / 0.083), rel=1e-3)
    assert judgement.note == "n=100 p=0.00775 (z=-2.66); alone it would be within noise up to n=54"
    judgement = one(published("sampling", "1.779", margin="50"), 2.0, SHARP)
    assert judgement.verdict == Verdict.WITHIN_NOISE
    assert FITTED not in judgement.note


def test_holm_counts_the_whole_table_whatever_n_each_line_states() -> None:
    lines = [published("sampling", "1.779", margin="100")]
    lines += [published("sampling", "2.00", margin=str(200 + i), d=str(i)) for i in range(24)]
    judgements = judge([Case(line, 2.0, SHARP) for line in lines])
    assert judgements[0].verdict == Verdict.WITHIN_NOISE
    assert judgements[0].p == pytest.approx(25 * 0.00775, rel=1e-3)


def test_one_print_claimed_twice_counts_once() -> None:
    line = published("sampling", "1.779", margin="100")
    again = replace(line, claim="s0-y")
    judgements = judge([Case(claim, 2.0, SHARP) for claim in (line, again)])
    assert [j.p for j in judgements] == pytest.approx([0.00775] * 2, rel=1e-3)


def test_numbers_that_depend_on_each_other_count_once_and_keep_their_own_p() -> None:
    def case(printed: str, expected: float, se: float) -> Case:
        line = published("sampling", printed, d=printed)
        return Case(line, None, Estimate(expected, 100, sd=1.0), (Protocol("own", expected, se, number="sd-4"),))

    twins = [case("1.779", 2.0, 0.083), case("0.889", 1.0, 0.0415)]
    assert [j.verdict for j in judge(twins)] == [Verdict.DIFFERS] * 2
    assert judge(twins)[0].p == judge(twins[:1])[0].p
    misprint = judge([twins[0], case("1.001", 1.0, 0.0415)])
    assert [j.verdict for j in misprint] == [Verdict.DIFFERS, Verdict.WITHIN_NOISE]


def test_differs_only_if_every_protocol_rejects() -> None:
    line = published("sampling", "1.779")
    own, shared = Protocol("own keys", 2.0, 0.04), Protocol("shared keys", 2.0, 0.2)
    judgement = one(line, None, SHARP, protocols=(own, shared))
    assert judgement.verdict == Verdict.WITHIN_NOISE
    assert "own keys p=" in judgement.note and "shared keys p=0.269" in judgement.note
    assert judgement.note.endswith(FITTED)
    judgement = one(line, None, SHARP, protocols=(own, replace(shared, se=0.05)))
    assert judgement.verdict == Verdict.DIFFERS
    assert FITTED not in judgement.note


def test_holm_runs_within_each_protocol() -> None:
    def case(name: str, d: str) -> Case:
        return Case(published("sampling", "1.779", d=d), None, SHARP, (Protocol(name, 2.0, 0.1),))

    separate, together = judge([case("a", "4"), case("b", "16")]), judge([case("a", "4"), case("a", "16")])
    assert separate[0].p is not None and together[0].p == pytest.approx(2 * separate[0].p)


def test_rounding_forgives_what_it_hides() -> None:
    sharp = (Protocol("p", 2.0, 1e-6),)
    coarse = (Protocol("p", 2.3, 1e-6),)
    assert one(published("sampling", "2.1"), None, SHARP, protocols=sharp).verdict == Verdict.DIFFERS
    assert one(published("sampling", "2"), None, SHARP, protocols=coarse).verdict == Verdict.WITHIN_NOISE
    inside = published("sampling", low=1.9, high=2.1)
    assert one(inside, None, SHARP, protocols=sharp).p == 1
    beside = published("sampling", low=2.1, high=2.2)
    assert one(beside, None, SHARP, protocols=sharp).verdict == Verdict.DIFFERS


def test_without_theory_our_own_error_widens_the_test() -> None:
    line = published("sampling", "1.779", margin="100")
    few = one(line, None, Estimate(2.0, 100, sd=0.83))
    assert few.verdict == Verdict.WITHIN_NOISE
    assert few.p == pytest.approx(stats.z_p(-0.221 / 0.083 / math.sqrt(2)), rel=1e-3)


def test_sampling_without_n_protocol_or_spread_is_not_judged() -> None:
    assert one(published("sampling", "1.779"), 2.0, SHARP).verdict == Verdict.NOT_JUDGED
    stated = published("sampling", "1.779", margin="100")
    assert one(stated, 2.0, Estimate(2.0, 1)).verdict == Verdict.NOT_JUDGED
    assert one(stated, 2.0, None).verdict == Verdict.NOT_RUN


# --- single_run ---


def run_case(printed: str, samples: np.ndarray, name: str = "I", *, d: str = "4", margin: str = "") -> Case:
    line = published("single_run", printed, margin=margin, d=d)
    protocol = Protocol(name, math.nan, math.nan, tuple(map(float, samples)))
    return Case(line, None, of_seeds([float(v) for v in samples[:20]]), (protocol,))


def test_six_numbers_need_239_seeds_to_reject_by_rank() -> None:
    def six(size: int) -> list[Judgement]:
        samples = RNG.normal(0.5, 0.01, (6, size)).clip(0.46, 0.54)
        prints = ["0.300", *[f"{float(np.median(s)):.3f}" for s in samples[1:]]]
        return judge([run_case(p, s, d=str(i)) for i, (p, s) in enumerate(zip(prints, samples, strict=True))])

    enough = six(239)
    assert [j.verdict for j in enough] == [Verdict.DIFFERS] + [Verdict.WITHIN_NOISE] * 5
    assert enough[0].p == pytest.approx(0.05)
    assert "rank among 239" in enough[0].note
    fewer = six(238)
    assert fewer[0].verdict == Verdict.DIFFERS
    assert "t, 238 seeds" in fewer[0].note


def test_a_run_inside_the_spread_of_seeds_is_consistency_and_not_evidence() -> None:
    samples = RNG.normal(0.58, 0.02, 256)
    fitted = judge([run_case("0.580", samples)])[0]
    assert (fitted.verdict, fitted.note[-len(FITTED) :]) == (Verdict.WITHIN_NOISE, FITTED)
    declared = judge([run_case("0.580", samples, margin="declared")])[0]
    assert declared.verdict == Verdict.WITHIN_NOISE and FITTED not in declared.note


def test_a_run_outside_differs_by_rank_and_by_t() -> None:
    for size in (256, 20):
        assert judge([run_case("0.700", RNG.normal(0.58, 0.02, size))])[0].verdict == Verdict.DIFFERS


def test_a_coarse_print_covers_every_seed() -> None:
    assert judge([run_case("1", RNG.normal(0.58, 0.02, 256))])[0].p == 1


def test_ranges_and_open_ranges_are_ranked() -> None:
    samples = tuple(float(v) for v in RNG.normal(0.58, 0.02, 256))
    protocol = (Protocol("I", 0.0, 0.0, samples),)
    estimate = of_seeds(list(samples[:9]))
    for low, high, verdict in (
        (0.5, 0.7, Verdict.WITHIN_NOISE),
        (0.7, 0.8, Verdict.DIFFERS),
        (0.7, None, Verdict.DIFFERS),
        (None, 0.5, Verdict.DIFFERS),
        (0.57, None, Verdict.WITHIN_NOISE),
    ):
        line = published("single_run", low=low, high=high)
        assert one(line, None, estimate, protocols=protocol).verdict == verdict


def test_stuck_or_few_seeds_carry_no_t_interval() -> None:
    stuck = np.append(RNG.normal(0.95, 0.01, 19), 0.5)
    judgement = judge([run_case("0.700", stuck)])[0]
    assert judgement.verdict == Verdict.INCONCLUSIVE and "some stuck" in judgement.note
    assert judge([run_case("0.700", RNG.normal(0.58, 0.02, 4))])[0].verdict == Verdict.INCONCLUSIVE
    # Many seeds need no shape: the rank test takes the two groups as they are.
    many = np.append(RNG.normal(0.95, 0.01, 200), RNG.normal(0.5, 0.01, 56))
    assert judge([run_case("0.500", many)])[0].verdict == Verdict.WITHIN_NOISE
    assert judge([run_case("0.300", many)])[0].verdict == Verdict.DIFFERS
    both = judge([run_case("0.500", many), run_case("0.950", many + RNG.normal(0, 0.01, 256), d="16")])
    assert not any("joint" in judgement.note for judgement in both)


def test_a_run_differs_only_if_every_protocol_rejects_and_none_is_undecided() -> None:
    case = run_case("0.700", RNG.normal(0.58, 0.02, 256), "A")
    fits = Protocol("B", 0.0, 0.0, tuple(RNG.normal(0.7, 0.02, 256).tolist()))
    few = Protocol("C", 0.0, 0.0, (0.58, 0.59))
    verdicts = [judge([replace(case, protocols=case.protocols + more)])[0].verdict for more in ((), (fits,), (few,))]
    assert verdicts == [Verdict.DIFFERS, Verdict.WITHIN_NOISE, Verdict.INCONCLUSIVE]


def test_the_joint_p_stands_beside_and_sees_what_single_numbers_hide() -> None:
    samples = RNG.multivariate_normal([0, 0], [[1, 0.97], [0.97, 1]], 256).T
    judgements = judge([run_case("1.00", samples[0], d="a"), run_case("-1.00", samples[1], d="b")])
    assert [j.verdict for j in judgements] == [Verdict.WITHIN_NOISE] * 2
    for judgement in judgements:
        assert float(judgement.note.split("joint p=")[1].split(")")[0]) < 1e-6


def test_a_run_without_protocol_is_not_judged() -> None:
    case = run_case("0.700", RNG.normal(0.58, 0.02, 256))
    assert judge([replace(case, protocols=())])[0].verdict == Verdict.NOT_JUDGED
    assert judge([replace(case, estimate=None)])[0].verdict == Verdict.NOT_RUN


# --- ordinal ---

GAINS = [0.021, 0.034, 0.015, 0.040, 0.028]


def test_a_trend_holds_fails_or_stays_open() -> None:
    line = published("ordinal", statistic="paired_difference")
    holds = one(line, None, of_seeds(GAINS))
    assert holds.verdict == Verdict.TREND_HOLDS
    assert "5 of 5 seeds above 0 [0.478" in holds.note
    assert one(line, None, of_seeds([-g for g in GAINS])).verdict == Verdict.TREND_FAILS
    assert one(line, None, of_seeds([0.03, -0.02, 0.01, -0.04, 0.02])).verdict == Verdict.INCONCLUSIVE
    assert one(line, None, of_seeds([0.0] * 8)).verdict == Verdict.INCONCLUSIVE
    assert one(line, None, of_seeds([0.1] * 8)).verdict == Verdict.TREND_HOLDS


def test_four_seeds_are_too_few_for_a_trend() -> None:
    line = published("ordinal", statistic="paired_difference")
    judgement = one(line, None, of_seeds([1.0, 1.01, 0.99, 1.0]))
    assert judgement.verdict == Verdict.INCONCLUSIVE
    assert judgement.note.startswith("n = 4, 5 are needed")
    assert one(line, None, of_seeds([1.0])).verdict == Verdict.INCONCLUSIVE


def test_the_share_of_seeds_never_judges() -> None:
    # Nine of ten seeds rise a little, one falls far: not flagged as stuck, and the mean is what is judged.
    seeds = [0.1, 0.4, 0.2, 0.5, 0.3, 0.6, 0.2, 0.4, 0.3, -0.8]
    judgement = one(published("ordinal", statistic="paired_difference"), None, of_seeds(seeds))
    assert judgement.verdict == Verdict.INCONCLUSIVE
    assert "9 of 10 seeds" in judgement.note


def test_bistable_seeds_need_ten_and_a_sign_test() -> None:
    line = published("ordinal", statistic="paired_difference")
    rising = [0.010, 0.012, 0.011, 0.009, 0.013, 0.010, 0.012, 0.011, 0.010]
    ten = one(line, None, of_seeds([*rising, 0.45]))
    assert ten.verdict == Verdict.TREND_HOLDS and "sign test" in ten.note
    nine = one(line, None, of_seeds([*rising[:8], 0.45]))
    assert nine.verdict == Verdict.INCONCLUSIVE and "10 are needed" in nine.note
    # The mean is far above 0 because of two seeds, the others fall: the sign test is not fooled.
    mixed = one(line, None, of_seeds([-v for v in rising] + [0.45, 0.5]))
    assert mixed.verdict == Verdict.INCONCLUSIVE
    falls = one(line, None, of_seeds([-v for v in rising * 2] + [0.45]))
    assert falls.verdict == Verdict.TREND_FAILS


def test_trends_are_corrected_over_the_table() -> None:
    lines = [published("ordinal", statistic="paired_difference", d=str(i)) for i in range(4)]
    strong = of_seeds([0.010, 0.050, 0.025, 0.040, 0.02])
    assert judge([Case(lines[0], None, strong)])[0].verdict == Verdict.TREND_HOLDS
    others = [Case(line, None, of_seeds([0.01 * i, -0.011, 0.02, -0.03, 0.012])) for i, line in enumerate(lines[1:])]
    assert judge([Case(lines[0], None, strong), *others])[0].verdict == Verdict.INCONCLUSIVE


def test_trends_of_draws_intervals_and_exact_counts() -> None:
    line = published("ordinal", statistic="paired_difference")
    assert one(line, None, Estimate(0.01, 10_000, sd=0.2)).verdict == Verdict.TREND_HOLDS
    assert one(line, None, Estimate(0.002, 10_000, sd=0.2)).verdict == Verdict.INCONCLUSIVE
    slope = published("ordinal", statistic="slope")
    assert one(slope, None, Estimate(-0.5, 12, low=-0.7, high=-0.3)).verdict == Verdict.TREND_FAILS
    assert one(slope, None, Estimate(-0.5, 12)).verdict == Verdict.INCONCLUSIVE
    exact = published("ordinal", statistic="exact")
    assert one(exact, None, Estimate(-3.0, 1)).verdict == Verdict.TREND_FAILS
    assert one(exact, None, Estimate(0.0, 1)).verdict == Verdict.INCONCLUSIVE
    assert one(line, None, Estimate(3.0, 1)).verdict == Verdict.INCONCLUSIVE


def test_seeds_must_be_those_of_the_estimate() -> None:
    turned = replace(of_seeds(GAINS), value=-0.0276)
    with pytest.raises(ValueError, match="seeds have mean"):
        one(published("ordinal", statistic="paired_difference"), None, turned)


# --- scaling and literature ---


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (370.0, 390.0, Verdict.REPRODUCED),
        (300.0, 320.0, Verdict.DIFFERS),
        (480.0, 500.0, Verdict.DIFFERS),
        (320.0, 380.0, Verdict.INCONCLUSIVE),
    ],
)
def test_scaling_compares_the_interval_with_the_margin(low: float, high: float, verdict: Verdict) -> None:
    line = published("scaling", "393.8", margin="0.15", statistic="value")
    assert one(line, 428.8, Estimate((low + high) / 2, 9, sd=1.0, low=low, high=high)).verdict == verdict


def test_scaling_with_seeds_exact_values_and_negative_slopes() -> None:
    line = published("scaling", "-0.50", margin="0.1", statistic="slope")
    assert one(line, None, Estimate(-0.48, 1)).verdict == Verdict.REPRODUCED
    assert one(line, None, Estimate(-0.40, 1)).verdict == Verdict.DIFFERS
    assert one(line, None, of_seeds([-0.49, -0.5, -0.51])).verdict == Verdict.REPRODUCED
    assert one(line, None, of_seeds([-0.5])).verdict == Verdict.INCONCLUSIVE
    assert one(line, None, None).verdict == Verdict.NOT_RUN


def test_milliseconds_are_not_judged() -> None:
    line = published("scaling", "0.88", statistic="value")
    assert one(line, None, Estimate(880.0, 9, sd=1.0)).verdict == Verdict.NOT_JUDGED


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [("confirmed", Verdict.CONFIRMED), ("contradicted", Verdict.CONTRADICTED), ("", Verdict.NOT_JUDGED)],
)
def test_literature_says_what_its_reference_says(margin: str, verdict: Verdict) -> None:
    judgement = one(published("literature", margin=margin), None, None)
    assert judgement.verdict == verdict and "because" in judgement.note


# --- what cannot be ---


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        one(published("exact", "1"), math.nan, Estimate(1.0, 1))
    for wrong in (
        {"value": math.nan, "n": 3},
        {"value": 1.0, "n": -1},
        {"value": 1.0, "n": 3, "sd": -1.0},
        {"value": 1.0, "n": 3, "sd": math.nan},
        {"value": 1.0, "n": 3, "seeds": (1.0, 1.0)},
        {"value": 1.0, "n": 2, "seeds": (1.0, 1.0)},
    ):
        with pytest.raises(ValueError):
            Estimate(**wrong)


def test_standard_error() -> None:
    assert Estimate(1.0, 100, sd=2.0).se == 0.2
    assert Estimate(1.0, 100).se == 0
    assert Estimate(math.nan, 0).se == 0


# --- Monte Carlo against theory ---


def points(z: np.ndarray) -> list[tuple[str, float, float, float]]:
    return [(f"d={i}", 2.0, 2.0 + 0.01 * float(v), 0.01) for i, v in enumerate(z)]


def test_monte_carlo_check_passes_chance_and_names_the_worst_point() -> None:
    z = np.random.default_rng(0).normal(size=30)
    check = check_monte_carlo(points(z), 30.0, 30)
    assert check.ok and check.count == 30
    assert check.worst_label == f"d={np.abs(z).argmax()}"
    assert check.worst_z == pytest.approx(z[np.abs(z).argmax()])
    assert (check.bound, check.sum_sq) == pytest.approx((stats.bonferroni_z(30), (z**2).sum()))


def test_one_planted_shift_fails_the_table() -> None:
    z = np.random.default_rng(0).normal(size=30)
    z[7] += 5 * np.sign(z[7])
    check = check_monte_carlo(points(z), 30.0, 30)
    assert not check.ok and check.worst_label == "d=7" and abs(check.worst_z) > check.bound


def test_a_small_shift_everywhere_fails_by_the_sum_of_squares_alone() -> None:
    check = check_monte_carlo(points(np.full(30, 1.6)), 30.0, 30)
    assert abs(check.worst_z) < check.bound and check.p <= 0.001 and not check.ok
    # The same 30 values are one value if all points are the same draws.
    assert check_monte_carlo(points(np.full(30, 1.6)), 900.0, 30).ok


def test_an_empty_or_partial_check_cannot_pass() -> None:
    for given in (0, 29):
        with pytest.raises(ValueError, match="the table has 30"):
            check_monte_carlo(points(np.zeros(given)), 30.0, 30)
    with pytest.raises(ValueError, match="labels"):
        check_monte_carlo([("a", 1.0, 1.0, 0.1)] * 2, 2.0, 2)
    with pytest.raises(ValueError, match="0 points to check"):
        check_monte_carlo([], 0.0, 0)


def test_a_point_without_error_must_be_exact() -> None:
    assert check_monte_carlo([("a", 1.0, 1.0 + 1e-12, 0.0)], 1.0, 1).ok
    assert not check_monte_carlo([("a", 1.0, 1.0 + 1e-6, 0.0)], 1.0, 1).ok
