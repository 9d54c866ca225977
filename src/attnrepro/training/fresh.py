"""Training on images that are drawn anew for every update, looked at as it goes on: accuracy against budget.

After a short warm-up the learning rate is constant. What stands after b updates is then, to the last bit, what a
training of b updates ends with, so that one run gives the accuracy of every budget; with a rate that falls to zero by
the end, each budget would be a training of its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnrepro.training.measurement import Measurement, batches

# Updates whose images are drawn together, and images that are tested at once.
AT_ONCE, CHUNK = 10, 500
# The label of what has none.
UNLABELLED = -1

# n new images [n, channels, height, width] with labels [n] or [n, places, places] from a stream.
Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class FreshRecipe:
    """AdamW at a constant rate after ``warmup`` updates over which it rises.

    Args:
        learning_rate: after the warm-up.
        weight_decay: decoupled (Loshchilov and Hutter 2019), of parameters with two or more dimensions.
        steps: updates of the whole training.
        every: updates between two looks; divides ``steps``.
        batch_size: images of an update.
        warmup: updates over which the rate rises linearly.
        clip: largest norm of the gradient.

    Raises:
        ValueError: a count below 1, or ``every`` that is no multiple of 10 or does not divide ``steps``.
    """

    learning_rate: float
    weight_decay: float
    steps: int
    every: int
    batch_size: int = 64
    warmup: int = 50
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "every", "batch_size", "warmup"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be 1 or more")
        if self.steps % self.every or self.every % AT_ONCE:
            raise ValueError(f"every={self.every} must be a multiple of {AT_ONCE} that divides steps={self.steps}")

    def rate(self, step: int) -> float:
        """Learning rate of an update, counted from 0."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup)


class Look(NamedTuple):
    """What is seen at one step: share of labelled items that are right, and their mean cross-entropy in nats."""

    accuracy: float
    loss: float


class FreshTraining(Measurement):
    """Trains one model and looks at it at the start and every ``recipe.every`` updates, on images it never trains on.

    Nothing is chosen by what is seen. A training whose loss or whose model is not finite once stays as it is.

    Args:
        model: from images to logits ``[n, classes]`` or ``[n, classes, places, places]``.
        recipe: optimiser, updates and looks.
        draw: training images of an update.
        stream: makes the generator of the training images on a device.
        held_out: images and labels to look at.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: FreshRecipe,
        draw: Draw,
        stream: Callable[[torch.device], torch.Generator],
        held_out: tuple[Tensor, Tensor],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False  # many updates to a batch of the loop, whose overhead is that of one
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.recipe, self.draw = recipe, draw
        self.images, self.labels = (nn.Buffer(part, persistent=False) for part in held_out)
        self.looks: dict[int, Look] = {}
        self.diverged = False
        self._stream_of = stream
        self._stream: torch.Generator | None = None

    def loader(self) -> Any:
        """Items: the first update of each stretch between two looks."""
        return batches(range(0, self.recipe.steps, self.recipe.every))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW; biases and gains do not decay."""
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if (p.ndim > 1) is decays], "weight_decay": weight}
            for decays, weight in ((True, self.recipe.weight_decay), (False, 0.0))
        ]
        return torch.optim.AdamW(groups, lr=self.recipe.learning_rate, fused=True)

    def on_fit_start(self) -> None:
        """Look at the start."""
        self.looks[0] = self.look()

    def training_step(self, batch: int, batch_idx: int) -> None:
        """The updates up to the next look, and that look."""
        for first in range(batch, batch + self.recipe.every, AT_ONCE):
            self._update(first)
        self.looks[batch + self.recipe.every] = look = self.look()
        self.log_dict({"accuracy": look.accuracy, "loss": look.loss})

    def _update(self, first: int) -> None:
        if self._stream is None:
            self._stream = self._stream_of(self.device)
        size, optimizer = self.recipe.batch_size, self.optimizers()
        images, labels = self.draw(size * AT_ONCE, self._stream)
        images = images.contiguous(memory_format=torch.channels_last)
        for step, (x, y) in enumerate(zip(torch.split(images, size), torch.split(labels, size), strict=True), first):
            for group in optimizer.param_groups:  # type: ignore[union-attr]
                group["lr"] = self.recipe.rate(step)
            loss = cross_entropy(self.model(x).float(), y, ignore_index=UNLABELLED)
            optimizer.zero_grad()  # type: ignore[union-attr]
            self.manual_backward(loss)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
            self.diverged = self.diverged or not bool(norm.isfinite())
            if self.diverged:
                optimizer.zero_grad()  # type: ignore[union-attr]
            # Without gradients nothing moves, but the loop goes on counting.
            optimizer.step()  # type: ignore[union-attr]

    def look(self) -> Look:
        """Accuracy and loss on the held-out images, as tested; NaN once diverged."""
        self.model.eval()
        right, total, count = 0, 0.0, 0
        with torch.no_grad():
            for x, y in zip(torch.split(self.images, CHUNK), torch.split(self.labels, CHUNK), strict=True):
                logits = self.model(x.contiguous(memory_format=torch.channels_last)).double()
                labelled = y != UNLABELLED
                right += int(((logits.argmax(1) == y) & labelled).sum())
                count += int(labelled.sum())
                total += float(cross_entropy(logits, y, ignore_index=UNLABELLED, reduction="sum"))
        self.model.train()
        sound = math.isfinite(total) and not self.diverged
        self.diverged = not sound
        return Look(right / count, total / count) if sound else Look(math.nan, math.nan)
