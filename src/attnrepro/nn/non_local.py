"""The non-local block: every place of a map takes in all places, weighted by pairs."""

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from attnrepro.nn.attention import attention_logits, attention_weights

KINDS = ("embedded_gaussian", "gaussian", "dot_product", "concatenation")


class NonLocal(nn.Module):
    """``z_i = x_i + W_z y_i`` with ``y_i = sum_j f(x_i, x_j) g(x_j) / C(x)`` over the N = height x width places.

    ==================  =============================  =====================
    ``kind``            f(x_i, x_j)                    C(x)
    ==================  =============================  =====================
    embedded_gaussian   exp(theta(x_i) . phi(x_j))     sum_j f: a softmax
    gaussian            exp(x_i . x_j)                 sum_j f: a softmax
    dot_product         theta(x_i) . phi(x_j)          number of keys
    concatenation       relu(w_f [theta(x_i), phi(x_j)])  number of keys
    ==================  =============================  =====================

    theta, phi and g are 1 x 1 convolutions to ``inner`` channels, with bias; W_z goes back and starts at zero, so that
    a new block changes nothing. ``pool`` takes the maximum of phi and g over squares of that side (fewer at odd
    borders): the queries and the map keep their resolution. No dot product is divided by sqrt(inner).

    Parameters: 4 C inner + 3 inner + C (C channels; gaussian has g and W_z only, concatenation 2 inner more).
    FLOPs of a map with M = N / pool^2 keys, two a multiply-add: 8 N C inner + 4 N M inner (gaussian: 4 N C inner +
    2 N M (C + inner); concatenation: 8 N C inner + 2 N M inner, w_f and the sums of pairs not counted). N M weights.

    Raises:
        ValueError: an unknown kind, or a size below 1.

    Source: Wang et al. 2018, Non-local Neural Networks, sections 3.1 to 3.3; document 004, section 3.1.
    """

    def __init__(self, channels: int, *, kind: str = "embedded_gaussian", inner: int | None = None, pool: int = 1):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind={kind} must be one of {', '.join(KINDS)}")
        inner = max(1, channels // 2) if inner is None else inner
        for name, size in (("channels", channels), ("inner", inner), ("pool", pool)):
            if size < 1:
                raise ValueError(f"{name}={size} must be 1 or more")
        self.kind, self.pool = kind, pool
        self.g, self.out = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        if kind != "gaussian":
            self.theta, self.phi = nn.Conv2d(channels, inner, 1), nn.Conv2d(channels, inner, 1)
        if kind == "concatenation":
            self.pair = nn.Linear(2 * inner, 1, bias=False)
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)

    def attention(self, x: Tensor) -> Tensor:
        """f / C ``[batch, queries, keys]`` of a map; rows sum to one in the two Gaussian kinds only."""
        if self.kind == "gaussian":
            query, key = _places(x), _places(self._pooled(x))
        else:
            query, key = _places(self.theta(x)), _places(self._pooled(self.phi(x)))
        if self.kind == "concatenation":
            of_query, of_key = self.pair.weight[0].chunk(2)
            scores = (query @ of_query)[..., :, None] + (key @ of_key)[..., None, :]
            return scores.relu() / key.shape[-2]
        scores = attention_logits(query, key, scaled=False)
        return scores / key.shape[-2] if self.kind == "dot_product" else attention_weights(scores)

    def forward(self, x: Tensor) -> Tensor:
        """The map ``[batch, channels, height, width]`` with what each place took in added to it."""
        taken = self.attention(x) @ _places(self._pooled(self.g(x)))
        added: Tensor = self.out(torch.unflatten(taken.mT, -1, x.shape[-2:]))
        return x + added

    def _pooled(self, x: Tensor) -> Tensor:
        return max_pool2d(x, self.pool, ceil_mode=True) if self.pool > 1 else x


def non_local_as_printed(block: NonLocal, x: Tensor, factor: int = 2) -> Tensor:
    """The sub-sampling that document 004 prints: the whole map shrinks, queries too, and what comes out is scaled up.

    That has N^2 / factor^4 weights, as printed, and adds the same to all places of a square of that side. The paper
    pools keys and values alone (``NonLocal(pool=factor)``): N^2 / factor^2 weights, and no scaling up.

    Args:
        block: without a pool of its own.
        x: ``[batch, channels, height, width]``.
        factor: side of the squares, of which the maximum is taken.

    Returns:
        ``[batch, channels, height, width]``.

    Source: document 004, section 3.1.
    """
    small = max_pool2d(x, factor, ceil_mode=True)
    large = interpolate(block(small) - small, scale_factor=factor, mode="nearest")
    return x + large[..., : x.shape[-2], : x.shape[-1]]


def _places(x: Tensor) -> Tensor:
    """``[batch, channels, height, width]`` to ``[batch, places, channels]``, row by row."""
    return torch.flatten(x, -2).mT
