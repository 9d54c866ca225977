"""Alphabets of drawn signs: every class a few curved strokes, every image of it drawn anew.

A stand-in for Omniglot (Lake et al. 2015) that needs no download. A sign is ``STROKES`` quadratic Bezier curves with
random control points in the square [-0.75, 0.75]². A drawing moves each control point a little, then turns, scales,
shears and shifts the whole sign, draws it with a pen of random width and adds noise.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnrepro.config import in_range
from attnrepro.data.streams import generator

STROKES = 3
# Points along a stroke, close enough for the pen to leave no gaps.
POINTS = 12
# Images that are drawn at once.
BLOCK = 200


@dataclass(frozen=True)
class StrokeGlyphs:
    """How signs vary between drawings of one class; lengths are in units of half a side.

    ``side``: pixels. ``wobble``: standard deviation of each control point. ``turn``: largest angle in degrees.
    ``scale``: largest change of either side, as a share. ``shear``: largest slope. ``shift``: largest move. ``pen``:
    mean half-width of a stroke, varied by a third. ``noise``: standard deviation of Gaussian noise on pixels in [0, 1].

    Raises ``ValueError`` for a value out of range.
    """

    side: int = 16
    wobble: float = 0.08
    turn: float = 20.0
    scale: float = 0.2
    shear: float = 0.2
    shift: float = 0.15
    pen: float = 0.09
    noise: float = 0.1

    def __post_init__(self) -> None:
        in_range(self, side=(4, 1024), wobble=(0, 1), turn=(0, 180), scale=(0, 0.9), shear=(0, 1), shift=(0, 1))
        in_range(self, pen=(0.01, 1), noise=(0, 10))

    def draw(self, signs: Tensor, stream: torch.Generator) -> Tensor:
        """A drawing of each of ``signs`` ``[n, STROKES, 3, 2]``, ``[n, 1, side, side]`` in float32."""
        return torch.cat([self._draw(part, stream) for part in torch.split(signs, BLOCK)])

    def _draw(self, signs: Tensor, stream: torch.Generator) -> Tensor:
        n, device = len(signs), signs.device

        def spread(most: float, *shape: int) -> Tensor:
            return most * (2 * torch.rand(n, *shape, generator=stream, device=device) - 1)

        points = signs + self.wobble * torch.randn(signs.shape, generator=stream, device=device)
        angle = spread(math.radians(self.turn))
        turned = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).view(n, 2, 2)
        sheared = torch.eye(2, device=device).repeat(n, 1, 1)
        sheared[:, 0, 1] = spread(self.shear)
        affine = turned @ sheared * (1 + spread(self.scale, 2))[:, None]
        curve = _along(points).flatten(1, 2) @ affine.transpose(1, 2) + spread(self.shift, 1, 2)
        pen = self.pen * (1 + spread(1 / 3))
        middles = (torch.arange(self.side, device=device) + 0.5) * 2 / self.side - 1
        rows = (middles[None, :, None] - curve[:, None, :, 1]).square()
        columns = (middles[None, :, None] - curve[:, None, :, 0]).square()
        nearest = (rows[:, :, None] + columns[:, None]).amin(-1)
        images = torch.exp(-nearest / (2 * pen.square())[:, None, None])
        return (images + self.noise * torch.randn(images.shape, generator=stream, device=device))[:, None]


def alphabet(classes: int, seed: int, *names: object) -> Tensor:
    """Signs of ``classes`` classes, ``[classes, STROKES, 3, 2]``: control points (x, y), from the stream ``names`` of
    ``seed``; the first ones are the same whatever their number."""
    stream = generator(seed, "alphabet", *names)
    return 0.75 * (2 * torch.rand(classes, STROKES, 3, 2, generator=stream) - 1)


def _along(points: Tensor) -> Tensor:
    """Points along quadratic Bezier curves: ``[..., 3, 2]`` to ``[..., POINTS, 2]``."""
    t = torch.linspace(0, 1, POINTS, device=points.device)
    weights = torch.stack([(1 - t) ** 2, 2 * t * (1 - t), t**2], -1)
    return weights @ points
