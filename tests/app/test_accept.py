"""Yours and the reference: what `make accept` copies, and how the two stand beside each other in a table."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .toy import Copy, Inside, add_table, cells, read_table, rows_of, snapshot

# Each of these runs tables in a copy of the repository.
pytestmark = pytest.mark.slow

ELSEWHERE = "cpu-Another-torch2.13"


def accept(inside: Inside, table: str = "toy") -> list[str]:
    from attnrepro.app.accept import accept
    from attnrepro.results.store import Store

    inside.refresh()
    return accept(table, Store(inside.results), inside.results / "raw")


def here() -> str:
    from attnrepro.environment import environment

    return environment("cpu")


def reference(inside: Inside, environment: str | None = None, table: str = "toy") -> list[dict[str, str]]:
    """Rows of the committed reference."""
    path = inside.results / "raw" / (environment or here()) / f"{table}.csv"
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def change_rows(path: Path, change: Callable[[dict[str, str]], None]) -> None:
    """Apply a change to the measured rows of a file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["source"] == "measured":
            change(row)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue())


def shift_by(amount: float) -> Callable[[dict[str, str]], None]:
    def change(row: dict[str, str]) -> None:
        row["value"] = repr(float(row["value"]) + amount)

    return change


def level(rows: list[dict[str, str]], point: int, environment: str) -> float:
    (row,) = [r for r in rows if (r["point"], r["environment"], r["variant"]) == (str(point), environment, "")]
    return float(row["estimate"])


def test_only_finished_grid_cells_of_cpu_and_full_are_accepted(inside: Inside) -> None:
    assert inside.attnrepro("experiment=toy", "scale=smoke").code == 0
    assert accept(inside) == []
    assert not (inside.results / "raw").exists()
    assert inside.attnrepro("experiment=toy", "scale=cpu", "params.fail=[2]").code == 1, "off the grid, and one fails"
    assert inside.attnrepro("experiment=toy", "scale=cpu", "params.shift=0.5", "params.point=1").code == 0
    assert accept(inside) == []
    assert not (inside.results / "raw").exists()

    before = set(cells(inside.results, "toy"))
    assert inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,3").code == 0
    on_grid = sorted(set(cells(inside.results, "toy")) - before)
    said = accept(inside)
    assert said == [f"{here()} toy {key}: new" for key in on_grid]
    assert [r["point"] for r in reference(inside) if r["source"] == "measured"] == ["1", "3"], "in the grid's order"
    assert {r["key"] for r in reference(inside)} == set(on_grid)
    assert {r["scale"] for r in reference(inside)} == {"cpu"}
    records = json.loads((inside.results / "raw" / here() / "toy.json").read_text())
    assert set(records) == set(on_grid)
    for key, record in records.items():
        assert record["environment"] == here()
        assert record["config"]["params"]["shift"] == 0.25
        assert record["code"] == json.loads((cells(inside.results, "toy")[key] / "done.json").read_text())["code"]
        assert record["versions"]["torch"]
        assert len(record["accepted"]) == 16
        assert "rows" not in record


