"""transformer_block, measured: blocks against torch's, tokens and gradients at the start, and trained stacks."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.transformer_stack import TransformerStack, rank_one_distance
from attnrepro.nn.vit import Block, TokenAttention
from attnrepro.results.rows import Row
from attnrepro.tables.transformer_block import table
from attnrepro.training.measurement import Job, Measurement, batches

LAYER_NORM_EPS = 1e-5
# Distances from equal tokens below this are round-off.
FLOOR = 1e-17
# Draws of the weights, over which sizes of tokens are averaged.
SIZE_DRAWS = 64


def build(cell: Cell) -> Job | list[Job]:
    """The cell's study; trained stacks are one job for each order."""
    p = cell.params
    if p.study == "training":
        trained = [Reversal(cell, order) for order in p.orders]
        return [Job(t, batches(["end"]), fit=batches(range(p.steps)), max_steps=p.steps) for t in trained]
    kinds: dict[str, Callable[[Cell], Exact | Gradient | Rank]] = {"exact": Exact, "gradient": Gradient, "rank": Rank}
    study = kinds[p.study](cell)
    return Job(study, batches(study.plan()))


# --- the block of the document and torch's ---


class PairAttention(nn.Module):
    """The listing's attention, which it does not define: it must return a pair."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.inner = TokenAttention(embed_dim, num_heads, fused=False)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Tokens ``[n, length, embed_dim]`` to outputs of the same shape, and nothing."""
        return self.inner(x), None


