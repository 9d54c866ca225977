"""Cross-attention against loops and against torch, values and gradients, with more keys than queries and fewer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attnrepro.nn.cross_attention import CrossAttention
from attnrepro.nn.self_attention import SelfAttention

# num_queries, num_keys, embed_dim, context_dim, num_heads
SHAPES = [(1, 1, 1, 1, 1), (1, 5, 3, 2, 1), (7, 11, 16, 13, 4), (9, 2, 6, 6, 3), (5, 5, 10, 3, 5)]


def tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(embed_dim: int, context_dim: int, num_heads: int) -> CrossAttention:
    torch.manual_seed(0)
    return CrossAttention(embed_dim, context_dim, num_heads).double()


@pytest.mark.parametrize(("queries", "keys", "embed_dim", "context_dim", "num_heads"), SHAPES)
def test_output_is_that_of_loops(queries: int, keys: int, embed_dim: int, context_dim: int, num_heads: int) -> None:
    layer = layer_of(embed_dim, context_dim, num_heads)
    x, context = tokens(queries, embed_dim), tokens(keys, context_dim, seed=2)
    out, size = layer(x, context).detach(), embed_dim // num_heads
    q, k, v = layer.w_query(x).detach(), layer.w_key(context).detach(), layer.w_value(context).detach()
    assert out.shape == (queries, embed_dim)
    for i in range(queries):
        mixed = []
        for h in range(num_heads):
            part = slice(h * size, (h + 1) * size)
            e = [math.exp(float(q[i, part] @ k[j, part]) / math.sqrt(size)) for j in range(keys)]
            mixed.append(sum((w / sum(e) * v[j, part] for j, w in enumerate(e)), torch.zeros(size).double()))
        torch.testing.assert_close(out[i], layer.w_out.weight.detach() @ torch.cat(mixed), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("queries", "keys", "embed_dim", "context_dim", "num_heads"), SHAPES)
def test_values_and_gradients_are_those_of_torch(
    queries: int, keys: int, embed_dim: int, context_dim: int, num_heads: int
) -> None:
    ours = layer_of(embed_dim, context_dim, num_heads)
    theirs = nn.MultiheadAttention(
        embed_dim, num_heads, bias=False, kdim=context_dim, vdim=context_dim, batch_first=True
    ).double()
    given = [ours.w_query.weight, ours.w_key.weight, ours.w_value.weight, ours.w_out.weight]
    own = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight, theirs.out_proj.weight]
    if context_dim == embed_dim:  # then torch keeps the three in one matrix
        own = [theirs.in_proj_weight, theirs.out_proj.weight]
        given = [torch.cat(given[:3]).detach().requires_grad_(), given[3]]
    with torch.no_grad():
        for mine, weight in zip(given, own, strict=True):
            weight.copy_(mine)
    x, context = tokens(2, queries, embed_dim), tokens(2, keys, context_dim, seed=2)
    leaves = [t.clone().requires_grad_() for t in (x, context)]
    others = [t.clone().requires_grad_() for t in (x, context)]
    found, expected = ours(*leaves), theirs(others[0], others[1], others[1], need_weights=False)[0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    weights = theirs(others[0], others[1], others[1], average_attn_weights=False)[1]
    torch.testing.assert_close(ours.weights(*leaves), weights, rtol=1e-12, atol=1e-14)
    ones = tokens(*found.shape, seed=3)
    slopes = torch.autograd.grad((found * ones).sum(), [*leaves, *ours.parameters()])
    wanted = torch.autograd.grad((expected * ones).sum(), [*others, *own])
    by_name = dict(zip([name for name, _ in ours.named_parameters()], slopes[2:], strict=True))
    flat = [by_name[f"w_{part}.weight"] for part in ("query", "key", "value")]
    mine = [torch.cat(flat)] if context_dim == embed_dim else flat
    for one, other in zip([*slopes[:2], *mine, by_name["w_out.weight"]], wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_rows_sum_to_one_over_the_keys_and_not_over_the_queries() -> None:
    weights = layer_of(6, 4, 2).weights(tokens(3, 6), tokens(8, 4, seed=2))
    assert weights.shape == (2, 3, 8)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3).double())
    assert float((weights.detach().sum(-2) - 1).abs().min()) > 1e-3


def test_of_a_sequence_to_itself_it_is_self_attention() -> None:
    torch.manual_seed(0)
    layer, x = SelfAttention(6, 3).double(), tokens(2, 5, 6)
    cross = CrossAttention(6, 6, 3).double()
    cross.load_state_dict(layer.state_dict())
    assert torch.equal(cross(x, x), layer(x))
    assert not torch.allclose(cross(x, x.flip(0)), layer(x))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((10, 4, 3), "num_heads=3 must be 1 or more and divide embed_dim=10"),
        ((10, 4, 0), "num_heads=0"),
        ((0, 4, 1), "embed_dim=0 must be 1 or more"),
        ((4, 0, 1), "context_dim=0 must be 1 or more"),
    ],
)
def test_sizes_that_do_not_fit(sizes: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CrossAttention(*sizes)
