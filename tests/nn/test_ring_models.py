"""Small networks on a ring, against loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnrepro.nn import ring_models
from attnrepro.nn.position import sinusoidal
from attnrepro.nn.self_attention import SelfAttention


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("padding", "stride"), [("circular", 1), ("zeros", 1), ("circular", 2)])
def test_token_convolution_is_a_loop(padding: ring_models.Padding, stride: int) -> None:
    x = normal(6, 3)
    layer = ring_models.TokenConv(3, 2, 5, padding=padding, stride=stride).double()
    weight, out = layer.conv.weight.detach(), layer(x)
    assert out.shape == (6 // stride, 2)
    for i in range(6 // stride):
        for o in range(2):
            total = 0.0
            for tap in range(5):
                at = i * stride + tap - 2
                if padding == "circular" or 0 <= at < 6:
                    total += float(weight[o, :, tap] @ x[at % 6])
            assert float(out[i, o].detach()) == pytest.approx(total, abs=1e-13)


def test_a_locally_connected_layer_has_a_kernel_at_each_position() -> None:
    x, layer = normal(7, 2), ring_models.LocallyConnected(7, 2, 3, 5).double()
    out = layer(x)
    for i in range(7):
        wanted = sum(x[(i + tap - 2) % 7] @ layer.weight[i, tap] for tap in range(5))
        torch.testing.assert_close(out[i], wanted)


def test_pool_takes_the_larger_of_two_neighbours() -> None:
    x = normal(6, 3)
    for i, row in enumerate(ring_models.Pool()(x)):
        assert row.tolist() == [max(a, b) for a, b in zip(x[2 * i].tolist(), x[2 * i + 1].tolist(), strict=True)]


def test_flattened_is_one_matrix() -> None:
    x, layer = normal(4, 3), ring_models.Flattened(4, 3).double()
    torch.testing.assert_close(layer(x).flatten(), layer.linear.weight @ x.flatten())


@pytest.mark.parametrize("skips", [True, False])
def test_unet_step_by_step(skips: bool) -> None:
    x, net = normal(8, 2), ring_models.UNet(2, 3, skips=skips).double()
    gelu = torch.nn.functional.gelu
    first = gelu(net.down[0](x))
    second = gelu(net.down[1](torch.stack([first[2 * i : 2 * i + 2].max(0).values for i in range(4)])))
    low = gelu(net.bottleneck(torch.stack([second[2 * i : 2 * i + 2].max(0).values for i in range(2)])))
    up = torch.stack([low[i // 2] for i in range(4)])
    up = gelu(net.up[0](torch.cat([up, second], -1) if skips else up))
    up = torch.stack([up[i // 2] for i in range(8)])
    up = gelu(net.up[1](torch.cat([up, first], -1) if skips else up))
    torch.testing.assert_close(net(x), up)


def test_positions_are_added_to_the_tokens() -> None:
    x, net = normal(6, 4), ring_models.PositionedAttention(4, 2).double()
    torch.testing.assert_close(net(x), net.layer(x + sinusoidal(6, 4, dtype=torch.float64)))
    torch.testing.assert_close(net.weights(x), net.layer.weights(x + sinusoidal(6, 4, dtype=torch.float64)))


def test_relative_attention_is_a_loop() -> None:
    n, d, heads = 5, 4, 2
    x, net = normal(n, d), ring_models.RelativeAttention(n, d, heads).double()
    q, k, v = (w(x).detach() for w in (net.layer.w_query, net.layer.w_key, net.layer.w_value))
    joined = torch.zeros(n, d, dtype=torch.float64)
    for h in range(heads):
        part = slice(2 * h, 2 * h + 2)
        for i in range(n):
            logits = [float(q[i, part] @ k[j, part]) / math.sqrt(2) + float(net.bias[h, (j - i) % n]) for j in range(n)]
            total = sum(map(math.exp, logits))
            joined[i, part] = sum(math.exp(s) / total * v[j, part] for j, s in enumerate(logits))
    torch.testing.assert_close(net(x), net.layer.w_out(joined))
    net.bias.data.zero_()
    torch.testing.assert_close(net(x), net.layer(x))


def test_patches_are_read_row_by_row() -> None:
    image, net = normal(4, 6), ring_models.PatchAttention(2, 4, 2).double()
    patches = [image[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] for i in range(2) for j in range(3)]
    tokens = torch.stack([torch.stack([(w[0] * patch).sum() for w in net.patches.weight]) for patch in patches])
    torch.testing.assert_close(net.outputs(image), net.layer(tokens))
    torch.testing.assert_close(net(image), net.layer(tokens).mean(0))


@pytest.mark.parametrize("network", ring_models.NETWORKS)
def test_every_network_maps_tokens_to_tokens(network: str) -> None:
    net = ring_models.network_of(network, 8, 4, 3, 2).double()
    halved = network in ("convolution_pooled", "convolution_strided")
    assert net(normal(8, 4)).shape == (4 if halved else 8, 4)


def test_attention_stays_what_it_is() -> None:
    net = ring_models.network_of("attention", 8, 4, 3, 2).double()
    assert isinstance(net[0], SelfAttention) and net[0].num_heads == 2  # type: ignore[index]


def test_an_unknown_network_is_refused() -> None:
    for name in ("unet", "transformer"):
        with pytest.raises(ValueError, match=f"network={name} must be one of"):
            ring_models.mixing_layer(name, 8, 4, 3, 2)
