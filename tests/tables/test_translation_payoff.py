"""Translation payoff: what is measured, and that every planted fault changes a verdict, the answer or a control."""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.data.images import Splits
from attnrepro.data.imageset import ImageSet
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row, read_csv, to_csv
from attnrepro.tables.translation_payoff import measure, reading, table
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "translation_payoff"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
SHIFTS = range(5)
SIZES = (0.7, 0.8, 1.2, 1.4)


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


@pytest.fixture(scope="module", autouse=True)
def images() -> Splits:
    """Objects that fill their images, in place of Fashion-MNIST: nothing here depends on what it shows."""
    stream = torch.Generator().manual_seed(0)

    def part(n: int) -> ImageSet:
        pixels = torch.randint(0, 256, (n, 1, 28, 28), generator=stream).to(torch.uint8)
        return ImageSet("fashion_mnist", pixels, torch.arange(n) % 10, tuple("abcdefghij"))

    return Splits(part(200), part(60), part(50))


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch, images: Splits) -> None:
    monkeypatch.setattr(importlib.import_module(f"attnrepro.tables.{NAME}.measure"), "splits", lambda data: images)


# --- accuracies as full trainings give them, judged ---

# At shifts 0 to 4, then on average at other sizes.
FULL = {
    ("cnn", "centred"): ([0.85, 0.6, 0.3, 0.2, 0.14], 0.70),
    ("vit_patch7", "centred"): ([0.80, 0.5, 0.25, 0.2, 0.14], 0.58),
    ("mlp", "centred"): ([0.82, 0.6, 0.3, 0.2, 0.1], 0.60),
    ("cnn_circular", "centred"): ([0.83, 0.6, 0.45, 0.6, 0.83], 0.65),
    ("cnn", "shifted_once"): ([0.78, 0.78, 0.78, 0.77, 0.76], 0.60),
    ("vit_patch7", "shifted_once"): ([0.72, 0.7, 0.68, 0.66, 0.64], 0.50),
    ("mlp", "shifted_once"): ([0.74, 0.72, 0.7, 0.66, 0.63], 0.50),
    ("cnn_circular", "shifted_once"): ([0.81, 0.81, 0.8, 0.81, 0.81], 0.60),
    ("cnn", "augmented"): ([0.8, 0.8, 0.8, 0.8, 0.79], 0.60),
    ("vit_patch7", "augmented"): ([0.73, 0.72, 0.71, 0.7, 0.69], 0.50),
    ("mlp", "augmented"): ([0.77, 0.76, 0.74, 0.72, 0.7], 0.50),
}
CIRCULAR_AT_2 = {
    "data": "fashion_mnist",
    "model": "cnn_circular",
    "training": "centred",
    "n_train": 3162,
    "shift": 2,
}
EXPECTED = {
    "s4-bias-translation": {"REPRODUCED", "DIFFERS", "TREND_HOLDS"},
    "s4-equivariance-as-augmentation": {"TREND_HOLDS", "TREND_FAILS"},
    "s4-bias-scale-inv": {"TREND_HOLDS"},
}

Edit = Callable[[dict[str, Any]], None]


def accuracies(seeds: int) -> list[dict[str, Any]]:
    found = []
    for number, ((model, training), (shifted, resized)) in enumerate(FULL.items()):
        for seed in range(seeds):
            luck = 0.004 * (seed - 2) + 0.002 * math.sin(13 * number + 7 * seed)
            tested = [({"shift": k}, value) for k, value in enumerate(shifted)]
            tested += [({"object_scale": size}, resized) for size in SIZES]
            for axes, value in tested:
                at = {"data": "fashion_mnist", "model": model, "training": training, "n_train": 3162, **axes}
                found.append({"axes": at, "seed": seed, "value": value + luck, "status": "ok"})
    return found


