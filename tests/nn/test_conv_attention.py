"""Convolution written as self-attention against loops over taps and against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnrepro.nn.conv_attention import as_tokens, convolution_layer, tap_masks
from attnrepro.nn.self_attention import SelfAttention


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(x: Tensor, kernel: Tensor, *, circular: bool) -> Tensor:
    length, width = len(x), kernel.shape[-1]
    out = torch.zeros(length, len(kernel), dtype=x.dtype)
    for i in range(length):
        for k in range(width):
            j = i + k - width // 2
            if circular or 0 <= j < length:
                out[i] += kernel[:, :, k] @ x[j % length]
    return out


# length, in_channels, out_channels, width
SHAPES = [(3, 1, 1, 3), (8, 4, 4, 3), (9, 2, 5, 5), (11, 7, 1, 3), (5, 3, 2, 1)]


@pytest.mark.parametrize(("length", "inputs", "outputs", "width"), SHAPES)
@pytest.mark.parametrize("circular", [True, False])
def test_a_head_for_each_tap_is_a_convolution(
    length: int, inputs: int, outputs: int, width: int, circular: bool
) -> None:
    kernel, x = tokens(outputs, inputs, width), tokens(length, inputs, seed=2)
    layer = convolution_layer(kernel)
    assert isinstance(layer, SelfAttention) and layer.num_heads == width
    with torch.no_grad():
        out = layer(as_tokens(layer, x), tap_masks(length, width, circular=circular))
    torch.testing.assert_close(out[:, :outputs], by_loops(x, kernel, circular=circular), rtol=1e-12, atol=1e-13)
    assert (out[:, outputs:] == 0).all()
    if not circular:
        torchs = functional.conv1d(x.T[None], kernel, padding=width // 2)[0].T
        torch.testing.assert_close(out[:, :outputs], torchs, rtol=1e-12, atol=1e-13)


def test_the_content_has_no_say_in_what_a_head_reads() -> None:
    kernel, mask = tokens(4, 4, 3), tap_masks(7, 3, circular=True)
    layer = convolution_layer(kernel)
    for seed in range(3):
        assert torch.equal(layer.weights(as_tokens(layer, tokens(7, 4, seed=seed)), mask), mask.double())


def test_positions_decide_as_the_logits_grow() -> None:
    """Unit vectors as a code, turned by a cyclic shift for each tap."""
    length, kernel, x = 6, tokens(3, 3, 3), tokens(6, 3, seed=2)
    turns = torch.stack([torch.eye(length).double().roll(offset, dims=0) for offset in (-1, 0, 1)])
    exact, gaps = by_loops(x, kernel, circular=True), []
    for scale in (2.0, 10.0, 20.0, 60.0):
        layer = convolution_layer(kernel, turns, scale)
        with torch.no_grad():
            given = as_tokens(layer, x, torch.eye(length).double())
            gaps.append(float((layer(given)[:, :3] - exact).abs().max()))
            logit = torch.log(layer.weights(given)[2][0, 1] / layer.weights(given)[2][0, 0])
        assert float(logit) == pytest.approx(scale, rel=1e-9)  # head 2 of token 0 reads token 1, whatever head_dim is
    assert gaps[0] > 0.1 and gaps[0] > gaps[1] > gaps[2] and gaps[3] < 1e-13


@pytest.mark.parametrize("shift", [0, 1])
def test_masks_by_their_definition(shift: int) -> None:
    for circular in (True, False):
        made = tap_masks(7, 5, circular=circular, shift=shift)
        for k in range(5):
            for i in range(7):
                target = i + k - 2 + shift
                seen = [target % 7] if circular else [target] if 0 <= target < 7 else []
                assert made[k, i].nonzero().flatten().tolist() == seen


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="width=4 must be odd"):
        tap_masks(7, 4, circular=True)
    with pytest.raises(ValueError, match="length=0 must be 1 or more"):
        tap_masks(0, 3, circular=True)
