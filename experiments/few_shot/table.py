"""few_shot, the torch-free half: what one cell trains and tests, and chance, parameters and FLOPs on paper.

Document 004, section 3.6 (relation networks). The rows are read in ``reading.py``; the networks are
`attnrepro.nn.few_shot`, the tasks `attnrepro.data.stroke_glyphs` and two sets of images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attnrepro.config import Cell, DataConfig, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import few_shot as closed

NAME = "few_shot"
AXES = ("task", "network", "ways", "shots", "updates", "learning_rate")

# Words for the labelled images of a class, by which the YAML finds shots and rates.
SUPPORTS = ("one", "five")
STUDIES = ("episodes", "tuning", "structure")
TRAINED = ("relation", "prototypical")
# What needs no training of its own: pixels, the prototypical network's embedding, and that network as it starts.
UNTRAINED = ("nearest_pixel", "nearest_embedding", "untrained")
TESTED = (*TRAINED, *UNTRAINED)
# Images of the tasks: drawn here, or one of these sets.
TASKS = {"none": "glyphs", "digits": "digits", "fashion_mnist": "fashion_mnist"}
GLYPH_SIDE = 16
SIDES = {"glyphs": GLYPH_SIDE, "digits": 8, "fashion_mnist": 28}
# Rough CPU seconds of an update of one network of one seed, with five images a class and five queries.
SECONDS = {"glyphs": 0.004, "digits": 0.002, "fashion_mnist": 0.0025}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/few_shot.yaml`` says what each means."""

    study: str
    ways: int
    support: str
    shots: int
    classes: int
    class_images: int
    validation_classes: int
    test_classes: int
    shrink: int
    width: int
    blocks: int
    pooled: int
    hidden: int
    queries: int
    steps: int
    every: int
    relation_rate: list[float]
    prototypical_rate: list[float]
    validation_episodes: int
    episodes: int
    other_ways: list[int]
    other_episodes: int
    shapes: list[str]
    draws: int
    relation_width: int
    objects: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, support=SUPPORTS)
        in_range(self, ways=(2, 1000), shots=(1, 1000), classes=(3, 10**5), class_images=(2, 10**5))
        in_range(self, validation_classes=(1, 10**5), test_classes=(1, 10**5), shrink=(1, 14), width=(1, 2**12))
        in_range(self, blocks=(1, 20), pooled=(0, 20), hidden=(1, 2**12), queries=(1, 1000), steps=(1, 10**7))
        in_range(self, every=(1, 10**7), relation_rate=(1e-9, 10), prototypical_rate=(1e-9, 10))
        in_range(self, validation_episodes=(1, 10**6), episodes=(1, 10**6), other_ways=(1, 1000))
        in_range(self, other_episodes=(1, 10**6), draws=(1, 10**5), relation_width=(1, 10**5), objects=(2, 1000))
        distinct(self, "relation_rate", "prototypical_rate", "other_ways", "shapes")
        closed.check_shape(blocks=self.blocks, pooled=self.pooled)
        if self.steps % self.every:
            raise ValueError(f"every={self.every} must divide steps={self.steps}")
        if self.study != "tuning" and len(self.relation_rate) + len(self.prototypical_rate) > 2:
            raise ValueError(
                f"relation_rate={self.relation_rate} and prototypical_rate={self.prototypical_rate} must be one value"
                " each unless study=tuning"
            )
        training = self.classes - self.validation_classes - self.test_classes
        least = max(self.ways, *self.other_ways)
        if least > self.test_classes or self.ways > min(self.validation_classes, training):
            raise ValueError(
                f"test_classes={self.test_classes} must hold {least} classes, and validation_classes="
                f"{self.validation_classes} and the {training} that are trained on {self.ways}"
            )
        if self.shots + self.queries > self.class_images:
            raise ValueError(
                f"class_images={self.class_images} must hold shots={self.shots} and queries={self.queries}"
            )
        for shape in self.shapes:
            episode_shape(shape)

    def rates(self, network: str) -> list[float]:
        """Learning rates of a network: one, or those to choose from."""
        found: list[float] = getattr(self, f"{network}_rate")
        return found


