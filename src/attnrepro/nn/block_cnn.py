"""A small CNN whose places see windows of 9 x 9 pixels, with one block on its map: all that links distant places."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnrepro.data.streams import stream_seed
from attnrepro.nn.criss_cross import CrissCross
from attnrepro.nn.global_context import GlobalAverageAdd, GlobalContext
from attnrepro.nn.map_attention import MapAttention
from attnrepro.nn.non_local import NonLocal
from attnrepro.nn.relation_module import RelationModule
from attnrepro.nn.sagan_attention import SaganAttention
from attnrepro.nn.squeeze_excitation import SqueezeExcitation
from attnrepro.nn.swin import SwinPair

WINDOW, STRIDE = 9, 4
# Bottlenecks of the three blocks that have one by reduction: 16 of 64 channels. The papers' 16 is for 256 and more.
REDUCTION = 4
HEADS, SWIN_WINDOW = 4, 4

BLOCKS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda channels: nn.Identity(),
    "global_average": lambda channels: GlobalAverageAdd(channels, reduction=REDUCTION),
    "squeeze_excitation": lambda channels: SqueezeExcitation(channels, reduction=REDUCTION),
    "global_context": lambda channels: GlobalContext(channels, reduction=REDUCTION),
    "non_local": NonLocal,
    "non_local_gaussian": lambda channels: NonLocal(channels, kind="gaussian"),
    "non_local_dot_product": lambda channels: NonLocal(channels, kind="dot_product"),
    "non_local_concatenation": lambda channels: NonLocal(channels, kind="concatenation"),
    "non_local_pooled": lambda channels: NonLocal(channels, pool=2),
    "sagan": SaganAttention,
    "criss_cross_1": lambda channels: CrissCross(channels, recurrence=1),
    "criss_cross_2": CrissCross,
    "relation": RelationModule,
    "swin": lambda channels: SwinPair(channels, num_heads=HEADS, window=SWIN_WINDOW),
    "multi_head": lambda channels: MapAttention(channels, num_heads=HEADS),
}
READOUTS = ("mean", "places", "places_hidden")


class BlockCNN(nn.Module):
    """Windows of 9 x 9 pixels every 4 pixels, two more layers place by place, a block on that map, a read-out.

    Without the block no place sees further than 4 pixels from its middle, and a linear read-out of the mean adds up
    windows. Each layer of the windows is a convolution without bias, BatchNorm and ReLU.

    Args:
        in_channels: of the images.
        num_classes: logits.
        block: a name in `BLOCKS`.
        width: channels of the map.
        readout: "mean": a linear layer on the mean over all places; "places": the same linear layer at each place;
            "places_hidden": with a hidden layer of ``width`` ReLU units before it.

    Parameters without the block, with k classes and "mean" or "places": 81 in_channels C + 2 C^2 + 6 C + (C + 1) k;
    13 890 for grey images, 64 channels and 2 classes.

    Raises:
        ValueError: an unknown block or read-out.

    Source: Brendel and Bethge 2019, Approximating CNNs with Bag-of-local-Features Models, section 3 (BagNet-9), for
    the windows; the blocks name their own.
    """

    def __init__(
        self, in_channels: int, num_classes: int, *, block: str, width: int = 64, readout: str = "mean"
    ) -> None:
        super().__init__()
        for name, value, known in (("block", block, tuple(BLOCKS)), ("readout", readout, READOUTS)):
            if value not in known:
                raise ValueError(f"{name}={value} must be one of {', '.join(known)}")
        sizes = ((in_channels, WINDOW, STRIDE), (width, 1, 1), (width, 1, 1))
        self.windows = nn.Sequential(*(_layer(inputs, width, side, stride) for inputs, side, stride in sizes))
        self.pooled = readout == "mean"
        hidden = [nn.Conv2d(width, width, 1), nn.ReLU()] if readout == "places_hidden" else []
        self.readout = nn.Sequential(*hidden, nn.Conv2d(width, num_classes, 1))
        # Last, so that everything else starts alike whatever the block.
        self.block = BLOCKS[block](width)

    def forward(self, images: Tensor) -> Tensor:
        """Logits ``[n, num_classes]`` of images ``[n, in_channels, height, width]``, or with one of the read-outs of
        places ``[n, num_classes, height / 4, width / 4]``, sides rounded up."""
        x = self.block(self.windows(images))
        logits: Tensor = self.readout(x.mean((2, 3), keepdim=True) if self.pooled else x)
        return logits.flatten(1) if self.pooled else logits


def seeded_block_cnn(seed: int, in_channels: int, num_classes: int, *, block: str, readout: str = "mean") -> BlockCNN:
    """`BlockCNN` with the start of a seed: windows and read-out are the same for every block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "start", "block_cnn"))
        return BlockCNN(in_channels, num_classes, block=block, readout=readout)


def _layer(inputs: int, outputs: int, side: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, side, stride, side // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
