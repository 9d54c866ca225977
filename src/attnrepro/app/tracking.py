"""Weights & Biases as a view of a run: never a prompt, never a long wait, never the reason why a cell fails.

``track`` opens exactly one W&B run for one cell and records how its body ended. Whatever goes wrong with W&B
itself is one sentence on stderr; the rows on disk stay the truth. wandb and lightning are imported when used.
"""

from __future__ import annotations

import configparser
import functools
import importlib.util
import math
import netrc
import os
import re
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from attnrepro.config import TrackingConfig

if TYPE_CHECKING:
    import wandb
    from lightning.pytorch.loggers import WandbLogger

__all__ = ["Tracker", "TrackingConfig", "base_url", "only_a_view", "resolve_mode", "track"]

Mode = Literal["online", "offline", "disabled"]

# The address that wandb uses when nobody names one; a test compares it with the installed wandb.
DEFAULT_URL = "https://api.forge.coreweave.com"
# Keys stored before that address existed stand in netrc under the older host, and wandb still accepts them.
OLDER_HOST = "api.wandb.ai"

# Longer names are taken offline without a word and refused by the server when the run is uploaded later.
NAME_LENGTH = 64

# Why online was given up in this process: the next 199 cells must not each wait for the same dead server.
_given_up: list[str] = []
_said: set[str] = set()


def resolve_mode(cfg: TrackingConfig) -> tuple[Mode, str]:
    """Return the mode a run would get now, and the reason as a short sentence.

    ``auto`` is online only if an API key is configured for the server and the server answers a TCP probe
    within ``cfg.probe_timeout`` seconds, otherwise offline. ``online`` without a key is offline too, because
    wandb would ask for one. ``WANDB_MODE`` counts for ``auto`` only. wandb is not imported; the probe is made
    once per process.
    """
    if cfg.mode == "disabled":
        return "disabled", "Weights & Biases is off, as asked."
    if not _installed():
        return "disabled", "Weights & Biases is off because wandb is not installed."
    if cfg.mode == "offline":
        return "offline", "Weights & Biases is offline, as asked."
    wish = os.environ.get("WANDB_MODE", "").lower()
    if cfg.mode == "auto" and wish == "disabled":
        return "disabled", "Weights & Biases is off because WANDB_MODE says so."
    if cfg.mode == "auto" and wish in ("offline", "dryrun"):
        return "offline", "Weights & Biases is offline because WANDB_MODE says so."
    url = base_url()
    if not _has_key(url):
        return "offline", f"Weights & Biases is offline because no API key is configured for {url}."
    if _given_up:
        return "offline", f"Weights & Biases is offline because {_given_up[0]}."
    if cfg.mode == "auto" and not _answers(url, cfg.probe_timeout):
        late = f"{url} did not answer within {cfg.probe_timeout:g} s"
        return "offline", f"Weights & Biases is offline because {late}."
    return "online", f"Weights & Biases is online at {url}."


