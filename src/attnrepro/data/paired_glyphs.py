"""Two glyphs far apart that must be of one type, one of them covered: images to complete, and the judge of the result.

A square of ``cells`` x ``cells`` cells of 7 x 7 pixels. Two glyphs of 5 x 5 pixels, those of
`attnrepro.data.same_different`, stand in the middle of cells that are as many rows or columns from each other as the
square allows; types and places are drawn evenly. The cell of the second one is covered: what belongs there can be
known from the first alone. The judge sees pixels only: it reads every glyph as the nearest of the types.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnrepro.config import in_range
from attnrepro.data.same_different import glyphs
from attnrepro.theory.same_different import CELL, GLYPH


class Covered(NamedTuple):
    """Images to complete.

    ``given`` ``[n, 2, side, side]``: the noisy image with one cell blank, and 1 over that cell. ``whole``
    ``[n, 1, side, side]``: the clean image. ``places`` ``[n, 2]``: cells of the visible and of the covered glyph,
    counted row by row. ``kinds`` ``[n]``: the type of both.
    """

    given: Tensor
    whole: Tensor
    places: Tensor
    kinds: Tensor

    @property
    def hole(self) -> Tensor:
        """1 over the covered cell, ``[n, 1, side, side]``."""
        return self.given[:, 1:]

    def completed(self, painted: Tensor) -> Tensor:
        """The given image with its blank cell taken from ``painted`` ``[n, 1, side, side]``."""
        return torch.where(self.hole > 0, painted, self.given[:, :1])


class Reading(NamedTuple):
    """What the judge reads in two cells of each image: types and distances ``[n, 2]``, and the distance below which no
    other type can be as near."""

    kinds: Tensor
    distances: Tensor
    unambiguous: float

    @property
    def agree(self) -> Tensor:
        """Whether both are of one type, ``[n]``."""
        return self.kinds[:, 0] == self.kinds[:, 1]

    @property
    def legible(self) -> Tensor:
        """Whether each is nearer to its type than half the way to any other, ``[n, 2]``."""
        return self.distances < self.unambiguous


@dataclass(frozen=True)
class PairedGlyphs:
    """The task. ``types`` kinds of glyph; ``noise``, the standard deviation of Gaussian noise on what is given.

    Raises ``ValueError`` for a value out of range.
    """

    types: int = 4
    cells: int = 4
    noise: float = 0.2

    def __post_init__(self) -> None:
        in_range(self, types=(2, 1000), cells=(2, 64), noise=(0, 100))

    @property
    def side(self) -> int:
        """Side of an image in pixels."""
        return CELL * self.cells

    def pairs(self) -> list[tuple[int, int]]:
        """Ordered pairs of cells (counted row by row) in opposite rows or columns at the edges of the square."""
        n, cells = self.cells, range(self.cells**2)
        return [(a, b) for a in cells for b in cells if max(abs(a // n - b // n), abs(a % n - b % n)) == n - 1]

    def shapes(self) -> Tensor:
        """The types as they look in a cell, ``[types, 49]``."""
        room = (CELL - GLYPH) // 2
        return torch.nn.functional.pad(glyphs(self.types), [room] * 4).flatten(1)

    def draw(self, n: int, stream: torch.Generator) -> Covered:
        """``n`` new images on the stream's device."""
        device = stream.device
        pairs = torch.tensor(self.pairs(), device=device)
        places = pairs[torch.randint(len(pairs), (n,), generator=stream, device=device)]
        kinds = torch.randint(self.types, (n,), generator=stream, device=device)
        index = torch.arange(n, device=device)
        cells = torch.zeros(n, self.cells**2, CELL**2, device=device)
        cells[index[:, None], places] = self.shapes().to(device)[kinds][:, None]
        noisy = cells + self.noise * torch.randn(cells.shape, generator=stream, device=device)
        hole = torch.zeros_like(cells)
        noisy[index, places[:, 1]] = 0
        hole[index, places[:, 1]] = 1
        given = torch.stack([self._image(noisy), self._image(hole)], dim=1)
        return Covered(given, self._image(cells)[:, None], places, kinds)

    def read(self, images: Tensor, places: Tensor) -> Reading:
        """What stands in the cells ``places`` ``[n, 2]`` of images ``[n, 1, side, side]``, by the nearest type."""
        shapes = self.shapes().to(images)
        found = self._cells(images[:, 0])[torch.arange(len(images), device=images.device)[:, None], places]
        nearest = torch.cdist(found, shapes[None], compute_mode="donot_use_mm_for_euclid_dist").min(-1)
        return Reading(nearest.indices, nearest.values, min(self.glyph_distances()) / 2)

    def glyph_distances(self) -> list[float]:
        """Euclidean distances between all pairs of types."""
        return torch.pdist(self.shapes().double()).tolist()

    def _image(self, cells: Tensor) -> Tensor:
        """Pixels ``[n, side, side]`` of cells ``[n, cells * cells, 49]``."""
        n = self.cells
        return cells.view(-1, n, n, CELL, CELL).transpose(2, 3).reshape(-1, self.side, self.side)

    def _cells(self, pixels: Tensor) -> Tensor:
        """The reverse."""
        n = self.cells
        return pixels.reshape(-1, n, CELL, n, CELL).transpose(2, 3).reshape(-1, n * n, CELL**2)
