"""vit_vs_cnn: what is trained, and what is made of its rows; on the digits, which are always there."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats as reference

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput, load_yaml
from attnrepro.results.published import load_published
from attnrepro.tables.vit_vs_cnn import measure, reading, table
from attnrepro.training.measurement import Job

from . import harness

NAME = "vit_vs_cnn"
DIGITS = ("data=digits", "params.n_train=100")
SMALL = ("params.most_updates=4", "params.n_validation=50", "params.n_test=60", "seeds=[0,1]")


def jobs_of(*overrides: str) -> list[Job]:
    return measure.build(harness.cell_of(NAME, *DIGITS, *overrides))


# --- what is trained ---


@pytest.mark.parametrize(("model", "count"), [("cnn", 2), ("vit_patch2", 2), ("mlp", 1), ("logistic_regression", 1)])
def test_networks_train_one_seed_a_fit_and_mlps_all_at_once(model: str, count: int) -> None:
    assert len(jobs_of(f"params.model={model}", "seeds=[0,1]")) == count


def test_nothing_is_tested_while_rates_are_tuned() -> None:
    jobs = jobs_of(
        "params.study=tuning",
        "params.model=mlp",
        "params.learning_rate=[0.001,0.01]",
        "params.weight_decay=[0.1,0.2,0.3]",
    )
    assert len(jobs) == 6
    assert all(job.test is None for job in jobs)
    tried: list[Any] = [(job.module.recipe.learning_rate, job.module.recipe.weight_decay) for job in jobs]
    assert tried == list(itertools.product([0.001, 0.01], [0.1, 0.2, 0.3]))


def test_smaller_sets_are_nested_and_seeds_differ() -> None:
    def images(n: int, seed: int, *more: str) -> set[bytes]:
        (job,) = jobs_of(f"params.n_train={n}", f"seeds=[{seed}]", *more)
        return {image.numpy().tobytes() for image in job.fit.members[0].train.images}

    assert images(100, 0) <= images(316, 0)
    assert images(100, 0) != images(100, 1)
    assert images(100, 0, "params.subset_seed=7") == images(100, 1, "params.subset_seed=7")


def test_standardised_by_the_training_images_alone() -> None:
    (job,) = jobs_of("seeds=[0]", "params.n_train=100")
    member = job.fit.members[0]
    prepared = member.prepare(member.train.images)
    assert float(prepared.mean()) == pytest.approx(0, abs=1e-5)
    assert float(prepared.std(unbiased=False)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("n_train", "chosen"), [(100, (0.1, 0.5)), (1000, (0.1, 0.5)), (9999, (0.1, 0.5)), (10000, (0.2, 0.6))]
)
def test_a_size_takes_the_rates_of_the_largest_tuned_size_below_it(n_train: int, chosen: tuple[float, float]) -> None:
    p = harness.cell_of(
        NAME,
        f"params.n_train={n_train}",
        "params.tuned_at=[1000,10000]",
        "params.learning_rate=[0.1,0.2]",
        "params.weight_decay=[0.5,0.6]",
    ).params
    assert p.rates() == [chosen]


@pytest.mark.parametrize(("n_train", "steps"), [(100, 400), (3162, 400), (10000, 788), (55000, 4300)])
def test_every_model_gets_as_many_updates(n_train: int, steps: int) -> None:
    p = harness.cell_of(NAME, f"params.n_train={n_train}", "params.most_updates=null").params
    assert p.equal_steps() == steps == max(400, 4 * math.ceil(5 * math.ceil(n_train / 64) / 4))
    assert measure.recipe(p, 0.1, 0.1).steps == steps


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["params.model=resnet50"], "there is no preset resnet50; choices: tuned_at, cnn"),
        (["params.model=vit_patch7"], "there is no preset vit_patch7; choices: tuned_at, cnn, vit_patch2"),
        (["params.learning_rate=[0.1,0.2]"], "must have a value for each of tuned_at"),
        (["params.recipe=long"], "params.recipe=long must be one of equal_updates, convergence"),
        (["data=cifar10"], "params.tuned_at: there is no preset cifar10; choices: fashion_mnist, digits"),
    ],
)
def test_bad_input_is_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(BadInput) as error:
        harness.cell_of(NAME, *DIGITS, *overrides)
    assert message in str(error.value)


def test_more_images_than_there_are_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", "hydra.mode=RUN", f"results={tmp_path}"]
    assert entry.main([*command, "data=digits", "params.n_train=5000", "params.model=mlp"]) == 1
    assert "digits has 1000 training images, not n_train=5000" in capfd.readouterr().err


def test_a_class_that_no_training_image_shows_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", "hydra.mode=RUN", f"results={tmp_path}"]
    assert entry.main([*command, "data=digits", "params.n_train=7", "params.model=mlp"]) == 0
    assert "training images show only 7 of 10 classes, tests all of them" in capfd.readouterr().err
    (run,) = (tmp_path / "runs" / NAME).glob("*/run.json")
    assert json.loads(run.read_text())["classes_seen"] == [7]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits, a little trained: two seeds of every model."""
    folder = tmp_path_factory.mktemp("vit_vs_cnn")
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={folder}", *SMALL]
    for model in ("cnn", "vit_patch2", "mlp"):
        assert entry.main([*command, *DIGITS, f"params.model={model}", "hydra.mode=RUN"]) == 0
    return folder


