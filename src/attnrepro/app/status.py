"""How far things are: cells of each table that are done, running, failed or open, their age, and the verdicts."""

import argparse
import contextlib
import csv
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from attnrepro import paths
from attnrepro.app.precheck import Plan, make_plan
from attnrepro.app.predict import predict
from attnrepro.app.report import about
from attnrepro.config import BadInput
from attnrepro.results.store import DONE, FAILED
from attnrepro.results.verdicts import Verdict


@dataclass
class TableStatus:
    """Cells of a table's own grid at one scale, and what its committed or own rows say."""

    table: str
    title: str
    scale: str = ""
    done: int = 0
    stale: int = 0
    running: int = 0
    failed: int = 0
    not_run: int = 0
    open: int = 0
    seconds_left: float = 0.0
    newest: float = 0.0
    problem: str = ""
    verdicts: Counter[str] = field(default_factory=Counter)

    @property
    def cells(self) -> int:
        """Cells of the grid."""
        return self.done + self.running + self.failed + self.not_run + self.open


def plans(tables: Sequence[str], scale: str, root: Path) -> dict[str, Plan | str]:
    """What there is to do for each table, or why that cannot be said; composing it takes most of the time."""
    found: dict[str, Plan | str] = {}
    for table in tables:
        words = [f"experiment={table}", f"scale={scale}", f"results={root}"]
        try:
            found[table] = plan = make_plan(words, check_inputs=False)
            if plan.config.needs:
                with contextlib.suppress(BadInput):  # what it reads is not there yet
                    found[table] = make_plan(words)
        except BadInput as error:
            found[table] = str(error)
    return found


def status(planned: Mapping[str, Plan | str], root: Path) -> list[TableStatus]:
    """What the disk says of each table now; nothing is run and nothing written."""
    return [_table(table, plan, root) for table, plan in planned.items()]


def _table(table: str, plan: Plan | str, root: Path) -> TableStatus:
    found = TableStatus(table, str(about(table)["title"]), verdicts=_verdicts(root, table))
    if isinstance(plan, str):
        found.problem = plan
        return found
    found.scale = plan.config.scale
    for planned in plan.cells:
        # The plan may be older than the cell.
        record = plan.store.find(table, planned.cell.key)
        now = replace(planned, record=record)
        found.stale += now.stale
        if record:
            found.done += 1
            found.newest = max(found.newest, (record.folder / DONE).stat().st_mtime)
        else:
            _count(found, plan, planned.cell.key)
            found.seconds_left += predict(now) or 0.0
    return found


def _count(found: TableStatus, plan: Plan, key: str) -> None:
    """What became of a cell that has no result."""
    store, table = plan.store, plan.table
    if store.is_locked(table, key):
        found.running += 1
    elif failure := store.failure(table, key):
        found.newest = max(found.newest, (store.folder(table, key) / FAILED).stat().st_mtime)
        if "not_run" in failure:
            found.not_run += 1
        else:
            found.failed += 1
    else:
        found.open += 1


def _verdicts(root: Path, table: str) -> Counter[str]:
    """Verdicts in the table as it was last written."""
    path = root / "tables" / f"{table}.csv"
    if not path.is_file():
        return Counter()
    with path.open(encoding="utf-8", newline="") as file:
        return Counter(row["verdict"] for row in csv.DictReader(file) if row["verdict"])


def age(seconds: float) -> str:
    """``3 min``, ``5 h``, ``12 d``: the largest unit of which there is at least one."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


# Words of a row of the printed table, in its order; a verdict that is missing is not mentioned.
SHORT = {
    Verdict.FAILED: "[bold red]failed[/]",
    Verdict.SOURCE_ERROR: "[red]wrong[/]",
    Verdict.CONTRADICTED: "[red]contradicted[/]",
    Verdict.DIFFERS: "[yellow]differs[/]",
    Verdict.TREND_FAILS: "[yellow]trend fails[/]",
    Verdict.INCONCLUSIVE: "[cyan]open[/]",
    Verdict.NOT_RUN: "[cyan]not run[/]",
}


def _words(verdicts: Counter[str]) -> str:
    parts = [f"{verdicts[verdict]} {word}" for verdict, word in SHORT.items() if verdicts[verdict]]
    holds = sum(verdicts[v] for v in (Verdict.REPRODUCED, Verdict.WITHIN_NOISE, Verdict.TREND_HOLDS, Verdict.CONFIRMED))
    return ", ".join([f"[green]{holds} hold[/]"] * bool(holds) + parts)


def render(found: Sequence[TableStatus], now: float) -> str:
    """The tables as text for a terminal, in colour where it shows colours."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, row_styles=["", "dim"])
    for name in ("table", "scale", "cells", "done", "running", "failed", "stale", "left", "age"):
        table.add_column(name, justify="left" if name in ("table", "scale") else "right", no_wrap=True)
    table.add_column("verdicts", overflow="fold")
    for one in found:
        bad = one.failed + one.not_run
        table.add_row(
            one.table,
            one.scale,
            str(one.cells),
            f"[green]{one.done}[/]" if one.done == one.cells and one.cells else str(one.done),
            str(one.running or ""),
            f"[red]{bad}[/]" if bad else "",
            f"[yellow]{one.stale}[/]" if one.stale else "",
            age(one.seconds_left) if one.seconds_left else "",
            age(now - one.newest) if one.newest else "",
            one.problem or _words(one.verdicts),
        )
    tty = sys.stdout.isatty()
    console = Console(width=None if tty else 160, highlight=False)
    with console.capture() as capture:
        console.print(table)
        cells, done = sum(one.cells for one in found), sum(one.done for one in found)
        left = sum(one.seconds_left for one in found)
        console.print(
            f"\n{len(found)} tables, {done} of {cells} cells done here"
            + (f", about {age(left)} of one core left" if left else "")
            + ". Verdicts: of the tables as last written, the committed reference included."
        )
    return capture.get()


def main(argv: Sequence[str]) -> int:
    """``make status [TABLE="a b"] [SCALE=cpu]``: 2 for an unknown table or scale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--scale", default="auto")
    options = parser.parse_args(argv)
    known = paths.table_names()
    if unknown := [table for table in options.tables if table not in known]:
        print(
            f"status: TABLE={', '.join(unknown)}: there is no such table; choices: {', '.join(known)}", file=sys.stderr
        )
        return 2
    if options.scale not in (scales := ("auto", "smoke", "cpu", "full")):
        print(f"status: SCALE={options.scale} must be one of {', '.join(scales)}", file=sys.stderr)
        return 2
    root = paths.results_dir()
    print(render(status(plans(options.tables or known, options.scale, root), root), time.time()), end="")
    return 0
