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
from attnrepro.config import BadInput, digest
from attnrepro.results.claims import Claim, load_claims
from attnrepro.results.published import NOT_MEASURED, PublishedLine, load_not_measured, load_published
from attnrepro.results.store import Store


def why(claim: str, root: Path, store: Store) -> str:
    """The whole answer for one id of ``results/claims.csv``; ``root`` is the repository.

    Raises:
        BadInput: there is no such id.
    """
    claims = load_claims(root / "results" / "claims.csv")
    if claim not in claims:
        near = difflib.get_close_matches(claim, claims, n=3, cutoff=0.5)
        raise BadInput(f"CLAIM={claim}: there is no such claim; the closest: {', '.join(near) or 'none'}")
    published = root / "results" / "published"
    head = f"{claim}: document {claims[claim].document}, section: {claims[claim].section}"
    if reason := load_not_measured(published / NOT_MEASURED).get(claim):
        return f"{head}\n  not measured: {reason}"
    return "\n".join([head, *_answer(claims[claim], published / f"{claims[claim].table}.csv", store, root)])


def _answer(claim: Claim, path: Path, store: Store, root: Path) -> Iterator[str]:
    if claim.table not in paths.table_names():
        yield "  no table measures it yet"
        return
    lines = [line for line in load_published(path) if line.claim == claim.claim] if path.is_file() else []
    if not lines:
        yield f"  {path.relative_to(root)} has no line for it: make verify"
        return
    raw = root / "results" / "raw"
    report = report_table(claim.table, store, raw)
    commands = Commands(report, store, raw)
    for line in lines:
        rows = [row for row in report.lines if _is_at(row, line, report.axes)]
        shown = [row for row in rows if report.shown is None or _group(row) == _shown_group(report)]
        yield from _printed(line)
        for row in shown:
            yield from _found(row, report)
            yield f"  again      {commands.of(row)}"
        for row in rows:
            if row not in shown:
                yield f"  also       {_where(row)}: {_measured(row)}: {row['verdict']}"
    files = ("conf/experiment/{0}.yaml", "results/published/{0}.csv", "results/tables/{0}.csv")
    yield "  files      " + "  ".join(name.format(claim.table) for name in files)


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
    if note := str(row["note"]).removesuffix(str(row["reason"])).removesuffix("; "):
        yield f"  note       {note}"


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
        self.table = report.name
        self.columns = (*report.axes, "quantity", "statistic")
        self.cells = [*own_cells(store, self.table, REPORTED), *reference_cells(raw, self.table, REPORTED)]
        self.plans: dict[str, list[Planned]] = {}

    def of(self, row: Mapping[str, Any]) -> str:
        """The one cell that a line comes from, else the table; a table that reads rows needs those first."""
        scale = str(row["scale"])
        found = {
            cell.identity
            for cell in self.cells
            if (cell.environment, cell.scale) == (row["environment"], scale)
            and any(r["source"] == "measured" and all(r[c] == row[c] for c in self.columns) for r in cell.rows)
        }
        if found and not about(self.table).get("needs"):
            if scale not in self.plans:
                plan = make_plan([f"experiment={self.table}", f"scale={scale}"], check_inputs=False)
                self.plans[scale] = plan.cells
            planned = [p for p in self.plans[scale] if digest(p.cell.science()) in found]
            if len(planned) == 1:
                return shlex.join(["attnrepro", *planned[0].overrides, "hydra.mode=RUN"])
        return f"make reproduce TABLE={self.table}" + (f" SCALE={scale}" if scale else "")


def main(argv: Sequence[str]) -> int:
    """Print the answer; 2 when there is no such claim."""
    root = paths.repository()
    try:
        if root is None:
            raise BadInput("there is no checkout here, only an installed package, which lists no claims")
        if len(argv) != 1:
            raise BadInput("which claim? make why CLAIM=<id>; the column claim of results/tables/<table>.csv has them")
        print(why(argv[0], root, Store(paths.results_dir())))
    except ValueError as error:
        print(f"why: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0
