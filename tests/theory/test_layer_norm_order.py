"""Sizes of tokens at the start, simulated with numpy; powers of depth and of distances."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnrepro.theory.layer_norm_order import collapse_power, last_gradient, post_square, pre_square


def test_sizes_against_a_simulation() -> None:
    draw = np.random.default_rng(0)
    d, count = 16, 4000

    def weight() -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return draw.normal(size=(d, d)) / math.sqrt(d)

    squares = np.zeros(4)
    for _ in range(count):
        x = draw.normal(size=d)
        x *= math.sqrt(d) / np.linalg.norm(x)
        for layer in range(3):
            z = x - x.mean()
            z *= math.sqrt(d) / np.linalg.norm(z)
            after = x + weight() @ weight() @ z
            z = after - after.mean()
            z *= math.sqrt(d) / np.linalg.norm(z)
            if layer == 0:  # what order post sums up in its second sublayer
                squares[3] += float(np.sum((z + weight() @ np.maximum(weight() @ z, 0)) ** 2)) / d
            x = after + weight() @ np.maximum(weight() @ z, 0)
            squares[layer] += float(x @ x) / d
    squares /= count
    assert squares[:3] == pytest.approx([pre_square(layer) for layer in (1, 2, 3)], rel=0.03)
    assert squares[3] == pytest.approx(post_square(), rel=0.03)


def test_powers() -> None:
    far = math.log(last_gradient("pre", 4000) / last_gradient("pre", 1000)) / math.log(4)
    assert far == pytest.approx(-0.5, abs=1e-3)
    assert last_gradient("post", 2) == last_gradient("post", 50)
    assert (collapse_power(False), collapse_power(True)) == (3, 1)


@pytest.mark.parametrize(("order", "depth"), [("bare", 3), ("pre", 0)])
def test_bad_input(order: str, depth: int) -> None:
    with pytest.raises(ValueError, match=f"order={order}"):
        last_gradient(order, depth)
