"""Attention as message passing: every edge of a graph carries a message, every node mixes what arrives."""

import math

import torch
from torch import Tensor

from attnrepro.nn.self_attention import SelfAttention


def edges_of(adjacency: Tensor) -> Tensor:
    """Edges ``[2, num_edges]`` (receiver, sender) of a boolean ``[length, length]``, True = the row hears the column.

    Raises:
        ValueError: an adjacency that is not a square boolean matrix.
    """
    if adjacency.dtype != torch.bool or adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise ValueError(f"adjacency={tuple(adjacency.shape)} {adjacency.dtype} must be boolean and square")
    return adjacency.nonzero().T


def graph_attention(layer: SelfAttention, x: Tensor, edges: Tensor) -> Tensor:
    """One round of message passing with the weights of ``layer``, edge by edge and without a matrix of logits.

    An edge (i, j) has the score ``q_i . k_j / sqrt(head_dim)`` in each head and carries the value of j; node i divides
    by the exponentials of the edges that end in it. A node that hears nobody, not even itself, gets zeros. On all
    edges of the complete graph, loops included, it is the layer; on any other graph it is the layer under the mask
    of the graph.

    Args:
        layer: whose W_Q, W_K, W_V and W_O are used.
        x: nodes ``[length, embed_dim]``.
        edges: ``[2, num_edges]`` (receiver, sender), each edge once.

    Returns:
        ``[length, embed_dim]``.

    Source: Velickovic et al. 2018, Graph Attention Networks, section 2.1, with the score of Vaswani et al. 2017;
    document 002, section on graph networks.
    """
    receiver, sender = edges
    length, heads = len(x), layer.num_heads
    query, key, value = (w(x).view(length, heads, -1) for w in (layer.w_query, layer.w_key, layer.w_value))
    score = (query[receiver] * key[sender]).sum(-1) / math.sqrt(query.shape[-1])
    # The largest score that arrives: subtracting it changes nothing and keeps the exponentials finite.
    top = torch.full((length, heads), -torch.inf, dtype=x.dtype, device=x.device)
    top = top.scatter_reduce(0, receiver[:, None].expand(-1, heads), score.detach(), "amax")
    strength = (score - top[receiver]).exp()
    total = torch.zeros(length, heads, dtype=x.dtype, device=x.device).index_add(0, receiver, strength)
    share = strength / total[receiver]
    mixed = torch.zeros_like(value).index_add(0, receiver, share[..., None] * value[sender])
    out: Tensor = layer.w_out(mixed.flatten(1))
    return out
