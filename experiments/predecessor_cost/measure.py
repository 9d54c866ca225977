"""predecessor_cost, measured: torch's FLOP counter, what goes through a softmax, autograd, the clock, the allocator."""

import statistics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.data.streams import generator, stream_seed
from attnrepro.nn.criss_cross import CrissCross
from attnrepro.nn.non_local import NonLocal
from attnrepro.nn.relation_module import RelationModule
from attnrepro.nn.resnet50 import ResNet50
from attnrepro.nn.squeeze_excitation import SqueezeExcitation
from attnrepro.results.rows import Row
from attnrepro.tables.predecessor_cost import table
from attnrepro.tables.predecessor_cost.blocks import make
from attnrepro.tables.predecessor_cost.identities import IDENTITIES, channel_weight, drawn
from attnrepro.theory import power_law
from attnrepro.theory.predecessor_cost import BLOCKS, powers
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.memory import memory_of
from attnrepro.training.stopwatch import Stopwatch

# The logits at which a sigmoid is one of its ends in float64: exp(-800) is 0, and so is exp(-40) beside 1.
FAR = 800.0
BROKEN_EPS = 1e6


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    p = cell.params
    if p.study == "times":
        return Job(Times(cell), batches([(seed, repeat) for seed in cell.seeds for repeat in range(p.repeats)]))
    if p.study == "identities":
        return Job(Identities(cell), batches([*IDENTITIES]))
    return Job(Counts(cell), batches([0])) if p.study == "counts" else Job(Network(cell), batches([0]))


class Measured(Measurement):
    """A measurement that collects its rows."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def exact(self, quantity: str, value: float, axes: dict[str, object], n: int = 1) -> None:
        """One count, or the extreme of n draws."""
        self.found.append(Row(quantity, float(value), axes, statistic="exact", seed=self.cell.seeds[0], n=n))

    def rows(self) -> list[Row]:
        """Everything collected."""
        return self.found


# --- counts ---


class Entries(TorchDispatchMode):
    """Entries of everything that goes through a softmax, that is averaged, and that comes out of a product."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = self.averaged = self.multiplied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts and goes on."""
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._softmax.default:
            self.softmax += out.numel()
        elif func is torch.ops.aten.mean.dim:
            self.averaged += args[0].numel()
        elif func is torch.ops.aten.mul.Tensor:
            self.multiplied += out.numel()
        return out


