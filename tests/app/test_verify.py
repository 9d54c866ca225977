"""`make verify`: a committed repository that fits is passed, and every planted fault is told with its file."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnrepro.environment import environment
from attnrepro.results.rows import read_csv
from attnrepro.results.schema import accepted_digest

from .toy import Copy, Inside, clean_environment, snapshot

# The repository that is checked takes some seconds to make.
pytestmark = pytest.mark.slow

RAW = f"results/raw/{environment('cpu')}"


def problems(checkout: Inside) -> list[str]:
    from attnrepro.app.verify import verify

    checkout.refresh()
    return verify(checkout.copy.root).problems


def raw_lines(root: Path, change: Callable[[list[list[str]]], None], name: str = "toy") -> None:
    """Change the lines, header included, of a file of reference rows."""
    path = root / RAW / f"{name}.csv"
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    change(lines)
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def put(column: str, value: str, line: int = 2) -> Callable[[Path], None]:
    """Write a value into a line of the reference rows of toy, counted as in an editor."""

    def change(lines: list[list[str]]) -> None:
        lines[line - 1][lines[0].index(column)] = value

    return lambda root: raw_lines(root, change)


def records(root: Path, change: Callable[[dict[str, Any]], None], name: str = "toy") -> None:
    """Change the first cell of a file of cells."""
    path = root / RAW / f"{name}.json"
    data = json.loads(path.read_text())
    change(data[min(data)])
    path.write_text(json.dumps(data))


def without_cell(root: Path, scale: str = "cpu") -> None:
    """Take a cell of toy out of rows and cells alike."""
    path = root / RAW / "toy.json"
    data = json.loads(path.read_text())
    gone = min(key for key, cell in data.items() if cell["config"]["scale"] == scale)
    path.write_text(json.dumps({key: cell for key, cell in data.items() if key != gone}))
    raw_lines(root, lambda lines: lines.__setitem__(slice(None), [line for line in lines if line[0] != gone]))


def text(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace the first of a text in a file."""

    def change(root: Path) -> None:
        content = (root / name).read_text()
        assert old in content
        (root / name).write_text(content.replace(old, new, 1))

    return change


def append(name: str, line: str) -> Callable[[Path], None]:
    return lambda root: (root / name).write_text((root / name).read_text() + line)


def test_what_was_accepted_and_reported_is_consistent(checkout: Inside) -> None:
    before = snapshot(checkout.copy.root)
    assert problems(checkout) == []
    shutil.rmtree(checkout.results / "runs")
    assert problems(checkout) == [], "a fresh clone has no rows of its own"
    after = snapshot(checkout.copy.root)
    assert {name: what for name, what in before.items() if not name.startswith("results")} == {
        name: what for name, what in after.items() if not name.startswith("results")
    }
    assert {name for name in before if name not in after and "/runs" not in name} == set()
    assert all(before[name][1] == after[name][1] for name in after)