class Listing(nn.Module):
    """The block as document 002 prints it."""

    def __init__(self, embed_dim: int, num_heads: int, ff_dim: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = PairAttention(embed_dim, num_heads)
        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.ffn = nn.Sequential(nn.Linear(embed_dim, ff_dim), nn.ReLU(), nn.Linear(ff_dim, embed_dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[n, length, embed_dim]`` to tokens of the same shape."""
        attended, _ = self.attention(x)
        x = self.norm1(x + self.dropout(attended))
        out: Tensor = self.norm2(x + self.dropout(self.ffn(x)))
        return out


def copied(theirs: nn.TransformerEncoderLayer, to: nn.Module) -> nn.Module:
    """``to``, a `Listing` or a `Block`, with the weights of torch's layer."""
    to.to(theirs.linear1.weight)
    listing = isinstance(to, Listing)
    attention: Any = to.attention.inner if listing else to.attention  # type: ignore[union-attr]
    mlp: Any = to.ffn if listing else to.mlp
    norms: Any = (to.norm1, to.norm2) if listing else (to.attention_norm, to.mlp_norm)
    packed = theirs.self_attn
    targets = [attention.w_query, attention.w_key, attention.w_value]
    pairs = list(zip(targets, packed.in_proj_weight.chunk(3), packed.in_proj_bias.chunk(3), strict=True))
    linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
    named: list[tuple[Any, Any]] = [
        (attention.w_out, packed.out_proj),
        *zip(norms, (theirs.norm1, theirs.norm2), strict=True),
    ]
    named += zip(linears, (theirs.linear1, theirs.linear2), strict=True)
    with torch.no_grad():
        for target, weight, bias in [*pairs, *((own, other.weight, other.bias) for own, other in named)]:
            target.weight.copy_(weight)
            target.bias.copy_(bias)
    return to


def stack_of(theirs: nn.TransformerEncoderLayer, order: str) -> TransformerStack:
    """A stack of one block and one member with the matrices of torch's layer, which must have no biases."""
    packed, (hidden, embed_dim) = theirs.self_attn, theirs.linear1.weight.shape
    made = TransformerStack(
        [torch.Generator()], embed_dim=embed_dim, num_heads=packed.num_heads, hidden=hidden, depth=1, order=order
    ).to(theirs.linear1.weight)
    weights = [*packed.in_proj_weight.chunk(3), packed.out_proj.weight, theirs.linear1.weight, theirs.linear2.weight]
    targets = [made.w_query, made.w_key, made.w_value, made.w_out, made.w_first, made.w_second]
    with torch.no_grad():
        for target, weight in zip(targets, weights, strict=True):
            target.copy_(weight.T[None, None])
        for index, norm in enumerate((theirs.norm1, theirs.norm2)):
            made.scale[0, index, 0], made.shift[0, index, 0] = norm.weight, norm.bias
    return made


class Exact(Measurement):
    """Blocks with the weights of ``torch.nn.TransformerEncoderLayer`` against it, in float64."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        # Largest error and number of draws by quantity, module and order.
        self.worst: dict[tuple[str, str, str], tuple[float, int]] = {}

    def plan(self) -> list[tuple[str, int]]:
        """Batches as (shape, draw)."""
        p = self.cell.params
        return list(itertools.product(p.shapes, range(p.draws)))

    def test_step(self, batch: tuple[str, int], batch_idx: int) -> None:
        """One draw of weights and tokens: every block against torch's layer of its order and of the other."""
        n, length, d, h = map(int, batch[0].split("x"))
        stream = generator(self.cell.seeds[0], table.NAME, "exact", *batch)
        x = torch.randn(n, length, d, generator=stream, dtype=torch.float64).to(self.device)
        makers: dict[tuple[str, str], tuple[str, Callable[[Any, str], Any]]] = {
            ("listing", "post"): ("relu", lambda t, o: copied(t, Listing(d, h, 2 * d))),
            **{
                ("vit_block", order): (
                    "gelu",
                    lambda t, o: copied(
                        t, Block(TokenAttention(d, h, fused=False), d, 2 * d, norm_first=o == "pre", dropout=0.1)
                    ),
                )
                for order in ("post", "pre")
            },
            **{("stack", order): ("relu", stack_of) for order in ("post", "pre")},
        }
        for (module, order), (activation, make) in makers.items():
            theirs = {
                name: self._torch(d, h, activation, name, stream, biases=module != "stack") for name in ("post", "pre")
            }
            # The same weights in both orders.
            theirs["pre"].load_state_dict(theirs["post"].state_dict())
            ours = make(theirs[order], order).to(x).eval()
            with torch.no_grad():
                out = self._run(ours, x, order)
                wanted = {name: layer(x) for name, layer in theirs.items()}
                other = "pre" if order == "post" else "post"
                eps = torch.finfo(x.dtype).eps * wanted[order].abs().max()
                self._note("block_error_eps", module, order, (out - wanted[order]).abs().max() / eps)
                self._note("order_error_eps", module, order, (out - wanted[other]).abs().max() / eps, least=True)
                self._note("shape_change", module, order, torch.tensor(float(out.shape != x.shape)))
                if module == "listing":
                    self._normalised(ours, x, out)
                elif (module, order) == ("vit_block", "pre"):
                    mean = out.mean(-1).abs().max() / torch.finfo(x.dtype).eps
                    self._note("mean_error_eps", module, order, mean, least=True)

    def _run(self, module: nn.Module, x: Tensor, order: str) -> Tensor:
        if not isinstance(module, TransformerStack):
            return module(x)  # type: ignore[no-any-return]
        # torch's layer has no LayerNorm after the last block.
        states: list[Tensor] = []
        module(x[None], states)
        return states[-1][0]

    def _torch(
        self, d: int, h: int, activation: str, order: str, stream: torch.Generator, *, biases: bool
    ) -> nn.TransformerEncoderLayer:
        made = nn.TransformerEncoderLayer(
            d, h, 2 * d, activation=activation, batch_first=True, norm_first=order == "pre", dtype=torch.float64
        )
        with torch.no_grad():
            for name, weight in made.named_parameters():
                drawn = torch.randn(weight.shape, generator=stream, dtype=torch.float64)
                weight.copy_(drawn / math.sqrt(d) if weight.ndim == 2 else drawn / 4 + ("norm" in name) * 1.0)
                if name.endswith("bias") and ("norm" in name or not biases):
                    weight.zero_()
                elif "norm" in name:
                    weight.fill_(1.0)
        # Training mode without dropout: torch's fused inference kernel is another program.
        made.train()
        for part in made.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        made.self_attn.dropout = 0.0
        return made.to(self.device)

    def _normalised(self, listing: Any, x: Tensor, out: Tensor) -> None:
        """Mean 0, and variance v / (v + eps) of what the last LayerNorm read."""
        attended = listing.norm1(x + listing.attention(x)[0])
        v = (attended + listing.ffn(attended)).var(-1, correction=0)
        eps = torch.finfo(x.dtype).eps
        self._note("mean_error_eps", "listing", "post", out.mean(-1).abs().max() / eps)
        off = out.var(-1, correction=0) - v / (v + LAYER_NORM_EPS)
        self._note("variance_error_eps", "listing", "post", off.abs().max() / eps)

    def _note(self, quantity: str, module: str, order: str, value: Tensor, *, least: bool = False) -> None:
        at = quantity, module, order
        before, count = self.worst.get(at, (math.inf if least else 0.0, 0))
        self.worst[at] = (min(before, float(value)) if least else max(before, float(value)), count + 1)

    def rows(self) -> list[Row]:
        """The largest error of each block, the smallest of what must differ."""
        first = self.cell.seeds[0]
        return [
            Row(quantity, value, {"module": module, "order": order}, statistic="exact", seed=first, n=n)
            for (quantity, module, order), (value, n) in self.worst.items()
        ]


# --- at the start ---


class AtStart(Measurement):
    """Rows of each seed, from stacks that have one member a seed, in float64."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def stack(self, depth: int, **options: Any) -> TransformerStack:
        """A stack as wide as its MLP, the same start for all options and, layer by layer, depths."""
        p = self.cell.params
        streams = [generator(seed, table.NAME, "start") for seed in self.cell.seeds]
        return TransformerStack(
            streams, embed_dim=p.width, num_heads=p.heads, hidden=p.width, depth=depth, **options
        ).to(self.device, torch.float64)

    def normal(self, use: str, *shape: int) -> Tensor:
        """N(0, 1) for each seed, ``[seeds, *shape]``."""
        drawn = [
            torch.randn(shape, generator=generator(seed, table.NAME, use), dtype=torch.float64)
            for seed in self.cell.seeds
        ]
        return torch.stack(drawn).to(self.device)

    def add(self, quantity: str, values: Tensor, axes: dict[str, object], statistic: str = "mean") -> None:
        """A row for each seed."""
        for seed, value in zip(self.cell.seeds, values.tolist(), strict=True):
            self.found.append(Row(quantity, value, axes, statistic=statistic, seed=seed, n=1))

    def rows(self) -> list[Row]:
        """Everything that was looked at."""
        return self.found


class Gradient(AtStart):
    """Sizes of tokens, and of the gradient of every second MLP weight."""

    def plan(self) -> list[tuple[str, int]]:
        """Batches as (order, depth); depth 0: sizes of tokens, at the largest depth."""
        return list(itertools.product(("post", "pre"), (0, *self.cell.params.gradient_depths)))

    def test_step(self, batch: tuple[str, int], batch_idx: int) -> None:
        """One stack."""
        order, depth = batch
        if depth:
            self._gradients(order, depth, alone=False)
            self._gradients(order, depth, alone=True)
        else:
            self._sizes(order, max(self.cell.params.gradient_depths))

    def _sizes(self, order: str, depth: int) -> None:
        p = self.cell.params
        streams = [generator(self.cell.seeds[0], table.NAME, "sizes", draw) for draw in range(SIZE_DRAWS)]
        stack = TransformerStack(
            streams, embed_dim=p.width, num_heads=p.heads, hidden=p.width, depth=depth, order=order
        ).to(self.device, torch.float64)
        # One token a sequence, exactly of the size that the closed form starts from.
        x = torch.stack([torch.randn(p.tokens, 1, p.width, generator=s, dtype=torch.float64) for s in streams])
        x = (x / x.square().mean(-1, keepdim=True).sqrt()).to(self.device)
        states: list[Tensor] = []
        sums: list[Tensor] = []
        with torch.no_grad():
            stack(x, states, sums)
        for layer, found in enumerate(states if order == "pre" else sums, 1):
            values, at = found.square().mean((1, 2, 3)), {"order": order, "layer": layer}
            spread = {"n": SIZE_DRAWS, "sd": float(values.std())}
            seed = self.cell.seeds[0]
            self.found.append(Row("token_square", float(values.mean()), at, statistic="mean", seed=seed, **spread))

    def _gradients(self, order: str, depth: int, *, alone: bool) -> None:
        """Of tokens that attend to each other, or each to itself ``alone``."""
        p = self.cell.params
        stack = self.stack(depth, order=order)
        x = self.normal("tokens", p.sequences, p.tokens, p.width)
        if alone:
            x = x.flatten(1, 2)[:, :, None]
        with torch.enable_grad():  # a test loop has none
            out = stack(x)
            upstream = self.normal("upstream", p.sequences, p.tokens, p.width).reshape(out.shape)
            loss = (out * upstream).sum() / (p.sequences * p.tokens)
            loss.backward()
        assert stack.w_second.grad is not None
        norms = torch.linalg.matrix_norm(stack.w_second.grad)
        at: dict[str, object] = {"order": order, "depth": depth} | ({"arm": "alone"} if alone else {})
        for layer in range(depth):
            self.add("gradient_norm", norms[:, layer], {**at, "layer": layer + 1})
        self.add("gradient_drop_log10", (norms[:, 0] / norms[:, -1]).log10(), at)


class Rank(AtStart):
    """How tokens become equal layer by layer, and with which power when they nearly are."""

    def plan(self) -> list[str]:
        """Batches: arms."""
        return list(table.ARMS)

    def test_step(self, batch: str, batch_idx: int) -> None:
        """One arm."""
        p = self.cell.params
        options, at = table.ARMS[batch], {"arm": batch}
        x = self.normal("tokens", p.sequences, p.tokens, p.width)
        states: list[Tensor] = [x]
        with torch.no_grad():
            self.stack(p.rank_depth, **options)(x, states)
            for layer, tokens in enumerate(states):
                distance = rank_one_distance(tokens).clamp(min=FLOOR)
                self.add("residual", distance.mean(1), {**at, "layer": layer})
                self.add("log_residual", distance.log10().mean(1), {**at, "layer": layer})
            self._power(options, at, x)

    def _power(self, options: dict[str, object], at: dict[str, object], x: Tensor) -> None:
        """Slope of log distance after one layer against that before, tokens nearly equal."""
        p = self.cell.params
        common = x.mean(-2, keepdim=True) * math.sqrt(p.tokens)
        rest = x - x.mean(-2, keepdim=True)
        before, after = [], []
        for distance in p.distances:
            near = common + distance * rest
            states: list[Tensor] = []
            self.stack(1, **options)(near, states)
            before.append(rank_one_distance(near).log().mean(1))
            after.append(rank_one_distance(states[-1]).log().mean(1))
        u, v = torch.stack(before), torch.stack(after)
        u, v = u - u.mean(0), v - v.mean(0)
        self.add("collapse_power", (u * v).sum(0) / u.square().sum(0), at)


# --- trained ---


TRAINED: dict[str, dict[str, Any]] = {
    "post": {"order": "post"},
    "pre": {"order": "pre"},
    "pre_qk_norm": {"order": "pre", "qk_norm": True},
    "none": {"order": "post", "skip": False},
}


class Reversal(Measurement):
    """Stacks of one order at every rate, with every warm-up, that learn to put tokens out in reverse.

    Members ``[seeds, rates, warm-ups]`` are stacked; those of a seed have its start and its sequences. Adam moves each
    by its own rate: a step at rate 1, of which each member keeps its share.
    """

    def __init__(self, cell: Cell, order: str) -> None:
        super().__init__()
        self.automatic_optimization = False  # rates differ by member
        self.cell, self.order = cell, order
        p = cell.params
        each = list(itertools.product(p.learning_rates, p.warm_ups))
        self.settings = [(seed, rate, warm_up) for seed in cell.seeds for rate, warm_up in each]
        self.stack = TransformerStack(
            [generator(seed, table.NAME, "stack") for seed, _, _ in self.settings],
            embed_dim=p.embed_dim,
            num_heads=p.num_heads,
            hidden=p.hidden,
            depth=p.depth,
            **TRAINED[order],
        )
        ends = {"embed": (p.vocabulary, p.embed_dim), "position": (p.length, p.embed_dim)}
        for name, shape in {**ends, "unembed": (p.embed_dim, p.vocabulary)}.items():
            scale = 1 / math.sqrt(p.embed_dim) if name == "unembed" else 1.0
            drawn = [torch.randn(shape, generator=generator(s, table.NAME, name)) for s, _, _ in self.settings]
            setattr(self, name, nn.Parameter(torch.stack(drawn) * scale))
        self.streams: dict[int, torch.Generator] = {}
        self.hits: list[Tensor] = []
        self.losses: list[Tensor] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam at rate 1."""
        return torch.optim.Adam(self.parameters(), lr=1.0, fused=True)

    def rates(self, step: int) -> Tensor:
        """Rate of each member at ``step``, counted from 0: linear over its warm-up, then constant."""
        found = [rate * min(1.0, (step + 1) / warm_up) if warm_up else rate for _, rate, warm_up in self.settings]
        return torch.tensor(found, device=self.device)

    def _tokens(self) -> Tensor:
        """Sequences ``[members, n, length]``, a seed's the same for all its members."""
        p = self.cell.params
        drawn = []
        for seed in self.cell.seeds:
            if seed not in self.streams:
                self.streams[seed] = generator(seed, table.NAME, "train", device=self.device)
            shape = p.batch_size, p.length
            drawn.append(torch.randint(p.vocabulary, shape, generator=self.streams[seed], device=self.device))
        return torch.stack(drawn).repeat_interleave(len(p.learning_rates) * len(p.warm_ups), 0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[members, n, length, vocabulary]``."""
        rows = torch.arange(len(tokens), device=tokens.device)[:, None, None]
        x = self.stack(self.embed[rows, tokens] + self.position[:, None])  # type: ignore[index]
        return (x.flatten(1, 2) @ self.unembed).reshape(*tokens.shape, -1)  # type: ignore[no-any-return,operator]

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One step of every member; what is not finite stays as it is, and is counted."""
        tokens = self._tokens()
        wanted = tokens.flip(-1)
        logits = self(tokens)
        losses = cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").unflatten(0, wanted.shape)
        means = losses.mean((1, 2))
        self.losses.append(means.detach())
        self.hits.append((logits.detach().argmax(-1) == wanted).double().mean((1, 2)))
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(means.sum())
        before = [weight.detach().clone() for weight in self.parameters()]
        optimizer.step()
        rates = self.rates(batch)
        with torch.no_grad():
            for weight, old in zip(self.parameters(), before, strict=True):
                share = rates.view(-1, *[1] * (weight.ndim - 1))
                weight.copy_(old + (weight - old) * share)

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Everything was noted while training, on sequences that no step had seen before."""

    def rows(self) -> list[Row]:
        """What became of every member."""
        p = self.cell.params
        hits, losses = torch.stack(self.hits), torch.stack(self.losses)
        window = min(p.window, len(hits))
        means = hits.unfold(0, window, 1).mean(-1)
        broken = ~(losses <= p.diverged_factor * losses[0])  # true of NaN too
        rows = []
        for index, (seed, rate, warm_up) in enumerate(self.settings):
            at: dict[str, object] = {
                "order": self.order,
                "depth": p.depth,
                "warm_up": warm_up,
                "learning_rate": rate,
            }
            there = means[:, index] >= p.target - 1e-9
            # What diverges before it arrives has not arrived.
            arrived = int(there.int().argmax()) + window if there.any() else None
            diverged = bool(broken[:, index].any())
            if arrived and broken[:arrived, index].any():
                arrived = None
            why = "diverged" if diverged else f"target not reached in {p.steps} updates"
            steps = Row("steps_to_target", float(arrived or 0), at, statistic="mean", seed=seed, n=1)
            if not arrived:
                steps = Row("steps_to_target", math.nan, at, statistic="mean", seed=seed, n=1, status=f"failed: {why}")
            outcomes = {
                "reached": arrived is not None,
                "stuck": not diverged and bool(means[-1, index] < p.stuck_below),
                "diverged": diverged,
            }
            rows.append(steps)
            rows += [Row(f"seed_{name}", float(v), at, seed=seed, n=1) for name, v in outcomes.items()]
            rows.append(Row("accuracy", float(means[-1, index]), at, statistic="mean", seed=seed, n=1))
        return rows
