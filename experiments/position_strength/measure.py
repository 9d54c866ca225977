"""position_strength: single-query pools trained on the 8-token task, hundreds at a time; and the codes themselves."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn import position
from attnrepro.nn.query_pool import AddedCode, BiasedLogits, ConcatCode, LearnedCode, QueryPools, RotaryKeys
from attnrepro.results.rows import Row
from attnrepro.tables.position_strength import table
from attnrepro.theory.position_codes import margin
from attnrepro.training.ensemble import (
    Loss,
    PoolEnsemble,
    PoolGroup,
    Recipe,
    Sequences,
    cross_entropy,
    is_finite,
    right_answers,
    smooth_error,
)
from attnrepro.training.measurement import Job, Measurement, batches

LOSSES: dict[str, Loss] = {"cross_entropy": cross_entropy, "smooth_error": smooth_error}
# Test sequences that are held at once.
BLOCK = 4096
# Projections that are drawn at once for the shares of logit power.
DRAWS = 2000


def build(cell: Cell) -> Job:
    """The Trainer's work for one cell."""
    if cell.params.study == "codes":
        codes = Codes(cell)
        return Job(codes, batches(codes.plan()))
    members = Members(cell)
    return Job(members, batches(members.plan()), fit=members.loader(), max_steps=members.recipe.steps)


