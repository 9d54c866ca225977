"""Printed numbers as one more draw of a protocol: one test each, corrected over the numbers of a table."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from attnrepro import stats
from attnrepro.results.published import PublishedLine

ALPHA = 0.05
LEAST_SEEDS = 5


@dataclass(frozen=True)
class Protocol:
    """One way, declared before the run, in which the source may have obtained its number.

    ``expected`` and ``se`` are what an estimator of that design gives; ``samples``, where given, are
    simulated or trained values of it (on a test set of that design's size) and take their place. Printed
    numbers that depend on each other (x and x / sqrt(d), say) share one family id ``number``; empty: this
    number alone.
    """

    name: str
    expected: float
    se: float
    samples: tuple[float, ...] = ()
    number: str = ""


@dataclass
class ProtocolTest:
    """Test of one printed line under one protocol; ``run_protocol_tests`` fills in the results.

    ``group`` names what Holm counts together. ``adjusted`` is p after Holm, ``joint`` Hotelling's p of all
    numbers of the group; nan where the samples carry no such test, and ``how`` says why or which test it was.
    """

    line: PublishedLine
    protocol: Protocol
    group: str
    p: float = math.nan
    adjusted: float = math.nan
    joint: float = math.nan
    how: str = ""

    @property
    def family(self) -> Hashable:
        """What counts as one number: the id given, else the same print of the same quantity."""
        line = self.line
        own = (line.axes, line.quantity, line.statistic, line.printed, line.low, line.high)
        return self.protocol.number or own

    @property
    def note(self) -> str:
        """Protocol, p and test as they stand in a table."""
        p = "undecided" if math.isnan(self.adjusted) else f"p={self.adjusted:.3g}"
        joint = "" if math.isnan(self.joint) else f", joint p={self.joint:.3g}"
        return f"{self.protocol.name} {p} ({self.how}{joint})"


def run_protocol_tests(tests: Sequence[ProtocolTest]) -> None:
    """Fill in all tests of a table; Holm and the joint p are over the members of a class and group."""
    groups: dict[tuple[str, str], list[ProtocolTest]] = {}
    for test in tests:
        groups.setdefault((test.line.klass, test.group), []).append(test)
    for members in groups.values():
        count = len({test.family for test in members})
        for test in members:
            test.p, test.how = _single(test.line, test.protocol, count)
        decided = [test for test in members if not math.isnan(test.p)]
        adjusted = stats.holm_families([test.p for test in decided], [test.family for test in decided])
        for test, p in zip(decided, adjusted, strict=True):
            test.adjusted = p
        joint = _joint(members)
        for test in members:
            test.joint = joint


def _single(line: PublishedLine, protocol: Protocol, count: int) -> tuple[float, str]:
    """p of a printed number, and the test used, in a table of ``count`` independent numbers."""
    samples, size = protocol.samples, len(protocol.samples)
    if not samples:
        z = stats.z_score(line.nearest(protocol.expected) - protocol.expected, protocol.se, line.resolution)
        return stats.z_p(z), f"z={z:.3g}"
    # The smallest rank p is 2 / (S + 1); it must be able to pass Holm: S >= 239 for six numbers at 5 %.
    if (size + 1) * ALPHA >= 2 * count * (1 - 1e-12):
        low, high = line.bounds
        low = min(*samples, high) if math.isinf(low) else low
        high = max(*samples, low) if math.isinf(high) else high
        return stats.rank_p((low + high) / 2, (high - low) / 2, samples), f"rank among {size}"
    if size < LEAST_SEEDS:
        return math.nan, f"{size} seeds, {LEAST_SEEDS} are needed"
    if stats.is_bistable(samples):
        return math.nan, f"{size} seeds, some stuck: too few for a rank test"
    printed = line.nearest(float(np.mean(samples)))
    return stats.t_prediction_p(printed, line.resolution, samples), f"t, {size} seeds"


def _joint(members: Sequence[ProtocolTest]) -> float:
    """Hotelling's p of all independent numbers of a protocol at once; nan where its samples carry none."""
    first: dict[Hashable, ProtocolTest] = {}
    for test in members:
        first.setdefault(test.family, test)
    sizes = {len(test.protocol.samples) for test in first.values()}
    if len(first) < 2 or len(sizes) != 1 or min(sizes) <= len(first):
        return math.nan
    if any(stats.is_bistable(test.protocol.samples) for test in first.values()):
        return math.nan
    matrix = np.array([test.protocol.samples for test in first.values()])
    mean = matrix.mean(axis=1)
    point = [test.line.nearest(float(m)) for test, m in zip(first.values(), mean, strict=True)]
    rounding = np.diag([test.line.resolution**2 / 3 for test in first.values()])
    return stats.hotelling_p(point, mean, np.cov(matrix) + rounding, matrix.shape[1])
