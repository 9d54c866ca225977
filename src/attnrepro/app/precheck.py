"""Everything that is checked before anything runs: compose, expand the grid, type every cell, look what is done."""

import contextlib
import copy
import difflib
import functools
import io
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from attnrepro import environment, paths
from attnrepro.app import grid
from attnrepro.codeversion import code_version
from attnrepro.config import SCALES, BadInput, Cell, Config, digest, load_yaml, make_cell, typed
from attnrepro.results.published import load_published
from attnrepro.results.store import Record, Store

# One value a command: these choose the grid itself (Hydra silently drops or reuses grids when they are swept), or how
# and where its cells go, which is no part of a cell's key.
NOT_SWEPT = re.compile(
    r"experiment|scale|results|stale|trainer|trainer\.accelerator|data\.(root|deadline)|tracking(\..*)?|hydra[./].*"
)


@dataclass
class Planned:
    """One cell of a plan: its typed configuration, the overrides that make it, and what is on disk."""

    cell: Cell
    config: Config
    overrides: list[str]
    record: Record | None
    code: str

    @property
    def stale(self) -> bool:
        """Finished, but by other code than today's."""
        return self.record is not None and self.record.code != self.code

    @property
    def to_run(self) -> bool:
        """Not finished, or stale and to be rerun."""
        return self.record is None or (self.stale and self.config.stale == "rerun")


@dataclass
class Plan:
    """What one command asks for."""

    table: str
    config: Config
    store: Store
    accelerator: str
    cells: list[Planned] = field(default_factory=list)
    one_cell: bool = False
    hydra_overrides: list[str] = field(default_factory=list)

    @property
    def to_run(self) -> list[Planned]:
        """Cells that have to be measured."""
        return [planned for planned in self.cells if planned.to_run]

    def is_done(self, planned: Planned) -> bool:
        """Whether a cell that was to run has its result by now."""
        record = self.store.find(planned.cell.table, planned.cell.key)
        return record is not None and (record.code == planned.code or planned.config.stale == "keep")


def make_plan(arguments: Sequence[str], *, multirun: bool = False, check_inputs: bool = True) -> Plan:
    """Compose, expand and check everything that ``arguments`` (Hydra overrides) ask for.

    Without ``check_inputs`` the tables in ``needs`` may still be empty; keys are then not those of the store.

    Raises ``BadInput`` with one sentence. Runs no cell, writes nothing, imports no torch.
    """
    with _composer() as parser:
        overrides = _parse(parser, arguments)
        sweeps = [o for o in overrides if o.is_sweep_override()]
        for override in sweeps:
            if NOT_SWEPT.fullmatch(override.key_or_group):
                raise BadInput(
                    f"{override.key_or_group} cannot be swept, because it is no part of what a cell measures:"
                    " run one command for each value"
                )
        base = [o for o in overrides if _chooses(o) and not o.is_sweep_override() and not _of_hydra(o)]
        for override in overrides:
            if _chooses(override):
                _check_choice(override)
        scale = _scale(overrides)
        fixed = [o.input_line or "" for o in base] + [f"scale={scale}"]
        plugins = [o.input_line or "" for o in overrides if o.key_or_group.startswith("hydra/")]
        frame = _compose([*fixed, *plugins], with_hydra=True)
        table = frame.get("table")
        if not table:
            raise BadInput(f"choose a table with experiment=<table>; there are: {', '.join(paths.table_names())}")
        _check_images(str(table), overrides)
        # Images may be an axis of the grid, and what the command line says replaces an axis.
        fixed = [o.input_line or "" for o in base if o.key_or_group != "data"] + [f"scale={scale}"]
        values = [o for o in overrides if (o not in base or o.key_or_group == "data") and o.key_or_group != "scale"]
        _check_keys(frame, values)
        hydra_values = [o for o in values if _of_hydra(o)]
        _check_hydra(hydra_values, [*fixed, *plugins])
        values = [o for o in values if o not in hydra_values]
        mode = _mode(frame, hydra_values, multirun)
        if mode == "RUN" and any(o.is_sweep_override() for o in values):
            swept = ", ".join(o.key_or_group for o in values if o.is_sweep_override())
            raise BadInput(f"hydra.mode=RUN is one cell, but {swept} has several values: leave out hydra.mode=RUN")
        points = _points(parser, frame, values, star=scale == "smoke") if mode == "MULTIRUN" else [_one(values)]
        plan = _check_cells(points, fixed, check_inputs=check_inputs)
        plan.one_cell = mode == "RUN"
        # The mode is decided and the grid expanded; what is left chooses a launcher or sets it up.
        plan.hydra_overrides = [o.input_line or "" for o in hydra_values if o.key_or_group != "hydra.mode"]
        if plan.to_run:
            _check_results(plan.store.root)
            _check_published(plan.table)
            _check_data(plan)
        return plan


