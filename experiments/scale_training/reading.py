"""scale_training, read: what follows from the seeds, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import records
from attnrepro.tables.scale_training.table import ARMS, AXES, RACED

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "monte_carlo"]

HIDDEN = ("seed_",)
# Widest half of an interval of steps to target, relative to the mean.
WIDEST = 0.2
# How far the logits of the start may be from their variance in theory, over all seeds together.
START_TOLERANCE = 0.25
# Gradients that the arms are compared by at the start.
DROPS = ("grad_query", "grad_weights")


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Accuracy of uniform attention over the whole table; cells of the same seeds share their test sequences."""
    rows = frame[(frame.quantity == "uniform_accuracy") & frame.theory.notna()]
    return rows, float(len(rows) ** 2)


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Shares with their exact intervals, slowdowns seed by seed, and what is lost of the gradients of the start."""
    result = [*_shares(frame, "seed_broken", "broken")]
    result += [*_shares(frame, "seed_diverged", "diverged"), *_shares(frame, "seed_diverged_early", "diverged_early")]
    result += [*_reached(frame), *_slowdowns(frame), *_repairs(frame), *_drops(frame)]
    return result


def _line(at: Mapping[str, Any], quantity: str, statistic: str) -> dict[str, object]:
    return {
        **{axis: at.get(axis, "") for axis in AXES},
        **{"quantity": quantity, "statistic": statistic, "theory": math.nan, "sd": math.nan},
    }


def _share(at: Mapping[str, Any], quantity: str, count: int, n: int) -> dict[str, object]:
    from attnrepro.stats import share_interval

    share = share_interval(count, n)
    return _line(at, quantity, "share") | {"estimate": share.value, "n": n, "ci_low": share.low, "ci_high": share.high}


def _shares(frame: pd.DataFrame, hidden: str, quantity: str) -> Iterator[dict[str, object]]:
    for r in frame[frame.quantity == hidden].to_dict("records"):
        yield _share(r, quantity, round(sum(r["by_seed"].values())), r["n"])


def _reached(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Share of seeds that reach the target: those that never do count, which the mean of the steps leaves out."""
    for r in frame[frame.quantity == "steps_to_target"].to_dict("records"):
        yield _share(r, "reached", r["n"], r["n"] + r["n_failed"])


def _paired(at: Mapping[str, Any], quantity: str, by_seed: Mapping[str, float], failed: int = 0) -> dict[str, object]:
    from attnrepro import stats

    line = _line(at, quantity, "paired_difference") | {"n": len(by_seed), "n_failed": failed, "estimate": math.nan}
    if by_seed:
        import numpy as np

        values = list(by_seed.values())
        interval = stats.mean_interval(values)
        line |= {"estimate": interval.value, "ci_low": interval.low, "ci_high": interval.high, "seeds": tuple(values)}
        line |= {"by_seed": dict(by_seed)}
        if len(values) > 1:
            line["sd"] = float(np.std(values, ddof=1)) if np.ptp(values) else 0.0
    return line


