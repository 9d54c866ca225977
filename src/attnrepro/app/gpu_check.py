"""``scripts/gpu_check.sh``: one step after the other, each a process with a time limit, and a table of what came out.

Made for a machine that is there for minutes and lacks half of what a desk has: this module needs the standard library
alone, and whatever becomes of a step, the next one is run. The steps are in ``attnrepro.app.gpu_steps``.
"""

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).resolve().parents[3]
# Seconds for everything, for ending a step that is asked to, and for the archive at the end.
TOTAL, GRACE, CLOSING = 480.0, 10.0, 25.0
OK, FAILED, PARTLY, NOT_RUN = "ok", "FAILED", "partly", "not run"
# What must import, and how to see that it works: an antlr4 of another version fails when a reference is parsed.
PROBES = {
    "hydra-core": "import hydra; assert hydra.__version__.startswith('1.3.'), hydra.__version__",
    "omegaconf": "import omegaconf; omegaconf.OmegaConf.create({'a': '${b}', 'b': 1}).a",
    "antlr4-python3-runtime": "import antlr4, omegaconf; omegaconf.OmegaConf.create({'a': '${b}', 'b': 1}).a",
    "PyYAML": "import yaml",
    "scipy": "from scipy import optimize, special",
    "torch": "import importlib.util; assert importlib.util.find_spec('torch')",
    "lightning": "import importlib.util; assert importlib.util.find_spec('lightning')",
    "torchmetrics": "import importlib.util; assert importlib.util.find_spec('torchmetrics')",
    "pandas": "import pandas",
}
PROBE = """
import json, sys
missing = {}
for package, code in json.loads(sys.argv[1]).items():
    try:
        exec(code, {})
    except Exception as error:
        missing[package] = f"{type(error).__name__}: {error}"
print(json.dumps(missing))
"""
# What a folder of wheels can bring; torch and what is built on it are the image's own.
FROM_WHEELS = ("hydra-core", "omegaconf", "antlr4-python3-runtime", "PyYAML", "scipy")


@dataclass(frozen=True)
class Step:
    """A step with its limit in seconds; infinite: all the time that is left."""

    name: str
    limit: float


