"""``make accept``: finished cells of this machine become the committed reference."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnrepro import paths
from attnrepro.app.gather import REPORTED, CellRows, own_cells, reference_cells
from attnrepro.app.precheck import own_grid
from attnrepro.app.report import report_table
from attnrepro.codeversion import code_version
from attnrepro.config import BadInput, digest, table_module
from attnrepro.results.rows import HEAD, TAIL
from attnrepro.results.schema import accepted_digest
from attnrepro.results.store import Store, to_json, write_text


def accept(table: str, store: Store, raw: Path) -> list[str]:
    """Copy the finished grid cells of a table into ``<raw>/<environment>/``; returns what changed, a line each.

    Cells off the table's own grid and of scale smoke stay yours. Reference cells that no longer belong to the
    grid of their scale are dropped.
    """
    code = code_version(table)
    order = {(scale, digest(science)): i for scale in REPORTED for i, science in enumerate(own_grid(table, scale))}
    found = [cell for cell in own_cells(store, table, REPORTED) if (cell.scale, cell.identity) in order]
    own = [cell for cell in found if cell.code == code]
    said = [
        f"{table} {c.key}: not accepted, its code changed since; run it with stale=rerun" for c in found if c not in own
    ]
    for environment in sorted({cell.environment for cell in own}):
        old = {c.key: c for c in reference_cells(raw, table, REPORTED) if c.environment == environment}
        new = {c.key: c for c in old.values() if (c.scale, c.identity) in order}
        mine = {c.key: c for c in own if c.environment == environment}
        asked = {c.identity for c in mine.values()}
        new = {key: c for key, c in new.items() if c.identity not in asked} | mine
        for key in sorted(old.keys() | new.keys()):
            if key not in new:
                why = "measured anew under another key" if old[key].identity in asked else "no longer on the grid"
                said.append(f"{environment} {table} {key}: dropped, {why}")
            elif key not in old:
                said.append(f"{environment} {table} {key}: new")
            elif list(old[key].rows) != list(new[key].rows):
                said.append(f"{environment} {table} {key}: rows changed")
            elif old[key].code != new[key].code:
                said.append(f"{environment} {table} {key}: same rows by newer code")
        cells = sorted(new.values(), key=lambda c: (REPORTED.index(c.scale), order[c.scale, c.identity]))
        _write(raw, environment, table, cells)
    return said


def _write(raw: Path, environment: str, table: str, cells: Sequence[CellRows]) -> None:
    columns = [*HEAD, *table_module(table).AXES, *TAIL]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        writer.writerows(cell.rows)
    write_text(raw / environment / f"{table}.csv", out.getvalue())
    write_text(raw / environment / f"{table}.json", to_json({cell.key: _record(cell) for cell in cells}))


def _record(cell: CellRows) -> dict[str, Any]:
    """What is known of a cell, with its checksum. One that stays keeps both: a new sum would hide a change by hand."""
    if not cell.own:
        return dict(cell.run)
    record: dict[str, Any] = {**cell.run, "code": cell.code, "config": dict(cell.science)}
    return record | {"accepted": accepted_digest(cell.rows, record)}


def main(argv: Sequence[str]) -> int:
    """Accept the named tables, or all."""
    store = Store(paths.results_dir())
    repository = paths.repository()
    raw = (repository / "results" if repository else store.root) / "raw"
    known = paths.table_names()
    try:
        for name in argv:
            if name not in known:
                raise BadInput(f"TABLE={name}: there is no such table; choices: {', '.join(known)}")
    except BadInput as error:
        print(f"accept: {error}", file=sys.stderr)
        return 2
    said, refused = [], []
    for table in argv or known:
        problems = _problems(table, store, raw)
        refused += problems
        said += [] if problems else accept(table, store, raw)
    for problem in refused:
        print(f"not accepted: {problem}", file=sys.stderr)
    print(
        "\n".join(said) if said else "nothing to accept: no finished cell differs from the reference",
        file=sys.stderr,
    )
    return 1 if refused else 0


def _problems(table: str, store: Store, raw: Path) -> list[str]:
    """Why a table must not become the reference: it cannot be reported, or theory and measurement disagree."""
    try:
        return report_table(table, store, raw).problems
    except Exception as error:
        return [f"{table}: {type(error).__name__}: {error}"]
