"""Tables on image sets: the group `data`, keys, and cells whose data cannot be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnrepro.app.precheck import make_plan
from attnrepro.config import BadInput, DataConfig
from attnrepro.results.store import Store

from .toy import Copy, Inside, add_table, cells, counted, read_table

YAML = "conf/experiment/toy.yaml"
MEASURE = "experiments/toy/measure.py"
HUB = ["data=hub", "data.path=owner/name"]
REVISION = "data.revision=" + "0a" * 20
# Keys of cells as they were before there were any image sets: the first of each table at scales cpu and smoke.
BEFORE = {
    "sqrt_d_entropy": ("f790d91ac50b", "04cc05d064f3"),
    "position_strength": ("dd0f006e2a36", "8601071de2bd"),
    "permutation_symmetry": ("5ca09367e45b", "14ee951bbd47"),
}


def with_images(copy: Copy, name: str = "digits") -> None:
    """Turn the table toy into one that is measured on images."""
    copy.edit(YAML, "# @package _global_\n", f"# @package _global_\ndefaults:\n  - override /data: {name}\n")
    copy.edit(
        MEASURE,
        "return Job(Draws(cell), batches(range(BATCHES * len(cell.seeds))))",
        "draws = Draws(cell)\n    draws.data_sha256 = images(cell)\n    "
        "return Job(draws, batches(range(BATCHES * len(cell.seeds))))\n\n\n"
        'def images(cell):\n    if Path(__file__).with_name(f"absent-{cell.params.point}").exists():\n'
        '        raise DataUnavailable("no images today")\n    return load(cell.data).sha256',
    )
    copy.edit(
        MEASURE,
        "from attnrepro.data.streams import generator\n",
        "from attnrepro.data.images import load\nfrom attnrepro.data.streams import generator\n"
        "from attnrepro.fetch.download import DataUnavailable\n",
    )


def absent(copy: Copy, *points: int) -> list[Path]:
    """Let the data of these points be nowhere, until the files are removed."""
    marks = [copy.root / "experiments" / "toy" / f"absent-{point}" for point in points]
    for mark in marks:
        mark.touch()
    return marks


@pytest.fixture
def imaged(inside: Inside) -> Inside:
    """A table on digits."""
    with_images(inside.copy)
    return inside


def verdicts(inside: Inside) -> dict[str, tuple[str, str]]:
    return {row["claim"]: (row["verdict"], row["note"]) for row in inside.table() if row["claim"]}


# --- keys ---


@pytest.mark.parametrize("table", BEFORE)
def test_tables_without_images_keep_their_keys(table: str) -> None:
    for scale, key in zip(("cpu", "smoke"), BEFORE[table], strict=True):
        plan = make_plan([f"experiment={table}", f"scale={scale}", "trainer=cpu"])
        assert plan.cells[0].cell.key == key
        assert all("data" not in planned.cell.science() for planned in plan.cells)


def key(inside: Inside, *overrides: str) -> str:
    inside.refresh()
    (planned,) = make_plan(["experiment=toy", "scale=smoke", "hydra.mode=RUN", *overrides]).cells
    return planned.cell.key


def test_what_can_change_the_images_is_in_the_key_and_where_they_lie_is_not(imaged: Inside, tmp_path: Path) -> None:
    hub = [*HUB, REVISION]
    different = [
        [],
        ["data=fashion_mnist"],
        ["data=cifar10"],
        ["data=cifar100"],
        ["data=cifar10", REVISION],
        hub,
        [*hub, "data.path=owner/other"],
        [*hub, "data.revision=" + "0b" * 20],
        [*hub, "data.label_column=fine"],
        [*hub, "data.image_column=img"],
        [*hub, "data.train_split=training"],
        [*hub, "data.test_split=validation"],
    ]
    assert len({key(imaged, *overrides) for overrides in different}) == len(different)
    for overrides in (["data=fashion_mnist"], hub):
        assert key(imaged, *overrides, f"data.root={tmp_path}", "data.deadline=5") == key(imaged, *overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data=fashon_mnist"], "data=fashon_mnist: there is no such data; did you mean fashion_mnist?"),
        (["data=digits,fashon_mnist"], "data=fashon_mnist: there is no such data; did you mean fashion_mnist?"),
        (["data.name=mnist"], "data.name=mnist must be one of none, digits, fashion_mnist"),
        (["data=fashion_mnist", "data.root=/not/there"], "data.root=/not/there: there is no such folder"),
        (["data=fashion_mnist", "data.root="], "data.root= is empty"),
        (["data=fashion_mnist", "data.deadline=0"], "data.deadline=0 must lie between 1 and 86400"),
        (["data=fashion_mnist", "data.deadline=5,6"], "data.deadline cannot be swept"),
        (["data=digits", "data.rot=x"], "unknown key data.rot"),
        (["data=hub"], "data.path=null must name a set of the Hugging Face hub, as in owner/name"),
        (["data=hub", "data.path=a/b/c"], "data.path=a/b/c must name a set"),
        (HUB, "data.revision=null must be the 40 hex digits of a commit of owner/name, unless root names a folder"),
        ([*HUB, "data.revision=main"], "data.revision=main must be the 40 hex digits"),
        (
            [*HUB, REVISION, "data.label_column=null"],
            "data.label_column=null must be the name that owner/name gives it",
        ),
    ],
)
def test_bad_input_is_one_sentence(imaged: Inside, overrides: list[str], said: str) -> None:
    done = imaged.attnrepro("experiment=toy", "scale=smoke", *overrides)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_images_for_a_table_that_looks_at_none_are_refused(inside: Inside) -> None:
    for override in ("data=digits", "data.root=/", "data=digits,fashion_mnist"):
        with pytest.raises(BadInput, match=rf"{override}: toy is not measured on images of a data set"):
            make_plan(["experiment=toy", "scale=smoke", override])


def test_a_local_folder_needs_no_revision(tmp_path: Path) -> None:
    columns = {"train_split": "train", "test_split": "test", "image_column": "image", "label_column": "label"}
    data = DataConfig("hub", path="mine", root=str(tmp_path), **columns)  # type: ignore[arg-type]
    assert data.science() == {"name": "hub", "path": "mine", **columns}


# --- cells on images ---


def test_the_checksum_of_the_images_is_recorded(imaged: Inside) -> None:
    from attnrepro.data.images import load

    done = imaged.attnrepro("experiment=toy", "scale=smoke", "params.point=1")
    assert done.code == 0, done.err
    (folder,) = cells(imaged.results, "toy").values()
    assert json.loads((folder / "run.json").read_text())["data_sha256"] == load(DataConfig("digits")).sha256
    assert json.loads((folder / "config.yaml").read_text())["data"] == {"name": "digits"}


def test_a_table_that_does_not_say_what_it_was_measured_on_fails(imaged: Inside) -> None:
    imaged.copy.edit(MEASURE, "draws.data_sha256 = images(cell)", "images(cell)")
    done = imaged.attnrepro("experiment=toy", "scale=smoke", "params.point=1")
    assert done.code == 1
    assert "toy is measured on digits, but its module has no data_sha256" in done.err


def test_two_sets_are_two_cells_and_one_off_the_grid_is_a_variant(imaged: Inside, tmp_path: Path) -> None:
    sweep = ("experiment=toy", "scale=cpu", "data=digits,fashion_mnist", "params.point=1", f"data.root={tmp_path}")
    done = imaged.attnrepro(*sweep)
    assert done.code == 1
    assert counted("toy", done.err) == (1, 0, 1)
    assert "toy: 1 cells not run, fashion_mnist:" in done.err
    imaged.copy.edit(MEASURE, "load(cell.data).sha256", '"made up"')
    assert imaged.attnrepro(*sweep).code == 0
    imaged.build()
    assert {row["variant"] for row in imaged.table() if row["n"] != "0"} == {"", "data=fashion_mnist"}


def test_sets_may_be_an_axis_of_the_grid(imaged: Inside) -> None:
    imaged.copy.edit(
        YAML, 'params: {params.point: "1,2,3,4,5,6"}', 'params: {params.point: "1,2", data: "digits,cifar10"}'
    )
    imaged.refresh()
    plan = make_plan(["experiment=toy", "scale=cpu"])
    found = {(p.cell.params.point, p.cell.data.name, p.cell.data.image_column) for p in plan.cells}
    assert found == {(point, *data) for point in (1, 2) for data in (("digits", None), ("cifar10", "img"))}
    assert {p.cell.data.name for p in make_plan(["experiment=toy", "scale=cpu", "data=cifar100"]).cells} == {"cifar100"}


# --- without data ---


def test_a_cell_without_its_data_is_not_run_and_the_others_are(imaged: Inside) -> None:
    absent(imaged.copy, 2)
    done = imaged.attnrepro("experiment=toy", "scale=cpu")
    assert done.code == 1, "not everything that was asked for is there"
    assert counted("toy", done.err) == (5, 0, 1)
    assert "FAILED" not in done.err
    assert done.err.rstrip().endswith("toy: 1 cells not run, no images today")
    store = Store(imaged.results)
    assert len(store.finished("toy")) == 5
    (note,) = store.failures("toy")
    assert note["not_run"] == "no images today"
    imaged.build()
    assert verdicts(imaged)["toy-exact"][0] == "REPRODUCED"
    assert verdicts(imaged)["toy-sampling"] == ("NOT_RUN", "no images today; from 100 draws")
    assert "**Not run.** No images today." in (imaged.results / "REPORT.md").read_text()


def test_it_is_tried_again_and_then_nothing_is_left_of_the_reason(imaged: Inside) -> None:
    (mark,) = absent(imaged.copy, 2)
    assert imaged.attnrepro("experiment=toy", "scale=cpu").code == 1
    assert counted("toy", imaged.attnrepro("experiment=toy", "scale=cpu").err) == (0, 5, 1)
    mark.unlink()
    done = imaged.attnrepro("experiment=toy", "scale=cpu")
    assert (done.code, counted("toy", done.err)) == (0, (1, 5, 0))
    assert Store(imaged.results).failures("toy") == []
    imaged.build()
    assert verdicts(imaged)["toy-sampling"][0] == "WITHIN_NOISE"
    assert "Not run" not in (imaged.results / "REPORT.md").read_text()


def test_a_table_of_which_nothing_ran_says_so_everywhere(imaged: Inside) -> None:
    absent(imaged.copy, 1, 2, 3, 4, 5, 6)
    assert imaged.attnrepro("experiment=toy", "scale=cpu").code == 1
    imaged.build()
    found = verdicts(imaged)
    assert {word for word, _ in found.values()} == {"NOT_RUN"}
    assert all(note.startswith("no images today") for _, note in found.values())
    report = (imaged.results / "REPORT.md").read_text()
    assert "| not run: no images today | 2 NOT_RUN |" in report
    assert "2 printed values and claims: 2 NOT_RUN." in report


def test_rows_of_the_reference_are_shown_where_nothing_ran_here(imaged: Inside) -> None:
    """A machine without the data must not blot out what another one measured."""
    from attnrepro.app.accept import accept

    assert imaged.attnrepro("experiment=toy", "scale=cpu").code == 0
    raw = imaged.copy.root / "results" / "raw"
    accept("toy", Store(imaged.results), raw)
    (here,) = raw.iterdir()
    here.rename(raw / "cpu-another-torch2.13")
    absent(imaged.copy, 1, 2, 3, 4, 5, 6)
    imaged.results = imaged.results.with_name("other")
    assert imaged.attnrepro("experiment=toy", "scale=cpu").code == 1
    imaged.build(raw=raw)
    by_environment = {(r["environment"], r["claim"]): r["verdict"] for r in imaged.table() if r["claim"]}
    assert by_environment["cpu-another-torch2.13", "toy-exact"] == "REPRODUCED"
    assert sorted(by_environment.values()) == ["NOT_RUN", "NOT_RUN", "REPRODUCED", "WITHIN_NOISE"]
    assert "1 REPRODUCED, 1 WITHIN_NOISE" in (imaged.results / "REPORT.md").read_text()


def test_no_run_is_opened_for_a_cell_without_its_data(imaged: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    from attnrepro.app import tracking

    monkeypatch.setattr(tracking, "track", lambda *a, **k: pytest.fail("a run was opened"))
    absent(imaged.copy, 1)
    done = imaged.attnrepro("experiment=toy", "scale=smoke", "params.point=1")
    assert "toy: 1 cells not run, no images today" in done.err


def test_smoke_goes_on_without_data_and_says_so(imaged: Inside) -> None:
    from attnrepro.app.smoke import smoke

    absent(imaged.copy, 1, 2, 3, 4, 5, 6)
    add_table(imaged.copy.root, "toy_training")
    imaged.refresh()
    assert smoke([], imaged.results) == 0
    err = imaged.capture.readouterr().err
    assert "toy: 6 cells not run, no images today" in err
    assert counted("toy_training", err) == (1, 0, 0)


def test_smoke_still_fails_where_another_cell_fails(imaged: Inside) -> None:
    from attnrepro.app.smoke import smoke

    absent(imaged.copy, 1, 2)
    imaged.copy.edit(YAML, "fail: []", "fail: [3]")
    imaged.refresh()
    assert smoke([], imaged.results) == 1


@pytest.mark.slow
def test_reproduce_looks_for_data_once_and_runs_everything_else(own_copy: Copy, tmp_path: Path) -> None:
    """Acceptance: the table without data says NOT_RUN with the reason, the other runs, the exit code is 1."""
    with_images(own_copy, "fashion_mnist")
    add_table(own_copy.root, "toy_training")
    results, empty = tmp_path / "results", tmp_path / "empty"
    empty.mkdir()
    own_copy.edit("conf/data/fashion_mnist.yaml", "root: null", f"root: {empty}")
    command = ("reproduce.py", "--jobs", "1", "scale=cpu", "tracking=disabled", f"results={results}")
    done = own_copy.run(*command)
    assert done.code == 1
    assert counted("toy", done.err) == (0, 0, 6)
    assert counted("toy_training", done.err) == (1, 0, 0)
    assert done.err.count("fashion_mnist: looking for its files") == 1
    reason = f"fashion_mnist: {empty} has no train-images-idx3-ubyte or train-images-idx3-ubyte.gz; three ways"
    assert f"toy: 6 cells not run, {reason}" in done.err
    assert done.err.count(reason) == 1
    rows = {row["claim"]: row for row in read_table(results, "toy")}
    assert {row["verdict"] for row in rows.values()} == {"NOT_RUN"}
    assert rows["toy-exact"]["note"].startswith(reason)
    assert not cells(results, "toy")
    assert counted("toy", own_copy.run(*command).err) == (0, 0, 6), "tried again"
