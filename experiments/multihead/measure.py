"""multihead, measured: counts and times of a layer, heads that learn to look a key up, and what trained heads do."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, one_hot, scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.data import repeated_tokens
from attnrepro.data.key_retrieval import draw, stacked
from attnrepro.data.streams import generator
from attnrepro.nn.attention import attention_weights, entropy
from attnrepro.nn.attention_only import AttentionOnly, Layer
from attnrepro.nn.key_retrieval import RetrievalHeads, errors
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.results.rows import Row
from attnrepro.tables.multihead import table
from attnrepro.theory.repeated_tokens import ROLES
from attnrepro.training.ensemble import Recipe, SeedEnsemble
from attnrepro.training.measurement import Job, Measurement, batches


def build(cell: Cell) -> Job:
    """The cell's study."""
    p = cell.params
    if p.study == "cost":
        return Job(Costs(cell), batches(list(p.heads)))
    if p.study == "time":
        return Job(Times(cell), batches(list(range(p.rounds + 1))))
    if p.study == "select":
        select = Select(cell)
        # Two optimisers: every update of either counts as a step of the Trainer.
        return Job(select, batches(["end"]), fit=batches(range(p.select_steps)), max_steps=2 * p.select_steps)
    models = Induction(cell)
    return Job(models, batches(["end"]), fit=models.loader(), max_steps=p.steps)


# --- what a layer costs ---


class Costs(Measurement):
    """FLOPs by torch's counter, parameters and scores of one layer, on tensors that have a shape and no data."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: dict[tuple[str, str], dict[int, int]] = {}

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Both layers with ``batch`` heads."""
        p = self.cell.params
        with torch.device("meta"):
            x = torch.zeros(p.tokens, p.embed_dim)
            ours = SelfAttention(p.embed_dim, batch)
            theirs = nn.MultiheadAttention(p.embed_dim, batch, bias=False)
        self._note("ours", batch, ours, lambda: ours(x))
        self._note("torch", batch, theirs, lambda: theirs(x, x, x, need_weights=False))
        with torch.no_grad():
            self.found.setdefault(("", "scores"), {})[batch] = ours.weights(x).numel()

    def _note(self, module: str, h: int, layer: nn.Module, run: Callable[[], object]) -> None:
        # The fused kernel of CPUs would not be seen.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            run()
        self.found.setdefault((module, "flops"), {})[h] = counter.get_total_flops()
        self.found.setdefault((module, "parameters"), {})[h] = sum(w.numel() for w in layer.parameters())

    def rows(self) -> list[Row]:
        """Counts, and most minus least over the numbers of heads."""
        rows = []
        for (module, quantity), values in self.found.items():
            at: dict[str, object] = {"module": module} if module else {}
            rows += [self._row(quantity, value, {**at, "num_heads": h}) for h, value in values.items()]
            if module:
                rows.append(self._row(f"{quantity}_spread", max(values.values()) - min(values.values()), at))
        return rows

    def _row(self, quantity: str, value: float, axes: dict[str, object]) -> Row:
        return Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=1)


