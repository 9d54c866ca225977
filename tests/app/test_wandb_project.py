"""A whole project in W&B, as a loopback server gets it: cells as they run, rebuilt from rows, and its dashboard."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t as student

from attnrepro.app import main, tracking, wandb_dashboard, wandb_rebuild, wandb_sync

from .online_stub import OnlineStub, StubRun, online_stub
from .test_tracking import KEY, leaves
from .toy import Copy, Inside, Side, cells, finish, until
from .toy import inside as run_inside

# Runs of the committed toys: 6 + 1 + 1 + 2 cells, and one of each table.
COMMITTED, TABLES = 10, 4


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb_workspaces")


@pytest.fixture
def stub() -> Iterator[OnlineStub]:
    with online_stub() as stub:
        yield stub


@pytest.fixture
def toys(toy_copy: Copy, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Inside]:
    """This process as if the package lay in the copy with the toy tables."""
    yield from run_inside(toy_copy, monkeypatch, capfd)


def account(stub: OnlineStub) -> dict[str, str]:
    """The environment of a user of the server."""
    return {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": stub.url}


def as_user(stub: OnlineStub, monkeypatch: pytest.MonkeyPatch, home: Path, side: Side | None = None) -> None:
    """Make this process one of such a user."""
    steered = {"TOY_SIDE": str(side.folder)} if side else {}
    for name, value in {**account(stub), **steered, "HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tracking, "_given_up", [])
    monkeypatch.setattr(tracking, "_said", set())
    tracking._answers.cache_clear()


def online(toys: Inside, results: Path, *overrides: str) -> int:
    """Run the console script in this process, online."""
    toys.forget()  # the folder that steers the toys is read when they are imported
    return main.main([*overrides, "tracking=online", f"results={results}"])


def when_held(side: Side, act: Callable[[], object]) -> threading.Thread:
    """Do something as soon as a cell waits in its middle."""

    def wait() -> None:
        until(lambda: side.events("held"), "a cell is in flight")
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def rows_of_cell(folder: Path) -> list[dict[str, str]]:
    with (folder / "rows.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def uploaded_rows(stub: OnlineStub, run_id: str) -> list[dict[str, str]]:
    """The table of rows as the server got it."""
    (path,) = [path for path in stub.uploads if path.startswith(f"/put/{run_id}/media/table/rows")]
    table = json.loads(stub.uploads[path])
    return [dict(zip(table["columns"], line, strict=True)) for line in table["data"]]


def state(run: StubRun) -> dict[str, Any]:
    """What the server knows of a run, without times and what wandb says of itself."""
    told = {name: value for name, value in vars(run).items() if name not in ("lines", "summary")}
    own = ("_wandb", "_timestamp", "_runtime", "_step")
    history = [{key: value for key, value in row.items() if key not in own} for row in run.history]
    return told | {"history": history, "summary": {k: v for k, v in run.summary.items() if k not in own}}


def losses(seeds: int, n: int, steps: int) -> list[float]:
    """The toy's training loss before each step, from gradient descent by hand in float64."""
    import torch

    from attnrepro.data.streams import generator

    streams = [generator(seed, "toy_training") for seed in range(seeds)]
    x = [torch.randn(n, generator=stream).double() for stream in streams]
    y = [2 * xs + torch.randn(n, generator=stream) for xs, stream in zip(x, streams, strict=True)]
    found = []
    slopes = [0.0] * seeds
    for _ in range(steps):
        found.append(sum(float(((k * xs - ys) ** 2).mean()) for k, xs, ys in zip(slopes, x, y, strict=True)))
        grads = [float((2 * (k * xs - ys) * xs).mean()) for k, xs, ys in zip(slopes, x, y, strict=True)]
        slopes = [k - 0.1 * grad for k, grad in zip(slopes, grads, strict=True)]
    return found


# --- cells as they run ---


