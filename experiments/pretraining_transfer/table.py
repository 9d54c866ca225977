"""pretraining_transfer: on what and how much models are pre-trained before they learn other classes from few images.

Documents 000, 002 and 004: trained on enough data, attention overtakes convolution; the data of that statement are
those of pre-training. The rows are read in ``reading.py``.
"""

import math
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.theory.image_models import PRESETS

NAME = "pretraining_transfer"
AXES = ("data", "model", "pretraining", "n_pre", "n_fine", "rate_factor")
# Scale full pre-trains on more images and by more ways; what a cell of scale cpu measures is the same at every scale.
NESTED = True

PRETRAININGS = ("none", "supervised", "glyphs", "masked")
FAMILIES = ("cnn", "vit")
# Rough CPU seconds of one step of 64 images, and of reading 1 000 images.
SECONDS = {"cnn": (0.011, 0.05), "vit": (0.0075, 0.04)}


@dataclass
class Params:
    """What one cell pre-trains and fine-tunes; see the YAML for each key."""

    model: str
    pretraining: str
    n_pre: int
    n_fine: list[int]
    pre_classes: list[int]
    fine_classes: list[int]
    updates: int
    passes: int
    fine_updates: int
    evaluations: int
    most_updates: int | None
    batch_size: int
    rate_factors: list[float]
    glyph_types: int
    mask_share: float
    decoder_dim: int
    decoder_depth: int
    tuned_at: list[int]
    learning_rate: list[float]
    weight_decay: list[float]
    n_validation: int | None
    n_test: int | None

    def __post_init__(self) -> None:
        one_of(self, model=tuple(name for name in PRESETS if PRESETS[name][0] in FAMILIES), pretraining=PRETRAININGS)
        in_range(self, n_pre=(0, 1e9), n_fine=(1, 1e9), pre_classes=(0, 1e6), fine_classes=(0, 1e6))
        in_range(self, updates=(1, 1e9), passes=(0, 1e6), fine_updates=(1, 1e9), evaluations=(1, 1e6))
        in_range(self, most_updates=(1, 1e9), batch_size=(1, 1e6), rate_factors=(1e-6, 1e6), glyph_types=(2, 1000))
        in_range(self, mask_share=(0, 1), decoder_dim=(4, 1e6), decoder_depth=(1, 100), tuned_at=(1, 1e9))
        in_range(self, learning_rate=(1e-9, 100), weight_decay=(0, 100), n_validation=(1, 1e9), n_test=(1, 1e9))
        distinct(self, "n_fine", "pre_classes", "fine_classes", "rate_factors", "tuned_at")
        if both := set(self.pre_classes) & set(self.fine_classes):
            raise ValueError(f"fine_classes={self.fine_classes} must not hold {min(both)}, which is in pre_classes")
        if len(self.fine_classes) < 2 or len(self.pre_classes) < 2:
            raise ValueError(
                f"pre_classes={self.pre_classes} and fine_classes={self.fine_classes} must be two or more each"
            )
        if (self.pretraining == "none") != (self.n_pre == 0):
            raise ValueError(
                f"n_pre={self.n_pre} must be 0 for pretraining=none and above 0 for pretraining={self.pretraining}"
            )
        if self.pretraining == "masked" and PRESETS[self.model][0] != "vit":
            raise ValueError(f"pretraining=masked must be given to a ViT, not to model={self.model}")
        if self.decoder_dim % 4:
            raise ValueError(f"decoder_dim={self.decoder_dim} must be a multiple of 4")
        if not len(self.tuned_at) == len(self.learning_rate) == len(self.weight_decay):
            raise ValueError(
                f"learning_rate={self.learning_rate} and weight_decay={self.weight_decay} must have a value for each of"
                f" tuned_at={self.tuned_at}"
            )

    def rates(self, n: int) -> tuple[float, float]:
        """Learning rate and weight decay that were chosen for ``n`` images."""
        sizes = [size for size in self.tuned_at if size <= n]
        index = self.tuned_at.index(max(sizes, default=min(self.tuned_at)))
        return self.learning_rate[index], self.weight_decay[index]

    def pre_steps(self) -> int:
        """Updates of pre-training: at least ``updates``, and ``passes`` over the images."""
        return self._cut(max(self.updates, self.passes * math.ceil(self.n_pre / self.batch_size)))

    def fine_steps(self) -> tuple[int, int]:
        """Updates and evaluations of fine-tuning, evenly spaced."""
        steps = self.evaluations * math.ceil(self.fine_updates / self.evaluations)
        cut = self._cut(steps)
        return cut, self.evaluations if cut == steps else 1

    def _cut(self, steps: int) -> int:
        return min(steps, self.most_updates or steps)


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    step, thousand = SECONDS[PRESETS[p.model][0]]
    validation, test = min(2.5, (p.n_validation or math.inf) / 1000), min(5.0, (p.n_test or math.inf) / 1000)
    pre = 0.0 if p.pretraining == "none" else p.pre_steps() * step * _share(p, p.n_pre) + validation * thousand
    steps, evaluations = p.fine_steps()
    fine = [steps * step * _share(p, n) + (evaluations * validation + 2 * test) * thousand for n in p.n_fine]
    return 0.5 + len(cell.seeds) * (0.2 + pre + len(p.rate_factors) * sum(fine))


def _share(p: Params, n: int) -> float:
    """Time of a step on a batch of all ``n`` images, where there are few."""
    return max(min(n, p.batch_size) / 64, 0.3)
