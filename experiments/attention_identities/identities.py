"""Equalities that are told of attention, each computed by two routes, and what must break them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional

from attnrepro.nn import masks
from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.conv_attention import as_tokens, convolution_layer, tap_masks
from attnrepro.nn.cross_attention import CrossAttention
from attnrepro.nn.graph_attention import edges_of, graph_attention
from attnrepro.nn.position import rotary, sinusoidal
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.tables.attention_identities.table import EPS, Params, sizes


class Sides(NamedTuple):
    """Two sides of an equality, their magnitude, and by how much more than eps their round-off is enlarged."""

    found: Tensor
    expected: Tensor
    scale: float
    enlarged: float = 1.0


@dataclass
class Source:
    """Random numbers of one draw: the same in every precision, drawn in float64 and then rounded."""

    stream: torch.Generator
    params: Params
    shape: str
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        self.length, self.embed_dim, self.num_heads = sizes(self.shape)

    def normal(self, *shape: int) -> Tensor:
        """Independent N(0, 1)."""
        return self.rounded(torch.randn(shape, generator=self.stream, dtype=torch.float64))

    def rounded(self, exact: Tensor) -> Tensor:
        """On the device and in the precision of the draw."""
        return exact.to(device=self.device, dtype=self.dtype)

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return int(torch.randint(low, high + 1, (), generator=self.stream))

    def permutation(self, length: int) -> Tensor:
        """An order that is not the one there is."""
        here = torch.arange(length)
        order = here
        while torch.equal(order, here):
            order = torch.randperm(length, generator=self.stream)
        return order.to(self.device)

    def filled(self, module: nn.Module) -> nn.Module:
        """The module with weights N(0, 1 / number of inputs)."""
        module = module.to(device=self.device, dtype=self.dtype).requires_grad_(False)
        for weight in module.parameters():
            weight.copy_(self.normal(*weight.shape) / math.sqrt(weight.shape[-1]))
        return module

    def layer(self) -> SelfAttention:
        """A self-attention layer of the shape."""
        layer = SelfAttention(self.embed_dim, self.num_heads)
        self.filled(layer)
        return layer

    def tokens(self) -> Tensor:
        """Tokens ``[length, embed_dim]``."""
        return self.normal(self.length, self.embed_dim)

    def enlarged(self, largest: int) -> float:
        """Round-off of an angle at this position, in units of eps: angles are in float64, and as large as positions."""
        return max(1.0, largest * EPS["float64"] / torch.finfo(self.dtype).eps)


def _top(x: Tensor) -> float:
    return float(x.abs().max())


def _sides(found: Tensor, expected: Tensor) -> Sides:
    return Sides(found, expected, _top(expected))


def _split(x: Tensor, num_heads: int) -> Tensor:
    """``[length, embed_dim]`` to ``[num_heads, length, head_dim]``, by cutting the components into heads."""
    return torch.stack(x.chunk(num_heads, dim=-1))


def _by_definition(score: Tensor) -> Tensor:
    """exp over the sum of exps, as the documents write softmax."""
    strength = score.exp()
    return strength / strength.sum(dim=-1, keepdim=True)


# --- weights ---


def row_sum(draw: Source, breaker: str) -> Sides:
    """Sums of the rows of weights, without a mask and under the causal one, against 1."""
    layer, x = draw.layer(), draw.tokens()
    causal = masks.causal(draw.length, device=draw.device)
    rows = [layer.weights(x), layer.weights(x, causal)]
    if breaker == "softmax_over_queries":
        logits = attention_logits(_split(layer.w_query(x), draw.num_heads), _split(layer.w_key(x), draw.num_heads))
        rows = [torch.softmax(logits, dim=-2)]
    elif breaker == "mask_after_softmax":
        rows = [layer.weights(x).masked_fill(~causal, 0.0)]
    sums = torch.stack(rows).sum(dim=-1)
    return Sides(sums, torch.ones_like(sums), 1.0)


def _first_head(layer: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value ``[length, head_dim]`` of the first head."""
    size = x.shape[-1] // layer.num_heads
    return layer.w_query(x)[:, :size], layer.w_key(x)[:, :size], layer.w_value(x)[:, :size]


