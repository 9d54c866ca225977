"""Training of classifiers against plain PyTorch loops: one model at a time, torch's own optimiser and clipping."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnrepro.data.streams import generator
from attnrepro.nn.cnn import ResNet
from attnrepro.nn.mlp import MLP
from attnrepro.nn.vit import ViT
from attnrepro.training import image_data
from attnrepro.training.checkpoints import Checkpoints
from attnrepro.training.classifier import Classifier, Outcome, Tally, clip_members
from attnrepro.training.image_data import ImageData, Member, Split
from attnrepro.training.recipe import Recipe
from attnrepro.training.trainer import make_trainer

SHAPE = (1, 8, 8)
CLASSES = 3


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Plain(Classifier):
    """A classifier that nothing but its outcomes is wanted of."""

    def rows(self) -> list[Any]:
        return []


def split(n: int, seed: int, *, noise: float = 1.0) -> Split:
    """Images around one pattern a class, the classes in turn."""
    stream = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(n) % CLASSES
    return Split(patterns[labels] + noise * torch.randn(n, *SHAPE, generator=stream), labels)


def member(seed: int, n: int = 20, *, n_validation: int = 30, noise: float = 3.0) -> Member:
    one, two, three, four = (split(k, 10 * seed + i, noise=noise) for i, k in enumerate((n, n_validation, 25, 11)))
    return Member(seed, one, two, {"plain": three, "shifted": four})


def mlp(seed: int, hidden: Sequence[int] = (6,)) -> MLP:
    torch.manual_seed(seed)
    return MLP(SHAPE, CLASSES, hidden=hidden)


def fit(
    models: Sequence[nn.Module], data: ImageData, precision: str = "64-true", *, seed: int = 0, **settings: Any
) -> Plain:
    """Train and test as a cell is."""
    classifier = Plain(models, data.recipe, seed=seed, **settings)
    cell: Any = SimpleNamespace(threads=1, accelerator="cpu", precision=precision, timing=False)
    trainer = make_trainer(cell, max_steps=data.recipe.steps)
    trainer.fit(classifier, data)
    trainer.test(classifier, data, verbose=False)
    return classifier


RECIPE = Recipe(learning_rate=0.05, weight_decay=0.3, steps=24, evaluations=6, batch_size=8, clip=0.5)


@dataclasses.dataclass
class Alone:
    """What a plain loop finds: validation accuracies and states of all evaluations, and which of them was the best."""

    accuracy: list[float] = dataclasses.field(default_factory=list)
    evaluated: list[tuple[int, dict[str, Tensor]]] = dataclasses.field(default_factory=list)
    best: int = 0

    def states(self) -> dict[str, tuple[int, dict[str, Tensor]]]:
        return {"best": self.evaluated[self.best], "last": self.evaluated[-1]}


def batches_of(seed: int, n: int, size: int) -> Iterator[Tensor]:
    """One permutation after the other, cut into batches."""
    left, epoch = torch.zeros(0, dtype=torch.int64), 0
    while True:
        while len(left) < size:
            left = torch.cat([left, torch.randperm(n, generator=generator(seed, "order", epoch))])
            epoch += 1
        yield left[:size]
        left = left[size:]


def trained_alone(model: nn.Module, own: Member, recipe: Recipe, augment: Any = None) -> Alone:
    """Everything by itself in float64: decay by dimension, schedule, clipping, selection, patience."""
    model.double().train()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate, foreach=False)
    rising = math.ceil(0.05 * recipe.steps)
    found = Alone()
    order = batches_of(own.seed, len(own.train.labels), min(recipe.batch_size, len(own.train.labels)))
    for step, chosen in zip(range(recipe.steps), order, strict=False):
        cosine = 0.5 * (1 + math.cos(math.pi * (step - rising) / (recipe.steps - rising)))
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * ((step + 1) / rising if step < rising else cosine)
        x = own.train.images[chosen]
        x = x if augment is None else augment(x, own.seed, step)
        optimizer.zero_grad()
        cross_entropy(model(own.prepare(x).double()), own.train.labels[chosen]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        if (step + 1) % (recipe.steps // recipe.evaluations):
            continue
        model.eval()
        with torch.no_grad():
            right = model(own.validation.images.double()).argmax(1) == own.validation.labels
        model.train()
        found.accuracy.append(int(right.sum()) / len(right))
        found.evaluated.append((step + 1, {k: v.clone() for k, v in model.state_dict().items()}))
        if found.accuracy[-1] > found.accuracy[found.best]:
            found.best = len(found.accuracy) - 1
        if len(found.accuracy) - 1 - found.best == recipe.patience:
            break
    return found


def assert_as_alone(classifier: Plain, index: int, model: nn.Module, own: Member, alone: Alone) -> None:
    """A member's accuracies, steps, states and outcomes are those of the plain loop."""
    seen = [evaluation.accuracy[index] for evaluation in classifier.history]
    assert seen[: len(alone.accuracy)] == alone.accuracy
    assert all(math.isnan(accuracy) for accuracy in seen[len(alone.accuracy) :])
    found = {(o.checkpoint, o.test): o for o in classifier.outcomes() if o.member == index}
    assert set(found) == {(c, t) for c in ("best", "last") for t in own.tests}
    for checkpoint, (step, state) in alone.states().items():
        model.double().load_state_dict(state)
        model.eval()
        for name, (images, labels) in own.tests.items():
            with torch.no_grad():
                logits = model(images.double())
            outcome = found[checkpoint, name]
            assert (outcome.step, outcome.n, outcome.diverged) == (step, len(labels), False)
            assert outcome.accuracy == int((logits.argmax(1) == labels).sum()) / len(labels)
            assert outcome.loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-9)


