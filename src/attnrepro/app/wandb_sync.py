"""``make wandb-sync``: send what Weights & Biases lacks of this machine's runs. Sent twice, nothing changes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnrepro import paths
from attnrepro.app import tracking
from attnrepro.app.run import say
from attnrepro.config import BadInput, TrackingConfig, load_yaml
from attnrepro.results.store import Store

OK, FAILED, BAD = 0, 1, 2
# Runs that one call of `wandb sync` takes, and the seconds that it may need for each.
AT_ONCE, SECONDS = 50, 30
# Bytes of a .wandb file in which nothing was written yet.
EMPTY = 7


@dataclass
class Unsent:
    """Folders of runs that were not sent yet."""

    ready: list[Path] = field(default_factory=list)
    busy: list[Path] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)


def tracking_config(arguments: Sequence[str]) -> TrackingConfig:
    """What ``conf/tracking/online.yaml`` says, with ``tracking.<key>=<text>`` in its place.

    Raises:
        BadInput: an argument that is none of these, or a value that cannot be.
    """
    values = load_yaml(paths.conf_dir() / "tracking" / "online.yaml")
    for argument in arguments:
        found = re.fullmatch(r"tracking\.(entity|project)=(.+)", argument)
        if not found:
            raise BadInput(f"{argument}: only tracking.entity=<name> and tracking.project=<name> can be set here")
        values[found[1]] = found[2]
    try:
        return TrackingConfig(**values)
    except ValueError as error:
        raise BadInput(f"tracking.{error}") from error


def server(config: TrackingConfig) -> str | None:
    """Why nothing can be sent now, or None."""
    # As a run that may choose: it looks whether anybody answers before it waits for long.
    mode, reason = tracking.resolve_mode(TrackingConfig(**{**vars(config), "mode": "auto"}))
    return None if mode == "online" else reason


def unsent(store: Store) -> Unsent:
    """What is there to send. A run whose cell is being measured goes on, and is left alone."""
    found = Unsent()
    for folder, file in _runs(store.root / "wandb"):
        key = file.stem.removeprefix("run-")[:12]
        if file.with_suffix(".wandb.synced").exists():
            continue
        if any(store.is_locked(lock.parent.name, key) for lock in store.runs.glob(f"*/{key}.lock")):
            found.busy.append(folder)
        elif file.stat().st_size <= EMPTY:
            found.empty.append(folder)
        else:
            found.ready.append(folder)
    return found


def _runs(root: Path) -> Iterator[tuple[Path, Path]]:
    for folder in sorted(root.glob("*run-*-*")):
        for file in sorted(folder.glob("run-*.wandb")) if not folder.is_symlink() else ():
            yield folder, file


def sync(store: Store) -> int:
    """Send every run that is ready, many at once; returns how many did not arrive."""
    ready = unsent(store).ready
    for start in range(0, len(ready), AT_ONCE):
        _send(store.root, ready[start : start + AT_ONCE])
    return len(unsent(store).ready)


def _send(root: Path, folders: Sequence[Path]) -> None:
    command = [sys.executable, "-m", "wandb", "sync", "--yes", "--include-online", *map(str, folders)]
    settings = {
        "WANDB_BASE_URL": tracking.base_url(),
        "WANDB_CACHE_DIR": str(root / "wandb" / "cache"),
        "WANDB_ERROR_REPORTING": "false",
        "COLUMNS": "1000",  # no line of its answer is broken
    }
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS * (1 + len(folders)),
            check=False,
        )
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return
    for folder in folders:
        # The last record of a killed run was cut off and will never be whole; all before it was sent.
        if re.search(rf"ERROR.*{re.escape(folder.name)}.*incomplete record", said):
            for file in folder.glob("run-*.wandb"):
                file.with_suffix(".wandb.synced").touch()


def main(argv: Sequence[str]) -> int:
    """Send all; 0 when Weights & Biases has everything now, 1 when something is left, 2 for bad arguments."""
    if argv:
        say("wandb-sync: takes no arguments; ATTNREPRO_RESULTS says where results are")
        return BAD
    store = Store(paths.results_dir())
    found = unsent(store)
    left = 0
    if found.ready:
        if reason := server(tracking_config([])):
            say(f"wandb-sync: {len(found.ready)} runs wait to be sent. {reason}")
            return FAILED
        left = sync(store)
    say(f"wandb-sync: {len(found.ready) - left} runs sent, {left} not taken by the server")
    if found.busy:
        say(f"wandb-sync: {len(found.busy)} runs go on and were left alone")
    if found.empty:
        say(f"wandb-sync: {len(found.empty)} runs were killed before anything was on disk; run their cells again")
    return FAILED if left else OK
