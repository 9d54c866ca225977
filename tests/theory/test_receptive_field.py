"""Closed forms of receptive fields and of down-sampling, against sets of positions followed layer by layer and sums."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from attnrepro.theory import receptive_field as rf

BYTENET = (1, 2, 4, 8, 16)
STACKS = [*rf.CONVOLUTIONS, "attention_window"]


def inputs_of(stack: str, kernel: int, layers: int, output: int) -> set[int]:
    """Inputs that an output depends on, position by position, on an input without ends."""
    half, seen = kernel // 2, {output}
    for index in reversed(range(layers)):
        if stack == "stride_k":
            seen = {place * kernel + offset for place in seen for offset in range(kernel)}
            continue
        if stack == "pooled":
            seen = {2 * place + offset for place in seen for offset in (0, 1)}
        rate = {"dilation_kl": kernel**index, "dilation_2l": 2**index, "bytenet": BYTENET[index % 5], "gapped": kernel}
        step = rate.get(stack, 1)
        seen = {place + step * offset for place in seen for offset in range(-half, half + 1)}
    return seen


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_fields_are_those_of_sets_of_positions(stack: str, kernel: int) -> None:
    for layers in range(1, 13):
        if rf.span(stack, kernel, layers) > 5000:
            break
        seen, following = (inputs_of(stack, kernel, layers, output) for output in (0, 1))
        assert rf.field(stack, kernel, layers) == len(seen)
        assert rf.span(stack, kernel, layers) == max(seen) - min(seen) + 1
        assert rf.jump(stack, kernel, layers) == min(following) - min(seen)


@pytest.mark.parametrize("stack", [s for s in STACKS if s != "gapped"])
@pytest.mark.parametrize("kernel", [3, 5])
def test_layers_are_found_by_trying_every_depth(stack: str, kernel: int) -> None:
    for distance in [*range(1, 41), 63, 64, 65, 128]:
        for reading in ("middle",) if stack in rf.COARSE else ("middle", "direct"):
            layers = 0
            found = False
            while not found:
                layers += 1
                seen = inputs_of(stack, kernel, layers, 0)
                found = distance in seen if reading == "direct" else any(p + distance in seen for p in seen)
            assert rf.layers_needed(stack, kernel, distance, reading) == layers, (distance, reading)


@pytest.mark.parametrize("stack", ["stride1", "stride_k", "pooled", "dilation_2l"])
def test_pairs_that_meet_are_counted_over_one_period(stack: str) -> None:
    for kernel, layers in ((3, 1), (3, 3), (5, 2), (5, 3)):
        step = rf.jump(stack, kernel, layers)
        around = [inputs_of(stack, kernel, layers, output) for output in range(-40, 41)]
        for distance in (1, 2, 5, 7, 11, 16, 24, 40):
            meeting = sum(any(i in seen and i + distance in seen for seen in around) for i in range(step))
            assert rf.pairs_meeting(stack, kernel, layers, distance) == pytest.approx(meeting / step), distance


def test_values_known_by_hand() -> None:
    assert [rf.layers_needed("stride1", 5, d, "middle") for d in (16, 64, 256, 1024)] == [4, 16, 64, 256]
    assert [rf.layers_needed("stride1", 5, d, "direct") for d in (16, 64, 256, 1024)] == [8, 32, 128, 512]
    assert [rf.field("stride1", 3, n) for n in range(1, 6)] == [3, 5, 7, 9, 11]
    assert [rf.field("dilation_2l", 3, n) for n in (6, 10)] == [127, 2047]
    assert rf.field("bytenet", 3, 30) == 1 + 6 * 62
    assert rf.layers_needed("attention", 3, 10**6, "direct") == 1
    assert rf.effective_sd(5, 256, "uniform") == pytest.approx(math.sqrt(512))
    assert rf.edge_weight_log10(5, 2) == pytest.approx(math.log10(1 / 25))
    assert rf.alias_frequency(1.25) == 0.75 and rf.alias_frequency(2.25) == 0.25 and rf.alias_frequency(0.5) == 0.5


@pytest.mark.parametrize("kernel", [3, 5, 9])
def test_equal_weights_by_repeated_convolution(kernel: int) -> None:
    weight = np.ones(1)
    for layers in range(1, 31):
        weight = np.convolve(weight, np.full(kernel, 1 / kernel))
        offsets = np.arange(len(weight)) - len(weight) // 2
        assert rf.effective_sd(kernel, layers, "uniform") == pytest.approx(math.sqrt(weight @ offsets**2))
        assert rf.edge_weight_log10(kernel, layers) == pytest.approx(math.log10(weight[0]))
        for share in (Fraction(1, 2), Fraction(95, 100)):
            width = rf.central_width(kernel, layers, share)
            inside = [weight[np.abs(offsets) <= half].sum() for half in (width // 2, width // 2 - 1)]
            assert inside[0] >= float(share) - 1e-12 and (width == 1 or inside[1] < share)


@pytest.mark.parametrize("kernel", [3, 5])
def test_variance_of_random_kernels(kernel: int) -> None:
    """Moments of Dirichlet(1, ..., 1) from scipy, and the squared gradient of signed kernels as a square of sums."""
    offsets = np.arange(kernel) - kernel // 2
    dirichlet = stats.dirichlet(np.ones(kernel))
    of_mean = offsets @ dirichlet.cov() @ offsets
    about_own_mean = dirichlet.mean() @ offsets**2 - of_mean
    assert rf.variance_per_layer(kernel, "positive") == pytest.approx(about_own_mean)
    # Two layers of independent weights: E[(sum of products)^2] is the sum of the products of squares.
    expected = dict.fromkeys(range(-kernel, kernel + 1), 0.0)
    for a in offsets:
        for b in offsets:
            expected[int(a + b)] += 1 / kernel**2
    squared = sum(weight * place**2 for place, weight in expected.items())
    assert rf.effective_sd(kernel, 2, "signed") == pytest.approx(math.sqrt(squared))


@pytest.mark.parametrize("factor", [2, 3, 5])
@pytest.mark.parametrize("frequency", [0.25, 0.75, 1.25, 1.5, 1.9])
def test_down_sampled_sines_by_sums_over_phases(factor: int, frequency: float) -> None:
    phases = 2 * math.pi * np.arange(64) / 64
    angle = math.pi * frequency / factor

    def sine(place: float) -> np.ndarray:
        return np.cos(angle * place + phases)

    block = [sine(j) for j in range(factor)]
    for method, value in (("stride", block[0]), ("average", sum(block) / factor)):
        kept = np.mean(value**2) / np.mean(block[0] ** 2)
        assert rf.energy_kept(method, factor, frequency) == pytest.approx(kept)
        wrong = np.mean([(value - x) ** 2 for x in block]) / np.mean(block[0] ** 2)
        assert rf.repeat_error(method, factor, frequency) == pytest.approx(wrong)
        # A sine of amplitude g and the right or another frequency in place of one of amplitude 1.
        gain = math.sqrt(kept)
        error = (1 - gain) ** 2 if frequency < 1 else 1 + gain**2
        assert rf.interpolation_error(method, factor, frequency) == pytest.approx(error)
    samples = [math.cos(angle * factor * m) for m in range(9)]
    alias = rf.alias_frequency(frequency)
    assert 0 <= alias <= 1
    assert samples == pytest.approx([math.cos(math.pi * alias * m) for m in range(9)])


def test_what_a_strided_convolution_loses_is_its_missing_rank() -> None:
    draws = np.random.default_rng(0)
    for factor in (2, 5):
        for channels in range(1, factor + 2):
            rank = np.linalg.matrix_rank(draws.normal(size=(channels, factor)))
            assert rf.lost_share(factor, channels) == pytest.approx(1 - rank / factor)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rf.field("stride1", 4, 1), "kernel=4 must be odd"),
        (lambda: rf.field("stride1", 1, 1), "kernel=1 must be odd and 3 or more"),
        (lambda: rf.field("stride1", 3, 0), "layers=0 must be 1 or more"),
        (lambda: rf.field("attention", 3, 1), "stack=attention has no receptive field"),
        (lambda: rf.layers_needed("stride_k", 3, 4, "direct"), "has no number of layers for the reading direct"),
        (lambda: rf.layers_needed("gapped", 3, 4, "middle"), "has no number of layers"),
        (lambda: rf.layers_needed("stride1", 3, 4, "both"), "reading=both must be one of middle, direct"),
        (lambda: rf.layers_needed("stride1", 3, 0, "middle"), "distance=0 positive"),
        (lambda: rf.variance_per_layer(3, "normal"), "weights=normal must be uniform, signed or positive"),
        (lambda: rf.central_width(3, 2, Fraction(0)), "share=0 must be above 0"),
        (lambda: rf.energy_kept("max", 2, 0.5), "method=max must be average or stride"),
        (lambda: rf.lost_share(2, 0), "channels=0 must be 1 or more"),
    ],
)
def test_impossible_questions_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
