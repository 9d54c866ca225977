"""Classifiers of equal size: their parameters, their reach, and their output step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnrepro.nn.position import sinusoidal
from attnrepro.nn.sequence_classifier import MIXERS, SequenceClassifier, mixer, wide_channels

SIZES: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "depth": 2, "kernel": 3, "strength": 3.0}


def made(name: str, length: int = 16, readout: str = "mean") -> SequenceClassifier:
    torch.manual_seed(0)
    return SequenceClassifier(name, 3, length, readout=readout, **SIZES).double()


def count(module: torch.nn.Module) -> int:
    return sum(w.numel() for w in module.parameters())


@pytest.mark.parametrize("length", [16, 24])
def test_all_have_as_many_parameters(length: int) -> None:
    of = {name: count(made(name, length)) for name in MIXERS}
    assert of["convolution"] == of["attention"] == of["attention_position"]
    assert abs(of["convolution_wide"] / of["attention"] - 1) < 0.02
    assert count(mixer("attention", 16, 4, 3, length)) == 4 * 16 * 16


def test_the_channels_of_the_wide_convolution_by_hand() -> None:
    # 16 w + 31 w + 16 w = 4 x 16 x 16 at w = 16.25.
    assert wide_channels(16, 31) == 16
    assert wide_channels(1, 99) == 1


@pytest.mark.parametrize(("name", "seen"), [("convolution", 3), ("convolution_wide", 16), ("attention", 16)])
def test_what_the_last_token_sees(name: str, seen: int) -> None:
    """Two convolutions of kernel 3 reach 2 positions to the left of the end; the others everything."""
    x = torch.randn(1, 16, 3, dtype=torch.float64, requires_grad=True)
    made(name, readout="last")(x)[0].backward()
    assert x.grad is not None
    assert int((x.grad[0].abs().amax(-1) > 0).sum()) == seen


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("readout", ["mean", "last"])
def test_the_output_step_by_step(name: str, readout: str) -> None:
    net, x = made(name, readout=readout), torch.randn(2, 16, 3, dtype=torch.float64)
    h = x @ net.embed.weight.T + net.embed.bias
    if name == "attention_position":
        h = h + (3 * sinusoidal(16, 16)).double()
    for mix, alone in zip(net.mixers, net.tokenwise, strict=True):
        h = h + mix(h)
        h = h + (torch.relu(h @ alone[0].weight.T + alone[0].bias) @ alone[2].weight.T + alone[2].bias)  # type: ignore[index]
    read = h.mean(1) if readout == "mean" else h[:, -1]
    torch.testing.assert_close(net(x), read @ net.head.weight[0] + net.head.bias[0])


def test_attention_without_positions_sees_a_set() -> None:
    x, order = torch.randn(1, 16, 3, dtype=torch.float64), torch.randperm(16)
    torch.testing.assert_close(made("attention")(x[:, order]), made("attention")(x))
    moved = made("attention_position")(x[:, order]) - made("attention_position")(x)
    assert float(moved.abs().max()) > 1e-4


def test_an_unknown_mixer_is_refused() -> None:
    with pytest.raises(ValueError, match="name=mlp must be one of"):
        mixer("mlp", 16, 4, 3, 16)
