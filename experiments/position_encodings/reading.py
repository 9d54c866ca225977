"""position_encodings, read: differences by seed, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.derived import over_seeds
from attnrepro.tables.position_encodings.table import AXES, BENT, CURVED

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive", "monte_carlo", "roundoff"]

# Right answers at the trained length of a seed that has learned its task.
TARGET = 0.9
# Counted and closed form agree to this, relative.
TOLERANCE = 1e-9
# An error of at most so many eps is round-off; what breaks an identity does so by so many.
HOLDS_EPS, BROKEN_EPS = 32.0, 1e6
# What cannot be known may be guessed right by so many standard errors more.
CHANCE_SE = 5.0

WORDS = {
    "sinusoidal": "sinusoidal",
    "sinusoidal_shifted": "sinusoidal, shifted",
    "sinusoidal_grid": "sinusoidal by row and column",
    "learned": "learned",
    "learned_shifted": "learned, shifted",
    "rotary": "rotary",
    "none": "none",
    "gaussian": "learned at its start",
}
# Models of the copying task whose right answers are compared.
PAIRS = (
    ("sinusoidal", "learned"),
    ("rotary", "sinusoidal"),
    ("rotary", "learned"),
    ("sinusoidal_shifted", "sinusoidal"),
    ("learned_shifted", "learned"),
    ("sinusoidal", "none"),
    ("learned", "none"),
    ("rotary", "none"),
)
MASKS = {
    "causal": "no code, causal mask and start token",
    "causal_no_start": "no code, causal mask alone",
    "full": "no code, no mask",
}
# Labels of the chart's narrow margin.
LABELS = {
    "causal": "none, causal, start",
    "causal_no_start": "none, causal",
    "full": "none",
    "sinusoidal": "sinusoidal",
    "sinusoidal_grid": "row and column",
}

Rows = dict[tuple[str, ...], Mapping[str, Any]]


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Simulated distances of Gaussian codes and ceilings of what is seen without order, each with draws of its own."""
    chosen = frame[frame.quantity.isin(["mean_square_distance", "ceiling"]) & (frame.n > 1)]
    return chosen, float(len(chosen))


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors of this table are in units of eps times their scale already."""
    return 1.0, 1.0


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """What is kept beyond the trained length, who is ahead by how much, and how many seeds learned."""
    return [*_kept(frame), *_leads(frame), *_learned(frame)]


def _rows(frame: pd.DataFrame, quantity: str, *names: str, statistic: str = "mean", **at: str) -> Rows:
    """Rows of one quantity by some of their axes."""
    chosen = frame[(frame.quantity == quantity) & (frame.statistic == statistic)]
    for axis, value in at.items():
        chosen = chosen[chosen[axis] == value]
    return {tuple(r[name] for name in names): r for r in chosen.to_dict("records")}


def _line(
    quantity: str, statistic: str, axes: Mapping[str, object], values: Sequence[float], failed: int
) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | dict(axes)
    line |= {"quantity": quantity, "statistic": statistic, "unit": "", "theory": math.nan, "n_failed": failed}
    return line | over_seeds(values)


def _both(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[list[tuple[float, float]], int]:
    """Values of the seeds that two models have, and how many seeds one of them lacks."""
    pairs = [(a["by_seed"][seed], b["by_seed"][seed]) for seed in a["by_seed"] if seed in b["by_seed"]]
    return pairs, max(r["n"] + r["n_failed"] for r in (a, b)) - len(pairs)


def _trained_length(rows: Rows) -> str:
    return str(min((int(length) for _, length in rows), default=0))


def _kept(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    rows = _rows(frame, "accuracy", "encoding", "length", task="copy")
    short = _trained_length(rows)
    for (encoding, length), r in rows.items():
        if length != short and (encoding, short) in rows:
            pairs, failed = _both(r, rows[encoding, short])
            axes = {axis: r[axis] for axis in AXES}
            yield _line("accuracy_kept", "mean", axes, [a / b for a, b in pairs if b], failed)


def _leads(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    def lead(a: Mapping[str, Any], b: Mapping[str, Any], **named: str) -> dict[str, object]:
        pairs, failed = _both(a, b)
        axes = {axis: a[axis] for axis in AXES} | named
        return _line("accuracy_lead", "paired_difference", axes, [x - y for x, y in pairs], failed)

    copied = _rows(frame, "accuracy", "encoding", "length", task="copy")
    for length in dict.fromkeys(length for _, length in copied):
        for ours, theirs in PAIRS:
            if (ours, length) in copied and (theirs, length) in copied:
                yield lead(copied[ours, length], copied[theirs, length], encoding=f"{ours} - {theirs}")
    placed = _rows(frame, "accuracy", "encoding", "mask", task="locate")
    blind = placed.get(("none", "full"))
    if blind is None:
        return
    for (encoding, mask), r in placed.items():
        if mask != "full":
            yield lead(r, blind, mask=f"{mask} - full")
        elif encoding != "none":
            yield lead(r, blind, encoding=f"{encoding} - none")


def _learned(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Seeds that reach the target at the trained length; those that diverged did not."""
    from attnrepro import stats

    copied = _rows(frame, "accuracy", "encoding", "length", task="copy")
    short = _trained_length(copied)
    chosen = [r for (_, length), r in copied.items() if length == short]
    chosen += _rows(frame, "accuracy", "encoding", "mask", task="locate").values()
    for r in chosen:
        total = r["n"] + r["n_failed"]
        share = stats.share_interval(sum(value >= TARGET for value in r["seeds"]), total)
        line = _line("share_learned", "share", {axis: r[axis] for axis in AXES}, (), 0)
        yield line | {"n": total, "estimate": share.value, "ci_low": share.low, "ci_high": share.high}


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_counted(frame), *_shifted(frame), *_blind(frame), *_trained(frame)]


