"""Position encodings against loops over their definitions, and the properties they are used for."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import Tensor

from attnrepro.nn.position import (
    alibi_bias,
    at_row_norm,
    one_hot,
    random_gaussian,
    random_orthogonal,
    rotary,
    sinusoidal,
)
from attnrepro.theory.position_codes import sinusoid

DOUBLE = torch.float64
SIZES = [(1, 1), (1, 2), (2, 1), (1, 7), (5, 7), (9, 3), (8, 16), (4, 64)]  # length, embed_dim


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=DOUBLE)


def close(found: Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        found.to(DOUBLE), torch.as_tensor(expected, dtype=DOUBLE), rtol=tolerance, atol=tolerance
    )


# --- sinusoids ---


def check_sinusoidal(code: Tensor, base: float = 10000.0, tolerance: float = 1e-12) -> None:
    """Compare with the two formulas of the paper, number by number."""
    length, embed_dim = code.shape
    for n in range(length):
        for k in range(embed_dim):
            wave = math.cos if k % 2 else math.sin
            expected = wave(n / base ** ((k - k % 2) / embed_dim))
            assert float(code[n, k]) == pytest.approx(expected, abs=tolerance), (n, k)


@pytest.mark.parametrize("base", [10000.0, 100.0, 1.0])
@pytest.mark.parametrize(("length", "embed_dim"), SIZES)
def test_sinusoids_are_those_of_the_paper(length: int, embed_dim: int, base: float) -> None:
    code = sinusoidal(length, embed_dim, base=base, dtype=DOUBLE)
    assert code.shape == (length, embed_dim)
    check_sinusoidal(code, base)
    close(code, sinusoid(length, embed_dim, base))


@pytest.mark.parametrize(
    "fault",
    [
        lambda code: torch.cat((code[:, 0::2], code[:, 1::2]), dim=1),  # halves instead of pairs
        lambda code: code.roll(-1, 1),  # cosines first
        lambda code: code.roll(-1, 0),  # positions from 1
        lambda code: sinusoidal(*code.shape, base=1000.0, dtype=DOUBLE),
        lambda code: sinusoidal(code.shape[0], code.shape[1] + 1, dtype=DOUBLE)[:, :-1],  # cut from the next even size
        lambda code: -code,
    ],
)
@pytest.mark.parametrize("embed_dim", [7, 8])
def test_a_planted_fault_in_the_sinusoids_is_found(fault: Callable[[Tensor], Tensor], embed_dim: int) -> None:
    code = sinusoidal(5, embed_dim, dtype=DOUBLE)
    check_sinusoidal(code)
    with pytest.raises(AssertionError):
        check_sinusoidal(fault(code))


def test_sinusoids_of_late_positions_lose_no_digits_in_single_precision() -> None:
    """An angle of 20000 in float32 would be wrong by up to 1e-3."""
    code = sinusoidal(20001, 2)
    assert code.dtype == torch.float32
    late = range(19900, 20001)
    close(code[late.start :], [[math.sin(n), math.cos(n)] for n in late], 6.1e-8)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 33))
def test_a_row_of_sinusoids_has_half_its_dimensions_as_squared_norm(length: int, embed_dim: int) -> None:
    """Up to the sine that stands alone when the dimension is odd."""
    square = sinusoidal(length, embed_dim, dtype=DOUBLE).square()
    alone = square[:, -1] if embed_dim % 2 else torch.zeros(length, dtype=DOUBLE)
    close(square.sum(1) - alone, [embed_dim // 2] * length)


# --- other codes ---


@pytest.mark.parametrize(("length", "embed_dim", "first"), [(1, 1, 0), (2, 5, 0), (2, 5, 3), (3, 4, 1), (4, 4, 0)])
def test_one_hot_has_a_one_where_it_should(length: int, embed_dim: int, first: int) -> None:
    expected = [[float(k == first + n) for k in range(embed_dim)] for n in range(length)]
    code = one_hot(length, embed_dim, first=first)
    assert code.dtype == torch.float32
    assert code.tolist() == expected


def gram_schmidt(columns: Tensor) -> Tensor:
    """Orthonormal rows from the columns of a matrix, each against those before it."""
    rows: list[Tensor] = []
    for column in columns.T:
        for row in rows:
            column = column - (column @ row) * row
        rows.append(column / column.norm())
    return torch.stack(rows)


@pytest.mark.parametrize(("length", "embed_dim"), [(1, 1), (1, 4), (3, 3), (3, 7), (8, 16)])
def test_random_orthogonal_is_gram_schmidt_on_gaussian_columns(length: int, embed_dim: int) -> None:
    """Gram and Schmidt leave no choice of sign, as the QR decomposition does."""
    for seed in range(5):
        code = random_orthogonal(length, embed_dim, generator(seed), dtype=DOUBLE)
        close(code @ code.T, torch.eye(length, dtype=DOUBLE))
        close(code, gram_schmidt(draw(embed_dim, length, seed=seed)), 1e-10)


def test_random_orthogonal_is_uniform_in_the_plane() -> None:
    """Angle of the first row uniform on the circle, and as many reflections as rotations.

    The QR decomposition alone fails: its first component is never positive.
    """
    source = generator(3)
    codes = torch.stack([random_orthogonal(2, 2, source, dtype=DOUBLE) for _ in range(2000)])
    turns = torch.atan2(codes[:, 0, 1], codes[:, 0, 0]) / (2 * math.pi) + 0.5
    assert kstest(turns.numpy(), "uniform").pvalue > 1e-3
    rotations = int((torch.linalg.det(codes) > 0).sum())
    assert abs(rotations - 1000) < 4.5 * math.sqrt(500)
    raw = torch.linalg.qr(draw(2000, 2, 2)).Q
    assert kstest((torch.atan2(raw[:, 1, 0], raw[:, 0, 0]) / (2 * math.pi) + 0.5).numpy(), "uniform").pvalue < 1e-9


def test_random_gaussian_is_standard_normal() -> None:
    code = random_gaussian(50, 40, generator(4), dtype=DOUBLE)
    assert code.shape == (50, 40)
    assert kstest(code.flatten().numpy(), "norm").pvalue > 1e-3
    assert abs(float(code[:, 1:].flatten() @ code[:, :-1].flatten())) < 4.5 * math.sqrt(50 * 39)


@pytest.mark.parametrize("make", [random_gaussian, random_orthogonal])
def test_random_codes_follow_their_generator(make: Callable[..., Tensor]) -> None:
    double = make(3, 5, generator(1), dtype=DOUBLE)
    single = make(3, 5, generator(1))
    assert single.dtype == torch.float32
    assert torch.equal(single, double.to(torch.float32))
    source = generator(1)
    assert torch.equal(make(3, 5, source, dtype=DOUBLE), double)
    assert not torch.equal(make(3, 5, source, dtype=DOUBLE), double)


# --- strength ---


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 9), st.floats(1e-3, 1e3))
def test_every_row_gets_the_norm_and_keeps_its_direction(seed: int, length: int, embed_dim: int, norm: float) -> None:
    code = draw(length, embed_dim, seed=seed)
    found = at_row_norm(code, norm)
    for before, after in zip(code.tolist(), found.tolist(), strict=True):
        assert math.hypot(*after) == pytest.approx(norm, rel=1e-12)
        ratio = norm / math.hypot(*before)
        assert after == pytest.approx([ratio * x for x in before], rel=1e-12, abs=1e-12 * norm)


def test_row_norm_in_batches_and_at_strength_zero() -> None:
    code = draw(2, 3, 4)
    close(at_row_norm(code, 2.0).norm(dim=-1), [[2.0] * 3] * 2)
    assert at_row_norm(code.float(), 0.0).abs().max() == 0
    assert at_row_norm(code.float(), 1.0).dtype == torch.float32


def test_sinusoids_at_strength_three() -> None:
    """For an even dimension a strength is a row norm; for an odd one, rows of different norm become equal."""
    close(at_row_norm(sinusoidal(8, 16, dtype=DOUBLE), 3 * math.sqrt(8)), 3 * sinusoidal(8, 16, dtype=DOUBLE))
    odd = sinusoidal(8, 7, base=4.0, dtype=DOUBLE)
    assert float(odd.norm(dim=1).max() - odd.norm(dim=1).min()) > 0.01
    close(at_row_norm(odd, 2.0).norm(dim=1), [2.0] * 8)


def test_row_norm_has_the_gradient_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda code: at_row_norm(code, 1.7), (draw(3, 4).requires_grad_(),))


# --- rotary ---


def check_rotary(found: Tensor, x: Tensor, positions: list[float], base: float = 10000.0) -> None:
    """Each pair is a complex number, turned by a unit one."""
    head_dim = x.shape[-1]
    assert found.shape == x.shape
    for rows, turned in zip(x.reshape(-1, len(positions), head_dim), found.reshape(-1, *x.shape[-2:]), strict=True):
        for n, position in enumerate(positions):
            for k in range(0, head_dim, 2):
                z = complex(*rows[n, k : k + 2].tolist()) * cmath.exp(1j * position / base ** (k / head_dim))
                assert turned[n, k : k + 2].tolist() == pytest.approx([z.real, z.imag], abs=1e-11), (n, k)


@pytest.mark.parametrize("base", [10000.0, 10.0])
@pytest.mark.parametrize("shape", [(1, 2), (5, 2), (3, 8), (2, 4, 6), (2, 3, 5, 4)])
def test_rotary_turns_complex_numbers(shape: tuple[int, ...], base: float) -> None:
    x = draw(*shape)
    check_rotary(rotary(x, base=base), x, list(range(shape[-2])), base)
    positions = [1.5 * n - 3 for n in range(shape[-2])]
    check_rotary(rotary(x, torch.tensor(positions), base=base), x, positions, base)


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: rotary(x, -torch.arange(x.shape[-2])),  # the other way
        lambda x: rotary(x, base=1000.0),
        lambda x: rotary(x, torch.arange(1, x.shape[-2] + 1)),
        lambda x: rotary(x.unflatten(-1, (2, -1)).mT.flatten(-2)).unflatten(-1, (-1, 2)).mT.flatten(-2),  # half pairs
        lambda x: x + sinusoidal(*x.shape, dtype=DOUBLE),
    ],
)
def test_a_planted_fault_in_the_rotation_is_found(fault: Callable[[Tensor], Tensor]) -> None:
    x = draw(4, 6)
    check_rotary(rotary(x), x, [0, 1, 2, 3])
    with pytest.raises(AssertionError):
        check_rotary(fault(x), x, [0, 1, 2, 3])


@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8), st.integers(-3000, 3000), st.integers(-3000, 3000))
def test_rotary_keeps_norms_and_dot_products_know_the_distance_only(seed: int, pairs: int, m: int, n: int) -> None:
    query, key = draw(1, 2 * pairs, seed=seed), draw(1, 2 * pairs, seed=seed + 1)

    def at(x: Tensor, position: int) -> Tensor:
        return rotary(x, torch.tensor([position]))

    close(at(query, m).norm(), query.norm())
    dot = at(query, m) @ at(key, n).T
    close(dot, query @ at(key, n - m).T, 1e-10)
    close(dot, at(query, m + 17) @ at(key, n + 17).T, 1e-10)


def test_rotary_leaves_position_zero_alone_and_tells_distances_apart() -> None:
    x = draw(1, 8)
    assert torch.equal(rotary(x), x)
    dots = rotary(x.expand(9, 8)) @ x.T
    assert float(dots[0] - dots[1:].max()) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rotary_keeps_the_precision_of_its_input(dtype: torch.dtype) -> None:
    """Late positions too: angles in the input's own precision would be off by whole turns."""
    x, positions = draw(3, 4).to(dtype), torch.tensor([5000, 5001, 9999])
    found = rotary(x, positions)
    assert found.dtype == dtype
    close(found, rotary(x.to(DOUBLE), positions), 8 * torch.finfo(dtype).eps)


