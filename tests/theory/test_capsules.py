"""Closed forms of capsules, by counting and by brute force."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from attnrepro.nn.capsules import dynamic_routing, routing_as_printed
from attnrepro.theory import capsules


@pytest.mark.parametrize("iterations", [1, 2, 4])
@pytest.mark.parametrize(("children", "parents", "vote"), [(36, 10, 4.0), (5, 3, 0.25), (1, 2, 1.0)])
def test_lengths_where_all_votes_agree(children: int, parents: int, vote: float, iterations: int) -> None:
    direction = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64) / 3
    votes = (vote * direction).expand(1, children, parents, 3)
    made, coupling = dynamic_routing(votes, iterations)
    assert made.norm(dim=-1).flatten().tolist() == pytest.approx(
        [capsules.agreed_length(children, parents, vote)] * parents
    )
    assert float(torch.special.entr(coupling).sum(2).mean()) == pytest.approx(capsules.first_coupling_entropy(parents))
    printed, weights = routing_as_printed(votes, iterations)
    assert printed.norm(dim=-1).flatten().tolist() == pytest.approx([capsules.agreed_length_as_printed(vote)] * parents)
    handed_out = capsules.first_parent_sum_as_printed(children, parents)
    assert weights.sum(2).flatten().tolist() == pytest.approx([float(handed_out)] * children)


def test_numbers_by_hand() -> None:
    assert capsules.first_parent_sum_as_printed(1152, 10) == Fraction(5, 576)
    assert capsules.first_coupling_entropy(10) == math.log(10)
    # Sabour et al. 2017: 1152 primary capsules of 8 components, 10 of 16.
    paper = capsules.layer(1152, 10, 8, 16, 3)
    assert paper.parameters == 1474560
    assert paper.flops == 2 * 1474560 + 5 * 2 * 1152 * 10 * 16
    assert capsules.layer(1152, 10, 8, 16, 3, shared=True) == (1280, paper.flops)


@pytest.mark.parametrize(("shape", "count"), [((1, 12, 12), 9), ((1, 7, 7), 1), ((1, 7, 8), 1), ((2, 9, 15), 2 * 5)])
def test_places_of_the_map(shape: tuple[int, int, int], count: int) -> None:
    starts = [len(range(0, side - 5 + 1 - 3 + 1, 2)) for side in shape[1:]]
    assert capsules.places(shape) == math.prod(starts) == count


def test_too_small_an_image() -> None:
    with pytest.raises(ValueError, match=r"image_shape=\(1, 6, 20\) must be at least 7 pixels"):
        capsules.places((1, 6, 20))
