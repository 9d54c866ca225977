"""Recurrence, causal convolution and attention over a sequence, many seeds stacked, and readers built of them.

Tokens are ``[seeds, n, length, components]``; every layer has parameters ``[seeds, ...]``, a start from each stream,
and ``read``, its output at the last position.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from attnrepro.nn.conv_stack import dilation
from attnrepro.nn.position import random_orthogonal
from attnrepro.theory import sequence_costs

# A state: h ``[seeds, n, width]``, of an LSTM with its cell c.
State = tuple[Tensor, ...]
Streams = Sequence[torch.Generator]


def uniform(streams: Streams, shape: Sequence[int], bound: float) -> Tensor:
    """``[seeds, *shape]`` between -bound and bound."""
    drawn = [torch.rand(*shape, generator=s, device=s.device, dtype=torch.float64) for s in streams]
    return (torch.stack(drawn) * 2 - 1) * bound


class Recurrent(nn.Module):
    """Elman network, GRU or LSTM with torch's formulas and start, uniform between -+1/sqrt(width).

    ``w_in`` ``[seeds, inputs, gates * width]``, ``w_state`` ``[seeds, width, gates * width]`` and two biases; gates in
    torch's order (GRU: reset, update, new; LSTM: input, forget, cell, output).

    Args:
        kind: one of ``sequence_costs.GATES``.
        streams: a random stream for each seed.
        inputs: components of a token.
        width: components of the state.
        span: only for ``lstm_chrono``: positions that its gates are to stay open for; the forget bias starts as
            log U(1, span), the input bias as minus that.

    Raises:
        ValueError: an unknown kind.

    Source: torch.nn.RNN, GRU and LSTM; Tallec and Ollivier 2018, Can Recurrent Neural Networks Warp Time, section 2.
    """

    def __init__(self, kind: str, streams: Streams, inputs: int, width: int, *, span: int = 2) -> None:
        super().__init__()
        if kind not in sequence_costs.GATES:
            raise ValueError(f"kind={kind} must be one of {', '.join(sequence_costs.GATES)}")
        self.kind, self.width = kind, width
        rows = sequence_costs.GATES[kind] * width
        shapes = [(inputs, rows), (width, rows), (rows,), (rows,)]
        w_in, w_state, b_in, b_state = (uniform(streams, shape, 1 / math.sqrt(width)) for shape in shapes)
        if kind == "lstm_chrono":
            opened = torch.log(1 + (max(span, 2) - 1) * (uniform(streams, (width,), 0.5) + 0.5))
            b_in[:, :width], b_in[:, width : 2 * width] = -opened, opened
            b_state[:, : 2 * width] = 0
        made = (w_in, w_state, b_in, b_state)
        self.w_in, self.w_state, self.b_in, self.b_state = (nn.Parameter(p.float()) for p in made)

    def start(self, n: int) -> State:
        """The state before the first token: zeros."""
        zeros = self.w_state.new_zeros(len(self.w_state), n, self.width)
        return (zeros, zeros) if self.kind.startswith("lstm") else (zeros,)

    def step(self, x: Tensor, state: State) -> State:
        """The state after a token ``[seeds, n, inputs]``."""
        return self._next(self._seen(x), state)

    def forward(self, x: Tensor) -> Tensor:
        """The states after every token, ``[seeds, n, length, width]``."""
        return torch.stack([state[0] for state in self._states(x)], 2)

    def read(self, x: Tensor) -> Tensor:
        """The state after the last token, ``[seeds, n, width]``."""
        return self._states(x)[-1][0]

    def _states(self, x: Tensor) -> list[State]:
        """The state after every token, what is seen of the tokens worked out beforehand in one product."""
        seen = self._seen(x.flatten(1, 2)).reshape(*x.shape[:3], -1)
        states = [self.start(x.shape[1])]
        for part in seen.unbind(2):
            states.append(self._next(part, states[-1]))
        return states[1:]

    def _seen(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.b_in[:, None], x, self.w_in)

    def _next(self, seen: Tensor, state: State) -> State:
        h = state[0]
        own = torch.baddbmm(self.b_state[:, None], h, self.w_state)
        if self.kind == "rnn":
            return (torch.tanh(seen + own),)
        if self.kind == "gru":
            gates = torch.sigmoid(seen[..., : 2 * self.width] + own[..., : 2 * self.width])
            reset, update = gates.chunk(2, -1)
            new = torch.tanh(seen[..., 2 * self.width :] + reset * own[..., 2 * self.width :])
            return (new + update * (h - new),)
        put, forget, cell, out = (seen + own).chunk(4, -1)
        c = torch.sigmoid(forget) * state[1] + torch.sigmoid(put) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(c), c


class LinearRecurrence(nn.Module):
    """h_t = decay Q h_(t-1) + x_t with a random orthogonal Q, nothing to be learned.

    decay Q is ``[seeds, width, width]`` and in float64, in which a thousand steps keep its norm to 1e-12.
    """

    def __init__(self, streams: Streams, width: int, decay: float) -> None:
        super().__init__()
        self.width = width
        made = [random_orthogonal(width, width, stream, dtype=torch.float64) for stream in streams]
        self.turn = nn.Buffer(decay * torch.stack(made))

    def start(self, n: int) -> State:
        """The state before the first token: zeros."""
        return (self.turn.new_zeros(len(self.turn), n, self.width),)

    def step(self, x: Tensor, state: State) -> State:
        """The state after a token ``[seeds, n, width]``."""
        return (x + state[0] @ self.turn,)

    def read(self, x: Tensor) -> Tensor:
        """The state after the last token, ``[seeds, n, width]``."""
        state = self.start(x.shape[1])
        for part in x.unbind(2):
            state = self.step(part, state)
        return state[0]

    def scan(self, x: Tensor, mark: Callable[[Tensor], Tensor] = lambda round_: round_) -> Tensor:
        """The states after every token, ``[seeds, n, length, width]``, in ceil(log2 length) rounds.

        In round r every position adds what stood 2^r positions before it, turned by the 2^r-th power of decay Q. What
        comes out of a round goes through ``mark``.

        Source: Hillis and Steele 1986, Data parallel algorithms, CACM 29 (prefix sums by doubling); Martin and Cundy
        2018, Parallelizing Linear Recurrent Neural Nets Over Sequence Length.
        """
        power: Tensor = self.turn
        reach = 1
        while reach < x.shape[2]:
            x = mark(x + pad(x, (0, 0, reach, 0))[:, :, : x.shape[2]] @ power[:, None])
            power, reach = power @ power, 2 * reach
        return x


class CausalConvs(nn.Module):
    """Layers ``(x + tanh(convolution of x)) / sqrt(2)`` that look back, padded with zeros before the first position.

    ``weights`` has a kernel ``[seeds, width, width, kernel]`` a layer; its start keeps the variance of activations and
    gradients, as ConvS2S sets out to: uniform with variance 1 / (kernel * width), biases 0.

    Args:
        stack: ``stride1`` or ``bytenet``, the dilations of ``attnrepro.nn.conv_stack``.

    Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning, sections 3.2 and 3.5 (skip connections
    and their factor; tanh, as in the Elman network, stands for their gated linear unit, and its start is the critical
    one of Schoenholz et al. 2017); Kalchbrenner et al. 2016 (dilation).
    """

    def __init__(self, stack: str, streams: Streams, width: int, kernel: int, depth: int) -> None:
        super().__init__()
        self.rates = [dilation(stack, kernel, index) for index in range(depth)]
        bound = math.sqrt(3 / (kernel * width))
        made = [uniform(streams, (width, width, kernel), bound).float() for _ in range(depth)]
        self.weights = nn.ParameterList(made)
        self.biases = nn.ParameterList(torch.zeros(len(streams), width) for _ in range(depth))

    def forward(self, x: Tensor, mark: Callable[[Tensor], Tensor] = lambda layer: layer) -> Tensor:
        """``[seeds, n, length, width]`` alike; what comes out of a layer goes through ``mark``."""
        seeds, n, length, width = x.shape
        y = x.permute(1, 0, 3, 2).reshape(n, seeds * width, length)
        for weight, bias, rate in zip(self.weights, self.biases, self.rates, strict=True):
            back = pad(y, (rate * (weight.shape[-1] - 1), 0))
            new = conv1d(back, weight.flatten(0, 1), bias.flatten(), dilation=rate, groups=seeds)
            y = mark((y + torch.tanh(new)) * math.sqrt(0.5))
        return y.reshape(n, seeds, width, length).permute(1, 0, 3, 2)

    def read(self, x: Tensor) -> Tensor:
        """The output at the last position, ``[seeds, n, width]``."""
        out: Tensor = self(x)[:, :, -1]
        return out


class AttentionLayer(nn.Module):
    """One head of attention, W_Q, W_K, W_V and W_O ``[seeds, width, width]`` with the start of torch's nn.Linear."""

    def __init__(self, streams: Streams, width: int) -> None:
        super().__init__()
        made = uniform(streams, (4, width, width), 1 / math.sqrt(width)).float()
        self.w_query, self.w_key, self.w_value, self.w_out = (nn.Parameter(part.clone()) for part in made.unbind(1))

    def attend(self, asking: Tensor, x: Tensor) -> Tensor:
        """Outputs ``[seeds, n, m, width]`` of m asking tokens over ``[seeds, n, length, width]``."""
        query, key, value = (
            tokens @ w[:, None] for tokens, w in ((asking, self.w_query), (x, self.w_key), (x, self.w_value))
        )
        weights = torch.softmax(query @ key.mT / math.sqrt(x.shape[-1]), -1)
        return weights @ value @ self.w_out[:, None]

    def read(self, x: Tensor) -> Tensor:
        """The output at the last position, which may see all, ``[seeds, n, width]``."""
        return self.attend(x[:, :, -1:], x)[:, :, 0]


