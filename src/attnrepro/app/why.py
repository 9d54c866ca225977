"""``make why CLAIM=<id>``: where a value is printed, what we find, and the command that measures it again. No torch."""

import difflib
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnrepro import paths
from attnrepro.app.gather import REPORTED, own_cells, reference_cells
from attnrepro.app.precheck import Planned, make_plan
from attnrepro.app.report import TableReport, about, report_table
from attnrepro.config import BadInput, digest, reading_module
from attnrepro.results.claims import Claim, load_claims
from attnrepro.results.published import NOT_MEASURED, PublishedLine, load_not_measured, load_published
from attnrepro.results.store import Store

WHICH = "which claim? make why CLAIM=<id>; the column claim of results/tables/<table>.csv has them"


def why(asked: str, root: Path, store: Store) -> str:
    """The whole answer for ids as they stand in the tables, one or several with ``;`` or spaces between them.

    ``root`` is the repository. An id is one of ``results/claims.csv`` or a table's own.

    Raises:
        BadInput: there is no such id, or none was given.
    """
    published = root / "results" / "published"
    claims = load_claims(root / "results" / "claims.csv")
    reasons = load_not_measured(published / NOT_MEASURED)
    files = {table: published / f"{table}.csv" for table in paths.table_names()}
    printed: dict[str, list[PublishedLine]] = {}
    tables: dict[str, str] = {}
    for table, path in files.items():
        for line in load_published(path) if path.is_file() else ():
            printed.setdefault(line.claim, []).append(line)
            tables.setdefault(line.claim, table)
    known = list(dict.fromkeys([*claims, *reasons, *printed]))
    ids = list(dict.fromkeys(asked.replace(";", " ").split()))
    if not ids:
        raise BadInput(WHICH)
    for claim in ids:
        if claim not in known:
            near = difflib.get_close_matches(claim, known, n=3, cutoff=0.5)
            raise BadInput(f"CLAIM={claim}: there is no such claim; the closest: {', '.join(near) or 'none'}")
    commands: dict[str, Commands] = {}
    answers = []
    for claim in ids:
        listed = claims.get(claim)
        table = tables.get(claim) or (listed.table if listed else "")
        said = [_head(claim, listed, table)]
        if claim in reasons:
            said.append(f"  not measured: {reasons[claim]}")
        elif table not in files:
            said.append("  no table measures it yet")
        elif claim not in printed:
            said.append(f"  {files[table].relative_to(root)} has no line for it: make verify")
        else:
            if table not in commands:
                raw = root / "results" / "raw"
                commands[table] = Commands(report_table(table, store, raw), store, raw)
            said += _answer(printed[claim], commands[table])
        answers.append("\n".join(said))
    return "\n\n".join(answers)


def _head(claim: str, listed: Claim | None, table: str) -> str:
    if listed:
        return f"{claim}: document {listed.document}, section: {listed.section}"
    where = f"document {about(table)['document']}, an id of the table {table} itself" if table else "an id of its own"
    return f"{claim}: {where}, not listed in results/claims.csv"


def _answer(lines: Sequence[PublishedLine], commands: "Commands") -> Iterator[str]:
    report = commands.report
    for line in lines:
        rows = [row for row in report.lines if _is_at(row, line, report.axes)]
        shown = [row for row in rows if report.shown is None or _group(row) == _shown_group(report)]
        yield from _printed(line)
        for row in shown:
            yield from _found(row, report)
            again = commands.of(row)
            yield f"  again      {again}"
            for other in commands.ranked_among(line):
                if other != again:
                    yield f"  other way  {other}"
        for row in rows:
            if row not in shown:
                yield f"  also       {_where(row)}: {_measured(row)}: {row['verdict']}"
    files = ("conf/experiment/{0}.yaml", "results/published/{0}.csv", "results/tables/{0}.csv")
    yield "  files      " + "  ".join(name.format(report.name) for name in files)


def _is_at(row: Mapping[str, Any], line: PublishedLine, axes: Sequence[str]) -> bool:
    at = dict(line.axes)
    place = (*(at.get(axis, "") for axis in axes), line.quantity, line.statistic)
    here = (*(row[axis] for axis in axes), row["quantity"], row["statistic"])
    return here == place and line.claim in str(row.get("claim", "")).split(";")


