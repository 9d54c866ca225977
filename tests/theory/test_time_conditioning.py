"""The best error without t, against sums over a grid."""

from __future__ import annotations

import math

import pytest

from attnrepro.theory import time_conditioning as jobs


def test_what_is_left_without_t_when_denoising() -> None:
    """Midpoint sums in plain loops."""
    total = 0.0
    for i in range(400):
        x = -8 + 16 * (i + 0.5) / 400
        values = [math.tanh(x / (0.2 * 10 ** ((j + 0.5) / 200)) ** 2) for j in range(200)]
        mean = sum(values) / 200
        variance = sum((v - mean) ** 2 for v in values) / 200
        total += variance * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * 16 / 400
    assert jobs.blind_denoise_error() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("turns", [1, 4])
def test_what_is_left_without_t_when_turning(turns: int) -> None:
    """The variance of the first component over a grid of angles and of unit vectors, for |x|^2 = 2."""
    total = 0.0
    for i in range(8):
        direction = 2 * math.pi * i / 8
        values = [math.sqrt(2) * math.cos(direction + 2 * math.pi * turns * j / 64) for j in range(64)]
        mean = sum(values) / 64
        total += sum((v - mean) ** 2 for v in values) / 64 / 8
    assert jobs.blind_turn_error(turns) == pytest.approx(total)


def test_less_than_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="turns=0 must be 1 or more whole circles"):
        jobs.blind_turn_error(0)
