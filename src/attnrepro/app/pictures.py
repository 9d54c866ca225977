"""Pictures of trained models for a run's page: attention maps, how spread out they are, and position codes.

They are taken from what a module has anyway: nothing is asked of a table, and what has none of it has no pictures.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.app import view
from attnrepro.app.tracking import Tracker, only_a_view

if TYPE_CHECKING:
    from torch import Tensor, nn

Pixels = list[list[tuple[int, int, int]]]
# Names that models of nn/ give to codes that are added to tokens.
CODES = ("position", "code", "by_position")
# Layers and heads that are shown, and the longest side of a map in entries.
LAYERS, HEADS, SIDE = 4, 8, 256
HEAD_MAPS = "row: query, column: key, a map a head"
# From light to dark and readable without colour: ends of ColorBrewer's Blues.
LIGHT, DARK = (247, 251, 255), (8, 48, 107)


# What a layer read: the layer, its inputs and named inputs, each cut down to one example.
Read = tuple[Any, tuple[Any, ...], dict[str, Any]]


@contextlib.contextmanager
def watched(module: "nn.Module") -> Iterator[dict[str, Read]]:
    """See the first input of every self-attention of ``module`` in the body, whose results stay as they are.

    A self-attention is a part with a method ``weights`` that takes what ``forward`` takes, as
    `attnrepro.nn.self_attention.SelfAttention`. Parts of a compiled model are left alone: they would be compiled anew.
    """
    seen: dict[str, Read] = {}
    parts = [(name, part) for name, part in module.named_modules() if inspect.ismethod(getattr(part, "weights", None))]
    compiled = any(part._compiled_call_impl is not None for part in module.modules())
    hooks = []
    for name, part in [] if compiled else parts[:LAYERS]:

        def keep(layer: Any, inputs: tuple[Any, ...], more: dict[str, Any], name: str = name) -> None:
            if name not in seen:
                seen[name] = layer, *_first(inputs, more)

        hooks.append(part.register_forward_pre_hook(keep, with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _first(inputs: tuple[Any, ...], more: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The first of a batch of examples ``[n, length, embed_dim]``, and of masks that go with each."""
    n = inputs[0].shape[0] if inputs and inputs[0].ndim > 2 else None

    def cut(value: Any) -> Any:
        # A copy: a part of a batch would keep all of it in memory.
        return value[:1].detach().clone() if getattr(value, "ndim", 0) > 2 and value.shape[0] == n else value

    return tuple(map(cut, inputs)), {name: cut(value) for name, value in more.items()}


def show(tracker: Tracker, module: "nn.Module", seen: Mapping[str, Read]) -> None:
    """Log attention maps of one example, the entropy of each of their rows, and position codes."""
    import torch

    entropies: list[float] = []
    for name, (layer, inputs, more) in seen.items():
        with only_a_view("An attention map"), torch.no_grad():
            weights = layer.weights(*inputs, **more)
            maps = weights.reshape(-1, *weights.shape[-3:])[0].float()  # [num_heads, queries, keys]
            entropies += torch.special.entr(maps).sum(-1).flatten().tolist()
            shown = [_shown(head / head.max().clamp(min=1e-12)) for head in maps[:HEADS]]
            tracker.picture(
                f"attention/{view.name(name)}", side_by_side(shown), "row: query, column: key, a map a head"
            )
    tracker.histogram("attention/entropy_nats", entropies)
    with only_a_view("A picture of positions"):
        for name, code in codes(module):
            largest = code.abs().max().clamp(min=1e-12)
            caption = f"row: position, column: component, from -{largest:.3g} (light) to {largest:.3g}"
            tracker.picture(f"position/{view.name(name)}", heat(_shown((code / largest + 1) / 2)), caption)


def codes(module: "nn.Module") -> Iterator[tuple[str, "Tensor"]]:
    """Position codes ``[length, embed_dim]`` of a module by name; of several models the first one's."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name.rsplit(".", 1)[-1] in CODES and tensor.ndim > 1:
            yield name, tensor.detach().reshape(-1, *tensor.shape[-2:])[0].float()


def _shown(values: "Tensor") -> list[list[float]]:
    shown: list[list[float]] = values[:SIDE, :SIDE].cpu().tolist()
    return shown


def heat(values: Sequence[Sequence[float]], side: int = 128) -> Pixels:
    """Pixels of values from 0 (light) to 1 (dark), each a square of so many pixels that the map has about ``side``.

    What is no number is white.
    """
    if not values or not values[0]:
        return []
    scale = max(1, side // max(len(values), len(values[0])))
    pixels = []
    for line in values:
        row = [colour for value in line for colour in [_colour(value)] * scale]
        pixels += [row] * scale
    return pixels


def _colour(value: float) -> tuple[int, int, int]:
    if value != value:
        return 255, 255, 255
    share = min(1.0, max(0.0, value))
    red, green, blue = (round(light + share * (dark - light)) for light, dark in zip(LIGHT, DARK, strict=True))
    return red, green, blue


def side_by_side(maps: Sequence[Sequence[Sequence[float]]], gap: int = 4) -> Pixels:
    """Maps of one shape in a row, white between them."""
    drawn = [heat(one) for one in maps]
    white = [(255, 255, 255)] * gap
    return [[pixel for part in line for pixel in [*part, *white]][:-gap] for line in zip(*drawn, strict=True)]
