"""The non-local block against loops over pairs, torch's attention, its symmetries and its printed sub-sampling."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, scaled_dot_product_attention

from attnrepro.nn.non_local import KINDS, NonLocal, non_local_as_printed

from .naive_maps import (
    SIZES,
    apart,
    assert_bfloat16_finite,
    assert_same,
    drawn,
    flops_of,
    opened,
    parameters_of,
    permuted,
    reach,
)


def by_loops(block: NonLocal, x: Tensor) -> Tensor:
    def apply(layer: torch.nn.Conv2d, vector: Tensor) -> Tensor:
        return layer.weight[:, :, 0, 0] @ vector + layer.bias

    height, width = x.shape[-2:]
    outputs = []
    for image in x:
        cells = [
            [(r + dr, c + dc) for dr in range(block.pool) for dc in range(block.pool)]
            for r in range(0, height, block.pool)
            for c in range(0, width, block.pool)
        ]
        cells = [[(r, c) for r, c in cell if r < height and c < width] for cell in cells]
        of_key = (lambda v: v) if block.kind == "gaussian" else (lambda v: apply(block.phi, v))
        keys = [torch.stack([of_key(image[:, r, c]) for r, c in cell]).amax(0) for cell in cells]
        values = [torch.stack([apply(block.g, image[:, r, c]) for r, c in cell]).amax(0) for cell in cells]
        out = torch.zeros_like(image)
        for r in range(height):
            for c in range(width):
                place = image[:, r, c]
                query = place if block.kind == "gaussian" else apply(block.theta, place)
                if block.kind == "concatenation":
                    scores = [(block.pair.weight[0] @ torch.cat((query, key))).relu() for key in keys]
                else:
                    scores = [sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
                if "gaussian" in block.kind:
                    scores = [score.exp() for score in scores]
                    total = sum(scores)
                else:
                    total = len(keys)
                y = sum(score * value for score, value in zip(scores, values, strict=True)) / total
                out = out.index_put(
                    (torch.arange(len(place)), torch.tensor(r), torch.tensor(c)), place + apply(block.out, y)
                )
        outputs.append(out)
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_loops(kind: str, pool: int, size: tuple[int, int]) -> None:
    block = opened(NonLocal(3, kind=kind, inner=2, pool=pool))
    assert isinstance(block, NonLocal)
    assert_same(block, lambda x: by_loops(block, x), drawn(2, 3, *size))


@pytest.mark.parametrize("pool", [1, 2])
def test_embedded_gaussian_is_attention_up_to_the_scale(pool: int) -> None:
    """torch's attention with scale 1, on the same projections; with 1 / sqrt(d) it is another function."""
    block, x = opened(NonLocal(6, inner=4, pool=pool)), drawn(2, 6, 4, 6)
    assert isinstance(block, NonLocal)
    query, key, value = (part(x) for part in (block.theta, block.phi, block.g))
    if pool > 1:
        key, value = (t.unflatten(-1, (3, 2)).unflatten(-3, (2, 2)).amax((-1, -3)) for t in (key, value))
    tokens = [t.flatten(-2).mT for t in (query, key, value)]
    with torch.no_grad():
        for scale, same in ((1.0, True), (None, False)):
            mixed = scaled_dot_product_attention(*tokens, scale=scale).mT.unflatten(-1, (4, 6))
            gap = (block(x) - x - conv2d(mixed, block.out.weight, block.out.bias)).abs().max()
            assert (gap < 1e-13) if same else (gap > 1e-3)


def test_a_new_block_is_the_identity() -> None:
    x = drawn(2, 6, 3, 4).float()
    for kind in KINDS:
        assert torch.equal(NonLocal(6, kind=kind)(x), x)


@pytest.mark.parametrize("kind", KINDS)
def test_it_commutes_with_every_permutation_unless_pooled(kind: str) -> None:
    x = drawn(2, 4, 4, 6)
    assert apart(opened(NonLocal(4, kind=kind)), permuted, x) < 1e-13
    pooled = opened(NonLocal(4, kind=kind, pool=2))
    assert apart(pooled, lambda t: t.roll((2, -4), (-2, -1)), x) < 1e-13
    for move in (permuted, lambda t: t.roll(1, -1), lambda t: t.roll(1, -2)):
        assert apart(pooled, move, x) > 1e-3


