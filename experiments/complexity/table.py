"""complexity, the torch-free half: parameters, closed forms, controls, answer and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import complexity as closed

if TYPE_CHECKING:  # a typo is answered without it: it costs more than the whole precheck
    import pandas as pd

NAME = "complexity"
AXES = ("network", "against", "tokens", "embed_dim", "kernel", "heads", "variable", "pixels")

RECURRENT, WITH_KERNEL = closed.RECURRENT, closed.WITH_KERNEL
# Parts of an attention layer, counted by themselves, and those of one term.
PARTS = ("projections", "logits", "mixing", "scores")
ONE_TERM = ("projections", "logits", "mixing")
# torch's own layer stands beside ours.
COUNTED = (*closed.NETWORKS, "torch_attention")
WITH_HEADS = ("attention", "torch_attention", "linear")
CHAINED = ("attention", "window", "linear", "low_rank", "convolution", *RECURRENT)
STORED = ("attention", "fused", "window", "linear", "low_rank")
# Who is cheaper, up to which number of tokens; with and without recurrence.
PAIRS = (
    ("scores", "projections"),
    ("attention", "linear"),
    ("attention", "window"),
    ("attention", "low_rank"),
    ("attention", "convolution"),
    ("attention", "convolution_2d"),
    ("scores", "convolution"),
    ("scores", "convolution_2d"),
)
RECURRENT_PAIRS = tuple((network, against) for network in ("attention", "scores") for against in RECURRENT)
# (network, against) of ratios at equal neighbourhoods.
RATIOS = (
    ("attention", "convolution_2d"),
    ("graph_convolution", "convolution_2d"),
    ("window", "convolution_2d"),
    ("graph_convolution", "depthwise_2d"),
    ("attention", "graph_convolution"),
    ("attention", "window"),
    ("projections", "scores"),
)
# An exact count or closed form may be off by rounding.
TOLERANCE = 1e-9


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/complexity.yaml`` says what each means."""

    study: str
    tokens: list[int]
    recurrent_most: int
    embed_dims: list[int]
    kernels: list[int]
    heads: list[int]
    heads_shape: str
    degree_points: int
    degree_tokens: int
    degree_embed_dim: int
    exponent_shapes: list[str]
    ratio_shapes: list[str]
    ratio_kernel: int
    image_sizes: list[int]
    patch: int
    image_embed_dim: int
    crossover_dims: list[int]
    recurrent_dims: list[int]
    chain_tokens: list[int]
    distances: list[int]
    chain_kernel: int
    chain_embed_dim: int

    def __post_init__(self) -> None:
        one_of(self, study=("flops", "crossover", "chain"))
        distinct(self, "tokens", "embed_dims", "kernels", "heads", "exponent_shapes", "ratio_shapes", "image_sizes")
        distinct(self, "crossover_dims", "recurrent_dims", "chain_tokens", "distances")
        in_range(
            self, tokens=(1, 2**16), recurrent_most=(1, 2**12), embed_dims=(1, 2**14), kernels=(1, 99), heads=(1, 2**10)
        )
        in_range(self, degree_points=(4, 20), degree_tokens=(4, 2**8), degree_embed_dim=(1, 2**8))
        in_range(self, ratio_kernel=(1, 31), image_sizes=(1, 2**14), patch=(1, 2**10), image_embed_dim=(1, 2**14))
        in_range(self, crossover_dims=(1, 2**12), recurrent_dims=(1, 2**10))
        in_range(self, chain_tokens=(1, 2**10), distances=(1, 2**9), chain_kernel=(3, 31), chain_embed_dim=(1, 2**8))
        for name in ("kernels", "ratio_kernel", "chain_kernel"):
            given = getattr(self, name)
            for kernel in given if isinstance(given, list) else [given]:
                if kernel % 2 == 0:
                    raise ValueError(f"{name}={kernel} must be odd")
        for name in ("exponent_shapes", "ratio_shapes"):
            for shape in getattr(self, name):
                sizes(shape, name)
        embed_dim = sizes(self.heads_shape, "heads_shape")[1]
        for h in self.heads:
            if embed_dim % h:
                raise ValueError(f"heads={h} must divide the embed_dim of heads_shape={self.heads_shape}")
        for pixels in self.image_sizes:
            if pixels % self.patch:
                raise ValueError(f"image_sizes={pixels} must be a multiple of patch={self.patch}")


