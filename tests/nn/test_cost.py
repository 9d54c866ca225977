"""Counted parameters and FLOPs against closed forms, and against figures that were counted before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.cost import count
from attnrepro.nn.presets import build_model
from attnrepro.nn.vit import TokenAttention
from attnrepro.theory.image_models import PRESETS, Cost, cost

FASHION = (1, 28, 28)
VITS: list[dict[str, Any]] = [
    {"pooling": "class"},
    {"pooling": "class", "norm_first": False, "position": "rotary"},
    {"position": "none", "patch": (7, 4)},
    {"position": "sinusoidal_2d", "mlp_ratio": 4, "depth": 3},
    {"embed_dim": 48, "num_heads": 3, "fused": False, "dropout": 0.1},
]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("cnn", {"norm": "group", "head": "flatten"}),
    ("cnn", {"widths": (24, 48, 64)}),
    ("cnn", {"widths": (8, 8), "strides": (1, 1)}),
    ("cnn_circular", {"widths": (8, 16, 24)}),
    ("cnn_additive", {"widths": (8, 16)}),
    ("mlp", {"hidden": (112, 112)}),
    ("mixer_patch4", {"depth": 2, "token_hidden": 9}),
]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("shape", [FASHION, (3, 56, 28)])
def test_closed_forms_of_presets(name: str, shape: tuple[int, int, int]) -> None:
    assert count(build_model(name, shape, 7), shape) == cost(name, shape, 7)


@pytest.mark.parametrize(("name", "settings"), [*(("vit", s) for s in VITS), *OTHERS])
def test_closed_forms_of_settings(name: str, settings: dict[str, Any]) -> None:
    assert count(build_model(name, FASHION, 10, **settings), FASHION) == cost(name, FASHION, 10, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "parameters", "mflop"),
    [
        ("cnn", {}, 77_818, 5.20),
        ("cnn", {"widths": (24, 48, 64)}, 112_050, 9.62),
        ("vit_patch7", {}, 71_946, 2.33),
        ("vit_patch7", {"depth": 3}, 105_418, 3.44),
        ("vit", {"depth": 3}, 105_418, 11.58),
        ("mlp", {}, 79_750, 0.16),
        ("mlp", {"hidden": (112, 112)}, 101_706, 0.20),
        ("mixer_patch4", {}, 94_734, 9.74),
    ],
)
def test_figures_that_were_counted_on_other_code(
    name: str, settings: dict[str, Any], parameters: int, mflop: float
) -> None:
    found = count(build_model(name, FASHION, 10, **settings), FASHION)
    assert found.parameters == parameters
    assert round(found.flops / 1e6, 2) == mflop


def test_attention_is_not_missed() -> None:
    """One layer of 4096 tokens: 4 N d² for the projections and 2 N² d for the two products, twice."""
    layer, tokens = TokenAttention(64, 4), torch.zeros(1, 4096, 64)
    whole = 2 * (4 * 4096 * 64**2 + 2 * 4096**2 * 64)
    assert round(whole / 1e6) == 4429
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer.w_query(tokens)
    assert counter.get_total_flops() == 2 * 4096 * 64**2
    shape = (1, 64, 64)
    settings: dict[str, Any] = {"patch": 1, "embed_dim": 64, "num_heads": 4, "depth": 1}
    rest = {**settings, "depth": 0}
    mlp = 2 * 4096 * 2 * 64 * 128
    assert count(build_model("vit", shape, 10, **settings), shape).flops == (
        count(build_model("vit", shape, 10, **rest), shape).flops + whole + mlp
    )


def test_counting_leaves_the_model_as_it_was() -> None:
    model = build_model("cnn", FASHION, 10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.blocks[0].eval()  # type: ignore[index]
    count(model, FASHION)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and not model.blocks[0].training  # type: ignore[index]


def test_frozen_parameters_are_not_trainable() -> None:
    model = build_model("mlp", FASHION, 10)
    model.layers[0].requires_grad_(False)  # type: ignore[index]
    assert count(model, FASHION) == Cost(8190 + 910, 159_120)
