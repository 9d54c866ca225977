"""Attention whose queries come from one sequence and whose keys and values come from another."""

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights


class CrossAttention(nn.Module):
    """Tokens look things up in a context: ``concat(head_1, ..., head_h) W_O``, ``head_i = A_i C W_V,i``.

    W_Q and W_O are ``[embed_dim, embed_dim]``, W_K and W_V ``[embed_dim, context_dim]``, all without bias. With the
    tokens as their own context this is `attnrepro.nn.self_attention.SelfAttention`.

    Raises:
        ValueError: a size below 1, or an embed_dim that num_heads does not divide.

    Source: Vaswani et al. 2017, section 3.2.3 (encoder-decoder attention); document 003, section 11.
    """

    def __init__(self, embed_dim: int, context_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        for name, size in (("embed_dim", embed_dim), ("context_dim", context_dim)):
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} must be 1 or more and divide embed_dim={embed_dim}")
        self.num_heads = num_heads
        self.w_query, self.w_out = (nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2))
        self.w_key, self.w_value = (nn.Linear(context_dim, embed_dim, bias=False) for _ in range(2))

    def weights(self, x: Tensor, context: Tensor) -> Tensor:
        """Attention weights ``[..., num_heads, num_queries, num_keys]``; see `forward`."""
        return attention_weights(attention_logits(self._heads(self.w_query(x)), self._heads(self.w_key(context))))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Outputs of all queries; however long the context is, there are as many as there are queries.

        Args:
            x: tokens that ask ``[..., num_queries, embed_dim]``.
            context: tokens that are asked ``[..., num_keys, context_dim]``, batch dimensions as those of ``x``.

        Returns:
            ``[..., num_queries, embed_dim]``.
        """
        heads = self.weights(x, context) @ self._heads(self.w_value(context))
        out: Tensor = self.w_out(heads.transpose(-2, -3).flatten(-2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """``[..., length, embed_dim]`` to ``[..., num_heads, length, head_dim]``."""
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(-2, -3)
