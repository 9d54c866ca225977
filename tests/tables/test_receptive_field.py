"""Receptive fields: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.data.streams import generator
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.receptive_field import measure, table

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "receptive_field"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
# Every printed distance and depth, with one seed.
DEEP = (
    "params.study=support",
    "params.distances=[16,64,256,1024]",
    "params.depths=[1,2,3,5,10,15]",
    "params.length=8192",
    "seeds=[0]",
)
NEAR = ("params.study=support", "params.distances=[16]", "seeds=[0]")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    (row,) = [r for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    return row


def built(root: Path) -> report.TableReport:
    return harness.built(NAME, root)


def run(root: Path, *overrides: str) -> report.TableReport:
    assert entry.main([*SMOKE, f"results={root}", *overrides]) == 0
    return built(root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fields")
    for grid in (DEEP, ("params.study=effective,pooling",)):
        assert entry.main([*SMOKE, f"results={folder}", *grid]) == 0
    return folder


def change(root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    return harness.change(NAME, root, target, edit)


# --- what is measured ---


def test_every_claim_has_a_verdict_and_the_right_one(root: Path) -> None:
    made = built(root)
    assert made.problems == []
    assert made.checks[0][1].count == 2 * 2 * 3  # weights, kernels, depths
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    two_readings = {"REPRODUCED", "DIFFERS"}
    expected = {
        **{f"s0-conv-layers-{distance}": two_readings for distance in (16, 64, 256, 1024)},
        "s4-bytenet-linear": two_readings,
        "s4-long-range-failure": two_readings,
        "s4-addr-rf": {"REPRODUCED", "SOURCE_ERROR"},
    }
    assert words == {claim: expected.get(claim, {"REPRODUCED"}) for claim in words}
    assert "256 layers until" in made.answer and "512 until" in made.answer and "attention needs 1" in made.answer


def test_charts_are_drawn(root: Path) -> None:
    made = built(root)
    (page,) = report.pages([made])
    assert [chart["title"] for chart in page.charts] == [
        "layers needed, kernel 5",
        "width of a gradient, kernel 5",
        "a sine after down-sampling by 5",
    ]
    json.dumps(page.charts, allow_nan=False)
    printed = [r["published"] for r in page.charts[0]["data"]["values"] if "published" in r]
    assert sorted(printed) == [1, 1, 1, 1, 4, 4, 16, 16, 64, 64, 256, 256]


def test_printed_layers_are_those_of_the_middle_reading(root: Path) -> None:
    lines = {
        (line["distance"], line["reading"]): (line["estimate"], line["verdict"])
        for line in built(root).lines
        if str(line.get("claim", "")).startswith("s0-conv-layers")
    }
    for distance in (16, 64, 256, 1024):
        assert lines[str(distance), "middle"] == (distance // 4, "REPRODUCED")
        assert lines[str(distance), "direct"] == (distance // 2, "DIFFERS")


@pytest.mark.parametrize("stack", [*table.closed.CONVOLUTIONS, *table.ATTENTIONS])
def test_supports_are_the_inputs_that_move_the_output(stack: str) -> None:
    def network() -> measure.Network:
        return measure.Network(stack, 3, 40, generator(1, "support"), torch.device("cpu"), 4)

    with torch.enable_grad():
        ours = network()
        depth = 1 if stack == "attention" else 2
        support = ours.support(depth).tolist()
        states = [ours.states[depth].detach()]
        middle = (states[0].shape[ours.positions] - 1) // 2
        for place in range(40):
            moved = network()
            start = moved.states[0].detach().clone()
            start.select(moved.positions, place).add_(1.0)
            moved.states[0] = start.requires_grad_()
            moved.n_outputs(depth)
            states.append(moved.states[depth].detach())
    outputs = [state.select(ours.positions, middle) for state in states]
    assert support == [not torch.equal(out, outputs[0]) for out in outputs[1:]]


@pytest.mark.parametrize("stack", ["stride1", "dilation_2l", "dilation_kl", "bytenet", "pooled", "stride_k"])
def test_bisection_finds_what_trying_every_depth_does(stack: str) -> None:
    with torch.enable_grad():
        for distance in (2, 7, 12, 25):
            network = measure.Network(stack, 3, 4 * (distance + 1), generator(2, "search"), torch.device("cpu"), 4)
            middle = (network.n_outputs(0) - 1) // 2
            for reading in table.readings(stack):
                depth = 0
                while True:
                    depth += 1
                    seen = set(network.support(depth).nonzero().flatten().tolist())
                    if reading == "direct" and middle + distance in seen:
                        break
                    if reading == "middle" and any(place + distance in seen for place in seen):
                        break
                assert measure.layers_needed(network, distance, reading) == depth


def test_gradients_are_products_of_kernels() -> None:
    stream = generator(0, "product")
    with torch.enable_grad():
        found = measure.gradients("positive", 3, [2, 4], 2, 1, stream, torch.device("cpu"))
    stream = generator(0, "product")
    kernels = [torch.empty(2, 1, 3, dtype=torch.float64).exponential_(generator=stream) / 3 for _ in range(4)]
    for depth in (2, 4):
        for draw in range(2):
            product = np.ones(1)
            for kernel in kernels[:depth]:
                product = np.convolve(product, kernel[draw, 0].flip(0).numpy())
            expected = np.pad(product, 4 - depth)[::-1]
            np.testing.assert_allclose(found[depth][draw, 0].numpy(), expected, rtol=1e-12)


def test_moments_by_hand() -> None:
    gradient = torch.tensor([[[1.0, 0.0, 3.0]], [[2.0, 2.0, 0.0]]], dtype=torch.float64)
    # 1 and 3 at -1 and 1: mean 1/2, variance 1 - 1/4. 2 and 2 at -1 and 0: mean -1/2, variance 1/4.
    assert measure.moments(gradient, "positive").tolist() == [[0.75, 1.0], [0.25, 1.0]]
    # Squares 1 and 9 at distance 1; 4 at distance 1 and 4 at 0.
    assert measure.moments(gradient, "signed").tolist() == [[10.0, 10.0], [4.0, 8.0]]


def test_the_spread_of_a_width_is_that_over_repetitions() -> None:
    seeds = ",".join(map(str, range(60)))
    short = ("params.study=effective", "params.kernels=[3]", "params.random_depths=[1,4]", "params.channels=4")
    rows = rows_of(*short, "params.draws=50", f"seeds=[{seeds}]")
    for weights in table.RANDOM:
        for depth in (1, 4):
            chosen = [r for r in rows if r.quantity == "effective_sd" and r.axes.get("weights") == weights]
            chosen = [r for r in chosen if r.axes["depth"] == depth]
            spread = np.std([r.value for r in chosen], ddof=1) * math.sqrt(50)
            assert spread / np.mean([r.sd for r in chosen]) == pytest.approx(1, abs=0.35)  # 60 values: 9 %


def test_band_limited_signals_come_back() -> None:
    time = torch.arange(40, dtype=torch.float64)
    for offset in (0.0, 1.5):
        for cycles in (0, 1, 3, -4):
            angle = 2 * math.pi * cycles / 40
            low = torch.stack([(angle * (4 * time[:10] + offset)).cos(), (angle * (4 * time[:10] + offset)).sin()])
            again = measure.interpolated(low, 4, offset)
            torch.testing.assert_close(again, torch.stack([(angle * time).cos(), (angle * time).sin()]))


def test_sines_by_a_plain_sum() -> None:
    rows = rows_of("params.study=pooling", "params.factors=[5]", "params.frequencies=[1.25]")
    n, angle = 960, math.pi * 1.25 / 5
    kept = error = 0.0
    for start in range(0, n, 5):
        for wave in (math.cos, math.sin):
            block = [wave(angle * t) for t in range(start, start + 5)]
            mean = sum(block) / 5
            kept += mean**2 / (n / 5)
            error += sum((x - mean) ** 2 for x in block) / n
    axes = {"method": "average", "factor": 5, "frequency": 1.25}
    assert pick(rows, "energy_kept", **axes).value == pytest.approx(kept)
    assert pick(rows, "repeat_error", **axes).value == pytest.approx(error)
    assert pick(rows, "alias_frequency", **axes).value == 0.75
    assert [pick(rows, "lost_share", factor=5, channels=c).value for c in (1, 5)] == [0.8, 0]


# --- planted faults ---


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


def test_a_wider_kernel_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().conv_layer
    monkeypatch.setattr(measured_module(), "conv_layer", lambda stack, kernel, index: honest(stack, kernel + 2, index))
    made = run(tmp_path, *NEAR)
    assert verdicts(made)["s0-conv-layers-16"] == {"FAILED", "DIFFERS"}
    assert verdicts(made)["s4-addr-rf"] >= {"FAILED"}
    assert any("the closed form" in problem for problem in made.problems)


def test_attention_that_sees_a_window_only_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(measured_module().Network):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if self.stack == "attention":
                self.mask = measured_module().masks.window(self.n_outputs(0), 5)

    monkeypatch.setattr(measured_module(), "Network", Local)
    made = run(tmp_path, *NEAR)
    assert verdicts(made)["s0-attn-layers-16"] == {"FAILED"} and verdicts(made)["s1-conv-attn-range"] >= {"FAILED"}
    assert any("layers_needed at network=attention" in p and "is 8, the closed form 1" in p for p in made.problems)


def test_a_stack_that_never_reaches_is_a_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().conv_layer

    def pointwise(stack: str, kernel: int, index: int) -> Any:
        return honest(stack, kernel if stack != "stride1" else 1, index)

    monkeypatch.setattr(measured_module(), "conv_layer", pointwise)
    made = run(tmp_path, *NEAR)
    assert verdicts(made)["s0-conv-layers-16"] == {"NOT_RUN"}
    assert any("was not found, though searched for: theory says 8" in problem for problem in made.problems)


def test_gaps_that_are_none_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().conv_layer

    def dense(stack: str, kernel: int, index: int) -> Any:
        return honest("stride1" if stack == "gapped" else stack, kernel, index)

    monkeypatch.setattr(measured_module(), "conv_layer", dense)
    assert any("what must leave gaps did not" in problem for problem in run(tmp_path, *NEAR).problems)


def test_a_wrong_closed_form_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = importlib.import_module(f"attnrepro.tables.{NAME}.table").closed
    monkeypatch.setattr(functions, "field", lambda stack, kernel, layers: kernel**layers)
    made = run(tmp_path, *NEAR, "params.depths=[1,2,3]")
    assert "FAILED" in verdicts(made)["s4-addr-rf"]


@pytest.mark.parametrize("weights", ["positive", "signed"])
def test_a_wrong_width_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    honest = measured_module().gradients

    def wider(kind: str, kernel: int, *rest: Any) -> Any:
        return {d: g.repeat_interleave(2, -1)[..., : g.shape[-1]] if kind == weights else g
                for d, g in honest(kind, kernel, *rest).items()}  # fmt: skip

    monkeypatch.setattr(measured_module(), "gradients", wider)
    problems = run(tmp_path, "params.study=effective", "params.draws=100").problems
    assert any("Monte Carlo and theory disagree" in problem for problem in problems)


def test_depths_that_do_not_spread_have_another_exponent(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "effective_exponent" and row["weights"] == "signed" and row["source"] == "measured":
            row["value"] = repr(float(row["value"]) + 0.3)

    problems = change(root, tmp_path / "r", edit).problems
    assert len(problems) == 2 and all("not 0.5" in problem for problem in problems)


def test_a_mean_that_is_no_mean_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module(), "avg_pool1d", lambda x, factor: x[:, ::factor])
    problems = run(tmp_path, "params.study=pooling").problems
    assert any("energy_kept at method=average" in problem for problem in problems)
    assert not any("method=stride" in problem for problem in problems)


def test_half_the_layers_would_confirm_the_print_but_not_the_theory(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "layers_needed" and row["reading"] == "direct" and row["network"] == "stride1":
            row["value"] = repr(float(row["value"]) / 2)

    made = change(root, tmp_path / "r", edit)
    assert verdicts(made)["s0-conv-layers-1024"] == {"REPRODUCED"}
    assert built(root).problems == []

    def only_measured(row: dict[str, str]) -> None:
        if row["source"] == "measured":
            edit(row)

    problems = change(root, tmp_path / "s", only_measured).problems
    assert sum("is 256, the closed form 512" in problem for problem in problems) == 1


def test_a_gradient_out_of_range_fails_the_cell() -> None:
    network = measure.Network("stride1", 3, 40, generator(0, "range"), torch.device("cpu"), 4)
    with torch.enable_grad():
        network.n_outputs(1)
        network.states[1] = network.states[1] * math.inf
        with pytest.raises(ValueError, match="stride1 at depth 1 has left the range of float64"):
            network.support(1)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.kernels=[4]", "kernels=4 must be odd"),
        ("params.kernels=[3,3]", "each once"),
        ("params.distances=[1]", "between 2 and"),
        ("params.distances=[2000]", "between 2 and"),
        ("params.distances=[1024]", "length=1024 must be longer for stride_k of kernel 3"),
        ("params.uniform_depths=[400]", r"must keep 31\^-depth above"),
        ("params.factors=[7]", "signal_length=960 must be a multiple of each factor, unlike 7"),
        ("params.frequencies=[1.0]", "frequencies=1 must be no whole number"),
        ("params.frequencies=[0.3001]", "frequencies=0.3001 must be no whole number and make whole cycles"),
        ("params.study=depth", "must be one of support"),
        ("params.draws=5", "between 10 and"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    also = ["params.kernels=[31]"] if "uniform_depths" in override else []
    with pytest.raises(BadInput, match=word):
        cell_of(override, *also)