def _mixed(draw: Source, breaker: str) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of a head by torch, the certificate (weights by definition) and the values; a breaker mixes wrongly."""
    query, key, value = _first_head(draw.layer(), draw.tokens())
    score = query @ key.T / math.sqrt(query.shape[-1])
    weights = _by_definition(score)
    out = functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
    if breaker == "unnormalised":
        out = score.exp() @ value
    elif breaker == "negative_weights":
        # Half as far again as the value that lies farthest from the centre: weights of sum 1, all but one negative.
        centre = value.mean(dim=0)
        far = value[(value - centre).square().sum(dim=-1).argmax()]
        out = (far + (far - centre) / 2).expand_as(out)
    elif breaker == "projected":
        out = out @ draw.normal(value.shape[-1], value.shape[-1])
    return out, weights, value


def convex_combination(draw: Source, breaker: str) -> Sides:
    """Outputs against the sum of values with weights that are positive and sum to one."""
    out, weights, value = _mixed(draw, breaker)
    return Sides(out, (weights[..., None] * value).sum(dim=-2), _top(value))


def coordinate_bound(draw: Source, breaker: str) -> Sides:
    """How far a component of an output lies outside the smallest and largest of the values: not at all."""
    out, _, value = _mixed(draw, breaker)
    beyond = torch.maximum(out - value.amax(dim=0), value.amin(dim=0) - out).clamp_min(0)
    return Sides(beyond, torch.zeros_like(beyond), _top(value))


def hull_distance(draw: Source, breaker: str) -> Sides:
    """Distance of each output from the hull of the values: nonnegative least squares, which never sees the weights."""
    out, _, value = _mixed(draw, breaker)
    scale = _top(value)
    corners = (value.double() / scale).cpu().numpy()
    points = (out.double() / scale).cpu().numpy()
    system = np.vstack([corners.T, np.ones(len(corners))])
    distance = torch.tensor([nnls(system, np.append(point, 1.0))[1] for point in points], dtype=torch.float64)
    return Sides(distance, torch.zeros_like(distance), 1.0)


# --- the causal mask ---


def _shifted(length: int, device: torch.device) -> Tensor:
    """A causal mask that lets one more position through."""
    position = torch.arange(length, device=device)
    return position <= position[:, None] + 1


def _causal(draw: Source, breaker: str) -> Tensor | None:
    """The causal mask, or a wrong one; a row that may attend to nothing stays empty."""
    mask = masks.causal(draw.length, device=draw.device)
    if breaker == "no_mask":
        return None
    return {"reversed": ~mask, "shifted_by_one": _shifted(draw.length, draw.device)}.get(breaker, mask)


def causal_zero(draw: Source, breaker: str) -> Sides:
    """Weights above the diagonal against 0."""
    layer, x = draw.layer(), draw.tokens()
    if breaker == "minus_ten":
        logits = attention_logits(_split(layer.w_query(x), draw.num_heads), _split(layer.w_key(x), draw.num_heads))
        later = ~masks.causal(draw.length, device=draw.device)
        weights = attention_weights(logits - 10.0 * later)
    else:
        weights = layer.weights(x, _causal(draw, breaker))
    above = weights.triu(1)
    return Sides(above, torch.zeros_like(above), 1.0)


class _Stack(nn.Module):
    """Two causal blocks and an output: the probabilities of the next token after each position."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SelfAttention(embed_dim, num_heads) for _ in range(2))
        self.hidden = nn.ModuleList(nn.Linear(embed_dim, embed_dim, bias=False) for _ in range(2))
        self.vocabulary = nn.Linear(embed_dim, 3 * embed_dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None, breaker: str) -> Tensor:
        """Probabilities ``[length, 3 embed_dim]``."""
        for layer, hidden in zip(self.layers, self.hidden, strict=True):
            if breaker == "mask_after_softmax":
                weights = layer.weights(x).masked_fill(~mask, 0.0)
                x = x + layer.w_out((weights @ _split(layer.w_value(x), layer.num_heads)).transpose(0, 1).flatten(1))
            else:
                x = x + layer(x, mask)
            over = (0,) if breaker == "norm_over_tokens" else (-1,)
            spread, centre = torch.std_mean(x, dim=over, keepdim=True, correction=0)
            x = (x - centre) / spread
            x = x + torch.relu(hidden(x))
        return torch.softmax(self.vocabulary(x), dim=-1)


