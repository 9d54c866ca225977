"""Encoders that learn to copy over a distance or to name their own position, all seeds of a model in one fit."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn import masks
from attnrepro.nn.coded_encoder import CodedEncoder
from attnrepro.nn.position import sinusoidal
from attnrepro.results.rows import Row
from attnrepro.tables.position_encodings import table
from attnrepro.training.ensemble import Recipe, SeedEnsemble
from attnrepro.training.measurement import Job, batches

# Test texts at a time.
CHUNK = 25


def jobs(cell: Cell) -> list[Job]:
    """A fit for each model of the cell's task."""
    models = table.COPY if cell.params.study == "copy" else table.LOCATE
    kind = Copying if cell.params.study == "copy" else Locating
    made = [kind(cell, *model) for model in models]
    return [Job(m, batches(m.plan()), fit=m.loader(), max_steps=m.recipe.steps) for m in made]


class Encoders(SeedEnsemble):
    """One model, a member a seed; data and start of a seed are the same for all models of its task."""

    def __init__(self, cell: Cell, encoding: str, mask: str, *, vocabulary: int, outputs: int, places: int) -> None:
        p = cell.params
        super().__init__(Recipe("adam", (p.steps,), cooldown=0.5))
        self.cell, self.encoding, self.mask = cell, encoding, mask
        starts = [generator(seed, table.NAME, p.study, "start") for seed in cell.seeds]
        self.model = CodedEncoder(
            starts,
            vocabulary=vocabulary,
            outputs=outputs,
            embed_dim=p.embed_dim,
            num_heads=p.num_heads,
            hidden=p.hidden,
            depth=p.depth,
        )
        self.code = self._code(places, starts)
        self.places = places
        self.streams: dict[tuple[int, str], torch.Generator] = {}

    def _code(self, places: int, starts: list[torch.Generator]) -> nn.Parameter | nn.Buffer | None:
        """The code of ``places`` positions, ``[seeds or 1, places, embed_dim]``, if one is added."""
        width = self.cell.params.embed_dim
        if self.encoding.startswith("learned"):
            drawn = [torch.randn(places, width, generator=stream) for stream in starts]
            return nn.Parameter(torch.stack(drawn) / math.sqrt(2))
        if self.encoding.startswith("sinusoidal"):
            fixed = grid_code(places, width) if self.encoding == "sinusoidal_grid" else sinusoidal(places, width)
            return nn.Buffer(fixed[None], persistent=False)
        return None

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One rate for all."""
        return [{"params": list(self.parameters()), "lr": self.cell.params.learning_rate}]

    def snapshot(self) -> None:
        """The test loop reads the parameters as they are at the end."""

    def drawn(self, use: str, high: int, *shape: int) -> Tensor:
        """Whole numbers below ``high``, ``[seeds, *shape]``, from each seed's stream of this use."""
        found = []
        for seed in self.cell.seeds:
            if (seed, use) not in self.streams:
                self.streams[seed, use] = generator(seed, table.NAME, self.cell.params.study, use, device=self.device)
            found.append(torch.randint(high, shape, generator=self.streams[seed, use], device=self.device))
        return torch.stack(found)

    def scores(self, tokens: Tensor, first: Tensor | None = None) -> Tensor:
        """Scores of texts ``[seeds, n, length]`` that begin at the places ``first`` ``[seeds, n]``, or at 0."""
        length, code = tokens.shape[-1], None
        if self.code is not None and first is None:
            code = self.code[:, None, :length]
        elif self.code is not None and first is not None:
            code = self.code.expand(len(tokens), -1, -1)
            seeds = torch.arange(len(tokens), device=tokens.device)[:, None, None]
            code = code[seeds, first[..., None] + torch.arange(length, device=tokens.device)]
        mask = masks.causal(length, device=tokens.device) if self.mask.startswith("causal") else None
        return self.model(tokens, code=code, rotate=self.encoding == "rotary", mask=mask)

    def loss_backward(self, scores: Tensor, answers: Tensor) -> Tensor:
        """Gradient of the sum over seeds of their mean cross-entropy; returns the mean loss."""
        losses = cross_entropy(scores.flatten(0, -2), answers.flatten(), reduction="none")
        means = losses.unflatten(0, answers.shape).mean((-1, -2))
        means.sum().backward()  # type: ignore[no-untyped-call]
        return means.detach().mean()

    def diverged(self) -> Tensor:
        """Whether a seed has a parameter that is not finite, ``[seeds]``."""
        finite = [part.detach().flatten(1).isfinite().all(-1) for part in self.parameters()]
        return ~torch.stack(finite).all(0).cpu()

    def accuracy_rows(self, right: Tensor, axes: dict[str, object]) -> list[Row]:
        """Shares of right answers ``[seeds]``; a seed that diverged is a failed row."""
        found = []
        for seed, share, lost in zip(self.cell.seeds, right.tolist(), self.diverged().tolist(), strict=True):
            value, status = (math.nan, "failed: diverged") if lost else (share, "ok")
            found.append(Row("accuracy", value, axes, statistic="mean", seed=seed, n=1, status=status))
        return found

    def at(self, length: int) -> dict[str, object]:
        """Axes of this model at a length."""
        task = self.cell.params.study
        return {"task": task, "encoding": self.encoding, "mask": self.mask, "length": length}


