"""position_strength, read: what follows from the seeds, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.rows import text
from attnrepro.tables.position_strength.table import AXES, TASK_LENGTH

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine
    from attnrepro.results.verdicts import Protocol

__all__ = ["AXES", "answer", "charts", "controls", "derive", "monte_carlo", "protocols"]

# A seed counts as solved above this test accuracy.
SOLVED = 0.9
# What makes a printed number one of the six.
PRINTED = ("train_accuracy", "test_accuracy")


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Shares of logit power are judged against theory together; the four (or two) of a strength add up to one."""
    rows = frame[(frame.quantity == "logit_share") & ~frame.part.isin(["position_position", "query_position"])]
    # The three that are kept of a strength have correlations of at most 1 in size, as every pair of them.
    groups = rows.groupby(["strength", "length", "embed_dim", rows.part.str.startswith("query")]).size()
    return rows, float((groups**2).sum())


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Medians, solved shares, paired differences, needed strengths, and the printed six taken together."""
    from attnrepro.theory.set_functions import mean_sign_accuracy

    accuracy = frame[frame.quantity == "test_accuracy"]
    result: list[dict[str, object]] = []
    for r in accuracy[accuracy.study.isin(["strength", "alternatives", "population"])].to_dict("records"):
        if r["n"]:
            result += _spread(r)
    result += _difference(accuracy, "gain_x1_over_none", {"study": "published"}, "1", "0")
    result += _difference(accuracy, "gain_x3_over_x1", {"study": "published"}, "3", "1")
    for r in accuracy[(accuracy.study == "published") & (accuracy.strength == "0")].to_dict("records"):
        advantage = mean_sign_accuracy(TASK_LENGTH) - 0.5
        shares = {seed: (value - 0.5) / advantage for seed, value in r["by_seed"].items()}
        result.append(_of_seeds("share_of_linear_advantage", "mean", r, shares, failed=r["n_failed"]))
    result += _more_steps(accuracy)
    result += _plateau(accuracy)
    result += _needed(accuracy)
    return result + _together(frame, published)


def _of_seeds(
    quantity: str, statistic: str, at: Mapping[str, Any], by_seed: Mapping[str, float], *, failed: int = 0
) -> dict[str, object]:
    """A line of values that each belong to a seed."""
    from attnrepro import stats

    line: dict[str, object] = {
        **{axis: at.get(axis, "") for axis in AXES},
        "quantity": quantity,
        "statistic": statistic,
    }
    line |= {"n": len(by_seed), "n_failed": failed, "theory": math.nan, "estimate": math.nan, "sd": math.nan}
    if by_seed:
        values = list(by_seed.values())
        interval = stats.mean_interval(values)
        half = (interval.high - interval.low) / 2
        line |= {"estimate": interval.value, "ci_low": interval.low, "ci_high": interval.high, "seeds": tuple(values)}
        if len(values) > 1:
            import numpy as np

            line["sd"] = float(np.std(values, ddof=1)) if half else 0.0
    return line


def _spread(r: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Median of the seeds and the share of them above ``SOLVED``, which a mean hides where seeds part."""
    from attnrepro import stats

    values = list(r["by_seed"].values())
    base = {axis: r[axis] for axis in AXES} | {"theory": math.nan}
    everybody = len(values) + r["n_failed"]
    for quantity, statistic, interval, n, failed in (
        ("test_accuracy", "median", stats.median_interval(values), len(values), r["n_failed"]),
        # A seed that diverged has not solved the task: it counts.
        ("solved", "share", stats.share_interval(sum(v > SOLVED for v in values), everybody), everybody, 0),
    ):
        yield {
            **base,
            "n": n,
            "n_failed": failed,
            "quantity": quantity,
            "statistic": statistic,
            "estimate": interval.value,
            "sd": math.nan,
            "ci_low": interval.low,
            "ci_high": interval.high,
        }


