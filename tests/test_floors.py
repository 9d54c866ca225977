"""Floors: imports go down or stay level and form no circle, and what costs seconds to load is loaded late."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
TORCH = frozenset({"torch", "lightning", "pytorch_lightning", "torchmetrics"})
HEAVY = TORCH | {"wandb", "altair", "vl_convert"}
FLOORS = {
    "attnrepro": 0,  # the package itself; what lies in it is listed here, part by part
    "attnrepro.codeversion": 0,
    "attnrepro.config": 0,
    "attnrepro.environment": 0,
    "attnrepro.fetch": 0,
    "attnrepro.paths": 0,
    "attnrepro.results": 0,
    "attnrepro.stats": 0,
    "attnrepro.theory": 0,
    "attnrepro.tables": 0,  # measure.py of a table is on floor 3
    "attnrepro.data": 1,
    "attnrepro.nn": 1,
    "attnrepro.training": 2,
    "attnrepro.__main__": 4,
    "attnrepro.app": 4,
    "hydra_plugins": 4,
    "scripts": 5,
}


@dataclass(frozen=True)
class Import:
    """One imported name, in full, and when it is imported."""

    name: str
    line: int
    at_start: bool  # when its module is imported, not in a function or for the type checker only


def floor(module: str) -> int:
    """Floor of a module. Raises KeyError for one that stands on none."""
    parts = module.split(".")
    if parts[:2] == ["attnrepro", "tables"] and len(parts) > 3 and parts[3] not in ("table", "reading"):
        return 3
    return FLOORS[".".join(parts[:2]) if parts[0] == "attnrepro" else parts[0]]


def repository_modules() -> dict[str, str]:
    """Every module of the repository with its source; the tables under the name they are imported by."""
    found = {}
    for root, prefix in (
        (REPOSITORY / "src", ()),
        (REPOSITORY / "experiments", ("attnrepro", "tables")),
        (REPOSITORY / "scripts", ("scripts",)),
    ):
        for path in sorted(root.rglob("*.py")):
            parts = [*prefix, *path.relative_to(root).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = path.read_text(encoding="utf-8")
    return found


def imports(source: str) -> list[Import]:
    """Everything a module imports. Raises ValueError for a relative import."""
    return list(_imports(ast.parse(source), at_start=True))


def _imports(node: ast.AST, *, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_start) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            if child.level:
                raise ValueError(f"line {child.lineno}: relative import")
            yield from (Import(f"{child.module}.{alias.name}", child.lineno, at_start) for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _imports(ast.Module([*child.body], []), at_start=False)
            yield from _imports(ast.Module([*child.orelse], []), at_start=at_start)
        else:
            late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, at_start=at_start and not late)


def target(name: str, modules: Mapping[str, str]) -> str | None:
    """The module of ours that an imported name lies in."""
    parts = name.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((prefix for prefix in prefixes if prefix in modules), None)


def breaches(modules: Mapping[str, str]) -> list[str]:
    """Imports that go up, circles, and heavy packages where they do not belong."""
    found = []
    graph: dict[str, set[str]] = {}
    for module, source in modules.items():
        own = floor(module)
        for imported in imports(source):
            where = f"{module} line {imported.line} imports {imported.name}"
            package = imported.name.split(".")[0]
            other = target(imported.name, modules)
            if other is not None and floor(other) > own:
                found.append(f"{where} from floor {floor(other)} on floor {own}")
            if other is not None and imported.at_start:
                graph.setdefault(module, set()).add(other)
            if package in HEAVY and not may_load(own, package, late=not imported.at_start):
                found.append(f"{where} on floor {own}")
    return found + [f"circle {' -> '.join(circle)}" for circle in circles(graph)]


def may_load(own: int, package: str, *, late: bool) -> bool:
    """Whether a module of a floor may import a heavy package."""
    return {
        0: late and package not in TORCH,  # charts
        1: package == "torch",
        2: package in TORCH,
        3: package in TORCH,
    }.get(own, late)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Circles of a graph, one for each edge that closes one in a depth-first walk."""
    found: list[list[str]] = []
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> None:
        if node in path:
            found.append([*path[path.index(node) :], node])
        elif node not in done:
            for other in sorted(graph.get(node, ())):
                walk(other, [*path, node])
            done.add(node)

    for node in sorted(graph):
        walk(node, [])
    return found


