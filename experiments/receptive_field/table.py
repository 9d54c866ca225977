"""receptive_field, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import receptive_field as closed

NAME = "receptive_field"
AXES = ("network", "kernel", "distance", "reading", "depth", "weights", "method", "factor", "frequency", "channels")

ATTENTIONS, COARSE = closed.ATTENTIONS, closed.COARSE
# Stacks whose share of a short sequence is counted after one layer.
SHARED = ("stride1", "attention", "attention_window")
RANDOM = ("positive", "signed")
METHODS = ("stride", "average")
SHARE = Fraction(95, 100)


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/receptive_field.yaml`` says what each means."""

    study: str
    kernels: list[int]
    distances: list[int]
    depths: list[int]
    length: int
    n_tokens: int
    embed_dim: int
    uniform_depths: list[int]
    random_depths: list[int]
    channels: int
    draws: int
    factors: list[int]
    frequencies: list[float]
    signal_length: int

    def __post_init__(self) -> None:
        one_of(self, study=("support", "effective", "pooling"))
        distinct(self, "kernels", "distances", "depths", "uniform_depths", "random_depths", "factors", "frequencies")
        in_range(self, kernels=(3, 31), distances=(2, 2**10), depths=(1, 60), length=(64, 2**17))
        in_range(self, n_tokens=(2, 2**13), embed_dim=(1, 2**10), uniform_depths=(1, 400), random_depths=(1, 400))
        in_range(self, channels=(1, 64), draws=(10, 10**6), factors=(2, 64), frequencies=(0.001, 64))
        in_range(self, signal_length=(16, 10**6))
        for kernel in self.kernels:
            if kernel % 2 == 0:
                raise ValueError(f"kernels={kernel} must be odd")
            if max(self.uniform_depths) * math.log10(kernel) > 300:
                raise ValueError(f"uniform_depths={max(self.uniform_depths)} must keep {kernel}^-depth above 1e-300")
            if self.study == "support":
                self._check_room(kernel)
        for factor in self.factors:
            if self.signal_length % factor:
                raise ValueError(
                    f"signal_length={self.signal_length} must be a multiple of each factor, unlike {factor}"
                )
            for frequency in frequencies(self, factor):
                cycles = self.signal_length * frequency / (2 * factor)
                if not cycles.is_integer() or frequency.is_integer():
                    raise ValueError(
                        f"frequencies={frequency:g} must be no whole number and make whole cycles of"
                        f" {self.signal_length} samples at factor {factor}"
                    )

    def _check_room(self, kernel: int) -> None:
        """Whether two outputs in the middle of ``length`` positions have whole fields, and their pairs both ends."""
        for stack in COARSE:
            for distance in self.distances:
                layers = closed.layers_needed(stack, kernel, distance, "middle")
                step = closed.jump(stack, kernel, layers)
                output = (-(-self.length // step) - 1) // 2
                before = closed.field(stack, kernel, layers) - step
                if output * step < before or (output + 1) * step + distance > self.length:
                    raise ValueError(
                        f"length={self.length} must be longer for {stack} of kernel {kernel} and distance {distance}"
                    )


def readings(stack: str) -> tuple[str, ...]:
    """Readings of "two positions interact" that a stack is searched for; of some only the field is counted."""
    if stack in ("gapped", "attention_window"):
        return ()
    return ("middle",) if stack in COARSE else closed.READINGS


def networks(p: Params) -> list[tuple[str, int | None]]:
    """Every stack with every kernel; attention to everything has none."""
    stacks = (*closed.CONVOLUTIONS, "attention_window")
    return [(stack, kernel) for stack in stacks for kernel in p.kernels] + [("attention", None)]


def length_of(p: Params, stack: str) -> int:
    """Positions that fields are counted on."""
    return p.n_tokens if stack in ATTENTIONS else p.length


def depths(p: Params, stack: str, kernel: int | None) -> list[int]:
    """Depths whose field fits into half of the positions; attention is global from the first layer on."""
    if stack == "attention" or kernel is None:
        return [1]
    return [depth for depth in p.depths if 2 * closed.span(stack, kernel, depth) <= length_of(p, stack)]


def frequencies(p: Params, factor: int) -> list[float]:
    """Frequencies that a sampled sine can have: at most ``factor`` new Nyquist frequencies."""
    return [float(frequency) for frequency in p.frequencies if frequency <= factor]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "support":
        return 1.0 + len(cell.seeds) * sum(d * d for d in p.distances) * 1.5e-6
    if p.study == "pooling":
        return 1.0
    taps = sum(kernel * max(p.random_depths) * (kernel - 1) for kernel in p.kernels)
    return 1.0 + len(cell.seeds) * p.draws * max(p.random_depths) * p.channels**2 * taps * 1e-9


# --- closed forms ---


def theory(cell: Cell) -> list[Row]:
    """Closed forms of everything the cell measures (``attnrepro.theory.receptive_field``)."""
    p = cell.params
    made = {"support": _support, "effective": _effective, "pooling": _pooling}[p.study](p)
    return [Row(name, value, axes, source="theory", statistic=statistic) for name, statistic, value, axes in made]


Made = Iterator[tuple[str, str, float, dict[str, object]]]


def _support(p: Params) -> Made:
    for stack, kernel in networks(p):
        axes: dict[str, object] = {"network": stack, "kernel": kernel}
        for depth in depths(p, stack, kernel):
            field = p.n_tokens if kernel is None else closed.field(stack, kernel, depth)
            yield "receptive_field", "exact", field, {**axes, "depth": depth}
            if kernel is not None:
                holes = closed.span(stack, kernel, depth) - field
                yield "field_holes", "exact", holes, {**axes, "depth": depth}
        if stack in SHARED:
            share = 1.0 if kernel is None else min(kernel, p.n_tokens) / p.n_tokens
            yield "receptive_share", "exact", share, {**axes, "depth": 1}
        for distance in p.distances:
            for reading in readings(stack):
                layers = closed.layers_needed(stack, kernel or 3, distance, reading)
                yield "layers_needed", "exact", layers, {**axes, "distance": distance, "reading": reading}
            if stack in COARSE and kernel is not None:
                at = {**axes, "distance": distance}
                yield "positions_per_output", "exact", closed.jump(stack, kernel, layers), at
                yield "pairs_meeting", "exact", closed.pairs_meeting(stack, kernel, layers, distance), at


def _effective(p: Params) -> Made:
    for kernel in p.kernels:
        for depth in p.uniform_depths:
            axes: dict[str, object] = {"weights": "uniform", "kernel": kernel, "depth": depth}
            yield "effective_sd", "exact", closed.effective_sd(kernel, depth, "uniform"), axes
            yield "width_95", "exact", closed.central_width(kernel, depth, SHARE), axes
            yield "edge_weight_log10", "exact", closed.edge_weight_log10(kernel, depth), axes
        if len(p.uniform_depths) > 1:
            yield "effective_exponent", "exact", 0.5, {"weights": "uniform", "kernel": kernel}
        for weights in RANDOM:
            for depth in p.random_depths:
                axes = {"weights": weights, "kernel": kernel, "depth": depth}
                yield "effective_sd", "rms", closed.effective_sd(kernel, depth, weights), axes
            if len(p.random_depths) > 1:
                yield "effective_exponent", "slope", 0.5, {"weights": weights, "kernel": kernel}


def _pooling(p: Params) -> Made:
    for factor in p.factors:
        for frequency in frequencies(p, factor):
            for method in METHODS:
                axes: dict[str, object] = {"method": method, "factor": factor, "frequency": frequency}
                yield "energy_kept", "exact", closed.energy_kept(method, factor, frequency), axes
                yield "alias_frequency", "exact", closed.alias_frequency(frequency), axes
                yield "repeat_error", "exact", closed.repeat_error(method, factor, frequency), axes
                yield "interpolation_error", "exact", closed.interpolation_error(method, factor, frequency), axes
        for channels in range(1, factor + 1):
            axes = {"factor": factor, "channels": channels}
            yield "lost_share", "exact", closed.lost_share(factor, channels), axes
