"""Augmentation and geometry, pixel by pixel against loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnrepro.data.augment import Augmentation, centre_crop, place, random_crop, random_flip, random_shift, shift
from attnrepro.data.geometry import fixed_shifts, rescale

SIZES = [(5, 5), (3, 8), (7, 2)]


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, height: int, width: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    return torch.randint(1, 256, (n, 2, height, width), generator=stream(1)).to(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_shift_moves_each_image_by_its_own_offset(size: tuple[int, int], dtype: torch.dtype) -> None:
    given = images(6, *size, dtype)
    offsets = torch.tensor([[0, 0], [1, 0], [0, -2], [-1, 2], [9, 9], [-2, -1]])
    moved = shift(given, offsets)
    assert moved.dtype == dtype
    for i, (down, right) in enumerate(offsets.tolist()):
        for row in range(size[0]):
            for column in range(size[1]):
                r, c = row - down, column - right
                inside = 0 <= r < size[0] and 0 <= c < size[1]
                expected = given[i, :, r, c] if inside else torch.zeros(2, dtype=dtype)
                assert torch.equal(moved[i, :, row, column], expected)


def test_random_shifts_are_uniform_within_their_bound() -> None:
    point = torch.zeros(4000, 1, 5, 7)
    point[:, :, 2, 3] = 1
    where = random_shift(point, 2, stream()).sum((0, 1))
    inner = where[:5, 1:6]
    assert float(where.sum() - inner.sum()) == 0
    assert float(inner.sum()) == 4000
    sd = math.sqrt(4000 * (1 / 25) * (24 / 25))
    assert float((inner - 160).abs().max()) < 5 * sd


def test_half_the_images_are_mirrored_left_to_right() -> None:
    given = images(2000, 2, 3)
    flipped = random_flip(given, stream())
    mirror = torch.stack([given[..., 2], given[..., 1], given[..., 0]], -1)
    is_mirror = (flipped == mirror).flatten(1).all(1)
    assert torch.equal(flipped[~is_mirror], given[~is_mirror])
    assert abs(int(is_mirror.sum()) - 1000) < 5 * math.sqrt(500)


def test_a_crop_is_a_window_and_every_window_is_as_likely() -> None:
    grid = torch.arange(5 * 6).view(1, 1, 5, 6).repeat(3000, 1, 1, 1)
    cropped = random_crop(grid, (3, 4), stream())
    corners = cropped[:, 0, 0, 0]
    for row in range(3):
        for column in range(4):
            assert torch.equal(cropped[:, 0, row, column], corners + 6 * row + column)
    counts = torch.stack([(corners == 6 * top + left).sum() for top in range(3) for left in range(3)])
    assert int(counts.sum()) == 3000
    assert float((counts - 3000 / 9).abs().max()) < 5 * math.sqrt(3000 * 8 / 81)


def test_the_middle_and_the_whole() -> None:
    given = images(2, 5, 8)
    assert torch.equal(centre_crop(given, (3, 4)), given[:, :, 1:4, 2:6])
    assert torch.equal(random_crop(given, (5, 8), stream()), given)
    assert torch.equal(centre_crop(place(given, (9, 9)), (5, 8)), given)
    assert int(place(given, (9, 9)).sum()) == int(given.sum())


@pytest.mark.parametrize("size", [(6, 4), (4, 9), (0, 3)])
def test_a_window_that_does_not_fit_is_refused(size: tuple[int, int]) -> None:
    for crop in (lambda: random_crop(images(1, 5, 8), size, stream()), lambda: centre_crop(images(1, 5, 8), size)):
        with pytest.raises(ValueError, match=f"size={size[0]}x{size[1]} must fit into images of 5 x 8"):
            crop()
    with pytest.raises(ValueError, match="must hold images of 5 x 8"):
        place(images(1, 5, 8), (5, 7))


# --- streams ---


def test_workers_epochs_and_steps_do_not_repeat_each_other() -> None:
    """C19: the draws of a step are named, not left to whatever state a process is in."""
    given, augment = images(64, 8, 8), Augmentation(shift=2, flip=True)
    torch.manual_seed(0)
    steps = [augment(given, 0, step) for step in range(4)]
    other_seed = augment(given, 1, 0)
    assert len({step.numpy().tobytes() for step in [*steps, other_seed]}) == 5
    torch.manual_seed(1)
    assert torch.equal(Augmentation(shift=2, flip=True)(given, 0, 3), steps[3])


def test_switching_one_kind_on_leaves_the_draws_of_the_others() -> None:
    given = images(64, 8, 8)
    shifted = Augmentation(shift=2)(given, 0, 5)
    both = Augmentation(shift=2, flip=True)(given, 0, 5)
    same = (both == shifted).flatten(1).all(1) | (both == shifted.flip(3)).flatten(1).all(1)
    assert bool(same.all())


def test_each_kind_has_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing one, whether an image is mirrored would hang on where it is shifted to."""
    named: list[tuple[object, ...]] = []

    def noted(seed: int, *names: object, device: torch.device | str) -> torch.Generator:
        named.append((seed, *names))
        return stream(len(named))

    monkeypatch.setattr("attnrepro.data.augment.generator", noted)
    Augmentation(shift=2, flip=True, crop=(6, 6))(images(4, 8, 8), 3, 5)
    assert len(set(named)) == 3


