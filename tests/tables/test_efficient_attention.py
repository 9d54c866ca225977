"""Cheaper attention: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.config import BadInput
from attnrepro.data.near_and_far import vocabulary
from attnrepro.nn import efficient_encoder
from attnrepro.results.published import load_published
from attnrepro.tables.efficient_attention import measure, reading, table

from . import harness

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "efficient_attention"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
# What a full run could have found: accuracy and locality of the two parts.
RIGHT = {
    "full": {"near": 1.0, "far": 1.0},
    "linear": {"near": 0.3, "far": 1.0},
    "low_rank": {"near": 0.4, "far": 0.99},
    "window": {"near": 1.0, "far": 0.125},
    "strided": {"near": 1.0, "far": 1.0},
}
LOCAL = {
    "full": {"near": 0.6, "far": 0.1},
    "linear": {"near": 0.15, "far": 0.05},
    "low_rank": {"near": 0.25, "far": 0.2},
    "window": {"near": 1.0, "far": 1.0},
    "strided": {"near": 0.8, "far": 0.4},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cheaper")
    assert entry.main([*SMOKE, f"results={folder}"]) == 0
    return folder


@functools.cache
def used_rate(kind: str) -> float:
    return table.rate(harness.cell_of(NAME).params, kind)


def trained(row: dict[str, str]) -> None:
    """Smoke rows as those of a full run: trained accuracies, and a rate in the middle that is best."""
    spread = int(row["seed"] or 0) % 7 * 1e-3
    if row["source"] != "measured":
        return
    if row["quantity"] == "accuracy":
        off = spread - 0.002 if row["network"] == "window" and row["part"] == "far" else -spread
        row["value"] = repr(RIGHT[row["network"]][row["part"]] + off)
    elif row["quantity"] == "locality" and row["network"] != "window":
        row["value"] = repr(LOCAL[row["network"]][row["part"]] + spread)
    elif row["quantity"] == "validation_accuracy":
        best = float(row["learning_rate"]) == pytest.approx(used_rate(row["network"]))
        row["value"] = "0.9" if best else "0.5"


def change(root: Path, target: Path, *edits: Callable[[dict[str, str]], None]) -> Any:
    def edit(row: dict[str, str]) -> None:
        for one in edits:
            one(row)

    return harness.change(NAME, root, target, edit)


def by_line(made: Any) -> dict[tuple[str, str], str]:
    """Verdicts by network and quantity."""
    return {(str(r["network"]), str(r["quantity"])): str(r["verdict"]) for r in made.lines if r.get("claim")}


def test_every_line_has_a_verdict(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "r", trained)
    assert made.problems == []
    assert by_line(made) == {
        **{(name, "chance_ratio"): "REPRODUCED" for name in ("patches", "window", "strided")},
        ("linear", "chance_ratio"): "DIFFERS",
        # Of so few draws the interval may reach either way.
        ("low_rank", "chance_ratio"): by_line(made)["low_rank", "chance_ratio"],
        **{(name, "locality_gain"): "TREND_HOLDS" for name in ("window", "strided")},
        **{(name, "locality_gain"): "TREND_FAILS" for name in ("linear", "low_rank")},
        **{(name, "near_preference"): "TREND_FAILS" for name in ("linear", "low_rank")},
        ("window", "near_preference"): "TREND_HOLDS",
        ("strided", "near_preference"): "INCONCLUSIVE",
    }
    assert set(by_line(made)) == {
        (dict(line.axes)["network"], line.quantity) for line in load_published(paths.published_dir() / f"{NAME}.csv")
    }
    assert "full attention 1.00 and 1.00, linear 0.30 and 1.00" in made.answer
    assert made.shown is not None and len(reading.charts(made.shown.frame())) == 3


def test_a_local_linear_attention_would_bear_the_claim_out(root: Path, tmp_path: Path) -> None:
    def local(row: dict[str, str]) -> None:
        if row["network"] == "linear" and row["source"] == "measured":
            if row["quantity"] == "locality":
                row["value"] = repr(0.9 + int(row["seed"]) * 1e-3)
            elif row["quantity"] == "accuracy" and row["part"] == "far":
                row["value"] = repr(0.1 + int(row["seed"]) * 1e-3)

    words = by_line(change(root, tmp_path / "r", trained, local))
    assert words["linear", "locality_gain"] == words["linear", "near_preference"] == "TREND_HOLDS"


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        ({"quantity": "permutation_error_eps", "network": "linear"}, 1e3, "linear changes by 1e+03 eps"),
        ({"quantity": "order_broken", "network": "strided"}, 1e-5, "strided changes by 1e-05 only"),
        ({"quantity": "uniform_locality", "network": "full"}, 0.5, "uniform_locality of full is 0.5"),
        ({"quantity": "parameters", "network": "low_rank"}, 10560.0, "low_rank has 10560 parameters"),
        ({"quantity": "flops", "network": "window", "length": "64"}, 1.0, "flops of window is 1"),
        ({"quantity": "accuracy", "network": "full", "part": "near"}, 0.5, "full answers 0.500 of the near"),
        ({"quantity": "accuracy", "network": "window", "part": "near"}, 0.5, "window answers 0.500 of the near"),
        ({"quantity": "locality", "network": "window", "part": "far"}, 0.9, "locality of a window is 0.9000"),
    ],
)
def test_an_impossible_value_is_noticed(
    root: Path, tmp_path: Path, where: dict[str, str], value: float, problem: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["source"] == "measured" and all(row[name] == wanted for name, wanted in where.items()):
            row["value"] = repr(value)

    assert any(problem in found for found in change(root, tmp_path / "r", trained, edit).problems)


def test_a_window_that_sees_far_is_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "accuracy" and row["network"] == "window" and row["part"] == "far":
            row["value"] = repr(0.5 + int(row["seed"]) * 1e-3 if row["source"] == "measured" else 0.125)

    problems = change(root, tmp_path / "r", trained, edit).problems
    assert any("a window answers 0.502 of the far questions, which it cannot see" in found for found in problems)


USED = 0.02  # by full attention, between half and double
TWICE = 0.04


@pytest.mark.parametrize(
    ("accuracies", "problem"),
    [
        # By rate, of the two tuning seeds: first what must pass.
        ({USED: (0.9, 0.9), TWICE: (0.5, 0.5)}, ""),
        ({USED: (0.9, 0.9), TWICE: (0.95, 0.86)}, ""),
        ({USED: (0.9, 0.8), TWICE: (0.96, 0.80)}, ""),
        ({USED: (0.9, 0.9), TWICE: (math.nan, 0.99)}, ""),
        ({USED: (0.9, 0.9), TWICE: (0.91, 0.91)}, "full uses learning rate 0.02, the best on validation data is 0.04"),
        ({USED: (0.9, 0.8), TWICE: (0.96, 0.84)}, "full uses learning rate 0.02, the best on validation data is 0.04"),
        ({USED: (0.4, 0.4), TWICE: (0.3, 0.3)}, "full uses learning rate 0.02, the best on validation data is 0.01"),
        ({USED: (0.9, math.nan), TWICE: (0.5, 0.5)}, "full uses learning rate 0.02, which was not tried"),
    ],
)
def test_the_rate_that_is_used_must_be_the_best(
    root: Path, tmp_path: Path, accuracies: dict[float, tuple[float, float]], problem: str
) -> None:
    assert used_rate("full") == USED

    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "validation_accuracy" and row["network"] == "full":
            values = accuracies.get(float(row["learning_rate"]), (0.5, 0.5))
            row["value"] = repr(values[int(row["seed"]) % 1000])
            row["status"] = "ok" if math.isfinite(float(row["value"])) else "failed: diverged"

    problems = change(root, tmp_path / "r", trained, edit).problems
    rates = [found for found in problems if "learning rate" in found]
    assert len(rates) == bool(problem) and all(problem in found for found in rates)


@pytest.mark.parametrize(("shift", "end"), [(2.0, True), (0.5, True), (1.0, False)])
def test_a_rate_at_an_end_of_the_grid_is_noticed(root: Path, tmp_path: Path, shift: float, end: bool) -> None:
    """The grid around another rate than the one that is used; what was used is best in it nevertheless."""

    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "validation_accuracy" and row["network"] == "full":
            row["learning_rate"] = f"{float(row['learning_rate']) * shift:g}"
            row["value"] = "0.9" if float(row["learning_rate"]) == USED else "0.5"

    problems = change(root, tmp_path / "r", trained, edit).problems
    assert ("full uses learning rate 0.02, an end of the grid" in " ".join(problems)) == end


# --- faults in what is measured ---


@pytest.mark.slow
def test_a_window_that_is_one_wider_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wider(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int) -> torch.Tensor:
        return true(query, key, value, width + 2)

    true = efficient_encoder.window_attention
    monkeypatch.setattr(efficient_encoder, "window_attention", wider)
    rows = harness.rows_of(NAME, measure.build, "params.study=structure")
    theory = {
        (r.quantity, *sorted(r.axes.items())): r.value
        for r in table.theory(harness.cell_of(NAME, "params.study=structure"))
    }
    wrong = {
        (r.quantity, r.axes["network"])
        for r in rows
        if r.statistic == "exact"
        and (r.quantity, *sorted(r.axes.items())) in theory
        and r.value != pytest.approx(theory[r.quantity, *sorted(r.axes.items())], rel=1e-12)
    }
    assert wrong == {("uniform_locality", "window"), ("flops", "window")}


def test_questions_are_read_where_they_stand() -> None:
    encoders = measure.build(harness.cell_of(NAME, "params.kind=window")).module
    batch = encoders._sequences("probe", 5)
    position = torch.arange(32.0).expand(*batch.tokens.shape)[..., None]
    assert torch.equal(encoders._asked(position, batch)[..., 0].long(), batch.places)


@pytest.mark.slow
def test_every_rate_trains_as_if_it_were_alone() -> None:
    def final(rates: list[float]) -> Any:
        from attnrepro.training.trainer import make_trainer

        cell = harness.cell_of(NAME, "params.study=tuning")
        job = measure._fitted(measure.Encoders(cell, "linear", rates, [1000, 1001]))
        make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
        return job.module.by_rate[-1].state_dict()

    alone, together = final([0.02]), final([0.005, 0.02])
    for name, part in alone.items():
        torch.testing.assert_close(part, together[name], rtol=1e-4, atol=1e-6)


def test_the_model_reads_the_vocabulary_of_the_task() -> None:
    p = harness.cell_of(NAME).params
    assert table.model(p, "full").vocabulary == vocabulary(p.symbols)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("params.length=30", "length=30 must be a multiple of 4"),
        ("params.patch=5", "patch=5 must divide length=32"),
        ("params.width=17", "width=17 must not reach half of length=32"),
        ("params.shapes=[10x3]", "shapes=10x3 must be longer than the window"),
        ("params.shapes=[ten]", "shapes=ten must be length x head_dim"),
        ("params.num_heads=5", "num_heads=5 must divide embed_dim=32"),
        ("params.rate_factors=[1,2]", "must have 1 between others"),
    ],
)
def test_wrong_parameters_are_refused(override: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        harness.cell_of(NAME, override)


# --- the first sentence ---


def test_the_first_sentence_says_what_is_local_and_what_is_lost() -> None:
    def told(ratio: float, near: float, far: float) -> str:
        right = {("full", "near"): 1.0, ("full", "far"): 1.0, ("window", "near"): near, ("window", "far"): far}
        rows = [
            {"quantity": "chance_ratio", "network": "window", "estimate": ratio},
            *({"quantity": "accuracy", "network": kind, "part": part, "estimate": value}
              for (kind, part), value in right.items()),
        ]  # fmt: skip
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told(4.2, 1.0, 0.12)
    assert said.startswith("By definition window 4.20 bring locality back (weight on what is near")
    assert "trained, window loses the far (0.12) (share right, 5 seeds)" in said
    said = told(1.0, 0.2, 1.0)
    assert said.startswith("By definition window 1.00 do not") and "window loses the near (0.20)" in said
    assert "window loses nothing" in told(4.2, 1.0, 0.95)
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "parameters"})) == ""
