"""complexity, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import complexity as closed

NAME = "complexity"
AXES = ("network", "against", "tokens", "embed_dim", "kernel", "heads", "variable", "pixels")

RECURRENT, WITH_KERNEL = closed.RECURRENT, closed.WITH_KERNEL
# Parts of an attention layer, counted by themselves, and those of one term.
PARTS = ("projections", "logits", "mixing", "scores")
ONE_TERM = ("projections", "logits", "mixing")
# torch's own layer stands beside ours.
COUNTED = (*closed.NETWORKS, "torch_attention")
WITH_HEADS = ("attention", "torch_attention", "linear")
CHAINED = ("attention", "window", "linear", "low_rank", "convolution", *RECURRENT)
STORED = ("attention", "fused", "window", "linear", "low_rank")
# Who is cheaper, up to which number of tokens; with and without recurrence.
PAIRS = (
    ("scores", "projections"),
    ("attention", "linear"),
    ("attention", "window"),
    ("attention", "low_rank"),
    ("attention", "convolution"),
    ("attention", "convolution_2d"),
    ("scores", "convolution"),
    ("scores", "convolution_2d"),
)
RECURRENT_PAIRS = tuple((network, against) for network in ("attention", "scores") for against in RECURRENT)
# (network, against) of ratios at equal neighbourhoods.
RATIOS = (
    ("attention", "convolution_2d"),
    ("graph_convolution", "convolution_2d"),
    ("window", "convolution_2d"),
    ("graph_convolution", "depthwise_2d"),
    ("attention", "graph_convolution"),
    ("attention", "window"),
    ("projections", "scores"),
)


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/complexity.yaml`` says what each means."""

    study: str
    tokens: list[int]
    recurrent_most: int
    embed_dims: list[int]
    kernels: list[int]
    heads: list[int]
    heads_shape: str
    degree_points: int
    degree_tokens: int
    degree_embed_dim: int
    exponent_shapes: list[str]
    ratio_shapes: list[str]
    ratio_kernel: int
    image_sizes: list[int]
    patch: int
    image_embed_dim: int
    crossover_dims: list[int]
    recurrent_dims: list[int]
    chain_tokens: list[int]
    distances: list[int]
    chain_kernel: int
    chain_embed_dim: int

    def __post_init__(self) -> None:
        one_of(self, study=("flops", "crossover", "chain"))
        distinct(self, "tokens", "embed_dims", "kernels", "heads", "exponent_shapes", "ratio_shapes", "image_sizes")
        distinct(self, "crossover_dims", "recurrent_dims", "chain_tokens", "distances")
        in_range(
            self, tokens=(1, 2**16), recurrent_most=(1, 2**12), embed_dims=(1, 2**14), kernels=(1, 99), heads=(1, 2**10)
        )
        in_range(self, degree_points=(4, 20), degree_tokens=(4, 2**8), degree_embed_dim=(1, 2**8))
        in_range(self, ratio_kernel=(1, 31), image_sizes=(1, 2**14), patch=(1, 2**10), image_embed_dim=(1, 2**14))
        in_range(self, crossover_dims=(1, 2**12), recurrent_dims=(1, 2**10))
        in_range(self, chain_tokens=(1, 2**10), distances=(1, 2**9), chain_kernel=(3, 31), chain_embed_dim=(1, 2**8))
        for name in ("kernels", "ratio_kernel", "chain_kernel"):
            given = getattr(self, name)
            for kernel in given if isinstance(given, list) else [given]:
                if kernel % 2 == 0:
                    raise ValueError(f"{name}={kernel} must be odd")
        for name in ("exponent_shapes", "ratio_shapes"):
            for shape in getattr(self, name):
                sizes(shape, name)
        embed_dim = sizes(self.heads_shape, "heads_shape")[1]
        for h in self.heads:
            if embed_dim % h:
                raise ValueError(f"heads={h} must divide the embed_dim of heads_shape={self.heads_shape}")
        for pixels in self.image_sizes:
            if pixels % self.patch:
                raise ValueError(f"image_sizes={pixels} must be a multiple of patch={self.patch}")


def sizes(shape: str, name: str = "shape") -> tuple[int, int]:
    """``tokens x embed_dim`` as two numbers.

    Raises:
        ValueError: a shape of another form, or a size below 1 or of more than eight digits.
    """
    parts = shape.split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 8 for part in parts):
        raise ValueError(f"{name}={shape} must be tokens x embed_dim, as in 196x768")
    n, d = map(int, parts)
    if min(n, d) < 1:
        raise ValueError(f"{name}={shape} must have sizes of 1 or more")
    return n, d


def theory_name(network: str) -> str:
    """The closed form of a network: torch's attention has that of attention."""
    return "attention" if network == "torch_attention" else network


def grid(p: Params, network: str) -> list[tuple[int, int, int | None]]:
    """(tokens, embed_dim, kernel) of the grid of counts."""
    kernels: list[int | None] = [*p.kernels] if network in WITH_KERNEL else [None]
    tokens = [n for n in p.tokens if n <= p.recurrent_most] if network in RECURRENT else p.tokens
    return [(n, d, k) for n in tokens for d in p.embed_dims for k in kernels]


def degree_sizes(p: Params, network: str) -> dict[str, list[tuple[int, int, int]]]:
    """By variable: sizes (tokens, embed_dim, kernel) at equal steps of that variable."""
    n, d, k = p.degree_tokens, p.degree_embed_dim, min(p.kernels)
    steps = range(1, p.degree_points + 1)
    found = {"tokens": [(n * i, d, k) for i in steps], "embed_dim": [(n, d * i, k) for i in steps]}
    if network in WITH_KERNEL:
        found["kernel"] = [(n, d, 2 * i + 1) for i in steps]
    return found


