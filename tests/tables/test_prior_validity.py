"""prior_validity: what is trained and drawn, and what is made of its rows; on the digits, which are always there."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from scipy import stats as reference
from torch import Tensor

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput, load_yaml
from attnrepro.data.permute import Permutation, permutation
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row, to_csv
from attnrepro.tables.prior_validity import measure, reading, table
from attnrepro.training.measurement import Job
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "prior_validity"
DIGITS = ("data=digits", "params.n_train=100", "params.n_validation=50", "params.n_test=60")
ANCHORS = ("params.study=anchors", "data=none", "seeds=[0]")
MAPS = (*DIGITS, "params.study=maps", "params.model=vit_patch2", "params.permutation=pixel", "seeds=[3]")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def jobs_of(*overrides: str) -> list[Job]:
    return measure.build(cell_of(*overrides))


def rows_of(*overrides: str) -> list[Row]:
    """What a cell measures, job by job."""
    cell, found = cell_of(*overrides), []
    for job in measure.build(cell):
        trainer = make_trainer(cell, max_steps=job.max_steps)
        if job.fit is not None:
            trainer.fit(job.module, job.fit)
        trainer.test(job.module, job.test, verbose=False)
        found += job.module.rows()
    return found


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    (row,) = [r for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    return row


# --- what is trained ---


def moved_by_hand(images: Tensor, seed: int, side: int) -> Tensor:
    """Each patch put where the seed's permutation says, pixel by pixel."""
    order = permutation((8, 8), seed, (side, side)).patches.tolist()
    across, result = 8 // side, torch.empty_like(images)
    for place, source in enumerate(order):
        for i, j in itertools.product(range(side), range(side)):
            here = (place // across * side + i, place % across * side + j)
            there = (source // across * side + i, source % across * side + j)
            result[:, :, here[0], here[1]] = images[:, :, there[0], there[1]]
    return result


@pytest.mark.parametrize(("name", "side"), [("pixel", 1), ("patch2", 2), ("patch4", 4)])
def test_a_seed_moves_training_validation_and_test_images_alike(name: str, side: int) -> None:
    jobs = jobs_of(*DIGITS, "params.model=cnn", f"params.permutation={name}", "seeds=[0,1]")
    for seed, job in enumerate(jobs):
        (member,) = job.fit.members
        assert member.seed == seed
        pixels = member.train.images.double()
        mean, std = pixels.mean(), pixels.std(unbiased=False)
        for _, split in member.splits():
            expected = (moved_by_hand(split.images, seed, side).double() - mean) / std
            torch.testing.assert_close(member.prepare(split.images).double(), expected, rtol=1e-5, atol=1e-5)
        assert not torch.equal(member.prepare(pixels), (pixels.float() - mean) / std)
    first, second = (job.fit.members[0] for job in jobs)
    assert not torch.equal(moved_by_hand(first.train.images, 0, side), moved_by_hand(first.train.images, 1, side))
    assert not torch.equal(first.train.images, second.train.images)


def test_but_for_the_permutation_a_seed_trains_the_same() -> None:
    (intact,), (moved,) = (
        jobs_of(*DIGITS, "params.model=vit_patch2", f"params.permutation={name}", "seeds=[4]")
        for name in ("none", "pixel")
    )
    for a, b in zip(intact.module.parameters(), moved.module.parameters(), strict=True):
        assert torch.equal(a, b)
    for step in range(3):
        a, b = intact.fit.batch(step), moved.fit.batch(step)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(permutation((8, 8), 4)(a.images[0]), b.images[0])
    assert intact.module.recipe == moved.module.recipe


def test_a_vit_without_positions_has_none() -> None:
    (job,) = jobs_of(*DIGITS, "params.model=vit_patch2", "params.position=none")
    assert job.module.model.position is None
    (row,) = {tuple(r.axes.items()) for r in rows_of(*DIGITS, "params.model=vit_patch2", "params.position=none")}
    assert ("position", "none") in row


@pytest.mark.parametrize(("n_train", "steps"), [(1000, 400), (3162, 400), (10000, 788), (55000, 4300)])
def test_every_model_gets_as_many_updates(n_train: int, steps: int) -> None:
    p = cell_of(f"params.n_train={n_train}", "params.most_updates=null").params
    assert p.steps() == (steps, 4)
    assert steps == max(400, 4 * math.ceil(5 * math.ceil(n_train / 64) / 4))


def test_scale_cpu_is_what_was_agreed() -> None:
    from attnrepro.app.precheck import make_plan

    cells = [c.cell for c in make_plan([f"experiment={NAME}", "scale=cpu", "tracking=disabled"]).cells]
    trained = [c for c in cells if c.params.study == "training"]
    assert {(c.params.model, c.params.permutation) for c in trained} == set(
        itertools.product(("cnn", "vit_patch7", "mlp"), ("none", "pixel"))
    )
    assert len(trained) == 6 and len(cells) == 8
    assert {(c.params.n_train, c.seeds, c.data.name) for c in trained} == {(10000, (0, 1, 2), "fashion_mnist")}
    (anchors,) = [c for c in cells if c.params.study == "anchors"]
    assert anchors.data.name == "none" and anchors.params.draws * len(anchors.params.shapes) >= 60


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["params.permutation=rows"], "permutation=rows must be none, pixel, or patch and a side"),
        (["params.permutation=patch0"], "permutation=patch0 must be"),
        (["params.position=none"], "position=none must be given to a ViT, not to model=cnn"),
        (["params.study=maps"], "must be a ViT and a permutation for study=maps"),
        (["params.study=maps", "params.model=vit_patch7"], "must be a ViT and a permutation for study=maps"),
        (["params.shapes=[28x28x7]"], "shapes=28x28x7 must be channels x height x width x patch"),
        (["params.shapes=[1x28x28x5]"], "patch=5x5 must divide the image"),
        (["params.shapes=[1x28x28x28]"], "shapes=1x28x28x28 must have 4 patches or more"),
        (["params.learning_rate=[0.1]"], "must have a value for each of tuned_at"),
        (["params.images=[1,1]"], "each once"),
        (["params.study=none"], "must be one of training, anchors, maps"),
    ],
)
def test_bad_input_is_one_sentence(overrides: list[str], message: str) -> None:
    with pytest.raises(BadInput) as error:
        cell_of(*overrides)
    assert message in str(error.value)


