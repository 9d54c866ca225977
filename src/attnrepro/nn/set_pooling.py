"""Models of a whole set: one number for a sequence, the same for every order of its tokens."""

import math

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class DeepSets(nn.Module):
    """``rho(mean_j phi(x_j))`` with a layer of ReLU units as phi and an MLP as rho.

    The mean stands for the sum of the paper, so that the size of what rho reads does not depend on the length.

    Args:
        embed_dim: components of a token.
        hidden: width of phi and of rho.

    Source: Zaheer et al. 2017, Deep Sets, theorem 2.
    """

    def __init__(self, embed_dim: int, hidden: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(embed_dim, hidden), nn.ReLU())
        self.rho = _mlp(hidden, hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One logit ``[...]`` for each set of tokens ``[..., length, embed_dim]``."""
        out: Tensor = self.rho(self.phi(x).mean(dim=-2))
        return out.squeeze(-1)


class AttentionPool(nn.Module):
    """One learned query attends to all tokens, which have no position; the pooled value is read out linearly.

    Args:
        embed_dim: components of a token, of the query, of keys and of values.
        value_hidden: width of the hidden layer of ReLU units through which tokens become values; None for the linear
            values of document 000 (section on position), whose pool depends on the tokens through weighted means only.

    Source: Lee et al. 2019, Set Transformer, section 3.2 (pooling by multihead attention), with one seed and one head.
    """

    def __init__(self, embed_dim: int, value_hidden: int | None = None) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, embed_dim) / math.sqrt(embed_dim))
        self.key = nn.Linear(embed_dim, embed_dim, bias=False)
        self.value = (
            nn.Linear(embed_dim, embed_dim) if value_hidden is None else _mlp(embed_dim, value_hidden, embed_dim)
        )
        self.out = nn.Linear(embed_dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One logit ``[...]`` for each set of tokens ``[..., length, embed_dim]``."""
        weights = attention_weights(attention_logits(self.query, self.key(x)))
        out: Tensor = self.out(weights @ self.value(x))
        return out.squeeze(-1).squeeze(-1)