def test_crop_is_drawn_in_training_and_centred_at_test() -> None:
    given, augment = images(8, 8, 9), Augmentation(crop=(6, 5))
    assert augment(given, 0, 0).shape == augment.at_test(given).shape == (8, 2, 6, 5)
    assert torch.equal(augment.at_test(given), given[:, :, 1:7, 2:7])
    assert torch.equal(Augmentation()(given, 0, 0), given)
    assert torch.equal(Augmentation(shift=2, flip=True).at_test(given), given)


# --- geometry ---


def test_fixed_shifts_are_drawn_once_and_cover_their_range() -> None:
    found = fixed_shifts(5000, 4, 0)
    assert torch.equal(found, fixed_shifts(5000, 4, 0))
    assert not torch.equal(found, fixed_shifts(5000, 4, 1))
    counts = torch.bincount((found[:, 0] + 4) * 9 + found[:, 1] + 4, minlength=81)
    assert len(counts) == 81
    assert float((counts - 5000 / 81).abs().max()) < 5 * math.sqrt(5000 * (1 / 81) * (80 / 81))


def test_the_factor_1_changes_nothing() -> None:
    given = images(3, 6, 9)
    assert torch.equal(rescale(given, 1.0), given.float())


@pytest.mark.parametrize("factor", [0.5, 20 / 28, 0.7])
def test_shrinking_is_that_of_torch_with_antialiasing(factor: float) -> None:
    """Where the shrunken size is whole and centred on pixels; away from the edge, where torch knows no black around."""
    size = 28 if factor != 0.7 else 20
    given = images(2, size, size).float()
    small = round(size * factor)
    expected = F.interpolate(given, size=(small, small), mode="bilinear", antialias=True)
    found = centre_crop(rescale(given, factor), (small, small))
    assert small % 2 == size % 2
    torch.testing.assert_close(found[..., 2:-2, 2:-2], expected[..., 2:-2, 2:-2], rtol=1e-4, atol=1e-2)


def test_enlarging_is_that_of_torch() -> None:
    given = images(2, 20, 10).float()
    expected = centre_crop(F.interpolate(given, size=(28, 14), mode="bilinear"), (20, 10))
    torch.testing.assert_close(rescale(given, 1.4), expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("factor", [0.7, 0.85, 1.2, 1.4])
def test_a_rescaled_image_lies_about_the_centre_on_black(factor: float) -> None:
    """A white image keeps its grey inside; a centred blob stays centred and grows by the square of the factor."""
    white = rescale(torch.full((1, 1, 28, 28), 255, dtype=torch.uint8), factor)
    assert float(white[0, 0, 10:18, 10:18].min()) == pytest.approx(255, abs=1e-2)
    assert float(white.sum()) == pytest.approx(255 * min(28 * factor, 28) ** 2, rel=0.02)
    place_ = torch.arange(27) - 13.0
    blob = torch.exp(-(place_[:, None] ** 2 + place_**2) / 18)[None, None]
    found = rescale(blob, factor)
    assert float(found.sum() / blob.sum()) == pytest.approx(factor**2, rel=0.02)
    assert torch.allclose(found, found.flip(2, 3), atol=1e-6)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan])
def test_a_factor_that_is_none_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        rescale(images(1, 4, 4), factor)