def jitter(images: Tensor, seed: int, step: int) -> Tensor:
    stream = generator(seed, "jitter", step)
    drawn = torch.randn(images.shape, generator=stream, device=images.device, dtype=torch.float64)
    return images + 0.1 * drawn.to(images.dtype)


@pytest.mark.parametrize("hidden", [(), (6,), (6, 5)])
@pytest.mark.parametrize("augment", [None, jitter])
def test_an_ensemble_trains_its_members_as_if_alone(hidden: tuple[int, ...], augment: Any) -> None:
    members = [member(seed) for seed in (1, 2, 3)]
    models = [mlp(seed, hidden) for seed in (1, 2, 3)]
    data = ImageData(members, CLASSES, RECIPE, augment=augment)
    classifier = fit(models, data)
    assert len(classifier.history) == 6
    for index, (model, own) in enumerate(zip(models, members, strict=True)):
        assert_as_alone(classifier, index, model, own, trained_alone(model, own, RECIPE, augment))


def test_members_stop_as_if_alone() -> None:
    recipe = dataclasses.replace(RECIPE, steps=80, evaluations=40, patience=4)
    members = [member(seed, noise=noise) for seed, noise in ((1, 6.0), (2, 0.1), (3, 6.0), (4, 8.0))]
    models = [mlp(seed) for seed in (1, 2, 3, 4)]
    data = ImageData(members, CLASSES, recipe)
    classifier = fit(models, data)
    alone = [trained_alone(model, own, recipe) for model, own in zip(models, members, strict=True)]
    ends = [len(a.accuracy) for a in alone]
    assert len(set(ends)) > 1 and max(ends) < 40  # some outlast others, and none the recipe
    assert len(classifier.history) == max(ends)  # nobody goes on for nothing
    for index, (model, own) in enumerate(zip(models, members, strict=True)):
        assert_as_alone(classifier, index, model, own, alone[index])


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: ResNet(SHAPE, CLASSES, widths=(8, 16), strides=(1, 2)), {}),
        (lambda: ResNet(SHAPE, CLASSES, widths=(8, 16), strides=(1, 2)), {"channels_last": True}),
        (lambda: ViT(SHAPE, CLASSES, patch=2, embed_dim=8, num_heads=2, pooling="class"), {}),
    ],
)
def test_a_single_model_trains_as_in_a_plain_loop(make: Callable[[], nn.Module], settings: dict[str, Any]) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make())
    own = member(4)
    classifier = fit(models[:1], ImageData([own], CLASSES, RECIPE), **settings)
    assert_as_alone(classifier, 0, models[1], own, trained_alone(models[1], own, RECIPE))


