"""What is printed of the literature: every word is borne out by the bibliography, and a wrong reference turns it."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from attnrepro import paths
from attnrepro.app import main as entry
from attnrepro.app import report
from attnrepro.config import BadInput
from attnrepro.results.claims import load_claims
from attnrepro.results.published import load_published
from attnrepro.tables.historical_claims import measure, reading, table

from . import harness
from .harness import verdicts

pytestmark = pytest.mark.usefixtures("on_the_grid")

NAME = "historical_claims"
SMOKE = (f"experiment={NAME}", "scale=smoke", "tracking=disabled")
PUBLISHED = paths.published_dir()


def run(root: Path) -> report.TableReport:
    """Of the bibliography as it is where the published files lie now."""
    assert entry.main([*SMOKE, f"results={root}", f"params.bibliography='{table.digest()}'"]) == 0
    return harness.built(NAME, root)


def doubts() -> list[str]:
    """What the controls find in the rows of the bibliography as it is now, without store and report."""
    cell: Any = SimpleNamespace(seeds=(0,))
    rows = measure.derive(cell, {})
    blank = dict.fromkeys(table.AXES, "")
    frame = pd.DataFrame([{**blank, **r.axes, "quantity": r.quantity, "estimate": r.value, "n": r.n} for r in rows])
    return reading.controls(frame)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("literature")
    assert entry.main([*SMOKE, f"results={folder}"]) == 0
    return folder


@pytest.fixture
def published(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the published files that may be changed; the table's own grid is known before."""
    harness.built(NAME, root)
    shutil.copytree(PUBLISHED, tmp_path / "published")
    monkeypatch.setattr(paths, "published_dir", lambda: tmp_path / "published")
    return tmp_path / "published"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, text.count(old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_every_claim_has_its_words(root: Path) -> None:
    made = harness.built(NAME, root)
    assert made.problems == []
    words = verdicts(made)
    listed = load_claims(PUBLISHED.parent / "claims.csv").values()
    assert set(words) == {claim.claim for claim in listed if claim.table == NAME}
    confirmed, contradicted, wrong = {"CONFIRMED"}, {"CONTRADICTED"}, {"SOURCE_ERROR"}
    expected = {
        "s1-one-formula-2017": {"CONFIRMED", "DIFFERS"},
        "s4-swinv2-preln": {"CONFIRMED", "NOT_JUDGED"},
        "s4-se-champion": {"CONFIRMED", "CONTRADICTED"},
        "s4-se-reused-by-nonlocal": {"CONTRADICTED", "REPRODUCED"},
        "s4-cc-authors": {"CONFIRMED", "CONTRADICTED"},
        "s4-sagan-stylegan": {"CONTRADICTED", "SOURCE_ERROR"},
        "s4-sagan-biggan": {"SOURCE_ERROR", "NOT_JUDGED"},
        "s4-rn-mixup": {"CONFIRMED", "CONTRADICTED"},
        "s4-caps-authors": {"CONFIRMED", "CONTRADICTED"},
        "s4-caps-chronology": wrong,
        "s4-before-transformer": {"SOURCE_ERROR", "REPRODUCED"},
    }
    expected |= dict.fromkeys(("s4-nl-venue", "s4-nl-award", "s4-nl-datasets", "s4-gc-authors"), contradicted)
    expected |= dict.fromkeys(("s4-gc-title", "s4-gc-convnext-ref", "s4-sagan-data", "s4-sagan-scale"), contradicted)
    mixed = ("s4-ref-wang", "s4-ref-sabour", "s4-ref-sung", "s4-ref-gcnet", "s4-ref-ccnet")
    expected |= dict.fromkeys(mixed, confirmed | contradicted)
    assert words == {claim: expected.get(claim, confirmed) for claim in words}


def test_the_answer_counts_what_agrees(root: Path) -> None:
    made = harness.built(NAME, root)
    counted = made.verdicts()
    total = counted["CONFIRMED"] + counted["CONTRADICTED"]
    assert f"Not all: of {total} printed details {counted['CONFIRMED']} agree" in made.answer
    assert "(authors 8, " in made.answer
    assert "8 first appeared in a later month" in made.answer
    assert "from hu2018 (3 months) to dosovitskiy2021 (40 months)" in made.answer


def test_the_timeline_is_drawn(root: Path) -> None:
    (page,) = report.pages([harness.built(NAME, root)])
    assert [chart["title"] for chart in page.charts] == ["first versions"]
    json.dumps(page.charts, allow_nan=False)


def test_months_by_the_calendar(root: Path) -> None:
    """Counted on the fingers, from June 2017 on."""
    months = {
        (line["work"], line["against"]): line["estimate"]
        for line in harness.built(NAME, root).lines
        if line["quantity"] == "months_after"
    }
    assert months["hu2018", "vaswani2017"] == 3  # July, August, September
    assert months["sabour2017", "vaswani2017"] == 4
    assert months["cao2019", "vaswani2017"] == 22
    assert months["wang2017", "vaswani2017"] == -2
    assert months["zhang2019", "karras2019"] == -7
    assert months["vaswani2017", "bahdanau2015"] == 33


# --- the files ---


def test_every_judged_line_names_its_reference() -> None:
    works = table.bibliography().works
    labels = {work.label for work in works.values()}
    for line in load_published(PUBLISHED / f"{NAME}.csv"):
        cited = set(re.findall(r"[A-Z]\w+ (?:et al\.|and [A-Z]\w+) \d{4}", line.reason))
        assert cited <= labels, line.claim
        if line.klass == "literature" and line.margin:
            assert works[dict(line.axes)["work"]].label in cited, line.claim


def test_every_printed_detail_has_a_line_of_its_claim_and_every_word_a_detail() -> None:
    details = [(one.claim, one.place, one.work, one.field) for one in table.bibliography().printed]
    lines = []
    for line in load_published(PUBLISHED / f"{NAME}.csv"):
        at = dict(line.axes)
        if line.klass == "literature" and line.margin:
            lines.append((line.claim, at["place"], at["work"], at["field"]))
    assert sorted(lines) == sorted(details)


def test_every_work_is_of_use() -> None:
    known = table.bibliography()
    reasons = " ".join(line.reason for line in load_published(PUBLISHED / f"{NAME}.csv"))
    used = {one.work for one in known.printed} | {key for pair in known.orders for key in pair}
    used |= {key for key, work in known.works.items() if work.label in reasons}
    assert set(known.works) == used


def test_places_are_those_of_the_documents_of_their_claims() -> None:
    claims = load_claims(PUBLISHED.parent / "claims.csv")
    for one in table.bibliography().printed:
        assert one.place[:3] == claims[one.claim].document, one


# --- planted faults ---


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        # a wrong author would make the print right
        (
            'authors: ["Cao, Yue", "Xu, Jiarui", "Lin, Stephen", "Wei, Fangyun", "Hu, Han"]\n    title: "GCNet',
            'authors: ["Yang, Yue", "Xu, Jiarui"]\n    title: "GCNet',
            "s4-gc-authors: 004 section 3.3 cao2019 authors is declared contradicted, the bibliography says confirmed",
        ),
        # a wrong author would make it wrong
        (
            '"Hu, Jie", "Shen, Li", "Sun, Gang"',
            '"Hu, Jie", "Sun, Gang", "Shen, Li"',
            "s4-ref-hu: 004 references hu2018 authors is declared confirmed, the bibliography says contradicted",
        ),
        # venue, year of the venue, title, a fact, a prize
        (
            "venue: ICCV\n    year: 2019",
            "venue: CVPR\n    year: 2019",
            "s4-ref-ccnet: 004 references huang2019 venue is declared confirmed",
        ),
        (
            "title: Non-local Neural Networks\n    venue: CVPR\n    year: 2018",
            "title: Non-local Neural Networks\n    venue: CVPR\n    year: 2017",
            "s4-nl-venue: 004 section 3.1 wang2018 venue is declared contradicted",
        ),
        (
            "title: Self-Attention Generative Adversarial Networks\n    venue",
            "title: Attention in Generative Adversarial Networks\n    venue",
            "s4-ref-sagan: 004 references zhang2019 title is declared confirmed",
        ),
        (
            "datasets: [Kinetics, Charades, COCO]",
            "datasets: [Kinetics, Charades, COCO, Something-Something v2]",
            "s4-nl-datasets: 004 section 3.1 wang2018 datasets is declared contradicted",
        ),
        (
            "      - Deep Learning of Graph Matching\n",
            "      - Non-local Neural Networks\n",
            "s4-nl-award: 004 section 3.1 wang2018 award is declared contradicted",
        ),
        # a section, a month
        (
            '"3.5": zhang2019',
            '"3.5": liu2022',
            "s4-gc-convnext-ref: 004 section 3.3 liu2022 section is declared contradicted",
        ),
        (
            'arxiv: "1706.03762"\n    first_version: "2017-06"',
            'arxiv: "1706.03762"\n    first_version: "2017-07"',
            "s4-june-2017: 004 section 1 vaswani2017 month is declared confirmed",
        ),
        # what is printed
        (
            '"Sung, H."',
            '"Sung, F."',
            "s4-ref-sung: 004 references sung2018 authors is declared contradicted, the bibliography says confirmed",
        ),
    ],
)
def test_a_wrong_reference_is_noticed(published: Path, old: str, new: str, problem: str) -> None:
    change(published / table.FILE, old, new)
    assert any(problem in found for found in doubts())


