"""The dashboard page: escaping and bytes in Python, behaviour in a headless Chromium without a network."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnrepro import paths
from attnrepro.app import dashboard
from attnrepro.app.dashboard import Erratum, TablePage
from attnrepro.app.headline import Headline
from attnrepro.results.rows import TABLE_COLUMNS

from .browsing import watched

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='hacked=2'>\" ' & <!-- {{script}} 注意力"
LONG = "name_" * 60

# head_dim, scaled: logit sd, entropy (nats), largest weight; a plausible single run and the theory beside it.
PUBLISHED = {
    (4, False): ("1.779", "1.8090", "0.4222"),
    (4, True): ("0.889", "2.4237", "0.2298"),
    (16, False): ("4.101", "0.8689", "0.6956"),
    (16, True): ("1.025", "2.3428", "0.2483"),
    (64, False): ("7.759", "0.4317", "0.8367"),
    (64, True): ("0.970", "2.3808", "0.2373"),
    (256, False): ("15.789", "0.2051", "0.9177"),
    (256, True): ("0.987", "2.3692", "0.2426"),
    (1024, False): ("32.126", "0.0886", "0.9639"),
    (1024, True): ("1.004", "2.3571", "0.2453"),
}
THEORY = {
    (4, False): (2.0, 1.76734, 0.42564),
    (4, True): (1.0, 2.38177, 0.23454),
    (16, False): (4.0, 0.90108, 0.68552),
    (16, True): (1.0, 2.36366, 0.24342),
    (64, False): (8.0, 0.41049, 0.84403),
    (64, True): (1.0, 2.35867, 0.24581),
    (256, False): (16.0, 0.19327, 0.92275),
    (256, True): (1.0, 2.35738, 0.24642),
    (1024, False): (32.0, 0.09369, 0.96157),
    (1024, True): (1.0, 2.35706, 0.24657),
}
QUANTITIES = {"logit_sd": "", "entropy": "nat", "max_weight": ""}


def sample() -> TablePage:
    """The 1/sqrt(d) table: 10 points x 3 quantities, and derived rows without a published value."""
    rows = []
    for (head_dim, scaled), printed in PUBLISHED.items():
        for (quantity, unit), text, theory in zip(QUANTITIES.items(), printed, THEORY[head_dim, scaled], strict=True):
            estimate = theory * (1 + 0.0003 * ((head_dim * 7 + len(quantity)) % 5 - 2))
            half = 0.0008 * theory
            verdict = "SOURCE_ERROR" if (head_dim, quantity) == (4, "logit_sd") else "WITHIN_NOISE"
            rows.append(
                {
                    "head_dim": head_dim,
                    "n_keys": 16,
                    "keys": "shared" if head_dim == 1024 else "own",
                    "scaled": scaled,
                    "scale": "cpu",
                    "environment": "cpu-AMD EPYC 7B13-torch2.13",
                    "quantity": quantity,
                    "statistic": "sd" if quantity == "logit_sd" else "mean",
                    "unit": unit,
                    "n": 100000,
                    "n_failed": 0,
                    "estimate": estimate,
                    "sd": half * 161,
                    "ci_low": estimate - half,
                    "ci_high": estimate + half,
                    "theory": theory,
                    "published": text,
                    "claim": f"sqrtd-{head_dim}-{'s' if scaled else 'u'}-{quantity}",
                    "class": "sampling",
                    "p": 0.0131 if verdict == "SOURCE_ERROR" else 0.42,
                    "verdict": verdict,
                    "stale": head_dim == 256 and quantity == "entropy",
                    "note": "z = -2.7 at the 100 queries of the source; it would be right with n_queries=100",
                }
            )
    derived = {"published": "", "stale": False}
    trend = rows[0] | derived | {"head_dim": "", "statistic": "paired_difference", "verdict": "TREND_FAILS"}
    extra = rows[1] | derived | {"quantity": "logit_kurtosis", "claim": "", "verdict": ""}
    frame = pd.DataFrame([*rows, trend, extra]).assign(variant="")
    axes = ("head_dim", "n_keys", "keys", "scaled")
    return TablePage(
        table="sqrt_d_entropy",
        title="Entropy of attention with and without 1/sqrt(d)",
        document="document 000, section 7",
        question="What does dividing the scores by sqrt(d) keep from collapsing?",
        answer="Without the division entropy falls from 1.77 to 0.094 nats as d grows from 4 to 1024; with "
        "it, it stays at 2.36 nats.",
        command="attnrepro experiment=sqrt_d_entropy params.head_dim=4,16,64,256,1024 params.n_queries=1000",
        how_to_read="Points on the dashed line mean that measurement and theory agree; a cross far from both "
        "is a printed value that a run of the stated size would hardly give.",
        frame=frame[[*axes, *TABLE_COLUMNS]],
        axes=axes,
        charts=tuple(chart(frame, quantity) for quantity in QUANTITIES),
        headline=sketched(),
    )


def explained(page: TablePage) -> TablePage:
    """The page with texts behind its verdicts."""
    texts = (
        {"tolerance": f"tolerance {i}", "found": "; ".join(f"test {i}.{k}" for k in range(8)), "reason": f"why {i}"}
        for i in range(len(page.frame))
    )
    return replace(page, hover=tuple(texts))


def sketched() -> Headline:
    """logit_sd against head_dim with and without the scale, both printed."""
    points = []
    for d in (4, 16, 64, 256, 1024):
        point = {"sqrt_d_entropy/head_dim": float(d)}
        for scaled in (True, False):
            for part, value in (("measured", THEORY[d, scaled][0]), ("published", float(PUBLISHED[d, scaled][0]))):
                point[f"sqrt_d_entropy/{scaled}/{part}"] = value
        points.append(point)
    return Headline("sqrt_d_entropy", "logit_sd", "sd", "head_dim", True, points)


def chart(frame: pd.DataFrame, quantity: str) -> dict[str, Any]:
    """One quantity against head_dim: theory, interval, measured and published marks, coloured by scaled."""
    wanted = ["head_dim", "scaled", "estimate", "ci_low", "ci_high", "theory", "published"]
    rows = frame.loc[(frame["quantity"] == quantity), wanted]
    data = rows.assign(published=pd.to_numeric(rows["published"])).to_dict("records")

    def layer(mark: str, style: str, y: str, y2: str | None = None) -> dict[str, Any]:
        encoding: dict[str, Any] = {"y": {"field": y, "type": "quantitative", "title": quantity}}
        if y2:
            encoding["y2"] = {"field": y2}
        return {"mark": {"type": mark, "style": style}, "encoding": encoding}

    return {
        "title": quantity,
        "data": {"values": data},
        "encoding": {
            "x": {"field": "head_dim", "type": "quantitative", "scale": {"type": "log", "base": 2}},
            "color": {"field": "scaled", "type": "nominal"},
        },
        "layer": [
            layer("line", "theory", "theory"),
            layer("rule", "interval", "ci_low", "ci_high"),
            layer("point", "measured", "estimate"),
            layer("point", "published", "published"),
        ],
    }


def hostile() -> TablePage:
    """Every string of the page tries to break out; numbers are NaN, infinite, missing or huge."""
    values = ["nan", "inf", "-inf", "", "1e400", "6.661338147750939e-16", "12", "9", HOSTILE, LONG]
    frame = pd.DataFrame(
        {name: [HOSTILE if name in ("note", "claim", "unit") else ""] * 10 for name in ("where", *TABLE_COLUMNS)}
    )
    frame = frame.assign(where=values, estimate=values, quantity=[LONG, HOSTILE] * 5, n=float("inf"), p=None)
    frame = frame.assign(verdict=[HOSTILE, "DIFFERS"] * 5, theory=float("nan"), published=values[::-1])
    spec = chart(pd.DataFrame({c: [1, 2] for c in sample().frame.columns}).assign(quantity="q"), "q")
    spec["data"]["values"][0] |= {"scaled": HOSTILE, "theory": float("inf"), "estimate": float("nan")}
    texts = dict.fromkeys(("title", "document", "question", "answer", "command", "how_to_read"), HOSTILE)
    return TablePage("hostile", **texts, frame=frame, axes=("where",), charts=({**spec, "title": HOSTILE},))


def long_table(rows: int) -> TablePage:
    frame = pd.DataFrame({name: [""] * rows for name in ("step", *TABLE_COLUMNS)})
    frame = frame.assign(step=range(rows), quantity="loss")
    frame.loc[:4, "verdict"] = "REPRODUCED"
    return replace(sample(), table="long_table", title="A long table", frame=frame, axes=("step",), charts=())


def two_machines() -> TablePage:
    """One point on two machines, and one on a single machine; with a file of its own and what is known of its runs."""
    blank = dict.fromkeys(TABLE_COLUMNS, "") | {"scale": "full", "quantity": "time", "statistic": "mean", "n": "5"}
    rows = [
        {
            "length": length,
            **blank,
            "environment": name,
            "estimate": value,
            "ci_low": value - 0.1,
            "ci_high": value + 0.1,
        }
        for length, name, value in ((64, "cpu-A", 1.0), (64, "cpu-B", 1.15), (128, "cpu-A", 2.0), (128, "cpu-B", 2.5))
    ]
    rows.append({**rows[0], "length": 256})
    return TablePage(
        table="two_machines",
        title="Time",
        document="document 004",
        question="How long?",
        answer="Longer.",
        command="attnrepro experiment=two_machines",
        how_to_read="As it stands.",
        frame=pd.DataFrame(rows)[["length", *TABLE_COLUMNS]],
        axes=("length",),
        charts=(),
        yaml="table: two_machines # 表\n",
        runs=(
            {"environment": "cpu-A", "cells": "3", "W&B": "https://wandb.example/a javascript:alert(1)"},
            {"environment": "cpu-B", "git": "0123abcd"},
        ),
    )


ERRATA = (
    Erratum(
        "000",
        "Seven",
        "sqrtd-4-u-logit_sd",
        (("SOURCE_ERROR", "logit_sd sd (head_dim=4): printed 1.779.", "sqrt_d_entropy"),),
        ("Theory says 2.",),
    ),
    Erratum("004", HOSTILE, "x", (("DIFFERS", HOSTILE, "hostile"),), (HOSTILE,)),
)


def data_of(page: str) -> list[Any]:
    """Unpacked data of each card."""
    blocks = re.findall(r'<script type="application/json" class="data">(.*?)</script>', page, re.DOTALL)
    return [json.loads(gzip.decompress(base64.b64decode(json.loads(block)))) for block in blocks]


def test_same_input_gives_the_same_page() -> None:
    assert dashboard.render([sample()], "h", "s") == dashboard.render([sample()], "h", "s")


def test_a_string_cannot_leave_its_place() -> None:
    page = dashboard.render([hostile()], HOSTILE, HOSTILE)
    assert page.count("<script>") == 2
    assert page.count("</script>") == 6
    assert "<img src=x" not in page
    assert data_of(page)[0]["columns"]["note"] == HOSTILE


def test_numbers_that_json_lacks_do_not_break_the_page() -> None:
    card = data_of(dashboard.render([hostile()], "h", "s"))[0]
    assert card["charts"][0]["data"]["values"][0]["theory"] is None
    assert card["columns"]["theory"] == ""
    assert card["columns"]["n"] == "inf"
    assert card["columns"]["estimate"][:4] == ["nan", "inf", "-inf", ""]


def test_cells_keep_repr_precision() -> None:
    frame = sample().frame.copy()
    frame["estimate"] = 0.1 + 0.2
    card = data_of(dashboard.render([replace(sample(), frame=frame, charts=())], "h", "s"))[0]
    assert card["columns"]["estimate"] == "0.30000000000000004"


def test_a_missing_column_or_a_second_table_of_a_name_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"sqrt_d_entropy lacks the column\(s\) verdict"):
        dashboard.render([replace(sample(), frame=sample().frame.drop(columns="verdict"))], "h", "s")
    with pytest.raises(ValueError, match="sqrt_d_entropy is given 2 times"):
        dashboard.render([sample(), sample()], "h", "s")


def test_labels_are_of_things_that_exist() -> None:
    zh = dashboard.labels()
    assert set(zh) == {"titles", "quantities", "words"}
    assert set(zh["titles"]) <= set(paths.table_names())
    known = {row["quantity"] for table in paths.table_names() for row in rows_of(table)}
    assert not set(zh["quantities"]) - known
    for part in zh.values():
        assert all(text.strip() for text in part.values())


def rows_of(table: str) -> list[dict[str, str]]:
    root = paths.repository()
    assert root is not None
    path = root / "results" / "tables" / f"{table}.csv"
    return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records") if path.is_file() else []


def test_no_tables_and_no_rows_make_a_page_too() -> None:
    assert "0 tables, 0 rows" in dashboard.render([], "h", "s")
    assert data_of(dashboard.render([long_table(0)], "h", "s"))[0]["rows"] == 0


def test_a_chart_without_rows_says_so() -> None:
    empty = chart(sample().frame, "not measured yet")
    page = dashboard.render([replace(sample(), charts=(empty, sample().charts[0]))], "h", "s")
    assert "sqrt_d_entropy, chart 1: not measured yet: no values to draw yet." in page
    assert [spec["title"] for spec in data_of(page)[0]["charts"]] == ["logit_sd"]


def test_writing_the_same_page_again_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results" / "dashboard.html"
    pages = [long_table(3)]
    assert dashboard.write(pages, path, "h", "s")
    before = path.stat()
    assert not dashboard.write(pages, path, "h", "s")
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert dashboard.write(pages, path, "another heading", "s")
    assert "another heading" in path.read_text(encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["dashboard.html"]


# --- in a browser ---


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dashboard") / "dashboard.html"
    pages = [explained(sample()), long_table(1000), hostile(), two_machines()]
    dashboard.write(pages, path, "Attention, measured", "A sample", ERRATA)
    return path


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    """The page, open; afterwards nothing was requested but the file, and nothing was reported as an error."""
    with watched(browser, page_file) as opened:
        yield opened
        assert opened.evaluate("window.hacked") is None


def show(page: Any, address: str) -> Any:
    """Go to a view of the page; a table's is there when its rows are unpacked."""
    page.evaluate("address => { location.hash = address }", f"/{address}")
    if not address.startswith("page-"):
        card = page.locator(f"#{address.split('/')[0]}.current[data-ready]")
        card.wait_for(state="visible")
        return card
    return page.locator(f"#{address}")


