"""What the rows of distillation say: what a teacher adds, whose answers a student gives, controls, answer, charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.derived import over_seeds
from attnrepro.tables.distillation.table import AXES, CONTROL, NAME, STUDENTS, TEACHER

if TYPE_CHECKING:
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive"]

# A training is evaluated once, at its end: its best checkpoint is its last.
HIDDEN = ("last_", "best_step", "loss")

PLAIN = "none"
WORDS = {
    TEACHER: "CNN (teacher)",
    PLAIN: "no teacher",
    "soft": "soft",
    "hard": "hard",
    "hard_token": "hard, with a token",
    CONTROL: "soft, of another image",
}
# What is compared besides each arm with the plain ViT and with the teacher.
PAIRS = (("hard", "soft"), ("hard_token", "hard"))
# What two trainings that must be the same may differ by in accuracy, for another order of sums.
SAME = 0.002

Values = dict[str, float]


class Place(NamedTuple):
    """Where arms are compared."""

    data: str
    augmentation: str
    n_train: str


class Found:
    """Values by quantity, place, arm and seed."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.values: dict[tuple[str, Place, str], Values] = {}
        for r in frame[(frame.statistic == "mean") & (frame.learning_rate == "")].itertuples():
            if r.by_seed:
                self.values[r.quantity, Place(r.data, r.augmentation, r.n_train), r.arm] = dict(r.by_seed)

    def places(self) -> list[Place]:
        """Where anything was trained and tested; few images first."""
        found = {place for quantity, place, _ in self.values if quantity == "accuracy"}
        return sorted(found, key=lambda place: (place.data, int(place.n_train), place.augmentation))

    def get(self, quantity: str, place: Place, arm: str) -> Values:
        """Values by seed; empty without rows."""
        return self.values.get((quantity, place, arm), {})

    def own_teacher(self, place: Place, arm: str) -> Values:
        """Agreement with the own teacher less that with another."""
        return less(self.get("agreement", place, arm), self.get("agreement_other", place, arm))


