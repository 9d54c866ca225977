"""Encoders of five kinds of attention against loops over tokens, seeds by themselves, and weights seen from outside."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.efficient_encoder import EfficientEncoder, effective_weights, mix, power
from attnrepro.theory import efficient_attention as closed
from attnrepro.theory.efficient_attention import KINDS, Sizes

SIZES = Sizes(length=7, vocabulary=5, outputs=3, embed_dim=4, num_heads=2, depth=2, rank=3, width=3, stride=3)


def made(kind: str, seeds: int = 2, sizes: Sizes = SIZES) -> EfficientEncoder:
    return EfficientEncoder([torch.Generator().manual_seed(s) for s in range(seeds)], kind, sizes).double()


def tokens(seeds: int = 2, n: int = 2) -> Tensor:
    stream = torch.Generator().manual_seed(9)
    return torch.randint(SIZES.vocabulary, (seeds, n, SIZES.length), generator=stream)


def weight_rows(kind: str, query: Tensor, key: Tensor, mixture: Tensor | None) -> Tensor:
    """Weights of one head, one pair at a time; those of mixtures times what is in them."""
    n, size = query.shape
    rows = []
    if kind == "low_rank":
        assert mixture is not None
        mixed = [sum(mixture[r, j] * key[j] for j in range(n)) for r in range(len(mixture))]
        for i in range(n):
            strength = torch.stack([torch.exp(query[i] @ k / math.sqrt(size)) for k in mixed])
            rows.append((strength / strength.sum()) @ mixture)
        return torch.stack(rows)

    def feature(x: Tensor) -> Tensor:
        return torch.where(x > 0, x + 1, x.exp())

    for i in range(n):
        strength = []
        for j in range(n):
            seen = closed.looks_at(kind, i, j, SIZES.width, SIZES.stride)
            own = feature(query[i]) @ feature(key[j]) if kind == "linear" else (query[i] @ key[j] / size**0.5).exp()
            strength.append(own * float(seen))
        rows.append(torch.stack(strength) / sum(strength))
    return torch.stack(rows)


def by_loops(model: EfficientEncoder, ids: Tensor, seed: int) -> Tensor:
    """Logits of one sequence of one seed."""
    sizes = model.sizes
    x = torch.stack([model.embed[seed, t] + model.position[seed, i] for i, t in enumerate(ids.tolist())])
    size = sizes.embed_dim // sizes.num_heads
    for depth in range(sizes.depth):
        q, k, v = (x @ w[seed, depth] for w in (model.w_query, model.w_key, model.w_value))
        heads = []
        for h in range(sizes.num_heads):
            own = slice(h * size, (h + 1) * size)
            mixture = model.mixture[seed, depth] if model.kind == "low_rank" else None
            heads.append(weight_rows(model.kind, q[:, own], k[:, own], mixture) @ v[:, own])
        x = x + torch.cat(heads, -1) @ model.w_out[seed, depth]
    return x @ model.unembed[seed]


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_loops(kind: str) -> None:
    model, ids = made(kind), tokens()
    found = model(ids)
    expected = torch.stack([torch.stack([by_loops(model, ids[s, n], s) for n in range(2)]) for s in range(2)])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    of = list(model.parameters())
    slopes = torch.autograd.grad(found.square().sum(), of)
    for slope, wanted in zip(slopes, torch.autograd.grad(expected.square().sum(), of), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_seen_through_unit_values_are_the_weights(kind: str) -> None:
    stream = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(7, size, generator=stream, dtype=torch.float64) for size in (2, 2, 5))
    mixture = torch.randn(3, 7, generator=stream, dtype=torch.float64) if kind == "low_rank" else None
    found = effective_weights(kind, SIZES, query, key, mixture)
    torch.testing.assert_close(found, weight_rows(kind, query, key, mixture), rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(found @ value, mix(kind, SIZES, query, key, value, mixture), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_each_seed_is_as_it_would_be_alone(kind: str) -> None:
    together = made(kind)(tokens())
    alone = EfficientEncoder([torch.Generator().manual_seed(1)], kind, SIZES).double()(tokens()[1:])
    torch.testing.assert_close(together[1:], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_the_closed_forms(kind: str) -> None:
    sizes = replace(SIZES, length=12, embed_dim=8)
    streams = [torch.Generator().manual_seed(0)]
    model = EfficientEncoder(streams, kind, sizes)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 1, 12, dtype=torch.long))
    assert counter.get_total_flops() == closed.flops(kind, sizes)
    assert sum(part.numel() for part in model.parameters()) == closed.parameters(kind, sizes)


def test_weights_of_every_layer_are_handed_out() -> None:
    weights: list[Tensor] = []
    made("window")(tokens(), weights=weights)
    assert [each.shape for each in weights] == [(2, 2, 2, 7, 7)] * 2
    far = (torch.arange(7)[:, None] - torch.arange(7)).abs() > 1
    assert all(float(each.detach()[..., far].abs().max()) == 0 for each in weights)


def test_power_by_hand() -> None:
    weights = torch.tensor([[0.5, 0.1, 0.2, -0.2], [0, 1, 0, 0], [0, 0, 0, 1], [0.3, 0, 0, 0.7]], dtype=torch.float64)
    near, others = power(weights, 1)
    assert near.tolist() == pytest.approx([0.01, 0, 1, 0]) and others.tolist() == pytest.approx([0.09, 0, 1, 0.09])
    assert power(weights, 2)[0].tolist() == pytest.approx([0.05, 0, 1, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_stays_finite(kind: str) -> None:
    out = made(kind).bfloat16()(tokens())
    assert out.dtype == torch.bfloat16 and out.isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="kind=sparse must be one of full"):
        made("sparse")
    with pytest.raises(ValueError, match=r"streams=\[\] must hold at least one"):
        made("full", 0)
    x = torch.zeros(7, 2)
    with pytest.raises(ValueError, match=r"kind=low_rank must be one of .* low_rank with a mixture"):
        mix("low_rank", SIZES, x, x, x)
