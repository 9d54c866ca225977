"""Milliseconds of torch's own recurrent networks, of convolutions that link a sequence, and of attention."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from attnrepro.config import Cell
from attnrepro.data.streams import generator, stream_seed
from attnrepro.nn.conv_stack import dilation
from attnrepro.results.rows import Row
from attnrepro.tables.recurrent_vs_attention import table
from attnrepro.theory import sequence_costs
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.stopwatch import Stopwatch


def jobs(cell: Cell) -> list[Job]:
    """Every length once for each seed, that is: for each repetition."""
    plan = [(seed, length) for seed in cell.seeds for length in cell.params.time_lengths]
    return [Job(Times(cell), batches(plan))]


class Recurrence(nn.Module):
    """torch.nn.RNN, GRU or LSTM: all outputs ``[1, length, embed_dim]``."""

    def __init__(self, kind: str, embed_dim: int) -> None:
        super().__init__()
        kinds: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
        self.net = kinds[kind](embed_dim, embed_dim, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """``[1, length, embed_dim]`` alike."""
        out: Tensor = self.net(x)[0]
        return out


class Convolutions(nn.Module):
    """As many causal layers with residual connections as link the first token to the last."""

    def __init__(self, network: str, embed_dim: int, kernel: int, length: int) -> None:
        super().__init__()
        depth = sequence_costs.layers(network, kernel, length - 1)
        rates = [dilation(sequence_costs.STACKS[network], kernel, index) for index in range(depth)]
        self.layers = nn.ModuleList(nn.Conv1d(embed_dim, embed_dim, kernel, dilation=rate) for rate in rates)

    def forward(self, x: Tensor) -> Tensor:
        """``[1, length, embed_dim]`` alike."""
        x = x.mT
        for layer in self.layers:
            back = layer.dilation[0] * (layer.kernel_size[0] - 1)
            x = (x + torch.tanh(layer(pad(x, (back, 0))))) * 0.5**0.5
        return x.mT


class MultiHead(nn.Module):
    """Multi-head attention by the kernel that torch chooses, or step by step."""

    def __init__(self, embed_dim: int, num_heads: int, *, naive: bool) -> None:
        super().__init__()
        self.num_heads, self.naive = num_heads, naive
        self.into = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.out = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[1, length, embed_dim]`` alike; every token attends to those up to itself."""
        query, key, value = self.into(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        with sdpa_kernel(SDPBackend.MATH) if self.naive else nullcontext():
            heads = scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out


class Times(Measurement):
    """Networks of one length in turn, so that what else the machine does hits all of them."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []
        self.made: dict[tuple[str, int], nn.Module] = {}

    def _network(self, network: str, length: int) -> nn.Module:
        """Made when first asked for: a convolution for every length, the others for all of them."""
        p = self.cell.params
        at = (network, length if network in sequence_costs.STACKS else 0)
        if at not in self.made:
            with torch.random.fork_rng():
                torch.manual_seed(stream_seed(self.cell.seeds[0], table.NAME, *at))
                if network in sequence_costs.STACKS:
                    made: nn.Module = Convolutions(network, p.embed_dim, p.kernel, length)
                elif network in ("attention", "attention_naive"):
                    made = MultiHead(p.embed_dim, p.num_heads, naive=network == "attention_naive")
                else:
                    made = Recurrence(network, p.embed_dim)
            self.made[at] = made.to(self.device)
        return self.made[at]

    def _milliseconds(self, watch: Stopwatch, network: nn.Module, x: Tensor, training: bool) -> float:
        """One call; of ``training`` with its backward pass."""
        x = x.detach().requires_grad_(training)

        def run() -> None:
            out = network(x)
            if training:
                out.sum().backward()

        return watch.ms(run)

    def test_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """All networks at one length: a call that does not count, then the fastest of ``runs``."""
        seed, length = batch
        p = self.cell.params
        watch = Stopwatch(self.device, self.cell.threads)
        stream = generator(seed, table.NAME, "timed", length)
        x = torch.randn(1, length, p.embed_dim, generator=stream).to(self.device)
        names = [name for name in table.TIMED if name not in sequence_costs.STACKS or length <= p.longest_stack]
        for phase in table.PHASES:
            training = phase == "training"
            times: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(p.runs + 1):
                for name in names:
                    with torch.set_grad_enabled(training):
                        took = self._milliseconds(watch, self._network(name, length), x, training)
                    times[name].append(took)
            for name, found in times.items():
                axes = {"network": name, "length": length, "phase": phase}
                value = min(found[1:])
                self.found.append(Row("milliseconds", value, axes, statistic="mean", seed=seed, n=1, unit="ms"))

    def rows(self) -> list[Row]:
        """Every network, length and phase, a row a repetition."""
        return self.found
