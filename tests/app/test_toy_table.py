"""A table is added by one YAML, one folder and one published file, and everything else follows."""

from __future__ import annotations

import filecmp
import json
import shutil
from pathlib import Path

import pytest

from .toy import REPOSITORY, TABLES, Copy, Inside, Side, add_table, cells, counted, read_table, rows_of

# Each of these runs tables in a copy of the repository.
pytestmark = pytest.mark.slow

PUBLISHED = "results/published/toy.csv"


def files_below(root: Path) -> set[str]:
    folders = ("conf", "experiments", "src", "scripts", "results/published")
    found = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(root)) for path in found if "__pycache__" not in path.parts}


def verdicts(rows: list[dict[str, str]]) -> dict[str, str]:
    return {claim: r["verdict"] for r in rows if r["claim"] for claim in r["claim"].split(";")}


# --- from YAML to table ---


def test_nothing_but_its_own_files_is_added(whole_copy: Copy) -> None:
    before, after = files_below(REPOSITORY), files_below(whole_copy.root)
    assert after - before == {
        file
        for table in TABLES
        for file in (
            f"conf/experiment/{table}.yaml",
            f"experiments/{table}/table.py",
            f"experiments/{table}/measure.py",
            f"results/published/{table}.csv",
        )
    }
    assert not before - after
    assert not filecmp.cmpfiles(REPOSITORY, whole_copy.root, before, shallow=False)[1]


def test_toys_are_reproduced_beside_the_other_tables(whole_copy: Copy, side: Side, tmp_path: Path) -> None:
    """Acceptance: its row stands in results/tables with its verdict; what it needs ran before it."""
    results = tmp_path / "results"
    done = whole_copy.run(
        "reproduce.py", "toy_derived", "toy_training", "scale=cpu", "tracking=disabled", f"results={results}", side=side
    )
    assert done.code == 0, done.err
    assert "toy: 6 ran, 0 reused, 0 failed" in done.err, "needed, though nobody named it"
    (derived,) = side.events("start", "toy_derived")
    assert max(e.time for e in side.events("end", "toy")) < derived.time
    toy = read_table(results, "toy")
    assert verdicts(toy) == {"toy-exact": "REPRODUCED", "toy-sampling": "WITHIN_NOISE"}
    (row,) = [r for r in toy if r["claim"] == "toy-exact"]
    assert (row["point"], row["n"], row["theory"], row["published"]) == ("1", "400", "1.25", "1.25")
    assert float(row["ci_low"]) < 1.25 < float(row["ci_high"])
    assert verdicts(read_table(results, "toy_derived")) == {"toy-derived": "REPRODUCED"}
    assert verdicts(read_table(results, "toy_training")) == {"toy-trend": "TREND_HOLDS"}
    assert verdicts(read_table(results, "toy_timing")) == {"toy-timing": "NOT_RUN"}
    for table in sorted(path.stem for path in (REPOSITORY / "conf" / "experiment").glob("*.yaml")):
        others = read_table(results, table)
        assert others
        assert set(verdicts(others).values()) <= {"NOT_RUN", "NOT_JUDGED", "CONFIRMED", "CONTRADICTED"}
        assert not (results / "runs" / table).exists()
    report, page = (results / "REPORT.md").read_text(), (results / "dashboard.html").read_text()
    for table in TABLES:
        assert f"`{table}`" in report
        assert table in page


