"""sqrt_d_entropy, the torch-free half: parameters and exact theory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row

NAME = "sqrt_d_entropy"
AXES = ("head_dim", "n_keys", "keys", "scaled", "design", "init", "dtype")
UNITS = {"entropy": "nats", "entropy_sqrt_d": "nats", "uniform_entropy": "nats"}

# A lead of the largest logit over the second (document 004, section 1.2).
GAP = 8.0
# A query counts as saturated when the trace of its softmax Jacobian is below this: no weight can move by a
# thousandth of its logit's change.
SATURATED = 1e-3
# The five independent numbers of one row pair of the published table: the scaled logit sd is the unscaled one
# divided by sqrt(d), because both columns come from the same draws.
NUMBERS = (
    "logit_sd_unscaled",
    "entropy_unscaled",
    "max_weight_unscaled",
    "entropy_scaled",
    "max_weight_scaled",
)
# Quantities with an exact expectation that Monte Carlo is judged against, by column of the measurement.
JUDGED = {
    "logit_mean": ("logit_mean", "mean"),
    "logit_sq": ("logit_sd", "sd"),
    "entropy": ("entropy", "mean"),
    "max_weight": ("max_weight", "mean"),
    "sum_sq_weights": ("sum_sq_weights", "mean"),
    "gap_over_8": ("gap_over_8", "share"),
    "product_variance": ("product_variance", "mean"),
    "grad_logits_sq": ("grad_logits_norm", "rms"),
    "grad_query_sq": ("grad_query_norm", "rms"),
    "init_output_variance": ("init_output_variance", "mean"),
}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/sqrt_d_entropy.yaml`` says what each means."""

    study: str
    head_dim: float
    n_keys: list[int]
    scaled: list[bool]
    keys: list[str]
    n_queries: int
    n_key_sets: int
    n_queries_per_set: int
    n_gradient: int
    max_normals: int
    designs: list[int]

    def __post_init__(self) -> None:
        one_of(self, study=("draws", "identities"), keys=("own", "shared"))
        distinct(self, "n_keys", "scaled", "keys", "designs")
        in_range(self, head_dim=(1, 65536) if math.isfinite(self.head_dim) else (math.inf, math.inf))
        in_range(self, n_keys=(2, 65536), n_queries=(100, 10**9))
        in_range(self, n_key_sets=(20, 10**7), n_queries_per_set=(2, 10**6), n_gradient=(100, 10**8))
        in_range(self, max_normals=(0, 10**12), designs=(2, 10**6))
        if math.isfinite(self.head_dim) and not float(self.head_dim).is_integer():
            raise ValueError(f"head_dim={self.head_dim} must be a whole number or inf")
        if math.isinf(self.head_dim) and (True not in self.scaled or "own" not in self.keys):
            raise ValueError("head_dim=inf exists with the scale and own keys only: scaled needs true, keys needs own")
        for n_keys in self.n_keys:
            for kind in (*self.keys, "gradient"):
                if n_clusters(self, n_keys, kind) < 20:
                    left = "key sets" if kind == "shared" else "queries"
                    raise ValueError(f"max_normals={self.max_normals} leaves fewer than 20 {left} for n_keys={n_keys}")


def scalings(p: Params) -> list[bool]:
    """The scalings that exist: without 1/sqrt(d) there is no limit d = inf."""
    return [scaled for scaled in p.scaled if scaled or math.isfinite(p.head_dim)]


def key_kinds(p: Params) -> list[str]:
    """The ways of drawing keys that differ: at d = inf shared keys are as good as own ones."""
    return [kind for kind in p.keys if kind == "own" or math.isfinite(p.head_dim)]


def both(p: Params) -> bool:
    """Whether scaled and unscaled attention are measured on the same draws."""
    return len(scalings(p)) == 2


