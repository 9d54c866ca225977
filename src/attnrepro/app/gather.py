"""From recorded rows to estimates: which cells a table has, yours and the reference, and what they say together."""

import json
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnrepro import paths, stats
from attnrepro.app.precheck import inputs_digest, own_grid
from attnrepro.codeversion import code_version
from attnrepro.config import BadInput, digest, load_yaml, table_module
from attnrepro.results.rows import read_csv, text
from attnrepro.results.store import Store

if TYPE_CHECKING:
    import pandas as pd

REPORTED = ("cpu", "full")
JOINED = "cpu+full"


@dataclass(frozen=True)
class CellRows:
    """Recorded rows of one cell with what is known about it."""

    key: str
    environment: str
    scale: str
    code: str
    science: Mapping[str, Any]
    rows: Sequence[Mapping[str, str]]
    run: Mapping[str, Any]
    own: bool

    @property
    def identity(self) -> str:
        """What was asked for, whatever machine did it."""
        return digest(self.science)


@dataclass
class Group:
    """All estimates of a table in one environment, at one scale and of one variant: never pooled with others."""

    variant: str
    environment: str
    scale: str
    own: bool
    stale: bool
    lines: list[dict[str, Any]] = field(default_factory=list)
    not_run: str = ""
    cells: Sequence[CellRows] = ()

    def frame(self) -> "pd.DataFrame":
        """Estimates as a frame; axes are text, numbers are floats (nan where blank)."""
        import pandas as pd

        return pd.DataFrame(self.lines)


def own_cells(store: Store, table: str, scales: Iterable[str]) -> list[CellRows]:
    """The user's finished cells; of a table that reads rows, those made from the rows there are now."""
    needs = load_yaml(paths.conf_dir() / "experiment" / f"{table}.yaml").get("needs") or []
    found = []
    for record in store.finished(table):
        science, run = record.science, record.run
        if science["scale"] in scales and run.get("inputs", "") == _inputs(store, table, needs, science["scale"]):
            rows = read_csv(record.rows_path)
            name = record.folder.name.removesuffix(".old")
            found.append(
                CellRows(name, run["environment"], science["scale"], record.code, science, rows, run, own=True)
            )
    return found


def _inputs(store: Store, table: str, needs: Sequence[str], scale: str) -> str:
    try:
        return inputs_digest(store, table, needs, scale)
    except BadInput:  # the rows that were read are gone
        return "none"


def reference_cells(raw: Path, table: str, scales: Iterable[str]) -> list[CellRows]:
    """The committed reference cells of every environment."""
    found = []
    for path in sorted(raw.glob(f"*/{table}.csv")):
        records = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        rows: dict[str, list[Mapping[str, str]]] = {}
        for row in read_csv(path):
            rows.setdefault(row["key"], []).append(row)
        for key, record in records.items():
            science = record["config"]
            if science["scale"] in scales:
                found.append(
                    CellRows(
                        key,
                        path.parent.name,
                        science["scale"],
                        record["code"],
                        science,
                        rows.get(key, []),
                        record,
                        own=False,
                    )
                )
    return found


def variant(science: Mapping[str, Any], axes: Collection[str]) -> str:
    """Empty for a cell of the table's own grid, else what sets it apart from the nearest cell of the grid.

    ``axes`` are those that the cell's rows fill in: what stands in the rows need not be said again.
    """
    cells = own_grid(str(science["table"]), str(science["scale"]))
    if any(digest(cell) == digest(science) for cell in cells):
        return ""

    def distance(cell: Mapping[str, Any]) -> tuple[int, int]:
        """Cells whose rows have the same axes come first: those are the rows that this one's could be taken for."""
        other = sum(cell["params"].get(n) != v for n, v in science["params"].items() if n in axes)
        return other, len(_differences(cell, science, axes))

    return " ".join(_differences(min(cells, key=distance), science, axes)) or "off the grid"


def _differences(cell: Mapping[str, Any], science: Mapping[str, Any], axes: Collection[str]) -> list[str]:
    """Where ``science`` departs from a cell of the grid, as it would stand on a command line."""
    names = [name for name in ("seeds", "precision", "threads") if cell.get(name) != science.get(name)]
    found = [f"{name}={_show(science[name])}" for name in names]
    if "data" not in axes and cell.get("data") != science.get("data"):
        found.append(f"data={_data_name(science)}")
    params = science["params"].items()
    return found + [f"{n}={_show(v)}" for n, v in params if cell["params"].get(n) != v and n not in axes]


def _data_name(science: Mapping[str, Any]) -> str:
    """Name of a cell's images; of a set of the hub that has none, its path."""
    data = science.get("data", {"name": "none"})
    return str(data["path"] if data["name"] == "hub" else data["name"])


def _show(value: object) -> str:
    if not isinstance(value, list):
        return text(value)
    whole = len(value) > 3 and all(isinstance(one, int) for one in value)
    if whole and value == list(range(value[0], value[0] + len(value))):
        return f"[{value[0]}..{value[-1]}]"
    return "[" + ",".join(map(_show, value)) + "]"


