"""How long a cell will take: as it took before, here or in the committed reference, else what its table says."""

import json
from functools import cache

from attnrepro import paths
from attnrepro.app.precheck import Planned
from attnrepro.config import table_module


@cache
def _reference(table: str) -> dict[str, float]:
    """Wall seconds of the committed reference cells, by key."""
    found: dict[str, float] = {}
    root = paths.repository()
    for path in sorted((root / "results" / "raw").glob(f"*/{table}.json")) if root else []:
        for key, run in json.loads(path.read_text(encoding="utf-8")).items():
            found[key] = float(run["wall_seconds"])
    return found


def predict(planned: Planned) -> float | None:
    """Seconds on one core, or None when nothing is known."""
    cell = planned.cell
    if planned.record:
        return float(planned.record.run["wall_seconds"])
    if cell.key in _reference(cell.table):
        return _reference(cell.table)[cell.key]
    guess = getattr(table_module(cell.table), "seconds", None)
    return float(guess(cell)) if guess else None
