"""The ceiling of additive local read-outs: by enumeration, by optimisation, and where it is no ceiling."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog, minimize

from attnrepro.theory.same_different import accuracy_bound, cue_accuracy, least_cross_entropy


def points(cue: float, types: int) -> list[tuple[int, int, int, int, float]]:
    """(first type, second type, cue, label, probability) of the whole task, places and noise left out."""
    found = []
    for a, b, z, y in product(range(types), range(types), (-1, 1), (-1, 1)):
        pair = 1 / types if y == 1 and a == b else 1 / (types * (types - 1)) if y == -1 and a != b else 0.0
        if pair:
            found.append((a, b, z, y, 0.5 * pair * (cue if z == y else 1 - cue)))
    return found


@pytest.mark.parametrize("cue", [0.5, 0.7, 0.85, 0.99, 0.1])
@pytest.mark.parametrize("types", [2, 3, 6])
def test_the_best_sum_for_cross_entropy_is_the_cue(cue: float, types: int) -> None:
    """All sums u(first, cue) + v(second, cue), more than windows can be, minimised numerically from a random start."""
    task = points(cue, types)
    assert sum(p for *_, p in task) == pytest.approx(1)
    design = np.zeros((len(task), 4 * types))
    for row, (a, b, z, _, _) in enumerate(task):
        design[row, 2 * a + (z > 0)] = design[row, 2 * types + 2 * b + (z > 0)] = 1
    labels, weights = (np.array([t[i] for t in task]) for i in (3, 4))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        margin = labels * (design @ parameters)
        slope = -labels * weights / (1 + np.exp(margin))
        return float(weights @ np.logaddexp(0, -margin)), design.T @ slope

    start = np.random.default_rng(0).normal(size=4 * types)
    best = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    assert best.fun == pytest.approx(least_cross_entropy(cue), abs=1e-9)
    scores = design @ best.x
    expected = np.array([z * math.log(cue / (1 - cue)) for _, _, z, _, _ in task])
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    if cue != 0.5:
        accuracy = float(weights @ ((scores > 0) == (labels > 0)))
        assert accuracy == pytest.approx(cue_accuracy(cue))


def separable(chosen: tuple[bool, ...], types: int) -> bool:
    """Whether a set of pairs is {(a, b): u_a + v_b > 0} for some u and v: a linear programme."""
    rows = np.zeros((types**2, 2 * types))
    for index, (a, b) in enumerate(product(range(types), repeat=2)):
        rows[index, a] = rows[index, types + b] = -1 if chosen[index] else 1
    found = linprog(np.zeros(2 * types), A_ub=rows, b_ub=-np.ones(types**2), bounds=(None, None))
    return bool(found.status == 0)


@pytest.mark.parametrize("types", [2, 3])
@pytest.mark.parametrize("cue", [0.5, 0.6, 0.85, 0.97, 0.2])
def test_no_sum_is_right_more_often_than_the_bound_and_one_is_as_often(cue: float, types: int) -> None:
    """Every set of pairs (16, 512) that a sum can choose, for either cue; the best of all is the bound."""
    sets = [s for s in product((False, True), repeat=types**2) if separable(s, types)]
    best = 0.0
    for z in (-1, 1):
        right = []
        for chosen in sets:
            says = dict(zip(product(range(types), repeat=2), chosen, strict=True))
            right.append(sum(p for a, b, c, y, p in points(cue, types) if c == z and says[a, b] == (y == 1)))
        best += max(right)
    assert accuracy_bound(cue, types) == pytest.approx(best)


@pytest.mark.parametrize("types", [2, 3, 6, 50])
def test_the_bound_without_a_cue_is_three_quarters_and_with_a_sure_one_it_is_1(types: int) -> None:
    assert accuracy_bound(0.5, types) == pytest.approx(0.75)
    assert accuracy_bound(1.0, types) == accuracy_bound(0.0, types) == 1.0


def test_the_bound_lies_above_the_cue() -> None:
    """The cue alone bounds what training aims at, not every read-out."""
    for cue, types in product((0.5, 0.7, 0.85, 0.95), (2, 6, 20)):
        assert cue_accuracy(cue) < accuracy_bound(cue, types) < 1
    assert least_cross_entropy(0.5) == pytest.approx(math.log(2))
    assert least_cross_entropy(1.0) == 0
    assert cue_accuracy(0.3) == 0.7
