"""The search for scores and temperatures, on rows whose temperature is known and on rows that have none."""

import math

import numpy as np
import pytest

from attnrepro.theory import printed_weights

SCORES = [0.4, 0.3, 4.2, 0.2, 1.1, 0.6]


def at(temperature: float) -> list[float]:
    parts = [math.exp(score / temperature) for score in SCORES]
    return [part / sum(parts) for part in parts]


def exactly(value: float) -> object:
    return lambda _: value


@pytest.mark.parametrize("temperature", [0.2, 0.6, 1.0, 1.533, 7.0])
def test_the_temperature_of_a_softmax_is_found(temperature: float) -> None:
    found, miss, weights = printed_weights.best_temperature(SCORES, [exactly(w) for w in at(temperature)])  # type: ignore[misc]
    assert found == pytest.approx(temperature, abs=2e-6) and miss < 1e-5
    assert weights == pytest.approx(at(temperature), abs=1e-5)
    assert printed_weights.temperature_for(SCORES, at(temperature)[2]) == pytest.approx(temperature, rel=1e-9)


def test_no_temperature_comes_nearer_than_the_best() -> None:
    printed = [0.1, 0.05, 0.5, 0.2, 0.05, 0.1]  # the fourth is out of order
    found, miss, weights = printed_weights.best_temperature(SCORES, [exactly(w) for w in printed])  # type: ignore[misc]
    scan = [max(abs(a - b) for a, b in zip(at(t), printed, strict=True)) for t in np.geomspace(0.05, 50, 20001)]
    assert miss == pytest.approx(min(scan), abs=1e-4) and miss <= min(scan) + 1e-9
    assert miss == pytest.approx(max(abs(a - b) for a, b in zip(weights, printed, strict=True)))
    assert weights == pytest.approx(at(found), abs=1e-12)


def test_a_range_is_missed_by_its_nearest_end() -> None:
    inside = [lambda w: min(max(w, 0.0), 1.0)] * len(SCORES)
    assert printed_weights.best_temperature(SCORES, inside)[1] == 0
    above = [lambda w: max(w, 0.9), *inside[1:]]  # the lowest scores never get so much
    assert printed_weights.best_temperature(SCORES, above)[1] > 0.7


@pytest.mark.parametrize("weight", [0.03, 0.55, 0.97])
def test_the_score_of_a_weight(weight: float) -> None:
    score = printed_weights.score_for(SCORES, 2, weight)
    parts = [math.exp(s) for s in [*SCORES[:2], score, *SCORES[3:]]]
    assert parts[2] / sum(parts) == pytest.approx(weight, rel=1e-12)


def test_what_no_temperature_or_score_gives_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight=0\.1 is given by nothing"):
        printed_weights.temperature_for(SCORES, 0.1)  # below an equal share
    with pytest.raises(ValueError, match=r"weight=1\.5"):
        printed_weights.score_for(SCORES, 0, 1.5)


def test_large_scores_do_not_overflow() -> None:
    assert printed_weights.softmax([2000.0, 1999.0]) == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)])
