"""time_conditioning, read: errors paired by seed, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.tables.time_conditioning.table import AXES, TASKS

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive", "monte_carlo"]

# What carries no t, and what everything is compared with.
BLIND = ("zero_frequency", "shuffled")
BASE = "sinusoidal"
WORDS = {"turn_once": "one circle", "turn_four_times": "four circles", "denoise": "denoising"}


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The best error without t, simulated; every job has samples of its own."""
    chosen = frame[(frame.quantity == "blind_error") & (frame.n > 0)]
    return chosen, float(len(chosen))


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Errors over that of the sinusoidal embedding, seed by seed, on a log scale."""
    errors = frame[(frame.quantity == "mse") & (frame.statistic == "mean")].to_dict("records")
    base = {r["task"]: r for r in errors if r["encoding"] == BASE}
    return [_ratio(r, base[r["task"]]) for r in errors if r["encoding"] != BASE and r["task"] in base]


def _ratio(r: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, object]:
    import numpy as np

    from attnrepro import stats

    both = [seed for seed in r["by_seed"] if seed in base["by_seed"]]
    values = [math.log10(r["by_seed"][seed] / base["by_seed"][seed]) for seed in both]
    total = max(x["n"] + x["n_failed"] for x in (r, base))
    line: dict[str, object] = {axis: r[axis] for axis in AXES}
    line |= {"quantity": "log_error_ratio", "statistic": "paired_difference", "theory": math.nan, "sd": math.nan}
    line |= {"n": len(values), "n_failed": total - len(values), "estimate": math.nan, "seeds": tuple(values)}
    if values:
        interval = stats.mean_interval(values)
        line |= {"estimate": interval.value, "ci_low": interval.low, "ci_high": interval.high}
    if len(values) > 1:
        line["sd"] = float(np.std(values, ddof=1))
    return line


def _errors(frame: pd.DataFrame) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """Mean errors that there are, by task, encoding and scale."""
    rows = frame[(frame.quantity == "mse") & (frame.statistic == "mean") & (frame.n > 0)]
    return {(r["task"], r["encoding"], r["scale_of_t"]): r for r in rows.to_dict("records")}


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return list(_breaches(frame))


def _breaches(frame: pd.DataFrame) -> Iterator[str]:
    blind = {r.task: r.theory for r in frame[frame.quantity == "blind_error"].itertuples()}
    errors = _errors(frame)
    for (task, encoding, _), r in errors.items():
        best, raw = blind[task], errors.get((task, "raw", "1"))
        if encoding in BLIND:
            if r["ci_high"] < best:
                yield f"{task}, {encoding}: error {r['estimate']:.4g} is below {best:.4g}, the best without t"
            if raw and not r["estimate"] > raw["estimate"]:
                yield f"{task}, {encoding}: error {r['estimate']:.4g} is no larger than with t itself"
        # Raw t may well go unused: that is what the table is about.
        elif encoding in (BASE, "octaves") and not r["ci_high"] < best / 2:
            yield f"{task}, {encoding}: error {r['estimate']:.4g} is not half of {best:.4g}: t is not used"
    for r in frame[(frame.quantity == "mse") & (frame.n_failed > 0)].itertuples():
        yield f"{r.task}, {r.encoding}: {r.n_failed} seeds diverged"


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """On how many tasks the embedding is better, and by how much."""
    rows = frame[(frame.quantity == "log_error_ratio") & (frame.n > 1) & (frame.encoding == "raw")]
    found = {r.task: r for r in rows[rows.scale_of_t == "1"].itertuples()}
    if not found:
        return
    better, worse = (
        sum(sign * getattr(r, end) > 0 for r in found.values()) for sign, end in ((1, "ci_low"), (-1, "ci_high"))
    )
    word = "yes" if better == len(found) else "not always" if better else "no"
    less = f", smaller on {worse}" if worse else ""
    told = ", ".join(
        f"{WORDS[task]} x {_plain(10**r.estimate)} [{_plain(10**r.ci_low)}, {_plain(10**r.ci_high)}]"
        for task, r in found.items()
    )
    yield (
        f"{word[0].upper()}{word[1:]}: with t itself the error is larger than with its sines on {better} of"
        f" {len(found)} tasks{less} ({told}; {max(r.n for r in found.values())} seeds)."
    )


def _in_words(frame: pd.DataFrame) -> Iterator[str]:
    errors = _errors(frame)
    ratios = frame[(frame.quantity == "log_error_ratio") & (frame.n > 1)]
    by_place = {(r.task, r.encoding, r.scale_of_t): r for r in ratios.itertuples()}

    def times(task: str, encoding: str, scale: str) -> str:
        r = by_place[task, encoding, scale]
        return f"x {_plain(10**r.estimate)} [{_plain(10**r.ci_low)}, {_plain(10**r.ci_high)}]"

    parts = []
    for task, words in WORDS.items():
        if (task, "raw", "1") in by_place and (task, BASE, "") in errors:
            raw, base = errors[task, "raw", "1"]["estimate"], errors[task, BASE, ""]["estimate"]
            parts.append(f"{words} {raw:.2g} against {base:.2g} ({times(task, 'raw', '1')})")
    if parts:
        yield f"Error with raw t against that with its sinusoidal embedding: {'; '.join(parts)}."
    others = (
        ("raw", "10", "t ten times as loud"),
        ("standardised", "", "t standardised"),
        ("repeated", "", "t repeated"),
        ("octaves", "", "octaves"),
    )
    for encoding, scale, words in others:
        found = [f"{WORDS[t]} {times(t, encoding, scale)}" for t in WORDS if (t, encoding, scale) in by_place]
        if found:
            yield f"The same ratio for {words}: {', '.join(found)}."


def _plain(ratio: float) -> str:
    """Two digits without an exponent."""
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Errors by encoding, a chart for each job, beside the best error without t."""
    return [chart for task in TASKS if (chart := _chart(frame, task))]


def _chart(frame: pd.DataFrame, task: str) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "mse") & (frame.task == task) & (frame.n > 0)].copy()
    if rows.empty:
        return None
    rows["way"] = [f"{r.encoding} x{r.scale_of_t}" if r.scale_of_t else r.encoding for r in rows.itertuples()]
    # An interval that reaches 0 has no place on a log axis.
    rows.loc[rows.ci_low <= 0, ["ci_low", "ci_high"]] = math.nan
    columns = ["way", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'way' else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(y=alt.Y("way:N", title=None, sort=list(rows.way)))
    x = alt.X("estimate:Q", title="mean square error", scale=alt.Scale(type="log")).axis(tickCount=4)
    best = float(frame[(frame.quantity == "blind_error") & (frame.task == task)].theory.iloc[0])
    limit = alt.Chart(alt.Data(values=[{"limit": "best without t", "at": best}]))
    title = f"error by encoding of t: {WORDS[task]}"
    spec: Mapping[str, Any] = (
        alt.layer(
            limit.mark_rule(style="theory").encode(x="at:Q", tooltip=[alt.Tooltip("limit:N"), alt.Tooltip("at:Q")]),
            base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q"), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=title, description=f"{title}: mean square error after training, and the best without t")
        .to_dict()
    )
    return spec
