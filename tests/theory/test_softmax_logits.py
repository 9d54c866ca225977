"""The softmax expectations against printed values, other quadratures, Monte Carlo, identities and limits."""

import math
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import dblquad
from scipy.stats import chi, norm

from attnrepro.theory.softmax_logits import (
    conditional_statistics,
    entropy_sqrt_d_limit,
    mean_top_gap,
    softmax_statistics,
    top_gap_probability,
)

Array = NDArray[np.float64]


def weights(logits: Array) -> Array:
    exp = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exp / exp.sum(axis=-1, keepdims=True))


def moments(p: Array, x: Array) -> dict[str, Array]:
    """The random variables whose expectations are claimed, straight from their definitions."""
    jacobian = p[..., :, None] * (np.eye(p.shape[-1]) - p[..., None, :])
    return {
        "entropy": -np.sum(p * np.log(p + 1e-300), axis=-1),
        "max_weight": p.max(axis=-1),
        "sum_sq": (p**2).sum(axis=-1),
        "jacobian_trace": np.trace(jacobian, axis1=-2, axis2=-1),
        "jacobian_sq": (jacobian**2).sum(axis=(-2, -1)),
        "jacobian_x_sq": (np.einsum("...ij,...j->...i", jacobian, x) ** 2).sum(axis=-1),
    }


@pytest.mark.parametrize(
    ("head_dim", "scaled", "entropy", "max_weight"),
    [
        (4, False, 1.76734, 0.42564),
        (16, False, 0.90108, 0.68552),
        (64, False, 0.41049, 0.84403),
        (256, False, 0.19326, 0.92275),
        (1024, False, 0.09366, 0.96157),
        (4, True, 2.38177, 0.23454),
        (16, True, 2.36366, 0.24342),
        (64, True, 2.35867, 0.24581),
        (256, True, 2.35738, 0.24642),
        (1024, True, 2.35706, 0.24657),
        (math.inf, True, 2.35695, 0.24662),
    ],
)
def test_sixteen_keys(head_dim: float, scaled: bool, entropy: float, max_weight: float) -> None:
    ours = softmax_statistics(16, head_dim, scaled)
    assert ours.entropy == pytest.approx(entropy, abs=5.1e-6)
    assert ours.max_weight == pytest.approx(max_weight, abs=5.1e-6)
    assert (ours.logit_mean, ours.logit_variance) == (0.0, 1.0 if scaled else head_dim)
    assert ours.jacobian_trace == 1 - ours.sum_sq


@pytest.mark.parametrize(("head_dim", "scaled"), [(1, True), (4, False)])
def test_two_keys_against_a_double_integral(head_dim: int, scaled: bool) -> None:
    """With two keys the weights are logistic(+-gap), gap ~ N(0, 2 sigma^2); only the gap's sign is folded."""
    scale = 1 / math.sqrt(head_dim) if scaled else 1.0

    def expectation(of: Callable[[float], float]) -> float:
        def integrand(z: float, q: float) -> float:
            small = 1 / (1 + math.exp(scale * q * math.sqrt(2) * z))
            density = q ** (head_dim - 1) * math.exp(-(q**2 + z**2) / 2)
            return of(small) * density

        return float(dblquad(integrand, 0, 9, 0, 9, epsabs=1e-10, epsrel=1e-10)[0]) * normaliser

    normaliser = 2 / math.sqrt(2 * math.pi) * 2 ** (1 - head_dim / 2) / math.gamma(head_dim / 2)
    ours = softmax_statistics(2, head_dim, scaled)
    assert expectation(lambda p: -p * math.log(p) - (1 - p) * math.log1p(-p)) == pytest.approx(ours.entropy, abs=1e-9)
    assert expectation(lambda p: 1 - p) == pytest.approx(ours.max_weight, abs=1e-9)
    assert expectation(lambda p: p**2 + (1 - p) ** 2) == pytest.approx(ours.sum_sq, abs=1e-9)
    assert expectation(lambda p: 4 * (p * (1 - p)) ** 2) == pytest.approx(ours.jacobian_sq, rel=1e-8)


def test_three_keys_at_fixed_sigma_against_a_product_rule() -> None:
    sigma, (node, weight) = 0.6, np.polynomial.hermite_e.hermegauss(48)
    x = np.stack(np.meshgrid(node, node, node, indexing="ij"), axis=-1).reshape(-1, 3)
    probability = np.einsum("i,j,k->ijk", weight, weight, weight).ravel() / (2 * math.pi) ** 1.5
    brute = {name: probability @ value for name, value in moments(weights(sigma * x), x).items()}
    ours = asdict(conditional_statistics(3, sigma))
    del brute["max_weight"]  # it has a kink, which the next test resolves
    for name, value in brute.items():
        assert ours[name] == pytest.approx(value, rel=1e-8), name


