"""Readers that learn to recall a symbol over a distance, all seeds of a network in one fit."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.data.symbol_recall import FLAGS, Recall, draw, stacked
from attnrepro.nn.sequence_layers import Reader
from attnrepro.results.rows import Row
from attnrepro.tables.recurrent_vs_attention import table
from attnrepro.training.ensemble import Recipe, SeedEnsemble
from attnrepro.training.measurement import Job, batches


def jobs(cell: Cell) -> list[Job]:
    """A fit for each network."""
    made = [Readers(cell, network) for network in table.TRAINED]
    return [
        Job(readers, batches(readers.recipe.checkpoints), fit=readers.loader(), max_steps=readers.recipe.steps)
        for readers in made
    ]


class Readers(SeedEnsemble):
    """One network, a member a seed, on data that are the same for all networks of that seed."""

    def __init__(self, cell: Cell, network: str) -> None:
        p = cell.params
        super().__init__(Recipe("adam", tuple(range(0, p.steps + 1, p.every))))
        self.cell, self.network = cell, network
        streams = [generator(seed, table.NAME, "start", network, p.distance) for seed in cell.seeds]
        self.reader = Reader(
            network,
            streams,
            inputs=p.symbols + FLAGS,
            width=table.width_of(p, network),
            outputs=p.symbols,
            kernel=p.kernel,
            distance=p.distance,
        )
        self.streams: dict[tuple[int, str], torch.Generator] = {}
        self.test_set: Recall | None = None
        self.accuracy: dict[int, Tensor] = {}
        self.finite: Tensor | None = None

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One rate for all."""
        return [{"params": list(self.reader.parameters()), "lr": table.rate_of(self.cell.params, self.network)}]

    def snapshot(self) -> dict[str, Tensor]:
        """The parameters as they are."""
        return {name: part.detach().clone() for name, part in self.reader.named_parameters()}

    def _sequences(self, use: str, count: int) -> Recall:
        p = self.cell.params
        for seed in self.cell.seeds:
            if (seed, use) not in self.streams:
                self.streams[seed, use] = generator(seed, table.NAME, use, p.distance, device=self.device)
        return stacked([draw(count, p.symbols, p.distance, self.streams[seed, use]) for seed in self.cell.seeds])

    def backward_sum(self, step: int) -> Tensor:
        """Fresh sequences for each seed."""
        batch = self._sequences("train", self.cell.params.batch_size)
        logits = self.reader(batch.tokens)
        losses = cross_entropy(logits.flatten(0, 1), batch.answers.flatten(), reduction="none")
        means = losses.unflatten(0, batch.answers.shape).mean(-1)
        means.sum().backward()  # type: ignore[no-untyped-call]
        return means.detach().mean()

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Share of the test sequences that are answered right after ``batch`` updates."""
        if self.test_set is None:
            self.test_set = self._sequences("test", self.cell.params.n_test)
        kept = self.snapshots[batch]
        with torch.no_grad():
            logits = torch.func.functional_call(self.reader, kept, (self.test_set.tokens,))
        self.accuracy[batch] = (logits.argmax(-1) == self.test_set.answers).double().mean(-1).cpu()
        self.finite = torch.stack([part.flatten(1).isfinite().all(-1) for part in kept.values()]).all(0).cpu()

    def rows(self) -> list[Row]:
        """Each seed's accuracy and updates; a seed that diverged or never got there is a failed row."""
        p = self.cell.params
        axes: dict[str, object] = {"network": self.network, "distance": p.distance}
        count = sum(part[0].numel() for part in self.reader.parameters())
        result = [Row("parameters", count, axes, statistic="exact", seed=self.cell.seeds[0], n=1)]
        assert self.finite is not None
        for index, seed in enumerate(self.cell.seeds):
            ok = bool(self.finite[index])
            value = float(self.accuracy[p.steps][index]) if ok else math.nan
            status = "ok" if ok else "failed: diverged"
            at: dict[str, Any] = {"axes": axes, "statistic": "mean", "seed": seed, "n": 1}
            result.append(Row("accuracy", value, status=status, **at))
            reached = next((s for s in self.recipe.checkpoints if self.accuracy[s][index] >= p.target), None)
            never = f"failed: not within {p.steps} updates"
            updates = math.nan if reached is None else reached
            status = never if reached is None else "ok"
            result.append(Row("updates_to_target", updates, unit="updates", status=status, **at))
        return result
