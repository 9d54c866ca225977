"""What W&B shows of rows: names that can be plotted by, quantities with what stands behind them, charts, pictures."""

from __future__ import annotations

import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t as student

from attnrepro import paths
from attnrepro.app import gather, view
from attnrepro.app.headline import headline
from attnrepro.app.pictures import heat, side_by_side
from attnrepro.app.report import TableReport, report_table
from attnrepro.app.tracking import Tracker

REPOSITORY = Path(__file__).resolve().parents[2]


def row(value: object, **changes: str) -> dict[str, str]:
    blank = dict.fromkeys(("head_dim", "scaled", "unit", "n", "sd"), "")
    told = {"key": "k", "scale": "cpu", "source": "measured", "seed": "0", "quantity": "entropy", "statistic": "mean"}
    return {**told, **blank, "value": str(value), "status": "ok", **changes}


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("entropy", "mean"), "entropy/mean"),
        (("strength=0.5",), "strength_0p5"),
        (("-0.5",), "m0p5"),
        (("1e-05",), "1em05"),
        (("pre - post",), "pre_post"),
        (("它 it",), "it"),
        (("16x8x1",), "16x8x1"),
    ],
)
def test_names_hold_what_can_be_plotted_by(parts: tuple[str, ...], name: str) -> None:
    assert view.name(*parts) == name


def test_words_without_latin_letters_have_names_of_their_own() -> None:
    names = {view.name(word) for word in ("學習", "機器")}
    assert len(names) == 2
    assert all(re.fullmatch("[0-9a-f]{6}", name) for name in names)


def test_seeds_are_taken_together_and_what_the_config_says_is_not_repeated() -> None:
    values = [1.0, 2.0, 4.0]
    rows = [row(value, seed=str(seed), n="1", head_dim="64", scaled="true") for seed, value in enumerate(values)]
    rows += [
        row(9.0, n="1", head_dim="64", scaled="false"),
        row("", n="1", scaled="false", seed="1", status="failed: x"),
    ]
    rows += [row(2.5, source="theory", seed="", head_dim="64", scaled="true")]
    rows[4]["head_dim"] = "64"
    found = view.summary(rows, {"head_dim": 64, "scaled": [True, False]})
    half = student.ppf(0.975, 2) * statistics.stdev(values) / math.sqrt(3)
    mean = statistics.fmean(values)
    assert found == pytest.approx(
        {
            "entropy/mean/scaled_true": mean,
            "entropy/mean/scaled_true/n": 3,
            "entropy/mean/scaled_true/sd": statistics.stdev(values),
            "entropy/mean/scaled_true/ci_low": mean - half,
            "entropy/mean/scaled_true/ci_high": mean + half,
            "entropy/mean/scaled_true/theory": 2.5,
            "entropy/mean/scaled_false": 9.0,
            "entropy/mean/scaled_false/n": 1,
            "entropy/mean/scaled_false/n_failed": 1,
        }
    )


def test_values_whose_names_would_be_the_same_are_both_kept() -> None:
    rows = [row(value, n="1", scaled=word) for value, word in ((1.0, "a b"), (2.0, "a-b"))]
    found = view.summary(rows, {"scaled": ["a b", "a-b"]})
    assert sorted(value for name, value in found.items() if not name.endswith("/n")) == [1.0, 2.0]


def test_a_protocol_is_a_tag() -> None:
    assert view.tags("002", "cpu", {"protocol": "A"}) == ["document 002", "scale cpu", "protocol A"]
    assert view.tags("002", "cpu", {"protocol": ""}) == view.tags("002", "cpu", {}) == ["document 002", "scale cpu"]


def test_every_value_of_the_reference_has_a_name_that_can_be_plotted_by() -> None:
    raw = REPOSITORY / "results" / "raw"
    checked = 0
    for table in paths.table_names():
        for cell in gather.reference_cells(raw, table, gather.REPORTED)[:3]:
            params = cell.science["params"]
            axes = view.inner_axes(cell.rows, params)
            points = {
                tuple(r[name] for name in ("quantity", "statistic", *axes))
                for r in cell.rows
                if r["value"] and math.isfinite(float(r["value"]))
            }
            found = view.summary(cell.rows, params)
            assert all(re.fullmatch(r"[A-Za-z]\w*(/\w+)+", name, re.ASCII) for name in found)
            ends = {f"/{end}" for end in (*view.BESIDE, "theory", "n_failed")}
            estimates = [name for name in found if not any(name.endswith(end) for end in ends)]
            theory = [name for name in found if name.endswith("/theory") and name.removesuffix("/theory") not in found]
            assert len(estimates) + len(theory) == len(points), f"{table} {cell.key}"
            checked += 1
    assert checked > 20


