r"""How far position codes lie apart, and how loud they are beside the content (document 000, section on position).

Setting. Token i is x_i + p_i: content x_i ~ N(0, I_d), independent between tokens, and a fixed code p_i. Sinusoids
at strength c are the code of Vaswani et al. 2017 times c, of squared row norm c^2 d/2.

Margin. A query that should look at position t only needs a logit u.p_t above all others u.p_j. The best unit u leaves

    m = max_{|u| <= 1} min_{j != t} u.(p_t - p_j) = min_{w >= 0, sum w = 1} |sum_j w_j (p_t - p_j)|,

by the minimax theorem: the distance of the origin from the convex hull of the differences. Along this u the content
has standard deviation 1, so m, not the row norm, is what has to be large.

Shares. In a logit a^T A b, A = W_Q W_K^T with independent W_Q and W_K of iid entries of mean 0, the entries of A have
mean 0, one variance v, and are uncorrelated, E[A_kl A_mn] = v [k = m] [l = n]. So E (a^T A b)^2 = v |a|^2 |b|^2 for
fixed a and b. With E|x|^2 = d and |p|^2 = n^2 the four terms of (x_i + p_i)^T A (x_j + p_j), i != j, have the
variances v d^2, v d n^2, v n^2 d and v n^4. They are uncorrelated, for the covariance of any two has a factor
E[x_i . p_i] or E[x_j . p_j], which is 0. At n^2 = c^2 d/2 they stand as 1 : c^2/2 : c^2/2 : c^4/4, whatever d is.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_AGREE = 1e-9  # between the primal and the dual value of a margin, in units of the longest difference
_ROUNDING = 1e-12  # what is taken for a margin of zero, in the same units


class LogitShares(NamedTuple):
    """Shares of the variance of a logit, dimensionless, of sum 1; the query's part is named first."""

    content_content: float
    content_position: float
    position_content: float
    position_position: float


class QueryLogitShares(NamedTuple):
    """Shares of the variance of a logit with a learned query, dimensionless, of sum 1."""

    content: float
    position: float


def sinusoid(length: int, embed_dim: int, base: float = 10000.0) -> Array:
    """Code [length, embed_dim]: sin(n / base^(2i/d)) in component 2i of row n, its cosine in component 2i + 1.

    With an odd embed_dim the last sine stands without its cosine. Source: Vaswani et al. 2017, section 3.5.
    Raises ValueError for a size that is not a positive integer or a base that is not positive and finite.
    """
    _check(length=length, embed_dim=embed_dim)
    if not 0 < base < math.inf:
        raise ValueError(f"base={base} must be positive and finite")
    log_frequency = -math.log(base) / embed_dim * np.arange(0, embed_dim, 2)
    wave = np.exp(1j * np.outer(np.arange(length), np.exp(log_frequency)))
    return np.ascontiguousarray(np.stack([wave.imag, wave.real], axis=2).reshape(length, -1)[:, :embed_dim])


def margin(code: Array, target: int = 0) -> float:
    """Give max over unit u of min over j != target of u.(p_target - p_j), 0 if no u separates the target.

    The nearest point of the hull is sum_j y_j v_j / sum_j y_j, where v_j are the differences and y >= 0 minimises
    |sum_j y_j v_j|^2 + (sum_j y_j - 1)^2 (Lawson and Hanson 1974, chapter 23): nonnegative least squares, which ends
    after finitely many steps at an exact set of support. The result is certified: the point z is in the hull, so
    m <= |z|, and its direction separates, so m >= min_j z.v_j / |z|.

    Args: code [length, embed_dim], any unit, which is also that of the margin; target is a row. One row alone has
    nothing to be told from: inf. Raises ValueError for a code that is not a finite matrix or a target that is no row
    of it, and RuntimeError unless both bounds agree to 1e-9 of the longest difference.
    """
    from scipy.optimize import nnls

    if code.ndim != 2 or not np.isfinite(code).all():
        raise ValueError(f"code={code.shape} must be a matrix [length, embed_dim] of finite numbers")
    length = len(code)
    if not 0 <= target < length:
        raise ValueError(f"target={target} must be a row of the code, which has {length}")
    if length == 1:
        return math.inf
    difference = code[target] - np.delete(code, target, axis=0).astype(np.float64)
    longest = float(np.linalg.norm(difference, axis=1).max())
    if longest == 0:
        return 0.0
    difference /= longest
    hull = np.vstack([difference.T, np.ones(length - 1)])
    weight, _ = nnls(hull, np.append(np.zeros(code.shape[1]), 1.0))
    return longest * _certified(difference, weight / weight.sum())


