"""Seed ensembles: many small models trained as stacked parameters in one Lightning fit.

The loss of an ensemble is the sum over members of each member's own mean loss. Gradients then never mix members, and
Adam and gradient descent, which work element by element, move each member as if it were alone. (A mean over members,
or clipping the norm of all gradients, would couple them.)
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnrepro.nn.query_pool import Folded, QueryPools, join, pool
from attnrepro.training.measurement import Measurement, batches

# Elements of one slab [seeds, length, members, n]: what a core's caches hold, and a GPU's memory several times over.
CPU_SLAB, GPU_SLAB = 2**19, 2**28

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of each sequence in nats; ``labels`` are 0 or 1."""
    return nn.functional.binary_cross_entropy_with_logits(logits, labels.expand_as(logits), reduction="none")


def smooth_error(logits: Tensor, labels: Tensor) -> Tensor:
    """sigmoid(-logit of the right answer): as logits grow, the share of wrong answers itself."""
    return torch.sigmoid(logits * (1 - 2 * labels))


@dataclass(frozen=True)
class Recipe:
    """How an ensemble is trained.

    ``checkpoints`` are the steps after which it is measured, the last one ending the training; over the last
    ``cooldown`` share of the steps the learning rate falls linearly to zero.
    """

    optimizer: str
    checkpoints: tuple[int, ...]
    cooldown: float = 0.0

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return max(self.checkpoints)

    def rate(self, step: int) -> float:
        """Factor of the learning rate at ``step``, counted from 0."""
        cooling = self.cooldown * self.steps
        return min(1.0, (self.steps - step) / cooling) if cooling else 1.0


class SeedEnsemble(Measurement, abc.ABC):
    """Trains stacked members and keeps what is to be measured at each checkpoint."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.automatic_optimization = False  # the backward pass goes through the members in chunks
        self.recipe = recipe
        self.snapshots: dict[int, Any] = {}
        self._done = 0

    @abc.abstractmethod
    def parameter_groups(self) -> list[dict[str, Any]]:
        """Stacked parameters with their learning rate, as ``{"params": ..., "lr": ...}``."""

    @abc.abstractmethod
    def backward_sum(self, step: int) -> Tensor:
        """Add the gradient of the sum of member losses at ``step``; returns the mean loss, for the log."""

    @abc.abstractmethod
    def snapshot(self) -> Any:
        """What the test loop needs of the members as they are now."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser over all members."""
        groups = [{**group, "base_lr": group["lr"]} for group in self.parameter_groups()]
        if self.recipe.optimizer == "adam":
            return torch.optim.Adam(groups, fused=True)
        return torch.optim.SGD(groups)

    def loader(self) -> Any:
        """One item a step: the data stand on the device or are drawn there."""
        return batches(range(self.recipe.steps))

    def on_fit_start(self) -> None:
        """The start itself may be a checkpoint."""
        self._keep()

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of every member."""
        optimizer: Any = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * self.recipe.rate(batch)
        optimizer.zero_grad()
        self.log("loss", self.backward_sum(batch))
        optimizer.step()
        self._done = batch + 1
        self._keep()

    def _keep(self) -> None:
        if self._done in self.recipe.checkpoints:
            self.snapshots[self._done] = self.snapshot()


class Sequences(nn.Module):
    """The same sequences at every step.

    ``content`` ``[seeds, length, embed_dim, n]``, ``labels`` ``[seeds, n]``, 0 or 1.
    """

    def __init__(self, content: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.content = nn.Buffer(content, persistent=False)
        self.labels = nn.Buffer(labels, persistent=False)

    def forward(self, step: int) -> tuple[Tensor, Tensor]:
        """Content and labels of ``step``."""
        return self.content, self.labels


@dataclass(frozen=True)
class PoolGroup:
    """Pools that read the same sequences: families with their learning rates and losses.

    ``data`` gives content and labels of a step: `Sequences`, or a function that draws new ones.
    """

    families: Sequence[QueryPools]
    rates: Sequence[float]
    losses: Sequence[Loss]
    data: Callable[[int], tuple[Tensor, Tensor]]

    def folded(self) -> Folded:
        """All families side by side."""
        return join([family.fold() for family in self.families])

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of each member, ``[seeds, M]``, of logits ``[seeds, M, n]``."""
        if len(set(self.losses)) == 1:
            return self.losses[0](logits, labels[:, None]).mean(-1)
        widths = [family.bias.shape[1] for family in self.families]
        parts = zip(torch.split(logits, widths, 1), self.losses, strict=True)
        return torch.cat([loss(part, labels[:, None]).mean(-1) for part, loss in parts], -1)


