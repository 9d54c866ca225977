"""Worked examples: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.data.streams import generator
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.worked_examples import measure, reading, table

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "worked_examples"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
IT, CAT = "它 it", "猫 cat"
SENTENCE = [
    "那 that",
    "只 zhi",
    CAT,
    "没 not",
    "过 cross",
    "马路 road",
    "因为 because",
    IT,
    "太 too",
    "累 tired",
    "了 le",
]
FIRST = (0.4, 0.3, 4.2, 0.2, 0.3, 1.1, 0.6, 0.5, 0.7, 0.4)


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    found = [r for r in rows if r.quantity == quantity]
    (row,) = [r for r in found if all(r.axes.get(name) == value for name, value in axes.items())]
    return row


def built(root: Path) -> report.TableReport:
    return harness.built(NAME, root)


def run(root: Path, *overrides: str) -> report.TableReport:
    """Cells off the table's own grid, as if the grid had been made so."""
    assert entry.main([*SMOKE, f"results={root}", *overrides]) == 0
    return built(root)


def value(made: report.TableReport, quantity: str, column: str = "estimate", **axes: str) -> Any:
    values = [
        line[column]
        for line in made.lines
        if line["quantity"] == quantity and all(line[name] == text for name, text in axes.items())
    ]
    assert len(set(values)) == 1
    return values[0]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    assert entry.main([*SMOKE, f"results={folder}"]) == 0
    return folder


