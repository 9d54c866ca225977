"""Intervals and tests that the verdicts rest on: small pure functions of numbers, without resampling.

Every function refuses values that are not finite: a failed seed is counted by the caller, never averaged.
Where the data cannot carry an interval or a test (one value, no degrees of freedom) the answer is nan, not
a guess. ``scipy.special`` instead of ``scipy.stats``, because the latter costs half a second at every
start.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

# Distance of a stuck seed from the median in robust standard deviations. Normal samples are flagged in about
# 1 % of cases or fewer; below 10 values the median absolute deviation itself is unsteady.
_STUCK, _STUCK_SMALL, _SMALL, _GAP_FROM = 8.0, 20.0, 10, 20


class Interval(NamedTuple):
    """An estimate with the ends of its confidence interval (nan where there is none)."""

    value: float
    low: float
    high: float


def _finite(values: ArrayLike, least: int = 1) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size < least:
        raise ValueError(f"a vector of at least {least} value(s) is needed, not an array of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("values must be finite: failed runs are counted, not averaged")
    return array


def _level(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    return level


def _mean_sd(array: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and sample sd; equal values have sd 0 exactly, which the rounding of their mean would hide."""
    if np.ptp(array) == 0:
        return float(array[0]), 0.0 if array.size > 1 else math.nan
    return float(array.mean()), float(array.std(ddof=1))


def _ratio(distance: float, spread: float) -> float:
    """``distance / spread`` where a spread of zero tolerates no distance at all."""
    if spread > 0:
        return distance / spread
    return 0.0 if distance == 0 else math.copysign(math.inf, distance)


def monte_carlo_interval(value: float, sd: float, n: int, level: float = 0.95) -> Interval:
    """Interval of a mean of ``n`` independent draws (or clusters) with standard deviation ``sd``.

    Student's t with n - 1 degrees of freedom (Student 1908, Biometrika 6), which is the normal interval at
    the n of a Monte Carlo run and stays honest for a handful of clusters. n = 1: no interval.

    Raises:
        ValueError: n < 1, or a value that is not finite, or sd < 0.
    """
    if n < 1:
        raise ValueError(f"an estimate stands for at least one draw, not {n}")
    _finite([value])
    if n == 1:
        return Interval(value, math.nan, math.nan)
    if sd < 0 or not math.isfinite(sd):
        raise ValueError(f"a standard deviation is finite and not negative, unlike {sd}")
    half = float(special.stdtrit(n - 1, (1 + _level(level)) / 2)) * sd / math.sqrt(n)
    return Interval(value, value - half, value + half)


def pool(parts: Sequence[tuple[float, float, int]]) -> tuple[float, float, int]:
    """Join independent Monte Carlo results ``(value, sd, n)``: value weighted by n, sd of all draws.

    The squares within and between the parts add up to those of the joined draws, so pooling the halves of a
    sample gives the sample's own mean and sd. Give the result to `monte_carlo_interval`.
    """
    values, sds = _finite([v for v, _, _ in parts]), _finite([s for _, s, _ in parts])
    counts = _finite([n for _, _, n in parts])
    if (counts < 1).any() or (sds < 0).any():
        raise ValueError("every part needs n >= 1 and sd >= 0")
    total = int(counts.sum())
    value = float(counts @ values / total)
    squares = float((counts - 1) @ sds**2 + counts @ (values - value) ** 2)
    return value, math.sqrt(squares / (total - 1)) if total > 1 else 0.0, total


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Mean of independent values (one a seed) with Student's t interval; n = 1: no interval."""
    array = _finite(values)
    mean, sd = _mean_sd(array)
    return monte_carlo_interval(mean, sd, array.size, level)