def counted(block: nn.Module, x: Tensor) -> tuple[int, int, Entries]:
    """FLOPs of a forward pass, those of products of two activations among them, and entries."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter, Entries() as entries:
        block(x)
    pairwise = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
    return int(counter.get_total_flops()), int(pairwise), entries


class Counts(Measured):
    """Parameters, FLOPs and scores of all blocks, their exponents, and criss-cross attention on other maps."""

    def test_step(self, batch: int, batch_idx: int) -> None:
        """All counts."""
        self.pairwise: dict[tuple[str, int], int] = {}
        self.values: dict[tuple[str, str], list[int]] = {}
        for block in BLOCKS:
            for side in self.cell.params.sides:
                self._count(block, side)
        for what in table.COUNTED:
            for block in table.fitted(what):
                self._exponents(block, what)
        for block in table.SUBSAMPLED:
            self._subsampled(block)
        for shape in self.cell.params.shapes:
            self._cross(shape)

    def _count(self, name: str, side: int) -> None:
        """On the device that has shapes only; windows look at their mask, which has to be there."""
        s = self.cell.params.block_sizes
        with torch.device("cpu" if name == "swin_pair" else "meta"):
            block, x = make(name, side, s).eval(), torch.zeros(1, s.channels, side, side)
        flops, self.pairwise[name, side], entries = counted(block, x)
        scores = entries.softmax
        if isinstance(block, RelationModule):
            scores = block.relations(x).shape[:-1].numel()
        at: dict[str, object] = {"block": name, "places": side**2}
        parameters = sum(parameter.numel() for parameter in block.parameters())
        if name in table.WIDENING:
            self.exact("parameters", parameters, at)
        elif side == self.cell.params.sides[0]:
            self.exact("parameters", parameters, {"block": name})
        for what, value in (("flops", flops), ("scores", scores)):
            self.exact(what, value, at)
            self.values.setdefault((name, what), []).append(value)

    def _exponents(self, block: str, what: str) -> None:
        places, values = [side**2 for side in self.cell.params.sides], self.values[block, what]
        at: dict[str, object] = {"block": block, "what": what}
        fit = power_law.fit(places, values, powers(block, what)[1])
        self.exact("exponent", fit.exponent, at)
        self.exact("fit_error", fit.error, at)
        local = power_law.local_exponent((places[-2], places[-1]), (values[-2], values[-1]))
        self.exact("local_exponent", local, {**at, "places": places[-1]})

    def _subsampled(self, name: str) -> None:
        p = self.cell.params
        for index, side in enumerate(p.sides):
            at: dict[str, object] = {"block": name, "places": side**2}
            whole, part = (self.values[block, "scores"][index] for block in ("non_local", name))
            self.exact("scores_ratio", whole / part, at)
            self.exact("pairwise_ratio", self.pairwise["non_local", side] / self.pairwise[name, side], at)
            # As printed the block itself is given the smaller map.
            pooled = name == "non_local_pooled"
            with torch.device("meta"):
                block = NonLocal(p.channels, pool=2 if pooled else 1)
                x = torch.zeros(1, p.channels, *([side] * 2 if pooled else [side // 2] * 2))
                rows = block.attention(x).shape[-2]
            self.exact("query_share", rows / side**2, at)

    def _cross(self, shape: str) -> None:
        """Few channels, so that no weight on the cross is rounded to zero; the scores do not depend on them."""
        p = self.cell.params
        height, width = table.extent(shape)
        for name in table.CROSSES:
            at: dict[str, object] = {"block": name, "shape": shape}
            block = CrissCross(p.identity_channels, recurrence=table.CROSSES.index(name) + 1)
            stream = generator(self.cell.seeds[0], table.NAME, "cross", shape)
            drawn(block, stream)
            x = torch.randn(1, p.identity_channels, height, width, generator=stream, dtype=torch.float64)
            _, _, entries = counted(block, x)
            self.exact("scores", entries.softmax, at)
            self.exact("scores_over_printed", entries.softmax / (height * width * (height + width)), at)
            if name == "criss_cross":
                self.exact("used_weights", int(block.attention(x).count_nonzero()), at)
            with torch.enable_grad():
                x.requires_grad_()
                (slope,) = torch.autograd.grad(block(x)[0, :, 0, 0].sum(), x)
            reached = (slope[0] != 0).any(0)
            self.exact("off_cross_reach", float(reached[1:, 1:].double().mean()), at)


class Network(Measured):
    """ResNet-50 without and with squeeze and excitation, on the device that has shapes only."""

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Both networks."""
        p = self.cell.params
        size, flops, operations = [], [], []
        for name, gate in ((table.PLAIN, None), (table.GATED, self._gate)):
            with torch.device("meta"):
                network, image = ResNet50(gate).eval(), torch.zeros(1, 3, p.image_side, p.image_side)
            size.append(sum(parameter.numel() for parameter in network.parameters()))
            products, _, entries = counted(network, image)
            flops.append(products)
            operations.append(products + entries.averaged + entries.multiplied)
            self.exact("parameters", size[-1], {"network": name})
            self.exact("flops", products, {"network": name})
        at: dict[str, object] = {"network": table.GATED}
        self.exact("parameters_share", (size[1] - size[0]) / size[0], at)
        self.exact("flops_share", (flops[1] - flops[0]) / flops[0], at)
        self.exact("operations_share", (operations[1] - operations[0]) / flops[0], at)

    def _gate(self, channels: int) -> nn.Module:
        return SqueezeExcitation(channels, reduction=self.cell.params.reduction)


# --- identities ---


