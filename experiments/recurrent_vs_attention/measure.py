"""recurrent_vs_attention, measured: the cell's studies, each in a module of its own."""

from collections.abc import Callable

from attnrepro.config import Cell
from attnrepro.tables.recurrent_vs_attention import gradient, recall, structure, timed
from attnrepro.training.measurement import Job


def build(cell: Cell) -> list[Job]:
    """The cell's jobs."""
    studies: dict[str, Callable[[Cell], list[Job]]] = {
        "structure": structure.jobs,
        "gradient": gradient.jobs,
        "recall": recall.jobs,
        "time": timed.jobs,
    }
    return studies[cell.params.study](cell)