@pytest.mark.parametrize(("old", "new"), [("confirmed", "contradicted"), ("contradicted", "confirmed")])
def test_a_wrong_word_is_noticed(published: Path, old: str, new: str) -> None:
    path = published / f"{NAME}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    margin = lines[0].index("margin")
    first = next(line for line in lines if line[margin] == old)
    first[margin] = new
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    (problem,) = doubts()
    assert f"{first[0]}: " in problem and f"is declared {new}, the bibliography says {old}" in problem


def test_a_word_about_a_detail_that_is_not_printed_is_noticed(published: Path) -> None:
    change(published / table.FILE, "datasets: [CelebA-HQ, LSUN Bedroom]", "year: 2019")
    problems = doubts()
    assert any("zhang2019 datasets is declared contradicted, the bibliography says nothing" in p for p in problems)


def test_a_wrong_date_is_told_by_the_number_of_the_preprint(published: Path, tmp_path: Path) -> None:
    date = 'arxiv: "1710.09829"\n    first_version: "2017-10"'
    change(published / table.FILE, date, date.replace("2017-10", "2017-05"))
    made = run(tmp_path / "results")
    assert verdicts(made)["s4-caps-chronology"] == {"FAILED"}
    assert any("s4-caps-chronology: measured -1 and theory 4" in problem for problem in made.problems)


