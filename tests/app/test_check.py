"""`make check`: fresh rows against the reference, byte for byte where that is promised, else by a test."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnrepro.app import check
from attnrepro.environment import environment
from attnrepro.results.store import Store

from .toy import Copy, Inside, cells, clean_environment

# The repository whose rows are compared takes some seconds to make.
pytestmark = pytest.mark.slow

HERE = environment("cpu")
ELSEWHERE = "cpu-Another-torch2.13"
Change = Callable[[dict[str, str]], Any]


def compared(checkout: Inside, *tables: str) -> list[check.Comparison]:
    checkout.refresh()
    results, _ = check.check(tables or ("toy",), Store(checkout.results), checkout.results / "raw")
    return results


def failures(checkout: Inside, table: str = "toy") -> list[str]:
    return compared(checkout, table)[0].failures


def code(checkout: Inside, *tables: str) -> tuple[int, str]:
    checkout.refresh()
    checkout.capture.readouterr()
    return check.main(tables), checkout.capture.readouterr().err


def change(checkout: Inside, edit: Change, *, source: str = "measured", table: str = "toy", where: str = HERE) -> None:
    """Change the first reference row of a source."""
    path = checkout.results / "raw" / where / f"{table}.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    edit(next(row for row in rows if row["source"] == source))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue())


def records(checkout: Inside, edit: Callable[[dict[str, Any]], Any], table: str = "toy", where: str = HERE) -> None:
    """Change every reference cell."""
    path = checkout.results / "raw" / where / f"{table}.json"
    data = json.loads(path.read_text())
    for record in data.values():
        edit(record)
    path.write_text(json.dumps(data))


def elsewhere(checkout: Inside, name: str = ELSEWHERE, *, keep: bool = False) -> None:
    """Let the reference be of another environment, or be there of both."""
    raw = checkout.results / "raw"
    shutil.copytree(raw / HERE, raw / name)
    for path in (raw / name).glob("*.json"):
        records(checkout, lambda record: record.update(environment=name), path.stem, name)
    if not keep:
        shutil.rmtree(raw / HERE)


def shift(standard_errors: float) -> Change:
    """By so many standard errors of the difference of two means of that spread and n."""

    def edit(row: dict[str, str]) -> None:
        error = float(row["sd"]) * math.sqrt(2 / int(row["n"]))
        row["value"] = repr(float(row["value"]) + standard_errors * error)

    return edit


def put(**values: str) -> Change:
    return lambda row: row.update(values)


def test_the_same_rows_are_equal_byte_for_byte(checkout: Inside) -> None:
    results = compared(checkout, "toy", "toy_training", "toy_derived", "toy_timing")
    assert [(r.failures, r.tests, r.done) for r in results] == [([], [], True)] * 4
    assert [r.said for r in results] == [[f"{n} cells byte for byte ({HERE}, scale cpu)"] for n in (6, 1, 1, 2)]
    assert code(checkout) == (0, checkout_said(results, "check: 4 of 4 tables compared, 0 differences\n"))


def checkout_said(results: list[check.Comparison], end: str) -> str:
    by_name = sorted(results, key=lambda r: r.table)
    return "".join(f"{r.table}: {sentence}\n" for r in by_name for sentence in r.said) + end


def test_a_changed_digit_fails_and_is_named(checkout: Inside) -> None:
    before = {}

    def edit(row: dict[str, str]) -> None:
        before.update(row)
        last = row["value"][-1]
        row["value"] = row["value"][:-1] + ("1" if last != "1" else "2")

    change(checkout, edit)
    (failure,) = failures(checkout)
    start = f"cell {before['key']}: measured, seed 0: level mean (point={before['point']}): value is {before['value']},"
    assert failure.startswith(f"{start} in the reference {before['value'][:-1]}")
    exit_code, said = code(checkout, "toy")
    assert exit_code == 1
    assert f"DIFFERS toy: {failure}\n" in said


@pytest.mark.parametrize(
    ("edit", "source", "told"),
    [
        (put(sd="1.5"), "measured", "sd is "),
        (put(n="401"), "measured", "n is 400, in the reference 401"),
        (put(unit="m"), "measured", "unit is , in the reference m"),
        (put(value="1.26"), "theory", "theory, seed none: level mean (point=1): value is 1.25, in the reference 1.26"),
        (put(seed="1"), "measured", "only in "),
        (put(quantity="height"), "theory", "only in "),
    ],
)
def test_every_difference_of_equal_environments_fails(checkout: Inside, edit: Change, source: str, told: str) -> None:
    change(checkout, edit, source=source)
    found = failures(checkout)
    assert found
    assert all(told in failure for failure in found)


def test_rows_in_another_order_fail(checkout: Inside) -> None:
    path = checkout.results / "raw" / HERE / "toy.csv"
    head, first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([head, second, first, *rest]) + "\n")
    (failure,) = failures(checkout)
    assert failure.endswith("the same rows in another order")


def test_times_are_not_compared_but_whether_they_were_taken_is(checkout: Inside) -> None:
    change(checkout, put(value="123.0"), table="toy_timing")
    assert failures(checkout, "toy_timing") == []
    change(checkout, put(status="failed: no clock"), table="toy_timing")
    (failure,) = failures(checkout, "toy_timing")
    assert "status is ok, in the reference failed: no clock" in failure
    change(checkout, put(status="ok", statistic="exact"), table="toy_timing")
    assert len(failures(checkout, "toy_timing")) == 2, "an exact row of it is compared"


@pytest.mark.parametrize(
    "edit",
    [
        *(
            lambda r, p=package: r["versions"].update({p: "0.1"})
            for package in ("torch", "lightning", "numpy", "scipy")
        ),
        lambda record: record.update(python="3.99.1"),
        lambda record: record.update(code="0" * 12),
        lambda record: record.update(threads=7),
        lambda record: record.update(processor="Another"),
        lambda record: record.update(platform="Plan9-x86_64"),
    ],
)
def test_other_versions_of_one_environment_are_compared_by_tests(
    checkout: Inside, edit: Callable[[dict[str, Any]], Any]
) -> None:
    records(checkout, edit)
    change(checkout, shift(1.0))
    (result,) = compared(checkout)
    assert result.failures == []
    assert len(result.tests) == 6
    assert min(test.p for test in result.tests) == pytest.approx(0.32, abs=0.01)


def test_a_package_that_rows_do_not_depend_on_changes_nothing(checkout: Inside) -> None:
    records(checkout, lambda record: record["versions"].update(wandb="0.1"))
    change(checkout, shift(1.0))
    assert len(failures(checkout)) == 1


@pytest.mark.parametrize(("standard_errors", "fails"), [(0, False), (1, False), (-1, False), (5, True), (-5, True)])
def test_another_environment_is_compared_by_tests(checkout: Inside, standard_errors: float, fails: bool) -> None:
    elsewhere(checkout)
    change(checkout, shift(standard_errors), where=ELSEWHERE)
    exit_code, said = code(checkout, "toy")
    assert exit_code == int(fails)
    assert f"6 cells by tests, because machine, versions or code differ ({ELSEWHERE}, scale cpu): 6 tested\n" in said
    assert ("DIFFERS toy: level mean (point=1): " in said) == fails
    assert ("after Holm over 6" in said) == fails


def test_holm_is_over_everything_that_is_compared(checkout: Inside) -> None:
    """A difference that one point alone would show is none among many."""
    elsewhere(checkout)
    change(checkout, shift(3.5), where=ELSEWHERE)
    (result,) = compared(checkout)
    assert result.failures == []
    assert check.ALPHA / 6 < min(test.p for test in result.tests) < check.ALPHA


def test_each_environment_is_compared_unless_your_own_is_there(checkout: Inside) -> None:
    elsewhere(checkout)
    elsewhere_too = "cuda-Third-torch2.13"
    shutil.copytree(checkout.results / "raw" / ELSEWHERE, checkout.results / "raw" / elsewhere_too)
    change(checkout, shift(5.0), where=elsewhere_too)
    (failure,) = failures(checkout)
    assert f", in {elsewhere_too} " in failure
    assert len(compared(checkout)[0].tests) == 12


def test_the_reference_of_your_environment_comes_first(checkout: Inside) -> None:
    elsewhere(checkout, keep=True)
    change(checkout, shift(50.0), where=ELSEWHERE)
    assert failures(checkout) == []
    assert compared(checkout)[0].said == [f"6 cells byte for byte ({HERE}, scale cpu)"]


def test_a_seed_that_failed_here_only_fails(checkout: Inside) -> None:
    """Seed 4 of toy_training diverges; a reference in which another one did as well, or none, tells which is which."""
    elsewhere(checkout)
    assert failures(checkout, "toy_training") == [], "the same seed failed in both"
    path = checkout.results / "raw" / ELSEWHERE / "toy_training.csv"
    text = path.read_text()
    assert text.count(",,failed: diverged") == 1
    path.write_text(text.replace(",,failed: diverged", ",2.5,ok"))
    (failure,) = failures(checkout, "toy_training")
    assert failure == f"gain paired_difference: 7 rows, 1 failed; in {ELSEWHERE} 7, 0 failed"
    path.write_text(text)
    change(checkout, put(value="", status="failed: diverged"), table="toy_training", where=ELSEWHERE)
    assert failures(checkout, "toy_training") == [], "fewer failed here"


def test_seeds_are_compared_over_seeds(checkout: Inside) -> None:
    elsewhere(checkout)
    (result,) = compared(checkout, "toy_training")
    assert [(test.p, test.test) for test in result.tests] == [(1.0, "paired t")]
    path = checkout.results / "raw" / ELSEWHERE / "toy_training.csv"
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"value": row["value"] and repr(float(row["value"]) + 100)} for row in rows)
    assert len(failures(checkout, "toy_training")) == 1


def seeds(checkout: Inside, count: int, machine: Callable[[int], float]) -> None:
    """Give toy_training so many seeds, whose values differ by what ``machine`` says from the reference elsewhere."""
    spread = random.Random(0)
    values = [0.7 + spread.gauss(0, 0.02) for _ in range(count)]
    ((key, folder),) = cells(checkout.results, "toy_training").items()
    reference = checkout.results / "raw" / ELSEWHERE / "toy_training.csv"
    head = reference.read_text().splitlines()[0]
    for path, offset in ((reference, lambda seed: 0.0), (folder / "rows.csv", machine)):
        lines = [
            f"{key},cpu,measured,{i},gain,paired_difference,,1,,{value + offset(i)!r},ok"
            for i, value in enumerate(values)
        ]
        path.write_text("\n".join([head, *lines]) + "\n")
    done = json.loads((folder / "done.json").read_text())
    done["sha256"]["rows.csv"] = hashlib.sha256((folder / "rows.csv").read_bytes()).hexdigest()
    (folder / "done.json").write_text(json.dumps(done))


@pytest.mark.parametrize(("shift_of_all", "fails"), [(0.0, 0), (0.010, 1)])
def test_trained_seeds_are_compared_one_by_one(checkout: Inside, shift_of_all: float, fails: int) -> None:
    """0.010 is half of what the seeds differ by, and ten times what round-off moves them by."""
    elsewhere(checkout)
    noise = random.Random(1)
    seeds(checkout, 64, lambda seed: shift_of_all + noise.gauss(0, 0.001))
    exit_code, said = code(checkout, "toy_training")
    assert f"({ELSEWHERE}, scale cpu): 1 tested seed by seed\n" in said
    assert exit_code == fails
    assert said.count("(paired t) after Holm over 1") == fails


def only(checkout: Inside, keep: str) -> None:
    """One finished cell of toy, as after the command that make why names."""
    for key, folder in cells(checkout.results, "toy").items():
        if key != keep:
            shutil.rmtree(folder)


def first_cell(checkout: Inside) -> str:
    """Key of the cell whose rows stand first in the reference."""
    return (checkout.results / "raw" / HERE / "toy.csv").read_text().splitlines()[1].partition(",")[0]


def test_cells_that_were_not_run_are_counted_and_no_difference(checkout: Inside) -> None:
    only(checkout, first_cell(checkout))
    (result,) = compared(checkout)
    assert (result.failures, len(result.not_run), result.done) == ([], 5, True)
    assert result.said == [f"not run: 5 cells ({HERE}, scale cpu)", f"1 cells byte for byte ({HERE}, scale cpu)"]
    end = "check: 1 of 1 tables compared but for 5 cells not run, 0 differences"
    exit_code, said = code(checkout, "toy")
    assert (exit_code, said.splitlines()[-1]) == (0, end)
    elsewhere(checkout)
    shutil.copytree(checkout.results / "raw" / ELSEWHERE, checkout.results / "raw" / "cuda-Third-torch2.13")
    exit_code, said = code(checkout, "toy")
    assert exit_code == 0
    assert said.splitlines()[-1].startswith(end), "each once, whatever references there are"
    change(checkout, shift(5.0), where=ELSEWHERE)
    assert code(checkout, "toy")[0] == 1, "what was run is compared"


def test_a_fresh_cell_that_the_reference_lacks_is_no_comparison(checkout: Inside) -> None:
    keep = first_cell(checkout)
    only(checkout, keep)
    path = checkout.results / "raw" / HERE / "toy.json"
    path.write_text(json.dumps({key: cell for key, cell in json.loads(path.read_text()).items() if key != keep}))
    exit_code, said = code(checkout, "toy")
    assert (exit_code, said.splitlines()[0]) == (1, f"toy: not run: 5 cells ({HERE}, scale cpu)")


def test_a_point_that_the_reference_has_and_you_lack_fails(checkout: Inside) -> None:
    elsewhere(checkout)
    change(checkout, put(quantity="height"), where=ELSEWHERE)
    assert failures(checkout) == [f"height mean (point=1): in {ELSEWHERE}, not in your rows"]
    change(checkout, put(quantity="level", seed="1"), where=ELSEWHERE)
    assert failures(checkout) == [], "another seed of the same is the same"
    path = checkout.results / "raw" / ELSEWHERE / "toy.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1].replace(",measured,1,", ",measured,2,")]) + "\n")
    assert failures(checkout) == [f"level mean (point=1): 1 rows, 0 failed; in {ELSEWHERE} 2, 0 failed"]


def test_exact_rows_of_another_environment_are_held_to_round_off(checkout: Inside) -> None:
    elsewhere(checkout)
    path = checkout.results / "raw" / ELSEWHERE / "toy_derived.csv"
    text = path.read_text()
    assert text.count("exact,,1,,6.0,ok") == 1
    path.write_text(text.replace("exact,,1,,6.0,ok", "exact,,1,,6.00001,ok"))
    assert failures(checkout, "toy_derived") == [], "32 eps of float32 are 4e-6 of it"
    path.write_text(text.replace("exact,,1,,6.0,ok", "exact,,1,,7.0,ok"))
    assert failures(checkout, "toy_derived") == [f"rows_read exact: 6 (n=1), in {ELSEWHERE} 7 (n=1)"]


def test_nothing_fresh(checkout: Inside) -> None:
    shutil.rmtree(checkout.results / "runs" / "toy")
    exit_code, said = code(checkout)
    # What reads the rows of toy goes with them.
    assert (exit_code, "toy: not run\n" in said, "toy_derived: not run\n" in said) == (0, True, True)
    assert said.endswith("check: 2 of 4 tables compared, 0 differences\n")
    assert code(checkout, "toy")[0] == 1, "it was asked for"
    assert code(checkout, "toy_training", "toy")[0] == 1
    assert code(checkout, "toy_training")[0] == 0
    shutil.rmtree(checkout.results / "runs")
    assert code(checkout)[0] == 1, "a check of nothing is no success"


def test_no_reference(checkout: Inside) -> None:
    shutil.rmtree(checkout.results / "raw")
    exit_code, said = code(checkout, "toy")
    assert exit_code == 1
    assert said.startswith("toy: there is no reference at scale cpu\n")


def test_a_sweep_off_the_grid_is_not_what_is_checked(checkout: Inside) -> None:
    shutil.rmtree(checkout.results / "runs")
    assert checkout.attnrepro("experiment=toy", "scale=cpu", "params.point=1", "params.shift=0.5").code == 0
    assert compared(checkout)[0].said == ["not run"]


def test_stale_cells_are_said(checkout: Inside) -> None:
    checkout.copy.edit("experiments/toy/table.py", 'NAME = "toy"', 'NAME = "to" + "y"')
    (result,) = compared(checkout)
    assert result.failures == []
    assert result.said[:2] == [
        "6 of your cells were made by other code than today's (stale)",
        "6 of the reference cells were made by other code than today's (stale)",
    ]


def test_a_damaged_reference_hides_no_other_table(checkout: Inside) -> None:
    (checkout.results / "raw" / HERE / "toy.json").write_text("{")
    toy, training = compared(checkout, "toy", "toy_training")
    assert [failure.split(":")[0] for failure in toy.failures] == ["cannot be compared"]
    assert (training.failures, training.done) == ([], True)


def test_many_differences_are_counted(checkout: Inside) -> None:
    path = checkout.results / "raw" / HERE / "toy.csv"
    head, *lines = path.read_text().splitlines()
    more = [lines[0].replace(",measured,0,", f",measured,{seed},") for seed in range(1, 41)]
    path.write_text("\n".join([head, *lines, *more]) + "\n")
    exit_code, said = code(checkout, "toy")
    assert exit_code == 1
    assert said.count("DIFFERS toy: cell ") == check.SHOWN
    assert f"DIFFERS toy: and {40 - check.SHOWN} more\n" in said
    assert said.endswith("40 differences\n")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # Seeds 0.1 apart with the draws of each known to 0.001: seeds.
        ([(0.5, 0.1, 10000), (0.6, 0.1, 10000), (0.7, 0.1, 10000)], (0.6, 0.1, 3)),
        # Seeds as near as their draws allow: draws.
        ([(0.5000, 1.0, 100), (0.5001, 1.0, 100)], (0.50005, pytest.approx(1.0, rel=0.01), 200)),
    ],
)
def test_trained_models_count_as_models(rows: list[tuple[float, float, int]], expected: tuple[Any, ...]) -> None:
    lines = [{"value": repr(v), "sd": repr(s), "n": str(n), "status": "ok", "seed": "0"} for v, s, n in rows]
    line = check._estimate(lines, "share")
    assert (pytest.approx(line["estimate"]), pytest.approx(line["sd"]), line["n"]) == expected


def test_the_command_loads_no_torch(committed: Copy) -> None:
    program = "import sys; from attnrepro.app.check import main; code = main([]); print('torch' in sys.modules, code)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment() | {"PYTHONPATH": str(committed.root / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "False 0\n"


def test_an_unknown_table_is_bad_input(committed: Copy) -> None:
    done = committed.run("check.py", "toy", "nope")
    assert done.code == 2
    assert done.err.startswith("check: TABLE=nope: there is no such table; choices: toy")
    assert done.err.count("\n") == 1


def test_files_are_not_touched(committed: Copy) -> None:
    folder = Path(committed.root / "results")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert committed.run("check.py").code == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
