"""Stacked heads against loops in float64, and what each way of giving positions can tell apart."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from attnrepro.nn.coded_head import CodedHeads, HeadShape


def heads(way: str, content: int, code: int, seeds: int = 2) -> CodedHeads:
    shape = HeadShape(way, content, code, head_dim=3, length=4, symbols=5)
    return CodedHeads(shape, [torch.Generator().manual_seed(seed) for seed in range(seeds)]).double()


def tokens(seeds: int = 2, count: int = 6) -> torch.Tensor:
    stream = torch.Generator().manual_seed(9)
    symbols = torch.randint(5, (seeds, count, 4), generator=stream)
    return torch.cat([symbols, 5 + torch.randint(4, (seeds, count, 1), generator=stream)], -1)


@pytest.mark.parametrize(("way", "content", "code"), [("none", 4, 0), ("add", 4, 4), ("concat", 4, 2)])
def test_scores_against_loops(way: str, content: int, code: int) -> None:
    stack, given = heads(way, content, code), tokens()
    found = stack(given)
    for s in range(2):
        query, key, value, out = (w[s].tolist() for w in (stack.query, stack.key, stack.value, stack.out))
        for b in range(given.shape[1]):
            inputs: list[list[float]] = []
            for place, token in enumerate(given[s, b].tolist()):
                x = stack.embedding[s, token].tolist()
                p = stack.code[s, place].tolist() if stack.code is not None else []
                if way == "add":
                    x = [one + two for one, two in zip(x, p, strict=True)]
                elif way == "concat":
                    x = x + p
                inputs.append(x)

            def times(x: list[float], weight: Any) -> list[float]:
                return [sum(x[i] * weight[i][j] for i in range(len(x))) for j in range(len(weight[0]))]

            asked = times(inputs[-1], query)
            logits = [sum(a * k for a, k in zip(asked, times(x, key), strict=True)) / math.sqrt(3) for x in inputs[:-1]]
            weights = [math.exp(logit) / sum(map(math.exp, logits)) for logit in logits]
            mixed = [sum(w * times(x, value)[j] for w, x in zip(weights, inputs, strict=False)) for j in range(3)]
            assert found[s, b].tolist() == pytest.approx(times(mixed, out), rel=1e-10)


@pytest.mark.parametrize(("way", "content", "code"), [("none", 4, 0), ("add", 4, 4), ("concat", 4, 2)])
def test_only_a_code_tells_places_apart(way: str, content: int, code: int) -> None:
    stack, given = heads(way, content, code), tokens()
    moved = given[..., [1, 2, 3, 0, 4]]
    same = torch.allclose(stack(given), stack(moved), rtol=1e-12)
    assert same == (way == "none")


def test_members_do_not_mix() -> None:
    stack, given = heads("add", 4, 4), tokens()
    stack(given)[0].sum().backward()
    for parameter in stack.parameters():
        assert parameter.grad is not None
        assert parameter.grad[1].abs().max() == 0 and parameter.grad[0].abs().max() > 0
    alone = heads("add", 4, 4, seeds=1)
    torch.testing.assert_close(alone(given[:1]), stack(given)[:1])


@pytest.mark.parametrize(
    ("way", "content", "code", "word"),
    [
        ("rotate", 4, 4, "way=rotate must be one of none, add, concat"),
        ("add", 4, 3, "code=3 must be content=4"),
        ("concat", 4, 0, "sizes of 1 or more"),
        ("none", 0, 0, "sizes of 1 or more"),
    ],
)
def test_impossible_shapes_are_refused(way: str, content: int, code: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        HeadShape(way, content, code, head_dim=3, length=4, symbols=5)
