"""Time against length: fits and verdicts from made-up times, what is timed, and planted faults; no clock is read."""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.results.published import load_published
from attnrepro.tables.attention_cost import measure, reading, table
from attnrepro.training.stopwatch import Stopwatch
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "attention_cost"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
LENGTHS = (64, 128, 256, 512, 1024, 2048)
LONG = (
    "seeds=[0,1,2,3,4]",
    f"params.lengths=[{','.join(map(str, LENGTHS))}]",
    "params.repeats=1",
    "params.fit_from=64",
    "params.naive_longest=2048",
    "params.numpy_longest=2048",
    "params.tokens_a_repeat=1",
    "params.matrix_sizes=[64,512]",
)
D = 64
Clock = Callable[[str, int, str, int], float]


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def measured_module() -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.measure")


def model(attention: str, projections: int, phase: str, length: int) -> float:
    """Made-up ms of a machine that does nothing but arithmetic: a L + b L^2 with its own constants."""
    a, b = 2e-5 * projections * D, 4e-5
    if attention == "none":
        b = 0.0
    return (a * length + b * length**2) * (2 if phase == "backward" else 1) * (1.5 if attention == "naive" else 1)


def timed_as(monkeypatch: pytest.MonkeyPatch, folder: Path, clock: Clock, loop: float = 8.0) -> report.TableReport:
    """The table's report where the clock says what ``clock`` says, give or take 1 %."""
    noise = random.Random(1)
    module = measured_module()

    def run(self: Any, attention: str, projections: int, phase: str, watch: object) -> float:
        return clock(attention, projections, phase, self.x.shape[-2]) * noise.uniform(0.99, 1.01)

    class Batching(module.Batching):  # type: ignore[name-defined,misc]
        def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
            for size in self.cell.params.matrix_sizes:
                for operation, factor in (("matrix", 1.0), ("loop", loop)):
                    self.found.setdefault((batch[0], size, operation), []).append(factor * noise.uniform(0.99, 1.01))

    monkeypatch.setattr(module.Head, "run", run)
    monkeypatch.setattr(module.Times, "_differences", lambda self, seed, length: [])
    monkeypatch.setattr(module, "Batching", Batching)
    assert entry.main([*SMOKE, *LONG, f"results={folder}"]) == 0
    return harness.built(NAME, folder)


def line_of(made: report.TableReport, quantity: str, **axes: object) -> dict[str, Any]:
    (line,) = [
        r
        for r in made.lines
        if r["quantity"] == quantity and all(r[axis] == str(axes.get(axis, "")) for axis in table.AXES)
    ]
    return line


# --- the fit of two terms ---


def test_two_terms_are_recovered() -> None:
    times = [3e-3 * n + 5e-6 * n**2 for n in LENGTHS]
    a, b, error = reading.fit_two_terms(LENGTHS, times)
    assert (a, b) == pytest.approx((3e-3, 5e-6), rel=1e-9) and error < 1e-9


def test_the_fit_is_numpys_least_squares_of_relative_errors() -> None:
    stream = np.random.default_rng(3)
    lengths = np.array(LENGTHS, dtype=float)
    times = (2e-3 * lengths + 7e-6 * lengths**2) * stream.uniform(0.8, 1.2, len(lengths))
    design = np.stack([lengths, lengths**2], 1) / times[:, None]
    expected = np.linalg.lstsq(design, np.ones(len(lengths)), rcond=None)[0]
    a, b, error = reading.fit_two_terms(LENGTHS, times.tolist())
    assert (a, b) == pytest.approx(tuple(expected), rel=1e-6)
    assert error == pytest.approx(np.abs(design @ expected - 1).max(), rel=1e-6)


