"""The steps of ``scripts/gpu_check.sh`` that measure cells; each is a process that notes how far it is."""

import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from attnrepro import environment, paths
from attnrepro.app.gpu_check import FAILED, NOT_RUN, OK, PARTLY, note_path

if TYPE_CHECKING:  # what these need may be missing, and the facts of the machine are told all the same
    from attnrepro.app.precheck import Plan, Planned
    from attnrepro.app.reproduce import Task
    from attnrepro.results.store import Record

HEADLINE = ("position_strength", "permutation_symmetry")
# Cells of these studies first when time may run out; studies that are not named come last.
FIRST = (
    *("published", "training", "strength", "ceiling", "population", "budget"),
    *("alternatives", "equivariance", "size", "codes"),
)
# Seconds of the agreement step for starting, stopping and comparing.
APART = 25.0
# Of the full step, for stopping.
APART_FULL = 12.0
# Cells on the GPU at the same time: one alone leaves it idle while Python prepares the next kernel.
GPU_WORKERS = 2
# Cells planned for it fill this share of the cores' time: predictions are rough.
FILLED = 0.4


@dataclasses.dataclass(frozen=True)
class Run:
    """What a step was asked to do."""

    name: str
    device: str
    root: Path
    limit: float
    tables: tuple[str, ...]

    @property
    def trainer(self) -> str:
        """The trainer of the configuration."""
        return "gpu" if self.device == "cuda" else "cpu"

    def note(self, result: str, why: str) -> None:
        """How far the step is; the last note counts when it is stopped."""
        path = note_path(self.root, self.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"result": result, "why": why}), encoding="utf-8")
        new.replace(path)
        print(f"{result}: {why}", flush=True)


# --- what the machine is ---


