"""Repeated random tokens: periods, tokens that differ within one, and bad input."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from attnrepro.data.repeated_tokens import balanced, draw


def check(tokens: torch.Tensor, periods: torch.Tensor, vocabulary: int) -> None:
    for row, period in zip(tokens.tolist(), periods.tolist(), strict=True):
        assert len(set(row[:period])) == period
        assert all(0 <= token < vocabulary for token in row)
        assert all(row[i] == row[i - period] for i in range(period, len(row)))


def test_tokens_repeat_after_their_period() -> None:
    tokens, periods = draw([3, 5], 400, 12, 7, torch.Generator().manual_seed(0))
    check(tokens, periods, 7)
    counts = Counter(periods.tolist())
    assert set(counts) == {3, 5} and min(counts.values()) > 150
    assert len({tuple(row) for row in tokens.tolist()}) > 300


def test_every_period_equally_often() -> None:
    tokens, periods = balanced([3, 5, 6], 4, 12, 7, torch.Generator().manual_seed(0))
    check(tokens, periods, 7)
    assert Counter(periods.tolist()) == {3: 4, 5: 4, 6: 4}


@pytest.mark.parametrize("how", [draw, balanced])
@pytest.mark.parametrize("periods", [[], [1], [8], [3, 12]])
def test_impossible_periods_are_refused(how: object, periods: list[int]) -> None:
    with pytest.raises(ValueError, match="period"):
        how(periods, 2, 12, 7, torch.Generator())  # type: ignore[operator]
