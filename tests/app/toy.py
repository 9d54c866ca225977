"""Toy tables in a temporary copy of the repository, and commands that run there.

A toy table is what any table is: one YAML, one folder, one published file. What its cells do from outside the
configuration (wait, die, say when they ran) is steered by a folder of small files, the `Side`.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TABLES = ("toy", "toy_training", "toy_derived", "toy_timing")
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="/proc says who runs and who waits")
# Generous: the two cores of a test machine may be shared.
PATIENCE = 120.0

# --- what the toy tables are ---

_YAML = """\
# @package _global_
# {about}
table: {table}
title: {about}
document: "000"
question: {question}
how_to_read: >-
  As it stands.

seeds: {seeds}
{more}
scales:
  smoke: {{n: 40}}
  cpu: {{n: 400}}
  full: {{n: 800}}

hydra:
  mode: MULTIRUN
  sweeper:
    params: {grid}
"""

# In every measure.py: what a cell does is told to, and steered by, the folder TOY_SIDE.
_SIDE = '''
import os
import signal
import time
from pathlib import Path

FOLDER = os.environ.get("TOY_SIDE")


def tell(word, cell, point):
    """Append a line to the log of all cells; one write, so that processes do not mix."""
    if FOLDER:
        with (Path(FOLDER) / "log").open("a") as log:
            log.write(f"{word} {cell.table} {cell.key} {point} {os.getpid()} {time.monotonic()}\\n")


def meet(cell, point):
    """Wait while there is a hold file for this cell; die of a kill -9 where asked."""
    if FOLDER:
        held = Path(FOLDER) / f"hold-{cell.table}-{point}"
        if held.exists():
            tell("held", cell, point)
        while held.exists():
            time.sleep(0.01)
        if (Path(FOLDER) / f"die-{cell.table}-{point}").exists():
            os.kill(os.getpid(), signal.SIGKILL)
'''

_TOY_TABLE = '''\
"""toy: the mean of normal draws."""

from dataclasses import dataclass

from attnrepro.config import Cell, in_range
from attnrepro.results.rows import Row

NAME = "toy"
AXES = ("point",)


@dataclass
class Params:
    point: int
    n: int
    shift: float
    fail: list[int]
    bulky: list[int]

    def __post_init__(self) -> None:
        in_range(self, point=(1, 6), n=(8, 10**6))


def level(p) -> float:
    return p.point + p.shift


def seconds(cell: Cell) -> float:
    return 0.5


def theory(cell: Cell) -> list[Row]:
    p = cell.params
    return [Row("level", level(p), {"point": p.point}, source="theory", statistic="mean")]


def monte_carlo(frame):
    chosen = frame[frame.theory.notna()]
    return chosen, float(len(chosen))
'''

_TOY_MEASURE = '''\
"""toy, measured."""

import torch

from attnrepro.data.streams import generator
from attnrepro.results.rows import Row
from attnrepro.training.measurement import Job, Measurement, batches
{side}

BATCHES = 4


def build(cell):
    tell("start", cell, cell.params.point)
    return Job(Draws(cell), batches(range(BATCHES * len(cell.seeds))))


class Draws(Measurement):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.streams = {{seed: generator(seed, "toy", cell.params.point) for seed in cell.seeds}}
        self.values = {{seed: [] for seed in cell.seeds}}

    def test_step(self, batch, index):
        p = self.cell.params
        if index == 2:  # in the middle
            meet(self.cell, p.point)
            if p.point in p.fail:
                raise RuntimeError(f"point {{p.point}} fails as asked")
        seed = self.cell.seeds[index // BATCHES]
        draws = torch.randn(p.n // BATCHES, generator=self.streams[seed])
        self.values[seed].append(draws + p.point + p.shift)

    def rows(self):
        p, rows = self.cell.params, []
        for seed, values in self.values.items():
            all_of_them = torch.cat(values).double()
            mean, sd = float(all_of_them.mean()), float(all_of_them.std())
            rows.append(
                Row("level", mean, {{"point": p.point}}, statistic="mean", seed=seed, n=len(all_of_them), sd=sd)
            )
        if p.point in p.bulky:  # some 10 MB
            rows += [
                Row("draw", float(i), {{"point": p.point}}, seed=self.cell.seeds[0], n=1, unit="x" * 60)
                for i in range(100_000)
            ]
        tell("end", self.cell, p.point)
        return rows
'''

_TRAINING_TABLE = '''\
"""toy_training: a line through noisy points, once for each seed."""

from dataclasses import dataclass

from attnrepro.config import in_range

NAME = "toy_training"
AXES = ()


@dataclass
class Params:
    n: int
    steps: int
    diverging: list[int]

    def __post_init__(self) -> None:
        in_range(self, n=(8, 10**6), steps=(1, 1000))
'''

_TRAINING_MEASURE = '''\
"""toy_training, measured."""

import math

import torch

from attnrepro.data.streams import generator
from attnrepro.results.rows import Row
from attnrepro.training.measurement import Job, Measurement, batches
{side}


def build(cell):
    tell("start", cell, "-")
    return Job(Line(cell), batches([None]), fit=batches(range(cell.params.steps)), max_steps=cell.params.steps)


class Line(Measurement):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.slope = torch.nn.Parameter(torch.zeros(len(cell.seeds), 1))
        streams = [generator(seed, "toy_training") for seed in cell.seeds]
        self.x = torch.stack([torch.randn(cell.params.n, generator=stream) for stream in streams])
        self.y = 2 * self.x + torch.stack([torch.randn(cell.params.n, generator=stream) for stream in streams])
        self.before = self.losses().detach()
        self.after = self.before

    def losses(self):
        return ((self.slope * self.x - self.y) ** 2).mean(dim=1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, index):
        if index == 2:
            meet(self.cell, "-")
        loss = self.losses().sum()
        self.log("loss", loss.detach())
        return loss

    def test_step(self, batch, index):
        self.after = self.losses().detach()

    def rows(self):
        rows = []
        for i, seed in enumerate(self.cell.seeds):
            failed = seed in self.cell.params.diverging
            gain = math.nan if failed else float(self.before[i] - self.after[i])
            status = "failed: diverged" if failed else "ok"
            rows.append(Row("gain", gain, statistic="paired_difference", seed=seed, n=1, status=status))
        tell("end", self.cell, "-")
        return rows
'''

_DERIVED_TABLE = '''\
"""toy_derived: one number from the rows of toy."""

from dataclasses import dataclass

NAME = "toy_derived"
AXES = ()


@dataclass
class Params:
    n: int
'''

_DERIVED_MEASURE = '''\
"""toy_derived, from rows."""

import math

from attnrepro.results.rows import Row, read_csv
{side}


def derive(cell, inputs):
    tell("start", cell, "-")
    rows = [row for path in inputs["toy"] for row in read_csv(path) if row["sd"]]
    mean = sum(float(row["value"]) for row in rows) / len(rows)
    se = math.sqrt(sum(float(row["sd"]) ** 2 / int(row["n"]) for row in rows)) / len(rows)
    n = sum(int(row["n"]) for row in rows)
    tell("end", cell, "-")
    return [
        Row("mean_level", mean, statistic="mean", seed=0, n=n, sd=se * math.sqrt(n)),
        Row("rows_read", len(rows), statistic="exact", seed=0, n=1),
    ]
'''

_TIMING_TABLE = '''\
"""toy_timing: a wall time."""

from dataclasses import dataclass

NAME = "toy_timing"
AXES = ("point",)


@dataclass
class Params:
    point: int
    n: int
'''

_TIMING_MEASURE = '''\
"""toy_timing, measured."""

import time

from attnrepro.results.rows import Row
from attnrepro.training.measurement import Job, Measurement, batches
{side}


def build(cell):
    tell("start", cell, cell.params.point)
    return Job(Clock(cell), batches(range(3)))


class Clock(Measurement):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.times = []

    def test_step(self, batch, index):
        started = time.perf_counter()
        meet(self.cell, self.cell.params.point)
        sum(range(20_000))
        self.times.append(1000 * (time.perf_counter() - started))

    def rows(self):
        p = self.cell.params
        median = sorted(self.times)[1]
        tell("end", self.cell, p.point)
        return [Row("duration", median, {{"point": p.point}}, statistic="median", seed=0, n=1, unit="ms")]
'''

_PUBLISHED_HEAD = "quantity,statistic,published,low,high,class,margin,reason\n"

_FILES: dict[str, dict[str, str]] = {
    "toy": {
        "yaml": _YAML.format(
            table="toy",
            about="Toy",
            question="Is the mean of draws where it was put?",
            seeds="[0]",
            more="params: {point: 1, n: '${scales.${scale}.n}', shift: 0.25, fail: [], bulky: []}",
            grid='{params.point: "1,2,3,4,5,6"}',
        ),
        "table.py": _TOY_TABLE,
        "measure.py": _TOY_MEASURE.format(side=_SIDE),
        "published": "claim,point,"
        + _PUBLISHED_HEAD
        + "toy-exact,1,level,mean,1.25,,,exact,,the mean is the shift\n"
        + "toy-sampling,2,level,mean,2.30,,,sampling,100,from 100 draws\n",
    },
    "toy_training": {
        "yaml": _YAML.format(
            table="toy_training",
            about="Toy training",
            question="Does training help?",
            seeds="[0, 1, 2, 3, 4, 5, 6]",
            more="params: {n: '${scales.${scale}.n}', steps: 20, diverging: [4]}",
            grid="{}",
        ),
        "table.py": _TRAINING_TABLE,
        "measure.py": _TRAINING_MEASURE.format(side=_SIDE),
        "published": "claim,"
        + _PUBLISHED_HEAD
        + "toy-trend,gain,paired_difference,,,,ordinal,,training lowers the loss\n",
    },
    "toy_derived": {
        "yaml": _YAML.format(
            table="toy_derived",
            about="Toy from rows",
            question="What is the mean of the means?",
            seeds="[0]",
            more="kind: derived\nneeds: [toy]\nparams: {n: '${scales.${scale}.n}'}",
            grid="{}",
        ),
        "table.py": _DERIVED_TABLE,
        "measure.py": _DERIVED_MEASURE.format(side=_SIDE),
        "published": "claim,"
        + _PUBLISHED_HEAD
        + "toy-derived,mean_level,mean,3.75,,,scaling,0.1,the points are 1 to 6\n",
    },
    "toy_timing": {
        "yaml": _YAML.format(
            table="toy_timing",
            about="Toy timing",
            question="How long does it take?",
            seeds="[0]",
            more="timing: true\nparams: {point: 1, n: '${scales.${scale}.n}'}",
            grid='{params.point: "1,2"}',
        ),
        "table.py": _TIMING_TABLE,
        "measure.py": _TIMING_MEASURE.format(side=_SIDE),
        "published": "claim,point,"
        + _PUBLISHED_HEAD
        + "toy-timing,1,duration,median,3.0,,,scaling,,a time of their machine\n",
    },
}


# --- the copy ---


def add_table(root: Path, table: str, like: str | None = None) -> None:
    """Write the files of a toy table; with `like`, those of another one under this name."""
    files = {kind: text.replace(like, table) if like else text for kind, text in _FILES[like or table].items()}
    folder = root / "experiments" / table
    folder.mkdir()
    (folder / "table.py").write_text(files["table.py"])
    (folder / "measure.py").write_text(files["measure.py"])
    (root / "conf" / "experiment" / f"{table}.yaml").write_text(files["yaml"])
    published = files["published"] if like is None else files["published"].replace("toy-", f"{table}-")
    (root / "results" / "published" / f"{table}.csv").write_text(published)


def copy_repository(root: Path, tables: Sequence[str], *, whole: bool = False) -> Copy:
    """Copy what a run needs and add toy tables; the repository's own tables stay only if `whole`."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("conf", "experiments", "src", "scripts", "results/published"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=ignored)
    if not whole:
        for path in (root / "conf" / "experiment").glob("*.yaml"):
            path.unlink()
            (root / "results" / "published" / f"{path.stem}.csv").unlink(missing_ok=True)
            shutil.rmtree(root / "experiments" / path.stem)
    for table in tables:
        add_table(root, table)
    return Copy(root)


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Copy:
    """A copy of the repository, and commands that run its code in processes of their own."""

    root: Path

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace the one occurrence of a text in a file."""
        path = self.root / name
        text = path.read_text()
        assert text.count(old) == 1, f"{text.count(old)} times {old!r} in {name}"
        path.write_text(text.replace(old, new))
        # Python tells an old .pyc by whole seconds and size, which an edit at once may leave as they were.
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)

    def start(
        self, *command: str, side: Side | None = None, cwd: Path | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start `attnrepro ...` or `<script>.py ...` in a session of its own."""
        head = ["-m", "attnrepro"] if command[0] == "attnrepro" else [str(self.root / "scripts" / command[0])]
        environment = clean_environment() | {
            "HOME": str(self.root.parent / "home"),
            "PYTHONPATH": str(self.root / "src"),
            **options.pop("env", {}),
        }
        if side:
            environment["TOY_SIDE"] = str(side.folder)
        return subprocess.Popen(
            [sys.executable, *head, *command[1:]],
            env=environment,
            cwd=cwd or self.root.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def run(self, *command: str, **options: Any) -> Done:
        """Run a command to its end."""
        return finish(self.start(*command, **options))


def finish(process: subprocess.Popen[str]) -> Done:
    """Wait for a command."""
    out, err = process.communicate(timeout=PATIENCE)
    return Done(process.returncode, out, err)


def clean_environment() -> dict[str, str]:
    """The environment of somebody without accounts, proxies, GPU and settings of ours."""
    dropped = ("WANDB_", "ATTNREPRO_", "HYDRA_", "TOY_", "MAKE", "MFLAGS", "PYTHON", "OPENBLAS_", "MKL_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped) and not k.lower().endswith("_proxy")}
    for name in ("NETRC", "TABLE", "SCALE", "JOBS", "ARGS", "TORCH"):
        kept.pop(name, None)
    return kept | {"CUDA_VISIBLE_DEVICES": ""}


# --- what cells say and are told ---


@dataclass(frozen=True)
class Event:
    """A line of the log that toy cells write."""

    word: str
    table: str
    key: str
    point: str
    pid: int
    time: float


@dataclass(frozen=True)
class Side:
    """The folder through which toy cells are watched and steered; its path marks every process of a run."""

    folder: Path

    def hold(self, table: str, *points: object) -> None:
        """Let these cells wait in their middle."""
        for point in points:
            (self.folder / f"hold-{table}-{point}").touch()

    def release(self) -> None:
        """Let every cell go on."""
        for path in self.folder.glob("hold-*"):
            path.unlink()

    def kill(self, table: str, point: object) -> None:
        """Let the process of this cell die of SIGKILL."""
        (self.folder / f"die-{table}-{point}").touch()

    def events(self, word: str, table: str | None = None) -> list[Event]:
        """What was logged so far."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.is_file() else []
        events = [Event(w, t, key, point, int(pid), float(at)) for w, t, key, point, pid, at in map(str.split, lines)]
        return [e for e in events if e.word == word and table in (None, e.table)]

    def starts(self, table: str | None = None) -> dict[str, int]:
        """How often each cell was begun, by its point in the order of the points."""
        points = sorted(e.point for e in self.events("start", table))
        return {point: points.count(point) for point in points}

    def forget(self) -> None:
        """Start the log anew."""
        (self.folder / "log").unlink(missing_ok=True)

    def processes(self) -> dict[int, str]:
        """Every process that carries the mark of this run in its environment, with its command line."""
        mark = f"TOY_SIDE={self.folder}".encode()
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def end(self) -> None:
        """Kill what is left of the run."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> float:
    """Poll until something holds; returns how long it took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < seconds, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - started


def waits_for_a_cell(results: Path) -> bool:
    """Whether a process waits for the lock of a cell that another one holds."""
    inodes = {str(path.stat().st_ino) for path in (results / "runs").glob("*/*.lock")}
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and line.split()[6].rsplit(":", 1)[1] in inodes for line in lines)


def counted(table: str, err: str) -> tuple[int, int, int]:
    """How many cells of a table ran, were reused, and failed or did not run, as the closing list says."""
    (found,) = re.findall(rf"^{table}: (\d+) ran, (\d+) reused.*?, (\d+) failed or not run", err, re.MULTILINE)
    ran, reused, failed = map(int, found)
    return ran, reused, failed


# --- this process in a copy ---


@dataclass
class Inside:
    """This process running as if the package lay in the copy: commands cost no import of torch."""

    copy: Copy
    results: Path
    capture: Any
    seen: int = field(default=0, init=False)

    def attnrepro(self, *arguments: str) -> Done:
        """Run the console script into `results`, untracked."""
        from attnrepro.app import main

        self.refresh()
        self.capture.readouterr()
        code = main.main([*arguments, f"results={self.results}", "tracking=disabled"])
        out, err = self.capture.readouterr()
        return Done(code, out, err)

    def build(self, **options: Any) -> Any:
        """Build tables and report, no dashboard, from `results`."""
        from attnrepro.app import report

        self.refresh()
        return report.build(self.results, dashboard=False, **options)

    def table(self, name: str = "toy") -> list[dict[str, str]]:
        """Rows of a built table."""
        return read_table(self.results, name)

    def refresh(self) -> None:
        """Forget modules and answers if a file of a table has changed."""
        files = [*(self.copy.root / "conf").rglob("*.yaml"), *(self.copy.root / "experiments").rglob("*.py")]
        changed = max(path.stat().st_mtime_ns for path in files)
        if changed > self.seen:
            self.seen = changed
            self.forget()

    @staticmethod
    def forget() -> None:
        """Forget modules and answers that belong to one state of one copy."""
        from attnrepro import codeversion, environment
        from attnrepro.app import gather, precheck, predict

        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name.startswith("attnrepro.tables.")]:
            del sys.modules[name]
        for module in (codeversion, environment, gather, precheck, predict):
            for member in vars(module).values():
                if hasattr(member, "cache_clear"):
                    member.cache_clear()


def inside(copy: Copy, monkeypatch: Any, capture: Any) -> Iterator[Inside]:
    """Make this process run the tables of a copy until the end of a test."""
    from attnrepro import paths, tables

    saved = dict(os.environ)
    # Test modules hold the real tables: what they patch must be what runs when this test is over.
    loaded = {name: module for name, module in sys.modules.items() if name.startswith("attnrepro.tables.")}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    os.environ.clear()
    os.environ.update(clean_environment() | {"ATTNREPRO_SCRATCH": str(copy.root.parent / "scratch")})
    monkeypatch.setattr(paths, "_REPOSITORY", copy.root)
    monkeypatch.setattr(tables, "__path__", [str(copy.root / "experiments")])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    try:
        yield Inside(copy, copy.root / "results", capture)
    finally:
        Inside.forget()
        sys.modules.update(loaded)
        for name in TABLES:
            if hasattr(tables, name):
                delattr(tables, name)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(saved)


# --- what is on disk ---


def read_table(results: Path, name: str) -> list[dict[str, str]]:
    """Rows of `tables/<name>.csv`."""
    with (results / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def cells(results: Path, table: str) -> dict[str, Path]:
    """Folders of the finished cells of a table, by key."""
    return {path.parent.name: path.parent for path in sorted((results / "runs" / table).glob("*/done.json"))}


def rows_of(results: Path, table: str) -> dict[str, bytes]:
    """Raw rows of the finished cells, by key."""
    return {key: (folder / "rows.csv").read_bytes() for key, folder in cells(results, table).items()}


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Time of change and content of everything under a folder."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }
