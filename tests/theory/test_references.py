"""The bibliography: what agrees, what does not, and files that must not be believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnrepro.theory import references
from attnrepro.theory.references import Bibliography, Printed, Work

WORK = Work(
    key="cao2019",
    authors=("Cao, Yue", "Xu, Jiarui", "Jégou, Hervé"),
    title="GCNet: Non-local Networks Meet Others",
    venue="ICCV Workshops",
    year=2019,
    confirmed="here",
    arxiv="1811.11492",
    first_version="2018-11",
    volume="55(6)",
    facts={"datasets": ["COCO", "Kinetics"]},
)
KNOWN = Bibliography(
    works={"cao2019": WORK},
    printed=(),
    awards={"CVPR 2018": ["Another"], "ICCV 2019": ["GCNet - non-local networks meet others"]},
    sections={"004": {"3.3": "cao2019"}},
    orders=(),
)


@pytest.mark.parametrize(
    ("field", "value", "et_al", "agrees"),
    [
        ("authors", ["Cao, Y."], True, True),
        ("authors", ["Cao"], True, True),
        ("authors", ["Cao, Y.", "Xu, J.", "Jegou, H."], False, True),
        ("authors", ["Cao"], False, False),  # nobody is said to be left out
        ("authors", ["Cao", "Xu", "Jegou"], True, False),  # nobody is left out
        ("authors", ["Yang, Y."], True, False),
        ("authors", ["Cao, H."], True, False),
        ("authors", ["Xu, J.", "Cao, Y."], True, False),  # the order is that of the paper
        ("authors", ["Cao", "Xu", "Jegou", "Hu"], False, False),
        ("title", "gcnet, Non-Local networks meet others", False, True),
        ("title", "GCNet", False, True),
        ("title", "GCNet: Global Context Networks", False, False),
        ("title", "Non-local Networks Meet Others", False, False),
        ("venue", "ICCV Workshops 2019", False, True),
        ("venue", "ICCV 2019", False, False),
        ("venue", "ICCV Workshops 2018", False, False),
        ("volume", "55(6)", False, True),
        ("volume", "55", False, False),
        ("year", 2019, False, True),
        ("year", 2018, False, True),  # of the first version
        ("year", 2017, False, False),
        ("month", "2018-11", False, True),
        ("month", "2018-12", False, False),
        ("datasets", ["COCO"], False, True),
        ("datasets", ["COCO", "Charades"], False, False),
        ("award", "ICCV 2019", False, True),
        ("award", "CVPR 2018", False, False),
        ("section", "3.3", False, True),
        ("section", "3.5", False, False),
    ],
)
def test_a_printed_detail_agrees_or_does_not(field: str, value: Any, et_al: bool, agrees: bool) -> None:
    one = Printed("c", "004 references", "cao2019", field, value, et_al)
    assert KNOWN.agrees(one) is agrees


def test_a_work_without_a_dated_listing_has_the_year_of_its_venue_only() -> None:
    works = {"cao2019": Work("cao2019", ("Cao, Yue",), "GCNet", "ICCV", 2019, "here", arxiv="1811.11492")}
    known = Bibliography(works, (), {}, {}, ())
    years = [known.agrees(Printed("c", "004 x", "cao2019", "year", year)) for year in (2018, 2019)]
    assert years == [False, True]


def test_months_are_counted_across_years_by_both_witnesses() -> None:
    later = Work("b", ("B, C",), "T", "V", 2020, "here", arxiv="1904.00001", first_version="2019-04")
    for month in (references.dated_month, references.numbered_month):
        assert month(later) - month(WORK) == 5  # November to April
    old = Work("a", ("A, B",), "T", "V", 2014, "here", arxiv="0712.1234", first_version="2007-12")
    assert references.numbered_month(old) == references.dated_month(old) == 12 * 2007 + 12


def test_labels() -> None:
    def label(*names: str) -> str:
        return Work("k", tuple(f"{name}, G" for name in names), "T", "V", 2018, "here").label

    assert label("Yuan") == "Yuan 2018"
    assert label("Yuan", "Wang") == "Yuan and Wang 2018"
    assert label("Hu", "Shen", "Sun") == "Hu et al. 2018"


# --- files ---


def entry(**changes: Any) -> dict[str, Any]:
    known = {"authors": ["Cao, Yue"], "title": "T", "venue": "V", "year": 2019, "confirmed": "here", **changes}
    return {name: value for name, value in known.items() if value is not None}


def file(tmp_path: Path, work: dict[str, Any] | None = None, **changes: Any) -> Path:
    data: dict[str, Any] = {"awards": {}, "sections": {}, "orders": {}, "printed": []}
    data |= {"works": {"a": work or entry()}, **changes}
    path = tmp_path / "bibliography.yaml"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (entry(confirmed=""), "work a: confirmed must not be empty"),
        (entry(confirmed=None), "work a: .*confirmed"),
        (entry(authors=None), "work a: 'authors'"),
        (entry(authors=[]), "authors must not be empty"),
        (entry(authors=["Yue Cao"]), "must be written Surname, Given"),
        (entry(journal="J"), "work a: .*journal"),
        (entry(arxiv="1713.00001"), "arxiv=1713.00001 must be a number"),
        (entry(first_version="2019-13"), "first_version=2019-13 must be a month"),
        (entry(first_version="2019-01-04"), "must be a month"),
        (entry(facts={"colour": ["red"]}), "facts colour must be among"),
    ],
)
def test_a_work_that_is_not_well_told_is_refused(tmp_path: Path, work: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        references.load(file(tmp_path, work))


PRINT = {"claim": "c", "place": "004 references", "work": "a"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"printed": [{**PRINT, "work": "b", "year": 2019}]}, "b is not among the works"),
        ({"printed": [{**PRINT, "editor": "E"}]}, "editor must be one of authors, title"),
        ({"printed": [{**PRINT, "place": "references", "year": 2019}]}, "place=references must begin with a document"),
        ({"printed": [{**PRINT, "year": 2019}] * 2}, "004 references a year is printed twice"),
        ({"printed": [{**PRINT, "datasets": ["D"]}]}, "prints datasets of a, of which none are known"),
        ({"orders": {"a": ["b"]}}, "b is not among the works"),
        ({"orders": {"a": ["a"]}}, "a is dated against another work and needs"),
        ({"sections": {"004": {"1": "b"}}}, "b is not among the works"),
    ],
)
def test_what_names_nothing_known_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert references.load(file(tmp_path)).works["a"].label == "Cao 2019"
    with pytest.raises(ValueError, match=words):
        references.load(file(tmp_path, **changes))