def n_clusters(p: Params, n_keys: int, kind: str) -> int:
    """Independent draws of one kind: queries, or key sets."""
    width = p.head_dim if math.isfinite(p.head_dim) else 1
    wanted, rows = {
        "own": (p.n_queries, n_keys + 1),
        "gradient": (p.n_gradient, n_keys + 1),
        "shared": (p.n_key_sets, n_keys + p.n_queries_per_set),
    }[kind]
    return int(min(wanted, p.max_normals // (rows * width))) if p.max_normals else wanted


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning: 6 ns a normal number, 0.15 us a logit."""
    p = cell.params
    if p.study == "identities":
        return 1.0
    width = p.head_dim if math.isfinite(p.head_dim) else 1
    total = 0.0
    for n_keys in p.n_keys:
        for kind in [*key_kinds(p), "gradient"]:
            clusters = n_clusters(p, n_keys, kind)
            queries = p.n_queries_per_set if kind == "shared" else 1
            rows = n_keys + (queries if kind == "shared" else 1)
            total += clusters * (rows * width * 6e-9 + queries * n_keys * 0.15e-6)
    return total * len(cell.seeds)


def judged(p: Params, n_keys: int, column: str, scaled: bool | None, n: int) -> bool:
    """Whether a column of the measurement is judged against theory by its normal approximation."""
    from attnrepro.theory.softmax_logits import top_gap_probability

    if column == "gap_over_8":
        if scaled or math.isinf(p.head_dim):
            return False
        expected = n * top_gap_probability(n_keys, p.head_dim, False, GAP)
        return expected >= 20 and n - expected >= 20
    return column in JUDGED


def theory(cell: Cell) -> list[Row]:
    """Exact expectations of everything the cell measures (``attnrepro.theory.softmax_logits``)."""
    p = cell.params
    if p.study == "identities":
        return _identities(p)
    result: list[Row] = []
    for n_keys in p.n_keys:
        result += [row for kind in key_kinds(p) for row in _expectations(p, n_keys, kind)]
    return result


def _expectations(p: Params, n_keys: int, kind: str) -> list[Row]:
    from attnrepro.theory.softmax_logits import softmax_statistics, top_gap_probability

    base: dict[str, object] = {"head_dim": p.head_dim, "n_keys": n_keys, "keys": kind}
    result: list[Row] = []

    def add(quantity: str, statistic: str, value: float, scaled: bool | None = None) -> None:
        axes = {**base, "scaled": scaled}
        unit = UNITS.get(quantity, "")
        result.append(Row(quantity, value, axes, source="theory", statistic=statistic, unit=unit))

    found = {scaled: softmax_statistics(n_keys, p.head_dim, scaled) for scaled in scalings(p)}
    for scaled, exact in found.items():
        add("logit_mean", "mean", exact.logit_mean, scaled)
        add("logit_sd", "sd", math.sqrt(exact.logit_variance), scaled)
        add("entropy", "mean", exact.entropy, scaled)
        add("max_weight", "mean", exact.max_weight, scaled)
        add("sum_sq_weights", "mean", exact.sum_sq, scaled)
        add("jacobian_trace", "mean", exact.jacobian_trace, scaled)
        if not scaled:
            add("gap_over_8", "share", top_gap_probability(n_keys, p.head_dim, False, GAP), scaled)
            add("entropy_sqrt_d", "mean", exact.entropy * math.sqrt(p.head_dim), scaled)
        if kind == "own":
            add("grad_logits_norm", "rms", math.sqrt(exact.jacobian_sq), scaled)
            if math.isfinite(p.head_dim):
                add("grad_query_norm", "rms", math.sqrt(exact.grad_query_sq), scaled)
    if kind == "own" and math.isfinite(p.head_dim):
        add("product_variance", "mean", 1.0)
    if both(p):
        with_scale, without = found[True], found[False]
        add("max_weight_excess", "paired_difference", without.max_weight - with_scale.max_weight)
        add("jacobian_trace_gain", "paired_difference", with_scale.jacobian_trace - without.jacobian_trace)
        if kind == "own":
            add("grad_logits_sq_gain", "paired_difference", with_scale.jacobian_sq - without.jacobian_sq)
            add("grad_query_sq_gain", "paired_difference", with_scale.grad_query_sq - without.grad_query_sq)
    return result


def _identities(p: Params) -> list[Row]:
    exact: list[tuple[str, float, dict[str, object]]] = [
        *(("uniform_entropy", math.log(n_keys), {"n_keys": n_keys}) for n_keys in p.n_keys),
        ("jacobian_diagonal_error", 0.0, {}),
        ("jacobian_offdiagonal_error", 0.0, {}),
        ("weight_derivative_bound", 1 / 4, {}),
        ("jacobian_norm_bound", 1 / 2, {}),
        ("weight_ratio_at_gap_8", math.exp(GAP), {}),
    ]
    # exp(x) rounds to infinity from the middle between the largest number and the next power of two on; for
    # float64 that middle is written as 1024 log 2 + log1p(-2^-54) because it is itself no float64.
    for dtype, exponent, digits in (
        ("float16", 16, 11),
        ("bfloat16", 128, 8),
        ("float32", 128, 24),
        ("float64", 1024, 53),
    ):
        exact.append(("exp_overflow", exponent * math.log(2) + math.log1p(-(2.0 ** -(digits + 1))), {"dtype": dtype}))
    rows = [Row(q, value, axes, source="theory", statistic="exact", unit=UNITS.get(q, "")) for q, value, axes in exact]
    size = int(min(p.head_dim, 256))
    # Glorot: Var w = 2/(fan_in + fan_out); He: Var w = 2/fan_in. A unit-variance input is multiplied by fan_in Var w.
    for name, variance in (("xavier", 1.0), ("he", 2.0)):
        axes = {"head_dim": size, "init": name}
        rows.append(Row("init_output_variance", variance, axes, source="theory", statistic="mean"))
    return rows
