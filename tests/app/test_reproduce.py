"""The runner: order, alone or together, ended from outside, two at once, and what it says in the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnrepro.app import reproduce
from attnrepro.app.precheck import Plan
from attnrepro.config import BadInput

from .toy import (
    NEEDS_PROC,
    REPOSITORY,
    Copy,
    Side,
    add_table,
    cells,
    clean_environment,
    counted,
    finish,
    rows_of,
    snapshot,
    until,
    waits_for_a_cell,
)

# --- order ---

Tables = Callable[..., None]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    """Make the runner see these tables: a name and what it needs; `timing` names those that measure time."""

    def make(timing: str = "", **needs: str) -> None:
        files = {t: {"needs": n.split(), "timing": t in timing.split()} for t, n in needs.items()}
        monkeypatch.setattr(reproduce.paths, "table_names", lambda: sorted(files))
        monkeypatch.setattr(reproduce, "about", files.__getitem__)

    return make


def test_a_table_comes_after_everything_it_needs(tables: Tables) -> None:
    tables(a="c", b="a c", c="d", d="", e="")
    assert reproduce.in_order(["b"]) == ["d", "c", "a", "b"]
    assert reproduce.in_order(["a", "b", "c", "d", "e"]) == ["d", "c", "a", "b", "e"]
    assert reproduce.in_order(["e", "e"]) == ["e"]


@pytest.mark.parametrize(
    ("needs", "circle"),
    [({"a": "a"}, "a -> a"), ({"a": "b", "b": "a"}, "a -> b -> a"), ({"a": "b", "b": "c", "c": "b"}, "b -> c -> b")],
)
def test_a_circle_is_refused(tables: Tables, needs: dict[str, str], circle: str) -> None:
    tables(**needs)
    with pytest.raises(BadInput, match=f"tables need each other in a circle: .*{circle}"):
        reproduce.in_order(["a"])


def test_a_need_that_does_not_exist_is_refused(tables: Tables) -> None:
    tables(a="nope")
    with pytest.raises(BadInput, match="nope"):
        reproduce.in_order(["a"])


def test_waves_put_needs_first_and_every_timing_table_alone(tables: Tables) -> None:
    tables(a="", b="a", c="", t="", u="a", timing="t u")
    waves = reproduce.waves(["a", "b", "c", "t", "u"])
    assert sorted(table for wave in waves for table in wave) == ["a", "b", "c", "t", "u"]
    for table in ("t", "u"):
        assert [table] in waves
    first = {table: number for number, wave in enumerate(waves) for table in wave}
    assert first["a"] < first["b"]
    assert first["a"] < first["u"]
    assert first["a"] == first["c"], "what can run together does"


def test_a_need_that_is_not_asked_for_holds_up_nothing(tables: Tables) -> None:
    tables(a="", b="a")
    assert reproduce.waves(["b"]) == [["b"]]


def plan_of(*seconds: float | None) -> Plan:
    """A plan whose open cells take so long, and which has one that is done."""
    nothing: Any = None
    cells: list[Any] = [SimpleNamespace(name=i, guess=guess, to_run=True) for i, guess in enumerate(seconds)]
    cells.insert(len(cells) // 2, SimpleNamespace(name="done", guess=50.0, to_run=False))
    return Plan("t", config=nothing, store=nothing, accelerator="cpu", cells=cells)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reproduce, "predict", lambda planned: planned.guess)
    yield


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    "seconds", [(), (1.0,), (100.0,), (1.0, 100.0, 2.0), (4.0,) * 7, (None, None, 6.0), (4.9, 5.0, 5.1)]
)
def test_tasks_hold_every_open_cell_once(seconds: tuple[float | None, ...], together: bool) -> None:
    tasks = reproduce.split(plan_of(*seconds), together=together)
    found: list[list[Any]] = [[cell.name for cell in task.plan.cells] for task in tasks]
    assert sorted(name for names in found for name in names) == list(range(len(seconds)))
    assert all(found)
    if together:
        assert len(tasks) <= 1
        return
    for task, names in zip(tasks, found, strict=True):
        known = [seconds[name] or reproduce.SHORT for name in names]
        assert task.seconds == pytest.approx(sum(known))
        assert len(names) == 1 or (max(known) < reproduce.SHORT and sum(known) <= 2 * reproduce.SHORT)


# --- asked the wrong thing, or only asked ---


def test_an_unknown_table_is_one_sentence(toy_copy: Copy, tmp_path: Path) -> None:
    done = toy_copy.run("reproduce.py", "toy", "nope", f"results={tmp_path / 'results'}")
    assert (done.code, done.out) == (2, "")
    choices = "toy, toy_derived, toy_timing, toy_training"
    assert done.err == f"reproduce: TABLE=nope: there is no such table; choices: {choices}\n"
    assert not (tmp_path / "results").exists()


def test_a_bad_value_for_the_last_table_starts_none(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    wrong = ("toy", "toy_training", "scale=smoke", "params.steps=5", f"results={tmp_path / 'results'}")
    done = toy_copy.run("reproduce.py", *wrong, side=side)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("reproduce: unknown key params.steps")
    assert not side.events("start")
    jobs = toy_copy.run("reproduce.py", "--jobs", "0", "toy", f"results={tmp_path / 'results'}")
    assert (jobs.code, jobs.err) == (2, "reproduce: JOBS=0 must be at least 1\n")


def test_a_dry_run_says_it_all_and_runs_nothing(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = toy_copy.run("reproduce.py", "--dry-run", "scale=smoke", f"results={results}", side=side)
    assert done.code == 0, done.err
    for table, count in (("toy", 6), ("toy_training", 1), ("toy_derived", 1), ("toy_timing", 2)):
        assert f"{table} at scale smoke: {count} cells, {count} to run, 0 reused" in done.out
    assert not side.events("start")
    assert not results.exists()


def make(*arguments: str) -> str:
    """What make would do, of the repository's own Makefile."""
    command = ["make", "-n", "--no-print-directory", "-o", ".venv/.current", *arguments]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=clean_environment(), capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("target", "variables", "words"),
    [
        ("reproduce", ["TABLE=a b"], "scripts/reproduce.py a b scale=auto"),
        ("reproduce", ["TABLE=a b", "SCALE=smoke", "JOBS=3"], "scripts/reproduce.py --jobs 3 a b scale=smoke"),
        (
            "reproduce",
            ["TABLE=a", "ARGS=seeds=[0] params.n=5"],
            "scripts/reproduce.py a scale=auto seeds=[0] params.n=5",
        ),
        ("reproduce-all", ["SCALE=cpu", "JOBS=2"], "scripts/reproduce.py --jobs 2 scale=cpu"),
        ("plan", ["TABLE=a b", "SCALE=full"], "scripts/reproduce.py --dry-run a b scale=full"),
        ("smoke", ["TABLE=a b"], "scripts/smoke.py a b"),
        ("accept", ["TABLE=a b"], "scripts/accept.py a b"),
        ("wandb-sync", [], "scripts/wandb_sync.py"),
        (
            "wandb-rebuild",
            ["TABLE=a b", "ARGS=tracking.project=p"],
            "scripts/wandb_rebuild.py a b tracking.project=p",
        ),
        ("wandb-dashboard", [], "scripts/wandb_dashboard.py"),
        (
            "wandb-dashboard",
            ["POST=1", "ARGS=tracking.entity=e"],
            "scripts/wandb_dashboard.py --post tracking.entity=e",
        ),
    ],
)
def test_make_passes_everything_on(target: str, variables: list[str], words: str) -> None:
    (line,) = [line for line in make(target, *variables).splitlines() if "scripts/" in line]
    assert " ".join(line.split()).endswith(words)