def change(root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    return harness.change(NAME, root, target, edit)


# --- verdicts ---

UNLIKE = {
    "SOURCE_ERROR": [
        *("s1-two-word-A", "s1-two-word-reason", "s1-two-word-AV", "s2-pair-073", "s2-pair-027", "s2-pair-output"),
        *("s3-cat-w-mao", "s3-cat-w-mei", "s3-cat-w-malu", "s3-cat-w-yinwei", "s3-cat-w-tai", "s3-cat-w-lei"),
        *("s3-cat-w-le", "s3-front-positions"),
    ],
    # One of two rows changes, two of ten scores do.
    "REPRODUCED SOURCE_ERROR": ["s1-ex2-from-identity", "s3-second-list-shift"],
    "REPRODUCED DIFFERS": ["s2-split-is-projection"],
    "DIFFERS": ["s2-pair-unscaled"],
    "WITHIN_NOISE": ["s1-code-var", "s1-code-var-scaled"],
    "CONFIRMED": ["s2-h-8-16", "s3-heads-8"],
}
EXPECTED = {claim: set(words.split()) for words, claims in UNLIKE.items() for claim in claims}


def test_every_claim_has_a_verdict_and_the_right_one(root: Path) -> None:
    made = built(root)
    assert made.problems == []
    assert made.checks[0][1].count == 3
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert len(words) == 41 and set(EXPECTED) <= set(words)
    assert words == {claim: EXPECTED.get(claim, {"REPRODUCED"}) for claim in words}
    assert "10 of the 23 printed softmax weights" in made.answer
    assert "cat has 0.8125 for token 猫 cat (the printed 0.55 needs a score of 2.93 instead of 4.20)" in made.answer
    assert "No temperature gives the printed row of cat" in made.answer


def test_charts_show_every_printed_weight(root: Path) -> None:
    made = built(root)
    assert made.shown is not None
    module = report.reading_module(NAME)
    weights, scores, residuals = (chart for chart in module.charts(made.shown.frame()))
    marked = weights["layer"][0]["data"]["values"] if "data" in weights["layer"][0] else weights["data"]["values"]
    by_key: dict[str, list[float]] = {}
    for mark in marked:
        by_key.setdefault(mark["key"], []).append(mark["printed"])
    assert len(by_key) == 20  # 2 x 2, 2 x 2, 2, 10: not the three that a mask hides
    assert by_key["two_tokens: 1 to 1"] == [1.0] and by_key["cat: 累 tired"] == [0.1]
    assert by_key["cat: 那 that"] == [0.015, 0.045]
    assert len(scores["data"]["values"]) == 13
    assert len(residuals["layer"][1]["data"]["values"]) == 2 * 10
    nothing = made.shown.frame()
    assert module.charts(nothing[nothing.quantity == "parameters"]) == []


def test_what_the_prints_need_gives_the_prints(root: Path) -> None:
    made = built(root)
    # The cat's score, in a softmax by hand.
    needed = value(made, "needed_score", example="cat", token=CAT)
    others = sum(math.exp(score) for score in FIRST if score != 4.2)
    assert math.exp(needed) / (math.exp(needed) + others) == pytest.approx(0.55, rel=1e-9)
    temperature = value(made, "needed_temperature", example="cat")
    parts = [math.exp(score / temperature) for score in FIRST]
    assert parts[2] / sum(parts) == pytest.approx(0.55, rel=1e-9)
    # A brute scan finds no temperature that misses all ten prints by less.
    prints = [(0.015, 0.045), (0.015, 0.045), (0.55,) * 2, (0.015, 0.045), (0.015, 0.045)]
    prints += [(p, p) for p in (0.08, 0.06, 0.05, 0.10, 0.05)]
    misses = []
    for step in range(1, 4000):
        parts = [math.exp(score / (0.002 * step + 0.05)) for score in FIRST]
        weights = [part / sum(parts) for part in parts]
        misses.append(max(max(a - w, w - b, 0) for w, (a, b) in zip(weights, prints, strict=True)))
    assert value(made, "best_temperature_miss") == pytest.approx(min(misses), abs=5e-4)
    assert value(made, "best_temperature_miss") > 0.03
    assert value(made, "needed_score", example="pair", token="机器 machine") == pytest.approx(
        0.3 + math.log(0.73 / 0.27)
    )
    assert value(made, "needed_temperature", example="pair") == pytest.approx(0.6 / math.log(0.73 / 0.27))
    # Nothing is needed where the print is right.
    assert not [r for r in made.lines if r["quantity"] == "needed_score" and r["example"] == "exercise_2"]


# --- examples ---


def by_hand(scores: dict[str, float]) -> dict[str, float]:
    total = math.fsum(math.exp(score) for score in scores.values())
    return {token: math.exp(score) / total for token, score in scores.items()}


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("example", ["cat", "cat_again"])
def test_the_cat_in_both_lists_with_and_without_a_mask(example: str, mask: str) -> None:
    rows = rows_of(f"params.example={example}")
    tokens = [t for t in SENTENCE if t != IT or example == "cat_again"]
    scores = dict(zip(tokens, [*FIRST, 0.4], strict=False))
    seen = {t: s for t, s in scores.items() if mask == "none" or SENTENCE.index(t) <= SENTENCE.index(IT)}
    expected = by_hand(seen)
    for token in tokens:
        weight = pick(rows, "weight", query=IT, token=token, mask=mask, head_dim=1)
        assert weight.value == pytest.approx(expected.get(token, 0.0), rel=1e-12)
        assert (weight.value == 0) == (token not in seen)
    assert pick(rows, "scored_after_query").value == 3
    assert pick(rows, "weights_sum", mask=mask).value == pytest.approx(1)


def test_matrices_row_by_row() -> None:
    high, low = 1 / (1 + math.exp(-math.sqrt(2))), 1 / (1 + math.exp(math.sqrt(2)))
    for example, expected in (("two_tokens", [[high, low], [low, high]]), ("exercise_2", [[0.5, 0.5], [low, high]])):
        rows = rows_of(f"params.example={example}")
        for i, row in enumerate(expected):
            for j, weight in enumerate(row):
                at = {"query": str(i + 1), "head_dim": 2, "mask": "none"}
                assert pick(rows, "weight", token=str(j + 1), **at).value == pytest.approx(weight, rel=1e-12)
                # V is the identity.
                assert pick(rows, "output", component=j + 1, **at).value == pytest.approx(weight, rel=1e-12)
        moved = max(abs(expected[i][j] - (i == j)) for i in range(2) for j in range(2))
        assert pick(rows, "output_minus_value").value == pytest.approx(moved)


def test_printed_dot_products_are_those_of_the_vectors() -> None:
    cell = cell_of("params.example=pair")
    module = measure.Example(cell)
    for head_dim in (1, 64):
        query, key = module._vectors(head_dim)
        assert query.shape == (1, head_dim) and key.shape == (2, head_dim)
        assert [
            sum(a * b for a, b in zip(query[0].tolist(), row.tolist(), strict=True)) for row in key
        ] == pytest.approx([0.9, 0.3], rel=1e-12)
    rows = rows_of("params.example=pair")
    scaled = by_hand({"a": 0.9 / 8, "b": 0.3 / 8})["a"]
    assert pick(rows, "weight", token="机器 machine", head_dim=64).value == pytest.approx(scaled, rel=1e-12)
    assert pick(rows, "output", component=1, head_dim=64).value == pytest.approx(scaled, rel=1e-12)


def test_theory_is_decimal_and_measurement_is_not(root: Path) -> None:
    made = built(root)
    exact = [line for line in made.lines if line["quantity"] == "weight"]
    # The cat's weight answers two claims, one line each.
    assert len(exact) == 4 + 4 + 2 * 2 + 2 * 10 + 2 * 11 + 1
    assert all(line["estimate"] == pytest.approx(line["theory"], rel=1e-12) for line in exact)
    assert any(line["estimate"] != line["theory"] for line in exact)


# --- variance ---


def test_variances_are_those_of_the_draws() -> None:
    rows = rows_of("params.study=variance", "params.n_draws=3000", "params.n_printed=500", "params.variance_dim=3")
    stream = generator(0, table.NAME, "variance")
    query, key = torch.randn(2, 3000, 1, 3, generator=stream, dtype=torch.float64)
    dots = [
        sum(a * b for a, b in zip(q, k, strict=True))
        for q, k in zip(query[:, 0].tolist(), key[:, 0].tolist(), strict=True)
    ]
    mean = sum(dots) / 3000
    variance = sum((dot - mean) ** 2 for dot in dots) / 3000
    assert pick(rows, "dot_product_variance").value == pytest.approx(variance)
    assert pick(rows, "logit_variance").value == pytest.approx(variance / 3)
    second = sum(dot**2 for dot in dots) / 3000
    spread = math.sqrt(sum((dot**2 - second) ** 2 for dot in dots) / 3000)
    assert pick(rows, "variance_standard_error").value == pytest.approx(spread / math.sqrt(500))
    assert pick(rows, "dot_product_variance").sd == pytest.approx(spread, rel=0.01)
    assert pick(rows, "logit_variance").sd == pytest.approx(spread / 3, rel=0.01)


def test_the_spread_of_each_variance_is_that_over_repetitions() -> None:
    seeds = ",".join(map(str, range(100)))
    rows = rows_of("params.study=variance", "params.n_draws=2000", f"seeds=[{seeds}]")
    for quantity in table.VARIANCES:
        chosen = [r for r in rows if r.quantity == quantity]
        spread = torch.tensor([r.value for r in chosen]).double().std() * math.sqrt(2000)
        sd = torch.tensor([r.sd for r in chosen]).double().mean()
        assert float(spread / sd) == pytest.approx(1, abs=0.35)  # the fourth moment of a heavy tail is slow to show


# --- heads ---


def test_parameters_are_those_of_the_papers_formula() -> None:
    rows = rows_of("params.study=heads", "params.embed_dim=24", "params.num_heads=[1,3,8]", "params.fixed_head_dim=5")
    for heads in (1, 3, 8):
        at = {"num_heads": heads, "num_layers": 12}
        assert pick(rows, "parameters", module="torch", **at).value == 12 * (4 * 24 * 24 + 4 * 24)
        assert pick(rows, "parameters", module="self_attention", **at).value == 12 * 4 * 24 * 24
        assert pick(rows, "parameters", module="fixed_head_dim", **at).value == 12 * 4 * 24 * 5 * heads
        assert pick(rows, "head_dim", num_heads=heads).value == 24 / heads


def test_what_heads_read_and_write() -> None:
    rows = rows_of("params.study=heads", "params.embed_dim=12", "params.num_heads=[1,3]", "params.traced_heads=3")
    ends = [(pick(rows, "slice_first", head=h).value, pick(rows, "slice_last", head=h).value) for h in (1, 2, 3)]
    assert ends == [(1, 4), (5, 8), (9, 12)]
    assert pick(rows, "slice_mismatches").value == 0
    assert pick(rows, "inputs_read").value == 12
    assert pick(rows, "scoring_rank").value == 4


def test_maps_of_a_stack_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    small = ("params.study=heads", "params.embed_dim=8", "params.num_heads=[1,2]", "params.traced_heads=2")
    rows = rows_of(*small, "params.stacks=[3x5]")
    assert pick(rows, "attention_maps", num_layers=3, num_heads=5).value == 15

    class Shared(SelfAttention):
        def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().weights(x, mask)[:1].expand(self.num_heads, -1, -1)

    monkeypatch.setattr(measured_module(), "SelfAttention", Shared)
    module = measured_module().Heads(cell_of(*small))
    with torch.no_grad():
        module._maps("3x5")
    assert module.rows()[0].value == 3  # heads that attend alike are one map


# --- planted faults ---


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


def test_scores_that_make_the_print_right_reproduce_it(tmp_path: Path) -> None:
    """The verdict is on the numbers: with the gap that 0.73 needs, it stands."""
    made = run(tmp_path / "pair", "params.example=pair", 'params.scores=["1.2946 0.3"]')
    words = verdicts(made)
    for claim in ("s2-pair-073", "s2-pair-027", "s2-pair-output"):
        assert words[claim] == {"REPRODUCED"}
    assert words["s2-pair-unscaled"] == {"DIFFERS"}
    made = run(tmp_path / "two", "params.example=two_tokens", 'params.key=["4.2 0","0 4.2"]')
    words = verdicts(made)
    for claim in ("s1-two-word-A", "s1-two-word-AV", "s1-two-word-reason"):
        assert words[claim] == {"REPRODUCED"}
    assert words["s1-two-word-logits"] == {"REPRODUCED", "SOURCE_ERROR"}


def test_attention_without_its_scale_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = measured_module()
    honest = module.attention_logits
    monkeypatch.setattr(module, "attention_logits", lambda query, key, scaled=True: honest(query, key, scaled=False))
    made = run(tmp_path, "params.example=two_tokens")
    assert "FAILED" in verdicts(made)["s1-two-word-logits"] and "FAILED" in verdicts(made)["s1-two-word-A"]
    assert any("logit is 2 at example=two_tokens" in problem for problem in made.problems)


def test_a_softmax_at_another_temperature_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module(), "attention_weights", lambda logits: torch.softmax(logits / 1.01, dim=-1))
    made = run(tmp_path, "params.example=cat")
    assert verdicts(made)["s3-cat-w-mao"] == {"FAILED"}
    assert any("in decimal arithmetic 0.8124" in problem for problem in made.problems)
    assert any("the search finds temperature 1.01 for weights made at temperature 1" in p for p in made.problems)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda length, **kw: torch.ones(length, length, dtype=torch.bool),
        lambda length, **kw: torch.arange(length)[:, None] > torch.arange(length),  # not to itself
        lambda length, **kw: torch.arange(length)[:, None] <= torch.arange(length),  # reversed
    ],
)
def test_a_wrong_mask_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Tensor]) -> None:
    monkeypatch.setattr(measured_module().masks, "causal", wrong)
    made = run(tmp_path, "params.example=cat_again")
    assert any("mask=causal" in problem for problem in made.problems)