def sizes(shape: str, name: str = "shape") -> tuple[int, int]:
    """``tokens x embed_dim`` as two numbers.

    Raises:
        ValueError: a shape of another form, or a size below 1 or of more than eight digits.
    """
    parts = shape.split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 8 for part in parts):
        raise ValueError(f"{name}={shape} must be tokens x embed_dim, as in 196x768")
    n, d = map(int, parts)
    if min(n, d) < 1:
        raise ValueError(f"{name}={shape} must have sizes of 1 or more")
    return n, d


def theory_name(network: str) -> str:
    """The closed form of a network: torch's attention has that of attention."""
    return "attention" if network == "torch_attention" else network


def grid(p: Params, network: str) -> list[tuple[int, int, int | None]]:
    """(tokens, embed_dim, kernel) of the grid of counts."""
    kernels: list[int | None] = [*p.kernels] if network in WITH_KERNEL else [None]
    tokens = [n for n in p.tokens if n <= p.recurrent_most] if network in RECURRENT else p.tokens
    return [(n, d, k) for n in tokens for d in p.embed_dims for k in kernels]


def degree_sizes(p: Params, network: str) -> dict[str, list[tuple[int, int, int]]]:
    """By variable: sizes (tokens, embed_dim, kernel) at equal steps of that variable."""
    n, d, k = p.degree_tokens, p.degree_embed_dim, min(p.kernels)
    steps = range(1, p.degree_points + 1)
    found = {"tokens": [(n * i, d, k) for i in steps], "embed_dim": [(n, d * i, k) for i in steps]}
    if network in WITH_KERNEL:
        found["kernel"] = [(n, d, 2 * i + 1) for i in steps]
    return found


def ratios(p: Params) -> list[tuple[str, str, int, int, int, tuple[int, int]]]:
    """(network, against, tokens, embed_dim, side, own kernels): a convolution has a side, others side^2 neighbours."""
    side = p.ratio_kernel
    own = {name: side if name.endswith("_2d") else side**2 for name in closed.NETWORKS}
    return [(a, b, *sizes(shape), side, (own[a], own[b])) for shape in p.ratio_shapes for a, b in RATIOS]


def crossovers(p: Params) -> list[tuple[str, str, int, int | None]]:
    """(network, against, embed_dim, kernel) of every crossover."""
    found: list[tuple[str, str, int, int | None]] = []
    for network, against in PAIRS:
        kernels: list[int | None] = [*p.kernels] if against in WITH_KERNEL else [None]
        found += [(network, against, d, k) for d in p.crossover_dims for k in kernels]
    return found + [(network, against, d, None) for network, against in RECURRENT_PAIRS for d in p.recurrent_dims]


def stored_tokens(p: Params) -> list[int]:
    """Tokens at equal steps, more than there are components: the scores are then larger than what they are made of."""
    first = p.chain_kernel * p.chain_embed_dim + 1
    return [first * i for i in range(1, p.degree_points + 1)]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "flops":
        return 2.0 + len(RECURRENT) * p.recurrent_most * sum(p.embed_dims) * 1e-5
    if p.study == "crossover":
        return 1.0 + sum(p.recurrent_dims) * 0.02
    return 2.0


# --- closed forms ---


def theory(cell: Cell) -> list[Row]:
    """Closed forms of everything the cell measures (``attnrepro.theory.complexity``)."""
    p = cell.params
    made = {"flops": _flops, "crossover": _crossover, "chain": _chain}[p.study](p)
    return [Row(name, value, axes, source="theory", statistic="exact") for name, value, axes in made]


Made = Iterator[tuple[str, float, dict[str, object]]]


