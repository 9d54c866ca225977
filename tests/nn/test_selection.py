"""Ways to select: forward values, the gradients they pass, and what samples are distributed like."""

from __future__ import annotations

import math

import pytest
import torch

from attnrepro.nn.selection import METHODS, gumbel, hard, score_function, selection_weights


def scores(seed: int = 0, *shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (3, 5)), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def noise(*shape: int) -> torch.Tensor:
    return gumbel(shape, torch.Generator().manual_seed(9), dtype=torch.float64)


def jacobian(method: str, at: torch.Tensor, temperature: float, drawn: torch.Tensor) -> torch.Tensor:
    return torch.autograd.functional.jacobian(lambda s: selection_weights(method, s, temperature, drawn), at)


def softmax_jacobian(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    a = (logits.exp() / logits.exp().sum()).tolist()
    n = len(a)
    rows = [[a[i] * ((i == j) - a[j]) / temperature for j in range(n)] for i in range(n)]
    return torch.tensor(rows, dtype=torch.float64)


def test_forward_values() -> None:
    s, g = scores(), noise(3, 5)
    for method, top in (
        ("hard_argmax", s),
        ("straight_through", s),
        ("gumbel_hard", s + g),
        ("reinforce", s / 0.5 + g),
    ):
        weights = selection_weights(method, s, 0.5, g)
        expected = torch.zeros_like(s)
        for row, index in enumerate(top.argmax(-1).tolist()):
            expected[row, index] = 1
        assert torch.equal(weights, expected), method
    for method, logits in (("soft", s / 0.5), ("gumbel_soft", (s + g) / 0.5)):
        weights = selection_weights(method, s, 0.5, g)
        torch.testing.assert_close(weights, logits.exp() / logits.exp().sum(-1, keepdim=True))


@pytest.mark.parametrize("method", METHODS)
def test_gradients(method: str) -> None:
    s, g = scores(3, 4), noise(4)
    found = jacobian(method, s, 0.7, g)
    if method in ("hard_argmax", "reinforce"):
        assert torch.equal(found, torch.zeros(4, 4, dtype=torch.float64))
        leaf = s.clone().requires_grad_()
        assert not selection_weights(method, leaf, 0.7, g).requires_grad
        return
    logits = (s if method in ("soft", "straight_through") else s + g) / 0.7
    torch.testing.assert_close(found, softmax_jacobian(logits, 0.7))


def test_samples_have_softmax_probabilities() -> None:
    s = torch.tensor([1.0, 0.0, -1.0, 0.5], dtype=torch.float64)
    n = 40_000
    counts = selection_weights("reinforce", s, 2.0, noise(n, 4)).sum(0)
    p = (s / 2).exp() / (s / 2).exp().sum()
    assert ((counts / n - p).abs() < 4.5 * (p * (1 - p) / n).sqrt()).all()


def test_gumbel_noise_has_mean_and_variance_of_its_law() -> None:
    drawn = noise(200_000)
    assert float(drawn.mean()) == pytest.approx(0.5772156649, abs=0.012)
    assert float(drawn.var()) == pytest.approx(math.pi**2 / 6, abs=0.04)


def test_the_score_function_is_advantage_times_the_slope_of_log_p() -> None:
    s = scores(4, 3).requires_grad_()
    chosen = hard(torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    advantage = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    score_function(s, 0.4, chosen, advantage).backward()
    logits = s.detach() / 0.4
    a = logits.exp() / logits.exp().sum()
    assert s.grad is not None and advantage.grad is None
    torch.testing.assert_close(s.grad, 1.7 * (chosen - a) / 0.4)


def test_a_temperature_of_its_own_for_each_member() -> None:
    s, g = scores(1, 2, 6, 5), noise(2, 6, 5)
    each = torch.tensor([0.5, 3.0], dtype=torch.float64)[:, None, None]
    for method in METHODS:
        together = selection_weights(method, s, each, g)
        for member, temperature in enumerate((0.5, 3.0)):
            torch.testing.assert_close(together[member], selection_weights(method, s[member], temperature, g[member]))


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="method=argmin must be one of hard_argmax"):
        selection_weights("argmin", scores(), 1.0, noise(3, 5))
