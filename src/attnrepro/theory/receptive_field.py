"""How far stacks of convolutions see: layers, receptive fields, their effective width, and what pooling throws away.

Kernels are odd, ``layers`` counts from 1, distances and widths are in input positions, and everything is about outputs
far from the ends of the input. The stacks, by their names here:

========================  =============================================================================
``stride1``               stride 1, dilation 1 (ConvS2S)
``stride_k``              stride = kernel: every layer makes one position of ``kernel`` neighbours
``dilation_kl``           stride 1, dilation kernel^l in layer l = 0, 1, ...
``dilation_2l``           stride 1, dilation 2^l (WaveNet without its limit)
``bytenet``               dilation 1, 2, 4, 8, 16 and again from 1 (ByteNet, one convolution a block)
``pooled``                stride 1, then the mean of 2 neighbours with stride 2 (one layer: both)
``gapped``                dilation = kernel in every layer: sees positions ``kernel`` apart and none between
``attention``             every position attends to every position
``attention_window``      every position attends to the ``kernel`` positions around it
========================  =============================================================================

Sources: Araujo, Norris and Sim 2019, Computing Receptive Fields of Convolutional Neural Networks (Distill), section 2;
Yu and Koltun 2016, Multi-Scale Context Aggregation by Dilated Convolutions, section 2; Kalchbrenner et al. 2016, Neural
Machine Translation in Linear Time (dilation); documents 000 (cost of length) and 004 (sections 1 and 2.2).
"""

import math
from fractions import Fraction

# ByteNet's rates before it starts again from 1, and what they add up to.
RATES = 5
SUM_OF_RATES: int = 2**RATES - 1

CONVOLUTIONS = ("stride1", "stride_k", "dilation_kl", "dilation_2l", "bytenet", "pooled", "gapped")
ATTENTIONS = ("attention", "attention_window")
# Stacks whose outputs are further apart than their inputs.
COARSE = ("stride_k", "pooled")
READINGS = ("middle", "direct")


def field(stack: str, kernel: int, layers: int) -> int:
    """Inputs that one output depends on after ``layers`` layers.

    Raises:
        ValueError: a stack without a finite field (``attention``) or an even kernel.
    """
    _check(kernel, layers)
    if stack in ("stride1", "attention_window", "gapped"):
        return 1 + layers * (kernel - 1)
    if stack in ("stride_k", "dilation_kl"):
        return _power(kernel, layers)
    if stack == "pooled":
        return 1 + kernel * (_power(2, layers) - 1)
    return 1 + (kernel - 1) * _sum_of_rates(stack, layers)


def span(stack: str, kernel: int, layers: int) -> int:
    """Positions from the first to the last input of the field, those in between that it does not see included."""
    if stack == "gapped":
        return 1 + layers * (kernel - 1) * kernel
    return field(stack, kernel, layers)


def jump(stack: str, kernel: int, layers: int) -> int:
    """Input positions from one output to the next: what a stack gives up of its resolution."""
    _check(kernel, layers)
    return _power({"stride_k": kernel, "pooled": 2}.get(stack, 1), layers)


