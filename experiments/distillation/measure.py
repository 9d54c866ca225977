"""distillation, measured: a teacher for each seed, then its students, on the same views of the same images."""

from torch import nn

from attnrepro.config import Cell
from attnrepro.data.augment import Augmentation
from attnrepro.data.images import Splits
from attnrepro.data.subsets import subset
from attnrepro.fetch.download import DataUnavailable
from attnrepro.nn.distilled_vit import seeded_distilled_vit
from attnrepro.tables.distillation.table import TEACHER, Params
from attnrepro.theory.image_models import ImageShape
from attnrepro.training.distillation import TEST, Distillation, Remembered, Student, Teacher, others
from attnrepro.training.image_data import ImageData, Member
from attnrepro.training.measurement import Job
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Fit, member, part, splits


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: teachers of all seeds, then seed by seed the students of every arm."""
    p = cell.params
    images = splits(cell.data)
    if p.n_train > len(images.train):
        raise DataUnavailable(f"{images.train.name} has {len(images.train)} training images, not n_train={p.n_train}")
    members = [data(cell, images, seed) for seed in cell.seeds]
    made = [taught(p, images, one) for one in members]
    teachers = [teacher for teacher, _ in made]
    jobs = [job for _, job in made]
    for one, teacher, other in zip(members, teachers, others(teachers), strict=True):
        for arm in p.arms:
            for rate in p.tried if p.study == "tuning" else [None]:
                jobs.append(student(p, images, one, arm, teacher, other, rate))
    return jobs


def data(cell: Cell, images: Splits, seed: int) -> Member:
    """Images of a seed; none to test on while rates are tuned."""
    p = cell.params
    tests = {} if p.study == "tuning" else {TEST: part(images.test, p.n_test)}
    return member(seed, subset(images.train, p.n_train, seed).images, part(images.validation, p.n_validation), tests)


def taught(p: Params, images: Splits, one: Member) -> tuple[Teacher, Job]:
    """A teacher and the job that trains it."""
    found = fit(p, images, one, TEACHER, None)
    # Tuning is of students: rows of a teacher there would be taken for those of one more seed.
    trained = Remembered(found, one, f"{TEACHER}, seed {one.seed}", is_silent=p.study == "tuning")
    return Teacher(trained), job(p, images, one, trained)


def student(
    p: Params, images: Splits, one: Member, arm: str, teacher: Teacher, other: Teacher | None, rate: float | None
) -> Job:
    """The job that trains one arm of one seed; ``rate`` is given for tuning."""
    how = Distillation(arm, p.temperature, p.soft_weight, p.hard_weight)
    model: nn.Module | None = None
    if arm == "hard_token":
        model = seeded_distilled_vit(one.seed, p.student, shape_of(images), len(images.train.classes))
    trained = Student(fit(p, images, one, arm, rate), one, how, teacher, other, model)
    return job(p, images, one, trained)


def fit(p: Params, images: Splits, one: Member, arm: str, rate: float | None) -> Fit:
    """What is trained, by which recipe, and the axes of its rows; ``rate`` is given for tuning."""
    chosen, decay = p.rates(arm)
    axes: dict[str, object]
    axes = {"data": images.train.name, "arm": arm, "augmentation": p.augmentation, "n_train": p.n_train}
    if rate is not None:
        axes["learning_rate"] = rate
    return Fit(
        p.teacher if arm == TEACHER else p.student,
        shape_of(images),
        len(images.train.classes),
        Recipe(chosen if rate is None else rate, decay, p.steps(), 1, p.batch_size),
        [one],
        axes,
        data_sha256=images.sha256,
    )


def job(p: Params, images: Splits, one: Member, trained: Remembered) -> Job:
    """Training on the views of a seed, then the test where there is one."""
    augment = Augmentation(shift=p.shift, flip=True) if p.augmentation == "shift_flip" else None
    views = ImageData([one], len(images.train.classes), trained.recipe, augment=augment)
    return Job(trained, views if one.tests else None, fit=views, max_steps=trained.recipe.steps)


def shape_of(images: Splits) -> ImageShape:
    """Channels, height and width."""
    channels, height, width = images.train.images.shape[1:]
    return channels, height, width