def test_a_module_imports_from_its_own_floor_or_lower_ones_and_in_no_circle() -> None:
    modules = repository_modules()
    assert {"attnrepro.tables.sqrt_d_entropy.measure", "attnrepro.app.main", "attnrepro.nn.attention"} <= set(modules)
    assert breaches(modules) == []


PLANTED = {
    "attnrepro.app.run": "from attnrepro.tables.made_up import measure",
    "attnrepro.config": "from attnrepro.paths import conf_dir",
    "attnrepro.nn.attention": "import torch",
    "attnrepro.paths": "",
    "attnrepro.stats": "import numpy",
    "attnrepro.tables.made_up.measure": "from attnrepro.nn.attention import entropy",
    "attnrepro.tables.made_up.table": "def chart():\n    import altair",
    "attnrepro.training.moments": "import torchmetrics",
}


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        ("attnrepro.stats", "from attnrepro.nn import attention", "floor 1 on floor 0"),
        ("attnrepro.stats", "from attnrepro.nn.attention import entropy as e", "floor 1 on floor 0"),
        ("attnrepro.theory.x", "def f():\n    import attnrepro.training.moments", "floor 2 on floor 0"),
        ("attnrepro.data.x", "from attnrepro.tables.made_up import measure", "floor 3 on floor 1"),
        ("attnrepro.data.x", "from attnrepro.tables.made_up.measure import build", "floor 3 on floor 1"),
        ("attnrepro.training.x", "if TYPE_CHECKING:\n    from attnrepro.app.run import run_cell", "floor 4 on floor 2"),
        ("attnrepro.tables.made_up.table", "def f():\n    import torch", "torch on floor 0"),
        ("attnrepro.tables.made_up.table", "import altair", "altair on floor 0"),
        ("attnrepro.tables.made_up.measure", "def f():\n    import wandb", "wandb on floor 3"),
        ("attnrepro.config", "try:\n    import pandas\nexcept ImportError:\n    import wandb", "wandb on floor 0"),
        ("attnrepro.app.report", "class A:\n    from altair import Chart", "altair.Chart on floor 4"),
        ("attnrepro.nn.attention", "from lightning import Trainer", "lightning.Trainer on floor 1"),
        ("attnrepro.paths", "from attnrepro.config import BadInput", "circle attnrepro.config -> attnrepro.paths -> "),
        ("attnrepro.stats", "import attnrepro.stats", "circle attnrepro.stats -> attnrepro.stats"),
    ],
)
def test_a_planted_breach_is_found(module: str, source: str, breach: str) -> None:
    assert breaches(PLANTED) == []
    (found,) = breaches({**PLANTED, module: source})
    assert breach in found


@pytest.mark.parametrize("source", ["def f():\n    import torch, altair", "if TYPE_CHECKING:\n    import wandb"])
def test_the_app_may_load_heavy_packages_late(source: str) -> None:
    assert breaches({"attnrepro.app.report": source}) == []


def test_every_module_stands_on_a_floor() -> None:
    with pytest.raises(KeyError):
        floor("attnrepro.something_new")
    with pytest.raises(KeyError):
        floor("something_new")


def test_imports_are_absolute() -> None:
    """The code version follows imports by their full names."""
    with pytest.raises(ValueError, match="relative"):
        imports("from .attention import entropy")


def test_packages_have_no_code_of_their_own() -> None:
    """Importing a module runs the `__init__` of its package, which the code version does not read."""
    for package in ("nn", "data", "training", "theory"):
        (only,) = ast.parse((REPOSITORY / f"src/attnrepro/{package}/__init__.py").read_text()).body
        assert isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant)


