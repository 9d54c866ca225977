"""What the rows of pretraining_transfer say: what pre-training adds, who is ahead after it, and whether that turns."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.published import PublishedLine
from attnrepro.tables.pretraining_transfer.table import AXES

if TYPE_CHECKING:
    import pandas as pd

    from attnrepro.stats import Interval

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive"]

HIDDEN = ("last_step", "best_step")

NONE = "none"
# Resamples of seeds behind the interval of a crossover.
RESAMPLES = 2000
# From so many images on pre-training must have taught its own task: accuracy of five classes with labels, and squared
# error of masked pixels in units of the images' variance. A fine-tuning from nothing must be far above chance, 0.2.
ENOUGH = 1000
TAUGHT = 0.6
PAINTED = 0.8
FROM_NOTHING, FEW = 0.5, 100
WORDS = {"cnn": "CNN", "vit": "ViT"}
WAYS = {
    "supervised": "with labels",
    "glyphs": "on glyphs",
    "masked": "by masked reconstruction",
    "supervised - masked": "the CNN with labels, the ViT by masked reconstruction",
}

Values = dict[str, float]
# Values by number of images of pre-training, then by seed; without pre-training at 0.
Curve = dict[int, Values]
# Image set and number of images of fine-tuning.
Place = tuple[str, int]


def kind(model: str) -> str:
    """A model without its patch."""
    return model.split("_patch")[0]


class Chosen:
    """Test accuracies at the rate that each seed chose on validation images, by place, model and source."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.names: dict[tuple[Place, str], str] = {}
        self.curves: dict[tuple[Place, str, str], Curve] = {}
        self.failed: dict[tuple[Place, str, str, int], int] = {}
        tried: dict[tuple[Place, str, str, int], list[tuple[float, Values, Values, int]]] = {}
        validated = _by_point(frame, "validation_accuracy")
        for at, (_, tested, seeds) in _by_point(frame, "accuracy").items():
            data, model, source, n_pre, n_fine, factor = at
            found = ((data, int(n_fine)), model, source, int(n_pre))
            by_validation = validated[at][1] if at in validated else {}
            tried.setdefault(found, []).append((float(factor), by_validation, tested, seeds))
        for (place, model, source, n_pre), factors in tried.items():
            one = kind(model)
            self.names[place, one] = model
            values = _best(factors)
            self.failed[place, one, source, n_pre] = max(seeds for *_, seeds in factors) - len(values)
            if values:
                self.curves.setdefault((place, one, source), {})[n_pre] = values

    @property
    def places(self) -> list[Place]:
        """Image sets and sizes of fine-tuning, smallest first."""
        return sorted({place for place, *_ in self.curves})

    def curve(self, place: Place, one: str, source: str) -> Curve:
        """By size of pre-training, smallest first; empty where nothing was measured."""
        found = self.curves.get((place, one, source), {})
        return {n: found[n] for n in sorted(found)}

    def gains(self, place: Place, one: str, source: str) -> Curve:
        """What pre-training adds."""
        nothing = self.curve(place, one, NONE).get(0, {})
        return _kept({n: _less(values, nothing) for n, values in self.curve(place, one, source).items()})

    def leads(self, place: Place, source: str, first: str = "cnn", second: str = "vit") -> Curve:
        """The first model less the second; ``source`` may name one for each."""
        sources = source.split(" - ")
        a, b = self.curve(place, first, sources[0]), self.curve(place, second, sources[-1])
        return _kept({n: _less(a[n], b[n]) for n in a if n in b})

    def sources(self, place: Place) -> list[str]:
        """What both models, or the CNN with labels and the ViT without, were pre-trained on."""
        return [source for source in WAYS if self.leads(place, source)]


def _by_point(frame: pd.DataFrame, quantity: str) -> dict[tuple[str, ...], tuple[float, Values, int]]:
    """Mean, values by seed and number of seeds, at every point of the axes of a fine-tuning."""
    chosen = frame[(frame.quantity == quantity) & (frame.statistic == "mean") & (frame.n_fine != "")]
    return {
        tuple(str(getattr(r, axis)) for axis in AXES): (r.estimate, dict(r.by_seed), int(r.n + r.n_failed))
        for r in chosen.itertuples()
        if r.rate_factor != ""
    }