def _at(r: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={r[axis]}" for axis in AXES if r[axis])


def _counted(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.statistic == "exact") & frame.theory.notna()].to_dict("records"):
        if not r["n"]:
            yield f"{r['quantity']} at {_at(r)} was not measured: theory says {r['theory']:.6g}"
        elif not abs(r["estimate"] - r["theory"]) <= TOLERANCE * abs(r["theory"]):
            yield f"{r['quantity']} at {_at(r)} is {r['estimate']:.9g}, the closed form {r['theory']:.9g}"


def _shifted(frame: pd.DataFrame) -> Iterator[str]:
    for kind, breakers in (("rotation", BENT), ("linear", CURVED)):
        errors = _rows(frame, f"{kind}_error_eps", "encoding", statistic="exact")
        least = _rows(frame, f"least_{kind}_error_eps", "encoding", statistic="exact")
        for (code,), r in errors.items():
            if code in breakers:
                found = least[(code,)]["estimate"] if (code,) in least else 0.0
                if not found >= BROKEN_EPS:
                    yield f"{code}: some shift is a {kind} up to {found:.3g} eps, although it should be none"
            elif not r["estimate"] <= HOLDS_EPS:
                yield f"{code}: a shift is no {kind} map, off by {r['estimate']:.3g} eps"


def _above(r: Mapping[str, Any], level: float) -> bool:
    """Whether a mean over seeds is above a level by more than chance explains."""
    return bool(r["n"] and r["estimate"] > level + CHANCE_SE * max(r["sd"], TOLERANCE) / math.sqrt(r["n"]))


def _blind(frame: pd.DataFrame) -> Iterator[str]:
    ceilings = {length: r["theory"] for (length,), r in _rows(frame, "ceiling", "length").items()}
    for (length,), r in _rows(frame, "accuracy", "length", task="copy", encoding="none").items():
        if _above(r, ceilings[length]):
            most = f"more than {ceilings[length]:.3f}"
            yield f"without a code {r['estimate']:.3f} are copied right at {length} tokens, {most}"
    for r in _rows(frame, "accuracy", "length", task="locate", encoding="none", mask="full").values():
        if _above(r, r["theory"]):
            chance = f"chance is {r['theory']:.3f}"
            yield f"without code and mask {r['estimate']:.3f} of the positions are named right: {chance}"