@pytest.mark.parametrize("sigma", [0.6, 5.0])
def test_max_weight_of_three_keys_over_the_region_where_the_first_is_largest(sigma: float) -> None:
    node, weight = np.polynomial.legendre.leggauss(90)
    top, first, second = np.meshgrid(8.5 * node, 6 * (node + 1), 6 * (node + 1), indexing="ij")
    density = norm.pdf(top) * norm.pdf(top - first) * norm.pdf(top - second)
    value = density / (1 + np.exp(-sigma * first) + np.exp(-sigma * second))
    brute = 3 * 8.5 * 36 * np.einsum("ijk,i,j,k", value, weight, weight, weight)
    assert conditional_statistics(3, sigma).max_weight == pytest.approx(brute, abs=1e-8)


@pytest.mark.parametrize(("n_keys", "head_dim", "scaled"), [(16, 4, False), (5, 1, True), (8, 16, True)])
def test_gradients_against_monte_carlo(n_keys: int, head_dim: int, scaled: bool) -> None:
    rng, draws, batch = np.random.default_rng(0), 200_000, 20_000
    scale = 1 / math.sqrt(head_dim) if scaled else 1.0
    values: dict[str, list[Array]] = {}
    for _ in range(draws // batch):
        query = rng.standard_normal((batch, head_dim))
        keys = rng.standard_normal((batch, n_keys, head_dim))
        upstream = rng.standard_normal((batch, n_keys))
        p = weights(scale * np.einsum("bd,bnd->bn", query, keys))
        logit_grad = p * (upstream - (p * upstream).sum(axis=1, keepdims=True))
        query_grad = scale * np.einsum("bn,bnd->bd", logit_grad, keys)
        values.setdefault("jacobian_sq", []).append((logit_grad**2).sum(axis=1))
        values.setdefault("grad_query_sq", []).append((query_grad**2).sum(axis=1))
        values.setdefault("sum_sq", []).append((p**2).sum(axis=1))
        values.setdefault("max_weight", []).append(p.max(axis=1))
        values.setdefault("entropy", []).append(-(p * np.log(p + 1e-300)).sum(axis=1))
    ours = softmax_statistics(n_keys, head_dim, scaled)
    error = {}
    for name, parts in values.items():
        sample = np.concatenate(parts)
        error[name] = sample.std() / math.sqrt(draws)
        assert abs(sample.mean() - asdict(ours)[name]) < 4.5 * error[name], name
    # the check sees the part of the gradient along q: without it the result would be rejected
    assert scale**2 * ours.jacobian_x_sq > 9 * error["grad_query_sq"]


@pytest.mark.slow
@pytest.mark.parametrize("n_keys", [2, 16, 4096])
@pytest.mark.parametrize(
    ("head_dim", "scaled"), [(1, False), (2, True), (3, False), (16, False), (64, True), (100_000, False)]
)
def test_halving_every_step_changes_nothing(n_keys: int, head_dim: int, scaled: bool) -> None:
    coarse = asdict(softmax_statistics(n_keys, head_dim, scaled))
    fine = asdict(softmax_statistics(n_keys, head_dim, scaled, refine=2))
    for name in ("entropy", "max_weight", "sum_sq"):
        assert abs(coarse[name] - fine[name]) < 1e-10, name
    for name in ("jacobian_sq", "grad_query_sq"):
        assert coarse[name] == pytest.approx(fine[name], rel=1e-8), name


@pytest.mark.parametrize("n_keys", [2, 16, 4096])
def test_narrow_and_wide_grid_meet(n_keys: int) -> None:
    below, above = (asdict(conditional_statistics(n_keys, 2 + side * 1e-9)) for side in (-1, 1))
    for name in ("entropy", "max_weight", "sum_sq", "jacobian_sq", "jacobian_x_sq"):
        assert below[name] == pytest.approx(above[name], rel=1e-8), name


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0, 32.0])
def test_stein_ties_entropy_and_trace(sigma: float) -> None:
    """F' = sigma T (Stein) and H = F - sigma F' give dH/dsigma = -sigma d(sigma T)/dsigma, T = E tr J."""
    h = 1e-3 * sigma
    entropy, slope = {}, {}
    for k in (-2, -1, 1, 2):
        at = conditional_statistics(16, sigma + k * h)
        entropy[k], slope[k] = at.entropy, (sigma + k * h) * at.jacobian_trace
    derivative = [(8 * (f[1] - f[-1]) - (f[2] - f[-2])) / (12 * h) for f in (entropy, slope)]
    assert derivative[0] == pytest.approx(-sigma * derivative[1], rel=1e-7, abs=1e-9)