class Identities(Measured):
    """Every equality and every breaker on all shapes."""

    def test_step(self, batch: str, batch_idx: int) -> None:
        """One equality."""
        errors = self._errors(batch, "")
        self.exact("error_eps", max(errors), {"identity": batch}, len(errors))
        for breaker in table.BREAKERS[batch]:
            errors = self._errors(batch, breaker)
            at: dict[str, object] = {"identity": batch, "breaker": breaker}
            self.exact("breakage_eps", min(errors), at, len(errors))
            self.exact("breaking_share", sum(error >= BROKEN_EPS for error in errors) / len(errors), at, len(errors))
        if batch == "unit_interval":
            for what, strength in (("smallest", -FAR), ("largest", FAR)):
                weight = channel_weight(self.cell.params.identity_channels, strength)
                self.exact("channel_weight", weight, {"block": "squeeze_excitation", "what": what})

    def _errors(self, identity: str, breaker: str) -> list[float]:
        p = self.cell.params
        found = []
        for shape in p.identity_shapes:
            stream = generator(self.cell.seeds[0], table.NAME, identity, breaker or "none", shape)
            for _ in range(p.draws):
                x = torch.randn(1, p.identity_channels, *table.extent(shape), generator=stream, dtype=torch.float64)
                found.append(IDENTITIES[identity](x, stream, breaker))
        return found


# --- the clock and the allocator ---


class Times(Measured):
    """Every block at every size in turns, repeat by repeat, and the two networks."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.times: dict[tuple[int, str, int], list[float]] = {}
        self.made: dict[tuple[str, int], tuple[nn.Module, Tensor]] = {}

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """One repeat of one seed: the fastest of a few calls of each block."""
        seed, repeat = batch
        p = self.cell.params
        if repeat == 0:
            self._make(seed)
        if batch_idx == 0:
            self.exact("fit_from", p.fit_from, {})
            self._memory()
        watch = Stopwatch(self.device, self.cell.threads)
        for (name, places), (module, x) in self.made.items():
            with torch.no_grad():
                best = min(watch.ms(lambda m=module, x=x: m(x)) for _ in range(table.calls(p, places)))
            self.times.setdefault((seed, name, places), []).append(best)

    def _make(self, seed: int) -> None:
        """New weights and maps, and a first call of each, in which libraries choose their kernels.

        The networks stay: their weights take long to draw.
        """
        p = self.cell.params
        torch.manual_seed(stream_seed(seed, table.NAME, "times"))
        made: dict[tuple[str, int], tuple[nn.Module, Tensor]] = {}
        for name in BLOCKS:
            for side in table.timed(p, name):
                made[name, side**2] = make(name, side, p.block_sizes), torch.randn(1, p.channels, side, side)
        side = p.timed_image_side
        for name, gate in ((table.PLAIN, None), (table.GATED, SqueezeExcitation)):
            network = self.made[name, side**2][0] if self.made else ResNet50(gate)
            made[name, side**2] = network, torch.randn(1, 3, side, side)
        self.made = {key: (module.eval().to(self.device), x.to(self.device)) for key, (module, x) in made.items()}
        if not self.times:
            with torch.no_grad():
                for module, x in self.made.values():
                    module(x)

    def _memory(self) -> None:
        """Bytes of one call, of blocks alone."""
        for (name, places), (module, x) in self.made.items():
            if name in BLOCKS:
                with torch.no_grad():
                    peak = memory_of(lambda m=module, x=x: m(x), self.device).peak
                at: dict[str, object] = {"block": name, "places": places}
                self.found.append(Row("peak_memory", peak, at, seed=self.cell.seeds[0], n=1, unit="B"))

    def rows(self) -> list[Row]:
        """The fastest repeat of each seed, and how much slower the median one is."""
        result = list(self.found)
        for (seed, name, places), values in self.times.items():
            at: dict[str, object] = {"block": name, "places": places} if name in BLOCKS else {"network": name}
            result.append(Row("time", min(values), at, seed=seed, n=1, unit="ms"))
            result.append(Row("noise", statistics.median(values) / min(values), at, seed=seed, n=1))
        return result
