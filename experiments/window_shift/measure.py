"""window_shift, measured: networks on shifted maps, and autograd's account of who depends on whom."""

import math

import torch
from torch import Tensor, nn

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.convnext import ConvNeXtBlock
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.nn.swin import PatchMerging, SwinBlock, SwinPair
from attnrepro.nn.vit import sinusoidal_2d
from attnrepro.results.rows import Row
from attnrepro.tables.window_shift import table
from attnrepro.training.measurement import Job, Measurement, batches

EPS = 2.0**-52
# Pairs of places at a time in full attention.
CHUNK = 2**20


def build(cell: Cell) -> Job:
    """The cell's study."""
    if cell.params.study == "reach":
        return Job(
            Reach(cell), batches([(name, network) for name in cell.params.maps for network in ("swin", "cyclic")])
        )
    shifts = Shifts(cell)
    return Job(shifts, batches([(network, border) for network in table.NETWORKS for border in table.borders(network)]))


class Everywhere(nn.Module):
    """x + full attention over the places of a map, with a position encoding or without."""

    def __init__(self, channels: int, num_heads: int, *, sinusoidal: bool) -> None:
        super().__init__()
        self.attention, self.sinusoidal = SelfAttention(channels, num_heads), sinusoidal

    def forward(self, x: Tensor) -> Tensor:
        """Map to map."""
        height, width = x.shape[-2:]
        tokens = x.flatten(2).mT
        if self.sinusoidal:
            tokens = tokens + sinusoidal_2d(height, width, tokens.shape[-1]).to(tokens)
        out: Tensor = x + self.attention(tokens).mT.reshape(x.shape)
        return out


def make(network: str, window: int, channels: int, heads: int, patch: int) -> nn.Module:
    """One of ``table.NETWORKS``, in float64; weights are drawn later."""
    kind = table.NETWORKS[network]

    def pair(width: int) -> SwinPair:
        return SwinPair(
            width,
            num_heads=heads,
            window=window,
            expansion=2,
            relative_bias=not network.endswith("_unbiased"),
            masked=kind.masked,
        )

    parts: list[nn.Module] = [nn.Conv2d(channels, channels, patch, stride=patch)] if kind.patched else []
    if network == "windows":
        parts.append(SwinBlock(channels, num_heads=heads, window=window, expansion=2))
    elif kind.windowed:
        parts.append(pair(channels))
    elif network == "convolution":
        parts.append(ConvNeXtBlock(channels, expansion=2, padding="circular"))
    else:
        parts.append(Everywhere(channels, heads, sinusoidal=network == table.BREAKER))
    if kind.merged:
        parts += [PatchMerging(channels), pair(2 * channels)]
    return nn.Sequential(*parts).double()


def draw_weights(module: nn.Module, stream: torch.Generator) -> None:
    """Matrices N(0, 1 / fan_in), everything else N(0, 1): no part is small enough to hide."""
    for weight in module.parameters():
        drawn = torch.randn(weight.shape, generator=stream, dtype=torch.float64)
        fan_in = weight[0].numel() if weight.ndim > 1 else 1
        with torch.no_grad():
            weight.copy_(drawn / math.sqrt(fan_in))
    for part in module.modules():
        if isinstance(part, SwinBlock) and part.attention.bias is not None:
            with torch.no_grad():  # a table with a row for each offset, not a matrix
                part.attention.bias.normal_(generator=stream)


class Shifts(Measurement):
    """Every network at every shape: named shifts, all diagonal ones, all rolls of a torus."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """One network in one surround."""
        network, border = batch
        p, seeds = self.cell.params, self.cell.seeds
        named: dict[str, list[float]] = {name: [] for name in table.SHIFTS}
        listed: list[float] = []
        unlisted: list[float] = []
        axes: dict[str, object] = {"network": network, "border": border}
        for shape in p.shapes:
            window, windows, channels, heads = table.sizes(shape)
            step = table.period(p, network, window, windows, border)
            streams = {seed: generator(seed, table.NAME, shape, network, border) for seed in seeds}
            by_shift: dict[int, list[float]] = {}
            commuting = []
            for draw in range(p.draws):
                stream = streams[seeds[draw % len(seeds)]]
                module = make(network, window, channels, heads, p.patch)
                draw_weights(module, stream)
                module.to(self.device)
                x = self._map(network, border, window, windows, channels, stream).to(self.device)
                size = x.shape[-1]
                most = 2 * window * table.pixels(p, network) if border == "constant" else size - 1
                shifts = list(range(1, most + 1))
                for by, error in zip(shifts, errors(module, x, [(by, by) for by in shifts]), strict=True):
                    by_shift.setdefault(by, []).append(error)
                    (unlisted if by % step else listed).append(error)
                if border == "torus" and draw < p.roll_draws and size <= p.roll_side:
                    rolls = [(down, across) for down in range(size) for across in range(size)]
                    commuting.append(sum(error <= table.HOLDS_EPS for error in errors(module, x, rolls)))
            for name in table.SHIFTS:
                by = table.shift_by(p, network, window, name)
                # At smoke two windows are the whole torus.
                named[name] += by_shift.get(by, [])
            if commuting:
                count = {**axes, "shape": shape}
                # Of several draws the one that is furthest from the others' number would show.
                self._add("commuting_rolls", max(commuting), count, len(commuting))
            if shape == p.shown_shape:
                for by, values in by_shift.items():
                    self._add("shift_error", max(values) * EPS, {**axes, "shape": shape, "shift": by}, len(values))
        for name, values in named.items():
            if values:
                self._add("equivariance_error_eps", max(values), {**axes, "shift": name}, len(values))
        if listed:
            self._add("listed_error_eps", max(listed), axes, len(listed))
        if unlisted:
            self._add("unlisted_error", min(unlisted) * EPS, axes, len(unlisted))

    def _map(
        self, network: str, border: str, window: int, windows: int, channels: int, stream: torch.Generator
    ) -> Tensor:
        """A map full of content, or one with content of a window's side where the second window starts."""
        p = self.cell.params
        pixels = table.pixels(p, network)
        if border == "torus":
            size = window * windows * pixels
            return torch.randn(1, channels, size, size, generator=stream, dtype=torch.float64)
        size, side = window * p.constant_windows * pixels, window * pixels
        x = torch.randn(1, channels, 1, 1, generator=stream, dtype=torch.float64).repeat(1, 1, size, size)
        content = torch.randn(channels, side, side, generator=stream, dtype=torch.float64)
        x[0, :, side : 2 * side, side : 2 * side] = content
        return x

    def _add(self, quantity: str, value: float, axes: dict[str, object], n: int) -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=n))

    def rows(self) -> list[Row]:
        """Every error and count."""
        return self.found


