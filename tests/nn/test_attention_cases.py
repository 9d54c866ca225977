"""What users report of masks and heads, against torch's own attention: values and gradients in float64, odd sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from attnrepro.nn import masks
from attnrepro.nn.self_attention import SelfAttention

# length, embed_dim, num_heads
SHAPES = [(5, 3, 1), (7, 6, 2), (9, 15, 5), (17, 12, 3)]


def layer_of(embed_dim: int, num_heads: int) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(embed_dim, num_heads).double()


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def some_mask(length: int, empty: list[int]) -> Tensor:
    """Random and not symmetric; the rows in ``empty`` may attend to nothing."""
    made = torch.rand(length, length, generator=torch.Generator().manual_seed(2)) < 0.5
    made.fill_diagonal_(True)
    made[0, 1], made[1, 0] = True, False
    made[empty] = False
    return made


def by_torch(layer: SelfAttention, x: Tensor, mask: Tensor | None) -> Tensor:
    """The layer's projections around torch's fused attention."""
    length, embed_dim = x.shape[-2:]
    heads = [
        part(x).view(length, layer.num_heads, -1).transpose(0, 1)
        for part in (layer.w_query, layer.w_key, layer.w_value)
    ]
    out = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
    return layer.w_out(out.transpose(0, 1).reshape(length, embed_dim))


def module_of(layer: SelfAttention) -> nn.MultiheadAttention:
    embed_dim = layer.w_out.in_features
    made = nn.MultiheadAttention(embed_dim, layer.num_heads, bias=False, batch_first=True).double()
    with torch.no_grad():
        made.in_proj_weight.copy_(torch.cat([layer.w_query.weight, layer.w_key.weight, layer.w_value.weight]))
        made.out_proj.weight.copy_(layer.w_out.weight)
    return made


def slopes(out: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad((out * tokens(*out.shape)).sum(), inputs)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


# --- C21: a row that may attend to nothing ---


@pytest.mark.parametrize(("length", "embed_dim", "num_heads"), SHAPES)
def test_an_empty_row_is_what_torch_makes_of_it(length: int, embed_dim: int, num_heads: int) -> None:
    layer, x = layer_of(embed_dim, num_heads), tokens(length, embed_dim).requires_grad_()
    for empty in ([1], [0, length - 1], list(range(length))):
        mask = some_mask(length, empty)
        found, expected = layer(x, mask), by_torch(layer, x, mask)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        assert (found[empty] == 0).all()
        close(slopes(found, [x, *layer.parameters()]), slopes(expected, [x, *layer.parameters()]))
        # The literal formula is not a number there.
        logits = torch.zeros(length, length, dtype=torch.float64).masked_fill(~mask, -torch.inf)
        assert torch.softmax(logits, dim=-1)[empty].isnan().all()


@pytest.mark.parametrize(("length", "embed_dim", "num_heads"), SHAPES)
def test_an_empty_row_of_the_module_of_torch(length: int, embed_dim: int, num_heads: int) -> None:
    """Asked for no weights it gives zeros too; asked for weights it gives NaN, and ours does not."""
    layer, x, mask = layer_of(embed_dim, num_heads), tokens(length, embed_dim), some_mask(length, [1])
    theirs, a, b = module_of(layer), x.clone().requires_grad_(), x.clone().requires_grad_()
    found = layer(a, mask)
    expected = theirs(b[None], b[None], b[None], attn_mask=~mask, need_weights=False)[0][0]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    close(slopes(found, [a]), slopes(expected, [b]))
    with_weights, weights = theirs(b[None], b[None], b[None], attn_mask=~mask)
    assert with_weights[0, 1].isnan().all() and weights[0, 1].isnan().all()
    assert (layer.weights(a, mask)[:, 1] == 0).all()


# --- C23: which way round a mask is meant ---


@pytest.mark.parametrize(("length", "embed_dim", "num_heads"), SHAPES)
def test_true_may_attend_as_in_torchs_function_and_not_as_in_its_module(
    length: int, embed_dim: int, num_heads: int
) -> None:
    layer, x = layer_of(embed_dim, num_heads), tokens(length, embed_dim)
    theirs = module_of(layer)
    for mask in (masks.causal(length), masks.window(length, 3), some_mask(length, [])):
        a, b, c = (x.clone().requires_grad_() for _ in range(3))
        found, function = layer(a, mask), by_torch(layer, b, mask)
        module = theirs(c[None], c[None], c[None], attn_mask=~mask, need_weights=False)[0][0]
        torch.testing.assert_close(found, function, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(found, module, rtol=1e-12, atol=1e-14)
        slope = slopes(found, [a])
        close(slope, slopes(function, [b]))
        close(slope, slopes(module, [c]))
        wrong = theirs(c[None], c[None], c[None], attn_mask=mask, need_weights=False)[0][0]
        assert not torch.allclose(wrong.nan_to_num(), found)


def test_the_causal_mask_is_torchs_is_causal() -> None:
    layer, x = layer_of(12, 3), tokens(7, 12)
    q, k, v = (part(x).view(7, 3, 4).transpose(0, 1) for part in (layer.w_query, layer.w_key, layer.w_value))
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(7, 12)
    torch.testing.assert_close(layer(x, masks.causal(7)), layer.w_out(expected), rtol=1e-12, atol=1e-14)


def test_a_mask_of_zeros_and_ones_is_refused_and_not_added() -> None:
    """torch adds a mask of floats to the logits: ones where one may attend change little, and silently."""
    layer, x = layer_of(6, 2), tokens(5, 6)
    ones = torch.ones(5, 5, dtype=torch.float64).tril()
    assert not torch.allclose(by_torch(layer, x, ones), by_torch(layer, x, ones.bool()))
    for mask in (ones, ones.int(), ones.long(), ones.to(torch.uint8), ones.float()):
        with pytest.raises(ValueError, match="must be boolean"):
            layer(x, mask)


# --- C26: heads that do not divide ---


@pytest.mark.parametrize(("embed_dim", "num_heads"), [(10, 3), (8, 16), (7, 2)])
def test_heads_that_do_not_divide_are_told_before_torch_asserts(embed_dim: int, num_heads: int) -> None:
    with pytest.raises(AssertionError):
        nn.MultiheadAttention(embed_dim, num_heads)
    with pytest.raises(ValueError, match=f"num_heads={num_heads} must be 1 or more and divide embed_dim={embed_dim}"):
        SelfAttention(embed_dim, num_heads)


@pytest.mark.parametrize(("embed_dim", "num_heads"), [(1, 1), (7, 7), (15, 3)])
def test_odd_sizes_that_divide_are_what_torch_makes_of_them(embed_dim: int, num_heads: int) -> None:
    layer, x = layer_of(embed_dim, num_heads), tokens(1, embed_dim)
    torch.testing.assert_close(layer(x), by_torch(layer, x, None), rtol=1e-12, atol=1e-14)
    x = tokens(13, embed_dim).requires_grad_()
    found, expected = layer(x), by_torch(layer, x, None)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    close(slopes(found, [x, *layer.parameters()]), slopes(expected, [x, *layer.parameters()]))
