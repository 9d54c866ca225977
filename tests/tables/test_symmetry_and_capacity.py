"""Symmetry and capacity: what is measured, and that every planted fault changes a verdict or raises a problem."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.data.streams import generator, stream_seed
from attnrepro.nn import ring_models
from attnrepro.nn.sequence_classifier import SequenceClassifier
from attnrepro.results.published import load_published
from attnrepro.results.rows import Row
from attnrepro.tables.symmetry_and_capacity import measure, properties, reading, table
from attnrepro.training.trainer import make_trainer

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "symmetry_and_capacity"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
ONE = "params.shapes=[8x4x3]"


def cell_of(*overrides: str) -> Any:
    return harness.cell_of(NAME, *overrides)


def rows_of(*overrides: str) -> list[Row]:
    return harness.rows_of(NAME, measure.build, *overrides)


def pick(rows: list[Row], quantity: str, **axes: object) -> Row:
    (row,) = [r for r in rows if r.quantity == quantity and {k: v for k, v in r.axes.items() if v is not None} == axes]
    return row


def built(root: Path) -> report.TableReport:
    return harness.built(NAME, root)


def run(root: Path, *overrides: str) -> report.TableReport:
    assert entry.main([*SMOKE, f"results={root}", *overrides]) == 0
    return built(root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("symmetry_and_capacity")
    assert entry.main([*SMOKE, "params.draws=20", f"results={folder}"]) == 0
    return folder


def change(root: Path, target: Path, edit: Callable[[dict[str, str]], None]) -> report.TableReport:
    return harness.change(NAME, root, target, edit)


# Accuracies as a full training gives them.
REACHED = {
    ("motif", "convolution"): 0.96,
    ("motif", "convolution_wide"): 0.96,
    ("motif", "attention_position"): 0.91,
    ("motif", "attention"): 0.5,
    ("recall", "attention"): 0.97,
    ("recall", "attention_position"): 0.61,
    ("recall", "convolution_wide"): 0.607,
    ("recall", "convolution"): 0.5,
}


# The most frequent of 13 signs: E[max(k, 13 - k)] / 13.
MAJORITY = sum(math.comb(13, k) * max(k, 13 - k) for k in range(14)) / 13 / 2**13


def trained(row: dict[str, str]) -> None:
    """A smoke training with the accuracies of a full one, each seed a little off, in no common direction."""
    if row["quantity"] == "accuracy" and row["source"] == "measured":
        seed = int(row["seed"])
        off = (seed - 3.5) * (0.001 if "convolution" in row["network"] else -0.001)
        row["value"] = repr(REACHED[row["task"], row["network"]] + off)
    if row["quantity"] == "majority_accuracy" and row["source"] == "measured":
        row["value"] = repr(MAJORITY + 0.001 * (int(row["seed"]) - 3.5))
    if row["quantity"] == "n_test":
        row["value"] = "2000"


EXPECTED_WORDS = {
    "s0-assume-unet": {"REPRODUCED", "DIFFERS"},
    "s0-closer-to-mlp": {"REPRODUCED", "DIFFERS"},
    "s0-more-symmetry-more-functions": {"SOURCE_ERROR"},
    "s0-quiz4-key": {"TREND_HOLDS", "INCONCLUSIVE"},
    "s1-conv-attn-group": {"REPRODUCED", "DIFFERS"},
    "s2-attn-nobias": {"REPRODUCED", "DIFFERS"},
    "s2-cnn-locality": {"REPRODUCED", "SOURCE_ERROR", "DIFFERS"},
    "s2-cnn-params": {"REPRODUCED", "DIFFERS"},
    "s4-addr-scale": {"REPRODUCED", "SOURCE_ERROR"},
    "s4-pool-equivariance": {"REPRODUCED", "SOURCE_ERROR"},
    "s4-weights-bound-to-position": {"REPRODUCED", "SOURCE_ERROR"},
}


def test_every_claim_has_a_verdict_and_the_right_one(root: Path, tmp_path: Path) -> None:
    made = change(root, tmp_path / "trained", trained)
    assert made.problems == []
    words = verdicts(made)
    assert set(words) == {line.claim for line in load_published(paths.published_dir() / f"{NAME}.csv")}
    assert words == {claim: EXPECTED_WORDS.get(claim, {"REPRODUCED"}) for claim in words}
    cells = sum(map(len, table.EXPECTED.values()))
    assert f"{cells} of {cells} cells" in made.answer
    assert "2 independent linear maps commute with all permutations, 8 with the shifts, 64" in made.answer
    assert "the larger symmetry leaves fewer maps" in made.answer and "a lead of 0.050 [" in made.answer
    assert made.shown is not None
    frame = made.shown.frame()
    frame["published"] = report._printed_numbers(made, table)
    assert len(reading.charts(frame)) == 3


# --- properties, by loops ---


def draw_of(network: str, shape: str = "8x4x3") -> properties.Draw:
    return properties.Draw(network, shape, 2, generator(3, "test"), {})


def test_a_draw_has_weights_of_its_own_and_leaves_the_global_stream_alone() -> None:
    state = torch.get_rng_state()
    stream, modules = generator(3, "test"), {}
    found = []
    for _ in range(2):
        draw = properties.Draw("mlp", "8x4x3", 2, stream, modules)
        found.append([weight.detach().clone() for weight in draw.model().parameters()])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(not torch.equal(a, b) for a, b in zip(*found, strict=True))
    again = list(draw_of("mlp").model().parameters())
    assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))
    assert draw_of("mlp").model()(draw_of("mlp").tokens()).dtype == torch.float64


@pytest.mark.parametrize("network", ["convolution_zeros", "attention_position"])
def test_the_violation_of_a_shift_is_that_of_moved_tokens(network: str) -> None:
    found = properties.violation("shift_equivariant", draw_of(network))
    again = draw_of(network)
    by = 2 * again.pick(0, 3) + 1
    net, x = again.model(), again.tokens()
    out, moved = net(x).tolist(), net(torch.stack([x[(i - by) % 8] for i in range(8)])).tolist()
    worst = max(abs(moved[i][c] - out[(i - by) % 8][c]) for i in range(8) for c in range(4))
    assert found == pytest.approx(worst / max(abs(v) for row in out for v in row))
    assert by % 2 == 1


def test_of_fewer_outputs_the_best_fit_counts() -> None:
    found = properties.violation("shift_equivariant", draw_of("convolution_pooled"))
    again = draw_of("convolution_pooled")
    by = 2 * again.pick(0, 3) + 1
    net, x = again.model(), again.tokens()
    out, moved = net(x), net(x.roll(by, 0))
    worst = [max(float((moved[i] - out[(i - p) % 4]).abs().max()) for i in range(4)) for p in range(4)]
    assert found == pytest.approx(min(worst) / float(out.abs().max()))


def test_locality_is_the_derivative_by_the_opposite_token() -> None:
    again = draw_of("mlp", "12x4x3")
    found = properties.violation("local", draw_of("mlp", "12x4x3"))
    net, x = again.model(), again.tokens()
    place = again.pick(0, 11)
    direction = again.normal(4)
    jacobian = torch.autograd.functional.jacobian(lambda t: net(t)[place] @ direction, x)
    assert found == pytest.approx(float(jacobian[(place + 6) % 12].abs().max() / jacobian.abs().max()))


def test_repeated_tokens_stand_beside_themselves() -> None:
    found = properties.violation("repeat_invariant", draw_of("attention_position"))
    again = draw_of("attention_position")
    x = again.tokens()
    twice = torch.stack([x[i // 2] for i in range(16)])
    once, of_twice = again.model()(x), again.model(16)(twice)
    wanted = float((of_twice.mean(0) - once.mean(0)).abs().max() / once.abs().max())
    assert found == pytest.approx(wanted)


def test_zoomed_images_are_repeated_pixels() -> None:
    image = torch.arange(4.0).reshape(2, 2)
    assert properties._zoomed(image, 2).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]


@pytest.mark.parametrize(
    ("values", "name", "word"),
    [
        ([0.0, 30 * 2**-52], "shift_equivariant", 1.0),
        ([0.0, 40 * 2**-52], "shift_equivariant", 0.5),
        ([0.5, 0.2], "shift_equivariant", 0.0),
        ([0.5, 1e-5], "shift_equivariant", 0.5),
        ([0.5, 0.3, 1e-5], "shift_invariant", 0.0),  # of means the median
        ([0.5, 1e-5, 1e-5], "shift_invariant", 0.5),
    ],
)
def test_how_a_property_is_judged(values: list[float], name: str, word: float) -> None:
    assert measure.judged(name, values) == word


# --- counts ---


def test_groups_from_their_generators() -> None:
    assert measure.elements(measure.generators("shifts_by_4", 8)) == {
        tuple((i + by) % 8 for i in range(8)) for by in (0, 4)
    }
    assert len(measure.elements(measure.generators("permutations", 6))) == math.factorial(6)
    assert len(measure.elements(measure.generators("shifts_mirrored", 5))) == 10
    # Matrices that commute with the exchange of two of three numbers: [[a, b, c], [b, a, c], [d, d, e]].
    assert measure.commutant_dimension([(1, 0, 2)]) == 5
    assert measure.classes_of_words([(1, 0, 2)]) == 3 * 2


@pytest.mark.parametrize("name", ["permutations", "shifts_mirrored"])
def test_classes_by_sorting_words(name: str) -> None:
    made = measure.elements(measure.generators(name, 5))
    words = itertools.product((0, 1), repeat=5)
    assert measure.classes_of_words(measure.generators(name, 5)) == len(
        {min(tuple(w[i] for i in order) for order in made) for w in words}
    )


def test_a_layer_is_its_matrix() -> None:
    basis = torch.eye(8, dtype=torch.float64)[..., None]
    with torch.no_grad():
        matrix = measure.as_matrix("convolution", 8, 3, basis).reshape(8, 8)  # row: unit vector that went in
        average = measure.as_matrix("attention", 8, 3, basis).reshape(8, 8)
    for offset in range(8):
        along = {round(float(matrix[i, (i + offset) % 8]), 14) for i in range(8)}
        assert len(along) == 1 and (along == {0.0}) is (offset not in (7, 0, 1))
    off_diagonal = average[~torch.eye(8, dtype=torch.bool)]
    torch.testing.assert_close(off_diagonal, off_diagonal[:1].expand(56))


# --- the tasks ---


def test_ramps_rise_or_fall_somewhere() -> None:
    p = cell_of("params.study=tasks").params
    x, label = measure.motif(p, 200, generator(0, "test"))
    noise = torch.randn(200, p.motif_length, generator=generator(0, "test"))
    steps = torch.linspace(-1, 1, 5).tolist()
    norm = math.sqrt(sum(s * s for s in steps))
    starts = set()
    for row, clean, rises in zip(x[..., 0], noise, label.tolist(), strict=True):
        added = (row - clean).tolist()
        start = next(i for i, v in enumerate(added) if abs(v) > 1)
        starts.add(start)
        wanted = [0.0] * p.motif_length
        for i, s in enumerate(steps):
            wanted[start + i] = (1 if rises else -1) * p.motif_norm * s / norm
        assert added == pytest.approx(wanted, abs=1e-5)
    assert starts == set(range(p.motif_length - p.motif_width + 1)) and set(label.tolist()) == {0, 1}


def test_the_key_asked_for_has_the_labels_sign() -> None:
    p = cell_of("params.study=tasks", "params.task=recall").params
    x, label = measure.recall(p, 300, generator(0, "test"))
    assert x.shape == (300, 16, 17)
    where = set()
    for tokens, wanted in zip(x.tolist(), label.tolist(), strict=True):
        keys = [token[:-1].index(1.0) for token in tokens]
        assert all(sum(token[:-1]) == 1 for token in tokens) and len(set(keys[:-1])) == 15
        place = keys.index(keys[-1])
        where.add(place)
        assert tokens[-1][-1] == 0 and tokens[place][-1] == (1 if wanted else -1)
    # Two convolutions of kernel 3 see tokens 13 and 14 from token 15.
    assert where == set(range(13))


def test_the_majority_of_the_values_is_counted() -> None:
    rows = rows_of("params.study=tasks", "params.task=recall", "params.networks=[convolution]", "seeds=[2]")
    p = cell_of("params.study=tasks", "params.task=recall").params
    x, label = measure.recall(p, p.n_test, generator(2, NAME, "recall", "test"))
    right = [
        (sum(token[-1] for token in tokens[:13]) > 0) == bool(wanted)
        for tokens, wanted in zip(x.tolist(), label.tolist(), strict=True)
    ]
    assert pick(rows, "majority_accuracy", task="recall").value == pytest.approx(sum(right) / len(right))


def test_a_member_is_that_seed_alone_and_a_plain_loop() -> None:
    short = ("params.study=tasks", "params.task=motif", "params.steps=4", "params.networks=[convolution]")
    together, alone = rows_of(*short, "seeds=[0,7]"), rows_of(*short, "seeds=[7]")

    def accuracy(rows: list[Row]) -> float:
        return next(r.value for r in rows if r.quantity == "accuracy" and r.seed == 7)

    assert accuracy(together) == accuracy(alone)

    cell = cell_of(*short, "seeds=[7]")
    p = cell.params
    torch.manual_seed(stream_seed(7, NAME, "motif", "convolution", "init"))
    sizes: dict[str, Any] = {"embed_dim": 16, "num_heads": 4, "depth": 2, "kernel": 3, "strength": 3.0}
    net = SequenceClassifier("convolution", 1, p.motif_length, readout="mean", **sizes)
    x, label = measure.motif(p, p.motif_sequences, generator(7, NAME, "motif", "train"))
    optimizer = torch.optim.Adam(net.parameters(), lr=p.learning_rate)
    order = generator(7, NAME, "motif", "order")
    for rate in (1.0, 1.0, 1.0, 0.5):  # 4 steps, the last two of them cooling: (4 - step) / 2, at most 1
        for group in optimizer.param_groups:
            group["lr"] = p.learning_rate * rate
        chosen = torch.randint(p.motif_sequences, (p.batch_size,), generator=order)
        sign = 2.0 * label[chosen] - 1
        optimizer.zero_grad()
        torch.nn.functional.softplus(-sign * net(x[chosen])).mean().backward()
        optimizer.step()
    job = measure.build(cell)
    make_trainer(cell, max_steps=p.steps).fit(job.module, job.fit)
    for found, wanted in zip(job.module.stacks["convolution"].weights, net.parameters(), strict=True):  # type: ignore[union-attr, index]
        torch.testing.assert_close(found[0], wanted, rtol=1e-4, atol=1e-5)


def test_a_diverged_seed_is_a_failed_row() -> None:
    cell = cell_of("params.study=tasks", "params.networks=[convolution]", "seeds=[0,1]")
    job = measure.build(cell)
    make_trainer(cell, max_steps=2).fit(job.module, job.fit)
    with torch.no_grad():
        job.module.stacks["convolution"].weights[0][1] = math.nan  # type: ignore[union-attr, index]
    make_trainer(cell).test(job.module, job.test, verbose=False)
    found = [r for r in job.module.rows() if r.quantity == "accuracy"]
    assert [(r.seed, r.status, math.isnan(r.value)) for r in found] == [(0, "ok", False), (1, "failed: diverged", True)]


# --- planted faults ---


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Test these properties and no others."""
    for name in list(table.EXPECTED):
        if name not in names:
            monkeypatch.delitem(table.EXPECTED, name)


