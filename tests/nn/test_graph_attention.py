"""Message passing against loops over nodes, and against the layer under the mask of the graph."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.nn import masks
from attnrepro.nn.graph_attention import edges_of, graph_attention
from attnrepro.nn.self_attention import SelfAttention


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def layer_of(embed_dim: int, num_heads: int) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(embed_dim, num_heads).double()


def some_graph(length: int, *, loops: bool = True) -> Tensor:
    made = torch.rand(length, length, generator=torch.Generator().manual_seed(2)) < 0.4
    made.fill_diagonal_(loops)
    return made


@pytest.mark.parametrize(("length", "embed_dim", "num_heads"), [(1, 1, 1), (5, 3, 1), (7, 6, 3), (11, 16, 4)])
@pytest.mark.parametrize("loops", [True, False])
def test_every_node_by_itself(length: int, embed_dim: int, num_heads: int, loops: bool) -> None:
    layer, x, graph = layer_of(embed_dim, num_heads), tokens(length, embed_dim), some_graph(length, loops=loops)
    out, size = graph_attention(layer, x, edges_of(graph)).detach(), embed_dim // num_heads
    q, k, v = (w(x).detach() for w in (layer.w_query, layer.w_key, layer.w_value))
    for i in range(length):
        heard = [j for j in range(length) if graph[i, j]]
        mixed = torch.zeros(embed_dim).double()
        for h in range(num_heads):
            part = slice(h * size, (h + 1) * size)
            e = {j: math.exp(float(q[i, part] @ k[j, part]) / math.sqrt(size)) for j in heard}
            for j, strength in e.items():
                mixed[part] += strength / sum(e.values()) * v[j, part]
        torch.testing.assert_close(out[i], layer.w_out.weight.detach() @ mixed, rtol=1e-12, atol=1e-14)


def test_on_a_graph_it_is_the_masked_layer_in_value_and_gradient() -> None:
    layer, x = layer_of(6, 2), tokens(7, 6)
    every = torch.ones(7, 7, dtype=torch.bool)
    lonely = some_graph(7)
    lonely[3] = False  # hears nobody, not even itself
    for graph, mask in [(every, None), (masks.window(7, 3), masks.window(7, 3)), (some_graph(7),) * 2, (lonely,) * 2]:
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = graph_attention(layer, a, edges_of(graph)), layer(b, mask)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        slopes = torch.autograd.grad(found.square().sum(), [a, *layer.parameters()])
        wanted = torch.autograd.grad(expected.square().sum(), [b, *layer.parameters()])
        for one, other in zip(slopes, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13)
    assert (found[3] == 0).all()


def test_nodes_have_no_order_of_their_own() -> None:
    """Relabelling nodes together with the graph relabels the outputs; without the graph it does not."""
    layer, x, graph = layer_of(6, 2), tokens(9, 6), some_graph(9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(3))
    out = graph_attention(layer, x, edges_of(graph)).detach()
    moved = graph_attention(layer, x[order], edges_of(graph[order][:, order])).detach()
    torch.testing.assert_close(moved, out[order], rtol=1e-12, atol=1e-14)
    kept = graph_attention(layer, x[order], edges_of(graph)).detach()
    assert float((kept - out[order]).abs().max()) > 1e-3
    listed_backwards = graph_attention(layer, x, edges_of(graph).flip(1)).detach()
    torch.testing.assert_close(listed_backwards, out, rtol=1e-12, atol=1e-14)


def test_reach_after_so_many_rounds_is_that_of_walks() -> None:
    layer, x, graph = layer_of(4, 2), tokens(8, 4).requires_grad_(), some_graph(8)
    graph &= torch.rand(8, 8, generator=torch.Generator().manual_seed(4)) < 0.6
    graph.fill_diagonal_(True)  # a node's query is its own: with a loop, it reaches itself in any case
    walks, node = torch.eye(8, dtype=torch.bool), x
    for _ in range(2):
        node = graph_attention(layer, node, edges_of(graph))
        walks = (graph.long() @ walks.long()) > 0
        for receiver in range(8):
            (slope,) = torch.autograd.grad(node[receiver].sum(), x, retain_graph=True)
            assert torch.equal(slope.abs().amax(1) > 0, walks[receiver])


@pytest.mark.parametrize(("length", "embed_dim", "num_heads"), [(5, 4, 1), (9, 8, 4)])
def test_cost_is_that_of_nodes_and_edges(length: int, embed_dim: int, num_heads: int) -> None:
    """Products are of nodes with weights only: an edge costs sums, 2 head_dim for its score and 2 for its value."""
    layer, x = layer_of(embed_dim, num_heads), tokens(length, embed_dim)
    assert sum(p.numel() for p in layer.parameters()) == 4 * embed_dim**2
    for graph in (some_graph(length), torch.ones(length, length, dtype=torch.bool)):
        with FlopCounterMode(display=False) as counter:
            graph_attention(layer, x, edges_of(graph))
        assert counter.get_total_flops() == 8 * length * embed_dim**2


def test_bfloat16_stays_finite() -> None:
    layer, x = layer_of(8, 2).bfloat16(), tokens(6, 8).bfloat16().requires_grad_()
    out = graph_attention(layer, x, edges_of(some_graph(6)))
    out.float().square().sum().backward()
    assert out.dtype == torch.bfloat16
    assert torch.isfinite(out).all() and x.grad is not None and torch.isfinite(x.grad).all()


def test_large_scores_stay_finite() -> None:
    layer, x = layer_of(4, 1), 1e3 * tokens(5, 4)
    out = graph_attention(layer, x, edges_of(torch.ones(5, 5, dtype=torch.bool)))
    q, k, v = layer.w_query(x), layer.w_key(x), layer.w_value(x)
    expected = functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    torch.testing.assert_close(out, layer.w_out(expected), rtol=1e-9, atol=1e-9)


def test_edges_are_receiver_and_sender() -> None:
    graph = torch.zeros(4, 4, dtype=torch.bool)
    graph[2, 0] = graph[3, 1] = True
    assert edges_of(graph).tolist() == [[2, 3], [0, 1]]
    layer, x = layer_of(4, 1), tokens(4, 4)
    out = graph_attention(layer, x, edges_of(graph))
    torch.testing.assert_close(out[2], layer.w_out(layer.w_value(x[0])))
    assert (out[:2] == 0).all()


def test_adjacencies_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="must be boolean and square"):
        edges_of(torch.ones(3, 3))
    with pytest.raises(ValueError, match="must be boolean and square"):
        edges_of(torch.ones(3, 4, dtype=torch.bool))