def test_rows_come_from_seeds_and_both_checkpoints(root: Path) -> None:
    lines = harness.built(NAME, root).lines
    found = {(r["model"], r["n_train"], r["quantity"]): r for r in lines}
    for model in ("cnn", "vit_patch2", "mlp"):
        for quantity in ("accuracy", "last_accuracy", "loss", "validation_accuracy"):
            line = found[model, "100", quantity]
            assert line["n"] == 2
            assert math.isfinite(line["estimate"])


def test_the_same_bytes_in_another_run(root: Path, tmp_path: Path) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={tmp_path}", *SMALL]
    assert entry.main([*command, "data=digits", "params.n_train=100", "params.model=cnn", "hydra.mode=RUN"]) == 0
    (again,) = (tmp_path / "runs" / NAME).glob("*/rows.csv")
    assert again.read_bytes() == (root / "runs" / NAME / again.parent.name / "rows.csv").read_bytes()


def test_costs_are_counted_and_in_closed_form(tmp_path: Path) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={tmp_path}", "hydra.mode=RUN"]
    assert entry.main([*command, "data=digits", "params.study=cost"]) == 0
    lines = [r for r in harness.built(NAME, tmp_path).lines if r["quantity"] in ("parameters", "flops")]
    assert {"cnn", "vit_patch2", "mlp", "logistic_regression"} <= {r["model"] for r in lines}
    assert all(r["estimate"] == r["theory"] for r in lines)
    assert not [r for r in lines if r["model"] == "vit_patch7"]  # 7 does not divide 8


# --- what is made of the rows ---


