"""Trained image classifiers as rows: what tables on images share."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnrepro.config import DataConfig
from attnrepro.data.batches import Standardiser
from attnrepro.data.images import Splits, load
from attnrepro.data.imageset import ImageSet
from attnrepro.nn.presets import seeded_model
from attnrepro.results.rows import Row
from attnrepro.theory.image_models import PRESETS, ImageShape
from attnrepro.training.classifier import Classifier
from attnrepro.training.image_data import Augment, ImageData, Member, Split
from attnrepro.training.measurement import Job
from attnrepro.training.recipe import Recipe

Axes = Mapping[str, object]


@dataclass(frozen=True)
class Fit:
    """Models of one kind, one a seed, trained by one recipe.

    Args:
        model: a preset of ``attnrepro.theory.image_models``; ``settings`` take the place of the preset's.
        image_shape: channels, height and width of what the model reads.
        num_classes: logits.
        recipe: how they are trained.
        members: data of each seed; `Member.seed` is the seed of its rows.
        axes: of every row.
        test_axes: further axes of the rows of each test set, by its name; a name that is missing has none.
        augment: changes training batches.
        data_sha256: checksum of the images, for ``run.json``.
    """

    model: str
    image_shape: ImageShape
    num_classes: int
    recipe: Recipe
    members: Sequence[Member]
    axes: Axes
    test_axes: Mapping[str, Axes] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    augment: Augment | None = None
    data_sha256: str = ""
    compiled: bool = False

    @property
    def family(self) -> str:
        """Family of the model, as in ``attnrepro.nn.presets.FAMILIES``."""
        return PRESETS[self.model][0]

    def jobs(self) -> list[Job]:
        """One fit for all MLPs, whose seeds train side by side; one a seed for any other model."""
        parts = [list(self.members)] if self.family == "mlp" else [[member] for member in self.members]
        return [self._job(part) for part in parts]

    def _job(self, members: list[Member]) -> Job:
        data = ImageData(members, self.num_classes, self.recipe, augment=self.augment)
        tested = data if members[0].tests else None
        return Job(Trained(self, members), test=tested, fit=data, max_steps=self.recipe.steps)


class Trained(Classifier):
    """A part of a `Fit`, which ends with rows of every test set and both checkpoints.

    ``accuracy`` and ``loss`` are those of the checkpoint with the best validation accuracy, ``last_accuracy`` and
    ``last_loss`` those after the last step; ``validation_accuracy`` belongs to the best one, and ``best_step`` and
    ``last_step`` say when they were taken.
    """

    def __init__(self, fit: Fit, members: Sequence[Member]) -> None:
        seeds = [member.seed for member in members]
        super().__init__(
            [seeded_model(seed, fit.model, fit.image_shape, fit.num_classes, **fit.settings) for seed in seeds],
            fit.recipe,
            seed=seeds[0],
            channels_last=fit.family.startswith("cnn"),
            compiled=fit.compiled,
            label="" if len(members) == len(fit.members) else f"/seed {seeds[0]}",
        )
        self.seeds = seeds
        self.data_sha256 = fit.data_sha256
        self._axes, self._test_axes = fit.axes, fit.test_axes

    def rows(self) -> list[Row]:
        """Rows seed by seed. A seed that ever diverged has failed, whatever its best checkpoint can do."""
        outcomes, diverged = self.outcomes(), self.diverged.tolist()
        rows = []
        for index, seed in enumerate(self.seeds):
            found: list[tuple[str, float, Axes]] = []
            for outcome in outcomes:
                if outcome.member == index:
                    axes = self._test_axes.get(outcome.test, {})
                    prefix = "" if outcome.checkpoint == "best" else "last_"
                    found += [(f"{prefix}accuracy", outcome.accuracy, axes), (f"{prefix}loss", outcome.loss, axes)]
            found.append(("validation_accuracy", self.checkpoints.best_accuracy[index].item(), {}))
            found += [(f"{name}_step", steps[index].item(), {}) for name, steps in self.checkpoints.steps.items()]
            for quantity, value, axes in found:
                sound = math.isfinite(value) and not diverged[index]
                rows.append(
                    Row(
                        quantity,
                        value if math.isfinite(value) else math.nan,
                        {**self._axes, **axes},
                        statistic="mean",
                        unit="nat" if quantity.endswith("loss") else "",
                        seed=seed,
                        n=1,
                        status="ok" if sound else "failed: diverged",
                    )
                )
        return rows


def splits(data: DataConfig) -> Splits:
    """`attnrepro.data.images.load`, once in a process for the cells that follow each other.

    Raises what it raises.
    """
    return _splits(json.dumps(dataclasses.asdict(data), sort_keys=True))


@functools.lru_cache(maxsize=1)
def _splits(data: str) -> Splits:
    return load(DataConfig(**json.loads(data)))


def part(images: ImageSet, most: int | None = None) -> Split:
    """Images and labels, the first ``most`` of them where that is given (scale smoke)."""
    return Split(images.images[:most], images.labels[:most])


def member(
    seed: int,
    train: ImageSet,
    validation: Split,
    tests: dict[str, Split],
    transform: Callable[[Tensor], Tensor] | None = None,
) -> Member:
    """Data of a seed, standardised by the mean and deviation of its training images.

    ``transform`` changes a batch of any split first (a permutation of pixels, say), after augmentation.
    """
    standardise = Standardiser.fit(train)

    def prepare(images: Tensor) -> Tensor:
        return standardise(images if transform is None else transform(images))

    return Member(seed, part(train), validation, tests, prepare)