# --- the chart of a table ---


def line(value: float, **changes: object) -> dict[str, Any]:
    told = {"variant": "", "environment": "e", "scale": "cpu", "quantity": "entropy", "statistic": "mean", "n": 5}
    numbers = {"estimate": value, "ci_low": value - 1, "ci_high": value + 1, "theory": math.nan, "published": ""}
    return {**told, "head_dim": "", "keys": "", **numbers, **changes}


def table_of(*lines: dict[str, Any]) -> TableReport:
    return TableReport("t", {"title": "T"}, ("head_dim", "keys"), list(lines))


def test_a_chart_shows_what_was_printed_along_the_axis_of_numbers() -> None:
    report = table_of(
        *(line(9.0, quantity="other", head_dim=d) for d in ("1", "2", "3", "4", "5")),
        *(line(float(d), head_dim=d, keys="own", published=p) for d, p in (("4", "4.5"), ("1024", ""), ("64", "1..2"))),
        *(line(-float(d), head_dim=d, keys="shared", theory=0.5) for d in ("4", "64", "1024")),
    )
    drawn = headline(report)
    assert drawn is not None
    assert (drawn.quantity, drawn.statistic, drawn.x, drawn.log) == ("entropy", "mean", "head_dim", True)
    assert [point[drawn.x_metric] for point in drawn.points] == [4.0, 64.0, 1024.0]
    own, shared = "t/keys_own", "t/keys_shared"
    assert [point[f"{own}/measured"] for point in drawn.points] == [4.0, 64.0, 1024.0]
    assert [point[f"{shared}/ci_low"] for point in drawn.points] == [-5.0, -65.0, -1025.0]
    assert [point.get(f"{own}/published") for point in drawn.points] == [4.5, None, None]
    assert [point.get(f"{own}/published_low") for point in drawn.points] == [None, 1.0, None]
    assert [point.get(f"{own}/published_high") for point in drawn.points] == [None, 2.0, None]
    assert [point[f"{shared}/theory"] for point in drawn.points] == [0.5, 0.5, 0.5]
    assert drawn.titles[f"{own}/measured"] == "measured (keys=own)"
    assert set(drawn.titles) == {name for point in drawn.points for name in point} - {drawn.x_metric}


def test_without_numbers_on_an_axis_lines_are_counted() -> None:
    drawn = headline(table_of(line(1.0, keys="a"), line(2.0, keys="b", head_dim="inf"), line(math.nan, keys="c")))
    assert drawn is not None
    assert (drawn.x, drawn.log) == ("", False)
    assert [(point["t/line"], point["t/all/measured"]) for point in drawn.points] == [(0.0, 1.0), (1.0, 2.0)]


def test_no_more_than_six_series_are_drawn() -> None:
    lines = [line(1.0, head_dim=str(d), keys=f"k{k}") for k in range(9) for d in (1, 2, 3)]
    lines[-1]["published"] = "1"
    drawn = headline(table_of(*lines))
    assert drawn is not None
    series = {name.split("/")[1] for name in drawn.titles}
    assert len(series) == 6
    assert "keys_k8" in series, "the one that was printed"


def test_a_table_without_any_value_has_no_chart() -> None:
    assert headline(table_of()) is None
    assert headline(table_of(line(math.nan, n=0))) is None


@pytest.mark.parametrize("table", ["sqrt_d_entropy", "position_strength", "worked_examples"])
def test_tables_of_the_repository_have_charts(table: str) -> None:
    report = report_table(table, None, REPOSITORY / "results" / "raw")
    drawn = headline(report)
    assert drawn is not None
    assert drawn.points
    assert all(math.isfinite(value) for point in drawn.points for value in point.values())
    assert all(re.fullmatch(r"[A-Za-z]\w*(/\w+)+", name, re.ASCII) for name in drawn.titles)