def test_loss_and_gradients_of_one_step_are_those_of_separate_runs() -> None:
    members, models = [member(seed) for seed in (1, 2, 3)], [mlp(seed).double() for seed in (1, 2, 3)]
    data = ImageData(members, CLASSES, RECIPE)
    classifier = Plain(models, RECIPE).double()
    images, labels = data.batch(2)
    means = []
    for index, (model, own) in enumerate(zip(models, members, strict=True)):
        chosen = list(zip(range(3), batches_of(own.seed, 20, 8), strict=False))[2][1]
        assert torch.equal(images[index], own.train.images[chosen])
        loss = cross_entropy(model(own.train.images[chosen].double()), own.train.labels[chosen])
        loss.backward()
        means.append(loss.detach())
    classifier.checkpoints = Checkpoints(classifier.model, 3, stacked=True, patience=None, device=torch.device("cpu"))
    classifier.diverged = torch.zeros(3, dtype=torch.bool)
    classifier.log = lambda *_, **__: None  # type: ignore[method-assign]
    total = classifier.training_step(image_data.Batch(images.double(), labels), 0)
    torch.testing.assert_close(total.detach(), torch.stack(means).sum(), rtol=1e-10, atol=0)
    total.backward()
    for index, model in enumerate(models):
        for layer, weight, bias in zip(model.layers, classifier.model.weights, classifier.model.biases, strict=True):
            torch.testing.assert_close(weight.grad[index], layer.weight.grad, rtol=1e-10, atol=1e-13)
            torch.testing.assert_close(bias.grad[index], layer.bias.grad, rtol=1e-10, atol=1e-13)


def test_members_are_clipped_by_their_own_norm() -> None:
    stream = torch.Generator().manual_seed(0)
    gradients = [torch.randn(3, *shape, generator=stream, dtype=torch.float64) for shape in ((4, 5), (4,), (2, 4))]
    for gradient in gradients:
        gradient *= torch.tensor([0.01, 1.0, 100.0], dtype=torch.float64).view(-1, *[1] * (gradient.ndim - 1))
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    clip_members(parameters, 1.0)
    for index in range(3):
        own = [nn.Parameter(torch.zeros_like(gradient[index])) for gradient in gradients]
        for parameter, gradient in zip(own, gradients, strict=True):
            parameter.grad = gradient[index].clone()
        norm = nn.utils.clip_grad_norm_(own, 1.0)
        assert (float(norm) > 1) == (index > 0)
        for stacked, single in zip(parameters, own, strict=True):
            torch.testing.assert_close(stacked.grad[index], single.grad, rtol=1e-12, atol=0)


# --- what is tested, and when ---


def test_the_best_checkpoint_is_tested_and_not_the_last() -> None:
    """Validation labels are what the model says at its first evaluation: training only moves away from them."""
    recipe = dataclasses.replace(RECIPE, evaluations=4, learning_rate=0.2)
    own, model = member(1), mlp(1)
    step, state = trained_alone(model, own, recipe).evaluated[0]
    model.load_state_dict(state)
    own = dataclasses.replace(
        own, validation=Split(own.validation.images, model(own.validation.images.double()).argmax(1))
    )
    classifier = fit([mlp(1)], ImageData([own], CLASSES, recipe))
    accuracies = [evaluation.accuracy[0] for evaluation in classifier.history]
    assert accuracies[0] == 1.0 and max(accuracies[1:]) < 1.0
    found = {o.checkpoint: o for o in classifier.outcomes() if o.test == "plain"}
    assert (found["best"].step, found["last"].step) == (step, 24) == (6, 24)
    images, labels = own.tests["plain"]
    loss = float(cross_entropy(model(images.double()), labels).detach())
    assert found["best"].loss == pytest.approx(loss, rel=1e-9)
    assert abs(found["last"].loss - loss) > 1e-3


def test_of_equal_accuracies_the_earliest_is_best_and_nan_is_none() -> None:
    model = nn.Linear(1, 1)
    kept = Checkpoints(model, 1, stacked=False, patience=3, device=torch.device("cpu"))
    for step, accuracy in enumerate((math.nan, 0.5, 0.5, math.nan, 0.4, 0.9), start=1):
        assert kept.running.tolist() == [step < 6]  # it stopped after the fifth: the sixth is too late
        with torch.no_grad():
            model.weight.fill_(step)
        kept.update(step, torch.tensor([accuracy], dtype=torch.float64))
    assert kept.running.tolist() == [False]
    assert {name: (int(kept.steps[name]), int(state["weight"])) for name, state in kept.states.items()} == {
        "best": (2, 2),
        "last": (5, 5),
    }