def _check_data(plan: Plan) -> None:
    """A folder of images that is named and not there is a slip of the pen, not data that cannot be had."""
    for root in {planned.config.data.root for planned in plan.to_run if planned.config.data.name != "none"}:
        if root is not None and not Path(root).expanduser().is_dir():
            raise BadInput(f"data.root={root}: there is no such folder")


def _check_images(table: str, overrides: Sequence[Override]) -> None:
    """Images for a table that looks at none would give its cells other keys and the same rows."""
    asked = [o for o in overrides if o.key_or_group == "data" or o.key_or_group.startswith("data.")]
    if asked and _compose([f"experiment={table}"], with_hydra=False).data.name == "none":
        raise BadInput(f"{asked[0].input_line}: {table} is not measured on images of a data set")


def _check_published(table: str) -> None:
    """A file of printed numbers that cannot be read is said before hours of measuring for it, not after."""
    path = paths.published_dir() / f"{table}.csv"
    if path.is_file():
        try:
            load_published(path)
        except ValueError as error:
            raise BadInput(str(error)) from error


def _check_results(root: Path) -> None:
    """Say before any work that its results could not be written; creates nothing."""
    present = next(path for path in (root, *root.parents) if path.exists())
    if not present.is_dir():
        raise BadInput(f"results={root}: {present} is not a folder")
    if not os.access(present, os.W_OK | os.X_OK):
        raise BadInput(f"results={root}: {present} cannot be written to")


@contextlib.contextmanager
def _composer() -> Iterator[OverridesParser]:
    """Hydra initialised on our configuration, quiet; afterwards it is as it was, also in the middle of its own loop."""
    instance = GlobalHydra.instance()
    before = instance.hydra
    instance.clear()
    logging.getLogger("hydra").setLevel(logging.ERROR)
    try:
        with initialize_config_dir(str(paths.conf_dir()), version_base="1.3", job_name="attnrepro"):
            yield OverridesParser.create(config_loader=instance.config_loader())
    finally:
        instance.clear()
        instance.hydra = before


def _parse(parser: OverridesParser, arguments: Sequence[str]) -> list[Override]:
    parsed: dict[str, Override] = {}
    for argument in arguments:
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            raise BadInput(f"{argument!r} is not a setting of the form key=value") from error
        key = override.key_or_group
        if not key:
            raise BadInput(f"{argument!r} is not a setting of the form key=value")
        if key == "table":
            raise BadInput(f"{argument}: a table is chosen with experiment=<table>")
        if _of_hydra(override):
            if key.startswith(("hydra.sweeper", "hydra/sweeper")):
                raise BadInput(f"{argument}: a grid is changed by its keys themselves, as in params.<key>=1,2,3")
            parsed[key] = override
            continue
        if override.is_delete():
            raise BadInput(f"{argument}: keys cannot be removed, a cell needs all of them")
        if override.is_add() and not override.is_force_add():
            raise BadInput(f"{argument}: nothing can be added to a table; write {key}=... to change the key {key}")
        parsed[key] = override  # as in Hydra, the last one wins
    return list(parsed.values())


