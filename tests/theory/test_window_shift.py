"""Shifts and reach of windows, against windows drawn by brute force."""

from __future__ import annotations

import pytest

from attnrepro.theory import window_shift


def one_layer(size: int, window: int, shift: int, masked: bool) -> list[set[int]]:
    """Whom each place of one axis sees: those with the same window number, and the same side of the cut."""
    if size == window:
        shift = 0
    group = [((at - shift) % size // window, masked and at < shift) for at in range(size)]
    return [{j for j in range(size) if group[j] == group[i]} for i in range(size)]


def stacked(size: int, window: int, layers: int, masked: bool) -> list[set[int]]:
    seen = [{i} for i in range(size)]
    for index in range(layers):
        layer = one_layer(size, window, window // 2 if index % 2 else 0, masked)
        seen = [set().union(*(seen[j] for j in layer[i])) for i in range(size)]
    return seen


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("window", "windows"), [(2, 1), (2, 2), (3, 2), (2, 5), (3, 4), (4, 3), (5, 3)])
def test_reach_is_that_of_stacked_windows(window: int, windows: int, masked: bool) -> None:
    size = window * windows
    for layers in range(1, 2 * windows + 2):
        expected = stacked(size, window, layers, masked)
        for place in range(size):
            found = window_shift.seen(place, window=window, windows=windows, layers=layers, masked=masked)
            assert found == expected[place]
        reach = window_shift.reach(0, size - 1, window=window, windows=windows, layers=layers, masked=masked)
        assert reach == len(expected[0]) * len(expected[-1])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("window", "windows"), [(2, 1), (2, 2), (3, 2), (2, 5), (4, 3), (2, 8)])
def test_everything_is_seen_after_so_many_layers_and_not_before(window: int, windows: int, masked: bool) -> None:
    size, needed = window * windows, window_shift.layers_to_all(windows, masked=masked)
    complete = [set(range(size))] * size
    assert stacked(size, window, needed, masked) == complete
    assert needed == 1 or stacked(size, window, needed - 1, masked) != complete


def commutes(size: int, window: int, masked: bool, shift: int) -> bool:
    """Whether both layers' windows lie the same after the map is rolled, as sets of places and offsets."""
    for by in (0, window // 2):
        layer = one_layer(size, window, by, masked)
        for place in range(size):
            moved = {(other + shift) % size for other in layer[place]}
            if moved != layer[(place + shift) % size]:
                return False
    return True


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(("window", "windows"), [(2, 2), (3, 4), (4, 2), (5, 3)])
def test_windows_lie_the_same_after_shifts_of_the_period_and_no_others(window: int, windows: int, masked: bool) -> None:
    size = window * windows
    step = window_shift.period(window=window, windows=windows, masked=masked, border="torus")
    assert [shift for shift in range(size) if commutes(size, window, masked, shift)] == list(range(0, size, step))


def test_patches_merging_and_constant_borders() -> None:
    sizes = {"window": 4, "windows": 4}
    assert window_shift.period(**sizes, masked=True, border="constant") == 4
    assert window_shift.period(**sizes, masked=True, border="torus", patch=2) == 32
    assert window_shift.period(**sizes, masked=False, border="torus", patch=2) == 8
    assert window_shift.period(**sizes, masked=False, border="torus", merged=True) == 8
    assert window_shift.period(window=4, windows=1, masked=True, border="torus") == 4
    assert window_shift.commuting_rolls(16, 4) == 16 and window_shift.commuting_rolls(16, 16) == 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="border=open must be one of torus, constant"):
        window_shift.period(window=2, windows=2, masked=True, border="open")
    with pytest.raises(ValueError, match="window=0, windows=2 and patch=1 must be 1 or more"):
        window_shift.period(window=0, windows=2, masked=True, border="torus")
    with pytest.raises(ValueError, match="windows=3 must be even"):
        window_shift.period(window=2, windows=3, masked=True, border="torus", merged=True)
    with pytest.raises(ValueError, match="step=3 must divide size=8"):
        window_shift.commuting_rolls(8, 3)
    with pytest.raises(ValueError, match="place=8 must be 0 or more and below 8"):
        window_shift.seen(8, window=2, windows=4, layers=1, masked=True)
    with pytest.raises(ValueError, match="window=1 must be 2 or more and layers=1"):
        window_shift.seen(0, window=1, windows=4, layers=1, masked=True)
    with pytest.raises(ValueError, match="windows=0 must be 1 or more"):
        window_shift.layers_to_all(0, masked=True)
