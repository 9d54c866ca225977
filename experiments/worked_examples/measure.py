"""worked_examples, measured: attention on vectors that have the printed dot products, random vectors, real layers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn import masks
from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.results.rows import Row
from attnrepro.tables.worked_examples import table
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.moments import Moments

# Vectors drawn at a time: 16 MiB of queries and keys at 16 components.
CHUNK = 1 << 16
# A head's share of an output component is recognised by so much.
SAME = 1e-10


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    if cell.params.study == "variance":
        draws = Draws(cell)
        return Job(draws, batches(draws.plan()))
    if cell.params.study == "heads":
        heads = Heads(cell)
        return Job(heads, batches(heads.plan()))
    example = Example(cell)
    return Job(example, batches(example.plan()))


class Recorded(Measurement):
    """A measurement that collects exact rows; nothing random decides them, so that they carry the first seed."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def add(self, quantity: str, value: float, axes: dict[str, object], n: int = 1) -> None:
        """One exact row."""
        self.found.append(Row(quantity, float(value), axes, statistic="exact", seed=self.cell.seeds[0], n=n))

    def rows(self) -> list[Row]:
        """All rows, in the order they were found."""
        return self.found


# --- an example ---


def floats(rows: Sequence[str], device: torch.device) -> Tensor:
    """Printed rows of decimals as a float64 matrix."""
    values = [[float(word) for word in row.split()] for row in rows]
    return torch.tensor(values, dtype=torch.float64, device=device)


class Example(Recorded):
    """The rows of weights of one example, through queries and keys."""

    def plan(self) -> list[tuple[int, str]]:
        """Batches: (head_dim, mask)."""
        p = self.cell.params
        return [(head_dim, mask) for head_dim in p.head_dims for mask in p.masks]

    def test_step(self, batch: tuple[int, str], batch_idx: int) -> None:
        """Attention of every query token over all tokens."""
        head_dim, mask = batch
        p = self.cell.params
        query, key = self._vectors(head_dim)
        logits = attention_logits(query, key)
        allowed = self._allowed(mask)
        weights = attention_weights(logits.masked_fill(~allowed, -torch.inf))
        if batch_idx == 0:
            self._scores(attention_logits(query, key, scaled=False))
        outputs = weights @ floats(p.value, self.device) if p.value else None
        for i, name in enumerate(p.query_tokens):
            at: dict[str, object] = {"example": p.example, "query": name, "head_dim": head_dim}
            for j, token in enumerate(p.tokens):
                if mask == p.masks[0]:
                    self.add("logit", logits[i, j], {**at, "token": token})
                self.add("weight", weights[i, j], {**at, "token": token, "mask": mask})
            self.add("weights_sum", weights[i].sum(), {**at, "mask": mask})
            for index, value in enumerate(outputs[i] if outputs is not None else ()):
                self.add("output", value, {**at, "mask": mask, "component": index + 1})
        if outputs is not None and len(outputs) == len(p.value):
            moved = (outputs - floats(p.value, self.device)).abs().max()
            self.add("output_minus_value", moved, {"example": p.example, "head_dim": head_dim, "mask": mask})

    def _vectors(self, head_dim: int) -> tuple[Tensor, Tensor]:
        """The example's queries and keys; where it prints dot products only, random ones that have them."""
        p = self.cell.params
        if p.query:
            return floats(p.query, self.device), floats(p.key, self.device)
        stream = generator(self.cell.seeds[0], table.NAME, "vectors", head_dim)
        scores = floats(p.scores, self.device)
        # Orthonormal queries: each key can have any dot products with all of them.
        size = (head_dim, head_dim)
        query = torch.linalg.qr(torch.randn(size, generator=stream, dtype=torch.float64)).Q[: len(scores)]
        free = torch.randn(scores.shape[1], head_dim, generator=stream, dtype=torch.float64)
        query, free = query.to(self.device), free.to(self.device)
        return query, scores.T @ query + (free - (free @ query.T) @ query)

    def _allowed(self, mask: str) -> Tensor:
        """Which tokens each query token may attend to, ``[query tokens, tokens]``, by their places in the sentence."""
        p = self.cell.params
        length = len(p.sentence)
        if mask == "causal":
            whole = masks.causal(length, device=self.device)
        else:
            whole = torch.ones(length, length, dtype=torch.bool, device=self.device)
        rows, columns = ([p.sentence.index(token) for token in names] for names in (p.query_tokens, p.tokens))
        return whole[rows][:, columns]

    def _scores(self, dots: Tensor) -> None:
        p = self.cell.params
        hidden = (~self._allowed("causal")).sum(dim=-1)
        for i, name in enumerate(p.query_tokens):
            at: dict[str, object] = {"example": p.example, "query": name}
            for j, token in enumerate(p.tokens):
                self.add("dot_product", dots[i, j], {**at, "token": token})
            self.add("scored_after_query", hidden[i], at)


