"""Layers of one-dimensional convolutional networks that differ in how far they see."""

from torch import Tensor, nn
from torch.nn.functional import pad

# Dilation rates of ByteNet, which then starts again from 1.
BYTENET_RATES = (1, 2, 4, 8, 16)
# Keeps the sign and never a slope of 0: what an output depends on is decided by the convolutions alone.
NEGATIVE_SLOPE = 0.5


class PadToMultiple(nn.Module):
    """Zeros after the last position until ``factor`` divides the length, so that no position is dropped."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """``[..., length]`` to the next multiple of ``factor``."""
        return pad(x, (0, -x.shape[-1] % self.factor))


def dilation(stack: str, kernel: int, index: int) -> int:
    """Dilation of layer ``index`` = 0, 1, ... of a stack; see `conv_layer`."""
    rates = {"dilation_kl": kernel**index, "dilation_2l": 2**index, "gapped": kernel}
    return BYTENET_RATES[index % len(BYTENET_RATES)] if stack == "bytenet" else rates.get(stack, 1)


def conv_layer(stack: str, kernel: int, index: int) -> nn.Sequential:
    """Layer ``index`` = 0, 1, ... of a stack, for ``[batch, 1, length]``: convolution, leaky ReLU, pooling.

    All but ``stride_k`` are padded with zeros to keep the length.

    Args:
        stack: ``stride1``; ``stride_k``: stride = kernel; ``pooled``: the mean of each 2 positions follows;
            ``dilation_kl``: dilation kernel^index; ``dilation_2l``: 2^index; ``bytenet``: 1, 2, 4, 8, 16 and again;
            ``gapped``: dilation = kernel.
        kernel: odd.

    Raises:
        ValueError: an unknown stack or an even kernel.

    Source: Gehring et al. 2017 (stride 1); Yu and Koltun 2016 (dilation); Kalchbrenner et al. 2016 (ByteNet).
    """
    known = ("stride1", "stride_k", "dilation_kl", "dilation_2l", "bytenet", "pooled", "gapped")
    if stack not in known:
        raise ValueError(f"stack={stack} must be one of {', '.join(known)}")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel={kernel} must be odd and positive")
    activation = nn.LeakyReLU(NEGATIVE_SLOPE)
    if stack == "stride_k":
        conv = nn.Conv1d(1, 1, kernel, stride=kernel, bias=False)
        return nn.Sequential(PadToMultiple(kernel), conv, activation)
    rate = dilation(stack, kernel, index)
    conv = nn.Conv1d(1, 1, kernel, padding=rate * (kernel // 2), dilation=rate, bias=False)
    pool = [nn.AvgPool1d(2, ceil_mode=True)] if stack == "pooled" else []
    return nn.Sequential(conv, activation, *pool)