def slabs(seeds: int, length: int, n: int, members: int, device: torch.device) -> list[slice]:
    """Seeds in chunks whose logits stay in the cache of a core, or in the memory of a GPU."""
    size = CPU_SLAB if device.type == "cpu" else GPU_SLAB
    step = max(1, size // (length * n * members))
    return [slice(i, min(i + step, seeds)) for i in range(0, seeds, step)]


class PoolEnsemble(SeedEnsemble):
    """Single-query pools of many seeds and settings, folded (``attnrepro.nn.query_pool``).

    All members of a seed read its sequences in one product. The backward pass goes chunk by chunk to the folded
    vectors, and once from there to the parameters.
    """

    def __init__(self, groups: Sequence[PoolGroup], recipe: Recipe) -> None:
        super().__init__(recipe)
        self.groups = list(groups)
        self.families = nn.ModuleList([family for group in groups for family in group.families])
        # Registered, so that Lightning moves the sequences with the parameters.
        self.data = nn.ModuleList([group.data for group in groups if isinstance(group.data, nn.Module)])

    def parameter_groups(self) -> list[dict[str, Any]]:
        """A group of parameters for each family."""
        return [
            {"params": list(family.parameters()), "lr": rate}
            for group in self.groups
            for family, rate in zip(group.families, group.rates, strict=True)
        ]

    def snapshot(self) -> list[Folded]:
        """The folded pools of each group."""
        with torch.no_grad():
            return [Folded(*(part.clone() for part in group.folded())) for group in self.groups]

    def backward_sum(self, step: int) -> Tensor:
        """Backward pass of every group."""
        return torch.stack([self._backward(group, step) for group in self.groups]).mean()

    def _backward(self, group: PoolGroup, step: int) -> Tensor:
        folded = group.folded()
        content, labels = group.data(step)
        gradients, total = [], []
        seeds, length, _, n = content.shape
        for chunk in slabs(seeds, length, n, folded.bias.shape[-1], content.device):
            leaves = Folded(*(part.detach().requires_grad_() for part in folded.of(chunk)))
            loss = group.loss(pool(content[chunk], leaves), labels[chunk])
            gradients.append(torch.autograd.grad(loss.sum(), list(leaves)))
            total.append(loss.detach())
        joined = [torch.cat(parts) for parts in zip(*gradients, strict=True)]
        # An encoding may leave a part alone; zeros that nothing was learned for have no graph.
        learned = [(part, g) for part, g in zip(folded, joined, strict=True) if part.requires_grad]
        torch.autograd.backward([part for part, _ in learned], [g for _, g in learned])
        return torch.cat(total).mean()


def right_answers(content: Tensor, labels: Tensor, folded: Folded) -> Tensor:
    """How many sequences each member labels right, ``[seeds, M]``; a logit of exactly 0 is a wrong answer."""
    with torch.no_grad():
        seeds, length, _, n = content.shape
        found = []
        for chunk in slabs(seeds, length, n, folded.bias.shape[-1], content.device):
            margin = pool(content[chunk], folded.of(chunk)) * (2 * labels[chunk, None] - 1)
            found.append((margin > 0).sum(-1))
        return torch.cat(found)


def is_finite(folded: Folded) -> Tensor:
    """Whether a member has only finite numbers, ``[seeds, M]``: what diverged is reported, not averaged."""
    parts = [p.isfinite().all(-1) if p.ndim == 4 else p.isfinite() for p in folded[:4]]
    return torch.stack([*(part.all(1) for part in parts), folded.bias.isfinite()]).all(0)
