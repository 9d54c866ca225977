"""permutation_symmetry, measured: layers under permutations, rules on multisets, and models that learn the task."""

import copy
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from attnrepro.config import Cell
from attnrepro.data.streams import generator, stream_seed
from attnrepro.nn import masks
from attnrepro.nn.position import sinusoidal
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.nn.set_pooling import AttentionPool, DeepSets
from attnrepro.results.rows import Row
from attnrepro.tables.permutation_symmetry import table
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.moments import Moments

# Sequences at a time, few enough to stay near the processor.
CHUNK = 10_000


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    p = cell.params
    if p.study == "equivariance":
        symmetry = Symmetry(cell)
        return Job(symmetry, batches(symmetry.plan()))
    if p.study == "ceiling":
        rules = Rules(cell)
        return Job(rules, batches(rules.plan()))
    trained = Trained(cell)
    return Job(trained, batches(trained.plan()), fit=batches(range(p.steps)), max_steps=p.steps)


def chunks(count: int) -> list[int]:
    """Sizes of the parts of ``count`` sequences."""
    full, rest = divmod(count, CHUNK)
    return [CHUNK] * full + [rest] * (rest > 0)


# --- the symmetry of a layer, and what breaks it ---


class Symmetry(Measurement):
    """Random self-attention layers under random permutations.

    Input, weights and permutation of a draw are the same in every dtype: drawn in float64, then rounded. Draws are
    dealt to the seeds in turn; extremes are over all of them, and their rows carry the first seed. They are numpy's,
    which a NaN in any draw turns into NaN: such a cell fails.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []
        # Errors of every draw by dtype, for the lines over all layers.
        self.every: dict[str, list[dict[str, float]]] = {dtype: [] for dtype in cell.params.dtypes}

    def plan(self) -> list[tuple[str, str]]:
        """Batches: (shape, initialisation), then (shape, breaker)."""
        p = self.cell.params
        return table.layers(p) + [(shape, breaker) for breaker in p.breakers for shape in p.breaker_shapes]

    def test_step(self, batch: tuple[str, str], batch_idx: int) -> None:
        """All draws of one layer."""
        shape, what = batch
        if what in self.cell.params.breakers:
            self._break(shape, what)
        else:
            self._hold(shape, what)

    def _draws(self, shape: str, what: str, init: str) -> Iterator[tuple[SelfAttention, Tensor, Tensor]]:
        """Layer, tokens ``[length, embed_dim]`` and permutation of every draw, in float64."""
        length, embed_dim, num_heads = table.sizes(shape)
        seeds = self.cell.seeds
        streams = {seed: generator(seed, table.NAME, shape, what) for seed in seeds}
        layer = SelfAttention(embed_dim, num_heads).to(device=self.device, dtype=torch.float64)
        for index in range(self.cell.params.draws):
            stream = streams[seeds[index % len(seeds)]]
            for weight in layer.parameters():
                drawn = torch.empty(weight.shape, dtype=torch.float64)
                if init == "uniform":
                    drawn.uniform_(-1, 1, generator=stream)
                else:
                    drawn.normal_(generator=stream)
                weight.copy_(drawn if init == "unit" else drawn / math.sqrt(embed_dim))
            x = torch.randn(length, embed_dim, generator=stream, dtype=torch.float64)
            permutation = torch.randperm(length, generator=stream)
            while torch.equal(permutation, torch.arange(length)):  # the identity tests nothing
                permutation = torch.randperm(length, generator=stream)
            yield layer, x.to(self.device), permutation.to(self.device)

    def _hold(self, shape: str, init: str) -> None:
        errors: dict[str, list[dict[str, float]]] = {dtype: [] for dtype in self.cell.params.dtypes}
        for layer, x, permutation in self._draws(shape, init, init):
            for dtype, found in errors.items():
                rounded = copy.deepcopy(layer).to(getattr(torch, dtype))
                found.append(symmetry_errors(rounded, x.to(getattr(torch, dtype)), permutation, table.EPS[dtype]))
        for dtype, found in errors.items():
            self.every[dtype] += found
            axes = {"shape": shape, "init": init, "dtype": dtype}
            for name in found[0]:
                values = [draw[name] for draw in found]
                if name != "output_scale":
                    self._add(name, float(np.max(values)), axes, len(values))
                if name in ("output_scale", "equivariance_error_eps"):
                    self._add(name, statistics.median(values), axes, len(values), "median")
            self._add_zeros(found, axes)

    def _break(self, shape: str, breaker: str) -> None:
        relative: dict[str, list[float]] = {dtype: [] for dtype in self.cell.params.dtypes}
        pooled: dict[str, list[float]] = {dtype: [] for dtype in relative}
        length, embed_dim, _ = table.sizes(shape)
        code = sinusoidal(length, embed_dim, dtype=torch.float64, device=self.device)
        mask = self._mask(breaker, length)
        for layer, x, permutation in self._draws(shape, breaker, self.cell.params.inits[0]):
            for dtype, found in relative.items():
                kind = getattr(torch, dtype)
                rounded, tokens = copy.deepcopy(layer).to(kind), x.to(kind)
                positions = code.to(kind) if breaker == "sinusoidal" else torch.zeros_like(tokens)
                out = rounded(tokens + positions, mask)
                moved = rounded(tokens[permutation] + positions, mask)
                scale = float(out.abs().max())
                found.append(largest(moved - out[permutation]) / scale)
                pooled[dtype].append(largest(moved.mean(dim=-2) - out.mean(dim=-2)) / scale)
        for dtype, found in relative.items():
            axes = {"shape": shape, "breaker": breaker, "dtype": dtype}
            least = float(np.min(found))
            self._add("breakage_relative", least, axes, len(found))
            self._add("pooled_breakage_relative", statistics.median(pooled[dtype]), axes, len(found), "median")
            if dtype == "float64":
                self._add("breakage_eps", least / table.EPS[dtype], axes, len(found))
        if mask is not None:
            self.found.append(self._mismatches(shape, breaker, mask))

    def _mask(self, breaker: str, length: int) -> Tensor | None:
        if breaker == "causal":
            return masks.causal(length, device=self.device)
        if breaker == "window":
            return masks.window(length, self.cell.params.window_width, device=self.device)
        if breaker == "criss_cross":
            return masks.criss_cross(*table.grid_sides(length), device=self.device)
        return None

    def _mismatches(self, shape: str, breaker: str, mask: Tensor) -> Row:
        """Pairs (i, j) where output i depends on token j although the mask's definition forbids it, or the reverse."""
        length = len(mask)
        layer, x, _ = next(self._draws(shape, f"{breaker}-influence", self.cell.params.inits[0]))
        with torch.enable_grad():
            jacobian = torch.autograd.functional.jacobian(lambda tokens: layer(tokens, mask), x)
        depends = (jacobian.abs().amax(dim=(1, 3)) > 0).tolist()
        wrong = sum(
            depends[i][j] != self._may_attend(breaker, length, i, j) for i in range(length) for j in range(length)
        )
        axes = {"shape": shape, "breaker": breaker}
        return Row("mask_mismatches", wrong, axes, statistic="exact", seed=self.cell.seeds[0], n=length**2)

    def _may_attend(self, breaker: str, length: int, query: int, key: int) -> bool:
        """The definition of a mask, position by position; not the code that makes the masks."""
        if breaker == "causal":
            return key <= query
        if breaker == "window":
            return 2 * abs(query - key) < self.cell.params.window_width
        width = table.grid_sides(length)[1]
        return divmod(query, width)[0] == divmod(key, width)[0] or (query - key) % width == 0

    def _add(self, quantity: str, value: float, axes: dict[str, str], n: int, statistic: str = "exact") -> None:
        self.found.append(Row(quantity, value, axes, statistic=statistic, seed=self.cell.seeds[0], n=n))

    def _add_zeros(self, found: list[dict[str, float]], axes: dict[str, str]) -> None:
        zeros = sum(draw["equivariance_error"] == 0 for draw in found)
        self._add("count_zero", zeros, axes, len(found), "value")

    def rows(self) -> list[Row]:
        """Rows of every layer, then the largest errors over all of them."""
        for dtype, found in self.every.items():
            for name in ("equivariance_error_eps", "pooled_error_eps", "weights_error_eps"):
                self._add(name, float(np.max([draw[name] for draw in found])), {"dtype": dtype}, len(found))
            self._add_zeros(found, {"dtype": dtype})
        return self.found


