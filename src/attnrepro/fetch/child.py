"""The process that downloads: it says when it is connected, and how it ended.

A program of its own that imports nothing of ours: name look-ups, TLS and the hub's library wait for as long as they
please, and only a process can be ended from outside.
"""

import http.client
import os
import shutil
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit


def address(url: str) -> tuple[str, int]:
    """Host and port to connect to for ``url``: its own, or those of the proxy on the way."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.netloc):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if not parts.hostname:
        raise ValueError(f"{url} names no host")
    return parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]


def probe(url: str) -> None:
    """Nothing more than the connection that has been made already."""


def file(url: str, target: str) -> None:
    """Download one file. Raises ``OSError`` when it cannot be had or comes short."""
    with urllib.request.urlopen(url, timeout=20) as answer, Path(target).open("wb") as out:
        shutil.copyfileobj(answer, out, 1 << 18)
        announced = answer.headers.get("Content-Length")
        if announced is not None and out.tell() != int(announced):
            raise OSError(f"only {out.tell()} of {announced} bytes came")


def snapshot(endpoint: str, path: str, revision: str, cache: str) -> None:
    """Download the parquet files of a data set at a revision into the hub's own cache."""
    os.environ.update(HF_ENDPOINT=endpoint, HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
    from huggingface_hub import snapshot_download

    snapshot_download(
        path, repo_type="dataset", revision=revision, cache_dir=cache, allow_patterns=["*.parquet", "**/*.parquet"]
    )


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main(argv: list[str]) -> int:
    """``probe URL``, ``file URL TARGET`` or ``snapshot ENDPOINT PATH REVISION CACHE``; tells on standard output."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    kind, *rest = argv
    jobs: dict[str, Callable[..., None]] = {"probe": probe, "file": file, "snapshot": snapshot}
    try:
        socket.create_connection(address(rest[0])).close()
        print("connected", flush=True)
        jobs[kind](*rest)
    except (Exception, http.client.HTTPException) as error:
        said = " ".join(str(error).split())[:300].rstrip(".")
        print(f"failed {said or type(error).__name__}", flush=True)
        return 1
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    # Threads of a library that still wait for a dead server must not keep the process.
    os._exit(main(sys.argv[1:]))
