"""The equalities of predecessor_cost: each by two routes, and with what must break it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, scaled_dot_product_attention

from attnrepro.nn import masks
from attnrepro.nn.criss_cross import CrissCross
from attnrepro.nn.global_context import GlobalContext
from attnrepro.nn.map_attention import MapAttention
from attnrepro.nn.non_local import NonLocal, non_local_as_printed
from attnrepro.nn.relation_module import RelationModule
from attnrepro.nn.sagan_attention import SaganAttention
from attnrepro.nn.squeeze_excitation import SqueezeExcitation
from attnrepro.nn.swin import SwinPair

EPS = 2.0**-52
# Spread of drawn parameters: gates are open, weights far from uniform and none of them rounded away.
SPREAD = 0.3


def drawn(block: nn.Module, stream: torch.Generator) -> nn.Module:
    """The block in float64 with every parameter drawn, those that start at zero too."""
    block.double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream, dtype=torch.float64) * SPREAD)
    return block.requires_grad_(False)


def tokens(x: Tensor) -> Tensor:
    """``[batch, channels, height, width]`` to ``[batch, places, channels]``."""
    return x.flatten(-2).mT


def apart(one: Tensor, other: Tensor) -> float:
    """Largest difference in eps of the largest entry."""
    return float((one - other).abs().max() / one.abs().max()) / EPS


def is_attention(x: Tensor, stream: torch.Generator, breaker: str) -> float:
    """What a non-local block adds, against torch's attention on the same projections."""
    kind = "dot_product" if breaker == "dot_product" else "embedded_gaussian"
    return _against_torch(x, stream, kind, 1.0, None if breaker == "scaled" else 1.0)


def scale_made_good(x: Tensor, stream: torch.Generator, breaker: str) -> float:
    """The same with torch's own scale 1 / sqrt(d), for which the queries are multiplied by sqrt(d)."""
    times = 1.0 if breaker else math.sqrt(x.shape[1] // 2)
    return _against_torch(x, stream, "embedded_gaussian", times, None)


def _against_torch(x: Tensor, stream: torch.Generator, kind: str, times: float, scale: float | None) -> float:
    block = NonLocal(x.shape[1], kind=kind)
    drawn(block, stream)
    query, key, value = (tokens(part(x)) for part in (block.theta, block.phi, block.g))
    mixed = scaled_dot_product_attention(times * query, key, value, scale=scale)
    added = conv2d(torch.unflatten(mixed.mT, -1, x.shape[-2:]), block.out.weight, block.out.bias)
    return apart(block(x) - x, added)


def squares_alike(x: Tensor, stream: torch.Generator, breaker: str) -> float:
    """Largest difference of what the four places of a square receive."""
    block = NonLocal(x.shape[1], pool=2 if breaker else 1)
    drawn(block, stream)
    added = (block(x) if breaker else non_local_as_printed(block, x)) - x
    four = torch.stack([added[..., i::2, j::2] for i in range(2) for j in range(2)])
    return float((four.amax(0) - four.amin(0)).max() / (added.abs().max() + x.abs().max())) / EPS


def unit_interval(x: Tensor, stream: torch.Generator, breaker: str) -> float:
    """How far the weights of channels lie outside of 0 and 1."""
    block = SqueezeExcitation(x.shape[1], reduction=2)
    drawn(block, stream)
    both = torch.cat((x, -x))
    weights = block.excite(block.squeeze(both.mean((-2, -1))).relu()) if breaker else block.attention(both)
    return float(torch.maximum(-weights, weights - 1).clamp(min=0).max()) / EPS


def rows_and_columns(x: Tensor, stream: torch.Generator, breaker: str) -> float:
    """Criss-cross attention of a permuted map against the permuted output, rows and columns each by themselves."""
    height, width = x.shape[-2:]
    if breaker:
        order = torch.randperm(height * width, generator=stream)
    else:
        rows, columns = (torch.randperm(n, generator=stream) for n in (height, width))
        order = (rows[:, None] * width + columns).flatten()
    return _commutes(drawn(CrissCross(x.shape[1], reduction=2), stream), x, order)


def masked_cross(x: Tensor, stream: torch.Generator, breaker: str) -> float:
    """Two passes of criss-cross attention against torch's attention under the mask of the cross."""
    block = CrissCross(x.shape[1], reduction=2)
    drawn(block, stream)
    mask = None if breaker else masks.criss_cross(*x.shape[-2:])
    expected = x
    for _ in range(2):
        query, key, value = (tokens(part(expected)) for part in (block.query, block.key, block.value))
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
        expected = expected + block.gamma * torch.unflatten(mixed.mT, -1, x.shape[-2:])
    return apart(block(x), expected)


def any_permutation(x: Tensor, stream: torch.Generator, breaker: str) -> float:
    """The worst of the blocks that know no order of places, of a permuted map against the permuted output."""
    channels = x.shape[1]
    blocks: Sequence[nn.Module] = (
        NonLocal(channels),
        SaganAttention(channels, reduction=2),
        GlobalContext(channels, reduction=2),
        SqueezeExcitation(channels, reduction=2),
        RelationModule(channels),
        MapAttention(channels, num_heads=2),
    )
    if breaker == "keys_pooled":
        blocks = (NonLocal(channels, pool=2),)
    elif breaker == "windows":
        blocks = (SwinPair(channels, num_heads=2, window=2),)
    order = torch.randperm(x.shape[-2] * x.shape[-1], generator=stream)
    return max(_commutes(drawn(block, stream), x, order) for block in blocks)


def _commutes(block: nn.Module, x: Tensor, order: Tensor) -> float:
    def moved(t: Tensor) -> Tensor:
        return torch.unflatten(t.flatten(-2)[..., order], -1, t.shape[-2:])

    return apart(block(moved(x)), moved(block(x)))


# A map ``[1, channels, height, width]``, a stream and a breaker or nothing, to an error in eps.
IDENTITIES: dict[str, Callable[[Tensor, torch.Generator, str], float]] = {
    "is_attention": is_attention,
    "scale_made_good": scale_made_good,
    "squares_alike": squares_alike,
    "unit_interval": unit_interval,
    "rows_and_columns": rows_and_columns,
    "masked_cross": masked_cross,
    "any_permutation": any_permutation,
}


def channel_weight(channels: int, strength: float) -> float:
    """The weight of a channel at logits of ``strength`` times anything: how near the ends rounding lets it come."""
    block = SqueezeExcitation(channels, reduction=2).double()
    with torch.no_grad():
        block.squeeze.weight.fill_(1.0)
        block.excite.weight.fill_(math.copysign(1.0, strength))
        return float(block.attention(torch.full((1, channels, 1, 1), abs(strength), dtype=torch.float64))[0, 0])