def test_a_convolution_with_the_wrong_padding_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ring_models.TokenConv.__init__

    def zeros(self: Any, *args: Any, **kwargs: Any) -> None:
        honest(self, *args, **{**kwargs, "padding": "zeros"})

    monkeypatch.setattr(ring_models.TokenConv, "__init__", zeros)
    only(monkeypatch, "shift_equivariant")
    made = run(tmp_path, "params.study=symmetry", ONE)
    words = verdicts(made)
    assert "FAILED" in words["s0-assume-conv"] and words["s4-conv-equivariant"] == {"SOURCE_ERROR", "NOT_RUN"}
    assert any("property=shift_equivariant" in p and "at most 32 is round-off" in p for p in made.problems)


def test_pooling_that_keeps_every_position_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its stride a filter by the maximum would leave the equivariance whole."""
    only(monkeypatch, "shift_equivariant")
    monkeypatch.setattr(ring_models.Pool, "forward", lambda self, x: torch.maximum(x, x.roll(1, dims=-2)))
    monkeypatch.setitem(table.EXPECTED, "shift_equivariant", {"convolution_pooled": False})
    made = run(tmp_path, "params.study=symmetry", "params.draws=60", ONE)
    assert verdicts(made)["s4-pool-equivariance"] == {"REPRODUCED", "NOT_RUN"}
    assert any("network=convolution_pooled" in p and "what must not hold" in p for p in made.problems)


def test_positions_that_say_nothing_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ring_models, "sinusoidal", lambda length, dim, **kw: torch.zeros(length, dim, dtype=kw["dtype"])
    )
    made = run(tmp_path, "params.study=symmetry", ONE)
    assert "FAILED" in verdicts(made)["s0-assume-attn"]
    assert any("network=attention_position" in p and "what must not hold" in p for p in made.problems)


def test_groups_with_a_generator_left_out_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its exchange the group of all permutations is that of an exchange of neighbours, in turn."""
    honest = measure.generators
    last = lambda group, n: honest(group, n)[-1:]  # noqa: E731
    monkeypatch.setattr(measure, "generators", last)
    made = run(tmp_path, "params.study=counts")
    assert verdicts(made)["s0-more-symmetry-more-functions"] == {"FAILED"}
    assert any("equivariant_dimension at group=permutations" in p for p in made.problems)


