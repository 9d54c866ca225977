"""permutation_symmetry, the torch-free half: parameters and exact theory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import set_functions

NAME = "permutation_symmetry"
AXES = ("length", "model", "member", "shape", "init", "dtype", "breaker")

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}
NONLINEAR = ("deep_sets", "attention_mlp")
MODELS = (*NONLINEAR, "attention_linear")
# Correlations and accuracies that Monte Carlo is judged by.
RULES = {
    "bayes_accuracy": "share",
    "mean_sign_accuracy": "share",
    "correlation_mean_token": "value",
    "correlation_mean_label": "value",
    "correlation_mean_of_signs_label": "value",
    "correlation_lead_of_mean": "value",
}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/permutation_symmetry.yaml`` says what each means."""

    study: str
    model: str
    draws: int
    shapes: list[str]
    reference_shape: str
    inits: list[str]
    dtypes: list[str]
    breakers: list[str]
    breaker_shapes: list[str]
    window_width: int
    lengths: list[int]
    n_sequences: int
    length: int
    embed_dim: int
    hidden: int
    steps: int
    batch_size: int
    learning_rate: float
    n_test: int
    n_permuted: int

    def __post_init__(self) -> None:
        one_of(self, study=("equivariance", "ceiling", "training"), model=MODELS, dtypes=tuple(EPS))
        one_of(self, inits=("scaled", "unit", "uniform"), breakers=("sinusoidal", "causal", "window", "criss_cross"))
        distinct(self, "shapes", "inits", "dtypes", "breakers", "breaker_shapes", "lengths")
        in_range(self, draws=(1, 10**6), window_width=(1, 1999), lengths=(2, 2000), n_sequences=(100, 10**9))
        in_range(self, length=(2, 2000), embed_dim=(1, 4096), hidden=(1, 4096), steps=(1, 10**6))
        in_range(self, batch_size=(1, 10**6), learning_rate=(1e-6, 1), n_test=(100, 10**9), n_permuted=(1, 10**6))
        for name in ("shapes", "breaker_shapes"):
            for shape in getattr(self, name):
                _check_shape(name, shape)
        _check_shape("reference_shape", self.reference_shape)
        if self.window_width % 2 == 0:
            raise ValueError(f"window_width={self.window_width} must be odd")
        for shape in self.breaker_shapes:
            length = sizes(shape)[0]
            if grid_sides(length)[0] == 1:
                raise ValueError(f"breaker_shapes={shape} must have a length that is a product, unlike {length}")
            if self.window_width >= length:
                raise ValueError(f"window_width={self.window_width} must be below the length of {shape}")


def _check_shape(name: str, shape: str) -> None:
    if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}x[1-9]\d{0,2}", shape):
        raise ValueError(f"{name}={shape} must be length x embed_dim x num_heads, as in 8x16x1")
    length, embed_dim, num_heads = sizes(shape)
    if length < 2 or embed_dim % num_heads:
        raise ValueError(f"{name}={shape} must have a length of 2 or more and heads that divide embed_dim")


def sizes(shape: str) -> tuple[int, int, int]:
    """Length, embed_dim and num_heads of a shape such as ``8x16x1``."""
    length, embed_dim, num_heads = map(int, shape.split("x"))
    return length, embed_dim, num_heads


def grid_sides(length: int) -> tuple[int, int]:
    """Height and width of the squarest grid of ``length`` pixels, height <= width."""
    height = next(h for h in range(math.isqrt(length), 0, -1) if length % h == 0)
    return height, length // height


def layers(p: Params) -> list[tuple[str, str]]:
    """Shapes with the initialisations that each is tried with."""
    chosen = [(shape, p.inits[0]) for shape in p.shapes]
    return list(dict.fromkeys([*chosen, *((p.reference_shape, init) for init in p.inits)]))


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "ceiling":
        return 1.5 + len(cell.seeds) * p.n_sequences * sum(11e-9 * (n + 5) for n in p.lengths)
    if p.study == "equivariance":
        logits = sum(n * n * heads for n, _, heads in (sizes(shape) for shape, _ in layers(p)))
        return 2.0 + p.draws * len(p.dtypes) * logits * 30e-9
    tokens = p.length * (p.steps * p.batch_size + 0.3 * p.n_test)
    return 2.0 + len(cell.seeds) * tokens * p.hidden * (10e-9 if p.model == "attention_mlp" else 7e-9)


def theory(cell: Cell) -> list[Row]:
    """Exact accuracies and correlations of rules, and the limit of each trained model."""
    p = cell.params
    if p.study == "training":
        axes = {"length": p.length, "model": p.model}
        return [Row("accuracy_limit", limit(p.model, p.length), axes, source="theory", statistic="share")]
    if p.study == "equivariance":
        return [
            Row("mask_mismatches", 0.0, {"breaker": breaker, "shape": shape}, source="theory", statistic="exact")
            for breaker in p.breakers
            for shape in p.breaker_shapes
            if breaker != "sinusoidal"
        ]
    return [
        Row(quantity, value, {"length": length}, source="theory", statistic=RULES[quantity])
        for length in p.lengths
        for quantity, value in _exact(length).items()
    ]


def _exact(length: int) -> dict[str, float]:
    by_value = set_functions.mean_label_correlation(length)
    by_sign = set_functions.mean_token_correlation(length)
    return {
        "bayes_accuracy": set_functions.bayes_accuracy(length),
        "mean_sign_accuracy": set_functions.mean_sign_accuracy(length),
        "correlation_mean_token": by_sign,
        "correlation_mean_label": by_value,
        "correlation_mean_of_signs_label": by_sign,
        "correlation_lead_of_mean": by_value - by_sign,
    }


def limit(model: str, length: int) -> float:
    """Best accuracy that a model can reach on the task.

    Any invariant function for values that are not linear. A pool of linear values decides by the sign of a weighted
    mean; equal weights are taken to be its best ones, which training confirms (`controls`) and nothing here proves.
    """
    if model in NONLINEAR:
        return set_functions.bayes_accuracy(length)
    return set_functions.mean_sign_accuracy(length)
