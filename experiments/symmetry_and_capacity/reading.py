"""symmetry_and_capacity, read: names that can be read, beside ``table.py`` so that no row becomes stale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnrepro.tables.symmetry_and_capacity import table
from attnrepro.tables.symmetry_and_capacity.table import AXES, answer, controls, derive, roundoff

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["AXES", "answer", "charts", "controls", "derive", "roundoff"]

# Height of a property in pixels, and how networks are named under the columns of narrow squares.
ROW = 17
NETWORKS = {"labelAngle": -55, "labelFontSize": 11, "labelOverlap": False}


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """The tested table of assumptions, what each symmetry leaves, and both tasks."""
    return [_tested(chart) if "shape" in chart.get("encoding", {}) else chart for chart in table.charts(frame)]


def _tested(chart: Mapping[str, Any]) -> dict[str, Any]:
    encoding = chart["encoding"]
    return {**chart, "height": {"step": ROW}, "encoding": {**encoding, "x": {**encoding["x"], "axis": NETWORKS}}}
