"""Image models by name."""

import inspect
from typing import Any

import torch
from torch import nn

from attnrepro.data.streams import stream_seed
from attnrepro.nn.cnn import AdditiveCNN, ResNet
from attnrepro.nn.mlp import MLP, MLPMixer
from attnrepro.nn.vit import ViT
from attnrepro.theory.image_models import ImageShape, cost, settings_of

FAMILIES: dict[str, type[nn.Module]] = {
    "cnn": ResNet,
    "cnn_additive": AdditiveCNN,
    "vit": ViT,
    "mlp": MLP,
    "mixer": MLPMixer,
}


def build_model(name: str, image_shape: ImageShape, num_classes: int, **settings: Any) -> nn.Module:
    """A model from images ``[n, channels, height, width]`` to logits ``[n, num_classes]``, started by torch's defaults.

    Args:
        name: one of ``attnrepro.theory.image_models.PRESETS``, which lists sizes and costs.
        image_shape: channels, height and width.
        num_classes: logits; a class that no training image shows has one too.
        settings: keyword arguments of the model that take the place of the preset's.

    Raises:
        ValueError: an unknown name or setting, or sizes that do not fit; before anything is built.
    """
    family, chosen = settings_of(name, settings)
    model = FAMILIES[family]
    known = [p.name for p in inspect.signature(model).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for unknown in chosen.keys() - set(known):
        raise ValueError(f"{unknown}={chosen[unknown]} must be a setting of model={name}: {', '.join(known)}")
    cost(name, image_shape, num_classes, **settings)
    return model(image_shape, num_classes, **chosen)


def seeded_model(seed: int, name: str, image_shape: ImageShape, num_classes: int, **settings: Any) -> nn.Module:
    """`build_model` with the start of a seed: the same on every device, whatever was drawn before or is drawn after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "start", name))
        return build_model(name, image_shape, num_classes, **settings)