def header(page: Any, table: str, label: str) -> Any:
    """A column's header once it stands still: a chart is taller than its empty place and moves what is below it."""
    show(page, table)
    head = page.locator(f"#{table} th", has_text=label)
    head.scroll_into_view_if_needed()
    for chart in page.locator(f"#{table} .chart").all():
        chart.locator("svg").first.wait_for(state="attached")
    return head


def column(page: Any, table: str, label: str) -> list[str]:
    cells: list[str] = page.locator(f"#{table} td[data-label='{label}']").all_text_contents()
    return cells


def test_every_chart_has_marks(page: Any) -> None:
    charts = page.locator(".chart[aria-label]")
    names = charts.evaluate_all("nodes => nodes.map(node => node.ariaLabel)")
    assert names[1] == "sqrt_d_entropy, chart 2: entropy"
    assert len(set(names)) == 4
    for table in ("sqrt_d_entropy", "hostile"):
        for drawn in show(page, table).locator(".chart").all():
            drawn.scroll_into_view_if_needed()
            drawn.locator("svg .mark-symbol path").first.wait_for(state="attached")
    entropy = charts.nth(1)
    assert entropy.locator("svg .mark-line path").count() == 2
    assert entropy.locator("svg .mark-rule line").count() >= 10
    assert entropy.locator("svg .mark-symbol.role-mark path").count() == 20