@pytest.mark.parametrize(("lengths", "times"), [((64, 64), (1.0, 1.0)), ((64, 128), (1.0, 0.0)), ((64, 128), (1.0,))])
def test_a_fit_of_too_little_is_refused(lengths: tuple[int, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="two different lengths or more"):
        reading.fit_two_terms(lengths, times)


# --- verdicts from made-up times ---


def test_times_of_two_terms(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = timed_as(monkeypatch, tmp_path, model)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {one.claim for one in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert {claim for claim, found in words.items() if "NOT_RUN" in found} == set()
    kind = {"attention": "fused", "projections": 3, "phase": "forward"}
    # a / b = 2e-5 * 3 * 64 / 4e-5 = 96 tokens.
    assert line_of(made, "crossover", **kind)["estimate"] == pytest.approx(96, rel=0.05)
    assert line_of(made, "crossover_over_d", **kind)["estimate"] == pytest.approx(1.5, rel=0.05)
    assert line_of(made, "linear_term", **kind)["estimate"] == pytest.approx(3.84, rel=0.05)
    assert line_of(made, "quadratic_term", **kind)["estimate"] == pytest.approx(40, rel=0.05)
    share = line_of(made, "quadratic_share", **kind, length=2048)["estimate"]
    assert share == pytest.approx(2048 / (2048 + 96), rel=0.02)
    for length, ratio in ((128, 2.8), (512, 30.4), (2048, 428.8)):
        line = line_of(made, "ratio_to_shortest", **kind, length=length)
        assert line["estimate"] == pytest.approx(ratio, rel=0.02) and line["theory"] == pytest.approx(ratio)
    doubled = [line_of(made, "doubling_factor", **kind, length=n)["estimate"] for n in LENGTHS[1:]]
    assert doubled == pytest.approx([2.8, 3.143, 3.4545, 3.684, 3.829], rel=0.02)
    assert line_of(made, "naive_over_fused", projections=3, phase="forward", length=64)["estimate"] == pytest.approx(
        1.5, rel=0.02
    )
    assert line_of(made, "backward_over_forward", attention="fused", length=64)["estimate"] == pytest.approx(
        2, rel=0.02
    )
    for claim in ("s0-timing-rel-128", "s0-timing-rel-2048", "s0-timing-3.3", "s0-timing-crossover"):
        assert words[claim] == {"REPRODUCED"}
    # The printed step at 512 tokens is none of two terms.
    assert words["s0-timing-rel-512"] == {"DIFFERS"}
    assert words["s0-timing-ms-64"] == {"NOT_JUDGED"}
    assert words["s0-quiz3-key"] == {"SOURCE_ERROR", "TREND_HOLDS"}
    assert words["s2-matmul-faster"] == {"TREND_HOLDS"}
    assert "equal at L = 9" in made.answer and "512 products of a vector take 7.9" in made.answer
    assert made.shown is not None and len(reading.charts(made.shown.frame())) == 2


def test_purely_quadratic_times_have_no_crossover(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def steep(attention: str, projections: int, phase: str, length: int) -> float:
        return 1e-5 * length ** (1 if attention == "none" else 2.3)

    made = timed_as(monkeypatch, tmp_path, steep)
    words = verdicts(made)
    line = line_of(made, "crossover", attention="fused", projections=3, phase="forward")
    assert (line["n"], line["n_failed"]) == (0, 5)
    assert "NOT_RUN" in words["s0-timing-crossover"] and words["s0-timing-rel-2048"] == {"DIFFERS"}
    assert "no crossover" in made.answer


def test_times_without_a_quadratic_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def falling(attention: str, projections: int, phase: str, length: int) -> float:
        return 1e-3 * length + (0.0 if length == 64 else 1.0)

    made = timed_as(monkeypatch, tmp_path, falling, loop=1.2)
    words = verdicts(made)
    assert words["s0-quiz3-key"] == {"SOURCE_ERROR", "TREND_FAILS"}
    assert words["s2-matmul-faster"] == {"TREND_FAILS"}
    assert "DIFFERS" in words["s3-n2-is-the-bill"] | words["s3-n2-memory-later"]
    assert any("projections alone grow" in problem for problem in made.problems)


# --- what is timed ---


def attention_by_loops(x: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One sequence ``[length, d]`` in float64, query by query."""
    query, key, value = (x @ weight for weight in weights)
    out = np.zeros_like(x)
    for i in range(len(x)):
        scores = [math.exp(sum(query[i] * key[j]) / math.sqrt(x.shape[1])) for j in range(len(x))]
        for j, score in enumerate(scores):
            out[i] += score / sum(scores) * value[j]
    return out


@pytest.mark.parametrize("attention", ["naive", "fused", "numpy"])
def test_every_way_computes_attention(attention: str) -> None:
    cell = cell_of("params.dtype=float64")
    head = measure.Head(3, cell.params, 5, torch.device("cpu"))
    x, weights = head.numpy
    expected = np.stack([attention_by_loops(one, weights) for one in x])
    if attention == "numpy":
        found = measure.in_numpy(x, weights)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        return
    for projections in (3, 0):
        np.testing.assert_allclose(head.forward(attention, projections)[:, 0].numpy(), expected, rtol=1e-12)


def test_the_clock_runs_around_one_pass_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    head = measure.Head(3, cell_of().params, 5, torch.device("cpu"))
    watch = Stopwatch(torch.device("cpu"), 1)
    seen: list[tuple[bool, Any]] = []

    def ms(run: Callable[[], Any], *, on_cpu: bool = False) -> float:
        out = run()
        seen.append((on_cpu, out))
        return 1.0

    monkeypatch.setattr(watch, "ms", ms)
    for kind in table.KINDS:
        assert head.run(*kind, watch) == 1.0
    for (attention, _, phase), (on_cpu, out) in zip(table.KINDS, seen, strict=True):
        assert on_cpu == (attention == "numpy")
        if phase == "backward":  # gradients of the tokens and of three matrices, and no graph left behind
            assert [tuple(g.shape) for g in out] == [(4, 1, 5, 64), *[(64, 64)] * 3]
        elif attention != "numpy":
            assert not out.requires_grad
    assert not head.x.requires_grad


def test_lengths_and_kinds_take_turns_and_the_fastest_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[int, str, int, str]] = []
    clock = iter(range(1000, 10**6))

    def run(self: Any, attention: str, projections: int, phase: str, watch: object) -> float:
        order.append((self.x.shape[-2], attention, projections, phase))
        # Later calls of the same kind are faster, but for the first repeat, which is the fastest.
        return 1.0 if len(order) < 200 else float(next(clock))

    monkeypatch.setattr(measure.Head, "run", run)
    cell = cell_of("params.repeats=3", "seeds=[5]", "params.tokens_a_repeat=32", "params.naive_longest=32")
    job = measure.build(cell)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    warm = len(table.KINDS)
    rounds = order[warm:]
    a_round = [
        (n, *kind) for n, c in ((16, 2), (32, 1), (64, 1)) for kind in table.timed(cell.params, n) for _ in range(c)
    ]
    assert rounds == a_round * 3
    assert (64, "naive", 3, "forward") not in rounds and (32, "naive", 3, "forward") in rounds
    rows = {(r.quantity, *r.axes.values()): r.value for r in job.module.rows() if "phase" in r.axes}
    taken = dict.fromkeys(a_round, None)
    assert len([key for key in rows if key[0] == "time"]) == len(taken)
    assert all(value == 1.0 for key, value in rows.items() if key[0] == "time")
    assert all(value >= 1.0 for key, value in rows.items() if key[0] == "noise")


@pytest.mark.parametrize("name", ["fused", "in_numpy"])
def test_another_attention_than_the_formula_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module = measured_module()
    if name == "fused":
        sdpa = torch.nn.functional.scaled_dot_product_attention
        monkeypatch.setitem(module.ATTENTIONS, "fused", lambda q, k, v: sdpa(q, k, v, is_causal=True))
    else:
        honest = module.in_numpy
        monkeypatch.setattr(module, "in_numpy", lambda x, weights: honest(1.01 * x, weights))
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.study=times"]) == 0
    problems = harness.built(NAME, tmp_path).problems
    word = "fused" if name == "fused" else "numpy"
    assert any(f"{word} attention is" in problem and "away from step by step" in problem for problem in problems)


# --- counts and printed numbers ---


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cost")
    long = [one for one in LONG if not one.startswith("seeds")]
    assert entry.main([*SMOKE, *long, f"results={folder}", "params.study=counts,printed"]) == 0
    return folder


def test_what_is_exact_has_a_verdict_without_a_clock(exact: Path) -> None:
    made = harness.built(NAME, exact)
    assert made.problems == []
    words = verdicts(made)
    for claim in ("s0-timing-two-terms", "s0-trade-layers-for-distance", "s0-timing-internal-consistency"):
        assert words[claim] == {"REPRODUCED"}
    for claim in ("s0-quiz3-multiples", "s0-quiz3-doublings", "s0-timing-pureL2-2048", "s0-timing-rel-64"):
        assert words[claim] == {"REPRODUCED"}
    assert words["s0-quiz3-key"] == {"SOURCE_ERROR", "NOT_RUN"}
    kinds = {(r["attention"], r["projections"], r["phase"]) for r in made.lines if r["quantity"] == "flops" and r["n"]}
    assert ("naive", "3", "backward") in kinds and ("naive", "0", "forward") in kinds


def test_the_printed_columns_of_the_configuration_are_those_of_the_register() -> None:
    p = cell_of().params
    lines = load_published(paths.published_dir() / f"{NAME}.csv")
    assert [one.printed for one in lines if one.claim.startswith("s0-timing-ms-")] == p.printed_times
    assert [one.printed for one in lines if one.claim == "s0-quiz3-multiples"] == p.printed_multiples
    squares = {int(one.claim.rpartition("-")[2]): one.published for one in lines if "pureL2" in one.claim}
    assert squares == {length: (length / 64) ** 2 for length in p.printed_lengths[1:]}


def test_columns_of_different_runs_are_an_error_of_the_source(tmp_path: Path) -> None:
    columns = 'params.printed_multiples=["1.0","2.6","8.3","39.6","118.8","393.8"]'
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.study=printed", columns]) == 0
    words = verdicts(harness.built(NAME, tmp_path))
    assert "SOURCE_ERROR" in words["s0-timing-internal-consistency"] and "SOURCE_ERROR" in words["s0-quiz3-doublings"]


def test_factors_that_rise_to_four_would_bear_the_key_out(tmp_path: Path) -> None:
    columns = (
        'params.printed_multiples=["1.0","2.8","8.8","30.4","112","428.8"]',
        'params.printed_times=["1.00","2.80","8.80","30.40","112.0","428.8"]',
    )
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.study=printed", *columns]) == 0
    assert "REPRODUCED" in verdicts(harness.built(NAME, tmp_path))["s0-quiz3-key"]


def test_a_wrong_count_is_noticed(exact: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "flops" and row["source"] == "measured" and row["phase"] == "backward":
            row["value"] = repr(float(row["value"]) * 1.001)

    problems = harness.change(NAME, exact, tmp_path / "r", edit).problems
    assert any("flops at attention=naive projections=3 phase=backward length=64 is" in one for one in problems)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.study=clock", "must be one of times"),
        ("params.lengths=[64,32,16]", "from short to long"),
        ("params.lengths=[16,32]", "three or more"),
        ("params.fit_from=32", "must leave three lengths or more"),
        ("params.kernel=4", "kernel=4 must be odd"),
        ("params.dtype=int8", "must be one of float64"),
        ("params.repeats=0", "between 1 and"),
        ('params.printed_times=["1.0"]', "an entry for each of printed_lengths"),
        ('params.printed_times=["a","2.34","7.36","33.29","105.15","348.42"]', "a positive decimal number"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_whether_two_terms_describe_the_time() -> None:
    def told(miss: float, *more: dict[str, Any]) -> str:
        at = {"attention": "fused", "projections": "3", "phase": "forward"}
        rows = [{"quantity": "fit_error", "estimate": miss, **at}, *({**row, **at} for row in more)]
        return harness.first(reading.answer(harness.planted(reading.AXES, *rows)))

    crossing = {"quantity": "crossover", "ci": (120.0, 124.0)}
    said = told(0.04, crossing, {"quantity": "time", "length": "64"}, {"quantity": "time", "length": "256"})
    assert said.startswith("Two terms describe the time to within a tenth for fused 4.0%; ")
    assert "the quadratic one is larger from 122 [120, 124] tokens on (fused, 5 runs)" in said
    said = told(0.3)
    assert said.startswith("Two terms do not describe the time of fused 30.0%; ")
    assert "the quadratic one overtakes the linear one nowhere" in said
    assert reading.answer(harness.planted(reading.AXES, {"quantity": "flops"})) == ""
