"""Transformer encoders of any order of LayerNorm and skip connections, many members stacked."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, relu

from attnrepro.nn.attention import attention_logits, attention_weights

ORDERS = ("post", "pre", "bare")


class TransformerStack(nn.Module):
    """``depth`` blocks of self-attention and a two-layer ReLU MLP, without biases, for ``len(streams)`` members.

    With f the attention or the MLP, a sublayer is norm(x + f(x)) in order ``post`` (Vaswani et al. 2017), in order
    ``pre`` x + f(norm(x)), with one more LayerNorm after the last block, and x + f(x) in order ``bare``. Without
    ``skip`` the x + is left out. Weights start as Xavier's normal law, N(0, 2 / (inputs + outputs)), LayerNorms as the
    identity.

    Args:
        streams: a random stream for each member's start; equal streams start equal whatever the options are.
        embed_dim: components of a token.
        num_heads: heads; must divide ``embed_dim``.
        hidden: units of the MLP.
        depth: number of blocks.
        order: one of ``ORDERS``.
        skip: with residual connections.
        mlp: blocks with their MLP; the attention stands alone without.
        qk_norm: queries and keys of every head are normalised to variance 1 (Henry et al. 2020; Dehghani et al. 2023,
            section 2, who add a learned scale).

    Raises:
        ValueError: a size below 1, heads that do not divide ``embed_dim``, an unknown order, or no stream.

    Source: document 002 (listing of a block); Xiong et al. 2020, On Layer Normalization in the Transformer
    Architecture, section 3.1 and table 1.
    """

    w_query: nn.Parameter
    w_key: nn.Parameter
    w_value: nn.Parameter
    w_out: nn.Parameter
    w_first: nn.Parameter
    w_second: nn.Parameter

    def __init__(
        self,
        streams: Sequence[torch.Generator],
        *,
        embed_dim: int,
        num_heads: int,
        hidden: int,
        depth: int,
        order: str,
        skip: bool = True,
        mlp: bool = True,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (("embed_dim", embed_dim), ("hidden", hidden), ("depth", depth)):
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads={num_heads} must be 1 or more and divide embed_dim={embed_dim}")
        if order not in ORDERS:
            raise ValueError(f"order={order} must be one of {', '.join(ORDERS)}")
        if not streams:
            raise ValueError("streams=[] must hold at least one")
        self.num_heads, self.depth, self.order = num_heads, depth, order
        self.skip, self.mlp, self.qk_norm = skip, mlp, qk_norm
        shapes = {
            **dict.fromkeys(("w_query", "w_key", "w_value", "w_out"), (embed_dim, embed_dim)),
            "w_first": (embed_dim, hidden),
            "w_second": (hidden, embed_dim),
        }
        drawn: dict[str, list[Tensor]] = {name: [] for name in shapes}
        for stream in streams:
            # Layer by layer: a deeper model of the same stream starts with the layers of a shallower one.
            layers: dict[str, list[Tensor]] = {name: [] for name in shapes}
            for _ in range(depth):
                for name, shape in shapes.items():
                    weight = torch.randn(shape, generator=stream, device=stream.device, dtype=torch.float32)
                    layers[name].append(weight * math.sqrt(2 / sum(shape)))
            for name in shapes:
                drawn[name].append(torch.stack(layers[name]))
        for name in shapes:
            setattr(self, name, nn.Parameter(torch.stack(drawn[name])))
        # Scale and shift of the two LayerNorms of each block and of the last one.
        self.scale = nn.Parameter(torch.ones(len(streams), 2 * depth + 1, 1, embed_dim))
        self.shift = nn.Parameter(torch.zeros(len(streams), 2 * depth + 1, 1, embed_dim))

    def forward(self, x: Tensor, states: list[Tensor] | None = None, sums: list[Tensor] | None = None) -> Tensor:
        """Tokens ``[members, n, length, embed_dim]`` to tokens of the same shape.

        Args:
            x: the tokens.
            states: takes the tokens after every block, where given.
            sums: takes x + f(x) of every block's last sublayer, before a LayerNorm of order post.
        """
        for layer in range(self.depth):
            x = self._sublayer(x, layer, 0)[1]
            if self.mlp:
                before, x = self._sublayer(x, layer, 1)
                if sums is not None:
                    sums.append(before)
            if states is not None:
                states.append(x)
        return self._norm(x, 2 * self.depth) if self.order == "pre" else x

    def _sublayer(self, x: Tensor, layer: int, which: int) -> tuple[Tensor, Tensor]:
        index = 2 * layer + which
        read = self._norm(x, index) if self.order == "pre" else x
        out = self._mlp(read, layer) if which else self._attention(read, layer)
        total = x + out if self.skip else out
        return total, self._norm(total, index) if self.order == "post" else total

    def _norm(self, x: Tensor, index: int) -> Tensor:
        return layer_norm(x, x.shape[-1:]) * self.scale[:, index, None] + self.shift[:, index, None]

    def _mlp(self, x: Tensor, layer: int) -> Tensor:
        hidden = relu(_times(x, self.w_first[:, layer]))
        return _times(hidden, self.w_second[:, layer])

    def _attention(self, x: Tensor, layer: int) -> Tensor:
        query, key, value = (self._heads(_times(x, w[:, layer])) for w in (self.w_query, self.w_key, self.w_value))
        if self.qk_norm:
            query, key = layer_norm(query, query.shape[-1:]), layer_norm(key, key.shape[-1:])
        mixed = attention_weights(attention_logits(query, key)) @ value
        return _times(mixed.transpose(-2, -3).flatten(-2), self.w_out[:, layer])

    def _heads(self, x: Tensor) -> Tensor:
        """``[members, n, length, embed_dim]`` to ``[members, n, num_heads, length, head_dim]``."""
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(-2, -3)


def _times(x: Tensor, weight: Tensor) -> Tensor:
    """Every member's tokens ``[members, n, length, inputs]`` times its matrix ``[members, inputs, outputs]``."""
    product = x.flatten(1, 2) @ weight
    return product.reshape(*x.shape[:-1], -1)


def rank_one_distance(x: Tensor) -> Tensor:
    """How far tokens ``[..., length, embed_dim]`` are from being all equal: ||X - 1 mean(X)|| / ||X||, Frobenius.

    Source: Dong et al. 2021, Attention is not all you need (there in another norm).
    """
    rest: Tensor = torch.linalg.matrix_norm(x - x.mean(-2, keepdim=True))
    size: Tensor = torch.linalg.matrix_norm(x)
    return rest / size
