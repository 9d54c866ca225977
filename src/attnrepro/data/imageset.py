"""A labelled set of images in memory."""

import functools
import hashlib
from dataclasses import dataclass

from torch import Tensor, bincount, int64, uint8


@dataclass(frozen=True)
class ImageSet:
    """Images ``[n, channels, height, width]`` in uint8, labels ``[n]`` in int64, and the names of all classes.

    A subset keeps all classes, whether it has images of them or not. Raises ``ValueError`` for other shapes or types,
    no image at all, or a label that is no class.
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != uint8:
            raise ValueError(f"images of {self.name} must be uint8 [n, channels, height, width]")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != int64:
            raise ValueError(f"labels of {self.name} must be int64, one for each of its {len(self.images)} images")
        if not len(self.labels):
            raise ValueError(f"{self.name} has no images")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            wrong = low if low < 0 else high
            raise ValueError(f"{self.name} has a label {wrong}, but its classes are 0 to {len(self.classes) - 1}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> tuple[int, ...]:
        """Images of each class."""
        return tuple(bincount(self.labels, minlength=len(self.classes)).tolist())

    @functools.cached_property
    def sha256(self) -> str:
        """Checksum of pixels, labels and class names, whatever file format they came in."""
        hashed = hashlib.sha256(repr((tuple(self.images.shape), self.classes)).encode())
        for part in (self.images, self.labels):
            hashed.update(part.cpu().numpy().tobytes())
        return hashed.hexdigest()

    def take(self, index: Tensor) -> "ImageSet":
        """The images at ``index`` ``[k]``, in that order."""
        return ImageSet(self.name, self.images[index], self.labels[index], self.classes)
