"""Models trained each second: one Lightning run for each model against one run for a whole ensemble.

Every model is a single-query pool of the 8-token task (position_strength), trained for 300 Adam steps on full batches
of float32. Times are processor seconds of one thread on the CPU, seconds of the clock on a GPU.
"""

import argparse
import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from attnrepro.nn.attention import attention_logits, attention_weights
from attnrepro.nn.position import sinusoidal
from attnrepro.nn.query_pool import AddedCode
from attnrepro.training.ensemble import PoolEnsemble, PoolGroup, Recipe, Sequences, cross_entropy
from attnrepro.training.measurement import batches

LENGTH, EMBED_DIM, STEPS, RATE = 8, 16, 300, 0.01
STRENGTHS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)


class OnePool(L.LightningModule):
    """The model as anybody would write it: tokens with the code added, projected, attended to, read out."""

    def __init__(self, strength: float, content: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.tokens = nn.Buffer(content + strength * sinusoidal(LENGTH, EMBED_DIM))
        self.labels = nn.Buffer(labels)
        self.query = nn.Parameter(torch.randn(1, EMBED_DIM) / math.sqrt(EMBED_DIM))
        self.w_key = nn.Linear(EMBED_DIM, EMBED_DIM, bias=False)
        self.w_value = nn.Linear(EMBED_DIM, EMBED_DIM, bias=False)
        self.w_out = nn.Linear(EMBED_DIM, 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=RATE)

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        weights = attention_weights(attention_logits(self.query, self.w_key(self.tokens)))
        logits = self.w_out((weights @ self.w_value(self.tokens))[:, 0])[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, self.labels)


class Pools(PoolEnsemble):
    """An ensemble that nothing is measured of."""

    def rows(self) -> list[Any]:
        return []


def sequences(seeds: int, n: int) -> tuple[Tensor, Tensor]:
    content = torch.randn(seeds, n, LENGTH, EMBED_DIM, generator=torch.Generator().manual_seed(n))
    return content, (content[:, :, 0, 0] > 0).float()


def ensemble(seeds: int, n: int) -> Pools:
    content, labels = sequences(seeds, n)
    streams = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
    code = sinusoidal(LENGTH, EMBED_DIM)[None]
    family = AddedCode(streams, code, list(STRENGTHS), [True] * len(STRENGTHS))
    data = Sequences(content.permute(0, 2, 3, 1).contiguous(), labels)
    return Pools([PoolGroup([family], [RATE], [cross_entropy], data)], Recipe("adam", (STEPS,)))


def one(n: int) -> OnePool:
    content, labels = sequences(1, n)
    return OnePool(STRENGTHS[2], content[0], labels[0])


def seconds(make: Callable[[], L.LightningModule], device: str) -> float:
    """Time of one Lightning run, with the construction of model and Trainer."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    trainer = L.Trainer(
        accelerator=device,
        devices=1,
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(make(), batches(range(STEPS)))
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - started


def compare(n: int, counts: Sequence[int], device: str, repeats: int) -> None:
    """Models for each second and their ratio; either side is timed in turn, and its fastest run counts."""
    alone = math.inf
    together = dict.fromkeys(counts, math.inf)
    for _ in range(repeats):
        alone = min(alone, seconds(lambda: one(n), device))
        for count in counts:
            together[count] = min(together[count], seconds(lambda count=count: ensemble(count, n), device))
    print(f"{n:5d}   one run a model     {1000 * alone:10.2f} {1 / alone:10.1f} {1.0:8.1f}", flush=True)
    for count, spent in together.items():
        models = count * len(STRENGTHS)
        label = f"{count} seeds x {len(STRENGTHS)}"
        each = spent / models
        print(f"{n:5d}   {label:18s} {1000 * each:11.2f} {1 / each:10.1f} {alone / each:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", help="ensemble sizes; 1 8 64, and 512 on a GPU")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many runs counts")
    arguments = parser.parse_args()
    counts = arguments.seeds or ((1, 8, 64) if arguments.device == "cpu" else (1, 8, 64, 512))
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")
    seconds(lambda: one(8), arguments.device)  # the first run of a process loads what the others find loaded
    print(f"{STEPS} steps, device {arguments.device}, {'processor' if arguments.device == 'cpu' else 'clock'} time")
    print("    n   how                  ms a model   models/s    ratio")
    for n in (32, 500):
        compare(n, counts, arguments.device, arguments.repeats)


if __name__ == "__main__":
    main()
