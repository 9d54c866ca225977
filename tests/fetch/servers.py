"""Small servers on the loopback address, good and bad."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(files: Mapping[str, bytes], announce: int = 0) -> Iterator[str]:
    """Hands out `files` by path; `announce` more bytes than come are promised. Yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"") + announce))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with _running(Handler) as url:
        yield url


@contextmanager
def hub_of(path: str, revision: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """A Hugging Face hub with one data set, as far as its library asks."""
    listed = [{"type": "file", "path": k, "size": len(v), "oid": hashlib.sha1(v).hexdigest()} for k, v in files.items()]
    siblings = [{"rfilename": name} for name in files]
    told = {
        f"/api/datasets/{path}/revision/{revision}": {"id": path, "sha": revision, "siblings": siblings},
        f"/api/datasets/{path}/tree/{revision}": listed,
    }
    base = f"/datasets/{path}/resolve/{revision}/"

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            content = files.get(self.path.removeprefix(base))
            if self.path.split("?")[0] in told:
                content = json.dumps(told[self.path.split("?")[0]]).encode()
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("X-Repo-Commit", revision)
            self.send_header("ETag", f'"{hashlib.sha1(content or b"").hexdigest()}"')
            self.end_headers()
            if body:
                self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with _running(Handler) as url:
        yield url


@contextmanager
def _running(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def silent(drip: bytes = b"") -> Iterator[str]:
    """Takes connections and says nothing, or sends `drip` again and again, one every 0.2 s, without an end."""
    stop = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.05)
    kept: list[socket.socket] = []

    def accept() -> None:
        while not stop.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            kept.append(connection)
            if drip:
                threading.Thread(target=drop, args=(connection,), daemon=True).start()

    def drop(connection: socket.socket) -> None:
        try:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            while not stop.wait(0.2):
                connection.sendall(drip)
        except OSError:
            pass

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        stop.set()
        thread.join()
        for connection in (*kept, server):
            connection.close()


@contextmanager
def dead() -> Iterator[str]:
    """An address where nobody listens: the port is taken and closed to connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def unreachable() -> Iterator[str]:
    """An address that never answers a connection: its queue is full."""
    with socket.socket() as server, socket.socket() as one, socket.socket() as two:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for client in (one, two):
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
