"""symmetry_and_capacity, measured: properties of networks, counts of what groups leave, and two trained tasks."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import leaky_relu, one_hot

from attnrepro.config import Cell
from attnrepro.data.streams import generator, stream_seed
from attnrepro.nn.conv_stack import conv_layer
from attnrepro.nn.ring_models import LocallyConnected, TokenConv, mixing_layer
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.nn.sequence_classifier import SequenceClassifier
from attnrepro.results.rows import Row
from attnrepro.tables.symmetry_and_capacity import table
from attnrepro.tables.symmetry_and_capacity.properties import Draw, parameters, shift_change, violation
from attnrepro.training.ensemble import Recipe, SeedEnsemble, cross_entropy
from attnrepro.training.measurement import Job, Measurement, batches

# Inputs whose neighbourhoods are compared.
INPUTS = 20


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    p = cell.params
    if p.study == "tasks":
        duel = Duel(cell)
        return Job(duel, batches(duel.plan()), fit=duel.loader(), max_steps=p.steps)
    study: Properties | Counts = Properties(cell) if p.study == "symmetry" else Counts(cell)
    return Job(study, batches(study.plan()))


class Study(Measurement):
    """A measurement that adds rows one by one; what is counted or is an extreme carries the first seed."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def add(
        self,
        quantity: str,
        value: float,
        axes: dict[str, object],
        *,
        n: int = 1,
        statistic: str = "exact",
        sd: float | None = None,
    ) -> None:
        """One row."""
        self.found.append(Row(quantity, value, axes, statistic=statistic, seed=self.cell.seeds[0], n=n, sd=sd))

    def rows(self) -> list[Row]:
        """Every row, as added."""
        return self.found


# --- properties of networks ---


class Properties(Study):
    """Every cell of the tables of assumptions, over all draws of all shapes."""

    def plan(self) -> list[tuple[str, str]]:
        """Batches: (property, network), then what a shift changes."""
        tested = [(name, network) for name, row in table.EXPECTED.items() for network in row]
        return tested + [("shift_change", network) for network in table.SHIFTED]

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """All draws of one cell."""
        name, network = batch
        if name == "shift_change":
            found = [shift_change(draw) for shape in self.cell.params.shapes for draw in self._draws(network, shape)]
            sd = float(np.std(found, ddof=1)) if len(found) > 1 else 0.0
            axes: dict[str, object] = {"network": network}
            self.add("shift_change", float(np.mean(found)), axes, n=len(found), statistic="mean", sd=sd)
            return
        every: list[float] = []
        for shape in table.shapes_of(self.cell.params, name, network):
            found = [violation(name, draw) for draw in self._draws(network, shape)]
            every += found
            self._tell(name, {"network": network, "property": name, "shape": shape}, found)
        axes = {"network": network, "property": name}
        self._tell(name, axes, every)
        self.add("has_property", judged(name, every), axes, n=len(every))

    def _draws(self, network: str, shape: str) -> Iterator[Draw]:
        p = self.cell.params
        modules: dict[Any, nn.Module] = {}
        seeds = self.cell.seeds[: p.draws]
        streams = [generator(seed, table.NAME, network, shape, device=self.device) for seed in seeds]
        for index in range(p.draws):
            yield Draw(network, shape, p.num_heads, streams[index % len(streams)], modules)

    def _tell(self, name: str, axes: dict[str, object], found: Sequence[float]) -> None:
        self.add("error_eps", float(np.max(found)) / table.EPS, axes, n=len(found))
        if not table.EXPECTED[name][str(axes["network"])]:
            self.add("breakage_relative", breakage(name, found), axes, n=len(found))


def breakage(name: str, found: Sequence[float]) -> float:
    """The violation that stands for all draws: the smallest, of means over tokens the median."""
    return float(np.median(found) if name in table.BY_MEDIAN else np.min(found))


def judged(name: str, found: Sequence[float]) -> float:
    """1 if a property holds in every draw, 0 if it is violated, 1/2 if the draws decide neither."""
    if np.max(found) <= table.HOLDS_EPS * table.EPS:
        return 1.0
    return 0.0 if breakage(name, found) >= table.BROKEN_SHARE else 0.5


# --- counts ---


