"""Cells moved apart: every pixel stands where it should, and what is between is blank."""

from __future__ import annotations

import pytest
import torch

from attnrepro.data.spread import spread


@pytest.mark.parametrize(
    ("cell", "more", "height", "width"), [(7, 1, 28, 28), (2, 3, 4, 6), (1, 1, 3, 1), (5, 0, 5, 10)]
)
def test_every_pixel_is_moved_by_the_cells_before_it(cell: int, more: int, height: int, width: int) -> None:
    images = 1 + torch.rand(2, 3, height, width)
    wide = spread(images, cell, more)
    expected = torch.zeros(2, 3, height // cell * (cell + more), width // cell * (cell + more))
    for row in range(height):
        for column in range(width):
            expected[:, :, row + row // cell * more, column + column // cell * more] = images[:, :, row, column]
    assert torch.equal(wide, expected)


def test_cells_must_fit() -> None:
    with pytest.raises(ValueError, match="cell=5 must divide the sides of the images, 28 x 28"):
        spread(torch.zeros(1, 1, 28, 28), 5, 1)