def judged(root: Path, target: Path, edit: Edit | None = None, seeds: int = 5) -> report.TableReport:
    """The report of a copy of the recorded cells, one of which holds full trainings instead of its own rows."""
    shutil.copytree(root, target)
    rows = accuracies(seeds)
    for row in rows:
        if edit:
            edit(row)
    made = [
        Row("accuracy", r["value"], r["axes"], statistic="mean", seed=r["seed"], n=1, status=r["status"]) for r in rows
    ]
    (folder,) = [
        folder
        for folder in (target / "runs" / NAME).iterdir()
        if folder.is_dir() and any(r["quantity"] == "accuracy" for r in read_csv(folder / "rows.csv"))
    ]
    (folder / "rows.csv").write_text(to_csv(made, key=folder.name, scale="smoke", axes=table.AXES))
    done = json.loads((folder / "done.json").read_text())
    done["sha256"]["rows.csv"] = hashlib.sha256((folder / "rows.csv").read_bytes()).hexdigest()
    (folder / "done.json").write_text(json.dumps(done))
    return harness.built(NAME, target)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, images: Splits) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module(f"attnrepro.tables.{NAME}.measure"), "splits", lambda data: images)
        one = ("hydra.mode=RUN", f"results={folder}")
        assert entry.main([*SMOKE, *one, "params.study=symmetry", "params.draws=20"]) == 0
        assert entry.main([*SMOKE, *one, "params.model=mlp", "params.n_train=50"]) == 0
    return folder


def test_every_claim_has_a_verdict_and_the_right_one(root: Path, tmp_path: Path) -> None:
    made = judged(root, tmp_path / "full")
    assert made.problems == []
    words = verdicts(made)
    assert words == EXPECTED
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert "the CNN leads the MLP by +0.08" in made.answer and "above 0 in 5 of 5 seeds" in made.answer
    luck = sum(r["value"] for r in accuracies(5) if r["axes"] == CIRCULAR_AT_2) / 5 - 0.45
    still, half = f"{0.83 + luck:.3f}", f"{0.45 + luck:.3f}"
    assert f"for the circular CNN from {still} to {half} at 2 and {still} at 4" in made.answer
    assert "at one random place each, is ahead of the MLP with random shifts (+0.03" in made.answer
    assert "in the middle only, is behind the MLP with random shifts (-0.3" in made.answer
    assert "by multiples of 4 (to" in made.answer
    assert made.shown is not None
    assert len(reading.charts(made.shown.frame())) == 4


def test_three_seeds_are_too_few_for_a_trend(root: Path, tmp_path: Path) -> None:
    words = verdicts(judged(root, tmp_path / "few", seeds=3))
    assert words["s4-bias-scale-inv"] == words["s4-equivariance-as-augmentation"] == {"INCONCLUSIVE"}
    assert words["s4-bias-translation"] == {"REPRODUCED", "DIFFERS", "INCONCLUSIVE"}


def _of(model: str, training: str, change: float, **axes: object) -> Edit:
    def edit(row: dict[str, Any]) -> None:
        at = row["axes"]
        if (at["model"], at["training"]) == (model, training) and all(at.get(k) == v for k, v in axes.items()):
            row["value"] += change

    return edit


