"""few_shot, measured: networks trained on episodes and tested on classes they never saw, and what a relation is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, one_hot
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.data.episodes import Episode, dealt_at_random, episode, split_classes
from attnrepro.data.imageset import ImageSet
from attnrepro.data.streams import generator, stream_seed
from attnrepro.data.stroke_glyphs import StrokeGlyphs, alphabet
from attnrepro.data.subsets import balanced_order
from attnrepro.fetch.download import DataUnavailable
from attnrepro.nn.attention import attention_logits
from attnrepro.nn.few_shot import (
    ConvEmbedding,
    Embedded,
    FewShot,
    PrototypicalNetwork,
    RelationNetwork,
    nearest_neighbour,
)
from attnrepro.nn.relation_module import RelationModule
from attnrepro.results.rows import Row
from attnrepro.tables.few_shot import table
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.trained import splits

EPS = torch.finfo(torch.float64).eps


def build(cell: Cell) -> list[Job]:
    """Jobs of the cell: one for every network and learning rate, all seeds in it, or what needs no training."""
    p, task = cell.params, table.task_of(cell.data)
    images = None if task == "glyphs" else splits(cell.data)
    checksum = "" if images is None else images.sha256
    if p.study == "structure":
        structure = Structure(cell, checksum)
        return [Job(structure, batches(structure.plan()))]
    pools = [pool_of(cell, None if images is None else images.train, seed) for seed in cell.seeds]
    jobs = []
    for network in table.TRAINED:
        for rate in p.rates(network):
            found = Training(cell, network, rate, pools, checksum)
            test = None if p.study == "tuning" else batches(range(len(pools)))
            jobs.append(Job(found, test, fit=batches(range(p.steps)), max_steps=p.steps))
    return jobs


# --- images by class ---


def pool_of(cell: Cell, images: ImageSet | None, seed: int) -> Tensor:
    """Images ``[classes, class_images, 1, side, side]`` of a seed, of mean 0 and deviation 1 over training classes.

    Every seed has an alphabet of its own; of a set of images every seed has the same classes and images of its own.
    """
    p = cell.params
    if images is None:
        signs = alphabet(p.classes, seed, table.NAME).repeat_interleave(p.class_images, 0)
        drawn = StrokeGlyphs(side=table.GLYPH_SIDE).draw(signs, generator(seed, table.NAME, "drawings"))
        pool = drawn.view(p.classes, p.class_images, *drawn.shape[1:])
    else:
        pool = by_class(images, p.classes, p.class_images, seed)
    if p.shrink > 1:
        small = avg_pool2d(pool.flatten(0, 1), p.shrink)
        pool = small.view(*pool.shape[:2], *small.shape[1:])
    seen = pool[list(split_classes(p.classes, p.validation_classes, p.test_classes)[0])].double()
    return (pool - float(seen.mean())) / float(seen.std())


def by_class(images: ImageSet, classes: int, each: int, seed: int) -> Tensor:
    """``each`` images of every class, drawn by seed, in float32, ``[classes, each, channels, h, w]``."""
    if len(images.classes) != classes:
        raise DataUnavailable(f"{images.name} has {len(images.classes)} classes, not classes={classes}")
    if min(images.counts) < each:
        raise DataUnavailable(f"{images.name} has {min(images.counts)} images of a class, not class_images={each}")
    order = balanced_order(images, seed, "few shot")
    labels = images.labels[order]
    return torch.stack([images.images[order[labels == c][:each]].float() for c in range(classes)])


# --- training and testing ---


def network_of(p: table.Params, network: str, sides: tuple[int, int], seed: int) -> FewShot:
    """A network with the start of a seed; both networks of a seed start with the same embedding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, table.NAME, "start"))
        embedding = ConvEmbedding(1, p.width, blocks=p.blocks, pooled=p.pooled)
        if network == "prototypical":
            return PrototypicalNetwork(embedding)
        with torch.no_grad():
            maps = embedding.eval()(torch.zeros(1, 1, *sides)).shape[2:]
        return RelationNetwork(embedding.train(), p.width, (maps[0], maps[1]), hidden=p.hidden)


