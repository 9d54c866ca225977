"""The console script ``attnrepro``: precheck first, then Hydra's loop over the cells that must run."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from attnrepro.app.precheck import Plan, Planned

OK, FAILED, BAD, INTERRUPTED = 0, 1, 2, 130
# Flags of Hydra that show something and run nothing.
SHOWS = (
    "--help",
    "-h",
    "--hydra-help",
    "--version",
    "--cfg",
    "-c",
    "--info",
    "-i",
    "--shell-completion",
    "-sc",
)


def cli() -> None:
    """Entry of the console script and of ``python -m attnrepro``."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run the command line; returns the exit code: 0 ok, 1 failed cells, 2 bad input, 130 interrupted."""
    arguments = list(argv)
    # Sums of a multi-threaded BLAS differ in the last bit with the number of threads; torch has its own setting.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    scratch = tempfile.mkdtemp(prefix="attnrepro-")
    os.environ["ATTNREPRO_SCRATCH"] = scratch
    try:
        shows = [argument for argument in arguments if argument.split("=")[0] in SHOWS]
        return _show(arguments, shows) if shows else _run(arguments)
    except KeyboardInterrupt:
        print("attnrepro: interrupted; finished cells are kept", file=sys.stderr)
        return INTERRUPTED
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def one_line(error: Exception) -> str:
    """A sentence stays one line whatever value it repeats."""
    return str(error).replace("\n", "\\n")


def _show(arguments: list[str], shows: list[str]) -> int:
    """Hydra shows what was asked for; a table that it would show is checked first, in our words."""
    from attnrepro.app import precheck
    from attnrepro.config import BadInput

    overrides = [a for a in arguments if "=" in a and not a.startswith("-")]
    if overrides and not {"-sc", "--shell-completion"} & set(shows):
        try:
            plan = precheck.make_plan(overrides, multirun=True, check_inputs=False)
        except BadInput as error:
            print(f"attnrepro: {one_line(error)}", file=sys.stderr)
            return BAD
        dropped = ("-m", "--multirun", "-r", "--run", "scale=auto")
        arguments = [a for a in arguments if a not in dropped]
        # Beside the others: the parser takes overrides in one run only.
        place = next((i for i, a in enumerate(arguments) if a in overrides), len(arguments))
        arguments.insert(place, f"scale={plan.config.scale}")
    return _hydra(arguments)


def _run(arguments: list[str]) -> int:
    from attnrepro.app import precheck
    from attnrepro.config import BadInput

    dry = "--dry-run" in arguments
    flags = {"-m", "--multirun", "--dry-run", "-r", "--run"}
    overrides = [a for a in arguments if a not in flags]
    try:
        unknown = [a for a in overrides if a.startswith("-")]
        if unknown:
            raise BadInput(f"unknown option {unknown[0]}; options are -m, --dry-run, --help and --cfg job")
        plan = precheck.make_plan(overrides, multirun=bool({"-m", "--multirun"} & set(arguments)))
    except BadInput as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"attnrepro: {one_line(error)}", file=sys.stderr)
        return BAD
    if dry:
        from attnrepro.app.predict import predict

        print(precheck.plan_text(plan, [predict(planned) for planned in plan.cells]))
        return OK
    return execute(plan)


def execute(plan: "Plan", progress: "Progress | None" = None) -> int:
    """Run what a plan asks for through Hydra's loop and its launcher; print the closing list."""
    from attnrepro.app import grid
    from attnrepro.app.run import say

    planned = plan.to_run
    started = time.monotonic()
    if planned:
        signal.signal(signal.SIGTERM, _terminate)
        grid.jobs[:] = [p.overrides for p in planned]
        first = planned[0].overrides
        if progress is None:
            say(f"{plan.table}: {len(planned)} of {len(plan.cells)} cells to run at scale {plan.config.scale}")
        _reporting.progress = progress or Progress(len(planned))
        if plan.one_cell:
            _hydra([*first, *plan.hydra_overrides, "hydra.mode=RUN"])
        else:
            # The sweeper launches grid.jobs; only what chooses the frame of Hydra itself is passed here.
            frame = [o for o in first if o.startswith(("experiment=", "scale="))]
            _hydra(["--multirun", *frame, *plan.hydra_overrides])
    if progress is None:
        elsewhere = _reporting.progress.reused if planned and _reporting.progress else 0
        say(f"{summary(plan, planned, elsewhere)} in {time.monotonic() - started:.1f} s")
        for line in failures(plan, planned):
            say(line)
    return FAILED if any(not plan.is_done(p) for p in planned) else OK


