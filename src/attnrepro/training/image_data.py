"""Labelled images for the classifiers: whole batches from tensors on the device, never one image at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from attnrepro.data.batches import EpochOrder
from attnrepro.training.recipe import Recipe

# Changes a training batch [n, channels, height, width]; everything random comes from the seed and the step.
Augment = Callable[[Tensor, int, int], Tensor]

# Images that are evaluated at once: a small CNN's maps of so many stay in a core's cache.
CHUNK = 250
# Checkpoints that are tested: best on the validation images, and the end of training.
CHECKPOINTS = ("best", "last")


class Split(NamedTuple):
    """Images ``[n, channels, height, width]``, whole numbers as they came or prepared, and labels ``[n]``, from 0."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Member:
    """What one model of an ensemble is trained, selected and tested on.

    Its seed orders and augments its batches. ``prepare`` makes what the model reads out of a batch of any split, after
    augmentation; a standardiser that was fitted on the training images, say.
    """

    seed: int
    train: Split
    validation: Split
    tests: dict[str, Split]
    prepare: Callable[[Tensor], Tensor] = Tensor.float

    def splits(self) -> list[tuple[str, Split]]:
        """All of them with their names."""
        return [("train", self.train), ("validation", self.validation), *self.tests.items()]

    def to(self, device: torch.device) -> "Member":
        """The member's tensors on a device."""
        train, validation, *tests = (Split(*(t.to(device) for t in split)) for _, split in self.splits())
        return replace(self, train=train, validation=validation, tests=dict(zip(self.tests, tests, strict=True)))


class Batch(NamedTuple):
    """Images ``[members, n, channels, height, width]`` and labels ``[members, n]``."""

    images: Tensor
    labels: Tensor


class Part(NamedTuple):
    """A part of one test set, to be answered by one checkpoint."""

    checkpoint: str
    test: str
    batch: Batch


class _Made(Dataset[Any]):
    """Items that are made when they are asked for."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self.count, self.make = count, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def _loader(count: int, make: Callable[[int], Any]) -> DataLoader[Any]:
    return DataLoader(_Made(count, make), batch_size=None, shuffle=False, num_workers=0)


class ImageData(L.LightningDataModule):
    """Batches of all members side by side; a Lightning epoch is what lies between two evaluations.

    A batch depends on its step and the member's seed alone, not on what was drawn before. Batches are always full:
    ``batch_size`` images, or all of them where there are fewer.

    Args:
        members: with equally many images of one shape in each split; an ensemble's, or a single one.
        num_classes: labels are below it.
        recipe: gives batch size and evaluations.
        augment: changes the training images of a batch, member by member.

    Raises:
        ValueError: no members, splits that are empty, differ between members or hold labels out of range.
    """

    def __init__(
        self, members: Sequence[Member], num_classes: int, recipe: Recipe, *, augment: Augment | None = None
    ) -> None:
        super().__init__()
        _check(members, num_classes, resized=augment is not None)
        self.members = list(members)
        self.num_classes = num_classes
        self.recipe = recipe
        self.augment = augment
        self._order(torch.device("cpu"))

    def classes_seen(self) -> list[int]:
        """How many classes the training images of each member show; the others are in its test set all the same."""
        return [len(set(member.train.labels.tolist())) for member in self.members]

    def setup(self, stage: str) -> None:
        """Put every tensor on the Trainer's device, once."""
        device = self.trainer.strategy.root_device  # type: ignore[union-attr]
        self.members = [member.to(device) for member in self.members]
        self._order(device)

    def train_dataloader(self) -> DataLoader[Any]:
        """The steps up to the next evaluation."""
        return _loader(self.recipe.evaluate_every, self._next)

    def val_dataloader(self) -> DataLoader[Any]:
        """All validation images, as `Batch`."""
        count = len(self.members[0].validation.labels)
        return _loader(-(-count // CHUNK), lambda index: self._part(index, lambda member: member.validation))

    def test_dataloader(self) -> DataLoader[Any]:
        """All test sets for both checkpoints, as `Part`."""
        sizes = {name: len(split.labels) for name, split in self.members[0].tests.items()}
        parts = [
            (checkpoint, name, index)
            for checkpoint in CHECKPOINTS
            for name, size in sizes.items()
            for index in range(-(-size // CHUNK))
        ]

        def make(index: int) -> Part:
            checkpoint, name, part = parts[index]
            return Part(checkpoint, name, self._part(part, lambda member: member.tests[name]))

        return _loader(len(parts), make)

    def batch(self, step: int) -> Batch:
        """The training batch of a step, counted from 0."""
        drawn = []
        for member, order in zip(self.members, self.orders, strict=True):
            chosen = order.batch(step)
            images = member.train.images[chosen]
            if self.augment is not None:
                images = self.augment(images, member.seed, step)
            drawn.append(Split(member.prepare(images), member.train.labels[chosen]))
        return _side_by_side(drawn)

    def _next(self, index: int) -> Batch:
        return self.batch(self.trainer.current_epoch * self.recipe.evaluate_every + index)  # type: ignore[union-attr]

    def _order(self, device: torch.device) -> None:
        size = self.recipe.batch_size
        self.orders = [EpochOrder(len(m.train.labels), size, m.seed, device=device) for m in self.members]

    def _part(self, index: int, split: Callable[[Member], Split]) -> Batch:
        part = slice(index * CHUNK, (index + 1) * CHUNK)
        splits = [(member.prepare, split(member)) for member in self.members]
        return _side_by_side([Split(prepare(images[part]), labels[part]) for prepare, (images, labels) in splits])


def _side_by_side(splits: list[Split]) -> Batch:
    if len(splits) == 1:  # without a copy
        return Batch(splits[0].images[None], splits[0].labels[None])
    return Batch(torch.stack([split.images for split in splits]), torch.stack([split.labels for split in splits]))


def _check(members: Sequence[Member], num_classes: int, *, resized: bool) -> None:
    if not members:
        raise ValueError("members must hold at least one")
    shape = members[0].validation.images.shape[1:]
    for member in members:
        for name, (images, labels) in member.splits():
            if images.ndim != 4 or labels.ndim != 1 or len(images) != len(labels) or not len(labels):
                sizes = f"images {tuple(images.shape)} and labels {tuple(labels.shape)}"
                raise ValueError(f"{name}={sizes} must be [n, channels, height, width] and [n], with n at least 1")
            if images.shape[1:] != shape and not (resized and name == "train"):
                wanted = f"{tuple(shape)}, as in validation"
                raise ValueError(f"{name} images of {tuple(images.shape[1:])} must be of {wanted}")
            if int(labels.min()) < 0 or int(labels.max()) >= num_classes:
                raise ValueError(f"{name} labels must be 0 to {num_classes - 1}, one below num_classes={num_classes}")
        own, first = ([(name, len(split.labels)) for name, split in m.splits()] for m in (member, members[0]))
        if own != first:
            raise ValueError(f"members must have as many images each, not {dict(own)} and {dict(first)}")
