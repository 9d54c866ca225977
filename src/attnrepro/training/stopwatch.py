"""Time of one call, by the clock that suits the device."""

import time
from collections.abc import Callable

import torch


class Stopwatch:
    """Milliseconds of calls on one device.

    On a CPU with one thread: time of that thread, which other processes do not lengthen by taking turns (they still
    share caches and memory). With more threads: wall time. On CUDA: events, which see the device's work alone and
    wait for it.

    Raises:
        ValueError: a device that is neither.
    """

    def __init__(self, device: torch.device, threads: int) -> None:
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device={device} must be a CPU or a CUDA device")
        self.device = device
        self.clock = time.thread_time_ns if threads == 1 else time.perf_counter_ns

    def ms(self, run: Callable[[], object], *, on_cpu: bool = False) -> float:
        """Milliseconds of one call of ``run``; ``on_cpu``: work that does not go to the device."""
        if self.device.type == "cpu" or on_cpu:
            start = self.clock()
            run()
            return (self.clock() - start) / 1e6
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self.device)
        first.record()
        run()
        last.record()
        torch.cuda.synchronize(self.device)
        return float(first.elapsed_time(last))
