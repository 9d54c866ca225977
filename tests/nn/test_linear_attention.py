"""Linear attention against the explicit normalised sum, its features against elu, and its cost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.linear_attention import feature_map, linear_attention


def drawn(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).requires_grad_()


def by_loops(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    def feature(x: Tensor) -> Tensor:
        return torch.stack([c + 1 if c > 0 else torch.exp(c) for c in x])

    outputs = []
    for q in query:
        strength = [sum(a * b for a, b in zip(feature(q), feature(k), strict=True)) for k in key]
        outputs.append(sum(s * v for s, v in zip(strength, value, strict=True)) / sum(strength))
    return torch.stack(outputs)


@pytest.mark.parametrize(
    ("queries", "keys", "head_dim", "value_dim"), [(1, 1, 1, 1), (3, 5, 2, 3), (7, 7, 5, 5), (5, 2, 3, 1)]
)
def test_values_and_gradients_are_those_of_the_sum(queries: int, keys: int, head_dim: int, value_dim: int) -> None:
    given = [drawn(queries, head_dim), drawn(keys, head_dim, seed=1), drawn(keys, value_dim, seed=2)]
    found, expected = linear_attention(*given), by_loops(*given)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    along = drawn(queries, value_dim, seed=9).detach()
    slopes = torch.autograd.grad((found * along).sum(), given)
    for slope, wanted in zip(slopes, torch.autograd.grad((expected * along).sum(), given), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-11, atol=1e-13)


def test_every_head_by_itself() -> None:
    given = [drawn(2, 3, 5, 4, seed=n) for n in range(3)]
    found = linear_attention(*given)
    for b in range(2):
        for h in range(3):
            torch.testing.assert_close(found[b, h], by_loops(*(x[b, h] for x in given)), rtol=1e-12, atol=1e-14)


def test_features_are_elu_plus_one_and_never_zero() -> None:
    x = torch.linspace(-5, 5, 41, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(feature_map(x), torch.nn.functional.elu(x) + 1, rtol=1e-13, atol=1e-15)
    (slope,) = torch.autograd.grad(feature_map(x).sum(), x)
    expected = [math.exp(min(c, 0.0)) for c in x.tolist()]
    torch.testing.assert_close(slope, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=0)
    far = torch.tensor([-100.0, 1000.0], dtype=torch.float64).requires_grad_()
    assert feature_map(far).tolist() == pytest.approx([math.exp(-100), 1001], rel=1e-13)
    assert torch.autograd.grad(feature_map(far).sum(), far)[0].tolist() == pytest.approx([math.exp(-100), 1])


def test_queries_far_below_zero_still_have_a_mean() -> None:
    query = torch.full((1, 2), -50.0, dtype=torch.float64)
    value = drawn(4, 3).detach()
    out = linear_attention(query, torch.zeros(4, 2, dtype=torch.float64), value)
    torch.testing.assert_close(out[0], value.mean(0), rtol=1e-12, atol=1e-14)


def test_its_cost_is_linear_in_the_length() -> None:
    def cost(length: int) -> int:
        given = [torch.zeros(length, 6, device="meta") for _ in range(3)]
        with FlopCounterMode(display=False) as counter:
            linear_attention(*given)
        return int(counter.get_total_flops())

    assert [cost(length) for length in (7, 70_000)] == [2 * length * (6 * 6 + 6 * 6 + 6) for length in (7, 70_000)]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="query has head_dim 2 and key has 3"):
        linear_attention(drawn(3, 2), drawn(3, 3), drawn(3, 2))
    with pytest.raises(ValueError, match="key=3 and value=4 must be the same number"):
        linear_attention(drawn(3, 2), drawn(3, 2), drawn(4, 2))


def test_keys_have_no_order_and_every_key_is_reached() -> None:
    query, key, value = drawn(2, 5, 4), drawn(2, 7, 4, seed=1), drawn(2, 7, 3, seed=2)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    out = linear_attention(query, key, value)
    torch.testing.assert_close(linear_attention(query, key[:, order], value[:, order]), out, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(linear_attention(query.flip(1), key, value), out.flip(1), rtol=1e-12, atol=1e-14)
    assert float((linear_attention(query, key[:, order], value) - out).detach().abs().max()) > 1e-3
    read = value.clone().requires_grad_()
    (slope,) = torch.autograd.grad(linear_attention(query, key, read)[:, 0].sum(), read)
    assert (slope.abs() > 0).all()


def test_bfloat16_stays_finite() -> None:
    x = [drawn(2, 6, 4, seed=seed).bfloat16().detach().requires_grad_() for seed in range(3)]
    out = linear_attention(*x)
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16 and torch.isfinite(out).all()
    assert all(part.grad is not None and torch.isfinite(part.grad).all() for part in x)
