"""Margins against enumeration and closed forms, shares against simulation, norms and ceilings against sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from attnrepro.theory.position_codes import (
    layer_norm_ceiling,
    logit_power_shares,
    margin,
    query_logit_shares,
    rms,
    row_norm,
    sinusoid,
)

Array = NDArray[np.float64]


def by_hand(length: int, embed_dim: int, base: float = 10000.0) -> Array:
    """The two formulas of the paper, number by number."""
    code = np.zeros((length, embed_dim))
    for n, k in itertools.product(range(length), range(embed_dim)):
        code[n, k] = (math.cos if k % 2 else math.sin)(n / math.pow(base, 2 * (k // 2) / embed_dim))
    return code


def random_code(seed: int, length: int, embed_dim: int) -> Array:
    return np.random.default_rng(seed).normal(size=(length, embed_dim))


# --- sinusoids ---


@pytest.mark.parametrize("base", [10000.0, 50.0, 0.5])
@pytest.mark.parametrize(("length", "embed_dim"), [(1, 1), (3, 1), (1, 7), (6, 7), (8, 16), (5, 2)])
def test_sinusoid_is_that_of_the_paper(length: int, embed_dim: int, base: float) -> None:
    found = sinusoid(length, embed_dim, base)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, by_hand(length, embed_dim, base), rtol=0, atol=1e-12)


@pytest.mark.parametrize("embed_dim", [1, 2, 3, 7, 8, 16])
@pytest.mark.parametrize("base", [10000.0, 20.0])
def test_norms_are_those_of_the_rows(embed_dim: int, base: float) -> None:
    for position, row in enumerate(by_hand(6, embed_dim, base)):
        norm = math.sqrt(math.fsum(x * x for x in row))
        assert row_norm(embed_dim, position, base) == pytest.approx(norm, abs=1e-14)
        assert rms(embed_dim, position, base) == pytest.approx(norm / math.sqrt(embed_dim), abs=1e-14)
        if embed_dim % 2 == 0:
            assert row_norm(embed_dim) == pytest.approx(norm, abs=1e-14)
            assert rms(embed_dim) == pytest.approx(math.sqrt(0.5), abs=1e-15)


def test_norms_have_the_base_of_the_paper() -> None:
    norm = math.sqrt(3 + math.sin(5 / 10000 ** (6 / 7)) ** 2)
    assert row_norm(7, 5) == pytest.approx(norm, abs=1e-14)
    assert rms(7, 5) == pytest.approx(norm / math.sqrt(7), abs=1e-14)


# --- margin ---


def enumerated(code: Array, target: int = 0) -> float:
    """Distance of the origin from the hull: the nearest point lies in the affine hull of some independent subset."""
    difference = code[target] - np.delete(code, target, axis=0)
    nearest = math.inf
    for size in range(1, min(len(difference), code.shape[1] + 1) + 1):
        for subset in itertools.combinations(difference, size):
            v = np.array(subset)
            free, *_ = np.linalg.lstsq((v[1:] - v[0]).T, -v[0], rcond=None)
            weight = np.array([1 - free.sum(), *free])
            if weight.min() >= -1e-12:
                nearest = min(nearest, float(np.linalg.norm(weight @ v)))
    return nearest


@pytest.mark.parametrize(
    ("length", "embed_dim", "value"),
    [
        (8, 16, 0.886),
        (4, 16, 1.015),
        (16, 16, 0.846),
        (32, 16, 0.769),
        (64, 16, 0.699),
        (8, 8, 0.474),
        (8, 32, 1.138),
        (8, 64, 1.446),
    ],
)
def test_margins_of_sinusoids(length: int, embed_dim: int, value: float) -> None:
    """Three decimals, as found before by another program."""
    assert margin(by_hand(length, embed_dim)) == pytest.approx(value, abs=5.1e-4)
    assert margin(3 * by_hand(length, embed_dim)) == pytest.approx(3 * value, abs=1.6e-3)


@pytest.mark.parametrize(("length", "embed_dim"), [(4, 16), (8, 16), (8, 8), (8, 7), (7, 3), (8, 2), (5, 1)])
def test_margins_of_sinusoids_by_enumeration(length: int, embed_dim: int) -> None:
    code = by_hand(length, embed_dim)
    for target in range(length):
        assert margin(code, target) == pytest.approx(enumerated(code, target), abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=2, max_size=6), st.data())
def test_margins_by_enumeration(rows: list[list[int]], data: st.DataObject) -> None:
    """Small whole numbers: equal rows, rows on a line and targets inside the hull come often."""
    code = np.array(rows, dtype=np.float64)[:, : data.draw(st.integers(1, 3))]
    target = data.draw(st.integers(0, len(rows) - 1))
    assert margin(code, target) == pytest.approx(enumerated(code, target), abs=1e-8)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 6))
def test_no_direction_and_no_mixture_beats_the_margin(seed: int, length: int, embed_dim: int) -> None:
    code, rng = random_code(seed, length, embed_dim), np.random.default_rng(seed + 1)
    difference = code[0] - code[1:]
    found = margin(code)
    direction = rng.normal(size=(500, embed_dim))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    mixture = rng.dirichlet(np.full(length - 1, 0.3), size=500)
    assert (direction @ difference.T).min(axis=1).max() <= found + 1e-9
    assert np.linalg.norm(mixture @ difference, axis=1).min() >= found - 1e-9


def test_a_scan_of_all_directions_in_the_plane_finds_the_margin() -> None:
    angle = np.linspace(0, 2 * math.pi, 200_001)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for seed in range(8):
        code = random_code(seed, 4, 2)
        best = ((code[0] - code[1:]) @ circle).min(axis=0).max()
        assert margin(code) == pytest.approx(max(best, 0.0), abs=1e-4)


@pytest.mark.parametrize("length", [2, 3, 8, 40])
def test_margin_of_orthogonal_rows(length: int) -> None:
    """The nearest mixture is the mean of the others: |p_0 - mean|^2 = r^2 + r^2 / (L - 1)."""
    q = np.linalg.qr(random_code(length, 48, length))[0].T
    assert margin(2.5 * q) == pytest.approx(2.5 * math.sqrt(length / (length - 1)), abs=1e-12)


@pytest.mark.parametrize("corners", [3, 4, 7, 100])
def test_margin_of_the_corner_of_a_polygon(corners: int) -> None:
    """Its distance from the chord between its neighbours."""
    angle = 2 * math.pi * np.arange(corners) / corners
    code = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert margin(code, corners // 2) == pytest.approx(1 - math.cos(2 * math.pi / corners), abs=1e-10)
    assert margin(np.vstack([code, [0.1, -0.2]]), corners) == 0.0


def test_margins_on_the_line_and_of_few_rows() -> None:
    line = np.array([[-2.0], [1.0], [5.0]])
    assert [margin(line, target) for target in range(3)] == pytest.approx([3.0, 0.0, 4.0])
    assert margin(np.array([[3.0, 4.0]])) == math.inf
    assert margin(np.array([[3.0, 4.0], [0.0, 0.0]])) == pytest.approx(5.0)
    assert margin(np.array([[3.0, 4.0], [3.0, 4.0]])) == 0.0
    assert margin(np.array([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])) == 0.0
    assert margin(np.array([[3, 4], [0, 0]], dtype=np.uint8), 1) == pytest.approx(5.0)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(1, 8), st.sampled_from([1e-8, 0.3, 1e8]))
def test_margin_does_not_depend_on_frame_origin_or_order(seed: int, length: int, embed_dim: int, unit: float) -> None:
    code, rng = random_code(seed, length, embed_dim), np.random.default_rng(seed + 1)
    found = margin(code)
    turn = np.linalg.qr(rng.normal(size=(embed_dim, embed_dim)))[0]
    order = [0, *(1 + rng.permutation(length - 1))]
    assert margin(unit * (code @ turn + 1)[order]) == pytest.approx(unit * found, abs=1e-7 * unit)
    assert margin(np.vstack([code, rng.normal(size=embed_dim)])) <= found + 1e-9


@pytest.mark.parametrize(
    "wrong",
    [
        lambda weight: np.ones_like(weight),
        lambda weight: weight + 1e-4 * (np.arange(len(weight)) == 5),
        lambda weight: np.where(weight == weight.max(), -1.0, 2.0),
        lambda weight: (np.arange(len(weight)) == 0).astype(np.float64),
        lambda weight: np.full_like(weight, np.nan),
    ],
)
def test_a_solver_that_is_wrong_is_caught(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Array], Array]) -> None:
    right = scipy.optimize.nnls
    monkeypatch.setattr(scipy.optimize, "nnls", lambda a, b: (wrong(right(a, b)[0]), 0.0))
    with pytest.raises(RuntimeError, match="longest differences"):
        margin(by_hand(8, 16))


def test_a_point_outside_the_hull_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both bounds agree on the nearest point of the line through the differences, but it lies beyond their ends."""
    code = np.array([[0.0, 0.0], [-1.0, -1.0], [-1.0, -2.0]])
    assert margin(code) == pytest.approx(math.sqrt(2))
    monkeypatch.setattr(scipy.optimize, "nnls", lambda a, b: (np.array([2.0, -1.0]), 0.0))
    with pytest.raises(RuntimeError, match="longest differences"):
        margin(code)


