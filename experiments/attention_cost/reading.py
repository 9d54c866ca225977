"""attention_cost, read: ratios, the fit of two terms, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.derived import over_seeds
from attnrepro.tables.attention_cost.table import AXES, HIDDEN

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive"]

# An exact count may be off by rounding, and ways of computing the same by round-off, in eps of the largest output.
TOLERANCE = 1e-9
SAME_EPS = 32.0
# How the words "much faster" are read: at least so many times.
MUCH = 2.0
# Projections alone grow linearly: from the shortest to the longest length at most this share of what attention does.
LINEAR_SHARE = 0.5
# Two terms describe times that they miss by no more than this share.
DESCRIBED = 0.1
WORDS = {"naive": "step by step", "fused": "fused", "numpy": "numpy", "none": "projections only"}

Seeds = Mapping[str, float]
Kind = tuple[str, str, str]


def fit_two_terms(lengths: Sequence[int], times: Sequence[float]) -> tuple[float, float, float]:
    """a and b of a L + b L^2 by least squares of the relative errors, and the largest of these.

    Relative, because times span three orders of magnitude and their spread grows with them.

    Raises:
        ValueError: fewer than two different lengths, or a time that is not positive.
    """
    if len(set(lengths)) < 2 or len(lengths) != len(times) or not all(time > 0 for time in times):
        raise ValueError("a fit of two terms needs two different lengths or more and a positive time for each")
    # a u + b v = 1 with u = L / t and v = L^2 / t.
    u = [length / time for length, time in zip(lengths, times, strict=True)]
    v = [length * one for length, one in zip(lengths, u, strict=True)]
    uu, uv, vv = (sum(x * y for x, y in zip(p, q, strict=True)) for p, q in ((u, u), (u, v), (v, v)))
    right = sum(u), sum(v)
    determinant = uu * vv - uv * uv
    a = (vv * right[0] - uv * right[1]) / determinant
    b = (uu * right[1] - uv * right[0]) / determinant
    return a, b, max(abs(a * x + b * y - 1) for x, y in zip(u, v, strict=True))


# --- derived lines ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Ratios of times seed by seed, the fit of two terms, and what batching wins."""
    clock = _clock(frame)
    flops = _flops(frame)
    found: list[dict[str, object]] = []
    for kind, series in clock.items():
        found += _ratios(kind, series, flops)
        found += _fits(kind, series, _number(frame, "fit_from"), _number(frame, "head_dim"))
    found += _against(clock, flops)
    found += _batching(frame)
    return found


def _clock(frame: pd.DataFrame) -> dict[Kind, dict[int, Seeds]]:
    """Times by kind, length and seed, short lengths first."""
    rows = frame[(frame.quantity == "time") & (frame.attention != "") & (frame.n > 0)].to_dict("records")
    found: dict[Kind, dict[int, Seeds]] = {}
    for r in sorted(rows, key=lambda r: int(r["length"])):
        found.setdefault((r["attention"], r["projections"], r["phase"]), {})[int(r["length"])] = r["by_seed"]
    return found


def _flops(frame: pd.DataFrame) -> Callable[[Kind, int], float]:
    rows = frame[(frame.quantity == "flops") & frame.theory.notna()].to_dict("records")
    known = {(r["attention"], r["projections"], r["phase"], int(r["length"])): r["theory"] for r in rows}
    return lambda kind, length: known.get((*kind, length), math.nan)


def _number(frame: pd.DataFrame, quantity: str) -> float:
    """A setting that a cell recorded."""
    rows = frame[frame.quantity == quantity]
    return float(rows.theory.iloc[0]) if len(rows) else math.nan


def _line(
    quantity: str, values: Sequence[float], axes: Mapping[str, object], *, theory: float = math.nan, total: int = 0
) -> dict[str, object]:
    """One value a seed; of ``total`` seeds, those that are missing failed."""
    line: dict[str, object] = {name: str(value) for name, value in axes.items()}
    line |= {"quantity": quantity, "statistic": "value", "theory": theory, "n_failed": max(0, total - len(values))}
    return line | over_seeds(values)


def _over(above: Seeds, below: Seeds) -> list[float]:
    return [above[seed] / below[seed] for seed in above if seed in below]


def _named(kind: Kind) -> dict[str, object]:
    return dict(zip(("attention", "projections", "phase"), kind, strict=True))


