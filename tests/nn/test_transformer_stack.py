"""Transformer stacks against torch's encoder layer and loops, and what their options leave out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attnrepro.nn.transformer_stack import TransformerStack, rank_one_distance

SIZES: dict[str, Any] = {"embed_dim": 12, "num_heads": 3, "hidden": 20, "depth": 2, "order": "post"}


def made(**changes: Any) -> TransformerStack:
    streams = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    return TransformerStack(streams, **{**SIZES, **changes}).double()


def tokens() -> torch.Tensor:
    return torch.randn(2, 3, 5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def encoder(stack: TransformerStack, member: int) -> nn.Module:
    """torch's own encoder with the weights of a member."""
    layer = nn.TransformerEncoderLayer(
        12, 3, 20, dropout=0.0, batch_first=True, norm_first=stack.order == "pre", dtype=torch.float64
    )
    norm = nn.LayerNorm(12, dtype=torch.float64) if stack.order == "pre" else None
    whole = nn.TransformerEncoder(layer, stack.depth, norm, enable_nested_tensor=False)
    with torch.no_grad():
        for index, each in enumerate(whole.layers):
            for name, bias in each.named_parameters():
                if name.endswith("bias"):
                    bias.zero_()
            parts = [w[member, index].T for w in (stack.w_query, stack.w_key, stack.w_value)]
            each.self_attn.in_proj_weight.copy_(torch.cat(parts))  # type: ignore[union-attr,operator,arg-type]
            each.self_attn.out_proj.weight.copy_(stack.w_out[member, index].T)  # type: ignore[union-attr]
            each.linear1.weight.copy_(stack.w_first[member, index].T)  # type: ignore[union-attr]
            each.linear2.weight.copy_(stack.w_second[member, index].T)  # type: ignore[union-attr]
    return whole


@pytest.mark.parametrize("order", ["post", "pre"])
def test_values_and_gradients_against_torch(order: str) -> None:
    stack, x = made(order=order), tokens()
    out = stack(x)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (out * upstream).sum().backward()
    assert stack.w_second.grad is not None and stack.w_query.grad is not None
    for member in range(2):
        theirs = encoder(stack, member)
        wanted = theirs(x[member])
        torch.testing.assert_close(out[member], wanted)
        (wanted * upstream[member]).sum().backward()
        for index, layer in enumerate(theirs.layers):  # type: ignore[union-attr,arg-type]
            torch.testing.assert_close(stack.w_second.grad[member, index], layer.linear2.weight.grad.T)
            torch.testing.assert_close(stack.w_query.grad[member, index], layer.self_attn.in_proj_weight.grad[:12].T)


def test_attention_alone_is_means_of_projected_tokens() -> None:
    stack, x = made(order="bare", skip=False, mlp=False, depth=1), tokens()
    with torch.no_grad():
        out = stack(x)
        for i in range(5):
            heads = []
            for head in range(3):
                part = slice(4 * head, 4 * head + 4)
                q, k, v = (x[1, 2] @ w[1, 0][:, part] for w in (stack.w_query, stack.w_key, stack.w_value))
                heads.append(torch.softmax(k @ q[i] / 2, 0) @ v)
            torch.testing.assert_close(out[1, 2, i], torch.cat(heads) @ stack.w_out[1, 0])


def test_normalised_queries_bound_the_logits() -> None:
    plain, normed = made(order="pre"), made(order="pre", qk_norm=True)
    with torch.no_grad():
        outs = []
        for stack in (plain, normed):
            before = stack(tokens())
            stack.w_query *= 50.0
            outs.append((stack(tokens()) - before).abs().max())
    assert outs[1] < 1e-3 * outs[0]


def test_states_and_sums() -> None:
    stack = made()
    states: list[torch.Tensor] = []
    sums: list[torch.Tensor] = []
    out = stack(tokens(), states, sums)
    assert len(states) == len(sums) == 2 and torch.equal(states[-1], out)
    torch.testing.assert_close(nn.functional.layer_norm(sums[0], (12,)), states[0])


def test_deeper_stacks_start_with_the_layers_of_shallower_ones() -> None:
    for (name, few), (_, many) in zip(made().named_parameters(), made(depth=5).named_parameters(), strict=True):
        if name.startswith("w_"):
            assert torch.equal(few, many[:, :2])


def test_start_is_xaviers() -> None:
    stack = TransformerStack([torch.Generator().manual_seed(0)], **{**SIZES, "embed_dim": 120, "hidden": 40})
    assert float(stack.w_first.detach().std()) == pytest.approx((2 / 160) ** 0.5, rel=0.05)
    assert float(stack.w_query.detach().std()) == pytest.approx((1 / 120) ** 0.5, rel=0.05)


def test_distance_from_equal_tokens() -> None:
    assert float(rank_one_distance(torch.ones(4, 3))) == 0
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert float(rank_one_distance(x)) == pytest.approx(1)
    y = x + torch.tensor([3.0, 0.0])
    assert float(rank_one_distance(y)) == pytest.approx((2 / 20) ** 0.5)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"depth": 0}, "depth=0 must be 1 or more"),
        ({"num_heads": 5}, "num_heads=5 must be 1 or more and divide embed_dim=12"),
        ({"order": "sandwich"}, "order=sandwich must be one of post"),
    ],
)
def test_impossible_options_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        made(**changes)
    with pytest.raises(ValueError, match="at least one"):
        TransformerStack([], **SIZES)
