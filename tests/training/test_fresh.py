"""Training on fresh images: the updates by hand, budgets that are beginnings of each other, divergence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from attnrepro.config import Cell, DataConfig
from attnrepro.results.rows import Row
from attnrepro.training.fresh import FreshRecipe, FreshTraining
from attnrepro.training.trainer import make_trainer

CELL = Cell("t", "smoke", (0,), None, "32-true", 1, "cpu", "measured", False, (), "0" * 12, DataConfig())


class Rows(FreshTraining):
    def rows(self) -> list[Row]:
        return []


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    maps = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()
    return nn.Sequential(*maps, nn.Flatten(), nn.Linear(4 * 36, 2))


def draw(n: int, stream: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(n, 1, 8, 8, generator=stream)
    return images, (images[:, 0, :4].mean((1, 2)) > 0).long()


def stream(device: torch.device) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(7)


HELD = draw(1100, torch.Generator().manual_seed(9))


def trained(recipe: FreshRecipe, drawing: object = draw) -> Rows:
    module = Rows(net(), recipe, drawing, stream, HELD)  # type: ignore[arg-type]
    make_trainer(CELL, max_steps=recipe.steps).fit(module, module.loader())
    return module


def test_updates_are_those_of_a_loop_by_hand() -> None:
    recipe = FreshRecipe(0.01, 0.1, 30, 10, batch_size=16, warmup=20, clip=0.5)
    module = trained(recipe)
    model, images = net().to(memory_format=torch.channels_last), stream(torch.device("cpu"))  # type: ignore[call-overload]
    decays = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    for step in range(30):
        if step % 10 == 0:
            x, y = draw(160, images)
        part = slice(16 * (step % 10), 16 * (step % 10 + 1))
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, (step + 1) / 20)
        optimizer.zero_grad()
        cross_entropy(model(x[part]), y[part]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    for ours, by_hand in zip(module.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-4, atol=1e-5)
    model.eval()
    with torch.no_grad():
        logits = model(HELD[0])
    assert module.looks[30].accuracy == pytest.approx(float((logits.argmax(1) == HELD[1]).double().mean()), abs=2e-3)
    assert module.looks[30].loss == pytest.approx(float(cross_entropy(logits, HELD[1])), rel=1e-3)
    assert module.looks[30].loss < module.looks[0].loss


def test_a_longer_training_begins_like_a_shorter_one() -> None:
    short, long = (trained(FreshRecipe(0.01, 0.1, steps, 10, batch_size=16)) for steps in (20, 40))
    assert list(long.looks) == [0, 10, 20, 30, 40]
    assert [long.looks[step] for step in short.looks] == list(short.looks.values())


def test_places_without_a_label_count_for_nothing() -> None:
    def places(n: int, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = draw(n, source)
        maps = torch.full((n, 8, 8), -1)
        maps[:, 2, 3] = labels
        return images, maps

    images, labels = places(600, torch.Generator().manual_seed(1))
    module = Rows(nn.Conv2d(1, 2, 1), FreshRecipe(0.1, 0.0, 10, 10), places, stream, (images, labels))
    look = module.look()
    with torch.no_grad():
        logits = module.model(images)[:, :, 2, 3]
    assert look.accuracy == pytest.approx(float((logits.argmax(1) == labels[:, 2, 3]).double().mean()))
    assert look.loss == pytest.approx(float(cross_entropy(logits, labels[:, 2, 3])))


def test_a_diverged_training_is_nan_from_then_on_and_ends_as_long() -> None:
    calls = []

    def breaks(n: int, source: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = draw(n, source)
        calls.append(n)
        return (images * math.inf if len(calls) == 2 else images), labels

    module = trained(FreshRecipe(0.01, 0.0, 30, 10, batch_size=16), breaks)
    assert [math.isnan(look.accuracy) for look in module.looks.values()] == [False, False, True, True]
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("steps", "every", "words"), [(30, 15, "every=15"), (30, 20, "every=20"), (0, 10, "steps=0 must be 1 or more")]
)
def test_bad_recipes_are_one_sentence(steps: int, every: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FreshRecipe(0.1, 0.1, steps, every)
