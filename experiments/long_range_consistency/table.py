"""long_range_consistency: generators that paint a glyph which must agree with one far away, and what they can do.

Document 004, section 3.5, on SAGAN. The task is `attnrepro.data.paired_glyphs`, the generators
`attnrepro.nn.completer`; the rows are read in ``reading.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import long_range_consistency as closed

NAME = "long_range_consistency"
AXES = ("generator", "cells", "updates", "step", "learning_rate")
# Scale full trains longer besides, and tunes; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("training", "tuning", "structure")
GENERATORS = tuple(closed.LAYERS)
# Rough CPU seconds of one update of 64 images.
SECONDS = 0.0075
# A LayerNorm of fewer components inside the mean's link has nothing to say.
LEAST_INNER = 3


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/long_range_consistency.yaml`` says what each means."""

    study: str
    generator: str
    cells: int
    types: int
    noise: float
    width: int
    reduction: int
    updates: int
    every: int
    batch_size: int
    learning_rate: list[float]
    n_test: int
    n_validation: int
    target: float
    sides: list[int]
    draws: int
    n_read: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, generator=GENERATORS)
        in_range(self, cells=(3, 64), types=(2, 1000), noise=(0, 100), width=(1, 1e4), reduction=(1, 1e4))
        in_range(self, updates=(1, 1e9), every=(1, 1e9), batch_size=(1, 1e6), learning_rate=(1e-9, 100))
        in_range(self, n_test=(1, 1e7), n_validation=(1, 1e7), target=(0.01, 1), sides=(3, 64), draws=(1, 1e6))
        in_range(self, n_read=(1, 1e8))
        distinct(self, "learning_rate", "sides")
        if self.updates % self.every:
            raise ValueError(f"every={self.every} must divide updates={self.updates}")
        if self.width // self.reduction < LEAST_INNER:
            raise ValueError(f"reduction={self.reduction} must leave {LEAST_INNER} or more of width={self.width}")
        if self.study != "tuning" and len(self.learning_rate) > 1:
            raise ValueError(f"learning_rate={self.learning_rate} must be one value unless study=tuning")

    def channels(self, generator: str, cells: int) -> int:
        """Channels of a generator on a square of ``cells``."""
        return closed.width_of(generator, self.width, cells, self.reduction)


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    if p.study == "structure":
        return 0.5 + 0.05 * p.draws * len(p.sides) + 2e-5 * p.n_read
    work = p.updates * (0.5 + p.batch_size / 128) * SECONDS + p.updates / p.every * p.n_test * 2e-5
    return 0.3 + len(cell.seeds) * len(p.learning_rate) * work


def theory(cell: Cell) -> list[Row]:
    """Shares of generators that nothing links to the other glyph; costs, and who is linked."""
    p = cell.params
    made = {"training": _training, "structure": _structure}.get(p.study)
    if made is None:
        return []
    return [Row(name, value, axes, source="theory", statistic=kind) for name, kind, value, axes in made(p)]


Made = Iterator[tuple[str, str, float, dict[str, object]]]


def _training(p: Params) -> Made:
    if not closed.is_linked(p.generator, p.cells):
        axes: dict[str, object] = {"generator": p.generator, "cells": p.cells, "updates": p.updates}
        yield "consistency", "mean", closed.best_unlinked_share(p.types), axes


def _structure(p: Params) -> Made:
    for generator in GENERATORS:
        for cells in p.sides:
            axes: dict[str, object] = {"generator": generator, "cells": cells}
            found = closed.cost(generator, p.channels(generator, cells), cells, p.reduction)
            yield "parameters", "exact", found.parameters, axes
            yield "flops", "exact", found.flops, axes
            yield "linked", "exact", closed.is_linked(generator, cells), axes
