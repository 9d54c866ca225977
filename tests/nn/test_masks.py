"""Masks against their definitions, position by position."""

import pytest
import torch

from attnrepro.nn import masks


@pytest.mark.parametrize("length", [1, 2, 7])
def test_causal(length: int) -> None:
    mask = masks.causal(length)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[j <= i for j in range(length)] for i in range(length)]


@pytest.mark.parametrize(("length", "width"), [(1, 1), (6, 1), (6, 3), (7, 5), (3, 9)])
def test_window(length: int, width: int) -> None:
    expected = [[i - width // 2 <= j <= i + width // 2 for j in range(length)] for i in range(length)]
    assert masks.window(length, width).tolist() == expected


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4), (3, 1), (2, 3), (4, 4)])
def test_criss_cross(height: int, width: int) -> None:
    pixels = [(row, column) for row in range(height) for column in range(width)]
    expected = [[a == c or b == d for c, d in pixels] for a, b in pixels]
    mask = masks.criss_cross(height, width)
    assert mask.tolist() == expected
    assert mask.sum(1).tolist() == [height + width - 1] * len(pixels)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: masks.causal(0), "length=0"),
        (lambda: masks.window(0, 3), "length=0"),
        (lambda: masks.window(5, 2), "width=2 must be odd"),
        (lambda: masks.window(5, -1), "width=-1 must be odd and positive"),
        (lambda: masks.criss_cross(0, 3), "height=0"),
        (lambda: masks.criss_cross(3, 0), "width=0"),
    ],
)
def test_sizes_that_make_no_mask(make: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        make()  # type: ignore[operator]
