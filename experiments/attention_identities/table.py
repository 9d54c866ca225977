"""attention_identities, the torch-free half: parameters, exact theory, controls, answer and charts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

NAME = "attention_identities"
AXES = ("identity", "breaker", "shape", "dtype", "n_keys", "depth", "logit_scale", "case")

EPS = {"float64": 2.0**-52, "float32": 2.0**-23}
# An equality holds to so many eps of its scale; what breaks it does so by so many.
HOLDS_EPS = 32.0
BROKEN_EPS = 1e6
# A measurement without chance is its theory to this relative difference.
EXACT = 1e-9

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


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Spreads of outputs and residuals of single heads, all from draws of their own."""
    chosen = frame[frame.quantity.isin(["output_sd", "one_head_residual"]) & frame.theory.notna() & (frame.sd > 0)]
    return chosen, float(len(chosen))


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors and breakages are in units of eps times their scale already."""
    return 1.0, 1.0


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    found = []
    for r in frame.itertuples():
        at = f"{r.quantity} is {r.estimate:.4g} at " + " ".join(
            f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis)
        )
        if r.quantity in ("error_eps", "soft_error_eps") and not r.estimate <= HOLDS_EPS:
            found.append(f"{at}: at most {HOLDS_EPS:g} eps is round-off")
        if r.quantity == "breakage_eps" and not r.estimate >= BROKEN_EPS:
            found.append(f"{at}, below {BROKEN_EPS:g}: what must break the equality did not")
        if r.quantity == "mismatches" and bool(r.breaker) is not bool(r.estimate > 0):
            found.append(f"{at}: it must be {'above 0' if r.breaker else '0'}")
        exact = r.statistic in ("exact", "slope") and r.quantity not in ("error_eps", "mismatches") and r.n
        if exact and r.theory == r.theory and not math.isclose(r.estimate, r.theory, rel_tol=EXACT):
            found.append(f"{at}: theory says {r.theory:.12g}")
    return found


# --- answer and charts ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_equalities(frame), *_refuted(frame), *_scales(frame), *_limits(frame)])


def _equalities(frame: pd.DataFrame) -> Iterator[str]:
    held = frame[(frame.quantity == "error_eps") & (frame.dtype == "float64") & (frame["shape"] == "")]
    broken = frame[frame.quantity == "breakage_eps"]
    if held.empty or broken.empty:
        return
    worst = held.loc[held.estimate.idxmax()]
    weakest = broken.loc[broken.estimate.idxmin()]
    yield (
        f"{(held.estimate <= HOLDS_EPS).sum()} of {len(held)} equalities hold in float64 to {worst.estimate:.2g} eps or"
        f" better ({int(held.n.min())} draws each; worst: {worst.identity}), and"
        f" {(broken.estimate >= BROKEN_EPS).sum()} of {len(broken)} breakers break theirs in every draw, by"
        f" {weakest.estimate:.1g} eps at least ({weakest.identity}, {weakest.breaker})."
    )


def _refuted(frame: pd.DataFrame) -> Iterator[str]:
    shares = frame[frame.quantity == "breakage_relative"].set_index(["identity", "breaker"]).estimate
    told = {
        ("per_word", "same_positions"): "in another order a sentence has other outputs, position by position ({:.2g})",
        ("pooled", "causal"): "under a causal mask no position code is needed to see the order ({:.2g})",
        ("one_head_kernel", "signed_kernel"): "one head cannot be a kernel with two signs ({:.2g})",
        ("graph_reflection", "convolution"): "a graph network without edge types cannot be a convolution ({:.2g})",
    }
    found = [words.format(shares[at]) for at, words in told.items() if at in shares.index]
    if found:
        yield f"Refuted, with the smallest violation relative to the output: {'; '.join(found)}."


def _scales(frame: pd.DataFrame) -> Iterator[str]:
    spread = frame[(frame.quantity == "output_sd") & (frame.n > 0)]
    if spread.empty:
        return
    last = spread.loc[spread.n_keys.astype(int).idxmax()]
    yield (
        f"Values of spread 1 are averaged down to {last.estimate:.4f} [{last.ci_low:.4f}, {last.ci_high:.4f}] over"
        f" {last.n_keys} keys (theory {last.theory:.4f}): the output keeps the range of the values, not their scale."
    )


def _limits(frame: pd.DataFrame) -> Iterator[str]:
    slopes = frame[(frame.quantity == "leak_rate") & (frame.n > 0)]
    if slopes.empty:
        return
    last = slopes[slopes.logit_scale.astype(float) == slopes.logit_scale.astype(float).max()]
    told = " and ".join(f"exp(-{r.estimate:.3g} a) with a {r.case.replace('_', '-')} code" for r in last.itertuples())
    yield f"Attention by position codes becomes a convolution as {told}, a the factor of the logits."


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Equalities beside what breaks them, the soft limit of convolution, and the spread of outputs."""
    return [chart for chart in (_error_chart(frame), _leak_chart(frame), _spread_chart(frame)) if chart]


