"""The register of printed numbers: what loads, and what is refused in one sentence with its place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnrepro.results.published import PublishedLine, load_published, parse_number, register

HEAD = "claim,head_dim,scaled,quantity,statistic,published,low,high,class,margin,reason"


def write(folder: Path, *lines: str, name: str = "sqrt-d.csv", head: str = HEAD) -> Path:
    path = folder / name
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return path


def line(printed: str = "", low: float | None = None, high: float | None = None) -> PublishedLine:
    return PublishedLine(
        claim="c",
        axes=(),
        quantity="q",
        statistic="mean",
        published=float(printed) if printed else None,
        printed=printed,
        low=low,
        high=high,
        klass="exact",
        margin="",
        reason="why",
    )


@pytest.mark.parametrize(
    ("text", "value", "resolution"),
    [
        ("1.779", 1.779, 0.0005),
        ("6.661e-16", 6.661e-16, 5e-20),
        ("3000", 3000, 0.5),
        ("-0.5", -0.5, 0.05),
        ("0.6150", 0.615, 0.00005),
        ("2.5e9", 2.5e9, 5e7),
        ("3.", 3, 0.5),
        (".25", 0.25, 0.005),
    ],
)
def test_resolution_is_half_a_unit_of_the_last_printed_digit(text: str, value: float, resolution: float) -> None:
    assert parse_number(text) == (value, resolution)


@pytest.mark.parametrize("text", ["", "62%", "1,024", "163/256", "nan", "inf", "1_000", "−0.5", "0x10", "٣", "1e999"])
def test_what_is_no_plain_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="decimal number"):
        parse_number(text)


@given(st.decimals(-1000, 1000, places=3))
def test_a_printed_number_contains_whatever_rounds_to_it(printed: object) -> None:
    text = f"{printed:f}"
    published = line(text)
    for inside in (-0.0005, -0.0004, 0.0, 0.0005):
        assert published.contains(float(text) + inside)
    for outside in (-0.00051, 0.00051):
        assert not published.contains(float(text) + outside)


def test_the_edge_of_the_rounding_belongs_to_the_print() -> None:
    assert 0.580 + 0.0005 != 0.5805
    assert line("0.580").contains(0.5805)
    assert not line("0.580").contains(0.58051)
    assert line("6.661e-16").contains(3 * 2.0**-52)
    assert not line("6.661e-16").contains(2 * 2.0**-52)


def test_a_range_replaces_the_printed_digits() -> None:
    ranged = line("0.95", 0.889, 1.025)
    assert ranged.contains(0.889) and ranged.contains(1.025) and not ranged.contains(1.03)
    assert ranged.resolution == 0
    assert ranged.nearest(2.0) == 1.025 and ranged.nearest(0.9) == 0.9
    assert line("0.95").nearest(2.0) == 0.95
    more_than = line(low=8)
    assert more_than.contains(1e9) and not more_than.contains(7.9) and more_than.nearest(3) == 8


def test_a_file_loads_in_order_with_axes_in_column_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "s0-sd,4,false,logit_sd,sd,1.779,,,sampling,100,own keys are declared",
        's0-flat,,true,logit_sd,sd,,0.889,1.025,exact,,"a range, not a number"',
        "s0-order,4,,entropy_gain,paired_difference,,,,ordinal,,wording only",
    )
    first, second, third = load_published(path)
    assert first.axes == (("head_dim", "4"), ("scaled", "false"))
    assert (first.published, first.printed, first.resolution) == (1.779, "1.779", 0.0005)
    assert (second.published, second.low, second.high) == (None, 0.889, 1.025)
    assert second.reason == "a range, not a number"
    assert third.klass == "ordinal" and not third.has_number
    with pytest.raises(ValueError, match="no printed number"):
        third.contains(1.0)


GOOD = "s0-a,4,true,sd,sd,1.5,,,exact,,why"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("s0-a b,4,true,sd,sd,1.5,,,exact,,why", "claim 's0-a b'"),
        (",4,true,sd,sd,1.5,,,exact,,why", "claim ''"),
        ("s0-b,4,true,sd,sd,1.5,,,exactly,,why", "class 'exactly' is none of"),
        ("s0-b,4,true,sd,average,1.5,,,exact,,why", "statistic 'average' is none of"),
        ("s0-b,4,true,sd,,1.5,,,exact,,why", "statistic '' is none of"),
        ("s0-b,4,true,,sd,1.5,,,exact,,why", "quantity and reason"),
        ("s0-b,4,true,sd,sd,1.5,,,exact,,", "quantity and reason"),
        ("s0-b,4,true,sd,sd,1.5x,,,exact,,why", "'1.5x' is not a decimal number"),
        ("s0-b,4,true,sd,sd,,a,,exact,,why", "'a' is not a decimal number"),
        ("s0-b,4,true,sd,sd,,2,1,exact,,why", "low 2.0 is above high 1.0"),
        ("s0-b,4,true,sd,sd,,,,exact,,why", "class exact needs a published number"),
        ("s0-b,4,true,sd,sd,,,,sampling,100,why", "class sampling needs a published number"),
        ("s0-b,4,true,sd,sd,,,,single_run,,why", "class single_run needs a published number"),
        ("s0-b,4,true,sd,sd,,,,scaling,0.1,why", "class scaling needs a published number"),
        ("s0-b,4,true,sd,sd,1.5,,,exact,0.1,why", "margin '0.1' of class exact is not empty"),
        ("s0-b,4,true,sd,sd,1.5,,,scaling,0,why", "margin '0' of class scaling"),
        ("s0-b,4,true,sd,sd,1.5,,,scaling,15%,why", "'15%' is not a decimal number"),
        ("s0-b,4,true,sd,sd,1.5,,,sampling,1e2,why", "margin '1e2' of class sampling"),
        ("s0-b,4,true,sd,sd,1.5,,,sampling,0,why", "margin '0' of class sampling"),
        ("s0-b,4,true,sd,sd,1.5,,,single_run,fitted,why", "is not declared"),
        ("s0-b,4,true,sd,sd,,,,literature,maybe,why", "is not confirmed or contradicted"),
        ("s0-b,4,true,sd,sd,1.5,,,exact,why", "10 values for 11 columns"),
        ("s0-b,4,true,sd,sd,1.5,,,exact,,why,not", "12 values for 11 columns"),
        (GOOD, "claim s0-a repeats line 2"),
    ],
)
def test_a_wrong_line_is_named_with_file_and_line_in_one_sentence(tmp_path: Path, bad: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"sqrt-d\.csv line 3: ") as error:
        load_published(write(tmp_path, GOOD, bad))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("margin", "margn"),
        HEAD.replace("claim,head_dim", "head_dim,claim"),
        HEAD + ",note",
        HEAD.replace("scaled", "head_dim"),
        HEAD.replace("scaled", ""),
        HEAD.replace("low,high", "high,low"),
        "claim",
        "",
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, head: str) -> None:
    with pytest.raises(ValueError, match=r"sqrt-d\.csv line 1: the columns must"):
        load_published(write(tmp_path, head=head))


def test_one_claim_may_stand_in_several_lines_of_one_file(tmp_path: Path) -> None:
    write(tmp_path, GOOD, GOOD.replace(",4,", ",16,"), "s0-b,,,x,exact,1,,,exact,,why")
    write(tmp_path, 's0-c,"no number, a wording"', name="not_measured.csv", head="claim,reason")
    owners = register(tmp_path)
    assert {claim: path.name for claim, path in owners.items()} == {
        "s0-a": "sqrt-d.csv",
        "s0-b": "sqrt-d.csv",
        "s0-c": "not_measured.csv",
    }


def test_one_claim_must_not_stand_in_two_files(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, GOOD.replace(",4,", ",16,"), name="other.csv")
    with pytest.raises(ValueError, match=r"claim s0-a also stands in other\.csv"):
        register(tmp_path)


def test_a_measured_claim_must_not_be_excused(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    write(tmp_path, "s0-a,too dear", name="not_measured.csv", head="claim,reason")
    with pytest.raises(ValueError, match=r"claim s0-a also stands in not_measured\.csv"):
        register(tmp_path)


@pytest.mark.parametrize("bad", ["s0-a,", ",why", "s0-z,again", "s0-a"])
def test_not_measured_needs_one_reason_a_claim(tmp_path: Path, bad: str) -> None:
    write(tmp_path, "s0-z,why", bad, name="not_measured.csv", head="claim,reason")
    with pytest.raises(ValueError, match=r"not_measured\.csv line 3: "):
        register(tmp_path)


def test_not_measured_has_two_columns_only(tmp_path: Path) -> None:
    write(tmp_path, name="not_measured.csv", head="claim,reason,note")
    with pytest.raises(ValueError, match="the columns must be claim, reason"):
        register(tmp_path)


def test_an_empty_register_is_empty(tmp_path: Path) -> None:
    assert register(tmp_path) == {}


@pytest.mark.parametrize(("printed", "published"), [("1.5", 1.4), ("", 1.5), ("1.5", None)])
def test_a_number_and_its_print_belong_together(printed: str, published: float | None) -> None:
    with pytest.raises(ValueError, match="print"):
        PublishedLine("c", (), "q", "mean", published, printed, 0, 1, "exact", "", "why")
