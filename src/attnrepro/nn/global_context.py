"""The global context block: one mixture of all places is added to every place."""

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_weights


class GlobalContext(nn.Module):
    """``y_i = x_i + W_2 relu(LayerNorm(W_1 c))`` with ``c = sum_j a_j x_j`` and ``a_j = softmax_j(w . x_j)``.

    The weights a depend on the place j that is read, not on the place i that receives: all places receive the same.
    W_1 leads to ``channels // reduction`` components, W_2 back; all have a bias. W_2 starts at zero, as in the authors'
    code, so that a new block changes nothing.

    Parameters, with h = C // reduction: 2 C h + 2 C + 3 h + 1. FLOPs of a map: 4 N C + 4 C h (two for each
    multiply-add); N weights.

    Raises:
        ValueError: channels // reduction below 3: a LayerNorm of two components keeps but their order, of one nothing.

    Source: Cao et al. 2019, GCNet, section 3.3; document 004, section 3.3, prints another formula, which is
    `global_context_as_printed`.
    """

    def __init__(self, channels: int, *, reduction: int = 16) -> None:
        super().__init__()
        self.key = nn.Linear(channels, 1)
        self.transform = _transform(channels, reduction)

    def attention(self, x: Tensor) -> Tensor:
        """The weights a ``[batch, 1, places]``: one row, which all queries share."""
        return attention_weights(self.key(x.flatten(-2).mT).mT)

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]`` with the same vector added to each place."""
        context = self.attention(x) @ x.flatten(-2).mT
        added: Tensor = self.transform(context)
        return x + added.mT[..., None]


class GlobalAverageAdd(nn.Module):
    """`GlobalContext` with the mean of all places in place of attention: the control that has no weights to learn.

    Parameters: 2 C h + C + 3 h with h = C // reduction. FLOPs of a map: 4 C h.

    Raises:
        ValueError: channels // reduction below 3, see `GlobalContext`.

    Source: the control of Cao et al. 2019, GCNet, table 4 (average pooling in place of attention pooling).
    """

    def __init__(self, channels: int, *, reduction: int = 16) -> None:
        super().__init__()
        self.transform = _transform(channels, reduction)

    def attention(self, x: Tensor) -> Tensor:
        """Equal weights ``[batch, 1, places]``."""
        places = x.shape[-2] * x.shape[-1]
        return torch.full((len(x), 1, places), 1 / places, dtype=x.dtype, device=x.device)

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]`` with the same vector added to each place."""
        added: Tensor = self.transform(x.mean((-2, -1)))
        return x + added[..., None, None]


def global_context_as_printed(x: Tensor, place_weights: Tensor) -> Tensor:
    """``y_i = sum_j a_ij Context(x) / C(x)`` with ``a_ij = exp(w_j . x_i) / sum_k exp(w_k . x_i)``, as printed.

    Context has no index j, so that the weights sum out to C(x): every place receives the plain mean of all places,
    whatever the vectors w_j, of which there must be one for every place.

    Args:
        x: ``[batch, channels, height, width]``.
        place_weights: the w_j ``[height * width, channels]``.

    Returns:
        ``[batch, channels, height, width]``.

    Source: document 004, section 3.3.
    """
    weights = attention_weights(x.flatten(-2).mT @ place_weights.mT)
    context = x.mean((-2, -1))
    total = (weights[..., None] * context[:, None, None, :]).sum(-2) / weights.sum(-1, keepdim=True)
    return torch.unflatten(total.mT, -1, x.shape[-2:])


def _transform(channels: int, reduction: int) -> nn.Sequential:
    hidden = channels // reduction if reduction > 0 else 0
    if hidden < 3:
        raise ValueError(
            f"reduction={reduction} must leave 3 or more of channels={channels}: a LayerNorm of two is but a sign"
        )
    last = nn.Linear(hidden, channels)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Linear(channels, hidden), nn.LayerNorm(hidden), nn.ReLU(), last)
