"""Stacked recurrence, causal convolution and attention against torch's own modules and loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attnrepro.data.streams import generator
from attnrepro.nn.sequence_layers import AttentionLayer, CausalConvs, LinearRecurrence, Reader, Recurrent

SEEDS = (3, 8)


def streams() -> list[torch.Generator]:
    return [generator(seed, "layers") for seed in SEEDS]


def tokens(length: int, width: int) -> torch.Tensor:
    return torch.randn(len(SEEDS), 4, length, width, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("kind", "torchs"), [("rnn", "RNN"), ("gru", "GRU"), ("lstm", "LSTM"), ("lstm_chrono", "LSTM")]
)
def test_a_recurrent_layer_is_torchs(kind: str, torchs: str) -> None:
    layer, x = Recurrent(kind, streams(), 6, 5, span=20), tokens(7, 6)
    for member in range(len(SEEDS)):
        own: Any = getattr(torch.nn, torchs)(6, 5, batch_first=True)
        with torch.no_grad():
            own.weight_ih_l0.copy_(layer.w_in[member].T)
            own.weight_hh_l0.copy_(layer.w_state[member].T)
            own.bias_ih_l0.copy_(layer.b_in[member])
            own.bias_hh_l0.copy_(layer.b_state[member])
        expected = own(x[member])[0]
        torch.testing.assert_close(layer(x)[member], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.read(x)[member], expected[:, -1], rtol=1e-5, atol=1e-6)
    state = layer.start(4)
    for part in x.unbind(2):
        state = layer.step(part, state)
    torch.testing.assert_close(state[0], layer.read(x), rtol=1e-5, atol=1e-6)


def test_starts_are_those_of_torch() -> None:
    layer = Recurrent("gru", streams(), 6, 25).requires_grad_(False)
    for part in layer.parameters():
        assert 0.19 < part.abs().max() < 0.2 and part.std() == pytest.approx(0.2 / 3**0.5, rel=0.1)
    alone = Recurrent("gru", streams()[1:], 6, 25)
    assert all(torch.equal(a[1], b[0]) for a, b in zip(layer.parameters(), alone.parameters(), strict=True))


def test_chrono_gates_stay_open_for_the_span() -> None:
    layer = Recurrent("lstm_chrono", streams(), 6, 400, span=50).requires_grad_(False)
    forget = (layer.b_in + layer.b_state)[:, 400:800]
    kept = torch.sigmoid(forget)  # T / (1 + T) with T uniform between 1 and 50
    ages = kept / (1 - kept)
    assert ages.min() >= 1 and ages.max() < 50 and ages.mean() == pytest.approx(25.5, abs=2)
    assert torch.equal((layer.b_in + layer.b_state)[:, :400], -forget)
    plain = Recurrent("lstm", streams(), 6, 400)
    assert (plain.b_in + plain.b_state)[:, 400:800].abs().max() <= 0.1


@pytest.mark.parametrize("length", [1, 2, 5, 8, 13])
def test_a_scan_is_the_recurrence(length: int) -> None:
    layer, rounds = LinearRecurrence(streams(), 4, 0.8), []
    x = tokens(length, 4).double()
    found = layer.scan(x, lambda r: rounds.append(0) or r)
    for member in range(len(SEEDS)):
        for n in range(4):
            h = torch.zeros(4, dtype=torch.float64)
            for t in range(length):
                h = x[member, n, t] + h @ layer.turn[member]
                torch.testing.assert_close(found[member, n, t], h)
    torch.testing.assert_close(layer.read(x), found[:, :, -1])
    assert len(rounds) == math.ceil(math.log2(length))
    torch.testing.assert_close(layer.turn @ layer.turn.mT, 0.64 * torch.eye(4, dtype=torch.float64).expand(2, 4, 4))


@pytest.mark.parametrize(("stack", "rates"), [("stride1", [1, 1, 1]), ("bytenet", [1, 2, 4])])
def test_causal_convolutions_against_a_loop(stack: str, rates: list[int]) -> None:
    layer, x = CausalConvs(stack, streams(), 3, 3, 3).double(), tokens(9, 3).double()
    with torch.no_grad():
        for bias in layer.biases:
            bias.copy_(torch.randn(bias.shape, generator=torch.Generator().manual_seed(1)))
    found = layer(x)
    for member in range(len(SEEDS)):
        y = x[member, 1].tolist()
        for weight, bias, rate in zip(layer.weights, layer.biases, rates, strict=True):
            w, b = weight[member].tolist(), bias[member].tolist()
            after = []
            for t in range(9):
                new = list(b)
                for tap in range(3):
                    at = t - rate * (2 - tap)
                    if at >= 0:
                        new = [n + sum(w[o][i][tap] * y[at][i] for i in range(3)) for o, n in enumerate(new)]
                after.append([(y[t][o] + math.tanh(new[o])) / 2**0.5 for o in range(3)])
            y = after
        torch.testing.assert_close(found[member, 1], torch.tensor(y, dtype=torch.float64))
    torch.testing.assert_close(layer.read(x), found[:, :, -1])


def test_convolutions_keep_the_size_of_activations_and_gradients() -> None:
    layer = CausalConvs("stride1", streams(), 64, 3, 30).requires_grad_(False)
    x = 0.01 * torch.randn(2, 20, 100, 64, generator=torch.Generator().manual_seed(2))  # where tanh is its argument
    power = layer(x)[:, :, 60:].square().mean() / x.square().mean()
    assert power == pytest.approx(1, rel=0.1)
    leaf = x[:1, :1].requires_grad_()
    alone = CausalConvs("stride1", streams()[:1], 64, 3, 30).requires_grad_(False)
    (slope,) = torch.autograd.grad(alone.read(leaf).sum(), leaf)
    assert slope.square().sum() / 64 == pytest.approx(1, rel=0.5)


def test_attention_is_torchs() -> None:
    layer, x = AttentionLayer(streams(), 6), tokens(7, 6)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for member in range(len(SEEDS)):
        query, key, value = (x[member] @ w[member] for w in (layer.w_query, layer.w_key, layer.w_value))
        expected = sdpa(query, key, value) @ layer.w_out[member]
        torch.testing.assert_close(layer.attend(x, x)[member], expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.read(x)[member], expected[:, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("network", ["rnn", "lstm_chrono", "convs2s", "bytenet", "attention"])
def test_a_reader_sees_the_first_token_and_its_seeds_do_not_meet(network: str) -> None:
    reader = Reader(network, streams(), inputs=6, width=5, outputs=3, kernel=3, distance=9)
    x = tokens(10, 6).requires_grad_()
    logits = reader(x)
    assert logits.shape == (2, 4, 3)
    (slope,) = torch.autograd.grad(logits[1, 2].square().sum(), x)
    assert (slope[1, 2, 0] != 0).any()
    slope[1, 2] = 0
    assert (slope == 0).all()


def test_a_short_stack_does_not_see_the_first_token() -> None:
    reader = Reader("convs2s_short", streams(), inputs=6, width=5, outputs=3, kernel=3, distance=9)
    x = tokens(10, 6).requires_grad_()
    (slope,) = torch.autograd.grad(reader(x).square().sum(), x)
    assert (slope[:, :, 0] == 0).all() and (slope[:, :, 1] != 0).any()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="kind=mamba must be one of rnn"):
        Recurrent("mamba", streams(), 3, 3)
    with pytest.raises(ValueError, match="network=scan must be one that is trained"):
        Reader("scan", streams(), inputs=6, width=5, outputs=3, kernel=3, distance=9)
