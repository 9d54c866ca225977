"""add_vs_concat, measured: linear maps by least squares, sums that are decoded, and heads that are trained."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.coded_head import CodedHeads, HeadShape
from attnrepro.nn.position import sinusoidal
from attnrepro.results.rows import Row
from attnrepro.tables.add_vs_concat import table
from attnrepro.training.ensemble import Recipe, SeedEnsemble
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.moments import Moments

EPS = 2.0**-52
# Test sequences of every seed at a time.
CHUNK = 500
# Sequences of every seed at each look.
LOOK = 200


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    p = cell.params
    if p.study == "training":
        heads = Heads(cell)
        full, rest = divmod(p.n_test, CHUNK)
        chunks = [CHUNK] * full + [rest] * (rest > 0)
        return Job(heads, batches(chunks), fit=heads.loader(), max_steps=heads.optimizer_steps)
    return Job(Algebra(cell) if p.study == "algebra" else Information(cell), batches(cell.seeds))


# --- linear maps, in float64 ---


def normal(stream: torch.Generator, *shape: int) -> Tensor:
    """N(0, 1) in float64."""
    return torch.randn(*shape, generator=stream, dtype=torch.float64)


def pairs(x: Tensor, p: Tensor) -> Tensor:
    """Every token beside every position, ``[tokens * places, 2 d]``."""
    tokens = x[:, None].expand(-1, len(p), -1)
    return torch.cat([tokens, p.expand(len(x), -1, -1)], -1).flatten(0, 1)


def sums(x: Tensor, p: Tensor) -> Tensor:
    """Every token plus every position, ``[tokens * places, d]``."""
    return (x[:, None] + p).flatten(0, 1)


def error_eps(found: Tensor, wanted: Tensor) -> float:
    """Largest difference in eps of the largest output."""
    return float((found - wanted).abs().max() / wanted.abs().max()) / EPS


def relearned(p: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The code p' with p' W1 nearest to p W2, ``[places, d]``; the shortest of several, refined once."""
    wanted = p @ second

    def solve(right: Tensor) -> Tensor:
        return torch.linalg.lstsq(first.T, right.T, driver="gelsd").solution.T

    code = solve(wanted)
    return code + solve(wanted - code @ first)


