"""Distant glyphs that must agree: what is measured, and that every planted fault changes a verdict or is a problem."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput, load_yaml
from attnrepro.data.paired_glyphs import PairedGlyphs
from attnrepro.data.streams import generator, stream_seed
from attnrepro.nn.completer import Completer
from attnrepro.results.published import load_published
from attnrepro.tables.long_range_consistency import measure, reading, table
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "long_range_consistency"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
# What the grid of scale smoke leaves out.
OTHERS = ("wide", "short", "deep_full", "mean")

# Shares of consistent samples and updates until 0.9 that a whole training may reach.
SHARES = {"attention": 0.98, "mean": 0.97, "deep": 0.8, "deep_full": 0.95}
UPDATES = {"attention": 80, "mean": 60, "deep": 320, "deep_full": 200}


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("consistency")
    command = [*SMOKE, "seeds=[0,1,2,3,4]", f"results={folder}"]
    assert entry.main(command) == 0
    for name in OTHERS:
        assert entry.main([*command, "hydra.mode=RUN", f"params.generator={name}"]) == 0
    return folder


def trained(row: dict[str, str]) -> None:
    """A smoke training with what a whole one may reach; structure from as many draws as count."""
    if row["quantity"].startswith("far_gradient"):
        row["n"] = "60"
    if row["updates"] != "4":
        return
    row["updates"] = "400"
    name, jitter = row["generator"], 0.001 * int(row["seed"] or 0)
    if row["source"] == "measured":
        if row["quantity"] in ("consistency", "consistency_at"):
            row["value"] = repr(SHARES.get(name, 0.248) + jitter)
        if row["quantity"] == "updates_to_target" and name in UPDATES:
            row.update(value=repr(float(UPDATES[name] + 20 * int(row["seed"]))), status="ok")


def change(root: Path, target: Path, *edits: Callable[[dict[str, str]], None]) -> report.TableReport:
    def edit(row: dict[str, str]) -> None:
        for one in edits:
            one(row)

    return harness.change(NAME, root, target, edit)


def untuned(row: dict[str, str]) -> None:
    """Two rates cannot have a best one between them: rows of tuning are left for their own test."""
    if row["learning_rate"]:
        row["status"] = "failed: left out"


# --- what is measured ---


def test_a_training_is_that_of_a_plain_loop() -> None:
    cell = cell_of("params.generator=attention", "seeds=[3]", "params.learning_rate=[0.01]")
    p = cell.params
    (job,) = measure.build(cell)
    make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    torch.manual_seed(stream_seed(3, NAME, "start", "attention"))
    model = Completer("attention", 4, 24, 8)
    task = PairedGlyphs(4, 4, 0.2)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(p.updates):
        for group in optimizer.param_groups:
            # One of four steps rises; then half a cosine over three.
            group["lr"] = 0.01 * (1.0 if step == 0 else (1 + math.cos(math.pi * (step - 1) / 3)) / 2)
        drawn = task.draw(64, generator(3, NAME, "train", step))
        mask = drawn.given[:, 1:] > 0
        optimizer.zero_grad()
        (model(drawn.given)[mask] - drawn.whole[mask]).square().mean().backward()
        optimizer.step()
    for a, b in zip(job.module.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    drawn = task.draw(p.n_test, generator(3, NAME, "test"))
    with torch.no_grad():
        read = task.read(drawn.completed(model(drawn.given)), drawn.places)
    (row,) = [r for r in job.module.rows() if r.quantity == "consistency"]
    assert row.value == pytest.approx(float((read.kinds[:, 0] == read.kinds[:, 1]).double().mean()))


def test_generators_of_a_seed_see_the_same_images_and_tuning_sees_no_test_image() -> None:
    modules: list[Any] = []
    for name in ("local", "attention"):
        cell = cell_of(f"params.generator={name}", "seeds=[5]")
        (job,) = measure.build(cell)
        make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
        modules.append(job.module)
    assert torch.equal(modules[0].shown.given, modules[1].shown.given)
    cell = cell_of("params.study=tuning", "seeds=[5]")
    (job,) = measure.build(cell)
    make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    tuned: Any = job.module
    assert not torch.equal(tuned.shown.given, modules[0].shown.given)
    (row,) = tuned.rows()
    errors = [found["pixel_error"] for found in tuned.found.values()]
    assert row.quantity == "validation_error" and row.value == pytest.approx(sum(errors) / len(errors))


def test_what_never_gets_there_is_counted_and_what_diverges_has_failed() -> None:
    (job,) = measure.build(cell_of("params.generator=deep", "seeds=[2]"))
    module: Any = job.module
    plain = {"legible": 0.5, "pixel_error": 0.1}
    module.found = {2: {"consistency": 0.95, **plain}, 4: {"consistency": 0.7, **plain}}
    rows = {(r.quantity, r.axes.get("step")): r for r in module.rows()}
    assert (rows["updates_to_target", None].value, rows["updates_to_target", None].status) == (2, "ok")
    assert rows["consistency", None].value == 0.7 and rows["consistency_at", 2].value == 0.95
    module.found[2] = {"consistency": 0.5, **plain}
    late = [r for r in module.rows() if r.quantity == "updates_to_target"]
    assert [r.status for r in late] == ["failed: not within 4 updates"]
    module.is_sound = False
    assert {r.status for r in module.rows()} == {"failed: diverged"}


def test_every_claim_has_a_verdict_and_the_right_one(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "r", trained, untuned)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words == {
        "own-sagan-local-reach": {"REPRODUCED"},
        "own-sagan-consistency": {"TREND_HOLDS"},
        "own-sagan-not-parameters": {"TREND_HOLDS"},
        "own-sagan-irreplaceable": {"TREND_HOLDS"},
        "own-sagan-sooner": {"TREND_HOLDS"},
    }
    assert "after 400 updates: attention 0.982 [0.980, 0.984] (5 of 5" in made.answer
    assert "(5 of 5 seeds got there)" in made.answer and "0.25 at best, whatever is trained" in made.answer
    assert made.shown is not None
    assert [chart["title"] for chart in reading.charts(made.shown.frame())] == ["glyphs that agree, of 400 updates"]


def test_a_smoke_run_has_every_row(root: Path) -> None:
    lines = harness.built(NAME, root).lines
    quantities = {str(line["quantity"]) for line in lines if line["n"]}
    assert {"consistency", "consistency_at", "legible", "consistency_lead", "share_reached"} <= quantities
    assert {"parameters", "flops", "linked", "far_gradient", "far_gradient_eps", "misreading"} <= quantities
    assert {"misreading_bound", "validation_error"} <= quantities


# --- planted faults ---


def test_a_generator_that_is_not_local_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("attnrepro.nn.completer")
    honest = module.Spread.forward

    def wide(self: Any, x: torch.Tensor) -> torch.Tensor:
        return honest(self, x) + 1e-3 * x.mean((2, 3), keepdim=True)  # type: ignore[no-any-return]

    monkeypatch.setattr(module.Spread, "forward", wide)
    assert entry.main([*SMOKE, "hydra.mode=RUN", "params.study=structure", f"results={tmp_path}"]) == 0
    made = change(tmp_path, tmp_path / "r", trained)
    assert any("linked of one local layer on 4 cells is 1, by the closed form 0" in p for p in made.problems)


@pytest.mark.parametrize(
    ("edit", "value", "problem"),
    [
        ({"quantity": "consistency", "generator": "local"}, 0.4, "0.2500 whatever is trained"),
        ({"quantity": "parameters", "generator": "deep"}, 5.0, "parameters of three layers at attention's cost"),
        ({"quantity": "flops", "generator": "attention"}, 5.0, "flops of attention"),
        ({"quantity": "far_gradient_eps", "generator": "local"}, 1e7, "depends on the other glyph"),
        ({"quantity": "far_gradient", "generator": "attention"}, 0.0, "the other glyph's gradient"),
        ({"quantity": "misreading"}, 0.1, "the judge misreads"),
    ],
)
def test_a_wrong_number_is_noticed(
    root: Path, tmp_path: Path, edit: dict[str, str], value: float, problem: str
) -> None:
    def wrong(row: dict[str, str]) -> None:
        if row["source"] == "measured" and all(row[key] == want for key, want in edit.items()):
            row["value"] = repr(value)

    assert any(problem in found for found in change(root, tmp_path / "r", trained, untuned, wrong).problems)


def test_too_little_training_is_noticed(root: Path, tmp_path: Path) -> None:
    def never(row: dict[str, str]) -> None:
        if row["quantity"] == "updates_to_target":
            row.update(value="", status="failed: never")

    problems = change(root, tmp_path / "r", trained, untuned, never).problems
    assert any("400 updates are too few" in problem for problem in problems)


def test_a_convolution_that_is_ahead_turns_the_trend(root: Path, tmp_path: Path) -> None:
    def ahead(row: dict[str, str]) -> None:
        if row["quantity"] == "consistency" and row["generator"] == "deep":
            row["value"] = repr(0.99 + 0.0005 * int(row["seed"]))

    made = change(root, tmp_path / "r", trained, untuned, ahead)
    found = {(r["claim"], r["generator"]): r["verdict"] for r in made.lines if r.get("claim")}
    assert found["own-sagan-irreplaceable", "attention - deep"] == "TREND_FAILS"
    assert found["own-sagan-irreplaceable", "attention - deep_full"] == "TREND_HOLDS"


def test_seeds_that_never_got_there_are_left_out_of_ratios_and_counted(root: Path, tmp_path: Path) -> None:
    def some(row: dict[str, str]) -> None:
        if row["quantity"] == "updates_to_target" and row["generator"] == "deep" and int(row["seed"]) > 1:
            row.update(value="", status="failed: never")

    made = change(root, tmp_path / "r", trained, untuned, some)
    (line,) = [r for r in made.lines if r["quantity"] == "updates_saved_log2" and r["generator"] == "attention - deep"]
    assert (line["n"], line["n_failed"]) == (2, 3)
    assert line["estimate"] == pytest.approx((math.log2(320 / 80) + math.log2(340 / 100)) / 2)
    (share,) = [r for r in made.lines if r["quantity"] == "share_reached" and r["generator"] == "deep"]
    assert share["estimate"] == 0.4


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        ((1.0, 0.5), None),
        ((0.5, 1.0), "the presets have rate"),
        ((1.0,), "at the edge of those tried"),
    ],
)
def test_rates_are_the_best_of_those_tried(
    root: Path, tmp_path: Path, rates: tuple[float, ...], problem: str | None
) -> None:
    used = float(load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]["attention"])
    made = harness.built(NAME, root)
    assert made.shown is not None
    frame = made.shown.frame()
    rows = frame[frame.quantity == "validation_error"]
    template = rows.iloc[0]
    found = []
    # The best first; where it is to lie between others, one on either side of it.
    tried = [used * rates[0], used * rates[0] * 2, used * rates[0] / 2] if len(rates) > 1 else [used, used * 2]
    for rank, rate in enumerate(tried):
        row = template.copy()
        row["learning_rate"], row["estimate"] = f"{rate:g}", 0.1 + rank
        found.append(row)
    import pandas as pd

    told = list(reading._tuned(pd.DataFrame(found)))
    assert len(told) == (problem is not None)
    assert problem is None or problem in told[0]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.generator=gan", "there is no preset gan"),
        ("params.cells=2", "between 3 and 64"),
        ("params.every=3", "must divide updates"),
        ("params.reduction=12", "must leave 3 or more"),
        ("params.learning_rate=[0.1,0.2]", "must be one value unless study=tuning"),
        ("params.types=1", "between 2 and 1000"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


def test_planning_knows_how_long_it_takes() -> None:
    assert table.seconds(cell_of("params.updates=400", "params.every=20")) > table.seconds(cell_of())


# --- the first sentence ---


def test_the_first_sentence_says_whether_attention_leads_convolutions_of_its_cost() -> None:
    def told(deep: tuple[float, float], mean: tuple[float, float]) -> str:
        at = {"cells": "4", "updates": "400"}
        rows = [
            {**at, "quantity": "consistency", "generator": "attention", "estimate": 0.9},
            {**at, "quantity": "consistency_lead", "generator": "attention - deep", "ci": deep},
            {**at, "quantity": "consistency_lead", "generator": "attention - mean", "ci": mean},
        ]
        (said,) = reading._told(harness.planted(reading.AXES, *rows), "4", "400")
        return said

    said = told((0.1, 0.3), (-0.1, 0.1))
    assert said.startswith(
        "Yes: with attention both glyphs agree in 0.900 of samples after 400 updates, +0.200 [+0.100"
    )
    assert said.endswith("(5 seeds); not seen to do worse: mean of all places.")
    assert told((-0.3, -0.1), (0.1, 0.3)).startswith("No: ")
    assert told((-0.1, 0.1), (0.1, 0.3)).startswith("Not shown: ")
    assert told((0.1, 0.3), (0.1, 0.3)).endswith("none of the others does as well.")
