"""predecessor_global_context: what is trained and looked at, the anchors, and what is made of the rows."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats as reference

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput, load_yaml
from attnrepro.data.same_different import glyphs
from attnrepro.data.streams import generator
from attnrepro.nn.block_cnn import BLOCKS, seeded_block_cnn
from attnrepro.tables.predecessor_global_context import measure, reading, table

from . import harness

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = table.NAME


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


# --- what is trained ---


def test_images_labels_and_starts_are_the_same_for_every_block_and_differ_by_seed() -> None:
    one, other = (measure.build(cell_of(f"params.block={block}", "seeds=[3]"))[0].module for block in ("none", "swin"))
    assert torch.equal(one.images, other.images)  # type: ignore[arg-type]
    device = torch.device("cpu")
    first, second = (module.draw(10, module._stream_of(device)) for module in (one, other))  # type: ignore[operator]
    assert torch.equal(first[0], second[0])
    assert torch.equal(one.model.readout[0].weight, other.model.readout[0].weight)  # type: ignore[index, union-attr]
    (another,) = measure.build(cell_of("params.block=none", "seeds=[4]"))
    assert not torch.equal(one.images, another.module.images)  # type: ignore[arg-type]


def test_training_validation_and_test_images_are_drawn_apart() -> None:
    p = cell_of("params.n_test=50", "params.n_validation=50").params
    tuned = cell_of("params.study=tuning", "params.n_test=50", "params.n_validation=50").params
    test, validation = (measure.Curve(q, 0, 0.01) for q in (p, tuned))
    train, _ = test.draw(50, test._stream_of(torch.device("cpu")))
    parts = [{image.numpy().tobytes() for image in images} for images in (test.images, validation.images, train)]
    assert all(len(part) == 50 for part in parts)
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_every_glyph_has_places_of_its_own_and_no_window_sees_two() -> None:
    p = cell_of("params.noise=0").params
    images, labels = measure.draw_of(p)(200, generator(0, "t"))
    assert images.shape == (200, 1, 32, 32)
    shapes = glyphs(3)
    for image, label in zip(images[:, 0], labels.tolist(), strict=True):
        seen = [
            (row, column, kind)
            for row, column in itertools.product(range(1, 28, 8), repeat=2)
            for kind in range(3)
            if torch.equal(image[row : row + 5, column : column + 5], shapes[kind])
        ]
        assert len(seen) == 2
        assert (seen[0][2] == seen[1][2]) == bool(label)
        for middle in itertools.product(range(0, 32, 4), repeat=2):
            window = [range(max(0, at - 4), min(32, at + 5)) for at in middle]
            touched = [
                any(r in window[0] for r in range(row, row + 5))
                and any(c in window[1] for c in range(column, column + 5))
                for row, column, _ in seen
            ]
            assert not all(touched)


def test_budgets_are_multiples_and_smoke_cuts_them_short() -> None:
    p = cell_of("params.budgets=3", "params.most_updates=null").params
    assert (p.updates(), p.look_every()) == (600, 20)
    assert cell_of("params.budgets=3").params.updates() == 10


def test_reported_seeds_choose_nothing_and_every_arm_of_scale_full_is_tuned_at_the_budget_it_is_judged_at() -> None:
    about = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")
    grids = about["scales"]["full"]["also"]
    tuning = [grid for grid in grids if grid.get("params.study") == "tuning"]
    assert {grid["seeds"] for grid in tuning} == {"[100,101]"}

    def arms(chosen: list[dict[str, str]]) -> set[tuple[str, str, str, str]]:
        return {
            (g.get("params.task", "same_different"), g.get("params.readout", "linear"), b, g.get("params.budgets", "1"))
            for g in chosen
            for b in g.get("params.block", "").split(",")
            if b
        }

    main = {"params.block": about["scales"]["full"]["blocks"]}
    trained = arms([main, *(grid for grid in grids if "params.study" not in grid)])
    untunable = {arm for arm in trained if reading._untunable(arm[:3])}
    assert untunable == {
        ("same_different", "linear", "none", "1"),
        ("far_cue", "linear", "none", "1"),
        ("far_cue", "linear", "global_context", "1"),
    }
    # Trained on for three budgets, the control is judged at one, as what it is compared with.
    control = ("same_different", "linear", "global_average")
    assert (*control, "3") in trained
    assert arms(tuning) == trained - untunable - {(*control, "3")} | {(*control, "1")}
    rates = reading.rates()
    assert all(rates[task][readout][block] > 0 for task, readout, block, _ in trained)
    assert set(table.BLOCKS) == {block for _, _, block, _ in trained} <= set(BLOCKS)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("params.block=capsule", "there is no preset capsule"),
        ("params.readout=hidden", "hidden"),
        ("params.every=15", "every=15 must be a multiple of 10 that divides budget=200"),
        ("params.learning_rate=[0.1,0.2]", "must be one value unless study=tuning"),
        ("params.sides=[33]", "must be multiples of 8"),
        ("params.noise=-1", "params.noise=-1 must lie between 0 and 100"),
    ],
)
def test_bad_input_is_one_sentence(override: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        cell_of(override)
    assert words in str(caught.value)


# --- the anchors ---


def test_changes_are_far_enough_apart_for_every_window() -> None:
    stream = torch.Generator().manual_seed(0)
    for _ in range(200):
        plain, first, second, both = measure.four_images(32, stream)[:, 0]
        one, two = (first != plain).nonzero(), (second != plain).nonzero()
        assert len(one) == len(two) == 25
        assert int(two[:, 0].min()) - int(one[:, 0].max()) > 9
        assert torch.equal(both, torch.where(first != plain, first, second))


def test_errors_are_those_of_logits_by_hand() -> None:
    quad = measure.four_images(32, torch.Generator().manual_seed(1))
    net = measure.opened(seeded_block_cnn(0, 1, 2, block="multi_head"), 0).eval()
    with torch.no_grad():
        logits = [[float(v) for v in net(image[None])[0]] for image in quad]
    worst = max(abs(logits[3][k] - logits[1][k] - logits[2][k] + logits[0][k]) for k in range(2))
    largest = max(abs(v) for four in logits for v in four)
    assert measure.additivity_error(net, quad) == pytest.approx(worst / largest * 2**52, rel=1e-6)

    places = measure.opened(seeded_block_cnn(0, 1, 2, block="multi_head", readout="places"), 0).eval()
    with torch.no_grad():
        before, after = places(quad[:1])[0], places(quad[1:2])[0]
    last = int((quad[0, 0] != quad[1, 0]).nonzero()[:, 0].max())
    below = [r for r in range(8) if 4 * r - 4 > last]
    moved = [
        abs(float((after[k, r, c] - after[k, below[0], 0]) - (before[k, r, c] - before[k, below[0], 0])))
        for k in range(2)
        for r in below
        for c in range(8)
    ]
    scale = max(float(before.abs().max()), float(after.abs().max()))
    assert measure.contrast_error(places, quad) == pytest.approx(max(moved) / scale * 2**52, rel=1e-6)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("context")
    assert entry.main([f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={folder}"]) == 0
    return folder


def test_local_sums_and_vectors_for_all_hold_and_everything_else_breaks_them(root: Path) -> None:
    made = harness.built(NAME, root)
    found = {(r["quantity"], r["block"]): r["estimate"] for r in made.lines if r["quantity"].endswith("_eps")}
    assert {block for quantity, block in found if quantity == "additivity_error_eps"} == {"none"}
    alike = {block for quantity, block in found if quantity == "contrast_error_eps"}
    assert alike == {"none", "global_average", "global_context", "relation"}
    assert all(value <= 32 for (quantity, _), value in found.items() if "error" in quantity)
    broken = {key: value for key, value in found.items() if "breakage" in key[0]}
    assert len(broken) == 9 + 6
    assert all(value > 1e6 for value in broken.values())


def test_the_same_bytes_in_another_run(root: Path, tmp_path: Path) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={tmp_path}", "hydra.mode=RUN"]
    assert entry.main([*command, "params.block=global_context"]) == 0
    (again,) = (tmp_path / "runs" / NAME).glob("*/rows.csv")
    assert again.read_bytes() == (root / "runs" / NAME / again.parent.name / "rows.csv").read_bytes()


# --- what is made of rows ---

UPDATES = (0, 20, 200)
ACCURACY: dict[tuple[str, str, str], dict[int, tuple[float, ...]]] = {
    ("same_different", "linear", "none"): {200: (0.500, 0.523, 0.472, 0.489, 0.514)},
    ("same_different", "linear", "global_context"): {20: (0.5, 0.8, 0.6, 0.5, 0.9), 200: (0.99, 1.0, 0.98, 0.97, 0.99)},
    ("same_different", "linear", "non_local"): {200: (0.99, 0.52, 0.95, 0.96, 0.97)},
    ("same_different", "linear", "multi_head"): {200: (1.0, 1.0, 0.99, 1.0, 0.98)},
    ("same_different", "linear", "global_average"): {
        200: (0.6, 0.55, 0.7, 0.5, 0.6),
        400: (0.8, 0.8, 0.7, 0.8, 0.79),
        600: (0.85, 0.9, 0.85, 0.84, 0.83),
    },
    ("far_cue", "linear", "none"): {200: (0.50, 0.51, 0.49, 0.5, 0.5)},
    ("far_cue", "linear", "global_context"): {200: (0.5, 0.52, 0.51, 0.5, 0.49)},
    ("far_cue", "linear", "non_local"): {200: (1.0, 0.99, 1.0, 1.0, 0.98)},
    ("far_cue", "hidden", "global_context"): {200: (0.99, 0.98, 1.0, 1.0, 0.97)},
}


def row(arm: tuple[str, str, str], quantity: str, values: dict[str, float], **more: Any) -> dict[str, Any]:
    line: dict[str, Any] = dict.fromkeys(table.AXES, "") | dict(zip(table.AXES, arm, strict=False))
    found = tuple(values.values())
    line |= {"quantity": quantity, "statistic": "mean", "unit": "", "n_failed": 0, "stale": False, "theory": math.nan}
    line |= {
        "by_seed": values,
        "seeds": found,
        "n": len(found),
        "estimate": sum(found) / len(found) if found else math.nan,
    }
    sd = statistics.stdev(found) if len(found) > 1 else math.nan
    return line | {"sd": sd, "ci_low": math.nan, "ci_high": math.nan} | more


def recorded(edit: Callable[[dict[str, Any]], None] = lambda line: None) -> report.Group:
    """A group of estimates as `gather` makes them, without training anything."""
    lines = []
    for arm, by_updates in ACCURACY.items():
        for updates, values in by_updates.items():
            lines.append(row(arm, "accuracy", dict(zip("01234", values, strict=True)), updates=str(updates)))
        if arm[:2] != ("same_different", "hidden"):
            loss = {seed: 0.694 + 0.001 * i for i, seed in enumerate("01234")}
            lines.append(row(arm, "loss", loss, updates="200", unit="nat"))
    off = {"0": 20.0, "2": 40.0, "3": 60.0, "4": 60.0}
    lines.append(row(("same_different", "linear", "non_local"), "updates_to_take_off", off, n_failed=1))
    late = dict(zip("01234", (60.0, 80.0, 60.0, 100.0, 80.0), strict=True))
    lines.append(row(("same_different", "linear", "global_average"), "updates_to_take_off", late))
    for task in table.TASKS:
        for quantity, value in (("least_local_loss", math.log(2)), ("local_accuracy_bound", 0.75)):
            lines.append(row((task, "", ""), quantity, {}, statistic="exact", theory=value))
    for line in lines:
        edit(line)
    return report.Group("", "here", "cpu", own=True, stale=False, lines=lines)


def derived(group: report.Group) -> dict[tuple[str, ...], dict[str, Any]]:
    rows = reading.derive(group.frame(), report.published_lines(NAME))
    names = ("quantity", "statistic", "task", "readout", "block", "updates")
    return {tuple(str(r[name]) for name in names): r for r in rows}


def test_shares_leads_and_medians_are_those_of_the_seeds() -> None:
    found = derived(recorded())
    share = found["taken_off", "share", "same_different", "linear", "non_local", "200"]
    assert (share["estimate"], share["n"]) == (0.8, 5)
    exact = reference.binomtest(4, 5).proportion_ci(0.95, "exact")
    assert (share["ci_low"], share["ci_high"]) == (pytest.approx(exact.low), pytest.approx(exact.high))
    assert found["accuracy", "median", "same_different", "linear", "non_local", "200"]["estimate"] == 0.96
    lead = found["accuracy_lead", "paired_difference", "same_different", "linear", "non_local - none", "200"]
    expected = reference.ttest_rel(
        ACCURACY["same_different", "linear", "non_local"][200], ACCURACY["same_different", "linear", "none"][200]
    ).confidence_interval(0.95)
    assert (lead["ci_low"], lead["ci_high"]) == (pytest.approx(expected.low), pytest.approx(expected.high))
    over = found[
        "accuracy_lead", "paired_difference", "same_different", "linear", "global_context - global_average", "200"
    ]
    assert over["estimate"] == pytest.approx((0.99 + 1.0 + 0.98 + 0.97 + 0.99 - 0.6 - 0.55 - 0.7 - 0.5 - 0.6) / 5)
    hidden = found[
        "accuracy_lead", "paired_difference", "far_cue", "hidden - linear", "global_context - global_context", "200"
    ]
    assert hidden["seeds"] == pytest.approx((0.49, 0.46, 0.49, 0.5, 0.48))


def test_what_never_took_off_is_counted_as_later_than_all() -> None:
    def nobody(line: dict[str, Any]) -> None:
        if line["quantity"] == "updates_to_take_off":
            line |= {"seeds": (20.0,), "by_seed": {"0": 20.0}, "n": 1, "n_failed": 4}

    at = ("updates_to_take_off", "median", "same_different", "linear", "non_local", "")
    assert derived(recorded())[at]["estimate"] == 60
    assert at not in derived(recorded(nobody))


def test_the_control_is_late_by_the_updates_of_seeds_where_both_took_off() -> None:
    at = ("take_off_delay", "paired_difference", "same_different", "linear", "global_average - non_local", "")
    line = derived(recorded())[at]
    assert line["seeds"] == (40.0, 20.0, 40.0, 20.0)
    assert (line["n"], line["n_failed"]) == (4, 1)


def test_a_diverged_seed_counts_as_one_that_did_not_take_off_and_is_said() -> None:
    def diverge(line: dict[str, Any]) -> None:
        if line["block"] == "multi_head" and line["quantity"] == "accuracy":
            line["by_seed"] = {seed: v for seed, v in line["by_seed"].items() if seed != "0"}
            line["n_failed"] = 1

    group = recorded(diverge)
    share = derived(group)["taken_off", "share", "same_different", "linear", "multi_head", "200"]
    assert (share["estimate"], share["n"]) == (0.8, 5)
    assert "multi-head attention on same_different: 1 seeds diverged" in reading.controls(group.frame())


def planted(arm: tuple[str, str, str], updates: str, by: float, quantity: str = "accuracy") -> list[str]:
    def edit(line: dict[str, Any]) -> None:
        if tuple(line[name] for name in ("task", "readout", "block", "updates", "quantity")) == (
            *arm,
            updates,
            quantity,
        ):
            values = {seed: value + by for seed, value in line["by_seed"].items()}
            line |= row(arm, quantity, values, updates=updates)

    return reading.controls(recorded(edit).frame())


def test_planted_faults_raise_a_control_each() -> None:
    assert reading.controls(recorded().frame()) == []
    (low,) = planted(("same_different", "linear", "global_context"), "200", -0.3)
    assert "GC on same_different: median accuracy 0.690 after 200 updates, not 0.9" in low
    (above,) = planted(("same_different", "linear", "none"), "200", 0.4)
    assert "no block on same_different after 200 updates: accuracy 0.8996 is above 0.7500" in above
    (dense,) = planted(("far_cue", "linear", "global_context"), "200", 0.4)
    assert "GC on far_cue after 200 updates: accuracy" in dense
    (below,) = planted(("far_cue", "linear", "none"), "200", -0.1, "loss")
    assert "loss 0.5960 is below 0.6931" in below
    # Blocks that may be right are not held against the bound.
    assert planted(("far_cue", "hidden", "global_context"), "200", 0.0) == []


def test_a_control_that_neither_gets_there_nor_rises_is_a_problem() -> None:
    arm = ("same_different", "linear", "global_average")
    (problem,) = planted(arm, "600", -0.1)
    assert "global average on same_different: median accuracy 0.750 after 600 updates, and no longer rising" in problem
    assert planted(arm, "400", -0.3) == []


def tuned(heights: dict[float, float], end: float = 0.99) -> list[str]:
    group = recorded()
    lines = list(group.lines)
    for arm in ACCURACY:
        rate = float(reading.rates()[arm[0]][arm[1]][arm[2]])
        for factor, height in ({0.5: 0.6, 1.0: 0.7, 2.0: 0.65} if arm[2] != "non_local" else heights).items():
            at = {"learning_rate": str(rate * factor)}
            lines.append(row(arm, "validation_height", {"100": height, "101": height}, **at))
            lines.append(row(arm, "validation_accuracy", {"100": end, "101": 0.5}, **at))
    return reading.controls(report.Group("", "here", "cpu", own=True, stale=False, lines=lines).frame())


def test_rates_must_be_the_best_inside_the_grid_unless_nothing_took_off() -> None:
    assert tuned({0.5: 0.6, 1.0: 0.7, 2.0: 0.65}) == []
    assert any("the best on validation images" in p for p in tuned({0.5: 0.8, 1.0: 0.7, 0.25: 0.65}))
    assert any("at the edge of those tried" in p for p in tuned({1.0: 0.7, 2.0: 0.65}))
    assert tuned({1.0: 0.7, 2.0: 0.8}, end=0.7) == []


def test_an_arm_without_a_grid_beside_others_with_one_is_a_problem() -> None:
    group = recorded()
    arm = ("same_different", "linear", "multi_head")
    lines = [*group.lines]
    for rate in (0.5, 1.0, 2.0):
        at = {"learning_rate": str(rate * float(reading.rates()[arm[0]][arm[1]][arm[2]]))}
        lines.append(row(arm, "validation_height", {"100": 0.9 - abs(rate - 1)}, **at))
        lines.append(row(arm, "validation_accuracy", {"100": 0.95}, **at))
    problems = reading.controls(report.Group("", "here", "cpu", own=True, stale=False, lines=lines).frame())
    assert "Non-local on same_different: its rate was never chosen, those of others were" in problems
    assert not any("no block" in problem for problem in problems)


def test_a_breaker_that_breaks_nothing_and_a_sum_that_is_none_are_problems(root: Path, tmp_path: Path) -> None:
    def edit(line: dict[str, str]) -> None:
        if line["quantity"] == "contrast_breakage_eps" and line["block"] == "non_local":
            line["value"] = "3.0"
        if line["quantity"] == "additivity_error_eps":
            line["value"] = "5e6"

    made = harness.change(NAME, root, tmp_path / "r", edit)
    assert any("non_local: contrast_breakage_eps is 3: what must break it did not" in p for p in made.problems)
    assert any("none: additivity_error_eps is 5e+06: at most 32 is round-off" in p for p in made.problems)
    assert harness.verdicts(made)["context-local-anchor"] == {"SOURCE_ERROR"}


def test_verdicts_follow_the_seeds() -> None:
    group = recorded()
    printed = report.published_lines(NAME)
    report._derive(group, reading, printed)
    judged = [r for r in report._judged_lines(group, reading, printed) if r.get("claim") and r["n"]]
    found = {(r["claim"], r["block"]): r["verdict"] for r in judged}
    assert found["context-any-helps", "global_context - none"] == "TREND_HOLDS"
    assert found["context-attention-over-mean", "global_context - global_average"] == "TREND_HOLDS"
    assert found["context-place-by-place", "non_local - global_context"] == "TREND_HOLDS"
    assert found["context-place-by-place", "global_context - global_context"] == "TREND_HOLDS"


def test_a_plain_mean_that_gets_there_within_the_budget_is_said_not_to_need_a_longer_one() -> None:
    def quick(line: dict[str, Any]) -> None:
        if (line["block"], line["quantity"], line["updates"]) == ("global_average", "accuracy", "200"):
            line["by_seed"] = dict(zip("01234", (1.0, 0.8, 0.99, 1.0, 0.98), strict=True))

    words = reading.answer(recorded(quick).frame())
    assert "the plain mean does not need the longer budget here" in words
    assert "its median is 0.990 within them and 0.850 after 600. It is only later." in words


def test_what_was_tuned_for_a_longer_training_is_not_compared_at_the_budget() -> None:
    def longer(line: dict[str, Any]) -> None:
        if line["block"] == "multi_head" and line["quantity"] == "accuracy":
            line["block"] = "squeeze_excitation"

    group = recorded(longer)
    late = [line for line in group.lines if line["block"] == "squeeze_excitation" and line["quantity"] == "accuracy"]
    at = ("accuracy_lead", "paired_difference", "same_different", "linear", "squeeze_excitation - none", "200")
    assert at in derived(group)
    group.lines.append({**late[0], "updates": "600"})
    assert at not in derived(group)
    words = reading.answer(group.frame())
    assert "SE 1.000 (5 of 5) after 600" in words and "SE 1.000 (5 of 5);" not in words


def test_the_answer_and_charts_say_what_the_rows_say() -> None:
    group = recorded()
    report._derive(group, reading, [])
    words = reading.answer(group.frame())
    assert "no block 0.500 (0 of 5)" in words
    assert "Non-local 0.960 (4 of 5)" in words
    assert "Trained longer: global average 0.850 (5 of 5) after 600." in words
    assert "The plain mean needs a longer budget: median 0.600 after 200 updates, 0.850 after 600." in words
    assert "GC 0.500 (0 of 5); GC with a hidden layer 0.990 (5 of 5)" in words
    titles = [chart["title"] for chart in reading.charts(group.frame())]
    assert titles == [
        "two distant glyphs: accuracy",
        "a label at each place: accuracy",
        "two distant glyphs: seeds that took off",
    ]


# --- the first sentence ---


def test_the_first_sentence_says_which_blocks_tell_the_relation() -> None:
    def told(*blocks: tuple[str, list[float]]) -> str:
        at = {"task": "same_different", "readout": "linear"}
        rows = [{**at, "quantity": "local_accuracy_bound", "theory": 0.75}]
        rows += [
            {**at, "quantity": "accuracy", "block": name, "updates": "200", "values": values} for name, values in blocks
        ]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    none = ("none", [0.5, 0.5])
    said = told(none, ("non_local", [1.0, 0.9]))
    assert said == "Within 200 updates the relation of two glyphs is told by Non-local, not told by the CNN alone."
    assert "not told by the CNN alone, Non-local" in told(none, ("non_local", [0.5, 0.6]))
    assert "told at times by Non-local, not told by the CNN alone" in told(none, ("non_local", [0.5, 0.9]))
    assert told(("none", [0.9, 0.9])).endswith("the relation of two glyphs is told by the CNN alone.")
