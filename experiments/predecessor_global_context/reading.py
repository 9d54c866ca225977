"""predecessor_global_context, read: shares that took off, leads, controls, answer, charts. Makes no row of a cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.derived import over_seeds
from attnrepro.results.published import PublishedLine
from attnrepro.results.verdicts import HOLDS_EPS, REFUTED_EPS
from attnrepro.tables.predecessor_global_context.table import AXES

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

__all__ = ["AXES", "answer", "charts", "controls", "derive", "roundoff"]

BASE, CONTROL = "none", "global_average"
# What is to reach REACHED at the median within its budget, and what CONTROL is to reach in three.
JUDGED, REACHED, CONTROL_REACHED = ("multi_head", "global_context", "non_local"), 0.9, 0.8
# Standard errors by which a proven bound may seem to be passed.
ABOVE_SE = 4.0
WORDS = {
    "none": "no block",
    "global_average": "global average",
    "squeeze_excitation": "SE",
    "global_context": "GC",
    "non_local": "Non-local",
    "non_local_pooled": "Non-local, pooled",
    "sagan": "SAGAN",
    "criss_cross_1": "criss-cross, once",
    "criss_cross_2": "criss-cross, twice",
    "relation": "relation module",
    "swin": "Swin pair",
    "multi_head": "multi-head attention",
}
# Nothing but one vector for all places: a linear read-out of places cannot use it.
ALIKE = ("none", "global_average", "global_context", "relation")

# Task, read-out and block.
Arm = tuple[str, str, str]


class Curves:
    """Accuracies by arm, updates and seed, and how many seeds diverged."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.found: dict[Arm, dict[int, dict[str, float]]] = {}
        self.failed: dict[Arm, int] = {}
        chosen = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean") & (frame.updates != "")]
        for r in chosen.itertuples():
            arm = (r.task, r.readout, r.block)
            self.found.setdefault(arm, {})[int(r.updates)] = dict(r.by_seed)
            self.failed[arm] = max(self.failed.get(arm, 0), int(r.n_failed))
        bounds = frame[frame.quantity == "local_accuracy_bound"]
        self.bound = {r.task: float(r.theory) for r in bounds.itertuples()}

    def budget(self, task: str) -> int:
        """Updates that every block of a task got: where the CNN without a block ends."""
        return max(self.found.get((task, "linear", BASE), {0: {}}))

    def at(self, arm: Arm, updates: int) -> dict[str, float]:
        """Accuracies after so many updates, by seed."""
        return self.found.get(arm, {}).get(updates, {})

    def tuned_for(self, arm: Arm, updates: int) -> bool:
        """Whether the rate of an arm was chosen for so many updates: those of its training, of CONTROL the budget."""
        chosen = self.budget(arm[0]) if arm[2] == CONTROL else max(self.found[arm])
        return chosen == updates

    def off(self, arm: Arm, updates: int) -> tuple[int, int]:
        """How many seeds are above the bound after so many updates, and how many there are."""
        values = self.at(arm, updates).values()
        return sum(value > self.bound[arm[0]] for value in values), len(values) + self.failed[arm]


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Shares that took off, medians, how much later the control did, leads, and what the last updates added."""
    curves = Curves(frame)
    return [*_shares(curves), *_taken_off(frame), *_delay(frame), *_leads(curves), *_rises(curves)]


def _line(quantity: str, statistic: str, arm: Arm, updates: int | str, **more: object) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | dict(zip(AXES, (*arm, str(updates)), strict=False))
    line |= {"quantity": quantity, "statistic": statistic, "n_failed": 0, "theory": math.nan, "sd": math.nan}
    return line | {"estimate": math.nan, "n": 0} | more


def _interval(found: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("estimate", "ci_low", "ci_high"), found, strict=True))


def _shares(curves: Curves) -> Iterator[dict[str, object]]:
    from attnrepro import stats

    for arm, by_updates in curves.found.items():
        for updates, values in by_updates.items():
            if arm[0] in curves.bound and updates:
                off, n = curves.off(arm, updates)
                yield _line("taken_off", "share", arm, updates, n=n, **_interval(stats.share_interval(off, n)))
            if values:
                median = stats.median_interval(list(values.values()))
                more = {"n": len(values), "n_failed": curves.failed[arm]}
                yield _line("accuracy", "median", arm, updates, **_interval(median), **more)


def _taken_off(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Median of the updates until a seed took off; one that never did took longer than any that did."""
    from attnrepro import stats

    never = 1e300
    rows = frame[(frame.quantity == "updates_to_take_off") & (frame.statistic == "mean")]
    for r in rows.itertuples():
        median = stats.median_interval([*r.seeds, *[never] * r.n_failed])
        if median.value < never / 2:
            ends = {"ci_low": median.low, "ci_high": median.high if median.high < never else math.nan}
            more = {"n": r.n, "n_failed": r.n_failed, "unit": "updates"}
            arm = (r.task, r.readout, r.block)
            yield _line("updates_to_take_off", "median", arm, "", estimate=median.value, **ends, **more)


