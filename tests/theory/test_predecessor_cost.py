"""Costs of the predecessors against loops that count every multiply-add and every weight."""

from __future__ import annotations

import pytest

from attnrepro.theory import power_law
from attnrepro.theory import predecessor_cost as closed

SIZES = closed.Sizes(
    channels=48, num_heads=4, window=2, neighbours=5, mixtures=3, parents=4, parent_dim=6, iterations=2
)


def matrix(rows: int, inner: int, columns: int) -> int:
    """FLOPs of a product, one multiply-add at a time over rows and columns."""
    return sum(2 * inner for _ in range(rows) for _ in range(columns))


def pairs(height: int, width: int, near: str) -> int:
    """Weights that a block computes, place by place."""
    places = [(r, c) for r in range(height) for c in range(width)]
    if near == "cross":
        # A row and a column each, so that a place meets itself twice.
        return sum((a[0] == b[0]) + (a[1] == b[1]) for a in places for b in places)
    if near == "pooled":
        return sum(1 for _ in places for b in places if b[0] % 2 == 0 and b[1] % 2 == 0)
    if near == "both_pooled":
        return sum(1 for a in places for b in places if not (a[0] % 2 or a[1] % 2 or b[0] % 2 or b[1] % 2))
    if near == "window":
        return sum(a[0] // 2 == b[0] // 2 and a[1] // 2 == b[1] // 2 for a in places for b in places)
    return len(places) ** 2


@pytest.mark.parametrize(("height", "width"), [(4, 4), (4, 6), (2, 8)])
def test_flops_and_scores_by_loops(height: int, width: int) -> None:
    s, n, c = SIZES, height * width, 48
    m, r, f, q = 24, 6, 12, 3

    def attending(weights: int, key_dim: int, value_dim: int) -> int:
        """A dot product and a weighted value for each weight."""
        return sum(2 * key_dim + 2 * value_dim for _ in range(weights))

    everything, cross = pairs(height, width, "all"), pairs(height, width, "cross")
    pooled, both = pairs(height, width, "pooled"), pairs(height, width, "both_pooled")
    one = matrix(n, c, 2 * r) + matrix(n, c, c) + attending(cross, r, c)
    qkvo = 4 * matrix(n, c, c)
    expected = {
        "squeeze_excitation": (matrix(1, c, q) + matrix(1, q, c), 0),
        "global_average_add": (matrix(1, c, q) + matrix(1, q, c), 0),
        "global_context": (matrix(n, c, 1) + matrix(1, n, c) + matrix(1, c, q) + matrix(1, q, c), n),
        "non_local": (3 * matrix(n, c, m) + matrix(n, m, c) + attending(everything, m, m), everything),
        "non_local_pooled": (3 * matrix(n, c, m) + matrix(n, m, c) + attending(pooled, m, m), pooled),
        "non_local_as_printed": (3 * matrix(n // 4, c, m) + matrix(n // 4, m, c) + attending(both, m, m), both),
        "criss_cross": (one, cross),
        "criss_cross_twice": (2 * one, 2 * cross),
        "sagan": (3 * matrix(n, c, r) + matrix(n, r, c) + attending(everything, r, r), everything),
        "relation": (
            2 * matrix(n, c, f) + matrix(everything, f, f) + matrix(1, f, f) + matrix(1, f, c),
            everything,
        ),
        # Votes, then a weighted sum, an agreement and a weighted sum of every vote.
        "capsules": (matrix(n, c, 4 * 6) + 3 * matrix(n, 4, 6), 2 * n * 4),
        "swin_pair": (
            2 * (qkvo + attending(pairs(height, width, "window"), c, c) + 2 * matrix(n, c, 4 * c)),
            2 * 4 * pairs(height, width, "window"),
        ),
        "convnext": (matrix(n, 49, c) + 2 * matrix(n, c, 4 * c), 0),
        "map_attention": (qkvo + attending(everything, c, c), 4 * everything),
        "window": (qkvo + attending(n * 5, c, c), 4 * n * 5),
        # Keys times values in every head, queries times that, and queries times the sum of the keys.
        "linear": (qkvo + 4 * (matrix(12, n, 12) + matrix(n, 12, 12) + matrix(n, 12, 1)), 0),
        "low_rank": (qkvo + 2 * matrix(3, n, c) + attending(n * 3, c, c), 4 * n * 3),
    }
    assert {*expected, "strided"} == set(closed.BLOCKS)
    for block, (flops, scores) in expected.items():
        assert closed.cost(block, height, width, s).flops == flops, block
        assert closed.scores(block, height, width, s) == scores, block
    assert closed.used_weights(height, width) == cross - n


@pytest.mark.parametrize("side", [4, 6])
def test_strided_attention_by_loops(side: int) -> None:
    """2 stride + 1 neighbours and every stride-th place for each, in four heads of 12 components."""
    n = side**2
    weights = sum(len(range(-side, side + 1)) + len(range(i % side, n, side)) for i in range(n))
    assert closed.scores("strided", side, side, SIZES) == 4 * weights
    flops = 4 * matrix(n, 48, 48) + 4 * sum(2 * 12 + 2 * 12 for _ in range(weights))
    assert closed.cost("strided", side, side, SIZES).flops == flops


def test_powers_are_those_of_the_closed_forms() -> None:
    """At a million places and more nothing else is left; a wrong power would be off by a half at least."""
    sizes = (2**20, 2**22)
    for block in closed.BLOCKS:
        sides = [1024, 2048]
        power, lower = closed.powers(block, "flops")
        flops = [closed.cost(block, side, side, SIZES).flops for side in sides]
        assert power_law.local_exponent(sizes, (flops[0], flops[1])) == pytest.approx(power, abs=0.02), block
        assert lower is None or lower < power
        if block in closed.WITHOUT_SCORES:
            assert closed.scores(block, 8, 8, SIZES) == 0
            with pytest.raises(ValueError, match=f"block={block} must have scores"):
                closed.powers(block, "scores")
        else:
            scores = [closed.scores(block, side, side, SIZES) for side in sides]
            found = power_law.local_exponent(sizes, (scores[0], scores[1]))
            assert found == pytest.approx(closed.powers(block, "scores")[0], abs=0.01), block


def test_the_printed_sub_sampling_is_not_the_papers() -> None:
    """Were N^2 / 16 right for pooled keys and values, this ratio would be 16."""
    for side in (8, 64):
        whole = closed.scores("non_local", side, side, SIZES)
        assert whole / closed.scores("non_local_pooled", side, side, SIZES) == 4
        assert whole / closed.scores("non_local_as_printed", side, side, SIZES) == 16
