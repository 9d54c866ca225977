"""The register of printed numbers: ``results/published/<table>.csv`` and ``not_measured.csv``."""

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from attnrepro.results.rows import STATISTICS

CLASSES = ("exact", "structural", "sampling", "single_run", "ordinal", "scaling", "literature")
NOT_MEASURED = "not_measured.csv"

_TAIL = ("quantity", "statistic", "published", "low", "high", "class", "margin", "reason")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_CLAIM = re.compile(r"[^\s,;]+")
_NEED_NUMBER = ("exact", "sampling", "single_run")
_MARGIN_WORDS = {"single_run": ("", "declared"), "literature": ("", "confirmed", "contradicted")}


def parse_number(text: str) -> tuple[float, float]:
    """Value of a printed number and its resolution r, half a unit of the last printed digit.

    ``1.779`` gives r = 0.0005, ``6.661e-16`` gives 5e-20, ``3000`` gives 0.5.

    Raises:
        ValueError: the text is not a plain decimal number.
    """
    if not _NUMBER.fullmatch(text) or math.isinf(float(text)):
        raise ValueError(f"{text!r} is not a decimal number")
    exponent = int(Decimal(text).as_tuple().exponent)
    return float(text), float(Decimal(5).scaleb(exponent - 1))


@dataclass(frozen=True)
class PublishedLine:
    """One printed number, or one wording, with the class and margin it is judged by and the reason for them.

    ``axes`` are (name, text) pairs in column order, blank text where an axis does not apply. ``published``
    is the value of ``printed``; ``low`` and ``high``, where given, replace published ± r (either alone: no
    other end). ``margin`` means: class scaling, the relative margin; class sampling, the number of draws n
    the source states; class single_run, ``declared`` if the source states its protocol; class literature,
    ``confirmed`` or ``contradicted`` by the reference that ``reason`` names; else empty.

    Raises:
        ValueError: one sentence on what does not fit.
    """

    claim: str
    axes: tuple[tuple[str, str], ...]
    quantity: str
    statistic: str
    published: float | None
    printed: str
    low: float | None
    high: float | None
    klass: str
    margin: str
    reason: str

    def __post_init__(self) -> None:
        if not _CLAIM.fullmatch(self.claim):
            raise ValueError(f"claim {self.claim!r} is not an id without spaces, commas and semicolons")
        if self.klass not in CLASSES:
            raise ValueError(f"class {self.klass!r} is none of {', '.join(CLASSES)}")
        if not self.quantity or not self.reason:
            raise ValueError("quantity and reason must not be empty")
        if self.statistic not in STATISTICS and (self.statistic or self.klass != "literature"):
            raise ValueError(f"statistic {self.statistic!r} is none of {', '.join(STATISTICS)}")
        if self.printed and parse_number(self.printed)[0] != self.published:
            raise ValueError(f"published {self.published} is not the printed number {self.printed!r}")
        if not self.printed and self.published is not None:
            raise ValueError("a published number needs its printed form")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        if not self.has_number and (self.klass in _NEED_NUMBER or (self.klass == "scaling" and self.margin)):
            raise ValueError(f"class {self.klass} needs a published number or a range")
        self._check_margin()

    def _check_margin(self) -> None:
        if self.klass == "scaling" and self.margin:
            if not parse_number(self.margin)[0] > 0:
                raise ValueError(f"margin {self.margin!r} of class scaling is not a positive number")
        elif self.klass == "sampling" and self.margin:
            if not self.margin.isascii() or not self.margin.isdigit() or int(self.margin) < 1:
                raise ValueError(f"margin {self.margin!r} of class sampling is not a number of draws")
        elif self.margin not in (words := _MARGIN_WORDS.get(self.klass, ("",))):
            allowed = " or ".join(filter(None, words)) or "empty"
            raise ValueError(f"margin {self.margin!r} of class {self.klass} is not {allowed}")

    @property
    def has_number(self) -> bool:
        """Whether a number or a range was printed at all."""
        return self.published is not None or self.has_range

    @property
    def has_range(self) -> bool:
        """Whether ``low`` or ``high`` replaces published ± r."""
        return self.low is not None or self.high is not None

    @property
    def resolution(self) -> float:
        """Half a unit of the last printed digit; 0 where a range or nothing was printed."""
        return 0.0 if self.has_range or not self.printed else parse_number(self.printed)[1]

    @property
    def bounds(self) -> tuple[float, float]:
        """What the print covers: published ± r, or the range (an end that is not given is infinite).

        Raises:
            ValueError: nothing was printed.
        """
        if self.has_range:
            return (
                -math.inf if self.low is None else self.low,
                math.inf if self.high is None else self.high,
            )
        if self.published is None:
            raise ValueError(f"claim {self.claim} has no printed number")
        return self.published - self.resolution, self.published + self.resolution

    @property
    def widened(self) -> tuple[float, float]:
        """``bounds`` of class scaling with its relative margin on both sides.

        Raises:
            ValueError: nothing was printed, or no margin was declared.
        """
        margin = parse_number(self.margin)[0]
        low, high = self.bounds
        return low - margin * abs(low), high + margin * abs(high)

    def contains(self, t: float) -> bool:
        """Whether ``t`` is what was printed, both ends included and the rounding of the ends allowed for."""
        low, high = self.bounds
        slack = 8 * 2.0**-52 * max(abs(end) for end in (low, high) if math.isfinite(end))
        return low - slack <= t <= high + slack

    def nearest(self, t: float) -> float:
        """The printed number, or the value of the printed range that lies nearest to ``t``."""
        if self.published is not None and not self.has_range:
            return self.published
        low, high = self.bounds
        return min(max(t, low), high)


