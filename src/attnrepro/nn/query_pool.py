"""One learned query that pools a sequence with linear keys and values (document 000, the 8-token task).

A pool's logit for a sequence is

    sum_j softmax_j((W_K^T x_j · q) / sqrt(width)) (W_V^T x_j · w_o) + b.

Neither W_K and q nor W_V and w_o ever meet anything between them, so the pool is folded: u = W_K q / sqrt(width) and
w = W_V w_o are vectors of the content space, and all that a position encoding does is to add to the dot products
x_j · u and x_j · w a number for each position. Folded pools of many seeds and strengths read the same sequences with
one matrix product (`pool`), while W_K, q, W_V and w_o stay the parameters that the optimiser moves.

Tensors are position-first and sequences last: content is ``[seeds, length, embed_dim, n]``, so that softmax over the
positions runs over slabs ``[members, n]`` that lie in one piece however few members there are.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnrepro.nn.position import rotary


class Folded(NamedTuple):
    """What a stack of pools comes down to, M members for each seed.

    ``key`` ``[seeds, 1 or length, M, embed_dim]`` (one for all positions, or one each), ``key_position``
    ``[seeds, length, M]``, ``value`` ``[seeds, 1, M, embed_dim]``, ``value_position`` ``[seeds, length, M]``, ``bias``
    ``[seeds, M]``.
    """

    key: Tensor
    key_position: Tensor
    value: Tensor
    value_position: Tensor
    bias: Tensor

    def of(self, seeds: slice) -> "Folded":
        """The pools of some seeds."""
        return Folded(*(part[seeds] for part in self))


def join(pools: list[Folded]) -> Folded:
    """Stacks of pools side by side: their members read the same sequences."""
    if len(pools) == 1:
        return pools[0]
    positions = max(pool.key.shape[1] for pool in pools)
    key = torch.cat([pool.key.expand(-1, positions, -1, -1) for pool in pools], 2)
    key_position, value, value_position, bias = (
        torch.cat(parts, 2 if parts[0].ndim == 4 else -1) for parts in zip(*(p[1:] for p in pools), strict=True)
    )
    return Folded(key, key_position, value, value_position, bias)


def pool(content: Tensor, folded: Folded) -> Tensor:
    """Logits ``[seeds, M, n]`` of every member for the sequences of its seed, ``[seeds, length, embed_dim, n]``.

    First derivatives only (a second one raises RuntimeError), and none for the content.
    """
    pooled: Tensor = _Pool.apply(content, *folded[:4])  # type: ignore[no-untyped-call]
    return pooled + folded.bias[..., None]


class _Pool(torch.autograd.Function):
    """Softmax pooling with its gradient written out: autograd's own keeps and walks twice as many slabs."""

    @staticmethod
    def forward(
        ctx: Any, content: Tensor, key: Tensor, key_position: Tensor, value: Tensor, value_position: Tensor
    ) -> Tensor:
        weights = (key @ content).add_(key_position[..., None])
        weights.sub_(weights.amax(1, keepdim=True)).exp_()
        total = weights.sum(1)
        values = (value @ content).add_(value_position[..., None])
        pooled = (weights * values).sum(1).div_(total)
        ctx.save_for_backward(content, weights, values, total, pooled)
        ctx.positions = key.shape[1]
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        content, weights, values, total, pooled = ctx.saved_tensors
        by_value = weights * (gradient / total)[:, None]
        by_logit = (values - pooled[:, None]).mul_(by_value)
        key = by_logit @ content.mT
        return (
            None,
            key if ctx.positions > 1 else key.sum(1, keepdim=True),
            by_logit.sum(-1),
            (by_value @ content.mT).sum(1, keepdim=True),
            by_value.sum(-1),
        )


class QueryPools(nn.Module):
    """Stacked parameters of single-query pools, ``[seeds, members]`` first; the members of a seed start equal.

    All weights start as N(0, 1/width), the output bias at zero. Every draw comes from the seed's own generator, in
    the order W_K, q, W_V, w_o, so that a seed starts the same in whatever company.

    Args:
        generators: one for each seed.
        members: pools for each seed.
        length: of the sequences.
        width: of keys, query and values; also of the tokens they read.
    """

    def __init__(self, generators: list[torch.Generator], members: int, length: int, width: int) -> None:
        super().__init__()
        self.length, self.width = length, width

        def start(*shape: int) -> nn.Parameter:
            drawn = torch.stack([torch.randn(shape, generator=g) for g in generators]) / math.sqrt(width)
            return nn.Parameter(drawn[:, None].repeat(1, members, *[1] * len(shape)))

        self.w_key = start(width, width)
        self.query = start(width)
        self.w_value = start(width, width)
        self.w_out = start(width)
        self.bias = nn.Parameter(torch.zeros(len(generators), members))

    def fold(self) -> Folded:
        """The pools in the space of tokens without positions; subclasses add what their encoding does."""
        return self._folded(self.key_direction(), self.value_direction())

    def key_direction(self) -> Tensor:
        """u = W_K q / sqrt(width), ``[seeds, members, width]``."""
        return torch.einsum("smij,smj->smi", self.w_key, self.query) / math.sqrt(self.width)

    def value_direction(self) -> Tensor:
        """w = W_V w_o, ``[seeds, members, width]``."""
        return torch.einsum("smij,smj->smi", self.w_value, self.w_out)

    def _folded(
        self, key: Tensor, value: Tensor, key_position: Tensor | None = None, value_position: Tensor | None = None
    ) -> Folded:
        """From ``[seeds, (length,) members, embed_dim]`` directions; positions without an effect add zero."""
        nothing = torch.zeros_like(self.bias)[:, None].expand(-1, self.length, -1)
        positions = [nothing if p is None else p for p in (key_position, value_position)]
        return Folded(key if key.ndim == 4 else key[:, None], positions[0], value[:, None], positions[1], self.bias)


