"""attention_identities, the torch-free half: parameters and exact theory."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row

NAME = "attention_identities"
AXES = ("identity", "breaker", "shape", "dtype", "n_keys", "depth", "logit_scale", "case")

EPS = {"float64": 2.0**-52, "float32": 2.0**-23}
# An equality holds to so many eps of its scale.
HOLDS_EPS = 32.0

# What must break each equality.
BREAKERS: dict[str, tuple[str, ...]] = {
    "row_sum": ("softmax_over_queries", "mask_after_softmax"),
    "convex_combination": ("unnormalised", "negative_weights", "projected"),
    "coordinate_bound": ("unnormalised", "negative_weights"),
    "hull_distance": ("unnormalised", "negative_weights"),
    "causal_zero": ("no_mask", "reversed", "shifted_by_one", "minus_ten"),
    "future": ("no_mask", "reversed", "shifted_by_one", "mask_after_softmax", "norm_over_tokens"),
    "dot_cosine": ("sine", "without_norms", "sum_norms"),
    "score_entries": ("transposed", "columns_moved"),
    "projections": ("one_matrix", "matrix_transposed"),
    "three_steps": ("unscaled", "no_softmax", "mask_left_out", "keys_and_values_swapped"),
    "tied_scores": ("separate_matrices", "softmaxed"),
    "cross_attention": ("softmax_over_queries", "context_cut"),
    "self_as_cross": ("another_context",),
    "per_word": ("same_positions", "causal", "sinusoidal"),
    "pooled": ("causal", "sinusoidal"),
    "shift_rotation": ("other_direction", "one_frequency", "halves_paired"),
    "distance_only": ("random_code", "projected"),
    "rotary_distance": ("added_code", "queries_only"),
    "conv_circular": ("kernel_flipped", "other_padding", "shifted_by_one", "one_window"),
    "conv_zeros": ("kernel_flipped", "other_padding", "shifted_by_one", "one_window"),
    "one_head_kernel": ("signed_kernel",),
    "circulant": ("zeros_beyond_the_ends", "attention"),
    "graph_complete": ("no_loops", "edge_missing"),
    "graph_local": ("no_loops", "edge_missing"),
    "graph_sparse": ("no_loops", "edge_missing", "edges_reversed"),
    "graph_reflection": ("convolution",),
}
# Facts that are counted, and what must be counted as wrong.
FACTS: dict[str, tuple[str, ...]] = {
    "weights_nonnegative": ("scores_normalised",),
    "content_decides": ("positions_decide",),
    "causal_closed": ("no_mask", "reversed", "shifted_by_one", "strict"),
    "causal_dependence": ("no_mask", "reversed", "shifted_by_one", "strict"),
    "score_index": ("transposed",),
    "role_query": ("query_and_key_swapped",),
    "role_key": ("uniform_weights",),
    "role_value": ("values_also_compared",),
    "cross_sources": ("self_attention_over_both",),
    "task_sequence": ("self_attention_alone",),
    "task_labels": ("pooled",),
    "task_one": ("not_pooled",),
    "attention_graph": ("window",),
    "network_graph": ("edges_reversed",),
    "convolution_graph": ("dilated",),
    "codes_distinct": ("whole_turns",),
    "sinusoid_length": ("learned_table",),
    "learned_length": ("wrapped_around",),
}
MATRICES = ("circular_convolution", "padded_convolution", "position_attention", "attention")
# Weightings beside softmax(q.k / sqrt(head_dim)) that are held against the three requirements of document 000.
WEIGHTINGS = ("distance_kernel", "squared_scores", "softplus_scores", "sparsemax")
STUDIES = ("identities", "facts", "output_scale", "soft_limit")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/attention_identities.yaml`` says what each means."""

    study: str
    draws: int
    shapes: list[str]
    dtypes: list[str]
    identities: list[str]
    kernel_width: int
    max_shift: int
    code_shapes: list[str]
    code_lengths: list[int]
    table_length: int
    example_length: int
    example_dim: int
    example_heads: list[int]
    n_keys: list[int]
    head_dim: int
    n_queries: int
    depths: list[int]
    n_stacks: int
    stack_length: int
    codes: list[str]
    logit_scales: list[float]
    soft_shape: str
    code_dim: int
    soft_draws: int
    kernels: list[str]
    n_samples: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, dtypes=tuple(EPS), identities=tuple(BREAKERS), codes=("one_hot", "sinusoidal"))
        distinct(self, "shapes", "dtypes", "identities", "code_shapes", "code_lengths", "example_heads", "n_keys")
        distinct(self, "depths", "codes", "logit_scales", "kernels")
        in_range(self, draws=(1, 10**6), kernel_width=(3, 99), max_shift=(1, 10**6), code_lengths=(1, 10**7))
        in_range(self, table_length=(1, 10**6), example_length=(1, 4096), example_dim=(1, 4096), n_keys=(1, 4096))
        in_range(self, head_dim=(1, 4096), n_queries=(2, 10**8), depths=(1, 1000), n_stacks=(2, 10**6))
        in_range(self, stack_length=(1, 4096), logit_scales=(0, 700), code_dim=(2, 4096), soft_draws=(1, 10**6))
        in_range(self, n_samples=(10, 10**9), example_heads=(1, 4096))
        for name, value in (("kernel_width", self.kernel_width), ("code_dim", self.code_dim + 1)):
            if value % 2 == 0:
                raise ValueError(f"{name}={getattr(self, name)} must be {'odd' if name == 'kernel_width' else 'even'}")
        for shape in self.shapes:
            _check_shape(shape, self.kernel_width)
        for shape in self.code_shapes:
            if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,3}", shape) or not _has_pairs(*code_sizes(shape)):
                raise ValueError(f"code_shapes={shape} must be 2 or more positions x an even embed_dim, as in 2048x64")
        if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}x\d{0,2}[13579]", self.soft_shape) or (
            sizes(self.soft_shape)[0] < sizes(self.soft_shape)[2]
        ):
            raise ValueError(f"soft_shape={self.soft_shape} must be length x channels x an odd width within the length")
        for heads in self.example_heads:
            if self.example_dim % heads:
                raise ValueError(f"example_heads={heads} must divide example_dim={self.example_dim}")
        for kernel in self.kernels:
            if not re.fullmatch(r"-?\d+( -?\d+)+", kernel) or not any(taps(kernel)):
                raise ValueError(f"kernels={kernel} must be two or more whole numbers, one not zero, as in -1 2 -1")