class Tracker:
    """One W&B run as the app sees it; every method is harmless when there is no run or W&B fails.

    ``mode`` is what the run really got, ``url`` its page (online only), ``run_dir`` the folder of its files
    (None when disabled).
    """

    def __init__(self, mode: Mode, run: wandb.Run | None, root: Path) -> None:
        self.mode = mode
        self.url: str | None = run.url if run is not None and mode == "online" else None
        self.run_dir: Path | None = None if run is None else Path(run.dir).parent
        self._run = run
        self._root = root
        self._fits = 0
        self._curves: dict[str, int] = {}

    @property
    def run_id(self) -> str | None:
        """The run's id, under which it can be sent again; None when there is no run."""
        return None if self._run is None else str(self._run.id)

    @functools.cached_property
    def logger(self) -> WandbLogger | None:
        """A Lightning logger that writes to this run; None when disabled. Imports lightning on first use."""
        return None if self._run is None else _view_logger(self._run, self._root, self.curve)

    def next_fit(self) -> None:
        """Another training of the same run begins, and its steps count from zero."""
        self._fits += 1

    def curve(self, name: str) -> str:
        """What a metric that a module logs is called in the run: ``loss`` is ``train/loss``, ``val_loss`` ``val/loss``.

        Two trainings of one run that log the same name are two curves: the second is ``train/loss/fit 2``.
        """
        if name == "epoch" or name.startswith(("train/", "val/")):
            full = name
        elif name.startswith("val_"):
            full = f"val/{name.removeprefix('val_')}"
        else:
            full = f"train/{name}"
        first = self._curves.setdefault(full, self._fits)
        return full if name == "epoch" or first == self._fits else f"{full}/fit {self._fits}"

    def x_axis(self, metrics: str, x: str) -> None:
        """Draw ``metrics`` (a name, or the start of names and ``*``) against the metric ``x``."""
        if self._run is not None:
            with only_a_view("An axis"):
                self._run.define_metric(x, hidden=True)
                self._run.define_metric(metrics, step_metric=x)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Add one history row. It takes no step: the Lightning logger counts the steps of the same run."""
        if self._run is not None:
            with only_a_view("A metric"):
                self._run.log(dict(metrics))

    def summary(self, values: Mapping[str, object]) -> None:
        """Set values that stand for the whole run."""
        if self._run is not None:
            with only_a_view("A summary value"):
                self._run.summary.update(dict(values))

    def rows(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show the cell's rows as a table, at the end of the run. W&B keeps its first 10 000 rows."""
        if self._run is None:
            return
        with only_a_view("The table of rows"):
            import wandb

            data: list[Any] = [[_table_cell(value) for value in row] for row in rows]
            table: Any = wandb.Table(columns=list(columns), data=data, allow_mixed_types=True)
            # Bound by hand, the table is a file of the run. Otherwise run.log makes it an artifact too, which
            # asks the server (19 s and an exception when it is down), leaves files in the home folder and
            # sends their path, hence the user's name.
            table.bind_to_run(self._run, "rows", 0)
            self._run.log({"rows": table})

    def picture(self, name: str, pixels: Sequence[Sequence[tuple[int, int, int]]], caption: str) -> None:
        """Show rows of red, green and blue from 0 to 255. Does nothing where pillow is not installed."""
        if self._run is None or not pixels or importlib.util.find_spec("PIL") is None:
            return
        with only_a_view("A picture"):
            import wandb
            from PIL import Image

            image = Image.new("RGB", (len(pixels[0]), len(pixels)))
            image.putdata([pixel for line in pixels for pixel in line])
            self._run.log({name: wandb.Image(image, caption=caption)})

    def histogram(self, name: str, values: Sequence[float]) -> None:
        """Show how values are spread."""
        finite = [value for value in values if math.isfinite(value)]
        if self._run is None or not finite:
            return
        with only_a_view("A histogram"):
            import wandb

            self._run.log({name: wandb.Histogram(finite, num_bins=32)})

    def finish(self, exit_code: int) -> None:
        """Close the run with the exit code of its body; ``track`` calls this."""
        if self._run is None:
            return
        try:
            self._run.finish(exit_code=exit_code)
            lost = self.mode == "online" and _refused(self.run_dir)
            why = "it refused to" if lost else ""
        except Exception as error:
            why = _first_line(error)
        if why:
            what = f"did not take everything ({why})"
            if self.mode == "online":
                _given_up.append(f"the server {what}")
            _say(
                f"Weights & Biases {what}; the run is kept in {self.run_dir} and can be uploaded with "
                "`make wandb-sync` or `wandb sync --include-online`."
            )