def future(draw: Source, breaker: str) -> Sides:
    """Next-token probabilities up to a position, after every later token was replaced, against those before."""
    stack = _Stack(draw.embed_dim, draw.num_heads)
    draw.filled(stack)
    x, other, last = draw.tokens(), draw.tokens(), draw.integer(0, draw.length - 2)
    changed = torch.cat([x[: last + 1], other[last + 1 :]])
    mask = _causal(draw, breaker)
    before, after = (stack(tokens, mask, breaker)[: last + 1] for tokens in (x, changed))
    return _sides(after, before)


# --- scores and projections ---


def dot_cosine(draw: Source, breaker: str) -> Sides:
    """q.k over |q||k| against the cosine of an angle that is found without a dot product (Kahan: two arc tangents)."""
    query, key = draw.tokens()[:, None], draw.tokens()
    q_norm, k_norm = query.norm(dim=-1, keepdim=True), key.norm(dim=-1, keepdim=True)
    apart, along = (k_norm * query - q_norm * key).norm(dim=-1), (k_norm * query + q_norm * key).norm(dim=-1)
    angle = 2 * torch.atan2(apart, along)
    length = (q_norm * k_norm)[..., 0]
    cosine = angle.sin() if breaker == "sine" else angle.cos()
    if breaker == "without_norms":
        length = torch.ones_like(length)
    elif breaker == "sum_norms":
        length = (query.abs().sum(-1, keepdim=True) * key.abs().sum(-1, keepdim=True))[..., 0]
    return Sides((query * key).sum(dim=-1) / length, cosine, 1.0)


def score_entries(draw: Source, breaker: str) -> Sides:
    """Q K^T against the dot product of each pair: row i is word i asking, column j is word j being asked."""
    query, key = draw.tokens(), draw.tokens()
    scores = attention_logits(query, key, scaled=False)
    if breaker == "transposed":
        scores = scores.T
    elif breaker == "columns_moved":
        scores = scores.roll(1, dims=-1)
    pairs = torch.stack([torch.stack([(q * k).sum() for k in key]) for q in query])
    return _sides(scores, pairs)


def projections(draw: Source, breaker: str) -> Sides:
    """Queries, keys and values of all words at once against each word times its own three matrices."""
    layer, x = draw.layer(), draw.tokens()
    parts = [layer.w_query, layer.w_key, layer.w_value]
    used = [layer.w_query] * 3 if breaker == "one_matrix" else parts
    at_once = torch.cat([part(x) for part in used], dim=-1)
    if breaker == "matrix_transposed":
        at_once = torch.cat([x @ part.weight for part in parts], dim=-1)
    words = [torch.cat([(part.weight * word).sum(dim=-1) for part in parts]) for word in x]
    return _sides(at_once, torch.stack(words))


def three_steps(draw: Source, breaker: str) -> Sides:
    """Score, normalise, sum, one query after the other, against torch's attention."""
    layer, x = draw.layer(), draw.tokens()
    query, key, value = (_split(part(x), draw.num_heads) for part in (layer.w_query, layer.w_key, layer.w_value))
    if breaker == "keys_and_values_swapped":
        key, value = value, key
    root = 1.0 if breaker == "unscaled" else math.sqrt(query.shape[-1])
    rows = []
    for i in range(draw.length):
        score = (query[:, i, None] * key).sum(dim=-1) / root
        share = score if breaker == "no_softmax" else _by_definition(score)
        rows.append((share[..., None] * value).sum(dim=-2))
    parts = (_split(part(x), draw.num_heads)[None] for part in (layer.w_query, layer.w_key, layer.w_value))
    expected = functional.scaled_dot_product_attention(*parts, is_causal=breaker == "mask_left_out")[0]
    return _sides(torch.stack(rows, dim=1), expected)


def tied_scores(draw: Source, breaker: str) -> Sides:
    """Scores with W_Q = W_K against their transpose."""
    layer, x = draw.layer(), draw.tokens()
    asked = layer.w_key if breaker == "separate_matrices" else layer.w_query
    scores = attention_logits(_split(layer.w_query(x), draw.num_heads), _split(asked(x), draw.num_heads))
    if breaker == "softmaxed":
        scores = attention_weights(scores)
    return _sides(scores, scores.mT)


