"""Image classifiers: one model, or many MLPs at once, trained, selected on validation images and tested once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnrepro.data.streams import stream_seed
from attnrepro.nn.mlp import MLP, MLPEnsemble
from attnrepro.training.checkpoints import Checkpoints
from attnrepro.training.image_data import Batch, Part
from attnrepro.training.measurement import Measurement
from attnrepro.training.recipe import Recipe


@dataclass(frozen=True)
class Outcome:
    """One checkpoint of one member on one test set.

    ``step`` is when the checkpoint was taken, ``accuracy`` the share of all ``n`` images that it labels right, ``loss``
    their mean cross-entropy in nats; both are NaN where logits are not finite. ``diverged`` says whether a loss of this
    member's training or validation was ever not finite: its best checkpoint may be sound all the same.
    """

    member: int
    checkpoint: str
    test: str
    step: int
    n: int
    accuracy: float
    loss: float
    diverged: bool


@dataclass(frozen=True)
class Evaluation:
    """Validation accuracy and loss of every member after ``step`` steps; NaN where it had stopped or diverged."""

    step: int
    accuracy: list[float]
    loss: list[float]


class Tally:
    """Right answers and losses of every member, summed exactly over parts of any size."""

    def __init__(self) -> None:
        self.n = 0
        self.right: Tensor | int = 0
        self.total: Tensor | float = 0.0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits ``[members, n, classes]`` and labels ``[members, n]``."""
        self.n += labels.shape[1]
        self.right = self.right + (logits.argmax(-1) == labels).sum(1)
        self.total = self.total + losses(logits.double(), labels).sum(1)

    def means(self) -> tuple[Tensor, Tensor]:
        """Accuracy and loss ``[members]`` in float64; NaN where the loss is not finite."""
        loss = torch.as_tensor(self.total) / self.n
        accuracy = torch.as_tensor(self.right).double() / self.n
        finite = loss.isfinite()
        return torch.where(finite, accuracy, torch.nan), torch.where(finite, loss, torch.nan)


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy ``[members, n]`` in nats, in float32 or better."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


