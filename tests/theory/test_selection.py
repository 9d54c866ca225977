"""Closed forms of selection against finite differences and brute force."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from attnrepro.theory import selection


def softmax(scores: list[float], temperature: float) -> list[float]:
    terms = [math.e ** (score / temperature) for score in scores]
    return [term / sum(terms) for term in terms]


def slopes(function: Callable[[list[float]], float], scores: list[float]) -> list[float]:
    """Central differences, of fourth order."""
    h, result = 1e-3, []
    for k in range(len(scores)):

        def at(by: float, k: int = k) -> float:
            return function([s + by * (j == k) for j, s in enumerate(scores)])

        result.append((8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h))
    return result


def lists() -> list[tuple[list[float], list[float], float]]:
    draw = random.Random(5)
    made = []
    for n in (2, 3, 7, 20):
        made.append(
            ([draw.gauss(0, 1) for _ in range(n)], [draw.gauss(0, 2) for _ in range(n)], draw.choice((0.5, 1, 3)))
        )
    return made


@pytest.mark.parametrize(("scores", "values", "temperature"), lists())
def test_gradients_are_finite_differences(scores: list[float], values: list[float], temperature: float) -> None:
    def mixture(s: list[float]) -> float:
        return sum(a * v for a, v in zip(softmax(s, temperature), values, strict=True))

    def of_mixture(s: list[float]) -> float:
        return (mixture(s) - 0.7) ** 2 / 2

    def expected(s: list[float]) -> float:
        return sum(a * (v - 0.7) ** 2 / 2 for a, v in zip(softmax(s, temperature), values, strict=True))

    assert selection.weights(scores, temperature) == pytest.approx(softmax(scores, temperature))
    assert selection.mixture(scores, values, temperature) == pytest.approx(mixture(scores))
    for found, function in (
        (selection.soft_gradient(scores, values, temperature), mixture),
        (selection.soft_loss_gradient(scores, values, 0.7, temperature), of_mixture),
        (selection.expected_loss_gradient(scores, values, 0.7, temperature), expected),
    ):
        assert found == pytest.approx(slopes(function, scores), abs=1e-9, rel=1e-7)
    top = values[scores.index(max(scores))]
    through = [(top - 0.7) * slope for slope in slopes(mixture, scores)]
    assert selection.straight_through_gradient(scores, values, 0.7, temperature) == pytest.approx(through, abs=1e-8)


def test_scores_far_apart_do_not_overflow() -> None:
    assert selection.weights([1000.0, 0.0], 0.5) == [1.0, 0.0]
    assert selection.soft_gradient([-1e4, 0.0], [1.0, 2.0]) == [0.0, 0.0]


@pytest.mark.parametrize("n_keys", [2, 3, 64, 1000])
def test_the_lead_for_half_of_the_weight(n_keys: int) -> None:
    gap = selection.gap_for_half(n_keys)
    assert softmax([gap] + [0.0] * (n_keys - 1), 1)[0] == pytest.approx(0.5)
    for lead in (0.0, 1.5, 20.0):
        assert selection.leader_weight(n_keys, lead) == pytest.approx(softmax([lead] + [0.0] * (n_keys - 1), 1)[0])


def test_the_first_of_equal_scores_is_chosen() -> None:
    assert [selection.chosen(s) for s in ([1.0, 3.0, 2.0], [2.0, 2.0], [-1.0])] == [1, 0, 0]


def test_bad_input_is_refused() -> None:
    for call in (lambda: selection.weights([], 1.0), lambda: selection.weights([1.0], 0.0)):
        with pytest.raises(ValueError, match="temperature"):
            call()
    with pytest.raises(ValueError, match="n_keys=1 must be 2 or more"):
        selection.gap_for_half(1)
    with pytest.raises(ValueError):
        selection.mixture([1.0, 2.0], [1.0])
