"""Low-rank attention against loops, against attention where the mixtures are the tokens, and its cost."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.low_rank_attention import low_rank_attention


def drawn(*shape: int, seed: int = 0) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=stream, dtype=torch.float64).requires_grad_()


def by_loops(query: Tensor, key: Tensor, value: Tensor, key_mix: Tensor, value_mix: Tensor) -> Tensor:
    size = query.shape[1]
    keys = [sum(e * k for e, k in zip(row, key, strict=True)) for row in key_mix]
    values = [sum(f * v for f, v in zip(row, value, strict=True)) for row in value_mix]
    outputs = []
    for q in query:
        strength = [torch.exp(sum(q[c] * k[c] for c in range(size)) / math.sqrt(size)) for k in keys]
        outputs.append(sum(s * v for s, v in zip(strength, values, strict=True)) / sum(strength))
    return torch.stack(outputs)


@pytest.mark.parametrize(
    ("queries", "keys", "head_dim", "value_dim", "rank"),
    [(1, 1, 1, 1, 1), (3, 5, 2, 3, 2), (7, 7, 5, 5, 3), (2, 3, 3, 1, 5)],
)
def test_values_and_gradients_are_those_of_loops(
    queries: int, keys: int, head_dim: int, value_dim: int, rank: int
) -> None:
    given = [drawn(queries, head_dim), drawn(keys, head_dim, seed=1), drawn(keys, value_dim, seed=2)]
    given += [drawn(rank, keys, seed=3), drawn(rank, keys, seed=4)]
    found, expected = low_rank_attention(*given), by_loops(*given)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    along = drawn(queries, value_dim, seed=9).detach()
    slopes = torch.autograd.grad((found * along).sum(), given)
    for slope, wanted in zip(slopes, torch.autograd.grad((expected * along).sum(), given), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-10, atol=1e-12)


def test_mixtures_that_are_the_tokens_give_attention() -> None:
    given = [drawn(2, 3, 7, 5, seed=n) for n in range(3)]
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    same = torch.eye(7, dtype=torch.float64)[order]
    found = low_rank_attention(*given, same, same)
    torch.testing.assert_close(found, scaled_dot_product_attention(*given), rtol=1e-12, atol=1e-14)


def test_its_cost_is_linear_in_the_length() -> None:
    def cost(length: int) -> int:
        given = [torch.zeros(length, 6, device="meta") for _ in range(3)]
        mixes = [torch.zeros(4, length, device="meta") for _ in range(2)]
        with FlopCounterMode(display=False) as counter:
            low_rank_attention(*given, *mixes)
        return int(counter.get_total_flops())

    assert [cost(length) for length in (7, 70_000)] == [4 * 2 * 4 * 6 * length for length in (7, 70_000)]


def test_mixtures_that_do_not_fit_are_refused() -> None:
    x = drawn(3, 2)
    with pytest.raises(ValueError, match=r"key_mix=\(2, 3\) and value_mix=\(1, 3\) must have the same rank"):
        low_rank_attention(x, x, x, drawn(2, 3), drawn(1, 3))
    with pytest.raises(ValueError, match="key=3 and value=3 positions must be the 4"):
        low_rank_attention(x, x, x, drawn(2, 4), drawn(2, 4))
    with pytest.raises(ValueError, match="key=3 and value=4 positions must be the 3"):
        low_rank_attention(x, x, drawn(4, 2), drawn(2, 3), drawn(2, 3))


def test_tokens_have_an_order_unless_the_mixtures_move_with_them() -> None:
    query, key, value = drawn(2, 5, 4), drawn(2, 7, 4, seed=1), drawn(2, 7, 3, seed=2)
    mixes = drawn(3, 7, seed=3), drawn(3, 7, seed=4)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(5))
    out = low_rank_attention(query, key, value, *mixes)
    both = low_rank_attention(query, key[:, order], value[:, order], *(mix[:, order] for mix in mixes))
    torch.testing.assert_close(both, out, rtol=1e-12, atol=1e-14)
    assert float((low_rank_attention(query, key[:, order], value[:, order], *mixes) - out).abs().max()) > 1e-3
    read = value.clone().requires_grad_()
    (slope,) = torch.autograd.grad(low_rank_attention(query, key, read, *mixes)[:, 0].sum(), read)
    assert (slope.abs() > 0).all(), "every token is reached"


def test_bfloat16_stays_finite() -> None:
    shapes = [(2, 5, 4), (2, 7, 4), (2, 7, 3), (3, 7), (3, 7)]
    x = [drawn(*shape, seed=seed).bfloat16().detach().requires_grad_() for seed, shape in enumerate(shapes)]
    out = low_rank_attention(*x)
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16 and torch.isfinite(out).all()
    assert all(part.grad is not None and torch.isfinite(part.grad).all() for part in x)