class Watched(ImageData):
    """Notes which loaders the Trainer asks for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: list[str] = []

    def test_dataloader(self) -> Any:
        self.asked.append(f"test after {self.trainer.global_step}")  # type: ignore[union-attr]
        return super().test_dataloader()

    def val_dataloader(self) -> Any:
        self.asked.append("validation")
        return super().val_dataloader()


def test_test_images_are_seen_once_and_after_training() -> None:
    data = Watched([member(1)], CLASSES, RECIPE)
    classifier = fit([mlp(1)], data)
    assert data.asked == ["validation", "test after 24"]
    assert {key: tally.n for key, tally in classifier.tested.items()} == {
        (checkpoint, test): n for checkpoint in ("best", "last") for test, n in (("plain", 25), ("shifted", 11))
    }


def test_training_images_may_be_a_test_set_too() -> None:
    own = member(1)
    own = dataclasses.replace(own, tests={"train": own.train, "validation": own.validation})
    classifier = fit([mlp(1)], ImageData([own], CLASSES, RECIPE))
    assert {(o.test, o.n) for o in classifier.outcomes()} == {("train", 20), ("validation", 30)}
    best = next(o for o in classifier.outcomes() if (o.checkpoint, o.test) == ("best", "validation"))
    assert best.accuracy == max(evaluation.accuracy[0] for evaluation in classifier.history)


def test_accuracy_is_a_share_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images in parts of 4, 4 and 2, only the last two right: 0.2, and not the mean of parts, a third."""
    monkeypatch.setattr(image_data, "CHUNK", 4)
    recipe = dataclasses.replace(RECIPE, learning_rate=0.0)
    model, drawn = mlp(1).double(), split(10, 5)
    said = model(drawn.images.double()).argmax(1)
    labels = torch.where(torch.arange(10) < 8, (said + 1) % CLASSES, said)
    own = dataclasses.replace(
        member(1), validation=Split(drawn.images, labels), tests={"t": Split(drawn.images, labels)}
    )
    classifier = fit([mlp(1)], ImageData([own], CLASSES, recipe))
    assert [o.accuracy for o in classifier.outcomes()] == [0.2, 0.2]
    assert [e.accuracy for e in classifier.history] == [[0.2]] * 6
    loss = float(cross_entropy(model(drawn.images.double()), labels).detach())
    assert [o.loss for o in classifier.outcomes()] == pytest.approx([loss, loss], rel=1e-12)


def test_accuracy_counts_images_and_not_classes() -> None:
    """Three right of four, although the class of the fourth is never predicted (a mean over ten classes: 0.333)."""
    tally = Tally()
    logits = torch.full((1, 4, 10), -1.0)
    logits[0, torch.arange(4), torch.tensor([0, 0, 0, 1])] = 1.0
    tally.add(logits, torch.tensor([[0, 0, 0, 2]]))
    accuracy, loss = tally.means()
    assert accuracy.tolist() == [0.75]
    other = 9 * math.exp(-2)
    expected = (3 * math.log1p(other) + (2 + math.log1p(other))) / 4
    assert loss.tolist() == pytest.approx([expected], rel=1e-6)


# --- data ---


def test_fewer_images_than_a_batch_train_all_the_same() -> None:
    own = member(1, n=5)
    data = ImageData([own], CLASSES, RECIPE)
    assert data.batch(0).images.shape == (1, 5, *SHAPE)
    classifier = fit([mlp(1)], data)
    assert {o.step for o in classifier.outcomes() if o.checkpoint == "last"} == {24}
    assert_as_alone(classifier, 0, (model := mlp(1)), own, trained_alone(model, own, RECIPE))
    before = torch.cat([p.flatten() for p in mlp(1).parameters()])
    assert not torch.equal(torch.cat([p.flatten() for p in classifier.model.parameters()]).float(), before)


