"""How far a sweep is, as a bar on the last line of a terminal."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnrepro.app.status import age

if TYPE_CHECKING:
    from rich.progress import Progress


class Bar:
    """Cells of all tables of a command; off a terminal nothing is shown, and ``on`` is false.

    ``total`` counts the cells to run, ``later`` the seconds of the tables that come after those at hand.
    """

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self.done = self.failed = 0
        self.later = 0.0
        self._progress = _progress() if sys.stderr.isatty() else None
        self.on = self._progress is not None

    def __enter__(self) -> "Bar":
        if self._progress:
            self._progress.start()
            # Hidden, it would stay so after a kill -9.
            self._progress.console.show_cursor(True)
            self._progress.add_task("", total=1, done="", words="")
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress:
            self._progress.stop()

    def over(self, cells: int, *, failed: int) -> None:
        """The tables at hand are over, with so many cells that were to run."""
        self.done += cells
        self.failed += failed

    def show(self, tables: Iterable[str], *, done: int, failed: int, parts: float, left: float) -> None:
        """What of the tables at hand is done and failed, the parts of their running cells, and the seconds left."""
        if self._progress:
            words = [f"{self.failed + failed} failed"] * bool(self.failed + failed)
            words += [f"about {age(left + self.later)} left", ", ".join(tables)]
            self._progress.update(
                self._progress.task_ids[0],
                completed=self.done + done + parts,
                total=self.total,
                done=f"{self.done + done}/{self.total}",
                words="  ".join(words),
                refresh=True,
            )


def _progress() -> "Progress | None":
    """None where the terminal cannot write over a line."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    return Progress(
        BarColumn(max(4, min(30, console.width // 5))),
        TextColumn("{task.fields[done]}", markup=False),
        # What a narrow terminal has no room for is cut off here.
        TextColumn("{task.fields[words]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
        console=console,
        auto_refresh=False,
        transient=True,
        expand=True,
        redirect_stdout=False,
    )