def test_sort_by_click_and_by_key(page: Any) -> None:
    show(page, "sqrt_d_entropy")
    assert column(page, "sqrt_d_entropy", "head_dim")[:4] == ["4", "4", "4", "4"]
    head = header(page, "sqrt_d_entropy", "head_dim")
    head.click()
    assert head.get_attribute("aria-sort") == "ascending"
    ascending = column(page, "sqrt_d_entropy", "head_dim")
    in_order = [str(head_dim) for head_dim in (4, 16, 64, 256, 1024) for _ in range(6)]
    assert [value for value in ascending if value != "–"] == in_order
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    descending = column(page, "sqrt_d_entropy", "head_dim")
    assert descending[0] == "1024"
    assert ascending[-1] == descending[-1] == "–", "missing values stay last"


def test_sort_of_words_and_odd_numbers(page: Any) -> None:
    head = header(page, "hostile", "where")
    head.click()
    values = column(page, "hostile", "where")
    assert values[:4] == ["-inf", "6.66134e-16", "9", "12"]
    assert {values[4], values[5]} == {"inf", "1e400"}
    assert "nan" in values[6:9]
    assert values[-1] == "–"
    head.click()
    assert column(page, "hostile", "where")[:3] == values[6:9][::-1]


def test_verdict_filter_and_search(page: Any) -> None:
    page.get_by_role("button", name="SOURCE_ERROR 2").click()
    page.locator("#long_table").wait_for(state="hidden")
    assert set(column(page, "sqrt_d_entropy", "verdict")) == {"SOURCE_ERROR"}
    assert page.locator("#long_table").is_hidden()
    page.get_by_role("button", name="Clear").click()
    page.locator("#long_table").wait_for(state="visible")
    page.get_by_label("Search").fill("max_weight 1024")
    page.locator("#long_table").wait_for(state="hidden")
    assert set(column(page, "sqrt_d_entropy", "head_dim")) == {"1024"}
    assert "2 rows in 1 of 4 tables" in page.get_by_role("status").text_content()


