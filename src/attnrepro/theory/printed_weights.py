"""Which scores or temperature would give printed softmax weights: a search in float64, without closed forms."""

import math
from collections.abc import Callable, Sequence

# Temperatures that are searched, as powers of e, and the steps of the scan.
COLDEST, HOTTEST, STEPS = -4.0, 4.0, 1600
# No score of an example lies further out.
FARTHEST = 100.0


def softmax(logits: Sequence[float]) -> list[float]:
    """Softmax weights."""
    highest = max(logits)
    parts = [math.exp(logit - highest) for logit in logits]
    total = math.fsum(parts)
    return [part / total for part in parts]


def score_for(logits: Sequence[float], index: int, weight: float) -> float:
    """The logit of key ``index`` that gives it ``weight`` while the others keep theirs.

    Raises:
        ValueError: a weight that no logit between -100 and 100 gives.
    """

    def given(score: float) -> float:
        return softmax([*logits[:index], score, *logits[index + 1 :]])[index]

    return _solve(given, weight, -FARTHEST, FARTHEST)


def temperature_for(logits: Sequence[float], weight: float) -> float:
    """The temperature that all logits are divided by so that the largest gets ``weight``.

    Its weight falls from 1 to an equal share as the temperature grows, so that there is one at most.

    Raises:
        ValueError: a weight that no temperature between e^-4 and e^4 gives.
    """
    top = max(range(len(logits)), key=lambda i: logits[i])
    return math.exp(_solve(lambda log: -_at(logits, log)[top], -weight, COLDEST, HOTTEST))


def best_temperature(
    logits: Sequence[float], nearest: Sequence[Callable[[float], float]]
) -> tuple[float, float, list[float]]:
    """The temperature that comes nearest to all printed weights of a row.

    The largest distance has kinks and several valleys: a fine scan, then thirds of the best interval.

    Args:
        logits: the scores of the row.
        nearest: for each key what is printed, of a range the value closest to the weight that it is given.

    Returns:
        The temperature to six decimals, how far the worst weight still is from its print, and all weights.
    """

    def miss(log: float) -> float:
        return max(abs(weight - to(weight)) for weight, to in zip(_at(logits, log), nearest, strict=True))

    step = (HOTTEST - COLDEST) / STEPS
    centre = min((COLDEST + i * step for i in range(STEPS + 1)), key=miss)
    low, high = centre - step, centre + step
    for _ in range(100):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if miss(a) <= miss(b) else (a, high)
    found = round(math.exp((low + high) / 2), 6)
    return found, miss(math.log(found)), _at(logits, math.log(found))


def _at(logits: Sequence[float], log: float) -> list[float]:
    """Weights at the temperature e^log."""
    return softmax([logit * math.exp(-log) for logit in logits])


def _solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a rising function takes a value, by halving."""
    if not rising(low) <= wanted <= rising(high):
        raise ValueError(f"weight={abs(wanted)} is given by nothing between {low:g} and {high:g}")
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2
