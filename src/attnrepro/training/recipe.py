"""How a classifier is trained: AdamW with warm-up and cosine, for equal updates or to convergence."""

import math
from dataclasses import dataclass

# A training to convergence ends after this many evaluations without a higher validation accuracy,
PATIENCE = 5
# or after 30 evaluations that share this many passes over the data or steps, whichever is more.
EVALUATIONS, EPOCHS, STEPS = 30, 30, 4000


@dataclass(frozen=True)
class Recipe:
    """Optimiser, schedule, and when to look at the validation images.

    Args:
        learning_rate: at its highest.
        weight_decay: decoupled (Loshchilov and Hutter 2019), of parameters with two or more dimensions.
        steps: updates of the whole training.
        evaluations: evenly spaced, the last after the last step; must divide ``steps``.
        batch_size: images of a step; all of them where there are fewer.
        patience: evaluations without a higher validation accuracy after which a member stops; None trains all steps.
        warmup: share of the steps over which the rate rises linearly, before it falls to zero as a cosine.
        clip: largest norm of a member's gradient.

    Raises:
        ValueError: evaluations that do not divide the steps, or a count below 1.
    """

    learning_rate: float
    weight_decay: float
    steps: int
    evaluations: int
    batch_size: int = 64
    patience: int | None = None
    warmup: float = 0.05
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name in ("steps", "evaluations", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be 1 or more")
        if self.steps % self.evaluations:
            raise ValueError(f"evaluations={self.evaluations} must divide steps={self.steps}")

    @classmethod
    def to_convergence(cls, n: int, *, learning_rate: float, weight_decay: float, batch_size: int = 64) -> "Recipe":
        """Until validation accuracy has not risen for 5 evaluations; at most 30 epochs or 4000 steps, the larger.

        The number of steps is rounded down to a whole number of steps between evaluations.
        """
        most = max(EPOCHS * math.ceil(n / batch_size), STEPS)
        steps = most - most % EVALUATIONS
        return cls(learning_rate, weight_decay, steps, EVALUATIONS, batch_size, PATIENCE)

    @property
    def evaluate_every(self) -> int:
        """Steps between evaluations."""
        return self.steps // self.evaluations

    def rate(self, step: int) -> float:
        """Factor of the learning rate at ``step``, counted from 0."""
        rising = math.ceil(self.warmup * self.steps)
        if step < rising:
            return (step + 1) / rising
        return (1 + math.cos(math.pi * (step - rising) / (self.steps - rising))) / 2 if step < self.steps else 0.0
