"""Standardising, and the order of images in training."""

from __future__ import annotations

import math

import pytest
import torch

from attnrepro.data.batches import EpochOrder, Standardiser
from attnrepro.data.imageset import ImageSet


def images(n: int = 7, channels: int = 2) -> ImageSet:
    pixels = torch.randint(256, (n, channels, 3, 5), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    return ImageSet("made", pixels, torch.arange(n) % 3, ("a", "b", "c"))


def test_mean_and_deviation_are_those_of_each_channel() -> None:
    made = images()
    fitted = Standardiser.fit(made)
    for channel in range(2):
        values = [int(v) for image in made.images for v in image[channel].flatten()]
        mean = sum(values) / len(values)
        sd = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        assert float(fitted.mean[channel]) == pytest.approx(mean, rel=1e-12)
        assert float(fitted.std[channel]) == pytest.approx(sd, rel=1e-10)
    shown = fitted(made.images).double()
    assert shown.mean((0, 2, 3)).abs().max() < 1e-6
    assert (shown.square().mean((0, 2, 3)) - 1).abs().max() < 1e-6


def test_the_training_subset_alone_decides() -> None:
    """No pixel of any other image may move what is shown."""
    made = images(20)
    part = made.take(torch.arange(5))
    made.images[5:] = 255
    assert torch.equal(Standardiser.fit(part).mean, Standardiser.fit(made.take(torch.arange(5))).mean)
    assert not torch.equal(Standardiser.fit(part).mean, Standardiser.fit(made).mean)


def test_a_channel_of_one_grey_value_is_not_divided_by_zero() -> None:
    flat = ImageSet("flat", torch.full((3, 1, 2, 2), 7, dtype=torch.uint8), torch.zeros(3).long(), ("a",))
    assert Standardiser.fit(flat)(flat.images).abs().max() == 0


def test_sums_of_many_bright_pixels_stay_exact() -> None:
    bright = torch.full((3000, 1, 28, 28), 255, dtype=torch.uint8)
    bright[:1500] = 254
    fitted = Standardiser.fit(ImageSet("bright", bright, torch.zeros(3000).long(), ("a",)))
    assert (float(fitted.mean), float(fitted.std)) == (254.5, pytest.approx(0.5, rel=1e-9))


@pytest.mark.parametrize(("n", "size"), [(10, 4), (12, 4), (7, 7), (1, 1), (9, 2), (5, 64)])
def test_every_image_comes_once_in_every_epoch(n: int, size: int) -> None:
    order = EpochOrder(n, size, 0, "made")
    steps = 3 * n
    drawn = torch.cat([order.batch(step) for step in range(steps)])
    assert len(drawn) == steps * min(n, size), "no batch is short, and with n < batch_size none is empty"
    for epoch in range(len(drawn) // n):
        assert sorted(drawn[epoch * n : (epoch + 1) * n].tolist()) == list(range(n))


def test_five_images_train_in_batches_of_eight() -> None:
    """C18: fewer images than a batch are one batch, not none."""
    order = EpochOrder(5, 8, 0, "made")
    assert [len(order.batch(step)) for step in range(4)] == [5, 5, 5, 5]


def test_epochs_seeds_and_names_are_ordered_differently() -> None:
    """C19."""
    orders = [EpochOrder(50, 50, 0, "made").batch(step) for step in range(3)]
    orders += [EpochOrder(50, 50, 1, "made").batch(0), EpochOrder(50, 50, 0, "other").batch(0)]
    assert len({tuple(order.tolist()) for order in orders}) == 5


def test_a_step_depends_on_nothing_but_its_number() -> None:
    """Training that is resumed at step 17 sees what it would have seen."""
    order = EpochOrder(23, 4, 0, "made")
    forward = [order.batch(step) for step in range(40)]
    torch.manual_seed(9)
    for step in (17, 39, 0, 5, 6, 38):
        assert torch.equal(EpochOrder(23, 4, 0, "made").batch(step), forward[step])
        assert torch.equal(order.batch(step), forward[step])


@pytest.mark.parametrize(("n", "size"), [(0, 1), (3, 0), (-1, 4)])
def test_nothing_to_draw_from_is_refused(n: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"n={n} and batch_size={size} must be at least 1"):
        EpochOrder(n, size, 0)
