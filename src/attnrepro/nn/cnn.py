"""Convolutional networks: a small ResNet, zero-padded or circular, and one that adds up local evidence."""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from attnrepro.theory.image_models import GROUPS, STEM, STEM_STRIDE, ImageShape, check_cnn, strided

Padding = Literal["zeros", "circular"]


def _convolution(inputs: int, outputs: int, side: int, stride: int = 1, padding: Padding = "zeros") -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False, padding_mode=padding)


def _norm(kind: str, width: int) -> nn.Module:
    return nn.BatchNorm2d(width) if kind == "batch" else nn.GroupNorm(GROUPS, width)


class Residual(nn.Module):
    """Two 3x3 convolutions around which the input goes unchanged, or through a 1x1 convolution where its shape changes.

    Source: He et al. 2016, Deep Residual Learning, sections 3.2 and 3.3 (option B).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, norm: str, padding: Padding) -> None:
        super().__init__()
        self.first, self.first_norm = _convolution(inputs, outputs, 3, stride, padding), _norm(norm, outputs)
        self.second, self.second_norm = _convolution(outputs, outputs, 3, 1, padding), _norm(norm, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, inputs, h, w]`` to ``[n, outputs, h / stride, w / stride]``, sides rounded up."""
        inner = self.first_norm(self.first(x)).relu()
        out: Tensor = self.second_norm(self.second(inner)) + self.shortcut(x)
        return out.relu()


class ResNet(nn.Module):
    """A 5x5 convolution of stride 2, one residual block a width, a linear head.

    With ``padding="circular"`` the image is a torus, and with ``head="mean"`` the logits are then exactly invariant to
    cyclic shifts by multiples of the total stride, 2 x the product of ``strides``, and to no others. With zero padding
    there is no such invariance.

    Args:
        image_shape: channels, height and width.
        num_classes: logits.
        widths: channels of the blocks.
        strides: of the blocks.
        norm: "batch" or "group" (8 groups).
        head: reads the "mean" over all places, or each place by itself ("flatten").
        padding: "zeros" or "circular".

    Raises:
        ValueError: an unknown choice, circular padding where the total stride does not divide the image's sides, or
            widths that cannot be grouped.

    Source: He et al. 2016, section 4.2 in outline (widths 16, 32, 64); Wu and He 2018, Group Normalization.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        widths: Sequence[int] = (16, 32, 64),
        strides: Sequence[int] = (1, 2, 2),
        norm: str = "batch",
        head: str = "mean",
        padding: Padding = "zeros",
    ) -> None:
        super().__init__()
        check_cnn(image_shape, widths, strides, norm, head, padding)
        channels, *sides = image_shape
        self.stem = nn.Sequential(
            _convolution(channels, widths[0], STEM, STEM_STRIDE, padding), _norm(norm, widths[0]), nn.ReLU()
        )
        inputs = [widths[0], *widths[:-1]]
        self.blocks = nn.Sequential(
            *(
                Residual(before, width, stride, norm=norm, padding=padding)
                for before, width, stride in zip(inputs, widths, strides, strict=True)
            )
        )
        for stride in (STEM_STRIDE, *strides):
            sides = strided(sides, stride)
        self.flatten = head == "flatten"
        self.head = nn.Linear(widths[-1] * (sides[0] * sides[1] if self.flatten else 1), num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[n, num_classes]`` of images ``[n, channels, height, width]``."""
        x = self.blocks(self.stem(images))
        logits: Tensor = self.head(x.flatten(1) if self.flatten else x.mean(dim=(2, 3)))
        return logits


class AdditiveCNN(nn.Module):
    """Logits that are a mean over windows of 9x9 pixels: no window sees two things further apart than that.

    Whatever the windows learn, changing the image in two places that share no window changes the logits by the sum of
    what each change alone does: f12 - f1 - f2 + f0 = 0. (In training mode BatchNorm links all places of a batch; as
    tested, it is a fixed affine map.) A 5x5 kernel of stride 2, a 3x3 kernel and a 1x1 kernel see 5 + 2 x 2 = 9 pixels.

    Args:
        image_shape: channels, height and width.
        num_classes: logits.
        widths: channels of the first kernel, and of the two others.

    Source: Brendel and Bethge 2019, Approximating CNNs with Bag-of-local-Features Models, section 3 (BagNet-9).
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, *, widths: Sequence[int] = (24, 48)) -> None:
        super().__init__()
        first, second = widths
        kernels = [(image_shape[0], first, STEM, STEM_STRIDE), (first, second, 3, 1), (second, second, 1, 1)]
        self.windows = nn.Sequential(
            *(nn.Sequential(_convolution(*kernel), nn.BatchNorm2d(kernel[1]), nn.ReLU()) for kernel in kernels)
        )
        self.head = nn.Linear(second, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[n, num_classes]`` of images ``[n, channels, height, width]``."""
        logits: Tensor = self.head(self.windows(images).mean(dim=(2, 3)))
        return logits
