"""Where a training step of the image models spends its time: Lightning round it, and the library behind ``linear``.

Prints, on one thread, the CPU time of short trainings by Lightning over that of the same updates in a plain loop, and
the speed of ``torch.nn.functional.linear``, which asks torch's BLAS, beside oneDNN's product of the same matrices.
Where the BLAS leaves half of the processor unused, as MKL does on AMD's, scale cpu of the tables with Transformers
takes longer than on other processors of the same speed.
"""

import contextlib
import io
import logging
import statistics
import time

import torch
from torch.nn.functional import cross_entropy, linear

from attnrepro.nn.presets import seeded_model
from attnrepro.training.image_data import ImageData, Member, Split
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Fit

# Rows of a batch of 64 images of 17 tokens, and the layers of the ViT preset: inputs, outputs.
ROWS, LAYERS = 1088, ((64, 64), (64, 256), (256, 64))
MODELS = ("cnn", "vit_patch7")
STEPS, REPEATS, SHAPE = 200, 3, (1, 28, 28)


def split(n: int) -> Split:
    """Images of noise, ten labels."""
    stream = torch.Generator().manual_seed(0)
    return Split(torch.randn(n, *SHAPE, generator=stream), torch.arange(n) % 10)


def by_lightning(model: str, recipe: Recipe) -> float:
    """CPU seconds of a fit without validation to speak of."""
    import lightning as L

    member = Member(0, split(1000), split(10), {})
    (job,) = Fit(model, SHAPE, 10, recipe, [member], {}).jobs()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(accelerator="cpu", max_steps=STEPS, enable_model_summary=False, num_sanity_val_steps=0, **quiet)
    started = time.process_time()
    trainer.fit(job.module, job.fit)
    return time.process_time() - started


def by_hand(model: str, recipe: Recipe) -> float:
    """CPU seconds of the same updates in a plain loop."""
    net = seeded_model(0, model, SHAPE, 10)
    layout = torch.channels_last if model == "cnn" else torch.contiguous_format
    net.to(memory_format=layout)  # type: ignore[call-overload]
    data = ImageData([Member(0, split(1000), split(10), {})], 10, recipe)
    optimizer = torch.optim.AdamW(net.parameters(), lr=recipe.learning_rate, fused=True)
    started = time.process_time()
    for step in range(STEPS):
        batch = data.batch(step)
        optimizer.zero_grad()
        cross_entropy(net(batch.images[0].contiguous(memory_format=layout)), batch.labels[0]).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
        optimizer.step()
    return time.process_time() - started


def fastest(call: object, products: int = 200) -> float:
    """Seconds of one call, the best of several rounds."""
    assert callable(call)
    rounds = []
    for _ in range(6):
        started = time.perf_counter()
        for _ in range(products):
            call()
        rounds.append((time.perf_counter() - started) / products)
    return min(rounds)


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"model        Lightning over a plain loop, CPU time of {STEPS} updates")
    recipe = Recipe(0.001, 0.05, STEPS, 1)
    for model in MODELS:
        ratios = []
        for _ in range(REPEATS):
            with contextlib.redirect_stderr(io.StringIO()):
                ratios.append(by_lightning(model, recipe) / by_hand(model, recipe))
        print(f"{model:12s} {statistics.median(ratios):.2f}")
    print("linear       BLAS GFLOP/s   oneDNN GFLOP/s")
    for inputs, outputs in LAYERS:
        x, weight, bias = torch.randn(ROWS, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
        work = 2 * ROWS * inputs * outputs / 1e9
        blas = fastest(lambda x=x, w=weight, b=bias: linear(x, w, b))  # type: ignore[misc]
        other = fastest(lambda x=x, w=weight, b=bias: torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], ""))  # type: ignore[misc]
        print(f"{inputs:4d} to {outputs:3d}  {work / blas:12.0f}   {work / other:14.0f}")


if __name__ == "__main__":
    main()
