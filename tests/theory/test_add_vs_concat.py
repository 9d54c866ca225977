"""What no code absorbs, parameters of a head and the best guess from a bag, against brute force."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from attnrepro.theory import add_vs_concat as closed

SIZES = {"vocabulary": 32, "symbols": 16, "places": 17}


@pytest.mark.parametrize(("outputs", "embed_dim"), [(9, 6), (12, 4), (4, 6)])
def test_a_random_target_keeps_its_part_outside_of_a_subspace(outputs: int, embed_dim: int) -> None:
    stream = np.random.default_rng(1)
    shares = []
    for _ in range(4000):
        basis, _ = np.linalg.qr(stream.standard_normal((outputs, min(embed_dim, outputs))))
        target = stream.standard_normal(outputs)
        missed = target - basis @ (basis.T @ target)
        shares.append(missed @ missed / (target @ target))
    expected = float(closed.residual_share(outputs, embed_dim))
    assert np.mean(shares) == pytest.approx(expected, abs=4 * np.std(shares) / len(shares) ** 0.5 + 1e-12)


def test_query_key_and_value_of_all_heads_miss_two_thirds() -> None:
    assert closed.residual_share(3 * 512, 512) == Fraction(2, 3)
    assert closed.residual_share(512, 512) == closed.residual_share(3 * 64, 512) == 0
    with pytest.raises(ValueError, match="outputs=0"):
        closed.residual_share(0, 4)


def test_parameters_are_counted_matrix_by_matrix() -> None:
    found = closed.head_parameters(5, 7, 12, 4, **SIZES)
    shapes = [(32, 5), (17, 7), (12, 4), (12, 4), (12, 4), (4, 16)]
    assert found == sum(np.zeros(shape).size for shape in shapes)


def test_equal_widths_have_the_nearest_number_of_parameters() -> None:
    content, code = closed.equal_widths(32, 16, **SIZES)
    wanted = closed.head_parameters(32, 32, 32, 16, **SIZES)

    def gap(a: int, b: int) -> int:
        return abs(closed.head_parameters(a, b, a + b, 16, **SIZES) - wanted)

    near = [(a, b) for a, b in itertools.product(range(1, 33), repeat=2) if abs(a - b) <= 1]
    assert gap(content, code) == min(gap(*pair) for pair in near) and abs(content - code) <= 1
    assert gap(content, code) < 0.01 * wanted and content + code > 32


@pytest.mark.parametrize(("length", "symbols"), [(1, 3), (2, 2), (4, 3), (5, 2), (3, 5)])
def test_the_commonest_symbol_of_every_bag(length: int, symbols: int) -> None:
    bags = list(itertools.product(range(symbols), repeat=length))
    largest = [max(Counter(bag).values()) for bag in bags]
    assert closed.bag_accuracy(length, symbols) == pytest.approx(sum(largest) / len(bags) / length, rel=1e-12)


def test_a_bag_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="symbols=0"):
        closed.bag_accuracy(3, 0)