def test_every_image_is_read_equally_often_in_another_order_each_time() -> None:
    numbers = Split(torch.arange(20.0).view(20, 1, 1, 1), torch.zeros(20, dtype=torch.int64))
    own = Member(7, numbers, numbers, {})
    data = ImageData([own, dataclasses.replace(own, seed=8)], 1, RECIPE)
    read = torch.stack([data.batch(step).images.flatten(1) for step in range(10)], 1).flatten(1)  # four times 20
    orders = read.view(2 * 4, 20)
    assert (orders.sort(1).values == torch.arange(20.0)).all()
    assert len({tuple(order.tolist()) for order in orders}) == 8
    assert torch.equal(data.batch(3).images, data.batch(3).images)  # whatever was asked before


def test_augmentation_differs_by_step_and_member_and_comes_again() -> None:
    own = dataclasses.replace(member(1), train=Split(torch.zeros(20, *SHAPE), torch.zeros(20, dtype=torch.int64)))
    members = [own, dataclasses.replace(own, seed=2)]

    def drawn() -> list[Tensor]:
        data = ImageData(members, CLASSES, RECIPE, augment=jitter)
        return [images for step in range(6) for images in data.batch(step).images]

    first = drawn()
    assert len({tuple(images.flatten().tolist()) for images in first}) == 12
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(), strict=True))
    data = ImageData(members, CLASSES, RECIPE, augment=jitter)
    assert torch.equal(next(iter(data.val_dataloader())).images[0], own.validation.images)  # not augmented


def test_images_are_prepared_member_by_member_after_augmentation() -> None:
    """Whole numbers as they came are cropped, then standardised by what each member was given."""
    grey = torch.arange(4 * 64).remainder(256).to(torch.uint8).view(4, 1, 8, 8)
    labels = torch.zeros(4, dtype=torch.int64)
    small = Split(grey[:, :, :4, :4], labels)
    members = [
        Member(seed, Split(grey, labels), small, {"t": small}, lambda images, s=seed: images.float() / s)
        for seed in (2, 4)
    ]
    data = ImageData(
        members, 1, RECIPE, augment=lambda images, seed, step: images[:, :, step : step + 4, seed : seed + 4]
    )
    images = data.batch(3).images
    assert images.shape == (2, 4, 1, 4, 4) and images.dtype == torch.float32
    for index, seed in enumerate((2, 4)):
        (chosen,) = list(zip(range(4), batches_of(seed, 4, 4), strict=False))[3][1:]
        assert torch.equal(images[index], grey[chosen][:, :, 3:7, seed : seed + 4].float() / seed)
        for loader, part in ((data.val_dataloader(), lambda b: b), (data.test_dataloader(), lambda b: b.batch)):
            assert torch.equal(part(next(iter(loader))).images[index], small.images.float() / seed)
    with pytest.raises(ValueError, match=r"^train images of \(1, 8, 8\) must be of \(1, 4, 4\), as in validation$"):
        ImageData(members, 1, RECIPE)


def test_a_class_that_no_training_image_shows() -> None:
    """Classes 0 and 1 of three: the head is as wide, its images count in every accuracy, and it is reported."""
    own = member(1, n=30)
    seen = own.train.labels < 2
    own = dataclasses.replace(own, train=Split(own.train.images[seen], own.train.labels[seen]))
    data = ImageData([own], CLASSES, dataclasses.replace(RECIPE, steps=120))
    assert data.classes_seen() == [2]
    classifier = fit([mlp(1)], data)
    assert classifier(own.validation.images[None].double()).shape == (1, 30, 3)
    for outcome in classifier.outcomes():
        assert outcome.accuracy <= (own.tests[outcome.test].labels < 2).float().mean() < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": Split(torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64))}, "train=.*with n at least 1$"),
        ({"train": Split(torch.zeros(4, 8, 8), torch.zeros(4, dtype=torch.int64))}, r"train=.*must be \[n, channels"),
        ({"validation": Split(torch.zeros(4, *SHAPE), torch.zeros(3, dtype=torch.int64))}, "validation=.*must be"),
        ({"tests": {"t": Split(torch.zeros(4, 1, 9, 8), torch.zeros(4, dtype=torch.int64))}}, "as in validation$"),
        ({"tests": {"odd": Split(torch.zeros(1, *SHAPE), torch.tensor([3]))}}, "^odd labels must be 0 to 2, one below"),
    ],
)
def test_data_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageData([dataclasses.replace(member(1), **change)], CLASSES, RECIPE)


