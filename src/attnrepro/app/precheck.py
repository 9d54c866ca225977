"""Everything that is checked before anything runs: compose, expand the grid, type every cell, look what is done."""

import contextlib
import copy
import difflib
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from attnrepro import environment, paths
from attnrepro.app import grid
from attnrepro.codeversion import code_version
from attnrepro.config import BadInput, Cell, Config, digest, make_cell, typed
from attnrepro.results.store import Record, Store

# One value a command: these choose the grid itself (Hydra silently drops or reuses grids when they are swept) or
# where all of its cells go.
NOT_SWEPT = ("experiment", "scale", "results", "stale")


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
            if override.key_or_group in NOT_SWEPT:
                raise BadInput(
                    f"{override.key_or_group} cannot be swept, because it decides what grid there is or where it goes:"
                    " run one command for each value"
                )
        base = [o for o in overrides if _is_group(o) and not o.is_sweep_override() and not _of_hydra(o)]
        scale = _scale(overrides, base)
        fixed = [o.input_line or "" for o in base] + [f"scale={scale}"]
        plugins = [o.input_line or "" for o in overrides if o.key_or_group.startswith("hydra/")]
        frame = _compose([*fixed, *plugins], with_hydra=True)
        table = frame.get("table")
        if not table:
            raise BadInput(f"choose a table with experiment=<table>; there are: {', '.join(paths.table_names())}")
        values = [o for o in overrides if o not in base and o.key_or_group != "scale"]
        _check_keys(frame, values)
        hydra_values = [o for o in values if _of_hydra(o)]
        values = [o for o in values if o not in hydra_values]
        mode = _mode(frame, hydra_values, multirun)
        if mode == "RUN" and any(o.is_sweep_override() for o in values):
            swept = ", ".join(o.key_or_group for o in values if o.is_sweep_override())
            raise BadInput(f"hydra.mode=RUN is one cell, but {swept} has several values: leave out hydra.mode=RUN")
        points = _points(parser, frame, values, star=scale == "smoke") if mode == "MULTIRUN" else [_one(values)]
        plan = _check_cells(points, fixed, check_inputs=check_inputs)
        plan.one_cell = mode == "RUN"
        # The mode is decided and the grid expanded; what is left chooses a launcher or sets it up.
        plan.hydra_overrides = [
            o.input_line or "" for o in hydra_values if not o.key_or_group.startswith(("hydra.mode", "hydra.sweeper"))
        ]
        return plan


@contextlib.contextmanager
def _composer() -> Iterator[OverridesParser]:
    """Hydra initialised on our configuration, quiet, and cleared afterwards."""
    GlobalHydra.instance().clear()
    logging.getLogger("hydra").setLevel(logging.ERROR)
    with initialize_config_dir(str(paths.conf_dir()), version_base="1.3", job_name="attnrepro"):
        yield OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())


def _parse(parser: OverridesParser, arguments: Sequence[str]) -> list[Override]:
    parsed: dict[str, Override] = {}
    for argument in arguments:
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            raise BadInput(f"{argument!r} is not a setting of the form key=value") from error
        key = override.key_or_group
        if _of_hydra(override):
            parsed[argument] = override
            continue
        if override.is_delete():
            raise BadInput(f"{argument}: keys cannot be removed, a cell needs all of them")
        if override.is_add() and not override.is_force_add():
            raise BadInput(f"{argument}: nothing can be added to a table; write {key}=... to change the key {key}")
        parsed[key] = override  # as in Hydra, the last one wins
    return list(parsed.values())


def _of_hydra(override: Override) -> bool:
    return override.key_or_group.startswith(("hydra.", "hydra/"))


def _is_group(override: Override) -> bool:
    loader = GlobalHydra.instance().config_loader()
    return bool(loader.get_group_options(override.key_or_group))


