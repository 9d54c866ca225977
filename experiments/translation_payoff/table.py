"""translation_payoff: what is trained on images that stand still or move, and at which places and sizes it is tested.

Document 004, section 5.1: a CNN is insensitive to translation and needs less data; its equivariance is worth
augmentation. The rows are read in ``reading.py``.
"""

import math
import re
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.theory.image_models import PRESETS, STEM_STRIDE

NAME = "translation_payoff"
AXES = ("data", "model", "training", "n_train", "shift", "object_scale")
# Scale full trains on more sizes and seeds; a cell of scale cpu is the same at every scale.
NESTED = True

TRAININGS = ("centred", "shifted_once", "augmented")
# Rough CPU seconds of one step of 64 images, and of reading 1 000 images.
SECONDS = {"cnn": (0.011, 0.05), "cnn_circular": (0.023, 0.14), "vit_patch7": (0.0075, 0.04), "mlp": (0.0005, 0.002)}


@dataclass
class Params:
    """What one cell trains; see the YAML for each key."""

    study: str
    model: str
    training: str
    n_train: int
    margin: int
    object_scales: list[float]
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
    canvases: list[str]
    draws: int

    def __post_init__(self) -> None:
        one_of(self, study=("training", "symmetry"), model=tuple(PRESETS), training=TRAININGS)
        in_range(self, n_train=(1, 1e9), margin=(1, 64), object_scales=(0.1, 10), updates=(1, 1e9), passes=(0, 1e6))
        in_range(self, evaluations=(1, 1e6), most_updates=(1, 1e9), batch_size=(1, 1e6), tuned_at=(1, 1e9))
        in_range(self, learning_rate=(1e-9, 100), weight_decay=(0, 100), n_validation=(1, 1e9), n_test=(1, 1e9))
        in_range(self, draws=(1, 10**6))
        distinct(self, "object_scales", "tuned_at", "canvases")
        if not len(self.tuned_at) == len(self.learning_rate) == len(self.weight_decay):
            raise ValueError(
                f"learning_rate={self.learning_rate} and weight_decay={self.weight_decay} must have a value for each of"
                f" tuned_at={self.tuned_at}"
            )
        for canvas in self.canvases:
            stride = total_stride("cnn_circular")
            if not re.fullmatch(r"\d{1,3}x\d{1,3}", canvas) or any(s % stride or s <= stride for s in sides(canvas)):
                raise ValueError(
                    f"canvases={canvas} must be height x width, as in 28x28, both multiples of {stride} above it"
                )

    def rates(self) -> tuple[float, float]:
        """Learning rate and weight decay that were chosen for this many images."""
        chosen = [size for size in self.tuned_at if size <= self.n_train]
        index = self.tuned_at.index(max(chosen, default=min(self.tuned_at)))
        return self.learning_rate[index], self.weight_decay[index]

    def steps(self) -> int:
        """Updates: at least ``updates``, and ``passes`` over the images; whole evaluations, if there is time."""
        steps = max(self.updates, self.passes * math.ceil(self.n_train / self.batch_size))
        steps = self.evaluations * math.ceil(steps / self.evaluations)
        return min(steps, self.most_updates or steps)


def sides(canvas: str) -> tuple[int, int]:
    """Height and width of a canvas such as ``28x28``."""
    height, width = map(int, canvas.split("x"))
    return height, width


def total_stride(model: str) -> int:
    """Pixels between neighbours in the last map of a CNN."""
    return STEM_STRIDE * math.prod(PRESETS[model][1]["strides"])


def object_side(side: int, margin: int, object_scale: float = 1.0) -> int:
    """Side of the object in the middle of a canvas of ``side`` pixels, ``object_scale`` times what the margin leaves.

    Raises ``ValueError`` unless it has a whole number of pixels and as many on either side of it.
    """
    exact = (side - 2 * margin) * object_scale
    found = round(exact)
    if not 0 < found <= side or abs(found - exact) > 1e-6 or (side - found) % 2:
        raise ValueError(
            f"object_scales={object_scale:g} must give an object of whole pixels in the middle of {side}, not {exact:g}"
        )
    return found


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    if p.study == "symmetry":
        return 1.0 + 0.03 * p.draws * len(p.canvases)
    step, thousand = SECONDS.get(p.model, SECONDS["cnn_circular"])
    read = p.evaluations * min(5.0, (p.n_validation or math.inf) / 1000)
    read += (1 + p.margin + len(p.object_scales)) * min(10.0, (p.n_test or math.inf) / 1000)
    batch = min(p.n_train, p.batch_size) / 64
    return 0.5 + len(cell.seeds) * (p.steps() * step * max(batch, 0.3) + read * thousand + 0.1)
