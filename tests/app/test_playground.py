"""The playground: its data in Python, and what the page computes beside numpy, torch and plain loops."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from attnrepro import paths
from attnrepro.app import dashboard, playground
from attnrepro.data.streams import generator
from attnrepro.results.published import load_published
from attnrepro.theory.softmax_logits import softmax_statistics

from .browsing import watched
from .test_dashboard import sample

REPOSITORY = Path(__file__).resolve().parents[2]
DATA: dict[str, Any] = json.loads(playground.FILE.read_text(encoding="utf-8"))
POOLS, ENTROPY, CAT = DATA["pools"], DATA["entropy"], DATA["cat"]
# What the page computes and what Python does.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}

# --- the file beside what it was made from ---


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal but for the last digits of numbers."""
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-9)
    else:
        assert ours == theirs


def test_theory_and_printed_numbers_are_todays() -> None:
    now = playground.figures()
    kept = {name: part for name, part in DATA.items() if name != "pools"}
    assert_same(now, kept)
    for change in ("max_weight", "entropy"):
        wrong = json.loads(json.dumps(kept))
        wrong["entropy"]["theory"]["scaled"][change][3] += 1e-6
        with pytest.raises(AssertionError):
            assert_same(now, wrong)


def test_the_printed_numbers_are_those_of_the_register() -> None:
    lines = load_published(paths.published_dir() / "worked_examples.csv")
    printed = {dict(r.axes)["token"]: r for r in lines if r.claim.startswith("s3-cat-w-")}
    assert [row["token"] for row in CAT["rows"]] == list(printed)
    for row in CAT["rows"]:
        line = printed[row["token"]]
        assert row["printed"] == line.printed
        if line.printed:
            half = 0.5 * 10.0 ** -len(line.printed.partition(".")[2])
            assert (row["low"], row["high"]) == pytest.approx((float(line.printed) - half, float(line.printed) + half))
        else:
            assert (row["low"], row["high"]) == (line.low, line.high)
    assert [row["token"] for row in CAT["rows"] if row["later"]] == CAT["sentence"][8:]
    entropies = [r for r in load_published(paths.published_dir() / "sqrt_d_entropy.csv") if r.quantity == "entropy"]
    for name, scaled in (("scaled", "true"), ("unscaled", "false")):
        marks = {f"s0-sqrtd-{d}-{name[0]}-H": text for d, text in ENTROPY["printed"][name]}
        assert len(marks) == 5
        found = {r.claim: r.printed for r in entropies if dict(r.axes)["scaled"] == scaled and r.claim.endswith("-H")}
        assert marks == found


