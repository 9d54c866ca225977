"""What a table hands to the runner, and measurements as test loops of a Lightning Trainer."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
from torch.utils.data import DataLoader, Dataset

from attnrepro.results.rows import Row


class Measurement(L.LightningModule, abc.ABC):
    """A module whose test batches are draws, shapes or sizes, and which ends with rows."""

    @abc.abstractmethod
    def rows(self) -> list[Row]:
        """Measured rows, after the Trainer has run, in a fixed order."""


@dataclass(frozen=True)
class Job:
    """A cell, or a part of one, ready for the Trainer: fitted first when there is something to fit, then tested.

    ``test`` is None where everything was measured while fitting.
    """

    module: Measurement
    test: Any
    fit: Any = None
    max_steps: int = -1


class _Items(Dataset[Any]):
    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def batches(items: Sequence[Any]) -> DataLoader[Any]:
    """A loader that hands out each item as it is, as one batch, in order and in this process."""
    return DataLoader(_Items(items), batch_size=None, shuffle=False, num_workers=0)
