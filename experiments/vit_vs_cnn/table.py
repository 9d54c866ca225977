"""vit_vs_cnn: what is trained on how many images, and what it costs on paper.

Documents 000, 002 and 004: convolution wins on little data, attention when data are plentiful. The rows are read in
``reading.py``.
"""

import contextlib
import itertools
import math
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory.image_models import PRESETS, Cost, ImageShape, cost

NAME = "vit_vs_cnn"
AXES = ("data", "model", "augmentation", "recipe", "n_train", "learning_rate", "weight_decay")
# Scale full trains more models on more images; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("curves", "tuning", "cost")
RECIPES = ("equal_updates", "convergence")
AUGMENTATIONS = ("none", "shift", "shift_flip")
# Channels, height, width and classes of sets whose shape is known before they are read.
SHAPES = {
    "digits": ((1, 8, 8), 10),
    "fashion_mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
# Rough CPU seconds of one step of 64 images, and of reading 1 000 images.
SECONDS = {"cnn": (0.011, 0.05), "vit": (0.0075, 0.04), "mlp": (0.0005, 0.002), "mixer": (0.03, 0.25)}


@dataclass
class Params:
    """What one cell trains; see the YAML for each key."""

    study: str
    model: str
    n_train: int
    augmentation: str
    recipe: str
    updates: int
    passes: int
    evaluations: int
    most_updates: int | None
    batch_size: int
    shift: int
    tuned_at: list[int]
    learning_rate: list[float]
    weight_decay: list[float]
    subset_seed: int | None
    n_validation: int | None
    n_test: int | None
    compiled: bool

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, model=tuple(PRESETS), recipe=RECIPES, augmentation=AUGMENTATIONS)
        in_range(self, n_train=(1, 1e9), updates=(1, 1e9), passes=(0, 1e6), evaluations=(1, 1e6), most_updates=(1, 1e9))
        in_range(self, batch_size=(1, 1e6), shift=(0, 64), learning_rate=(1e-9, 100), weight_decay=(0, 100))
        in_range(self, tuned_at=(1, 1e9), subset_seed=(0, 2**63 - 1), n_validation=(1, 1e9), n_test=(1, 1e9))
        distinct(self, "tuned_at")
        if self.study == "tuning":
            distinct(self, "learning_rate", "weight_decay")
        elif not len(self.tuned_at) == len(self.learning_rate) == len(self.weight_decay):
            raise ValueError(
                f"learning_rate={self.learning_rate} and weight_decay={self.weight_decay} must have a value for each of"
                f" tuned_at={self.tuned_at}"
            )

    def rates(self) -> list[tuple[float, float]]:
        """Learning rate and weight decay of every training: of the grid, or those chosen for this many images."""
        if self.study == "tuning":
            return list(itertools.product(self.learning_rate, self.weight_decay))
        sizes = [size for size in self.tuned_at if size <= self.n_train]
        index = self.tuned_at.index(max(sizes, default=min(self.tuned_at)))
        return [(self.learning_rate[index], self.weight_decay[index])]

    def equal_steps(self) -> int:
        """Updates that every model gets: at least ``updates``, and ``passes`` over the images; whole evaluations."""
        steps = max(self.updates, self.passes * math.ceil(self.n_train / self.batch_size))
        return self.evaluations * math.ceil(steps / self.evaluations)


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    if p.study == "cost":
        return 0.5
    family = PRESETS[p.model][0]
    step, thousand = SECONDS.get(family, SECONDS["cnn"])
    if cell.data.name == "digits" and family == "cnn":
        step, thousand = step / 4, thousand / 10
    if p.recipe == "convergence":
        # Trainings to convergence end after about half of the evaluations that they may take.
        steps, evaluations = max(30 * math.ceil(p.n_train / p.batch_size), 4000) / 2, 15
    else:
        steps, evaluations = p.equal_steps(), p.evaluations
    steps = min(steps, p.most_updates or steps)
    validation, test = (5, 20) if cell.data.name != "digits" else (0.3, 1.0)
    read = evaluations * min(validation, (p.n_validation or 1e9) / 1000)
    read += 0 if p.study == "tuning" else min(test, (p.n_test or 1e9) / 500)
    batch = min(p.n_train, p.batch_size) / 64
    return 0.5 + len(cell.seeds) * len(p.rates()) * (steps * step * max(batch, 0.3) + read * thousand + 0.1)


def theory(cell: Cell) -> list[Row]:
    """Parameters and FLOPs of every preset that fits the images, in closed form."""
    if cell.params.study != "cost" or cell.data.name not in SHAPES:
        return []
    costs = presets(*SHAPES[cell.data.name])
    return [
        Row(name, value, {"data": cell.data.name, "model": model}, source="theory", statistic="exact")
        for model, found in costs.items()
        for name, value in found._asdict().items()
    ]


def presets(image_shape: ImageShape, num_classes: int) -> dict[str, Cost]:
    """Costs of the presets by name, without those that do not fit the images."""
    found = {}
    for model in PRESETS:
        with contextlib.suppress(ValueError):
            found[model] = cost(model, image_shape, num_classes)
    return found
