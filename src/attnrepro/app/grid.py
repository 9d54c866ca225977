"""A table's outer grid: which points the YAML and the command line ask for together."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override, Transformer, ValueType

from attnrepro.config import BadInput


@dataclass(frozen=True)
class Setting:
    """One ``key=value`` of a point: the text that Hydra gets and the value that it means."""

    key: str
    text: str
    value: Any


Point = tuple[Setting, ...]

# What the entry decided to run in this process, one list of overrides a job; the sweeper launches these. The
# precheck has expanded and checked the grid before Hydra's loop starts: doing it twice could give two answers.
jobs: list[list[str]] = []


def expand(grids: Sequence[Sequence[Override]], command_line: Sequence[Override], *, star: bool) -> list[Point]:
    """Points of the union of ``grids``, each with the command line's values in place of its own.

    ``star`` (scale smoke) takes every value of every axis once instead of every combination: the first value of
    each axis, then one axis at a time moved through its others.
    """
    points: dict[tuple[str, ...], Point] = {}
    for grid in grids:
        axes: dict[str, list[Setting]] = {}
        for override in [*grid, *command_line]:
            axes[override.key_or_group] = _settings(override)
        for key, axis in axes.items():
            if not axis:
                raise BadInput(f"{key}: the list of its values is empty")
        values = list(axes.values())
        for point in _star(values) if star else itertools.product(*values):
            points.setdefault(tuple(sorted(s.text for s in point)), tuple(point))
    return list(points.values())


def _star(axes: Sequence[Sequence[Setting]]) -> list[Point]:
    first = [axis[0] for axis in axes]
    arms = [(*first[:i], other, *first[i + 1 :]) for i, axis in enumerate(axes) for other in axis[1:]]
    return [tuple(first), *arms]


def _settings(override: Override) -> list[Setting]:
    key = override.key_or_group
    if not override.is_sweep_override():
        return [Setting(key, f"{key}={override.get_value_element_as_str()}", override.value())]
    if not override.is_discrete_sweep() or override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        raise BadInput(f"{key}: only a list of values (a,b,c) or range() can be swept, not an interval or a glob")
    texts = list(override.sweep_string_iterator())
    values = list(override.sweep_iterator(transformer=Transformer.identity))
    return [Setting(key, f"{key}={t}", _plain(v)) for t, v in zip(texts, values, strict=True)]


def _plain(value: Any) -> Any:
    """A swept element as plain data: Hydra leaves quoted strings wrapped, also inside lists."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.text if hasattr(value, "text") and hasattr(value, "quote") else value