def frame_of(lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Estimates as `attnrepro.app.gather` makes them."""
    blank = dict.fromkeys(table.AXES, "") | {"quantity": "accuracy", "statistic": "mean", "unit": ""}
    found = []
    for line in lines:
        values = list(line["by_seed"].values())
        mean = statistics.fmean(values)
        sd = statistics.stdev(values) if len(values) > 1 else math.nan
        about = {"n": len(values), "n_failed": 0, "estimate": mean, "sd": sd, "seeds": tuple(values)}
        found.append(blank | about | {"ci_low": math.nan, "ci_high": math.nan, "theory": math.nan} | line)
    return pd.DataFrame(found)


def curve(model: str, values: dict[int, list[float]], **axes: str) -> list[dict[str, Any]]:
    place = {"data": "fashion_mnist", "augmentation": "none", "recipe": "equal_updates"} | axes
    return [
        {**place, "model": model, "n_train": str(n), "by_seed": {str(s): v for s, v in enumerate(found)}}
        for n, found in values.items()
    ]


CNN = {100: [0.60, 0.62, 0.61, 0.63, 0.60], 316: [0.70, 0.71, 0.72, 0.70, 0.71], 1000: [0.79, 0.80, 0.80, 0.81, 0.79]}
VIT = {100: [0.50, 0.53, 0.50, 0.54, 0.51], 316: [0.66, 0.66, 0.68, 0.67, 0.66], 1000: [0.82, 0.82, 0.81, 0.83, 0.82]}


def derived(frame: pd.DataFrame) -> dict[tuple[str, str, str], dict[str, Any]]:
    lines: list[dict[str, Any]] = reading.derive(frame, [])
    return {(r["quantity"], r.get("model", ""), r.get("n_train", "")): r for r in lines}


def test_differences_are_paired_by_seed_whatever_the_order_of_rows() -> None:
    lines = curve("cnn", CNN) + curve("vit_patch7", VIT)
    lines[-1]["by_seed"] = dict(reversed(list(lines[-1]["by_seed"].items())))
    found = derived(frame_of(lines))["accuracy_difference", "cnn - vit_patch7", "1000"]
    differences = [a - b for a, b in zip(CNN[1000], VIT[1000], strict=True)]
    wanted = reference.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert found["estimate"] == pytest.approx(statistics.fmean(differences))
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((wanted.low, wanted.high))
    assert found["n"] == 5


def test_a_seed_that_one_model_lacks_is_left_out_of_the_pairs() -> None:
    lines = curve("cnn", CNN) + curve("vit_patch7", VIT)
    del lines[-1]["by_seed"]["3"]
    assert derived(frame_of(lines))["accuracy_difference", "cnn - vit_patch7", "1000"]["n"] == 4


def test_the_crossing_is_where_the_line_between_two_sizes_is_zero() -> None:
    found = derived(frame_of(curve("cnn", CNN) + curve("vit_patch7", VIT)))["crossover_n_train", "cnn - vit_patch7", ""]
    low, high = (statistics.fmean(CNN[n]) - statistics.fmean(VIT[n]) for n in (316, 1000))
    share = low / (low - high)
    assert found["estimate"] == pytest.approx(316 * (1000 / 316) ** share)
    assert 316 < found["ci_low"] < found["estimate"] < found["ci_high"] < 1000


def test_where_nothing_crosses_there_is_no_crossing() -> None:
    ahead = {n: [v + 0.05 for v in values] for n, values in VIT.items()}
    frame = frame_of(curve("cnn", ahead) + curve("vit_patch7", VIT))
    assert ("crossover_n_train", "cnn - vit_patch7", "") not in derived(frame)
    assert "the order does not reverse up to 1000" in reading.answer(frame)


def test_no_crossing_is_claimed_where_the_last_interval_holds_zero() -> None:
    near = {
        n: [v + d for v, d in zip(values, [0.05, -0.04, 0.03, -0.02, 0.01], strict=True)] for n, values in VIT.items()
    }
    assert "whether the order reverses by 1000 is open" in reading.answer(
        frame_of(curve("cnn", near) + curve("vit_patch7", VIT))
    )


def test_exponents_of_exact_power_laws() -> None:
    law = {n: [1 - c * n**-b for c, b in ((2.0, 0.3), (2.2, 0.32), (1.9, 0.31))] for n in (1000, 3162, 10000)}
    flat = {n: [1 - 0.9 * n**-0.2] * 3 for n in (1000, 3162, 10000)}
    found = derived(frame_of(curve("cnn", law) + curve("vit_patch7", flat)))
    assert found["error_exponent", "cnn", ""]["estimate"] == pytest.approx(0.31)
    assert found["error_exponent", "vit_patch7", ""]["estimate"] == pytest.approx(0.2)
    far = found["extrapolated_difference", "cnn - vit_patch7", "1281167"]
    wanted = [0.9 * 1281167**-0.2 - c * 1281167**-b for c, b in ((2.0, 0.3), (2.2, 0.32), (1.9, 0.31))]
    assert far["estimate"] == pytest.approx(statistics.fmean(wanted))


def test_images_for_an_accuracy() -> None:
    found = derived(frame_of(curve("cnn", CNN) + curve("vit_patch7", VIT)))
    line = found["log10_images_for_0.75", "vit_patch7 - cnn", ""]

    def price(low: float, high: float) -> float:
        return math.log10(316) + (3 - math.log10(316)) * (0.75 - low) / (high - low)

    wanted = [price(VIT[316][s], VIT[1000][s]) - price(CNN[316][s], CNN[1000][s]) for s in range(5)]
    assert line["estimate"] == pytest.approx(statistics.fmean(wanted))


def test_a_seed_that_never_gets_there_is_counted() -> None:
    low = {n: [*values[:4], 0.4] for n, values in VIT.items()}
    line = derived(frame_of(curve("cnn", CNN) + curve("vit_patch7", low)))[
        "log10_images_for_0.75", "vit_patch7 - cnn", ""
    ]
    assert (line["n"], line["n_failed"]) == (4, 1)


def test_the_rule_of_the_slope() -> None:
    # Last gain .16 and next gain .15 of the ViT against a lead of .04: more data, rightly.
    frame = frame_of(curve("cnn", CNN) + curve("vit_patch7", VIT))
    line = next(r for r in reading.derive(frame, []) if r["quantity"] == "slope_rule_right")
    assert (line["n"], line["estimate"]) == (1, 1.0)
    # A curve that was flat and then rises: the rule sends one to the CNN, and is wrong.
    late = {100: [0.655] * 5, 316: [0.66] * 5, 1000: [0.82] * 5}
    frame = frame_of(curve("cnn", CNN) + curve("vit_patch7", late))
    line = next(r for r in reading.derive(frame, []) if r["quantity"] == "slope_rule_right")
    assert (line["n"], line["estimate"]) == (1, 0.0)


# --- what must hold ---


def tuned(best: tuple[float, float]) -> Any:
    """Validation accuracies over a grid around the rates of the configuration, 0.9 at one pair and 0.8 elsewhere."""
    lines = []
    for rate, decay in itertools.product((0.004, 0.016, 0.064, 0.128), (0.05, 0.2, 0.5)):
        value = 0.9 if (rate, decay) == best else 0.8
        place = {"data": "digits", "model": "mlp", "n_train": "316", "quantity": "validation_accuracy"}
        lines.append(place | {"learning_rate": str(rate), "weight_decay": str(decay), "by_seed": {"100": value}})
    return frame_of(lines)


def used() -> tuple[float, float]:
    chosen = load_yaml(paths.conf_dir() / "rates" / "images.yaml")["digits"]["mlp"]
    return chosen["learning_rate"][0], chosen["weight_decay"][0]


def test_the_configuration_has_the_best_of_the_recorded_rates() -> None:
    assert reading.controls(tuned(used())) == []
    (problem,) = reading.controls(tuned((0.016, 0.5)))
    assert "the best on validation images is 0.016 and 0.5" in problem


def test_of_equally_good_rates_any_may_be_used() -> None:
    frame = tuned((0.016, 0.2))
    frame.loc[(frame.learning_rate == str(used()[0])) & (frame.weight_decay == str(used()[1])), "estimate"] = (
        0.9 - 1e-12
    )
    assert reading.controls(frame) == []


@pytest.mark.parametrize(("kept", "said"), [("learning_rate", "weight decay"), ("weight_decay", "learning rate")])
def test_rates_at_the_edge_are_told(kept: str, said: str) -> None:
    frame = tuned(used())
    other = {"learning_rate": "weight_decay", "weight_decay": "learning_rate"}[kept]
    chosen = dict(zip(("learning_rate", "weight_decay"), used(), strict=True))[other]
    (problem,) = reading.controls(frame[frame[other].astype(float) >= chosen])
    assert f"{said} {chosen:g} is at the edge of those tried" in problem


def test_straw_men_are_told() -> None:
    weak = frame_of(curve("cnn", {55000: [0.91, 0.915]}) + curve("vit_patch7", {55000: [0.895, 0.893]}))
    assert [problem[:4] for problem in reading.controls(weak)] == ["CNN "]
    long = curve("cnn", {55000: [0.925, 0.924]}, recipe="convergence")
    strong = frame_of(curve("cnn", {55000: [0.91, 0.915]}) + long)
    assert reading.controls(strong) == []


def test_a_seed_that_diverged_is_told() -> None:
    frame = frame_of(curve("cnn", CNN))
    frame.loc[0, "n_failed"] = 1
    assert "1 seeds diverged" in reading.controls(frame)[0]


# --- what is shown ---


def test_a_trend_that_is_turned_round_fails(root: Path, tmp_path: Path) -> None:
    claims = {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv") if line.klass == "ordinal"}
    assert "s0-conv-wins-small-data" in claims
    made = harness.built(NAME, root)
    assert made.problems == []
    assert all(
        r["verdict"] in ("NOT_RUN", "INCONCLUSIVE", "CONFIRMED", "CONTRADICTED") for r in made.lines if r.get("claim")
    )


def test_charts_are_drawn() -> None:
    frame = frame_of(curve("cnn", CNN) + curve("vit_patch7", VIT) + curve("mlp", CNN))
    lines = pd.DataFrame([*frame.to_dict("records"), *reading.derive(frame, [])])
    lines[list(table.AXES)] = lines[list(table.AXES)].fillna("")
    lines["published"] = math.nan
    titles = [chart["title"] for chart in reading.charts(lines)]
    assert titles == [
        "accuracy on Fashion-MNIST",
        "lead of the CNN (above 0: it wins)",
        "lead of the CNN over the ViT, by recipe",
    ]


def test_scales_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnrepro.app import gather

    def cell(scale: str, n: str, seed: str) -> Any:
        row = dict.fromkeys(table.AXES, "") | {"data": "digits", "model": "mlp", "n_train": n}
        row |= {"augmentation": "none", "recipe": "equal_updates", "quantity": "accuracy", "statistic": "mean"}
        row |= {"source": "measured", "seed": seed, "unit": "", "n": "1", "sd": "", "value": "0.5", "status": "ok"}
        science = {"table": NAME, "scale": scale, "params": {"n_train": int(n)}, "seeds": [int(seed)]}
        return gather.CellRows(f"{scale}{n}{seed}", "env", scale, "code", science, [row], {}, own=False)

    cells = [cell("cpu", "100", "0"), cell("cpu", "316", "0"), cell("full", "1000", "0"), cell("full", "316", "0")]
    monkeypatch.setattr(gather, "reference_cells", lambda *_: cells)
    monkeypatch.setattr(gather, "variant", lambda *_: "")
    monkeypatch.setattr(gather, "own_grid", lambda *_: ())
    (group,) = gather.groups(NAME, None, Path("raw"))
    assert group.scale == "cpu+full"
    assert {(line["n_train"], line["n"]) for line in group.lines} == {("100", 1), ("316", 1), ("1000", 1)}
    made = report.report_table(NAME, None, Path("raw"))
    assert {r["scale"] for r in made.lines} == {"cpu+full"}
