"""attention_cost, the torch-free half: parameters, what is timed, and FLOPs in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import attention_cost as closed

NAME = "attention_cost"
# Settings that reading needs beside the rows.
HIDDEN = ("head_dim", "fit_from")
AXES = ("attention", "projections", "phase", "length", "part", "variable", "origin", "operation")

STUDIES = ("times", "counts", "printed", "batching")
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
PARTS = ("projections", "scores")
VARIABLES = ("length", "head_dim")
ORIGINS = ("times", "multiples")
OPERATIONS = ("matrix", "loop")
# Matrices before attention: none, those of query, key and value, and the one after it as well.
PROJECTIONS = (3, 4)
# attention, projections and phase of everything that is timed.
KINDS = (
    ("none", 3, "forward"),
    ("naive", 3, "forward"),
    ("fused", 3, "forward"),
    ("numpy", 3, "forward"),
    ("naive", 0, "forward"),
    ("fused", 0, "forward"),
    ("naive", 3, "backward"),
    ("fused", 3, "backward"),
)


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/attention_cost.yaml`` says what each means."""

    study: str
    head_dim: int
    batch: int
    lengths: list[int]
    fit_from: int
    naive_longest: int
    numpy_longest: int
    repeats: int
    tokens_a_repeat: int
    dtype: str
    kernel: int
    matrix_sizes: list[int]
    printed_lengths: list[int]
    printed_times: list[str]
    printed_multiples: list[str]

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, dtype=tuple(EPS))
        distinct(self, "lengths", "matrix_sizes", "printed_lengths")
        in_range(self, head_dim=(1, 10**4), batch=(1, 10**4), lengths=(2, 2**17), fit_from=(2, 2**17))
        in_range(self, naive_longest=(2, 2**17), numpy_longest=(2, 2**17), repeats=(1, 10**4))
        in_range(self, tokens_a_repeat=(1, 2**20), kernel=(3, 10**3), matrix_sizes=(1, 10**5))
        in_range(self, printed_lengths=(1, 2**40))
        if self.lengths != sorted(self.lengths) or len(self.lengths) < 3:
            raise ValueError(f"lengths={self.lengths} must be three or more, from short to long")
        if sum(length >= self.fit_from for length in self.lengths) < 3:
            raise ValueError(f"fit_from={self.fit_from} must leave three lengths or more to fit")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} must be odd")
        for name in ("printed_times", "printed_multiples"):
            column = getattr(self, name)
            if len(column) != len(self.printed_lengths):
                raise ValueError(f"{name}={column} must have an entry for each of printed_lengths")
            for text in column:
                if not text.replace(".", "", 1).isdecimal() or not float(text):
                    raise ValueError(f"{name}={text} must be a positive decimal number")


def timed(p: Params, length: int) -> list[tuple[str, int, str]]:
    """What is timed at one length: attention that stores its scores only up to its longest one."""
    longest = {"naive": p.naive_longest, "numpy": p.numpy_longest}
    return [kind for kind in KINDS if length <= longest.get(kind[0], length)]


def calls(p: Params, length: int) -> int:
    """Calls of one repeat."""
    return max(1, p.tokens_a_repeat // length)


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "times":
        tokens = sum(calls(p, length) * length * (length + 300) for length in p.lengths)
        return 1.0 + len(cell.seeds) * p.repeats * p.batch * tokens * 8e-8
    if p.study == "batching":
        return 1.0 + len(cell.seeds) * p.repeats * sum(size**3 for size in p.matrix_sizes) * 1e-10
    return 1.0


def theory(cell: Cell) -> list[Row]:
    """FLOPs and what follows from them and from the printed numbers (``attnrepro.theory.attention_cost``)."""
    p = cell.params
    made = {"counts": _counts, "printed": _printed}
    if p.study not in made:
        return []
    return [Row(name, float(value), axes, "theory", "exact", unit=unit) for name, value, axes, unit in made[p.study](p)]


def _counts(p: Params) -> Iterator[tuple[str, float, dict[str, object], str]]:
    yield "head_dim", p.head_dim, {}, ""
    yield "fit_from", p.fit_from, {}, ""
    for length in p.lengths:
        at: dict[str, object] = {"length": length}
        for attention, projections, phase in KINDS:
            kind = {"attention": attention, "projections": projections, "phase": phase, **at}
            yield "flops", closed.flops(attention, projections, phase, length, p.head_dim), kind, ""
        yield "score_share", float(closed.score_share(length, p.head_dim)), at, ""
        layers = closed.affordable_layers(length, p.head_dim, p.kernel)
        yield "affordable_layers", layers, at, ""
        yield "reach_share", closed.reach(layers, p.kernel) / length, at, ""
    for part, powers in zip(PARTS, ((1, 2), (2, 1)), strict=True):
        for variable, power in zip(VARIABLES, powers, strict=True):
            yield "flops_degree", power, {"part": part, "variable": variable}, ""
    yield "entries_factor", 2**2, {}, ""
    for projections in PROJECTIONS:
        yield "crossover_over_d", float(closed.crossover(projections)), {"projections": projections}, ""


def _printed(p: Params) -> Iterator[tuple[str, float, dict[str, object], str]]:
    columns = {"times": p.printed_times, "multiples": p.printed_multiples}
    for length in p.printed_lengths:
        yield "pure_square", (length / p.printed_lengths[0]) ** 2, {"length": length}, ""
    most, low, high = closed.most_consistent(p.printed_times, p.printed_multiples)
    yield "printed_consistent", most, {}, ""
    yield "printed_base", float((low + high) / 2), {}, "ms"
    base = (low + high) / 2
    for length, time in zip(p.printed_lengths, p.printed_times, strict=True):
        own = closed.Fraction(1) if length == p.printed_lengths[0] else closed.Fraction(time) / base
        yield "printed_multiple", float(own), {"length": length}, ""
    for origin in ORIGINS:
        factors = closed.doubling_factors(columns[origin])
        for length, factor in zip(p.printed_lengths[1:], factors, strict=True):
            yield "printed_doubling", float(factor), {"length": length, "origin": origin}, ""
        whole = closed.Fraction(columns[origin][-1]) / closed.Fraction(columns[origin][0])
        yield "printed_mean_doubling", float(whole) ** (1 / len(factors)), {"origin": origin}, ""
        yield "printed_steps_up_to_four", closed.steps_towards(factors), {"origin": origin}, ""
