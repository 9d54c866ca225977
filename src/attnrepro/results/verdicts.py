"""The verdict on every published line of a table, from theory, measurement and the class declared for it.

`judge` takes a whole table, because Holm's correction and the joint tests are over the table. The rules are
told with worked numbers in ``docs/statistics.md``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from attnrepro import stats
from attnrepro.results.protocols import ALPHA, LEAST_SEEDS, ProtocolTest, run_protocol_tests
from attnrepro.results.protocols import Protocol as Protocol
from attnrepro.results.published import PublishedLine

AGREE_SE = 4.0
AGREE_RELATIVE = 1e-10
LOCK_LEVEL = 0.999
HOLDS_EPS = 32.0
REFUTED_EPS = 1e6
STRUCTURAL_DRAWS = 60
LEAST_BISTABLE_SEEDS = 10
FITTED = "fitted: consistency, not evidence"


class Verdict(StrEnum):
    """The words a table may print; FAILED means that our own measurement and theory disagree."""

    REPRODUCED = "REPRODUCED"
    SOURCE_ERROR = "SOURCE_ERROR"
    WITHIN_NOISE = "WITHIN_NOISE"
    DIFFERS = "DIFFERS"
    TREND_HOLDS = "TREND_HOLDS"
    TREND_FAILS = "TREND_FAILS"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_JUDGED = "NOT_JUDGED"
    CONFIRMED = "CONFIRMED"
    CONTRADICTED = "CONTRADICTED"
    NOT_RUN = "NOT_RUN"
    FAILED = "FAILED"


@dataclass(frozen=True)
class Estimate:
    """Our measured value.

    ``n`` counts what ``sd`` is the spread of: seeds, draws or clusters; 0 if every run failed. ``low`` and
    ``high`` are the ends of the 95 % interval, nan where there is none; with them and without sd (a median,
    a slope) the interval stands for the spread. With neither, the value is an exact computation, unless
    ``seeds`` holds one value: a single run. ``seeds`` are the values of the surviving seeds, whose mean
    ``value`` is; it stays empty for draws and for exact computations.
    """

    value: float
    n: int
    n_failed: int = 0
    sd: float | None = None
    low: float = math.nan
    high: float = math.nan
    seeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.n < 0 or self.n_failed < 0 or (self.sd is not None and not self.sd >= 0):
            raise ValueError("n, n_failed and sd are not negative")
        if self.n and not math.isfinite(self.value):
            raise ValueError(f"a value that stands for {self.n} run(s) is finite, unlike {self.value}")
        if self.seeds and (len(self.seeds) != self.n or (self.n > 1 and self.sd is None)):
            raise ValueError(f"{len(self.seeds)} seeds need n = {len(self.seeds)} and, if several, their sd")

    @property
    def se(self) -> float:
        """Standard error sd / sqrt(n); 0 without sd."""
        return self.sd / math.sqrt(self.n) if self.sd and self.n else 0.0

    @property
    def is_exact(self) -> bool:
        """Whether the value has no sampling error: nothing was drawn, or every draw gave the same."""
        return not self.sd and len(self.seeds) != 1 and not self.high > self.low


@dataclass(frozen=True)
class Case:
    """A published line with our numbers; ``scale`` is the magnitude that round-off is relative to.

    ``not_run`` says why there is no estimate.
    """

    line: PublishedLine
    theory: float | None
    estimate: Estimate | None
    protocols: tuple[Protocol, ...] = ()
    scale: float = 1.0
    eps: float = 2.0**-52
    not_run: str = ""


@dataclass(frozen=True)
class Judgement:
    """A verdict, the p-value behind it where there is one (after Holm), and a note for the reader."""

    verdict: Verdict
    p: float | None
    note: str


@dataclass(frozen=True)
class MonteCarloCheck:
    """Monte Carlo against theory over a whole table; ``ok`` only if both tests pass."""

    ok: bool
    count: int
    worst_label: str
    worst_z: float
    bound: float
    sum_sq: float
    p: float


def judge(cases: Sequence[Case]) -> list[Judgement]:
    """Verdicts of all lines of a table, in order; give the whole table at once, Holm counts its lines.

    Raises:
        ValueError: a theory that is not finite, a negative structural error, or seeds that are not those of
            the estimate.
    """
    for case in cases:
        if case.theory is not None and not math.isfinite(case.theory):
            raise ValueError(f"{case.line.claim}: the theory is not finite")
    tests = _protocol_tests(cases)
    trends = _trend_p(cases)
    judgements = []
    for index, case in enumerate(cases):
        judgement = _judge_one(case, tests.get(index, []), trends.get(index))
        failed = case.estimate.n_failed if case.estimate else 0
        if failed and case.estimate and case.estimate.n:
            mark = f"mean over survivors: {failed} of {failed + case.estimate.n} runs failed"
            judgement = Judgement(judgement.verdict, judgement.p, f"{mark}; {judgement.note}")
        judgements.append(judgement)
    return judgements


def _judge_one(case: Case, tests: Sequence[ProtocolTest], trend_p: float | None) -> Judgement:
    klass = case.line.klass
    if klass == "literature":
        return _literature(case.line)
    estimate = case.estimate
    if estimate is None or estimate.n == 0:
        failed = f"all {estimate.n_failed} runs failed" if estimate else "no measurement"
        return Judgement(Verdict.NOT_RUN, None, case.not_run or failed)
    if klass in ("exact", "sampling") and (bug := _disagreement(case, estimate)):
        return Judgement(Verdict.FAILED, None, bug)
    if klass == "exact":
        return _exact(case, estimate)
    if klass == "structural":
        return _structural(case, estimate)
    if klass == "ordinal":
        return _ordinal(case.line, estimate, trend_p)
    if klass == "scaling":
        return _scaling(case, estimate)
    return _by_protocol(case, estimate, tests)


# --- our measurement against our theory ---


def _all_or_none(line: PublishedLine, estimate: Estimate) -> bool:
    """A share of 0 or 1 over draws: their spread is 0, but the share is not exact."""
    return line.statistic == "share" and estimate.n > 1 and not estimate.sd and estimate.value in (0, 1)


def _standard_error(estimate: Estimate) -> float:
    """sd / sqrt(n), else what the 95 % interval implies, else nan (a single run) or 0 (exact)."""
    if estimate.sd:
        return estimate.se
    if estimate.high > estimate.low:
        return (estimate.high - estimate.low) / 2 / stats.bonferroni_z(1, ALPHA)
    return 0.0 if estimate.is_exact else math.nan


def _interval(line: PublishedLine, estimate: Estimate, level: float) -> tuple[float, float]:
    """Interval of the measured value at ``level``; an exact computation has its rounding only."""
    value, se = estimate.value, _standard_error(estimate)
    if _all_or_none(line, estimate):
        share = stats.share_interval(round(value * estimate.n), estimate.n, level)
        return share.low, share.high
    if estimate.sd:
        return stats.monte_carlo_interval(value, estimate.sd, estimate.n, level)[1:]
    half = AGREE_RELATIVE * abs(value) if se == 0 else stats.bonferroni_z(1, 1 - level) * se
    return value - half, value + half


def _disagreement(case: Case, estimate: Estimate) -> str:
    """What to say if measurement and theory disagree; empty if they agree or cannot be compared."""
    theory, se = case.theory, _standard_error(estimate)
    if theory is None or math.isnan(se):
        return ""
    gap = abs(estimate.value - theory)
    close = gap <= AGREE_RELATIVE * max(abs(theory), abs(estimate.value))
    # Nothing is relatively close to 0, so a theory of exactly 0 is met by round-off.
    zero = theory == 0 and gap <= HOLDS_EPS * case.eps * case.scale
    if close or zero or gap <= AGREE_SE * se:
        return ""
    if _all_or_none(case.line, estimate):
        low, high = _interval(case.line, estimate, 1 - stats.z_p(AGREE_SE))
        if low <= theory <= high:
            return ""
    distance = f"{gap / se:.3g} standard errors" if se else f"{gap:.3g}"
    return f"measured {estimate.value:.6g} and theory {theory:.6g} are {distance} apart: our own bug"


# --- one class each ---


def _exact(case: Case, estimate: Estimate) -> Judgement:
    line, theory = case.line, case.theory
    if theory is None:
        return Judgement(Verdict.NOT_JUDGED, None, "no theory to hold the printed number against")
    if math.isnan(_standard_error(estimate)):
        return Judgement(Verdict.INCONCLUSIVE, None, "a single run has no spread to hold the theory against")
    if line.contains(theory):
        return Judgement(Verdict.REPRODUCED, None, f"theory {theory:.6g}")
    first_lock = f"theory {theory:.6g} is outside the printed {_printed(line)}"
    low, high = _interval(line, estimate, LOCK_LEVEL)
    a, b = line.bounds
    # An exact computation was held against the theory already, with the tolerance of `_disagreement`.
    exact = estimate.is_exact and not _all_or_none(line, estimate)
    if (exact or low <= theory <= high) and (high < a or low > b):
        return Judgement(Verdict.SOURCE_ERROR, None, f"{first_lock}; so is our {_ends(low, high)}")
    return Judgement(Verdict.DIFFERS, None, f"{first_lock}; our {_ends(low, high)} does not confirm it")


def _structural(case: Case, estimate: Estimate) -> Judgement:
    unit = case.eps * case.scale
    if estimate.value < 0 or unit <= 0:
        raise ValueError(f"{case.line.claim}: a structural error is not negative and its scale is positive")
    ratio = estimate.value / unit
    error = f"largest error {ratio:.3g} eps·scale over {estimate.n} draws"
    if ratio >= REFUTED_EPS:
        return Judgement(Verdict.SOURCE_ERROR, None, f"{error}: refuted by counter-example")
    if ratio > HOLDS_EPS:
        return Judgement(Verdict.INCONCLUSIVE, None, f"{error}: neither round-off nor a counter-example")
    if estimate.n < STRUCTURAL_DRAWS:
        return Judgement(Verdict.INCONCLUSIVE, None, f"{error}: {STRUCTURAL_DRAWS} draws are needed")
    if case.line.has_number and case.line.bounds[0] > HOLDS_EPS * unit:
        return Judgement(Verdict.DIFFERS, None, f"{error}; the printed {_printed(case.line)} is no round-off")
    return Judgement(Verdict.REPRODUCED, None, error)


def _ordinal(line: PublishedLine, estimate: Estimate, p: float | None) -> Judgement:
    seeds = estimate.seeds
    share = ""
    if seeds:
        positive = sum(value > 0 for value in seeds)
        interval = stats.share_interval(positive, len(seeds))
        share = f"; {positive} of {len(seeds)} seeds above 0 {_ends(interval.low, interval.high)}"
    bistable = bool(seeds) and stats.is_bistable(seeds)
    if p is None:
        least = LEAST_BISTABLE_SEEDS if bistable else LEAST_SEEDS
        lack = f"n = {estimate.n}, {least} are needed" if estimate.n < least else "no spread"
        return Judgement(Verdict.INCONCLUSIVE, None, f"{lack}{share}")
    test = "sign test, bistable seeds" if bistable else "no spread" if estimate.is_exact else "t"
    note = f"difference {estimate.value:.4g}, p={p:.3g} ({test}){share}"
    signs = sum(value > 0 for value in seeds) - sum(value < 0 for value in seeds)
    direction = signs if bistable else estimate.value
    if not _rejects(p) or direction == 0:
        return Judgement(Verdict.INCONCLUSIVE, p, note)
    return Judgement(Verdict.TREND_HOLDS if direction > 0 else Verdict.TREND_FAILS, p, note)


def _scaling(case: Case, estimate: Estimate) -> Judgement:
    line = case.line
    if not line.margin:
        return Judgement(Verdict.NOT_JUDGED, None, "no margin was declared: shown beside ours")
    margin = float(line.margin)
    given = not math.isnan(estimate.low) and not math.isnan(estimate.high)
    low, high = (estimate.low, estimate.high) if given else _interval(line, estimate, 1 - ALPHA)
    note = f"measured {estimate.value:.4g} {_ends(low, high)}, printed {_printed(line)} within {margin:.0%}"
    if case.theory is not None:
        note += f", theory {case.theory:.4g}"
    if math.isnan(low):
        return Judgement(Verdict.INCONCLUSIVE, None, f"{note}: no interval from one run")
    a, b = line.widened
    if a <= low and high <= b:
        return Judgement(Verdict.REPRODUCED, None, note)
    if high < a or low > b:
        return Judgement(Verdict.DIFFERS, None, note)
    return Judgement(Verdict.INCONCLUSIVE, None, f"{note}: the interval straddles the margin")


def _literature(line: PublishedLine) -> Judgement:
    words = {"confirmed": Verdict.CONFIRMED, "contradicted": Verdict.CONTRADICTED}
    if line.margin not in words:
        return Judgement(Verdict.NOT_JUDGED, None, f"no checked reference: {line.reason}")
    return Judgement(words[line.margin], None, line.reason)


# --- printed numbers as draws of a protocol ---


def _protocol_tests(cases: Sequence[Case]) -> dict[int, list[ProtocolTest]]:
    """Tests of every line of the classes sampling and single_run that has an estimate, by its index."""
    tests: dict[int, list[ProtocolTest]] = {}
    for index, case in enumerate(cases):
        line, estimate = case.line, case.estimate
        if line.klass not in ("sampling", "single_run") or estimate is None or estimate.n == 0:
            continue
        declared = [ProtocolTest(line, protocol, protocol.name) for protocol in case.protocols]
        if not declared and (implied := _from_source_n(case, estimate)):
            # Every n that a source states belongs to one design, so that Holm counts the whole table.
            declared = [ProtocolTest(line, implied, "the source's n")]
        tests[index] = declared
    run_protocol_tests([test for group in tests.values() for test in group])
    return tests


def _from_source_n(case: Case, estimate: Estimate) -> Protocol | None:
    """The protocol of a source that states its n: as many draws as it made, spread as ours are."""
    if case.line.klass != "sampling" or not case.line.margin or not estimate.sd:
        return None
    n = int(case.line.margin)
    se = estimate.sd / math.sqrt(n)
    if case.theory is None:
        return Protocol(f"n={n}", estimate.value, math.hypot(se, estimate.se))
    return Protocol(f"n={n}", case.theory, se)


def _by_protocol(case: Case, estimate: Estimate, tests: Sequence[ProtocolTest]) -> Judgement:
    line = case.line
    if not tests:
        stated = line.klass == "sampling" and line.margin
        lack = "our value has no spread" if stated else "no protocol was declared"
        return Judgement(Verdict.NOT_JUDGED, None, f"not tested: {lack}")
    note = "; ".join(test.note for test in tests)
    decided = [test.adjusted for test in tests if not math.isnan(test.adjusted)]
    p = max(decided, default=None)
    if p is not None and not _rejects(p):
        return Judgement(Verdict.WITHIN_NOISE, p, note if line.margin else f"{note}; {FITTED}")
    if len(decided) < len(tests):
        return Judgement(Verdict.INCONCLUSIVE, p, note)
    if case.protocols or not estimate.sd:
        return Judgement(Verdict.DIFFERS, p, f"{note}; right only under a protocol not declared here")
    expected = tests[0].protocol.expected
    distance = abs(line.nearest(expected) - expected)
    most = math.floor((stats.bonferroni_z(1, ALPHA) * estimate.sd / distance) ** 2)
    return Judgement(Verdict.DIFFERS, p, f"{note}; alone it would be within noise up to n={most}")


# --- trends ---


def _trend_p(cases: Sequence[Case]) -> dict[int, float]:
    """p of every ordinal line that can be tested, after Holm over them."""
    raw: dict[int, float] = {}
    for index, case in enumerate(cases):
        if case.line.klass == "ordinal" and case.estimate is not None and case.estimate.n:
            p = _raw_trend_p(case.line, case.estimate)
            if p is not None:
                raw[index] = p
    # Two claims on the same difference are one test.
    families = [(c.line.axes, c.line.quantity, c.line.statistic, c.estimate) for c in (cases[i] for i in raw)]
    return dict(zip(raw, stats.holm_families(list(raw.values()), families), strict=True))


def _raw_trend_p(line: PublishedLine, estimate: Estimate) -> float | None:
    if line.statistic == "exact" and estimate.is_exact:
        return 1.0 if estimate.value == 0 else 0.0
    seeds = estimate.seeds
    if seeds:
        mean = float(np.mean(seeds))
        if not math.isclose(mean, estimate.value, rel_tol=1e-9, abs_tol=1e-12):
            raise ValueError(f"{line.claim}: the seeds have mean {mean}, not the estimate {estimate.value}")
        if stats.is_bistable(seeds):
            return stats.sign_test_p(seeds) if estimate.n >= LEAST_BISTABLE_SEEDS else None
    se = _standard_error(estimate)
    if estimate.n < LEAST_SEEDS or (estimate.sd is None and not se > 0):
        return None
    if se == 0:
        return 1.0 if estimate.value == 0 else 0.0
    return stats.t_p(estimate.value / se, estimate.n - 1)


def _rejects(p: float) -> bool:
    """p <= 5 %, where six times 2/240 counts as 5 % although its rounding may lie above."""
    return p <= ALPHA * (1 + 1e-12)


def _ends(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"[{low:.6g}, {high:.6g}]"


def _printed(line: PublishedLine) -> str:
    return _ends(*line.bounds) if line.has_range else line.printed


# --- Monte Carlo against theory over a table ---


def check_monte_carlo(
    points: Sequence[tuple[str, float, float, float]], frobenius_sq: float, count: int
) -> MonteCarloCheck:
    """Hold a table's Monte Carlo values against their theory: the largest |z| and the sum of squares.

    Args:
        points: (label, theory, value, standard error) of every point.
        frobenius_sq: sum of the squared correlations between all pairs of points, each with itself included
            (``count`` if they are independent).
        count: how many points the table has; fewer are an error, so that an empty check cannot pass.

    The largest |z| may not exceed Bonferroni's bound at 0.1 %; the sum of squares must have p > 0.001.

    Raises:
        ValueError: a number of points other than ``count``, or numbers that are not finite.
    """
    if len(points) != count or count < 1:
        raise ValueError(f"{len(points)} points to check, the table has {count}")
    scores = {}
    for label, theory, value, se in points:
        same = abs(value - theory) <= AGREE_RELATIVE * max(abs(value), abs(theory))
        scores[label] = stats.z_score(0.0 if same else value - theory, se)
    if len(scores) != count:
        raise ValueError("the points need different labels")
    worst = max(scores, key=lambda label: abs(scores[label]))
    sum_sq = sum(z**2 for z in scores.values())
    bound = stats.bonferroni_z(count)
    p = stats.satterthwaite_sum_of_squares_p(sum_sq, count, frobenius_sq)
    ok = abs(scores[worst]) <= bound and p > 0.001
    return MonteCarloCheck(ok, count, worst, scores[worst], bound, sum_sq, p)