def test_rotary_has_the_gradient_of_finite_differences_and_turns_it_back() -> None:
    x, upstream = draw(3, 4).requires_grad_(), draw(3, 4, seed=1)
    assert torch.autograd.gradcheck(rotary, (x,))
    rotary(x).backward(upstream)
    assert x.grad is not None
    close(x.grad, rotary(upstream, -torch.arange(3)))


# --- bias ---


@pytest.mark.parametrize("offset", [0, 3, -2])
@pytest.mark.parametrize(("num_queries", "num_keys"), [(1, 1), (1, 8), (4, 4), (3, 5), (5, 2)])
def test_alibi_is_minus_slope_times_distance(num_queries: int, num_keys: int, offset: int) -> None:
    found = alibi_bias(num_queries, num_keys, 0.25, offset=offset)
    assert found.dtype == torch.float32
    assert found.tolist() == [[-0.25 * abs(i + offset - j) for j in range(num_keys)] for i in range(num_queries)]


def test_alibi_under_a_causal_mask_is_the_published_bias() -> None:
    """There a key's own term m j does the same work: rows differ by a constant, which softmax does not see."""
    mask = torch.full((5, 5), -math.inf, dtype=DOUBLE).triu(1)
    logits = draw(5, 5) + mask
    ours = (logits + alibi_bias(5, 5, 0.3, dtype=DOUBLE)).softmax(-1)
    close(ours, (logits + 0.3 * torch.arange(5, dtype=DOUBLE)).softmax(-1))
    both_sides = (draw(5, 5) + alibi_bias(5, 5, 0.3, dtype=DOUBLE)).softmax(-1)
    assert not torch.allclose(both_sides, (draw(5, 5) + 0.3 * torch.arange(5, dtype=DOUBLE)).softmax(-1))