class TimedLayer(nn.Module):
    """`SelfAttention` of a batch, step by step or through torch's fused kernel."""

    def __init__(self, embed_dim: int, num_heads: int, kernel: str) -> None:
        super().__init__()
        self.layer, self.kernel = SelfAttention(embed_dim, num_heads), kernel

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[n, length, embed_dim]`` to outputs of the same shape."""
        a = self.layer
        if self.kernel == "naive":
            return a(x)  # type: ignore[no-any-return]
        q, k, v = (w(x).unflatten(-1, (a.num_heads, -1)).transpose(1, 2) for w in (a.w_query, a.w_key, a.w_value))
        out: Tensor = a.w_out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out


class Times(Measurement):
    """Wall time by number of heads; every round tries them all, so that what slows a round down slows all of it."""

    PHASES = ("forward", "training")

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        p = cell.params
        # Where Lightning puts modules: registered.
        self.layers = nn.ModuleList([TimedLayer(p.embed_dim, h, k) for k in table.KERNELS for h in p.heads])
        self.seconds: dict[tuple[str, str, int], list[float]] = {}

    def test_step(self, batch: int, batch_idx: int) -> None:
        """One round; the first only warms up."""
        p = self.cell.params
        x = torch.randn(p.batch, p.tokens, p.embed_dim, device=self.device)
        for layer in self.layers:
            for phase in self.PHASES:
                taken = self._once(layer, x, training=phase == "training")
                if batch:
                    at = (layer.kernel, phase, layer.layer.num_heads)
                    self.seconds.setdefault(at, []).append(taken)  # type: ignore[arg-type]

    def _once(self, layer: nn.Module, x: Tensor, *, training: bool) -> float:
        wait = torch.cuda.synchronize if x.is_cuda else lambda: None
        wait()
        began = time.perf_counter()
        with torch.set_grad_enabled(training):
            out = layer(x)
            if training:
                out.sum().backward()
        wait()
        taken = time.perf_counter() - began
        layer.zero_grad()
        return taken

    def rows(self) -> list[Row]:
        """Ratios to one head by round, and the fastest time."""
        rows = []
        seed = self.cell.seeds[0]
        for (kernel, phase, h), values in self.seconds.items():
            at: dict[str, object] = {"kernel": kernel, "phase": phase, "num_heads": h}
            rows.append(Row("fastest", min(values) * 1e3, at, seed=seed, unit="ms", n=1))
            if h > 1:
                one = self.seconds[kernel, phase, 1]
                ratios = torch.tensor([a / b for a, b in zip(values, one, strict=True)], dtype=torch.float64)
                rows.append(
                    Row(
                        "time_ratio",
                        float(ratios.mean()),
                        at,
                        statistic="mean",
                        seed=seed,
                        n=len(values),
                        sd=float(ratios.std()),
                    )
                )
        return rows


# --- one head that has to find a key ---


class Select(Measurement):
    """One head of each head_dim at each rate of each optimiser, all seeds stacked, on the same sequences."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.automatic_optimization = False  # two optimisers
        self.cell = cell
        p = cell.params
        self.members = [(o, dim, rate) for o in table.OPTIMIZERS for dim in p.head_dims for rate in p.rates(o)]
        self.heads = nn.ModuleList([self._heads(dim) for _, dim, _ in self.members])
        self.streams: dict[tuple[str, int], torch.Generator] = {}
        self.hits: list[list[Tensor]] = [[] for _ in self.members]
        self.entropies: dict[tuple[int, str], Tensor] = {}
        self.uniform = math.nan

    def _heads(self, head_dim: int) -> RetrievalHeads:
        p = self.cell.params
        # The same start for every rate and optimiser of a seed and head_dim.
        starts = [generator(seed, table.NAME, "start", head_dim) for seed in self.cell.seeds]
        return RetrievalHeads(starts, p.key_dim, head_dim, p.n_keys, scaled=True, init="unit")

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """One optimiser of each kind, a group of parameters for each member."""
        groups: dict[str, list[dict[str, Any]]] = {o: [] for o in table.OPTIMIZERS}
        for (optimizer, _, rate), heads in zip(self.members, self.heads, strict=True):
            groups[optimizer].append({"params": list(heads.parameters()), "lr": rate})
        return [torch.optim.SGD(groups["sgd"]), torch.optim.Adam(groups["adam"], fused=True)]

    def _batch(self, use: str, n: int) -> Any:
        p = self.cell.params
        for seed in self.cell.seeds:
            if (use, seed) not in self.streams:
                self.streams[use, seed] = generator(seed, table.NAME, use, device=self.device)
        return stacked([draw(n, p.n_keys, p.key_dim, self.streams[use, seed]) for seed in self.cell.seeds])

    def training_step(self, batch: int, batch_idx: int) -> None:
        """An update of every member; the sum over members and seeds, so that each moves as if it were alone."""
        if batch == 0:
            self._look("start")
        drawn = self._batch("train", self.cell.params.select_batch)
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        for index, heads in enumerate(self.heads):
            scores = heads.read(heads.logits(heads.query(drawn.queries), drawn.keys))  # type: ignore[operator]
            self.hits[index].append((scores.detach().argmax(-1) == drawn.answers).double().mean(-1))
            self.manual_backward(errors(scores, drawn.answers).mean(-1).sum())
        for optimizer in optimizers:
            optimizer.step()

    def _look(self, phase: str) -> None:
        """Entropy of every member's weights on sequences of their own, the same at either time."""
        drawn = self._batch(f"probe_{phase}", self.cell.params.n_probe)
        with torch.no_grad():
            for index, heads in enumerate(self.heads):
                logits = heads.logits(heads.query(drawn.queries), drawn.keys)  # type: ignore[operator]
                self.entropies[index, phase] = entropy(attention_weights(logits.double())).mean(-1)
            self.uniform = float(entropy(attention_weights(torch.zeros_like(logits.double()))).mean())

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Entropies after training."""
        self._look(batch)

    def rows(self) -> list[Row]:
        """Steps and entropies of each member and seed; entropy at the start once for each head_dim."""
        p, rows, told = self.cell.params, [], set()
        for index, (optimizer, head_dim, rate) in enumerate(self.members):
            at: dict[str, object] = {"optimizer": optimizer, "head_dim": head_dim, "learning_rate": rate}
            steps = first_window(torch.stack(self.hits[index]), p.window, p.target)
            never = f"failed: target not reached in {p.select_steps} updates"
            for seed, reached in zip(self.cell.seeds, steps, strict=True):
                rows.append(_of_seed("steps_to_target", reached, at, seed, never))
            for phase, axes in (("start", {"head_dim": head_dim}), ("end", at)):
                if (phase, str(axes)) not in told:
                    told.add((phase, str(axes)))
                    values = self.entropies[index, phase].tolist()
                    rows += [
                        _of_seed("entropy", value, {**axes, "phase": phase}, seed, "failed: diverged")
                        for seed, value in zip(self.cell.seeds, values, strict=True)
                    ]
        first = self.cell.seeds[0]
        return [*rows, Row("entropy", self.uniform, {"phase": "uniform"}, statistic="exact", seed=first, n=1)]


def first_window(hits: Tensor, window: int, target: float) -> list[int | None]:
    """For each column of accuracies ``[batches, seeds]``, after how many batches the last ``window`` of them first have
    a mean of ``target`` or more; None where they never do.
    """
    if len(hits) < window:
        return [None] * hits.shape[1]
    enough = hits.unfold(0, window, 1).mean(-1) >= target - 1e-9  # above the rounding of a mean
    first = torch.where(enough.any(0), enough.int().argmax(0) + window, -1)
    return [None if at < 0 else at for at in first.tolist()]


def _of_seed(quantity: str, value: float | None, axes: dict[str, object], seed: int, why: str) -> Row:
    """A seed's value, or a failed row where there is none."""
    ok = value is not None and math.isfinite(value)
    return Row(
        quantity,
        float(value) if ok and value is not None else math.nan,
        axes,
        statistic="mean",
        seed=seed,
        n=1,
        status="ok" if ok else why,
    )


