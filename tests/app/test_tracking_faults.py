"""A W&B server that dies, refuses, is slow or comes back: training goes on as if nothing were, and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attnrepro.app import tracking, wandb_sync
from attnrepro.results.store import Store

from .online_stub import OnlineStub, online_stub
from .test_tracking import KEY, SRC
from .toy import clean_environment

STEPS = 60
# The first call imports and starts what later ones use.
FIRST = 1
TRAINING = f"""
import json, sys, time
from pathlib import Path
from attnrepro.app.tracking import TrackingConfig, track

def waited():
    # Seconds that threads of this process were ready while the processors were busy with others: no fault of a call.
    # A call that waits for the server waits without being ready.
    told = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[1]) for path in told) / 1e9

cfg = TrackingConfig(mode="online", project="attnrepro")
about = dict(table="t", name="n", job_type="train", tags=["x"], config={{"a": 1}})
calls = []
asked = time.monotonic()
with track(cfg, root=Path(sys.argv[1]), run_id=sys.argv[2], **about) as t:
    opened = time.monotonic()
    for step in range({STEPS}):
        if step == 20:
            print("middle", flush=True)
            sys.stdin.readline()
        busy, before = waited(), time.perf_counter()
        t.log({{"train/loss": 1 / (step + 1), "trainer/global_step": step}})
        time.sleep(0.2 * (step == int(sys.argv[3])))  # nowhere but where the measure itself is tested
        took = time.perf_counter() - before
        calls.append(took - max(0.0, waited() - busy))
        time.sleep(0.02)
    t.summary({{"accuracy": 0.75}})
    t.rows(["source", "value"], [["measured", 0.75]])
    ended = time.monotonic()
print(json.dumps([t.mode, opened - asked, ended, max(calls[{FIRST}:])]), flush=True)
"""


@dataclass
class Trained:
    """One training: how its run was opened, how long that and the exit took, its slowest logging call, what it said."""

    code: int
    mode: str
    opening: float
    leaving: float
    slowest: float
    err: str


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[OnlineStub]:
    """A server, and an environment in which it is that of a user with a key."""
    with online_stub() as stub:
        for name in [name for name in os.environ if name.startswith("WANDB_") or name.lower().endswith("_proxy")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", stub.url)
        monkeypatch.setattr(tracking, "_given_up", [])
        tracking._answers.cache_clear()
        yield stub


def train(root: Path, in_the_middle: Callable[[], None], late: int = -1) -> Trained:
    """Log 60 steps in a process of its own; after a third of them it waits until ``in_the_middle`` is done.

    The step ``late`` is held up for 0.2 s.
    """
    environment = clean_environment() | {
        "HOME": os.environ["HOME"],
        "PYTHONPATH": SRC,
        "WANDB_API_KEY": KEY,
        "WANDB_BASE_URL": os.environ["WANDB_BASE_URL"],
    }
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(root), "r0", str(late)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "middle\n", process.stderr and process.stderr.read()
        in_the_middle()
        out, err = process.communicate("go on\n", timeout=60)
        left = time.monotonic()
    mode, opening, ended, slowest = json.loads(out)
    return Trained(process.returncode, mode, opening, left - ended, slowest, err)


def nothing() -> None:
    pass


def all_arrived(stub: OnlineStub) -> None:
    """Every scalar of a training, its summary, its table and how it ended are on the server."""
    seen = stub.runs["r0"]
    rows = [(row["trainer/global_step"], row["train/loss"]) for row in seen.history if "train/loss" in row]
    assert rows == [(step, pytest.approx(1 / (step + 1))) for step in range(STEPS)]
    assert (seen.summary["accuracy"], seen.exit_code) == (0.75, 0)
    assert (seen.group, seen.job_type, seen.name, seen.tags) == ("t", "train", "n", ["x"])
    assert seen.config == {"a": 1}
    (table,) = [path for path in stub.uploads if path.startswith("/put/r0/media/table/rows")]
    assert json.loads(stub.uploads[table])["data"] == [["measured", 0.75]]


def sent_later(stub: OnlineStub, root: Path) -> None:
    """What is missing arrives with `make wandb-sync`, and a second time changes nothing."""
    stub.status, stub.delay = 200, 0.0
    assert wandb_sync.sync(Store(root)) == 0
    all_arrived(stub)
    before = len(stub.bodies)
    assert wandb_sync.sync(Store(root)) == 0
    assert len(stub.bodies) == before


def unharmed(trained: Trained, mode: str) -> None:
    """The training went through, nothing held it up, and it ended soon."""
    assert (trained.code, trained.mode) == (0, mode), trained.err
    # 5 s for the server, the rest for starting wandb's service, on a busy machine and twice.
    assert trained.opening < 12
    assert trained.slowest < 0.05
    assert trained.leaving < 15


def status(stub: OnlineStub, value: int) -> Callable[[], None]:
    def change() -> None:
        stub.status = value

    return change


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dies", "error 500", "silent", "refuses 401"])
def test_a_server_that_fails_in_the_middle(fault: str, stub: OnlineStub, tmp_path: Path) -> None:
    faults = {
        "dies": stub.die,
        "error 500": status(stub, 500),
        "silent": status(stub, 0),
        "refuses 401": status(stub, 401),
    }
    trained = train(tmp_path, faults[fault])
    unharmed(trained, "online")
    (sentence,) = trained.err.splitlines()
    assert sentence.startswith("Weights & Biases did not take everything")
    assert "make wandb-sync" in sentence
    assert len(stub.runs["r0"].history) < STEPS
    if fault == "dies":
        stub.start()
    sent_later(stub, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dead", "error 500", "refuses 401"])
def test_a_server_that_fails_from_the_start(fault: str, stub: OnlineStub, tmp_path: Path) -> None:
    if fault == "dead":
        stub.die()
    else:
        stub.status = int(fault.split()[1])
    trained = train(tmp_path, nothing)
    unharmed(trained, "offline")
    (sentence,) = trained.err.splitlines()
    assert sentence.startswith("Weights & Biases is offline because a run could not be opened online")
    assert not stub.runs
    if fault == "dead":
        stub.start()
    sent_later(stub, tmp_path)


@pytest.mark.slow
def test_a_call_that_blocks_would_be_seen(stub: OnlineStub, tmp_path: Path) -> None:
    assert 0.15 < train(tmp_path, nothing, late=30).slowest < 0.5


@pytest.mark.slow
def test_a_slow_server_gets_everything(stub: OnlineStub, tmp_path: Path) -> None:
    stub.delay = 0.5
    trained = train(tmp_path, nothing)
    unharmed(trained, "online")
    assert trained.err == ""
    all_arrived(stub)


@pytest.mark.slow
def test_a_server_that_comes_back_gets_everything(stub: OnlineStub, tmp_path: Path) -> None:
    def die_for_a_while() -> None:
        stub.die()
        threading.Timer(1.0, stub.start).start()

    trained = train(tmp_path, die_for_a_while)
    unharmed(trained, "online")
    assert trained.err == ""
    all_arrived(stub)


KILLED = """
import os, signal, sys
from pathlib import Path
from attnrepro.app.tracking import TrackingConfig, track
cfg = TrackingConfig(mode="offline", project="attnrepro")
with track(cfg, root=Path(sys.argv[1]), run_id="r0", table="t", name="n", job_type="j", tags=[], config={}) as t:
    for step in range(int(sys.argv[2])):
        t.log({"train/loss": 1 / (step + 1), "trainer/global_step": step})
    if sys.argv[2] != "0":
        size = lambda: next(t.run_dir.glob("*.wandb")).stat().st_size
        while size() < 32768:  # a block of the file is written when it is full
            pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 1000])
