"""Errata and quizzes are read from judged rows; a wrong number changes them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attnrepro import paths
from attnrepro.app.documents import errata, first_sentence, quizzes
from attnrepro.app.gather import Group
from attnrepro.app.report import TableReport
from attnrepro.results.claims import Claim
from attnrepro.results.verdicts import Verdict

CLAIMS = {
    "c1": Claim("c1", "001", "First section", "toy"),
    "c2": Claim("c2", "000", "Second section", "toy"),
}
SHOWN = {"variant": "", "environment": "here", "scale": "cpu"}


def line(**fields: Any) -> dict[str, Any]:
    base = {"size": "4", "quantity": "share", "statistic": "mean", "estimate": 0.25, "n": 5, "n_failed": 0}
    base |= {"ci_low": 0.2, "ci_high": 0.3, "theory": math.nan, "published": "0.5", "reason": "right for two of them"}
    return base | SHOWN | {"claim": "c1", "verdict": Verdict.DIFFERS} | fields


def report(*lines: Mapping[str, Any]) -> TableReport:
    made = TableReport("toy", {"title": "Toy"}, ("size",), [dict(one) for one in lines])
    made.shown = Group("", "here", "cpu", own=False, stale=False)
    made.shown.lines = made.lines
    return made


def test_errata_say_what_is_printed_what_is_true_and_when_it_would_hold() -> None:
    exact = line(claim="c2", verdict=Verdict.SOURCE_ERROR, theory=0.25)
    text = errata([report(line(), exact, line(claim="c1", verdict=Verdict.REPRODUCED, estimate=0.77))], CLAIMS)
    assert text.index("## Document 000") < text.index("`c2`") < text.index("## Document 001") < text.index("`c1`")
    assert "- share mean (size=4): printed 0.5, measured 0.25 [0.2, 0.3] (n=5), theory 0.25." in text
    assert "Right for two of them." in text and "make reproduce TABLE=toy" in text and "Second section" in text
    assert "0.77" not in text


def test_errata_leave_out_our_own_lines_and_those_of_other_groups() -> None:
    text = errata([report(line(claim="ours"), line(scale="full"))], CLAIMS)
    assert "## Document" not in text


def test_a_claim_of_several_numbers_is_one_entry_with_a_reason_each() -> None:
    lines = (line(reason="first"), line(size="8", reason="second"), line(size="16", claim="c1;c2", reason="third"))
    text = errata([report(*lines)], CLAIMS)
    assert text.count("**`c1`**") == text.count("**`c2`**") == 1
    assert [text.count(word) for word in ("First.", "Second.", "Third.")] == [1, 1, 2]


def quiz(tmp_path: Path, decided_by: str) -> Path:
    path = tmp_path / "quizzes.yaml"
    path.write_text(
        "quizzes:\n- title: one\n  document: '000'\n  question: which?\n  comment: So.\n"
        f"  options: [{{says: much, printed: true, decided_by: [{decided_by}]}}]\n"
        "exercises:\n- {title: two, document: '001', says: do, working: done, claims: [c1]}\n"
    )
    return path


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, "false"),
        ({"ci_low": 0.51, "ci_high": 0.53}, "true"),
        ({"ci_high": 0.51}, "undecided"),
        ({"estimate": 0.51, "ci_low": math.nan, "ci_high": math.nan}, "true"),
        ({"n": 0}, "undecided"),
    ],
)
def test_the_key_is_read_from_the_interval(tmp_path: Path, fields: dict[str, Any], key: str) -> None:
    path = quiz(tmp_path, "{table: toy, quantity: share, statistic: mean, axes: {size: 4}, above: 0.5}")
    text = quizzes([report(line(**fields))], path)
    assert f"| A. much | true | {key} |" in text
    assert ("differ on A." in text) == (key == "false")
    assert "- `c1`: share mean (size=4): printed 0.5" in text and "**DIFFERS**" in text


def test_all_rows_must_hold(tmp_path: Path) -> None:
    one = "{table: toy, quantity: share, statistic: mean, axes: {size: 4}, below: 0.5}"
    path = quiz(tmp_path, f"{one}, {one.replace('below', 'above')}")
    assert "| A. much | true | false |" in quizzes([report(line())], path)


@pytest.mark.parametrize("wrong", ["quantity: shares", "quantity: share, axes: {size: 5}"])
def test_rows_that_are_not_there_are_told(tmp_path: Path, wrong: str) -> None:
    path = quiz(tmp_path, f"{{table: toy, statistic: mean, {wrong}, above: 0.5}}")
    with pytest.raises(ValueError, match="toy: no row of share"):
        quizzes([report(line())], path)


def test_what_is_not_measured_is_told(tmp_path: Path) -> None:
    path = quiz(tmp_path, "{table: other, quantity: share, statistic: mean, axes: {size: 4}, above: 0.5}")
    text = quizzes([report(line(claim="c2"))], path)
    assert "| undecided | other: not measured yet |" in text and "- `c1`: not measured yet." in text


def test_the_generated_files_are_those_of_the_committed_rows() -> None:
    """`make verify` compares them byte for byte; here: every quiz of document 000 has options and a key of ours."""
    repository = paths.repository()
    assert repository is not None
    text = (repository / "docs" / "quizzes.md").read_text(encoding="utf-8")
    assert text.count("## Document 000") == 4 and text.count("| A. ") == text.count("| B. ") == text.count("| C. ") == 4
    assert "differ on B, C." in text and "not measured" not in text


@pytest.mark.parametrize(
    ("text", "first", "more"),
    [
        ("It holds at d = 1.5 (n=3). Then it does not.", "It holds at d = 1.5 (n=3).", "Then it does not."),
        (
            "Softmax v. argmax, of 0.5 nats. 'Cheaper' is false.",
            "Softmax v. argmax, of 0.5 nats.",
            "'Cheaper' is false.",
        ),
        ("One sentence.", "One sentence.", ""),
        ("", "", ""),
    ],
)
def test_the_first_sentence_of_an_answer_ends_where_the_next_begins(text: str, first: str, more: str) -> None:
    assert first_sentence(text) == (first, more)
