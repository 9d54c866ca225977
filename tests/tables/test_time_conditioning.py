"""Time conditioning: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.data.streams import generator
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.time_conditioning import measure, reading, table
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "time_conditioning"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def trained_job(*overrides: str) -> Any:
    cell = cell_of(*overrides)
    job = measure.build(cell)
    make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    return job.module


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    (row,) = [r for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    return row


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conditioning")
    assert entry.main([*SMOKE, f"results={folder}"]) == 0
    return folder


# Errors as a full training gives them, in units of the best error without t, by encoding.
REACHED = {
    "raw": 0.02,
    "standardised": 0.01,
    "repeated": 0.01,
    "sinusoidal": 0.001,
    "octaves": 0.0005,
    "zero_frequency": 1.002,
    "shuffled": 1.001,
}
BEST = {"turn_once": 1.0, "turn_four_times": 1.0, "denoise": 0.077}


def trained(row: dict[str, str]) -> None:
    """A smoke training with the errors of a full one."""
    if row["quantity"] == "mse":
        spread = random.Random(f"{row['seed']} {row['encoding']}").uniform(0.97, 1.03)
        row["value"] = repr(BEST[row["task"]] * REACHED[row["encoding"]] * spread)


def change(root: Path, target: Path, *edits: Any) -> report.TableReport:
    def edit(row: dict[str, str]) -> None:
        for one in edits:
            one(row)

    return harness.change(NAME, root, target, edit)


# --- what is measured ---


def test_the_claim_has_a_verdict_for_each_job(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "trained", trained)
    assert made.problems == [] and made.checks[0][1].count == 3
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words == {"s0-pe-time-embedding": {"TREND_HOLDS"}}
    assert "Error with raw t against that with its sinusoidal embedding: one circle 0.02 against 0.00" in made.answer
    assert made.shown is not None and len(reading.charts(made.shown.frame())) == 3


def test_without_an_advantage_the_claim_fails(root: Path, tmp_path: Path) -> None:
    def swap(row: dict[str, str]) -> None:
        other = {"raw": "sinusoidal", "sinusoidal": "raw"}
        row["encoding"] = other.get(row["encoding"], row["encoding"])
        row["scale_of_t"] = {"raw": "1", "sinusoidal": ""}.get(row["encoding"], row["scale_of_t"])

    def one_scale(row: dict[str, str]) -> None:
        if row["scale_of_t"] == "10":
            row["quantity"] = "mse_loud"

    made = change(root, tmp_path / "r", trained, one_scale, swap)
    assert verdicts(made)["s0-pe-time-embedding"] == {"TREND_FAILS"}


@pytest.mark.parametrize("task", table.TASKS)
def test_jobs_against_loops(task: str) -> None:
    stream = torch.Generator().manual_seed(1)
    x = torch.randn(2, 7, 2, generator=stream, dtype=torch.float64)
    t = torch.rand(2, 7, generator=stream, dtype=torch.float64)
    found = measure.job(task, x, t)
    for s in range(2):
        for b in range(7):
            (one, two), at = x[s, b].tolist(), float(t[s, b])
            if task == "denoise":
                noise = 0.2 * 10**at
                expected = [math.tanh(one / noise**2), math.tanh(two / noise**2)]
            else:
                angle = 2 * math.pi * at * {"turn_once": 1, "turn_four_times": 4}[task]
                expected = [
                    math.cos(angle) * one - math.sin(angle) * two,
                    math.sin(angle) * one + math.cos(angle) * two,
                ]
            assert found[s, b].tolist() == pytest.approx(expected)


def test_encodings() -> None:
    t = torch.rand(3, 50, generator=torch.Generator().manual_seed(2))
    made = {name: measure.features(name, 10.0 if name == "raw" else None, t, 8, 4) for name in table.ENCODINGS}
    assert {name: f.shape[-1] for name, f in made.items()} == {
        "raw": 1,
        "standardised": 1,
        "repeated": 8,
        "sinusoidal": 8,
        "octaves": 8,
        "zero_frequency": 8,
        "shuffled": 8,
    }
    torch.testing.assert_close(made["raw"][..., 0], 10 * t)
    torch.testing.assert_close(made["standardised"][..., 0], (t - 0.5) * 12**0.5)
    assert (made["repeated"] == t[..., None]).all() and (made["zero_frequency"].diff(dim=1) == 0).all()
    assert not torch.equal(made["shuffled"], made["sinusoidal"])
    assert torch.equal(made["shuffled"].sort(dim=1).values, made["sinusoidal"].sort(dim=1).values)
    assert not (made["shuffled"] == made["sinusoidal"]).all(-1).any()


@pytest.mark.parametrize("encoding", ["raw", "octaves", "sinusoidal"])
def test_a_member_is_torchs_own_network_in_a_plain_loop(encoding: str) -> None:
    short = ("params.steps=6", "params.n_test=50", "params.task=turn_once", "params.octaves=2")
    module = trained_job(*short, "seeds=[4,9]")
    p = module.cell.params
    member = module.members.index((encoding, 10.0 if encoding == "raw" else None))
    width = {"raw": 3, "octaves": 6, "sinusoidal": 34}[encoding]
    layers = [torch.nn.Linear(width, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 2)]
    stream = generator(9, NAME, "start")
    with torch.no_grad():
        for layer, columns in zip(layers, (34, 32, 32), strict=True):
            fan_in = layer.in_features
            drawn = torch.rand(layer.out_features, columns, generator=stream) * 2 - 1
            layer.weight.copy_(drawn[:, :fan_in] / fan_in**0.5)
            layer.bias.copy_((torch.rand(layer.out_features, generator=stream) * 2 - 1) / fan_in**0.5)
    network = torch.nn.Sequential(layers[0], torch.nn.SiLU(), layers[1], torch.nn.SiLU(), layers[2])
    optimizer = torch.optim.Adam(network.parameters(), lr=p.learning_rate)

    def error(use: torch.Generator, count: int) -> torch.Tensor:
        x, t = torch.randn(count, 2, generator=use), torch.rand(count, generator=use)
        inputs = torch.cat([x, measure.features(encoding, 10.0, t, p.embed_dim, p.octaves)], -1)
        return torch.nn.functional.mse_loss(network(inputs), measure.job("turn_once", x, t))

    stream = generator(9, NAME, "train")
    for step in range(6):
        for group in optimizer.param_groups:  # the rate falls over the last half of the steps
            group["lr"] = p.learning_rate * min(1, (6 - step) / 3)
        optimizer.zero_grad()
        error(stream, p.batch_size).backward()
        optimizer.step()
    own = len(module.members) + member
    torch.testing.assert_close(module.weights[0][own, :, :width], layers[0].weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(module.weights[2][own], layers[2].weight, rtol=1e-4, atol=1e-5)
    assert (module.weights[0][own, :, width:] == 0).all()
    axes = {"encoding": encoding} | ({"scale_of_t": 10.0} if encoding == "raw" else {})
    (row,) = [r for r in module.rows() if r.quantity == "mse" and r.seed == 9 and axes.items() <= r.axes.items()]
    assert row.value == pytest.approx(error(generator(9, NAME, "test"), 50).item(), rel=1e-4)


def test_test_samples_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    short = ("params.steps=1", "params.n_test=30", "seeds=[3]")
    whole = trained_job(*short).rows()
    monkeypatch.setattr(measure, "CHUNK", 13)
    parts = trained_job(*short)
    assert pick(parts.rows(), "blind_error").n == pick(whole, "blind_error").n == 30


def test_a_diverged_seed_is_a_failed_row() -> None:
    cell = cell_of("params.steps=2", "seeds=[0,1]")
    job = measure.build(cell)
    with torch.no_grad():
        job.module.weights[1][3, 0, 0] = math.nan
    make_trainer(cell, max_steps=2).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    failed = [r for r in job.module.rows() if r.status != "ok"]
    assert [(r.axes["encoding"], r.seed, r.status) for r in failed] == [
        (job.module.members[3][0], 0, "failed: diverged")
    ]


@pytest.mark.slow
def test_a_short_training_prefers_sines() -> None:
    rows = trained_job("params.task=turn_once", "params.steps=500", "params.n_test=1000").rows()

    def errors(encoding: str) -> list[float]:
        return [r.value for r in rows if r.axes.get("encoding") == encoding and r.axes.get("scale_of_t") in (None, 1.0)]

    assert max(errors("sinusoidal")) < 0.1 * min(errors("raw"))
    assert min(errors("shuffled")) > 0.8 and min(errors("zero_frequency")) > 0.8


# --- planted faults ---


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


def test_another_noise_than_theory_has_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module(), "HIGHEST_NOISE", 1.0)
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.task=denoise", "params.n_test=4000"]) == 0
    assert any("Monte Carlo and theory disagree" in problem for problem in harness.built(NAME, tmp_path).problems)


def test_a_control_that_sees_t_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().features
    monkeypatch.setattr(
        measured_module(),
        "features",
        lambda name, *rest: honest("octaves" if name == "shuffled" else name, *rest),
    )
    long = ("params.task=turn_once", "params.steps=300", "params.n_test=1000")
    assert entry.main([*SMOKE, f"results={tmp_path}", *long]) == 0
    problems = harness.built(NAME, tmp_path).problems
    assert any("turn_once, shuffled: error" in problem and "the best without t" in problem for problem in problems)


@pytest.mark.parametrize(
    ("encoding", "factor", "problem"),
    [
        ("shuffled", 0.5, "turn_once, shuffled: error 0."),
        ("zero_frequency", 0.01, "turn_once, zero_frequency: error 0.01"),
        ("sinusoidal", 600.0, "turn_once, sinusoidal: error 0."),
        ("octaves", math.nan, "turn_once, octaves: 5 seeds diverged"),
    ],
)
def test_an_impossible_error_is_noticed(root: Path, tmp_path: Path, encoding: str, factor: float, problem: str) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "mse" and row["encoding"] == encoding:
            if math.isnan(factor):
                row.update(value="", status="failed: diverged")
            else:
                row["value"] = repr(float(row["value"]) * factor)

    assert any(problem in found for found in change(root, tmp_path / "r", trained, edit).problems)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.task=turn", "must be one of turn_once"),
        ("params.encodings=[rotary]", "must be one of raw"),
        ("params.encodings=[raw,raw]", "each once"),
        ("params.embed_dim=7", "embed_dim=7 must be even"),
        ("params.raw_scales=[0.0]", "between 0.001 and 1000"),
        ("params.octaves=0", "between 1 and 20"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_on_how_many_tasks_the_embedding_is_better() -> None:
    def told(*ratios: tuple[float, float]) -> str:
        at = {"quantity": "log_error_ratio", "encoding": "raw", "scale_of_t": "1"}
        rows = [{**at, "task": task, "ci": ci} for task, ci in zip(("turn_once", "denoise"), ratios, strict=True)]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told((0.9, 1.1), (0.1, 0.3))
    assert said.startswith(
        "Yes: with t itself the error is larger than with its sines on 2 of 2 tasks (one circle x 10"
    )
    assert "5 seeds" in said and "smaller" not in said
    said = told((0.9, 1.1), (-0.3, -0.1))
    assert said.startswith("Not always: ") and "on 1 of 2 tasks, smaller on 1 (" in said
    assert told((-0.3, -0.1), (-0.1, 0.1)).startswith("No: ")
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "parameters"})) == ""
