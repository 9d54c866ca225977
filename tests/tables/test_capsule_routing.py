"""capsule_routing: both formulas, what is trained and shown, what is made of the rows, and planted faults."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.config import BadInput, load_yaml
from attnrepro.data.augment import shift
from attnrepro.data.geometry import fixed_shifts
from attnrepro.nn.capsules import dynamic_routing, margin_loss, routing_as_printed
from attnrepro.results.published import load_published
from attnrepro.tables.capsule_routing import measure, nets, reading, structure, table, trained
from attnrepro.training.trained import splits

from . import harness

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = table.NAME
SMALL = ("params.most_updates=2", "params.n_validation=20", "params.n_test=40", "seeds=[0,1]")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def command(root: Path, *overrides: str) -> list[str]:
    return [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={root}", "hydra.mode=RUN", *overrides]


# --- both formulas ---


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exact")
    assert entry.main(command(folder, "params.study=structure", "params.draws=20")) == 0
    assert entry.main(command(folder, "params.study=cost")) == 0
    return folder


def test_verdicts_on_the_formula_and_on_the_likeness_to_a_transformer(exact: Path) -> None:
    made = harness.built(NAME, exact)
    assert made.problems == []
    found = harness.verdicts(made)
    for claim in ("s4-caps-softmax-axis", "s4-caps-no-squash", "s4-static-attention"):
        assert found[claim] == {"SOURCE_ERROR"}
    for claim in ("capsules-parent-sums", "capsules-squash", "capsules-printed-is-attention"):
        assert found[claim] == {"REPRODUCED"}
    for claim in ("s4-caps-tr-2", "s4-caps-tr-3", "s4-caps-tr-4"):
        assert found[claim] == {"REPRODUCED", "SOURCE_ERROR"}
    assert found["s4-caps-tr-1"] == {"REPRODUCED", "SOURCE_ERROR", "CONTRADICTED"}
    assert found["s4-caps-cifar"] == {"CONFIRMED"}
    assert found["s4-caps-weighted-mnist"] == {"CONFIRMED", "NOT_JUDGED"}


def test_sums_over_parents_are_1_in_the_papers_form_and_not_as_printed(exact: Path) -> None:
    lines = harness.built(NAME, exact).lines
    found = {(r["model"], r["iterations"]): r["estimate"] for r in lines if r["quantity"] == "sum_over_parents_error"}
    assert all(found["routing", str(r)] <= 1e-12 for r in range(1, 6))
    assert all(found["as_printed", str(r)] > 0.1 for r in range(1, 6))


def test_if_the_print_were_right_nothing_would_be_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both names for the paper's form: the document's formula comes out as right, and its breakers break nothing."""
    monkeypatch.setitem(structure.ROUTINGS, "as_printed", dynamic_routing)
    cell = cell_of("params.study=structure", "params.draws=20")
    rows = harness.rows_of(NAME, lambda _: measure.build(cell)[0])
    found = {(r.quantity, r.axes["model"], r.axes.get("iterations")): r.value for r in rows if "vote" not in r.axes}
    assert found["sum_over_parents_error", "as_printed", 3] < 1e-14
    assert found["length_excess", "as_printed", 3] == 0
    assert found["rival_effect", "as_printed", 3] > 0.1
    frame = frame_of(
        {"quantity": r.quantity, "statistic": "exact", "estimate": r.value, "n": r.n}
        | {axis: str(value) for axis, value in r.axes.items()}
        for r in rows
        if "vote" not in r.axes
    )
    problems = reading.controls(frame)
    assert any("sum_over_parents_error of as_printed after 3 iterations" in problem for problem in problems)


def test_costs_are_counted_in_closed_form_and_equal(exact: Path) -> None:
    lines = [r for r in harness.built(NAME, exact).lines if r["quantity"] in ("parameters", "flops", "step_flops")]
    assert len(lines) == 3 * len(table.MODELS)
    assert all(r["estimate"] == r["theory"] for r in lines)
    sizes = [r["estimate"] for r in lines if r["quantity"] == "parameters"]
    assert max(sizes) / min(sizes) < 1.02


