"""Bytes that a computation takes, from the allocator's own record: exact and the same in every run."""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

CPU = 0  # the number of the device type in a trace


class Memory(NamedTuple):
    """Bytes above what was allocated before: at most at a time, and at the end with the result still alive."""

    peak: int
    held: int


def memory_of(run: Callable[[], object], device: torch.device) -> Memory:
    """Memory of one call of ``run``, the buffers inside of torch's kernels included.

    On a CPU every allocation and release is recorded by torch's profiler; buffers of libraries that allocate for
    themselves (BLAS) are not seen. On CUDA the caching allocator is asked: it rounds every block up to 512 bytes, and
    what a library keeps for later calls (the workspace of cuBLAS) counts when it is first taken, so call ``run`` once
    before.

    Raises:
        ValueError: a device that is neither.
    """
    if device.type == "cpu":
        return _on_cpu(run)
    if device.type != "cuda":
        raise ValueError(f"device={device} must be a CPU or a CUDA device")
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = run()
    torch.cuda.synchronize(device)
    found = Memory(torch.cuda.max_memory_allocated(device) - before, torch.cuda.memory_allocated(device) - before)
    del result
    return found


def _on_cpu(run: Callable[[], object]) -> Memory:
    # Kineto, which records, prints when it starts and stops, and reads this when it is first used.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = run()
    del result
    with tempfile.TemporaryDirectory(prefix="attnrepro-trace-") as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return replayed(events)


def replayed(events: Iterable[Mapping[str, Any]]) -> Memory:
    """Peak and final sum of a trace's allocations on the CPU; a release of what was there before counts nothing."""
    records = [event for event in events if event.get("name") == "[memory]"]
    records = [event for event in records if event["args"]["Device Type"] == CPU]
    alive: dict[int, int] = {}
    now = peak = 0
    for event in sorted(records, key=lambda e: float(e["ts"])):
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            alive[address] = size
            now += size
        else:
            now -= alive.pop(address, 0)
        peak = max(peak, now)
    return Memory(peak, now)
