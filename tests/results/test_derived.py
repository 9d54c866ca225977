"""Mean, interval and deviation over seeds, against scipy."""

import math

import numpy as np
import pytest
from scipy import stats as reference

from attnrepro.results.derived import over_seeds


def test_over_seeds_is_the_t_interval() -> None:
    values = [0.25, -1.5, 3.0, 0.75, 2.0]
    line = over_seeds(values)
    low, high = reference.t.interval(0.95, 4, np.mean(values), reference.sem(values))
    assert (line["n"], line["seeds"]) == (5, tuple(values))
    assert [line[k] for k in ("estimate", "sd", "ci_low", "ci_high")] == pytest.approx(
        [np.mean(values), np.std(values, ddof=1), low, high]
    )


def test_equal_values_have_no_deviation_and_none_are_not_a_number() -> None:
    assert over_seeds([0.1] * 3)["sd"] == 0.0
    assert over_seeds([0.1])["estimate"] == 0.1 and math.isnan(float(str(over_seeds([0.1])["sd"])))
    empty = over_seeds([])
    assert empty["n"] == 0 and math.isnan(float(str(empty["estimate"]))) and "ci_low" not in empty
