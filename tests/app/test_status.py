"""`make status`: what stands there is what lies on the disk."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .toy import REPOSITORY, Inside

pytestmark = pytest.mark.slow  # the repository of toys takes some seconds to make
CELLS = 6  # of toy at scale cpu


def of(checkout: Inside, table: str = "toy", scale: str = "cpu"):  # type: ignore[no-untyped-def]
    from attnrepro.app.status import plans, status

    checkout.refresh()
    (found,) = status(plans([table], scale, checkout.results), checkout.results)
    return found


def cell_folders(checkout: Inside) -> list[Path]:
    return sorted(path.parent for path in (checkout.results / "runs" / "toy").glob("*/done.json"))


def test_finished_cells_and_verdicts(checkout: Inside) -> None:
    found = of(checkout)
    assert (found.done, found.cells, found.stale, found.seconds_left) == (CELLS, CELLS, 0, 0)
    assert found.verdicts == {"REPRODUCED": 1, "WITHIN_NOISE": 1}
    assert found.newest == max((folder / "done.json").stat().st_mtime for folder in cell_folders(checkout))


def test_open_running_failed_and_not_run_are_told_apart(checkout: Inside) -> None:
    one, two, three, four, *_ = cell_folders(checkout)
    for folder in (one, two, three, four):
        (folder / "done.json").unlink()
    (two / "failed.json").write_text(json.dumps({"error": "ValueError: no"}))
    (three / "failed.json").write_text(json.dumps({"not_run": "no network"}))
    lock = four.parent / f"{four.name}.lock"
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True);"
        " sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        found = of(checkout)
        assert (found.done, found.open, found.failed, found.not_run, found.running) == (CELLS - 4, 1, 1, 1, 1)
        assert found.cells == CELLS
        assert found.seconds_left > 0
    with lock.open("a") as file:  # asking did not take the lock, and its end freed it
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert of(checkout).running == 0


def test_changed_code_is_stale(checkout: Inside) -> None:
    table = checkout.copy.root / "experiments" / "toy" / "measure.py"
    table.write_text(table.read_text() + "\nCHANGED = 1\n")
    os.utime(table, ns=(2**62, 2**62))
    assert of(checkout).stale == CELLS


def test_a_derived_table_without_its_rows_is_open(checkout: Inside) -> None:
    for path in (checkout.results / "runs").glob("*/*/done.json"):
        path.unlink()
    found = of(checkout, "toy_derived")
    assert (found.done, found.open, found.problem) == (0, found.cells, "")


def test_a_plan_made_before_a_cell_was_finished_sees_it(checkout: Inside) -> None:
    from attnrepro.app.status import plans, status

    checkout.refresh()
    one = cell_folders(checkout)[0]
    done = (one / "done.json").read_text()
    (one / "done.json").unlink()
    old = plans(["toy"], "cpu", checkout.results)
    assert status(old, checkout.results)[0].done == CELLS - 1
    (one / "done.json").write_text(done)
    assert status(old, checkout.results)[0].done == CELLS


def test_ages() -> None:
    from attnrepro.app.status import age

    assert [age(s) for s in (0, 59.4, 60, 3599, 7200, 86400 * 3)] == ["0 s", "59 s", "1 min", "60 min", "2 h", "3 d"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["tyo"], "TABLE=tyo: there is no such table"), (["--scale", "huge"], "SCALE=huge must be one of auto, smoke")],
)
def test_bad_input_is_one_sentence(
    checkout: Inside, arguments: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from attnrepro.app.status import main

    assert main(arguments) == 2
    err = capfd.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_off_a_terminal_it_is_plain_text(checkout: Inside) -> None:
    from attnrepro.app.status import render

    text = render([of(checkout)], now=of(checkout).newest + 120)
    assert "\x1b" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("toy ")]
    assert row.split()[:6] == ["toy", "cpu", str(CELLS), str(CELLS), "2", "min"]
    assert row.rstrip().endswith("2 hold")


def test_a_table_that_only_the_reference_has_says_so_instead_of_an_age(checkout: Inside) -> None:
    from attnrepro.app.status import render

    assert "Age ref" not in render([of(checkout)], now=of(checkout).newest)
    shutil.rmtree(checkout.results / "runs")
    found = of(checkout)
    assert (found.newest, found.reference) == (0, True)
    row, *_, said = render([found], now=0.0).splitlines()[1:]
    assert row.split() == ["toy", "cpu", str(CELLS), "0", *row.split()[4:6], "ref", "2", "hold"]
    assert said == "Age ref: nothing here, only the reference, which records no date."
    assert not of(checkout, scale="full").reference, "the reference has no row of that scale"


def test_cells_that_a_runner_was_asked_for(checkout: Inside) -> None:
    from attnrepro.app.status import cells_asked
    from attnrepro.results.store import Store

    one, two, *_ = cell_folders(checkout)
    (two / "done.json").unlink()
    (two / "failed.json").write_text(json.dumps({"error": "ValueError: no"}))
    cells = {one.name: (5.0, ""), two.name: (7.0, ""), "nothing": (9.0, "")}
    found = cells_asked("toy", cells, Store(checkout.results))
    assert (found.done, found.failed, found.open, found.seconds_left, found.asked) == (1, 1, 1, 16.0, True)
    again = cells_asked("toy", {one.name: (5.0, "othercode")}, Store(checkout.results))
    assert (again.done, again.open) == (0, 1), "stale, and to be run again"


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from attnrepro.app import status;"
        " print([m for m in ('torch', 'lightning', 'wandb', 'pandas', 'rich') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
    )
    assert done.stdout.strip() == "[]"
