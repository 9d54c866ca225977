"""The small capsule net and its dense counterpart: shapes, places, costs, and what each reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnrepro.nn.capsule_net import CapsuleNet, DenseNet
from attnrepro.nn.capsules import routing_as_printed, squash
from attnrepro.nn.cost import count
from attnrepro.theory import capsules as closed

SHAPES = [(1, 12, 12), (3, 7, 9), (1, 8, 15)]


def net_of(kind: type[nn.Module], *args: object, **more: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args, **more).double().eval()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("iterations", [1, 3])
def test_costs_in_closed_form(shape: tuple[int, int, int], iterations: int) -> None:
    sizes = {"width": 5, "types": 3, "child_dim": 4, "parent_dim": 6, "iterations": iterations}
    assert count(net_of(CapsuleNet, shape, 7, **sizes), shape) == closed.capsule_net(shape, 7, **sizes)
    dense = {"width": 5, "channels": 12, "hidden": 9}
    assert count(net_of(DenseNet, shape, 7, **dense), shape) == closed.dense_net(shape, 7, **dense)


def test_the_defaults_have_as_many_parameters_within_half_a_hundredth() -> None:
    shape = (1, 12, 12)
    sizes = [count(net_of(kind, shape, 10), shape).parameters for kind in (CapsuleNet, DenseNet)]
    assert sizes[0] == 16 * 25 + 2 * 16 + 16 * 16 * 9 + 2 * 16 + 18 * 10 * 8 * 8
    assert abs(sizes[1] / sizes[0] - 1) < 5e-3


def test_both_nets_of_a_seed_start_with_the_same_convolutions() -> None:
    capsules, dense = net_of(CapsuleNet, (1, 12, 12), 10), net_of(DenseNet, (1, 12, 12), 10)
    for one, other in zip(capsules.stem.parameters(), dense.stem.parameters(), strict=True):
        assert torch.equal(one, other)


def test_primary_capsules_are_channels_of_one_place() -> None:
    net = net_of(CapsuleNet, (1, 12, 12), 10, types=2, child_dim=3)
    images = torch.randn(2, 1, 12, 12, dtype=torch.float64)
    maps, primary = net.stem(images), net.primary(images)
    assert primary.shape == (2, 9 * 2, 3)
    for place in range(9):
        for kind in range(2):
            own = maps[:, 3 * kind : 3 * kind + 3, place // 3, place % 3]
            torch.testing.assert_close(primary[:, 2 * place + kind], squash(own))


def test_a_primary_capsule_sees_seven_pixels_and_a_class_all_that_the_map_covers() -> None:
    """Where derivatives are not 0: 5 + (3 - 1) pixels for the map, and no padding. (Of one image: see `primary`.)"""
    net = net_of(CapsuleNet, (1, 12, 12), 10)
    image = torch.randn(1, 1, 12, 12, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(net.primary(image)[0, 0].sum(), image)
    touched = slope[0, 0].nonzero()
    assert (touched.max(0).values - touched.min(0).values + 1).tolist() == [7, 7]
    (slope,) = torch.autograd.grad(net(image)[0, 0], image)
    assert slope[0, 0].nonzero().max(0).values.tolist() == [10, 10]


def test_lengths_lie_below_1_with_squash_and_above_as_printed() -> None:
    images = 30 * torch.randn(4, 1, 12, 12, dtype=torch.float64)
    found = []
    for more in ({}, {"routing": routing_as_printed}):
        net = net_of(CapsuleNet, (1, 12, 12), 10, **more)
        with torch.no_grad():
            net.classes.weight *= 20
            found.append(net(images))
    assert found[0].shape == found[1].shape == (4, 10)
    assert float(found[0].max()) < 1 < float(found[1].max())


def test_images_that_are_too_small() -> None:
    for kind in (CapsuleNet, DenseNet):
        with pytest.raises(ValueError, match="must be at least 7 pixels high and wide"):
            kind((1, 6, 12), 10)
        assert kind((1, 7, 7), 10)(torch.zeros(2, 1, 7, 7)).shape == (2, 10)


@pytest.mark.parametrize("kind", [CapsuleNet, DenseNet])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_gradients_by_the_pixels_against_differences(kind: type[nn.Module], training: bool, n: int) -> None:
    net = net_of(kind, (1, 8, 9), 3, width=2).train(training)
    images = torch.randn(n, 1, 8, 9, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(n, 3, dtype=torch.float64)
    (slope,) = torch.autograd.grad((net(images) * cotangent).sum(), images)
    step = 1e-6
    for index in range(0, images.numel(), 7):
        bump = torch.zeros(images.numel(), dtype=torch.float64)
        bump[index] = step
        with torch.no_grad():
            values = [float((net(images + sign * bump.view_as(images)) * cotangent).sum()) for sign in (1, -1)]
        assert float(slope.flatten()[index]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4, abs=1e-7)
