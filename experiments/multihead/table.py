"""multihead, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import complexity, repeated_tokens

NAME = "multihead"
AXES = (
    *("module", "kernel", "num_heads", "depth", "layer", "rank", "role", "relation", "phase"),
    *("optimizer", "head_dim", "learning_rate"),
)
MODULES = ("ours", "torch")
KERNELS = ("naive", "fused")
OPTIMIZERS = ("sgd", "adam")
RELATIONS = ("previous", "own", "position", "shuffled")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/multihead.yaml`` says what each means."""

    study: str
    tokens: int
    embed_dim: int
    heads: list[int]
    batch: int
    rounds: int
    head_dims: list[int]
    n_keys: int
    key_dim: int
    sgd_rates: list[float]
    adam_rates: list[float]
    select_batch: int
    select_steps: int
    n_probe: int
    num_heads: int
    depth: int
    model_dim: int
    vocabulary: int
    length: int
    periods: list[int]
    learning_rate: float
    batch_size: int
    steps: int
    n_test: int
    target: float
    window: int
    worth: float
    clear: float

    def __post_init__(self) -> None:
        one_of(self, study=("cost", "time", "select", "induction"))
        distinct(self, "heads", "head_dims", "sgd_rates", "adam_rates", "periods")
        in_range(self, tokens=(1, 10**5), embed_dim=(1, 10**5), heads=(1, 10**4), batch=(1, 10**4), rounds=(2, 10**4))
        in_range(self, head_dims=(1, 10**5), n_keys=(2, 10**4), key_dim=(1, 10**4), sgd_rates=(1e-6, 1e3))
        in_range(self, adam_rates=(1e-6, 1), select_batch=(1, 10**5), select_steps=(1, 10**5), n_probe=(2, 10**5))
        in_range(self, num_heads=(1, 1000), depth=(1, 100), model_dim=(1, 10**4), vocabulary=(2, 10**4))
        in_range(self, length=(4, 10**4), periods=(2, self.vocabulary), learning_rate=(1e-6, 1), n_test=(2, 10**5))
        in_range(self, batch_size=(1, 10**5), steps=(1, 10**6), target=(0, 1), window=(1, 1000), worth=(0, 1))
        in_range(self, clear=(0, 1))
        for h in self.heads:
            if self.embed_dim % h:
                raise ValueError(f"heads={h} must divide embed_dim={self.embed_dim}")
        if self.heads[0] != 1:
            raise ValueError(f"heads={self.heads[0]} must come after 1, which the others are compared with")
        if self.model_dim % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} must divide model_dim={self.model_dim}")
        if max(self.periods) > self.length - 2:
            raise ValueError(f"length={self.length} must be 2 more than the longest of periods={self.periods}")

    def rates(self, optimizer: str) -> list[float]:
        """Learning rates that are tried with an optimiser."""
        return self.sgd_rates if optimizer == "sgd" else self.adam_rates


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p, seeds = cell.params, len(cell.seeds)
    if p.study == "cost":
        return 1.0
    if p.study == "time":
        return 1.0 + p.rounds * len(p.heads) * 8 * p.batch * complexity.flops("attention", p.tokens, p.embed_dim) / 2e10
    if p.study == "select":
        members = seeds * (len(p.sgd_rates) + len(p.adam_rates))
        return 1.0 + p.select_steps * members * sum(p.head_dims) * 1.6e-6
    size = seeds * p.batch_size * p.length
    return 1.0 + p.steps * p.depth * size * (p.model_dim**2 * 5e-9 + p.num_heads * p.length * 3e-9)


def theory(cell: Cell) -> list[Row]:
    """FLOPs 8 n d^2 + 4 n^2 d and parameters 4 d^2 whatever h is; scores of attention without preferences."""
    p = cell.params
    if p.study == "cost":
        n, d = p.tokens, p.embed_dim
        rows = []
        for module in MODULES:
            for h in p.heads:
                at: dict[str, object] = {"module": module, "num_heads": h}
                rows.append(_exact("flops", complexity.flops("attention", n, d, h=h), at))
                rows.append(_exact("parameters", 4 * d * d, at))
            rows += [_exact(name, 0, {"module": module}) for name in ("flops_spread", "parameters_spread")]
        return rows + [_exact("scores", h * n * n, {"num_heads": h}) for h in p.heads]
    if p.study == "induction":
        at = {"num_heads": p.num_heads, "depth": p.depth, "phase": "uniform"}
        return [
            _exact("mean_score", repeated_tokens.uniform_score(role, p.length - 1, p.periods), {**at, "role": role})
            for role in repeated_tokens.ROLES
        ]
    if p.study == "select":
        return [_exact("entropy", math.log(p.n_keys), {"phase": "uniform"})]
    return []


def _exact(quantity: str, value: float, axes: dict[str, object]) -> Row:
    return Row(quantity, value, axes, source="theory", statistic="exact")