def test_softmaxes_that_wait_for_each_other() -> None:
    votes = torch.randn(1, 3, 2, 2, requires_grad=True)
    assert [structure.softmaxes_in_a_row(dynamic_routing(votes, r)[0]) for r in (2, 3, 5)] == [1, 2, 4]
    side_by_side = votes.softmax(0) + votes.softmax(1)
    assert structure.softmaxes_in_a_row(side_by_side) == 1


def test_a_patch_embedding_that_looks_further_is_found_out() -> None:
    torch.manual_seed(0)
    vit = structure.ViT((1, 12, 12), 10, patch=3, embed_dim=8, num_heads=2).double()
    image = torch.randn(1, 1, 12, 12, dtype=torch.float64)
    assert structure.patch_error(vit, image, 3) == 0
    inner = vit.patches.forward
    vit.patches.forward = lambda images: inner(images.roll(1, 3))  # type: ignore[method-assign]
    assert structure.patch_error(vit, image, 3) > 0.1


def test_attention_error_knows_both_formulas() -> None:
    votes = torch.randn(1, 6, 3, 4, dtype=torch.float64)
    assert structure.attention_error(routing_as_printed, votes) < 1e-14
    assert structure.attention_error(dynamic_routing, votes) > 0.1


# --- what is trained and shown ---


def test_all_capsule_nets_of_a_seed_start_alike() -> None:
    p = cell_of().params
    first = nets.net("capsules_1", p, 3).state_dict()
    for model in ("capsules_3", "printed_3"):
        other = nets.net(model, p, 3).state_dict()
        assert all(torch.equal(first[name], other[name]) for name in first)
    assert not torch.equal(first["classes.weight"], nets.net("capsules_1", p, 4).state_dict()["classes.weight"])
    assert [nets.net(f"capsules_{r}", p, 0).classes.iterations for r in (1, 4)] == [1, 4]  # type: ignore[union-attr]


def test_capsules_learn_by_the_margin_loss_and_others_by_cross_entropy() -> None:
    scores, labels = torch.tensor([[0.3, 0.8], [0.6, 0.1]]), torch.tensor([1, 1])
    assert float(nets.loss("capsules_3", scores, labels)) == pytest.approx(float(margin_loss(scores, labels).mean()))
    by_hand = [math.log(sum(math.exp(x) for x in row)) - row[1] for row in scores.tolist()]
    assert float(nets.loss("cnn_dense", scores, labels)) == pytest.approx(statistics.fmean(by_hand))


def test_test_images_are_the_same_digits_changed_in_five_ways() -> None:
    p = cell_of("params.n_test=null").params
    test = trained.framed(splits(cell_of().data).test, p)
    sets = trained.test_sets(trained.part(test), p)
    assert set(sets) == set(table.TESTS)
    assert all(torch.equal(found.labels, test.labels) for found in sets.values())
    assert all(found.images.shape == (500, 1, 12, 12) for found in sets.values())
    moved = shift(test.images, fixed_shifts(500, p.shift, trained.TEST_SEED))
    assert torch.equal(sets["shifted"].images, moved)
    # A shift by two pixels loses nothing of a digit of 8 x 8 on 12 x 12.
    whole = test.images.flatten(1).sum(1)
    assert torch.equal(sets["shifted"].images.flatten(1).sum(1), whole)
    assert torch.equal(sets["scattered"].images.flatten(1).sum(1), whole)
    assert torch.equal(sets["dust"].images.flatten(1).sum(1), whole)
    lost = 1 - sets["rotated"].images.flatten(1).sum(1) / whole
    assert float(lost.abs().max()) < 0.1


