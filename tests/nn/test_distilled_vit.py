"""The distillation token: costs, values against a plain loop, and what reaches which head."""

from __future__ import annotations

import math

import pytest
import torch

from attnrepro.nn.cost import count
from attnrepro.nn.distilled_vit import DistilledViT, seeded_distilled_vit
from attnrepro.nn.presets import seeded_model
from attnrepro.theory.distillation import token_cost
from attnrepro.theory.image_models import cost

SHAPE = (1, 28, 28)


@pytest.mark.parametrize(("name", "shape"), [("vit_patch7", SHAPE), ("vit_patch4", SHAPE), ("vit_patch2", (1, 8, 8))])
def test_costs_are_those_of_the_closed_form(name: str, shape: tuple[int, int, int]) -> None:
    model = seeded_distilled_vit(0, name, shape, 10)
    assert count(model, shape) == token_cost(name, shape, 10)
    d = model.head.in_features
    assert token_cost(name, shape, 10).parameters == cost(name, shape, 10).parameters + d + 10 * d + 10


def test_the_rest_starts_as_without_a_token() -> None:
    plain = dict(seeded_model(4, "vit_patch7", SHAPE, 10).named_parameters())
    for name, value in seeded_distilled_vit(4, "vit_patch7", SHAPE, 10).named_parameters():
        if not name.startswith("distillation"):
            assert torch.equal(value, plain[name])


@pytest.mark.parametrize("pooling", ["mean", "class"])
def test_values_and_gradients_are_those_of_torch(pooling: str) -> None:
    torch.manual_seed(0)
    model = DistilledViT((1, 6, 8), 5, patch=2, embed_dim=12, depth=2, num_heads=3, pooling=pooling).double()
    images = torch.randn(3, 1, 6, 8, dtype=torch.float64)
    cut = torch.stack([images[:, 0, r : r + 2, c : c + 2].flatten(1) for r in (0, 2, 4) for c in (0, 2, 4, 6)], 1)
    x = cut @ model.patches.projection.weight.T + model.patches.projection.bias + model.position
    if pooling == "class":
        assert model.class_token is not None
        x = torch.cat([model.class_token.expand(3, 1, -1), x], 1)
    x = torch.cat([x, model.distillation_token.expand(3, 1, -1)], 1)
    for block in model.blocks:
        own = block.attention
        reference = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
        with torch.no_grad():
            parts = [own.w_query, own.w_key, own.w_value]
            reference.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
            reference.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
            reference.out_proj.weight.copy_(own.w_out.weight)
            reference.out_proj.bias.copy_(own.w_out.bias)
        normed = block.attention_norm(x)
        x = x + reference(normed, normed, normed)[0]
        x = x + block.mlp(block.mlp_norm(x))
    x = model.norm(x)
    of_class = x[:, 0] if pooling == "class" else x[:, :12].mean(1)
    expected = [model.head(of_class), model.distillation_head(x[:, -1])]
    found = model.both(images)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    probabilities = sum(part.softmax(-1) for part in expected) / 2
    torch.testing.assert_close(model(images).exp(), probabilities)
    (own_slope,) = torch.autograd.grad(found[1].square().sum(), model.distillation_token, retain_graph=True)
    (slope,) = torch.autograd.grad(expected[1].square().sum(), model.distillation_token)
    torch.testing.assert_close(own_slope, slope)


def test_which_head_depends_on_which_token() -> None:
    torch.manual_seed(0)
    deep, flat = (DistilledViT((1, 4, 4), 3, patch=2, embed_dim=8, depth=depth, num_heads=2) for depth in (1, 0))
    images = torch.randn(2, 1, 4, 4)
    for model, linked in ((deep, True), (flat, False)):
        of_class, of_teacher = model.both(images)
        (slope,) = torch.autograd.grad(
            of_class[:, 0].sum(), model.distillation_token, allow_unused=True, retain_graph=True
        )
        assert (slope is not None and bool(slope.any())) is linked
        (slope,) = torch.autograd.grad(of_teacher[:, 0].sum(), model.distillation_token)
        assert bool(slope.any())


def test_small_and_narrow_images() -> None:
    for shape, patch in (((1, 1, 1), 1), ((2, 1, 7), (1, 7)), ((1, 5, 3), (5, 1))):
        with pytest.warns(UserWarning, match="fewer than"):
            model = DistilledViT(shape, 2, patch=patch, embed_dim=4, depth=1, num_heads=1)
        logits = model(torch.randn(2, *shape))
        torch.testing.assert_close(logits.exp().sum(-1), torch.ones(2))
        assert math.isfinite(float(model.bfloat16()(torch.randn(2, *shape).bfloat16()).sum()))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="position=rotary must not be given"):
        DistilledViT(SHAPE, 10, patch=7, position="rotary")
    with pytest.raises(ValueError, match="model=cnn must be a ViT"):
        seeded_distilled_vit(0, "cnn", SHAPE, 10)
