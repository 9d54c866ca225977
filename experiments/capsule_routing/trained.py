"""Nets trained on shifted digits and tested on digits that are changed in other ways."""

import dataclasses
import math

import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.augment import Augmentation, place, shift
from attnrepro.data.distort import Distortion, scatter
from attnrepro.data.geometry import fixed_shifts
from attnrepro.data.imageset import ImageSet
from attnrepro.data.subsets import subset
from attnrepro.fetch.download import DataUnavailable
from attnrepro.nn.capsule_net import CapsuleNet
from attnrepro.results.rows import Row
from attnrepro.tables.capsule_routing import nets
from attnrepro.tables.capsule_routing.table import CAPSULES, CLASSES, TESTS, Params, model_routes
from attnrepro.training.classifier import Classifier
from attnrepro.training.image_data import Batch, ImageData, Member, Part, Split
from attnrepro.training.measurement import Job
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import member, part, splits

WHOLE, SCATTERED = TESTS[0], TESTS[3]
# All distortions are drawn once, for all nets and seeds.
TEST_SEED = 0


def jobs(cell: Cell) -> list[Job]:
    """One a seed; for tuning, one a seed and learning rate."""
    p = cell.params
    images = splits(cell.data)
    if p.n_train > len(images.train):
        raise DataUnavailable(f"{images.train.name} has {len(images.train)} training images, not n_train={p.n_train}")
    train = framed(images.train, p)
    validation = moved(part(framed(images.validation, p), p.n_validation), p, "validation")
    tests = {} if p.study == "tuning" else test_sets(part(framed(images.test, p), p.n_test), p)
    found = []
    for learning_rate in p.learning_rate:
        for seed in cell.seeds:
            data = member(seed, subset(train, p.n_train, seed).images, validation, tests)
            found.append(job(cell, data, learning_rate, images.sha256))
    return found


def job(cell: Cell, data: Member, learning_rate: float, data_sha256: str) -> Job:
    """Training and test of one net."""
    p = cell.params
    how = recipe(p, learning_rate)
    loader = ImageData([data], CLASSES, how, augment=Augmentation(shift=p.shift))
    module = Trained(cell, data.seed, how, learning_rate, data_sha256)
    return Job(module, test=loader if data.tests else None, fit=loader, max_steps=how.steps)


def recipe(p: Params, learning_rate: float) -> Recipe:
    """How a net trains."""
    found = Recipe(learning_rate, p.weight_decay, p.updates, p.evaluations, p.batch_size)
    if p.most_updates is not None and found.steps > p.most_updates:
        found = dataclasses.replace(found, steps=p.most_updates, evaluations=1)
    return found


def framed(images: ImageSet, p: Params) -> ImageSet:
    """Images in the middle of a black square."""
    return dataclasses.replace(images, images=place(images.images, (p.side, p.side)))


def moved(images: Split, p: Params, name: str) -> Split:
    """Images shifted as in training, each by an offset that is drawn once."""
    seed = {"validation": TEST_SEED + 1, "test": TEST_SEED}[name]
    return Split(shift(images.images, fixed_shifts(len(images.labels), p.shift, seed)), images.labels)


def test_sets(images: Split, p: Params) -> dict[str, Split]:
    """The same test images, shifted as in training and changed as in no training."""
    low, high = p.scale
    rotated = Distortion(turn=(p.rotated[0], p.rotated[1]))
    affine = Distortion(turn=(0.0, p.turn), scale=(low, high), shear=p.shear, shift=p.shift)
    changed = (
        moved(images, p, "test").images,
        rotated(images.images, TEST_SEED),
        affine(images.images, TEST_SEED),
        scatter(images.images, p.scattered, TEST_SEED),
        scatter(images.images, 1, TEST_SEED),
    )
    return {name: Split(found, images.labels) for name, found in zip(TESTS, changed, strict=True)}


class Trained(Classifier):
    """A net that ends with its accuracy on every test set, from the checkpoint that is best on validation images.

    Capsule nets learn by the margin loss, the others by cross-entropy. Lengths and probabilities are the scores of
    which the largest says how sure a net is that there is a digit.
    """

    def __init__(self, cell: Cell, seed: int, how: Recipe, learning_rate: float, data_sha256: str) -> None:
        p = cell.params
        label = f"/seed {seed}, rate {learning_rate:g}" if len(cell.seeds) * len(p.learning_rate) > 1 else ""
        super().__init__([nets.net(p.model, p, seed)], how, seed=seed, channels_last=p.model == "cnn", label=label)
        self.params, self.member_seed, self.data_sha256 = p, seed, data_sha256
        self._axes: dict[str, object] = {"model": p.model, "n_train": p.n_train}
        if p.study == "tuning":
            self._axes["learning_rate"] = learning_rate
        self._tops: dict[str, list[Tensor]] = {}
        self._entropies: dict[int, list[Tensor]] = {}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The mean loss of the batch."""
        loss = nets.loss(self.params.model, self(batch.images)[0], batch.labels[0])
        self.diverged |= ~loss.detach().isfinite()
        self.log(f"loss{self.label}", loss.detach())
        return loss

    def test_step(self, batch: Part, batch_idx: int) -> None:
        """Right answers of both checkpoints; the largest score and the shares of the children of the best one."""
        super().test_step(batch, batch_idx)
        if batch.checkpoint != "best" or batch.test not in (WHOLE, SCATTERED):
            return
        scores = self(batch.batch.images)[0].double()
        scores = scores if self.params.model in CAPSULES else scores.softmax(-1)
        self._tops.setdefault(batch.test, []).append(scores.amax(-1))
        if batch.test == WHOLE and model_routes(self.params.model):
            assert isinstance(self.model, CapsuleNet)
            children = self.model.primary(batch.batch.images[0])
            for iterations in self.params.iterations:
                shares = self.model.classes.route(children, iterations)[1].double()
                self._entropies.setdefault(iterations, []).append(torch.special.entr(shares).sum(2).mean(1))

    def rows(self) -> list[Row]:
        """Accuracies, how well scattered digits are told apart, and entropies."""
        diverged = bool(self.diverged.any())
        found: list[tuple[str, float, dict[str, object], str]] = [
            ("accuracy", outcome.accuracy, {"test": outcome.test}, "")
            for outcome in self.outcomes()
            if outcome.checkpoint == "best"
        ]
        found.append(("validation_accuracy", self.checkpoints.best_accuracy[0].item(), {}, ""))
        if self._tops:
            whole, scattered = (torch.cat(self._tops[test]) for test in (WHOLE, SCATTERED))
            found.append(("told_apart", told_apart(whole, scattered), {"test": SCATTERED}, ""))
        for iterations, parts in self._entropies.items():
            mean = torch.cat(parts).mean().item()
            found.append(("coupling_entropy", mean, {"test": WHOLE, "iterations": iterations}, "nat"))
        return [
            Row(
                quantity,
                value if math.isfinite(value) else math.nan,
                {**self._axes, **axes},
                statistic="mean",
                unit=unit,
                seed=self.member_seed,
                n=1,
                status="ok" if math.isfinite(value) and not diverged else "failed: diverged",
            )
            for quantity, value, axes, unit in found
        ]


def told_apart(higher: Tensor, lower: Tensor) -> float:
    """Share of all pairs of a first and a second score whose first is larger; equal ones count half."""
    first, second = higher[:, None], lower[None]
    return ((first > second).double() + 0.5 * (first == second).double()).mean().item()