def _of_hydra(override: Override) -> bool:
    return override.key_or_group.startswith(("hydra.", "hydra/"))


# Where Hydra takes keys of any name.
OPEN = ("hydra.job.env_set.", "hydra.launcher.", "hydra.job_logging.", "hydra.hydra_logging.")


def _check_hydra(overrides: Sequence[Override], base: Sequence[str]) -> None:
    """Hydra's own keys must be there and take their values; they are composed here as they will be for the jobs."""
    values = [o for o in overrides if o.key_or_group.startswith("hydra.") and o.key_or_group != "hydra.mode"]
    for override in values:
        key, written = override.key_or_group, override.input_line or ""
        if key == "hydra.job.chdir":
            raise BadInput(f"{written}: a relative results= would move with the working directory of the jobs")
        if override.is_add() and not override.is_force_add() and not key.startswith(OPEN):
            raise BadInput(f"{written}: nothing can be added there; write {key}=... to change the key {key}")
    if values:
        _compose([*base, *(o.input_line or "" for o in values)], with_hydra=True)


def _chooses(override: Override) -> bool:
    """Whether an override chooses a configuration file; a mapping given to a group sets its keys."""
    return _names_group(override.key_or_group) and not isinstance(override.value(), dict)


def _check_choice(override: Override) -> None:
    group = override.key_or_group
    options = GlobalHydra.instance().config_loader().get_group_options(group)
    values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    wrong = [value for value in values if not isinstance(value, str) or value not in options]
    if wrong:
        written = str(wrong[0]) if len(values) > 1 else (override.input_line or "").partition("=")[2]
        near = difflib.get_close_matches(written, options, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        what = "table" if group == "experiment" else group
        raise BadInput(f"{group}={written}: there is no such {what}; {hint}choices: {', '.join(options)}")


def _scale(overrides: Sequence[Override]) -> str:
    """The scale by name: ``auto`` is resolved here, before any key is made from it."""
    chosen = [str(o.value()) for o in overrides if o.key_or_group == "scale"]
    scale = chosen[0] if chosen else "auto"
    if scale != "auto":
        if scale not in SCALES:
            raise BadInput(f"scale={scale} must be one of auto, {', '.join(SCALES)}")
        return scale
    wanted = {o.key_or_group: str(o.value()) for o in overrides if not o.is_sweep_override()}
    accelerator = wanted.get("trainer.accelerator") or wanted.get("trainer", "auto")
    return "full" if accelerator != "cpu" and environment.cuda_device() else "cpu"


def _compose(overrides: Sequence[str], *, with_hydra: bool) -> DictConfig:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return compose(config_name="config", overrides=list(overrides), return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError) as error:
        raise BadInput(f"{' '.join(overrides)}: {str(error).strip().splitlines()[0]}") from error


def _flat(node: Any, prefix: str = "") -> list[str]:
    names: list[str] = []
    if isinstance(node, DictConfig):
        for name in node:
            full = f"{prefix}{name!s}"
            names += [full, *_flat(node._get_node(name), f"{full}.")]
    return names


def _check_keys(frame: DictConfig, values: Sequence[Override]) -> None:
    known = _flat(frame)
    for override in values:
        key = override.key_or_group
        if key in known or _names_group(key) or (key.startswith("hydra.") and override.is_add()):
            continue
        last = {name.rsplit(".", 1)[-1]: name for name in known}
        near = difflib.get_close_matches(key, known, n=1) or [
            last[match] for match in difflib.get_close_matches(key.rsplit(".", 1)[-1], list(last), n=1)
        ]
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"keys: {', '.join(k for k in known if '.' not in k and k != 'hydra')}"
        )
        raise BadInput(f"unknown key {key}; {hint}")


