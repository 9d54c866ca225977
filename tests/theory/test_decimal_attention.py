"""Decimal arithmetic against floats, series and simulation."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnrepro.theory import decimal_attention as paper

SCORES = st.lists(st.decimals(-8, 8, places=2), min_size=2, max_size=8)


def exp_series(x: Fraction) -> Fraction:
    """exp by its power series, far more terms than 30 digits need."""
    term, total = Fraction(1), Fraction(0)
    for k in range(1, 80):
        total += term
        term = term * x / k
    return total


def test_two_logits_to_thirty_digits() -> None:
    first, second = paper.softmax(paper.numbers("0.9 0.3"))
    a, b = exp_series(Fraction(9, 10)), exp_series(Fraction(3, 10))
    assert abs(Fraction(first) - a / (a + b)) < Fraction(1, 10**30)
    assert abs(Fraction(second) - b / (a + b)) < Fraction(1, 10**30)


@given(SCORES, st.data())
def test_softmax_is_a_loop_over_what_is_not_masked(scores: list[Decimal], data: st.DataObject) -> None:
    hidden = data.draw(st.sets(st.integers(0, len(scores) - 1), max_size=len(scores) - 1))
    found = paper.softmax([None if i in hidden else s for i, s in enumerate(scores)])
    total = 0.0
    for i, score in enumerate(scores):
        total += 0.0 if i in hidden else math.exp(float(score))
    for i, score in enumerate(scores):
        assert float(found[i]) == pytest.approx(0.0 if i in hidden else math.exp(float(score)) / total, rel=1e-12)
        assert (found[i] == 0) == (i in hidden)
    assert abs(sum(found) - 1) < Decimal("1e-25")


def test_a_query_that_sees_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one key"):
        paper.softmax([None, None])


def test_scores_of_vectors() -> None:
    assert paper.dot(paper.numbers("0.1 0.2 -3"), paper.numbers("10 5 0.1")) == Decimal("1.7")
    assert paper.scaled(Decimal(2), 2) ** 2 == pytest.approx(Decimal(2), abs=Decimal("1e-40"))
    assert paper.scaled(Decimal("0.9"), 64) == Decimal("0.1125")
    assert paper.mix([Decimal("0.25"), Decimal("0.75")], [[Decimal(4), Decimal(0)], [Decimal(8), Decimal(2)]]) == [
        7,
        1.5,
    ]
    assert paper.largest_distance([[Decimal(1), Decimal(2)]], [[Decimal(3), Decimal(-1)]]) == 3


@given(SCORES, st.integers(0, 1), st.decimals("0.01", "0.99", places=2))
def test_the_needed_logit_gives_the_weight(scores: list[Decimal], index: int, weight: Decimal) -> None:
    needed = float(paper.needed_logit(scores, index, weight))
    parts = [math.exp(float(s)) for s in scores]
    parts[index] = math.exp(needed)
    assert parts[index] / sum(parts) == pytest.approx(float(weight), rel=1e-9)


@given(st.decimals("0.1", "5", places=1), st.decimals("0.51", "0.99", places=2))
def test_the_needed_temperature_gives_the_weight(gap: Decimal, weight: Decimal) -> None:
    temperature = float(paper.needed_temperature(gap, weight))
    assert 1 / (1 + math.exp(-float(gap) / temperature)) == pytest.approx(float(weight), rel=1e-9)


@pytest.mark.parametrize("row", ["", "  ", "a", "1,2", "1 nan", "inf", "0x1"])
def test_what_is_no_row_of_decimals_is_refused(row: str) -> None:
    with pytest.raises(ValueError, match="must be decimal numbers"):
        paper.numbers(row)


def test_weights_and_gaps_that_nothing_gives_are_refused() -> None:
    two = paper.numbers("1 0")
    for weight in ("0", "1", "1.2"):
        with pytest.raises(ValueError, match="strictly between 0 and 1"):
            paper.needed_logit(two, 0, Decimal(weight))
    with pytest.raises(ValueError, match="another key"):
        paper.needed_logit(two[:1], 0, Decimal("0.5"))
    for gap, weight in itertools.product(("0", "-1"), ("0.7",)):
        with pytest.raises(ValueError, match="must be positive"):
            paper.needed_temperature(Decimal(gap), Decimal(weight))
    with pytest.raises(ValueError, match="between a half and 1"):
        paper.needed_temperature(Decimal(1), Decimal("0.5"))


@pytest.mark.parametrize(("head_dim", "n"), [(1, 400), (16, 1000)])
def test_the_standard_error_is_the_spread_of_repeated_variances(head_dim: int, n: int) -> None:
    rng = np.random.default_rng(head_dim)
    variances = []
    for _ in range(400):
        query, key = rng.standard_normal((2, n, head_dim))
        variances.append(np.var((query * key).sum(axis=1), ddof=1))
    # 400 values know their spread to 3.5 % where they are normal; at d = 1 they have heavier tails.
    assert np.std(variances) == pytest.approx(paper.variance_standard_error(head_dim, n), rel=0.15)
