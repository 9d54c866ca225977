"""prior_validity: models trained on images whose pixels or patches were moved, and symmetries that hold exactly.

A fixed permutation keeps every bit of an image and takes away what a convolution assumes about it. The rows are read
in ``reading.py``.
"""

import math
import re
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.theory.image_models import PRESETS, ImageShape, patch_grid

NAME = "prior_validity"
AXES = (
    *("data", "model", "position", "against", "permutation", "n_train"),
    *("anchor", "shape", "image", "row", "column"),
)
# Scale full trains more models on more images; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("training", "anchors", "maps")
POSITIONS = ("learned", "none")
# Anchors that are no symmetries: position rows that stay where they were, and a kernel on moved pixels.
BREAKERS = ("vit_fixed_positions", "cnn_pixels")
# Rough CPU seconds of one step of 64 images, and of reading 1 000 images.
SECONDS = {"cnn": (0.0102, 0.048), "vit": (0.007, 0.037), "mlp": (0.0005, 0.002)}


@dataclass
class Params:
    """What one cell trains or draws; see the YAML for each key."""

    study: str
    model: str
    position: str
    permutation: str
    n_train: int
    updates: int
    passes: int
    evaluations: int
    most_updates: int | None
    batch_size: int
    tuned_at: list[int]
    learning_rate: list[float]
    weight_decay: list[float]
    n_validation: int | None
    n_test: int | None
    shapes: list[str]
    draws: int
    images: list[int]
    map_updates: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, model=tuple(PRESETS), position=POSITIONS)
        in_range(self, n_train=(1, 1e9), updates=(1, 1e9), passes=(0, 1e6), evaluations=(1, 1e6), most_updates=(1, 1e9))
        in_range(self, batch_size=(1, 1e6), learning_rate=(1e-9, 100), weight_decay=(0, 100), tuned_at=(1, 1e9))
        in_range(self, n_validation=(1, 1e9), n_test=(1, 1e9), draws=(1, 1e6), images=(0, 1e9), map_updates=(1, 1e9))
        distinct(self, "tuned_at", "shapes", "images")
        if not len(self.tuned_at) == len(self.learning_rate) == len(self.weight_decay):
            raise ValueError(
                f"learning_rate={self.learning_rate} and weight_decay={self.weight_decay} must have a value for each of"
                f" tuned_at={self.tuned_at}"
            )
        if not re.fullmatch(r"none|pixel|patch[1-9]\d?", self.permutation):
            raise ValueError(f"permutation={self.permutation} must be none, pixel, or patch and a side, as in patch7")
        if self.position == "none" and PRESETS[self.model][0] != "vit":
            raise ValueError(f"position=none must be given to a ViT, not to model={self.model}")
        if self.study == "maps" and (PRESETS[self.model][0] != "vit" or self.permutation == "none"):
            raise ValueError(
                f"model={self.model} and permutation={self.permutation} must be a ViT and a permutation for study=maps"
            )
        for shape in self.shapes:
            _check_shape(shape)

    def rates(self) -> tuple[float, float]:
        """Learning rate and weight decay that were chosen for this many images."""
        sizes = [size for size in self.tuned_at if size <= self.n_train]
        index = self.tuned_at.index(max(sizes, default=min(self.tuned_at)))
        return self.learning_rate[index], self.weight_decay[index]

    def steps(self) -> tuple[int, int]:
        """Updates and evaluations: at least ``updates`` and ``passes`` over the images; for maps ``map_updates``."""
        if self.study == "maps":
            steps, evaluations = self.map_updates, 1
        else:
            least = max(self.updates, self.passes * math.ceil(self.n_train / self.batch_size))
            steps, evaluations = self.evaluations * math.ceil(least / self.evaluations), self.evaluations
        if self.most_updates is not None and steps > self.most_updates:
            return self.most_updates, 1
        return steps, evaluations


def _check_shape(shape: str) -> None:
    if not re.fullmatch(r"[1-9]\d?x[1-9]\d{0,2}x[1-9]\d{0,2}x[1-9]\d?", shape):
        raise ValueError(f"shapes={shape} must be channels x height x width x patch, as in 1x28x28x7")
    rows, columns = patch_grid(*sizes(shape))
    if rows * columns < 4:
        raise ValueError(f"shapes={shape} must have 4 patches or more")


def sizes(shape: str) -> tuple[ImageShape, int]:
    """Image shape and patch of a shape such as ``1x28x28x7``."""
    channels, height, width, patch = map(int, shape.split("x"))
    return (channels, height, width), patch


def moved_side(permutation: str) -> int | None:
    """Side of the patches that a permutation moves; None where nothing moves."""
    if permutation == "none":
        return None
    return 1 if permutation == "pixel" else int(permutation.removeprefix("patch"))


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    if p.study == "anchors":
        return 0.5 + 0.02 * p.draws * len(p.shapes)
    step, thousand = SECONDS.get(PRESETS[p.model][0], SECONDS["cnn"])
    steps, evaluations = p.steps()
    validation, test = (0.3, 1.0) if cell.data.name == "digits" else (5, 20)
    read = evaluations * min(validation, (p.n_validation or 1e9) / 1000)
    read += 0 if p.study == "maps" else min(test, (p.n_test or 1e9) / 500)
    trained = 2 if p.study == "maps" else len(cell.seeds)
    return 0.5 + trained * (steps * step * max(min(p.n_train, p.batch_size) / 64, 0.3) + read * thousand + 0.1)
