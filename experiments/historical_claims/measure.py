"""historical_claims, from the bibliography: agreement of what is printed, and months between dated first versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attnrepro.config import Cell
from attnrepro.results.rows import Row
from attnrepro.tables.historical_claims import table
from attnrepro.theory.references import dated_month


def derive(cell: Cell, inputs: Mapping[str, Sequence[Path]]) -> list[Row]:
    """One row a printed detail, 1 where the reference bears it out; then the order of works by dated listings."""
    known = table.bibliography()
    found: list[tuple[str, float, dict[str, object], str]] = [
        ("agrees", float(known.agrees(one)), {"place": one.place, "work": one.work, "field": one.field}, "")
        for one in known.printed
    ]
    for work, against in known.orders:
        months = dated_month(known.works[work]) - dated_month(known.works[against])
        found.append(("months_after", months, {"work": work, "against": against}, "months"))
    return [
        Row(quantity, value, axes, statistic="exact", seed=cell.seeds[0], n=1, unit=unit)
        for quantity, value, axes, unit in found
    ]
