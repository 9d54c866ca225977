"""Swin's windows against loops over places, at their cost, and under the rolls they commute with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.swin import PatchMerging, SwinBlock, SwinPair, WindowSelfAttention, relative_index
from attnrepro.theory import window_blocks

# channels, heads, window, shift, height, width
CASES = [
    (1, 1, 1, 0, 1, 1),
    (4, 2, 2, 0, 4, 4),
    (4, 2, 2, 1, 4, 6),
    (6, 3, 3, 1, 6, 3),
    (4, 1, 4, 2, 1, 1),
    (4, 1, 4, 2, 1, 7),
    (4, 2, 4, 2, 5, 3),
    (2, 1, 3, 2, 7, 4),
]


def layer(channels: int, num_heads: int, window: int, shift: int, **more: Any) -> WindowSelfAttention:
    torch.manual_seed(1)
    made = WindowSelfAttention(channels, num_heads=num_heads, window=window, shift=shift, **more).double()
    if made.bias is not None:
        torch.nn.init.normal_(made.bias)
    return made


def drawn(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64)


def place(at: int, size: int, window: int, shift: int) -> tuple[int, int, bool]:
    """Window and place in it of a row or column, and whether the roll took it round the end."""
    filled = math.ceil(size / window) * window
    by = shift if filled > window else 0
    moved = (at - by) % filled
    return moved // window, moved % window, at < by


def by_loops(attention: WindowSelfAttention, x: Tensor) -> Tensor:
    """One place, one head, one other place at a time."""
    channels, height, width = x.shape
    side, heads, shift = attention.window, attention.num_heads, attention.shift
    size = channels // heads
    weight, bias = attention.qkv.weight, attention.qkv.bias
    where = {
        (r, c): (place(r, height, side, shift), place(c, width, side, shift))
        for r in range(height)
        for c in range(width)
    }
    out = torch.zeros_like(x)
    for (r, c), (down, across) in where.items():
        parts = []
        for h in range(heads):
            q, k, v = (slice(n * channels + h * size, n * channels + (h + 1) * size) for n in range(3))
            query = weight[q] @ x[:, r, c] + bias[q]
            strengths, values = [], []
            for (r2, c2), (down2, across2) in where.items():
                if down[0] != down2[0] or across[0] != across2[0]:
                    continue
                if attention.masked and (down[2] != down2[2] or across[2] != across2[2]):
                    continue
                logit = query @ (weight[k] @ x[:, r2, c2] + bias[k]) / math.sqrt(size)
                if attention.bias is not None:
                    row, column = down[1] - down2[1] + side - 1, across[1] - across2[1] + side - 1
                    logit = logit + attention.bias[row * (2 * side - 1) + column, h]
                strengths.append(logit.exp())
                values.append(weight[v] @ x[:, r2, c2] + bias[v])
            total = sum(strengths)
            parts.append(sum(s * value for s, value in zip(strengths, values, strict=True)) / total)
        out[:, r, c] = attention.out.weight @ torch.cat(parts) + attention.out.bias
    return out


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("relative_bias", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_loops(case: tuple[int, ...], relative_bias: bool, masked: bool) -> None:
    channels, heads, window, shift, height, width = case
    attention = layer(channels, heads, window, shift, relative_bias=relative_bias, masked=masked)
    x = drawn(1, channels, height, width).requires_grad_()
    found, expected = attention(x), by_loops(attention, x[0])[None]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    along = drawn(*x.shape, seed=9)
    of = [x, *attention.parameters()]
    slopes = torch.autograd.grad((found * along).sum(), of)
    for slope, wanted in zip(slopes, torch.autograd.grad((expected * along).sum(), of), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-12)


def test_offsets_are_numbered_row_by_row() -> None:
    assert relative_index(1).tolist() == [[0]]
    # Places 00, 01, 10, 11; offsets (-1, -1) to (1, 1) are 0 to 8, so that (0, 0) is 4.
    assert relative_index(2).tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]


def test_every_map_of_a_batch_by_itself() -> None:
    attention, x = layer(4, 2, 2, 1), drawn(3, 4, 4, 6)
    for one, out in zip(x, attention(x), strict=True):
        torch.testing.assert_close(out[None], attention(one[None]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 7), (5, 3), (8, 8), (9, 13)])
def test_blocks_keep_shape_and_dtype(height: int, width: int) -> None:
    x = torch.randn(2, 8, height, width)
    pair = SwinPair(8, num_heads=2, window=4)
    assert pair(x).shape == x.shape
    rough = pair.bfloat16()(x.bfloat16())
    assert rough.dtype == torch.bfloat16
    assert rough.isfinite().all()


def test_a_block_is_two_residual_branches() -> None:
    torch.manual_seed(0)
    block, x = SwinBlock(6, num_heads=2, window=2, shift=1).double(), drawn(2, 6, 4, 4)

    def normed(y: Tensor) -> Tensor:
        return (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, correction=0) + 1e-5).sqrt()

    first = x + block.attention(normed(x))
    hidden = torch.einsum("bchw,dc->bdhw", normed(first), block.mlp[0].weight) + block.mlp[0].bias[:, None, None]
    bent = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    second = torch.einsum("bdhw,cd->bchw", bent, block.mlp[2].weight) + block.mlp[2].bias[:, None, None]
    torch.testing.assert_close(block(x), first + second, rtol=1e-11, atol=1e-13)


def test_a_pair_shifts_its_second_block_by_half_a_window() -> None:
    pair, x = SwinPair(4, num_heads=2, window=5), torch.randn(1, 4, 10, 10)
    assert [block.attention.shift for block in pair] == [0, 2]
    torch.testing.assert_close(pair(x), pair[1](pair[0](x)))


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 3), (1, 7), (9, 13)])
@pytest.mark.parametrize("relative_bias", [True, False])
def test_cost_is_the_closed_form(height: int, width: int, relative_bias: bool) -> None:
    with torch.device("meta"):
        pair = SwinPair(12, num_heads=3, window=4, relative_bias=relative_bias)
        merging = PatchMerging(12)
        x = torch.zeros(1, 12, height, width)
    with FlopCounterMode(display=False) as counter:
        pair(x)
    count = sum(part.numel() for part in pair.parameters()), counter.get_total_flops()
    assert count == window_blocks.swin_pair(12, height, width, num_heads=3, window=4, relative_bias=relative_bias)
    if height % 2 == width % 2 == 0:
        with FlopCounterMode(display=False) as counter:
            merging(x)
        count = sum(part.numel() for part in merging.parameters()), counter.get_total_flops()
        assert count == window_blocks.patch_merging(12, height, width)


def moves(module: torch.nn.Module, x: Tensor, by: tuple[int, int]) -> float:
    """Largest difference between the output of a rolled map and the rolled output."""
    return float((module(x.roll(by, (-2, -1))) - module(x).roll(by, (-2, -1))).abs().max().detach())


def pair_of(masked: bool, relative_bias: bool) -> SwinPair:
    torch.manual_seed(2)
    made = SwinPair(8, num_heads=2, window=4, masked=masked, relative_bias=relative_bias).double()
    for block in made:
        if block.attention.bias is not None:
            torch.nn.init.normal_(block.attention.bias)
    return made


@pytest.mark.parametrize("relative_bias", [True, False])
def test_cyclic_windows_commute_with_rolls_by_whole_windows_and_no_others(relative_bias: bool) -> None:
    pair, x = pair_of(False, relative_bias), drawn(1, 8, 8, 12)
    for down in range(8):
        for across in range(12):
            error = moves(pair, x, (down, across))
            assert error < 1e-13 if down % 4 == across % 4 == 0 else error > 1e-3


def test_the_mask_ties_the_windows_to_the_border() -> None:
    pair, x = pair_of(True, True), drawn(1, 8, 8, 12)
    for down in range(8):
        for across in range(12):
            error = moves(pair, x, (down, across))
            assert error == 0 if down == across == 0 else error > 1e-3


def test_without_bias_a_window_is_a_set() -> None:
    x = drawn(1, 8, 4, 4)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))

    def permuted(y: Tensor) -> Tensor:
        return y.flatten(2)[..., order].view_as(y)

    blind, sighted = layer(8, 2, 4, 0, relative_bias=False), layer(8, 2, 4, 0)
    torch.testing.assert_close(blind(permuted(x)), permuted(blind(x)), rtol=1e-12, atol=1e-14)
    assert (sighted(permuted(x)) - permuted(sighted(x))).abs().max() > 1e-3


def seen(module: torch.nn.Module, height: int, width: int, row: int, column: int) -> Tensor:
    x = drawn(1, 4, height, width).requires_grad_()
    (slope,) = torch.autograd.grad(module(x)[0, :, row, column].square().sum(), x)
    return (slope[0] != 0).any(0)


def test_reach_is_the_window_and_with_a_shift_the_shifted_one_within_the_border() -> None:
    plain, shifted, cyclic = layer(4, 2, 4, 0), layer(4, 2, 4, 2), layer(4, 2, 4, 2, masked=False)
    expected = torch.zeros(8, 8, dtype=torch.bool)
    expected[4:8, 0:4] = True
    assert torch.equal(seen(plain, 8, 8, 5, 1), expected)
    expected = torch.zeros(8, 8, dtype=torch.bool)
    expected[2:6, 0:2] = True
    assert torch.equal(seen(shifted, 8, 8, 5, 1), expected)
    expected[2:6, 6:8] = True
    assert torch.equal(seen(cyclic, 8, 8, 5, 1), expected)


def test_filling_is_seen_by_nobody() -> None:
    attention = layer(4, 2, 4, 2)
    assert int(seen(attention, 5, 3, 4, 2).sum()) == 9  # rows 2 to 4 of columns 0 to 2


def test_merging_reads_each_square_once() -> None:
    torch.manual_seed(0)
    merging, x = PatchMerging(3).double(), drawn(2, 3, 4, 6)
    out = merging(x)
    assert out.shape == (2, 6, 2, 3)
    for row in range(2):
        for column in range(3):
            square = x[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            four = torch.cat([square[..., 0, 0], square[..., 1, 0], square[..., 0, 1], square[..., 1, 1]], 1)
            normed = (four - four.mean(1, keepdim=True)) / (four.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
            torch.testing.assert_close(
                out[:, :, row, column], normed @ merging.reduction.weight.T, rtol=1e-11, atol=1e-13
            )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"channels": 4, "num_heads": 3, "window": 2}, "num_heads=3 must be 1 or more and divide channels=4"),
        ({"channels": 4, "num_heads": 2, "window": 0}, "window=0 must be 1 or more"),
        ({"channels": 4, "num_heads": 2, "window": 2, "shift": 2}, "shift=2 must be 0 or more and below window=2"),
        ({"channels": 4, "num_heads": 2, "window": 2, "expansion": 0}, "expansion=0 must be 1 or more"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SwinBlock(**settings)


def test_a_window_without_a_half_and_odd_maps_are_refused() -> None:
    with pytest.raises(ValueError, match="window=1 must be 2 or more"):
        SwinPair(4, num_heads=2, window=1)
    with pytest.raises(ValueError, match="height=4 and width=3 must be even"):
        PatchMerging(4)(torch.zeros(1, 4, 4, 3))
