"""The typed configuration: one sentence for what is wrong, one key for what means the same; and every YAML."""

from __future__ import annotations

import ast
import csv
import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from attnrepro import config, paths
from attnrepro.app.precheck import make_plan
from attnrepro.config import BadInput, Cell, Config, distinct, in_range, load_yaml, make_cell, one_of, table_module

REPOSITORY = Path(__file__).resolve().parents[1]
TABLES = paths.table_names()


@dataclass
class Params:
    width: int
    rate: float
    name: str
    scaled: list[bool]
    sizes: list[int]

    def __post_init__(self) -> None:
        in_range(self, width=(1, 100), rate=(0, math.inf), sizes=(2, 64))
        one_of(self, name=("red", "blue"))
        distinct(self, "sizes")


@dataclass
class Grown(Params):
    depth: int = field(default=3, metadata={"as_before": 3})
    stops: list[int] = field(default_factory=lambda: [1, 2], metadata={"as_before": [1, 2]})


def raw(**changes: Any) -> dict[str, Any]:
    """A composed configuration as Hydra hands it over; `a.b` is changed by `a__b`."""
    result: dict[str, Any] = {
        "table": "made_up",
        "title": "A title",
        "document": "000",
        "question": "Why?",
        "how_to_read": "As it stands.",
        "scale": "cpu",
        "seeds": [0, 1],
        "params": {"width": 8, "rate": 0.1, "name": "red", "scaled": [False, True], "sizes": [16, 4]},
        "trainer": {"accelerator": "auto", "precision": "32-true", "threads": 1},
        "tracking": {"mode": "disabled", "project": "attnrepro"},
    }
    for name, value in changes.items():
        *nodes, last = name.split("__")
        at = result
        for node in nodes:
            at = at[node]
        at[last] = value
    return result


