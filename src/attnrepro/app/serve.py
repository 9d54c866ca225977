"""The dashboard of a sweep that still runs: served on this machine, rebuilt as cells finish, reloaded by the page."""

import argparse
import contextlib
import html
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from attnrepro import paths
from attnrepro.app.asked import asked
from attnrepro.app.report import Kept, about, build_at
from attnrepro.app.status import TableStatus, age, cells_asked, cells_of, plans
from attnrepro.results.store import DONE, FAILED, Store

HOST, PORT = "127.0.0.1", 8000
# Seconds between two looks at the runs, and the least between two builds of the page: the first takes half a minute,
# the others a second.
LOOK, REST = 2.0, 10.0
# How far cells go before the server where both want a core.
NICE = 10


def progress(found: Sequence[TableStatus]) -> str:
    """``12 of 40 cells, 2 running (a, b), 1 failed, about 5 min of one core left``; empty when nothing is open.

    Counted are tables that a runner was asked for, and tables that have begun and are not finished.
    """

    def begun(one: TableStatus) -> bool:
        return one.done < one.cells and bool(one.done or one.running or one.failed or one.not_run)

    found = [one for one in found if one.asked or begun(one)]
    if not found:
        return ""
    done, cells = sum(one.done for one in found), sum(one.cells for one in found)
    running = sum(one.running for one in found)
    failed = sum(one.failed for one in found)
    not_run = sum(one.not_run for one in found)
    words = [f"{done} of {cells} cells"]
    if running:
        names = ", ".join(one.table for one in found if one.running)
        words.append(f"{running} running ({names})")
    words += [f"{failed} failed"] * bool(failed) + [f"{not_run} not run"] * bool(not_run)
    if left := sum(one.seconds_left for one in found):
        words.append(f"about {age(left)} of one core left")
    return ", ".join(words)


def opened(page: str) -> str:
    """The page with leave to ask this server, and nobody else, how far things are."""
    return page.replace("default-src 'none';", "default-src 'none'; connect-src 'self';", 1)


def waiting(building: bool, text: str) -> str:
    """What stands there until there is a page: it asks again by itself."""
    why = "is being built" if building else "will be built when no table of times is being measured"
    words = f"The page {why}. {text}"
    return f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><p>{html.escape(words)}</p>'


class Board:
    """What is served: the page as last built, and how far the cells are."""

    def __init__(self, root: Path, scale: str) -> None:
        self.root = root
        self.store = Store(root)
        self.plans = plans(paths.table_names(), scale, root)
        self.timing = [table for table in self.plans if about(table).get("timing")]
        self.text = ""
        self._kept = Kept()
        self._seen: float | None = None
        self._built = 0.0
        self._build: threading.Thread | None = None

    @property
    def page(self) -> Path:
        """``results/dashboard.html``."""
        return self.root / "dashboard.html"

    def look(self) -> None:
        """Bring progress up to date, and begin to build the page where it is not.

        One build at a time, and none while time is measured, which it would disturb.
        """
        now = asked(self.store)
        self.text = progress(
            [cells_asked(table, cells, self.store) for table, cells in now.cells.items()]
            + [cells_of(table, plan) for table, plan in self.plans.items() if table not in now.cells]
        )
        if self.building or time.monotonic() - self._built < REST or now.timing or self._newest() == self._seen:
            return
        if not any(map(self.store.running, self.timing)):
            self._build = threading.Thread(target=self._make, daemon=True)
            self._build.start()

    @property
    def building(self) -> bool:
        """Whether the page is being built."""
        return self._build is not None and self._build.is_alive()

    def wait(self) -> None:
        """Wait for the end of a build."""
        if self._build is not None:
            self._build.join()

    def _make(self) -> None:
        """Build the page; a build that fails is told and the old page stays."""
        self._seen = self._newest()
        try:
            build_at(self.root, self._kept)
        except OSError as error:
            print(f"dashboard: could not be built: {error}", file=sys.stderr)
        finally:
            self._built = time.monotonic()

    def _newest(self) -> float:
        """When a cell was last finished or given up."""
        runs = self.root / "runs"
        times = [0.0]
        for name in (DONE, FAILED):
            for path in runs.glob(f"*/*/{name}"):
                try:
                    times.append(path.stat().st_mtime)
                except OSError:  # just swapped for a newer one
                    times.append(time.time())
        return max(times)

    def state(self) -> dict[str, object]:
        """What the page asks for: it reloads itself when ``stamp`` changes."""
        stamp = self.page.stat().st_mtime_ns if self.page.is_file() else 0
        return {"stamp": str(stamp), "text": self.text}

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Type and content of an address; None where there is nothing."""
        path = path.partition("?")[0]
        if path == "/status.json":
            return "application/json", json.dumps(self.state()).encode()
        if path in ("/", "/dashboard.html"):
            there = self.page.is_file()
            page = opened(self.page.read_text(encoding="utf-8")) if there else waiting(self.building, self.text)
            return "text/html; charset=utf-8", page.encode()
        return None


def server(board: Board, port: int) -> ThreadingHTTPServer:
    """A server of ``board`` on this machine alone.

    Raises:
        OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Page, progress, or 404."""
            # A page of another site may send requests here by a name of its own: it shall not read the answers.
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            found = board.answer(self.path) if host in (HOST, "localhost") else None
            kind, content = found or ("text/plain", b"not here\n")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            # Who closes the page while it is sent has no use for the rest.
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Nothing: the page asks every two seconds."""

    return ThreadingHTTPServer((HOST, port), Handler)


def main(argv: Sequence[str]) -> int:
    """``make dashboard SERVE=1``: serve until Ctrl-C; 2 for a scale that does not exist or a port that is taken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--scale", default="auto", choices=("auto", "smoke", "cpu", "full"))
    options = parser.parse_args(argv)
    os.nice(NICE)
    board = Board(paths.results_dir(), options.scale)
    try:
        serving = server(board, options.port)
    except (OSError, OverflowError) as error:
        print(f"dashboard: PORT={options.port}: {error}; choose another one", file=sys.stderr)
        return 2
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    print(f"dashboard: open http://{HOST}:{serving.server_address[1]}/ (Ctrl-C ends it)", file=sys.stderr)
    try:
        while True:
            board.look()
            time.sleep(LOOK)
    except KeyboardInterrupt:
        return 0
    finally:
        serving.shutdown()
        serving.server_close()
