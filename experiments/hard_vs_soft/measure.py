"""hard_vs_soft, measured: derivatives by autograd and finite differences, and selectors that are trained."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.position import random_orthogonal
from attnrepro.nn.selection import gumbel, hard, score_function, selection_weights
from attnrepro.results.rows import Row
from attnrepro.tables.hard_vs_soft import table
from attnrepro.training.ensemble import Recipe, SeedEnsemble
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.moments import Moments

# Samples of the example at a time.
CHUNK = 50_000


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    if cell.params.study == "gradient":
        gradients = Gradients(cell)
        return Job(gradients, batches(gradients.plan()))
    selectors = Selectors(cell)
    return Job(
        selectors, batches(selectors.recipe.checkpoints), fit=selectors.loader(), max_steps=selectors.recipe.steps
    )


# --- derivatives and weights ---


class Gradients(Measurement):
    """Random lists of scores and values, and one example, in float64.

    Draws are dealt to the seeds in turn; extremes are over all of them, and their rows carry the first seed. They are
    numpy's, which a NaN in any draw turns into NaN: such a cell fails.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []
        self.errors: list[float] = []
        self.changes: dict[float, list[float]] = {move: [] for move in cell.params.moves}
        # Derivatives that are not 0, and all, by method.
        self.signals = {"hard_argmax": [0, 0], "soft": [0, 0]}
        self.violations = 0

    def plan(self) -> list[tuple[str, Any]]:
        """Batches: every shape, then the example, the estimators that draw, and the focus of softmax."""
        p = self.cell.params
        estimators: list[tuple[str, Any]] = [("estimator", method) for method in table.METHODS]
        return [*(("shape", shape) for shape in p.shapes), ("example", None), *estimators, ("leader", None)]

    def test_step(self, batch: tuple[str, Any], batch_idx: int) -> None:
        """One shape, or one part of the example."""
        what, which = batch
        with torch.enable_grad():
            if what == "shape":
                self._shape(which)
            elif what == "example":
                self._example()
            elif what == "estimator":
                self._estimator(which)
            else:
                self._leader()

    def _add(self, quantity: str, value: float, axes: dict[str, object], n: int = 1) -> None:
        axes = {"dtype": "float64", **axes}
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=n))

    def _draws(self, shape: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Scores ``[n]``, values ``[n, value_dim]`` and what reads the output ``[value_dim]``."""
        n_keys, value_dim = table.sizes(shape)
        seeds = self.cell.seeds
        streams = [generator(seed, table.NAME, shape) for seed in seeds]
        for index in range(self.cell.params.draws):
            sizes = ((n_keys,), (n_keys, value_dim), (value_dim,))
            drawn = (torch.randn(s, generator=streams[index % len(seeds)], dtype=torch.float64) for s in sizes)
            scores, values, reader = (tensor.to(self.device) for tensor in drawn)
            yield scores, values, reader

    def _shape(self, shape: str) -> None:
        errors, broken = [], []
        temperatures = self.cell.params.example_temperatures
        for index, (scores, values, reader) in enumerate(self._draws(shape)):
            read = values @ reader
            temperature = temperatures[index % len(temperatures)]
            errors.append(gradient_error(scores, read, temperature, soft))
            broken.append(gradient_error(scores, read, temperature, without_sum))
            # At T = 1, where no weight of a random list is so close to 1 that float64 rounds a derivative to 0.
            self._count("soft", derivative(lambda s, r=read: soft(s) @ r, scores))
            self._hard(scores, read)
            self._factors(scores)
        self.errors += errors
        axes: dict[str, object] = {"method": "soft", "shape": shape}
        self._add("gradient_error_eps", float(np.max(errors)), axes, len(errors))
        self._add("breakage_eps", float(np.min(broken)), axes, len(broken))

    def _count(self, method: str, slope: Tensor) -> None:
        self.signals[method][0] += int((slope != 0).sum())
        self.signals[method][1] += slope.numel()

    def _hard(self, scores: Tensor, read: Tensor) -> None:
        """The output of a hard choice when one score is moved: each a little, the second up to and past the first."""
        top, runner_up = scores.topk(2).indices.tolist()
        gap = float(scores[top] - scores[runner_up])
        before = pick(scores, read)
        step = gap / 4
        slopes = [
            (pick(moved(scores, k, step), read) - pick(moved(scores, k, -step), read)) / (2 * step)
            for k in range(len(scores))
        ]
        self._count("hard_argmax", torch.stack(slopes))
        for move, found in self.changes.items():
            after = pick(moved(scores, runner_up, move * gap), read)
            found.append(float((after - before).abs() / read.abs().max()))

    def _factors(self, scores: Tensor) -> None:
        """Counts where a larger factor on the scores did not concentrate the weights."""
        weights = [(factor * scores).softmax(-1) for factor in self.cell.params.factors]
        largest = torch.stack([w.max() for w in weights])
        entropy = torch.stack([torch.special.entr(w).sum() for w in weights])
        self.violations += int((largest.diff() <= 0).sum() + (entropy.diff() >= 0).sum())

    def _example(self) -> None:
        p = self.cell.params
        scores, values = self._tensor(p.example_scores), self._tensor(p.example_values)
        place = int(scores.topk(2).indices[1])
        for temperature in p.example_temperatures:
            slope = derivative(lambda s, t=temperature: soft(s, t) @ values, scores)
            self._add("second_gradient", float(slope[place]), {"method": "soft", "temperature": temperature})
        step = float(scores.topk(2).values.diff().abs()) / 4
        change = pick(moved(scores, place, step), values) - pick(moved(scores, place, -step), values)
        self._add("second_gradient", float(change / (2 * step)), {"method": "hard_argmax"})

    def _tensor(self, numbers: list[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def _estimator(self, method: str) -> None:
        """What a method takes for the derivative of (selected value - target)^2 / 2 by each score, sample by sample."""
        p, sampled = self.cell.params, method in table.SAMPLED
        values = self._tensor(p.example_values)
        moments = Moments(len(values)).to(self.device)
        stream = generator(self.cell.seeds[0], table.NAME, "estimator", method, device=self.device)
        left = p.samples if sampled else 1
        while left:
            count = min(left, CHUNK)
            left -= count
            scores = self._tensor(p.example_scores).expand(count, -1).clone().requires_grad_()
            noise = gumbel((count, len(values)), stream, dtype=torch.float64)
            weights = selection_weights(method, scores, 1.0, noise)
            loss = (weights @ values - p.example_target) ** 2 / 2
            if method == "reinforce":
                loss = loss + score_function(scores, 1.0, weights, loss)
            if loss.requires_grad:
                loss.sum().backward()
            slope = torch.zeros_like(scores) if scores.grad is None else scores.grad
            moments.update(slope.detach())
        self._estimates(method, moments, sampled)

    def _estimates(self, method: str, moments: Moments, sampled: bool) -> None:
        mean, covariance = (part.cpu() for part in moments.mean_and_covariance())
        for place, value in enumerate(mean.tolist()):
            axes: dict[str, object] = {"method": method, "place": place, "dtype": "float64"}
            if not sampled:
                self._add("estimator_gradient", value, axes)
                continue
            sd = math.sqrt(float(covariance[place, place]))
            n = self.cell.params.samples
            seed = self.cell.seeds[0]
            self.found.append(Row("estimator_gradient", value, axes, statistic="mean", seed=seed, n=n, sd=sd))
        if method == "reinforce":
            spread = covariance.diagonal().sqrt()
            correlation_sq = float((covariance / torch.outer(spread, spread)).square().sum())
            self._add("correlation_sq", correlation_sq, {"method": method})

    def _leader(self) -> None:
        """The weight of a score that leads equal ones, the lead for half of it, and signals that underflow."""
        p = self.cell.params
        for n_keys in p.leader_keys:
            for gap in p.gaps:
                self._add("max_weight", float(lead(n_keys, gap)[0]), {"n_keys": n_keys, "gap": gap})
            self._add("gap_for_half", self._half(n_keys), {"n_keys": n_keys})
        for gap in p.signal_gaps:
            for dtype in ("float64", "float32"):
                scores = torch.tensor([gap, 0.0], dtype=getattr(torch, dtype), device=self.device)
                slope = derivative(lambda s: soft(s)[0] - soft(s)[1], scores)
                axes: dict[str, object] = {"method": "soft", "gap": gap, "dtype": dtype}
                self._add("second_signal", float(slope[1] != 0), axes)

    def _half(self, n_keys: int) -> float:
        """By bisection."""
        low, high = 0.0, 40.0
        while high - low > 1e-13 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if lead(n_keys, middle)[0] < 0.5 else (low, middle)
        return high

    def rows(self) -> list[Row]:
        """Rows of every part, then what is over all shapes."""
        draws = len(self.errors)
        self._add("gradient_error_eps", float(np.max(self.errors)), {"method": "soft"}, draws)
        for method, (some, everybody) in self.signals.items():
            self._add("share_with_signal", some / everybody, {"method": method}, everybody)
        for move, found in self.changes.items():
            axes: dict[str, object] = {"method": "hard_argmax", "move": move}
            if move < 1:
                self._add("output_change", float(np.max(found)), axes, draws)
            else:
                self._add("output_jump", float(np.min(found)), axes, draws)
        self._add("focus_violations", self.violations, {}, draws)
        return self.found


def soft(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax weights ``[n]``."""
    return (scores / temperature).softmax(-1)


def without_sum(scores: Tensor, temperature: float) -> Tensor:
    """The same weights whose sum is taken for a constant: they must not have the derivative of softmax."""
    terms = ((scores - scores.max().detach()) / temperature).exp()
    return terms / terms.sum().detach()


def lead(n_keys: int, gap: float) -> Tensor:
    """Softmax of one score ``gap`` above ``n_keys`` - 1 equal ones, in float64."""
    scores = torch.zeros(n_keys, dtype=torch.float64)
    scores[0] = gap
    return scores.softmax(-1)


def moved(scores: Tensor, place: int, by: float) -> Tensor:
    """The scores with one of them raised."""
    result = scores.clone()
    result[place] += by
    return result


def pick(scores: Tensor, read: Tensor) -> Tensor:
    """The value ``[]`` of the highest score."""
    return hard(scores) @ read


def derivative(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """Gradient of a number by the scores, by autograd."""
    leaf = scores.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(leaf), leaf)
    return slope


def gradient_error(scores: Tensor, read: Tensor, temperature: float, mix: Callable[[Tensor, float], Tensor]) -> float:
    """Autograd of the mixture of ``read`` ``[n]`` against a_k (v_k - o) / T, in eps of its largest term."""
    slope = derivative(lambda s: mix(s, temperature) @ read, scores)
    weights = soft(scores, temperature)
    expected = weights * (read - weights @ read) / temperature
    scale = weights.max() * read.abs().max() / temperature
    return float((slope - expected).abs().max() / (table.EPS * scale))


# --- selectors that are trained ---


@dataclass(frozen=True)
class Kept:
    """Selectors ``[seeds, members, d, d]`` with gain and bias ``[seeds, members]`` after some steps."""

    selector: Tensor
    gain: Tensor
    bias: Tensor


class Selectors(SeedEnsemble):
    """Stacked models that find the item of a query: score = q^T W k / sqrt(d), answer = gain * selected label + bias.

    A member is a method at a temperature. All members of a seed have its rotation, start, data and noise. The loss is
    the binary cross-entropy of the answer; REINFORCE's baseline is the mean loss of the other sequences of the batch.
    """

    def __init__(self, cell: Cell) -> None:
        p = cell.params
        super().__init__(Recipe(p.optimizer, tuple(range(0, p.steps + 1, p.every))))
        self.cell = cell
        self.members = [(method, temperature) for method in p.methods for temperature in p.temperatures]
        seeds, dim = len(cell.seeds), p.embed_dim
        turns, starts = [], []
        for seed in cell.seeds:
            turns.append(random_orthogonal(dim, dim, generator(seed, table.NAME, "rotation")))
            stream = generator(seed, table.NAME, "start")
            starts.append(torch.randn(dim, dim, generator=stream) / math.sqrt(dim))
        start = torch.stack(starts)[:, None].expand(-1, len(self.members), -1, -1)
        self.turn = nn.Buffer(torch.stack(turns).float(), persistent=False)
        self.selector = nn.Parameter(start.clone())
        self.gain = nn.Parameter(torch.ones(seeds, len(self.members)))
        self.bias = nn.Parameter(torch.zeros(seeds, len(self.members)))
        self.streams: dict[tuple[int, str], torch.Generator] = {}
        self.test_set: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self.accuracy: dict[int, Tensor] = {}
        self.last: dict[str, Tensor] = {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One rate for all."""
        p = self.cell.params
        return [{"params": list(self.parameters()), "lr": p.sgd_rate if p.optimizer == "sgd" else p.adam_rate}]

    def snapshot(self) -> Kept:
        """The members as they are."""
        return Kept(*(part.detach().clone() for part in (self.selector, self.gain, self.bias)))

    def _stream(self, seed: int, use: str) -> torch.Generator:
        if (seed, use) not in self.streams:
            self.streams[seed, use] = generator(seed, table.NAME, use, device=self.device)
        return self.streams[seed, use]

    def sequences(self, use: str, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries ``[seeds, count, d]``, keys ``[seeds, count, n, d]``, labels ``[seeds, count, n]`` of -1 or 1, and
        the place of the right item ``[seeds, count]``."""
        p = self.cell.params
        keys, labels, places = [], [], []
        for seed in self.cell.seeds:
            stream = self._stream(seed, use)
            at: dict[str, Any] = {"generator": stream, "device": self.device}
            keys.append(torch.randn(count, p.n_keys, p.embed_dim, **at))
            labels.append(torch.randint(2, (count, p.n_keys), **at))
            places.append(torch.randint(p.n_keys, (count,), **at))
        key = nn.functional.normalize(torch.stack(keys), dim=-1) * math.sqrt(p.embed_dim)
        place = torch.stack(places)
        right = torch.take_along_dim(key, place[..., None, None], dim=2).squeeze(2)
        return right @ self.turn, key, torch.stack(labels) * 2.0 - 1, place

    def scores(self, query: Tensor, key: Tensor, selector: Tensor) -> Tensor:
        """``[seeds, members, count, n]``."""
        turned = torch.einsum("sbi,smij->sbmj", query, selector)
        return (turned @ key.transpose(-1, -2)).transpose(1, 2) / math.sqrt(self.cell.params.embed_dim)

    def backward_sum(self, step: int) -> Tensor:
        """Fresh sequences for each seed, the same for all of its members."""
        p = self.cell.params
        query, key, labels, place = self.sequences("train", p.batch_size)
        shape = (1, p.batch_size, p.n_keys)
        noise = torch.stack([gumbel(shape, self._stream(seed, "noise")) for seed in self.cell.seeds])
        answer = (torch.take_along_dim(labels, place[..., None], dim=-1).squeeze(-1) + 1)[:, None] / 2
        scores = self.scores(query, key, self.selector)
        total = scores.new_zeros(())
        for method, part in self._parts():
            own = scores[:, part]
            temperature = own.new_tensor([t for _, t in self.members[part]])[:, None, None]
            weights = selection_weights(method, own, temperature, noise)
            mixed = (weights * labels[:, None]).sum(-1)
            logits = self.gain[:, part, None] * mixed + self.bias[:, part, None]
            loss = binary_cross_entropy_with_logits(logits, answer.expand_as(logits), reduction="none")
            value = loss.mean(-1).sum()
            if method == "reinforce":
                others = (loss.sum(-1, keepdim=True) - loss) / (p.batch_size - 1)
                value = value + score_function(own, temperature, weights, loss - others).mean(-1).sum()
            total = total + value
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach() / self.gain.numel()

    def _parts(self) -> Iterator[tuple[str, slice]]:
        width = len(self.cell.params.temperatures)
        for index, method in enumerate(self.cell.params.methods):
            yield method, slice(index * width, (index + 1) * width)

    def test_step(self, batch: int, batch_idx: int) -> None:
        """How often the highest score is that of the right item after ``batch`` steps; at the end, the answers too."""
        if self.test_set is None:
            self.test_set = self.sequences("test", self.cell.params.n_test)
        query, key, labels, place = self.test_set
        kept = self.snapshots[batch]
        scores = self.scores(query, key, kept.selector)
        self.accuracy[batch] = (scores.argmax(-1) == place[:, None]).double().mean(-1).cpu()
        if batch < self.recipe.steps:
            return
        temperature = scores.new_tensor([t for _, t in self.members])[:, None, None]
        relaxed = (scores / temperature).softmax(-1)
        is_soft = torch.tensor([m in ("soft", "gumbel_soft") for m, _ in self.members], device=scores.device)
        mixed = (torch.where(is_soft[:, None, None], relaxed, hard(scores)) * labels[:, None]).sum(-1)
        label = torch.take_along_dim(labels, place[..., None], dim=-1).squeeze(-1)
        right = (kept.gain[..., None] * mixed + kept.bias[..., None]) * label[:, None] > 0
        self.last = {
            "answer_accuracy": right.double().mean(-1).cpu(),
            "largest_weight": relaxed.amax(-1).double().mean(-1).cpu(),
        }

    def rows(self) -> list[Row]:
        """Each seed's step and accuracies; a seed that diverged or never got there is a failed row."""
        p = self.cell.params
        start, end = self.snapshots[0], self.snapshots[p.steps]
        movement = (end.selector - start.selector).abs().amax((-1, -2)).cpu()
        finite = (
            torch.stack(
                [
                    part.flatten(2).isfinite().all(-1) if part.ndim > 2 else part.isfinite()
                    for part in (end.selector, end.gain, end.bias)
                ]
            )
            .all(0)
            .cpu()
        )
        values = {"selection_accuracy": self.accuracy[p.steps], **self.last}
        result = []
        for member, (method, temperature) in enumerate(self.members):
            axes: dict[str, object] = {
                "method": method,
                "temperature": temperature,
                "n_keys": p.n_keys,
                "optimizer": p.optimizer,
            }
            for index, seed in enumerate(self.cell.seeds):
                ok = bool(finite[index, member])
                at: dict[str, Any] = {"axes": axes, "seed": seed, "n": 1}
                reached = self._reached(index, member)
                never = f"failed: not within {p.steps} steps"
                result.append(
                    Row(
                        "steps_to_target",
                        math.nan if reached is None else reached,
                        statistic="mean",
                        unit="steps",
                        status=never if reached is None else "ok",
                        **at,
                    )
                )
                for quantity, found in values.items():
                    value = float(found[index, member]) if ok else math.nan
                    result.append(
                        Row(quantity, value, statistic="mean", status="ok" if ok else "failed: diverged", **at)
                    )
            moves = movement[:, member][finite[:, member]]
            if len(moves):
                largest = float(moves.max())
                result.append(
                    Row("selector_movement", largest, axes, statistic="exact", seed=self.cell.seeds[0], n=len(moves))
                )
        chance: dict[str, object] = {"n_keys": p.n_keys, "optimizer": p.optimizer}
        for index, seed in enumerate(self.cell.seeds):
            value = float(self.accuracy[0][index, 0])
            result.append(Row("selection_accuracy_start", value, chance, statistic="mean", seed=seed, n=1))
        return result

    def _reached(self, seed: int, member: int) -> int | None:
        """The first checkpoint at which enough test sequences are right."""
        for step in self.recipe.checkpoints:
            if self.accuracy[step][seed, member] >= self.cell.params.target:
                return step
        return None
