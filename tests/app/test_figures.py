"""`make figures`: pictures with the marks of the chart, tables with the numbers of the rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from attnrepro.app import dashboard, figures

from .toy import Inside

CHART: dict[str, Any] = {
    "data": {"values": [{"x": 1, "y": 2, "g": "a"}, {"x": 2, "y": 3, "g": "b"}, {"x": 3, "y": 5, "g": "b"}]},
    "mark": {"type": "point", "style": "published"},
    "encoding": {
        "x": {"field": "x", "type": "quantitative"},
        "y": {"field": "y", "type": "quantitative"},
        "color": {"field": "g", "type": "nominal"},
    },
}


def test_a_figure_has_its_marks_in_literal_colours() -> None:
    import vl_convert

    spec = figures.specification(CHART)
    assert "var(" not in str(spec)
    svg = vl_convert.vegalite_to_svg(spec)
    assert "var(" not in svg
    (marks,) = re.findall(r'<g class="mark-symbol role-mark marks".*?</g>', svg)
    assert marks.count("<path") == 3
    colours = dashboard.light_colours()
    assert set(re.findall(r'stroke="(#\w+)"', marks)) == {colours["--series-1"], colours["--series-2"]}


def test_own_size_and_settings_of_a_chart_stay() -> None:
    spec = figures.specification({**CHART, "width": 120, "config": {"axis": {"grid": False}}})
    assert (spec["width"], spec["height"], spec["config"]["axis"]) == (120, figures.HEIGHT, {"grid": False})
    assert figures.specification({"hconcat": [CHART, CHART]}).keys().isdisjoint({"width", "height"})


def test_light_colours_are_those_outside_the_dark_block() -> None:
    assert dashboard.light_colours()["--ink"] == "#1a1a1a"


@pytest.mark.slow
def test_files_of_the_toys(checkout: Inside) -> None:
    table = checkout.copy.root / "experiments" / "toy" / "table.py"
    table.write_text(f"{table.read_text()}\n\ndef charts(frame):\n    return [{CHART!r}, {CHART!r}]\n")
    (report,) = [report for report in checkout.build().reports if report.name == "toy"]
    folder = checkout.results / "figures"
    written = figures.write([report], folder)
    assert {path.name for path in written} == {
        *(f"{stem}.{kind}" for stem in ("toy", "toy-2") for kind in ("svg", "pdf")),
        "toy.md",
        "toy.tex",
    }
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in written)
    for path in written:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")
    rows = {row["claim"]: row for row in checkout.table() if row["claim"]}
    tex, md = ((folder / f"toy.{kind}").read_text() for kind in ("tex", "md"))
    for row in rows.values():
        assert row["verdict"].replace("_", r"\_") in tex
        assert row["verdict"] in md
        assert row["published"] in md
    assert tex.count(r"\\") - tex.count(r"\label") >= len(rows)
    assert r"\begin{longtable}" in tex


@pytest.mark.slow
def test_unknown_table(checkout: Inside, capfd: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["tyo"]) == 2
    assert "unknown table tyo; there are: " in capfd.readouterr().err


@pytest.mark.slow
def test_a_title_is_no_latex(checkout: Inside, tmp_path: Path) -> None:
    (report,) = [r for r in checkout.build().reports if r.name == "toy"]
    report.about = dict(report.about) | {"title": "50 % of d_k & more #1"}
    assert r"50 \% of d\_k \& more \#1" in figures.latex(report)