def _has_pairs(positions: int, embed_dim: int) -> bool:
    return positions > 1 and embed_dim % 2 == 0


def _check_shape(shape: str, kernel_width: int) -> None:
    if not re.fullmatch(r"[1-9]\d{0,3}x[1-9]\d{0,3}x[1-9]\d{0,2}", shape):
        raise ValueError(f"shapes={shape} must be length x embed_dim x num_heads, as in 8x16x1")
    length, embed_dim, num_heads = sizes(shape)
    if length < kernel_width:
        raise ValueError(f"shapes={shape} must have a length of kernel_width={kernel_width} or more")
    if embed_dim % 2 or embed_dim % num_heads:
        raise ValueError(f"shapes={shape} must have an even embed_dim and heads that divide it")


def sizes(shape: str) -> tuple[int, int, int]:
    """The three numbers of a shape such as ``8x16x1``."""
    first, second, third = map(int, shape.split("x"))
    return first, second, third


def code_sizes(shape: str) -> tuple[int, int]:
    """Positions and embed_dim of a shape such as ``2048x64``."""
    positions, embed_dim = map(int, shape.split("x"))
    return positions, embed_dim


def taps(kernel: str) -> list[float]:
    """Taps of a kernel such as ``-1 2 -1``."""
    return [float(tap) for tap in kernel.split()]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "identities":
        runs = sum(len(p.dtypes) + len(BREAKERS[name]) for name in p.identities)
        return 2.0 + p.draws * len(p.shapes) * runs * 1.2e-3
    if p.study == "output_scale":
        return 2.0 + p.n_queries * sum(p.n_keys) * p.head_dim * 20e-9 + p.n_stacks * 0.02
    return 3.0


# --- exact theory ---


