"""Identities of attention: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.data.streams import generator
from attnrepro.nn.cross_attention import CrossAttention
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.attention_identities import facts, identities, measure, table
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "attention_identities"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
# Enough draws for the structural lines, whatever the scale, and the numbers that printed lines ask for.
DRAWS = ("params.draws=60", "params.shapes=[3x8x2]", "params.n_keys=[16,196]", "params.n_queries=1000")
STACKS = ("params.stack_length=196", "params.depths=[12]", "params.n_stacks=3")


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    (row,) = [r for r in rows if r.quantity == quantity and dict(r.axes) == axes]
    return row


def built(root: Path) -> report.TableReport:
    return harness.built(NAME, root)


def run(root: Path, *overrides: str) -> report.TableReport:
    """Cells of the smoke grid with more draws, as if the grid had been made so."""
    assert entry.main([*SMOKE, *DRAWS, *STACKS, f"results={root}", *overrides]) == 0
    return built(root)


def now(module: str) -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.{module}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identities")
    assert entry.main([*SMOKE, *DRAWS, *STACKS, f"results={folder}"]) == 0
    return folder


def change(root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    return harness.change(NAME, root, target, edit)


# --- what is measured ---


def test_every_claim_has_a_verdict_and_the_right_one(root: Path) -> None:
    made = built(root)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    expected = {
        "s2-dog-man": {"REPRODUCED", "SOURCE_ERROR"},
        "s2-pe-required": {"REPRODUCED", "SOURCE_ERROR"},
        "s4-pe-only-reason": {"SOURCE_ERROR"},
        "s2-cnn-scalar-form": {"REPRODUCED", "SOURCE_ERROR"},
        "s2-unify-flex": {"REPRODUCED", "SOURCE_ERROR"},
        "s0-same-scale": {"REPRODUCED", "DIFFERS"},
        "s4-no-extra-scale": {"DIFFERS"},
        "s0-forces-the-formula": {"DIFFERS"},
        "s2-pe-i-range": {"DIFFERS"},
        "s2-dk-dv-d": {"REPRODUCED", "DIFFERS"},
        "s3-qkv-two-sources": {"CONFIRMED"},
        "s2-pe-once": {"CONTRADICTED"},
    }
    assert words == {claim: expected.get(claim, {"REPRODUCED"}) for claim in words}
    assert made.checks[0][1].count == 2 + 4
    assert "26 of 26 equalities hold" in made.answer and "65 of 65 breakers" in made.answer
    assert "exp(-1 a) with a one-hot code and exp(-0.515 a)" in made.answer
    frame = made.shown.frame()
    frame["published"] = math.nan
    assert len(report.reading_module(NAME).charts(frame)) == 3


def test_tables_and_functions_list_the_same() -> None:
    assert set(identities.IDENTITIES) == set(table.BREAKERS) == set(cell_of().params.identities)
    assert set(facts.FACTS) | {"codes_distinct", "sinusoid_length", "learned_length"} == set(table.FACTS)
    assert {name: torch.finfo(getattr(torch, name)).eps for name in table.EPS} == table.EPS


def test_an_error_is_that_of_its_draws() -> None:
    """Row sums of two draws from two seeds, in float32 and over two shapes."""
    rows = rows_of("params.identities=[row_sum]", "params.draws=2", "seeds=[3,5]", "params.dtypes=[float32]")
    over_all = []
    for shape in ("3x8x2", "7x16x4"):
        length, embed_dim, num_heads = table.sizes(shape)
        for index, seed in enumerate((3, 5)):
            stream = generator(seed, NAME, "row_sum", shape, index)
            layer = SelfAttention(embed_dim, num_heads)
            with torch.no_grad():
                for weight in layer.parameters():
                    drawn = torch.randn(weight.shape, generator=stream, dtype=torch.float64)
                    weight.copy_(drawn.float() / math.sqrt(embed_dim))
                x = torch.randn(length, embed_dim, generator=stream, dtype=torch.float64).float()
                causal = torch.ones(length, length).tril().bool()
                sums = [layer.weights(x, mask).sum(-1) for mask in (None, causal)]
            over_all.append(max(float((s - 1).abs().max()) for s in sums) / 2**-23)
        row = pick(rows, "error_eps", identity="row_sum", shape=shape, dtype="float32")
        assert (row.value, row.n) == (max(over_all[-2:]), 2)
    row = pick(rows, "error_eps", identity="row_sum", dtype="float32")
    assert (row.value, row.n) == (max(over_all), 4)


@pytest.fixture(scope="module")
def params() -> Any:
    return cell_of().params


def source(params: Any, shape: str, name: str, dtype: torch.dtype = torch.float64) -> identities.Source:
    return identities.Source(generator(0, NAME, name, shape), params, shape, dtype, torch.device("cpu"))


def test_a_draw_is_the_same_in_every_precision(params: Any) -> None:
    exact, rounded = (source(params, "7x16x4", "x", dtype) for dtype in (torch.float64, torch.float32))
    with torch.no_grad():
        for one, other in zip(exact.layer().parameters(), rounded.layer().parameters(), strict=True):
            torch.testing.assert_close(one.float(), other, rtol=2e-7, atol=0)
        assert torch.equal(exact.tokens().float(), rounded.tokens())
        assert exact.permutation(7).tolist() == rounded.permutation(7).tolist() != list(range(7))


@pytest.mark.parametrize(
    ("name", "breakers"),
    [
        ("projections", ("one_matrix", "matrix_transposed")),
        ("three_steps", ("unscaled", "no_softmax", "keys_and_values_swapped")),
        ("cross_attention", ("softmax_over_queries", "context_cut")),
        ("shift_rotation", ("other_direction", "one_frequency", "halves_paired")),
        ("conv_circular", ("kernel_flipped", "other_padding", "shifted_by_one", "one_window")),
        ("conv_zeros", ("kernel_flipped", "other_padding", "shifted_by_one", "one_window")),
        ("graph_sparse", ("no_loops", "edge_missing", "edges_reversed")),
        ("self_as_cross", ("another_context",)),
    ],
)
def test_a_breaker_leaves_the_other_side_as_it_is(params: Any, name: str, breakers: tuple[str, ...]) -> None:
    with torch.no_grad():
        honest = identities.IDENTITIES[name](source(params, "7x16x4", name), "")
        for breaker in breakers:
            broken = identities.IDENTITIES[name](source(params, "7x16x4", name), breaker)
            assert torch.equal(broken.expected, honest.expected) and not torch.equal(broken.found, honest.found)


def test_the_hull_by_linear_programming(params: Any) -> None:
    """Feasibility of weights, for outputs inside and for the breakers' outside."""
    for breaker, inside in (("", True), ("negative_weights", False), ("unnormalised", False)):
        draw = source(params, "7x16x4", "hull")
        with torch.no_grad():
            out, _, value = identities._mixed(draw, breaker)
            distance = identities.hull_distance(source(params, "7x16x4", "hull"), breaker).found
        feasible = [
            linprog(
                np.zeros(len(value)),
                A_eq=np.vstack([value.T.numpy(), np.ones(len(value))]),
                b_eq=np.append(point.numpy(), 1.0),
            ).success
            for point in out
        ]
        assert feasible == [bool(d < 1e-9) for d in distance]
        assert all(feasible) is inside


