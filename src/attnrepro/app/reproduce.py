"""Reproduce tables: one outer loop of ours over tables and cells, a single-thread worker process for each core."""

import argparse
import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from attnrepro import paths
from attnrepro.app.asked import told
from attnrepro.app.bar import Bar
from attnrepro.app.main import BAD, FAILED, INTERRUPTED, OK, Progress, execute, failures, summary
from attnrepro.app.precheck import Plan, Planned, make_plan, plan_text
from attnrepro.app.predict import predict
from attnrepro.app.report import about
from attnrepro.app.run import record_not_run, say
from attnrepro.config import BadInput, digest
from attnrepro.fetch.download import DataUnavailable
from attnrepro.fetch.files import locate

# Cells shorter than this share a worker process: starting one costs about a second.
SHORT = 5.0
# What workers need, imported once in the server they are forked from.
PRELOAD = ["torch", "lightning", "torchmetrics", "hydra", "pandas", "wandb", "lightning.pytorch.loggers.wandb"]
PRELOAD += ["attnrepro.app.precheck", "attnrepro.app.run"]


@dataclass
class Task:
    """Cells of one table for one worker process, checked and ready."""

    plan: Plan
    seconds: float = 0.0


@dataclass
class Worker:
    """A running worker as the runner sees it."""

    process: Any
    link: Connection
    task: Task
    label: str = ""
    share: float = 0.0
    since: float = field(default_factory=time.monotonic)


class PipeProgress(Progress):
    """Progress that goes to the runner."""

    def __init__(self, link: Connection) -> None:
        super().__init__(0)
        self.link = link

    def _send(self, kind: str, value: object) -> None:
        with contextlib.suppress(OSError):
            self.link.send((kind, value))

    def start(self, label: str) -> None:
        """A cell begins."""
        self.label = label
        self._send("start", label)

    def share(self, done: float) -> None:
        """The running cell is so far."""
        self._send("share", done)

    def end(self, outcome: str) -> None:
        """The running cell is over."""
        self._send("end", outcome)

    def tell(self, sentence: str) -> None:
        """The runner has said it already, once for all workers."""


def work(task: Task, link: Connection) -> None:
    """A worker process: measure the task's cells and exit with their exit code."""
    threading.Thread(target=_end_with_parent, args=(link,), daemon=True).start()
    scratch = tempfile.mkdtemp(prefix="attnrepro-")
    os.environ["ATTNREPRO_SCRATCH"] = scratch
    try:
        code = execute(task.plan, PipeProgress(link))
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    # multiprocessing takes a return value for success, whatever it is.
    sys.exit(code)


def _end_with_parent(link: Connection) -> None:
    """A killed runner must not leave a worker writing: the link closes, the worker ends."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            link.recv()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(128 + signal.SIGTERM)


def in_order(tables: Sequence[str]) -> list[str]:
    """The tables and everything they need, each after what it needs.

    Raises ``BadInput`` for an unknown table or a circle.
    """
    known = paths.table_names()
    ordered: list[str] = []

    def add(table: str, path: tuple[str, ...]) -> None:
        if table not in known:
            raise BadInput(f"TABLE={table}: there is no such table; choices: {', '.join(known)}")
        if table in path:
            raise BadInput(f"tables need each other in a circle: {' -> '.join([*path, table])}")
        if table not in ordered:
            for need in needs(table):
                add(need, (*path, table))
            ordered.append(table)

    for table in tables:
        add(table, ())
    return ordered


def needs(table: str) -> list[str]:
    """Tables whose rows a table reads."""
    return list(about(table).get("needs") or [])


def waves(tables: Sequence[str]) -> list[list[str]]:
    """Groups of tables that may run at the same time: needs first, and every timing table alone."""
    done: set[str] = set()
    left = list(tables)
    result: list[list[str]] = []
    while left:
        ready = [t for t in left if set(needs(t)) & set(tables) <= done]
        untimed = [t for t in ready if not about(t).get("timing")]
        wave = untimed or ready[:1]
        result.append(wave)
        done |= set(wave)
        left = [t for t in left if t not in wave]
    return result


def replace_cells(plan: Plan, cells: list[Planned]) -> Plan:
    """The same plan for other cells."""
    return dataclasses.replace(plan, cells=cells, one_cell=False)


def split(plan: Plan, *, together: bool) -> list[Task]:
    """A plan's open cells as tasks, long cells alone and short ones together."""

    def task() -> Task:
        return Task(replace_cells(plan, []))

    tasks: list[Task] = []
    short = task()
    cells = sorted(((predict(p) or SHORT, p) for p in plan.to_run), key=lambda item: -item[0])
    for seconds, planned in cells:
        alone = seconds >= SHORT and not together
        full = bool(short.plan.cells) and short.seconds + seconds > 2 * SHORT and not together
        if alone or full:
            tasks.append(task() if alone else short)
        if full and not alone:
            short = task()
        chosen = tasks[-1] if alone else short
        chosen.plan.cells.append(planned)
        chosen.seconds += seconds
    return tasks + [short] * bool(short.plan.cells)


