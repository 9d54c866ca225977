"""Causal language models of attention layers alone, many seeds stacked; any head can be switched off."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights


class AttentionOnly(nn.Module):
    """Embedding plus learned positions, ``depth`` causal attention layers with residual connections, unembedding.

    No MLP and no LayerNorm, so that all that moves between positions and is worked out there is the heads'. Every
    weight has the seeds first: ``embed`` ``[seeds, vocabulary, embed_dim]``, ``position`` ``[seeds, length,
    embed_dim]``, ``w_query``, ``w_key``, ``w_value`` and ``w_out`` ``[seeds, depth, embed_dim, embed_dim]``,
    ``unembed`` ``[seeds, embed_dim, vocabulary]``. All start as N(0, 1/embed_dim); models of equal streams that differ
    in ``num_heads`` only start with the same weights.

    Args:
        streams: a random stream for each seed's start.
        vocabulary: number of tokens.
        length: longest sequence.
        embed_dim: components of a token.
        num_heads: heads of a layer; must divide ``embed_dim``.
        depth: number of layers.

    Raises:
        ValueError: a size below 1, heads that do not divide ``embed_dim``, or no stream.

    Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (attention-only models).
    """

    embed: nn.Parameter
    position: nn.Parameter
    w_query: nn.Parameter
    w_key: nn.Parameter
    w_value: nn.Parameter
    w_out: nn.Parameter
    unembed: nn.Parameter

    def __init__(
        self,
        streams: Sequence[torch.Generator],
        *,
        vocabulary: int,
        length: int,
        embed_dim: int,
        num_heads: int,
        depth: int,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "length": length, "embed_dim": embed_dim, "depth": depth}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} must be 1 or more and divide embed_dim={embed_dim}")
        if not streams:
            raise ValueError("streams=[] must hold at least one")
        self.num_heads, self.depth = num_heads, depth
        shapes = {
            "embed": (vocabulary, embed_dim),
            "position": (length, embed_dim),
            "unembed": (embed_dim, vocabulary),
            **dict.fromkeys(("w_query", "w_key", "w_value", "w_out"), (depth, embed_dim, embed_dim)),
        }
        for name, shape in shapes.items():
            drawn = [torch.randn(shape, generator=s, device=s.device, dtype=torch.float32) for s in streams]
            setattr(self, name, nn.Parameter(torch.stack(drawn) / math.sqrt(embed_dim)))

    def forward(self, tokens: Tensor, *, keep: Tensor | None = None, layers: list["Layer"] | None = None) -> Tensor:
        """Logits of the next token, ``[seeds, n, length, vocabulary]``.

        Args:
            tokens: ``[seeds, n, length]``, whole numbers below ``vocabulary``.
            keep: factor on every head's output before W_O, ``[depth, num_heads]``; 0 switches a head off.
            layers: takes the `Layer` of each layer, where given.
        """
        seeds, n, length = tokens.shape
        rows = torch.arange(seeds, device=tokens.device)[:, None, None]
        x = self.embed[rows, tokens] + self.position[:, None, :length]
        for depth in range(self.depth):
            layer = self._layer(depth, x)
            if layers is not None:
                layers.append(layer)
            outputs = layer.outputs
            if keep is not None:
                outputs = outputs * keep[depth, :, None, None]
            joined = outputs.transpose(-2, -3).flatten(-2)
            x = x + (joined.flatten(1, 2) @ self.w_out[:, depth]).reshape(x.shape)
        return (x.flatten(1, 2) @ self.unembed).reshape(seeds, n, length, -1)

    def _layer(self, depth: int, x: Tensor) -> "Layer":
        query, key, value = (self._heads(x, w[:, depth]) for w in (self.w_query, self.w_key, self.w_value))
        length = x.shape[-2]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = attention_weights(attention_logits(query, key).masked_fill(future, -torch.inf))
        return Layer(weights, weights @ value)

    def _heads(self, x: Tensor, weight: Tensor) -> Tensor:
        """``[seeds, n, length, embed_dim]`` to ``[seeds, n, num_heads, length, head_dim]``."""
        projected = x.flatten(1, 2) @ weight
        return projected.reshape(*x.shape[:3], self.num_heads, -1).transpose(-2, -3)


class Layer:
    """What the heads of a layer did: ``weights`` ``[seeds, n, num_heads, length, length]`` (row: query) and
    ``outputs`` ``[seeds, n, num_heads, length, head_dim]``, before W_O.
    """

    def __init__(self, weights: Tensor, outputs: Tensor) -> None:
        self.weights, self.outputs = weights, outputs