def test_the_angle_has_nothing_of_a_dot_product(params: Any) -> None:
    draw = source(params, "7x16x4", "angle")
    x, y = draw.tokens(), draw.tokens()
    found = identities.dot_cosine(source(params, "7x16x4", "angle"), "")
    for i in range(7):
        for j in range(7):
            q, k = x[i].numpy(), y[j].numpy()
            across = k - (k @ q) / (q @ q) * q  # what of k is at right angles to q
            angle = math.atan2(np.linalg.norm(across), (k @ q) / np.linalg.norm(q))
            assert float(found.expected[i, j]) == pytest.approx(math.cos(angle), abs=1e-14)


def test_the_future_by_a_derivative(params: Any) -> None:
    """No probability at a position has a slope by a later token."""
    draw = source(params, "7x16x4", "future")
    stack = identities._Stack(16, 4)
    draw.filled(stack)
    x, causal = draw.tokens(), torch.ones(7, 7).tril().bool()
    slopes = torch.autograd.functional.jacobian(lambda tokens: stack(tokens, causal, ""), x).abs().amax(dim=(1, 3))
    assert torch.equal(slopes > 0, causal)
    for breaker in ("mask_after_softmax", "norm_over_tokens"):
        slopes = torch.autograd.functional.jacobian(lambda t, b=breaker: stack(t, causal, b), x).abs().amax(dim=(1, 3))
        assert bool((slopes.triu(1)[0, 1:] > 0).all())