def test_a_wrong_theory_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = importlib.import_module(f"attnrepro.tables.{NAME}.table").paper
    monkeypatch.setattr(paper, "scaled", lambda score, head_dim: score / Decimal(head_dim))
    made = run(tmp_path, "params.example=two_tokens")
    assert "FAILED" in verdicts(made)["s1-two-word-logits"]


def test_heads_that_read_their_own_slice_only_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Split(SelfAttention):
        def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            heads = self._heads(x)
            return torch.softmax(heads @ heads.transpose(-1, -2) / 64, dim=-1)

    monkeypatch.setattr(measured_module(), "SelfAttention", Split)
    made = run(tmp_path, "params.study=heads", "params.stacks=[2x2]")
    assert any("inputs_read is 64" in problem for problem in made.problems)
    assert verdicts(made)["s2-split-is-projection"] == {"REPRODUCED"}


def test_interleaved_heads_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interleaved(SelfAttention):
        def _heads(self, x: Tensor) -> Tensor:
            return x.reshape(*x.shape[:-1], -1, self.num_heads).movedim(-1, -3)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            heads = self.weights(x, mask) @ self._heads(self.w_value(x))
            return self.w_out(heads.movedim(-3, -1).flatten(-2))

    monkeypatch.setattr(measured_module(), "SelfAttention", Interleaved)
    made = run(tmp_path, "params.study=heads", "params.stacks=[2x2]")
    assert verdicts(made)["s2-slices"] == {"FAILED"}
    assert verdicts(made)["s2-512-8-64"] == {"REPRODUCED"}


