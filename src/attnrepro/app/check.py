"""``make check``: your fresh rows against the committed reference, byte for byte or by a test (docs/statistics.md)."""

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnrepro import paths, stats
from attnrepro.app.gather import REPORTED, CellRows, estimate, own_cells, reference_cells
from attnrepro.app.precheck import own_grid
from attnrepro.app.report import about
from attnrepro.codeversion import code_version
from attnrepro.config import digest, table_module
from attnrepro.results.regression import ALPHA, EPS, WELCH, difference, exact_agrees
from attnrepro.results.store import Store

# Packages whose version can change the last bits of a row.
NUMERIC = ("torch", "lightning", "numpy", "scipy")
SHOWN = 20

Point = tuple[str, ...]


@dataclass(frozen=True)
class Tested:
    """p of one point, the sentence that says what differs if it is small, and the name of the test."""

    p: float
    sentence: str
    test: str


@dataclass
class Comparison:
    """One table against its reference: what was done, every difference found, and the tests that Holm decides on.

    ``not_run`` has the identities of reference cells that were not run while others were: no difference, but nothing
    was learned of them.
    """

    table: str
    done: bool = False
    not_run: set[str] = field(default_factory=set)
    said: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    tests: list[Tested] = field(default_factory=list)


def compare(table: str, store: Store, raw: Path) -> Comparison:
    """Your finished grid cells of a table against the reference of their environment, else against each there is."""
    result = Comparison(table)
    fresh, reference = own_cells(store, table, REPORTED), reference_cells(raw, table, REPORTED)
    for scale in REPORTED:
        mine = _on_grid(fresh, table, scale)
        if not mine:
            continue
        theirs = _on_grid(reference, table, scale)
        environments = {cell.environment for cell in theirs}
        here = environments & {cell.environment for cell in mine}
        if not environments:
            result.said.append(f"there is no reference at scale {scale}")
        for environment in sorted(here or environments):
            _against(result, mine, [c for c in theirs if c.environment == environment])
    if not result.done and not result.said:
        result.said.append("not run")
    return result


def _on_grid(cells: Iterable[CellRows], table: str, scale: str) -> list[CellRows]:
    chosen = [cell for cell in cells if cell.scale == scale]
    grid = {digest(science) for science in own_grid(table, scale)} if chosen else set()
    return [cell for cell in chosen if cell.identity in grid]


def _against(result: Comparison, mine: Sequence[CellRows], theirs: Sequence[CellRows]) -> None:
    """Compare with the reference of one environment at one scale."""
    by_identity = {cell.identity: cell for cell in mine}
    pairs = [(by_identity[c.identity], c) for c in theirs if c.identity in by_identity]
    where = f"{theirs[0].environment}, scale {theirs[0].scale}"
    result.done = result.done or bool(pairs)
    if absent := {cell.identity for cell in theirs} - by_identity.keys():
        result.said.append(f"not run: {len(absent)} cells ({where})")
        result.not_run |= absent
    code = code_version(result.table)
    for whose, cells in (("your", [m for m, _ in pairs]), ("the reference", [r for _, r in pairs])):
        if stale := sum(cell.code != code for cell in cells):
            result.said.append(f"{stale} of {whose} cells were made by other code than today's (stale)")
    same = [(m, r) for m, r in pairs if _origin(m) == _origin(r)]
    other = [(m, r) for m, r in pairs if _origin(m) != _origin(r)]
    if same:
        result.said.append(f"{len(same)} cells byte for byte ({where})")
        for m, r in same:
            _bytes(result, m, r)
    if other:
        tested = _statistics(result, [m for m, _ in other], [r for _, r in other])
        result.said.append(f"{len(other)} cells by tests, because machine, versions or code differ ({where}): {tested}")


def _origin(cell: CellRows) -> tuple[object, ...]:
    """Everything that must be equal before equal bytes are promised."""
    versions = tuple(cell.run["versions"].get(package) for package in NUMERIC)
    python = tuple(str(cell.run["python"]).split(".")[:2])
    hardware = (cell.run["processor"], cell.run["platform"], cell.run["threads"])
    return (cell.environment, cell.code, versions, python, *hardware)


def _bytes(result: Comparison, mine: CellRows, theirs: CellRows) -> None:
    """Every value of two cells must be equal; in timing tables exact ones only, for times never are."""
    axes = table_module(result.table).AXES
    timed = bool(about(result.table).get("timing"))
    ours, reference = (
        {tuple(row[name] for name in ("source", "seed", *axes, "quantity", "statistic")): row for row in cell.rows}
        for cell in (mine, theirs)
    )
    for at in [*reference, *(at for at in ours if at not in reference)]:
        a, b = ours.get(at), reference.get(at)
        what = f"cell {theirs.key}: {at[0]}, seed {at[1] or 'none'}: {_name(axes, at[2:])}"
        if a is None or b is None:
            result.failures.append(f"{what}: only in {'your rows' if b is None else 'the reference'}")
            continue
        for column in ("status",) if timed and at[-1] != "exact" else ("unit", "n", "sd", "value", "status"):
            if a[column] != b[column]:
                result.failures.append(f"{what}: {column} is {a[column]}, in the reference {b[column]}")
    if list(ours) != list(reference) and ours.keys() == reference.keys():
        result.failures.append(f"cell {theirs.key}: the same rows in another order")


def _name(axes: Sequence[str], at: Point) -> str:
    chosen = ", ".join(f"{axis}={value}" for axis, value in zip(axes, at, strict=False) if value)
    return f"{at[-2]} {at[-1]}" + (f" ({chosen})" if chosen else "")


