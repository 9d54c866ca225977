"""Few-shot networks: values and gradients against explicit loops, symmetries, reach, sizes and costs."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.few_shot import (
    ConvEmbedding,
    Embedded,
    FewShot,
    PrototypicalNetwork,
    RelationNetwork,
    nearest_neighbour,
    squared_distances,
)
from attnrepro.theory import few_shot as closed

WIDTH = 4


def embedding(channels: int = 1) -> ConvEmbedding:
    torch.manual_seed(0)
    made = ConvEmbedding(channels, WIDTH, blocks=3, pooled=2).double()
    # Running statistics that are not those of the start.
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
    return made.eval()


def network(kind: str, side: int = 8, channels: int = 1) -> FewShot:
    made = embedding(channels)
    maps = made(torch.zeros(1, channels, side, side).double()).shape[2:]
    torch.manual_seed(1)
    if kind == "prototypical":
        return PrototypicalNetwork(made).double().eval()
    return RelationNetwork(made, WIDTH, (maps[0], maps[1]), hidden=5).double().eval()


def episode(ways: int = 3, shots: int = 2, queries: int = 4, side: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    support = torch.randn(ways, shots, 1, side, side, dtype=torch.float64, requires_grad=True)
    return support, torch.randn(queries, 1, side, side, dtype=torch.float64, requires_grad=True)


# --- an independent reference: one image, one pixel, one channel at a time ---


def slow_block(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, pool: bool) -> Tensor:
    """One 3x3 convolution, BatchNorm as it is tested, ReLU and 2x2 max-pooling of ``x`` ``[channels, h, w]``."""
    _, height, width = x.shape
    assert norm.running_mean is not None and norm.running_var is not None
    rows = []
    for channel in range(conv.out_channels):
        for i, j in itertools.product(range(height), range(width)):
            total = x.new_zeros(())
            for a, b in itertools.product((-1, 0, 1), repeat=2):
                if 0 <= i + a < height and 0 <= j + b < width:
                    total = total + (conv.weight[channel, :, a + 1, b + 1] * x[:, i + a, j + b]).sum()
            scaled = (total - norm.running_mean[channel]) / (norm.running_var[channel] + norm.eps).sqrt()
            rows.append((scaled * norm.weight[channel] + norm.bias[channel]).clamp(min=0))
    out = torch.stack(rows).view(-1, height, width)
    if not pool:
        return out
    pooled = [
        out[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten(1).amax(1)
        for i, j in itertools.product(range(math.ceil(height / 2)), range(math.ceil(width / 2)))
    ]
    return torch.stack(pooled, 1).view(-1, math.ceil(height / 2), math.ceil(width / 2))


def slow_embedding(made: ConvEmbedding, image: Tensor) -> Tensor:
    layers, x = list(made.blocks), image
    for index, layer in enumerate(layers):
        if isinstance(layer, nn.Conv2d):
            norm = layers[index + 1]
            assert isinstance(norm, nn.BatchNorm2d)
            pooled = index + 3 < len(layers) and isinstance(layers[index + 3], nn.MaxPool2d)
            x = slow_block(x, layer, norm, pooled)
    return x


def slow_scores(net: FewShot, support: Tensor, query: Tensor) -> Tensor:
    made = net.embedding
    assert isinstance(made, ConvEmbedding)
    rows = []
    for image in query:
        found = slow_embedding(made, image)
        for images in support:
            shown = [slow_embedding(made, one) for one in images]
            if isinstance(net, PrototypicalNetwork):
                rows.append(-((found - sum(shown[1:], shown[0]) / len(shown)) ** 2).sum())
                continue
            assert isinstance(net, RelationNetwork)
            x = torch.cat([sum(shown[1:], shown[0]), found])
            for conv, part in ((net.join, net.after_join), (net.second[0], net.second[1:])):
                assert isinstance(conv, nn.Conv2d) and isinstance(part[0], nn.BatchNorm2d)
                x = slow_block(x, conv, part[0], pool=True)
            first, _, last = net.score
            assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
            hidden = (first.weight @ x.flatten() + first.bias).clamp(min=0)
            rows.append(1 / (1 + torch.exp(-(last.weight[0] @ hidden + last.bias[0]))))
    return torch.stack(rows).view(len(query), len(support))


@pytest.mark.parametrize("kind", ["relation", "prototypical"])
def test_values_and_gradients_are_those_of_loops(kind: str) -> None:
    net, (support, query) = network(kind, 5), episode(2, 2, 2, 5)
    weights = torch.randn(2, 2, dtype=torch.float64)
    inputs = [support, query, *net.parameters()]
    fast, slow = net(support, query), slow_scores(net, support, query)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    got, expected = (torch.autograd.grad((out * weights).sum(), inputs) for out in (fast, slow))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)
    assert any(gradient.abs().max() > 1e-6 for gradient in got[2:])


def test_a_pair_is_the_concatenation_of_both_maps() -> None:
    """What is not built: the join of every pair of maps, in training mode too, where BatchNorm reads all of them."""
    net = network("relation").train()
    assert isinstance(net, RelationNetwork)
    maps = net.embed(*episode())
    classes = maps.support.sum(1)
    pairs = torch.stack([torch.cat([c, q]) for q in maps.query for c in classes])
    joined = net.second(net.after_join(net.join(pairs))).flatten(1).view(4, 3, -1)
    torch.testing.assert_close(net.relations(maps), joined, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["relation", "prototypical"])
def test_classes_images_and_queries_in_any_order(kind: str) -> None:
    net, (support, query) = network(kind), episode(4, 3, 5)
    scores = net(support, query)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(net(support[order], query), scores[:, order], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net(support[:, [2, 0, 1]], query), scores, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net(support, query[[4, 2]]), scores[[4, 2]], rtol=1e-12, atol=1e-12)
    moved = support.roll(1, dims=0).clone()
    moved[0, 0], moved[1, 0] = moved[1, 0].clone(), moved[0, 0].clone()
    assert not torch.allclose(net(moved, query), net(support.roll(1, dims=0), query), rtol=1e-9, atol=0)


def test_query_and_class_change_places_in_distances_only() -> None:
    support, query = episode(1, 1, 1)
    swapped = query[:, None], support[:, 0]
    prototypical, relation = network("prototypical"), network("relation")
    torch.testing.assert_close(prototypical(*swapped), prototypical(support, query), rtol=1e-12, atol=0)
    assert not torch.allclose(relation(*swapped), relation(support, query), rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", ["relation", "prototypical"])
def test_a_score_reaches_its_query_and_its_class_and_nothing_else(kind: str) -> None:
    net, (support, query) = network(kind), episode(3, 2, 4)
    scores = net(support, query)
    for i, j in itertools.product(range(4), range(3)):
        of_support, of_query = torch.autograd.grad(scores[i, j], [support, query], retain_graph=True)
        assert (of_support.flatten(1).abs().amax(1) > 0).tolist() == [j == k for k in range(3)]
        assert (of_query.flatten(1).abs().amax(1) > 0).tolist() == [i == k for k in range(4)]
    together = torch.autograd.grad(scores.softmax(1)[0, 0], support)[0]
    assert together.flatten(1).abs().amax(1).min() > 0


def test_relation_scores_are_no_distribution_over_classes() -> None:
    scores = network("relation")(*episode())
    assert ((scores > 0) & (scores < 1)).all()
    assert not torch.allclose(scores.sum(1), torch.ones(4).double(), atol=1e-3)


def test_one_shot_sums_and_means_are_the_image() -> None:
    net, (support, query) = network("prototypical"), episode(3, 1, 4)
    maps = net.embed(support, query)
    expected = -torch.stack([((q - s[0]) ** 2).sum() for q in maps.query for s in maps.support]).view(4, 3)
    torch.testing.assert_close(net(support, query), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(nearest_neighbour(*maps), expected, rtol=1e-10, atol=1e-12)


def test_more_shots_are_summed_in_relations_and_averaged_in_prototypes() -> None:
    """A class of the same image twice: the same prototype, another relation."""
    support, query = episode(3, 1, 4)
    twice = support.expand(-1, 2, -1, -1, -1)
    prototypical, relation = network("prototypical"), network("relation")
    torch.testing.assert_close(prototypical(twice, query), prototypical(support, query), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(relation(twice, query), relation(support, query), rtol=1e-9, atol=0)


def test_nearest_neighbour_by_hand() -> None:
    support = torch.tensor([[[0.0, 0.0], [4.0, 0.0]], [[0.0, 3.0], [9.0, 9.0]]])
    query = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    assert nearest_neighbour(support, query).tolist() == [[-1.0, -18.0], [-4.0, -1.0]]
    far = torch.full((1, 3), 1e4)
    assert squared_distances(far, far).tolist() == [[0.0]]


@pytest.mark.parametrize("sides", [(1, 1), (1, 7), (5, 3), (16, 16)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 2, 4)])
def test_odd_and_tiny_sizes_and_their_costs(sides: tuple[int, int], shape: tuple[int, int, int]) -> None:
    ways, shots, queries = shape
    once, maps = closed.embedding(2, sides, WIDTH, 3, 2)
    made = ConvEmbedding(2, WIDTH, blocks=3, pooled=2).eval()
    assert made(torch.zeros(1, 2, *sides)).shape == (1, WIDTH, *maps)
    images = ways * shots + queries
    costs = {
        "relation": closed.relation_comparison(WIDTH, maps, 5, ways, queries),
        "prototypical": closed.prototypical_comparison(WIDTH, maps, ways, queries),
    }
    nets: dict[str, FewShot] = {
        "relation": RelationNetwork(made, WIDTH, maps, hidden=5).eval(),
        "prototypical": PrototypicalNetwork(made).eval(),
    }
    for name, net in nets.items():
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            scores = net(torch.randn(ways, shots, 2, *sides), torch.randn(queries, 2, *sides))
        assert scores.shape == (queries, ways) and scores.isfinite().all()
        assert counter.get_total_flops() == once.flops * images + costs[name].flops
        assert sum(part.numel() for part in net.parameters()) == once.parameters + costs[name].parameters


@pytest.mark.parametrize("kind", ["relation", "prototypical"])
def test_bf16_is_finite_and_near(kind: str) -> None:
    net, (support, query) = network(kind), episode()
    exact = net(support, query)
    coarse = net.to(torch.bfloat16)(support.bfloat16(), query.bfloat16()).double()
    assert coarse.isfinite().all()
    torch.testing.assert_close(coarse, exact, rtol=0.2, atol=0.2 * float(exact.detach().abs().max()))


def test_the_papers_sizes() -> None:
    """Snell et al.: 84 x 84 through four pooled blocks of 64 gives 5 x 5 x 64 = 1600 components without rounding up."""
    assert closed.embedding(3, (80, 80), 64, 4, 4)[1] == (5, 5)
    made = ConvEmbedding(3, 64, blocks=4, pooled=4)
    assert sum(p.numel() for p in made.parameters()) == 9 * 64 * (3 + 3 * 64) + 4 * 128


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="pooled=5 must not be above blocks=4"):
        ConvEmbedding(1, 8, pooled=5)
    with pytest.raises(ValueError, match="width=0 must be 1 or more"):
        ConvEmbedding(1, 0)
    with pytest.raises(ValueError, match="hidden=0 must be 1 or more"):
        RelationNetwork(ConvEmbedding(1, 4), 4, (2, 2), hidden=0)
    with pytest.raises(NotImplementedError):
        FewShot(nn.Identity()).compare(Embedded(torch.zeros(1, 1, 1), torch.zeros(1, 1)))
