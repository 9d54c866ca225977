"""The console script ``attnrepro``: precheck first, then Hydra's loop over the cells that must run."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

OK, FAILED, BAD, INTERRUPTED = 0, 1, 2, 130
# Flags of Hydra that show something and run nothing.
SHOWS = ("--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc")


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
        if any(argument.split("=")[0] in SHOWS for argument in arguments):
            return _hydra(arguments)
        return _run(arguments)
    except KeyboardInterrupt:
        print("attnrepro: interrupted; finished cells are kept", file=sys.stderr)
        return INTERRUPTED
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
        print(f"attnrepro: {error}", file=sys.stderr)
        return BAD
    if dry:
        from attnrepro.app.predict import predict

        print(precheck.plan_text(plan, [predict(planned) for planned in plan.cells]))
        return OK
    return execute(plan)


def execute(plan: Any, report: Any = None) -> int:
    """Run what a plan asks for through Hydra's loop and its launcher; print the closing list."""
    from attnrepro.app import grid
    from attnrepro.app.run import say

    planned = plan.to_run
    started = time.monotonic()
    if planned:
        signal.signal(signal.SIGTERM, _terminate)
        grid.jobs[:] = [p.overrides for p in planned]
        first = planned[0].overrides
        say(f"{plan.table}: {len(planned)} of {len(plan.cells)} cells to run at scale {plan.config.scale}")
        global _progress
        _progress = report or _Progress(len(planned))
        if plan.one_cell:
            _hydra([*first, "hydra.mode=RUN"])
        else:
            # The sweeper launches grid.jobs; only what chooses the frame of Hydra itself is passed here.
            _hydra(["--multirun", *(o for o in first if o.startswith(("experiment=", "scale=", "hydra")))])
    ran = [p for p in planned if _is_done(plan, p)]
    failed = [p for p in planned if not _is_done(plan, p)]
    reused = [p for p in plan.cells if not p.to_run]
    stale = [p for p in reused if p.stale]
    say(
        f"{plan.table}: {len(ran)} ran, {len(reused)} reused"
        + (f" ({len(stale)} stale: the code changed since; stale=rerun runs them again)" if stale else "")
        + f", {len(failed)} failed in {time.monotonic() - started:.1f} s; rows are in {plan.store.runs / plan.table}"
    )
    for p in failed:
        failure = plan.store.failure(p.cell.table, p.cell.key) or {}
        folder = plan.store.folder(p.cell.table, p.cell.key)
        say(f"  failed {p.cell.key} {' '.join(p.overrides)}: {failure.get('error', 'no record')} ({folder}/job.log)")
    return FAILED if failed else OK


def _is_done(plan: Any, planned: Any) -> bool:
    record = plan.store.find(planned.cell.table, planned.cell.key)
    return record is not None and (record.code == planned.code or planned.config.stale == "keep")


class _Progress:
    """A line for each cell, and on a terminal its share done."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.number = 0
        self.tty = sys.stderr.isatty()

    def start(self, label: str) -> None:
        self.number += 1
        self._write(f"  [{self.number}/{self.total}] {label}", "" if self.tty else "\n")
        self.label = label

    def share(self, done: float) -> None:
        if self.tty:
            self._write(f"\r  [{self.number}/{self.total}] {self.label}  {done:4.0%}", "")

    def end(self, outcome: str) -> None:
        self._write(f"\r  [{self.number}/{self.total}] {self.label}  {outcome}" if self.tty else f"      {outcome}", "\n")

    @staticmethod
    def _write(line: str, end: str) -> None:
        print(line, file=sys.stderr, end=end, flush=True)


_progress: Any = None


def job(cfg: Any) -> str:
    """One Hydra job is one cell. A failing cell is recorded and does not stop the others."""
    from hydra.core.hydra_config import HydraConfig

    from attnrepro import environment, paths
    from attnrepro.app.precheck import inputs_digest, resolve_accelerator
    from attnrepro.app.run import CellFailed, run_cell
    from attnrepro.config import make_cell, typed
    from attnrepro.results.store import Store

    overrides = list(HydraConfig.get().overrides.task)
    config = typed(cfg)
    accelerator = resolve_accelerator(config)
    store = Store(paths.results_dir(config.results))
    hardware = f"{environment.device_name(accelerator)}|{environment.processor()}"
    cell = make_cell(config, accelerator=accelerator, hardware=hardware, inputs=inputs_digest(store, config))
    progress = _progress or _Progress(1)
    shown = " ".join(o for o in overrides if not o.startswith(("experiment=", "scale="))) or "default"
    progress.start(f"{cell.table} {cell.key} {shown}")
    started = time.monotonic()
    try:
        outcome = run_cell(config, cell, store, overrides=overrides, report=progress.share)
    except CellFailed as error:
        progress.end(f"FAILED {error}")
        return "failed"
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
