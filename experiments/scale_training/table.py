"""scale_training, the torch-free half: parameters and theory."""

from __future__ import annotations

from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import key_retrieval

NAME = "scale_training"
AXES = ("optimizer", "head_dim", "init", "arm", "learning_rate", "step")
# Arms whose learning rate is raced for, and whose rate each trained arm uses.
RACED = ("scaled", "unscaled")
RATE_OF = {"scaled": "scaled", "unscaled": "unscaled", "scale_removed": "scaled", "uniform": "scaled"}
ARMS = tuple(RATE_OF)
# Variance of a weight at the start, times embed_dim.
WEIGHT_VARIANCE = {"unit": 1.0, "linear": 1 / 3}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/scale_training.yaml`` says what each means."""

    optimizer: str
    head_dim: int
    init: str
    embed_dim: int
    n_keys: int
    batch_size: int
    steps: int
    target: float
    window: int
    hold: int
    tuning_seeds: list[int]
    scaled_rates: list[float]
    unscaled_rates: list[float]
    breaking_rate: float
    diverged_factor: float
    few_steps: int
    probe_steps: list[int]
    n_probe: int
    n_test: int

    def __post_init__(self) -> None:
        one_of(self, optimizer=("sgd", "adam"), init=tuple(WEIGHT_VARIANCE))
        in_range(self, head_dim=(1, 65536), embed_dim=(1, 65536), n_keys=(2, 65536), batch_size=(1, 10**6))
        in_range(self, steps=(1, 10**7), target=(0, 1), window=(1, 10**6), hold=(1, 10**6), few_steps=(0, 10**7))
        in_range(self, tuning_seeds=(0, 2**62), scaled_rates=(1e-12, 1e6), unscaled_rates=(1e-12, 1e6))
        in_range(self, breaking_rate=(1e-12, 1e12), diverged_factor=(1, 1e12), probe_steps=(0, 10**7))
        in_range(self, n_probe=(1, 10**6), n_test=(1, 10**9))
        distinct(self, "tuning_seeds", "scaled_rates", "unscaled_rates", "probe_steps")
        if 0 not in self.probe_steps:
            raise ValueError(
                f"probe_steps={self.probe_steps} must contain 0, the start that later steps are held against"
            )


def theory(cell: Cell) -> list[Row]:
    """Variance of the logits at the start, and what frozen uniform attention can reach."""
    p = cell.params
    base = {"optimizer": p.optimizer, "head_dim": p.head_dim, "init": p.init}
    rows = [
        Row(
            "logit_variance",
            key_retrieval.start_logit_variance(p.head_dim, WEIGHT_VARIANCE[p.init], scaled=arm == "scaled"),
            {**base, "arm": arm, "step": 0},
            source="theory",
            statistic="mean",
        )
        for arm in ARMS
        if arm != "uniform"
    ]
    at = {**base, "arm": "uniform"}
    uniform = key_retrieval.uniform_accuracy(p.n_keys)
    return [*rows, Row("uniform_accuracy", uniform, at, source="theory", statistic="share")]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning: 3 ns a weight of W_Q and W_K, seed, arm and update."""
    p = cell.params
    weights = 2 * p.embed_dim * p.head_dim
    return 2.0 + 3e-9 * p.steps * len(cell.seeds) * len(ARMS) * (weights + 3e4)
