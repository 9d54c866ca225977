"""Convolution written as self-attention: a head for each tap, and weights that look at positions only."""

import math

import torch
from torch import Tensor

from attnrepro.nn.self_attention import SelfAttention


def convolution_layer(kernel: Tensor, turns: Tensor | None = None, logit_scale: float = 0.0) -> SelfAttention:
    """A self-attention layer whose head k passes on what tap k of a convolution reads, times that tap.

    Which token head k reads is not in the values. Either a mask leaves it one (`tap_masks`), and then queries and
    keys do not matter and stay zero; or positions decide: tokens carry a code p (`as_tokens`), the query of token i
    is ``logit_scale`` times ``turns[k]`` applied to p_i, which must be the code of the position that the tap reads,
    and the key of token j is p_j. The larger ``logit_scale``, the closer the weights come to that one position.

    Args:
        kernel: ``[out_channels, in_channels, width]`` as in ``torch.nn.functional.conv1d``.
        turns: ``[width, code_dim, code_dim]``, what takes the code of a position to that of its tap.
        logit_scale: factor of the code's own dot products in the logits.

    Returns:
        A layer of width heads in the dtype of the kernel. Its outputs have the convolution in their first
        out_channels components and zeros behind them.

    Source: Cordonnier et al. 2020, On the Relationship between Self-Attention and Convolutional Layers, theorem 1;
    document 002, section on convolution as restricted attention.
    """
    outputs, inputs, width = kernel.shape
    code = 0 if turns is None else turns.shape[-1]
    head_dim = max(outputs, code, math.ceil((inputs + code) / width))
    layer = SelfAttention(width * head_dim, width).to(dtype=kernel.dtype, device=kernel.device)
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        for tap in range(width):
            first = tap * head_dim
            layer.w_value.weight[first : first + outputs, :inputs] = kernel[:, :, tap]
            layer.w_out.weight[:outputs, first : first + outputs] = torch.eye(outputs)
            if turns is not None:
                # The layer divides its logits by sqrt(head_dim).
                strength = logit_scale * math.sqrt(head_dim)
                layer.w_query.weight[first : first + code, inputs : inputs + code] = strength * turns[tap]
                layer.w_key.weight[first : first + code, inputs : inputs + code] = torch.eye(code)
    return layer


def as_tokens(layer: SelfAttention, x: Tensor, code: Tensor | None = None) -> Tensor:
    """Channels, then the code of the position if there is one, then zeros: ``[length, embed_dim]`` of the layer."""
    parts = [x] if code is None else [x, code]
    filled = sum(part.shape[-1] for part in parts)
    rest = torch.zeros(*x.shape[:-1], layer.w_query.in_features - filled, dtype=x.dtype, device=x.device)
    return torch.cat([*parts, rest], dim=-1)


def tap_masks(
    length: int, width: int, *, circular: bool, shift: int = 0, device: torch.device | str | None = None
) -> Tensor:
    """Masks ``[width, length, length]``, True = may attend: under mask k token i sees token i + k - width // 2 alone.

    Beyond the ends it sees nobody, which is a padding with zeros, or the other end (``circular``). ``shift`` moves
    every tap to the right.

    Raises:
        ValueError: a length below 1, or a width that is not odd and positive.
    """
    if length < 1:
        raise ValueError(f"length={length} must be 1 or more")
    if width < 1 or width % 2 == 0:
        raise ValueError(f"width={width} must be odd and positive, so that a tap stands in the middle")
    position = torch.arange(length, device=device)
    target = position[None, :] + (torch.arange(width, device=device) - width // 2 + shift)[:, None]
    if circular:
        target = target % length
    return target[..., None] == position
