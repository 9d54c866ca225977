"""Fixed permutations of pixels and patches."""

from __future__ import annotations

import pytest
import torch

from attnrepro.data.permute import permutation

SIZES = [
    ((28, 28), (1, 1)),
    ((28, 28), (7, 7)),
    ((28, 28), (4, 4)),
    ((32, 48), (8, 4)),
    ((6, 4), (3, 2)),
    ((8, 8), (2, 2)),
]


def pixels(size: tuple[int, int]) -> torch.Tensor:
    return torch.arange(2 * size[0] * size[1]).view(1, 2, *size)


@pytest.mark.parametrize(("size", "patch"), SIZES)
def test_whole_patches_move_and_nothing_is_lost(size: tuple[int, int], patch: tuple[int, int]) -> None:
    """C27: images and patches need not be square."""
    given, made = pixels(size), permutation(size, 0, patch)
    moved = made(given)
    across = size[1] // patch[1]

    def cut(images: torch.Tensor, index: int) -> torch.Tensor:
        top, left = index // across * patch[0], index % across * patch[1]
        return images[..., top : top + patch[0], left : left + patch[1]]

    assert sorted(made.patches.tolist()) == list(range(size[0] // patch[0] * across))
    for place, source in enumerate(made.patches.tolist()):
        assert torch.equal(cut(moved, place), cut(given, source))


@pytest.mark.parametrize(("size", "patch"), SIZES)
def test_the_inverse_undoes_it(size: tuple[int, int], patch: tuple[int, int]) -> None:
    given, made = pixels(size), permutation(size, 0, patch)
    assert not torch.equal(made(given), given)
    assert torch.equal(made.inverse(made(given)), given)
    assert torch.equal(made(made.inverse(given)), given)


def test_all_images_and_channels_are_permuted_alike() -> None:
    made = permutation((6, 4), 0)
    given = pixels((6, 4)).repeat(3, 1, 1, 1)
    moved = made(given)
    assert torch.equal(moved[0], moved[2])
    assert torch.equal(moved[0, 1] - 24, moved[0, 0])


def test_seeds_and_patches_are_permuted_differently_and_again_the_same() -> None:
    found = {tuple(permutation((28, 28), seed, p).pixels.tolist()) for seed in (0, 1) for p in ((1, 1), (4, 4), (7, 7))}
    assert len(found) == 6
    torch.manual_seed(4)
    assert tuple(permutation((28, 28), 0).pixels.tolist()) in found


@pytest.mark.parametrize(
    ("size", "patch", "said"),
    [
        ((32, 32), (5, 4), "patch height 5 must divide the image height 32"),
        ((28, 27), (7, 7), "patch width 7 must divide the image width 27"),
        ((4, 4), (0, 2), "patch height 0"),
        ((4, 4), (8, 2), "patch height 8"),
    ],
)
def test_patches_that_do_not_cover_the_image_are_refused(
    size: tuple[int, int], patch: tuple[int, int], said: str
) -> None:
    """C27: rows of pixels are not dropped in silence."""
    with pytest.raises(ValueError, match=said):
        permutation(size, 0, patch)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 4 x 6 pixels must be 6 x 4"):
        permutation((6, 4), 0)(pixels((4, 6)))