def test_make_reproduce_asks_for_a_table() -> None:
    done = subprocess.run(
        ["make", "-o", "setup", "reproduce"],
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.startswith("which table? make reproduce TABLE=<table>")


# --- ended from outside ---


def gone(side: Side) -> bool:
    return not side.processes()


def in_flight(copy: Copy, side: Side, results: Path, *, tracking: str) -> subprocess.Popen[str]:
    """A runner with two workers: toy has finished cells and waits in one, toy_training waits in its fit."""
    side.hold("toy", 3)
    side.hold("toy_training", "-")
    runner = copy.start(
        *("reproduce.py", "--jobs", "2", "toy", "toy_training", "scale=smoke"),
        *(f"tracking={tracking}", f"results={results}"),
        side=side,
    )
    until(lambda: len(side.events("held")) == 2 or runner.poll() is not None, "two cells in flight")
    assert runner.poll() is None, finish(runner).err
    # Runner, forkserver, resource tracker and two workers: what must be gone is seen while it is there.
    assert len(side.processes()) >= 5
    assert any("forkserver" in line for line in side.processes().values())
    assert any("resource_tracker" in line for line in side.processes().values())
    return runner


def left_whole(results: Path) -> None:
    """No folder is half a cell, and no lock is held."""
    import fcntl

    for path in (results / "runs").glob("toy*/*"):
        if path.suffix == ".lock":
            with path.open("a") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            assert (path / "done.json").is_file(), path


@pytest.mark.slow
@NEEDS_PROC
@pytest.mark.parametrize(
    ("number", "tracking"),
    [(signal.SIGKILL, "offline"), (signal.SIGTERM, "disabled"), (signal.SIGINT, "offline")],
    ids=["kill -9", "SIGTERM", "Ctrl-C"],
)
def test_a_runner_that_is_ended_leaves_no_process_and_whole_cells(
    number: signal.Signals, tracking: str, toy_copy: Copy, side: Side, tmp_path: Path
) -> None:
    """Ctrl-C in a terminal reaches the whole process group, a signal by hand the runner alone."""
    results = tmp_path / "results"
    runner = in_flight(toy_copy, side, results, tracking=tracking)
    finished = {key: snapshot(folder) for key, folder in cells(results, "toy").items()}
    assert len(finished) == 2
    if number == signal.SIGINT:
        blocked = [Path(f"/proc/{event.pid}/status").read_text() for event in side.events("held")]
        assert all(re.search(r"^SigBlk:\s+[0-9a-f]*[2367abef]$", status, re.MULTILINE) for status in blocked), blocked
        os.killpg(runner.pid, number)
    else:
        runner.send_signal(number)
    assert until(lambda: gone(side) and runner.poll() is not None, f"the end of {side.processes()}", 10) < 10
    done = finish(runner)
    assert done.code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert {key: snapshot(folder) for key, folder in cells(results, "toy").items()} == finished
    assert not cells(results, "toy_training")
    left_whole(results)
    assert "Traceback" not in done.err, done.err
    if number != signal.SIGKILL:
        assert "interrupted; finished cells are kept" in done.err
        assert "toy: 2 ran, 0 reused, 4 failed or not run" in done.err
        assert "ended with exit code 130" in done.err


# --- two at once ---


@pytest.mark.slow
@NEEDS_PROC
def test_two_runners_at_once_compute_each_cell_once(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    results = tmp_path / "results"
    side.hold("toy", 1)
    command = ("reproduce.py", "--jobs", "1", "toy", "scale=smoke", "tracking=disabled", f"results={results}")
    runners = [toy_copy.start(*command, side=side) for _ in range(2)]
    until(lambda: waits_for_a_cell(results) or any(r.poll() is not None for r in runners), "one waits for the other")
    side.release()
    ended = [finish(runner) for runner in runners]
    assert [done.code for done in ended] == [0, 0], [done.err for done in ended]
    assert side.starts() == dict.fromkeys("123456", 1)
    counts = [counted("toy", done.err) for done in ended]
    assert [ran + reused for ran, reused, _ in counts] == [6, 6]
    assert sum(ran for ran, _, _ in counts) == 6, "what the other one finished is reused, not run"
    assert len(cells(results, "toy")) == 6


# --- what fails does not stop what does not ---


def end_of(err: str) -> list[str]:
    """The closing list: what is said after the reports."""
    lines = err.splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("tables, REPORT.md")) + 1 :]


