"""Attention to what is near and to every so many-th position, which two layers make complete."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnrepro.nn.attention import attention_logits, attention_weights


def strided_attention(query: Tensor, key: Tensor, value: Tensor, stride: int, *, causal: bool = False) -> Tensor:
    """Position i attends to j with |i - j| <= stride, and to those whose distance is a multiple of it.

    The two patterns of the paper in one head ("merged"), which are of sequences read from left to right (``causal``:
    j <= i); here they are mirrored besides. Logits of a head are ``[length, 2 stride + 1]`` and ``[length,
    length / stride]``, so that with a stride near sqrt(length) the cost grows as length^1.5: on n positions of d
    components, c = ceil(n / stride) and w = 2 stride + 1 (causal: stride + 1), 4 n w d + 4 stride c² d FLOPs.

    Args:
        query, key: ``[..., length, head_dim]``.
        value: ``[..., length, value_dim]``.
        stride: 1 or more; 1, or a stride of length - 1 or more, is attention to all.
        causal: only to what came before, and to itself.

    Returns:
        ``[..., length, value_dim]``.

    Raises:
        ValueError: a stride below 1, or another number of keys or values than of queries.

    Source: Child et al. 2019, Generating Long Sequences with Sparse Transformers, sections 4.2, 4.3 and 5.2.
    """
    if stride < 1:
        raise ValueError(f"stride={stride} must be 1 or more")
    length = query.shape[-2]
    if key.shape[-2] != length or value.shape[-2] != length:
        raise ValueError(f"key={key.shape[-2]} and value={value.shape[-2]} positions must be those of query={length}")
    position = torch.arange(length, device=query.device)
    after = 0 if causal else stride
    near = position[:, None] + torch.arange(-stride, after + 1, device=query.device)
    beyond = (near < 0) | (near >= length)
    logits_near = attention_logits(query[..., None, :], _around(key, stride, after)).squeeze(-2)

    columns = _columns(query, stride), _columns(key, stride), _columns(value, stride)
    logits_far = _in_order(attention_logits(columns[0], columns[1]), length)
    far = torch.arange(logits_far.shape[-1], device=query.device) * stride + (position % stride)[:, None]
    # What is near has been counted already.
    left_out = (far >= length) | ((far - position[:, None]).abs() <= stride)
    if causal:
        left_out |= far > position[:, None]

    masked = [logits_near.masked_fill(beyond, -torch.inf), logits_far.masked_fill(left_out, -torch.inf)]
    weights = attention_weights(torch.cat(masked, -1))
    to_near, to_far = weights[..., : near.shape[-1]], weights[..., near.shape[-1] :]
    from_near = (to_near[..., None, :] @ _around(value, stride, after)).squeeze(-2)
    return from_near + _in_order(_columns(to_far, stride) @ columns[2], length)


def _around(x: Tensor, before: int, after: int) -> Tensor:
    """The positions around each position: ``[..., length, size]`` to ``[..., length, before + 1 + after, size]``."""
    return pad(x, (0, 0, before, after)).unfold(-2, before + 1 + after, 1).transpose(-1, -2)


def _columns(x: Tensor, stride: int) -> Tensor:
    """Positions a stride apart together: ``[..., length, size]`` to ``[..., stride, ceil(length / stride), size]``."""
    filled = pad(x, (0, 0, 0, -x.shape[-2] % stride))
    return filled.reshape(*x.shape[:-2], -1, stride, x.shape[-1]).transpose(-2, -3)


def _in_order(x: Tensor, length: int) -> Tensor:
    """Back from `_columns`, without what filled it up."""
    return x.transpose(-2, -3).flatten(-3, -2)[..., :length, :]