def test_what_does_not_fit_the_images_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", "hydra.mode=RUN", f"results={tmp_path}"]
    assert entry.main([*command, *DIGITS, "params.permutation=patch7"]) == 1
    assert "patch height 7 must divide the image height 8" in capfd.readouterr().err
    assert entry.main([*command, *DIGITS, "params.n_train=5000"]) == 1
    assert "digits has 1000 training images, not n_train=5000" in capfd.readouterr().err
    assert entry.main([*command, *MAPS, "params.images=[7,500]"]) == 1
    assert "digits has 500 test images, none with index 500" in capfd.readouterr().err


# --- maps ---


def attention_by_hand(vit: Any, image: Tensor) -> list[float]:
    """Attention to each patch in the last layer, mean over heads and queries; sums written out."""
    x = vit.tokens(image[None])
    for block in vit.blocks[:-1]:
        x = block(x)
    last = vit.blocks[-1]
    normed, attention = last.attention_norm(x)[0], last.attention
    query, key = attention.w_query(normed), attention.w_key(normed)
    length, heads = len(normed), attention.num_heads
    dim = query.shape[1] // heads
    received = [0.0] * length
    for head, i in itertools.product(range(heads), range(length)):
        part = slice(head * dim, (head + 1) * dim)
        weights = [math.exp(float(query[i, part] @ key[j, part]) / math.sqrt(dim)) for j in range(length)]
        for j in range(length):
            received[j] += weights[j] / sum(weights) / heads / length
    return received


