"""Costs of Swin's, ConvNeXt's and strided blocks: the sums of whole networks, and laws of growth."""

from attnrepro.theory import window_blocks


def test_swin_tiny_has_the_parameters_that_torchvision_states() -> None:
    stages = [(96, 2, 3), (192, 2, 6), (384, 6, 12), (768, 2, 24)]
    blocks = sum(
        depth // 2 * window_blocks.swin_pair(c, 7, 7, num_heads=h, window=7).parameters for c, depth, h in stages
    )
    merging = sum(window_blocks.patch_merging(c, 2, 2).parameters for c in (96, 192, 384))
    # Patches of 4 x 4 pixels and their norm, the last norm, a linear head of 1000 classes.
    rest = (48 * 96 + 96) + 2 * 96 + 2 * 768 + (768 * 1000 + 1000)
    assert blocks + merging + rest == 28_288_354


def test_convnext_tiny_has_the_parameters_that_torchvision_states() -> None:
    stages = [(96, 3), (192, 3), (384, 9), (768, 3)]
    blocks = sum(depth * window_blocks.convnext(c, 1, 1).parameters for c, depth in stages)
    # A norm and a convolution of 2 x 2 between stages; patches, their norm, the last norm and the head as in Swin.
    between = sum(2 * c + 4 * c * 2 * c + 2 * c for c in (96, 192, 384))
    rest = (48 * 96 + 96) + 2 * 96 + 2 * 768 + (768 * 1000 + 1000)
    assert blocks + between + rest == 28_589_128


def test_windows_grow_linearly_with_the_map_and_filling_costs() -> None:
    def flops(height: int, width: int) -> int:
        return window_blocks.window_attention(64, height, width, num_heads=4, window=4).flops

    assert flops(64, 64) == 64 * flops(8, 8)
    assert flops(5, 5) == flops(8, 8)
    # 64 places, 64 channels: 8 N C^2 and 4 N M^2 C.
    assert flops(8, 8) == 8 * 64 * 64**2 + 4 * 64 * 16 * 64


def test_strided_attention_grows_with_the_power_three_halves() -> None:
    # A stride of sqrt(n): n (2 sqrt(n) + 1) near and n sqrt(n) apart.
    for root in (8, 64):
        n = root**2
        assert window_blocks.strided_flops(n, 1, root) == 4 * (n * (2 * root + 1) + n * root)
        assert window_blocks.strided_flops(n, 1, root, causal=True) == 4 * (n * (root + 1) + n * root)
    # 10 positions, stride 4: 9 near, and 4 columns of 3 filled up.
    assert window_blocks.strided_flops(10, 2, 4) == 4 * 2 * (10 * 9 + 4 * 9)
