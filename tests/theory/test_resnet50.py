"""ResNet-50 on paper against loops over its layers, and against published sizes."""

from __future__ import annotations

import pytest

from attnrepro.theory import resnet50


def by_layers(side: int) -> tuple[int, int, list[tuple[int, int]]]:
    """Parameters, multiply-adds, and (channels, side) of each of the 16 branches, written down layer by layer."""
    parameters, products, branches = 0, 0, []

    def convolution(before: int, behind: int, kernel: int, out: int) -> None:
        nonlocal parameters, products
        parameters += before * behind * kernel * kernel + 2 * behind
        products += before * behind * kernel * kernel * out * out

    now = (side + 1) // 2
    convolution(3, 64, 7, now)
    now = (now + 1) // 2
    before = 64
    for stage, count in enumerate([3, 4, 6, 3]):
        width = 64 * 2**stage
        if stage:
            now = (now + 1) // 2
        for index in range(count):
            convolution(before, width, 1, now)
            convolution(width, width, 3, now)
            convolution(width, 4 * width, 1, now)
            if index == 0:
                convolution(before, 4 * width, 1, now)
            before = 4 * width
            branches.append((before, now))
    return parameters + 2048 * 1000 + 1000, products + 2048 * 1000, branches


@pytest.mark.parametrize("side", [224, 112, 32, 65])
def test_layer_by_layer(side: int) -> None:
    parameters, products, branches = by_layers(side)
    assert resnet50.parameters() == parameters
    assert resnet50.flops(side) == 2 * products
    assert resnet50.gate_entries(side) == sum(channels * s * s for channels, s in branches)
    for reduction in (16, 4):
        assert resnet50.gate_parameters(reduction) == sum(2 * c * (c // reduction) for c, _ in branches)
        assert resnet50.gate_flops(reduction) == 2 * resnet50.gate_parameters(reduction)


def test_published_sizes() -> None:
    """torchvision's 25 557 032 parameters; 3.86 G multiply-adds, 2.5 M more with squeeze and excitation."""
    assert resnet50.parameters() == 25_557_032
    assert round(resnet50.flops(224) / 2e9, 2) == 3.86
    assert resnet50.gate_parameters(16) == 2_514_944
    assert round(resnet50.gate_parameters(16) / resnet50.parameters(), 3) == 0.098
