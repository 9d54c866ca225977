"""Both formulas on the same votes, and what attention and a patch embedding do, in float64."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize, scaled_dot_product_attention

from attnrepro.config import Cell
from attnrepro.data.streams import generator, stream_seed
from attnrepro.nn.capsule_net import CapsuleNet
from attnrepro.nn.capsules import CapsuleLayer, Routing, dynamic_routing, routing_as_printed, squash
from attnrepro.nn.self_attention import SelfAttention
from attnrepro.nn.vit import ViT
from attnrepro.results.rows import Row
from attnrepro.tables.capsule_routing.table import CLASSES, NAME
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.trained import splits

ROUTINGS: dict[str, Routing] = {"routing": dynamic_routing, "as_printed": routing_as_printed}
# Two iterations as printed are one step of attention.
ONE_STEP = 2
# Iterations of the layers whose children change places, and of the class capsules.
ITERATIONS = 3
# By how much all tokens grow.
GROWTH = 1.1

Axes = dict[str, object]


def jobs(cell: Cell) -> list[Job]:
    """One module over all shapes and draws."""
    found = Structure(cell)
    return [Job(found, batches(found.plan()))]


class Structure(Measurement):
    """A batch is an index of a shape and of a draw; what is found is the largest of all draws."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        # No image is looked at; the table is one of digits all the same.
        self.data_sha256 = splits(cell.data).sha256
        self.largest: dict[tuple[str, tuple[tuple[str, object], ...]], tuple[float, int]] = {}

    def plan(self) -> list[tuple[int, int]]:
        """Every draw of every shape."""
        p = self.cell.params
        return [(shape, draw) for shape in range(len(p.shapes)) for draw in range(p.draws)]

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """All of one draw."""
        index, draw = batch
        p, seed = self.cell.params, self.cell.seeds[0]
        children, parents, size = p.sizes()[index]
        stream = generator(seed, NAME, "structure", index, draw)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=stream, dtype=torch.float64).to(self.device)

        votes, others = normal(1, children, parents, size), normal(1, children, parents, size)
        for model, route in ROUTINGS.items():
            for iterations in p.iterations:
                self._votes(model, route, iterations, votes, others)
            self._add("attention_error", attention_error(route, votes), {"model": model, "iterations": ONE_STEP})
        if batch_idx == 0:
            self._once(children, parents, size)
        self._add(
            "direction_error", gap(normalize(squash(votes), dim=-1), normalize(votes, dim=-1)), {"model": "squash"}
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, NAME, "weights", index, draw))
            self._layers(children, parents, size, normal)
            self._attention(children, normal)
            self._images(p.sides[index % len(p.sides)], normal)

    def _add(self, quantity: str, value: float, axes: Axes) -> None:
        at = (quantity, tuple(axes.items()))
        largest, n = self.largest.get(at, (0.0, 0))
        self.largest[at] = (max(largest, value), n + 1)

    def _votes(self, model: str, route: Routing, iterations: int, votes: Tensor, others: Tensor) -> None:
        axes: Axes = {"model": model, "iterations": iterations}
        made, coupling = route(votes, iterations)
        self._add("sum_over_parents_error", float((coupling.sum(2) - 1).abs().max()), axes)
        self._add("sum_over_children_error", float((coupling.sum(1) - 1).abs().max()), axes)
        self._add("length_excess", max(float(vector_norm(made, dim=-1).max()) - 1, 0.0), axes)
        rivals = others.clone()
        rivals[:, :, 0] = votes[:, :, 0]
        self._add("rival_effect", gap(route(rivals, iterations)[0][:, 0], made[:, 0]), axes)

    def _once(self, children: int, parents: int, size: int) -> None:
        """What no draw changes: equal votes, and how many softmaxes wait for each other."""
        p = self.cell.params
        direction = torch.ones(size, dtype=torch.float64, device=self.device) / size**0.5
        for model, route in ROUTINGS.items():
            for iterations in p.iterations:
                axes: Axes = {"model": model, "iterations": iterations}
                for vote in p.votes:
                    made, _ = route((vote * direction).expand(1, children, parents, size), iterations)
                    self._add("agreed_length", float(vector_norm(made[0, 0])), {**axes, "vote": vote})
                if model == "routing":
                    with torch.enable_grad():
                        start = torch.zeros(1, children, parents, size, requires_grad=True)
                        made, _ = route(start, iterations)
                    # The first shares, a softmax of constants, leave no trace in the graph.
                    self._add("softmaxes_in_a_row", 1 + softmaxes_in_a_row(made), axes)
        with torch.enable_grad():
            tokens = torch.zeros(children, p.embed_dim, requires_grad=True)
            made = SelfAttention(p.embed_dim, p.num_heads)(tokens)
        self._add("softmaxes_in_a_row", softmaxes_in_a_row(made), {"model": "attention"})

    def _layers(self, children: int, parents: int, size: int, normal: Callable[..., Tensor]) -> None:
        below = normal(1, children, size)
        order = torch.arange(children - 1, -1, -1, device=self.device)
        for model, own in (("capsules_shared", None), ("capsules", children)):
            layer = CapsuleLayer(parents, size, size, num_children=own, iterations=ITERATIONS)
            layer.double().to(self.device)
            error = gap(layer(below[:, order]), layer(below))
            self._add("order_error", error, {"model": model, "iterations": ITERATIONS})

    def _attention(self, length: int, normal: Callable[..., Tensor]) -> None:
        p = self.cell.params
        tokens = normal(length, p.embed_dim)
        layer = SelfAttention(p.embed_dim, p.num_heads).double().to(self.device)
        weights = layer.weights(tokens)
        for name, dim in (("sum_over_children_error", -1), ("sum_over_parents_error", -2)):
            self._add(name, float((weights.sum(dim) - 1).abs().max()), {"model": "attention"})
        self._add("weights_change", gap(layer.weights(GROWTH * tokens), weights), {"model": "attention"})
        torch.nn.init.zeros_(layer.w_query.weight)
        zero = gap(layer.weights(GROWTH * tokens), layer.weights(tokens))
        self._add("weights_change", zero, {"model": "attention_zero"})

    def _images(self, side: int, normal: Callable[..., Tensor]) -> None:
        """Tokens and class capsules of two images."""
        p = self.cell.params
        images = normal(2, 1, side, side)
        vit = ViT((1, side, side), CLASSES, patch=p.patch, embed_dim=p.embed_dim, num_heads=p.num_heads)
        vit.double().to(self.device)
        self._add("patch_error", patch_error(vit, images[:1], p.patch), {"model": "vit"})
        codes = tokens_of(vit, images) - vit.patches(images)
        self._add("code_change", gap(codes[0], codes[1]), {"model": "vit"})
        capsules = CapsuleNet((1, side, side), CLASSES, iterations=ITERATIONS).double().to(self.device)
        pose = normalize(capsules.classes(capsules.primary(images)), dim=-1)
        self._add("code_change", gap(pose[0], pose[1]), {"model": "capsules", "iterations": ITERATIONS})

    def rows(self) -> list[Row]:
        """The largest of every quantity."""
        seed = self.cell.seeds[0]
        return [
            Row(quantity, value, dict(axes), statistic="exact", seed=seed, n=n)
            for (quantity, axes), (value, n) in self.largest.items()
        ]


