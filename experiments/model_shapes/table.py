"""model_shapes, the torch-free half: which models are counted, and their parameters, FLOPs and heads on paper.

Documents 002 (BERT, GPT-3) and 003 (heads of later models). The rows are read in ``reading.py``; sizes are in
`attnrepro.theory.model_shapes`, the models in `attnrepro.nn.model_shapes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import model_shapes as closed

NAME = "model_shapes"
AXES = ("model", "counted_as", "heads")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/model_shapes.yaml`` says what each means."""

    models: list[str]
    variants: list[str]
    run: list[str]
    counted_models: list[str]
    heads: list[int]

    def __post_init__(self) -> None:
        one_of(self, models=tuple(closed.MODELS), run=tuple(closed.MODELS), counted_models=tuple(closed.MODELS))
        distinct(self, "models", "variants", "run", "counted_models", "heads")
        in_range(self, heads=(1, 2**14))
        for text in self.variants:
            variant_of(text)
        if missing := [model for model in self.run if model not in self.models]:
            raise ValueError(f"run={missing[0]} must be one of models={self.models}")
        for model in self.counted_models:
            for heads in self.heads:
                if closed.MODELS[model].embed_dim % heads:
                    width = closed.MODELS[model].embed_dim
                    raise ValueError(f"heads={heads} must divide the {width} components of counted_models={model}")


def variant_of(text: str) -> tuple[str, str]:
    """``model:variant`` as two words; raises ``ValueError`` for a model or a variant that there is not."""
    model, _, variant = text.partition(":")
    if not variant:
        raise ValueError(f"variants={text} must be model:variant, as in bert_base:pretraining")
    closed.shape_of(model, variant)
    return model, variant


def counted(p: Params) -> list[tuple[str, str]]:
    """Models and variants, those without a variant first."""
    return [*((model, "") for model in p.models), *map(variant_of, p.variants)]


def with_heads(p: Params) -> Iterator[tuple[str, int, closed.Shape]]:
    """Models of one width cut into other numbers of heads."""
    for model in p.counted_models:
        for heads in p.heads:
            yield model, heads, replace(closed.MODELS[model], num_heads=heads)


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    built = sum(closed.shape_of(*pair).depth for pair in counted(p)) + sum(s.depth for _, _, s in with_heads(p))
    return 1.0 + 0.003 * built + 0.007 * sum(closed.MODELS[model].depth for model in p.run)


def theory(cell: Cell) -> list[Row]:
    """Closed forms of everything that is counted."""
    p, rows = cell.params, []
    for model, variant in counted(p):
        shape = closed.shape_of(model, variant)
        found = {"parameters": closed.parameters(shape), "block_parameters": closed.block_parameters(shape)}
        if not variant and model in p.run:
            found |= {
                "attention_units": closed.attention_units(shape),
                "head_dim": shape.head_dim,
                "flops": closed.flops(shape),
                "score_flops": closed.score_flops(shape),
            }
        axes: dict[str, object] = {"model": model, "counted_as": variant or None}
        rows += [Row(name, value, axes, source="theory", statistic="exact") for name, value in found.items()]
    for model, heads, shape in with_heads(p):
        axes = {"model": model, "heads": heads}
        rows.append(Row("parameters", closed.parameters(shape), axes, source="theory", statistic="exact"))
        rows.append(Row("head_dim", shape.head_dim, axes, source="theory", statistic="exact"))
    for model in p.counted_models:
        rows.append(Row("parameters_spread", 0, {"model": model}, source="theory", statistic="exact"))
    return rows
