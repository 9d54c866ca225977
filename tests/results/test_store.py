"""The store: a cell is there whole or not at all, whatever happens while it is written, and one process has it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnrepro.results import store as store_module
from attnrepro.results.store import Record, Store, to_json, write_text

SRC = str(Path(store_module.__file__).parents[2])
TABLE, KEY = "made_up", "0123456789ab"


def files(word: str) -> dict[str, str]:
    """A finished cell that can be told from others by a word."""
    return {
        "rows.csv": f"key,value\n{KEY},{word}\n",
        "config.yaml": '{"scale": "cpu"}\n',
        "run.json": f'{{"by": "{word}"}}\n',
    }


def word(record: Record | None) -> str | None:
    return record.rows_path.read_text().split(",")[-1].strip() if record else None


def found(store: Store) -> str | None:
    return word(store.find(TABLE, KEY))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def old(store: Store) -> Store:
    """A store with one finished cell."""
    store.write(TABLE, KEY, files("old"), code="c0de")
    return store


def names(store: Store) -> set[str]:
    """Everything in the folder of the table, hidden files too."""
    return {str(path.relative_to(store.runs / TABLE)) for path in (store.runs / TABLE).rglob("*")}


WHOLE = {KEY, *(f"{KEY}/{name}" for name in ("rows.csv", "config.yaml", "run.json", "done.json"))}

# --- what counts as finished ---


def test_a_written_cell_is_found_with_everything_in_it(store: Store, tmp_path: Path) -> None:
    assert store.find(TABLE, KEY) is None
    assert store.finished(TABLE) == []
    log = tmp_path / "job.log"
    log.write_text("a line\n")
    store.write(TABLE, KEY, files("new"), code="c0de", log=log)
    record = store.find(TABLE, KEY)
    assert record is not None and [record] == store.finished(TABLE)
    assert record.folder == store.folder(TABLE, KEY)
    assert (word(record), record.code, record.run, record.science) == ("new", "c0de", {"by": "new"}, {"scale": "cpu"})
    assert (record.folder / "job.log").read_text() == "a line\n"
    assert names(store) == {*WHOLE, f"{KEY}/job.log"}


def test_finished_cells_come_in_the_order_of_their_keys(store: Store) -> None:
    for key in ("b0", "a0", "c0"):
        store.write(TABLE, key, files(key), code="c0de")
    with store.lock(TABLE, "d0"):
        pass
    store.write_failure(TABLE, "e0", {"error": "E"})
    (store.runs / TABLE / "f0.new").mkdir()
    (store.runs / TABLE / ".DS_Store").write_text("")
    assert [word(record) for record in store.finished(TABLE)] == ["a0", "b0", "c0"]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "rows truncated": lambda folder: _truncate(folder / "rows.csv"),
    "rows empty": lambda folder: (folder / "rows.csv").write_bytes(b""),
    "rows edited": lambda folder: (folder / "rows.csv").write_text(files("0ld")["rows.csv"]),
    "rows with a line more": lambda folder: (folder / "rows.csv").open("a").write("more\n"),
    "rows with other line ends": lambda folder: (folder / "rows.csv").write_bytes(
        (folder / "rows.csv").read_bytes().replace(b"\n", b"\r\n")
    ),
    "rows gone": lambda folder: (folder / "rows.csv").unlink(),
    "done gone": lambda folder: (folder / "done.json").unlink(),
    "done truncated": lambda folder: _truncate(folder / "done.json"),
    "done empty": lambda folder: (folder / "done.json").write_bytes(b""),
    "done not text": lambda folder: (folder / "done.json").write_bytes(b"\xff\xfe{}"),
    "done a list": lambda folder: (folder / "done.json").write_text("[]"),
    "done without checksum": lambda folder: (folder / "done.json").write_text('{"code": "c0de"}'),
    "done without code": lambda folder: (folder / "done.json").write_text(
        json.dumps({k: v for k, v in json.loads((folder / "done.json").read_text()).items() if k != "code"})
    ),
    "config edited": lambda folder: (folder / "config.yaml").write_text('{"scale": "full"}\n'),
    "run truncated": lambda folder: _truncate(folder / "run.json"),
    "config gone": lambda folder: (folder / "config.yaml").unlink(),
    "run gone": lambda folder: (folder / "run.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cell_does_not_count_and_is_written_anew(old: Store, damage: str) -> None:
    DAMAGES[damage](old.folder(TABLE, KEY))
    assert old.find(TABLE, KEY) is None
    assert old.finished(TABLE) == []
    old.write(TABLE, KEY, files("new"), code="c0de")
    assert found(old) == "new"
    assert names(old) == WHOLE


@pytest.mark.parametrize("content", [[], ["rows.csv"], ["rows.csv", "config.yaml", "run.json"]])
def test_a_cell_without_its_last_file_does_not_count(store: Store, content: list[str]) -> None:
    folder = store.folder(TABLE, KEY)
    folder.mkdir(parents=True)
    for name in content:
        (folder / name).write_text(files("new")[name])
    assert store.find(TABLE, KEY) is None


def test_a_failure_stands_beside_a_finished_cell_and_goes_with_the_next_success(old: Store, tmp_path: Path) -> None:
    assert old.failure(TABLE, KEY) is None
    log = tmp_path / "job.log"
    log.write_text("what happened\n")
    shown = old.write_failure(TABLE, KEY, {"error": "ValueError: no"}, log)
    assert shown.read_text() == "what happened\n"
    assert old.failure(TABLE, KEY) == {"error": "ValueError: no"}
    assert found(old) == "old"
    old.write(TABLE, KEY, files("new"), code="c0de")
    assert old.failure(TABLE, KEY) is None
    assert names(old) == WHOLE


def test_a_failure_without_a_cell_is_no_finished_cell(store: Store) -> None:
    store.write_failure(TABLE, KEY, {"error": "ValueError: no"})
    assert found(store) is None
    assert store.failure(TABLE, KEY) == {"error": "ValueError: no"}
    _truncate(store.folder(TABLE, KEY) / "failed.json")
    assert store.failure(TABLE, KEY) is None


# --- killed at any moment ---

# A process of its own forks once for each step of a write and ends the child there, as a kill -9 would: audit
# events come before each thing that a process does to the file system.
KILLED_EVERYWHERE = """
import json, os, shutil, sys
from pathlib import Path
from attnrepro.results.store import Store

