"""scale_training: heads that learn to look a value up, raced for a learning rate and then trained with each scale."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnrepro.config import Cell
from attnrepro.data.key_retrieval import Retrieval, draw, stacked
from attnrepro.data.streams import generator
from attnrepro.nn.key_retrieval import RetrievalHeads, UniformHeads, errors
from attnrepro.results.rows import Row
from attnrepro.tables.scale_training import table
from attnrepro.training.measurement import Job, Measurement, batches

# Test sequences of every seed that are held at once.
BLOCK = 1000
# What is told of one probe only, the last or the first.
KEPT, VARIANCE = ("kept_pattern", "mean"), ("logit_variance", "mean")
ONCE = {KEPT: -1, VARIANCE: 0}


def build(cell: Cell) -> Job:
    """The Trainer's work for one cell: the race, the training, and a test of every seed."""
    heads = ScaleTraining(cell)
    steps = cell.params.steps
    plan = [("race", step) for step in range(steps)] + [("train", step) for step in range(steps)]
    # Either phase has an optimiser of its own, and every update of one counts as a step of the Trainer.
    tests = [min(BLOCK, cell.params.n_test - start) for start in range(0, cell.params.n_test, BLOCK)]
    return Job(heads, batches(tests), fit=batches(plan), max_steps=len(plan))


@dataclass
class Runner:
    """Stacked heads of some seeds that train at one learning rate; accuracy and loss of every batch, ``[seeds]``.

    ``held`` has the batches after which each seed had held the target for long enough to win a race, None: not yet.
    """

    arm: str
    heads: RetrievalHeads | UniformHeads
    rate: float
    hits: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    held: list[int | None] = field(default_factory=list)

    def scores(self, batch: Retrieval) -> Tensor:
        """Scores of the values, ``[seeds, n, n_keys]``."""
        if isinstance(self.heads, UniformHeads):
            return self.heads.read(batch.queries.shape[1])
        return self.heads.read(self.heads.logits(self.heads.query(batch.queries), batch.keys))

    def loss(self, batch: Retrieval) -> Tensor:
        """Sum over the seeds of their mean errors on a batch, which is taken note of."""
        scores = self.scores(batch)
        means = errors(scores, batch.answers).mean(-1)
        self.hits.append((scores.detach().argmax(-1) == batch.answers).double().mean(-1))
        self.losses.append(means.detach())
        return means.sum()

    def look(self, hold: int, target: float) -> None:
        """Bring ``held`` up to date after a batch."""
        now = first_windows(torch.stack(self.hits[-hold:]), hold, target)
        before = self.held or [None] * len(now)
        self.held = [len(self.hits) if at and was is None else was for at, was in zip(now, before, strict=True)]

    def diverged(self, factor: float) -> list[int | None]:
        """Updates until each seed's loss first was not finite or above ``factor`` times that of its first batch."""
        losses = torch.stack(self.losses)
        wrong = ~(losses <= factor * losses[0])  # true of NaN too
        return [at if there else None for at, there in zip(wrong.int().argmax(0).tolist(), wrong.any(0), strict=True)]


def first_windows(hits: Tensor, window: int, target: float) -> list[int | None]:
    """For each column of accuracies ``[batches, seeds]``, how many batches it takes until the last ``window`` of them
    have a mean of at least ``target``; None where they never do.
    """
    if len(hits) < window:
        return [None] * hits.shape[1]
    # 1e-9 is above the rounding of a mean and below one hit of any batch.
    enough = hits.unfold(0, window, 1).mean(-1) >= target - 1e-9
    found = torch.where(enough.any(0), enough.int().argmax(0) + window, -1)
    return [None if at < 0 else at for at in found.tolist()]


@dataclass(frozen=True)
class Probe:
    """What the probe sequences of each seed say, by quantity and statistic: ``[seeds]`` each, in float64."""

    step: int
    found: Mapping[tuple[str, str], Tensor]


