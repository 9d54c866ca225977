"""Counts and chances of cheaper attention, by hand and by brute force."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from attnrepro.theory import efficient_attention as closed
from attnrepro.theory.efficient_attention import Sizes

SIZES = Sizes(length=12, vocabulary=7, outputs=3, embed_dim=8, num_heads=2, depth=2, rank=3, width=5, stride=4)


def test_parameters_by_hand() -> None:
    plain = (7 + 12 + 3) * 8 + 2 * 4 * 64
    assert {kind: closed.parameters(kind, SIZES) for kind in closed.KINDS} == {
        **dict.fromkeys(("full", "linear", "window", "strided"), plain),
        "low_rank": plain + 2 * 3 * 12,
    }


def test_the_nearest_width_is_chosen() -> None:
    budget = closed.parameters("full", SIZES)
    for kind in closed.KINDS:
        made = closed.with_parameters(kind, SIZES, budget)
        gaps = {d: abs(closed.parameters(kind, replace(SIZES, embed_dim=d)) - budget) for d in range(2, 30, 2)}
        assert gaps[made.embed_dim] == min(gaps.values())
    assert closed.with_parameters("full", SIZES, budget) == SIZES


def test_flops_by_hand() -> None:
    n, d, h = 12, 8, 2
    rest = 2 * 8 * n * d * d + 2 * n * d * 3
    attention = {
        "full": 4 * n * n * d,
        "linear": 4 * n * d * d // h + 2 * n * d,
        "low_rank": 8 * n * 3 * d,
        "window": 4 * n * 5 * d,
        "strided": 4 * d * (n * 9 + 4 * 3**2),
    }
    assert {kind: closed.flops(kind, SIZES) for kind in closed.KINDS} == {
        kind: rest + 2 * cost for kind, cost in attention.items()
    }


def test_equal_weights_that_see_everybody_are_at_chance() -> None:
    n, r = 32, 4
    # Of the n (n - 1) ordered pairs 2 (n - d) are d apart.
    chance = Fraction(sum(2 * (n - d) for d in range(1, r + 1)), n * (n - 1))
    for kind in closed.BLIND:
        assert closed.equal_weights_locality(kind, n, r, 9, 4) == pytest.approx(float(chance), rel=1e-14)
    assert closed.equal_weights_locality("window", n, r, 9, 4) == 1
    assert closed.equal_weights_locality("window", n, r, 17, 4) < 1


def test_strided_by_hand() -> None:
    # 6 positions, stride 2: who is at distance 0, 1, 2 or 4. Numbers of the near (distance 1) and of all.
    counts = [(1, 4), (2, 5), (2, 5), (2, 5), (2, 5), (1, 4)]
    near = sum(Fraction(one, all_ * all_) for one, all_ in counts)
    others = sum(Fraction(all_ - 1, all_ * all_) for _, all_ in counts)
    found = closed.equal_weights_locality("strided", 6, 1, 9, 2)
    assert found == pytest.approx(float(near / others), rel=1e-14)


def test_patches_by_hand() -> None:
    assert closed.patch_locality(8, 3, 4) == 1
    # Of the 12 ordered pairs within a patch of 4 six are neighbours.
    assert closed.patch_locality(8, 1, 4) == 0.5


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="kind=sparse must be one of full"):
        closed.parameters("sparse", SIZES)
    with pytest.raises(ValueError, match="patch=3 must divide length=8"):
        closed.patch_locality(8, 1, 3)
    with pytest.raises(ValueError, match="length=3 must leave window somebody to look at"):
        closed.equal_weights_locality("window", 3, 1, 1, 1)
    with pytest.raises(ValueError, match="depth=0 must be 1 or more"):
        replace(SIZES, depth=0)
    with pytest.raises(ValueError, match="num_heads=3 must divide embed_dim=8"):
        replace(SIZES, num_heads=3)
    with pytest.raises(ValueError, match="width=4 must be odd"):
        replace(SIZES, width=4)