def accuracy(pools: dict[str, Any], index: int, content: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of right answers in float64: the document's pool as it is written down, with its code from a loop."""
    length, width, strength = pools["length"], pools["embed_dim"], pools["strength"][index]
    code = [
        [math.sin(n / 10000 ** (k / width)) if k % 2 == 0 else math.cos(n / 10000 ** ((k - 1) / width))
         for k in range(width)]
        for n in range(length)
    ]  # fmt: skip
    tokens = content.double() + strength * torch.tensor(code, dtype=torch.float64)
    key, value = (torch.tensor(pools[name][index], dtype=torch.float64) for name in ("key", "value"))
    weights = torch.softmax(tokens @ key, -1)
    answers = (weights * (tokens @ value)).sum(-1) + pools["bias"][index]
    return float(((answers > 0) == (labels > 0)).double().mean())


def test_the_pools_answer_as_well_as_they_say() -> None:
    stream = generator(0, "position_strength", "test", POOLS["length"], POOLS["embed_dim"])
    content = torch.randn(POOLS["n_test"], POOLS["length"], POOLS["embed_dim"], generator=stream, dtype=torch.float32)
    labels = content[:, 0, 0]
    found = [accuracy(POOLS, index, content, labels) for index in range(len(POOLS["strength"]))]
    one = 1.01 / POOLS["n_test"]  # a sequence on the boundary may fall to the other side in float32
    assert found == pytest.approx(POOLS["test_accuracy"], abs=one)
    at = POOLS["strength"].index(4.0)
    for wrong in (
        {**POOLS, "strength": [s + 1 for s in POOLS["strength"]]},
        {**POOLS, "key": POOLS["value"]},
        {**POOLS, "bias": [b + 1 for b in POOLS["bias"]]},
    ):
        assert abs(accuracy(wrong, at, content, labels) - POOLS["test_accuracy"][at]) > 10 * one


def test_the_pools_are_members_of_the_committed_table() -> None:
    """The reference has the same seed at the same strengths."""
    found: dict[float, list[float]] = {}
    for path in (REPOSITORY / "results" / "raw").glob("*/position_strength.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                place = (row["study"], row["protocol"], row["placement"], row["seed"], row["quantity"])
                if place == ("strength", "A", "keys_values", "0", "test_accuracy") and row["source"] == "measured":
                    found.setdefault(float(row["strength"]), []).append(float(row["value"]))
    assert sorted(found) == POOLS["strength"]
    for strength, stated in zip(POOLS["strength"], POOLS["test_accuracy"], strict=True):
        # Rounding alone moves a training: 0.02 is a tenth of what the strengths differ by.
        assert min(abs(value - stated) for value in found[strength]) < 0.02, strength


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("export_playground", REPOSITORY / "scripts" / "export_playground.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_script_trains_the_same_pools_again(script: ModuleType) -> None:
    again = script.trained_pools()
    assert list(again) == list(POOLS)
    for name in ("command", "length", "embed_dim", "n_train", "steps", "n_test", "strength"):
        assert again[name] == POOLS[name]
    assert again["test_accuracy"] == pytest.approx(POOLS["test_accuracy"], abs=0.02)
    assert np.shape(again["key"]) == np.shape(again["value"]) == (len(POOLS["strength"]), POOLS["embed_dim"])


def test_the_script_refuses_weights_that_are_not_finite(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(playground, "FILE", tmp_path / "playground.json")
    monkeypatch.setattr(playground, "figures", dict)
    monkeypatch.setattr(script, "trained_pools", lambda: {"key": [[1.0, math.nan]]})
    assert script.main() == 1
    assert "export_playground:" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(script, "trained_pools", lambda: {"key": [[1.0, 2.0]]})
    assert script.main() == 0
    assert json.loads((tmp_path / "playground.json").read_text()) == {"pools": {"key": [[1.0, 2.0]]}}


def test_the_whole_addition_is_small() -> None:
    parts = [playground.section(), *(path.read_text() for path in playground.ASSETS.glob("playground.[cj]*s"))]
    assert len(parts) == 3
    assert sum(len(part.encode()) for part in parts) < 100_000
    assert "{{" not in parts[0]


# --- the page's numbers beside Python's ---


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("playground") / "dashboard.html"
    dashboard.write([sample()], path, "Attention, measured", "A sample")
    return path


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    """A page that no test has touched."""
    with watched(browser, page_file) as page:
        yield page


@pytest.fixture(scope="module")
def functions(browser: Any, page_file: Path) -> Iterator[Any]:
    """A page for what it computes, which changes nothing on it."""
    with watched(browser, page_file) as page:
        yield page


def compute(page: Any, body: str, *values: Any) -> Any:
    """Result of a function of the playground's functions ``g`` and of ``values`` (``v``)."""
    plain = "(_, x) => ArrayBuffer.isView(x) ? Array.from(x) : x"
    text = page.evaluate(
        f"v => {{ const g = window.attnreproPlayground; return JSON.stringify({body}, {plain}) }}", values
    )
    return json.loads(text)


def mix(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The finaliser of 32 bits, on 64-bit integers."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))


def words(seed: int, stream: int, n: int) -> np.ndarray[Any, Any]:
    base = mix((mix(np.array([seed], np.uint64)) + np.uint64(stream)) & np.uint64(0xFFFFFFFF))
    steps = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B9)
    return mix((base + steps) & np.uint64(0xFFFFFFFF))


def normals(seed: int, stream: int, n: int) -> np.ndarray[Any, Any]:
    drawn = words(seed, stream, 2 * (n + n % 2)).reshape(-1, 2)
    uniform = ((drawn[:, 0] >> np.uint64(5)).astype(float) * 2.0**26 + (drawn[:, 1] >> np.uint64(6))) / 2.0**53
    radius, angle = np.sqrt(-2 * np.log(1 - uniform[0::2])), 2 * math.pi * uniform[1::2]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).ravel()[:n]


@pytest.mark.parametrize(("seed", "stream", "n"), [(1, 0, 4001), (2, 99, 512), (123456789, 3, 7)])
def test_normal_numbers(functions: Any, seed: int, stream: int, n: int) -> None:
    np.testing.assert_allclose(
        compute(functions, "g.normals(...v)", seed, stream, n), normals(seed, stream, n), **CLOSE
    )


def test_the_numbers_are_normal_and_streams_independent() -> None:
    """By moments, and by the product of neighbouring streams; six standard errors."""
    a, b = normals(1, 0, 200_000), normals(1, 1, 200_000)
    error = 6 / math.sqrt(200_000)
    assert abs(a.mean()) < error
    assert abs((a**2).mean() - 1) < math.sqrt(2) * error
    assert abs((a**3).mean()) < math.sqrt(15) * error
    assert abs((a**4).mean() - 3) < math.sqrt(96) * error
    assert abs((a * b).mean()) < error
    assert abs((a[1:] * a[:-1]).mean()) < error
    assert abs((a * normals(2, 0, 200_000)).mean()) < error


def test_an_order_is_a_permutation_and_never_the_first_one(functions: Any) -> None:
    orders = compute(functions, "Array.from({ length: 200 }, (_, k) => g.shuffled(1, k, v[0]))", 8)
    assert all(sorted(order) == list(range(8)) != order for order in orders)
    assert len({tuple(order) for order in orders}) > 190
    pairs = compute(functions, "Array.from({ length: 20 }, (_, k) => g.shuffled(1, k, v[0]))", 2)
    assert pairs == [[1, 0]] * 20


@pytest.mark.parametrize("logits", [[0.4, 0.3, 4.2], [800.0, 799.0, -800.0], [1e-3] * 5, [3.0], [-745.0, 0.0]])
def test_softmax_and_entropy(functions: Any, logits: list[float]) -> None:
    weights = torch.softmax(torch.tensor(logits, dtype=torch.float64), 0)
    np.testing.assert_allclose(compute(functions, "g.softmax(v)", *logits), weights.numpy(), **CLOSE)
    entropy = float(torch.special.entr(weights).sum())
    assert compute(functions, "g.entropy(g.softmax(v))", *logits) == pytest.approx(entropy, abs=1e-12)


def test_a_masked_key_gets_exactly_nothing(functions: Any) -> None:
    weights = compute(functions, "g.softmax([1, -Infinity, 2])")
    assert weights[1] == 0.0
    assert compute(functions, "g.entropy(g.softmax([5, -Infinity]))") == 0


def sinusoid(length: int, width: int) -> np.ndarray[Any, Any]:
    """The code by its formula, a component at a time."""
    code = np.empty((length, width))
    for n in range(length):
        for i in range(width // 2):
            code[n, 2 * i] = math.sin(n / math.pow(10000, 2 * i / width))
            code[n, 2 * i + 1] = math.cos(n / math.pow(10000, 2 * i / width))
    return code


def test_sinusoid(functions: Any) -> None:
    np.testing.assert_allclose(compute(functions, "g.sinusoid(...v)", 64, 16), sinusoid(64, 16), **CLOSE)


def attended(tokens: np.ndarray[Any, Any], maps: list[np.ndarray[Any, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs by torch's own attention, and weights by its definition."""
    x = torch.from_numpy(tokens)
    query, key, value = (x @ torch.from_numpy(matrix) for matrix in maps)
    outputs = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
    return outputs, torch.softmax(query @ key.T / math.sqrt(key.shape[1]), -1)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("coded", [False, True])
def test_equivariance(functions: Any, seed: int, coded: bool) -> None:
    n, width = DATA["shuffle"]["n_tokens"], DATA["shuffle"]["embed_dim"]
    tokens = normals(seed, 0, n * width).reshape(n, width)
    maps = [normals(seed, stream, width * width).reshape(width, width) / math.sqrt(width) for stream in (1, 2, 3)]
    order = compute(functions, "g.shuffled(...v)", seed, 4, n)
    found = compute(functions, "g.equivariance(g.drawHead(v[0]), v[1], v[2])", seed, order, coded)
    code = sinusoid(n, width) if coded else np.zeros((n, width))
    for name, read in (("before", tokens), ("after", tokens[order])):
        outputs, weights = attended(read + code, maps)
        np.testing.assert_allclose(found[name]["outputs"], outputs.numpy(), **CLOSE)
        np.testing.assert_allclose(found[name]["weights"], weights.numpy(), **CLOSE)
    before, after = (np.array(found[name]["outputs"]) for name in ("before", "after"))
    error = np.abs(after - before[order]).max()
    assert found["error"] == error
    assert found["largest"] == np.abs(before).max()
    # Rounding alone, or the size of the outputs themselves.
    assert error > 0.1 if coded else error < 20 * 2.0**-52 * found["largest"]


@pytest.mark.parametrize("scaled", [True, False])
def test_entropy_against_head_dim(functions: Any, scaled: bool) -> None:
    queries, keys, dims = ENTROPY["n_queries"], ENTROPY["n_keys"], ENTROPY["head_dim"]
    drawn = np.stack([normals(1, i, (keys + 1) * 1024) for i in range(queries)]).reshape(queries, keys + 1, 1024)
    found = compute(functions, "(d => v[0].map((_, i) => g.collapse(d, i, v[1])))(g.drawLogits(1))", dims, scaled)
    name = "scaled" if scaled else "unscaled"
    for index, d in enumerate(dims):
        logits = np.einsum("qd,qkd->qk", drawn[:, 0, :d], drawn[:, 1:, :d]) / (math.sqrt(d) if scaled else 1)
        weights = torch.softmax(torch.from_numpy(logits), -1)
        entropies = torch.special.entr(weights).sum(-1).numpy()
        error = entropies.std(ddof=1) / math.sqrt(queries)
        one = found[index]
        np.testing.assert_allclose(one["logits"], logits[0], rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(one["weights"], weights[0].numpy(), **CLOSE)
        assert one["entropy"] == pytest.approx(entropies.mean(), abs=1e-12)
        assert one["half"] == pytest.approx(1.984217 * error, rel=1e-6)
        assert one["largest"] == pytest.approx(float(weights.amax(-1).mean()), abs=1e-12)
        assert one["spread"] == pytest.approx(math.sqrt((logits**2).mean()), rel=1e-12)
        exact = softmax_statistics(keys, d, scaled)
        assert ENTROPY["theory"][name]["entropy"][index] == pytest.approx(exact.entropy, rel=1e-9)
        assert abs(one["entropy"] - exact.entropy) < 5 * error
    if not scaled:
        assert found[0]["entropy"] > 1.5 and found[-1]["entropy"] < 0.2


@pytest.mark.parametrize("index", range(len(POOLS["strength"])))
def test_pools_in_the_page(functions: Any, index: int) -> None:
    length, width, n, strength = POOLS["length"], POOLS["embed_dim"], 500, POOLS["strength"][index]
    content = torch.from_numpy(normals(1, 0, n * length * width).reshape(n, length, width))
    tokens = content + strength * torch.from_numpy(sinusoid(length, width))
    key, value = (torch.tensor(POOLS[name][index], dtype=torch.float64) for name in ("key", "value"))
    weights = torch.softmax(tokens @ key, -1)
    answers = (weights * (tokens @ value)).sum(-1) + POOLS["bias"][index]
    found = compute(functions, "g.score(g.poolAt(v[0]), g.drawSequences(1, v[1]))", index, n)
    first = compute(functions, "g.drawSequences(1, v[1]).map(tokens => g.answer(g.poolAt(v[0]), tokens))", index, 20)
    right = (answers > 0) == (content[:, 0, 0] > 0)
    assert found["accuracy"] == float(right.double().mean())
    assert abs(found["accuracy"] - POOLS["test_accuracy"][index]) < 5 * math.sqrt(0.25 * (1 / n + 1 / POOLS["n_test"]))
    np.testing.assert_allclose(found["weights"], weights.mean(0).numpy(), **CLOSE)
    for k, one in enumerate(first):
        np.testing.assert_allclose(one["content"], (content[k] @ key).numpy(), **CLOSE)
        np.testing.assert_allclose(one["logits"], (tokens[k] @ key).numpy(), **CLOSE)
        np.testing.assert_allclose(one["weights"], weights[k].numpy(), **CLOSE)
        assert one["output"] == pytest.approx(float(answers[k]), abs=1e-12)
        assert one["right"] == bool(right[k])
    z, share = 1.959963984540054, found["accuracy"]
    for end in ("low", "high"):  # Wilson: the shares whose score test just does not reject what was found
        assert abs(share - found[end]) == pytest.approx(z * math.sqrt(found[end] * (1 - found[end]) / n), rel=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.1, 1.734, 10.0])
@pytest.mark.parametrize("masked", [False, True])
def test_the_row_of_it(functions: Any, temperature: float, masked: bool) -> None:
    powers = [0.0 if masked and row["later"] else math.exp(float(row["score"]) / temperature) for row in CAT["rows"]]
    weights = [power / math.fsum(powers) for power in powers]
    found = compute(functions, "g.row(...v)", temperature, masked)
    np.testing.assert_allclose(found["weights"], weights, **CLOSE)
    assert found["entropy"] == pytest.approx(-math.fsum(w * math.log(w) for w in weights if w), abs=1e-12)
    assert found["sum"] == pytest.approx(1, abs=1e-12)
    inside = [r["low"] - 1e-15 <= w <= r["high"] + 1e-15 for r, w in zip(CAT["rows"], weights, strict=True)]
    assert found["fits"] == inside
    if temperature == 1 and not masked:
        assert weights[2] == pytest.approx(0.8125, abs=5e-5), "the cat, printed with 0.55"
        assert not found["fits"][2]


# --- what a reader sees and does ---


def show(page: Any) -> Any:
    page.get_by_role("link", name="Playground").click()
    page.locator("#page-playground[data-ready]").wait_for(state="visible")
    return page.locator("#page-playground")


def press(slider: Any, key: str, times: int = 1) -> None:
    slider.focus()
    for _ in range(times):
        slider.press(key)


def test_nothing_is_computed_before_somebody_comes(page: Any) -> None:
    assert page.locator("#page-playground .plot svg").count() == 0
    view = show(page)
    assert view.locator(".plot svg").count() == 3
    assert page.locator("nav a[aria-current]").text_content() == "Playground"
    assert page.locator(".toolbar").is_hidden()


def test_an_address_opens_it(browser: Any, page_file: Path) -> None:
    page = browser.new_page()
    page.goto(f"{page_file.as_uri()}#/page-playground")
    page.locator("#page-playground[data-ready]").wait_for(state="visible")
    page.close()


MAPS = ("first-order", "new-order")


def test_shuffling(page: Any) -> None:
    part = show(page).locator("#play-shuffle")
    for _ in range(4):
        part.get_by_role("button", name="Shuffle").click()
    assert part.locator(".history circle").count() == 5
    assert part.locator(".history path.two").count() == 5
    assert float(part.locator(".plain-error").text_content().replace("−", "-")) < 1e-14
    assert float(part.locator(".coded-error").text_content()) > 0.1
    heads = [part.locator(f".{place} thead th").all_text_contents()[1:] for place in MAPS]
    assert sorted(heads[0]) == sorted(heads[1]) and heads[0] != heads[1]
    entries = []
    for place, names in zip(MAPS, heads, strict=True):
        cells = part.locator(f".{place} td").all_text_contents()
        pairs = [(one, other) for one in names for other in names]
        entries.append(dict(zip(pairs, cells, strict=True)))
    assert entries[0] == entries[1], "a pair of tokens keeps its weight"
    part.get_by_label("Maps with the position encoding").check()
    assert part.locator(".first-order td").all_text_contents() != list(entries[0].values())
    part.get_by_role("button", name="Other tokens and weights").click()
    assert part.locator(".history circle").count() == 1


def test_dragging_d_without_the_root(page: Any) -> None:
    part = show(page).locator("#play-entropy")
    slider = part.get_by_label("Dimension d")
    part.get_by_label("Divide by sqrt(d)").uncheck()
    press(slider, "Home")
    assert (slider.get_attribute("aria-valuetext"), part.locator("output").text_content()) == ("d = 4", "d = 4")
    start = part.locator(".entropy").text_content()
    press(slider, "ArrowRight", len(ENTROPY["head_dim"]) - 1)
    assert slider.get_attribute("aria-valuetext") == "d = 1024"
    end = part.locator(".entropy").text_content()
    assert float(start.split()[0]) > 1.5 > 0.2 > float(end.split()[0])
    assert part.locator(".entropy-theory").text_content() == f"{ENTROPY['theory']['unscaled']['entropy'][-1]:.4f}"
    assert part.locator(".spread-theory").text_content() == "32.000"
    assert part.locator(".curve .cross").count() == 10
    assert part.locator(".curve circle.one.off").count() == len(ENTROPY["head_dim"])
    part.get_by_role("button", name="Draw again").click()
    assert part.locator(".entropy").text_content() != end


def test_dragging_the_strength(page: Any) -> None:
    part = show(page).locator("#play-strength")
    slider = part.get_by_role("slider", name="Strength")
    press(slider, "Home")
    for index, strength in enumerate(POOLS["strength"]):
        assert part.locator("output").text_content() == f"× {strength:g}"
        assert part.locator(".stated").text_content() == f"{POOLS['test_accuracy'][index]:g} (n = {POOLS['n_test']})"
        here = re.fullmatch(r"(\S+) \[(\S+), (\S+)\]", part.locator(".accuracy").text_content())
        assert here is not None
        share, low, high = map(float, here.groups())
        assert low < share < high
        assert abs(share - POOLS["test_accuracy"][index]) < 0.06
        press(slider, "ArrowRight")
    assert part.locator(".positions tbody tr").count() == POOLS["length"]
    before = part.locator(".positions").text_content()
    part.get_by_role("button", name="Another sequence").click()
    assert part.locator(".positions").text_content() != before
    assert POOLS["command"] in part.locator(".origin-of").text_content()


def test_temperature_and_mask(page: Any) -> None:
    part = show(page).locator("#play-cat")
    weights = part.locator(".words td.bar")
    assert weights.nth(2).text_content() == "0.8125"
    slider = part.get_by_label("Temperature")
    press(slider, "End")
    assert slider.get_attribute("aria-valuetext") == "10.00"
    assert float(weights.nth(2).text_content()) < 0.2
    part.get_by_label("Causal mask").check()
    assert weights.all_text_contents()[-3:] == ["0.0000"] * 3
    assert part.locator(".sum").text_content() == "1.0000"
    part.get_by_role("button", name="Temperature 1").click()
    assert part.locator("output").text_content() == "1.00"
    inside = part.locator(".words .chip.agrees").count()
    assert part.locator(".fits").text_content() == f"{inside} of {len(CAT['rows'])}"


def test_every_control_has_a_name_and_what_changes_is_announced(page: Any) -> None:
    view = show(page)
    names = view.locator("input").evaluate_all("nodes => nodes.map(node => node.labels[0]?.innerText.trim())")
    assert len(names) == 6 and all(names)
    ids = page.locator("[id]").evaluate_all("nodes => nodes.map(node => node.id)")
    assert len(set(ids)) == len(ids)
    assert view.locator("dl[aria-live=polite]").count() == 4
    pictures = view.locator("svg[role=img]").evaluate_all("nodes => nodes.map(node => node.getAttribute('aria-label'))")
    assert len(pictures) == 3 and all(re.search(r"\d", name) for name in pictures)
    assert view.locator(".sheet").evaluate_all("nodes => nodes.every(node => node.ariaLabel)")


def test_the_language_is_switched(page: Any) -> None:
    view = show(page)
    english = view.locator("#play-entropy .axis").all_text_contents()
    page.locator("#page-language").click()
    assert view.locator("h2").text_content() == "遊樂場"
    assert view.locator("#play-entropy .axis").all_text_contents() == ["維度 d", "熵（nat）"] != english
    assert "正確率" in view.locator("#play-strength svg").get_attribute("aria-label")
    assert view.locator("#play-cat thead th").first.text_content() == "詞"
    assert view.locator("[data-zh]").evaluate_all("nodes => nodes.filter(node => node.lang !== 'zh-Hant').length") == 0
    page.locator("#page-language").click()
    assert view.locator("#play-entropy .axis").all_text_contents() == english


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1000, 1600])
def test_nothing_sticks_out(page: Any, width: int, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    view = show(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for sheet in view.locator(".sheet").all():
        assert sheet.evaluate("node => node.scrollWidth <= node.clientWidth + 1"), sheet.get_attribute("class")
    sizes = view.locator("svg").evaluate_all(
        "nodes => nodes.map(node => node.clientWidth <= node.parentNode.clientWidth)"
    )
    assert all(sizes)
