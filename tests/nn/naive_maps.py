"""What tests of blocks on maps share: opened gates, moved places, reach, counted FLOPs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

# Height and width; odd, tiny and flat ones.
SIZES = [(1, 1), (1, 7), (5, 3), (4, 4)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def opened(block: nn.Module, seed: int = 1) -> nn.Module:
    """The block in float64 with every parameter drawn, those that start at zero too."""
    stream = torch.Generator().manual_seed(seed)
    block = block.double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream, dtype=torch.float64) * 0.6)
    return block


def assert_same(block: nn.Module, naive: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Values, and gradients by the map and by every parameter, along a random direction."""
    x = x.clone().requires_grad_()
    leaves = [x, *block.parameters()]
    found, expected = block(x), naive(x)
    assert found.shape == x.shape
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    along = drawn(*x.shape, seed=99)
    slopes, wanted = (
        torch.autograd.grad((out * along).sum(), leaves, allow_unused=True, materialize_grads=True)
        for out in (found, expected)
    )
    for slope, right in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(slope, right, rtol=1e-9, atol=1e-10)


def permuted(x: Tensor, seed: int = 5) -> Tensor:
    """All places in another order."""
    order = torch.randperm(x.shape[-2] * x.shape[-1], generator=torch.Generator().manual_seed(seed))
    return x.flatten(-2)[..., order].unflatten(-1, x.shape[-2:])


def rows_and_columns_permuted(x: Tensor, seed: int = 5) -> Tensor:
    """Rows in another order, and columns in another one."""
    stream = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=stream) for n in x.shape[-2:])
    return x[..., rows, :][..., columns]


def apart(block: nn.Module, move: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """How far the block of the moved map is from the moved output, relative to the largest output."""
    with torch.no_grad():
        out = move(block(x))
        return float((block(move(x)) - out).abs().max() / out.abs().max())


def reach(block: nn.Module, x: Tensor, row: int, column: int) -> Tensor:
    """Places that the output at one place depends on, boolean ``[height, width]``."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(block(x)[0, :, row, column].sum(), x)
    seen: Tensor = (slope[0] != 0).any(0)
    return seen


def flops_of(block: nn.Module, *shape: int) -> int:
    """FLOPs of a forward pass, counted without data."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy.deepcopy(block).to("meta")(torch.zeros(shape, device="meta", dtype=next(block.parameters()).dtype))
    return int(counter.get_total_flops())


def parameters_of(block: nn.Module) -> int:
    return sum(parameter.numel() for parameter in block.parameters())


def assert_bfloat16_finite(block: nn.Module, channels: int) -> None:
    """Values and gradients of a small and of a large map."""
    block = copy.deepcopy(block).to(torch.bfloat16)
    for size in (1.0, 100.0):
        x = (drawn(2, channels, 5, 3) * size).to(torch.bfloat16).requires_grad_()
        out = block(x)
        assert out.dtype == torch.bfloat16
        slopes = torch.autograd.grad(out.float().sum(), [x, *block.parameters()], allow_unused=True)
        for tensor in (out, *(s for s in slopes if s is not None)):
            assert tensor.isfinite().all()