def ratios(p: Params) -> list[tuple[str, str, int, int, int, tuple[int, int]]]:
    """(network, against, tokens, embed_dim, side, own kernels): a convolution has a side, others side^2 neighbours."""
    side = p.ratio_kernel
    own = {name: side if name.endswith("_2d") else side**2 for name in closed.NETWORKS}
    return [(a, b, *sizes(shape), side, (own[a], own[b])) for shape in p.ratio_shapes for a, b in RATIOS]


def crossovers(p: Params) -> list[tuple[str, str, int, int | None]]:
    """(network, against, embed_dim, kernel) of every crossover."""
    found: list[tuple[str, str, int, int | None]] = []
    for network, against in PAIRS:
        kernels: list[int | None] = [*p.kernels] if against in WITH_KERNEL else [None]
        found += [(network, against, d, k) for d in p.crossover_dims for k in kernels]
    return found + [(network, against, d, None) for network, against in RECURRENT_PAIRS for d in p.recurrent_dims]


def stored_tokens(p: Params) -> list[int]:
    """Tokens at equal steps, more than there are components: the scores are then larger than what they are made of."""
    first = p.chain_kernel * p.chain_embed_dim + 1
    return [first * i for i in range(1, p.degree_points + 1)]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "flops":
        return 2.0 + len(RECURRENT) * p.recurrent_most * sum(p.embed_dims) * 1e-5
    if p.study == "crossover":
        return 1.0 + sum(p.recurrent_dims) * 0.02
    return 2.0


# --- closed forms ---


def theory(cell: Cell) -> list[Row]:
    """Closed forms of everything the cell measures (``attnrepro.theory.complexity``)."""
    p = cell.params
    made = {"flops": _flops, "crossover": _crossover, "chain": _chain}[p.study](p)
    return [Row(name, value, axes, source="theory", statistic="exact") for name, value, axes in made]


Made = Iterator[tuple[str, float, dict[str, object]]]


def _flops(p: Params) -> Made:
    for network in COUNTED:
        name = theory_name(network)
        for n, d, k in grid(p, network):
            axes: dict[str, object] = {"network": network, "tokens": n, "embed_dim": d, "kernel": k}
            yield "flops", closed.flops(name, n, d, k or 1), axes
        for variable in degree_sizes(p, network):
            yield "flops_degree", closed.degree(name, variable), {"network": network, "variable": variable}
        if network in ONE_TERM:
            yield "coefficient", closed.coefficient(name), {"network": network}
    n, d = sizes(p.heads_shape)
    for network in WITH_HEADS:
        found = [closed.flops(theory_name(network), n, d, h=h) for h in p.heads]
        axes = {"network": network, "tokens": n, "embed_dim": d}
        for h, value in zip(p.heads, found, strict=True):
            yield "flops", value, {**axes, "heads": h}
        yield "flops_spread", max(found) - min(found), axes
    for network in ("attention", "torch_attention"):
        yield "unexplained_flops", 0, {"network": network}
    for shape in p.exponent_shapes:
        n, d = sizes(shape)
        for network in ("attention", "window", "linear"):
            k = p.kernels[0] if network == "window" else None
            ratio = closed.flops(network, 2 * n, d, k or 1) / closed.flops(network, n, d, k or 1)
            axes = {"network": network, "tokens": n, "embed_dim": d, "kernel": k, "variable": "tokens"}
            yield "exponent", math.log2(ratio), axes
    for network, against, n, d, side, own in ratios(p):
        ratio = closed.flops(network, n, d, own[0]) / closed.flops(against, n, d, own[1])
        axes = {"network": network, "against": against, "tokens": n, "embed_dim": d, "kernel": side}
        yield "flops_ratio", ratio, axes
    for pixels in p.image_sizes:
        n, d = (pixels // p.patch) ** 2, p.image_embed_dim
        yield "tokens_per_component", n / d, {"pixels": pixels}
        yield "scores_share", n / (n + 2 * d), {"network": "attention", "pixels": pixels}


def _crossover(p: Params) -> Made:
    for network, against, d, k in crossovers(p):
        axes: dict[str, object] = {"network": network, "against": against, "embed_dim": d, "kernel": k}
        yield "cheaper_up_to", closed.cheaper_up_to(network, against, d, k or 1), axes


def _chain(p: Params) -> Made:
    for network in CHAINED:
        kernel = p.chain_kernel if network in WITH_KERNEL else None
        axes: dict[str, object] = {"network": network, "kernel": kernel}
        for n in p.chain_tokens:
            yield "sequential_steps", closed.sequential_steps(network, n), {**axes, "tokens": n}
        for distance in p.distances:
            length = closed.path_length(network, distance, p.chain_kernel)
            yield "path_length", length, {**axes, "tokens": distance + 1}
    for network in STORED:
        kernel = p.chain_kernel if network in WITH_KERNEL else None
        for n in stored_tokens(p):
            entries = closed.largest_tensor(network, n, p.chain_embed_dim, p.chain_kernel)
            yield "largest_tensor", entries, {"network": network, "kernel": kernel, "tokens": n}
        degree = 2 if network == "attention" else 1
        yield "largest_tensor_degree", degree, {"network": network, "variable": "tokens"}
