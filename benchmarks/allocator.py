"""Training steps of the image models with freed memory given back (glibc's default) and kept by the process.

Run: ``.venv/bin/python benchmarks/allocator.py``. Each figure is from a process of its own; pairs follow each other.
"""

import statistics
import subprocess
import sys
import time

MODELS = ("cnn", "cnn_additive", "cnn_circular", "vit_patch7")
PAIRS, STEPS, BATCH = 5, 100, 64


def step_milliseconds(model: str, kept: bool) -> float:
    """Mean time of a training step in this process."""
    import torch
    from torch.nn.functional import cross_entropy

    from attnrepro.app import run
    from attnrepro.nn.presets import build_model

    if kept:
        run._keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layout = torch.channels_last if model.startswith("cnn") else torch.contiguous_format
    built = build_model(model, (1, 28, 28), 10).to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(BATCH, 1, 28, 28).contiguous(memory_format=layout)
    labels = torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.AdamW(built.parameters(), fused=True)
    started = 0.0
    for step in range(STEPS + 20):
        if step == 20:
            started = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(built(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (time.perf_counter() - started) / STEPS * 1e3


def main() -> None:
    """Print medians, and the ratio of pairs."""
    for model in MODELS:
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(PAIRS):
            for kept in (False, True):
                command = [sys.executable, __file__, model, "kept" if kept else "given"]
                times[kept].append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        ratios = [given / kept for given, kept in zip(times[False], times[True], strict=True)]
        given, kept = (statistics.median(times[which]) for which in (False, True))
        print(f"{model}: {given:.1f} ms given back, {kept:.1f} ms kept, ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(step_milliseconds(sys.argv[1], sys.argv[2] == "kept"))
    else:
        main()