def test_a_wrong_closed_form_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = table.closed.equivariant_dimension
    wrong = lambda group, n: 1 if group == "permutations" else honest(group, n)  # noqa: E731
    monkeypatch.setattr(table.closed, "equivariant_dimension", wrong)
    made = run(tmp_path, "params.study=counts")
    assert any("equivariant_dimension at group=permutations" in p for p in made.problems)


@pytest.mark.parametrize(
    ("where", "value", "problem"),
    [
        (("motif", "attention"), 0.52, "attention guesses on motif, and its accuracy 0.5200 is not 0.5"),
        (("recall", "convolution"), 0.48, "convolution guesses on recall, and its accuracy 0.4800 is not 0.5"),
        (("motif", "convolution"), 0.7, "convolution reaches 0.7000 on motif, below 0.75: too little training"),
        (("recall", "attention"), 0.61, "attention reaches 0.6100 on recall, below 0.75"),
        (("recall", ""), 0.63, "the majority of the values is right in 0.6300 of the questions, not in 0.6128"),
        (("motif", "attention_position"), math.nan, "attention_position diverged on motif with 8 of 8 seeds"),
    ],
)
def test_an_impossible_or_missing_accuracy_is_noticed(
    root: Path, tmp_path: Path, where: tuple[str, str], value: float, problem: str
) -> None:
    def edit(row: dict[str, str]) -> None:
        trained(row)
        measured = row["quantity"].endswith("accuracy") and row["source"] == "measured"
        if measured and (row["task"], row["network"]) == where:
            if math.isnan(value):
                row.update(value="", status="failed: diverged")
            else:
                row["value"] = repr(value)

    assert any(problem in found for found in change(root, tmp_path / "r", edit).problems)


