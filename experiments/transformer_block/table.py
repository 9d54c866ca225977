"""transformer_block, the torch-free half: parameters and what is known at the start."""

from __future__ import annotations

from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import layer_norm_order as closed

NAME = "transformer_block"
AXES = ("module", "order", "depth", "warm_up", "learning_rate", "layer", "arm")
ORDERS = ("post", "pre", "pre_qk_norm", "none")
# Stacks whose tokens are followed through the layers, as options of nn.transformer_stack.
ARMS: dict[str, dict[str, object]] = {
    "attention": {"order": "bare", "skip": False, "mlp": False},
    "attention_mlp": {"order": "bare", "skip": False, "mlp": True},
    "attention_norm": {"order": "post", "skip": False, "mlp": False},
    "skip": {"order": "bare", "skip": True, "mlp": False},
    "post": {"order": "post", "skip": True, "mlp": True},
    "pre": {"order": "pre", "skip": True, "mlp": True},
}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/transformer_block.yaml`` says what each means."""

    study: str
    shapes: list[str]
    draws: int
    width: int
    heads: int
    tokens: int
    sequences: int
    gradient_depths: list[int]
    rank_depth: int
    distances: list[float]
    depth: int
    orders: list[str]
    embed_dim: int
    num_heads: int
    hidden: int
    vocabulary: int
    length: int
    batch_size: int
    learning_rates: list[float]
    warm_ups: list[int]
    steps: int
    target: float
    stuck_below: float
    window: int
    diverged_factor: float

    def __post_init__(self) -> None:
        one_of(self, study=("training", "exact", "gradient", "rank"), orders=ORDERS)
        distinct(self, "shapes", "gradient_depths", "distances", "orders", "learning_rates", "warm_ups")
        in_range(self, draws=(1, 10**6), width=(1, 10**4), heads=(1, 10**3), tokens=(2, 10**4), sequences=(1, 10**4))
        in_range(self, gradient_depths=(1, 1000), rank_depth=(1, 1000), distances=(1e-5, 0.1), depth=(1, 1000))
        in_range(self, embed_dim=(1, 10**4), num_heads=(1, 10**3), hidden=(1, 10**5), vocabulary=(2, 10**4))
        in_range(self, length=(2, 10**4), batch_size=(1, 10**5), learning_rates=(1e-6, 1), warm_ups=(0, 10**6))
        in_range(self, steps=(1, 10**6), target=(0, 1), stuck_below=(0, self.target), window=(1, 10**4))
        in_range(self, diverged_factor=(1, 1e6))
        if self.embed_dim % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} must divide embed_dim={self.embed_dim}")
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} must divide width={self.width}")
        for shape in self.shapes:
            parts = shape.split("x")
            if len(parts) != 4 or not all(part.isdigit() and int(part) for part in parts):
                raise ValueError(f"shapes={shape} must be sequences x length x embed_dim x heads, as in 2x10x64x8")
            if int(parts[2]) % int(parts[3]):
                raise ValueError(f"shapes={shape} must have heads that divide embed_dim")


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study != "training":
        return 4.0
    members = len(cell.seeds) * len(p.learning_rates) * len(p.warm_ups)
    size = members * p.batch_size * p.length * p.embed_dim * (4 * p.embed_dim + 2 * p.hidden)
    return 1.0 + len(p.orders) * p.steps * p.depth * (1.2e-3 + size * 4.5e-10)


def theory(cell: Cell) -> list[Row]:
    """Sizes of tokens at the start, and powers of the distance from equal tokens."""
    p = cell.params
    if p.study == "gradient":
        layers = range(1, max(p.gradient_depths) + 1)
        return [
            Row("token_square", value, {"order": order, "layer": layer}, source="theory", statistic="mean")
            for layer in layers
            for order, value in (("post", closed.post_square()), ("pre", closed.pre_square(layer)))
        ]
    if p.study == "rank":
        return [
            Row("collapse_power", closed.collapse_power(bool(options["skip"])), {"arm": arm}, "theory", "mean")
            for arm, options in ARMS.items()
        ]
    if p.study == "exact":
        return [Row("shape_change", 0, {"module": "listing", "order": "post"}, source="theory", statistic="exact")]
    return []
