"""What the predecessors cost: verdicts, exponents from made-up clocks, and planted faults that change a verdict."""

from __future__ import annotations

import csv
import importlib
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.nn.criss_cross import CrissCross
from attnrepro.nn.non_local import NonLocal
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.predecessor_cost import blocks, measure, reading, table
from attnrepro.theory import predecessor_cost as closed
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "predecessor_cost"
# Up to the size that the register speaks of.
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled", "params.sides=[8,16,32,64]")
EXPECTED = {
    "s4-nl-is-selfattn": {"REPRODUCED"},
    "s4-nl-quarter": {"REPRODUCED", "SOURCE_ERROR", "NOT_JUDGED"},
    "s4-nl-upsample": {"SOURCE_ERROR"},
    "s4-se-range": {"REPRODUCED"},
    "s4-se-zero-cost": {"REPRODUCED", "DIFFERS", "NOT_JUDGED"},
    "s4-cc-cost": {"REPRODUCED"},
    "s4-cc-n15": {"REPRODUCED", "NOT_JUDGED"},
    "s4-cc-not-equivariant": {"REPRODUCED"},
    "s4-cc-diagonal": {"REPRODUCED", "SOURCE_ERROR"},
}


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measured_module().build, *overrides)


def measured_module(name: str = "measure") -> Any:
    return importlib.import_module(f"attnrepro.tables.{NAME}.{name}")


