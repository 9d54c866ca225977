"""Fixtures of several test files: toy tables in a copy of the repository, and what watches their runs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .app.toy import TABLES, Copy, Inside, Side, copy_repository
from .app.toy import inside as run_inside

# A suite that was started in the background ignores Ctrl-C, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def toy_copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy with the toy tables alone; not to be changed."""
    return copy_repository(tmp_path_factory.mktemp("toys") / "repository", TABLES)


@pytest.fixture(scope="session")
def whole_copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of everything, with the toy tables added; not to be changed."""
    return copy_repository(tmp_path_factory.mktemp("whole") / "repository", TABLES, whole=True)


@pytest.fixture
def own_copy(tmp_path: Path) -> Copy:
    """A copy with the table `toy` alone, for this test to change."""
    return copy_repository(tmp_path / "repository", ["toy"])


@pytest.fixture
def inside(own_copy: Copy, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Inside]:
    """This process as if the package lay in `own_copy`."""
    yield from run_inside(own_copy, monkeypatch, capfd)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    """What watches and steers the toy cells of one test; kills what the test leaves behind."""
    folder = tmp_path / "side"
    folder.mkdir()
    watch = Side(folder)
    yield watch
    watch.end()
