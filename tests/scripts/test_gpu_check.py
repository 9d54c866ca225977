"""scripts/gpu_check.sh on a CPU: in a copy without .git, in a Python that lacks what a GPU machine's image may lack."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from attnrepro.app import gpu_check
from attnrepro.app.gpu_check import Check, Outcome

from ..app.toy import REPOSITORY, TABLES, Copy, add_table, cells, clean_environment, copy_repository

# Nobody has these; the others come from wheels alone.
BLOCKER = """
import importlib.machinery, sys

class Image:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top = name.split(".")[0]
        if top in {"wandb", "altair", "vl_convert"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in {"hydra", "omegaconf", "antlr4", "yaml"}:
            found = importlib.machinery.PathFinder.find_spec(name, [p for p in sys.path if "site-packages" not in p])
            if found is None or found.origin is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return found

sys.meta_path.insert(0, Image)
"""
FROM_WHEELS = ("hydra-core", "omegaconf", "antlr4-python3-runtime", "PyYAML")
DEVICE_ENVIRONMENT = "cuda-Made-up-torch9.9"


def make_wheel(package: str, folder: Path) -> None:
    """The installed package as a wheel: what `make gpu-wheels` takes from the network."""
    distribution = importlib.metadata.distribution(package)
    name = distribution.metadata["Name"].replace("-", "_")
    # This interpreter's own files, whatever they were built for: only it will read the wheel.
    with zipfile.ZipFile(folder / f"{name}-{distribution.version}-py3-none-any.whl", "w") as wheel:
        for file in distribution.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts and file.suffix != ".pyc":
                wheel.write(str(file.locate()), str(file))


def run(copy: Copy, **settings: str) -> subprocess.CompletedProcess[str]:
    """scripts/gpu_check.sh on the CPU, by somebody without accounts."""
    environment = clean_environment() | {"PYTHON": sys.executable, "DEVICE": "cpu", "TABLES": "toy toy_training"}
    environment |= {"PYTHONPATH": str(copy.root.parent / "site"), "HOME": str(copy.root.parent / "home"), **settings}
    return subprocess.run(
        ["bash", str(copy.root / "scripts" / "gpu_check.sh")],
        env=environment,
        cwd=copy.root.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize(("out", "expected"), [("rows", "{here}/rows"), ("{here}/x", "{here}/x"), ("", "")])
def test_a_relative_folder_is_one_of_whoever_calls(tmp_path: Path, out: str, expected: str) -> None:
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nprintf \'%s|\' "$OUT" "$PWD"\n')
    show.chmod(0o755)
    for python in ("./show", str(show)):
        done = subprocess.run(
            ["bash", str(REPOSITORY / "scripts" / "gpu_check.sh")],
            env=clean_environment() | {"PYTHON": python, "OUT": out.format(here=tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == (f"{expected.format(here=tmp_path)}|{REPOSITORY}|", "")


def closing_table(output: str) -> dict[str, tuple[str, str]]:
    """Result and reason of each step, from the last table that was printed."""
    lines = output[output.rindex("step        seconds") :].splitlines()[1:]
    rows = [line for line in lines[: lines.index("")] if line]
    results = sorted((gpu_check.OK, gpu_check.FAILED, gpu_check.PARTLY, gpu_check.NOT_RUN), key=len, reverse=True)
    found = {}
    for row in rows:
        name, rest = row.split(maxsplit=1)
        text = rest.split(maxsplit=1)[1]
        result = next(result for result in results if text.startswith(result))
        found[name] = (result, text.removeprefix(result).strip())
    return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy on a machine whose image has neither Hydra nor W&B, with a folder of wheels."""
    folder = tmp_path_factory.mktemp("image")
    copy = copy_repository(folder / "repository", TABLES)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(BLOCKER)
    wheels = copy.root / "build" / "gpu-wheels"
    wheels.mkdir(parents=True)
    for package in FROM_WHEELS:
        make_wheel(package, wheels)
    return copy


@pytest.fixture(scope="module")
def checked(image: Copy) -> tuple[Copy, subprocess.CompletedProcess[str]]:
    """The image after a whole check."""
    return image, run(image)


@pytest.mark.slow
def test_everything_runs_without_what_an_image_may_lack(
    checked: tuple[Copy, subprocess.CompletedProcess[str]],
) -> None:
    copy, done = checked
    assert not (copy.root / ".git").exists()
    assert done.returncode == 0, done.stdout + done.stderr
    found = closing_table(done.stdout)
    assert list(found) == ["packages", "facts", "smoke", "tests", "agreement", "throughput", "full"]
    assert found["packages"] == ("ok", f"from wheels: {', '.join(FROM_WHEELS)}")
    assert found["smoke"] == ("ok", "10 cells of 4 tables")
    assert found["agreement"] == ("ok", "7 of 7 cells on both")
    assert found["full"] == ("ok", "7 of 7 cells at scale smoke")
    # A copy without them says so.
    assert found["tests"] == ("not run", "tests/gpu is not there")
    assert found["throughput"] == ("not run", "benchmarks/ensemble.py is not there")
    results = copy.root / "gpu-results"
    assert json.loads((results / "facts.json").read_text())["problem"] == ""
    assert (results / "gpu-check.txt").read_text() in done.stdout
    with tarfile.open(results / "gpu-check.tar.gz") as archive:
        kept = archive.getnames()
    keys = cells(results, "toy")
    assert len(keys) == 12  # six points at scale smoke, six at scale cpu
    assert {f"runs/toy/{key}/{file}" for key in keys for file in ("rows.csv", "run.json", "done.json")} <= set(kept)
    assert not any(name.endswith(".lock") for name in kept)
    for folder in keys.values():
        assert str(copy.root) not in (folder / "run.json").read_text()


def edit_cell(folder: Path, run: Mapping[str, object] | None = None, rows: Callable[[str], str] = str) -> None:
    """Change a finished cell so that it still counts as finished."""
    record: dict[str, Any] = json.loads((folder / "run.json").read_text()) | dict(run or {})
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "rows.csv").write_text(rows((folder / "rows.csv").read_text()))
    done = json.loads((folder / "done.json").read_text())
    done["sha256"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in done["sha256"]}
    (folder / "done.json").write_text(json.dumps(done))


