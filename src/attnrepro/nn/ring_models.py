"""Small networks on tokens around a ring, which differ in what they declare about positions."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.position import sinusoidal
from attnrepro.nn.self_attention import SelfAttention

Padding = Literal["zeros", "circular"]
NETWORKS = (
    "mlp",
    "locally_connected",
    "convolution_circular",
    "convolution_zeros",
    "convolution_pooled",
    "convolution_strided",
    "unet",
    "unet_without_skips",
    "attention",
    "attention_position",
    "attention_relative",
)
# Input positions from one output to the next, or, of a U-Net, from one coarsest position to the next.
TOTAL_STRIDE = {"convolution_pooled": 2, "convolution_strided": 2, "unet": 4, "unet_without_skips": 4}


class TokenConv(nn.Module):
    """A one-dimensional convolution of tokens without bias: ``[..., length, inputs]`` to ``[..., length', outputs]``.

    ``padding`` is "circular" (a ring) or "zeros"; length' = length / stride, rounded up. ``groups`` as in torch.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        padding: Padding = "circular",
        stride: int = 1,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False, padding_mode=padding
        )

    def forward(self, x: Tensor) -> Tensor:
        """Every output reads the ``kernel`` tokens around it."""
        out: Tensor = self.conv(x.mT).mT
        return out