def test_long_tables_start_short_and_grow_while_scrolling(page: Any) -> None:
    rows = show(page, "long_table").locator("tbody tr")
    assert rows.count() == 5
    page.locator("#long_table").get_by_role("button", name="Show all rows").click()
    assert rows.count() == 200
    page.locator("#long_table .box").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    rows.nth(399).wait_for(state="attached")


def test_tolerance_reason_and_p_on_focus_and_hover(page: Any) -> None:
    tip = page.get_by_role("tooltip")
    show(page, "sqrt_d_entropy")
    chips = page.locator("#sqrt_d_entropy td.verdict .chip")
    chips.first.focus()
    told = dict(zip(tip.locator("dt").all_text_contents(), tip.locator("dd").all_text_contents(), strict=True))
    assert told["tolerance"] == "tolerance 0"
    assert told["why so"] == "why 0"
    assert told["found"] == "test 0.0test 0.1test 0.2test 0.3and 4 more, all in the CSV"
    assert told["p"] == "0.0131"
    assert told["claim"] == "sqrtd-4-u-logit_sd"
    assert page.locator("#sqrt_d_entropy td.number span").first.get_attribute("title") == "tolerance 0", "of the print"
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    chips.nth(1).hover()
    assert tip.is_visible()


def test_the_command_can_be_copied(page: Any) -> None:
    show(page, "sqrt_d_entropy").locator(".copy").click()
    page.locator("#sqrt_d_entropy .copy", has_text=re.compile("Copied|Selected")).wait_for()


