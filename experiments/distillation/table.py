"""distillation: a CNN, and ViTs that learn from its answers in several ways.

Document 004, section 5.3, on DeiT. Losses are those of `attnrepro.training.distillation`; the rows are read in
``reading.py``.
"""

import math
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.theory.image_models import PRESETS

NAME = "distillation"
AXES = ("data", "arm", "augmentation", "n_train", "learning_rate")
# Scale full trains on more images besides; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("training", "tuning")
TEACHER = "teacher"
# As `attnrepro.training.distillation.WAYS`, without torch.
STUDENTS = ("none", "soft", "soft_shuffled", "hard", "hard_token")
# What a teacher says of another image: trained at the rate of what it controls.
CONTROL = "soft_shuffled"
AUGMENTATIONS = ("none", "shift_flip")
# Rough CPU seconds of one step of 64 images, and of reading 1 000 images.
TEACHER_SECONDS, STUDENT_SECONDS = (0.0125, 0.08), (0.0095, 0.05)


@dataclass
class Params:
    """What one cell trains; see the YAML for each key."""

    study: str
    arms: list[str]
    teacher: str
    student: str
    n_train: int
    augmentation: str
    shift: int
    temperature: float
    soft_weight: float
    hard_weight: float
    updates: int
    passes: int
    most_updates: int | None
    batch_size: int
    tuned_at: list[int]
    teacher_decay: list[float]
    student_decay: list[float]
    teacher_rate: list[float]
    none_rate: list[float]
    soft_rate: list[float]
    hard_rate: list[float]
    hard_token_rate: list[float]
    tried: list[float]
    n_validation: int | None
    n_test: int | None

    def __post_init__(self) -> None:
        models = {family: tuple(n for n in PRESETS if PRESETS[n][0] == family) for family in ("cnn", "vit")}
        one_of(self, study=STUDIES, teacher=models["cnn"], student=models["vit"], augmentation=AUGMENTATIONS)
        one_of(self, arms=STUDENTS)
        in_range(self, n_train=(1, 1e9), shift=(0, 64), temperature=(0.01, 1e6), soft_weight=(0, 1), hard_weight=(0, 1))
        in_range(self, updates=(1, 1e9), passes=(0, 1e6), most_updates=(1, 1e9), batch_size=(1, 1e6))
        in_range(self, tuned_at=(1, 1e9), tried=(1e-9, 100), n_validation=(1, 1e9), n_test=(1, 1e9))
        distinct(self, "arms", "tuned_at", "tried")
        for name in (f"{kind}_{what}" for what, kinds in self._chosen() for kind in kinds):
            values = getattr(self, name)
            if len(values) != len(self.tuned_at):
                raise ValueError(f"{name}={values} must have a value for each of tuned_at={self.tuned_at}")
        in_range(self, teacher_decay=(0, 100), student_decay=(0, 100), teacher_rate=(1e-9, 100), none_rate=(1e-9, 100))
        in_range(self, soft_rate=(1e-9, 100), hard_rate=(1e-9, 100), hard_token_rate=(1e-9, 100))

    @staticmethod
    def _chosen() -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("decay", (TEACHER, "student")), ("rate", (TEACHER, *(arm for arm in STUDENTS if arm != CONTROL)))

    def rates(self, arm: str) -> tuple[float, float]:
        """Learning rate and weight decay of an arm, chosen at the largest tuned size that is not above this one."""
        sizes = [size for size in self.tuned_at if size <= self.n_train]
        index = self.tuned_at.index(max(sizes, default=min(self.tuned_at)))
        decays = self.teacher_decay if arm == TEACHER else self.student_decay
        chosen: list[float] = getattr(self, "soft_rate" if arm == CONTROL else f"{arm}_rate")
        return chosen[index], decays[index]

    def steps(self) -> int:
        """Updates of every training: at least ``updates``, and ``passes`` over the images."""
        steps = max(self.updates, self.passes * math.ceil(self.n_train / self.batch_size))
        return min(steps, self.most_updates or steps)


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p = cell.params
    validation, test = min(5, (p.n_validation or 1e9) / 1000), min(10, (p.n_test or 1e9) / 1000)
    read = validation + (test if p.study == "training" else 0)
    tried = len(p.tried) if p.study == "tuning" else 1
    teacher = p.steps() * TEACHER_SECONDS[0] + read * TEACHER_SECONDS[1]
    student = p.steps() * STUDENT_SECONDS[0] + read * STUDENT_SECONDS[1]
    return 0.5 + len(cell.seeds) * (teacher + p.steps() * 0.003 + len(p.arms) * tried * student)