def test_maps_are_those_of_the_trained_model_on_what_it_reads() -> None:
    cell = cell_of(*MAPS, "params.images=[5,2]")
    for job, name in zip(measure.build(cell), ("none", "pixel"), strict=True):
        trainer = make_trainer(cell, max_steps=job.max_steps)
        trainer.fit(job.module, job.fit)
        trainer.test(job.module, job.test, verbose=False)
        rows = job.module.rows()
        assert len(rows) == 1 + 2 * (16 + 16)
        test = measure.splits(cell.data).test.images[[5, 2]]
        shown = test if name == "none" else moved_by_hand(test, 3, 1)
        labels = measure.splits(cell.data).test.labels[[5, 2]].tolist()
        prepared = job.fit.members[0].prepare(test)
        for k, image in enumerate(f"{index} {label}" for index, label in zip((5, 2), labels, strict=True)):
            with torch.no_grad():
                expected = attention_by_hand(job.module.model, prepared[k])
            for i, j in itertools.product(range(4), range(4)):
                at = {"permutation": name, "image": image, "row": i, "column": j}
                four = [int(shown[k, 0, 2 * i + a, 2 * j + b]) for a in (0, 1) for b in (0, 1)]
                assert pick(rows, "map_grey", **at).value == sum(four) / 4
                assert pick(rows, "map_attention", **at).value == pytest.approx(expected[4 * i + j], rel=1e-4)
        (accuracy,) = [r for r in rows if r.quantity == "map_accuracy"]
        assert accuracy.value == job.module.history[-1].accuracy[0]


@pytest.mark.parametrize("overrides", [MAPS, (*DIGITS, "params.model=cnn", "params.permutation=pixel"), ANCHORS])
def test_a_cell_gives_the_same_bytes_again(overrides: tuple[str, ...]) -> None:
    first, second = (to_csv(rows_of(*overrides), key="", scale="smoke", axes=table.AXES) for _ in range(2))
    assert first == second


# --- anchors ---


def test_errors_are_relative_to_the_largest_logit() -> None:
    """Largest change of any logit relative to the largest logit, number by number; breakers are far from round-off."""
    rows = rows_of(*ANCHORS, "params.draws=1", "params.shapes=[2x8x8x2]")
    anchors = measure.Anchors(cell_of(*ANCHORS))
    with torch.no_grad():
        found = {name: (logits, moved) for name, logits, moved in anchors._draw("2x8x8x2", 0, 0)}
    assert set(found) == {
        *("vit_moved_positions", "vit_fixed_positions", "vit_without_positions", "mlp_moved_columns", "cnn_pixels")
    }
    for name, (logits, moved) in found.items():
        assert logits.dtype == torch.float64
        relative = max(abs(float(a) - float(b)) for a, b in zip(logits.flatten(), moved.flatten(), strict=True)) / max(
            abs(float(a)) for a in logits.flatten()
        )
        if name in table.BREAKERS:
            assert relative > 0.01
            assert pick(rows, "breakage_relative", anchor=name, shape="2x8x8x2").value == pytest.approx(relative)
            assert pick(rows, "breakage_eps", anchor=name, shape=None).value == pytest.approx(relative / 2.0**-52)
        else:
            assert relative < 32 * 2.0**-52
            assert pick(rows, "error_eps", anchor=name, shape=None).value == pytest.approx(relative / 2.0**-52)


def run_anchors(root: Path, draws: int = 2) -> report.TableReport:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", "hydra.mode=RUN", f"results={root}"]
    assert entry.main([*command, *ANCHORS, f"params.draws={draws}", "params.shapes=[1x8x8x2,1x12x8x2,3x16x16x4]"]) == 0
    return harness.built(NAME, root)


class Backwards(Permutation):
    """Moves images one way and says the other."""

    def __call__(self, images: Tensor) -> Tensor:
        return Permutation(self.size, self.patch, self.patches, self.pixels.argsort())(images)


def backwards(*arguments: Any) -> Permutation:
    return Backwards(**vars(permutation(*arguments)))


def resting(size: tuple[int, int], seed: int, patch: tuple[int, int] = (1, 1)) -> Permutation:
    made = permutation(size, seed, patch)
    return dataclasses.replace(made, patches=made.patches.sort().values, pixels=made.pixels.sort().values)