class Counts(Study):
    """What groups leave, from their generators; what layers can be, from layers; parameters, neighbours, fields."""

    def plan(self) -> list[str]:
        """Batches by what is counted."""
        return ["groups", "spans", "neighbours", "parameters", "fields"]

    def test_step(self, batch: str, batch_idx: int) -> None:
        """All counts of one kind."""
        kinds: dict[str, Callable[[], None]] = {
            "groups": self._count_groups,
            "spans": self._count_spans,
            "neighbours": self._count_neighbours,
            "parameters": self._count_parameters,
            "fields": self._count_fields,
        }
        kinds[batch]()

    def _count_groups(self) -> None:
        p = self.cell.params
        for n in p.lengths:
            dims, classes, listed = {}, {}, {}
            for group in table.closed.GROUPS:
                made = generators(group, n)
                dims[group], classes[group] = commutant_dimension(made), classes_of_words(made)
                at: dict[str, object] = {"group": group, "length": n}
                self.add("equivariant_dimension", dims[group], at)
                self.add("classes", classes[group], at)
                if n <= p.listed_most:
                    listed[group] = elements(made)
                    self.add("group_size", len(listed[group]), at)
            for group, against in table.GROUP_PAIRS:
                at = {"group": group, "against": against, "length": n}
                self.add("dimension_ratio", dims[group] / dims[against], at)
                self.add("classes_ratio", classes[group] / classes[against], at)
            if listed:
                at = {"group": "shifts", "against": "permutations", "length": n}
                self.add("share_of_group", len(listed["shifts"]) / len(listed["permutations"]), at)
                self.add("outside_group", len(listed["shifts"] - listed["permutations"]), at)
            for network, group in table.GROUP_OF.items():
                near, far = (abs(math.log(dims[group] / dims[other])) for other in ("none", "shifts"))
                self.add("distance_ratio", near / far, {"network": network, "length": n})

    def _count_spans(self) -> None:
        p = self.cell.params
        for n in p.lengths:
            for layer in table.SPANS:
                dimension = span(layer, n, p.span_kernel, self.cell.seeds[0])
                at: dict[str, object] = {"network": layer, "length": n, "kernel": p.span_kernel}
                self.add("span_dimension", dimension, at)
                self.add("span_share", dimension / n**2, at)

    def _count_neighbours(self) -> None:
        for kernel in self.cell.params.kernels:
            stream = generator(self.cell.seeds[0], table.NAME, "neighbours", kernel)
            side = 3 * kernel
            conv = nn.Conv2d(1, 1, kernel, padding=kernel // 2, bias=False).double()
            with torch.no_grad():
                conv.weight.normal_(generator=stream)
            seen = set()
            for _ in range(INPUTS):
                x = torch.randn(1, 1, side, side, generator=stream, dtype=torch.float64)
                middle = side // 2
                gradient = gradient_of(lambda image: leaky_relu(conv(image))[0, 0, middle, middle], x)[0, 0]  # noqa: B023
                places = {(int(i), int(j)) for i, j in gradient.nonzero()}
                seen.add(frozenset(places - {(middle, middle)}))
            self.add("neighbours", max(map(len, seen)), {"kernel": kernel}, n=INPUTS)
            self.add("neighbourhoods", len(seen), {"kernel": kernel}, n=INPUTS)

    def _count_parameters(self) -> None:
        p = self.cell.params
        for d in p.channels:
            for network, against, kernel in table.PARAMETER_PAIRS:
                ratio = layer_parameters(network, d, kernel) / layer_parameters(against, d, kernel)
                at: dict[str, object] = {"network": network, "against": against, "kernel": kernel, "channels": d}
                self.add("parameter_ratio", ratio, at)
        length, width, kernel = table.sizes(p.shapes[0])
        for network in table.GROWN:
            # Of the layer in which positions meet: the matrix for each token alone has the same size everywhere.
            short, long = (
                parameters(mixing_layer(network, n, width, kernel, p.num_heads)) for n in (length, 2 * length)
            )
            self.add("parameters_growth", long / short, {"network": network})

    def _count_fields(self) -> None:
        p = self.cell.params
        for stack in table.STACKS:
            fields = [self._field(stack, depth) for depth in p.depths]
            for depth, field in zip(p.depths, fields, strict=True):
                self.add("receptive_field", field, {"network": stack, "kernel": table.FIELD_KERNEL, "depth": depth})
            gains = [after - before for before, after in itertools.pairwise(fields)]
            if gains:
                self.add("field_gain", min(gains), {"network": stack, "kernel": table.FIELD_KERNEL})

    def _field(self, stack: str, depth: int) -> int:
        """Inputs on which an output in the middle depends."""
        stream = generator(self.cell.seeds[0], table.NAME, "field", stack, depth)
        layers = nn.Sequential(*(conv_layer(stack, table.FIELD_KERNEL, index) for index in range(depth))).double()
        with torch.no_grad():
            for weight in layers.parameters():
                weight.uniform_(0.5, 1.0, generator=stream)
        x = torch.randn(1, 1, self.cell.params.field_length, generator=stream, dtype=torch.float64)
        gradient = gradient_of(lambda tokens: (out := layers(tokens)[0, 0])[len(out) // 2], x)
        return int((gradient != 0).sum())


def gradient_of(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Derivative of one number by all inputs."""
    with torch.enable_grad():
        x = x.requires_grad_()
        (found,) = torch.autograd.grad(run(x), x)
    return found


def generators(group: str, n: int) -> list[tuple[int, ...]]:
    """Permutations of n positions that make the group; of no symmetry the identity."""
    shift = (*range(1, n), 0)
    made = {
        "none": [tuple(range(n))],
        "shifts_by_4": [tuple((i + table.closed.STEP) % n for i in range(n))],
        "shifts": [shift],
        "shifts_mirrored": [shift, tuple(reversed(range(n)))],
        "permutations": [shift, (1, 0, *range(2, n))],
    }
    return made[group]


def commutant_dimension(made: Sequence[tuple[int, ...]]) -> int:
    """Dimension of the matrices M with P M = M P for every P: what the rank of these equations leaves."""
    n = len(made[0])
    identity = torch.eye(n, dtype=torch.float64)
    matrices = [identity[list(order)] for order in made]
    # Row by row, P M is (P x 1) m and M P is (1 x P^T) m.
    equations = torch.cat([torch.kron(p, identity) - torch.kron(identity, p.T.contiguous()) for p in matrices])
    return n * n - int(torch.linalg.matrix_rank(equations))


def classes_of_words(made: Sequence[tuple[int, ...]]) -> int:
    """Binary words up to the group: each word takes the smallest name among its images until nothing changes."""
    n = len(made[0])
    words = torch.arange(2**n)
    bits = (words[:, None] >> torch.arange(n)) & 1
    images = [(bits[:, list(order)] << torch.arange(n)).sum(dim=-1) for order in made]
    name, before = words, None
    while before is None or not torch.equal(name, before):
        before = name
        for image in images:
            name = torch.minimum(name, name[image])
            name = name.scatter_reduce(0, image, name, "amin")
    return len(name.unique())


def elements(made: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Every element of the group, from products of its generators."""
    found = {tuple(range(len(made[0])))}
    edge = found
    while edge:
        edge = {tuple([old[i] for i in order]) for old in edge for order in made} - found
        found = found | edge
    return found


def span(layer: str, n: int, kernel: int, seed: int) -> int:
    """Rank of the matrices that layers with random weights are: one channel, more layers than matrices have entries."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, table.NAME, "span", layer, n))
        basis = torch.eye(n, dtype=torch.float64)[..., None]
        matrices = [as_matrix(layer, n, kernel, basis) for _ in range(n * n + n)]
    return int(torch.linalg.matrix_rank(torch.stack(matrices)))


def as_matrix(layer: str, n: int, kernel: int, basis: Tensor) -> Tensor:
    """One layer with new weights, applied to each unit vector ``[n, n, 1]``, as one long vector."""
    if layer == "mlp":
        made: nn.Module = nn.Linear(n, n, bias=False).double()
        return made(basis[..., 0]).flatten()
    if layer == "attention":
        # Queries of zero: nothing in the content decides, every weight is 1/n.
        attend = SelfAttention(1).double()
        attend.w_query.weight.zero_()
        beside = nn.Linear(1, 1, bias=False).double()
        return (attend(basis) + beside(basis)).flatten()
    if layer == "locally_connected":
        made = LocallyConnected(n, 1, 1, kernel).double()
        return torch.stack([made(unit) for unit in basis]).flatten()
    wide = n if n % 2 else n - 1
    made = TokenConv(1, 1, wide if layer == "convolution_wide" else kernel).double()
    out: Tensor = made(basis)
    if layer == "convolution_wide" and wide < n:  # an even ring has one offset more than the longest odd kernel
        out = out + torch.randn((), dtype=out.dtype) * basis.roll(n // 2, dims=1)
    return out.flatten()


def layer_parameters(network: str, d: int, kernel: int) -> int:
    """Weights of torch's layers, which need no memory for that."""
    with torch.device("meta"):
        if network == "attention":
            return parameters(nn.MultiheadAttention(d, 1, bias=False))
        if network == "convolution_1d":
            return parameters(nn.Conv1d(d, d, kernel, bias=False))
        if network == "convolution_2d":
            return parameters(nn.Conv2d(d, d, kernel, bias=False))
        depthwise = nn.Conv2d(d, d, kernel, groups=d, bias=False)
        return parameters(depthwise) + parameters(nn.Conv2d(d, d, 1, bias=False))


# --- two tasks ---


class Duel(SeedEnsemble):
    """Every network on one task, the seeds of each stacked, all in one fit: the sum of their losses."""

    def __init__(self, cell: Cell) -> None:
        p = cell.params
        super().__init__(Recipe("adam", (p.steps,), cooldown=0.5))
        self.cell = cell
        self.stacks = nn.ModuleDict({network: Stack(network, cell) for network in p.networks})
        self.streams: dict[tuple[int, str], torch.Generator] = {}
        self.kept: tuple[Tensor, Tensor] | None = None
        self.right: dict[tuple[str, str], list[float]] = {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One group: all networks have the same learning rate."""
        return [{"params": list(self.parameters()), "lr": self.cell.params.learning_rate}]

    def snapshot(self) -> None:
        """Nothing but the end is measured, and the end is what the networks are."""

    def _stream(self, seed: int, use: str) -> torch.Generator:
        if (seed, use) not in self.streams:
            self.streams[seed, use] = generator(seed, table.NAME, self.cell.params.task, use, device=self.device)
        return self.streams[seed, use]

    def draw(self, use: str, count: int) -> tuple[Tensor, Tensor]:
        """Sequences ``[seeds, count, length, inputs]`` and labels ``[seeds, count]``, each seed its own."""
        make = motif if self.cell.params.task == "motif" else recall
        parts = [make(self.cell.params, count, self._stream(seed, use)) for seed in self.cell.seeds]
        x, label = (torch.stack(part) for part in zip(*parts, strict=True))
        return x.to(self.dtype), label.to(self.dtype)

    def _batch(self) -> tuple[Tensor, Tensor]:
        p = self.cell.params
        if p.task == "recall":
            return self.draw("train", p.batch_size)
        if self.kept is None:
            self.kept = self.draw("train", p.motif_sequences)
        picks = [
            torch.randint(p.motif_sequences, (p.batch_size,), generator=self._stream(seed, "order"), device=self.device)
            for seed in self.cell.seeds
        ]
        x, label = self.kept
        chosen = torch.stack(picks)
        which = torch.arange(len(picks), device=self.device)[:, None]
        return x[which, chosen], label[which, chosen]

    def backward_sum(self, step: int) -> Tensor:
        """All networks on the same sequences."""
        x, label = self._batch()
        losses = []
        for stack in self.stacks.values():
            loss = cross_entropy(stack(x), label).mean(-1)
            loss.sum().backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach().mean())
        return torch.stack(losses).mean()

    def plan(self) -> list[tuple[str, str]]:
        """Test batches: (sequences, network)."""
        fresh = [("test", network) for network in self.stacks]
        if self.cell.params.task == "recall":
            return [*fresh, ("majority", "")]
        return fresh + [("train", network) for network in self.stacks]

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """Count right answers; every network gets the same sequences."""
        use, network = batch
        if use == "train" and self.kept is not None:
            x, label = self.kept
        else:
            # The stream from its beginning, the same for every network.
            for seed in self.cell.seeds:
                self.streams.pop((seed, "test"), None)
            x, label = self.draw("test", self.cell.params.n_test)
        if use == "majority":
            asked = self.cell.params.recall_length - 1 - table.reach(self.cell.params)
            votes = x[:, :, :asked, -1].sum(-1)
            self.right[use, network] = ((votes > 0) == (label > 0.5)).double().mean(-1).tolist()
            return
        hits = [(self.stacks[network](part) > 0) == (of > 0.5) for part, of in in_parts(x, label)]
        self.right[use, network] = torch.cat(hits, dim=-1).double().mean(-1).tolist()

    def rows(self) -> list[Row]:
        """The accuracy of each seed, on fresh sequences and, where there are few, on those learned from."""
        p, found = self.cell.params, []
        names = {"test": "accuracy", "train": "train_accuracy", "majority": "majority_accuracy"}
        for (use, network), shares in self.right.items():
            finite = self.stacks[network].finite() if network else [True] * len(shares)
            for seed, share, ok in zip(self.cell.seeds, shares, finite, strict=True):
                status = "ok" if ok else "failed: diverged"
                axes = {"task": p.task, "network": network or None}
                value = share if ok else math.nan
                found.append(Row(names[use], value, axes, statistic="mean", seed=seed, n=1, status=status))
        first = self.cell.seeds[0]
        for network, stack in self.stacks.items():
            axes = {"task": p.task, "network": network}
            found.append(Row("parameters", stack.size, axes, statistic="exact", seed=first, n=1))
        for name in ("n_test", "solved_at"):
            found.append(Row(name, getattr(p, name), {"task": p.task}, statistic="exact", seed=first, n=1))
        return found


class Stack(nn.Module):
    """One network, a member for each seed with a start of its own, their parameters stacked."""

    def __init__(self, network: str, cell: Cell) -> None:
        super().__init__()
        p = cell.params
        members = []
        for seed in cell.seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_seed(seed, table.NAME, p.task, network, "init"))
                members.append(
                    SequenceClassifier(
                        network,
                        inputs_of(p),
                        p.motif_length if p.task == "motif" else p.recall_length,
                        embed_dim=p.embed_dim,
                        num_heads=p.heads,
                        depth=p.depth,
                        kernel=p.kernel,
                        strength=p.strength,
                        readout="mean" if p.task == "motif" else "last",
                    )
                )
        self.size = parameters(members[0])
        weights, fixed = stack_module_state(members)  # type: ignore[arg-type]
        self.names = list(weights)
        self.weights = nn.ParameterList(weights.values())
        self.code = nn.Buffer(fixed["code"])
        # Kept out of the modules: it has no weights of its own and must not be asked for any.
        self.shell = [members[0].to("meta")]

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[seeds, n]`` of ``[seeds, n, length, inputs]``, each member its own."""

        def one(weights: dict[str, Tensor], code: Tensor, tokens: Tensor) -> Tensor:
            out: Tensor = functional_call(self.shell[0], ({**weights, "code": code}), (tokens,))
            return out

        found: Tensor = vmap(one)(dict(zip(self.names, self.weights, strict=True)), self.code, x)
        return found

    def finite(self) -> list[bool]:
        """Whether each member has only finite weights."""
        whole = torch.stack([weight.isfinite().flatten(1).all(-1) for weight in self.weights])
        return [bool(ok) for ok in whole.all(0)]


def in_parts(x: Tensor, label: Tensor, size: int = 500) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequences and labels a few at a time."""
    yield from zip(x.split(size, dim=1), label.split(size, dim=1), strict=True)


def inputs_of(p: Any) -> int:
    """Components of a token: of recall a key, a value and what marks the question."""
    return 1 if p.task == "motif" else p.recall_length + 1


def motif(p: Any, count: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noise N(0, 1) with a ramp somewhere: label 1 if it rises, 0 if it falls. ``[count, length, 1]``, ``[count]``."""
    device = stream.device
    x = torch.randn(count, p.motif_length, generator=stream, device=device)
    ramp = torch.linspace(-1, 1, p.motif_width, device=device)
    ramp = p.motif_norm * ramp / ramp.norm()
    label = torch.randint(2, (count,), generator=stream, device=device)
    start = torch.randint(p.motif_length - p.motif_width + 1, (count,), generator=stream, device=device)
    places = start[:, None] + torch.arange(p.motif_width, device=device)
    signs = (2 * label - 1)[:, None].to(ramp.dtype)
    return x.scatter_add(1, places, signs * ramp)[..., None], label


def recall(p: Any, count: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens with different keys and a sign each, then one that asks for a key; label 1 if its sign was +.

    A token is a unit vector of its key and its sign; the one that asks has the key and a sign of 0. The token asked
    for stands out of reach of the narrow convolution. ``[count, length, length + 1]``, ``[count]``.
    """
    device = stream.device
    known = p.recall_length - 1
    keys = torch.rand(count, p.recall_length, generator=stream, device=device).argsort(dim=-1)[:, :known]
    signs = 2 * torch.randint(2, (count, known), generator=stream, device=device) - 1
    where = torch.randint(known - table.reach(p), (count, 1), generator=stream, device=device)
    asked = torch.cat([keys, keys.gather(1, where)], dim=1)
    x = one_hot(asked, p.recall_length)
    shown = torch.cat([signs, torch.zeros(count, 1, dtype=signs.dtype, device=device)], dim=1)
    label = (signs.gather(1, where)[:, 0] + 1) // 2
    return torch.cat([x, shown[..., None]], dim=-1).float(), label
