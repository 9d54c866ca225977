"""Tidy rows: one measurement a line, the only thing that cells record and tables are made from."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEAD = ("key", "scale", "source", "seed")
TAIL = ("quantity", "statistic", "unit", "n", "sd", "value", "status")
# Columns of results/tables/<table>.csv, after its axes.
TABLE_COLUMNS = (
    *("variant", "environment", "scale", "quantity", "statistic", "unit", "n", "n_failed", "estimate", "sd"),
    *("ci_low", "ci_high", "theory", "published", "claim", "class", "p", "verdict", "stale", "note"),
)
SOURCES = ("measured", "theory")
STATISTICS = (
    "value",
    "mean",
    "sd",
    "rms",
    "median",
    "share",
    "paired_difference",
    "slope",
    "crossover",
    "exact",
)


@dataclass(frozen=True)
class Row:
    """One measured or theoretical value.

    ``n`` and ``sd`` describe what stands behind a Monte-Carlo value: n independent draws (or clusters), so that
    its standard error is sd/sqrt(n). A trained model's value has n = 1 and no sd: its spread is over seeds.
    ``axes`` are named as in the configuration; an axis that does not apply is left out.
    """

    quantity: str
    value: float
    axes: Mapping[str, object] = field(default_factory=dict)
    source: str = "measured"
    statistic: str = "value"
    seed: int | None = None
    unit: str = ""
    n: int | None = None
    sd: float | None = None
    status: str = "ok"

    def __post_init__(self) -> None:
        if self.source not in SOURCES or self.statistic not in STATISTICS:
            raise ValueError(f"row {self.quantity}: unknown source {self.source!r} or statistic {self.statistic!r}")
        if self.source == "measured" and (self.seed is None or self.n is None):
            raise ValueError(f"row {self.quantity}: a measured row names its seed and its n")
        if self.status == "ok" and math.isnan(self.value):
            raise ValueError(f"row {self.quantity}: value is not a number but the status is ok")


def text(value: object) -> str:
    """A value as it stands in a CSV cell: numbers by ``repr``, whole floats as integers, None as blank."""
    if value is None:
        return ""
    if hasattr(value, "item"):  # a number of numpy or torch, whose repr is no number
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


def to_csv(rows: Iterable[Row], *, key: str, scale: str, axes: Sequence[str]) -> str:
    """Rows of one cell as CSV text, in the order given, which every measurement keeps fixed.

    Raises ``ValueError`` for an axis that is no axis of the table or has the name of another column.
    """
    if taken := set(axes) & {*HEAD, *TAIL}:
        raise ValueError(f"an axis must not be called {', '.join(sorted(taken))}: rows have a column of that name")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*HEAD, *axes, *TAIL])
    for row in rows:
        unknown = set(row.axes) - set(axes)
        if unknown:
            raise ValueError(f"row {row.quantity}: {sorted(unknown)} are not axes of the table")
        writer.writerow(
            [
                key,
                scale,
                row.source,
                text(row.seed),
                *(text(row.axes.get(axis)) for axis in axes),
                row.quantity,
                row.statistic,
                row.unit,
                text(row.n),
                "" if row.sd is None else repr(float(row.sd)),
                "" if math.isnan(row.value) else repr(float(row.value)),
                row.status,
            ]
        )
    return out.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a file as dictionaries of text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