# --- models of several heads ---


def scores(weights: Tensor, period: Tensor, role: str) -> Tensor:
    """Mean weight that heads give to the position of a role, ``[seeds, n, num_heads]``; see theory.repeated_tokens.

    Args:
        weights: ``[seeds, n, num_heads, length, length]``, row: query.
        period: ``[seeds, n]``.
        role: one of ``ROLES``.
    """
    query = torch.arange(weights.shape[-1], device=weights.device)
    if role == "previous":
        return weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(-1)
    key = query - period[..., None] + (role == "induction")
    asked = (query >= period[..., None]).to(weights.dtype)
    at = key.clamp(min=0)[:, :, None, :, None].expand(*weights.shape[:-1], 1)
    found = weights.gather(-1, at)[..., 0]
    return (found * asked[:, :, None]).sum(-1) / asked.sum(-1)[:, :, None]


def explained(features: Tensor, labels: Tensor, classes: int) -> float:
    """Share of the variance of one-hot labels ``[n]`` that least squares on features ``[n, k]`` explains.

    Fitted on the first half and measured on the second, where 0 is what the mean of the first half gives.
    """
    x = torch.cat([features.double(), torch.ones(len(features), 1, dtype=torch.float64, device=features.device)], -1)
    y = one_hot(labels, classes).double()
    half = len(x) // 2
    # The pseudo-inverse: a head may have fewer directions than components.
    fitted = torch.linalg.pinv(x[:half]) @ y[:half]
    left = (y[half:] - x[half:] @ fitted).square().sum()
    return float(1 - left / (y[half:] - y[:half].mean(0)).square().sum())