def loss_of(network: str, scores: Tensor, labels: Tensor) -> Tensor:
    """Squared error of relation scores (Sung et al. 2018, equation 2), cross-entropy of distances (Snell et al.)."""
    if network == "relation":
        return (scores - one_hot(labels, scores.shape[1])).square().mean()
    return cross_entropy(scores, labels)


class Training(Measurement):
    """One network at one learning rate, a member a seed, each on its own classes.

    All networks see the same episodes. The loss is the sum of the members' losses, and Adam moves every number by
    itself, so that each member trains as if alone; the learning rate falls linearly to 0. What is tested is the last
    update; nothing is chosen on the way.
    """

    def __init__(self, cell: Cell, network: str, rate: float, pools: Sequence[Tensor], checksum: str) -> None:
        super().__init__()
        p = cell.params
        self.automatic_optimization = False
        self.cell, self.network, self.rate = cell, network, rate
        self.data_sha256 = checksum
        self.task = table.task_of(cell.data)
        sides = (pools[0].shape[-2], pools[0].shape[-1])
        # Channels innermost: faster for convolutions of few channels.
        self.members = nn.ModuleList(
            [network_of(p, network, sides, seed).to(memory_format=torch.channels_last) for seed in cell.seeds]  # type: ignore[call-overload]
        )
        seen, kept, tested = split_classes(p.classes, p.validation_classes, p.test_classes)
        self.seen, self.kept, self.tested = ([pool[list(part)] for pool in pools] for part in (seen, kept, tested))
        self.streams = [generator(seed, table.NAME, "training", p.shots) for seed in cell.seeds]
        self.history: dict[int, list[float]] = {}
        self.accuracy: dict[tuple[int, str, str, int], float] = {}
        self.finite = [True] * len(cell.seeds)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam over all members."""
        return torch.optim.Adam(self.members.parameters(), lr=self.rate, fused=True)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """An episode for each member."""
        p = self.cell.params
        optimizer: Any = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = self.rate * (1 - batch / p.steps)
        optimizer.zero_grad()
        total = 0.0
        for index, member in enumerate(self.members):
            found = self._moved(episode(self.seen[index], p.ways, p.shots, p.queries, self.streams[index]))
            loss = loss_of(self.network, member(found.support, found.query), found.labels)
            self.finite[index] &= bool(loss.detach().isfinite())
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        self.log("loss", total / len(self.members))
        optimizer.step()
        if (batch + 1) % p.every == 0:
            self.history[batch + 1] = [self._validation(index) for index in range(len(self.members))]

    def _moved(self, found: Episode) -> Episode:
        return Episode(*(part.to(self.device) for part in found))

    def _validation(self, index: int) -> float:
        p = self.cell.params
        member: Any = self.members[index].eval()
        stream = generator(self.cell.seeds[index], table.NAME, "validation", p.shots)
        with torch.no_grad():
            maps = maps_of(member, self.kept[index].to(self.device))
            right = [
                share_right(member.compare(Embedded(found.support, found.query)), found.labels)
                for found in drawn(maps, p.ways, p, p.validation_episodes, stream)
            ]
        member.train()
        return sum(right) / len(right)

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Everything that one member is tested on."""
        p, seed = self.cell.params, self.cell.seeds[batch]
        member: Any = self.members[batch].eval()
        self.finite[batch] &= all(bool(part.isfinite().all()) for part in member.parameters())
        pixels = self.tested[batch].to(self.device)
        with torch.no_grad():
            maps = maps_of(member, pixels)
            start = network_of(p, self.network, (pixels.shape[-2], pixels.shape[-1]), seed).eval().to(self.device)
            untrained = maps_of(start, pixels) if self.network == "prototypical" else maps
            for ways in table.tested_ways(p):
                right: dict[tuple[str, str], list[float]] = {}
                count = p.episodes if ways == p.ways else p.other_episodes
                for name, pool, compare in self._ways_to_compare(member, start, pixels, maps, untrained):
                    stream = generator(seed, table.NAME, "test", p.shots, ways)
                    dealt = generator(seed, table.NAME, "dealt", p.shots)
                    for found in drawn(pool, ways, p, count, stream):
                        scores = compare(Embedded(found.support, found.query))
                        right.setdefault((name, "accuracy"), []).append(share_right(scores, found.labels))
                        if name == self.network and ways == p.ways:
                            blind = dealt_at_random(found, dealt)
                            scores = compare(Embedded(blind.support, blind.query))
                            right.setdefault((name, "accuracy_dealt"), []).append(share_right(scores, found.labels))
                for (name, quantity), found_right in right.items():
                    self.accuracy[batch, name, quantity, ways] = sum(found_right) / len(found_right)

    def _ways_to_compare(
        self, member: Any, start: FewShot, pixels: Tensor, maps: Tensor, untrained: Tensor
    ) -> Iterator[tuple[str, Tensor, Any]]:
        """Names, images or maps by class, and what compares them; all but the network itself beside the prototypes."""
        yield self.network, maps, member.compare
        if self.network == "prototypical":
            yield "nearest_pixel", pixels, lambda found: nearest_neighbour(*found)
            yield "nearest_embedding", maps, lambda found: nearest_neighbour(*found)
            yield "untrained", untrained, start.compare

    def rows(self) -> list[Row]:
        """Every seed's accuracies; a seed whose training was ever not finite has failed."""
        p = self.cell.params
        tuned = {"learning_rate": self.rate} if p.study == "tuning" else {}
        rows = []
        for index, seed in enumerate(self.cell.seeds):
            status = "ok" if self.finite[index] else "failed: diverged"
            at: dict[str, Any] = {"statistic": "mean", "seed": seed, "n": 1, "status": status}
            axes = {"task": self.task, "network": self.network, "ways": p.ways, "shots": p.shots, **tuned}
            for step, found in self.history.items():
                rows.append(Row("validation_accuracy", found[index], {**axes, "updates": step}, **at))
            for (member, name, quantity, ways), value in self.accuracy.items():
                if member == index:
                    fine = name in ("nearest_pixel", "untrained")
                    where = {"task": self.task, "network": name, "ways": ways, "shots": p.shots}
                    rows.append(Row(quantity, value, where, **{**at, "status": "ok" if fine else status}))
        return rows


