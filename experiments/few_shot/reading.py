"""few_shot, read: who is ahead by how much, what one class is worth, controls, answer and charts. Makes no row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.derived import over_seeds
from attnrepro.results.verdicts import HOLDS_EPS, REFUTED_EPS
from attnrepro.tables.few_shot.table import AXES, NAME, SUPPORTS, TASKS, TRAINED
from attnrepro.theory.few_shot import chance

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "roundoff"]

HIDDEN = ("dealt_se",)
# (network, against) of differences.
PAIRS = (
    ("relation", "prototypical"),
    ("relation", "nearest_pixel"),
    ("prototypical", "nearest_pixel"),
    ("prototypical", "nearest_embedding"),
    ("prototypical", "untrained"),
)
WORDS = {
    "relation": "relation network",
    "prototypical": "prototypical network",
    "nearest_embedding": "nearest embedding",
    "nearest_pixel": "nearest image",
    "untrained": "untrained prototypes",
}
TASK_WORDS = {"glyphs": "glyphs", "digits": "digits", "fashion_mnist": "Fashion-MNIST"}
# Classes that each task is trained with, as the table's grid has them; other numbers are tested only.
TRAINED_WAYS = {"glyphs": "5", "digits": "3", "fashion_mnist": "3"}
# How far above a guess a seed must be to count as one whose training took off.
TAKEN_OFF = 0.1
# Standard errors by which accuracy without knowledge may differ from a guess.
CHANCE_SE = 5.0
# What a closed form and a count may differ by, relative.
TOLERANCE = 1e-9


# --- what follows from the rows ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Differences of networks, what more images give, shares that took off, and what late training gave."""
    return [*_differences(frame), *_gains(frame), *_taken_off(frame), *_late(frame)]


def _line(quantity: str, statistic: str, axes: Mapping[str, Any], **more: object) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | {"quantity": quantity, "statistic": statistic}
    return line | {"theory": math.nan, "sd": math.nan, "n_failed": 0, "estimate": math.nan, "n": 0} | {**axes, **more}


def _accuracies(frame: pd.DataFrame) -> dict[tuple[str, str, str, str], Mapping[str, Any]]:
    """Measured accuracies by task, network, ways and shots."""
    rows = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")].to_dict("records")
    return {(r["task"], r["network"], r["ways"], r["shots"]): r for r in rows if r["n"] or r["n_failed"]}


