"""Images whose cells are moved apart, so that a map with a coarser grid has whole places for each cell."""

from torch import Tensor
from torch.nn.functional import pad


def spread(images: Tensor, cell: int, more: int) -> Tensor:
    """Images with ``more`` blank rows and columns behind each cell of ``cell`` x ``cell`` pixels.

    Args:
        images: ``[n, channels, height, width]``; ``cell`` divides both sides.

    Returns:
        ``[n, channels, height / cell * (cell + more), width / cell * (cell + more)]``.

    Raises:
        ValueError: a side that ``cell`` does not divide.
    """
    n, channels, height, width = images.shape
    if height % cell or width % cell:
        raise ValueError(f"cell={cell} must divide the sides of the images, {height} x {width}")
    cells = images.reshape(n, channels, height // cell, cell, width // cell, cell)
    wide = pad(cells, (0, more, 0, 0, 0, more))
    return wide.reshape(n, channels, height // cell * (cell + more), width // cell * (cell + more))