class Induction(SeedEnsemble):
    """Attention-only models that learn to continue repeated tokens, and what their heads are like before and after."""

    def __init__(self, cell: Cell) -> None:
        p = cell.params
        super().__init__(Recipe("adam", (0, p.steps)))
        self.cell = cell
        starts = [generator(seed, table.NAME, "model") for seed in cell.seeds]
        self.model = AttentionOnly(
            starts,
            vocabulary=p.vocabulary,
            length=p.length - 1,
            embed_dim=p.model_dim,
            num_heads=p.num_heads,
            depth=p.depth,
        )
        self.streams: dict[int, torch.Generator] = {}
        self.hits: list[Tensor] = []
        self.base: dict[str, object] = {"num_heads": p.num_heads, "depth": p.depth}
        self.found: list[Row] = []

    def parameter_groups(self) -> list[dict[str, Any]]:
        """One rate for all."""
        return [{"params": list(self.parameters()), "lr": self.cell.params.learning_rate}]

    def _drawn(self, use: str, n: int, how: Any) -> tuple[Tensor, Tensor]:
        """Tokens ``[seeds, n, length]`` and periods ``[seeds, n]``."""
        p = self.cell.params
        parts = []
        for seed in self.cell.seeds:
            stream = generator(seed, table.NAME, use, device=self.device) if use == "test" else self._stream(seed)
            parts.append(how(p.periods, n, p.length, p.vocabulary, stream))
        tokens, period = zip(*parts, strict=True)
        return torch.stack(tokens), torch.stack(period)

    def _stream(self, seed: int) -> torch.Generator:
        if seed not in self.streams:
            self.streams[seed] = generator(seed, table.NAME, "train", device=self.device)
        return self.streams[seed]

    @staticmethod
    def judged(logits: Tensor, tokens: Tensor, period: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy of each seed over tokens whose own and whose next have been seen before."""
        following = tokens[..., 1:]
        asked = torch.arange(following.shape[-1], device=tokens.device) >= period[..., None]
        losses = cross_entropy(logits.flatten(0, 2), following.flatten(), reduction="none").view_as(following)
        right = (logits.detach().argmax(-1) == following) & asked
        count = asked.sum((1, 2))
        return (losses * asked).sum((1, 2)) / count, right.sum((1, 2)).double() / count

    def backward_sum(self, step: int) -> Tensor:
        """Fresh sequences for each seed."""
        tokens, period = self._drawn("train", self.cell.params.batch_size, repeated_tokens.draw)
        losses, right = self.judged(self.model(tokens[..., :-1]), tokens, period)
        self.hits.append(right)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        return losses.detach().mean()

    def snapshot(self) -> None:
        """What untrained heads do is looked at before the first step; the rest in the test loop."""
        if not self.hits:
            self._look("start")

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Trained heads: roles, what they carry, what each is worth; and the scores of equal weights."""
        p, never = self.cell.params, f"failed: target not reached in {self.cell.params.steps} updates"
        for seed, reached in zip(
            self.cell.seeds, first_window(torch.stack(self.hits), p.window, p.target), strict=True
        ):
            self.found.append(_of_seed("steps_to_target", reached, self.base, seed, never))
        self._look(batch)

    def _look(self, phase: str) -> None:
        p = self.cell.params
        tokens, period = self._drawn("test", p.n_test, repeated_tokens.balanced)
        layers: list[Layer] = []
        with torch.no_grad():
            loss, right = self.judged(self.model(tokens[..., :-1], layers=layers), tokens, period)
            by_role = {
                role: torch.stack([scores(each.weights, period, role).double().mean(1) for each in layers], 1)
                for role in ROLES
            }
            self._add("loss", loss, phase=phase)
            self._add("accuracy", right, phase=phase)
            self._scores(by_role, phase)
            if phase == "start":
                self.first = {role: found.flatten(1).amax(1) for role, found in by_role.items()}
                self._uniform(layers[0].weights, period)
                return
            self._roles(by_role)
            self._carried(by_role["previous"][:, 0], layers[0].outputs, tokens)
            self._pruned(tokens, period, loss, right)

    def _add(self, quantity: str, values: Tensor, **axes: object) -> None:
        """A row for each seed."""
        for seed, value in zip(self.cell.seeds, values.tolist(), strict=True):
            self.found.append(_of_seed(quantity, value, {**self.base, **axes}, seed, "failed: diverged"))

    def _scores(self, by_role: dict[str, Tensor], phase: str) -> None:
        for role, found in by_role.items():
            self._add("mean_score", found.mean((1, 2)), role=role, phase=phase)
            self._add("best_score", found.flatten(1).amax(1), role=role, phase=phase)
            ordered = found.sort(-1, descending=True).values
            for layer in range(found.shape[1]):
                for rank in range(found.shape[2]):
                    at = {"layer": layer + 1, "rank": rank + 1, "role": role, "phase": phase}
                    self._add("score", ordered[:, layer, rank], **at)

    def _uniform(self, weights: Tensor, period: Tensor) -> None:
        """Scores of equal weights, on the periods of the test sequences."""
        length = weights.shape[-1]
        equal = torch.ones(length, length, dtype=torch.float64, device=weights.device).tril()
        equal = (equal / equal.sum(-1, keepdim=True)).expand(*period.shape, 1, length, length)
        for role in ROLES:
            value = float(scores(equal, period, role).mean())
            at = {**self.base, "role": role, "phase": "uniform"}
            self.found.append(Row("mean_score", value, at, statistic="exact", seed=self.cell.seeds[0], n=1))

    def _roles(self, by_role: dict[str, Tensor]) -> None:
        clear = torch.stack([found.flatten(1) for found in by_role.values()]).amax(0) >= self.cell.params.clear
        self._add("unclear_share", 1 - clear.double().mean(1))
        best = {role: found.flatten(1).argmax(1) for role, found in by_role.items()}
        self._add("separate_roles", (best["previous"] != best["induction"]).double())
        for role, found in by_role.items():
            layer = best[role] // found.shape[2]
            self._add("layer_of_best", (layer + 1).double(), role=role)
            for seed, value in zip(
                self.cell.seeds, (found.flatten(1).amax(1) - self.first[role]).tolist(), strict=True
            ):
                row = _of_seed("score_gain", value, {**self.base, "role": role}, seed, "failed: diverged")
                self.found.append(Row(row.quantity, row.value, row.axes, statistic="paired_difference", seed=seed, n=1))

    def _carried(self, previous: Tensor, outputs: Tensor, tokens: Tensor) -> None:
        """What can be read from the output of the first layer's best previous-token head, ``[seeds, heads]`` scores."""
        p = self.cell.params
        inputs = tokens[..., :-1]
        found: dict[str, list[float]] = {relation: [] for relation in table.RELATIONS}
        for s, head in enumerate(previous.argmax(1).tolist()):
            features = outputs[s, :, head, 1:].flatten(0, 1)
            own, before = inputs[s, :, 1:], inputs[s, :, :-1]
            at = torch.arange(own.shape[-1], device=own.device).expand_as(own)
            labels = {"previous": before, "own": own, "position": at, "shuffled": before.roll(1, 0)}
            for relation, label in labels.items():
                classes = own.shape[-1] if relation == "position" else p.vocabulary
                found[relation].append(explained(features, label.flatten(), classes))
        for relation, values in found.items():
            self._add("explained", torch.tensor(values, dtype=torch.float64), relation=relation)

    def _pruned(self, tokens: Tensor, period: Tensor, loss: Tensor, right: Tensor) -> None:
        """Switch off one head after another, then all of the last layer."""
        p = self.cell.params
        rises, drops = [], []
        for index in range(p.depth * p.num_heads):
            keep = torch.ones(p.depth * p.num_heads, device=self.device)
            keep[index] = 0
            without = self.judged(self.model(tokens[..., :-1], keep=keep.view(p.depth, p.num_heads)), tokens, period)
            rises.append(without[0] - loss)
            drops.append(right - without[1])
        by_head = (torch.stack(rises, 1), torch.stack(drops, 1))
        for quantity, values in zip(("loss_rise", "accuracy_drop"), by_head, strict=True):
            ordered = values.sort(1, descending=True).values
            for rank in range(ordered.shape[1]):
                self._add(quantity, ordered[:, rank], rank=rank + 1)
        self._add("redundant_share", (by_head[1] < p.worth).double().mean(1))
        keep = torch.ones(p.depth, p.num_heads, device=self.device)
        keep[-1] = 0
        without = self.judged(self.model(tokens[..., :-1], keep=keep), tokens, period)
        self._add("accuracy", without[1], phase="last_layer_off")

    def rows(self) -> list[Row]:
        """Everything that was looked at."""
        return self.found