# --- shares ---

PAIR = [(1.0, [4, 2, 2, 1]), (3.0, [4, 18, 18, 81]), (2.0, [1, 2, 2, 4]), (0.0, [1, 0, 0, 0])]


@pytest.mark.parametrize(("strength", "parts"), PAIR)
def test_shares_of_a_pair_as_fractions(strength: float, parts: list[int]) -> None:
    expected = [float(Fraction(part, sum(parts))) for part in parts]
    assert list(logit_power_shares(strength)) == pytest.approx(expected, abs=1e-15)


def test_shares_as_they_were_printed() -> None:
    one, three = logit_power_shares(1), logit_power_shares(3)
    mixed = [share.content_position + share.position_content for share in (one, three)]
    assert [one.content_content, mixed[0], one.position_position] == pytest.approx([0.444, 0.444, 0.111], abs=5.1e-4)
    assert [three.content_content, mixed[1], three.position_position] == pytest.approx(
        [0.033, 0.298, 0.669], abs=5.1e-4
    )
    assert query_logit_shares(2.0) == pytest.approx((1 / 3, 2 / 3))
    assert query_logit_shares(2.0).position == pytest.approx(2 / 3)


def terms_of_a_pair(rng: np.random.Generator, strength: float, n: int, uniform: bool) -> Array:
    """The four terms [4, n] of the logit of tokens 2 and 5 of eight, straight from their definition."""
    d, head_dim = 6, 5
    draw = (lambda size: rng.uniform(-1, 1, size)) if uniform else (lambda size: rng.normal(size=size))
    w_q, w_k = draw((n, d, head_dim)), draw((n, d, head_dim))
    p = strength * by_hand(8, d)
    query, key = [rng.normal(size=(n, d)), p[2]], [rng.normal(size=(n, d)), p[5]]

    def project(token: Array, w: Array) -> Array:
        return np.asarray(np.einsum("...d,...dh->...h", token, w))

    return np.array([(project(a, w_q) * project(b, w_k)).sum(axis=1) for a in query for b in key])


