"""Exact first and second moments of Monte-Carlo observations."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torchmetrics import Metric


class Moments(Metric):
    """n, sum and sum of outer products of observation vectors, in float64 whatever the observations are in.

    torchmetrics' ``MeanMetric`` sums in float32: over 10^6 draws it was off by more than a hundred standard
    errors, and ``.double()`` does not change that.
    """

    full_state_update = False
    n: Tensor
    total: Tensor
    outer: Tensor

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("n", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("outer", torch.zeros(size, size, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, observations: Tensor) -> None:
        """Add ``[batch, size]`` independent observations; ``ValueError`` for any other shape."""
        if observations.ndim != 2 or observations.shape[1] != len(self.total):
            raise ValueError(f"observations must be [batch, {len(self.total)}], not {list(observations.shape)}")
        exact = observations.to(torch.float64)
        self.n += exact.shape[0]
        self.total += exact.sum(dim=0)
        self.outer += exact.T @ exact

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> "Moments":
        """Follow the module to its device, but not to its precision: the sums stay exact."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device)

        return cast("Moments", super()._apply(move, exclude_state))

    def compute(self) -> Tensor:
        """Mean of an observation, ``[size]``."""
        return self.total / self.n

    def mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        """Mean ``[size]`` and covariance ``[size, size]`` (denominator n - 1) of one observation.

        Not ``compute``: torchmetrics takes the dimensions off whatever that returns when size is 1.
        """
        n = self.n.to(torch.float64)
        mean = self.total / n
        covariance = (self.outer - n * torch.outer(mean, mean)) / (n - 1)
        return mean, covariance