@pytest.mark.parametrize(
    ("edit", "where", "word"),
    [
        # A CNN that a shift does not touch.
        (_of("cnn", "centred", 0.68, shift=4), ("cnn", "centred", "4", "accuracy_kept"), "REPRODUCED"),
        (_of("cnn", "shifted_once", -0.2, shift=4), ("cnn", "shifted_once", "4", "accuracy_kept"), "DIFFERS"),
        (
            _of("mlp", "shifted_once", 0.2),
            ("cnn - mlp", "shifted_once", "", "mean_accuracy_difference"),
            "TREND_FAILS",
        ),
        (
            _of("vit_patch7", "augmented", 0.2),
            ("cnn - vit_patch7", "shifted_once - augmented", "", "mean_accuracy_difference"),
            "TREND_FAILS",
        ),
        (
            _of("cnn", "centred", 0.5),
            ("cnn - mlp", "centred - augmented", "", "mean_accuracy_difference"),
            "TREND_HOLDS",
        ),
        # Larger or smaller objects hurt the CNN most.
        (
            lambda row: _of("cnn", "centred", -0.3 if "object_scale" in row["axes"] else 0.0)(row),
            ("mlp - cnn", "centred", "", "object_scale_loss"),
            "TREND_FAILS",
        ),
    ],
)
def test_other_accuracies_have_another_verdict(
    root: Path, tmp_path: Path, edit: Edit, where: tuple[str, str, str, str], word: str
) -> None:
    def found(made: report.TableReport) -> str:
        names = ("model", "training", "shift", "quantity")
        (line,) = [r for r in made.lines if r.get("verdict") and tuple(r[name] for name in names) == where]
        return str(line["verdict"])

    assert found(judged(root, tmp_path / "before")) != word
    assert found(judged(root, tmp_path / "after", edit)) == word


def test_differences_are_paired_by_seed(root: Path, tmp_path: Path) -> None:
    def drop(row: dict[str, Any]) -> None:
        if row["axes"]["model"] == "mlp" and row["seed"] == 1:
            row.update(value=math.nan, status="failed: diverged")

    made = judged(root, tmp_path / "r", drop)
    rows = accuracies(5)

    def mean(model: str, seed: int) -> float:
        chosen = [r["value"] for r in rows if r["seed"] == seed and "shift" in r["axes"]]
        at = [r["axes"] for r in rows if r["seed"] == seed and "shift" in r["axes"]]
        mine = [v for v, a in zip(chosen, at, strict=True) if (a["model"], a["training"]) == (model, "shifted_once")]
        assert len(mine) == 5
        return math.fsum(mine) / 5

    differences = [mean("cnn", seed) - mean("mlp", seed) for seed in (0, 2, 3, 4)]
    (line,) = [
        r
        for r in made.lines
        if (r["quantity"], r["model"], r["training"]) == ("mean_accuracy_difference", "cnn - mlp", "shifted_once")
    ]
    assert line["n"] == 4
    assert line["estimate"] == pytest.approx(math.fsum(differences) / 4, abs=1e-12)
    assert any("mlp on 3162 images of fashion_mnist (shifted_once): 1 seeds diverged" in p for p in made.problems)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (_of("cnn_circular", "centred", 0.01, shift=4), "changes the accuracy by 0.0100"),
        (_of("mlp", "centred", 0.6, shift=4), "does not mind a shift by 4: the images did not move"),
        (_of("vit_patch7", "centred", -0.13), "too little training"),
    ],
)
def test_impossible_accuracies_are_noticed(root: Path, tmp_path: Path, edit: Edit, problem: str) -> None:
    (found,) = judged(root, tmp_path / "r", edit).problems
    assert problem in found