def test_anchors_hold_and_planted_faults_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = {f"prior-validity-{name}-anchor" for name in ("vit", "set", "mlp")}
    sound = run_anchors(tmp_path / "sound", draws=20)
    assert sound.problems == []
    assert {claim: verdicts(sound)[claim] for claim in claims} == {claim: {"REPRODUCED"} for claim in claims}
    assert "the same functions up to" in sound.answer and "(60 draws each)" in sound.answer

    module = importlib.import_module(f"attnrepro.tables.{NAME}.measure")
    monkeypatch.setattr(module, "permutation", backwards)
    wrong = run_anchors(tmp_path / "backwards")
    words = verdicts(wrong)
    assert words["prior-validity-vit-anchor"] == words["prior-validity-mlp-anchor"] == {"SOURCE_ERROR"}
    # A set has no order that could be wrong.
    assert words["prior-validity-set-anchor"] == {"INCONCLUSIVE"} and "error_eps of vit_without" not in str(
        wrong.problems
    )
    assert any("error_eps of mlp_moved_columns" in problem for problem in wrong.problems)

    monkeypatch.setattr(module, "permutation", resting)
    idle = run_anchors(tmp_path / "resting").problems
    for name in table.BREAKERS:
        assert any(f"breakage_relative of {name} is 0" in problem for problem in idle)


# --- reading ---

