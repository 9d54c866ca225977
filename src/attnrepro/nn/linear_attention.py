"""Attention whose weights are products of features, so that keys and values are summed once for all queries."""

import torch
from torch import Tensor


def feature_map(x: Tensor) -> Tensor:
    """elu(x) + 1, positive everywhere: x + 1 above 0 and exp(x) below.

    Written without elu, whose exp(x) - 1 rounds the sum to 0 for x below -37 (float64) or -17 (float32).
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def linear_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Weighted means of the values with weights in proportion to ``feature_map(q_i) . feature_map(k_j)``.

    The matrix of weights is never made: the ``[head_dim, value_dim]`` sum of all products of a key and its value
    serves every query, at a cost that grows linearly with the length.

    Args:
        query: ``[..., num_queries, head_dim]``.
        key: ``[..., num_keys, head_dim]``.
        value: ``[..., num_keys, value_dim]``.

    Returns:
        ``[..., num_queries, value_dim]``.

    Raises:
        ValueError: keys of another size than the queries, or another number of values than of keys.

    Source: Katharopoulos et al. 2020, Transformers are RNNs, equations 5 to 7.
    """
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has head_dim {query.shape[-1]} and key has {key.shape[-1]}: they must be equal")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key={key.shape[-2]} and value={value.shape[-2]} must be the same number of positions")
    queries, keys = feature_map(query), feature_map(key)
    mixed = queries @ (keys.transpose(-1, -2) @ value)
    return mixed / (queries @ keys.sum(dim=-2)[..., None])
