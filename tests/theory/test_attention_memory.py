"""Sizes of score matrices, by hand and by counting."""

from __future__ import annotations

import pytest

from attnrepro.theory import attention_memory as closed


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (12, 4), (6, 1), (32, 16)])
def test_tokens_and_entries_are_those_that_a_loop_counts(side: int, patch: int) -> None:
    corners = [(y, x) for y in range(0, side, patch) for x in range(0, side, patch)]
    assert closed.tokens(side, patch) == len(corners)
    assert closed.score_entries(side, patch) == sum(1 for _ in corners for _ in corners)
    assert closed.patches_per_side(side, patch) == len({y for y, _ in corners})


def test_patching_saves_what_pixels_over_patches_say() -> None:
    for side, patch in ((32, 16), (48, 16), (12, 4)):
        assert closed.patching_factor(patch) * closed.score_entries(side, patch) == closed.score_entries(side, 1)


def test_the_sizes_of_document_004_and_of_a_whole_model() -> None:
    shown = [closed.in_unit(closed.score_bytes(side, 16, "float16"), "binary") for side in (224, 448, 1024, 2048)]
    assert [(round(value, 3), unit) for value, unit in shown] == [
        (75.031, "KiB"),
        (1.172, "MiB"),
        (32, "MiB"),
        (512, "MiB"),
    ]
    vit = {"num_heads": 12, "depth": 12, "batch": 1}
    stored = [closed.stored_bytes(side, 16, "float16", **vit) for side in (224, 448, 1024, 2048)]
    assert stored == [144 * 2 * n * n for n in (196, 784, 4096, 16384)]
    assert [round(size / 2**20, 1) for size in stored] == [10.6, 168.8, 4608, 73728]


@pytest.mark.parametrize(
    ("size", "binary", "decimal"),
    [
        (0, (0, "B"), (0, "B")),
        (1000, (1000, "B"), (1, "kB")),
        (1023, (1023, "B"), (1.023, "kB")),
        (1024, (1, "KiB"), (1.024, "kB")),
        (10**6 - 1, (976.5615234375, "KiB"), (999.999, "kB")),
        (3 * 2**40, (3, "TiB"), (3.298534883328, "TB")),
    ],
)
def test_the_unit_is_the_largest_that_leaves_one(
    size: int, binary: tuple[float, str], decimal: tuple[float, str]
) -> None:
    assert closed.in_unit(size, "binary") == binary
    assert closed.in_unit(size, "decimal") == decimal


def test_the_peak_of_naive_attention_is_that_of_its_steps() -> None:
    """Buffers that live at each step, one after the other, in items: scores N x N, values N x d."""
    for heads, length, dim in ((1, 4, 3), (2, 64, 16), (3, 4, 50)):
        scores, values = heads * length * length, heads * length * dim
        forward = [scores, 2 * scores, 2 * scores, scores + values]  # products, scaled, weights, output
        held = scores + values
        backward = [held + values, held + values + scores, held + values + 2 * scores]
        assert closed.naive_peak("forward", heads, length, dim, "float32") == 4 * max(forward)
        assert closed.naive_held(heads, length, dim, "float32") == 4 * held
        if length >= dim:
            assert closed.naive_peak("training", heads, length, dim, "float16") == 2 * max(*forward, *backward)


@pytest.mark.parametrize(("side", "patch"), [(10, 3), (0, 1), (4, 0)])
def test_a_patch_that_does_not_fit_is_refused(side: int, patch: int) -> None:
    with pytest.raises(ValueError, match=f"patch={patch} must divide side={side}"):
        closed.tokens(side, patch)