def run(root: Path, *overrides: str) -> report.TableReport:
    assert entry.main([*SMOKE, f"results={root}", *overrides]) == 0
    return harness.built(NAME, root)


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Nothing but these blocks is counted."""
    for module in (closed, measured_module()):
        monkeypatch.setattr(module, "BLOCKS", names)


def value_of(made: report.TableReport, quantity: str, **axes: str) -> float:
    (line,) = [
        r
        for r in made.lines
        if r["quantity"] == quantity and all(r[axis] == axes.get(axis, "") for axis in table.AXES) and r["n"]
    ]
    return float(line["estimate"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predecessors")
    assert entry.main([*SMOKE, "params.draws=20", f"results={folder}"]) == 0
    return folder


# --- what is measured ---


def test_every_claim_has_a_verdict_and_the_right_one(root: Path) -> None:
    made = harness.built(NAME, root)
    assert made.problems == []
    assert verdicts(made) == EXPECTED
    lines = load_published(paths.published_dir() / f"{NAME}.csv")
    assert {line.claim for line in lines} == set(EXPECTED)
    with (paths.published_dir().parent / "claims.csv").open(newline="", encoding="utf-8") as file:
        assert {r["claim"] for r in csv.DictReader(file) if r["table"] == NAME} == set(EXPECTED)


def test_the_printed_ratio_is_sixteen_and_the_papers_is_four(root: Path) -> None:
    made = harness.built(NAME, root)
    for places in ("64", "256", "1024", "4096"):
        for quantity in ("scores_ratio", "pairwise_ratio"):
            assert value_of(made, quantity, block="non_local_pooled", places=places) == 4
            assert value_of(made, quantity, block="non_local_as_printed", places=places) == 16
    words = {
        (line["block"], line["quantity"]): line["verdict"]
        for line in made.lines
        if line.get("claim") == "s4-nl-quarter" and line["places"] == "4096"
    }
    assert words["non_local_pooled", "scores_ratio"] == words["non_local_pooled", "pairwise_ratio"] == "SOURCE_ERROR"
    assert words["non_local_as_printed", "scores_ratio"] == "REPRODUCED"


def test_exponents_are_within_two_hundredths_of_theory(root: Path) -> None:
    made = harness.built(NAME, root)
    for what in table.COUNTED:
        for block in table.fitted(what):
            power = closed.powers(block, what)[0]
            assert value_of(made, "exponent", block=block, what=what) == pytest.approx(power, abs=0.002)
    # Without the second term the largest sizes still say less than 2 and 1.5.
    at = {"what": "flops", "places": "4096"}
    assert 1.93 < value_of(made, "local_exponent", block="non_local", **at) < 1.96
    assert 1.25 < value_of(made, "local_exponent", block="criss_cross", **at) < 1.31


def test_two_passes_reach_what_one_does_not(root: Path) -> None:
    made = harness.built(NAME, root)
    for shape in ("8x8", "4x16", "2x24", "16x10"):
        assert value_of(made, "off_cross_reach", block="criss_cross", shape=shape) == 0
        assert value_of(made, "off_cross_reach", block="criss_cross_twice", shape=shape) == 1
        height, width = map(int, shape.split("x"))
        assert value_of(made, "used_weights", block="criss_cross", shape=shape) == height * width * (height + width - 1)


def test_squeeze_and_excitation_on_resnet50(root: Path) -> None:
    made = harness.built(NAME, root)
    more = [value_of(made, "parameters", network=name) for name in (table.PLAIN, table.GATED)]
    assert more[0] == 25_557_032 and more[1] - more[0] == 2_514_944
    assert f"{value_of(made, 'parameters_share', network=table.GATED):.3f}" == "0.098"
    assert value_of(made, "flops_share", network=table.GATED) < 0.001
    assert 0.001 < value_of(made, "operations_share", network=table.GATED) < 0.003


def test_the_answer_and_the_charts(root: Path) -> None:
    made = harness.built(NAME, root)
    assert "2 for non-local," in made.answer and "1.5 for one-pass criss-cross, criss-cross, strided" in made.answer
    assert "divides the pairwise term by 4.00 at every size; by 16.00 only if queries are pooled too" in made.answer
    assert "adds 9.8% of parameters to ResNet-50 (2.51 M), 0.07% of FLOPs" in made.answer
    assert "one criss-cross pass reaches 0%, two reach 100%" in made.answer
    (page,) = report.pages([made])
    titles = [chart["title"]["text"] for chart in page.charts]
    assert titles[:2] == ["FLOPs against the number of places", "time against the number of places"]
    json.dumps(page.charts, allow_nan=False)


@pytest.mark.parametrize("name", [name for name in closed.BLOCKS if name != "swin_pair"])
def test_counts_without_data_are_those_on_real_maps(name: str) -> None:
    s = closed.Sizes(
        channels=64, num_heads=4, window=4, neighbours=9, mixtures=16, parents=8, parent_dim=16, iterations=3
    )
    found = []
    for device in ("meta", "cpu"):
        with torch.device(device):
            block, x = blocks.make(name, 8, s).eval(), torch.zeros(1, s.channels, 8, 8)
        flops, pairwise, entries = measure.counted(block, x)
        found.append((flops, pairwise, entries.softmax))
    assert found[0] == found[1]


# --- the clock ---


def timed_as(monkeypatch: pytest.MonkeyPatch, folder: Path, *, gate: float = 1.05) -> report.TableReport:
    """The report where a block takes as long as its power of N says, give or take 1 %."""
    noise, module = random.Random(1), measured_module()

    class Times(module.Times):  # type: ignore[name-defined,misc]
        def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
            seed, _ = batch
            if batch_idx == 0:
                self.exact("fit_from", self.cell.params.fit_from, {})
            for name in closed.BLOCKS:
                for side in table.timed(self.cell.params, name):
                    power = closed.powers(name, "flops")[0]
                    self.times[seed, name, side**2] = [1e-3 * side ** (2 * power) * noise.uniform(0.99, 1.01)]
            for name, ms in ((table.PLAIN, 100.0), (table.GATED, 100 * gate)):
                self.times[seed, name, 1] = [ms * noise.uniform(0.999, 1.001)]

    monkeypatch.setattr(module, "Times", Times)
    assert entry.main([*SMOKE, "seeds=[0,1,2,3,4]", f"results={folder}", "params.study=counts,times"]) == 0
    return harness.built(NAME, folder)


def test_exponents_of_made_up_times_have_intervals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = timed_as(monkeypatch, tmp_path)
    for block in closed.BLOCKS:
        (line,) = [r for r in made.lines if r["quantity"] == "exponent" and (r["block"], r["what"]) == (block, "time")]
        power = closed.powers(block, "flops")[0]
        assert line["ci_low"] < line["estimate"] < line["ci_high"] and line["n"] == 5
        assert line["estimate"] == pytest.approx(power, abs=0.02)
    assert made.shown is not None
    frame = made.shown.frame()
    laws = reading._time_laws(frame)
    for r in frame[(frame.quantity == "exponent") & (frame.what == "time")].itertuples():
        law = laws[reading.WORDS[r.block]]
        assert math.log(law(2000.0) / law(1000.0), 2) == pytest.approx(r.estimate), "the line has the row's slope"
    (share,) = [r for r in made.lines if r["quantity"] == "time_share"]
    assert share["verdict"] == "NOT_JUDGED" and share["ci_low"] < 0.05 < share["ci_high"]
    words = {r["block"]: r["verdict"] for r in made.lines if r["what"] == "time" and r.get("claim")}
    assert words == {"non_local": "NOT_JUDGED", "criss_cross": "NOT_JUDGED"}


def test_blocks_take_turns_and_the_fastest_call_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module, order, clock = measured_module(), [], iter(range(10**6, 0, -1))

    class Watch:
        def __init__(self, device: object, threads: int) -> None:
            self.device = device

        def ms(self, run: Any) -> float:
            out = run()
            assert not out.requires_grad
            order.append(tuple(out.shape))
            return float(next(clock))

    monkeypatch.setattr(module, "Stopwatch", Watch)
    cell = cell_of("params.study=times", "seeds=[3,5]", "params.repeats=2", "params.pairs_longest=64")
    job = module.build(cell)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    # Four by four: 128 / 16 = 8 calls of each, eight by eight 2, twelve by twelve 1; relation modules not at 144.
    a_round = 17 * (8 + 2 + 1) + (8 + 2) + 2
    assert len(order) == 4 * a_round and order[:a_round] == order[a_round : 2 * a_round]
    rows = job.module.rows()
    times = [r for r in rows if r.quantity == "time"]
    assert len(times) == 2 * (18 * 3 - 1 + 2)
    # Every later call was faster: the last one of the last repeat is what is kept.
    assert min(r.value for r in times) == 10**6 - 4 * a_round + 1
    memory = {(r.axes["block"], r.axes["places"]): r.value for r in rows if r.quantity == "peak_memory"}
    assert len(memory) == 18 * 3 - 1
    # The weights of all pairs, four bytes each, are in the peak; squeeze and excitation has not even the map twice.
    assert memory["map_attention", 144] > 4 * 4 * 144**2 > memory["squeeze_excitation", 144]


# --- planted faults ---


def test_queries_that_are_pooled_too_would_save_the_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The print would be right of such a block; our closed form then disagrees, which is our own bug."""
    only(monkeypatch, "non_local", *table.SUBSAMPLED)
    honest = measured_module("blocks").make

    def swapped(name: str, side: int, s: closed.Sizes) -> nn.Module:
        made: nn.Module = honest("non_local_as_printed" if name == "non_local_pooled" else name, side, s)
        return made

    monkeypatch.setattr(measured_module(), "make", swapped)
    made = run(tmp_path, "params.study=counts")
    (line,) = [
        r for r in made.lines if r["quantity"] == "scores_ratio" and r["block"] == "non_local_pooled" and r.get("claim")
    ]
    assert line["verdict"] == "FAILED" and line["estimate"] == 16
    monkeypatch.setattr(closed, "scores", _with_pooled_queries(closed.scores))
    shutil.rmtree(tmp_path)
    made = run(tmp_path, "params.study=counts")
    (line,) = [
        r for r in made.lines if r["quantity"] == "scores_ratio" and r["block"] == "non_local_pooled" and r.get("claim")
    ]
    assert line["verdict"] == "REPRODUCED"