def test_components_that_several_heads_make_fail_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixed(SelfAttention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x, mask).flip(-1)

    monkeypatch.setattr(measured_module(), "SelfAttention", Mixed)
    module = measured_module().Heads(cell_of("params.study=heads"))
    with torch.no_grad(), pytest.raises(RuntimeError, match="do not belong to one head each"):
        module._owners(8)


def test_parameters_that_grow_with_heads_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Heavy(nn.MultiheadAttention):
        def __init__(self, embed_dim: int, num_heads: int) -> None:
            super().__init__(embed_dim, num_heads)
            self.per_head = nn.Parameter(torch.zeros(num_heads))

    monkeypatch.setattr(measured_module().nn, "MultiheadAttention", Heavy)
    made = run(tmp_path, "params.study=heads", "params.stacks=[2x2]")
    assert verdicts(made)["s2-param-conservation"] == {"FAILED"}
    assert verdicts(made)["s2-orthogonal-design"] == {"FAILED"}


def test_a_breaker_that_costs_nothing_is_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "parameters" and row["module"] == "fixed_head_dim":
            row["value"] = "1048576.0"

    made = change(root, tmp_path / "r", edit)
    assert any("heads of fixed width cost parameters with exponent 0 instead of 1" in p for p in made.problems)


def test_a_variance_off_its_theory_is_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "dot_product_variance" and row["source"] == "measured":
            row["value"] = "17.0"

    made = change(root, tmp_path / "r", edit)
    assert verdicts(made)["s1-code-var"] == {"FAILED"}
    assert any("Monte Carlo and theory disagree" in problem for problem in made.problems)


