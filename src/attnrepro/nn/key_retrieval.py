"""One attention head that looks a value up by its key, many seeds stacked; with or without 1/sqrt(head_dim).

The value of key j is the j-th unit vector, so that the weighted sum of the values is the row of attention weights
itself, and ``w_value`` turns it into scores of the values. It starts as the identity: from a random start the head
would first have to find out what its values mean, which no attention pattern that is still random can teach it (and
whichever of the two moves first decides by chance), so that the time of that search would hide what the scale does.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Standard deviation of the weights times sqrt(embed_dim): N(0, 1/embed_dim), which gives queries and keys components
# of variance 1 (document 004, section 1.2), and torch's nn.Linear, uniform between -+1/sqrt(embed_dim).
INITS = {"unit": 1.0, "linear": 1 / math.sqrt(3)}


class RetrievalHeads(nn.Module):
    """Heads ``softmax(x W_Q (Y W_K)^T [/ sqrt(head_dim)]) W_V`` of one query x over keys Y, one head for each stream.

    ``w_query`` and ``w_key`` are ``[seeds, embed_dim, head_dim]``, ``w_value`` is ``[seeds, n_keys, n_keys]``. Heads of
    equal streams and sizes start equal whatever ``scaled`` is.

    Args:
        streams: a random stream for each seed's start.
        scaled: with 1/sqrt(head_dim) (Vaswani et al. 2017, equation 1) or without.
        init: one of ``INITS``.

    Raises:
        ValueError: a size below 1, an unknown init, or no stream.
    """

    def __init__(
        self, streams: Sequence[torch.Generator], embed_dim: int, head_dim: int, n_keys: int, *, scaled: bool, init: str
    ) -> None:
        super().__init__()
        for name, size in (("embed_dim", embed_dim), ("head_dim", head_dim), ("n_keys", n_keys)):
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        if init not in INITS:
            raise ValueError(f"init={init} must be one of {', '.join(INITS)}")
        if not streams:
            raise ValueError("streams=[] must hold at least one")
        self.factor = 1 / math.sqrt(head_dim) if scaled else 1.0
        both = torch.stack([_drawn((2, embed_dim, head_dim), init, stream) for stream in streams])
        self.w_query, self.w_key = nn.Parameter(both[:, 0].clone()), nn.Parameter(both[:, 1].clone())
        self.w_value = nn.Parameter(torch.eye(n_keys).repeat(len(streams), 1, 1))

    def query(self, x: Tensor) -> Tensor:
        """Queries ``[seeds, n, head_dim]`` of tokens ``[seeds, n, embed_dim]``."""
        return x @ self.w_query

    def logits(self, query: Tensor, keys: Tensor) -> Tensor:
        """Logits ``[seeds, n, n_keys]`` of queries ``[seeds, n, head_dim]`` over ``[seeds, n, n_keys, embed_dim]``.

        The query goes through W_K's transpose, (x W_Q) W_K^T y: the same products in an order that spares a head_dim
        times n_keys array.
        """
        seen = (query * self.factor) @ self.w_key.mT
        return (keys @ seen[..., None])[..., 0]

    def read(self, logits: Tensor) -> Tensor:
        """Scores of the values, ``[seeds, n, n_keys]``."""
        return torch.softmax(logits, -1) @ self.w_value


class UniformHeads(nn.Module):
    """The same head with its attention frozen to 1/n_keys: ``w_value`` is all that learns."""

    def __init__(self, seeds: int, n_keys: int) -> None:
        super().__init__()
        self.w_value = nn.Parameter(torch.eye(n_keys).repeat(seeds, 1, 1))

    def read(self, n: int) -> Tensor:
        """Scores of the values for ``n`` sequences of each seed, ``[seeds, n, n_keys]``: all of a seed's are equal."""
        seeds, n_keys, _ = self.w_value.shape
        return self.w_value.new_full((seeds, n, n_keys), 1 / n_keys) @ self.w_value


def _drawn(shape: tuple[int, ...], init: str, stream: torch.Generator) -> Tensor:
    embed_dim = shape[-2]
    if init == "linear":
        uniform = torch.rand(shape, generator=stream, device=stream.device, dtype=torch.float32)
        return (2 * uniform - 1) / math.sqrt(embed_dim)
    return torch.randn(shape, generator=stream, device=stream.device, dtype=torch.float32) / math.sqrt(embed_dim)


def errors(scores: Tensor, answers: Tensor) -> Tensor:
    """Squared distance of scores ``[..., n, n_keys]`` from the unit vector of the answer, ``[..., n]``."""
    return (scores - nn.functional.one_hot(answers, scores.shape[-1])).square().sum(-1)
