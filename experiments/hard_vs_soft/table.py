"""hard_vs_soft, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import selection

NAME = "hard_vs_soft"
AXES = ("method", "temperature", "n_keys", "optimizer", "gap", "move", "place", "shape", "dtype")
METHODS = ("hard_argmax", "soft", "straight_through", "gumbel_soft", "gumbel_hard", "reinforce")
# Methods that draw.
SAMPLED = ("gumbel_soft", "gumbel_hard", "reinforce")
EPS = 2.0**-52
# exp(-gap) loses digits in float32 beyond the first gap and is 0, below 2^-149, beyond the second.
FLOAT32_LAST, FLOAT32_NONE = 87.0, 149 * math.log(2) + 1


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/hard_vs_soft.yaml`` says what each means."""

    study: str
    shapes: list[str]
    draws: int
    moves: list[float]
    example_scores: list[float]
    example_values: list[float]
    example_target: float
    example_temperatures: list[float]
    samples: int
    factors: list[float]
    leader_keys: list[int]
    gaps: list[float]
    signal_gaps: list[float]
    n_keys: int
    embed_dim: int
    methods: list[str]
    temperatures: list[float]
    optimizer: str
    sgd_rate: float
    adam_rate: float
    batch_size: int
    steps: int
    every: int
    n_test: int
    target: float

    def __post_init__(self) -> None:
        one_of(self, study=("gradient", "training"), methods=METHODS, optimizer=("sgd", "adam"))
        distinct(self, "shapes", "moves", "example_scores", "example_temperatures", "factors", "leader_keys", "gaps")
        distinct(self, "signal_gaps", "methods", "temperatures")
        in_range(self, draws=(1, 10**6), moves=(1e-6, 100), example_temperatures=(0.01, 100), samples=(100, 10**9))
        in_range(self, factors=(0, 100), leader_keys=(3, 10**6), gaps=(0, 700), signal_gaps=(0.1, 600))
        in_range(self, n_keys=(2, 5000), embed_dim=(2, 2000), temperatures=(0.01, 100), sgd_rate=(1e-6, 1000))
        in_range(self, adam_rate=(1e-6, 1), batch_size=(2, 10**6), steps=(1, 10**6), every=(1, 10**6))
        in_range(self, n_test=(10, 10**7), target=(0.01, 1))
        for shape in self.shapes:
            n, _, dim = shape.partition("x")
            if not (n.isdigit() and dim.isdigit() and 2 <= int(n) <= 5000 and 1 <= int(dim) <= 5000):
                raise ValueError(f"shapes={shape} must be n_keys x value_dim, as in 5x3, with 2 keys or more")
        if len(self.example_scores) != len(self.example_values) or len(self.example_scores) < 2:
            raise ValueError(f"example_values={self.example_values} must hold a value for each of two or more scores")
        if any(move == 1 for move in self.moves):
            raise ValueError("moves=1 must not be: two equal scores have no first")
        if self.factors != sorted(self.factors) or len(self.factors) < 2:
            raise ValueError(f"factors={self.factors} must be two or more, rising")
        if any(FLOAT32_LAST < gap < FLOAT32_NONE for gap in self.signal_gaps):
            raise ValueError(
                f"signal_gaps={self.signal_gaps} must avoid what float32 holds with fewer digits, 87 to 104"
            )
        if self.steps % self.every:
            raise ValueError(f"every={self.every} must divide steps={self.steps}")


def sizes(shape: str) -> tuple[int, int]:
    """n_keys and value_dim of a shape such as ``5x3``."""
    n_keys, value_dim = map(int, shape.split("x"))
    return n_keys, value_dim


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "gradient":
        return 1.0 + p.samples * len(p.example_scores) * 1e-6
    members = len(cell.seeds) * len(p.methods) * len(p.temperatures)
    return 1.0 + p.steps * (5e-3 + members * p.batch_size * p.n_keys * (p.embed_dim + 20) * 5e-10)


# --- closed forms ---


def theory(cell: Cell) -> list[Row]:
    """Exact derivatives, weights and signals; of the trained models only that argmax moves no selector."""
    p = cell.params
    if p.study == "training":
        return [
            Row("selector_movement", 0.0, _trained(p, method, t), source="theory", statistic="exact")
            for method in p.methods
            if method == "hard_argmax"
            for t in p.temperatures
        ]
    return [*_signals(p), *_example(p), *_focus(p)]


def _trained(p: Params, method: str, temperature: float) -> dict[str, object]:
    return {"method": method, "temperature": temperature, "n_keys": p.n_keys, "optimizer": p.optimizer}


def _exact(quantity: str, value: float, axes: Mapping[str, object]) -> Row:
    return Row(quantity, value, {**axes, "dtype": "float64"}, source="theory", statistic="exact")


def _signals(p: Params) -> Iterator[Row]:
    for move in p.moves:
        if move < 1:
            yield _exact("output_change", 0.0, {"method": "hard_argmax", "move": move})
    yield _exact("share_with_signal", 0.0, {"method": "hard_argmax"})
    yield _exact("share_with_signal", 1.0, {"method": "soft"})
    for gap in p.signal_gaps:
        for dtype in ("float64", "float32"):
            alive = dtype == "float64" or gap < FLOAT32_NONE
            axes = {"method": "soft", "gap": gap, "dtype": dtype}
            yield Row("second_signal", float(alive), axes, source="theory", statistic="exact")


def second(scores: Sequence[float]) -> int:
    """Index of the second highest score."""
    first = selection.chosen(scores)
    return max((k for k in range(len(scores)) if k != first), key=scores.__getitem__)


def _example(p: Params) -> Iterator[Row]:
    scores, values, runner_up = p.example_scores, p.example_values, second(p.example_scores)
    for t in p.example_temperatures:
        slope = selection.soft_gradient(scores, values, t)[runner_up]
        yield _exact("second_gradient", slope, {"method": "soft", "temperature": t})
    yield _exact("second_gradient", 0.0, {"method": "hard_argmax"})
    known = {
        "hard_argmax": [0.0] * len(scores),
        "soft": selection.soft_loss_gradient(scores, values, p.example_target),
        "straight_through": selection.straight_through_gradient(scores, values, p.example_target),
        "reinforce": selection.expected_loss_gradient(scores, values, p.example_target),
    }
    for method, slopes in known.items():
        statistic = "mean" if method in SAMPLED else "exact"
        for place, slope in enumerate(slopes):
            axes = {"method": method, "place": place, "dtype": "float64"}
            yield Row("estimator_gradient", slope, axes, source="theory", statistic=statistic)


def _focus(p: Params) -> Iterator[Row]:
    yield _exact("focus_violations", 0.0, {})
    for n_keys in p.leader_keys:
        yield _exact("gap_for_half", selection.gap_for_half(n_keys), {"n_keys": n_keys})
        for gap in p.gaps:
            yield _exact("max_weight", selection.leader_weight(n_keys, gap), {"n_keys": n_keys, "gap": gap})
