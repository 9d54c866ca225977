"""Paths, dependent steps, parameters and widths against brute force."""

from __future__ import annotations

import math

import pytest
import torch

from attnrepro.theory import sequence_costs as costs


def reached(network: str, kernel: int, distance: int) -> int:
    """Steps until a set of positions that know of the first one includes the last: sets of integers, step by step."""
    known, steps = {0}, 0
    while distance not in known:
        if network == "attention":
            offsets = list(range(distance + 1))
        elif network == "scan":
            offsets = [0, 2**steps]
        elif network == "rnn":
            offsets = [1]
        else:
            rate = [1, 2, 4, 8, 16][steps % 5] if network == "bytenet" else 1
            offsets = [rate * tap for tap in range(kernel)]
        known = {place + offset for place in known for offset in offsets if place + offset <= distance}
        steps += 1
    return steps


@pytest.mark.parametrize("network", ["rnn", "scan", "convs2s", "bytenet", "attention"])
@pytest.mark.parametrize("kernel", [3, 5])
def test_paths_against_sets_of_positions(network: str, kernel: int) -> None:
    for distance in [*range(1, 40), 63, 64, 100]:
        assert costs.path_length(network, kernel, distance) == reached(network, kernel, distance)


def test_sequential_steps() -> None:
    for length in (2, 3, 7, 8, 9, 100):
        assert costs.sequential_steps("lstm", 3, length, linked=False) == length
        assert costs.sequential_steps("attention", 3, length, linked=True) == 1
        assert costs.sequential_steps("scan", 3, length, linked=False) == math.ceil(math.log2(length))
        assert costs.sequential_steps("convs2s", 3, length, linked=False) == 1
        assert costs.sequential_steps("convs2s", 3, length, linked=True) == math.ceil((length - 1) / 2)


@pytest.mark.parametrize(
    ("network", "torchs"), [("rnn", "RNN"), ("gru", "GRU"), ("lstm", "LSTM"), ("lstm_chrono", "LSTM")]
)
def test_parameters_are_those_of_torch(network: str, torchs: str) -> None:
    body, head = getattr(torch.nn, torchs)(10, 13), torch.nn.Linear(13, 8)
    count = sum(p.numel() for module in (body, head) for p in module.parameters())
    assert costs.parameters(network, 13, 1, inputs=10, outputs=8, kernel=3) == count


def test_parameters_in_layers() -> None:
    ends = [torch.nn.Linear(10, 13), torch.nn.Linear(13, 8)]
    convs = [torch.nn.Conv1d(13, 13, 3) for _ in range(4)]
    matrices = [torch.nn.Linear(13, 13, bias=False) for _ in range(4)]
    for network, layers in (("bytenet", convs), ("attention", matrices)):
        count = sum(p.numel() for module in [*ends, *layers] for p in module.parameters())
        assert costs.parameters(network, 13, 4, inputs=10, outputs=8, kernel=3) == count


@pytest.mark.parametrize("network", ["rnn", "gru", "convs2s", "attention"])
def test_no_other_width_comes_nearer(network: str) -> None:
    sizes = {"inputs": 10, "outputs": 8, "kernel": 3}
    width = costs.width_for(network, 2600, 5, **sizes)
    far = {w: abs(costs.parameters(network, w, 5, **sizes) - 2600) for w in range(1, 80)}
    assert far[width] == min(far.values())


def test_a_control_has_one_layer_too_few() -> None:
    for distance in range(3, 50):
        depth = costs.layers("convs2s_short", 3, distance)
        assert depth == reached("convs2s", 3, distance) - 1 and depth * 2 < distance
    assert costs.layers("gru", 3, 50) == costs.layers("attention", 3, 50) == 1


def test_what_a_linear_recurrence_keeps() -> None:
    product = 1.0
    for distance in range(1, 200):
        product *= 0.9
        assert 10 ** costs.linear_decay_log10(0.9, distance) == pytest.approx(product)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (lambda: costs.path_length("mamba", 3, 4), "network=mamba must be one of rnn"),
        (lambda: costs.path_length("convs2s_short", 3, 4), "network=convs2s_short must be one of rnn"),
        (lambda: costs.path_length("rnn", 3, 0), "distance=0 must be 1 or more"),
        (lambda: costs.sequential_steps("rnn", 3, 1, linked=True), "length=1 must be 2 or more"),
        (lambda: costs.rounds(0), "length=0 must be 1 or more"),
        (lambda: costs.parameters("scan", 3, 1, inputs=2, outputs=2, kernel=3), "network=scan must be one that"),
        (lambda: costs.linear_decay_log10(1.1, 3), "decay=1.1 must be above 0"),
    ],
)
def test_wrong_input_is_refused(wrong: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        wrong()  # type: ignore[operator]
