"""long_range_relation: what is trained to tell whether two glyphs far apart are alike, and what local sums can reach.

Documents 000, 002 and 004: convolution wins on little data, attention when data are plentiful. The rows are read in
``reading.py``; the task is `attnrepro.data.same_different`.
"""

import itertools
import math
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import same_different

NAME = "long_range_relation"
AXES = ("model", "grid", "cue", "jitter", "n_train", "types", "learning_rate", "weight_decay")
# Scale full trains on more strengths, sizes and seeds; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("curves", "tuning", "additivity")
MODELS = ("cnn_additive", "cnn", "vit_patch7", "mlp")
GRIDS = ("aligned", "shifted")
# Side of the windows that the additive CNN adds up (`attnrepro.nn.cnn.AdditiveCNN`).
WINDOW = 9
# Two glyph-sized changes share no window of that side when their upper rows lie this far apart.
FREE_ROWS = same_different.GLYPH + WINDOW - 1
# Rough CPU seconds of one step of 64 images, and of reading 1 000 images.
SECONDS = {"cnn_additive": (0.0065, 0.06), "cnn": (0.0105, 0.06), "vit_patch7": (0.0085, 0.045), "mlp": (0.0006, 0.003)}


@dataclass
class Params:
    """What one cell trains; see the YAML for each key."""

    study: str
    model: str
    grid: str
    shift: int
    cue: float
    jitter: int
    n_train: int
    types: int
    apart: int
    cue_amplitude: float
    noise: float
    additive_widths: list[int]
    updates: int
    passes: int
    evaluations: int
    most_updates: int | None
    batch_size: int
    learning_rate: list[float]
    weight_decay: list[float]
    n_validation: int
    n_test: int
    sides: list[int]
    draws: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, model=MODELS, grid=GRIDS)
        cells, side, room = same_different.CELLS, same_different.SIDE, same_different.CELL - same_different.GLYPH
        in_range(self, shift=(0, side - 1), cue=(0, 1), jitter=(0, room // 2), n_train=(1, 1e7), types=(2, 1000))
        in_range(self, apart=(1, cells - 1), cue_amplitude=(0, 100), noise=(0, 100), additive_widths=(1, 4096))
        in_range(self, updates=(1, 1e9), passes=(0, 1e6), evaluations=(1, 1e6), most_updates=(1, 1e9))
        in_range(self, batch_size=(1, 1e6), learning_rate=(1e-9, 100), weight_decay=(0, 100))
        in_range(self, n_validation=(1, 1e7), n_test=(1, 1e7), sides=(FREE_ROWS + same_different.GLYPH, 1024))
        in_range(self, draws=(1, 1e6))
        distinct(self, "learning_rate", "weight_decay", "sides")
        if len(self.additive_widths) != 2:
            raise ValueError(f"additive_widths={self.additive_widths} must be two numbers of channels")
        if any(side % same_different.CELL for side in self.sides):
            raise ValueError(f"sides={self.sides} must be multiples of the patch, {same_different.CELL}")
        if self.study != "tuning" and len(self.rates()) > 1:
            raise ValueError(
                f"learning_rate={self.learning_rate} and weight_decay={self.weight_decay} must be one value each"
                " unless study=tuning"
            )
        widest = same_different.widest_window(self.apart, self.jitter)
        if widest < WINDOW:
            raise ValueError(
                f"apart={self.apart} must keep the glyphs further apart at jitter={self.jitter}: a window of {WINDOW}"
                f" pixels may touch both, up to {widest} may not"
            )

    def rates(self) -> list[tuple[float, float]]:
        """Learning rate and weight decay of every training."""
        return list(itertools.product(self.learning_rate, self.weight_decay))

    def steps(self) -> int:
        """Updates that every model gets: at least ``updates``, and ``passes`` over the images; whole evaluations."""
        steps = max(self.updates, self.passes * math.ceil(self.n_train / self.batch_size))
        return self.evaluations * math.ceil(steps / self.evaluations)


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    if p.study == "additivity":
        return 1.0 + 0.02 * p.draws * len(p.sides)
    step, thousand = SECONDS[p.model]
    steps = min(p.steps(), p.most_updates or p.steps())
    # Both checkpoints are tested.
    read = p.evaluations * p.n_validation + (0 if p.study == "tuning" else 2 * p.n_test)
    batch = max(min(p.n_train, p.batch_size) / 64, 0.3)
    drawn = 2e-6 * (p.n_train + p.n_validation + p.n_test)
    return 0.3 + len(cell.seeds) * (drawn + len(p.rates()) * (steps * step * batch + read / 1000 * thousand + 0.05))


def theory(cell: Cell) -> list[Row]:
    """What the cue alone gives, in accuracy and cross-entropy, and what no sum over local windows can exceed.

    The first two are what training an additive read-out aims at; its accuracy may lie above the cue's, up to the bound.
    """
    p = cell.params
    if p.study != "curves":
        return []
    found = {
        "cue_accuracy": (same_different.cue_accuracy(p.cue), ""),
        "least_additive_loss": (same_different.least_cross_entropy(p.cue), "nat"),
        # Of one seed's test images, which its own draws are.
        "cue_accuracy_se": (math.sqrt(p.cue * (1 - p.cue) / p.n_test), ""),
        "accuracy_bound": (same_different.accuracy_bound(p.cue, p.types), ""),
    }
    axes = {"cue": p.cue, "types": p.types}
    return [
        Row(quantity, value, axes, source="theory", statistic="exact", unit=unit)
        for quantity, (value, unit) in found.items()
    ]
