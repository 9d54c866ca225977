"""Scaled dot-product attention in its parts: logits, weights, and how concentrated the weights are."""

import math

import torch
from torch import Tensor


def attention_logits(query: Tensor, key: Tensor, *, scaled: bool = True) -> Tensor:
    """Dot products of each query with each key, divided by sqrt(head_dim) when ``scaled``.

    Args:
        query: ``[..., num_queries, head_dim]``.
        key: ``[..., num_keys, head_dim]``, batch dimensions broadcast with the query's.
        scaled: with (Vaswani et al. 2017, equation 1) or without 1/sqrt(head_dim).

    Returns:
        ``[..., num_queries, num_keys]``.
    """
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has head_dim {query.shape[-1]} and key has {key.shape[-1]}: they must be equal")
    logits = query @ key.transpose(-1, -2)
    return logits / math.sqrt(query.shape[-1]) if scaled else logits


def attention_weights(logits: Tensor) -> Tensor:
    """Softmax over the keys, the last dimension: every row is non-negative and sums to one.

    Args:
        logits: ``[..., num_queries, num_keys]``.
    """
    return torch.softmax(logits, dim=-1)


def entropy(weights: Tensor) -> Tensor:
    """Entropy of each row in nats, ``[..., num_queries]``; 0 log 0 is 0, in value and in gradient.

    A literal ``-(p * p.log()).sum()`` is NaN as soon as a weight underflows to zero. ``torch.special.entr`` has
    the right value, but its derivative -1 - log p is infinite at p = 0 and turns into NaN one step further back
    in softmax (0 times infinity); a weight of exactly zero therefore takes no part in the gradient, as the limit
    of p log p says.

    Args:
        weights: ``[..., num_queries, num_keys]``, rows sum to one.
    """
    safe = torch.where(weights == 0, torch.ones_like(weights), weights)
    return -(safe * safe.log()).sum(dim=-1)
