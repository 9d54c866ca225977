"""What Swin's blocks, ConvNeXt's and strided attention cost on paper: parameters, and FLOPs of one forward pass.

Two FLOPs are a multiply-add; norms, softmax, activations and biases are not counted, as torch's counter does not.
Sources: Liu et al. 2021 (equations 1 and 2), Liu et al. 2022 (figure 4), Child et al. 2019 (section 4.2).
"""

from attnrepro.theory.image_models import Cost


def window_attention(
    channels: int, height: int, width: int, *, num_heads: int, window: int, relative_bias: bool = True
) -> Cost:
    """Self-attention within windows, on a map that is filled up to whole windows."""
    filled = -(-height // window) * -(-width // window) * window**2
    parameters = 4 * channels**2 + 4 * channels
    if relative_bias:
        parameters += (2 * window - 1) ** 2 * num_heads
    return Cost(parameters, 8 * filled * channels**2 + 4 * filled * window**2 * channels)


def swin_pair(
    channels: int,
    height: int,
    width: int,
    *,
    num_heads: int,
    window: int,
    expansion: int = 4,
    relative_bias: bool = True,
) -> Cost:
    """Two blocks, each of attention, an MLP and two norms; the MLP sees no filling."""
    attention = window_attention(
        channels, height, width, num_heads=num_heads, window=window, relative_bias=relative_bias
    )
    mlp = 2 * expansion * channels**2 + (expansion + 1) * channels
    parameters = 2 * (attention.parameters + mlp + 4 * channels)
    return Cost(parameters, 2 * (attention.flops + 4 * expansion * height * width * channels**2))


def patch_merging(channels: int, height: int, width: int) -> Cost:
    """Four neighbours of ``channels`` each become one of twice as many."""
    return Cost(8 * channels**2 + 8 * channels, 4 * height * width * channels**2)


def convnext(channels: int, height: int, width: int, *, expansion: int = 4) -> Cost:
    """Depthwise 7 x 7, norm, two products and a scale for each channel."""
    parameters = 2 * expansion * channels**2 + (54 + expansion) * channels
    return Cost(parameters, height * width * (98 * channels + 4 * expansion * channels**2))


def strided_flops(length: int, head_dim: int, stride: int, *, causal: bool = False) -> int:
    """Logits and weighted sums of one head: what is near and, filled up to whole strides, what is a stride apart."""
    near = stride + 1 if causal else 2 * stride + 1
    apart = -(-length // stride)
    return 4 * head_dim * (length * near + stride * apart**2)
