"""What is committed was generated from the committed rows, and answers for every claim it owns."""

import csv
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from attnrepro import paths
from attnrepro.app import report
from attnrepro.app.gather import Group, estimate
from attnrepro.config import table_module
from attnrepro.results.claims import load_claims
from attnrepro.results.published import load_published, register

from .toy import Inside

ROOT = paths.repository()
assert ROOT is not None
RESULTS = ROOT / "results"
TABLES = paths.table_names()


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything generated, from the reference rows alone."""
    root = tmp_path_factory.mktemp("generated")
    readme = root / "README.md"
    readme.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    outcome = report.build(root, own=False, raw=RESULTS / "raw", readme=readme, dashboard=False)
    assert outcome.problems == []
    return root


@pytest.mark.parametrize("name", ["REPORT.md", *(f"tables/{table}.csv" for table in TABLES)])
def test_generated_files_are_those_of_the_committed_rows(generated: Path, name: str) -> None:
    assert (RESULTS / name).read_bytes() == (generated / name).read_bytes(), f"run make tables: {name} is out of date"


def test_readme_block_is_current(generated: Path) -> None:
    assert (ROOT / "README.md").read_bytes() == (generated / "README.md").read_bytes(), "run make tables"


def test_no_table_of_a_table_that_is_gone() -> None:
    assert sorted(path.stem for path in (RESULTS / "tables").glob("*.csv")) == TABLES


@pytest.mark.parametrize("table", TABLES)
def test_every_printed_line_is_answered(table: str) -> None:
    with (RESULTS / "tables" / f"{table}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    answered = {claim for row in rows for claim in row["claim"].split(";") if row["verdict"] not in ("", "NOT_RUN")}
    printed = {line.claim for line in load_published(paths.published_dir() / f"{table}.csv")}
    if getattr(table_module(table), "NESTED", False):
        # What a table states of its own may wait for a run at scale full; what a document says has an answer now.
        printed &= load_claims(RESULTS / "claims.csv").keys()
    assert printed <= answered
    for row in rows:
        if row["class"] == "sampling" and row["published"] and row["statistic"] in ("mean", "sd"):
            assert int(row["n"]) > 1 and row["estimate"] and row["ci_low"] and row["ci_high"] and row["theory"], row


def test_the_thirty_printed_numbers_of_the_sqrt_d_table() -> None:
    with (RESULTS / "tables" / "sqrt_d_entropy.csv").open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if row["claim"].startswith("s0-sqrtd-") and row["class"] == "sampling"
        ]
    own = [row for row in rows if row["claim"].split(";")[0].endswith(("-sd", "-H", "-M"))]
    assert len(own) == 30
    assert all(row["published"] and row["estimate"] and row["theory"] and row["verdict"] for row in own)
    assert all(row["scale"] in ("cpu", "full") for row in rows), "a smoke row is no result"


def test_register_has_every_claim_once() -> None:
    found = register(paths.published_dir())
    assert {file.stem for file in found.values()} <= {*TABLES, "not_measured"}
    files = [file.name for file in found.values()]
    assert files.count("sqrt_d_entropy.csv") == 58 and found["s0-quiz2"].name == "scale_training.csv"


def row(value: float, *, n: int = 1, sd: float | None = None, status: str = "ok") -> dict[str, str]:
    spread = "" if sd is None else repr(sd)
    return {"seed": "0", "value": repr(value), "n": str(n), "sd": spread, "status": status}


def test_estimate_over_seeds_has_spread_and_interval() -> None:
    line = estimate([row(1.0), row(2.0), row(4.0)], "mean")
    assert (line["n"], line["n_failed"], line["seeds"]) == (3, 0, (1.0, 2.0, 4.0))
    assert line["estimate"] == pytest.approx(7 / 3) and line["sd"] == pytest.approx(math.sqrt(7 / 3))
    assert line["ci_low"] < line["estimate"] < line["ci_high"]


def test_failed_seeds_are_counted_and_one_seed_has_no_interval() -> None:
    line = estimate([row(1.0), row(math.nan, status="failed: diverged")], "mean")
    assert (line["n"], line["n_failed"], line["estimate"]) == (1, 1, 1.0)
    assert math.isnan(line["sd"]) and math.isnan(line["ci_low"])
    assert estimate([row(math.nan, status="failed: diverged")], "mean")["n"] == 0


def test_monte_carlo_seeds_are_pooled() -> None:
    line = estimate([row(1.0, n=100, sd=1.0), row(3.0, n=300, sd=1.0)], "mean")
    assert line["n"] == 400 and line["estimate"] == pytest.approx(2.5) and line["sd"] > 1.0


def test_a_readme_without_its_markers_is_said() -> None:
    with pytest.raises(ValueError, match="markers"):
        report.readme_block([], "# attnrepro\n")


def test_numbers_are_rounded_to_what_every_processor_agrees_on() -> None:
    assert report._cell(0.1 + 0.2) == "0.3" and report._cell(1e-300) == "1e-300" and report._cell(2.0) == "2"


# --- what a table may say about its own rows ---


def add_to_toy(inside: Inside, source: str, published: str = "") -> None:
    """Append to the toy table's torch-free half and to its printed numbers."""
    with (inside.copy.root / "experiments/toy/table.py").open("a") as file:
        file.write(source)
    with (inside.copy.root / "results/published/toy.csv").open("a") as file:
        file.write(published)


