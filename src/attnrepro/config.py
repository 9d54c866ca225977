"""The typed configuration: what a table may say, what a cell is, and the key that names it.

Hydra composes plain YAML; ``typed`` merges it into these dataclasses and into the table's own ``Params``, so that
a misspelt key, a wrong type or an out-of-range value is one sentence before any work starts.
"""

import copy
import dataclasses
import functools
import hashlib
import importlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from attnrepro.paths import experiments_dir

SCALES = ("smoke", "cpu", "full")
ACCELERATORS = ("auto", "cpu", "gpu")
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true")
DATA = ("none", "digits", "fashion_mnist", "cifar10", "cifar100", "hub")


# In a YAML: ${range:64} or ${range:64,256} are seeds by the hundred without listing them, and
# ${min:${presets...},${scales...}} lets scale smoke cut a value short that a preset names.
OmegaConf.register_new_resolver("range", lambda *ends: OmegaConf.create(list(range(*ends))), replace=True)
OmegaConf.register_new_resolver("min", min, replace=True)


class BadInput(ValueError):
    """The user asked for something that cannot be run; its text is the one sentence they get (exit code 2)."""


def in_range(params: object, **bounds: tuple[float, float]) -> None:
    """Raise ``ValueError`` naming the field unless every given field (or item of a list) lies in its bounds."""
    for name, (low, high) in bounds.items():
        value = getattr(params, name)
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is not None and not low <= item <= high:
                raise ValueError(f"{name}={_show(value)} must lie between {_show(low)} and {_show(high)}")


def one_of(params: object, **choices: Sequence[object]) -> None:
    """Raise ``ValueError`` naming the field unless every given field (or item of a list) is a listed choice."""
    for name, allowed in choices.items():
        value = getattr(params, name)
        for item in value if isinstance(value, list | tuple) else [value]:
            if item not in allowed:
                raise ValueError(f"{name}={_show(value)} must be one of {', '.join(map(str, allowed))}")


def distinct(params: object, *names: str) -> None:
    """Raise ``ValueError`` unless each named list has at least one item and none twice."""
    for name in names:
        value = getattr(params, name)
        if not value or len(set(value)) != len(value):
            raise ValueError(f"{name}={_show(value)} must list at least one value, each once")


def _show(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_show, value)) + "]"
    return str(value)


@dataclass
class TrainerConfig:
    """How the Lightning Trainer runs a cell."""

    accelerator: str
    precision: str
    threads: int

    def __post_init__(self) -> None:
        one_of(self, accelerator=ACCELERATORS, precision=PRECISIONS)
        in_range(self, threads=(1, 1024))


@dataclass
class TrackingConfig:
    """Where Weights & Biases runs go; see ``attnrepro.app.tracking``."""

    mode: str
    project: str
    entity: str | None = None
    metadata: bool = False
    probe_timeout: float = 2.0
    init_timeout: float = 5.0
    finish_timeout: float = 8.0

    def __post_init__(self) -> None:
        one_of(self, mode=("auto", "online", "offline", "disabled"))
        in_range(self, probe_timeout=(0.1, 60), init_timeout=(1, 600), finish_timeout=(1, 600))
        if not 1 <= len(self.project) <= 128 or re.search(r"[/\\#?%:]", self.project):
            raise ValueError(f"project={self.project!r} must be 1 to 128 characters long and hold none of / \\ # ? % :")


@dataclass
class DataConfig:
    """The image set that a table is measured on; see ``attnrepro.data.images``.

    ``path`` (a set of the Hugging Face hub), ``revision``, splits and columns belong to sets that are read from
    parquet files. ``root`` is a folder with the files of any set, ``deadline`` the seconds that one download may take.
    """

    name: str = "none"
    path: str | None = None
    revision: str | None = None
    train_split: str | None = None
    test_split: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    root: str | None = None
    deadline: float = 600.0

    def __post_init__(self) -> None:
        one_of(self, name=DATA)
        in_range(self, deadline=(1, 86400))
        if self.root == "":
            raise ValueError("root= is empty: name a folder or leave it out")
        if self.name not in ("cifar10", "cifar100", "hub"):
            return
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.path or ""):
            raise ValueError(f"path={_show(self.path)} must name a set of the Hugging Face hub, as in owner/name")
        for name in ("train_split", "test_split", "image_column", "label_column"):
            if not getattr(self, name):
                raise ValueError(f"{name}={_show(getattr(self, name))} must be the name that {self.path} gives it")
        if self.root is None and not re.fullmatch("[0-9a-f]{40}", self.revision or ""):
            raise ValueError(
                f"revision={_show(self.revision)} must be the 40 hex digits of a commit of {self.path},"
                " unless root names a folder with its files"
            )

    def science(self) -> dict[str, object]:
        """What decides which images there are: everything but where they lie and how long they may take to come."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("root", "deadline")}
        return {name: value for name, value in named.items() if value is not None}


@dataclass
class Config:
    """Everything one cell was asked to be; ``params`` holds the table's own ``Params``."""

    table: str
    title: str
    document: str
    question: str
    how_to_read: str
    scale: str
    seeds: list[int]
    params: Any
    trainer: TrainerConfig
    tracking: TrackingConfig
    data: DataConfig = field(default_factory=DataConfig)
    scales: Any = None
    presets: Any = None
    kind: str = "measured"
    timing: bool = False
    needs: list[str] = field(default_factory=list)
    results: str | None = None
    stale: str = "keep"

    def __post_init__(self) -> None:
        one_of(self, kind=("measured", "derived"), scale=SCALES, stale=("keep", "rerun"))
        distinct(self, "seeds")
        in_range(self, seeds=(0, 2**63 - 1))


