"""predecessor_cost, read: exponents of times, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.derived import over_seeds
from attnrepro.tables.predecessor_cost.table import AXES, GATED, HIDDEN, PLAIN
from attnrepro.theory import power_law
from attnrepro.theory import predecessor_cost as closed

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "roundoff"]

# An exact count may be off by rounding, an exponent by what a third term leaves.
TOLERANCE = 1e-9
EXPONENT_TOLERANCE = 0.02
FIT_TOLERANCE = 1e-3
# An equality holds to so many eps; what breaks it does so by so many.
HOLDS_EPS, BROKEN_EPS = 32.0, 1e6
WORDS = {
    "squeeze_excitation": "squeeze and excitation",
    "global_average_add": "global average",
    "global_context": "global context",
    "non_local": "non-local",
    "non_local_pooled": "key-pooled non-local",
    "non_local_as_printed": "non-local as printed",
    "criss_cross": "one-pass criss-cross",
    "criss_cross_twice": "criss-cross",
    "sagan": "SAGAN",
    "relation": "relation",
    "capsules": "capsules",
    "swin_pair": "Swin pair",
    "convnext": "ConvNeXt",
    "map_attention": "multi-head",
    "strided": "strided",
    "window": "window",
    "linear": "linear",
    "low_rank": "low-rank",
}
# Lines of the charts, one for each way to grow; a chart of all eighteen could not be read.
DRAWN = (
    "global_context",
    "criss_cross_twice",
    "non_local",
    "non_local_pooled",
    "relation",
    "swin_pair",
    "map_attention",
)


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors and breakages are in units of eps times their scale already."""
    return 1.0, 1.0


# --- derived lines ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Exponents of times, seed by seed, that of memory, and what squeeze and excitation adds to the time."""
    return [*_exponents(frame), *_memory(frame), *_share(frame)]


