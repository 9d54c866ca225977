"""Images with two glyphs of one type, one covered, and the judge that reads them."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from attnrepro.data.paired_glyphs import PairedGlyphs
from attnrepro.data.same_different import glyphs
from attnrepro.data.streams import generator


@pytest.mark.parametrize("cells", [2, 3, 4, 6])
def test_the_two_cells_are_as_far_apart_as_the_square_allows(cells: int) -> None:
    found = set(PairedGlyphs(cells=cells).pairs())
    expected = {
        (r * cells + c, s * cells + d)
        for r in range(cells)
        for c in range(cells)
        for s in range(cells)
        for d in range(cells)
        if abs(r - s) == cells - 1 or abs(c - d) == cells - 1
    }
    assert found == expected


def test_what_is_given_is_the_whole_without_one_cell() -> None:
    task = PairedGlyphs(types=5, cells=4, noise=0.0)
    drawn = task.draw(40, generator(0, "paired"))
    assert drawn.given.shape == (40, 2, 28, 28) and drawn.whole.shape == (40, 1, 28, 28)
    for i in range(40):
        seen, hole = (divmod(int(place), 4) for place in drawn.places[i])
        whole, shape = torch.zeros(28, 28), glyphs(5)[drawn.kinds[i]]
        for row, column in (seen, hole):
            whole[7 * row + 1 : 7 * row + 6, 7 * column + 1 : 7 * column + 6] = shape
        assert torch.equal(drawn.whole[i, 0], whole)
        mark = torch.zeros(28, 28)
        mark[7 * hole[0] : 7 * hole[0] + 7, 7 * hole[1] : 7 * hole[1] + 7] = 1
        assert torch.equal(drawn.hole[i, 0], mark)
        assert torch.equal(drawn.given[i, 0], whole * (1 - mark))
    assert torch.equal(drawn.completed(drawn.whole), drawn.whole)


def test_noise_is_on_what_is_given_and_not_on_the_target() -> None:
    drawn = PairedGlyphs(noise=0.5).draw(200, generator(0, "noisy"))
    off = (drawn.given[:, :1] - drawn.whole)[drawn.hole == 0]
    assert float(off.std()) == pytest.approx(0.5, rel=0.02)
    assert not drawn.given[:, :1][drawn.hole == 1].any()
    assert set(drawn.whole.unique().tolist()) == {0.0, 1.0}


def test_types_and_places_are_drawn_evenly_and_independently() -> None:
    task = PairedGlyphs(types=4, cells=3)
    drawn = task.draw(24000, generator(1, "even"))
    pairs = Counter(map(tuple, drawn.places.tolist()))
    assert set(pairs) == set(task.pairs())
    joint = Counter(zip(map(tuple, drawn.places.tolist()), drawn.kinds.tolist(), strict=True))
    expected = 24000 / len(pairs) / 4
    assert sum((joint[p, k] - expected) ** 2 / expected for p in pairs for k in range(4)) < 3 * 4 * len(pairs)


def test_the_judge_reads_the_nearest_type_in_plain_loops() -> None:
    task = PairedGlyphs(types=6, cells=3, noise=0.7)
    drawn = task.draw(30, generator(2, "judge"))
    read = task.read(drawn.given[:, :1], drawn.places)
    for i in range(30):
        for which in range(2):
            row, column = divmod(int(drawn.places[i, which]), 3)
            cell = drawn.given[i, 0, 7 * row : 7 * row + 7, 7 * column : 7 * column + 7]
            distances = []
            for shape in glyphs(6):
                full = torch.zeros(7, 7)
                full[1:6, 1:6] = shape
                distances.append(
                    math.sqrt(sum(float(a - b) ** 2 for a, b in zip(cell.flatten(), full.flatten(), strict=True)))
                )
            assert int(read.kinds[i, which]) == min(range(6), key=distances.__getitem__)
            assert float(read.distances[i, which]) == pytest.approx(min(distances), rel=1e-5)
    assert torch.equal(read.agree, read.kinds[:, 0] == read.kinds[:, 1])


def test_the_judge_sees_what_is_planted() -> None:
    task = PairedGlyphs(types=4, cells=4)
    drawn = task.draw(100, generator(3, "planted"))
    assert task.read(drawn.completed(drawn.whole), drawn.places).agree.all()
    other = task.draw(100, generator(4, "planted"))
    wrong = torch.zeros_like(drawn.whole)
    shapes = task.shapes()[(drawn.kinds + 1) % 4].view(-1, 7, 7)
    for i, place in enumerate(drawn.places[:, 1].tolist()):
        row, column = divmod(place, 4)
        wrong[i, 0, 7 * row : 7 * row + 7, 7 * column : 7 * column + 7] = shapes[i]
    read = task.read(drawn.completed(wrong), drawn.places)
    assert not read.agree.any() and read.legible[:, 1].all()
    grey = task.read(drawn.completed(torch.full_like(drawn.whole, 0.5)), drawn.places)
    assert not grey.legible[:, 1].any()
    assert other.kinds.shape == (100,)


def test_a_legible_glyph_can_be_of_one_type_only() -> None:
    task = PairedGlyphs(types=6)
    shapes = task.shapes()
    distances = [float((a - b).norm()) for i, a in enumerate(shapes) for b in shapes[:i]]
    assert sorted(task.glyph_distances()) == pytest.approx(sorted(distances))
    drawn = task.draw(5, generator(0, "legible"))
    assert task.read(drawn.whole, drawn.places).unambiguous == pytest.approx(min(distances) / 2)


@pytest.mark.parametrize("wrong", [{"types": 1}, {"cells": 1}, {"noise": -1.0}])
def test_bad_sizes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        PairedGlyphs(**wrong)  # type: ignore[arg-type]
