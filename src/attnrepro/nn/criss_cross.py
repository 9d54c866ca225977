"""Criss-cross attention: each place attends to its row and its column, twice, and so reaches every place."""

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_weights


class CrissCross(nn.Module):
    """``y_i = x_i + gamma sum_j a_ij v_j`` over the H + W - 1 places j of the row and the column of i.

    Queries and keys have ``channels // reduction`` components (at least 1), values all; 1 x 1 convolutions with bias.
    One softmax runs over row and column together, in which i itself stands once; dot products are not scaled. gamma
    starts at zero. ``recurrence`` times the same weights: after two passes every place has reached every other one.

    The matrix of all pairs is never made: a pass computes N (H + W) scores, of which N are struck out.

    Parameters, with h = C // reduction: 2 C h + 2 h + C^2 + C + 1. FLOPs of a pass: 2 N C (C + 2 h) +
    2 N (H + W) (C + h) (two for each multiply-add).

    Raises:
        ValueError: a size below 1.

    Source: Huang et al. 2019, CCNet, sections 3.2 and 3.3; gamma as in the authors' code; document 004, section 3.4.
    """

    def __init__(self, channels: int, *, reduction: int = 8, recurrence: int = 2) -> None:
        super().__init__()
        for name, size in (("channels", channels), ("reduction", reduction), ("recurrence", recurrence)):
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        self.recurrence = recurrence
        hidden = max(1, channels // reduction)
        self.query, self.key = nn.Conv2d(channels, hidden, 1), nn.Conv2d(channels, hidden, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.zeros(()))

    def attention(self, x: Tensor) -> Tensor:
        """Weights of one pass as the matrix that the block avoids ``[batch, queries, keys]``: zero off the cross."""
        column, row = self._weights(x)
        height, width = x.shape[-2:]
        same_row, same_column = (torch.eye(n, dtype=x.dtype, device=x.device) for n in (height, width))
        whole = column[..., None] * same_column[:, None] + row[..., None, :] * same_row[:, None, :, None]
        return whole.flatten(-2).flatten(-3, -2)

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]`` after all passes."""
        for _ in range(self.recurrence):
            (column, row), value = self._weights(x), self.value(x)
            taken = (column.transpose(1, 2) @ _columns(value)).transpose(1, 2) + row @ _rows(value)
            x = x + self.gamma * taken.movedim(-1, 1)
        return x

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights on the column ``[batch, height, width, height]`` and on the row ``[batch, height, width, width]``."""
        query, key = self.query(x), self.key(x)
        column = (_columns(query) @ _columns(key).mT).transpose(1, 2)
        row = _rows(query) @ _rows(key).mT
        # The place itself is in both; it stays in its row.
        twice = torch.eye(x.shape[-2], dtype=torch.bool, device=x.device)[:, None]
        weights = attention_weights(torch.cat((column.masked_fill(twice, -torch.inf), row), -1))
        return weights[..., : x.shape[-2]], weights[..., x.shape[-2] :]


def _columns(x: Tensor) -> Tensor:
    """``[batch, channels, height, width]`` to ``[batch, width, height, channels]``."""
    return x.movedim(1, -1).transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """``[batch, channels, height, width]`` to ``[batch, height, width, channels]``."""
    return x.movedim(1, -1)
