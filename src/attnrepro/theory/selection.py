"""Selecting one of n values by scores, soft and hard: weights, derivatives, and how focus depends on gaps.

Scores s_k, values v_k, temperature T. Soft selection mixes o = sum_k a_k v_k with a = softmax(s / T); hard selection
takes the value of the highest score. Document 003, section 6.
"""

import math
from collections.abc import Sequence


def weights(scores: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Softmax of ``scores / temperature``; ``ValueError`` for no scores or a temperature that is not positive."""
    if not scores or not temperature > 0:
        raise ValueError(f"temperature={temperature} must be positive and scores={list(scores)} not empty")
    top = max(scores)
    terms = [math.exp((score - top) / temperature) for score in scores]
    total = math.fsum(terms)
    return [term / total for term in terms]


def mixture(scores: Sequence[float], values: Sequence[float], temperature: float = 1.0) -> float:
    """Soft selection sum_k a_k v_k; ``ValueError`` unless there are as many values as scores."""
    return math.fsum(a * v for a, v in zip(weights(scores, temperature), values, strict=True))


def soft_gradient(scores: Sequence[float], values: Sequence[float], temperature: float = 1.0) -> list[float]:
    """d o / d s_k = a_k (v_k - o) / T for each k, from the Jacobian diag(a) - a a^T of softmax."""
    mix = mixture(scores, values, temperature)
    return [a * (v - mix) / temperature for a, v in zip(weights(scores, temperature), values, strict=True)]


def chosen(scores: Sequence[float]) -> int:
    """Index of the highest score, the first of equal ones."""
    return max(range(len(scores)), key=scores.__getitem__)


def soft_loss_gradient(
    scores: Sequence[float], values: Sequence[float], target: float, temperature: float = 1.0
) -> list[float]:
    """Derivative of (o - target)^2 / 2 by each score, for the soft mixture."""
    error = mixture(scores, values, temperature) - target
    return [error * slope for slope in soft_gradient(scores, values, temperature)]


def expected_loss_gradient(
    scores: Sequence[float], values: Sequence[float], target: float, temperature: float = 1.0
) -> list[float]:
    """Derivative of E_{j ~ a} (v_j - target)^2 / 2 by each score: a_k (L_k - E L) / T, what REINFORCE estimates.

    Source: Williams 1992, Simple statistical gradient-following algorithms, section 3.
    """
    return soft_gradient(scores, [(v - target) ** 2 / 2 for v in values], temperature)


def straight_through_gradient(
    scores: Sequence[float], values: Sequence[float], target: float, temperature: float = 1.0
) -> list[float]:
    """What the straight-through estimator takes for the derivative of (v_top - target)^2 / 2.

    The error is that of the hard choice, the derivative of the choice that of softmax (Bengio, Leonard and Courville
    2013, Estimating or propagating gradients through stochastic neurons).
    """
    error = values[chosen(scores)] - target
    return [error * slope for slope in soft_gradient(scores, values, temperature)]


def leader_weight(n_keys: int, gap: float) -> float:
    """Weight of a score that leads n - 1 equal ones by ``gap``: 1 / (1 + (n - 1) e^-gap)."""
    return 1 / (1 + (n_keys - 1) * math.exp(-gap))


def gap_for_half(n_keys: int) -> float:
    """Lead that gives one of ``n_keys`` half of the weight: ln(n - 1); ``ValueError`` for fewer than 2 keys."""
    if n_keys < 2:
        raise ValueError(f"n_keys={n_keys} must be 2 or more")
    return math.log(n_keys - 1)