@pytest.mark.parametrize(
    ("quantity", "value", "problem"),
    [
        ("shift_error_eps", "33", "shifts by multiples of 4 change the logits by 33 eps"),
        ("breakage_eps", "999999", "nothing was broken"),
    ],
)
def test_a_symmetry_that_is_none_is_noticed(
    root: Path, tmp_path: Path, quantity: str, value: str, problem: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == quantity:
            row["value"] = value

    assert any(problem in found for found in harness.change(NAME, root, tmp_path / "r", edit).problems)


# --- images ---


def _shrunk(image: list[list[float]], side: int) -> list[list[float]]:
    """Triangles of the width of an object's pixel, black beyond the image, in the middle of a black canvas."""
    size = len(image)
    factor = side / size
    margin = (size - side) // 2

    def weights(pixel: int) -> dict[int, float]:
        centre = (pixel + 0.5) / factor - 0.5
        found = {j: max(0.0, 1 - abs(centre - j) * min(1.0, factor)) for j in range(-size, 2 * size)}
        total = sum(found.values())
        return {j: w / total for j, w in found.items() if w > 0}

    out = [[0.0] * size for _ in range(size)]
    for r in range(side):
        for c in range(side):
            out[margin + r][margin + c] = sum(
                wr * wc * image[i][j]
                for i, wr in weights(r).items()
                for j, wc in weights(c).items()
                if 0 <= i < size and 0 <= j < size
            )
    return out


@pytest.mark.parametrize("side", [20, 14, 24])
def test_objects_are_shrunk_into_the_middle(images: Splits, side: int) -> None:
    given = images.test.images[:1]
    expected = torch.tensor(_shrunk(given[0, 0].tolist(), side), dtype=torch.float64)
    found = measure.shrunk(given, side)
    assert found.dtype == torch.uint8
    # To a whole grey value, and half of them to either side.
    assert (found[0, 0].double() - expected).abs().max() <= 0.5 + 1e-3
    margin = (28 - side) // 2
    assert found[0, 0, :margin].sum() == found[0, 0, :, :margin].sum() == 0
    assert found[0, 0, margin, margin] > 0


def test_an_object_of_the_whole_canvas_is_the_image_itself(images: Splits) -> None:
    assert torch.equal(measure.shrunk(images.test.images, 28), images.test.images)


def test_even_images_move_one_way_and_odd_ones_the_other(images: Splits) -> None:
    given = measure.shrunk(images.test.images, 20)
    found = measure.moved(given, 3)
    expected = torch.zeros_like(given)
    for index in range(len(given)):
        by = 3 if index % 2 == 0 else -3
        for r in range(4, 24):
            for c in range(4, 24):
                expected[index, 0, r + by, c + by] = given[index, 0, r, c]
    assert torch.equal(found, expected)
    assert torch.equal(measure.moved(given, 0), given)


def test_test_sets_are_every_place_and_size(images: Splits) -> None:
    found = measure.test_sets(images.test, cell_of("params.n_test=30").params)
    assert [axes for _, axes in found.values()] == [{"shift": k} for k in SHIFTS] + [{"object_scale": s} for s in SIZES]
    for split, axes in found.values():
        assert torch.equal(split.labels, images.test.labels[:30])
        rows = split.images.flatten(0, 1).sum((0, 2)) > 0
        side = int(rows.sum())
        # Even and odd images lie on either side of the middle.
        expected = 20 + 2 * axes["shift"] if "shift" in axes else round(20 * axes["object_scale"])
        assert side == expected


def _places(before: Tensor, after: Tensor) -> list[tuple[int, int]]:
    """Where each image went, by trying every place."""
    found: dict[int, tuple[int, int]] = {}
    for place in ((r, c) for r in range(-4, 5) for c in range(-4, 5)):
        there = (before.roll(place, (2, 3)) == after).flatten(1).all(1)
        found |= dict.fromkeys(there.nonzero().flatten().tolist(), place)
    return [found[index] for index in range(len(after))]


def test_images_that_are_moved_once_keep_their_places(images: Splits) -> None:
    def made(training: str, n: int, seed: int = 0) -> Any:
        p = cell_of(f"params.training={training}", f"params.n_train={n}", "params.n_validation=40").params
        return measure.moving_member(seed, images, {}, p)

    still, once, again = made("centred", 100), made("shifted_once", 100), made("augmented", 100)
    places = _places(still.train.images, once.train.images)
    assert {r for r, _ in places} == {c for _, c in places} == set(range(-4, 5))
    assert torch.equal(still.train.images, again.train.images)
    moved = _places(still.validation.images, once.validation.images)
    assert len(set(moved)) > 20
    assert torch.equal(once.validation.images, again.validation.images)
    # The smaller set has the same images at the same places, another seed other places.
    few = made("shifted_once", 30)
    assert _places(made("centred", 30).train.images, few.train.images) == places[:30]
    assert torch.equal(few.train.images, once.train.images[:30])
    assert _places(made("centred", 100, 1).train.images, made("shifted_once", 100, 1).train.images) != places
    # Black is black for all of them: statistics do not depend on where objects stand.
    shown = [m.prepare(torch.zeros(1, 1, 1, 1, dtype=torch.uint8)).item() for m in (still, once, again)]
    assert shown[0] == shown[1] == shown[2] < 0


# --- trainings ---


def test_the_best_checkpoint_is_tested_at_every_place(images: Splits) -> None:
    cell = cell_of("params.model=mlp", "params.training=shifted_once", "params.n_train=50", "seeds=[0,1]")
    (job,) = measure.build(cell)
    make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
    parts = [job.test.dataset[i] for i in range(len(job.test.dataset))]
    assert {part.checkpoint for part in parts} == {"best"}
    assert [part.test for part in parts] == list(measure.test_sets(images.test, cell.params))
    make_trainer(cell).test(job.module, job.test, verbose=False)
    rows = job.module.rows()
    assert not any(r.quantity.startswith("last_accuracy") for r in rows)
    assert sum(r.quantity == "accuracy" for r in rows) == 2 * (len(SHIFTS) + len(SIZES))
    # By hand, on images that this test moves.
    job.module.checkpoints.load("best")
    for index, member in enumerate(job.fit.members):
        given = measure.shrunk(images.test.images, 20)
        by_hand = torch.stack([x.roll((3, 3) if i % 2 == 0 else (-3, -3), (1, 2)) for i, x in enumerate(given)])
        logits = job.module(torch.stack([m.prepare(by_hand) for m in job.fit.members]))[index]
        share = (logits.argmax(1) == images.test.labels).double().mean().item()
        (row,) = [r for r in rows if r.quantity == "accuracy" and r.seed == member.seed and r.axes.get("shift") == 3]
        assert row.value == pytest.approx(share, abs=1e-12)


def test_only_augmented_training_images_move_anew(images: Splits) -> None:
    def batches(training: str) -> list[Tensor]:
        (job,) = measure.build(cell_of("params.model=cnn", f"params.training={training}", "params.n_train=50"))
        assert job.fit is not None
        # 50 images in batches of all: each step sees all of them, in another order.
        return [job.fit.batch(step).images.sort(dim=1).values for step in (0, 1)]

    for training in ("centred", "shifted_once"):
        first, second = batches(training)
        assert torch.equal(first, second)
    first, second = batches("augmented")
    assert not torch.equal(first, second)


def test_the_same_cell_gives_the_same_rows() -> None:
    one = ("params.model=cnn_circular", "params.training=augmented", "params.n_train=40")
    first, second = (to_csv(rows_of_all(*one), key="k", scale="smoke", axes=table.AXES) for _ in range(2))
    assert first == second and list(csv.DictReader(first.splitlines()))


def rows_of_all(*overrides: str) -> list[Row]:
    cell = cell_of(*overrides)
    rows: list[Row] = []
    for job in measure.build(cell):
        make_trainer(cell, max_steps=job.max_steps).fit(job.module, job.fit)
        make_trainer(cell).test(job.module, job.test, verbose=False)
        rows += job.module.rows()
    return rows


def test_every_model_gets_the_rates_of_its_size() -> None:
    p = cell_of("params.tuned_at=[1000,10000]", "params.learning_rate=[0.1,0.2]", "params.weight_decay=[1,2]").params
    for n, rates in {316: (0.1, 1), 1000: (0.1, 1), 9999: (0.1, 1), 10000: (0.2, 2), 55000: (0.2, 2)}.items():
        p.n_train = n
        assert p.rates() == rates
    circular, plain = (cell_of(f"params.model={model}").params for model in ("cnn_circular", "cnn"))
    assert circular.rates() == plain.rates()
    whole = cell_of("params.most_updates=null", "params.n_train=55000").params
    assert whole.steps() == 4300 and measure.recipe(whole).evaluations == 4
    assert cell_of("params.most_updates=null", "params.n_train=3162").params.steps() == 400


# --- symmetry ---


def symmetry_rows(*overrides: str) -> dict[tuple[str, int], Row]:
    rows = rows_of("params.study=symmetry", "params.canvases=[20x24]", *overrides)
    return {(r.axes["model"], r.axes["shift"]): r for r in rows}


def test_a_circular_cnn_is_invariant_at_its_stride_alone() -> None:
    found = symmetry_rows("params.draws=3", "seeds=[0,1]")
    assert set(found) == {("cnn_circular", k) for k in (1, 2, 3, 4)} | {("cnn", 8)}
    assert {at for at, row in found.items() if row.quantity == "shift_error_eps"} == {("cnn_circular", 4)}
    assert all(row.n == 3 for row in found.values())
    assert 0 < found["cnn_circular", 4].value <= 32
    assert min(row.value for at, row in found.items() if at != ("cnn_circular", 4)) > 1e12


def test_a_cnn_with_zero_padding_is_not_taken_for_a_circular_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(f"attnrepro.tables.{NAME}.measure")
    right = module.build_model
    monkeypatch.setattr(module, "build_model", lambda name, *sizes: right("cnn", *sizes))
    assert symmetry_rows()["cnn_circular", 4].value > 1e6


def test_a_shift_that_is_none_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "roll", lambda images, *shifts: images)
    assert symmetry_rows()["cnn", 8].value == 0