@pytest.mark.slow
def test_a_training_cell_arrives_whole(
    stub: OnlineStub, toys: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(stub, monkeypatch, tmp_path)
    results = tmp_path / "results"
    assert online(toys, results, "experiment=toy_training", "scale=smoke") == 0
    ((key, folder),) = cells(results, "toy_training").items()
    ((run_id, seen),) = stub.runs.items()
    record = json.loads((folder / "run.json").read_text())
    assert run_id.startswith(key)
    assert record["wandb"]["id"] == run_id
    assert record["wandb"]["url"] == f"{stub.url}/somebody/attnrepro/runs/{run_id}"
    assert (seen.project, seen.group, seen.job_type) == ("attnrepro", "toy_training", "train")
    assert (seen.name, seen.tags, seen.exit_code) == ("default", ["document 000", "scale smoke"], 0)
    expected = json.loads((folder / "config.yaml").read_text())
    extra = {"key": key, "code": record["code"], "document": "000", "kind": "cell"}
    assert seen.config == {**expected, **extra}
    assert all(leaf is None or type(leaf) in (bool, int, float, str) for leaf in leaves(seen.config))
    # Every step is a point of the curve, on the axis of steps.
    curve = [(row["trainer/global_step"], row["train/loss"]) for row in seen.history if "train/loss" in row]
    assert [step for step, _ in curve] == list(range(20))
    assert [loss for _, loss in curve] == pytest.approx(losses(7, 40, 20), rel=1e-5)
    rows = rows_of_cell(folder)
    assert uploaded_rows(stub, run_id) == rows
    # One of the seven seeds diverges, as it is told to.
    values = [float(row["value"]) for row in rows if row["status"] == "ok"]
    half = student.ppf(0.975, 5) * statistics.stdev(values) / math.sqrt(6)
    told = {
        "": statistics.fmean(values),
        "/n": 6,
        "/n_failed": 1,
        "/sd": statistics.stdev(values),
        "/ci_low": statistics.fmean(values) - half,
        "/ci_high": statistics.fmean(values) + half,
    }
    got = {
        name.removeprefix("gain/paired_difference"): v for name, v in seen.summary.items() if name.startswith("gain")
    }
    assert got == pytest.approx(told)
    files = {path.removeprefix(f"/put/{run_id}/") for path in stub.uploads}
    assert {"wandb-summary.json", "config.yaml"} <= files


@pytest.mark.slow
def test_a_failing_and_an_interrupted_cell_arrive_as_failed(
    stub: OnlineStub, toys: Inside, side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(stub, monkeypatch, tmp_path, side)
    side.hold("toy", 3)
    interrupting = when_held(side, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert online(toys, tmp_path / "results", "experiment=toy", "scale=smoke", "params.fail=[2]") == 130
    interrupting.join()
    keys = {event.point: event.key for event in side.events("start")}
    ended = {run_id[:12]: run.exit_code for run_id, run in stub.runs.items()}
    assert ended == {keys["1"]: 0, keys["2"]: 1, keys["3"]: 130}
    assert {run.job_type for run in stub.runs.values()} == {"measure"}


@pytest.mark.slow
def test_a_server_that_dies_leaves_training_and_rows_alone(
    stub: OnlineStub, toys: Inside, side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the Trainer in between; what is missing is sent later by the command that users have."""
    as_user(stub, monkeypatch, tmp_path, side)
    results = tmp_path / "results"
    side.hold("toy_training", "-")

    def die() -> None:
        stub.die()
        side.release()

    dying = when_held(side, die)
    toys.capture.readouterr()
    assert online(toys, results, "experiment=toy_training", "scale=smoke") == 0
    dying.join()
    assert "did not take everything" in toys.capture.readouterr().err
    assert len(cells(results, "toy_training")) == 1
    stub.start()
    as_user(stub, monkeypatch, tmp_path)
    monkeypatch.setenv("ATTNREPRO_RESULTS", str(results))
    sent: list[int] = []
    for number in range(2):
        assert wandb_sync.main([]) == 0
        assert toys.capture.readouterr().err.startswith(f"wandb-sync: {1 - number} runs sent, 0 not taken")
        sent.append(len(stub.bodies))
    assert sent[0] == sent[1]
    (seen,) = stub.runs.values()
    curve = [row["train/loss"] for row in seen.history if "train/loss" in row]
    assert curve == pytest.approx(losses(7, 40, 20), rel=1e-5)
    assert seen.exit_code == 0


# --- rebuilt from rows ---


def rebuilt(stub: OnlineStub) -> dict[str, dict[str, Any]]:
    return {run_id: state(run) for run_id, run in stub.runs.items()}


@pytest.mark.slow
def test_the_whole_project_is_rebuilt_from_committed_rows_twice_the_same(
    stub: OnlineStub, checkout: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but what git has: no runs of one's own, no folder of wandb."""
    for folder in ("runs", "wandb"):
        shutil.rmtree(checkout.results / folder, ignore_errors=True)
    as_user(stub, monkeypatch, tmp_path)
    before = sorted(path.name for path in checkout.results.iterdir())
    assert wandb_rebuild.main([]) == 0
    first = rebuilt(stub)
    assert wandb_rebuild.main([]) == 0
    assert rebuilt(stub) == first
    assert len(first) == COMMITTED + TABLES
    assert sorted(path.name for path in checkout.results.iterdir()) == before, "nothing is left behind"
    (raw,) = (checkout.results / "raw").iterdir()
    records = json.loads((raw / "toy.json").read_text())
    with (raw / "toy.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for key, record in records.items():
        ((run_id, seen),) = [(i, run) for i, run in first.items() if i.startswith(key)]
        own = [row for row in rows if row["key"] == key]
        (measured,) = [row for row in own if row["source"] == "measured"]
        point = record["config"]["params"]["point"]
        assert (seen["group"], seen["exit_code"], seen["tags"]) == ("toy", 0, ["document 000", "scale cpu"])
        assert seen["name"] == f"point={point}"
        assert seen["config"]["params"] == record["config"]["params"]
        assert uploaded_rows(stub, run_id) == own
        n = int(measured["n"])
        half = student.ppf(0.975, n - 1) * float(measured["sd"]) / math.sqrt(n)
        mean = float(measured["value"])
        told = {
            "level/mean": mean,
            "level/mean/n": n,
            "level/mean/sd": float(measured["sd"]),
            "level/mean/ci_low": mean - half,
            "level/mean/ci_high": mean + half,
            "level/mean/theory": point + 0.25,
        }
        assert {name: seen["summary"][name] for name in told} == pytest.approx(told, rel=1e-6)
    table = first["table-toy"]
    assert (table["job_type"], table["config"]["kind"]) == ("table", "table")
    axis = [row["toy/point"] for row in table["history"] if "toy/point" in row]
    assert axis == [1, 2, 3, 4, 5, 6]
    assert [row["toy/all/theory"] for row in table["history"] if "toy/point" in row] == [p + 0.25 for p in axis]
    assert [row.get("toy/all/published") for row in table["history"][:3]] == [1.25, 2.30, None]


@pytest.mark.slow
def test_what_a_killed_command_measured_arrives_from_its_rows(
    stub: OnlineStub, toys: Inside, side: Side, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 in the fourth cell, the server away: the same command finishes, and its rows are all sent later."""
    results = tmp_path / "results"
    side.kill("toy", 4)
    command = ("experiment=toy", "scale=cpu")
    process = toys.copy.start(
        *("attnrepro", *command, "tracking=online", f"results={results}"), side=side, env=account(stub)
    )
    until(lambda: cells(results, "toy") or process.poll() is not None, "the first cell is done")
    stub.die()
    assert finish(process).code == -signal.SIGKILL
    assert len(cells(results, "toy")) == 3
    (side.folder / "die-toy-4").unlink()
    as_user(stub, monkeypatch, tmp_path, side)
    assert online(toys, results, *command) == 0
    finished = cells(results, "toy")
    assert len(finished) == 6
    stub.start()
    as_user(stub, monkeypatch, tmp_path)
    monkeypatch.setenv("ATTNREPRO_RESULTS", str(results))
    assert wandb_rebuild.main(["toy"]) == 0
    for key, folder in finished.items():
        record = json.loads((folder / "run.json").read_text())
        seen = stub.runs[record["wandb"]["id"]]
        rows = rows_of_cell(folder)
        assert uploaded_rows(stub, record["wandb"]["id"]) == rows
        (value,) = [float(row["value"]) for row in rows if row["source"] == "measured"]
        assert (seen.summary["level/mean"], seen.exit_code, seen.config["key"]) == (pytest.approx(value), 0, key)


def test_a_rebuild_without_a_server_or_with_a_misspelt_table_is_one_sentence(
    stub: OnlineStub, checkout: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(stub, monkeypatch, tmp_path)
    for arguments, sentence in (
        (["toi"], "wandb-rebuild: unknown table toi; there are: toy, toy_derived, toy_timing, toy_training"),
        (["tracking.mode=offline"], "only tracking.entity=<name> and tracking.project=<name> can be set here"),
        (["tracking.project=a/b"], "tracking.project='a/b' must be 1 to 128 characters long"),
    ):
        checkout.capture.readouterr()
        assert wandb_rebuild.main(arguments) == 2
        said = checkout.capture.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
    stub.status = 500
    assert wandb_rebuild.main(["toy", "tracking.project=p"]) == 1
    assert "stopped" in checkout.capture.readouterr().err
    stub.die()
    os.environ.pop("WANDB_API_KEY")
    assert wandb_rebuild.main(["toy"]) == 1
    assert "no API key" in checkout.capture.readouterr().err


# --- the dashboard ---

SNAPSHOTS = Path(__file__).parent / "snapshots"
# Read before a test clears the environment.
WRITE = os.environ.get("ATTNREPRO_SNAPSHOTS") == "write"


@pytest.mark.parametrize("name", ["workspace", "report"])
def test_workspace_and_report_are_built_offline_as_in_the_snapshot(
    name: str, checkout: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATTNREPRO_SNAPSHOTS=write makes them anew. What the timed table says differs from machine to machine."""
    pytest.importorskip("wandb_workspaces")
    monkeypatch.setenv("HOME", str(tmp_path))
    # A wrong print, so that there is an erratum to tell.
    checkout.copy.edit("results/published/toy.csv", "toy-exact,1,level,mean,1.25", "toy-exact,1,level,mean,1.5")
    monkeypatch.setattr(wandb_dashboard.paths, "table_names", lambda: ["toy", "toy_derived", "toy_training"])
    assert wandb_dashboard.main(["tracking.entity=somebody"]) == 0
    built = (checkout.results / "wandb" / f"{name}.json").read_text()
    if WRITE:
        SNAPSHOTS.mkdir(exist_ok=True)
        (SNAPSHOTS / f"wandb_{name}.json").write_text(built)
    assert built == (SNAPSHOTS / f"wandb_{name}.json").read_text()
    again = wandb_dashboard.main(["tracking.entity=somebody"])
    assert (again, (checkout.results / "wandb" / f"{name}.json").read_text()) == (0, built)


@pytest.mark.slow
def test_workspace_and_report_are_posted_on_request_and_changed_the_second_time(
    stub: OnlineStub, checkout: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb_workspaces")
    as_user(stub, monkeypatch, tmp_path)
    assert wandb_dashboard.main([]) == 0
    assert not stub.told, "nothing is sent unless asked for"
    for _ in range(2):
        assert wandb_dashboard.main(["--post"]) == 0, checkout.capture.readouterr().err
        assert sorted(view["type"] for view in stub.views.values()) == ["project-view", "runs"]
    assert set(stub.runs) == {f"table-{table}" for table in ("toy", "toy_training", "toy_derived", "toy_timing")}
    (saved,) = [view for view in stub.views.values() if view["type"] == "project-view"]
    assert (saved["displayName"], saved["entityName"], saved["projectName"]) == (
        "attnrepro tables",
        "somebody",
        "attnrepro",
    )
    drawn = json.loads(saved["spec"])["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in drawn] == ["Document 000"]
    for panel in drawn[0]["panels"]:
        logged = [row for run in stub.runs.values() for row in run.history]
        for metric in (panel["config"]["xAxis"], *panel["config"]["metrics"]):
            assert any(metric in row for row in logged), f"{metric} is drawn and no run has it"


def test_without_wandb_workspaces_it_is_one_sentence(checkout: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "wandb_workspaces"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    checkout.capture.readouterr()
    assert wandb_dashboard.main([]) == 2
    assert checkout.capture.readouterr().err == (
        "wandb-dashboard: wandb-workspaces is not installed: pip install 'attnrepro[workspaces]'\n"
    )