def facts(run: Run) -> None:
    """Device, driver and versions; whether torch and our own look-up see the same device, and it can count."""
    import torch

    found = environment.provenance(run.device)
    found |= {"torch_cuda": torch.version.cuda, "torch_sees_cuda": torch.cuda.is_available(), "driver": _driver()}
    problem = ""
    if run.device == "cuda":
        if not torch.cuda.is_available():
            problem = "torch sees no CUDA device"
        elif environment.cuda_device() != torch.cuda.get_device_name(0):
            problem = f"torch sees {torch.cuda.get_device_name(0)}, the driver says {environment.cuda_device()}"
        else:
            free, total = torch.cuda.mem_get_info()
            capability = ".".join(map(str, torch.cuda.get_device_capability()))
            found |= {"memory_free_gb": free / 1e9, "memory_total_gb": total / 1e9, "capability": capability}
            found["tf32"] = torch.backends.cuda.matmul.allow_tf32
            a = torch.randn(300, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            gap = float(((a.cuda() @ a.cuda()).cpu() - a @ a).abs().max())
            problem = "" if gap < 1e-10 else f"a matrix product in float64 is off by {gap:.2g}"
    found["problem"] = problem
    for name, value in found.items():
        print(f"  {name}: {json.dumps(value)}")
    (run.root / "facts.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    run.note(FAILED if problem else OK, problem or f"{found['environment']}, CUDA {found['torch_cuda']}")


def _driver() -> str:
    """The NVIDIA driver's version, from the kernel or from its own tool."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="utf-8").strip()
    except OSError:
        import subprocess

        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            return subprocess.run(query, capture_output=True, text=True, timeout=15, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return "unknown"


# --- cells ---


def smoke(run: Run) -> None:
    """Every cell of every table at the smallest size, in a folder that is thrown away.

    Cells only: what makes reports of them may be missing.
    """
    from attnrepro.app.main import execute, failures
    from attnrepro.app.precheck import make_plan
    from attnrepro.app.reproduce import in_order

    names = in_order(paths.table_names())
    wrong: list[str] = []
    cells = 0
    with tempfile.TemporaryDirectory(prefix="attnrepro-smoke-") as root:
        for number, table in enumerate(names):
            run.note(FAILED, f"{number} of {len(names)} tables{_also(wrong)}")
            try:
                plan = make_plan(_overrides(table, "smoke", Path(root), run.trainer))
                planned = plan.to_run
                execute(plan)
                for line in failures(plan, planned):
                    wrong.append(line.strip())
                records = [plan.store.find(table, p.cell.key) for p in planned]
                cells += sum(record is not None for record in records)
                if strangers := sum(r is not None and r.run["device"] != run.device for r in records):
                    wrong.append(f"{table}: {strangers} cells ran on another device")
            except Exception as error:
                wrong.append(f"{table}: {type(error).__name__}: {error}")
    run.note(FAILED if wrong else OK, f"{cells} cells of {len(names)} tables{_also(wrong)}")


def full(run: Run) -> None:
    """The headline tables at scale full, the most telling cells first; finished ones are kept."""
    from attnrepro.app.reproduce import Task
    from attnrepro.app.run import label

    scale = "full" if run.device == "cuda" else "smoke"
    wrong: list[str] = []
    cells = sorted(_cells(run, scale, [(run.root, run.trainer)], wrong), key=lambda pair: _rank(pair[0]))
    # A process for each cell, because an error of the device spoils its process; the runner takes large times first.
    tasks = [Task(one.plan, float(-rank)) for rank, (one,) in enumerate(cells) if one.planned.to_run]
    run.note(FAILED, f"{len(tasks)} of {len(cells)} cells at scale {scale} are to be measured{_also(wrong)}")
    in_time = _measure(tasks, GPU_WORKERS, run.limit - APART_FULL)
    found = [one for (one,) in cells if one.record]
    for (one,) in cells:
        if one.record:
            print(f"{one.record.run['wall_seconds']:8.1f} s  {one.plan.table} {label(one.planned.overrides)}")
    wrong += _failures([one for (one,) in cells], in_time=in_time)
    result = FAILED if wrong or not found else OK if len(found) == len(cells) else PARTLY
    open_ = next((f", next {one.plan.table} {label(one.planned.overrides)}" for (one,) in cells if not one.record), "")
    run.note(result, f"{len(found)} of {len(cells)} cells at scale {scale}{open_}{_also(wrong)}")


@dataclasses.dataclass(frozen=True)
class One:
    """One cell, with a plan that holds it alone."""

    plan: "Plan"

    @property
    def planned(self) -> "Planned":
        """The cell as planned."""
        return self.plan.cells[0]

    @property
    def record(self) -> "Record | None":
        """The finished cell, if it is."""
        found = self.plan.store.find(self.plan.table, self.planned.cell.key)
        return found if found and found.code == self.planned.code else None


def _cells(run: Run, scale: str, sides: Sequence[tuple[Path, str]], wrong: list[str]) -> list[tuple[One, ...]]:
    """Every cell of the chosen tables, once for each side (folder of results, trainer)."""
    from attnrepro.app.precheck import make_plan

    cells: list[tuple[One, ...]] = []
    for table in run.tables:
        try:
            plans = [make_plan(_overrides(table, scale, root, trainer)) for root, trainer in sides]
        except Exception as error:  # one table's fault hides no other
            wrong.append(f"{table}: {type(error).__name__}: {error}")
            continue
        for same in zip(*(plan.cells for plan in plans), strict=True):
            ones = (dataclasses.replace(p, cells=[c], one_cell=False) for p, c in zip(plans, same, strict=True))
            cells.append(tuple(One(plan) for plan in ones))
    return cells


def _measure(tasks: "Sequence[Task]", workers: int, seconds: float) -> bool:
    """Run tasks for at most so many seconds; whether they all had their turn."""
    from attnrepro.app.bar import Bar
    from attnrepro.app.reproduce import Runner

    total = sum(len(task.plan.cells) for task in tasks)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _alarm(seconds), Bar(total) as bar:
            Runner(workers, total, 0.0, bar).run(tasks)
    except TimeUp:
        return False
    return True


def _failures(cells: Sequence[One], *, in_time: bool) -> list[str]:
    """Cells that failed, and those that had their turn and left nothing."""
    from attnrepro.app.run import label

    wrong = []
    for one in cells:
        if not one.record:
            failure = one.plan.store.failure(one.plan.table, one.planned.cell.key)
            if failure or in_time:
                why = failure["error"] if failure else "its process ended without a word"
                wrong.append(f"{one.plan.table} {label(one.planned.overrides)}: {why}")
    return wrong


def _overrides(table: str, scale: str, root: Path, trainer: str) -> list[str]:
    """One table on one device; a cell that other code finished is run again."""
    frame = [f"experiment={table}", f"scale={scale}", f"trainer={trainer}"]
    return [*frame, "tracking=disabled", "stale=rerun", f"results={root}"]


def _rank(one: One) -> int:
    study = getattr(one.planned.cell.params, "study", "")
    return FIRST.index(study) if study in FIRST else len(FIRST)


def _also(wrong: Sequence[str]) -> str:
    """The first things that went wrong, for the table; the log has them all."""
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return f"; {'; '.join(wrong[:3])}{more}" if wrong else ""


# --- do two devices agree? ---


class TimeUp(BaseException):
    """The step must stop measuring and compare what there is."""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise ``TimeUp`` here after so many seconds."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def agreement(run: Run) -> None:
    """The same cells at scale cpu on the device and on the CPU at the same time, then compared as `make check` does."""
    from attnrepro.app.predict import predict
    from attnrepro.app.reproduce import Task

    wrong: list[str] = []
    cells = _cells(run, "cpu", [(run.root, run.trainer), (run.root / "cpu", "cpu")], wrong)
    cores = os.cpu_count() or 1
    # Cheap cells first, as many as fit; without a GPU both sides share the cores.
    room, chosen = FILLED * run.limit * cores / (1 if run.device == "cuda" else 2), []
    for seconds, pair in sorted(((predict(pair[1].planned) or 0.0, pair) for pair in cells), key=lambda item: item[0]):
        if seconds <= FILLED * run.limit and seconds <= room:
            room -= seconds
            chosen.append(pair)
    run.note(FAILED, f"measuring {len(chosen)} of {len(cells)} cells on both{_also(wrong)}")
    queue: list[list[One]] = [[one] for _, one in chosen]
    if run.device == "cuda":
        # A process for each table on the device, before all that the CPU has to do.
        queue[:0] = [[one for one, _ in chosen if one.plan.table == table] for table in run.tables]
    else:
        queue = [[one] for pair in chosen for one in pair]
    tasks = []
    for rank, ones in enumerate(queue):
        if to_run := [one.planned for one in ones if one.planned.to_run]:
            tasks.append(Task(dataclasses.replace(ones[0].plan, cells=to_run), float(-rank)))
    in_time = _measure(tasks, cores, run.limit - APART)
    for side in (0, 1):
        wrong += _failures([pair[side] for pair in chosen], in_time=in_time)
    both = [(one.plan.table, one.planned.cell.key) for one, other in chosen if one.record and other.record]
    late = "" if in_time else "; time was up"
    if not both:
        run.note(FAILED, f"no cell was measured on both{late}{_also(wrong)}")
        return
    said = compare(both, run.root, run.root / "cpu", wrong)
    result = FAILED if wrong else OK if in_time else PARTLY
    run.note(result, f"{len(both)} of {len(cells)} cells on both{late}{said}{_also(wrong)}")


def compare(cells: Sequence[tuple[str, str]], device: Path, cpu: Path, wrong: list[str]) -> str:
    """Hold finished cells ``(table, key)`` of one root against those of another; differences go to ``wrong``.

    Two devices give other bytes, so that rows are compared by class (``attnrepro.app.check``): exact ones up to
    round-off, the others by a test, Holm's correction over all of them. Returns what was done.
    """
    from attnrepro.app.accept import accept
    from attnrepro.app.check import check
    from attnrepro.results.store import Store

    tables = list(dict.fromkeys(table for table, _ in cells))
    with tempfile.TemporaryDirectory(prefix="attnrepro-agreement-") as scratch:
        shared, raw = Store(Path(scratch) / "results"), Path(scratch) / "raw"
        for table, key in cells:
            shutil.copytree(Store(cpu).folder(table, key), shared.folder(table, key))
        for table in tables:
            accept(table, shared, raw)
        results, tested = check(tables, Store(device), raw)
    for result in results:
        for sentence in result.said:
            print(f"{result.table}: {sentence}")
        for failure in result.failures:
            print(f"DIFFERS {result.table}: {failure}")
        wrong += [f"{result.table}: {failure}" for failure in result.failures]
        if not result.done:
            wrong.append(f"{result.table}: was not compared")
    return tested


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


MEASURING: dict[str, Callable[[Run], None]] = {"facts": facts, "smoke": smoke, "agreement": agreement, "full": full}


def main(argv: Sequence[str]) -> int:
    """``<step> <cuda or cpu> <folder> <seconds> <tables>``; what came out is in the step's note."""
    name, device, root, limit, *tables = argv
    known = paths.table_names()
    chosen = tuple(table for table in tables or HEADLINE if tables or table in known)
    run = Run(name, device, Path(root), float(limit), chosen)
    if not chosen:
        run.note(NOT_RUN, f"there is no headline table here yet; they are {', '.join(HEADLINE)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="attnrepro-") as scratch:
        os.environ["ATTNREPRO_SCRATCH"] = scratch
        MEASURING[name](run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
