"""FLOPs of a head against counting loops, and rounded tables against trying numbers out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from attnrepro.theory import attention_cost as closed

TIMES = ("0.88", "2.34", "7.36", "33.29", "105.15", "348.42")
MULTIPLES = ("1.0", "2.6", "8.3", "37.6", "118.8", "393.8")


def loops(length: int, head_dim: int, projections: int) -> tuple[int, int]:
    """FLOPs of projections and of products with all pairs, one multiply-add at a time."""
    first = second = 0
    for _ in range(projections):
        for _token in range(length):
            for _out in range(head_dim):
                for _in in range(head_dim):
                    first += 2
    for _query in range(length):
        for _key in range(length):
            for _component in range(head_dim):
                second += 2  # dot product
                second += 2  # weighted sum
    return first, second


@pytest.mark.parametrize(("length", "head_dim", "projections"), [(3, 5, 3), (7, 2, 4), (4, 4, 0)])
def test_flops_against_counting_loops(length: int, head_dim: int, projections: int) -> None:
    first, second = loops(length, head_dim, projections)
    assert closed.projection_flops(length, head_dim, projections) == first
    assert closed.score_flops("naive", length, head_dim) == second
    for attention in ("naive", "fused", "numpy"):
        assert closed.flops(attention, projections, "forward", length, head_dim) == first + second
    assert closed.flops("none", projections, "forward", length, head_dim) == first
    # Backward: two products for each product, and the dot products once more where they were not kept.
    assert closed.flops("naive", projections, "backward", length, head_dim) == 2 * (first + second)
    assert closed.flops("fused", projections, "backward", length, head_dim) == 2 * (first + second) + second // 2
    if projections:
        assert closed.score_share(length, head_dim, projections) == Fraction(second, first + second)


def test_an_attention_without_a_backward_pass_is_refused() -> None:
    with pytest.raises(ValueError, match="attention=numpy has no phase backward"):
        closed.score_flops("numpy", 4, 4, "backward")


@pytest.mark.parametrize("projections", [3, 4])
def test_both_parts_are_equal_at_the_crossover(projections: int) -> None:
    length = closed.crossover(projections) * 64
    assert length.denominator == 1
    first, second = loops(int(length) // 8, 8, projections)
    assert first == second


def test_convolutions_that_one_attention_layer_pays_for() -> None:
    for length in (8, 16, 64):
        first, second = loops(length, 8, 3)
        each = sum(2 for _ in range(length) for _tap in range(5) for _in in range(8) for _out in range(8))
        layers = closed.affordable_layers(length, 8, 5)
        assert layers * each <= first + second < (layers + 1) * each
    # Outputs of n layers of five taps see 4 n to either end.
    seen = {0}
    for _ in range(3):
        seen = {i + tap for i in seen for tap in range(-2, 3)}
    assert closed.reach(3, 5) == max(seen) - min(seen)


def test_a_printed_number_covers_half_a_unit_of_its_last_digit() -> None:
    assert closed.covered("2.34") == (Fraction(2335, 1000), Fraction(2345, 1000))
    assert closed.covered("3000") == (Fraction(5999, 2), Fraction(6001, 2))


def agreeing(base: float, times: tuple[str, ...], multiples: tuple[str, ...]) -> int:
    """Multiples that some time of the printed rounding has with ``base``, tried out on a fine grid."""
    count = 0
    for time, multiple in zip(times[1:], multiples[1:], strict=True):
        half = 0.5 * 10.0 ** -len(time.partition(".")[2])
        tried = np.linspace(float(time) - half, float(time) + half, 2001) / base
        lowest, highest = tried.min(), tried.max()
        half = 0.5 * 10.0 ** -len(multiple.partition(".")[2])
        count += bool(lowest <= float(multiple) + half and highest >= float(multiple) - half)
    return count


def test_the_printed_columns_agree_with_one_unrounded_time() -> None:
    most, low, high = closed.most_consistent(TIMES, MULTIPLES)
    assert most == 5 and Fraction("0.875") < low < high < Fraction("0.885")
    tried = np.linspace(0.875, 0.885, 4001)
    good = [base for base in tried if agreeing(base, TIMES, MULTIPLES) == 5]
    assert min(good) == pytest.approx(float(low), abs=3e-6) and max(good) == pytest.approx(float(high), abs=3e-6)


def test_a_multiple_of_another_run_does_not_agree() -> None:
    wrong = (*MULTIPLES[:3], "39.6", *MULTIPLES[4:])
    assert closed.most_consistent(TIMES, wrong)[0] == 4
    assert max(agreeing(base, TIMES, wrong) for base in np.linspace(0.875, 0.885, 2001)) == 4


def test_factors_and_their_steps() -> None:
    factors = closed.doubling_factors(["1", "3", "10.5", "42"])
    assert factors == [3, Fraction(7, 2), 4]
    assert closed.steps_towards(factors) == 2
    assert closed.steps_towards([Fraction(3), Fraction(9, 2), Fraction(3), Fraction(7, 2)]) == 1
    # Two terms: factors rise and never pass 4, whatever the terms.
    for a, b in ((1, 0), (1, 1), (0, 1), (1000, 1)):
        cost = [a * length + b * length**2 for length in (64, 128, 256, 512)]
        two = closed.doubling_factors([str(one) for one in cost])
        assert all(2 <= factor <= 4 for factor in two) and two == sorted(two)
