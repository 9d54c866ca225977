"""Vega-Lite pieces that charts of several tables are made of; altair is imported when a chart is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd


def records(frame: "pd.DataFrame", columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows for Vega; a missing number is left out, because JSON has no nan."""
    found = frame[list(columns)].to_dict("records")
    return [{str(k): v for k, v in record.items() if v == v} for record in found]


def curves(
    frame: "pd.DataFrame",
    x: str,
    series: str,
    *,
    title: str,
    x_title: str,
    y_title: str,
    log: bool = False,
    zero: float | None = None,
) -> Mapping[str, Any] | None:
    """Estimates with their intervals against ``x``, a line for each value of ``series``; None without rows.

    ``x`` and ``series`` are columns of the frame, whose ``estimate``, ``ci_low`` and ``ci_high`` are drawn; ``log``
    makes the axis of x logarithmic, ``zero`` draws a level to compare with.
    """
    import altair as alt

    shown = frame[frame.n > 0].copy()
    if shown.empty:
        return None
    shown[x] = shown[x].astype(float)
    columns = [x, series, "estimate", "ci_low", "ci_high", "n"]
    kinds = {series: "N"}
    tip = [alt.Tooltip(f"{column}:{kinds.get(column, 'Q')}") for column in columns]
    across = alt.X(f"{x}:Q", title=x_title)
    across = across.scale(type="log").axis(format="~s", tickCount=5) if log else across.scale(zero=False)
    base = alt.Chart(_data(records(shown.sort_values(x), columns))).encode(
        x=across,
        # The bands' colour is faint, that of the lines is what the legend is for.
        color=alt.Color(
            f"{series}:N", sort=list(shown[series].unique()), legend=alt.Legend(title=None, symbolOpacity=1)
        ),
    )

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title=y_title).scale(zero=False)

    layers = [
        base.mark_area(opacity=0.15).encode(y=y("ci_low"), y2="ci_high:Q"),
        base.mark_line().encode(y=y("estimate")),
        base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
    ]
    if zero is not None:
        level = alt.Chart(_data([{"level": zero}]))
        layers.append(level.mark_rule(style="theory").encode(y=alt.Y("level:Q", title=y_title)))
    spec: Mapping[str, Any] = (
        alt.layer(*layers)
        .properties(title=title, description=f"{title}: {y_title} against {x_title}, by {series.replace('_', ' ')}")
        .to_dict()
    )
    return spec


