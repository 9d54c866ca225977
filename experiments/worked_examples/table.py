"""worked_examples, the torch-free half: parameters and decimal theory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import decimal_attention as paper

NAME = "worked_examples"
AXES = (
    *("example", "query", "token", "mask", "component", "head_dim"),
    *("module", "embed_dim", "num_layers", "num_heads", "head"),
)
# torch's layer, ours, and one whose heads keep their width, so that more of them cost more.
MODULES = ("torch", "self_attention", "fixed_head_dim")
# Names of the variances that draws are held against theory by.
VARIANCES = ("dot_product_variance", "logit_variance", "variance_standard_error")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/worked_examples.yaml`` says what each means."""

    study: str
    example: str
    sentence: list[str]
    tokens: list[str]
    query_tokens: list[str]
    scores: list[str]
    query: list[str]
    key: list[str]
    value: list[str]
    head_dims: list[int]
    masks: list[str]
    n_draws: int
    variance_dim: int
    n_printed: int
    embed_dim: int
    num_heads: list[int]
    num_layers: list[int]
    traced_heads: int
    fixed_head_dim: int
    stacks: list[str]
    length: int

    def __post_init__(self) -> None:
        one_of(self, study=("example", "variance", "heads"), masks=("none", "causal"))
        distinct(self, "sentence", "tokens", "query_tokens", "head_dims", "masks", "num_heads", "num_layers", "stacks")
        in_range(self, head_dims=(1, 65536), n_draws=(1000, 10**12), variance_dim=(1, 65536), n_printed=(2, 10**12))
        in_range(self, embed_dim=(1, 65536), num_heads=(1, 65536), num_layers=(1, 1000), fixed_head_dim=(1, 65536))
        in_range(self, traced_heads=(2, 65536), length=(2, 64))
        self._check_example()
        for heads in [*self.num_heads, self.traced_heads]:
            if self.embed_dim % heads:
                raise ValueError(
                    f"embed_dim={self.embed_dim} must be a multiple of each number of heads, unlike {heads}"
                )
        for stack in self.stacks:
            if not re.fullmatch(r"[1-9]\d{0,2}x[1-9]\d{0,2}", stack):
                raise ValueError(f"stacks={stack} must be layers x heads, as in 2x3")

    def _check_example(self) -> None:
        for name in ("tokens", "query_tokens"):
            for token in getattr(self, name):
                if token not in self.sentence:
                    raise ValueError(f"{name}={token} must stand in the sentence")
        rows, columns = len(self.query_tokens), len(self.tokens)
        if bool(self.scores) == bool(self.query) or bool(self.query) != bool(self.key):
            raise ValueError("scores must be given, or else query and key")
        if self.scores:
            _check_matrix("scores", self.scores, rows, columns)
        else:
            width = len(paper.numbers(self.query[0]))
            _check_matrix("query", self.query, rows, width)
            _check_matrix("key", self.key, columns, width)
            if self.head_dims != [width]:
                raise ValueError(f"head_dims={self.head_dims} must be the length of the query vectors, {width}")
        if self.value:
            _check_matrix("value", self.value, columns, len(paper.numbers(self.value[0])))


def _check_matrix(name: str, rows: Sequence[str], height: int, width: int) -> None:
    if len(rows) != height:
        raise ValueError(f"{name}={len(rows)} rows must be {height}")
    for row in rows:
        if len(paper.numbers(row)) != width:
            raise ValueError(f"{name}={row} must hold {width} numbers")


def stack_sizes(stack: str) -> tuple[int, int]:
    """Layers and heads of a stack such as ``12x12``."""
    layers, heads = map(int, stack.split("x"))
    return layers, heads


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study == "variance":
        return 0.5 + len(cell.seeds) * p.n_draws * (2 * p.variance_dim * 12e-9 + 30e-9)
    return 2.0 if p.study == "heads" else 0.3


# --- exact ---


def theory(cell: Cell) -> list[Row]:
    """Decimal arithmetic for the examples, closed forms for the rest."""
    p = cell.params
    if p.study == "example":
        return list(_example(p))
    return list(_variance(p) if p.study == "variance" else _heads(p))