def test_a_second_accept_changes_nothing(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=cpu")
    assert len(accept(inside)) == 6
    before = snapshot(inside.results)
    assert accept(inside) == []
    assert snapshot(inside.results) == before


def test_cells_merge_with_the_reference_of_their_own_environment(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=full", "trainer=cpu", "params.point=1,2")
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,2")
    assert len(accept(inside)) == 4
    raw = inside.results / "raw"
    shutil.copytree(raw / here(), raw / ELSEWHERE)
    change_rows(raw / ELSEWHERE / "toy.csv", shift_by(0.1))
    elsewhere = snapshot(raw / ELSEWHERE)
    first = reference(inside)

    # A colleague's clone: the reference is there, the runs are not. One cell comes out differently, one is new.
    shutil.rmtree(inside.results / "runs")
    inside.copy.edit("experiments/toy/measure.py", "float(all_of_them.mean())", "float(all_of_them.mean()) + 1e-3")
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=2,3")
    said = accept(inside)
    changed, new = [key for key, _ in sorted(cells(inside.results, "toy").items(), key=point_of)]
    assert sorted(said) == sorted([f"{here()} toy {changed}: rows changed", f"{here()} toy {new}: new"])
    merged = reference(inside)
    kept = {r["key"] for r in first} - {changed}
    assert len(kept) == 3
    assert [r for r in merged if r["key"] in kept] == [r for r in first if r["key"] in kept]
    assert [(r["scale"], r["point"]) for r in merged if r["source"] == "measured"] == [
        ("cpu", "1"),
        ("cpu", "2"),
        ("cpu", "3"),
        ("full", "1"),
        ("full", "2"),
    ]
    assert snapshot(raw / ELSEWHERE) == elsewhere


def point_of(item: tuple[str, Path]) -> str:
    return str(json.loads((item[1] / "config.yaml").read_text())["params"]["point"])


def test_a_cell_that_stays_keeps_what_it_was_accepted_with(inside: Inside) -> None:
    """A new checksum over a record that somebody changed by hand would make it right."""
    from attnrepro.results.schema import changed_cells, load_records

    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1")
    accept(inside)
    path = inside.results / "raw" / here() / "toy.json"
    (key,) = load_records(path)
    path.write_text(path.read_text().replace('"torch": "', '"torch": "9.'))
    changed = load_records(path)[key]
    shutil.rmtree(inside.results / "runs")
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=2")
    accept(inside)
    assert load_records(path)[key] == changed
    assert [problem.split(":")[0] for problem in changed_cells(path.with_suffix(".csv"), load_records(path))] == [
        f"cell {key}"
    ]
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1")
    accept(inside)
    assert list(changed_cells(path.with_suffix(".csv"), load_records(path))) == []


def test_newer_code_with_the_same_rows_is_said_as_such(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1")
    accept(inside)
    inside.copy.edit("experiments/toy/table.py", 'NAME = "toy"', 'NAME = "to" + "y"')
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1", "stale=rerun")
    (key,) = cells(inside.results, "toy")
    assert accept(inside) == [f"{here()} toy {key}: same rows by newer code"]
    assert accept(inside) == []


def test_cells_that_left_the_grid_are_dropped(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,6")
    accept(inside)
    keys = [key for key, _ in sorted(cells(inside.results, "toy").items(), key=point_of)]
    inside.copy.edit("conf/experiment/toy.yaml", '"1,2,3,4,5,6"', '"1,2,3,4,5"')
    assert accept(inside) == [f"{here()} toy {keys[1]}: dropped, no longer on the grid"]
    assert {r["key"] for r in reference(inside)} == {keys[0]}


def test_a_reference_cell_is_not_a_finished_cell(inside: Inside) -> None:
    from attnrepro.app.precheck import make_plan

    inside.attnrepro("experiment=toy", "scale=cpu")
    accept(inside)
    shutil.rmtree(inside.results / "runs")
    inside.refresh()
    plan = make_plan(["experiment=toy", "scale=cpu", f"results={inside.results}"])
    assert len(plan.to_run) == len(plan.cells) == 6
    done = inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1")
    assert "1 ran, 0 reused" in done.err
    inside.build()
    assert [r["n"] for r in inside.table()] == ["400"] * 6, "and yet the table shows it"


def test_environments_stand_apart(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=cpu")
    accept(inside)
    raw = inside.results / "raw"
    shutil.copytree(raw / here(), raw / ELSEWHERE)
    change_rows(raw / ELSEWHERE / "toy.csv", shift_by(0.01))
    inside.build()
    rows = inside.table()
    assert len(rows) == 12
    assert [r["n"] for r in rows] == ["400"] * 12, "never pooled"
    for point in range(1, 7):
        difference = level(rows, point, ELSEWHERE) - level(rows, point, here())
        assert abs(difference - 0.01) < 1e-9
    assert [r["environment"] for r in rows if r["claim"] == "toy-exact"] == [here(), ELSEWHERE]


def test_your_rows_stand_in_for_the_reference_of_your_environment(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=cpu")
    accept(inside)
    raw = inside.results / "raw"
    shutil.copytree(raw / here(), raw / ELSEWHERE)
    inside.build()
    own = {point: level(inside.table(), point, here()) for point in range(1, 7)}
    for environment in (here(), ELSEWHERE):
        change_rows(raw / environment / "toy.csv", shift_by(0.01))
    shutil.rmtree(cells(inside.results, "toy")[min(cells(inside.results, "toy"))])
    gone = {r["point"] for r in reference(inside) if r["key"] not in cells(inside.results, "toy")}
    inside.build()
    rows = inside.table()
    assert len(gone) == 1
    assert len(rows) == 12
    for point in range(1, 7):
        expected = own[point] + (0.01 if str(point) in gone else 0)
        assert abs(level(rows, point, here()) - expected) < 1e-9
        assert abs(level(rows, point, ELSEWHERE) - own[point] - 0.01) < 1e-9


def test_a_sweep_off_the_grid_is_a_variant_without_verdict(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=cpu")
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1,2", "params.shift=0.5")
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1", "seeds=[7]")
    inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1", "trainer.precision=64-true")
    inside.build()
    rows = inside.table()
    assert [(r["variant"], r["point"]) for r in rows if r["variant"]] == [
        ("precision=64-true", "1"),
        ("seeds=[7]", "1"),
        ("shift=0.5", "1"),
        ("shift=0.5", "2"),
    ]
    for row in rows:
        if row["variant"]:
            assert (row["verdict"], row["claim"], row["published"], row["p"]) == ("", "", "", "")
            assert row["n"] == "400"
    grid = [r for r in rows if not r["variant"]]
    assert [r["point"] for r in grid] == ["1", "2", "3", "4", "5", "6"]
    assert [r["verdict"] for r in grid] == ["REPRODUCED", "WITHIN_NOISE", "", "", "", ""]


def test_scales_stand_apart_and_smoke_is_not_reported(inside: Inside) -> None:
    for scale in ("smoke", "cpu", "full"):
        inside.attnrepro("experiment=toy", f"scale={scale}", "trainer=cpu", "params.point=1")
    inside.build()
    rows = [r for r in inside.table() if r["point"] == "1" and r["n"] != "0"]
    assert [(r["scale"], r["n"]) for r in rows] == [("cpu", "400"), ("full", "800")]


def test_a_timing_cell_at_another_number_of_threads_is_a_variant(inside: Inside) -> None:
    """Its number of threads is in its key, so the two are different measurements."""
    add_table(inside.copy.root, "toy_timing")
    inside.attnrepro("experiment=toy_timing", "scale=cpu")
    inside.attnrepro("experiment=toy_timing", "scale=cpu", "trainer.threads=2")
    assert len(cells(inside.results, "toy_timing")) == 4
    inside.build()
    rows = inside.table("toy_timing")
    assert [r["n"] for r in rows] == ["1"] * 4
    assert [r["variant"] for r in rows if r["variant"]] == ["threads=2", "threads=2"]
    said = accept(inside, "toy_timing")
    assert len(said) == 2, "the grid's own threads alone are the reference"


def test_a_derived_cell_gives_way_to_the_one_from_the_rows_there_are(inside: Inside) -> None:
    """Rows that change and change back: its table follows, and so does the reference."""
    add_table(inside.copy.root, "toy_derived")

    def shown() -> float:
        """The value after toy and toy_derived ran with the code there is, and after it was accepted."""
        assert inside.attnrepro("experiment=toy", "scale=cpu", "stale=rerun").code == 0
        assert inside.attnrepro("experiment=toy_derived", "scale=cpu").code == 0
        values = []
        for own in (True, True, False):  # beside the older reference, beside its own, and the reference alone
            inside.build(own=own)
            (row,) = [r for r in inside.table("toy_derived") if r["quantity"] == "mean_level"]
            assert row["n"] == "2400", "not pooled with what it replaces"
            values.append(float(row["estimate"]))
            accept(inside, "toy_derived")
        assert values == values[:1] * 3
        assert len({r["key"] for r in reference(inside, table="toy_derived")}) == 1
        return values[0]

    right, wrong = "float(all_of_them.mean())", "float(all_of_them.mean()) + 0.01"
    first = shown()
    inside.copy.edit("experiments/toy/measure.py", right, wrong)
    assert shown() == pytest.approx(first + 0.01, abs=1e-6)
    inside.copy.edit("experiments/toy/measure.py", wrong, right)
    assert shown() == first
    assert len(cells(inside.results, "toy_derived")) == 2, "the first one was reused"


def test_the_command(own_copy: Copy, tmp_path: Path) -> None:
    """`make accept` in a repository: the named tables, one sentence for a name that there is not."""
    unknown = own_copy.run("accept.py", "toy", "nope")
    assert unknown.code == 2
    assert unknown.err.startswith("accept: TABLE=nope: there is no such table; choices: toy")
    assert unknown.err.count("\n") == 1
    nothing = own_copy.run("accept.py")
    assert (nothing.code, nothing.err) == (0, "nothing to accept: no finished cell differs from the reference\n")
    assert not (own_copy.root / "results" / "raw").exists()


def test_a_table_that_contradicts_its_own_theory_is_not_accepted(inside: Inside) -> None:
    inside.copy.edit("experiments/toy/table.py", "return p.point + p.shift", "return p.point + 2 * p.shift")
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    done = inside.copy.run("accept.py", "toy", env={"ATTNREPRO_RESULTS": str(inside.results)})
    assert done.code == 1
    assert done.err.count("not accepted: toy") == 3
    assert not (inside.copy.root / "results" / "raw").exists()


def test_reading_back_what_was_accepted_gives_the_rows_of_the_cells(inside: Inside) -> None:
    inside.attnrepro("experiment=toy", "scale=cpu")
    inside.build()
    from_own = inside.table()
    accept(inside)
    raw = {r["key"]: r for r in reference(inside) if r["source"] == "measured"}
    for key, content in rows_of(inside.results, "toy").items():
        own = [r for r in csv.DictReader(io.StringIO(content.decode())) if r["source"] == "measured"]
        assert own == [raw[key]]
    inside.build(own=False)
    assert read_table(inside.results, "toy") == from_own
