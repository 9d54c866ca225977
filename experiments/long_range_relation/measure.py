"""long_range_relation, measured: models trained on drawn images of two glyphs, and whether one is a sum over windows.

The training images of a seed are the first of one list, whatever their number, and places, types and labels are the
same for every strength of the cue.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnrepro.config import Cell
from attnrepro.data.same_different import SameDifferent, same_different
from attnrepro.data.streams import generator
from attnrepro.nn.presets import seeded_model
from attnrepro.results.rows import Row
from attnrepro.tables.long_range_relation.table import FREE_ROWS, MODELS, NAME, Params
from attnrepro.theory.same_different import GLYPH, SIDE
from attnrepro.training.image_data import Member, Split
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Fit

# Training images that are drawn at once.
BLOCK = 1000
CLASSES = 2


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: one a seed, or one for all seeds of an MLP; for tuning, of every pair of rates."""
    p = cell.params
    if p.study == "additivity":
        additivity = Additivity(cell)
        return [Job(additivity, batches(additivity.plan()))]
    members = [member(seed, p) for seed in cell.seeds]
    axes = {"model": p.model, "grid": p.grid, "cue": p.cue, "jitter": p.jitter, "n_train": p.n_train}
    jobs = []
    for learning_rate, weight_decay in p.rates():
        tuned = {"learning_rate": learning_rate, "weight_decay": weight_decay} if p.study == "tuning" else {}
        jobs += Fit(
            p.model,
            (1, SIDE, SIDE),
            CLASSES,
            recipe(p, learning_rate, weight_decay),
            members,
            {**axes, **tuned},
            settings=settings(p.model, p),
        ).jobs()
    return jobs


def recipe(p: Params, learning_rate: float, weight_decay: float) -> Recipe:
    """How the cell trains."""
    found = Recipe(learning_rate, weight_decay, p.steps(), p.evaluations, p.batch_size)
    if p.most_updates is not None and found.steps > p.most_updates:
        found = dataclasses.replace(found, steps=p.most_updates, evaluations=1)
    return found


def settings(model: str, p: Params) -> dict[str, Any]:
    """What takes the place of a preset's settings."""
    return {"widths": tuple(p.additive_widths)} if model == "cnn_additive" else {}


@dataclass(frozen=True)
class Prepare:
    """Standardises images, then rolls them down and to the right by ``shift`` pixels: what leaves on one side comes in
    on the other, so that nothing is lost, and patches cut the glyphs' cells."""

    mean: float
    std: float
    shift: int

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``[n, 1, 28, 28]``."""
        return ((images - self.mean) / self.std).roll((self.shift, self.shift), dims=(2, 3))


def task(p: Params) -> SameDifferent:
    """The cell's task."""
    return SameDifferent(p.types, p.cue, p.jitter, p.apart, p.cue_amplitude, p.noise)


def training_images(p: Params, seed: int) -> Split:
    """The first ``n_train`` images of the seed's list."""
    blocks = [
        same_different(task(p), BLOCK, seed, NAME, "train", block) for block in range(math.ceil(p.n_train / BLOCK))
    ]
    images, labels = (torch.cat(parts)[: p.n_train].clone() for parts in zip(*blocks, strict=True))
    return Split(images, labels)


def member(seed: int, p: Params) -> Member:
    """Data of a seed; all but the training images are the same for every ``n_train``."""
    train = training_images(p, seed)
    validation = Split(*same_different(task(p), p.n_validation, seed, NAME, "validation"))
    tests = {} if p.study == "tuning" else {"test": Split(*same_different(task(p), p.n_test, seed, NAME, "test"))}
    pixels = train.images.double()
    shift = p.shift if p.grid == "shifted" else 0
    return Member(seed, train, validation, tests, Prepare(float(pixels.mean()), float(pixels.std()), shift))


class Additivity(Measurement):
    """How far models are from sums over windows: f12 - f1 - f2 + f0 of images that differ in two places.

    The places are of a glyph's size and so many rows from each other that no window of the additive CNN sees both.
    Models are untrained, in float64; what BatchNorm keeps is from the unchanged images. In training mode it takes the
    statistics of the image at hand, which link all of its places.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.errors: dict[tuple[str, bool], list[float]] = {}

    def plan(self) -> list[tuple[str, int]]:
        """Batches: models and sides of the image."""
        return [(model, side) for model in MODELS for side in self.cell.params.sides]

    def test_step(self, batch: tuple[str, int], batch_idx: int) -> None:
        """All draws of one model on one size."""
        model, side = batch
        p, seed = self.cell.params, self.cell.seeds[0]
        stream = generator(seed, NAME, "additivity", side)
        net = seeded_model(seed, model, (1, side, side), CLASSES, **settings(model, p)).double().to(self.device)
        quads = torch.stack([four_images(side, stream) for _ in range(p.draws)]).to(self.device)
        net.train()
        net(quads[:, 0])
        for training in (False, True) if model == "cnn_additive" else (False,):
            net.train(training)
            found = self.errors.setdefault((model, training), [])
            found += [additivity_error(net, quad) for quad in quads]

    def rows(self) -> list[Row]:
        """The largest error of what must be additive, and the smallest of what must not."""
        rows = []
        for (model, training), found in self.errors.items():
            additive = model == "cnn_additive" and not training
            quantity = "additivity_error_eps" if additive else "additivity_breakage_eps"
            value = torch.tensor(found, dtype=torch.float64)
            worst = float(value.max() if additive else value.min())
            axes = {"model": model}
            rows.append(Row(quantity, worst, axes, statistic="exact", seed=self.cell.seeds[0], n=len(found)))
        return rows


def four_images(side: int, stream: torch.Generator) -> Tensor:
    """Images ``[4, 1, side, side]`` in float64: one, changed in a first place, in a second one, and in both."""

    def below(bound: int) -> int:
        return int(torch.randint(bound, (), generator=stream))

    first = below(side - GLYPH - FREE_ROWS + 1)
    second = first + FREE_ROWS + below(side - GLYPH - FREE_ROWS - first + 1)
    images = torch.randn(1, 1, side, side, generator=stream, dtype=torch.float64).repeat(4, 1, 1, 1)
    for row, changed in ((first, [1, 3]), (second, [2, 3])):
        column = below(side - GLYPH + 1)
        glyph = torch.randn(GLYPH, GLYPH, generator=stream, dtype=torch.float64)
        images[changed, :, row : row + GLYPH, column : column + GLYPH] = glyph
    return images


def additivity_error(net: nn.Module, quad: Tensor) -> float:
    """|f12 - f1 - f2 + f0|, the larger of both logits, in eps of the largest of all logits."""
    # One by one: in training mode, images of one batch would share its statistics and be sums all the same.
    plain, first, second, both = (net(image[None])[0] for image in quad)
    error = (both - first - second + plain).abs().max()
    largest = torch.stack([plain, first, second, both]).abs().max()
    return float(error / largest / torch.finfo(quad.dtype).eps)
