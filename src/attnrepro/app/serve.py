"""The dashboard of a sweep that still runs: served on this machine, rebuilt as cells finish, reloaded by the page."""

import argparse
import contextlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from attnrepro import paths
from attnrepro.app.report import build_at
from attnrepro.app.status import TableStatus, age, plans, status
from attnrepro.results.store import DONE, FAILED

HOST, PORT = "127.0.0.1", 8000
# Seconds between two looks at the runs, and the least between two builds of the page: one takes some seconds.
LOOK, REST = 2.0, 10.0


def progress(found: Sequence[TableStatus]) -> str:
    """``12 of 40 cells, 2 running (a, b), 1 failed, about 5 min of one core left``; empty when nothing is open."""
    begun = [one for one in found if one.done < one.cells and (one.done or one.running or one.failed or one.not_run)]
    if not begun:
        return ""
    done, cells = sum(one.done for one in begun), sum(one.cells for one in begun)
    running = sum(one.running for one in begun)
    failed = sum(one.failed for one in begun)
    not_run = sum(one.not_run for one in begun)
    words = [f"{done} of {cells} cells"]
    if running:
        names = ", ".join(one.table for one in begun if one.running)
        words.append(f"{running} running ({names})")
    words += [f"{failed} failed"] * bool(failed) + [f"{not_run} not run"] * bool(not_run)
    if left := sum(one.seconds_left for one in begun):
        words.append(f"about {age(left)} of one core left")
    return ", ".join(words)


def opened(page: str) -> str:
    """The page with leave to ask this server, and nobody else, how far things are."""
    return page.replace("default-src 'none';", "default-src 'none'; connect-src 'self';", 1)


class Board:
    """What is served: the page as last built, and how far the cells are."""

    def __init__(self, root: Path, scale: str) -> None:
        self.root = root
        self.plans = plans(paths.table_names(), scale, root)
        self.lock = threading.Lock()
        self.text = ""
        self._seen: float | None = None
        self._built = 0.0

    @property
    def page(self) -> Path:
        """``results/dashboard.html``."""
        return self.root / "dashboard.html"

    def look(self) -> None:
        """Bring page and progress up to date; a build that fails is told and the old page stays."""
        newest = self._newest()
        if newest != self._seen and time.monotonic() - self._built >= REST:
            with self.lock:
                try:
                    build_at(self.root)
                except OSError as error:
                    print(f"dashboard: could not be built: {error}", file=sys.stderr)
            self._seen, self._built = newest, time.monotonic()
        self.text = progress(status(self.plans, self.root))

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
        if path in ("/", "/dashboard.html") and self.page.is_file():
            return "text/html; charset=utf-8", opened(self.page.read_text(encoding="utf-8")).encode()
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
    board = Board(paths.results_dir(), options.scale)
    try:
        serving = server(board, options.port)
    except (OSError, OverflowError) as error:
        print(f"dashboard: PORT={options.port}: {error}; choose another one", file=sys.stderr)
        return 2
    print("dashboard: building the page", file=sys.stderr)
    board.look()
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    print(f"dashboard: open http://{HOST}:{serving.server_address[1]}/ (Ctrl-C ends it)", file=sys.stderr)
    try:
        while True:
            time.sleep(LOOK)
            board.look()
    except KeyboardInterrupt:
        return 0
    finally:
        serving.shutdown()
        serving.server_close()