# --- two sequences ---


def cross_attention(draw: Source, breaker: str) -> Sides:
    """Attention from one sequence to a longer one with tokens of another size, against torch's module."""
    context_dim, n_context = draw.embed_dim + 3, draw.length + 4
    ours = CrossAttention(draw.embed_dim, context_dim, draw.num_heads)
    draw.filled(ours)
    theirs = nn.MultiheadAttention(
        draw.embed_dim, draw.num_heads, bias=False, kdim=context_dim, vdim=context_dim, batch_first=True
    ).to(device=draw.device, dtype=draw.dtype)
    theirs.q_proj_weight.copy_(ours.w_query.weight)
    theirs.k_proj_weight.copy_(ours.w_key.weight)
    theirs.v_proj_weight.copy_(ours.w_value.weight)
    theirs.out_proj.weight.copy_(ours.w_out.weight)
    x, context = draw.tokens(), draw.normal(n_context, context_dim)
    expected = theirs(x[None], context[None], context[None], need_weights=False)[0][0]
    if breaker == "softmax_over_queries":
        query, key, value = (
            _split(part, draw.num_heads) for part in (ours.w_query(x), ours.w_key(context), ours.w_value(context))
        )
        weights = torch.softmax(attention_logits(query, key), dim=-2)
        return _sides(ours.w_out((weights @ value).transpose(0, 1).flatten(1)), expected)
    if breaker == "context_cut":
        context = context[: draw.length]
    return _sides(ours(x, context), expected)


def self_as_cross(draw: Source, breaker: str) -> Sides:
    """Cross-attention of a sequence to itself against self-attention."""
    layer, x = draw.layer(), draw.tokens()
    cross = CrossAttention(draw.embed_dim, draw.embed_dim, draw.num_heads).to(device=draw.device, dtype=draw.dtype)
    cross.load_state_dict(layer.state_dict())
    context = draw.tokens() if breaker == "another_context" else x
    return _sides(cross(x, context), layer(x))


# --- bag of words ---