def drawn(pool: Tensor, ways: int, p: table.Params, count: int, stream: torch.Generator) -> Iterator[Episode]:
    """``count`` episodes of images or of their maps: in evaluation mode an image's map does not depend on others."""
    for _ in range(count):
        yield episode(pool, ways, p.shots, p.queries, stream)


def maps_of(member: FewShot, pool: Tensor) -> Tensor:
    """Embeddings of all images by class, ``[classes, images, width, h, w]``."""
    maps: Tensor = member.embedding(pool.flatten(0, 1))
    return maps.view(*pool.shape[:2], *maps.shape[1:])


def share_right(scores: Tensor, labels: Tensor) -> float:
    """Share of queries whose class has the highest score; a tie goes to the first class, a score that is not a number
    is wrong."""
    right = (scores.argmax(1) == labels) & scores.isfinite().all(1)
    return float(right.double().mean())


# --- what a relation is ---


class Structure(Measurement):
    """Sizes and costs counted on the networks, and what a score depends on, without training."""

    def __init__(self, cell: Cell, checksum: str) -> None:
        super().__init__()
        self.cell = cell
        # Of images that nothing is measured on, where a cell names some.
        self.data_sha256 = checksum
        self.found: list[Row] = []

    def plan(self) -> list[str]:
        """What is measured, one batch each."""
        return ["costs", "numbers", "normalisation"]

    def test_step(self, batch: str, batch_idx: int) -> None:
        """One kind of rows; gradients are wanted in a test loop."""
        with torch.inference_mode(mode=False), torch.enable_grad():
            {"costs": self._costs, "numbers": self._numbers, "normalisation": self._normalisation}[batch]()

    def rows(self) -> list[Row]:
        """In the order of the plan."""
        return self.found

    def _add(self, quantity: str, value: float, axes: Mapping[str, object], n: int = 1) -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=n))

    def _costs(self) -> None:
        p = self.cell.params
        for task in table.SIDES:
            sides = table.sides_of(task, 2 if task == "fashion_mnist" else 1)
            for network in table.TRAINED:
                net = network_of(p, network, sides, 0).eval()
                axes: dict[str, object] = {"task": task, "network": network}
                self._add("parameters", sum(part.numel() for part in net.parameters()), axes)
                for shape in p.shapes:
                    ways, shots = table.episode_shape(shape)
                    support, query = torch.zeros(ways, shots, 1, *sides), torch.zeros(ways * p.queries, 1, *sides)
                    with torch.no_grad(), FlopCounterMode(display=False) as counter:
                        net(support, query)
                    self._add("flops", counter.get_total_flops(), {**axes, "ways": ways, "shots": shots})

    def _numbers(self) -> None:
        """Numbers that belong to one pair: of objects, of a query and a class, of a query and a key."""
        p = self.cell.params
        stream = generator(self.cell.seeds[0], table.NAME, "objects")
        objects = torch.randn(p.objects, p.width, generator=stream)
        sides = table.sides_of("digits", 1)
        images = torch.randn(p.objects, 1, *sides, generator=stream)
        with torch.no_grad():
            pairs = RelationModule(p.width, hidden=p.relation_width).relations(objects.T[None, :, None])
            scores = network_of(p, "relation", sides, 0).eval()(images[:, None], images)
            logits = attention_logits(objects, objects)
        for name, found in (("relation_module", pairs), ("relation", scores), ("attention", logits)):
            self._add("numbers_per_pair", found.numel() / p.objects**2, {"network": name})

    def _normalisation(self) -> None:
        """Gradient of a score by another class's images, over that by its own, in eps; with and without a softmax."""
        p, sides = self.cell.params, table.sides_of("digits", 1)
        worst: dict[str, float] = {"relation": 0.0, "softmax": math.inf}
        for shape in p.shapes:
            ways, shots = table.episode_shape(shape)
            stream = generator(self.cell.seeds[0], table.NAME, "normalisation", shape)
            for draw in range(p.draws):
                net = network_of(p, "relation", sides, draw).double().eval()
                query = torch.randn(1, 1, *sides, generator=stream, dtype=torch.float64)
                sizes = {"relation": torch.zeros(ways)}
                # Where no hidden unit of the class's pair is above 0, its score depends on nothing: drawn again.
                while not sizes["relation"][0]:
                    support = torch.randn(ways, shots, 1, *sides, generator=stream, dtype=torch.float64)
                    support.requires_grad_()
                    scores = net(support, query)[0]
                    for name, out in (("relation", scores), ("softmax", scores.softmax(0))):
                        (gradient,) = torch.autograd.grad(out[0], support, retain_graph=True)
                        sizes[name] = gradient.flatten(1).abs().amax(1)
                ratios = {name: float(found[1:].max() / found[0]) / EPS for name, found in sizes.items()}
                worst["relation"] = max(worst["relation"], ratios["relation"])
                worst["softmax"] = min(worst["softmax"], ratios["softmax"])
        draws = p.draws * len(p.shapes)
        self._add("other_class_gradient_eps", worst["relation"], {"network": "relation"}, draws)
        self._add("softmax_gradient_eps", worst["softmax"], {"network": "relation"}, draws)