@pytest.mark.slow
def test_a_failing_table_stops_no_other_and_timing_runs_alone(own_copy: Copy, side: Side, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for table in ("toy_training", "toy_timing", "toy_derived"):
        add_table(own_copy.root, table)
    # Needs that come about and needs that do not, side by side.
    add_table(own_copy.root, "toy_bad", like="toy")
    own_copy.edit("conf/experiment/toy_bad.yaml", "fail: []", "fail: [1, 2, 3, 4, 5, 6]")
    add_table(own_copy.root, "toy_bad_derived", like="toy_derived")
    own_copy.edit("conf/experiment/toy_bad_derived.yaml", "needs: [toy]", "needs: [toy_bad]")
    side.kill("toy", 5)  # as the kernel does when the memory is full
    command = ("reproduce.py", "--jobs", "2", "scale=cpu", "tracking=disabled", f"results={results}")
    assert own_copy.run("attnrepro", "experiment=toy", "params.point=2", *command[3:], side=side).code == 0
    done = own_copy.run(*command, side=side)
    assert done.code == 1, done.err
    assert "Traceback" not in done.err, done.err

    closing = "\n".join(end_of(done.err))
    assert "toy: 3 ran, 1 reused, 2 failed or not run" in closing, "one was killed with the cells left to it"
    assert "params.point=5: not run" in closing
    assert "a worker of toy ended with code -9" in done.err
    assert "toy_bad: 0 ran, 0 reused, 6 failed or not run" in closing
    for point in range(1, 7):
        assert f"params.point={point}: failed RuntimeError: point {point} fails as asked" in closing
    assert "toy_bad_derived: not run, toy_bad_derived reads the rows of toy_bad, and there are none" in closing
    assert "toy_derived: 1 ran, 0 reused, 0 failed or not run" in closing
    assert "toy_training: 1 ran, 0 reused, 0 failed or not run" in closing
    assert "toy_timing: 2 ran, 0 reused, 0 failed or not run" in closing
    assert end_of(done.err)[-1].startswith("ended with exit code 1 in")

    spans = {
        (e.table, e.point): (e.time, next(x.time for x in side.events("end") if x.key == e.key))
        for e in side.events("start")
        if e.key in {x.key for x in side.events("end")}
    }
    for point in ("1", "2"):
        start, end = spans["toy_timing", point]
        others = [span for cell, span in spans.items() if cell != ("toy_timing", point)]
        assert all(other_end <= start or end <= other_start for other_start, other_end in others)

    # The next run does what is left, and nothing else.
    (side.folder / "die-toy-5").unlink()
    before = rows_of(results, "toy")
    side.forget()
    again = own_copy.run("reproduce.py", "toy", *command[3:], side=side)
    assert again.code == 0, again.err
    assert "toy: 2 ran, 4 reused, 0 failed or not run" in again.err
    assert side.starts() == {"5": 1, "6": 1}
    assert before.items() <= rows_of(results, "toy").items()