def episode_shape(shape: str) -> tuple[int, int]:
    """``ways x shots`` as two numbers; raises ``ValueError`` for another form."""
    parts = shape.split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"shapes={shape} must be ways x shots, as in 5x1")
    ways, shots = map(int, parts)
    if ways < 2:
        raise ValueError(f"shapes={shape} must have two classes or more")
    return ways, shots


def task_of(data: DataConfig) -> str:
    """Name of the task; raises ``ValueError`` for a set that it does not know."""
    if data.name not in TASKS:
        raise ValueError(f"data={data.name} must be one of {', '.join(TASKS)}")
    return TASKS[data.name]


def sides_of(task: str, shrink: int) -> tuple[int, int]:
    """Height and width of the images as the networks read them."""
    side = SIDES[task]
    if side % shrink:
        raise ValueError(f"shrink={shrink} must divide the side of an image, {side}")
    return side // shrink, side // shrink


def tested_ways(p: Params) -> list[int]:
    """Numbers of classes that trained networks are tested with; the one they were trained with first."""
    return [p.ways, *(ways for ways in p.other_ways if ways != p.ways)]


def seconds(cell: Cell) -> float:
    """Rough CPU seconds."""
    p, task = cell.params, TASKS.get(cell.data.name, "glyphs")
    if p.study == "structure":
        return 1.0
    runs = sum(len(p.rates(network)) for network in TRAINED) * len(cell.seeds)
    one = SECONDS[task] * p.width / 16 * (0.5 + 0.1 * p.shots)
    tested = 0.0 if p.study == "tuning" else 0.004 * p.episodes
    total: float = 1.0 + runs * (p.steps * one + tested)
    return total


# --- on paper ---


def theory(cell: Cell) -> list[Row]:
    """One class is always the right one; support dealt at random is worth a guess; parameters, FLOPs and numbers."""
    p = cell.params
    made = _structure(p) if p.study == "structure" else _episodes(p, task_of(cell.data))
    if p.study == "tuning":
        return []
    return [Row(name, value, axes, source="theory", statistic=kind) for name, kind, value, axes in made]


Made = Iterator[tuple[str, str, float, Mapping[str, object]]]


def _episodes(p: Params, task: str) -> Made:
    if 1 in tested_ways(p):
        for network in TESTED:
            yield "accuracy", "mean", closed.chance(1), {"task": task, "network": network, "ways": 1, "shots": p.shots}
    guess = closed.chance(p.ways)
    at: dict[str, object] = {"task": task, "ways": p.ways, "shots": p.shots}
    for network in TRAINED:
        yield "accuracy_dealt", "mean", guess, {**at, "network": network}
    # Queries of an episode hang together: at worst all of them are right or wrong together.
    yield "dealt_se", "exact", math.sqrt(guess * (1 - guess) / p.episodes), at


def _structure(p: Params) -> Made:
    for task in SIDES:
        sides = sides_of(task, 2 if task == "fashion_mnist" else 1)
        once, maps = closed.embedding(1, sides, p.width, p.blocks, p.pooled)
        for shape in p.shapes:
            ways, shots = episode_shape(shape)
            queries = ways * p.queries
            for network in TRAINED:
                compared = (
                    closed.relation_comparison(p.width, maps, p.hidden, ways, queries)
                    if network == "relation"
                    else closed.prototypical_comparison(p.width, maps, ways, queries)
                )
                at: dict[str, object] = {"task": task, "network": network}
                if shape == p.shapes[0]:  # whatever the episode
                    yield "parameters", "exact", once.parameters + compared.parameters, at
                flops = once.flops * (ways * shots + queries) + compared.flops
                yield "flops", "exact", flops, {**at, "ways": ways, "shots": shots}
    yield "numbers_per_pair", "exact", p.relation_width, {"network": "relation_module"}
    yield "numbers_per_pair", "exact", 1, {"network": "relation"}
    yield "numbers_per_pair", "exact", 1, {"network": "attention"}
