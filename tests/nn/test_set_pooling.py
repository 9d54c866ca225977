"""Models of sets: what they compute, and that they see no order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from attnrepro.nn.set_pooling import AttentionPool, DeepSets

MODELS = {
    "deep_sets": lambda: DeepSets(5, 7),
    "mlp": lambda: AttentionPool(5, 7),
    "linear": lambda: AttentionPool(5),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().double()


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("name", MODELS)
def test_no_order_of_the_tokens_is_seen(name: str) -> None:
    model, x = made(name), tokens(20, 6, 5)
    out = model(x)
    assert out.shape == (20,)
    for seed in range(10):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(model(x[:, order]), out, rtol=0, atol=32 * 2**-52 * float(out.detach().abs().max()))
    assert float((model(x + tokens(5)) - out).detach().abs().min()) > 1e-6  # it does see the tokens
    assert model(tokens(3, 2, 9, 5)).shape == (3, 2)


def test_deep_sets_reads_the_mean_of_features() -> None:
    model, x = made("deep_sets"), tokens(6, 5)
    phi, (first, _, last) = model.phi[0], model.rho
    mean = sum(torch.clamp(phi.weight @ token + phi.bias, min=0) for token in x) / 6
    expected = last.weight @ torch.clamp(first.weight @ mean + first.bias, min=0) + last.bias
    torch.testing.assert_close(model(x), expected[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_attention_pool_is_a_softmax_mean_of_values(name: str) -> None:
    model, x = made(name), tokens(6, 5)
    e = [math.exp(float(model.query[0] @ (model.key.weight @ token)) / math.sqrt(5)) for token in x]
    pooled = sum(w / sum(e) * model.value(token) for w, token in zip(e, x, strict=True))
    torch.testing.assert_close(model(x), model.out(pooled)[0], rtol=1e-12, atol=1e-14)


def test_linear_values_are_linear_and_mlp_values_are_not() -> None:
    def bend(model: nn.Module) -> float:
        a, b, zero = tokens(2, 5)[:1], tokens(2, 5)[1:], torch.zeros(1, 5, dtype=torch.float64)
        return float((model.value(a + b) - model.value(a) - model.value(b) + model.value(zero)).abs().max())

    assert bend(made("linear")) < 1e-14 and bend(made("mlp")) > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns(name: str) -> None:
    model = made(name)
    model(tokens(50, 6, 5)).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).any()), key
