"""The key-value retrieval task: what is drawn, and that a sequence can be answered by its keys alone."""

from __future__ import annotations

import pytest
import torch

from attnrepro.data.key_retrieval import draw, stacked
from attnrepro.data.streams import generator


def test_the_query_is_a_copy_of_the_key_asked_for_and_of_no_other() -> None:
    keys, queries, answers = draw(50, 7, 5, generator(0, "test"))
    assert (keys.shape, queries.shape, answers.shape) == ((50, 7, 5), (50, 5), (50,))
    for i in range(50):
        same = [bool((keys[i, j] == queries[i]).all()) for j in range(7)]
        assert same == [j == int(answers[i]) for j in range(7)]


def test_answers_are_equally_likely_and_keys_standard_normal() -> None:
    keys, _, answers = draw(20000, 4, 3, generator(1, "test"))
    counts = torch.bincount(answers, minlength=4).double()
    # Binomial(20000, 1/4): an sd is 61.
    assert (counts - 5000).abs().max() < 4 * 61
    n = keys.numel()
    assert abs(float(keys.double().mean())) < 4 / n**0.5
    assert abs(float(keys.double().square().mean()) - 1) < 4 * (2 / n) ** 0.5


def test_the_same_stream_gives_the_same_sequences_whatever_the_default_dtype() -> None:
    before = draw(3, 2, 4, generator(2, "test"))
    torch.set_default_dtype(torch.float64)
    try:
        after = draw(3, 2, 4, generator(2, "test"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(before, after, strict=True))


def test_seeds_stand_side_by_side() -> None:
    parts = [draw(3, 2, 4, generator(seed, "test")) for seed in (0, 1)]
    keys, queries, answers = stacked(parts)
    assert keys.shape == (2, 3, 2, 4)
    for seed in (0, 1):
        assert torch.equal(keys[seed], parts[seed].keys) and torch.equal(queries[seed], parts[seed].queries)
        assert torch.equal(answers[seed], parts[seed].answers)


@pytest.mark.parametrize(("sizes", "named"), [((0, 2, 3), "n=0"), ((1, 0, 3), "n_keys=0"), ((1, 2, 0), "embed_dim=0")])
def test_a_size_below_one_is_one_sentence(sizes: tuple[int, int, int], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named} must be 1 or more$"):
        draw(*sizes, generator(0, "test"))
