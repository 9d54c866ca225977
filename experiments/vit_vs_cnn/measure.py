"""vit_vs_cnn, measured: one model on one number of images, trained, chosen on validation images, tested once."""

import dataclasses

from attnrepro.config import Cell
from attnrepro.data.augment import Augmentation
from attnrepro.data.imageset import ImageSet
from attnrepro.data.subsets import subset
from attnrepro.fetch.download import DataUnavailable
from attnrepro.nn.cost import count
from attnrepro.nn.presets import build_model
from attnrepro.results.rows import Row
from attnrepro.tables.vit_vs_cnn.table import Params, presets
from attnrepro.theory.image_models import ImageShape
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Fit, member, part, splits


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: one a seed, or one for all seeds of an MLP; for tuning, of every pair of rates."""
    p = cell.params
    images = splits(cell.data)
    if p.study == "cost":
        costs = Costs(cell, images.train, images.sha256)
        return [Job(costs, batches(costs.plan()))]
    if p.n_train > len(images.train):
        raise DataUnavailable(f"{images.train.name} has {len(images.train)} training images, not n_train={p.n_train}")
    validation = part(images.validation, p.n_validation)
    tests = {} if p.study == "tuning" else {"test": part(images.test, p.n_test)}
    members = []
    for seed in cell.seeds:
        chosen = subset(images.train, p.n_train, seed if p.subset_seed is None else p.subset_seed)
        members.append(member(seed, chosen.images, validation, tests))
    axes = {
        "data": images.train.name,
        "model": p.model,
        "augmentation": p.augmentation,
        "recipe": p.recipe,
        "n_train": p.n_train,
    }
    jobs = []
    for learning_rate, weight_decay in p.rates():
        tuned = {"learning_rate": learning_rate, "weight_decay": weight_decay} if p.study == "tuning" else {}
        fit = Fit(
            p.model,
            shape_of(images.train),
            len(images.train.classes),
            recipe(p, learning_rate, weight_decay),
            members,
            {**axes, **tuned},
            augment=augmentation(p),
            data_sha256=images.sha256,
            compiled=p.compiled,
        )
        jobs += fit.jobs()
    return jobs


def recipe(p: Params, learning_rate: float, weight_decay: float) -> Recipe:
    """How the cell trains."""
    if p.recipe == "convergence":
        found = Recipe.to_convergence(
            p.n_train, learning_rate=learning_rate, weight_decay=weight_decay, batch_size=p.batch_size
        )
    else:
        found = Recipe(learning_rate, weight_decay, p.equal_steps(), p.evaluations, p.batch_size)
    if p.most_updates is not None and found.steps > p.most_updates:
        found = dataclasses.replace(found, steps=p.most_updates, evaluations=1)
    return found


def augmentation(p: Params) -> Augmentation | None:
    """What is done to training batches."""
    if p.augmentation == "none":
        return None
    return Augmentation(shift=p.shift, flip=p.augmentation == "shift_flip")


class Costs(Measurement):
    """Parameters and FLOPs of every preset that fits the images, counted on the model itself."""

    def __init__(self, cell: Cell, images: ImageSet, data_sha256: str) -> None:
        super().__init__()
        self.cell, self.images, self.data_sha256 = cell, images, data_sha256
        self.found: list[Row] = []

    def plan(self) -> list[str]:
        """Batches: names of presets."""
        return list(presets(shape_of(self.images), len(self.images.classes)))

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Count one model."""
        counted = count(build_model(batch, shape_of(self.images), len(self.images.classes)), shape_of(self.images))
        axes = {"data": self.images.name, "model": batch}
        self.found += [
            Row(name, value, axes, statistic="exact", seed=self.cell.seeds[0], n=1)
            for name, value in counted._asdict().items()
        ]

    def rows(self) -> list[Row]:
        """Two for each model."""
        return self.found


def shape_of(images: ImageSet) -> ImageShape:
    """Channels, height and width."""
    channels, height, width = images.images.shape[1:]
    return channels, height, width
