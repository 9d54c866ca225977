"""Chance and costs of few-shot classification; counts against torch stand in tests/nn/test_few_shot.py."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from attnrepro.theory import few_shot as closed


def test_a_guess_and_support_dealt_at_random_are_worth_the_same() -> None:
    """A classifier that reads its support dealt in every possible way: on average 1 / ways, whatever it does."""
    for ways in (1, 2, 3, 4):
        deals = list(itertools.permutations(range(ways)))
        # It always recognises the true class, and names the place where that was dealt to.
        right = sum(Fraction(sum(deal[c] == c for c in range(ways)), ways) for deal in deals) / len(deals)
        assert closed.chance(ways) == pytest.approx(float(right), abs=0)
    assert closed.chance(1) == 1


def test_the_cost_of_a_comparison_by_hand() -> None:
    # Two classes, three queries, maps of 1 x 1 and one channel: 9 weights by map, 9 by pair, 1 -> 2 -> 1 by pair.
    cost = closed.relation_comparison(1, (1, 1), 2, 2, 3)
    assert cost.flops == 2 * 9 * (2 + 3) + 2 * (9 + 2 + 2) * 6
    assert cost.parameters == 18 + 9 + 4 + (2 + 2) + (2 + 1)
    assert closed.prototypical_comparison(3, (2, 2), 5, 7).flops == 2 * 5 * 7 * 12


def test_sides_round_up_and_sizes_are_checked() -> None:
    assert closed.halved((5, 1)) == (3, 1)
    with pytest.raises(ValueError, match="ways=0 must be 1 or more"):
        closed.chance(0)