def _delay(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """By how many updates the control took off later than what is judged, in seeds where both did."""
    rows = frame[(frame.quantity == "updates_to_take_off") & (frame.statistic == "mean") & (frame.readout == "linear")]
    found = {(r.task, r.block): r for r in rows.itertuples()}
    for (task, block), r in found.items():
        control = found.get((task, CONTROL))
        if block in JUDGED and control is not None and (values := _paired(control.by_seed, r.by_seed)):
            failed = max(r.n + r.n_failed, control.n + control.n_failed) - len(values)
            arm = (task, "linear", f"{CONTROL} - {block}")
            more = {"n_failed": failed, "unit": "updates"}
            yield _line("take_off_delay", "paired_difference", arm, "", **more) | over_seeds(values)


def _paired(first: Mapping[str, float], second: Mapping[str, float]) -> list[float]:
    return [first[seed] - second[seed] for seed in first if seed in second]


def _leads(curves: Curves) -> Iterator[dict[str, object]]:
    """Over no block at the budget, and of what attends over the control and over GC, as "a - b".

    Only of what was tuned for that budget.
    """
    for arm in curves.found:
        task, readout, block = arm
        budget = curves.budget(task)
        if not curves.tuned_for(arm, budget):
            continue
        pairs = [(block, readout, BASE, "linear")] if block != BASE else []
        pairs += [(block, readout, other, "linear") for other in (CONTROL, "global_context") if block in JUDGED]
        if readout == "hidden":
            pairs.append((block, readout, block, "linear"))
        for name, read, other, other_read in pairs:
            values = _paired(curves.at((task, read, name), budget), curves.at((task, other_read, other), budget))
            if values and (name, read) != (other, other_read):
                label = read if read == other_read else f"{read} - {other_read}"
                yield _line(
                    "accuracy_lead", "paired_difference", (task, label, f"{name} - {other}"), budget
                ) | over_seeds(values)


def _rises(curves: Curves) -> Iterator[dict[str, object]]:
    """Accuracy at the end of a training less that after two thirds of it."""
    for arm, by_updates in curves.found.items():
        end = max(by_updates)
        before = max((step for step in by_updates if 3 * step <= 2 * end), default=0)
        values = _paired(by_updates[end], by_updates[before]) if before else []
        if values:
            yield _line("rise", "paired_difference", arm, end) | over_seeds(values)


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors are in eps of the largest logit already."""
    return 1.0, 1.0


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    curves = Curves(frame)
    return [
        *_anchors(frame),
        *_bounds(frame),
        *_reached(curves),
        *_tuning(frame),
        *_failures(curves),
    ]


def _name(arm: Arm) -> str:
    task, readout, block = arm
    return f"{WORDS[block]} on {task}" + (", hidden layer" if readout == "hidden" else "")


def _anchors(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.quantity.str.endswith("_error_eps")].itertuples():
        if not r.estimate <= HOLDS_EPS:
            yield f"{r.block}: {r.quantity} is {r.estimate:.3g}: at most {HOLDS_EPS:g} is round-off"
    for r in frame[frame.quantity.str.endswith("_breakage_eps")].itertuples():
        if not r.estimate >= REFUTED_EPS:
            yield f"{r.block}: {r.quantity} is {r.estimate:.3g}: what must break it did not"


def _bounds(frame: pd.DataFrame) -> Iterator[str]:
    """No proven bound is passed, in accuracy or in loss, by more than seeds scatter."""
    least = {r.task: r.theory for r in frame[frame.quantity == "least_local_loss"].itertuples()}
    most = {r.task: r.theory for r in frame[frame.quantity == "local_accuracy_bound"].itertuples()}
    for r in frame[(frame.statistic == "mean") & frame.quantity.isin(["accuracy", "loss"])].itertuples():
        if not _untunable((r.task, r.readout, r.block)) or r.n < 2 or r.task not in least:
            continue
        slack = ABOVE_SE * r.sd / math.sqrt(r.n)
        where = f"{WORDS[r.block]} on {r.task} after {r.updates} updates"
        if r.quantity == "loss" and r.estimate + slack < least[r.task]:
            yield f"{where}: loss {r.estimate:.4f} is below {least[r.task]:.4f}, which nothing of its kind can be"
        if r.quantity == "accuracy" and r.estimate - slack > most[r.task]:
            yield f"{where}: accuracy {r.estimate:.4f} is above {most[r.task]:.4f}, which nothing of its kind exceeds"


def _reached(curves: Curves) -> Iterator[str]:
    task = "same_different"
    budget = curves.budget(task)
    for block in JUDGED:
        values = list(curves.at((task, "linear", block), budget).values())
        if values and (median := statistics.median(values)) < REACHED:
            name = _name((task, "linear", block))
            yield f"{name}: median accuracy {median:.3f} after {budget} updates, not {REACHED}"
    arm = (task, "linear", CONTROL)
    if arm in curves.found:
        end = max(curves.found[arm])
        values = list(curves.at(arm, end).values())
        rises = [r for r in _rises(curves) if (r["task"], r["readout"], r["block"]) == arm]
        rising = any(float(r["ci_low"]) > 0 for r in rises)  # type: ignore[arg-type]
        if values and statistics.median(values) < CONTROL_REACHED and not rising:
            yield (
                f"{_name(arm)}: median accuracy {statistics.median(values):.3f} after {end} updates, and no longer"
                " rising: the task is not one of budgets"
            )


def rates() -> dict[str, Any]:
    """The chosen rates, by task, read-out and block."""
    return load_yaml(paths.conf_dir() / "rates" / "blocks.yaml")


def _tuning(frame: pd.DataFrame) -> Iterator[str]:
    chosen = rates()
    bound = Curves(frame).bound
    grids: dict[Arm, dict[float, float]] = {}
    best_end: dict[Arm, float] = {}
    for r in frame[(frame.learning_rate != "") & frame.quantity.str.startswith("validation_")].itertuples():
        arm = (r.task, r.readout, r.block)
        if r.n and not r.n_failed:
            if r.quantity == "validation_height":
                grids.setdefault(arm, {})[float(r.learning_rate)] = r.estimate
            else:
                best_end[arm] = max(best_end.get(arm, 0.0), max(r.seeds))
    tuned = {arm for arm, found in grids.items() if len(found) > 1}
    for arm in Curves(frame).found if tuned else ():
        if arm not in tuned and not _untunable(arm):
            yield f"{_name(arm)}: its rate was never chosen, those of others were"
    for arm, found in grids.items():
        if len(found) < 2 or best_end.get(arm, 0.0) <= bound.get(arm[0], math.inf):
            continue  # one rate is no grid, and where nothing took off none is better than another
        task, readout, block = arm
        best, used = max(found, key=lambda rate: found[rate]), float(chosen[task][readout][block])
        if used != best:
            yield f"{_name(arm)}: the rate used is {used:g}, the best on validation images {best:g}"
        if best in (min(found), max(found)):
            yield f"{_name(arm)}: the best rate {best:g} is at the edge of those tried"


def _untunable(arm: Arm) -> bool:
    """Whether no rate can make it more than a guess."""
    task, readout, block = arm
    return readout == "linear" and (block == BASE or (task == "far_cue" and block in ALIKE))


def _failures(curves: Curves) -> Iterator[str]:
    for arm, failed in curves.failed.items():
        if failed:
            yield f"{_name(arm)}: {failed} seeds diverged"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    curves = Curves(frame)
    return " ".join([*_told(curves), *_relation_in_words(frame, curves), *_dense_in_words(frame, curves)])


def _told(curves: Curves) -> Iterator[str]:
    """Which blocks tell each task at the end of the common budget, in every seed, in some, in none."""
    parts = []
    for task, words in (("same_different", "the relation of two glyphs"), ("far_cue", "a label at each place")):
        budget = curves.budget(task)
        sides: dict[str, list[str]] = {}
        for arm in _arms(curves, task) if budget else []:
            if not curves.at(arm, budget) or not curves.tuned_for(arm, budget):
                continue
            off, n = curves.off(arm, budget)
            side = "told by" if off == n else "not told by" if not off else "told at times by"
            sides.setdefault(side, []).append(
                ALONE.get(arm[2], WORDS[arm[2]]) + " with a hidden layer" * (arm[1] == "hidden")
            )
        if sides:
            told = ", ".join(f"{side} {', '.join(sides[side])}" for side in TOLD if side in sides)
            parts.append(f"within {budget} updates {words} is {told}")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


ALONE = {BASE: "the CNN alone"}
TOLD = ("told by", "told at times by", "not told by")


def _arm_in_words(curves: Curves, arm: Arm, updates: int) -> str:
    values = list(curves.at(arm, updates).values())
    off, n = curves.off(arm, updates)
    hidden = " with a hidden layer" if arm[1] == "hidden" else ""
    return f"{WORDS[arm[2]]}{hidden} {statistics.median(values):.3f} ({off} of {n})"


def _arms(curves: Curves, task: str) -> list[Arm]:
    found = [arm for arm in curves.found if arm[0] == task and arm[0] in curves.bound]
    order = list(WORDS)
    return sorted(found, key=lambda arm: (order.index(arm[2]), arm[1] == "hidden"))


def _relation_in_words(frame: pd.DataFrame, curves: Curves) -> Iterator[str]:
    task = "same_different"
    budget = curves.budget(task)
    arms = _arms(curves, task)
    parts = [_arm_in_words(curves, arm, budget) for arm in arms if curves.tuned_for(arm, budget)]
    if not budget or not parts:
        return
    yield (
        f"Relation of two distant glyphs, median accuracy after {budget} updates and seeds above"
        f" {curves.bound[task]:.2g}, which no sum over windows exceeds: {'; '.join(parts)}."
    )
    longer = [(arm, end) for arm in arms if (end := max(curves.found[arm])) > budget]
    if longer:
        parts = [f"{_arm_in_words(curves, arm, end)} after {end}" for arm, end in longer]
        yield f"Trained longer: {'; '.join(parts)}."
    yield from _control_in_words(curves, task, budget)
    starts = frame[(frame.quantity == "updates_to_take_off") & (frame.statistic == "median") & (frame.task == task)]
    if len(starts):
        parts = [f"{WORDS[r.block]} {r.estimate:.0f}" for r in starts.sort_values("estimate").itertuples()]
        yield f"Median updates until it took off: {', '.join(parts)}."
    late = frame[(frame.quantity == "take_off_delay") & (frame.block == f"{CONTROL} - global_context") & (frame.n > 1)]
    for r in late.itertuples():
        yield f"The plain mean took off {r.estimate:.0f} [{r.ci_low:.0f}, {r.ci_high:.0f}] updates later than GC."
    pair = "global_context - global_average"
    leads = frame[(frame.quantity == "accuracy_lead") & (frame.block == pair) & (frame.task == task) & (frame.n > 1)]
    for r in leads.itertuples():
        yield (
            f"Attention in place of the mean (GC less global average, after {r.updates} updates):"
            f" {r.estimate:+.3f} [{r.ci_low:+.3f}, {r.ci_high:+.3f}]."
        )


def _control_in_words(curves: Curves, task: str, budget: int) -> Iterator[str]:
    """Whether the plain mean needs more than the budget, at a rate that was chosen for it."""
    arm = (task, "linear", CONTROL)
    if not curves.at(arm, budget) or (end := max(curves.found[arm])) <= budget:
        return
    within, later = (statistics.median(curves.at(arm, updates).values()) for updates in (budget, end))
    if within >= REACHED:
        yield (
            "Against the expectation, the plain mean does not need the longer budget here: at a rate chosen for"
            f" {budget} updates its median is {within:.3f} within them and {later:.3f} after {end}. It is only later."
        )
    else:
        medians = f"median {within:.3f} after {budget} updates, {later:.3f} after {end}"
        yield f"The plain mean needs a longer budget: {medians}."


def _dense_in_words(frame: pd.DataFrame, curves: Curves) -> Iterator[str]:
    task = "far_cue"
    budget = curves.budget(task)
    parts = [_arm_in_words(curves, arm, budget) for arm in _arms(curves, task) if curves.at(arm, budget)]
    if budget and parts:
        yield (
            f"A label at each place that depends on a distant cue, after {budget} updates: {'; '.join(parts)}. A vector"
            f" that all places receive cannot lift a linear read-out above {curves.bound[task]:.2g}, whatever it holds;"
            " a layer behind it can."
        )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Accuracy against budget on both tasks, and the shares that took off."""
    from attnrepro.results.charts import curves as drawn
    from attnrepro.results.charts import rates

    found = []
    shown = frame[frame.block.isin(list(WORDS))].copy()
    shown["line"] = shown.block.map(WORDS) + shown.readout.map({"hidden": ", hidden layer"}).fillna("")
    for task, title in (("same_different", "two distant glyphs"), ("far_cue", "a label at each place")):
        rows = shown[(shown.task == task) & (shown.updates != "")]
        bounds = frame[(frame.quantity == "local_accuracy_bound") & (frame.task == task)]
        level = float(bounds.theory.iloc[0]) if len(bounds) else None
        found.append(
            drawn(
                rows[(rows.quantity == "accuracy") & (rows.statistic == "mean")],
                *("updates", "line"),
                title=f"{title}: accuracy",
                x_title="updates",
                y_title="test accuracy",
                zero=level,
            )
        )
    shares = shown[(shown.quantity == "taken_off") & (shown.task == "same_different") & (shown.updates != "")].copy()
    # Bands of shares of ten cover each other; the table has them.
    shares[["ci_low", "ci_high"]] = math.nan
    found.append(
        drawn(
            shares,
            *("updates", "line"),
            title="two distant glyphs: seeds that took off",
            x_title="updates",
            y_title="share of seeds",
        )
    )
    tuning = shown[(shown.quantity == "validation_accuracy") & (shown.task == "same_different")]
    found.append(rates(tuning, "line", title="two distant glyphs: search for the rates"))
    return [chart for chart in found if chart]
