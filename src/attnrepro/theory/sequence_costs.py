"""How far apart two positions are in a network, how many of its steps wait for each other, and its parameters.

All layers are causal: an output depends on positions up to its own. The networks, by their names here:

=================  ====================================================================================
``rnn``            tanh(W x + U h)                                                  (Elman 1990)
``gru``            gated recurrent unit                                             (Cho et al. 2014)
``lstm``           long short-term memory                                           (Hochreiter and Schmidhuber 1997)
``lstm_chrono``    the same, started with gates that stay open for as long as the sequence (Tallec and Ollivier 2018)
``linear``         h = decay Q h + x with an orthogonal Q, step by step
``scan``           the same recurrence by doubling: all positions at once, in rounds (Hillis and Steele 1986)
``convs2s``        convolutions of stride 1 in a stack                              (Gehring et al. 2017)
``bytenet``        dilation 1, 2, 4, 8, 16 and again from 1                         (Kalchbrenner et al. 2016)
``convs2s_short``  one layer fewer than would reach: a control
``attention``      every position attends to every other                            (Vaswani et al. 2017)
=================  ====================================================================================

Source: Vaswani et al. 2017, Attention Is All You Need, section 4 and table 1; documents 002 and 003 (section 8), 004
(section 1).
"""

import math

from attnrepro.theory import receptive_field

GATES = {"rnn": 1, "gru": 3, "lstm": 4, "lstm_chrono": 4}
STACKS = {"convs2s": "stride1", "bytenet": "bytenet", "convs2s_short": "stride1"}
RECURRENT = (*GATES, "linear")
NETWORKS = (*RECURRENT, "scan", *STACKS, "attention")


def path_length(network: str, kernel: int, distance: int) -> int:
    """Fewest steps that carry something from one position to one ``distance`` later.

    A step is a hand-over of the state, a layer, or a round of the scan. A causal convolution of ``kernel`` reaches
    kernel - 1 positions back, as far as the field of one with the same kernel around its middle is wide.

    Raises:
        ValueError: a network without a path at that distance, an even kernel, or a distance below 1.
    """
    if network not in NETWORKS or network == "convs2s_short":
        known = ", ".join(name for name in NETWORKS if name != "convs2s_short")
        raise ValueError(f"network={network} must be one of {known}")
    if distance < 1:
        raise ValueError(f"distance={distance} must be 1 or more")
    if network in RECURRENT:
        return distance
    if network == "scan":
        return rounds(distance + 1)
    if network == "attention":
        return 1
    return receptive_field.layers_needed(STACKS[network], kernel, distance, "middle")


def rounds(length: int) -> int:
    """Rounds of a scan by doubling over ``length`` positions: after r of them an output knows its last 2^r inputs."""
    if length < 1:
        raise ValueError(f"length={length} must be 1 or more")
    return (length - 1).bit_length()


def sequential_steps(network: str, kernel: int, length: int, *, linked: bool) -> int:
    """Steps that have to be taken one after the other, however many processors there are.

    ``linked``: of as many layers as it takes until the last output depends on the first input; else of one layer.
    """
    if length < 2:
        raise ValueError(f"length={length} must be 2 or more")
    if network in RECURRENT:
        return length
    if network == "scan":
        return rounds(length)
    return path_length(network, kernel, length - 1) if linked else 1


def layers(network: str, kernel: int, distance: int) -> int:
    """Layers that a network is built with to bridge ``distance``; ``convs2s_short`` has one too few."""
    if network == "convs2s_short":
        return path_length("convs2s", kernel, distance) - 1
    return path_length(network, kernel, distance) if network in STACKS else 1


def parameters(network: str, width: int, depth: int, *, inputs: int, outputs: int, kernel: int) -> int:
    """Weights and biases of a network that reads ``inputs`` components a token and ends in ``outputs`` logits.

    Recurrent: two matrices and two biases for each gate, as torch has them. Convolutions: an embedding and ``depth``
    layers with a bias. Attention: an embedding and W_Q, W_K, W_V, W_O. All: a linear readout.

    Raises:
        ValueError: a network that is not trained.
    """
    readout = width * outputs + outputs
    if network in GATES:
        return GATES[network] * (inputs * width + width**2 + 2 * width) + readout
    embedding = inputs * width + width
    if network == "attention":
        return embedding + 4 * width**2 + readout
    if network in STACKS:
        return embedding + depth * (kernel * width**2 + width) + readout
    raise ValueError(f"network={network} must be one that is trained")


def width_for(network: str, budget: int, depth: int, *, inputs: int, outputs: int, kernel: int) -> int:
    """The width with which the number of parameters comes nearest to ``budget``; the smaller of two."""

    def distance(width: int) -> int:
        return abs(parameters(network, width, depth, inputs=inputs, outputs=outputs, kernel=kernel) - budget)

    width = 1
    while distance(width + 1) < distance(width):
        width += 1
    return width


def linear_decay_log10(decay: float, distance: int) -> float:
    """log10 of what is left of a gradient after ``distance`` steps h -> decay Q h, Q orthogonal: decay^distance."""
    if not 0 < decay <= 1:
        raise ValueError(f"decay={decay} must be above 0 and at most 1")
    return distance * math.log10(decay)
