"""The counter of bytes: tensors of known size, buffers inside of kernels, and traces by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attnrepro.training.memory import Memory, memory_of, replayed

CPU = torch.device("cpu")


def floats(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.float32)


def test_the_peak_of_buffers_that_come_and_go() -> None:
    def run() -> torch.Tensor:
        first = floats(1000)
        second = floats(500)
        del first
        third = floats(700)
        del second
        return third

    assert memory_of(run, CPU) == Memory(peak=4 * 1500, held=4 * 700)


def test_what_was_there_before_counts_nothing_when_it_goes() -> None:
    before = [floats(10**6)]

    def run() -> torch.Tensor:
        before.clear()
        return floats(100)

    assert memory_of(run, CPU) == Memory(400, 400)
    assert memory_of(lambda: None, CPU) == Memory(0, 0)


def test_views_take_nothing_and_copies_do() -> None:
    x = floats(600).reshape(20, 30)
    assert memory_of(lambda: x.T[1:].unsqueeze(0), CPU) == Memory(0, 0)
    assert memory_of(lambda: x.T.contiguous(), CPU) == Memory(2400, 2400)


def test_what_autograd_keeps_and_lets_go() -> None:
    x = torch.ones(1000, requires_grad=True)

    def step() -> None:
        x.grad = None
        (x.exp() * 1.0).sum().backward()

    kept = memory_of(lambda: x.exp().exp(), CPU)
    assert kept.held == 8000  # the result, and the one before for its gradient
    assert memory_of(step, CPU).held == 4000  # the gradient alone


def test_buffers_inside_of_a_kernel_are_seen() -> None:
    """The fused kernel has a block of scores that no tensor of ours holds."""
    qkv = [torch.ones(1, 1, 256, 8) for _ in range(3)]
    with torch.no_grad():
        found = memory_of(lambda: scaled_dot_product_attention(*qkv), CPU)
    output = 256 * 8 * 4
    assert found.held == output
    assert found.peak > output + 10_000


def test_two_counts_of_the_same_are_equal() -> None:
    x = torch.ones(200, 200, requires_grad=True)

    def step() -> Memory:
        x.grad = None
        return memory_of(lambda: torch.softmax(x @ x, -1).sum().backward(), CPU)

    assert len({step() for _ in range(5)}) == 1
    assert step().held == 4 * 200 * 200


def event(at: float, address: int, size: int, kind: int = 0) -> dict[str, Any]:
    return {"name": "[memory]", "ts": at, "args": {"Addr": address, "Bytes": size, "Device Type": kind}}


def test_a_trace_is_replayed_in_the_order_of_time() -> None:
    events = [
        event(3.0, 1, -100),
        event(1.0, 1, 100),
        event(2.0, 2, 50),
        event(2.5, 9, -70),  # from before
        event(2.6, 5, 10**9, kind=1),  # another device
        {"name": "aten::empty", "ts": 0.0},
        event(4.0, 1, 120),  # an address that is used again
    ]
    assert replayed(events) == Memory(peak=170, held=170)
    assert replayed([]) == Memory(0, 0)


def test_another_kind_of_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device=meta must be a CPU or a CUDA device"):
        memory_of(lambda: None, torch.device("meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_cuda_counts_the_same_buffers() -> None:
    device = torch.device("cuda")

    def run() -> torch.Tensor:
        first = torch.empty(2**20, device=device)
        second = torch.empty(2**19, device=device)
        del first
        return second

    assert memory_of(run, device) == Memory(peak=4 * 2**20 + 4 * 2**19, held=4 * 2**19)
