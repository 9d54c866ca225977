"""Sequences that ask for two things: the symbol right before a mark, and a marked symbol half a sequence away."""

from typing import NamedTuple

import torch
from torch import Tensor

PARTS = ("near", "far")
# Tokens beside the plain symbols and the marked ones: the two questions.
QUESTIONS = len(PARTS)


class NearAndFar(NamedTuple):
    """Tokens ``[..., n, length]`` below 2 symbols + 2; questions and answers ``[..., n, 2, asked]``, near before far.

    Plain symbols are 0 to symbols - 1, the marked one is its symbol plus ``symbols``, the questions are the last two
    tokens. ``places`` says where each question stands, ``answers`` which symbol is right there.
    """

    tokens: Tensor
    places: Tensor
    answers: Tensor


def vocabulary(symbols: int) -> int:
    """Number of tokens."""
    return 2 * symbols + QUESTIONS


def draw(n: int, length: int, symbols: int, asked: int, stream: torch.Generator) -> NearAndFar:
    """``n`` sequences with ``asked`` questions of each kind.

    A marked symbol stands in the first quarter, the far questions at least half a sequence behind it, or all of this
    mirrored, each as likely. Near questions stand anywhere else behind a plain symbol. All symbols are independent and
    uniform: who sees neither the one nor the other answers right with probability 1 / symbols.

    Raises:
        ValueError: a size below 1, fewer than 2 symbols, a length that 4 does not divide, or more questions than fit.
    """
    for name, size, least in (("n", n, 1), ("symbols", symbols, 2), ("asked", asked, 1)):
        if size < least:
            raise ValueError(f"{name}={size} must be {least} or more")
    # The marked symbol, the far questions and what follows them, and each near question with its two neighbours.
    if length % 4 or asked > length // 4 or 1 + 2 * (1 + asked) + 3 * (asked - 1) >= length:
        raise ValueError(f"length={length} must be a multiple of 4 with room for asked={asked} questions of each kind")
    device = stream.device
    rows = torch.arange(n, device=device)

    def drawn(size: int) -> Tensor:
        return torch.rand(n, size, generator=stream, device=device)

    position = torch.arange(length, device=device)
    source = torch.randint(length // 4, (n,), generator=stream, device=device)
    behind = position >= source[:, None] + length // 2
    far = drawn(length).masked_fill(~behind, -1.0).topk(asked, -1).indices
    mirrored = drawn(1)[:, 0] < 0.5
    source = torch.where(mirrored, length - 1 - source, source)
    far = torch.where(mirrored[:, None], length - 1 - far, far)

    # A near question needs a plain symbol before it.
    free = torch.ones(n, length + 1, dtype=torch.bool, device=device)
    free[:, 0] = free[:, length] = False
    for taken in (source[:, None], far):
        free[rows[:, None], taken] = False
        free[rows[:, None], taken + 1] = False
    near = []
    for _ in range(asked):
        place = drawn(length + 1).masked_fill(~free, -1.0).argmax(-1)
        near.append(place)
        for other in (place - 1, place, place + 1):
            free[rows, other] = False

    tokens = torch.randint(symbols, (n, length), generator=stream, device=device)
    places = torch.stack([torch.stack(near, -1), far], 1)
    marked = tokens[rows, source]
    answers = torch.stack([tokens.gather(1, places[:, 0] - 1), marked[:, None].expand(n, asked)], 1)
    tokens[rows, source] = marked + symbols
    for index in range(QUESTIONS):
        tokens.scatter_(1, places[:, index], 2 * symbols + index)
    return NearAndFar(tokens, places, answers)


def stacked(parts: list[NearAndFar]) -> NearAndFar:
    """Sequences of several seeds side by side, seeds first."""
    return NearAndFar(*(torch.stack(tensors) for tensors in zip(*parts, strict=True)))
