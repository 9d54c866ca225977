r"""Exact expectations for softmax attention over random logits (document 000, section on 1/sqrt(d)).

Setting. A query q and N keys k_j have iid N(0, 1) components of dimension d. Given q, the logits
s_j = c q.k_j (c = 1, or 1/sqrt(d) when scaled) are iid N(0, sigma^2) with sigma = c |q|, and |q| follows the
chi law with d degrees of freedom. So each expectation is one over iid Gaussian logits at fixed sigma
(`conditional_statistics`), then one over sigma (`softmax_statistics`). Scaled, sigma -> 1 as d -> inf.

The exponential race. Give key j an exponential clock of rate e^{s_j}. The first clock to ring is j with
probability p_j = e^{s_j} / Z, Z = sum_j e^{s_j}. With t = e^u the time of that ring, the identity

    1 / Z^k = (1 / Gamma(k)) int t^k e^{-tZ} du

turns products of softmax weights into products over *independent* keys. With X ~ N(0, 1), s = sigma X and

    A_kl(u) = E[X^l e^{kV} exp(-e^V)],  V = u + sigma X      (A_00 = P(one clock is silent until t))

the expectations are integrals over u, one term for each pattern of coincident indices:

    E sum p^2      = N int A_20 A_00^{N-1}
    E sum p^3      = N/2 int A_30 A_00^{N-1}
    E (sum p^2)^2  = 1/6 int [N A_40 A_00^{N-1} + N(N-1) A_20^2 A_00^{N-2}]
    E H            = -gamma - N int (u A_10 + sigma A_11) A_00^{N-1}
    E max p        = N int E[e^V exp(-e^V) C(u, X)^{N-1}],  C(u, x) = E[exp(-e^V); X < x]

(H is the mean of log Z - s_j at the ring, where E log t = -gamma - log Z; max p is the chance that the clock
with the largest logit rings first). J = diag(p) - p p^T is the softmax Jacobian. Stein's lemma, E[X f(X)] =
E f'(X), ties the results together and serves as a check: with F = E log Z it gives F' = sigma E tr J =
sigma (1 - E sum p^2) and E H = F - sigma F'.

Numerics. The integrands are analytic and decay on both sides, so the trapezoidal rule converges
exponentially; they are cut at e^{-36}. Absolute errors stay below 1e-11 for N <= 4096 and sigma <= 300.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv, gammaincinv, ndtr, ndtri, poch, sici

Array = NDArray[np.float64]

_STEP = 0.25  # in log-time: |Gamma(k + i 2 pi / 0.25)| < 1e-12 for k <= 4, the error of the trapezoidal rule
_TAIL = 36.0  # integrands are cut where they fall below e^{-36} = 2e-16
_LOG_TAIL = 3.8  # t^4 e^{-t} < 2e-13 beyond log t = 3.8
_CHI_NODES = 40


@dataclass(frozen=True)
class SoftmaxStatistics:
    """Expectations over keys, query and upstream gradient; entropy in nats, everything else dimensionless.

    logit_mean, logit_variance  of one logit, after the scale if there is one
    entropy, max_weight         E H(p), E max p
    sum_sq                      E sum p^2: the variance of the output if the values have variance 1
    jacobian_trace              E tr J = 1 - E sum p^2
    jacobian_sq                 E ||J||_F^2 = E ||J g||^2 for an upstream gradient g ~ N(0, I) on the weights
    jacobian_x_sq               E ||J x||^2, x = s / sigma: the part of the query gradient along q
    grad_query_sq               E ||dL/dq||^2 (all d components together) for the same g; nan without finite d
    """

    logit_mean: float
    logit_variance: float
    entropy: float
    max_weight: float
    sum_sq: float
    jacobian_trace: float
    jacobian_sq: float
    jacobian_x_sq: float
    grad_query_sq: float


def softmax_statistics(n_keys: int, head_dim: float, scaled: bool, refine: int = 1) -> SoftmaxStatistics:
    """Average `conditional_statistics` over sigma = |q| (or |q|/sqrt(d)), |q| ~ chi_d; inf means sigma = 1.

    The logit gradient is J g and dL/dq = c K^T J g. Seen from q, a key is x_j along q and has d - 1 further
    N(0, 1) components that do not touch the logits, so E ||dL/dq||^2 = c^2 E[(d-1) ||J||_F^2 + ||J x||^2].
    `refine` divides all steps and multiplies the chi nodes, to show the quadrature error. Source: document
    000, section on 1/sqrt(d). Raises ValueError unless n_keys and head_dim are positive integers (head_dim
    may be inf when scaled).
    """
    _check(n_keys, head_dim, scaled)
    sigma, weight = _sigma_rule(head_dim, scaled, _CHI_NODES * refine)
    moments = weight @ np.array([_moments(n_keys, float(s), refine) for s in sigma])
    jacobian_sq, jacobian_x_sq = moments[3:]
    gradient = math.nan
    if math.isfinite(head_dim):
        gradient = (1.0 / head_dim if scaled else 1.0) * ((head_dim - 1) * jacobian_sq + jacobian_x_sq)
    return _statistics(moments, 1.0 if scaled else float(head_dim), float(gradient))


def conditional_statistics(n_keys: int, sigma: float, refine: int = 1) -> SoftmaxStatistics:
    """Give the expectations for iid N(0, sigma^2) logits, sigma fixed; grad_query_sq is nan (it needs d).

    Source: document 000, section on 1/sqrt(d). Raises ValueError unless n_keys is a positive integer and
    sigma a finite number >= 0.
    """
    _check(n_keys)
    if not 0 <= sigma < math.inf:
        raise ValueError(f"sigma must be a finite number >= 0, got {sigma}.")
    return _statistics(_moments(n_keys, float(sigma), refine), float(sigma) ** 2, math.nan)


def top_gap_probability(n_keys: int, head_dim: float, scaled: bool, gap: float) -> float:
    """P(largest - second largest logit > gap) = E_sigma[N int phi(x) Phi(x - gap/sigma)^(N-1) dx].

    head_dim = inf (scaled) gives the law at fixed sigma, with the gap in units of sigma. Source: document
    004, section 1.2. Raises ValueError for bad sizes (see `softmax_statistics`), n_keys < 2 or gap < 0.
    """
    _check(n_keys, head_dim, scaled, at_least=2)
    if not gap >= 0:
        raise ValueError(f"gap must be a number >= 0, got {gap}.")
    # exp(-gap^2 / (4 sigma^2)) is smooth but not analytic at sigma = 0, so small d needs more nodes
    sigma, weight = _sigma_rule(head_dim, scaled, 4 * _CHI_NODES)
    x, phi = _normal_grid()
    return float(weight @ (ndtr(x - gap / sigma[:, None]) ** (n_keys - 1) @ (n_keys * phi)))


def mean_top_gap(n_keys: int, head_dim: float, scaled: bool) -> float:
    """E[largest - second largest logit] = E[sigma] N int Phi^(N-1) (1 - Phi) dx, in logit units.

    E|q| = sqrt(2) Gamma((d+1)/2) / Gamma(d/2). Source: document 004, section 1.2. Raises ValueError for bad
    sizes (see `softmax_statistics`) or n_keys < 2.
    """
    _check(n_keys, head_dim, scaled, at_least=2)
    mean_sigma = 1.0
    if math.isfinite(head_dim):
        mean_sigma = float(poch(head_dim / 2, 0.5)) * math.sqrt(2 / head_dim if scaled else 2)
    x, _ = _normal_grid()
    return mean_sigma * float(np.sum(n_keys * ndtr(x) ** (n_keys - 1) * ndtr(-x)) * (x[1] - x[0]))


def entropy_sqrt_d_limit(n_keys: int) -> float:
    """Limit of E H sqrt(d) without the scale as d -> inf: (pi^2/6) N(N-1) int phi^2 Phi^(N-2) dx.

    At large sigma only the two top logits can share weight. Their gap has density f(0)/sigma near 0, f(0) =
    N(N-1) int phi^2 Phi^(N-2), and the binary entropy of logistic(gap), integrated over gap > 0, is pi^2/6.
    Source: document 000, section on 1/sqrt(d) (the entropy column). Raises ValueError for n_keys < 1.
    """
    _check(n_keys)
    if n_keys == 1:
        return 0.0
    x, phi = _normal_grid()
    density = n_keys * (n_keys - 1) * np.sum(phi**2 * ndtr(x) ** (n_keys - 2)) / (x[1] - x[0])
    return float(math.pi**2 / 6 * density)


def _check(n_keys: int, head_dim: float = 1, scaled: bool = True, at_least: int = 1) -> None:
    """Raise ValueError unless the sizes are positive integers (head_dim may be inf when scaled)."""
    if not (n_keys >= at_least and n_keys % 1 == 0):
        raise ValueError(f"n_keys must be an integer >= {at_least}, got {n_keys}.")
    if head_dim == math.inf and not scaled:
        raise ValueError("head_dim = inf needs scaled=True, since an unscaled logit has variance head_dim.")
    if head_dim != math.inf and not (head_dim >= 1 and head_dim % 1 == 0):
        raise ValueError(f"head_dim must be a positive integer or inf, got {head_dim}.")


def _statistics(moments: Array, variance: float, grad_query_sq: float) -> SoftmaxStatistics:
    """Name the five moments and add the fields that follow from them."""
    entropy, max_weight, sum_sq, jacobian_sq, jacobian_x_sq = map(float, moments)
    trace = 1 - sum_sq
    return SoftmaxStatistics(
        0.0, variance, entropy, max_weight, sum_sq, trace, jacobian_sq, jacobian_x_sq, grad_query_sq
    )


@lru_cache(maxsize=64)
def _sigma_rule(head_dim: float, scaled: bool, n_nodes: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights for sigma (E max p is linear in sigma at 0: rules in |q|^2 fail)."""
    if head_dim == math.inf:
        return np.ones(1), np.ones(1)
    low, high = (math.sqrt(2 * inverse(head_dim / 2, 1e-15)) for inverse in (gammaincinv, gammainccinv))
    x, weight = np.polynomial.legendre.leggauss(n_nodes)
    norm = low + (high - low) * (x + 1) / 2
    log_density = (head_dim - 1) * np.log(norm) - norm**2 / 2
    weight = weight * np.exp(log_density - log_density.max())
    return norm / math.sqrt(head_dim) if scaled else norm, weight / weight.sum()


