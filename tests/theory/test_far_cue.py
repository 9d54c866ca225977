"""What a vector for all places can make of the far cue: the bound by brute force, the geometry by counting."""

from __future__ import annotations

import itertools
import math

import pytest

from attnrepro.theory import far_cue


def test_no_choice_of_readings_and_vectors_is_above_the_bound() -> None:
    """Every order of two readings a(kind), every vector t(cue): the best of all signs of a + t, by brute force."""
    best = 0.0
    grid = [x / 2 for x in range(-6, 7)]
    for a in itertools.product(grid, repeat=2):
        for t in itertools.product(grid, repeat=2):
            right = [(a[kind] + t[cue] > 0) == (kind != cue) for kind in (0, 1) for cue in (0, 1)]
            best = max(best, sum(right) / 4)
    assert best == far_cue.query_independent_bound() == 0.75


def test_no_choice_of_readings_and_vectors_is_below_the_least_loss() -> None:
    grid = [x / 4 for x in range(-8, 9)]
    losses = [
        sum(
            math.log1p(math.exp(-(1 if kind != cue else -1) * (a[kind] + t[cue]))) / 4
            for kind in (0, 1)
            for cue in (0, 1)
        )
        for a in itertools.product(grid, repeat=2)
        for t in itertools.product(grid, repeat=2)
    ]
    assert min(losses) == pytest.approx(far_cue.least_query_independent_loss(), abs=1e-12)


def test_a_vector_that_depends_on_the_place_is_not_bound() -> None:
    """The theorem would be empty if the labels could not be told at all."""
    table = {(kind, cue): (1 if kind != cue else -1) for kind in (0, 1) for cue in (0, 1)}
    assert all((table[kind, cue] > 0) == (kind != cue) for kind, cue in table)
    assert sum(math.log1p(math.exp(-9)) for _ in table) / 4 < far_cue.least_query_independent_loss()


def test_windows_of_9_pixels_see_one_glyph() -> None:
    half = far_cue.GLYPH // 2
    free = far_cue.PITCH - half - 1  # pixels from a middle up to, not including, the next glyph
    assert far_cue.widest_window() == 2 * free + 1 == 11 >= 9


@pytest.mark.parametrize("slot", range(3))
def test_the_middle_of_a_slot_is_the_middle_of_a_place(slot: int) -> None:
    first = slot * far_cue.PITCH + far_cue.PITCH // 2 - far_cue.GLYPH // 2
    pixels = range(first, first + far_cue.GLYPH)
    assert far_cue.STRIDE * far_cue.slot_place(slot) == pixels[2]
    assert far_cue.slot_place(slot) < far_cue.PLACES