# --- the variance of a dot product ---


class Draws(Measurement):
    """Dot products of random vectors, with and without the scale, from the same draws."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        # Of both kinds of logits: value, square and fourth power.
        self.sums = torch.nn.ModuleList([Moments(6) for _ in cell.seeds])
        self.streams: dict[int, torch.Generator] = {}

    def plan(self) -> list[tuple[int, int]]:
        """Batches: (index of the seed, number of dot products)."""
        full, rest = divmod(self.cell.params.n_draws, CHUNK)
        sizes = [CHUNK] * full + [rest] * (rest > 0)
        return [(index, size) for index in range(len(self.cell.seeds)) for size in sizes]

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """Draw queries and keys, one pair for each dot product."""
        index, count = batch
        if index not in self.streams:
            self.streams[index] = generator(self.cell.seeds[index], table.NAME, "variance", device=self.device)
        shape = (2, count, 1, self.cell.params.variance_dim)
        query, key = torch.randn(shape, generator=self.streams[index], device=self.device, dtype=torch.float64)
        both = [attention_logits(query, key, scaled=scaled).flatten() for scaled in (False, True)]
        observed = [power for logits in both for power in (logits, logits.square(), logits.square().square())]
        self.sums[index].update(torch.stack(observed, dim=-1))

    def rows(self) -> list[Row]:
        """Both variances and the standard error of the document's; their spread by the delta method."""
        p = self.cell.params
        result = []
        for seed, moments in zip(self.cell.seeds, self.sums, strict=True):
            mean, covariance = (part.cpu() for part in moments.mean_and_covariance())  # type: ignore[operator]
            n = int(moments.n)  # type: ignore[arg-type]

            def judged(m: Tensor) -> Tensor:
                variance = m[1] - m[0] ** 2
                # About their mean, which is 0 up to its own error, fourth moments are those about 0.
                error = ((m[2] - m[1] ** 2) / p.n_printed).sqrt()
                return torch.stack([variance, m[4] - m[3] ** 2, error])

            with torch.enable_grad():
                slope = torch.autograd.functional.jacobian(judged, mean)
            spread = slope @ covariance @ slope.T
            sd = spread.diagonal().sqrt()
            axes = {"head_dim": p.variance_dim}
            values = zip(table.VARIANCES, judged(mean), sd, strict=True)
            result += [
                Row(name, float(value), axes, statistic="value", seed=seed, n=n, sd=float(own))
                for name, value, own in values
            ]
            correlation_sq = float((spread / torch.outer(sd, sd)).square().sum())
            result.append(Row("correlation_sq", correlation_sq, axes, statistic="value", seed=seed, n=n))
        return result


# --- heads ---