def _mode(frame: DictConfig, hydra_values: Sequence[Override], multirun: bool) -> str:
    for override in hydra_values:
        if override.key_or_group == "hydra.mode" and override.is_sweep_override():
            raise BadInput("hydra.mode must be RUN or MULTIRUN, one of them")
        if override.key_or_group == "hydra.mode":
            mode = str(override.value()).upper()
            if mode not in ("RUN", "MULTIRUN"):
                raise BadInput(f"hydra.mode={override.value()} must be RUN or MULTIRUN")
            return mode
    configured = OmegaConf.select(frame, "hydra.mode")
    return "MULTIRUN" if multirun or (configured and "MULTIRUN" in str(configured)) else "RUN"


def _points(parser: OverridesParser, frame: DictConfig, values: Sequence[Override], *, star: bool) -> list[grid.Point]:
    sweeper = frame.hydra.sweeper
    main = OmegaConf.select(sweeper, "params") or {}
    also = OmegaConf.select(sweeper, "also") or []
    # A key that a file of the table misspells must be found like one on the command line.
    grids = [parser.parse_overrides([f"{key}={g[key]}" for key in g]) for g in [main, *also]]
    for one in grids:
        _check_keys(frame, one)
    return grid.expand(grids, values, star=star)


def _one(values: Sequence[Override]) -> grid.Point:
    points = grid.expand([[]], values, star=False)
    return points[0]


def _check_cells(
    points: Sequence[grid.Point],
    fixed: Sequence[str],
    *,
    check_inputs: bool,
) -> Plan:
    """Type every cell. One composition serves all points that choose the same groups."""
    frames: dict[tuple[str, ...], DictConfig] = {}
    plan: Plan | None = None
    keys: set[str] = set()
    is_group = functools.cache(_names_group)  # Hydra looks through its folders at every question
    swept = {s.key for point in points for s in point if s not in points[0]}
    for point in points:
        groups = tuple(s.text for s in point if is_group(s.key) and not isinstance(s.value, dict))
        if groups not in frames:
            frames[groups] = _without_grids(_compose([*fixed, *groups], with_hydra=False))
        cfg = copy.deepcopy(frames[groups])
        with open_dict(cfg):
            for setting in point:
                if setting.text not in groups:
                    OmegaConf.update(cfg, setting.key, setting.value, merge=True, force_add=True)  # as Hydra does
        where = ", ".join(s.text for s in point if s.key in swept)
        try:
            config = typed(cfg, copy=False)
            cell, store = resolve(config, check_inputs=check_inputs)
        except BadInput as error:
            shown = f" (in the cell {where})" if where else ""
            raise BadInput(f"{error}{shown}") from error
        if plan is None:
            plan = Plan(config.table, config, store, cell.accelerator)
        if cell.key in keys:
            continue
        keys.add(cell.key)
        texts = [*fixed, *(s.text for s in point)]
        record = plan.store.find(cell.table, cell.key)
        plan.cells.append(Planned(cell, config, texts, record, code_version(cell.table)))
    if plan is None:
        raise BadInput("the grid is empty: give each swept key at least one value")
    return plan


def _without_grids(frame: DictConfig) -> DictConfig:
    """The configuration without the grids of its scales, which are expanded already.

    Every cell copies and resolves all that is there, and they are most of it.
    """
    scales = frame.get("scales")
    if isinstance(scales, DictConfig):
        with open_dict(frame):
            for scale in scales.values():
                if isinstance(scale, DictConfig):
                    scale.pop("also", None)
    return frame


def _names_group(key: str) -> bool:
    return bool(GlobalHydra.instance().config_loader().get_group_options(key))


