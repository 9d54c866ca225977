"""Squeeze and excitation against loops, its range, its symmetries and its cost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnrepro.nn.squeeze_excitation import SqueezeExcitation

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


def by_loops(block: SqueezeExcitation, x: Tensor) -> Tensor:
    channels, height, width = x.shape[1:]
    images = []
    for image in x:
        z = [
            sum(image[c, i, j] for i in range(height) for j in range(width)) / (height * width) for c in range(channels)
        ]
        hidden = [sum(w * v for w, v in zip(row, z, strict=True)).clamp(min=0) for row in block.squeeze.weight]
        logits = [sum(w * v for w, v in zip(row, hidden, strict=True)) for row in block.excite.weight]
        images.append(torch.stack([image[c] / (1 + torch.exp(-logits[c])) for c in range(channels)]))
    return torch.stack(images)


@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_loops(size: tuple[int, int]) -> None:
    block = opened(SqueezeExcitation(6, reduction=2))
    assert isinstance(block, SqueezeExcitation)
    assert_same(block, lambda x: by_loops(block, x), drawn(2, 6, *size))


def test_weights_are_of_channels_and_lie_between_zero_and_one() -> None:
    block, x = opened(SqueezeExcitation(6, reduction=2)), drawn(64, 6, 4, 4)
    with torch.no_grad():
        weights = block.attention(x)
        assert weights.shape == (64, 6) and (weights > 0).all() and (weights < 1).all()
        # Rounding closes the interval: exp(-40) is lost beside 1 in float64.
        block.squeeze.weight.fill_(1.0)
        block.excite.weight.fill_(1.0)
        assert (block.attention(torch.full((1, 6, 1, 1), 40.0, dtype=torch.float64)) == 1).all()
        ratio = block(x) / x
        assert torch.allclose(ratio, ratio.mean((-2, -1), keepdim=True), rtol=1e-12)


def test_it_commutes_with_every_permutation_of_places_and_of_no_channels() -> None:
    block, x = opened(SqueezeExcitation(6, reduction=2)), drawn(2, 6, 5, 3)
    assert apart(block, permuted, x) < 1e-14
    assert apart(block, lambda t: t.roll(1, 1), x) > 1e-3
    assert reach(block, x[:1], 0, 0).all()


@pytest.mark.parametrize(("channels", "reduction"), [(64, 16), (7, 2), (5, 5)])
def test_costs_in_closed_form(channels: int, reduction: int) -> None:
    block, hidden = SqueezeExcitation(channels, reduction=reduction), channels // reduction
    assert parameters_of(block) == 2 * channels * hidden
    for size in (1, 9, 64):
        assert flops_of(block, 1, channels, size, size) == 4 * channels * hidden


def test_bfloat16_is_finite() -> None:
    assert_bfloat16_finite(opened(SqueezeExcitation(6, reduction=2)), 6)


@pytest.mark.parametrize("reduction", [0, 7])
def test_a_reduction_that_leaves_nothing_is_refused(reduction: int) -> None:
    with pytest.raises(ValueError, match=f"reduction={reduction} must be 1 or more and at most channels=6"):
        SqueezeExcitation(6, reduction=reduction)
    assert math.isclose(SqueezeExcitation(6, reduction=6).attention(torch.zeros(1, 6, 2, 2))[0, 0].item(), 0.5)