def _best(factors: Sequence[tuple[float, Values, Values, int]]) -> Values:
    """By seed, the test accuracy of the factor with the best validation accuracy; of equal ones the larger factor.

    A factor at which a seed diverged is none for it.
    """
    options: dict[str, list[tuple[float, float, float]]] = {}
    for factor, validated, tested, _ in factors:
        for seed in validated.keys() & tested.keys():
            options.setdefault(seed, []).append((validated[seed], factor, tested[seed]))
    return {seed: max(options[seed])[2] for seed in sorted(options, key=int)}


def _less(first: Values, second: Values) -> Values:
    """The first less the second, of equal seeds."""
    return {seed: first[seed] - second[seed] for seed in sorted(first.keys() & second.keys(), key=int)}


def _kept(curve: Curve) -> Curve:
    return {n: values for n, values in curve.items() if values}


def _interval(values: Values) -> Interval:
    from attnrepro.stats import mean_interval

    return mean_interval(list(values.values()))


def _line(
    quantity: str, statistic: str, axes: Mapping[str, object], values: Values, n_failed: int = 0
) -> dict[str, object]:
    """A derived row over seeds, with its t interval."""
    found = _interval(values)
    return {
        **axes,
        "quantity": quantity,
        "statistic": statistic,
        "estimate": found.value,
        "n": len(values),
        "n_failed": n_failed,
        "sd": statistics.stdev(values.values()) if len(values) > 1 else math.nan,
        "ci_low": found.low,
        "ci_high": found.high,
        "seeds": tuple(values.values()),
        "theory": math.nan,
    }


