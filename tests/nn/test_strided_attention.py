"""Strided attention against loops over pairs, at its cost, and what one layer and two of it reach."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.strided_attention import strided_attention
from attnrepro.theory import window_blocks

SHAPES = [(1, 1, 1, 1), (2, 3, 2, 3), (7, 2, 3, 2), (9, 4, 1, 3), (10, 2, 2, 4), (5, 3, 2, 9)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).requires_grad_()


def allowed(i: int, j: int, stride: int, causal: bool) -> bool:
    return (j <= i or not causal) and (abs(i - j) <= stride or (i - j) % stride == 0)


def by_loops(query: Tensor, key: Tensor, value: Tensor, stride: int, causal: bool) -> Tensor:
    length, size = query.shape
    outputs = []
    for i in range(length):
        seen = [j for j in range(length) if allowed(i, j, stride, causal)]
        strength = [torch.exp(sum(query[i, c] * key[j, c] for c in range(size)) / math.sqrt(size)) for j in seen]
        outputs.append(sum(s * value[j] for s, j in zip(strength, seen, strict=True)) / sum(strength))
    return torch.stack(outputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "head_dim", "value_dim", "stride"), SHAPES)
def test_values_and_gradients_are_those_of_loops(
    length: int, head_dim: int, value_dim: int, stride: int, causal: bool
) -> None:
    given = [drawn(length, size, seed=n) for n, size in enumerate((head_dim, head_dim, value_dim))]
    found, expected = strided_attention(*given, stride, causal=causal), by_loops(*given, stride, causal)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    along = drawn(length, value_dim, seed=9).detach()
    slopes = torch.autograd.grad((found * along).sum(), given)
    for slope, wanted in zip(slopes, torch.autograd.grad((expected * along).sum(), given), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "stride"), [(1, 3), (11, 4), (12, 4), (17, 1), (17, 16)])
def test_it_is_attention_under_the_mask_with_batch_and_heads(length: int, stride: int, causal: bool) -> None:
    given = [drawn(2, 3, length, 5, seed=n) for n in range(3)]
    mask = torch.tensor([[allowed(i, j, stride, causal) for j in range(length)] for i in range(length)])
    expected = scaled_dot_product_attention(*given, attn_mask=mask)
    torch.testing.assert_close(strided_attention(*given, stride, causal=causal), expected, rtol=1e-12, atol=1e-14)


def reach(length: int, stride: int, layers: int, causal: bool) -> list[set[int]]:
    """Positions that each output depends on."""
    x = drawn(length, 3)
    out: Tensor = x
    for _ in range(layers):
        out = strided_attention(out, out, out, stride, causal=causal)
    found = []
    for row in out:
        (slope,) = torch.autograd.grad(row.square().sum(), x, retain_graph=True)
        found.append({j for j in range(length) if bool((slope[j] != 0).any())})
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "stride"), [(16, 4), (14, 5)])
def test_one_layer_reaches_the_pattern_and_two_everything(length: int, stride: int, causal: bool) -> None:
    once, twice = reach(length, stride, 1, causal), reach(length, stride, 2, causal)
    assert once == [{j for j in range(length) if allowed(i, j, stride, causal)} for i in range(length)]
    assert once[-1] != set(range(length))
    assert twice == [set(range(i + 1 if causal else length)) for i in range(length)]


def test_it_commutes_with_reversal_and_not_with_a_swap() -> None:
    given = [drawn(12, 3, seed=n).detach() for n in range(3)]
    out = strided_attention(*given, 3)
    torch.testing.assert_close(strided_attention(*(x.flip(0) for x in given), 3), out.flip(0), rtol=1e-12, atol=1e-14)
    order = [1, 0, *range(2, 12)]
    assert (strided_attention(*(x[order] for x in given), 3) - out[order]).abs().max() > 1e-3
    causal = strided_attention(*given, 3, causal=True)
    assert (strided_attention(*(x.flip(0) for x in given), 3, causal=True) - causal.flip(0)).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "stride"), [(64, 8), (50, 7), (3, 5), (100_000, 316)])
def test_cost_is_the_closed_form(length: int, stride: int, causal: bool) -> None:
    given = [torch.zeros(length, 6, device="meta") for _ in range(3)]
    with FlopCounterMode(display=False) as counter:
        strided_attention(*given, stride, causal=causal)
    assert counter.get_total_flops() == window_blocks.strided_flops(length, 6, stride, causal=causal)


def test_bfloat16_stays_finite() -> None:
    given = [torch.randn(2, 9, 4).bfloat16() for _ in range(3)]
    out = strided_attention(*given, 4)
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="stride=0 must be 1 or more"):
        strided_attention(drawn(3, 2), drawn(3, 2), drawn(3, 2), 0)
    with pytest.raises(ValueError, match="key=4 and value=3 positions must be those of query=3"):
        strided_attention(drawn(3, 2), drawn(4, 2), drawn(3, 2), 2)
