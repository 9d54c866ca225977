"""The store of finished cells: content-addressed folders, written whole or not at all, one lock a cell."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE = "done.json"
FAILED = "failed.json"
ROWS = "rows.csv"
BESIDE = ("config.yaml", "run.json")


@dataclass(frozen=True)
class Record:
    """A finished cell as found on disk."""

    folder: Path
    done: Mapping[str, Any]

    @property
    def rows_path(self) -> Path:
        """Its rows."""
        return self.folder / ROWS

    @property
    def code(self) -> str:
        """Version of the code that made it."""
        return str(self.done["code"])

    @property
    def run(self) -> dict[str, Any]:
        """Its provenance."""
        result: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return result

    @property
    def science(self) -> dict[str, Any]:
        """The scientific part of its configuration."""
        # JSON is YAML too, and is read fifty times faster: a results folder may hold hundreds of cells.
        result: dict[str, Any] = json.loads((self.folder / "config.yaml").read_text(encoding="utf-8"))
        return result


class Store:
    """Folders ``<root>/runs/<table>/<key>/``.

    A cell counts as finished when ``done.json`` is there and names the checksums that its files have. A new
    result is prepared beside the old one and swapped in, so that a crash at any moment leaves the old or the new.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"

    def folder(self, table: str, key: str) -> Path:
        """Where a cell lies or will lie."""
        return self.runs / table / key

    def find(self, table: str, key: str) -> Record | None:
        """The finished cell, or None; damaged and half-written folders do not count."""
        folder = self.folder(table, key)
        for candidate in (folder, folder.with_suffix(".old")):  # .old: a crash fell between the two renames
            record = _read(candidate)
            if record:
                return record
        return None

    def finished(self, table: str) -> list[Record]:
        """Every finished cell of a table, by key."""
        folder = self.runs / table
        keys = {path.name.removesuffix(".old") for path in folder.iterdir()} if folder.is_dir() else set()
        records = (self.find(table, key) for key in sorted(keys) if not key.endswith((".new", ".lock")))
        return [record for record in records if record]

    def failure(self, table: str, key: str) -> dict[str, Any] | None:
        """Why the last attempt at a cell failed, if it did."""
        path = self.folder(table, key) / FAILED
        try:
            result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result

    def failures(self, table: str) -> list[dict[str, Any]]:
        """Why cells that have no result were not finished when they were last tried, by key."""
        keys = sorted(path.parent.name for path in (self.runs / table).glob(f"*/{FAILED}"))
        return [note for key in keys if not self.find(table, key) and (note := self.failure(table, key))]

    @contextlib.contextmanager
    def lock(self, table: str, key: str, *, on_wait: Any = None) -> Iterator[None]:
        """Hold the cell alone; waits for another process that holds it (``on_wait()`` is called once first).

        ``lockf`` and not ``flock``: a flock lives on in a child that outlives its killed parent.
        """
        path = self.runs / table / f"{key}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if on_wait:
                    on_wait()
                fcntl.lockf(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(file, fcntl.LOCK_UN)

    def is_locked(self, table: str, key: str) -> bool:
        """Whether another process holds the cell now: it is being measured."""
        path = self.runs / table / f"{key}.lock"
        if not path.is_file():
            return False
        with path.open("a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            fcntl.lockf(file, fcntl.LOCK_UN)
        return False

    def running(self, table: str) -> list[str]:
        """Keys of the cells of a table that other processes hold now."""
        keys = sorted(path.stem for path in self.runs.glob(f"{table}/*.lock"))
        return [key for key in keys if self.is_locked(table, key)]

    def write(self, table: str, key: str, files: Mapping[str, str], *, code: str, log: Path | None = None) -> None:
        """Record a finished cell whole; the caller holds its lock."""
        folder = self.folder(table, key)
        new, old = folder.with_suffix(".new"), folder.with_suffix(".old")
        self._recover(folder)
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            for name, content in files.items():
                write_text(new / name, content)
            if log and log.is_file():
                shutil.copyfile(log, new / "job.log")
            sums = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()}
            write_text(new / DONE, to_json({"code": code, "sha256": sums}))
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            if old.exists() and not folder.exists():
                old.rename(folder)
            raise
        _sync_folder(folder.parent)
        shutil.rmtree(old, ignore_errors=True)

    @staticmethod
    def _recover(folder: Path) -> None:
        """Put right what a crash between the two renames left: the cell moved aside and nothing in its place."""
        old = folder.with_suffix(".old")
        if _read(folder) is None and _read(old) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            old.rename(folder)
        shutil.rmtree(old, ignore_errors=True)

    def write_failure(self, table: str, key: str, failure: Mapping[str, object], log: Path | None = None) -> Path:
        """Record why an attempt failed beside whatever is there; a finished cell stays finished."""
        folder = self.folder(table, key)
        self._recover(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FAILED, to_json(failure))
        if log and log.is_file():
            shutil.copyfile(log, folder / "job.log")
        return folder / "job.log"


def _read(folder: Path) -> Record | None:
    try:
        done = json.loads((folder / DONE).read_text(encoding="utf-8"))
        sums = done["sha256"]
        whole = {*BESIDE, ROWS} <= sums.keys() and isinstance(done["code"], str)
        if whole and all(hashlib.sha256((folder / n).read_bytes()).hexdigest() == sums[n] for n in sums):
            return Record(folder, done)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def to_json(data: object) -> str:
    """Readable JSON with a fixed order."""
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def write_text(path: Path, content: str) -> bool:
    """Write a file whole (temporary file, fsync, rename); False, touching nothing, when it is there already."""
    data = content.encode()
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return True


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
