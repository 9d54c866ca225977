"""Costs, reach and best shares of generators that complete an image."""

from __future__ import annotations

import math

import pytest
import torch

from attnrepro.data.paired_glyphs import PairedGlyphs
from attnrepro.data.streams import generator
from attnrepro.nn.completer import Completer
from attnrepro.nn.cost import count
from attnrepro.theory import long_range_consistency as closed


@pytest.mark.parametrize("name", list(closed.LAYERS))
@pytest.mark.parametrize(("cells", "width", "reduction"), [(3, 9, 3), (4, 24, 8), (6, 16, 4)])
def test_costs_are_those_of_the_model(name: str, cells: int, width: int, reduction: int) -> None:
    model = Completer(name, cells, width, reduction)
    assert count(model, (2, 7 * cells, 7 * cells)) == closed.cost(name, width, cells, reduction)


def test_matched_widths() -> None:
    for cells in (4, 6):
        wanted = closed.cost("attention", 24, cells, 8)
        wide = closed.width_of("wide", 24, cells, 8)
        found, narrower = (closed.cost("wide", width, cells, 8) for width in (wide, wide - 1))
        assert found.parameters >= wanted.parameters and found.flops >= wanted.flops
        assert narrower.parameters < wanted.parameters or narrower.flops < wanted.flops
        deep = closed.width_of("deep", 24, cells, 8)
        gaps = [abs(closed.cost("deep", w, cells, 8).parameters - wanted.parameters) for w in range(1, 25)]
        assert gaps[deep - 1] == min(gaps)
        assert closed.width_of("deep_full", 24, cells, 8) == closed.width_of("local", 24, cells, 8) == 24
    assert abs(closed.cost("deep", closed.width_of("deep", 24, 4, 8), 4, 8).parameters / 10850 - 1) < 0.03


def test_layers_and_links() -> None:
    assert [closed.layers(name, 4) for name in closed.LAYERS] == [1, 1, 2, 3, 3, 1, 1]
    assert [closed.is_linked(name, 4) for name in closed.LAYERS] == [False, False, False, True, True, True, True]
    assert [closed.layers(name, 6) for name in ("short", "deep")] == [4, 5]
    with pytest.raises(ValueError, match="cells=2 must be 3 or more"):
        closed.layers("local", 2)


def test_the_best_share_of_what_does_not_see_the_type() -> None:
    """Whatever rule maps places to a painted type, it is right for one type in K."""
    task = PairedGlyphs(types=4, cells=3)
    drawn = task.draw(40000, generator(0, "share"))
    rules = torch.randint(4, (50, 81), generator=generator(1, "share"))
    index = 9 * drawn.places[:, 0] + drawn.places[:, 1]
    shares = [float((rule[index] == drawn.kinds).double().mean()) for rule in rules]
    error = math.sqrt(0.25 * 0.75 / 40000)
    assert closed.best_unlinked_share(4) == 0.25
    assert all(abs(share - 0.25) < 4.5 * error for share in shares)


def test_the_judge_errs_less_than_the_bound_says_and_not_much_less() -> None:
    task = PairedGlyphs(types=4, noise=0.9)
    drawn = task.draw(20000, generator(0, "errs"))
    wrong = (task.read(drawn.given[:, :1], drawn.places).kinds[:, 0] != drawn.kinds).double().mean()
    bound = closed.misreading_bound(task.glyph_distances(), 4, 0.9)
    assert 0.2 * bound < float(wrong) < bound
    assert closed.misreading_bound([1.0], 4, 0.0) == 0
    # Two types: exactly Q(distance / (2 noise)).
    assert closed.misreading_bound([2.0], 2, 1.0) == pytest.approx(0.15865525393145707, rel=1e-12)