def _trained(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.quantity == "accuracy") & (frame.n_failed > 0)].to_dict("records"):
        yield f"{r['n_failed']} seeds diverged at {_at(r)}"
    for r in frame[frame.quantity == "share_learned"].to_dict("records"):
        if r["encoding"] != "none" and r["estimate"] < 1:
            yield f"{r['estimate']:.2f} of the seeds learned at {_at(r)}: too little training"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_codes_in_words(frame), *_lengths_in_words(frame), *_places_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """The four questions in one sentence, as far as there are rows."""
    parts = []
    smallest = _rows(frame, "smallest_distance", "embed_dim", "length", statistic="exact", encoding="sinusoidal")
    errors = _rows(frame, "rotation_error_eps", "encoding", statistic="exact")
    if smallest:
        dim, length = max(smallest, key=lambda at: (int(at[0]), int(at[1])))
        apart = smallest[dim, length]["estimate"]
        parts.append(f"the nearest of {length} sinusoidal codes of {dim} numbers are {apart:.3g} apart")
    if r := errors.get(("sinusoidal",)):
        parts.append(f"a shift {'rotates' if r['estimate'] <= HOLDS_EPS else 'does not rotate'} them")
    rows = _rows(frame, "accuracy", "encoding", "length", task="copy")
    lengths = sorted({int(length) for _, length in rows})
    if len(lengths) > 1:
        ends = str(lengths[0]), str(lengths[-1])
        there = {name: r for name in ("sinusoidal", "learned", "rotary") if (r := rows.get((name, ends[1]))) and r["n"]}
        works = [name for name, r in there.items() if r["estimate"] >= TARGET]
        told = ", ".join(
            f"{name} {_interval(r) if r['n'] > 1 else format(r['estimate'], '.2f')}" for name, r in there.items()
        )
        if there:
            word = " and ".join(works) or "none of them"
            parts.append(
                f"trained on {ends[0]} tokens, {word} can do with {ends[1]} ({told} right,"
                f" {max(r['n'] for r in there.values())} seeds)"
            )
    causal = _rows(frame, "accuracy", "encoding", "mask", task="locate").get(("none", "causal"))
    if causal and causal["n"]:
        word = "tells" if causal["estimate"] >= TARGET else "does not tell"
        parts.append(f"without a code a causal model {word} positions ({causal['estimate']:.2f} right)")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _codes_in_words(frame: pd.DataFrame) -> Iterator[str]:
    smallest = _rows(frame, "smallest_distance", "embed_dim", "length", statistic="exact", encoding="sinusoidal")
    gaps = _rows(frame, "nearest_gap", "embed_dim", "length", statistic="exact")
    drawn = _rows(frame, "smallest_distance", "embed_dim", "length", encoding="gaussian")
    if not smallest:
        return
    long = str(max(int(length) for _, length in smallest))
    dims = sorted({int(dim) for dim, _ in smallest})
    parts = [
        f"{smallest[dim, long]['estimate']:.3g} at embed_dim {dim} ({gaps[dim, long]['estimate']:.0f} apart; learned"
        f" at its start {drawn[dim, long]['estimate']:.3g})"
        for dim in map(str, dims)
        if smallest[dim, long]["n"] and (dim, long) in drawn and (dim, long) in gaps
    ]
    if parts:
        yield f"The nearest two of {long} sinusoidal codes: {', '.join(parts)}."
    errors = _rows(frame, "rotation_error_eps", "encoding", statistic="exact")
    if ("sinusoidal",) in errors:
        yield (
            "A shift of positions is a rotation of sinusoidal codes to within"
            f" {errors[('sinusoidal',)]['estimate']:.2g} roundings."
        )


def _interval(r: Mapping[str, Any]) -> str:
    return f"{r['estimate']:.2f} [{r['ci_low']:.2f}, {r['ci_high']:.2f}]"


def _lengths_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = _rows(frame, "accuracy", "encoding", "length", task="copy")
    names = list(dict.fromkeys(encoding for encoding, _ in rows))
    lengths = sorted({int(length) for _, length in rows})
    if not rows or any(r["n"] < 2 for r in rows.values()):
        return
    parts = [f"{WORDS[name]} {', '.join(_interval(rows[name, str(n)]) for n in lengths)}" for name in names]
    told = " and ".join(map(str, lengths[1:]))
    yield (
        f"Right answers about the symbol a few places back after training on {lengths[0]} tokens, there and beyond"
        f" them in texts of {told}: {'; '.join(parts)}."
    )


