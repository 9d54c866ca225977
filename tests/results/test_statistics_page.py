"""The worked numbers of docs/statistics.md are those that the code gives."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from attnrepro import stats
from attnrepro.results.published import PublishedLine, parse_number
from attnrepro.results.verdicts import Case, Estimate, Judgement, Protocol, Verdict, check_monte_carlo, judge

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")


def table(heading: str) -> list[dict[str, str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    head, _, *body = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"
    ]
    assert body
    return [dict(zip(head, cells, strict=True)) for cells in body]


def says(cell: str, value: float) -> None:
    number, resolution = parse_number(cell)
    assert abs(number - value) <= resolution * (1 + 1e-9), f"the page says {cell}, the code {value}"


def line(klass: str, printed: str = "", margin: str = "", d: str = "", statistic: str = "mean") -> PublishedLine:
    number = float(printed) if printed else None
    return PublishedLine("c", (("d", d),), "q", statistic, number, printed, None, None, klass, margin, "worked example")


def verdict(case: Case) -> Judgement:
    return judge([case])[0]


def test_the_words_are_all_told() -> None:
    words = re.findall(r"[A-Z_]{6,}", " ".join(re.findall(r"^\| ([A-Z_, ]+) \|", PAGE, re.M)))
    assert sorted(words) == sorted(Verdict)


def test_shares() -> None:
    number = r"(\d(?:\.\d+)?)"
    some = re.search(rf"58 of 64 is {number} with \[{number}, {number}\]", PAGE)
    all_of = re.search(rf"20 of 20 is \[{number}, {number}\]", PAGE)
    assert some and all_of
    for found, interval in ((some, stats.share_interval(58, 64)), (all_of, stats.share_interval(20, 20)[1:])):
        for cell, value in zip(found.groups(), interval, strict=True):
            says(cell, value)


@pytest.mark.parametrize("row", table("exact"), ids=lambda row: row["verdict"])
def test_exact(row: dict[str, str]) -> None:
    sd = float(row["sd"]) if row["sd"] else None
    estimate = Estimate(float(row["measured"]), int(row["n"]), sd=sd)
    case = Case(line("exact", row["printed"]), float(row["theory"]), estimate)
    assert verdict(case).verdict == row["verdict"]


def test_exact_theory_is_what_it_is_called() -> None:
    theory = [float(row["theory"]) for row in table("exact")]
    assert theory == pytest.approx([math.log(16), math.log10(1024 / 4)] + [163 / 256] * 3, rel=1e-15)


@pytest.mark.parametrize("row", table("structural"), ids=lambda row: row["verdict"])
def test_structural(row: dict[str, str]) -> None:
    estimate = Estimate(float(row["largest error"]), int(row["draws"]))
    case = Case(line("structural", row["printed"]), None, estimate, scale=float(row["scale"]))
    assert verdict(case).verdict == row["verdict"]


@pytest.mark.parametrize("row", table("sampling"), ids=lambda row: row["what"])
def test_sampling(row: dict[str, str]) -> None:
    theory, count = float(row["theory"]), int(row["numbers in the table"])
    estimate = Estimate(theory, 1_000_000, sd=float(row["sd per query"]))
    fillers = [Case(line("sampling", row["theory"], row["n"], d=str(i)), theory, estimate) for i in range(count - 1)]
    judgement = judge([Case(line("sampling", row["printed"], row["n"]), theory, estimate), *fillers])[0]
    assert judgement.verdict == row["verdict"]
    assert judgement.p is not None
    says(row["p after Holm"], judgement.p)
    says(row["z"], float(judgement.note.split("z=")[1].split(")")[0]))


@pytest.mark.parametrize(
    "row", table("single_run"), ids=lambda row: row["seeds S"] + "-" + row["seeds beyond the print"]
)
def test_single_run(row: dict[str, str]) -> None:
    size, beyond = int(row["seeds S"]), int(row["seeds beyond the print"])
    samples = np.arange(size)
    p = stats.rank_p(beyond - 0.5, 0.1, samples)
    says(row["p"], p)
    says(row["p after Holm over six"], float(stats.holm([p] + [1.0] * 5)[0]))


@pytest.mark.parametrize("row", table("ordinal"), ids=lambda row: row["verdict"])
def test_ordinal(row: dict[str, str]) -> None:
    seeds = tuple(map(float, row["differences"].split()))
    estimate = Estimate(float(np.mean(seeds)), len(seeds), sd=float(np.std(seeds, ddof=1)), seeds=seeds)
    judgement = verdict(Case(line("ordinal", statistic="paired_difference"), None, estimate))
    assert judgement.verdict == row["verdict"]
    assert judgement.p is not None
    says(row["p"], judgement.p)


@pytest.mark.parametrize("row", table("scaling and literature"), ids=lambda row: row["verdict"])
def test_scaling(row: dict[str, str]) -> None:
    low, high = float(row["low"]), float(row["high"])
    estimate = Estimate((low + high) / 2, 9, low=low, high=high)
    case = Case(line("scaling", row["printed"], row["margin"], statistic="value"), None, estimate)
    assert verdict(case).verdict == row["verdict"]


@pytest.mark.parametrize(
    "row", table("Monte Carlo against theory"), ids=lambda row: row["‖C‖²"] + "-" + row["sum of z²"]
)
def test_monte_carlo(row: dict[str, str]) -> None:
    count, sum_sq = int(row["points"]), float(row["sum of z²"])
    points = [(str(i), 0.0, math.sqrt(sum_sq / count), 1.0) for i in range(count)]
    check = check_monte_carlo(points, float(row["‖C‖²"]), count)
    says(row["bound on the largest z"], check.bound)
    says(row["p of the sum"], check.p)
    assert check.ok == (check.p > 0.001)


def test_the_words_for_fitted_protocols() -> None:
    estimate = Estimate(2.0, 100, sd=0.83)
    case = Case(line("sampling", "1.779"), None, estimate, (Protocol("own keys", 2.0, 0.2),))
    assert f'says "{verdict(case).note.split("; ")[1]}"' in PAGE.replace("\n", " ")