@dataclass(frozen=True)
class Cell:
    """One point of a table's grid, resolved and typed: what ``measure`` gets.

    ``key`` names it: 12 hex digits of the sha256 over everything that can change its rows.
    """

    table: str
    scale: str
    seeds: tuple[int, ...]
    params: Any
    precision: str
    threads: int
    accelerator: str
    kind: str
    timing: bool
    needs: tuple[str, ...]
    key: str
    data: DataConfig = field(default_factory=DataConfig)

    def science(self) -> dict[str, object]:
        """The part of the configuration that can change the rows, as plain data."""
        science: dict[str, object] = {
            "table": self.table,
            "scale": self.scale,
            "seeds": list(self.seeds),
            "params": plain(self.params),
            "precision": self.precision,
        }
        if self.data.name != "none":  # tables without images keep the keys they had before there were any
            science["data"] = self.data.science()
        return {**science, "threads": self.threads} if self.timing else science


def plain(params: object) -> dict[str, object]:
    """``Params`` as plain data for the key and the record.

    A field that was added later says ``metadata={"as_before": value}``; at that value it is left out, so that
    rows recorded before it existed keep their keys.
    """
    if not dataclasses.is_dataclass(params) or isinstance(params, type):
        raise TypeError(f"params must be a dataclass instance, not {type(params).__name__}")
    return {
        f.name: _plain_value(getattr(params, f.name))
        for f in dataclasses.fields(params)
        if not ("as_before" in f.metadata and f.metadata["as_before"] == getattr(params, f.name))
    }


def _plain_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    return value


def table_module(table: str) -> ModuleType:
    """The torch-free half of a table, ``experiments/<table>/table.py``."""
    return importlib.import_module(f"attnrepro.tables.{table}.table")


def reading_module(table: str) -> ModuleType:
    """What reads a table's rows: ``experiments/<table>/reading.py``, or ``table.py`` where there is none."""
    if (experiments_dir() / table / "reading.py").is_file():
        return importlib.import_module(f"attnrepro.tables.{table}.reading")
    return table_module(table)


def typed(cfg: DictConfig | Mapping[str, Any], *, copy: bool = True) -> Config:
    """Strictly check a composed configuration and return it as dataclasses.

    With ``copy`` false the configuration, which then holds nothing of Hydra's own, is used up.

    Raises ``BadInput`` with one sentence that names the full key.
    """
    raw = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(dict(cfg))
    # The caller's configuration keeps its interpolations, and Hydra's own node is not ours to check.
    body = OmegaConf.masked_copy(raw, [str(name) for name in raw if name != "hydra"]) if copy else raw
    try:
        OmegaConf.resolve(body)
    except OmegaConfBaseException as error:
        raise BadInput(f"{_unresolved(body, error)}: {_missing_preset(body, error) or _first_line(error)}") from error
    table = body.get("table")
    if not table:
        raise BadInput("the configuration names no table: choose one with experiment=<table>")
    kinds = {"params": _params_of(str(table)), "trainer": TrainerConfig, "tracking": TrackingConfig, "data": DataConfig}
    for node in kinds:
        if node == "data" and node not in body:
            continue
        if not isinstance(body.get(node), DictConfig):
            raise BadInput(f"{node}={body.get(node)} must be a group of keys: set {node}.<key>=<value>")
    # Nothing refers to these any more, and what is merged is copied.
    with open_dict(body):
        for name in ("scales", "presets"):
            body.pop(name, None)
    try:
        merged = OmegaConf.merge(_schema(kinds["params"]), body)
        missing = OmegaConf.missing_keys(merged)
        if missing:
            raise BadInput(f"{min(missing)} has no value: set {min(missing)}=<value>")
        _check_elements(merged, kinds)
        return _build(merged)
    except OmegaConfBaseException as error:
        raise BadInput(_one_sentence(error, body, kinds)) from error


@functools.cache
def _schema(params: type) -> DictConfig:
    schema = OmegaConf.structured(Config)
    schema.params = OmegaConf.structured(params)
    found: DictConfig = schema
    return found


def _params_of(table: str) -> type:
    if not table.isidentifier():
        raise BadInput(f"table={table} is not the name of a table")
    try:
        found: type = table_module(table).Params
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("attnrepro.tables"):
            raise
        raise BadInput(f"table={table}: there is no experiments/{table}/table.py") from error
    return found


