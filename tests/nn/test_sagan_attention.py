"""SAGAN's attention against loops and torch's attention, its gate, and the printed formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, scaled_dot_product_attention

from attnrepro.nn.sagan_attention import SaganAttention, sagan_attention_as_printed

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
)


def by_loops(block: SaganAttention, x: Tensor) -> Tensor:
    f, g, h, v = (part.weight[:, :, 0, 0] for part in (block.f, block.g, block.h, block.v))
    images = []
    for image in x:
        places = image.flatten(-2).unbind(-1)
        out = []
        for receiver in places:
            strength = [torch.exp((g @ receiver) @ (f @ sender)) for sender in places]
            mixed = sum(s * (h @ sender) for s, sender in zip(strength, places, strict=True)) / sum(strength)
            out.append(receiver + block.gamma * (v @ mixed))
        images.append(torch.stack(out, -1).unflatten(-1, image.shape[-2:]))
    return torch.stack(images)


@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_loops(size: tuple[int, int]) -> None:
    block = opened(SaganAttention(4, reduction=2))
    assert isinstance(block, SaganAttention)
    assert_same(block, lambda x: by_loops(block, x), drawn(2, 4, *size))


def test_gamma_starts_at_zero_and_opens() -> None:
    block, x = SaganAttention(16), drawn(2, 16, 5, 3).float()
    assert block.gamma.item() == 0 and torch.equal(block(x), x)
    (slope,) = torch.autograd.grad(block(x).square().sum(), block.gamma)
    assert slope.abs() > 1e-4


def test_the_printed_formula_is_another_function() -> None:
    """Were it the paper's, its scale, its missing gate and its missing map would change nothing."""
    block, x = opened(SaganAttention(8, reduction=2)), drawn(2, 8, 3, 4)
    assert isinstance(block, SaganAttention)
    tokens = [part(x).flatten(-2).mT for part in (block.g, block.f, block.h)]
    with torch.no_grad():
        scaled, unscaled = (
            conv2d(scaled_dot_product_attention(*tokens, scale=scale).mT.unflatten(-1, (3, 4)), block.v.weight)
            for scale in (None, 1.0)
        )
        printed = sagan_attention_as_printed(block, x)
        torch.testing.assert_close(printed, scaled, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(block(x), x + block.gamma * unscaled, rtol=1e-12, atol=1e-13)
        for paper in (block(x), unscaled, x + block.gamma * scaled):
            assert float((printed - paper).abs().max()) > 1e-2
        fresh = SaganAttention(8).double()
        assert torch.equal(fresh(x), x) and not torch.allclose(sagan_attention_as_printed(fresh, x), x)


def test_it_commutes_with_every_permutation_and_reaches_everything() -> None:
    block, x = opened(SaganAttention(4, reduction=2)), drawn(2, 4, 5, 3)
    assert apart(block, permuted, x) < 1e-13
    assert apart(block, lambda t: t.roll(1, 1), x) > 1e-2  # channels are no places
    assert reach(block, x[:1], 2, 1).all()
    torch.testing.assert_close(block.attention(x).sum(-1), torch.ones(2, 15).double())


@pytest.mark.parametrize(("channels", "reduction"), [(64, 8), (6, 4), (5, 8)])
def test_costs_in_closed_form(channels: int, reduction: int) -> None:
    block, h = SaganAttention(channels, reduction=reduction), max(1, channels // reduction)
    assert parameters_of(block) == 4 * channels * h + 1
    for height, width in ((1, 1), (5, 3), (64, 64)):
        n = height * width
        assert flops_of(block, 1, channels, height, width) == 8 * n * channels * h + 4 * n**2 * h


def test_bfloat16_is_finite() -> None:
    assert_bfloat16_finite(opened(SaganAttention(4, reduction=2)), 4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="channels=0 must be 1 or more"):
        SaganAttention(0)
    with pytest.raises(ValueError, match="reduction=0 must be 1 or more"):
        SaganAttention(4, reduction=0)
