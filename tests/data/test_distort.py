"""Affine changes against exact ones and loops, draws within their bounds, and patches that are shuffled whole."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnrepro.data.augment import shift
from attnrepro.data.distort import Distortion, affine, scatter


def images_of(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def turn(degrees: float) -> Tensor:
    a = math.radians(degrees)
    return torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])


def test_nothing_quarter_turns_mirrors_and_whole_shifts_are_exact() -> None:
    images = images_of(3, 2, 7, 7)
    still = torch.zeros(3, 2)
    torch.testing.assert_close(affine(images, torch.eye(2).expand(3, 2, 2), still), images.float(), atol=1e-3, rtol=0)
    # (down, right) to (right, -down): what is below the centre moves to its left.
    quarter = affine(images, turn(90).expand(3, 2, 2), still)
    torch.testing.assert_close(quarter, images.float().rot90(-1, (2, 3)), atol=1e-3, rtol=0)
    mirror = torch.tensor([[1.0, 0.0], [0.0, -1.0]]).expand(3, 2, 2)
    torch.testing.assert_close(affine(images, mirror, still), images.float().flip(3), atol=1e-3, rtol=0)
    offsets = torch.tensor([[1, -2], [0, 3], [-7, 0]])
    moved = affine(images, torch.eye(2).expand(3, 2, 2), offsets)
    torch.testing.assert_close(moved, shift(images, offsets).float(), atol=1e-3, rtol=0)


def test_any_change_against_a_loop_over_pixels() -> None:
    images = images_of(1, 1, 5, 6)
    matrix, offset = torch.tensor([[1.1, 0.3], [-0.2, 0.9]]), torch.tensor([0.4, -1.3])
    found = affine(images, matrix[None], offset[None])[0, 0]
    back = torch.linalg.inv(matrix.double())

    def pixel(row: int, column: int) -> float:
        return float(images[0, 0, row, column]) if 0 <= row < 5 and 0 <= column < 6 else 0.0

    for row in range(5):
        for column in range(6):
            y, x = (back @ (torch.tensor([row - 2.0, column - 2.5]) - offset).double()).tolist()
            y, x = y + 2.0, x + 2.5
            wanted = 0.0
            for r in (math.floor(y), math.floor(y) + 1):
                for c in (math.floor(x), math.floor(x) + 1):
                    wanted += (1 - abs(y - r)) * (1 - abs(x - c)) * pixel(r, c)
            assert float(found[row, column]) == pytest.approx(wanted, abs=2e-2)


def centre_of_mass(image: Tensor) -> tuple[float, float]:
    rows, columns = torch.meshgrid(*(torch.arange(s).float() - (s - 1) / 2 for s in image.shape), indexing="ij")
    return float((image * rows).sum() / image.sum()), float((image * columns).sum() / image.sum())


def test_turns_go_both_ways_by_angles_within_their_bounds() -> None:
    images = torch.zeros(200, 1, 21, 21)
    images[:, :, 10, 17] = 1.0  # seven pixels to the right of the centre
    angles = []
    for image in Distortion(turn=(20.0, 40.0))(images, 0):
        down, right = centre_of_mass(image[0])
        assert math.hypot(down, right) == pytest.approx(7, abs=0.2)
        angles.append(math.degrees(math.atan2(down, right)))
    assert all(18 < abs(angle) < 42 for angle in angles)
    assert 60 < sum(angle > 0 for angle in angles) < 140
    assert max(map(abs, angles)) > 37
    assert min(map(abs, angles)) < 23


def test_scale_shear_and_shift_by_themselves() -> None:
    images = torch.zeros(100, 1, 21, 21)
    images[:, :, 15, 10] = 1.0  # five below the centre
    scaled = [centre_of_mass(image[0]) for image in Distortion(scale=(0.8, 1.2))(images, 0)]
    assert all(3.9 < down < 6.1 and abs(right) < 0.1 for down, right in scaled)
    assert max(down for down, _ in scaled) - min(down for down, _ in scaled) > 1.5
    sheared = [centre_of_mass(image[0]) for image in Distortion(shear=0.2)(images, 0)]
    assert all(abs(down - 5) < 0.1 and abs(right) < 1.1 for down, right in sheared)
    assert max(right for _, right in sheared) - min(right for _, right in sheared) > 1.5
    moved = [centre_of_mass(image[0]) for image in Distortion(shift=2.0)(images, 0)]
    assert all(2.9 < down < 7.1 and abs(right) < 2.1 for down, right in moved)
    assert len({round(right, 3) for _, right in moved}) > 90


def test_a_seed_draws_the_same_whatever_the_images_are() -> None:
    images = images_of(4, 1, 8, 8)
    how = Distortion(turn=(0.0, 20.0), scale=(0.8, 1.2), shear=0.2, shift=2.0)
    assert torch.equal(how(images, 3), how(images, 3))
    assert torch.equal(how(images, 3)[:2], how(torch.cat([images[:2], images[:2]]), 3)[:2])
    assert not torch.equal(how(images, 3), how(images, 4))
    assert torch.equal(Distortion()(images, 0).round(), images.float())


def test_patches_are_shuffled_whole_and_each_image_its_own_way() -> None:
    images = images_of(200, 2, 6, 9)
    mixed = scatter(images, 3, 0)
    assert mixed.dtype == torch.uint8

    def patches(image: Tensor) -> list[bytes]:
        cut = (image[:, r : r + 3, c : c + 3] for r in (0, 3) for c in (0, 3, 6))
        return [patch.numpy().tobytes() for patch in cut]

    orders = set()
    for before, after in zip(images, mixed, strict=True):
        old, new = patches(before), patches(after)
        assert sorted(old) == sorted(new)
        orders.add(tuple(old.index(patch) for patch in new))
    assert len(orders) > 150
    assert all(len({order[place] for order in orders}) == 6 for place in range(6))


def test_pixels_are_patches_of_one() -> None:
    images = images_of(2, 1, 4, 4)
    mixed = scatter(images, 1, 0)
    assert torch.equal(mixed.flatten(1).sort(1).values, images.flatten(1).sort(1).values)
    assert not torch.equal(mixed, images)
    with pytest.raises(ValueError, match="patch=3 must divide the image, which is 4 high and 4 wide"):
        scatter(images, 3, 0)