def _scale(overrides: Sequence[Override], base: Sequence[Override]) -> str:
    """The scale by name: ``auto`` is resolved here, before any key is made from it."""
    chosen = [str(o.value()) for o in overrides if o.key_or_group == "scale"]
    scale = chosen[0] if chosen else "auto"
    if scale != "auto":
        if scale not in ("smoke", "cpu", "full"):
            raise BadInput(f"scale={scale} must be one of auto, smoke, cpu, full")
        return scale
    trainer = next((str(o.value()) for o in base if o.key_or_group == "trainer"), "auto")
    return "full" if trainer != "cpu" and environment.cuda_device() else "cpu"


def _compose(overrides: Sequence[str], *, with_hydra: bool) -> DictConfig:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return compose(config_name="config", overrides=list(overrides), return_hydra_config=with_hydra)
    except MissingConfigException as error:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        options = list(error.options or [])
        near = difflib.get_close_matches(name, options, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        what = "table" if group == "experiment" else group
        raise BadInput(f"{group}={name}: there is no such {what}; {hint}choices: {', '.join(options)}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise BadInput(str(error).split("\n")[0]) from error


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
        if key in known or _is_group(override) or (key.startswith("hydra.") and override.is_add()):
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
    for point in points:
        groups = tuple(s.text for s in point if _names_group(s.key))
        if groups not in frames:
            frames[groups] = _compose([*fixed, *groups], with_hydra=False)
        cfg = copy.deepcopy(frames[groups])
        with open_dict(cfg):
            for setting in point:
                if setting.text not in groups:
                    OmegaConf.update(cfg, setting.key, setting.value, merge=False, force_add=True)
        where = ", ".join(s.text for s in point) if len(points) > 1 else ""
        try:
            config = typed(cfg)
            cell, store = resolve(config, check_inputs=check_inputs)
        except BadInput as error:
            shown = f" (in the cell {where})" if where else ""
            raise BadInput(f"{error}{shown}") from error
        if plan is None:
            plan = Plan(config.table, config, store, cell.accelerator)
        if any(cell.key == other.cell.key for other in plan.cells):
            continue
        texts = [*fixed, *(s.text for s in point)]
        record = plan.store.find(cell.table, cell.key)
        plan.cells.append(Planned(cell, config, texts, record, code_version(cell.table)))
    if plan is None:
        raise BadInput("the grid is empty: give each swept key at least one value")
    return plan


def _names_group(key: str) -> bool:
    return bool(GlobalHydra.instance().config_loader().get_group_options(key))


def resolve(config: Config, *, check_inputs: bool = True) -> tuple[Cell, Store]:
    """The cell that a typed configuration means on this machine, and the store it is recorded in."""
    accelerator = _accelerator(config)
    store = Store(paths.results_dir(config.results))
    hardware = f"{environment.device_name(accelerator)}|{environment.processor()}"
    inputs = _inputs_digest(store, config) if check_inputs else ""
    return make_cell(config, accelerator=accelerator, hardware=hardware, inputs=inputs), store


def _accelerator(config: Config) -> str:
    """``cpu`` or ``cuda``. Raises ``BadInput`` when a GPU is asked for and there is none."""
    wanted = config.trainer.accelerator
    if wanted == "cpu":
        return "cpu"
    if environment.cuda_device():
        return "cuda"
    if wanted == "gpu":
        raise BadInput("trainer.accelerator=gpu: no CUDA device can be used here; choose trainer=cpu or trainer=auto")
    return "cpu"


def _inputs_digest(store: Store, config: Config) -> str:
    """Digest of the rows that a table with ``needs`` reads, part of its key."""
    if not config.needs:
        return ""
    found: dict[str, list[str]] = {}
    for need in config.needs:
        if need not in paths.table_names():
            raise BadInput(f"needs={need}: there is no such table; choices: {', '.join(paths.table_names())}")
        records = [r for r in store.finished(need) if r.config["scale"] == config.scale]
        if not records:
            raise BadInput(
                f"{config.table} reads the rows of {need}, and there are none at scale {config.scale}:"
                f" make reproduce TABLE={config.table} runs both in order"
            )
        found[need] = [str(record.done["rows_sha256"]) for record in records]
    return digest(found)


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
