"""Stacked members against one model at a time: torch modules with torch's own optimisers and losses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnrepro.nn import position
from attnrepro.nn.query_pool import (
    AddedCode,
    BiasedLogits,
    ConcatCode,
    Folded,
    LearnedCode,
    QueryPools,
    RotaryKeys,
    pool,
)
from attnrepro.training import ensemble as module
from attnrepro.training.ensemble import (
    PoolEnsemble,
    PoolGroup,
    Recipe,
    Sequences,
    cross_entropy,
    is_finite,
    right_answers,
    slabs,
    smooth_error,
)
from attnrepro.training.trainer import make_trainer

from ..nn.naive_pool import NaivePool, parameters_of, unfolded

SEEDS = (11, 12, 13)


class Pools(PoolEnsemble):
    """An ensemble that nothing is measured of."""

    def rows(self) -> list[Any]:
        return []


def fit(ensemble: PoolEnsemble, precision: str = "64-true") -> PoolEnsemble:
    cell: Any = SimpleNamespace(threads=1, accelerator="cpu", precision=precision, timing=False)
    make_trainer(cell, max_steps=ensemble.recipe.steps).fit(ensemble, ensemble.loader())
    return ensemble


def streams(seeds: Sequence[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def task(seeds: Sequence[int], length: int, embed_dim: int, n: int) -> Sequences:
    content = torch.stack(
        [torch.randn(length, embed_dim, n, generator=torch.Generator().manual_seed(seed + n)) for seed in seeds]
    )
    return Sequences(content, (content[:, 0, 0] > 0).float())


def published(seeds: Sequence[int], n: int, rate: float) -> PoolGroup:
    """The document's task: the sinusoid at three strengths, in keys and values or in the keys."""
    placed = [(s, values) for s in (0.0, 1.0, 3.0) for values in (True, False)]
    family = AddedCode(
        streams(seeds), position.sinusoidal(8, 16)[None], [s for s, _ in placed], [values for _, values in placed]
    )
    return PoolGroup([family], [rate], [cross_entropy], task(seeds, 8, 16, n))


def everything(seeds: Sequence[int]) -> list[PoolGroup]:
    """Every family with rates and losses of its own, two sizes of sequences and of data."""
    groups = []
    for length, d, n in ((5, 6, 40), (3, 4, 17)):
        generator = [torch.randn(1, length, d, generator=g) for g in streams(seeds)]
        own = torch.cat(generator)
        families: list[QueryPools] = [
            AddedCode(streams(seeds), position.sinusoidal(length, d)[None], [0.5, 3.0, 3.0], [True, True, False]),
            AddedCode(streams(seeds), own, [1.0, 16.0], [True, False]),
            LearnedCode(streams(seeds), length, d, [0.5, 2.0]),
            ConcatCode(streams(seeds), d, own, [1.0, 4.0]),
            RotaryKeys(streams(seeds), length, d, key_bias=True),
            RotaryKeys(streams(seeds), length, d, key_bias=False),
            BiasedLogits(streams(seeds), d, torch.zeros(length, 1), learned=True),
            BiasedLogits(streams(seeds), d, -torch.arange(length)[:, None] * torch.tensor([0.5, 2.0]), learned=False),
        ]
        rates = [0.01, 0.003, 0.03, 0.01, 0.02, 0.01, 0.1, 0.01]
        losses = [cross_entropy, smooth_error] * 4
        count = len(families) if length == 5 else 3
        groups.append(PoolGroup(families[:count], rates[:count], losses[:count], task(seeds, length, d, n)))
    return groups