def test_ensembles_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"^members must hold at least one$"):
        ImageData([], CLASSES, RECIPE)
    with pytest.raises(ValueError, match=r"^members must have as many images each"):
        ImageData([member(1), member(2, n=21)], CLASSES, RECIPE)
    with pytest.raises(ValueError, match=r"^models must be MLPs or a single one, not 2 of other kinds$"):
        Plain([ViT(SHAPE, 3, patch=2), ViT(SHAPE, 3, patch=2)], RECIPE)
    with pytest.raises(ValueError, match=r"^models must be MLPs"):
        Plain([], RECIPE)


# --- the recipe ---


def test_recipes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"^evaluations=5 must divide steps=24$"):
        dataclasses.replace(RECIPE, evaluations=5)
    for name in ("steps", "evaluations", "batch_size"):
        with pytest.raises(ValueError, match=f"^{name}=0 must be 1 or more$"):
            dataclasses.replace(RECIPE, **{name: 0})


@pytest.mark.parametrize(("n", "batch_size", "most"), [(100, 64, 4000), (10_000, 64, 4710), (55_000, 64, 25_800)])
def test_convergence_is_thirty_epochs_or_4000_steps(n: int, batch_size: int, most: int) -> None:
    recipe = Recipe.to_convergence(n, learning_rate=1e-3, weight_decay=0.05, batch_size=batch_size)
    assert most - 30 < recipe.steps <= most
    assert recipe.steps == 30 * recipe.evaluate_every
    assert recipe.patience == 5


def test_the_rate_rises_and_falls_to_zero() -> None:
    recipe = Recipe(1e-3, 0.05, steps=1000, evaluations=10)
    rates = [recipe.rate(step) for step in range(1001)]
    assert rates[0] == pytest.approx(1 / 50) and rates[49] == rates[50] == 1.0
    assert rates[:50] == sorted(rates[:50]) and rates[50:] == sorted(rates[50:], reverse=True)
    assert rates[525] == pytest.approx(0.5) and rates[1000] == 0.0
    assert Recipe(1e-3, 0.0, steps=1, evaluations=1).rate(0) == 1.0


# --- what may go wrong, and where it runs ---


def test_a_member_that_diverges_is_reported_and_leaves_the_others_alone() -> None:
    members, models = [member(seed) for seed in (1, 2)], [mlp(seed) for seed in (1, 2)]
    wild = members[1].train
    members[1] = dataclasses.replace(members[1], train=Split(wild.images * torch.inf, wild.labels))
    classifier = fit(models, ImageData(members, CLASSES, RECIPE))
    assert_as_alone(classifier, 0, models[0], members[0], trained_alone(models[0], members[0], RECIPE))
    broken = [o for o in classifier.outcomes() if o.member == 1]
    assert [o.diverged for o in broken] == [True] * 4
    assert all(math.isnan(o.accuracy) and math.isnan(o.loss) for o in broken if o.checkpoint == "last")
    # Nothing finite was ever seen: what is left is the start, which never was the best of anything.
    assert {o.step for o in broken if o.checkpoint == "best"} == {0}


