"""model_shapes, read: shares, controls, answer and charts. Makes no row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.tables.model_shapes.table import AXES

if TYPE_CHECKING:  # a typo is answered without it: it costs more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive"]

# What a closed form and a count may differ by, relative.
TOLERANCE = 1e-12


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Shares of the blocks in parameters, and of the scores in FLOPs."""
    return [*_shares(frame, "block_parameters", "parameters"), *_shares(frame, "score_flops", "flops")]


def _shares(frame: pd.DataFrame, part: str, whole: str) -> Iterator[dict[str, object]]:
    totals = _rows(frame, whole)
    for key, r in _rows(frame, part).items():
        if key in totals:
            axes = dict(zip(AXES, key, strict=True))
            share, theory = (r[name] / totals[key][name] for name in ("estimate", "theory"))
            found = {"quantity": f"{part.split('_')[0]}_share", "statistic": "exact", "theory": theory}
            yield {**axes, **found, "estimate": share, "n": 1, "n_failed": 0, "sd": math.nan}


def _rows(frame: pd.DataFrame, quantity: str) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """Measured rows of a quantity by their axes."""
    rows = frame[(frame.quantity == quantity) & (frame.n > 0)].to_dict("records")
    return {tuple(str(r[axis]) for axis in AXES): r for r in rows}


def controls(frame: pd.DataFrame) -> list[str]:
    """Every count must be its closed form."""
    return list(_counted(frame))


def _counted(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.theory.notna()].to_dict("records"):
        at = " ".join(f"{axis}={r[axis]}" for axis in AXES if r[axis])
        if not r["n"]:
            yield f"{r['quantity']} of {at} was not counted: the closed form gives {r['theory']:.6g}"
        elif not abs(r["estimate"] - r["theory"]) <= TOLERANCE * max(1.0, abs(r["theory"])):
            yield f"{r['quantity']} of {at} is {r['estimate']:.12g}, the closed form {r['theory']:.12g}"


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_sizes(frame), *_units(frame), *_gpt2(frame), *_scores(frame)])


def _millions(value: float) -> str:
    return f"{value / 1e9:.1f} billion" if value >= 1e10 else f"{value / 1e6:.1f} million"


def _sizes(frame: pd.DataFrame) -> Iterator[str]:
    rows = _rows(frame, "parameters")
    names = ("transformer_base", "bert_base", "bert_large", "gpt2", "gpt3_175b", "vit_b16")
    found = [(name, rows[name, "", ""]["estimate"]) for name in names if (name, "", "") in rows]
    if found:
        parts = ", ".join(f"{name} {_millions(value)}" for name, value in found)
        yield f"Parameters, counted on the model and by closed form alike: {parts}."


def _units(frame: pd.DataFrame) -> Iterator[str]:
    rows, dims = _rows(frame, "attention_units"), _rows(frame, "head_dim")
    names = ("bert_base", "bert_large", "gpt3_175b")
    parts = [
        f"{name} {rows[key]['estimate']:.0f} of {dims[key]['estimate']:.0f} components"
        for name in names
        if (key := (name, "", "")) in rows and key in dims
    ]
    if parts:
        yield f"Attention maps of one pass: {', '.join(parts)}."


def _gpt2(frame: pd.DataFrame) -> Iterator[str]:
    rows = _rows(frame, "parameters")
    parts = [
        f"{r['estimate'] / 1e6:.1f} against {other['estimate'] / 1e6:.1f}"
        for (model, variant, _), r in rows.items()
        if not variant and (other := rows.get((model, "gpt_vocabulary", ""))) is not None
    ]
    if parts:
        yield (
            "GPT-2's printed counts are those of its sizes with the first GPT's vocabulary: millions of parameters with"
            f" its own 50 257 words against with those 40 478, {', '.join(parts)}."
        )


def _scores(frame: pd.DataFrame) -> Iterator[str]:
    rows = _rows(frame, "score_share")
    names = ("bert_base", "gpt2", "gpt3_175b", "vit_b16")
    parts = [f"{name} {rows[name, '', '']['estimate']:.1%}" for name in names if (name, "", "") in rows]
    if parts:
        yield f"Of the FLOPs at full length, the n² part of attention is {', '.join(parts)}."


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Parameters of every model, and the share of scores in its FLOPs."""
    found = [
        _points(frame, "parameters", "parameters", "parameters", log=True),
        _points(frame, "score_share", "share of the n² part", "scores in the FLOPs at full length", log=False),
    ]
    return [chart for chart in found if chart]


def _points(frame: pd.DataFrame, quantity: str, x_title: str, title: str, *, log: bool) -> Mapping[str, Any] | None:
    """A point for each model, the largest on top."""
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == quantity) & (frame.counted_as == "") & (frame.heads == "") & (frame.n > 0)]
    if rows.empty:
        return None
    rows = rows.sort_values("estimate", ascending=False)
    tip = [alt.Tooltip("model:N"), alt.Tooltip("estimate:Q")]
    across = alt.X("estimate:Q", title=x_title)
    across = across.scale(type="log").axis(format="~s", tickCount=5) if log else across.axis(format="~p", tickCount=5)
    spec: Mapping[str, Any] = (
        alt.Chart(alt.Data(values=records(rows, ["model", "estimate"])))
        .mark_point(style="measured")
        .encode(x=across, y=alt.Y("model:N", title=None, sort=list(rows.model)), tooltip=tip)
        .properties(title=title, height=60 + 14 * len(rows), description=f"{title}: {x_title} by model")
        .to_dict()
    )
    return spec
