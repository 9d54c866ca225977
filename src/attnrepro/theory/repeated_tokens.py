"""What is known of heads on repeated random tokens before anybody trains: scores of attention without preferences."""

from collections.abc import Sequence

ROLES = ("previous", "induction", "same")


def targets(role: str, length: int, period: int) -> list[tuple[int, int]]:
    """(query, key) positions that a role is about, among ``length`` tokens that repeat after ``period``.

    ``previous``: the token before. ``same``: where the query's own token stood a period ago. ``induction``: the token
    behind that, which is the one to come next (Olsson et al. 2022, Elhage et al. 2021).

    Raises:
        ValueError: an unknown role, or a period that is not between 1 and ``length`` - 1.
    """
    if role not in ROLES:
        raise ValueError(f"role={role} must be one of {', '.join(ROLES)}")
    if not 1 <= period < length:
        raise ValueError(f"period={period} must be 1 or more and below length={length}")
    if role == "previous":
        return [(t, t - 1) for t in range(1, length)]
    return [(t, t - period + (role == "induction")) for t in range(period, length)]


def uniform_score(role: str, length: int, periods: Sequence[int]) -> float:
    """Score of a causal head with equal weights: the mean of 1 / (t + 1) over its queries t, then over the periods."""
    means = []
    for period in periods:
        pairs = targets(role, length, period)
        means.append(sum(1 / (query + 1) for query, _ in pairs) / len(pairs))
    return sum(means) / len(means)
