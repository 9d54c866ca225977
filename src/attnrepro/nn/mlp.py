"""Models without convolution or attention: MLP and logistic regression, many seeds at once, and MLP-Mixer."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnrepro.nn.vit import PatchEmbedding
from attnrepro.theory.image_models import ImageShape


class MLP(nn.Module):
    """Linear layers with ReLU between them, on all pixels as one vector; without hidden layers, logistic regression.

    Args:
        image_shape: channels, height and width.
        num_classes: logits.
        hidden: widths of the hidden layers.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, *, hidden: Sequence[int] = (90, 90)) -> None:
        super().__init__()
        sizes = [math.prod(image_shape), *hidden, num_classes]
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1))

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[n, num_classes]`` of images ``[n, channels, height, width]``."""
        x = images.flatten(1)
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        logits: Tensor = self.layers[-1](x)
        return logits


class MLPEnsemble(nn.Module):
    """MLPs of one shape with stacked parameters, ``[members, ...]``: one product for all of them.

    No operation mixes members, so that the gradient of the sum of their losses holds the gradient of each.
    """

    def __init__(self, members: Sequence[MLP]) -> None:
        super().__init__()
        layers = list(zip(*(member.layers for member in members), strict=True))
        self.weights = nn.ParameterList(torch.stack([part.weight.detach() for part in layer]) for layer in layers)
        self.biases = nn.ParameterList(torch.stack([part.bias.detach() for part in layer]) for layer in layers)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[members, n, num_classes]`` of images ``[members, n, channels, height, width]``, each its own."""
        x = images.flatten(2)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias[:, None], x.relu() if index else x, weight.mT)
        return x


class MLPMixer(nn.Module):
    """Patches that are mixed by an MLP over tokens, and an MLP over components, in turn.

    Args:
        image_shape: channels, height and width.
        num_classes: logits.
        patch: side of a patch, or its height and width; must divide the image.
        embed_dim: components of a token.
        depth: number of blocks.
        token_hidden: width of the MLP over tokens.
        channel_hidden: width of the MLP over components.

    Source: Tolstikhin et al. 2021, MLP-Mixer, section 2.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        patch: int | Sequence[int] = 4,
        embed_dim: int = 64,
        depth: int = 4,
        token_hidden: int = 64,
        channel_hidden: int = 128,
    ) -> None:
        super().__init__()
        self.patches = PatchEmbedding(image_shape, embed_dim, patch)
        tokens = math.prod(self.patches.grid)
        self.token_norms, self.channel_norms = (
            nn.ModuleList(nn.LayerNorm(embed_dim) for _ in range(depth)) for _ in range(2)
        )
        self.token_mlps = nn.ModuleList(_mlp(tokens, token_hidden) for _ in range(depth))
        self.channel_mlps = nn.ModuleList(_mlp(embed_dim, channel_hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[n, num_classes]`` of images ``[n, channels, height, width]``."""
        x = self.patches(images)
        parts = zip(self.token_norms, self.token_mlps, self.channel_norms, self.channel_mlps, strict=True)
        for token_norm, token_mlp, channel_norm, channel_mlp in parts:
            x = x + token_mlp(token_norm(x).mT).mT
            x = x + channel_mlp(channel_norm(x))
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits


def _mlp(size: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))