def _records(frame: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows for Vega; a missing number is left out, because JSON has no nan."""
    return [{k: v for k, v in record.items() if v == v} for record in frame[list(columns)].to_dict("records")]


def _error_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    chosen = frame[frame.quantity.isin(["error_eps", "breakage_eps"]) & (frame["shape"] == "")].copy()
    chosen = chosen[chosen.dtype == "float64"]
    if chosen.empty:
        return None
    chosen["what"] = ["must break it" if name else "holds" for name in chosen.breaker]
    # An error of exactly zero has no place on a logarithmic axis: it stands at the left end.
    chosen["shown"] = chosen.estimate.clip(lower=2.0**-4)
    columns = ["identity", "what", "breaker", "estimate", "shown"]
    tip = [alt.Tooltip(f"{column}:{'Q' if column == 'estimate' else 'N'}") for column in columns[:-1]]
    title = "difference of the two sides, in eps"
    spec: Mapping[str, Any] = (
        alt.Chart(alt.Data(values=_records(chosen, columns)))
        .mark_point(style="measured")
        .encode(
            x=alt.X("shown:Q", title="eps of the output (float64)").scale(type="log").axis(format="~e", tickCount=5),
            y=alt.Y("identity:N", title=None, sort=None),
            color=alt.Color("what:N", title=None),
            tooltip=tip,
        )
        .properties(
            title=title,
            description=f"{title}: largest where it must hold, smallest where it must break",
            height=16 * chosen.identity.nunique(),
        )
        .to_dict()
    )
    return spec


def _leak_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    chosen = frame[frame.quantity == "leak"].copy()
    if chosen.empty:
        return None
    chosen["scale"], chosen["code"] = chosen.logit_scale.astype(float), chosen.case
    columns = ["scale", "code", "estimate", "theory"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'code' else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=_records(chosen.sort_values("scale"), columns))).encode(
        x=alt.X("scale:Q", title="factor of the position code's dot products"),
        color=alt.Color("code:N", title=None),
    )

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="weight beside the tap").scale(type="log").axis(format="~e", tickCount=5)

    title = "attention as a convolution: what leaks"
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_line(style="theory").encode(y=y("theory")),
            base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
        )
        .properties(title=title, description=f"{title}, against the scale of the logits, measured and in theory")
        .to_dict()
    )
    return spec


def _spread_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    chosen = frame[(frame.quantity == "output_sd") & (frame.n > 0)].copy()
    if chosen.empty:
        return None
    chosen["keys"] = chosen.n_keys.astype(int)
    columns = ["keys", "estimate", "ci_low", "ci_high", "theory"]
    tip = [alt.Tooltip(f"{column}:Q") for column in columns]
    base = alt.Chart(alt.Data(values=_records(chosen.sort_values("keys"), columns))).encode(
        x=alt.X("keys:Q", title="keys").scale(type="log").axis(tickCount=4)
    )

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="spread of an output").scale(domainMin=0)

    title = "values of spread 1, after one attention"
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_line(style="theory").encode(y=y("theory")),
            base.mark_rule(style="interval").encode(y=y("ci_low"), y2="ci_high:Q"),
            base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
        )
        .properties(title=title, description=f"{title}, against the number of keys")
        .to_dict()
    )
    return spec