def bce(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def wrong_share(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of sigmoid(-logit) where the label is 1 and of sigmoid(logit) where it is 0."""
    return torch.where(labels == 1, 1 / (1 + torch.exp(logits)), 1 / (1 + torch.exp(-logits))).mean()


ALONE = {cross_entropy: bce, smooth_error: wrong_share}


def trained_alone(
    model: NaivePool,
    x: Tensor,
    y: Tensor,
    rate: float,
    recipe: Recipe,
    loss: Callable[[Tensor, Tensor], Tensor],
    schedule: Callable[[int], float],
) -> NaivePool:
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=rate)
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule(step)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model


Chosen = Callable[[int, int, int, int], bool]


def deviation(
    build: Callable[[], list[PoolGroup]],
    recipe: Recipe,
    *,
    dtype: torch.dtype = torch.float64,
    chosen: Chosen = lambda *_: True,
    schedule: Callable[[int], float] = lambda _: 1.0,
    kind: type[PoolEnsemble] = Pools,
) -> float:
    """Largest difference of a parameter between the trained ensemble and its members trained one by one."""
    start = build()
    ensemble = fit(kind(build(), recipe), "64-true" if dtype == torch.float64 else "32-true")
    worst, compared = 0.0, 0
    for g, (before, after) in enumerate(zip(start, ensemble.groups, strict=True)):
        content, y = (tensor.to(dtype) for tensor in before.data(0))
        x = content.permute(0, 3, 1, 2)
        for f, family in enumerate(before.families):
            family.to(dtype)
            for s in range(len(x)):
                for m in range(family.bias.shape[1]):
                    if not chosen(g, f, s, m):
                        continue
                    model = unfolded(family, s, m)
                    loss = ALONE[before.losses[f]]
                    trained_alone(model, x[s], y[s], before.rates[f], recipe, loss, schedule)
                    for name, value in parameters_of(after.families[f], s, m).items():
                        assert not torch.equal(model.p[name], parameters_of(family, s, m)[name]), f"{name} stayed"
                        worst = max(worst, (value - model.p[name]).abs().max().item())
                        compared += 1
    assert compared
    return worst


# --- a member is the model alone ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "n", "optimizer", "rate", "steps"),
    [("I", 800, "adam", 0.005, 200), ("A", 1000, "adam", 0.01, 150), ("C", 800, "gradient_descent", 0.3, 200)],
)
def test_after_a_full_run_a_member_is_the_model_trained_alone(
    protocol: str, n: int, optimizer: str, rate: float, steps: int
) -> None:
    # Strength 1 and 3 of either seed, in keys and values; under C, as declared, in the keys: gradient descent with
    # x3 in the values too is chaotic, and the model alone ends elsewhere when its start is moved by 1e-15.
    place = 1 if protocol == "C" else 0
    found = deviation(
        lambda: [published(SEEDS[:2], n, rate)],
        Recipe(optimizer, (steps,)),
        chosen=lambda g, f, s, m: (s, m) in ((0, 2 + place), (1, 4 + place)),
    )
    assert found < 1e-12


@pytest.mark.parametrize("optimizer", ["adam", "gradient_descent"])
@pytest.mark.parametrize("slab", [1, 5000, 2**30])
def test_all_families_rates_losses_and_sizes_at_once(
    optimizer: str, slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CPU_SLAB", slab)
    last = len(SEEDS) - 1
    found = deviation(
        lambda: everything(SEEDS), Recipe(optimizer, (25,)), chosen=lambda g, f, s, m: s == (last if g else f % 3)
    )
    assert found < 1e-12


@pytest.mark.parametrize("optimizer", ["adam", "gradient_descent"])
def test_in_float32_too(optimizer: str) -> None:
    found = deviation(
        lambda: [published(SEEDS, 200, 0.01), *everything(SEEDS)],
        Recipe(optimizer, (30,)),
        dtype=torch.float32,
        chosen=lambda g, f, s, m: s == 1 and (g == 1 or m > 1),
    )
    assert found < 1e-5


@pytest.mark.parametrize("precision", ["64-true", "32-true"])
def test_a_seed_ends_the_same_in_whatever_company(precision: str) -> None:
    recipe = Recipe("adam", (30,))
    company = fit(Pools(everything(SEEDS), recipe), precision)
    for index, seed in enumerate(SEEDS):
        alone = fit(Pools(everything([seed]), recipe), precision)
        for many, one in zip(company.families, alone.families, strict=True):
            for a, b in zip(many.parameters(), one.parameters(), strict=True):
                tolerance = 1e-12 if precision == "64-true" else 1e-5
                torch.testing.assert_close(a[index], b[0], rtol=0, atol=tolerance)


def test_a_member_ends_the_same_without_the_other_strengths() -> None:
    def of(strengths: list[float], values: list[bool]) -> PoolEnsemble:
        family = AddedCode(streams(SEEDS), position.sinusoidal(8, 16)[None], strengths, values)
        group = PoolGroup([family], [0.01], [cross_entropy], task(SEEDS, 8, 16, 50))
        return fit(Pools([group], Recipe("adam", (30,))))

    many, one = of([0.0, 1.0, 3.0, 16.0], [True, False, True, True]), of([3.0], [True])
    for a, b in zip(many.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a[:, 2], b[:, 0], rtol=0, atol=1e-12)


# --- and the comparison can fail ---


class MeanOfLosses(Pools):
    """What the design forbids: Adam forgives a factor, but for the epsilon in its denominator."""

    def backward_sum(self, step: int) -> Tensor:
        result = super().backward_sum(step)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad /= 39
        return result


class Clipped(Pools):
    """One norm over all members."""

    def backward_sum(self, step: int) -> Tensor:
        result = super().backward_sum(step)
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        return result


class Leaking(Pools):
    """A millionth of a neighbour's gradient."""

    def backward_sum(self, step: int) -> Tensor:
        result = super().backward_sum(step)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad += 1e-6 * parameter.grad.roll(1, 0)
        return result


class Late(Pools):
    """The learning rate of the step before."""

    def training_step(self, batch: int, batch_idx: int) -> None:
        super().training_step(max(0, batch - 1), batch_idx)


class OneRate(Pools):
    """Every family at the first family's rate."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        groups = super().parameter_groups()
        return [{**group, "lr": groups[0]["lr"]} for group in groups]


@pytest.mark.parametrize("optimizer", ["adam", "gradient_descent"])
@pytest.mark.parametrize("kind", [MeanOfLosses, Clipped, Leaking, OneRate])
def test_planted_faults_are_noticed(kind: type[PoolEnsemble], optimizer: str) -> None:
    found = deviation(lambda: everything(SEEDS), Recipe(optimizer, (25,)), chosen=lambda g, f, s, m: s == 1, kind=kind)
    assert found > 1e-10


def test_a_wrong_scale_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = QueryPools.key_direction
    monkeypatch.setattr(QueryPools, "key_direction", lambda self: right(self) * 1.001)
    assert deviation(lambda: everything(SEEDS), Recipe("adam", (25,)), chosen=lambda g, f, s, m: s == 1) > 1e-6


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_the_mean(content: Tensor, folded: Folded) -> Tensor:
        """Weights that do not react to their own sum."""
        logits = folded.key @ content + folded.key_position[..., None]
        weights = torch.softmax(logits, 1)
        weights = weights.detach() * (1 + logits - logits.detach())
        values = folded.value @ content + folded.value_position[..., None]
        return (weights * values).sum(1) + folded.bias[..., None]

    group = published(SEEDS, 20, 0.01)
    content, _ = group.data(0)
    torch.testing.assert_close(without_the_mean(content, group.folded()), pool(content, group.folded()))
    monkeypatch.setattr(module, "pool", without_the_mean)
    assert deviation(lambda: everything(SEEDS), Recipe("adam", (25,)), chosen=lambda g, f, s, m: s == 1) > 1e-6


# --- rates and checkpoints ---


@pytest.mark.parametrize("optimizer", ["adam", "gradient_descent"])
def test_a_cooldown_is_the_schedule_of_the_model_alone(optimizer: str) -> None:
    def schedule(step: int) -> float:
        return 1.0 if step < 12 else (20 - step) / 8

    recipe = Recipe(optimizer, (20,), cooldown=0.4)
    run = {"chosen": lambda g, f, s, m: s == 1 and f < 4, "schedule": schedule}
    assert deviation(lambda: everything(SEEDS), recipe, **run) < 1e-12
    assert deviation(lambda: everything(SEEDS), recipe, kind=Late, **run) > 1e-6


@pytest.mark.parametrize("cooldown", [0.0, 0.1, 0.4, 0.999, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 1500])
def test_the_rate_is_full_then_falls_in_equal_steps_towards_zero(steps: int, cooldown: float) -> None:
    recipe = Recipe("adam", (steps,), cooldown)
    rates = [recipe.rate(step) for step in range(steps)]
    for step, rate in enumerate(rates):
        left = (steps - step) / (cooldown * steps) if cooldown else math.inf
        assert rate == pytest.approx(min(1.0, left), abs=1e-12)
    assert rates[0] == 1.0 and all(0 < b <= a for a, b in itertools.pairwise(rates))


def by_itself(seeds: Sequence[int]) -> PoolGroup:
    """One family: its folded pools hold parameters themselves, which training moves on."""
    family = BiasedLogits(streams(seeds), 4, torch.zeros(5, 1), learned=True)
    return PoolGroup([family], [0.1], [cross_entropy], task(seeds, 5, 4, 20))


@pytest.mark.parametrize("optimizer", ["adam", "gradient_descent"])
def test_a_checkpoint_is_the_end_of_a_run_of_so_many_steps(optimizer: str) -> None:
    def build() -> list[PoolGroup]:
        return [*everything(SEEDS), by_itself(SEEDS)]

    long = fit(Pools(build(), Recipe(optimizer, (30, 0, 7, 1))))
    assert sorted(long.snapshots) == [0, 1, 7, 30]
    for steps in (1, 7, 30):
        short = fit(Pools(build(), Recipe(optimizer, (steps,))))
        for a, b in zip(long.snapshots[steps], short.snapshots[steps], strict=True):
            assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))
    for pools, group in zip(long.snapshots[0], build(), strict=True):
        for family in group.families:
            family.double()
        assert all(torch.equal(one, other) for one, other in zip(pools, group.folded(), strict=True))
    for pools, group in zip(long.snapshots[30], long.groups, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(pools, group.folded(), strict=True))


# --- what diverges, what is counted ---


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_member_that_diverges_takes_nobody_along(poison: float) -> None:
    recipe = Recipe("adam", (12,))
    healthy, sick = Pools(everything(SEEDS), recipe), Pools(everything(SEEDS), recipe)
    with torch.no_grad():
        sick.groups[0].families[0].double()
        sick.groups[0].families[0].w_value[1, 2] = poison
        sick.groups[0].families[0].query[1, 2] = poison
    fit(healthy), fit(sick)
    for name, a in healthy.named_parameters():
        b = sick.get_parameter(name)
        keep = torch.ones_like(a, dtype=torch.bool)
        if name.startswith("families.0."):
            keep[1, 2] = False
            assert not torch.equal(a[1, 2], b[1, 2])
        torch.testing.assert_close(a[keep], b[keep], rtol=0, atol=1e-12)
    first, second = sick.snapshots[12]
    expected = torch.ones(first.bias.shape, dtype=torch.bool)
    expected[1, 2] = False
    assert torch.equal(is_finite(first), expected)
    assert is_finite(second).all()


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("per_position", [False, True])
def test_finite_means_every_number_of_a_member(part: int, per_position: bool) -> None:
    shapes = [(2, 4 if per_position else 1, 3, 5), (2, 4, 3), (2, 1, 3, 5), (2, 4, 3), (2, 3)]
    folded = Folded(*(torch.zeros(shape) for shape in shapes))
    assert is_finite(folded).all()
    index = {4: (1, -1, 2, 3), 3: (1, -1, 2), 2: (1, 2)}[len(shapes[part])]
    folded[part][index] = math.nan
    assert is_finite(folded).tolist() == [[True] * 3, [True, True, False]]


def test_right_answers_are_the_count_of_right_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    group = everything(SEEDS)[0]
    for family in group.families:
        family.double()
    content, labels = task(SEEDS, 5, 6, 97).double()(0)
    folded = group.folded()
    expected = torch.zeros(len(SEEDS), folded.bias.shape[1], dtype=torch.int64)
    for s in range(len(SEEDS)):
        column = 0
        for family in group.families:
            for m in range(family.bias.shape[1]):
                said = unfolded(family, s, m)(content[s].permute(2, 0, 1))
                right = sum((z > 0) == (y == 1) for z, y in zip(said.tolist(), labels[s].tolist(), strict=True))
                expected[s, column] = right
                column += 1
    for slab in (1, 3000, 2**30):
        monkeypatch.setattr(module, "CPU_SLAB", slab)
        assert torch.equal(right_answers(content, labels, folded), expected)


def test_a_logit_of_zero_is_a_wrong_answer() -> None:
    nothing = Folded(*(torch.zeros(s) for s in ((1, 1, 2, 3), (1, 4, 2), (1, 1, 2, 3), (1, 4, 2))), torch.zeros(1, 2))
    nothing.bias[0, 1] = 1
    found = right_answers(torch.ones(1, 4, 3, 10), (torch.arange(10) < 4).float()[None], nothing)
    assert found.tolist() == [[0, 4]]


@pytest.mark.parametrize(("seeds", "size"), [(1, 1), (7, 60), (7, 61), (7, 10**9), (64, 5 * 60)])
def test_slabs_cover_every_seed_once(seeds: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPU_SLAB", size)
    chunks = slabs(seeds, 2, 10, 3, torch.device("cpu"))
    assert [seed for chunk in chunks for seed in range(chunk.start, chunk.stop)] == list(range(seeds))
    assert max(chunk.stop - chunk.start for chunk in chunks) == min(seeds, max(1, size // 60))


def test_losses_are_their_formulas() -> None:
    logits = torch.tensor([-700.0, -3.0, -1e-9, 0.0, 1e-9, 2.0, 700.0], dtype=torch.float64)[None].repeat(2, 1)
    labels = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, 7)
    for y in (0, 1):
        for z, entropy, error in zip(
            logits[y].tolist(), cross_entropy(logits, labels)[y], smooth_error(logits, labels)[y], strict=True
        ):
            wrong = -z if y else z
            assert entropy.item() == pytest.approx(max(wrong, 0) + math.log1p(math.exp(-abs(wrong))), abs=1e-12)
            expected = 1 / (1 + math.exp(-wrong)) if wrong > 0 else math.exp(wrong) / (1 + math.exp(wrong))
            assert error.item() == pytest.approx(expected, abs=1e-12)


def test_the_logged_loss_is_the_mean_over_members() -> None:
    ensemble = Pools(everything(SEEDS), Recipe("adam", (1,)))
    means = []
    for group in ensemble.groups:
        content, labels = group.data(0)
        found = []
        for f, family in enumerate(group.families):
            for s in range(len(SEEDS)):
                for m in range(family.bias.shape[1]):
                    said = unfolded(family, s, m)(content[s].permute(2, 0, 1))
                    found.append(ALONE[group.losses[f]](said, labels[s]).item())
        means.append(sum(found) / len(found))
    assert ensemble.backward_sum(0).item() == pytest.approx(sum(means) / 2, abs=1e-6)
