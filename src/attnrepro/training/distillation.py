"""Students that learn from the labels and from what a trained teacher says of the same images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnrepro.nn.distilled_vit import DistilledViT
from attnrepro.results.rows import Row
from attnrepro.training.classifier import Tally
from attnrepro.training.image_data import Batch, Member
from attnrepro.training.trained import Fit, Trained

WAYS = ("none", "soft", "soft_shuffled", "hard", "hard_token")
# Test set on which teacher and students are compared.
TEST = "test"


@dataclass(frozen=True)
class Distillation:
    """How a student learns from its teacher.

    ``way`` "none": from the labels alone. "soft": the cross-entropy with the labels, and in a share ``soft_weight`` of
    the loss temperature^2 times the divergence of the student's probabilities from the teacher's, both softened by
    the temperature. "soft_shuffled": the same with what the teacher says of the next image of the batch, a control.
    "hard": half the cross-entropy with the labels and half with the teacher's labels. "hard_token": the same, each half
    with a head of its own (`attnrepro.nn.distilled_vit`).

    Source: Touvron et al. 2021, section 4: soft, hard-label and token distillation; the divergence is taken from the
    teacher to the student, as in Hinton et al. 2015 and in the authors' code.
    """

    way: str
    temperature: float = 3.0
    soft_weight: float = 0.1
    hard_weight: float = 0.5


def distillation_loss(logits: Tensor, labels: Tensor, teacher: Tensor, how: Distillation) -> Tensor:
    """Mean loss of a batch, in nats: logits ``[n, classes]`` of student and teacher, labels ``[n]``.

    For "hard_token" the logits are those of both heads, ``[2, n, classes]``.
    """
    if how.way == "none":
        return cross_entropy(logits, labels)
    if how.way.startswith("soft"):
        said = teacher.roll(1, 0) if how.way == "soft_shuffled" else teacher
        weight = how.soft_weight
        return (1 - weight) * cross_entropy(logits, labels) + weight * softened_divergence(
            logits, said, how.temperature
        )
    of_class, of_teacher = logits if how.way == "hard_token" else (logits, logits)
    own, taught = cross_entropy(of_class, labels), cross_entropy(of_teacher, teacher.argmax(-1))
    return (1 - how.hard_weight) * own + how.hard_weight * taught


def softened_divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """temperature^2 KL(teacher || student), both softened, mean over the batch in nats."""
    log_own, log_said = ((x / temperature).log_softmax(-1) for x in (logits, teacher))
    return temperature**2 * (log_said.exp() * (log_said - log_own)).sum(-1).mean()


class Answers(Tally):
    """A tally that keeps every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits ``[1, n, classes]`` and labels ``[1, n]``."""
        super().add(logits, labels)
        self.kept.append(logits[0].argmax(-1).cpu())

    @property
    def answers(self) -> Tensor:
        """Labels given, ``[n]``, in the order of the images."""
        return torch.cat(self.kept)


class Remembered(Trained):
    """A training whose best checkpoint's answers on the test set are kept.

    ``name`` ends what is logged; ``is_silent``: it has no rows, because it is trained for its students' sake alone.
    """

    def __init__(self, fit: Fit, member: Member, name: str, *, is_silent: bool = False) -> None:
        super().__init__(fit, [member])
        self.label, self.is_silent = f"/{name}", is_silent

    def rows(self) -> list[Row]:
        """Rows of the training, if any."""
        return [] if self.is_silent else super().rows()

    def on_test_start(self) -> None:
        """Keep answers."""
        self.tested["best", TEST] = Answers()

    @property
    def answers(self) -> Tensor:
        """Labels of the test images ``[n]``."""
        tally = self.tested["best", TEST]
        assert isinstance(tally, Answers)
        return tally.answers


class Teacher:
    """What a model that was trained earlier says of its students' batches.

    Students of one seed see the same images in the same step, so what is said of a step is worked out once.
    """

    def __init__(self, trained: Remembered) -> None:
        self.trained = trained
        self.said: dict[int, Tensor] = {}

    def logits(self, step: int, images: Tensor) -> Tensor:
        """Logits ``[n, classes]`` of the batch of a step, ``[1, n, channels, height, width]``."""
        if not self.said:
            self.trained.checkpoints.load("best")
        if step not in self.said:
            self.trained.to(images.device).eval()
            with torch.no_grad():
                self.said[step] = self.trained(images)[0]
        return self.said[step].to(images.device)


class Student(Remembered):
    """A ViT that is taught; ``model`` takes the place of the preset's where it has a token for that.

    Rows besides those of `Trained`: ``agreement`` is the share of test images that student and teacher label alike,
    ``agreement_other`` that with the teacher of another seed, where there is one; ``teacher_right`` the share of
    training views that the teacher labels as they are labelled.
    """

    def __init__(
        self,
        fit: Fit,
        member: Member,
        how: Distillation,
        teacher: Teacher,
        other: Teacher | None = None,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(fit, member, f"{how.way}, seed {member.seed}")
        if model is not None:
            self.model = model
        self.how, self.teacher, self.other = how, teacher, other
        self.right: list[Tensor] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The mean loss with labels and teacher."""
        said = self.teacher.logits(self.trainer.global_step, batch.images)
        labels = batch.labels[0]
        if isinstance(self.model, DistilledViT):
            logits = torch.stack(self.model.both(batch.images[0]))
        else:
            logits = self(batch.images)[0]
        loss = distillation_loss(logits, labels, said, self.how)
        self.right.append((said.argmax(-1) == labels).double().mean())
        self.diverged |= self.checkpoints.running & ~loss.detach().isfinite()
        self.log(f"loss{self.label}", loss.detach())
        return loss

    def rows(self) -> list[Row]:
        """Rows of the training, then how alike it and its teacher are."""
        rows, found = super().rows(), {}
        if self.tested:
            found["agreement"] = agreement(self, self.teacher)
            if self.other is not None:
                found["agreement_other"] = agreement(self, self.other)
        found["teacher_right"] = float(torch.stack(self.right).mean())
        at: dict[str, Any] = {"statistic": "mean", "seed": self.seeds[0], "n": 1}
        status = "failed: diverged" if bool(self.diverged[0]) else "ok"
        return [*rows, *(Row(name, value, self._axes, status=status, **at) for name, value in found.items())]


def agreement(student: Remembered, teacher: Teacher) -> float:
    """Share of the test images that both label alike."""
    return float((student.answers == teacher.trained.answers).double().mean())


def others(teachers: Sequence[Teacher]) -> list[Teacher | None]:
    """For each teacher the next one, as in a ring; none where there is only one."""
    if len(teachers) < 2:
        return [None] * len(teachers)
    return [*teachers[1:], teachers[0]]
