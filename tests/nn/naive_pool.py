"""One pool at a time, unfolded, as its description reads: what the stacks of pools are held against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.position import rotary
from attnrepro.nn.query_pool import AddedCode, BiasedLogits, ConcatCode, LearnedCode, QueryPools, RotaryKeys

Encode = Callable[["NaivePool", Tensor], tuple[Tensor, Tensor]]


class NaivePool(nn.Module):
    """Tokens ``[n, length, embed_dim]`` to logits ``[n]``: project keys and values, attend with the query, read out.

    ``encode`` turns content into what keys and values are projected from.
    """

    def __init__(
        self, parameters: dict[str, Tensor], encode: Encode, *, turned: bool = False, bias: Tensor | None = None
    ) -> None:
        super().__init__()
        self.p = nn.ParameterDict({name: nn.Parameter(value.clone()) for name, value in parameters.items()})
        self.encode, self.turned, self.logit_bias = encode, turned, bias

    def forward(self, x: Tensor) -> Tensor:
        for_keys, for_values = self.encode(self, x)
        key = for_keys @ self.p["w_key"]
        if "key_bias" in self.p:
            key = key + self.p["key_bias"]
        if self.turned:
            key = rotary(key)
        logits = attention_logits(self.p["query"].expand(len(x), 1, -1), key)[:, 0]
        if self.logit_bias is not None:
            logits = logits + self.logit_bias
        if "by_position" in self.p:
            logits = logits + self.p["by_position"]
        pooled = (attention_weights(logits)[:, :, None] * (for_values @ self.p["w_value"])).sum(1)
        return pooled @ self.p["w_out"] + self.p["bias"]


def taken(family: QueryPools, seed: int, member: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """One member's share of stacked tensors that are named as the family's parameters."""
    return {
        name: (value[seed, :, member] if name == "by_position" else value[seed, member]).detach().clone()
        for name, value in values.items()
    }


def parameters_of(family: QueryPools, seed: int, member: int) -> dict[str, Tensor]:
    """The parameters of one member."""
    return taken(family, seed, member, dict(family.named_parameters()))


def gradients_of(family: QueryPools, seed: int, member: int) -> dict[str, Tensor]:
    """The gradients of one member."""
    gradients = {name: p.grad for name, p in family.named_parameters() if p.grad is not None}
    return taken(family, seed, member, gradients)


def unfolded(family: QueryPools, seed: int, member: int) -> NaivePool:
    """The same pool, alone."""
    parameters = parameters_of(family, seed, member)
    if isinstance(family, RotaryKeys):
        return NaivePool(parameters, lambda _, x: (x, x), turned=True)
    if isinstance(family, BiasedLogits):
        fixed = None if "by_position" in parameters else family.by_position[seed, :, member].detach().clone()
        return NaivePool(parameters, lambda _, x: (x, x), bias=fixed)
    if isinstance(family, LearnedCode):

        def learned(pool: NaivePool, x: Tensor) -> tuple[Tensor, Tensor]:
            return x + pool.p["code"], x + pool.p["code"]

        return NaivePool(parameters, learned)
    assert isinstance(family, AddedCode | ConcatCode)
    code = family.strength[member] * family.code[seed if len(family.code) > 1 else 0]
    if isinstance(family, ConcatCode):

        def beside(_: NaivePool, x: Tensor) -> tuple[Tensor, Tensor]:
            tokens = torch.cat([x, code.expand(len(x), -1, -1)], -1)
            return tokens, tokens

        return NaivePool(parameters, beside)
    in_values = bool(family.in_values[member])
    return NaivePool(parameters, lambda _, x: (x + code, x + code if in_values else x))