def terms_of_a_query(rng: np.random.Generator, strength: float, n: int, uniform: bool) -> Array:
    """The two terms [2, n] of the logit of token 5 with one fixed query."""
    d, head_dim = 6, 5
    w_k = rng.uniform(-1, 1, (n, d, head_dim)) if uniform else rng.normal(size=(n, d, head_dim))
    u = w_k @ np.array([1.0, -2.0, 0.5, 0.0, 3.0])
    return np.array([(u * rng.normal(size=(n, d))).sum(axis=1), u @ (strength * by_hand(8, d)[5])])


def distance(terms: Array, shares: Array) -> float:
    """Largest deviation from E[t_k^2 - share_k sum t^2] = 0 and E[t_k t_l] = 0, in standard errors."""
    square = terms**2
    statistics = [*(square - shares[:, None] * square.sum(axis=0))]
    statistics += [a * b for a, b in itertools.combinations(terms, 2)]
    n = terms.shape[1]
    return max(abs(float(x.mean())) / (float(x.std()) / math.sqrt(n)) for x in statistics)


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("strength", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("terms", "shares"), [("pair", logit_power_shares), ("query", query_logit_shares)])
def test_shares_are_those_of_simulated_logits(
    terms: str, shares: Callable[[float], tuple[float, ...]], strength: float, uniform: bool
) -> None:
    """Shares and uncorrelated terms, for Gaussian and uniform weights; a strength 5 % off would be seen."""
    simulate = {"pair": terms_of_a_pair, "query": terms_of_a_query}[terms]
    found = simulate(np.random.default_rng(7), strength, 60_000, uniform)
    assert distance(found, np.array(shares(strength))) < 4.0
    assert distance(found, np.array(shares(1.05 * strength))) > 4.0


