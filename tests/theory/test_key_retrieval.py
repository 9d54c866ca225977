"""Theory of the retrieval task against simulation in numpy and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnrepro.theory.key_retrieval import start_logit_variance, uniform_accuracy, uniform_loss


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize(("embed_dim", "head_dim", "law"), [(3, 2, "normal"), (8, 5, "uniform"), (2, 16, "normal")])
def test_the_variance_of_the_first_logits(embed_dim: int, head_dim: int, law: str, scaled: bool) -> None:
    rng = np.random.default_rng(0)
    n = 40000
    x, y = rng.standard_normal((2, n, embed_dim))
    if law == "normal":
        w_query, w_key = rng.standard_normal((2, n, embed_dim, head_dim)) / math.sqrt(embed_dim)
    else:
        w_query, w_key = rng.uniform(-1, 1, (2, n, embed_dim, head_dim)) / math.sqrt(embed_dim)
    logits = np.einsum("ne,ned,nfd,nf->n", x, w_query, w_key, y)
    if scaled:
        logits /= math.sqrt(head_dim)
    squares = logits**2
    expected = start_logit_variance(head_dim, 1.0 if law == "normal" else 1 / 3, scaled=scaled)
    assert abs(squares.mean() - expected) < 4 * squares.std() / math.sqrt(n)


@pytest.mark.parametrize("n_keys", [2, 3, 16])
def test_uniform_attention_is_right_once_in_n_and_loses_the_rest(n_keys: int) -> None:
    answers = np.eye(n_keys)
    # Whatever the one output is, it is nearest to one answer (or ties with several, of which one is named).
    for seed in range(5):
        output = np.random.default_rng(seed).standard_normal(n_keys)
        right = sum(int(output.argmax()) == j for j in range(n_keys)) / n_keys
        assert right == pytest.approx(uniform_accuracy(n_keys))
        loss = np.mean([((output - answer) ** 2).sum() for answer in answers])
        assert loss >= uniform_loss(n_keys)
    best = answers.mean(0)
    assert np.mean([((best - answer) ** 2).sum() for answer in answers]) == pytest.approx(uniform_loss(n_keys))
