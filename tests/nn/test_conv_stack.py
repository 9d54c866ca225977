"""Layers of convolutional stacks: shapes, rates, and what an output depends on, by moving single inputs."""

from __future__ import annotations

import pytest
import torch

from attnrepro.nn.conv_stack import PadToMultiple, conv_layer, dilation
from attnrepro.theory import receptive_field as theory


def test_rates_and_names_are_those_of_the_theory() -> None:
    assert [dilation("bytenet", 3, index) for index in range(7)] == [1, 2, 4, 8, 16, 1, 2]
    assert sum(dilation("bytenet", 3, index) for index in range(theory.RATES)) == theory.SUM_OF_RATES
    assert [dilation("dilation_kl", 5, index) for index in range(3)] == [1, 5, 25]
    assert [dilation("dilation_2l", 5, index) for index in range(4)] == [1, 2, 4, 8]
    assert {dilation("gapped", 5, index) for index in range(4)} == {5}
    for stack in theory.CONVOLUTIONS:
        conv_layer(stack, 3, 0)


@pytest.mark.parametrize("stack", theory.CONVOLUTIONS)
@pytest.mark.parametrize("length", [24, 25, 31])
def test_lengths(stack: str, length: int) -> None:
    out = conv_layer(stack, 3, 1)(torch.randn(5, 1, length))
    per = {"stride_k": 3, "pooled": 2}.get(stack, 1)
    assert out.shape == (5, 1, -(-length // per))


@pytest.mark.parametrize("stack", theory.CONVOLUTIONS)
def test_an_output_depends_on_its_field_and_on_nothing_else(stack: str) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(conv_layer(stack, 3, index).double() for index in range(3)))
    x = torch.randn(1, 1, 108, dtype=torch.float64)
    with torch.no_grad():
        out = layers(x)
        middle = (out.shape[-1] - 1) // 2
        moved = []
        for place in range(x.shape[-1]):
            other = x.clone()
            other[..., place] += 1
            moved.append(bool(layers(other)[..., middle] != out[..., middle]))
    places = [place for place, changed in enumerate(moved) if changed]
    assert len(places) == theory.field(stack, 3, 3)
    assert places[-1] - places[0] + 1 == theory.span(stack, 3, 3)


def test_padding_drops_nothing() -> None:
    x = torch.arange(7.0)
    assert PadToMultiple(3)(x).tolist() == [*x.tolist(), 0, 0]
    assert PadToMultiple(7)(x).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("stack", "kernel", "message"),
    [
        ("stride2", 3, "stack=stride2 must be one of"),
        ("stride1", 4, "kernel=4 must be odd"),
        ("pooled", -1, "must be odd"),
    ],
)
def test_impossible_layers_are_refused(stack: str, kernel: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conv_layer(stack, kernel, 0)
