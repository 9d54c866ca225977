"""Which shifts windows commute with, and how far a place sees through alternating layers of them.

A map has ``windows`` x ``windows`` windows of ``window`` x ``window`` places; every second layer shifts them by half a
window, rounded down. What holds along rows holds along columns: a window is a product of two intervals.
"""

BORDERS = ("torus", "constant")


def period(*, window: int, windows: int, masked: bool, border: str, patch: int = 1, merged: bool = False) -> int:
    """Smallest shift along one axis, in places of the input, whose multiples a network with windows commutes with.

    Windows lie on a lattice of ``window`` places, and of twice as many after patches were merged; shifts by anything
    else cut the same content otherwise. A mask lies at the border of the map besides: on a torus full of content it
    moves with no shift but that by the whole map; where everything near the border is constant, a mean of equal
    values hides it. Before patches of ``patch`` pixels all this is ``patch`` times as much.

    Raises:
        ValueError: an unknown border, a size below 1, or merged patches that windows do not divide.
    """
    if border not in BORDERS:
        raise ValueError(f"border={border} must be one of {', '.join(BORDERS)}")
    if min(window, windows, patch) < 1:
        raise ValueError(f"window={window}, windows={windows} and patch={patch} must be 1 or more")
    if merged and windows % 2:
        raise ValueError(f"windows={windows} must be even, so that windows divide the merged map")
    # A single window is not shifted, and has no mask.
    if masked and border == "torus" and windows > 1:
        return patch * window * windows
    return patch * window * (2 if merged else 1)


def commuting_rolls(size: int, step: int) -> int:
    """How many of the ``size``² rolls of a torus have both shifts in multiples of ``step``."""
    if size % step:
        raise ValueError(f"step={step} must divide size={size}")
    return (size // step) ** 2


def seen(place: int, *, window: int, windows: int, layers: int, masked: bool) -> set[int]:
    """Places of one axis that the output at ``place`` depends on after ``layers`` layers, the first without a shift.

    An interval that grows by a window with every layer. The last layer decides where it lies: around the place's own
    window if it is unshifted; around the two windows that its shifted one touches if it is shifted. With a mask it ends
    at the border, without one it goes round.

    Raises:
        ValueError: a place outside the map, a window that has no half, or no layer.
    """
    size = window * windows
    if not 0 <= place < size:
        raise ValueError(f"place={place} must be 0 or more and below {size}")
    if window < 2 or layers < 1:
        raise ValueError(f"window={window} must be 2 or more and layers={layers} 1 or more")
    if windows == 1:
        return set(range(size))
    if layers % 2:
        first, last = place // window - layers // 2, place // window + layers // 2
    else:
        own = (place - window // 2) // window
        first, last = own - (layers // 2 - 1), own + 1 + (layers // 2 - 1)
    reached = range(first * window, (last + 1) * window)
    return {at for at in reached if 0 <= at < size} if masked else {at % size for at in reached}


def reach(row: int, column: int, *, window: int, windows: int, layers: int, masked: bool) -> int:
    """Places of the map that the output at (row, column) depends on."""
    sides = [seen(place, window=window, windows=windows, layers=layers, masked=masked) for place in (row, column)]
    return len(sides[0]) * len(sides[1])


def layers_to_all(windows: int, *, masked: bool) -> int:
    """Fewest layers after which every place depends on every other.

    From the window in one corner to the opposite one are ``windows`` - 1 steps of one window, and behind a mask the
    corner moves only in every second layer: 2 ``windows`` - 1. Round the torus it is ``windows``.
    """
    if windows < 1:
        raise ValueError(f"windows={windows} must be 1 or more")
    return 2 * windows - 1 if masked else windows
