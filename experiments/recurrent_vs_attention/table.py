"""recurrent_vs_attention, the torch-free half: parameters and closed forms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from attnrepro.config import Cell, distinct, in_range, one_of
from attnrepro.results.rows import Row
from attnrepro.theory import sequence_costs as closed

NAME = "recurrent_vs_attention"
AXES = ("network", "distance", "length", "layers", "phase", "tokenisation", "pair")

STUDIES = ("structure", "gradient", "recall", "time")
# Networks of each study: what has a path, what has a gradient at the start, what is trained, what is timed.
LINKED = ("rnn", "gru", "lstm", "scan", "convs2s", "bytenet", "attention")
STARTED = ("linear", "rnn", "gru", "lstm", "lstm_chrono", "convs2s", "bytenet", "attention")
TRAINED = ("rnn", "gru", "lstm", "lstm_chrono", "convs2s", "bytenet", "attention", "convs2s_short")
TIMED = ("rnn", "gru", "lstm", "convs2s", "bytenet", "attention", "attention_naive")
# What carries something along when tokens come one by one.
STREAMED = ("rnn", "gru", "lstm", "attention")
PHASES = ("forward", "training")
TOKENISATIONS = ("words", "words_comma", "characters", "characters_comma")


@dataclass
class Params:
    """Parameters of the table; ``conf/experiment/recurrent_vs_attention.yaml`` says what each means."""

    study: str
    distance: int
    kernel: int
    distances: list[int]
    lengths: list[int]
    graph_width: int
    memory_lengths: list[int]
    words: list[str]
    words_comma: list[str]
    characters: list[str]
    characters_comma: list[str]
    near_pair: list[str]
    far_pair: list[str]
    decay: float
    gradient_width: int
    symbols: int
    parameters: int
    rnn_rate: float
    gru_rate: float
    lstm_rate: float
    convolution_rate: float
    attention_rate: float
    batch_size: int
    steps: int
    every: int
    n_test: int
    target: float
    time_lengths: list[int]
    longest_stack: int
    embed_dim: int
    num_heads: int
    runs: int

    def __post_init__(self) -> None:
        one_of(self, study=STUDIES)
        distinct(self, "distances", "lengths", "memory_lengths", "time_lengths")
        in_range(
            self, distance=(3, 10**4), distances=(1, 2000), lengths=(2, 2001), kernel=(3, 9), graph_width=(1, 1000)
        )
        in_range(self, memory_lengths=(2, 10**4), decay=(0.01, 1), gradient_width=(2, 1000))
        in_range(self, symbols=(2, 1000), parameters=(200, 10**7), batch_size=(1, 10**5), rnn_rate=(1e-6, 1))
        in_range(self, gru_rate=(1e-6, 1), lstm_rate=(1e-6, 1), convolution_rate=(1e-6, 1), attention_rate=(1e-6, 1))
        in_range(self, steps=(1, 10**6), every=(1, 10**6), n_test=(10, 10**6), target=(0.01, 1))
        in_range(self, time_lengths=(2, 10**6), longest_stack=(2, 10**6), embed_dim=(1, 8192), num_heads=(1, 1000))
        in_range(self, runs=(1, 1000))
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} must be odd")
        if self.steps % self.every:
            raise ValueError(f"every={self.every} must divide steps={self.steps}")
        if self.embed_dim % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads} must divide embed_dim={self.embed_dim}")
        for name in ("distances", "lengths", "memory_lengths", "time_lengths"):
            if len(getattr(self, name)) < 2:
                raise ValueError(f"{name}={getattr(self, name)} must hold two or more")
        if any(2 * a != b for a, b in itertools.pairwise(self.memory_lengths)):
            raise ValueError(f"memory_lengths={self.memory_lengths} must each be twice the one before")
        for name in TOKENISATIONS:
            tokens = getattr(self, name)
            for pair in (self.near_pair, self.far_pair):
                if len(pair) != 2 or any(tokens.count(token) != 1 for token in pair):
                    raise ValueError(f"{name}={tokens} must hold both of {' and '.join(pair)} once")
                if tokens.index(pair[0]) >= tokens.index(pair[1]):
                    raise ValueError(f"{name}={tokens} must have {pair[0]} before {pair[1]}")


def depth_of(p: Params, network: str) -> int:
    """Layers of a trained network."""
    return closed.layers(network, p.kernel, p.distance)


def width_of(p: Params, network: str) -> int:
    """Width of a trained network, so that all have about as many parameters."""
    depth = depth_of(p, network)
    return closed.width_for(network, p.parameters, depth, inputs=p.symbols + 2, outputs=p.symbols, kernel=p.kernel)


def rate_of(p: Params, network: str) -> float:
    """Learning rate of a trained network."""
    kind = {"lstm_chrono": "lstm"}.get(network, "convolution" if network in closed.STACKS else network)
    rate: float = getattr(p, f"{kind}_rate")
    return rate


def hops(p: Params) -> Iterator[tuple[dict[str, object], int, int]]:
    """Every pair in every tokenisation: its axes, the place of the second token and the tokens between them and it."""
    for name in TOKENISATIONS:
        tokens = getattr(p, name)
        for pair in (p.near_pair, p.far_pair):
            first, second = (tokens.index(token) for token in pair)
            yield {"tokenisation": name, "pair": " ".join(pair)}, second, second - first


def seconds(cell: Cell) -> float:
    """Rough time on one core, for planning."""
    p, seeds = cell.params, len(cell.seeds)
    if p.study == "structure":
        return 1.0 + sum(p.distances) * 2e-3 + sum(p.memory_lengths) * 4e-3
    if p.study == "gradient":
        return 1.0 + seeds * max(p.distances) * (1e-3 + p.gradient_width**2 * 4e-6)
    if p.study == "time":
        return 1.0 + seeds * p.runs * sum(p.time_lengths) * 3e-4
    work = seeds * p.distance * (p.batch_size + p.n_test / p.every / 3) * p.parameters * 6e-10
    return 1.0 + p.steps * len(TRAINED) * (2e-3 + p.distance * 6e-5 + work)


# --- closed forms ---


def theory(cell: Cell) -> list[Row]:
    """Path lengths, steps, what a linear recurrence keeps, memory of a state, parameters and chance."""
    made = {"structure": _structure, "gradient": _gradient, "recall": _recall, "time": _time}[cell.params.study]
    return [Row(name, value, axes, source="theory", statistic=kind) for name, kind, value, axes in made(cell.params)]


Made = Iterator[tuple[str, str, float, Mapping[str, object]]]


def _structure(p: Params) -> Made:
    for network in LINKED:
        for distance in p.distances:
            at: dict[str, object] = {"network": network, "distance": distance}
            yield "path_length", "exact", closed.path_length(network, p.kernel, distance), at
        for length in p.lengths:
            for name in ("one", "linked"):
                steps = closed.sequential_steps(network, p.kernel, length, linked=name == "linked")
                at = {"network": network, "length": length, "layers": name}
                yield "sequential_steps", "exact", steps, at
    for where, _, distance in hops(p):
        for network in ("rnn", "attention"):
            yield "path_length", "exact", closed.path_length(network, p.kernel, distance), {"network": network, **where}


def _gradient(p: Params) -> Made:
    for distance in p.distances:
        value = closed.linear_decay_log10(p.decay, distance)
        yield "gradient_kept_log10", "mean", value, {"network": "linear", "distance": distance}


def _recall(p: Params) -> Made:
    for network in TRAINED:
        sizes = {"inputs": p.symbols + 2, "outputs": p.symbols, "kernel": p.kernel}
        count = closed.parameters(network, width_of(p, network), depth_of(p, network), **sizes)
        yield "parameters", "exact", count, {"network": network, "distance": p.distance}
    yield "accuracy", "mean", 1 / p.symbols, {"network": "convs2s_short", "distance": p.distance}


def _time(p: Params) -> Made:
    yield from ()
