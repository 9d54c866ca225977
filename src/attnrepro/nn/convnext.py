"""A convolutional block built like a transformer's: it mixes places channel by channel, then channels at each place."""

from typing import Literal

import torch
from torch import Tensor, nn


class ConvNeXtBlock(nn.Module):
    """x + scale * MLP(LayerNorm(depthwise 7x7(x))), the MLP with one hidden layer of ``expansion`` times the channels.

    Maps ``[batch, channels, height, width]`` to maps of the same shape. FLOPs on N places and C channels:
    98 N C + 4 ``expansion`` N C². Parameters: 2 ``expansion`` C² + (54 + ``expansion``) C. Stochastic depth, with which
    the paper trains, is left out.

    Args:
        channels: C.
        expansion: 4 in the paper.
        layer_scale: what the learned scale of each channel starts from.
        padding: ``zeros`` as in the paper, or ``circular``, with which the block commutes with every roll.

    Raises:
        ValueError: channels or expansion below 1. A circular block raises torch's own RuntimeError on maps with a side
            below 3, which its padding of 3 would wrap more than once.

    Source: Liu et al. 2022, A ConvNet for the 2020s, section 2 and figure 4.
    """

    def __init__(
        self,
        channels: int,
        *,
        expansion: int = 4,
        layer_scale: float = 1e-6,
        padding: Literal["zeros", "circular"] = "zeros",
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels={channels} must be 1 or more")
        if expansion < 1:
            raise ValueError(f"expansion={expansion} must be 1 or more")
        if padding not in ("zeros", "circular"):
            raise ValueError(f"padding={padding} must be zeros or circular")
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels, padding_mode=padding)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        # 1x1 convolutions, written as products over the last dimension.
        self.widen, self.narrow = nn.Linear(channels, expansion * channels), nn.Linear(expansion * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), layer_scale))

    def forward(self, x: Tensor) -> Tensor:
        """Map to map of the same shape."""
        mixed = self.norm(self.depthwise(x).movedim(1, -1))
        added = self.scale * self.narrow(nn.functional.gelu(self.widen(mixed)))
        out: Tensor = x + added.movedim(-1, 1)
        return out