def _pairs(
    frame: pd.DataFrame, axis: str, first: str, second: str, combine: Callable[[float, float], float | None]
) -> Iterator[tuple[Mapping[str, Any], dict[str, float], int]]:
    """Both ends of an axis seed by seed, for every setting of the other axes; and how many seeds lack an end."""
    others = [a for a in AXES if a != axis]
    for _, part in frame.groupby(others, sort=False):
        ends = {r[axis]: r for r in part.to_dict("records")}
        if first in ends and second in ends:
            a, b = ends[first]["by_seed"], ends[second]["by_seed"]
            pairs = ((seed, combine(a[seed], b[seed])) for seed in a if seed in b)
            both = {seed: value for seed, value in pairs if value is not None}
            failed = max(r["n"] + r["n_failed"] for r in (ends[first], ends[second])) - len(both)
            yield {**ends[first], axis: ""}, both, failed


def _difference(
    accuracy: pd.DataFrame, quantity: str, where: Mapping[str, str], first: str, second: str
) -> Iterator[dict[str, object]]:
    """Paired difference between two strengths."""
    rows = accuracy[(accuracy[list(where)] == list(where.values())).all(axis=1)]
    for at, values, failed in _pairs(rows, "strength", first, second, lambda a, b: a - b):
        yield _of_seeds(quantity, "paired_difference", at, values, failed=failed)


def _more_steps(accuracy: pd.DataFrame) -> Iterator[dict[str, object]]:
    """What four times the steps change, seed by seed, in the budget study."""
    rows = accuracy[accuracy.study == "budget"]
    ends = sorted({int(float(s)) for s in rows.steps if s})[-2:]
    if len(ends) == 2:
        for at, values, failed in _pairs(rows, "steps", str(ends[1]), str(ends[0]), lambda a, b: a - b):
            yield _of_seeds(f"gain_{ends[0]}_to_{ends[1]}_steps", "paired_difference", at, values, failed=failed)