# The second line of the toy rows is the measured value at point 1, the third its theory.
FAULTS: list[tuple[str, Callable[[Path], Any], list[str]]] = [
    (
        "a digit of a row",
        put("value", "1.3"),
        [f"{RAW}/toy.csv: cell ", "results/tables/toy.csv: line 2 is not", "results/REPORT.md: line "],
    ),
    ("a smoke row", put("scale", "smoke"), [f"{RAW}/toy.csv: line 2: scale smoke is no reference"]),
    (
        "a timing cell of another processor",
        lambda root: records(root, lambda cell: cell.update(processor="Another"), "toy_timing"),
        [f"{RAW}/toy_timing.json: cell "],
    ),
    (
        "another version of torch",
        lambda root: records(root, lambda cell: cell["versions"].update(torch="9.9.9")),
        [f"{RAW}/toy.csv: cell "],
    ),
    (
        "another number of threads",
        lambda root: records(root, lambda cell: cell.update(threads=64), "toy_timing"),
        [f"{RAW}/toy_timing.csv: cell "],
    ),
    (
        "a cell gone from rows and cells",
        without_cell,
        [f"{RAW}/toy.json: the cell at scale cpu with params.point="],
    ),
    (
        "a cell that another one is",
        lambda root: records(root, lambda cell: cell["config"]["params"].update(point=9)),
        [f"{RAW}/toy.json: cell ", f"{RAW}/toy.json: the cell at scale cpu with "],
    ),
    (
        "a file beside the environments",
        lambda root: (root / "results/raw/toy.csv").write_text(""),
        ["results/raw/toy.csv: belongs to no environment"],
    ),
    ("cells gone", lambda root: (root / RAW / "toy.json").unlink(), [f"{RAW}/toy.json: cannot be read"]),
    ("rows gone", lambda root: (root / RAW / "toy.csv").unlink(), [f"{RAW}/toy.json: there is no toy.csv beside it"]),
    (
        "rows of no table",
        lambda root: (root / RAW / "old.csv").write_text(""),
        [f"{RAW}/old.csv: there is no such table"],
    ),
    ("a digit of a table", text("results/tables/toy.csv", "400,0,1", "400,0,2"), ["results/tables/toy.csv: line 2 is"]),
    (
        "a table cut short",
        lambda root: (root / "results/tables/toy.csv").write_text(""),
        ["results/tables/toy.csv: line 1 is not what the rows give (make tables writes it)"],
    ),
    (
        "a table gone",
        lambda root: (root / "results/tables/toy.csv").unlink(),
        ["results/tables/toy.csv: is not there"],
    ),
    (
        "a table of no experiment",
        lambda root: (root / "results/tables/old.csv").write_text(""),
        ["results/tables/old.csv: there is no such table"],
    ),
    ("a report by hand", append("results/REPORT.md", "Well done.\n"), ["results/REPORT.md: line "]),
    ("a README block by hand", text("README.md", "printed values", "good values"), ["README.md: line 4 is not"]),
    (
        "a README without its end",
        text("README.md", "<!-- results:end -->", ""),
        ["README.md: README.md has lost its markers"],
    ),
    (
        "a claim without a line",
        text("results/published/toy.csv", "toy-exact,", "toy-sampling,"),
        ["results/published/toy.csv: claim toy-exact (document 000) is missing"],
    ),
    (
        "a claim in two files",
        append("results/published/not_measured.csv", "toy-trend,too hard\n"),
        ["results/published/toy_training.csv: claim toy-trend also stands in not_measured.csv"],
    ),
    (
        "an id that nobody knows",
        text("results/published/toy.csv", "toy-exact", "toy-exacd"),
        ["results/published/toy.csv: claim toy-exacd is not in results/claims.csv; did you mean toy-exact?"],
    ),
    (
        "a claim of another table",
        text("results/claims.csv", "The first,toy\n", "The first,toy_timing\n"),
        [
            "results/published/toy.csv: claim toy-exact is listed in results/claims.csv for toy_timing",
        ],
    ),
    (
        "a claim listed twice",
        append("results/claims.csv", "toy-exact,000,The first,toy\n"),
        ["results/claims.csv: line 10: claim toy-exact stands here twice"],
    ),
    (
        "a claim without a section",
        text("results/claims.csv", "The fourth", ""),
        ["results/claims.csv: line 8: claim, document and section must not be empty"],
    ),
    (
        "a reason missing",
        text("results/published/not_measured.csv", "nobody knows how", ""),
        ["results/published/not_measured.csv: line 2: a claim id and a reason are needed"],
    ),
    (
        "a published column renamed",
        text("results/published/toy.csv", "margin", "slack"),
        ["results/published/toy.csv: line 1: the columns must be", "results/tables/toy.csv: cannot be made"],
    ),
    (
        "a published axis renamed",
        text("results/published/toy.csv", "claim,point", "claim,place"),
        ["results/published/toy.csv: its axes are place, those of the table point"],
    ),
    (
        "printed values of no table",
        lambda root: (root / "results/published/old.csv").write_text(""),
        ["results/published/old.csv: there is no such table"],
    ),
    (
        "theory that the rows contradict",
        put("value", "7.0", line=3),
        ["results/tables/toy.csv: toy"],
    ),
]