def test_what_is_left_of_a_killed_run_is_sent_as_failed(
    steps: int, stub: OnlineStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(steps)],
        env=clean_environment() | {"PYTHONPATH": SRC, "HOME": os.environ["HOME"]},
        check=False,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.setenv("ATTNREPRO_RESULTS", str(tmp_path))
    for number in range(2):
        capfd.readouterr()
        assert wandb_sync.main([]) == 0
        said = capfd.readouterr().err
        assert said.startswith(f"wandb-sync: {int(steps > 0 and number == 0)} runs sent, 0 not taken")
        assert ("1 runs were killed before anything was on disk" in said) == (steps == 0)
    if steps:
        seen = stub.runs["r0"]
        assert seen.exit_code == 1
        losses = [row["train/loss"] for row in seen.history]
        # A fast machine has logged all of them when the kill comes.
        assert 50 < len(losses) <= steps
        assert losses == [pytest.approx(1 / (step + 1)) for step in range(len(losses))]
    else:
        assert not stub.runs


def test_a_run_that_goes_on_is_left_alone(stub: OnlineStub, tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = tmp_path / "wandb" / "offline-run-20200101_000000-0123456789abcdef01"
    folder.mkdir(parents=True)
    (folder / "run-0123456789abcdef01.wandb").write_bytes(b":W&B" + bytes(100))
    holding = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    (store.runs / "t").mkdir(parents=True)
    lock = store.runs / "t" / "0123456789ab.lock"
    with subprocess.Popen(
        [sys.executable, "-c", holding, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        found = wandb_sync.unsent(store)
        assert (found.ready, found.busy, found.empty) == ([], [folder], [])
        holder.communicate("\n", timeout=10)
    assert wandb_sync.unsent(store).ready == [folder]


def test_without_a_server_nothing_is_tried(
    stub: OnlineStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "wandb" / "offline-run-20200101_000000-r0"
    folder.mkdir(parents=True)
    (folder / "run-r0.wandb").write_bytes(b":W&B" + bytes(100))
    monkeypatch.setenv("ATTNREPRO_RESULTS", str(tmp_path))
    stub.die()
    assert wandb_sync.main([]) == 1
    assert "1 runs wait to be sent" in (said := capfd.readouterr().err)
    assert "did not answer within 2 s" in said
    monkeypatch.delenv("WANDB_API_KEY")
    assert wandb_sync.main([]) == 1
    assert "no API key" in capfd.readouterr().err
    assert wandb_sync.main(["x"]) == 2
