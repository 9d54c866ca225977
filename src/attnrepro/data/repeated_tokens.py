"""Random tokens that repeat: after a period of tokens all different, the same ones come again, in the same order.

What comes next can be read off only where the token stood before: find it, look at the one behind it. The period is
drawn for every sequence, so that no fixed distance is right.

Source: Olsson et al. 2022, In-context Learning and Induction Heads (repeated random sequences).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def draw(
    periods: Sequence[int], n: int, length: int, vocabulary: int, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """``n`` sequences: tokens ``[n, length]`` and their periods ``[n]``, each of ``periods`` as likely.

    Raises:
        ValueError: no period, or one below 2, above ``vocabulary`` or not below ``length``.
    """
    _check(periods, length, vocabulary)
    choice = torch.randint(len(periods), (n,), generator=stream, device=stream.device)
    return _with(torch.tensor(periods, device=stream.device)[choice], length, vocabulary, stream)


def balanced(
    periods: Sequence[int], n: int, length: int, vocabulary: int, stream: torch.Generator
) -> tuple[Tensor, Tensor]:
    """``n`` sequences of each period, as `draw` has them."""
    _check(periods, length, vocabulary)
    return _with(torch.tensor(periods, device=stream.device).repeat(n), length, vocabulary, stream)


def _with(period: Tensor, length: int, vocabulary: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.rand(len(period), vocabulary, generator=stream, device=stream.device).argsort(-1)
    index = torch.arange(length, device=stream.device) % period[:, None]
    return order.gather(1, index), period


def _check(periods: Sequence[int], length: int, vocabulary: int) -> None:
    if not periods:
        raise ValueError("periods=[] must hold at least one")
    for period in periods:
        if not 2 <= period <= vocabulary or period >= length:
            raise ValueError(f"period={period} must be 2 or more, at most {vocabulary} and below length={length}")
