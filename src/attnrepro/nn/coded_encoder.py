"""Pre-LN encoders of which position code is left to the caller: added, rotary or none; many seeds stacked."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, relu

from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.position import rotary


class CodedEncoder(nn.Module):
    """Embedding, ``depth`` blocks x + attention(norm(x)), x + MLP(norm(x)), a last norm and scores, for each stream.

    Every parameter has the seeds first: ``embed`` ``[seeds, vocabulary, embed_dim]`` starts as N(0, 1/2), the power of
    the sinusoidal code; matrices ``[seeds, inputs, outputs]`` with their biases as torch's nn.Linear, uniform between
    -+1/sqrt(inputs); LayerNorms have no scale and shift of their own, because a matrix follows each.

    Args:
        streams: a random stream for each seed's start; equal streams start equal whatever codes they are given.
        vocabulary: number of tokens.
        outputs: number of scores.
        embed_dim: components of a token.
        num_heads: heads; must divide ``embed_dim``.
        hidden: units of the ReLU MLP.
        depth: number of blocks.

    Raises:
        ValueError: a size below 1, heads that do not divide ``embed_dim``, or no stream.

    Source: Vaswani et al. 2017, sections 3.1 and 3.5; Xiong et al. 2020, table 1 (Pre-LN).
    """

    def __init__(
        self,
        streams: Sequence[torch.Generator],
        *,
        vocabulary: int,
        outputs: int,
        embed_dim: int,
        num_heads: int,
        hidden: int,
        depth: int,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "outputs": outputs, "embed_dim": embed_dim, "hidden": hidden, "depth": depth}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} must be 1 or more and divide embed_dim={embed_dim}")
        if not streams:
            raise ValueError("streams=[] must hold at least one")
        self.num_heads, self.depth = num_heads, depth
        drawn = [torch.randn(vocabulary, embed_dim, generator=s, device=s.device) for s in streams]
        self.embed = nn.Parameter(torch.stack(drawn) / math.sqrt(2))
        block = {
            **dict.fromkeys(("query", "key", "value", "out"), (embed_dim, embed_dim)),
            "first": (embed_dim, hidden),
            "second": (hidden, embed_dim),
        }
        self.blocks = nn.ModuleList(
            nn.ModuleDict({name: Linears(streams, *shape) for name, shape in block.items()}) for _ in range(depth)
        )
        self.read = Linears(streams, embed_dim, outputs)

    def forward(
        self, tokens: Tensor, *, code: Tensor | None = None, rotate: bool = False, mask: Tensor | None = None
    ) -> Tensor:
        """Scores ``[seeds, n, length, outputs]``.

        Args:
            tokens: ``[seeds, n, length]``, whole numbers below ``vocabulary``.
            code: added to the embedded tokens, broadcast to ``[seeds, n, length, embed_dim]``.
            rotate: turn queries and keys by their positions 0, 1, 2, ...
            mask: boolean ``[length, length]``, True = may attend (row: query).
        """
        seeds = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        x = self.embed[seeds, tokens]
        if code is not None:
            x = x + code
        for block in self.blocks:
            x = x + self._attention(block, _norm(x), rotate, mask)
            x = x + block["second"](relu(block["first"](_norm(x))))  # type: ignore[index]
        scores: Tensor = self.read(_norm(x))
        return scores

    def _attention(self, block: nn.Module, x: Tensor, rotate: bool, mask: Tensor | None) -> Tensor:
        query, key, value = (self._heads(block[name](x)) for name in ("query", "key", "value"))  # type: ignore[index]
        if rotate:
            query, key = rotary(query), rotary(key)
        logits = attention_logits(query, key)
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        mixed = attention_weights(logits) @ value
        out: Tensor = block["out"](mixed.transpose(-2, -3).flatten(-2))  # type: ignore[index]
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """``[seeds, n, length, embed_dim]`` to ``[seeds, n, num_heads, length, head_dim]``."""
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(-2, -3)


class Linears(nn.Module):
    """A linear layer for each stream, started as torch's: ``weight`` ``[seeds, inputs, outputs]`` and ``bias``."""

    def __init__(self, streams: Sequence[torch.Generator], inputs: int, outputs: int) -> None:
        super().__init__()

        def draw(*shape: int) -> nn.Parameter:
            drawn = torch.stack([torch.rand(*shape, generator=s, device=s.device) for s in streams])
            return nn.Parameter((drawn * 2 - 1) / math.sqrt(inputs))

        self.weight, self.bias = draw(inputs, outputs), draw(1, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``[seeds, n, length, inputs]`` to ``[seeds, n, length, outputs]``."""
        out = torch.baddbmm(self.bias, x.flatten(1, 2), self.weight)
        return out.reshape(*x.shape[:-1], -1)


def _norm(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])