@contextmanager
def track(
    cfg: TrackingConfig,
    *,
    root: Path,
    run_id: str,
    table: str,
    name: str,
    job_type: str,
    tags: Sequence[str],
    config: Mapping[str, object],
) -> Iterator[Tracker]:
    """Open one W&B run below ``root/wandb`` for the body and record how the body ended.

    ``table`` becomes the run's group. Exit code of the run: 0, the body's own ``SystemExit`` code, 130 for an
    interrupt, 1 for any other exception; exceptions pass through. A server that does not take the run within
    ``cfg.init_timeout`` makes it an offline run; closing takes at most ``cfg.finish_timeout`` seconds.

    Raises ``TypeError`` if ``config`` is not plain resolved data, ``ValueError`` for a bad ``run_id``.
    """
    if not re.fullmatch(r"[\w.-]{1,64}", run_id):
        raise ValueError(f"run_id={run_id!r} must be 1 to 64 letters, digits, '.', '_' or '-'")
    plain = _plain(config, "config")
    mode, reason = resolve_mode(cfg)
    if cfg.mode == "online" and mode != "online":
        _say(reason)
    tracker = _start(
        cfg,
        mode,
        root.absolute(),
        id=run_id,
        group=table[:NAME_LENGTH],
        name=name[:NAME_LENGTH],
        job_type=job_type[:NAME_LENGTH],
        tags=list(dict.fromkeys(tag[:NAME_LENGTH] for tag in tags if tag)),
        config=plain,
    )
    # wandb's own `with run:` prints the traceback a second time and calls sys.exit(0) a failure.
    exit_code = 1
    try:
        yield tracker
        exit_code = 0
    except SystemExit as stop:
        exit_code = _exit_code(stop)
        raise
    except KeyboardInterrupt:
        exit_code = 130
        raise
    finally:
        tracker.finish(exit_code)


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


def _start(cfg: TrackingConfig, mode: Mode, root: Path, **about: Any) -> Tracker:
    """Open the run in the given mode, or in the next more modest one that works."""
    if mode == "disabled":
        return Tracker("disabled", None, root)
    earlier = set(_online_folders(root, about["id"]))
    try:
        return Tracker(mode, _init(cfg, mode, root, **about), root)
    except Exception as error:
        # Frees the run id, which the failed attempt still holds, and replaces a service that has died.
        with suppress(Exception, SystemExit):
            import wandb

            wandb.teardown()
        if mode == "offline":
            _say(f"Weights & Biases is off because its run could not be opened ({_first_line(error)}).")
            return Tracker("disabled", None, root)
        _given_up.append(f"a run could not be opened online ({_first_line(error)})")
        _say(f"Weights & Biases is offline because {_given_up[0]}.")
        # The failed attempt left a folder that holds nothing; one cell is one run.
        for left in set(_online_folders(root, about["id"])) - earlier:
            shutil.rmtree(left, ignore_errors=True)
        return _start(cfg, "offline", root, **about)


def _refused(run_dir: Path | None) -> bool:
    """Whether wandb's service gave up on the server: after an answer like 401 closing a run raises nothing.

    It says so in the log of the run only. Where that log is another one than today's, the answer is no.
    """
    with suppress(OSError):
        log = None if run_dir is None else run_dir / "logs" / "debug-internal.log"
        return log is not None and b"filestream: fatal error" in log.read_bytes()
    return False


def _online_folders(root: Path, run_id: str) -> Iterator[Path]:
    return (root / "wandb").glob(f"run-*-{run_id}")


def _init(cfg: TrackingConfig, mode: Mode, root: Path, **about: Any) -> wandb.Run:
    os.environ.setdefault("WANDB_SILENT", "true")
    # Without a writable cache (a container's home) wandb's service writes its debug log to stderr.
    os.environ.setdefault("WANDB_CACHE_DIR", str(root / "wandb" / "cache"))
    if mode == "offline" or not cfg.metadata:
        # Error reports carry paths, and make even an offline run look up a host name at its start.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        x_disable_machine_info=not cfg.metadata,  # git, program, host and hardware in one
        x_save_requirements=False,
        finish_timeout=cfg.finish_timeout,
        finish_timeout_raises=True,
    )
    if not cfg.metadata:
        settings.host = "-"  # left empty, wandb fills in the machine's name
    if mode == "online":
        settings.init_timeout = cfg.init_timeout
        # Named, so that it is the server whose key was found: for any other wandb would ask for one.
        settings.base_url = base_url()
    run = wandb.init(
        mode=mode,
        entity=cfg.entity,
        project=cfg.project,
        dir=str(root),
        # By default a run that somebody forgot to close would be handed out instead of a new one.
        reinit="create_new",
        settings=settings,
        **about,
    )
    # The x axis of curves is the optimiser's step; wandb's own step also counts tables and pictures.
    for counter in ("trainer/global_step", "epoch"):
        run.define_metric(counter, hidden=True)
    for curves in ("train/*", "val/*"):
        run.define_metric(curves, step_metric="trainer/global_step")
    return run


