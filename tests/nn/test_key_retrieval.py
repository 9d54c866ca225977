"""Stacked retrieval heads against torch's attention, one seed at a time, in values and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnrepro.data.key_retrieval import draw, stacked
from attnrepro.data.streams import generator
from attnrepro.nn.key_retrieval import RetrievalHeads, UniformHeads, errors

SIZES = [(1, 1, 1), (5, 3, 2), (7, 16, 6), (64, 9, 16)]


def heads(embed_dim: int, head_dim: int, n_keys: int, *, scaled: bool, init: str = "unit", seeds: int = 3) -> Any:
    streams = [generator(seed, "start") for seed in range(seeds)]
    made = RetrievalHeads(streams, embed_dim, head_dim, n_keys, scaled=scaled, init=init).double()
    with torch.no_grad():
        made.w_value.add_(torch.randn(made.w_value.shape, generator=generator(9, "value"), dtype=torch.float64))
    return made


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("embed_dim", "head_dim", "n_keys"), SIZES)
def test_a_stack_is_torchs_attention_of_every_seed(embed_dim: int, head_dim: int, n_keys: int, scaled: bool) -> None:
    made = heads(embed_dim, head_dim, n_keys, scaled=scaled)
    data = stacked([draw(4, n_keys, embed_dim, generator(seed, "data")) for seed in range(3)])
    keys, queries = data.keys.double(), data.queries.double()
    scores = made.read(made.logits(made.query(queries), keys))
    loss = errors(scores, data.answers).mean(-1).sum()
    found = torch.autograd.grad(loss, [made.w_query, made.w_key, made.w_value])
    for seed in range(3):
        w_query, w_key, w_value = (
            w[seed].detach().clone().requires_grad_() for w in (made.w_query, made.w_key, made.w_value)
        )
        values = torch.eye(n_keys, dtype=torch.float64) @ w_value
        alone = scaled_dot_product_attention(
            (queries[seed] @ w_query)[:, None],
            keys[seed] @ w_key,
            values.expand(4, n_keys, n_keys),
            scale=1 / math.sqrt(head_dim) if scaled else 1.0,
        )[:, 0]
        torch.testing.assert_close(scores[seed], alone, rtol=1e-10, atol=1e-12)
        total = torch.zeros((), dtype=torch.float64)
        for i in range(4):
            for j in range(n_keys):
                total = total + (alone[i, j] - float(int(data.answers[seed, i]) == j)) ** 2
        grads = torch.autograd.grad(total / 4, [w_query, w_key, w_value])
        for ours, theirs in zip(found, grads, strict=True):
            torch.testing.assert_close(ours[seed], theirs, rtol=1e-9, atol=1e-12)


def test_the_start_is_the_same_with_and_without_the_factor() -> None:
    a, b = (RetrievalHeads([generator(4, "start")], 6, 5, 3, scaled=scaled, init="unit") for scaled in (True, False))
    assert torch.equal(a.w_query, b.w_query) and torch.equal(a.w_key, b.w_key)
    assert not torch.equal(a.w_query, a.w_key)
    assert torch.equal(a.w_value[0], torch.eye(3))


@pytest.mark.parametrize(("init", "variance"), [("unit", 1.0), ("linear", 1 / 3)])
def test_the_law_of_the_start(init: str, variance: float) -> None:
    made = RetrievalHeads([generator(0, "start")], 50, 400, 2, scaled=True, init=init)
    for weight in (made.w_query, made.w_key):
        drawn = weight.detach().double() * math.sqrt(50)
        # Kurtosis 3 and 1.8: an sd of the mean square is variance * sqrt((kurtosis - 1) / n).
        assert abs(float(drawn.square().mean()) / variance - 1) < 4 * math.sqrt(2 / drawn.numel())
        assert abs(float(drawn.mean())) < 4 * math.sqrt(variance / drawn.numel())
        assert (float(drawn.abs().max()) <= 1) == (init == "linear")
    # torch's own nn.Linear has this law.
    torch.manual_seed(0)
    linear = torch.nn.Linear(50, 400, bias=False).weight.detach().double() * math.sqrt(50)
    assert abs(float(linear.square().mean()) - 1 / 3) < 0.01 and float(linear.abs().max()) <= 1


def test_frozen_attention_says_the_same_to_every_query() -> None:
    made = UniformHeads(2, 5)
    with torch.no_grad():
        made.w_value.add_(torch.randn(2, 5, 5, generator=generator(0, "value")))
    scores, w_value = made.read(4).detach(), made.w_value.detach()
    for seed in range(2):
        for i in range(4):
            for j in range(5):
                mean = sum(float(w_value[seed, k, j]) for k in range(5)) / 5
                assert float(scores[seed, i, j]) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("sizes", "init", "named"),
    [
        ((0, 1, 1), "unit", "embed_dim=0"),
        ((1, 0, 1), "unit", "head_dim=0"),
        ((1, 1, 0), "unit", "n_keys=0"),
        ((1, 1, 1), "xavier", "init=xavier must be one of unit, linear"),
    ],
)
def test_what_cannot_be_is_one_sentence(sizes: tuple[int, int, int], init: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}"):
        RetrievalHeads([generator(0, "start")], *sizes, scaled=True, init=init)


def test_no_stream_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^streams="):
        RetrievalHeads([], 1, 1, 1, scaled=True, init="unit")
