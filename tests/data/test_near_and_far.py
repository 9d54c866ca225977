"""Two questions at once: every place and answer against the definition, sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from attnrepro.data.near_and_far import draw, stacked, vocabulary


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("length", "symbols", "asked"), [(8, 2, 1), (32, 8, 4), (64, 5, 9)])
def test_every_sequence_is_as_defined(length: int, symbols: int, asked: int) -> None:
    made = draw(200, length, symbols, asked, stream())
    assert made.tokens.shape == (200, length) and made.places.shape == made.answers.shape == (200, 2, asked)
    sides = set()
    for tokens, (near, far), (before, marked) in zip(
        made.tokens.tolist(), made.places.tolist(), made.answers.tolist(), strict=True
    ):
        assert all(0 <= token < vocabulary(symbols) for token in tokens)
        sources = [at for at, token in enumerate(tokens) if symbols <= token < 2 * symbols]
        assert len(sources) == 1
        source = sources[0]
        assert sorted(at for at, token in enumerate(tokens) if token == 2 * symbols) == sorted(near)
        assert sorted(at for at, token in enumerate(tokens) if token == 2 * symbols + 1) == sorted(far)
        assert len({*near, *far, source}) == 2 * asked + 1
        assert all(abs(at - source) >= length // 2 for at in far)
        assert source < length // 4 or source >= length - length // 4
        assert marked == [tokens[source] - symbols] * asked
        # Plain symbols alone stand before a near question.
        assert before == [tokens[at - 1] for at in near] and max(before) < symbols
        sides.add(source < length // 2)
    assert sides == {True, False}


def test_answers_are_uniform_and_those_of_both_kinds_independent() -> None:
    made = draw(20_000, 16, 4, 2, stream(1))
    near, far = made.answers[:, 0, 0], made.answers[:, 1, 0]
    table = torch.bincount(near * 4 + far, minlength=16).double() / 20_000
    assert float((table - 1 / 16).abs().max()) < 5 * (1 / 16 / 20_000) ** 0.5


def test_a_stream_gives_the_same_again_and_seeds_stand_side_by_side() -> None:
    first, again, other = draw(3, 16, 4, 2, stream()), draw(3, 16, 4, 2, stream()), draw(3, 16, 4, 2, stream(1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    both = stacked([first, other])
    assert torch.equal(both.tokens[0], first.tokens) and torch.equal(both.answers[1], other.answers)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ((0, 16, 4, 2), "n=0 must be 1 or more"),
        ((3, 16, 1, 2), "symbols=1 must be 2 or more"),
        ((3, 16, 4, 0), "asked=0 must be 1 or more"),
        ((3, 18, 4, 2), "length=18 must be a multiple of 4"),
        ((3, 16, 4, 5), "with room for asked=5"),
    ],
)
def test_what_does_not_fit_is_refused(sizes: tuple[int, int, int, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        draw(*sizes, stream())
