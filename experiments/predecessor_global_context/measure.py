"""predecessor_global_context, measured: the same CNN with each block, trained on fresh images and looked at as it goes.

Training and test images, the start of everything but the block and the order are those of the seed, whatever the block.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnrepro.config import Cell
from attnrepro.data.far_cue import FarCue
from attnrepro.data.same_different import SameDifferent
from attnrepro.data.spread import spread
from attnrepro.data.streams import generator
from attnrepro.nn.block_cnn import STRIDE, BlockCNN, seeded_block_cnn
from attnrepro.results.rows import Row
from attnrepro.tables.predecessor_global_context import table
from attnrepro.tables.predecessor_global_context.table import MORE, NAME, WINDOW, Params
from attnrepro.theory.same_different import CELL, GLYPH
from attnrepro.training.fresh import Draw, FreshRecipe, FreshTraining
from attnrepro.training.measurement import Job, Measurement, batches

CLASSES = 2
# What each read-out is for `BlockCNN`, by task.
READ = {
    ("same_different", "linear"): "mean",
    ("far_cue", "linear"): "places",
    ("far_cue", "hidden"): "places_hidden",
}


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: one a seed; for tuning, one a rate and seed."""
    p = cell.params
    if p.study == "anchors":
        anchors = Anchors(cell)
        return [Job(anchors, batches(anchors.plan()))]
    trained = [Curve(p, seed, rate) for rate in p.learning_rate for seed in cell.seeds]
    return [Job(module, None, fit=module.loader(), max_steps=p.updates()) for module in trained]


