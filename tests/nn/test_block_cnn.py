"""The CNN of local windows with one block: windows, reach, starts, sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnrepro.nn.block_cnn import BLOCKS, BlockCNN, seeded_block_cnn


def opened(net: BlockCNN) -> BlockCNN:
    """In float64 and as tested, no weight of the block zero."""
    stream = torch.Generator().manual_seed(0)
    net = net.double().eval()
    with torch.no_grad():
        for weight in net.block.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=stream, dtype=torch.float64))
    return net


def touched(net: BlockCNN, side: int, row: int, column: int) -> torch.Tensor:
    """Pixels that the logits of one place depend on."""
    image = torch.randn(1, 1, side, side, dtype=torch.float64, requires_grad=True)
    net(image)[0, :, row, column].sum().backward()
    assert image.grad is not None
    return image.grad[0, 0].abs() > 0


def test_a_place_sees_nine_pixels_around_its_middle_and_with_a_block_all_windows() -> None:
    seen = touched(opened(BlockCNN(1, 2, block="none", readout="places")), 32, 3, 4).nonzero()
    assert seen.min(0).values.tolist() == [3 * 4 - 4, 4 * 4 - 4]
    assert seen.max(0).values.tolist() == [3 * 4 + 4, 4 * 4 + 4]
    for block in ("global_context", "non_local", "multi_head", "criss_cross_2", "squeeze_excitation"):
        # Windows of the last places end three pixels from the border at 32 pixels.
        assert bool(touched(opened(BlockCNN(1, 2, block=block, readout="places")), 32, 3, 4)[0].any())


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("readout", ["mean", "places", "places_hidden"])
def test_shapes_on_even_and_odd_sizes(block: str, readout: str) -> None:
    net = BlockCNN(3, 5, block=block, width=16, readout=readout).eval()
    for height, width in ((28, 28), (13, 30), (9, 9)):
        expected = (2, 5) if readout == "mean" else (2, 5, -(-height // 4), -(-width // 4))
        assert net(torch.randn(2, 3, height, width)).shape == expected


def test_parameters_without_a_block_are_the_closed_form() -> None:
    for channels, classes, width in ((1, 2, 64), (3, 10, 16)):
        net = BlockCNN(channels, classes, block="none", width=width)
        assert (
            sum(p.numel() for p in net.parameters())
            == 81 * channels * width + 2 * width**2 + 6 * width + (width + 1) * classes
        )
    assert sum(p.numel() for p in BlockCNN(1, 2, block="none").parameters()) == 13890


def test_the_mean_of_places_is_the_readout_of_the_mean() -> None:
    one, two = (seeded_block_cnn(1, 1, 2, block="multi_head", readout=r).double().eval() for r in ("mean", "places"))
    images = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(one(images), two(images).mean((2, 3)), rtol=1e-12, atol=1e-12)


def test_everything_but_the_block_starts_alike() -> None:
    starts = [seeded_block_cnn(4, 1, 2, block=block).state_dict() for block in BLOCKS]
    for name, value in starts[0].items():
        assert all(torch.equal(value, other[name]) for other in starts[1:])
    other = seeded_block_cnn(5, 1, 2, block="none").state_dict()
    assert not torch.equal(starts[0]["readout.0.weight"], other["readout.0.weight"])


def test_a_start_changes_nothing_that_is_drawn_elsewhere() -> None:
    torch.manual_seed(0)
    first = torch.rand(3)
    torch.manual_seed(0)
    seeded_block_cnn(1, 1, 2, block="swin")
    assert torch.equal(torch.rand(3), first)


def test_bfloat16_is_finite() -> None:
    for block in BLOCKS:
        net = BlockCNN(1, 2, block=block, width=16).bfloat16()
        loss = net(torch.randn(4, 1, 28, 28, dtype=torch.bfloat16)).float().square().sum()
        loss.backward()
        assert all(bool(p.grad.isfinite().all()) for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("given", "words"), [({"block": "glance"}, "block=glance"), ({"block": "none", "readout": "x"}, "readout=x")]
)
def test_unknown_names_are_one_sentence(given: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        BlockCNN(1, 2, **given)  # type: ignore[arg-type]


def test_windows_are_convolutions_and_norms_alone() -> None:
    """Nothing of the base links distant places: strides 4, 1, 1 and kernels 9, 1, 1."""
    kernels = [m for m in BlockCNN(1, 2, block="none").windows.modules() if isinstance(m, nn.Conv2d)]
    assert [(k.kernel_size[0], k.stride[0]) for k in kernels] == [(9, 4), (1, 1), (1, 1)]