def gap(found: Tensor, wanted: Tensor) -> float:
    """Largest difference, in units of the largest of the wanted values."""
    return float((found - wanted).abs().max() / wanted.abs().max())


def attention_error(route: Routing, votes: Tensor) -> float:
    """Distance of two iterations from attention of each parent, with the votes for it as keys and values."""
    made, _ = route(votes, ONE_STEP)
    each = votes.transpose(1, 2)
    query = each.mean(2, keepdim=True)
    return gap(made, scaled_dot_product_attention(query, each, each, scale=1.0)[:, :, 0])


def patch_error(vit: ViT, image: Tensor, patch: int) -> float:
    """Largest gradient of any token by a pixel outside of its patch, over the largest by one inside."""
    with torch.enable_grad():
        pixels = image.clone().requires_grad_()
        tokens = vit.patches(pixels)[0]
        columns = image.shape[-1] // patch
        outside, inside = 0.0, 0.0
        for index, token in enumerate(tokens):
            (slope,) = torch.autograd.grad(token.square().sum(), pixels, retain_graph=True)
            row, column = divmod(index, columns)
            own = torch.zeros_like(slope, dtype=torch.bool)
            own[..., row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = True
            outside = max(outside, float(slope[~own].abs().max()))
            inside = max(inside, float(slope[own].abs().max()))
    return outside / inside


def tokens_of(vit: ViT, images: Tensor) -> Tensor:
    """What a ViT's first block reads, ``[n, length, embed_dim]``."""
    seen: list[Tensor] = []
    hook = vit.dropout.register_forward_hook(lambda module, inputs, output: seen.append(output))
    vit(images)
    hook.remove()
    return seen[0]


def softmaxes_in_a_row(output: Tensor) -> int:
    """Most softmaxes on any way from ``output`` back through autograd's graph: each has to wait for the next."""
    longest: dict[Any, int] = {}
    stack: list[tuple[Any, bool]] = [(output.grad_fn, False)]
    while stack:
        node, ready = stack.pop()
        earlier = [before for before, _ in node.next_functions if before is not None]
        if ready:
            own = int(node.name().startswith("Softmax"))
            longest[node] = own + max((longest[before] for before in earlier), default=0)
        elif node not in longest:
            stack.append((node, True))
            stack += ((before, False) for before in earlier)
    return longest[output.grad_fn]