def largest(difference: Tensor) -> float:
    """Largest absolute component."""
    return float(difference.abs().max())


def symmetry_errors(layer: SelfAttention, x: Tensor, permutation: Tensor, eps: float) -> dict[str, float]:
    """Largest violations of Attn(Px) = P Attn(x), of its pooled form and of A' = P A P^T, in one draw."""
    out, moved = layer(x), layer(x[permutation])
    weights, moved_weights = layer.weights(x), layer.weights(x[permutation])
    scale = float(out.abs().max())
    error = largest(moved - out[permutation])
    pooled = largest(moved.mean(dim=-2) - out.mean(dim=-2))
    of_weights = largest(moved_weights - weights[..., permutation, :][..., permutation])
    return {
        "equivariance_error": error,
        "equivariance_error_eps": error / (eps * scale),
        "pooled_error": pooled,
        # Relative to the outputs that are averaged: their mean may be close to zero.
        "pooled_error_eps": pooled / (eps * scale),
        "weights_error_eps": of_weights / (eps * float(weights.max())),
        "output_scale": scale,
    }


# --- what a rule can know from the multiset ---


class Rules(Measurement):
    """Two rules that see the first components of all tokens in no order, and how they correlate with the label."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.at = [(seed, length) for seed in cell.seeds for length in cell.params.lengths]
        self.sums = torch.nn.ModuleList([Moments(len(OBSERVED)) for _ in self.at])
        self.streams: dict[int, torch.Generator] = {}

    def plan(self) -> list[tuple[int, int]]:
        """Batches as (index of seed and length, number of sequences)."""
        return [(index, size) for index in range(len(self.at)) for size in chunks(self.cell.params.n_sequences)]

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """Draw sequences and let both rules guess the sign of token 0."""
        index, count = batch
        seed, length = self.at[index]
        stream = self.streams.get(index)
        if stream is None:
            stream = self.streams[index] = generator(seed, table.NAME, "ceiling", length, device=self.device)
        x = torch.randn(count, length, generator=stream, device=self.device, dtype=torch.float64)
        signs = torch.where(x > 0, 1.0, -1.0).double()
        label, votes, mean = signs[:, 0], signs.sum(-1), x.mean(-1)
        coin = torch.where(torch.rand(count, generator=stream, device=self.device) < 0.5, 1.0, -1.0).double()
        majority = torch.where(votes == 0, coin, votes.sign())
        of_mean = torch.where(mean > 0, 1.0, -1.0).double()
        variables = torch.stack([x[:, 0], label, mean, votes / length], dim=-1)
        products = torch.stack([variables[:, i] * variables[:, j] for i, j in PAIRS], dim=-1)
        hits = torch.stack([majority == label, of_mean == label], dim=-1).double()
        self.sums[index].update(torch.cat([hits, variables, products], dim=-1))

    def rows(self) -> list[Row]:
        """Accuracies and correlations; the spread of a correlation by the delta method."""
        result = []
        for (seed, length), moments in zip(self.at, self.sums, strict=True):
            mean, covariance = (part.cpu() for part in moments.mean_and_covariance())  # type: ignore[operator]
            n = int(moments.n)  # type: ignore[arg-type]
            values = judged(mean)
            with torch.enable_grad():
                slope = torch.autograd.functional.jacobian(judged, mean)
            spread = slope @ covariance @ slope.T
            sd = spread.diagonal().clamp_min(0).sqrt()
            axes = {"length": length}
            for i, (quantity, statistic) in enumerate(table.RULES.items()):
                result.append(
                    Row(quantity, float(values[i]), axes, statistic=statistic, seed=seed, n=n, sd=float(sd[i]))
                )
            correlation_sq = float((spread / torch.outer(sd, sd)).square().sum())
            result.append(Row("correlation_sq", correlation_sq, axes, statistic="value", seed=seed, n=n))
        return result


VARIABLES = ("token", "label", "mean", "mean_of_signs")
PAIRS = [(i, j) for i in range(len(VARIABLES)) for j in range(i, len(VARIABLES))]
OBSERVED = ["majority", "sign_of_mean", *VARIABLES, *PAIRS]


def judged(moments: Tensor) -> Tensor:
    """The quantities of ``table.RULES``, in their order, from the means of what was observed ``[OBSERVED]``."""
    first, second = moments[2 : 2 + len(VARIABLES)], moments[2 + len(VARIABLES) :]

    def moment(i: int, j: int) -> Tensor:
        return second[PAIRS.index((min(i, j), max(i, j)))] - first[i] * first[j]

    def correlation(a: str, b: str) -> Tensor:
        i, j = VARIABLES.index(a), VARIABLES.index(b)
        return moment(i, j) / (moment(i, i) * moment(j, j)).sqrt()

    by_value, by_sign = correlation("mean", "label"), correlation("mean_of_signs", "label")
    return torch.stack([moments[0], moments[1], correlation("mean", "token"), by_value, by_sign, by_value - by_sign])


# --- models that learn the task ---


def make_model(name: str, embed_dim: int, hidden: int) -> nn.Module:
    """One of ``table.MODELS`` with torch's default initialisation."""
    if name == "deep_sets":
        return DeepSets(embed_dim, hidden)
    return AttentionPool(embed_dim, hidden if name == "attention_mlp" else None)