def shifted(errors: float) -> Callable[[str], str]:
    """Move the measured value of a toy cell by so many of its standard errors."""

    def change(text: str) -> str:
        head, first, *rest = text.splitlines()
        row = dict(zip(head.split(","), first.split(","), strict=True))
        assert row["source"] == "measured"
        value = float(row["value"]) + errors * float(row["sd"]) / int(row["n"]) ** 0.5
        return "\n".join([head, first.replace(row["value"], repr(value)), *rest]) + "\n"

    return change


def at_scale_cpu(results: Path, point: int) -> Path:
    """Folder of the toy cell of a point at scale cpu."""
    for folder in cells(results, "toy").values():
        science = json.loads((folder / "config.yaml").read_text())
        if science["scale"] == "cpu" and science["params"]["point"] == point:
            return folder
    raise AssertionError(f"there is no cell of point {point}")


@pytest.mark.slow
def test_what_goes_wrong_is_named_and_stops_nothing(
    checked: tuple[Copy, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    shutil.copytree(checked[0].root.parent, tmp_path / "machine")
    copy = Copy(tmp_path / "machine" / "repository")
    add_table(copy.root, "raising", like="toy_training")
    copy.edit("experiments/raising/measure.py", "def build(cell):", "raise RuntimeError('planted')\n\ndef build(cell):")
    # The next run goes on from finished cells, so that this one is what it compares.
    edit_cell(at_scale_cpu(copy.root / "gpu-results", 4), rows=shifted(0.1))
    out = tmp_path / "out"
    done = run(copy, TABLES="toy raising", OUT=str(out))
    assert done.returncode == 1, done.stdout + done.stderr
    found = closing_table(done.stdout)
    assert (out / "gpu-check.txt").read_text() in done.stdout
    assert found["smoke"][0] == "FAILED"
    assert "raising" in found["smoke"][1] and "RuntimeError: planted" in found["smoke"][1]
    assert found["smoke"][1].startswith("10 cells of 5 tables")
    result, why = found["agreement"]
    assert result == "FAILED"
    assert why.startswith("6 of 7 cells on both")
    assert "raising default: RuntimeError: planted" in why
    assert "toy: cell" in why and "level mean (point=4): value is" in why
    result, why = found["full"]
    assert result == "FAILED"
    assert why.startswith("6 of 7 cells at scale smoke, next raising default; raising default: RuntimeError: planted")


COMPARE = """
import json, sys
from pathlib import Path
from attnrepro.app.gpu_steps import compare
wrong = []
said = compare([("toy", key) for key in sys.argv[3:]], Path(sys.argv[1]), Path(sys.argv[2]), wrong)
print(json.dumps([said, wrong]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("errors", "differences"), [(1.0, 0), (8.0, 1)])
def test_other_devices_are_compared_by_tests(
    checked: tuple[Copy, subprocess.CompletedProcess[str]], tmp_path: Path, errors: float, differences: int
) -> None:
    """Rows of a CUDA device have other bytes; a shift by many standard errors is a difference all the same."""
    shutil.copytree(checked[0].root / "gpu-results", tmp_path / "results")
    results = tmp_path / "results"
    folders = [at_scale_cpu(results, point) for point in range(1, 7)]
    for folder in folders:
        edit_cell(folder, {"environment": DEVICE_ENVIRONMENT, "device": "cuda"}, rows=shifted(0.01))
    edit_cell(at_scale_cpu(results, 4), rows=shifted(errors))
    keys = [folder.name for folder in folders]
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(results), str(results / "cpu"), *keys],
        env=clean_environment() | {"PYTHONPATH": str(checked[0].root / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said, wrong = json.loads(done.stdout.splitlines()[-1])
    assert said.startswith("; smallest p of 6 points after Holm")
    assert len(wrong) == differences, wrong
    if differences:
        assert wrong[0].startswith("toy: level mean (point=4): ")


@pytest.mark.slow
def test_missing_packages_are_named_and_the_machine_is_still_described(image: Copy, tmp_path: Path) -> None:
    copy = copy_repository(tmp_path / "repository", ["toy"])
    shutil.copytree(image.root.parent / "site", tmp_path / "site")
    done = run(copy)
    assert done.returncode == 1
    found = closing_table(done.stdout)
    assert found["packages"][0] == "FAILED"
    assert "hydra-core (ModuleNotFoundError: No module named 'hydra')" in found["packages"][1]
    assert "make gpu-wheels" in found["packages"][1]
    assert found["facts"][0] == "ok"
    assert found["smoke"] == found["full"] == ("not run", "packages are missing")


def test_a_machine_without_a_gpu_is_told(own_copy: Copy) -> None:
    (own_copy.root.parent / "site").mkdir()
    done = run(own_copy, DEVICE="cuda")
    assert done.returncode == 1
    found = closing_table(done.stdout)
    assert found["facts"] == ("FAILED", "torch sees no CUDA device")
    assert found["smoke"] == found["full"] == ("not run", "the device cannot be used")
    assert run(own_copy, DEVICE="gpu").returncode == 2


# --- limits ---

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_step_that_does_not_end_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "GRACE", 0.5)
    check = Check(tmp_path, "cpu", [])
    started = time.monotonic()
    outcome = check.step("hangs", [sys.executable, "-c", STUBBORN], 2.0)
    assert time.monotonic() - started < 10
    assert outcome.result == "FAILED"
    assert outcome.why.endswith("; stopped after 2 s")
    child = int((tmp_path / "logs" / "hangs.log").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(50):
            os.kill(child, 0)
            time.sleep(0.1)


NOTES = """
import json, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(json.dumps({"result": sys.argv[2], "why": "7 of 9"}))
time.sleep(float(sys.argv[3]))
sys.exit(int(sys.argv[4]))
"""


@pytest.mark.parametrize(
    ("noted", "sleeps", "code", "result", "why"),
    [
        ("ok", 0, 0, "ok", "7 of 9"),
        ("partly", 60, 0, "partly", "7 of 9; stopped after 2 s"),
        ("FAILED", 0, 0, "FAILED", "7 of 9"),
        # A crash is a failure, whatever was noted before.
        ("ok", 0, 3, "FAILED", "exit code 3: "),
        ("partly", 0, 1, "FAILED", "exit code 1: "),
    ],
)
def test_the_last_note_of_a_step_counts(
    tmp_path: Path, noted: str, sleeps: float, code: int, result: str, why: str
) -> None:
    check = Check(tmp_path, "cpu", [])
    note = gpu_check.note_path(tmp_path, "made_up")
    note.write_text('{"result": "ok", "why": "of an earlier run"}')
    outcome = check.step("made_up", [sys.executable, "-c", NOTES, str(note), noted, str(sleeps), str(code)], 2.0)
    assert (outcome.result, outcome.why) == (result, why)


def test_a_step_that_says_nothing_is_judged_by_its_exit_code(tmp_path: Path) -> None:
    check = Check(tmp_path, "cpu", [])
    said = check.step("speaks", [sys.executable, "-c", "print('3 passed')"], 30.0)
    assert (said.result, said.why) == ("ok", "3 passed")
    dead = check.step("dies", [sys.executable, "-c", "import os; os.abort()"], 30.0)
    assert dead.result == "FAILED"
    assert dead.why.startswith(f"exit code {-signal.SIGABRT}")


def test_the_closing_table_has_a_line_for_each_step() -> None:
    text = gpu_check.table([Outcome("facts", "ok", "a GPU", 2.4), Outcome("full", "partly", "3 of 9", 100.6)])
    assert text.splitlines()[1:] == [
        "facts             2  ok       a GPU",
        "full            101  partly   3 of 9",
    ]


@pytest.mark.slow
def test_an_interrupted_check_says_how_far_it_came(image: Copy) -> None:
    environment = clean_environment() | {"PYTHON": sys.executable, "DEVICE": "cpu", "TABLES": "toy"}
    environment |= {"PYTHONPATH": str(image.root.parent / "site"), "OUT": str(image.root.parent / "interrupted")}
    process = subprocess.Popen(
        ["bash", str(image.root / "scripts" / "gpu_check.sh")],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        if line.startswith("--- facts"):
            process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1
    found = closing_table("".join(heard))
    assert found["packages"][0] == "ok"
    assert found["facts"] == ("FAILED", "interrupted")
    assert found["full"] == ("not run", "interrupted")
