"""Subsets: balanced, nested, the same in every process, and honest about what is uneven."""

from __future__ import annotations

import pytest
import torch

from attnrepro.data.imageset import ImageSet
from attnrepro.data.subsets import balanced_order, subset


def images(counts: list[int], name: str = "made") -> ImageSet:
    """A set with so many images of each class, mixed; every image has its number as its pixels."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    number = torch.arange(len(labels))
    pixels = torch.stack([number % 256, number // 256], 1).to(torch.uint8).view(-1, 1, 1, 2)
    return ImageSet(name, pixels, labels, tuple(f"c{i}" for i in range(len(counts))))


def numbers(of: ImageSet) -> list[int]:
    return [int(low) + 256 * int(high) for low, high in of.images.view(-1, 2)]


@pytest.mark.parametrize("counts", [[40] * 10, [178, 182, 177], [5, 1, 30, 0, 7], [3], [1, 1, 1]])
def test_every_beginning_is_balanced_until_a_class_is_used_up(counts: list[int]) -> None:
    made = images(counts)
    order = balanced_order(made, 3, "train")
    assert sorted(order.tolist()) == list(range(sum(counts)))
    seen = [0] * len(counts)
    for index in order.tolist():
        seen[int(made.labels[index])] += 1
        open_ = [have for have, all_ in zip(seen, counts, strict=True) if have < all_]
        # No class that still has images is more than one behind any other.
        assert not open_ or max(seen) - min(open_) <= 1


def test_the_smaller_subset_lies_within_the_larger() -> None:
    made = images([200] * 10)
    for seed in range(3):
        inner, outer = (numbers(subset(made, n, seed).images) for n in (316, 1000))
        assert outer[:316] == inner
        assert len(set(outer)) == 1000


def test_seeds_names_and_purposes_draw_differently_and_again_the_same() -> None:
    made = images([50] * 4)
    orders = [
        balanced_order(made, 0, "train"),
        balanced_order(made, 1, "train"),
        balanced_order(made, 0, "validation"),
        balanced_order(images([50] * 4, "owner/name"), 0, "train"),
    ]
    assert len({tuple(order.tolist()) for order in orders}) == 4
    torch.manual_seed(5)
    assert torch.equal(balanced_order(made, 0, "train"), orders[0])


def test_every_image_of_a_class_is_as_likely_as_every_other() -> None:
    """1200 seeds draw 2 of 6 of each class: each is in with probability 1/3, within 5 standard errors."""
    made = images([6, 6])
    drawn = torch.zeros(12)
    for seed in range(1200):
        drawn[numbers(subset(made, 4, seed).images)] += 1
    expected, sd = 400, (1200 / 3 * 2 / 3) ** 0.5
    assert float((drawn - expected).abs().max()) < 5 * sd


@pytest.mark.parametrize(
    ("n", "note"),
    [
        (30, ""),
        (31, "10 to 11 images of a class"),
        (120, ""),
        (2, "no image of 1 of 3 classes: "),
        (1, "no image of 2 of 3 classes: "),
    ],
)
def test_what_is_uneven_is_said(n: int, note: str) -> None:
    """C32: the classes stay three, and the one that is missing is named."""
    chosen = subset(images([40] * 3), n, 0)
    assert chosen.images.classes == ("c0", "c1", "c2")
    missing = [f"c{i}" for i, count in enumerate(chosen.images.counts) if not count]
    assert chosen.note == note + ", ".join(missing)


@pytest.mark.parametrize("counts", [[10, 1, 10], [10, 0, 10]])
def test_a_class_of_one_or_no_image_does_not_stop_the_draw(counts: list[int]) -> None:
    chosen = subset(images(counts), 12, 0)
    assert sum(chosen.images.counts) == 12
    assert chosen.images.counts[1] == counts[1]


@pytest.mark.parametrize("n", [0, -1, 31])
def test_more_than_there_are_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"n={n} must lie between 1 and the 30 training images of made"):
        subset(images([10] * 3), n, 0)
