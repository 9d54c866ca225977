"""distillation: what is trained on what, and that every planted fault changes a verdict or is a problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput, load_yaml
from attnrepro.nn.distilled_vit import DistilledViT
from attnrepro.results.published import load_published
from attnrepro.tables.distillation import measure, reading, table
from attnrepro.training import distillation

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "distillation"
DIGITS = ("data=digits", "params.n_train=100", "seeds=[0,1]")
ALL = f"params.arms=[{','.join(table.STUDENTS)}]"

# Accuracy, agreement with the own teacher and with another that a whole training may end with.
TRAINED = {
    "teacher": (0.85, 1.0, 1.0),
    "none": (0.76, 0.78, 0.77),
    "soft": (0.78, 0.81, 0.785),
    "soft_shuffled": (0.75, 0.77, 0.765),
    "hard": (0.77, 0.80, 0.780),
    "hard_token": (0.775, 0.805, 0.782),
}
QUANTITIES = ("accuracy", "agreement", "agreement_other")


def jobs_of(*overrides: str) -> list[Any]:
    return measure.build(harness.cell_of(NAME, *DIGITS, *overrides))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distillation")
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", "hydra.mode=RUN", f"results={folder}"]
    assert entry.main([*command, *DIGITS[:2], "seeds=[0,1,2,3,4]", ALL]) == 0
    return folder


def trained(row: dict[str, str]) -> None:
    """A training of one update with what a whole one on other images may reach."""
    row.update(data="fashion_mnist", n_train="1000")
    jitter = int(row["seed"]) * (0.001 + 0.0001 * list(TRAINED).index(row["arm"]))
    if row["quantity"] in QUANTITIES:
        row["value"] = repr(TRAINED[row["arm"]][QUANTITIES.index(row["quantity"])] + jitter)
    if row["quantity"] == "teacher_right":
        row["value"] = "0.97"


def change(root: Path, target: Path, *edits: Callable[[dict[str, str]], None]) -> report.TableReport:
    def edit(row: dict[str, str]) -> None:
        for one in edits:
            one(row)

    return harness.change(NAME, root, target, edit)


# --- what is trained ---


def test_arms_are_those_that_can_be_taught() -> None:
    assert set(table.STUDENTS) == set(distillation.WAYS)


def test_teachers_come_first_and_students_learn_from_their_own() -> None:
    jobs = jobs_of(ALL)
    assert [type(job.module).__name__ for job in jobs] == ["Remembered"] * 2 + ["Student"] * 10
    for job in jobs[2:]:
        student = job.module
        own, other = (jobs[:2], jobs[1::-1])[student.seeds[0]]
        assert student.teacher.trained is own.module and student.other.trained is other.module
        assert own.module.seeds == student.seeds and other.module.seeds != student.seeds
        assert isinstance(student.model, DistilledViT) is (student.how.way == "hard_token")
        assert (student.how.temperature, student.how.soft_weight, student.how.hard_weight) == (3.0, 0.1, 0.5)


def test_all_arms_of_a_seed_see_the_same_views() -> None:
    jobs = jobs_of(ALL, "seeds=[4]")
    batches = [job.fit.batch(3) for job in jobs]
    assert all(torch.equal(batches[0].images, batch.images) for batch in batches)
    assert not torch.equal(
        jobs_of(ALL, "seeds=[4]", "params.augmentation=none")[0].fit.batch(3).images, batches[0].images
    )
    assert not torch.equal(jobs_of(ALL, "seeds=[5]")[0].fit.batch(3).images, batches[0].images)


def test_students_start_alike() -> None:
    students = [job.module.model for job in jobs_of(ALL, "seeds=[4]")[1:]]
    for name, value in students[0].named_parameters():
        assert all(torch.equal(value, dict(model.named_parameters())[name]) for model in students)


def test_nothing_is_tested_while_rates_are_tuned() -> None:
    jobs = jobs_of("params.study=tuning", "params.arms=[soft,hard]", "params.tried=[0.001,0.01]")
    assert all(job.test is None and job.fit.members[0].tests == {} for job in jobs)
    tried = [(job.module.seeds[0], job.module.how.way, job.module.recipe.learning_rate) for job in jobs[2:]]
    assert tried == [(s, way, rate) for s in (0, 1) for way in ("soft", "hard") for rate in (0.001, 0.01)]
    assert [job.module.is_silent for job in jobs[:2]] == [True, True]


@pytest.mark.parametrize(("n_train", "steps"), [(1000, 400), (10000, 785)])
def test_every_arm_gets_as_many_updates(n_train: int, steps: int) -> None:
    p = harness.cell_of(NAME, f"params.n_train={n_train}", "params.most_updates=null").params
    assert p.steps() == steps
    presets = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]["distillation"]["fashion_mnist"]
    rates = load_yaml(paths.conf_dir() / "rates" / "images.yaml")["fashion_mnist"]
    index = [1000, 10000].index(n_train)
    for arm in table.STUDENTS:
        chosen = presets["soft" if arm == table.CONTROL else arm][index]
        assert p.rates(arm) == (chosen, rates["vit_patch7"]["weight_decay"][index])
    assert p.rates(table.TEACHER) == tuple(rates["cnn"][name][index] for name in ("learning_rate", "weight_decay"))


# --- what is made of it ---


def test_every_claim_has_a_verdict_and_the_right_one(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "r", trained)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words == {
        "own-distill-gains": {"TREND_HOLDS", "NOT_RUN"},
        "own-distill-hard-over-soft": {"TREND_FAILS"},
        "own-distill-token-over-hard": {"TREND_HOLDS"},
        "own-distill-nearer": {"TREND_HOLDS"},
        "own-distill-this-teacher": {"TREND_HOLDS"},
        "own-distill-catches-up": {"TREND_FAILS"},
    }
    assert "On 1000 images of fashion_mnist, moved and mirrored, the ViT reaches 0.76" in made.answer
    assert "soft +0.0" in made.answer and "with the answers to other images -0.0" in made.answer
    assert made.shown is not None
    assert [chart["title"] for chart in reading.charts(made.shown.frame())] == [
        "test accuracy, 1000 images, moved and mirrored",
        "agreement with the teacher, 1000 images, moved and mirrored",
    ]


def test_gains_are_differences_of_equal_seeds(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "r", trained)
    lines = {(r["quantity"], r["arm"]): r for r in made.lines if r["statistic"] == "paired_difference" and r["n"]}
    # 0.0001 for each place in the list, times the mean seed.
    assert lines["accuracy_gain", "soft - none"]["estimate"] == pytest.approx(0.02 + 0.0002)
    assert lines["accuracy_gain", "hard - soft"]["estimate"] == pytest.approx(-0.01 + 2 * 0.0002)
    assert lines["agreement_gain", "hard - none"]["estimate"] == pytest.approx(0.02 + 3 * 0.0002)
    own = (0.81 - 0.785) - (0.78 - 0.77)
    assert lines["own_teacher_gain", "soft - none"]["estimate"] == pytest.approx(own)
    assert lines["accuracy_gain", "soft - none"]["n"] == 5


# --- planted faults ---


def test_answers_to_other_images_that_help_are_a_problem(root: Path, tmp_path: Path) -> None:
    def helps(row: dict[str, str]) -> None:
        if row["arm"] == "soft_shuffled" and row["quantity"] in ("accuracy", "agreement"):
            row["value"] = repr(0.9 + 0.001 * int(row["seed"]))

    problems = change(root, tmp_path / "r", trained, helps).problems
    assert len([p for p in problems if "not its answers are what helps" in p]) == 2


def test_a_teacher_behind_its_student_is_a_problem(root: Path, tmp_path: Path) -> None:
    def behind(row: dict[str, str]) -> None:
        if row["arm"] == "teacher" and row["quantity"] == "accuracy":
            row["value"] = repr(0.7 + 0.001 * int(row["seed"]))

    assert any("it has nothing to teach" in p for p in change(root, tmp_path / "r", trained, behind).problems)


def test_labels_that_are_the_same_must_change_nothing(root: Path, tmp_path: Path) -> None:
    def all_right(row: dict[str, str]) -> None:
        if row["quantity"] == "teacher_right" and row["seed"] == "3":
            row["value"] = "1"

    problems = change(root, tmp_path / "r", trained, all_right).problems
    assert (
        len(problems) == 1 and "seed 3: labels that are the teacher's too change the accuracy by +0.01" in problems[0]
    )


def test_a_diverged_seed_is_counted(root: Path, tmp_path: Path) -> None:
    def diverged(row: dict[str, str]) -> None:
        if row["arm"] == "hard" and row["seed"] == "2" and row["quantity"] == "accuracy":
            row.update(value="", status="failed: diverged")

    made = change(root, tmp_path / "r", trained, diverged)
    assert any("hard, fashion_mnist, 1000 images: 1 seeds diverged" in p for p in made.problems)
    (line,) = [r for r in made.lines if r["quantity"] == "accuracy_gain" and r["arm"] == "hard - none" and r["n"]]
    assert line["n"] == 4


@pytest.mark.parametrize(
    ("tried", "problem"),
    [([1.0, 0.5, 2.0], None), ([0.5, 1.0, 0.25], "the presets have rate"), ([1.0, 0.5], "at the edge of those tried")],
)
def test_rates_are_the_best_of_those_tried(tried: list[float], problem: str | None) -> None:
    used = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]["distillation"]["fashion_mnist"]
    rows = [
        {
            "quantity": "validation_accuracy",
            "data": "fashion_mnist",
            "arm": "soft",
            "n_train": "1000",
            "learning_rate": repr(used["soft"][0] * factor),
            "estimate": 0.8 - 0.1 * rank,
            "n": 2,
            "n_failed": 0,
        }
        for rank, factor in enumerate(tried)
    ]
    told = list(reading._tuned(pd.DataFrame(rows)))
    assert len(told) == (problem is not None)
    assert problem is None or problem in told[0]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.arms=[none,teacher]", "must be one of none, soft"),
        ("params.teacher=vit_patch2", "teacher=vit_patch2 must be one of cnn"),
        ("params.student=cnn", "student=cnn must be one of vit"),
        ("params.hard_rate=[0.1,0.2]", "must have a value for each of tuned_at"),
        ("params.soft_weight=2", "between 0 and 1"),
        ("params.augmentation=crop", "must be one of none, shift_flip"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput) as error:
        harness.cell_of(NAME, *DIGITS, override)
    assert word in str(error.value)


def test_more_images_than_there_are_is_not_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = [f"experiment={NAME}", "scale=smoke", "tracking=disabled", "hydra.mode=RUN", f"results={tmp_path}"]
    assert entry.main([*command, "data=digits", "params.n_train=5000"]) == 1
    assert "digits has 1000 training images, not n_train=5000" in capfd.readouterr().err


# --- the first sentence ---


def test_the_first_sentence_counts_what_a_teacher_raises_and_lowers() -> None:
    def told(by: float, nearer: float) -> str:
        at = {"data": "fashion_mnist", "augmentation": "shift_flip", "n_train": "1000"}
        plain = [0.70, 0.71, 0.72]
        rows = [
            {**at, "quantity": quantity, "arm": arm, "values": [v + more + 0.001 * i for i, v in enumerate(plain)]}
            for quantity, gain in (("accuracy", by), ("agreement", nearer))
            for arm, more in (("none", 0.0), ("soft", gain))
        ]
        # Of what is compared each seed differs by the same but for the last digit.
        rows[1]["values"] = [v + 0.0001 * i for i, v in enumerate(rows[1]["values"])]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    said = told(0.05, 0.04)
    assert said.startswith("It gains each time: ") and "in 1 of 1 trials, at best +0.0501 [+" in said
    assert "it answers more as the CNN does in 1 of 1, at most +0.0400" in said
    said = told(-0.05, -0.04)
    assert said.startswith("No gain is seen: ") and "in 0 of 1 trials and lowered it in 1" in said
    assert "more as the CNN does in 0 of 1" in said
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "loss"})) == ""
