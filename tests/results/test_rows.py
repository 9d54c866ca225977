"""Tidy rows: numbers keep every digit, and what cannot be read again is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnrepro.results.rows import HEAD, SOURCES, STATISTICS, TAIL, Row, read_csv, text, to_csv


def row(**changes: Any) -> Row:
    fields: dict[str, Any] = {"quantity": "entropy", "value": 0.1, "seed": 0, "n": 1}
    return Row(**{**fields, **changes})


def csv(*rows: Row, axes: tuple[str, ...] = ("head_dim", "scaled")) -> str:
    return to_csv(rows, key="0123456789ab", scale="cpu", axes=axes)


def back(folder: Path, *rows: Row, axes: tuple[str, ...] = ("head_dim", "scaled")) -> list[dict[str, str]]:
    path = folder / "rows.csv"
    path.write_bytes(csv(*rows, axes=axes).encode())
    return read_csv(path)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, ""),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-3, "-3"),
        (10**20, "100000000000000000000"),
        (4.0, "4"),
        (-4.0, "-4"),
        (0.1, "0.1"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-300, "1e-300"),
        (1e14, "100000000000000"),
        (1e15, "1000000000000000.0"),
        (1e300, "1e+300"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        ("own", "own"),
        ("", ""),
        (np.float64(0.1), "0.1"),
        (np.float64(4), "4"),
        (np.float64(math.inf), "inf"),
        (np.int64(16), "16"),
        (np.bool_(True), "true"),
        (np.str_("own"), "own"),
    ],
)
def test_a_value_as_it_stands_in_a_cell(value: object, written: str) -> None:
    assert text(value) == written


@given(st.floats(allow_nan=False))
def test_a_float_is_read_back_to_the_last_bit(value: float) -> None:
    assert float(text(value)) == value


def test_the_columns_are_those_that_others_read() -> None:
    assert csv() == "key,scale,source,seed,head_dim,scaled,quantity,statistic,unit,n,sd,value,status\n"
    assert (HEAD, TAIL) == (
        ("key", "scale", "source", "seed"),
        ("quantity", "statistic", "unit", "n", "sd", "value", "status"),
    )


def test_a_row_is_one_line() -> None:
    measured = row(axes={"head_dim": 64.0, "scaled": True}, statistic="mean", unit="nats", n=1000, sd=0.5)
    theory = row(axes={"head_dim": math.inf}, source="theory", statistic="exact", seed=None, n=None, value=2)
    assert csv(measured, theory).splitlines()[1:] == [
        "0123456789ab,cpu,measured,0,64,true,entropy,mean,nats,1000,0.5,0.1,ok",
        "0123456789ab,cpu,theory,,inf,,entropy,exact,,,,2.0,ok",
    ]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, math.inf, -math.inf, 1 / 3, 1e16, 3.0]
    read = back(tmp_path, *(row(value=value, sd=abs(value)) for value in values))
    for value, line in zip(values, read, strict=True):
        for column, expected in (("value", value), ("sd", abs(value))):
            assert float(line[column]) == expected
            assert math.copysign(1, float(line[column])) == math.copysign(1, expected)


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    (line,) = back(
        tmp_path,
        row(
            axes={"head_dim": np.float64(0.5)},
            value=np.float64(0.1),
            sd=np.float64(0.25),
            seed=np.int64(3),
            n=np.int64(7),
        ),
    )
    assert [line[c] for c in ("head_dim", "value", "sd", "seed", "n")] == ["0.5", "0.1", "0.25", "3", "7"]


def test_text_that_needs_quotes_comes_back(tmp_path: Path) -> None:
    status = 'failed: "a", b\nand é; \r c'
    (line,) = back(tmp_path, row(status=status, value=math.nan, axes={"head_dim": "a,b"}))
    assert (line["status"], line["head_dim"], line["value"]) == (status, "a,b", "")


def test_the_order_of_rows_is_kept(tmp_path: Path) -> None:
    rows = [row(seed=seed, quantity=quantity) for quantity in "bac" for seed in (2, 0, 1)]
    assert [(r["quantity"], r["seed"]) for r in back(tmp_path, *rows)] == [(r.quantity, str(r.seed)) for r in rows]


def test_an_axis_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"row entropy: \['width'\] are not axes"):
        csv(row(axes={"width": 3, "scaled": True}))


def test_a_value_that_is_no_number_is_refused_unless_the_row_says_why() -> None:
    with pytest.raises(ValueError, match="row entropy: value is not a number"):
        row(value=math.nan)
    with pytest.raises(ValueError, match="not a number"):
        row(value=np.float32("nan"))
    assert row(value=math.nan, status="failed: diverged").status == "failed: diverged"
    assert row(value=math.inf).value == math.inf


@pytest.mark.parametrize("missing", ["seed", "n"])
def test_a_measured_row_names_its_seed_and_its_n(missing: str) -> None:
    with pytest.raises(ValueError, match="names its seed and its n"):
        row(**{missing: None})
    assert row(**{missing: None}, source="theory").source == "theory"


@pytest.mark.parametrize(("name", "value"), [("source", "published"), ("source", ""), ("statistic", "average")])
def test_unknown_words_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="unknown source"):
        row(**{name: value})


def test_the_words_are_those_that_others_read() -> None:
    assert SOURCES == ("measured", "theory")
    assert set(STATISTICS) == {
        *("mean", "sd", "rms", "median", "share", "paired_difference", "slope", "crossover", "exact", "value")
    }
