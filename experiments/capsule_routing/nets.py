"""The nets that are compared, by name."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnrepro.data.streams import stream_seed
from attnrepro.nn.capsule_net import CapsuleNet, DenseNet
from attnrepro.nn.capsules import dynamic_routing, margin_loss, routing_as_printed
from attnrepro.nn.cnn import ResNet
from attnrepro.tables.capsule_routing.table import CAPSULES, CLASSES, Params


def net(model: str, p: Params, seed: int) -> nn.Module:
    """A net for images ``[n, 1, side, side]``, started by a seed; all capsule nets of a seed start alike."""
    shape = (1, p.side, p.side)
    start = "capsules" if model in CAPSULES else model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "start", start))
        if model == "cnn":
            return ResNet(shape, CLASSES, widths=p.widths, strides=(1, 2))
        if model == "cnn_dense":
            return DenseNet(shape, CLASSES, width=p.width, channels=p.types * p.child_dim, hidden=p.hidden)
        iterations, printed = CAPSULES[model]
        return CapsuleNet(
            shape,
            CLASSES,
            width=p.width,
            types=p.types,
            child_dim=p.child_dim,
            parent_dim=p.parent_dim,
            iterations=iterations,
            routing=routing_as_printed if printed else dynamic_routing,
        )


def loss(model: str, scores: Tensor, labels: Tensor) -> Tensor:
    """Mean loss of a batch, margin loss for capsules and cross-entropy for the others."""
    return margin_loss(scores, labels).mean() if model in CAPSULES else cross_entropy(scores, labels)
