"""position_encodings, measured: distances and shifts of codes, lengths of sequences; `trained` has the models."""

import math

import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.position import random_gaussian, sinusoidal
from attnrepro.results.rows import Row
from attnrepro.tables.position_encodings import table
from attnrepro.tables.position_encodings.trained import jobs
from attnrepro.training.measurement import Job, Measurement, batches


def build(cell: Cell) -> Job | list[Job]:
    """The cell's measurement, or a fit for each model of its task."""
    if cell.params.study != "exact":
        return jobs(cell)
    codes = Codes(cell)
    return Job(codes, batches(codes.plan()))


def code_of(name: str, length: int, dim: int, stream: torch.Generator) -> Tensor:
    """A code ``[length, dim]`` in float64, of the sinusoid's power."""
    if name == "gaussian":
        return random_gaussian(length, dim, stream, dtype=torch.float64) / math.sqrt(2)
    code = sinusoidal(length, dim, dtype=torch.float64)
    if name == "phase_shifted":
        # sin(a + pi/4): the sines run ahead, so that sine and cosine are no longer a quarter of a turn apart.
        code[:, 0::2] = (code[:, 0::2] + code[:, 1::2]) / math.sqrt(2)
    return code


def rotation_misfit(before: Tensor, after: Tensor) -> float:
    """Largest component that the best rotation of each pair of columns leaves of ``after``.

    Rows are complex numbers, and the best turn is that of sum conj(before) after (Procrustes in the plane).
    """
    here, there = (torch.view_as_complex(code.unflatten(-1, (-1, 2)).contiguous()) for code in (before, after))
    turn = torch.sgn((here.conj() * there).sum(0))
    return float(torch.view_as_real(here * turn - there).abs().max())


def linear_misfit(before: Tensor, after: Tensor) -> float:
    """Largest component that the best linear map of each pair of columns leaves of ``after``."""
    here, there = (code.unflatten(-1, (-1, 2)).transpose(0, 1) for code in (before, after))
    found = torch.linalg.lstsq(here, there).solution
    return float((here @ found - there).abs().max())


class Codes(Measurement):
    """Nearest pairs, shifts, and tokens of images."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def plan(self) -> list[tuple[str, int, int]]:
        """Batches as (what, first size, second size)."""
        p = self.cell.params
        sized = [
            (what, length, dim)
            for what in ("sinusoidal", "gaussian")
            for dim in p.code_dims
            for length in p.code_lengths
        ]
        shifted = [(f"shift {name}", 0, 0) for name in table.SHIFTED_CODES]
        return [*sized, *shifted, *(("tokens", side, patch) for side in p.sides for patch in p.patches)]

    def test_step(self, batch: tuple[str, int, int], batch_idx: int) -> None:
        """One code, one kind of shift or one image."""
        what, first, second = batch
        if what == "sinusoidal":
            self._nearest(first, second)
        elif what == "gaussian":
            self._gaussian(first, second)
        elif what == "tokens":
            # One token for each patch, as a convolution of that stride cuts them.
            cut = torch.nn.functional.conv2d(
                torch.ones(1, 1, first, first), torch.ones(1, 1, second, second), stride=second
            )
            self.add("tokens_log10", math.log10(cut.numel()), {"side": first, "patch": second})
        else:
            self._shifts(what.removeprefix("shift "))

    def add(
        self,
        quantity: str,
        value: float,
        axes: dict[str, object],
        statistic: str = "exact",
        n: int = 1,
        sd: float | None = None,
    ) -> None:
        """A row of the first seed: nothing here is trained."""
        self.found.append(Row(quantity, value, axes, statistic=statistic, seed=self.cell.seeds[0], n=n, sd=sd))

    def rows(self) -> list[Row]:
        """Everything that was looked at."""
        return self.found

    def _nearest(self, length: int, dim: int) -> None:
        code = sinusoidal(length, dim, dtype=torch.float64, device=self.device)
        distance = torch.pdist(code)
        at: dict[str, object] = {"encoding": "sinusoidal", "length": length, "embed_dim": dim}
        smallest, row_norm = float(distance.min()), float(torch.linalg.vector_norm(code) / math.sqrt(length))
        pairs = torch.combinations(torch.arange(length, device=self.device))
        # Pairs of one gap are equally far apart up to rounding.
        near = pairs[distance <= smallest * (1 + 1e-9)]
        self.add("smallest_distance", smallest, at, n=len(pairs))
        self.add("relative_distance", smallest / row_norm, at, n=len(pairs))
        self.add("nearest_gap", int((near[:, 1] - near[:, 0]).min()), at, n=len(pairs))

    def _gaussian(self, length: int, dim: int) -> None:
        p = self.cell.params
        stream = generator(self.cell.seeds[0], table.NAME, "gaussian", length, dim)
        found = []
        for _ in range(p.code_draws):
            code = code_of("gaussian", length, dim, stream).to(self.device)
            found.append(_square_distances(code))
        means, smallest, relative = (torch.tensor(part, dtype=torch.float64) for part in zip(*found, strict=True))
        at: dict[str, object] = {"encoding": "gaussian", "length": length, "embed_dim": dim}
        named = {"mean_square_distance": means, "smallest_distance": smallest, "relative_distance": relative}
        for name, values in named.items():
            self.add(name, float(values.mean()), at, "mean", n=len(values), sd=float(values.std()))

    def _shifts(self, name: str) -> None:
        p = self.cell.params
        misfits: dict[str, list[float]] = {"rotation": [], "linear": []}
        for shape in p.shift_shapes:
            length, dim = table.sizes_of(shape)
            stream = generator(self.cell.seeds[0], table.NAME, "shift", name, shape)
            for _ in range(p.shift_draws):
                shift = int(torch.randint(1, p.max_shift + 1, (1,), generator=stream))
                code = code_of(name, length + shift, dim, stream).to(self.device)
                before, after = code[:length], code[shift:]
                # An angle is rounded at its own size, the last position.
                unit = table.EPS * (length + shift)
                misfits["rotation"].append(rotation_misfit(before, after) / unit)
                misfits["linear"].append(linear_misfit(before, after) / unit)
        for kind, values in misfits.items():
            self.add(f"{kind}_error_eps", max(values), {"encoding": name}, n=len(values))
            if name in (table.BENT if kind == "rotation" else table.CURVED):
                self.add(f"least_{kind}_error_eps", min(values), {"encoding": name}, n=len(values))


def _square_distances(code: Tensor) -> tuple[float, float, float]:
    """Mean square distance of all pairs, the smallest distance, and that over the root mean square norm."""
    length = len(code)
    square = code.square().sum(-1)
    # By the Gram matrix: a Gaussian code has no pair so near that the difference would be rounding.
    distances = (square[:, None] + square - 2 * code @ code.T)[*torch.triu_indices(length, length, 1)]
    smallest = math.sqrt(max(float(distances.min()), 0.0))
    return float(distances.mean()), smallest, smallest / math.sqrt(float(square.mean()))
