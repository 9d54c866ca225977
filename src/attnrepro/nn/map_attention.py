"""Multi-head self-attention over the places of a map."""

import torch
from torch import Tensor, nn

from attnrepro.nn.self_attention import SelfAttention


class MapAttention(nn.Module):
    """``y = x + SelfAttention(LayerNorm(x))``, where the tokens are the N = height x width places of a map.

    The norm is over the channels of each place. Without a position code the block is equivariant to every permutation
    of the places.

    Parameters: 4 C^2 + 2 C. FLOPs of a map: 8 N C^2 + 4 N^2 C (two for each multiply-add); num_heads N^2 weights.

    Raises:
        ValueError: a size below 1, or channels that num_heads does not divide.

    Source: Vaswani et al. 2017, section 3.2.2, applied to a map; document 004, section 3.1, on what non-local blocks
    became.
    """

    def __init__(self, channels: int, *, num_heads: int) -> None:
        super().__init__()
        self.heads = SelfAttention(channels, num_heads)
        self.norm = nn.LayerNorm(channels)

    def attention(self, x: Tensor) -> Tensor:
        """Weights ``[batch, heads, queries, keys]``; rows sum to one."""
        return self.heads.weights(self.norm(x.flatten(-2).mT))

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]`` with what each place took in added to it."""
        taken: Tensor = self.heads(self.norm(x.flatten(-2).mT))
        return x + torch.unflatten(taken.mT, -1, x.shape[-2:])
