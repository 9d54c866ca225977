"""efficient_attention, measured: weights seen through unit values, order, cost, and encoders that learn two things."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.data.near_and_far import PARTS, NearAndFar, draw, stacked
from attnrepro.data.streams import generator
from attnrepro.nn.efficient_encoder import EfficientEncoder, effective_weights, mix, power
from attnrepro.nn.vit import PatchEmbedding
from attnrepro.results.rows import Row
from attnrepro.tables.efficient_attention import table
from attnrepro.theory.efficient_attention import BLIND, KINDS
from attnrepro.training.ensemble import Recipe, SeedEnsemble
from attnrepro.training.measurement import Job, Measurement, batches

EPS = 2.0**-52


def build(cell: Cell) -> Job | list[Job]:
    """The cell's study; rates are tuned kind by kind."""
    p = cell.params
    if p.study == "structure":
        return Job(Structure(cell), batches(["weights", "order", "cost"]))
    if p.study == "tuning":
        return [_fitted(Encoders(cell, kind, table.tried_rates(p, kind), p.tuning_seeds)) for kind in KINDS]
    return _fitted(Encoders(cell, p.kind, [table.rate(p, p.kind)], cell.seeds))


def _fitted(module: "Encoders") -> Job:
    return Job(module, batches([0, module.recipe.steps]), fit=module.loader(), max_steps=module.recipe.steps)


# --- weights, order and cost ---


class Structure(Measurement):
    """What is known of a kind of attention before it is trained."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: str, batch_idx: int) -> None:
        """One of the three."""
        with torch.no_grad():
            {"weights": self._weights, "order": self._order, "cost": self._cost}[batch]()

    def _add(self, quantity: str, value: float, axes: dict[str, object], n: int = 1) -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=n))

    def _drawn(self, stream: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(shape, generator=stream, dtype=torch.float64).to(self.device)

    def _weights(self) -> None:
        """Equal ones, those of a patch, and random ones."""
        p, sizes = self.cell.params, table.model(self.cell.params, "full")
        nothing = torch.zeros(p.length, 2, dtype=torch.float64, device=self.device)
        for kind in table.UNIFORM:
            weights = effective_weights(kind, sizes, nothing, nothing)
            self._add("uniform_locality", share(*power(weights, p.radius)), {"network": kind})
        self._add("uniform_locality", share(*power(self._patches(), p.radius)), {"network": "patches"})
        head_dim = p.embed_dim // p.num_heads
        for seed in self.cell.seeds:
            for kind in BLIND:
                stream = generator(seed, table.NAME, "weights", kind)
                query, key = (self._drawn(stream, p.weight_draws, p.length, head_dim) for _ in range(2))
                mixture = self._drawn(stream, p.weight_draws, p.rank, p.length) if kind == "low_rank" else None
                near, others = power(effective_weights(kind, sizes, query, key, mixture), p.radius)
                found = near.sum(-1) / others.sum(-1)
                more: dict[str, Any] = {
                    "statistic": "mean",
                    "seed": seed,
                    "n": p.weight_draws,
                    "sd": float(found.std()),
                }
                self.found.append(Row("random_locality", float(found.mean()), {"network": kind}, **more))

    def _patches(self) -> Tensor:
        """Which pixel each pixel's patch depends on, and how much, with equal weights: ``[length, length]``."""
        p = self.cell.params
        embedding = PatchEmbedding((1, 1, p.length), 1, (1, p.patch)).double().to(self.device)
        embedding.projection.weight.fill_(1 / p.patch)
        embedding.projection.bias.fill_(0)
        unit = torch.eye(p.length, dtype=torch.float64, device=self.device)
        tokens = embedding(unit.reshape(p.length, 1, 1, p.length))[..., 0]
        return tokens.mT.repeat_interleave(p.patch, 0)

    def _order(self) -> None:
        """Tokens permuted: outputs are, or are not, the same in another order."""
        p, seeds = self.cell.params, self.cell.seeds
        sizes = table.model(p, "full")
        for kind in KINDS:
            relative: list[float] = []
            for shape in p.shapes:
                length, head_dim = table.shape_sizes(shape)
                streams = [generator(seed, table.NAME, "order", kind, shape) for seed in seeds]
                for index in range(p.order_draws):
                    stream = streams[index % len(seeds)]
                    given = [self._drawn(stream, length, head_dim) for _ in range(3)]
                    mixture = self._drawn(stream, p.rank, length) if kind == "low_rank" else None
                    order = torch.randperm(length, generator=stream).to(self.device)
                    out = mix(kind, sizes, *given, mixture)
                    moved = mix(kind, sizes, *(x[order] for x in given), mixture)
                    relative.append(float((moved - out[order]).abs().max() / out.abs().max()))
            axes: dict[str, object] = {"network": kind}
            if kind in ("full", "linear"):
                self._add("permutation_error_eps", max(relative) / EPS, axes, len(relative))
            else:
                self._add("order_broken", min(relative), axes, len(relative))

    def _cost(self) -> None:
        """Parameters of the trained encoders, and FLOPs of one head on tensors without data."""
        p = self.cell.params
        for kind in KINDS:
            stream = generator(self.cell.seeds[0], table.NAME, "count")
            encoder = EfficientEncoder([stream], kind, table.model(p, kind))
            axes: dict[str, object] = {"network": kind}
            self._add("parameters", sum(part.numel() for part in encoder.parameters()), axes)
            for length in p.lengths:
                sizes = table.head(p, length)
                given = [torch.zeros(length, sizes.embed_dim, device="meta") for _ in range(3)]
                mixture = torch.zeros(p.rank, length, device="meta") if kind == "low_rank" else None
                with FlopCounterMode(display=False) as counter:
                    mix(kind, sizes, *given, mixture)
                self._add("flops", counter.get_total_flops(), {**axes, "length": length})

    def rows(self) -> list[Row]:
        """Everything that was found."""
        return self.found


