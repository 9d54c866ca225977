"""What is counted: dependences, shapes and lengths, and whatever else is told of attention without an equation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnrepro.nn import masks
from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.conv_attention import tap_masks
from attnrepro.nn.cross_attention import CrossAttention
from attnrepro.nn.graph_attention import edges_of, graph_attention
from attnrepro.nn.position import sinusoidal
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.tables.attention_identities import table
from attnrepro.tables.attention_identities.identities import Source, convolution_matrix, sparse_graph

# Classes of the tasks of document 002.
CLASSES = 5


class Count(NamedTuple):
    """How many of so many things are otherwise than is said."""

    wrong: int
    looked_at: int


def _count(found: Tensor, expected: Tensor) -> Count:
    return Count(int((found != expected).sum()), found.numel())


def _depends(out: Tensor, x: Tensor) -> Tensor:
    """Boolean ``[rows of out, rows of x]``: which rows have a derivative, of a sum with weights that cancel nothing."""
    blind = torch.linspace(1, 2, out.shape[-1], dtype=out.dtype, device=out.device).sqrt()
    rows = []
    for row in out:
        (slope,) = torch.autograd.grad((row * blind).sum(), x, retain_graph=True, allow_unused=True)
        rows.append(torch.zeros(len(x), device=x.device) if slope is None else slope.abs().amax(dim=-1))
    return torch.stack(rows) > 0


def _ordered(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    position = torch.arange(length, device=device)
    return position[:, None], position[None, :]


def _causal(draw: Source, breaker: str) -> Tensor | None:
    made = masks.causal(draw.length, device=draw.device)
    query, key = _ordered(draw.length, draw.device)
    wrong = {"reversed": ~made, "shifted_by_one": key <= query + 1, "strict": key < query}
    return None if breaker == "no_mask" else wrong.get(breaker, made)


def _heads(draw: Source, layer: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Leaves of the graph: queries, keys and values of the first head."""
    size = draw.embed_dim // draw.num_heads
    parts = (layer.w_query, layer.w_key, layer.w_value)
    query, key, value = (part(x)[:, :size].detach().requires_grad_() for part in parts)
    return query, key, value


# --- weights and masks ---


def weights_nonnegative(draw: Source, breaker: str) -> Count:
    """Weights below zero."""
    layer, x = draw.layer(), draw.tokens()
    weights = layer.weights(x)
    if breaker == "scores_normalised":
        query, key, _ = _heads(draw, layer, x)
        scores = attention_logits(query, key)
        weights = scores / scores.sum(dim=-1, keepdim=True)
    return Count(int((weights < 0).sum()), weights.numel())


def content_decides(draw: Source, breaker: str) -> Count:
    """Rows of weights that stay what they are when every token is another one at its place."""
    layer, x, other = draw.layer(), draw.tokens(), draw.tokens()
    if breaker == "positions_decide":
        code = sinusoidal(draw.length, draw.embed_dim, dtype=draw.dtype, device=draw.device)
        x = other = code
    before, after = layer.weights(x), layer.weights(other)
    same = (before == after).all(dim=-1)
    return Count(int(same.sum()), same.numel())


def closed_pairs(draw: Source) -> int:
    """Pairs of a query and a key that the causal mask leaves without any weight in the first head."""
    weights = draw.layer().weights(draw.tokens(), masks.causal(draw.length, device=draw.device))
    return int((weights[0] == 0).sum())


def causal_closed(draw: Source, breaker: str) -> Count:
    """Cells of the table of weights: zero right of the diagonal, and nowhere else."""
    weights = draw.layer().weights(draw.tokens(), _causal(draw, breaker))
    query, key = _ordered(draw.length, draw.device)
    return _count(weights == 0, (key > query).expand_as(weights))


def causal_dependence(draw: Source, breaker: str) -> Count:
    """Pairs (i, j): output i has a derivative by token j where j <= i, and nowhere else."""
    layer, x = draw.layer(), draw.tokens().requires_grad_()
    query, key = _ordered(draw.length, draw.device)
    return _count(_depends(layer(x, _causal(draw, breaker)), x), key <= query)


