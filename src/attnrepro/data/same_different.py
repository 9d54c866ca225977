"""Two glyphs far apart, of the same type or not: a label that no local window shows, with an optional local cue.

Images of 28 x 28 pixels in 4 x 4 cells of 7 x 7. Two glyphs of 5 x 5 pixels stand in cells that are at least ``apart``
rows or columns from each other; the label is 1 when they are of one type. A cue of 3 x 3 pixels, a plus or a cross,
lies anywhere, also over a glyph; with probability ``cue`` it is the plus exactly where the label is 1. What local
windows can make of this is in `attnrepro.theory.same_different`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnrepro.config import in_range
from attnrepro.data.streams import generator
from attnrepro.theory.same_different import CELL, CELLS, GLYPH, SIDE

CUE = 3
# Lit pixels of a glyph, the same for all types: brightness says nothing about the type.
INK = 12


@dataclass(frozen=True)
class SameDifferent:
    """The task. ``types`` kinds of glyph; ``cue_amplitude`` 0 leaves the cue out; ``jitter`` moves each glyph by up to
    so many pixels off the middle of its cell; ``noise`` is the standard deviation of Gaussian noise.

    Raises ``ValueError`` for a value out of range.
    """

    types: int = 6
    cue: float = 0.85
    jitter: int = 0
    apart: int = 2
    cue_amplitude: float = 2.0
    noise: float = 0.2

    def __post_init__(self) -> None:
        room = (CELL - GLYPH) // 2
        in_range(self, types=(2, 1000), cue=(0, 1), jitter=(0, room), apart=(1, CELLS - 1))
        in_range(self, cue_amplitude=(0, 100), noise=(0, 100))

    def draw(self, n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """``n`` new images ``[n, 1, 28, 28]`` in float32 and their labels ``[n]`` in int64, on the stream's device."""
        device = stream.device

        def integers(bound: int, *shape: int) -> Tensor:
            return torch.randint(bound, shape, generator=stream, device=device)

        labels = integers(2, n)
        first = integers(self.types, n)
        second = (first + (1 - labels) * (1 + integers(self.types - 1, n))) % self.types
        pairs = torch.tensor(cell_pairs(self.apart), device=device)[integers(len(cell_pairs(self.apart)), n)]
        images = torch.zeros(n, SIDE, SIDE, device=device)
        shapes = glyphs(self.types).to(device)
        for which, kind in enumerate((first, second)):
            cell = pairs[:, which]
            corner = torch.stack([cell // CELLS, cell % CELLS], dim=1) * CELL + (CELL - GLYPH) // 2
            _stamp(images, shapes[kind], corner + integers(2 * self.jitter + 1, n, 2) - self.jitter)
        if self.cue_amplitude:
            agrees = torch.rand(n, generator=stream, device=device, dtype=torch.float64) < self.cue
            plus = labels.bool() == agrees
            motif = self.cue_amplitude * motifs().to(device)
            _stamp(images, motif[plus.long()], integers(SIDE - CUE + 1, n, 2))
        if self.noise:
            images += self.noise * torch.randn(images.shape, generator=stream, device=device)
        return images[:, None], labels


def same_different(
    task: SameDifferent, n: int, seed: int, *names: object, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """``n`` images and labels from the stream ``names`` (train, test, ...) of ``seed``; see `SameDifferent.draw`."""
    return task.draw(n, generator(seed, "same_different", *names, device=device))


def _stamp(images: Tensor, shapes: Tensor, corners: Tensor) -> None:
    """Add shape i ``[k, k]`` to image i with its upper left pixel at ``corners[i]`` = (row, column)."""
    along = torch.arange(shapes.shape[1], device=images.device)
    rows, columns = corners[:, :1] + along, corners[:, 1:] + along
    images[torch.arange(len(images), device=images.device)[:, None, None], rows[:, :, None], columns[:, None]] += shapes


def glyphs(types: int) -> Tensor:
    """The first ``types`` glyphs, ``[types, 5, 5]`` of 0 and 1: random, all different, the same in every run."""
    stream = generator(0, "glyphs")
    found: dict[tuple[int, ...], None] = {}
    while len(found) < types:
        lit = torch.randperm(GLYPH**2, generator=stream)[:INK]
        found[tuple(sorted(lit.tolist()))] = None
    shapes = torch.zeros(types, GLYPH**2)
    for shape, lit_pixels in zip(shapes, found, strict=True):
        shape[list(lit_pixels)] = 1
    return shapes.view(types, GLYPH, GLYPH)


def motifs() -> Tensor:
    """Cross and plus, ``[2, 3, 3]``: five lit pixels each."""
    cross = torch.eye(CUE).maximum(torch.eye(CUE).flip(1))
    plus = torch.zeros(CUE, CUE)
    plus[CUE // 2] = plus[:, CUE // 2] = 1
    return torch.stack([cross, plus])


def cell_pairs(apart: int) -> list[tuple[int, int]]:
    """Ordered pairs of cells (counted row by row) that are at least ``apart`` rows or columns from each other."""
    cells = range(CELLS**2)
    return [
        (a, b) for a in cells for b in cells if max(abs(a // CELLS - b // CELLS), abs(a % CELLS - b % CELLS)) >= apart
    ]
