"""Convolutional networks: against plain convolutions, exact invariance, and what windows cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy

from attnrepro.nn.cnn import AdditiveCNN, ResNet

EPS = torch.finfo(torch.float64).eps
SHAPE = (2, 16, 24)
CIRCULAR: dict[str, Any] = {"strides": (1, 2, 1), "padding": "circular"}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def images(n: int = 3, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def ready(model: nn.Module) -> nn.Module:
    """In float64, with running statistics as after training, as tested."""
    model = model.double().train()
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            model(2 * torch.randn(8, *SHAPE, dtype=torch.float64) + 0.5)
    return model.eval()


def resnet(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return ready(ResNet(SHAPE, 5, **{"widths": (8, 16, 24), **settings}))


def additive(num_classes: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return ready(AdditiveCNN(SHAPE, num_classes, widths=(8, 12)))


def by_hand(model: ResNet, x: Tensor, strides: tuple[int, ...], *, circular: bool) -> Tensor:
    """The network from its parameters by torch's functions; a torus is made by index."""
    state = model.state_dict()

    def convolved(name: str, x: Tensor, stride: int) -> Tensor:
        weight = state[f"{name}.weight"]
        pad = weight.shape[-1] // 2
        if circular:
            rows, columns = (torch.arange(-pad, size + pad) % size for size in x.shape[-2:])
            x, pad = x[:, :, rows][..., columns], 0
        return conv2d(x, weight, None, stride, pad)

    def normed(name: str, x: Tensor) -> Tensor:
        return batch_norm(x, *(state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")))

    x = normed("stem.1", convolved("stem.0", x, 2)).relu()
    for index, stride in enumerate(strides):
        at = f"blocks.{index}."
        inner = normed(at + "first_norm", convolved(at + "first", x, stride)).relu()
        inner = normed(at + "second_norm", convolved(at + "second", inner, 1))
        shortcut = convolved(at + "shortcut", x, stride) if f"{at}shortcut.weight" in state else x
        x = (inner + shortcut).relu()
    return x.mean((2, 3)) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize(("strides", "padding"), [((1, 2, 2), "zeros"), ((1, 2, 1), "circular")])
def test_resnet_is_what_its_parameters_say(strides: tuple[int, ...], padding: str) -> None:
    model, x = resnet(strides=strides, padding=padding), images()
    assert isinstance(model, ResNet)
    expected = by_hand(model, x, strides, circular=padding == "circular")
    torch.testing.assert_close(model(x), expected, rtol=1e-11, atol=1e-12)


def largest_change(model: nn.Module, dy: int, dx: int) -> float:
    """Largest change of a logit when the images are shifted round, relative to the largest logit."""
    x = images()
    with torch.no_grad():
        before = model(x)
        return float((model(x.roll((dy, dx), (2, 3))) - before).abs().max() / before.abs().max())


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_circular_cnn_is_invariant_to_multiples_of_its_stride_only(norm: str) -> None:
    model = resnet(norm=norm, **CIRCULAR)
    for dy in range(8):
        for dx in (0, 1, 2, 3, 4, 8, 20):
            change = largest_change(model, dy, dx)
            if dy % 4 == 0 and dx % 4 == 0:
                assert change <= 32 * EPS, (dy, dx)
            else:
                assert change > 1e-4, (dy, dx)


@pytest.mark.parametrize("settings", [{}, {"strides": (1, 2, 1)}, {**CIRCULAR, "head": "flatten"}])
def test_zeros_at_the_border_or_a_flatten_head_break_invariance(settings: dict[str, Any]) -> None:
    assert largest_change(resnet(**settings), 4, 8) > 1e-4


def second_difference(model: nn.Module, first: tuple[int, int], second: tuple[int, int]) -> float:
    """Largest |f12 - f1 - f2 + f0| of a logit, for changes of single pixels, relative to the largest logit."""
    f = []
    with torch.no_grad():
        for places in ((), (first,), (second,), (first, second)):
            x = images(1)
            for row, column in places:
                x[..., row, column] += 3
            f.append(model(x))
    return float((f[3] - f[2] - f[1] + f[0]).abs().max() / f[0].abs().max())


def test_what_no_window_sees_together_adds_up() -> None:
    model = additive()
    for far in ((4, 13), (13, 4), (12, 20), (4, 23), (15, 5)):
        assert second_difference(model, (4, 4), far) <= 32 * EPS
    # A window that sees both is no sum, nor is a CNN whose field is the image, nor BatchNorm as in training.
    assert second_difference(model, (4, 4), (6, 7)) > 1e-4
    assert second_difference(resnet(), (4, 4), (12, 20)) > 1e-4
    assert second_difference(model.train(), (4, 4), (12, 20)) > 1e-4


def test_a_window_is_nine_pixels_wide_and_high() -> None:
    model = additive()
    assert isinstance(model, AdditiveCNN)
    x = images(1).requires_grad_()
    (seen,) = torch.autograd.grad(model.windows(x)[0, :, 4, 6].square().sum(), x)
    rows, columns = (seen[0].abs().sum((0, axis)).nonzero().flatten() for axis in (2, 1))
    assert rows.tolist() == list(range(4, 13)) and columns.tolist() == list(range(8, 17))


def test_a_logit_is_the_mean_over_windows() -> None:
    model, x = additive(), images()
    assert isinstance(model, AdditiveCNN)
    by_window = model.head(model.windows(x).permute(0, 2, 3, 1))
    torch.testing.assert_close(model(x), by_window.mean((1, 2)), rtol=1e-12, atol=1e-14)


MODELS = {
    "batch": lambda: ResNet(SHAPE, 5),
    "group": lambda: ResNet(SHAPE, 5, norm="group"),
    "flatten": lambda: ResNet(SHAPE, 5, head="flatten"),
    "circular": lambda: ResNet(SHAPE, 5, **CIRCULAR),
    "additive": lambda: AdditiveCNN(SHAPE, 5),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_parameter_in_every_precision(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = MODELS[name]().to(dtype)
        cross_entropy(model(images(4).to(dtype)).float(), torch.tensor([0, 1, 2, 4])).backward()
        for parameter, gradient in ((n, p.grad) for n, p in model.named_parameters()):
            assert bool(gradient.isfinite().all()) and bool(gradient.any()), parameter


def test_group_norm_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    model, x = ResNet(SHAPE, 5, norm="group").double().train(), images(4)
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-12, atol=1e-13)
    batch = ResNet(SHAPE, 5).double().train()
    assert not torch.allclose(batch(x)[:1], batch(x[:1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "layer"}, "^norm=layer must be one of batch, group$"),
        ({"head": "max"}, "^head=max must be one of mean, flatten$"),
        ({"padding": "reflect"}, "^padding=reflect must be one of zeros, circular$"),
        ({"norm": "group", "widths": (16, 20, 64)}, r"^widths=\(16, 20, 64\) must be multiples of 8 for norm=group$"),
        ({"strides": (1, 2)}, r"^strides=\(1, 2\) must be one for each of widths=\(16, 32, 64\)"),
        ({"padding": "circular", "strides": (2, 2, 2)}, "^padding=circular must have an image that stride 16 divides"),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResNet(SHAPE, 5, **settings)
