"""Images that no training has shown: turned, sheared and scaled, or with their patches shuffled."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from attnrepro.data.streams import generator


def affine(images: Tensor, matrices: Tensor, offsets: Tensor) -> Tensor:
    """Move what image i shows at ``x`` from its centre to ``matrices[i] x + offsets[i]``, in float32.

    Args:
        images: ``[n, c, h, w]``, of any type.
        matrices: invertible, ``[n, 2, 2]``; vectors are (down, right) in pixels.
        offsets: ``[n, 2]``.

    Returns:
        ``[n, c, h, w]``, linearly interpolated; what comes in from outside is 0.
    """
    height, width = images.shape[2:]
    rows, columns = (torch.arange(length, dtype=torch.float32) - (length - 1) / 2 for length in (height, width))
    places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).to(images.device)
    inverse = torch.linalg.inv(matrices.float())
    sources = torch.einsum("nij,nhwj->nhwi", inverse, places - offsets.float()[:, None, None])
    # As torch counts them: (right, down), from -1 to 1 between the outer edges of the image.
    grid = (sources * 2 / torch.tensor([height, width], device=images.device)).flip(-1)
    return grid_sample(images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@dataclass(frozen=True)
class Distortion:
    """Random affine changes: a scale, a shear and a turn about the centre, then a shift; each drawn evenly.

    Args:
        turn: smallest and largest angle in degrees, to either side alike.
        scale: smallest and largest factor.
        shear: most by which a row is moved for each row from the centre, in pixels, to either side.
        shift: most pixels, in each direction.
    """

    turn: tuple[float, float] = (0.0, 0.0)
    scale: tuple[float, float] = (1.0, 1.0)
    shear: float = 0.0
    shift: float = 0.0

    def __call__(self, images: Tensor, seed: int) -> Tensor:
        """Distorted images, one draw each; the same for a seed whatever the images are."""
        draws = torch.rand(len(images), 6, generator=generator(seed, "distortion"))

        def between(index: int, low: float, high: float) -> Tensor:
            return low + (high - low) * draws[:, index]

        angle = between(0, *self.turn).deg2rad() * (2 * (draws[:, 1] < 0.5) - 1)
        sheared = torch.eye(2).repeat(len(images), 1, 1)
        sheared[:, 1, 0] = between(2, -self.shear, self.shear)
        cos, sin = angle.cos(), angle.sin()
        turned = torch.stack([cos, sin, -sin, cos], -1).view(-1, 2, 2)
        matrices = turned @ sheared * between(3, *self.scale)[:, None, None]
        offsets = torch.stack([between(index, -self.shift, self.shift) for index in (4, 5)], -1)
        return affine(images, matrices.to(images.device), offsets.to(images.device))


def scatter(images: Tensor, patch: int, seed: int) -> Tensor:
    """Shuffle the square patches of every image by a permutation of its own, all alike; no pixel is lost.

    Raises:
        ValueError: a patch that does not divide the image.
    """
    n, channels, height, width = images.shape
    if patch < 1 or height % patch or width % patch:
        raise ValueError(f"patch={patch} must divide the image, which is {height} high and {width} wide")
    rows, columns = height // patch, width // patch
    draws = torch.rand(n, rows * columns, generator=generator(seed, "scattered", patch))
    order = draws.argsort(1).to(images.device)
    cut = images.reshape(n, channels, rows, patch, columns, patch).permute(0, 2, 4, 1, 3, 5)
    cut = cut.reshape(n, rows * columns, channels, patch, patch)
    mixed = cut[torch.arange(n, device=images.device)[:, None], order]
    mixed = mixed.view(n, rows, columns, channels, patch, patch).permute(0, 3, 1, 4, 2, 5)
    return mixed.reshape(n, channels, height, width)
