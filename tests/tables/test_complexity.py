"""What layers cost: what is counted, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.nn import masks
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.complexity import measure, reading, table

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "complexity"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


def pick(rows: list[Row], quantity: str, **axes: object) -> float:
    (row,) = [r for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    return row.value


def built(root: Path) -> report.TableReport:
    return harness.built(NAME, root)


def run(root: Path, *overrides: str) -> report.TableReport:
    assert entry.main([*SMOKE, f"results={root}", *overrides]) == 0
    return built(root)


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("costs")
    assert entry.main([*SMOKE, f"results={folder}"]) == 0
    return folder


# --- what is measured ---


def test_every_claim_has_a_verdict_and_the_right_one(root: Path) -> None:
    made = built(root)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    expected = {
        "s2-time-n2d": {"REPRODUCED", "DIFFERS"},
        "s2-space-n2": {"REPRODUCED", "DIFFERS"},
        "s4-conv-cost": {"REPRODUCED", "DIFFERS"},
        "s4-causal-chain": {"REPRODUCED", "DIFFERS"},
        "s2-unify-cost": {"REPRODUCED", "SOURCE_ERROR"},
        "s4-N-gg-d": {"REPRODUCED", "SOURCE_ERROR"},
    }
    assert words == {claim: expected.get(claim, {"REPRODUCED"}) for claim in words}
    assert "exactly 2 (4 N d^2 + 2 N^2 d)" in made.answer and "never cheaper than that RNN" in made.answer
    assert "or one layer of attention or linear attention or low-rank attention." in made.answer


def test_charts_are_drawn(root: Path) -> None:
    (page,) = report.pages([built(root)])
    assert [chart["title"] for chart in page.charts] == [
        "FLOPs, d = 64, kernel 3",
        "attention is cheaper up to, kernel 3",
        "the quadratic term in images",
    ]
    json.dumps(page.charts, allow_nan=False)


def test_the_order_of_costs_turns_at_two_and_a_half_d(root: Path) -> None:
    lines = {
        (line["network"], line["against"], line["tokens"]): line["verdict"]
        for line in built(root).lines
        if line.get("claim") == "s2-unify-cost"
    }
    assert lines["attention", "convolution_2d", "196"] == "SOURCE_ERROR"
    assert lines["attention", "convolution_2d", "4096"] == "REPRODUCED"
    rows = rows_of("params.study=crossover", "params.crossover_dims=[16,20]")
    for d in (16, 20):
        found = pick(rows, "cheaper_up_to", network="attention", against="convolution_2d", embed_dim=d)
        assert found == 5 * d // 2 - 1


def multiply_adds(network: str, n: int, d: int, k: int, h: int) -> int:
    """Multiply-adds of a forward pass on real tensors, from the shapes of what is multiplied."""
    total = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal total
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name in ("mm", "bmm"):
                total += out.numel() * args[0].shape[-1]
            elif name in ("addmm", "baddbmm"):
                total += out.numel() * args[1].shape[-1]
            elif name == "convolution":
                total += out.numel() * args[1][0].numel()
            return out

    with measured_module().making("cpu", torch.float64):
        layer, x = measured_module().make(network, n, d, k, h), torch.randn(n, d)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Watch():
        out = layer(x)
    assert out.shape == (n, d)
    return total


@pytest.mark.parametrize("network", [name for name in table.COUNTED if name not in table.PARTS])
def test_counts_without_data_are_those_on_real_tensors(network: str) -> None:
    heads = 2 if network in ("attention", "torch_attention", "window", "linear", "low_rank") else 1
    for n, d, k, h in [(1, 2, 1, 1), (7, 6, 3, 1), (12, 4, 5, heads)]:
        assert measure.count(network, n, d, k, h) == 2 * multiply_adds(network, n, d, k, h)


def test_the_layers_are_what_they_are_called() -> None:
    n, d = 12, 6
    torch.manual_seed(0)
    with measure.making("cpu", torch.float64):
        x = torch.randn(n, d)
        window, linear = measure.make("window", n, d, 5, 2), measure.make("linear", n, d, 1, 2)
        fused, graph = measure.make("fused", n, d, 1, 2), measure.make("graph_convolution", n, d, 3, 1)
    assert isinstance(window, measure.Projected) and isinstance(fused, measure.Projected)
    torch.testing.assert_close(window(x), window.layer(x, masks.window(n, 5)), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(fused(x), fused.layer(x), rtol=1e-12, atol=1e-14)
    assert isinstance(linear, measure.Projected) and not torch.allclose(linear(x), linear.layer(x))
    assert isinstance(graph, measure.GraphConvolution)
    expected = torch.stack([sum(x[(i + j) % n] for j in range(3)) / 3 for i in range(n)]) @ graph.linear.weight.T
    torch.testing.assert_close(graph(x), expected, rtol=1e-12, atol=1e-14)


def test_the_counter_does_not_see_the_fused_kernel() -> None:
    """Why counts are made with the kernel that is not fused: else the quadratic term would be missing."""
    q = torch.zeros(1, 1, 32, 8)
    with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION), FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(q, q, q)
    assert counter.get_total_flops() < measure.counted(lambda: scaled_dot_product_attention(q, q, q)) == 4 * 32 * 32 * 8


def test_powers_of_polynomials() -> None:
    steps = [7 * i for i in range(1, 6)]
    assert measure.power([0] * 5) == -1
    for degree in (0, 1, 2, 3):
        assert measure.power([3 * n**degree + 5 * (degree > 0) * n for n in steps]) == max(degree, degree > 0)


def test_chains_and_paths_by_hand() -> None:
    a, w = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    deep = a @ w @ w @ w
    out = (deep + a @ w).tanh()
    assert measure.along(out, measure.is_product) == 3
    assert measure.along(out, measure.is_product, a) == 1
    assert measure.along(w @ w @ w + w, measure.is_product, a) is None
    assert measure.along(out + a, measure.is_product, a) == 0


def test_steps_of_a_recurrence_are_its_tokens_and_of_attention_constant() -> None:
    rows = rows_of(
        "params.study=chain", "params.chain_tokens=[3,9]", "params.distances=[5,12]", "params.chain_kernel=5"
    )
    for network in ("rnn", "gru", "lstm"):
        assert [pick(rows, "sequential_steps", network=network, tokens=n) for n in (3, 9)] == [3, 9]
        assert [pick(rows, "path_length", network=network, tokens=n) for n in (6, 13)] == [5, 12]
    for network in ("attention", "linear", "low_rank"):
        assert len({pick(rows, "sequential_steps", network=network, tokens=n) for n in (3, 9)}) == 1
        assert [pick(rows, "path_length", network=network, tokens=n) for n in (6, 13)] == [1, 1]
    for network in ("window", "convolution"):  # two positions a layer
        assert [pick(rows, "path_length", network=network, tokens=n) for n in (6, 13)] == [3, 6]


# --- planted faults ---


def test_a_window_that_looks_at_everything_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(query: Tensor, key: Tensor, value: Tensor, width: int) -> Tensor:
        return torch.softmax(query @ key.transpose(-1, -2), -1) @ value

    monkeypatch.setattr(measured_module(), "window_attention", everything)
    made = run(tmp_path, "params.study=flops,chain")
    assert "FAILED" in verdicts(made)["s4-causal-chain"]
    assert any("flops_degree at network=window variable=tokens is 2" in problem for problem in made.problems)
    assert any("path_length at network=window" in problem for problem in made.problems)


def test_linear_attention_with_a_matrix_of_weights_would_save_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explicit(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key.transpose(-1, -2), -1) @ value

    monkeypatch.setattr(measured_module(), "linear_attention", explicit)
    made = run(tmp_path, "params.study=flops")
    (line,) = [r for r in made.lines if r.get("claim") == "s4-causal-chain" and r["network"] == "linear"]
    assert line["verdict"] == "REPRODUCED"
    assert any("flops_degree at network=linear variable=tokens is 2" in problem for problem in made.problems)


def test_a_kernel_that_stores_the_scores_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stored(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(query @ key.transpose(-1, -2), -1) @ value

    monkeypatch.setattr(measured_module(), "fused", stored)
    made = run(tmp_path, "params.study=chain")
    assert verdicts(made)["s2-space-n2"] == {"REPRODUCED"}
    assert any("largest_tensor_degree at network=fused" in problem for problem in made.problems)


def test_attention_that_does_more_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(measured_module().SelfAttention):  # type: ignore[misc]
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask) + super().forward(x, mask) * (x @ x.T @ x).sum() * 0  # type: ignore[no-any-return]

    monkeypatch.setattr(measured_module(), "SelfAttention", Longer)
    made = run(tmp_path, "params.study=flops")
    for claim in ("s4-score-cost", "s4-N-gg-d", "s2-unify-cost"):
        assert "FAILED" in verdicts(made)[claim]
    assert any("flops at network=attention tokens=196 embed_dim=64" in problem for problem in made.problems)


def test_heads_that_cost_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(measured_module().SelfAttention):  # type: ignore[misc]
        def __init__(self, embed_dim: int, num_heads: int = 1) -> None:
            super().__init__(embed_dim, num_heads)
            self.extra = nn.Linear(embed_dim, embed_dim * num_heads, bias=False)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask) + 0 * self.extra(x).sum()  # type: ignore[no-any-return]

    monkeypatch.setattr(measured_module(), "SelfAttention", Wide)
    made = run(tmp_path, "params.study=flops")
    assert "FAILED" in verdicts(made)["s0-mh-total-cost"]
    assert any("flops_spread at network=attention" in problem for problem in made.problems)


def test_a_wrong_closed_form_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = importlib.import_module(f"attnrepro.tables.{NAME}.table").closed
    honest = closed.cheaper_up_to
    monkeypatch.setattr(closed, "cheaper_up_to", lambda *arguments: honest(*arguments) + 1)
    made = run(tmp_path, "params.study=crossover")
    assert any("cheaper_up_to at network=attention against=lstm" in problem for problem in made.problems)


def test_a_crossover_that_never_comes_is_a_failed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "FAR", 20)
    rows = rows_of("params.study=crossover", "params.crossover_dims=[16]")
    (row,) = [r for r in rows if r.axes["network"] == "scores" and r.axes["against"] == "projections"]
    assert row.status == "failed: not within 20"


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.kernels=[4]", "kernels=4 must be odd"),
        ("params.chain_kernel=4", "chain_kernel=4 must be odd"),
        ("params.ratio_kernel=2", "ratio_kernel=2 must be odd"),
        ("params.tokens=[16,16]", "each once"),
        ("params.tokens=[0]", "between 1 and"),
        ("params.ratio_shapes=[196]", "ratio_shapes=196 must be tokens x embed_dim"),
        ("params.exponent_shapes=[0x4]", "must have sizes of 1 or more"),
        ("params.heads=[3]", "heads=3 must divide the embed_dim of heads_shape=196x512"),
        ("params.image_sizes=[225]", "image_sizes=225 must be a multiple of patch=16"),
        ("params.degree_points=3", "between 4 and"),
        ("params.study=time", "must be one of flops"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_up_to_which_length_attention_is_the_cheapest() -> None:
    def told(**up_to: float) -> str:
        at = {"quantity": "cheaper_up_to", "network": "attention", "embed_dim": "64"}
        rows = [{**at, "against": against, "estimate": limit} for against, limit in up_to.items()]
        return harness.first(reading.answer(harness.planted(table.AXES, *rows)))

    said = told(rnn=0, gru=63, linear=64)
    assert said.startswith(
        "It is at no N the cheapest of all (a plain RNN always needs less); it costs less than a GRU"
    )
    assert "up to N = 63 (d = 64), linear attention up to N = 64" in said
    said = told(rnn=5, gru=63)
    assert said.startswith("It is the cheapest of all up to N = 5; ") and "always" not in said
    assert reading.answer(harness.planted(table.AXES, {"quantity": "flops"})) == ""