def _paired(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[list[float], int]:
    """Differences a - b of the seeds that both have, and how many seeds do not."""
    both = [seed for seed in a["by_seed"] if seed in b["by_seed"]]
    total = max(r["n"] + r["n_failed"] for r in (a, b))
    return [a["by_seed"][seed] - b["by_seed"][seed] for seed in both], total - len(both)


def _differences(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    rows = _accuracies(frame)
    for (task, network, ways, shots), r in rows.items():
        for one, other in PAIRS:
            # With one class all are equal.
            if network == one and ways != "1" and (task, other, ways, shots) in rows:
                values, failed = _paired(r, rows[task, other, ways, shots])
                axes = {"task": task, "network": f"{one} - {other}", "ways": ways, "shots": shots}
                yield _line("accuracy_difference", "paired_difference", axes, n_failed=failed) | over_seeds(values)


def _gains(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    rows = _accuracies(frame)
    numbers = sorted({int(shots) for *_, shots in rows})
    for (task, network, ways, shots), r in rows.items():
        more = (task, network, ways, str(numbers[-1]))
        if len(numbers) > 1 and shots == str(numbers[0]) and ways != "1" and more in rows:
            values, failed = _paired(rows[more], r)
            axes = {"task": task, "network": network, "ways": ways}
            yield _line("accuracy_gain", "paired_difference", axes, n_failed=failed) | over_seeds(values)


def _taken_off(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    from attnrepro import stats

    for (task, network, ways, shots), r in _accuracies(frame).items():
        if network in TRAINED and ways == TRAINED_WAYS[task]:
            total = r["n"] + r["n_failed"]
            off = sum(value >= chance(int(ways)) + TAKEN_OFF for value in r["by_seed"].values())
            share = stats.share_interval(off, total)
            ends = {"estimate": share.value, "ci_low": share.low, "ci_high": share.high}
            axes = {"task": task, "network": network, "ways": ways, "shots": shots}
            yield _line("share_taken_off", "share", axes, n=total, **ends)


def _late(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    curves: dict[tuple[str, str, str, str], dict[int, Mapping[str, Any]]] = {}
    rows = frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate == "")]
    for r in rows.to_dict("records"):
        curves.setdefault((r["task"], r["network"], r["ways"], r["shots"]), {})[int(r["updates"])] = r
    for (task, network, ways, shots), curve in curves.items():
        last = max(curve)
        if last % 2 == 0 and last // 2 in curve:
            values, failed = _paired(curve[last], curve[last // 2])
            axes = {"task": task, "network": network, "ways": ways, "shots": shots}
            yield _line("late_gain", "paired_difference", axes, n_failed=failed) | over_seeds(values)


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Gradients are in eps of the largest one already."""
    return 1.0, 1.0


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_exact(frame), *_dealt(frame), *_gradients(frame), *_training(frame), *_tuning(frame)]


def _at(r: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={r[axis]}" for axis in AXES if r[axis])


def _exact(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.statistic == "exact") & frame.theory.notna()].to_dict("records"):
        if r["quantity"] not in HIDDEN and not abs(r["estimate"] - r["theory"]) <= TOLERANCE * max(1, abs(r["theory"])):
            yield f"{r['quantity']} at {_at(r)} is {r['estimate']:.6g}, the closed form {r['theory']:.6g}"
    for (_, _, ways, _), r in _accuracies(frame).items():
        if ways == "1" and any(value != 1 for value in r["by_seed"].values()):
            yield f"accuracy at {_at(r)} is {r['estimate']:.6g}: of one class there is nothing to choose"


def _dealt(frame: pd.DataFrame) -> Iterator[str]:
    errors = {
        (r["task"], r["ways"], r["shots"]): r["theory"] for r in frame[frame.quantity == "dealt_se"].to_dict("records")
    }
    for r in frame[(frame.quantity == "accuracy_dealt") & (frame.n > 0)].to_dict("records"):
        slack = CHANCE_SE * errors[r["task"], r["ways"], r["shots"]] / math.sqrt(r["n"])
        if abs(r["estimate"] - r["theory"]) > slack:
            yield f"accuracy at {_at(r)} is {r['estimate']:.3f} with support dealt at random, a guess {r['theory']:.3f}"


def _gradients(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.n > 0].to_dict("records"):
        if r["quantity"] == "other_class_gradient_eps" and not r["estimate"] <= HOLDS_EPS:
            yield f"a relation score depends on another class's images, by {r['estimate']:.3g} eps"
        if r["quantity"] == "softmax_gradient_eps" and not r["estimate"] >= REFUTED_EPS:
            yield f"with a softmax a score depends on another class by {r['estimate']:.3g} eps only"


def _training(frame: pd.DataFrame) -> Iterator[str]:
    for (_, network, _, _), r in _accuracies(frame).items():
        if network in TRAINED and r["n_failed"]:
            yield f"accuracy at {_at(r)}: {r['n_failed']} seeds diverged"
    for r in frame[frame.quantity == "share_taken_off"].to_dict("records"):
        # On four classes of one data set the comparison may fail to learn: that is told, not assumed away.
        if (r["network"] == "prototypical" or r["task"] == "glyphs") and r["estimate"] < 1:
            yield f"{_at(r)}: {r['estimate']:.2f} of the seeds are above a guess by {TAKEN_OFF}: too little training"
    for r in frame[(frame.quantity == "accuracy_difference") & (frame.n > 1)].to_dict("records"):
        main = r["task"] == "glyphs" and r["ways"] == TRAINED_WAYS["glyphs"]
        if main and r["network"] == "prototypical - untrained" and not r["estimate"] > 0:
            yield f"{_at(r)}: training gave {r['estimate']:+.3f}, nothing was learned that carries to new classes"


def _tuning(frame: pd.DataFrame) -> Iterator[str]:
    last = max((int(u) for u in frame[frame.learning_rate != ""].updates), default=0)
    grids: dict[tuple[str, str, str], dict[float, float]] = {}
    tuned = (frame.quantity == "validation_accuracy") & (frame.learning_rate != "") & (frame.updates == str(last))
    for r in frame[tuned].to_dict("records"):
        # A rate at which a seed diverged is none to choose.
        value = -math.inf if r["n_failed"] else r["estimate"]
        grids.setdefault((r["task"], r["network"], r["shots"]), {})[float(r["learning_rate"])] = value
    presets = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]
    supports = {str(presets["shots"][word]): word for word in SUPPORTS}
    data = {task: name for name, task in TASKS.items()}
    for (task, network, shots), found in grids.items():
        if len(found) < 2:
            continue
        best, used = max(found, key=lambda rate: found[rate]), presets[data[task]][network][supports[shots]]
        where = f"{WORDS[network]}, {TASK_WORDS[task]}, {shots}-shot"
        if used != best:
            yield f"{where}: the presets have learning rate {used:g}, the best on validation classes is {best:g}"
        if best in (min(found), max(found)):
            yield f"{where}: the best learning rate {best:g} is at the edge of those tried"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    parts = [
        *_told(frame),
        *_one_class(frame),
        *_settings(frame),
        *_order(frame),
        *_carried(frame),
        *_stuck(frame),
        *_learned(frame),
    ]
    return " ".join(parts)


def _interval(r: Mapping[str, Any], sign: str = "") -> str:
    ends = f" [{r['ci_low']:{sign}.3f}, {r['ci_high']:{sign}.3f}]" if r["ci_high"] > r["ci_low"] else ""
    return f"{r['estimate']:{sign}.3f}{ends}"


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """What one way is worth, and in how many settings a learned comparison leads."""
    parts = []
    rows = [r for (_, _, ways, _), r in _accuracies(frame).items() if ways == "1" and r["n"]]
    if rows:
        every = all(value == 1 for r in rows for value in r["by_seed"].values())
        runs = sum(r["n"] for r in rows)
        word = "nothing: every network" if every else "something: not every network"
        parts.append(f"a '5-shot 1-way' result is worth {word} is right always with one class ({runs} runs)")
    leads = frame[(frame.quantity == "accuracy_difference") & (frame.network == "relation - prototypical")]
    leads = leads[(leads.n > 1) & (leads.ways == leads.task.map(TRAINED_WAYS))]
    if len(leads):
        up, down = (leads.ci_low > 0).sum(), (leads.ci_high < 0).sum()
        word = "better" if up and not down else "worse" if down and not up else "not clearly better or worse"
        r = leads.iloc[0]
        parts.append(
            f"a learned comparison is {word} than the distance from a prototype (ahead in {up}, behind in {down} of"
            f" {len(leads)} settings, {TASK_WORDS[r.task]} {r.ways}-way {r.shots}-shot {_interval(r, '+')}, {r.n}"
            " seeds)"
        )
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _one_class(frame: pd.DataFrame) -> Iterator[str]:
    rows = [r for (_, _, ways, _), r in _accuracies(frame).items() if ways == "1" and r["n"]]
    if rows and all(value == 1 for r in rows for value in r["by_seed"].values()):
        yield (
            f"Of one class there is nothing to choose: accuracy is exactly 1 for every network, trained or not, in all"
            f" {sum(r['n'] for r in rows)} runs, so that a '5-shot 1-way' result says nothing."
        )


def _settings(frame: pd.DataFrame) -> Iterator[str]:
    rows, parts = _accuracies(frame), []
    for shots in sorted({s for task, _, _, s in rows if task == "glyphs"}, key=int):
        found = {n: rows.get(("glyphs", n, TRAINED_WAYS["glyphs"], shots)) for n in (*TRAINED, "nearest_pixel")}
        named = [f"{WORDS[n]} {_interval(r)}" for n, r in found.items() if r is not None and r["n"] > 1]
        if len(named) == len(found):
            parts.append(f"{TRAINED_WAYS['glyphs']}-way {shots}-shot {', '.join(named)}")
    if parts:
        yield f"Read as one of the settings there are, accuracy on unseen glyphs is: {'; '.join(parts)}."


def _order(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "accuracy_difference") & (frame.network == "relation - prototypical")]
    parts = []
    for r in rows[rows.n > 1].to_dict("records"):
        if r["ways"] == TRAINED_WAYS[r["task"]]:
            word = "ahead" if r["ci_low"] > 0 else "behind" if r["ci_high"] < 0 else "open"
            parts.append(f"{TASK_WORDS[r['task']]} {r['ways']}-way {r['shots']}-shot {_interval(r, '+')} ({word})")
    if parts:
        yield f"Relation network less prototypical network, equal embedding, episodes and updates: {', '.join(parts)}."


def _carried(frame: pd.DataFrame) -> Iterator[str]:
    """Whether training on the few classes of a data set beats no training at all on its other classes."""
    rows = frame[(frame.quantity == "accuracy_difference") & (frame.task != "glyphs") & (frame.n > 1)]
    rows = rows[rows.network == "prototypical - nearest_pixel"]
    parts = [
        f"{TASK_WORDS[r['task']]} {r['shots']}-shot {_interval(r, '+')}"
        for r in rows.to_dict("records")
        if r["ways"] == TRAINED_WAYS[r["task"]]
    ]
    if parts:
        yield (
            "Trained on four classes of a data set and tested on three others, prototypes less the nearest image are"
            f" {', '.join(parts)}: where that is not above 0, four classes taught nothing that carries over."
        )


def _stuck(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "share_taken_off") & (frame.estimate < 1)].to_dict("records")
    parts = []
    for r in rows:
        where = f"{WORDS[r['network']]} on {TASK_WORDS[r['task']]}, {r['shots']}-shot"
        parts.append(f"{where} {round(r['estimate'] * r['n'])} of {r['n']}")
    if parts:
        yield f"Seeds whose accuracy is {TAKEN_OFF} above a guess, where not all are: {'; '.join(parts)}."


def _learned(frame: pd.DataFrame) -> Iterator[str]:
    late = frame[(frame.quantity == "late_gain") & (frame.n > 1)].to_dict("records")
    updates = frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate == "")].updates
    names = [
        f"{WORDS[r['network']]} ({TASK_WORDS[r['task']]}, {r['shots']}-shot {_interval(r, '+')})"
        for r in late
        if r["ci_low"] > 0
    ]
    if names:
        yield (
            f"Validation accuracy still rose in the second half of the {max(map(int, updates))} updates for"
            f" {', '.join(names)}: there the order is one of this budget."
        )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Accuracy against the number of classes, differences of the two networks, and validation during training."""
    found = [*(_ways_chart(frame, shots) for shots in ("1", "5")), _difference_chart(frame), _training_chart(frame)]
    return [chart for chart in found if chart]


def _ways_chart(frame: pd.DataFrame, shots: str) -> Mapping[str, Any] | None:
    import pandas as pd

    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "accuracy") & (frame.task == "glyphs") & (frame.shots == shots) & (frame.n > 0)]
    rows = rows.assign(way=rows.network.map(WORDS), ways=rows.ways.astype(float)).sort_values("ways")
    guess = pd.DataFrame(
        [{"ways": w, "way": "a guess", "estimate": chance(int(w)), "n": 1} for w in rows.ways.unique()],
        columns=["ways", "way", "estimate", "n"],
    )
    order = [*WORDS.values(), "a guess"]
    shown = pd.concat([rows[["ways", "way", "estimate", "ci_low", "ci_high", "n"]], guess])
    shown = shown.sort_values("way", key=lambda column: column.map(order.index), kind="stable")
    return curves(
        shown,
        *("ways", "way"),
        title=f"unseen glyphs, {shots}-shot",
        x_title="classes of an episode (ways)",
        y_title="accuracy",
        log=True,
    )


def _difference_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "accuracy_difference") & (frame.network == "relation - prototypical")]
    rows = rows[(rows.n > 1) & (rows.ways == rows.task.map(TRAINED_WAYS))].copy()
    if rows.empty:
        return None
    rows["case"] = rows.task.map(TASK_WORDS) + ", " + rows.ways + "-way " + rows.shots + "-shot"
    columns = ["case", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'case' else 'Q'}") for column in columns]
    across = {"title": "relation less prototypical"}
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(
        y=alt.Y("case:N", title=None, sort=list(rows["case"])).axis(labelLimit=200)
    )
    zero = alt.Chart(alt.Data(values=[{"level": 0}])).mark_rule(style="theory").encode(x=alt.X("level:Q", **across))
    spec: Mapping[str, Any] = (
        alt.layer(
            zero,
            base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q", **across), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=alt.X("estimate:Q", **across), tooltip=tip),
        )
        .properties(
            title="learned comparison against prototypes",
            height=60 + 22 * len(rows),
            description="accuracy of the relation network less that of the prototypical network, by task and setting",
        )
        .to_dict()
    )
    return spec


def _training_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate == "") & (frame.task == "glyphs")]
    rows = rows[rows.n > 0].copy()
    if rows.empty:
        return None
    rows["way"] = rows.network + ", " + rows.shots + "-shot"
    return curves(
        rows,
        *("updates", "way"),
        title="glyphs, 5-way, while training",
        x_title="updates",
        y_title="accuracy on validation classes",
    )