def test_attention_that_won_everywhere_would_refute_the_key(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        trained(row)
        if row["quantity"] == "accuracy" and (row["task"], row["network"]) == ("motif", "attention_position"):
            row["value"] = repr(float(row["value"]) + 0.08)

    assert "TREND_FAILS" in verdicts(change(root, tmp_path / "r", edit))["s0-quiz4-key"]


def test_seeds_that_solve_a_task_are_counted(root: Path, tmp_path: Path) -> None:
    def edit(row: dict[str, str]) -> None:
        trained(row)
        if row["quantity"] == "accuracy" and (row["task"], row["network"]) == ("recall", "attention"):
            if row["seed"] in ("0", "5"):
                row["value"] = "0.61"
            if row["seed"] == "7":
                row.update(value="", status="failed: diverged")

    made = change(root, tmp_path / "r", edit)
    (line,) = [
        r for r in made.lines if r["quantity"] == "solved" and (r["task"], r["network"]) == ("recall", "attention")
    ]
    assert (line["estimate"], line["n"]) == (5 / 8, 8) and line["ci_low"] < 0.3 < 0.9 < line["ci_high"]


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("params.shapes=[8x4]", "shapes=8x4 must be three numbers"),
        ("params.shapes=[6x4x3]", "must have a length of 8 or more that is a multiple of 4"),
        ("params.shapes=[8x3x3]", "num_heads=2 divides"),
        ("params.shapes=[8x4x4]", "must have an odd kernel"),
        ("params.local_shapes=[8x4x7]", "fits a quarter of the length"),
        ("params.image_shapes=[8x3x8]", "must have an even patch that divides the side"),
        ("params.lengths=[6]", "lengths=6 must be a multiple of 4"),
        ("params.kernels=[4]", "kernels=4 must be odd"),
        ("params.heads=3", "heads=3 must divide embed_dim=16"),
        ("params.motif_width=24", "must be below motif_length=24"),
        ("params.recall_length=4", "must be at least 5 at this depth"),
        ("params.field_length=64", "field_length=64 must be twice the largest field"),
        ("params.task=copy", "must be one of motif, recall"),
        ("params.kernel=5", "between 3 and 3"),
        ("params.draws=0", "between 1 and"),
    ],
)
def test_impossible_parameters_are_refused(override: str, word: str) -> None:
    with pytest.raises(BadInput, match=word):
        cell_of(override)


# --- the first sentence ---


def test_the_first_sentence_says_what_holds_what_is_left_and_who_wins() -> None:
    def told(property_: float, motif: tuple[float, float]) -> str:
        rows = [
            {"quantity": "has_property", "property": "linear", "network": "mlp", "estimate": property_, "theory": 1.0},
            {"quantity": "accuracy_lead", "network": "convolution", "against": "attention_position", "task": "motif",
             "ci": motif},
        ]  # fmt: skip
        (said,) = reading._told(harness.planted(table.AXES, *rows))
        return said

    said = told(1.0, (0.1, 0.2))
    assert said.startswith("Symmetries are as defined (1 of 1 tests); convolution beats attention with")
    said = told(0.0, (-0.2, -0.1))
    assert said.startswith(
        "Symmetries are not as defined (0 of 1 tests); convolution loses to attention with positions on"
    )
    assert "is not seen to beat attention with positions on motif" in told(1.0, (-0.1, 0.2))
    assert reading.answer(harness.planted(table.AXES, {"quantity": "parameters"})) == ""
