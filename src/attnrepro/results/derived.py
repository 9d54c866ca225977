"""Lines that a table derives from the values of its seeds."""

import math
from collections.abc import Sequence


def over_seeds(values: Sequence[float]) -> dict[str, object]:
    """Mean, interval and standard deviation of one value a seed, as columns of a derived line.

    Without values everything is NaN and n is 0; the deviation of a single value is NaN.
    """
    import numpy as np

    from attnrepro import stats

    line: dict[str, object] = {"n": len(values), "estimate": math.nan, "sd": math.nan, "seeds": tuple(values)}
    if values:
        interval = stats.mean_interval(values)
        line |= {"estimate": interval.value, "ci_low": interval.low, "ci_high": interval.high}
    if len(values) > 1:
        # Equal values have none at all, whatever the rounding of their mean.
        line["sd"] = float(np.std(values, ddof=1)) if len(set(values)) > 1 else 0.0
    return line
