"""What Weights & Biases shows of a cell: made from its rows alone, so that a run can be rebuilt from a CSV file."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnrepro.app.gather import estimate
from attnrepro.config import digest
from attnrepro.results.rows import HEAD, TAIL

TextRow = Mapping[str, str]
# Characters of a name that W&B shows.
LONGEST = 64
# What stands beside an estimate: the fields of `gather.estimate` and the ends of the names they get.
BESIDE = ("n", "sd", "ci_low", "ci_high")


def tags(document: str, scale: str, params: Mapping[str, object]) -> list[str]:
    """``document 002``, ``scale cpu``, and ``protocol A`` where the table has protocols and the cell is of one."""
    found = [f"document {document}", f"scale {scale}"]
    return [*found, f"protocol {params['protocol']}"] if params.get("protocol") else found


def run_name(label: str, key: str) -> str:
    """What sets a cell apart, in at most 64 characters: a longer one is cut and ends with the beginning of its key."""
    short = label.replace("params.", "")
    return short if len(short) <= LONGEST else f"{short[: LONGEST - 7]} {key[:6]}"


def run_config(science: Mapping[str, Any], *, key: str, code: str, document: str) -> dict[str, Any]:
    """The run's config: everything that can change the rows, the cell's key and the version of its code."""
    return {**science, "key": key, "code": code, "document": document, "kind": "cell"}


def inner_axes(rows: Sequence[TextRow], params: Mapping[str, object]) -> list[str]:
    """Axes along which the rows of one cell may differ: those that have no single value in its config."""
    columns = list(rows[0]) if rows else []
    axes = [name for name in columns if name not in (*HEAD, *TAIL)]
    return [axis for axis in axes if axis != "data" and isinstance(params.get(axis, []), list)]


def name(*parts: str) -> str:
    """A metric's name of letters, digits, ``_`` and ``/``, which is what W&B can sort, filter and plot by.

    A point becomes ``p`` and a minus before a number ``m``: ``strength_0p5``. What has no such letter at all (a word in
    Chinese) becomes six digits of its hash.
    """
    return "/".join(_name(part) for part in parts)


def _name(part: str) -> str:
    numbers = re.sub(r"(?<!\w)-(?=\d)|(?<=\de)-(?=\d)", "m", re.sub(r"(?<=\d)\.(?=\d)", "p", part))
    return re.sub(r"\W+", "_", numbers, flags=re.ASCII).strip("_") or digest(part)[:6]


def place(row: TextRow, axes: Iterable[str]) -> str:
    """The metric of a row: ``entropy/mean/scaled_true``."""
    along = [f"{name(axis)}_{name(row[axis])}" for axis in axes if row.get(axis)]
    return "/".join([name(row["quantity"], row["statistic"]), *along])


def summary(rows: Sequence[TextRow], params: Mapping[str, object]) -> dict[str, float]:
    """Every quantity of a cell with what stands behind it, its seeds taken together.

    ``<quantity>/<statistic>/<inner axes>`` is the estimate; beside it, with a further ``/``, ``n``, ``sd``, ``ci_low``
    and ``ci_high`` (95 %), ``theory`` where there is one, and ``n_failed`` where seeds failed. An axis that the config
    gives a single value is left out, so that the same thing has the same name in all runs of a table and can be
    plotted against the config. What is no number is left out.
    """
    axes = inner_axes(rows, params)
    measured: dict[tuple[str, ...], list[TextRow]] = {}
    theory: dict[tuple[str, ...], float] = {}
    for row in rows:
        at = (row["quantity"], row["statistic"], *(row[axis] for axis in axes))
        if row["source"] == "theory":
            theory[at] = float(row["value"] or math.nan)
        elif not row["status"].startswith("not_run"):
            measured.setdefault(at, []).append(row)
    found: dict[str, float] = {}
    taken: set[str] = set()
    for at in dict.fromkeys([*measured, *theory]):
        metric = place(dict(zip(("quantity", "statistic", *axes), at, strict=True)), axes)
        while metric in taken:  # two values that differ only in what a name cannot hold
            metric += "_"
        taken.add(metric)
        line = estimate(measured.get(at, []), at[1])
        found[metric] = line["estimate"]
        found |= {f"{metric}/{what}": line[what] for what in BESIDE if at in measured}
        found |= {f"{metric}/theory": theory[at]} if at in theory else {}
        found |= {f"{metric}/n_failed": line["n_failed"]} if line["n_failed"] else {}
    return {metric: value for metric, value in found.items() if math.isfinite(value)}
