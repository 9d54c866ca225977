r"""Closed forms around attention as convolution and around the sinusoidal code.

Soft taps. Head k of an attention layer reads position t + o because its logits at position j are a c(t + o - j), with
a similarity c that is largest at 0 and a factor a. The leak is the weight of all other positions,

    1 - e^{a c(0)} / sum_j e^{a c(t + o - j)},

which falls as e^{-a g}, g = c(0) - max_{j != t+o} c: the gap to the runner-up. Unit vectors as a code have c = 1 at
0 and 0 elsewhere: leak (N - 1) / (e^a + N - 1) and g = 1. The sinusoid of Vaswani et al. 2017 has
c(m) = sum_i cos(w_i m), and there the runners-up are the neighbours.

One head. A head whose weights do not depend on the content gives b sum_j a_j x_{t+j} with a >= 0 and any gain b: every
vector of one sign. For independent inputs of one variance what is left of a kernel w is its smaller half,
min(|w+|^2, |w-|^2) / |w|^2.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def frequencies(embed_dim: int, base: float = 10000.0) -> Array:
    """The embed_dim / 2 frequencies base^(-2i/d) of the sinusoid, in radians for each position.

    Source: Vaswani et al. 2017, section 3.5. Raises ValueError unless embed_dim is even and positive.
    """
    if embed_dim < 2 or embed_dim % 2:
        raise ValueError(f"embed_dim={embed_dim} must be even and positive")
    exponent: Array = -math.log(base) * np.arange(0, embed_dim, 2) / embed_dim
    return np.exp(exponent)


def code_product(distance: ArrayLike, embed_dim: int) -> Array:
    """Dot product p_t . p_{t+m} = sum_i cos(w_i m) of two rows of the sinusoid, for each distance m of any shape."""
    summed: Array = np.cos(np.multiply.outer(distance, frequencies(embed_dim))).sum(axis=-1)
    return summed


def smallest_code_distance(length: int, embed_dim: int) -> float:
    """Smallest |p_s - p_t| over two different positions below length: min_m 2 sqrt(sum_i sin^2(w_i m / 2)).

    Above 0 for every length: the first frequency is 1, and no whole number is a multiple of 2 pi. Source: document
    002, section on sinusoidal codes. Raises ValueError for a length below 2 or a bad embed_dim.
    """
    if length < 2:
        raise ValueError(f"length={length} must be 2 or more")
    half = np.multiply.outer(np.arange(1, length), frequencies(embed_dim)) / 2
    return 2 * math.sqrt(float((np.sin(half) ** 2).sum(axis=1).min()))


def one_hot_leak(length: int, logit_scale: float) -> float:
    """Weight off the tap, (N - 1) / (e^a + N - 1), when positions are unit vectors."""
    return (length - 1) / (math.exp(logit_scale) + length - 1)


def sinusoid_leak(length: int, embed_dim: int, width: int, logit_scale: float) -> float:
    """Mean weight off the tap for the sinusoid, over the width taps of all tokens that have their taps in the sequence.

    Raises ValueError for a bad embed_dim, or for a width that is even or above the length.
    """
    if width % 2 == 0 or not 1 <= width <= length:
        raise ValueError(f"width={width} must be odd and at most length={length}")
    reach = width // 2
    target = np.arange(reach, length - reach)[:, None] + np.arange(-reach, reach + 1)
    logit = logit_scale * code_product(target[..., None] - np.arange(length), embed_dim)
    strength = np.exp(logit - logit.max(axis=-1, keepdims=True))
    # What is off the tap is summed by itself: one minus the tap's weight would round to nothing.
    on = np.take_along_axis(strength, target[..., None], axis=-1)[..., 0]
    off = np.where(np.arange(length) == target[..., None], 0.0, strength).sum(axis=-1)
    return float((off / (on + off)).mean())


def one_head_residual(kernel: Sequence[float]) -> float:
    """Share of the energy of a kernel that the best single head leaves, min(|w+|^2, |w-|^2) / |w|^2.

    Source: document 002, section on convolution as restricted attention. Raises ValueError for a kernel of zeros.
    """
    positive = sum(tap**2 for tap in kernel if tap > 0)
    negative = sum(tap**2 for tap in kernel if tap < 0)
    if positive + negative == 0:
        raise ValueError(f"kernel={list(kernel)} must have a tap that is not zero")
    return min(positive, negative) / (positive + negative)


def convolution_displacement_rank(kernel_width: int, circular: bool) -> int:
    """Rank of M - Z M Z^T, Z the cyclic shift, for the matrix of a convolution of odd width with generic taps.

    A circular one is a circulant and commutes with Z: 0. With zeros beyond the ends M is Toeplitz and no circulant:
    what differs stands in the first row and the first column, rank 2 from width 3 on.
    """
    return 0 if circular or kernel_width == 1 else 2
