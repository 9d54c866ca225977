"""How far things are: cells of each table that are done, running, failed or open, their age, and the verdicts."""

import argparse
import contextlib
import csv
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from attnrepro import paths
from attnrepro.app.precheck import Plan, make_plan
from attnrepro.app.predict import predict
from attnrepro.config import BadInput
from attnrepro.results.store import DONE, FAILED, Record, Store
from attnrepro.results.verdicts import Verdict


@dataclass
class TableStatus:
    """Cells of a table's own grid at one scale, or those that runners were asked for, and what its rows say."""

    table: str
    scale: str = ""
    done: int = 0
    stale: int = 0
    running: int = 0
    failed: int = 0
    not_run: int = 0
    open: int = 0
    seconds_left: float = 0.0
    newest: float = 0.0
    reference: bool = False
    asked: bool = False
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
    return [
        replace(cells_of(table, plan), verdicts=_verdicts(root, table), reference=_has_reference(table, plan))
        for table, plan in planned.items()
    ]


def cells_of(table: str, plan: Plan | str) -> TableStatus:
    """Where the cells of a table's own grid are now."""
    found = TableStatus(table)
    if isinstance(plan, str):
        found.problem = plan
        return found
    found.scale = plan.config.scale
    for planned in plan.cells:
        # The plan may be older than the cell.
        record = _find(plan.store, table, planned.cell.key)
        now = replace(planned, record=record)
        found.stale += now.stale
        if record:
            found.done += 1
            found.newest = max(found.newest, _changed(record.folder / DONE))
        else:
            _count(found, plan.store, planned.cell.key)
            found.seconds_left += predict(now) or 0.0
    return found


def cells_asked(table: str, cells: Mapping[str, tuple[float, str]], store: Store) -> TableStatus:
    """Where the cells are that runners were asked for: predicted seconds and code version by key."""
    found = TableStatus(table, asked=True)
    for key, (seconds, code) in cells.items():
        record = _find(store, table, key)
        if record and code in ("", record.code):
            found.done += 1
        else:
            _count(found, store, key)
            found.seconds_left += seconds
    return found


def _find(store: Store, table: str, key: str) -> Record | None:
    """The finished cell; one that has not changed since it was last asked for is not read again."""
    try:
        now = (store.folder(table, key) / DONE).stat()
    except OSError:
        return store.find(table, key)
    return _found(store, table, key, now.st_mtime_ns, now.st_ino)


@functools.lru_cache(maxsize=10_000)
def _found(store: Store, table: str, key: str, changed: int, inode: int) -> Record | None:
    return store.find(table, key)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # just being replaced
        return time.time()


def _count(found: TableStatus, store: Store, key: str) -> None:
    """What became of a cell that has no result."""
    table = found.table
    if store.is_locked(table, key):
        found.running += 1
    elif failure := store.failure(table, key):
        found.newest = max(found.newest, _changed(store.folder(table, key) / FAILED))
        if "not_run" in failure:
            found.not_run += 1
        else:
            found.failed += 1
    else:
        found.open += 1


def _has_reference(table: str, plan: Plan | str) -> bool:
    """Whether the committed reference has cells of the table at the plan's scale."""
    repository = paths.repository()
    if isinstance(plan, str) or repository is None:
        return False
    files = sorted((repository / "results" / "raw").glob(f"*/{table}.json"))
    runs = [run for path in files for run in json.loads(path.read_text(encoding="utf-8")).values()]
    return any(run["config"]["scale"] == plan.config.scale for run in runs)


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
            "ref" if _only_reference(one) else age(now - one.newest) if one.newest else "",
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
            + "\nAge ref: nothing here, only the reference, which records no date." * any(map(_only_reference, found))
        )
    return capture.get()


def _only_reference(one: TableStatus) -> bool:
    return one.reference and not one.newest


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