def less(first: Values, second: Values) -> Values:
    """The first less the second, of equal seeds."""
    return {seed: value - second[seed] for seed, value in first.items() if seed in second}


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Gains in accuracy and in agreement, and in agreement with the own teacher."""
    found = Found(frame)
    return [line for place in found.places() for line in _gains(found, place)]


def _gains(found: Found, place: Place) -> Iterator[dict[str, object]]:
    pairs = [(arm, PLAIN) for arm in STUDENTS if arm != PLAIN] + [(arm, TEACHER) for arm in STUDENTS] + list(PAIRS)
    for first, second in pairs:
        values = less(*(found.get("accuracy", place, arm) for arm in (first, second)))
        yield from _line("accuracy_gain", place, f"{first} - {second}", values)
    for arm in STUDENTS:
        if arm != PLAIN:
            values = less(*(found.get("agreement", place, one) for one in (arm, PLAIN)))
            yield from _line("agreement_gain", place, f"{arm} - {PLAIN}", values)
            values = less(*(found.own_teacher(place, one) for one in (arm, PLAIN)))
            yield from _line("own_teacher_gain", place, f"{arm} - {PLAIN}", values)


def _line(quantity: str, place: Place, arm: str, values: Values) -> Iterator[dict[str, object]]:
    if values:
        axes: dict[str, object] = dict.fromkeys(AXES, "") | place._asdict() | {"arm": arm}
        line = {"quantity": quantity, "statistic": "paired_difference", "theory": math.nan, "n_failed": 0}
        yield axes | line | over_seeds(list(values.values()))


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_teaching(frame), *_failures(frame), *_tuned(frame)]


def _teaching(frame: pd.DataFrame) -> Iterator[str]:
    found = Found(frame)
    derived = {
        (r["quantity"], Place(r["data"], r["augmentation"], r["n_train"]), r["arm"]): r
        for r in frame[frame.statistic == "paired_difference"].to_dict("records")
    }
    for place in found.places():
        where = f"{place.data}, augmentation {place.augmentation}, {place.n_train} images"
        for quantity in ("accuracy_gain", "agreement_gain"):
            r = derived.get((quantity, place, f"{CONTROL} - {PLAIN}"))
            if r is not None and r["ci_low"] > 0:
                yield (
                    f"{where}: what a teacher says of another image gives {quantity} {r['estimate']:+.4f}"
                    f" [{r['ci_low']:+.4f}, {r['ci_high']:+.4f}]: not its answers are what helps"
                )
        r = derived.get(("accuracy_gain", place, f"{PLAIN} - {TEACHER}"))
        if r is not None and r["ci_low"] > 0:
            yield f"{where}: the student without a teacher is ahead of it: it has nothing to teach"
        right = found.get("teacher_right", place, "hard")
        gains = less(found.get("accuracy", place, "hard"), found.get("accuracy", place, PLAIN))
        for seed, gain in gains.items():
            if right.get(seed) == 1 and abs(gain) > SAME:
                yield f"{where}, seed {seed}: labels that are the teacher's too change the accuracy by {gain:+.4f}"


def _failures(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.quantity == "accuracy") & (frame.n_failed > 0)].itertuples():
        yield f"{WORDS[r.arm]}, {r.data}, {r.n_train} images: {r.n_failed} seeds diverged"


def _tuned(frame: pd.DataFrame) -> Iterator[str]:
    grids: dict[tuple[str, str, str], dict[float, float]] = {}
    for r in frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate != "")].itertuples():
        if r.n and not r.n_failed:
            grids.setdefault((r.data, r.arm, r.n_train), {})[float(r.learning_rate)] = r.estimate
    chosen = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]["distillation"]
    sizes = load_yaml(paths.conf_dir() / "rates" / "images.yaml")
    for (data, arm, n_train), found in grids.items():
        best = max(found, key=lambda rate: found[rate])
        used = float(chosen[data][arm][sizes[data]["tuned_at"].index(int(n_train))])
        where = f"{WORDS[arm]}, {data}, {n_train} images"
        if used != best:
            yield f"{where}: the presets have rate {used:g}, the best on validation images is {best:g}"
        if best in (min(found), max(found)):
            yield f"{where}: the best rate {best:g} is at the edge of those tried"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    found = Found(frame)
    return " ".join([*_told(found), *(sentence for place in found.places() for sentence in _in_words(found, place))])


def _told(found: Found) -> Iterator[str]:
    """How often teaching raised accuracy and likeness to the CNN, and by how much at the most."""
    gains: list[dict[str, Any]] = []
    nearer: list[dict[str, Any]] = []
    for place in found.places():
        for arm in ("soft", "hard", "hard_token"):
            where = {"where": f"{WORDS[arm]}, {place.n_train} images"}
            for quantity, kept in (("accuracy", gains), ("agreement", nearer)):
                values = less(found.get(quantity, place, arm), found.get(quantity, place, PLAIN))
                if len(values) > 1:
                    kept.append(over_seeds(list(values.values())) | where)
    if not gains:
        return
    up, down = (sum(sign * r[end] > 0 for r in gains) for sign, end in ((1, "ci_low"), (-1, "ci_high")))
    lowered = f" and lowered it in {down}" if down else ""
    word = "No gain is seen" if not up else "It gains each time" if up == len(gains) else "It gains at times"
    best = max(gains, key=lambda r: r["estimate"])
    said = (
        f"{word}: a CNN's answers raised the ViT's accuracy in {up} of {len(gains)} trials"
        f"{lowered}, at best {best['estimate']:+.4f}{_ends(best, '+.4f')} ({best['where']}, {best['n']} seeds)"
    )
    if nearer:
        more = sum(r["ci_low"] > 0 for r in nearer)
        most = max(nearer, key=lambda r: r["estimate"])
        said += (
            f"; it answers more as the CNN does in {more} of {len(nearer)}, at most"
            f" {most['estimate']:+.4f}{_ends(most, '+.4f')}"
        )
    yield f"{said}."


def _in_words(found: Found, place: Place) -> Iterator[str]:
    plain, teacher = (found.get("accuracy", place, arm) for arm in (PLAIN, TEACHER))
    if len(plain) < 2 or len(teacher) < 2:
        return
    views = "moved and mirrored" if place.augmentation == "shift_flip" else "as they are"
    yield (
        f"On {place.n_train} images of {place.data}, {views}, the ViT reaches {_mean(plain)} from labels alone, its"
        f" teacher, a CNN, {_mean(teacher)}."
    )
    taught = [arm for arm in ("soft", "hard", "hard_token") if len(found.get("accuracy", place, arm)) > 1]
    if not taught:
        return
    gains = [f"{WORDS[arm]} {_gain(less(found.get('accuracy', place, arm), plain))}" for arm in taught]
    shuffled = less(found.get("accuracy", place, CONTROL), plain)
    control = f" (with the answers to other images {_gain(shuffled)})" if len(shuffled) > 1 else ""
    yield f"The teacher's answers add to that, seed by seed: {', '.join(gains)}{control}."
    agree = found.get("agreement", place, PLAIN)
    nearer = [f"{WORDS[arm]} {_gain(less(found.get('agreement', place, arm), agree))}" for arm in taught]
    own = found.own_teacher(place, PLAIN)
    this = [f"{WORDS[arm]} {_gain(less(found.own_teacher(place, arm), own))}" for arm in taught]
    yield (
        f"Untaught it answers as the CNN does in {_mean(agree)} of test images; taught, more often by"
        f" {', '.join(nearer)}; by this much more than as the teacher of another seed: {', '.join(this)}."
    )
    right = found.get("teacher_right", place, "hard")
    yield f"The teacher labels {_mean(right)} of training views as they are labelled."


def _mean(values: Values) -> str:
    made = over_seeds(list(values.values()))
    return f"{made['estimate']:.4f}{_ends(made, '.4f')}"


def _gain(values: Values) -> str:
    made = over_seeds(list(values.values()))
    return f"{made['estimate']:+.4f}{_ends(made, '+.4f')}"


def _ends(made: Mapping[str, Any], style: str) -> str:
    """The interval; nothing where all seeds are equal."""
    low, high = made.get("ci_low", math.nan), made.get("ci_high", math.nan)
    return f" [{low:{style}}, {high:{style}}]" if high > low else ""


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Accuracy of every arm, and its agreement with its teacher, by number of images and augmentation."""
    from attnrepro.results.charts import rates

    found = Found(frame)
    made = []
    for place in found.places():
        views = "moved and mirrored" if place.augmentation == "shift_flip" else "not augmented"
        title = f"{place.n_train} images, {views}"
        rows = frame[
            (frame.data == place.data)
            & (frame.augmentation == place.augmentation)
            & (frame.n_train == place.n_train)
            & (frame.learning_rate == "")
            & (frame.n > 0)
        ]
        for quantity, name in (("accuracy", "test accuracy"), ("agreement", "agreement with the teacher")):
            made.append(_points(rows[(rows.quantity == quantity) & (rows.statistic == "mean")], name, title))
    tuning = frame[frame.quantity == "validation_accuracy"].copy()
    tuning["way"] = tuning.arm.map(WORDS)
    made.append(rates(tuning, "way", title="search for the rates"))
    return [chart for chart in made if chart]


def _points(rows: pd.DataFrame, name: str, title: str) -> Mapping[str, Any] | None:
    """Means with their intervals, an arm a line."""
    import altair as alt

    from attnrepro.results.charts import records

    if rows.empty:
        return None
    rows = rows.copy()
    rows["way"] = rows.arm.map(WORDS)
    columns = ["way", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'way' else 'Q'}") for column in columns]
    order = [words for words in WORDS.values() if words in set(rows.way)]
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(y=alt.Y("way:N", sort=order, title=None))
    x = alt.X("estimate:Q", title=name).scale(zero=False)
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q", title=name).scale(zero=False), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=f"{name}, {title}", description=f"{name} by way of teaching, {title}")
        .to_dict()
    )
    return spec
