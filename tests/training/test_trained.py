"""Rows of trained classifiers: every seed and checkpoint, failures kept, validation rows without a test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnrepro.config import DataConfig
from attnrepro.data import images as image_sets
from attnrepro.data.digits import load_digits
from attnrepro.results.rows import Row
from attnrepro.training import trained
from attnrepro.training.image_data import Split
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Fit, Trained, member, part, splits
from attnrepro.training.trainer import make_trainer

DIGITS = load_digits()
RECIPE = Recipe(0.01, 0.1, steps=6, evaluations=3, batch_size=16)


def fit_of(model: str, seeds: Sequence[int], *, recipe: Recipe = RECIPE, tested: bool = True, **more: Any) -> Fit:
    first, second = part(DIGITS.take(torch.arange(40, 80))), part(DIGITS.take(torch.arange(80, 130)))
    tests = {"plain": second, "black": Split(second.images * 0, second.labels)} if tested else {}
    members = [member(seed, DIGITS.take(torch.arange(40) + 200 * seed), first, tests) for seed in seeds]
    return Fit(model, (1, 8, 8), 10, recipe, members, {"model": model}, **more)


def rows_of(fit: Fit) -> list[Row]:
    cell: Any = SimpleNamespace(threads=1, accelerator="cpu", precision="32-true", timing=False)
    rows: list[Row] = []
    for job in fit.jobs():
        trainer = make_trainer(cell, max_steps=job.max_steps)
        trainer.fit(job.module, job.fit)
        if job.test is not None:
            trainer.test(job.module, job.test, verbose=False)
        rows += job.module.rows()
    return rows


@pytest.mark.parametrize(("model", "fits"), [("mlp", 1), ("logistic_regression", 1), ("vit_patch2", 3), ("cnn", 3)])
def test_mlps_train_together_and_others_one_by_one(model: str, fits: int) -> None:
    assert len(fit_of(model, [0, 1, 2]).jobs()) == fits


def test_rows_of_every_seed_test_set_and_checkpoint() -> None:
    rows = rows_of(fit_of("mlp", [3, 5], test_axes={"black": {"shift": 1}}))
    assert {row.seed for row in rows} == {3, 5}
    one = [row for row in rows if row.seed == 3]
    assert [(row.quantity, row.axes.get("shift")) for row in one] == [
        *(("accuracy", None), ("loss", None), ("accuracy", 1), ("loss", 1)),
        *(("last_accuracy", None), ("last_loss", None), ("last_accuracy", 1), ("last_loss", 1)),
        *(("validation_accuracy", None), ("best_step", None), ("last_step", None)),
    ]
    assert all(row.n == 1 and row.sd is None and row.status == "ok" and row.axes["model"] == "mlp" for row in one)
    assert {row.unit for row in one if row.quantity.endswith("loss")} == {"nat"}


def test_a_seed_has_the_same_rows_alone_and_beside_others() -> None:
    both, alone = rows_of(fit_of("mlp", [0, 1])), rows_of(fit_of("mlp", [1]))
    beside = [row.value for row in both if row.seed == 1]
    assert [row.value for row in alone] == pytest.approx(beside, abs=1e-6)


def test_without_a_test_set_there_are_validation_rows_only() -> None:
    fit = fit_of("vit_patch2", [0], tested=False)
    assert [job.test for job in fit.jobs()] == [None]
    assert {row.quantity for row in rows_of(fit)} == {"validation_accuracy", "best_step", "last_step"}


def test_a_seed_that_diverges_has_failed_and_is_kept() -> None:
    wild = Recipe(1e30, 0.0, steps=6, evaluations=3, batch_size=16)
    rows = rows_of(fit_of("mlp", [0, 1], recipe=wild))
    assert {row.seed for row in rows} == {0, 1}
    assert {row.status for row in rows} == {"failed: diverged"}
    assert all(math.isnan(row.value) or math.isfinite(row.value) for row in rows)


def test_fits_of_one_run_are_told_apart_in_the_log() -> None:
    labels = [job.module.label for job in fit_of("vit_patch2", [0, 4]).jobs() if isinstance(job.module, Trained)]
    assert labels == ["/seed 0", "/seed 4"]
    (job,) = fit_of("mlp", [0, 4]).jobs()
    assert isinstance(job.module, Trained)
    assert job.module.label == ""


def test_images_are_read_once_for_cells_that_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(trained, "load", lambda data: read.append(data.name) or image_sets.load(data))
    trained._splits.cache_clear()
    for _ in range(3):
        assert len(splits(DataConfig("digits")).train) == 1000
    assert read == ["digits"]
    trained._splits.cache_clear()