def test_an_earlier_work_would_make_the_statement_right(published: Path, tmp_path: Path) -> None:
    date = 'arxiv: "1710.09829"\n    first_version: "2017-10"'
    change(published / table.FILE, date, 'arxiv: "1705.09829"\n    first_version: "2017-05"')
    made = run(tmp_path / "results")
    assert verdicts(made)["s4-caps-chronology"] == {"REPRODUCED"}
    assert made.problems == []


def test_another_bibliography_is_another_cell(published: Path) -> None:
    before = table.digest()
    change(published / table.FILE, "  tay2022:", "\n  tay2022:")
    assert table.digest() != before
    with pytest.raises(BadInput, match=f"params.bibliography={before} must be {table.digest()}"):
        harness.cell_of(NAME)


def test_a_doubt_fails_the_table(published: Path, tmp_path: Path) -> None:
    change(published / table.FILE, '"Sung, H."', '"Sung, F."')
    (problem,) = run(tmp_path / "results").problems
    assert problem.startswith(f"{NAME} (") and "s4-ref-sung" in problem


# --- the first sentence ---


def test_the_first_sentence_counts_what_agrees_and_what_came_before() -> None:
    def told(*agrees: float, months: float = 5.0) -> str:
        rows = [
            {"quantity": "agrees", "place": str(i), "work": "a", "field": "venue", "estimate": value}
            for i, value in enumerate(agrees)
        ]
        later = {"quantity": "months_after", "work": "a", "against": reading.TRANSFORMER, "estimate": months}
        return reading.answer(harness.planted(table.AXES, *rows, later))

    said = told(1.0, 0.0)
    assert harness.first(said) == (
        "Not all: of 2 printed details 1 agree with a checked reference and 1 do not; of 1 dated works 0 came before"
        " the Transformer or in its month and 1 first appeared in a later month."
    )
    assert "by kind (venue 1)" in said and said.endswith("After the Transformer came works from a (5 months).")
    said = told(1.0, 1.0, months=-5.0)
    assert said.startswith("All: of 2 printed details 2 agree") and "dated works 1 came before" in said
    assert "by kind" not in said and "came works" not in said
    assert told(0.0).startswith("None: ")