def test_counts_of_a_wrong_mask_by_hand() -> None:
    rows = rows_of("params.study=facts", "params.shapes=[5x4x2,7x6x1]")
    pairs = {length: length * (length - 1) // 2 for length in (5, 7)}
    closed = pick(rows, "mismatches", identity="causal_closed", breaker="shifted_by_one")
    assert (closed.value, closed.n) == (2 * 4 + 1 * 6, 2 * 25 + 49)
    closed = pick(rows, "mismatches", identity="causal_closed", breaker="no_mask")
    assert closed.value == 2 * pairs[5] + pairs[7]
    depends = pick(rows, "mismatches", identity="causal_dependence", breaker="no_mask")
    assert (depends.value, depends.n) == (pairs[5] + pairs[7], 25 + 49)
    # The first position attends to nothing; all others still depend on themselves through their query.
    assert pick(rows, "mismatches", identity="causal_dependence", breaker="strict").value > 0
    assert pick(rows, "closed_pairs", shape="7x6x1").value == pairs[7]
    asked = pick(rows, "mismatches", identity="score_index", breaker="transposed")
    assert (asked.value, asked.n) == (2 * (2 * 4) + 2 * (2 * 6), 2 * 25 + 2 * 49)


def test_lengths_and_frequencies() -> None:
    p = cell_of("params.code_lengths=[511,512,513,9000]").params
    assert facts.lengths(p, "learned_length", "") == (0, 4)
    assert facts.lengths(p, "learned_length", "wrapped_around") == (2, 4)
    assert facts.lengths(p, "sinusoid_length", "learned_table") == (2, 4)
    for embed_dim in (2, 8, 512):
        assert facts.frequency_share(embed_dim) == 0.5


def test_sparsemax_is_the_nearest_point_of_the_simplex() -> None:
    scores = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    found = facts.sparsemax(scores)
    for row, point in zip(scores.tolist(), found.tolist(), strict=True):
        low, high = min(row) - 1, max(row)
        for _ in range(100):  # the threshold at which the rest sums to one
            middle = (low + high) / 2
            low, high = (middle, high) if sum(max(s - middle, 0) for s in row) > 1 else (low, middle)
        assert point == pytest.approx([max(s - low, 0) for s in row], abs=1e-12)


def test_one_head_is_fitted_to_the_least() -> None:
    windows = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = windows @ torch.tensor([1.0, -3.0, 1.5], dtype=torch.float64)
    left = float((target - identities.fit_one_head(windows, target)).square().sum())
    grid = [
        float((target - sign * windows @ torch.tensor(w, dtype=torch.float64)).square().sum())
        for sign in (1, -1)
        for w in np.ndindex(9, 17, 9)
        for w in [[w[0] / 4, w[1] / 4, w[2] / 4]]
    ]
    assert left <= min(grid) and left == pytest.approx(min(grid), rel=0.02)


def test_spreads_by_loops() -> None:
    rows = rows_of("params.study=output_scale", "params.n_keys=[5]", "params.n_queries=40", "params.head_dim=6")
    stream = generator(0, NAME, "output_scale", 5)
    query, key, value = (
        torch.randn(40, n, d, generator=stream, dtype=torch.float64)
        for n, d in ((1, 6), (5, 6), (5, measure.VALUE_DIM))
    )
    squares = []
    for i in range(40):
        e = [math.exp(float(query[i, 0] @ key[i, j]) / math.sqrt(6)) for j in range(5)]
        out = sum(w / sum(e) * value[i, j] for j, w in enumerate(e))
        squares.append(float(out.square().mean()))
    row = pick(rows, "output_sd", n_keys=5)
    assert row.value == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-9)
    assert (row.n, row.sd) == (40, pytest.approx(np.std(squares, ddof=1) / (2 * row.value), rel=1e-9))
    assert pick(rows, "layer_sd", n_keys=16, depth=2).value < pick(rows, "layer_sd", n_keys=16, depth=1).value < 1


def test_the_spread_of_a_residual_is_that_over_repetitions() -> None:
    cell, found = cell_of("params.study=soft_limit"), []
    for seed in range(80):
        study = measure.SoftLimit(dataclasses.replace(cell, seeds=(seed,)))
        study.test_step(("kernel", "1 -1"), 0)
        found += study.rows()
    spread = np.std([row.value for row in found], ddof=1) * math.sqrt(500)
    assert spread == pytest.approx(np.mean([row.sd for row in found]), rel=0.3)  # 80 values know their sd to 8 %


# --- planted faults ---


def only(*names: str) -> tuple[str, ...]:
    return ("params.study=identities", f"params.identities=[{','.join(names)}]")


