"""Closed forms of costs, against multiplications counted one by one and crossovers found by trying every length."""

from __future__ import annotations

import itertools

import pytest

from attnrepro.theory import complexity as cx


def product(rows: int, inner: int, columns: int) -> int:
    """Multiply-adds of a matrix product, one by one."""
    return sum(1 for _ in itertools.product(range(rows), range(inner), range(columns)))


def by_counting(network: str, n: int, d: int, k: int, h: int) -> int:
    """Multiply-adds of a layer as it is defined."""
    size = d // h
    projections = 4 * product(n, d, d)
    logits = h * product(n, size, n)
    mixing = h * product(n, n, size)
    gates = {"rnn": 1, "gru": 3, "lstm": 4}
    if network in gates:
        return sum(gates[network] * 2 * product(1, d, d) for _ in range(n))
    return {
        "attention": projections + logits + mixing,
        "projections": projections,
        "logits": logits,
        "mixing": mixing,
        "scores": logits + mixing,
        "window": projections + h * n * (product(1, size, k) + product(1, k, size)),
        "linear": projections + h * (product(size, n, size) + product(n, size, size) + product(n, size, 1)),
        "low_rank": projections + h * (2 * product(k, n, size) + product(n, size, k) + product(n, k, size)),
        "convolution": n * k * product(1, d, d),
        "convolution_2d": n * k * k * product(1, d, d),
        "depthwise_2d": n * k * k * d,
        "graph_convolution": n * product(1, k, d) + product(n, d, d),
    }[network]


@pytest.mark.parametrize("network", cx.NETWORKS)
def test_flops_are_two_for_each_multiply_add(network: str) -> None:
    for n, d, k, h in [(1, 1, 1, 1), (3, 4, 3, 2), (7, 6, 5, 3), (5, 6, 3, 1), (4, 6, 1, 6)]:
        assert cx.flops(network, n, d, k, h) == 2 * by_counting(network, n, d, k, h)


def test_attention_at_a_known_size_and_for_any_number_of_heads() -> None:
    assert cx.flops("attention", 196, 512) == 2 * (4 * 196 * 512**2 + 2 * 196**2 * 512)
    assert {cx.flops("attention", 196, 512, h=h) for h in (1, 2, 4, 8, 512)} == {489_717_760}


@pytest.mark.parametrize("network", cx.NETWORKS)
@pytest.mark.parametrize("variable", cx.VARIABLES)
def test_degrees_are_growth_between_huge_sizes(network: str, variable: str) -> None:
    def at(size: int) -> int:
        place = cx.VARIABLES.index(variable)
        sizes = [3, 4, 5]
        sizes[place] = size
        return cx.flops(network, *sizes)

    ratio = at(2 * 10**9) / at(10**9)
    assert ratio == pytest.approx(2 ** cx.degree(network, variable), rel=1e-6)


SLOWER = [name for name in cx.NETWORKS if cx.degree(name, "tokens") == 1]


@pytest.mark.parametrize("network", ["attention", "scores", "logits"])
@pytest.mark.parametrize("against", SLOWER)
def test_crossovers_are_those_of_trying(network: str, against: str) -> None:
    for d, k in [(1, 1), (3, 3), (4, 5), (7, 9), (6, 6)]:
        cheaper = [n for n in range(1, 1000) if cx.flops(network, n, d, k) < cx.flops(against, n, d, k)]
        assert cx.cheaper_up_to(network, against, d, k) == max(cheaper, default=0)
        assert cheaper == list(range(1, len(cheaper) + 1))  # below and nowhere else


@pytest.mark.parametrize(("network", "against"), [("attention", "scores"), ("logits", "attention"), ("rnn", "lstm")])
def test_without_a_crossover_there_is_no_answer(network: str, against: str) -> None:
    with pytest.raises(ValueError, match=f"network={network} must grow faster with n than against={against}"):
        cx.cheaper_up_to(network, against, 4)


def test_the_printed_rule_of_n_below_d() -> None:
    for d in (1, 2, 17, 512):
        assert cx.cheaper_up_to("scores", "rnn", d) == d - 1
        assert cx.cheaper_up_to("attention", "rnn", d) == 0
        assert cx.cheaper_up_to("attention", "gru", d) == d - 1
        assert cx.cheaper_up_to("attention", "lstm", d) == 2 * d - 1
        assert cx.cheaper_up_to("scores", "projections", d) == 2 * d - 1


def test_paths_are_walked() -> None:
    for distance, k in [(1, 3), (2, 5), (7, 5), (16, 3), (17, 7)]:
        reached, layers = 0, 0
        while reached < distance:
            reached, layers = reached + k // 2, layers + 1
        for network in ("window", "convolution"):
            assert cx.path_length(network, distance, k) == layers
        assert cx.path_length("lstm", distance, k) == distance
        for network in ("attention", "linear", "low_rank"):
            assert cx.path_length(network, distance, k) == 1


def test_the_largest_tensor() -> None:
    assert cx.largest_tensor("attention", 10, 3, h=2) == 200
    assert cx.largest_tensor("attention", 2, 8) == 16
    assert cx.largest_tensor("fused", 10, 3, 5) == 30
    assert cx.largest_tensor("window", 10, 3, 5) == 150
    assert cx.largest_tensor("low_rank", 10, 3, 5) == 50
    assert cx.largest_tensor("linear", 2, 8) == 64


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="network=mlp must be one of attention"):
        cx.flops("mlp", 1, 1)
    with pytest.raises(ValueError, match="n=0, d=4, k=1 and h=1 must be 1 or more"):
        cx.flops("attention", 0, 4)
    with pytest.raises(ValueError, match="h divide d"):
        cx.flops("attention", 1, 4, h=3)
    with pytest.raises(ValueError, match="network=attention must have one term"):
        cx.coefficient("attention")
