"""Colours of series can be told apart in light and dark, by readers who see fewer colours too."""

from __future__ import annotations

import itertools
import re

import numpy as np
import numpy.typing as npt
import pytest

from attnrepro.app.dashboard import _asset

Colour = npt.NDArray[np.float64]

# Linear RGB as it is seen with complete protanopia, deuteranopia and tritanopia (Machado, Oliveira, Fernandes 2009).
SEEN = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
# Differences of CIE L*a*b*: 2.3 is just seen, side by side.
APART = 9.0


def linear(colour: str) -> Colour:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: Colour) -> Colour:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def apart(one: str, other: str) -> float:
    pairs = ((lab(np.array(seen) @ linear(one)), lab(np.array(seen) @ linear(other))) for seen in SEEN.values())
    return min(float(np.linalg.norm(a - b)) for a, b in pairs)


def contrast(one: str, other: str) -> float:
    """Of WCAG 2: 3 is the least for graphics."""
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def blocks() -> list[dict[str, str]]:
    found = re.findall(r":root \{(.*?)\}", _asset("page.css"), re.DOTALL)
    return [dict(re.findall(r"(--[\w-]+): (#\w{6});", block)) for block in found]


@pytest.mark.parametrize("number", [0, 1], ids=["light", "dark"])
def test_series_stand_out_and_apart(number: int) -> None:
    colours = blocks()[number]
    series = {name: colour for name, colour in colours.items() if name.startswith("--series-")}
    assert len(series) == 7
    for name, colour in series.items():
        assert contrast(colour, colours["--card"]) >= 3, name
    for one, other in itertools.combinations(series, 2):
        assert apart(series[one], series[other]) >= APART, (one, other)


def test_colours_that_are_too_near_are_found() -> None:
    assert apart("#0072b2", "#2f83b7") < APART
    assert apart("#d55e00", "#9a6b00") < 3, "the same with deuteranopia"
    assert contrast("#56b4e9", "#ffffff") < 3