@lru_cache(maxsize=1)
def _normal_grid() -> tuple[Array, Array]:
    """Trapezoidal nodes x and weights phi(x) dx of the standard normal."""
    x = np.arange(-200, 201) / 20.0
    return x, np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) / 20.0


@lru_cache(maxsize=8)
def _running_integral(n: int) -> Array:
    """Matrix M [n, n] of the sinc rule: step * f @ M is int_{-inf}^{x_k} f, as accurate as the full sum."""
    lag = np.arange(n)[None, :] - np.arange(n)[:, None]
    return np.asarray(0.5 + sici(math.pi * lag)[0] / math.pi)


@lru_cache(maxsize=8192)
def _moments(n_keys: int, sigma: float, refine: int) -> Array:
    """E of [entropy, max p, sum p^2, ||J||_F^2, ||J x||^2] at fixed sigma, by the integrals over u above.

    ||J||_F^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2, and with m = sum p x,
    ||J x||^2 = sum p^2 x^2 - 2 m sum p^2 x + m^2 sum p^2.
    """
    if n_keys == 1:
        return np.array([0.0, 1.0, 1.0, 0.0, 0.0])
    step = _STEP / refine
    highest, lowest = -ndtri(math.exp(-_TAIL) / n_keys), ndtri(math.exp(-_TAIL / n_keys))  # of the largest X
    start = -_TAIL - min(math.log(n_keys) + sigma**2 / 2, sigma * highest)
    # the largest of N logits is spread over sigma / sqrt(2 log N): that is the scale of the integrand in u
    du = step * math.sqrt(1 + sigma**2 / (2 * math.log(n_keys) + 1))
    u = np.arange(start, _LOG_TAIL - sigma * lowest + du, du)
    silent, a, winner, losers = (_narrow if sigma <= 2 else _wide)(u, sigma, step)
    # weights of the index patterns that involve one, two or three different keys
    one = n_keys * du * silent ** (n_keys - 1)
    two = n_keys * (n_keys - 1) * du * silent ** (n_keys - 2)
    three = (n_keys - 2) * two / silent

    entropy = -np.euler_gamma - one @ (u * a[1, 0] + sigma * a[1, 1])
    max_weight = n_keys * du * np.sum(winner * losers ** (n_keys - 1))
    sum_sq = one @ a[2, 0]
    jacobian_sq = sum_sq - one @ a[3, 0] + (one @ a[4, 0] + two @ a[2, 0] ** 2) / 6
    square = one @ a[2, 2]
    cross = one @ a[3, 2] + two @ (a[2, 1] * a[1, 1])  # 2 m sum p^2 x: its 2 cancels 1 / Gamma(3)
    mean_square = one @ a[4, 2] + two @ (2 * a[3, 1] * a[1, 1] + a[2, 0] * a[2, 2])
    mean_square += three @ (a[2, 0] * a[1, 1] ** 2)
    jacobian_x_sq = square - cross + mean_square / 6
    return np.array([entropy, max_weight, sum_sq, jacobian_sq, jacobian_x_sq])


