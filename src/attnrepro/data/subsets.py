"""Training subsets: class-balanced, and nested by construction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnrepro.data.imageset import ImageSet
from attnrepro.data.streams import generator


@dataclass(frozen=True)
class Subset:
    """The first ``n`` images of a balanced order, and in ``note`` what is uneven about them (empty: nothing)."""

    images: ImageSet
    note: str


def balanced_order(images: ImageSet, seed: int, purpose: str) -> Tensor:
    """All images ``[n]`` in an order whose every beginning is class-balanced.

    The order goes in rounds: each round has one image of every class that still has some, classes in random order.
    So the first n images hold equally many of each class, give or take one, until the smallest class is used up; and
    of two beginnings the shorter lies within the longer.
    """
    stream = generator(seed, "subset", images.name.replace("/", "--"), purpose)
    drawn = torch.randperm(len(images), generator=stream)
    by_class = drawn[images.labels[drawn].argsort(stable=True)]
    counts = torch.tensor(images.counts)
    rounds = torch.arange(len(images)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    shuffled = torch.randperm(len(images), generator=stream)
    return by_class[shuffled[rounds[shuffled].argsort(stable=True)]]


def subset(images: ImageSet, n: int, seed: int) -> Subset:
    """``n`` training images of the subset seed ``seed``; smaller ``n`` of the same seed are part of larger ones.

    Raises ``ValueError`` when there are fewer than ``n``.
    """
    if not 1 <= n <= len(images):
        raise ValueError(f"n={n} must lie between 1 and the {len(images)} training images of {images.name}")
    chosen = images.take(balanced_order(images, seed, "train")[:n])
    return Subset(chosen, _note(chosen))


def _note(chosen: ImageSet) -> str:
    counts = chosen.counts
    missing = [name for name, count in zip(chosen.classes, counts, strict=True) if not count]
    if missing:
        return f"no image of {len(missing)} of {len(counts)} classes: {', '.join(missing)}"
    return f"{min(counts)} to {max(counts)} images of a class" if min(counts) != max(counts) else ""
