"""Boolean attention masks ``[length, length]``: row query, column key, True = may attend."""

import torch
from torch import Tensor


def causal(length: int, *, device: torch.device | str | None = None) -> Tensor:
    """Each position attends to itself and to what came before (Vaswani et al. 2017, section 3.2.3).

    Raises:
        ValueError: a length below 1.
    """
    position = _positions(length, device)
    return position[:, None] >= position


def window(length: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """Each position attends to the ``width`` positions around it, itself in the middle; fewer at the ends.

    Raises:
        ValueError: a length below 1, or a width that is not odd and positive.

    Source: Beltagy et al. 2020, Longformer, section 3.1 (sliding window).
    """
    if width < 1 or width % 2 == 0:
        raise ValueError(f"width={width} must be odd and positive, so that a position stands in the middle")
    position = _positions(length, device)
    return (position[:, None] - position).abs() <= width // 2


def criss_cross(height: int, width: int, *, device: torch.device | str | None = None) -> Tensor:
    """Each pixel of a grid attends to its own row and its own column; pixels are numbered row by row.

    Returns:
        Mask of length ``height * width``.

    Raises:
        ValueError: a height or width below 1.

    Source: Huang et al. 2019, CCNet, section 3.2.
    """
    if height < 1 or width < 1:
        raise ValueError(f"height={height} and width={width} must be 1 or more")
    position = _positions(height * width, device)
    row, column = position // width, position % width
    return (row[:, None] == row) | (column[:, None] == column)


def _positions(length: int, device: torch.device | str | None) -> Tensor:
    if length < 1:
        raise ValueError(f"length={length} must be 1 or more")
    return torch.arange(length, device=device)
