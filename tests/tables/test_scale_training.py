"""Training with and without the scale: what a cell does, what follows from its rows, and that a fault is noticed."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.app.precheck import make_plan
from attnrepro.data.key_retrieval import draw
from attnrepro.data.streams import generator
from attnrepro.nn.key_retrieval import RetrievalHeads
from attnrepro.results.rows import Row
from attnrepro.tables.scale_training import measure, reading

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "scale_training"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
# Small enough to follow by hand, large enough that the arm with the factor arrives.
SMALL = ("params.embed_dim=8", "params.n_keys=4", "params.head_dim=8", "params.n_probe=16", "params.n_test=200")


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *SMALL, *overrides)


def values(rows: list[Row], quantity: str, **axes: object) -> dict[int | None, float]:
    found = [r for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    assert found
    return {r.seed: r.value for r in found}


# --- a cell against one head at a time ---


class Alone:
    """One head in float64, its optimiser written out (Kingma and Ba 2015, algorithm 1)."""

    def __init__(self, seed: int, *, scaled: bool, rate: float, optimizer: str, p: Any) -> None:
        names = ("train_start", p.embed_dim, p.n_keys, p.head_dim, p.init)
        stream = generator(seed, NAME, *names)
        drawn = torch.randn(2, p.embed_dim, p.head_dim, generator=stream).double() / math.sqrt(p.embed_dim)
        self.w = [drawn[0], drawn[1], torch.eye(p.n_keys, dtype=torch.float64)]
        self.w = [w.clone().requires_grad_() for w in self.w]
        self.factor = 1 / math.sqrt(p.head_dim) if scaled else 1.0
        self.rate, self.optimizer, self.t = rate, optimizer, 0
        self.first = [torch.zeros_like(w) for w in self.w]
        self.second = [torch.zeros_like(w) for w in self.w]

    def scores(self, keys: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        q = queries @ self.w[0]
        logits = torch.stack([(keys[:, j] @ self.w[1] * q).sum(-1) for j in range(keys.shape[1])], -1)
        e = (logits * self.factor).exp()
        return e / e.sum(-1, keepdim=True) @ self.w[2]

    def update(self, keys: torch.Tensor, queries: torch.Tensor, answers: torch.Tensor) -> float:
        scores = self.scores(keys, queries)
        wanted = torch.zeros_like(scores)
        wanted[torch.arange(len(answers)), answers] = 1
        ((scores - wanted) ** 2).sum(-1).mean().backward()  # type: ignore[no-untyped-call]
        self.t += 1
        with torch.no_grad():
            for i, w in enumerate(self.w):
                g = w.grad
                assert g is not None
                if self.optimizer == "sgd":
                    w -= self.rate * g
                else:
                    self.first[i] = 0.9 * self.first[i] + 0.1 * g
                    self.second[i] = 0.999 * self.second[i] + 0.001 * g**2
                    mean, square = self.first[i] / (1 - 0.9**self.t), self.second[i] / (1 - 0.999**self.t)
                    w -= self.rate * mean / (square.sqrt() + 1e-8)
                w.grad = None
        return float((scores.argmax(-1) == answers).double().mean())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_arm_trains_as_if_it_were_alone(optimizer: str) -> None:
    rates = {"sgd": (1.0, 0.5), "adam": (0.02, 0.01)}[optimizer]
    overrides = [f"params.optimizer={optimizer}", "params.steps=12", "params.window=2", "params.target=0.5"]
    overrides += [f"params.scaled_rates=[{rates[0]}]", f"params.unscaled_rates=[{rates[1]}]", "params.batch_size=10"]
    rows = rows_of(*overrides)
    p = harness.cell_of(NAME, *SMALL, *overrides).params
    arms = {"scaled": (True, rates[0]), "unscaled": (False, rates[1]), "scale_removed": (False, rates[0])}
    for arm, (scaled, rate) in arms.items():
        for seed in (0, 1):
            head = Alone(seed, scaled=scaled, rate=rate, optimizer=optimizer, p=p)
            fresh = generator(seed, NAME, "train", p.embed_dim, p.n_keys)
            hits = []
            for _ in range(12):
                keys, queries, answers = draw(10, p.n_keys, p.embed_dim, fresh)
                hits.append(head.update(keys.double(), queries.double(), answers))
            steps = [t for t in range(2, 13) if (hits[t - 1] + hits[t - 2]) / 2 >= 0.5 - 1e-9]
            found = values(rows, "steps_to_target", arm=arm)[seed]
            assert found == steps[0] if steps else math.isnan(found)
            test = draw(200, p.n_keys, p.embed_dim, generator(seed, NAME, "test", p.embed_dim, p.n_keys))
            right = head.scores(test.keys.double(), test.queries.double()).argmax(-1) == test.answers
            # In float32 one of 200 may fall the other way.
            assert values(rows, "test_accuracy", arm=arm)[seed] == pytest.approx(
                float(right.double().mean()), abs=0.006
            )


@pytest.mark.parametrize("arm", ["scaled", "unscaled"])
def test_gradients_of_the_start_are_those_of_finite_differences(arm: str) -> None:
    rows = rows_of("params.probe_steps=[0]", "params.n_probe=3", "seeds=[5]", "params.steps=1")
    p = harness.cell_of(NAME, *SMALL).params
    head = Alone(5, scaled=arm == "scaled", rate=0.0, optimizer="sgd", p=p)
    keys, queries, answers = draw(3, p.n_keys, p.embed_dim, generator(5, NAME, "probe", p.embed_dim, p.n_keys))
    w_query, w_key, _ = (w.detach().numpy() for w in head.w)
    k = keys.double().numpy() @ w_key

    def error(i: int, q: Any) -> float:
        logits = k[i] @ q * head.factor
        weights = np.exp(logits) / np.exp(logits).sum()
        return float(((weights - np.eye(p.n_keys)[int(answers[i])]) ** 2).sum())

    norms = []
    for i in range(3):
        q, gradient = queries[i].double().numpy() @ w_query, []
        for c in range(p.head_dim):
            h = 1e-6 * np.eye(p.head_dim)[c]
            gradient.append((error(i, q + h) - error(i, q - h)) / 2e-6)
        norms.append(float(np.linalg.norm(gradient)))
    at = {"arm": arm, "step": 0}
    found = {r.statistic: r.value for r in rows if r.quantity == "grad_query" and r.axes.items() >= at.items()}
    assert found["median"] == pytest.approx(sorted(norms)[1], rel=1e-5)
    assert found["rms"] == pytest.approx(math.sqrt(sum(x * x for x in norms) / 3), rel=1e-5)


def test_the_pattern_of_the_start_is_kept_as_long_as_nothing_moves() -> None:
    still = ["params.scaled_rates=[1e-12]", "params.unscaled_rates=[1e-12]"]
    kept = [r for r in rows_of(*still) if r.quantity == "kept_pattern"]
    assert len(kept) == 2 * 3 and all(r.value == 1 for r in kept)  # two seeds, three arms
    moved = rows_of("params.scaled_rates=[1]", "params.steps=40", "params.hold=4", "params.probe_steps=[0]")
    outcome = [r for r in moved if r.quantity == "kept_pattern" and r.axes["arm"] == "scaled"]
    assert len(outcome) == 2 and all(r.value < 0.8 for r in outcome)


# --- the race ---


def test_the_fastest_rate_that_holds_wins_and_a_diverging_one_cannot() -> None:
    rows = rows_of("params.scaled_rates=[0.001,0.5,1000]", "params.steps=200", "params.hold=10", "params.target=0.7")
    assert values(rows, "chosen_rate", arm="scaled") == {0: 0.5}
    slow = values(rows, "tuning_steps", arm="scaled", learning_rate=0.001)
    assert all(math.isnan(value) for value in slow.values())
    assert all(10 <= v <= 200 for v in values(rows, "tuning_steps", arm="scaled", learning_rate=0.5).values())
    assert set(values(rows, "tuning_accuracy", arm="unscaled")) == {100, 101}


def test_a_race_that_nobody_ends_goes_to_the_highest_accuracy() -> None:
    rows = rows_of("params.scaled_rates=[0.00001,1]", "params.steps=30", "params.hold=30", "params.target=1")
    accuracy = {rate: values(rows, "tuning_accuracy", arm="scaled", learning_rate=rate) for rate in (0.00001, 1.0)}
    assert sum(accuracy[1.0].values()) > sum(accuracy[0.00001].values())
    assert values(rows, "chosen_rate", arm="scaled") == {0: 1.0}


@pytest.mark.parametrize(
    ("hits", "window", "expected"),
    [
        ([0, 0, 1, 1, 1], 2, 4),
        ([1, 1, 0, 0, 0], 2, 2),
        ([0, 1, 0, 1, 0], 2, None),
        ([0.875, 0.925], 2, 2),
        ([1], 2, None),
        ([0.9], 1, 1),
    ],
)
def test_windows_are_counted_to_their_end(hits: list[float], window: int, expected: int | None) -> None:
    assert measure.first_windows(torch.tensor(hits, dtype=torch.float64)[:, None], window, 0.9) == [expected]


@pytest.mark.parametrize(
    ("losses", "expected"),
    [([1, 9, 10], None), ([1, 9, 10.5, 1], 2), ([1, math.nan], 1), ([1, math.inf, 1], 1), ([math.nan, 1], 0)],
)
def test_a_loss_that_explodes_is_seen_even_if_it_comes_back(losses: list[float], expected: int | None) -> None:
    runner = measure.Runner("scaled", measure.UniformHeads(1, 2), 1.0)
    runner.losses = [torch.tensor([loss]) for loss in losses]
    assert runner.diverged(10) == [expected]


def test_a_seed_that_diverges_has_no_steps_and_no_accuracy() -> None:
    rows = rows_of("params.scaled_rates=[1000]", "params.steps=20", "params.hold=20")
    for quantity in ("steps_to_target", "test_accuracy"):
        failed = [r for r in rows if r.quantity == quantity and r.axes["arm"] == "scaled"]
        assert len(failed) == 2 and {r.status for r in failed} == {"failed: diverged"}
    assert values(rows, "seed_diverged_early", arm="scaled") == {0: 1, 1: 1}
    assert values(rows, "seed_broken", arm="breaker") == {100: 1, 101: 1}


# --- what follows from the rows ---


def made(**arms: list[float]) -> pd.DataFrame:
    """Rows of one setting: updates of each seed by arm, 0 for a seed that does not arrive in 600."""
    lines = []
    base = {"optimizer": "sgd", "head_dim": "64", "init": "unit", "learning_rate": "", "step": ""}
    for arm, steps in arms.items():
        reached = {str(i): s for i, s in enumerate(steps) if s}
        failed = len(steps) - len(reached)
        common = {**base, "arm": arm, "theory": math.nan, "sd": 1.0, "ci_low": 0.0, "ci_high": 0.0, "estimate": 1.0}
        lines.append(
            {**common, "quantity": "steps_to_target", "n": len(reached), "n_failed": failed, "by_seed": reached}
        )
        by_seed = {str(i): s or 600.0 for i, s in enumerate(steps)}
        lines.append({**common, "quantity": "seed_steps", "n": len(steps), "n_failed": 0, "by_seed": by_seed})
    frame = pd.DataFrame(lines)
    frame["statistic"] = "mean"
    return frame


def test_what_never_arrives_is_counted_and_bounds_the_slowdown() -> None:
    frame = made(scaled=[10, 20, 0], unscaled=[40, 0, 50], scale_removed=[0, 0, 0])
    lines = {(x["quantity"], x["arm"]): x for x in reading.derive(frame, [])}
    assert lines["reached", "unscaled"]["estimate"] == pytest.approx(2 / 3)
    assert lines["reached", "scale_removed"]["estimate"] == 0 and lines["reached", "scale_removed"]["n"] == 3
    slow = lines["slowdown_log2", "unscaled"]
    # The third seed has no ratio: its scaled twin never arrived.
    assert (slow["n"], slow["n_failed"]) == (2, 1)
    assert slow["seeds"] == pytest.approx((2.0, math.log2(600 / 20)))
    assert lines["slowdown_log2", "scale_removed"]["seeds"] == pytest.approx((math.log2(60), math.log2(30)))


def test_what_adam_repairs_is_the_difference_of_the_slowdowns() -> None:
    sgd = made(scaled=[10, 10], unscaled=[80, 160])
    adam = made(scaled=[5, 10], unscaled=[20, 20]).assign(optimizer="adam")
    (line,) = [x for x in reading.derive(pd.concat([sgd, adam]), []) if x["quantity"] == "adam_repair_log2"]
    assert line["seeds"] == pytest.approx((3 - 2, 4 - 1)) and line["optimizer"] == "" and line["arm"] == "unscaled"


# --- whole tables ---


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    sizes = ("params.embed_dim=16", "params.n_probe=32", "params.head_dim=16,64,1024", "seeds=[0,1,2,3,4,5,6,7]")
    assert entry.main([*SMOKE, f"results={folder}", *sizes]) == 0
    return folder


def change(root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    return harness.change(NAME, root, target, edit)


STEPS = {"scaled": 10.0, "unscaled": 80.0, "scale_removed": 0.0, "uniform": 0.0}


def trained(row: dict[str, str], steps: dict[str, float] = STEPS, *, early: str = "") -> None:
    """Outcomes of a long training: arms that arrive after so many updates, one that diverges early."""
    if row["source"] != "measured":
        return
    wobble = 1 + 0.05 * (int(row["seed"]) - 3.5)
    if row["quantity"] in ("steps_to_target", "seed_steps"):
        arrived = steps[row["arm"]]
        row["value"], row["status"] = repr(arrived * wobble), "ok"
        if not arrived:
            row["value"] = "600.0" if row["quantity"] == "seed_steps" else ""
            row["status"] = "ok" if row["quantity"] == "seed_steps" else "failed: target not reached in 600 updates"
    elif row["quantity"] in ("seed_diverged", "seed_diverged_early"):
        row["value"] = repr(float(row["arm"] == early))
    elif row["quantity"] == "kept_pattern":
        row["value"] = repr(0.06 * wobble)
    elif row["quantity"] == "chosen_rate":
        row["value"] = "0.2" if row["arm"] == "unscaled" else "4.0"
        if row["optimizer"] == "adam":
            row["value"] = "0.004"
    elif row["quantity"] == "seed_broken":
        row["value"] = "1.0"


def test_every_claim_gets_its_verdict(root: Path, tmp_path: Path) -> None:
    found = change(root, tmp_path / "a", trained)
    assert found.problems == []
    words = verdicts(found)
    # At scale smoke Adam runs at the smallest head_dim only.
    assert words["s4-diverge-few-steps"] == {"DIFFERS", "NOT_RUN"}
    # The rate of the scaled arm stops it, its own does not.
    assert {"REPRODUCED", "DIFFERS", "TREND_HOLDS"} <= words["s0-quiz2"]
    assert words["scale-training-000-no-gradient"] == {"TREND_HOLDS", "TREND_FAILS"}
    assert "needs 8 [8, 8] times the updates" in found.answer
    assert "half of the seeds or more diverge early in 0: nowhere" in found.answer
    charts = reading.charts(found.shown.frame()) if found.shown else []
    assert len(charts) >= 3 and all(json.dumps(chart, allow_nan=False) for chart in charts)


def test_an_arm_that_diverges_makes_the_claim_right(root: Path, tmp_path: Path) -> None:
    found = change(root, tmp_path / "b", lambda row: trained(row, early="scale_removed"))
    lines = [x for x in found.lines if "s4-diverge-few-steps" in str(x.get("claim")) and x["n"]]
    judged = {(x["head_dim"], x["optimizer"], x["arm"]): x["verdict"] for x in lines}
    assert {words for (_, _, arm), words in judged.items() if arm == "scale_removed"} == {"REPRODUCED"}
    assert {words for (_, _, arm), words in judged.items() if arm == "unscaled"} == {"DIFFERS"}
    assert "sgd at head_dim 64, init unit, unscaled, rate of scaled (8 of 8)" in found.answer


def test_a_faster_arm_without_the_factor_fails_the_trend(root: Path, tmp_path: Path) -> None:
    def quick(row: dict[str, str]) -> None:
        # Seeds that differ: two groups of equal values would count as stuck, which a t test is not for.
        seed = int(row["seed"] or 0)
        trained(row, {**STEPS, "unscaled": 5.0 + 0.1 * seed})

    found = change(root, tmp_path / "c", quick)
    assert "TREND_FAILS" in verdicts(found)["s0-quiz2"] and "TREND_HOLDS" not in verdicts(found)["s0-quiz2"]


def planted(row: dict[str, str]) -> dict[str, Callable[[], str]]:
    """What each fault makes of the value of a row that it touches."""
    at = (row["quantity"], row["arm"])
    return {
        "must diverge": lambda: "0.0" if at[0] == "seed_broken" else "",
        "end of the grid": lambda: "0.0125" if at == ("chosen_rate", "unscaled") and row["optimizer"] == "sgd" else "",
        "have variance": lambda: (
            repr(2 * float(row["value"])) if at[0] == "logit_variance" and row["step"] == "0" else ""
        ),
        "wider than": lambda: repr(40.0 * (1 + int(row["seed"]))) if at == ("steps_to_target", "unscaled") else "",
        "Monte Carlo": lambda: "0.2" if at[0] == "uniform_accuracy" else "",
    }


@pytest.mark.parametrize("said", ["must diverge", "end of the grid", "have variance", "wider than", "Monte Carlo"])
def test_a_fault_is_noticed(root: Path, tmp_path: Path, said: str) -> None:
    def fault(row: dict[str, str]) -> None:
        trained(row)
        if row["source"] == "measured":
            row["value"] = planted(row)[said]() or row["value"]

    found = change(root, tmp_path / "fault", fault)
    assert any(said in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    ("arm", "updates", "said"),
    [("uniform", 50.0, "frozen to 1/n reached the target"), ("scaled", 0.0, "although they have the factor")],
)
def test_an_arm_that_does_what_it_must_not_is_noticed(
    root: Path, tmp_path: Path, arm: str, updates: float, said: str
) -> None:
    found = change(root, tmp_path / "arm", lambda row: trained(row, {**STEPS, arm: updates}))
    assert any(said in problem for problem in found.problems), found.problems


def test_a_factor_that_is_left_out_shows_at_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = RetrievalHeads.logits

    def unscaled(self: RetrievalHeads, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return honest(self, query, keys) / self.factor

    monkeypatch.setattr(RetrievalHeads, "logits", unscaled)
    assert entry.main([*SMOKE, f"results={tmp_path}", "hydra.mode=RUN"]) == 0
    assert any("have variance" in problem for problem in harness.built(NAME, tmp_path).problems)


# --- input ---


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("params.optimizer=lion", "there is no preset lion; choices: sgd, adam"),
        ("params.init=xavier", "params.init=xavier"),
        ("params.head_dim=0", "params.head_dim=0"),
        ("params.n_keys=1", "params.n_keys=1"),
        ("params.target=1.5", "params.target=1.5"),
        ("params.steps=0", "params.steps=0"),
        ("params.window=0", "params.window=0"),
        ("params.tuning_seeds=[]", "params.tuning_seeds"),
        ("params.tuning_seeds=[1,1]", "params.tuning_seeds"),
        ("params.scaled_rates=[0]", "params.scaled_rates"),
        ("params.unscaled_rates=[-1]", "params.unscaled_rates"),
        ("params.diverged_factor=0.5", "params.diverged_factor"),
        ("params.n_probe=0", "params.n_probe=0"),
        ("params.probe_steps=[1]", "params.probe_steps=[1] must contain 0"),
    ],
)
def test_impossible_input_is_one_sentence(
    override: str, named: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert entry.main([*SMOKE, "hydra.mode=RUN", f"results={tmp_path}", override]) == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("attnrepro: ") and named in said[0]


def test_the_race_knows_nothing_of_the_training() -> None:
    """Equal seeds in both: other starts and other sequences all the same."""
    cell = harness.cell_of(NAME, *SMALL, "params.tuning_seeds=[0,1]", "seeds=[0,1]")
    heads = measure.ScaleTraining(cell)
    assert not torch.equal(heads.racers[0].heads.w_query, heads.arms[0].heads.w_query)
    race, train = (heads._batch([0, 1], phase, 5) for phase in ("race", "train"))
    assert not torch.equal(race.keys, train.keys)


def test_the_grid_of_the_issue(tmp_path: Path) -> None:
    plan = make_plan([f"experiment={NAME}", "scale=cpu", f"results={tmp_path}"])
    assert {p.cell.params.head_dim for p in plan.cells} == {16, 64, 1024}
    assert len(plan.cells) == 12 and all(len(p.cell.seeds) >= 8 for p in plan.cells)
    for planned in plan.cells:
        for rates in (planned.cell.params.scaled_rates, planned.cell.params.unscaled_rates):
            assert all(b == pytest.approx(2 * a) for a, b in itertools.pairwise(rates))


@pytest.mark.parametrize("sizes", [(1, 1, 2, 1), (3, 5, 7, 2)])
def test_odd_and_tiny_sizes_give_rows(sizes: tuple[int, int, int, int], tmp_path: Path) -> None:
    names = ("embed_dim", "head_dim", "n_keys", "batch_size")
    overrides = [f"params.{name}={size}" for name, size in zip(names, sizes, strict=True)]
    overrides += ["params.n_probe=1", "params.n_test=1", "params.steps=1", "params.hold=1", "params.probe_steps=[0]"]
    assert entry.main([*SMOKE, "hydra.mode=RUN", f"results={tmp_path}", *overrides]) == 0
    (path,) = (tmp_path / "runs" / NAME).glob("*/rows.csv")
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "measured"]
    assert rows and all(row["status"] != "ok" or math.isfinite(float(row["value"])) for row in rows)


# --- the first sentence ---


def test_the_first_sentence_says_whether_it_stalls_diverges_and_is_repaired() -> None:
    def told(reached: tuple[float, float], diverged: float, repair: tuple[float, float]) -> str:
        at = {"head_dim": "64", "init": "unit", "arm": "unscaled"}
        rows = [
            {**at, "quantity": "steps_to_target", "optimizer": "sgd", "arm": "scaled"},
            {**at, "quantity": "reached", "optimizer": "sgd", "ci": reached},
            {**at, "quantity": "diverged", "optimizer": "sgd", "estimate": diverged, "ci": (0.0, 1.0), "n": 8},
            {**at, "quantity": "adam_repair_log2", "ci": repair},
        ]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told((0.7, 1.0), 0.0, (-2.0, -1.0))
    assert said.startswith("Without 1/sqrt(head_dim), at head_dim 64, training is slower but does not stall")
    assert said.endswith("diverges in none of 8 runs, and Adam makes it worse.")
    said = told((0.0, 0.3), 0.5, (1.0, 2.0))
    assert "training stalls" in said and said.endswith("diverges in 4 of 8 runs, and Adam repairs a part of it.")
    assert told((0.0, 0.3), 0.5, (-1.0, 2.0)).endswith("and Adam does not repair it.")
