"""prior_validity, measured: training on moved pixels, exact symmetries of the models, and what a ViT attends to."""

import copy
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from attnrepro.config import Cell
from attnrepro.data.images import Splits
from attnrepro.data.imageset import ImageSet
from attnrepro.data.permute import Permutation, permutation
from attnrepro.data.streams import generator, stream_seed
from attnrepro.data.subsets import subset
from attnrepro.fetch.download import DataUnavailable
from attnrepro.nn.mlp import MLP
from attnrepro.nn.presets import seeded_model
from attnrepro.nn.vit import ViT
from attnrepro.results.rows import Row
from attnrepro.tables.prior_validity import table
from attnrepro.theory.image_models import PRESETS, ImageShape
from attnrepro.training.image_data import ImageData, Member, Split
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Fit, Trained, member, part, splits

EPS = 2.0**-52
# Random images of a draw.
IMAGES = 4
CLASSES = 10


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: its trainings, or the draws of the exact symmetries."""
    p = cell.params
    if p.study == "anchors":
        anchors = Anchors(cell)
        return [Job(anchors, batches(p.shapes))]
    images = splits(cell.data)
    if p.n_train > len(images.train):
        raise DataUnavailable(f"{images.train.name} has {len(images.train)} training images, not n_train={p.n_train}")
    if p.study == "maps":
        return [map_job(cell, images, name) for name in ("none", p.permutation)]
    return fit(cell, images, p.permutation, {"test": part(images.test, p.n_test)}).jobs()


def fit(cell: Cell, images: Splits, name: str, tests: dict[str, Split]) -> Fit:
    """One model a seed, every split of a seed moved by that seed's permutation."""
    p = cell.params
    validation = part(images.validation, p.n_validation)
    members = []
    for seed in cell.seeds:
        chosen = subset(images.train, p.n_train, seed).images
        members.append(member(seed, chosen, validation, tests, arrangement(images.train, name, seed)))
    is_vit = PRESETS[p.model][0] == "vit"
    axes = {"data": images.train.name, "model": p.model, "permutation": name, "n_train": p.n_train}
    return Fit(
        p.model,
        shape_of(images.train),
        len(images.train.classes),
        Recipe(*p.rates(), *p.steps(), p.batch_size),
        members,
        {**axes, "position": p.position} if is_vit else axes,
        settings={"position": p.position} if is_vit else {},
        data_sha256=images.sha256,
    )


def arrangement(images: ImageSet, name: str, seed: int) -> Permutation | None:
    """The permutation of a seed, the same for every image; None where nothing moves."""
    side = table.moved_side(name)
    _, height, width = shape_of(images)
    return None if side is None else permutation((height, width), seed, (side, side))


def shape_of(images: ImageSet) -> ImageShape:
    """Channels, height and width."""
    channels, height, width = images.images.shape[1:]
    return channels, height, width


# --- what a ViT attends to ---


def map_job(cell: Cell, images: Splits, name: str) -> Job:
    """A ViT that is trained on images of one arrangement, and the maps of some test images in it."""
    p = cell.params
    if max(p.images) >= len(images.test):
        raise DataUnavailable(f"{images.test.name} has {len(images.test)} test images, none with index {max(p.images)}")
    trained = fit(cell, images, name, {})
    maps = Maps(trained, trained.members[:1], images.test.take(torch.tensor(p.images)), p.images)
    data = ImageData(maps.members, trained.num_classes, trained.recipe)
    return Job(maps, batches([maps.read]), fit=data, max_steps=trained.recipe.steps)


class Maps(Trained):
    """A trained ViT whose rows are images as it gets them, and how much attention each of their patches receives.

    ``map_grey`` is the mean of 2 x 2 pixels and all channels, ``map_attention`` the attention to a patch in the last
    layer, mean over heads and queries, ``map_accuracy`` the share of the validation images that the model gets right.
    """

    def __init__(self, fit: Fit, members: Sequence[Member], shown: ImageSet, indices: Sequence[int]) -> None:
        super().__init__(fit, members)
        self.members = list(members)
        self.read = members[0].prepare(shown.images)
        moved = arrangement(shown, str(fit.axes["permutation"]), members[0].seed)
        grey = (shown.images if moved is None else moved(shown.images)).double().mean(1, keepdim=True)
        self.maps = {"map_grey": avg_pool2d(grey, 2)[:, 0]}
        self.axes = {name: fit.axes[name] for name in ("data", "model", "permutation")}
        labels = shown.labels.tolist()
        self.names = [f"{i} {shown.classes[label]}" for i, label in zip(indices, labels, strict=True)]

    def test_step(self, batch: Tensor, batch_idx: int) -> None:  # type: ignore[override]
        """Attention to every patch of the images, as they were prepared."""
        vit = cast(ViT, self.model)
        received = vit.attention_maps(batch)[-1].mean(dim=(1, 2))
        self.maps["map_attention"] = received.view(-1, *vit.patches.grid).double().cpu()

    def rows(self) -> list[Row]:
        """Rows pixel by pixel."""
        seed = self.seeds[0]
        accuracy = self.checkpoints.best_accuracy[0].item()
        found = [Row("map_accuracy", accuracy, self.axes, statistic="mean", seed=seed, n=1)]
        for quantity, values in self.maps.items():
            for (image, row, column), value in np.ndenumerate(values.numpy()):
                at = {**self.axes, "image": self.names[image], "row": row, "column": column}
                found.append(Row(quantity, float(value), at, seed=seed, n=1))
        return found


