"""`make dashboard SERVE=1`: page and progress of a sweep, to this machine alone."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnrepro.app import asked, serve
from attnrepro.app.status import TableStatus

from .toy import Inside, until


@pytest.fixture
def board(checkout: Inside) -> serve.Board:
    checkout.refresh()
    board = serve.Board(checkout.results, "cpu")
    board.plans = {table: plan for table, plan in board.plans.items() if table == "toy"}
    return board


@pytest.fixture
def port(board: serve.Board) -> Iterator[int]:
    board.look()
    board.wait()
    serving = serve.server(board, 0)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield serving.server_address[1]
    serving.shutdown()
    serving.server_close()
    thread.join()


def ask(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.request("GET", path, headers={"Host": f"{host}:{port}"})
    answer = link.getresponse()
    found = answer.status, answer.headers["Content-Type"], answer.read().decode()
    link.close()
    return found


@pytest.mark.slow
def test_page_progress_and_nothing_else(board: serve.Board, port: int) -> None:
    code, kind, page = ask(port, "/")
    assert (code, kind) == (200, "text/html; charset=utf-8")
    assert page == serve.opened(board.page.read_text(encoding="utf-8"))
    assert "connect-src 'self'" in page
    assert "connect-src" not in board.page.read_text(encoding="utf-8"), "a page from disk asks for nothing"
    code, kind, state = ask(port, "/status.json?x=1")
    assert (code, kind) == (200, "application/json")
    assert json.loads(state) == {"stamp": str(board.page.stat().st_mtime_ns), "text": ""}
    for path in ("/README.md", "/../README.md", "/runs", "/%2e%2e/README.md"):
        assert ask(port, path)[0] == 404
    assert ask(port, "/", host="evil.example")[0] == 404, "another name for this machine"
    assert ask(port, "/status.json", host="localhost")[0] == 200


@pytest.mark.slow
def test_a_finished_cell_is_on_the_page_soon(
    board: serve.Board, port: int, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from playwright.sync_api import expect

    monkeypatch.setattr(serve, "REST", 0.0)
    done = sorted(board.root.glob("runs/toy/*/done.json"))
    words = [path.read_text() for path in done]
    for path in done[:2]:
        path.unlink()
    os.utime(done[-1])
    board.look()
    board.wait()
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.goto(f"http://127.0.0.1:{port}/#/toy")
    expect(page.locator(".live")).to_contain_text("4 of 6 cells", timeout=20_000)
    before = json.loads(ask(port, "/status.json")[2])
    for path, text in zip(done, words, strict=True):
        path.write_text(text)
    board.page.write_text(board.page.read_text(encoding="utf-8").replace("</h1>", " again</h1>", 1), encoding="utf-8")
    board.look()
    board.wait()
    assert json.loads(ask(port, "/status.json")[2])["stamp"] != before["stamp"]
    expect(page.locator(".live")).to_be_hidden(timeout=20_000)
    assert page.url.endswith("#/toy"), "the view stays"
    page.close()


@pytest.mark.slow
def test_a_build_that_fails_leaves_the_old_page(
    board: serve.Board, port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(root: Path, kept: object) -> None:
        raise OSError(28, "No space left on device")

    before = ask(port, "/")
    monkeypatch.setattr(serve, "build_at", full)
    monkeypatch.setattr(serve, "REST", 0.0)
    os.utime(next(board.root.glob("runs/toy/*/done.json")))
    board.look()
    board.wait()
    assert "No space left on device" in capfd.readouterr().err
    assert ask(port, "/") == before


def test_words_of_progress() -> None:
    finished = TableStatus("a", done=3)
    untouched = TableStatus("b", open=5)
    begun = TableStatus("c", done=1, running=2, failed=1, open=4, not_run=1, seconds_left=600)
    assert serve.progress([finished, untouched]) == ""
    assert serve.progress([finished, untouched, begun]) == (
        "1 of 9 cells, 2 running (c), 1 failed, 1 not run, about 10 min of one core left"
    )


def test_what_a_runner_was_asked_for_counts_before_it_begins_and_after_it_ended() -> None:
    finished = TableStatus("a", done=3, asked=True)
    untouched = TableStatus("b", open=5, asked=True, seconds_left=120)
    assert serve.progress([finished, untouched, TableStatus("c", open=7)]) == (
        "3 of 8 cells, about 2 min of one core left"
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds this lock."""
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True);"
        " sys.stdin.read()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(path)], **pipes) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield


