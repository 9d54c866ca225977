"""Run one cell: lock, measure under the Trainer, record. The only way a row comes into being."""

import contextlib
import csv
import ctypes
import functools
import importlib
import io
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from attnrepro import environment, paths
from attnrepro.app import pictures, tracking, view
from attnrepro.app.precheck import inputs_digest, rows_read
from attnrepro.codeversion import code_version
from attnrepro.config import Cell, Config, digest, plain, table_module
from attnrepro.fetch.download import DataUnavailable
from attnrepro.results.rows import Row, to_csv
from attnrepro.results.store import Store, to_json

Say = Callable[[str], None]

# Bytes of freed memory that a process keeps, and of a block that is not given back by itself.
KEPT = 1 << 28

# Points of a training curve in Weights & Biases up to 5000 steps; longer trainings have one every 50.
POINTS = 100


class CellFailed(RuntimeError):
    """A cell raised; the store holds its log."""


class CellNotRun(RuntimeError):
    """A cell lacks what it is to be measured on; the store holds the reason, and the next run tries it again."""


def say(line: str) -> None:
    """A line for the user, on standard error, at once."""
    print(line, file=sys.stderr, flush=True)


def label(overrides: Sequence[str]) -> str:
    """What sets a cell apart from the others of its command, for people."""
    common = ("experiment=", "scale=", "results=", "tracking", "stale=", "trainer=")
    return " ".join(_short(o) for o in overrides if not o.startswith(common)) or "default"


def _short(override: str) -> str:
    """Hundreds of seeds as their ends, and no list longer than people read."""
    key, _, value = override.partition("=")
    items = value.strip("[]").split(",")
    if len(items) > 3 and all(item.isdigit() for item in items):
        first = int(items[0])
        if items == [str(first + i) for i in range(len(items))]:
            return f"{key}=[{first}..{items[-1]}]"
    return override if len(override) <= 60 else f"{override[:57]}..."


def run_cell(
    config: Config,
    cell: Cell,
    store: Store,
    *,
    overrides: list[str],
    report: Callable[[float], None] | None = None,
    tell: Say = say,
) -> str:
    """Measure a cell and record it; returns ``ran`` or ``reused``.

    Raises ``CellFailed`` after recording the traceback, ``CellNotRun`` after recording what the cell lacks.
    Interruption passes through; nothing half-written stays.
    """
    code = code_version(cell.table)
    waits = f"{cell.table} {cell.key}: waiting for another run"
    try:
        with store.lock(cell.table, cell.key, on_wait=lambda: tell(waits)):
            # Another process may have finished it while this one waited.
            record = store.find(cell.table, cell.key)
            if record and (record.code == code or config.stale == "keep"):
                return "reused"
            with tempfile.TemporaryDirectory(prefix="attnrepro-") as scratch:
                log = Path(scratch) / "job.log"
                with _logged(log):
                    try:
                        files = _measure(config, cell, store, code, overrides, report, tell)
                        store.write(cell.table, cell.key, files, code=code, log=log)
                    except DataUnavailable as error:
                        record_not_run(store, cell, str(error))
                        raise CellNotRun(str(error)) from error
                    except Exception as error:
                        logging.getLogger("attnrepro").exception("%s %s failed", cell.table, cell.key)
                        _flush()
                        where = _record_failure(store, cell, error, overrides, log)
                        raise CellFailed(f"{cell.table} {cell.key}: {_first_line(error)} (log: {where})") from error
    except OSError as error:  # the folder of results cannot be written: no lock, and no log either
        raise CellFailed(f"{cell.table} {cell.key}: {_first_line(error)}") from error
    return "ran"


def record_not_run(store: Store, cell: Cell, reason: str) -> None:
    """Note why a cell could not be measured, for the report; it counts neither as finished nor as failed."""
    note = {"not_run": reason, "config": cell.science(), "environment": environment.environment(cell.accelerator)}
    store.write_failure(cell.table, cell.key, note)


def _first_line(error: BaseException) -> str:
    text_ = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text_}" if text_ else type(error).__name__


