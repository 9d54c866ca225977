"""ResNet-50 on paper, with or without squeeze and excitation after each of its 16 blocks.

FLOPs are those of convolutions and matrices in one forward pass of one image, two for each multiply-add; strides are in
the first 1 x 1 convolution of a stage, as in the papers. Sources: He et al. 2016, table 1; Hu et al. 2018, section 4.
"""

from collections.abc import Iterator
from typing import NamedTuple

BLOCKS, WIDTHS, EXPANSION, STEM, CLASSES = (3, 4, 6, 3), (64, 128, 256, 512), 4, 64, 1000


class Unit(NamedTuple):
    """One block: channels before, inside and behind it, side of its map, and whether its shortcut has a matrix."""

    before: int
    width: int
    behind: int
    side: int
    first: bool


def units(side: int) -> Iterator[Unit]:
    """The 16 blocks for images of ``side`` x ``side`` pixels."""
    before = STEM
    now = -(-side // 4)
    for stage, (count, width) in enumerate(zip(BLOCKS, WIDTHS, strict=True)):
        now = now if stage == 0 else -(-now // 2)
        for index in range(count):
            yield Unit(before, width, EXPANSION * width, now, index == 0)
            before = EXPANSION * width


def parameters() -> int:
    """Weights of convolutions, two numbers a channel for each norm, and the last layer with its bias."""
    total = 3 * 49 * STEM + 2 * STEM
    for u in units(224):
        total += u.before * u.width + 9 * u.width**2 + u.width * u.behind + 2 * (2 * u.width + u.behind)
        total += (u.before * u.behind + 2 * u.behind) if u.first else 0
    return total + EXPANSION * WIDTHS[-1] * CLASSES + CLASSES


def flops(side: int) -> int:
    """FLOPs of one image of ``side`` x ``side`` pixels."""
    total = 3 * 49 * STEM * (-(-side // 2)) ** 2
    for u in units(side):
        each = u.before * u.width + 9 * u.width**2 + u.width * u.behind + (u.before * u.behind if u.first else 0)
        total += each * u.side**2
    return 2 * (total + EXPANSION * WIDTHS[-1] * CLASSES)


def gate_parameters(reduction: int) -> int:
    """What squeeze and excitation add: 2 C (C // reduction) for each block of C channels, without biases."""
    return sum(2 * u.behind * (u.behind // reduction) for u in units(224))


def gate_flops(reduction: int) -> int:
    """FLOPs of their matrices, whatever the size of the image."""
    return 2 * gate_parameters(reduction)


def gate_entries(side: int) -> int:
    """Entries of all maps that are averaged and then scaled: an addition and a product for each."""
    return sum(u.behind * u.side**2 for u in units(side))
