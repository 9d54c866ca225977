"""receptive_field, measured: supports and widths of gradients, and sines after down-sampling."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, conv1d

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn import masks
from attnrepro.nn.conv_stack import conv_layer
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.results.rows import Row
from attnrepro.tables.receptive_field import table
from attnrepro.training.measurement import Job, Measurement, batches

# Stacks with random weights at a time, as groups of one convolution.
GROUPS = 50


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    kinds: dict[str, Callable[[Cell], Support | Effective | Pooling]] = {
        "support": Support,
        "effective": Effective,
        "pooling": Pooling,
    }
    study = kinds[cell.params.study](cell)
    return Job(study, batches(study.plan()))


# --- what an output depends on ---


class Network:
    """A stack of random layers that grows as deep as it is asked for, and the gradients of its outputs.

    Weights of convolutions are uniform in +-[0.5, 1.5]: sizes of deep gradients then stay in the range of float64,
    where the product of a thousand kernels of torch's own initialisation underflows to 0 at the ends of the field.
    """

    def __init__(
        self, stack: str, kernel: int, length: int, stream: torch.Generator, device: torch.device, embed_dim: int
    ) -> None:
        self.stack, self.kernel, self.stream, self.device = stack, kernel, stream, device
        # Positions are the last dimension of what a convolution sees, and the last but one of what attention does.
        self.positions = -2 if stack in table.ATTENTIONS else -1
        shape = (length, embed_dim) if stack in table.ATTENTIONS else (1, 1, length)
        x = torch.randn(shape, generator=stream, dtype=torch.float64).to(device)
        self.states = [x.requires_grad_()]
        self.mask = masks.window(length, kernel, device=device) if stack == "attention_window" else None

    def _grow(self) -> None:
        x = self.states[-1]
        if self.stack in table.ATTENTIONS:
            attention = SelfAttention(x.shape[-1]).to(x)
            for weight in attention.parameters():
                drawn = torch.randn(weight.shape, generator=self.stream, dtype=torch.float64)
                weight.data = drawn.to(x) / math.sqrt(len(weight))
            self.states.append(attention(x, self.mask))
            return
        layer = conv_layer(self.stack, self.kernel, len(self.states) - 1).to(x)
        for weight in layer.parameters():
            size = 0.5 + torch.rand(weight.shape, generator=self.stream, dtype=torch.float64)
            sign = torch.where(torch.rand(weight.shape, generator=self.stream) < 0.5, -1.0, 1.0)
            weight.data = (size * sign).to(x)
            weight.requires_grad_(False)
        self.states.append(layer(x))

    def n_outputs(self, depth: int) -> int:
        """Outputs at a depth."""
        while len(self.states) <= depth:
            self._grow()
        return int(self.states[depth].shape[self.positions])

    def support(self, depth: int, output: int | None = None) -> Tensor:
        """Which inputs ``[length]`` an output depends on: those with a gradient that is not 0.

        Without ``output`` that in the middle, or the last that lies before it.
        """
        count = self.n_outputs(depth)
        index = (count - 1) // 2 if output is None else output
        chosen = self.states[depth].select(self.positions, index).sum()
        (gradient,) = torch.autograd.grad(chosen, self.states[0], retain_graph=True)
        if not gradient.isfinite().all():
            raise ValueError(f"the gradient of {self.stack} at depth {depth} has left the range of float64")
        seen = (gradient != 0).movedim(self.positions, 0)
        return seen.flatten(1).any(dim=1).cpu()


def layers_needed(network: Network, distance: int, reading: str) -> int | None:
    """Fewest layers at which positions ``distance`` apart interact, by doubling and bisection of the depth.

    Every layer of every stack reaches at least one position further, so that none needs more than ``distance``.
    """
    length = network.n_outputs(0)
    middle = (length - 1) // 2

    def sees(depth: int) -> bool:
        support = network.support(depth)
        if reading == "direct":
            return bool(support[middle + distance])
        return bool((support[:-distance] & support[distance:]).any())

    high = 1
    while not sees(high):
        high *= 2
        if high >= 2 * distance:
            return None
    low = high // 2  # too few, or 0
    while high - low > 1:
        depth = (low + high) // 2
        low, high = (low, depth) if sees(depth) else (depth, high)
    return high


class Support(Measurement):
    """Fields, and the layers that two positions need, of every stack and seed."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def plan(self) -> list[tuple[int, str, int | None]]:
        """Batches as (seed, stack, kernel)."""
        kinds = table.networks(self.cell.params)
        return [(seed, stack, kernel) for seed in self.cell.seeds for stack, kernel in kinds]

    def test_step(self, batch: tuple[int, str, int | None], batch_idx: int) -> None:
        """Search the depth for every distance, then count the field at every depth."""
        seed, stack, kernel = batch
        p = self.cell.params
        # cuDNN may multiply by way of Fourier or Winograd transforms, which leave round-off where there must be 0.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            for distance in p.distances if table.readings(stack) else []:
                self._search(seed, stack, kernel, distance)
            self._fields(seed, stack, kernel)

    def _network(self, seed: int, stack: str, kernel: int | None, what: str, length: int) -> Network:
        stream = generator(seed, table.NAME, stack, kernel, what)
        return Network(stack, kernel or 1, length, stream, self.device, self.cell.params.embed_dim)

    def _fields(self, seed: int, stack: str, kernel: int | None) -> None:
        p = self.cell.params
        network = self._network(seed, stack, kernel, "fields", table.length_of(p, stack))
        for depth in table.depths(p, stack, kernel):
            seen = network.support(depth).nonzero().flatten()
            axes = {"network": stack, "kernel": kernel, "depth": depth}
            self._add("receptive_field", len(seen), axes, seed)
            if stack != "attention":
                self._add("field_holes", int(seen[-1] - seen[0]) + 1 - len(seen), axes, seed)
        if stack in table.SHARED:
            one = self._network(seed, stack, kernel, "tokens", p.n_tokens)
            share = float(one.support(1).double().mean())
            self._add("receptive_share", share, {"network": stack, "kernel": kernel, "depth": 1}, seed)

    def _search(self, seed: int, stack: str, kernel: int | None, distance: int) -> None:
        # Steps of a dilated stack may lead past their goal and back: at an end of the input such paths are lost.
        room = 2 if stack in table.ATTENTIONS else 4
        network = self._network(seed, stack, kernel, f"distance {distance}", room * (distance + 1))
        axes: dict[str, object] = {"network": stack, "kernel": kernel, "distance": distance}
        for reading in table.readings(stack):
            layers = layers_needed(network, distance, reading)
            status = "ok" if layers else f"failed: not within {distance} layers"
            self._add("layers_needed", layers or math.nan, {**axes, "reading": reading}, seed, status)
        if stack in table.COARSE and layers:
            self._resolution(seed, stack, kernel, distance, layers)

    def _resolution(self, seed: int, stack: str, kernel: int | None, distance: int, layers: int) -> None:
        """Start of the next output's field, and the pairs that the field of one output holds until there."""
        network = self._network(seed, stack, kernel, f"resolution {distance}", self.cell.params.length)
        output = (network.n_outputs(layers) - 1) // 2
        seen, following = network.support(layers, output), network.support(layers, output + 1)
        start, step = (int(s.nonzero()[0]) for s in (seen, following))
        pairs = seen[start:step] & seen[start + distance : step + distance]
        axes = {"network": stack, "kernel": kernel, "distance": distance}
        self._add("positions_per_output", step - start, axes, seed)
        self._add("pairs_meeting", float(pairs.double().mean()), axes, seed)

    def _add(self, quantity: str, value: float, axes: dict[str, object], seed: int, status: str = "ok") -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=seed, n=1, status=status))

    def rows(self) -> list[Row]:
        """Every count, a row a seed."""
        return self.found


