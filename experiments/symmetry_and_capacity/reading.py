"""symmetry_and_capacity, read: what needs several cells, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.tables.symmetry_and_capacity.table import AXES, BLIND, BROKEN_SHARE, EXPECTED, HOLDS_EPS
from attnrepro.theory import symmetry_groups as closed

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive", "roundoff"]

# An exact count or closed form may be off by rounding.
TOLERANCE = 1e-9

# (task, network, against): who is said to win. Recall needs no positions, and attention is tried with and without them.
DUELS = (
    ("motif", "convolution", "attention_position"),
    ("recall", "attention", "convolution_wide"),
    ("recall", "attention_position", "convolution_wide"),
)
# Who must have learned its task for a lead to mean anything, and how well.
LEARNERS = (("motif", "convolution"), ("motif", "attention_position"), ("recall", "attention"))
LEARNED = 0.75
BLIND_SE = 4.0
# Height of a property in pixels, and how networks are named under the columns of narrow squares.
ROW = 17
NETWORKS = {"labelAngle": -55, "labelFontSize": 11, "labelOverlap": False}


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors are in units of eps times their scale already."""
    return 1.0, 1.0


# --- what needs several cells or seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Leads of one network over another, seed by seed, and the share of seeds that solve a task."""
    found = _accuracies(frame)
    return [*_leads(found), *_solved(frame, found)]


def _accuracies(frame: pd.DataFrame) -> dict[tuple[str, str], Any]:
    rows = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")]
    return {(r.task, r.network): r for r in rows.itertuples()}


def _leads(found: Mapping[tuple[str, str], Any]) -> Iterator[dict[str, object]]:
    import statistics

    for task, network, against in DUELS:
        if (task, network) not in found or (task, against) not in found:
            continue
        ours, theirs = found[task, network], found[task, against]
        leads = [value - theirs.by_seed[seed] for seed, value in ours.by_seed.items() if seed in theirs.by_seed]
        yield {
            "task": task,
            "network": network,
            "against": against,
            "quantity": "accuracy_lead",
            "statistic": "paired_difference",
            "estimate": statistics.fmean(leads) if leads else math.nan,
            "n": len(leads),
            "n_failed": max(ours.n_failed, theirs.n_failed),
            "sd": statistics.stdev(leads) if len(leads) > 1 else math.nan,
            "seeds": tuple(leads),
            "theory": math.nan,
        }


def _solved(frame: pd.DataFrame, found: Mapping[tuple[str, str], Any]) -> Iterator[dict[str, object]]:
    from attnrepro.stats import share_interval

    limits = {r.task: r.estimate for r in frame[frame.quantity == "solved_at"].itertuples()}
    for (task, network), r in found.items():
        n = r.n + r.n_failed
        if not n or task not in limits:
            continue
        share = share_interval(sum(value >= limits[task] for value in r.seeds), n)
        yield {
            "task": task,
            "network": network,
            "quantity": "solved",
            "statistic": "share",
            "estimate": share.value,
            "n": n,
            "sd": math.nan,
            "ci_low": share.low,
            "ci_high": share.high,
            "theory": math.nan,
        }


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_counted_wrong(frame), *_task_controls(frame)]


def _at(r: Any) -> str:
    return " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))


