"""Tracking: one run a cell, how it ended, what it says and never says; offline and against a stand-in."""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attnrepro.app import tracking
from attnrepro.app.tracking import Tracker, TrackingConfig, resolve_mode, track

from .online_stub import OnlineStub, online_stub

KEY = "0123456789" * 4
SRC = str(Path(tracking.__file__).parents[2])


@dataclass
class SavedRun:
    """What a run's .wandb file holds."""

    project: str = ""
    group: str = ""
    name: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None


def chunks(data: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: LevelDB's log format after a header of 7 bytes; no cut tail."""
    position, record = 7, b""
    while position + 7 <= len(data):
        room = 32768 - position % 32768
        if room < 7:
            position += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            if position <= len(data):
                yield record
            record = b""


def read_run(run_dir: Path | None) -> SavedRun:
    """Read a closed run back without network, from the only file that wandb promises to write.

    wandb's service writes the end of the file a moment after the run is closed.
    """
    assert run_dir is not None
    (path,) = run_dir.glob("*.wandb")
    deadline = time.monotonic() + 5
    while (saved := parse(path.read_bytes())).exit_code is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return saved


def parse(data: bytes) -> SavedRun:
    from wandb.proto import wandb_internal_pb2

    saved = SavedRun()
    for chunk in chunks(data):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(chunk)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            saved.project, saved.group, saved.name = run.project, run.run_group, run.display_name
            saved.job_type, saved.tags = run.job_type, list(run.tags)
            saved.config.update(values(run.config.update))
        elif kind == "config":
            saved.config.update(values(record.config.update))
        elif kind == "history":
            saved.history.append(values(record.history.item))
        elif kind == "summary":
            saved.summary.update(values(record.summary.update))
        elif kind == "metric":
            saved.step_metrics[record.metric.glob_name or record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            saved.exit_code = record.exit.exit_code
    saved.config.pop("_wandb", None)
    return saved


def values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A user with no W&B account, no proxy and no earlier runs in this process."""
    saved = dict(os.environ)
    for name in list(os.environ):
        if name.startswith("WANDB_") or name.lower().endswith("_proxy") or name == "NETRC":
            del os.environ[name]
    os.environ["HOME"] = str(tmp_path / "home")
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(tracking, "_given_up", [])
    monkeypatch.setattr(tracking, "_said", set())
    tracking._answers.cache_clear()
    yield
    os.environ.clear()
    os.environ.update(saved)


def conf(mode: str = "offline", **changes: Any) -> TrackingConfig:
    changes = {"entity": None, "project": "attnrepro", "metadata": False, **changes}
    return TrackingConfig(mode=mode, **changes)


def run(
    root: Path,
    body: Callable[[Tracker], None],
    cfg: TrackingConfig | None = None,
    run_id: str = "r0",
    **changes: Any,
) -> Tracker:
    """Track one body; an exception of the body is swallowed, as the caller of a cell would."""
    about = {"table": "t", "name": "cell", "job_type": "measured", "tags": ["smoke"], "config": {"a": 1}}
    tracker: list[Tracker] = []
    with (
        contextlib.suppress(RuntimeError, KeyboardInterrupt, SystemExit),
        track(cfg or conf(), root=root, run_id=run_id, **{**about, **changes}) as opened,
    ):
        tracker.append(opened)
        body(opened)
    return tracker[0]


def nothing(tracker: Tracker) -> None:
    pass


def raising(error: BaseException) -> Callable[[Tracker], None]:
    def body(tracker: Tracker) -> None:
        raise error

    return body


def script(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that can import attnrepro."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": SRC, **options.pop("env", {})}
    prefix = options.pop("prefix", [])
    return subprocess.run(
        [*prefix, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


# --- which mode ---


def test_importing_it_imports_neither_wandb_nor_lightning_nor_torch() -> None:
    code = "import sys, attnrepro.app.tracking; print({'wandb', 'lightning', 'torch'} & set(sys.modules))"
    assert script(code).stdout.strip() == "set()"


def test_modes_that_were_asked_for() -> None:
    assert resolve_mode(conf("offline")) == ("offline", "Weights & Biases is offline, as asked.")
    assert resolve_mode(conf("disabled")) == ("disabled", "Weights & Biases is off, as asked.")


def test_auto_without_a_key_is_offline_at_once() -> None:
    start = time.perf_counter()
    mode, reason = resolve_mode(conf("auto"))
    assert time.perf_counter() - start < 0.5
    assert (mode, "no API key" in reason) == ("offline", True)


def test_auto_with_a_key_and_an_answering_host_is_online() -> None:
    os.environ["WANDB_API_KEY"] = KEY
    with online_stub() as stub:
        os.environ["WANDB_BASE_URL"] = stub.url
        assert resolve_mode(conf("auto")) == ("online", f"Weights & Biases is online at {stub.url}.")


def test_auto_with_a_host_that_refuses_is_offline(closed_port: int) -> None:
    os.environ |= {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{closed_port}"}
    mode, reason = resolve_mode(conf("auto"))
    assert (mode, "did not answer within 2 s" in reason) == ("offline", True)


@pytest.mark.parametrize("silent", ["connection", "name server"])
def test_auto_with_a_silent_host_waits_for_the_probe_once(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.environ["WANDB_API_KEY"] = KEY
    asked, over = [], threading.Event()

    def hang(*arguments: object, **options: object) -> None:
        asked.append(arguments)
        over.wait(30)
        raise TimeoutError("as a host that never answers")

    monkeypatch.setattr(socket, "create_connection" if silent == "connection" else "getaddrinfo", hang)
    before = set(threading.enumerate())
    start = time.perf_counter()
    modes = {resolve_mode(conf("auto", probe_timeout=0.3))[0] for _ in range(3)}
    assert time.perf_counter() - start < 0.6
    assert (modes, len(asked)) == ({"offline"}, 1)
    (probe,) = set(threading.enumerate()) - before
    # It would go on waiting in some other test.
    over.set()
    probe.join(5)
    assert not probe.is_alive()


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1", "http://host:port", "http://[::1"])
def test_an_unusable_address_is_offline(url: str) -> None:
    os.environ |= {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": url}
    assert resolve_mode(conf("auto"))[0] == "offline"


def test_a_proxy_is_probed_in_place_of_the_host(closed_port: int) -> None:
    with online_stub() as stub:
        os.environ |= {
            "WANDB_API_KEY": KEY,
            "WANDB_BASE_URL": "https://wandb.invalid",
            "https_proxy": stub.url,
        }
        assert resolve_mode(conf("auto"))[0] == "online"
    tracking._answers.cache_clear()
    os.environ["https_proxy"] = f"http://127.0.0.1:{closed_port}"
    assert resolve_mode(conf("auto"))[0] == "offline"


@pytest.mark.parametrize(("word", "mode"), [("offline", "offline"), ("dryrun", "offline"), ("disabled", "disabled")])
def test_wandb_mode_counts_for_auto_only(word: str, mode: str) -> None:
    os.environ |= {"WANDB_API_KEY": KEY, "WANDB_MODE": word}
    assert resolve_mode(conf("auto"))[0] == mode
    assert resolve_mode(conf("online"))[0] == "online"
    assert resolve_mode(conf("offline"))[0] == "offline"


@pytest.mark.parametrize(
    ("machine", "server", "found"),
    [
        ("wandb.example.org:8080", "http://wandb.example.org:8080", True),
        ("wandb.example.org", "http://wandb.example.org:8080", False),
        ("elsewhere.example.org", "http://wandb.example.org", False),
        ("api.wandb.ai", None, True),
        ("api.wandb.ai", "http://wandb.example.org", False),
    ],
)
@pytest.mark.parametrize("place", ["NETRC", "home"])
def test_a_key_in_netrc_counts_for_its_host(
    machine: str, server: str | None, found: bool, place: str, tmp_path: Path
) -> None:
    path = tmp_path / ("home/.netrc" if place == "home" else "keys")
    path.write_text(f"machine {machine} login user password {KEY}\n")
    if place == "NETRC":
        os.environ["NETRC"] = str(path)
    if server:
        os.environ["WANDB_BASE_URL"] = server
    assert resolve_mode(conf("online"))[0] == ("online" if found else "offline")


@pytest.mark.parametrize("text", ["default login user password other\n", "machine {", "\udcff\udcfe"])
def test_a_netrc_without_a_key_for_the_host_is_no_key(text: str, tmp_path: Path) -> None:
    (tmp_path / "home/.netrc").write_text(text, errors="surrogateescape")
    assert resolve_mode(conf("online"))[0] == "offline"


def test_the_host_that_wandb_login_stored_is_used(tmp_path: Path) -> None:
    os.environ["WANDB_API_KEY"] = KEY
    settings = tmp_path / "home/.config/wandb/settings"
    settings.parent.mkdir(parents=True)
    settings.write_text("[default]\nbase_url = https://wandb.example.org/\n")
    assert "https://wandb.example.org." in resolve_mode(conf("online"))[1]


def test_the_default_host_is_the_one_of_the_installed_wandb() -> None:
    import wandb

    assert wandb.Settings().base_url == tracking.DEFAULT_URL


@pytest.mark.parametrize("spec", [None, importlib.machinery.ModuleSpec("wandb", None)])
def test_without_wandb_tracking_is_off(spec: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The second is what a folder `wandb` in the working directory looks like.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    for mode in ("auto", "online", "offline"):
        assert resolve_mode(conf(mode))[0] == "disabled"
    tracker = run(tmp_path / "out", nothing, conf("online"))
    assert tracker.mode == "disabled"


# --- the offline run ---


def test_three_runs_in_one_process_are_three_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """C1 and C14: one run a job, and nothing needs a wandb-summary.json."""

    def body(tracker: Tracker) -> None:
        tracker.log({"val/loss": 0.5})
        tracker.summary({"rows": 3})

    trackers = [run(tmp_path, body, run_id=f"r{number}", table="attention") for number in range(3)]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 3
    assert {path.stem for path in tmp_path.glob("wandb/*/*.wandb")} == {"run-r0", "run-r1", "run-r2"}
    assert not list(tmp_path.rglob("wandb-summary.json"))
    for tracker in trackers:
        assert (tracker.mode, tracker.url) == ("offline", None)
        saved = read_run(tracker.run_dir)
        assert (saved.project, saved.group, saved.name) == ("attnrepro", "attention", "cell")
        assert (saved.job_type, saved.tags, saved.exit_code) == ("measured", ["smoke"], 0)
        assert [row["val/loss"] for row in saved.history] == [0.5]
        assert saved.summary["rows"] == 3
        assert saved.step_metrics["val/*"] == saved.step_metrics["train/*"] == "trainer/global_step"
    assert capfd.readouterr() == ("", "")
    assert not list((tmp_path / "home").iterdir())


MANY = """
import os, sys
from pathlib import Path
from attnrepro.app.tracking import TrackingConfig, track
cfg = TrackingConfig(mode="offline", project="p")
for number in range(200):
    about = dict(table="t", name="n", job_type="j", tags=[], config={})
    with track(cfg, root=Path(sys.argv[1]), run_id=f"r{number}", **about) as t:
        t.log({"x": float(number)})
        assert t.mode == "offline"
children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
print(*{pid for path in children for pid in path.read_text().split()})
"""


@pytest.mark.slow
def test_two_hundred_runs_in_one_process_are_two_hundred_runs_and_leave_no_process(tmp_path: Path) -> None:
    done = script(MANY, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    folders = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == len({folder.name.rsplit("-", 1)[1] for folder in folders}) == 200
    assert read_run(folders[0]).exit_code == 0
    if sys.platform == "linux":
        helpers = [Path("/proc", pid) for pid in done.stdout.split()]
        assert helpers, "wandb's service ran beside the process"
        deadline = time.monotonic() + 5
        while any(helper.exists() for helper in helpers):
            assert time.monotonic() < deadline, "wandb's service outlived the process"
            time.sleep(0.05)


def test_a_run_that_somebody_left_open_is_not_reused(tmp_path: Path) -> None:
    import wandb

    with wandb.init(mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True)) as other:
        tracker = run(tmp_path, lambda tracker: tracker.log({"x": 1.0}))
        assert tracker.run_dir != Path(other.dir).parent
    assert read_run(tracker.run_dir).history[0]["x"] == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("x"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(3), 3),
        (SystemExit("a sentence"), 1),
        (SystemExit(), 0),
        (SystemExit(0), 0),
    ],
)
def test_the_end_of_the_body_is_recorded(error: BaseException, code: int, tmp_path: Path) -> None:
    """C2: a failed job must not look finished."""
    assert read_run(run(tmp_path, raising(error)).run_dir).exit_code == code


def test_exceptions_pass_through(tmp_path: Path) -> None:
    for error in (RuntimeError("x"), KeyboardInterrupt(), SystemExit(3)):
        with (
            pytest.raises(type(error)) as caught,
            track(conf(), root=tmp_path, run_id="r0", table="t", name="n", job_type="j", tags=[], config={}) as tracker,
        ):
            assert tracker.mode == "offline"
            raise error
        assert caught.value is error


def test_wandb_itself_reads_the_file_as_we_do(tmp_path: Path) -> None:
    def body(tracker: Tracker) -> None:
        tracker.log({"loss": 0.25})
        raise RuntimeError("x")

    tracker = run(tmp_path, body, config={"params": {"heads": [1, 2]}})
    assert tracker.run_dir is not None
    (path,) = tracker.run_dir.glob("*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json", str(path)]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    saved = read_run(tracker.run_dir)
    assert (seen["state"], seen["exit_code"], saved.exit_code) == ("failed", 1, 1)
    assert seen["config"]["params"] == saved.config["params"] == {"heads": [1, 2]}
    assert seen["summary"]["loss"] == saved.history[0]["loss"] == 0.25


INTERRUPTED = """
import sys, time
from pathlib import Path
from attnrepro.app.tracking import TrackingConfig, track
cfg = TrackingConfig(mode="offline", project="p")
about = dict(table="t", name="n", job_type="j", tags=[], config={})
with track(cfg, root=Path(sys.argv[1]), run_id="r0", **about) as t:
    t.log({"x": 1.0})
    print(t.run_dir, flush=True)
    time.sleep(60)
"""


def test_an_interrupt_of_the_whole_process_group_is_recorded(tmp_path: Path) -> None:
    """C2: Ctrl-C in a terminal reaches wandb's service too."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": SRC},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        run_dir = Path(process.stdout.readline().strip())
        os.killpg(process.pid, signal.SIGINT)
        start = time.perf_counter()
        process.communicate(timeout=30)
    assert time.perf_counter() - start < 5
    saved = read_run(run_dir)
    assert (saved.exit_code, len(saved.history)) == (130, 1)


SERVICE_DIES = """
import os, signal, sys, time
from pathlib import Path
from attnrepro.app.tracking import TrackingConfig, track
cfg = TrackingConfig(mode="offline", project="p")
about = dict(root=Path(sys.argv[1]), table="t", name="n", job_type="j", tags=[], config={})
with track(cfg, run_id="r0", **about) as t:
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    for child in {int(pid) for path in children for pid in path.read_text().split()}:
        os.kill(child, signal.SIGKILL)
    time.sleep(0.3)
    t.log({"x": 1.0})
    t.summary({"x": 1.0})
    t.rows(["a"], [[1]])
modes = []
for number in (1, 2):
    with track(cfg, run_id=f"r{number}", **about) as t:
        modes.append(t.mode)
print(modes)
"""


def test_a_service_that_dies_hurts_nothing_but_its_runs(tmp_path: Path) -> None:
    done = script(SERVICE_DIES, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "['disabled', 'offline']"), done.stderr
    assert "the run goes on without it" in done.stderr


def test_names_are_cut_and_tags_are_distinct(tmp_path: Path) -> None:
    long = "x" * 200
    saved = read_run(
        run(tmp_path, nothing, table=long, name=long, job_type=long, tags=[long, "a", "", long, "a"]).run_dir
    )
    assert {len(saved.group), len(saved.name), len(saved.job_type)} == {64}
    assert saved.tags == ["x" * 64, "a"]


@pytest.mark.parametrize("run_id", ["", "a/b", "a:b", "x" * 65, "strength=1,2"])
def test_a_bad_run_id_is_refused(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run_id="):
        run(tmp_path, nothing, run_id=run_id)


@pytest.mark.parametrize("project", ["", "a/b", "a:b", "what?", "x" * 129])
def test_a_bad_project_is_refused(project: str) -> None:
    with pytest.raises(ValueError, match="project="):
        conf(project=project)


def test_a_nested_config_is_logged_resolved(tmp_path: Path) -> None:
    """C15: every leaf is a scalar, none of it text that stands for a structure."""
    config = {"table": "t", "params": {"strength": [0.5, 1.0], "shape": (2, 3), "none": None}, "on": True}
    saved = read_run(run(tmp_path, nothing, config=config).run_dir)
    assert saved.config == {**config, "params": {"strength": [0.5, 1.0], "shape": [2, 3], "none": None}}
    assert all(value is None or isinstance(value, bool | int | float | str) for value in leaves(saved.config))


def odd_configs() -> list[tuple[Any, str]]:
    import numpy as np
    from omegaconf import OmegaConf

    return [
        (OmegaConf.create({"a": 1}), "config is a DictConfig"),
        ({"params": OmegaConf.create({"a": 1})}, r"config\.params is a DictConfig"),
        ({"params": {"a": ["${b}"]}}, r"config\.params\.a\[0\]='\$\{b\}' is not resolved"),
        ({"a": np.float64(1)}, r"config\.a is a float64"),
        ({"a": Path("x")}, r"config\.a is a PosixPath"),
        ({"a": {1: 2}}, r"config\.a has the key 1"),
    ]


@pytest.mark.parametrize(("config", "sentence"), odd_configs())
def test_a_config_that_is_not_plain_is_refused(config: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=sentence):
        run(tmp_path, nothing, config=config)


def test_disabled_writes_nothing_and_every_call_is_harmless(tmp_path: Path) -> None:
    def body(tracker: Tracker) -> None:
        tracker.log({"x": 1.0})
        tracker.summary({"x": 1})
        tracker.rows(["a"], [[1]])

    tracker = run(tmp_path / "out", body, conf("disabled"))
    assert (tracker.logger, tracker.url, tracker.run_dir, tracker.mode) == (None, None, None, "disabled")
    assert not (tmp_path / "out").exists()


def test_rows_become_a_table_that_a_browser_can_read(tmp_path: Path) -> None:
    rows: list[list[object]] = [
        ["measured", 0, 0.5],
        ["theory", "", float("nan")],
        ["theory", "", float("-inf")],
        ["x", None, 1],
    ]
    tracker = run(tmp_path, lambda tracker: tracker.rows(["source", "seed", "value"], rows))
    assert tracker.run_dir is not None
    (row,) = read_run(tracker.run_dir).history
    table = json.loads((tracker.run_dir / "files" / row["rows.path"]).read_text(), parse_constant=pytest.fail)
    assert table["columns"] == ["source", "seed", "value"]
    assert table["data"] == [
        ["measured", 0, 0.5],
        ["theory", "", "nan"],
        ["theory", "", "-inf"],
        ["x", None, 1],
    ]


def test_a_table_that_cannot_be_built_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracker = run(tmp_path, lambda tracker: tracker.rows(["a"], [[1, 2]]))
    assert read_run(tracker.run_dir).exit_code == 0
    (sentence,) = capfd.readouterr().err.splitlines()
    assert sentence.startswith("The table of rows did not reach Weights & Biases")


def test_a_picture_is_a_file_of_the_run(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = [[(0, 0, 0), (255, 0, 0), (0, 255, 0)], [(0, 0, 255), (1, 2, 3), (255, 255, 255)]]
    tracker = run(tmp_path, lambda tracker: tracker.picture("attention/first", pixels, "row: query"))
    assert tracker.run_dir is not None
    (row,) = read_run(tracker.run_dir).history
    assert row["attention/first.caption"] == "row: query"
    with image.open(tracker.run_dir / "files" / row["attention/first.path"]) as drawn:
        assert drawn.size == (3, 2)
        assert [drawn.getpixel((x, y)) for y in range(2) for x in range(3)] == [p for line in pixels for p in line]


def test_without_pillow_there_are_no_pictures_and_no_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def body(tracker: Tracker) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        tracker.picture("a", [[(0, 0, 0)]], "")

    assert read_run(run(tmp_path, body).run_dir).history == []
    assert capfd.readouterr() == ("", "")


def test_a_histogram_counts_what_is_finite(tmp_path: Path) -> None:
    values = [0.0, 0.0, 1.0, float("nan"), float("inf")]
    (row,) = read_run(run(tmp_path, lambda tracker: tracker.histogram("entropy", values)).run_dir).history
    counts, edges = row["entropy.values"], row["entropy.bins"]
    assert (sum(counts), counts[0], counts[-1], edges[0], edges[-1]) == (3, 2, 1, 0.0, 1.0)


def test_two_trainings_of_one_run_are_two_curves() -> None:
    tracker = Tracker("disabled", None, Path())
    names = ["loss", "val_accuracy", "epoch", "train/x", "loss/pre-training/seed 3"]
    tracker.next_fit()
    first = ["train/loss", "val/accuracy", "epoch", "train/x", "train/loss/pre-training/seed 3"]
    assert [tracker.curve(name) for name in names] == first
    assert [tracker.curve(name) for name in names] == first
    tracker.next_fit()
    assert [tracker.curve(name) for name in ("loss", "epoch", "val_loss")] == ["train/loss/fit 2", "epoch", "val/loss"]


def test_a_run_that_cannot_be_opened_leaves_the_body_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(**about: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("wandb.init", full)
    assert run(tmp_path, nothing).mode == "disabled"
    (sentence,) = capfd.readouterr().err.splitlines()
    assert sentence == "Weights & Biases is off because its run could not be opened (disk full)."


# --- Lightning ---


def test_two_fits_have_one_row_an_epoch_and_an_interrupted_one_is_failed(tmp_path: Path) -> None:
    """C10: nothing is dropped. C2: Lightning makes an interrupt SystemExit. C15: no config turned to text."""
    import lightning
    import torch
    from lightning.pytorch.loggers import WandbLogger
    from omegaconf import OmegaConf

    class Line(lightning.LightningModule):
        def __init__(self, stop_at: int, nested: Any) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.stop_at = stop_at
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            if self.global_step == self.stop_at:
                raise KeyboardInterrupt
            loss = (self.weight - batch.mean()).square()
            self.log("train/loss", loss)
            return loss

        def validation_step(self, batch: torch.Tensor, index: int) -> None:
            self.log_dict({"val/loss": batch.mean(), "val/error": self.weight})

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(epochs: int, stop_at: int) -> Callable[[Tracker], None]:
        def body(tracker: Tracker) -> None:
            assert isinstance(tracker.logger, WandbLogger)
            assert Path(str(tracker.logger.save_dir)).is_absolute()
            ones: Any = torch.ones(4)
            data = torch.utils.data.DataLoader(ones, batch_size=2)
            trainer = lightning.Trainer(
                max_epochs=epochs,
                logger=tracker.logger,
                accelerator="cpu",
                log_every_n_steps=1,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(Line(stop_at, OmegaConf.create({"a": {"b": 1}, "c": "${a.b}"})), data, data)
            tracker.log({"after/x": 1.0})

        return body

    for number, epochs in enumerate((3, 5)):
        saved = read_run(run(tmp_path, fit(epochs, -1), run_id=f"r{number}", config={"a": {"b": 1}}).run_dir)
        for metric in ("val/loss", "val/error"):
            assert [row["epoch"] for row in saved.history if metric in row] == list(range(epochs))
        steps = [row["trainer/global_step"] for row in saved.history if "train/loss" in row]
        assert steps == list(range(2 * epochs))
        assert [row["after/x"] for row in saved.history if "after/x" in row] == [1.0]
        assert (saved.config, saved.exit_code) == ({"a": {"b": 1}}, 0)
    interrupted = read_run(run(tmp_path, fit(5, 3), run_id="r9").run_dir)
    assert interrupted.exit_code == 1
    assert [row["epoch"] for row in interrupted.history if "val/loss" in row] == [0]


# --- what it says to whom ---

ALONE = """
import os, sys, time
from pathlib import Path
import socket
if sys.argv[2] == "patched":
    real = socket.socket.connect
    def connect(self, address):
        if self.family != socket.AF_UNIX:
            os._exit(99)
        return real(self, address)
    socket.socket.connect = connect
    socket.gethostname = lambda: "very-secret-host"
assert socket.gethostname() == "very-secret-host"
from attnrepro.app.tracking import TrackingConfig, track
assert "WANDB_ERROR_REPORTING" not in os.environ
cfg = TrackingConfig(mode="offline", project="p")
start = time.perf_counter()
about = dict(table="t", name="n", job_type="j", tags=[], config={})
with track(cfg, root=Path(sys.argv[1]), run_id="r0", **about) as t:
    t.log({"x": 1.0})
    body = time.perf_counter()
    t.rows(["a"], [[1]])
end = time.perf_counter()
assert os.environ["WANDB_ERROR_REPORTING"] == "false"
print(body - start, end - body, t.run_dir, sep="\\n")
"""


def without_network() -> list[str]:
    """A command prefix for a namespace with no network and a telling host name; empty where forbidden."""
    prefix = ["unshare", "--net", "--uts", "sh", "-c", 'hostname very-secret-host && exec "$@"', "sh"]
    with contextlib.suppress(OSError):
        for candidate in (prefix, [prefix[0], "--map-root-user", *prefix[1:]]):
            if subprocess.run([*candidate, "true"], capture_output=True, check=False).returncode == 0:
                return candidate
    return []


def test_offline_needs_no_network_and_names_neither_host_nor_user(tmp_path: Path) -> None:
    """C11: a table without network does not wait; nothing that could be uploaded names the machine."""
    for arguments in ("init", "remote add origin https://very-secret-host/x", "commit --allow-empty -m x"):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", *identity, *arguments.split()], cwd=tmp_path, capture_output=True, check=True)
    prefix = without_network()
    print("network taken away by", "unshare" if prefix else "patching socket.connect")
    root = tmp_path / "home" / "very-secret-user" / "results"
    user = dict.fromkeys(("USER", "LOGNAME", "USERNAME"), "very-secret-user")
    environment = {"HOME": str(root.parent), **user}
    done = script(ALONE, root, "unshared" if prefix else "patched", env=environment, prefix=prefix, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    opening, closing, run_dir = done.stdout.splitlines()
    assert float(opening) < 10
    assert float(closing) < 2
    saved = read_run(Path(run_dir))
    assert (len(saved.history), saved.exit_code) == (2, 0)
    uploadable = [
        *Path(run_dir).glob("*.wandb"),
        *(p for p in Path(run_dir, "files").rglob("*") if p.is_file()),
    ]
    assert len(uploadable) == 2
    assert not [path for path in uploadable if b"very-secret" in path.read_bytes()]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture
def stub() -> Iterator[OnlineStub]:
    with online_stub() as stub:
        os.environ |= {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": stub.url}
        yield stub


def quick(mode: str = "online", **changes: Any) -> TrackingConfig:
    return conf(mode, **{"init_timeout": 1.0, "finish_timeout": 1.0, **changes})


def test_an_online_run_arrives_whole(
    stub: OnlineStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "very-secret-host")
    root = tmp_path / "very-secret-user"

    def body(tracker: Tracker) -> None:
        for epoch in range(3):
            tracker.log({"val/loss": 1 / (epoch + 1), "epoch": epoch})
        tracker.summary({"rows_written": 12})
        tracker.rows(["a", "b"], [[1, "x"], ["", 0.5]])

    config = {"params": {"heads": [1, 2]}}
    for mode, run_id in (("auto", "r0"), ("online", "r1")):
        tracker = run(root, body, quick(mode, finish_timeout=8.0), run_id, table="g", tags=["cpu"], config=config)
        assert (tracker.mode, tracker.url) == ("online", f"{stub.url}/somebody/attnrepro/runs/{run_id}")
    failed = run(root, raising(SystemExit(4)), quick(finish_timeout=8.0), "r2")
    assert failed.mode == "online"
    assert stub.runs.keys() == {"r0", "r1", "r2"}
    for run_id in ("r0", "r1"):
        seen = stub.runs[run_id]
        assert (seen.project, seen.group, seen.name) == ("attnrepro", "g", "cell")
        assert (seen.job_type, seen.tags, seen.config) == ("measured", ["cpu"], config)
        assert [row["epoch"] for row in seen.history if "val/loss" in row] == [0, 1, 2]
        assert (seen.summary["rows_written"], seen.exit_code) == (12, 0)
        (path,) = [path for path in stub.uploads if path.startswith(f"/put/{run_id}/media/table")]
        assert json.loads(stub.uploads[path])["data"] == [[1, "x"], ["", 0.5]]
    assert not [path for path in stub.uploads if path.endswith(("metadata.json", "requirements.txt"))]
    assert stub.runs["r2"].exit_code == 4
    assert not [body for body in stub.bodies if b"very-secret" in body]
    assert capfd.readouterr() == ("", "")
    assert not list((tmp_path / "home").iterdir())


@pytest.mark.parametrize("status", [500, 0, None], ids=["error 500", "silent", "dead"])
def test_a_server_that_takes_no_run_makes_it_offline(
    status: int | None, stub: OnlineStub, closed_port: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if status is None:
        os.environ["WANDB_BASE_URL"] = f"http://127.0.0.1:{closed_port}"
    else:
        stub.status = status
    earlier = tmp_path / "wandb" / "run-20200101_000000-r0"
    earlier.mkdir(parents=True)
    start = time.perf_counter()
    tracker = run(tmp_path, raising(RuntimeError("x")), quick())
    # 1 s of waiting; the service is started anew for the offline run
    assert time.perf_counter() - start < 4
    assert (tracker.mode, read_run(tracker.run_dir).exit_code) == ("offline", 1)
    assert list((tmp_path / "wandb").glob("run-*")) == [earlier]
    start = time.perf_counter()
    assert run(tmp_path, nothing, quick(), "r1").mode == "offline"
    assert resolve_mode(quick("auto"))[0] == "offline"
    assert time.perf_counter() - start < 1
    first, *others = capfd.readouterr().err.splitlines()
    assert first.startswith("Weights & Biases is offline because a run could not be opened online")
    assert others in ([], [first])
    assert not stub.runs


@pytest.mark.parametrize("status", [500, 0], ids=["error 500", "silent"])
def test_a_server_that_goes_away_does_not_hold_up_the_end(
    status: int, stub: OnlineStub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def body(tracker: Tracker) -> None:
        tracker.log({"x": 1.0})
        stub.status = status
        tracker.rows(["a"], [[1]])

    start = time.perf_counter()
    tracker = run(tmp_path, body, quick())
    assert time.perf_counter() - start < 3
    saved = read_run(tracker.run_dir)
    assert (tracker.mode, len(saved.history), saved.exit_code) == ("online", 2, 0)
    (sentence,) = capfd.readouterr().err.splitlines()
    assert "Timed out finishing run" in sentence
    assert str(tracker.run_dir) in sentence
    assert "did not take everything" in resolve_mode(quick("auto"))[1]
    assert run(tmp_path, nothing, quick(), "r1").mode == "offline"


def test_online_without_a_key_is_offline_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        assert run(tmp_path, nothing, quick(), f"r{number}").mode == "offline"
    (sentence,) = capfd.readouterr().err.splitlines()
    assert "no API key is configured" in sentence