# --- how much an output depends on what it sees ---


def gradients(weights: str, kernel: int, depths: list[int], draws: int, channels: int, stream: torch.Generator,
              device: torch.device) -> dict[int, Tensor]:  # fmt: skip
    """Gradients ``[draws, channels, positions]`` of one component of the middle output, at each depth.

    Linear stacks of stride 1, the draws as groups of one convolution; the first layers of all depths are the same.
    """
    length = 1 + max(depths) * (kernel - 1)
    x = torch.zeros(1, draws * channels, length, dtype=torch.float64, device=device, requires_grad=True)
    states = [x]
    shape = (draws * channels, channels, kernel)
    for _ in range(max(depths)):
        if weights == "uniform":
            weight = torch.full(shape, 1 / kernel, dtype=torch.float64)
        elif weights == "positive":
            weight = torch.empty(shape, dtype=torch.float64).exponential_(generator=stream) / kernel
        else:
            weight = torch.randn(shape, generator=stream, dtype=torch.float64) / math.sqrt(kernel * channels)
        states.append(conv1d(states[-1], weight.to(device), padding=kernel // 2, groups=draws))
    result = {}
    for depth in depths:
        chosen = states[depth][0, ::channels, length // 2].sum()
        (gradient,) = torch.autograd.grad(chosen, x, retain_graph=True)
        result[depth] = gradient.reshape(draws, channels, length).cpu()
    return result


class Effective(Measurement):
    """Widths of gradients: of equal weights once, of random ones for every seed."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def plan(self) -> list[tuple[str, int, int]]:
        """Batches as (weights, kernel, seed)."""
        p, seeds = self.cell.params, self.cell.seeds
        equal = [("uniform", kernel, seeds[0]) for kernel in p.kernels]
        return equal + [(w, kernel, seed) for w in table.RANDOM for kernel in p.kernels for seed in seeds]

    def test_step(self, batch: tuple[str, int, int], batch_idx: int) -> None:
        """The gradient of one output at every depth."""
        weights, kernel, seed = batch
        with torch.enable_grad():
            if weights == "uniform":
                self._uniform(kernel, seed)
            else:
                self._random(weights, kernel, seed)

    def _uniform(self, kernel: int, seed: int) -> None:
        depths = self.cell.params.uniform_depths
        stream = generator(seed, table.NAME, "uniform", kernel)
        widths = []
        for depth, found in gradients("uniform", kernel, depths, 1, 1, stream, self.device).items():
            weight = found[0, 0] / found.sum()
            offsets = torch.arange(len(weight), dtype=torch.float64) - len(weight) // 2
            widths.append(math.sqrt(float(weight @ offsets.square())))
            axes = {"weights": "uniform", "kernel": kernel, "depth": depth}
            by_distance = torch.zeros(len(weight) // 2 + 1, dtype=torch.float64)
            by_distance.index_add_(0, offsets.abs().long(), weight)
            half = int((by_distance.cumsum(0) < float(table.SHARE)).sum())
            ends = weight[weight > 0]
            self._add("effective_sd", widths[-1], axes, seed)
            self._add("width_95", 2 * half + 1, axes, seed)
            self._add("edge_weight_log10", math.log10(float(ends[0])), axes, seed)
        if len(depths) > 1:
            self._add("effective_exponent", slope(depths, widths), {"weights": "uniform", "kernel": kernel}, seed)

    def _random(self, weights: str, kernel: int, seed: int) -> None:
        p = self.cell.params
        depths = p.random_depths
        channels = p.channels if weights == "signed" else 1
        stream = generator(seed, table.NAME, weights, kernel)
        # Per draw and depth: squares times the gradient's mass, and the mass.
        parts: dict[int, list[Tensor]] = {depth: [] for depth in depths}
        for start in range(0, p.draws, GROUPS):
            count = min(GROUPS, p.draws - start)
            for depth, found in gradients(weights, kernel, depths, count, channels, stream, self.device).items():
                parts[depth].append(moments(found, weights))
        widths, influence = [], []
        axes: dict[str, object] = {"weights": weights, "kernel": kernel}
        for depth in depths:
            squares, mass = torch.cat(parts[depth]).unbind(dim=1)
            variance = float(squares.sum() / mass.sum())
            # The ratio of two means, and its root, to first order in the draws (delta method).
            residual = (squares - variance * mass) / mass.mean() / (2 * math.sqrt(variance))
            widths.append(math.sqrt(variance))
            influence.append(residual)
            self.found.append(
                Row(
                    "effective_sd",
                    widths[-1],
                    {**axes, "depth": depth},
                    statistic="rms",
                    seed=seed,
                    n=p.draws,
                    sd=float(residual.std()),
                )
            )
        correlation = torch.corrcoef(torch.stack(influence)) if len(depths) > 1 else torch.ones(1, 1)
        total = float(correlation.square().sum())
        self.found.append(Row("correlation_sq", total, axes, statistic="value", seed=seed, n=p.draws))
        if len(depths) > 1:
            exponent = slope(depths, widths)
            self.found.append(Row("effective_exponent", exponent, axes, statistic="slope", seed=seed, n=1))

    def _add(self, quantity: str, value: float, axes: dict[str, object], seed: int) -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=seed, n=1))

    def rows(self) -> list[Row]:
        """Widths, their growth, and how the depths' errors hang together."""
        return self.found


def moments(gradient: Tensor, weights: str) -> Tensor:
    """Squared distances times mass, and mass, of each draw ``[draws, 2]`` of gradients ``[draws, channels, length]``.

    The mass is the gradient itself where it is positive, with distances from its own mean; else its square, with
    distances from the middle.
    """
    positive = weights == "positive"
    mass = gradient.sum(dim=1) if positive else gradient.square().sum(dim=1)
    offsets = torch.arange(mass.shape[-1], dtype=torch.float64) - mass.shape[-1] // 2
    total = mass.sum(dim=1)
    if positive:  # every draw counts the same: the expectation is over kernels in proportion to their sum
        mass = mass / total[:, None]
        total = torch.ones_like(total)
        offsets = offsets - (mass @ offsets)[:, None]
    return torch.stack([(mass * offsets.square()).sum(dim=1), total], dim=1)


def slope(depths: list[int], widths: list[float]) -> float:
    """Exponent of the width as a power of the depth, by least squares of the logarithms."""
    return float(np.polyfit(np.log(depths), np.log(widths), 1)[0])


# --- what down-sampling loses ---


class Pooling(Measurement):
    """Sines and white noise, down-sampled and brought back."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def plan(self) -> list[int]:
        """Batches: factors."""
        return list(self.cell.params.factors)

    def test_step(self, batch: int, batch_idx: int) -> None:
        """All sines that exist at this factor, then convolutions with 1 to ``factor`` channels."""
        for frequency in table.frequencies(self.cell.params, batch):
            self._sine(batch, frequency)
        with torch.enable_grad():
            for channels in range(1, batch + 1):
                self._noise(batch, channels)

    def _sine(self, factor: int, frequency: float) -> None:
        n = self.cell.params.signal_length
        time = torch.arange(n, dtype=torch.float64, device=self.device)
        angle = math.pi * frequency / factor * time
        # A sine and a cosine: their squares add up to the mean over all phases.
        x = torch.stack([angle.cos(), angle.sin()])
        for method in table.METHODS:
            low = x[:, ::factor] if method == "stride" else avg_pool1d(x, factor)
            axes: dict[str, object] = {"method": method, "factor": factor, "frequency": frequency}
            self._add("energy_kept", float(low.square().mean() / x.square().mean()), axes)
            peak = int(torch.fft.rfft(low[0]).abs().argmax())
            self._add("alias_frequency", 2 * peak / low.shape[-1], axes)
            self._add("repeat_error", relative(x, low.repeat_interleave(factor, dim=-1)), axes)
            # The mean of samples 0 to factor - 1 stands for the time halfway between them.
            offset = 0.0 if method == "stride" else (factor - 1) / 2
            self._add("interpolation_error", relative(x, interpolated(low, factor, offset)), axes)

    def _noise(self, factor: int, channels: int) -> None:
        stream = generator(self.cell.seeds[0], table.NAME, "strided", factor, channels)
        conv = nn.Conv1d(1, channels, factor, stride=factor, bias=False).to(device=self.device, dtype=torch.float64)
        conv.weight.data = torch.randn(conv.weight.shape, generator=stream, dtype=torch.float64).to(self.device)
        length = 2 * factor
        x = torch.zeros(1, 1, length, dtype=torch.float64, device=self.device)
        jacobian = torch.autograd.functional.jacobian(conv, x).reshape(-1, length)
        # The best linear map brings back the projection of the noise on the rows of the Jacobian.
        kept = int(torch.linalg.matrix_rank(jacobian))
        self._add("lost_share", (length - kept) / length, {"factor": factor, "channels": channels})

    def _add(self, quantity: str, value: float, axes: dict[str, object]) -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=1))

    def rows(self) -> list[Row]:
        """Energies, errors and what is lost."""
        return self.found


def relative(x: Tensor, again: Tensor) -> float:
    """Squared error of ``again`` relative to the energy of ``x``."""
    return float((again - x).square().sum() / x.square().sum())


def interpolated(low: Tensor, factor: int, offset: float) -> Tensor:
    """Band-limited interpolation of periodic samples ``[2, n]`` to ``[2, factor n]``.

    Sample i lies at ``factor`` i + ``offset``. Both rows together are one complex signal, so that a frequency at the
    edge of the band has one sign.
    """
    n = low.shape[-1]
    spectrum = torch.fft.fft(torch.complex(low[0], low[1]))
    bins = torch.fft.fftfreq(n, dtype=torch.float64, device=low.device) * n
    time = torch.arange(factor * n, dtype=torch.float64, device=low.device) - offset
    phase = 2 * math.pi * torch.outer(time, bins) / (factor * n)
    signal = torch.polar(torch.ones_like(phase), phase) @ spectrum / n
    return torch.stack([signal.real, signal.imag])
