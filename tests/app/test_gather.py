"""What sets a cell off the grid apart, so that two of them never share a line."""

from __future__ import annotations

from typing import Any

import pytest

from attnrepro.app import gather


def science(seeds: list[int], **params: Any) -> dict[str, Any]:
    return {"table": "toy", "scale": "cpu", "seeds": seeds, "precision": "32-true", "params": params}


GRID = (
    science([0, 1], study="curve", protocol="A", placement=["keys", "values"]),
    science([0, 1, 2, 3], study="printed", protocol="A", placement=["values"]),
    science([0, 1, 2, 3], study="printed", protocol="C", placement=["keys"]),
)


@pytest.mark.parametrize(
    ("cell", "filled", "expected"),
    [
        (GRID[1], {"study"}, ""),
        (science([0, 1, 2, 3], study="printed", protocol="A", placement=["keys"]), set(), "placement=[keys]"),
        (science([0], study="printed", protocol="A", placement=["values"]), set(), "seeds=[0]"),
        # Every value stands in some cell of the grid, none of them in one.
        (
            science([0, 1, 2, 3], study="printed", protocol="C", placement=["values"]),
            {"study", "protocol"},
            "placement=[values]",
        ),
        (
            science([0, 1, 2, 3, 4], study="curve", protocol="C", placement=["keys"]),
            {"study", "protocol", "placement"},
            "seeds=[0..4]",
        ),
    ],
)
def test_a_variant_is_named_by_its_distance_from_the_nearest_cell(
    cell: dict[str, Any], filled: set[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "own_grid", lambda table, scale: GRID)
    assert gather.variant(cell, filled) == expected


def test_two_cells_that_differ_where_their_rows_are_blank_are_two_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "own_grid", lambda table, scale: GRID)
    cells = [science([0], study="printed", protocol="A", placement=[at]) for at in ("keys", "values")]
    assert len({gather.variant(cell, {"study", "protocol"}) for cell in cells}) == 2


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([3, 4, 5, 6], "[3..6]"),
        ([0.25, 0.5, 1.0, 2.0], "[0.25,0.5,1,2]"),
        ([1.0, 2.0, 3.0, 4.0], "[1,2,3,4]"),
        (["a", "b", "c", "d"], "[a,b,c,d]"),
        ([[1, 2], [3]], "[[1,2],[3]]"),
    ],
)
def test_lists_of_anything_can_be_shown(value: list[Any], shown: str) -> None:
    assert gather._show(value) == shown