def _exponents(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Slope of log time against log N over long maps, beside that of the FLOPs over the same."""
    known = {
        (r.block, int(r.places)): r.theory
        for r in frame[(frame.quantity == "flops") & (frame.places != "")].itertuples()
    }
    for block, (places, by_seed) in _long(frame).items():
        slopes = [_slope(places, times) for times in by_seed]
        flops = [known.get((block, n), math.nan) for n in places]
        line: dict[str, object] = {"block": block, "what": "time", "quantity": "exponent", "statistic": "slope"}
        line["theory"] = _slope(places, flops) if all(value > 0 for value in flops) else math.nan
        yield line | over_seeds(slopes)


def _long(frame: pd.DataFrame) -> dict[str, tuple[list[int], list[list[float]]]]:
    """Sizes that times were fitted to and the times of each seed at them, by block."""
    settings = frame[frame.quantity == "fit_from"]
    if settings.empty:
        return {}
    rows = frame[(frame.quantity == "time") & (frame.block != "") & (frame.n > 0)]
    series: dict[str, dict[int, Mapping[str, float]]] = {}
    for r in rows.itertuples():
        if int(r.places) >= float(settings.estimate.iloc[0]):
            series.setdefault(r.block, {})[int(r.places)] = r.by_seed
    found = {}
    for block, at in series.items():
        places = sorted(at)
        if len(places) > 1:
            seeds = [seed for seed in at[places[0]] if all(seed in at[n] for n in places)]
            found[block] = places, [[at[n][seed] for n in places] for seed in seeds]
    return found


def _slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Slope of the logarithms by least squares; between two sizes there is one."""
    if len(sizes) == 2:
        return power_law.local_exponent((sizes[0], sizes[1]), (values[0], values[1]))
    return power_law.fit(sizes, values).exponent


def _memory(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Slope between the last two sizes; every seed takes the same."""
    rows = frame[(frame.quantity == "peak_memory") & (frame.n > 0)]
    for block in dict.fromkeys(rows.block):
        by_size = {int(r.places): float(r.estimate) for r in rows[rows.block == block].itertuples()}
        last = sorted(by_size)[-2:]
        if len(last) == 2:
            slope = power_law.local_exponent((last[0], last[1]), (by_size[last[0]], by_size[last[1]]))
            line: dict[str, object] = {"block": block, "what": "peak_memory", "places": str(last[1]), "n": 1}
            yield line | {
                "quantity": "local_exponent",
                "statistic": "exact",
                "estimate": slope,
                "sd": math.nan,
                "theory": math.nan,
            }


def _share(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    times = frame[(frame.quantity == "time") & (frame.n > 0)].to_dict("records")
    by_network = {r["network"]: r["by_seed"] for r in times if r["network"]}
    if PLAIN in by_network and GATED in by_network:
        plain, gated = by_network[PLAIN], by_network[GATED]
        line: dict[str, object] = {"network": GATED, "quantity": "time_share", "statistic": "value", "theory": math.nan}
        yield line | over_seeds([gated[seed] / plain[seed] - 1 for seed in gated if seed in plain])


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return list(_breaches(frame))


def _breaches(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.statistic == "exact") & (frame.n > 0)].itertuples():
        at = f"{r.quantity} at {_at(r)} is {r.estimate:.9g}"
        if r.quantity == "exponent":
            if not abs(r.estimate - r.theory) <= EXPONENT_TOLERANCE:
                yield f"{at}, the closed form has the power {r.theory:g}"
        elif r.quantity == "fit_error":
            if not r.estimate <= FIT_TOLERANCE:
                yield f"{at}: these powers of N do not describe what was counted"
        elif r.quantity == "error_eps":
            if not r.estimate <= HOLDS_EPS:
                yield f"{at}: at most {HOLDS_EPS:g} eps is round-off"
        elif r.quantity == "breakage_eps":
            if not r.estimate >= BROKEN_EPS:
                yield f"{at}, below {BROKEN_EPS:g}: what must break the equality did not"
        elif r.theory == r.theory and not abs(r.estimate - r.theory) <= TOLERANCE * abs(r.theory):
            yield f"{at}, the closed form {r.theory:.9g}"


def _at(r: Any) -> str:
    return " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))


# --- answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_growth(frame), *_subsampling(frame), *_gates(frame), *_cross(frame), *_clock(frame)])


def _one(frame: pd.DataFrame, quantity: str, **axes: str) -> Any:
    """The line of a quantity at these axes, or None."""
    chosen = frame[(frame.quantity == quantity) & (frame.n > 0)]
    for axis, value in axes.items():
        chosen = chosen[chosen[axis] == value]
    return next(chosen.itertuples(), None)


def _growth(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "exponent") & (frame.what == "flops") & (frame.n > 0)]
    if rows.empty:
        return
    groups: dict[str, list[str]] = {}
    for r in rows.itertuples():
        groups.setdefault(f"{r.theory:g}", []).append(WORDS[r.block])
    worst = (rows.estimate - rows.theory).abs().max()
    listed = "; ".join(f"{power} for {', '.join(groups[power])}" for power in sorted(groups, key=float, reverse=True))
    yield f"Highest power of N in the counted FLOPs, fitted to within {worst:.1g}: {listed}."
    local = [_one(frame, "local_exponent", block=block, what="flops") for block in ("non_local", "criss_cross")]
    if all(local):
        pairs, cross = local
        yield (
            f"At {pairs.places} places the exponents are still {pairs.estimate:.2f} (non-local) and"
            f" {cross.estimate:.2f} (criss-cross), because projections take their part."
        )


def _subsampling(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "pairwise_ratio") & (frame.n > 0)]
    paper, printed = (rows[rows.block == block] for block in ("non_local_pooled", "non_local_as_printed"))
    if not paper.empty and not printed.empty:
        yield (
            f"Pooling keys and values divides the pairwise term by {_range(paper)} at every size; by {_range(printed)}"
            " only if queries are pooled too."
        )


def _range(rows: pd.DataFrame) -> str:
    least, most = rows.estimate.min(), rows.estimate.max()
    return f"{least:.2f}" if most - least < TOLERANCE else f"{least:.2f} to {most:.2f}"


def _gates(frame: pd.DataFrame) -> Iterator[str]:
    names = ("parameters_share", "flops_share", "operations_share", "time_share")
    parameters, flops, operations, time = (_one(frame, name, network=GATED) for name in names)
    if parameters and flops and operations:
        more = _one(frame, "parameters", network=GATED).estimate - _one(frame, "parameters", network=PLAIN).estimate
        clock = f", {time.estimate:.1%} [{time.ci_low:.1%}, {time.ci_high:.1%}] of the time here" if time else ""
        yield (
            f"Squeeze and excitation adds {parameters.estimate:.1%} of parameters to ResNet-50 ({more / 1e6:.2f} M),"
            f" {flops.estimate:.2%} of FLOPs ({operations.estimate:.2%} with mean and scaling){clock}."
        )


def _cross(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "off_cross_reach") & (frame.n > 0)]
    once, twice = (rows[rows.block == block].estimate for block in ("criss_cross", "criss_cross_twice"))
    if not once.empty and not twice.empty:
        yield (
            f"Of the places off row and column one criss-cross pass reaches {once.max():.0%}, two reach"
            f" {twice.min():.0%}."
        )


def _clock(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "exponent") & (frame.what == "time") & (frame.n > 0) & frame.ci_low.notna()]
    wanted = ("non_local", "map_attention", "criss_cross_twice", "swin_pair", "squeeze_excitation")
    found = {r.block: r for r in rows.itertuples()}
    parts = [
        f"{WORDS[block]} {r.estimate:.2f} [{r.ci_low:.2f}, {r.ci_high:.2f}] (FLOPs {r.theory:.2f})"
        for block in wanted
        if (r := found.get(block)) and not math.isnan(r.theory)
    ]
    if parts:
        yield f"Exponents of the time on long maps, which caches have a say in: {', '.join(parts)}."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """FLOPs and time against the number of places, with the fits that the exponents come from."""
    from attnrepro.results.charts import fitted

    shown = frame[frame.block.isin(DRAWN) & (frame.places != "") & (frame.n > 0)].copy()
    shown["N"] = shown.places.astype(int)
    shown["block"] = shown.block.map(WORDS)
    first = min((places[0] for places, _ in _long(frame).values()), default=0)
    drawn = [
        fitted(
            shown[shown.quantity == "flops"],
            *("N", "block", _flop_laws(frame)),
            title="FLOPs against the number of places",
            said="lines: a N^q + b N^p as fitted, q known",
            x_title="places N",
            y_title="FLOPs of a map",
            numbers="~s",
        ),
        fitted(
            shown[shown.quantity == "time"],
            *("N", "block", _time_laws(frame)),
            title="time against the number of places",
            said=f"lines: b N^p as fitted from N = {first}",
            x_title="places N",
            y_title="ms of a map",
            since=first,
        ),
    ]
    return [chart for chart in drawn if chart]


def _flop_laws(frame: pd.DataFrame) -> dict[str, Callable[[float], float]]:
    """The fits that the exponents of the FLOPs are of, by name of the block."""
    rows = frame[(frame.quantity == "flops") & (frame.places != "") & (frame.n > 0)]
    laws = {}
    for block in DRAWN:
        counts = {int(r.places): r.estimate for r in rows[rows.block == block].itertuples()}
        if len(counts) > 3:
            lower = closed.powers(block, "flops")[1]
            places = sorted(counts)
            laws[WORDS[block]] = _law(power_law.fit(places, [counts[n] for n in places], lower), lower or 0.0)
    return laws


def _time_laws(frame: pd.DataFrame) -> dict[str, Callable[[float], float]]:
    """Means over the seeds of the straight lines in logarithms whose slopes the exponents are, by name of the block."""
    laws = {}
    for block, (places, by_seed) in _long(frame).items():
        exponent = sum(_slope(places, times) for times in by_seed) / len(by_seed)
        logs = [math.log(time) for times in by_seed for time in times]
        middle = sum(map(math.log, places)) / len(places)
        factor = math.exp(sum(logs) / len(logs) - exponent * middle)
        laws[WORDS[block]] = _law(power_law.Fit(exponent, factor, 0.0, math.nan), 0.0)
    return laws


def _law(fit: power_law.Fit, lower: float) -> Callable[[float], float]:
    return lambda n: fit.lower_factor * n**lower + fit.factor * n**fit.exponent
