"""long_range_relation: what is drawn and trained, the sum over windows, and what is made of the rows."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from scipy import stats as reference

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput, load_yaml
from attnrepro.data.same_different import SameDifferent, same_different
from attnrepro.nn.presets import seeded_model
from attnrepro.tables.long_range_relation import measure, reading, table
from attnrepro.theory.same_different import accuracy_bound, cue_accuracy, widest_window

from . import harness

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = table.NAME
SMALL = ("params.most_updates=2", "params.n_validation=20", "params.n_test=40")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def member_of(*overrides: str) -> Any:
    p = cell_of(*SMALL, *overrides).params
    return measure.member(0, p)


# --- the task ---


def test_smaller_training_sets_are_the_beginning_of_larger_ones() -> None:
    few, many = (member_of(f"params.n_train={n}").train for n in (316, 2100))
    assert (len(few.labels), len(many.labels)) == (316, 2100)
    assert torch.equal(few.images, many.images[:316])
    assert torch.equal(few.labels, many.labels[:316])
    task = SameDifferent(types=6, cue=0.85, jitter=0, apart=3, cue_amplitude=2.0, noise=0.2)
    third, _ = same_different(task, 1000, 0, NAME, "train", 2)
    assert torch.equal(many.images[2000:], third[:100])
    assert len({image.numpy().tobytes() for image in many.images}) == 2100


def test_splits_and_seeds_are_drawn_apart_and_the_cue_changes_no_label() -> None:
    p = cell_of(*SMALL).params
    one, other = (measure.member(seed, p) for seed in (0, 1))
    assert not torch.equal(one.train.images, other.train.images)
    assert not torch.equal(one.validation.images, one.tests["test"].images[:20])
    weak = member_of("params.cue=0.5")
    assert torch.equal(weak.train.labels, one.train.labels)
    assert not torch.equal(weak.train.images, one.train.images)


def test_images_are_standardised_and_a_shifted_grid_cuts_every_cell_and_loses_nothing() -> None:
    aligned, shifted = member_of(), member_of("params.grid=shifted", "params.model=vit_patch7")
    images = aligned.train.images
    plain, rolled = aligned.prepare(images), shifted.prepare(images)
    assert float(plain.mean()) == pytest.approx(0, abs=1e-5)
    assert float(plain.std()) == pytest.approx(1, abs=1e-4)
    for row, column in itertools.product(range(28), repeat=2):
        assert torch.equal(rolled[:5, :, (row + 3) % 28, (column + 3) % 28], plain[:5, :, row, column])

    for cell in range(4):
        rows = [7 * cell + 1 + pixel for pixel in range(5)]
        assert len({row // 7 for row in rows}) == 1
        assert len({(row + 3) % 28 // 7 for row in rows}) == 2


def test_training_sees_only_standardised_images_of_its_own() -> None:
    (job,) = measure.build(cell_of(*SMALL, "params.model=mlp", "seeds=[3]"))
    member = job.fit.members[0]
    batch = job.fit.batch(0)
    own = {image.numpy().tobytes() for image in member.prepare(member.train.images)}
    assert {image.numpy().tobytes() for image in batch.images[0]} <= own


# --- what is trained ---


@pytest.mark.parametrize(("model", "count"), [("cnn_additive", 2), ("cnn", 2), ("vit_patch7", 2), ("mlp", 1)])
def test_networks_train_one_seed_a_fit_and_mlps_all_at_once(model: str, count: int) -> None:
    assert len(measure.build(cell_of(*SMALL, f"params.model={model}", "seeds=[0,1]"))) == count


def test_the_additive_cnn_is_narrower_than_its_preset() -> None:
    (job,) = measure.build(cell_of(*SMALL, "params.model=cnn_additive", "params.additive_widths=[5,7]", "seeds=[0]"))
    kernels = [m for m in job.module.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [(k.in_channels, k.out_channels) for k in kernels] == [(1, 5), (5, 7), (7, 7)]


def test_nothing_is_tested_while_rates_are_tuned() -> None:
    jobs = measure.build(
        cell_of(
            *SMALL,
            "params.study=tuning",
            "params.model=mlp",
            "params.learning_rate=[0.001,0.01]",
            "params.weight_decay=[0.1,0.2,0.3]",
        )
    )
    assert all(job.test is None for job in jobs)
    tried: list[Any] = [(job.module.recipe.learning_rate, job.module.recipe.weight_decay) for job in jobs]
    assert tried == list(itertools.product([0.001, 0.01], [0.1, 0.2, 0.3]))


@pytest.mark.parametrize(("n_train", "steps"), [(100, 300), (3162, 300), (10000, 316), (31622, 992)])
def test_every_model_gets_as_many_updates(n_train: int, steps: int) -> None:
    p = cell_of(f"params.n_train={n_train}", "params.most_updates=null", "params.updates=300").params
    assert p.steps() == steps == 4 * math.ceil(max(300, 2 * math.ceil(n_train / 64)) / 4)
    assert measure.recipe(p, 0.1, 0.1).steps == steps


def test_reported_seeds_choose_nothing() -> None:
    """Rates are tuned on seeds that no curve has, at one setting."""
    about = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")
    tuning = [grid for grid in about["scales"]["full"]["also"] if grid.get("params.study") == "tuning"]
    assert {grid["seeds"] for grid in tuning} == {"[100,101]"}
    assert all(about["scales"][scale]["seeds"] < 100 for scale in about["scales"])
    assert not any("params.cue" in grid or "params.jitter" in grid for grid in tuning)
    assert {grid["params.model"] for grid in tuning if "params.n_train" in grid} == {"mlp"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("params.model=vit_patch4", "there is no preset"),
        ("params.grid=turned", "there is no preset turned; choices: aligned, shifted"),
        ("params.cue=1.5", "params.cue=1.5 must lie between 0 and 1"),
        ("params.jitter=2", "params.jitter=2 must lie between 0 and 1"),
        ("params.learning_rate=[0.1,0.2]", "must be one value each unless study=tuning"),
        ("params.additive_widths=[8]", "additive_widths=[8] must be two numbers"),
        ("params.sides=[28,30]", "must be multiples of the patch, 7"),
        ("params.sides=[14]", "params.sides=[14] must lie between 18 and"),
    ],
)
def test_bad_input_is_one_sentence(override: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        cell_of(override)
    assert words in str(caught.value)


def test_glyphs_that_one_window_may_touch_are_refused() -> None:
    """Two cells apart, a window of 9 pixels can touch both jittered glyphs, and the ceiling would be no ceiling."""
    with pytest.raises(BadInput, match="apart=2 must keep the glyphs further apart at jitter=1"):
        cell_of("params.apart=2", "params.jitter=1")
    assert cell_of("params.apart=2", "params.jitter=0").params.apart == 2
    assert widest_window(2, 1) < table.WINDOW <= min(widest_window(2, 0), widest_window(3, 1))


# --- the sum over windows ---


def test_changed_places_share_no_window_and_all_four_images_are_there() -> None:
    stream = torch.Generator().manual_seed(0)
    rows = set()
    for _ in range(300):
        plain, first, second, both = measure.four_images(28, stream)[:, 0]
        one, two = (first != plain).nonzero(), (second != plain).nonzero()
        assert len(one) == len(two) == 25
        assert int(two[:, 0].min()) - int(one[:, 0].max()) >= 9  # nine rows hold both only if the gap is below 8
        assert torch.equal(both, torch.where(first != plain, first, second))
        rows |= {int(one[:, 0].min()), int(two[:, 0].max())}
    assert {0, 27} <= rows


def test_the_field_of_the_additive_cnn_is_nine_pixels() -> None:
    """Where a logit of one place may change: derivatives by all pixels."""
    net = seeded_model(0, "cnn_additive", (1, 28, 28), 2, widths=(16, 32)).double().eval()
    image = torch.randn(1, 1, 28, 28, dtype=torch.float64, requires_grad=True)
    net.windows(image)[0, :, 7, 7].sum().backward()  # type: ignore[operator]
    assert image.grad is not None
    touched = image.grad[0, 0].nonzero()
    assert (touched.max(0).values - touched.min(0).values + 1).tolist() == [table.WINDOW] * 2


def test_the_error_is_that_of_four_logits_by_hand() -> None:
    quad = measure.four_images(28, torch.Generator().manual_seed(1))
    net = seeded_model(0, "mlp", (1, 28, 28), 2).double()
    with torch.no_grad():
        logits = [[float(v) for v in net(image[None])[0]] for image in quad]
        found = measure.additivity_error(net, quad)
    worst = max(abs(logits[3][k] - logits[1][k] - logits[2][k] + logits[0][k]) for k in range(2))
    assert found == pytest.approx(worst / max(abs(v) for four in logits for v in four) * 2**52)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("relation")
    assert entry.main([f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={folder}"]) == 0
    return folder


def test_the_additive_cnn_is_a_sum_and_nothing_else_is(root: Path) -> None:
    made = harness.built(NAME, root)
    found = {(r["quantity"], r["model"]): r for r in made.lines if "additivity" in r["quantity"]}
    assert found["additivity_error_eps", "cnn_additive"]["estimate"] <= 32
    assert found["additivity_error_eps", "cnn_additive"]["n"] == 60
    breakers = {model for quantity, model in found if quantity == "additivity_breakage_eps"}
    assert breakers == {"cnn_additive", "cnn", "vit_patch7", "mlp"}
    assert harness.verdicts(made)["relation-additive-anchor"] == {"REPRODUCED"}


def test_the_same_bytes_in_another_run(root: Path, tmp_path: Path) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={tmp_path}", "hydra.mode=RUN"]
    assert entry.main([*command, "params.model=cnn_additive", "params.n_train=100"]) == 0
    (again,) = (tmp_path / "runs" / NAME).glob("*/rows.csv")
    assert again.read_bytes() == (root / "runs" / NAME / again.parent.name / "rows.csv").read_bytes()


# --- what is made of rows ---

# Accuracies by model, size and seed 0, 1, 2; q 0.85, jitter 0, aligned unless said.
SIZES = (316, 1000, 3162)
ACCURACY = {
    ("cnn_additive", "aligned"): ((0.78, 0.79, 0.80), (0.82, 0.82, 0.83), (0.84, 0.85, 0.845)),
    ("cnn", "aligned"): ((0.60, 0.61, 0.62), (0.70, 0.72, 0.71), (0.80, 0.81, 0.80)),
    ("mlp", "aligned"): ((0.50, 0.51, 0.50), (0.50, 0.51, 0.52), (0.52, 0.52, 0.55)),
    ("vit_patch7", "aligned"): ((0.68, 0.70, 0.69), (0.96, 0.97, 0.98), (0.99, 0.99, 1.00)),
    ("vit_patch7", "shifted"): ((0.60, 0.62, 0.61), (0.75, 0.74, 0.76), (0.80, 0.812, 0.795)),
}


def recorded(edit: Callable[[dict[str, Any]], None] = lambda line: None, seeds: int = 3) -> report.Group:
    """A group of estimates as `gather` makes them, without training anything; further seeds are like the first."""
    cue = 0.85
    lines = []
    for (model, grid), by_size in ACCURACY.items():
        for n, values in zip(SIZES, by_size, strict=True):
            line: dict[str, Any] = dict.fromkeys(table.AXES, "") | {
                **{"model": model, "grid": grid, "cue": f"{cue:g}", "jitter": "0", "n_train": str(n)},
                **{"quantity": "accuracy", "statistic": "mean", "unit": "", "n_failed": 0, "stale": False},
                **{"by_seed": dict(zip("01234", (values + values)[:seeds], strict=False)), "theory": math.nan},
            }
            edit(line)
            found = tuple(line["by_seed"].values())
            line |= {
                "seeds": found,
                "n": len(found),
                "estimate": sum(found) / len(found),
                "sd": statistics.stdev(found),
            }
            half = 4.302652729696142 * line["sd"] / math.sqrt(3)
            lines.append(line | {"ci_low": line["estimate"] - half, "ci_high": line["estimate"] + half})
    levels = {"cue_accuracy": cue, "accuracy_bound": accuracy_bound(cue, 6)}
    levels["cue_accuracy_se"] = math.sqrt(cue * (1 - cue) / 4000)
    for quantity, theory in levels.items():
        empty: dict[str, Any] = {
            "n": 0,
            "n_failed": 0,
            "estimate": math.nan,
            "sd": math.nan,
            "seeds": (),
            "by_seed": {},
        }
        axes = dict.fromkeys(table.AXES, "") | {"cue": f"{cue:g}", "types": "6"}
        lines.append({**axes, **empty, "quantity": quantity, "statistic": "exact", "unit": "", "theory": theory})
    return report.Group("", "here", "cpu", own=True, stale=False, lines=lines)


def derived(group: report.Group) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    rows = reading.derive(group.frame(), report.published_lines(NAME))
    return {(str(r["quantity"]), str(r["model"]), str(r["grid"]), str(r.get("n_train", ""))): r for r in rows}


def test_differences_are_paired_by_seed_with_t_intervals() -> None:
    found = derived(recorded())
    a, b = ACCURACY["vit_patch7", "aligned"][0], ACCURACY["cnn_additive", "aligned"][0]
    ours = found["accuracy_difference", "vit_patch7 - cnn_additive", "aligned", "316"]
    expected = reference.ttest_rel(a, b).confidence_interval(0.95)
    assert (ours["ci_low"], ours["ci_high"]) == (pytest.approx(expected.low), pytest.approx(expected.high))
    turned = found["accuracy_difference", "cnn_additive - vit_patch7", "aligned", "316"]
    assert turned["seeds"] == tuple(-v for v in ours["seeds"])
    share = found["seeds_above_0", "vit_patch7 - cnn_additive", "aligned", "316"]
    assert (share["estimate"], share["n"]) == (0, 3)
    assert share["ci_high"] == pytest.approx(1 - 0.025 ** (1 / 3))
    gain = found["accuracy_difference", "vit_patch7", "aligned - shifted", "1000"]
    assert gain["estimate"] == pytest.approx(0.97 - 0.75)
    # A shifted ViT is held against the CNN that sees the images as they are.
    shifted = found["accuracy_difference", "vit_patch7 - cnn", "shifted", "3162"]
    assert shifted["estimate"] == pytest.approx((0.80 + 0.812 + 0.795 - 0.80 - 0.81 - 0.80) / 3)


def test_missing_seeds_are_left_out_of_pairs() -> None:
    def drop(line: dict[str, Any]) -> None:
        if line["model"] == "cnn":
            del line["by_seed"]["1"]

    ours = derived(recorded(drop))["accuracy_difference", "vit_patch7 - cnn", "aligned", "1000"]
    assert ours["seeds"] == pytest.approx((0.96 - 0.70, 0.98 - 0.71))


def test_the_crossover_is_interpolated_in_log_n_and_its_interval_is_that_of_resampled_seeds() -> None:
    found = derived(recorded())
    ours = found["crossover_n_train", "vit_patch7 - cnn_additive", "aligned", ""]
    before, after = (
        [
            v - c
            for v, c in zip(ACCURACY["vit_patch7", "aligned"][i], ACCURACY["cnn_additive", "aligned"][i], strict=True)
        ]
        for i in (0, 1)
    )

    def at(chosen: tuple[int, ...]) -> float:
        low, high = (sum(values[i] for i in chosen) for values in (before, after))
        return 316 * (1000 / 316) ** (-low / (high - low))

    assert ours["estimate"] == pytest.approx(at((0, 1, 2)))
    every = sorted(at(chosen) for chosen in itertools.product(range(3), repeat=3))
    # 27 equally likely resamples, of which the outermost 2.5 % are the least and the largest one.
    assert (ours["ci_low"], ours["ci_high"]) == (pytest.approx(every[0]), pytest.approx(every[-1]))
    assert found["crossover_in_resamples", "vit_patch7 - cnn_additive", "aligned", ""]["estimate"] == 1
    assert ("crossover_n_train", "vit_patch7 - cnn_additive", "shifted", "") not in found


def curve(*leads: tuple[float, float, float]) -> reading.Curve:
    return {n: dict(zip("012", values, strict=True)) for n, values in zip(SIZES, leads, strict=True)}


BELOW, NOISE, ABOVE = (-0.10, -0.11, -0.10), (-0.05, 0.06, 0.01), (0.20, 0.21, 0.20)


@pytest.mark.parametrize(
    ("leads", "word"),
    [
        ((BELOW, NOISE, ABOVE), "reverses"),
        ((BELOW, ABOVE, NOISE), "reverses"),
        ((NOISE, ABOVE, ABOVE), "ahead"),
        ((NOISE, NOISE, BELOW), "behind"),
        ((BELOW, BELOW, NOISE), "open"),
        ((NOISE, NOISE, NOISE), "open"),
        ((ABOVE, NOISE, BELOW), "open"),
        ((BELOW, ABOVE, BELOW), "open"),
    ],
)
def test_none_up_to_n_only_if_the_interval_there_excludes_0(leads: tuple[Any, ...], word: str) -> None:
    assert reading.order(curve(*leads)).word == word


def test_a_crossing_is_the_last_one_and_only_counts_if_the_lead_stays() -> None:
    up = (0.1, 0.1, 0.1)
    down = (-0.1, -0.1, -0.1)
    assert reading.crossing(curve(down, up, up)) == pytest.approx(math.sqrt(316 * 1000))
    assert reading.crossing(curve(up, down, up)) == pytest.approx(math.sqrt(1000 * 3162))
    assert math.isnan(reading.crossing(curve(down, up, down)))
    assert math.isnan(reading.crossing(curve(up, up, up)))


def test_the_answer_says_where_the_order_reverses_and_where_not() -> None:
    words = reading.answer(recorded().frame())
    summary, additive, full = re.split("ViT less (?:additive )?CNN", words)
    assert summary.startswith("In some settings: from 316 to 3162 training images the ViT overtakes the additive CNN")
    assert "in 1 of 2 and the CNN in 0 of" in summary and "settings (95 % intervals); it leads from the" in summary
    assert "the order reverses at q 0.85, jitter 0, aligned (-0.100" in additive
    assert "no reversal, at q 0.85, jitter 0, shifted" in additive
    assert "without ever having been behind at q 0.85, jitter 0, aligned" in full
    assert "the ViT reaches 0.970" in words
    assert "-0.005 at most" in words
    assert "can exceed 0.9." in words


def test_another_order_changes_the_answer() -> None:
    def swap(line: dict[str, Any]) -> None:
        if line["model"] == "vit_patch7" and line["grid"] == "aligned":
            line["by_seed"] = {seed: value - 0.3 for seed, value in line["by_seed"].items()}

    words = reading.answer(recorded(swap).frame())
    assert "reverses" not in words.replace("no reversal", "") and words.startswith("No: from 316 to 3162 training")
    assert "overtakes the additive CNN in 0 of 2" in words
    assert "no reversal, at q 0.85, jitter 0, aligned" in words


def test_an_additive_cnn_above_the_cue_is_said_and_above_the_bound_is_a_problem() -> None:
    def lift(by: float) -> Callable[[dict[str, Any]], None]:
        def edit(line: dict[str, Any]) -> None:
            if line["model"] == "cnn_additive":
                line["by_seed"] = {seed: value + by for seed, value in line["by_seed"].items()}

        return edit

    assert reading.controls(recorded().frame()) == []
    # Three standard errors of 3 x 4000 images are 0.0098: the largest size alone is above the cue by more.
    raised = recorded(lift(0.02)).frame()
    assert "standard errors at 1 of 3 points" in reading.answer(raised)
    assert reading.controls(raised) == []
    (problem,) = reading.controls(recorded(lift(0.08)).frame())
    assert "3162 images: accuracy 0.9250 is above 0.9000, which no sum over local windows can exceed" in problem


def test_what_training_aims_at_and_what_is_proven_are_told_apart() -> None:
    rows = {r.quantity: r.value for r in table.theory(cell_of("params.cue=0.7", "params.n_test=4000"))}
    assert rows["cue_accuracy"] == cue_accuracy(0.7) == 0.7
    assert rows["accuracy_bound"] == accuracy_bound(0.7, 6) > 0.7
    assert rows["cue_accuracy_se"] == pytest.approx(math.sqrt(0.7 * 0.3 / 4000))
    assert rows["least_additive_loss"] == pytest.approx(-0.7 * math.log(0.7) - 0.3 * math.log(0.3))


# --- planted faults in recorded rows ---


def test_a_breaker_that_breaks_nothing_is_a_problem(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "additivity_breakage_eps" and row["model"] == "vit_patch7":
            row["value"] = "3.0"

    problems = harness.change(NAME, root, tmp_path / "r", edit).problems
    assert any("vit_patch7 is 3 eps from a sum over windows: what must break it did not" in p for p in problems)


def test_a_sum_that_is_none_is_no_longer_reproduced(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "additivity_error_eps":
            row["value"] = "5e6"

    made = harness.change(NAME, root, tmp_path / "r", edit)
    assert harness.verdicts(made)["relation-additive-anchor"] == {"SOURCE_ERROR"}
    assert any("at most 32 is round-off" in p for p in made.problems)


@pytest.mark.parametrize("where", ["chosen", "other", "edge"])
def test_a_grid_that_disagrees_with_the_presets_is_a_problem(where: str, root: Path, tmp_path: Path) -> None:
    about = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")
    chosen = about["presets"]["aligned"]["mlp"]
    pairs = {
        "chosen": [(chosen["learning_rate"], chosen["weight_decay"]), (chosen["learning_rate"], 0.9)],
        "other": [(chosen["learning_rate"], 0.9), (chosen["learning_rate"], chosen["weight_decay"])],
        "edge": [(chosen["learning_rate"], chosen["weight_decay"]), (chosen["learning_rate"] / 2, 0.9)],
    }
    seen = iter(pairs[where])
    rates: dict[tuple[str, str], tuple[float, float]] = {}

    def edit(row: dict[str, str]) -> None:
        if row["learning_rate"]:
            old = (row["learning_rate"], row["weight_decay"])
            rank = len(rates)
            rates.setdefault(old, next(seen) if old not in rates else (0.0, 0.0))
            row["learning_rate"], row["weight_decay"] = map(str, rates[old])
            if row["quantity"] == "validation_accuracy":
                row["value"] = "0.9" if list(rates).index(old) == 0 else "0.6"
            assert rank <= 2

    problems = harness.change(NAME, root, tmp_path / "r", edit).problems
    told = {
        "chosen": [],
        "other": ["the presets have learning rate"],
        "edge": ["is at the edge of those tried"],
    }[where]
    assert len(problems) == len(told)
    assert all(words in problem for words, problem in zip(told, problems, strict=True))


def test_a_diverged_seed_is_counted(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "accuracy" and row["model"] == "cnn" and row["source"] == "measured":
            row["status"] = "failed: diverged"

    made = harness.change(NAME, root, tmp_path / "r", edit)
    assert any("CNN, aligned, q 0.85, jitter 0, 100 images: 1 seeds diverged" in p for p in made.problems)
    (line,) = (r for r in made.lines if r["quantity"] == "accuracy" and r["model"] == "cnn")
    assert (line["n"], line["n_failed"]) == (0, 1)


@pytest.mark.parametrize("seeds", [3, 5])
def test_five_seeds_that_agree_give_a_trend_and_three_do_not(seeds: int) -> None:
    group = recorded(seeds=seeds)
    printed = report.published_lines(NAME)
    report._derive(group, reading, printed)
    judged = [r for r in report._judged_lines(group, reading, printed) if r.get("claim") and r["n"]]
    found = {(r["claim"], r["model"], r["grid"]): r["verdict"] for r in judged}
    few, many = "relation-conv-on-few", "relation-attention-on-many"
    expected = {
        (few, "cnn_additive - vit_patch7", "aligned"): "TREND_HOLDS",
        (few, "cnn - vit_patch7", "aligned"): "TREND_FAILS",
        (few, "cnn_additive - vit_patch7", "shifted"): "TREND_HOLDS",
        (few, "cnn - vit_patch7", "shifted"): "INCONCLUSIVE",
        (many, "vit_patch7 - cnn_additive", "aligned"): "TREND_HOLDS",
        (many, "vit_patch7 - cnn", "aligned"): "TREND_HOLDS",
        (many, "vit_patch7 - cnn_additive", "shifted"): "TREND_FAILS",
        (many, "vit_patch7 - cnn", "shifted"): "INCONCLUSIVE",
    }
    assert found == {place: word if seeds == 5 else "INCONCLUSIVE" for place, word in expected.items()}


def test_charts_show_the_models_and_both_leads() -> None:
    group = recorded()
    report._derive(group, reading, [])
    drawn = reading.charts(group.frame())
    titles = [chart["title"] for chart in drawn]
    assert titles == [
        "accuracy, cue right in 0.85, jitter 0",
        "lead of the ViT over the additive CNN",
        "lead of the ViT over the CNN",
    ]


def test_two_strengths_of_the_cue_make_a_map_of_who_leads() -> None:
    group = recorded()
    report._derive(group, reading, [])
    frame = group.frame()
    both = pd.concat([frame, frame.assign(cue=frame.cue.replace({"0.85": "0.5"}))])
    drawn = [chart for chart in reading.charts(both) if not isinstance(chart["title"], str)]
    assert [chart["title"]["text"] for chart in drawn] == [
        "lead of the ViT over the additive CNN, jitter 0",
        "lead of the ViT over the CNN, jitter 0",
    ]
    squares = drawn[0]["data"]["values"]
    assert {(square["q"], square["n_train"]) for square in squares} == {
        (f"q {cue}", str(n)) for cue in ("0.5", "0.85") for n in SIZES
    }
