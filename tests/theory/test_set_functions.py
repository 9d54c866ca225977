"""What a set tells of its first token, against brute force over sign patterns, closed forms and quadrature."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from attnrepro.theory import set_functions


@pytest.mark.parametrize("length", range(1, 13))
def test_bayes_accuracy_over_all_sign_patterns(length: int) -> None:
    """Every invariant rule is a guess for each number of positive signs; the best guess of each is tried out."""
    right = {k: [0, 0] for k in range(length + 1)}  # how often token 0 is negative, positive
    for signs in itertools.product((0, 1), repeat=length):
        right[sum(signs)][signs[0]] += 1
    best = sum(max(counts) for counts in right.values())
    assert set_functions.bayes_accuracy(length) == best / 2**length


@pytest.mark.parametrize("length", range(1, 65))
def test_bayes_accuracy_is_its_closed_form(length: int) -> None:
    closed = 0.5 + math.comb(length - 1, (length - 1) // 2) / 2**length
    assert set_functions.bayes_accuracy(length) == pytest.approx(closed, rel=1e-15)


def test_values_known_by_hand() -> None:
    assert set_functions.bayes_accuracy(8) == 163 / 256
    assert set_functions.bayes_accuracy(1) == set_functions.mean_sign_accuracy(1) == 1
    assert set_functions.bayes_accuracy(2) == 0.75 and set_functions.mean_sign_accuracy(2) == pytest.approx(0.75)
    assert set_functions.mean_sign_accuracy(4) == pytest.approx(2 / 3)  # arcsin(1/2) is 30 degrees


@pytest.mark.parametrize("length", [2, 3, 8, 17, 32])
def test_sign_of_the_mean_by_quadrature(length: int) -> None:
    """P(mean > 0 | x_0 = x) = Phi(x / sqrt(length - 1)), integrated over positive x."""

    def integrand(x: float) -> float:
        return float(2 * stats.norm.pdf(x) * stats.norm.cdf(x / math.sqrt(length - 1)))

    expected = integrate.quad(integrand, 0, math.inf, epsabs=1e-13)[0]
    assert set_functions.mean_sign_accuracy(length) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("length", [2, 8, 32])
def test_correlations_by_simulation(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((400_000, length))
    mean, label = x.mean(1), np.sign(x[:, 0])
    for exact, a, b in (
        (set_functions.mean_token_correlation(length), mean, x[:, 0]),
        (set_functions.mean_token_correlation(length), np.sign(x).mean(1), label),
        (set_functions.mean_label_correlation(length), mean, label),
    ):
        assert np.corrcoef(a, b)[0, 1] == pytest.approx(exact, abs=4 / math.sqrt(400_000))


def test_the_majority_beats_the_mean_beyond_two_tokens() -> None:
    gaps = [set_functions.bayes_accuracy(n) - set_functions.mean_sign_accuracy(n) for n in range(3, 65)]
    assert min(gaps) > 0
    # Both excesses over 1/2 fall as length^-1/2, in the ratio sqrt(pi / 2).
    ratio = (set_functions.bayes_accuracy(2001) - 0.5) / (set_functions.mean_sign_accuracy(2001) - 0.5)
    assert ratio == pytest.approx(math.sqrt(math.pi / 2), rel=1e-3)


@pytest.mark.parametrize("function", ["bayes_accuracy", "mean_sign_accuracy", "mean_token_correlation"])
def test_an_empty_set_is_refused(function: str) -> None:
    with pytest.raises(ValueError, match="length=0 must be 1 or more"):
        getattr(set_functions, function)(0)
