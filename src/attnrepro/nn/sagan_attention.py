"""The self-attention of SAGAN: all places of a map, narrow queries and keys, and a gate that starts shut."""

import math

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights


class SaganAttention(nn.Module):
    """``y_i = x_i + gamma W_v sum_j a_ij h(x_j)`` with ``a_ij = softmax_j(g(x_i) . f(x_j))``.

    f, g and h are 1 x 1 convolutions to ``channels // reduction`` components (at least 1), W_v leads back; none has a
    bias. gamma starts at zero, so that a new block changes nothing; dot products are not divided by sqrt(components).

    Parameters, with h = C // reduction: 4 C h + 1. FLOPs of a map: 8 N C h + 4 N^2 h (two for each multiply-add);
    N^2 weights.

    Raises:
        ValueError: a size below 1.

    Source: Zhang et al. 2019, Self-Attention Generative Adversarial Networks, section 3, equations 1 to 3; document
    004, section 3.5, prints another formula, which is `sagan_attention_as_printed`.
    """

    def __init__(self, channels: int, *, reduction: int = 8) -> None:
        super().__init__()
        for name, size in (("channels", channels), ("reduction", reduction)):
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        hidden = max(1, channels // reduction)
        self.f, self.g, self.h = (nn.Conv2d(channels, hidden, 1, bias=False) for _ in range(3))
        self.v = nn.Conv2d(hidden, channels, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(()))

    def attention(self, x: Tensor) -> Tensor:
        """Weights ``[batch, queries, keys]``; rows sum to one."""
        return attention_weights(self._logits(x))

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]`` with gamma times what each place took in added to it."""
        return x + self.gamma * self._taken(x, self.attention(x))

    def _logits(self, x: Tensor) -> Tensor:
        return attention_logits(self.g(x).flatten(-2).mT, self.f(x).flatten(-2).mT, scaled=False)

    def _taken(self, x: Tensor, weights: Tensor) -> Tensor:
        taken: Tensor = self.v(torch.unflatten(self.h(x).flatten(-2) @ weights.mT, -1, x.shape[-2:]))
        return taken


def sagan_attention_as_printed(block: SaganAttention, x: Tensor) -> Tensor:
    """``y_i = sum_j softmax_j(q_i . k_j / sqrt(d)) v_j`` with the weights of a block, as document 004 prints it.

    Scaled, with no gate and without the map itself: a new block replaces the map instead of leaving it.

    Args:
        block: whose g, f, h and W_v make queries, keys and values.
        x: ``[batch, channels, height, width]``.

    Returns:
        ``[batch, channels, height, width]``.

    Source: document 004, section 3.5.
    """
    components = block.f.out_channels
    return block._taken(x, attention_weights(block._logits(x) / math.sqrt(components)))