class Trained(Measurement):
    """One model a seed, all in one fit: the sum of their losses moves each by its own gradient.

    Every seed has streams of its own for the start, the training data and the test data, so that it gives the same
    whatever the others are; the data of a seed are the same for every kind of model.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        p = cell.params
        members = []
        for seed in cell.seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_seed(seed, table.NAME, p.model, "init"))
                members.append(make_model(p.model, p.embed_dim, p.hidden))
        self.members = nn.ModuleList(members)
        self.streams: dict[tuple[int, str], torch.Generator] = {}
        self.correct = [0] * len(members)
        self.error_eps: list[float] = []

    def plan(self) -> list[tuple[str, int, int]]:
        """Test batches as (what, member, number of sequences)."""
        p, members = self.cell.params, range(len(self.members))
        accuracy = [("accuracy", member, size) for member in members for size in chunks(p.n_test)]
        return accuracy + [("symmetry", member, size) for member in members for size in chunks(p.n_permuted)]

    def configure_optimizers(self) -> Any:
        """Adam, its rate falling linearly to 0 over the steps."""
        p = self.cell.params
        optimizer = torch.optim.Adam(self.parameters(), lr=p.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / p.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _stream(self, member: int, use: str) -> torch.Generator:
        if (member, use) not in self.streams:
            seed = self.cell.seeds[member]
            self.streams[member, use] = generator(seed, table.NAME, "task", use, device=self.device)
        return self.streams[member, use]

    def _sequences(self, member: int, use: str, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Fresh tokens ``[count, length, embed_dim]`` and labels, the sign of component 0 of token 0."""
        p = self.cell.params
        shape = (count, p.length, p.embed_dim)
        x = torch.randn(shape, generator=self._stream(member, use), device=self.device, dtype=dtype)
        return x, x[:, 0, 0] > 0

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """The summed losses of all members, each on its own fresh sequences."""
        losses = []
        for index, member in enumerate(self.members):
            x, label = self._sequences(index, "train", self.cell.params.batch_size, self.dtype)
            losses.append(binary_cross_entropy_with_logits(member(x), label.to(self.dtype)))
        return torch.stack(losses).sum()

    def test_step(self, batch: tuple[str, int, int], batch_idx: int) -> None:
        """Count right answers, or permute the tokens of trained models."""
        what, index, count = batch
        member = self.members[index]
        if what == "accuracy":
            x, label = self._sequences(index, "test", count, self.dtype)
            self.correct[index] += int(((member(x) > 0) == label).sum())
            return
        x, _ = self._sequences(index, "symmetry", count, torch.float64)
        order = torch.rand(x.shape[:2], generator=self._stream(index, "order"), device=self.device).argsort(dim=-1)
        exact = copy.deepcopy(member).double()
        out, moved = exact(x), exact(torch.take_along_dim(x, order[..., None], dim=1))
        self.error_eps.append(float((moved - out).abs().max() / (table.EPS["float64"] * out.abs().max())))

    def rows(self) -> list[Row]:
        """The accuracy of each seed with its binomial spread, again as one value of the mean, and the symmetry."""
        p = self.cell.params
        result = []
        axes: dict[str, object] = {"length": p.length, "model": p.model}
        for index, seed in enumerate(self.cell.seeds):
            diverged = not all(bool(torch.isfinite(weight).all()) for weight in self.members[index].parameters())
            status = "failed: diverged" if diverged else "ok"
            share = math.nan if diverged else self.correct[index] / p.n_test
            sd = math.nan if diverged else math.sqrt(share * (1 - share) * p.n_test / (p.n_test - 1))
            own = {**axes, "member": seed}
            result += [
                Row("accuracy", share, own, statistic="share", seed=seed, n=p.n_test, sd=sd, status=status),
                Row("accuracy", share, axes, statistic="mean", seed=seed, n=1, status=status),
            ]
        finite = [error for error in self.error_eps if math.isfinite(error)]
        if finite:
            n = len(finite) * p.n_permuted
            model = {"model": p.model, "dtype": "float64"}
            first = self.cell.seeds[0]
            result.append(Row("trained_error_eps", max(finite), model, statistic="exact", seed=first, n=n))
        return result
