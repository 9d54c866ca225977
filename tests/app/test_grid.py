"""The outer grid of a table: which points its file and the command line ask for together."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig

from attnrepro.app.grid import Setting, expand
from attnrepro.config import BadInput

PARSER = OverridesParser.create()


def points(*grids: list[str], line: list[str] | None = None, star: bool = False) -> list[str]:
    """Points as the texts that Hydra gets, joined by spaces."""
    found = expand([PARSER.parse_overrides(grid) for grid in grids], PARSER.parse_overrides(line or []), star=star)
    return [" ".join(setting.text for setting in point) for point in found]


def settings(*line: str) -> list[Setting]:
    """What one command line asks for, point after point."""
    return [setting for point in expand([[]], PARSER.parse_overrides([*line]), star=False) for setting in point]


def test_a_grid_is_the_product_of_its_axes_in_their_order() -> None:
    assert points(["a=1,2", "b=x,y"]) == ["a=1 b=x", "a=1 b=y", "a=2 b=x", "a=2 b=y"]


def test_no_axis_is_one_point() -> None:
    assert points([]) == [""]
    assert points([], [], star=True) == [""]


def test_grids_are_united() -> None:
    assert points(["a=1,2"], ["b=x"], ["c=5"]) == ["a=1", "a=2", "b=x", "c=5"]


def test_a_point_of_two_grids_is_one_point_whatever_its_order() -> None:
    assert points(["a=1,2", "b=x"], ["b=x", "a=2,3"]) == ["a=1 b=x", "a=2 b=x", "b=x a=3"]
    assert points(["a=1,1,2"]) == ["a=1", "a=2"]


@pytest.mark.parametrize("star", [False, True])
def test_the_command_line_takes_the_place_of_an_axis(star: bool) -> None:
    assert points(["a=1,2,3", "b=x"], line=["a=7"], star=star) == ["a=7 b=x"]
    assert points(["a=1,2", "b=x"], line=["a=7,8"], star=star) == ["a=7 b=x", "a=8 b=x"]


def test_the_command_line_adds_an_axis_to_every_grid() -> None:
    assert points(["a=1,2"], ["b=x"], line=["c=5,6"]) == [
        *("a=1 c=5", "a=1 c=6", "a=2 c=5", "a=2 c=6"),
        *("b=x c=5", "b=x c=6"),
    ]


def test_grids_that_the_command_line_makes_equal_are_one() -> None:
    assert points(["a=1,2"], ["b=x"], line=["a=7", "b=y"]) == ["a=7 b=y"]


def test_the_last_value_of_a_key_wins() -> None:
    assert points([], line=["a=1", "a=2"]) == ["a=2"]


def test_a_star_takes_every_value_of_every_axis_once() -> None:
    assert points(["a=1,2,3", "b=x,y", "c=p,q"], star=True) == [
        *("a=1 b=x c=p", "a=2 b=x c=p", "a=3 b=x c=p", "a=1 b=y c=p", "a=1 b=x c=q"),
    ]


def test_a_star_of_several_grids_is_one_star_each() -> None:
    assert points(["a=1,2", "b=x,y"], ["c=5,6"], star=True) == ["a=1 b=x", "a=2 b=x", "a=1 b=y", "c=5", "c=6"]


def test_an_interval_is_refused_with_its_key() -> None:
    with pytest.raises(BadInput, match=r"^a\.b: only a list of values"):
        points(["a.b=interval(1,4)"])


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ("a=choice(1,2)", ["a=1", "a=2"]),
        ("a=range(1,4)", ["a=1", "a=2", "a=3"]),
        ("a=range(0,1,0.5)", ["a=0.0", "a=0.5"]),
        ("a=sort(3,1,2)", ["a=1", "a=2", "a=3"]),
    ],
)
def test_lists_of_values_may_be_written_in_other_ways(axis: str, expected: list[str]) -> None:
    assert points([axis]) == expected


@pytest.mark.parametrize("star", [False, True])
def test_an_axis_without_values_is_refused_with_its_key(star: bool) -> None:
    with pytest.raises(BadInput, match=r"^a\.b\b"):
        points(["c=1", "a.b=range(1,1)"], star=star)


VALUES: list[tuple[str, Any]] = [
    ("4", 4),
    ("-4", -4),
    ("0.5", 0.5),
    ("1e-3", 1e-3),
    ("inf", float("inf")),
    ("true", True),
    ("null", None),
    ("word", "word"),
    ("two words", "two words"),
    ("''", ""),
    ('"a,b"', "a,b"),
    ("'a=b'", "a=b"),
    ("'it\\'s'", "it's"),
    ('"say \\"no\\""', 'say "no"'),
    ("'4'", "4"),
    ("'true'", "true"),
    ("'[1]'", "[1]"),
    (r"a\,b", "a,b"),
    (r"'a\\'", "a\\"),
    ("/some/path-1.0", "/some/path-1.0"),
    ("'~/x'", "~/x"),
    ("'é値'", "é値"),
    ("[]", []),
    ("[1,2]", [1, 2]),
    ("[true,false]", [True, False]),
    ("['a b',c]", ["a b", "c"]),
    ("[[1],['2']]", [[1], ["2"]]),
    ("{a:1,b:[x,'y z']}", {"a": 1, "b": ["x", "y z"]}),
    ("${x.y}", "${x.y}"),
    ("${oc.env:HOME}", "${oc.env:HOME}"),
]


def plain(value: Any) -> Any:
    assert not isinstance(value, DictConfig | ListConfig)
    assert type(value) in (int, float, bool, str, list, dict, type(None)), type(value)
    for item in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        plain(item)
    return value


@pytest.mark.parametrize(("written", "meant"), VALUES)
@pytest.mark.parametrize("line", ["k={}", "k={},1", "k=1,{}"])
def test_what_hydra_gets_means_what_was_checked(written: str, meant: Any, line: str) -> None:
    """The precheck types `value`; the job that Hydra starts composes `text`."""
    (setting,) = [s for s in settings(line.format(written)) if line == "k={}" or s.value != 1 or s.value is True]
    assert (setting.key, plain(setting.value)) == ("k", meant)
    again = PARSER.parse_override(setting.text)
    assert again.get_key_element() == "k"
    assert not again.is_sweep_override()
    assert again.value() == meant and type(again.value()) is type(meant)


def test_a_group_is_swept_like_a_key() -> None:
    assert [(s.key, s.text, s.value) for s in settings("trainer=cpu,gpu")] == [
        ("trainer", "trainer=cpu", "cpu"),
        ("trainer", "trainer=gpu", "gpu"),
    ]


def test_a_key_that_is_forced_is_the_key() -> None:
    """`++a=1` is Hydra's way to say a=1 whether or not a is there."""
    assert [(s.key, s.value) for s in settings("++a.b=1")] == [("a.b", 1)]
    assert points(["a=1,2"], line=["++a=7"]) == ["a=7"]
