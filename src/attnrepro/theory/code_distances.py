r"""How near position codes come, and what can be answered without knowing the order.

Sinusoids. |p_s - p_t|^2 = sum_i 4 sin^2(w_i m / 2) depends on the gap m = |s - t| only, so that the nearest two of N
positions are found among the N - 1 gaps. With one pair (embed_dim 2, frequency 1) the distance is 2 |sin(m / 2)|, and m
has to be as near to whole turns as can be: the best m below N is a denominator of a convergent of 1 / (2 pi) (best
approximation of the second kind; Khinchin 1964, Continued Fractions, theorems 16 and 17).

Gaussian codes of independent components of variance 1/2, the power of the sinusoid: |p_s - p_t|^2 has mean embed_dim.

Copying without order. Whatever sees the tokens as a set, and its own, knows of the one three places back that it is one
of the other N - 1, each as likely as the next. The best answer is the most frequent symbol among those:
E max_c n_c / (N - 1), with n multinomial.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnrepro.theory.attention_limits import frequencies

Array = NDArray[np.float64]

# Distances that differ by less than this, relative, are a tie: the smallest gap counts.
_TIE = 1e-12


def nearest(length: int, embed_dim: int) -> tuple[int, float]:
    """Gap and distance of the two nearest codes of the sinusoid among ``length`` positions.

    In closed form where embed_dim is 2, else over all gaps. Source: document 002, section on sinusoidal codes. Raises
    ValueError for a length below 2 or an embed_dim that is not even and positive.
    """
    omega = frequencies(embed_dim)
    if length < 2:
        raise ValueError(f"length={length} must be 2 or more")
    if embed_dim == 2:
        gap = nearest_turn(length)
        return gap, 2 * abs(math.sin(gap / 2))
    half = np.multiply.outer(np.arange(1, length), omega) / 2
    distances = 2 * np.sqrt((np.sin(half) ** 2).sum(axis=1))
    gap = int(np.flatnonzero(distances <= distances.min() * (1 + _TIE))[0]) + 1
    return gap, float(distances[gap - 1])


def nearest_turn(length: int) -> int:
    """The gap below ``length`` that is nearest to whole turns of one radian a step: 6, 19, 25, 44, 333, 710, ...

    Raises ValueError for a length below 2, or above a million, where float64's 1 / (2 pi) ends to decide.
    """
    if not 2 <= length <= 10**6:
        raise ValueError(f"length={length} must be between 2 and 1000000")
    before, now, rest = 0, 1, Fraction(1 / (2 * math.pi))
    while True:
        rest = 1 / (rest - math.floor(rest))
        before, now = now, math.floor(rest) * now + before
        if now >= length:
            return before


def gaussian_mean_square(embed_dim: int) -> float:
    """Mean of |p_s - p_t|^2 for independent components N(0, 1/2): embed_dim."""
    return float(embed_dim)


def blind_copy_ceiling(length: int, symbols: int) -> float:
    """The best share of right answers about another token of a text that is seen without its order.

    The counts of a text are Poisson counts given their sum (Levin 1981, Annals of Statistics 9), which makes
    P(max <= m) a coefficient of a product of truncated series. Raises ValueError for a length below 2 or no symbol.
    """
    if length < 2 or symbols < 1:
        raise ValueError(f"length={length} must be 2 or more and symbols={symbols} 1 or more")
    n = length - 1
    single, whole = _poisson(n, n / symbols), float(_poisson(n, n)[n])
    at_most = []
    for most in range(n):
        cut = np.where(np.arange(n + 1) <= most, single, 0.0)
        product = np.eye(1, n + 1)[0]
        for _ in range(symbols):
            product = np.convolve(product, cut)[: n + 1]
        at_most.append(product[n] / whole)
    # E max = sum over m >= 0 of P(max > m).
    return float(n - np.sum(at_most)) / n


def _poisson(largest: int, mean: float) -> Array:
    """Probabilities of 0, ..., ``largest`` at this mean."""
    count = np.arange(largest + 1)
    log_factorial = np.concatenate([[0.0], np.log(np.arange(1, largest + 1)).cumsum()])
    return np.asarray(np.exp(count * math.log(mean) - mean - log_factorial))
