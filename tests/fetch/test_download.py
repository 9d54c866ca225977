"""Downloads end: with the file, or in time with a sentence; and nothing of them is left running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnrepro.fetch import child
from attnrepro.fetch import download as module
from attnrepro.fetch.download import DataUnavailable, download

from .servers import dead, serving, silent, unreachable

# What a loaded machine may add to a time that is set: a process must start and be ended.
SLACK = 4.0


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    found = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    assert "child.py" not in found.stdout


def fetch(url: str, target: Path, deadline: float = 60.0) -> None:
    download("file", f"{url}/it", str(target), watched=target, deadline=deadline)


@contextmanager
def within(least: float) -> Iterator[None]:
    """What is in here takes so many seconds, and what a loaded machine may add."""
    started = time.monotonic()
    yield
    assert least <= time.monotonic() - started < least + SLACK


def test_a_file_comes_whole(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    with serving({"/it": content}) as url:
        fetch(url, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content


def test_a_dead_server_is_said_at_once(tmp_path: Path) -> None:
    with (
        dead() as url,
        within(0),
        pytest.raises(DataUnavailable, match=r"127\.0\.0\.1:\d+ cannot be used \(.*refused\)"),
    ):
        fetch(url, tmp_path / "file")


def test_a_server_that_cannot_be_reached_is_given_up_after_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE", 1.0)
    with unreachable() as url, within(1.0), pytest.raises(DataUnavailable, match="did not answer within 1 s"):
        fetch(url, tmp_path / "file")


def test_a_name_look_up_that_hangs_is_given_up_after_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network the resolver alone blocks for over twenty seconds, and no socket's time-out binds it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import socket, time\nsocket.getaddrinfo = lambda *a, **k: time.sleep(600)\n", encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setattr(module, "PROBE", 1.0)
    with within(1.0), pytest.raises(DataUnavailable, match=r"made\.invalid did not answer within 1 s"):
        fetch("http://made.invalid", tmp_path / "file")


def test_a_silent_server_is_given_up_though_its_connection_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENCE", 1.5)
    with silent() as url, within(1.5), pytest.raises(DataUnavailable, match=r"sent nothing for 1\.5 s"):
        fetch(url, tmp_path / "file")


def test_a_server_that_drips_is_given_up_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte ends the silence, so only the deadline ends this."""
    monkeypatch.setattr(module, "SILENCE", 1.0)
    drop = b"x" * (1 << 18)  # as much as is written at once: the file grows
    with (
        silent(drop) as url,
        within(3.0),
        pytest.raises(DataUnavailable, match=r"did not end within data\.deadline=3 s"),
    ):
        fetch(url, tmp_path / "file", deadline=3.0)
    assert (tmp_path / "file").stat().st_size > 0


def test_a_file_that_is_not_there_and_one_that_comes_short(tmp_path: Path) -> None:
    with serving({}) as url, pytest.raises(DataUnavailable, match="404"):
        fetch(url, tmp_path / "file")
    with serving({"/it": b"abc"}, announce=5) as url, pytest.raises(DataUnavailable, match="only 3 of 8 bytes came"):
        fetch(url, tmp_path / "file")


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with serving({"/it": b"abc"}) as url, pytest.raises(DataUnavailable, match="No such file or directory"):
        fetch(url, tmp_path / "absent" / "file")


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with serving({"/it": b"x" * 100_000}) as url, pytest.raises(DataUnavailable, match="No space left on device"):
        download("file", f"{url}/it", "/dev/full", watched=tmp_path, deadline=60)


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    """A killed parent must not leave a download behind."""
    with silent() as url:
        process = subprocess.Popen(
            [sys.executable, str(Path(child.__file__)), "file", f"{url}/it", str(tmp_path / "file")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        process.stdin.close()
        assert process.wait(timeout=10) == 1
        process.stdout.close()


@pytest.mark.parametrize(
    ("url", "proxy", "expected"),
    [
        ("https://example.org/a", None, ("example.org", 443)),
        ("http://example.org:81/a", None, ("example.org", 81)),
        ("http://example.org/a", "http://way.invalid:3128", ("way.invalid", 3128)),
        ("http://example.org/a", "way.invalid:3128", ("way.invalid", 3128)),
    ],
)
def test_the_proxy_is_probed_where_there_is_one(
    url: str, proxy: str | None, expected: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if proxy:
        monkeypatch.setenv("http_proxy", proxy)
    assert child.address(url) == expected