def _record_failure(store: Store, cell: Cell, error: Exception, overrides: list[str], log: Path) -> str:
    failure = {
        "error": _first_line(error),
        "traceback": traceback.format_exception(error),
        "overrides": overrides,
    }
    try:
        return str(store.write_failure(cell.table, cell.key, failure, log))
    except OSError as full:  # the disk that failed the cell may fail its log too
        return f"not written, {full.strerror or full}"


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Everything that is logged while a cell runs goes to its job.log."""
    root = logging.getLogger()
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


def _flush() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


@functools.cache
def _keep_freed_memory() -> None:
    """Let freed blocks stay with the process, where the C library can be told so (glibc).

    By default it gives blocks of megabytes back and takes them anew, which costs a small CNN's training step a tenth
    of its time or more (``benchmarks/allocator.py``).
    """
    if platform.libc_ver()[0] == "glibc":
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        library = ctypes.CDLL(None)
        library.mallopt(trim_threshold, KEPT)
        library.mallopt(mmap_threshold, KEPT)


def _measure(
    config: Config,
    cell: Cell,
    store: Store,
    code: str,
    overrides: list[str],
    report: Callable[[float], None] | None,
    tell: Say,
) -> dict[str, str]:
    _keep_freed_memory()
    table = table_module(cell.table)
    started = time.perf_counter()
    # Before a run is opened: a cell without its data is none, not a failed one.
    jobs = [] if cell.kind == "derived" else _built(cell)
    seen = _classes_seen(jobs)
    for missing in sorted({f"{found} of {classes}" for found, classes in seen if found < classes}):
        tell(f"{cell.table} {cell.key}: training images show only {missing} classes, tests all of them")
    if config.tracking.mode == "auto":
        tell_once(tracking.resolve_mode(config.tracking)[1], tell)
    job_type = "train" if any(job.fit is not None for job in jobs) else "measure"
    science = cell.science()
    with tracking.track(
        config.tracking,
        root=store.root,
        run_id=f"{cell.key}{_attempt(cell, code)}",
        table=cell.table,
        name=view.run_name(_private(label(overrides)), cell.key),
        job_type=job_type,
        tags=view.tags(config.document, cell.scale, plain(cell.params)),
        config=view.run_config(science, key=cell.key, code=code, document=config.document),
    ) as tracker:
        rows = _run(cell, jobs, tracker, report) if jobs else _derived(cell, store)
        theory = getattr(table, "theory", None)
        rows += theory(cell) if theory else []
        content = to_csv(rows, key=cell.key, scale=cell.scale, axes=table.AXES)
        _summarise(tracker, content, plain(cell.params))
        run = {
            **environment.provenance(cell.accelerator),
            "wall_seconds": round(time.perf_counter() - started, 3),
            "threads": cell.threads,
            "precision": cell.precision,
            "seeds": list(cell.seeds),
            "command": ["attnrepro", *(_private(o) for o in overrides)],
            "code": code,
            "git": git_sha(),
            "data_sha256": getattr(jobs[0].module, "data_sha256", None) if jobs else None,
            "classes_seen": sorted({found for found, _ in seen}) or None,
            "inputs": inputs_digest(store, cell.table, cell.needs, cell.scale),
            "wandb": {"mode": tracker.mode, "url": tracker.url, "id": tracker.run_id, "job_type": job_type},
        }
    return {
        "rows.csv": content,
        "config.yaml": to_json(science),
        "run.json": to_json(run),
    }


_told: set[str] = set()


def tell_once(sentence: str, tell: Say) -> None:
    """Say a sentence the first time only: hundreds of cells share the reason why they are offline."""
    if sentence not in _told:
        _told.add(sentence)
        tell(sentence)


def _measure_module(cell: Cell) -> ModuleType:
    return importlib.import_module(f"attnrepro.tables.{cell.table}.measure")


def _derived(cell: Cell, store: Store) -> list[Row]:
    inputs = {need: [r.rows_path for r in rows_read(store, need, cell.scale)] for need in cell.needs}
    rows: list[Row] = _measure_module(cell).derive(cell, inputs)
    return rows


def _built(cell: Cell) -> list[Any]:
    """The cell's jobs. Raises ``TypeError`` when a cell on a data set does not say which images it got.

    What draws from torch's own stream, as layers do for their weights, draws the same whatever ran in this process
    before.
    """
    import torch

    from attnrepro.data.streams import stream_seed

    torch.manual_seed(stream_seed(cell.seeds[0], "cell", cell.key))
    with _quiet_lightning():
        built = _measure_module(cell).build(cell)
    jobs = built if isinstance(built, list) else [built]
    if cell.data.name != "none" and not all(getattr(job.module, "data_sha256", None) for job in jobs):
        raise TypeError(f"{cell.table} is measured on {cell.data.name}, but its module has no data_sha256")
    return jobs


def _classes_seen(jobs: list[Any]) -> list[tuple[int, int]]:
    """Classes that the training images of each member of each job show, and how many there are."""
    data = [job.fit for job in jobs if hasattr(job.fit, "classes_seen")]
    return [(found, fit.num_classes) for fit in data for found in fit.classes_seen()]


def _run(cell: Cell, jobs: list[Any], tracker: tracking.Tracker, report: Callable[[float], None] | None) -> list[Row]:
    """Rows of all jobs, one after the other; each counts the same for the progress."""
    from attnrepro.training.trainer import make_trainer

    measured: list[Row] = []
    for index, job in enumerate(jobs):

        def done(share: float, index: int = index) -> None:
            if report:
                report((index + share) / len(jobs))

        with _quiet_lightning():
            trainer = make_trainer(cell, logger=tracker.logger, max_steps=job.max_steps, report=done)
            with _interruptible():
                if job.fit is not None:
                    tracker.next_fit()
                    if job.max_steps > 0:  # Lightning's 50 would leave a curve of 20 steps without a point
                        every = max(1, min(50, job.max_steps // POINTS))
                        trainer.log_every_n_steps = every  # type: ignore[attr-defined]
                    trainer.fit(job.module, job.fit)
                if job.test is not None:
                    # Only of what was trained, so that nobody looks on where time or memory is measured; of several
                    # jobs the last, which stands for models of other seeds.
                    pictured = job.fit is not None and index == len(jobs) - 1 and tracker.mode != "disabled"
                    _test(trainer, job, tracker if pictured else None)
        measured += job.module.rows()
    return measured


def _test(trainer: Any, job: Any, tracker: tracking.Tracker | None) -> None:
    """Measure, and show pictures of the model where there is somebody to show them to."""
    if tracker is None:
        trainer.test(job.module, job.test, verbose=False)
        return
    with pictures.watched(job.module) as seen:
        trainer.test(job.module, job.test, verbose=False)
    pictures.show(tracker, job.module, seen)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lightning turns Ctrl-C into ``SystemExit(1)`` and ignores the next one; a run of cells must stop at the first."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stop:
        signal.signal(signal.SIGINT, handler)
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from stop
        raise


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Lightning's banners ("GPU available: ...") belong into no table's output."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _summarise(tracker: tracking.Tracker, content: str, params: Mapping[str, object]) -> None:
    """Weights & Biases is a view of the rows: quantities with n, sd and interval, and the rows themselves."""
    if tracker.mode == "disabled":
        return
    columns, *lines = csv.reader(io.StringIO(content, newline=""))
    with tracking.only_a_view("The summary"):
        tracker.summary(view.summary([dict(zip(columns, line, strict=True)) for line in lines], params))
    tracker.rows(columns, lines)


def _attempt(cell: Cell, code: str) -> str:
    """Six hex digits that tell runs of one cell apart: environment, code and attempt."""
    return digest([environment.environment(cell.accelerator), code, time.time_ns(), os.getpid()])[:6]


def _private(override: str) -> str:
    """An override without the user's home folder in it."""
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return override.replace(home, "~") if len(home) > 1 else override


def git_sha() -> str | None:
    """Commit of the repository, with ``+`` when tracked files differ; None outside git."""
    root = paths.repository()
    if root is None or not (root / ".git").exists():
        return None
    try:
        sha, dirty = (
            subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
            for arguments in (
                ("rev-parse", "HEAD"),
                ("status", "--porcelain", "-uno", "--", "src", "conf", "experiments"),
            )
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return sha.stdout.strip() + ("+" if dirty.stdout.strip() else "")
