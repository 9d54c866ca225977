"""Shapes of known models: what is counted, and that every planted fault changes a verdict or is a problem."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.nn.model_shapes import ModelBlock, build_shape, inputs_of
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.model_shapes import measure, table
from attnrepro.theory.model_shapes import MODELS, shape_of

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "model_shapes"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def built(root: Path) -> report.TableReport:
    return harness.built(NAME, root)


def run(root: Path, *overrides: str) -> report.TableReport:
    assert entry.main([*SMOKE, f"results={root}", *overrides]) == 0
    return built(root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every printed number's model, those of many layers built and not run."""
    folder = tmp_path_factory.mktemp("shapes")
    printed = load_published(paths.published_dir() / f"{NAME}.csv")
    axes = [dict(line.axes) for line in printed if line.klass != "literature"]
    models = sorted({a["model"] for a in axes if not a["counted_as"]})
    variants = sorted({f"{a['model']}:{a['counted_as']}" for a in axes if a["counted_as"]})
    quoted = ",".join(f'"{text}"' for text in variants)
    lists = (f"params.models=[{','.join(models)}]", f"params.variants=[{quoted}]")
    run_all = "params.run=[transformer_base,bert_base,bert_large,gpt3_175b]"
    assert entry.main([*SMOKE, *lists, run_all, f"results={folder}"]) == 0
    return folder


def test_every_claim_has_a_verdict_and_the_right_one(root: Path) -> None:
    made = built(root)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    both = {"REPRODUCED", "SOURCE_ERROR"}
    expected = {
        "own-shapes-attention-units": both,
        "own-shapes-smaller-heads": both,
        "own-shapes-gpt2": both,
        "own-shapes-gpt3": both | {"CONTRADICTED"},
        "own-shapes-gpt3-last-digit": both,
        "own-shapes-vit": both,
    }
    assert words == {claim: expected.get(claim, {"REPRODUCED"}) for claim in words}
    assert "bert_base 144 of 64 components" in made.answer and "gpt3_175b 9216 of 128 components" in made.answer
    assert "gpt3_175b 174.6 billion" in made.answer and "124.4 against 116.9" in made.answer


def test_gpt2s_numbers_are_those_of_another_vocabulary(root: Path) -> None:
    lines = [r for r in built(root).lines if r.get("claim") == "own-shapes-gpt2"]
    assert {(r["counted_as"], r["verdict"]) for r in lines} == {("", "SOURCE_ERROR"), ("gpt_vocabulary", "REPRODUCED")}
    assert len(lines) == 8


def test_charts_are_drawn(root: Path) -> None:
    (page,) = report.pages([built(root)])
    assert [chart["title"] for chart in page.charts] == ["parameters", "scores in the FLOPs at full length"]
    json.dumps(page.charts, allow_nan=False)


@pytest.mark.parametrize("model", ["bert_base", "transformer_base", "vit_b16", "gpt2"])
def test_products_that_are_seen_are_those_that_torch_counts(model: str) -> None:
    with torch.device("meta"):
        made, inputs = build_shape(shape_of(model)), inputs_of(shape_of(model))
    with torch.no_grad(), FlopCounterMode(display=False) as counter, measure.Products() as seen:
        made(*inputs)
    assert seen.flops == counter.get_total_flops()
    assert seen.score_flops == counter.get_flop_counts()["Global"][torch.ops.aten.bmm]


def test_maps_are_seen_where_they_are_made() -> None:
    with measure.Products() as seen:
        torch.softmax(torch.zeros(2, 3, 4, 4), -1)
        torch.softmax(torch.zeros(1, 5, 4, 7), -1)
    assert seen.maps == 11 and seen.flops == 0


def test_heads_cut_the_width() -> None:
    with torch.device("meta"):
        made = build_shape(MODELS["bert_base"])
    assert measure.head_dim_of(made) == 64


# --- planted faults ---


def test_a_bias_too_many_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ModelBlock.__init__

    def biased(self: ModelBlock, shape: Any, *, context: bool = False) -> None:
        honest(self, shape, context=context)
        self.extra = nn.Parameter(torch.zeros(shape.embed_dim))

    monkeypatch.setattr(ModelBlock, "__init__", biased)
    made = run(tmp_path)
    assert "FAILED" in verdicts(made)["own-shapes-bert"]
    assert any("parameters of model=bert_base is" in problem for problem in made.problems)


def test_heads_that_cost_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ModelBlock.__init__

    def costly(self: ModelBlock, shape: Any, *, context: bool = False) -> None:
        honest(self, shape, context=context)
        self.extra = nn.Parameter(torch.zeros(shape.num_heads))

    monkeypatch.setattr(ModelBlock, "__init__", costly)
    made = run(tmp_path)
    assert verdicts(made)["own-shapes-heads-are-free"] == {"FAILED"}
    assert any("parameters_spread of model=bert_base" in problem for problem in made.problems)


def test_a_wrong_closed_form_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = importlib.import_module(f"attnrepro.tables.{NAME}.table").closed
    honest = closed.flops
    monkeypatch.setattr(closed, "flops", lambda shape: honest(shape) + 2)
    made = run(tmp_path)
    assert any("flops of model=bert_base is" in problem for problem in made.problems)


def test_a_model_that_was_not_counted_is_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["model"] == "gpt2" and row["quantity"] == "block_parameters" and row["source"] == "measured":
            row["quantity"] = "lost"

    made = harness.change(NAME, root, tmp_path / "r", edit)
    assert any("block_parameters of model=gpt2 was not counted" in problem for problem in made.problems)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.models=[gpt4]", "must be one of transformer_base"),
        ("params.models=[gpt2,gpt2]", "each once"),
        ("params.variants=[gpt2]", "variants=gpt2 must be model:variant"),
        ('params.variants=["gpt2:no_head"]', "variant=no_head must be one that model=gpt2 has"),
        ("params.heads=[5]", "heads=5 must divide the 512 components of counted_models=transformer_base"),
        ("params.run=[gpt]", "run=gpt must be one of models="),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


def test_theory_is_rows_and_planned_in_seconds() -> None:
    cell = cell_of()
    assert all(isinstance(row, Row) for row in table.theory(cell)) and 1 < table.seconds(cell) < 5
