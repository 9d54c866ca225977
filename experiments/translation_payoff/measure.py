"""translation_payoff, measured: models on moved images, and CNNs with random weights under cyclic shifts."""

import dataclasses

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from attnrepro.config import Cell
from attnrepro.data.augment import Augmentation, centre_crop, place, shift
from attnrepro.data.geometry import fixed_shifts, rescale
from attnrepro.data.images import Splits
from attnrepro.data.imageset import ImageSet
from attnrepro.data.streams import generator, stream_seed
from attnrepro.data.subsets import subset
from attnrepro.fetch.download import DataUnavailable
from attnrepro.nn.presets import build_model
from attnrepro.results.rows import Row
from attnrepro.tables.translation_payoff.table import NAME, Params, object_side, sides, total_stride
from attnrepro.training.image_data import CHECKPOINTS, Member, Split
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.recipe import Recipe
from attnrepro.training.trained import Axes, Fit, member, part, splits


def build(cell: Cell) -> Job | list[Job]:
    """Jobs of the cell: one a seed, or one for all seeds of an MLP."""
    p = cell.params
    images = splits(cell.data)
    if p.study == "symmetry":
        symmetry = Symmetry(cell, images.test, images.sha256)
        return Job(symmetry, batches(symmetry.plan()))
    if p.n_train > len(images.train):
        raise DataUnavailable(f"{images.train.name} has {len(images.train)} training images, not n_train={p.n_train}")
    channels, height, width = images.train.images.shape[1:]
    if height != width:
        raise ValueError(f"images of {images.train.name} must be square, not {height} x {width}")
    tests = test_sets(images.test, p)
    fit = Fit(
        p.model,
        (channels, height, width),
        len(images.train.classes),
        recipe(p),
        [moving_member(seed, images, {name: split for name, (split, _) in tests.items()}, p) for seed in cell.seeds],
        {"data": images.train.name, "model": p.model, "training": p.training, "n_train": p.n_train},
        test_axes={name: axes for name, (_, axes) in tests.items()},
        augment=Augmentation(shift=p.margin) if p.training == "augmented" else None,
        data_sha256=images.sha256,
    )
    return [best_alone(job) for job in fit.jobs()]


def recipe(p: Params) -> Recipe:
    """How the cell trains; what is cut short is evaluated once."""
    learning_rate, weight_decay = p.rates()
    evaluations = p.evaluations if p.steps() % p.evaluations == 0 else 1
    return Recipe(learning_rate, weight_decay, p.steps(), evaluations, p.batch_size)