class Reader(nn.Module):
    """A network that reads tokens and answers at the last: logits ``[seeds, n, outputs]``.

    Recurrent networks read the tokens themselves; convolutions and attention an embedding of them. Attention adds the
    last token to what it found, as a transformer does; the other networks have theirs by construction.

    Raises:
        ValueError: a network that is not trained.
    """

    def __init__(
        self, network: str, streams: Streams, *, inputs: int, width: int, outputs: int, kernel: int, distance: int
    ) -> None:
        super().__init__()
        self.network = network
        depth = sequence_costs.layers(network, kernel, distance)
        if network in sequence_costs.GATES:
            self.embed: nn.ParameterList | None = None
            self.layer: Recurrent | CausalConvs | AttentionLayer
            self.layer = Recurrent(network, streams, inputs, width, span=distance + 1)
        elif network in (*sequence_costs.STACKS, "attention"):
            bound = 1 / math.sqrt(inputs)
            self.embed = nn.ParameterList(uniform(streams, s, bound).float() for s in ((inputs, width), (1, width)))
            if network == "attention":
                self.layer = AttentionLayer(streams, width)
            else:
                self.layer = CausalConvs(sequence_costs.STACKS[network], streams, width, kernel, depth)
        else:
            raise ValueError(f"network={network} must be one that is trained")
        bound = 1 / math.sqrt(width)
        self.head = nn.ParameterList(uniform(streams, s, bound).float() for s in ((width, outputs), (1, outputs)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of tokens ``[seeds, n, length, inputs]``."""
        if self.embed is not None:
            x = x @ self.embed[0][:, None] + self.embed[1][:, None]
        found = self.layer.read(x)
        if self.network == "attention":
            found = found + x[:, :, -1]
        logits: Tensor = found @ self.head[0] + self.head[1]
        return logits
