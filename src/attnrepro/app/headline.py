"""The one chart of a table that Weights & Biases draws, and the sketch on its card: chosen from its judged lines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from attnrepro.app import view

Line = Mapping[str, Any]


class Judged(Protocol):
    """What is needed of a `report.TableReport`."""

    name: str
    axes: tuple[str, ...]
    lines: list[dict[str, Any]]

    def shows(self, line: Line) -> bool:
        """Whether a line belongs to the group that is shown."""
        ...


# Lines that one chart can hold, and what each of them consists of.
SERIES = 6
PARTS = ("measured", "ci_low", "ci_high", "theory", "published", "published_low", "published_high")
# From this ratio of its ends on, an axis is logarithmic.
DECADES = 30.0


@dataclass(frozen=True)
class Headline:
    """A quantity along an axis, a series for each combination of the other axes.

    ``x`` is the axis (empty where no axis has numbers: then lines are counted), ``points`` the values to log, in the
    order of x: metric to value, x among them. ``titles`` says in words what each metric is.
    """

    table: str
    quantity: str
    statistic: str
    x: str
    log: bool
    points: list[dict[str, float]] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)

    @property
    def x_metric(self) -> str:
        """What stands on the x axis."""
        return f"{self.table}/{view.name(self.x or 'line')}"

    def part(self, metric: str) -> str:
        """Which of ``PARTS`` a metric is."""
        return metric.rsplit("/", 1)[1]

    def of(self, part: str) -> list[list[tuple[float, float]]]:
        """Points (x, value) of ``measured``, say, a list for each series."""
        found: dict[str, list[tuple[float, float]]] = {}
        for point in self.points:
            for metric, value in point.items():
                if metric != self.x_metric:
                    series = found.setdefault(metric.rsplit("/", 1)[0], [])
                    series += [(point[self.x_metric], value)] * (self.part(metric) == part)
        return list(found.values())


def headline(report: Judged) -> Headline | None:
    """What shows most of what was printed, along an axis of numbers if there is one; None without any value."""
    lines: list[Line] = [line for line in report.lines if report.shows(line) and _values(line)]
    if not lines:
        return None
    by_quantity: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        by_quantity.setdefault((line["quantity"], line["statistic"]), []).append(line)
    options = [
        (quantity, x, [line for line in members if not x or math.isfinite(_number(line[x]))])
        for quantity, members in by_quantity.items()
        for x in (*report.axes, "")
    ]
    (quantity, statistic), x, chosen = max(options, key=_shows_most)
    others = [axis for axis in report.axes if axis != x and len({line[axis] for line in chosen}) > 1] if x else []
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in chosen:
        groups.setdefault(tuple(line[axis] for axis in others), []).append(line)
    rank = sorted(groups, key=lambda at: (-sum("published" in _values(line) for line in groups[at]), -len(groups[at])))
    kept = [at for at in groups if at in rank[:SERIES]]
    numbers = sorted({float(line[x]) for at in kept for line in groups[at]}) if x else []
    log = bool(numbers) and numbers[0] > 0 and numbers[-1] / numbers[0] >= DECADES
    found = Headline(report.name, quantity, statistic, x, log)
    places: dict[float, dict[str, float]] = {}
    for at in kept:
        named = dict(zip(others, at, strict=True))
        words = ", ".join(f"{axis}={value}" for axis, value in named.items() if value)
        series = "/".join(f"{view.name(axis)}_{view.name(value)}" for axis, value in named.items() if value) or "all"
        for number, line in enumerate(groups[at]):
            where = float(line[x]) if x else float(number)
            for part, value in _values(line).items():
                metric = f"{report.name}/{series}/{part}"
                places.setdefault(where, {found.x_metric: where}).setdefault(metric, value)
                found.titles[metric] = f"{part.replace('_', ' ')}{f' ({words})' if words else ''}"
    found.points.extend(places[where] for where in sorted(places))
    return found


def _values(line: Line) -> dict[str, float]:
    """What can be drawn of a line: measured with its interval, theory, and what was printed, a number or a range."""
    drawn = {"measured": line.get("estimate"), "ci_low": line.get("ci_low"), "ci_high": line.get("ci_high")}
    printed = str(line.get("published") or "")
    low, dots, high = printed.partition("..")
    ends = {"published_low": low, "published_high": high} if dots else {"published": printed}
    numbers = {part: _number(value) for part, value in {**drawn, "theory": line.get("theory"), **ends}.items()}
    return {part: numbers[part] for part in PARTS if math.isfinite(numbers.get(part, math.nan))}


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _shows_most(option: tuple[tuple[str, str], str, Sequence[Line]]) -> tuple[int, ...]:
    """Printed numbers first, then an axis of at least three numbers, then at how many of them something was printed,
    then how much was printed, whether it has intervals, and how much was claimed and measured.
    """
    _, x, lines = option
    if x and len({line[x] for line in lines}) < 3:
        return (-1,)
    printed = [line for line in lines if "published" in _values(line)]
    places = len({line[x] for line in printed}) if x else 0
    claimed = sum(bool(line.get("claim")) for line in lines)
    uncertain = any("ci_low" in _values(line) for line in lines)
    return (int(bool(printed)), int(bool(x)), places, len(printed), int(uncertain), claimed, len(lines))
