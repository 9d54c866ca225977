"""Downloads that end: a probe first, then a child process that is killed when its time is over or nothing comes."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

# Seconds until a connection must stand; without a network, a name look-up alone can take twenty.
PROBE = 4.0
# Seconds without a new byte on disk after which a server counts as dead, whatever its library still hopes for.
SILENCE = 30.0
_CHILD = Path(__file__).with_name("child.py")


class DataUnavailable(RuntimeError):
    """A data set cannot be had here and now; the text says why and what to do. A cell that meets it is not run."""


def download(kind: str, url: str, *rest: str, watched: Path, deadline: float) -> None:
    """Let a child process download (see `attnrepro.fetch.child`); ``watched`` is the file or folder that must grow.

    Raises ``DataUnavailable`` when nobody answers within `PROBE` seconds, nothing comes for `SILENCE` seconds, or the
    download has not ended after ``deadline`` seconds; the child and whatever it started are then gone.
    """
    host = urlsplit(url).netloc or url
    process = subprocess.Popen(
        # -P: the folder of the program is no place to import from.
        [sys.executable, "-P", str(_CHILD), kind, url, *rest],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        _follow(process, host, watched, deadline)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def _follow(process: "subprocess.Popen[str]", host: str, watched: Path, deadline: float) -> None:
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    started = grown = time.monotonic()
    connected, size = False, _size(watched)
    while True:
        with contextlib.suppress(queue.Empty):
            word, _, rest = lines.get(timeout=0.1).partition(" ")
            if word == "done":
                return
            if word != "connected":
                raise DataUnavailable(
                    f"{host} cannot be used ({rest})" if rest else f"the download from {host} broke off"
                )
            connected, grown = True, time.monotonic()
        now = time.monotonic()
        if (present := _size(watched)) != size:
            size, grown = present, now
        if not connected and now - started > PROBE:
            raise DataUnavailable(f"{host} did not answer within {PROBE:g} s")
        if now - grown > SILENCE:
            raise DataUnavailable(f"{host} sent nothing for {SILENCE:g} s")
        if now - started > deadline:
            raise DataUnavailable(f"the download from {host} did not end within data.deadline={deadline:g} s")


def _read(process: "subprocess.Popen[str]", lines: "queue.Queue[str]") -> None:
    with contextlib.suppress(ValueError):  # closed while reading: the download was given up
        for line in process.stdout or ():
            lines.put(line.strip())
        lines.put("ended")


def _size(path: Path) -> int:
    """Bytes of a file or of all files below a folder; 0 while there is none."""
    total = 0
    for one in (path, *path.rglob("*")):
        with contextlib.suppress(OSError):
            total += 0 if one.is_symlink() or one.is_dir() else one.stat().st_size
    return total
