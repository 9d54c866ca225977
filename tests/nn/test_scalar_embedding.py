"""Scalars as sines and cosines, against loops in float64 and against the code of integer positions."""

from __future__ import annotations

import math

import pytest
import torch

from attnrepro.nn.position import sinusoidal
from attnrepro.nn.scalar_embedding import diffusion_frequencies, octave_frequencies, sinusoids


def test_values_against_a_loop() -> None:
    t = torch.tensor([[0.0, 0.25], [0.7, 1.0]])
    found = sinusoids(t, diffusion_frequencies(6))
    assert found.shape == (2, 2, 6) and found.dtype == torch.float32
    for i, row in enumerate(t.double().tolist()):
        for j, value in enumerate(row):
            angles = [value * 1000 / 10000 ** (2 * k / 6) for k in range(3)]
            expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
            assert found[i, j].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_thousandth_of_t_is_a_position() -> None:
    code = sinusoids(torch.arange(8, dtype=torch.float64) / 1000, diffusion_frequencies(10))
    torch.testing.assert_close(code[:, :5], sinusoidal(8, 10, dtype=torch.float64)[:, 0::2])
    torch.testing.assert_close(code[:, 5:], sinusoidal(8, 10, dtype=torch.float64)[:, 1::2])


def test_octaves() -> None:
    assert octave_frequencies(4).tolist() == pytest.approx([math.pi, 2 * math.pi, 4 * math.pi, 8 * math.pi])


def test_frequencies_of_zero_carry_nothing() -> None:
    code = sinusoids(torch.rand(5, generator=torch.Generator().manual_seed(0)), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(code, torch.tensor([0.0, 0, 0, 1, 1, 1]).expand(5, 6))


def test_bad_input_is_refused() -> None:
    for size in (0, 7):
        with pytest.raises(ValueError, match=f"embed_dim={size} must be even and at least 2"):
            diffusion_frequencies(size)
    with pytest.raises(ValueError, match="count=0 must be 1 or more"):
        octave_frequencies(0)
