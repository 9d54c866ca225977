"""MLPs by themselves and stacked, and the mixer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, layer_norm

from attnrepro.nn.mlp import MLP, MLPEnsemble, MLPMixer

EPS = torch.finfo(torch.float64).eps
SHAPE = (2, 6, 8)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(*n: int) -> Tensor:
    return torch.randn(*n, *SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mlps(count: int, hidden: tuple[int, ...]) -> list[MLP]:
    torch.manual_seed(0)
    return [MLP(SHAPE, 5, hidden=hidden).double() for _ in range(count)]


def test_an_mlp_is_its_layers() -> None:
    (model,), x = mlps(1, (7, 6)), images(3)
    first, second, last = model.layers
    expected = x.reshape(3, -1) @ first.weight.T + first.bias
    for layer in (second, last):
        expected = expected.clamp(min=0) @ layer.weight.T + layer.bias
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-14)
    (linear,) = mlps(1, ())
    (only,) = linear.layers
    torch.testing.assert_close(linear(x), x.reshape(3, -1) @ only.weight.T + only.bias, rtol=1e-12, atol=1e-14)


def test_permuted_pixels_and_permuted_columns_cancel() -> None:
    (model,), x = mlps(1, (7, 6)), images(3)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(2))
    moved = x.flatten(1)[:, order].view_as(x)
    with torch.no_grad():
        before = model(x)
        assert float((model(moved) - before).abs().max()) > 1e-3
        model.layers[0].weight.copy_(model.layers[0].weight[:, order])
        assert float((model(moved) - before).abs().max() / before.abs().max()) <= 32 * EPS


@pytest.mark.parametrize("hidden", [(), (7,), (7, 6)])
def test_stacked_members_have_the_logits_and_gradients_of_separate_ones(hidden: tuple[int, ...]) -> None:
    members, x = mlps(3, hidden), images(3, 4)
    labels = torch.randint(0, 5, (3, 4), generator=torch.Generator().manual_seed(3))
    ensemble = MLPEnsemble(members)
    logits = ensemble(x)
    sum(cross_entropy(logits[m], labels[m]) for m in range(3)).backward()  # type: ignore[union-attr]
    for m, member in enumerate(members):
        torch.testing.assert_close(logits[m], member(x[m]), rtol=1e-10, atol=1e-12)
        cross_entropy(member(x[m]), labels[m]).backward()
        for index, layer in enumerate(member.layers):
            torch.testing.assert_close(ensemble.weights[index].grad[m], layer.weight.grad, rtol=1e-10, atol=1e-13)
            torch.testing.assert_close(ensemble.biases[index].grad[m], layer.bias.grad, rtol=1e-10, atol=1e-13)


def test_stacking_copies() -> None:
    members, x = mlps(2, (7,)), images(2, 3)
    ensemble = MLPEnsemble(members)
    before = ensemble(x)
    with torch.no_grad():
        members[0].layers[0].weight.zero_()
    assert torch.equal(ensemble(x), before)


def test_the_mixer_mixes_tokens_and_then_components() -> None:
    """One block by hand: patches 3x4 of 2 channels are 4 tokens."""
    torch.manual_seed(0)
    model, x = (
        MLPMixer(SHAPE, 5, patch=(3, 4), embed_dim=6, depth=1, token_hidden=3, channel_hidden=7).double(),
        images(2),
    )
    state = model.state_dict()

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def normed(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, (6,), state[f"{name}.weight"], state[f"{name}.bias"])

    corners = [(top, left) for top in (0, 3) for left in (0, 4)]
    tokens = torch.stack([x[:, :, t : t + 3, left : left + 4].flatten(1) for t, left in corners], 1)
    tokens = linear("patches.projection", tokens)
    mixed = normed("token_norms.0", tokens).transpose(1, 2)
    mixed = linear("token_mlps.0.2", gelu(linear("token_mlps.0.0", mixed)))
    tokens = tokens + mixed.transpose(1, 2)
    inner = gelu(linear("channel_mlps.0.0", normed("channel_norms.0", tokens)))
    tokens = tokens + linear("channel_mlps.0.2", inner)
    expected = linear("head", normed("norm", tokens).mean(1))
    torch.testing.assert_close(model(x), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("model", [MLP, MLPMixer])
def test_gradients_reach_every_parameter_in_every_precision(model: type[nn.Module]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        made = model(SHAPE, 5, patch=2) if model is MLPMixer else model(SHAPE, 5)
        made = made.to(dtype)
        cross_entropy(made(images(4).to(dtype)).float(), torch.tensor([0, 1, 2, 4])).backward()
        for name, parameter in made.named_parameters():
            assert bool(parameter.grad.isfinite().all()) and bool(parameter.grad.any()), name


def test_a_patch_that_does_not_divide_the_image() -> None:
    with pytest.raises(ValueError, match=r"^patch=4x4 must divide the image, which is 6 high and 8 wide$"):
        MLPMixer(SHAPE, 5)