def _exact(quantity: str, value: Decimal | float, axes: Mapping[str, object], statistic: str = "exact") -> Row:
    return Row(quantity, float(value), axes, source="theory", statistic=statistic)


def _example(p: Params) -> Iterator[Row]:
    place = {token: index for index, token in enumerate(p.sentence)}
    values = [paper.numbers(row) for row in p.value]
    if p.scores:
        dots = [paper.numbers(row) for row in p.scores]
    else:
        keys = [paper.numbers(row) for row in p.key]
        dots = [[paper.dot(paper.numbers(row), key) for key in keys] for row in p.query]
    for query, row in zip(p.query_tokens, dots, strict=True):
        at: dict[str, object] = {"example": p.example, "query": query}
        for token, score in zip(p.tokens, row, strict=True):
            yield _exact("dot_product", score, {**at, "token": token})
        yield _exact("scored_after_query", sum(place[token] > place[query] for token in p.tokens), at)
    for head_dim in p.head_dims:
        logits = [[paper.scaled(score, head_dim) for score in row] for row in dots]
        for mask in p.masks:
            seen = [
                [
                    None if mask == "causal" and place[token] > place[query] else logit
                    for token, logit in zip(p.tokens, row, strict=True)
                ]
                for query, row in zip(p.query_tokens, logits, strict=True)
            ]
            weights = [paper.softmax(row) for row in seen]
            yield from _attention(p, head_dim, mask, logits, weights, values)


def _attention(
    p: Params,
    head_dim: int,
    mask: str,
    logits: Sequence[Sequence[Decimal]],
    weights: Sequence[Sequence[Decimal]],
    values: Sequence[Sequence[Decimal]],
) -> Iterator[Row]:
    outputs = [paper.mix(row, values) for row in weights] if values else []
    for i, query in enumerate(p.query_tokens):
        at: dict[str, object] = {"example": p.example, "query": query, "head_dim": head_dim}
        for j, token in enumerate(p.tokens):
            if mask == p.masks[0]:
                yield _exact("logit", logits[i][j], {**at, "token": token})
            yield _exact("weight", weights[i][j], {**at, "token": token, "mask": mask})
        yield _exact("weights_sum", 1.0, {**at, "mask": mask})
        for index, value in enumerate(outputs[i] if outputs else ()):
            yield _exact("output", value, {**at, "mask": mask, "component": index + 1})
    if outputs and len(outputs) == len(values):
        moved = paper.largest_distance(outputs, values)
        yield _exact("output_minus_value", moved, {"example": p.example, "head_dim": head_dim, "mask": mask})


def _variance(p: Params) -> Iterator[Row]:
    at = {"head_dim": p.variance_dim}
    yield _exact("dot_product_variance", p.variance_dim, at, "value")
    yield _exact("logit_variance", 1.0, at, "value")
    yield _exact("variance_standard_error", paper.variance_standard_error(p.variance_dim, p.n_printed), at, "value")


def _heads(p: Params) -> Iterator[Row]:
    d = p.embed_dim
    for layers in p.num_layers:
        for heads in p.num_heads:
            counts = (4 * d * d + 4 * d, 4 * d * d, 4 * d * heads * p.fixed_head_dim)
            for module, count in zip(MODULES, counts, strict=True):
                at = {"module": module, "embed_dim": d, "num_layers": layers, "num_heads": heads}
                yield _exact("parameters", layers * count, at)
    for heads in p.num_heads:
        yield _exact("head_dim", d // heads, {"embed_dim": d, "num_heads": heads})
    own: dict[str, object] = {"embed_dim": d, "num_heads": p.traced_heads}
    width = d // p.traced_heads
    for head in range(p.traced_heads):
        yield _exact("slice_first", head * width + 1, {**own, "head": head + 1})
        yield _exact("slice_last", (head + 1) * width, {**own, "head": head + 1})
    yield _exact("slice_mismatches", 0.0, own)
    yield _exact("inputs_read", d, own)
    yield _exact("scoring_rank", width, own)
    for stack in p.stacks:
        layers, heads = stack_sizes(stack)
        yield _exact("attention_maps", layers * heads, {"num_layers": layers, "num_heads": heads})