def test_attention_that_knows_positions_is_noticed(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Biased(SelfAttention):
        def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            tilted = super().weights(x, mask) * torch.linspace(1, 1.1, x.shape[-2], dtype=x.dtype)
            return tilted / tilted.sum(-1, keepdim=True)

    monkeypatch.setattr(now("identities"), "SelfAttention", Biased)
    made = run(tmp_path, *only("per_word", "graph_complete", "self_as_cross"))
    words = verdicts(made)
    for claim in ("s2-bag-of-words", "s2-gnn-complete", "s3-cross"):
        assert verdicts(built(root))[claim] == {"REPRODUCED"} and "SOURCE_ERROR" in words[claim]
    assert any("at most 32 eps is round-off" in problem for problem in made.problems)


def test_weights_that_do_not_sum_to_one_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud(SelfAttention):
        def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().weights(x, mask) * (1 + 1e-9)

    monkeypatch.setattr(now("identities"), "SelfAttention", Loud)
    words = verdicts(run(tmp_path, *only("row_sum")))
    assert {*words["s4-rows-sum"], *words["s2-row-softmax"]} == {"SOURCE_ERROR"}


def reversed_mask(length: int, **kw: Any) -> Tensor:
    return ~torch.ones(length, length, dtype=torch.bool).tril()


def shifted_mask(length: int, **kw: Any) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril(1)


@pytest.mark.parametrize("wrong", [reversed_mask, shifted_mask])
def test_a_wrong_mask_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Tensor]) -> None:
    monkeypatch.setattr(now("identities").masks, "causal", wrong)
    made = run(tmp_path / "a", *only("causal_zero", "future"))
    words = verdicts(made)
    assert words["s1-causal-zeros"] == {"FAILED"} and "SOURCE_ERROR" in words["s1-lm-next-token"]
    made = run(tmp_path / "b", "params.study=facts")
    assert {*verdicts(made)["s3-upper-right"]} == {"FAILED"}
    assert any("causal_dependence" in problem and "it must be 0" in problem for problem in made.problems)


@pytest.mark.parametrize(
    ("module", "name", "wrong", "which", "claim"),
    [
        (
            "identities",
            "sinusoidal",
            lambda length, dim, **kw: torch.sin(torch.outer(torch.arange(length) ** 1.1, torch.arange(dim) / dim)).to(
                kw["dtype"]
            ),
            "shift_rotation",
            "s2-pe-relative",
        ),
        ("identities", "rotary", lambda x, positions: x * positions[:, None].to(x.dtype), "rotary_distance", None),
        ("identities", "convolution_layer", None, "conv_circular", "s2-cnn-restricted"),
        ("identities", "graph_attention", None, "graph_sparse", "s2-unify-gnn"),
        ("identities", "CrossAttention", None, "cross_attention", "s3-cross"),
        ("identities", "attention_logits", None, "score_entries", "s2-a23"),
        ("identities", "fit_one_head", lambda windows, target: 0.999 * target, "one_head_kernel", "s2-cnn-scalar-form"),
    ],
)
def test_a_broken_mechanism_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str, wrong: Any, which: str, claim: str | None
) -> None:
    honest = getattr(now(module), name)

    class Transposed(CrossAttention):
        def weights(self, x: Tensor, context: Tensor) -> Tensor:
            return super().weights(x, context).flip(-1)

    planted = {
        "convolution_layer": lambda kernel, *rest: honest(kernel.flip(-1), *rest),
        "graph_attention": lambda layer, x, edges: honest(layer, x, edges.flip(0)),
        "attention_logits": lambda query, key, **kw: honest(key, query, **kw),
        "CrossAttention": Transposed,
    }
    monkeypatch.setattr(now(module), name, wrong or planted[name])
    made = run(tmp_path, *only(which))
    assert any("error_eps" in problem and f"identity={which}" in problem for problem in made.problems)
    if claim:
        assert "SOURCE_ERROR" in verdicts(made)[claim]


@pytest.mark.parametrize(
    ("name", "wrong", "which", "breaker"),
    [
        ("_shifted", lambda length, device: torch.ones(length, length).tril().bool(), "causal_zero", "shifted_by_one"),
        ("sinusoidal", lambda length, dim, **kw: torch.zeros(length, dim, dtype=kw["dtype"]), "pooled", "sinusoidal"),
    ],
)
def test_a_breaker_that_breaks_nothing_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any, which: str, breaker: str
) -> None:
    monkeypatch.setattr(now("identities"), name, wrong)
    problems = run(tmp_path, *only(which)).problems
    assert [f"breaker={breaker}" in problem and "did not" in problem for problem in problems] == [True]


