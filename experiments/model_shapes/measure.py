"""model_shapes, measured: every model built without memory, its parameters, products and attention maps counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnrepro.config import Cell
from attnrepro.nn.model_shapes import ModelBlock, build_shape, inputs_of
from attnrepro.results.rows import Row
from attnrepro.tables.model_shapes import table
from attnrepro.theory.model_shapes import Shape, shape_of
from attnrepro.training.measurement import Job, Measurement, batches


def build(cell: Cell) -> list[Job]:
    """One job; a batch a model."""
    counts = Counts(cell)
    # By number: what Lightning moves to a device may not be a frozen dataclass.
    return [Job(counts, batches(range(len(counts.plan))))]


class Products(TorchDispatchMode):
    """FLOPs of all products and of those of scores, and attention maps, seen where they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = 0
        self.flops = 0
        self.score_flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; a softmax returns maps, a batched product is one of scores: one matrix for each map."""
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "_softmax":
            self.maps += out.shape[:-2].numel()
        elif name in ("mm", "bmm", "addmm"):
            found = 2 * out.numel() * args[1 if name == "addmm" else 0].shape[-1]
            self.flops += found
            self.score_flops += found if name == "bmm" else 0
        return out


class Counts(Measurement):
    """Counts of models on the meta device, from the models themselves."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []
        self.by_heads: dict[str, list[int]] = {}
        self.plan = self._plan()

    def _plan(self) -> list[tuple[str, str | int, Shape]]:
        """What is built: a model with its variant, or with a number of heads."""
        p = self.cell.params
        found: list[tuple[str, str | int, Shape]] = []
        found += [(model, variant, shape_of(model, variant)) for model, variant in table.counted(p)]
        return [*found, *table.with_heads(p)]

    def test_step(self, batch: int, batch_idx: int) -> None:
        """Build one model and count."""
        model, which, shape = self.plan[batch]
        with torch.device("meta"):
            made, inputs = build_shape(shape), inputs_of(shape)
        whole = parameters_of(made)
        if isinstance(which, int):
            axes: dict[str, object] = {"model": model, "heads": which}
            self._add("parameters", whole, axes)
            self._add("head_dim", head_dim_of(made), axes)
            self.by_heads.setdefault(model, []).append(whole)
            return
        axes = {"model": model, "counted_as": which or None}
        self._add("parameters", whole, axes)
        self._add("block_parameters", sum(parameters_of(b) for b in made.modules() if isinstance(b, ModelBlock)), axes)
        if which or model not in self.cell.params.run:
            return
        with torch.no_grad(), Products() as seen:
            made(*inputs)
        counted = {"attention_units": seen.maps, "head_dim": head_dim_of(made)}
        for name, value in {**counted, "flops": seen.flops, "score_flops": seen.score_flops}.items():
            self._add(name, value, axes)

    def _add(self, quantity: str, value: float, axes: Mapping[str, object]) -> None:
        self.found.append(Row(quantity, value, axes, statistic="exact", seed=self.cell.seeds[0], n=1))

    def rows(self) -> list[Row]:
        """Counts, and by how much the numbers of heads differ."""
        spreads = [
            Row("parameters_spread", max(found) - min(found), {"model": model}, statistic="exact", seed=0, n=1)
            for model, found in self.by_heads.items()
        ]
        return [*self.found, *spreads]


def parameters_of(made: nn.Module) -> int:
    """Trainable numbers, shared ones once."""
    return sum(part.numel() for part in made.parameters())


def head_dim_of(made: nn.Module) -> int:
    """Components of a query, from the first block's own cut into heads."""
    block = next(module for module in made.modules() if isinstance(module, ModelBlock))
    width = block.attention.w_query.out_features
    with torch.device("meta"):
        return int(block.attention._heads(torch.zeros(1, width)).shape[-1])