def _with_pooled_queries(honest: Any) -> Any:
    def scores(block: str, height: int, width: int, s: closed.Sizes) -> Any:
        return honest("non_local_as_printed" if block == "non_local_pooled" else block, height, width, s)

    return scores


def test_criss_cross_attention_to_everything_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Everything(CrissCross):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.recurrence):
                query, key, value = (part(x).flatten(-2) for part in (self.query, self.key, self.value))
                mixed = value @ torch.softmax(query.mT @ key, -1).mT
                x = x + self.gamma * mixed.unflatten(-1, x.shape[-2:])
            return x

    only(monkeypatch, *table.CROSSES, "non_local", *table.SUBSAMPLED)
    for name in ("measure", "blocks", "identities"):
        monkeypatch.setattr(measured_module(name), "CrissCross", Everything)
    made = run(tmp_path, "params.study=counts,identities")
    words = verdicts(made)
    assert words["s4-cc-cost"] == {"FAILED"} and "FAILED" in words["s4-cc-diagonal"]
    assert words["s4-cc-n15"] == {"DIFFERS", "NOT_RUN"}
    assert "FAILED" in words["s4-cc-not-equivariant"]
    assert any("exponent at block=criss_cross what=flops is 2" in problem for problem in made.problems)
    assert any("error_eps at identity=masked_cross" in problem for problem in made.problems)
    assert any("breakage_eps at identity=rows_and_columns" in problem for problem in made.problems)


