"""Closed forms of the nearest codes and of copying without order, against brute force."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from attnrepro.theory import code_distances as closed


def wave(position: int, embed_dim: int) -> list[float]:
    """A row of the sinusoid as the paper writes it."""
    angles = [position / 10000 ** (2 * i / embed_dim) for i in range(embed_dim // 2)]
    return [part for angle in angles for part in (math.sin(angle), math.cos(angle))]


@pytest.mark.parametrize(("length", "embed_dim"), [(2, 2), (7, 2), (8, 2), (50, 2), (60, 4), (40, 16)])
def test_the_nearest_pair_is_that_of_all_pairs(length: int, embed_dim: int) -> None:
    rows = [wave(n, embed_dim) for n in range(length)]
    found = {(t - s): math.dist(rows[s], rows[t]) for s, t in itertools.combinations(range(length), 2)}
    gap, distance = closed.nearest(length, embed_dim)
    assert distance == pytest.approx(min(found.values()), rel=1e-9)
    assert found[gap] == pytest.approx(distance, rel=1e-9)


def test_one_pair_of_components_is_nearest_at_convergents_of_two_pi() -> None:
    gaps = [1, *(min(range(1, n), key=lambda m: abs(math.remainder(m, 2 * math.pi))) for n in range(3, 1000))]
    assert [closed.nearest_turn(n) for n in range(2, 1000)] == gaps
    assert sorted(set(gaps)) == [1, 6, 19, 25, 44, 333, 710]


def test_neighbours_are_nearest_where_slow_frequencies_help() -> None:
    gap, distance = closed.nearest(300, 64)
    assert gap == 1
    assert distance == pytest.approx(math.dist(wave(0, 64), wave(1, 64)))


@pytest.mark.parametrize(("length", "symbols"), [(2, 3), (4, 2), (6, 3)])
def test_the_ceiling_is_the_mean_over_all_texts(length: int, symbols: int) -> None:
    texts = list(itertools.product(range(symbols), repeat=length - 1))
    most = sum(Counter(text).most_common(1)[0][1] for text in texts) / len(texts)
    assert closed.blind_copy_ceiling(length, symbols) == pytest.approx(most / (length - 1), rel=1e-12)


def test_nobody_copies_better_from_a_set_than_the_ceiling() -> None:
    """With two symbols and two tokens the other one is known; with long texts a guess is left."""
    assert closed.blind_copy_ceiling(2, 2) == pytest.approx(1.0)
    assert 1 / 8 < closed.blind_copy_ceiling(2000, 8) < 0.15


def test_gaussian_codes_have_mean_square_distance_of_their_dimension() -> None:
    assert closed.gaussian_mean_square(64) == 64


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="length=1 must be 2 or more"):
        closed.nearest(1, 4)
    with pytest.raises(ValueError, match="embed_dim=3 must be even"):
        closed.nearest(5, 3)
    for length in (1, 10**7):
        with pytest.raises(ValueError, match=f"length={length} must be between 2 and 1000000"):
            closed.nearest_turn(length)


@pytest.mark.parametrize(("length", "symbols"), [(1, 3), (5, 0)])
def test_an_impossible_text_is_refused(length: int, symbols: int) -> None:
    with pytest.raises(ValueError, match=f"length={length} must be 2 or more and symbols={symbols}"):
        closed.blind_copy_ceiling(length, symbols)
