"""gcnet_query_independence, measured: maps of trained blocks, and what the printed formula makes of its weights."""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, normalize

from attnrepro.config import Cell
from attnrepro.data.batches import Standardiser
from attnrepro.data.far_cue import FarCue
from attnrepro.data.imageset import ImageSet
from attnrepro.data.same_different import SameDifferent
from attnrepro.data.spread import spread
from attnrepro.data.streams import generator
from attnrepro.nn.block_cnn import BlockCNN, seeded_block_cnn
from attnrepro.nn.global_context import GlobalContext, global_context_as_printed
from attnrepro.nn.non_local import NonLocal
from attnrepro.results.rows import Row
from attnrepro.tables.gcnet_query_independence import table
from attnrepro.tables.gcnet_query_independence.table import MORE, NAME, Params
from attnrepro.theory.same_different import CELL
from attnrepro.training.fresh import CHUNK, UNLABELLED, Draw, FreshRecipe, FreshTraining
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.trained import splits

EPS = 2.0**-52
Held = tuple[Tensor, Tensor]


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: one a seed; for tuning, one a rate and seed."""
    p = cell.params
    if p.study == "formula":
        formula = Formula(cell)
        return [Job(formula, batches(formula.plan()))]
    source = Photographs(cell) if p.task == "fashion_mnist" else Drawn(p)
    trained = [Maps(p, source, seed, rate) for rate in p.learning_rate for seed in cell.seeds]
    # One look at the start and one at the end: a single stretch.
    return [Job(module, None, fit=module.loader(), max_steps=p.steps()) for module in trained]


class Drawn:
    """Images of one of the two made-up tasks."""

    channels, classes, sha256 = 1, 2, ""

    def __init__(self, p: Params) -> None:
        self.p = p

    def draw(self) -> Draw:
        """Images and labels of the task."""
        p = self.p
        if p.task == "far_cue":
            return FarCue(p.pairs, p.noise).draw
        task = SameDifferent(p.types, 0.5, 0, p.apart, 0.0, p.noise)

        def drawn(n: int, stream: torch.Generator) -> Held:
            images, labels = task.draw(n, stream)
            return spread(images, CELL, MORE), labels

        return drawn

    def held_out(self, use: str, seed: int) -> Held:
        """Validation or test images of a seed."""
        n = self.p.n_validation if use == "validation" else self.p.n_test
        return self.draw()(n, generator(seed, NAME, self.p.task, use))


class Photographs:
    """A set of images, standardised by those it trains on; batches are drawn with replacement."""

    def __init__(self, cell: Cell) -> None:
        found = splits(cell.data)
        self.p, self.sha256 = cell.params, found.sha256
        self.channels, self.classes = found.train.images.shape[1], len(found.train.classes)
        self.prepared = Standardiser.fit(found.train)
        self.parts = {"train": found.train, "validation": found.validation, "test": found.test}

    def draw(self) -> Draw:
        """Training images and labels, any of them as likely each time."""
        train = self.parts["train"]

        def drawn(n: int, stream: torch.Generator) -> Held:
            chosen = torch.randint(len(train.labels), (n,), generator=stream, device=stream.device).cpu()
            return self.prepared(train.images[chosen]).to(stream.device), train.labels[chosen].to(stream.device)

        return drawn

    def held_out(self, use: str, seed: int) -> Held:
        """Validation or test images, the same for every seed."""
        n = self.p.n_validation if use == "validation" else self.p.n_test
        return self.prepared(self.parts[use].images[:n]), self.parts[use].labels[:n]

    def pictured(self) -> dict[str, int]:
        """The first test image of each of some classes: its name and its index, in the order of the set."""
        test: ImageSet = self.parts["test"]
        first: dict[int, int] = {}
        for index, label in enumerate(test.labels[: self.p.n_test].tolist()):
            first.setdefault(label, index)
        found = list(first.items())[: table.PICTURED]
        return {f"{index} {test.classes[label]}": index for label, index in found}


class Maps(FreshTraining):
    """One training of one seed, with the distances between its attention maps at the start and at the end.

    Without a block there are no maps: only what a block would read is compared. Of one seed some maps are recorded too:
    ``map_attention`` is a query's attention to each place, ``map_grey`` the image, the mean of 2 x 2 pixels.
    """

    def __init__(self, p: Params, source: Drawn | Photographs, seed: int, learning_rate: float) -> None:
        self.p, self.seed, self.learning_rate = p, seed, learning_rate
        use = "validation" if p.study == "tuning" else "test"
        super().__init__(
            seeded_block_cnn(seed, source.channels, source.classes, block=p.block, readout=p.readout()),
            FreshRecipe(learning_rate, p.weight_decay, p.steps(), p.steps(), batch_size=p.batch_size, warmup=p.warmup),
            source.draw(),
            lambda device: generator(seed, NAME, p.task, "train", device=device),
            source.held_out(use, seed),
        )
        if source.sha256:
            self.data_sha256 = source.sha256
        self.source = source
        self.seen: dict[str, dict[str, float]] = {}

    def on_fit_start(self) -> None:
        """Look at the maps of the start."""
        super().on_fit_start()
        self.seen["start"] = self._distances("start")

    def training_step(self, batch: int, batch_idx: int) -> None:
        """The whole training, and the maps at its end."""
        super().training_step(batch, batch_idx)
        self.seen["end"] = self._distances("end")

    def _distances(self, phase: str) -> dict[str, float]:
        if self.p.study == "tuning":
            return {}
        # At the start BatchNorm has seen nothing: it takes the statistics of these images.
        net: Any = copy.deepcopy(self.model).train(phase == "start")
        with torch.no_grad():
            x = net.windows(self.images[: self.p.n_maps])
            found = {"input_distance": mean_distance(x.flatten(-2).mT)}
            if self.p.block == "none":
                return found
            found |= map_distances(net.block.attention(x))
            if phase == "end":
                found["output_distance"] = mean_distance((net.block(x) - x).flatten(-2).mT)
                if isinstance(net.block, NonLocal):
                    found["accuracy_shared_map"] = self._accuracy_shared(net)
        return found

    def _accuracy_shared(self, net: BlockCNN) -> float:
        """Test accuracy where all queries of an image get the mean of their maps."""
        right, count = 0, 0
        for x, y in zip(torch.split(self.images, CHUNK), torch.split(self.labels, CHUNK), strict=True):
            logits = with_shared_map(net, x)
            labelled = y != UNLABELLED
            right += int(((logits.argmax(1) == y) & labelled).sum())
            count += int(labelled.sum())
        return right / count

    def rows(self) -> list[Row]:
        """Accuracy and distances of the seed; for tuning, accuracy alone."""
        axes: dict[str, object] = {"task": self.p.task, "readout": self.p.readout(), "block": self.p.block}
        end = self.looks[self.p.steps()]
        if self.p.study == "tuning":
            return [self._row("validation_accuracy", end.accuracy, {**axes, "learning_rate": self.learning_rate})]
        rows = [self._row("accuracy", end.accuracy, axes), self._row("loss", end.loss, axes, unit="nat")]
        for phase, found in self.seen.items():
            rows += [self._row(name, value, {**axes, "phase": phase}) for name, value in found.items()]
        return [*rows, *self._picture({**axes, "phase": "end"})]

    def _picture(self, axes: dict[str, object]) -> Iterator[Row]:
        """Images and maps of some of their queries, value by value; nothing of a training that diverged."""
        p, source = self.p, self.source
        if not isinstance(source, Photographs) or p.block not in table.PICTURED_BLOCKS:
            return
        if self.seed != table.PICTURED_SEED or self.diverged:
            return
        found = source.pictured()
        grey = avg_pool2d(source.parts["test"].images[list(found.values())].double().mean(1, keepdim=True), 2)[:, 0]
        shown = {("map_grey", ""): grey}
        shown |= {("map_attention", query): maps for query, maps in self.query_maps(list(found.values())).items()}
        names = list(found)
        for (quantity, query), values in shown.items():
            for (image, row, column), value in np.ndenumerate(values.numpy()):
                at = {**axes, "image": names[image], "query": query, "row": row, "column": column}
                yield Row(quantity, float(value), at, seed=self.seed, n=1)

    def query_maps(self, indices: list[int]) -> dict[str, Tensor]:
        """Maps ``[images, height, width]`` of some test images by query, of the model as it is tested."""
        net: Any = copy.deepcopy(self.model).eval()
        with torch.no_grad():
            x = net.windows(self.images[indices])
            maps = net.block.attention(x).double().cpu().unflatten(-1, x.shape[-2:])
        if maps.shape[1] == 1:
            return {table.EVERY: maps[:, 0]}
        height, width = x.shape[-2:]
        return {name: maps[:, row * width + column] for name, (row, column) in table.places(height, width).items()}

    def _row(self, quantity: str, value: float, axes: dict[str, object], *, unit: str = "") -> Row:
        sound = math.isfinite(value) and not self.diverged
        status = "ok" if sound else "failed: diverged"
        return Row(quantity, value if sound else math.nan, axes, statistic="mean", unit=unit, seed=self.seed, n=1,
                   status=status)  # fmt: skip


def cosines(vectors: Tensor) -> Tensor:
    """Cosine of every two vectors ``[batch, n, size]``: ``[batch, n, n]``; zeros are at right angles to all."""
    units = normalize(vectors.double(), dim=-1)
    return units @ units.mT


def mean_distance(vectors: Tensor) -> float:
    """(1 - cos) / 2 of two vectors ``[batch, n, size]``, over all ordered pairs, each with itself included, and images.

    Source: Cao et al. 2019, GCNet, table 1 (the cosine distance of input, attention and output).
    """
    return float((1 - cosines(vectors)).mean() / 2)


def map_distances(maps: Tensor) -> dict[str, float]:
    """Mean distance of the maps ``[batch, queries, keys]`` of two queries, and the largest in an image on average."""
    half = (1 - cosines(maps)) / 2
    return {
        "attention_distance": float(half.mean()),
        "attention_distance_largest": float(half.flatten(1).amax(1).clamp_min(0).mean()),
    }


def with_shared_map(net: BlockCNN, images: Tensor) -> Tensor:
    """Logits of a Non-local model when one attention map, the mean over all queries, replaces those of all queries.

    Args:
        net: a model whose block is `NonLocal`.
        images: ``[n, in_channels, height, width]``.

    Returns:
        Logits, of the shape that the model itself gives.
    """
    block: Any = net.block
    x = net.windows(images)
    value = block._pooled(block.g(x)).flatten(-2).mT
    taken = block.attention(x).mean(1, keepdim=True) @ value
    y = x + block.out(taken.mT[..., None])
    logits: Tensor = net.readout(y.mean((2, 3), keepdim=True) if net.pooled else y)
    return logits.flatten(1) if net.pooled else logits


class Formula(Measurement):
    """The printed formula, the paper's block and a Non-local block under other weights, other queries, one map.

    All in float64 with every weight drawn at random; extremes are over all draws.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: dict[tuple[str, str, str], list[float]] = {}

    def plan(self) -> list[str]:
        """Batches: shapes."""
        return list(self.cell.params.shapes)

    def test_step(self, batch: str, batch_idx: int) -> None:
        """All draws of one shape."""
        channels, height, width = table.sizes(batch)
        stream = generator(self.cell.seeds[0], NAME, "formula", batch)

        def noise(*shape: int) -> Tensor:
            return torch.randn(shape, generator=stream, dtype=torch.float64)

        for _ in range(self.cell.params.draws):
            x = noise(1, channels, height, width)
            first, second = (noise(height * width, channels) / math.sqrt(channels) for _ in range(2))
            block, other = (filled(GlobalContext(channels, reduction=4), noise) for _ in range(2))
            # With gains and shifts of its own the norm may hand nothing to the ReLU.
            block.transform[1].reset_parameters()
            other.transform.load_state_dict(block.transform.state_dict())
            with torch.no_grad():
                printed = [global_context_as_printed(x, weights) for weights in (first, second)]
                paper = [made(x) - x for made in (block, other)]
                for form, (one, two) in (("as_printed", printed), ("paper", paper)):
                    self._add("weights_effect", form, batch, _largest(one - two) / _largest(one))
                    # What all places receive alike is the same less that of the first place.
                    spread_of = _largest(one.flatten(-2) - one.flatten(-2)[..., :1])
                    self._add(
                        "received_variation_eps", form, batch, spread_of / (EPS * max(_largest(one), _largest(x)))
                    )
                context = x.mean((-2, -1), keepdim=True)
                error = _largest(printed[0] - context)
                self._add("context_error_eps", "as_printed", batch, error / (EPS * _largest(context)))
                attended = torch.einsum("bcp,bqp->bcq", x.flatten(-2), block.attention(x))
                gap = _largest(attended[..., 0] - context[..., 0, 0])
                self._add("context_error_eps", "paper", batch, gap / (EPS * _largest(context)))
                alpha = torch.softmax(x.flatten(-2).mT[0] @ first.T, -1)
                varied = _largest(alpha.amax(0) - alpha.amin(0)) / float(alpha.max())
                self._add("weights_variation_eps", "as_printed", batch, varied / EPS)
            self._shared(channels, batch, x, noise)

    def _shared(self, channels: int, shape: str, x: Tensor, noise: Callable[..., Tensor]) -> None:
        """One map for all queries: nothing changes for a linear read-out of the mean, everything for one of places."""
        block = filled(NonLocal(channels), noise)
        for form, readout in (("mean", "mean"), ("places", "places")):
            net = BlockCNN(1, 2, block="non_local", width=channels, readout=readout).double()
            net.windows, net.block = nn.Identity(), block  # type: ignore[assignment]
            with torch.no_grad():
                own, shared = net(x), with_shared_map(net, x)
                # Of a place: those of the mean may happen to be small.
                largest_logit = _largest(net.readout(block(x)))
                self._add("shared_map_error_eps", form, shape, _largest(own - shared) / (EPS * largest_logit))

    def _add(self, quantity: str, form: str, shape: str, value: float) -> None:
        self.found.setdefault((quantity, form, shape), []).append(value)

    def rows(self) -> list[Row]:
        """Extremes over all draws of all shapes: the largest of what must vanish, the smallest of what must not."""
        joined: dict[tuple[str, str], list[float]] = {}
        for (quantity, form, _), values in self.found.items():
            joined.setdefault((quantity, form), []).extend(values)
        seed = self.cell.seeds[0]
        rows = []
        for (quantity, form), values in joined.items():
            vanishes = (quantity, form) in VANISHES
            value = float(np.max(values)) if vanishes else float(np.min(values))
            axes = {"readout": form} if quantity == "shared_map_error_eps" else {"form": form}
            name = quantity if vanishes else quantity.replace("error", "breakage")
            rows.append(Row(name, value, axes, statistic="exact", seed=seed, n=len(values)))
        return rows


# What algebra says is round-off.
VANISHES = {
    ("weights_effect", "as_printed"),
    ("context_error_eps", "as_printed"),
    ("received_variation_eps", "as_printed"),
    ("received_variation_eps", "paper"),
    ("shared_map_error_eps", "mean"),
}


def filled(block: nn.Module, noise: Callable[..., Tensor]) -> Any:
    """The block in float64, every weight drawn anew: none is zero, as gates are at the start."""
    block = block.double()
    with torch.no_grad():
        for weight in block.parameters():
            weight.copy_(0.5 * noise(*weight.shape))
    return block


def _largest(x: Tensor) -> float:
    return float(x.abs().max())