@pytest.mark.slow
def test_a_control_that_does_not_hold_fails_the_table_but_not_smoke(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnrepro.app import accept, smoke

    high = "[f'point {r.point} is high' for r in frame.itertuples() if r.estimate > 6]"
    add_to_toy(inside, f"\n\ndef controls(frame):\n    return {high}\n")
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    outcome = inside.build()
    (problem,) = outcome.problems
    assert problem.startswith("toy (cpu-") and problem.endswith(", cpu): point 6 is high")
    assert outcome.broken == [] and outcome.reports[0].broken == []
    monkeypatch.setenv("ATTNREPRO_RESULTS", str(inside.results))
    assert report.main() == 1
    assert accept.main(["toy"]) == 1
    assert not (inside.results / "raw").exists()
    assert smoke.smoke(["toy"], inside.results.parent / "small") == 0

    inside.copy.edit("experiments/toy/table.py", "> 6]", "> 7]")
    assert inside.build().problems == []


@pytest.mark.slow
def test_controls_that_cannot_run_are_a_fault_of_the_table(inside: Inside) -> None:
    from attnrepro.app import smoke

    add_to_toy(inside, "\n\ndef controls(frame):\n    return frame.no_such_column\n")
    assert smoke.smoke(["toy"], inside.results) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "verdict"),
    [
        ("", "SOURCE_ERROR"),
        ("return 0.5, 0.25", "REPRODUCED"),  # 1.25 is 10 units of scale times eps
        ("return 0.1, 0.25", "INCONCLUSIVE"),  # 50 units
        ("return (0.5, 0.25) if dict(line.axes)['point'] == '2' else (1.0, 1e-9)", "SOURCE_ERROR"),
        ("return float(frame.estimate.max()), 0.1", "REPRODUCED"),
    ],
)
def test_a_structural_line_is_judged_in_the_units_of_its_table(inside: Inside, hook: str, verdict: str) -> None:
    source = f"\n\ndef roundoff(line, frame):\n    {hook}\n" if hook else ""
    add_to_toy(inside, source, "toy-structural,1,level,mean,,,,structural,,an error that is not there\n")
    assert inside.attnrepro("experiment=toy", "scale=cpu").code == 0
    assert inside.build().problems == []
    words = {line["claim"]: line["verdict"] for line in inside.table() if line["claim"]}
    assert words == {"toy-exact": "REPRODUCED", "toy-sampling": "WITHIN_NOISE", "toy-structural": verdict}


def seeds_of(*lines: dict[str, object]) -> list[dict[str, object]]:
    shown = Group("", "here", "cpu", own=True, stale=False)
    base = {"variant": "", "environment": "here", "scale": "cpu", "claim": "c", "statistic": "mean"}
    ends = {"estimate": 0.5, "ci_low": 0.4, "ci_high": 0.6}
    made = report.TableReport("t", {}, ("model", "step"), shown=shown)
    made.lines = [{**base, **ends, **line} for line in lines]
    return report._seed_charts(made)


def test_every_seed_is_a_point() -> None:
    (chart,) = seeds_of(
        {"model": "a", "step": "1", "quantity": "loss", "seeds": (0.1, 0.9)},
        {"model": "b", "step": "1", "quantity": "loss", "seeds": (0.2, 0.3, 0.4)},
        {"model": "b", "step": "1", "quantity": "loss", "seeds": (0.2, 0.3), "claim": ""},
        {"model": "b", "step": "1", "quantity": "time", "seeds": (0.7,)},
        {"model": "b", "step": "1", "quantity": "time", "seeds": (0.7, 0.8), "scale": "full"},
    )
    points, interval, mean = (layer["data"]["values"] for layer in chart["layer"])
    assert [(point["where"], point["value"]) for point in points] == [
        ("a", 0.1),
        ("a", 0.9),
        ("b", 0.2),
        ("b", 0.3),
        ("b", 0.4),
    ]
    assert interval == mean == [{"where": name, "estimate": 0.5, "low": 0.4, "high": 0.6} for name in "ab"]
    assert chart["title"] == {"text": "loss, each seed", "subtitle": "mean by model"}


def test_many_seeds_become_quantiles() -> None:
    (chart,) = seeds_of({"model": "a", "step": "", "quantity": "loss", "seeds": tuple(range(301))})
    points = chart["layer"][0]["data"]["values"]
    assert [point["value"] for point in points] == [0, 75, 150, 225, 300]
    assert {point["where"] for point in points} == {"all"}
    assert chart["title"] == {"text": "loss, quantiles of the seeds", "subtitle": "mean"}
    assert chart["layer"][0]["encoding"]["y"]["axis"] is None, "a single line needs no name"
    few = seeds_of({"model": "a", "step": "", "quantity": "loss", "seeds": tuple(range(300))})
    assert len(few[0]["layer"][0]["data"]["values"]) == 300


