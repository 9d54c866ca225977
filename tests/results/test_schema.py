"""Committed rows and cells: what is right is passed, and every planted fault is told with its line."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnrepro.config import Config, TrackingConfig, TrainerConfig, make_cell
from attnrepro.results.schema import (
    accepted_digest,
    changed_cells,
    load_records,
    record_problems,
    recorded_key,
    row_problems,
)
from attnrepro.tables.sqrt_d_entropy.table import Params

PARAMS = Params("draws", 64.0, [16], [True], ["own"], 100, 20, 2, 100, 0, [50])
ENVIRONMENT = "cpu-A-Processor-torch2.13"


def config(**more: Any) -> Config:
    words = {"title": "T", "document": "000", "question": "?", "how_to_read": "so"}
    trainer, tracking = TrainerConfig("cpu", "32-true", 1), TrackingConfig("disabled", "attnrepro")
    return Config("toy", scale="cpu", seeds=[0], params=PARAMS, trainer=trainer, tracking=tracking, **words, **more)


def record(*, inputs: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
    """A cell as `make accept` records it, with the key that it ran under."""
    cell = make_cell(config(**more), accelerator="cpu", hardware="A Processor|A Processor", inputs=inputs)
    fields = {"device_model": "A Processor", "processor": "A Processor", "environment": ENVIRONMENT, "code": "0" * 12}
    return cell.key, {"config": json.loads(json.dumps(cell.science())), "inputs": inputs, **fields}


KEY, RECORD = record()
COLUMNS = ["key", "scale", "source", "seed", "point", "quantity", "statistic", "unit", "n", "sd", "value", "status"]
ROWS = [
    dict(zip(COLUMNS, line.split(","), strict=True))
    for line in (
        f"{KEY},cpu,measured,0,1,level,mean,,400,1.0,1.25,ok",
        f"{KEY},cpu,theory,,1,level,mean,,,,1.25,ok",
        f"{KEY},cpu,measured,0,2,level,mean,,1,,,failed: diverged",
        f"{KEY},cpu,measured,0,3,level,mean,,1,,,not_run: no GPU",
    )
]


def written(folder: Path, rows: list[dict[str, str]], columns: list[str] = COLUMNS) -> Path:
    path = folder / "toy.csv"
    path.write_text("\n".join([",".join(columns), *(",".join(row.values()) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize("more", [{}, {"timing": True}, {"inputs": "1" * 64}, {"timing": True, "inputs": "1" * 64}])
def test_a_recorded_key_is_the_key_that_the_cell_ran_under(more: dict[str, Any]) -> None:
    key, cell = record(**more)
    timing = more.get("timing", False)
    assert recorded_key(cell, timing=timing) == key
    assert list(record_problems("toy", ENVIRONMENT, {key: cell}, timing=timing)) == []
    assert recorded_key(cell, timing=not timing) != key


def test_the_key_is_the_hash_of_what_was_asked_for() -> None:
    text = json.dumps(RECORD["config"], sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == KEY


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda cell: cell["config"]["params"].update(head_dim=65.0), "its configuration hashes to "),
        (lambda cell: cell.update(inputs="1" * 64), "its configuration hashes to "),
        (lambda cell: cell["config"].update(scale="smoke"), "scale smoke is no reference"),
        (lambda cell: cell["config"].update(table="other"), f"it is of table other in {ENVIRONMENT}"),
        (lambda cell: cell.update(environment="cuda-B"), "it is of table toy in cuda-B"),
        (lambda cell: cell.update(code=None), "code None is no version"),
        (lambda cell: cell.pop("code"), "the record lacks 'code'"),
        (lambda cell: cell.pop("inputs"), "the record lacks 'inputs'"),
        (lambda cell: cell.pop("config"), "the record lacks 'config'"),
    ],
)
def test_a_planted_fault_of_a_cell_is_told(change: Callable[[dict[str, Any]], Any], told: str) -> None:
    cell = copy.deepcopy(RECORD)
    change(cell)
    found = list(record_problems("toy", ENVIRONMENT, {KEY: cell}, timing=False))
    assert any(problem.startswith(f"cell {KEY}: {told}") for problem in found), found


def test_rows_as_they_are_written_have_no_problem(tmp_path: Path) -> None:
    assert list(row_problems(written(tmp_path, ROWS), ["point"], {KEY: RECORD})) == []


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("scale", "smoke", "scale smoke is no reference"),
        ("scale", "full", f"scale full is not that of its cell {KEY}"),
        ("source", "guessed", "source 'guessed' is none of measured, theory"),
        ("statistic", "average", "statistic 'average' is none of value, mean,"),
        ("quantity", "", "quantity is empty"),
        ("status", "failed", "status 'failed' is neither ok nor failed: <why> nor not_run: <why>"),
        ("status", "", "status '' is neither ok"),
        ("seed", "", "a measured row needs seed"),
        ("seed", "0.5", "seed=0.5 is not a whole number"),
        ("n", "", "a measured row needs n"),
        ("n", "-4", "n=-4 is not a whole number"),
        ("sd", "-1", "sd=-1 is not a finite number, 0 or more"),
        ("sd", "inf", "sd=inf is not a finite number, 0 or more"),
        ("sd", "wide", "sd=wide is not a finite number, 0 or more"),
        ("value", "1.2.5", "value=1.2.5 is not a finite number"),
        ("value", "nan", "value=nan is not a finite number"),
        ("value", "-inf", "value=-inf is not a finite number"),
        ("value", "", "value= is not a finite number"),
        ("key", "0123456789ab", "there is no cell 0123456789ab in the .json beside it"),
    ],
)
def test_a_planted_fault_of_a_row_is_told(tmp_path: Path, column: str, value: str, told: str) -> None:
    rows = [ROWS[0] | {column: value}, *ROWS[1:]]
    found = list(row_problems(written(tmp_path, rows), ["point"], {KEY: RECORD}))
    assert [problem.startswith(f"line 2: {told}") for problem in found] == [True], found


def test_a_failed_row_may_have_no_value_but_no_wrong_one(tmp_path: Path) -> None:
    rows = [*ROWS[:2], ROWS[2] | {"value": "bad"}, ROWS[3]]
    found = list(row_problems(written(tmp_path, rows), ["point"], {KEY: RECORD}))
    assert found == ["line 4: value=bad is not a number"]


def test_rows_that_repeat_miss_or_have_other_columns_are_told(tmp_path: Path) -> None:
    def told(rows: list[dict[str, str]], columns: list[str] = COLUMNS, **cells: object) -> list[str]:
        return list(row_problems(written(tmp_path, rows, columns), ["point"], {KEY: RECORD, **cells}))

    assert told([*ROWS, ROWS[0] | {"value": "1.26"}]) == ["line 6: repeats line 2"]
    assert told([*ROWS, ROWS[0] | {"seed": "1"}]) == [], "another seed"
    assert told([*ROWS, ROWS[0] | {"more": "x"}]) == ["line 6: 13 values for 12 columns"]
    assert told(ROWS, abc=RECORD) == ["cell abc of the .json beside it has no rows"]
    renamed = [*COLUMNS[:4], "place", *COLUMNS[5:]]
    assert told(ROWS, renamed) == [f"line 1: the columns are {','.join(renamed)} and must be {','.join(COLUMNS)}"]
    assert told(ROWS, COLUMNS[:4] + COLUMNS[5:])[0].startswith("line 1: the columns are ")
    gone = [ROWS[0] | {"key": "abc"}, ROWS[1] | {"key": "abc"}, *ROWS[2:]]
    assert told(gone) == ["line 2: there is no cell abc in the .json beside it"], "each missing cell once"


@pytest.mark.parametrize(("content", "told"), [(None, "cannot be read"), ("{", "cannot be read"), ("[]", "no mapping")])
def test_a_damaged_file_of_cells_is_one_sentence(tmp_path: Path, content: str | None, told: str) -> None:
    path = tmp_path / "toy.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=told):
        load_records(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, cell: rows[0].update(value="1.2500000000000002"),
        lambda rows, cell: rows[0].update(unit="nats"),
        lambda rows, cell: rows.reverse(),
        lambda rows, cell: rows.pop(),
        lambda rows, cell: cell["versions"].update(torch="2.11.0"),
        lambda rows, cell: cell.update(threads=2),
        lambda rows, cell: cell.update(command=["attnrepro"]),
        lambda rows, cell: cell.update(note="new"),
        lambda rows, cell: cell.pop("code"),
        lambda rows, cell: cell.update(accepted="0" * 16),
        lambda rows, cell: cell.pop("accepted"),
    ],
)
def test_nothing_of_an_accepted_cell_can_be_changed(
    tmp_path: Path, change: Callable[[list[dict[str, str]], dict[str, Any]], Any]
) -> None:
    rows, cell = copy.deepcopy(ROWS), copy.deepcopy(RECORD) | {"versions": {"torch": "2.13.0"}, "threads": 1}
    cell["accepted"] = accepted_digest(rows, cell)
    assert list(changed_cells(written(tmp_path, rows), {KEY: cell})) == []
    change(rows, cell)
    (problem,) = changed_cells(written(tmp_path, rows), {KEY: cell})
    assert problem == f"cell {KEY}: its rows or what is recorded of it are not those that were accepted"


def test_another_axis_of_its_table_leaves_an_accepted_cell_alone() -> None:
    assert accepted_digest([row | {"place": ""} for row in ROWS], RECORD) == accepted_digest(ROWS, RECORD)
    assert accepted_digest([row | {"place": "1"} for row in ROWS], RECORD) != accepted_digest(ROWS, RECORD)


def test_a_record_that_is_none_has_its_own_problem(tmp_path: Path) -> None:
    assert list(changed_cells(written(tmp_path, ROWS), {KEY: "x"})) == []
    assert len(list(record_problems("toy", ENVIRONMENT, {KEY: "x"}, timing=False))) == 1
