"""add_vs_concat, the torch-free half: parameters, shapes of the trained heads, and closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import add_vs_concat as closed

NAME = "add_vs_concat"
AXES = ("code", "direction", "positions", "outputs_over_d", "embed_dim")
STUDIES = ("algebra", "information", "training")
CODES = ("none", "add", "equal_width", "equal_parameters", "double_width")
# Linear layers that a projection stands for: query, key and value.
MAPS = 3


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/add_vs_concat.yaml`` says what each means."""

    study: str
    shapes: list[int]
    draws: int
    n_shares: int
    outputs_over_d: list[float]
    document_dim: int
    embed_dims: list[int]
    n_words: int
    n_positions: int
    n_nearest: int
    n_pairs: int
    dense_dim: int
    n_dense: int
    length: int
    n_symbols: int
    width: int
    head_dim: int
    learning_rate: float
    batch_size: int
    steps: int
    n_test: int
    target: float
    every: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES)
        distinct(self, "shapes", "outputs_over_d", "embed_dims")
        in_range(
            self,
            shapes=(2, 10**4),
            draws=(1, 10**5),
            n_shares=(2, 10**6),
            outputs_over_d=(0.01, 100),
            document_dim=(1, 10**5),
        )
        in_range(self, embed_dims=(2, 10**4), n_words=(2, 10**5), n_positions=(2, 10**5), n_nearest=(1, 10**5))
        in_range(self, n_pairs=(1, 10**6), dense_dim=(1, 10**3), n_dense=(2, 10**6), length=(2, 10**3))
        in_range(self, n_symbols=(2, 10**3), width=(2, 10**4), head_dim=(1, 10**4), learning_rate=(1e-6, 1))
        in_range(self, batch_size=(1, 10**5), steps=(1, 10**6), n_test=(1, 10**7), target=(0, 1), every=(1, 10**6))
        if self.width % 2:
            raise ValueError(f"width={self.width} must be even: equal_width halves it")
        if any(width % 2 for width in self.embed_dims):
            raise ValueError(f"embed_dims={self.embed_dims} must be even: a sine has its cosine")
        if self.n_dense <= self.dense_dim + 1:
            raise ValueError(f"n_dense={self.n_dense} must be above dense_dim={self.dense_dim} by more than 1")
        for ratio in self.outputs_over_d:
            if ratio == 1 or any(abs(ratio * d - round(ratio * d)) > 1e-9 for d in self.shapes):
                raise ValueError(f"outputs_over_d={ratio} must not be 1 and give whole outputs for every one of shapes")


def sizes(p: Params) -> dict[str, int]:
    """Rows of embeddings, symbols to choose from and rows of codes."""
    return {"vocabulary": p.n_symbols + p.length, "symbols": p.n_symbols, "places": p.length + 1}


def widths(p: Params, code: str) -> tuple[int, int]:
    """Components of content and code of a trained head."""
    found = {
        "none": (p.width, 0),
        "add": (p.width, p.width),
        "double_width": (p.width, p.width),
        "equal_width": (p.width // 2, p.width // 2),
    }
    return found[code] if code in found else closed.equal_widths(p.width, p.head_dim, **sizes(p))


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p, seeds = cell.params, len(cell.seeds)
    if p.study == "training":
        return (
            1.0 + (p.steps + p.n_test / p.batch_size) * seeds * p.batch_size * p.length * p.width * p.head_dim * 2.5e-9
        )
    if p.study == "information":
        return 1.0 + seeds * sum(p.embed_dims) * p.n_words * p.n_positions * p.n_nearest * 1e-9
    return 1.0 + seeds * p.draws * sum(d**3 for d in p.shapes) * 1e-8


def theory(cell: Cell) -> list[Row]:
    """Ranks, counts, what no code absorbs, what a sum keeps (``attnrepro.theory.add_vs_concat``)."""
    p = cell.params
    made = {"algebra": _algebra, "information": _information, "training": _training}
    return [Row(name, value, axes, "theory", statistic) for name, statistic, value, axes in made[p.study](p)]


def _algebra(p: Params) -> Iterator[tuple[str, str, float, dict[str, object]]]:
    for code, dimensions in (("add", 1), ("concat", 2)):
        yield "dims_over_d", "exact", dimensions, {"code": code}
        yield "rank_over_d", "exact", dimensions, {"code": code}
        yield "projection_parameters", "exact", dimensions * MAPS * p.document_dim**2, {"code": code}
    for ratio in p.outputs_over_d:
        if ratio > 1:
            share = closed.residual_share(round(ratio * p.shapes[0]), p.shapes[0])
            yield "residual_share", "mean", float(share), {"outputs_over_d": ratio}


def _information(p: Params) -> Iterator[tuple[str, str, float, dict[str, object]]]:
    for width in p.embed_dims:
        # Finitely many sums of continuous draws are all different.
        yield "lost_share", "exact", 0.0, {"embed_dim": width}
    # Content and code of equal variance: the best guess of either is half of the sum.
    yield "dense_residual", "mean", 0.5, {"embed_dim": p.dense_dim}


def _training(p: Params) -> Iterator[tuple[str, str, float, dict[str, object]]]:
    for code in CODES:
        content, beside = widths(p, code)
        width = content if code in ("none", "add") else content + beside
        count = closed.head_parameters(content, beside, width, p.head_dim, **sizes(p))
        yield "parameters", "exact", count, {"code": code}
    yield "bag_accuracy", "mean", closed.bag_accuracy(p.length, p.n_symbols), {}
