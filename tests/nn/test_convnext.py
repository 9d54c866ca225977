"""ConvNeXt's block against loops over places, at its cost, its reach, and under rolls."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.convnext import ConvNeXtBlock
from attnrepro.theory import window_blocks


def drawn(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64)


def block(channels: int, **more: object) -> ConvNeXtBlock:
    torch.manual_seed(1)
    return ConvNeXtBlock(channels, layer_scale=0.7, **more).double()  # type: ignore[arg-type]


def by_loops(made: ConvNeXtBlock, x: Tensor, *, circular: bool) -> Tensor:
    """One place at a time, its 49 neighbours one after the other."""
    channels, height, width = x.shape
    kernel = made.depthwise.weight[:, 0]
    out = torch.zeros_like(x)
    for r in range(height):
        for c in range(width):
            mixed = made.depthwise.bias
            for a in range(7):
                for b in range(7):
                    r2, c2 = r + a - 3, c + b - 3
                    if circular:
                        r2, c2 = r2 % height, c2 % width
                    if 0 <= r2 < height and 0 <= c2 < width:
                        mixed = mixed + kernel[:, a, b] * x[:, r2, c2]
            centred = mixed - mixed.sum() / channels
            normed = centred / (centred.square().sum() / channels + 1e-6).sqrt()
            hidden = made.widen.weight @ (normed * made.norm.weight + made.norm.bias) + made.widen.bias
            bent = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
            out[:, r, c] = x[:, r, c] + made.scale * (made.narrow.weight @ bent + made.narrow.bias)
    return out


@pytest.mark.parametrize(
    ("height", "width", "padding"),
    [(1, 1, "zeros"), (1, 7, "zeros"), (5, 3, "zeros"), (8, 9, "zeros"), (5, 3, "circular"), (8, 9, "circular")],
)
def test_values_and_gradients_are_those_of_loops(height: int, width: int, padding: str) -> None:
    made = block(3, padding=padding)
    x = drawn(1, 3, height, width).requires_grad_()
    found, expected = made(x), by_loops(made, x[0], circular=padding == "circular")[None]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    along, of = drawn(*x.shape, seed=9), [x, *made.parameters()]
    slopes = torch.autograd.grad((found * along).sum(), of)
    for slope, wanted in zip(slopes, torch.autograd.grad((expected * along).sum(), of), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("channels", "height", "width", "expansion"), [(1, 1, 1, 4), (8, 5, 3, 4), (6, 8, 8, 2)])
def test_cost_is_the_closed_form(channels: int, height: int, width: int, expansion: int) -> None:
    with torch.device("meta"):
        made, x = ConvNeXtBlock(channels, expansion=expansion), torch.zeros(1, channels, height, width)
    with FlopCounterMode(display=False) as counter:
        made(x)
    count = sum(part.numel() for part in made.parameters()), counter.get_total_flops()
    assert count == window_blocks.convnext(channels, height, width, expansion=expansion)


def test_it_starts_near_the_identity() -> None:
    x = torch.randn(1, 8, 5, 5)
    torch.testing.assert_close(ConvNeXtBlock(8)(x), x, rtol=0, atol=1e-4)


def test_the_circular_block_commutes_with_every_roll_and_zeros_break_it() -> None:
    x = drawn(1, 4, 8, 9)
    circular, zeros = block(4, padding="circular"), block(4)
    for down in range(8):
        for across in range(9):
            by = ((down, across), (-2, -1))
            torch.testing.assert_close(circular(x.roll(*by)), circular(x).roll(*by), rtol=1e-11, atol=1e-13)
            if down or across:
                assert (zeros(x.roll(*by)) - zeros(x).roll(*by)).abs().max() > 1e-3


def test_it_reaches_three_places_in_each_direction() -> None:
    x = drawn(1, 4, 9, 9).requires_grad_()
    (slope,) = torch.autograd.grad(block(4)(x)[0, :, 4, 2].square().sum(), x)
    expected = torch.zeros(9, 9, dtype=torch.bool)
    expected[1:8, 0:6] = True
    assert torch.equal((slope[0] != 0).any(0), expected)


def test_bfloat16_stays_finite() -> None:
    out = ConvNeXtBlock(8).bfloat16()(torch.randn(2, 8, 5, 3).bfloat16())
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="channels=0 must be 1 or more"):
        ConvNeXtBlock(0)
    with pytest.raises(ValueError, match="expansion=0 must be 1 or more"):
        ConvNeXtBlock(4, expansion=0)
    with pytest.raises(ValueError, match="padding=same must be zeros or circular"):
        ConvNeXtBlock(4, padding="same")
    with pytest.raises(RuntimeError, match="Padding value causes wrapping around more than once"):
        ConvNeXtBlock(4, padding="circular")(torch.zeros(1, 4, 1, 7))
