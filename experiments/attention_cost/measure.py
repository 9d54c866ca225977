"""attention_cost, measured: the clock, torch's FLOP counter, and the printed numbers tried out."""

import math
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.results.published import parse_number
from attnrepro.results.rows import Row
from attnrepro.tables.attention_cost import table
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.stopwatch import Stopwatch

# Kernels that never write the score matrix: which of them a device has depends on its kind and on the dtype.
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
# Unrounded first times that are tried out.
CANDIDATES = 2_000

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    p = cell.params
    rounds = [(seed, repeat) for seed in cell.seeds for repeat in range(p.repeats)]
    if p.study == "times":
        return Job(Times(cell), batches(rounds))
    if p.study == "batching":
        return Job(Batching(cell), batches(rounds))
    return Job(Counts(cell) if p.study == "counts" else Printed(cell), batches([0]))


# --- attention, in each way ---


def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention step by step, as its formula is written; ``[..., length, head_dim]`` each."""
    return attention_weights(attention_logits(query, key)) @ value


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by a kernel that goes through the keys block by block."""
    with sdpa_kernel(FUSED):
        return scaled_dot_product_attention(query, key, value)


def none(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """No attention: what its inputs cost by themselves."""
    return value


ATTENTIONS: dict[str, Attend] = {"naive": naive, "fused": fused, "none": none}


def in_numpy(x: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The head in numpy, ``x`` ``[batch, length, head_dim]``, ``weights`` of query, key and value ``[3, d, d]``."""
    query, key, value = (x @ weight for weight in weights)
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(x.shape[-1])
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out: NDArray[np.float64] = scores / scores.sum(axis=-1, keepdims=True) @ value
    return out


class Head:
    """Tokens and matrices of one seed and length, and every way to send them through a head.

    ``x`` is ``[batch, 1, length, head_dim]``, ``weights`` are three matrices ``[head_dim, head_dim]``.
    """

    def __init__(self, seed: int, p: table.Params, length: int, device: torch.device) -> None:
        stream = generator(seed, table.NAME, length)
        x = torch.randn(p.batch, 1, length, p.head_dim, generator=stream, dtype=torch.float64)
        weights = torch.randn(3, p.head_dim, p.head_dim, generator=stream, dtype=torch.float64) / math.sqrt(p.head_dim)
        self.numpy = x[:, 0].numpy(), weights.numpy()
        to = {"device": device, "dtype": getattr(torch, p.dtype)}
        self.x, self.gradient = x.to(**to), torch.ones_like(x).to(**to)
        self.weights = list(weights.to(**to).unbind())
        self.projected = [self.x @ weight for weight in self.weights]

    def forward(self, attention: str, projections: int) -> Tensor:
        """Output ``[batch, 1, length, head_dim]``; without projections, queries, keys and values are given."""
        inputs = [self.x @ weight for weight in self.weights] if projections else self.projected
        return ATTENTIONS[attention](*inputs)

    def run(self, attention: str, projections: int, phase: str, watch: Stopwatch) -> float:
        """Milliseconds of one call."""
        if attention == "numpy":
            return watch.ms(lambda: in_numpy(*self.numpy), on_cpu=True)
        if phase == "forward":
            with torch.no_grad():
                return watch.ms(lambda: self.forward(attention, projections))
        leaves = [self.x, *self.weights]
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_()
            out = self.forward(attention, projections)
            try:
                return watch.ms(lambda: torch.autograd.grad(out, leaves, self.gradient))
            finally:
                for leaf in leaves:
                    leaf.requires_grad_(False)


# --- the clock ---


class Times(Measurement):
    """Every kind at every length, in turns, repeat by repeat."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.heads: dict[int, Head] = {}
        self.found: dict[tuple[int, int, tuple[str, int, str]], list[float]] = {}
        self.differences: list[Row] = []

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """One repeat of one seed: the fastest of a few calls of each kind."""
        seed, repeat = batch
        p = self.cell.params
        watch = Stopwatch(self.device, self.cell.threads)
        if repeat == 0:
            self.heads = {length: Head(seed, p, length, self.device) for length in p.lengths}
            # What is only done once (kernels chosen, workspaces taken) is done before the clock runs.
            for kind in table.timed(p, p.lengths[0]):
                self.heads[p.lengths[0]].run(*kind, watch)
            if seed == self.cell.seeds[0]:
                self.differences = [row for length in p.lengths for row in self._differences(seed, length)]
        for length, head in self.heads.items():
            for kind in table.timed(p, length):
                best = min(head.run(*kind, watch) for _ in range(table.calls(p, length)))
                self.found.setdefault((seed, length, kind), []).append(best)

    def _differences(self, seed: int, length: int) -> Iterator[Row]:
        """How far the ways of computing the same lie apart, in eps of the largest output."""
        p = self.cell.params
        kinds = [kind for kind in table.timed(p, length) if kind[1] and kind[2] == "forward"]
        head = self.heads[length]
        with torch.no_grad():
            out = {
                name: head.forward(name, projections).double().cpu()
                for name, projections, _ in kinds
                if name != "numpy"
            }
        if ("numpy", 3, "forward") in kinds:
            out["numpy"] = torch.from_numpy(in_numpy(*head.numpy))[:, None]
        for name in ("fused", "numpy"):
            if name in out and "naive" in out:
                apart = float((out[name] - out["naive"]).abs().max() / out["naive"].abs().max())
                at = {"attention": name, "length": length}
                yield Row("output_difference_eps", apart / table.EPS[p.dtype], at, statistic="exact", seed=seed, n=1)

    def rows(self) -> list[Row]:
        """The fastest repeat of each seed, and how much slower the median one is."""
        result = []
        for (seed, length, (attention, projections, phase)), values in self.found.items():
            at = {"attention": attention, "projections": projections, "phase": phase, "length": length}
            result.append(Row("time", min(values), at, seed=seed, n=1, unit="ms"))
            result.append(Row("noise", statistics.median(values) / min(values), at, seed=seed, n=1))
        return [*result, *self.differences]


class Batching(Measurement):
    """A product of two matrices at once, or row by row."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: dict[tuple[int, int, str], list[float]] = {}

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """One repeat of one seed."""
        seed, _ = batch
        p = self.cell.params
        watch = Stopwatch(self.device, self.cell.threads)
        for size in p.matrix_sizes:
            stream = generator(seed, table.NAME, "matrices", size)
            x, weight = (
                torch.randn(size, size, generator=stream).to(device=self.device, dtype=getattr(torch, p.dtype))
                for _ in range(2)
            )
            rows = list(x.unbind())
            ways = {
                "matrix": lambda x=x, w=weight: x @ w,
                "loop": lambda rows=rows, w=weight: [row @ w for row in rows],
            }
            for operation in table.OPERATIONS:
                best = min(watch.ms(ways[operation]) for _ in range(table.calls(p, size)))
                self.found.setdefault((seed, size, operation), []).append(best)

    def rows(self) -> list[Row]:
        """The fastest repeat of each seed."""
        return [
            Row("time", min(values), {"operation": operation, "length": size}, seed=seed, n=1, unit="ms")
            for (seed, size, operation), values in self.found.items()
        ]


# --- FLOPs ---


def counted(run: Callable[[], object]) -> int:
    """FLOPs of a call by torch's counter."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def meta_head(length: int, head_dim: int, projections: int = 3) -> tuple[Tensor, nn.ModuleList]:
    """Tokens ``[1, 1, length, head_dim]`` and layers without bias, on the device that has shapes only."""
    layers = nn.ModuleList(nn.Linear(head_dim, head_dim, bias=False, device="meta") for _ in range(projections))
    return torch.empty(1, 1, length, head_dim, device="meta", requires_grad=True), layers


def counted_part(part: str, length: int, head_dim: int, projections: int = 3) -> int:
    """FLOPs of the projections or of the products with all pairs of tokens."""
    x, layers = meta_head(length, head_dim, projections)
    if part == "projections":
        return counted(lambda: [layer(x) for layer in layers])
    return counted(lambda: naive(x, x, x))


class Counts(Measurement):
    """FLOPs of layers without data."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: int, batch_idx: int) -> None:
        """All counts."""
        p = self.cell.params
        x, _ = meta_head(p.lengths[0], p.head_dim)
        self._add("head_dim", x.shape[-1], {})
        self._add("fit_from", p.fit_from, {})
        with torch.enable_grad():
            for length in p.lengths:
                self._length(length)
            shape = {"length": p.lengths[-1], "head_dim": p.head_dim}
            for part in table.PARTS:
                for variable in table.VARIABLES:
                    doubled = shape | {variable: 2 * shape[variable]}
                    degree = math.log2(counted_part(part, **doubled) / counted_part(part, **shape))
                    self._add("flops_degree", degree, {"part": part, "variable": variable})
            entries = [torch.empty(n, n, device="meta").numel() for n in (p.lengths[-1], 2 * p.lengths[-1])]
            self._add("entries_factor", entries[1] / entries[0], {})
            for projections in table.PROJECTIONS:
                self._add("crossover_over_d", self._crossover(projections), {"projections": projections})

    def _length(self, length: int) -> None:
        p = self.cell.params
        x, layers = meta_head(length, p.head_dim)
        given = [torch.empty_like(x, requires_grad=True) for _ in layers]
        for attention, projections, phase in table.KINDS:
            if attention in ("fused", "numpy"):
                continue  # the counter does not see them

            def forward(attention: str = attention, projections: int = projections) -> Tensor:
                inputs = [layer(x) for layer in layers] if projections else given
                if attention == "none":
                    return torch.stack(inputs)
                return ATTENTIONS[attention](*inputs)

            if phase == "forward":
                total = counted(forward)
            else:
                out = forward()
                total = counted(lambda out=out: out.sum().backward())
            at = {"attention": attention, "projections": projections, "phase": phase, "length": length}
            self._add("flops", total, at)
        whole = counted(lambda: naive(*(layer(x) for layer in layers)))
        self._add("score_share", counted_part("scores", length, p.head_dim) / whole, {"length": length})
        convolution = nn.Conv1d(p.head_dim, p.head_dim, p.kernel, padding="same", bias=False, device="meta")
        each = counted(lambda: convolution(x[0].mT))
        layers_bought, reach = 0, 0
        while (layers_bought + 1) * each <= whole:
            layers_bought += 1
            reach += p.kernel - 1
        self._add("affordable_layers", layers_bought, {"length": length})
        self._add("reach_share", reach / length, {"length": length})

    def _crossover(self, projections: int) -> float:
        """Length at which either part has as many FLOPs, in units of head_dim: their ratio grows with the length."""
        p = self.cell.params
        length = p.lengths[0]
        parts = {part: counted_part(part, length, p.head_dim, projections) for part in table.PARTS}
        return length * parts["projections"] / parts["scores"] / p.head_dim

    def _add(self, quantity: str, value: float, axes: dict[str, object]) -> None:
        self.found.append(Row(quantity, float(value), axes, statistic="exact", seed=self.cell.seeds[0], n=1))

    def rows(self) -> list[Row]:
        """Every count."""
        return self.found


# --- the printed numbers ---


class Printed(Measurement):
    """Unrounded first times are tried out one by one; factors are differences of logarithms."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: int, batch_idx: int) -> None:
        """All arithmetic."""
        p = self.cell.params
        for length in p.printed_lengths:
            entries = [torch.empty(n, n, device="meta").numel() for n in (p.printed_lengths[0], length)]
            self._add("pure_square", entries[1] / entries[0], {"length": length})
        most, base = self._base()
        self._add("printed_consistent", most, {})
        self._add("printed_base", base, {}, "ms")
        for index, length in enumerate(p.printed_lengths):
            own = 1.0 if index == 0 else float(p.printed_times[index]) / base
            self._add("printed_multiple", own, {"length": length})
        for origin, column in zip(table.ORIGINS, (p.printed_times, p.printed_multiples), strict=True):
            logs = torch.tensor([float(text) for text in column], dtype=torch.float64).log2()
            factors = logs.diff().exp2()
            for length, factor in zip(p.printed_lengths[1:], factors.tolist(), strict=True):
                self._add("printed_doubling", factor, {"length": length, "origin": origin})
            self._add("printed_mean_doubling", float(logs.diff().mean().exp2()), {"origin": origin})
            up = int(((factors.diff() > 0) & (factors[1:] <= 4)).sum())
            self._add("printed_steps_up_to_four", up, {"origin": origin})

    def _agree(self, base: float) -> int:
        """Multiples that some times of the printed roundings have with ``base`` as the first time."""
        p = self.cell.params
        count = 0
        for time, multiple in zip(p.printed_times[1:], p.printed_multiples[1:], strict=True):
            (t, dt), (m, dm) = parse_number(time), parse_number(multiple)
            count += (t - dt) / base <= m + dm and (t + dt) / base >= m - dm
        return count

    def _base(self) -> tuple[int, float]:
        """The most multiples that agree with one first time, and the middle of those first times."""
        time, half = parse_number(self.cell.params.printed_times[0])
        tried = [time - half + 2 * half * i / CANDIDATES for i in range(CANDIDATES + 1)]
        counts = [self._agree(base) for base in tried]
        most = max(counts)
        good = [i for i, count in enumerate(counts) if count == most]

        def end(inside: float, outside: float) -> float:
            for _ in range(100):
                middle = (inside + outside) / 2
                inside, outside = (middle, outside) if self._agree(middle) == most else (inside, middle)
            return inside

        low = tried[good[0]] if good[0] == 0 else end(tried[good[0]], tried[good[0] - 1])
        high = tried[good[-1]] if good[-1] == CANDIDATES else end(tried[good[-1]], tried[good[-1] + 1])
        return most, (low + high) / 2

    def _add(self, quantity: str, value: float, axes: dict[str, object], unit: str = "") -> None:
        self.found.append(Row(quantity, float(value), axes, statistic="exact", seed=self.cell.seeds[0], n=1, unit=unit))

    def rows(self) -> list[Row]:
        """Every number."""
        return self.found
