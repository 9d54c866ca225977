"""What tests of whole tables share: verdicts by claim, and recorded rows that are edited and judged again."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnrepro.app import report
from attnrepro.app.documents import first_sentence
from attnrepro.app.precheck import make_plan
from attnrepro.results.rows import Row, read_csv
from attnrepro.training.trainer import make_trainer

if TYPE_CHECKING:
    import pandas as pd


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


def planted(axes: Sequence[str], *rows: dict[str, Any]) -> pd.DataFrame:
    """A frame as an answer is made from: rows with what each says, everything else blank.

    ``ci`` is an interval, around its middle where no estimate is said; ``values`` are one a seed, with their mean and
    t interval.
    """
    import pandas as pd

    from attnrepro.results.derived import over_seeds

    blank = {"statistic": "mean", "n": 5, "n_failed": 0, "unit": "", "seeds": (), "stale": False}
    numbers = dict.fromkeys(("estimate", "sd", "ci_low", "ci_high", "theory"), math.nan)
    lines = []
    for row in rows:
        line: dict[str, Any] = {**dict.fromkeys(axes, ""), "quantity": "", **blank, **numbers, "by_seed": {}, **row}
        if "ci" in line:
            line["ci_low"], line["ci_high"] = line.pop("ci")
            if math.isnan(line["estimate"]):
                line["estimate"] = (line["ci_low"] + line["ci_high"]) / 2
        if "values" in line:
            values = line.pop("values")
            line |= {**over_seeds(values), "by_seed": {str(seed): value for seed, value in enumerate(values, 1)}}
        lines.append(line)
    return pd.DataFrame(lines)


def first(answer: str) -> str:
    """The sentence that overview, README and cards show."""
    return first_sentence(answer)[0]