def grid(
    frame: "pd.DataFrame",
    x: str,
    y: str,
    *,
    title: str,
    x_title: str,
    y_title: str | None,
    of: str,
    zero: float | None = None,
    marked: str | None = None,
    within: str | None = None,
    best: Literal["largest", "smallest"] = "largest",
    said: str | Sequence[str] = (),
) -> Mapping[str, Any] | None:
    """Estimates as a heat map, a square with its number for each pair of ``x`` and ``y``; None without rows.

    The more colour the larger (``best`` the smallest: the smaller) over the range of all; with ``zero`` the further
    from it, in one colour above and in another below, and pale where the 95 % interval holds it. Both axes are sorted
    as numbers where they are numbers, else they keep the order of the frame. ``of`` names what is drawn, ``marked`` a
    column of the frame that is true where a square gets an outline, ``within`` one whose values are coloured each by
    itself, ``said`` is a subtitle.
    """
    import altair as alt

    shown = frame[(frame.n > 0) & frame.estimate.notna()].copy()
    if shown.empty:
        return None
    parts = shown[within] if within else shown.quantity
    worst = shown.estimate.groupby(parts).transform("min" if best == "largest" else "max")
    away = shown.estimate - (worst if zero is None else zero)
    largest = away.abs().groupby(parts).transform("max")
    shown["strength"] = (away.abs() / largest.where(largest > 0, 1.0)).round(3)
    shown["side"] = ["above" if value > 0 or zero is None else "below" for value in away]
    holds = (shown.ci_low <= zero) & (zero <= shown.ci_high) | shown.ci_low.isna() if zero is not None else away.isna()
    shown.loc[holds, "strength"] = shown.strength[holds] * PALE
    shown["text"] = [_short(value, zero is not None) for value in shown.estimate]
    columns = [x, y, "estimate", "ci_low", "ci_high", "n", "strength", "side", "text"]
    if marked is not None:
        shown["marked"] = shown[marked].astype(bool)
        columns.append("marked")
    tip = [alt.Tooltip(f"{column}:{'N' if column in (x, y) else 'Q'}") for column in columns[:6]]
    base = alt.Chart(_data(records(shown, columns))).encode(
        x=alt.X(f"{x}:N", title=x_title, sort=_sorted(shown[x])).axis(labelAngle=0),
        y=alt.Y(f"{y}:N", title=y_title, sort=_sorted(shown[y], down=True)).axis(labelLimit=240),
        tooltip=tip,
    )
    squares = base.mark_rect().encode(
        color=alt.Color("side:N", legend=None).scale(
            domain=["above", "below"], range=["var(--series-1)", "var(--series-2)"]
        ),
        # Numbers must stay readable on the strongest colour, in light and dark.
        opacity=alt.Opacity("strength:Q", legend=None).scale(domain=[0, 1], range=[0.04, 0.6]),
    )
    layers = [squares]
    if marked is not None:
        chosen = base.transform_filter("datum.marked")
        layers.append(chosen.mark_rect(filled=False, stroke="var(--ink)", strokeWidth=2))
    size = 11 if shown[x].nunique() <= WIDE else 9
    layers.append(base.mark_text(fontSize=size, color="var(--ink)").encode(text="text:N"))
    heading = alt.Title(title, subtitle=said if isinstance(said, str) else list(said)) if said else title
    height = ROW * shown[y].nunique()
    spec: Mapping[str, Any] = (
        alt.layer(*layers)
        .properties(title=heading, height=height, description=f"{title}: {of} by {x_title} and {y_title or y}")
        .to_dict()
    )
    return spec


def rates(
    frame: "pd.DataFrame",
    series: str,
    *,
    title: str,
    best: Literal["largest", "smallest"] = "largest",
    of: str = "mean validation accuracy",
) -> Mapping[str, Any] | None:
    """The search for learning rate (and weight decay, where the frame has several) of each value of ``series``.

    The best pair of each is outlined; a pair with a seed that diverged cannot be it. None without rows.
    """
    shown = frame[(frame.n > 0) & (frame.learning_rate != "") & frame.estimate.notna()].copy()
    if shown.empty:
        return None
    decays = "weight_decay" in shown and shown.weight_decay.nunique() > 1
    if decays:
        shown["weight_decay"] = shown.weight_decay.astype(float)
        shown = shown.sort_values([series, "weight_decay"], key=lambda c: c if c.name != series else _places(c))
    shown["at"] = [f"{r[series]}, {r['weight_decay']:g}" if decays else r[series] for r in _dicts(shown)]
    sound = shown.estimate.where(shown.n_failed == 0)
    ranked = sound.groupby(shown[series]).transform("max" if best == "largest" else "min")
    shown["best"] = sound == ranked
    return grid(
        shown,
        *("learning_rate", "at"),
        title=title,
        x_title="learning rate",
        y_title="model, weight decay" if decays else None,
        of=of,
        marked="best",
        within=series,
        best=best,
        said=(of, "each model in shades of its own range; outlined: the best"),
    )


def _places(names: "pd.Series[Any]") -> "pd.Series[Any]":
    """Where each name comes first."""
    order = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return names.map(order)


def _dicts(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


# Height of a row of squares in pixels, squares in a row that leave room for numbers of usual size, and how much colour
# is left where an interval holds zero.
ROW, WIDE, PALE = 28, 7, 0.25


def _short(value: float, signed: bool) -> str:
    """A number for a square: three decimals without the leading zero."""
    text = f"{value:+.3f}" if signed else f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _sorted(values: "pd.Series[Any]", *, down: bool = False) -> list[str]:
    """Each value once: numbers by size (``down``: largest first), names as they come."""
    names = [str(value) for value in dict.fromkeys(values)]
    try:
        return sorted(names, key=float, reverse=down)
    except ValueError:
        return names


def _data(values: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Data(values=values)  # type: ignore[no-untyped-call]
