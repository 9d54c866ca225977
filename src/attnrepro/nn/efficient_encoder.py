"""Encoders of attention layers alone that differ in who attends to whom, many seeds stacked."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.linear_attention import linear_attention
from attnrepro.nn.low_rank_attention import low_rank_attention
from attnrepro.nn.strided_attention import strided_attention
from attnrepro.nn.window_attention import window_attention
from attnrepro.theory.efficient_attention import KINDS, Sizes


def mix(kind: str, sizes: Sizes, query: Tensor, key: Tensor, value: Tensor, mixture: Tensor | None = None) -> Tensor:
    """One of ``KINDS`` of attention: ``[..., length, head_dim]`` to ``[..., length, value_dim]``.

    Args:
        kind: ``full``, ``linear``, ``low_rank``, ``window`` or ``strided``.
        sizes: rank, width of the window and stride.
        query, key, value: ``[..., length, size]``.
        mixture: ``[rank, length]``, for keys and values of ``low_rank``.

    Raises:
        ValueError: an unknown kind, or ``low_rank`` without a mixture.
    """
    if kind == "full":
        return attention_weights(attention_logits(query, key)) @ value
    if kind == "linear":
        return linear_attention(query, key, value)
    if kind == "window":
        return window_attention(query, key, value, sizes.width)
    if kind == "strided":
        return strided_attention(query, key, value, sizes.stride)
    if kind != "low_rank" or mixture is None:
        raise ValueError(f"kind={kind} must be one of {', '.join(KINDS)}, low_rank with a mixture")
    return low_rank_attention(query, key, value, mixture, mixture)


def effective_weights(kind: str, sizes: Sizes, query: Tensor, key: Tensor, mixture: Tensor | None = None) -> Tensor:
    """The matrix that takes values to outputs, ``[..., length, length]``: what comes out for unit vectors as values."""
    length = query.shape[-2]
    unit = torch.eye(length, dtype=query.dtype, device=query.device)
    return mix(kind, sizes, query, key, unit.expand(*query.shape[:-2], length, length), mixture)


def power(weights: Tensor, radius: int) -> tuple[Tensor, Tensor]:
    """Variance that each output has from others within ``radius``, and from all others: twice ``[..., length]``.

    With independent values of variance 1 an output sum_j a_j v_j has the variance sum_j a_j²; that of its own position
    is left out. The first over the second, each summed over what is to be judged together, is the locality.

    Args:
        weights: ``[..., length, length]``, rows are outputs; signs do not matter.
        radius: largest distance that is near.
    """
    position = torch.arange(weights.shape[-1], device=weights.device)
    distance = (position[:, None] - position).abs()
    others = weights.square().masked_fill(distance == 0, 0)
    return others.masked_fill(distance > radius, 0).sum(-1), others.sum(-1)


class EfficientEncoder(nn.Module):
    """Embedding plus learned positions, ``depth`` layers of one kind of attention with residual connections, readout.

    Every weight has the seeds first: ``embed`` ``[seeds, vocabulary, embed_dim]``, ``position`` ``[seeds, length,
    embed_dim]``, ``w_query``, ``w_key``, ``w_value`` and ``w_out`` ``[seeds, depth, embed_dim, embed_dim]``,
    ``unembed`` ``[seeds, embed_dim, outputs]``, all N(0, 1/embed_dim) at the start; ``low_rank`` has a ``mixture``
    ``[seeds, depth, rank, length]`` besides, N(0, 1/rank), one for keys and values of all heads. There is no mask:
    every position may look both ways.

    Args:
        streams: a random stream for each seed's start.
        kind: of attention, see `mix`.
        sizes: of the model.

    Raises:
        ValueError: an unknown kind, or no stream.

    Source: Katharopoulos et al. 2020 (linear), Wang et al. 2020 (low_rank, section 4, sharing across heads and between
    keys and values), Beltagy et al. 2020 (window), Child et al. 2019 (strided).
    """

    embed: nn.Parameter
    position: nn.Parameter
    w_query: nn.Parameter
    w_key: nn.Parameter
    w_value: nn.Parameter
    w_out: nn.Parameter
    unembed: nn.Parameter
    mixture: nn.Parameter

    def __init__(self, streams: Sequence[torch.Generator], kind: str, sizes: Sizes) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind={kind} must be one of {', '.join(KINDS)}")
        if not streams:
            raise ValueError("streams=[] must hold at least one")
        self.kind, self.sizes = kind, sizes
        width = sizes.embed_dim
        shapes = {
            "embed": (sizes.vocabulary, width),
            "position": (sizes.length, width),
            "unembed": (width, sizes.outputs),
            **dict.fromkeys(("w_query", "w_key", "w_value", "w_out"), (sizes.depth, width, width)),
        }
        fans = dict.fromkeys(shapes, width)
        if kind == "low_rank":
            shapes["mixture"], fans["mixture"] = (sizes.depth, sizes.rank, sizes.length), sizes.rank
        for name, shape in shapes.items():
            drawn = [torch.randn(shape, generator=s, device=s.device, dtype=torch.float32) for s in streams]
            setattr(self, name, nn.Parameter(torch.stack(drawn) / math.sqrt(fans[name])))

    def forward(self, tokens: Tensor, *, weights: list[Tensor] | None = None) -> Tensor:
        """Logits at every position, ``[seeds, n, length, outputs]``.

        Args:
            tokens: ``[seeds, n, length]``, whole numbers below ``vocabulary``.
            weights: takes the `effective_weights` of each layer, where given.
        """
        rows = torch.arange(tokens.shape[0], device=tokens.device)[:, None, None]
        x = self.embed[rows, tokens] + self.position[:, None]
        for depth in range(self.sizes.depth):
            query, key, value = (self._heads(x, w[:, depth]) for w in (self.w_query, self.w_key, self.w_value))
            mixture = self.mixture[:, depth, None, None] if self.kind == "low_rank" else None
            if weights is not None:
                weights.append(effective_weights(self.kind, self.sizes, query, key, mixture))
            heads = mix(self.kind, self.sizes, query, key, value, mixture)
            joined = heads.transpose(-2, -3).flatten(-2)
            x = x + (joined.flatten(1, 2) @ self.w_out[:, depth]).reshape(x.shape)
        return (x.flatten(1, 2) @ self.unembed).reshape(*tokens.shape, -1)

    def _heads(self, x: Tensor, weight: Tensor) -> Tensor:
        """``[seeds, n, length, embed_dim]`` to ``[seeds, n, num_heads, length, head_dim]``."""
        projected = x.flatten(1, 2) @ weight
        return projected.reshape(*x.shape[:3], self.sizes.num_heads, -1).transpose(-2, -3)