def test_toys_at_smoke_leave_nothing_behind(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = files_below(toy_copy.root)
    done = toy_copy.run("smoke.py", "toy_derived", side=side, env={"TMPDIR": str(scratch)})
    assert done.code == 0, done.err
    assert "toy: 6 ran, 0 reused, 0 failed" in done.err
    assert "toy_derived: 1 ran, 0 reused, 0 failed" in done.err
    assert "smoke passed" in done.err
    assert not list(scratch.glob("attnrepro*")), "torch leaves a folder of its own"
    assert files_below(toy_copy.root) == before
    assert not (toy_copy.root / "results" / "runs").exists()


def test_a_smoke_row_stands_in_the_table_of_the_smoke_run(inside: Inside) -> None:
    from attnrepro.app.smoke import smoke

    inside.refresh()
    assert smoke(["toy"], inside.results) == 0
    rows = inside.table()
    assert {r["scale"] for r in rows} == {"smoke"}
    assert [r["n"] for r in rows] == ["40"] * 6
    assert verdicts(rows) == {"toy-exact": "REPRODUCED", "toy-sampling": "WITHIN_NOISE"}
    assert (inside.results / "dashboard.html").is_file()


def test_smoke_fails_when_a_table_measures_nothing(inside: Inside) -> None:
    from attnrepro.app.smoke import smoke

    inside.copy.edit("experiments/toy/measure.py", 'tell("end", self.cell, p.point)', "rows.clear()")
    inside.refresh()
    assert smoke(["toy"], inside.results) == 1
    assert "smoke toy: its table has no measured row" in inside.capture.readouterr().err


def test_smoke_fails_when_a_table_cannot_be_reported(inside: Inside) -> None:
    from attnrepro.app.smoke import smoke

    inside.copy.edit(PUBLISHED, "claim,point,", "claim,pint,")
    inside.refresh()
    assert smoke(["toy"], inside.results) == 1
    assert "['pint'] are not axes of the table" in inside.capture.readouterr().err


def test_smoke_goes_on_after_a_table_that_fails(inside: Inside) -> None:
    from attnrepro.app.smoke import smoke

    add_table(inside.copy.root, "toy_derived")
    add_table(inside.copy.root, "toy_training")
    inside.copy.edit("conf/experiment/toy.yaml", "fail: []", "fail: [1, 2, 3, 4, 5, 6]")
    inside.refresh()
    assert smoke([], inside.results) == 1
    err = inside.capture.readouterr().err
    assert counted("toy", err) == (0, 0, 6)
    assert "toy_derived reads the rows of toy, and there are none at scale smoke" in err
    assert counted("toy_training", err) == (1, 0, 0)


# --- tables made from rows of others ---


def test_a_derived_table_alone_is_refused_before_its_need_ran(inside: Inside, side: Side) -> None:
    add_table(inside.copy.root, "toy_derived")
    inside.refresh()
    sentence = (
        "attnrepro: toy_derived reads the rows of toy, and there are none at scale cpu:"
        " make reproduce TABLE=toy_derived runs both in order\n"
    )
    refused = inside.attnrepro("experiment=toy_derived", "scale=cpu")
    assert (refused.code, refused.out, refused.err) == (2, "", sentence)
    assert not (inside.results / "runs" / "toy_derived").exists()
    # Rows of another scale do not help.
    assert inside.attnrepro("experiment=toy", "scale=smoke").code == 0
    refused = inside.attnrepro("experiment=toy_derived", "scale=cpu")
    assert (refused.code, refused.err) == (2, sentence)


def test_the_key_of_a_derived_table_follows_the_rows_it_reads(inside: Inside) -> None:
    add_table(inside.copy.root, "toy_derived")
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    assert inside.attnrepro("experiment=toy_derived", "scale=cpu").code == 0
    (first,) = cells(inside.results, "toy_derived")
    again = inside.attnrepro("experiment=toy_derived", "scale=cpu")
    assert (again.code, set(cells(inside.results, "toy_derived"))) == (0, {first})
    assert "0 ran, 1 reused" in again.err
    # The same rows by other code, and rows it does not read: still the same key.
    inside.copy.edit("experiments/toy/table.py", 'NAME = "toy"', 'NAME = "to" + "y"')
    assert inside.attnrepro("experiment=toy", "scale=cpu", "stale=rerun").code == 0
    assert inside.attnrepro("experiment=toy", "scale=smoke").code == 0
    assert "0 ran, 1 reused" in inside.attnrepro("experiment=toy_derived", "scale=cpu").err
    # Other rows: another key.
    inside.copy.edit("experiments/toy/measure.py", "float(all_of_them.mean())", "float(all_of_them.mean()) + 1e-9")
    assert inside.attnrepro("experiment=toy", "scale=cpu", "params.point=4", "stale=rerun").code == 0
    assert "1 ran, 0 reused" in inside.attnrepro("experiment=toy_derived", "scale=cpu").err
    assert len(cells(inside.results, "toy_derived")) == 2


def test_a_derived_table_reads_only_what_its_key_covers(inside: Inside) -> None:
    """Rows of another scale, and sweeps off the grid of the table it needs, are none of its business."""
    add_table(inside.copy.root, "toy_derived")
    for arguments in (["scale=smoke"], ["scale=cpu"], ["scale=cpu", "params.shift=5", "params.point=1"]):
        assert inside.attnrepro("experiment=toy", *arguments).code == 0
    assert inside.attnrepro("experiment=toy_derived", "scale=cpu").code == 0
    inside.build()
    mean, count = inside.table("toy_derived")
    assert (count["quantity"], count["estimate"]) == ("rows_read", "6")
    assert (mean["n"], mean["verdict"]) == ("2400", "REPRODUCED")


def test_a_table_from_a_derived_table_reads_its_present_cell_only(inside: Inside) -> None:
    add_table(inside.copy.root, "toy_derived")
    add_table(inside.copy.root, "toy_second", like="toy_derived")
    inside.copy.edit("conf/experiment/toy_second.yaml", "needs: [toy]", "needs: [toy_derived]")
    inside.copy.edit("experiments/toy_second/measure.py", 'inputs["toy"]', 'inputs["toy_derived"]')
    right, wrong = "float(all_of_them.mean())", "float(all_of_them.mean()) + 0.01"
    for old, new in ((right, wrong), (wrong, right), (right, wrong)):
        inside.copy.edit("experiments/toy/measure.py", old, new)
        for table in ("toy", "toy_derived", "toy_second"):
            assert inside.attnrepro(f"experiment={table}", "scale=cpu", "stale=rerun").code == 0
        inside.build()
        first, second = (inside.table(table) for table in ("toy_derived", "toy_second"))
        assert [r["estimate"] for r in second if r["quantity"] == "rows_read"] == ["1"]
        assert second[0]["estimate"] == first[0]["estimate"]
    assert len(cells(inside.results, "toy_derived")) == 2


# --- planted faults ---


@pytest.mark.parametrize(
    ("claim", "right", "wrong", "verdict"),
    [
        ("toy-exact", ",1.25,", ",1.75,", "SOURCE_ERROR"),
        ("toy-sampling", ",2.30,", ",2.90,", "DIFFERS"),
    ],
)
def test_a_wrong_published_number_is_found(claim: str, right: str, wrong: str, verdict: str, inside: Inside) -> None:
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    assert inside.build().problems == []
    before = verdicts(inside.table())
    inside.copy.edit(PUBLISHED, right, wrong)
    assert inside.build().problems == [], "the source's fault, not ours"
    assert verdicts(inside.table()) == before | {claim: verdict}


def test_a_wrong_trend_is_found(inside: Inside) -> None:
    add_table(inside.copy.root, "toy_training")
    inside.copy.edit("experiments/toy_training/measure.py", "lr=0.1", "lr=0.1, maximize=True")
    assert inside.attnrepro("experiment=toy_training", "scale=cpu").code == 0
    inside.build()
    assert verdicts(inside.table("toy_training")) == {"toy-trend": "TREND_FAILS"}


def test_a_wrong_theory_fails_the_table(inside: Inside) -> None:
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    inside.copy.edit("experiments/toy/table.py", "return p.point + p.shift", "return p.point + 1.2 * p.shift")
    assert inside.build().problems == [], "the rows are still those of the right theory"
    inside.copy.edit("experiments/toy/table.py", "1.2 * p.shift", "2 * p.shift")
    rerun = inside.attnrepro("experiment=toy", "scale=cpu", "stale=rerun")
    assert (rerun.code, "6 ran" in rerun.err) == (0, True), "the cells are measured; that they disagree is the table's"
    problems = inside.build().problems
    # Both printed lines, and the Monte Carlo check that also sees the points for which nothing was printed.
    assert len(problems) == 3
    assert all(problem.startswith("toy") for problem in problems)
    assert "toy (" in problems[2]
    assert verdicts(inside.table()) == {"toy-exact": "FAILED", "toy-sampling": "FAILED"}
    done = inside.copy.run("tables.py", env={"ATTNREPRO_RESULTS": str(inside.results)})
    assert (done.code, done.err.count("FAILED toy")) == (1, 3)
    # So does the runner, although it has nothing to run.
    done = inside.copy.run("reproduce.py", "toy", "scale=cpu", "tracking=disabled", f"results={inside.results}")
    assert (done.code, done.err.count("FAILED toy")) == (1, 3)
    assert "0 ran, 6 reused" in done.err


def test_a_theory_that_is_wrong_where_nothing_was_printed_fails_too(inside: Inside) -> None:
    inside.copy.edit(
        "experiments/toy/table.py", "return p.point + p.shift", "return p.point + p.shift * (1 + 2 * (p.point == 5))"
    )
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    (problem,) = inside.build().problems
    assert "Monte Carlo and theory disagree" in problem
    assert "point=5" in problem


def test_failed_seeds_are_counted_and_the_mean_over_survivors_is_marked(inside: Inside) -> None:
    add_table(inside.copy.root, "toy_training")
    assert inside.attnrepro("experiment=toy_training", "scale=cpu").code == 0
    ((_, content),) = rows_of(inside.results, "toy_training").items()
    assert content.decode().count(",failed: diverged\n") == 1
    inside.build()
    (row,) = inside.table("toy_training")
    assert (row["n"], row["n_failed"], row["verdict"]) == ("6", "1", "TREND_HOLDS")
    assert row["note"].startswith("mean over survivors: 1 of 7 runs failed")
    # All of them: no number, and no verdict that pretends there is one.
    shutil.rmtree(inside.results / "runs")
    inside.copy.edit("conf/experiment/toy_training.yaml", "diverging: [4]", "diverging: [0, 1, 2, 3, 4, 5, 6]")
    assert inside.attnrepro("experiment=toy_training", "scale=cpu").code == 0
    inside.build()
    (row,) = inside.table("toy_training")
    assert (row["n"], row["n_failed"], row["estimate"], row["verdict"]) == ("0", "7", "", "NOT_RUN")
    assert "all 7 runs failed" in row["note"]


def test_provenance_stands_beside_every_cell(inside: Inside) -> None:
    """C15 for our own record: plain resolved values, and neither host nor user."""
    import getpass
    import socket

    assert inside.attnrepro("experiment=toy", "scale=cpu", "params.point=1").code == 0
    ((key, folder),) = cells(inside.results, "toy").items()
    run = json.loads((folder / "run.json").read_text())
    assert {"environment", "processor", "threads", "precision", "seeds", "wall_seconds", "command", "versions"} <= set(
        run
    )
    config = (folder / "config.yaml").read_text()
    assert '"n": 400' in config.replace("'", "")
    assert "${" not in config + json.dumps(run)
    assert key == folder.name
    assert socket.gethostname() not in config + json.dumps(run)
    assert f"/{getpass.getuser()}/" not in config + json.dumps(run)


def test_a_list_of_printed_numbers_that_cannot_be_read_is_said_before_anything_runs(inside: Inside) -> None:
    inside.copy.edit("results/published/toy.csv", ",low,high,", ",low,")
    done = inside.attnrepro("experiment=toy", "scale=cpu")
    assert done.code == 2
    assert "toy.csv line 1: the columns must be claim, <axes>, " in done.err and "high is missing" in done.err
    assert cells(inside.results, "toy") == {}


def test_the_fault_of_one_table_hides_no_other(inside: Inside) -> None:
    """An exception in a table's own answer is said, and the other tables are reported."""
    add_table(inside.copy.root, "toy_training")
    for table in ("toy", "toy_training"):
        assert inside.attnrepro(f"experiment={table}", "scale=cpu").code == 0
    broken = "\n\ndef answer(frame):\n    return frame.no_such_column\n"
    path = inside.copy.root / "experiments" / "toy" / "table.py"
    path.write_text(path.read_text() + broken)
    inside.refresh()
    outcome = inside.build()
    assert len(outcome.broken) == 1 and outcome.broken[0].startswith("toy: AttributeError")
    assert inside.table("toy_training")