# --- what is loaded ---


def test_what_makes_rows_does_not_import_what_reads_them() -> None:
    """`reading.py` is no part of the code version, so nothing that is may depend on it."""
    found = [
        f"{module}:{line.line}"
        for module, source in repository_modules().items()
        if module.startswith("attnrepro.tables.") and not module.endswith(".reading")
        for line in imports(source)
        if line.name.endswith(".reading") or ".reading." in line.name
    ]
    assert not found


IMPORT_ALL = """
import importlib, pkgutil, sys
import attnrepro.app, attnrepro.config, attnrepro.paths, attnrepro.results, attnrepro.stats, attnrepro.theory
for package in (attnrepro.app, attnrepro.results, attnrepro.theory):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for table in attnrepro.paths.table_names():
    importlib.import_module(f"attnrepro.tables.{table}.table")
    attnrepro.config.reading_module(table)
print(*sys.modules)
"""
# At exit a process writes what it has loaded, whatever it was.
TELL = """
import atexit, os, pathlib, sys
atexit.register(lambda: pathlib.Path(os.environ["TELL_LOADED"]).write_text(" ".join(sys.modules)))
"""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HYDRA_", "ATTNREPRO_", "COMP_", "PYTHON"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY / "src"), **more}


def run(folder: Path, *arguments: str, **more: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run `python -m attnrepro` in a folder; also the top-level packages it had loaded at its end."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(TELL)
    told = folder / "loaded"
    path = os.pathsep.join((str(folder / "site"), str(REPOSITORY / "src")))
    done = subprocess.run(
        [sys.executable, "-m", "attnrepro", *arguments],
        env=environment(PYTHONPATH=path, TELL_LOADED=str(told), **more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, {name.split(".")[0] for name in told.read_text().split()}


def test_importing_tables_configuration_app_and_results_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], env=environment(), capture_output=True, text=True, check=True, timeout=120
    )
    loaded = set(done.stdout.split())
    assert {"attnrepro.app.dashboard", "attnrepro.results.verdicts", "attnrepro.tables.sqrt_d_entropy.table"} <= loaded
    assert loaded & HEAVY == set()


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    done, loaded = run(tmp_path, "--help")
    assert done.returncode == 0
    assert "sqrt_d_entropy" in done.stdout
    assert "hydra" in loaded  # what was loaded was seen
    assert loaded & {*HEAVY, "pandas", "scipy", "numpy"} == set()


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["experiment=sqrt_d_entropy", "params.hea"], ["params.head_dim="]),
        (["experiment=sqrt_d_entropy", "params.n_q"], ["params.n_queries=", "params.n_queries_per_set="]),
        (["experiment=sq"], ["experiment=sqrt_d_entropy"]),
    ],
)
def test_tab_completion_loads_nothing_heavy(tmp_path: Path, words: list[str], choices: list[str]) -> None:
    """As the script asks that `attnrepro -sc install=bash` prints."""
    line = " ".join(["attnrepro", *words])
    done, loaded = run(
        tmp_path, "-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)), COMP_CWORD=str(len(words))
    )
    assert done.stdout.split() == choices
    assert loaded & {*HEAVY, "pandas", "scipy"} == set()


def test_a_typo_is_answered_without_heavy_packages(tmp_path: Path) -> None:
    done, loaded = run(tmp_path, "experiment=sqrt_d_entropy", "params.hed_dim=4")
    assert done.returncode == 2
    assert done.stderr == "attnrepro: unknown key params.hed_dim; did you mean params.head_dim?\n"
    assert loaded & {*HEAVY, "pandas", "scipy"} == set()


def test_checking_a_whole_grid_loads_nothing_heavy(tmp_path: Path) -> None:
    done, loaded = run(tmp_path, "experiment=sqrt_d_entropy", "params.head_dim=4,16,0.5")
    assert done.returncode == 2
    assert "params.head_dim=0.5" in done.stderr
    assert loaded & {*HEAVY, "pandas", "scipy"} == set()
