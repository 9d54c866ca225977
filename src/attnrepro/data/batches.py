"""What is between a set of images and training steps: standardising, and the order in which images are seen."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnrepro.data.imageset import ImageSet
from attnrepro.data.streams import generator


@dataclass(frozen=True)
class Standardiser:
    """Mean and standard deviation of each channel, ``[c]``, in grey values 0 to 255.

    To be fitted on the training subset and used, after augmentation, for everything that is shown to its model: what
    augmentation pads with zeros is then black and not the mean.
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, images: ImageSet) -> "Standardiser":
        """Over all pixels, from exact sums of whole numbers. A channel of one grey value gets the deviation 1."""
        channels = images.images.unbind(1)
        counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in channels])
        values, n = torch.arange(256, device=counts.device), counts[0].sum()
        mean = (counts * values).sum(1).double() / n
        variance = (counts * values**2).sum(1).double() / n - mean.square()
        return cls(mean, variance.sqrt().where(variance > 0, 1.0))

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``[n, c, h, w]`` of any type in grey values 0 to 255, as float32 of mean 0 and deviation 1."""
        mean, std = (part.to(images.device, torch.float32)[:, None, None] for part in (self.mean, self.std))
        return (images.float() - mean) / std


class EpochOrder:
    """Which images each training step sees: epoch after epoch in fresh random order, cut into batches of one size.

    A batch may run over the end of an epoch into the next, so that no image is left out and no batch is short (batch
    statistics of one image would be undefined); with fewer images than ``batch_size`` a batch is one whole epoch.
    Each epoch has a stream of its own: a step's batch depends on the step alone, and training that was interrupted
    goes on where it was.
    """

    def __init__(self, n: int, batch_size: int, seed: int, *names: object, device: torch.device | str = "cpu") -> None:
        if n < 1 or batch_size < 1:
            raise ValueError(f"n={n} and batch_size={batch_size} must be at least 1")
        self.n = n
        self.batch_size = min(n, batch_size)
        self._seed, self._names = seed, names
        self._device = device
        self._epochs: dict[int, Tensor] = {}

    def batch(self, step: int) -> Tensor:
        """Indices ``[batch_size]`` of step 0, 1, ..."""
        start = step * self.batch_size
        epoch, at = divmod(start, self.n)
        head = self._epoch(epoch)[at : at + self.batch_size]
        short = self.batch_size - len(head)
        return torch.cat([head, self._epoch(epoch + 1)[:short]]) if short else head

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            stream = generator(self._seed, *self._names, "order", epoch)
            order = torch.randperm(self.n, generator=stream).to(self._device)
            self._epochs = {e: o for e, o in self._epochs.items() if e == epoch - 1} | {epoch: order}
        return self._epochs[epoch]