# --- what holds exactly ---


class Anchors(Measurement):
    """Random models on random images: symmetries that undo a permutation, and what looks like one and is none.

    Draws are dealt to the seeds in turn; extremes are over all of them, and their rows carry the first seed. They are
    numpy's, which a NaN in any draw turns into NaN: such a cell fails.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        # Differences of logits relative to the largest logit, by (anchor, shape).
        self.found: dict[tuple[str, str], list[float]] = {}

    def test_step(self, batch: str, batch_idx: int) -> None:
        """All draws of one shape."""
        seeds = self.cell.seeds
        for index in range(self.cell.params.draws):
            for name, logits, moved in self._draw(batch, seeds[index % len(seeds)], index):
                difference = float((moved - logits).abs().max() / logits.abs().max())
                self.found.setdefault((name, batch), []).append(difference)

    def _draw(self, shape: str, seed: int, index: int) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Names, with logits of the intact model on the intact images and of what is compared with them."""
        image_shape, patch = table.sizes(shape)
        stream = generator(seed, table.NAME, shape, index)
        start = stream_seed(seed, table.NAME, shape, index, "start")
        size = image_shape[1], image_shape[2]
        patches = permutation(size, start, (patch, patch))
        pixels = permutation(size, start)
        images = torch.randn(IMAGES, *image_shape, generator=stream, dtype=torch.float64).to(self.device)

        def model(name: str, **settings: object) -> nn.Module:
            return seeded_model(start, name, image_shape, CLASSES, **settings).double().eval().to(self.device)

        vit = cast(ViT, model("vit", patch=patch))
        position = cast(nn.Parameter, vit.position)
        # As large as the patches: torch's start of 0.02 would hide that places matter.
        position.copy_(torch.randn(position.shape, generator=stream, dtype=torch.float64))
        follows = copy.deepcopy(vit)
        cast(nn.Parameter, follows.position).copy_(position[patches.patches.to(self.device)])
        yield "vit_moved_positions", vit(images), follows(patches(images))
        yield "vit_fixed_positions", vit(images), vit(patches(images))

        blind = model("vit", patch=patch, position="none")
        yield "vit_without_positions", blind(images), blind(patches(images))

        mlp = cast(MLP, model("mlp"))
        columns = copy.deepcopy(mlp)
        first = cast(nn.Linear, columns.layers[0])
        by_pixel = first.weight.view(len(first.weight), image_shape[0], -1)
        first.weight.copy_(by_pixel[:, :, pixels.pixels.to(self.device)].flatten(1))
        yield "mlp_moved_columns", mlp(images), columns(pixels(images))

        cnn = model("cnn")
        yield "cnn_pixels", cnn(images), cnn(pixels(images))

    def rows(self) -> list[Row]:
        """The largest error of every symmetry and the smallest of every breaker, by shape and over all shapes."""
        result: list[Row] = []
        for name in dict.fromkeys(name for name, _ in self.found):
            every: list[float] = []
            for (other, shape), values in self.found.items():
                if other == name:
                    every += values
                    result += self._extremes(values, {"anchor": name, "shape": shape})
            result += self._extremes(every, {"anchor": name})
        return result

    def _extremes(self, values: list[float], axes: dict[str, str]) -> list[Row]:
        if axes["anchor"] in table.BREAKERS:
            least = float(np.min(values))
            told = {"breakage_eps": least / EPS, "breakage_relative": least}
        else:
            told = {"error_eps": float(np.max(values)) / EPS}
        return [
            Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=len(values))
            for quantity, value in told.items()
        ]
