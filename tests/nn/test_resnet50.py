"""ResNet-50 against its closed form, against its layers applied one by one, and the place of its gates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnrepro.nn.resnet50 import Bottleneck, ResNet50
from attnrepro.nn.squeeze_excitation import SqueezeExcitation
from attnrepro.theory import resnet50

from .naive_maps import drawn, flops_of, parameters_of


@pytest.mark.parametrize("side", [224, 64])
def test_costs_in_closed_form(side: int) -> None:
    with torch.device("meta"):
        plain, gated = ResNet50().eval(), ResNet50(SqueezeExcitation).eval()
    assert parameters_of(plain) == resnet50.parameters()
    assert parameters_of(gated) == resnet50.parameters() + resnet50.gate_parameters(16)
    assert flops_of(plain, 1, 3, side, side) == resnet50.flops(side)
    assert flops_of(gated, 1, 3, side, side) == resnet50.flops(side) + resnet50.gate_flops(16)


def normed(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """With the statistics that it has stored."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return x * scale[:, None, None] + (norm.bias - norm.running_mean * scale)[:, None, None]


@pytest.mark.parametrize(("stride", "projected"), [(1, True), (2, True), (1, False)])
@pytest.mark.parametrize("gated", [False, True])
def test_a_block_by_hand(stride: int, projected: bool, gated: bool) -> None:
    torch.manual_seed(1)
    before = 8 if projected else 12
    gate = (lambda channels: SqueezeExcitation(channels, reduction=4)) if gated else None
    block = Bottleneck(before, 3, stride, projected, gate).double().eval()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    x = drawn(2, before, 6, 5)
    first, norm1, _, second, norm2, _, third, norm3 = block.branch
    with torch.no_grad():
        hidden = x[..., ::stride, ::stride]
        hidden = normed(torch.einsum("bchw,dc->bdhw", hidden, first.weight[..., 0, 0]), norm1).clamp(min=0)
        # Three by three, tap by tap, with a border of zeros.
        height, width = hidden.shape[-2:]
        padded = nn.functional.pad(hidden, (1, 1, 1, 1))
        taps = [
            torch.einsum("bchw,dc->bdhw", padded[..., i : i + height, j : j + width], second.weight[..., i, j])
            for i in range(3)
            for j in range(3)
        ]
        hidden = normed(sum(taps), norm2).clamp(min=0)
        out = normed(torch.einsum("bchw,dc->bdhw", hidden, third.weight[..., 0, 0]), norm3)
        if gated:
            hidden = (out.mean((-2, -1)) @ block.gate.squeeze.weight.T).clamp(min=0)
            weights = torch.sigmoid(hidden @ block.gate.excite.weight.T)
            out = out * weights[..., None, None]
        short = x
        if projected:
            conv, norm = block.shortcut
            short = normed(torch.einsum("bchw,dc->bdhw", x[..., ::stride, ::stride], conv.weight[..., 0, 0]), norm)
        torch.testing.assert_close(block(x), (out + short).clamp(min=0), rtol=1e-11, atol=1e-12)


def test_logits_of_a_small_image() -> None:
    torch.manual_seed(0)
    out = ResNet50(SqueezeExcitation).eval()(torch.randn(2, 3, 33, 40))
    assert out.shape == (2, 1000) and out.isfinite().all()