class FixedWidthAttention(nn.Module):
    """The projections of attention whose heads keep their width, however many there are."""

    def __init__(self, embed_dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        inner = num_heads * head_dim
        self.w_query, self.w_key, self.w_value = (nn.Linear(embed_dim, inner, bias=False) for _ in range(3))
        self.w_out = nn.Linear(inner, embed_dim, bias=False)


class Heads(Recorded):
    """Parameters of real layers, what a head reads and writes, and the maps that a stack of layers computes."""

    def plan(self) -> list[tuple[str, object]]:
        """Batches: what is counted, and on what."""
        p = self.cell.params
        parameters: list[tuple[str, object]] = [("parameters", layers) for layers in p.num_layers]
        owned: list[tuple[str, object]] = [("owners", heads) for heads in dict.fromkeys([*p.num_heads, p.traced_heads])]
        return [*parameters, *owned, ("inputs", None), *(("maps", stack) for stack in p.stacks)]

    def test_step(self, batch: tuple[str, object], batch_idx: int) -> None:
        """Count one thing."""
        what, item = batch
        if what == "parameters":
            self._count(int(str(item)))
        elif what == "owners":
            self._owners(int(str(item)))
        elif what == "inputs":
            self._inputs()
        else:
            self._maps(str(item))

    def _count(self, layers: int) -> None:
        p = self.cell.params
        for heads in p.num_heads:
            with torch.device("meta"):  # shapes without memory
                made = {
                    "torch": [nn.MultiheadAttention(p.embed_dim, heads) for _ in range(layers)],
                    "self_attention": [SelfAttention(p.embed_dim, heads) for _ in range(layers)],
                    "fixed_head_dim": [
                        FixedWidthAttention(p.embed_dim, heads, p.fixed_head_dim) for _ in range(layers)
                    ],
                }
            for module, stack in made.items():
                count = sum(parameter.numel() for layer in stack for parameter in layer.parameters())
                axes = {"module": module, "embed_dim": p.embed_dim, "num_layers": layers, "num_heads": heads}
                self.add("parameters", count, axes)

    def _layer(self, embed_dim: int, heads: int, *names: object) -> SelfAttention:
        """A layer with weights N(0, 1/embed_dim)."""
        with torch.device("meta"):
            layer = SelfAttention(embed_dim, heads).double()
        layer = layer.to_empty(device=self.device)
        stream = generator(self.cell.seeds[0], table.NAME, "layer", heads, *names)
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=stream, dtype=torch.float64) / math.sqrt(embed_dim))
        return layer

    def _tokens(self, length: int, embed_dim: int) -> Tensor:
        stream = generator(self.cell.seeds[0], table.NAME, "tokens", embed_dim)
        return torch.randn(length, embed_dim, generator=stream, dtype=torch.float64).to(self.device)

    def _owners(self, heads: int) -> None:
        """Which head each component of the concatenated output comes from: the one whose weights make it."""
        p = self.cell.params
        layer = self._layer(p.embed_dim, heads)
        layer.w_out.weight.copy_(torch.eye(p.embed_dim, dtype=torch.float64))
        x = self._tokens(p.length, p.embed_dim)
        error = (layer.weights(x) @ layer.w_value(x) - layer(x)).abs().amax(dim=1)
        made = error < SAME  # [heads, embed_dim]
        at: dict[str, object] = {"embed_dim": p.embed_dim, "num_heads": heads}
        widths = made.sum(dim=1)
        if int(widths.min()) != int(widths.max()) or bool((made.sum(dim=0) != 1).any()):
            raise RuntimeError(f"num_heads={heads}: components of the output do not belong to one head each")
        if heads in p.num_heads:
            self.add("head_dim", widths[0], at, n=heads)
        if heads == p.traced_heads:
            width, wrong = p.embed_dim // heads, 0
            for head, mine in enumerate(made):
                components = (mine.nonzero().flatten() + 1).tolist()
                self.add("slice_first", components[0], {**at, "head": head + 1})
                self.add("slice_last", components[-1], {**at, "head": head + 1})
                wrong += sum((component - 1) // width != head for component in components)
            self.add("slice_mismatches", wrong, at, n=p.embed_dim)

    def _inputs(self) -> None:
        """How many components of the tokens each head's weights depend on, and the rank of its scores."""
        p = self.cell.params
        layer = self._layer(p.embed_dim, p.traced_heads)
        at: dict[str, object] = {"embed_dim": p.embed_dim, "num_heads": p.traced_heads}
        x = self._tokens(p.length, p.embed_dim)
        read = []
        with torch.enable_grad():
            tracked = x.clone().requires_grad_()
            for own in layer.weights(tracked):
                # The first token's attention to itself: rows sum to one, so that their sum would depend on nothing.
                (slope,) = torch.autograd.grad(own[0, 0], tracked, retain_graph=True)
                read.append(int((slope.abs().amax(dim=0) > 0).sum()))
        self.add("inputs_read", min(read), at, n=len(read))
        # Attention among unit vectors shows a head's score of every pair of components, up to a constant in each row.
        logs = layer.weights(torch.eye(p.embed_dim, dtype=torch.float64, device=self.device))[0].log()
        rank = torch.linalg.matrix_rank(logs - logs[:, :1], rtol=1e-6)
        self.add("scoring_rank", rank, at)

    def _maps(self, stack: str) -> None:
        """Different attention maps in one pass through layers x heads, each head of one component."""
        layers, heads = table.stack_sizes(stack)
        x = self._tokens(self.cell.params.length, heads)
        found = []
        for index in range(layers):
            layer = self._layer(heads, heads, stack, index)
            found.append(layer.weights(x).flatten(1))
            x = nn.functional.layer_norm(x + layer(x), (heads,))
        different = torch.unique(torch.cat(found), dim=0)
        self.add("attention_maps", len(different), {"num_layers": layers, "num_heads": heads})
