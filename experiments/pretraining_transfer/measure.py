"""pretraining_transfer, measured: a model for each seed that is pre-trained, and copies of it that learn new classes.

Jobs of a seed run in order: pre-training first, then every fine-tuning, which takes over what pre-training left.
"""

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from attnrepro.config import Cell
from attnrepro.data.glyph_images import glyph_images
from attnrepro.data.images import Splits
from attnrepro.data.imageset import ImageSet
from attnrepro.data.streams import generator, stream_seed
from attnrepro.data.subsets import subset
from attnrepro.fetch.download import DataUnavailable
from attnrepro.nn.masked_autoencoder import MaskedAutoencoder, draw_visible, visible_count
from attnrepro.nn.presets import seeded_model
from attnrepro.nn.vit import ViT
from attnrepro.results.rows import Row
from attnrepro.tables.pretraining_transfer.table import Params
from attnrepro.theory.image_models import ImageShape
from attnrepro.theory.same_different import SIDE
from attnrepro.training.classifier import Classifier
from attnrepro.training.image_data import Batch, ImageData, Member
from attnrepro.training.measurement import Job
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Axes, Fit, Trained, member, part, splits

# Names of a model's last layer, which every fine-tuning starts anew.
HEAD = "head."

State = dict[str, Tensor]
# Gives, after pre-training, all of a model's state but its head.
Body = Callable[[], State]


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell, seed by seed: pre-training, where there is one, and a fine-tuning for each size and rate."""
    p = cell.params
    images = splits(cell.data)
    before, after = (halved(images, classes) for classes in (p.pre_classes, p.fine_classes))
    shape = shape_of(images.train)
    axes = {"data": images.train.name, "model": p.model, "pretraining": p.pretraining, "n_pre": p.n_pre}
    jobs: list[Job] = []
    for seed in cell.seeds:
        body: Body | None = None
        if p.pretraining != "none":
            first, body = pretraining(seed, before, shape, p, axes, images.sha256)
            jobs.append(first)
        for n_fine in p.n_fine:
            chosen = subset(enough(after.train, n_fine, "n_fine"), n_fine, seed).images
            data = member(seed, chosen, part(after.validation, p.n_validation), {"test": part(after.test, p.n_test)})
            for factor in p.rate_factors:
                steps, evaluations = p.fine_steps()
                learning_rate, weight_decay = p.rates(n_fine)
                fit = Fit(
                    p.model,
                    shape,
                    len(p.fine_classes),
                    Recipe(factor * learning_rate, weight_decay, steps, evaluations, p.batch_size),
                    [data],
                    {**axes, "n_fine": n_fine, "rate_factor": factor},
                    data_sha256=images.sha256,
                )
                jobs.append(job(FineTuned(fit, data, body), fit, data, tested=True))
    return jobs


def job(module: Classifier, fit: Fit, data: Member, *, tested: bool) -> Job:
    """A training on a member's images, and its test."""
    loaded = ImageData([data], fit.num_classes, fit.recipe)
    return Job(module, test=loaded if tested else None, fit=loaded, max_steps=fit.recipe.steps)


# --- images ---


def halved(images: Splits, classes: Sequence[int]) -> Splits:
    """The images of some classes alone; labels count them from 0 in the order given.

    Raises ``ValueError`` for a class that there is not.
    """
    return Splits(*(of_classes(part_, classes) for part_ in (images.train, images.validation, images.test)))


def of_classes(images: ImageSet, classes: Sequence[int]) -> ImageSet:
    """See `halved`."""
    if max(classes) >= len(images.classes):
        raise ValueError(f"classes={list(classes)} must be below {len(images.classes)}, the classes of {images.name}")
    renumbered = torch.full((len(images.classes),), -1)
    renumbered[list(classes)] = torch.arange(len(classes))
    labels = renumbered[images.labels]
    kept = labels >= 0
    return ImageSet(images.name, images.images[kept], labels[kept], tuple(images.classes[c] for c in classes))


def enough(images: ImageSet, n: int, name: str) -> ImageSet:
    """The images, if there are as many. Raises ``DataUnavailable`` where there are fewer."""
    if n > len(images):
        raise DataUnavailable(f"{images.name} has {len(images)} training images of these classes, not {name}={n}")
    return images


def shape_of(images: ImageSet) -> ImageShape:
    """Channels, height and width."""
    channels, height, width = images.images.shape[1:]
    return channels, height, width


# --- pre-training ---


def pretraining(
    seed: int, before: Splits, shape: ImageShape, p: Params, axes: Axes, data_sha256: str
) -> tuple[Job, Body]:
    """The first job of a seed, and what gives its result to those that follow."""
    if p.pretraining == "glyphs":
        if shape != (1, SIDE, SIDE):
            raise ValueError(f"pretraining=glyphs must be fine-tuned on grey images of {SIDE} x {SIDE}, not {shape}")
        train = glyph_images(p.n_pre, p.glyph_types, seed, "train")
        validation = glyph_images(len(before.validation), p.glyph_types, seed, "validation")
    else:
        train = subset(enough(before.train, p.n_pre, "n_pre"), p.n_pre, seed).images
        validation = before.validation
    data = member(seed, train, part(validation, p.n_validation), {})
    # Evaluated once, at the end: no checkpoint is chosen.
    learning_rate, weight_decay = p.rates(p.n_pre)
    recipe = Recipe(learning_rate, weight_decay, p.pre_steps(), 1, p.batch_size)
    fit = Fit(p.model, shape, len(train.classes), recipe, [data], axes, data_sha256=data_sha256)
    module = Reconstruction(fit, data, p) if p.pretraining == "masked" else Pretrained(fit, data)
    return job(module, fit, data, tested=False), module.body


