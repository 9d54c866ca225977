"""receptive_field, read: growth laws, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import panel
from attnrepro.tables.receptive_field.table import AXES, SHARE
from attnrepro.theory import receptive_field as closed

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "monte_carlo"]

# Rows that other rows are made from, not shown in the table.
HIDDEN = ("correlation_sq",)
# Growth of a field is read off at multiples of so many layers, where ByteNet's rates start again.
PERIOD = closed.RATES
# An exact count or closed form may be off by rounding.
TOLERANCE = 1e-9
# What an exponent of a random stack may be off, beside its interval.
EXPONENT_TOLERANCE = 0.005


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Widths of random stacks, judged against theory together; depths of one stack share their first layers."""
    chosen = frame[(frame.quantity == "effective_sd") & (frame.statistic == "rms") & frame.theory.notna()]
    return chosen, float(frame[frame.quantity == "correlation_sq"].estimate.sum())


# --- growth laws ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Exponents of field against depth and of depth against distance, and depth relative to stride 1."""
    return [*_field_growth(frame), *_depth_growth(frame), *_depth_ratio(frame)]


def _field_growth(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    fields = _counted(frame, "receptive_field")
    fields = fields[(fields.kernel != "") & (fields.depth != "")]
    for (stack, kernel), rows in fields.groupby(["network", "kernel"], sort=False):
        chosen = rows[rows.depth.astype(int) % PERIOD == 0]
        if len(chosen) >= 2 and (chosen.estimate > 1).all():
            line = _exponent("growth_exponent", chosen.depth, chosen.estimate - 1, chosen.theory - 1)
            yield {**line, "network": stack, "kernel": kernel}


def _depth_growth(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    layers = _counted(frame, "layers_needed")
    for (stack, kernel, reading), rows in layers.groupby(["network", "kernel", "reading"], sort=False):
        if len(rows) >= 2:
            line = _exponent("depth_exponent", rows.distance, rows.estimate, rows.theory)
            yield {**line, "network": stack, "kernel": kernel, "reading": reading}


def _depth_ratio(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    rows = _counted(frame, "layers_needed")
    plain = {(r.kernel, r.distance, r.reading): r for r in rows[rows.network == "stride1"].itertuples()}
    for r in rows[rows.network == "dilation_2l"].itertuples():
        other = plain.get((r.kernel, r.distance, r.reading))
        if other is not None:
            axes = {"network": r.network, "kernel": r.kernel, "distance": r.distance, "reading": r.reading}
            line = _line("depth_ratio", r.estimate / other.estimate, min(r.n, other.n), r.theory / other.theory)
            yield {**line, **axes}


def _counted(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    return frame[(frame.quantity == quantity) & (frame.n > 0)]


def _exponent(quantity: str, x: pd.Series, y: pd.Series, theory: pd.Series) -> dict[str, object]:
    from attnrepro.stats import loglog_slope

    at = x.astype(float)
    return _line(quantity, loglog_slope(at, y).value, len(y), loglog_slope(at, theory).value)


def _line(quantity: str, value: float, n: int, exact: float) -> dict[str, object]:
    """A number that follows from counts: it has no spread of its own."""
    return {
        "quantity": quantity,
        "statistic": "exact",
        "estimate": value,
        "n": n,
        "sd": math.nan,
        "theory": exact,
    }


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_count_controls(frame), *_exponent_controls(frame)]


def _at(r: Any) -> str:
    return " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))


def _count_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.statistic == "exact") & frame.theory.notna()].itertuples():
        if not r.n:
            failed = ", though searched for" if r.n_failed else ""
            yield f"{r.quantity} at {_at(r)} was not found{failed}: theory says {r.theory:.6g}"
        elif not abs(r.estimate - r.theory) <= TOLERANCE * max(1.0, abs(r.theory)):
            yield f"{r.quantity} at {_at(r)} is {r.estimate:.6g}, the closed form {r.theory:.6g}"
    gaps = _counted(frame, "field_holes")
    for r in gaps[(gaps.network == "gapped") & (gaps.estimate == 0)].itertuples():
        yield f"field_holes at {_at(r)} is 0: what must leave gaps did not"


def _exponent_controls(frame: pd.DataFrame) -> Iterator[str]:
    from attnrepro.stats import monte_carlo_interval

    for r in frame[(frame.quantity == "effective_exponent") & (frame.statistic == "slope")].itertuples():
        if not r.n:
            yield f"effective_exponent at {_at(r)} was not measured"
            continue
        interval = monte_carlo_interval(r.estimate, r.sd, r.n, 0.999) if r.n > 1 else None
        low, high = (interval.low, interval.high) if interval else (r.estimate, r.estimate)
        if not low - EXPONENT_TOLERANCE <= r.theory <= high + EXPONENT_TOLERANCE:
            yield f"effective_exponent at {_at(r)} is {r.estimate:.4f}, not {r.theory:g}"


# --- answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_layers_in_words(frame), *_width_in_words(frame), *_pooling_in_words(frame)])


def _layers_in_words(frame: pd.DataFrame) -> Iterator[str]:
    layers = _counted(frame, "layers_needed")
    if layers.empty:
        return
    distance = max(layers.distance.astype(int))
    kernel = max(int(k) for k in layers.kernel if k)
    rows = layers[(layers.distance == str(distance)) & layers.kernel.isin(["", str(kernel)])]
    found = {(r.network, r.reading): int(r.estimate) for r in rows.itertuples()}
    wanted = [("stride1", "middle"), ("stride1", "direct"), ("dilation_2l", "direct"), ("stride_k", "middle")]
    if any(key not in found for key in [*wanted, ("attention", "direct")]):
        return
    between, direct, dilated, strided = (found[key] for key in wanted)
    left = _counted(frame, "pairs_meeting")
    left = left[(left.network == "stride_k") & (left.kernel == str(kernel)) & (left.distance == str(distance))]
    meeting = f", after which {left.estimate.iloc[0]:.0%} of such pairs have an output in common" if len(left) else ""
    yield (
        f"For positions {distance} apart, convolutions of kernel {kernel} and stride 1 need {between} layers until an"
        f" output between them sees both and {direct} until output i depends on the other; attention needs"
        f" {found['attention', 'direct']}, dilation 2^l needs {dilated}, stride {kernel} needs {strided}{meeting}."
    )


def _width_in_words(frame: pd.DataFrame) -> Iterator[str]:
    sd = _counted(frame, "effective_sd")
    sd = sd[sd.weights == "uniform"]
    exponents = _counted(frame, "effective_exponent")
    if sd.empty or exponents.empty:
        return
    last = sd.loc[sd.depth.astype(int).idxmax()]
    largest = sd[(sd.depth == last.depth) & (sd.kernel == str(max(sd.kernel.astype(int))))].iloc[0]
    width = _counted(frame, "width_95").set_index(["kernel", "depth"]).estimate[largest.kernel, largest.depth]
    field = closed.field("stride1", int(largest.kernel), int(largest.depth))
    random = exponents[(exponents.statistic == "slope") & (exponents.kernel == largest.kernel)]
    fits = ", ".join(f"{r.estimate:.3f} [{r.ci_low:.3f}, {r.ci_high:.3f}] ({r.weights})" for r in random.itertuples())
    yield (
        f"The reach is used little: with equal weights {SHARE.numerator / SHARE.denominator:.0%} of the gradient after"
        f" {largest.depth} layers lies within {width:.0f} of {field} positions; its width grows as depth to the"
        f" power {exponents[exponents.weights == 'uniform'].estimate.iloc[0]:.3f}, with random weights {fits}."
    )


def _pooling_in_words(frame: pd.DataFrame) -> Iterator[str]:
    kept = _counted(frame, "energy_kept")
    above = kept[(kept.method == "average") & (kept.frequency.astype(float) > 1)] if len(kept) else kept
    if above.empty:
        return
    factor = max(above.factor.astype(int))
    first = above[above.factor == str(factor)].sort_values("frequency", key=lambda f: f.astype(float)).iloc[0]
    alias = _counted(frame, "alias_frequency")
    alias = alias[
        (alias.method == "average") & (alias.factor == first.factor) & (alias.frequency == first.frequency)
    ].estimate.iloc[0]
    lost = _counted(frame, "lost_share").set_index(["factor", "channels"]).estimate
    yield (
        f"Down-sampling pays with high frequencies: of a sine at {first.frequency} times the new Nyquist frequency the"
        f" mean of {factor} keeps {first.estimate:.1%} of the energy, at the wrong frequency ({alias:g} times), every"
        f" {factor}th sample all of it; of white noise {lost[str(factor), '1']:.0%} is lost for good, and nothing if"
        f" the channels grow {factor}-fold."
    )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Layers against distance, width against depth, and what is left of a sine."""
    return [chart for chart in (_layers_chart(frame), _width_chart(frame), _sine_chart(frame)) if chart]


def _layers_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    names = {
        ("stride1", "direct"): "stride 1, output i",
        ("stride1", "middle"): "stride 1, between",
        ("dilation_2l", "direct"): "dilation 2^l",
        ("stride_k", "middle"): "stride k",
        ("attention", "direct"): "attention",
    }
    rows = _counted(frame, "layers_needed").copy()
    if rows.empty:
        return None
    kernel = max(int(k) for k in rows.kernel if k)
    rows = rows[rows.kernel.isin(["", str(kernel)])]
    rows["what"] = [names.get(key, "") for key in zip(rows.network, rows.reading, strict=True)]
    rows["d"] = rows.distance.astype(int)
    rows = rows[rows.what != ""]
    x = alt.X("d:Q", title="distance").scale(type="log", base=2).axis(values=sorted(set(rows.d)))
    y = alt.Y("estimate:Q", title="layers").scale(type="log", nice=False, padding=8)
    return panel(rows, x, y, f"layers needed, kernel {kernel}", list(names.values()))


def _width_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt
    import pandas as pd

    names = {"uniform": "sd, equal weights", "positive": "sd, positive", "signed": "sd, signed"}
    rows = _counted(frame, "effective_sd").copy()
    if rows.empty:
        return None
    kernel = max(rows.kernel.astype(int))
    rows = rows[rows.kernel == str(kernel)].copy()
    rows["what"], rows["layers"] = rows.weights.map(names), rows.depth.astype(int)
    fields = _counted(frame, "receptive_field")
    fields = fields[(fields.network == "stride1") & (fields.kernel == str(kernel))]
    counted = dict(zip(fields.depth, fields.estimate, strict=True))
    whole = rows[rows.weights == "uniform"].copy()
    whole["what"], whole["estimate"] = "whole field", [counted.get(depth, math.nan) for depth in whole.depth]
    whole["theory"] = [closed.field("stride1", kernel, depth) for depth in whole.layers]
    rows = pd.concat([whole, rows])
    x = alt.X("layers:Q", title="layers").scale(type="log", base=2).axis(values=sorted(set(rows.layers)))
    y = alt.Y("estimate:Q", title="positions").scale(type="log", nice=False, padding=8)
    order = ["whole field", *names.values()]
    return panel(rows, x, y, f"width of a gradient, kernel {kernel}", order)


def _sine_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    names = {
        ("energy_kept", "average"): "energy, mean",
        ("energy_kept", "stride"): "energy, stride",
        ("repeat_error", "average"): "error, mean",
        ("repeat_error", "stride"): "error, stride",
    }
    rows = frame[frame.quantity.isin(["energy_kept", "repeat_error"]) & (frame.n > 0)].copy()
    if rows.empty:
        return None
    factor = max(rows.factor.astype(int))
    rows = rows[rows.factor == str(factor)].copy()
    rows["what"] = [names[key] for key in zip(rows.quantity, rows.method, strict=True)]
    rows["nyquists"] = rows.frequency.astype(float)
    x = alt.X("nyquists:Q", title="frequency / new Nyquist frequency")
    y = alt.Y("estimate:Q", title="relative to the sine's energy")
    return panel(rows, x, y, f"a sine after down-sampling by {factor}", list(names.values()))