def _group(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return (row["variant"], row["environment"], row["scale"])


def _shown_group(report: TableReport) -> tuple[str, str, str]:
    shown = report.shown
    return (shown.variant, shown.environment, shown.scale) if shown else ("", "", "")


def _printed(line: PublishedLine) -> Iterator[str]:
    axes = ", ".join(f"{axis}={value}" for axis, value in line.axes if value)
    yield f"  what       {line.quantity} {line.statistic}" + (f" ({axes})" if axes else "")
    if line.has_range:
        low, high = line.bounds
        yield f"  printed    {line.printed + ', ' if line.printed else ''}read as {low:g} to {high:g}"
    else:
        yield f"  printed    {f'{line.printed} ± {line.resolution:g}' if line.printed else 'words, no number'}"
    yield f"  class      {line.klass}, margin {line.margin or 'none'}"
    yield f"  reason     {line.reason}"


def _found(row: Mapping[str, Any], report: TableReport) -> Iterator[str]:
    yield f"  measured   {_measured(row)}"
    if row["n"] and report.shown is not None:
        stale = ", stale: made by other code than today's" if row.get("stale") else ""
        yield f"  where      {'yours' if report.shown.own else 'reference'}, {_where(row)}{stale}"
    theory = row.get("theory", math.nan)
    yield f"  theory     {'none' if math.isnan(theory) else f'{theory:.9g}'}"
    p = row.get("p", math.nan)
    yield f"  verdict    {row['verdict']}" + ("" if math.isnan(p) else f", p = {p:.3g}")
    yield f"  tolerance  {row['tolerance']}"
    if row["found"]:
        yield f"  note       {row['found']}"


def _measured(row: Mapping[str, Any]) -> str:
    if not row["n"]:
        return "nothing"
    unit = f" {row['unit']}" if row["unit"] else ""
    ends = "" if math.isnan(row["ci_low"]) else f" [{row['ci_low']:.9g}, {row['ci_high']:.9g}]"
    failed = f", {row['n_failed']} failed" if row["n_failed"] else ""
    return f"{row['estimate']:.9g}{ends}{unit} (n={row['n']}{failed})"


def _where(row: Mapping[str, Any]) -> str:
    return f"{row['environment']}, scale {row['scale']}"


class Commands:
    """What measures the lines of one table again."""

    def __init__(self, report: TableReport, store: Store, raw: Path) -> None:
        self.report, self.table = report, report.name
        self.cells = [*own_cells(store, self.table, REPORTED), *reference_cells(raw, self.table, REPORTED)]
        self.plans: dict[str, list[Planned]] = {}

    def of(self, row: Mapping[str, Any]) -> str:
        """The one cell that a line comes from, else the table; a table that reads rows needs those first."""
        columns, commands = (*self.report.axes, "quantity", "statistic"), []
        scales = str(row["scale"]).split("+")
        for scale in scales:
            found = {
                cell.identity
                for cell in self.cells
                if (cell.environment, cell.scale) == (row["environment"], scale)
                and any(r["source"] == "measured" and all(r[c] == row[c] for c in columns) for r in cell.rows)
            }
            commands += self._of_cells(found, scale)
        return commands[0] if len(commands) == 1 else self._of_table(scales[-1])

    def ranked_among(self, line: PublishedLine) -> list[str]:
        """Those of the cells whose seeds a printed number was ranked among, one way of training each."""
        protocols, shown = getattr(reading_module(self.table), "protocols", None), self.report.shown
        if line.klass not in ("sampling", "single_run") or not (protocols and shown and shown.lines):
            return []
        samples = {protocol.samples for protocol in protocols(line, shown.frame()) if protocol.samples}
        found = set()
        for cell in self.cells:
            if samples and (cell.environment, cell.scale) == (shown.environment, shown.scale):
                values: dict[tuple[str, ...], list[float]] = {}
                for r in cell.rows:
                    if (r["source"], r["status"], r["quantity"]) == ("measured", "ok", line.quantity):
                        at = tuple(r[name] for name in (*self.report.axes, "statistic"))
                        values.setdefault(at, []).append(float(r["value"]))
                if any(tuple(one) in samples for one in values.values()):
                    found.add(cell.identity)
        return self._of_cells(found, shown.scale)

    def _of_table(self, scale: str) -> str:
        return f"make reproduce TABLE={self.table}" + (f" SCALE={scale}" if scale else "")

    def _of_cells(self, identities: set[str], scale: str) -> list[str]:
        """In the order of the grid; none where the cells read rows of other tables."""
        if not identities or about(self.table).get("needs"):
            return []
        if scale not in self.plans:
            plan = make_plan([f"experiment={self.table}", f"scale={scale}"], check_inputs=False)
            self.plans[scale] = plan.cells
        chosen = [planned for planned in self.plans[scale] if digest(planned.cell.science()) in identities]
        return [shlex.join(["attnrepro", *planned.overrides, "hydra.mode=RUN"]) for planned in chosen]


def main(argv: Sequence[str]) -> int:
    """Print the answer; 2 when there is no such claim."""
    root = paths.repository()
    try:
        if root is None:
            raise BadInput("there is no checkout here, only an installed package, which lists no claims")
        print(why(" ".join(argv), root, Store(paths.results_dir())))
    except ValueError as error:
        print(f"why: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0