def draw_of(p: Params) -> Draw:
    """Images and labels of the cell's task."""
    if p.task == "far_cue":
        return FarCue(p.pairs, p.noise).draw
    task = SameDifferent(p.types, 0.5, 0, p.apart, 0.0, p.noise)

    def draw(n: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        images, labels = task.draw(n, stream)
        return spread(images, CELL, MORE), labels

    return draw


class Curve(FreshTraining):
    """One training of one seed, which ends with rows of every look."""

    def __init__(self, p: Params, seed: int, learning_rate: float) -> None:
        self.p, self.seed, self.learning_rate = p, seed, learning_rate
        use, n = ("validation", p.n_validation) if p.study == "tuning" else ("test", p.n_test)
        draw = draw_of(p)
        recipe = FreshRecipe(
            learning_rate, p.weight_decay, p.updates(), p.look_every(), batch_size=p.batch_size, warmup=p.warmup
        )
        super().__init__(
            seeded_block_cnn(seed, 1, CLASSES, block=p.block, readout=READ[p.task, p.readout]),
            recipe,
            draw,
            lambda device: generator(seed, NAME, p.task, "train", device=device),
            draw(n, generator(seed, NAME, p.task, use)),
        )

    def rows(self) -> list[Row]:
        """Accuracy and loss of each look and when it took off; for tuning, accuracy at the end and on average."""
        axes: dict[str, object] = {"task": self.p.task, "readout": self.p.readout, "block": self.p.block}
        if self.p.study == "tuning":
            axes["learning_rate"] = self.learning_rate
            seen = [look.accuracy for step, look in self.looks.items() if step]
            found = {"validation_height": sum(seen) / len(seen), "validation_accuracy": seen[-1]}
            return [self._row(quantity, value, axes) for quantity, value in found.items()]
        rows = []
        for step, look in self.looks.items():
            at = {**axes, "updates": step}
            rows += [self._row("accuracy", look.accuracy, at), self._row("loss", look.loss, at, unit="nat")]
        bound = next(row.value for row in table.theory_of(self.p) if row.quantity == "local_accuracy_bound")
        off = next((float(step) for step, look in self.looks.items() if look.accuracy > bound), math.nan)
        never = f"failed: not within {self.p.updates()} updates"
        rows.append(self._row("updates_to_take_off", off, axes, unit="updates", why=never))
        return rows

    def _row(
        self, quantity: str, value: float, axes: dict[str, object], *, unit: str = "", why: str = "failed: diverged"
    ) -> Row:
        status = "ok" if math.isfinite(value) else why
        return Row(quantity, value, axes, statistic="mean", unit=unit, seed=self.seed, n=1, status=status)


class Anchors(Measurement):
    """What cannot be told from windows one by one, and what one vector added to all places cannot change.

    Two changes far from each other: f12 - f1 - f2 + f0 of the mean's logits is zero for a sum over windows. One change:
    the difference of two places' logits far from it is that of before, if all places receive the same. Models are
    untrained, in float64 and as tested, with every gate of a block opened.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.errors: dict[tuple[str, str], list[float]] = {}

    def plan(self) -> list[tuple[str, int]]:
        """Batches: blocks and sides of the image."""
        return [(block, side) for block in table.ANCHORED for side in self.cell.params.sides]

    def test_step(self, batch: tuple[str, int], batch_idx: int) -> None:
        """All draws of one block on one size."""
        block, side = batch
        seed = self.cell.seeds[0]
        stream = generator(seed, NAME, "anchors", side)
        nets = {
            quantity: opened(seeded_block_cnn(seed, 1, CLASSES, block=block, readout=readout), seed).to(self.device)
            for quantity, readout in (("additivity", "mean"), ("contrast", "places"))
        }
        quads = torch.stack([four_images(side, stream) for _ in range(self.cell.params.draws)]).to(self.device)
        for quantity, net in nets.items():
            net.train()
            net(quads[:, 0])
            net.eval()
            measure = additivity_error if quantity == "additivity" else contrast_error
            self.errors.setdefault((quantity, block), []).extend(measure(net, quad) for quad in quads)

    def rows(self) -> list[Row]:
        """The largest error of what must hold, and the smallest of what must not."""
        rows = []
        for (quantity, block), found in self.errors.items():
            task, holds = (
                ("far_cue", table.QUERY_INDEPENDENT) if quantity == "contrast" else ("same_different", table.LOCAL)
            )
            kind, value = ("error", max(found)) if block in holds else ("breakage", min(found))
            axes = {"task": task, "readout": "linear", "block": block}
            seed = self.cell.seeds[0]
            rows.append(Row(f"{quantity}_{kind}_eps", value, axes, statistic="exact", seed=seed, n=len(found)))
        return rows


def opened(net: BlockCNN, seed: int) -> BlockCNN:
    """The model in float64, the weights of its block drawn anew: none is zero, as gates are at the start."""
    stream = generator(seed, NAME, "opened")
    net = net.double()
    with torch.no_grad():
        for weight in net.block.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=stream, dtype=torch.float64))
    return net


def four_images(side: int, stream: torch.Generator) -> Tensor:
    """An image, changed in one place, in another, and in both ``[4, 1, side, side]``, in float64.

    The second place is in the lower half, further from the first than any window of a place is wide; both are of a
    glyph's size.
    """

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=stream, dtype=torch.float64)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=stream))

    quad = noise(side, side).repeat(4, 1, 1)
    last = side - GLYPH - (GLYPH + WINDOW)
    first = (between(0, last // 2 + 1), between(0, side - GLYPH + 1))
    second = (between(first[0] + GLYPH + WINDOW, side - GLYPH + 1), between(0, side - GLYPH + 1))
    for (row, column), changed in ((first, (1, 3)), (second, (2, 3))):
        patch = noise(GLYPH, GLYPH)
        for index in changed:
            quad[index, row : row + GLYPH, column : column + GLYPH] = patch
    return quad[:, None]


@torch.no_grad()
def additivity_error(net: nn.Module, quad: Tensor) -> float:
    """Largest |f12 - f1 - f2 + f0| over the logits, in eps of the largest logit."""
    plain, first, second, both = net(quad)
    return _in_eps((both - first) - (second - plain), net(quad))


@torch.no_grad()
def contrast_error(net: nn.Module, quad: Tensor) -> float:
    """How much the first change moves the difference of two places' logits that see nothing of it, in eps."""
    plain, first = net(quad[:2])
    changed = (quad[0, 0] != quad[1, 0]).nonzero()[:, 0]
    # The place of row r sees pixels from 4 r - 4 to 4 r + 4.
    below = -(-(int(changed.max()) + 1 + WINDOW // 2) // STRIDE)
    before, after = (logits[:, below:].flatten(1) for logits in (plain, first))
    moved: Any = (after - after[:, :1]) - (before - before[:, :1])
    return _in_eps(moved, torch.stack([plain, first]))


def _in_eps(error: Tensor, logits: Tensor) -> float:
    return float(error.abs().max() / logits.abs().max()) * 2.0**52
