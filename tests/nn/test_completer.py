"""Generators that complete an image: values against plain convolutions, reach, shifts and odd sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

from attnrepro.data.streams import generator
from attnrepro.nn.completer import Completer, Spread, open_gates
from attnrepro.theory.long_range_consistency import LAYERS, is_linked, layers

CELLS = 4


def opened(name: str, cells: int = CELLS) -> Completer:
    torch.manual_seed(0)
    model = open_gates(Completer(name, cells, 9, 3), generator(0, "gates")).double()
    assert isinstance(model, Completer)
    return model


def spread(block: Spread, x: Tensor) -> Tensor:
    a, b = block.spread, block.mix
    return x + conv2d(conv2d(x, a.weight, a.bias, padding=a.kernel_size[0] // 2).clamp(min=0), b.weight, b.bias)


@pytest.mark.parametrize("name", list(LAYERS))
def test_values_and_gradients(name: str) -> None:
    model = opened(name)
    given = torch.randn(2, 2, 28, 28, dtype=torch.float64, requires_grad=True)
    x = conv2d(given, model.read.weight, model.read.bias, stride=7).clamp(min=0)
    blocks = [block for block in model.spread if isinstance(block, Spread)]
    assert len(blocks) == layers(name, CELLS)
    for block in blocks:
        x = spread(block, x)
    x = spread(model.place, model.link(x))
    expected = conv_transpose2d(x, model.paint.weight, model.paint.bias, stride=7)
    found = model(given)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), [given, *model.parameters()], retain_graph=True),
        torch.autograd.grad((expected * weights).sum(), [given, *model.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("cells", [3, 5])
def test_reach_is_that_of_the_layers(name: str, cells: int) -> None:
    model = opened(name, cells)
    given = torch.randn(1, 2, 7 * cells, 7 * cells, dtype=torch.float64, requires_grad=True)
    out = model(given)
    (slope,) = torch.autograd.grad(out[..., :7, :7].sum(), given)
    reached = slope.abs().sum(1).unflatten(1, (cells, 7)).unflatten(3, (cells, 7)).sum((2, 4))[0] > 0
    reach = cells if name in ("mean", "attention") else layers(name, cells)
    rows, columns = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
    assert torch.equal(reached, torch.maximum(rows, columns) <= reach)
    assert bool(reached[-1, -1]) is is_linked(name, cells)


def test_a_shift_by_a_cell_is_a_symmetry_away_from_the_edges() -> None:
    model = opened("local")
    given = torch.zeros(1, 2, 28, 28, dtype=torch.float64)
    given[..., 7:14, 7:14] = torch.randn(2, 7, 7, dtype=torch.float64)
    inner = model(given)[..., 7:14, 7:14]
    torch.testing.assert_close(model(given.roll((7, 7), (2, 3)))[..., 14:21, 14:21], inner)
    assert not torch.allclose(model(given.roll((1, 1), (2, 3)))[..., 8:15, 8:15], inner)


def test_a_shut_gate_is_a_local_generator() -> None:
    for name in ("attention", "mean"):
        torch.manual_seed(1)
        model = Completer(name, CELLS, 9, 3)
        given = torch.randn(2, 2, 28, 28)
        before = model(given)
        model.link = torch.nn.Identity()
        torch.testing.assert_close(model(given), before)


def test_half_precision_is_finite() -> None:
    for name in LAYERS:
        model = open_gates(Completer(name, 3, 9, 3), generator(0, "half")).bfloat16()
        assert model(torch.randn(2, 2, 21, 21).bfloat16()).isfinite().all()


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="cells=2 must be 3 or more"):
        Completer("local", 2, 9, 3)
    with pytest.raises(ValueError, match="must leave 3 or more"):
        Completer("mean", 4, 9, 8)