def _narrow(u: Array, sigma: float, step: float) -> tuple[Array, Array, Array, Array]:
    """A_00 [u], A_kl [k, l, u], density of the winner [u, x] and C [u, x] on a grid in x: for sigma <= 2."""
    dx = step / 2  # C^(N-1) is as narrow in x as the largest of N
    x = np.arange(-round(10 / dx), round(10 / dx) + 1) * dx
    time = np.exp(u[:, None] + sigma * x)
    silent = dx / math.sqrt(2 * math.pi) * np.exp(-(x**2) / 2 - time)
    powers = np.stack([np.ones_like(x), x, x**2], axis=1)
    a = np.stack([(time**k * silent @ powers).T for k in range(5)])
    return a[0, 0], a, time * silent, silent @ _running_integral(len(x))


def _wide(u: Array, sigma: float, step: float) -> tuple[Array, Array, Array, Array]:
    """Give the same on a grid in v = u + sigma x, where e^{kv} exp(-e^v) is free of sigma: for sigma > 2.

    exp(-e^v) does not decay on the left, so A_00 and C are integrated by parts to g_1(v) = e^v exp(-e^v):
    A_00 = int g_1(v) Phi((v - u)/sigma) dv, C = exp(-e^v) Phi + int_{-inf}^v g_1 Phi.
    """
    v = np.arange(-_TAIL, _LOG_TAIL, step)
    time = np.exp(v)
    x = (v - u[:, None]) / sigma
    density = step / (sigma * math.sqrt(2 * math.pi)) * np.exp(-(x**2) / 2)
    kernels = np.stack([time**k * np.exp(-time) for k in range(5)], axis=1)
    a = np.stack([(x**power * density @ kernels).T for power in range(3)], axis=1)
    below = ndtr(x)
    parts = step * kernels[:, 1] * below
    losers = below * kernels[:, 0] + parts @ _running_integral(len(v))
    return parts.sum(axis=1), a, density * kernels[:, 1], losers