def _settings(rows: pd.DataFrame, *axes: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Records of one setting by what the first of ``axes`` says, every setting of the others by itself."""
    for _, part in rows.groupby(list(axes[1:]), sort=False):
        yield {r[axes[0]]: r for r in part.to_dict("records")}


def _both(
    a: Mapping[str, Any], b: Mapping[str, Any], combine: Callable[[float, float], float]
) -> tuple[dict[str, float], int]:
    """Both rows seed by seed, and how many seeds lack one of them."""
    found = {seed: combine(a["by_seed"][seed], b["by_seed"][seed]) for seed in a["by_seed"] if seed in b["by_seed"]}
    return found, max(a["n"] + a["n_failed"], b["n"] + b["n_failed"]) - len(found)


def _slowdowns(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """log2 of an arm's steps over those of the scaled arm; a seed that never arrives counts with all its updates."""
    steps = frame[frame.quantity == "seed_steps"]
    arrived = frame[(frame.quantity == "steps_to_target") & (frame.arm == "scaled")]
    known = {(r["optimizer"], r["head_dim"], r["init"]): r["by_seed"] for r in arrived.to_dict("records")}
    for arms in _settings(steps, "arm", "optimizer", "head_dim", "init"):
        for arm in ("unscaled", "scale_removed"):
            if arm in arms and "scaled" in arms:
                at = arms[arm]
                # Nothing is known of the ratio where the scaled arm never arrives.
                base = known.get((at["optimizer"], at["head_dim"], at["init"]), {})
                values = {seed: math.log2(at["by_seed"][seed] / base[seed]) for seed in base if seed in at["by_seed"]}
                yield _paired(at, "slowdown_log2", values, at["n"] - len(values))


def _repairs(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Slowdown under gradient descent minus slowdown under Adam."""
    import pandas as pd

    slow = pd.DataFrame(list(_slowdowns(frame)))
    if slow.empty:
        return
    slow = slow[slow.n > 0]
    for found in _settings(slow, "optimizer", "head_dim", "init", "arm"):
        if {"sgd", "adam"} <= set(found):
            values, failed = _both(found["sgd"], found["adam"], lambda a, b: a - b)
            yield _paired({**found["sgd"], "optimizer": ""}, "adam_repair_log2", values, failed)


def _drops(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """log10 of a gradient of the start with the factor over the same without it; optimisers start from the same."""
    start = frame[(frame.step == "0") & frame.quantity.isin(DROPS)]
    for (quantity, statistic), rows in start.groupby(["quantity", "statistic"], sort=False):
        seen = set()
        for arms in _settings(rows, "arm", "optimizer", "head_dim", "init"):
            if not {"scaled", "unscaled"} <= set(arms):
                continue
            at = arms["unscaled"]
            if (at["head_dim"], at["init"]) in seen:
                continue
            seen.add((at["head_dim"], at["init"]))
            values, failed = _both(arms["scaled"], at, lambda a, b: math.log10(a / b) if a > 0 and b > 0 else math.nan)
            known = {seed: value for seed, value in values.items() if math.isfinite(value)}
            place = {**at, "optimizer": "", "arm": ""}
            yield _paired(place, f"{quantity}_{statistic}_drop_log10", known, failed + len(values) - len(known))


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_arm_controls(frame), *_rate_controls(frame), *_start_controls(frame)]


def _where(r: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={r[axis]}" for axis in AXES if r[axis])


def _arm_controls(frame: pd.DataFrame) -> Iterator[str]:
    steps = frame[frame.quantity == "steps_to_target"].to_dict("records")
    for arm in ARMS:
        if not any(r["arm"] == arm for r in steps):
            yield f"there is no arm {arm} to compare with"
    smallest = min((int(r["head_dim"]) for r in steps), default=0)
    for r in steps:
        if r["arm"] == "uniform" and r["n"]:
            yield f"{_where(r)}: attention frozen to 1/n reached the target in {r['n']} seeds"
        if r["arm"] == "scaled" and int(r["head_dim"]) == smallest and r["n_failed"]:
            yield f"{_where(r)}: {r['n_failed']} seeds did not reach the target although they have the factor"
        # A rate that was not chosen for its arm may be so far off that seeds differ by more than the rest does.
        if r["arm"] in RACED and r["n"] > 1 and not r["n_failed"] and not _half(r) <= WIDEST:
            yield f"{_where(r)}: the interval of the steps to target is ±{_half(r):.0%}, wider than ±{WIDEST:.0%}"
    for r in frame[frame.quantity == "broken"].to_dict("records"):
        if r["estimate"] < 1:
            yield f"{_where(r)}: a training that must diverge was not seen to in {1 - r['estimate']:.0%} of the seeds"


def _half(r: Mapping[str, Any]) -> float:
    """Half the width of an interval relative to its middle."""
    return float((r["ci_high"] - r["ci_low"]) / 2 / r["estimate"])


def _rate_controls(frame: pd.DataFrame) -> Iterator[str]:
    raced = frame[frame.quantity == "tuning_steps"]
    for r in frame[frame.quantity == "chosen_rate"].to_dict("records"):
        same = raced[(raced[["optimizer", "head_dim", "init", "arm"]] == [r[a] for a in AXES[:4]]).all(axis=1)]
        rates = sorted(same.learning_rate.astype(float))
        if rates and r["estimate"] in (rates[0], rates[-1]):
            yield f"{_where(r)}: the rate {r['estimate']:g} that won stands at the end of the grid"


def _start_controls(frame: pd.DataFrame) -> Iterator[str]:
    start = frame[(frame.quantity == "logit_variance") & (frame.step == "0") & (frame.n > 0)]
    for r in start.to_dict("records"):
        if not abs(r["estimate"] / r["theory"] - 1) <= START_TOLERANCE:
            yield f"{_where(r)}: logits of the start have variance {r['estimate']:.3g}, not {r['theory']:.3g}"


# --- answer and charts ---


OPTIMIZERS = {"sgd": "gradient descent", "adam": "Adam"}


def answer(frame: pd.DataFrame) -> str:
    """Does it stall, does it diverge, does Adam repair it: one sentence with intervals, and one on the gradients."""
    unit = frame[frame.init == "unit"]
    if unit[unit.quantity == "steps_to_target"].empty:
        return ""
    large = str(max(int(d) for d in unit[unit.quantity == "steps_to_target"].head_dim))
    rows = unit[unit.head_dim == large]
    parts = [_optimizer_in_words(rows, optimizer) for optimizer in OPTIMIZERS]
    first = _first_in_words(rows, large)
    told = f"At head_dim {large}: {'; '.join(filter(None, parts))}."
    return " ".join(
        [
            first,
            *([told] if any(parts) else []),
            *_repair_in_words(rows),
            *_diverged_in_words(frame),
            *_gradients_in_words(rows),
        ]
    )


def _first_in_words(rows: pd.DataFrame, large: str) -> str:
    """The three questions in one sentence."""
    said = f"Without 1/sqrt(head_dim), at head_dim {large}, training {_stall_in_words(rows)}"
    slow = {name: _find(rows, "slowdown_log2", optimizer=name, arm="unscaled") for name in OPTIMIZERS}
    if told := [f"{_power(r)} with {OPTIMIZERS[name]}" for name, r in slow.items() if r["n"]]:
        said += f" (updates times {', '.join(told)}, each at its best rate)"
    lost = [r for name in OPTIMIZERS if (r := _find(rows, "diverged", optimizer=name, arm="unscaled"))["n"]]
    if lost:
        failed, runs = sum(round(r["estimate"] * r["n"]) for r in lost), sum(r["n"] for r in lost)
        said += f", {f'diverges in {failed} of {runs} runs' if failed else f'diverges in none of {runs} runs'}"
    return f"{said}, and Adam {_repaired(rows)}." if _repaired(rows) else f"{said}."


def _repaired(rows: pd.DataFrame) -> str:
    """What Adam does to the slowdown; nothing where it was not raced against gradient descent."""
    repair = _find(rows, "adam_repair_log2", arm="unscaled")
    if not repair["n"]:
        return ""
    if repair["ci_low"] > 0:
        return "repairs a part of it"
    return "makes it worse" if repair["ci_high"] < 0 else "does not repair it"


def _find(rows: pd.DataFrame, quantity: str, **axes: str) -> dict[str, Any]:
    """The row of a quantity; an empty one, with n = 0, where there is none."""
    rows = rows[rows.quantity == quantity]
    for axis, value in axes.items():
        rows = rows[rows[axis] == value]
    found: list[dict[str, Any]] = rows.to_dict("records")
    return found[0] if found else {"n": 0}


def _stall_in_words(rows: pd.DataFrame) -> str:
    """Whether most seeds arrive at the rate that was chosen without the factor, under every optimiser there is."""
    found = rows[(rows.quantity == "reached") & (rows.arm == "unscaled")]
    if (found.ci_low > 0.5).all():
        return "is slower but does not stall"
    return "stalls" if (found.ci_high < 0.5).all() else "stalls in part of the seeds or optimisers"


def _optimizer_in_words(rows: pd.DataFrame, optimizer: str) -> str:
    def count(quantity: str, arm: str) -> str:
        r = _find(rows, quantity, optimizer=optimizer, arm=arm)
        return f"{round(r['estimate'] * r['n'])} of {r['n']} [{r['ci_low']:.2f}, {r['ci_high']:.2f}]"

    slow = _find(rows, "slowdown_log2", optimizer=optimizer, arm="unscaled")
    if not slow["n"]:
        return ""
    return (
        f"{OPTIMIZERS[optimizer]} needs {_power(slow)} times the updates, each arm at its own best rate"
        f" ({count('reached', 'unscaled')} seeds arrive, {count('diverged', 'unscaled')} diverge), and at the rate of"
        f" the arm with the factor {count('reached', 'scale_removed')} arrive,"
        f" {count('diverged', 'scale_removed')} diverge"
    )


def _power(r: Mapping[str, Any]) -> str:
    """A mean of log2 and its interval as factors."""
    middle, *ends = (2.0 ** r[name] for name in ("estimate", "ci_low", "ci_high"))
    return f"{middle:.3g}" + ("" if math.isnan(ends[0]) else f" [{ends[0]:.3g}, {ends[1]:.3g}]")


def _repair_in_words(rows: pd.DataFrame) -> Iterator[str]:
    repair = _find(rows, "adam_repair_log2", arm="unscaled")
    if repair["n"]:
        yield f"Slowdown under gradient descent over that under Adam: {_power(repair)}, so that Adam {_repaired(rows)}."


def _diverged_in_words(frame: pd.DataFrame) -> Iterator[str]:
    """Where leaving the factor out makes half of the seeds or more diverge early, over the whole grid."""
    rows = frame[(frame.quantity == "diverged_early") & frame.arm.isin(["unscaled", "scale_removed"])]
    found = rows[rows.estimate >= 0.5]
    places = [
        f"{r.optimizer} at head_dim {r.head_dim}, init {r.init}, {WORDS[r.arm]} ({round(r.estimate * r.n)} of {r.n})"
        for r in found.itertuples()
    ]
    said = "; ".join(places) or "nowhere"
    yield f"Of {len(rows)} settings without the factor half of the seeds or more diverge early in {len(found)}: {said}."


def _gradients_in_words(rows: pd.DataFrame) -> Iterator[str]:
    median, rms = (_find(rows, f"grad_query_{statistic}_drop_log10") for statistic in ("median", "rms"))
    if median["n"] and rms["n"]:
        said = [
            f"{10.0 ** -r['estimate']:.2g} [{10.0 ** -r['ci_high']:.2g}, {10.0 ** -r['ci_low']:.2g}]"
            for r in (median, rms)
        ]
        yield (
            f"At the start the typical query's gradient is {said[0]} times that with the factor, the root mean square"
            f" {said[1]} times."
        )


WORDS = {
    "scaled": "scaled",
    "unscaled": "unscaled, own best rate",
    "scale_removed": "unscaled, rate of scaled",
    "uniform": "attention frozen",
}


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Steps against head_dim, and accuracy and gradients through time at the largest head_dim."""
    unit = frame[(frame.init == "unit") & (frame.n > 0)]
    found = [_steps_chart(unit, o) for o in ("sgd", "adam")]
    found += [_time_chart(unit, o, *what) for o in ("sgd", "adam") for what in TIMES]
    return [chart for chart in found if chart is not None]


TIMES = (("accuracy", "mean", "accuracy"), ("grad_query", "rms", "query gradient, rms"))
COLUMNS = ["estimate", "ci_low", "ci_high"]


def _steps_chart(frame: pd.DataFrame, optimizer: str) -> Mapping[str, Any] | None:
    rows = frame[(frame.quantity == "steps_to_target") & (frame.optimizer == optimizer) & (frame.n_failed == 0)].copy()
    if rows.empty:
        return None
    import altair as alt

    rows["head dim"], rows["which"] = rows.head_dim.astype(int), rows.arm.map(WORDS)
    x = alt.X("head dim:Q", title="head_dim").scale(type="log", base=2).axis(format="~g")
    return _drawn(rows, "head dim", x, "updates, where every seed arrives", f"updates to target, {optimizer}", log=True)


def _time_chart(
    frame: pd.DataFrame, optimizer: str, quantity: str, statistic: str, words: str
) -> Mapping[str, Any] | None:
    rows = frame[(frame.quantity == quantity) & (frame.statistic == statistic) & (frame.optimizer == optimizer)].copy()
    if rows.empty:
        return None
    import altair as alt

    large = max(int(d) for d in rows.head_dim)
    rows = rows[rows.head_dim == str(large)]
    rows["update"], rows["which"] = rows.step.astype(int), rows.arm.map(WORDS)
    x = alt.X("update:Q", title="updates").scale(type="symlog", constant=10).axis(values=[0, 10, 30, 100, 300, 1000])
    title = f"{words}, {optimizer}, head_dim {large}"
    return _drawn(rows, "update", x, words, title, log=quantity != "accuracy")


def _drawn(rows: pd.DataFrame, along: str, x: Any, y_title: str, title: str, *, log: bool) -> Mapping[str, Any]:
    import altair as alt

    if log:  # nothing at zero or below has a place on a logarithmic axis
        rows = rows[rows.estimate > 0].assign(ci_low=rows.ci_low.where(rows.ci_low > 0))
    values = records(rows, [along, "which", *COLUMNS])

    def y(field: str) -> alt.Y:
        axis = alt.Y(f"{field}:Q", title=y_title)
        return axis.scale(type="log").axis(format="~g", tickCount=5) if log else axis

    base = alt.Chart(alt.Data(values=values)).encode(x=x, color=alt.Color("which:N", title=None))
    tip = [alt.Tooltip("which:N"), *(alt.Tooltip(f"{name}:Q", format=".3g") for name in COLUMNS)]
    layers = [
        base.mark_line(opacity=0.5).encode(y=y("estimate")),
        base.transform_filter("isValid(datum.ci_low)")
        .mark_rule(style="interval")
        .encode(y=y("ci_low"), y2="ci_high:Q"),
        base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
    ]
    spec: Mapping[str, Any] = (
        alt.layer(*layers).properties(title=title, description=f"{title}, with and without the factor").to_dict()
    )
    return spec
