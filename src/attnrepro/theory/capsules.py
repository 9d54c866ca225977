"""Capsules on paper: parameters and FLOPs, what coupling and lengths are where all votes agree, and how printed.

FLOPs are those of the products of one forward pass of one image, two for each multiply-add; softmax, squash and
activations are left out, as torch's ``FlopCounterMode`` does.

Sources: Sabour, Frosst and Hinton 2017, sections 2 to 4; document 004, section 4.2.
"""

import math
from fractions import Fraction

from attnrepro.theory.image_models import Cost, ImageShape, convolution, linear, scale, total

# Kernels of the two convolutions that the small capsule net and its dense counterpart begin with, and the second's
# stride; both without padding.
FIRST, SECOND, STRIDE = 5, 3, 2


def layer(
    children: int, parents: int, child_dim: int, parent_dim: int, iterations: int, *, shared: bool = False
) -> Cost:
    """Cost of ``attnrepro.nn.capsules.CapsuleLayer`` of either routing."""
    pairs = children * parents
    weights = (parents if shared else pairs) * child_dim * parent_dim
    routing = (2 * iterations - 1) * routing_product(children, parents, parent_dim)
    return Cost(weights, 2 * pairs * child_dim * parent_dim + routing)


def routing_product(children: int, parents: int, parent_dim: int) -> int:
    """FLOPs of one weighted sum of all votes, or of their agreement with the parents."""
    return 2 * children * parents * parent_dim


def first_coupling_entropy(parents: int) -> float:
    """Entropy in nats of a child's shares in the first iteration, when all parents get the same."""
    return math.log(parents)


def first_parent_sum_as_printed(children: int, parents: int) -> Fraction:
    """What a child hands out in all in the first iteration as printed, where it should be 1: 1 / children to each."""
    return Fraction(parents, children)


def agreed_length(children: int, parents: int, vote: float) -> float:
    """Length of every parent where all children send the same vote of that length to each: symmetry keeps the shares
    at 1 / parents, whatever the number of iterations, and squash makes n^2 / (1 + n^2) of n."""
    n = children * vote / parents
    return n * n / (1 + n * n)


def agreed_length_as_printed(vote: float) -> float:
    """The same as printed: a mean of equal votes, as long as they are."""
    return vote


def places(image_shape: ImageShape) -> int:
    """Places of the map that the two convolutions make.

    Raises:
        ValueError: an image that is too small for them.
    """
    sides = [((side - FIRST + 1) - SECOND) // STRIDE + 1 for side in image_shape[1:]]
    if min(sides) < 1:
        least = FIRST + SECOND - 1
        raise ValueError(f"image_shape={tuple(image_shape)} must be at least {least} pixels high and wide")
    return math.prod(sides)


def first_convolution(image_shape: ImageShape, width: int) -> Cost:
    """Cost of the first convolution."""
    channels, *sides = image_shape
    return convolution(channels, width, FIRST, [side - FIRST + 1 for side in sides])


def stem(image_shape: ImageShape, width: int, channels: int) -> Cost:
    """Cost of the two convolutions and their norms."""
    weights = width * channels * SECOND**2
    second = Cost(weights, 2 * weights * places(image_shape))
    return total(first_convolution(image_shape, width), scale(width), second, scale(channels))


def capsule_net(
    image_shape: ImageShape,
    num_classes: int,
    *,
    width: int,
    types: int,
    child_dim: int,
    parent_dim: int,
    iterations: int,
) -> Cost:
    """Cost of ``attnrepro.nn.capsule_net.CapsuleNet``."""
    children = places(image_shape) * types
    return total(
        stem(image_shape, width, types * child_dim),
        layer(children, num_classes, child_dim, parent_dim, iterations),
    )


def dense_net(image_shape: ImageShape, num_classes: int, *, width: int, channels: int, hidden: int) -> Cost:
    """Cost of ``attnrepro.nn.capsule_net.DenseNet``."""
    inputs = places(image_shape) * channels
    return total(stem(image_shape, width, channels), linear(inputs, hidden), linear(hidden, num_classes))
