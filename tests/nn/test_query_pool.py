"""Folded pools against pools that project every token, one model and one sequence at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnrepro.nn import position, query_pool
from attnrepro.nn.query_pool import (
    AddedCode,
    BiasedLogits,
    ConcatCode,
    Folded,
    LearnedCode,
    QueryPools,
    RotaryKeys,
    join,
    pool,
)

from .naive_pool import gradients_of, unfolded

# (length, embed_dim, n): the size of the task, one token, an odd dimension, one component, one of everything.
SIZES = [(8, 16, 5), (1, 7, 3), (3, 7, 1), (5, 1, 4), (1, 1, 1)]
STRENGTHS = [0.0, 1.0, 3.0, 32.0]


def streams(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_folded(seeds: int, length: int, members: int, embed_dim: int, *, per_position: bool) -> Folded:
    return Folded(
        normal(seeds, length if per_position else 1, members, embed_dim, seed=1),
        normal(seeds, length, members, seed=2),
        normal(seeds, 1, members, embed_dim, seed=3),
        normal(seeds, length, members, seed=4),
        normal(seeds, members, seed=5),
    )


def looped(content: Tensor, folded: Folded) -> Tensor:
    """Softmax pooling written with one exp for each token, shifted by nothing."""
    seeds, length, _, n = content.shape
    rows = []
    for s in range(seeds):
        for m in range(folded.bias.shape[1]):
            for i in range(n):
                keys = [folded.key[s, j if folded.key.shape[1] > 1 else 0, m] for j in range(length)]
                logits = [content[s, j, :, i] @ keys[j] + folded.key_position[s, j, m] for j in range(length)]
                values = [
                    content[s, j, :, i] @ folded.value[s, 0, m] + folded.value_position[s, j, m] for j in range(length)
                ]
                total = sum(torch.exp(logit) for logit in logits)
                parts = [torch.exp(logit) / total * value for logit, value in zip(logits, values, strict=True)]
                rows.append(sum(parts) + folded.bias[s, m])
    return torch.stack(rows).reshape(seeds, -1, n)


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("length", "embed_dim", "n"), SIZES)
def test_value_and_gradient_are_those_of_a_loop_over_tokens(
    length: int, embed_dim: int, n: int, members: int, per_position: bool
) -> None:
    content = normal(2, length, embed_dim, n)
    leaves = [part.requires_grad_() for part in some_folded(2, length, members, embed_dim, per_position=per_position)]
    weight = normal(2, members, n, seed=9)
    ours, theirs = pool(content, Folded(*leaves)), looped(content, Folded(*leaves))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    found = torch.autograd.grad((ours * weight).sum(), leaves)
    expected = torch.autograd.grad((theirs * weight).sum(), leaves)
    for name, a, b in zip(Folded._fields, found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize(("length", "embed_dim", "n"), [(3, 2, 2), (1, 1, 1), (4, 7, 1)])
def test_the_written_gradient_is_that_of_finite_differences(
    length: int, embed_dim: int, n: int, per_position: bool
) -> None:
    content = normal(2, length, embed_dim, n)
    leaves = [part.requires_grad_() for part in some_folded(2, length, 2, embed_dim, per_position=per_position)]
    assert torch.autograd.gradcheck(lambda *parts: pool(content, Folded(*parts)), leaves)


def test_only_parts_that_need_a_gradient_get_one() -> None:
    content, folded = normal(2, 3, 4, 5), some_folded(2, 3, 2, 4, per_position=False)
    folded.key.requires_grad_()
    pool(content, folded).sum().backward()
    assert folded.key.grad is not None
    assert all(part.grad is None for part in folded[1:])


def test_a_second_derivative_is_refused() -> None:
    content, folded = normal(2, 3, 4, 5), some_folded(2, 3, 2, 4, per_position=False)
    folded.key.requires_grad_()
    (first,) = torch.autograd.grad(pool(content, folded).square().sum(), folded.key, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("factor", [32.0, 1000.0, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loud_logits_neither_overflow_nor_lose_the_softmax(dtype: torch.dtype, factor: float) -> None:
    content, folded = normal(2, 8, 16, 6), some_folded(2, 8, 3, 16, per_position=False)
    loud = folded._replace(key=folded.key * factor, key_position=folded.key_position * factor)
    loud = Folded(*(part.to(dtype).requires_grad_() for part in loud))
    exact = Folded(*(part.detach().double() for part in loud))
    content = content.to(dtype)
    logits = torch.einsum("sldn,smd->slmn", content.double(), exact.key[:, 0]) + exact.key_position[..., None]
    assert logits.abs().max() > 90 * factor / 32, "an exp without a shift must overflow in float32"
    values = torch.einsum("sldn,smd->slmn", content.double(), exact.value[:, 0]) + exact.value_position[..., None]
    expected = (torch.softmax(logits, 1) * values).sum(1) + exact.bias[..., None]
    found = pool(content, loud)
    # The logits themselves are rounded: the error of a weight is eps times the size of its logit.
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=40 * torch.finfo(dtype).eps * factor + 1e-12)
    gradients = torch.autograd.grad(found.sum(), loud)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_logit_far_below_the_others_has_no_weight() -> None:
    content = torch.zeros(1, 3, 1, 1)
    hidden = Folded(
        torch.zeros(1, 1, 1, 1),
        torch.tensor([0.0, 0.0, -1e30])[None, :, None],
        torch.zeros(1, 1, 1, 1),
        torch.tensor([1.0, 3.0, 1e20])[None, :, None],
        torch.zeros(1, 1),
    )
    assert pool(content, hidden).item() == 2.0


# --- the encodings ---


def added(length: int, embed_dim: int) -> QueryPools:
    code = normal(1, length, embed_dim, seed=7).float()
    placed = [(s, values) for values in (True, False) for s in STRENGTHS]
    return AddedCode(streams(1, 2), code, [s for s, _ in placed], [values for _, values in placed])


def added_of_its_own(length: int, embed_dim: int) -> QueryPools:
    return AddedCode(streams(1, 2), normal(2, length, embed_dim, seed=7).float(), [0.5, 3.0], [True, False])


def beside(length: int, embed_dim: int) -> QueryPools:
    return ConcatCode(streams(1, 2), embed_dim, normal(2, length, embed_dim + 2, seed=7).float(), STRENGTHS)


def beside_shared(length: int, embed_dim: int) -> QueryPools:
    return ConcatCode(streams(1, 2), embed_dim, normal(1, length, 1, seed=7).float(), STRENGTHS)


def even(embed_dim: int) -> int:
    return embed_dim + embed_dim % 2


def alibi(length: int, embed_dim: int) -> QueryPools:
    slopes = [position.alibi_bias(1, length, s, offset=length - 1)[0] for s in STRENGTHS]
    return BiasedLogits(streams(1, 2), embed_dim, torch.stack(slopes, -1), learned=False)


FAMILIES: dict[str, Callable[[int, int], QueryPools]] = {
    "added": added,
    "added of its own": added_of_its_own,
    "learned": lambda length, d: LearnedCode(streams(1, 2), length, d, STRENGTHS),
    "concat": beside,
    "concat shared": beside_shared,
    "rotary": lambda length, d: RotaryKeys(streams(1, 2), length, even(d), key_bias=False),
    "rotary with key bias": lambda length, d: RotaryKeys(streams(1, 2), length, even(d), key_bias=True),
    "alibi": alibi,
    "logit bias": lambda length, d: BiasedLogits(streams(1, 2), d, torch.zeros(length, 2), learned=True),
}


def stirred(family: QueryPools) -> QueryPools:
    """In float64, and each member with parameters of its own, as after training."""
    family.double()
    with torch.no_grad():
        for index, parameter in enumerate(family.parameters()):
            parameter += 0.5 * normal(*parameter.shape, seed=100 + index)
    return family


def content_dim(family: QueryPools) -> int:
    return family.embed_dim if isinstance(family, ConcatCode) else family.width


@pytest.mark.parametrize(("length", "embed_dim", "n"), SIZES)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_its_pools_one_by_one(name: str, length: int, embed_dim: int, n: int) -> None:
    family = stirred(FAMILIES[name](length, embed_dim))
    content = normal(2, length, content_dim(family), n)
    logits = pool(content, family.fold())
    weight = normal(*logits.shape, seed=9)
    (logits * weight).sum().backward()
    assert logits.shape == (2, family.bias.shape[1], n)
    for s in range(2):
        for m in range(family.bias.shape[1]):
            alone = unfolded(family, s, m)
            expected = alone(content[s].permute(2, 0, 1))
            torch.testing.assert_close(logits[s, m], expected, rtol=1e-11, atol=1e-12)
            expected.backward(weight[s, m])
            found = gradients_of(family, s, m)
            # Alone the unused parameters would be missed: every one of the naive pool must have met its partner.
            assert sorted(found) == sorted(alone.p.keys())
            for parameter, gradient in found.items():
                torch.testing.assert_close(gradient, alone.p[parameter].grad, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("wrong", ["unscaled", "turned the other way", "code missing", "code in the values too"])
def test_the_comparison_notices_a_planted_fault(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = stirred(FAMILIES["rotary" if "turned" in wrong else "added"](8, 16))
    right = query_pool.rotary
    if wrong == "unscaled":
        monkeypatch.setattr(family, "width", 1)
    elif wrong == "turned the other way":
        monkeypatch.setattr(query_pool, "rotary", lambda x, positions: right(x, -positions))
    elif wrong == "code missing":
        family.strength.zero_()
    else:
        family.in_values.fill_(1)
    folded = family.fold()
    monkeypatch.undo()
    if "code" in wrong:
        family = stirred(FAMILIES["added"](8, 16))
    content = normal(2, 8, 16, 5)
    expected = [unfolded(family, 0, m)(content[0].permute(2, 0, 1)) for m in range(family.bias.shape[1])]
    assert (pool(content, folded)[0] - torch.stack(expected)).abs().max() > 0.1


def test_rotary_keys_of_equal_content_differ_by_position_alone() -> None:
    family = stirred(FAMILIES["rotary"](6, 8))
    token = normal(8, 1, seed=3)
    folded = family.fold()
    logits = [(folded.key[0, j, 0] @ token).item() for j in range(6)]
    key, query = token[:, 0] @ family.w_key[0, 0], family.query[0, 0]
    expected = [
        (position.rotary(key[None], torch.tensor([j])) @ position.rotary(query[None], torch.tensor([0])).T).item()
        / math.sqrt(8)
        for j in range(6)
    ]
    assert logits == pytest.approx(expected, abs=1e-12)


def test_joined_families_are_the_families_side_by_side() -> None:
    families = [stirred(make(8, 16)) for make in FAMILIES.values()]
    content = normal(2, 8, 16, 5)
    weights = [normal(2, family.bias.shape[1], 5, seed=i) for i, family in enumerate(families)]
    apart = [pool(content, family.fold()) for family in families]
    sum((logits * weight).sum() for logits, weight in zip(apart, weights, strict=True)).backward()
    expected = [[p.grad.clone() for p in family.parameters()] for family in families]
    for family in families:
        family.zero_grad()
    together = pool(content, join([family.fold() for family in families]))
    torch.testing.assert_close(together, torch.cat(apart, 1), rtol=1e-12, atol=1e-12)
    (together * torch.cat(weights, 1)).sum().backward()
    for family, gradients in zip(families, expected, strict=True):
        for parameter, gradient in zip(family.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-11, atol=1e-11)


def test_a_slice_of_seeds_is_the_pools_of_those_seeds() -> None:
    content = normal(4, 8, 16, 5)
    folded = join([some_folded(4, 8, 2, 16, per_position=True), some_folded(4, 8, 1, 16, per_position=False)])
    torch.testing.assert_close(pool(content[1:3], folded.of(slice(1, 3))), pool(content, folded)[1:3])


# --- the start ---


def test_a_seed_starts_the_same_in_whatever_company() -> None:
    for name, make in {
        "learned": lambda seeds, strengths: LearnedCode(streams(*seeds), 5, 6, strengths),
        "concat": lambda seeds, strengths: ConcatCode(streams(*seeds), 6, torch.ones(1, 5, 2), strengths),
        "added": lambda seeds, strengths: AddedCode(
            streams(*seeds), torch.ones(1, 5, 6), strengths, [True] * len(strengths)
        ),
    }.items():
        company, alone = make((3, 4, 5), [0.0, 1.0, 2.0]), make((4,), [2.0])
        for (parameter, many), one in zip(company.named_parameters(), alone.parameters(), strict=True):
            assert torch.equal(many[1, 2], one[0, 0]), (name, parameter)
            assert parameter == "code" or torch.equal(many[1, 0], many[1, 2]), (name, parameter)
            assert parameter == "bias" or not torch.equal(many[0, 2], many[1, 2]), (name, parameter)


def test_all_encodings_of_a_seed_start_from_the_same_weights() -> None:
    families = [FAMILIES[name](8, 16) for name in ("added", "learned", "rotary", "rotary with key bias", "logit bias")]
    for name in ("w_key", "query", "w_value", "w_out", "bias"):
        first, *others = (getattr(family, name)[:, 0] for family in families)
        assert all(torch.equal(first, other) for other in others)


def test_weights_start_with_variance_one_over_width() -> None:
    family = LearnedCode(streams(*range(400)), 8, 16, [0.5, 3.0])
    for parameter, variance in [
        (family.w_key, 1 / 16),
        (family.query, 1 / 16),
        (family.w_value, 1 / 16),
        (family.w_out, 1 / 16),
        (family.code[:, 0], 0.25 / 2),
        (family.code[:, 1], 9.0 / 2),
    ]:
        one = parameter if parameter is family.code or parameter.ndim < 3 else parameter[:, 0]
        count = one.numel()
        # The sample variance of normals has the standard deviation variance sqrt(2 / n).
        assert abs(one.square().mean().item() / variance - 1) < 5 * math.sqrt(2 / count)
        assert abs(one.mean().item()) < 5 * math.sqrt(variance / count)
    assert torch.equal(family.bias, torch.zeros(400, 2))
    wide = ConcatCode(streams(*range(400)), 16, torch.zeros(1, 8, 9), [1.0])
    assert wide.w_key.shape[2:] == (25, 25)
    assert abs(wide.w_key.square().mean().item() * 25 - 1) < 5 * math.sqrt(2 / wide.w_key.numel())