def _view_logger(run: wandb.Run, root: Path, curve: Callable[[str], str]) -> WandbLogger:
    from lightning.pytorch.loggers import WandbLogger

    class ViewLogger(WandbLogger):
        """A WandbLogger whose failures do not end the training that it only watches."""

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            with only_a_view("A metric"):
                super().log_metrics({curve(name): value for name, value in metrics.items()}, step)

        def log_hyperparams(self, *args: object, **kwargs: object) -> None:
            """Do nothing: the run has its whole config, and Lightning would turn nested parts into text."""

    return ViewLogger(experiment=run, project=run.project, id=run.id, name=run.name, save_dir=root)


@contextmanager
def only_a_view(what: str) -> Iterator[None]:
    """Turn an exception of the body into one sentence: Weights & Biases must not be the reason why a cell fails."""
    try:
        yield
    except Exception as error:
        _say(f"{what} did not reach Weights & Biases ({_first_line(error)}); the run goes on without it.")


def _say(sentence: str) -> None:
    """Print a sentence on stderr, once per process."""
    if sentence not in _said:
        _said.add(sentence)
        print(sentence, file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def _plain(value: object, where: str) -> Any:
    """Copy nested dicts and lists of None, bool, int, float, str; refuse anything else by its full name."""
    if isinstance(value, str) and "${" in value:
        raise TypeError(f"{where}={value!r} is not resolved")
    # Exact types: a numpy float or a DictConfig would reach W&B as text.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        return [_plain(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"{where} has the key {key!r}, which is not a string")
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    raise TypeError(f"{where} is a {type(value).__name__}, not plain data")


def _table_cell(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no nan, and a browser refuses the whole table for one
    return value


def _installed() -> bool:
    spec = importlib.util.find_spec("wandb")
    # A run leaves a folder `wandb` behind; in the working directory it would look like a namespace package.
    return spec is not None and spec.origin is not None


def base_url() -> str:
    """The server that wandb would use: the environment's, else that of `wandb login --host`, else its own."""
    settings = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError, RuntimeError, UnicodeError):
        folder = Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()
        settings.read(folder / "settings")
    stored = settings.get("default", "base_url", fallback="")
    return (os.environ.get("WANDB_BASE_URL") or stored or DEFAULT_URL).rstrip("/")


def _has_key(url: str) -> bool:
    """Whether wandb would find an API key for the server without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    hosts = {urlsplit(url).netloc} | ({OLDER_HOST} if url == DEFAULT_URL else set())
    candidates = [os.environ["NETRC"]] if os.environ.get("NETRC") else ["~/.netrc", "~/_netrc"]
    for candidate in candidates:
        with suppress(OSError, RuntimeError, UnicodeError, netrc.NetrcParseError):
            entries = netrc.netrc(Path(candidate).expanduser()).hosts
            # Not .authenticators(): a `default` entry is a password for elsewhere.
            return any(host in entries and entries[host][2] for host in hosts)
    return False


@functools.cache
def _answers(url: str, timeout: float) -> bool:
    """Whether a TCP connection to the server, or to the proxy on the way, opens within ``timeout`` s."""
    opened = threading.Event()

    def knock() -> None:
        with suppress(OSError, ValueError, KeyError), socket.create_connection(_address(url), timeout):
            opened.set()

    # In a thread of its own, because a name server that is silent is not bound by the socket's timeout.
    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(timeout)
    return opened.is_set()


def _address(url: str) -> tuple[str, int]:
    """Host and port of the server, or of the proxy on the way; ``ValueError`` or ``KeyError`` if unusable."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.netloc):
        parts = urlsplit(proxy)
    if not parts.hostname:
        raise ValueError(f"{url} names no host")
    return parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]
