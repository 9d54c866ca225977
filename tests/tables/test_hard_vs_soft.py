"""Hard against soft selection: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.app.gather import estimate
from attnrepro.config import BadInput
from attnrepro.data.streams import generator
from attnrepro.nn.position import random_orthogonal
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.hard_vs_soft import measure, reading, table
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "hard_vs_soft"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
# Enough draws for the structural line.
DRAWS = ("params.draws=60",)
SHORT = ("params.steps=6", "params.every=3", "params.n_test=50", "params.n_keys=5")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    found = [r for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    (row,) = found
    return row


def run(root: Path, *overrides: str) -> report.TableReport:
    assert entry.main([*SMOKE, *DRAWS, f"results={root}", *overrides]) == 0
    return harness.built(NAME, root)


def gradient(root: Path) -> report.TableReport:
    return run(root, "params.study=gradient", "hydra.mode=RUN")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("selection")
    assert entry.main([*SMOKE, *DRAWS, f"results={folder}"]) == 0
    return folder


# Steps that a full training needs, by method; plain argmax never gets there.
REACHED = {"soft": 160, "straight_through": 500, "gumbel_soft": 300, "gumbel_hard": 900, "reinforce": 700}


def trained(row: dict[str, str]) -> None:
    """A smoke training with what a full one reaches."""
    if row["source"] == "theory" or row["method"] == "hard_argmax":
        return
    if row["quantity"] == "steps_to_target":
        row.update(value=repr(REACHED[row["method"]] + 10.0 * int(row["seed"])), status="ok")
    if row["quantity"] == "selection_accuracy":
        row["value"] = repr(0.99 + 0.001 * int(row["seed"]))


def change(root: Path, target: Path, *edits: Any) -> report.TableReport:
    def edit(row: dict[str, str]) -> None:
        for one in edits:
            one(row)

    return harness.change(NAME, root, target, edit)


# --- what is measured ---


def test_every_claim_has_a_verdict_and_the_right_one(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "trained", trained)
    assert made.problems == [] and made.checks[0][1].count == 4
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    expected = {"s3-hard-untrainable": {"REPRODUCED", "DIFFERS", "TREND_HOLDS", "INCONCLUSIVE"}}
    assert words == {claim: expected.get(claim, {"REPRODUCED"}) for claim in words}
    by_method = {r["method"]: r["verdict"] for r in made.lines if r["quantity"] == "share_reached" and r.get("verdict")}
    # Five failures have an interval of [0, 0.52]: not enough for plain argmax.
    assert by_method == {
        "hard_argmax": "INCONCLUSIVE",
        **dict.fromkeys(reading.HARD, "DIFFERS"),
    }
    assert "exactly 0 for every score" in made.answer and "it is the derivative of argmax" in made.answer
    assert "plain argmax none (0 of 5 seeds get there" in made.answer and "softmax 180, " in made.answer
    assert made.shown is not None
    assert len(reading.charts(made.shown.frame())) == 3


def test_forty_failures_are_counted() -> None:
    rows = [{"value": "", "n": "1", "sd": "", "status": "failed: never", "seed": str(i)} for i in range(40)]
    r = dict.fromkeys(table.AXES, "") | estimate(rows, "mean")
    share, median = reading._reached(r)
    assert (share["n"], share["estimate"]) == (40, 0) and share["ci_high"] == pytest.approx(1 - 0.025 ** (1 / 40))
    assert median["n"] == 0 and math.isnan(median["estimate"])  # type: ignore[arg-type]


def test_the_median_counts_seeds_that_never_got_there() -> None:
    at = dict.fromkeys(table.AXES, "")
    seeds = tuple(float(i) for i in range(10, 17))
    _, median = reading._reached(at | {"n": 7, "n_failed": 4, "seeds": seeds})
    assert (median["estimate"], median["n"], median["n_failed"]) == (15.0, 7, 4)
    assert median["ci_low"] == 11.0 and math.isnan(median["ci_high"])  # type: ignore[arg-type]
    _, median = reading._reached(at | {"n": 3, "n_failed": 8, "seeds": seeds[:3]})
    assert median["n"] == 0


def test_signals_and_changes_against_loops() -> None:
    rows = rows_of(
        "params.study=gradient", "params.shapes=[5x3]", "params.draws=7", "seeds=[2]", "params.moves=[0.5,2]"
    )
    stream = generator(2, table.NAME, "5x3")
    jumps, largest = [], 0.0
    for index in range(7):
        s = torch.randn(5, generator=stream, dtype=torch.float64).tolist()
        v = torch.randn(5, 3, generator=stream, dtype=torch.float64)
        read = (v @ torch.randn(3, generator=stream, dtype=torch.float64)).tolist()
        first, second = sorted(range(5), key=lambda k: -s[k])[:2]
        jumps.append(abs(read[second] - read[first]) / max(map(abs, read)))
        temperature = cell_of("params.study=gradient").params.example_temperatures[index % 6]
        leaf = torch.tensor(s, dtype=torch.float64, requires_grad=True)
        terms = (leaf / temperature).exp()
        (terms / terms.sum() @ torch.tensor(read, dtype=torch.float64)).backward()
        a = [math.exp(x / temperature) for x in s]
        a = [x / sum(a) for x in a]
        mix = sum(x * y for x, y in zip(a, read, strict=True))
        assert leaf.grad is not None
        closed = [x * (y - mix) / temperature for x, y in zip(a, read, strict=True)]
        largest = max(largest, max(abs(x - y) for x, y in zip(leaf.grad.tolist(), closed, strict=True)))
    assert largest < 1e-13
    assert pick(rows, "output_jump").value == pytest.approx(min(jumps))
    assert pick(rows, "output_change", move=0.5).value == 0
    assert (
        pick(rows, "share_with_signal", method="soft").n
        == pick(rows, "share_with_signal", method="hard_argmax").n
        == 35
    )


def test_reinforce_has_the_gradient_of_the_expected_loss_and_its_spread() -> None:
    rows = rows_of("params.study=gradient", "params.samples=60000")
    p = cell_of().params
    s, v = p.example_scores, p.example_values
    a = [math.exp(x) / sum(map(math.exp, s)) for x in s]
    loss = [(x - p.example_target) ** 2 / 2 for x in v]
    for key in range(len(s)):
        row = pick(rows, "estimator_gradient", method="reinforce", place=key)
        samples = [loss[j] * ((j == key) - a[key]) for j in range(len(s))]
        mean = sum(w * x for w, x in zip(a, samples, strict=True))
        sd = math.sqrt(sum(w * (x - mean) ** 2 for w, x in zip(a, samples, strict=True)))
        assert row.sd == pytest.approx(sd, rel=0.05)
        assert abs(row.value - mean) < 4.5 * sd / math.sqrt(60000)


def test_a_member_is_what_it_is_alone_and_a_plain_loop() -> None:
    """REINFORCE at one temperature of one seed, with plain gradient descent in a loop of its own."""
    together = rows_of(*SHORT, "seeds=[0,7]")
    cell = cell_of(*SHORT, "seeds=[7]", "params.methods=[reinforce]", "params.temperatures=[4.0]")
    p, job = cell.params, measure.build(cell)
    make_trainer(cell, max_steps=p.steps).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    for quantity in ("selection_accuracy", "answer_accuracy", "largest_weight"):
        alone = pick(job.module.rows(), quantity)
        (same,) = [r for r in together if r.quantity == quantity and r.axes == alone.axes and r.seed == 7]
        assert same.value == pytest.approx(alone.value, abs=1e-4)

    turn = random_orthogonal(16, 16, generator(7, NAME, "rotation")).float()
    w = (torch.randn(16, 16, generator=generator(7, NAME, "start")) / 4).requires_grad_()
    gain, bias = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
    data, noise = generator(7, NAME, "train"), generator(7, NAME, "noise")
    for _ in range(p.steps):
        key = torch.randn(32, 5, 16, generator=data)
        key = key / key.norm(dim=-1, keepdim=True) * 4
        label = torch.randint(2, (32, 5), generator=data) * 2.0 - 1
        place = torch.randint(5, (32,), generator=data)
        g = -torch.empty(1, 32, 5).exponential_(generator=noise).log()[0]
        losses, log_p = [], []
        for b in range(32):
            q = key[b, place[b]] @ turn
            s = torch.stack([q @ w @ key[b, j] for j in range(5)]) / 4
            j = int((s / 4 + g[b]).argmax())
            losses.append(torch.nn.functional.softplus(-label[b, place[b]] * (gain * label[b, j] + bias)))
            log_p.append((s / 4).log_softmax(0)[j])
        loss = torch.stack(losses)
        baseline = [(float(loss.detach().sum() - one.detach())) / 31 for one in loss]
        surrogate = sum((loss[b].detach() - baseline[b]) * log_p[b] for b in range(32)) / 32
        slopes = torch.autograd.grad(loss.mean() + surrogate, [w, gain, bias])
        with torch.no_grad():
            for part, slope in zip((w, gain, bias), slopes, strict=True):
                part -= p.sgd_rate * slope
    torch.testing.assert_close(job.module.selector[0, 0], w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(job.module.gain[0, 0], gain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(job.module.bias[0, 0], bias, rtol=1e-4, atol=1e-5)


def test_accuracies_and_steps_against_a_count_by_hand() -> None:
    cell = cell_of(
        *SHORT, "seeds=[3]", "params.methods=[soft,straight_through]", "params.temperatures=[0.25]", "params.target=0.2"
    )
    job = measure.build(cell)
    make_trainer(cell, max_steps=6).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    rows, module = job.module.rows(), job.module
    data = generator(3, NAME, "test")
    key = torch.nn.functional.normalize(torch.randn(50, 5, 16, generator=data), dim=-1) * 4
    label = torch.randint(2, (50, 5), generator=data) * 2.0 - 1
    place = torch.randint(5, (50,), generator=data)
    for member, method in enumerate(("soft", "straight_through")):
        shares = {}
        for step in (0, 3, 6):
            kept, hits, answers, focus = module.snapshots[step], 0, 0, 0.0
            for b in range(50):
                s = torch.stack(
                    [key[b, place[b]] @ module.turn[0] @ kept.selector[0, member] @ key[b, j] / 4 for j in range(5)]
                )
                a = (s / 0.25).softmax(0)
                out = a @ label[b] if method == "soft" else label[b, s.argmax()]
                hits += int(s.argmax()) == int(place[b])
                answers += bool((kept.gain[0, member] * out + kept.bias[0, member]) * label[b, place[b]] > 0)
                focus += float(a.max())
            shares[step] = hits / 50
        assert pick(rows, "selection_accuracy", method=method).value == pytest.approx(shares[6])
        assert pick(rows, "answer_accuracy", method=method).value == pytest.approx(answers / 50)
        assert pick(rows, "largest_weight", method=method).value == pytest.approx(focus / 50, rel=1e-4)
        reached = [step for step, share in shares.items() if share >= 0.2]
        row = pick(rows, "steps_to_target", method=method)
        if reached:
            assert (row.value, row.status) == (reached[0], "ok")
        else:
            assert row.status == "failed: not within 6 steps"


def test_only_plain_argmax_leaves_its_selector_alone() -> None:
    rows = rows_of(*SHORT)
    for r in rows:
        if r.quantity == "selector_movement":
            assert (r.value == 0) == (r.axes["method"] == "hard_argmax")
    start = [r.value for r in rows if r.quantity == "selection_accuracy_start"]
    at = {"method": "hard_argmax", "temperature": 1.0}
    assert [r.value for r in rows if r.quantity == "selection_accuracy" and at.items() <= r.axes.items()] == start


def test_a_diverged_seed_is_a_failed_row() -> None:
    cell = cell_of(*SHORT, "seeds=[0,1]")
    job = measure.build(cell)
    with torch.no_grad():
        job.module.selector[1, 5] = math.nan
    make_trainer(cell, max_steps=6).fit(job.module, job.fit)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    method, temperature = job.module.members[5]
    for r in job.module.rows():
        if r.quantity == "selection_accuracy":
            failed = (r.axes["method"], r.axes["temperature"], r.seed) == (method, temperature, 1)
            assert r.status == ("failed: diverged" if failed else "ok")


@pytest.mark.slow
def test_a_short_training_learns_to_select_by_all_but_plain_argmax() -> None:
    rows = rows_of(
        "params.n_keys=4",
        "params.steps=400",
        "params.every=20",
        "params.n_test=200",
        "params.temperatures=[1.0]",
        "params.optimizer=sgd",
    )
    for method in table.METHODS:
        last = [r.value for r in rows if r.quantity == "selection_accuracy" and r.axes["method"] == method]
        assert (min(last) > 0.9) == (method != "hard_argmax"), method


# --- planted faults ---


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


def test_a_softened_choice_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module(), "hard", lambda scores: (50 * scores).softmax(-1))
    made = gradient(tmp_path)
    assert verdicts(made)["s3-hard-no-gradient"] == {"FAILED"}
    assert any("output_change is" in problem for problem in made.problems)


def test_a_wrong_softmax_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sharper(scores: Tensor, temperature: float = 1.0) -> Tensor:
        return (scores / temperature * 1.0001).softmax(-1)

    monkeypatch.setattr(measured_module(), "soft", sharper)
    made = gradient(tmp_path)
    assert "SOURCE_ERROR" in verdicts(made)["s3-soft-gradient"]
    assert any("at most 32 eps is round-off" in problem for problem in made.problems)


def test_a_breaker_that_breaks_nothing_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module(), "without_sum", measured_module().soft)
    assert sum("kept the closed form" in problem for problem in gradient(tmp_path).problems) == 4


def test_a_wrong_estimator_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().score_function
    monkeypatch.setattr(
        measured_module(), "score_function", lambda s, t, chosen, advantage: honest(s, t, chosen, 1.2 * advantage)
    )
    made = run(tmp_path, "params.study=gradient", "hydra.mode=RUN", "params.samples=50000")
    assert any("Monte Carlo and theory disagree" in problem for problem in made.problems)


def test_a_wrong_closed_form_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = importlib.import_module(f"attnrepro.tables.{NAME}.table").selection
    monkeypatch.setattr(closed, "leader_weight", lambda n, gap: 1 / (1 + n * math.exp(-gap)))
    assert verdicts(gradient(tmp_path))["s3-soft-focus"] >= {"FAILED"}


@pytest.mark.parametrize(
    ("quantity", "where", "value", "problem"),
    [
        ("selector_movement", {"method": "hard_argmax"}, "0.01", "plain argmax moved its selector by 0.01"),
        ("selector_movement", {"method": "reinforce"}, "0.0", "REINFORCE did not move its selector"),
        ("steps_to_target", {"method": "hard_argmax"}, "90.0", "no selector is needed"),
        ("steps_to_target", {"method": "soft", "seed": "3"}, "", "softmax reached the target in 0.80 of its seeds"),
        ("focus_violations", {}, "1.0", "focus_violations is 1"),
        ("output_jump", {}, "0.0", "a choice that never changes shows nothing"),
        ("second_signal", {"gap": "128", "dtype": "float32"}, "1.0", "second_signal is 1"),
    ],
)
def test_an_impossible_row_is_noticed(
    root: Path, tmp_path: Path, quantity: str, where: dict[str, str], value: str, problem: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        named = row["quantity"] == quantity and row["source"] == "measured"
        if named and all(row[name] == text for name, text in where.items()):
            row.update(value=value, status="ok" if value else "failed: not within 8 steps")

    assert any(problem in found for found in change(root, tmp_path / "r", trained, edit).problems)


def test_methods_that_fail_would_confirm_the_claim(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "steps_to_target" and row["method"] in reading.HARD:
            row.update(value="", status="failed: not within 8 steps")

    made = change(root, tmp_path / "r", trained, edit)
    assert "DIFFERS" not in verdicts(made)["s3-hard-untrainable"]
    assert "replace that derivative" not in made.answer


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.shapes=[5]", "shapes=5 must be n_keys x value_dim"),
        ("params.shapes=[1x3]", "with 2 keys or more"),
        ("params.moves=[1.0]", "moves=1 must not be"),
        ("params.example_values=[1.0]", "must hold a value for each"),
        ("params.factors=[1.0,0.5]", "must be two or more, rising"),
        ("params.signal_gaps=[100.0]", "must avoid what float32 holds with fewer digits"),
        ("params.every=5", "every=5 must divide steps=8"),
        ("params.methods=[argmin]", "must be one of hard_argmax"),
        ("params.optimizer=rmsprop", "must be one of sgd, adam"),
        ("params.temperatures=[0.0]", "between 0.01 and 100"),
        ("params.n_keys=1", "between 2 and"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_whether_hard_choices_are_trained() -> None:
    def told(signal: float, learned: float) -> str:
        at = {"quantity": "share_reached", "temperature": "1", "n_keys": "4", "optimizer": "sgd"}
        rows = [
            {"quantity": "share_with_signal", "method": "hard_argmax", "estimate": signal, "n": 40},
            {**at, "method": "hard_argmax", "estimate": 0.0},
            {**at, "method": "straight_through", "estimate": learned},
        ]
        (said,) = reading._told(harness.planted(reading.AXES, *rows))
        return said

    said = told(0.0, 1.0)
    assert said.startswith("Yes, every score of a plain argmax is without a gradient (40 scores); but hard choices are")
    assert "trained by gradient descent with straight-through; plain argmax gets there in 0 of 5 runs" in said
    assert said.endswith("straight-through gets there in 5 of 5 runs.")
    said = told(0.3, 0.2)
    assert said.startswith("No, not every score") and "and hard choices were not trained by gradient descent" in said
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "largest_weight"})) == ""
