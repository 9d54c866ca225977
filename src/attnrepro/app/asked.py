"""What runners were asked to do, left on disk while they run: a file each, which counts while its lock is held."""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from attnrepro.app.precheck import Plan
from attnrepro.app.predict import predict
from attnrepro.results.store import Store, to_json, write_text

FOLDER = ".runners"


@dataclass
class Asked:
    """Cells of all runners that are alive.

    ``cells`` has, by table and key, the predicted seconds and the code version that a finished cell must be of, empty
    where any will do. ``timing``: one of them is at tables whose cells run alone.
    """

    cells: dict[str, dict[str, tuple[float, str]]] = field(default_factory=dict)
    timing: bool = False


Tell = Callable[[Iterable[Plan], bool], None]


@contextlib.contextmanager
def told(store: Store) -> Iterator[Tell]:
    """Until the end of this block, what is told (all plans, and whether the running ones measure time) can be read.

    Nothing is written before that. Without a disk that takes it, nobody is told: it is no reason not to run.
    """
    name = secrets.token_hex(6)
    path = store.runs / FOLDER / f"{name}.json"
    held = contextlib.ExitStack()

    def tell(plans: Iterable[Plan], timing: bool) -> None:
        cells = {
            plan.table: {
                p.cell.key: [predict(p) or 0.0, p.code if p.config.stale == "rerun" else ""] for p in plan.cells
            }
            for plan in plans
        }
        with contextlib.suppress(OSError):
            if not path.with_suffix(".lock").is_file():
                _sweep(store)
                held.callback(_remove, path)
                held.enter_context(store.lock(FOLDER, name))
            write_text(path, to_json({"cells": cells, "timing": timing}))

    with held:
        yield tell


def _sweep(store: Store) -> None:
    """Take away what killed runners left; a runner that has no file yet may be about to take its lock."""
    for path in (store.runs / FOLDER).glob("*.json"):
        if not store.is_locked(FOLDER, path.stem):
            _remove(path)


def _remove(path: Path) -> None:
    for one in (path, path.with_suffix(".lock")):
        with contextlib.suppress(OSError):
            one.unlink()


def asked(store: Store) -> Asked:
    """What the runners that are alive were asked to do; a cell that two were asked for is there once."""
    found = Asked()
    for path in sorted((store.runs / FOLDER).glob("*.json")):
        # It may end meanwhile, and others may write there too.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if store.is_locked(FOLDER, path.stem):
                said = json.loads(path.read_text(encoding="utf-8"))
                for table, cells in said["cells"].items():
                    known = {str(key): (float(seconds), str(code)) for key, (seconds, code) in cells.items()}
                    found.cells.setdefault(str(table), {}).update(known)
                found.timing = found.timing or bool(said["timing"])
    return found