def _axes(place: Place, model: str, source: str, n_pre: object = "") -> dict[str, object]:
    return {"data": place[0], "model": model, "pretraining": source, "n_pre": str(n_pre), "n_fine": str(place[1])}


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Accuracies as chosen, what pre-training adds, leads, whether they shrink, and where the order turns."""
    chosen = Chosen(frame)
    return [*_accuracies(chosen), *_gains(chosen), *_leads(chosen), *_crossovers(chosen)]


def _accuracies(chosen: Chosen) -> Iterator[dict[str, object]]:
    for place, one, source in chosen.curves:
        for n, values in chosen.curve(place, one, source).items():
            axes = _axes(place, chosen.names[place, one], source, n)
            yield _line("chosen_accuracy", "mean", axes, values, chosen.failed[place, one, source, n])


def _gains(chosen: Chosen) -> Iterator[dict[str, object]]:
    for place, one, source in chosen.curves:
        if source == NONE:
            continue
        for n, values in chosen.gains(place, one, source).items():
            axes = _axes(place, chosen.names[place, one], source, n)
            yield _line("gain_of_pretraining", "paired_difference", axes, values)
    for place in chosen.places:
        for source in chosen.sources(place):
            cnn_source, vit_source = source.split(" - ")[0], source.split(" - ")[-1]
            more, less = chosen.gains(place, "vit", vit_source), chosen.gains(place, "cnn", cnn_source)
            for n in sorted(more.keys() & less.keys()):
                axes = _axes(place, _pair(chosen, place, "vit", "cnn"), _turned(source), n)
                if values := _less(more[n], less[n]):
                    yield _line("gain_difference", "paired_difference", axes, values)


def _pair(chosen: Chosen, place: Place, first: str, second: str) -> str:
    return f"{chosen.names[place, first]} - {chosen.names[place, second]}"


def _turned(source: str) -> str:
    """Sources of ViT and CNN, named in this order, where they are two."""
    return " - ".join(reversed(source.split(" - ")))


def _leads(chosen: Chosen) -> Iterator[dict[str, object]]:
    from attnrepro.stats import share_interval

    for place in chosen.places:
        for source in (NONE, *chosen.sources(place)):
            found = chosen.leads(place, source)
            if not found:
                continue
            both, turned = (_pair(chosen, place, *pair) for pair in (("cnn", "vit"), ("vit", "cnn")))
            for n, values in found.items():
                yield _line("accuracy_difference", "paired_difference", _axes(place, both, source, n), values)
                negative = {seed: -value for seed, value in values.items()}
                axes = _axes(place, turned, _turned(source), n)
                yield _line("accuracy_difference", "paired_difference", axes, negative)
                ahead = share_interval(sum(value > 0 for value in values.values()), len(values))
                yield {
                    **_axes(place, both, source, n),
                    "quantity": "cnn_ahead",
                    "statistic": "share",
                    "estimate": ahead.value,
                    "n": len(values),
                    "sd": math.nan,
                    "ci_low": ahead.low,
                    "ci_high": ahead.high,
                    "theory": math.nan,
                }
            if len(found) > 1:
                few, many = min(found), max(found)
                if shrinks := _less(found[few], found[many]):
                    axes = _axes(place, both, source, f"{few} - {many}")
                    yield _line("accuracy_difference", "paired_difference", axes, shrinks)


def crossing(found: Curve, seeds: Sequence[str] | None = None) -> float:
    """log10 of the last size at which the mean difference changes sign, by interpolation; nan if it never does.

    ``seeds`` may name a seed more than once; a mean of exactly 0 counts as below.
    """
    means = []
    for n in sorted(found):
        values = [found[n][seed] for seed in (found[n] if seeds is None else seeds)]
        means.append((math.log10(n), sum(values) / len(values)))
    for (x, low), (more, high) in reversed(list(itertools.pairwise(means))):
        if (low > 0) != (high > 0):
            return x + (more - x) * low / (low - high)
    return math.nan


def resampled(found: Curve) -> tuple[float, float, float]:
    """2.5 % and 97.5 % of the crossing over resampled seeds, and the share of resamples that have one.

    The differences of a seed at all sizes go together; the draws are the same in every run.
    """
    import numpy as np

    seeds = sorted(set.intersection(*(set(values) for values in found.values())), key=int)
    if not seeds:
        return math.nan, math.nan, math.nan
    stream = np.random.default_rng(0)
    drawn = stream.integers(len(seeds), size=(RESAMPLES, len(seeds)))
    crossings = np.array([crossing(found, [seeds[i] for i in draw]) for draw in drawn])
    there = crossings[np.isfinite(crossings)]
    if not there.size:
        return math.nan, math.nan, 0.0
    low, high = np.quantile(there, [0.025, 0.975])
    return float(low), float(high), there.size / RESAMPLES


def _crossovers(chosen: Chosen) -> Iterator[dict[str, object]]:
    for place in chosen.places:
        for source in chosen.sources(place):
            found = chosen.leads(place, source)
            if math.isnan(at := crossing(found)):
                continue
            low, high, share = resampled(found)
            axes = _axes(place, _pair(chosen, place, "cnn", "vit"), source)
            yield {
                **axes,
                "quantity": "crossover_n_pre",
                "statistic": "crossover",
                "estimate": 10**at,
                "n": min(len(values) for values in found.values()),
                "sd": math.nan,
                "ci_low": 10**low,
                "ci_high": 10**high,
                "theory": math.nan,
            }
            yield {
                **axes,
                "quantity": "crossover_in_resamples",
                "statistic": "share",
                "estimate": share,
                "n": RESAMPLES,
                "sd": math.nan,
                "theory": math.nan,
            }


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_pretraining_controls(frame), *_fine_tuning_controls(frame)]


def _pretraining_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.quantity.isin(["pretraining_accuracy", "reconstruction_loss"])].itertuples():
        where = f"{r.model} pre-trained on {r.n_pre} images ({r.pretraining})"
        if r.n_failed:
            yield f"{where}: {r.n_failed} seeds diverged"
        if not r.n or int(r.n_pre) < ENOUGH:
            continue
        if r.quantity == "reconstruction_loss" and not r.estimate <= PAINTED:
            yield f"{where} paints masked pixels with an error of {r.estimate:.3f}, above {PAINTED}: it learned nothing"
        if r.quantity == "pretraining_accuracy" and r.pretraining == "supervised" and not r.estimate >= TAUGHT:
            yield f"{where} has {r.estimate:.3f} on its own classes, below {TAUGHT}: it learned nothing"


def _fine_tuning_controls(frame: pd.DataFrame) -> Iterator[str]:
    chosen = Chosen(frame)
    for (place, one, source, n), failed in chosen.failed.items():
        if failed:
            yield (
                f"{chosen.names[place, one]} fine-tuned on {place[1]} images ({source}, {n}): {failed} seeds diverged"
                " at every rate"
            )
    for place, one, source in chosen.curves:
        if source != NONE or place[1] < FEW:
            continue
        for values in chosen.curve(place, one, source).values():
            if not (mean := _interval(values).value) >= FROM_NOTHING:
                yield (
                    f"{chosen.names[place, one]} from nothing has {mean:.3f} on {place[1]} images, below"
                    f" {FROM_NOTHING}: a straw man"
                )


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    chosen = Chosen(frame)
    if not chosen.places:
        return ""
    # Where pre-training counts most: the fewest images of fine-tuning.
    place = min(chosen.places, key=lambda p: (p[0] != "fashion_mnist", p))
    sentences = [
        *_told(chosen, place),
        *_gains_in_words(chosen, place),
        *_order_in_words(chosen, place),
        *_others_in_words(chosen, place),
    ]
    return " ".join(sentences)


def _told(chosen: Chosen, place: Place) -> Iterator[str]:
    """Whether the ViT overtakes, by the first way of pre-training that there are rows for."""
    source = next(iter(chosen.sources(place)), None)
    if source is None:
        return
    found = chosen.leads(place, source)
    many = max(found)
    last, nothing = found[many], chosen.leads(place, NONE).get(0, {})
    end = _interval(last)
    known = end.low > 0 or end.high < 0
    turned = len(found) > 1 and not math.isnan(crossing(found))
    if turned:
        low, high, _ = resampled(found)
        over = "the ViT overtakes" if end.value < 0 else "the CNN overtakes"
        word = f"{over} at {10 ** crossing(found):.0f} [{10**low:.0f}, {10**high:.0f}] images of pre-training"
    elif end.high < 0:
        word = "the ViT is ahead"
    else:
        word = "the ViT was not seen to overtake" if known else "whether the ViT overtakes is open"
    if len(found) < 2:
        word += " (one size of pre-training alone)"
    way = WAYS[source]
    start = f", {_shown(nothing)} without pre-training" if nothing else ""
    yield (
        f"{word[0].upper()}{word[1:]}: after {many} images of other classes {way}, fine-tuned on {place[1]}, CNN less"
        f" ViT is {_shown(last)} ({len(last)} seeds){start}{_ways(chosen, place)}."
    )


def _ways(chosen: Chosen, place: Place) -> str:
    """In how many ways of pre-training the ViT overtakes, where there are several."""
    curves = [chosen.leads(place, source) for source in chosen.sources(place)]
    turned = [c for c in curves if len(c) > 1 and not math.isnan(crossing(c)) and _interval(c[max(c)]).value < 0]
    return f"; it overtakes in {len(turned)} of {len(curves)} ways of pre-training" if len(curves) > 1 else ""


def _shown(values: Values) -> str:
    found = _interval(values)
    ends = "" if math.isnan(found.low) else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.value:+.3f}{ends}"


def _gains_in_words(chosen: Chosen, place: Place) -> Iterator[str]:
    parts = []
    for source in WAYS:
        gains = {one: chosen.gains(place, one, source) for one in WORDS}
        sizes = [n for curve in gains.values() for n in curve]
        if sizes:
            many = max(sizes)
            shown = [f"{_shown(curve[many])} for the {WORDS[one]}" for one, curve in gains.items() if many in curve]
            parts.append(f"{WAYS[source]} ({many} images) {' and '.join(shown)}")
    if parts:
        yield (
            f"What pre-training adds to the accuracy after fine-tuning on {place[1]} images of new classes:"
            f" {'; '.join(parts)}."
        )


def _order_in_words(chosen: Chosen, place: Place) -> Iterator[str]:
    parts = []
    for source in chosen.sources(place):
        found = chosen.leads(place, source)
        few, many = min(found), max(found)
        ends = [f"{_shown(found[n])} after {n} images ({_ahead(found[n])})" for n in dict.fromkeys((few, many))]
        way = WAYS[source][0].upper() + WAYS[source][1:]
        parts.append(f"{way}: {' and '.join(ends)}; {_turn_in_words(found)}.")
    if not parts:
        return
    nothing = chosen.leads(place, NONE).get(0, {})
    start = f" is {_shown(nothing)} without pre-training" if nothing else ""
    yield f"Does the order turn with the size of pre-training? CNN less ViT{start}. {' '.join(parts)}"


def _ahead(values: Values) -> str:
    return f"CNN ahead in {sum(value > 0 for value in values.values())} of {len(values)} seeds"


def _turn_in_words(found: Curve) -> str:
    if len(found) < 2:
        return "one size says nothing of a turn"
    many = max(found)
    if math.isnan(at := crossing(found)):
        last = _interval(found[many])
        sure = last.low > 0 or last.high < 0
        return f"no turn up to {many}" if sure else f"whether the order turns by {many} is open"
    low, high, share = resampled(found)
    return f"the order turns at {10**at:.0f} [{10**low:.0f}, {10**high:.0f}] images (in {share:.0%} of the resamples)"


def _others_in_words(chosen: Chosen, place: Place) -> Iterator[str]:
    """The same comparison where fine-tuning has more images."""
    parts = []
    for other in chosen.places:
        found = chosen.leads(other, "supervised")
        if other[0] == place[0] and other != place and found:
            many = max(found)
            parts.append(f"{_shown(found[many])} with {other[1]}")
    if parts:
        yield f"After the most images with labels CNN less ViT is, fine-tuned on more, {' and '.join(parts)}."


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Accuracy after pre-training, and the CNN's lead, against the size of pre-training."""
    chosen = Chosen(frame)
    if not chosen.places:
        return []
    place = min(chosen.places, key=lambda p: (p[0] != "fashion_mnist", p))
    rows = frame[(frame.data == place[0]) & (frame.n_fine == str(place[1])) & (frame.rate_factor == "")]
    accuracy = rows[rows.quantity == "chosen_accuracy"].copy()
    accuracy["way"] = accuracy.model.map(lambda model: WORDS[kind(model)]) + accuracy.pretraining.map(_way)
    leads = rows[(rows.quantity == "accuracy_difference") & rows.model.str.startswith("cnn - ")].copy()
    leads = leads[~leads.n_pre.str.contains(" ")]
    leads["way"] = leads.pretraining.map(lambda source: _way(source).removeprefix(", "))
    found = [
        _by_size(
            accuracy,
            title=f"accuracy on new classes, {place[1]} images",
            y_title="test accuracy",
        ),
        _by_size(
            leads,
            title="lead of the CNN (above 0: it wins)",
            y_title="paired difference of accuracy",
            zero=0.0,
        ),
    ]
    return [chart for chart in found if chart]