class Algebra(Measurement):
    """Maps of the sum and of the pair, seed by seed."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: int, batch_idx: int) -> None:
        """All draws of one seed."""
        p = self.cell.params
        if batch == self.cell.seeds[0]:
            self._counts(batch)
        worst: dict[tuple[str, str, object], float] = {}
        for width in p.shapes:
            stream = generator(batch, table.NAME, "maps", width)
            for _ in range(p.draws):
                for at, error in self._draw(stream, width):
                    worst[at] = max(error, worst.get(at, 0.0))
        for (direction, positions, ratio), error in worst.items():
            axes = {"direction": direction, "positions": positions, "outputs_over_d": ratio}
            draws = p.draws * len(p.shapes)
            self.found.append(Row("error_eps", error, axes, statistic="exact", seed=batch, n=draws))
        for ratio in p.outputs_over_d:
            if ratio > 1:
                self._share(batch, ratio)

    def _draw(self, stream: torch.Generator, width: int) -> list[tuple[tuple[str, str, object], float]]:
        """Errors of one draw of tokens, positions and matrices."""
        # Together more tokens and positions than a layer has inputs.
        x, p = (normal(stream, width // 2 + 2, width) for _ in range(2))
        one = normal(stream, width, width)
        whole = pairs(x, p) @ torch.cat([one, one])
        found: list[tuple[tuple[str, str, object], float]] = [
            (("add_in_concat", "given", 1), error_eps(sums(x, p) @ one, whole))
        ]
        for ratio in self.cell.params.outputs_over_d:
            outputs = round(ratio * width)
            first, second = normal(stream, width, outputs), normal(stream, width, outputs)
            wanted = pairs(x, p) @ torch.cat([first, second])
            best = torch.linalg.lstsq(sums(x, p), wanted).solution
            found.append((("concat_in_add", "given", ratio), error_eps(sums(x, p) @ best, wanted)))
            learned = sums(x, relearned(p, first, second)) @ first
            found.append((("concat_in_add", "learned", ratio), error_eps(learned, wanted)))
        return found

    def _share(self, seed: int, ratio: float) -> None:
        """Squares that a relearned code cannot give, one position a draw."""
        p = self.cell.params
        width = p.shapes[0]
        stream = generator(seed, table.NAME, "share", ratio)
        moments = Moments(1)
        for _ in range(p.n_shares):
            first, second = (normal(stream, width, round(ratio * width)) for _ in range(2))
            code = normal(stream, 1, width)
            wanted = code @ second
            missed = wanted - relearned(code, first, second) @ first
            moments.update((missed.square().sum() / wanted.square().sum()).reshape(1, 1))
        mean, covariance = moments.mean_and_covariance()
        spread = {"n": p.n_shares, "sd": math.sqrt(float(covariance[0, 0]))}
        axes = {"outputs_over_d": ratio}
        self.found.append(Row("residual_share", float(mean[0]), axes, statistic="mean", seed=seed, **spread))

    def _counts(self, seed: int) -> None:
        p = self.cell.params
        width = p.document_dim
        token, code = torch.empty(width, device="meta"), torch.empty(width, device="meta")
        read = {"add": token + code, "concat": torch.cat([token, code])}
        eye = torch.eye(p.shapes[0], dtype=torch.float64)
        from_pair = {"add": torch.cat([eye, eye]), "concat": torch.eye(2 * p.shapes[0], dtype=torch.float64)}
        for name, vector in read.items():
            rank = int(torch.linalg.matrix_rank(from_pair[name]))
            layers = [nn.Linear(len(vector), width, bias=False, device="meta") for _ in range(table.MAPS)]
            count = sum(layer.weight.numel() for layer in layers)
            for quantity, value in (
                ("dims_over_d", len(vector) / width),
                ("rank_over_d", rank / p.shapes[0]),
                ("projection_parameters", count),
            ):
                self.found.append(Row(quantity, float(value), {"code": name}, statistic="exact", seed=seed, n=1))

    def rows(self) -> list[Row]:
        """Every seed."""
        return self.found


# --- what can be read from a sum ---


class Information(Measurement):
    """Words and positions, added and decoded again."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: int, batch_idx: int) -> None:
        """One seed, all numbers of components."""
        p = self.cell.params
        for width in p.embed_dims:
            stream = generator(batch, table.NAME, "words", width)
            words = normal(stream, p.n_words, width)
            places = sinusoidal(p.n_positions, width, dtype=torch.float64)
            word = torch.randint(p.n_words, (p.n_pairs,), generator=stream)
            place = torch.randint(p.n_positions, (p.n_pairs,), generator=stream)
            total = words[word] + places[place]
            axes = {"embed_dim": width}
            some = slice(0, p.n_nearest)
            found = nearest(total[some], words, places)
            lost = 1 - (found == torch.stack([word[some], place[some]], -1)).all(-1).double().mean()
            self.found.append(Row("lost_share", float(lost), axes, statistic="exact", seed=batch, n=len(total[some])))
            for name, codes, other, truth in (
                ("word_readout", words, places, word),
                ("position_readout", places, words, place),
            ):
                right = (read_linearly(total, codes, other) == truth).double().mean()
                self.found.append(Row(name, float(right), axes, statistic="mean", seed=batch, n=1))
        self._dense(batch)

    def _dense(self, seed: int) -> None:
        """Content without a vocabulary: what regression on the sum leaves, corrected for what it was fitted to."""
        p = self.cell.params
        stream = generator(seed, table.NAME, "dense")
        content, code = normal(stream, p.n_dense, p.dense_dim), normal(stream, p.n_dense, p.dense_dim)
        total = content + code
        fitted = total @ torch.linalg.lstsq(total, content).solution
        left = (content - fitted).square().sum(0) / (p.n_dense - p.dense_dim)
        spread = {"n": p.dense_dim, "sd": float(left.std())}
        axes = {"embed_dim": p.dense_dim}
        self.found.append(Row("dense_residual", float(left.mean()), axes, statistic="mean", seed=seed, **spread))

    def rows(self) -> list[Row]:
        """Every seed."""
        return self.found


def nearest(total: Tensor, words: Tensor, places: Tensor) -> Tensor:
    """Word and position whose sum lies nearest to each of ``total``, ``[n, 2]``."""
    best = torch.full((len(total),), math.inf, dtype=total.dtype)
    found = torch.zeros(len(total), 2, dtype=torch.long)
    for index, place in enumerate(places):
        distance, word = torch.cdist(total - place, words).min(-1)
        closer = distance < best
        best = torch.where(closer, distance, best)
        found[closer] = torch.stack([word, torch.full_like(word, index)], -1)[closer]
    return found


def read_linearly(total: Tensor, codes: Tensor, other: Tensor) -> Tensor:
    """Which of ``codes`` a linear readout names, ``[n]``: least squares to indicators over all sums with ``other``.

    Covariances of the sums over all pairs are those of either part; an indicator's covariance with the sum is its
    code's distance from their mean.
    """
    a, b = codes - codes.mean(0), other - other.mean(0)
    covariance = a.T @ a / len(a) + b.T @ b / len(b)
    centred = total - codes.mean(0) - other.mean(0)
    scores = centred @ torch.linalg.pinv(covariance, hermitian=True) @ a.T
    return scores.argmax(-1)


# --- trained heads ---


