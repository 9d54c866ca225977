"""The dashboard of the committed rows, in a browser: every table's page opens from disk and every chart has marks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnrepro import paths
from attnrepro.app import report

from .browsing import watched

pytestmark = pytest.mark.slow
ROOT = paths.repository()
assert ROOT is not None
TABLES = paths.table_names()
LIMIT = 5_000_000


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    assert ROOT is not None
    outcome = report.build(root, own=False, raw=ROOT / "results" / "raw")
    assert outcome.problems == []
    return root / "dashboard.html"


@pytest.fixture(scope="module")
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    """One tab for all tables."""
    with watched(browser, page_file, width=1200, height=900, timeout=30_000) as opened:
        yield opened


def show(page: Any, address: str) -> Any:
    page.evaluate("address => { location.hash = address }", f"/{address}")
    card = page.locator(f"#{address}.current[data-ready]")
    card.wait_for(state="visible")
    return card


def test_it_is_small(page_file: Path) -> None:
    assert page_file.stat().st_size < LIMIT


def test_the_overview_has_a_card_for_every_table(page: Any) -> None:
    page.evaluate("location.hash = '/page-overview'")
    cards = page.locator(".card:visible")
    assert [card.get_attribute("id") for card in cards.all()] == TABLES
    for card in cards.all():
        assert card.locator(".answer").text_content()


@pytest.mark.parametrize("table", TABLES)
def test_every_chart_of_every_table_has_marks(page: Any, table: str) -> None:
    card = show(page, table)
    assert card.locator("tbody tr").count() > 0
    for chart in card.locator(".chart").all():
        chart.scroll_into_view_if_needed()
        chart.locator("svg [class*='mark-'] :is(path, line, rect, circle)").first.wait_for(state="attached")
        assert "could not be drawn" not in chart.text_content()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200


def test_every_erratum_leads_to_a_row(page: Any) -> None:
    page.evaluate("location.hash = '/page-errata'")
    page.locator("#page-errata").wait_for(state="visible")
    hrefs = page.locator("#page-errata .erratum li a").evaluate_all("links => links.map(link => link.hash)")
    assert len(hrefs) > 50
    for href in hrefs[:: max(1, len(hrefs) // 8)]:
        page.evaluate("address => { location.hash = address }", href.removeprefix("#"))
        page.locator(".current tr.marked").wait_for(state="visible")
