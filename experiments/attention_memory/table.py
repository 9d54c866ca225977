"""attention_memory, the torch-free half: parameters and closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import attention_memory as closed

NAME = "attention_memory"
AXES = ("side", "patch", "dtype", "prefix", "batch", "queries", "doubled", "attention", "phase", "length")

UNITS = {prefix: units for prefix, (_, units) in closed.PREFIXES.items()}
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
ATTENTIONS = ("naive", "fused")
PHASES = ("forward", "training")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/attention_memory.yaml`` says what each means."""

    study: str
    sides: list[int]
    pixel_sides: list[int]
    patch: int
    dtypes: list[str]
    embed_dim: int
    num_heads: int
    depth: int
    batch_sizes: list[int]
    lengths: list[int]
    dtype: str

    def __post_init__(self) -> None:
        one_of(self, study=("sizes", "peaks"), dtypes=tuple(closed.ITEM_BYTES), dtype=tuple(closed.ITEM_BYTES))
        distinct(self, "sides", "pixel_sides", "dtypes", "batch_sizes", "lengths")
        in_range(self, sides=(2, 2**14), pixel_sides=(1, 2**10), patch=(2, 2**10), embed_dim=(1, 2**14))
        in_range(self, num_heads=(1, 2**10), depth=(1, 2**10), batch_sizes=(1, 2**20), lengths=(2, 2**17))
        if self.embed_dim % self.num_heads:
            raise ValueError(f"embed_dim={self.embed_dim} must be a multiple of num_heads={self.num_heads}")
        for side in self.sides:
            if side % self.patch:
                raise ValueError(f"sides={side} must be a multiple of patch={self.patch}")

    @property
    def head_dim(self) -> int:
        """Components of a query of one head."""
        return self.embed_dim // self.num_heads


def images(p: Params) -> list[tuple[int, int]]:
    """Images as (side, patch): those cut into patches, then those taken pixel by pixel."""
    return [(side, p.patch) for side in p.sides] + [(side, 1) for side in p.pixel_sides]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    return 1.0 if p.study == "sizes" else 1.0 + sum(length**2 for length in p.lengths) * p.embed_dim * 1.2e-9


# --- closed forms ---


def theory(cell: Cell) -> list[Row]:
    """Closed forms of all sizes and of the peak of naive attention (``attnrepro.theory.attention_memory``)."""
    p = cell.params
    if p.study == "sizes":
        made = _sizes(p)
        return [Row(name, value, axes, "theory", "exact", unit=unit) for name, value, unit, axes in made]
    return [
        Row(name, value, {**at, "length": length, "dtype": p.dtype}, "theory", statistic, unit="B")
        for length in p.lengths
        for name, statistic, value, at in _of_length(p, length)
    ]


def _of_length(p: Params, length: int) -> Iterator[tuple[str, str, float, dict[str, object]]]:
    yield "matrix_bytes", "exact", p.num_heads * length**2 * closed.ITEM_BYTES[p.dtype], {}
    for phase in PHASES:
        peak = closed.naive_peak(phase, p.num_heads, length, p.head_dim, p.dtype)
        yield "peak_bytes", "value", peak, {"attention": "naive", "phase": phase}
    held = closed.naive_held(p.num_heads, length, p.head_dim, p.dtype)
    yield "held_bytes", "value", held, {"attention": "naive", "phase": "training"}


def _sizes(p: Params) -> Iterator[tuple[str, float, str, dict[str, object]]]:
    for side, patch in images(p):
        at: dict[str, object] = {"side": side, "patch": patch}
        yield "patches_per_side", closed.patches_per_side(side, patch), "", at
        yield "tokens", closed.tokens(side, patch), "", at
        yield "score_entries", closed.score_entries(side, patch), "", at
        for dtype in p.dtypes:
            for prefix in closed.PREFIXES:
                value, unit = closed.in_unit(closed.score_bytes(side, patch, dtype), prefix)
                yield "score_size", value, unit, {**at, "dtype": dtype, "prefix": prefix}
        if patch > 1:
            yield from _of_patches(p, side)


def _of_patches(p: Params, side: int) -> Iterator[tuple[str, float, str, dict[str, object]]]:
    at: dict[str, object] = {"side": side, "patch": p.patch}
    if side in p.pixel_sides:
        yield "patching_factor", closed.patching_factor(p.patch), "", at
    yield "entries_factor", 2**2, "", {**at, "doubled": "length"}
    yield "entries_factor", 2**4, "", {**at, "doubled": "side"}
    yield "scores_computed", closed.score_entries(side, p.patch), "", {**at, "queries": "all"}
    yield "scores_computed", closed.tokens(side, p.patch), "", {**at, "queries": "one"}
    for dtype in p.dtypes:
        for batch in p.batch_sizes:
            size = closed.stored_bytes(side, p.patch, dtype, num_heads=p.num_heads, depth=p.depth, batch=batch)
            yield "stored_size", size / closed.GIB, "GiB", {**at, "dtype": dtype, "batch": batch}