def resolve(config: Config, *, check_inputs: bool = True) -> tuple[Cell, Store]:
    """The cell that a typed configuration means on this machine, and the store it is recorded in."""
    accelerator = _accelerator(config)
    if config.results == "":  # results=$UNSET must not mean results/ of the repository
        raise BadInput("results= is empty: name a folder or leave it out")
    store = Store(paths.results_dir(config.results))
    hardware = f"{environment.device_name(accelerator)}|{environment.processor()}"
    inputs = inputs_digest(store, config.table, config.needs, config.scale) if check_inputs else ""
    return make_cell(config, accelerator=accelerator, hardware=hardware, inputs=inputs), store


def _accelerator(config: Config) -> str:
    """``cpu`` or ``cuda``. Raises ``BadInput`` when a GPU is asked for and there is none."""
    wanted = config.trainer.accelerator
    if wanted != "cpu" and environment.cuda_device():
        return "cuda"
    if wanted == "gpu":
        raise BadInput("trainer.accelerator=gpu: no CUDA device can be used here; choose trainer=cpu or trainer=auto")
    if config.trainer.precision == "16-mixed":
        raise BadInput("trainer.precision=16-mixed exists on a GPU only: on the CPU choose bf16-mixed or 32-true")
    return "cpu"


@functools.cache
def own_grid(table: str, scale: str) -> tuple[dict[str, Any], ...]:
    """The scientific configuration of every cell of the table's own grid, in its order."""
    plan = make_plan([f"experiment={table}", f"scale={scale}", "trainer=cpu"], check_inputs=False)
    return tuple(planned.cell.science() for planned in plan.cells)


def rows_read(store: Store, table: str, scale: str) -> list[Record]:
    """What a table that needs another one reads of it: the finished cells of its own grid at the same scale.

    Where the other one reads rows itself, those cells that were made from the rows there are now.
    """
    grid_ = {digest(science) for science in own_grid(table, scale)}
    found = [record for record in store.finished(table) if digest(record.science) in grid_]
    needs = load_yaml(paths.conf_dir() / "experiment" / f"{table}.yaml").get("needs") or []
    if not needs:
        return found
    inputs = inputs_digest(store, table, needs, scale)
    return [record for record in found if record.run.get("inputs") == inputs]


def inputs_digest(store: Store, table: str, needs: Sequence[str], scale: str) -> str:
    """Digest of the rows that ``table`` reads of those it ``needs``, part of its key; empty without needs.

    Raises ``BadInput`` when there are none to read.
    """
    found: dict[str, list[str]] = {}
    for need in needs:
        if need not in paths.table_names():
            raise BadInput(f"needs={need}: there is no such table; choices: {', '.join(paths.table_names())}")
        records = rows_read(store, need, scale)
        if not records:
            raise BadInput(
                f"{table} reads the rows of {need}, and there are none at scale {scale}:"
                f" make reproduce TABLE={table} runs both in order"
            )
        found[need] = [str(record.done["sha256"]["rows.csv"]) for record in records]
    return digest(found) if found else ""


def plan_text(plan: Plan, seconds: Sequence[float | None]) -> str:
    """The plan for ``--dry-run``: a line a cell, what would be reused, and the predicted time."""
    lines = []
    for planned, guess in zip(plan.cells, seconds, strict=True):
        state = "run" if planned.to_run else "reuse (stale)" if planned.stale else "reuse"
        swept = " ".join(t for t in planned.overrides if not t.startswith(("experiment=", "scale=")))
        time = "" if not planned.to_run else "   ? s" if guess is None else f"{guess:4.0f} s"
        lines.append(f"  {planned.cell.key}  {state:13s} {time:>6s}  {swept}")
    run = [g for p, g in zip(plan.cells, seconds, strict=True) if p.to_run]
    total = sum(g for g in run if g is not None)
    lines.append(
        f"{plan.table} at scale {plan.config.scale}: {len(plan.cells)} cells, {len(run)} to run,"
        f" {len(plan.cells) - len(run)} reused, predicted {total:.0f} s on one core"
    )
    return "\n".join(lines)