@pytest.mark.slow
def test_nothing_is_built_while_time_is_measured(board: serve.Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REST", 0.0)
    timed = next((board.root / "runs" / "toy_timing").glob("*/done.json")).parent
    other = next((board.root / "runs" / "toy").glob("*/done.json")).parent
    built: list[Path] = []
    monkeypatch.setattr(serve, "build_at", lambda root, kept: built.append(root))
    with locked(timed.with_suffix(".lock")):
        board.look()
        board.wait()
        assert not built
    runners = board.root / "runs" / asked.FOLDER
    runners.mkdir(exist_ok=True)
    (runners / "a.json").write_text(json.dumps({"cells": {}, "timing": True}))
    with locked(runners / "a.lock"):
        board.look()
        board.wait()
        assert not built, "between two cells of such a table, too"
    with locked(other.with_suffix(".lock")):
        board.look()
        board.wait()
    assert built == [board.root]


@pytest.mark.slow
def test_progress_goes_on_while_the_page_is_built(board: serve.Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REST", 0.0)
    builds: list[Path] = []
    go_on = threading.Event()

    def slow(root: Path, kept: object) -> None:
        builds.append(root)
        assert go_on.wait(60)

    monkeypatch.setattr(serve, "build_at", slow)
    board.look()
    assert board.building and board.text == ""
    until(lambda: builds, "the build")
    board.page.unlink(missing_ok=True)
    kind, page = board.answer("/") or ("", b"")
    assert kind.startswith("text/html") and b"is being built" in page and b"refresh" in page
    done = next((board.root / "runs" / "toy").glob("*/done.json"))
    words = done.read_text()
    done.unlink()
    board.look()
    assert board.text.startswith("5 of 6 cells")
    done.write_text(words)
    board.look()
    assert board.text == "" and builds == [board.root], "one at a time"
    go_on.set()
    board.wait()
    os.utime(done, ns=(2**62, 2**62))
    board.look()
    board.wait()
    assert len(builds) == 2


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_sentence(
    port: int, checkout: Inside, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capfd.readouterr()
    monkeypatch.setattr(os, "nice", lambda _: 0)
    assert serve.main(["--port", str(port)]) == 2
    err = capfd.readouterr().err
    assert err.startswith(f"dashboard: PORT={port}: ")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_new_page_opens_where_the_reader_was(board: serve.Board, port: int, browser: Any) -> None:
    from playwright.sync_api import expect

    page = browser.new_page(viewport={"width": 1000, "height": 500})
    page.set_default_timeout(20_000)
    page.goto(f"http://127.0.0.1:{port}/#/toy")
    card = page.locator("#toy[data-ready]")
    card.wait_for(state="visible")
    page.get_by_label("Search").fill("toy")
    word = card.locator(".counts .chip").first.text_content().split()[0]
    chip = page.locator(f".filters [data-verdict={word}]")
    chip.click()
    expect(page.locator(".toolbar .status")).to_contain_text("in 1 of")
    head = card.locator("th", has_text="measured")
    head.get_by_role("button").click()
    head.get_by_role("button").click()
    card.locator(".yaml summary").click()
    page.mouse.wheel(0, 150)
    page.wait_for_timeout(300)
    seen = page.evaluate("scrollY")
    assert seen > 50
    words = board.page.read_text(encoding="utf-8").replace("</h1>", " anew</h1>", 1)
    board.page.write_text(words, encoding="utf-8")
    expect(page.locator("h1")).to_contain_text("anew")
    page.locator("#toy[data-ready]").wait_for(state="visible")
    expect(page.locator(".toolbar .status")).to_contain_text("in 1 of")
    expect(page.get_by_label("Search")).to_have_value("toy")
    assert chip.get_attribute("aria-pressed") == "true"
    assert head.get_attribute("aria-sort") == "descending"
    assert card.locator(".yaml").get_attribute("open") is not None
    page.wait_for_timeout(500)
    assert abs(page.evaluate("scrollY") - seen) < 60
    page.close()
