"""How far a sweep is, on a terminal: one line that is written over, whatever else is written, and gone in the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attnrepro.app.main import Progress

from .toy import PATIENCE, Copy, Side, add_table, clean_environment

HIDE, SHOW, AGAIN = "\x1b[?25l", "\x1b[?25h", "\r\x1b[2K"


@dataclass
class Terminal:
    """A command on a terminal so many columns wide."""

    columns: int
    said: str = ""
    code: int | None = None
    settings: list[list[object]] = field(default_factory=list)

    def run(self, copy: Copy, side: Side, results: Path, when: Callable[[], bool] = lambda: False, **env: str) -> None:
        """Reproduce toys; once it is time, press Ctrl-C."""
        outside, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self.columns, 0, 0))
        self.settings.append(termios.tcgetattr(inside))
        environment = {k: v for k, v in clean_environment().items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
        environment |= {"TERM": "xterm", "TOY_SIDE": str(side.folder), "HOME": str(results.parent)}
        words = ["toy", "toy_training", "scale=smoke", "tracking=disabled", f"results={results}"]
        process = subprocess.Popen(
            [sys.executable, str(copy.root / "scripts" / "reproduce.py"), "--jobs", "2", *words],
            env=environment | {"PYTHONPATH": str(copy.root / "src")} | env,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C needs a terminal that is theirs
        )
        end = time.monotonic() + PATIENCE
        pressed = False
        while process.poll() is None and time.monotonic() < end:
            if when() and not pressed:
                pressed = True
                os.write(outside, b"\x03")
            self._read(outside)
        self.code = process.wait(10)
        self._read(outside)
        self.settings.append(termios.tcgetattr(inside))
        os.close(inside)
        os.close(outside)

    def _read(self, outside: int) -> None:
        while select.select([outside], [], [], 0.1)[0]:
            self.said += os.read(outside, 65536).decode(errors="replace")

    @property
    def bars(self) -> list[str]:
        """Every state of the line, without its colours and what others wrote behind it."""
        lines = re.findall(r"\r\x1b\[2K([^\r\n]*━[^\r\n]*)", self.said)
        return [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", re.sub(r"noise .*|\^C", "", line)).rstrip() for line in lines]


@pytest.mark.slow
def test_bar_counts_all_cells_and_what_workers_write_does_not_break_it(
    own_copy: Copy, side: Side, tmp_path: Path
) -> None:
    add_table(own_copy.root, "toy_training")
    own_copy.edit("conf/experiment/toy.yaml", "fail: []", "fail: [2]")
    noise = 'os.write(2, b"noise of a library\\n")\n    tell("start", cell, cell.params.point)'
    own_copy.edit("experiments/toy/measure.py", 'tell("start", cell, cell.params.point)', noise)
    side.hold("toy_training", "-")
    terminal = Terminal(100)

    def release() -> bool:
        if any(" 6/7 " in bar for bar in terminal.bars):
            side.release()
        return False

    terminal.run(own_copy, side, tmp_path / "results", release)
    assert terminal.code == 1, terminal.said
    assert terminal.said.count("noise of a library") == 6
    assert len(re.findall(r"\[\d/7\] toy [0-9a-f]{12}", terminal.said)) == 6, "and a line for each cell"
    assert any(re.fullmatch(r"[━╸╺]+ 6/7 1 failed  about \d+ s left  toy_training", bar) for bar in terminal.bars), (
        terminal.bars
    )
    assert max(map(len, terminal.bars)) <= 100
    assert terminal.said.rindex(SHOW) > terminal.said.rindex(HIDE)
    last = terminal.said[terminal.said.rindex(SHOW) :]
    assert "━" not in last and "toy: 5 ran, 0 reused, 1 failed or not run" in last, "it is gone in the end"


@pytest.mark.slow
def test_ctrl_c_on_a_narrow_terminal_leaves_it_as_it_was(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    side.hold("toy", 3)
    side.hold("toy_training", "-")
    terminal = Terminal(24)
    terminal.run(toy_copy, side, tmp_path / "results", lambda: len(side.events("held")) == 2 and bool(terminal.bars))
    assert terminal.code == 130, terminal.said
    assert terminal.bars and max(map(len, terminal.bars)) <= 24, terminal.bars
    assert any("/7 " in bar for bar in terminal.bars), "how many cells is never cut off"
    assert terminal.settings[0] == terminal.settings[1]
    assert terminal.said.rindex(SHOW) > terminal.said.rindex(HIDE)
    end = terminal.said[terminal.said.rindex(SHOW) :]
    assert "\r\ninterrupted; finished cells are kept" in end and "Traceback" not in terminal.said
    assert "━" not in end


def test_a_single_cell_has_a_bar_that_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    progress = Progress(12)
    progress.start("toy abc params.point=3")
    progress.share(0.25)
    progress.start("toy def " + "x" * 100)
    progress.share(1.0)
    progress.end("ran, 1.0 s")
    said = capsys.readouterr().err.split("\r")
    assert said[2] == "\x1b[K  [1/12] #####...............  25%  toy abc params.point=3"
    assert said[4].startswith("\x1b[K  [2/12] #################### 100%  toy def xxx") and len(said[4]) == 3 + 59
    assert said[5] == "\x1b[K  [2/12] toy def " + "x" * 100 + ": ran, 1.0 s\n"


@pytest.mark.slow
def test_a_terminal_that_cannot_write_over_gets_plain_lines(toy_copy: Copy, side: Side, tmp_path: Path) -> None:
    terminal = Terminal(80)
    terminal.run(toy_copy, side, tmp_path / "results", TERM="dumb")
    assert terminal.code == 0, terminal.said
    assert "\x1b" not in terminal.said and "━" not in terminal.said
    assert re.search(r"\[7/7\] toy\w* [0-9a-f]{12} .*: ran", terminal.said)