def _ratios(
    kind: Kind, series: Mapping[int, Seeds], flops: Callable[[Kind, int], float]
) -> Iterator[dict[str, object]]:
    shortest, *rest = series
    factors: list[dict[str, object]] = []
    for length in rest:
        at = {**_named(kind), "length": length}
        whole, model = _over(series[length], series[shortest]), flops(kind, length) / flops(kind, shortest)
        yield _line("ratio_to_shortest", whole, at, theory=model)
        doublings = math.log2(length / shortest)
        means = [ratio ** (1 / doublings) for ratio in whole]
        yield _line("mean_doubling_factor", means, at, theory=model ** (1 / doublings))
        if length % 2 == 0 and length // 2 in series:
            half = length // 2
            theory = flops(kind, length) / flops(kind, half)
            factors.append(_line("doubling_factor", _over(series[length], series[half]), at, theory=theory))
    yield from factors
    if len(factors) > 1:
        pairs = zip(_values(factors[-1]), _values(factors[0]), strict=True)
        line = _line("factor_growth", [last - first for last, first in pairs], _named(kind))
        yield {**line, "statistic": "paired_difference"}


def _values(line: Mapping[str, object]) -> tuple[float, ...]:
    values = line["seeds"]
    assert isinstance(values, tuple)
    return values


def _fits(kind: Kind, series: Mapping[int, Seeds], fit_from: float, head_dim: float) -> Iterator[dict[str, object]]:
    lengths = [length for length in series if not length < fit_from]
    seeds = [seed for seed in series[next(iter(series))] if all(seed in series[length] for length in lengths)]
    if len(lengths) < 3 or kind[0] == "none":
        return
    fits = [fit_two_terms(lengths, [series[length][seed] for length in lengths]) for seed in seeds]
    at = _named(kind)
    # ms to us for a token, to ns for a pair.
    yield {**_line("linear_term", [1e3 * a for a, _, _ in fits], at), "unit": "us"}
    yield {**_line("quadratic_term", [1e6 * b for _, b, _ in fits], at), "unit": "ns"}
    yield _line("fit_error", [error for _, _, error in fits], at)
    # Where a term comes out negative, two terms describe nothing and there is no crossover.
    good = [(a, b) for a, b, _ in fits if a > 0 and b > 0]
    yield {**_line("crossover", [a / b for a, b in good], at, total=len(fits)), "statistic": "crossover"}
    if not math.isnan(head_dim):
        line = _line("crossover_over_d", [a / b / head_dim for a, b in good], at, total=len(fits))
        yield {**line, "statistic": "crossover"}
    for length in series:
        shares = [b * length / (a + b * length) for a, b in good]
        yield _line("quadratic_share", shares, {**at, "length": length}, total=len(fits))


def _against(
    clock: Mapping[Kind, Mapping[int, Seeds]], flops: Callable[[Kind, int], float]
) -> Iterator[dict[str, object]]:
    """Step by step over fused, and backward over forward."""
    for kind, series in clock.items():
        _, projections, phase = kind
        pairs = (
            (
                "naive_over_fused",
                ("naive", projections, phase),
                kind[0] == "fused",
                {"projections": projections, "phase": phase},
            ),
            ("backward_over_forward", (kind[0], projections, "backward"), phase == "forward", {"attention": kind[0]}),
        )
        for quantity, above, wanted, axes in pairs:
            for length in series if wanted and above in clock else ():
                if length in clock[above]:
                    model = flops(above, length) / flops(kind, length)
                    at = {**axes, "length": length}
                    yield _line(quantity, _over(clock[above][length], series[length]), at, theory=model)


