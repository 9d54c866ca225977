"""capsule_routing, the torch-free half: parameters, sizes of the nets, and what is known in closed form."""

from __future__ import annotations

from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import capsules as closed
from attnrepro.theory.image_models import STEM, STEM_STRIDE, Cost, ImageShape, cnn, convolution, strided

NAME = "capsule_routing"
AXES = ("model", "iterations", "n_train", "test", "vote", "learning_rate")
# Scale full trains the grid of learning rates besides; a cell of scale cpu is the same at every scale.
NESTED = True

STUDIES = ("curves", "tuning", "structure", "cost")
# Capsule nets by name: iterations of the routing, and whether it is the printed one.
CAPSULES = {f"capsules_{r}": (r, False) for r in range(1, 6)} | {"printed_3": (3, True)}
MODELS = ("cnn", "cnn_dense", *CAPSULES)
TESTS = ("shifted", "rotated", "affine", "scattered", "dust")
CLASSES = 10
# Rough CPU seconds of an update.
SECONDS = {"cnn": 0.005, "cnn_dense": 0.003}


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/capsule_routing.yaml`` says what each means."""

    study: str
    model: str
    n_train: int
    shapes: list[str]
    draws: int
    iterations: list[int]
    votes: list[float]
    num_heads: int
    embed_dim: int
    sides: list[int]
    patch: int
    side: int
    shift: int
    rotated: list[float]
    turn: float
    scale: list[float]
    shear: float
    scattered: int
    width: int
    types: int
    child_dim: int
    parent_dim: int
    hidden: int
    widths: list[int]
    updates: int
    evaluations: int
    most_updates: int | None
    batch_size: int
    weight_decay: float
    learning_rate: list[float]
    n_validation: int | None
    n_test: int | None

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES, model=MODELS)
        distinct(self, "shapes", "iterations", "votes", "sides", "learning_rate")
        in_range(self, n_train=(1, 1e9), draws=(1, 1e6), iterations=(1, 100), votes=(1e-6, 1e6), num_heads=(1, 1000))
        in_range(self, embed_dim=(1, 1e4), sides=(8, 1000), patch=(1, 1000), side=(8, 1000), shift=(0, 100))
        in_range(self, rotated=(0, 180), turn=(0, 180), scale=(0.01, 100), shear=(0, 10), scattered=(1, 1000))
        in_range(self, width=(1, 1e4), types=(1, 1e4), child_dim=(1, 1e4), parent_dim=(1, 1e4), hidden=(1, 1e6))
        in_range(self, widths=(1, 1e4), updates=(1, 1e9), evaluations=(1, 1e6), most_updates=(1, 1e9))
        in_range(self, batch_size=(1, 1e6), weight_decay=(0, 100), learning_rate=(1e-9, 100))
        in_range(self, n_validation=(1, 1e9), n_test=(1, 1e9))
        for name in ("rotated", "scale"):
            ends = getattr(self, name)
            if len(ends) != 2 or ends[0] > ends[1]:
                raise ValueError(f"{name}={ends} must be a smallest and a largest value")
        if len(self.widths) != 2:
            raise ValueError(f"widths={self.widths} must be two numbers of channels")
        if self.embed_dim % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} must divide embed_dim={self.embed_dim}")
        if self.side % self.scattered:
            raise ValueError(f"scattered={self.scattered} must divide side={self.side}")
        if any(side % self.patch for side in self.sides):
            raise ValueError(f"sides={self.sides} must be multiples of patch={self.patch}")
        if self.updates % self.evaluations:
            raise ValueError(f"evaluations={self.evaluations} must divide updates={self.updates}")
        if self.study != "tuning" and len(self.learning_rate) > 1:
            raise ValueError(f"learning_rate={self.learning_rate} must be one value unless study=tuning")
        self.sizes()

    def sizes(self) -> list[tuple[int, int, int]]:
        """Children, parents and components of a parent, of each shape."""
        found = []
        for shape in self.shapes:
            parts = shape.split("x")
            if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts) or int(parts[1]) < 2:
                raise ValueError(f"shapes={shape} must be children x parents x components, with 2 parents or more")
            found.append((int(parts[0]), int(parts[1]), int(parts[2])))
        return found


def costs(p: Params) -> dict[str, Cost]:
    """Parameters and forward FLOPs of every net, in closed form."""
    shape: ImageShape = (1, p.side, p.side)
    channels = p.types * p.child_dim
    found = {
        "cnn": cnn(shape, CLASSES, widths=p.widths, strides=(1, 2)),
        "cnn_dense": closed.dense_net(shape, CLASSES, width=p.width, channels=channels, hidden=p.hidden),
    }
    for model, (iterations, _) in CAPSULES.items():
        found[model] = closed.capsule_net(
            shape,
            CLASSES,
            width=p.width,
            types=p.types,
            child_dim=p.child_dim,
            parent_dim=p.parent_dim,
            iterations=iterations,
        )
    return found


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    if p.study in ("structure", "cost"):
        return 2.0
    step = SECONDS.get(p.model) or 0.003 + 0.001 * CAPSULES[p.model][0]
    return 0.3 + len(cell.seeds) * len(p.learning_rate) * (0.3 + step * min(p.updates, p.most_updates or p.updates))


def theory(cell: Cell) -> list[Row]:
    """Lengths where votes agree, steps in a row, costs, and the entropy of equal shares."""
    p = cell.params
    if p.study == "structure":
        return [_exact(*line) for line in _structure(p)]
    if p.study == "cost":
        return [
            _exact(quantity, value, {"model": model})
            for model, cost in costs(p).items()
            for quantity, value in [*cost._asdict().items(), ("step_flops", step_flops(p, model))]
        ]
    if p.study == "curves" and model_routes(p.model):
        axes = {"model": p.model, "n_train": p.n_train, "test": TESTS[0], "iterations": 1}
        value = closed.first_coupling_entropy(CLASSES)
        return [Row("coupling_entropy", value, axes, source="theory", statistic="mean", unit="nat")]
    return []


def model_routes(model: str) -> bool:
    """Whether shares of the children are to be read from a model."""
    return model in CAPSULES and not CAPSULES[model][1]


def step_flops(p: Params, model: str) -> int:
    """FLOPs of a forward and a backward pass of one image, in closed form."""
    shape: ImageShape = (1, p.side, p.side)
    forward = costs(p)[model].flops
    # Backwards each product costs twice what it does forwards, but for factors that need no gradient: the image, and
    # the shares of the first iteration.
    if model == "cnn":
        sides = strided(shape[1:], STEM_STRIDE)
        return 3 * forward - convolution(shape[0], p.widths[0], STEM, sides).flops
    spared = closed.first_convolution(shape, p.width).flops
    if model in CAPSULES:
        spared += closed.routing_product(closed.places(shape) * p.types, CLASSES, p.parent_dim)
    return 3 * forward - spared


def _exact(quantity: str, value: float, axes: dict[str, object]) -> Row:
    return Row(quantity, value, axes, source="theory", statistic="exact")


def _structure(p: Params) -> list[tuple[str, float, dict[str, object]]]:
    children, parents, _ = p.sizes()[0]
    found: list[tuple[str, float, dict[str, object]]] = [("softmaxes_in_a_row", 1, {"model": "attention"})]
    for iterations in p.iterations:
        axes: dict[str, object] = {"iterations": iterations}
        found.append(("softmaxes_in_a_row", iterations, {"model": "routing", **axes}))
        for vote in p.votes:
            lengths = {
                "routing": closed.agreed_length(children, parents, vote),
                "as_printed": closed.agreed_length_as_printed(vote),
            }
            found += [
                ("agreed_length", length, {"model": model, **axes, "vote": vote}) for model, length in lengths.items()
            ]
    return found
