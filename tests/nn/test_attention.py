"""Attention against torch's own, and the entropy of its weights where weights are zero."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from attnrepro.nn.attention import attention_logits, attention_weights, entropy

SHAPES = [(1, 5, 7, 4), (3, 7, 5, 16), (2, 1, 9, 1), (1, 6, 1, 3), (2, 4, 4, 64)]  # batch, queries, keys, head_dim
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# --- against another implementation ---


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("batch", "n_queries", "n_keys", "head_dim"), SHAPES)
def test_weights_are_those_of_torch(batch: int, n_queries: int, n_keys: int, head_dim: int, scaled: bool) -> None:
    query, key = draw(batch, n_queries, head_dim), draw(batch, n_keys, head_dim, seed=1)
    # With the identity as values the output of attention is its weights.
    identity = torch.eye(n_keys, dtype=torch.float64).expand(batch, n_keys, n_keys)
    expected = functional.scaled_dot_product_attention(query, key, identity, scale=None if scaled else 1.0)
    found = attention_weights(attention_logits(query, key, scaled=scaled))
    assert found.shape == (batch, n_queries, n_keys)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scaled", [True, False])
def test_logits_are_dot_products(scaled: bool) -> None:
    query, key = draw(5, 16), draw(7, 16, seed=1)
    expected = [[float(sum(q * k)) / (4 if scaled else 1) for k in key] for q in query]
    torch.testing.assert_close(attention_logits(query, key, scaled=scaled), torch.tensor(expected, dtype=torch.float64))


def test_the_scale_is_on_by_default() -> None:
    query, key = draw(5, 16), draw(7, 16, seed=1)
    assert torch.equal(attention_logits(query, key), attention_logits(query, key, scaled=True))


def test_batch_dimensions_broadcast() -> None:
    query, key = draw(3, 2, 5, 4), draw(7, 4, seed=1)
    logits = attention_logits(query, key)
    assert logits.shape == (3, 2, 5, 7)
    torch.testing.assert_close(logits[2, 1], attention_logits(query[2, 1], key), rtol=1e-12, atol=1e-14)


def test_different_head_dims_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="query has head_dim 4 and key has 5: they must be equal"):
        attention_logits(draw(3, 4), draw(3, 5))


# --- over the keys ---


@pytest.mark.parametrize(("batch", "n_queries", "n_keys", "head_dim"), SHAPES)
def test_rows_sum_to_one_over_the_keys(batch: int, n_queries: int, n_keys: int, head_dim: int) -> None:
    weights = attention_weights(
        attention_logits(draw(batch, n_queries, head_dim), draw(batch, n_keys, head_dim, seed=1))
    )
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(batch, n_queries, dtype=torch.float64))
    if n_keys > 1:  # over the batch or the queries a batch of one, or one query, would have all weights 1
        assert (weights < 1).all()


def test_a_query_does_not_depend_on_the_others() -> None:
    query, key = draw(2, 5, 4), draw(2, 7, 4, seed=1)
    alone = attention_weights(attention_logits(query[:1, 2:3], key[:1]))
    together = attention_weights(attention_logits(query, key))
    torch.testing.assert_close(alone[0, 0], together[0, 2], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", FLOATS)
def test_large_logits_do_not_overflow(dtype: torch.dtype) -> None:
    weights = attention_weights(torch.tensor([6e4, -6e4, 0.0], dtype=dtype))
    assert weights.tolist() == [1, 0, 0]


# --- entropy ---


@pytest.mark.parametrize("n", [1, 2, 3, 16, 1000])
def test_uniform_weights_have_entropy_log_n(n: int) -> None:
    weights = attention_weights(torch.full((2, 3, n), 5.0, dtype=torch.float64))
    torch.testing.assert_close(entropy(weights), torch.full((2, 3), math.log(n), dtype=torch.float64))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 16])
def test_one_hot_weights_have_entropy_zero(n: int, dtype: torch.dtype) -> None:
    assert entropy(torch.eye(n, dtype=dtype)).tolist() == [0.0] * n


def test_entropy_is_that_of_its_definition() -> None:
    weights = attention_weights(draw(4, 5, 9))
    expected = [[-math.fsum(p * math.log(p) for p in row) for row in rows] for rows in weights.tolist()]
    torch.testing.assert_close(entropy(weights), torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("logits", [[0.0, 200.0, 0.0], [0.0, 12.0, 4.0], [-6e4, 0.0, 0.0], [0.0, 0.0, -20.0]])
def test_entropy_is_right_and_finite_in_value_and_gradient(logits: list[float], dtype: torch.dtype) -> None:
    """The logits that gave NaN elsewhere; against dH/dx_k = -p_k (log p_k + H), in numbers of Python."""
    top = max(logits)
    log_z = top + math.log(math.fsum(math.exp(x - top) for x in logits))
    log_p = [x - log_z for x in logits]
    value = -math.fsum(math.exp(lp) * lp for lp in log_p)
    gradient = [-math.exp(lp) * (lp + value) for lp in log_p]
    x = torch.tensor(logits, dtype=dtype, requires_grad=True)
    found = entropy(attention_weights(x))
    found.backward()
    assert found.dtype == dtype
    assert x.grad is not None
    # A handful of roundings of numbers up to about 1; float16 also loses weights below its smallest number, 6e-8.
    near = 8 * torch.finfo(dtype).eps + 20 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert float(found.detach()) == pytest.approx(value, abs=near)
    assert x.grad.tolist() == pytest.approx(gradient, abs=near)


def test_gradients_are_those_of_finite_differences() -> None:
    query, key = draw(2, 3, 4).requires_grad_(), draw(2, 5, 4, seed=1).requires_grad_()
    for scaled in (True, False):

        def of_both(q: Tensor, k: Tensor, scaled: bool = scaled) -> Tensor:
            return entropy(attention_weights(attention_logits(q, k, scaled=scaled)))

        assert torch.autograd.gradcheck(of_both, (query, key))
    assert torch.autograd.gradcheck(attention_weights, (draw(3, 5).requires_grad_(),))


def test_a_weight_of_zero_takes_no_part_in_the_gradient() -> None:
    weights = torch.tensor([0.0, 0.25, 0.75], dtype=torch.float64, requires_grad=True)
    entropy(weights).backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == pytest.approx([0.0, -1 - math.log(0.25), -1 - math.log(0.75)])


@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_that_are_no_numbers_have_no_entropy(dtype: torch.dtype) -> None:
    """A row that went wrong must not look like attention on one key."""
    weights = attention_weights(
        torch.tensor([[math.nan, 0.0, 0.0], [-math.inf] * 3, [0.0, 0.0, -math.inf]], dtype=dtype)
    )
    found = entropy(weights)
    assert found.isnan().tolist() == [True, True, False]
    assert float(found[2]) == pytest.approx(math.log(2), abs=8 * torch.finfo(dtype).eps)
    assert math.isnan(entropy(torch.tensor([0.5, 0.75, -0.25], dtype=dtype)))
