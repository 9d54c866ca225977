"""hard_vs_soft, read: shares and medians with censored seeds, controls, answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.tables.hard_vs_soft.table import AXES

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "monte_carlo", "roundoff"]

# Rows that other rows are made from, not shown in the table.
HIDDEN = ("correlation_sq",)

# Methods that learn although their forward pass takes one item.
HARD = ("straight_through", "gumbel_hard", "reinforce")
# What theory gives without round-off.
COUNTED = ("output_change", "focus_violations", "second_signal", "share_with_signal")
# An identity holds to so many eps of its scale; what breaks it does so by so many.
HOLDS_EPS = 32.0
BROKEN_EPS = 1e6
WORDS = {
    "hard_argmax": "plain argmax",
    "soft": "softmax",
    "straight_through": "straight-through",
    "gumbel_soft": "relaxed Gumbel",
    "gumbel_hard": "hard Gumbel",
    "reinforce": "REINFORCE",
}


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """REINFORCE's mean gradient against that of the expected loss; its components share their samples."""
    chosen = frame[(frame.quantity == "estimator_gradient") & (frame.method == "reinforce") & (frame.n > 0)]
    return chosen, float(frame[frame.quantity == "correlation_sq"].estimate.sum())


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """The one error of this table that a line is judged by is in units of eps times its scale already."""
    return 1.0, 1.0


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Share of seeds that reach the target, the median step with censored seeds, and how far soft is ahead."""
    result: list[dict[str, object]] = []
    for r in frame[frame.quantity == "steps_to_target"].to_dict("records"):
        result += _reached(r)
    for name, quantity in (("selection_accuracy", "lead_of_soft"), ("steps_to_target", "steps_over_soft")):
        result += _against_soft(frame[(frame.quantity == name) & (frame.statistic == "mean")], quantity)
    return result


def _place(r: Mapping[str, Any]) -> dict[str, object]:
    return {axis: r[axis] for axis in AXES} | {"theory": math.nan, "sd": math.nan}


def _reached(r: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    from attnrepro import stats

    total = r["n"] + r["n_failed"]
    share = stats.share_interval(r["n"], total)
    line = {**_place(r), "quantity": "share_reached", "statistic": "share", "n": total}
    yield {**line, "estimate": share.value, "ci_low": share.low, "ci_high": share.high}
    # A seed that never got there took longer than any number of steps: the median knows that, a mean does not.
    never = 1e300
    median = stats.median_interval([*r["seeds"], *[never] * r["n_failed"]])
    known = median.value < never / 2
    yield {
        **_place(r),
        "quantity": "steps_to_target",
        "statistic": "median",
        "unit": "steps",
        "n": r["n"] if known else 0,
        "n_failed": r["n_failed"],
        "estimate": median.value if known else math.nan,
        "ci_low": median.low if known else math.nan,
        "ci_high": median.high if known and median.high < never else math.nan,
    }


def _against_soft(rows: pd.DataFrame, quantity: str) -> Iterator[dict[str, object]]:
    """Soft selection of the same temperature against plain argmax (accuracy) and against what learns (steps).

    Over the seeds that both have.
    """
    from attnrepro import stats

    at = ["temperature", "n_keys", "optimizer"]
    soft = {tuple(r[a] for a in at): r for r in rows[rows.method == "soft"].to_dict("records")}
    for r in rows[rows.method != "soft"].to_dict("records"):
        base = soft.get(tuple(r[a] for a in at))
        if base is None or (r["method"] == "hard_argmax") == (quantity == "steps_over_soft"):
            continue
        both = [(base["by_seed"][s], r["by_seed"][s]) for s in base["by_seed"] if s in r["by_seed"]]
        values = [b / a if quantity == "steps_over_soft" else a - b for a, b in both]
        total = max(x["n"] + x["n_failed"] for x in (base, r))
        line = {**_place(r), "quantity": quantity, "n": len(values), "n_failed": total - len(values)}
        line["statistic"] = "mean" if quantity == "steps_over_soft" else "paired_difference"
        line["estimate"] = math.nan
        if values:
            import numpy as np

            interval = stats.mean_interval(values)
            line |= {"estimate": interval.value, "ci_low": interval.low, "ci_high": interval.high}
            line |= {"sd": float(np.std(values, ddof=1)) if len(values) > 1 else math.nan, "seeds": tuple(values)}
        yield line


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_gradient_controls(frame), *_training_controls(frame)]


def _gradient_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame.itertuples():
        if r.quantity == "gradient_error_eps" and not r.estimate <= HOLDS_EPS:
            yield f"gradient_error_eps is {r.estimate:.3g} at shape={r.shape}: at most {HOLDS_EPS:g} eps is round-off"
        if r.quantity == "breakage_eps" and not r.estimate >= BROKEN_EPS:
            yield f"breakage_eps is {r.estimate:.3g} at shape={r.shape}: weights without their sum kept the closed form"
        if r.quantity == "output_jump" and not r.estimate > 0:
            yield f"output_jump is {r.estimate:.3g}: a choice that never changes shows nothing about small changes"
        if r.n and r.quantity in COUNTED and r.estimate != r.theory:
            where = f"method={r.method} gap={r.gap} move={r.move} dtype={r.dtype}"
            yield f"{r.quantity} is {r.estimate:.6g} at {where}, not {r.theory:g}"


def _training_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame.itertuples():
        where = f"temperature={r.temperature} n_keys={r.n_keys} optimizer={r.optimizer}"
        if r.quantity == "selector_movement":
            if r.method == "hard_argmax" and r.estimate != 0:
                yield f"plain argmax moved its selector by {r.estimate:.3g} at {where}: it has got a gradient"
            if r.method != "hard_argmax" and not r.estimate > 0:
                yield f"{WORDS[r.method]} did not move its selector at {where}"
        if r.quantity == "share_reached" and r.method == "hard_argmax" and r.estimate > 0:
            yield f"plain argmax reached the target in {r.estimate:.2f} of its seeds at {where}: no selector is needed"
        if r.quantity == "share_reached" and (r.method, r.temperature) == ("soft", "1") and r.estimate < 1:
            yield f"softmax reached the target in {r.estimate:.2f} of its seeds at {where}: too little training"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_gradient_in_words(frame), *_training_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether a hard choice leaves scores without a gradient, and whether it can be trained all the same."""
    parts = []
    signal = frame[(frame.quantity == "share_with_signal") & (frame.method == "hard_argmax") & (frame.n > 0)]
    if len(signal):
        r = signal.iloc[0]
        none = "every" if r.estimate == 0 else "not every"
        word = "yes" if r.estimate == 0 else "no"
        parts.append(f"{word}, {none} score of a plain argmax is without a gradient ({r.n} scores)")
    reached = frame[(frame.quantity == "share_reached") & (frame.temperature == "1") & (frame.n > 0)]
    if len(reached):
        largest = reached[reached.n_keys == max(reached.n_keys, key=int)]
        hard = largest[largest.method.isin(HARD)]
        if len(hard):
            learn = [WORDS[name] for name in HARD if (hard[hard.method == name].estimate > 0.5).any()]
            word = "but hard choices are trained" if learn else "and hard choices were not trained"
            parts.append(f"{word} by gradient descent{f' with {_listed(learn)}' if learn else ''}")
        for method in ("hard_argmax", *HARD[:1]):
            rows = largest[largest.method == method]
            if len(rows):
                counts = f"{round((rows.estimate * rows.n).sum())} of {rows.n.sum()}"
                parts.append(f"{WORDS[method]} gets there in {counts} runs")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _gradient_in_words(frame: pd.DataFrame) -> Iterator[str]:
    jump = frame[frame.quantity == "output_jump"]
    slopes = frame[(frame.quantity == "second_gradient") & (frame.method == "soft")]
    if jump.empty or slopes.empty:
        return
    ordered = sorted(slopes.to_dict("records"), key=lambda r: float(r["temperature"]))
    low, one = ordered[0], next((r for r in ordered if r["temperature"] == "1"), ordered[-1])
    yield (
        "The derivative of an argmax choice is exactly 0 for every score, until the second overtakes the first and the"
        f" output jumps; softmax gives every score its a_k (v_k - o) / T, though the example's second place gets only"
        f" {abs(low['estimate']):.1g} at T = {low['temperature']} where it gets {abs(one['estimate']):.2g} at"
        f" T = {one['temperature']}."
    )