# --- pictures ---


def test_a_map_is_as_many_squares_as_it_has_values() -> None:
    pixels = heat([[0.0, 1.0], [0.5, math.nan]], side=4)
    assert [len(line_) for line_ in pixels] == [4, 4, 4, 4]
    light, dark, white = (247, 251, 255), (8, 48, 107), (255, 255, 255)
    assert (pixels[0][0], pixels[1][1], pixels[0][2], pixels[3][3]) == (light, light, dark, white)
    assert pixels[2][0] == tuple(round((a + b) / 2) for a, b in zip(light, dark, strict=True))
    assert heat([]) == []


def test_maps_stand_side_by_side() -> None:
    pixels = side_by_side([[[0.0]], [[1.0]]], gap=1)
    assert (len(pixels), len(pixels[0])) == (128, 257)
    assert (pixels[0][0], pixels[0][128], pixels[0][256]) == ((247, 251, 255), (255, 255, 255), (8, 48, 107))


class Shown(Tracker):
    """Keeps what would be shown."""

    def __init__(self) -> None:
        super().__init__("disabled", None, Path())
        self.pictures: dict[str, Any] = {}
        self.histograms: dict[str, Any] = {}

    def picture(self, name: str, pixels: Any, caption: str) -> None:
        self.pictures[name] = pixels

    def histogram(self, name: str, values: Any) -> None:
        self.histograms[name] = list(values)


def test_attention_and_positions_of_a_model_are_pictured_and_its_outputs_stay_as_they_are() -> None:
    import torch

    from attnrepro.app import pictures
    from attnrepro.nn.self_attention import SelfAttention

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = SelfAttention(8, num_heads=2)
            self.position = torch.nn.Buffer(torch.linspace(-2, 2, 24).view(3, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.attention(x + self.position, torch.ones(3, 3).tril().bool())
            return out

    torch.manual_seed(0)
    model, x = Model(), torch.randn(5, 3, 8)
    plain = model(x)
    with pictures.watched(model) as seen:
        assert torch.equal(model(x), plain)
        model(torch.zeros_like(x))  # only the first input counts
    assert not model.attention._forward_pre_hooks, "nothing stays"
    shown = Shown()
    pictures.show(shown, model, seen)
    assert set(shown.pictures) == {"attention/attention", "position/position"}
    weights = model.attention.weights(x[:1] + model.position, torch.ones(3, 3).tril().bool())[0].detach().double()
    entropies = [-sum(float(w) * math.log(float(w)) for w in line_ if w > 0) for head in weights for line_ in head]
    assert shown.histograms["attention/entropy_nats"] == pytest.approx(entropies, abs=1e-6)
    pixels = shown.pictures["attention/attention"]
    square = 128 // 3
    assert (len(pixels), len(pixels[0])) == (3 * square, 2 * 3 * square + 4)
    assert pixels[0][square] == (247, 251, 255), "a query sees no later key"
    assert pixels[0][0] == (8, 48, 107), "the first query sees the first key alone"


def test_a_picture_that_cannot_be_drawn_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    import torch

    from attnrepro.app import pictures

    class Odd(torch.nn.Module):
        def weights(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("has none")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model, shown = torch.nn.Sequential(Odd()), Shown()
    with pictures.watched(model) as seen:
        model(torch.zeros(2, 3, 4))
    pictures.show(shown, model, seen)
    assert not shown.pictures
    (sentence,) = capfd.readouterr().err.splitlines()
    assert sentence.startswith("An attention map did not reach Weights & Biases (has none)")


def test_names_of_runs_stay_apart_when_they_are_cut() -> None:
    """The values that differ may come last."""
    base = "params.model=cnn_additive params.cue=0.95 params.jitter=1 params.grid=shifted params.apart=3 params.n="
    names = [view.run_name(f"{base}{n}", key) for n, key in ((100, "0011aabbccdd"), (1000, "0022aabbccdd"))]
    assert all(name.startswith("model=cnn_additive cue=0.95 jitter=1 grid=shifted") for name in names)
    assert len(set(names)) == 2 and all(len(name) <= 64 for name in names)
    assert view.run_name("params.model=cnn seeds=[0,1]", "0011aabbccdd") == "model=cnn seeds=[0,1]"