def _flops(p: Params) -> Made:
    for network in COUNTED:
        name = theory_name(network)
        for n, d, k in grid(p, network):
            axes: dict[str, object] = {"network": network, "tokens": n, "embed_dim": d, "kernel": k}
            yield "flops", closed.flops(name, n, d, k or 1), axes
        for variable in degree_sizes(p, network):
            yield "flops_degree", closed.degree(name, variable), {"network": network, "variable": variable}
        if network in ONE_TERM:
            yield "coefficient", closed.coefficient(name), {"network": network}
    n, d = sizes(p.heads_shape)
    for network in WITH_HEADS:
        found = [closed.flops(theory_name(network), n, d, h=h) for h in p.heads]
        axes = {"network": network, "tokens": n, "embed_dim": d}
        for h, value in zip(p.heads, found, strict=True):
            yield "flops", value, {**axes, "heads": h}
        yield "flops_spread", max(found) - min(found), axes
    for network in ("attention", "torch_attention"):
        yield "unexplained_flops", 0, {"network": network}
    for shape in p.exponent_shapes:
        n, d = sizes(shape)
        for network in ("attention", "window", "linear"):
            k = p.kernels[0] if network == "window" else None
            ratio = closed.flops(network, 2 * n, d, k or 1) / closed.flops(network, n, d, k or 1)
            axes = {"network": network, "tokens": n, "embed_dim": d, "kernel": k, "variable": "tokens"}
            yield "exponent", math.log2(ratio), axes
    for network, against, n, d, side, own in ratios(p):
        ratio = closed.flops(network, n, d, own[0]) / closed.flops(against, n, d, own[1])
        axes = {"network": network, "against": against, "tokens": n, "embed_dim": d, "kernel": side}
        yield "flops_ratio", ratio, axes
    for pixels in p.image_sizes:
        n, d = (pixels // p.patch) ** 2, p.image_embed_dim
        yield "tokens_per_component", n / d, {"pixels": pixels}
        yield "scores_share", n / (n + 2 * d), {"network": "attention", "pixels": pixels}


def _crossover(p: Params) -> Made:
    for network, against, d, k in crossovers(p):
        axes: dict[str, object] = {"network": network, "against": against, "embed_dim": d, "kernel": k}
        yield "cheaper_up_to", closed.cheaper_up_to(network, against, d, k or 1), axes


def _chain(p: Params) -> Made:
    for network in CHAINED:
        kernel = p.chain_kernel if network in WITH_KERNEL else None
        axes: dict[str, object] = {"network": network, "kernel": kernel}
        for n in p.chain_tokens:
            yield "sequential_steps", closed.sequential_steps(network, n), {**axes, "tokens": n}
        for distance in p.distances:
            length = closed.path_length(network, distance, p.chain_kernel)
            yield "path_length", length, {**axes, "tokens": distance + 1}
    for network in STORED:
        kernel = p.chain_kernel if network in WITH_KERNEL else None
        for n in stored_tokens(p):
            entries = closed.largest_tensor(network, n, p.chain_embed_dim, p.chain_kernel)
            yield "largest_tensor", entries, {"network": network, "kernel": kernel, "tokens": n}
        degree = 2 if network == "attention" else 1
        yield "largest_tensor_degree", degree, {"network": network, "variable": "tokens"}


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    found = []
    for r in frame[frame.theory.notna()].itertuples():
        if not r.n:
            failed = ", though searched for" if r.n_failed else ""
            found.append(f"{r.quantity} at {_at(r)} was not found{failed}: theory says {r.theory:.6g}")
        elif not abs(r.estimate - r.theory) <= TOLERANCE * max(1.0, abs(r.theory)):
            found.append(f"{r.quantity} at {_at(r)} is {r.estimate:.12g}, the closed form {r.theory:.12g}")
    return found


def _at(r: Any) -> str:
    return " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))


def _counted(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    return frame[(frame.quantity == quantity) & (frame.n > 0)]


# --- answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_cost_in_words(frame), *_wins_in_words(frame), *_steps_in_words(frame)])


RIVALS = {
    "rnn": "a plain RNN",
    "gru": "a GRU",
    "lstm": "an LSTM",
    "convolution": "a convolution of width {}",
    "convolution_2d": "a {0} x {0} convolution",
    "window": "window attention of width {}",
    "linear": "linear attention",
    "low_rank": "low-rank attention of rank {}",
}


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """What attention costs, and up to which number of tokens it needs the fewest FLOPs of all."""
    parts = []
    left, coefficients = _counted(frame, "unexplained_flops"), _counted(frame, "coefficient")
    terms = coefficients.set_index("network").estimate
    if len(left) and set(ONE_TERM) <= set(terms.index):
        exact = "exactly" if (left.estimate == 0).all() else "about"
        scores = terms["logits"] + terms["mixing"]
        parts.append(f"attention costs {exact} 2 ({terms['projections']:g} N d^2 + {scores:g} N^2 d) FLOPs")
    limits = _counted(frame, "cheaper_up_to")
    limits = limits[limits.network == "attention"]
    if len(limits):
        # At the smallest kernel; of each rival the largest d that was counted.
        kernel = min((k for k in limits.kernel if k), key=int, default="")
        rows = limits[limits.kernel.isin(["", kernel])]
        last = [group.loc[group.embed_dim.astype(int).idxmax()] for _, group in rows.groupby("against", sort=False)]
        never = [RIVALS[r.against].format(r.kernel) for r in last if r.estimate == 0]
        some = [r for r in sorted(last, key=lambda r: r.estimate) if r.estimate > 0]
        least = int(rows.estimate.min())
        where = f"the cheapest of all up to N = {least}" if least else "at no N the cheapest of all"
        parts.append(f"it is {where}" + (f" ({' and '.join(never)} always {_need(never)} less)" if never else ""))
        beaten = [r for r in some if r.against in ("gru", "linear")]
        if beaten:
            told = [
                f"{RIVALS[r.against].format(r.kernel)} up to N = {int(r.estimate)} (d = {r.embed_dim})" for r in beaten
            ]
            parts.append(f"it costs less than {', '.join(told)}")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _need(names: Sequence[str]) -> str:
    return "needs" if len(names) == 1 else "need"


def _cost_in_words(frame: pd.DataFrame) -> Iterator[str]:
    left, spread = (_counted(frame, quantity) for quantity in ("unexplained_flops", "flops_spread"))
    parts = _counted(frame, "coefficient").set_index("network").estimate
    shares = _counted(frame, "scores_share").sort_values("pixels", key=lambda s: s.astype(int))
    if left.empty or spread.empty or shares.empty or not set(ONE_TERM) <= set(parts.index):
        return
    exact = "exactly" if (left.estimate == 0).all() else "about"
    scores = parts["logits"] + parts["mixing"]
    heads = ", whatever the number of heads" if (spread[spread.network == "attention"].estimate == 0).all() else ""
    first, last = shares.iloc[0], shares.iloc[-1]
    yield (
        f"Attention costs {exact} 2 ({parts['projections']:g} N d^2 + {scores:g} N^2 d) FLOPs{heads}; the"
        f" quadratic term is {first.estimate:.1%} of it for an image of {first.pixels} pixels and"
        f" {last.estimate:.1%} at {last.pixels}."
    )


def _wins_in_words(frame: pd.DataFrame) -> Iterator[str]:
    limits = _counted(frame, "cheaper_up_to")
    if limits.empty:
        return
    found = {(r.network, r.against, r.embed_dim, r.kernel): int(r.estimate) for r in limits.itertuples()}
    d = max((r.embed_dim for r in limits.itertuples() if r.against in RECURRENT), key=int, default="")
    k = min((r.kernel for r in limits.itertuples() if r.kernel), key=int, default="")
    wanted = [("scores", "rnn"), ("attention", "rnn"), ("attention", "gru"), ("attention", "lstm")]
    if all((*pair, d, "") in found for pair in wanted):
        scores, rnn, gru, lstm = (found[(*pair, d, "")] for pair in wanted)
        rule = "exact" if scores == int(d) - 1 else "wrong"
        never = "never" if rnn == 0 else f"up to N = {rnn}"
        yield (
            f"'Cheaper than recurrence when N < d' is {rule} for the scores alone against a plain RNN (d = {d}: up to"
            f" N = {scores}); with its projections attention is {never} cheaper than that RNN, and cheaper than a GRU"
            f" up to N = {gru} and than an LSTM up to N = {lstm}."
        )
    d = max((r.embed_dim for r in limits.itertuples()), key=int)
    wanted = [("attention", name, d, k if name in WITH_KERNEL else "") for name in ("convolution_2d", "linear")]
    wanted.append(("scores", "projections", d, ""))
    if all(key in found for key in wanted):
        conv, linear, scores = (found[key] for key in wanted)
        yield (
            f"At d = {d} attention is cheaper than a {k} x {k} convolution up to N = {conv} and than"
            f" linear attention up to N = {linear}; its scores cost less than its projections up to N = {scores}."
        )


def _steps_in_words(frame: pd.DataFrame) -> Iterator[str]:
    steps, paths = (_counted(frame, quantity) for quantity in ("sequential_steps", "path_length"))
    if steps.empty or paths.empty:
        return
    n, far = (max(rows.tokens, key=int) for rows in (steps, paths))
    one = steps[steps.tokens == n].set_index("network").estimate
    other = paths[paths.tokens == far].set_index("network").estimate
    names = {"attention": "attention", "linear": "linear attention", "low_rank": "low-rank attention"}
    direct = [names.get(name, name) for name in other.index if other[name] == 1]
    kernel = next(iter(paths[paths.kernel != ""].kernel), "")
    yield (
        f"For {n} tokens an RNN needs {one['rnn']:.0f} matrix products one after the other, attention"
        f" {one['attention']:.0f}; between positions {int(far) - 1} apart lie {other['rnn']:.0f} steps of an RNN,"
        f" {other['convolution']:.0f} layers of convolution or {other['window']:.0f} of window attention of width"
        f" {kernel}, or one layer of {' or '.join(direct)}."
    )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """FLOPs against tokens, crossovers against embed_dim, and the share of the quadratic term."""
    return [chart for chart in (_flops_chart(frame), _crossover_chart(frame), _share_chart(frame)) if chart]


def _records(frame: pd.DataFrame, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows for Vega; a missing number is left out, because JSON has no nan."""
    return [{k: v for k, v in record.items() if v == v} for record in frame[list(columns)].to_dict("records")]


def _panel(rows: pd.DataFrame, x: Any, y: Any, title: str, order: Sequence[str]) -> Mapping[str, Any]:
    """Theory lines and counted points; ``x`` and ``y`` are axes, that of y without a field."""
    import altair as alt

    columns = [x.shorthand.split(":")[0], "what", "estimate", "theory"]
    base = alt.Chart(alt.Data(values=_records(rows, columns))).encode(
        x=x, color=alt.Color("what:N", title=None, sort=list(order))
    )
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'what' else 'Q'}") for column in columns]

    def along(field: str) -> Any:
        placed = y.copy()
        placed.shorthand = f"{field}:Q"
        return placed

    layers = [
        base.mark_line(style="theory").encode(y=along("theory")),
        base.mark_point(style="measured").encode(y=along("estimate"), tooltip=tip),
    ]
    spec: Mapping[str, Any] = alt.layer(*layers).properties(title=title, description=title).to_dict()
    return spec


def _flops_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    names = {
        "attention": "attention",
        "convolution_2d": "convolution",
        "lstm": "LSTM",
        "linear": "linear",
        "window": "window",
    }
    rows = _counted(frame, "flops")
    rows = rows[rows.network.isin(list(names)) & (rows.heads == "")].copy()
    if rows.empty:
        return None
    d = max(rows.embed_dim.astype(int))
    k = min(int(kernel) for kernel in rows.kernel if kernel)
    rows = rows[(rows.embed_dim == str(d)) & rows.kernel.isin(["", str(k)])].copy()
    rows["what"], rows["n"] = rows.network.map(names), rows.tokens.astype(int)
    x = alt.X("n:Q", title="tokens").scale(type="log").axis(values=sorted(set(rows.n)))
    y = alt.Y("estimate:Q", title="FLOPs").scale(type="log", nice=False, padding=8).axis(format=".0e")
    return _panel(rows, x, y, f"FLOPs, d = {d}, kernel {k}", list(names.values()))


def _crossover_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    names = {
        ("attention", "convolution_2d"): "convolution",
        ("attention", "lstm"): "LSTM",
        ("attention", "linear"): "linear",
        ("attention", "low_rank"): "low-rank",
        ("attention", "window"): "window",
    }
    rows = _counted(frame, "cheaper_up_to")
    rows = rows[rows.estimate > 0].copy()
    if rows.empty:
        return None
    k = min(int(kernel) for kernel in rows.kernel if kernel)
    rows["what"] = [names.get(key, "") for key in zip(rows.network, rows.against, strict=True)]
    rows = rows[(rows.what != "") & rows.kernel.isin(["", str(k)])].copy()
    rows["d"] = rows.embed_dim.astype(int)
    x = alt.X("d:Q", title="embed_dim").scale(type="log", base=2).axis(values=sorted(set(rows.d)))
    y = alt.Y("estimate:Q", title="tokens").scale(type="log", nice=False, padding=8)
    return _panel(rows, x, y, f"attention is cheaper up to, kernel {k}", list(names.values()))


def _share_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = _counted(frame, "scores_share").copy()
    if rows.empty:
        return None
    rows["what"], rows["side"] = "share of N^2 d", rows.pixels.astype(int)
    x = alt.X("side:Q", title="pixels").scale(type="log", base=2).axis(values=sorted(set(rows.side)))
    y = alt.Y("estimate:Q", title="share of FLOPs")
    return _panel(rows, x, y, "the quadratic term in images", ["share of N^2 d"])
