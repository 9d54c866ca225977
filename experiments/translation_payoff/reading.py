"""What the rows of translation_payoff say: what moving and resizing objects costs, and what makes up for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.published import PublishedLine
from attnrepro.tables.translation_payoff.table import AXES, total_stride

if TYPE_CHECKING:
    import pandas as pd

    from attnrepro.stats import Interval

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "roundoff"]

HIDDEN = ("last_step", "best_step")

# Differences of models trained alike.
PAIRS = (("cnn", "mlp"), ("cnn", "vit_patch7"), ("cnn_circular", "cnn"), ("cnn_circular", "mlp"))
# Differences of ways of training: what a model without augmentation has ahead of one with it.
WITHOUT = ("shifted_once", "centred")
WITH = "augmented"
WORDS = {"cnn": "CNN", "cnn_circular": "circular CNN", "vit_patch7": "ViT", "mlp": "MLP"}
# An equality holds to so many eps; what breaks it does so by so many (docs/statistics.md, structural).
HOLDS_EPS = 32.0
BROKEN_EPS = 1e6
# Accuracy in the middle below which a model that saw objects only there was not trained, and what an MLP, which knows
# nothing of neighbours, has to lose at the largest shift: else the images did not move.
TRAINED = 0.7
FALLS = 0.3
# Share of test images whose answer round-off may turn.
ROUNDOFF = 0.002
# So many training images are no excuse for either.
ENOUGH = 3000

Values = dict[str, float]


class Accuracies:
    """Test accuracies of equal seeds by image set, number of images, model, training, and place or size."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.sets: list[tuple[str, int]] = []
        self.shifts: dict[tuple[str, int, str, str], dict[int, Values]] = {}
        self.sizes: dict[tuple[str, int, str, str], dict[float, Values]] = {}
        for r in frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")].itertuples():
            if not r.by_seed:
                continue
            place = (r.data, int(r.n_train))
            if place not in self.sets:
                self.sets.append(place)
            at = (*place, r.model, r.training)
            if r.shift != "":
                self.shifts.setdefault(at, {})[int(r.shift)] = dict(r.by_seed)
            else:
                self.sizes.setdefault(at, {})[float(r.object_scale)] = dict(r.by_seed)
        self.sets.sort()

    def mean(self, data: str, n: int, model: str, training: str) -> Values:
        """Mean over all shifts, by seed; empty where nothing was measured."""
        return _mean(list(self.shifts.get((data, n, model, training), {}).values()))

    def resized(self, data: str, n: int, model: str, training: str) -> Values:
        """What is lost on average at other sizes of the object, by seed."""
        at = (data, n, model, training)
        return _less(self.shifts.get(at, {}).get(0, {}), _mean(list(self.sizes.get(at, {}).values())))


def _mean(every: Sequence[Values]) -> Values:
    """Mean by seed, of seeds that all have."""
    shared = set.intersection(*(set(values) for values in every)) if every else set()
    return {seed: sum(values[seed] for values in every) / len(every) for seed in sorted(shared, key=int)}


def _less(first: Values, second: Values) -> Values:
    """The first less the second, of equal seeds."""
    return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys(), key=int)}


def _interval(values: Values) -> Interval:
    from attnrepro.stats import mean_interval

    return mean_interval(list(values.values()))


def _line(quantity: str, statistic: str, axes: Mapping[str, object], values: Values) -> Iterator[dict[str, object]]:
    """A derived row over seeds, with its t interval; none without seeds."""
    import statistics

    if not values:
        return
    found = _interval(values)
    yield {
        **axes,
        "quantity": quantity,
        "statistic": statistic,
        "estimate": found.value,
        "n": len(values),
        "sd": statistics.stdev(values.values()) if len(values) > 1 else math.nan,
        "ci_low": found.low,
        "ci_high": found.high,
        "seeds": tuple(values.values()),
        "theory": math.nan,
    }