def _records(path: Path, head: tuple[str, ...], tail: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines of a CSV file as (line number, column to text); ``head`` and ``tail`` frame the axes columns."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        columns = next(reader, [])
        axes = columns[len(head) : len(columns) - len(tail)]
        if columns != [*head, *axes, *tail] or (axes and not tail):
            wanted = ", ".join([*head, "<axes>", *tail] if tail else head)
            missing = [name for name in (*head, *tail) if name not in columns]
            lacks = f", and {', '.join(missing)} is missing" if missing else ""
            raise ValueError(f"{path} line 1: the columns must be {wanted}{lacks}")
        if len(set(columns)) != len(columns) or "" in columns:
            raise ValueError(f"{path} line 1: the columns must have different names that are not empty")
        for cells in reader:
            if len(cells) != len(columns):
                raise ValueError(f"{path} line {reader.line_num}: {len(cells)} values for {len(columns)} columns")
            yield reader.line_num, {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}


def _line(record: dict[str, str]) -> PublishedLine:
    def number(column: str) -> float | None:
        return parse_number(record[column])[0] if record[column] else None

    return PublishedLine(
        claim=record["claim"],
        axes=tuple((name, text) for name, text in record.items() if name not in ("claim", *_TAIL)),
        quantity=record["quantity"],
        statistic=record["statistic"],
        published=number("published"),
        printed=record["published"],
        low=number("low"),
        high=number("high"),
        klass=record["class"],
        margin=record["margin"],
        reason=record["reason"],
    )


def load_published(path: Path) -> list[PublishedLine]:
    """Lines of ``results/published/<table>.csv`` in file order.

    Raises:
        ValueError: a column, class, number, margin or duplicate that does not fit, with file and line number.
    """
    lines: list[PublishedLine] = []
    seen: dict[tuple[object, ...], int] = {}
    for number, record in _records(path, ("claim",), _TAIL):
        try:
            line = _line(record)
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
        first = seen.setdefault((line.claim, line.axes, line.quantity, line.statistic), number)
        if first != number:
            raise ValueError(f"{path} line {number}: claim {line.claim} repeats line {first}")
        lines.append(line)
    return lines


def load_not_measured(path: Path) -> dict[str, str]:
    """Claims that no table answers, with the reason, from ``results/published/not_measured.csv``.

    Raises:
        ValueError: wrong columns, a missing id or reason, or an id that stands there twice, with file and line number.
    """
    reasons: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, record in _records(path, ("claim", "reason"), ()):
        claim, reason = record["claim"], record["reason"]
        if not _CLAIM.fullmatch(claim) or not reason:
            raise ValueError(f"{path} line {number}: a claim id and a reason are needed")
        if lines.setdefault(claim, number) != number:
            raise ValueError(f"{path} line {number}: claim {claim} repeats line {lines[claim]}")
        reasons[claim] = reason
    return reasons


def register(published_dir: Path) -> dict[str, Path]:
    """Every claim id with the one file that answers for it: all tables and ``not_measured.csv``.

    An id may stand in several lines of its file (a vector of numbers), never in two files.

    Raises:
        ValueError: an id in two files, or a file that does not load.
    """
    owner: dict[str, Path] = {}
    for path in sorted(published_dir.glob("*.csv")):
        not_measured = path.name == NOT_MEASURED
        claims = load_not_measured(path) if not_measured else [line.claim for line in load_published(path)]
        for claim in claims:
            if owner.setdefault(claim, path) != path:
                raise ValueError(f"{path}: claim {claim} also stands in {owner[claim].name}")
    return owner
