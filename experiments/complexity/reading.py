"""complexity, read: controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import panel
from attnrepro.tables.complexity.table import AXES, ONE_TERM, RECURRENT, WITH_KERNEL

if TYPE_CHECKING:  # a typo is answered without it: it costs more than the whole precheck
    import pandas as pd

__all__ = ["AXES", "answer", "charts", "controls"]

# An exact count or closed form may be off by rounding.
TOLERANCE = 1e-9
# Ticks of a logarithmic axis: one and three of each power of ten.
TICKS = [digit * 10**power for power in range(12) for digit in (1, 3)]


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


def _log_y(rows: pd.DataFrame, title: str) -> Any:
    """A logarithmic axis with few ticks, within what is drawn."""
    import altair as alt

    ticks = [tick for tick in TICKS if rows.estimate.min() <= tick <= rows.estimate.max()]
    y = alt.Y("estimate:Q", title=title).scale(type="log", nice=False, padding=8)
    return y.axis(format="~s", values=ticks)


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
    y = _log_y(rows, "FLOPs")
    return panel(rows, x, y, f"FLOPs, d = {d}, kernel {k}", list(names.values()))


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
    y = _log_y(rows, "tokens")
    return panel(rows, x, y, f"attention is cheaper up to, kernel {k}", list(names.values()))


def _share_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = _counted(frame, "scores_share").copy()
    if rows.empty:
        return None
    rows["what"], rows["side"] = "share of N^2 d", rows.pixels.astype(int)
    x = alt.X("side:Q", title="pixels").scale(type="log", base=2).axis(values=sorted(set(rows.side)))
    y = alt.Y("estimate:Q", title="share of FLOPs")
    return panel(rows, x, y, "the quadratic term in images", ["share of N^2 d"])
