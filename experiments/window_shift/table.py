"""window_shift, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import window_shift as closed

NAME = "window_shift"
AXES = ("network", "border", "shift", "shape", "windows", "place", "depth")


class Kind(NamedTuple):
    """What a network is made of."""

    windowed: bool
    masked: bool = False
    patched: bool = False
    merged: bool = False


NETWORKS = {
    "swin": Kind(True, masked=True),
    "swin_unbiased": Kind(True, masked=True),
    "cyclic": Kind(True),
    "cyclic_unbiased": Kind(True),
    "windows": Kind(True),
    "patches_swin": Kind(True, masked=True, patched=True),
    "patches_cyclic": Kind(True, patched=True),
    "merging": Kind(True, merged=True),
    "attention": Kind(False),
    "patches_attention": Kind(False, patched=True),
    "attention_sinusoidal": Kind(False),
    "convolution": Kind(False),
}
# Tried within a constant surround too: what has windows, or patches. For the others a move inside it is one more roll.
IN_CONSTANT = ("swin", "swin_unbiased", "cyclic", "windows", "patches_swin")
# What is not judged by a list of shifts: it has to break the symmetry at every one.
BREAKER = "attention_sinusoidal"
SHIFTS = ("one", "half_window", "window", "two_windows")
PLACES = ("corner", "centre")
# An equality holds to so many eps of the largest output.
HOLDS_EPS = 32.0
# Deeper than this a stack is not looked at.
DEEPEST = 16


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/window_shift.yaml`` says what each means."""

    study: str
    draws: int
    roll_draws: int
    roll_side: int
    shapes: list[str]
    shown_shape: str
    patch: int
    constant_windows: int
    maps: list[str]
    whole_map: int
    reach_channels: int
    reach_heads: int

    def __post_init__(self) -> None:
        one_of(self, study=("equivariance", "reach"))
        distinct(self, "shapes", "maps")
        in_range(
            self,
            draws=(1, 10**5),
            roll_draws=(1, self.draws),
            roll_side=(1, 10**4),
            patch=(2, 32),
            constant_windows=(4, 100),
        )
        in_range(self, whole_map=(1, 10**5), reach_channels=(1, 10**4), reach_heads=(1, 64))
        for shape in self.shapes:
            if not re.fullmatch(r"[1-9]\d?x[1-9]\d?x[1-9]\d{0,3}x[1-9]\d?", shape):
                raise ValueError(f"shapes={shape} must be window x windows x channels x heads, as in 4x2x8x2")
            window, windows, channels, heads = sizes(shape)
            if window < 2 or windows % 2 or channels % 4 or channels % heads:
                raise ValueError(
                    f"shapes={shape} must have a window of 2 or more, an even number of them, and channels that 4 and"
                    " the heads divide"
                )
        if self.shown_shape not in self.shapes:
            raise ValueError(f"shown_shape={self.shown_shape} must be one of shapes={', '.join(self.shapes)}")
        for name in self.maps:
            if not re.fullmatch(r"([2-9]|[1-9]\d)x([2-9]|[1-9]\d)", name):
                raise ValueError(f"maps={name} must be window x windows, both 2 or more, as in 7x8")
        if self.reach_channels % self.reach_heads:
            raise ValueError(f"reach_heads={self.reach_heads} must divide reach_channels={self.reach_channels}")


def sizes(shape: str) -> tuple[int, int, int, int]:
    """Window, windows per side, channels and heads of a shape such as ``4x2x8x2``."""
    window, windows, channels, heads = map(int, shape.split("x"))
    return window, windows, channels, heads


def sides(name: str) -> tuple[int, int]:
    """Window and windows per side of a map such as ``7x8``."""
    window, windows = map(int, name.split("x"))
    return window, windows


def borders(network: str) -> tuple[str, ...]:
    """Surroundings in which a network is shifted."""
    return closed.BORDERS if network in IN_CONSTANT else ("torus",)


def pixels(p: Params, network: str) -> int:
    """Side of a place in pixels of the input."""
    return p.patch if NETWORKS[network].patched else 1


def shift_by(p: Params, network: str, window: int, name: str) -> int:
    """A named shift in pixels of the input; ``one`` is a pixel, the others are in patches where there are patches."""
    if name == "one":
        return 1
    return {"half_window": window // 2, "window": window, "two_windows": 2 * window}[name] * pixels(p, network)


def period(p: Params, network: str, window: int, windows: int, border: str) -> int:
    """Smallest shift in pixels whose multiples a network commutes with."""
    kind = NETWORKS[network]
    if network == BREAKER:
        return window * windows
    if not kind.windowed:
        return pixels(p, network)
    return closed.period(
        window=window,
        windows=windows,
        masked=kind.masked,
        border=border,
        patch=pixels(p, network),
        merged=kind.merged,
    )


def depths(windows: int) -> list[int]:
    """Depths at which reach is looked at: up to the last one that adds anything or `DEEPEST`, from 4 on every other."""
    last = min(closed.layers_to_all(windows, masked=True), DEEPEST)
    return [depth for depth in range(1, last + 1) if depth < 4 or depth % 2 == 0 or depth == last]


def places(name: str) -> dict[str, int]:
    """Row and column of the places whose reach is counted."""
    window, windows = sides(name)
    return {"corner": 0, "centre": window * windows // 2}


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "reach":
        return 2.0 + sum(len(depths(sides(m)[1])) ** 2 * (sides(m)[0] * sides(m)[1]) ** 2 * 8e-6 for m in p.maps)
    tokens = sum(
        (w * n) ** 2 * (p.draws * w * n * 2 + p.roll_draws * (w * n) ** 2) for w, n, _, _ in map(sizes, p.shapes)
    )
    return 2.0 + len(NETWORKS) * tokens * 3e-6


def theory(cell: Cell) -> list[Row]:
    """Rolls that change nothing, and places that an output depends on."""
    p = cell.params
    rows = []
    if p.study == "equivariance":
        for network in NETWORKS:
            for shape in p.shapes:
                window, windows, _, _ = sizes(shape)
                size = window * windows * pixels(p, network)
                if size > p.roll_side:
                    continue
                count = closed.commuting_rolls(size, period(p, network, window, windows, "torus"))
                rows.append(_exact("commuting_rolls", count, {"network": network, "border": "torus", "shape": shape}))
        return rows
    for network in ("swin", "cyclic"):
        masked = NETWORKS[network].masked
        for name in p.maps:
            window, windows = sides(name)
            for depth in depths(windows):
                for place, at in places(name).items():
                    count = closed.reach(at, at, window=window, windows=windows, layers=depth, masked=masked)
                    axes = {"network": network, "windows": name, "depth": depth, "place": place}
                    rows.append(_exact("reach", count, axes))
                    rows.append(_exact("reach_share", count / (window * windows) ** 2, axes))
            if (window * windows) ** 2 <= p.whole_map:
                needed = closed.layers_to_all(windows, masked=masked)
                rows.append(_exact("layers_to_all", needed, {"network": network, "windows": name}))
    return rows


def _exact(quantity: str, value: float, axes: dict[str, object]) -> Row:
    return Row(quantity, value, axes, source="theory", statistic="exact")
