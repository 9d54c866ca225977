"""Sum against pair: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.results.published import load_published
from attnrepro.tables.add_vs_concat import measure, reading, table
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "add_vs_concat"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
LARGER = ("params.draws=5", "params.embed_dims=[8,512]", "params.n_words=100", "params.n_positions=16")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("added")
    assert entry.main([*SMOKE, *LARGER, f"results={folder}"]) == 0
    return folder


# Accuracy and loss as a full training gives them.
REACHED = {
    "none": (0.14, 2.7),
    **dict.fromkeys(("add", "equal_width", "equal_parameters", "double_width"), (0.99, 0.03)),
}


def trained(row: dict[str, str]) -> None:
    """A smoke training with the results of a full one."""
    index = {"accuracy": 0, "loss": 1}.get(row["quantity"])
    if index is not None:
        spread = random.Random(f"{row['seed']} {row['code']}").uniform(0.998, 1.002)
        row["value"] = repr(REACHED[row["code"]][index] * spread)
    if row["quantity"] == "steps_to_target" and row["code"] in ("add", "equal_parameters") and row["seed"] != "0":
        row.update(value={"add": "200", "equal_parameters": "150"}[row["code"]], status="ok")


def change(root: Path, target: Path, *edits: Any) -> report.TableReport:
    def edit(row: dict[str, str]) -> None:
        for one in edits:
            one(row)

    return harness.change(NAME, root, target, edit)


def test_every_claim_has_a_verdict(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "r", trained)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {one.claim for one in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words == {
        "s2-concat-2d": {"REPRODUCED"},
        "s2-add-concat-equivalent": {"REPRODUCED", "SOURCE_ERROR"},
        "s2-add-no-loss": {"REPRODUCED"},
    }
    assert "Every map of the sum is one of the pair" in made.answer and "1 - d/m: 0.667" in made.answer
    assert "as many parameters 0.99" in made.answer and "steps x 0.75 [0.75, 0.75]" in made.answer
    assert "Never at the target: 1 of 5 with add, 5 of 5 with equal_width, 1 of 5 with equal_parameters" in made.answer
    (pace,) = [r for r in made.lines if r["quantity"] == "steps_ratio" and r["code"] == "equal_parameters"]
    assert (pace["n"], pace["n_failed"]) == (4, 1)
    assert made.shown is not None and len(reading.charts(made.shown.frame())) == 3
    assert made.checks[0][1].count == 5 and made.checks[0][1].ok


def test_a_pair_that_learns_less_differs(root: Path, tmp_path: Path) -> None:
    def worse(row: dict[str, str]) -> None:
        if row["quantity"] == "accuracy" and row["code"] == "equal_parameters":
            row["value"] = repr(0.9 * float(row["value"]))

    made = change(root, tmp_path / "r", trained, worse)
    assert verdicts(made)["s2-add-concat-equivalent"] == {"REPRODUCED", "SOURCE_ERROR", "DIFFERS"}


# --- linear maps ---


def test_sums_and_pairs_against_loops() -> None:
    stream = torch.Generator().manual_seed(1)
    x, p = measure.normal(stream, 3, 4), measure.normal(stream, 2, 4)
    both, total = measure.pairs(x, p), measure.sums(x, p)
    for i in range(3):
        for j in range(2):
            assert both[2 * i + j].tolist() == [*x[i].tolist(), *p[j].tolist()]
            assert total[2 * i + j].tolist() == [a + b for a, b in zip(x[i].tolist(), p[j].tolist(), strict=True)]


def test_a_relearned_code_is_the_projection() -> None:
    stream = torch.Generator().manual_seed(2)
    p, first, second = measure.normal(stream, 2, 4), measure.normal(stream, 4, 9), measure.normal(stream, 4, 9)
    found = measure.relearned(p, first, second) @ first
    onto = first.T @ torch.linalg.inv(first @ first.T) @ first
    torch.testing.assert_close(found, p @ second @ onto)


def test_a_sum_with_two_matrices_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().sums
    monkeypatch.setattr(measured_module(), "sums", lambda x, p: honest(x, 1.001 * p))
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.study=algebra"]) == 0
    made = harness.built(NAME, tmp_path)
    assert any("add_in_concat" in one and "although the maps are the same" in one for one in made.problems)
    assert verdicts(made)["s2-add-concat-equivalent"] == {"SOURCE_ERROR", "NOT_RUN"}


def test_a_breaker_that_breaks_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = measured_module()
    # One matrix for content and code: the sum can have it all.
    monkeypatch.setattr(module, "pairs", lambda x, p: torch.cat([module.sums(x, p), 0 * module.sums(x, p)], -1))
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.study=algebra"]) == 0
    problems = harness.built(NAME, tmp_path).problems
    assert any("positions given" in one and "although no such map exists" in one for one in problems)


def test_another_dimension_is_another_residual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().relearned
    monkeypatch.setattr(measured_module(), "relearned", lambda p, a, b: 0.5 * honest(p, a, b))
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.study=algebra", "params.n_shares=200"]) == 0
    assert any("Monte Carlo and theory disagree" in one for one in harness.built(NAME, tmp_path).problems)


# --- what can be read ---


def test_the_nearest_sum_against_all_sums() -> None:
    stream = torch.Generator().manual_seed(3)
    words, places, total = (measure.normal(stream, n, 3) for n in (7, 5, 20))
    found = measure.nearest(total, words, places)
    for row, (word, place) in zip(total, found.tolist(), strict=True):
        distances = {(i, j): float((row - words[i] - places[j]).norm()) for i in range(7) for j in range(5)}
        assert min(distances, key=lambda at: distances[at]) == (word, place)


def test_the_linear_readout_is_least_squares_on_all_sums() -> None:
    stream = torch.Generator().manual_seed(4)
    words, places = measure.normal(stream, 9, 4), measure.normal(stream, 6, 4)
    every = measure.sums(words, places)
    labels = torch.eye(9, dtype=torch.float64).repeat_interleave(6, 0)
    design = torch.cat([every, torch.ones(54, 1, dtype=torch.float64)], -1)
    expected = (design @ torch.linalg.lstsq(design, labels).solution).argmax(-1)
    assert torch.equal(measure.read_linearly(every, words, places), expected)


def test_a_lost_word_is_our_own_bug(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "lost_share" and row["source"] == "measured":
            row["value"] = "0.1"

    made = change(root, tmp_path / "r", trained, edit)
    assert "FAILED" in verdicts(made)["s2-add-no-loss"] and made.problems


# --- trained heads ---


def trained_heads(*overrides: str) -> Any:
    cell = cell_of("params.study=training", *overrides)
    job = measure.build(cell)
    make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    return job.module


def test_answers_are_the_symbols_at_the_named_places() -> None:
    module = measure.build(cell_of("params.study=training")).module
    tokens, answers = module.sequences("test", 40)
    p = module.cell.params
    for s in range(len(module.cell.seeds)):
        for row, answer in zip(tokens[s].tolist(), answers[s].tolist(), strict=True):
            assert row[row[-1] - p.n_symbols] == answer and max(row[:-1]) < p.n_symbols <= row[-1]
    assert not torch.equal(tokens[0], tokens[1])


def test_censored_seeds_are_failed_rows_and_the_first_look_counts() -> None:
    module = trained_heads("params.steps=4", "params.every=2", "seeds=[1,2]", "params.target=0.0")
    steps = [r for r in module.rows() if r.quantity == "steps_to_target"]
    assert {r.value for r in steps} == {2.0} and {r.status for r in steps} == {"ok"}
    module = trained_heads("params.steps=4", "params.every=2", "seeds=[1,2]", "params.target=1.0")
    steps = [r for r in module.rows() if r.quantity == "steps_to_target"]
    assert {r.status for r in steps} == {"failed: not reached"} and len(steps) == 2 * len(table.CODES)


def test_equal_parameters_are_equal_and_equal_widths_too() -> None:
    p = cell_of().params
    counts = {r.axes["code"]: r.value for r in trained_heads("params.steps=1").rows() if r.quantity == "parameters"}
    assert counts["equal_parameters"] == pytest.approx(counts["add"], rel=0.01)
    assert sum(table.widths(p, "equal_width")) == p.width == table.widths(p, "add")[0]
    assert counts["double_width"] > 1.3 * counts["add"]


@pytest.mark.slow
def test_a_short_training_finds_the_place() -> None:
    rows = trained_heads("params.steps=600", "params.n_test=1000").rows()

    def mean(code: str) -> float:
        values = [r.value for r in rows if r.quantity == "accuracy" and r.axes["code"] == code]
        return sum(values) / len(values)

    assert mean("double_width") > 0.5 and mean("add") > 0.5 and mean("none") < 0.2


def test_a_diverged_seed_is_a_failed_row() -> None:
    cell = cell_of("params.study=training", "params.steps=1", "seeds=[0,1]")
    job = measure.build(cell)
    with torch.no_grad():
        job.module.heads["add"].out[1, 0, 0] = float("nan")
    make_trainer(cell, max_steps=1).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    failed = [r for r in job.module.rows() if r.status == "failed: diverged"]
    assert {(r.axes["code"], r.seed, r.quantity) for r in failed} == {("add", 1, "accuracy"), ("add", 1, "loss")}


@pytest.mark.parametrize(
    ("code", "quantity", "value", "problem"),
    [
        ("none", "accuracy", "0.5", "without positions: accuracy 0.5000 is above"),
        ("add", "accuracy", "0.6", "trained too little to compare"),
        ("add", "accuracy", "", "add: 5 seeds diverged"),
        ("equal_parameters", "parameters", "4000", "the closed form"),
    ],
)
def test_an_impossible_training_is_noticed(
    root: Path, tmp_path: Path, code: str, quantity: str, value: str, problem: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        if (row["code"], row["quantity"], row["source"]) == (code, quantity, "measured"):
            row["value"] = value
            row["status"] = row["status"] if value else "failed: diverged"

    assert any(problem in one for one in change(root, tmp_path / "r", trained, edit).problems)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.study=words", "must be one of algebra"),
        ("params.width=31", "width=31 must be even"),
        ("params.embed_dims=[7]", "must be even"),
        ("params.outputs_over_d=[1.0]", "must not be 1"),
        ("params.outputs_over_d=[0.3]", "whole outputs"),
        ("params.n_dense=20", "must be above dense_dim=32"),
        ("params.target=1.5", "between 0 and 1"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def told(missed: float, loss: tuple[float, float], ratio: tuple[float, float] = (1.0, 1.0)) -> str:
    rows = [
        {"quantity": "error_eps", "direction": "concat_in_add", "positions": "learned", "outputs_over_d": "2",
         "estimate": missed},
        {"quantity": "residual_share", "outputs_over_d": "2", "estimate": 0.5, "ci": (0.49, 0.51)},
        {"quantity": "accuracy_ratio", "code": "equal_parameters", "ci": ratio},
        {"quantity": "log_loss_ratio", "code": "equal_parameters", "ci": loss},
    ]  # fmt: skip
    return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))


def test_the_first_sentence_says_what_a_sum_can_do_and_who_learns_more() -> None:
    said = told(1e15, (-0.2, -0.1))
    assert said.startswith("No: ") and "misses 0.500 [0.490, 0.510]" in said and "with 2 outputs a component" in said
    assert "neither is seen to be right more often (5 seeds), the pair's loss is lower than the sum's" in said
    said = told(2.0, (0.1, 0.2), (0.8, 0.9))
    assert said.startswith("Yes: ") and "the sum is right more often" in said and "loss is higher than" in said
    assert "not seen to differ" in told(2.0, (-0.1, 0.2), (1.1, 1.2)) and "the pair is right" in told(
        2.0, (0, 0), (2, 3)
    )
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "parameters"})) == ""
