"""Figures and tables for papers: each chart as SVG and PDF, each list of printed values as LaTeX and Markdown."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnrepro import paths
from attnrepro.app.dashboard import chart_config, light_colours
from attnrepro.app.documents import measured, short
from attnrepro.app.report import TableReport, build_at, pages, printed_table
from attnrepro.results.store import write_text

# Width in points of a chart that has none of its own: a text column of most journals takes it at two thirds.
WIDTH, HEIGHT = 440, 260
# Measured values are thousands in a few tables; what is printed is what a paper shows beside them.
COLUMNS = ("what", "published", "measured (95 % interval, n)", "theory", "verdict")


def on_paper(node: Any) -> Any:
    """A specification with the colours of the light page in place of its style sheet's variables."""
    if isinstance(node, Mapping):
        return {key: on_paper(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [on_paper(value) for value in node]
    if isinstance(node, str) and "var(--" in node:
        colours = light_colours()
        return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], node)
    return node


def specification(chart: Mapping[str, Any]) -> dict[str, Any]:
    """A chart of a table as it is drawn outside the page: own size, literal colours."""
    grid = {"concat", "hconcat", "vconcat", "facet", "repeat", "spec"} & chart.keys()
    sized = {} if grid else {"width": WIDTH, "height": HEIGHT}
    config = {**chart_config(), "font": "sans-serif", "background": "white"}
    spec: dict[str, Any] = on_paper({**sized, **chart, "config": {**config, **chart.get("config", {})}})
    if spec.get("width") == "container":
        spec["width"] = WIDTH
    return spec


def latex(report: TableReport) -> str:
    """The printed values of the group that is shown, as a ``longtable`` (packages longtable and booktabs)."""
    import pandas as pd

    cells = [
        [report.what(r), r["published"] or "words", measured(r), short(r.get("theory")), str(r["verdict"])]
        for r in report.lines
        if r.get("claim") and report.shows(r)
    ]
    frame = pd.DataFrame(cells, columns=list(COLUMNS))
    caption = report.about["title"].translate({ord(sign): f"\\{sign}" for sign in "&%$#_{}"})
    return frame.to_latex(
        index=False,
        escape=True,
        longtable=True,
        caption=caption,
        label=f"tab:{report.name}",
        column_format=r"p{0.36\linewidth}lp{0.26\linewidth}ll",
    )


def write(reports: Sequence[TableReport], folder: Path) -> list[Path]:
    """Write the figures and tables of ``reports`` and return their paths; files that are right stay untouched.

    Every chart is drawn twice: SVG for the screen, PDF for LaTeX.
    """
    import vl_convert

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for report, page in zip(reports, pages(reports), strict=True):
        for number, chart in enumerate(page.charts, 1):
            stem = folder / (report.name if number == 1 else f"{report.name}-{number}")
            spec = specification(chart)
            write_text(stem.with_suffix(".svg"), vl_convert.vegalite_to_svg(spec) + "\n")
            stem.with_suffix(".pdf").write_bytes(vl_convert.vegalite_to_pdf(spec))
            written += [stem.with_suffix(".svg"), stem.with_suffix(".pdf")]
        if lines := printed_table(report):
            write_text(folder / f"{report.name}.md", "\n".join(lines) + "\n")
            write_text(folder / f"{report.name}.tex", latex(report))
            written += [folder / f"{report.name}.md", folder / f"{report.name}.tex"]
    return written


def main(arguments: Sequence[str]) -> int:
    """``make figures [TABLE="a b"]``: figures and tables of the rows there are; 2 for an unknown table."""
    known = paths.table_names()
    if unknown := [table for table in arguments if table not in known]:
        print(f"figures: unknown table {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    root = paths.results_dir()
    outcome = build_at(root)
    chosen = [report for report in outcome.reports if not arguments or report.name in arguments]
    total = 0
    for report in chosen:
        print(f"figures: {report.name}", file=sys.stderr)
        total += len(write([report], root / "figures"))
    for problem in [p for report in chosen for p in report.problems]:
        print(f"FAILED {problem}", file=sys.stderr)
    print(f"{total} files in {root / 'figures'}")
    return 1 if any(report.problems for report in chosen) else 0
