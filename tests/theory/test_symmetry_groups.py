"""Closed forms of symmetry groups, against brute force over every element."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attnrepro.theory import symmetry_groups as groups


def every(group: str, n: int) -> list[tuple[int, ...]]:
    """Every element of a group, written down by its definition."""
    if group == "permutations":
        return list(itertools.permutations(range(n)))
    step = {"none": n, "shifts_by_4": 4}.get(group, 1)
    shifts = [tuple((i + by) % n for i in range(n)) for by in range(0, n, step)]
    if group == "shifts_mirrored":
        return shifts + [tuple((by - i) % n for i in range(n)) for by in range(n)]
    return shifts


CASES = [(group, n) for group in groups.GROUPS for n in (3, 4, 5, 6, 7, 8) if group != "shifts_by_4" or n % 4 == 0]
SMALL = [(group, n) for group, n in CASES if group != "permutations" or n < 8]


@pytest.mark.parametrize(("group", "n"), CASES)
def test_size_is_the_number_of_elements(group: str, n: int) -> None:
    assert groups.group_size(group, n) == len(set(every(group, n)))


@pytest.mark.parametrize(("group", "n"), SMALL)
def test_dimension_is_the_number_of_orbits_of_pairs(group: str, n: int) -> None:
    elements = every(group, n)
    orbits = {frozenset((g[i], g[j]) for g in elements) for i in range(n) for j in range(n)}
    assert groups.equivariant_dimension(group, n) == len(orbits)


@pytest.mark.parametrize(("group", "n"), [("permutations", 4), ("shifts", 6), ("shifts_mirrored", 5), ("none", 4)])
def test_dimension_is_that_of_the_averaged_matrices(group: str, n: int) -> None:
    """The mean of P M P^T over the group projects onto the equivariant matrices: its rank is their dimension."""
    projection = np.zeros((n * n, n * n))
    elements = every(group, n)
    for g in elements:
        p = np.eye(n)[list(g)]
        projection += np.kron(p, p) / len(elements)
    assert groups.equivariant_dimension(group, n) == np.linalg.matrix_rank(projection)


@pytest.mark.parametrize(("group", "n"), SMALL)
def test_classes_are_those_of_all_words(group: str, n: int) -> None:
    elements = every(group, n)
    words = itertools.product((0, 1), repeat=n)
    assert groups.binary_classes(group, n) == len({min(tuple(w[i] for i in g) for g in elements) for w in words})


def test_the_numbers_at_8_positions() -> None:
    dims = [groups.equivariant_dimension(group, 8) for group in groups.GROUPS]
    assert dims == sorted(dims) == [2, 5, 8, 32, 64]
    assert [groups.binary_classes(group, 8) for group in ("permutations", "shifts", "none")] == [9, 36, 256]
    assert groups.group_size("permutations", 8) == 40320


def test_distance_ratio_by_hand() -> None:
    # ln(64 / 2) against ln(8 / 2): five doublings against two.
    assert groups.distance_ratio("permutations", 8) == pytest.approx(5 / 2)
    assert groups.distance_ratio("none", 8) == 0
    assert groups.distance_ratio("shifts_by_4", 8) == pytest.approx(1 / 2)
    with pytest.raises(ValueError, match="group=shifts must have another dimension"):
        groups.distance_ratio("shifts", 8)


def test_spans_against_masks_of_shared_entries() -> None:
    n, kernel = 8, 3
    near = [(i, j) for i in range(n) for j in range(n) if min((i - j) % n, (j - i) % n) <= kernel // 2]
    assert groups.span_dimension("locally_connected", n, kernel) == len(near)
    assert groups.span_dimension("convolution", n, kernel) == len({(j - i) % n for i, j in near})
    assert groups.span_dimension("convolution_wide", n, kernel) == groups.equivariant_dimension("shifts", n)
    assert groups.span_dimension("attention", n, kernel) == groups.equivariant_dimension("permutations", n)
    assert groups.span_dimension("mlp", n, kernel) == groups.equivariant_dimension("none", n)


def test_neighbours_of_a_square() -> None:
    for kernel in (1, 3, 5, 7):
        reach = kernel // 2
        around = [p for p in itertools.product(range(-reach, reach + 1), repeat=2) if p != (0, 0)]
        assert groups.neighbours(kernel) == len(around)


def test_derangements() -> None:
    for n in range(7):
        brute = sum(all(p[i] != i for i in range(n)) for p in itertools.permutations(range(n)))
        assert groups._derangements(n) == brute


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: groups.group_size("rotations", 8), "group=rotations must be one of"),
        (lambda: groups.group_size("shifts", 2), "n=2 must be 3 or more"),
        (lambda: groups.binary_classes("shifts_by_4", 6), "a multiple of 4 for shifts_by_4"),
        (lambda: groups.span_dimension("unet", 8, 3), "layer=unet must be one of"),
        (lambda: groups.span_dimension("mlp", 8, 4), "kernel=4 must be odd"),
        (lambda: groups.span_dimension("mlp", 8, 9), "at most n=8"),
    ],
)
def test_impossible_input_is_refused(call: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        call()  # type: ignore[operator]
