"""ResNet-50, with a place for a block at the end of each of its residual branches."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnrepro.theory.resnet50 import BLOCKS, CLASSES, EXPANSION, STEM, WIDTHS

# A block on maps of so many channels.
Gate = Callable[[int], nn.Module]


class Bottleneck(nn.Module):
    """``relu(shortcut + gate(branch))``: 1 x 1 to ``width`` channels, 3 x 3, 1 x 1 to four times as many, each normed.

    Maps ``[batch, before, height, width]`` to ``[batch, 4 width, height / stride, width / stride]``; the stride is in
    the first convolution, and the shortcut has a convolution of its own where ``projected``.

    Source: He et al. 2016, Deep Residual Learning, figure 5; the gate's place: Hu et al. 2018, figure 3.
    """

    def __init__(self, before: int, width: int, stride: int, projected: bool, gate: Gate | None) -> None:
        super().__init__()
        behind = EXPANSION * width
        self.branch = nn.Sequential(
            *_convolution(before, width, 1, stride),
            nn.ReLU(),
            *_convolution(width, width, 3, 1),
            nn.ReLU(),
            *_convolution(width, behind, 1, 1),
        )
        self.gate = nn.Identity() if gate is None else gate(behind)
        self.shortcut = nn.Sequential(*_convolution(before, behind, 1, stride)) if projected else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return torch.relu(self.gate(self.branch(x)) + self.shortcut(x))


class ResNet50(nn.Sequential):
    """Images ``[batch, 3, height, width]`` to logits ``[batch, 1000]``.

    25 557 032 parameters and 7.7 GFLOP for an image of 224 x 224 (``attnrepro.theory.resnet50``).

    Args:
        gate: makes a block for maps of so many channels, put behind each of the 16 branches: with
            ``SqueezeExcitation`` it is SE-ResNet-50.

    Source: He et al. 2016, Deep Residual Learning for Image Recognition, table 1.
    """

    def __init__(self, gate: Gate | None = None) -> None:
        layers: list[nn.Module] = [*_convolution(3, STEM, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        before = STEM
        for stage, (count, width) in enumerate(zip(BLOCKS, WIDTHS, strict=True)):
            for index in range(count):
                stride = 2 if stage and not index else 1
                layers.append(Bottleneck(before, width, stride, index == 0, gate))
                before = EXPANSION * width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def _convolution(before: int, behind: int, kernel: int, stride: int) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return nn.Conv2d(before, behind, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(behind)