def paired_difference(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Interval:
    """Mean of ``a - b`` over seeds that share data and start, with its t interval; shapes ``[seeds]``."""
    first, second = _finite(a), _finite(b)
    if first.shape != second.shape:
        raise ValueError(f"pairs need equally many values, not {first.size} and {second.size}")
    return mean_interval(first - second, level)


def share_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Share ``successes / n`` with the exact binomial interval (Clopper and Pearson 1934, Biometrika 26)."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} of {n} is no share")
    tail = (1 - _level(level)) / 2
    low = float(special.betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(special.betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
    return Interval(successes / n, low, high)


def median_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Median with the interval between two order statistics, free of any shape (Conover 1999, section 3.2).

    The k-th value from either end is taken for the largest k that keeps the coverage at ``level`` or above;
    fewer than 6 values have no interval at 95 %.
    """
    array = np.sort(_finite(values))
    outside = special.bdtr(np.arange(array.size), array.size, 0.5)
    k = int((outside <= (1 - _level(level)) / 2).sum())
    median = float(np.median(array))
    if k == 0:
        return Interval(median, math.nan, math.nan)
    return Interval(median, float(array[k - 1]), float(array[-k]))


def loglog_slope(x: ArrayLike, y: ArrayLike, level: float = 0.95) -> Interval:
    """Least-squares slope of log y on log x (the exponent of a power law) with its t interval.

    Two points have a slope but no interval.

    Raises:
        ValueError: values that are not positive, or fewer than two different x.
    """
    xs, ys = _finite(x, 2), _finite(y, 2)
    if xs.shape != ys.shape or (xs <= 0).any() or (ys <= 0).any() or np.ptp(xs) == 0:
        raise ValueError("a log-log slope needs equally many positive x and y and at least two different x")
    u, v = np.log(xs), np.log(ys)
    u = u - u.mean()
    slope = float(u @ v / (u @ u))
    dof = xs.size - 2
    if dof == 0:
        return Interval(slope, math.nan, math.nan)
    residual = v - v.mean() - slope * u
    error = math.sqrt(float(residual @ residual) / dof / float(u @ u))
    half = float(special.stdtrit(dof, (1 + _level(level)) / 2)) * error
    return Interval(slope, slope - half, slope + half)


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Adjusted p-values of Holm's step-down procedure (Holm 1979, Scand. J. Statist. 6), in the order given.

    Those at most alpha are rejected with family-wise error alpha, whatever the dependence. An empty table
    stays empty.
    """
    array = _probabilities(p)
    order = np.argsort(array, kind="stable")
    factors = np.arange(array.size, 0, -1)
    adjusted = np.empty_like(array)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * array[order]))
    return adjusted