class AddedCode(QueryPools):
    """A fixed code, times a strength, added to the tokens: to keys and values, or to the keys only.

    Args:
        code: ``[1 or seeds, length, embed_dim]`` at strength 1.
        strength: of each member, ``[members]``.
        in_values: whether the member's values see the code, ``[members]``.
    """

    def __init__(
        self, generators: list[torch.Generator], code: Tensor, strength: list[float], in_values: list[bool]
    ) -> None:
        super().__init__(generators, len(strength), *code.shape[1:])
        self.code = nn.Buffer(code)
        self.strength = nn.Buffer(torch.tensor(strength))
        self.in_values = nn.Buffer(torch.tensor(in_values, dtype=torch.float32))

    def fold(self) -> Folded:
        """``(x_j + strength p_j) · u`` and the same for w."""
        key, value = self.key_direction(), self.value_direction()
        code = self.code.expand(len(key), -1, -1)
        return self._folded(
            key, value, code @ key.mT * self.strength, code @ value.mT * (self.strength * self.in_values)
        )


class LearnedCode(QueryPools):
    """A learned code added to keys and values; a member's strength is the scale of its start, N(0, strength²/2)."""

    def __init__(self, generators: list[torch.Generator], length: int, embed_dim: int, strength: list[float]) -> None:
        super().__init__(generators, len(strength), length, embed_dim)
        drawn = torch.stack([torch.randn(length, embed_dim, generator=g) for g in generators])
        start = drawn[:, None] * torch.tensor(strength)[:, None, None] / math.sqrt(2)
        self.code = nn.Parameter(start)

    def fold(self) -> Folded:
        """``(x_j + p_j) · u`` with the member's own p."""
        key, value = self.key_direction(), self.value_direction()
        by_position = [torch.einsum("smld,smd->slm", self.code, direction) for direction in (key, value)]
        return self._folded(key, value, *by_position)


class ConcatCode(QueryPools):
    """A fixed code, times a strength, beside the tokens: keys and values read [x_j, strength p_j].

    Args:
        code: ``[1 or seeds, length, code_dim]`` at strength 1.
    """

    def __init__(self, generators: list[torch.Generator], embed_dim: int, code: Tensor, strength: list[float]) -> None:
        super().__init__(generators, len(strength), code.shape[1], embed_dim + code.shape[2])
        self.embed_dim = embed_dim
        self.code = nn.Buffer(code)
        self.strength = nn.Buffer(torch.tensor(strength))

    def fold(self) -> Folded:
        """``x_j · u_content + strength p_j · u_code``."""
        key, value = self.key_direction(), self.value_direction()
        code, d = self.code.expand(len(key), -1, -1), self.embed_dim
        by_position = [code @ direction[..., d:].mT * self.strength for direction in (key, value)]
        return self._folded(key[..., :d], value[..., :d], *by_position)


class RotaryKeys(QueryPools):
    """Keys turned by their position (Su et al. 2021); the query stands at position 0.

    With ``key_bias`` the keys are W_K^T x_j + b_K: only the turned b_K gives a logit of position alone.
    """

    def __init__(self, generators: list[torch.Generator], length: int, embed_dim: int, *, key_bias: bool) -> None:
        super().__init__(generators, 1, length, embed_dim)
        self.key_bias = nn.Parameter(torch.zeros(len(generators), 1, embed_dim)) if key_bias else None

    def fold(self) -> Folded:
        """The query turned back for each position takes the place of the turned keys."""
        positions = -torch.arange(self.length, device=self.query.device)
        turned = rotary(self.query[:, :, None].expand(-1, -1, self.length, -1), positions) / math.sqrt(self.width)
        key = torch.einsum("smij,smlj->slmi", self.w_key, turned)
        by_position = None if self.key_bias is None else torch.einsum("smld,smd->slm", turned, self.key_bias)
        return self._folded(key, self.value_direction(), by_position)


class BiasedLogits(QueryPools):
    """A number for each position added to the logits; nothing is added to the tokens.

    Args:
        bias: ``[length, members]``, where it starts.
        learned: whether it is a parameter (a bias for each position) or fixed (ALiBi, Press et al. 2021).
    """

    def __init__(self, generators: list[torch.Generator], embed_dim: int, bias: Tensor, *, learned: bool) -> None:
        super().__init__(generators, bias.shape[1], len(bias), embed_dim)
        start = bias.expand(len(generators), -1, -1).clone()
        self.by_position = nn.Parameter(start) if learned else nn.Buffer(start)

    def fold(self) -> Folded:
        """``x_j · u + bias_j``."""
        return self._folded(self.key_direction(), self.value_direction(), self.by_position)