def score_index(draw: Source, breaker: str) -> Count:
    """Cells of the table of scores that follow word i's query: its row; that follow word j's key: its column."""
    query, key, _ = _heads(draw, draw.layer(), draw.tokens())

    def scores(query: Tensor, key: Tensor) -> Tensor:
        made = attention_logits(query, key, scaled=False)
        return made.T if breaker == "transposed" else made

    i, j = draw.integer(0, draw.length - 1), draw.integer(0, draw.length - 1)
    row, column = _ordered(draw.length, draw.device)
    counts = []
    for word, which, line in ((i, 0, row), (j, 1, column)):
        moves = [torch.zeros_like(query), torch.zeros_like(key)]
        moves[which][word] = draw.normal(query.shape[-1])
        _, slopes = torch.func.jvp(scores, (query, key), tuple(moves))
        counts.append(_count(slopes != 0, (line == word).expand_as(slopes)))
    asked, compared = counts
    return Count(asked.wrong + compared.wrong, asked.looked_at + compared.looked_at)


# --- roles ---


def role_query(draw: Source, breaker: str) -> Count:
    """Outputs that follow a query: its own and no other."""
    query, key, value = _heads(draw, draw.layer(), draw.tokens())
    asking, asked = (key, query) if breaker == "query_and_key_swapped" else (query, key)
    out = attention_weights(attention_logits(asking, asked)) @ value
    return _count(_depends(out, query), torch.eye(draw.length, dtype=torch.bool, device=draw.device))


def role_key(draw: Source, breaker: str) -> Count:
    """Rows of weights that follow a key: all of them, for it is compared with every query."""
    query, key, _ = _heads(draw, draw.layer(), draw.tokens())
    strength = 0.0 if breaker == "uniform_weights" else 1.0
    weights = attention_weights(strength * attention_logits(query, key))
    follows = _depends(weights, key)
    return _count(follows, torch.ones_like(follows))


def role_value(draw: Source, breaker: str) -> Count:
    """Slopes of outputs by values: the weight, whatever the value is, because values are carried and not compared."""
    query, key, value = _heads(draw, draw.layer(), draw.tokens())
    compared = value if breaker == "values_also_compared" else key
    weights = attention_weights(attention_logits(query, compared))
    slopes = torch.stack([torch.autograd.grad(row[0], value, retain_graph=True)[0][:, 0] for row in weights @ value])
    tolerance = table.HOLDS_EPS * torch.finfo(value.dtype).eps
    wrong = (slopes - weights).abs() > tolerance
    return Count(int(wrong.sum()), wrong.numel())


# --- one sequence and another ---


def cross_sources(draw: Source, breaker: str) -> Count:
    """Outputs of cross-attention follow their own query and the whole context, and no other query."""
    layer = CrossAttention(draw.embed_dim, draw.embed_dim, draw.num_heads)
    draw.filled(layer)
    x, context = draw.tokens().requires_grad_(), draw.normal(draw.length + 4, draw.embed_dim).requires_grad_()
    if breaker == "self_attention_over_both":
        both = torch.cat([x, context])
        out = layer(both, both)[: draw.length]
    else:
        out = layer(x, context)
    own = _count(_depends(out, x), torch.eye(draw.length, dtype=torch.bool, device=draw.device))
    asked = _depends(out, context)
    other = _count(asked, torch.ones_like(asked))
    return Count(own.wrong + other.wrong, own.looked_at + other.looked_at)


def _sized(out: Tensor, *expected: int) -> Count:
    return Count(int(tuple(out.shape) != expected), 1)


def task_sequence(draw: Source, breaker: str) -> Count:
    """Sequence to sequence: as many outputs as are asked for, whatever the length of the input."""
    wanted, x = draw.length + 4, draw.tokens()
    if breaker == "self_attention_alone":
        return _sized(draw.layer()(x), wanted, draw.embed_dim)
    layer = CrossAttention(draw.embed_dim, draw.embed_dim, draw.num_heads)
    draw.filled(layer)
    return _sized(layer(draw.normal(wanted, draw.embed_dim), x), wanted, draw.embed_dim)


