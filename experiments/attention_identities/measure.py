"""attention_identities, measured: equalities and breakers, dependences and shapes, spreads, and the soft limit."""

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.conv_attention import as_tokens, convolution_layer
from attnrepro.nn.position import one_hot, sinusoidal
from attnrepro.results.rows import Row
from attnrepro.tables.attention_identities import facts, table
from attnrepro.tables.attention_identities.identities import IDENTITIES, Source, convolved, fit_one_head
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.moments import Moments

# Normal numbers at a time, few enough to stay near the processor.
CHUNK = 2**19
# Components of a value, enough for a spread over queries.
VALUE_DIM = 8


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    kinds: dict[str, type[Study]] = {
        "identities": Identities,
        "facts": Facts,
        "output_scale": OutputScale,
        "soft_limit": SoftLimit,
    }
    module = kinds[cell.params.study](cell)
    return Job(module, batches(module.plan()))


class Study(Measurement):
    """What the studies share: the cell, and rows that carry its first seed."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    @abc.abstractmethod
    def plan(self) -> list[Any]:
        """Batches, in order."""

    def source(self, shape: str, name: str, index: int = 0, dtype: str = "float64") -> Source:
        """Random numbers of one draw; draws are dealt to the seeds in turn."""
        p, seeds = self.cell.params, self.cell.seeds
        stream = generator(seeds[index % len(seeds)], table.NAME, name, shape, index)
        return Source(stream, p, shape, getattr(torch, dtype), self.device)

    def add(
        self, quantity: str, value: float, n: int, statistic: str = "exact", sd: float | None = None, **axes: object
    ) -> None:
        """A measured row."""
        self.found.append(Row(quantity, value, axes, statistic=statistic, seed=self.cell.seeds[0], n=n, sd=sd))

    def rows(self) -> list[Row]:
        """Rows in the order in which they were measured."""
        return self.found


class Identities(Study):
    """Both sides of each equality in every precision, and with every breaker in float64.

    Input and weights of a draw are the same in every precision and with every breaker. Extremes are numpy's, which a
    NaN in any draw turns into NaN: such a cell fails.
    """

    def plan(self) -> list[tuple[str, str]]:
        """Batches: (identity, breaker), the breaker empty where the equality must hold."""
        return [(name, breaker) for name in self.cell.params.identities for breaker in ("", *table.BREAKERS[name])]

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """All shapes and draws of one equality."""
        name, breaker = batch
        if breaker:
            apart = [gap for shape in self.cell.params.shapes for gap in self._gaps(name, breaker, shape, "float64")]
            axes = {"identity": name, "breaker": breaker, "dtype": "float64"}
            for quantity, gaps in zip(("breakage_relative", "breakage_eps"), zip(*apart, strict=True), strict=True):
                self.add(quantity, float(np.min(gaps)), len(gaps), **axes)
            return
        for dtype in self.cell.params.dtypes:
            every: list[float] = []
            for shape in self.cell.params.shapes:
                errors = [in_eps for _, in_eps in self._gaps(name, "", shape, dtype)]
                self.add("error_eps", float(np.max(errors)), len(errors), identity=name, shape=shape, dtype=dtype)
                every += errors
            self.add("error_eps", float(np.max(every)), len(every), identity=name, dtype=dtype)

    def _gaps(self, name: str, breaker: str, shape: str, dtype: str) -> Iterator[tuple[float, float]]:
        """Largest difference of the two sides in each draw, relative to their scale, and in units of its eps."""
        for index in range(self.cell.params.draws):
            sides = IDENTITIES[name](self.source(shape, name, index, dtype), breaker)
            relative = float((sides.found - sides.expected).abs().max()) / sides.scale
            yield relative, relative / (table.EPS[dtype] * sides.enlarged)


class Facts(Study):
    """One draw for each fact and shape, in float64 and on the processor: nothing of it depends on the device."""

    def source(self, shape: str, name: str, index: int = 0, dtype: str = "float64") -> Source:
        """Random numbers of one draw."""
        return dataclasses.replace(super().source(shape, name, index, dtype), device=torch.device("cpu"))

    def plan(self) -> list[tuple[str, str]]:
        """Batches: (fact, breaker), then what has no breaker."""
        counted = [(name, breaker) for name, breakers in table.FACTS.items() for breaker in ("", *breakers)]
        return [*counted, ("sizes", ""), ("matrices", ""), ("codes", "")]

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """One fact over all shapes, or one group of single numbers."""
        name, breaker = batch
        single = {"sizes": self._sizes, "matrices": self._matrices, "codes": self._codes}
        if name in single:
            single[name]()
            return
        axes = {"identity": name, "breaker": breaker} if breaker else {"identity": name}
        with torch.enable_grad():
            counts = self._counts(name, breaker)
        wrong, looked_at = (sum(numbers) for numbers in zip(*counts, strict=True))
        self.add("mismatches", wrong, looked_at, **axes)

    def _counts(self, name: str, breaker: str) -> list[facts.Count]:
        p = self.cell.params
        if name == "codes_distinct":
            return [facts.codes_distinct(p.code_shapes, breaker)]
        if name in ("sinusoid_length", "learned_length"):
            return [facts.lengths(p, name, breaker)]
        return [facts.FACTS[name](self.source(shape, name), breaker) for shape in p.shapes]

    def _sizes(self) -> None:
        p = self.cell.params
        draw = self.source(f"{p.example_length}x{p.example_dim}x1", "example")
        layer, x = draw.layer(), draw.tokens()
        sized = {"input": x, "score": layer.weights(x)[0], "output": layer(x)}
        for what, tensor in sized.items():
            for side, size in zip(("rows", "columns"), tensor.shape, strict=True):
                self.add("example_size", size, 1, case=f"{what} {side}")
        for heads in p.example_heads:
            theirs = torch.nn.MultiheadAttention(p.example_dim, heads)
            self.add("head_dim_share", theirs.head_dim / theirs.embed_dim, 1, case=f"num_heads={heads}")
        shares = [facts.qualifying_weightings(self.source(shape, "weightings")) for shape in p.shapes]
        self.add("qualifying_weightings", min(shares), len(shares))

    def _matrices(self) -> None:
        for shape in self.cell.params.shapes:
            draw = self.source(shape, "matrices")
            self.add("closed_pairs", facts.closed_pairs(draw), draw.length**2, shape=shape)
            for name, matrix in facts.matrices(draw):
                rank = facts.displacement_rank(matrix)
                self.add("displacement_rank", rank, draw.length**2, identity=name, shape=shape)

    def _codes(self) -> None:
        p = self.cell.params
        for shape in p.code_shapes:
            distance = facts.code_distances(shape, "")
            self.add("smallest_code_distance", float(distance.min()), distance.numel(), shape=shape)
        self.add("frequency_share", facts.frequency_share(p.example_dim), p.example_dim)


class OutputScale(Study):
    """Spread of the output of values with spread 1, and of a stack of layers without anything beside attention."""

    def plan(self) -> list[tuple[str, int]]:
        """Batches: (keys, number), then (stack, index)."""
        p = self.cell.params
        return [("keys", n) for n in p.n_keys] + [("stack", index) for index in range(p.n_stacks)]

    def on_test_start(self) -> None:
        """Start the sums over stacks."""
        self.spreads: dict[int, list[float]] = {depth: [] for depth in self.cell.params.depths}

    def test_step(self, batch: tuple[str, int], batch_idx: int) -> None:
        """All queries of one number of keys, or one stack."""
        what, number = batch
        if what == "keys":
            self._one_attention(number)
        else:
            self._stack(number)

    def _one_attention(self, n_keys: int) -> None:
        """Queries, keys and values of N(0, 1) components; the mean square of an output, by query."""
        p = self.cell.params
        stream = generator(self.cell.seeds[0], table.NAME, "output_scale", n_keys, device=self.device)
        moments = Moments(1)
        rows = max(1, CHUNK // (n_keys * (p.head_dim + VALUE_DIM)))
        for first in range(0, p.n_queries, rows):
            count = min(rows, p.n_queries - first)

            def drawn(*shape: int, count: int = count) -> Tensor:
                return torch.randn(count, *shape, generator=stream, device=self.device, dtype=torch.float64)

            query, key, value = drawn(1, p.head_dim), drawn(n_keys, p.head_dim), drawn(n_keys, VALUE_DIM)
            out = attention_weights(attention_logits(query, key)) @ value
            moments.update(out.square().mean(dim=(1, 2))[:, None].cpu())
        mean, covariance = moments.mean_and_covariance()
        spread = math.sqrt(float(mean[0]))
        # Of a square root by the delta method.
        sd = math.sqrt(float(covariance[0, 0])) / (2 * spread)
        self.add("output_sd", spread, p.n_queries, "rms", sd, n_keys=n_keys)

    def _stack(self, index: int) -> None:
        p = self.cell.params
        draw = self.source(f"{p.stack_length}x{p.head_dim}x1", "stack", index)
        x = draw.tokens()
        start = float(x.square().mean().sqrt())
        for depth in range(1, max(p.depths) + 1):
            x = draw.layer()(x)
            if depth in self.spreads:
                self.spreads[depth].append(float(x.square().mean().sqrt()) / start)

    def rows(self) -> list[Row]:
        """Rows of single attentions, then the spread over stacks at every depth."""
        p = self.cell.params
        for depth, values in self.spreads.items():
            axes = {"n_keys": p.stack_length, "depth": depth}
            self.add("layer_sd", float(np.mean(values)), len(values), "mean", float(np.std(values, ddof=1)), **axes)
        return self.found


class SoftLimit(Study):
    """Convolution by position codes as the logits grow, and what one head can make of a kernel."""

    def plan(self) -> list[tuple[str, str]]:
        """Batches: (code, name), then (kernel, taps)."""
        p = self.cell.params
        return [("code", name) for name in p.codes] + [("kernel", kernel) for kernel in p.kernels]

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """All scales of one code, or one kernel."""
        what, name = batch
        if what == "code":
            self._code(name)
        else:
            self._kernel(name)

    def _position_code(self, name: str, length: int, width: int) -> tuple[Tensor, Tensor]:
        """The code ``[length, code_dim]`` and what takes it one tap to the side ``[width, code_dim, code_dim]``."""
        offsets = range(-(width // 2), width // 2 + 1)
        if name == "one_hot":
            around = torch.eye(length, dtype=torch.float64)
            turns = torch.stack([around.roll(offset, dims=0) for offset in offsets])
            return one_hot(length, length, dtype=torch.float64, device=self.device), turns.to(self.device)
        dim = self.cell.params.code_dim
        # A pair (sine, cosine) is turned by the angle that the pair itself reads at position 1.
        step = sinusoidal(2, dim, dtype=torch.float64)[1]
        angle = torch.atan2(step[0::2], step[1::2])
        blocks = []
        for offset in offsets:
            sine, cosine = (offset * angle).sin(), (offset * angle).cos()
            pairs = torch.stack([torch.stack([cosine, sine], dim=-1), torch.stack([-sine, cosine], dim=-1)], dim=-2)
            blocks.append(torch.block_diag(*pairs))
        return sinusoidal(length, dim, dtype=torch.float64, device=self.device), torch.stack(blocks).to(self.device)

    def _code(self, name: str) -> None:
        p = self.cell.params
        length, channels, width = table.sizes(p.soft_shape)
        code, turns = self._position_code(name, length, width)
        reach = width // 2
        # A ring has a tap everywhere; along a line the outermost tokens lack some.
        inner = slice(None) if name == "one_hot" else slice(reach, length - reach)
        offset = torch.arange(width, device=self.device)[:, None] - reach
        target = (torch.arange(length, device=self.device) + offset) % length
        on_tap = torch.nn.functional.one_hot(target, length).bool()[:, inner]
        leaks = []
        for scale in p.logit_scales:
            errors = []
            for index in range(p.soft_draws):
                draw = self.source(f"{length}x{channels}x1", "soft", index)
                kernel, x = draw.normal(channels, channels, width), draw.tokens()
                layer = convolution_layer(kernel, turns, scale)
                tokens = as_tokens(layer, x, code)
                out = layer(tokens)[inner, :channels]
                exact = convolved(x, kernel, circular=True)[inner]
                errors.append(float((out - exact).abs().max() / exact.abs().max()))
            # The weights do not depend on the content: those of the last draw are those of all.
            leak = float(layer.weights(tokens)[:, inner].masked_fill(on_tap, 0.0).sum(dim=-1).mean())
            leaks.append(leak)
            axes = {"case": name, "logit_scale": scale}
            self.add("leak", leak, on_tap.numel(), **axes)
            self.add("soft_error_relative", float(np.median(errors)), len(errors), "median", **axes)
        for scale, rate in table.rates(p.logit_scales, leaks):
            self.add("leak_rate", rate, 2, "slope", case=name, logit_scale=scale)
        # Where all that leaks is below the rounding of the output, the layer has to be the convolution.
        if leaks[-1] < table.EPS["float64"]:
            self.add("soft_error_eps", float(np.max(errors)) / table.EPS["float64"], len(errors), case=name)

    def _kernel(self, kernel: str) -> None:
        """Share of the energy that the best single head leaves, on noise that it was not fitted to."""
        p = self.cell.params
        stream = generator(self.cell.seeds[0], table.NAME, "one_head", kernel.replace(" ", "_"))
        wanted = torch.tensor(table.taps(kernel), dtype=torch.float64)
        windows = torch.randn(p.n_samples, len(wanted), generator=stream, dtype=torch.float64)
        target = windows @ wanted
        left, energy = (target - fit_one_head(windows, target)).square(), target.square()
        share = float(left.mean() / energy.mean())
        # Of a ratio of means by the delta method.
        spread = float((left - share * energy).std() / energy.mean())
        self.add("one_head_residual", share, p.n_samples, "mean", spread, case=kernel)