@pytest.mark.parametrize(("plant", "expected"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_a_planted_fault_is_told(checkout: Inside, plant: Callable[[Path], Any], expected: list[str]) -> None:
    shutil.rmtree(checkout.results / "runs")
    plant(checkout.copy.root)
    found = problems(checkout)
    for beginning in expected:
        assert any(problem.startswith(beginning) for problem in found), found


def test_rows_that_were_changed_are_told_on_the_machine_that_made_them_too(checkout: Inside) -> None:
    """Its own rows would stand in for them in the table, which then looks right."""
    put("value", "1.3")(checkout.copy.root)
    assert [p.split(":")[0] for p in problems(checkout)] == [
        f"{RAW}/toy.csv",
        "results/tables/toy.csv",
        "results/REPORT.md",
    ]


def test_a_table_may_answer_claims_that_are_listed_for_none_and_claims_of_its_own(checkout: Inside) -> None:
    """A new table is a YAML, a folder and a file of printed values."""
    text("results/claims.csv", "The first,toy\n", "The first,\n")(checkout.copy.root)
    assert problems(checkout) == []
    listed = checkout.copy.root / "results/claims.csv"
    listed.write_text("".join(line for line in listed.read_text().splitlines(True) if "The first" not in line))
    assert problems(checkout) == []


def test_the_last_bit_of_a_row_that_no_table_shows_is_held_too(checkout: Inside) -> None:
    path = checkout.copy.root / RAW / "toy.csv"
    value = path.read_text().splitlines()[1].split(",")[-2]
    put("value", repr(math.nextafter(float(value), 9.0)))(checkout.copy.root)
    assert [p.split(":")[0] for p in problems(checkout)] == [f"{RAW}/toy.csv"]


def test_the_reference_at_scale_cpu_is_the_whole_grid_and_nothing_else(checkout: Inside) -> None:
    """Long runs at scale full are accepted as they finish."""
    root = checkout.copy.root
    assert checkout.attnrepro("experiment=toy", "scale=full", "trainer=cpu", "params.point=1,3").code == 0
    assert checkout.copy.run("accept.py", "toy").code == 0
    checkout.build(own=False, readme=root / "README.md")
    shutil.rmtree(checkout.results / "runs")
    assert problems(checkout) == []
    grid = root / "conf/experiment/toy.yaml"
    whole = grid.read_text()
    grid.write_text(whole.replace('"1,2,3,4,5,6"', '"1,2,4,5"'))
    off = [p for p in problems(checkout) if "is not on the grid" in p]
    assert [p.rpartition(" ")[2] for p in off] == ["cpu", "cpu", "full"]
    assert all(p.startswith(f"{RAW}/toy.json: cell ") for p in off)
    grid.write_text(whole)
    without_cell(root, "full")
    assert not any("is missing" in p for p in problems(checkout))
    without_cell(root)
    (gone,) = [p for p in problems(checkout) if "is missing" in p]
    assert gone.startswith(f"{RAW}/toy.json: the cell at scale cpu with params.point=")


def test_a_configuration_that_stands_there_twice_is_told(checkout: Inside) -> None:
    path = checkout.copy.root / RAW / "toy.json"
    data = json.loads(path.read_text())
    key = min(data)
    path.write_text(json.dumps(data | {"f" * 12: data[key]}))
    assert f"{RAW}/toy.json: cell {'f' * 12}: has the configuration of cell {key}" in problems(checkout)


def test_all_problems_are_told_at_once(checkout: Inside) -> None:
    chosen = ("a smoke row", "a claim in two files", "a README block by hand", "a claim listed twice")
    for name, plant, _ in FAULTS:
        if name in chosen:
            plant(checkout.copy.root)
    put("seed", "", line=4)(checkout.copy.root)
    found = problems(checkout)
    for start in (f"{RAW}/toy.csv: line 2", f"{RAW}/toy.csv: line 4", "results/claims.csv", "README.md"):
        assert any(p.startswith(start) for p in found), found


def test_claims_without_a_table_are_counted(checkout: Inside) -> None:
    from attnrepro.app.verify import verify

    found = verify(checkout.copy.root)
    assert (found.claims, found.without_table) == (8, 2), "toy-later and toy-nobody; toy-open is in not_measured.csv"


def test_tables_that_show_your_own_rows_too_are_right_but_not_committed(checkout: Inside) -> None:
    from attnrepro.app.verify import verify

    root = checkout.copy.root
    (root / RAW).rename(root / "results/raw/cpu-Another-torch2.13")
    for path in (root / "results/raw/cpu-Another-torch2.13").glob("*.json"):
        data = json.loads(path.read_text())
        for key, cell in data.items():
            rows = [row for row in read_csv(path.with_suffix(".csv")) if row["key"] == key]
            cell["environment"] = "cpu-Another-torch2.13"
            cell["accepted"] = accepted_digest(rows, cell)
        path.write_text(json.dumps(data))
    checkout.build(readme=root / "README.md")
    found = verify(root)
    assert found.problems == []
    assert [note.split(":")[0] for note in found.notes if "your own rows" in note]
    edited = text("results/tables/toy.csv", "REPRODUCED", "SOURCE_ERROR")
    edited(root)
    assert [p.split(":")[0] for p in verify(root).problems] == ["results/tables/toy.csv"]
    checkout.build(readme=root / "README.md")
    shutil.rmtree(root / "results/runs")
    assert "results/tables/toy.csv" in [p.split(":")[0] for p in verify(root).problems], "whoever clones it sees that"


def test_the_command_loads_no_torch(committed: Copy) -> None:
    program = "import sys; from attnrepro.app.verify import main; code = main(); print('torch' in sys.modules, code)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment() | {"PYTHONPATH": str(committed.root / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "False 0\n"
    assert done.stderr.splitlines()[-1].startswith("verify: 0 problems (tables: 4, reference cells: 10)")
    assert committed.run("verify.py", "toy").code == 2


def test_a_problem_is_exit_code_1(checkout: Inside) -> None:
    text("README.md", "printed values", "good values")(checkout.copy.root)
    done = checkout.copy.run("verify.py")
    assert done.code == 1
    assert done.err.startswith("verify: README.md: line 4 is not what the rows give (make tables writes it)\n")
