"""Parameters and FLOPs of every net, counted on the net itself."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from attnrepro.config import Cell
from attnrepro.nn.cost import count
from attnrepro.results.rows import Row
from attnrepro.tables.capsule_routing import nets
from attnrepro.tables.capsule_routing.table import MODELS
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.trained import splits


def jobs(cell: Cell) -> list[Job]:
    """One module over all nets."""
    return [Job(Costs(cell), batches(MODELS))]


class Costs(Measurement):
    """A batch is the name of a net."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.data_sha256 = splits(cell.data).sha256
        self.found: list[Row] = []

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Count one net, forward and with the backward pass."""
        p, seed = self.cell.params, self.cell.seeds[0]
        net = nets.net(batch, p, seed).to(self.device)
        found = dict(count(net, (1, p.side, p.side))._asdict())
        net.eval()
        image = torch.zeros(1, 1, p.side, p.side, device=self.device)
        label = torch.zeros(1, dtype=torch.int64, device=self.device)
        with torch.enable_grad(), FlopCounterMode(display=False) as counter:
            nets.loss(batch, net(image), label).backward()
        found["step_flops"] = counter.get_total_flops()
        self.found += [
            Row(quantity, value, {"model": batch}, statistic="exact", seed=seed, n=1)
            for quantity, value in found.items()
        ]

    def rows(self) -> list[Row]:
        """Three for each net."""
        return self.found