class Heads(SeedEnsemble):
    """A stack of heads for each way of giving positions; all read the same sequences."""

    def __init__(self, cell: Cell) -> None:
        p = cell.params
        super().__init__(Recipe("adam", (p.steps,), cooldown=0.5))
        self.cell = cell
        self.heads = nn.ModuleDict()
        for code in table.CODES:
            content, beside = table.widths(p, code)
            way = code if code in ("none", "add") else "concat"
            shape = HeadShape(way, content, beside, p.head_dim, p.length, p.n_symbols)
            self.heads[code] = CodedHeads(shape, [generator(seed, table.NAME, "start", code) for seed in cell.seeds])
        self.optimizer_steps = p.steps
        self.streams: dict[tuple[int, str], torch.Generator] = {}
        self.reached: dict[str, list[int | None]] = {code: [None] * len(cell.seeds) for code in table.CODES}
        self.totals = torch.zeros(len(table.CODES), 2, len(cell.seeds), dtype=torch.float64)
        self.bag = Moments(1)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One rate for all."""
        return [{"params": list(self.heads.parameters()), "lr": self.cell.params.learning_rate}]

    def snapshot(self) -> None:
        """The test loop reads the parameters as they are at the end."""

    def sequences(self, use: str, count: int) -> tuple[Tensor, Tensor]:
        """Tokens ``[seeds, count, length + 1]``, the pointer last, and answers ``[seeds, count]``."""
        p = self.cell.params
        drawn = []
        for seed in self.cell.seeds:
            if (seed, use) not in self.streams:
                self.streams[seed, use] = generator(seed, table.NAME, use, device=self.device)
            stream = self.streams[seed, use]
            symbols = torch.randint(p.n_symbols, (count, p.length), generator=stream, device=self.device)
            places = torch.randint(p.length, (count, 1), generator=stream, device=self.device)
            drawn.append(torch.cat([symbols, p.n_symbols + places], -1))
        tokens = torch.stack(drawn)
        answers = tokens.gather(-1, tokens[..., -1:] - p.n_symbols).squeeze(-1)
        return tokens, answers

    def backward_sum(self, step: int) -> Tensor:
        """Fresh sequences for each seed; now and then a look at how many answers are right."""
        p = self.cell.params
        tokens, answers = self.sequences("train", p.batch_size)
        losses = torch.stack([cross_entropy(head(tokens), answers).mean(-1) for head in self.heads.values()])
        losses.sum().backward()  # type: ignore[no-untyped-call]
        if (step + 1) % p.every == 0:
            with torch.no_grad():
                self._look(step + 1, *self.sequences("look", LOOK))
        return losses.detach().mean()

    def _look(self, step: int, tokens: Tensor, answers: Tensor) -> None:
        for code, head in self.heads.items():
            right = (head(tokens).argmax(-1) == answers).double().mean(-1).tolist()
            seen = zip(self.reached[code], right, strict=True)
            self.reached[code] = [
                step if before is None and share >= self.cell.params.target else before for before, share in seen
            ]

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Right answers and losses of all heads, and of the best guess from the symbols alone."""
        tokens, answers = self.sequences("test", batch)
        for index, head in enumerate(self.heads.values()):
            scores = head(tokens)
            self.totals[index, 0] += (scores.argmax(-1) == answers).double().sum(-1).cpu()
            self.totals[index, 1] += cross_entropy(scores, answers).double().sum(-1).cpu()
        p = self.cell.params
        counts = nn.functional.one_hot(tokens[..., :-1], p.n_symbols).sum(-2)
        guessed = (counts.argmax(-1) == answers).double()
        self.bag.update(guessed.reshape(-1, 1))

    def rows(self) -> list[Row]:
        """Each seed's accuracy and loss; a loss that is not finite is a failed row."""
        p = self.cell.params
        first = self.cell.seeds[0]
        result = []
        for index, (code, head) in enumerate(self.heads.items()):
            axes = {"code": code}
            count = sum(part.numel() for part in head.parameters()) // len(self.cell.seeds)
            result.append(Row("parameters", count, axes, statistic="exact", seed=first, n=1))
            for member, seed in enumerate(self.cell.seeds):
                right, loss = (self.totals[index, :, member] / p.n_test).tolist()
                ok = math.isfinite(loss)
                status = "ok" if ok else "failed: diverged"
                for name, value in (("accuracy", right), ("loss", loss)):
                    shown = value if ok else math.nan
                    result.append(Row(name, shown, axes, statistic="mean", seed=seed, n=1, status=status))
                step = self.reached[code][member]
                status = "failed: not reached" if step is None else "ok"
                value = math.nan if step is None else step
                result.append(Row("steps_to_target", value, axes, statistic="mean", seed=seed, n=1, status=status))
        mean, covariance = self.bag.mean_and_covariance()
        spread = {"n": int(self.bag.n), "sd": math.sqrt(float(covariance[0, 0]))}
        return [*result, Row("bag_accuracy", float(mean[0]), {}, statistic="mean", seed=first, **spread)]


def cross_entropy(scores: Tensor, answers: Tensor) -> Tensor:
    """Nats of each sequence, ``[seeds, n]``."""
    losses: Tensor = nn.functional.cross_entropy(scores.movedim(-1, 1), answers, reduction="none")
    return losses