def _statistics(result: Comparison, mine: Sequence[CellRows], theirs: Sequence[CellRows]) -> str:
    """Compare every measured point of the reference; returns how many in which way.

    A point that is not run here for a declared reason counts as missing: its reference cannot be checked.
    """
    axes = table_module(result.table).AXES
    timed, environment = bool(about(result.table).get("timing")), theirs[0].environment
    ours, reference = _points(mine, axes), _points(theirs, axes)
    words = ("tested seed by seed", "tested", "exact", "timed", "without a spread", "failed in the reference")
    counts = dict.fromkeys(words, 0)
    for at, rows in reference.items():
        what = _name(axes, at)
        fresh = ours.get(at, [])
        a, b = _estimate(fresh, at[-1]), _estimate(rows, at[-1])
        eps = EPS.get(dict(zip(axes, at, strict=False)).get("dtype", ""), EPS[str(theirs[0].science["precision"])])
        if not fresh:
            result.failures.append(f"{what}: in {environment}, not in your rows")
        elif len(fresh) < len(rows) or a["n_failed"] > b["n_failed"]:
            theirs_too = f"in {environment} {len(rows)}, {b['n_failed']} failed"
            result.failures.append(f"{what}: {len(fresh)} rows, {a['n_failed']} failed; {theirs_too}")
        elif not b["n"]:
            counts["failed in the reference"] += 1
        elif at[-1] == "exact":
            counts["exact"] += 1
            if not exact_agrees(at[-2], a["estimate"], b["estimate"], eps):
                result.failures.append(f"{what}: {_show(a)}, in {environment} {_show(b)}")
        elif timed:
            counts["timed"] += 1
        elif math.isnan((found := difference(a, b, eps)).p):
            counts["without a spread"] += 1
        else:
            counts["tested" if found.test == WELCH else "tested seed by seed"] += 1
            result.tests.append(Tested(found.p, f"{what}: {_show(a)}, in {environment} {_show(b)}", found.test))
    return ", ".join(f"{n} {word}" for word, n in counts.items() if n)


def _points(cells: Sequence[CellRows], axes: Sequence[str]) -> dict[Point, list[Mapping[str, str]]]:
    """Measured rows by point; where two cells cover a point of the same seed it is one measurement."""
    points: dict[Point, list[Mapping[str, str]]] = {}
    owner: dict[Point, str] = {}
    for cell in cells:
        for row in cell.rows:
            at = (*(row[axis] for axis in axes), row["quantity"], row["statistic"])
            measured = row["source"] == "measured" and not row["status"].startswith("not_run")
            if measured and owner.setdefault((*at, row["seed"]), cell.key) == cell.key:
                points.setdefault(at, []).append(row)
    return points


def _estimate(rows: Sequence[Mapping[str, str]], statistic: str) -> dict[str, Any]:
    """As in the tables, but seeds that differ by more than their draws explain are counted as seeds, not draws.

    A trained model has an accuracy with the spread of its test set; another device trains another model.
    """
    line = estimate(rows, statistic)
    values = [float(row["value"]) for row in rows if row["status"] == "ok"]
    if len(values) > 1 and not math.isnan(line["sd"]):
        between = statistics.stdev(values)
        if between / math.sqrt(len(values)) > line["sd"] / math.sqrt(line["n"]):
            line |= {"sd": between, "n": len(values)}
    return line


def _show(line: Mapping[str, Any]) -> str:
    error = "" if math.isnan(line["sd"]) else f" ± {line['sd'] / math.sqrt(line['n']):.2g}"
    return f"{line['estimate']:.9g}{error} (n={line['n']})"


def check(tables: Sequence[str], store: Store, raw: Path) -> tuple[list[Comparison], str]:
    """Compare tables; Holm's correction is over everything that is tested. Also one sentence on the tests."""
    results = []
    for table in tables:
        try:
            results.append(compare(table, store, raw))
        except Exception as error:  # a damaged file must not hide the others
            results.append(Comparison(table, failures=[f"cannot be compared: {type(error).__name__}: {error}"]))
    tests = [(result, test) for result in results for test in result.tests]
    adjusted = stats.holm([test.p for _, test in tests]).tolist()
    for (result, test), p in zip(tests, adjusted, strict=True):
        if p <= ALPHA:
            result.failures.append(f"{test.sentence}: p = {p:.2g} ({test.test}) after Holm over {len(tests)}")
    return results, f"; smallest p of {len(tests)} points after Holm {min(adjusted):.2g}" if tests else ""


def main(argv: Sequence[str]) -> int:
    """Check the named tables, or all: 1 for a difference, and where what should be compared is not there."""
    store, repository, known = Store(paths.results_dir()), paths.repository(), paths.table_names()
    if unknown := [name for name in argv if name not in known]:
        print(f"check: TABLE={unknown[0]}: there is no such table; choices: {', '.join(known)}", file=sys.stderr)
        return 2
    raw = (repository / "results" if repository else store.root) / "raw"
    results, tested = check(argv or known, store, raw)
    for result in results:
        for sentence in result.said:
            print(f"{result.table}: {sentence}", file=sys.stderr)
        for failure in result.failures[:SHOWN]:
            print(f"DIFFERS {result.table}: {failure}", file=sys.stderr)
        if len(result.failures) > SHOWN:
            print(f"DIFFERS {result.table}: and {len(result.failures) - SHOWN} more", file=sys.stderr)
    differences = sum(len(result.failures) for result in results)
    done, not_run = sum(result.done for result in results), sum(len(result.not_run) for result in results)
    compared = f"{done} of {len(results)} tables compared" + (f" but for {not_run} cells not run" if not_run else "")
    print(f"check: {compared}, {differences} differences{tested}", file=sys.stderr)
    # What was asked for by name must be compared, and a check of nothing is no success.
    return 1 if differences or done < max(len(argv), 1) else 0
