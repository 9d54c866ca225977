"""Generators that complete an image of cells: convolutions over places, with or without a link between all of them."""

import torch
from torch import Tensor, nn

from attnrepro.nn.global_context import GlobalAverageAdd
from attnrepro.nn.sagan_attention import SaganAttention
from attnrepro.theory.long_range_consistency import layers
from attnrepro.theory.same_different import CELL


class Spread(nn.Module):
    """``x + W relu(K x)`` with a square kernel K of ``side`` places and a 1 x 1 kernel W, padded with zeros."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.spread, self.mix = nn.Conv2d(width, width, side, padding=side // 2), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, width, rows, columns]`` to the same shape."""
        out: Tensor = x + self.mix(self.spread(x).relu())
        return out


class Completer(nn.Module):
    """Reads each cell by itself, carries what was read from place to place, and paints each cell from its place.

    A kernel of 7 x 7 with stride 7 makes a place of each cell; as many `Spread` layers of 3 x 3 as
    ``attnrepro.theory.long_range_consistency`` says; then, for the generator "attention", the block of SAGAN, or for
    "mean" the mean of all places in its stead; a layer of each place by itself; and a transposed kernel of 7 x 7 that
    upsamples. Without a link, a cell depends on no cell that is more rows or columns away than there are such layers.

    Args:
        generator: a name of ``LAYERS`` there.
        cells: sides of the image in cells of 7 pixels.
        width: channels of a place.
        reduction: channels of a place for each one inside the link.

    Raises:
        ValueError: fewer than 3 cells, or a link of fewer than 3 channels.

    Source: Zhang et al. 2019, Self-Attention Generative Adversarial Networks, section 3 (its block, on the map of a
    generator).
    """

    def __init__(self, generator: str, cells: int, width: int, reduction: int) -> None:
        super().__init__()
        self.read = nn.Conv2d(2, width, CELL, CELL)
        self.spread = nn.Sequential(*(Spread(width, 3) for _ in range(layers(generator, cells))))
        self.link: nn.Module = nn.Identity()
        if generator == "attention":
            self.link = SaganAttention(width, reduction=reduction)
        elif generator == "mean":
            self.link = GlobalAverageAdd(width, reduction=reduction)
        self.place, self.paint = Spread(width, 1), nn.ConvTranspose2d(width, 1, CELL, CELL)

    def forward(self, given: Tensor) -> Tensor:
        """Painted images ``[n, 1, side, side]`` of images and what is covered of them, ``[n, 2, side, side]``."""
        painted: Tensor = self.paint(self.place(self.link(self.spread(self.read(given).relu()))))
        return painted


def open_gates(model: nn.Module, stream: torch.Generator) -> nn.Module:
    """The model with parameters that start at zero drawn from a normal distribution: what it can depend on shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(generator=stream)
    return model
