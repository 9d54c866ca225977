"""The dashboard page: escaping and bytes in Python, behaviour in a headless Chromium without a network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnrepro.app import dashboard
from attnrepro.app.dashboard import TablePage
from attnrepro.results.rows import TABLE_COLUMNS

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
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
    )


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


def data_of(page: str) -> list[Any]:
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    return [json.loads(block) for block in blocks]


def test_same_input_gives_the_same_page() -> None:
    assert dashboard.render([sample()], "h", "s") == dashboard.render([sample()], "h", "s")


def test_a_string_cannot_leave_its_place() -> None:
    page = dashboard.render([hostile()], HOSTILE, HOSTILE)
    assert page.count("<script>") == 2
    assert page.count("</script>") == 5
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
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        reason = f"{CHROMIUM} is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dashboard") / "dashboard.html"
    dashboard.write([sample(), long_table(1000), hostile()], path, "Attention, measured", "A sample")
    return path


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    """The page, open; afterwards nothing was requested but the file, and nothing was reported as an error."""
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    requests: list[str] = []
    errors: list[str] = []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(page_file.as_uri())
    yield opened
    assert opened.evaluate("window.hacked") is None
    context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith("data:")] == [page_file.as_uri()]


def header(page: Any, table: str, label: str) -> Any:
    """A column's header once it stands still: a chart is taller than its empty place and moves what is below it."""
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
    for index in range(4):
        charts.nth(index).scroll_into_view_if_needed()
        charts.nth(index).locator("svg .mark-symbol path").first.wait_for(state="attached")
    entropy = charts.nth(1)
    assert entropy.locator("svg .mark-line path").count() == 2
    assert entropy.locator("svg .mark-rule line").count() >= 10
    assert entropy.locator("svg .mark-symbol.role-mark path").count() == 20


def test_sort_by_click_and_by_key(page: Any) -> None:
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
    assert set(column(page, "sqrt_d_entropy", "verdict")) == {"SOURCE_ERROR"}
    assert page.locator("#long_table").is_hidden()
    page.get_by_role("button", name="Clear").click()
    page.locator("#long_table").wait_for(state="visible")
    page.get_by_label("Search").fill("max_weight 1024")
    page.locator("#long_table").wait_for(state="hidden")
    assert set(column(page, "sqrt_d_entropy", "head_dim")) == {"1024"}
    assert "2 rows in 1 of 3 tables" in page.get_by_role("status").text_content()


def test_long_tables_start_short_and_grow_while_scrolling(page: Any) -> None:
    rows = page.locator("#long_table tbody tr")
    assert rows.count() == 5
    page.locator("#long_table").get_by_role("button", name="Show all rows").click()
    assert rows.count() == 200
    page.locator("#long_table .box").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    rows.nth(399).wait_for(state="attached")


def test_note_and_p_on_focus_and_hover(page: Any) -> None:
    tip = page.get_by_role("tooltip")
    chips = page.locator("#sqrt_d_entropy td.verdict .chip")
    chips.first.focus()
    assert "0.0131" in tip.text_content()
    assert "n_queries=100" in tip.text_content()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    chips.nth(1).hover()
    assert tip.is_visible()


def test_the_command_can_be_copied(page: Any) -> None:
    page.locator("#sqrt_d_entropy .copy").click()
    page.locator("#sqrt_d_entropy .copy", has_text=re.compile("Copied|Selected")).wait_for()


def test_printing_draws_the_charts_that_nobody_has_seen(page: Any) -> None:
    assert page.locator("#hostile .chart svg").count() == 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.locator("#hostile .chart svg .mark-symbol path").first.wait_for(state="attached")


def test_stale_rows_are_flagged(page: Any) -> None:
    assert page.locator("#sqrt_d_entropy tr.stale").count() == 2
    assert page.locator("#sqrt_d_entropy tr.stale").first.get_by_text("stale").is_visible()


def test_hostile_strings_are_text(page: Any) -> None:
    card = page.locator("#hostile")
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


@pytest.mark.parametrize("width", [380, 1000, 1600])
def test_nothing_sticks_out_of_the_page(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
