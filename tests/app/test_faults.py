"""What goes wrong in real use: failing jobs, kills, two at once, full disks, code that changed, other folders."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .test_tracking import leaves, read_run
from .toy import NEEDS_PROC, Copy, Inside, Side, cells, counted, finish, rows_of, snapshot, until, waits_for_a_cell

TOY = ("attnrepro", "experiment=toy", "scale=smoke")


def wandb_runs(results: Path) -> dict[str, Path]:
    """Folders of the offline runs by run id, which begins with the cell's key."""
    folders = [path for path in (results / "wandb").glob("offline-run-*") if path.is_dir()]
    runs = {path.name.rsplit("-", 1)[1]: path for path in folders}
    assert len(runs) == len(folders), "two runs share an id"
    return runs


def keys_by_point(side: Side) -> dict[str, str]:
    return {event.point: event.key for event in side.events("start")}


def no_lock_is_held(results: Path) -> None:
    locks = list((results / "runs").glob("*/*.lock"))
    assert locks
    for path in locks:
        with path.open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- one run a job, and how it ended ---


@pytest.mark.slow
def test_three_jobs_are_three_wandb_runs_where_they_were_asked_for(toy_copy: Copy, tmp_path: Path) -> None:
    """C1, C9, C14, C15."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "experiments").mkdir(parents=True)  # a folder of that name must not get in the way
    (elsewhere / "conf").mkdir()
    done = toy_copy.run(
        *("attnrepro", "-m", "experiment=toy", "scale=smoke", "seeds=[0],[1],[2]", "params.point=1"),
        *("tracking=offline", "results=./out"),
        cwd=elsewhere,
    )
    assert done.code == 0, done.err
    assert "toy: 3 ran, 0 reused, 0 failed" in done.err
    results = elsewhere / "out"
    assert sorted(path.name for path in elsewhere.iterdir()) == ["conf", "experiments", "out"]
    keys = cells(results, "toy")
    runs = wandb_runs(results)
    assert len(keys) == len(runs) == 3
    assert {run_id[:12] for run_id in runs} == set(keys)
    assert not list(results.rglob("wandb-summary.json")), "which nothing of ours may need"
    for run_id, folder in runs.items():
        saved = read_run(folder)
        assert (saved.exit_code, saved.group, saved.config["key"]) == (0, "toy", run_id[:12])
        assert saved.config["params"]["n"] == 40
        for leaf in leaves(saved.config):
            assert leaf is None or type(leaf) in (bool, int, float, str)
            assert "${" not in str(leaf)
    assert sorted(read_run(folder).config["seeds"] for folder in runs.values()) == [[0], [1], [2]]


@pytest.mark.slow
def test_failing_jobs_are_listed_logged_and_recorded_as_failed(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    """C2 and C3: jobs 2 and 4 of 5 fail."""
    results = tmp_path / "results"
    sweep = (*TOY, "params.point=1,2,3,4,5", "params.fail=[2,4]", "tracking=offline", f"results={results}")
    done = toy_copy.run(*sweep, side=side)
    assert done.code == 1
    keys = keys_by_point(side)
    assert set(cells(results, "toy")) == {keys[point] for point in "135"}
    closing = done.err[done.err.index("toy: 3 ran, 0 reused, 2 failed or not run") :].splitlines()[1:]
    assert len(closing) == 2
    for line, point in zip(closing, "24", strict=True):
        log = results / "runs" / "toy" / keys[point] / "job.log"
        assert f"params.point={point}" in line
        assert line.endswith(f": failed RuntimeError: point {point} fails as asked ({log})")
        logged = log.read_text()
        assert logged.count("Traceback (most recent call last)") == 1
        assert f"RuntimeError: point {point} fails as asked" in logged
        assert "measure.py" in logged
        failure = json.loads(log.with_name("failed.json").read_text())
        assert failure["error"] == f"RuntimeError: point {point} fails as asked"
        assert "measure.py" in "".join(failure["traceback"])
    codes = {run_id[:12]: read_run(folder).exit_code for run_id, folder in wandb_runs(results).items()}
    assert codes == {keys[point]: int(point in "24") for point in "12345"}
    no_lock_is_held(results)


@pytest.mark.slow
@NEEDS_PROC
@pytest.mark.parametrize(
    ("table", "point", "number"), [("toy", 3, signal.SIGTERM), ("toy_training", "-", signal.SIGINT)]
)
def test_an_interrupted_cell_leaves_nothing_half_done(
    table: str, point: object, number: signal.Signals, toy_copy: Copy, side: Side, tmp_path: Path
) -> None:
    """C2: in the middle of a test, and of a fit."""
    results = tmp_path / "results"
    side.hold(table, point)
    command = ("attnrepro", f"experiment={table}", "scale=smoke", "tracking=offline", f"results={results}")
    process = toy_copy.start(*command, side=side)
    until(lambda: side.events("held") or process.poll() is not None, "the cell is in flight")
    (held,) = side.events("held")
    finished = {key: snapshot(folder) for key, folder in cells(results, table).items()}
    assert len(finished) == (2 if table == "toy" else 0)
    process.send_signal(number)
    done = finish(process)
    assert done.code == 130, done.err
    assert "interrupted; finished cells are kept" in done.err
    assert "Traceback" not in done.err, done.err
    assert {key: snapshot(folder) for key, folder in cells(results, table).items()} == finished
    names = {path.name for path in (results / "runs" / table).iterdir() if path.suffix != ".lock"}
    assert names == set(finished), "not even a folder of the cell in flight"
    no_lock_is_held(results)
    codes = {run_id[:12]: read_run(folder).exit_code for run_id, folder in wandb_runs(results).items()}
    assert codes == dict.fromkeys(finished, 0) | {held.key: 130}
    until(lambda: not side.processes(), "the end of its processes", 10)


# --- kill, rerun, reuse ---


@pytest.fixture(scope="module")
def uninterrupted(toy_copy: Copy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a run of all toy tables that nothing befell; not to be changed."""
    results = tmp_path_factory.mktemp("uninterrupted") / "results"
    command = ("reproduce.py", "toy", "toy_training", "toy_derived", "scale=cpu", "tracking=disabled")
    done = toy_copy.run(*command, f"results={results}")
    assert done.code == 0, done.err
    return results