# Accuracies as prototypes gave them, and how far seed k lies from the mean.
EXPECTED = {
    ("cnn", "none"): 0.876,
    ("cnn", "pixel"): 0.850,
    ("vit_patch7", "none"): 0.846,
    ("vit_patch7", "pixel"): 0.836,
    ("mlp", "none"): 0.860,
    ("mlp", "pixel"): 0.860,
}
SPREAD = {"cnn": (0.001, -0.001, 0.0, 0.0005, -0.0005), "vit_patch7": (0.002, 0.0, -0.002, 0.001, -0.001)}
SPREAD["mlp"] = (-0.001, 0.002, -0.001, 0.001, -0.001)
# Seed by seed, in the reverse order for permuted images.
ACCURACIES = {
    (model, name): [round(mean + d, 6) for d in SPREAD[model][:: 1 if name == "none" else -1]]
    for (model, name), mean in EXPECTED.items()
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every model intact and permuted, hardly trained, with five seeds; and maps."""
    folder = tmp_path_factory.mktemp(NAME)
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", f"results={folder}", *DIGITS]
    grid = ("params.study=training", "params.model=cnn,vit_patch2,mlp", "seeds=[0,1,2,3,4]")
    for name in ("none", "pixel"):
        assert entry.main([*command, *grid, f"params.permutation={name}"]) == 0
    assert entry.main([*command, "hydra.mode=RUN", *MAPS]) == 0
    return folder


def as_expected(row: dict[str, str]) -> None:
    """Rows of the digits as if they were those of scale cpu."""
    row["data"] = "fashion_mnist" if row["data"] else ""
    row["model"] = row["model"].replace("patch2", "patch7")
    if not row["image"] and row["n_train"]:
        row["n_train"] = "10000"
        if row["quantity"] == "accuracy":
            row["value"] = repr(ACCURACIES[row["model"], row["permutation"]][int(row["seed"])])


def changed(root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    def both(row: dict[str, str]) -> None:
        as_expected(row)
        edit(row)

    return harness.change(NAME, root, target, both)


def accuracy_of(row: dict[str, str], model: str, permutation: str) -> bool:
    return (row["quantity"], row["model"], row["permutation"]) == ("accuracy", model, permutation)


def line_of(made: report.TableReport, quantity: str, model: str, against: str, permutation: str) -> dict[str, Any]:
    wanted = (quantity, model, against, permutation)
    (line,) = [r for r in made.lines if (r["quantity"], r["model"], r["against"], r["permutation"]) == wanted]
    return line


def test_differences_are_paired_by_seed(root: Path, tmp_path: Path) -> None:
    made = changed(root, tmp_path / "r", lambda row: None)
    values = ACCURACIES

    def check(line: dict[str, Any], expected: list[float]) -> None:
        assert line["n"] == 5
        assert line["estimate"] == pytest.approx(statistics.mean(expected), abs=1e-9)
        half = reference.t.ppf(0.975, 4) * statistics.stdev(expected) / math.sqrt(5)
        assert line["ci_high"] - line["estimate"] == pytest.approx(half, rel=1e-6, abs=1e-9)

    for a, b in (("cnn", "vit_patch7"), ("cnn", "mlp"), ("vit_patch7", "mlp")):
        for name in ("none", "pixel"):
            both = zip(values[a, name], values[b, name], strict=True)
            check(line_of(made, "accuracy_difference", a, b, name), [x - y for x, y in both])
        four = zip(*(values[m, name] for m in (a, b) for name in ("none", "pixel")), strict=True)
        check(
            line_of(made, "double_difference", a, b, "pixel"),
            [(whole_a - moved_a) - (whole_b - moved_b) for whole_a, moved_a, whole_b, moved_b in four],
        )
    for model in SPREAD:
        both = zip(values[model, "none"], values[model, "pixel"], strict=True)
        line = line_of(made, "permutation_loss", model, "", "pixel")
        check(line, [x - y for x, y in both])
        assert (line["theory"] == 0) == (model == "mlp")
    both = zip(values["mlp", "pixel"], values["cnn", "pixel"], strict=True)
    check(line_of(made, "lead_reversed", "cnn", "mlp", "pixel"), [x - y for x, y in both])


def test_every_claim_has_a_verdict_and_the_right_one(root: Path, tmp_path: Path) -> None:
    made = changed(root, tmp_path / "r", lambda row: None)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words["s4-bias-locality"] == words["prior-validity-order-reverses"] == {"TREND_HOLDS"}
    assert words["prior-validity-mlp-anchor"] == {"NOT_RUN"}
    assert "CNN - MLP +0.0160 [" in made.answer
    assert "ahead of the MLP while its assumption holds, and behind it when locality is gone" in made.answer
    assert "(0 on average, by symmetry)" in made.answer
    assert "; the CNN more than the MLP by +0.0260 [+" in made.answer


def test_three_seeds_have_an_interval_and_no_verdict(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["seed"] in ("3", "4"):
            row["status"] = "not_run: three seeds"

    made = changed(root, tmp_path / "r", edit)
    assert verdicts(made)["s4-bias-locality"] == {"INCONCLUSIVE"}
    assert "(3 seeds, paired by seed)" in made.answer
    assert line_of(made, "accuracy_difference", "cnn", "mlp", "none")["n"] == 3


@pytest.mark.parametrize(
    ("permutation", "shift", "claim", "word", "sentence"),
    [
        ("pixel", 0.03, "prior-validity-order-reverses", "TREND_FAILS", "keeps its lead over the MLP without locality"),
        ("pixel", 0.0105, "prior-validity-order-reverses", "INCONCLUSIVE", "CNN - MLP pixels permuted includes 0"),
        ("none", -0.03, "s4-bias-locality", "TREND_FAILS", "is behind the MLP with locality too"),
    ],
)
def test_another_order_gives_another_verdict_and_answer(
    root: Path, tmp_path: Path, permutation: str, shift: float, claim: str, word: str, sentence: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        if accuracy_of(row, "cnn", permutation):
            row["value"] = repr(float(row["value"]) + shift)

    made = changed(root, tmp_path / "r", edit)
    assert word in verdicts(made)[claim]
    assert sentence in made.answer


def test_a_permutation_of_training_images_alone_is_noticed(root: Path, tmp_path: Path) -> None:
    """Test images in another order than training images cost an MLP nearly everything."""

    def edit(row: dict[str, str]) -> None:
        if accuracy_of(row, "mlp", "pixel"):
            row["value"] = repr(0.1 + 0.001 * int(row["seed"]))

    (problem,) = changed(root, tmp_path / "r", edit).problems
    assert "MLP, 10000 images of fashion_mnist, pixels permuted: it loses 0.758" in problem


def test_too_little_training_and_divergence_are_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if accuracy_of(row, "cnn", "none"):
            row["value"] = "0.4"
        if accuracy_of(row, "vit_patch7", "pixel") and row["seed"] == "2":
            row.update(value="", status="failed: diverged")

    made = changed(root, tmp_path / "r", edit)
    assert any("CNN, 10000 images of fashion_mnist, intact: accuracy 0.400 is below 0.5" in p for p in made.problems)
    assert any("ViT, 10000 images of fashion_mnist, pixels permuted: 1 of 5" in p for p in made.problems)
    line = line_of(made, "permutation_loss", "vit_patch7", "", "pixel")
    assert (line["n"], line["n_failed"]) == (4, 1)
    assert line["estimate"] == pytest.approx(0.010)
    assert "up to 1 failed" in made.answer


@pytest.mark.parametrize(
    ("name", "permutation", "expected"),
    [
        ("mlp", "pixel", True),
        ("mlp", "patch7", True),
        ("cnn", "patch7", False),
        ("vit_patch7", "patch7", True),
        ("vit_patch7", "patch4", False),
        ("vit_patch7", "pixel", False),
        ("vit_patch7 without positions", "patch7", True),
    ],
)
def test_where_a_loss_is_zero_on_average(name: str, permutation: str, expected: bool) -> None:
    assert reading.indifferent(name, permutation) is expected


def frame_of(made: report.TableReport) -> pd.DataFrame:
    assert made.shown is not None
    return made.shown.frame()


def test_charts_show_the_pictures_beside_the_differences(root: Path, tmp_path: Path) -> None:
    made = changed(root, tmp_path / "r", lambda row: None)
    by_permutation, differences, examples, attention = reading.charts(frame_of(made))
    assert len(by_permutation["layer"]) == 2 and len(differences["layer"]) == 3
    squares = [layer["data"]["values"] for layer in attention["layer"]]
    assert [len(values) for values in squares] == [2 * 3 * 16, 2 * 3 * 16, 2 * 3]
    assert len(examples["layer"]) == 2
    grey, tint, words = squares
    # The second column of the first row of the permuted second image, and what is written above it.
    (square,) = [s for s in grey if s["x"] == round(1.06 + 1 / 4, 4) and s["y"] == 1.2]
    image = sorted({r["image"] for r in made.shown.lines if r["image"]}, key=lambda name: int(name.split()[0]))[1]
    (line,) = [
        r
        for r in made.shown.lines
        if (r["quantity"], r["permutation"], r["image"], r["row"], r["column"])
        == ("map_grey", "pixel", image, "0", "1")
    ]
    assert square["value"] == line["estimate"]
    assert words[2]["text"] == image and words[3]["text"] == "pixels permuted"
    assert all(0 < s["value"] < 1 for s in tint)
    json.dumps([by_permutation, differences, examples, attention], allow_nan=False)
    assert not [line for line in made.csv.splitlines() if "map_" in line]


def test_differences_against_the_number_of_images(root: Path, tmp_path: Path) -> None:
    made = changed(root, tmp_path / "r", lambda row: None)
    frame = frame_of(made)
    smaller = frame[(frame.n_train == "10000")].assign(n_train="1000", estimate=-0.02)
    both = pd.concat([frame, smaller], ignore_index=True)
    chart = reading.charts(both)[2]
    assert chart["title"] == "lead of the CNN over the MLP"
    assert {v["n_train"] for v in chart["layer"][0]["data"]["values"]} == {1000, 10000}
    assert "against the number of images, intact: -0.0200 [" in reading.answer(both)


def test_params_have_a_value_each() -> None:
    fields = {f.name for f in dataclasses.fields(table.Params)}
    assert set(load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["params"]) == fields


# --- the first sentence ---


def test_the_first_sentence_says_whether_the_lead_is_gone_or_turned() -> None:
    def told(intact: tuple[float, float], moved: tuple[float, float], lost: tuple[float, float] = (0.01, 0.03)) -> str:
        at = {"data": "fashion_mnist", "model": "cnn", "against": "mlp", "n_train": "10000"}
        rows = [
            {**at, "quantity": "accuracy_difference", "permutation": "none", "ci": intact},
            {**at, "quantity": "accuracy_difference", "permutation": "pixel", "ci": moved},
            {**at, "quantity": "double_difference", "permutation": "pixel", "ci": lost},
        ]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told((0.01, 0.03), (-0.01, 0.01))
    assert said.startswith("The CNN's lead over the MLP is gone without locality, and whether it turns is open: ")
    assert "+0.0200 [+0.0100, +0.0300] on intact images" in said and "locality takes with it +0.0200" in said
    assert told((0.01, 0.03), (0.005, 0.01)).startswith("The CNN keeps a lead over the MLP without locality: ")
    assert told((0.01, 0.03), (-0.02, -0.01)).startswith("The CNN's lead over the MLP turns without locality: ")
    assert told((-0.03, -0.01), (-0.02, -0.01)).startswith("The CNN has no lead over the MLP")
    assert "not seen to differ from 0" in told((0.01, 0.03), (-0.01, 0.01), (-0.01, 0.03))
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "accuracy"})) == ""
