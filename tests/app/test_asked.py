"""What runners leave on disk of what they were asked to do: while they live, and never in their way."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from attnrepro.app import asked, serve, status
from attnrepro.results import store as stores
from attnrepro.results.store import Store

from .toy import NEEDS_PROC, Copy, Inside, Side, cells, finish, until


def command(results: Path, *words: str) -> tuple[str, ...]:
    return ("reproduce.py", "--jobs", "1", *words, "scale=smoke", "tracking=disabled", f"results={results}")


def left(results: Path) -> list[Path]:
    return sorted((results / "runs" / asked.FOLDER).glob("*"))


def text(results: Path) -> str:
    """Progress of the runners that live, as the server has it."""
    store = Store(results)
    return serve.progress([status.cells_asked(table, c, store) for table, c in asked.asked(store).cells.items()])


@pytest.mark.slow
@NEEDS_PROC
def test_while_a_runner_lives_all_its_tables_count(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    results = tmp_path / "results"
    side.hold("toy", 3)
    side.hold("toy_timing", 1)
    runner = toy_copy.start(*command(results, "toy_derived", "toy_timing"), side=side)
    until(lambda: side.events("held", "toy") or runner.poll() is not None, "a cell in flight")
    now = asked.asked(Store(results))
    assert {table: len(found) for table, found in now.cells.items()} == {"toy": 6, "toy_derived": 1, "toy_timing": 2}
    assert not now.timing
    assert text(results).startswith("2 of 9 cells, 1 running (toy), about ")
    (side.folder / "hold-toy-3").unlink()
    until(lambda: side.events("held", "toy_timing") or runner.poll() is not None, "a cell of a timing table")
    assert asked.asked(Store(results)).timing
    assert text(results).startswith("7 of 9 cells, 1 running (toy_timing)"), "the key of what reads rows is known now"
    side.release()
    assert finish(runner).code == 0
    assert left(results) == []
    assert text(results) == ""


@pytest.mark.slow
@NEEDS_PROC
def test_two_runners_are_summed_and_no_cell_counts_twice(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    results = tmp_path / "results"
    side.hold("toy", 1)
    side.hold("toy_training", "-")
    runners = [toy_copy.start(*command(results, *t), side=side) for t in (("toy",), ("toy_training", "toy"))]
    until(lambda: len(side.events("held")) == 2 or any(r.poll() is not None for r in runners), "two cells in flight")
    assert [path.suffix for path in left(results)] == [".json", ".lock"] * 2
    assert text(results).startswith("0 of 7 cells, 2 running (toy, toy_training)")
    runners[1].send_signal(signal.SIGINT)
    assert finish(runners[1]).code == 130
    assert text(results).startswith("0 of 6 cells, 1 running (toy)")
    side.release()
    assert finish(runners[0]).code == 0
    assert left(results) == []


@pytest.mark.slow
@NEEDS_PROC
def test_what_a_killed_runner_left_counts_no_more_and_the_next_one_takes_it_away(
    toy_copy: Copy, side: Side, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    side.hold("toy", 1)
    runner = toy_copy.start(*command(results, "toy"), side=side)
    until(lambda: side.events("held") or runner.poll() is not None, "a cell in flight")
    runner.kill()
    runner.communicate()
    assert len(left(results)) == 2
    assert text(results) == ""
    side.release()
    until(lambda: not side.processes(), "the end of its worker")
    assert toy_copy.run(*command(results, "toy"), side=side).code == 0
    assert left(results) == []


def test_a_file_of_something_else_is_no_runner(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.runs / asked.FOLDER
    folder.mkdir(parents=True)
    for name, content in (("a", "{"), ("b", "[]"), ("c", '{"cells": {"t": {"k": 3}}, "timing": true}')):
        (folder / f"{name}.json").write_text(content)
    always: Callable[..., bool] = lambda *_: True  # noqa: E731
    store.is_locked = always  # type: ignore[method-assign]
    assert asked.asked(store) == asked.Asked()


@pytest.mark.slow
def test_a_disk_that_takes_nothing_stops_no_run(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnrepro.app.precheck import make_plan

    inside.refresh()
    store = Store(inside.results)
    plans = [make_plan(["experiment=toy", "scale=smoke", f"results={inside.results}"])]
    with asked.told(store) as tell:
        tell(plans, True)
        (path,) = (store.runs / asked.FOLDER).glob("*.json")
        before = path.read_text()
        assert list(json.loads(before)["cells"]["toy"]) == sorted(p.cell.key for p in plans[0].cells)

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(stores.os, "fsync", full)
        tell(plans, False)
        assert path.read_text() == before
        monkeypatch.undo()
    assert left(inside.results) == []
    (inside.results / "runs" / asked.FOLDER).rmdir()
    (inside.results / "runs" / asked.FOLDER).write_text("in the way")
    with asked.told(store) as tell:
        tell(plans, True)


@pytest.mark.slow
def test_a_runner_whose_folder_cannot_be_made_runs_all_the_same(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "runs").mkdir(parents=True)
    (results / "runs" / asked.FOLDER).write_text("in the way")
    done = toy_copy.run(*command(results, "toy"), side=side)
    assert done.code == 0, done.err
    assert len(cells(results, "toy")) == 6
