"""The position table: what its cells train, what follows from the rows, and that a fault anywhere is noticed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats as scipy_stats
from torch import Tensor

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app.precheck import make_plan
from attnrepro.data.streams import generator
from attnrepro.nn.query_pool import AddedCode, QueryPools
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row, read_csv
from attnrepro.results.verdicts import Case, Estimate, judge
from attnrepro.tables.position_strength import measure, reading, table
from attnrepro.training.trainer import make_trainer

from ..nn.naive_pool import NaivePool
from . import harness

BASE = ("experiment=position_strength", "tracking=disabled")
SMOKE = (*BASE, "scale=smoke", "hydra.mode=RUN")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def rows_of(*overrides: str) -> list[Row]:
    (planned,) = make_plan([*BASE, "hydra.mode=RUN", *overrides]).cells
    job = measure.build(planned.cell)
    trainer = make_trainer(planned.cell, max_steps=job.max_steps)
    if job.fit is not None:
        trainer.fit(job.module, job.fit)
    trainer.test(job.module, job.test, verbose=False)
    return job.module.rows()


def by_seed(rows: Sequence[Row], quantity: str = "test_accuracy", **axes: object) -> dict[int, float]:
    found = [r for r in rows if r.quantity == quantity and all(r.axes.get(k) == v for k, v in axes.items())]
    seeds = {r.seed: r.value for r in found}
    assert found and len(seeds) == len(found), (quantity, axes, len(found))
    return seeds


# --- unusual sizes and wrong input, as a user meets them (case C25) ---


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        (["params.embed_dim=[7]"], 104),
        (["params.embed_dim=[1]"], 104),
        (["params.embed_dim=[1,2,3]"], 312),
        (["params.length=[1]"], 104),
        (["params.n_train=[1]", "params.n_test=1"], 104),
        (["params.n_train=[inf]", "params.batch_size=1", "params.embed_dim=[3]"], 52),
        (["params.encoding=[learned,gaussian,concat_sinusoidal,layer_norm,logit_bias]", "params.embed_dim=[1]"], 316),
        (["params.study=size", "params.length=[1]", "params.placement=[keys]"], 26),
        (["params.study=codes", "params.n_draws=2", "params.length=[1]", "params.embed_dim=[2]"], 182),
        (["params.strength=[10000]", "params.cooldown=1"], 8),
    ],
)
def test_odd_and_tiny_sizes_give_finite_rows(overrides: list[str], count: int, tmp_path: Path) -> None:
    assert entry.main([*SMOKE, f"results={tmp_path}", *overrides]) == 0
    (path,) = (tmp_path / "runs" / "position_strength").glob("*/rows.csv")
    rows = [row for row in read_csv(path) if row["source"] == "measured"]
    assert len(rows) == count
    for row in rows:
        assert row["status"] == "ok" and math.isfinite(float(row["value"])), row
        if row["quantity"].endswith("accuracy"):
            assert 0 <= float(row["value"]) <= 1


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["params.encoding=[rotary]", "params.embed_dim=[7]"], ["rotary", "embed_dim=7", "even"]),
        (["params.encoding=[rotary_key_bias]", "params.embed_dim=[16,1]"], ["rotary_key_bias", "embed_dim=1"]),
        (["params.encoding=[one_hot_last]", "params.embed_dim=[4]"], ["one_hot_last", "length=8", "embed_dim=4"]),
        (["params.encoding=[one_hot_first]", "params.length=[17]"], ["one_hot_first", "length=17"]),
        (["params.encoding=[orthogonal]", "params.length=[32]"], ["orthogonal", "length=32"]),
        (["params.encoding=[concat_one_hot]", "params.embed_dim=[7]"], ["concat_one_hot", "embed_dim=7"]),
        (["params.encoding=[sinusiodal]"], ["params.encoding", "sinusiodal", "sinusoidal"]),
        (["params.encoding=[]"], ["params.encoding"]),
        (["params.placement=[values]"], ["params.placement", "keys_values"]),
        (["params.study=strenght"], ["params.study", "strength"]),
        (["params.protocol=Z"], ["params.n_train[0]: there is no preset Z; choices: A, C, I"]),
        (["params.n_train=[1e30]"], ["params.n_train=[1e+30] must be whole numbers up to 1e9, or inf"]),
        (["params.n_train=[0.5]"], ["params.n_train", "0.5"]),
        (["params.n_train=[1.5]"], ["params.n_train", "whole"]),
        (["params.n_train=[nan]"], ["params.n_train"]),
        (["params.n_train=[10,10]"], ["params.n_train", "once"]),
        (["params.n_test=0"], ["params.n_test"]),
        (["params.steps=[]"], ["params.steps"]),
        (["params.steps=[0]"], ["params.steps"]),
        (["params.learning_rate=[-1]"], ["params.learning_rate", "-1"]),
        (["params.learning_rate=[inf]"], ["params.learning_rate"]),
        (["params.strength=[-1]"], ["params.strength"]),
        (["params.strength=[nan]"], ["params.strength"]),
        (["params.cooldown=1.1"], ["params.cooldown"]),
        (["params.loss=[hinge]"], ["params.loss", "smooth_error"]),
        (["params.optimizer=lbfgs"], ["params.optimizer", "adam"]),
        (["params.study=codes"], ["n_draws"]),
        (["params.study=codes", "params.n_draws=10", "params.embed_dim=[7]"], ["embed_dim"]),
    ],
)
def test_impossible_input_is_one_sentence(
    overrides: list[str], named: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert entry.main([*SMOKE, f"results={tmp_path}", *overrides]) == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("attnrepro: ")
    assert all(word in said[0] for word in named), said[0]
    assert not list(tmp_path.rglob("rows.csv"))


def test_the_grid_has_thirteen_cells_of_every_study(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert entry.main([*BASE, "scale=cpu", f"results={tmp_path}", "--dry-run"]) == 0
    said = "".join(capfd.readouterr())
    assert "13 cells, 13 to run, 0 reused" in said
    plan = make_plan([*BASE, "scale=cpu", f"results={tmp_path}"])
    cells = [planned.cell for planned in plan.cells]
    assert len({cell.key for cell in cells}) == 13
    studies = [(cell.params.study, cell.params.protocol, len(cell.seeds)) for cell in cells]
    for protocol in "AIC":
        assert ("strength", protocol, 64) in studies and ("published", protocol, 256) in studies
        (curve,) = (c.params for c in cells if (c.params.study, c.params.protocol) == ("strength", protocol))
        assert curve.strength == [0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32]
        # Gradient descent diverges where a loud code also enters the values.
        assert sorted(curve.placement) == (["keys"] if protocol == "C" else ["keys", "keys_values"])
    assert {study for study, *_ in studies} == set(table.STUDIES)
    (fresh,) = (cell.params for cell in cells if cell.params.study == "population")
    assert fresh.n_train == [math.inf] and fresh.steps[-1] >= 1500
    assert all(planned.cell.params.steps[-1] > 0 and table.seconds(planned.cell) > 0 for planned in plan.cells)


# --- a cell against one model at a time ---

LENGTH, DIM, N, STEPS = 6, 8, 48, 12
# Per encoding: the axes of the settings that are checked.
SETTINGS: list[tuple[str, dict[str, object]]] = [
    *((e, {"strength": s, "placement": at}) for e in table.ADDED for s, at in ((0.5, "keys"), (3.0, "keys_values"))),
    *((e, {"strength": s}) for e in table.SCALED for s in (0.5, 3.0)),
    *((e, {}) for e in table.FREE),
]


def drawn(seed: int, use: str, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "position_strength", use, LENGTH, DIM))


def data(seed: int, use: str, n: int) -> tuple[Tensor, Tensor]:
    x = drawn(seed, use, n, LENGTH, DIM).double()
    return x, (x[:, 0, 0] > 0).double()


def sine_code() -> Tensor:
    code = torch.zeros(LENGTH, DIM, dtype=torch.float64)
    for n in range(LENGTH):
        for i in range(DIM):
            angle = n / 10000 ** (2 * (i // 2) / DIM)
            code[n, i] = math.cos(angle) if i % 2 else math.sin(angle)
    return code.float().double()


def unit_code(name: str, seed: int) -> Tensor:
    """The code at strength 1: rows of norm sqrt(d/2), but for the plain one-hot."""
    if name in ("sinusoidal", "layer_norm"):
        return sine_code()
    code = torch.zeros(LENGTH, DIM, dtype=torch.float64)
    if name.startswith("one_hot"):
        for n in range(LENGTH):
            code[n, n + (DIM - LENGTH if name == "one_hot_last" else 0)] = 1
    else:
        stream = generator(seed, "position_strength", "code", LENGTH, DIM)
        rows, columns = (DIM, LENGTH) if name == "orthogonal" else (LENGTH, DIM)
        code = torch.randn(rows, columns, generator=stream, dtype=torch.float64)
        if name == "orthogonal":
            # Gram-Schmidt on the drawn columns.
            frame: list[Tensor] = []
            for column in code.T:
                rest = column - sum((column @ f * f for f in frame), torch.zeros(DIM, dtype=torch.float64))
                frame.append(rest / rest.norm())
            code = torch.stack(frame)
    return code if name == "one_hot_unit" else code / code.norm(dim=1, keepdim=True) * math.sqrt(DIM / 2)


def model(encoding: str, seed: int, strength: float = 1.0, placement: str = "keys_values") -> NaivePool:
    width = 2 * DIM if encoding.startswith("concat") else DIM
    stream = generator(seed, "position_strength", "start", LENGTH, DIM)
    shapes = {"w_key": (width, width), "query": (width,), "w_value": (width, width), "w_out": (width,)}
    start = {k: torch.randn(shape, generator=stream).double() / math.sqrt(width) for k, shape in shapes.items()}
    start["bias"] = torch.zeros((), dtype=torch.float64)
    if encoding == "learned":
        start["code"] = torch.randn(LENGTH, DIM, generator=stream).double() * strength / math.sqrt(2)
        return NaivePool(start, lambda pool, x: (x + pool.p["code"], x + pool.p["code"]))
    if encoding.startswith("concat_"):
        code = strength * unit_code(encoding.removeprefix("concat_"), seed)

        def beside(_: NaivePool, x: Tensor) -> tuple[Tensor, Tensor]:
            tokens = torch.cat([x, code.expand(len(x), -1, -1)], -1)
            return tokens, tokens

        return NaivePool(start, beside)
    if encoding.startswith("alibi"):
        at = 0 if encoding == "alibi_near" else LENGTH - 1
        far = torch.tensor([-strength * abs(at - j) for j in range(LENGTH)], dtype=torch.float64)
        return NaivePool(start, lambda _, x: (x, x), bias=far)
    if encoding == "logit_bias":
        start["by_position"] = torch.zeros(LENGTH, dtype=torch.float64)
        return NaivePool(start, lambda _, x: (x, x))
    if encoding.startswith("rotary"):
        if encoding == "rotary_key_bias":
            start["key_bias"] = torch.zeros(DIM, dtype=torch.float64)
        return NaivePool(start, lambda _, x: (x, x), turned=True)
    added = strength * unit_code(encoding, seed)

    def plus(_: NaivePool, x: Tensor) -> tuple[Tensor, Tensor]:
        if encoding == "layer_norm":
            x = torch.nn.functional.layer_norm(x, (DIM,))
        return x + added, x + added if placement == "keys_values" else x

    return NaivePool(start, plus)


def accuracies_alone(encoding: str, seed: int, loss: str, **setting: Any) -> dict[str, float]:
    pool = model(encoding, seed, **setting)
    x, y = data(seed, "train", N)
    optimizer = torch.optim.Adam(pool.parameters(), lr=0.05)
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = pool(x)
        wrong = torch.where(y == 1, -logits, logits)
        losses = torch.log1p(torch.exp(wrong)) if loss == "cross_entropy" else torch.sigmoid(wrong)
        losses.mean().backward()
        optimizer.step()
    found = {}
    for use, quantity, n in (("train", "train_accuracy", N), ("test", "test_accuracy", 300)):
        x, y = data(seed, use, n)
        right = [(z > 0) == (label == 1) for z, label in zip(pool(x).tolist(), y.tolist(), strict=True)]
        found[quantity] = sum(right) / n
    return found


def small(*overrides: str, loss: str = "cross_entropy") -> list[Row]:
    return rows_of(
        "scale=cpu",
        "trainer.precision=64-true",
        "seeds=[3,8]",
        f"params.encoding=[{','.join((*table.ADDED, *table.SCALED, *table.FREE))}]",
        "params.strength=[0.5,3]",
        f"params.length=[{LENGTH}]",
        f"params.embed_dim=[{DIM}]",
        f"params.n_train=[{N}]",
        "params.n_test=300",
        f"params.steps=[{STEPS}]",
        "params.learning_rate=[0.05]",
        f"params.loss=[{loss}]",
        *overrides,
    )


def disagreements(rows: Sequence[Row], seed: int, loss: str = "cross_entropy") -> set[str]:
    wrong = set()
    for encoding, setting in SETTINGS:
        for quantity, expected in accuracies_alone(encoding, seed, loss, **setting).items():
            if by_seed(rows, quantity, encoding=encoding, **setting)[seed] != pytest.approx(expected, abs=1e-12):
                wrong.add(encoding)
    return wrong


@pytest.mark.parametrize(("loss", "seed"), [("cross_entropy", 3), ("smooth_error", 8)])
def test_every_encoding_is_the_model_that_its_name_says(loss: str, seed: int) -> None:
    assert disagreements(small(loss=loss), seed, loss) == set()


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "temperature 1.1": (
        lambda patch: patch.setattr(
            QueryPools, "key_direction", lambda self, right=QueryPools.key_direction: right(self) / 1.1
        ),
        {"sinusoidal", "learned", "concat_sinusoidal", "logit_bias"},
    ),
    "ends exchanged": (
        lambda patch: patch.setattr(
            measure.position,
            "alibi_bias",
            lambda q, k, s, *, offset, right=measure.position.alibi_bias: right(q, k, s, offset=k - 1 - offset),
        ),
        {"alibi_near", "alibi_far"},
    ),
    "raw norms": (
        lambda patch: patch.setattr(measure.position, "at_row_norm", lambda code, norm: code),
        {"one_hot_first", "one_hot_last", "orthogonal", "gaussian", "concat_one_hot"},
    ),
    "no normalisation": (
        lambda patch: patch.setattr(measure, "normalised", lambda content: content),
        {"layer_norm"},
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, expected = PLANTED[fault]
    plant(monkeypatch)
    assert expected <= disagreements(small(), 3)


# --- seeds ---


def same(a: Sequence[Row], b: Sequence[Row]) -> bool:
    def key(r: Row) -> tuple[object, ...]:
        return (r.quantity, r.statistic, tuple(sorted(r.axes.items(), key=str)), r.seed, r.value, r.n, r.sd, r.status)

    return [key(r) for r in a] == [key(r) for r in b]


FRESH = (
    "scale=cpu",
    "params.study=population",
    "params.n_train=[inf]",
    "params.strength=[1,3]",
    "params.loss=[cross_entropy,smooth_error]",
    "params.encoding=[sinusoidal,layer_norm]",
    "params.batch_size=16",
    "params.steps=[5,20]",
    "params.cooldown=0.4",
    "params.n_test=5000",
)


@pytest.mark.parametrize("overrides", [FRESH, ("scale=cpu", "params.n_train=[20]", "params.steps=[20]")])
def test_a_seed_gives_the_same_rows_alone_in_company_and_again(overrides: tuple[str, ...]) -> None:
    together = rows_of(*overrides, "seeds=[4,7,9]")
    assert same(together, rows_of(*overrides, "seeds=[4,7,9]"))
    alone = rows_of(*overrides, "seeds=[7]")
    assert same([r for r in together if r.seed == 7], alone)
    values = [r.value for r in together if r.seed == 7]
    assert values != [r.value for r in together if r.seed == 9]


def test_fresh_sequences_are_new_at_every_step_and_no_others_for_other_encodings() -> None:
    (planned,) = make_plan([*BASE, "hydra.mode=RUN", *FRESH, "seeds=[4,7]"]).cells
    plain, read = (part.group.data for part in measure.parts_of(planned.cell))
    draws = [plain(step) for step in range(3)]
    for i in range(3):
        content, labels = draws[i]
        assert content.shape == (2, 8, 16, 16) and labels.shape == (2, 16)
        assert torch.equal(labels, (content[:, 0, 0] > 0).float())
        assert all(not torch.equal(content[0, :, :, 0], other[0][0, :, :, 0]) for other in draws[:i])
        assert not torch.equal(content[0], content[1])
        normed, same_labels = read(i)
        expected = torch.nn.functional.layer_norm(content.movedim(2, -1), (16,)).movedim(-1, 2)
        torch.testing.assert_close(normed, expected)
        assert torch.equal(labels, same_labels)


def test_every_test_sequence_counts_once_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    (planned,) = make_plan([*SMOKE, "seeds=[0]", "params.n_train=[50]", "params.n_test=50"]).cells
    members = measure.build(planned.cell).module
    size = members.parts[0].size
    (whole,) = members._test_blocks(size, 0)
    assert whole[0].shape == (1, 8, 16, 50)
    assert not torch.equal(whole[0][0], members.parts[0].group.data(0)[0][0]), "tested on what it was trained on"
    for block in (16, 25, 1):
        monkeypatch.setattr(measure, "BLOCK", block)
        blocks = list(members._test_blocks(size, 0))
        assert sum(content.shape[-1] for content, _ in blocks) == 50
    monkeypatch.setattr(measure, "BLOCK", 16)
    monkeypatch.setattr(
        measure,
        "right_answers",
        lambda content, labels, folded: torch.full(folded.bias.shape, content.shape[-1], dtype=torch.int64),
    )
    found = rows_of("scale=smoke", "params.n_test=50", "params.n_train=[50]", "seeds=[0]")
    assert {r.value for r in found} == {1.0}


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_other_precisions_see_the_same_sequences(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Tensor]] = {}
    right = measure.sequences

    def watched(*arguments: Any) -> tuple[Tensor, Tensor]:
        content, labels = right(*arguments)
        seen[now].append(content)
        return content, labels

    monkeypatch.setattr(measure, "sequences", watched)
    for now in ("32-true", precision):
        seen[now] = []
        found = rows_of(*FRESH, "seeds=[1]", f"trainer.precision={now}")
        assert all(r.status == "ok" for r in found)
    assert len(seen[precision]) > 40
    assert all(torch.equal(a, b) for a, b in zip(seen["32-true"], seen[precision], strict=True))


def test_a_member_that_diverges_is_a_failed_row_and_the_others_stand() -> None:
    run = (
        "scale=cpu",
        "params.optimizer=gradient_descent",
        "params.n_train=[30]",
        "params.steps=[20,60]",
        "seeds=[0,1]",
    )
    with_it = rows_of(*run, "params.learning_rate=[0.3,1000]", "params.strength=[0,1]")
    without = rows_of(*run, "params.learning_rate=[0.3]", "params.strength=[0,1]")
    failed = [r for r in with_it if r.status != "ok"]
    assert failed and {r.axes["learning_rate"] for r in failed} == {1000.0}
    assert all(r.status == "failed: diverged" and math.isnan(r.value) for r in failed)
    assert all(math.isfinite(r.value) for r in with_it if r.status == "ok")
    kept = [r for r in with_it if r.axes["learning_rate"] == 0.3]
    assert [(r.quantity, r.seed, r.value) for r in kept] == [(r.quantity, r.seed, r.value) for r in without]


# --- what follows from the rows: hand-made frames ---


def line(values: dict[str, float], *, failed: int = 0, quantity: str = "test_accuracy", **axes: str) -> dict[str, Any]:
    found = list(values.values())
    mean = sum(found) / len(found) if found else math.nan
    sd = math.sqrt(sum((v - mean) ** 2 for v in found) / (len(found) - 1)) if len(found) > 1 else math.nan
    half = scipy_stats.t.ppf(0.975, len(found) - 1) * sd / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return {
        **dict.fromkeys(table.AXES, ""),
        **axes,
        "quantity": quantity,
        "statistic": "mean",
        "unit": "",
        "n": len(found),
        "n_failed": failed,
        "estimate": mean,
        "sd": sd,
        "ci_low": mean - half,
        "ci_high": mean + half,
        "theory": math.nan,
        "stale": False,
        "seeds": tuple(found),
        "by_seed": dict(values),
    }


def seeds(*values: float, first: int = 0) -> dict[str, float]:
    return {str(first + i): v for i, v in enumerate(values)}


def derived(lines: Sequence[dict[str, Any]], quantity: str, **axes: str) -> dict[str, Any]:
    found = [
        made
        for made in reading.derive(pd.DataFrame(list(lines)), load_published(PUBLISHED))
        if made["quantity"] == quantity and all(made[k] == v for k, v in axes.items())
    ]
    assert len(found) == 1, (quantity, axes, len(found))
    return found[0]


PUBLISHED = paths.published_dir() / "position_strength.csv"


def test_median_and_solved_share_of_the_survivors() -> None:
    made = line(seeds(0.91, 0.5, 0.9, 0.95, 0.97, 0.99), failed=2, study="strength", protocol="I", strength="6")
    median = derived([made], "test_accuracy", statistic="median")
    assert median["estimate"] == pytest.approx((0.91 + 0.95) / 2)
    # Six values: the smallest and the largest hold the median with 1 - 2/64.
    assert (median["ci_low"], median["ci_high"]) == (0.5, 0.99)
    share = derived([made], "solved")
    # 0.9 itself is not above 0.9.
    # The two that diverged have not solved the task either.
    assert share["estimate"] == pytest.approx(4 / 8) and share["n"] == 8 and share["n_failed"] == 0
    assert share["ci_low"] == pytest.approx(scipy_stats.beta.ppf(0.025, 4, 5))
    assert median["n_failed"] == 2


def test_gains_are_paired_by_seed_and_never_by_position() -> None:
    none = line(seeds(0.1, 0.2, 0.3, 0.4), study="published", protocol="I", strength="0")
    one = line({"3": 0.5, "1": 0.21, "7": 0.9}, failed=1, study="published", protocol="I", strength="1")
    three = line({"7": 1.0, "1": 0.41, "2": 0.0}, failed=1, study="published", protocol="I", strength="3")
    gain = derived([none, one, three], "gain_x1_over_none", protocol="I")
    assert gain["seeds"] == pytest.approx((0.1, 0.01)) and gain["n"] == 2 and gain["n_failed"] == 2
    assert gain["estimate"] == pytest.approx(0.055) and gain["strength"] == ""
    more = derived([none, one, three], "gain_x3_over_x1", protocol="I")
    assert sorted(more["seeds"]) == pytest.approx([0.1, 0.2]) and more["n"] == 2 and more["n_failed"] == 2
    difference = scipy_stats.ttest_rel([0.41, 1.0], [0.21, 0.9])
    interval = difference.confidence_interval(0.95)
    assert (more["ci_low"], more["ci_high"]) == pytest.approx((interval.low, interval.high))


def test_gains_of_one_protocol_do_not_meet_another() -> None:
    lines = [
        line(seeds(0.5, 0.6), study="published", protocol="I", strength="0"),
        line(seeds(0.7, 0.8), study="published", protocol="A", strength="1"),
        line(seeds(0.9, 0.9), study="strength", protocol="I", strength="1"),
    ]
    made = reading.derive(pd.DataFrame(lines), load_published(PUBLISHED))
    assert not [m for m in made if m["quantity"].startswith("gain_")]


def test_no_seed_on_both_sides_is_no_estimate() -> None:
    none = line(seeds(0.5, 0.6), study="published", protocol="I", strength="0")
    one = line(seeds(0.7, 0.8, first=5), study="published", protocol="I", strength="1")
    gain = derived([none, one], "gain_x1_over_none")
    assert gain["n"] == 0 and math.isnan(gain["estimate"]) and gain["n_failed"] == 2


def test_the_share_of_the_linear_advantage_counts_from_guessing() -> None:
    at = {"study": "published", "protocol": "C", "strength": "0"}
    made = derived([line(seeds(0.60, 0.62), failed=1, **at)], "share_of_linear_advantage")
    # Tokens' mean and token 0 have correlation 8^-1/2 (Sheppard 1899).
    advantage = math.asin(8**-0.5) / math.pi
    assert made["estimate"] == pytest.approx(0.11 / advantage, abs=1e-12)
    assert made["seeds"] == pytest.approx((0.10 / advantage, 0.12 / advantage)) and made["n_failed"] == 1


def test_more_steps_compares_the_last_two_numbers_of_steps() -> None:
    lines = [
        line(
            seeds(*values),
            study="budget",
            placement=at,
            strength="1",
            learning_rate="0.01",
            n_train="1000",
            steps=steps,
        )
        for at, steps, values in (
            ("keys", "100", (0.1, 0.1)),
            ("keys", "500", (0.70, 0.72)),
            ("keys", "2000", (0.71, 0.70)),
            ("keys_values", "500", (0.6, 0.6)),
            ("keys_values", "2000", (0.5, 0.4)),
        )
    ]
    assert derived(lines, "gain_500_to_2000_steps", placement="keys")["seeds"] == pytest.approx((0.01, -0.02))
    assert derived(lines, "gain_500_to_2000_steps", placement="keys_values")["estimate"] == pytest.approx(-0.15)


def test_the_plateau_is_the_median_of_ratios_of_the_same_seed() -> None:
    lines = [
        line({"0": 0.8, "1": 0.5, "2": 1.0}, study="strength", protocol="I", placement="keys", strength="6"),
        line({"2": 0.5, "0": 0.8, "1": 0.6, "9": 0.1}, study="strength", protocol="I", placement="keys", strength="16"),
    ]
    made = derived(lines, "plateau_x16_over_x6")
    assert made["estimate"] == pytest.approx(1.0) and made["n"] == 3 and made["statistic"] == "median"


def test_needed_strength_is_where_a_seed_first_passes_and_times_the_margin() -> None:
    def at(strength: str, values: dict[str, float], failed: int = 0) -> dict[str, Any]:
        return line(values, failed=failed, study="size", strength=strength, length="2", embed_dim="2")

    lines = [
        at("10", {"0": 0.99, "1": 0.2, "2": 0.98, "3": 0.99}),  # as text, 10 stands before 2
        at("2", {"0": 0.8, "1": 0.7, "2": 0.95, "3": 0.85}),
        at("3", {"0": 1.0, "1": 0.8, "2": 0.5}, failed=1),
    ]
    made = derived(lines, "needed_strength")
    # Seed 0: halfway between 2 and 3. Seed 1 never. Seed 2 falls and passes again. Seed 3 has no value at 3.
    expected = (2.5, 3 + 7 * 0.4 / 0.48, 2 + 8 * 0.05 / 0.14)
    assert sorted(made["seeds"]) == pytest.approx(sorted(expected)) and (made["n"], made["n_failed"]) == (3, 1)
    # Two positions: the margin is the distance of their codes.
    margin = math.hypot(math.sin(1), 1 - math.cos(1))
    scaled = derived(lines, "needed_strength_x_margin")
    assert sorted(scaled["seeds"]) == pytest.approx(sorted(margin * s for s in expected))


def test_a_length_of_one_has_no_margin() -> None:
    lines = [
        line(seeds(value), study="size", strength=s, length="1", embed_dim="3") for s, value in (("1", 0.5), ("2", 1.0))
    ]
    made = reading.derive(pd.DataFrame(lines), load_published(PUBLISHED))
    assert [m["quantity"] for m in made] == ["needed_strength"]


# --- the six printed numbers ---

# Means and standard deviations of an independent implementation (128 seeds): train and test at x0, x1, x3.
SPREADS = {
    "I": [(0.647, 0.016), (0.580, 0.020), (0.724, 0.018), (0.690, 0.014), (0.937, 0.026), (0.916, 0.026)],
    "A": [(0.640, 0.013), (0.588, 0.015), (0.724, 0.016), (0.694, 0.012), (0.946, 0.013), (0.928, 0.012)],
    "C": [(0.635, 0.016), (0.600, 0.014), (0.710, 0.024), (0.683, 0.018), (0.938, 0.012), (0.919, 0.009)],
}


def published_frame(shift: dict[str, float] | None = None, count: int = 256, common: float = 0.0) -> pd.DataFrame:
    """Normal seeds around `SPREADS`; ``shift`` moves the x3 seeds of a protocol, ``common`` is what the six share."""
    lines = []
    for index, (protocol, spreads) in enumerate(SPREADS.items()):
        parts = np.random.default_rng(index).normal(size=(count, 7))
        normal = math.sqrt(1 - common) * parts[:, :6] + math.sqrt(common) * parts[:, 6:]
        for i, (mean, sd) in enumerate(spreads):
            values = mean + sd * normal[:, i]
            if i > 3 and shift:
                values = values + shift.get(protocol, 0.0)
            quantity = "test_accuracy" if i % 2 else "train_accuracy"
            at = {"study": "published", "protocol": protocol, "strength": "013"[i // 2]}
            lines.append(line(seeds(*values.tolist()), quantity=quantity, **at))
    return pd.DataFrame(lines)


def printed() -> list[Any]:
    return [one for one in load_published(PUBLISHED) if one.klass == "single_run"]


def judged(frame: pd.DataFrame) -> dict[str, tuple[str, str]]:
    cases = []
    for one in printed():
        at = dict(one.axes)
        rows = frame[(frame.quantity == one.quantity) & (frame.protocol == at["protocol"])]
        (ours,) = rows[rows.strength == at["strength"]].to_dict("records")
        estimate = Estimate(ours["estimate"], ours["n"], 0, ours["sd"], ours["ci_low"], ours["ci_high"], ours["seeds"])
        cases.append(Case(one, None, estimate, tuple(reading.protocols(one, frame))))
    return {case.line.claim: (str(j.verdict), j.note) for case, j in zip(cases, judge(cases), strict=True)}


def test_all_six_numbers_have_256_samples_of_every_protocol() -> None:
    frame = published_frame()
    assert len(printed()) == 6
    for one in printed():
        options = reading.protocols(one, frame)
        assert [option.name for option in options] == ["protocol A", "protocol C", "protocol I"]
        for option in options:
            at = (frame.protocol == option.name[-1]) & (frame.strength == dict(one.axes)["strength"])
            (expected,) = frame[at & (frame.quantity == one.quantity)].seeds
            assert len(option.samples) == 256 and option.samples == expected


def test_lines_that_are_no_printed_number_have_no_protocol() -> None:
    others = [one for one in load_published(PUBLISHED) if one.klass != "single_run"]
    assert others and all(reading.protocols(one, published_frame()) == [] for one in others)


def test_shifted_seeds_flip_the_verdict_under_all_protocols_only() -> None:
    assert {verdict for verdict, _ in judged(published_frame()).values()} == {"WITHIN_NOISE"}
    down = dict.fromkeys(SPREADS, -0.1)
    found = judged(published_frame(down))
    for claim, (verdict, note) in found.items():
        assert verdict == ("DIFFERS" if claim.endswith("x3") else "WITHIN_NOISE"), (claim, note)
    # One protocol that still fits is enough.
    one_left = judged(published_frame({**down, "A": 0.0}))
    assert {verdict for verdict, _ in one_left.values()} == {"WITHIN_NOISE"}


def joint_rank(frame: pd.DataFrame, protocol: str, keep: Sequence[int]) -> float:
    """Share of the seeds and the print that lie as far out as the print, by Mahalanobis distance from all of them."""
    vectors = []
    for seed in [*keep, None]:
        vector = []
        for one in printed():
            at = (frame.protocol == protocol) & (frame.quantity == one.quantity)
            (values,) = frame[at & (frame.strength == dict(one.axes)["strength"])].by_seed
            vector.append(one.published if seed is None else values[str(seed)])
        vectors.append(vector)
    x = np.array(vectors)
    inverse = np.linalg.inv(np.cov(x.T))
    distances = [float((v - x.mean(0)) @ inverse @ (v - x.mean(0))) for v in x]
    return sum(d >= distances[-1] - 1e-9 for d in distances) / len(distances)


def test_the_joint_p_is_the_rank_of_the_distance() -> None:
    frame = published_frame()
    found = set()
    for protocol in SPREADS:
        made = derived(frame.to_dict("records"), "published_numbers_p", protocol=protocol)
        assert made["estimate"] == pytest.approx(joint_rank(frame, protocol, range(256)), abs=1e-12)
        assert made["n"] == 256 and made["statistic"] == "value"
        found.add(made["estimate"])
    assert len(found) == 3
    far = derived(published_frame({"I": -0.3}).to_dict("records"), "published_numbers_p", protocol="I")
    assert far["estimate"] == pytest.approx(1 / 257)


def test_the_joint_p_pairs_the_six_numbers_by_seed() -> None:
    frame = published_frame(count=40, common=0.9)
    # The same values in another order, and one seed that one number lacks.
    orders = np.random.default_rng(5)
    for i in frame.index:
        values = frame.at[i, "by_seed"]
        frame.at[i, "by_seed"] = {str(seed): values[str(seed)] for seed in orders.permutation(40)}
    del frame.at[0, "by_seed"]["7"]
    made = derived(frame.to_dict("records"), "published_numbers_p", protocol="I")
    keep = [seed for seed in range(40) if seed != 7]
    assert made["n"] == 39 and made["estimate"] == pytest.approx(joint_rank(frame, "I", keep), abs=1e-12)
    del keep[-1]
    for i in frame.index:
        frame.at[i, "by_seed"] = {str(k): v for k, v in enumerate(frame.at[i, "by_seed"].values())}
    assert abs(joint_rank(frame, "I", keep) - made["estimate"]) > 0.2, "another pairing must show"


def test_six_seeds_have_no_joint_p() -> None:
    made = reading.derive(published_frame(count=6), load_published(PUBLISHED))
    assert not [m for m in made if m["quantity"] == "published_numbers_p"]


# --- the numbers themselves ---


@pytest.mark.slow
def test_the_default_protocol_gives_the_numbers_of_another_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ("scale=cpu", "params.study=published", "params.strength=[0,1,3]", "params.placement=[keys_values]")
    count = 48
    measured = rows_of(*run, f"seeds=${{range:{count}}}")
    flat = []
    for i, (mean, sd) in enumerate(SPREADS["I"]):
        values = np.array(
            list(
                by_seed(
                    measured, "test_accuracy" if i % 2 else "train_accuracy", strength=(0.0, 1.0, 3.0)[i // 2]
                ).values()
            )
        )
        error = math.sqrt(values.var(ddof=1) / count + sd**2 / 128)
        assert abs(values.mean() - mean) < 4 * error, (i, values.mean())
        flat.append(values)
    ours = np.array(flat)

    right = AddedCode.fold

    def without_code(self: AddedCode) -> Any:
        self.strength.zero_()
        return right(self)

    monkeypatch.setattr(AddedCode, "fold", without_code)
    blind = rows_of(*run, "seeds=${range:8}")
    for strength, index in ((1.0, 3), (3.0, 5)):
        found = np.array(list(by_seed(blind, strength=strength).values()))
        assert np.mean(ours[index][:8] - found) > 5 * np.std(ours[index][:8] - found, ddof=1) / math.sqrt(8)
        assert found == pytest.approx(ours[1][:8], abs=1e-9), "without a code every strength is none"


# --- the first sentence ---


def test_the_first_sentence_says_whether_x1_is_of_use_and_only_slower() -> None:
    def told(one: tuple[float, float], three: tuple[float, float], longer: tuple[float, float]) -> str:
        at = {"study": "published", "protocol": "I"}
        budget = {"study": "budget", "strength": "1", "placement": "keys_values", "learning_rate": "0.01"}
        rows = [
            {**at, "quantity": "gain_x1_over_none", "ci": one},
            {**at, "quantity": "gain_x3_over_x1", "ci": three},
            {**budget, "quantity": "gain_500_to_2000_steps", "ci": longer},
        ]
        (said,) = reading._told(harness.planted(table.AXES, *rows))
        return said

    said = told((0.1, 0.12), (0.2, 0.22), (-0.001, 0.001))
    assert said.startswith("No, attention uses it at x1 (+0.110 [+0.100, +0.120] over none, 5 seeds), x3 adds +0.210 [")
    assert "; x1 is not only slower: from 500 to 2000 steps it gains +0.000 [-0.001, +0.001]" in said
    said = told((-0.1, 0.1), (-0.2, -0.1), (0.1, 0.3))
    assert said.startswith("No use of it is seen at x1 (") and "x3 takes away -0.150" in said
    assert "x1 may be only slower" in said
    assert reading._told(harness.planted(table.AXES, {"quantity": "solved"})) == []
