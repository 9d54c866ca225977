"""``make verify``: everything that is committed under ``results/`` fits together. No torch; nothing is written."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attnrepro import paths
from attnrepro.app.gather import CellRows, own_cells, reference_cells
from attnrepro.app.precheck import own_grid
from attnrepro.app.report import TableReport, about, for_documents, markdown, readme_block, report_table
from attnrepro.config import BadInput, digest, table_module
from attnrepro.results.claims import load_claims, register_problems
from attnrepro.results.published import NOT_MEASURED, load_not_measured, load_published
from attnrepro.results.schema import REFERENCE_SCALES, changed_cells, load_records, record_problems, row_problems
from attnrepro.results.store import Store


@dataclass
class Verification:
    """What was looked at under ``root``, the repository, and every problem, as ``<file>: <what>``."""

    root: Path
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cells: int = 0
    claims: int = 0
    without_table: int = 0

    def add(self, path: Path, what: str | Exception) -> None:
        """Note a problem of a file; a sentence that begins with the path does not say it twice."""
        text = str(what).removeprefix(f"{path} ").removeprefix(f"{path}: ").replace("\n", "\\n")
        self.problems.append(f"{path.relative_to(self.root)}: {text}")


def verify(root: Path) -> Verification:
    """Check rows, published lines, the list of claims and what is generated from them."""
    found = Verification(root)
    _check_rows(found)
    _check_register(found, _published(found))
    _check_generated(found)
    return found


def _check_rows(found: Verification) -> None:
    """``results/raw``: rows as the store writes them, the cells of the grid with right keys, a pair of files each."""
    tables, raw = paths.table_names(), found.root / "results" / "raw"
    for path in sorted(raw.glob("*")):
        if not path.is_dir():
            found.add(path, "belongs to no environment")
    for path in sorted(raw.glob("*/*")):
        table, beside = path.stem, path.with_suffix(".json")
        if path.suffix not in (".csv", ".json") or table not in tables:
            found.add(path, "there is no such table")
        elif path.suffix == ".json":
            if not path.with_suffix(".csv").is_file():
                found.add(path, f"there is no {table}.csv beside it")
        else:
            try:
                records = load_records(beside)
            except ValueError as error:
                found.add(beside, error)
                continue
            timing = bool(about(table).get("timing"))
            for what in record_problems(table, path.parent.name, records, timing=timing):
                found.add(beside, what)
            for what in _grid_problems(table, records):
                found.add(beside, what)
            for what in row_problems(path, table_module(table).AXES, records):
                found.add(path, what)
            for what in changed_cells(path, records):
                found.add(path, what)
            found.cells += len(records)


def _grid_problems(table: str, records: Mapping[str, Any]) -> Iterator[str]:
    """Whether the cells of one environment are those of the table's own grid.

    At scale full some may be missing: long runs are accepted as they finish.
    """
    recorded: dict[str, dict[str, str]] = {scale: {} for scale in REFERENCE_SCALES}
    for key, record in records.items():
        science = record.get("config") if isinstance(record, dict) else None
        if isinstance(science, dict) and science.get("scale") in recorded:
            first = recorded[science["scale"]].setdefault(digest(science), key)
            if first != key:
                yield f"cell {key}: has the configuration of cell {first}"
    for scale, cells in recorded.items():
        try:
            grid = {digest(science): science for science in own_grid(table, scale)} if cells else {}
        except BadInput as error:
            yield f"its grid at scale {scale} cannot be made: {error}"
            continue
        for identity, key in cells.items():
            if identity not in grid:
                yield f"cell {key}: is not on the grid of the table at scale {scale}"
        if scale == "cpu":
            yield from (f"the cell {_name(grid[i], grid.values())} is missing" for i in grid if i not in cells)


def _name(science: Mapping[str, Any], grid: Iterable[Mapping[str, Any]]) -> str:
    """What sets a cell apart from others of its grid."""
    flat, *others = (
        {**one, "params": "", **{f"params.{name}": value for name, value in one["params"].items()}}
        for one in (science, *grid)
    )
    apart = [
        f"{name}={str(value)[:40]}" for name, value in flat.items() if any(other.get(name) != value for other in others)
    ]
    return f"at scale {science['scale']} with {', '.join(apart)}" if apart else f"at scale {science['scale']}"


def _published(found: Verification) -> dict[Path, list[str]]:
    """The claims that each file of ``results/published`` answers; a file that does not load answers none."""
    answers: dict[Path, list[str]] = {}
    for path in sorted((found.root / "results" / "published").glob("*.csv")):
        try:
            if path.name == NOT_MEASURED:
                answers[path] = list(load_not_measured(path))
                continue
            if path.stem not in paths.table_names():
                found.add(path, "there is no such table")
                continue
            lines = load_published(path)
        except ValueError as error:
            found.add(path, error)
            continue
        answers[path] = list(dict.fromkeys(line.claim for line in lines))
        axes = tuple(table_module(path.stem).AXES)
        named = tuple(name for name, _ in lines[0].axes) if lines else axes
        if named != axes:
            found.add(path, f"its axes are {', '.join(named)}, those of the table {', '.join(axes)}")
    return answers


def _check_register(found: Verification, answers: Mapping[Path, Sequence[str]]) -> None:
    """The list of claims and the files of printed values say the same."""
    register = found.root / "results" / "claims.csv"
    try:
        claims = load_claims(register)
    except (OSError, ValueError) as error:
        found.add(register, error)
        return
    published, tables = register.parent / "published", paths.table_names()
    by_name = {path.stem: ids for path, ids in answers.items()}
    # A file that does not load has its own problem; that its claims are missing says nothing more.
    damaged = [table for table in tables if (published / f"{table}.csv").is_file() and table not in by_name]
    for name, what in register_problems(claims, by_name, [table for table in tables if table not in damaged]):
        found.add(published / f"{name}.csv", what)
    answered = {claim for ids in answers.values() for claim in ids}
    found.claims = len(claims)
    found.without_table = sum(c.table not in tables and c.claim not in answered for c in claims.values())


def _check_generated(found: Verification) -> None:
    """Tables, REPORT.md, README block and the generated files of docs/ are what the rows give, byte for byte.

    Whoever has rows of their own has them in the tables too: then the files must be what both together give, unless
    those rows contradict the reference that they stand in for.
    """
    results = found.root / "results"
    committed, reports, broken = _generated(found.root, None)
    for path, what in broken:
        found.add(path, what)
    for one in reports:
        for problem in one.problems:
            found.add(results / "tables" / f"{one.name}.csv", problem)
    for path in sorted((results / "tables").glob("*")):
        if path.stem not in paths.table_names() or path.suffix != ".csv":
            found.add(path, "there is no such table")
    with_own: dict[Path, str] | None = None
    for path, expected in committed.items():
        actual = _read(path)
        if actual == expected:
            continue
        if with_own is None:
            with_own = _with_own(found.root)
        if actual is not None and actual == with_own.get(path):
            found.notes.append(f"{path.relative_to(found.root)}: shows your own rows too, so it is not to be committed")
        else:
            found.add(path, f"{_first_difference(actual, expected)} (make tables writes it)")


def _with_own(root: Path) -> dict[Path, str]:
    """What the files must hold that show the rows of this machine beside the reference; none where it has none."""
    results = root / "results"
    store = Store(results)
    if not store.runs.is_dir():
        return {}
    contradicted = [t for t in paths.table_names() if _contradicts_reference(t, store, results / "raw")]
    files, _, _ = _generated(root, store)
    barred = {results / "tables" / f"{table}.csv" for table in contradicted}
    return {path: text for path, text in files.items() if path not in barred and (path.suffix == ".csv" or not barred)}


def _contradicts_reference(table: str, store: Store, raw: Path) -> bool:
    """Whether a cell of this machine has other rows than the reference of its own environment (times always have)."""
    if about(table).get("timing"):
        return False
    own = {(c.environment, c.identity): _values(c) for c in own_cells(store, table, REFERENCE_SCALES)}
    reference = reference_cells(raw, table, REFERENCE_SCALES)
    return any(own.get((c.environment, c.identity), values) != values for c in reference for values in [_values(c)])


def _values(cell: CellRows) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name != "key"} for row in cell.rows]


def _generated(root: Path, store: Store | None) -> tuple[dict[Path, str], list[TableReport], list[tuple[Path, str]]]:
    """What every generated file must hold, the reports they are made from, and the files that cannot be made."""
    results, readme = root / "results", root / "README.md"
    reports: list[TableReport] = []
    broken: list[tuple[Path, str]] = []
    files: dict[Path, str] = {}
    for table in paths.table_names():
        path = results / "tables" / f"{table}.csv"
        try:
            reports.append(report_table(table, store, results / "raw"))
            files[path] = reports[-1].csv
        except Exception as error:  # a damaged file or a table's own code must not hide the others
            broken.append((path, f"cannot be made: {type(error).__name__}: {error}"))
    if not broken:  # what is made from all tables cannot be told from some
        files[results / "REPORT.md"] = markdown(reports)
        try:
            files[readme] = readme_block(reports, _read(readme) or "")
        except ValueError as error:
            broken.append((readme, str(error)))
        try:
            files |= {
                root / "docs" / name: words for name, words in for_documents(reports, results / "published").items()
            }
        except (OSError, ValueError) as error:
            broken.append((results / "published" / "quizzes.yaml", str(error)))
    return files, reports, broken


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None


def _first_difference(actual: str | None, expected: str) -> str:
    if actual is None:
        return "is not there"
    pairs = zip_longest(actual.split("\n"), expected.split("\n"))
    line = next(number for number, (a, b) in enumerate(pairs, 1) if a != b)
    return f"line {line} is not what the rows give"


def _summary(found: Verification) -> Iterator[str]:
    for problem in found.problems:
        yield f"verify: {problem}"
    for note in found.notes:
        yield f"verify: {note}"
    yield (
        f"verify: {len(found.problems)} problems (tables: {len(paths.table_names())}, reference cells: {found.cells});"
        f" {found.without_table} of {found.claims} claims have no table yet"
    )


def main() -> int:
    """``make verify``: 1 if anything that is committed does not fit."""
    root = paths.repository()
    if root is None:
        print("verify: there is no checkout here, only an installed package: nothing to verify", file=sys.stderr)
        return 2
    found = verify(root)
    print("\n".join(_summary(found)), file=sys.stderr)
    return 1 if found.problems else 0
