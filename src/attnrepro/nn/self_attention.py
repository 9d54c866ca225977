"""Multi-head self-attention without any notion of position."""

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights


class SelfAttention(nn.Module):
    """Every token attends to every token: ``concat(head_1, ..., head_h) W_O`` with ``head_i = A_i X W_V,i``.

    W_Q, W_K, W_V and W_O are ``[embed_dim, embed_dim]`` without bias; head i reads the i-th slice of ``head_dim`` =
    embed_dim / num_heads components. Without a mask the layer is permutation-equivariant (document 004, theorem 2.1).

    Raises:
        ValueError: a size below 1, or an embed_dim that num_heads does not divide.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.2.
    """

    def __init__(self, embed_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        if embed_dim < 1:
            raise ValueError(f"embed_dim={embed_dim} must be 1 or more")
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} must be 1 or more and divide embed_dim={embed_dim}")
        self.num_heads = num_heads
        self.w_query, self.w_key, self.w_value, self.w_out = (
            nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(4)
        )

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention weights ``[..., num_heads, length, length]`` of tokens ``x``; see `forward`."""
        logits = attention_logits(self._heads(self.w_query(x)), self._heads(self.w_key(x)))
        if mask is None:
            return attention_weights(logits)
        if mask.dtype != torch.bool or mask.shape[-2:] != logits.shape[-2:]:
            wanted = tuple(logits.shape[-2:])
            raise ValueError(f"mask={tuple(mask.shape)} {mask.dtype} must be boolean and end with the shape {wanted}")
        # Softmax over nothing but -inf is NaN, and so is its gradient even where the value is replaced afterwards: the
        # row of a query that may attend to nothing stays finite and is emptied after the softmax.
        empty = ~mask.any(dim=-1, keepdim=True)
        return attention_weights(logits.masked_fill(~(mask | empty), -torch.inf)).masked_fill(empty, 0.0)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Outputs of all tokens.

        Args:
            x: tokens ``[..., length, embed_dim]``.
            mask: boolean ``[length, length]``, or anything that broadcasts to the weights; **True = may attend** (row:
                query, column: key), as in torch's ``scaled_dot_product_attention``. A query that may attend to nothing
                gets zeros, in value and in gradient.

        Returns:
            ``[..., length, embed_dim]``.

        Raises:
            ValueError: a mask that is not boolean or whose last two dimensions are not length x length.
        """
        heads = self.weights(x, mask) @ self._heads(self.w_value(x))
        out: Tensor = self.w_out(heads.transpose(-2, -3).flatten(-2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """``[..., length, embed_dim]`` to ``[..., num_heads, length, head_dim]``."""
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(-2, -3)