def _plateau(accuracy: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Accuracy at x16 over that at x6, the median over seeds: 1 on a plateau."""
    from attnrepro import stats

    rows = accuracy[
        (accuracy.study == "strength") | ((accuracy.study == "population") & (accuracy.loss == "cross_entropy"))
    ]
    for at, values, failed in _pairs(rows, "strength", "16", "6", lambda a, b: a / b if b else None):
        if values:
            median = stats.median_interval(list(values.values()))
            line = _of_seeds("plateau_x16_over_x6", "median", at, values, failed=failed)
            yield {**line, "estimate": median.value, "ci_low": median.low, "ci_high": median.high} | {
                "sd": math.nan,
                "seeds": (),
            }


def _needed(accuracy: pd.DataFrame) -> list[dict[str, object]]:
    """Strength at which a seed first passes ``SOLVED``, between the strengths it was trained at, and that times m."""
    from attnrepro.theory.position_codes import margin, sinusoid

    rows = accuracy[accuracy.study == "size"].copy()
    result = []
    for (length, embed_dim), part in rows.groupby(["length", "embed_dim"], sort=False):
        points = sorted((float(r["strength"]), r["by_seed"]) for r in part.to_dict("records"))
        seeds = {seed: None for _, by_seed in points for seed in by_seed}
        crossings = {seed: _crossing([(s, by[seed]) for s, by in points if seed in by]) for seed in seeds}
        found = {seed: at for seed, at in crossings.items() if at is not None}
        total = max(r["n"] + r["n_failed"] for r in part.to_dict("records"))
        at = {"study": "size", "length": length, "embed_dim": embed_dim}
        unit = margin(sinusoid(int(length), int(embed_dim))) if int(length) > 1 else math.nan
        result.append(_of_seeds("needed_strength", "crossover", at, found, failed=total - len(found)))
        if math.isfinite(unit):
            times = {seed: value * unit for seed, value in found.items()}
            result.append(_of_seeds("needed_strength_x_margin", "crossover", at, times, failed=total - len(found)))
    return result


def _crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """Where the straight lines between the points first pass ``SOLVED`` upwards; None if they do not."""
    for (s0, a0), (s1, a1) in itertools.pairwise(points):
        if a0 <= SOLVED < a1:
            return s0 + (SOLVED - a0) / (a1 - a0) * (s1 - s0)
    return None


def _printed(published: Sequence[PublishedLine]) -> dict[tuple[str, str], PublishedLine]:
    """The printed numbers by quantity and strength."""
    return {
        (line.quantity, dict(line.axes)["strength"]): line
        for line in published
        if line.klass == "single_run" and line.quantity in PRINTED
    }


def _samples(frame: pd.DataFrame, quantity: str, strength: str) -> dict[str, dict[str, float]]:
    """Values by seed of a printed number under each protocol."""
    rows = frame[(frame.study == "published") & (frame.quantity == quantity) & (frame.strength == strength)]
    return {str(r["protocol"]): r["by_seed"] for r in rows.to_dict("records") if r["by_seed"]}


def _together(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """p of all printed numbers at once under each protocol, by rank: some seeds are stuck, so no normal law holds."""
    from attnrepro import stats

    printed = _printed(published)
    by_number = {place: _samples(frame, *place) for place in printed}
    result = []
    for protocol in dict.fromkeys(name for found in by_number.values() for name in found):
        columns = [found.get(protocol, {}) for found in by_number.values()]
        seeds = [seed for seed in columns[0] if all(seed in column for column in columns)]
        samples = [[column[seed] for column in columns] for seed in seeds]
        point = [line.published for line in printed.values() if line.published is not None]
        p = stats.joint_rank_p(point, samples) if len(seeds) > len(columns) else math.nan
        if not math.isnan(p):
            line = _of_seeds("published_numbers_p", "value", {"study": "published", "protocol": protocol}, {})
            result.append({**line, "estimate": p, "n": len(seeds)})
    return result


def protocols(line: PublishedLine, frame: pd.DataFrame) -> list[Protocol]:
    """A printed number as one more seed of each preset that was declared before the run."""
    from attnrepro.results.verdicts import Protocol

    if line.quantity not in PRINTED:
        return []
    strength = dict(line.axes)["strength"]
    result = []
    for name, by_seed in sorted(_samples(frame, line.quantity, strength).items()):
        values = tuple(by_seed.values())
        mean = sum(values) / len(values)
        result.append(Protocol(f"protocol {name}", mean, 0.0, values, number=f"{line.quantity} at x{strength}"))
    return result


def controls(frame: pd.DataFrame) -> list[str]:
    """What cannot know the position must fail: pools without a code, and ALiBi that favours the other end."""
    from attnrepro.theory.set_functions import bayes_accuracy

    limit = bayes_accuracy(TASK_LENGTH)
    rows = frame[(frame.quantity == "test_accuracy") & (frame.statistic == "mean") & (frame.n > 1)]
    blind = rows[((rows.strength == "0") & (rows.length == "")) | (rows.encoding == "alibi_far")]
    problems = [
        f"{r.study}: accuracy {r.estimate:.4f} [{r.ci_low:.4f}, {r.ci_high:.4f}] without knowing the position, above"
        f" the {limit:.4f} of the best permutation-invariant model"
        for r in blind.itertuples()
        if r.ci_low > limit
    ]
    return problems if len(blind) else ["there is no pool without positions to compare with"]


# --- answer and charts ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say."""

    def find(quantity: str, statistic: str = "mean", **axes: str) -> pd.DataFrame:
        rows = frame[(frame.quantity == quantity) & (frame.statistic == statistic)]
        for axis, value in axes.items():
            rows = rows[rows[axis] == value]
        return rows[rows.n > 0]

    def said(rows: pd.DataFrame, digits: int = 3) -> str:
        if rows.empty:
            return "not measured"
        r = rows.iloc[0]
        return f"{r.estimate:.{digits}f} [{r.ci_low:.{digits}f}, {r.ci_high:.{digits}f}]"

    default = {"study": "published", "protocol": "I"}
    if find("test_accuracy", **default).empty:
        return ""
    none, one, three = (said(find("test_accuracy", **default, strength=s)) for s in ("0", "1", "3"))
    count = int(find("test_accuracy", **default).n.max())
    parts = _told(frame)
    parts += [
        f"Test accuracy is {none} without positions, {one} with the sinusoid and {three} with x3 ({count} seeds)."
    ]
    joint = find("published_numbers_p", "value").sort_values("protocol")
    fitting = [f"{r.protocol} (joint p = {r.estimate:.2f})" for r in joint.itertuples() if r.estimate > 0.05]
    if len(fitting) > 1:
        parts.append(
            f"The printed six are not ruled out under {', '.join(fitting)}: they do not identify the protocol."
        )
    steps = frame[frame.quantity.str.startswith("gain_") & (frame.study == "budget") & (frame.n > 0)]
    steps = steps[(steps.strength == "1") & (steps.placement == "keys_values") & (steps.learning_rate == "0.01")]
    at = {"study": "population", "strength": "1"}
    fresh = said(find("test_accuracy", **at, placement="keys_values", loss="cross_entropy"))
    keys = said(find("test_accuracy", **at, placement="keys", loss="cross_entropy"))
    best = find("test_accuracy", **at, placement="keys_values", loss="smooth_error")
    if len(steps) and len(best):
        more = steps.iloc[0].quantity.removeprefix("gain_").removesuffix("_steps").replace("_to_", " to ")
        parts.append(
            f"x1 is not merely slower: going from {more} steps changes it by {said(steps, 4)}, and new data at every"
            f" step end at {fresh} (code in the keys only: {keys}). That is the limit of training with cross-entropy;"
            f" maximising accuracy itself reaches at least {said(best)}."
        )
    long = frame[(frame.study == "alternatives") & (frame.steps != "")].steps.map(float).max()
    rows = find("test_accuracy", study="alternatives", strength="1", steps=text(float(long)))
    others = rows.set_index("encoding").estimate.to_dict()
    if {"sinusoidal", "orthogonal"} <= others.keys():
        parts.append(
            "What is missing is not loudness but distance between neighbours: a random orthogonal code of the same row"
            f" norm reaches {others['orthogonal']:.3f} where the sinusoid has {others['sinusoidal']:.3f}."
        )
    curve = {"study": "strength", "protocol": "I", "placement": "keys_values"}
    at_4, loud = (find("solved", "share", **curve, strength=s) for s in ("4", "16"))
    enough = find("test_accuracy", study="population", placement="keys_values", strength="16", loss="cross_entropy")
    if len(at_4) and len(loud) and len(enough):
        parts.append(
            f"On a small budget louder is not better without end (seeds above {SOLVED}: {said(at_4, 2)} at x4,"
            f" {said(loud, 2)} at x16); with new data at every step x16 reaches {said(enough, 4)}."
        )
    return " ".join(parts)


def _told(frame: pd.DataFrame) -> list[str]:
    """Whether x1 is of use, what x3 adds, and whether more training makes up for that."""
    gains = frame[(frame.study == "published") & (frame.protocol == "I") & (frame.n > 1)]
    first = gains[gains.quantity == "gain_x1_over_none"]
    more = gains[gains.quantity == "gain_x3_over_x1"]
    if first.empty or more.empty:
        return []

    def shown(r: Any) -> str:
        return f"{r.estimate:+.3f} [{r.ci_low:+.3f}, {r.ci_high:+.3f}]"

    one, three = first.iloc[0], more.iloc[0]
    word = "no, attention uses it at x1" if one.ci_low > 0 else "no use of it is seen at x1"
    side = "x3 adds" if three.ci_low > 0 else "x3 takes away" if three.ci_high < 0 else "x3 is not seen to add"
    said = f"{word} ({shown(one)} over none, {one.n} seeds), {side} {shown(three)}"
    longer = frame[frame.quantity.str.startswith("gain_") & (frame.study == "budget") & (frame.n > 1)]
    longer = longer[(longer.strength == "1") & (longer.placement == "keys_values") & (longer.learning_rate == "0.01")]
    if len(longer):
        r = longer.iloc[0]
        times = r.quantity.removeprefix("gain_").removesuffix("_steps").replace("_to_", " to ")
        only = "x1 is not only slower" if r.ci_high < three.ci_low else "x1 may be only slower"
        said += f"; {only}: from {times} steps it gains {shown(r)}"
    return [f"{said[0].upper()}{said[1:]}."]


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Strength curves with the printed points, solved shares, alternatives, budget, and needed strength."""
    chosen = [
        _curve(frame),
        _solved(frame),
        _alternatives(frame),
        _margins(frame),
        _budget(frame, "steps", "Is x1 only slower? Accuracy against steps (protocol A)"),
        _budget(frame, "n_train", "Is x1 short of data? Accuracy against n (protocol A)"),
    ]
    return [chart for chart in chosen if chart is not None]


COLUMNS = ("estimate", "ci_low", "ci_high", "published", "theory")
PLACED = {"keys_values": "in keys and values", "keys": "in keys only"}


def _values(rows: pd.DataFrame, **names: pd.Series) -> list[dict[str, Any]]:
    """Records for Vega-Lite, with the columns that charts use; a missing number is left out, JSON has no nan."""
    data = rows[[c for c in COLUMNS if c in rows]].assign(**names)
    return [{k: v for k, v in record.items() if v == v} for record in data.to_dict("records")]


def _layers(base: Any, x: Any, y_title: str, *, line: bool, extra: Sequence[str] = (), printed: bool = False) -> Any:
    import altair as alt

    scale = alt.Scale(zero=False, padding=8)

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=y_title, scale=scale)

    tip = [alt.Tooltip(f"{name}:N") for name in extra]
    tip += [alt.Tooltip(f"{name}:Q", format=".4f") for name in ("estimate", "ci_low", "ci_high")]
    layers = [
        base.mark_rule(style="interval").encode(x=x, y=y("ci_low"), y2="ci_high:Q"),
        base.mark_point(style="measured").encode(x=x, y=y("estimate"), tooltip=tip),
    ]
    if line:
        # Records of printed numbers have no estimate and would tear the line.
        drawn = base.transform_filter("isValid(datum.estimate)")
        layers.insert(0, drawn.mark_line(opacity=0.5).encode(x=x, y=y("estimate")))
    if printed:
        layers.append(
            base.transform_filter("isValid(datum.published)")
            .mark_point(style="published")
            .encode(x=x, y=y("published"), tooltip=[alt.Tooltip("published:Q")])
        )
    return alt.layer(*layers)


def _strength_axis() -> Any:
    import altair as alt

    return (
        alt.X("strength:Q", title="strength of the sinusoid")
        .scale(type="symlog", constant=0.5)
        .axis(values=[0, 0.5, 1, 2, 3, 4, 8, 16, 32], format="~g")
    )


def _curve(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = frame[(frame.quantity == "test_accuracy") & (frame.statistic == "mean") & (frame.n > 0)]
    curve = rows[(rows.study == "strength") & (rows.protocol == "I")]
    printed = rows[(rows.study == "published") & (rows.protocol == "I") & rows.published.notna()]
    if curve.empty:
        return None
    values = _values(
        curve.drop(columns="published"), strength=curve.strength.astype(float), where=curve.placement.map(PLACED)
    )
    marks = [
        {"strength": float(r.strength), "published": r.published, "where": PLACED["keys_values"]}
        for r in printed.itertuples()
    ]
    base = alt.Chart(alt.Data(values=values + marks)).encode(color=alt.Color("where:N", title=None))
    title = "Test accuracy against strength (protocol I)"
    chart = _layers(base, _strength_axis(), "test accuracy", line=True, extra=["where", "strength"], printed=True)
    return chart.properties(title=title, description=title).to_dict()  # type: ignore[no-any-return]


def _solved(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = frame[(frame.quantity == "solved") & (frame.study == "strength") & (frame.protocol == "I")]
    if rows.empty:
        return None
    values = _values(
        rows.drop(columns="published"), strength=rows.strength.astype(float), where=rows.placement.map(PLACED)
    )
    base = alt.Chart(alt.Data(values=values)).encode(color=alt.Color("where:N", title=None))
    title = f"Share of seeds above {SOLVED} (protocol I)"
    chart = _layers(base, _strength_axis(), "share of seeds", line=True, extra=["where", "strength"])
    return chart.properties(title=title, description=title).to_dict()  # type: ignore[no-any-return]


def _alternatives(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = frame[(frame.study == "alternatives") & (frame.quantity == "test_accuracy") & (frame.statistic == "mean")]
    rows = rows[(rows.n > 0) & rows.strength.isin(["", "1"])]
    if rows.empty:
        return None
    values = _values(
        rows.drop(columns="published"), encoding=rows.encoding.str.replace("_", " "), steps=rows.steps + " steps"
    )
    order = list(dict.fromkeys(rows.sort_values("estimate", ascending=False).encoding.str.replace("_", " ")))
    base = alt.Chart(alt.Data(values=values)).encode(
        y=alt.Y("encoding:N", title=None, sort=order), color=alt.Color("steps:N", title=None)
    )
    x = alt.Scale(zero=False, padding=8)
    tip = [
        alt.Tooltip(f"{c}:{'N' if c in ('encoding', 'steps') else 'Q'}") for c in ("encoding", "steps", *COLUMNS[:3])
    ]
    title = "Other encodings at the row norm of x1 (protocol A)"
    chart = alt.layer(
        base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q", title="test accuracy", scale=x), x2="ci_high:Q"),
        base.mark_point(style="measured").encode(x=alt.X("estimate:Q", title="test accuracy", scale=x), tooltip=tip),
    )
    return chart.properties(title=title, description=title).to_dict()  # type: ignore[no-any-return]


def _budget(frame: pd.DataFrame, axis: str, title: str) -> Mapping[str, Any] | None:
    import altair as alt

    rows = frame[(frame.study == "budget") & (frame.quantity == "test_accuracy") & (frame.statistic == "mean")]
    rows = rows[(rows.n > 0) & (rows.placement == "keys_values") & rows.strength.isin(["1", "3"])]
    rows = rows[rows.learning_rate == "0.01"]
    # The sizes of the data were measured after one number of steps, the steps at one size of the data.
    other = "steps" if axis == "n_train" else "n_train"
    rows = rows[rows[other] == rows.groupby(other)[axis].nunique().idxmax()] if len(rows) else rows
    if rows.empty:
        return None
    values = _values(
        rows.drop(columns="published"), at=rows[axis].astype(float), strength="x" + rows.strength.astype(str)
    )
    base = alt.Chart(alt.Data(values=values)).encode(color=alt.Color("strength:N", title=None))
    ticks = sorted({float(v) for v in rows[axis]})
    x = alt.X("at:Q", title=axis).scale(type="log", nice=False, padding=12).axis(values=ticks, format="~s")
    chart = _layers(base, x, "test accuracy", line=True, extra=["strength", "at"])
    return chart.properties(title=title, description=title).to_dict()  # type: ignore[no-any-return]


def _margins(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    needed = frame[(frame.quantity == "needed_strength") & (frame.n > 0)]
    exact = frame[(frame.quantity == "margin") & (frame.study == "size")].set_index(["length", "embed_dim"]).estimate
    if needed.empty:
        return None
    at = [exact.get((r.length, r.embed_dim), math.nan) for r in needed.itertuples()]
    size = "length " + needed.length.astype(str) + ", d = " + needed.embed_dim.astype(str)
    values = _values(needed.drop(columns="published"), margin=at, size=size)
    base = alt.Chart(alt.Data(values=values))
    x = alt.X("margin:Q", title="margin of the sinusoid at x1").scale(type="log", nice=False, padding=12)
    title = f"Strength that reaches {SOLVED}, by margin of the code"
    chart = _layers(base, x, "needed strength", line=False, extra=["size", "margin"])
    return chart.properties(title=title, description=title).to_dict()  # type: ignore[no-any-return]
