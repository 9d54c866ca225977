"""Multi-head attention on a map against torch's own module and loops, its symmetry and its cost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attnrepro.nn.map_attention import MapAttention

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


def by_loops(block: MapAttention, x: Tensor) -> Tensor:
    heads, channels = block.heads.num_heads, x.shape[1]
    size = channels // heads
    images = []
    for image in x:
        places = []
        for place in image.flatten(-2).unbind(-1):
            mean = place.mean()
            spread = torch.sqrt(((place - mean) ** 2).mean() + block.norm.eps)
            places.append((place - mean) / spread * block.norm.weight + block.norm.bias)
        query, key, value = (
            [part.weight @ place for place in places]
            for part in (block.heads.w_query, block.heads.w_key, block.heads.w_value)
        )
        out = []
        for i in range(len(places)):
            parts = []
            for h in range(heads):
                own = slice(h * size, (h + 1) * size)
                strength = [torch.exp(query[i][own] @ k[own] / math.sqrt(size)) for k in key]
                parts.append(sum(s * v[own] for s, v in zip(strength, value, strict=True)) / sum(strength))
            out.append(block.heads.w_out.weight @ torch.cat(parts))
        images.append(image + torch.stack(out, -1).unflatten(-1, image.shape[-2:]))
    return torch.stack(images)


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_loops(num_heads: int, size: tuple[int, int]) -> None:
    block = opened(MapAttention(4, num_heads=num_heads))
    assert isinstance(block, MapAttention)
    assert_same(block, lambda x: by_loops(block, x), drawn(2, 4, *size))


def test_it_is_torchs_layer_on_normed_places() -> None:
    block, x = opened(MapAttention(8, num_heads=4)), drawn(2, 8, 5, 3)
    assert isinstance(block, MapAttention)
    torchs = nn.MultiheadAttention(8, 4, bias=False, batch_first=True).double()
    own = block.heads
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat((own.w_query.weight, own.w_key.weight, own.w_value.weight)))
        torchs.out_proj.weight.copy_(own.w_out.weight)
        tokens = nn.functional.layer_norm(x.flatten(-2).mT, (8,), block.norm.weight, block.norm.bias)
        mixed, weights = torchs(tokens, tokens, tokens, average_attn_weights=False)
        torch.testing.assert_close(block(x), x + mixed.mT.unflatten(-1, (5, 3)), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(block.attention(x), weights, rtol=1e-12, atol=1e-13)


def test_it_commutes_with_every_permutation_and_reaches_everything() -> None:
    block, x = opened(MapAttention(4, num_heads=2)), drawn(2, 4, 5, 3)
    assert apart(block, permuted, x) < 1e-13
    assert apart(block, lambda t: t.roll(1, 1), x) > 1e-2  # channels are no places
    assert reach(block, x[:1], 0, 0).all()


@pytest.mark.parametrize(("channels", "num_heads"), [(64, 4), (6, 3)])
def test_costs_in_closed_form(channels: int, num_heads: int) -> None:
    block = MapAttention(channels, num_heads=num_heads)
    assert parameters_of(block) == 4 * channels**2 + 2 * channels
    for height, width in ((1, 1), (5, 3), (64, 64)):
        n = height * width
        assert flops_of(block, 1, channels, height, width) == 8 * n * channels**2 + 4 * n**2 * channels
        if n < 100:
            assert block.attention(torch.zeros(1, channels, height, width)).shape == (1, num_heads, n, n)


def test_bfloat16_is_finite() -> None:
    assert_bfloat16_finite(opened(MapAttention(4, num_heads=2)), 4)


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="num_heads=3 must be 1 or more and divide embed_dim=4"):
        MapAttention(4, num_heads=3)