def row_norm(embed_dim: int, position: int | None = None, base: float = 10000.0) -> float:
    """Norm of a row of `sinusoid`: sqrt(d/2) for even d, each pair adding sin^2 + cos^2 = 1.

    For odd d the last sine has no partner and the norm depends on the row, sqrt((d-1)/2 + sin^2(n / base^((d-1)/d))).
    Source: Vaswani et al. 2017, section 3.5. Raises ValueError for an embed_dim that is not a positive integer, an
    odd one without a position, or a base that is not positive and finite.
    """
    _check(embed_dim=embed_dim)
    if embed_dim % 2 == 0:
        return math.sqrt(embed_dim / 2)
    if position is None:
        raise ValueError(f"embed_dim={embed_dim} must come with a position when odd, since rows then differ in norm")
    if not 0 < base < math.inf:
        raise ValueError(f"base={base} must be positive and finite")
    last = math.sin(position * math.exp(-math.log(base) * (embed_dim - 1) / embed_dim))
    return math.sqrt((embed_dim - 1) / 2 + last**2)


def rms(embed_dim: int, position: int | None = None, base: float = 10000.0) -> float:
    """Root mean square of the components of a row of `sinusoid`, 1/sqrt(2) for even d; raises as `row_norm`."""
    return row_norm(embed_dim, position, base) / math.sqrt(embed_dim)


def logit_power_shares(strength: float) -> LogitShares:
    """Shares of the variance of (x_i + p_i) W_Q . (x_j + p_j) W_K, i != j, for |p|^2 = strength^2 d/2.

    1 : c^2/2 : c^2/2 : c^4/4, derived above; exact for every d and head_dim. Source: document 000, section on
    position. Raises ValueError unless the strength is finite and >= 0.
    """
    content, position = query_logit_shares(strength)
    return LogitShares(content * content, content * position, position * content, position * position)


def query_logit_shares(strength: float) -> QueryLogitShares:
    """Shares of the variance of q . (x_j + p_j) W_K, q independent of the input: 1 : c^2/2.

    With u = W_K q, of uncorrelated components of one variance v, E(u.x)^2 = v d and E(u.p)^2 = v |p|^2. Source:
    document 000, section on position, whose model has one learned query. Raises as `logit_power_shares`.
    """
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength={strength} must be finite and 0 or more")
    power = strength**2 / 2
    return QueryLogitShares(1 / (1 + power), power / (1 + power))


def layer_norm_ceiling(embed_dim: int) -> float:
    """P(sign x_0 = sign(x_0 - mean x)), x ~ N(0, I_d): what is left of a label sign(x_0) by subtracting the mean.

    Two Gaussians of correlation r agree in sign with probability 1/2 + asin(r)/pi (Sheppard 1899), and x_0 and
    x_0 - mean x have r = sqrt((d-1)/d). At d = 1 nothing is left of x_0: 1/2, a guess. Raises ValueError unless
    embed_dim is a positive integer.
    """
    _check(embed_dim=embed_dim)
    return 0.5 + math.asin(math.sqrt((embed_dim - 1) / embed_dim)) / math.pi


def _certified(difference: Array, weight: Array) -> float:
    """Distance of the hull of the differences from the origin, if these weights are of its nearest point."""
    nearest = weight @ difference
    upper = float(np.linalg.norm(nearest))
    if upper <= _ROUNDING:
        return 0.0
    lower = float((difference @ nearest).min()) / upper
    if not (weight.min() >= 0 and upper - max(lower, 0.0) <= _AGREE):
        raise RuntimeError(f"margin is between {max(lower, 0.0)} and {upper} longest differences, which is no answer")
    return max(lower, 0.0)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if not (size >= 1 and size % 1 == 0):
            raise ValueError(f"{name}={size} must be a positive integer")
