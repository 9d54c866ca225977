"""Vega-Lite pieces that charts of several tables are made of; altair is imported when a chart is."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd


def records(frame: "pd.DataFrame", columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows for Vega; a missing number is left out, because JSON has no nan."""
    found = frame[list(columns)].to_dict("records")
    return [{str(k): v for k, v in record.items() if v == v} for record in found]


# Names that are folded with line breaks: each line by itself, all of them about the tick.
FOLDED: Mapping[str, Any] = {
    "labelExpr": "split(datum.label, '\\n')",
    "labelOffset": {
        "condition": [{"test": f"length(split(datum.value, '\\n')) == {n}", "value": -7 * (n - 1)} for n in (2, 3, 4)],
        "value": 0,
    },
}


def panel(rows: "pd.DataFrame", x: Any, y: Any, title: str, order: Sequence[str]) -> Mapping[str, Any]:
    """Theory lines, measured points with intervals and printed crosses, whatever of them the rows have.

    A series for each value of the column ``what``, in ``order``. ``x`` and ``y`` are axes; the field of y is put in.
    """
    import altair as alt

    known = ("estimate", "ci_low", "ci_high", "theory", "published")
    there = [name for name in known if name in rows and rows[name].notna().any()]
    columns = [x.shorthand.split(":")[0], "what", *there]
    base = alt.Chart(_data(records(rows, columns))).encode(x=x, color=alt.Color("what:N", title=None, sort=list(order)))
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'what' else 'Q'}") for column in columns]

    def along(field: str) -> Any:
        placed = y.copy()
        placed.shorthand = f"{field}:Q"
        return placed

    layers = []
    if "theory" in there:
        layers.append(
            base.transform_filter("isValid(datum.theory)").mark_line(style="theory").encode(y=along("theory"))
        )
    if "ci_low" in there:
        layers.append(base.mark_rule(style="interval").encode(y=along("ci_low"), y2="ci_high:Q"))
    layers.append(base.mark_point(style="measured").encode(y=along("estimate"), tooltip=tip))
    if "published" in there:
        layers.append(base.mark_point(style="published").encode(y=along("published"), tooltip=tip))
    spec: Mapping[str, Any] = alt.layer(*layers).properties(title=title, description=title).to_dict()
    return spec


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
    crossings: "pd.DataFrame | None" = None,
) -> Mapping[str, Any] | None:
    """Estimates with their intervals against ``x``, a line for each value of ``series``; None without rows.

    ``x`` and ``series`` are columns of the frame, whose ``estimate``, ``ci_low`` and ``ci_high`` are drawn; ``log``
    makes the axis of x logarithmic, ``zero`` draws a level to compare with. Of ``crossings`` see ``crossed``.
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
    if log:
        across = across.scale(type="log", nice=False, padding=8).axis(format="~s", tickCount=5)
    else:
        whole = (shown[x] % 1 == 0).all()
        across = across.scale(zero=False).axis(tickMinStep=1 if whole else alt.Undefined)
    color = alt.Color(f"{series}:N", title=None, sort=list(shown[series].unique()))
    base = alt.Chart(_data(records(shown.sort_values(x), columns))).encode(x=across, color=color)

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
    if crossings is not None:
        own = series if series in crossings else ""
        layers += crossed(crossings, shown[x].min(), shown[x].max(), x_title=x_title, color=color, series=own)
    spec: Mapping[str, Any] = (
        alt.layer(*layers)
        .properties(title=title, description=f"{title}: {y_title} against {x_title}, by {series.replace('_', ' ')}")
        .to_dict()
    )
    return spec


# Share of the axis from which on an interval says no more than that lines cross somewhere.
SOMEWHERE = 0.25


def crossed(
    rows: "pd.DataFrame", low: float, high: float, *, x_title: str, color: Any = None, series: str = ""
) -> list[Any]:
    """Layers that mark where lines cross, as measured: a rule in the band of its interval, with words.

    Drawn are crossings between ``low`` and ``high``, the ends of a logarithmic axis of x, unless they may be anywhere:
    in grey with the column ``what``, or each in the ``color`` of its ``series``, which is a column then.
    """
    import altair as alt

    far = (rows.ci_high / rows.ci_low).map(math.log) > SOMEWHERE * math.log(high / low)
    known = rows[(rows.n > 0) & rows.estimate.between(low, high) & ~far].sort_values("estimate")
    layers = []
    for place, r in enumerate(_dicts(known)):
        at, (start, end) = f"{r['estimate']:,.0f}", (r["ci_low"], r["ci_high"])
        point = {
            **{"from": max(low, start), "at": r["estimate"], "to": min(high, end)},
            "words": at if series else f"{r['what']}: {at}",
            "crossing": f"{r['what']}: {at} [{start:,.0f}, {end:,.0f}]",
            **({series: r[series]} if series else {}),
        }
        base = alt.Chart(_data([point])).encode(
            color=color if series else alt.value("var(--quiet)"), tooltip=alt.Tooltip("crossing:N")
        )
        x = alt.X("at:Q", title=x_title)
        # Learning curves rise: there is room above on the left and below on the right.
        early, down = r["estimate"] ** 2 < low * high, 7 + 14 * place
        words = base.mark_text(align="left" if early else "right", dx=4 if early else -4, fontSize=11)
        y = alt.value(down) if early else alt.value(alt.ExprRef(f"height - {down}"))
        layers += [
            base.mark_rect(opacity=0.12).encode(x=alt.X("from:Q", title=x_title), x2="to:Q"),
            base.mark_rule().encode(x=x),
            words.encode(x=x, y=y, text="words:N", color=alt.value("var(--ink)")),
        ]
    return layers


# Points of a fitted line.
FIT_POINTS = 30


def fitted(
    frame: "pd.DataFrame",
    x: str,
    series: str,
    laws: Mapping[str, Callable[[float], float]],
    *,
    title: str,
    said: str,
    x_title: str,
    y_title: str,
    numbers: str = "~g",
    since: float = 0.0,
) -> Mapping[str, Any] | None:
    """Estimates as points and what was fitted to them as lines, both axes logarithmic; None without rows.

    ``laws`` has the fit of each value of ``series``, drawn from ``since``; the points of a value without one are
    joined. ``numbers`` is the format of the axis of y, ``said`` a subtitle.
    """
    import altair as alt

    shown = frame[frame.n > 0].copy()
    if shown.empty:
        return None
    shown[x] = shown[x].astype(float)
    shown = shown.sort_values(x, kind="stable")
    columns = [x, series, "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == series else 'Q'}") for column in columns]
    lines: list[dict[str, Any]] = []
    for name, rows in shown.groupby(series):
        known = zip(rows[x], rows.estimate, strict=True)
        if law := laws.get(str(name)):
            low, high = (math.log(end) for end in (max(since, rows[x].min()), rows[x].max()))
            at = [math.exp(low + (high - low) * i / (FIT_POINTS - 1)) for i in range(FIT_POINTS)]
            known = zip(at, map(law, at), strict=True)
        lines += [{series: name, x: round(float(n), 3), "estimate": float(f"{y:.6g}")} for n, y in known]
    encoding = {
        "x": alt.X(f"{x}:Q", title=x_title).scale(type="log", nice=False, padding=8).axis(format="~s", tickCount=5),
        "y": alt.Y("estimate:Q", title=y_title).scale(type="log").axis(format=numbers, tickCount=5),
        "color": alt.Color(f"{series}:N", title=None, sort=list(frame[series].unique())),
    }
    points = alt.Chart(_data(records(shown, columns))).mark_point(style="measured").encode(**encoding, tooltip=tip)
    spec: Mapping[str, Any] = (
        alt.layer(points, alt.Chart(_data(lines)).mark_line().encode(**encoding))
        .properties(
            title=alt.Title(title, subtitle=said),
            description=f"{title}: {y_title}, by {series.replace('_', ' ')}, both axes logarithmic",
        )
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
    # In narrow squares there is no room for a point.
    narrow = zero is None and shown[x].nunique() > WIDE and shown.estimate.between(0, 1).all()
    shown["text"] = [f"{1000 * v:.0f}" if narrow else _short(v, zero is not None) for v in shown.estimate]
    columns = [x, y, "estimate", "ci_low", "ci_high", "n", "strength", "side", "text"]
    if marked is not None:
        shown["marked"] = shown[marked].astype(bool)
        columns.append("marked")
    tip = [alt.Tooltip(f"{column}:{'N' if column in (x, y) else 'Q'}") for column in columns[:6]]
    base = alt.Chart(_data(records(shown, columns))).encode(
        x=alt.X(f"{x}:N", title=x_title, sort=_sorted(shown[x])).axis(labelAngle=0),
        y=alt.Y(f"{y}:N", title=y_title, sort=_sorted(shown[y], down=True)).axis(
            labelLimit=240, labelOverlap=False, **FOLDED
        ),
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
    size = 11 if shown[x].nunique() <= WIDE else 10
    layers.append(base.mark_text(fontSize=size, color="var(--ink)").encode(text="text:N"))
    told = [*([said] if isinstance(said, str) else said), *(["in thousandths"] if narrow else [])]
    heading = alt.Title(title, subtitle=told) if told else title
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
    names = [f"{r[series]}, {r['weight_decay']:g}" if decays else str(r[series]) for r in _dicts(shown)]
    # Two short lines leave more room for squares than a long one.
    shown["at"] = [textwrap.fill(name.replace("_", " "), LABEL) for name in names]
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


# Height of a row of squares in pixels, squares in a row that leave room for numbers of usual size, characters of a line
# of a label, and how much colour is left where an interval holds zero.
ROW, WIDE, LABEL, PALE = 28, 7, 18, 0.25


def _short(value: float, signed: bool) -> str:
    """A number for a square: three decimals without the leading zero, none from a hundred on."""
    if abs(value) >= 100:
        return f"{value:+.0f}" if signed else f"{value:.0f}"
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