def test_a_best_checkpoint_from_before_divergence_is_kept_and_marked() -> None:
    class Breaks(nn.Module):
        """Loses its mind after 12 training steps."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.steps = mlp(1), 0

        def forward(self, images: Tensor) -> Tensor:
            self.steps += self.training
            logits: Tensor = self.inner(images)
            return logits * (math.nan if self.training and self.steps > 12 else 1.0)

    classifier = fit([Breaks()], ImageData([member(1)], CLASSES, RECIPE))
    found = {o.checkpoint: o for o in classifier.outcomes() if o.test == "plain"}
    assert found["best"].step in (4, 8, 12) and math.isfinite(found["best"].accuracy)
    assert math.isnan(found["last"].accuracy) and found["last"].step == 24
    assert found["best"].diverged and found["last"].diverged


def test_what_becomes_of_a_member_after_it_stopped_is_not_its_outcome() -> None:
    """The member that stops first is then fed what no training survives."""
    recipe = dataclasses.replace(RECIPE, steps=80, evaluations=40, patience=4)
    members, models = [member(1, noise=6.0), member(2, noise=0.1)], [mlp(1), mlp(2)]
    alone = [trained_alone(mlp(own.seed), own, recipe) for own in members]
    ends = [len(a.accuracy) * recipe.evaluate_every for a in alone]
    first = ends.index(min(ends))
    assert ends[first] < ends[1 - first]

    def poison(images: Tensor, seed: int, step: int) -> Tensor:
        return images * (math.inf if seed == members[first].seed and step >= ends[first] else 1.0)

    classifier = fit(models, ImageData(members, CLASSES, recipe, augment=poison))
    for index, own in enumerate(members):
        assert_as_alone(classifier, index, models[index], own, alone[index])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: ResNet(SHAPE, CLASSES, widths=(8, 16), strides=(1, 2)),
    "vit": lambda: ViT(SHAPE, CLASSES, patch=2, embed_dim=16, num_heads=2, dropout=0.1),
    "mlp": lambda: MLP(SHAPE, CLASSES),
}


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_learns_in_every_precision(name: str, precision: str) -> None:
    recipe = Recipe(0.02, 0.05, steps=60, evaluations=3, batch_size=16)
    own = member(1, n=60, noise=0.3)
    classifier = fit([built(name)], ImageData([own], CLASSES, recipe), precision, channels_last=name == "cnn")
    assert all(o.accuracy > 0.9 and not o.diverged for o in classifier.outcomes())
    kept = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert all(bool(p.isfinite().all()) and p.dtype == kept for p in classifier.model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_rows_do_not_depend_on_what_was_drawn_before_nor_on_an_interrupted_attempt(name: str) -> None:
    """A training that is killed starts again: as no random number comes from what ran before, it ends the same."""
    recipe = dataclasses.replace(RECIPE, learning_rate=0.01)

    def outcomes(model: nn.Module, seed: int = 0) -> list[Outcome]:
        return fit([model], ImageData([member(1)], CLASSES, recipe), "32-true", seed=seed).outcomes()

    first = outcomes(built(name))

    class Killed(Exception):
        pass

    def kill(images: Tensor, seed: int, step: int) -> Tensor:
        if step == 13:
            raise Killed
        return images

    with pytest.raises(Killed):
        fit([built(name)], ImageData([member(1)], CLASSES, recipe, augment=kill), "32-true")
    torch.rand(17)
    assert outcomes(built(name)) == first
    if name == "vit":  # dropout has a seed of its own
        assert outcomes(built(name), seed=1) != first


FRESH = """
import sys, torch
from tests.training.test_classifier import MODELS, RECIPE, ImageData, CLASSES, built, fit, jitter, member
torch.set_num_threads(1)
torch.rand(int(sys.argv[1]))
for name in MODELS:
    fitted = fit([built(name)], ImageData([member(1)], CLASSES, RECIPE, augment=jitter), "32-true")
    print(*((o.checkpoint, o.test, o.step, o.accuracy.hex(), o.loss.hex()) for o in fitted.outcomes()))
    print(*(v.double().sum().item().hex() for v in fitted.checkpoints.states["last"].values()))
"""


@pytest.mark.slow
def test_fresh_processes_give_the_same_bytes() -> None:
    repository = Path(__file__).resolve().parents[2]
    found = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FRESH, drawn],
            cwd=repository,
            env={"PYTHONPATH": f"{repository}/src:{repository}", "PYTHONHASHSEED": drawn, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for drawn in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len(found[0].splitlines()) == 2 * len(MODELS)


@pytest.mark.slow
def test_compiled_models_train_to_the_same_numbers() -> None:
    results = []
    for compiled in (False, True):
        data = ImageData([member(1)], CLASSES, RECIPE)
        results.append(fit([built("cnn")], data, "32-true", compiled=compiled))
    assert all(key in results[1].model.state_dict() for key in results[0].model.state_dict())
    for plain, compiled in zip(*(r.outcomes() for r in results), strict=True):
        assert compiled.loss == pytest.approx(plain.loss, rel=1e-3)
