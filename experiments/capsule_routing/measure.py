"""capsule_routing, measured: the cell's study, each in a module of its own."""

from attnrepro.config import Cell
from attnrepro.tables.capsule_routing import costs, structure, trained
from attnrepro.training.measurement import Job


def build(cell: Cell) -> list[Job]:
    """The cell's jobs."""
    if cell.params.study == "structure":
        return structure.jobs(cell)
    if cell.params.study == "cost":
        return costs.jobs(cell)
    return trained.jobs(cell)
