"""Windows under shifts: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.config import BadInput
from attnrepro.nn.swin import SwinBlock
from attnrepro.results.published import load_published
from attnrepro.tables.window_shift import measure, reading, table

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "window_shift"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
EQUIVARIANCE, FLOW = "s4-swin-strict-equivariance", "window-shift-complete-flow"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shift")
    assert entry.main([*SMOKE, f"results={folder}"]) == 0
    return folder


def enlarged(row: dict[str, str]) -> None:
    """Smoke rows as those of a full run: as many draws, and the maps of Swin-T, with what theory has for them."""
    if row["quantity"] == "equivariance_error_eps":
        row["n"] = "60"
    if row["windows"] == "2x2":
        row["windows"] = "7x2"
        row["value"] = repr(float(row["value"]) * (49 / 4 if row["quantity"] == "reach" else 1))
    elif row["windows"] == "3x2" and row["quantity"].startswith("reach"):
        row["windows"] = "7x8"
        share = {"1": 1 / 64, "2": 1 / 64 if row["place"] == "corner" else 1 / 16, "3": 1.0}[row["depth"]]
        row["depth"] = {"3": "15"}.get(row["depth"], row["depth"])
        row["value"] = repr(share * (56**2 if row["quantity"] == "reach" else 1))


def change(root: Path, target: Path, *edits: Callable[[dict[str, str]], None]) -> Any:
    def edit(row: dict[str, str]) -> None:
        for one in edits:
            one(row)

    return harness.change(NAME, root, target, edit)


def test_every_claim_has_a_verdict(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "r", enlarged)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words == {EQUIVARIANCE: {"SOURCE_ERROR", "REPRODUCED"}, FLOW: {"SOURCE_ERROR", "REPRODUCED"}}
    assert "Swin commutes with 1 (the identity), without its mask with 4" in made.answer
    assert "a pair of blocks sees 49 of 3136 places from the corner and 196 from the centre" in made.answer
    assert made.shown is not None and len(reading.charts(made.shown.frame())) == 2


def test_a_network_without_a_lattice_would_bear_the_claim_out(root: Path, tmp_path: Path) -> None:
    def hold(row: dict[str, str]) -> None:
        if row["quantity"] == "equivariance_error_eps":
            row["value"] = "1.5"

    assert verdicts(change(root, tmp_path / "r", enlarged, hold))[EQUIVARIANCE] == {"REPRODUCED"}


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        ({"quantity": "listed_error_eps", "network": "attention"}, 50.0, "attention (torus) moves 50 eps"),
        ({"quantity": "unlisted_error", "network": "swin", "border": "constant"}, 1e-6, "swin (constant) moves only"),
        ({"quantity": "unlisted_error", "network": table.BREAKER}, 1e-9, "attention_sinusoidal (torus) moves only"),
        ({"quantity": "commuting_rolls", "network": "cyclic", "shape": "2x2x4x1"}, 1.0, "cyclic (torus) commutes"),
        ({"quantity": "reach", "network": "swin", "place": "corner", "depth": "2"}, 9.0, "corner at depth 2 is 9, not"),
        ({"quantity": "layers_to_all", "network": "cyclic"}, 1.0, "layers_to_all of cyclic on 2x2 is 1, not 2"),
    ],
)
def test_an_impossible_value_is_noticed(
    root: Path, tmp_path: Path, where: dict[str, str], value: float, problem: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["source"] == "measured" and all(row[name] == wanted for name, wanted in where.items()):
            row["value"] = repr(value)

    assert any(problem in found for found in change(root, tmp_path / "r", edit).problems)


# --- faults in what is measured ---


def rows_with(monkeypatch: pytest.MonkeyPatch, change_block: Callable[[SwinBlock], None], study: str) -> list[Any]:
    class Changed(SwinBlock):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            change_block(self)

    monkeypatch.setattr("attnrepro.nn.swin.SwinBlock", Changed)
    monkeypatch.setattr(measure, "SwinBlock", Changed)
    return harness.rows_of(NAME, measure.build, f"params.study={study}")


def value(rows: list[Any], quantity: str, **axes: object) -> float:
    found = [r.value for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    assert len(found) == 1
    return float(found[0])


def test_a_forgotten_mask_changes_counts_and_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def unmask(block: SwinBlock) -> None:
        block.attention.masked = False

    rows = rows_with(monkeypatch, unmask, "equivariance")
    assert value(rows, "commuting_rolls", network="swin", shape="2x2x4x1") == 4
    rows = rows_with(monkeypatch, unmask, "reach")
    assert value(rows, "layers_to_all", network="swin", windows="2x2") == 2


def test_a_forgotten_shift_never_crosses_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unshift(block: SwinBlock) -> None:
        block.attention.shift = 0

    rows = rows_with(monkeypatch, unshift, "reach")
    assert value(rows, "reach", network="swin", windows="3x2", place="centre", depth=3) == 9
    assert not [r for r in rows if r.quantity == "layers_to_all"]


class Roll(nn.Module):
    """Commutes with every roll but is no identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, -1).exp()