@pytest.mark.slow
def test_a_killed_sweep_is_resumed_and_ends_as_if_nothing_had_been(
    toy_copy: Copy, uninterrupted: Path, side: Side, tmp_path: Path
) -> None:
    """C4: kill -9 while cell 3 of 6 is in flight."""
    results = tmp_path / "results"
    settings = ("scale=cpu", "tracking=disabled", f"results={results}")
    side.hold("toy", 3)
    process = toy_copy.start("attnrepro", "experiment=toy", *settings, side=side)
    until(lambda: side.events("held") or process.poll() is not None, "cell 3 is in flight")
    os.killpg(process.pid, signal.SIGKILL)
    finish(process)
    before = {key: snapshot(folder) for key, folder in cells(results, "toy").items()}
    assert len(before) == 2
    side.release()
    side.forget()
    done = toy_copy.run("reproduce.py", "toy", *settings, side=side)
    assert done.code == 0, done.err
    assert "toy: 4 ran, 2 reused, 0 failed" in done.err
    assert side.starts() == {"3": 1, "4": 1, "5": 1, "6": 1}
    assert {key: snapshot(cells(results, "toy")[key]) for key in before} == before
    assert rows_of(results, "toy") == rows_of(uninterrupted, "toy")
    tables = [(root / "tables" / "toy.csv").read_bytes() for root in (results, uninterrupted)]
    assert tables[0] == tables[1]