def _places_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = _rows(frame, "accuracy", "encoding", "mask", task="locate")
    if not rows or any(r["n"] < 2 for r in rows.values()):
        return
    parts = [f"{words} {_interval(rows['none', mask])}" for mask, words in MASKS.items() if ("none", mask) in rows]
    if ("sinusoidal", "full") in rows:
        parts.append(f"sinusoidal codes, no mask {_interval(rows['sinusoidal', 'full'])}")
    length = next(iter(rows.values()))["length"]
    yield f"Tokens that name which of {length} positions they have: {', '.join(parts)}."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Smallest distances and right answers against length, and positions named right."""
    return [chart for chart in (_distance_chart(frame), _copy_chart(frame), _locate_chart(frame)) if chart]


def _distance_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "smallest_distance") & (frame.n > 0)].copy()
    if rows.empty:
        return None
    import altair as alt

    rows["code"] = rows.encoding.map(WORDS)
    rows["length"] = rows.length.astype(float)
    dims = sorted(set(rows.embed_dim), key=int)
    columns = ["length", "code", "embed_dim", "estimate", "ci_low", "ci_high", "n"]
    kinds = {"code": "N", "embed_dim": "O"}
    tip = [alt.Tooltip(f"{column}:{kinds.get(column, 'Q')}") for column in columns]
    title = "distance of the nearest two codes"
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(
        x=alt.X("length:Q", title="positions").scale(type="log").axis(format="~s", tickCount=4),
        y=alt.Y("estimate:Q", title="smallest distance").scale(type="log").axis(format="~g", tickCount=5),
        color=alt.Color("embed_dim:N", sort=dims, legend=alt.Legend(title="embed_dim", columns=4, orient="bottom")),
    )
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_line().encode(
                strokeDash=alt.StrokeDash("code:N", legend=alt.Legend(title=None, columns=1, orient="bottom"))
            ),
            base.mark_point(style="measured").encode(detail="code:N", tooltip=tip),
        )
        .properties(title=title, description=f"{title} against the number of positions, by code and embed_dim")
        .to_dict()
    )
    return spec


def _copy_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "accuracy") & (frame.task == "copy") & (frame.n > 0)].copy()
    if rows.empty:
        return None
    rows["code"] = rows.encoding.map(WORDS)
    rows["length"] = rows.length.astype(float)
    columns = ["length", "code", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'code' else 'Q'}") for column in columns]
    order = [words for words in WORDS.values() if words in set(rows.code)]
    title = "right answers beyond the trained length"
    base = alt.Chart(alt.Data(values=records(rows.sort_values("length"), columns))).encode(
        x=alt.X("length:Q", title="tokens of the text").scale(type="log").axis(values=sorted(set(rows.length))),
        color=alt.Color("code:N", sort=order, legend=alt.Legend(title=None, columns=2, orient="bottom")),
    )

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title="right answers", scale=alt.Scale(domain=[0, 1]))

    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_rule(clip=True, style="interval").encode(y=y("ci_low"), y2="ci_high:Q"),
            base.mark_line().encode(y=y("estimate")),
            base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
        )
        .properties(title=title, description=f"{title}: share of right answers against length, by position code")
        .to_dict()
    )
    return spec


def _locate_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "accuracy") & (frame.task == "locate") & (frame.n > 0)].copy()
    if rows.empty:
        return None
    rows["model"] = [LABELS[r.mask] if r.encoding == "none" else LABELS[r.encoding] for r in rows.itertuples()]
    columns = ["model", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'model' else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(
        y=alt.Y("model:N", title=None, sort=list(rows.model)).axis(labelLimit=230)
    )
    chance = alt.Chart(alt.Data(values=[{"limit": "chance", "at": float(rows.theory.dropna().iloc[0])}]))
    title = "tokens that name their own position"
    x = alt.X("estimate:Q", title="right answers", scale=alt.Scale(domain=[0, 1]))
    spec: Mapping[str, Any] = (
        alt.layer(
            chance.mark_rule(style="theory").encode(x="at:Q", tooltip=[alt.Tooltip("limit:N"), alt.Tooltip("at:Q")]),
            base.mark_rule(clip=True, style="interval").encode(x=alt.X("ci_low:Q"), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=title, description=f"{title}: share right by code and mask, and chance")
        .to_dict()
    )
    return spec
