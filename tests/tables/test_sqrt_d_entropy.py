"""The 1/sqrt(d) table: what it draws, and that a wrong number anywhere is noticed."""

import csv
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.app.precheck import make_plan
from attnrepro.data.streams import generator
from attnrepro.results.rows import Row, read_csv
from attnrepro.tables.sqrt_d_entropy import measure, table
from attnrepro.training.trainer import make_trainer

SMOKE = ("experiment=sqrt_d_entropy", "scale=smoke", "tracking=disabled")


def cell_of(*overrides: str) -> Any:
    plan = make_plan([*SMOKE, "hydra.mode=RUN", *overrides])
    return plan.cells[0].cell


def rows_of(*overrides: str) -> list[Row]:
    cell = cell_of(*overrides)
    job = measure.build(cell)
    make_trainer(cell).test(job.module, job.test, verbose=False)
    return job.module.rows()


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    found = [
        r for r in rows if r.quantity == quantity and all(r.axes.get(name) == value for name, value in axes.items())
    ]
    assert len(found) == 1, (quantity, axes, len(found))
    return found[0]


@pytest.fixture(scope="module")
def smoke_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("smoke")
    assert entry.main([*SMOKE, f"results={root}"]) == 0
    return root


def built(root: Path, table_name: str = "sqrt_d_entropy") -> report.TableReport:
    outcome = report.build(root, scales=("smoke",), raw=root / "raw", dashboard=False)
    return next(r for r in outcome.reports if r.name == table_name)


def verdicts(made: report.TableReport) -> dict[tuple[str, ...], str]:
    return {
        (line["claim"], *(line[axis] for axis in made.axes), line["quantity"], line["statistic"]): line["verdict"]
        for line in made.lines
        if line.get("claim")
    }


def test_smoke_agrees_with_theory_and_judges_every_line(smoke_root: Path) -> None:
    made = built(smoke_root)
    assert made.problems == []
    assert len(made.checks) == 1 and made.checks[0][1].count > 150
    words = set(verdicts(made).values())
    assert "NOT_RUN" not in words and {"WITHIN_NOISE", "SOURCE_ERROR", "TREND_FAILS"} <= words
    assert made.answer and "falls from" in made.answer


