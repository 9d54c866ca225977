"""One glyph of 5 x 5 pixels in each image, to be told by its type: images to pre-train on, as many as one likes.

The glyphs are those of `attnrepro.data.same_different`, and so is where one may stand: in any of the 4 x 4 cells of
7 x 7 pixels, up to one pixel off its middle. It lies whole in one patch of a ViT with patches of 7, at nine places; a
model has to learn a shape wherever it stands.
"""

import math

import torch
from torch import Tensor

from attnrepro.data.imageset import ImageSet
from attnrepro.data.same_different import glyphs
from attnrepro.data.streams import generator
from attnrepro.theory.same_different import CELL, CELLS, GLYPH, SIDE

# Images that are drawn at once: those of a smaller number are the first of those of a larger one.
BLOCK = 1000
# Grey values of background and ink, and the standard deviation of what is added to every pixel.
BACKGROUND, INK, NOISE = 64, 192, 25.0


def glyph_images(n: int, types: int, seed: int, *names: object) -> ImageSet:
    """``n`` images of the stream ``names`` (train, validation) of ``seed``, types in turn; the label is the type."""
    blocks = [_block(block * BLOCK, types, generator(seed, "glyph images", *names, block)) for block in _blocks(n)]
    classes = tuple(f"glyph {kind}" for kind in range(types))
    return ImageSet("glyphs", torch.cat(blocks)[:n], torch.arange(n) % types, classes)


def _blocks(n: int) -> range:
    return range(math.ceil(n / BLOCK))


def _block(start: int, types: int, stream: torch.Generator) -> Tensor:
    """The images from number ``start`` on, ``[BLOCK, 1, 28, 28]`` in uint8."""

    def integers(bound: int) -> Tensor:
        return torch.randint(bound, (BLOCK, 2), generator=stream)

    room = (CELL - GLYPH) // 2
    corners = integers(CELLS) * CELL + integers(2 * room + 1)
    ink = torch.zeros(BLOCK, SIDE, SIDE)
    rows, columns = (corners[:, axis, None] + torch.arange(GLYPH) for axis in (0, 1))
    kinds = (start + torch.arange(BLOCK)) % types
    ink[torch.arange(BLOCK)[:, None, None], rows[:, :, None], columns[:, None]] = glyphs(types)[kinds]
    noise = NOISE * torch.randn(ink.shape, generator=stream)
    return (BACKGROUND + (INK - BACKGROUND) * ink + noise).round().clamp(0, 255).to(torch.uint8)[:, None]