def _probabilities(p: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(p, dtype=np.float64)
    if array.ndim != 1 or not ((array >= 0) & (array <= 1)).all():
        raise ValueError("p-values are a vector of numbers between 0 and 1")
    return array


def holm_families(p: ArrayLike, families: Sequence[Hashable]) -> list[float]:
    """Holm's adjusted p-values where numbers that depend on each other (one family) count as one.

    Families are ordered by their smallest p; each member keeps its own p times the families that are left.
    With all families different this is `holm`.
    """
    array = _probabilities(p)
    if array.size != len(families):
        raise ValueError("every p belongs to a family")
    smallest: dict[Hashable, float] = {}
    for value, family in zip(array.tolist(), families, strict=True):
        smallest[family] = min(value, smallest.get(family, 1.0))
    floor, factor, before = {}, {}, 0.0
    for rank, family in enumerate(sorted(smallest, key=lambda f: smallest[f])):
        floor[family], factor[family] = before, len(smallest) - rank
        before = max(before, factor[family] * smallest[family])
    return [
        min(1.0, max(floor[family], factor[family] * value))
        for value, family in zip(array.tolist(), families, strict=True)
    ]


def rank_p(published: float, resolution: float, samples: ArrayLike) -> float:
    """Two-sided rank p of a printed number as one more draw among ``samples``.

    2 (1 + min(#{x <= published + r}, #{x >= published - r})) / (S + 1), at most 1. Ties count for the printed
    number; the comparison allows for the rounding of the sums, so 0.5805 is within 0.580 +- 0.0005.
    """
    array = _finite(samples)
    _finite([published, resolution])
    slack = 8 * float(np.finfo(np.float64).eps) * max(abs(published), resolution)
    below = int((array <= published + resolution + slack).sum())
    above = int((array >= published - resolution - slack).sum())
    return min(1.0, 2 * (1 + min(below, above)) / (array.size + 1))


def t_prediction_p(published: float, resolution: float, samples: ArrayLike) -> float:
    """Two-sided p of a printed number as one more normal draw: t with S - 1 degrees of freedom.

    The spread is sd² (1 + 1/S) plus r²/3, the variance of rounding to the printed digit. S = 1: nan. Not for
    bistable seeds (`is_bistable`). Source: Hahn and Meeker 1991, section 4.2 (prediction interval).
    """
    array = _finite(samples)
    if array.size == 1:
        return math.nan
    mean, sd = _mean_sd(array)
    spread = math.sqrt(sd**2 * (1 + 1 / array.size) + resolution**2 / 3)
    return t_p(_ratio(published - mean, spread), array.size - 1)


def z_score(difference: float, se: float, resolution: float = 0.0) -> float:
    """``difference / sqrt(se² + resolution²/3)``: rounding to ± resolution has variance resolution²/3.

    Infinite when a difference meets no uncertainty at all.
    """
    _finite([difference, se, resolution])
    if se < 0 or resolution < 0:
        raise ValueError("a standard error and a resolution are not negative")
    return _ratio(difference, math.sqrt(se**2 + resolution**2 / 3))


def z_p(z: float) -> float:
    """Two-sided p of a standard normal z."""
    if math.isnan(z):
        raise ValueError("z is not a number")
    return float(2 * special.ndtr(-abs(z)))


def t_p(t: float, dof: float) -> float:
    """Two-sided p of Student's t with ``dof`` degrees of freedom, which need not be whole."""
    if math.isnan(t) or not dof > 0:
        raise ValueError("t is a number and has degrees of freedom")
    return float(min(1.0, 2 * special.stdtr(dof, -abs(t))))


def bonferroni_z(count: int, alpha: float = 0.001) -> float:
    """Bound that the largest of ``count`` two-sided |z| exceeds with probability at most ``alpha``."""
    if count < 1:
        raise ValueError("a bound needs at least one comparison")
    return float(-special.ndtri(_level(alpha) / (2 * count)))


def hotelling_p(point: ArrayLike, mean: ArrayLike, cov: ArrayLike, n_samples: int) -> float:
    """p that one more draw of a normal vector lies as far out as ``point``.

    ``n_samples`` draws gave mean and cov, shapes ``[k] [k] [k, k]``. Hotelling's T² for prediction, in which
    (x - m)' C⁻¹ (x - m) n / (n + 1) is F-distributed up to a factor (Hotelling 1931, Ann. Math. Statist. 2).
    nan when n_samples <= k or the covariance is singular: there is no such test then.
    """
    x, m = _finite(point), _finite(mean)
    c = np.asarray(cov, dtype=np.float64)
    k = x.size
    if m.shape != (k,) or c.shape != (k, k) or not np.isfinite(c).all():
        raise ValueError("point and mean are vectors of length k, the covariance is a finite k x k matrix")
    if n_samples <= k or not (np.diag(c) > 0).all():
        return math.nan
    # In units of each spread, so that the rank does not hang on the units.
    spread = np.sqrt(np.diag(c))
    correlation, z = c / np.outer(spread, spread), (x - m) / spread
    if np.linalg.matrix_rank(correlation, hermitian=True) < k:
        return math.nan
    t2 = float(z @ np.linalg.solve(correlation, z)) * n_samples / (n_samples + 1)
    f = t2 * (n_samples - k) / (k * (n_samples - 1))
    return float(special.fdtrc(k, n_samples - k, f))


def joint_rank_p(point: ArrayLike, samples: ArrayLike) -> float:
    """p that a vector is one more of the ``samples`` ``[S, k]``, by the rank of its distance from them.

    Mahalanobis distances with mean and covariance of all S + 1 vectors, the point among them, so that under the
    hypothesis no vector is special and p = #{distances at least the point's} / (S + 1) is exact whatever their
    distribution (conformal prediction, Vovk, Gammerman and Shafer 2005, section 2.2). Seeds that are stuck widen the
    covariance and cost power, not validity. nan for S <= k or a singular covariance.
    """
    x, array = _finite(point), np.asarray(samples, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != x.size or not np.isfinite(array).all():
        raise ValueError("samples are finite vectors as long as the point, [S, k]")
    joined = np.vstack([array, x])
    if len(array) <= x.size or not (np.ptp(array, axis=0) > 0).all():
        return math.nan
    centred = (joined - joined.mean(axis=0)) / joined.std(axis=0)
    covariance = centred.T @ centred / len(joined)
    if np.linalg.matrix_rank(covariance, hermitian=True) < x.size:
        return math.nan
    distance = np.einsum("ik,ik->i", centred, np.linalg.solve(covariance, centred.T).T)
    return float((distance >= distance[-1] * (1 - 1e-12)).sum() / len(joined))


def welch_p(mean_a: float, sd_a: float, n_a: int, mean_b: float, sd_b: float, n_b: int) -> float:
    """Two-sided p that two means differ, spreads unequal (Welch 1947, Biometrika 34).

    nan if either side is a single draw; two sides without spread are equal (1) or not (0).
    """
    _finite([mean_a, mean_b])
    if min(n_a, n_b) < 1:
        raise ValueError("either side stands for at least one draw")
    if min(n_a, n_b) == 1:
        return math.nan
    if min(_finite([sd_a, sd_b])) < 0:
        raise ValueError("a standard deviation is not negative")
    a, b = sd_a**2 / n_a, sd_b**2 / n_b
    if a + b == 0:
        return 1.0 if mean_a == mean_b else 0.0
    dof = (a + b) ** 2 / (a**2 / (n_a - 1) + b**2 / (n_b - 1))
    return t_p((mean_a - mean_b) / math.sqrt(a + b), dof)


def sign_test_p(differences: ArrayLike) -> float:
    """Two-sided sign test; zeros carry no sign and are left out (Conover 1999, section 3.4). All zero: 1."""
    array = _finite(differences)
    positive, negative = int((array > 0).sum()), int((array < 0).sum())
    n = positive + negative
    return min(1.0, 2 * float(special.bdtr(min(positive, negative), n, 0.5))) if n else 1.0


def satterthwaite_sum_of_squares_p(sum_sq: float, count: int, frobenius_sq: float) -> float:
    """p that ``count`` squared standard normals with correlation matrix C have a sum as large as ``sum_sq``.

    The sum has mean ``count`` and variance 2 ||C||²; a scaled chi-square with the same two moments
    (Satterthwaite 1946, Biometrics 2) has scale ||C||² / count and count² / ||C||² degrees of freedom.
    ``frobenius_sq`` = ||C||² lies between count (independent) and count² (all the same).
    """
    if count < 1 or sum_sq < 0 or math.isnan(sum_sq):
        raise ValueError("a sum of squares has at least one term and is not negative")
    if not count * (1 - 1e-9) <= frobenius_sq <= count**2 * (1 + 1e-9):
        raise ValueError(f"||C||² of {count} correlations lies in [{count}, {count**2}], not at {frobenius_sq}")
    return float(special.chdtrc(count**2 / frobenius_sq, sum_sq * count / frobenius_sq))


def is_bistable(values: Iterable[float]) -> bool:
    """Whether some seeds are stuck: the values form two groups, so that a normal interval does not hold.

    True if a value lies 8 robust standard deviations (1.4826 MAD) from the median, 20 for fewer than 10
    values, or, from 20 values on, if one gap between neighbours is more than half of the whole range (two
    equal groups).
    """
    array = np.sort(_finite(list(values)))
    spread = float(np.ptp(array))
    if spread == 0:
        return False
    distance = np.abs(array - np.median(array))
    robust = 1.4826 * float(np.median(distance))
    far = float(distance.max()) > (_STUCK_SMALL if array.size < _SMALL else _STUCK) * robust
    gap = array.size >= _GAP_FROM and float(np.diff(array).max()) > spread / 2
    return array.size > 2 and (far or gap)
