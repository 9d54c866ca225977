"""What a file of committed rows must be: columns, legal values, and cells that are what their keys say."""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnrepro.config import digest
from attnrepro.results.rows import HEAD, SOURCES, STATISTICS, TAIL, read_csv

# Scales whose rows may be a reference, and so be reported.
REFERENCE_SCALES = ("cpu", "full")
_STATUS = re.compile(r"ok|(failed|not_run): .+")


def recorded_key(record: Mapping[str, Any], *, timing: bool) -> str:
    """The key that a cell of ``<table>.json`` must have: `attnrepro.config.make_cell` on what was recorded.

    Raises:
        KeyError: the record lacks what its key is made of.
    """
    identity = dict(record["config"])
    if timing:
        identity["hardware"] = f"{record['device_model']}|{record['processor']}"
    if record["inputs"]:
        identity["inputs"] = record["inputs"]
    return digest(identity)[:12]


def record_problems(table: str, environment: str, records: Mapping[str, Any], *, timing: bool) -> Iterator[str]:
    """What is wrong with the cells of ``results/raw/<environment>/<table>.json``, a sentence each."""
    for key, record in records.items():
        try:
            config = record["config"]
            if (made := recorded_key(record, timing=timing)) != key:
                yield f"cell {key}: its configuration hashes to {made}"
            if config["table"] != table or record["environment"] != environment:
                yield f"cell {key}: it is of table {config['table']} in {record['environment']}"
            if config["scale"] not in REFERENCE_SCALES:
                yield f"cell {key}: scale {config['scale']} is no reference"
            if not isinstance(record["code"], str):
                yield f"cell {key}: code {record['code']!r} is no version"
        except (KeyError, TypeError) as error:
            yield f"cell {key}: the record lacks {error}"


def accepted_digest(rows: Sequence[Mapping[str, str]], record: Mapping[str, Any]) -> str:
    """Checksum of one accepted cell, its field ``accepted``: its rows, with what tables round away and what no reader
    needs, and all else that was recorded of it: versions, threads, machine, command line. Blank columns do not count,
    so that a table may be given another axis.
    """
    told = [{name: value for name, value in row.items() if value} for row in rows]
    rest = {name: value for name, value in record.items() if name != "accepted"}
    return digest([told, rest])[:16]


def row_problems(path: Path, axes: Sequence[str], records: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the rows of ``results/raw/<environment>/<table>.csv``, a sentence with its line each."""
    columns = [*HEAD, *axes, *TAIL]
    seen: dict[tuple[str, ...], int] = {}
    keys: set[str] = set()
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        found = next(reader, [])
        if found != columns:
            yield f"line 1: the columns are {','.join(found)} and must be {','.join(columns)}"
            return
        for values in reader:
            line = f"line {reader.line_num}"
            if len(values) != len(columns):
                yield f"{line}: {len(values)} values for {len(columns)} columns"
                continue
            row = dict(zip(columns, values, strict=True))
            yield from (f"{line}: {what}" for what in _faults(row))
            if row["key"] not in records:
                if row["key"] not in keys:
                    yield f"{line}: there is no cell {row['key']} in the .json beside it"
            elif row["scale"] in REFERENCE_SCALES and row["scale"] != _field(records[row["key"]], "config", "scale"):
                yield f"{line}: scale {row['scale']} is not that of its cell {row['key']}"
            keys.add(row["key"])
            at = tuple(row[name] for name in ("key", "source", "seed", *axes, "quantity", "statistic"))
            first = seen.setdefault(at, reader.line_num)
            if first != reader.line_num:
                yield f"{line}: repeats line {first}"
    yield from (f"cell {key} of the .json beside it has no rows" for key in records if key not in keys)


def changed_cells(path: Path, records: Mapping[str, Any]) -> Iterator[str]:
    """Cells of ``results/raw/<environment>/<table>.csv`` that are not what `accept` wrote."""
    cells: dict[str, list[dict[str, str]]] = {}
    for row in read_csv(path):
        cells.setdefault(row.get("key", ""), []).append(row)
    for key, rows in cells.items():
        record = records.get(key)
        if isinstance(record, dict) and accepted_digest(rows, record) != record.get("accepted"):
            yield f"cell {key}: its rows or what is recorded of it are not those that were accepted"


def _field(record: Any, *names: str) -> object:
    try:
        for name in names:
            record = record[name]
    except (KeyError, TypeError):
        return None
    return record


def _faults(row: Mapping[str, str]) -> Iterator[str]:
    if row["scale"] not in REFERENCE_SCALES:
        yield f"scale {row['scale']} is no reference"
    if row["source"] not in SOURCES:
        yield f"source {row['source']!r} is none of {', '.join(SOURCES)}"
    if row["statistic"] not in STATISTICS:
        yield f"statistic {row['statistic']!r} is none of {', '.join(STATISTICS)}"
    if not row["quantity"]:
        yield "quantity is empty"
    if not _STATUS.fullmatch(row["status"]):
        yield f"status {row['status']!r} is neither ok nor failed: <why> nor not_run: <why>"
    for name in ("seed", "n"):
        if row[name] and not (row[name].isascii() and row[name].isdigit()):
            yield f"{name}={row[name]} is not a whole number"
        elif not row[name] and row["source"] == "measured":
            yield f"a measured row needs {name}"
    value, sd = _number(row["value"]), _number(row["sd"])
    if row["status"] == "ok" and not math.isfinite(value):
        yield f"value={row['value']} is not a finite number"
    elif row["value"] and math.isnan(value):
        yield f"value={row['value']} is not a number"
    if row["sd"] and not 0 <= sd < math.inf:
        yield f"sd={row['sd']} is not a finite number, 0 or more"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def load_records(path: Path) -> dict[str, Any]:
    """The cells of ``results/raw/<environment>/<table>.json`` by key.

    Raises:
        ValueError: the file is not there or holds no mapping.
    """
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    if not isinstance(records, dict):
        raise ValueError("holds no mapping from keys to cells")
    return records