def test_no_more_than_a_few_charts_of_seeds() -> None:
    lines = [{"model": "a", "step": "", "quantity": f"q{i}", "seeds": (1.0, 2.0, 3.0)} for i in range(9)]
    assert len(seeds_of(*lines)) == report.SEED_CHARTS


@pytest.mark.parametrize(("seeds", "drawn"), [((1.0, 2.0), 0), ((1.0, 1.0, 1.0), 0), ((1.0, 1.0, 2.0), 1)])
def test_seeds_that_say_nothing_are_not_drawn(seeds: tuple[float, ...], drawn: int) -> None:
    assert len(seeds_of({"model": "a", "step": "", "quantity": "loss", "seeds": seeds})) == drawn


def test_long_names_are_folded_and_differences_stay_whole() -> None:
    line = {"step": "1", "quantity": "gain", "statistic": "paired_difference", "seeds": (0.1, 0.2, 0.3)}
    long = "prototypical - nearest_pixel of the glyphs"
    (chart,) = seeds_of({"model": "a", **line}, {"model": long, **line})
    names = chart["layer"][1]["data"]["values"]
    assert [name["where"] for name in names] == ["a", "prototypical\u00a0-\u00a0nearest_pixel of\nthe glyphs"]
    assert chart["height"] == {"step": 36}


@pytest.mark.parametrize(
    ("statistic", "ends", "kind"),
    [("value", (1.0, 99.0), "log"), ("value", (1.0, 2.0), None), ("paired_difference", (1.0, 99.0), None)],
)
def test_values_of_several_decades_stand_on_a_logarithm(
    statistic: str, ends: tuple[float, float], kind: str | None
) -> None:
    line = {"model": "a", "step": "", "quantity": "time", "statistic": statistic, "ci_low": 1.0}
    (chart,) = seeds_of({**line, "seeds": (ends[0], 1.5, ends[1]), "ci_high": ends[1]})
    assert chart["layer"][0]["encoding"]["x"]["scale"].get("type") == kind


def test_long_titles_are_folded() -> None:
    long = "search for the rates on 316 images of the digits"
    folded = ["search for the rates on 316 images of the", "digits"]
    assert report._folded({"title": long, "mark": "bar"}) == {"title": {"text": folded}, "mark": "bar"}
    assert report._folded({"title": {"text": long, "subtitle": "s"}})["title"] == {"text": folded, "subtitle": "s"}
    for short in ({"title": "short"}, {"title": {"text": "short", "subtitle": ["a", "b"]}}, {"mark": "bar"}):
        assert report._folded(short) == short


@pytest.mark.slow
def test_a_build_with_what_is_kept_gives_the_bytes_of_one_from_scratch(
    checkout: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout.refresh()
    root = checkout.results
    made: list[str] = []
    original = report.report_table

    def told(table: str, *arguments: Any) -> report.TableReport:
        made.append(table)
        return original(table, *arguments)

    monkeypatch.setattr(report, "report_table", told)
    kept = report.Kept()

    def same_as_from_scratch() -> list[str]:
        """What was reported anew."""
        made.clear()
        report.build(root, kept=kept)
        again = made.copy()
        fresh = tmp_path / "fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(root, fresh, ignore=shutil.ignore_patterns("tables", "REPORT.md", "dashboard.html", ".stamp*"))
        report.build(fresh)
        for name in ("REPORT.md", "dashboard.html", *(f"tables/{table}.csv" for table in paths.table_names())):
            assert (root / name).read_bytes() == (fresh / name).read_bytes(), name
        return again

    tables = paths.table_names()
    assert same_as_from_scratch() == tables
    assert same_as_from_scratch() == []
    before = (root / "dashboard.html").read_bytes()
    # The reference would stand in for the cell that is away.
    shutil.rmtree(root / "raw")
    assert same_as_from_scratch() == tables
    cell = next((root / "runs" / "toy").glob("*/done.json")).parent
    cell.rename(tmp_path / "away")
    assert same_as_from_scratch() == ["toy", "toy_derived"], "and what reads its rows"
    assert (root / "dashboard.html").read_bytes() != before
    (tmp_path / "away").rename(cell)
    assert same_as_from_scratch() == ["toy", "toy_derived"]
    (root / "runs" / "toy_timing" / "abc").mkdir()
    (root / "runs" / "toy_timing" / "abc" / "failed.json").write_text("{}")
    assert same_as_from_scratch() == ["toy_timing"]
    rows = next((root / "runs" / "toy_training").glob("*/rows.csv"))
    rows.write_text(rows.read_text() + "damaged\n")
    assert same_as_from_scratch() == ["toy_training"]
    yaml = checkout.copy.root / "conf" / "experiment" / "toy.yaml"
    yaml.write_text(yaml.read_text().replace("title: Toy", "title: Another toy"))
    assert set(same_as_from_scratch()) == set(tables)
    assert "Another toy" in (root / "dashboard.html").read_text(encoding="utf-8")