class ScaleTraining(Measurement):
    """One optimiser, head_dim and start: races learning rates for either scale and trains the arms."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.automatic_optimization = False  # two phases with an optimiser each, arms that leave early
        self.cell = cell
        p = cell.params
        grid = [("scaled", rate) for rate in p.scaled_rates] + [("unscaled", rate) for rate in p.unscaled_rates]
        self.racers = [Runner(arm, self._heads("race", arm), rate) for arm, rate in grid]
        self.breaker = Runner("breaker", self._heads("race", "scaled"), p.breaking_rate)
        # Rates that are still to be found; the race sets them.
        self.arms = [Runner(arm, self._heads("train", arm), math.nan) for arm in table.ARMS]
        # Registered, so that Lightning moves them.
        self.heads = nn.ModuleList([r.heads for r in (*self.racers, self.breaker, *self.arms)])
        self.streams: dict[tuple[str, int], torch.Generator] = {}
        self.winners: dict[str, Runner] = {}
        self.probes: dict[str, list[Probe]] = {arm: [] for arm in table.ARMS}
        self.pattern: dict[str, Tensor] = {}
        self.right: dict[str, Tensor] = {}
        self.base = {"optimizer": p.optimizer, "head_dim": p.head_dim, "init": p.init}

    def _stream(self, seed: int, use: str, device: Any = "cpu") -> torch.Generator:
        p = self.cell.params
        names = (use, p.embed_dim, p.n_keys, *((p.head_dim, p.init) if use.endswith("start") else ()))
        return generator(seed, table.NAME, *names, device=device)

    def _seeds(self, phase: str) -> Sequence[int]:
        return self.cell.params.tuning_seeds if phase == "race" else self.cell.seeds

    def _heads(self, phase: str, arm: str) -> RetrievalHeads | UniformHeads:
        p = self.cell.params
        # The same start for every arm of a seed: differences between them are paired.
        starts = [self._stream(seed, f"{phase}_start") for seed in self._seeds(phase)]
        if arm == "uniform":
            return UniformHeads(len(starts), p.n_keys)
        return RetrievalHeads(starts, p.embed_dim, p.head_dim, p.n_keys, scaled=arm == "scaled", init=p.init)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimiser for the race and one for the arms, a group of parameters for each runner."""
        make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
        if self.cell.params.optimizer == "adam":
            make = partial(torch.optim.Adam, fused=True)
        return [
            make([{"params": list(r.heads.parameters()), "lr": 0.0 if math.isnan(r.rate) else r.rate} for r in runners])
            for runners in ([*self.racers, self.breaker], self.arms)
        ]

    def training_step(self, batch: tuple[str, int], batch_idx: int) -> None:
        """An update of the race, unless it is over, or of the arms."""
        phase, step = batch
        race, train = self.optimizers()  # type: ignore[misc]
        if phase == "race":
            if open_arms := [arm for arm in table.RACED if arm not in self.winners]:
                running = [*(r for r in self.racers if r.arm in open_arms), self.breaker]
                self._update(race, running, phase)
                self._decide(last=step + 1 == self.cell.params.steps)
            return
        if step == 0:
            self._set_rates(train)
        if step in self.cell.params.probe_steps:
            self._probe(step)
        self._update(train, self.arms, phase)
        if step + 1 == self.cell.params.steps:
            self._probe(step + 1)
            self.trainer.should_stop = True

    def _update(self, optimizer: Any, runners: Sequence[Runner], phase: str) -> None:
        batch = self._batch(self._seeds(phase), phase, self.cell.params.batch_size)
        optimizer.zero_grad()
        # The sum over runners and seeds: each moves as if it were alone.
        self.manual_backward(torch.stack([r.loss(batch) for r in runners]).sum())
        optimizer.step()

    def _batch(self, seeds: Sequence[int], use: str, n: int) -> Retrieval:
        """The next ``n`` sequences of every seed's stream."""
        p = self.cell.params
        for seed in seeds:
            if (use, seed) not in self.streams:
                self.streams[use, seed] = self._stream(seed, use, self.device)
        return stacked([draw(n, p.n_keys, p.embed_dim, self.streams[use, seed]) for seed in seeds])

    def _decide(self, *, last: bool) -> None:
        """A rate wins when it is the first at which all tuning seeds have held the target, none of them diverged."""
        p = self.cell.params
        for arm in table.RACED:
            if arm in self.winners:
                continue
            runners = [r for r in self.racers if r.arm == arm]
            for r in runners:
                r.look(p.hold, p.target)
            done = [r for r in runners if all(r.held) and not any(_is_there(r.diverged(p.diverged_factor)))]
            if done:
                self.winners[arm] = min(done, key=lambda r: sum(at or 0 for at in r.held))
            elif last:
                # Nobody arrived: most seeds that did, then the highest accuracy at the end.
                late = {id(r): float(torch.stack(r.hits[-p.hold :]).mean()) for r in runners}
                self.winners[arm] = max(runners, key=lambda r: (sum(_is_there(r.held)), late[id(r)]))

    def _set_rates(self, optimizer: Any) -> None:
        rates = {arm: self.winners[table.RATE_OF[arm]].rate for arm in table.ARMS}
        for runner, group in zip(self.arms, optimizer.param_groups, strict=True):
            runner.rate = group["lr"] = rates[runner.arm]

    def _probe(self, step: int) -> None:
        """Gradients and attention of every arm on the probe sequences, in float64: small ones would underflow."""
        p = self.cell.params
        # The same sequences every time: the pattern of the start is that of these queries.
        drawn = [
            draw(p.n_probe, p.n_keys, p.embed_dim, self._stream(seed, "probe", self.device)) for seed in self.cell.seeds
        ]
        keys, queries, answers = stacked(drawn)
        batch = Retrieval(keys.double(), queries.double(), answers)
        for runner in self.arms:
            if isinstance(runner.heads, RetrievalHeads):
                self.probes[runner.arm].append(Probe(step, self._look_at(runner.arm, runner.heads, batch)))

    def _look_at(self, arm: str, trained: RetrievalHeads, batch: Retrieval) -> dict[tuple[str, str], Tensor]:
        heads = copy.deepcopy(trained).double()
        query = heads.query(batch.queries)
        logits = heads.logits(query, batch.keys)
        scores = heads.read(logits)
        # A query's own error depends on that query alone: one backward pass has all of them.
        own = errors(scores, batch.answers)
        by_query, *by_weight = torch.autograd.grad(own.sum(), [query, heads.w_query, heads.w_key])
        norms = by_query.norm(dim=-1)
        entries = torch.cat([g.flatten(1) for g in by_weight], 1).abs() / batch.answers.shape[1]
        weights = torch.softmax(logits, -1).detach()
        attended = logits.detach().argmax(-1)
        start = self.pattern.setdefault(arm, attended)
        others = nn.functional.one_hot(batch.answers, logits.shape[-1]) == 0
        found = {
            ("grad_query", "median"): norms.median(-1).values,
            ("grad_query", "rms"): norms.square().mean(-1).sqrt(),
            ("grad_weights", "median"): entries.median(-1).values,
            ("grad_weights", "rms"): entries.square().mean(-1).sqrt(),
            ("accuracy", "mean"): (scores.detach().argmax(-1) == batch.answers).double().mean(-1),
            ("max_weight", "mean"): weights.amax(-1).mean(-1),
            KEPT: (attended == start).double().mean(-1),
            VARIANCE: (logits.detach().square() * others).sum((1, 2)) / others.sum((1, 2)),
        }
        # What attends most among NaN is no pattern.
        finite = own.detach().isfinite().all(-1)
        return {what: torch.where(finite, values, torch.nan) for what, values in found.items()}

    def test_step(self, batch: int, batch_idx: int) -> None:
        """How often every arm of every seed is right on ``batch`` fresh sequences."""
        drawn = self._batch(self.cell.seeds, "test", batch)
        with torch.no_grad():
            for runner in self.arms:
                right = (runner.scores(drawn).argmax(-1) == drawn.answers).sum(-1)
                self.right[runner.arm] = self.right.get(runner.arm, torch.zeros_like(right)) + right

    def rows(self) -> list[Row]:
        """The race, what won it, and what every seed of every arm did."""
        return [*self._race_rows(), *self._arm_rows(), *self._probe_rows()]

    def _race_rows(self) -> Iterator[Row]:
        p = self.cell.params
        for r in self.racers:
            at = {**self.base, "arm": r.arm, "learning_rate": r.rate}
            late = torch.stack(r.hits[-p.hold :]).mean(0).tolist()
            for seed, held, accuracy in zip(p.tuning_seeds, r.held, late, strict=True):
                why = "" if held else "target not held when the race was decided"
                yield _row("tuning_steps", "mean", held, at, seed, why)
                yield _row("tuning_accuracy", "mean", accuracy, at, seed)
        for seed, broken in zip(p.tuning_seeds, _is_there(self.breaker.diverged(p.diverged_factor)), strict=True):
            at = {**self.base, "arm": self.breaker.arm, "learning_rate": self.breaker.rate}
            yield _row("seed_broken", "value", broken, at, seed)
        for arm in table.RACED:
            yield _row("chosen_rate", "exact", self.winners[arm].rate, {**self.base, "arm": arm}, self.cell.seeds[0])

    def _arm_rows(self) -> Iterator[Row]:
        p = self.cell.params
        for r in self.arms:
            at = {**self.base, "arm": r.arm}
            arrived = first_windows(torch.stack(r.hits), p.window, p.target)
            ended = zip(
                self.cell.seeds, arrived, r.diverged(p.diverged_factor), self.right[r.arm].tolist(), strict=True
            )
            for seed, reached, broken, right in ended:
                # What diverges before it arrives has not arrived, whatever a batch said.
                steps = None if reached is None or (broken is not None and broken < reached) else reached
                why = "" if broken is None else "diverged"
                never = "" if steps else why or f"target not reached in {p.steps} updates"
                yield _row("steps_to_target", "mean", steps, at, seed, never)
                yield _row("seed_steps", "value", steps or p.steps, at, seed)
                yield _row("seed_diverged", "value", broken is not None, at, seed)
                yield _row("seed_diverged_early", "value", broken is not None and broken <= p.few_steps, at, seed)
                share = right / p.n_test
                if r.arm == "uniform":
                    sd = math.sqrt(share * (1 - share))
                    yield Row("uniform_accuracy", share, at, statistic="share", seed=seed, n=p.n_test, sd=sd)
                else:
                    yield _row("test_accuracy", "mean", share, at, seed, why)

    def _probe_rows(self) -> Iterator[Row]:
        for arm, probes in self.probes.items():
            at: dict[str, object] = {**self.base, "arm": arm}
            for probe in probes:
                for what, values in probe.found.items():
                    if what in ONCE and probe is not probes[ONCE[what]]:
                        continue
                    place = at if what == KEPT else {**at, "step": probe.step}
                    for seed, value in zip(self.cell.seeds, values.tolist(), strict=True):
                        yield _row(*what, value, place, seed, "" if math.isfinite(value) else "diverged")


def _is_there(found: Sequence[int | None]) -> list[bool]:
    return [at is not None for at in found]


def _row(
    quantity: str, statistic: str, value: float | None, at: Mapping[str, object], seed: int, failed: str = ""
) -> Row:
    """A value of one seed, or why there is none."""
    number = math.nan if failed or value is None else float(value)
    return Row(
        quantity, number, at, statistic=statistic, seed=seed, n=1, status=f"failed: {failed}" if failed else "ok"
    )
