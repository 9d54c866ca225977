"""Squeeze and excitation: channels are weighted by what the whole map holds on average."""

import torch
from torch import Tensor, nn


class SqueezeExcitation(nn.Module):
    """``y_c = s_c x_c`` with ``s = sigmoid(W_2 relu(W_1 z))`` and z the mean over all places.

    W_1 is ``[channels // reduction, channels]``, W_2 the other way round, both without bias. What is weighted are
    channels: every place is multiplied alike, and s lies strictly between 0 and 1 (until it is rounded).

    Parameters: 2 C (C // reduction). FLOPs of a map: 4 C (C // reduction), whatever its size (two for each
    multiply-add; the mean and the scaling, one addition and one product for each of the N C entries, are not
    counted). No weight of a pair of places.

    Raises:
        ValueError: channels below 1, or a reduction that is not from 1 to channels.

    Source: Hu et al. 2018, Squeeze-and-Excitation Networks, section 3, equations 2 to 4; document 004, section 3.2.
    """

    def __init__(self, channels: int, *, reduction: int = 16) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels={channels} must be 1 or more")
        if not 1 <= reduction <= channels:
            raise ValueError(f"reduction={reduction} must be 1 or more and at most channels={channels}")
        self.squeeze = nn.Linear(channels, channels // reduction, bias=False)
        self.excite = nn.Linear(channels // reduction, channels, bias=False)

    def attention(self, x: Tensor) -> Tensor:
        """The weight s of each channel ``[batch, channels]``; places have none."""
        return torch.sigmoid(self.excite(self.squeeze(x.mean((-2, -1))).relu()))

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]``, each channel times its weight."""
        return x * self.attention(x)[..., None, None]