def theory(cell: Cell) -> list[Row]:
    """What is expected without chance, and the spread of outputs."""
    p = cell.params
    made = {"identities": _zero_rows, "facts": _fact_rows, "output_scale": _scale_rows, "soft_limit": _soft_rows}
    return list(made[p.study](p))


def _expected(quantity: str, value: float, statistic: str = "exact", **axes: object) -> Row:
    return Row(quantity, value, axes, source="theory", statistic=statistic)


def _zero_rows(p: Params) -> Iterator[Row]:
    """-inf in a logit is a weight of exactly zero: no round-off at all."""
    if "causal_zero" in p.identities:
        for dtype in p.dtypes:
            yield _expected("error_eps", 0.0, identity="causal_zero", dtype=dtype)


def _fact_rows(p: Params) -> Iterator[Row]:
    from attnrepro.theory import attention_limits

    for fact in FACTS:
        yield _expected("mismatches", 0.0, identity=fact)
    for shape in p.shapes:
        length = sizes(shape)[0]
        yield _expected("closed_pairs", length * (length - 1) / 2, shape=shape)
        ranks = {
            "circular_convolution": attention_limits.convolution_displacement_rank(p.kernel_width, circular=True),
            "padded_convolution": attention_limits.convolution_displacement_rank(p.kernel_width, circular=False),
            # Logits that depend on the distance around the ring only.
            "position_attention": 0,
            # Rows sum to one, so that the vector of ones is lost; nothing else is.
            "attention": length - 1,
        }
        for matrix, rank in ranks.items():
            yield _expected("displacement_rank", rank, identity=matrix, shape=shape)
    for shape in p.code_shapes:
        smallest = attention_limits.smallest_code_distance(*code_sizes(shape))
        yield _expected("smallest_code_distance", smallest, shape=shape)
    yield _expected("frequency_share", 0.5)
    for heads in p.example_heads:
        yield _expected("head_dim_share", 1 / heads, case=f"num_heads={heads}")
    for case, size in example_sizes(p).items():
        yield _expected("example_size", size, case=case)
    yield _expected("qualifying_weightings", 1 + len(WEIGHTINGS))


def example_sizes(p: Params) -> dict[str, int]:
    """Rows and columns of the example of document 002, one head."""
    return {
        "input rows": p.example_length,
        "input columns": p.example_dim,
        "score rows": p.example_length,
        "score columns": p.example_length,
        "output rows": p.example_length,
        "output columns": p.example_dim,
    }


def _scale_rows(p: Params) -> Iterator[Row]:
    from attnrepro.theory.softmax_logits import softmax_statistics

    for n_keys in p.n_keys:
        variance = softmax_statistics(n_keys, p.head_dim, scaled=True).sum_sq if n_keys > 1 else 1.0
        yield _expected("output_sd", math.sqrt(variance), "rms", n_keys=n_keys)


def _soft_rows(p: Params) -> Iterator[Row]:
    from attnrepro.theory import attention_limits

    for code in p.codes:
        leaks = [_leak(p, code, scale) for scale in p.logit_scales]
        for scale, leak in zip(p.logit_scales, leaks, strict=True):
            yield _expected("leak", leak, case=code, logit_scale=scale)
        for scale, rate in rates(p.logit_scales, leaks):
            yield _expected("leak_rate", rate, "slope", case=code, logit_scale=scale)
    for kernel in p.kernels:
        yield _expected("one_head_residual", attention_limits.one_head_residual(taps(kernel)), "mean", case=kernel)


def _leak(p: Params, code: str, scale: float) -> float:
    from attnrepro.theory import attention_limits

    length, _, width = sizes(p.soft_shape)
    if code == "one_hot":
        return attention_limits.one_hot_leak(length, scale)
    return attention_limits.sinusoid_leak(length, p.code_dim, width, scale)


def rates(scales: Sequence[float], leaks: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Fall of the logarithm of the leak for each unit of the scale, from each scale to the next."""
    for (before, larger), (after, smaller) in itertools.pairwise(zip(scales, leaks, strict=True)):
        yield after, math.log(larger / smaller) / (after - before)
