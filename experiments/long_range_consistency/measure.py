"""long_range_consistency, measured: generators that are trained, and untrained ones whose gradients are looked at."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.paired_glyphs import Covered, PairedGlyphs
from attnrepro.data.streams import generator as stream_of
from attnrepro.data.streams import stream_seed
from attnrepro.nn.completer import Completer, open_gates
from attnrepro.nn.cost import count
from attnrepro.results.rows import Row
from attnrepro.tables.long_range_consistency.table import GENERATORS, NAME, Params
from attnrepro.theory.long_range_consistency import misreading_bound
from attnrepro.theory.same_different import CELL
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.recipe import Recipe

EPS = 2.0**-52


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: one a seed and rate, or one that trains nothing."""
    p = cell.params
    if p.study == "structure":
        structure = Structure(cell)
        return [Job(structure, batches(structure.plan()))]
    made = [Completion(p, seed, rate) for rate in p.learning_rate for seed in cell.seeds]
    return [Job(one, None, fit=batches(range(p.updates)), max_steps=p.updates) for one in made]


def started(p: Params, generator: str, cells: int, seed: int) -> Completer:
    """A generator with the start of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, NAME, "start", generator))
        return Completer(generator, cells, p.channels(generator, cells), p.reduction)


class Completion(Measurement):
    """One generator of one seed, trained on images that are drawn anew in every update, the same for all generators.

    What it makes of the test images (of the validation images for tuning) is looked at while it trains.
    """

    def __init__(self, p: Params, seed: int, rate: float) -> None:
        super().__init__()
        self.p, self.seed, self.rate = p, seed, rate
        self.task = PairedGlyphs(p.types, p.cells, p.noise)
        self.model = started(p, p.generator, p.cells, seed)
        self.recipe = Recipe(rate, 0.0, p.updates, p.updates // p.every, p.batch_size)
        self.shown: Covered | None = None
        self.found: dict[int, dict[str, float]] = {}
        self.is_sound = True

    def configure_optimizers(self) -> Any:
        """Adam; its rate rises, then falls to zero as a cosine."""
        optimizer = torch.optim.Adam(self.model.parameters(), self.rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.recipe.rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Images to be looked at, the same every time."""
        use, n = ("validation", self.p.n_validation) if self.p.study == "tuning" else ("test", self.p.n_test)
        self.shown = self.task.draw(n, stream_of(self.seed, NAME, use, device=self.device))

    def training_step(self, batch: int, batch_idx: int) -> Tensor:
        """The mean squared error of the covered cell."""
        drawn = self.task.draw(self.p.batch_size, stream_of(self.seed, NAME, "train", batch, device=self.device))
        loss = error(self.model(drawn.given), drawn)
        self.log("loss", loss.detach())
        return loss

    def on_train_batch_end(self, outputs: Any, batch: int, batch_idx: int) -> None:
        """Look at the images where it is time."""
        if (batch + 1) % self.p.every == 0:
            self.look(batch + 1)

    def look(self, step: int) -> None:
        """What the generator makes of the images after ``step`` updates."""
        assert self.shown is not None
        with torch.no_grad():
            painted = self.model(self.shown.given)
            read = self.task.read(self.shown.completed(painted), self.shown.places)
            found = {
                "consistency": float(read.agree.double().mean()),
                "legible": float(read.legible[:, 1].double().mean()),
                "pixel_error": float(error(painted, self.shown)),
            }
        self.is_sound &= math.isfinite(found["pixel_error"])
        self.found[step] = found

    def rows(self) -> list[Row]:
        """What came out at the end and on the way; a training that diverged has failed."""
        p = self.p
        axes: dict[str, object] = {"generator": p.generator, "cells": p.cells, "updates": p.updates}
        if p.study == "tuning":
            errors = [one["pixel_error"] for one in self.found.values()]
            return [self._row("validation_error", sum(errors) / len(errors), {**axes, "learning_rate": self.rate})]
        rows = [self._row(quantity, value, axes) for quantity, value in self.found[p.updates].items()]
        rows += [self._row("consistency_at", f["consistency"], {**axes, "step": s}) for s, f in self.found.items()]
        reached = next((step for step, found in self.found.items() if found["consistency"] >= p.target), None)
        late = "" if reached else f"failed: not within {p.updates} updates"
        return [*rows, self._row("updates_to_target", reached or math.nan, axes, late, unit="updates")]

    def _row(self, quantity: str, value: float, axes: dict[str, object], late: str = "", unit: str = "") -> Row:
        status = "failed: diverged" if not self.is_sound else late or "ok"
        return Row(quantity, value, axes, statistic="mean", seed=self.seed, n=1, unit=unit, status=status)