# --- parameters ---


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.example=dog", "there is no preset dog; choices: two_tokens, exercise_2, pair"),
        ('params.tokens=["1","3"]', "tokens=3 must stand in the sentence"),
        ('params.query_tokens=["0"]', "query_tokens=0 must stand in the sentence"),
        ('params.scores=["1 2","3 4"]', "scores must be given, or else query and key"),
        ("params.query=[]", "scores must be given, or else query and key"),
        ("params.key=[]", "scores must be given, or else query and key"),
        ('params.query=["1 0"]', "query=1 rows must be 2"),
        ('params.key=["2 0","2"]', "key=2 must hold 2 numbers"),
        ('params.key=["2 0","2 x"]', "must be decimal numbers"),
        ('params.value=["1 0"]', "value=1 rows must be 2"),
        ("params.head_dims=[4]", "must be the length of the query vectors, 2"),
        ("params.masks=[window]", "must be one of none, causal"),
        ("params.num_heads=[3]", "multiple of each number of heads, unlike 3"),
        ("params.traced_heads=7", "multiple of each number of heads, unlike 7"),
        ("params.stacks=[12]", "stacks=12 must be layers x heads, as in 2x3"),
        ("params.n_draws=10", "between 1000 and"),
        ("params.study=softmax", "must be one of example"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_which_of_the_four_come_out() -> None:
    def told(weight: float, variance: float, error: float = 0.0, spread: float = 0.0) -> str:
        at = {"example": "cat", "query": "it", "token": "cat"}
        rows = [
            *({**at, "quantity": name, "estimate": value}
              for name, value in (("weight", weight), ("printed_low", 0.54), ("printed_high", 0.56))),
            {"quantity": "dot_product_variance", "head_dim": "16", "estimate": variance,
             "ci": (variance - 0.1, variance + 0.1), "theory": 16.0},
            {"quantity": "head_dim_times_heads_error", "embed_dim": "512", "estimate": error},
            {"quantity": "parameters_spread", "module": "torch", "embed_dim": "512", "estimate": spread},
        ]  # fmt: skip
        return harness.first(reading.answer(harness.planted(table.AXES, *rows)))

    said = told(0.81, 16.0)
    assert said.startswith("In part: the variance (16.00 [15.90, 16.10] for 16 components), the sizes of heads, ")
    assert said.endswith("but not all of the weights (0 of 1 do).")
    assert told(0.55, 16.0).startswith("Yes: the weights (1 of 1 do), the variance")
    assert told(0.81, 17.0, 1.0, 9.0).startswith("No: not all of the weights (0 of 1 do), the variance (17.00")
    assert reading.answer(harness.planted(table.AXES, {"quantity": "residual"})) == ""
