"""Closed forms of convolution as attention and of the sinusoid, against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from attnrepro.theory import attention_limits as limits


def wave(position: int, embed_dim: int) -> list[float]:
    """A row of the sinusoid as the paper writes it."""
    row = []
    for i in range(embed_dim // 2):
        row += [math.sin(position / 10000 ** (2 * i / embed_dim)), math.cos(position / 10000 ** (2 * i / embed_dim))]
    return row


@pytest.mark.parametrize("embed_dim", [2, 6, 64])
def test_products_of_codes_are_sums_of_cosines(embed_dim: int) -> None:
    for s, t in [(0, 0), (3, 3), (3, 10), (100, 41)]:
        product = sum(a * b for a, b in zip(wave(s, embed_dim), wave(t, embed_dim), strict=True))
        assert float(limits.code_product(np.array(s - t), embed_dim)) == pytest.approx(product, abs=1e-12)


@pytest.mark.parametrize(("length", "embed_dim"), [(2, 2), (30, 4), (50, 16)])
def test_smallest_distance_is_that_of_all_pairs(length: int, embed_dim: int) -> None:
    rows = [wave(n, embed_dim) for n in range(length)]
    smallest = min(math.dist(rows[s], rows[t]) for s in range(length) for t in range(s))
    assert limits.smallest_code_distance(length, embed_dim) == pytest.approx(smallest, rel=1e-9)


def test_two_components_come_back_after_710_steps() -> None:
    """710 is 113 turns but for 6e-5 of a radian; before it, 333 is 53 turns but for 9e-3."""
    assert limits.smallest_code_distance(711, 2) == pytest.approx(abs(710 - 113 * 2 * math.pi), rel=1e-6)
    assert limits.smallest_code_distance(710, 2) == pytest.approx(abs(333 - 53 * 2 * math.pi), rel=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.5, 40.0])
def test_leaks_by_loops(scale: float) -> None:
    length, embed_dim, width = 9, 6, 3
    logits = [scale if j == 4 else 0.0 for j in range(length)]
    strength = [math.exp(logit) for logit in logits]
    assert limits.one_hot_leak(length, scale) == pytest.approx((sum(strength) - strength[4]) / sum(strength), rel=1e-9)
    found = []
    for token in range(1, length - 1):
        for tap in (-1, 0, 1):
            at = wave(token + tap, embed_dim)
            dots = [sum(a * b for a, b in zip(at, wave(j, embed_dim), strict=True)) for j in range(length)]
            others = sum(math.exp(scale * (dot - dots[token + tap])) for j, dot in enumerate(dots) if j != token + tap)
            found.append(others / (1 + others))
    expected = sum(found) / len(found)
    assert limits.sinusoid_leak(length, embed_dim, width, scale) == pytest.approx(expected, rel=1e-9)


def test_the_leak_falls_by_the_gap_to_the_neighbour() -> None:
    gap = float(limits.code_product(np.array(0), 16) - limits.code_product(np.array(1), 16))
    fall = math.log(limits.sinusoid_leak(16, 16, 3, 60.0) / limits.sinusoid_leak(16, 16, 3, 61.0))
    assert fall == pytest.approx(gap, rel=1e-6)
    fall = math.log(limits.one_hot_leak(16, 60.0) / limits.one_hot_leak(16, 61.0))
    assert fall == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("kernel", [(1, -1), (-1, 2, -1), (1, 2, 1), (-1, -2), (3, -1, 0.5, -2)])
def test_what_one_head_leaves_is_the_least_of_all_heads(kernel: tuple[float, ...]) -> None:
    """Softmax weights times a gain, minimised from many starts."""
    taps = np.array(kernel, dtype=float)

    def left(point: np.ndarray) -> float:
        strength = np.exp(point[1:] - point[1:].max())
        return float(((taps - point[0] * strength / strength.sum()) ** 2).sum() / (taps**2).sum())

    random = np.random.default_rng(0)
    least = min(minimize(left, random.normal(size=len(taps) + 1) * 3, tol=1e-12).fun for _ in range(20))
    assert limits.one_head_residual(kernel) == pytest.approx(least, abs=1e-4)
    assert limits.one_head_residual(kernel) <= least + 1e-12


@pytest.mark.parametrize(("width", "circular"), [(1, True), (1, False), (3, True), (3, False), (5, True), (5, False)])
def test_displacement_ranks_by_singular_values(width: int, circular: bool) -> None:
    length, taps = 11, np.random.default_rng(width).normal(size=width)
    matrix = np.zeros((length, length))
    for i in range(length):
        for k, tap in enumerate(taps):
            j = i + k - width // 2
            if circular or 0 <= j < length:
                matrix[i, j % length] += tap
    cycle = np.roll(np.eye(length), 1, axis=0)
    rank = int((np.linalg.svd(matrix - cycle @ matrix @ cycle.T)[1] > 1e-9).sum())
    assert limits.convolution_displacement_rank(width, circular) == rank


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="embed_dim=3 must be even"):
        limits.frequencies(3)
    with pytest.raises(ValueError, match="length=1 must be 2 or more"):
        limits.smallest_code_distance(1, 4)
    with pytest.raises(ValueError, match="width=4 must be odd"):
        limits.sinusoid_leak(9, 4, 4, 1.0)
    with pytest.raises(ValueError, match="width=11 must be odd and at most length=9"):
        limits.sinusoid_leak(9, 4, 11, 1.0)
    with pytest.raises(ValueError, match="must have a tap that is not zero"):
        limits.one_head_residual([0.0, 0.0])
