"""Time of the Monte-Carlo draws of sqrt_d_entropy for each normal number, one thread."""

import statistics
import time

import torch

from attnrepro.nn.attention import attention_logits

N_KEYS = 16
CHUNK = 1 << 22
REPEATS = 7


def main() -> None:
    torch.set_num_threads(1)
    stream = torch.Generator().manual_seed(0)
    print("head_dim   draw ns/normal   draw + logits ns/normal")
    for head_dim in (4, 16, 64, 256, 1024):
        count = CHUNK // ((N_KEYS + 1) * head_dim)
        drawn, both = [], []
        for _ in range(REPEATS):
            started = time.perf_counter()
            query = torch.randn(count, 1, head_dim, generator=stream)
            key = torch.randn(count, N_KEYS, head_dim, generator=stream)
            middle = time.perf_counter()
            attention_logits(query, key, scaled=False)
            ended = time.perf_counter()
            drawn.append((middle - started) / (query.numel() + key.numel()) * 1e9)
            both.append((ended - started) / (query.numel() + key.numel()) * 1e9)
        print(f"{head_dim:8d}   {statistics.median(drawn):14.2f}   {statistics.median(both):23.2f}")


if __name__ == "__main__":
    main()
