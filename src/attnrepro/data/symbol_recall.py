"""Recall over a distance: which symbol came first, asked after as many others as one likes."""

from typing import NamedTuple

import torch
from torch import Tensor

# Components of a token beside its symbol: "to be remembered" and "the question".
FLAGS = 2


class Recall(NamedTuple):
    """Tokens ``[..., n, distance + 1, symbols + 2]`` and answers ``[..., n]``, the symbol of the first token."""

    tokens: Tensor
    answers: Tensor


def draw(n: int, symbols: int, distance: int, stream: torch.Generator) -> Recall:
    """``n`` sequences: a marked symbol, distance - 1 others without a mark, and the question, which has no symbol.

    Raises:
        ValueError: a size below 1, or fewer than 2 symbols.

    Source: the first-symbol task of Hochreiter and Schmidhuber 1997, section 5.2, with a mark instead of a position.
    """
    for name, size, least in (("n", n, 1), ("symbols", symbols, 2), ("distance", distance, 1)):
        if size < least:
            raise ValueError(f"{name}={size} must be {least} or more")
    drawn = torch.randint(symbols, (n, distance), generator=stream, device=stream.device)
    tokens = torch.zeros(n, distance + 1, symbols + FLAGS, device=stream.device, dtype=torch.float32)
    tokens[:, :-1, :symbols] = torch.nn.functional.one_hot(drawn, symbols).to(tokens)
    tokens[:, 0, symbols] = 1
    tokens[:, -1, symbols + 1] = 1
    return Recall(tokens, drawn[:, 0])


def stacked(parts: list[Recall]) -> Recall:
    """Sequences of several seeds side by side, seeds first."""
    return Recall(*(torch.stack(tensors) for tensors in zip(*parts, strict=True)))