def grid_code(places: int, embed_dim: int) -> Tensor:
    """A code ``[places, embed_dim]``: nothing for the first place, then row and column of a grid, half the components
    each, read row by row.
    """
    rows = table.rows_of_grid(places - 1)
    columns = (places - 1) // rows
    down = sinusoidal(rows, embed_dim // 2).repeat_interleave(columns, 0)
    across = sinusoidal(columns, embed_dim // 2).repeat(rows, 1)
    return torch.cat([torch.zeros(1, embed_dim), torch.cat([down, across], -1)])


class Copying(Encoders):
    """Which symbol stood ``distance`` places back? Trained at one length, tested at longer ones."""

    def __init__(self, cell: Cell, encoding: str, mask: str) -> None:
        p = cell.params
        longest = max(p.length, *p.longer)
        super().__init__(cell, encoding, mask, vocabulary=p.symbols, outputs=p.symbols, places=longest)
        self.right = {length: torch.zeros(len(cell.seeds), dtype=torch.float64) for length in (p.length, *p.longer)}
        self.ceilings: dict[int, list[Tensor]] = {length: [] for length in self.right}

    def plan(self) -> list[tuple[int, int]]:
        """Batches as (length, texts)."""
        full, rest = divmod(self.cell.params.n_test, CHUNK)
        return [(length, n) for length in self.right for n in [CHUNK] * full + [rest] * (rest > 0)]

    def backward_sum(self, step: int) -> Tensor:
        """Fresh texts for each seed."""
        p = self.cell.params
        tokens = self.drawn("train", p.symbols, p.batch_size, p.length)
        first = None
        if self.encoding.endswith("shifted"):
            first = self.drawn("places", self.places - p.length + 1, p.batch_size)
        return self.loss_backward(self.scores(tokens, first)[:, :, p.distance :], tokens[:, :, : -p.distance])

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """Right answers: at the trained length all, at longer ones on what lies beyond it."""
        p, (length, n) = self.cell.params, batch
        tokens = self.drawn(f"test {length}", p.symbols, n, length)
        beyond = p.distance if length == p.length else p.length
        answers = tokens[:, :, beyond - p.distance : length - p.distance]
        right = self.scores(tokens)[:, :, beyond:].argmax(-1) == answers
        self.right[length] += right.double().mean((-1, -2)).cpu() * (n / p.n_test)
        # Most frequent symbol among the others, for one token of each text: independent draws.
        counts = nn.functional.one_hot(tokens[..., 1:], p.symbols).sum(-2).amax(-1)
        self.ceilings[length].append(counts.double().flatten().cpu() / (length - 1))

    def rows(self) -> list[Row]:
        """Each seed's right answers, what cannot be beaten without order, and how far the learned codes lie apart."""
        p, seeds = self.cell.params, self.cell.seeds
        result = [row for length, right in self.right.items() for row in self.accuracy_rows(right, self.at(length))]
        if self.encoding == "none":
            for length, parts in self.ceilings.items():
                drawn, axes = torch.cat(parts), {"task": "copy", "length": length}
                spread = {"n": len(drawn), "sd": float(drawn.std())}
                result.append(Row("ceiling", float(drawn.mean()), axes, statistic="mean", seed=seeds[0], **spread))
        if self.encoding.startswith("learned"):
            assert self.code is not None
            for index, seed in enumerate(seeds):
                # Rows that were trained: those of the trained length, or all where texts start anywhere.
                kept = self.places if self.encoding.endswith("shifted") else p.length
                code = self.code[index, :kept].detach().double()
                axes = {"encoding": self.encoding, "length": kept, "embed_dim": p.embed_dim}
                value = float(torch.pdist(code).min() / code.square().sum(-1).mean().sqrt())
                ok = math.isfinite(value)
                status = "ok" if ok else "failed: diverged"
                shown = value if ok else math.nan
                result.append(Row("relative_distance", shown, axes, statistic="mean", seed=seed, n=1, status=status))
        return result


class Locating(Encoders):
    """Where do I stand? Each of ``length`` tokens names its own place; a start token goes before them."""

    def __init__(self, cell: Cell, encoding: str, mask: str) -> None:
        p = cell.params
        super().__init__(cell, encoding, mask, vocabulary=p.symbols + 1, outputs=p.length, places=p.length + 1)
        self.right = torch.zeros(len(cell.seeds), dtype=torch.float64)

    def plan(self) -> list[int]:
        """Batches: numbers of texts."""
        full, rest = divmod(self.cell.params.n_test, CHUNK)
        return [CHUNK] * full + [rest] * (rest > 0)

    def _texts(self, use: str, n: int) -> tuple[Tensor, Tensor]:
        """Texts with their start token, and the answers ``[seeds, n, length]`` of all others."""
        p = self.cell.params
        content = self.drawn(use, p.symbols, n, p.length)
        answers = torch.arange(p.length, device=self.device).expand_as(content)
        if self.mask.endswith("no_start"):
            return content, answers
        return nn.functional.pad(content, (1, 0), value=p.symbols), answers

    def _asked(self, scores: Tensor) -> Tensor:
        """Scores of what is no start token."""
        return scores[:, :, -self.cell.params.length :]

    def backward_sum(self, step: int) -> Tensor:
        """Fresh texts for each seed."""
        tokens, answers = self._texts("train", self.cell.params.batch_size)
        return self.loss_backward(self._asked(self.scores(tokens)), answers)

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Right answers."""
        tokens, answers = self._texts("test", batch)
        right = self._asked(self.scores(tokens)).argmax(-1) == answers
        self.right += right.double().mean((-1, -2)).cpu() * (batch / self.cell.params.n_test)

    def rows(self) -> list[Row]:
        """Each seed's right answers."""
        return self.accuracy_rows(self.right, self.at(self.cell.params.length))