def sequences(n: int, length: int, embed_dim: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens N(0, I) ``[length, embed_dim, n]`` and labels ``[n]``, 1 where component 0 of token 0 is positive.

    Source: document 000, the 8-token task.
    """
    # Lightning changes the default dtype inside its loops: the same sequences at every precision.
    drawn = torch.randn(n, length, embed_dim, generator=stream, device=stream.device, dtype=torch.float32)
    content = drawn.permute(1, 2, 0).contiguous()
    return content, (content[0, 0] > 0).to(content.dtype)


def normalised(content: Tensor) -> Tensor:
    """LayerNorm of every token of ``[..., embed_dim, n]``, without gain and offset."""
    centred = content - content.mean(-2, keepdim=True)
    return centred / (centred.square().mean(-2, keepdim=True) + 1e-5).sqrt()


@dataclass(frozen=True)
class Size:
    """One setting of the data: equal sizes read the same sequences, some of them normalised."""

    length: int
    embed_dim: int
    n_train: float
    layer_norm: bool

    def stream(self, seed: int, use: str, device: Any = "cpu") -> torch.Generator:
        """Stream of a seed for one use; fixed data and starts are drawn on the CPU, equal for every device."""
        return generator(seed, table.NAME, use, self.length, self.embed_dim, device=device)

    def read(self, content: Tensor) -> Tensor:
        """The tokens as the pools of this size read them."""
        return normalised(content) if self.layer_norm else content


@dataclass(frozen=True)
class Part:
    """Members that read the same sequences, with the axes of the rows of each."""

    size: Size
    axes: list[dict[str, object]]
    group: PoolGroup


def parts_of(cell: Cell) -> list[Part]:
    """Every member of a cell: seeds x data sizes x encodings x placements x strengths x rates x losses."""
    p = cell.params
    result = []
    for length, embed_dim, n_train in itertools.product(p.length, p.embed_dim, p.n_train):
        for layer_norm in (False, True):
            encodings = [e for e in p.encoding if (e == "layer_norm") == layer_norm]
            if encodings:
                result.append(_part(cell, Size(length, embed_dim, n_train, layer_norm), encodings))
    return result


def _part(cell: Cell, size: Size, encodings: list[str]) -> Part:
    p = cell.params
    families, rates, losses, axes = [], [], [], []
    for encoding, rate, loss in itertools.product(encodings, p.learning_rate, p.loss):
        families.append(_family(cell, encoding, size))
        rates.append(rate)
        losses.append(LOSSES[loss])
        base = {"study": p.study, "protocol": p.protocol, "encoding": encoding, "learning_rate": rate, "loss": loss}
        base |= {"length": size.length, "embed_dim": size.embed_dim, "n_train": size.n_train}
        axes += [{**base, **member} for member in table.members(p, encoding)]
    data: Fresh | Sequences
    if math.isinf(size.n_train):
        data = Fresh(cell, size, families[0])
    else:
        n = int(size.n_train)
        drawn = [sequences(n, size.length, size.embed_dim, size.stream(seed, "train")) for seed in cell.seeds]
        content, labels = (torch.stack(tensors) for tensors in zip(*drawn, strict=True))
        data = Sequences(size.read(content), labels)
    return Part(size, axes, PoolGroup(families, rates, losses, data))


def _family(cell: Cell, encoding: str, size: Size) -> QueryPools:
    p = cell.params
    length, embed_dim = size.length, size.embed_dim
    # The same start for every encoding of a seed: differences between them are paired.
    starts = [size.stream(seed, "start") for seed in cell.seeds]
    strength = [float(s) for s in p.strength]
    if encoding in table.ADDED:
        placed = [(s, at == "keys_values") for at in p.placement for s in strength]
        return AddedCode(starts, _code(cell, encoding, size), [s for s, _ in placed], [at for _, at in placed])
    if encoding == "learned":
        return LearnedCode(starts, length, embed_dim, strength)
    if encoding.startswith("concat_"):
        return ConcatCode(starts, embed_dim, _code(cell, encoding.removeprefix("concat_"), size), strength)
    if encoding.startswith("alibi_"):
        query = 0 if encoding == "alibi_near" else length - 1
        slopes = [position.alibi_bias(1, length, s, offset=query)[0] for s in strength]
        return BiasedLogits(starts, embed_dim, torch.stack(slopes, -1), learned=False)
    if encoding == "logit_bias":
        return BiasedLogits(starts, embed_dim, torch.zeros(length, 1), learned=True)
    return RotaryKeys(starts, length, embed_dim, key_bias=encoding == "rotary_key_bias")


def _code(cell: Cell, encoding: str, size: Size) -> Tensor:
    """Code at strength 1, ``[1 or seeds, length, embed_dim]``, rows of norm sqrt(d/2) but for ``one_hot_unit``."""
    length, d = size.length, size.embed_dim
    norm = math.sqrt(d / 2)
    if encoding in ("sinusoidal", "layer_norm"):
        return position.sinusoidal(length, d)[None]
    if encoding in ("orthogonal", "gaussian"):
        draw = position.random_orthogonal if encoding == "orthogonal" else position.random_gaussian
        codes = [draw(length, d, size.stream(seed, "code")) for seed in cell.seeds]
        return torch.stack([position.at_row_norm(code, norm) for code in codes])
    code = position.one_hot(length, d, first=d - length if encoding == "one_hot_last" else 0)
    return (code if encoding == "one_hot_unit" else position.at_row_norm(code, norm))[None]


class Fresh:
    """New sequences for every seed at every step, drawn where the parameters of ``pools`` are."""

    def __init__(self, cell: Cell, size: Size, pools: QueryPools) -> None:
        self.cell, self.size, self.pools = cell, size, pools
        self.streams: list[torch.Generator] = []

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Content and labels of the next step."""
        like, size = self.pools.bias, self.size
        if not self.streams:
            self.streams = [size.stream(seed, "fresh", like.device) for seed in self.cell.seeds]
        n = self.cell.params.batch_size
        drawn = [sequences(n, size.length, size.embed_dim, stream) for stream in self.streams]
        content, labels = (torch.stack(tensors).to(like.dtype) for tensors in zip(*drawn, strict=True))
        return size.read(content), labels


class Members(PoolEnsemble):
    """Trains every member of a cell at once and measures each of them at every checkpoint."""

    def __init__(self, cell: Cell) -> None:
        self.parts = parts_of(cell)
        p = cell.params
        super().__init__([part.group for part in self.parts], Recipe(p.optimizer, tuple(sorted(p.steps)), p.cooldown))
        self.cell = cell
        # By part, checkpoint and seed: accuracies [M] on the training (if it is fixed) and on the test sequences.
        self.found: dict[tuple[int, int, int], tuple[Tensor | None, Tensor]] = {}
        self.finite: dict[tuple[int, int, int], Tensor] = {}

    def plan(self) -> list[tuple[int, int]]:
        """Test batches: (part, seed)."""
        return list(itertools.product(range(len(self.parts)), range(len(self.cell.seeds))))

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """Accuracy of one seed's members at every checkpoint, on its training and on its test sequences."""
        which, index = batch
        size, data, seed = self.parts[which].size, self.parts[which].group.data, slice(index, index + 1)
        pools = {step: snapshot[which].of(seed) for step, snapshot in self.snapshots.items()}
        right = dict.fromkeys(pools, torch.zeros((), dtype=torch.int64))
        for content, labels in self._test_blocks(size, self.cell.seeds[index]):
            for step, folded in pools.items():
                right[step] = right[step] + right_answers(content, labels, folded)[0].cpu()
        for step, folded in pools.items():
            train = None
            if isinstance(data, Sequences):
                train = right_answers(data.content[seed], data.labels[seed], folded)[0].cpu().double() / size.n_train
            self.finite[which, step, index] = is_finite(folded)[0].cpu()
            self.found[which, step, index] = (train, right[step].double() / self.cell.params.n_test)

    def _test_blocks(self, size: Size, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        stream = size.stream(seed, "test")
        for start in range(0, self.cell.params.n_test, BLOCK):
            n = min(BLOCK, self.cell.params.n_test - start)
            content, labels = (t.to(self.device, self.dtype) for t in sequences(n, size.length, size.embed_dim, stream))
            yield size.read(content)[None], labels[None]

    def rows(self) -> list[Row]:
        """Accuracies of every member and seed; training accuracy where the document prints it."""
        p = self.cell.params
        result = []
        shown = table.shown(p)
        for which, part in enumerate(self.parts):
            for member, step in itertools.product(range(len(part.axes)), self.recipe.checkpoints):
                at = {k: v for k, v in (part.axes[member] | {"steps": step}).items() if k in shown}
                for index, seed in enumerate(self.cell.seeds):
                    train, test = self.found[which, step, index]
                    ok = bool(self.finite[which, step, index][member])
                    values = {"test_accuracy": test}
                    if train is not None and p.study in ("strength", "published"):
                        values = {"train_accuracy": train, **values}
                    for quantity, value in values.items():
                        result.append(
                            Row(
                                quantity,
                                float(value[member]) if ok else math.nan,
                                at,
                                statistic="mean",
                                seed=seed,
                                n=1,
                                status="ok" if ok else "failed: diverged",
                            )
                        )
        result.sort(key=lambda row: row.quantity)
        return result + (self._margins() if p.study == "size" else [])

    def _margins(self) -> list[Row]:
        sizes = dict.fromkeys((p.size.length, p.size.embed_dim) for p in self.parts if p.size.length > 1)
        return [margin_row(self.cell, length, embed_dim) for length, embed_dim in sizes]


def margin_row(cell: Cell, length: int, embed_dim: int) -> Row:
    """Margin of position 0 in the code as the pools get it."""
    code = position.sinusoidal(length, embed_dim, dtype=torch.float64).numpy()
    at = {"study": cell.params.study, "length": length, "embed_dim": embed_dim}
    return Row("margin", margin(code), at, statistic="exact", seed=cell.seeds[0], n=1)


class Codes(Measurement):
    """The sinusoid itself, and the shares of logit power that go to content and position at random projections."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.power: dict[tuple[int, int, float, int], list[Tensor]] = {}

    def plan(self) -> list[tuple[int, int, float, int, int]]:
        """Batches: (length, embed_dim, strength, seed, number of draws)."""
        p = self.cell.params
        sizes = [min(DRAWS, p.n_draws - start) for start in range(0, p.n_draws, DRAWS)]
        return list(itertools.product(p.length, p.embed_dim, p.strength, self.cell.seeds, sizes))

    def test_step(self, batch: tuple[int, int, float, int, int], batch_idx: int) -> None:
        """Squares of the parts of one logit for each draw of tokens, positions and projections."""
        length, d, strength, seed, n = batch
        at = (length, d, strength, seed)
        if at not in self.power:
            self.power[at] = []
        stream = generator(seed, table.NAME, "power", length, d, repr(float(strength)), len(self.power[at]))

        def normal(*shape: int) -> Tensor:
            return torch.randn(n, *shape, generator=stream, dtype=torch.float32).double()

        code = strength * position.sinusoidal(length, d, dtype=torch.float64)
        # Tokens i != j: a token attending to itself would pair its content with itself.
        i = torch.randint(length, (n,), generator=stream)
        j = (i + torch.randint(1, max(2, length), (n,), generator=stream)) % length
        w_query, w_key, query = normal(d, d), normal(d, d), normal(d)
        left = {"content": normal(d), "position": code[i]}
        right = {"content": normal(d), "position": code[j]}
        queries = {name: torch.einsum("nd,nde->ne", part, w_query) for name, part in left.items()}
        keys = {name: torch.einsum("nd,nde->ne", part, w_key) for name, part in right.items()}
        pairs = [(queries[a] * keys[b]).sum(-1) for a in queries for b in keys]
        single = [(query * keys[b]).sum(-1) for b in keys]
        self.power[at].append(torch.stack([*pairs, *single], -1).square())

    def rows(self) -> list[Row]:
        """Facts about the code, and the shares with the spread of a ratio."""
        p = self.cell.params
        result = []
        for length, d in itertools.product(p.length, p.embed_dim):
            code = position.sinusoidal(length, d, dtype=torch.float64)
            at = {"study": p.study, "length": length, "embed_dim": d}
            facts = {"code_rms": code.square().mean().sqrt(), "code_max": code.abs().max()}
            result += [
                Row(name, float(value), at, statistic="exact", seed=self.cell.seeds[0], n=1)
                for name, value in facts.items()
            ]
            if length > 1:
                result.append(margin_row(self.cell, length, d))
        for (length, d, strength, seed), parts in self.power.items():
            at = {"study": p.study, "length": length, "embed_dim": d, "strength": strength}
            result += self._shares(torch.cat(parts), at, seed)
        return result

    def _shares(self, power: Tensor, at: dict[str, object], seed: int) -> list[Row]:
        """Ratios of means; their spread by the delta method."""
        names = list(table.shares(1.0))
        result = []
        for start, stop in ((0, 4), (4, 6)):
            part = power[:, start:stop]
            total = part.sum(-1)
            for k in range(stop - start):
                share = float(part[:, k].mean() / total.mean())
                spread = float(((part[:, k] - share * total) / total.mean()).std())
                where = {**at, "part": names[start + k]}
                result.append(Row("logit_share", share, where, statistic="share", seed=seed, n=len(power), sd=spread))
        content, by_position = power[:, 4], power[:, 5]
        if float(by_position.mean()):
            ratio = float((content.mean() / by_position.mean()).sqrt())
            influence = content / content.mean() - by_position / by_position.mean()
            spread = ratio / 2 * float(influence.std())
            result.append(Row("content_to_position", ratio, at, statistic="value", seed=seed, n=len(power), sd=spread))
        return result