def _labelled(draw: Source) -> tuple[nn.Module, Tensor]:
    head = draw.filled(nn.Linear(draw.embed_dim, CLASSES, bias=False))
    return head, draw.layer()(draw.tokens())


def task_labels(draw: Source, breaker: str) -> Count:
    """Sequence labelling: a label for each token."""
    head, out = _labelled(draw)
    return _sized(head(out.mean(dim=0) if breaker == "pooled" else out), draw.length, CLASSES)


def task_one(draw: Source, breaker: str) -> Count:
    """Sequence to one: a single label."""
    head, out = _labelled(draw)
    return _sized(head(out if breaker == "not_pooled" else out.mean(dim=0)), CLASSES)


# --- graphs ---


def attention_graph(draw: Source, breaker: str) -> Count:
    """Self-attention: every node hears every node."""
    layer, x = draw.layer(), draw.tokens().requires_grad_()
    mask = masks.window(draw.length, 1, device=draw.device) if breaker == "window" else None
    heard = _depends(layer(x, mask), x)
    return _count(heard, torch.ones_like(heard))


def network_graph(draw: Source, breaker: str) -> Count:
    """A graph network: every node hears whom the given graph says."""
    layer, x, given = draw.layer(), draw.tokens().requires_grad_(), sparse_graph(draw)
    edges = edges_of(given.T if breaker == "edges_reversed" else given)
    return _count(_depends(graph_attention(layer, x, edges), x), given)


