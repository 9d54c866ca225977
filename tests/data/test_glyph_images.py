"""Images of one glyph: the label is what is seen, wherever it stands."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from attnrepro.data import glyph_images as module
from attnrepro.data.glyph_images import BACKGROUND, INK, NOISE, glyph_images
from attnrepro.data.same_different import glyphs


def test_an_image_shows_the_glyph_of_its_label_in_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOISE", 0.0)
    found = glyph_images(300, 4, 0, "train")
    assert found.images.shape == (300, 1, 28, 28) and len(found.classes) == 4
    shapes, seen = glyphs(4), Counter[tuple[int, int]]()
    for image, label in zip(found.images[:, 0], found.labels.tolist(), strict=True):
        assert set(image.unique().tolist()) == {BACKGROUND, INK}
        ink = (image == INK).float()
        assert ink.sum() == shapes[label].sum()
        windows = ink.unfold(0, 5, 1).unfold(1, 5, 1)
        places = (windows == shapes[label]).flatten(2).all(2).nonzero().tolist()
        ((row, column),) = places
        assert row % 7 in (0, 1, 2) and column % 7 in (0, 1, 2)
        seen[row // 7, column // 7] += 1
        seen[row % 7 + 100, column % 7 + 100] += 1
    # All 16 cells and all 9 places within one.
    assert len(seen) == 16 + 9


def test_types_are_balanced_and_smaller_sets_are_part_of_larger_ones() -> None:
    many = glyph_images(2345, 10, 3, "train")
    assert max(many.counts) - min(many.counts) <= 1
    for n in (7, 999, 1001):
        few = glyph_images(n, 10, 3, "train")
        assert torch.equal(few.images, many.images[:n]) and torch.equal(few.labels, many.labels[:n])


def test_seeds_streams_and_blocks_differ() -> None:
    one = glyph_images(2000, 5, 0, "train")
    for other in (glyph_images(2000, 5, 1, "train"), glyph_images(2000, 5, 0, "validation")):
        assert not (one.images == other.images).flatten(1).all(1).any()
    assert not torch.equal(one.images[:1000], one.images[1000:])


def test_noise_has_the_spread_that_it_says() -> None:
    images = glyph_images(500, 5, 0, "train").images.double()
    assert images.median() == pytest.approx(BACKGROUND, abs=1)
    # Whole grey values up to one standard deviation away: 12 of 784 pixels are ink, 128 grey values brighter.
    within = math.erf((NOISE + 0.5) / NOISE / math.sqrt(2)) * (784 - 12) / 784
    assert ((images - BACKGROUND).abs() <= NOISE).double().mean() == pytest.approx(within, abs=0.004)
