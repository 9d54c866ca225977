"""The far-cue task: what is drawn is what was promised, and images are balanced object by object."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch

from attnrepro.data.far_cue import UNLABELLED, FarCue, far_cue
from attnrepro.data.same_different import glyphs


def found(image: torch.Tensor) -> dict[tuple[int, int], int]:
    """Kind of every glyph by the pixel of its middle, by comparing every square with every glyph."""
    shapes = glyphs(4)
    return {
        (row + 2, column + 2): kind
        for row, column in product(range(24), repeat=2)
        for kind in range(4)
        if torch.equal(image[row : row + 5, column : column + 5], shapes[kind])
    }


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_labels_are_those_of_the_glyphs_found_in_the_image(pairs: int) -> None:
    images, labels = far_cue(FarCue(pairs=pairs, noise=0.0), 60, 3, "train")
    assert images.shape == (60, 1, 28, 28)
    assert labels.shape == (60, 7, 7)
    cues: Counter[int] = Counter()
    for image, places in zip(images[:, 0], labels, strict=True):
        seen = found(image)
        (cue,) = (kind for kind in seen.values() if kind < 2)
        cues[cue] += 1
        expected = torch.full((7, 7), UNLABELLED)
        for (row, column), kind in seen.items():
            if kind >= 2:
                expected[row // 4, column // 4] = int(kind - 2 != cue)
            assert (row % 4, column % 4) == (0, 0)
        assert torch.equal(places, expected)
        assert Counter(places[places != UNLABELLED].tolist()) == {0: pairs, 1: pairs}
        assert float(image.sum()) == 12 * (1 + 2 * pairs)
    assert set(cues) == {0, 1}


def test_no_window_around_a_glyph_touches_another_one() -> None:
    images, _ = far_cue(FarCue(pairs=4, noise=0.0), 40, 0, "windows")
    for image in images[:, 0]:
        for row, column in found(image):
            window = image[max(0, row - 4) : row + 5, max(0, column - 4) : column + 5]
            assert float(window.sum()) == 12


def test_streams_seeds_and_noise() -> None:
    task = FarCue(noise=0.3)
    one, again, other = (far_cue(task, 200, seed, name) for seed, name in ((0, "a"), (0, "a"), (0, "b")))
    assert torch.equal(one[0], again[0])
    assert not torch.equal(one[0], other[0])
    blank, _ = far_cue(FarCue(noise=0.0), 200, 0, "a")
    assert float((one[0] - blank).std()) == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize(("name", "value"), [("pairs", 0), ("pairs", 5), ("noise", -0.1)])
def test_bad_input_is_one_sentence(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        FarCue(**{name: value})  # type: ignore[arg-type]