def best_alone(job: Job) -> Job:
    """The job with its best checkpoint tested and not its last one: testing at nine places and sizes is a quarter of
    its time.
    """
    parts = job.test.test_dataloader().dataset
    return dataclasses.replace(job, test=batches(Subset(parts, range(len(parts) // len(CHECKPOINTS)))))


# --- images that move ---


def shrunk(images: Tensor, side: int) -> Tensor:
    """Square images ``[n, c, s, s]`` as objects of ``side`` pixels in the middle of s, on black, whole grey values.

    `attnrepro.data.geometry.rescale`; what its triangles leave beyond the object, a faint ring, is cut off.
    """
    canvas = images.shape[2]
    inner = centre_crop(rescale(images, side / canvas), (side, side))
    return place(inner, (canvas, canvas)).round().to(torch.uint8)


def moved(images: Tensor, pixels: int) -> Tensor:
    """Even images moved down and right by ``pixels``, odd ones up and left: both signs, no image twice."""
    signs = 1 - 2 * (torch.arange(len(images)) % 2)
    return shift(images, (pixels * signs)[:, None].expand(-1, 2))


def test_sets(images: ImageSet, p: Params) -> dict[str, tuple[Split, Axes]]:
    """Test images at every place and size, with the axes of their rows."""
    original, labels = part(images, p.n_test)
    canvas = original.shape[2]
    centred = shrunk(original, object_side(canvas, p.margin))
    found: dict[str, tuple[Split, Axes]] = {}
    for k in range(p.margin + 1):
        found[f"shift {k}"] = Split(moved(centred, k), labels), {"shift": k}
    for scale in p.object_scales:
        resized = shrunk(original, object_side(canvas, p.margin, scale))
        found[f"object_scale {scale:g}"] = Split(resized, labels), {"object_scale": scale}
    return found


def moving_member(seed: int, images: Splits, tests: dict[str, Split], p: Params) -> Member:
    """Training and validation images of a seed where this way of training has them.

    Places of validation images are drawn first, so that a training image has the same place at every ``n_train``.
    """
    chosen = subset(images.train, p.n_train, seed).images
    validation, labels = part(images.validation, p.n_validation)
    side = object_side(validation.shape[2], p.margin)
    train, validation = shrunk(chosen.images, side), shrunk(validation, side)
    places = fixed_shifts(len(validation) + len(train), p.margin, seed)
    if p.training != "centred":
        validation = shift(validation, places[: len(validation)])
    if p.training == "shifted_once":
        train = shift(train, places[len(validation) :])
    moving = ImageSet(chosen.name, train, chosen.labels, chosen.classes)
    return member(seed, moving, Split(validation, labels), tests)


# --- exact symmetry ---


class Symmetry(Measurement):
    """CNNs with random weights and norms, in float64, on test images that are moved round the borders of a canvas.

    Draws are dealt to the seeds in turn. Extremes are over all canvases and draws, and their rows carry the first seed.
    """

    def __init__(self, cell: Cell, images: ImageSet, data_sha256: str) -> None:
        super().__init__()
        self.cell, self.images, self.data_sha256 = cell, images, data_sha256
        self.found: list[Row] = []

    def plan(self) -> list[tuple[str, int, bool]]:
        """Batches: model, shift, and whether multiples of it leave the logits as they are."""
        stride = total_stride("cnn_circular")
        broken = [("cnn_circular", shift, False) for shift in range(1, stride)]
        return [("cnn_circular", stride, True), *broken, ("cnn", total_stride("cnn"), False)]

    def test_step(self, batch: tuple[str, int, bool], batch_idx: int) -> None:
        """All draws of a model under one kind of shift."""
        model, step, holds = batch
        p, seeds = self.cell.params, self.cell.seeds
        errors = []
        for canvas in p.canvases:
            for draw in range(p.draws):
                names = (NAME, model, step, canvas, draw)
                errors.append(self._change(model, sides(canvas), step, holds, seeds[draw % len(seeds)], names))
        # A NaN in any draw stays one, which is no finite row.
        extreme = torch.tensor(errors).max() if holds else torch.tensor(errors).min()
        axes = {"data": self.images.name, "model": model, "shift": step}
        quantity = "shift_error_eps" if holds else "breakage_eps"
        self.found.append(Row(quantity, extreme.item(), axes, statistic="exact", seed=seeds[0], n=len(errors)))

    def _change(
        self, model: str, canvas: tuple[int, int], step: int, holds: bool, seed: int, names: tuple[object, ...]
    ) -> float:
        """Change of the logits in eps of the largest, over one draw of weights, image and shift."""
        stream = generator(seed, *names)
        network = random_network(model, (self.images.images.shape[1], *canvas), len(self.images.classes), seed, names)
        index = torch.randint(len(self.images), (1,), generator=stream)
        image = self.images.images[index].double() / 255
        smaller = [min(side, whole) for side, whole in zip(image.shape[2:], canvas, strict=True)]
        image = place(centre_crop(image, (smaller[0], smaller[1])), canvas)
        offsets = (step, step)
        if holds:
            steps = [side // step for side in canvas]
            # All shifts by multiples of the stride but none at all.
            drawn = 1 + int(torch.randint(steps[0] * steps[1] - 1, (1,), generator=stream))
            offsets = (step * (drawn // steps[1]), step * (drawn % steps[1]))
        network.to(self.device)
        before, after = (network(x.to(self.device)) for x in (image, image.roll(offsets, (2, 3))))
        eps = torch.finfo(torch.float64).eps
        return float((after - before).abs().max() / (eps * before.abs().max()))

    def rows(self) -> list[Row]:
        """One for each model and kind of shift."""
        return self.found


def random_network(
    model: str, image_shape: tuple[int, int, int], num_classes: int, seed: int, names: tuple[object, ...]
) -> nn.Module:
    """A model as tested, in float64, whose norms have random statistics, gains and offsets, as after a training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, *names, "weights"))
        network = build_model(model, image_shape, num_classes).double().eval()
        for norm in network.modules():
            if isinstance(norm, nn.BatchNorm2d):
                assert norm.running_mean is not None and norm.running_var is not None
                with torch.no_grad():
                    norm.running_mean.normal_(std=0.1)
                    norm.running_var.uniform_(0.5, 2)
                    norm.weight.uniform_(0.5, 2)
                    norm.bias.normal_(std=0.1)
    return network