# --- bad input ---


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sinusoidal(0, 4), "length=0 must be 1 or more"),
        (lambda: sinusoidal(4, 0), "embed_dim=0 must be 1 or more"),
        (lambda: sinusoidal(4, 4, base=0.0), "base=0.0 must be positive and finite"),
        (lambda: sinusoidal(4, 4, base=math.nan), "base=nan must be positive and finite"),
        (lambda: one_hot(-1, 4), "length=-1 must be 1 or more"),
        (lambda: one_hot(3, 4, first=2), "first=2 must be 0 or more and leave 3 components of embed_dim=4"),
        (lambda: one_hot(3, 4, first=-1), "first=-1 must be 0 or more and leave 3 components of embed_dim=4"),
        (lambda: one_hot(5, 4), "first=0 must be 0 or more and leave 5 components of embed_dim=4"),
        (
            lambda: random_orthogonal(5, 4, generator()),
            "length=5 must be at most embed_dim=4, for the rows to be orthogonal",
        ),
        (lambda: random_orthogonal(0, 4, generator()), "length=0 must be 1 or more"),
        (lambda: random_gaussian(2, 0, generator()), "embed_dim=0 must be 1 or more"),
        (lambda: at_row_norm(draw(2, 3), -1.0), "norm=-1.0 must be finite and 0 or more"),
        (lambda: at_row_norm(draw(2, 3), math.nan), "norm=nan must be finite and 0 or more"),
        (lambda: at_row_norm(sinusoidal(1, 1), 1.0), "must have a direction in every row"),
        (lambda: at_row_norm(torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), 1.0), "must have a direction in every row"),
        (lambda: at_row_norm(torch.tensor([[math.inf, 0.0]]), 1.0), "must have a direction in every row"),
        (lambda: rotary(draw(3, 5)), "head_dim=5 must be even, since components are turned in pairs"),
        (lambda: rotary(draw(3)), "must be [..., length, head_dim] of floating point"),
        (lambda: rotary(torch.ones(3, 4, dtype=torch.int64)), "must be [..., length, head_dim] of floating point"),
        (lambda: rotary(draw(3, 4), torch.arange(2)), "positions=(2,) must be of shape (3,), one for each row"),
        (lambda: rotary(draw(3, 4), base=-1.0), "base=-1.0 must be positive and finite"),
        (lambda: alibi_bias(0, 3, 1.0), "num_queries=0 must be 1 or more"),
        (lambda: alibi_bias(3, 0, 1.0), "num_keys=0 must be 1 or more"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_theory_and_code_write_the_same_sinusoids() -> None:
    """Written twice, so that a slip in either shows."""
    ours = sinusoidal(6, 9, dtype=DOUBLE).numpy()
    assert np.abs(ours - sinusoid(6, 9)).max() < 1e-13
    assert np.abs(ours - sinusoid(6, 9, base=9999.0)).max() > 1e-6