class Classifier(Measurement):
    """Trains models by a recipe and tests the best and the last checkpoint of each, once.

    MLPs train as one ensemble: the loss is the sum of the members' mean losses and the norm of each member's gradient
    is clipped by itself, so that each is trained as if alone. Any other model trains by itself. Validation images
    choose the best checkpoint and end a training with patience; test images are seen after training only.

    Args:
        models: MLPs of one shape, or a single model of any kind.
        recipe: optimiser, schedule and evaluations.
        seed: of dropout.
        channels_last: store images and kernels with the channels innermost, faster for convolutions.
        compiled: run the model through ``torch.compile``.
        label: ends the names of what is logged; tells fits of one run apart.

    Raises:
        ValueError: several models that are not all MLPs.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        recipe: Recipe,
        *,
        seed: int = 0,
        channels_last: bool = False,
        compiled: bool = False,
        label: str = "",
    ) -> None:
        super().__init__()
        mlps = [model for model in models if isinstance(model, MLP)]
        self.stacked = len(mlps) == len(models) > 0
        if not self.stacked and len(models) != 1:
            raise ValueError(f"models must be MLPs or a single one, not {len(models)} of other kinds")
        self.model = MLPEnsemble(mlps) if self.stacked else models[0]
        self.count = len(models)
        self.recipe = recipe
        self.seed = seed
        self.channels_last = channels_last
        self.label = label
        self.history: list[Evaluation] = []
        self.tested: dict[tuple[str, str], Tally] = {}
        self._tally = Tally()
        self._loaded: str | None = None
        if channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if compiled:
            self.model.compile()

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[members, n, classes]`` of images ``[members, n, channels, height, width]``."""
        if self.stacked:
            logits: Tensor = self.model(images)
            return logits
        alone = images[0].contiguous(memory_format=torch.channels_last) if self.channels_last else images[0]
        only: Tensor = self.model(alone)
        return only[None]

    def configure_optimizers(self) -> Any:
        """AdamW; biases, gains and other parameters that are vectors in each member do not decay."""
        parameters = list(self.model.parameters())
        decays = [p.ndim - self.stacked > 1 for p in parameters]
        groups = [
            {"params": [p for p, d in zip(parameters, decays, strict=True) if d is decay], "weight_decay": weight}
            for decay, weight in ((True, self.recipe.weight_decay), (False, 0.0))
        ]
        # A fused step would undo the scaling of float16 gradients after they were clipped.
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        optimizer = torch.optim.AdamW(groups, lr=self.recipe.learning_rate, fused=not scaled)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.recipe.rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(self, optimizer: Any, *_: Any, **__: Any) -> None:
        """Clip each member by its own norm."""
        if self.stacked:
            clip_members(list(self.model.parameters()), self.recipe.clip)
        else:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)

    def on_fit_start(self) -> None:
        """Nothing is kept yet; dropout starts from its seed."""
        self.checkpoints = Checkpoints(
            self.model, self.count, stacked=self.stacked, patience=self.recipe.patience, device=self.device
        )
        self.diverged = torch.zeros(self.count, dtype=torch.bool, device=self.device)
        torch.manual_seed(stream_seed(self.seed, "dropout"))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The sum of the members' mean losses."""
        means = losses(self(batch.images), batch.labels).mean(1)
        self.diverged |= self.checkpoints.running & ~means.detach().isfinite()
        self.log(f"loss{self.label}", means.detach().mean())
        return means.sum()

    def on_validation_epoch_start(self) -> None:
        """Count from zero."""
        self._tally = Tally()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count right answers."""
        self._tally.add(self(batch.images), batch.labels)

    def on_validation_epoch_end(self) -> None:
        """Keep what is best, and stop when no member goes on."""
        accuracy, loss = self._tally.means()
        running = self.checkpoints.running
        self.diverged |= running & ~loss.isfinite()
        step = self.trainer.global_step
        self.history.append(Evaluation(step, *(torch.where(running, x, torch.nan).tolist() for x in (accuracy, loss))))
        self.checkpoints.update(step, accuracy)
        means = {"val_accuracy": accuracy.mean(), "val_loss": loss.mean()}
        self.log_dict({f"{name}{self.label}": value for name, value in means.items()})
        if not self.checkpoints.running.any():
            self.trainer.should_stop = True

    def test_step(self, batch: Part, batch_idx: int) -> None:
        """Count right answers of one checkpoint on a part of one test set."""
        if batch.checkpoint == "last" and torch.equal(*self.checkpoints.steps.values()):
            # The same weights give the same answers.
            self.tested["last", batch.test] = self.tested["best", batch.test]
            return
        if batch.checkpoint != self._loaded:
            self.checkpoints.load(batch.checkpoint)
            self._loaded = batch.checkpoint
        tally = self.tested.setdefault((batch.checkpoint, batch.test), Tally())
        tally.add(self(batch.batch.images), batch.batch.labels)

    def outcomes(self) -> list[Outcome]:
        """Every member on every test set, best checkpoints before last ones."""
        result = []
        diverged = self.diverged.tolist()
        for (checkpoint, test), tally in self.tested.items():
            steps = self.checkpoints.steps[checkpoint].tolist()
            accuracy, loss = (values.tolist() for values in tally.means())
            result += [
                Outcome(m, checkpoint, test, steps[m], tally.n, accuracy[m], loss[m], diverged[m])
                for m in range(self.count)
            ]
        return result


def clip_members(parameters: Sequence[nn.Parameter], largest: float) -> None:
    """Scale gradients ``[members, ...]`` so that no member's norm over all of them is above ``largest``.

    The same as torch's ``clip_grad_norm_`` on each member by itself.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
    factor = (largest / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *[1] * (gradient.ndim - 1)))