def _reordered(draw: Source, breaker: str) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of a sentence, of the same words in another order, and that order."""
    layer, x, order = draw.layer(), draw.tokens(), draw.permutation(draw.length)
    code = sinusoidal(draw.length, draw.embed_dim, dtype=draw.dtype, device=draw.device)
    added = code if breaker == "sinusoidal" else torch.zeros_like(code)
    mask = masks.causal(draw.length, device=draw.device) if breaker == "causal" else None
    return layer(x + added, mask), layer(x[order] + added, mask), order


def per_word(draw: Source, breaker: str) -> Sides:
    """What each word gets in another order of the sentence against what it got before."""
    before, after, order = _reordered(draw, breaker)
    return _sides(after, before if breaker == "same_positions" else before[order])


def pooled(draw: Source, breaker: str) -> Sides:
    """The mean over the sentence in another order against that before."""
    before, after, _ = _reordered(draw, breaker)
    return Sides(after.mean(dim=0), before.mean(dim=0), _top(before))


# --- position codes ---


def _code(draw: Source, length: int) -> Tensor:
    return sinusoidal(length, draw.embed_dim, dtype=draw.dtype, device=draw.device)


def _omega(draw: Source) -> Tensor:
    """Frequencies of the sinusoid, by logarithms."""
    pair = torch.arange(draw.embed_dim // 2, dtype=torch.float64)
    return torch.exp(-math.log(10000.0) * 2 * pair / draw.embed_dim)


def shift_rotation(draw: Source, breaker: str) -> Sides:
    """The code of t + k against the code of t with each pair turned by k times its frequency."""
    shift = draw.integer(1, draw.params.max_shift)
    code = _code(draw, draw.length + shift)
    omega = _omega(draw)
    if breaker == "one_frequency":
        omega = omega[:1].expand_as(omega)
    angle = omega * (-shift if breaker == "other_direction" else shift)
    sin, cos = draw.rounded(angle.sin()), draw.rounded(angle.cos())
    here = code[: draw.length]
    if breaker == "halves_paired":
        sine, cosine = here.chunk(2, dim=-1)
    else:
        sine, cosine = here[:, 0::2], here[:, 1::2]
    turned = torch.stack([sine * cos + cosine * sin, cosine * cos - sine * sin], dim=-1).flatten(-2)
    return Sides(turned, code[shift:], 1.0, draw.enlarged(draw.length + shift))


def distance_only(draw: Source, breaker: str) -> Sides:
    """Dot products of codes at s and t against those at s + k and t + k."""
    shift = draw.integer(1, draw.params.max_shift)
    code = _code(draw, draw.length + shift)
    if breaker == "random_code":
        code = draw.normal(*code.shape)
    other = code
    if breaker == "projected":
        other = code @ (draw.normal(draw.embed_dim, draw.embed_dim) / math.sqrt(draw.embed_dim))
    here, there = code[: draw.length] @ other[: draw.length].T, code[shift:] @ other[shift:].T
    return Sides(there, here, _top(here), draw.enlarged(draw.length + shift))


def rotary_distance(draw: Source, breaker: str) -> Sides:
    """Scores of rotated queries and keys at positions m, n against those at m + k, n + k."""
    shift = draw.integer(1, draw.params.max_shift)
    query, key = draw.tokens(), draw.tokens()
    scores = []
    for first in (0, shift):
        positions = torch.arange(first, first + draw.length, device=draw.device)
        if breaker == "added_code":
            code = _code(draw, draw.length + shift)[first : first + draw.length]
            scores.append((query + code) @ (key + code).T)
        else:
            asked = key if breaker == "queries_only" else rotary(key, positions)
            scores.append(rotary(query, positions) @ asked.T)
    return Sides(scores[1], scores[0], _top(scores[0]), draw.enlarged(draw.length + shift))


# --- convolution ---


def _kernel(draw: Source) -> Tensor:
    width = draw.params.kernel_width
    return draw.normal(draw.embed_dim, draw.embed_dim, width) / math.sqrt(draw.embed_dim * width)


def convolved(x: Tensor, kernel: Tensor, *, circular: bool) -> Tensor:
    """torch's convolution of ``[length, channels]`` to the same length."""
    reach = kernel.shape[-1] // 2
    padded = functional.pad(x.T[None], (reach, reach), mode="circular" if circular else "constant")
    # On a GPU float32 would else be convolved with 10 bits of mantissa.
    with torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
        return functional.conv1d(padded, kernel)[0].T


def _conv(draw: Source, breaker: str, *, circular: bool) -> Sides:
    kernel, x = _kernel(draw), draw.tokens()
    width = draw.params.kernel_width
    layer = convolution_layer(kernel.flip(-1) if breaker == "kernel_flipped" else kernel)
    wraps = circular is not (breaker == "other_padding")
    shift = 1 if breaker == "shifted_by_one" else 0
    taps = tap_masks(draw.length, width, circular=wraps, shift=shift, device=draw.device)
    if breaker == "one_window":  # every head looks at the whole window: the taps can no longer differ
        taps = taps.any(dim=0).expand_as(taps)
    found = layer(as_tokens(layer, x), taps)[:, : draw.embed_dim]
    return _sides(found, convolved(x, kernel, circular=circular))


def conv_circular(draw: Source, breaker: str) -> Sides:
    """Self-attention with a head for each tap against torch's convolution on a ring."""
    return _conv(draw, breaker, circular=True)


def conv_zeros(draw: Source, breaker: str) -> Sides:
    """The same with zeros beyond the ends."""
    return _conv(draw, breaker, circular=False)


def fit_one_head(windows: Tensor, target: Tensor) -> Tensor:
    """What one head makes of windows ``[n, width]``: one sign of weights and a gain, by least squares ``[n]``."""
    system, wanted = windows.double().cpu().numpy(), target.double().cpu().numpy()
    fits = [(sign, *nnls(system, sign * wanted)) for sign in (1, -1)]
    sign, weights, _ = min(fits, key=lambda fit: fit[2])
    return torch.from_numpy(system @ (sign * weights)).to(target)