def error(painted: Tensor, drawn: Covered) -> Tensor:
    """Mean squared error of the covered cells' pixels."""
    off = (painted - drawn.whole).square() * drawn.hole
    return off.sum() / drawn.hole.sum()


class Structure(Measurement):
    """Untrained generators: what they cost, whether what they paint depends on the other glyph, and the judge's error.

    Draws are in float64 with all gates open, on images of noise; each draw is over all pairs of places.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.p, self.seed = cell.params, cell.seeds[0]
        self.found: list[Row] = []
        # Far gradients by generator, the largest of all draws for each side and pair of places.
        self.slopes: dict[str, list[float]] = {}

    def plan(self) -> list[tuple[str, int]]:
        """Batches: generators and sides; last the judge."""
        return [*((generator, cells) for generator in GENERATORS for cells in self.p.sides), ("judge", self.p.cells)]

    def test_step(self, batch: tuple[str, int], batch_idx: int) -> None:
        """One generator on one square, or the judge."""
        name, cells = batch
        self.found += self._judge(cells) if name == "judge" else self._generator(name, cells)

    def _generator(self, generator: str, cells: int) -> Iterator[Row]:
        p, side = self.p, cells * CELL
        axes: dict[str, object] = {"generator": generator, "cells": cells}
        for name, value in count(started(p, generator, cells, self.seed), (2, side, side))._asdict().items():
            yield Row(name, value, axes, statistic="exact", seed=self.seed, n=1)
        stream = stream_of(self.seed, NAME, "structure", generator, cells)
        draws = []
        for draw in range(p.draws):
            model = open_gates(started(p, generator, cells, draw), stream).double().to(self.device)
            images = torch.randn(1, 2, side, side, generator=stream, dtype=torch.float64).to(self.device)
            with torch.enable_grad():
                draws.append(far_gradients(model, images, PairedGlyphs(p.types, cells).pairs()))
        # A draw may have all units of a link switched off: what counts is whether any draw shows a dependence.
        largest = [max(of_pair) for of_pair in zip(*draws, strict=True)]
        yield Row("linked", min(largest) > 0, axes, statistic="exact", seed=self.seed, n=p.draws)
        self.slopes.setdefault(generator, []).extend(largest)

    def _judge(self, cells: int) -> Iterator[Row]:
        p = self.p
        task = PairedGlyphs(p.types, cells, p.noise)
        drawn = task.draw(p.n_read, stream_of(self.seed, NAME, "judge", device=self.device))
        # The visible glyph, as noisy as it is given.
        wrong = task.read(drawn.given[:, :1], drawn.places).kinds[:, 0] != drawn.kinds
        share = float(wrong.double().mean())
        at: dict[str, Any] = {"axes": {"cells": cells}, "seed": self.seed}
        yield Row("misreading", share, statistic="share", n=p.n_read, sd=math.sqrt(share * (1 - share)), **at)
        bound = misreading_bound(task.glyph_distances(), p.types, p.noise)
        yield Row("misreading_bound", bound, statistic="exact", n=1, **at)

    def rows(self) -> list[Row]:
        """In the order of the plan; last far gradients: the largest where nothing is linked, else the weakest's."""
        at: dict[str, Any] = {"statistic": "exact", "seed": self.seed, "n": self.p.draws * len(self.p.sides)}
        for generator, slopes in self.slopes.items():
            name, value = ("far_gradient", min(slopes)) if min(slopes) > 0 else ("far_gradient_eps", max(slopes) / EPS)
            self.found.append(Row(name, value, {"generator": generator}, **at))
        return self.found


def far_gradients(model: Completer, images: Tensor, pairs: list[tuple[int, int]]) -> list[float]:
    """For each pair, the largest derivative of the sum of the second cell's pixels by one of the first cell's, over
    that by one of its own."""
    images = images.requires_grad_()
    painted = model(images)[0, 0].unfold(0, CELL, CELL).unfold(1, CELL, CELL).sum((2, 3)).flatten()
    found, slopes = [], {}
    for seen, hole in pairs:
        if hole not in slopes:
            (slope,) = torch.autograd.grad(painted[hole], images, retain_graph=True)
            largest = slope[0].abs().amax(0).unfold(0, CELL, CELL).unfold(1, CELL, CELL).amax((2, 3))
            slopes[hole] = largest.flatten().tolist()
        found.append(slopes[hole][seen] / slopes[hole][hole])
    return found