def test_no_image_is_both_trained_on_and_looked_at() -> None:
    job, _ = measure.build(cell_of(*SMALL, "params.model=cnn_dense", "params.n_train=1000"))
    data = job.fit.members[0]
    train = {image.numpy().tobytes() for image in data.train.images}
    p = cell_of().params
    held = [trained.framed(part, p).images for part in (splits(cell_of().data).validation, splits(cell_of().data).test)]
    assert len(train) > 990
    assert not train & {image.numpy().tobytes() for image in torch.cat(held)}


def test_told_apart_by_counting_pairs() -> None:
    high, low = torch.tensor([0.9, 0.5, 0.4]), torch.tensor([0.5, 0.1])
    pairs = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(high.tolist(), low.tolist())]
    assert trained.told_apart(high, low) == pytest.approx(sum(pairs) / 6)
    assert trained.told_apart(low, low) == 0.5


def test_nothing_is_tested_while_rates_are_tuned_on_seeds_that_are_not_reported() -> None:
    jobs = measure.build(cell_of(*SMALL, "params.study=tuning", "params.learning_rate=[0.001,0.01]"))
    assert [job.module.recipe.learning_rate for job in jobs] == [0.001, 0.001, 0.01, 0.01]
    assert all(job.test is None for job in jobs)
    about = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")
    tuning = [grid for grid in about["scales"]["full"]["also"] if grid.get("params.study") == "tuning"]
    assert {grid["seeds"] for grid in tuning} == {"[100,101]"}
    assert {model for grid in tuning for model in grid["params.model"].split(",")} == set(table.MODELS)
    assert all(about["scales"][scale]["seeds"] < 100 for scale in about["scales"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["params.model=capsules_9"], "there is no preset capsules_9"),
        (["params.shapes=[3x1x4]"], "shapes=3x1x4 must be children x parents x components, with 2 parents or more"),
        (["params.learning_rate=[0.1,0.2]"], "must be one value unless study=tuning"),
        (["params.scattered=5"], "scattered=5 must divide side=12"),
        (["params.sides=[12,14]"], "sides=[12, 14] must be multiples of patch=3"),
        (["params.scale=[1.2,0.8]"], "scale=[1.2, 0.8] must be a smallest and a largest value"),
        (["params.num_heads=3"], "num_heads=3 must divide embed_dim=16"),
        (["params.evaluations=3"], "evaluations=3 must divide updates="),
    ],
)
def test_bad_input_is_one_sentence(overrides: list[str], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        cell_of(*overrides)
    assert words in str(caught.value)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few updates of two seeds."""
    folder = tmp_path_factory.mktemp("capsules")
    for model in ("cnn_dense", "cnn", "capsules_1", "capsules_3"):
        assert entry.main(command(folder, *SMALL, f"params.model={model}")) == 0
    return folder


def test_rows_of_every_test_and_entropies_of_the_shares(root: Path) -> None:
    lines = harness.built(NAME, root).lines
    found = {(r["model"], r["test"], r["iterations"], r["quantity"]): r for r in lines if r["n"]}
    for model, test in itertools.product(("cnn", "cnn_dense", "capsules_1", "capsules_3"), table.TESTS):
        assert found[model, test, "", "accuracy"]["n"] == 2
    for model in ("capsules_1", "capsules_3"):
        line = found[model, "shifted", "1", "coupling_entropy"]
        assert line["estimate"] == pytest.approx(math.log(10), abs=1e-6)
        assert line["theory"] == pytest.approx(math.log(10))
        assert found[model, "shifted", "5", "coupling_entropy"]["estimate"] < line["estimate"]
    assert ("cnn", "shifted", "1", "coupling_entropy") not in found


def test_the_same_bytes_in_another_run(root: Path, tmp_path: Path) -> None:
    assert entry.main(command(tmp_path, *SMALL, "params.model=capsules_3")) == 0
    (again,) = (tmp_path / "runs" / NAME).glob("*/rows.csv")
    assert again.read_bytes() == (root / "runs" / NAME / again.parent.name / "rows.csv").read_bytes()


def test_more_images_than_there_are_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert entry.main(command(tmp_path, *SMALL, "params.n_train=5000")) == 1
    assert "digits has 1000 training images, not n_train=5000" in capfd.readouterr().err


# --- what is made of the rows ---


def frame_of(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Estimates as `attnrepro.app.gather` makes them."""
    blank: dict[str, Any] = dict.fromkeys(table.AXES, "")
    blank |= {"unit": "", "n_failed": 0, "sd": math.nan, "ci_low": math.nan, "ci_high": math.nan}
    blank |= {"theory": math.nan, "seeds": (), "by_seed": {}}
    found = []
    for line in lines:
        values = list(line.get("by_seed", {}).values())
        if values:
            line = {"statistic": "mean", "n": len(values), "estimate": statistics.fmean(values)} | line
        found.append(blank | line | {"seeds": tuple(values)})
    return pd.DataFrame(found)


ACCURACY = {
    ("capsules_3", "shifted"): {"100": (0.70, 0.72, 0.71), "1000": (0.95, 0.96, 0.95)},
    ("capsules_1", "shifted"): {"100": (0.72, 0.75, 0.70), "1000": (0.96, 0.96, 0.97)},
    ("cnn_dense", "shifted"): {"100": (0.80, 0.81, 0.83), "1000": (0.96, 0.97, 0.97)},
    ("capsules_3", "affine"): {"100": (0.60, 0.61, 0.60), "1000": (0.90, 0.90, 0.91)},
    ("cnn_dense", "affine"): {"100": (0.65, 0.66, 0.65), "1000": (0.85, 0.88, 0.86)},
    ("cnn_dense", "scattered"): {"1000": (0.30, 0.32, 0.31)},
    ("cnn_dense", "dust"): {"1000": (0.10, 0.12, 0.11)},
}


def recorded(**changed: tuple[float, ...]) -> list[dict[str, Any]]:
    lines = []
    for (model, test), sizes in ACCURACY.items():
        for n_train, values in sizes.items():
            values = changed.get(f"{model}_{test}_{n_train}", values)
            by_seed = {str(seed): value for seed, value in enumerate(values)}
            place = {"model": model, "test": test, "n_train": n_train}
            lines.append(place | {"quantity": "accuracy", "by_seed": by_seed})
            if test == "shifted":
                lines.append(place | {"test": "", "quantity": "validation_accuracy", "by_seed": by_seed})
    return lines


def derived(lines: list[dict[str, Any]]) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    made: list[dict[str, Any]] = reading.derive(frame_of(lines), [])  # type: ignore[assignment]
    return {(r["quantity"], r["model"], r["n_train"], r["test"]): r for r in made}


def test_differences_are_of_equal_seeds_and_point_where_the_claims_do() -> None:
    lines = recorded()
    for line in lines:
        if line["model"] == "cnn_dense":
            line["by_seed"] = dict(reversed(list(line["by_seed"].items())))
    found = derived(lines)
    line = found["accuracy_difference", "cnn_dense - capsules_3", "100", "shifted"]
    assert sorted(line["seeds"]) == pytest.approx([0.09, 0.10, 0.12])
    line = found["accuracy_difference", "capsules_3 - cnn_dense", "1000", "affine"]
    assert sorted(line["seeds"]) == pytest.approx([0.02, 0.05, 0.05])
    assert ("accuracy_difference", "cnn_dense - capsules_3", "1000", "affine") not in found


def test_what_a_lead_loses_with_more_images_and_an_accuracy_with_another_test() -> None:
    found = derived(recorded())
    line = found["lead_lost", "cnn_dense - capsules_3", "", "shifted"]
    assert line["seeds"] == pytest.approx((0.09, 0.08, 0.10))
    line = found["drop", "cnn_dense", "1000", ""]
    assert line["seeds"] == pytest.approx((0.11, 0.09, 0.11))
    line = found["drop_difference", "cnn_dense - capsules_3", "1000", ""]
    assert line["seeds"] == pytest.approx((0.06, 0.03, 0.07))
    line = found["above_chance", "cnn_dense", "1000", "scattered"]
    assert line["seeds"] == pytest.approx((0.20, 0.22, 0.21))


def test_trainings_that_are_stuck_or_diverged_are_counted_and_not_dropped() -> None:
    lines = recorded(capsules_3_shifted_100=(0.70, 0.11, 0.72))
    at = ("capsules_3", "1000", "validation_accuracy")
    (line,) = (r for r in lines if (r["model"], r["n_train"], r["quantity"]) == at)
    line["n_failed"] = 1
    stuck = derived(lines)["stuck_share", "capsules_3", "", ""]
    assert (stuck["n"], stuck["estimate"]) == (7, pytest.approx(2 / 7))
    assert derived(lines)["stuck_share", "cnn_dense", "", ""]["estimate"] == 0


def test_every_trend_that_is_claimed_is_derived() -> None:
    """At the sizes and tests of scale cpu, all models there are."""
    lines = []
    for model, n_train, test in itertools.product(
        ("cnn", "cnn_dense", "capsules_1", "capsules_3"), ("100", "316", "1000"), table.TESTS
    ):
        by_seed = {str(seed): 0.5 + 0.01 * seed for seed in range(5)}
        lines.append({"model": model, "n_train": n_train, "test": test, "quantity": "accuracy", "by_seed": by_seed})
        lines.append(lines[-1] | {"quantity": "validation_accuracy" if test == "shifted" else "other", "test": ""})
        if test == "scattered":
            lines.append(lines[-2] | {"quantity": "told_apart"})
    found = derived(lines)
    for line in load_published(paths.published_dir() / f"{NAME}.csv"):
        if line.klass == "ordinal" or line.quantity == "stuck_share":
            axes = dict(line.axes)
            assert (line.quantity, axes["model"], axes["n_train"], axes["test"]) in found, line.claim


# --- what must hold ---


def tuned(best: float, *, tried: tuple[float, ...] = (0.0001, 0.001, 1.0)) -> pd.DataFrame:
    used = float(load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]["cnn"])
    lines = []
    for rate in sorted({*tried, used}):
        value = 0.9 if rate == (best or used) else 0.8
        place = {"model": "cnn", "n_train": "316", "quantity": "validation_accuracy", "learning_rate": str(rate)}
        lines.append(place | {"by_seed": {"100": value}})
    return frame_of(lines)


