"""The best and the last state of every member of an ensemble, kept in memory."""

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


class Checkpoints:
    """Keeps states by validation accuracy, and tells who goes on.

    A member that has stopped keeps its states, though it is trained on as long as others are: it ends as if alone.

    Args:
        model: whose states are kept.
        members: how many.
        stacked: whether every tensor of the model has the members as its first dimension; if not, there is one.
        patience: evaluations without a higher accuracy after which a member stops; None for never.
        device: of the running figures.
    """

    def __init__(
        self, model: nn.Module, members: int, *, stacked: bool, patience: int | None, device: torch.device
    ) -> None:
        self.model, self.stacked, self.patience = model, stacked, patience
        self.states: dict[str, State] = {
            name: {key: value.clone() for key, value in model.state_dict().items()} for name in ("best", "last")
        }
        self.steps = {name: torch.zeros(members, dtype=torch.int64, device=device) for name in self.states}
        self.best_accuracy = torch.full((members,), -torch.inf, dtype=torch.float64, device=device)
        self.waited = torch.zeros(members, dtype=torch.int64, device=device)
        self.running = torch.ones(members, dtype=torch.bool, device=device)

    def update(self, step: int, accuracy: Tensor) -> None:
        """Take in the state after ``step`` steps, with validation accuracies ``[members]``; NaN is never the best.

        Of equal accuracies the earliest is the best.
        """
        rose = self.running & (accuracy > self.best_accuracy)
        self._keep("best", step, rose)
        self._keep("last", step, self.running)
        self.best_accuracy = torch.where(rose, accuracy, self.best_accuracy)
        self.waited = torch.where(rose, 0, self.waited + 1)
        if self.patience is not None:
            self.running = self.running & (self.waited < self.patience)

    def load(self, name: str) -> None:
        """Give the model its "best" or "last" state."""
        self.model.load_state_dict(self.states[name])

    def _keep(self, name: str, step: int, which: Tensor) -> None:
        self.steps[name][which] = step
        now = self.model.state_dict()
        for key, kept in self.states[name].items():
            self._by_member(kept)[which] = self._by_member(now[key])[which]

    def _by_member(self, tensor: Tensor) -> Tensor:
        return tensor if self.stacked else tensor[None]