def layers_needed(stack: str, kernel: int, distance: int, reading: str) -> int:
    """Fewest layers that let two positions ``distance`` apart interact.

    Reading ``middle``: some output, between the two, depends on both, so that field >= distance + 1. Reading
    ``direct``: output i depends on input i + distance, which is what attention does in its one layer: half a field,
    (field - 1) / 2 >= distance.

    Raises:
        ValueError: ``direct`` for a stack that has no output for every input, or a stack with gaps.
    """
    _check(kernel, 1)
    if reading not in READINGS or distance < 1:
        raise ValueError(f"reading={reading} must be one of {', '.join(READINGS)}, and distance={distance} positive")
    if stack == "attention":
        return 1
    if stack == "gapped" or (stack in COARSE and reading == "direct"):
        raise ValueError(f"stack={stack} has no number of layers for the reading {reading}")
    wanted = distance if reading == "middle" else 2 * distance
    if stack in ("stride1", "attention_window"):
        return -(-wanted // (kernel - 1))
    if stack in ("stride_k", "dilation_kl"):
        return _log_up(kernel, wanted + 1)
    if stack == "pooled":
        return _log_up(2, -(-wanted // kernel) + 1)
    rates = -(-wanted // (kernel - 1))
    if stack == "dilation_2l":
        return _log_up(2, rates + 1)
    sets, rest = divmod(rates, SUM_OF_RATES)
    return RATES * sets + _log_up(2, rest + 1)


def pairs_meeting(stack: str, kernel: int, layers: int, distance: int) -> float:
    """Share of the pairs (i, i + distance) that some output sees together.

    Fields start every `jump` positions. A pair is in the same field if it lies in the first field - distance places
    after one of these starts.
    """
    room = field(stack, kernel, layers) - distance
    step = jump(stack, kernel, layers)
    return min(max(room, 0), step) / step


def variance_per_layer(kernel: int, weights: str) -> float:
    """What one layer of stride 1 adds to the squared width of an output's gradient.

    The gradient of an output is the product of the layers' kernels, a convolution of ``layers`` of them, so that
    variances add. ``uniform`` (all weights equal): (kernel^2 - 1) / 12. ``signed`` (independent, mean 0, in any number
    of channels): the same for the expected squared gradient, because the cross terms vanish. ``positive`` (independent
    exponential weights): a kernel in proportion to its sum is Dirichlet(1, ..., 1), whose expected variance about its
    own mean is smaller by the variance of that mean, a factor kernel / (kernel + 1).

    Raises:
        ValueError: weights of another kind, or an even kernel.

    Source: Luo et al. 2016, Understanding the Effective Receptive Field in Deep CNNs, sections 2.1 to 2.3 (uniform and
    random weights); the factor of the Dirichlet from its second moments, for example Kotz et al. 2000, section 49.1.
    """
    _check(kernel, 1)
    if weights not in ("uniform", "signed", "positive"):
        raise ValueError(f"weights={weights} must be uniform, signed or positive")
    full = (kernel**2 - 1) / 12
    return full * kernel / (kernel + 1) if weights == "positive" else full


def effective_sd(kernel: int, layers: int, weights: str) -> float:
    """Width (root mean square distance from the middle) of an output's gradient: it grows with the root of the depth.

    Of ``positive`` weights the distance is from the gradient's own mean; see `variance_per_layer`.
    """
    _check(kernel, layers)
    return math.sqrt(layers * variance_per_layer(kernel, weights))


def central_width(kernel: int, layers: int, share: Fraction) -> int:
    """Positions around the middle that hold at least ``share`` of the gradient when all weights are equal.

    Counted exactly: the gradient is in proportion to the coefficients of (1 + x + ... + x^(kernel - 1))^layers.

    Raises:
        ValueError: an even kernel or a share that is not between 0 and 1.
    """
    _check(kernel, layers)
    if not 0 < share <= 1:
        raise ValueError(f"share={share} must be above 0 and at most 1")
    counts = [1]
    for _ in range(layers):
        longer = [0] * (len(counts) + kernel - 1)
        for place, count in enumerate(counts):
            for offset in range(kernel):
                longer[place + offset] += count
        counts = longer
    middle, total = len(counts) // 2, sum(counts)
    inside, half = counts[middle], 0
    while inside * share.denominator < share.numerator * total:
        half += 1
        inside += counts[middle - half] + counts[middle + half]
    return 2 * half + 1


def edge_weight_log10(kernel: int, layers: int) -> float:
    """log10 of the share of the gradient at either end of the field when all weights are equal: kernel^-layers."""
    _check(kernel, layers)
    return -layers * math.log10(kernel)


def gain(factor: int, frequency: float) -> float:
    """What the mean of ``factor`` neighbours makes of the amplitude of a sine, with its sign.

    ``frequency`` is in units of the Nyquist frequency after down-sampling, 1 / (2 factor) cycles a sample:
    sin(pi r / 2) / (factor sin(pi r / (2 factor))), the Dirichlet kernel.

    Source: Oppenheim and Schafer 2010, Discrete-Time Signal Processing, section 2.6 (moving average).
    """
    return math.sin(math.pi * frequency / 2) / (factor * math.sin(math.pi * frequency / (2 * factor)))


def energy_kept(method: str, factor: int, frequency: float) -> float:
    """Mean square of a down-sampled sine relative to that of the sine, over all phases.

    ``method``: ``stride`` takes every ``factor``-th sample, ``average`` the mean of each ``factor``.
    """
    return gain(factor, frequency) ** 2 if _is_average(method) else 1.0


def alias_frequency(frequency: float) -> float:
    """Frequency at which a sine appears after down-sampling, both in units of the new Nyquist frequency: at most 1."""
    return 2 * abs(frequency / 2 - round(frequency / 2))


def repeat_error(method: str, factor: int, frequency: float) -> float:
    """Squared error, relative to the sine's energy, when every down-sampled value is repeated ``factor`` times.

    Of the mean it is a projection, 1 - gain^2. Of the first of each ``factor`` samples it is
    2 - 2 mean_j cos(2 pi f j).
    """
    if _is_average(method):
        return 1 - gain(factor, frequency) ** 2
    mean_cos = gain(factor, frequency) * math.cos(math.pi * (factor - 1) * frequency / (2 * factor))
    return 2 - 2 * mean_cos


def interpolation_error(method: str, factor: int, frequency: float) -> float:
    """Squared error relative to the sine's energy when the samples are interpolated band-limited (sinc).

    Below the new Nyquist frequency only the gain is missing, (1 - gain)^2; above it the sine is lost and its alias
    is added to that, 1 + gain^2. Shannon 1949, Proc. IRE 37.
    """
    kept = gain(factor, frequency) if _is_average(method) else 1.0
    return (1 - kept) ** 2 if frequency < 1 else 1 + kept**2


def lost_share(factor: int, channels: int) -> float:
    """Share of white noise that no linear map brings back from a convolution of stride = kernel = ``factor``.

    ``channels`` numbers are kept of each ``factor``: the rest is a projection of rank factor - channels.
    """
    if min(factor, channels) < 1:
        raise ValueError(f"factor={factor} and channels={channels} must be 1 or more")
    return max(0.0, 1 - channels / factor)


def _is_average(method: str) -> bool:
    if method not in ("average", "stride"):
        raise ValueError(f"method={method} must be average or stride")
    return method == "average"


def _sum_of_rates(stack: str, layers: int) -> int:
    if stack == "dilation_2l":
        return _power(2, layers) - 1
    if stack == "bytenet":
        sets, rest = divmod(layers, RATES)
        return sets * SUM_OF_RATES + _power(2, rest) - 1
    raise ValueError(f"stack={stack} has no receptive field of its own")


def _power(base: int, exponent: int) -> int:
    return int(base**exponent)


def _log_up(base: int, number: int) -> int:
    """Smallest n with base^n >= number, in whole numbers."""
    n, power = 0, 1
    while power < number:
        n, power = n + 1, power * base
    return n


def _check(kernel: int, layers: int) -> None:
    if kernel < 3 or kernel % 2 == 0:
        raise ValueError(f"kernel={kernel} must be odd and 3 or more")
    if layers < 1:
        raise ValueError(f"layers={layers} must be 1 or more")