def test_a_changed_mechanism_changes_a_verdict(
    smoke_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looked up anew: tests that run copies of the repository import the table again.
    measured = importlib.import_module("attnrepro.tables.sqrt_d_entropy.measure")
    monkeypatch.setattr(measured, "attention_weights", lambda logits: torch.softmax(logits / 1.1, dim=-1))
    assert entry.main([*SMOKE, f"results={tmp_path}", "params.head_dim=64", "params.study=draws"]) == 0
    hot = built(tmp_path)
    assert hot.problems, "a temperature of 1.1 must not pass as attention"
    before, after = verdicts(built(smoke_root)), verdicts(hot)
    changed = [key for key in after if after[key] == "FAILED" and before[key] != "FAILED"]
    assert changed


def test_a_wrong_theory_fails_the_table(smoke_root: Path, tmp_path: Path) -> None:
    import hashlib
    import json
    import shutil

    root = tmp_path / "results"
    shutil.copytree(smoke_root, root)
    assert built(root).problems == []
    for folder in (root / "runs" / "sqrt_d_entropy").iterdir():
        if not folder.is_dir():
            continue
        lines = read_csv(folder / "rows.csv")
        for line in lines:
            if line["source"] == "theory" and line["quantity"] == "entropy":
                line["value"] = repr(float(line["value"]) * 1.03)
        with (folder / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, lines[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
        done = json.loads((folder / "done.json").read_text())
        done["sha256"]["rows.csv"] = hashlib.sha256((folder / "rows.csv").read_bytes()).hexdigest()
        (folder / "done.json").write_text(json.dumps(done))
    assert any("entropy" in problem for problem in built(root).problems)


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the register that a test may falsify."""
    import shutil

    folder = tmp_path / "published"
    shutil.copytree(paths.published_dir(), folder)
    monkeypatch.setattr(paths, "published_dir", lambda: folder)
    yield folder / "sqrt_d_entropy.csv"


@pytest.mark.parametrize(
    ("claim", "wrong", "expected"),
    [
        ("s0-ln16", "2.8726", "SOURCE_ERROR"),
        ("s0-sqrtd-64-u-H", "0.9317", "DIFFERS"),
        ("s0-sqrtd-1024-s-M", "0.5453", "DIFFERS"),
        ("s4-grad-bound", "0.30", "SOURCE_ERROR"),
    ],
)
def test_a_wrong_published_number_is_refuted(
    smoke_root: Path, published: Path, claim: str, wrong: str, expected: str
) -> None:
    def verdict() -> str:
        return next(word for key, word in verdicts(built(smoke_root)).items() if claim in key[0].split(";"))

    assert verdict() in ("REPRODUCED", "WITHIN_NOISE")
    lines = read_csv(published)
    for line in lines:
        if line["claim"] == claim:
            line.update(published=wrong, low="", high="")
    with published.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    assert verdict() == expected


def test_draws_are_literal_queries_and_keys() -> None:
    rows = rows_of("params.head_dim=7", "params.n_queries=100", "params.keys=[own]", "params.designs=[5]")
    stream = generator(0, table.NAME, "own", "7.0", 16)
    query = torch.randn(100, 1, 7, generator=stream)
    key = torch.randn(100, 16, 7, generator=stream)
    logits = (query @ key.transpose(-1, -2)).double().squeeze(1).numpy()
    for scaled in (False, True):
        s = logits / math.sqrt(7) if scaled else logits
        p = np.exp(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        own = {"keys": "own", "scaled": scaled}
        assert pick(rows, "logit_sd", **own).value == pytest.approx(np.sqrt((s**2).mean()), rel=1e-12)
        assert pick(rows, "entropy", **own).value == pytest.approx(-(p * np.log(p)).sum(1).mean(), rel=1e-12)
        assert pick(rows, "entropy", **own).sd == pytest.approx((-(p * np.log(p)).sum(1)).std(ddof=1), rel=1e-9)
        assert pick(rows, "max_weight", **own).value == pytest.approx(p.max(1).mean(), rel=1e-12)
    # The published table's own estimators, on blocks of 5 queries.
    blocks = logits.reshape(20, 80)
    design = pick(rows, "design_logit_sd_unscaled", design=5)
    assert design.value == pytest.approx(blocks.std(axis=1).mean(), rel=1e-5) and design.n == 20
    assert design.sd == pytest.approx(blocks.std(axis=1).std(ddof=1), rel=1e-4)


def test_shared_keys_are_one_set_for_all_queries_and_a_set_is_a_cluster() -> None:
    sizes = ("params.n_key_sets=20", "params.n_queries_per_set=50", "params.designs=[50]")
    rows = rows_of("params.head_dim=4", "params.keys=[shared]", *sizes)
    stream = generator(0, table.NAME, "shared", "4.0", 16)
    query = torch.randn(20, 50, 4, generator=stream)
    key = torch.randn(20, 16, 4, generator=stream)
    squares = (query @ key.transpose(-1, -2)).double().square().mean((1, 2)).numpy()
    row = pick(rows, "logit_sd", scaled=False)
    assert row.n == 20, "a key set is one observation: its queries are not independent"
    assert row.value == pytest.approx(math.sqrt(squares.mean()), rel=1e-12)
    assert row.sd == pytest.approx(squares.std(ddof=1) / (2 * math.sqrt(squares.mean())), rel=1e-9)


def test_gradients_are_those_of_the_formula() -> None:
    rows = rows_of("params.head_dim=6", "params.n_gradient=100")
    stream = generator(0, table.NAME, "gradient", "6.0", 16)
    g = torch.randn(100, 1, 16, generator=stream).double()
    q = torch.randn(100, 1, 6, generator=stream).double()
    k = torch.randn(100, 16, 6, generator=stream).double()
    for scaled in (False, True):
        c = 1 / math.sqrt(6) if scaled else 1.0
        p = torch.softmax(c * (q @ k.transpose(-1, -2)), -1)
        s = p * (g - (p * g).sum(-1, keepdim=True))
        logits, query = s.square().sum(-1).mean().sqrt(), (c * s @ k).square().sum(-1).mean().sqrt()
        found = {r.quantity: r.value for r in rows if r.statistic == "rms" and r.axes["scaled"] == scaled}
        assert found["grad_logits_norm"] == pytest.approx(float(logits), rel=1e-5)
        assert found["grad_query_norm"] == pytest.approx(float(query), rel=1e-5)


def test_both_scalings_come_from_the_same_draws() -> None:
    rows = rows_of("params.head_dim=64", "params.n_queries=200", "params.keys=[own]")
    ratio = pick(rows, "logit_sd", scaled=False).value / pick(rows, "logit_sd", scaled=True).value
    assert ratio == pytest.approx(8, rel=1e-14)
    gain = pick(rows, "max_weight_excess")
    apart = pick(rows, "max_weight", scaled=False).value - pick(rows, "max_weight", scaled=True).value
    assert gain.value == pytest.approx(apart, rel=1e-12)


def test_seeds_are_an_inner_axis_and_zero_is_a_seed() -> None:
    rows = rows_of("params.head_dim=4", "params.n_queries=100", "params.keys=[own]", "seeds=[0,3]")
    seeds = {r.seed: r.value for r in rows if r.quantity == "entropy" and r.axes["scaled"] is True}
    assert set(seeds) == {0, 3} and seeds[0] != seeds[3]
    alone = rows_of("params.head_dim=4", "params.n_queries=100", "params.keys=[own]")
    assert pick(alone, "entropy", scaled=True).value == seeds[0]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.head_dim=2.5", "whole number"),
        ("params.n_keys=[1]", "between 2 and"),
        ("params.scaled=[true,true]", "each once"),
        ("params.max_normals=100", "fewer than 20 queries"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    from attnrepro.config import BadInput

    with pytest.raises(BadInput, match=word):
        cell_of(override)
    with pytest.raises(BadInput, match="head_dim=inf"):
        cell_of("params.head_dim=inf", "params.scaled=[false]")


def test_the_limit_has_no_unscaled_rows_and_no_shared_keys() -> None:
    rows = rows_of("params.head_dim=inf", "params.n_queries=200")
    assert {r.axes.get("scaled") for r in rows} <= {True, None}
    assert {r.axes.get("keys") for r in rows} == {"own"}