class Runner:
    """Runs tasks on worker processes and shows how far they are."""

    def __init__(self, jobs: int, total: int, seconds: float, bar: Bar) -> None:
        self.jobs = jobs
        self.total = total
        self.bar = bar
        self.finished = 0
        self.failed = 0
        self.left = seconds
        self.workers: list[Worker] = []
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(PRELOAD)
        self.said = time.monotonic()
        # Cells that another run finished while ours waited for them.
        self.reused: Counter[str] = Counter()

    def run(self, tasks: Iterable[Task]) -> None:
        """Run all tasks, the longest first."""
        queue = sorted(tasks, key=lambda task: -task.seconds)
        try:
            while queue or self.workers:
                while queue and len(self.workers) < self.jobs:
                    self._start(queue.pop(0))
                self._listen()
        except BaseException:
            self.stop()
            raise

    def _start(self, task: Task) -> None:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=work, args=(task, theirs), daemon=False)
        # Ctrl-C goes to the whole group of processes: the runner alone takes it and ends its workers in order. The
        # blocked signal is inherited, and one that comes meanwhile is kept for the runner. The resource tracker, which
        # is started once, would unblock it again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.workers.append(Worker(process, ours, task))

    def _listen(self) -> None:
        links = {worker.link: worker for worker in self.workers}
        for link in wait(list(links), timeout=0.5):
            worker = links[link]  # type: ignore[index]
            try:
                kind, value = worker.link.recv()
            except (EOFError, OSError):
                self._ended(worker)
                continue
            if kind == "start":
                worker.label, worker.share, worker.since = value, 0.0, time.monotonic()
            elif kind == "share":
                worker.share = value
            elif kind == "end":
                self.finished += 1
                self.failed += not value.startswith(("ran", "reused"))
                self.reused[worker.task.plan.table] += value.startswith("reused")
                say(f"  [{self.finished}/{self.total}] {worker.label}: {value}")
                worker.label, worker.share = "", 0.0
        self._status()

    def _ended(self, worker: Worker) -> None:
        worker.process.join()
        worker.link.close()
        self.workers.remove(worker)
        self.left -= worker.task.seconds
        if worker.process.exitcode not in (OK, FAILED):
            say(f"  a worker of {worker.task.plan.table} ended with code {worker.process.exitcode}")

    def _status(self) -> None:
        """The bar on a terminal; off one, a plain line every half minute."""
        now = time.monotonic()
        if now - self.said < (0.5 if self.bar.on else 30):
            return
        self.said = now
        spent = sum(min(now - w.since, w.task.seconds) for w in self.workers)
        left = max(0.0, self.left - spent) / max(1, self.jobs)
        if self.bar.on:
            tables = dict.fromkeys(w.task.plan.table for w in self.workers if w.label)
            parts = sum(w.share for w in self.workers if w.label)
            self.bar.show(tables, done=self.finished, failed=self.failed, parts=parts, left=left)
        else:
            running = [f"{w.label.split(' ', 2)[-1]} {w.share:.0%}" for w in self.workers if w.label]
            say(f"  [{self.finished}/{self.total}] running {'; '.join(running)}; about {left:.0f} s left")

    def stop(self) -> None:
        """End every worker: ask, wait, then force."""
        for worker in self.workers:
            worker.process.terminate()
        end = time.monotonic() + 8
        for worker in self.workers:
            worker.process.join(max(0.1, end - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def reproduce(tables: Sequence[str], overrides: Sequence[str], *, jobs: int | None, dry_run: bool) -> int:
    """Reproduce tables with what they need, then bring everything generated up to date."""
    ordered = in_order(tables or paths.table_names())
    started = time.monotonic()
    # Every table is checked before the first one starts; a table that needs rows can only be checked in part.
    checked = {table: make_plan([f"experiment={table}", *overrides], check_inputs=False) for table in ordered}
    order = waves(ordered)
    if dry_run:
        for plan in (checked[table] for wave in order for table in wave):
            with contextlib.suppress(BadInput):  # what it needs is not there yet
                plan = _with_inputs(plan, overrides)
            print(plan_text(plan, [predict(planned) for planned in plan.cells]))
        return OK
    closing: list[str] = []
    code = OK
    root = checked[ordered[0]].store.root
    try:
        with told(checked[ordered[0]].store) as tell, Bar() as bar:

            def begin(plans: Sequence[Plan]) -> None:
                checked.update({plan.table: plan for plan in plans})
                bar.total = sum(len(plan.to_run) for plan in checked.values())
                if any(plan.to_run for plan in plans):
                    tell(checked.values(), any(plan.config.timing for plan in plans))

            for number, wave in enumerate(order, 1):
                bar.later = sum(_seconds([checked[table] for table in later], jobs) for later in order[number:])
                code = max(code, _wave([checked[table] for table in wave], overrides, jobs, closing, bar, begin))
    except KeyboardInterrupt:
        say("\ninterrupted; finished cells are kept and the next run goes on from them")
        code = INTERRUPTED
    if code != INTERRUPTED:
        code = max(code, _reports(root))
    for line in closing:
        say(line)
    say(f"{'done' if code == OK else 'ended with exit code ' + str(code)} in {time.monotonic() - started:.1f} s")
    return code


def _with_inputs(plan: Plan, overrides: Sequence[str]) -> Plan:
    """The plan with its final keys: those of a table that reads rows are known only when these are there.

    Raises ``BadInput`` when they are not.
    """
    return make_plan([f"experiment={plan.table}", *overrides]) if plan.config.needs else plan


def _workers(plans: Sequence[Plan], jobs: int | None) -> int:
    alone = any(plan.config.timing or plan.accelerator == "cuda" for plan in plans)
    return jobs or (1 if alone else _cores())


def _seconds(plans: Sequence[Plan], jobs: int | None) -> float:
    """How long a wave may take."""
    return sum(predict(p) or SHORT for plan in plans for p in plan.to_run) / _workers(plans, jobs)


def _wave(
    checked: Sequence[Plan],
    overrides: Sequence[str],
    jobs: int | None,
    closing: list[str],
    bar: Bar,
    begin: Callable[[Sequence[Plan]], None],
) -> int:
    plans: list[Plan] = []
    failed = False
    for plan in checked:
        try:
            plans.append(_with_inputs(plan, overrides))
        except BadInput as error:  # what it needs did not come about
            closing.append(f"{plan.table}: not run, {error}")
            bar.over(len(plan.to_run), failed=len(plan.to_run))
            failed = True
    begin(plans)
    to_run = {plan.table: plan.to_run for plan in plans}
    held = _without_data(plans)
    open_ = [replace_cells(plan, [p for p in plan.to_run if p.cell.key not in held]) for plan in plans]
    total = sum(len(plan.cells) for plan in open_)
    runner: Runner | None = None
    try:
        if total:
            timing = any(plan.config.timing for plan in plans)
            tasks = [task for plan in open_ for task in split(plan, together=timing)]
            workers = _workers(plans, jobs)
            seconds = sum(task.seconds for task in tasks)
            names = ", ".join(plan.table for plan in open_ if plan.cells)
            say(
                f"{names}: {total} cells to run on {min(workers, len(tasks))} worker(s),"
                f" about {max(seconds / workers, max(t.seconds for t in tasks)):.0f} s"
            )
            _say_tracking(plans)
            runner = Runner(workers, total, seconds, bar)
            runner.run(tasks)
    finally:
        for plan in plans:
            elsewhere = runner.reused[plan.table] if runner else 0
            closing += [summary(plan, to_run[plan.table], elsewhere), *failures(plan, to_run[plan.table])]
    done = [plan.is_done(p) for plan in plans for p in to_run[plan.table]]
    bar.over(len(done), failed=done.count(False))
    return OK if all(done) and not failed else FAILED


def _without_data(plans: Iterable[Plan]) -> set[str]:
    """Fetch the data of all cells; keys of those whose data cannot be had, recorded as not run.

    Here, once: workers side by side would fetch the same files, and each wait for the same dead server.
    """
    held: set[str] = set()
    reasons: dict[str, str] = {}
    for plan in plans:
        for planned in plan.to_run:
            data = planned.config.data
            asked = digest([data.science(), data.root])
            if asked not in reasons:
                reasons[asked] = ""
                try:
                    if data.name not in ("none", "digits"):
                        say(f"{data.name}: looking for its files, here and then on the network")
                    locate(data)
                except DataUnavailable as error:
                    reasons[asked] = str(error)
            if reasons[asked]:
                record_not_run(plan.store, planned.cell, reasons[asked])
                held.add(planned.cell.key)
    return held


def _cores() -> int:
    """Cores this process may use; not every system can say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say_tracking(plans: Iterable[Plan]) -> None:
    from attnrepro.app.tracking import resolve_mode

    for reason in {resolve_mode(plan.config.tracking)[1] for plan in plans if plan.config.tracking.mode == "auto"}:
        say(reason)


def _reports(root: Path) -> int:
    from attnrepro.app import report

    try:
        outcome = report.build_at(root)
    except OSError as error:
        say(f"FAILED tables and reports could not be written: {error}")
        return FAILED
    for problem in outcome.problems:
        say(f"FAILED {problem}")
    say(f"tables, REPORT.md and dashboard.html are in {root}")
    return FAILED if outcome.problems else OK


def main(argv: Sequence[str]) -> int:
    """Command line of ``scripts/reproduce.py``."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="TABLE or key=value", help="tables (none: all) and overrides")
    parser.add_argument("--jobs", type=int, help="worker processes (default: one a core, one on a GPU)")
    parser.add_argument("--dry-run", action="store_true", help="say what would run, and for how long")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if options.jobs is not None and options.jobs < 1:
            raise BadInput(f"JOBS={options.jobs} must be at least 1")
        tables = [word for word in options.words if "=" not in word]
        overrides = [word for word in options.words if "=" in word]
        return reproduce(tables, overrides, jobs=options.jobs, dry_run=options.dry_run)
    except BadInput as error:
        say(f"reproduce: {error}")
        return BAD
    except KeyboardInterrupt:
        return INTERRUPTED


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
