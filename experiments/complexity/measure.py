"""complexity, measured: FLOPs by torch's counter, chains and paths in the graph of autograd, and what is written."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.data.streams import stream_seed
from attnrepro.nn.linear_attention import linear_attention
from attnrepro.nn.low_rank_attention import low_rank_attention
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.nn.window_attention import window_attention
from attnrepro.results.rows import Row
from attnrepro.tables.complexity import table
from attnrepro.training.measurement import Job, Measurement, batches

# Nodes of autograd's graph that are matrix products.
PRODUCTS = ("MmBackward0", "AddmmBackward0", "BmmBackward0", "ConvolutionBackward0")
# Beyond so many tokens no crossover is searched for.
FAR = 2**22


def build(cell: Cell) -> Job:
    """The cell's measurement and its batches."""
    kinds: dict[str, Callable[[Cell], Flops | Crossover | Chain]] = {
        "flops": Flops,
        "crossover": Crossover,
        "chain": Chain,
    }
    study = kinds[cell.params.study](cell)
    return Job(study, batches(study.plan()))


# --- the layers ---


class Projected(nn.Module):
    """Self-attention with something else between its four matrices: ``mix(query, key, value)`` of all heads."""

    def __init__(self, embed_dim: int, num_heads: int, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mix = SelfAttention(embed_dim, num_heads), mix

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[length, embed_dim]`` to outputs of the same shape."""
        a = self.layer
        q, k, v = (w(x).unflatten(-1, (a.num_heads, -1)).transpose(0, 1) for w in (a.w_query, a.w_key, a.w_value))
        out: Tensor = a.w_out(self.mix(q, k, v).transpose(0, 1).flatten(1))
        return out


class GraphConvolution(nn.Module):
    """Mean over ``degree`` neighbours on a ring, then one matrix (Kipf and Welling 2017, without the activation)."""

    def __init__(self, embed_dim: int, degree: int) -> None:
        super().__init__()
        self.degree, self.linear = degree, nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Nodes ``[length, embed_dim]`` to outputs of the same shape."""
        length = len(x)
        neighbour = (torch.arange(length)[:, None] + torch.arange(self.degree)) % length
        mean = torch.full((length, 1, self.degree), 1 / self.degree, dtype=x.dtype)
        out: Tensor = self.linear((mean @ x[neighbour.to(x.device)]).squeeze(1))
        return out


class States(nn.Module):
    """All states of a recurrent layer, from state 0 on."""

    def __init__(self, recurrent: nn.RNNBase) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[length, embed_dim]`` to states of the same shape."""
        out: Tensor = self.recurrent(x)[0]
        return out


def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's attention of all heads ``[num_heads, length, head_dim]``; its kernels want a batch."""
    return scaled_dot_product_attention(query[None], key[None], value[None])[0]


def make(network: str, n: int, d: int, k: int, h: int) -> Callable[[Tensor], Tensor]:
    """A layer from tokens ``[n, d]`` to ``[n, d]``, made on the default device."""
    if network == "attention":
        return SelfAttention(d, h)
    if network == "torch_attention":
        theirs = nn.MultiheadAttention(d, h, bias=False)
        return lambda x: theirs(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]
    if network == "fused":
        return Projected(d, h, fused)
    if network == "window":
        return Projected(d, h, partial(window_attention, width=k))
    if network == "linear":
        return Projected(d, h, linear_attention)
    if network == "low_rank":
        key_mix, value_mix = torch.randn(2, k, n) / math.sqrt(n)
        return Projected(d, h, partial(low_rank_attention, key_mix=key_mix, value_mix=value_mix))
    if network == "convolution":
        conv = nn.Conv1d(d, d, k, padding=k // 2, bias=False)
        return lambda x: conv(x.T).T  # type: ignore[no-any-return]
    if network in ("convolution_2d", "depthwise_2d"):
        grid = nn.Conv2d(d, d, k, padding=k // 2, bias=False, groups=d if network == "depthwise_2d" else 1)
        height = next(side for side in range(math.isqrt(n), 0, -1) if n % side == 0)
        return lambda x: grid(x.T.reshape(d, height, n // height)).flatten(1).T  # type: ignore[no-any-return]
    if network == "graph_convolution":
        return GraphConvolution(d, k)
    recurrent: nn.RNNBase = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[network](d, d, bias=False)
    return States(recurrent)


@contextmanager
def making(device: torch.device | str, dtype: torch.dtype) -> Iterator[None]:
    """Layers and tensors are made on this device and in this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


# --- FLOPs ---


def counted(run: Callable[[], object]) -> int:
    """FLOPs of what ``run`` does; the fused attention kernel of CPUs would not be seen."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def count(network: str, n: int, d: int, k: int = 1, h: int = 1) -> int:
    """FLOPs of a layer or of a part of attention, counted on tensors that have a shape and no data.

    Recurrent layers do have data: a thousand small operations are faster than the shapes of what they would return.
    All is float64, which the fused LSTM kernel of CPUs, where the counter sees no product, does not take.
    """
    with making("cpu" if network in table.RECURRENT else "meta", torch.float64):
        x = torch.zeros(n, d)
        if network not in table.PARTS:
            layer = make(network, n, d, k, h)
            return counted(lambda: layer(x))
        attention = SelfAttention(d, h)
    matrices = [attention.w_query, attention.w_key, attention.w_value, attention.w_out]
    each = [counted(partial(matrix, x)) for matrix in matrices]
    logits = counted(lambda: attention.weights(x)) - each[0] - each[1]
    scores = counted(lambda: attention(x)) - sum(each)
    return {"projections": sum(each), "logits": logits, "scores": scores, "mixing": scores - logits}[network]


def power(values: list[int]) -> int:
    """Degree of the polynomial with these values at equal steps: how often differences are taken until they are 0."""
    order = -1
    while any(values):
        values = [b - a for a, b in pairwise(values)]
        order += 1
    return order


class Counts(Measurement):
    """A measurement of exact counts."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def add(self, quantity: str, value: float, axes: dict[str, object], status: str = "ok") -> None:
        """One count; nothing is drawn that it depends on."""
        row = Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=1, status=status)
        self.found.append(row)

    def rows(self) -> list[Row]:
        """Every count."""
        return self.found


class Flops(Counts):
    """The grid of counts, then what follows from counts: powers, shares and ratios."""

    def plan(self) -> list[str]:
        """Batches: networks, then what compares them."""
        return [*table.COUNTED, "heads", "fit", "exponents", "ratios", "images"]

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Everything of one network, or one comparison."""
        if batch in table.COUNTED:
            self._grid(batch)
            self._degrees(batch)
        else:
            kinds: dict[str, Callable[[], None]] = {
                "heads": self._heads,
                "fit": self._fit,
                "exponents": self._exponents,
                "ratios": self._ratios,
                "images": self._images,
            }
            kinds[batch]()

    def _grid(self, network: str) -> None:
        for n, d, k in table.grid(self.cell.params, network):
            self.add(
                "flops", count(network, n, d, k or 1), {"network": network, "tokens": n, "embed_dim": d, "kernel": k}
            )

    def _degrees(self, network: str) -> None:
        powers = {}
        for variable, sizes in table.degree_sizes(self.cell.params, network).items():
            powers[variable] = power([count(network, *size) for size in sizes])
            self.add("flops_degree", powers[variable], {"network": network, "variable": variable})
        if network in table.ONE_TERM:
            n, d, k = table.degree_sizes(self.cell.params, network)["tokens"][0]
            unit = n ** powers["tokens"] * d ** powers["embed_dim"]
            self.add("coefficient", count(network, n, d, k) / 2 / unit, {"network": network})

    def _heads(self) -> None:
        p = self.cell.params
        n, d = table.sizes(p.heads_shape)
        for network in table.WITH_HEADS:
            found = {h: count(network, n, d, h=h) for h in p.heads}
            axes: dict[str, object] = {"network": network, "tokens": n, "embed_dim": d}
            for h, value in found.items():
                self.add("flops", value, {**axes, "heads": h})
            self.add("flops_spread", max(found.values()) - min(found.values()), axes)

    def _fit(self) -> None:
        """a n d^2 + b n^2 d through two counts, held against all others."""
        p = self.cell.params
        n, d = table.sizes(p.heads_shape)
        for network in ("attention", "torch_attention"):
            one, two = count(network, n, d), count(network, 2 * n, d)
            b = (two - 2 * one) / (2 * n * n * d)
            a = (one - b * n * n * d) / (n * d * d)
            left = [abs(count(network, m, c) - a * m * c * c - b * m * m * c) for m in p.tokens for c in p.embed_dims]
            self.add("unexplained_flops", max(left), {"network": network})

    def _exponents(self) -> None:
        for shape in self.cell.params.exponent_shapes:
            n, d = table.sizes(shape)
            for network in ("attention", "window", "linear"):
                k = self.cell.params.kernels[0] if network == "window" else None
                ratio = count(network, 2 * n, d, k or 1) / count(network, n, d, k or 1)
                axes = {"network": network, "tokens": n, "embed_dim": d, "kernel": k, "variable": "tokens"}
                self.add("exponent", math.log2(ratio), axes)

    def _ratios(self) -> None:
        for network, against, n, d, k, sizes in table.ratios(self.cell.params):
            value = count(network, n, d, sizes[0]) / count(against, n, d, sizes[1])
            axes = {"network": network, "against": against, "tokens": n, "embed_dim": d, "kernel": k}
            self.add("flops_ratio", value, axes)

    def _images(self) -> None:
        p = self.cell.params
        for pixels in p.image_sizes:
            with torch.device("meta"):
                patches = nn.Conv2d(3, p.image_embed_dim, p.patch, stride=p.patch)
                d, n = patches(torch.empty(3, pixels, pixels)).flatten(1).shape
            self.add("tokens_per_component", n / d, {"pixels": pixels})
            share = count("scores", n, d) / count("attention", n, d)
            self.add("scores_share", share, {"network": "attention", "pixels": pixels})


class Crossover(Counts):
    """The largest number of tokens at which one layer is cheaper than another, by bisection of counts."""

    def plan(self) -> list[tuple[str, str, int, int | None]]:
        """Batches as (network, against, embed_dim, kernel)."""
        return table.crossovers(self.cell.params)

    def test_step(self, batch: tuple[str, str, int, int | None], batch_idx: int) -> None:
        """Double the tokens until the first is no longer cheaper, then halve the gap."""
        network, against, d, k = batch

        def cheaper(n: int) -> bool:
            return count(network, n, d, k or 1) < count(against, n, d, k or 1)

        low, high = 0, 1
        while high <= FAR and cheaper(high):
            low, high = high, 2 * high
        while high - low > 1 and high <= FAR:
            middle = (low + high) // 2
            low, high = (middle, high) if cheaper(middle) else (low, middle)
        axes = {"network": network, "against": against, "embed_dim": d, "kernel": k}
        found = high <= FAR
        self.add("cheaper_up_to", low if found else math.nan, axes, "ok" if found else f"failed: not within {FAR}")


# --- chains, paths and memory ---


def is_product(node: Any) -> bool:
    """Whether a node of autograd's graph is a matrix product or a convolution."""
    return node.name() in PRODUCTS


def along(out: Tensor, counts: Callable[[Any], bool], source: Tensor | None = None) -> int | None:
    """Nodes that count on the longest chain that ends in ``out``, or on the shortest from ``source`` to it.

    None if no path leads from ``source`` to ``out``.
    """
    best: dict[Any, float] = {}
    pick, nothing = (max, 0.0) if source is None else (min, math.inf)
    todo: list[Any] = [out.grad_fn]
    while todo:
        node = todo[-1]
        before = [parent for parent, _ in node.next_functions if parent is not None]
        missing = [parent for parent in before if parent not in best]
        if missing:
            todo += missing
            continue
        todo.pop()
        reached = source is not None and getattr(node, "variable", None) is source
        best[node] = 0.0 if reached else pick((best[parent] for parent in before), default=nothing) + counts(node)
    length = best[out.grad_fn]
    return None if math.isinf(length) else int(length)


class Largest(TorchDispatchMode):
    """Entries of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what it returns."""
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.entries = max([self.entries, *sizes])
        return out


class Chain(Counts):
    """Longest chains of products, shortest paths between positions, and the largest tensors, on real tensors."""

    def plan(self) -> list[str]:
        """Batches: networks."""
        return list(dict.fromkeys([*table.CHAINED, *table.STORED]))

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Steps and paths of a network, then what it writes."""
        # cuDNN's recurrent layers are one node of the graph, whatever the length.
        with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
            if batch in table.CHAINED:
                self._steps(batch)
                self._paths(batch)
        if batch in table.STORED:
            self._stored(batch)

    def _layer(self, network: str, n: int, dtype: torch.dtype, index: int = 0) -> Callable[[Tensor], Tensor]:
        p = self.cell.params
        torch.manual_seed(stream_seed(self.cell.seeds[0], table.NAME, network, n, index))
        with making(self.device, dtype):
            return make(network, n, p.chain_embed_dim, p.chain_kernel, 1)

    def _tokens(self, n: int, dtype: torch.dtype) -> Tensor:
        torch.manual_seed(stream_seed(self.cell.seeds[0], table.NAME, "tokens", n))
        return torch.randn(n, self.cell.params.chain_embed_dim, dtype=dtype).to(self.device)

    def _steps(self, network: str) -> None:
        for n in self.cell.params.chain_tokens:
            x = self._tokens(n, torch.float64).requires_grad_()
            steps = along(self._layer(network, n, torch.float64)(x)[-1], is_product)
            self.add("sequential_steps", steps or 0, {"network": network, "tokens": n, "kernel": self._kernel(network)})

    def _paths(self, network: str) -> None:
        """Layers until the last output depends on the first token; of a recurrence, the steps on the way."""
        for distance in self.cell.params.distances:
            n = distance + 1
            length = self._steps_between(network, n) if network in table.RECURRENT else self._depth(network, n)
            axes = {"network": network, "tokens": n, "kernel": self._kernel(network)}
            self.add("path_length", length, axes)

    def _steps_between(self, network: str, n: int) -> int:
        """States that the last one depends on the first token through, at least, on whatever way."""
        layer = self._layer(network, 1, torch.float64)
        assert isinstance(layer, States)
        first = self._tokens(1, torch.float64).requires_grad_()
        others = self._tokens(n, torch.float64)[1:]
        _, state = layer.recurrent(first)
        passed = []
        for token in others.split(1):
            # An LSTM hands on its output and its cell: a path goes through either.
            passed += [part.grad_fn for part in (state if network == "lstm" else [state])]
            _, state = layer.recurrent(token, state)
        last = state[0] if network == "lstm" else state
        return along(last, lambda node: node in passed, first) or 0

    def _depth(self, network: str, n: int) -> int:
        """Fewest layers after which the last output depends on the first token, by doubling and bisection."""
        states = [self._tokens(n, torch.float64).requires_grad_()]

        def sees(depth: int) -> bool:
            while len(states) <= depth:
                x = self._layer(network, n, torch.float64, len(states))(states[-1])
                # Keeps the gradients of deep stacks in the range of float64.
                states.append(x / x.detach().abs().max())
            (gradient,) = torch.autograd.grad(states[depth][-1].sum(), states[0], retain_graph=True)
            return bool((gradient[0] != 0).any())

        high = 1
        while not sees(high):
            if high > n:
                raise ValueError(f"{network} does not connect {n} positions")
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if sees(middle) else (middle, high)
        return high

    def _stored(self, network: str) -> None:
        p = self.cell.params
        found = []
        for n in table.stored_tokens(p):
            layer, x = self._layer(network, n, torch.float32), self._tokens(n, torch.float32)
            kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
            with torch.no_grad(), sdpa_kernel(kernels), Largest() as largest:
                layer(x)
            found.append(largest.entries)
            axes = {"network": network, "tokens": n, "kernel": self._kernel(network)}
            self.add("largest_tensor", largest.entries, axes)
        self.add("largest_tensor_degree", power(found), {"network": network, "variable": "tokens"})

    def _kernel(self, network: str) -> int | None:
        return self.cell.params.chain_kernel if network in table.WITH_KERNEL else None