def test_printing_draws_the_charts_that_nobody_has_seen(page: Any) -> None:
    last = show(page, "sqrt_d_entropy").locator(".chart").last
    page.set_viewport_size({"width": 400, "height": 200})
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    last.locator("svg .mark-symbol path").first.wait_for(state="attached")


def test_what_there_is_no_room_for_stands_with_the_quantity(page: Any) -> None:
    from playwright.sync_api import expect

    card = show(page, "sqrt_d_entropy")
    box = card.locator(".box")

    def heads() -> list[str]:
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth + 1"), "the verdict is on the screen"
        return list(box.locator("th").all_text_contents())

    page.set_viewport_size({"width": 1600, "height": 800})
    expect(box.locator("th")).to_have_count(8)
    wide = heads()
    page.set_viewport_size({"width": 830, "height": 800})
    expect(box.locator("th")).not_to_have_count(8)
    folded = [name for name in wide if name not in heads()]
    assert folded
    assert all(f"{name} = " in box.locator("tbody tr").first.text_content() for name in folded)
    page.set_viewport_size({"width": 1600, "height": 800})
    expect(box.locator("th")).to_have_count(8)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert len(heads()) < len(wide), "a sheet is no screen"
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert heads() == wide


def test_stale_rows_are_flagged(page: Any) -> None:
    show(page, "sqrt_d_entropy")
    assert page.locator("#sqrt_d_entropy tr.stale").count() == 2
    assert page.locator("#sqrt_d_entropy tr.stale").first.get_by_text("stale").is_visible()


def test_hostile_strings_are_text(page: Any) -> None:
    card = show(page, "hostile")
    card.locator(".chart").scroll_into_view_if_needed()
    card.locator("svg .mark-symbol path").first.wait_for(state="attached")
    for place in ("h2", ".question", ".answer", ".how", ".command code"):
        assert card.locator(place).text_content() == HOSTILE
    assert any(text.startswith(HOSTILE) for text in column(page, "hostile", "quantity"))
    card.locator("td.verdict .chip").first.focus()
    assert HOSTILE in page.get_by_role("tooltip").text_content()
    card.locator("svg .mark-symbol.role-mark path").last.hover()
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert page.locator("img").count() == 0


VIEWS = ["page-overview", "page-errata", "page-machines", "sqrt_d_entropy", "hostile", "long_table", "two_machines"]