def test_the_configuration_has_the_best_of_the_recorded_rates_inside_the_grid() -> None:
    assert reading.controls(tuned(0)) == []
    (problem,) = reading.controls(tuned(0.001))
    assert "the best on validation images is 0.001" in problem
    (problem,) = reading.controls(tuned(0, tried=(0.0001, 0.001)))
    assert "is at the edge of those tried" in problem
    tied = tuned(0)
    tied.loc[tied.learning_rate == "0.001", "estimate"] = 0.9
    assert reading.controls(tied) == []


def test_straw_men_shuffled_pixels_and_unequal_sizes_are_told() -> None:
    assert reading.controls(frame_of(recorded())) == []
    (problem,) = reading.controls(frame_of(recorded(cnn_dense_shifted_1000=(0.8, 0.8, 0.81))))
    assert "it was not trained well enough to be compared" in problem
    (problem,) = reading.controls(frame_of(recorded(cnn_dense_dust_1000=(0.5, 0.5, 0.51))))
    assert "where nothing is to be seen" in problem
    sizes = [
        {"model": model, "quantity": "parameters", "statistic": "exact", "estimate": size, "n": 1}
        for model, size in (("capsules_3", 1000.0), ("cnn", 1021.0), ("cnn_dense", 1019.0))
    ]
    (problem,) = reading.controls(frame_of(sizes))
    assert "cnn has 1021 parameters, capsules_3 1000" in problem


