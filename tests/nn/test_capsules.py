"""Capsules against loops in float64, in value and gradient; sums, symmetries and reach of both routings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn.capsules import CapsuleLayer, Routing, dynamic_routing, margin_loss, routing_as_printed, squash
from attnrepro.theory import capsules as closed

SHAPES = [(1, 1, 1, 1), (2, 7, 3, 4), (1, 5, 2, 3), (3, 1, 4, 2), (2, 6, 1, 5)]
ROUTINGS: list[Routing] = [dynamic_routing, routing_as_printed]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(*sizes: int, dtype: torch.dtype = torch.float64, **more: Any) -> CapsuleLayer:
    torch.manual_seed(0)
    return CapsuleLayer(*sizes, **more).to(dtype)


# --- loops ---


def squashed(s: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in s))
    return [x * length / (1 + length * length) for x in s]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def routed_by_loops(u: Any, iterations: int, *, printed: bool) -> tuple[list[list[float]], list[list[float]]]:
    """Procedure 1 of the paper, or document 004's formula, for votes u[child][parent] of one sample."""
    children, parents, size = len(u), len(u[0]), len(u[0][0])
    b = [[0.0] * parents for _ in range(children)]
    c, v = b, [[0.0]]
    for step in range(iterations):
        e = [[math.exp(x) for x in row] for row in b]
        if printed:
            c = [[e[i][j] / sum(e[k][j] for k in range(children)) for j in range(parents)] for i in range(children)]
        else:
            c = [[e[i][j] / sum(e[i]) for j in range(parents)] for i in range(children)]
        s = [[sum(c[i][j] * u[i][j][d] for i in range(children)) for d in range(size)] for j in range(parents)]
        v = s if printed else [squashed(row) for row in s]
        if step < iterations - 1:
            b = [[b[i][j] + dot(u[i][j], v[j]) for j in range(parents)] for i in range(children)]
    return v, c


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
@pytest.mark.parametrize("route", ROUTINGS)
def test_both_routings_against_loops(shape: tuple[int, ...], iterations: int, route: Routing) -> None:
    votes = normal(*shape)
    parents, coupling = route(votes, iterations)
    for sample in range(len(votes)):
        v, c = routed_by_loops(votes[sample].tolist(), iterations, printed=route is routing_as_printed)
        torch.testing.assert_close(parents[sample], torch.tensor(v, dtype=torch.float64), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(coupling[sample], torch.tensor(c, dtype=torch.float64), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("route", ROUTINGS)
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_gradients_against_differences_of_the_loops(route: Routing, iterations: int) -> None:
    votes, cotangent = normal(1, 3, 2, 2), normal(2, 2, seed=1)
    leaf = votes.clone().requires_grad_()
    (slope,) = torch.autograd.grad((route(leaf, iterations)[0][0] * cotangent).sum(), leaf)

    def value(u: Tensor) -> float:
        v, _ = routed_by_loops(u[0].tolist(), iterations, printed=route is routing_as_printed)
        return sum(dot(a, b) for a, b in zip(v, cotangent.tolist(), strict=True))

    step = 1e-5
    for index in range(votes.numel()):
        bump = torch.zeros(votes.numel(), dtype=torch.float64)
        bump[index] = step
        bump = bump.view_as(votes)
        wanted = (value(votes + bump) - value(votes - bump)) / (2 * step)
        assert float(slope.flatten()[index]) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_the_print_is_wrong_and_the_paper_is_not() -> None:
    """Would fail if the printed softmax routed, or if lengths as printed were probabilities."""
    votes = normal(4, 9, 3, 4)
    parents, coupling = dynamic_routing(votes, 3)
    torch.testing.assert_close(coupling.sum(2), torch.ones(4, 9, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float((coupling.sum(1) - 1).abs().min()) > 1e-6
    assert float(parents.norm(dim=-1).max()) < 1

    parents, weights = routing_as_printed(votes, 3)
    torch.testing.assert_close(weights.sum(1), torch.ones(4, 3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float((weights.sum(2) - 1).abs().max()) > 0.1
    assert float(parents.norm(dim=-1).max()) > 1


def test_two_printed_iterations_are_one_step_of_attention() -> None:
    votes = normal(2, 7, 3, 4)
    each = votes.transpose(1, 2)  # [batch, parents, children, size]
    wanted = scaled_dot_product_attention(each.mean(2, keepdim=True), each, each, scale=1.0)[:, :, 0]
    torch.testing.assert_close(routing_as_printed(votes, 2)[0], wanted, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(dynamic_routing(votes, 2)[0], wanted, atol=1e-3)


# --- squash and loss ---


def test_squash_of_known_lengths_keeps_the_direction_and_has_a_gradient_at_zero() -> None:
    s = torch.tensor([[3.0, 4.0], [0.6, -0.8], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    v = squash(s)
    torch.testing.assert_close(v.detach()[0], torch.tensor([0.6, 0.8], dtype=torch.float64) * 25 / 26)
    torch.testing.assert_close(v.detach()[1], torch.tensor([0.3, -0.4], dtype=torch.float64))
    assert v.detach()[2].tolist() == [0, 0]
    (slope,) = torch.autograd.grad(v.sum(), s)
    assert slope.isfinite().all()
    assert slope[2].tolist() == [0, 0]
    assert float(squash(torch.tensor([1e9, 0.0]))[0]) == pytest.approx(1)


def test_margin_loss_by_hand() -> None:
    lengths = torch.tensor([[0.95, 0.3, 0.05], [0.4, 0.2, 0.9]])
    found = margin_loss(lengths, torch.tensor([0, 1]))
    wanted = [0.5 * 0.2**2, (0.9 - 0.2) ** 2 + 0.5 * (0.3**2 + 0.8**2)]
    assert found.tolist() == pytest.approx(wanted)
    assert margin_loss(lengths[:1], torch.tensor([0]), absent=0.3).tolist() == [0.0]
    assert margin_loss(lengths[1:], torch.tensor([1]), down=0.0).tolist() == pytest.approx([0.49])


# --- symmetries and reach ---


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_what_routing_commutes_with(iterations: int) -> None:
    """Permutations of children and of parents, and any rotation of the parents' space; not the size of votes."""
    votes = normal(2, 6, 3, 4)
    parents, coupling = dynamic_routing(votes, iterations)
    order, names = torch.tensor([3, 0, 5, 1, 4, 2]), torch.tensor([2, 0, 1])
    moved, shares = dynamic_routing(votes[:, order], iterations)
    torch.testing.assert_close(moved, parents, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(shares, coupling[:, order], rtol=1e-12, atol=1e-13)
    moved, shares = dynamic_routing(votes[:, :, names], iterations)
    torch.testing.assert_close(moved, parents[:, names], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(shares, coupling[:, :, names], rtol=1e-12, atol=1e-13)
    turn = torch.linalg.qr(normal(4, 4, seed=2))[0]
    turned, shares = dynamic_routing(votes @ turn, iterations)
    torch.testing.assert_close(turned, parents @ turn, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(shares, coupling, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(dynamic_routing(2 * votes, iterations)[0], 2 * parents, atol=1e-2)


def test_layers_with_shared_matrices_know_no_order_and_others_do() -> None:
    below, order = normal(2, 6, 5), torch.tensor([3, 0, 5, 1, 4, 2])
    shared, own = layer_of(3, 5, 4), layer_of(3, 5, 4, num_children=6)
    torch.testing.assert_close(shared(below[:, order]), shared(below), rtol=1e-12, atol=1e-13)
    assert not torch.allclose(own(below[:, order]), own(below), atol=1e-2)


@pytest.mark.parametrize(
    ("route", "iterations", "rivals"),
    [
        (dynamic_routing, 1, False),
        (dynamic_routing, 2, True),
        (routing_as_printed, 1, False),
        (routing_as_printed, 4, False),
    ],
)
def test_reach(route: Routing, iterations: int, rivals: bool) -> None:
    """Every child reaches every parent; votes for other parents only where the parents compete for the children."""
    votes = normal(1, 4, 3, 2).requires_grad_()
    (slope,) = torch.autograd.grad(route(votes, iterations)[0][0, 0].square().sum(), votes)
    touched = slope[0].abs().amax(2)
    assert (touched[:, 0] > 0).all()
    assert bool((touched[:, 1:] > 0).any()) is rivals
    assert bool((touched[:, 1:] > 0).all()) is rivals


def test_samples_of_a_batch_do_not_meet() -> None:
    votes = normal(3, 4, 3, 2)
    for route in ROUTINGS:
        alone = torch.cat([route(part[None], 3)[0] for part in votes])
        torch.testing.assert_close(route(votes, 3)[0], alone, rtol=1e-13, atol=1e-14)


# --- the layer ---


@pytest.mark.parametrize("own", [None, 5])
def test_votes_are_products_with_the_right_matrices(own: int | None) -> None:
    layer, below = layer_of(3, 4, 2, num_children=own), normal(2, 5, 4)
    votes = layer.votes(below).detach()
    for child in range(5):
        for parent in range(3):
            matrix = layer.weight.detach()[parent] if own is None else layer.weight.detach()[child, parent]
            torch.testing.assert_close(votes[:, child, parent], below[:, child] @ matrix, rtol=1e-12, atol=1e-14)
    parents, coupling = layer.route(below)
    torch.testing.assert_close(parents, dynamic_routing(votes, 3)[0])
    torch.testing.assert_close(layer(below), parents)
    torch.testing.assert_close(layer.route(below, 1)[1], torch.full_like(coupling, 1 / 3))


@pytest.mark.parametrize("own", [None, 5])
def test_gradients_of_the_matrices_against_differences(own: int | None) -> None:
    layer, below, cotangent = layer_of(3, 2, 2, num_children=own), normal(2, 5, 2), normal(2, 3, 2, seed=1)
    (slope,) = torch.autograd.grad((layer(below) * cotangent).sum(), layer.weight)
    for index in range(0, layer.weight.numel(), 5):
        values = []
        for step in (1e-5, -1e-5):
            with torch.no_grad():
                layer.weight.view(-1)[index] += step
                votes = layer.votes(below)
                made = [routed_by_loops(part.tolist(), 3, printed=False)[0] for part in votes]
                values.append(float((torch.tensor(made, dtype=torch.float64) * cotangent).sum()))
                layer.weight.view(-1)[index] -= step
        assert float(slope.flatten()[index]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("iterations", [1, 3])
@pytest.mark.parametrize("sizes", [(36, 10, 8, 8), (5, 3, 2, 7), (2, 2, 4, 2)])
def test_parameters_and_flops_in_closed_form(sizes: tuple[int, int, int, int], iterations: int, own: bool) -> None:
    children, parents, child_dim, parent_dim = sizes
    layer = layer_of(parents, child_dim, parent_dim, num_children=children if own else None, iterations=iterations)
    with FlopCounterMode(display=False) as counter:
        layer(torch.zeros(1, children, child_dim, dtype=torch.float64))
    wanted = closed.layer(*sizes, iterations, shared=not own)
    assert sum(p.numel() for p in layer.parameters()) == wanted.parameters
    assert counter.get_total_flops() == wanted.flops
    multiplied = children * parents * child_dim * parent_dim + (2 * iterations - 1) * children * parents * parent_dim
    assert wanted.flops == 2 * multiplied


@pytest.mark.parametrize("route", ROUTINGS)
def test_bfloat16_stays_finite(route: Routing) -> None:
    layer = layer_of(3, 4, 2, num_children=5, routing=route, dtype=torch.bfloat16)
    below = (50 * normal(2, 5, 4)).bfloat16().requires_grad_()
    out = layer(below)
    out.float().square().sum().backward()
    assert out.isfinite().all()
    assert below.grad is not None
    assert below.grad.isfinite().all()


def test_votes_that_are_all_zero_leave_zero_and_a_finite_gradient() -> None:
    votes = torch.zeros(1, 4, 3, 2, requires_grad=True)
    parents, coupling = dynamic_routing(votes, 3)
    (slope,) = torch.autograd.grad(parents.sum(), votes)
    assert parents.abs().max() == 0
    assert slope.isfinite().all()
    torch.testing.assert_close(coupling, torch.full_like(coupling, 1 / 3))


@pytest.mark.parametrize("route", ROUTINGS)
def test_bad_input_of_a_routing(route: Routing) -> None:
    with pytest.raises(ValueError, match=r"votes=\(2, 3, 4\) must be \[batch, children, parents, parent_dim\]"):
        route(torch.zeros(2, 3, 4), 3)
    with pytest.raises(ValueError, match="iterations=0 must be 1 or more"):
        route(torch.zeros(1, 2, 3, 4), 0)


def test_bad_input_of_a_layer() -> None:
    with pytest.raises(ValueError, match="parent_dim=0 must be 1 or more"):
        CapsuleLayer(3, 4, 0)
    with pytest.raises(ValueError, match="num_children=0 must be 1 or more"):
        CapsuleLayer(3, 4, 2, num_children=0)
    with pytest.raises(ValueError, match=r"children=\(1, 6, 4\) must be \[batch, 5, 4\]"):
        CapsuleLayer(3, 4, 2, num_children=5)(torch.zeros(1, 6, 4))
    with pytest.raises(ValueError, match=r"children=\(1, 6, 3\) must be \[batch, children, 4\]"):
        CapsuleLayer(3, 4, 2)(torch.zeros(1, 6, 3))
