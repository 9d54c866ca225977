"""Attention to the neighbours within a window, at a cost that grows linearly with the length."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnrepro.nn.attention import attention_logits, attention_weights


def window_attention(query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
    """Each position attends to the ``width`` positions around it, itself in the middle; fewer at the ends.

    The same as attention under ``attnrepro.nn.masks.window``, but the logits of a head are ``[length, width]``: no
    matrix of all pairs is ever made.

    Args:
        query, key: ``[..., length, head_dim]``.
        value: ``[..., length, value_dim]``.
        width: odd and positive.

    Returns:
        ``[..., length, value_dim]``.

    Raises:
        ValueError: a width that is not odd and positive, or another number of keys or values than of queries.

    Source: Beltagy et al. 2020, Longformer, section 3.1 (sliding window).
    """
    if width < 1 or width % 2 == 0:
        raise ValueError(f"width={width} must be odd and positive, so that a position stands in the middle")
    length = query.shape[-2]
    if key.shape[-2] != length or value.shape[-2] != length:
        raise ValueError(f"key={key.shape[-2]} and value={value.shape[-2]} positions must be those of query={length}")
    half = width // 2
    offset = torch.arange(-half, half + 1, device=query.device)
    neighbour = torch.arange(length, device=query.device)[:, None] + offset
    outside = (neighbour < 0) | (neighbour >= length)
    # Beyond the ends stand zeros, which take no part.
    logits = attention_logits(query[..., None, :], _around(key, width)).squeeze(-2)
    weights = attention_weights(logits.masked_fill(outside, -torch.inf))
    return (weights[..., None, :] @ _around(value, width)).squeeze(-2)


def _around(x: Tensor, width: int) -> Tensor:
    """The positions around each position: ``[..., length, size]`` to ``[..., length, width, size]``."""
    half = width // 2
    return pad(x, (0, 0, half, half)).unfold(-2, width, 1).transpose(-1, -2)
