"""What a function of a set can know about its first token: exact accuracies and correlations.

The task of document 000 (section on position): ``length`` independent tokens whose first components are x_0, x_1, ...,
each N(0,1); the label is the sign of x_0. A permutation-invariant model sees the multiset of tokens, in which token 0
is any of them with equal probability.
"""

import math
from fractions import Fraction


def bayes_accuracy(length: int) -> float:
    """Best accuracy of any permutation-invariant model, E[max(k, length - k)] / length with k ~ Bin(length, 1/2).

    Given the multiset the label is positive with probability k / length, k the number of positive components, so that
    the best guess is the sign of the majority. Summed exactly; 163/256 at length 8.

    Raises:
        ValueError: a length below 1.
    """
    _at_least_one(length)
    total = sum(math.comb(length, k) * max(k, length - k) for k in range(length + 1))
    return float(Fraction(total, length * 2**length))


def mean_sign_accuracy(length: int) -> float:
    """P(sign of the mean = sign of x_0) = 1/2 + arcsin(length^-1/2) / pi, two normals with that correlation.

    Raises:
        ValueError: a length below 1.

    Source: Sheppard 1899, Phil. Trans. A 192 (orthant probability); document 000, section on position.
    """
    return 0.5 + math.asin(mean_token_correlation(length)) / math.pi


def mean_token_correlation(length: int) -> float:
    """Correlation of the mean of the x_j with x_0, and of the mean of their signs with the sign of x_0: length^-1/2.

    Raises:
        ValueError: a length below 1.
    """
    _at_least_one(length)
    return 1 / math.sqrt(length)


def mean_label_correlation(length: int) -> float:
    """Correlation of the mean of the x_j with the sign of x_0, sqrt(2 / (pi length)), from E|x_0| = sqrt(2 / pi).

    Raises:
        ValueError: a length below 1.
    """
    return math.sqrt(2 / math.pi) * mean_token_correlation(length)


def _at_least_one(length: int) -> None:
    if length < 1:
        raise ValueError(f"length={length} must be 1 or more")
