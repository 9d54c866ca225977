"""Few-shot classification on paper: chance, and parameters and FLOPs of `attnrepro.nn.few_shot`.

A FLOP count is that of the products in one pass over an episode, two for each multiply-add.
"""

from typing import NamedTuple


class Cost(NamedTuple):
    """Trainable parameters, and FLOPs."""

    parameters: int
    flops: int


def check_shape(**sizes: int) -> None:
    """Raise ``ValueError`` unless every size is 1 or more, and ``pooled`` (which may be 0) not above ``blocks``."""
    for name, size in sizes.items():
        if size < (0 if name == "pooled" else 1):
            raise ValueError(f"{name}={size} must be {0 if name == 'pooled' else 1} or more")
    if sizes.get("pooled", 0) > sizes.get("blocks", sizes.get("pooled", 0)):
        raise ValueError(f"pooled={sizes['pooled']} must not be above blocks={sizes['blocks']}")


def chance(ways: int) -> float:
    """Accuracy of a guess among ``ways`` classes with equally many queries: 1 / ways, so 1 of a single class.

    It is also that of any classifier whose support images were dealt to the classes at random.
    """
    check_shape(ways=ways)
    return 1 / ways


def halved(sides: tuple[int, int]) -> tuple[int, int]:
    """Sides after a 2x2 max-pooling that rounds up."""
    return (sides[0] + 1) // 2, (sides[1] + 1) // 2


def embedding(
    channels: int, sides: tuple[int, int], width: int, blocks: int, pooled: int
) -> tuple[Cost, tuple[int, int]]:
    """Cost of ``ConvEmbedding``, FLOPs of one image, and the sides of its maps."""
    check_shape(channels=channels, height=sides[0], columns=sides[1], width=width, blocks=blocks, pooled=pooled)
    parameters = flops = 0
    for index in range(blocks):
        weights = 9 * (width if index else channels) * width
        parameters += weights + 2 * width
        flops += 2 * weights * sides[0] * sides[1]
        sides = halved(sides) if index < pooled else sides
    return Cost(parameters, flops), sides


def prototypical_comparison(width: int, sides: tuple[int, int], ways: int, queries: int) -> Cost:
    """Cost of ``PrototypicalNetwork.compare``: dot products of queries and prototypes."""
    return Cost(0, 2 * queries * ways * width * sides[0] * sides[1])


def relation_comparison(width: int, sides: tuple[int, int], hidden: int, ways: int, queries: int) -> Cost:
    """Cost of ``RelationNetwork.compare``: half of the first convolution for each class and each query, the second one
    and the linear layers for each pair."""
    first, second = 9 * 2 * width * width, 9 * width * width
    inner = halved(sides)
    last = halved(inner)
    features = width * last[0] * last[1]
    linear = features * hidden + hidden
    by_pair = second * inner[0] * inner[1] + linear
    flops = first // 2 * 2 * sides[0] * sides[1] * (ways + queries) + 2 * by_pair * ways * queries
    return Cost(first + second + 4 * width + linear + hidden + 1, flops)