def one_head_kernel(draw: Source, breaker: str) -> Sides:
    """The best single head of position-determined weights against a convolution with taps of one sign."""
    width = draw.params.kernel_width
    kernel = draw.normal(width).abs() + 0.5
    if breaker == "signed_kernel":
        kernel[width // 2] *= -1
    windows = draw.normal(16 * draw.length, width)
    target = windows @ kernel
    return _sides(fit_one_head(windows, target), target)


def convolution_matrix(kernel: Tensor, length: int, *, circular: bool) -> Tensor:
    """Matrix ``[length, length]`` of a convolution of one channel with taps ``[width]``, from its impulse responses."""
    impulses = torch.eye(length, dtype=kernel.dtype, device=kernel.device)
    columns = [convolved(impulse[:, None], kernel[None, None], circular=circular)[:, 0] for impulse in impulses]
    return torch.stack(columns, dim=1)


def circulant(draw: Source, breaker: str) -> Sides:
    """The matrix of a convolution on a ring against itself moved by one row and one column."""
    matrix = convolution_matrix(
        draw.normal(draw.params.kernel_width), draw.length, circular=breaker != "zeros_beyond_the_ends"
    )
    if breaker == "attention":
        matrix = draw.layer().weights(draw.tokens())[0]
    return _sides(matrix.roll((1, 1), dims=(0, 1)), matrix)


# --- graphs ---


def sparse_graph(draw: Source) -> Tensor:
    """A random adjacency with loops in which node 0 hears node 1 and not the reverse."""
    edges = torch.rand(draw.length, draw.length, generator=draw.stream) < 0.3
    edges.fill_diagonal_(True)
    edges[0, 1], edges[1, 0] = True, False
    return edges.to(draw.device)


def _graph(draw: Source, adjacency: Tensor, mask: Tensor | None, breaker: str) -> Sides:
    layer, x = draw.layer(), draw.tokens()
    edges = edges_of(adjacency)
    if breaker == "no_loops":
        edges = edges[:, edges[0] != edges[1]]
    elif breaker == "edge_missing":
        edges = edges[:, (edges != torch.tensor([[0], [1]], device=draw.device)).any(dim=0)]
    elif breaker == "edges_reversed":
        edges = edges.flip(0)
    return _sides(graph_attention(layer, x, edges), layer(x, mask))


def graph_complete(draw: Source, breaker: str) -> Sides:
    """Message passing over all pairs against attention without a mask."""
    everyone = torch.ones(draw.length, draw.length, dtype=torch.bool, device=draw.device)
    return _graph(draw, everyone, None, breaker)


def graph_local(draw: Source, breaker: str) -> Sides:
    """Message passing between neighbours against attention in a window."""
    near = masks.window(draw.length, draw.params.kernel_width, device=draw.device)
    return _graph(draw, near, near, breaker)


def graph_sparse(draw: Source, breaker: str) -> Sides:
    """Message passing on a given directed graph against attention under its adjacency."""
    given = sparse_graph(draw)
    return _graph(draw, given, given, breaker)


def graph_reflection(draw: Source, breaker: str) -> Sides:
    """A network on a ring of neighbours, run backwards: it cannot tell left from right, a convolution can."""
    layer, x = draw.layer(), draw.tokens()
    if breaker == "convolution":
        kernel = _kernel(draw)
        forwards, backwards = (convolved(tokens, kernel, circular=True) for tokens in (x, x.flip(0)))
        return _sides(backwards.flip(0), forwards)
    ring = edges_of(tap_masks(draw.length, draw.params.kernel_width, circular=True, device=draw.device).any(dim=0))
    return _sides(graph_attention(layer, x.flip(0), ring).flip(0), graph_attention(layer, x, ring))


IDENTITIES: dict[str, Callable[[Source, str], Sides]] = {
    one.__name__: one
    for one in (
        *(row_sum, convex_combination, coordinate_bound, hull_distance, causal_zero, future, dot_cosine, score_entries),
        *(projections, three_steps, tied_scores, cross_attention, self_as_cross, per_word, pooled, shift_rotation),
        *(distance_only, rotary_distance, conv_circular, conv_zeros, one_head_kernel, circulant, graph_complete),
        *(graph_local, graph_sparse, graph_reflection),
    )
}
