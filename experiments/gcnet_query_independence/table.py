"""gcnet_query_independence: how much attention maps of trained Non-local blocks differ between queries.

Document 004, section 3.3. The rows are read in ``reading.py``.
"""

from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import same_different

NAME = "gcnet_query_independence"
AXES = (
    *("task", "readout", "block", "phase", "form", "shape", "learning_rate"),
    *("image", "query", "row", "column"),
)
# Scale full trains more kinds of blocks; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("maps", "tuning", "formula")
TASKS = ("same_different", "far_cue", "fashion_mnist")
BLOCKS = (
    *("none", "global_context", "non_local", "non_local_gaussian", "non_local_dot_product"),
    "non_local_concatenation",
)
FORMS = ("as_printed", "paper")
# Pixels that the cells of same_different are moved apart by, so that each is two places wide.
MORE = 1
# The pictures: of a seed that is fixed beforehand, on photographs, the first test image of so many classes.
PICTURED_SEED, PICTURED_BLOCKS, PICTURED = 0, ("non_local", "global_context"), 3
# Queries whose maps are shown: how far down and across they lie.
QUERIES = {"upper left": 0.25, "centre": 0.5, "lower right": 0.75}
# The query of a map that all share.
EVERY = "all queries"


@dataclass
class Params:
    """What one cell trains or computes; see the YAML for each key."""

    study: str
    task: str
    block: str
    updates: int
    most_updates: int | None
    batch_size: int
    warmup: int
    learning_rate: list[float]
    weight_decay: float
    types: int
    apart: int
    noise: float
    pairs: int
    n_test: int
    n_validation: int
    n_maps: int
    shapes: list[str]
    draws: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, task=TASKS, block=BLOCKS)
        in_range(self, updates=(10, 1e9), most_updates=(10, 1e9), batch_size=(1, 1e6), warmup=(1, 1e9))
        in_range(self, learning_rate=(1e-9, 100), weight_decay=(0, 100), types=(2, 1000), noise=(0, 100), pairs=(1, 4))
        in_range(self, apart=(1, same_different.CELLS - 1), n_test=(1, 1e7), n_validation=(1, 1e7), n_maps=(1, 1e6))
        in_range(self, draws=(1, 1e6))
        distinct(self, "learning_rate", "shapes")
        if self.updates % 10:
            raise ValueError(f"updates={self.updates} must be a multiple of 10")
        if self.study != "tuning" and len(self.learning_rate) > 1:
            raise ValueError(f"learning_rate={self.learning_rate} must be one value unless study=tuning")
        for shape in self.shapes:
            sizes(shape)

    def steps(self) -> int:
        """Updates of every training."""
        return self.updates if self.most_updates is None else min(self.updates, self.most_updates)

    def readout(self) -> str:
        """What the logits are read from: each place, or the mean of all."""
        return "places" if self.task == "far_cue" else "mean"


def sizes(shape: str) -> tuple[int, int, int]:
    """Channels, height and width of a shape such as 16x7x9.

    Raises:
        ValueError: another text, or fewer than 12 channels (a quarter of them, 3 or more, are normed).
    """
    parts = shape.split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts) or int(parts[0]) < 12:
        raise ValueError(f"shapes={shape} must be channels x height x width, as in 16x7x9, with 12 channels or more")
    channels, height, width = map(int, parts)
    return channels, height, width


def places(height: int, width: int) -> dict[str, tuple[int, int]]:
    """Row and column of each of `QUERIES` on a map; 7 x 7: (1, 1), (3, 3) and (5, 5)."""
    return {name: (int(share * height), int(share * width)) for name, share in QUERIES.items()}


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    if p.study == "formula":
        return 1.0 + 0.005 * p.draws * len(p.shapes)
    update = {"none": 0.006, "global_context": 0.007}.get(p.block, 0.011)
    read = p.n_validation if p.study == "tuning" else 2 * p.n_test
    return 0.3 + len(cell.seeds) * len(p.learning_rate) * update * (p.steps() + read / 64 / 3)


def theory(cell: Cell) -> list[Row]:
    """As printed, the weights cancel: they have no effect."""
    if cell.params.study != "formula":
        return []
    return [Row("weights_effect", 0.0, {"form": "as_printed"}, source="theory", statistic="exact")]
