"""Losses of distillation against loops, and what a student does with its teacher."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnrepro.nn.distilled_vit import DistilledViT
from attnrepro.training.classifier import Classifier
from attnrepro.training.distillation import (
    WAYS,
    Answers,
    Distillation,
    Remembered,
    Student,
    Teacher,
    agreement,
    distillation_loss,
    others,
)
from attnrepro.training.image_data import ImageData, Member, Split
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Fit

STEPS = 4


def softened(row: list[float], temperature: float) -> list[float]:
    weights = [math.exp(x / temperature) for x in row]
    return [w / sum(weights) for w in weights]


def by_loops(logits: Tensor, labels: Tensor, teacher: Tensor, how: Distillation) -> float:
    """The formulas of the paper, image by image."""
    total = 0.0
    n = len(labels)
    for i in range(n):
        rows = [head[i].tolist() for head in logits] if how.way == "hard_token" else [logits[i].tolist()] * 2
        y, said = int(labels[i]), teacher[i].tolist()
        own = -math.log(softened(rows[0], 1)[y])
        if how.way == "none":
            total += own
        elif how.way.startswith("hard"):
            taught = -math.log(softened(rows[1], 1)[max(range(len(said)), key=said.__getitem__)])
            total += own * (1 - how.hard_weight) + taught * how.hard_weight
        else:
            said = teacher[i - 1 if how.way == "soft_shuffled" else i].tolist()
            p, q = (softened(x, how.temperature) for x in (said, rows[0]))
            divergence = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            total += (1 - how.soft_weight) * own + how.soft_weight * how.temperature**2 * divergence
    return total / n


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_losses_are_those_of_the_paper(way: str, temperature: float) -> None:
    stream = torch.Generator().manual_seed(3)
    heads = (2,) if way == "hard_token" else ()
    logits, teacher = (2 * torch.randn(*h, 7, 5, generator=stream, dtype=torch.float64) for h in (heads, ()))
    labels = torch.randint(5, (7,), generator=stream)
    how = Distillation(way, temperature, 0.3, 0.4)
    found = distillation_loss(logits, labels, teacher, how)
    assert float(found) == pytest.approx(by_loops(logits, labels, teacher, how), rel=1e-12)


def test_a_softened_gradient_does_not_shrink_with_the_temperature() -> None:
    logits, teacher = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.zeros(6, dtype=torch.int64)
    sizes = []
    for temperature in (100.0, 1000.0):
        leaf = logits.clone().requires_grad_()
        distillation_loss(leaf, labels, teacher, Distillation("soft", temperature, 1.0)).backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        # At high temperature: differences of centred logits over classes and images.
        centred = (logits - logits.mean(-1, keepdim=True)) - (teacher - teacher.mean(-1, keepdim=True))
        sizes.append(float((leaf.grad - centred / 5 / 6).abs().max()))
    assert sizes[1] < sizes[0] < 0.02


def member(seed: int = 0, n: int = 32) -> Member:
    stream = torch.Generator().manual_seed(seed)

    def split(count: int) -> Split:
        return Split(torch.randn(count, 1, 8, 8, generator=stream), torch.randint(10, (count,), generator=stream))

    return Member(seed, split(n), split(20), {"test": split(30)})


def fit_of(one: Member, model: str = "vit_patch2") -> Fit:
    return Fit(model, (1, 8, 8), 10, Recipe(0.01, 0.1, STEPS, 1, 8), [one], {"arm": "x"}, data_sha256="0")


def run(module: Classifier, one: Member) -> Any:
    import lightning as L

    data = ImageData([one], 10, module.recipe)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=STEPS,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        inference_mode=False,
        **quiet,
    )
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    return module


def teacher_of(one: Member) -> Teacher:
    return Teacher(run(Remembered(fit_of(one, "cnn"), one, "teacher"), one))


def last_weights(module: Any) -> list[Tensor]:
    return [value.clone() for value in module.checkpoints.states["last"].values()]


def test_a_teacher_that_agrees_with_every_label_changes_nothing_by_its_labels() -> None:
    one = member()
    plain = run(Student(fit_of(one), one, Distillation("none"), teacher_of(one)), one)

    class Parrot(Teacher):
        def logits(self, step: int, images: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(ImageData([one], 10, plain.recipe).batch(step).labels[0], 10).double()

    taught = run(Student(fit_of(one), one, Distillation("hard"), Parrot(teacher_of(one).trained)), one)
    for a, b in zip(last_weights(plain), last_weights(taught), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    (right,) = [r.value for r in taught.rows() if r.quantity == "teacher_right"]
    assert right == 1.0


def test_a_weight_of_zero_is_no_teacher() -> None:
    one = member()
    teacher = teacher_of(one)
    plain = run(Student(fit_of(one), one, Distillation("none"), teacher), one)
    for way in ("soft", "hard"):
        taught = run(Student(fit_of(one), one, Distillation(way, 3.0, 0.0, 0.0), teacher), one)
        for a, b in zip(last_weights(plain), last_weights(taught), strict=True):
            torch.testing.assert_close(a, b)
    taught = run(Student(fit_of(one), one, Distillation("soft"), teacher), one)
    assert any(not torch.equal(a, b) for a, b in zip(last_weights(plain), last_weights(taught), strict=True))


def test_what_a_teacher_says_is_said_of_the_batch_by_the_finished_model() -> None:
    one = member()
    teacher = teacher_of(one)
    before = last_weights(teacher.trained)
    student = run(Student(fit_of(one), one, Distillation("soft"), teacher), one)
    data = ImageData([one], 10, student.recipe)
    model = teacher.trained.model
    model.load_state_dict(dict(zip(teacher.trained.checkpoints.states["best"], before, strict=True)))
    model.eval()
    for step in range(STEPS):
        torch.testing.assert_close(teacher.said[step], model(data.batch(step).images[0]))
    assert sorted(teacher.said) == list(range(STEPS))
    for a, b in zip(before, last_weights(teacher.trained), strict=True):
        assert torch.equal(a, b)


def test_agreement_is_counted_image_by_image() -> None:
    one = member()
    teachers = [teacher_of(one), teacher_of(member(5))]
    student = run(Student(fit_of(one), one, Distillation("none"), teachers[0], teachers[1]), one)
    student.checkpoints.load("best")
    student.eval()
    said = [student.model(image[None].float()).argmax().item() for image in one.tests["test"].images]
    for teacher, quantity in zip(teachers, ("agreement", "agreement_other"), strict=True):
        alike = sum(a == b for a, b in zip(said, teacher.trained.answers.tolist(), strict=True)) / 30
        (row,) = [r for r in student.rows() if r.quantity == quantity]
        assert row.value == pytest.approx(alike)
        assert agreement(student, teacher) == pytest.approx(alike)


def test_both_heads_learn_and_both_are_asked() -> None:
    one = member()
    model = DistilledViT((1, 8, 8), 10, patch=2, embed_dim=16, depth=1, num_heads=2)
    start = [p.detach().clone() for p in model.parameters()]
    student = run(Student(fit_of(one), one, Distillation("hard_token"), teacher_of(one), model=model), one)
    assert student.model is model
    changed = [not torch.equal(a, b) for a, b in zip(start, student.model.parameters(), strict=True)]
    assert all(changed)
    assert student.outcomes()[0].n == 30


def test_a_silent_teacher_has_no_rows() -> None:
    one = member()
    assert run(Remembered(fit_of(one, "cnn"), one, "teacher", is_silent=True), one).rows() == []
    assert run(Remembered(fit_of(one, "cnn"), one, "teacher"), one).rows()


def test_the_other_teacher_is_that_of_the_next_seed() -> None:
    teachers: Any = ["a", "b", "c"]
    assert others(teachers) == ["b", "c", "a"]
    assert others(teachers[:1]) == [None]


def test_answers_keep_what_a_tally_counts() -> None:
    tally = Answers()
    tally.add(torch.tensor([[[0.0, 1.0], [2.0, 0.0]]]), torch.tensor([[1, 1]]))
    tally.add(torch.tensor([[[3.0, 1.0]]]), torch.tensor([[0]]))
    assert tally.answers.tolist() == [1, 0, 0]
    assert float(tally.means()[0]) == pytest.approx(2 / 3)