# --- layer norm ---


def test_layer_norm_ceiling_at_known_angles() -> None:
    assert layer_norm_ceiling(1) == 0.5
    assert layer_norm_ceiling(2) == pytest.approx(3 / 4, abs=1e-15)
    assert layer_norm_ceiling(4) == pytest.approx(5 / 6, abs=1e-15)
    assert layer_norm_ceiling(16) == pytest.approx(0.9196, abs=5.1e-5)
    assert 1 - layer_norm_ceiling(10**6) == pytest.approx(1e-3 / math.pi, rel=1e-5)


@pytest.mark.parametrize("embed_dim", [2, 3, 16, 100])
def test_layer_norm_ceiling_as_an_orthant_probability(embed_dim: int) -> None:
    first = np.eye(embed_dim)[0]
    rows = np.stack([first, first - 1 / embed_dim])
    both = multivariate_normal(mean=[0, 0], cov=rows @ rows.T).cdf([0, 0])
    assert layer_norm_ceiling(embed_dim) == pytest.approx(2 * both, abs=1e-6)


def test_layer_norm_ceiling_by_simulation() -> None:
    x = np.random.default_rng(8).normal(size=(200_000, 5))
    agree = float((np.sign(x[:, 0]) == np.sign(x[:, 0] - x.mean(axis=1))).mean())
    expected = layer_norm_ceiling(5)
    assert abs(agree - expected) < 4.5 * math.sqrt(expected * (1 - expected) / len(x))


# --- bad input ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoid(0, 4), "length=0 must be a positive integer"),
        (lambda: sinusoid(4, 0), "embed_dim=0 must be a positive integer"),
        (lambda: sinusoid(4, 4, base=0.0), "base=0.0 must be positive and finite"),
        (lambda: row_norm(0), "embed_dim=0 must be a positive integer"),
        (lambda: row_norm(7), "embed_dim=7 must come with a position when odd"),
        (lambda: rms(1), "embed_dim=1 must come with a position when odd"),
        (lambda: row_norm(7, 1, base=-1.0), "base=-1.0 must be positive and finite"),
        (lambda: margin(np.ones(3)), "code=(3,) must be a matrix [length, embed_dim] of finite numbers"),
        (lambda: margin(np.array([[1.0], [math.nan]])), "must be a matrix [length, embed_dim] of finite numbers"),
        (lambda: margin(np.ones((3, 2)), 3), "target=3 must be a row of the code, which has 3"),
        (lambda: margin(np.ones((3, 2)), -1), "target=-1 must be a row of the code, which has 3"),
        (lambda: logit_power_shares(-1.0), "strength=-1.0 must be finite and 0 or more"),
        (lambda: query_logit_shares(math.inf), "strength=inf must be finite and 0 or more"),
        (lambda: layer_norm_ceiling(0), "embed_dim=0 must be a positive integer"),
        (lambda: layer_norm_ceiling(1.5), "embed_dim=1.5 must be a positive integer"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_answered_in_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
