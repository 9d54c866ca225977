"""Window attention against loops over positions, against the masked layer, and at its cost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn import masks
from attnrepro.nn.window_attention import window_attention

SHAPES = [(1, 1, 1, 1), (2, 3, 2, 3), (5, 3, 3, 1), (7, 5, 2, 3), (9, 4, 7, 5), (6, 2, 3, 15)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).requires_grad_()


def by_loops(query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
    length, size = query.shape
    outputs = []
    for i in range(length):
        near = [j for j in range(length) if abs(i - j) <= width // 2]
        strength = [torch.exp(sum(query[i, c] * key[j, c] for c in range(size)) / math.sqrt(size)) for j in near]
        outputs.append(sum(s * value[j] for s, j in zip(strength, near, strict=True)) / sum(strength))
    return torch.stack(outputs)


@pytest.mark.parametrize(("length", "head_dim", "value_dim", "width"), SHAPES)
def test_values_and_gradients_are_those_of_loops(length: int, head_dim: int, value_dim: int, width: int) -> None:
    given = [drawn(length, size, seed=n) for n, size in enumerate((head_dim, head_dim, value_dim))]
    found, expected = window_attention(*given, width), by_loops(*given, width)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    along = drawn(length, value_dim, seed=9).detach()
    slopes = torch.autograd.grad((found * along).sum(), given)
    for slope, wanted in zip(slopes, torch.autograd.grad((expected * along).sum(), given), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("length", "width"), [(1, 3), (4, 1), (11, 5), (17, 7), (8, 99)])
def test_it_is_attention_under_the_mask_with_batch_and_heads(length: int, width: int) -> None:
    given = [drawn(2, 3, length, 5, seed=n) for n in range(3)]
    found = window_attention(*given, width)
    expected = scaled_dot_product_attention(*given, attn_mask=masks.window(length, width))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    slopes = torch.autograd.grad(found.square().sum(), given)
    for slope, wanted in zip(slopes, torch.autograd.grad(expected.square().sum(), given), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-11, atol=1e-13)


def test_its_cost_is_linear_in_the_length() -> None:
    def cost(length: int) -> int:
        given = [torch.zeros(length, 6, device="meta") for _ in range(3)]
        with FlopCounterMode(display=False) as counter:
            window_attention(*given, 5)
        return int(counter.get_total_flops())

    # Five neighbours, six components, a product of logits and one of values, two FLOPs each.
    assert [cost(length) for length in (7, 14, 70_000)] == [2 * 2 * 5 * 6 * length for length in (7, 14, 70_000)]


@pytest.mark.parametrize("width", [0, 2, -1])
def test_a_width_without_a_middle_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"width={width} must be odd and positive"):
        window_attention(drawn(3, 2), drawn(3, 2), drawn(3, 2), width)


def test_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="key=4 and value=3 positions must be those of query=3"):
        window_attention(drawn(3, 2), drawn(4, 2), drawn(3, 2), 3)
    with pytest.raises(ValueError, match="key=3 and value=2 positions"):
        window_attention(drawn(3, 2), drawn(3, 2), drawn(2, 2), 3)


def test_shifts_inside_and_reach() -> None:
    """Away from the ends a shift of the tokens shifts the outputs; an output reads its window and nothing else."""
    query, key, value = (drawn(1, 12, 4, seed=seed) for seed in range(3))
    out = window_attention(query, key, value, 5)
    moved = window_attention(query.roll(1, 1), key.roll(1, 1), value.roll(1, 1), 5)
    torch.testing.assert_close(moved[:, 3:-2], out[:, 2:-3], rtol=1e-12, atol=1e-14)
    assert float((moved[:, :2] - out.roll(1, 1)[:, :2]).abs().max()) > 1e-3
    order = torch.tensor([1, 0, *range(2, 12)])
    permuted = window_attention(query[:, order], key[:, order], value[:, order], 5)
    assert float((permuted - out[:, order]).abs().max()) > 1e-3
    read = value.clone().requires_grad_()
    for place in (0, 1, 6, 11):
        (slope,) = torch.autograd.grad(window_attention(query, key, read, 5)[:, place].sum(), read)
        near = (torch.arange(12) - place).abs() <= 2
        assert torch.equal(slope[0].abs().amax(1) > 0, near)


def test_bfloat16_stays_finite() -> None:
    x = [drawn(2, 6, 4, seed=seed).bfloat16().detach().requires_grad_() for seed in range(3)]
    out = window_attention(*x, 3)
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16 and torch.isfinite(out).all()
    assert all(part.grad is not None and torch.isfinite(part.grad).all() for part in x)