def without_head(model: nn.Module) -> State:
    """State of a model but for its head."""
    return {name: value for name, value in model.state_dict().items() if not name.startswith(HEAD)}


class Pretrained(Trained):
    """Learns to tell classes that are not those of fine-tuning."""

    def __init__(self, fit: Fit, data: Member) -> None:
        super().__init__(fit, [data])
        self.label = f"/pre-training/seed {data.seed}"

    def body(self) -> State:
        """What fine-tuning takes over: the state after the last update."""
        return without_head(self.model)

    def rows(self) -> list[Row]:
        """Accuracy on validation images of the classes of pre-training, after the last update."""
        accuracy = self.history[-1].accuracy[0]
        return [result("pretraining_accuracy", accuracy, self._axes, self.seeds[0], diverged=bool(self.diverged[0]))]


class Reconstruction(Classifier):
    """Pre-trains a ViT by masked reconstruction; labels are not looked at.

    The patches that are masked depend on the seed and the step, of validation images on the seed alone.
    """

    def __init__(self, fit: Fit, data: Member, p: Params) -> None:
        encoder = cast("ViT", seeded_model(data.seed, fit.model, fit.image_shape, len(p.fine_classes)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(data.seed, "start", "decoder"))
            self_taught = MaskedAutoencoder(encoder, decoder_dim=p.decoder_dim, decoder_depth=p.decoder_depth)
        super().__init__([self_taught], fit.recipe, seed=data.seed, label=f"/pre-training/seed {data.seed}")
        self.shown = visible_count(self_taught.patches, p.mask_share)
        self.data_sha256 = fit.data_sha256
        self.found = math.nan
        self._axes = fit.axes
        self._sum, self._count = torch.zeros(()), 0

    @property
    def autoencoder(self) -> MaskedAutoencoder:
        """What is trained."""
        return cast("MaskedAutoencoder", self.model)

    def body(self) -> State:
        """What fine-tuning takes over: the encoder after the last update."""
        return without_head(self.autoencoder.encoder)

    def reconstruct(self, images: Tensor, *names: object) -> Tensor:
        """Loss of images ``[n, channels, height, width]`` whose visible patches are drawn from the stream ``names``."""
        stream = generator(self.seed, "visible", *names)
        visible = draw_visible(len(images), self.autoencoder.patches, self.shown, stream)
        return self.autoencoder.loss(images, visible.to(images.device))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean squared error on masked patches."""
        loss = self.reconstruct(batch.images[0], "train", self.trainer.global_step)
        self.diverged |= ~loss.detach().isfinite()
        self.log(f"loss{self.label}", loss.detach())
        return loss

    def on_validation_epoch_start(self) -> None:
        """Count from zero."""
        self._sum, self._count = torch.zeros(()), 0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add up."""
        images = batch.images[0]
        self._sum = self._sum + self.reconstruct(images, "validation", batch_idx).double().cpu() * len(images)
        self._count += len(images)

    def on_validation_epoch_end(self) -> None:
        """Keep the mean over all validation images."""
        self.found = float(self._sum) / self._count
        self.log(f"val_loss{self.label}", self.found)

    def rows(self) -> list[Row]:
        """Mean squared error on masked patches of validation images, after the last update."""
        diverged = bool(self.diverged[0]) or not math.isfinite(self.found)
        return [result("reconstruction_loss", self.found, self._axes, self.seed, diverged=diverged)]


def result(quantity: str, value: float, axes: Axes, seed: int, *, diverged: bool) -> Row:
    """The row of a pre-training."""
    status = "failed: diverged" if diverged else "ok"
    value = value if math.isfinite(value) else math.nan
    return Row(quantity, value, axes, statistic="mean", seed=seed, n=1, status=status)


# --- fine-tuning ---


class FineTuned(Trained):
    """Starts with what pre-training left and a new head, and learns all of it; without pre-training, from the start.

    Head and, without pre-training, everything else are those that the seed gives a model of fine-tuning: what was
    pre-trained and what was not start with the same head and see the same batches.
    """

    def __init__(self, fit: Fit, data: Member, body: Body | None) -> None:
        super().__init__(fit, [data])
        self.label = f"/{fit.axes['n_fine']} images, rate x {fit.axes['rate_factor']:g}/seed {data.seed}"
        self._body = body

    def on_fit_start(self) -> None:
        """Take over all but the head, before the first checkpoint is kept."""
        if self._body is not None:
            own = self.model.state_dict()
            head = {name: value for name, value in own.items() if name.startswith(HEAD)}
            self.model.load_state_dict({**self._body(), **head})
        super().on_fit_start()
