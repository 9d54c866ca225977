"""position_encodings, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row

NAME = "position_encodings"
AXES = ("task", "encoding", "mask", "length", "embed_dim", "side", "patch")
STUDIES = ("exact", "copy", "locate")
EPS = 2.0**-52

# Codes whose shifts are looked at; those in BENT have no rotation, those in CURVED no linear map either.
SHIFTED_CODES = ("sinusoidal", "phase_shifted", "gaussian")
BENT = ("phase_shifted", "gaussian")
CURVED = ("gaussian",)

# Models of each trained task, as (encoding, mask).
COPY = tuple(
    (encoding, "full")
    for encoding in ("sinusoidal", "sinusoidal_shifted", "learned", "learned_shifted", "rotary", "none")
)
LOCATE = (
    ("none", "causal"),
    ("none", "causal_no_start"),
    ("none", "full"),
    ("sinusoidal", "full"),
    ("sinusoidal_grid", "full"),
)


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/position_encodings.yaml`` says what each means."""

    study: str
    code_lengths: list[int]
    code_dims: list[int]
    code_draws: int
    shift_shapes: list[str]
    shift_draws: int
    max_shift: int
    sides: list[int]
    patches: list[int]
    embed_dim: int
    num_heads: int
    hidden: int
    depth: int
    learning_rate: float
    batch_size: int
    steps: int
    n_test: int
    symbols: int
    distance: int
    length: int
    longer: list[int]

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES)
        distinct(self, "code_lengths", "code_dims", "shift_shapes", "sides", "patches", "longer")
        in_range(self, code_lengths=(2, 20000), code_dims=(2, 10**4), code_draws=(2, 10**4), shift_draws=(1, 10**4))
        in_range(self, max_shift=(1, 10**6), sides=(1, 10**4), patches=(1, 10**3))
        in_range(self, embed_dim=(4, 10**4), num_heads=(1, 10**3), hidden=(1, 10**5), depth=(1, 100))
        in_range(self, learning_rate=(1e-6, 1), batch_size=(1, 10**5), steps=(1, 10**6), n_test=(1, 10**6))
        in_range(self, symbols=(2, 1000), distance=(1, 10**4), length=(2, 10**4), longer=(3, 10**5))
        if any(dim % 2 for dim in self.code_dims):
            raise ValueError(f"code_dims={self.code_dims} must be even")
        if any(
            len(sizes_of(shape)) != 2 or min(sizes_of(shape)) < 2 or sizes_of(shape)[1] % 2
            for shape in self.shift_shapes
        ):
            raise ValueError(f"shift_shapes={self.shift_shapes} must be length x even embed_dim, as in 64x16")
        if any(side % patch for side in self.sides for patch in self.patches):
            raise ValueError(f"patches={self.patches} must divide sides={self.sides}")
        if self.embed_dim % self.num_heads or self.embed_dim // self.num_heads % 2 or self.embed_dim % 4:
            raise ValueError(
                f"num_heads={self.num_heads} must give heads of even size and 4 divide embed_dim={self.embed_dim}"
            )
        if self.distance >= self.length:
            raise ValueError(f"distance={self.distance} must be below length={self.length}")
        if min(self.longer) <= self.length:
            raise ValueError(f"longer={self.longer} must be above length={self.length}")


def sizes_of(shape: str) -> list[int]:
    """The numbers of a shape such as 64x16; none if it is not one."""
    parts = shape.split("x")
    return [int(part) for part in parts] if all(part.isdigit() for part in parts) else []


def rows_of_grid(length: int) -> int:
    """Rows of a grid of ``length`` places that is as square as can be."""
    return max(rows for rows in range(1, math.isqrt(length) + 1) if length % rows == 0)


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p, seeds = cell.params, len(cell.seeds)
    if p.study == "exact":
        return 1.0 + (1 + p.code_draws) * sum(n**2 for n in p.code_lengths) * sum(p.code_dims) * 6e-10
    tokens = seeds * p.batch_size * p.length
    work = tokens * (4 * p.embed_dim**2 + 2 * p.embed_dim * p.hidden + 4 * p.length * p.embed_dim) * p.depth * 6e-10
    return 1.0 + len(COPY if p.study == "copy" else LOCATE) * p.steps * (3e-3 + work)


# --- closed forms ---

Made = Iterator[tuple[str, str, float, Mapping[str, object]]]


def theory(cell: Cell) -> list[Row]:
    """Distances of codes, lengths of sequences, and what can be known without order."""
    made = {"exact": _exact, "copy": _copy, "locate": _locate}[cell.params.study]
    return [Row(name, value, axes, source="theory", statistic=kind) for name, kind, value, axes in made(cell.params)]


def _exact(p: Params) -> Made:
    from attnrepro.theory import code_distances as closed

    for dim in p.code_dims:
        for length in p.code_lengths:
            at: dict[str, object] = {"encoding": "sinusoidal", "length": length, "embed_dim": dim}
            gap, distance = closed.nearest(length, dim)
            yield "smallest_distance", "exact", distance, at
            yield "relative_distance", "exact", distance / math.sqrt(dim / 2), at
            yield "nearest_gap", "exact", gap, at
            yield "mean_square_distance", "mean", closed.gaussian_mean_square(dim), {**at, "encoding": "gaussian"}
    for side in p.sides:
        for patch in p.patches:
            yield "tokens_log10", "exact", 2 * math.log10(side // patch), {"side": side, "patch": patch}


def _copy(p: Params) -> Made:
    from attnrepro.theory import code_distances as closed

    for length in (p.length, *p.longer):
        yield "ceiling", "mean", closed.blind_copy_ceiling(length, p.symbols), {"task": "copy", "length": length}


def _locate(p: Params) -> Made:
    yield "accuracy", "mean", 1 / p.length, {"task": "locate", "encoding": "none", "mask": "full", "length": p.length}
