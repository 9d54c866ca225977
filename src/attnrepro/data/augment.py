"""Augmentation of whole batches on their device: each image of a batch gets a draw of its own."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attnrepro.data.streams import generator


def shift(images: Tensor, offsets: Tensor) -> Tensor:
    """Move image i of ``[n, c, h, w]`` by ``offsets[i]`` = (down, right) whole pixels; zeros come in at the edges.

    ``offsets`` is ``[n, 2]`` in int64, of any size and sign.
    """
    _, _, height, width = images.shape
    rows = torch.arange(height, device=images.device) - offsets[:, :1]
    columns = torch.arange(width, device=images.device) - offsets[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, None, :, None] & ((columns >= 0) & (columns < width))[:, None, None]
    return _window(images, rows.clamp(0, height - 1), columns.clamp(0, width - 1)) * inside


def _window(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels of image i at ``rows[i]`` x ``columns[i]``, ``[n, c, len(rows[i]), len(columns[i])]``."""
    n = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[n, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_shift(images: Tensor, most: int, stream: torch.Generator) -> Tensor:
    """Shift every image by up to ``most`` pixels in each direction, all offsets alike."""
    offsets = torch.randint(-most, most + 1, (len(images), 2), generator=stream, device=images.device)
    return shift(images, offsets)


def random_flip(images: Tensor, stream: torch.Generator) -> Tensor:
    """Mirror every image left to right with probability 1/2."""
    chosen = torch.rand(len(images), generator=stream, device=images.device) < 0.5
    return images.flip(3).where(chosen[:, None, None, None], images)


def random_crop(images: Tensor, size: tuple[int, int], stream: torch.Generator) -> Tensor:
    """A window of ``size`` = (height, width) of every image, each place alike.

    Raises ``ValueError`` for a window that is larger than the image.
    """
    room = _room(images, size)
    tops, lefts = (torch.randint(left + 1, (len(images), 1), generator=stream, device=images.device) for left in room)
    rows, columns = (torch.arange(length, device=images.device) for length in size)
    return _window(images, tops + rows, lefts + columns)


def centre_crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The window in the middle (one pixel up and left of it where the margin is odd), for images that are tested."""
    top, left = (room // 2 for room in _room(images, size))
    return images[:, :, top : top + size[0], left : left + size[1]]


def _room(images: Tensor, size: tuple[int, int]) -> tuple[int, int]:
    height, width = images.shape[2:]
    if not (1 <= size[0] <= height and 1 <= size[1] <= width):
        raise ValueError(f"size={size[0]}x{size[1]} must fit into images of {height} x {width} pixels")
    return height - size[0], width - size[1]


@dataclass(frozen=True)
class Augmentation:
    """What is done to training batches: crop, then shift (0: none), then flip.

    Each kind draws from a stream of its own, and for each step anew: switching one on changes no other, and a step
    sees the same draws whether or not training was interrupted before it.
    """

    shift: int = 0
    flip: bool = False
    crop: tuple[int, int] | None = None

    def __call__(self, images: Tensor, seed: int, step: int) -> Tensor:
        """Augmented images of a training step, from the streams of ``seed``."""

        def stream(kind: str) -> torch.Generator:
            return generator(seed, "augmentation", kind, step, device=images.device)

        if self.crop is not None:
            images = random_crop(images, self.crop, stream("crop"))
        if self.shift:
            images = random_shift(images, self.shift, stream("shift"))
        return random_flip(images, stream("flip")) if self.flip else images

    def at_test(self, images: Tensor) -> Tensor:
        """Images as a model is tested on them: of the size that it was trained on, nothing drawn."""
        return images if self.crop is None else centre_crop(images, self.crop)


def place(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Images in the middle of a larger black canvas of ``size`` (one pixel up and left where the margin is odd)."""
    rooms = [whole - part for whole, part in zip(size, images.shape[2:], strict=True)]
    if min(rooms) < 0:
        raise ValueError(f"size={size[0]}x{size[1]} must hold images of {images.shape[2]} x {images.shape[3]} pixels")
    top, left = (room // 2 for room in rooms)
    return F.pad(images, (left, rooms[1] - left, top, rooms[0] - top))
