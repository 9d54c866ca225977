"""Episodes: classes and images kept apart, queries balanced, support dealt at random."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnrepro.data.episodes import dealt_at_random, episode, split_classes
from attnrepro.data.streams import generator


def numbered(classes: int, images: int) -> Tensor:
    """A pool whose images say class and number: class + number / 1000."""
    return (torch.arange(classes)[:, None] + torch.arange(images) / 1000).double()[:, :, None, None, None]


def stream() -> torch.Generator:
    return generator(0, "test episodes")


def test_images_belong_to_their_classes_and_none_is_shown_and_asked() -> None:
    pool, draws = numbered(7, 9), stream()
    seen: set[float] = set()
    for _ in range(50):
        found = episode(pool, 3, 2, 4, draws)
        assert found.support.shape == (3, 2, 1, 1, 1) and found.query.shape == (12, 1, 1, 1)
        assert found.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        classes = found.support.flatten(1).long()
        assert (classes == classes[:, :1]).all() and len(set(classes[:, 0].tolist())) == 3
        assert (found.query.flatten().long() == classes[found.labels, 0]).all()
        shown, asked = found.support.flatten().tolist(), found.query.flatten().tolist()
        assert len({*shown, *asked}) == len(shown) + len(asked)
        seen |= {*shown, *asked}
    assert len(seen) == 63


def test_equal_streams_give_equal_episodes() -> None:
    one, two = (episode(numbered(5, 6), 4, 1, 2, stream()) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a, b)


def test_dealt_support_is_the_same_images_in_random_places() -> None:
    found, draws = episode(numbered(5, 6), 5, 2, 2, stream()), stream()
    rights = []
    for _ in range(400):
        dealt = dealt_at_random(found, draws)
        assert sorted(dealt.support.flatten().tolist()) == sorted(found.support.flatten().tolist())
        assert torch.equal(dealt.query, found.query)
        rights.append(float((dealt.support.flatten().long() == found.support.flatten().long()).double().mean()))
    # Each place has an image of its class with probability 1/5.
    assert abs(sum(rights) / len(rights) - 0.2) < 0.03


def test_classes_are_split_without_overlap() -> None:
    parts = split_classes(10, 3, 2)
    assert [list(part) for part in parts] == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]


def test_impossible_episodes_are_refused() -> None:
    pool = numbered(3, 4)
    with pytest.raises(ValueError, match="ways=4 must lie between 1 and the 3 classes"):
        episode(pool, 4, 1, 1, stream())
    with pytest.raises(ValueError, match="shots=3 and queries=2 must be 1 or more, together at most 4 images"):
        episode(pool, 2, 3, 2, stream())
    with pytest.raises(ValueError, match="validation=5 and test=5 must be 1 or more and leave some of 10"):
        split_classes(10, 5, 5)