def share(near: Tensor, others: Tensor) -> float:
    """Locality of all outputs together."""
    return float(near.sum() / others.sum())


# --- encoders that learn ---


class Encoders(SeedEnsemble):
    """Encoders of one kind, every seed with every rate, on fresh sequences that all rates of a seed share.

    The data of a seed are the same for every kind. Each rate has parameters of its own, which one pass reads together.
    """

    def __init__(self, cell: Cell, kind: str, rates: Sequence[float], seeds: Sequence[int]) -> None:
        p = cell.params
        super().__init__(Recipe("adam", (0, p.steps), p.cooldown))
        self.cell, self.kind, self.rates, self.seeds = cell, kind, list(rates), list(seeds)
        self.by_rate = torch.nn.ModuleList(
            [
                EfficientEncoder([generator(s, table.NAME, "model") for s in self.seeds], kind, table.model(p, kind))
                for _ in self.rates
            ]
        )
        self.streams: dict[tuple[int, str], torch.Generator] = {}
        self.test_set: NearAndFar | None = None
        self.found: dict[tuple[str, str, str], Tensor] = {}
        self.finite: Tensor | None = None

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One group for each rate."""
        return [
            {"params": list(encoder.parameters()), "lr": rate}
            for encoder, rate in zip(self.by_rate, self.rates, strict=True)
        ]

    def snapshot(self) -> dict[str, Tensor]:
        """The parameters as they are, all rates side by side."""
        return {name: part.detach().clone() for name, part in self._joined().items()}

    def _joined(self) -> dict[str, Tensor]:
        """``[rates * seeds, ...]``, rate by rate."""
        named = [dict(encoder.named_parameters()) for encoder in self.by_rate]
        return {name: torch.cat([each[name] for each in named]) for name in named[0]}

    def _sequences(self, use: str, count: int) -> NearAndFar:
        p = self.cell.params
        for seed in self.seeds:
            if (seed, use) not in self.streams:
                self.streams[seed, use] = generator(seed, table.NAME, use, device=self.device)
        drawn = stacked([draw(count, p.length, p.symbols, p.asked, self.streams[seed, use]) for seed in self.seeds])
        return NearAndFar(*(torch.cat([part] * len(self.rates)) for part in drawn))

    def _asked(self, at_positions: Tensor, batch: NearAndFar) -> Tensor:
        """Of ``[members, n, length, size]`` what stands at the questions, ``[members, n, 2, asked, size]``."""
        places = batch.places.flatten(2)[..., None].expand(-1, -1, -1, at_positions.shape[-1])
        return at_positions.gather(2, places).reshape(*batch.places.shape, -1)

    def backward_sum(self, step: int) -> Tensor:
        """Fresh sequences for each seed; both kinds of questions count the same."""
        batch = self._sequences("train", self.cell.params.batch_size)
        logits = self._asked(functional_call(self.by_rate[0], self._joined(), (batch.tokens,)), batch)
        losses = cross_entropy(logits.flatten(0, 3), batch.answers.flatten(), reduction="none")
        means = losses.reshape(len(logits), -1).mean(-1)
        means.sum().backward()  # type: ignore[no-untyped-call]
        return means.detach().mean()

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Right answers, and where the weights of the questions lie, after ``batch`` updates."""
        p = self.cell.params
        if self.test_set is None:
            # Rates are chosen on other sequences than those that are reported.
            self.test_set = self._sequences("validation" if p.study == "tuning" else "test", p.n_test)
        phase = "end" if batch else "start"
        kept, weights = self.snapshots[batch], list[Tensor]()
        with torch.no_grad():
            logits = functional_call(self.by_rate[0], kept, (self.test_set.tokens,), {"weights": weights})
            right = self._asked(logits, self.test_set).argmax(-1) == self.test_set.answers
            # Summed over layers and heads, [2, members, n, 2, asked]: one that looks at itself alone moves nothing.
            powers = [torch.stack(power(each.double(), p.radius)).sum(3) for each in weights]
            near, others = (self._asked(each[..., None], self.test_set)[..., 0] for each in torch.stack(powers).sum(0))
        for index, part in enumerate(PARTS):
            self.found["accuracy", part, phase] = right[:, :, index].double().mean((1, 2)).cpu()
            of_part = near[:, :, index].sum((1, 2)) / others[:, :, index].sum((1, 2))
            self.found["locality", part, phase] = of_part.cpu()
        self.finite = torch.stack([part.flatten(1).isfinite().all(-1) for part in kept.values()]).all(0).cpu()

    def rows(self) -> list[Row]:
        """Each seed's accuracy and locality; tuning has the mean accuracy of both parts for each rate."""
        assert self.finite is not None
        result = []
        for index, ok in enumerate(self.finite.tolist()):
            rate, seed = self.rates[index // len(self.seeds)], self.seeds[index % len(self.seeds)]
            status = "ok" if ok else "failed: diverged"
            more: dict[str, Any] = {"statistic": "mean", "seed": seed, "n": 1, "status": status}

            def of(quantity: str, part: str, phase: str, at: int = index, finite: bool = ok) -> float:
                return float(self.found[quantity, part, phase][at]) if finite else math.nan

            if self.cell.params.study == "tuning":
                value = sum(of("accuracy", part, "end") for part in PARTS) / len(PARTS)
                axes: dict[str, object] = {"network": self.kind, "learning_rate": f"{rate:g}"}
                result.append(Row("validation_accuracy", value, axes, **more))
                continue
            for part in PARTS:
                axes = {"network": self.kind, "part": part}
                result.append(Row("accuracy", of("accuracy", part, "end"), axes, **more))
                for phase in ("start", "end"):
                    result.append(Row("locality", of("locality", part, phase), {**axes, "phase": phase}, **more))
        return result
