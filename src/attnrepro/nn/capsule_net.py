"""A small capsule network, and a convolutional one with the same convolutions and a dense head in place of routing."""

from torch import Tensor, nn
from torch.linalg import vector_norm

from attnrepro.nn.capsules import CapsuleLayer, Routing, dynamic_routing, squash
from attnrepro.theory.capsules import FIRST, SECOND, STRIDE, places
from attnrepro.theory.image_models import ImageShape


def stem(image_shape: ImageShape, width: int, channels: int) -> nn.Sequential:
    """Two convolutions without padding, 5x5 and then 3x3 of stride 2, each with BatchNorm, and a ReLU between them.

    Raises:
        ValueError: an image that is too small for them.
    """
    places(image_shape)
    return nn.Sequential(
        *(nn.Conv2d(image_shape[0], width, FIRST, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, channels, SECOND, STRIDE, bias=False), nn.BatchNorm2d(channels)),
    )


class CapsuleNet(nn.Module):
    """Convolutions, primary capsules at every place of their map, and a capsule for each class, whose length answers.

    Every place of the last map holds ``types`` capsules of ``child_dim`` components; each place and type has its own
    matrices to the class capsules. The paper's net on a small scale, with BatchNorm (the paper has none) and without
    its reconstruction network.

    Args:
        image_shape: channels, height and width.
        num_classes: class capsules.
        width: channels between the convolutions.
        types: primary capsules at a place.
        child_dim: their components.
        parent_dim: components of a class capsule.
        iterations: of the routing.
        routing: `attnrepro.nn.capsules.dynamic_routing` or ``routing_as_printed``.

    Source: Sabour, Frosst and Hinton 2017, section 4.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        width: int = 16,
        types: int = 2,
        child_dim: int = 8,
        parent_dim: int = 8,
        iterations: int = 3,
        routing: Routing = dynamic_routing,
    ) -> None:
        super().__init__()
        self.child_dim = child_dim
        self.stem = stem(image_shape, width, types * child_dim)
        self.classes = CapsuleLayer(
            num_classes,
            child_dim,
            parent_dim,
            num_children=places(image_shape) * types,
            iterations=iterations,
            routing=routing,
        )

    def primary(self, images: Tensor) -> Tensor:
        """Squashed capsules ``[n, places * types, child_dim]`` of images ``[n, channels, height, width]``."""
        maps = self.stem(images)
        if maps.requires_grad:
            # The gradient comes transposed, and of a single image torch 2.13 on CPUs then takes places for channels in
            # the backward pass of BatchNorm, without a word.
            maps.register_hook(Tensor.contiguous)
        return squash(maps.flatten(2).transpose(1, 2).reshape(len(images), -1, self.child_dim))

    def forward(self, images: Tensor) -> Tensor:
        """Lengths of the class capsules, ``[n, num_classes]``."""
        lengths: Tensor = vector_norm(self.classes(self.primary(images)), dim=-1)
        return lengths


class DenseNet(nn.Module):
    """The same convolutions, then a hidden layer and a linear one, with ReLU before each: logits ``[n, num_classes]``.

    Args:
        image_shape: channels, height and width.
        num_classes: logits.
        width: channels between the convolutions.
        channels: of the last map.
        hidden: units of the hidden layer.

    Source: in outline the baseline of Sabour, Frosst and Hinton 2017, section 5 (convolutions and dense layers,
    without pooling).
    """

    def __init__(
        self, image_shape: ImageShape, num_classes: int, *, width: int = 16, channels: int = 16, hidden: int = 74
    ) -> None:
        super().__init__()
        self.stem = stem(image_shape, width, channels)
        self.head = nn.Sequential(
            nn.Linear(places(image_shape) * channels, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images ``[n, channels, height, width]``."""
        logits: Tensor = self.head(self.stem(images).relu().flatten(1))
        return logits
