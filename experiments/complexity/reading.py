"""complexity, read: its charts with axes that can be read, beside ``table.py`` so that no count becomes stale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnrepro.tables.complexity import table
from attnrepro.tables.complexity.table import AXES, answer, controls

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AXES", "answer", "charts", "controls"]


# Ticks of a logarithmic axis: one and three of each power of ten.
TICKS = [digit * 10**power for power in range(12) for digit in (1, 3)]


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """FLOPs against tokens, crossovers against embed_dim, and the share of the quadratic term."""
    return [_readable(chart) for chart in table.charts(frame)]


def _readable(chart: Mapping[str, Any]) -> Mapping[str, Any]:
    """A chart whose logarithmic axis of y, where it has one, has few ticks."""
    y = chart["layer"][0]["encoding"]["y"]
    if y.get("scale", {}).get("type") != "log":
        return chart
    drawn = [row["estimate"] for row in chart["data"]["values"]]
    axis = {"format": "~s", "values": [tick for tick in TICKS if min(drawn) <= tick <= max(drawn)]}

    def changed(layer: Mapping[str, Any]) -> dict[str, Any]:
        encoding = layer["encoding"]
        return {**layer, "encoding": {**encoding, "y": {**encoding["y"], "axis": axis}}}

    return {**chart, "layer": [changed(layer) for layer in chart["layer"]]}
