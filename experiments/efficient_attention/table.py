"""efficient_attention, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import efficient_attention as closed
from attnrepro.theory.efficient_attention import KINDS, Sizes

NAME = "efficient_attention"
AXES = ("network", "part", "phase", "length", "learning_rate")
PARTS = ("near", "far")
# Tokens beside two of each symbol: the two questions.
QUESTIONS = 2
# Whose outputs for equal weights are exact; equal weights of a random mixture are random.
UNIFORM = ("full", "linear", "window", "strided")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/efficient_attention.yaml`` says what each means."""

    study: str
    kind: str
    length: int
    symbols: int
    asked: int
    radius: int
    width: int
    stride: int
    rank: int
    patch: int
    embed_dim: int
    num_heads: int
    depth: int
    full_rate: float
    linear_rate: float
    low_rank_rate: float
    window_rate: float
    strided_rate: float
    rate_factors: list[float]
    tuning_seeds: list[int]
    batch_size: int
    steps: int
    cooldown: float
    n_test: int
    weight_draws: int
    order_draws: int
    shapes: list[str]
    lengths: list[int]

    def __post_init__(self) -> None:
        one_of(self, study=("structure", "tuning", "training"), kind=KINDS)
        distinct(self, "rate_factors", "tuning_seeds", "shapes", "lengths")
        in_range(self, length=(8, 10**4), symbols=(2, 1000), asked=(1, 1000), radius=(1, self.length - 1))
        in_range(self, width=(3, 10**4), stride=(1, 10**4), rank=(1, 10**4), patch=(2, self.length))
        in_range(self, embed_dim=(1, 10**4), num_heads=(1, 64), depth=(1, 32), batch_size=(1, 10**5))
        for kind in KINDS:
            in_range(self, **{f"{kind}_rate": (1e-6, 1)})
        in_range(self, rate_factors=(1e-3, 1e3))
        if 1 not in self.rate_factors or 1 in (min(self.rate_factors), max(self.rate_factors)):
            raise ValueError(f"rate_factors={self.rate_factors} must have 1 between others")
        in_range(self, steps=(1, 10**6), cooldown=(0, 1), n_test=(2, 10**6), weight_draws=(2, 10**6))
        in_range(self, order_draws=(1, 10**5), lengths=(2, 10**7), tuning_seeds=(0, 2**63 - 1))
        if self.length % 4 or self.asked > self.length // 4 or 5 * self.asked >= self.length:
            raise ValueError(f"length={self.length} must be a multiple of 4 and above 5 times asked={self.asked}")
        if self.length % self.patch:
            raise ValueError(f"patch={self.patch} must divide length={self.length}")
        if self.depth * (self.width // 2) >= self.length // 2:
            raise ValueError(f"width={self.width} must not reach half of length={self.length} in depth={self.depth}")
        for shape in self.shapes:
            if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}", shape):
                raise ValueError(f"shapes={shape} must be length x head_dim, as in 32x8")
            if shape_sizes(shape)[0] < self.width + 2:
                raise ValueError(f"shapes={shape} must be longer than the window, width={self.width}, by 2")
        model(self, self.kind)  # its own sizes are checked there


def shape_sizes(shape: str) -> tuple[int, int]:
    """Length and head_dim of a shape such as ``32x8``."""
    length, head_dim = map(int, shape.split("x"))
    return length, head_dim


def rate(p: Params, kind: str) -> float:
    """Learning rate of a kind."""
    return float(getattr(p, f"{kind}_rate"))


def tried_rates(p: Params, kind: str) -> list[float]:
    """Learning rates of study tuning."""
    return [rate(p, kind) * factor for factor in p.rate_factors]


def model(p: Params, kind: str) -> Sizes:
    """Sizes of a trained encoder, with as many parameters as full attention as its width allows."""
    base = Sizes(
        length=p.length,
        vocabulary=2 * p.symbols + QUESTIONS,
        outputs=p.symbols,
        embed_dim=p.embed_dim,
        num_heads=p.num_heads,
        depth=p.depth,
        rank=p.rank,
        width=p.width,
        stride=p.stride,
    )
    return closed.with_parameters(kind, base, closed.parameters("full", base))


def head(p: Params, length: int) -> Sizes:
    """One head of one layer on ``length`` tokens, whose attention is counted by itself."""
    return replace(model(p, "full"), length=length, embed_dim=p.embed_dim // p.num_heads, num_heads=1, depth=1)


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    cost = {"full": 1.0, "linear": 1.0, "low_rank": 1.0, "window": 2.0, "strided": 2.2}
    one = p.steps * p.batch_size * p.length * p.depth * 1.4e-6
    if p.study == "training":
        return 1.0 + len(cell.seeds) * one * cost[p.kind]
    if p.study == "tuning":
        return 1.0 + len(p.rate_factors) * len(p.tuning_seeds) * one * sum(cost.values())
    return 2.0 + p.order_draws * 0.02 + p.weight_draws * len(cell.seeds) * 1e-3


def theory(cell: Cell) -> list[Row]:
    """Locality of weights that know nothing, counts, and what chance answers where a window does not reach."""
    p = cell.params
    if p.study == "structure":
        at = (p.length, p.radius, p.width, p.stride)
        rows = [_exact("uniform_locality", closed.equal_weights_locality(k, *at), {"network": k}) for k in UNIFORM]
        rows.append(
            _exact("uniform_locality", closed.patch_locality(p.length, p.radius, p.patch), {"network": "patches"})
        )
        for kind in closed.BLIND:
            value = closed.equal_weights_locality(kind, *at)
            rows.append(Row("random_locality", value, {"network": kind}, source="theory", statistic="mean"))
        for kind in KINDS:
            axes: dict[str, object] = {"network": kind}
            rows.append(_exact("parameters", closed.parameters(kind, model(p, kind)), axes))
            for length in p.lengths:
                rows.append(_exact("flops", _attention_flops(p, kind, length), {**axes, "length": length}))
        return rows
    if p.study == "training" and p.kind == "window":
        axes = {"network": "window", "part": "far"}
        return [Row("accuracy", 1 / p.symbols, axes, source="theory", statistic="mean")]
    return []


def _attention_flops(p: Params, kind: str, length: int) -> int:
    """Of one head without its projections and readout."""
    sizes = head(p, length)
    rest = 8 * length * sizes.embed_dim**2 + 2 * length * sizes.embed_dim * sizes.outputs
    return closed.flops(kind, sizes) - rest


def _exact(quantity: str, value: float, axes: dict[str, object]) -> Row:
    return Row(quantity, value, axes, source="theory", statistic="exact")
