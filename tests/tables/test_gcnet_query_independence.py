"""gcnet_query_independence: distances, the shared map, the printed formula, and what is made of the rows."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput, load_yaml
from attnrepro.nn.block_cnn import BlockCNN, seeded_block_cnn
from attnrepro.nn.global_context import GlobalContext, global_context_as_printed
from attnrepro.tables.gcnet_query_independence import measure, reading, table
from attnrepro.training.trainer import make_trainer

from . import harness

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = table.NAME


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, "data=none", "params.task=same_different", *overrides)


# --- distances ---


def by_hand(vectors: list[list[float]]) -> list[float]:
    """(1 - cos) / 2 of all ordered pairs."""
    found = []
    for a, b in itertools.product(vectors, repeat=2):
        dot, norms = sum(x * y for x, y in zip(a, b, strict=True)), math.hypot(*a) * math.hypot(*b)
        found.append((1 - dot / norms) / 2)
    return found


def test_distances_are_those_of_all_pairs() -> None:
    maps = torch.rand(3, 5, 7, dtype=torch.float64)
    pairs = [by_hand(one.tolist()) for one in maps]
    found = measure.map_distances(maps)
    assert found["attention_distance"] == pytest.approx(sum(map(sum, pairs)) / 75)
    assert found["attention_distance_largest"] == pytest.approx(sum(map(max, pairs)) / 3)
    assert measure.mean_distance(maps) == pytest.approx(found["attention_distance"])
    assert measure.mean_distance(torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])) == pytest.approx(0.5)


def test_one_map_for_all_is_at_no_distance_and_unlike_maps_are() -> None:
    same = torch.rand(2, 1, 9, dtype=torch.float64).expand(2, 9, 9)
    assert measure.map_distances(same)["attention_distance_largest"] <= 1e-15
    assert measure.map_distances(torch.eye(4)[None])["attention_distance"] == pytest.approx(0.5 * 12 / 16)


def test_a_shared_map_is_the_mean_of_the_maps() -> None:
    stream = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=stream, dtype=torch.float64)

    net = seeded_block_cnn(0, 1, 2, block="non_local", readout="places").double().eval()
    measure.filled(net.block, noise)
    images = noise(2, 1, 16, 20)
    with torch.no_grad():
        x = net.windows(images)
        maps, block = net.block.attention(x), net.block  # type: ignore[operator]
        shared = maps.mean(1)
        value = block.g(x).flatten(2)  # type: ignore[operator]
        taken = torch.stack([(value[n] * shared[n]).sum(-1) for n in range(2)])
        added = torch.einsum("oc,nc->no", block.out.weight[:, :, 0, 0], taken) + block.out.bias  # type: ignore[union-attr]
        expected = net.readout(x + added[:, :, None, None])
        torch.testing.assert_close(measure.with_shared_map(net, images), expected, rtol=1e-10, atol=1e-12)
        assert float((expected - net(images)).abs().max()) > 1e-3


# --- the printed formula ---


def test_as_printed_the_weights_cancel_and_in_the_paper_they_do_not() -> None:
    """Would fail if the printed form were right: loops over places, other weights."""
    torch.manual_seed(0)
    x = torch.randn(1, 12, 3, 4, dtype=torch.float64)
    places = [x[0, :, r, c] for r in range(3) for c in range(4)]
    mean = sum(places) / 12
    for scale in (0.0, 1.0, 5.0):
        weights = scale * torch.randn(12, 12, dtype=torch.float64)
        out = global_context_as_printed(x, weights)
        for place in out[0].flatten(1).T:
            torch.testing.assert_close(place, mean, rtol=1e-12, atol=1e-13)
    blocks = [GlobalContext(12, reduction=4).double() for _ in range(2)]
    attended = []
    for block in blocks:
        scores = [((block.key.weight[0] * place).sum() + block.key.bias).item() for place in places]
        total = sum(math.exp(score) for score in scores)
        attended.append(sum(math.exp(score) / total * place for score, place in zip(scores, places, strict=True)))
    assert float((attended[0] - attended[1]).abs().max()) > 0.05  # type: ignore[union-attr]


# --- what is trained ---


def test_blocks_see_the_same_images_and_the_whole_training_is_one_stretch() -> None:
    jobs = [
        measure.build(cell_of(f"params.block={block}", "seeds=[2]"))[0] for block in ("non_local", "global_context")
    ]
    assert torch.equal(jobs[0].module.images, jobs[1].module.images)  # type: ignore[arg-type]
    assert [len(job.fit) for job in jobs] == [1, 1]
    assert jobs[0].max_steps == 10
    assert measure.build(cell_of("params.most_updates=null", "params.updates=200"))[0].max_steps == 200


def test_without_a_block_only_what_would_be_read_is_compared() -> None:
    (job,) = measure.build(cell_of("params.block=none", "params.n_test=50"))
    make_trainer(cell_of(), max_steps=job.max_steps).fit(job.module, job.fit)
    rows = job.module.rows()
    assert {(row.quantity, row.axes.get("phase", "")) for row in rows} == {
        *(("accuracy", ""), ("loss", "")),
        *(("input_distance", "start"), ("input_distance", "end")),
    }


def pictured_cell(*overrides: str) -> Any:
    sizes = ("params.n_test=50", "params.n_maps=2", "params.n_validation=10")
    return harness.cell_of(NAME, "data=digits", *sizes, *overrides)


def trained(cell: Any) -> list[Any]:
    """The modules of a cell, each at the end of its training."""
    jobs = measure.build(cell)
    for job in jobs:
        make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    return [job.module for job in jobs]


def softmax(scores: list[float]) -> list[float]:
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def shown_by(rows: list[Any], **axes: object) -> dict[tuple[int, int], float]:
    return {
        (row.axes["row"], row.axes["column"]): row.value
        for row in rows
        if row.quantity.startswith("map_") and all(row.axes[name] == value for name, value in axes.items())
    }


@pytest.mark.parametrize("block", table.PICTURED_BLOCKS)
def test_pictured_maps_are_those_of_the_first_image_of_each_class(block: str) -> None:
    """Queries and classes found by loops, scores one by one; on digits the map has 2 x 2 places and images 4 x 4."""
    (module,) = trained(pictured_cell(f"params.block={block}"))
    rows, test = module.rows(), measure.splits(pictured_cell().data).test
    indices: list[int] = []
    for index, label in enumerate(test.labels.tolist()):
        if label not in [int(test.labels[other]) for other in indices] and len(indices) < 3:
            indices.append(index)
    names = [f"{index} {test.classes[int(test.labels[index])]}" for index in indices]
    found = [row for row in rows if row.quantity.startswith("map_")]
    assert list(dict.fromkeys(row.axes["image"] for row in found)) == names
    shared = block == "global_context"
    queries = {"all queries": 0} if shared else {"upper left": 0, "centre": 3, "lower right": 3}
    assert len(found) == 3 * (16 + 4 * len(queries))
    assert {(row.seed, row.n, row.status, row.axes["phase"], row.axes["block"]) for row in found} == {
        (0, 1, "ok", "end", block)
    }
    net = module.model.double().eval()
    for index, name in zip(indices, names, strict=True):
        grey = shown_by(rows, image=name, query="")
        for i, j in grey:
            assert grey[i, j] == test.images[index, 0, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].double().mean()
        with torch.no_grad():
            x = net.windows(module.images[index : index + 1].double())[0].flatten(1).T
            for query, place in queries.items():
                if shared:
                    scores = [float(net.block.key.weight[0] @ key + net.block.key.bias) for key in x]
                else:
                    theta, phi = ((part.weight[:, :, 0, 0], part.bias) for part in (net.block.theta, net.block.phi))
                    asked = theta[0] @ x[place] + theta[1]
                    scores = [float(asked @ (phi[0] @ key + phi[1])) for key in x]
                values = shown_by(rows, image=name, query=query)
                assert list(values) == [(0, 0), (0, 1), (1, 0), (1, 1)]
                assert list(values.values()) == pytest.approx(softmax(scores), abs=1e-5)
                assert sum(values.values()) == pytest.approx(1, abs=1e-6)


def test_only_the_fixed_seed_of_a_reported_training_on_photographs_is_pictured() -> None:
    def pictured(*overrides: str) -> list[int]:
        cell = pictured_cell("params.updates=10", *overrides)
        return [sum(row.quantity.startswith("map_") for row in module.rows()) for module in trained(cell)]

    assert pictured("seeds=[0,1]") == [3 * (16 + 3 * 4), 0]
    assert pictured("seeds=[1]") == [0]
    assert pictured("params.block=non_local_gaussian") == [0]
    assert pictured("params.study=tuning") == [0]
    drawn = ("data=none", "params.task=same_different", "params.block=non_local", "params.n_test=50")
    (module,) = trained(harness.cell_of(NAME, *drawn))
    assert not [row for row in module.rows() if row.quantity.startswith("map_")]


def test_a_training_that_diverged_has_no_picture() -> None:
    (module,) = trained(pictured_cell("params.block=non_local"))
    module.diverged = True
    assert not [row for row in module.rows() if row.quantity.startswith("map_")]


def test_queries_lie_at_the_quarters_of_the_map() -> None:
    assert table.places(7, 7) == {"upper left": (1, 1), "centre": (3, 3), "lower right": (5, 5)}
    assert table.places(8, 4) == {"upper left": (2, 1), "centre": (4, 2), "lower right": (6, 3)}


def test_whoever_is_compared_on_a_task_is_trained_there_with_the_same_seeds_and_updates() -> None:
    about = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")
    for scale in ("cpu", "full"):
        main, *others = [{"params.block": about["scales"][scale]["blocks"]}, *about["scales"][scale]["also"]]
        grids = [grid for grid in others if grid.get("params.task") and "params.study" not in grid]
        blocks = {grid["params.task"]: grid["params.block"].split(",") for grid in grids}
        assert set(blocks) == {"same_different", "far_cue"} and len(grids) == 2
        assert all({"none", "non_local"} <= set(names) for names in [main["params.block"].split(","), *blocks.values()])
        assert {grid["params.updates"] for grid in grids} == {"200"}


def test_reported_seeds_choose_nothing() -> None:
    about = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")
    tuning = [g for g in about["scales"]["full"]["also"] if g.get("params.study") == "tuning"]
    assert {grid["seeds"] for grid in tuning} == {"[100,101]"}
    assert all(about["scales"][scale]["seeds"] < 100 for scale in about["scales"])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("params.block=swin", "params.block=swin must be one of none, global_context"),
        ("params.updates=15", "updates=15 must be a multiple of 10"),
        ("params.shapes=[8x3x3]", "must be channels x height x width"),
        ("params.learning_rate=[0.1,0.2]", "must be one value unless study=tuning"),
    ],
)
def test_bad_input_is_one_sentence(override: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        cell_of(override)
    assert words in str(caught.value)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gcnet")
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={folder}", "params.draws=20"]
    assert entry.main([*command, "data=none", "params.task=same_different"]) == 0
    return folder


def test_verdicts_on_the_formula(root: Path) -> None:
    found = harness.verdicts(harness.built(NAME, root))
    assert found["s4-gc-formula"] == {"SOURCE_ERROR"}
    assert found["s4-gc-alpha-i"] == {"SOURCE_ERROR"}
    for claim in ("gcnet-printed-is-mean", "gcnet-same-for-all", "gcnet-mean-reads-one-map"):
        assert found[claim] == {"REPRODUCED"}


@pytest.mark.parametrize(
    ("quantity", "form", "value", "words"),
    [
        ("context_error_eps", "as_printed", "1e7", "as_printed: context_error_eps is 1e+07: at most 32 is round-off"),
        ("received_variation_eps", "paper", "40", "paper: received_variation_eps is 40: at most 32 is round-off"),
        ("context_breakage_eps", "paper", "2", "paper: context_breakage_eps is 2: what must break it did not"),
        ("shared_map_breakage_eps", "", "2", "places: shared_map_breakage_eps is 2: what must break it did not"),
        ("weights_effect", "paper", "1e-9", "answers to other weights by 1e-09"),
    ],
)
def test_planted_faults_in_the_formula_raise_a_control(
    quantity: str, form: str, value: str, words: str, root: Path, tmp_path: Path
) -> None:
    def edit(line: dict[str, str]) -> None:
        if (line["quantity"], line["form"], line["source"]) == (quantity, form, "measured"):
            line["value"] = value

    assert any(words in problem for problem in harness.change(NAME, root, tmp_path / "r", edit).problems)


def test_weights_that_count_would_not_be_a_source_error(root: Path, tmp_path: Path) -> None:
    def edit(line: dict[str, str]) -> None:
        if (line["quantity"], line["form"]) == ("weights_effect", "as_printed"):
            line["value"] = "0.3"

    assert harness.verdicts(harness.change(NAME, root, tmp_path / "r", edit))["s4-gc-formula"] == {"REPRODUCED"}


# --- what is made of rows ---

VALUES: dict[tuple[str, str, str, str], tuple[float, ...]] = {
    ("accuracy", "same_different", "non_local", ""): (0.99, 0.98, 1.0, 0.97, 0.99),
    ("accuracy", "same_different", "global_context", ""): (0.99, 0.99, 0.99, 0.98, 1.0),
    ("accuracy", "same_different", "none", ""): (0.502, 0.513, 0.488, 0.495, 0.524),
    ("accuracy", "far_cue", "non_local", ""): (1.0, 0.99, 1.0, 0.98, 1.0),
    ("accuracy", "fashion_mnist", "non_local", ""): (0.79, 0.78, 0.8, 0.79, 0.79),
    ("accuracy_shared_map", "same_different", "non_local", "end"): (0.99, 0.98, 1.0, 0.97, 0.99),
    ("accuracy_shared_map", "far_cue", "non_local", "end"): (0.51, 0.55, 0.6, 0.49, 0.5),
    ("attention_distance", "same_different", "non_local", "start"): (0.01, 0.012, 0.011, 0.009, 0.01),
    ("attention_distance", "same_different", "non_local", "end"): (0.11, 0.16, 0.13, 0.12, 0.1),
    ("attention_distance_largest", "same_different", "non_local", "start"): (0.1, 0.1, 0.12, 0.1, 0.1),
    ("attention_distance_largest", "same_different", "non_local", "end"): (0.4, 0.45, 0.42, 0.41, 0.4),
    ("attention_distance", "same_different", "global_context", "end"): (0.0, 1e-17, 0.0, 0.0, 0.0),
    ("input_distance", "same_different", "non_local", "start"): (0.2, 0.21, 0.2, 0.2, 0.22),
    ("input_distance", "same_different", "non_local", "end"): (0.3, 0.31, 0.33, 0.3, 0.29),
}


def recorded(edit: Callable[[dict[str, Any]], None] = lambda line: None) -> report.Group:
    """A group of estimates as `gather` makes them, without training anything."""
    lines = []
    for (quantity, task, block, phase), values in VALUES.items():
        line: dict[str, Any] = dict.fromkeys(table.AXES, "") | {
            **{"task": task, "readout": "places" if task == "far_cue" else "mean", "block": block, "phase": phase},
            **{"quantity": quantity, "statistic": "mean", "unit": "", "n_failed": 0, "stale": False},
            **{"by_seed": dict(zip("01234", values, strict=True)), "theory": math.nan},
        }
        edit(line)
        found = tuple(line["by_seed"].values())
        half = 2.7764451051977987 * statistics.stdev(found) / math.sqrt(5)
        mean = sum(found) / len(found)
        line |= {"seeds": found, "n": len(found), "estimate": mean, "sd": statistics.stdev(found)}
        lines.append(line | {"ci_low": mean - half, "ci_high": mean + half})
    return report.Group("", "here", "cpu", own=True, stale=False, lines=lines)


def derived(group: report.Group) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = reading.derive(group.frame(), report.published_lines(NAME))
    return {(str(r["quantity"]), str(r["task"]), str(r["block"])): r for r in rows}


def test_growth_alikeness_lead_and_cost_are_paired_by_seed() -> None:
    found = derived(recorded())
    growth = found["attention_distance_growth", "same_different", "non_local"]
    assert growth["seeds"] == pytest.approx((0.1, 0.148, 0.119, 0.111, 0.09))
    assert found["alikeness", "same_different", "non_local"]["seeds"] == pytest.approx((0.19, 0.15, 0.2, 0.18, 0.19))
    # Untrained .19, .198, .189, .191, .21.
    change = found["alikeness_growth", "same_different", "non_local"]
    assert change["seeds"] == pytest.approx((0.0, -0.048, 0.011, -0.011, -0.02))
    assert change["phase"] == "end - start"
    over = found["lead", "same_different", "global_context - none"]
    assert over["seeds"] == pytest.approx((0.488, 0.477, 0.502, 0.485, 0.476))
    assert ("lead", "same_different", "none - none") not in found
    assert ("lead", "same_different", "global_context - none") in found
    lead = found["lead", "same_different", "global_context - non_local"]
    assert lead["seeds"] == pytest.approx((0.0, 0.01, -0.01, 0.01, 0.01))
    assert found["shared_map_cost", "far_cue", "non_local"]["seeds"] == pytest.approx((0.49, 0.44, 0.4, 0.49, 0.5))
    assert found["shared_map_cost", "same_different", "non_local"]["estimate"] == 0


def test_verdicts_follow_the_seeds() -> None:
    def words(edit: Callable[[dict[str, Any]], None]) -> dict[tuple[str, str], str]:
        group = recorded(edit)
        printed = report.published_lines(NAME)
        report._derive(group, reading, printed)
        judged = [r for r in report._judged_lines(group, reading, printed) if r.get("claim") and r["n"]]
        return {(r["claim"], r["task"], r["block"]): r["verdict"] for r in judged}

    def worse(line: dict[str, Any]) -> None:
        if line["block"] == "global_context" and line["quantity"] == "accuracy":
            line["by_seed"] = {seed: value - 0.1 for seed, value in line["by_seed"].items()}

    def useless(line: dict[str, Any]) -> None:
        if line["quantity"] == "accuracy" and line["task"] == "same_different":
            line["by_seed"] = {seed: 0.5 + 0.01 * int(seed) * (line["block"] == "none") for seed in "01234"}

    def alike(line: dict[str, Any]) -> None:
        if (line["quantity"], line["phase"]) == ("attention_distance", "end") and line["block"] == "non_local":
            line["by_seed"] = {seed: value / 100 for seed, value in line["by_seed"].items()}

    pair, over = "global_context - non_local", "global_context - none"
    found = words(lambda line: None)
    assert found["gcnet-as-good", "same_different", pair] == "REPRODUCED"
    assert found["gcnet-as-good", "same_different", over] == "TREND_HOLDS"
    assert found["gcnet-maps-alike", "same_different", "non_local"] == "INCONCLUSIVE"
    assert found["gcnet-training-parts-maps", "same_different", "non_local"] == "TREND_HOLDS"
    assert found["gcnet-one-map-enough", "far_cue", "non_local"] == "DIFFERS"
    assert words(worse)["gcnet-as-good", "same_different", pair] == "DIFFERS"
    # Two blocks that add nothing are as good as each other, and fail nevertheless.
    nothing = words(useless)
    assert nothing["gcnet-as-good", "same_different", pair] == "REPRODUCED"
    assert nothing["gcnet-as-good", "same_different", over] != "TREND_HOLDS"
    drawn = words(alike)
    assert drawn["gcnet-maps-alike", "same_different", "non_local"] == "TREND_HOLDS"
    assert drawn["gcnet-training-parts-maps", "same_different", "non_local"] == "TREND_FAILS"


def test_controls_see_a_training_that_learned_nothing_and_a_task_that_needs_no_block() -> None:
    def low(line: dict[str, Any]) -> None:
        if (line["quantity"], line["task"], line["block"]) == ("accuracy", "fashion_mnist", "non_local"):
            line["by_seed"] = {seed: value - 0.1 for seed, value in line["by_seed"].items()}

    def high(line: dict[str, Any]) -> None:
        if (line["quantity"], line["block"]) == ("accuracy", "none"):
            line["by_seed"] = {seed: value + 0.45 for seed, value in line["by_seed"].items()}

    assert reading.controls(recorded(low).frame()) == ["Non-local on Fashion-MNIST: median accuracy 0.690, not 0.75"]
    assert reading.controls(recorded(high).frame()) == [
        "no block on the relation of two glyphs: median accuracy 0.952: the task needs no block"
    ]


def test_controls_see_a_map_that_differs_from_itself_and_a_mean_that_is_not_linear() -> None:
    assert reading.controls(recorded().frame()) == []

    def unlike(line: dict[str, Any]) -> None:
        if line["block"] == "global_context" and line["quantity"] == "attention_distance":
            line["by_seed"]["3"] = 1e-3

    def costly(line: dict[str, Any]) -> None:
        if (line["quantity"], line["task"]) == ("accuracy_shared_map", "same_different"):
            line["by_seed"]["2"] -= 0.05

    (problem,) = reading.controls(recorded(unlike).frame())
    assert "its one map differs from itself by 0.001" in problem
    (problem,) = reading.controls(recorded(costly).frame())
    assert "one map for all changed accuracy by 0.05 before a linear mean" in problem


@pytest.mark.parametrize(("best", "count"), [(1.0, 0), (2.0, 1), (0.5, 2)])
def test_rates_must_be_the_best_inside_the_grid(best: float, count: int) -> None:
    group = recorded()
    used = float(reading.rates()["fashion_mnist"]["linear"]["non_local"])
    lines = list(group.lines)
    for factor in (0.5, 1.0, 2.0, 4.0):
        line = dict.fromkeys(table.AXES, "") | {"task": "fashion_mnist", "readout": "mean", "block": "non_local"}
        line |= {"learning_rate": str(used * factor), "quantity": "validation_accuracy", "statistic": "mean"}
        value = 0.8 if factor == best else 0.7
        lines.append({**lines[0], **line, "estimate": value, "n": 2, "n_failed": 0})
    problems = reading.controls(report.Group("", "here", "cpu", own=True, stale=False, lines=lines).frame())
    assert len(problems) == count
    other = {**lines[0], "task": "fashion_mnist", "readout": "mean", "block": "none", "quantity": "accuracy"}
    lines.append({**other, "phase": "", "by_seed": {"0": 0.8}})
    problems = reading.controls(report.Group("", "here", "cpu", own=True, stale=False, lines=lines).frame())
    assert "none on Fashion-MNIST: its rate was never chosen, those of others were" in problems


def test_the_answer_and_the_chart_say_what_the_rows_say() -> None:
    group = recorded()
    report._derive(group, reading, [])
    words = reading.answer(group.frame())
    assert (
        "the relation of two glyphs trained 0.124 against 0.306, untrained 0.010 against 0.206 (maps +0.114 [" in words
    )
    assert "the relation of two glyphs -0.014 [-0.042, +0.014] (+0.196 before, +0.182 after)" in words
    assert "without a block, at an equal budget: the relation of two glyphs global context +0.486 [" in words
    assert "Non-local +0.482 [" in words
    assert "a label at each place +0.464 [" in words
    assert "Global context less Non-local: the relation of two glyphs +0.004" in words
    (chart,) = reading.charts(group.frame())
    assert "distance between two queries" in chart["title"]


def pictured(block: str, queries: dict[str, list[float]]) -> report.Group:
    """Recorded estimates with one image of 2 x 2 squares, and maps of 2 x 2 places."""
    group = recorded()
    values = [("map_grey", "", [0.0, 255.0, 10.0, 20.0]), *(("map_attention", *item) for item in queries.items())]
    for quantity, query, four in values:
        for (row, column), value in zip(itertools.product("01", repeat=2), four, strict=True):
            line: dict[str, Any] = dict(group.lines[0], quantity=quantity, statistic="value", block=block, phase="end")
            line |= {"task": "fashion_mnist", "readout": "mean", "image": "7 shirt", "query": query}
            line |= {"row": row, "column": column, "n": 1, "estimate": value, "by_seed": {"0": value}}
            group.lines.append(line)
    return group


def test_pictures_show_the_rows_and_mark_the_query() -> None:
    maps = {"upper left": [0.1, 0.2, 0.3, 0.4], "centre": [0.4, 0.3, 0.2, 0.1], "lower right": [0.0, 0.0, 0.5, 0.5]}
    distances, chart = reading.charts(pictured("non_local", maps).frame())
    assert "distance between two queries" in distances["title"]
    assert chart["title"]["text"] == "attention maps of single queries, Non-local"
    assert chart["title"]["subtitle"] == [
        "trained, seed 0: test accuracy 0.790",
        "2 x 2 places; queries upper left, centre, lower right (outlined)",
        "opacity: share of attention, 0 to 0.5; equal shares: 0.25",
    ]
    grey, tint, frames, marks, words = (layer["data"]["values"] for layer in chart["layer"])
    assert [(s["x"], s["y"], s["value"]) for s in grey] == [(0, 0, 0), (0.5, 0, 255), (0, 0.5, 10), (0.5, 0.5, 20)]
    assert [s["value"] for s in tint] == [value for four in maps.values() for value in four]
    # The third map is three pictures away from the image; its query is the lower right place.
    assert (tint[-1]["x"], tint[-1]["y"]) == (round(3 * 1.06 + 0.5, 4), 0.5)
    assert marks == [{"x": 1.06, "y": 0}, {"x": 2.62, "y": 0.5}, {"x": 3.68, "y": 0.5}]
    assert [word["text"] for word in words] == ["7 shirt", *maps] and len(frames) == 4
    assert chart["layer"][1]["encoding"]["opacity"]["scale"] == {"domain": [0, 0.5], "range": [0, 1]}
    assert "width" not in chart
    assert not report._shown({"quantity": "map_grey"}, reading)
    json.dumps(chart, allow_nan=False)


def test_one_map_for_all_marks_no_query_and_nothing_is_drawn_without_maps() -> None:
    chart = reading.charts(pictured("global_context", {"all queries": [0.1, 0.2, 0.3, 0.4]}).frame())[1]
    assert chart["title"]["text"] == "one attention map for all queries, global context"
    assert chart["title"]["subtitle"][1] == "2 x 2 places"
    assert [layer["data"]["values"] for layer in chart["layer"]][3] == []
    assert len(reading.charts(pictured("global_context", {}).frame())) == 1
    assert len(reading.charts(pictured("non_local_gaussian", {"centre": [0.25] * 4}).frame())) == 1


def test_the_answer_says_where_no_block_adds_anything() -> None:
    def idle(line: dict[str, Any]) -> None:
        if line["quantity"] == "accuracy" and line["task"] == "same_different" and line["block"] != "none":
            line["by_seed"] = {seed: 0.5 + 0.001 * int(seed) for seed in "01234"}

    said = "says little on the relation of two glyphs, where neither was seen to add anything"
    for edit, expected in ((idle, True), (lambda line: None, False)):
        group = recorded(edit)
        report._derive(group, reading, [])
        assert (said in reading.answer(group.frame())) is expected


def test_a_model_that_reads_places_is_no_mean() -> None:
    """The identity of the shared map is one of the linear mean: with a read-out of places it is gone."""
    stream = torch.Generator().manual_seed(3)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=stream, dtype=torch.float64)

    images = noise(2, 1, 24, 24)
    for readout, holds in (("mean", True), ("places", False)):
        net: BlockCNN = seeded_block_cnn(0, 1, 2, block="non_local", readout=readout).double().eval()
        measure.filled(net.block, noise)
        with torch.no_grad():
            error = float((net(images) - measure.with_shared_map(net, images)).abs().max())
        assert (error < 1e-11) is holds


# --- the first sentence ---


def test_the_first_sentence_says_whether_maps_are_one_and_who_is_ahead() -> None:
    def told(maps: tuple[float, float], lead: tuple[float, float]) -> str:
        rows = [
            {"quantity": "attention_distance", "task": "far_cue", "block": "non_local", "phase": "end", "ci": maps},
            {"quantity": "lead", "task": "fashion_mnist", "block": "global_context - non_local", "ci": lead},
        ]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told((0.2, 0.3), (-0.1, 0.1))
    assert said.startswith("No: trained maps of two queries are 0.25 [0.20, 0.30] (a label at each place) apart")
    assert "against Non-local global context is level (Fashion-MNIST +0.000 [-0.100, +0.100])" in said
    said = told((0.0, 0.002), (0.01, 0.02))
    assert said.startswith("Yes: ") and "global context is ahead (" in said
    assert "global context is behind (" in told((0.2, 0.3), (-0.02, -0.01))
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "parameters"})) == ""
