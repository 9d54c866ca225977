"""Gradient of the last output by the token at every distance, at the start."""

import math
from typing import Any

import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.sequence_layers import AttentionLayer, CausalConvs, LinearRecurrence, Recurrent
from attnrepro.results.rows import Row
from attnrepro.tables.recurrent_vs_attention import table
from attnrepro.theory import sequence_costs
from attnrepro.training.measurement import Job, Measurement, batches


def jobs(cell: Cell) -> list[Job]:
    """One module over all networks; deep stacks a seed at a time, for their activations."""
    seeds = list(cell.seeds)
    plan = [
        (network, part)
        for network in table.STARTED
        for part in ([[seed] for seed in seeds] if network in sequence_costs.STACKS else [seeds])
    ]
    return [Job(Gradients(cell), batches(plan))]


def through_time(layer: Recurrent | LinearRecurrence, x: Tensor, cotangent: Tensor) -> Tensor:
    """log10 of the norm of a last state's gradient by every token, ``[seeds, length]``; x is ``[seeds, 1, length, d]``.

    Backwards token by token, with the gradient by the state brought back to norm 1 each time: of a tanh network it
    leaves the range even of float64 on a thousand tokens.
    """
    with torch.no_grad():
        states = [layer.start(1)]
        for part in x.unbind(2):
            states.append(layer.step(part, states[-1]))
    back = [cotangent, *(torch.zeros_like(part) for part in states[-1][1:])]
    scale = x.new_zeros(len(x))
    found = []
    for index in range(x.shape[2] - 1, -1, -1):
        token = x[:, :, index].clone().requires_grad_()
        state = tuple(part.clone().requires_grad_() for part in states[index])
        by_token, *back = torch.autograd.grad(layer.step(token, state), (token, *state), back)
        found.append(scale + by_token.norm(dim=(1, 2)).log10())
        norm = torch.stack([part.norm(dim=(1, 2)) for part in back]).norm(dim=0)
        back = [part / norm[:, None, None] for part in back]
        scale = scale + norm.log10()
    return torch.stack(found[::-1], 1)


def at_once(layer: CausalConvs | AttentionLayer, x: Tensor, cotangent: Tensor) -> Tensor:
    """The same for a network in layers, in one backward pass."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(layer.read(x), x, cotangent)
    # Gradients of 1e-200 have no square in float64.
    scale = slope.abs().amax(dim=(1, 3), keepdim=True)
    logs = (slope / scale).norm(dim=(1, 3)).log10() + scale[:, 0, :, 0].log10()
    return torch.where(scale[:, 0, :, 0] > 0, logs, -torch.inf)


class Gradients(Measurement):
    """Every network and seed, in float64: standard normal tokens, a random direction of the output."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def _layer(self, network: str, seeds: list[int], length: int) -> Any:
        p = self.cell.params
        streams = [generator(seed, table.NAME, "gradient", network) for seed in seeds]
        if network in sequence_costs.GATES:
            made: torch.nn.Module = Recurrent(network, streams, p.gradient_width, p.gradient_width, span=length)
        elif network == "linear":
            made = LinearRecurrence(streams, p.gradient_width, p.decay)
        elif network == "attention":
            made = AttentionLayer(streams, p.gradient_width)
        else:
            depth = sequence_costs.layers(network, p.kernel, length - 1)
            made = CausalConvs(sequence_costs.STACKS[network], streams, p.gradient_width, p.kernel, depth)
        return made.to(device=self.device, dtype=torch.float64).requires_grad_(False)

    def test_step(self, batch: tuple[str, list[int]], batch_idx: int) -> None:
        """Gradients of some seeds of one network."""
        network, seeds = batch
        p = self.cell.params
        length = max(p.distances) + 1
        drawn = []
        for seed in seeds:
            stream = generator(seed, table.NAME, "gradient tokens")
            drawn.append(torch.randn(1, length + 1, p.gradient_width, generator=stream, dtype=torch.float64))
        both = torch.stack(drawn).to(self.device)
        x, cotangent = both[:, :, :-1], both[:, :, -1]
        layer = self._layer(network, seeds, length)
        with torch.enable_grad():
            recurrent = isinstance(layer, Recurrent | LinearRecurrence)
            logs = (through_time if recurrent else at_once)(layer, x, cotangent).cpu()
        kept = logs - logs.amax(1, keepdim=True)
        for index, seed in enumerate(seeds):
            for distance in p.distances:
                value = float(kept[index, -1 - distance])
                ok = math.isfinite(value)
                self.found.append(
                    Row(
                        "gradient_kept_log10",
                        value if ok else math.nan,
                        {"network": network, "distance": distance},
                        statistic="mean",
                        seed=seed,
                        n=1,
                        status="ok" if ok else "failed: no gradient in float64",
                    )
                )

    def rows(self) -> list[Row]:
        """Every network, seed and distance."""
        return self.found
