"""predecessor_global_context: what blocks of Document 004's section 3 add to a CNN of local windows, by budget.

The tasks are `attnrepro.data.same_different` without a cue and `attnrepro.data.far_cue`. The rows are read in
``reading.py``.
"""

from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import far_cue, same_different

NAME = "predecessor_global_context"
AXES = ("task", "readout", "block", "updates", "learning_rate")
# Scale full trains more blocks and seeds; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("curves", "tuning", "anchors")
TASKS = ("same_different", "far_cue")
READOUTS = ("linear", "hidden")
BLOCKS = (
    *("none", "global_average", "squeeze_excitation", "global_context", "non_local", "non_local_pooled", "sagan"),
    *("criss_cross_1", "criss_cross_2", "relation", "swin", "multi_head"),
)
# Blocks that add one vector to all places, or none: with a linear read-out nothing compares a place with another one.
QUERY_INDEPENDENT = ("none", "global_average", "global_context", "relation")
LOCAL = ("none",)
# Blocks whose anchors are measured: all but those that do not link every two places (one criss-cross pass, windows).
ANCHORED = tuple(block for block in BLOCKS if block not in ("criss_cross_1", "swin"))
# Side of the windows that places see (`attnrepro.nn.block_cnn.WINDOW`), and pixels that cells are moved apart by, so
# that each is two places wide.
WINDOW, MORE = 9, 1
# Rough CPU seconds of one update of 64 images.
SECONDS = {"multi_head": 0.014, "swin": 0.025, "relation": 0.04}
OTHERS = 0.008


@dataclass
class Params:
    """What one cell trains; see the YAML for each key."""

    study: str
    task: str
    readout: str
    block: str
    budget: int
    budgets: int
    every: int
    most_updates: int | None
    batch_size: int
    warmup: int
    learning_rate: list[float]
    weight_decay: float
    types: int
    apart: int
    noise: float
    pairs: int
    n_validation: int
    n_test: int
    sides: list[int]
    draws: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, task=TASKS, readout=READOUTS, block=BLOCKS)
        in_range(self, budget=(10, 1e9), budgets=(1, 100), every=(10, 1e9), most_updates=(10, 1e9))
        in_range(self, batch_size=(1, 1e6), warmup=(1, 1e9), learning_rate=(1e-9, 100), weight_decay=(0, 100))
        in_range(self, types=(2, 1000), apart=(1, same_different.CELLS - 1), noise=(0, 100), pairs=(1, 4))
        in_range(self, n_validation=(1, 1e7), n_test=(1, 1e7), sides=(2 * WINDOW, 1024), draws=(1, 1e6))
        distinct(self, "learning_rate", "sides")
        if self.every % 10 or self.budget % self.every:
            raise ValueError(f"every={self.every} must be a multiple of 10 that divides budget={self.budget}")
        if self.task == "same_different" and self.readout != "linear":
            raise ValueError(f"readout={self.readout} must be linear for task=same_different: it reads the mean")
        if self.study != "tuning" and len(self.learning_rate) > 1:
            raise ValueError(f"learning_rate={self.learning_rate} must be one value unless study=tuning")
        if any(side % (2 * 4) for side in self.sides):
            raise ValueError(f"sides={self.sides} must be multiples of 8")

    def updates(self) -> int:
        """Updates of every training."""
        whole = self.budget * self.budgets
        return whole if self.most_updates is None else min(whole, self.most_updates)

    def look_every(self) -> int:
        """Updates between two looks at the test images."""
        return min(self.every, self.updates())


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    if p.study == "anchors":
        return 1.0 + 0.02 * p.draws * len(p.sides)
    update = SECONDS.get(p.block, OTHERS)
    looked = (p.n_validation if p.study == "tuning" else p.n_test) / 64 / 3
    looks = p.updates() / p.look_every() + 1
    return 0.3 + len(cell.seeds) * len(p.learning_rate) * update * (p.updates() + looks * looked)


def theory(cell: Cell) -> list[Row]:
    """What no local sum (or query-independent read-out of places) goes below in loss, or exceeds in accuracy."""
    return theory_of(cell.params) if cell.params.study == "curves" else []


def theory_of(p: Params) -> list[Row]:
    """`theory` of parameters."""
    if p.task == "far_cue":
        found = (far_cue.least_query_independent_loss(), far_cue.query_independent_bound())
    else:
        # A cue that is not there is one that is right half of the time.
        found = (same_different.least_cross_entropy(0.5), same_different.accuracy_bound(0.5, p.types))
    axes = {"task": p.task}
    return [
        Row("least_local_loss", found[0], axes, source="theory", statistic="exact", unit="nat"),
        Row("local_accuracy_bound", found[1], axes, source="theory", statistic="exact"),
    ]
