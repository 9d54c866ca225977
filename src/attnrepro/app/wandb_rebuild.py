"""``make wandb-rebuild``: the whole project in Weights & Biases from recorded rows alone, the same each time.

A run for each cell, with the config, summary and rows that it had when it was measured, and a run for each table, whose
history is the table's chart: measured, interval, theory and print along an axis. No cell is measured, no torch loaded.
"""

import csv
import io
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnrepro import paths
from attnrepro.app import tracking, view
from attnrepro.app.gather import REPORTED, CellRows, own_cells, reference_cells
from attnrepro.app.headline import headline
from attnrepro.app.report import TableReport, about, report_table
from attnrepro.app.run import label, say
from attnrepro.app.wandb_sync import BAD, FAILED, OK, server, tracking_config
from attnrepro.config import BadInput, TrackingConfig, digest
from attnrepro.results.store import Store


class NotTaken(RuntimeError):
    """The server did not take a run; the text says why."""


def cells(store: Store, raw: Path, table: str) -> list[CellRows]:
    """Your finished cells, and the reference cells of the same table that you have no cell for, as in the reports."""
    own = own_cells(store, table, REPORTED)
    seen = {(cell.environment, cell.identity) for cell in own}
    return own + [c for c in reference_cells(raw, table, REPORTED) if (c.environment, c.identity) not in seen]


def run_id(cell: CellRows) -> str:
    """The id of the run that the cell had when it was measured; without one, made of its key, machine and code."""
    recorded = (cell.run.get("wandb") or {}).get("id")
    return str(recorded) if recorded else cell.key + digest([cell.environment, cell.code])[:6]


def table_run_id(table: str) -> str:
    """The id of the run that holds a table's chart."""
    return f"table-{table}"[:64]


def send_cell(config: TrackingConfig, scratch: Path, cell: CellRows) -> None:
    """Send one cell.

    Raises:
        NotTaken: the server did not take it.
    """
    table, params = str(cell.science["table"]), cell.science["params"]
    document = str(about(table)["document"])
    job_type = (cell.run.get("wandb") or {}).get("job_type") or "measure"
    opened = tracking.track(
        config,
        root=scratch,
        run_id=run_id(cell),
        table=table,
        name=view.run_name(label(cell.run["command"][1:]), cell.key),
        job_type=job_type,
        tags=view.tags(document, cell.scale, params),
        config=view.run_config(cell.science, key=cell.key, code=cell.code, document=document),
    )
    with opened as tracker:
        tracker.summary(view.summary(cell.rows, params))
        if cell.rows:
            tracker.rows(list(cell.rows[0]), [list(row.values()) for row in cell.rows])
    _check(config, tracker)


def send_table(config: TrackingConfig, scratch: Path, report: TableReport) -> None:
    """Send a table's chart, lines and answer.

    Raises:
        NotTaken: the server did not take it.
    """
    document = str(report.about["document"])
    shown = report.shown
    opened = tracking.track(
        config,
        root=scratch,
        run_id=table_run_id(report.name),
        table=report.name,
        name=report.name,
        job_type="table",
        tags=[f"document {document}"],
        config={
            "kind": "table",
            "table": report.name,
            "document": document,
            "title": str(report.about["title"]),
            "question": str(report.about["question"]),
            "environment": shown.environment if shown else "",
            "scale": shown.scale if shown else "",
        },
    )
    with opened as tracker:
        drawn = headline(report)
        if drawn:
            tracker.x_axis(f"{report.name}/*", drawn.x_metric)
            for point in drawn.points:
                tracker.log(point)
        verdicts = {f"verdicts/{word}": count for word, count in report.verdicts().items()}
        tracker.summary({**verdicts, "answer": report.answer})
        columns, *lines = csv.reader(io.StringIO(report.csv, newline=""))
        tracker.rows(columns, lines)
    _check(config, tracker)


def _check(config: TrackingConfig, tracker: tracking.Tracker) -> None:
    mode, reason = tracking.resolve_mode(config)
    if tracker.mode != "online" or mode != "online":
        raise NotTaken(reason)


def sources() -> tuple[Store, Path]:
    """Your store and the folder of the committed reference."""
    store = Store(paths.results_dir())
    repository = paths.repository()
    return store, (repository / "results" if repository else store.root) / "raw"


def rebuild(config: TrackingConfig, tables: Sequence[str]) -> Iterator[str]:
    """Send all cells and the chart of each table; yields what was sent.

    Raises:
        NotTaken: the server did not take a run.
    """
    store, raw = sources()
    with tempfile.TemporaryDirectory(prefix="attnrepro-") as folder:
        for table in tables:
            found = cells(store, raw, table)
            for number, cell in enumerate(found, 1):
                send_cell(config, Path(folder), cell)
                yield f"{table} {cell.key} [{number}/{len(found)}]"
            send_table(config, Path(folder), report_table(table, store, raw))
            yield table


def main(argv: Sequence[str]) -> int:
    """Rebuild all tables or those named; 0 done, 1 not taken, 2 bad arguments."""
    known = paths.table_names()
    try:
        config = tracking_config([a for a in argv if "=" in a])
        tables = [a for a in argv if "=" not in a] or known
        if unknown := sorted(set(tables) - set(known)):
            raise BadInput(f"unknown table {unknown[0]}; there are: {', '.join(known)}")
        if reason := server(config):
            raise NotTaken(reason)
        sent = 0
        for line in rebuild(config, tables):
            sent += 1
            say(f"  {line}")
    except BadInput as error:
        say(f"wandb-rebuild: {error}")
        return BAD
    except NotTaken as error:
        say(f"wandb-rebuild: stopped, and goes on from the start next time. {error}")
        return FAILED
    say(f"wandb-rebuild: {sent} runs are in {tracking.base_url()}, project {config.project}")
    return OK