def _check_elements(merged: Any, kinds: Mapping[str, type]) -> None:
    """OmegaConf lets a list through as an element of a list of numbers."""
    for node, kind in {"": Config, **kinds}.items():
        for name, hint in get_type_hints(kind).items():
            key = f"{node}.{name}" if node else name
            if get_origin(hint) is list:
                for index, value in enumerate(OmegaConf.select(merged, key)):
                    if isinstance(value, ListConfig | DictConfig):
                        shown = _show(OmegaConf.to_container(value))
                        raise BadInput(f"{key}[{index}]={shown} must be {_WORDS[get_args(hint)[0]]}")


def _build(merged: Any) -> Config:
    """Make the dataclasses innermost first, so that a range error can say which node it stands in."""
    for node in ("params", "trainer", "tracking", "data", ""):
        try:
            result = OmegaConf.to_object(OmegaConf.select(merged, node) if node else merged)
        except ValueError as error:
            if isinstance(error, OmegaConfBaseException):
                raise
            raise BadInput(f"{node}.{error}" if node else str(error)) from error
    if not isinstance(result, Config):
        raise TypeError("the merged configuration is not a Config")
    return result


def _first_line(error: OmegaConfBaseException) -> str:
    text = (error.msg or str(error)).split("\n")[0].rstrip(".")
    return f"{text[:1].lower()}{text[1:]}"


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list[int]: "a list of whole numbers, as in [1,2]",
    list[float]: "a list of numbers, as in [0.1,0.2]",
    list[bool]: "a list of true and false, as in [true,false]",
    list[str]: "a list of words, as in [a,b]",
}


def _one_sentence(error: OmegaConfBaseException, body: DictConfig, kinds: Mapping[str, type]) -> str:
    """What is wrong with which key, in the words of somebody who has never heard of OmegaConf."""
    name = error.full_key or ""
    text = _first_line(error)
    if re.match(r"key '[^']+' not in", text):
        return f"unknown key {name}"
    item = re.fullmatch(r"(.+)\[(\d+)\]", name)
    key = item[1] if item else name
    node, _, leaf = key.rpartition(".")
    hint = get_type_hints(kinds.get(node, Config)).get(leaf)
    if hint is None:
        return f"{name}: {text}" if name else text
    value = OmegaConf.select(body, key)
    shown = OmegaConf.to_container(value) if isinstance(value, DictConfig | ListConfig) else value
    if item and isinstance(shown, list):
        shown, hint = shown[int(item[2])], get_args(hint)[0]
    return f"{name}={_show(shown)} must be {_WORDS.get(hint, 'of another kind')}"


def _unresolved(node: Any, error: OmegaConfBaseException, prefix: str = "") -> str:
    """Full key of the first leaf that cannot be resolved; OmegaConf's own error often does not say."""
    for key in node if isinstance(node, DictConfig) else range(len(node)):
        name = f"{prefix}{key!r}".replace("'", "") if isinstance(node, DictConfig) else f"{prefix[:-1]}[{key!r}]"
        try:
            child = node[key]
        except OmegaConfBaseException:
            return name
        if isinstance(child, DictConfig | ListConfig) and (found := _unresolved(child, error, f"{name}.")):
            return found
    return error.full_key or ""


def _missing_preset(body: DictConfig, error: OmegaConfBaseException) -> str:
    """What to say when a value comes from a preset that there is not."""
    found = re.search(r"[Ii]nterpolation key 'presets\.([^']*)' not found", str(error))
    node = body.get("presets") if found else None
    for name in found[1].split(".") if found else ():
        if not isinstance(node, DictConfig):
            break
        if name not in node:
            return f"there is no preset {name}; choices: {', '.join(map(str, node))}"
        node = node[name]
    return ""


def make_cell(config: Config, *, accelerator: str, hardware: str, inputs: str = "") -> Cell:
    """Turn a typed configuration into a cell with its key.

    ``accelerator`` is resolved (``cpu`` or ``cuda``); ``hardware`` names device and processor and is part of the
    key of timing tables only; ``inputs`` is the digest of the rows that a table with ``needs`` reads.
    """
    cell = Cell(
        table=config.table,
        scale=config.scale,
        seeds=tuple(config.seeds),
        params=config.params,
        precision=config.trainer.precision,
        threads=config.trainer.threads,
        accelerator=accelerator,
        kind=config.kind,
        timing=config.timing,
        needs=tuple(config.needs),
        key="",
        data=config.data,
    )
    identity = cell.science()
    if config.timing:
        identity["hardware"] = hardware
    if inputs:
        identity["inputs"] = inputs
    return dataclasses.replace(cell, key=digest(identity)[:12])


def load_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as plain data, interpolations left as they stand."""
    found = path.stat()
    return copy.deepcopy(_loaded(path, found.st_mtime_ns, found.st_size))


@functools.lru_cache(maxsize=256)
def _loaded(path: Path, changed: int, size: int) -> dict[str, Any]:
    """What a file holds that last changed then: reading it takes OmegaConf some 15 ms."""
    data = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no mapping")
    return {str(key): value for key, value in data.items()}


def digest(data: object) -> str:
    """sha256 over canonical JSON."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


def canonical_json(data: object) -> str:
    """JSON with sorted keys and no spaces: equal data are equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
