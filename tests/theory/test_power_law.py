"""Exponents of made-up powers, and what is refused."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from attnrepro.theory import power_law

SIZES = [64, 144, 256, 576, 1024, 2304, 4096]


@pytest.mark.parametrize(("a", "lower", "b", "power"), [(16384, 1, 128, 2), (1e4, 1, 288, 1.5), (7e3, 0, 3, 1)])
def test_two_powers_are_recovered(a: float, lower: float, b: float, power: float) -> None:
    fit = power_law.fit(SIZES, [a * n**lower + b * n**power for n in SIZES], lower)
    assert fit.exponent == pytest.approx(power, abs=1e-7)
    assert fit.factor == pytest.approx(b, rel=1e-4) and fit.lower_factor == pytest.approx(a, rel=1e-4)
    assert fit.error < 1e-9


def test_one_power_is_numpys_line_through_the_logarithms() -> None:
    noise = random.Random(3)
    values = [5 * n**1.3 * noise.uniform(0.9, 1.1) for n in SIZES]
    fit = power_law.fit(SIZES, values)
    slope, start = np.polyfit(np.log(SIZES), np.log(values), 1)
    assert fit.exponent == pytest.approx(slope, rel=1e-10) and fit.factor == pytest.approx(math.exp(start), rel=1e-9)
    found = [fit.factor * n**fit.exponent for n in SIZES]
    assert fit.error == pytest.approx(max(abs(f / v - 1) for f, v in zip(found, values, strict=True)), rel=1e-9)
    assert fit.lower_factor == 0
    assert power_law.fit(SIZES, [2048] * 7).exponent == 0


def test_one_power_alone_does_not_see_the_highest() -> None:
    """The slope of N^2 beside a large linear term: what two terms are for."""
    values = [16384 * n + 128 * n**2 for n in SIZES]
    assert power_law.fit(SIZES, values).exponent < 1.8
    assert power_law.fit(SIZES, values).error > 0.1


def test_the_factors_are_numpys_least_squares_of_relative_errors() -> None:
    noise = random.Random(4)
    values = [(300 * n + 2 * n**1.7) * noise.uniform(0.99, 1.01) for n in SIZES]
    fit = power_law.fit(SIZES, values, 1)

    def left(p: float) -> tuple[np.ndarray, float]:
        design = np.stack([np.array(SIZES, float), np.array(SIZES, float) ** p], 1) / np.array(values)[:, None]
        factors, *_ = np.linalg.lstsq(design, np.ones(7), rcond=None)
        return factors, float(np.square(design @ factors - 1).sum())

    factors, least = left(fit.exponent)
    assert (fit.lower_factor, fit.factor) == pytest.approx(tuple(factors), rel=1e-6)
    # No other exponent on a fine grid is better.
    assert all(left(p)[1] >= least * (1 - 1e-6) for p in np.linspace(1.06, 3.9, 500))


def test_a_local_exponent_is_a_slope() -> None:
    assert power_law.local_exponent((10, 20), (3.0, 12.0)) == pytest.approx(2)


def test_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 3 or more different ones"):
        power_law.fit([1, 2], [1.0, 2.0])
    with pytest.raises(ValueError, match="must be 4 or more different ones"):
        power_law.fit([1, 2, 3], [1.0, 2.0, 3.0], 1)
    with pytest.raises(ValueError, match="must be 3 or more different ones"):
        power_law.fit([1, 2, 2], [1.0, 2.0, 2.0])
    with pytest.raises(ValueError, match="must be positive"):
        power_law.fit([1, 2, 3], [1.0, 0.0, 3.0])
