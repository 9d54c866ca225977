"""Criss-cross attention against masked attention and loops, its reach after one and two passes, and its cost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnrepro.nn import masks
from attnrepro.nn.criss_cross import CrissCross

from .naive_maps import (
    SIZES,
    apart,
    assert_bfloat16_finite,
    assert_same,
    drawn,
    flops_of,
    opened,
    parameters_of,
    permuted,
    reach,
    rows_and_columns_permuted,
)

PASSES = [1, 2]


def by_loops(block: CrissCross, x: Tensor) -> Tensor:
    for _ in range(block.recurrence):
        query, key, value = block.query(x), block.key(x), block.value(x)
        height, width = x.shape[-2:]
        rows = []
        for r in range(height):
            for c in range(width):
                near = {*((r, k) for k in range(width)), *((k, c) for k in range(height))}
                strength = {at: (query[:, :, r, c] * key[:, :, at[0], at[1]]).sum(1, keepdim=True).exp() for at in near}
                mixed = sum(s * value[:, :, at[0], at[1]] for at, s in strength.items()) / sum(strength.values())
                rows.append(x[:, :, r, c] + block.gamma * mixed)
        x = torch.stack(rows, -1).unflatten(-1, (height, width))
    return x


@pytest.mark.parametrize("recurrence", PASSES)
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_loops(recurrence: int, size: tuple[int, int]) -> None:
    block = opened(CrissCross(4, reduction=2, recurrence=recurrence))
    assert isinstance(block, CrissCross)
    assert_same(block, lambda x: by_loops(block, x), drawn(2, 4, *size))


@pytest.mark.parametrize("recurrence", PASSES)
@pytest.mark.parametrize("size", [*SIZES, (6, 9)])
def test_it_is_attention_under_the_mask_of_the_cross(recurrence: int, size: tuple[int, int]) -> None:
    block, x = opened(CrissCross(4, reduction=2, recurrence=recurrence)), drawn(2, 4, *size)
    expected = x
    with torch.no_grad():
        for _ in range(recurrence):
            tokens = [part(expected).flatten(-2).mT for part in (block.query, block.key, block.value)]
            mixed = scaled_dot_product_attention(*tokens, attn_mask=masks.criss_cross(*size), scale=1.0)
            expected = expected + block.gamma * mixed.mT.unflatten(-1, size)
        torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-13)
        weights = block.attention(x)
        assert torch.equal(weights != 0, masks.criss_cross(*size).expand(2, -1, -1))
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, size[0] * size[1]).double())


@pytest.mark.parametrize(("height", "width"), [(5, 3), (8, 8), (1, 7), (1, 1)])
def test_one_pass_reaches_the_cross_and_two_reach_everything(height: int, width: int) -> None:
    x = drawn(1, 4, height, width)
    once = reach(opened(CrissCross(4, reduction=2, recurrence=1)), x, 0, 0)
    assert int(once.sum()) == height + width - 1 and once[0].all() and once[:, 0].all()
    assert reach(opened(CrissCross(4, reduction=2, recurrence=2)), x, 0, 0).all()


@pytest.mark.parametrize("recurrence", PASSES)
def test_it_commutes_with_permutations_of_rows_and_of_columns_alone(recurrence: int) -> None:
    block, x = opened(CrissCross(4, reduction=2, recurrence=recurrence)), drawn(2, 4, 5, 6)
    for move in (rows_and_columns_permuted, lambda t: t.roll((2, 3), (-2, -1))):
        assert apart(block, move, x) < 1e-13
    assert apart(block, permuted, x) > 1e-2
    # On a square it commutes with the transposition too.
    assert apart(block, lambda t: t.mT, x[..., :5]) < 1e-13


def test_a_new_block_is_the_identity() -> None:
    x = drawn(2, 16, 5, 3).float()
    assert torch.equal(CrissCross(16)(x), x)


@pytest.mark.parametrize(("channels", "reduction"), [(64, 8), (6, 4), (5, 8)])
@pytest.mark.parametrize("recurrence", PASSES)
def test_costs_in_closed_form(channels: int, reduction: int, recurrence: int) -> None:
    block, h = CrissCross(channels, reduction=reduction, recurrence=recurrence), max(1, channels // reduction)
    assert parameters_of(block) == 2 * channels * h + 2 * h + channels**2 + channels + 1
    for height, width in ((8, 8), (4, 16), (1, 7), (64, 64)):
        n = height * width
        one = 2 * n * channels * (channels + 2 * h) + 2 * n * (height + width) * (channels + h)
        assert flops_of(block, 1, channels, height, width) == recurrence * one
        if n < 100:
            weights = block.attention(torch.zeros(1, channels, height, width))
            assert int(weights.count_nonzero()) == n * (height + width - 1)


def test_bfloat16_is_finite() -> None:
    assert_bfloat16_finite(opened(CrissCross(4, reduction=2)), 4)


def test_what_does_not_fit_is_refused() -> None:
    for settings in ({"channels": 0}, {"channels": 4, "reduction": 0}, {"channels": 4, "recurrence": 0}):
        name = next(key for key, value in settings.items() if value == 0)
        with pytest.raises(ValueError, match=f"{name}=0 must be 1 or more"):
            CrissCross(**settings)
