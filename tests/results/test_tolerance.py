"""The tolerance of a printed line in words, against what the verdict does at its ends."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from attnrepro.results.protocols import Protocol
from attnrepro.results.published import PublishedLine
from attnrepro.results.tolerance import tolerance
from attnrepro.results.verdicts import Case, Estimate, Verdict, judge

LINE = PublishedLine("c", (), "q", "mean", 1.779, "1.779", None, None, "exact", "", "why")


def ends(words: str) -> tuple[float, float]:
    """The last pair of numbers in brackets."""
    low, high = re.findall(r"\[([-\d.e+inf]+), ([-\d.e+inf]+)\]", words)[-1]
    return float(low), float(high)


def verdict(case: Case) -> Verdict:
    return judge([case])[0].verdict


@pytest.mark.parametrize("line", [LINE, replace(LINE, published=None, printed="", low=1.5, high=2.0)])
def test_exact(line: PublishedLine) -> None:
    low, high = ends(tolerance(Case(line, 1.0, Estimate(1.0, 1))))
    for value, agrees in ((low, True), (high, True), (low - 1e-4, False), (high + 1e-4, False)):
        case = Case(line, value, Estimate(value, 1))
        assert (verdict(case) == Verdict.REPRODUCED) is agrees, value


def test_scaling() -> None:
    line = replace(LINE, published=37.6, printed="37.6", klass="scaling", margin="0.15")
    words = tolerance(Case(line, None, None))
    assert "15 % of it" in words
    low, high = ends(words)
    low, high = low + 1e-4, high - 1e-4
    for a, b, agrees in ((low, high, True), (low - 0.1, high, False), (low, high + 0.1, False)):
        case = Case(line, None, Estimate((a + b) / 2, 5, sd=1.0, low=a, high=b))
        assert (verdict(case) == Verdict.REPRODUCED) is agrees
    assert tolerance(Case(replace(line, margin=""), None, None)) == "none declared: shown for information"


@pytest.mark.parametrize("scale", [1.0, 3.4])
def test_structural(scale: float) -> None:
    line = replace(LINE, published=None, printed="", klass="structural", statistic="exact")
    words = tolerance(Case(line, None, None, scale=scale))
    held, refuted = (float(number) for number in re.findall(r"(?:error of|from) ([\d.e+-]+)", words))
    found = [
        verdict(Case(line, None, Estimate(error, 60), scale=scale))
        for error in (held * 0.95, held * 1.1, refuted * 1.1)
    ]
    assert found == [Verdict.REPRODUCED, Verdict.INCONCLUSIVE, Verdict.SOURCE_ERROR]
    assert "60 draws" in words


def test_a_source_that_states_its_draws() -> None:
    line = replace(LINE, klass="sampling", margin="100")
    estimate = Estimate(2.0, 100000, sd=0.83)
    low, high = ends(tolerance(Case(line, 2.0, estimate)))
    for value, agrees in ((low + 0.001, True), (low - 0.001, False), (high - 0.001, True), (high + 0.001, False)):
        printed = replace(line, published=round(value, 3), printed=f"{value:.3f}")
        assert (verdict(Case(printed, 2.0, estimate)) == Verdict.WITHIN_NOISE) is agrees, value


def test_protocols_trends_and_references_in_words() -> None:
    run = replace(LINE, klass="single_run")
    protocols = (Protocol("A", 1.7, 0.1), Protocol("B", 1.8, 0.1))
    assert "at least one of 2 declared protocols" in tolerance(Case(run, None, None, protocols))
    assert "the protocol A" in tolerance(Case(run, None, None, protocols[:1]))
    assert tolerance(Case(run, None, None)).startswith("none: the source states no protocol")
    assert "lies above 0" in tolerance(Case(replace(LINE, klass="ordinal"), None, None))
    assert "reference" in tolerance(Case(replace(LINE, klass="literature", margin="confirmed"), None, None))
