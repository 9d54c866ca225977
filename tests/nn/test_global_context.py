"""The global context block and its control against loops, and the printed formula, in which attention cancels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnrepro.nn.global_context import GlobalAverageAdd, GlobalContext, global_context_as_printed

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

BLOCKS = [GlobalContext, GlobalAverageAdd]


def by_loops(block: GlobalContext | GlobalAverageAdd, x: Tensor) -> Tensor:
    first, norm, _, last = block.transform
    images = []
    for image in x:
        places = [image[:, i, j] for i in range(image.shape[1]) for j in range(image.shape[2])]
        if isinstance(block, GlobalContext):
            strength = [torch.exp(block.key.weight[0] @ place + block.key.bias[0]) for place in places]
        else:
            strength = [torch.ones((), dtype=x.dtype) for _ in places]
        context = sum(s * place for s, place in zip(strength, places, strict=True)) / sum(strength)
        hidden = first.weight @ context + first.bias
        mean = hidden.mean()
        normed = (hidden - mean) / torch.sqrt(((hidden - mean) ** 2).mean() + norm.eps) * norm.weight + norm.bias
        added = last.weight @ normed.clamp(min=0) + last.bias
        images.append(image + added[:, None, None])
    return torch.stack(images)


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_loops(
    kind: type[GlobalContext] | type[GlobalAverageAdd], size: tuple[int, int]
) -> None:
    block = opened(kind(6, reduction=2))
    assert isinstance(block, kind)
    assert_same(block, lambda x: by_loops(block, x), drawn(2, 6, *size))


@pytest.mark.parametrize("kind", BLOCKS)
def test_all_places_receive_the_same(kind: type[nn.Module]) -> None:
    block, x = opened(kind(6, reduction=2)), drawn(2, 6, 5, 3)
    with torch.no_grad():
        added = block(x) - x
    assert float((added - added[..., :1, :1]).abs().max()) < 1e-14 < float(added.abs().max())
    assert torch.equal(kind(6, reduction=2)(x.float()), x.float())
    assert apart(block, permuted, x) < 1e-14
    assert reach(block, x[:1], 0, 0).all()


def test_attention_pooling_is_not_the_mean() -> None:
    block, x = opened(GlobalContext(6, reduction=2)), drawn(2, 6, 4, 4)
    weights = block.attention(x).detach()
    assert weights.shape == (2, 1, 16)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 1).double()) and float(weights.std()) > 0.01
    assert torch.equal(GlobalAverageAdd(6, reduction=2).attention(x), torch.full((2, 1, 16), 1 / 16).double())


@pytest.mark.parametrize(("channels", "reduction"), [(64, 16), (12, 4), (7, 2)])
def test_costs_in_closed_form(channels: int, reduction: int) -> None:
    h = channels // reduction
    context, average = GlobalContext(channels, reduction=reduction), GlobalAverageAdd(channels, reduction=reduction)
    assert parameters_of(context) == 2 * channels * h + 2 * channels + 3 * h + 1
    assert parameters_of(average) == 2 * channels * h + channels + 3 * h
    for height, width in ((1, 1), (5, 3), (64, 64)):
        assert flops_of(context, 1, channels, height, width) == 4 * height * width * channels + 4 * channels * h
        assert flops_of(average, 1, channels, height, width) == 4 * channels * h


def test_in_the_printed_formula_attention_cancels() -> None:
    """Were it right, place weights would matter and places would differ: they do not, and it is the plain mean."""
    x = drawn(2, 4, 3, 5).requires_grad_()
    place_weights = drawn(15, 4, seed=3).requires_grad_()
    out = global_context_as_printed(x, place_weights)
    mean = x.mean((-2, -1), keepdim=True)
    torch.testing.assert_close(out, mean.expand_as(x), rtol=1e-13, atol=1e-14)
    (slope,) = torch.autograd.grad((out * drawn(2, 4, 3, 5, seed=9)).sum(), place_weights)
    assert float(slope.abs().max()) < 1e-14
    # By loops, as printed: weights of place i that depend on x_i, over a context without an index.
    for i in range(15):
        query = x[0].flatten(-2)[:, i]
        alpha = torch.stack([torch.exp(w @ query) for w in place_weights])
        alpha = alpha / alpha.sum()
        assert float(alpha.detach().std()) > 0.01
        expected = sum(a * mean[0, :, 0, 0] for a in alpha)
        torch.testing.assert_close(out[0].flatten(-2)[:, i], expected, rtol=1e-12, atol=1e-13)
    # The block of the paper has weights that matter.
    block = opened(GlobalContext(4, reduction=1))
    (slope,) = torch.autograd.grad(block(x).square().sum(), block.key.weight)
    assert float(slope.abs().max()) > 1e-3


@pytest.mark.parametrize("kind", BLOCKS)
def test_bfloat16_is_finite(kind: type[nn.Module]) -> None:
    assert_bfloat16_finite(opened(kind(6, reduction=2)), 6)


@pytest.mark.parametrize(("channels", "reduction"), [(16, 16), (16, 9), (16, 6), (4, 0), (4, -1)])
@pytest.mark.parametrize("kind", BLOCKS)
def test_a_norm_of_one_or_two_components_is_refused(kind: type[nn.Module], channels: int, reduction: int) -> None:
    with pytest.raises(ValueError, match=f"reduction={reduction} must leave 3 or more of channels={channels}"):
        kind(channels, reduction=reduction)