def _batching(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    rows = frame[(frame.quantity == "time") & (frame.operation != "") & (frame.n > 0)].to_dict("records")
    by_way = {(r["operation"], r["length"]): r["by_seed"] for r in rows}
    for (operation, size), loop in by_way.items():
        if operation == "loop" and ("matrix", size) in by_way:
            times = _over(loop, by_way["matrix", size])
            yield _line("loop_over_matrix", times, {"length": size})
            beyond = [math.log2(one / MUCH) for one in times]
            yield {**_line("gain_beyond_much", beyond, {"length": size}), "statistic": "paired_difference"}


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return list(_breaches(frame))


def _breaches(frame: pd.DataFrame) -> Iterator[str]:
    counted = frame[(frame.statistic == "exact") & frame.theory.notna() & (frame.n > 0)]
    for r in counted.itertuples():
        if not abs(r.estimate - r.theory) <= TOLERANCE * abs(r.theory):
            yield f"{r.quantity} at {_at(r)} is {r.estimate:.9g}, the closed form {r.theory:.9g}"
    for r in frame[frame.quantity == "output_difference_eps"].itertuples():
        if not r.estimate <= SAME_EPS:
            yield f"{r.attention} attention is {r.estimate:.3g} eps away from step by step at length {r.length}"
    ratios = frame[(frame.quantity == "ratio_to_shortest") & (frame.phase == "forward") & (frame.n > 0)]
    by_place = {(r.attention, r.projections, int(r.length)): r.estimate for r in ratios.itertuples()}
    longest = max((length for name, _, length in by_place if name == "none"), default=0)
    linear, whole = by_place.get(("none", "3", longest)), by_place.get(("fused", "3", longest))
    if linear and whole and not linear <= LINEAR_SHARE * whole:
        yield f"projections alone grow {linear:.4g} times to length {longest}, attention {whole:.4g} times"


def _at(r: Any) -> str:
    return " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))


# --- answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether two terms describe the time, from where on the quadratic one is larger, and how fast it grows."""
    forward = frame[(frame.projections == "3") & (frame.phase == "forward") & (frame.n > 0)]
    found = {(r.quantity, r.attention): r for r in forward[forward.length == ""].itertuples()}
    misses = {name: found["fit_error", name].estimate for name in WORDS if ("fit_error", name) in found}
    parts = []
    if misses:
        good = [f"{WORDS[name]} {miss:.1%}" for name, miss in misses.items() if miss <= DESCRIBED]
        bad = [f"{WORDS[name]} {miss:.1%}" for name, miss in misses.items() if miss > DESCRIBED]
        told = [f"two terms describe the time to within a tenth for {', '.join(good)}"] if good else []
        told += [f"{'not for' if good else 'two terms do not describe the time of'} {', '.join(bad)}"] if bad else []
        parts.append(" but ".join(told))
        at = found.get(("crossover", "fused"))
        if at:
            ends = "" if math.isnan(at.ci_low) else f" [{at.ci_low:.3g}, {at.ci_high:.3g}]"
            parts.append(f"the quadratic one is larger from {at.estimate:.3g}{ends} tokens on (fused, {at.n} runs)")
        elif "fused" in misses:
            parts.append("the quadratic one overtakes the linear one nowhere (fused)")
    ratios = frame[(frame.quantity == "ratio_to_shortest") & (frame.attention == "fused") & (frame.n > 1)]
    ratios = ratios[(ratios.projections == "3") & (ratios.phase == "forward")]
    times = frame[(frame.quantity == "time") & (frame.attention == "fused") & (frame.n > 0)]
    if len(ratios) and len(times):
        r = ratios.loc[ratios.length.astype(int).idxmax()]
        shortest = times.length.astype(int).min()
        parts.append(f"{int(r.length) // shortest} times the tokens take {r.estimate:.3g} times as long")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _in_words(frame: pd.DataFrame) -> Iterator[str]:
    found = {
        (r.quantity, r.attention, r.projections, r.phase, r.length): r
        for r in frame[(frame.n > 0) & frame.ci_low.notna()].itertuples()
    }
    series = frame[(frame.quantity == "time") & (frame.attention == "fused") & (frame.n > 0)]
    if series.empty:
        return
    lengths = sorted(set(series.length.astype(int)))
    longest, name = str(lengths[-1]), "fused"

    def interval(r: Any, digits: int = 3) -> str:
        return f"{r.estimate:.{digits}g} [{r.ci_low:.{digits}g}, {r.ci_high:.{digits}g}]"

    def listed(attention: str) -> str:
        at = [found.get(("doubling_factor", attention, "3", "forward", str(length))) for length in lengths]
        return ", ".join(f"{r.estimate:.2f}" for r in at if r)

    ratio = found.get(("ratio_to_shortest", name, "3", "forward", longest))
    if ratio:
        yield (
            f"From {lengths[0]} to {longest} tokens the time of fused attention with its projections grows"
            f" {interval(ratio, 4)} times (FLOPs {ratio.theory:.4g}), with each doubling {listed(name)} times"
            f" (step by step {listed('naive')}; numpy {listed('numpy')})."
        )
    parts = []
    for attention in ("fused", "naive", "numpy"):
        terms = [
            found.get((quantity, attention, "3", "forward", ""))
            for quantity in ("linear_term", "quadratic_term", "crossover", "fit_error")
        ]
        if terms[0] and terms[1]:
            first = f"{WORDS[attention]} {interval(terms[0])} us a token and {interval(terms[1])} ns a pair"
            first += f", equal at L = {interval(terms[2])}" if terms[2] else ", no crossover"
            parts.append(f"{first}, off by {terms[3].estimate:.1%} at most" if terms[3] else first)
    if parts:
        exact = frame[(frame.quantity == "crossover_over_d") & (frame.projections == "3") & frame.theory.notna()]
        model = f" (FLOPs: equal at L = {exact.theory.iloc[0]:g} d)" if len(exact) else ""
        yield f"Two terms a L + b L^2: {'; '.join(parts)}{model}."
    gain = found.get(("naive_over_fused", "", "3", "forward", longest))
    back = found.get(("backward_over_forward", "fused", "", "", longest))
    if gain:
        both = found.get(("naive_over_fused", "", "3", "backward", longest))
        more = f", backward {interval(both)} times" if both else ""
        yield f"At {longest} tokens step by step takes {interval(gain)} times as long as fused{more}."
    if back:
        yield f"The backward pass of the fused one takes {interval(back)} times its forward pass."
    loops = frame[(frame.quantity == "loop_over_matrix") & (frame.n > 0)]
    if len(loops):
        r = loops.loc[loops.length.astype(int).idxmax()]
        yield f"{r.length} products of a vector take {interval(r)} times as long as one of matrices."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Times against length with the fits, and the factor of each doubling beside that of the FLOPs."""
    return [chart for chart in (_times(frame), _doublings(frame)) if chart]


def _times(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import fitted

    chosen = frame[(frame.quantity == "time") & (frame.projections == "3") & (frame.n > 0)].copy()
    chosen["tokens"] = chosen.length.astype(int)
    chosen["kind"] = [_kind(r) for r in chosen.itertuples()]
    return fitted(
        chosen,
        *("tokens", "kind", _laws(frame)),
        title="time against length",
        said="lines: a L + b L^2 as fitted, else through the points",
        x_title="length in tokens",
        y_title="ms of one head",
    )


def _laws(frame: pd.DataFrame) -> dict[str, Callable[[float], float]]:
    """Fitted milliseconds of each way at a length."""
    rows = frame[frame.quantity.isin(("linear_term", "quadratic_term")) & (frame.projections == "3") & (frame.n > 0)]
    terms: dict[str, dict[str, float]] = {}
    for r in rows.itertuples():
        terms.setdefault(_kind(r), {})[r.quantity] = r.estimate
    # Microseconds and nanoseconds.
    return {kind: _law(found["linear_term"] / 1e3, found["quadratic_term"] / 1e6) for kind, found in terms.items()}


def _law(a: float, b: float) -> Callable[[float], float]:
    return lambda n: a * n + b * n * n


def _kind(r: Any) -> str:
    return f"{WORDS[r.attention]}, backward" if r.phase == "backward" else WORDS[r.attention]


def _doublings(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import pandas as pd

    from attnrepro.results.charts import curves

    chosen = frame[(frame.quantity == "doubling_factor") & (frame.projections == "3") & (frame.phase == "forward")]
    chosen = chosen[(chosen.attention != "none") & (chosen.n > 0)]
    if chosen.empty:
        return None
    shown = chosen.assign(kind=[WORDS[name] for name in chosen.attention])
    model = chosen[(chosen.attention == "fused") & chosen.theory.notna()].assign(kind="FLOPs")
    printed = frame[(frame.quantity == "printed_doubling") & (frame.origin == "times") & (frame.n > 0)]
    model = model.assign(estimate=model.theory, ci_low=math.nan, ci_high=math.nan)
    rows = pd.concat([shown, model, printed.assign(kind="as printed")])
    rows["tokens"] = rows.length.astype(int)
    return curves(
        rows,
        "tokens",
        "kind",
        title="factor of each doubling",
        x_title="length after doubling",
        y_title="time over time at half the length",
        log=True,
        zero=4.0,
    )