TABLE, KEY = sys.argv[2:4]
os.fsync = lambda descriptor: None  # a killed process loses nothing that it handed to the system
EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "shutil.copyfile"}
DIES = 9

def files(word):
    return {"rows.csv": f"key,value\\n{KEY},{word}\\n", "config.yaml": "{}\\n", "run.json": "{}\\n"}

def both(store):
    store.write(TABLE, KEY, files("older"), code="a")
    shutil.copytree(store.folder(TABLE, KEY), store.folder(TABLE, KEY).with_suffix(".old"))
    store.write_failure(TABLE, KEY, {"error": "E"})

def only_old(store):
    store.write(TABLE, KEY, files("old"), code="a")
    store.folder(TABLE, KEY).rename(store.folder(TABLE, KEY).with_suffix(".old"))

def old_and_failed(store):
    only_old(store)
    store.write_failure(TABLE, KEY, {"error": "E"})

def old_and_damaged(store):
    only_old(store)
    store.folder(TABLE, KEY).mkdir()
    (store.folder(TABLE, KEY) / "rows.csv").write_text("half")

def half_new(store):
    store.write(TABLE, KEY, files("old"), code="a")
    store.folder(TABLE, KEY).with_suffix(".new").mkdir()
    (store.folder(TABLE, KEY).with_suffix(".new") / "rows.csv").write_text("half")

STARTS = {
    "nothing": lambda store: None,
    "finished": lambda store: store.write(TABLE, KEY, files("old"), code="a"),
    "failed": lambda store: store.write_failure(TABLE, KEY, {"error": "E"}),
    "finished and failed": lambda store: (STARTS["finished"](store), STARTS["failed"](store)),
    "moved away": only_old,
    "moved away and failed": old_and_failed,
    "moved away and damaged": old_and_damaged,
    "finished and moved away": both,
    "finished and half new": half_new,
}

def word(store):
    record = store.find(TABLE, KEY)
    return record and record.rows_path.read_text().split(",")[-1].strip()

def names(root):
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))

results = []
for name, start in STARTS.items():
    before, step, status = None, 0, DIES
    while status == DIES:
        root = Path(sys.argv[1]) / f"{name}-{step}"
        store = Store(root)
        start(store)
        before = word(store)
        child = os.fork()
        if not child:
            left = [step]
            def hook(event, arguments):
                if event in EVENTS:
                    if not left[0]:
                        os._exit(DIES)
                    left[0] -= 1
            sys.addaudithook(hook)
            store.write(TABLE, KEY, files("new"), code="b")
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        after, listed = word(store), [r.rows_path.read_text().split(",")[-1].strip() for r in store.finished(TABLE)]
        store.write(TABLE, KEY, files("newer"), code="c")
        results.append((name, step, status, before, after, listed, word(store), names(root / "runs" / TABLE)))
        step += 1
