"""Scores of equal weights, against a model of nothing but counting."""

from __future__ import annotations

from fractions import Fraction

import pytest

from attnrepro.theory.repeated_tokens import targets, uniform_score


def test_targets_are_where_the_token_stands() -> None:
    row = [4, 2, 7, 4, 2, 7, 4]  # period 3
    assert targets("previous", 7, 3) == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    for query, key in targets("same", 7, 3):
        assert row[query] == row[key] and query - key == 3
    for query, key in targets("induction", 6, 3):
        assert row[key] == row[query + 1] and row[key - 1] == row[query]
    assert [q for q, _ in targets("induction", 7, 3)] == [3, 4, 5, 6]


def test_equal_weights() -> None:
    assert uniform_score("previous", 3, [2]) == pytest.approx(float((Fraction(1, 2) + Fraction(1, 3)) / 2))
    two = (Fraction(1, 3) + Fraction(1, 4)) / 2
    three = Fraction(1, 4)
    assert uniform_score("induction", 4, [2, 3]) == pytest.approx(float((two + three) / 2))
    assert uniform_score("same", 4, [2, 3]) == uniform_score("induction", 4, [2, 3])


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="role=next"):
        targets("next", 5, 2)
    with pytest.raises(ValueError, match="period=5"):
        targets("same", 5, 5)
