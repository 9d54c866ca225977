"""Vega-Lite pieces that charts of several tables are made of; altair is imported when a chart is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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


def _data(values: list[dict[str, Any]]) -> Any:
    import altair as alt

    return alt.Data(values=values)  # type: ignore[no-untyped-call]