MODULES = """
import atexit, os, sys
atexit.register(lambda: open(os.environ["TOY_MODULES"], "a").write("\\n".join(sys.modules) + "\\n"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("attnrepro", "experiment=toy"),
        ("reproduce.py", "toy", "toy_training", "toy_derived"),
        ("reproduce.py", "--dry-run", "toy"),
    ],
    ids=["attnrepro", "reproduce", "plan"],
)
def test_a_run_that_is_done_touches_no_file_and_needs_no_torch(
    command: tuple[str, ...], toy_copy: Copy, uninterrupted: Path, tmp_path: Path
) -> None:
    spy = tmp_path / "spy"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(MODULES)
    before = snapshot(uninterrupted)
    done = toy_copy.run(
        *(*command, "scale=cpu", f"results={uninterrupted}"),
        env={"PYTHONPATH": f"{spy}:{toy_copy.root / 'src'}", "TOY_MODULES": str(tmp_path / "modules")},
    )
    assert done.code == 0, done.err
    assert "6 reused" in done.err + done.out
    assert snapshot(uninterrupted) == before
    modules = (tmp_path / "modules").read_text().split()
    assert "attnrepro.app.precheck" in modules
    assert not {"torch", "lightning", "torchmetrics", "wandb"} & set(modules)


@pytest.mark.slow
def test_the_same_cells_in_fresh_processes_are_byte_equal(whole_copy: Copy, tmp_path: Path) -> None:
    """And C9: results relative to the working directory, also for the workers of the runner."""
    tables = ("sqrt_d_entropy", "toy_training")
    found = []
    for number in (1, 2):
        elsewhere = tmp_path / f"from {number}"
        elsewhere.mkdir()
        done = whole_copy.run(
            "reproduce.py", *tables, "scale=smoke", "tracking=disabled", "results=here/results", cwd=elsewhere
        )
        assert done.code == 0, done.err
        assert [path.name for path in elsewhere.iterdir()] == ["here"]
        found.append({table: rows_of(elsewhere / "here" / "results", table) for table in tables})
    assert [len(found[0][table]) for table in tables] == [8, 1]
    assert all(content.count(b"\n") > 1 for rows in found[0].values() for content in rows.values())
    assert found[0] == found[1]


# --- two at once ---


@pytest.mark.slow
@NEEDS_PROC
def test_two_sweeps_at_once_compute_each_cell_once(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    """C5: and the one that waits says so."""
    results = tmp_path / "results"
    side.hold("toy", 1)
    command = (*TOY, "tracking=disabled", f"results={results}")
    sweeps = [toy_copy.start(*command, side=side) for _ in range(2)]
    until(lambda: waits_for_a_cell(results) or any(s.poll() is not None for s in sweeps), "one waits for the other")
    side.release()
    ended = [finish(sweep) for sweep in sweeps]
    assert [done.code for done in ended] == [0, 0], [done.err for done in ended]
    assert side.starts() == dict.fromkeys("123456", 1)
    assert sum(done.err.count(": waiting for another run") for done in ended) >= 1
    counts = [counted("toy", done.err) for done in ended]
    assert [ran + reused for ran, reused, _ in counts] == [6, 6]
    assert sum(ran for ran, _, _ in counts) == 6, "what the other one finished is reused, not run"
    assert len(cells(results, "toy")) == 6


# --- code that changed ---


@pytest.mark.slow
def test_tables_have_the_same_rows_however_often_they_are_made(inside: Inside) -> None:
    """C38: built twice, after the code changed, and after a forced rerun."""
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    inside.build()
    first = inside.table()
    before = snapshot(inside.results)
    inside.build()
    assert snapshot(inside.results) == before

    inside.copy.edit("experiments/toy/measure.py", '"""toy, measured."""', '"""toy, measured: a comment changed."""')
    assert "0 ran, 6 reused, 0" in inside.attnrepro("experiment=toy", "scale=cpu", "stale=rerun").err

    inside.copy.edit("experiments/toy/measure.py", "float(all_of_them.mean())", "float(all_of_them.mean()) + 1e-6")
    kept = inside.attnrepro("experiment=toy", "scale=cpu")
    assert kept.code == 0
    assert "0 ran, 6 reused (6 stale: the code changed since; stale=rerun runs them again), 0 failed" in kept.err
    inside.build()
    stale = inside.table()
    assert [r | {"stale": "false"} for r in stale] == first
    assert {r["stale"] for r in stale} == {"true"}
    assert "REPRODUCED (stale)" in (inside.results / "REPORT.md").read_text()

    rerun = inside.attnrepro("experiment=toy", "scale=cpu", "stale=rerun")
    assert (rerun.code, "6 ran, 0 reused, 0 failed" in rerun.err) == (0, True)
    inside.build()
    fresh = inside.table()
    assert len(fresh) == len(first)
    assert {r["stale"] for r in fresh} == {"false"}
    assert [r["n"] for r in fresh] == [r["n"] for r in first]
    for old, new in zip(first, fresh, strict=True):
        assert float(new["estimate"]) - float(old["estimate"]) == pytest.approx(1e-6, rel=1e-3)
    assert "0 ran, 6 reused, 0 failed" in inside.attnrepro("experiment=toy", "scale=cpu", "stale=rerun").err


def test_a_rerun_that_fails_keeps_what_was_there_and_says_that_it_failed(inside: Inside) -> None:
    assert inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,2").code == 0
    before = rows_of(inside.results, "toy")
    inside.copy.edit("experiments/toy/measure.py", "if p.point in p.fail:", "if p.point == 2:")
    rerun = inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,2", "stale=rerun")
    assert rerun.code == 1
    assert "toy: 1 ran, 0 reused, 1 failed or not run" in rerun.err
    assert "params.point=2: failed RuntimeError: point 2 fails as asked" in rerun.err
    assert rows_of(inside.results, "toy") == before, "point 1 came out the same, point 2 is the old one"
    inside.build()
    assert [(r["point"], r["stale"]) for r in inside.table() if r["n"] != "0"] == [("1", "false"), ("2", "true")]


def test_a_cell_that_failed_runs_again_once_it_can(inside: Inside) -> None:
    inside.copy.edit("experiments/toy/measure.py", "if p.point in p.fail:", "if p.point == 2:")
    assert inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,2").code == 1
    inside.copy.edit("experiments/toy/measure.py", "if p.point == 2:", "if p.point in p.fail:")
    again = inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,2")
    assert again.code == 0
    assert "toy: 1 ran, 1 reused (1 stale" in again.err
    assert not list(inside.results.rglob("failed.json")), "the record of the failure went with it"


# --- the disk ---


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[], None] | None]:
    """A full disk below `folder`: a mount of 1 MiB where that is allowed, else a limit on the size of files.

    Yields what must be called in a process that is to meet it.
    """
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        return
    try:
        yield None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.slow
def test_a_full_disk_fails_the_cell_in_one_sentence_and_the_rest_goes_on(toy_copy: Copy, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk) as limit:
        sweep = (*TOY, "params.point=1,2,3", "params.bulky=[2]", "tracking=disabled", f"results={disk / 'results'}")
        done = toy_copy.run(*sweep, preexec_fn=limit)
        reason = "File too large" if limit else "No space left on device"
        assert done.code == 1, done.err
        assert "toy: 2 ran, 0 reused, 1 failed or not run" in done.err
        line = done.err.splitlines()[-1]
        assert "params.point=2 " in line
        assert reason in line
        assert "Traceback" not in done.err, done.err
        assert len(cells(disk / "results", "toy")) == 2
        assert not list((disk / "results").rglob("*.new")), "the half-written cell gave its room back"
        no_lock_is_held(disk / "results")


def test_results_that_cannot_be_written_are_one_sentence(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    inside.results = tmp_path / "file" / "results"
    done = inside.attnrepro("experiment=toy", "scale=smoke")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith(f"attnrepro: results={inside.results}")
    runner = inside.copy.run("reproduce.py", "toy", "scale=smoke", f"results={inside.results}")
    assert (runner.code, runner.out, runner.err.count("\n")) == (2, "", 1)
    assert runner.err.startswith(f"reproduce: results={inside.results}")


def test_a_cell_whose_lock_cannot_be_written_fails_in_one_sentence(inside: Inside) -> None:
    """As on a disk that is full to the last byte, which the precheck cannot see."""
    (inside.results / "runs").mkdir()
    (inside.results / "runs" / "toy").write_text("in the way")
    done = inside.attnrepro("experiment=toy", "scale=smoke", "params.point=1,2")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert done.err.count("FAILED toy") == 2
    assert "toy: 0 ran, 0 reused, 2 failed or not run" in done.err


def test_the_toy_commands_come_from_the_copy(toy_copy: Copy) -> None:
    """What all of this rests on: code and tables of the copy, not of this repository, are run."""
    done = toy_copy.run("attnrepro", "experiment=sqrt_d_entropy")
    assert done.code == 2
    assert "choices: toy, toy_derived, toy_timing, toy_training" in done.err
