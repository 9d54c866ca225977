"""A loopback stand-in for the W&B server: just enough for online runs to complete.

It answers the GraphQL operations that wandb 0.31 sends for a run with scalars and files, for `wandb sync` and for a
saved view, takes the file stream and the uploads, and keeps what it was told, so that a test can compare that with
what was meant. It can be slow, refuse, fall silent, die and come back.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "somebody"


@dataclass
class StubRun:
    """What the server was told about one run."""

    project: str = ""
    group: str = ""
    name: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """History rows in order; a chunk that was sent twice overwrites itself by its offset."""
        return [self.lines[number] for number in sorted(self.lines)]


class OnlineStub:
    """State of the stand-in.

    `status` is the HTTP status of every answer from now on, 0 for no answer at all, `delay` the seconds that each
    takes; `runs` is what is known of each run by its id, `uploads` the stored files by path, `views` the saved
    workspaces and reports by id, `bodies` all request bodies as they were sent, `told` the names of all operations.
    """

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.delay = 0.0
        self.closing = threading.Event()
        self.runs: dict[str, StubRun] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.bodies: list[bytes] = []
        self.told: list[str] = []
        self.uploads: dict[str, bytes] = {}
        self._server: _Server | None = None

    def start(self, port: int = 0) -> None:
        """Listen; after `die`, again at the port of before."""
        if self.url:
            port = int(self.url.rsplit(":", 1)[1])
        self._server = _Server(("127.0.0.1", port), handler_for(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def die(self) -> None:
        """Listen no more and cut every connection, in the middle of whatever it was doing."""
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server.cut()

    def graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the `data` of one GraphQL answer, chosen by the name of the operation."""
        match = re.search(r"\b(?:query|mutation)\s+(\w+)", str(request["query"]))
        operation = match.group(1) if match else ""
        variables: dict[str, Any] = request.get("variables") or {}
        self.told.append(operation)
        if operation in ("Viewer", "GetDefaultEntity"):
            viewer = {"id": "v", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}"}
            return {"viewer": {**viewer, "teams": {"edges": []}}}
        if operation in ("UpsertView2", "upsertView"):
            return {"upsertView": self.view(variables)}
        if operation == "GetProjects":
            project = {"id": "p", "entityName": ENTITY, "createdAt": "", "isBenchmark": False, "user": None}
            names = sorted({run.project for run in self.runs.values()})
            edges = [{"node": {"__typename": "Project", "name": name, **project}} for name in names]
            page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
            return {"models": {"pageInfo": page, "edges": edges}}
        if operation == "UpsertBucket":
            return {"upsertBucket": self.upsert(variables)}
        if operation == "CreateRunFiles":
            run = variables["run"]
            files = [{"name": name, "uploadUrl": f"{self.url}/put/{run}/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": run, "uploadHeaders": [], "files": files}}
        if operation == "OrganizationCoreWeaveOrganizationID":
            return {"entity": {"organization": None}}
        return {}

    def view(self, said: dict[str, Any]) -> dict[str, Any]:
        """Keep a workspace or a report; one that names its id replaces the one of before."""
        known = said.get("id") or f"view{len(self.views)}"
        inserted = known not in self.views
        self.views[known] = said
        project = {"id": "p", "name": said["projectName"], "entityName": said["entityName"]}
        texts = {key: said.get(key) for key in ("type", "name", "displayName", "description")}
        times = dict.fromkeys(("createdAt", "updatedAt"), "2020-01-01T00:00:00Z")
        view = {"id": known, **texts, "project": project, "spec": json.loads(said["spec"]), **times}
        return {"view": view, "inserted": inserted}

    def upsert(self, said: dict[str, Any]) -> dict[str, Any]:
        """Keep the fields of a run that one `UpsertBucket` carries; later ones may carry only some."""
        run = self.runs.setdefault(said["name"], StubRun())
        texts = {"project": "project", "group": "groupName", "name": "displayName", "job_type": "jobType"}
        for ours, theirs in texts.items():
            if said.get(theirs):
                setattr(run, ours, said[theirs])
        run.tags = said.get("tags") or run.tags
        if said.get("config"):
            config = json.loads(said["config"])
            run.config = {key: entry["value"] for key, entry in config.items() if key != "_wandb"}
        project = {"id": "p", "name": run.project, "entity": {"id": "e", "name": ENTITY}}
        bucket = {"id": said["name"], "name": said["name"], "displayName": run.name, "project": project}
        return {"inserted": True, "bucket": {**bucket, "config": said.get("config"), "sweepName": None}}

    def stream(self, run_id: str, chunk: dict[str, Any]) -> None:
        """Take one chunk of a run's file stream."""
        run = self.runs.setdefault(run_id, StubRun())
        files = chunk.get("files") or {}
        history = files.get("wandb-history.jsonl", {"offset": 0, "content": []})
        for number, line in enumerate(history["content"], start=history["offset"]):
            run.lines[number] = json.loads(line)
        if "wandb-summary.json" in files:
            run.summary = json.loads(files["wandb-summary.json"]["content"][-1])
        if chunk.get("complete"):
            run.exit_code = chunk["exitcode"]


def handler_for(stub: OnlineStub) -> type[BaseHTTPRequestHandler]:
    """Return the request handler that feeds `stub`."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer that is sent at once: two small packets would wait for each other's acknowledgement.
        wbufsize = -1

        def do_POST(self) -> None:
            body = self.take()
            answer: dict[str, Any] = {}
            with lock:
                if stub.status == 200 and self.path.endswith("/graphql"):
                    answer = {"data": stub.graphql(json.loads(body))}
                elif stub.status == 200 and self.path.endswith("/file_stream"):
                    stub.stream(self.path.split("/")[-2], json.loads(body))
                    answer = {"limits": {}}
            self.give(json.dumps(answer).encode())

        def do_PUT(self) -> None:
            stub.uploads[self.path] = self.take()
            self.give(b"")

        def take(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stub.bodies.append(body)
            return body

        def give(self, body: bytes) -> None:
            if not stub.status:
                stub.closing.wait()
                return
            stub.closing.wait(stub.delay)
            self.send_response(stub.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test output quiet."""

    return Handler


class _Server(ThreadingHTTPServer):
    """A server that knows its open connections, so that it can die."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was cut is no fault of the test."""


@contextmanager
def online_stub() -> Iterator[OnlineStub]:
    """Serve a fresh stand-in on a free port of 127.0.0.1 for the duration of the block."""
    stub = OnlineStub()
    stub.start()
    try:
        yield stub
    finally:
        stub.closing.set()
        stub.die()
