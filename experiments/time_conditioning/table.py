"""time_conditioning, the torch-free half: parameters and the best error without t."""

from __future__ import annotations

from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row

NAME = "time_conditioning"
AXES = ("task", "encoding", "scale_of_t")
TASKS = {"turn_once": 1, "turn_four_times": 4, "denoise": 0}
ENCODINGS = ("raw", "standardised", "repeated", "sinusoidal", "octaves", "zero_frequency", "shuffled")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/time_conditioning.yaml`` says what each means."""

    task: str
    encodings: list[str]
    raw_scales: list[float]
    embed_dim: int
    octaves: int
    hidden: int
    learning_rate: float
    batch_size: int
    steps: int
    n_test: int

    def __post_init__(self) -> None:
        one_of(self, task=tuple(TASKS), encodings=ENCODINGS)
        distinct(self, "encodings", "raw_scales")
        in_range(self, raw_scales=(1e-3, 1e3), embed_dim=(2, 2000), octaves=(1, 20), hidden=(1, 5000))
        in_range(self, learning_rate=(1e-6, 1), batch_size=(1, 10**6), steps=(1, 10**6), n_test=(10, 10**7))
        if self.embed_dim % 2:
            raise ValueError(f"embed_dim={self.embed_dim} must be even")


def members(p: Params) -> list[tuple[str, float | None]]:
    """Every encoding, raw t at every scale."""
    return [(name, scale) for name in p.encodings for scale in (p.raw_scales if name == "raw" else [None])]


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p = cell.params
    count = len(cell.seeds) * len(members(p))
    weights = (p.embed_dim + 2) * p.hidden + p.hidden**2 + 2 * p.hidden
    return 1.0 + (p.steps + p.n_test / p.batch_size / 3) * (1.5e-3 + count * p.batch_size * weights * 3e-10)


def theory(cell: Cell) -> list[Row]:
    """The best error without t."""
    from attnrepro.theory import time_conditioning as jobs

    turns = TASKS[cell.params.task]
    best = jobs.blind_turn_error(turns) if turns else jobs.blind_denoise_error()
    return [Row("blind_error", best, {"task": cell.params.task}, source="theory", statistic="mean")]