def groups(table: str, store: Store | None, raw: Path, scales: Sequence[str] = REPORTED) -> list[Group]:
    """Estimates of a table by environment, scale and variant.

    Your cell stands in for the reference cell of the same environment and configuration; cells of other environments
    stand beside it.
    """
    own = own_cells(store, table, scales) if store else []
    seen = {(cell.environment, cell.identity) for cell in own}
    cells = own + [c for c in reference_cells(raw, table, scales) if (c.environment, c.identity) not in seen]
    module = table_module(table)
    code = code_version(table)
    present = [scale for scale in scales if any(cell.scale == scale for cell in cells)]
    order = {digest(cell): i for scale in present for i, cell in enumerate(own_grid(table, scale))}
    buckets: dict[tuple[str, str, str], list[CellRows]] = {}
    for cell in sorted(cells, key=lambda c: (order.get(c.identity, len(order)), c.key)):
        filled = {axis for axis in module.AXES if any(row[axis] for row in cell.rows)}
        buckets.setdefault((variant(cell.science, filled), cell.environment, cell.scale), []).append(cell)
    if getattr(module, "NESTED", False):
        _join_scales(buckets)
    found = []
    for (name, environment, scale), members in sorted(buckets.items()):
        group = Group(name, environment, scale, any(c.own for c in members), any(c.code != code for c in members))
        group.lines = _estimates(members, module.AXES, code)
        group.cells = members
        reasons = [r["status"] for c in members for r in c.rows if r["status"].startswith("not_run: ")]
        group.not_run = reasons[0].removeprefix("not_run: ") if reasons else ""
        found.append(group)
    for (environment, scale), reason in (_not_run(store, table, scales) if store else {}).items():
        same = [g for g in found if not g.variant and (g.environment, g.scale) == (environment, scale)]
        if not same:
            same = [Group("", environment, scale, own=True, stale=False)]
            found += same
        same[0].not_run = reason
    return found


def _join_scales(buckets: dict[tuple[str, str, str], list[CellRows]]) -> None:
    """Put a table's own cells of all scales together where a larger scale has more cells, not larger ones."""
    for name, environment, scale in list(buckets):
        if not name and scale == "full" and (name, environment, "cpu") in buckets:
            joined = buckets.pop((name, environment, "cpu")) + buckets.pop((name, environment, scale))
            buckets[name, environment, JOINED] = joined


def _not_run(store: Store, table: str, scales: Sequence[str]) -> dict[tuple[str, str], str]:
    """Why cells of the table's own grid were not run when they were last tried, by environment and scale."""
    found: dict[tuple[str, str], str] = {}
    for note in store.failures(table):
        science = note.get("config", {})
        if "not_run" in note and science["scale"] in scales and not variant(science, ()):
            found.setdefault((note["environment"], science["scale"]), note["not_run"])
    return found


def _estimates(cells: Sequence[CellRows], axes: Sequence[str], code: str) -> list[dict[str, Any]]:
    measured: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    theory: dict[tuple[str, ...], float] = {}
    units: dict[tuple[str, ...], str] = {}
    stale: dict[tuple[str, ...], bool] = {}
    # Off the grid, two cells may cover the same point of the same seed: the same draws, and one measurement.
    owner: dict[tuple[str, ...], str] = {}
    for cell in cells:
        for row in cell.rows:
            at = (*(row[axis] for axis in axes), row["quantity"], row["statistic"])
            units[at] = row["unit"]
            if row["source"] == "theory":
                theory[at] = float(row["value"])
            elif owner.setdefault((*at, row["seed"]), cell.key) != cell.key:
                continue
            elif not row["status"].startswith("not_run"):
                measured.setdefault(at, []).append(row)
                stale[at] = stale.get(at, False) or cell.code != code
    lines = []
    for at in [*measured, *(at for at in theory if at not in measured)]:
        line: dict[str, Any] = dict(zip((*axes, "quantity", "statistic"), at, strict=True))
        line |= estimate(measured.get(at, []), at[-1])
        line |= {"unit": units[at], "theory": theory.get(at, math.nan), "stale": stale.get(at, False)}
        lines.append(line)
    return lines


def estimate(rows: Sequence[Mapping[str, str]], statistic: str) -> dict[str, Any]:
    """n, mean, spread and 95 % interval of what several seeds (or one Monte Carlo run) measured."""
    ok = [row for row in rows if row["status"] == "ok"]
    line: dict[str, Any] = {
        "n": 0,
        "n_failed": len(rows) - len(ok),
        "estimate": math.nan,
        "sd": math.nan,
        "ci_low": math.nan,
        "ci_high": math.nan,
        "seeds": (),
        "by_seed": {},
    }
    if not ok:
        return line
    values = [float(row["value"]) for row in ok]
    if all(row["sd"] for row in ok):
        parts = [(float(row["value"]), float(row["sd"]), int(row["n"])) for row in ok]
        line["estimate"], line["sd"], line["n"] = stats.pool(parts) if len(parts) > 1 else parts[0]
        interval = stats.monte_carlo_interval(line["estimate"], line["sd"], line["n"])
    elif statistic == "exact":
        # Nothing random: seeds agree, or the largest error that any of them saw stands for all.
        line["estimate"], line["n"] = max(values), sum(int(row["n"]) for row in ok)
        return line
    elif all(int(row["n"]) > 1 for row in ok):
        # A value of many draws that has no spread of its own (a covariance): weighted like its mean.
        line["n"] = sum(int(row["n"]) for row in ok)
        line["estimate"] = sum(float(row["value"]) * int(row["n"]) for row in ok) / line["n"]
        return line
    else:
        interval = stats.mean_interval(values)
        line["estimate"], line["n"], line["seeds"] = interval.value, len(values), tuple(values)
        line["by_seed"] = dict(zip((row["seed"] for row in ok), values, strict=True))
        if len(values) > 1:
            line["sd"] = statistics.stdev(values)
    line["ci_low"], line["ci_high"] = interval.low, interval.high
    return line