STEPS = (
    Step("facts", 45),
    Step("smoke", 90),
    Step("tests", 60),
    Step("agreement", 140),
    Step("throughput", 60),
    Step("full", math.inf),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    name: str
    result: str
    why: str
    seconds: float = 0.0


class Interrupted(Exception):
    """Somebody wants the whole check to end."""


class Check:
    """One run of all steps; the cells stay in ``root``, where the next run goes on from them."""

    def __init__(self, root: Path, device: str, tables: Sequence[str]) -> None:
        self.root, self.device, self.tables = root, device, tuple(tables)
        self.until = time.monotonic() + TOTAL - CLOSING
        self.outcomes: list[Outcome] = []
        # What numpy and cuBLAS need in order to repeat themselves; and nobody who only asks for a GPU while a package
        # is imported may start CUDA, because processes that are forked after that cannot use it.
        self.environment = {
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
        }
        for folder in ("logs", "notes"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        """Packages, then every step; the outcomes are in ``outcomes``."""
        with tempfile.TemporaryDirectory(prefix="attnrepro-packages-") as packages:
            try:
                self._add(self._packages(Path(packages)))
                blocked = self._blocked("packages", "packages are missing")
                for step in STEPS:
                    # What the machine is, is said in any case.
                    reason = None if step.name == "facts" else blocked
                    command = self._command(step) if reason is None else reason
                    limit = min(step.limit, self.until - time.monotonic())
                    if isinstance(command, str):
                        self._add(Outcome(step.name, NOT_RUN, command))
                    elif limit < GRACE:
                        self._add(Outcome(step.name, NOT_RUN, "no time left"))
                    else:
                        self._add(self.step(step.name, command, limit))
                    blocked = blocked or self._blocked("facts", "the device cannot be used")
            except Interrupted:
                done = {outcome.name for outcome in self.outcomes}
                left = [name for name in ("packages", *(step.name for step in STEPS)) if name not in done]
                for name in left:
                    self._add(Outcome(name, FAILED if name == left[0] else NOT_RUN, "interrupted"))

    def _blocked(self, name: str, reason: str) -> str | None:
        return reason if any(o.name == name and o.result == FAILED for o in self.outcomes) else None

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        _say(f"{outcome.name}: {outcome.result}, {outcome.seconds:.0f} s. {outcome.why}")

    def _command(self, step: Step) -> list[str] | str:
        """The command of a step, or why there is none."""
        if step.name == "tests":
            if importlib.util.find_spec("pytest") is None:
                return "pytest is not installed"
            if not (REPOSITORY / "tests" / "gpu").is_dir():
                return "tests/gpu is not there"
            # The image's pytest may be older than the one that tests here are written with.
            options = ["-q", "-o", "minversion=8", "-p", "no:cacheprovider"]
            return [sys.executable, "-m", "pytest", *options, "tests/gpu"]
        if step.name == "throughput" and not (REPOSITORY / "benchmarks" / "ensemble.py").is_file():
            return "benchmarks/ensemble.py is not there"
        if step.name == "throughput":
            sizes = ["1", "8", "64", "512", "--repeats", "2"] if self.device == "cuda" else ["1", "8", "--repeats", "1"]
            return [sys.executable, "benchmarks/ensemble.py", "--device", self.device, "--seeds", *sizes]
        limit = min(step.limit, self.until - time.monotonic())
        # Relative: the folder is recorded with the command line of every cell, and its parents are nobody's business.
        root = os.path.relpath(self.root, REPOSITORY)
        arguments = [step.name, self.device, root, f"{limit:.0f}", *self.tables]
        return [sys.executable, "-m", "attnrepro.app.gpu_steps", *arguments]

    def _packages(self, target: Path) -> Outcome:
        """Take what does not import from the folder of wheels, into a folder of its own; the image stays as it is."""
        started = time.monotonic()
        missing = self._missing()
        wanted = [package for package in FROM_WHEELS if package in missing]
        wheels = REPOSITORY / "build" / "gpu-wheels"
        said = ""
        if wanted:
            # Without dependencies: pip would put a second numpy beside the image's own.
            options = ["--no-index", "--no-deps", "--find-links", str(wheels), "--target", str(target)]
            installed = self._output([sys.executable, "-m", "pip", "install", "-q", *options, *wanted], 60)
            self.environment["PYTHONPATH"] = os.pathsep.join(
                [str(target), *filter(None, [self.environment.get("PYTHONPATH")])]
            )
            said = _last_line(installed)
            missing = self._missing()
        seconds = time.monotonic() - started
        if missing:
            reasons = "; ".join(f"{package} ({reason})" for package, reason in missing.items())
            hint = f"; pip: {said}" if said else ""
            return Outcome("packages", FAILED, f"missing: {reasons}{hint}; make gpu-wheels fills {wheels}", seconds)
        return Outcome("packages", OK, f"from wheels: {', '.join(wanted)}" if wanted else "all there", seconds)

    def _missing(self) -> dict[str, str]:
        """Packages that do not work, with the reason."""
        output = self._output([sys.executable, "-c", PROBE, json.dumps(PROBES)], 60)
        try:
            missing: dict[str, str] = json.loads(output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {"python": _last_line(output) or "no answer"}
        return missing

    def _output(self, command: Sequence[str], limit: float) -> str:
        """Standard output and error of a short command."""
        with tempfile.TemporaryFile() as file:
            self._wait(command, limit, file.fileno())
            file.seek(0)
            return file.read().decode(errors="replace")

    def _wait(self, command: Sequence[str], limit: float, output: int) -> int | None:
        """Exit code of a command; None when it ran into its limit. Nothing of it is left behind."""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=REPOSITORY,
            env=self.environment,
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)

    def step(self, name: str, command: Sequence[str], limit: float) -> Outcome:
        """Run one step for at most ``limit`` seconds and judge what it leaves."""
        _say(f"--- {name}, at most {limit:.0f} s")
        started = time.monotonic()
        note, log = note_path(self.root, name), self.root / "logs" / f"{name}.log"
        note.unlink(missing_ok=True)
        with log.open("wb") as file:
            code = self._wait(command, limit, file.fileno())
        seconds = time.monotonic() - started
        text = log.read_text(encoding="utf-8", errors="replace")
        _say(text.rstrip() if name in ("facts", "throughput") else "\n".join(text.splitlines()[-12:]))
        result, why = _judged(code, _read(note), _last_line(text))
        if code is None:
            why += f"; stopped after {limit:.0f} s"
        return Outcome(name, result, why, seconds)


def _judged(code: int | None, note: Mapping[str, str], last: str) -> tuple[str, str]:
    """Result and reason of a step from its exit code, from what it noted last and from the end of its log."""
    if code is None:
        return note.get("result", FAILED), note.get("why", last)
    if code and note.get("result") != FAILED:
        return FAILED, f"exit code {code}: {last}"
    return note.get("result", OK), note.get("why", last)


def note_path(root: Path, name: str) -> Path:
    """Where a step notes how far it is: what counts if it is stopped."""
    return root / "notes" / f"{name}.json"


def _read(path: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its children, by force if need be; one that the driver holds is left to the system."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        if number == signal.SIGTERM:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _say(text: str) -> None:
    print(text, flush=True)


def table(outcomes: Sequence[Outcome]) -> str:
    """The closing table."""
    lines = [f"{'step':<11} {'seconds':>7}  {'result':<8} why"]
    lines += [f"{o.name:<11} {o.seconds:7.0f}  {o.result:<8} {o.why}" for o in outcomes]
    return "\n".join(lines) + "\n"


def pack(root: Path, out: Path, report: str) -> None:
    """Report and one archive of all rows, records and logs."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu-check.txt").write_text(report, encoding="utf-8")
    with tarfile.open(out / "gpu-check.tar.gz", "w:gz", compresslevel=1) as archive:
        for name in ("facts.json", "logs", "notes", "runs", "cpu"):
            if (root / name).exists():
                archive.add(root / name, name, filter=lambda item: None if item.name.endswith(".lock") else item)


def main() -> int:
    """Run everything; 1 when a step failed, 2 for settings that mean nothing."""
    device = os.environ.get("DEVICE", "cuda")
    if device not in ("cuda", "cpu"):
        print(f"gpu_check: DEVICE={device} must be cuda or cpu", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    root = REPOSITORY / "gpu-results"
    check = Check(root, device, os.environ.get("TABLES", "").split())
    check.run()
    report = table(check.outcomes)
    _say(f"\n{report}")
    out = Path(os.environ.get("OUT") or root)
    try:
        pack(root, out, report)
        _say(f"cells are in {root}; report and archive are in {out}")
    except OSError as error:
        _say(f"the archive could not be written to {out}: {error}")
        return 1
    return int(any(outcome.result == FAILED for outcome in check.outcomes))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


if __name__ == "__main__":
    sys.exit(main())
