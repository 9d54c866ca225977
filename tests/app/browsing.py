"""A headless Chromium for the tests of pages, and a tab that is watched: no request leaves it, no error is shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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


def launched() -> Iterator[Any]:
    """The browser; skipped on a desk without one, never in continuous integration."""
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


@contextmanager
def watched(browser: Any, path: Path, *, width: int = 1000, height: int = 800, timeout: int = 20_000) -> Iterator[Any]:
    """A tab with the page; afterwards nothing was requested but the file, and nothing was reported as an error."""
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    page.set_default_timeout(timeout)
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
