"""Attention to a fixed number of mixtures of the keys and values instead of to all of them."""

from torch import Tensor

from attnrepro.nn.attention import attention_logits, attention_weights


def low_rank_attention(query: Tensor, key: Tensor, value: Tensor, key_mix: Tensor, value_mix: Tensor) -> Tensor:
    """Scaled dot-product attention to ``rank`` mixtures of the positions: softmax(Q (E K)^T / sqrt(head_dim)) (F V).

    Args:
        query: ``[..., num_queries, head_dim]``.
        key: ``[..., num_keys, head_dim]``.
        value: ``[..., num_keys, value_dim]``.
        key_mix: E, ``[rank, num_keys]``, of any batch dimensions that broadcast.
        value_mix: F, ``[rank, num_keys]``, likewise.

    Returns:
        ``[..., num_queries, value_dim]``.

    Raises:
        ValueError: mixtures of other shapes than ``[rank, num_keys]``, or of two ranks.

    Source: Wang et al. 2020, Linformer, section 4, equation 7.
    """
    if key_mix.shape[-2:] != value_mix.shape[-2:]:
        shapes = f"key_mix={tuple(key_mix.shape[-2:])} and value_mix={tuple(value_mix.shape[-2:])}"
        raise ValueError(f"{shapes} must have the same rank and number of positions")
    if key_mix.shape[-1] != key.shape[-2] or value_mix.shape[-1] != value.shape[-2]:
        given = f"key={key.shape[-2]} and value={value.shape[-2]}"
        raise ValueError(f"{given} positions must be the {key_mix.shape[-1]} that key_mix and value_mix mix")
    weights = attention_weights(attention_logits(query, key_mix @ key))
    return weights @ (value_mix @ value)