def _way(source: str) -> str:
    return ", from nothing" if source == NONE else f", {source.replace(' - ', ' against ')}"


def _by_size(frame: pd.DataFrame, *, title: str, y_title: str, zero: float | None = None) -> Mapping[str, Any] | None:
    """Estimates with their intervals at each size of pre-training, "none" the first: 0 has no place on a logarithm."""
    import altair as alt

    from attnrepro.results.charts import records

    shown = frame[frame.n > 0].copy()
    if shown.empty:
        return None
    shown["size"] = shown.n_pre.astype(int)
    shown["shown"] = shown["size"].map(lambda n: f"{n}" if n else "none")
    shown = shown.sort_values("size", kind="stable")
    columns = ["shown", "way", "estimate", "ci_low", "ci_high", "n"]
    values = alt.Data(values=records(shown, columns))  # type: ignore[no-untyped-call]
    order, ways = list(dict.fromkeys(shown["shown"])), list(dict.fromkeys(shown["way"]))
    base = alt.Chart(values).encode(
        x=alt.X("shown:N", title="images of pre-training", sort=order).axis(labelAngle=0),
        xOffset=alt.XOffset("way:N", sort=ways),
        color=alt.Color("way:N", title=None, sort=ways),
    )

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title=y_title).scale(zero=False)

    tip = [*("shown:N", "way:N"), *(f"{name}:Q" for name in columns[2:])]
    layers: list[Any] = [
        base.mark_rule().encode(y=y("ci_low"), y2="ci_high:Q"),
        base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
    ]
    if zero is not None:
        level = alt.Chart(alt.Data(values=[{"level": zero}]))  # type: ignore[no-untyped-call]
        layers.append(level.mark_rule(style="theory").encode(y=alt.Y("level:Q", title=y_title)))
    described = f"{title}: {y_title} against images of pre-training"
    spec: Mapping[str, Any] = alt.layer(*layers).properties(title=title, description=described).to_dict()
    return spec