def test_limits() -> None:
    for n_keys in (2, 16, 4096):
        uniform = conditional_statistics(n_keys, 0.0)
        almost = conditional_statistics(n_keys, 1e-6)
        for ours in (uniform, almost):
            assert ours.entropy == pytest.approx(math.log(n_keys), abs=1e-10)
            assert ours.max_weight == pytest.approx(1 / n_keys, rel=1e-5)
            assert ours.sum_sq == pytest.approx(1 / n_keys, abs=1e-10)
            assert ours.jacobian_sq == pytest.approx((n_keys - 1) / n_keys**2, rel=1e-8)
    near, limit = softmax_statistics(16, 100_000, True), softmax_statistics(16, math.inf, True)
    assert near.entropy == pytest.approx(limit.entropy, abs=1e-5)
    assert near.max_weight == pytest.approx(limit.max_weight, abs=1e-5)
    assert near.grad_query_sq == pytest.approx(limit.jacobian_sq, rel=1e-4)
    assert math.isnan(limit.grad_query_sq)
    single = softmax_statistics(1, 64, False)
    assert (single.entropy, single.jacobian_sq, single.grad_query_sq) == (0.0, 0.0, 0.0)
    assert (single.max_weight, single.sum_sq) == pytest.approx((1.0, 1.0), abs=1e-15)


def test_entropy_falls_as_one_over_sqrt_d() -> None:
    assert entropy_sqrt_d_limit(1) == 0.0
    assert entropy_sqrt_d_limit(2) == pytest.approx(math.pi**1.5 / 6, rel=1e-12)
    for n_keys in (2, 16, 1024):
        distance = [
            softmax_statistics(n_keys, d, False).entropy * math.sqrt(d) - entropy_sqrt_d_limit(n_keys)
            for d in (10**4, 10**6)
        ]
        # the next term is of order 1/sqrt(d) or smaller
        assert abs(distance[1]) < 0.11 * abs(distance[0]) < 0.02 * entropy_sqrt_d_limit(n_keys)
    assert softmax_statistics(16, 1024, False).entropy * 32 == pytest.approx(3.00, abs=0.005)


@pytest.mark.parametrize(
    ("n_keys", "probability", "mean"), [(16, 0.119, 3.85), (196, 0.042, 2.66), (1024, 0.025, 2.29)]
)
def test_top_gap_at_sigma_eight(n_keys: int, probability: float, mean: float) -> None:
    assert top_gap_probability(n_keys, math.inf, True, gap=8 / 8) == pytest.approx(probability, abs=5e-4)
    assert 8 * mean_top_gap(n_keys, math.inf, True) == pytest.approx(mean, abs=5e-3)


def test_top_gap_of_two_keys_in_closed_form() -> None:
    """The gap is sqrt(2) sigma |z|; over the chi law with two degrees of freedom it is exponential."""
    assert top_gap_probability(2, math.inf, True, 1.5) == pytest.approx(2 * norm.sf(1.5 / math.sqrt(2)), abs=1e-12)
    for gap in (0.0, 0.1, 1.0, 7.0):
        assert top_gap_probability(2, 2, False, gap) == pytest.approx(math.exp(-gap / math.sqrt(2)), abs=1e-8)
    assert mean_top_gap(2, 2, False) == pytest.approx(math.sqrt(2), rel=1e-12)
    assert mean_top_gap(16, 5, True) == pytest.approx(
        chi.mean(5) / math.sqrt(5) * mean_top_gap(16, math.inf, True), rel=1e-12
    )


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: softmax_statistics(0, 4, True), "n_keys"),
        (lambda: softmax_statistics(2.5, 4, True), "n_keys"),  # type: ignore[arg-type]
        (lambda: softmax_statistics(16, 0, True), "head_dim"),
        (lambda: softmax_statistics(16, 2.5, True), "head_dim"),
        (lambda: softmax_statistics(16, math.nan, True), "head_dim"),
        (lambda: softmax_statistics(16, math.inf, False), "scaled"),
        (lambda: conditional_statistics(16, -1.0), "sigma"),
        (lambda: conditional_statistics(16, math.inf), "sigma"),
        (lambda: conditional_statistics(16, math.nan), "sigma"),
        (lambda: top_gap_probability(1, 4, True, 1.0), "n_keys"),
        (lambda: top_gap_probability(16, 4, True, -1.0), "gap"),
        (lambda: mean_top_gap(1, 4, True), "n_keys"),
        (lambda: entropy_sqrt_d_limit(0), "n_keys"),
    ],
)
def test_bad_input_is_named_in_one_sentence(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word) as raised:
        call()
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)