def test_every_place_reaches_every_place() -> None:
    assert reach(opened(NonLocal(4)), drawn(1, 4, 5, 3), 0, 0).all()


@pytest.mark.parametrize(("channels", "inner"), [(8, 4), (5, 3), (64, 32)])
def test_costs_in_closed_form(channels: int, inner: int) -> None:
    for kind, of_kind in (
        ("embedded_gaussian", 4 * channels * inner + 3 * inner + channels),
        ("dot_product", 4 * channels * inner + 3 * inner + channels),
        ("gaussian", 2 * channels * inner + inner + channels),
        ("concatenation", 4 * channels * inner + 5 * inner + channels),
    ):
        assert parameters_of(NonLocal(channels, kind=kind, inner=inner)) == of_kind
    for height, width in ((4, 6), (16, 16)):
        n = height * width
        for pool in (1, 2):
            keys = n // pool**2
            # phi and g see the whole map before its maxima are taken.
            projections = {"gaussian": 4 * n * channels * inner}
            pairs = {"gaussian": 2 * n * keys * (channels + inner), "concatenation": 2 * n * keys * inner}
            for kind in KINDS:
                block = NonLocal(channels, kind=kind, inner=inner, pool=pool)
                wanted = projections.get(kind, 8 * n * channels * inner) + pairs.get(kind, 4 * n * keys * inner)
                assert flops_of(block, 1, channels, height, width) == wanted, kind
                x = torch.zeros(1, channels, height, width)
                assert block.attention(x).shape == (1, n, keys)


def test_printed_subsampling_has_the_printed_cost_and_another_output() -> None:
    """N^2 / 16 needs fewer queries too, and four places then receive the same; of the paper's N^2 / 4 they do not."""
    whole, pooled = opened(NonLocal(6)), opened(NonLocal(6, pool=2))
    assert isinstance(whole, NonLocal)
    x, n = drawn(2, 6, 8, 12), 96
    with torch.no_grad():
        weights = [whole.attention(x), pooled.attention(x), whole.attention(x[..., ::2, ::2])]
        assert [w[0].numel() for w in weights] == [n**2, n**2 // 4, n**2 // 16]

        def spread(added: Tensor) -> float:
            squares = added.unflatten(-1, (6, 2)).unflatten(-3, (4, 2))
            return float((squares.amax((-1, -3)) - squares.amin((-1, -3))).max())

        printed = non_local_as_printed(whole, x)
        assert spread(printed - x) < 1e-14 < 1e-2 < spread(pooled(x) - x)
        # What is added, from maxima of squares by torch's own pooling.
        small = torch.nn.functional.max_pool2d(x, 2)
        assert torch.allclose((printed - x)[..., 1::2, ::2], whole(small) - small, atol=1e-13)
    assert non_local_as_printed(whole, drawn(1, 6, 5, 3)).shape == (1, 6, 5, 3)


def test_weights_are_what_torch_would_normalise() -> None:
    x = drawn(2, 4, 3, 3)
    for kind in ("embedded_gaussian", "gaussian"):
        rows = opened(NonLocal(4, kind=kind)).attention(x).detach().sum(-1)
        assert math.isclose(float(rows.min()), 1, abs_tol=1e-13) and math.isclose(float(rows.max()), 1, abs_tol=1e-13)
    assert (opened(NonLocal(4, kind="dot_product")).attention(x) < 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_finite(kind: str) -> None:
    assert_bfloat16_finite(opened(NonLocal(4, kind=kind, pool=2)), 4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="kind=softmax must be one of embedded_gaussian"):
        NonLocal(4, kind="softmax")
    with pytest.raises(ValueError, match="pool=0 must be 1 or more"):
        NonLocal(4, pool=0)
    with pytest.raises(ValueError, match="channels=0 must be 1 or more"):
        NonLocal(0)
