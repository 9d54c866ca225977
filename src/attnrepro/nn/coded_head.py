"""One attention head that looks a symbol up at a named place; its position code is added, put beside or left out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WAYS = ("none", "add", "concat")


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head: ``content`` components of a token's embedding, ``code`` of its position's.

    ``length`` symbols out of ``symbols`` are followed by one of ``length`` pointers.

    Raises:
        ValueError: an unknown way, a size below 1, or a sum of vectors of different lengths.
    """

    way: str
    content: int
    code: int
    head_dim: int
    length: int
    symbols: int

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"way={self.way} must be one of {', '.join(WAYS)}")
        if min(self.content, self.head_dim, self.length, self.symbols) < 1 or self.code < (self.way != "none"):
            raise ValueError(f"shape={self} must have sizes of 1 or more")
        if self.way == "add" and self.content != self.code:
            raise ValueError(f"code={self.code} must be content={self.content}: they are added")

    @property
    def width(self) -> int:
        """Inputs of queries, keys and values."""
        return self.content + self.code if self.way == "concat" else self.content


class CodedHeads(nn.Module):
    """Stacked heads, one for each generator; nothing but the sums and products of that generator's seed mix.

    Embeddings ``[seeds, symbols + length, content]`` and learned codes ``[seeds, length + 1, code]`` start as N(0, 1),
    matrices as N(0, 1 / inputs); logits are divided by sqrt(head_dim).

    Source: Vaswani et al. 2017, sections 3.2.1 and 3.5.
    """

    def __init__(self, shape: HeadShape, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.shape = shape

        def draw(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.stack([scale * torch.randn(rows, columns, generator=g) for g in generators]))

        self.embedding = draw(shape.symbols + shape.length, shape.content)
        self.code = draw(shape.length + 1, shape.code) if shape.way != "none" else None
        inner = 1 / math.sqrt(shape.width)
        self.query, self.key, self.value = (draw(shape.width, shape.head_dim, inner) for _ in range(3))
        self.out = draw(shape.head_dim, shape.symbols, 1 / math.sqrt(shape.head_dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the symbols ``[seeds, n, symbols]`` of sequences ``[seeds, n, length + 1]``, the pointer last."""
        seeds = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        x = self.embedding[seeds, tokens]
        if self.code is not None:
            code = self.code[:, None].expand(-1, tokens.shape[1], -1, -1)
            x = x + code if self.shape.way == "add" else torch.cat([x, code], -1)
        places = (*x.shape[:2], self.shape.length, self.shape.head_dim)
        flat = x[:, :, :-1].flatten(1, 2)
        key, value = ((flat @ weight).reshape(places) for weight in (self.key, self.value))
        query = x[:, :, -1] @ self.query
        logits = (key @ query[..., None]).squeeze(-1) / math.sqrt(self.shape.head_dim)
        mixed = (logits.softmax(-1)[..., None, :] @ value).squeeze(-2)
        result: Tensor = mixed @ self.out
        return result