@pytest.mark.parametrize("width", [380, 1000, 1600])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_sticks_out_of_the_page(page: Any, width: int, view: str) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert show(page, view).is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_overview_shows_what_each_table_found(page: Any) -> None:
    card = page.locator("#sqrt_d_entropy")
    assert card.locator(".counts .chip").all_text_contents() == ["SOURCE_ERROR 2", "TREND_FAILS 1", "WITHIN_NOISE 28"]
    spark = card.locator(".spark")
    assert (spark.locator("g").count(), spark.locator("circle").count(), spark.locator("polyline").count()) == (
        2,
        10,
        2,
    )
    words = "logit_sd against head_dim: 10 measured values (dots) beside 10 printed ones (crosses)"
    assert spark.get_attribute("aria-label") == words
    places = spark.locator("g").nth(1).locator("circle").evaluate_all("dots => dots.map(d => +d.getAttribute('cx'))")
    gaps = [right - left for left, right in itertools.pairwise(places)]
    assert max(gaps) - min(gaps) < 0.3, "d is drawn logarithmically"
    bar = page.locator("#hostile .spark")
    assert bar.locator("rect").count() > 0, "without a headline the verdicts are drawn"
    assert bar.get_attribute("aria-label").startswith("verdicts: ")
    assert card.locator(".box").is_hidden()
    assert page.locator("[data-ready]").count() == 0, "no table is unpacked before somebody asks for it"


def test_a_link_leads_to_the_row_of_a_claim(page: Any) -> None:
    one = show(page, "page-errata").locator(".erratum", has_text="sqrtd-4-u-logit_sd")
    assert one.get_by_role("link").first.is_hidden(), "folded up"
    one.locator("summary").click()
    one.get_by_role("link").first.click()
    row = page.locator("#sqrt_d_entropy tr.marked")
    row.wait_for(state="visible")
    assert "1.779" in row.text_content()
    assert page.url.endswith("#/sqrt_d_entropy/sqrtd-4-u-logit_sd")
    assert page.locator("#hostile").is_hidden()
    page.go_back()
    page.locator("#page-errata").wait_for(state="visible")


def test_an_address_opens_its_view_and_a_wrong_one_the_overview(browser: Any, page_file: Path) -> None:
    opened = browser.new_page()
    opened.goto(f"{page_file.as_uri()}#/long_table")
    opened.locator("#long_table[data-ready]").wait_for(state="visible")
    assert opened.locator("#page-go").input_value() == "long_table"
    assert opened.evaluate("scrollY") == 0
    opened.goto("about:blank")
    opened.goto(f"{page_file.as_uri()}#/no_such_table/%3Cscript%3E")
    opened.locator("#page-overview").wait_for(state="visible")
    opened.close()


def test_going_from_table_to_table(page: Any) -> None:
    page.locator("#page-go").select_option("long_table")
    page.locator("#long_table[data-ready]").wait_for(state="visible")
    page.locator(".crumbs .after").click()
    page.locator("#hostile[data-ready]").wait_for(state="visible")
    show(page, "sqrt_d_entropy")
    assert page.locator(".crumbs .before").is_hidden()


def test_errata_are_filtered_too(page: Any) -> None:
    from playwright.sync_api import expect

    parts = show(page, "page-errata").locator(".erratum:visible")
    assert parts.count() == 2
    assert HOSTILE in parts.nth(1).text_content()
    page.get_by_role("button", name="SOURCE_ERROR 2").click()
    expect(parts).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    page.locator("#page-document").select_option("004")
    expect(parts).to_have_count(1)
    assert "DIFFERS" in parts.first.text_content()


def test_filter_by_document_and_scale(page: Any) -> None:
    page.locator("#page-document").select_option("004")
    page.locator("#long_table").wait_for(state="hidden")
    assert page.locator("#two_machines").is_visible()
    page.locator("#page-document").select_option("")
    page.locator("#page-scale").select_option("full")
    page.locator("#sqrt_d_entropy").wait_for(state="hidden")
    assert "5 rows in 1 of 4 tables" in page.get_by_role("status").last.text_content()
    assert len(column(page, "two_machines", "measured")) == 5


def test_machines_stand_side_by_side(page: Any) -> None:
    from playwright.sync_api import expect

    view = show(page, "page-machines")
    expect(view.locator(".machines-said")).to_contain_text(
        "2 values of 1 tables measured on two machines or more, 1 apart"
    )
    assert view.locator(".sheet").count() == 0, "a table is made when somebody opens it"
    view.locator(".compared summary").press("Enter")
    table = view.locator(".sheet table")
    table.wait_for()
    heads = ["quantity", "published", "theory", "cpu-A", "cpu-B", "difference", "verdict"]
    assert table.locator("thead th").all_text_contents() == heads
    rows = table.locator("tbody tr")
    expect(rows).to_have_count(2)  # what one machine measured is not compared
    first, second = rows.all_text_contents()
    assert "length = 64" in first and "apart" not in first
    assert "length = 128" in second and "apart" in second
    view.locator("#page-apart").check()
    expect(rows).to_have_count(1)
    assert "length = 128" in rows.first.text_content()
    view.locator("#page-apart").uncheck()
    page.get_by_label("Search").fill("no such quantity")
    expect(view.locator(".compared")).to_have_count(0)


