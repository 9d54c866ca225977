"""Classifiers of sequences that differ only in how positions are mixed, at equal numbers of parameters."""

import torch
from torch import Tensor, nn

from attnrepro.nn.position import sinusoidal
from attnrepro.nn.ring_models import TokenConv
from attnrepro.nn.self_attention import SelfAttention

MIXERS = ("convolution", "convolution_wide", "attention", "attention_position")


def wide_channels(embed_dim: int, kernel: int) -> int:
    """Channels of a depthwise convolution between two matrices that has the 4 embed_dim^2 parameters of attention."""
    return max(1, round(4 * embed_dim**2 / (2 * embed_dim + kernel)))


def mixer(name: str, embed_dim: int, num_heads: int, kernel: int, length: int) -> nn.Module:
    """A layer that mixes positions with about 4 embed_dim^2 parameters.

    ``attention`` (``attention_position`` alike): W_Q, W_K, W_V, W_O. ``convolution``: a kernel of ``kernel`` = 3 taps
    and a matrix, exactly as many. ``convolution_wide``: a matrix, a depthwise kernel that reaches from any position to
    any other (2 length - 1 taps), and a matrix, as many up to the rounding of its channels. Convolutions see zeros
    beyond the ends.

    Raises:
        ValueError: an unknown name.
    """
    if name in ("attention", "attention_position"):
        return SelfAttention(embed_dim, num_heads)
    if name == "convolution":
        conv = TokenConv(embed_dim, embed_dim, kernel, padding="zeros")
        return nn.Sequential(conv, nn.Linear(embed_dim, embed_dim, bias=False))
    if name == "convolution_wide":
        taps = 2 * length - 1
        inner = wide_channels(embed_dim, taps)
        return nn.Sequential(
            nn.Linear(embed_dim, inner, bias=False),
            TokenConv(inner, inner, taps, padding="zeros", groups=inner),
            nn.Linear(inner, embed_dim, bias=False),
        )
    raise ValueError(f"name={name} must be one of {', '.join(MIXERS)}")


class SequenceClassifier(nn.Module):
    """An embedding, blocks ``x + mix(x)``, ``x + W_2 relu(W_1 x)``, and one logit from a token or their mean.

    Args:
        mixing: one of `MIXERS`; ``attention_position`` adds sinusoids of the given ``strength`` to the embedding.
        inputs: components of a token.
        length: tokens.
        embed_dim: components inside.
        num_heads: of attention.
        depth: blocks.
        kernel: taps of ``convolution``.
        strength: factor of the sinusoids.
        readout: "mean" over the tokens or the "last" token.
    """

    def __init__(
        self,
        mixing: str,
        inputs: int,
        length: int,
        *,
        embed_dim: int,
        num_heads: int,
        depth: int,
        kernel: int,
        strength: float,
        readout: str,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, embed_dim)
        self.mixers = nn.ModuleList(mixer(mixing, embed_dim, num_heads, kernel, length) for _ in range(depth))
        self.tokenwise = nn.ModuleList(
            nn.Sequential(nn.Linear(embed_dim, 2 * embed_dim), nn.ReLU(), nn.Linear(2 * embed_dim, embed_dim))
            for _ in range(depth)
        )
        self.head = nn.Linear(embed_dim, 1)
        code = strength * sinusoidal(length, embed_dim)
        self.code = nn.Buffer(code if mixing == "attention_position" else torch.zeros_like(code))
        self.readout = readout

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[n]`` of tokens ``[n, length, inputs]``."""
        x = self.embed(x) + self.code
        for mix, alone in zip(self.mixers, self.tokenwise, strict=True):
            x = x + mix(x)
            x = x + alone(x)
        read = x.mean(dim=-2) if self.readout == "mean" else x[..., -1, :]
        logits: Tensor = self.head(read)[..., 0]
        return logits