# --- what is refused ---


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.training=moving", "must be one of centred, shifted_once, augmented"),
        ("params.margin=0", "between 1 and 64"),
        ("params.object_scales=[0.8,0.8]", "each once"),
        ("params.canvases=[28]", "must be height x width"),
        ("params.canvases=[28x30]", "both multiples of 4"),
        ("params.canvases=[4x28]", "above it"),
        ("params.learning_rate=[0.1]", "must have a value for each of"),
        ("params.draws=0", "between 1 and"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


@pytest.mark.parametrize(
    ("margin", "scale", "word"),
    [(4, 0.85, "in the middle of 28"), (4, 1.5, "whole pixels"), (4, 0.77, "not 15.4"), (14, 1.0, "not 0")],
)
def test_an_object_has_whole_pixels_and_a_middle(margin: int, scale: float, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        table.object_side(28, margin, scale)


def test_more_images_than_there_are_is_not_run() -> None:
    with pytest.raises(measure.DataUnavailable, match="has 200 training images, not n_train=316"):
        measure.build(cell_of("params.n_train=316"))


# --- the first sentence ---


def test_the_first_sentence_says_whether_shifts_matter_and_what_equivariance_is_worth() -> None:
    def told(lost: float, lead: float) -> str:
        at = {"quantity": "accuracy", "data": "fashion_mnist", "n_train": "1000"}
        right = {
            ("cnn", "centred", "0"): 0.8,
            ("cnn", "centred", "4"): 0.8 - lost,
            ("cnn", "shifted_once", "0"): 0.7 + lead,
            ("mlp", reading.WITH, "0"): 0.7,
        }
        rows = [
            {**at, "model": model, "training": training, "shift": shift,
             "values": [value + 0.001 * i * (model == "cnn") * (shift == "0") for i in range(3)]}
            for (model, training, shift), value in right.items()
        ]  # fmt: skip
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told(0.5, 0.1)
    assert said.startswith("No: trained in the middle the CNN loses 0.501 at a shift of 4 pixels; ")
    assert "with objects at one random place each it is ahead of the MLP (+0.101 [" in said
    assert ") trained on moved images" in said
    said = told(-0.1, -0.1)
    assert said.startswith("As far as is seen, yes: ") and "it is behind the MLP (-0.099" in said