def _training_in_words(frame: pd.DataFrame) -> Iterator[str]:
    reached = frame[(frame.quantity == "share_reached") & (frame.temperature == "1")]
    medians = frame[(frame.quantity == "steps_to_target") & (frame.statistic == "median")]
    at = ["method", "temperature", "n_keys", "optimizer"]
    steps = {tuple(r[a] for a in at): r for r in medians.to_dict("records")}
    for optimizer in ("sgd", "adam"):
        rows = reached[reached.optimizer == optimizer]
        if rows.empty:
            continue
        largest = max(rows.n_keys, key=int)
        parts = [_learned(r, steps[tuple(r[a] for a in at)]) for r in rows[rows.n_keys == largest].to_dict("records")]
        yield f"Median steps to select among {largest} items at T = 1 with {optimizer}: {', '.join(parts)}."
    hard = reached[reached.method.isin(HARD)]
    if len(hard) and (hard.estimate > 0.5).all():
        yield (
            "So it is the derivative of argmax that cannot train a selector, not the hard choice: straight-through,"
            " Gumbel and REINFORCE replace that derivative and learn to choose one item."
        )


def _learned(r: Mapping[str, Any], steps: Mapping[str, Any]) -> str:
    """The median step of a method, and how many seeds got there unless all did."""
    total, count = r["n"], round(r["estimate"] * r["n"])
    seeds = f"{count} of {total} seeds get there [{r['ci_low']:.2f}, {r['ci_high']:.2f}]"
    if math.isnan(steps["estimate"]):
        return f"{WORDS[r['method']]} none ({seeds})"
    ends = ["" if math.isnan(steps[end]) else f"{steps[end]:.0f}" for end in ("ci_low", "ci_high")]
    interval = f" [{ends[0]}, {ends[1]}]" if any(ends) else ""
    return f"{WORDS[r['method']]} {steps['estimate']:.0f}{interval}{'' if count == total else f' ({seeds})'}"


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Steps to the target by method and temperature, and the second place's derivative against temperature."""
    return [chart for chart in (_steps_chart(frame), _accuracy_chart(frame), _slope_chart(frame)) if chart]