def test_one_machine_has_nothing_to_compare(browser: Any, tmp_path: Path) -> None:
    dashboard.write([sample()], tmp_path / "d.html", "h", "s")
    opened = browser.new_page()
    opened.goto(f"{(tmp_path / 'd.html').as_uri()}#/page-machines")
    said = opened.locator(".machines-said", has_text="All rows come from cpu-AMD EPYC 7B13-torch2.13.")
    said.wait_for(state="visible")
    opened.close()


def test_the_csv_is_that_of_the_rows(page: Any, tmp_path: Path) -> None:
    show(page, "hostile")
    with page.expect_download() as download:
        page.locator("#hostile .csv").click()
    download.value.save_as(tmp_path / "hostile.csv")
    got = pd.read_csv(tmp_path / "hostile.csv", dtype=str, keep_default_na=False)
    assert list(got.columns) == ["where", *TABLE_COLUMNS]
    assert got["where"].tolist() == hostile().frame["where"].tolist()
    assert set(got["note"]) == {HOSTILE}
    assert download.value.suggested_filename == "hostile.csv"


def test_where_rows_come_from(page: Any) -> None:
    card = show(page, "two_machines")
    card.locator(".yaml summary").click()
    assert card.locator(".yaml code").text_content() == "table: two_machines # 表\n"
    card.locator(".provenance summary").click()
    assert card.locator(".provenance tr").first.locator("td").all_text_contents() == ["cpu-A", "cpu-B"]
    assert [link.get_attribute("href") for link in card.locator(".provenance a").all()] == ["https://wandb.example/a"]
    assert "javascript:alert(1)" in card.locator(".provenance").text_content()


def test_the_language_is_switched_and_remembered(browser: Any, page_file: Path) -> None:
    from playwright.sync_api import expect

    zh = dashboard.labels()
    assert zh["titles"]["sqrt_d_entropy"] and zh["quantities"]["entropy"]
    context = browser.new_context()
    opened = context.new_page()
    opened.goto(f"{page_file.as_uri()}#/sqrt_d_entropy")
    card = opened.locator("#sqrt_d_entropy[data-ready]")
    card.wait_for(state="visible")
    opened.locator("#page-language").click()
    for again in range(2):
        assert card.locator("h2").text_content() == zh["titles"]["sqrt_d_entropy"]
        quantities = card.locator("td.quantity").all_text_contents()
        assert any(text.startswith(zh["quantities"]["entropy"]) for text in quantities)
        assert card.locator("th.verdict").text_content() == zh["words"]["verdict"]
        if not again:
            opened.reload()
            card.wait_for(state="visible")
    opened.locator("#page-search").fill(zh["quantities"]["max_weight"])
    expect(card.locator("tbody tr")).to_have_count(10)
    opened.locator("#page-search").fill("")
    opened.locator("#page-language").click()
    opened.locator("#sqrt_d_entropy h2", has_text="Entropy of attention").wait_for(state="visible")
    assert "entropymean, nat" in opened.locator("td.quantity", has_text="entropy").first.text_content()
    context.close()


def test_a_planted_wrong_number_shows_as_differs(browser: Any, tmp_path: Path) -> None:
    frame = sample().frame.copy()
    frame.loc[7, ["published", "verdict"]] = ["9.99", "DIFFERS"]
    dashboard.write([replace(sample(), frame=frame)], tmp_path / "d.html", "h", "s")
    opened = browser.new_page()
    opened.goto((tmp_path / "d.html").as_uri())
    assert "DIFFERS 1" in opened.locator("#sqrt_d_entropy .counts").text_content()
    opened.get_by_role("button", name="DIFFERS 1").click()
    row = opened.locator("#sqrt_d_entropy tbody tr")
    row.first.wait_for()
    assert row.count() == 1
    assert "9.99" in row.text_content()
    opened.close()