def summary(plan: "Plan", planned: "Sequence[Planned]", elsewhere: int = 0) -> str:
    """``<table>: 3 ran, 5 reused, 0 failed``: what became of a plan whose ``planned`` cells were to run.

    ``elsewhere`` of them were finished by another run while this one waited for them.
    """
    done = sum(plan.is_done(p) for p in planned)
    keys = {p.cell.key for p in planned}
    reused = [p for p in plan.cells if p.cell.key not in keys]
    stale = sum(p.stale for p in reused)
    note = f" ({stale} stale: the code changed since; stale=rerun runs them again)" if stale else ""
    return (
        f"{plan.table}: {done - elsewhere} ran, {len(reused) + elsewhere} reused{note},"
        f" {len(planned) - done} failed or not run"
    )


def failures(plan: "Plan", planned: "Sequence[Planned]") -> list[str]:
    """A line for each cell that should have run and has no result; one for all that lack the same data."""
    from attnrepro.app.run import label

    lines = []
    lacking: Counter[str] = Counter()
    for p in planned:
        if not plan.is_done(p):
            failure = plan.store.failure(p.cell.table, p.cell.key)
            if failure and "not_run" in failure:
                lacking[failure["not_run"]] += 1
                continue
            log = plan.store.folder(p.cell.table, p.cell.key) / "job.log"
            why = f"failed {failure['error']} ({log})" if failure else "not run"
            lines.append(f"  {p.cell.table} {p.cell.key} {label(p.overrides)}: {why}")
    return lines + [f"  {plan.table}: {n} cells not run, {reason}" for reason, n in lacking.items()]


def lacks_data(plan: "Plan", planned: "Sequence[Planned]") -> bool:
    """Whether some of ``planned`` have no result, and for no other reason than that their data cannot be had."""
    undone = [p for p in planned if not plan.is_done(p)]
    notes = [plan.store.failure(p.cell.table, p.cell.key) for p in undone]
    return bool(undone) and all(note and "not_run" in note for note in notes)


class Progress:
    """A line for each cell, and on a terminal a bar of its share done."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.number = 0
        self.label = ""
        self.reused = 0
        self.tty = sys.stderr.isatty()

    def start(self, label: str) -> None:
        """A cell begins."""
        self.number += 1
        self.label = label
        if self.tty:
            self.share(0.0)
        else:
            self._write(f"  [{self.number}/{self.total}] {label}", "\n")

    def share(self, done: float) -> None:
        """The running cell is so far."""
        if self.tty:
            bar = f"  [{self.number}/{self.total}] {'#' * int(20 * done):.<20} {done:4.0%}  {self.label}"
            # A line that is wrapped cannot be written over.
            self._write(f"\r\x1b[K{bar[: shutil.get_terminal_size().columns - 1]}", "")

    def end(self, outcome: str) -> None:
        """The running cell is over."""
        self.reused += outcome.startswith("reused")
        # Off a terminal other cells may have written in between: the line says again which cell it is about.
        start = "\r\x1b[K" if self.tty else ""
        self._write(f"{start}  [{self.number}/{self.total}] {self.label}: {outcome}", "\n")

    def tell(self, sentence: str) -> None:
        """Say something that is not progress."""
        self._write(f"\n{sentence}" if self.tty else sentence, "\n")

    @staticmethod
    def _write(line: str, end: str) -> None:
        print(line, file=sys.stderr, end=end, flush=True)


@dataclass
class _Reporting:
    """Where a Hydra job tells how it goes; Hydra calls ``job`` with nothing but its configuration."""

    progress: Progress | None = None


_reporting = _Reporting()


def job(cfg: "DictConfig") -> str:
    """One Hydra job is one cell. A failing cell is recorded and does not stop the others."""
    from hydra.core.hydra_config import HydraConfig

    from attnrepro.app.precheck import resolve
    from attnrepro.app.run import CellFailed, CellNotRun, label, run_cell
    from attnrepro.config import typed

    overrides = list(HydraConfig.get().overrides.task)
    config = typed(cfg)
    cell, store = resolve(config)
    progress = _reporting.progress or Progress(1)
    progress.start(f"{cell.table} {cell.key} {label(overrides)}")
    started = time.monotonic()
    try:
        outcome = run_cell(config, cell, store, overrides=overrides, report=progress.share, tell=progress.tell)
    except CellFailed as error:
        progress.end(f"FAILED {error}")
        return "failed"
    except CellNotRun as error:
        progress.end(f"not run, {error}")
        return "not run"
    progress.end(f"{outcome}, {time.monotonic() - started:.1f} s")
    return outcome


def _hydra(arguments: Sequence[str]) -> int:
    """Hydra's own main on our configuration."""
    import hydra

    from attnrepro import paths

    saved, sys.argv = sys.argv, ["attnrepro", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(paths.conf_dir()), config_name="config")(job)()
    except SystemExit as stop:
        if stop.code in (130, 128 + signal.SIGTERM):
            raise KeyboardInterrupt from stop
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    finally:
        sys.argv = saved
    return OK


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends like Ctrl-C: open runs are closed as failed, locks are released."""
    raise KeyboardInterrupt
