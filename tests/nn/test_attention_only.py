"""Attention-only models against loops in float64, and heads that are switched off."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attnrepro.nn.attention_only import AttentionOnly, Layer

SIZES: dict[str, Any] = {"vocabulary": 5, "length": 6, "embed_dim": 8, "num_heads": 2, "depth": 2}


def made(**changes: Any) -> AttentionOnly:
    streams = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
    return AttentionOnly(streams, **{**SIZES, **changes}).double()


def by_loops(model: AttentionOnly, seed: int, tokens: list[int], off: tuple[int, int] | None = None) -> torch.Tensor:
    """Logits ``[length, vocabulary]`` of one sequence, token by token and head by head."""
    x = [model.embed[seed, token] + model.position[seed, i] for i, token in enumerate(tokens)]
    width = 8 // model.num_heads
    for layer in range(model.depth):
        rows = []
        for i in range(len(x)):
            parts = []
            for head in range(model.num_heads):
                part = slice(head * width, (head + 1) * width)
                q = x[i] @ model.w_query[seed, layer][:, part]
                s = [float(q @ (x[j] @ model.w_key[seed, layer][:, part])) / math.sqrt(width) for j in range(i + 1)]
                e = [math.exp(v) for v in s]
                mixed = sum((w / sum(e)) * (x[j] @ model.w_value[seed, layer][:, part]) for j, w in enumerate(e))
                parts.append(mixed * (0.0 if off == (layer, head) else 1.0))
            rows.append(x[i] + torch.cat(parts) @ model.w_out[seed, layer])
        x = rows
    return torch.stack(x) @ model.unembed[seed]


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_logits_against_loops(num_heads: int) -> None:
    model = made(num_heads=num_heads)
    tokens = torch.randint(5, (2, 3, 6), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model(tokens)
        for seed in range(2):
            for n in range(3):
                torch.testing.assert_close(out[seed, n], by_loops(model, seed, tokens[seed, n].tolist()))


def test_one_head_switched_off_against_loops() -> None:
    model = made()
    tokens = torch.randint(5, (2, 1, 6), generator=torch.Generator().manual_seed(1))
    keep = torch.ones(2, 2, dtype=torch.float64)
    keep[1, 0] = 0
    with torch.no_grad():
        out = model(tokens, keep=keep)
        torch.testing.assert_close(out[1, 0], by_loops(model, 1, tokens[1, 0].tolist(), off=(1, 0)))
        assert not torch.allclose(out, model(tokens))


def test_layers_are_handed_out_and_nothing_looks_ahead() -> None:
    model = made()
    tokens = torch.randint(5, (2, 3, 6), generator=torch.Generator().manual_seed(2))
    layers: list[Layer] = []
    with torch.no_grad():
        out = model(tokens, layers=layers)
        changed = tokens.clone()
        changed[..., -1] = (changed[..., -1] + 1) % 5
        after = model(changed)
    assert [tuple(each.weights.shape) for each in layers] == [(2, 3, 2, 6, 6)] * 2
    assert tuple(layers[0].outputs.shape) == (2, 3, 2, 6, 4)
    for each in layers:
        assert (each.weights.triu(1) == 0).all()
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(2, 3, 2, 6, dtype=torch.float64))
    assert torch.equal(out[..., :-1, :], after[..., :-1, :]) and not torch.equal(out, after)


def test_seeds_do_not_mix_and_start_the_same_for_any_number_of_heads() -> None:
    one = AttentionOnly([torch.Generator().manual_seed(4)], **{**SIZES, "num_heads": 4})
    both = made().float()
    for name, weight in one.named_parameters():
        assert torch.equal(weight[0], dict(both.named_parameters())[name][1])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"depth": 0}, "depth=0 must be 1 or more"),
        ({"num_heads": 3}, "num_heads=3 must be 1 or more and divide embed_dim=8"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        made(**change)


def test_no_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        AttentionOnly([], **SIZES)
