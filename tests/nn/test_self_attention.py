"""Self-attention against plain loops and against torch, with masks whose polarity matters."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnrepro.nn import masks
from attnrepro.nn.self_attention import SelfAttention

SHAPES = [(1, 1, 1), (2, 1, 1), (5, 3, 1), (5, 3, 3), (8, 16, 4), (17, 6, 2)]  # length, embed_dim, num_heads


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def layer_of(embed_dim: int, num_heads: int) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(embed_dim, num_heads).double()


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_loops(layer: SelfAttention, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """One query, one head, one key at a time; a key that is not attended to has no part in the sums."""
    length, embed_dim = x.shape
    size = embed_dim // layer.num_heads
    q, k, v = (x @ part.weight.T for part in (layer.w_query, layer.w_key, layer.w_value))
    rows = []
    for i in range(length):
        heads = []
        for h in range(layer.num_heads):
            part = slice(h * size, (h + 1) * size)
            keys = [j for j in range(length) if mask is None or mask[i, j]]
            e = [math.exp(float((q[i, part] @ k[j, part]).detach()) / math.sqrt(size)) for j in keys]
            mixed = sum((w / sum(e) * v[j, part] for w, j in zip(e, keys, strict=True)), torch.zeros(size).double())
            heads.append(mixed)
        rows.append(layer.w_out.weight @ torch.cat(heads))
    return torch.stack(rows)


@pytest.mark.parametrize(("length", "embed_dim", "num_heads"), SHAPES)
def test_output_is_that_of_loops(length: int, embed_dim: int, num_heads: int) -> None:
    layer, x = layer_of(embed_dim, num_heads), tokens(length, embed_dim)
    torch.testing.assert_close(layer(x), by_loops(layer, x), rtol=1e-12, atol=1e-14)
    mask = masks.causal(length)
    torch.testing.assert_close(layer(x, mask), by_loops(layer, x, mask), rtol=1e-12, atol=1e-14)


def test_output_is_that_of_torch() -> None:
    layer, x, mask = layer_of(16, 4), tokens(3, 7, 16), masks.window(7, 3)
    theirs = nn.MultiheadAttention(16, 4, bias=False, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.w_query.weight, layer.w_key.weight, layer.w_value.weight]))
        theirs.out_proj.weight.copy_(layer.w_out.weight)
    # There True means "may not attend".
    expected, weights = theirs(x, x, x, attn_mask=~mask, average_attn_weights=False)
    torch.testing.assert_close(layer(x, mask), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer.weights(x, mask), weights, rtol=1e-12, atol=1e-14)


def test_true_may_attend_as_in_scaled_dot_product_attention() -> None:
    layer, x = layer_of(6, 2), tokens(5, 6)
    mask = torch.rand(5, 5, generator=torch.Generator().manual_seed(2)) < 0.5
    assert not torch.equal(mask, mask.T)  # neither polarity nor orientation may be confused
    mask.fill_diagonal_(True)
    q, k, v = (part(x).view(5, 2, 3).transpose(0, 1) for part in (layer.w_query, layer.w_key, layer.w_value))
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1).reshape(5, 6)
    torch.testing.assert_close(layer(x, mask), layer.w_out(expected), rtol=1e-12, atol=1e-14)
    assert (layer.weights(x, mask)[:, ~mask] == 0).all()


@pytest.mark.parametrize("rows", [[2], [0, 1, 2, 3, 4]])
def test_a_query_that_may_attend_to_nothing_gets_zeros(rows: list[int]) -> None:
    layer, x, mask = layer_of(6, 2), tokens(5, 6).requires_grad_(), torch.ones(5, 5, dtype=torch.bool)
    mask[rows] = False
    out = layer(x, mask)
    assert (out[rows] == 0).all()
    others = [i for i in range(5) if i not in rows]
    torch.testing.assert_close(out[others], layer(x)[others], rtol=1e-12, atol=1e-14)
    gradients = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    # The same gradient as that of the rows that do attend.
    expected = torch.autograd.grad(layer(x)[others].square().sum(), [x, *layer.parameters()])
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_in_lower_precision(dtype: torch.dtype) -> None:
    layer, x, mask = layer_of(16, 4).to(dtype), tokens(9, 16).to(dtype), masks.causal(9)
    out = layer(x, mask)
    assert out.dtype == dtype and bool(torch.isfinite(out).all())
    exact = layer.double()(x.double(), mask).detach()
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps * float(exact.abs().max()))


def test_batches_and_masks_broadcast() -> None:
    layer, x = layer_of(6, 2), tokens(2, 3, 5, 6)
    out, mask = layer(x, masks.causal(5)), masks.causal(5).expand(3, 2, 5, 5)
    assert out.shape == x.shape
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(out[i, j], layer(x[i, j], masks.causal(5)), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(layer(x, mask), out)


def test_rows_of_a_grid_may_change_places_under_criss_cross() -> None:
    """A permutation that maps the mask to itself is still a symmetry; any other is not."""
    layer, x, mask = layer_of(8, 1), tokens(12, 8), masks.criss_cross(3, 4)
    rows = torch.arange(12).view(3, 4)[[2, 0, 1]].flatten()
    torch.testing.assert_close(layer(x[rows], mask), layer(x, mask)[rows], rtol=1e-12, atol=1e-14)
    other = torch.arange(12).roll(1)
    assert float((layer(x[other], mask) - layer(x, mask)[other]).detach().abs().max()) > 0.01


def test_sizes_and_masks_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="num_heads=3 must be 1 or more and divide embed_dim=8"):
        SelfAttention(8, 3)
    with pytest.raises(ValueError, match="num_heads=0"):
        SelfAttention(8, 0)
    with pytest.raises(ValueError, match="embed_dim=0 must be 1 or more"):
        SelfAttention(0)
    layer, x = layer_of(8, 2), tokens(5, 8)
    with pytest.raises(ValueError, match="must be boolean"):
        layer(x, torch.zeros(5, 5))
    with pytest.raises(ValueError, match="end with the shape"):
        layer(x, masks.causal(4))
