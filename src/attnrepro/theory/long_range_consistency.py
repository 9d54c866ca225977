"""What a generator can make of a glyph that must agree with one far away (`attnrepro.data.paired_glyphs`).

A convolutional generator whose field, seen from the covered cell, ends before the cell of the other glyph paints
something that does not depend on that glyph's type, given the places. Types are drawn evenly and independently of
places and noise, so whatever is painted is read as the right one of K types with probability exactly 1/K: no training
changes it, and no local generator does better.

Costs count two FLOPs a multiply-add of convolutions, linear maps and attention; biases and norms are left out, as by
torch's ``FlopCounterMode``.
"""

import math
from collections.abc import Sequence

from attnrepro.theory.image_models import Cost, total
from attnrepro.theory.same_different import CELL

# Layers of 3 x 3 cells of each generator: None, as many as link the two glyphs; -1, one too few.
LAYERS: dict[str, int | None] = {
    "local": 1,
    "wide": 1,
    "short": -1,
    "deep": None,
    "deep_full": None,
    "mean": 1,
    "attention": 1,
}
# What links all places at once, where there is such a thing.
LINKS = ("mean", "attention")


def layers(generator: str, cells: int) -> int:
    """Layers of a generator that have a 3 x 3 kernel; each carries things one cell further.

    Raises ``ValueError`` where one layer already links glyphs ``cells`` - 1 cells apart.
    """
    if cells < 3:
        raise ValueError(f"cells={cells} must be 3 or more: one layer links neighbours")
    found = LAYERS[generator]
    if found is None:
        return cells - 1
    return cells - 2 if found < 0 else found


def is_linked(generator: str, cells: int) -> bool:
    """Whether what is painted can depend on the other glyph, whatever the pair of places."""
    return generator in LINKS or layers(generator, cells) >= cells - 1


def best_unlinked_share(types: int) -> float:
    """Share of consistent samples of every generator that is not linked."""
    return 1 / types


def misreading_bound(distances: Sequence[float], types: int, noise: float) -> float:
    """Upper bound on the share of glyphs with Gaussian noise that the judge reads as another type.

    Another type is nearer with probability Q(distance / (2 noise)); summed over all others at the least distance.
    """
    if noise == 0:
        return 0.0
    return min(1.0, (types - 1) * math.erfc(min(distances) / (2 * noise) / math.sqrt(2)) / 2)


def cost(generator: str, width: int, cells: int, reduction: int) -> Cost:
    """Parameters of a generator, and FLOPs of one image."""
    places, pixels, hidden = cells**2, CELL**2, width // reduction
    parts = [affine(2 * pixels, width, places)]
    parts += [affine(9 * width, width, places), affine(width, width, places)] * layers(generator, cells)
    if generator == "attention":
        # Four maps without bias, a gate, and every place by every place for logits and for values.
        parts.append(Cost(4 * width * hidden + 1, 2 * places * 4 * width * hidden + 2 * 2 * places**2 * hidden))
    if generator == "mean":
        # Two linear maps of one vector with a LayerNorm between them.
        parts += [affine(width, hidden, 1), Cost(2 * hidden, 0), affine(hidden, width, 1)]
    parts += [affine(width, width, places)] * 2
    # The head has one bias for all pixels.
    parts.append(Cost(width * pixels + 1, 2 * width * pixels * places))
    return total(*parts)


def affine(inputs: int, outputs: int, times: int) -> Cost:
    """A linear map with bias, at so many places."""
    return Cost(inputs * outputs + outputs, 2 * inputs * outputs * times)


def width_of(generator: str, width: int, cells: int, reduction: int) -> int:
    """Channels of a generator, where those of the attention generator are ``width``.

    ``wide`` is the narrowest with at least the parameters and FLOPs of that one, ``deep`` the one that is nearest to it
    in parameters; all others have ``width`` channels.
    """
    wanted = cost("attention", width, cells, reduction)
    if generator == "wide":
        found = width
        while min(a - b for a, b in zip(cost(generator, found, cells, reduction), wanted, strict=True)) < 0:
            found += 1
        return found
    if generator == "deep":

        def gap(channels: int) -> int:
            return abs(cost(generator, channels, cells, reduction).parameters - wanted.parameters)

        return min(range(1, width + 1), key=gap)
    return width