def test_errors_are_zero_for_a_roll_and_seen_for_a_fixed_place() -> None:
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 4, 4, generator=stream, dtype=torch.float64)
    rolls = [(down, across) for down in range(4) for across in range(4)]
    assert measure.errors(Roll(), x, rolls) == [0.0] * 16

    class Marked(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            mark = torch.zeros_like(y)
            mark[..., 0, 0] = 1
            return y + mark

    found = measure.errors(Marked(), x, rolls)
    largest = float(Marked()(x).abs().max())
    assert found[0] == 0
    assert found[1:] == pytest.approx([1 / largest / measure.EPS] * 15)


def test_an_output_of_half_the_size_is_rolled_by_half_and_by_the_nearest() -> None:
    x = torch.arange(16.0, dtype=torch.float64).reshape(1, 1, 4, 4)

    class Halved(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return y[..., ::2, ::2]

    found = measure.errors(Halved(), x, [(0, 0), (2, 2), (0, 1)])
    # Rolled by one column the output is columns 3 and 1; the best it can be taken for is off by one: 1 of 10.
    assert found[:2] == [0, 0]
    assert found[2] == pytest.approx(1 / 10 / measure.EPS)


# --- parameters ---


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("params.shapes=[4x4x8]", "shapes=4x4x8 must be window x windows x channels x heads"),
        ("params.shapes=[4x3x8x2]", "shapes=4x3x8x2 must have a window of 2 or more, an even number"),
        ("params.shapes=[4x2x6x2]", "channels that 4 and the heads divide"),
        ("params.shown_shape=9x2x4x1", "shown_shape=9x2x4x1 must be one of shapes"),
        ("params.maps=[7x1]", "maps=7x1 must be window x windows, both 2 or more"),
        ("params.reach_heads=3", "reach_heads=3 must divide reach_channels=4"),
        ("params.study=speed", "study"),
    ],
)
def test_wrong_parameters_are_refused(override: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        harness.cell_of(NAME, override)


# --- the first sentence ---


def test_the_first_sentence_says_how_many_shifts_and_layers() -> None:
    def told(commuting: float, seen: float) -> str:
        rows = [
            {"quantity": "commuting_rolls", "network": "swin", "shape": "2x2", "estimate": commuting},
            {"quantity": "reach", "network": "swin", "windows": "2x2", "place": "corner", "depth": "3",
             "estimate": seen},
        ]  # fmt: skip
        (said,) = reading._told(harness.planted(reading.AXES, *rows))
        return said

    said = told(1, 16)
    assert said == (
        "No: Swin commutes with 1 of the 16 shifts of a map of 2 x 2 windows; of 2 x 2 windows the corner sees every"
        " place only after 3 layers."
    )
    said = told(16, 9)
    assert said.startswith("Yes: Swin commutes with 16 of the 16") and "sees every place not yet after 3 layers" in said
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "breakage"})) == ""
