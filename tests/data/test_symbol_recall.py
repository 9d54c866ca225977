"""Sequences of the recall task."""

from __future__ import annotations

import pytest
import torch

from attnrepro.data.streams import generator
from attnrepro.data.symbol_recall import draw, stacked


def test_a_sequence_is_a_marked_symbol_others_and_a_question() -> None:
    tokens, answers = draw(300, 5, 7, generator(0, "recall"))
    assert tokens.shape == (300, 8, 7) and answers.shape == (300,)
    for sequence, answer in zip(tokens.tolist(), answers.tolist(), strict=True):
        first, *others, question = sequence
        assert first == [float(k == answer) for k in range(5)] + [1.0, 0.0]
        assert all(sum(token[:5]) == 1 and token[5:] == [0.0, 0.0] for token in others)
        assert question == [0.0] * 6 + [1.0]
    symbols = tokens[:, :-1, :5].sum(0)
    assert (symbols > 35).all()  # each symbol at each place, expected 60 times


def test_nothing_but_the_first_token_tells_the_answer() -> None:
    tokens, answers = draw(20000, 4, 3, generator(1, "recall"))
    agree = (tokens[:, 1:-1, :4].argmax(-1) == answers[:, None]).double().mean(0)
    assert (agree - 0.25).abs().max() < 0.02


def test_the_same_stream_draws_the_same() -> None:
    first, again = (draw(9, 4, 3, generator(2, "recall")) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    both = stacked([first, draw(9, 4, 3, generator(3, "recall"))])
    assert both.tokens.shape == (2, 9, 4, 6) and torch.equal(both.answers[0], first.answers)


@pytest.mark.parametrize(("sizes", "word"), [((0, 4, 3), "n=0"), ((1, 1, 3), "symbols=1"), ((1, 4, 0), "distance=0")])
def test_wrong_sizes_are_refused(sizes: tuple[int, int, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        draw(*sizes, generator(0, "recall"))