def _by_method(frame: pd.DataFrame, quantity: str, statistic: str, axis: str, title: str, log: bool) -> Any:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == quantity) & (frame.statistic == statistic) & (frame.n > 0)].copy()
    if rows.empty:
        return None
    largest = max(rows.n_keys, key=int)
    rows = rows[rows.n_keys == largest]
    rows["way"] = rows.method.map(WORDS) + ", " + rows.optimizer
    rows["T"] = rows.temperature
    columns = ["way", "T", "estimate", "ci_low", "ci_high", "n", "n_failed"]
    tip = [alt.Tooltip(f"{column}:{'N' if column in ('way', 'T') else 'Q'}") for column in columns]
    x = alt.X("estimate:Q", title=axis, scale=alt.Scale(type="log" if log else "linear", zero=False)).axis(tickCount=4)
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(
        y=alt.Y("way:N", title=None), color=alt.Color("T:N", title="temperature"), yOffset="T:N"
    )
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q"), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=f"{title}, {largest} items", description=f"{title} among {largest} items, by method")
        .to_dict()
    )
    return spec


def _steps_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    chart: Mapping[str, Any] | None = _by_method(
        frame, "steps_to_target", "median", "median steps to target", "learning to select", log=True
    )
    return chart


def _accuracy_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    chart: Mapping[str, Any] | None = _by_method(
        frame, "selection_accuracy", "mean", "right item has the highest score", "selector after training", log=False
    )
    return chart


def _slope_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "second_gradient") & (frame.method == "soft") & (frame.n > 0)].copy()
    if rows.empty:
        return None
    rows["T"], rows["size"], rows["exact"] = rows.temperature.astype(float), rows.estimate.abs(), rows.theory.abs()
    columns = ["T", "size", "exact"]
    base = alt.Chart(alt.Data(values=records(rows.sort_values("T"), columns))).encode(
        x=alt.X("T:Q", title="temperature", scale=alt.Scale(type="log"))
    )

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="|d o / d s| of the second", scale=alt.Scale(type="log")).axis(tickCount=3)

    title = "signal of the second place, softmax"
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_line(style="theory").encode(y=y("exact")),
            base.mark_point(style="measured").encode(
                y=y("size"), tooltip=[alt.Tooltip(f"{column}:Q") for column in columns]
            ),
        )
        .properties(title=title, description=f"{title}: derivative against temperature")
        .to_dict()
    )
    return spec