def errors(module: nn.Module, x: Tensor, rolls: list[tuple[int, int]]) -> list[float]:
    """|f(rolled x) - rolled f(x)| in eps of the largest output, for each roll of the input.

    An output of half the height, or of patches, is rolled by as much as its places are wide; where a roll is no whole
    number of them, no roll of the output can do, and the least error over both neighbouring ones is taken.
    """
    with torch.no_grad():
        out = module(x)
        places = x.shape[-1] // out.shape[-1]
        scale = EPS * float(out.abs().max())
        per_call = max(1, CHUNK // out.shape[-1] ** 4)
        found = []
        for first in range(0, len(rolls), per_call):
            some = rolls[first : first + per_call]
            moved = module(torch.cat([x.roll(by, (-2, -1)) for by in some]))
            for by, one in zip(some, moved, strict=True):
                downs, acrosses = ({part // places, -(-part // places)} for part in by)
                least = min(
                    float((one - out[0].roll((down, across), (-2, -1))).abs().max())
                    for down in downs
                    for across in acrosses
                )
                found.append(least / scale)
    return found


class Reach(Measurement):
    """Stacks of Swin's blocks, windows and shifted windows in turn: where the gradient of an output is not zero."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """One map, with the mask or without."""
        name, network = batch
        p = self.cell.params
        window, windows = table.sides(name)
        size = window * windows
        stream = generator(self.cell.seeds[0], table.NAME, "reach", name, network)
        blocks = []
        for index in range(max(table.depths(windows))):
            block = SwinBlock(
                p.reach_channels,
                num_heads=p.reach_heads,
                window=window,
                shift=window // 2 if index % 2 else 0,
                expansion=1,
                masked=table.NETWORKS[network].masked,
            ).double()
            draw_weights(block, stream)
            blocks.append(block.to(self.device))
        x = torch.randn(1, p.reach_channels, size, size, generator=stream, dtype=torch.float64).to(self.device)
        with torch.enable_grad():
            self._some(name, network, blocks, x)
            if size**2 <= p.whole_map:
                self._all(name, network, blocks, x)

    def _some(self, name: str, network: str, blocks: list[SwinBlock], x: Tensor) -> None:
        leaf, depths = x.clone().requires_grad_(), table.depths(table.sides(name)[1])
        out: Tensor = leaf
        for depth, block in enumerate(blocks, 1):
            out = block(out)
            for place, at in table.places(name).items() if depth in depths else ():
                (slope,) = torch.autograd.grad(out[0, :, at, at].sum(), leaf, retain_graph=True)
                count = int((slope[0] != 0).any(0).sum())
                axes = {"network": network, "windows": name, "depth": depth, "place": place}
                self._add("reach", count, axes)
                self._add("reach_share", count / leaf[0, 0].numel(), axes)

    def _all(self, name: str, network: str, blocks: list[SwinBlock], x: Tensor) -> None:
        """The depth from which all outputs depend on all places: one copy of the map for each output."""
        count = x[0, 0].numel()
        leaf = x.repeat(count, 1, 1, 1).requires_grad_()
        out: Tensor = leaf
        for depth, block in enumerate(blocks, 1):
            out = block(out)
            own = out.flatten(2).diagonal(dim1=0, dim2=2).sum()
            (slope,) = torch.autograd.grad(own, leaf, retain_graph=True)
            if bool((slope != 0).any(1).all()):
                self._add("layers_to_all", depth, {"network": network, "windows": name})
                return

    def _add(self, quantity: str, value: float, axes: dict[str, object]) -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=1))

    def rows(self) -> list[Row]:
        """Every count."""
        return self.found
