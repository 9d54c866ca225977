"""Fixed permutations of pixels and patches: the same images, with what a convolution assumes about them gone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnrepro.data.streams import generator


@dataclass(frozen=True)
class Permutation:
    """Place k of the permuted image shows place ``pixels[k]`` of the original, ``[h * w]`` row by row.

    ``patches`` is the same for patches ``[(h / ph) * (w / pw)]`` where only whole patches moved (patch = 1 x 1: every
    pixel is one): a model over patches sees its tokens in that order, and permuting its position rows alike undoes it.
    """

    size: tuple[int, int]
    patch: tuple[int, int]
    patches: Tensor
    pixels: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """Permute all images ``[n, c, h, w]`` alike. Raises ``ValueError`` for images of another size."""
        if tuple(images.shape[2:]) != self.size:
            raise ValueError(
                f"images of {images.shape[2]} x {images.shape[3]} pixels must be {self.size[0]} x {self.size[1]}"
            )
        return images.flatten(2).index_select(2, self.pixels.to(images.device)).view(images.shape)

    @property
    def inverse(self) -> "Permutation":
        """What undoes it."""
        return _of_patches(self.size, self.patch, self.patches.argsort())


def permutation(size: tuple[int, int], seed: int, patch: tuple[int, int] = (1, 1)) -> Permutation:
    """A random permutation of the patches of images of ``size`` = (height, width); by default of their pixels.

    Raises ``ValueError`` when patches of that size do not cover the image.
    """
    for name, whole, part in zip(("height", "width"), size, patch, strict=True):
        if part < 1 or whole % part:
            raise ValueError(f"patch {name} {part} must divide the image {name} {whole}")
    count = (size[0] // patch[0]) * (size[1] // patch[1])
    stream = generator(seed, "permutation", *size, *patch)
    return _of_patches(size, patch, torch.randperm(count, generator=stream))


def _of_patches(size: tuple[int, int], patch: tuple[int, int], patches: Tensor) -> Permutation:
    (height, width), (tall, wide) = size, patch
    places = torch.arange(height * width).view(height // tall, tall, width // wide, wide)
    moved = places.transpose(1, 2).reshape(-1, tall, wide)[patches]
    pixels = moved.view(height // tall, width // wide, tall, wide).transpose(1, 2).flatten()
    return Permutation(size, patch, patches, pixels)