def test_a_hundred_thousand_rows(browser: Any, tmp_path: Path) -> None:
    dashboard.write([long_table(100_000)], tmp_path / "d.html", "h", "s")
    assert (tmp_path / "d.html").stat().st_size < 5_000_000
    opened = browser.new_page()
    opened.goto(f"{(tmp_path / 'd.html').as_uri()}#/long_table")
    opened.locator("#long_table[data-ready]").wait_for()
    opened.get_by_role("button", name="Show all rows").click()
    assert opened.locator("#long_table tbody tr").count() == 200, "drawn as the reader scrolls"
    assert "100000 of 100000 rows" in opened.locator("#long_table .shown").text_content()
    opened.close()


def test_an_open_table_stays_whatever_is_filtered(page: Any) -> None:
    from playwright.sync_api import expect

    card = show(page, "sqrt_d_entropy")
    page.locator("#page-document").select_option("004")
    assert card.is_visible()
    page.get_by_role("button", name="DIFFERS").first.click()
    expect(card.locator(".shown")).to_have_text("0 of 32 rows")
    page.evaluate("location.hash = '/sqrt_d_entropy/sqrtd-16-s-entropy'")
    page.locator("#sqrt_d_entropy tr.marked").wait_for(state="visible")
    page.evaluate("location.hash = '/sqrt_d_entropy'")
    expect(page.locator("#sqrt_d_entropy tr.marked")).to_have_count(0)
    show(page, "page-overview")
    assert card.is_hidden()


def test_contents_of_the_errata_follow_the_filters_and_lead_there_again(page: Any) -> None:
    from playwright.sync_api import expect

    view = show(page, "page-errata")
    page.set_viewport_size({"width": 1000, "height": 300})
    for _ in range(2):
        view.locator(".contents a").last.click()
        expect(view.locator("[data-part='004'] h3")).to_be_in_viewport()
        page.evaluate("scrollTo(0, 0)")
    page.locator("#page-document").select_option("004")
    expect(view.locator(".contents li:visible")).to_have_count(1)
    expect(page.locator(".toolbar .status")).to_have_text("1 of 2 statements")


def test_printing_has_all_rows(page: Any) -> None:
    card = show(page, "long_table")
    card.get_by_role("button", name="Show all rows").click()
    assert card.locator("tbody tr").count() == 200
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert card.locator("tbody tr").count() == 1000
    show(page, "page-machines").locator(".compared").first.wait_for()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".compared tbody tr").count() == 2


def test_going_back_leads_to_where_one_was(page: Any) -> None:
    from playwright.sync_api import expect

    page.set_viewport_size({"width": 700, "height": 300})
    page.evaluate("scrollTo(0, 400)")
    page.wait_for_timeout(200)
    page.locator("#long_table h2 a").click()
    page.locator("#long_table[data-ready]").wait_for(state="visible")
    page.go_back()
    page.locator("#page-overview").wait_for(state="visible")
    page.wait_for_timeout(200)
    assert page.evaluate("scrollY") > 200
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert not page.url.endswith("#page-main"), "the address is that of the view"
    page.evaluate("location.hash = '/%E0%A4'")
    expect(page.locator("nav a[aria-current]")).to_have_text("Overview")


def test_a_switch_of_language_leaves_the_reader_where_he_is(page: Any) -> None:
    card = show(page, "long_table")
    card.get_by_role("button", name="Show all rows").click()
    card.locator(".box").evaluate("box => { box.scrollTop = 900 }")
    page.evaluate("scrollTo(0, 150)")
    place = page.evaluate("scrollY")
    page.locator("#page-language").dispatch_event("click")
    assert card.locator(".box").evaluate("box => box.scrollTop") == 900
    assert abs(page.evaluate("scrollY") - place) < 5
    assert "1000 列" in card.locator(".shown").text_content()
    card.locator(".copy").dispatch_event("click")
    page.locator("#page-language").dispatch_event("click")
    page.wait_for_timeout(1800)
    assert card.locator(".copy").text_content() == "Copy"


def test_a_tip_that_was_clicked_stays_and_goes_with_its_row(page: Any) -> None:
    from playwright.sync_api import expect

    tip = page.get_by_role("tooltip")
    box = show(page, "sqrt_d_entropy").locator(".box")
    chip = box.locator(".chip").first
    chip.click()
    page.mouse.move(5, 5)
    page.wait_for_timeout(400)
    assert tip.is_visible()
    box.evaluate("box => box.scrollTo(0, 600)")
    expect(tip).to_be_hidden()