def _counted_wrong(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame.itertuples():
        if r.quantity == "error_eps" and EXPECTED[r.property][r.network] and not r.estimate <= HOLDS_EPS:
            yield f"error_eps is {r.estimate:.3g} at {_at(r)}: at most {HOLDS_EPS:g} is round-off"
        if r.quantity == "breakage_relative" and not r.estimate >= BROKEN_SHARE:
            yield f"breakage_relative is {r.estimate:.3g} at {_at(r)}: what must not hold is violated by {BROKEN_SHARE}"
        counted = r.statistic == "exact" and r.theory == r.theory
        if counted and not abs(r.estimate - r.theory) <= TOLERANCE * max(1.0, abs(r.theory)):
            yield f"{r.quantity} at {_at(r)} is {r.estimate:.12g}, the closed form {r.theory:.12g}"


def _task_controls(frame: pd.DataFrame) -> Iterator[str]:
    found = _accuracies(frame)
    tested = {r.task: r.estimate for r in frame[frame.quantity == "n_test"].itertuples()}
    for r in frame[(frame.quantity == "majority_accuracy") & (frame.n > 0)].itertuples():
        bound = BLIND_SE * math.sqrt(r.theory * (1 - r.theory) / (r.n * tested[r.task]))
        if not abs(r.estimate - r.theory) <= bound:
            yield (
                f"the majority of the values is right in {r.estimate:.4f} of the questions, not in {r.theory:.4f}"
                f" within {bound:.4f}"
            )
    for (task, network), r in found.items():
        if r.n_failed:
            yield f"{network} diverged on {task} with {r.n_failed} of {r.n + r.n_failed} seeds"
        if network == BLIND[task] and r.n:
            bound = BLIND_SE * 0.5 / math.sqrt(r.n * tested[task])
            if not abs(r.estimate - 0.5) <= bound:
                yield f"{network} guesses on {task}, and its accuracy {r.estimate:.4f} is not 0.5 within {bound:.4f}"
    for task, network in LEARNERS:
        r = found.get((task, network))
        if r is not None and not r.estimate >= LEARNED:
            yield f"{network} reaches {r.estimate:.4f} on {task}, below {LEARNED}: too little training"


# --- answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_properties_in_words(frame), *_counts_in_words(frame), *_tasks_in_words(frame)])


# What is held against what; with and without positions are two models.
COMPARED = {
    "attention": "attention without positions",
    "attention_position": "attention with positions",
    "convolution_wide": "wide convolution",
}


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether each has the symmetries of its definition, how many maps they leave, and who wins where."""
    parts = []
    tested = frame[(frame.quantity == "has_property") & (frame.n > 0)]
    if len(tested):
        right = int((tested.estimate == tested.theory).sum())
        every = "as defined" if right == len(tested) else "not as defined"
        parts.append(f"symmetries are {every} ({right} of {len(tested)} tests)")
    counted = frame[(frame.quantity == "equivariant_dimension") & (frame.n > 0)]
    if len(counted):
        length = min(counted.length, key=int)
        dims = counted[counted.length == length].set_index("group").estimate
        if {"permutations", "shifts", "none"} <= set(dims.index):
            few, some, all_ = (int(dims[group]) for group in ("permutations", "shifts", "none"))
            parts.append(f"of {all_} maps of {length} numbers {few} commute with all permutations, {some} with shifts")
    leads = frame[(frame.quantity == "accuracy_lead") & (frame.n > 0)]
    for r in leads.itertuples():
        word = "beats" if r.ci_low > 0 else "loses to" if r.ci_high < 0 else "is not seen to beat"
        names = [COMPARED.get(str(name), str(name)) for name in (r.network, r.against)]
        ends = "" if math.isnan(r.ci_low) else f" [{r.ci_low:.3f}, {r.ci_high:.3f}]"
        parts.append(f"{names[0]} {word} {names[1]} on {r.task} by {r.estimate:.3f}{ends}")
    if parts:
        said = "; ".join(parts)
        count = f" ({leads.n.max()} seeds)" if len(leads) else ""
        yield f"{said[0].upper()}{said[1:]}{count}."


def _properties_in_words(frame: pd.DataFrame) -> Iterator[str]:
    tested = frame[(frame.quantity == "has_property") & (frame.n > 0)]
    if tested.empty:
        return
    right = (tested.estimate == tested.theory).sum()
    overall = frame[(frame["shape"] == "") & (frame.n > 0)]
    held = [
        r.estimate
        for r in overall.itertuples()
        if r.quantity == "error_eps" and EXPECTED.get(r.property, {}).get(r.network, False)
    ]
    broken = overall[overall.quantity == "breakage_relative"]
    found = f"In all, {right} of {len(tested)} cells of the tables of assumptions came out as the definitions say"
    if held and len(broken):
        found += (
            f": what holds does so to {max(held):.2g} eps, what does not is off by at least"
            f" {broken.estimate.min():.2g} of the largest output"
        )
    yield f"{found}."
    holds = tested.set_index(["property", "network"]).estimate
    wanted = [("shift_equivariant", name) for name in ("convolution_circular", "convolution_pooled", "unet")]
    if all(key in holds.index for key in wanted):
        words = ["is" if holds[key] == 1 else "is not" for key in wanted]
        yield (
            f"On a ring a convolution {words[0]} equivariant to every shift, with pooling it {words[1]}, and a U-Net"
            f" {words[2]}."
        )


def _counts_in_words(frame: pd.DataFrame) -> Iterator[str]:
    counted = frame[(frame.quantity == "equivariant_dimension") & (frame.n > 0)]
    if counted.empty:
        return
    length = min(counted.length, key=int)
    dims = counted[counted.length == length].set_index("group").estimate
    if {"permutations", "shifts", "none"} <= set(dims.index):
        few, some, all_ = (int(dims[group]) for group in ("permutations", "shifts", "none"))
        more = "fewer" if few < some else "more"
        yield (
            f"Of {length} numbers {few} independent linear maps commute with all permutations, {some} with the shifts,"
            f" {all_} with nothing asked: the larger symmetry leaves {more} maps."
        )


def _tasks_in_words(frame: pd.DataFrame) -> Iterator[str]:
    found = _accuracies(frame)
    leads = frame[(frame.quantity == "accuracy_lead") & (frame.n > 0)]
    majority = {r.task: r.theory for r in frame[frame.quantity == "majority_accuracy"].itertuples()}
    for r in leads.itertuples():
        ours, theirs = found[r.task, r.network], found[r.task, r.against]
        interval = "" if math.isnan(r.ci_low) else f" [{r.ci_low:.3f}, {r.ci_high:.3f}]"
        blind = found.get((r.task, BLIND[r.task]))
        control = f"; {BLIND[r.task]}, which can only guess, {blind.estimate:.3f}" if blind is not None else ""
        if r.task in majority:
            control += f"; the majority of the values, without any key, {majority[r.task]:.3f}"
        yield (
            f"On {r.task} {r.network} gets {ours.estimate:.3f} right and {r.against} {theirs.estimate:.3f}, a lead of"
            f" {r.estimate:.3f}{interval} over {r.n} seeds{control}."
        )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """The tested table of assumptions, what each symmetry leaves, and both tasks."""
    return [chart for chart in (_table_chart(frame), _dimension_chart(frame), _task_chart(frame)) if chart]


def _table_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = frame[(frame.quantity == "has_property") & (frame.n > 0)]
    if rows.empty:
        return None
    words = ["holds", "does not hold"]
    values = [
        {
            "property": r.property.replace("_", " "),
            "network": r.network.replace("_", " "),
            "holds": words[0] if r.estimate == 1 else words[1],
        }
        for r in rows.itertuples()
    ]
    title = "what was tested of each network"
    spec: Mapping[str, Any] = (
        alt.Chart(alt.Data(values=values))
        .mark_point(style="measured", filled=True, size=60)
        .encode(
            x=alt.X("network:N", title=None, sort=None).axis(**NETWORKS),
            y=alt.Y("property:N", title=None, sort=[name.replace("_", " ") for name in EXPECTED]),
            shape=alt.Shape("holds:N", title=None, scale=alt.Scale(domain=words, range=["circle", "cross"])),
            color=alt.Color("holds:N", title=None, scale=alt.Scale(domain=words)),
            tooltip=[alt.Tooltip(f"{column}:N") for column in ("network", "property", "holds")],
        )
        .properties(
            title=title,
            description=f"{title}: a mark for each property that holds or does not",
            height=alt.Step(ROW),
        )
        .to_dict()
    )
    return spec


def _dimension_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = frame[frame.quantity.isin(["equivariant_dimension", "classes"]) & (frame.n > 0)]
    if rows.empty:
        return None
    length = min(rows.length, key=int)
    names = {"equivariant_dimension": "linear maps", "classes": "classes of binary inputs"}
    values = [
        {
            "group": r.group.replace("_", " "),
            "counted": names[r.quantity],
            "estimate": r.estimate,
            "theory": r.theory,
        }
        for r in rows[rows.length == length].itertuples()
    ]
    base = alt.Chart(alt.Data(values=values)).encode(
        y=alt.Y("group:N", title=None, sort=[group.replace("_", " ") for group in closed.GROUPS]),
        color=alt.Color("counted:N", title=None),
        tooltip=[
            alt.Tooltip("group:N"),
            alt.Tooltip("counted:N"),
            alt.Tooltip("estimate:Q"),
            alt.Tooltip("theory:Q"),
        ],
    )
    x = alt.X("estimate:Q", title="left by the symmetry").scale(type="log")
    title = f"what a symmetry leaves of {length} positions"
    spec: Mapping[str, Any] = (
        base.mark_point(style="measured")
        .encode(x=x)
        .properties(title=title, description=f"{title}: independent linear maps and classes of binary inputs")
        .to_dict()
    )
    return spec


def _task_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    values = [
        {"task": task, "network": network.replace("_", " "), "accuracy": value}
        for (task, network), r in _accuracies(frame).items()
        for value in r.seeds
    ]
    if not values:
        return None
    title = "each seed on both tasks"
    spec: Mapping[str, Any] = (
        alt.Chart(alt.Data(values=values))
        .mark_point(style="measured")
        .encode(
            x=alt.X("accuracy:Q", title="accuracy on fresh sequences").scale(zero=False).axis(tickCount=4),
            y=alt.Y("network:N", title=None),
            yOffset=alt.YOffset("task:N"),
            color=alt.Color("task:N", title=None),
            tooltip=[alt.Tooltip("task:N"), alt.Tooltip("network:N"), alt.Tooltip("accuracy:Q")],
        )
        .properties(title=title, description=f"{title}: accuracy of convolution and attention")
        .to_dict()
    )
    return spec