def test_a_nan_in_one_draw_fails_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, honest = [], identities.IDENTITIES["pooled"]

    def third_is_nan(draw: Any, breaker: str) -> Any:
        calls.append(breaker)
        sides = honest(draw, breaker)
        return sides._replace(found=sides.found * math.nan) if len(calls) == 3 else sides

    monkeypatch.setitem(identities.IDENTITIES, "pooled", third_is_nan)
    cell = cell_of(*only("pooled"), "params.draws=5")
    job = measure.build(cell)
    with pytest.raises(ValueError, match="error_eps: value is not a number"):
        make_trainer(cell).test(job.module, job.test, verbose=False)


def test_a_code_that_ends_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = now("facts").sinusoidal

    def ends(length: int, *rest: Any, **kw: Any) -> Tensor:
        if length > 512:
            raise IndexError
        return honest(length, *rest, **kw)

    monkeypatch.setattr(now("facts"), "sinusoidal", ends)
    words = verdicts(run(tmp_path, "params.study=facts"))
    assert words["s2-pe-any-length"] == {"FAILED"} and words["s2-learned-pe-maxlen"] == {"REPRODUCED"}


def test_codes_that_coincide_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = now("facts").sinusoidal
    monkeypatch.setattr(now("facts"), "sinusoidal", lambda n, *rest, **kw: honest(n, *rest, **kw)[torch.arange(n) % 50])
    assert verdicts(run(tmp_path, "params.study=facts"))["s2-pe-distinct"] == {"FAILED"}


def test_a_wrong_leak_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theory = importlib.import_module("attnrepro.theory.attention_limits")
    honest = theory.one_hot_leak
    monkeypatch.setattr(theory, "one_hot_leak", lambda length, scale: honest(length + 1, scale))
    problems = run(tmp_path, "params.study=soft_limit").problems
    # Every scale of the one code, its slopes included, and none of the other.
    assert len(problems) > 8 and all("case=one_hot: theory says" in problem for problem in problems)


@pytest.mark.parametrize("name", ["output_sd", "one_head_residual"])
def test_a_spread_that_is_not_that_of_theory_is_noticed(root: Path, tmp_path: Path, name: str) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == name and row["source"] == "measured":
            row["value"] = repr(float(row["value"]) * 1.5)

    assert any("Monte Carlo and theory disagree" in problem for problem in change(root, tmp_path / "r", edit).problems)


def test_an_output_on_the_scale_of_its_values_would_confirm_the_claim(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] in ("output_sd", "layer_sd"):
            row["value"] = "0.9"

    words = verdicts(change(root, tmp_path / "r", edit))
    assert words["s4-no-extra-scale"] == words["s0-same-scale"] == {"REPRODUCED"}


def test_one_weighting_alone_would_confirm_that_the_formula_is_forced(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "qualifying_weightings":
            row["value"] = "1"

    assert verdicts(change(root, tmp_path / "r", edit))["s0-forces-the-formula"] == {"REPRODUCED"}


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.shapes=[8x16]", "shapes=8x16 must be length x embed_dim x num_heads"),
        ("params.shapes=[2x16x1]", "must have a length of kernel_width=3 or more"),
        ("params.shapes=[8x15x3]", "must have an even embed_dim and heads that divide it"),
        ("params.shapes=[8x16x3]", "must have an even embed_dim and heads that divide it"),
        ("params.kernel_width=4", "kernel_width=4 must be odd"),
        ("params.code_dim=7", "code_dim=7 must be even"),
        ("params.code_shapes=[64x15]", "code_shapes=64x15 must be 2 or more positions"),
        ("params.code_shapes=[1x16]", "code_shapes=1x16 must be 2 or more positions"),
        ("params.soft_shape=16x4x4", "soft_shape=16x4x4 must be length x channels x an odd width"),
        ("params.soft_shape=3x4x5", "soft_shape=3x4x5 must be length x channels x an odd width"),
        ("params.example_heads=[3]", "example_heads=3 must divide example_dim=512"),
        ("params.kernels=['0 0']", "kernels=0 0 must be two or more whole numbers"),
        ("params.kernels=['1']", "kernels=1 must be two or more whole numbers"),
        ("params.identities=[cubes]", "must be one of row_sum"),
        ("params.study=prose", "must be one of identities"),
        ("params.dtypes=[bfloat16]", "must be one of float64"),
        ("params.draws=0", "between 1 and"),
        ("params.logit_scales=[800]", "between 0 and 700"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)
