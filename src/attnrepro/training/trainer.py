"""The Lightning Trainer of every cell, and its progress."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import lightning as L
import torch

from attnrepro.config import Cell

# Called with the share of the cell that is done, at most twice a second.
OnProgress = Callable[[float], None]


class Progress(L.Callback):
    """Reports how far the cell is."""

    def __init__(self, report: OnProgress, *, every: float = 0.5) -> None:
        self.report = report
        self.every = every
        self.last = time.monotonic()

    def _tell(self, done: int, total: float) -> None:
        now = time.monotonic()
        if total and total != float("inf") and now - self.last >= self.every:
            self.last = now
            self.report(done / total)

    def on_test_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        *_: Any,
    ) -> None:
        """Report after a measured batch."""
        self._tell(batch_idx + 1, sum(trainer.num_test_batches))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report after a training step."""
        self._tell(trainer.global_step, float(trainer.max_steps))


def make_trainer(cell: Cell, *, logger: Any = None, max_steps: int = -1, report: OnProgress | None = None) -> L.Trainer:
    """A Trainer on one device: deterministic (except where time is measured), without files of its own.

    Sets torch's threads to the cell's: rows are reproducible to the last bit only at the same number.
    """
    torch.set_num_threads(cell.threads)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*log_every_n_steps.*")
    return L.Trainer(
        accelerator="cuda" if cell.accelerator == "cuda" else "cpu",
        devices=1,
        precision=cell.precision,  # type: ignore[arg-type]
        deterministic=not cell.timing,
        max_steps=max_steps,
        logger=logger or False,
        callbacks=[Progress(report)] if report else [],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        inference_mode=False,  # measurements may take gradients
        num_sanity_val_steps=0,
    )
