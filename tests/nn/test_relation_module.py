"""The relation module against loops over ordered pairs, its symmetries and its cost, and the printed mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnrepro.nn.relation_module import RelationModule, relation_as_printed

from .naive_maps import (
    SIZES,
    apart,
    assert_bfloat16_finite,
    assert_same,
    drawn,
    flops_of,
    opened,
    parameters_of,
    permuted,
    reach,
)


def pair_by_pair(block: RelationModule, image: Tensor) -> list[Tensor]:
    """g of every ordered pair, on the two places side by side."""
    weight = torch.cat((block.first.weight, block.second.weight), 1)
    places = image.flatten(-2).unbind(-1)
    hidden = [(weight @ torch.cat((a, b)) + block.first.bias).clamp(min=0) for a in places for b in places]
    return [(block.pair.weight @ h + block.pair.bias).clamp(min=0) for h in hidden]


def added(block: RelationModule, relation: Tensor) -> Tensor:
    first, _, last = block.f
    return last.weight @ (first.weight @ relation + first.bias).clamp(min=0) + last.bias


def by_loops(block: RelationModule, x: Tensor) -> Tensor:
    return torch.stack([image + added(block, sum(pair_by_pair(block, image)))[:, None, None] for image in x])


@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_those_of_loops(size: tuple[int, int]) -> None:
    block = opened(RelationModule(4, hidden=3))
    assert isinstance(block, RelationModule)
    assert_same(block, lambda x: by_loops(block, x), drawn(2, 4, *size))


def test_pairs_are_ordered_and_all_there() -> None:
    block, x = opened(RelationModule(4, hidden=3)), drawn(1, 4, 2, 3)
    with torch.no_grad():
        found = block.relations(x)
        assert found.shape == (1, 6, 6, 3)
        torch.testing.assert_close(found[0].flatten(0, 1), torch.stack(pair_by_pair(block, x[0])))
        assert float((found - found.transpose(1, 2)).abs().max()) > 1e-2


def test_the_printed_mean_is_another_aggregate() -> None:
    """Four times the same places: the mean stays, the sum of the paper is sixteen times as large."""
    block, x = opened(RelationModule(4, hidden=3)), drawn(1, 4, 2, 3)
    assert isinstance(block, RelationModule)
    four = x.repeat(1, 1, 2, 2)
    with torch.no_grad():
        pairs = pair_by_pair(block, x[0])
        for shown in (x, four):
            mean = added(block, sum(pairs) / len(pairs))
            torch.testing.assert_close(relation_as_printed(block, shown), shown + mean[None, :, None, None])
        more = added(block, 16 * sum(pairs))
        torch.testing.assert_close(block(four), four + more[None, :, None, None])
        assert float((block(x) - relation_as_printed(block, x)).abs().max()) > 1e-2


def test_it_commutes_with_every_permutation_and_reaches_everything() -> None:
    block, x = opened(RelationModule(4, hidden=3)), drawn(2, 4, 5, 3)
    assert apart(block, permuted, x) < 1e-13
    assert apart(block, lambda t: t.roll(1, 1), x) > 1e-2  # channels are no places
    assert reach(block, x[:1], 0, 0).all()
    fresh = RelationModule(8).double()
    x = drawn(2, 8, 3, 3)
    assert torch.equal(fresh(x), x)


@pytest.mark.parametrize(("channels", "hidden"), [(64, None), (6, 5), (3, None)])
def test_costs_in_closed_form(channels: int, hidden: int | None) -> None:
    block, h = RelationModule(channels, hidden=hidden), hidden or max(1, channels // 4)
    assert parameters_of(block) == 3 * channels * h + 2 * h**2 + 3 * h + channels
    for height, width in ((1, 1), (5, 3), (16, 16)):
        n = height * width
        wanted = 4 * n * channels * h + 2 * n**2 * h**2 + 2 * h**2 + 2 * h * channels
        assert flops_of(block, 1, channels, height, width) == wanted


def test_bfloat16_is_finite() -> None:
    assert_bfloat16_finite(opened(RelationModule(4, hidden=3)), 4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="channels=0 must be 1 or more"):
        RelationModule(0)
    with pytest.raises(ValueError, match="hidden=0 must be 1 or more"):
        RelationModule(4, hidden=0)
