"""What tests of whole tables share: verdicts by claim, and recorded rows that are edited and judged again."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnrepro.app import report
from attnrepro.app.precheck import make_plan
from attnrepro.results.rows import Row, read_csv
from attnrepro.training.trainer import make_trainer


def cell_of(table: str, *overrides: str) -> Any:
    """One cell at scale smoke."""
    plan = make_plan([f"experiment={table}", "scale=smoke", "tracking=disabled", "hydra.mode=RUN", *overrides])
    return plan.cells[0].cell


def rows_of(table: str, build: Callable[[Any], Any], *overrides: str) -> list[Row]:
    """What one cell at scale smoke measures, without store and report; ``build`` is that of its measure.py."""
    cell = cell_of(table, *overrides)
    job = build(cell)
    if job.fit is not None:
        make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    rows: list[Row] = job.module.rows()
    return rows


def built(table: str, root: Path) -> report.TableReport:
    """The table's report from what was measured at scale smoke under ``root``."""
    return report.report_table(table, report.Store(root), root / "raw", ("smoke",))


def verdicts(made: report.TableReport) -> dict[str, set[str]]:
    """Words by claim."""
    found: dict[str, set[str]] = {}
    for line in made.lines:
        for claim in filter(None, str(line.get("claim", "")).split(";")):
            found.setdefault(claim, set()).add(str(line["verdict"]))
    return found


def change(table: str, root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    """The report of a copy of recorded rows, each edited."""
    shutil.copytree(root, target)
    for folder in (target / "runs" / table).iterdir():
        if not folder.is_dir():
            continue
        rows = read_csv(folder / "rows.csv")
        for row in rows:
            edit(row)
        with (folder / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        done = json.loads((folder / "done.json").read_text())
        done["sha256"]["rows.csv"] = hashlib.sha256((folder / "rows.csv").read_bytes()).hexdigest()
        (folder / "done.json").write_text(json.dumps(done))
    return built(table, target)