print(json.dumps(results))
"""


def test_a_kill_at_any_step_leaves_the_old_or_the_new_cell(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_EVERYWHERE, str(tmp_path), TABLE, KEY],
        env={**os.environ, "PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    last = {name: step for name, step, *_ in results}
    assert len(last) == 9
    assert min(last.values()) >= 15, last  # files, folders, renames: each was a step
    lost = [
        (name, step)
        for name, step, status, before, after, listed, _, _ in results
        if after not in ({"new"} if status == 0 else {before, "new"}) or listed != [after] * (after is not None)
    ]
    assert lost == []
    # And the next write puts everything in order again.
    assert {(name, step) for name, step, *_, then, left in results if then != "newer" or set(left) != WHOLE} == set()


# --- a disk that is full ---


class Full:
    """Lets the first calls of a function through and fails the next one for want of space."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int) -> None:
        self.left = after
        self.failed = False
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.left == 0:
                self.left -= 1
                self.failed = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.left -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("owner", "name", "after"),
    [
        *((os, "mkdir", n) for n in range(1)),
        *((os, "fsync", n) for n in range(4)),
        *((Path, "replace", n) for n in range(4)),
        *((Path, "rename", n) for n in range(2)),
    ],
)
def test_a_full_disk_leaves_the_old_cell_and_no_litter(
    old: Store, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: int
) -> None:
    with monkeypatch.context() as patch:
        full = Full(patch, owner, name, after)
        with pytest.raises(OSError, match="No space left"):
            old.write(TABLE, KEY, files("new"), code="c0de")
        assert full.failed
    assert found(old) == "old"
    assert names(old) == WHOLE
    old.write(TABLE, KEY, files("new"), code="c0de")
    assert found(old) == "new"
    assert names(old) == WHOLE


def test_an_interrupted_write_leaves_the_old_cell_and_no_litter(old: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "fsync", interrupt)
        old.write(TABLE, KEY, files("new"), code="c0de")
    assert found(old) == "old"
    assert names(old) == WHOLE


# --- one file ---


def test_writing_the_same_text_again_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    assert write_text(path, "é\n")
    os.utime(path, ns=(1, 1))
    assert not write_text(path, "é\n")
    assert path.stat().st_mtime_ns == 1
    assert write_text(path, "é")
    assert path.read_bytes() == "é".encode()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("owner_name", ["fsync", "replace"])
def test_a_text_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner_name: str
) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        Full(patch, Path if owner_name == "replace" else os, owner_name, 0)
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_has_a_fixed_order() -> None:
    assert to_json({"b": 1, "a": "é"}) == '{\n "a": "é",\n "b": 1\n}\n'


# --- the lock ---

HOLDER = """
import os, sys, time
from pathlib import Path
from attnrepro.results.store import Store
with Store(Path(sys.argv[1])).lock(sys.argv[2], sys.argv[3]):
    child = os.fork() if "fork" in sys.argv else 0
    if "fork" in sys.argv and not child:
        os.close(1)
        time.sleep(600)
        os._exit(0)
    print(child, flush=True)
    sys.stdin.read()
"""
WAITER = """
import sys
from pathlib import Path
from attnrepro.results.store import Store
with Store(Path(sys.argv[1])).lock(sys.argv[2], sys.argv[3], on_wait=lambda: print("waits", flush=True)):
    print("holds", flush=True)
"""


class Processes:
    """Processes of one test; those that are left at its end are killed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.started: list[subprocess.Popen[str]] = []
        self.pids: list[int] = []

    def start(self, script: str, *words: str, key: str = KEY) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(self.store.root), TABLE, key, *words],
            env={**os.environ, "PYTHONPATH": SRC},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def hold(self, *words: str) -> subprocess.Popen[str]:
        """A process that holds the cell from now on."""
        process = self.start(HOLDER, *words)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        if child:
            self.pids.append(child)
        return process

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(store: Store) -> Iterator[Processes]:
    made = Processes(store)
    yield made
    made.end()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_waits_until_the_first_is_done(processes: Processes) -> None:
    first = processes.hold()
    second = processes.start(WAITER)
    assert line(second) == "waits"
    time.sleep(0.2)
    assert second.poll() is None
    assert line(processes.start(WAITER, key="another")) == "holds"
    first.communicate("", timeout=60)
    assert line(second) == "holds"
    assert second.wait(60) == 0


@pytest.mark.parametrize("forked", [False, True])
def test_a_killed_process_holds_nothing_even_if_its_child_lives_on(processes: Processes, forked: bool) -> None:
    first = processes.hold(*["fork"] * forked)
    second = processes.start(WAITER)
    assert line(second) == "waits"
    os.kill(first.pid, signal.SIGKILL)
    assert line(second) == "holds"
    assert second.wait(60) == 0
    for pid in processes.pids:
        os.kill(pid, 0)  # it does live on


def test_the_lock_is_free_after_an_error(processes: Processes, store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.lock(TABLE, KEY):
        _ = 1 / 0
    assert line(processes.start(WAITER)) == "holds"


def test_the_lock_is_no_cell(store: Store) -> None:
    with store.lock(TABLE, KEY):
        assert store.finished(TABLE) == []
        assert found(store) is None
