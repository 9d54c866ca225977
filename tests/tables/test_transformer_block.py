"""The Transformer block: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.config import BadInput
from attnrepro.results.published import load_published
from attnrepro.tables.transformer_block import measure, reading
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "transformer_block"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
STRUCTURAL = {"s2-block-runs", "s2-post-ln"}


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("block")
    assert entry.main([*SMOKE, f"results={folder}"]) == 0
    return folder


def trained(row: dict[str, str]) -> None:
    """Smoke rows as those of a full run: as many draws, depths to 24, and a training in which depth counts."""
    if row["quantity"].endswith("_error_eps"):
        row["n"] = "60"
    elif row["quantity"] in ("gradient_norm", "gradient_drop_log10"):
        deep = {"1": "2", "2": "4", "4": "24"}
        if row["quantity"] == "gradient_norm":
            last = row["depth"] == row["layer"]
            row["layer"] = deep[row["depth"]] if last else row["layer"]
            exponent = -0.43 if row["order"] == "pre" else 0.0
            row["value"] = repr(int(deep[row["depth"]]) ** exponent * (1 + int(row["seed"]) / 1e3))
        else:
            size = {"pre": 0.2, "post": -1.5}[row["order"]]
            row["value"] = repr(size * (1 + int(row["seed"]) / 100))
        row["depth"] = deep[row["depth"]]
    elif row["quantity"].startswith("seed_"):
        rates = {"post": {"2": 1, "6": 1, "12": 0}, "none": {"2": 1, "6": 0, "12": 0}}
        count = rates.get(row["order"], {}).get(row["depth"], 2)
        arrived = float(row["learning_rate"]) < [0.0, 0.005, 0.1][count]
        row["value"] = repr(float({"seed_reached": arrived, "seed_stuck": not arrived}.get(row["quantity"], False)))


def change(root: Path, target: Path, *edits: Any) -> Any:
    def edit(row: dict[str, str]) -> None:
        if row["source"] == "measured":
            for one in edits:
                one(row)

    return harness.change(NAME, root, target, edit)


def test_every_claim_has_a_verdict(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "r", trained)
    assert made.problems == [] and made.checks[0][1].count == 2
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words["s2-block-runs"] == {"REPRODUCED"} and words["s2-post-ln"] == {"REPRODUCED"}
    assert words["s2-pre-ln-stable"] == {"TREND_HOLDS"}
    assert words["s2-seq-orthogonal"] == {"REPRODUCED", "TREND_HOLDS", "DIFFERS"}
    assert words["transformer-block-xiong"] == words["transformer-block-collapse"] == {"REPRODUCED"}
    assert "12 blocks post 0.00, pre 1.00" in made.answer
    assert made.shown is not None and len(reading.charts(made.shown.frame())) == 4


def test_orders_exchanged_fail_the_claim(root: Path, tmp_path: Path) -> None:
    def swap(row: dict[str, str]) -> None:
        if row["quantity"].startswith(("seed_", "gradient_")):
            row["order"] = {"pre": "post", "post": "pre"}.get(row["order"], row["order"])

    words = verdicts(change(root, tmp_path / "r", trained, swap))
    assert words["s2-pre-ln-stable"] == {"TREND_FAILS"} and words["transformer-block-xiong"] == {"DIFFERS"}


def test_without_collapse_the_claims_change(root: Path, tmp_path: Path) -> None:
    def keep(row: dict[str, str]) -> None:
        if row["quantity"] in ("log_residual", "residual") and row["layer"] != "0":
            row["value"] = repr(-0.1 - int(row["seed"]) / 1e3 - (row["arm"] != "attention") * 0.01)

    words = verdicts(change(root, tmp_path / "r", trained, keep))["s2-seq-orthogonal"]
    assert {"TREND_FAILS", "REPRODUCED"} <= words


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        ({"quantity": "order_error_eps", "module": "stack"}, 3.0, "torch's block of the other order"),
        ({"quantity": "mean_error_eps", "order": "pre"}, 3.0, "leave a block of order pre with mean 0"),
        ({"quantity": "collapse_power", "arm": "skip"}, 2.0, "skip leaves the power 2.000"),
        ({"quantity": "residual", "layer": "0"}, 0.1, "nearly equal before the first layer"),
        ({"quantity": "seed_reached", "order": "none"}, 1.0, "train 12 blocks without residual connections"),
        ({"quantity": "seed_reached", "order": "pre"}, 0.0, "train 2 blocks of order pre: too little training"),
    ],
)
def test_an_impossible_value_is_noticed(
    root: Path, tmp_path: Path, where: dict[str, str], value: float, problem: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        if all(row[name] == wanted for name, wanted in where.items()):
            row["value"] = repr(value)

    assert any(problem in found for found in change(root, tmp_path / "r", trained, edit).problems)


# --- what is measured ---


def fitted(order: str, *overrides: str) -> measure.Reversal:
    cell = cell_of("params.depth=2", f"params.orders=[{order}]", *overrides)
    (job,) = measure.build(cell)  # type: ignore[misc]
    make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    assert isinstance(job.module, measure.Reversal)
    return job.module


def test_a_member_is_torchs_adam_in_a_plain_loop() -> None:
    short = ("params.steps=5", "params.warm_ups=[0,3]", "params.learning_rates=[0.01,0.02]", "seeds=[2,7]")
    module = fitted("pre", *short)
    alone = measure.Reversal(cell_of("params.depth=2", *short[:3], "seeds=[7]"), "pre")
    index = module.settings.index((7, 0.02, 3))
    own = alone.settings.index((7, 0.02, 3))
    weights = dict(alone.named_parameters())
    optimizer = torch.optim.Adam(weights.values(), lr=1.0)
    for step in range(5):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(1.0, (step + 1) / 3)
        tokens = alone._tokens()
        logits = alone(tokens)
        optimizer.zero_grad()
        each = torch.nn.functional.cross_entropy(logits[own].flatten(0, 1), tokens[own].flip(-1).flatten())
        each.backward()
        optimizer.step()
    for name, weight in module.named_parameters():
        torch.testing.assert_close(weight[index], weights[name][own], rtol=1e-3, atol=1e-5)


def test_outcomes_are_counted() -> None:
    module = fitted(
        "post", "params.steps=4", "params.window=2", "seeds=[0]", "params.learning_rates=[0.001,0.002,0.003]"
    )
    members = len(module.settings)
    hits, losses = torch.zeros(4, members), torch.full((4, members), 2.0)
    hits[2:, 0] = 0.95  # arrives after 4
    losses[3, 1] = math.nan  # diverges
    hits[:2, 2], losses[3, 2] = 0.95, 30.0  # arrives after 2, diverges then
    hits[1:3, 3], losses[1, 3] = 0.95, 30.0  # diverges before it arrives
    hits[:, 4] = 0.5  # neither
    module.hits, module.losses = list(hits), list(losses)
    found: dict[str, list[float]] = {}
    for row in module.rows():
        found.setdefault(row.quantity, []).append(row.value)
    assert found["seed_reached"][:6] == [1, 0, 1, 0, 0, 0]
    assert found["seed_diverged"][:6] == [0, 1, 1, 1, 0, 0]
    assert found["seed_stuck"][:6] == [0, 0, 0, 0, 0, 1]
    assert found["steps_to_target"][0] == 4 and found["steps_to_target"][2] == 2
    assert math.isnan(found["steps_to_target"][3])


def test_warm_up() -> None:
    module = measure.Reversal(cell_of("params.warm_ups=[0,4]", "params.learning_rates=[0.02]", "seeds=[0]"), "pre")
    assert [module.rates(step).tolist() for step in (0, 1, 3, 9)] == [
        pytest.approx([0.02, rate]) for rate in (0.005, 0.01, 0.02, 0.02)
    ]


@pytest.mark.slow
def test_skip_connections_are_needed_in_depth() -> None:
    long = ("params.steps=200", "params.learning_rates=[0.01]", "params.warm_ups=[50]", "seeds=[0,1]")

    def reached(order: str) -> list[float]:
        module = fitted(order, "params.depth=8", *long)
        return [row.value for row in module.rows() if row.quantity == "seed_reached"]

    assert reached("pre") == [1, 1] and reached("none") == [0, 0]


# --- planted faults ---


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


def test_a_block_without_its_second_residual_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        x = self.norm1(x + self.attention(x)[0])
        return self.norm2(self.ffn(x))

    monkeypatch.setattr(measured_module().Listing, "forward", forward)
    exact = ("hydra.mode=RUN", "params.study=exact", "params.draws=20")
    assert entry.main([*SMOKE, f"results={tmp_path}", *exact]) == 0
    made = harness.built(NAME, tmp_path)
    assert "SOURCE_ERROR" in verdicts(made)["s2-block-runs"]


def test_another_size_at_the_start_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().TransformerStack

    def louder(*args: Any, **options: Any) -> Any:
        made = honest(*args, **options)
        made.w_second.data *= 1.5
        return made

    monkeypatch.setattr(measured_module(), "TransformerStack", louder)
    assert entry.main([*SMOKE, f"results={tmp_path}", "hydra.mode=RUN", "params.study=gradient"]) == 0
    assert any("Monte Carlo and theory disagree" in problem for problem in harness.built(NAME, tmp_path).problems)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.study=depth", "must be one of training"),
        ("params.orders=[sandwich]", "must be one of post"),
        ("params.num_heads=3", "num_heads=3 must divide embed_dim=16"),
        ("params.heads=5", "heads=5 must divide width=32"),
        ("params.shapes=[2x3x4]", "sequences x length x embed_dim x heads"),
        ("params.shapes=[2x3x4x3]", "heads that divide embed_dim"),
        ("params.stuck_below=0.95", "stuck_below"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_which_order_is_more_stable_and_from_where() -> None:
    def told(pre: dict[str, float], post: dict[str, float], bare: float = 0.0) -> str:
        at = {"warm_up": "0"}
        rates = {("pre", d): v for d, v in pre.items()} | {("post", d): v for d, v in post.items()}
        rates["none", "6"] = bare
        rows = [
            {**at, "quantity": "reached_rates", "order": order, "depth": depth, "values": [value] * 10}
            for (order, depth), value in rates.items()
        ]
        gains = {d: pre[d] - post[d] for d in pre}
        rows += [
            {**at, "quantity": "reached_gain", "order": "pre - post", "depth": d, "ci": (gain, gain)}
            for d, gain in gains.items()
        ]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told({"2": 1, "6": 1}, {"2": 1, "6": 0})
    assert said.startswith("Yes, from 6 blocks on: at 6 blocks, without warm-up, 10 of 10 seeds [0.69, 1.00] arrive")
    assert "0 of 10 seeds [0.00, 0.31] with it after" in said and "attention does not train at 6 blocks" in said
    said = told({"2": 1, "6": 0}, {"2": 1, "6": 1}, 0.5)
    assert said.startswith("No, it is the less stable at 6 blocks: ") and "trains at 50% of the rates" in said
    assert told({"2": 1, "6": 1}, {"2": 1, "6": 1}).startswith("No difference is seen: at 6 blocks")
    assert told({"2": 1, "6": 0}, {"2": 0, "6": 1}).startswith("Yes at 2 blocks, no at 6: ")
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "accuracy"})) == ""


def test_no_interval_of_a_share_leaves_0_and_1() -> None:
    rows = [{"quantity": "reached_rates", "order": "none", "depth": "2", "warm_up": "50"}]
    (said,) = reading._trained_in_words(harness.planted(reading.AXES, {**rows[0], "estimate": 0.15, "ci": (-0.1, 0.4)}))
    assert said.endswith("warm-up: 2 blocks none 0.15.")
    (said,) = reading._trained_in_words(harness.planted(reading.AXES, {**rows[0], "estimate": 0.15, "ci": (0.1, 0.2)}))
    assert said.endswith("2 blocks none 0.15 [0.1, 0.2].")