def convolution_graph(draw: Source, breaker: str) -> Count:
    """A convolution: every node hears its neighbours."""
    width = draw.params.kernel_width
    kernel, x = draw.normal(draw.embed_dim, draw.embed_dim, width), draw.tokens().requires_grad_()
    step = 2 if breaker == "dilated" else 1
    out = functional.conv1d(x.T[None], kernel, padding=step * (width // 2), dilation=step)[0].T
    query, key = _ordered(draw.length, draw.device)
    return _count(_depends(out, x), (query - key).abs() <= width // 2)


FACTS: dict[str, Callable[[Source, str], Count]] = {
    one.__name__: one
    for one in (
        *(weights_nonnegative, content_decides, causal_closed, causal_dependence, score_index, role_query, role_key),
        *(role_value, cross_sources, task_sequence, task_labels, task_one, attention_graph, network_graph),
        *(convolution_graph,),
    )
}


# --- position codes ---


def code_distances(shape: str, breaker: str) -> Tensor:
    """Distances of all pairs of rows of the sinusoid in float64; ``whole_turns`` lets all frequencies go round."""
    length, embed_dim = table.code_sizes(shape)
    code = sinusoidal(length, embed_dim, dtype=torch.float64)
    if breaker == "whole_turns":
        angle = 2 * math.pi * torch.arange(length, dtype=torch.float64)[:, None]
        turned = angle * torch.arange(1, embed_dim // 2 + 1, dtype=torch.float64)
        code = torch.stack([turned.sin(), turned.cos()], dim=-1).flatten(-2)
    return torch.pdist(code)


def codes_distinct(shapes: list[str], breaker: str) -> Count:
    """Pairs of positions whose codes differ by no more than the rounding of their angles."""
    wrong = pairs = 0
    for shape in shapes:
        length, embed_dim = table.code_sizes(shape)
        distance = code_distances(shape, breaker)
        rounding = table.HOLDS_EPS * table.EPS["float64"] * length * embed_dim
        wrong, pairs = wrong + int((distance <= rounding).sum()), pairs + distance.numel()
    return Count(wrong, pairs)


def _refused(make: Callable[[int], Tensor], length: int, embed_dim: int) -> bool:
    try:
        code = make(length)
    except IndexError:
        return True
    return tuple(code.shape) != (length, embed_dim) or not bool(code.isfinite().all())


def lengths(p: table.Params, which: str, breaker: str) -> Count:
    """Lengths of a text that a code refuses otherwise than is said: a sinusoid none, a table what is beyond its end."""
    learned = nn.Embedding(p.table_length, p.code_dim)

    def look_up(length: int) -> Tensor:
        position = torch.arange(length)
        out: Tensor = learned(position % p.table_length if breaker == "wrapped_around" else position)
        return out

    def wave(length: int) -> Tensor:
        return sinusoidal(length, p.code_dim, dtype=torch.float64)

    make = wave if which == "sinusoid_length" and not breaker else look_up
    wrong = 0
    for length in p.code_lengths:
        beyond = which == "learned_length" and length > p.table_length
        wrong += _refused(make, length, p.code_dim) is not beyond
    return Count(wrong, len(p.code_lengths))


def frequency_share(embed_dim: int) -> float:
    """Different frequencies of the sinusoid for each of its components.

    Each component is read by itself: whatever its phase, f(n + 1) + f(n - 1) = 2 cos(w) f(n) for a wave of frequency w.
    """
    before, here, after = sinusoidal(4, embed_dim, dtype=torch.float64)[1:]
    cosines, _ = ((before + after) / (2 * here)).sort()
    # Neighbouring frequencies of 512 components still differ by 4e-10 in their cosine, readings of one by 1e-14.
    return (1 + int((cosines.diff() > 1e-11).sum())) / embed_dim


# --- matrices and weightings ---


def matrices(draw: Source) -> Iterator[tuple[str, Tensor]]:
    """Matrices ``[length, length]`` that mix positions, by the names of ``table.MATRICES``."""
    kernel = draw.normal(draw.params.kernel_width)
    yield "circular_convolution", convolution_matrix(kernel, draw.length, circular=True)
    yield "padded_convolution", convolution_matrix(kernel, draw.length, circular=False)
    ring = tap_masks(draw.length, draw.length | 1, circular=True, device=draw.device).to(draw.dtype)[: draw.length]
    yield "position_attention", attention_weights((draw.normal(draw.length)[:, None, None] * ring).sum(dim=0))
    yield "attention", draw.layer().weights(draw.tokens())[0]


def displacement_rank(matrix: Tensor) -> int:
    """Rank of a matrix minus itself moved by one row and one column around both ends, up to rounding of the matrix."""
    rounding = table.HOLDS_EPS * torch.finfo(matrix.dtype).eps * float(torch.linalg.matrix_norm(matrix))
    return int(torch.linalg.matrix_rank(matrix - matrix.roll((1, 1), dims=(0, 1)), atol=rounding, rtol=0.0))


def sparsemax(scores: Tensor) -> Tensor:
    """Nearest point of the simplex in each row (Martins and Astudillo 2016, algorithm 1)."""
    ordered, _ = scores.sort(dim=-1, descending=True)
    rank = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype, device=scores.device)
    cut = (ordered.cumsum(dim=-1) - 1) / rank
    support = (ordered > cut).sum(dim=-1, keepdim=True)
    return (scores - cut.gather(-1, support - 1)).clamp_min(0)


def weightings(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Weights of every kind in ``table.WEIGHTINGS``, after those of softmax."""
    scores = attention_logits(query, key)
    apart = (query[:, None] - key).square().sum(dim=-1)
    positive = {
        "distance_kernel": torch.exp(-apart / (2 * query.shape[-1])),
        "squared_scores": scores.square(),
        "softplus_scores": functional.softplus(scores),
    }
    made = {name: strength / strength.sum(dim=-1, keepdim=True) for name, strength in positive.items()}
    return {"softmax": attention_weights(scores), **made, "sparsemax": sparsemax(scores)}


def qualifying_weightings(draw: Source) -> int:
    """Different weightings that average, follow the content, are not negative and sum to one."""
    layer, x, other = draw.layer(), draw.tokens(), draw.tokens()
    before = weightings(*_heads(draw, layer, x)[:2])
    after = weightings(*_heads(draw, layer, other)[:2])
    rounding = table.HOLDS_EPS * torch.finfo(x.dtype).eps
    qualified: list[Tensor] = []
    for name, weights in before.items():
        sums_to_one = bool(((weights.sum(dim=-1) - 1).abs() <= rounding).all())
        follows = float((weights - after[name]).abs().max()) > 1e3 * rounding
        new = all(float((weights - one).abs().max()) > 1e3 * rounding for one in qualified)
        if sums_to_one and follows and new and bool((weights >= 0).all()):
            qualified.append(weights)
    return len(qualified)
