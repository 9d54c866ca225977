"""Drawn signs: what a drawing shows, what varies, and that an alphabet is its seed's."""

from __future__ import annotations

import math

import pytest
import torch

from attnrepro.data.streams import generator
from attnrepro.data.stroke_glyphs import POINTS, STROKES, StrokeGlyphs, alphabet

STILL = {"wobble": 0.0, "turn": 0.0, "scale": 0.0, "shear": 0.0, "shift": 0.0, "noise": 0.0}


def stream(seed: int = 0) -> torch.Generator:
    return generator(seed, "drawings")


def test_a_still_drawing_is_the_pen_along_its_curves() -> None:
    """Every pixel from the nearest of all points of the curves, in a loop."""
    task, signs = StrokeGlyphs(side=9, **STILL), alphabet(2, 3)
    drawn = task.draw(signs, stream())
    # The width of the pen is drawn: from the pixel nearest to a curve follow all others.
    for sign, image in zip(signs.double(), drawn.double(), strict=True):
        points = [
            (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c
            for a, b, c in sign
            for t in (i / (POINTS - 1) for i in range(POINTS))
        ]
        squares = torch.empty(9, 9, dtype=torch.float64)
        for row in range(9):
            for column in range(9):
                x, y = (column + 0.5) * 2 / 9 - 1, (row + 0.5) * 2 / 9 - 1
                squares[row, column] = min((x - p[0]) ** 2 + (y - p[1]) ** 2 for p in points)
        lit = image[0] > 1e-3
        pens = (squares[lit] / (-2 * image[0][lit].log())).sqrt()
        assert 0.06 - 1e-3 <= float(pens.median()) <= 0.12 + 1e-3
        assert float(pens.max() - pens.min()) < 1e-3 * float(pens.median()) + 1e-4


@pytest.mark.parametrize("name", ["wobble", "turn", "scale", "shear", "shift", "noise"])
def test_every_kind_of_change_changes_drawings(name: str) -> None:
    signs = alphabet(1, 0).repeat(4, 1, 1, 1)
    value = 20.0 if name == "turn" else 0.15
    still, changed = (StrokeGlyphs(**{**STILL, **more}).draw(signs, stream()) for more in ({}, {name: value}))
    assert (changed[0] - changed[1]).abs().max() > 2 * (still[0] - still[1]).abs().max() or name == "noise"
    assert not torch.allclose(changed, still)


def test_classes_differ_more_than_drawings_of_one() -> None:
    signs = alphabet(30, 1).repeat_interleave(2, 0)
    drawn = StrokeGlyphs(noise=0.0).draw(signs, stream()).flatten(1).view(30, 2, -1)
    within = (drawn[:, 0] - drawn[:, 1]).square().mean()
    between = (drawn[:, 0] - drawn[:, 1].roll(1, 0)).square().mean()
    assert between > 1.3 * within


def test_an_alphabet_grows_and_belongs_to_its_seed() -> None:
    assert torch.equal(alphabet(3, 5), alphabet(8, 5)[:3]) and not torch.equal(alphabet(3, 5), alphabet(3, 6))
    assert alphabet(40, 0).shape == (40, STROKES, 3, 2) and alphabet(40, 0).abs().max() <= 0.75
    assert torch.equal(StrokeGlyphs().draw(alphabet(3, 5), stream()), StrokeGlyphs().draw(alphabet(3, 5), stream()))


def test_many_images_are_drawn_in_parts() -> None:
    drawn = StrokeGlyphs(side=6).draw(alphabet(1, 0).repeat(450, 1, 1, 1), stream())
    assert drawn.shape == (450, 1, 6, 6) and drawn.isfinite().all()
    assert math.isclose(float(drawn[:200].mean()), float(drawn[250:].mean()), abs_tol=0.02)


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="pen"):
        StrokeGlyphs(pen=0)
    with pytest.raises(ValueError, match="side"):
        StrokeGlyphs(side=2)
