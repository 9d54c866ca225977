"""Memory of attention: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.attention_memory import measure, reading

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "attention_memory"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
LENGTHS = "[256,384,512,768,1024,1536,2048]"
# Two heads: as long as at scale cpu, a sixth of the work.
PEAKS = ("params.study=peaks", "params.lengths=[512,1024,2048]", "params.embed_dim=128", "params.num_heads=2")
# Three lengths leave an exponent a wide interval, and beside two heads the kernel's own buffers weigh more.
FEW = "memory_exponent at attention="


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


def values(rows: list[Row], quantity: str, **axes: object) -> list[float]:
    return [r.value for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]


def built(root: Path) -> report.TableReport:
    return harness.built(NAME, root)


def problems(made: report.TableReport) -> list[str]:
    return [problem for problem in made.problems if FEW not in problem]


def run(root: Path, *overrides: str) -> report.TableReport:
    assert entry.main([*SMOKE, f"results={root}", *overrides]) == 0
    return built(root)


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    for grid in (("params.study=peaks", f"params.lengths={LENGTHS}"), ("params.study=sizes",)):
        assert entry.main([*SMOKE, f"results={folder}", *grid]) == 0
    return folder


def change(root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    return harness.change(NAME, root, target, edit)


# --- what is measured ---


def test_every_claim_has_a_verdict_and_the_right_one(root: Path) -> None:
    made = built(root)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    both = {"REPRODUCED", "DIFFERS"}
    readings = ("s4-mem-fp16-224", "s4-mem-fp16-1024", "s4-mem-fp16-2048", "s4-must-materialise", "s4-1024-blows-up")
    assert words == {claim: both if claim in readings else {"REPRODUCED"} for claim in words}
    assert "75.03 KiB, 1.172 MiB" in made.answer and "10.6 MiB, 169 MiB" in made.answer
    assert "65536 times" in made.answer and "in score matrices, 2 (growing as length^2.00" in made.answer


def test_printed_sizes_are_right_in_powers_of_1024_alone(root: Path) -> None:
    lines = {
        (line["side"], line["prefix"]): line["verdict"]
        for line in built(root).lines
        if str(line.get("claim", "")).startswith("s4-mem-fp16")
    }
    # 1.229 MB and 1.172 MiB both round to 1.2.
    wrong = {("224", "decimal"), ("1024", "decimal"), ("2048", "decimal")}
    sides = ("224", "448", "1024", "2048")
    assert lines == {
        (side, prefix): "DIFFERS" if (side, prefix) in wrong else "REPRODUCED"
        for side in sides
        for prefix in ("binary", "decimal")
    }


def test_the_matrix_is_stored_by_one_attention_and_not_by_the_other(root: Path) -> None:
    lines = [
        (line["quantity"], line["attention"], line["phase"], line["queries"], line["verdict"])
        for line in built(root).lines
        if line.get("claim") == "s4-must-materialise"
    ]
    assert sorted(lines) == [
        ("memory_exponent", "fused", "forward", "", "DIFFERS"),
        ("memory_exponent", "naive", "forward", "", "REPRODUCED"),
        ("score_buffers", "fused", "forward", "", "DIFFERS"),
        ("score_buffers", "fused", "training", "", "DIFFERS"),
        ("score_buffers", "naive", "forward", "", "REPRODUCED"),
        ("scores_computed", "", "", "all", "REPRODUCED"),
        ("scores_computed", "", "", "one", "DIFFERS"),
    ]


def test_charts_are_drawn(root: Path) -> None:
    (page,) = report.pages([built(root)])
    assert [chart["title"] for chart in page.charts] == ["scores in fp16", "peak memory"]
    json.dumps(page.charts, allow_nan=False)
    printed = {r["pixels"]: r["published"] for r in page.charts[0]["data"]["values"] if "published" in r}
    assert printed == {224: 75 / 1024, 448: 1.2, 1024: 32, 2048: 512}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA allocator rounds blocks up")
def test_peaks_are_those_of_the_steps_to_a_few_bytes() -> None:
    """Beside the tensors there are the two numbers that the scale is kept in."""
    heads, dim = 2, 64
    rows = rows_of(*PEAKS, "params.lengths=[128,512]", "trainer=cpu")
    for n in (128, 512):
        scores, out = 4 * heads * n * n, 4 * heads * n * dim
        at: dict[str, object] = {"attention": "naive", "length": n}
        assert values(rows, "matrix_bytes", length=n) == [scores]
        assert values(rows, "peak_bytes", phase="forward", **at) == pytest.approx([2 * scores], abs=16)
        assert values(rows, "held_bytes", **at) == pytest.approx([scores + out], abs=16)
        assert values(rows, "peak_bytes", phase="training", **at) == pytest.approx([3 * scores + 2 * out], abs=16)


def test_rows_are_the_same_in_every_run_and_on_more_threads() -> None:
    short = (*PEAKS, "params.lengths=[64,200]")
    once, again, wide = (rows_of(*short, f"trainer.threads={threads}") for threads in (1, 1, 3))
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)
    assert once == again
    peaks = [[r for r in rows if r.unit == "B"] for rows in (once, wide)]
    assert peaks[0] == peaks[1]


def test_a_whole_model_keeps_a_matrix_a_head_and_layer() -> None:
    sizes = ("params.sides=[8,12]", "params.pixel_sides=[8]", "params.patch=2", "params.batch_sizes=[1,3]")
    rows = rows_of("params.study=sizes", *sizes, "params.embed_dim=6", "params.num_heads=3", "params.depth=5")
    for side, tokens in ((8, 16), (12, 36)):
        for batch in (1, 3):
            found = values(rows, "stored_size", side=side, dtype="float16", batch=batch)
            assert found == [batch * 5 * 3 * tokens**2 * 2 / 2**30]
        assert values(rows, "scores_computed", side=side, queries="all") == [tokens**2]
        assert values(rows, "scores_computed", side=side, queries="one") == [tokens]
    assert values(rows, "patching_factor") == [2**4]


# --- planted faults ---


def test_a_kernel_that_stores_the_matrix_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unfused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(query, key, value)

    monkeypatch.setitem(measured_module().ATTENTIONS, "fused", unfused)
    made = run(tmp_path, *PEAKS)
    assert any(f"{FEW}fused phase=forward is 1.97" in problem for problem in made.problems)
    lines = [line for line in made.lines if line.get("claim") == "s4-must-materialise" and line["n"]]
    assert {line["verdict"] for line in lines} == {"REPRODUCED"}


def test_another_buffer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wasteful(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.transpose(-1, -2)
        scaled = logits / query.shape[-1] ** 0.5
        return torch.softmax(scaled, -1) @ value

    monkeypatch.setitem(measured_module().ATTENTIONS, "naive", wasteful)
    found = problems(run(tmp_path, *PEAKS))
    assert any("peak_bytes at" in problem and "phase=forward length=2048" in problem for problem in found)
    assert any("score_buffers at" in problem and "is 3.031, not 2 within 10%" in problem for problem in found)


def test_attention_that_computes_something_else_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = measured_module().fused
    monkeypatch.setitem(measured_module().ATTENTIONS, "fused", lambda q, k, v: honest(q, k * 1.01, v))
    found = problems(run(tmp_path, *PEAKS, "params.lengths=[64,128,256]"))
    assert sum("naive and fused attention differ by" in problem for problem in found) == 3


def test_a_counter_that_forgets_half_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = measured_module()
    honest = module.memory_of

    def half(forward: Callable[[], object], device: torch.device) -> Any:
        found = honest(forward, device)
        return found._replace(peak=found.peak // 2, held=found.held // 2)

    monkeypatch.setattr(module, "memory_of", half)
    found = problems(run(tmp_path, *PEAKS))
    assert any("peak_bytes at" in problem for problem in found)
    assert any("held_bytes at" in problem for problem in found)


def test_a_token_too_many_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = measured_module()
    honest = module.score_matrix
    monkeypatch.setattr(module, "score_matrix", lambda length, dtype: honest(length + 1, dtype))
    made = run(tmp_path, "params.study=sizes")
    words = verdicts(made)
    assert {"FAILED"} <= words["s4-mem-N2-224"] and {"FAILED"} <= words["s4-mem-fp16-2048"]
    assert any("score_entries at side=448 patch=16 is" in problem for problem in made.problems)


def test_a_model_that_recomputes_its_weights_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module(), "saved_score_bytes", lambda layers, x: 0)
    made = run(tmp_path, "params.study=sizes")
    assert any("stored_size at side=1024 patch=16 dtype=float16 batch=1 is 0" in p for p in made.problems)
    assert verdicts(made)["s4-1024-blows-up"] == {"DIFFERS"}


def test_a_wrong_closed_form_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = importlib.import_module(f"attnrepro.tables.{NAME}.table").closed
    monkeypatch.setattr(functions, "tokens", lambda side, patch: (side // patch) ** 2 + 1)
    words = verdicts(run(tmp_path, "params.study=sizes"))
    assert words["s0-patch-196"] == words["s4-mem-N-2048"] == {"FAILED"}


def test_units_that_are_mixed_up_are_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "score_size" and row["source"] == "measured":
            row["prefix"] = {"binary": "decimal", "decimal": "binary"}[row["prefix"]]

    made = change(root, tmp_path / "r", edit)
    assert "FAILED" in verdicts(made)["s4-mem-fp16-2048"]
    assert built(root).problems == []


def test_an_exponent_that_is_none_is_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "peak_bytes" and row["attention"] == "naive" and row["length"] == "2048":
            row["value"] = repr(float(row["value"]) * 0.7)

    found = change(root, tmp_path / "r", edit).problems
    assert any(f"{FEW}naive phase=training" in problem for problem in found)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.sides=[225]", "sides=225 must be a multiple of patch=16"),
        ("params.sides=[224,224]", "each once"),
        ("params.embed_dim=100", "embed_dim=100 must be a multiple of num_heads=12"),
        ("params.dtype=int8", "must be one of float16"),
        ("params.lengths=[1]", "between 2 and"),
        ("params.batch_sizes=[0]", "between 1 and"),
        ("params.study=speed", "must be one of sizes, peaks"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_whether_the_matrix_is_stored() -> None:
    sizes = [
        {"quantity": "score_size", "dtype": "float16", "patch": "16", "prefix": "binary", "side": side,
         "estimate": value, "unit": "KiB"}
        for side, value in (("224", 75.0), ("448", 300.0))
    ]  # fmt: skip

    def told(fused: float) -> str:
        at = {"phase": "forward", "length": "64"}
        rows = [
            *sizes,
            {"quantity": "matrix_bytes", "length": "64", "estimate": 100.0},
            *({**at, "quantity": "peak_bytes", "attention": a, "estimate": 100.0 * x}
              for a, x in (("naive", 2.0), ("fused", fused))),
        ]  # fmt: skip
        (said,) = reading._told(harness.planted(reading.AXES, *rows))
        return said

    said = told(0.03)
    assert said.startswith("The N x N matrix need not be stored: at 64 tokens the fused kernel holds 0.03 of it at its")
    assert "step by step 2; one head's scores of an image take 75 KiB at 224 pixels and 300 KiB at 448" in said
    assert told(1.2).startswith("The N x N matrix is stored: ")
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "none"})) == ""
