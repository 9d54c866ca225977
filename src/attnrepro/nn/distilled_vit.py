"""A ViT with a distillation token: a second read-out that learns what a teacher says."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnrepro.data.streams import stream_seed
from attnrepro.nn.vit import ViT, _small
from attnrepro.theory.image_models import ImageShape, settings_of


class DistilledViT(ViT):
    """`ViT` with one more learned token, without a position, after the patches, and a head that reads it.

    In training the first head learns the labels and the second one the teacher's; `forward`, for images that are to be
    classified, adds up the probabilities of both.

    Args:
        image_shape: channels, height and width.
        num_classes: logits of each head.
        settings: those of `ViT`; ``position="rotary"`` is not among them.

    Raises:
        ValueError: what `ViT` raises it for, or rotary positions, which the token has none of.

    Parameters and FLOPs: those of a ViT with a class token and one more head (`attnrepro.theory.distillation`).

    Source: Touvron et al. 2021, Training data-efficient image transformers & distillation through attention, section 4.
    """

    def __init__(self, image_shape: ImageShape, num_classes: int, **settings: Any) -> None:
        if settings.get("position") == "rotary":
            raise ValueError("position=rotary must not be given with a distillation token, which has no position")
        super().__init__(image_shape, num_classes, **settings)
        embed_dim = self.head.in_features
        self.distillation_token = nn.Parameter(_small(embed_dim))
        self.distillation_head = nn.Linear(embed_dim, num_classes)

    def tokens(self, images: Tensor) -> Tensor:
        """What the first block reads, ``[n, length, embed_dim]``; the distillation token comes last."""
        x = super().tokens(images)
        token = self.distillation_token + x.new_zeros(len(x), 1, 1)
        return torch.cat([x, self.dropout(token)], dim=1)

    def both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the labels' head and of the teacher's, ``[n, num_classes]`` each."""
        x = self.tokens(images)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        of_class = x[:, :-1].mean(dim=1) if self.class_token is None else x[:, 0]
        return self.head(of_class), self.distillation_head(x[:, -1])

    def forward(self, images: Tensor) -> Tensor:
        """Log of the mean of both heads' probabilities, ``[n, num_classes]``."""
        logs = torch.stack([logits.log_softmax(-1) for logits in self.both(images)])
        return logs.logsumexp(0) - math.log(2)


def seeded_distilled_vit(seed: int, name: str, image_shape: ImageShape, num_classes: int) -> DistilledViT:
    """The ViT preset ``name`` with a distillation token, its other parts started as `seeded_model` starts them.

    Raises ``ValueError`` for an unknown preset, or one that is no ViT.
    """
    family, settings = settings_of(name, {})
    if family != "vit":
        raise ValueError(f"model={name} must be a ViT to have a distillation token")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "start", name))
        return DistilledViT(image_shape, num_classes, **settings)