@pytest.mark.parametrize(
    ("model", "quantity", "iterations", "value"),
    [
        ("as_printed", "sum_over_parents_error", "1", 0.7),
        ("as_printed", "sum_over_parents_error", "2", 1e-16),
        ("routing", "rival_effect", "2", 0.0),
        ("capsules", "order_error", "3", 1e-15),
        ("routing", "sum_over_parents_error", "5", 1e-9),
        ("attention_zero", "weights_change", "", 0.1),
    ],
)
def test_a_breaker_that_breaks_nothing_and_a_holder_that_does_not_hold(
    model: str, quantity: str, iterations: str, value: float
) -> None:
    line = {"model": model, "quantity": quantity, "iterations": iterations, "statistic": "exact", "n": 60}
    (problem,) = reading.controls(frame_of([line | {"estimate": value}]))
    assert model in problem


def test_a_wrong_closed_form_is_told(exact: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "flops" and row["source"] == "measured" and row["model"] == "cnn":
            row["value"] = str(float(row["value"]) + 2)

    problems = harness.change(NAME, exact, tmp_path / "r", edit).problems
    assert any("flops of cnn is" in problem for problem in problems)


def test_a_coupling_that_sums_to_something_else_is_no_longer_reproduced(exact: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "sum_over_parents_error" and row["model"] == "routing":
            row["value"] = "0.1"

    made = harness.change(NAME, exact, tmp_path / "r", edit)
    assert harness.verdicts(made)["capsules-parent-sums"] == {"SOURCE_ERROR"}
    assert any("which is no round-off" in problem for problem in made.problems)


# --- what is shown ---


def test_the_answer_and_the_charts(exact: Path, root: Path) -> None:
    lines = frame_of(recorded())
    lines = pd.concat([lines, pd.DataFrame(reading.derive(lines, []))], ignore_index=True)
    words = reading.answer(lines)
    assert "Accuracy of the dense head less that of the capsules (3 seeds, equal parameters): +0.103" in words
    assert "Of 6 trainings with routing 0 were stuck." in words
    assert "One iteration less three, as trained: +0.013" in words
    made = harness.built(NAME, exact)
    assert "is 1 within" in str(made.answer)
    titles = [chart["title"] for chart in reading.charts(lines)]
    assert titles == [
        "accuracy, shifted as in training",
        "accuracy under affine changes",
        "accuracy on scattered patches",
    ]


# --- the first sentence ---


def test_the_first_sentence_says_whether_the_formula_routes_and_who_is_ahead() -> None:
    def told(error: float, lead: tuple[float, float]) -> str:
        behind = (-lead[1], -lead[0])
        rows = [
            {"quantity": "sum_over_parents_error", "statistic": "exact", "model": "as_printed", "iterations": "3",
             "estimate": error},
            {"quantity": "accuracy_difference", "model": "cnn_dense - capsules_3", "n_train": "100", "test": "shifted",
             "ci": (-0.3, -0.1)},
            {"quantity": "accuracy_difference", "model": "cnn - capsules_3", "n_train": "100", "test": "shifted",
             "ci": behind},
            {"quantity": "accuracy_difference", "model": "capsules_3 - cnn", "n_train": "1000", "test": "affine",
             "ci": lead},
            {"quantity": "told_apart_difference", "model": "capsules_3 - cnn", "n_train": "1000",
             "test": "scattered", "ci": lead},
        ]  # fmt: skip
        (said, *_) = reading._told(harness.planted(reading.AXES, *rows))
        return said

    said = told(1.0, (-0.3, -0.1))
    assert said.startswith("The printed formula does not route (what a child hands out is off 1 by up to 1)")
    assert (
        "capsules are ahead of the CNN with a dense head (+0.200 [+0.100, +0.300]) and behind the CNN that pools"
        in said
    )
    assert "affine changes behind the latter (-0.2" in said and "scattered parts behind the latter" in said
    said = told(0.0, (0.1, 0.3))
    assert said.startswith("The printed formula routes") and said.count("ahead of") == 4
    assert told(0.0, (-0.1, 0.3)).count("level with") == 3
    assert list(reading._told(harness.planted(reading.AXES, {"quantity": "parameters"}))) == []