def check(given: DictConfig | dict[str, Any], kind: type = Params) -> Config:
    """The typed configuration of a made-up table with these parameters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "table_module", lambda table: SimpleNamespace(Params=kind))
        return config.typed(given)


def cell(kind: type = Params, hardware: str = "here", inputs: str = "", **changes: Any) -> Cell:
    return make_cell(check(raw(**changes), kind), accelerator="cpu", hardware=hardware, inputs=inputs)


# --- one sentence for what is wrong ---


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        # the wrong type
        ("params__width", "wide", ["params.width", "wide"]),
        ("params__width", 8.5, ["params.width", "8.5"]),
        ("params__width", True, ["params.width", "True"]),
        ("params__width", [8], ["params.width"]),
        ("params__width", {"a": 1}, ["params.width"]),
        ("params__rate", "fast", ["params.rate", "fast"]),
        ("params__scaled", ["maybe"], ["params.scaled", "maybe"]),
        ("params__scaled", True, ["params.scaled"]),
        ("params__sizes", 16, ["params.sizes"]),
        ("params__sizes", [16, "many"], ["params.sizes", "many"]),
        ("params__name", ["red"], ["params.name"]),
        ("params", 5, ["params"]),
        ("params", [], ["params"]),
        ("trainer", "cpu", ["trainer"]),
        ("seeds", 0, ["seeds"]),
        ("seeds", ["a"], ["seeds", "a"]),
        ("trainer__threads", "all", ["trainer.threads", "all"]),
        # nothing where something must be
        ("params__width", None, ["params.width"]),
        ("params__scaled", None, ["params.scaled"]),
        ("params__sizes", [4, None], ["params.sizes"]),
        ("params", None, ["params"]),
        ("seeds", None, ["seeds"]),
        ("title", None, ["title"]),
        ("trainer__precision", None, ["trainer.precision"]),
        # out of range
        ("params__width", 0, ["params.width=0", "between 1 and 100"]),
        ("params__width", 101, ["params.width=101", "between 1 and 100"]),
        ("params__rate", -0.5, ["params.rate=-0.5", "between 0 and inf"]),
        ("params__rate", math.nan, ["params.rate=nan"]),
        ("params__sizes", [4, 65], ["params.sizes=[4,65]", "between 2 and 64"]),
        ("params__sizes", [], ["params.sizes=[]", "at least one"]),
        ("params__sizes", [4, 4], ["params.sizes=[4,4]", "each once"]),
        ("params__name", "green", ["params.name=green", "red, blue"]),
        ("seeds", [], ["seeds=[]"]),
        ("seeds", [1, 1], ["seeds=[1,1]"]),
        ("seeds", [-1], ["seeds=[-1]"]),
        ("scale", "tiny", ["scale=tiny", "smoke, cpu, full"]),
        ("scale", "auto", ["scale=auto"]),  # resolved before a key is made from it
        ("stale", "drop", ["stale=drop"]),
        ("kind", "guessed", ["kind=guessed"]),
        ("trainer__threads", 0, ["trainer.threads=0"]),
        ("trainer__precision", "8-true", ["trainer.precision=8-true", "32-true"]),
        ("trainer__accelerator", "tpu", ["trainer.accelerator=tpu"]),
        ("tracking__mode", "sometimes", ["tracking.mode=sometimes"]),
        ("tracking__project", "a/b", ["tracking.project="]),
        ("tracking__probe_timeout", 0, ["tracking.probe_timeout=0"]),
        # no value
        ("params__width", "???", ["params.width has no value", "params.width=<value>"]),
        ("title", "???", ["title has no value"]),
        ("trainer__threads", "???", ["trainer.threads has no value"]),
        # unknown
        ("params__wdith", 8, ["unknown key params.wdith"]),
        ("trainer__thread", 1, ["unknown key trainer.thread"]),
        ("tracking__server", "x", ["unknown key tracking.server"]),
        ("seed", 1, ["unknown key seed"]),
        # interpolations that lead nowhere
        ("params__width", "${nowhere.width}", ["params.width", "nowhere.width"]),
        ("params__width", "${params.width}", ["params.width"]),
        ("params__width", "${oc.env:SURELY_NOT_SET}", ["params.width", "SURELY_NOT_SET"]),
        ("params__width", "${nosuch:1}", ["params.width", "nosuch"]),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_full_key(name: str, value: Any, words: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        check(raw(**{name: value}))
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert all(word in sentence for word in words), sentence
    # The reader of the sentence has never heard of these.
    assert not re.search(r"ListConfig|DictConfig|AnyNode|NoneType|subclass", sentence), sentence


@pytest.mark.parametrize("name", ["params__width", "params__sizes", "trainer__threads", "seeds", "title"])
def test_a_key_that_is_left_out_is_asked_for(name: str) -> None:
    *nodes, last = name.split("__")
    changed = raw()
    del (changed[nodes[0]] if nodes else changed)[last]
    with pytest.raises(BadInput) as caught:
        check(changed)
    assert str(caught.value).startswith(f"{name.replace('__', '.')} has no value")


@pytest.mark.parametrize("table", ["", None, "surely_no_table", "sqrt_d_entropy/..", "sqrt_d_entropy.table"])
def test_a_table_that_does_not_exist_is_no_traceback(table: str | None) -> None:
    with pytest.raises(BadInput) as caught:
        config.typed(raw(table=table))
    assert "\n" not in str(caught.value)
    assert "table" in str(caught.value)


def test_checking_changes_nothing_in_the_configuration_given() -> None:
    given = raw(params__width="${trainer.threads}")
    node = OmegaConf.create(given)
    assert check(node).params.width == 1
    assert OmegaConf.to_container(node) == given


# --- one key for what means the same ---


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("params__scaled", [[False, True], [0, 1], ["no", "yes"], ["false", "true"], ["off", "on"], ["False", 1]]),
        ("params__rate", [64, 64.0, "64", "64.0", "6.4e1"]),
        ("params__rate", [math.inf, "inf", "Infinity"]),
        ("params__width", [8, "8"]),
        ("trainer__threads", [1, "1"]),
        ("seeds", [[0, 1], ["0", "1"]]),
    ],
)
def test_values_that_mean_the_same_have_one_key(name: str, values: list[Any]) -> None:
    assert len({cell(**{name: value}).key for value in values}) == 1


def test_an_interpolation_has_the_key_of_its_value() -> None:
    assert cell(params__width="${trainer.threads}").key == cell(params__width=1).key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("params__width", 9),
        ("params__rate", 0.10000000000000002),
        ("params__name", "blue"),
        ("params__scaled", [True, False]),  # the order of a list is the order of its rows
        ("params__sizes", [4, 16]),
        ("params__sizes", [16]),
        ("seeds", [1, 0]),
        ("seeds", [0]),
        ("seeds", [0, 1, 2]),
        ("scale", "smoke"),
        ("trainer__precision", "64-true"),
        ("table", "another"),
    ],
)
def test_what_can_change_the_rows_changes_the_key(name: str, value: Any) -> None:
    assert cell(**{name: value}).key != cell().key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("title", "Another"),
        ("question", "What?"),
        ("results", "/somewhere/else"),
        ("stale", "rerun"),
        ("scales", {"cpu": {"width": 5}}),
        ("tracking__mode", "offline"),
        ("tracking__project", "other"),
        ("trainer__threads", 2),
        ("trainer__accelerator", "cpu"),
    ],
)
def test_what_cannot_change_the_rows_leaves_the_key(name: str, value: Any) -> None:
    assert cell(**{name: value}).key == cell().key


def test_only_timing_tables_have_hardware_and_threads_in_their_key() -> None:
    assert cell(hardware="there").key == cell(hardware="here").key
    timed = cell(timing=True)
    assert timed.key != cell().key
    assert cell(timing=True, hardware="here").key == timed.key
    assert cell(timing=True, hardware="there").key != timed.key
    assert cell(timing=True, trainer__threads=2).key != timed.key
    assert cell(timing=True, title="Another").key == timed.key


def test_the_rows_read_are_part_of_the_key() -> None:
    assert len({cell(inputs=inputs).key for inputs in ("", "a", "b")}) == 3


def test_a_parameter_added_later_leaves_old_keys_as_they_were() -> None:
    assert cell(Grown).key == cell().key
    assert cell(Grown, params__depth="3", params__stops=[1, 2]).key == cell().key
    assert len({cell(Grown).key, cell(Grown, params__depth=4).key, cell(Grown, params__stops=[2, 1]).key}) == 3
    assert "depth" not in cell(Grown).science()["params"]  # type: ignore[operator]


def test_a_key_does_not_depend_on_the_order_in_which_things_stand() -> None:
    backwards = dict(reversed(raw()["params"].items()))
    assert cell(params=backwards).key == cell().key


def test_keys_stay_what_they_are() -> None:
    """A change of this key makes every recorded cell unfindable."""
    assert re.fullmatch("[0-9a-f]{12}", cell().key)
    assert (cell().key, cell(timing=True, params__rate=math.inf).key) == ("6ebd457a3f4c", "b037618bf9c0")


def test_a_cell_is_what_was_asked_for() -> None:
    made = cell(params__rate="64")
    assert (made.table, made.scale, made.seeds, made.precision) == ("made_up", "cpu", (0, 1), "32-true")
    assert (made.params.rate, type(made.params.rate), made.params.scaled) == (64.0, float, [False, True])
    assert type(made.params) is Params


# --- every YAML ---


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def yaml_path(table: str) -> Path:
    return paths.conf_dir() / "experiment" / f"{table}.yaml"


def test_there_are_tables() -> None:
    assert "sqrt_d_entropy" in TABLES
    assert {path.name for path in (REPOSITORY / "experiments").iterdir() if path.name[0] not in "_."} == set(TABLES)


def test_the_yaml_lists_every_parameter_and_no_other(table: str) -> None:
    listed = load_yaml(yaml_path(table))["params"]
    assert list(listed) == [f.name for f in dataclasses.fields(table_module(table).Params)]


def test_the_yaml_says_what_the_table_is(table: str) -> None:
    content = load_yaml(yaml_path(table))
    assert content["table"] == table
    for name in ("title", "question", "how_to_read"):
        assert content[name].strip() == content[name] and len(content[name]) > 5, name
    assert re.fullmatch(r"00[0-4]", content["document"])
    assert content["question"].endswith("?")
    assert make_plan([f"experiment={table}", "scale=cpu"], check_inputs=False).cells[0].cell.seeds
    assert set(content["scales"]) == {"smoke", "cpu", "full"}
    assert len({tuple(sizes) for sizes in content["scales"].values()}) == 1
    assert content["hydra"]["mode"] == "MULTIRUN"
    assert "params" in content["hydra"]["sweeper"]


def test_the_yaml_opens_with_a_header(table: str) -> None:
    lines = yaml_path(table).read_text().splitlines()
    assert lines[0] == "# @package _global_"
    header = "\n".join(line for line in lines[: next(i for i, line in enumerate(lines) if line[:1] != "#")])
    content = load_yaml(yaml_path(table))
    assert re.search(rf"^# Document +{content['document']}\b", header, re.MULTILINE)
    assert re.search(rf"^# Command +attnrepro experiment={table}\b", header, re.MULTILINE)
    assert re.search(r"^# Time .*\d.* (s|seconds|min|minutes)\b.*CPU", header, re.MULTILINE)
    assert re.search(r"^# +.*\bGPU", header, re.MULTILINE)
    assert re.search(r"^# Claim", header, re.MULTILINE)
    assert re.search(r"^# Reading", header, re.MULTILINE)


@pytest.mark.parametrize("scale", ["smoke", "cpu", "full"])
def test_every_cell_of_the_table_types_at_every_scale(table: str, scale: str, tmp_path: Path) -> None:
    plan = make_plan(
        [f"experiment={table}", f"scale={scale}", "tracking=disabled", f"results={tmp_path}"], check_inputs=False
    )
    assert {planned.cell.scale for planned in plan.cells} == {scale}
    assert len({planned.cell.key for planned in plan.cells}) == len(plan.cells) == len(plan.to_run)
    if scale == "smoke":
        assert len(plan.cells) <= 16


def test_smoke_takes_every_value_of_every_axis(table: str, tmp_path: Path) -> None:
    def values(scale: str) -> dict[str, set[str]]:
        plan = make_plan([f"experiment={table}", f"scale={scale}", f"results={tmp_path}"], check_inputs=False)
        found: dict[str, set[str]] = {}
        for name in axes:
            found[name] = {repr(getattr(planned.cell.params, name)) for planned in plan.cells}
        return found

    content = load_yaml(yaml_path(table))
    grid = content["hydra"]["sweeper"]
    also = grid.get("also", [])
    # A grid that each scale lists for itself: sizes differ, but no kind of cell may go untried.
    by_scale = also == "${scales.${scale}.also}"
    parts = content["scales"]["cpu"]["also"] if by_scale else also
    listed = [(key, value) for part in (grid["params"], *parts) for key, value in part.items()]
    listed += [(f"params.{key}", value) for key, value in content["params"].items() if "${scales." in str(value)]
    sized = {key for key, value in listed if "${" in str(value)}
    axes = {key.removeprefix("params.") for key, _ in listed if key.startswith("params.") and key not in sized}
    smoke, cpu = values("smoke"), values("cpu")
    if by_scale:
        words = {name for name, found in cpu.items() if all(value.startswith("'") for value in found)}
        assert words
        assert all(cpu[name] <= smoke[name] for name in words)
    else:
        assert smoke == cpu


def test_the_scales_are_sizes_of_one_experiment(table: str, tmp_path: Path) -> None:
    """They differ in the parameters that the `scales` block sizes, and in nothing else."""
    content = load_yaml(yaml_path(table))
    sized = {name for name, value in content["params"].items() if "${scales." in str(value)}
    first = {}
    for scale in ("smoke", "cpu", "full"):
        plan = make_plan([f"experiment={table}", f"scale={scale}", "hydra.mode=RUN", f"results={tmp_path}"])
        first[scale] = {k: v for k, v in dataclasses.asdict(plan.cells[0].cell.params).items() if k not in sized}
    assert first["smoke"] == first["cpu"] == first["full"]


# --- no published number in the code ---


def digits(number: str) -> int:
    """Significant digits of a decimal as it is written; zeros at the end of an integer do not count."""
    mantissa = re.sub(r"[eE].*", "", number.replace("_", "").lstrip("+-"))
    if "." not in mantissa:
        mantissa = mantissa.rstrip("0")
    return len(mantissa.replace(".", "").lstrip("0"))


def literals(source: str) -> Iterator[tuple[str, int]]:
    """Numbers of at least three digits that stand in code or in its texts, with their lines; not in docstrings."""
    tree = ast.parse(source)
    told = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in told:
            continue
        if isinstance(node.value, str):
            numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])", node.value)
        elif isinstance(node.value, int | float) and not isinstance(node.value, bool):
            numbers = [(ast.get_source_segment(source, node) or repr(node.value)).replace("_", "")]
        else:
            continue
        yield from ((number, node.lineno) for number in numbers if digits(number) >= 3)


def printed_numbers() -> dict[str, str]:
    """Published numbers of at least three digits, with a claim that prints each."""
    found: dict[str, str] = {}
    for path in sorted(paths.published_dir().glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                for column in ("published", "low", "high"):
                    number = line.get(column) or ""
                    if number and digits(number) >= 3:
                        found[number.lstrip("+-")] = line["claim"]
    return found


def is_printed(literal: str, number: str) -> bool:
    """Whether a literal is a printed number, or rounds to it at the last printed digit."""
    try:
        value, printed = float(literal), float(number)
    except ValueError:
        value, printed = float(int(literal, 0)), float(number)
    if "e" in number.lower() or "." not in number:
        return value == printed
    return abs(value - printed) <= 0.5 * 10.0 ** -len(number.partition(".")[2]) * (1 + 1e-9)


# Literals that are a published number and stand in the code for another reason, which is given here.
ALLOWED = {
    ("sqrt_d_entropy", "1024"): "the exponent of float64, from which the theory works out where exp overflows",
    ("sqrt_d_entropy", "256"): "largest layer on which initialisers are tried; printed are 256 layers",
    ("attention_identities", "4096"): "an upper limit of sizes; printed are 4096 tokens of an image",
    ("permutation_symmetry", "4096"): "an upper limit of sizes; printed are 4096 tokens of an image",
    ("long_range_relation", "1024"): "an upper limit of sizes; printed is an exponent",
    ("long_range_relation", "4096"): "an upper limit of widths; printed are 4096 tokens of an image",
    ("predecessor_global_context", "1024"): "an upper limit of sizes; printed is an exponent",
    ("position_strength", "4096"): "sequences held at once; printed are 4096 tokens of an image",
}


def test_no_published_number_stands_in_the_code_of_a_table() -> None:
    printed = printed_numbers()
    assert {"0.0886", "32.126"} <= set(printed)
    found, excused = [], set()
    for path in sorted((REPOSITORY / "experiments").rglob("*.py")):
        for literal, line in literals(path.read_text(encoding="utf-8")):
            claims = [claim for number, claim in printed.items() if is_printed(literal, number)]
            if claims and (path.parent.name, literal) in ALLOWED:
                excused.add((path.parent.name, literal))
            elif claims:
                found.append(f"{path.relative_to(REPOSITORY)}:{line} {literal} is {claims}")
    assert found == []
    assert excused == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "x = 0.0886",
        "x = -0.0886",
        "x = [8.86e-2]",
        "f(0.088_6)",
        "x = 0.08861234",
        "x = 'it was 0.0886'",
        "f'{a} 0.0886'",
    ],
)
def test_a_planted_published_number_is_found(source: str) -> None:
    assert [number for number, _ in literals(source) if is_printed(number, "0.0886")]


@pytest.mark.parametrize(
    "source", ['"""It was 0.0886."""', "x = 0.0887", "# 0.0886", "x = 1000", "x = 0.09", "x = True"]
)
def test_other_numbers_are_not(source: str) -> None:
    assert not [number for number, _ in literals(source) if is_printed(number, "0.0886")]