class LocallyConnected(nn.Module):
    """As a convolution on a ring, but with a kernel of its own for each position: ``[length, kernel, in, out]``."""

    def __init__(self, length: int, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, kernel, inputs, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 1 / (kernel in))."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(math.prod(self.weight.shape[1:3])))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[length, inputs]`` to ``[length, outputs]``."""
        kernel = self.weight.shape[1]
        seen = torch.stack([x.roll(kernel // 2 - tap, dims=-2) for tap in range(kernel)], dim=-2)
        return torch.einsum("nki,nkio->no", seen, self.weight)


class Pool(nn.Module):
    """The largest of each two neighbouring tokens, component by component: half as many tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """``[length, components]`` to ``[length / 2, components]``."""
        return x.reshape(*x.shape[:-2], -1, 2, x.shape[-1]).amax(dim=-2)


class Flattened(nn.Module):
    """A matrix over all components of all tokens at once."""

    def __init__(self, length: int, channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(length * channels, length * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[length, channels]`` to the same shape."""
        out: Tensor = self.linear(x.flatten(-2)).unflatten(-1, x.shape[-2:])
        return out


class UNet(nn.Module):
    """Two levels of convolution and pooling, and back, beside what bypasses them.

    On the way down a circular convolution, GELU and the larger of each two tokens; on the way up each token twice,
    then a convolution of what came from below and, with ``skips``, of what was there before pooling.

    Source: Ronneberger, Fischer and Brox 2015, U-Net, section 2, in one dimension and without its border loss.
    """

    def __init__(self, channels: int, kernel: int, *, skips: bool = True) -> None:
        super().__init__()
        self.skips = skips
        self.down = nn.ModuleList(TokenConv(channels, channels, kernel) for _ in range(2))
        self.bottleneck = TokenConv(channels, channels, kernel)
        joined = 2 * channels if skips else channels
        self.up = nn.ModuleList(TokenConv(joined, channels, kernel) for _ in range(2))
        self.pool, self.activation = Pool(), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[length, channels]``, length a multiple of 4, to the same shape."""
        kept = []
        for conv in self.down:
            x = self.activation(conv(x))
            kept.append(x)
            x = self.pool(x)
        x = self.activation(self.bottleneck(x))
        for conv, detail in zip(self.up, reversed(kept), strict=True):
            x = x.repeat_interleave(2, dim=-2)
            x = self.activation(conv(torch.cat([x, detail], dim=-1) if self.skips else x))
        return x


class PositionedAttention(nn.Module):
    """Self-attention on tokens to which sinusoids are added."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.layer = SelfAttention(channels, num_heads)

    def forward(self, x: Tensor) -> Tensor:
        """``[length, channels]`` to the same shape."""
        out: Tensor = self.layer(self.positioned(x))
        return out

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights ``[num_heads, length, length]``."""
        return self.layer.weights(self.positioned(x))

    @staticmethod
    def positioned(x: Tensor) -> Tensor:
        """Tokens with their position added."""
        return x + sinusoidal(*x.shape[-2:], dtype=x.dtype, device=x.device)


class RelativeAttention(nn.Module):
    """Self-attention with a learned number for each offset around the ring added to the logits, in every head.

    Source: Shaw, Uszkoreit and Vaswani 2018 in the form of Raffel et al. 2020 (section 2.1), on a ring.
    """

    def __init__(self, length: int, channels: int, num_heads: int) -> None:
        super().__init__()
        self.layer = SelfAttention(channels, num_heads)
        self.bias = nn.Parameter(torch.empty(num_heads, length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 1)."""
        nn.init.normal_(self.bias)

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights ``[num_heads, length, length]``."""
        query, key = (self._heads(matrix(x)) for matrix in (self.layer.w_query, self.layer.w_key))
        place = torch.arange(x.shape[-2], device=x.device)
        offset = (place[None, :] - place[:, None]) % x.shape[-2]
        return attention_weights(attention_logits(query, key) + self.bias[:, offset])

    def forward(self, x: Tensor) -> Tensor:
        """``[length, channels]`` to the same shape."""
        heads = self.weights(x) @ self._heads(self.layer.w_value(x))
        out: Tensor = self.layer.w_out(heads.transpose(-2, -3).flatten(-2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.layer.num_heads, -1).transpose(-2, -3)


class PatchAttention(nn.Module):
    """Patches of an image, a matrix that makes a token of each, self-attention, and the mean over the tokens.

    Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, section 3.1, one layer and no positions.
    """

    def __init__(self, patch: int, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, embed_dim, patch, stride=patch, bias=False)
        self.layer = SelfAttention(embed_dim, num_heads)

    def outputs(self, image: Tensor) -> Tensor:
        """Outputs of all patches of an image ``[height, width]``: ``[patches, embed_dim]``."""
        out: Tensor = self.layer(self.patches(image[None]).flatten(1).mT)
        return out

    def forward(self, image: Tensor) -> Tensor:
        """An image ``[height, width]`` to ``[embed_dim]``."""
        return self.outputs(image).mean(dim=-2)


def mixing_layer(network: str, length: int, channels: int, kernel: int, num_heads: int) -> nn.Module:
    """The one layer of a network in which positions exchange anything.

    Args:
        network: one of `NETWORKS` without a U-Net; a convolution that is pooled has the layer of one on a ring.
        length: tokens around the ring.
        channels: components of a token.
        kernel: tokens that a convolution reads, odd.
        num_heads: of attention.

    Raises:
        ValueError: an unknown network.
    """
    if network == "mlp":
        return Flattened(length, channels)
    if network == "locally_connected":
        return LocallyConnected(length, channels, channels, kernel)
    if network == "attention":
        return SelfAttention(channels, num_heads)
    if network == "attention_position":
        return PositionedAttention(channels, num_heads)
    if network == "attention_relative":
        return RelativeAttention(length, channels, num_heads)
    if network in ("convolution_circular", "convolution_pooled", "convolution_zeros", "convolution_strided"):
        padding: Padding = "zeros" if network == "convolution_zeros" else "circular"
        stride = 2 if network == "convolution_strided" else 1
        return TokenConv(channels, channels, kernel, padding=padding, stride=stride)
    raise ValueError(f"network={network} must be one of {', '.join(NETWORKS)}, without a U-Net")


def network_of(network: str, length: int, channels: int, kernel: int, num_heads: int) -> nn.Module:
    """A network on tokens ``[length, channels]``: a mixing layer, GELU, and a matrix applied to each token.

    ``convolution_pooled`` keeps the larger of each two tokens after that; of an ``mlp`` the second matrix, too, is one
    over all tokens; a U-Net is itself. Arguments as in `mixing_layer`.
    """
    if network in ("unet", "unet_without_skips"):
        return UNet(channels, kernel, skips=network == "unet")
    first = mixing_layer(network, length, channels, kernel, num_heads)
    second = Flattened(length, channels) if network == "mlp" else nn.Linear(channels, channels, bias=False)
    pool = [Pool()] if network == "convolution_pooled" else []
    return nn.Sequential(first, nn.GELU(), second, *pool)
