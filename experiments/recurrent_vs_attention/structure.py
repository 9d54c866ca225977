"""Paths, chains of dependent steps and memory, from autograd's graph and the allocator's record."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnrepro.config import Cell
from attnrepro.data.streams import generator
from attnrepro.nn.sequence_layers import AttentionLayer, CausalConvs, LinearRecurrence, Recurrent, State
from attnrepro.results.rows import Row
from attnrepro.tables.recurrent_vs_attention import table
from attnrepro.tables.recurrent_vs_attention.graph import Marks, fewest_marks, longest_chain
from attnrepro.theory import sequence_costs
from attnrepro.training.measurement import Job, Measurement, batches
from attnrepro.training.memory import memory_of

# A short call before a measured one: libraries take their workspace in it.
WARM_UP = 8


def jobs(cell: Cell) -> list[Job]:
    """One module over all networks."""
    found = Structure(cell)
    return [Job(found, batches(table.LINKED))]


class Structure(Measurement):
    """Every network once, in float64 and of one seed: nothing of it depends on the weights."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.found: list[Row] = []

    def test_step(self, batch: str, batch_idx: int) -> None:
        """Paths, steps and memory of one network."""
        p, network = self.cell.params, batch
        # cuDNN may multiply by way of Fourier transforms, which leave round-off where there must be 0.
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
            if network in sequence_costs.GATES:
                self._hand_overs(network)
            else:
                for distance in p.distances:
                    self._add(
                        "path_length", self._layers(network, distance), {"network": network, "distance": distance}
                    )
            if network == "attention":
                for where, _, distance in table.hops(p):
                    self._add("path_length", self._layers(network, distance), {"network": network, **where})
            for length in p.lengths:
                self._chains(network, length)
        if network in table.STREAMED:
            self._memory(network)

    def _add(self, quantity: str, value: float, axes: dict[str, object], **more: Any) -> None:
        more = {"statistic": "exact", **more}
        self.found.append(Row(quantity, value, axes, seed=self.cell.seeds[0], n=1, **more))

    def _layer(self, network: str, depth: int = 1) -> Any:
        """A layer of ``graph_width`` components, or a stack of them."""
        p = self.cell.params
        streams = [generator(self.cell.seeds[0], table.NAME, "structure", network)]
        if network in sequence_costs.GATES:
            made: torch.nn.Module = Recurrent(network, streams, p.graph_width, p.graph_width)
        elif network == "scan":
            made = LinearRecurrence(streams, p.graph_width, p.decay)
        elif network == "attention":
            made = AttentionLayer(streams, p.graph_width)
        else:
            made = CausalConvs(sequence_costs.STACKS[network], streams, p.graph_width, p.kernel, depth)
        return made.to(device=self.device, dtype=torch.float64)

    def _tokens(self, length: int) -> Tensor:
        """``[1, 1, length, graph_width]``."""
        stream = generator(self.cell.seeds[0], table.NAME, "tokens", length)
        drawn = torch.randn(1, 1, length, self.cell.params.graph_width, generator=stream, dtype=torch.float64)
        return drawn.to(self.device)

    # --- recurrent networks: hand-overs of a state, token by token ---

    def _hand_overs(self, network: str) -> None:
        """Fewest hand-overs from every token to the last output, of a run over all tokens."""
        p = self.cell.params
        fewest = self._run(network, max(p.distances) + 1)
        for distance in p.distances:
            self._add("path_length", fewest[-1 - distance], {"network": network, "distance": distance})
        if network == "rnn":
            for where, place, distance in table.hops(p):
                self._add("path_length", self._run(network, place + 1)[place - distance], {"network": network, **where})

    def _run(self, network: str, length: int) -> list[int]:
        layer, marks = self._layer(network), Marks()
        leaves = [part.clone().requires_grad_() for part in self._tokens(length).unbind(2)]
        state: State = layer.start(1)
        for index, leaf in enumerate(leaves):
            if index:
                state = tuple(marks(part) for part in state)
            state = layer.step(leaf, state)
        found = []
        for index, marked in enumerate(fewest_marks(state[0], leaves, marks.nodes.__contains__)):
            if marked is None:
                raise ValueError(f"the last output of {network} does not depend on token {index}")
            found.append(marked)
        return found

    # --- networks in layers: the depth at which the last output sees the first token ---

    def _layers(self, network: str, distance: int) -> int:
        """Fewest layers, or rounds, by doubling and bisection of the depth."""

        def sees(depth: int) -> bool:
            x = self._tokens(distance + 1).requires_grad_()
            last = self._output(network, x, depth)[:, :, -1].sum()
            (slope,) = torch.autograd.grad(last, x)
            if not slope.isfinite().all():
                raise ValueError(f"the gradient of {network} at depth {depth} has left the range of float64")
            return bool((slope[:, :, 0] != 0).any())

        if network == "scan":  # it stops by itself once it has reached back far enough
            marks = Marks()
            self._output(network, self._tokens(distance + 1).requires_grad_(), 1, marks)
            return len(marks.nodes)
        high = 1
        while not sees(high):
            high *= 2
            if high > 2 * distance:
                raise ValueError(f"{network} does not see {distance} positions back in {high} layers")
        low = high // 2  # too few, or 0
        while high - low > 1:
            depth = (low + high) // 2
            low, high = (low, depth) if sees(depth) else (depth, high)
        return high

    def _output(
        self, network: str, x: Tensor, depth: int, mark: Callable[[Tensor], Tensor] = lambda layer: layer
    ) -> Tensor:
        """Outputs at all positions; what comes out of every step goes through ``mark``."""
        layer = self._layer(network, depth)
        if network == "scan":
            found: Tensor = layer.scan(x, mark)
        elif network == "attention":
            found = mark(layer.attend(x, x))
        elif network in sequence_costs.GATES:
            state, states = layer.start(1), []
            for part in x.unbind(2):
                state = tuple(mark(one) for one in layer.step(part, state))
                states.append(state[0])
            found = torch.stack(states, 2)
        else:
            found = layer(x, mark)
        return found

    def _chains(self, network: str, length: int) -> None:
        """Longest chain of steps, of one layer and linked; the longest of all operations of one layer."""
        depths = {"one": 1, "linked": 1}
        if network in sequence_costs.STACKS:
            depths["linked"] = self._layers(network, length - 1)
        for name, depth in depths.items():
            marks = Marks()
            output = self._output(network, self._tokens(length).requires_grad_(), depth, marks)
            steps = longest_chain(output, marks.nodes.__contains__)
            self._add("sequential_steps", steps, {"network": network, "length": length, "layers": name})
        output = self._output(network, self._tokens(length).requires_grad_(), 1)
        found = longest_chain(output, lambda node: True)
        # Another version of torch may make one operation of two.
        self._add("graph_depth", found, {"network": network, "length": length}, statistic="value")

    # --- memory ---

    def _memory(self, network: str) -> None:
        lengths = self.cell.params.memory_lengths
        measures: dict[str, Callable[[str, int], int]] = {"inference": self._streamed, "training": self._kept}
        for phase, measured in measures.items():
            measured(network, WARM_UP)
            for length in lengths:
                axes: dict[str, object] = {"network": network, "length": length, "phase": phase}
                self._add("peak_bytes", measured(network, length), axes, statistic="value", unit="B")

    def _streamed(self, network: str, length: int) -> int:
        """Tokens one by one, forgotten when read: recurrent networks keep their state, attention keys and values."""
        layer, width = self._layer(network), self.cell.params.graph_width
        token = torch.ones(1, 1, width, dtype=torch.float64, device=self.device)

        def recurrent() -> object:
            state = layer.start(1)
            for _ in range(length):
                state = layer.step(token, state)
            return state

        def cached() -> object:
            keys = values = token.new_empty(1, 1, 0, width)
            for _ in range(length):
                keys = torch.cat([keys, token[:, :, None] @ layer.w_key[:, None]], 2)
                values = torch.cat([values, token[:, :, None] @ layer.w_value[:, None]], 2)
                query = token[:, :, None] @ layer.w_query[:, None]
                out = torch.softmax(query @ keys.mT / width**0.5, -1) @ values @ layer.w_out[:, None]
            return keys, values, out

        with torch.no_grad():
            return memory_of(cached if network == "attention" else recurrent, self.device).peak

    def _kept(self, network: str, length: int) -> int:
        """A forward pass with all that its backward pass will need."""
        x = self._tokens(length).requires_grad_()
        layer = self._layer(network)
        with torch.enable_grad():
            run = (lambda: layer.attend(x, x)) if network == "attention" else (lambda: layer(x))
            return memory_of(run, self.device).peak

    def rows(self) -> list[Row]:
        """Every count."""
        return self.found