def test_a_non_local_block_with_a_scale_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(NonLocal):
        def attention(self, x: Tensor) -> Tensor:
            query, key = self.theta(x).flatten(-2), self._pooled(self.phi(x)).flatten(-2)
            return torch.softmax(query.mT @ key / query.shape[1] ** 0.5, -1)

    monkeypatch.setattr(measured_module("identities"), "NonLocal", Scaled)
    made = run(tmp_path, "params.study=identities")
    assert verdicts(made)["s4-nl-is-selfattn"] == {"SOURCE_ERROR"}
    assert any("error_eps at identity=is_attention" in problem for problem in made.problems)
    assert any("breakage_eps at identity=is_attention breaker=scaled" in problem for problem in made.problems)


def test_weights_outside_the_interval_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = measured_module("identities")

    class Doubled(module.SqueezeExcitation):  # type: ignore[name-defined,misc]
        def attention(self, x: Tensor) -> Tensor:
            weights: Tensor = super().attention(x)
            return 2 * weights

    monkeypatch.setattr(module, "SqueezeExcitation", Doubled)
    made = run(tmp_path, "params.study=identities")
    assert verdicts(made)["s4-se-range"] == {"SOURCE_ERROR", "REPRODUCED", "FAILED"}


def test_a_larger_gate_is_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "parameters_share" and row["source"] == "measured":
            row["value"] = "0.005"

    made = harness.change(NAME, root, tmp_path / "r", edit)
    assert any("parameters_share at network=se_resnet50" in problem for problem in made.problems)
    assert "DIFFERS" not in verdicts(made)["s4-se-zero-cost"]


def test_two_terms_that_do_not_describe_the_counts_are_noticed(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        if row["quantity"] == "fit_error" and row["block"] == "sagan":
            row["value"] = "0.01"
        if row["quantity"] == "exponent" and row["block"] == "strided" and row["source"] == "measured":
            row["value"] = "1.53"

    problems = harness.change(NAME, root, tmp_path / "r", edit).problems
    assert any("fit_error at block=sagan what=flops is 0.01: these powers of N do not" in one for one in problems)
    assert any(
        "exponent at block=strided what=flops is 1.53, the closed form has the power 1.5" in one for one in problems
    )


def test_the_register_of_identities_is_that_of_the_functions() -> None:
    identities = measured_module("identities")
    assert set(identities.IDENTITIES) == set(table.BREAKERS)
    assert set(reading.WORDS) == set(closed.BLOCKS) and set(reading.DRAWN) <= set(closed.BLOCKS)


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.study=clock", "must be one of counts"),
        ("params.sides=[8,12,16]", "must be 4 or more, from small to large"),
        ("params.sides=[16,12,8,4]", "from small to large"),
        ("params.sides=[8,12,16,18]", "sides=18 must be even and a multiple of window=4"),
        ("params.timed_sides=[4,8]", "must be 3 or more"),
        ("params.fit_from=100", "must leave three sizes or more"),
        ("params.num_heads=5", "num_heads=5 must divide channels=64"),
        ("params.channels=32", "between 48 and"),
        ("params.identity_channels=6", "must be a multiple of 4"),
        ("params.neighbours=8", "neighbours=8 must be odd"),
        ("params.shapes=[8]", "shapes=8 must be height x width"),
        ("params.shapes=[1x8]", "shapes=1x8 must be height x width of 2 or more"),
        ("params.identity_shapes=[5x6]", "identity_shapes=5x6 must have even sides"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)
