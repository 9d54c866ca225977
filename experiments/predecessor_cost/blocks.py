"""The blocks of predecessor_cost by name, as modules on maps of one size."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from attnrepro.nn.capsules import CapsuleLayer
from attnrepro.nn.convnext import ConvNeXtBlock
from attnrepro.nn.criss_cross import CrissCross
from attnrepro.nn.global_context import GlobalAverageAdd, GlobalContext
from attnrepro.nn.linear_attention import linear_attention
from attnrepro.nn.low_rank_attention import low_rank_attention
from attnrepro.nn.map_attention import MapAttention
from attnrepro.nn.non_local import NonLocal, non_local_as_printed
from attnrepro.nn.relation_module import RelationModule
from attnrepro.nn.sagan_attention import SaganAttention
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.nn.squeeze_excitation import SqueezeExcitation
from attnrepro.nn.strided_attention import strided_attention
from attnrepro.nn.swin import SwinPair
from attnrepro.nn.window_attention import window_attention
from attnrepro.theory.predecessor_cost import Sizes


class OnPlaces(nn.Module):
    """Attention between four matrices, on the places of a map row by row: ``mix(query, key, value)`` of all heads."""

    def __init__(self, channels: int, num_heads: int, mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mix = SelfAttention(channels, num_heads), mix

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` to the same shape."""
        a, places = self.layer, x.flatten(-2).mT
        query, key, value = (
            torch.unflatten(w(places), -1, (a.num_heads, -1)).transpose(1, 2) for w in (a.w_query, a.w_key, a.w_value)
        )
        mixed: Tensor = a.w_out(self.mix(query, key, value).transpose(1, 2).flatten(2))
        return torch.unflatten(mixed.mT, -1, x.shape[-2:])


class LowRank(OnPlaces):
    """The same with learned mixtures of the places, of which there must be as many as it was made for."""

    def __init__(self, channels: int, num_heads: int, mixtures: int, places: int) -> None:
        super().__init__(channels, num_heads, self._mix)
        self.mixtures = nn.Parameter(torch.randn(2, mixtures, places) / math.sqrt(places))

    def _mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key_mix, value_mix = self.mixtures
        return low_rank_attention(query, key, value, key_mix, value_mix)


class PlacesAsCapsules(nn.Module):
    """Every place of a map votes for the parents, with matrices that all places share."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.layer = CapsuleLayer(s.parents, s.channels, s.parent_dim, iterations=s.iterations)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` to ``[batch, parents, parent_dim]``."""
        out: Tensor = self.layer(x.flatten(-2).mT)
        return out


class AsPrinted(nn.Module):
    """A non-local block that is sub-sampled as document 004 prints it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = NonLocal(channels)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` to the same shape."""
        return non_local_as_printed(self.block, x)


def make(name: str, side: int, s: Sizes) -> nn.Module:
    """The block of a name for maps ``[batch, channels, side, side]``, made on the default device."""
    c, h = s.channels, s.num_heads
    # The closed forms are those of the papers' reductions, which are the defaults of the modules.
    makers: dict[str, Callable[[], nn.Module]] = {
        "squeeze_excitation": lambda: SqueezeExcitation(c),
        "global_average_add": lambda: GlobalAverageAdd(c),
        "global_context": lambda: GlobalContext(c),
        "non_local": lambda: NonLocal(c),
        "non_local_pooled": lambda: NonLocal(c, pool=2),
        "non_local_as_printed": lambda: AsPrinted(c),
        "criss_cross": lambda: CrissCross(c, recurrence=1),
        "criss_cross_twice": lambda: CrissCross(c),
        "sagan": lambda: SaganAttention(c),
        "relation": lambda: RelationModule(c),
        "capsules": lambda: PlacesAsCapsules(s),
        "swin_pair": lambda: SwinPair(c, num_heads=h, window=s.window),
        "convnext": lambda: ConvNeXtBlock(c),
        "map_attention": lambda: MapAttention(c, num_heads=h),
        "strided": lambda: OnPlaces(c, h, partial(strided_attention, stride=side)),
        "window": lambda: OnPlaces(c, h, partial(window_attention, width=s.neighbours)),
        "linear": lambda: OnPlaces(c, h, linear_attention),
        "low_rank": lambda: LowRank(c, h, s.mixtures, side**2),
    }
    return makers[name]()
