"""Few-shot classifiers: a query image against a few images of classes that were never trained on."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from attnrepro.theory.few_shot import check_shape


def _pool() -> nn.Module:
    # Rounded up, so that a map of one pixel stays one.
    return nn.MaxPool2d(2, ceil_mode=True)


class ConvEmbedding(nn.Module):
    """Blocks of a 3x3 convolution without bias, BatchNorm and ReLU; the first ``pooled`` end with a 2x2 max-pooling.

    Args:
        channels: of the images.
        width: channels of every block.
        blocks: number of blocks.
        pooled: blocks that halve both sides, rounded up.

    FLOPs of an image: 18 x inputs x width x height x width of the map, summed over blocks; parameters: 9 x inputs x
    width + 2 x width a block (`attnrepro.theory.few_shot`).

    Raises:
        ValueError: a size below 1, or more pooled blocks than blocks.

    Source: Snell et al. 2017, Prototypical Networks for Few-shot Learning, section 3.1 (four blocks of 64, all pooled);
    Sung et al. 2018, Learning to Compare, section 3.4 (the last two not pooled).
    """

    def __init__(self, channels: int, width: int = 64, *, blocks: int = 4, pooled: int = 2) -> None:
        super().__init__()
        check_shape(channels=channels, width=width, blocks=blocks, pooled=pooled)
        layers: list[nn.Module] = []
        for index in range(blocks):
            inputs = width if index else channels
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [_pool()] if index < pooled else []
        self.blocks = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``[n, channels, height, width]`` to maps ``[n, width, height', width']``."""
        out: Tensor = self.blocks(images)
        return out


class Embedded(NamedTuple):
    """An episode's maps: ``support`` ``[ways, shots, width, h, w]``, ``query`` ``[n, width, h, w]``."""

    support: Tensor
    query: Tensor


class FewShot(nn.Module):
    """What both networks share: support and query images go through one embedding, in one batch."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def embed(self, support: Tensor, query: Tensor) -> Embedded:
        """Maps of ``support`` ``[ways, shots, channels, h, w]`` and ``query`` ``[n, channels, h, w]``."""
        maps = self.embedding(torch.cat([support.flatten(0, 1), query]))
        shown = support.shape[0] * support.shape[1]
        return Embedded(maps[:shown].view(*support.shape[:2], *maps.shape[1:]), maps[shown:])

    def compare(self, embedded: Embedded) -> Tensor:
        """Scores ``[n, ways]``, the highest for the class that a query is taken for."""
        raise NotImplementedError

    def forward(self, support: Tensor, query: Tensor) -> Tensor:
        """Scores ``[n, ways]`` of ``query`` ``[n, channels, h, w]`` for the classes of ``support``
        ``[ways, shots, channels, h, w]``."""
        return self.compare(self.embed(support, query))


class PrototypicalNetwork(FewShot):
    """A class is the mean of its embedded images; a score is minus the squared distance from it.

    Scores are logits of a softmax over the episode's classes. Permuting classes permutes scores, permuting the images
    of a class changes nothing, and with one image a class, query and class may change places. Comparing costs
    2 x n x ways x dimensions FLOPs and has no parameter.

    Args:
        embedding: images to maps, which are read as vectors.

    Source: Snell et al. 2017, section 2.2, equations 1 and 2.
    """

    def compare(self, embedded: Embedded) -> Tensor:
        """Minus squared Euclidean distances ``[n, ways]``."""
        prototypes = embedded.support.mean(1).flatten(1)
        return -squared_distances(embedded.query.flatten(1), prototypes)


class RelationNetwork(FewShot):
    """A learned comparison: class and query maps, one upon the other, through two convolutions and two linear layers.

    A class is the sum of its embedded images. The pair's 2 x width channels go through two blocks (3x3 convolution to
    ``width`` channels, BatchNorm, ReLU, 2x2 max-pooling), a hidden layer with ReLU, and a sigmoid: a score in (0, 1)
    for each pair, by itself and not over the classes. Permuting classes permutes scores; query and class may not change
    places. The first convolution of concatenated maps is the sum of one of the class and one of the query, so each is
    taken once and not once a pair: 18 x 2 width x width x pixels x (n + ways) / 2 FLOPs in place of n x ways.

    Args:
        embedding: images to maps of ``width`` channels.
        width: channels.
        sides: height and width of the embedding's maps.
        hidden: units of the hidden layer, 8 in the paper.

    Source: Sung et al. 2018, sections 3.1, 3.2 and 3.4, figure 2.
    """

    def __init__(self, embedding: nn.Module, width: int, sides: tuple[int, int], *, hidden: int = 8) -> None:
        super().__init__(embedding)
        check_shape(width=width, height=sides[0], columns=sides[1], hidden=hidden)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1, bias=False)
        self.after_join = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), _pool())
        self.second = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), _pool()
        )
        pixels = -(-sides[0] // 4) * -(-sides[1] // 4)
        self.score = nn.Sequential(nn.Linear(width * pixels, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def compare(self, embedded: Embedded) -> Tensor:
        """Relation scores ``[n, ways]`` in (0, 1)."""
        return torch.sigmoid(self.score(self.relations(embedded)).squeeze(-1))

    def relations(self, embedded: Embedded) -> Tensor:
        """What the linear layers read of every pair: vectors ``[n, ways, features]``."""
        classes, query = embedded.support.sum(1), embedded.query
        of_class, of_query = torch.split(self.join.weight, query.shape[1], dim=1)
        joined = (
            conv2d(classes, of_class, padding=1)[None] + conv2d(query, of_query, padding=1)[:, None]
        )  # [n, ways, width, h, w]
        pairs: Tensor = self.second(self.after_join(joined.flatten(0, 1)))
        return pairs.reshape(*joined.shape[:2], -1)


def squared_distances(query: Tensor, points: Tensor) -> Tensor:
    """||query_i - point_j||² of ``query`` ``[n, d]`` and ``points`` ``[m, d]``, ``[n, m]``; never below 0."""
    norms = query.square().sum(1)[:, None] + points.square().sum(1)
    return (norms - 2 * query @ points.T).clamp(min=0)


def nearest_neighbour(support: Tensor, query: Tensor) -> Tensor:
    """Minus the squared distance to the nearest image of each class, ``[n, ways]``.

    Args:
        support: pixels or embeddings ``[ways, shots, ...]``.
        query: ``[n, ...]``.
    """
    ways, shots = support.shape[:2]
    distances = squared_distances(query.flatten(1), support.flatten(0, 1).flatten(1))
    return -distances.view(-1, ways, shots).amin(2)