def _axes(data: str, n: int, model: str, training: str, shift: object = "") -> dict[str, object]:
    return {"data": data, "n_train": str(n), "model": model, "training": training, "shift": str(shift)}


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Means over places, what a shift leaves, leads of models and of ways of training, and losses at other sizes."""
    found = Accuracies(frame)
    return [*_of_each(found), *_differences(found), *_against_augmentation(found), *_resized(found)]


def _of_each(found: Accuracies) -> Iterator[dict[str, object]]:
    for at, shifts in found.shifts.items():
        yield from _line("mean_accuracy", "mean", _axes(*at), found.mean(*at))
        still, most = shifts.get(0, {}), max(shifts)
        for shift in sorted({most // 2, most} - {0}):
            kept = {s: shifts[shift][s] / still[s] for s in shifts[shift] if still.get(s)}
            yield from _line("accuracy_kept", "mean", _axes(*at, shift), kept)
        if most:
            yield from _line("accuracy_drop", "paired_difference", _axes(*at, most), _less(still, shifts[most]))


def _differences(found: Accuracies) -> Iterator[dict[str, object]]:
    for data, n, model, training in list(found.shifts):
        for first, second in PAIRS:
            if model == first:
                axes = (data, n, f"{first} - {second}", training)
                a, b = ((data, n, one, training) for one in (first, second))
                values = _less(found.mean(*a), found.mean(*b))
                yield from _line("mean_accuracy_difference", "paired_difference", _axes(*axes), values)
                still = _less(found.shifts[a].get(0, {}), found.shifts.get(b, {}).get(0, {}))
                yield from _line("accuracy_difference", "paired_difference", _axes(*axes, 0), still)


def _against_augmentation(found: Accuracies) -> Iterator[dict[str, object]]:
    for data, n in found.sets:
        for without in WITHOUT:
            for first in WORDS:
                for second in WORDS:
                    # A model beside itself, and CNNs beside models without their symmetry.
                    if first == second or (first.startswith("cnn") and not second.startswith("cnn")):
                        values = _less(found.mean(data, n, first, without), found.mean(data, n, second, WITH))
                        name = first if first == second else f"{first} - {second}"
                        axes = _axes(data, n, name, f"{without} - {WITH}")
                        yield from _line("mean_accuracy_difference", "paired_difference", axes, values)


def _resized(found: Accuracies) -> Iterator[dict[str, object]]:
    for data, n, model, training in found.shifts:
        lost = found.resized(data, n, model, training)
        yield from _line("object_scale_loss", "paired_difference", _axes(data, n, model, training), lost)
        if model != "cnn":
            values = _less(lost, found.resized(data, n, "cnn", training))
            axes = _axes(data, n, f"{model} - cnn", training)
            yield from _line("object_scale_loss", "paired_difference", axes, values)


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_symmetry_controls(frame), *_training_controls(frame)]


def _symmetry_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame.itertuples():
        if r.quantity == "shift_error_eps" and not r.estimate <= HOLDS_EPS:
            yield f"{r.model}: shifts by multiples of {r.shift} change the logits by {r.estimate:.3g} eps"
        if r.quantity == "breakage_eps" and not r.estimate >= BROKEN_EPS:
            yield f"{r.model}: shifts by {r.shift} change the logits by {r.estimate:.3g} eps: nothing was broken"


def _training_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.quantity == "accuracy") & (frame.n_failed > 0)].itertuples():
        if r.shift == "0":
            yield f"{r.model} on {r.n_train} images of {r.data} ({r.training}): {r.n_failed} seeds diverged"
    found = Accuracies(frame)
    stride = total_stride("cnn_circular")
    for (data, n, model, training), shifts in found.shifts.items():
        where = f"{model} on {n} images of {data} ({training})"
        still = shifts.get(0, {})
        if not still:
            continue
        middle, most = _interval(still).value, max(shifts)
        if n >= ENOUGH and training == "centred":
            if not middle >= TRAINED:
                yield f"{where} has {middle:.3f} in the middle, below {TRAINED}: too little training"
            if model == "mlp" and not middle - _interval(shifts[most]).value > FALLS:
                yield f"{where} does not mind a shift by {most}: the images did not move"
        if model == "cnn_circular":
            for shift in range(stride, most + 1, stride):
                changed = max((abs(d) for d in _less(shifts.get(shift, {}), still).values()), default=0.0)
                if changed > ROUNDOFF:
                    yield f"{where}: a shift by {shift}, where it is invariant, changes the accuracy by {changed:.4f}"


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    found = Accuracies(frame)
    chosen = [place for place in found.sets if place[0] == "fashion_mnist"] or found.sets
    if not chosen:
        return ""
    # The size at which most was measured; of several the smallest.
    place = max(chosen, key=lambda p: (sum(len(v) for at, v in found.shifts.items() if at[:2] == p), -p[1]))
    parts = [
        _told(found, place),
        _moving_in_words(found, place),
        _still_in_words(found, place),
        _worth_in_words(found, place),
    ]
    return " ".join(part for part in [*parts, _sizes_in_words(found, place), _symmetry_in_words(frame)] if part)


def _told(found: Accuracies, place: tuple[str, int]) -> str:
    """Whether the CNN minds where an object stands, and whether its equivariance is worth training on moved images."""
    parts: list[str] = []
    told_of_others = False
    shifts = found.shifts.get((*place, "cnn", "centred"), {})
    if len(shifts) > 1 and 0 in shifts:
        most = max(shifts)
        lost = _less(shifts[0], shifts[most])
        end = _interval(lost)
        word = "no" if end.low > 0 else "as far as is seen, yes"
        parts.append(f"{word}: trained in the middle the CNN loses {end.value:.3f} at a shift of {most} pixels")
    for without, words in (("shifted_once", "at one random place each"), ("centred", "in the middle")):
        leads = {
            WORDS[other]: values
            for other in ("mlp", "vit_patch7")
            if (values := _less(found.mean(*place, "cnn", without), found.mean(*place, other, WITH)))
        }
        by_side: dict[str, list[str]] = {}
        for name, values in leads.items():
            by_side.setdefault(_side(values), []).append(f"the {name} ({_shown(values)})")
        if leads:
            told = " and ".join(f"{side} {' and '.join(names)}" for side, names in by_side.items())
            against = " trained on moved images" if not told_of_others else ""
            told_of_others = True
            parts.append(f"with objects {words} it is {told}{against}")
    said = "; ".join(parts)
    return f"{said[0].upper()}{said[1:]}." if said else ""


def _shown(values: Values) -> str:
    found = _interval(values)
    ends = "" if math.isnan(found.low) else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.value:+.3f}{ends}"


def _positive(values: Values) -> str:
    return f"above 0 in {sum(value > 0 for value in values.values())} of {len(values)} seeds"


def _moving_in_words(found: Accuracies, place: tuple[str, int]) -> str:
    leads = []
    for other in ("mlp", "vit_patch7"):
        values = _less(found.mean(*place, "cnn", "shifted_once"), found.mean(*place, other, "shifted_once"))
        if values:
            leads.append(f"the {WORDS[other]} by {_shown(values)} ({_positive(values)})")
    if not leads:
        return ""
    most = max(found.shifts[(*place, "cnn", "shifted_once")])
    still = _less(
        found.shifts.get((*place, "cnn", "centred"), {}).get(0, {}),
        found.shifts.get((*place, "mlp", "centred"), {}).get(0, {}),
    )
    centred = f"; where objects stand in the middle it leads the MLP by {_shown(still)}" if still else ""
    return (
        f"Trained on {place[1]} images whose objects stand at one random place each, the CNN leads"
        f" {' and '.join(leads)} on average over shifts of 0 to {most} pixels{centred}."
    )


def _still_in_words(found: Accuracies, place: tuple[str, int]) -> str:
    paths = []
    for model, word in WORDS.items():
        shifts = found.shifts.get((*place, model, "centred"), {})
        if 0 not in shifts or len(shifts) < 2:
            continue
        most = max(shifts)
        on_the_way = [most // 2] if model == "cnn_circular" and most > 1 else []
        means = [f"{_interval(shifts[shift]).value:.3f} at {shift}" for shift in (*on_the_way, most)]
        paths.append(f"the {word} from {_interval(shifts[0]).value:.3f} to {' and '.join(means)}")
    if not paths:
        return ""
    return f"Trained in the middle and tested on shifted objects, accuracy goes for {', for '.join(paths)} pixels."


def _worth_in_words(found: Accuracies, place: tuple[str, int]) -> str:
    parts = []
    for without, words in (("shifted_once", "at one random place each"), ("centred", "in the middle only")):
        leads = []
        for other in ("mlp", "vit_patch7"):
            values = _less(found.mean(*place, "cnn", without), found.mean(*place, other, WITH))
            if values:
                leads.append(f"{_side(values)} the {WORDS[other]} with random shifts ({_shown(values)})")
        if leads:
            parts.append(f"trained on objects {words}, is {' and '.join(leads)}")
    if not parts:
        return ""
    gains = []
    for model, word in WORDS.items():
        values = _less(found.mean(*place, model, WITH), found.mean(*place, model, "shifted_once"))
        if values:
            gains.append(f"the {word} {_shown(values)}")
    more = f" New places in every step instead of one each give {', '.join(gains)}." if gains else ""
    return f"Is equivariance worth augmentation? Over the same shifts the CNN without it, {'; '.join(parts)}.{more}"


def _side(values: Values) -> str:
    """Where a difference lies, as its interval tells."""
    found = _interval(values)
    return "ahead of" if found.low > 0 else "behind" if found.high < 0 else "not told apart from"


def _sizes_in_words(found: Accuracies, place: tuple[str, int]) -> str:
    lost = {model: found.resized(*place, model, "centred") for model in WORDS}
    if not lost["cnn"]:
        return ""
    sizes = found.sizes[(*place, "cnn", "centred")]
    parts = [f"{WORDS[model]} {_interval(values).value:.3f}" for model, values in lost.items() if values]
    more = [
        f"{WORDS[other]} less CNN {_shown(_less(lost[other], lost['cnn']))}"
        for other in ("mlp", "vit_patch7")
        if lost[other]
    ]
    return (
        f"When objects have {min(sizes):g} to {max(sizes):g} times their size in training, models lose on average"
        f" {', '.join(parts)} ({', '.join(more)})."
    )


def _symmetry_in_words(frame: pd.DataFrame) -> str:
    held, broken = (frame[frame.quantity == name] for name in ("shift_error_eps", "breakage_eps"))
    if held.empty or broken.empty:
        return ""
    r = held.iloc[0]
    others = [f"the {WORDS[b.model]} by {b.shift}" for b in broken.itertuples()]
    return (
        f"With random weights the circular CNN is invariant under cyclic shifts by multiples of {r['shift']} (to"
        f" {r.estimate:.2g} eps in {int(r.n)} draws); shifts that change the logits in every draw, by at least"
        f" {broken.estimate.min():.0e} eps: {', '.join(others)}."
    )


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors of the symmetry are in eps of their own scale already."""
    return 1.0, 1.0


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Accuracy against the shift for each way of training, against the size of the object, and leads against n."""
    from attnrepro.results.charts import curves

    accuracy = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")]
    if accuracy.empty:
        return []
    data, n = _main(accuracy)
    rows = accuracy[(accuracy.data == data) & (accuracy.n_train == n)]
    # A model has the same colour in every chart.
    rows = rows.sort_values("model", kind="stable", key=lambda models: models.map(list(WORDS).index))
    titles = {
        "centred": "trained in the middle",
        "shifted_once": "trained moved once",
        "augmented": "with random shifts",
    }
    found = [
        _in_pixels(
            rows[(rows.training == training) & (rows["shift"] != "")],
            title=f"{title}, n = {n}",
        )
        for training, title in titles.items()
    ]
    sized = rows[(rows.training == "centred") & ((rows.object_scale != "") | (rows["shift"] == "0"))].copy()
    sized["object_scale"] = sized.object_scale.where(sized.object_scale != "", "1")
    found.append(
        curves(
            sized,
            *("object_scale", "model"),
            title="objects of another size",
            x_title="size of the object, training = 1",
            y_title="test accuracy",
        )
    )
    leads = frame[(frame.quantity == "mean_accuracy_difference") & (frame.data == data)]
    leads = leads[(leads.training == "shifted_once") & leads.model.str.startswith("cnn - ")]
    if leads.n_train.nunique() > 1:
        found.append(
            curves(
                leads,
                *("n_train", "model"),
                title="lead of the CNN, moved once",
                x_title="training images",
                y_title="paired difference of mean accuracy",
                log=True,
                zero=0.0,
            )
        )
    return [chart for chart in found if chart]


def _in_pixels(rows: pd.DataFrame, title: str) -> Mapping[str, Any] | None:
    """Accuracy against the shift, whose axis has whole pixels."""
    from attnrepro.results.charts import curves

    x_title = "shift in pixels, down and right or up and left"
    spec = curves(rows, "shift", "model", title=title, x_title=x_title, y_title="test accuracy")
    if spec:
        for layer in spec["layer"]:
            layer["encoding"]["x"]["axis"] = {"tickMinStep": 1, "format": "d"}
    return spec


def _main(accuracy: pd.DataFrame) -> tuple[str, str]:
    """Image set and number of images with most rows; of several the smallest."""
    counts = accuracy.groupby(["data", "n_train"]).size()
    data, n = min(counts.index, key=lambda at: (-counts[at], int(at[1])))
    return str(data), str(n)
