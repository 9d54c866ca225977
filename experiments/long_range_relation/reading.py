"""What the rows of long_range_relation say: who leads at which size, where that reverses, and what the cue allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.published import PublishedLine
from attnrepro.results.verdicts import HOLDS_EPS, REFUTED_EPS
from attnrepro.tables.long_range_relation.table import AXES, NAME

if TYPE_CHECKING:
    import pandas as pd

    from attnrepro.stats import Interval

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "roundoff"]

HIDDEN = ("last_step", "best_step", "last_loss")

VIT, ADDITIVE = "vit_patch7", "cnn_additive"
# The ViT is held against each of these.
OTHERS = (ADDITIVE, "cnn", "mlp")
WORDS = {ADDITIVE: "additive CNN", "cnn": "CNN", "mlp": "MLP", VIT: "ViT"}
# Resamples of seeds behind the interval of a crossover.
RESAMPLES = 2000
# The case made for attention: its strength of the cue and jitter, and the size at which the ViT is to have learned it.
MAIN, LEARNED = (0.85, 0), 1000
# An accuracy that only a model which has learned the relation can reach: the cue alone gives MAIN's.
REACHED = 0.95
# Standard errors by which an additive read-out may lie above the cue, and above the proven bound.
ABOVE_CUE, ABOVE_BOUND = 3, 4

# Values by number of training images and seed.
Curve = dict[int, dict[str, float]]


class Place(NamedTuple):
    """What a ViT and its opponent are compared on; ``grid`` is that of the ViT."""

    grid: str
    cue: float
    jitter: int

    @property
    def axes(self) -> dict[str, object]:
        """As in the rows."""
        return {"grid": self.grid, "cue": f"{self.cue:g}", "jitter": str(self.jitter)}

    def __str__(self) -> str:
        return f"q {self.cue:g}, jitter {self.jitter}, {self.grid}"


class Curves:
    """Accuracy by place, model, number of training images and seed."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.found: dict[tuple[Place, str], Curve] = {}
        chosen = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean") & (frame.learning_rate == "")]
        for r in chosen.itertuples():
            if r.by_seed:
                place = Place(r.grid, float(r.cue), int(r.jitter))
                self.found.setdefault((place, r.model), {})[int(r.n_train)] = dict(r.by_seed)

    def places(self) -> list[Place]:
        """Where a ViT was trained: the case made for it first, then the strongest cue, little jitter, whole glyphs."""
        found = {place for place, model in self.found if model == VIT}
        return sorted(found, key=lambda p: ((p.cue, p.jitter) != MAIN, -p.cue, p.jitter, p.grid))

    def lead(self, place: Place, other: str) -> Curve:
        """ViT less another model that sees the images as they are: differences of equal seeds."""
        return difference(self.found.get((place, VIT), {}), self.found.get((place._replace(grid="aligned"), other), {}))

    def pairs(self) -> Iterator[tuple[Place, str, Curve]]:
        """Every comparison that there are rows for."""
        for place in self.places():
            for other in OTHERS:
                if found := self.lead(place, other):
                    yield place, other, found


def difference(first: Curve, second: Curve) -> Curve:
    """The first less the second, of equal seeds."""
    paired = {n: {s: v - second[n][s] for s, v in first[n].items() if s in second[n]} for n in first if n in second}
    return {n: paired[n] for n in sorted(paired) if paired[n]}


def interval(by_seed: Mapping[str, float]) -> Interval:
    """Mean over seeds with its t interval."""
    from attnrepro.stats import mean_interval

    return mean_interval(list(by_seed.values()))


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Leads of the ViT with the share of seeds, what whole glyphs in patches gain, crossovers, and the lead over the
    cue."""
    curves = Curves(frame)
    return [*_leads(curves), *_turned(curves, published), *_gains(curves), *_crossovers(curves), *_excess(curves)]


def _line(quantity: str, statistic: str, axes: Mapping[str, object], by_seed: Mapping[str, float]) -> dict[str, object]:
    """A derived row over seeds."""
    import statistics

    found, values = interval(by_seed), tuple(by_seed.values())
    return {
        **axes,
        "quantity": quantity,
        "statistic": statistic,
        "estimate": found.value,
        "n": len(values),
        "sd": statistics.stdev(values) if len(values) > 1 else math.nan,
        "ci_low": found.low,
        "ci_high": found.high,
        "seeds": values,
        "theory": math.nan,
    }


def _plain(
    quantity: str, statistic: str, axes: Mapping[str, object], found: tuple[float, float, float], n: int
) -> dict[str, object]:
    """A derived row whose interval is no t interval."""
    value, low, high = found
    line = {"quantity": quantity, "statistic": statistic, "estimate": value, "n": n, "sd": math.nan}
    return {**axes, **line, "ci_low": low, "ci_high": high, "theory": math.nan}


def _leads(curves: Curves) -> Iterator[dict[str, object]]:
    from attnrepro.stats import share_interval

    for place, other, found in curves.pairs():
        for n, by_seed in found.items():
            axes = {**place.axes, "model": f"{VIT} - {other}", "n_train": str(n)}
            yield _line("accuracy_difference", "paired_difference", axes, by_seed)
            share = share_interval(sum(value > 0 for value in by_seed.values()), len(by_seed))
            yield _plain("seeds_above_0", "share", axes, share, len(by_seed))


def _turned(curves: Curves, published: Sequence[PublishedLine]) -> Iterator[dict[str, object]]:
    """Differences the other way round, where a claim says that convolution wins."""
    asked = {(dict(line.axes)["model"], dict(line.axes)["n_train"]) for line in published}
    for place, other, found in curves.pairs():
        for n, by_seed in found.items():
            axes = {**place.axes, "model": f"{other} - {VIT}", "n_train": str(n)}
            if (axes["model"], axes["n_train"]) in asked:
                turned = {seed: -value for seed, value in by_seed.items()}
                yield _line("accuracy_difference", "paired_difference", axes, turned)


def _gains(curves: Curves) -> Iterator[dict[str, object]]:
    for place in curves.places():
        shifted = curves.found.get((place._replace(grid="shifted"), VIT), {})
        if place.grid == "aligned":
            for n, by_seed in difference(curves.found[place, VIT], shifted).items():
                axes = {**place.axes, "model": VIT, "grid": "aligned - shifted", "n_train": str(n)}
                yield _line("accuracy_difference", "paired_difference", axes, by_seed)


def crossing(found: Curve, drawn: Sequence[str] | None = None) -> float:
    """Number of images from which on the mean difference is above 0 up to the largest, interpolated in log n.

    nan where it is not above 0 at the largest, or above 0 at all. ``drawn`` are the seeds to average, with repeats.
    """
    means = []
    for n in sorted(found):
        values = [found[n][s] for s in drawn if s in found[n]] if drawn else list(found[n].values())
        means.append((math.log(n), sum(values) / len(values) if values else math.nan))
    if not means[-1][1] > 0:
        return math.nan
    for (x, low), (more, high) in reversed(list(itertools.pairwise(means))):
        if not low > 0:
            return math.exp(x + (more - x) * low / (low - high))
    return math.nan


def resampled(found: Curve) -> tuple[float, float, float]:
    """2.5 % and 97.5 % of the crossing over resampled seeds, and the share of resamples that have one.

    All differences of a seed go together: its training sets are nested. The draws are the same in every run.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    every = sorted({seed for by_seed in found.values() for seed in by_seed})
    ends = [crossing(found, [every[i] for i in rng.integers(len(every), size=len(every))]) for _ in range(RESAMPLES)]
    crossed = [end for end in ends if math.isfinite(end)]
    low, high = (float(end) for end in np.percentile(crossed, [2.5, 97.5]))
    return low, high, len(crossed) / RESAMPLES


def _crossovers(curves: Curves) -> Iterator[dict[str, object]]:
    for place, other, found in curves.pairs():
        if math.isfinite(at := crossing(found)):
            axes = {**place.axes, "model": f"{VIT} - {other}"}
            low, high, share = resampled(found)
            yield _plain("crossover_n_train", "crossover", axes, (at, low, high), min(map(len, found.values())))
            yield _plain("crossover_in_resamples", "share", axes, (share, math.nan, math.nan), RESAMPLES)


def _excess(curves: Curves) -> Iterator[dict[str, object]]:
    """Accuracy less that of the cue alone, by model."""
    for (place, model), curve in curves.found.items():
        for n, by_seed in curve.items():
            axes = {**place.axes, "model": model, "n_train": str(n)}
            above = {seed: value - max(place.cue, 1 - place.cue) for seed, value in by_seed.items()}
            yield _line("excess_over_cue", "mean", axes, above)


class Order(NamedTuple):
    """Sizes at which the whole interval of the ViT's lead is below 0 and above 0, and the largest size."""

    behind: list[int]
    ahead: list[int]
    most: int

    @property
    def word(self) -> str:
        """``reverses``: behind, and ahead at all larger sizes that say anything. ``ahead``: at some size and never
        behind. ``behind``: at the largest size and nowhere ahead. Anything else is ``open``."""
        if self.ahead and (not self.behind or max(self.behind) < min(self.ahead)):
            return "reverses" if self.behind else "ahead"
        return "behind" if self.most in self.behind and not self.ahead else "open"


def order(found: Curve) -> Order:
    """Who leads where, by 95 % intervals of each size alone."""
    ends = {n: interval(by_seed) for n, by_seed in found.items()}
    return Order([n for n, i in ends.items() if i.high < 0], [n for n, i in ends.items() if i.low > 0], max(found))


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors are in eps of the largest logit already."""
    return 1.0, 1.0


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_additivity_controls(frame), *_bound_controls(frame), *_tuning_controls(frame), *_failures(frame)]


def _additivity_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame.itertuples():
        if r.quantity == "additivity_error_eps" and not r.estimate <= HOLDS_EPS:
            yield f"{r.model} is {r.estimate:.3g} eps from a sum over its windows: at most {HOLDS_EPS:g} is round-off"
        if r.quantity == "additivity_breakage_eps" and not r.estimate >= REFUTED_EPS:
            mode = " in training mode" if r.model == ADDITIVE else ""
            yield f"{r.model}{mode} is {r.estimate:.3g} eps from a sum over windows: what must break it did not"


def _levels(frame: pd.DataFrame, quantity: str) -> dict[float, float]:
    """A theory by strength of the cue."""
    return {float(r.cue): r.theory for r in frame[frame.quantity == quantity].itertuples()}


def _bound_controls(frame: pd.DataFrame) -> Iterator[str]:
    bounds, errors = _levels(frame, "accuracy_bound"), _levels(frame, "cue_accuracy_se")
    for (place, model), curve in Curves(frame).found.items():
        for n, by_seed in curve.items() if model == ADDITIVE else ():
            slack = ABOVE_BOUND * errors[place.cue] / math.sqrt(len(by_seed))
            if (mean := interval(by_seed).value) > bounds[place.cue] + slack:
                yield (
                    f"additive CNN at q {place.cue:g}, jitter {place.jitter}, {n} images: accuracy {mean:.4f} is above"
                    f" {bounds[place.cue]:.4f}, which no sum over local windows can exceed"
                )


def _tuning_controls(frame: pd.DataFrame) -> Iterator[str]:
    grids: dict[tuple[str, str], dict[tuple[float, float], float]] = {}
    for r in frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate != "")].itertuples():
        if r.n and not r.n_failed:
            pair = (float(r.learning_rate), float(r.weight_decay))
            grids.setdefault((r.grid, r.model), {})[pair] = r.estimate
    chosen = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]
    for (grid, model), found in grids.items():
        best = max(found, key=lambda pair: found[pair])
        used = tuple(float(chosen[grid][model][name]) for name in ("learning_rate", "weight_decay"))
        if used != best:
            yield (
                f"{WORDS[model]}, {grid}: the presets have learning rate {used[0]:g} and weight decay {used[1]:g}, the"
                f" best on validation images is {best[0]:g} and {best[1]:g}"
            )
        tried = {rate for rate, _ in found}
        if len(tried) > 1 and best[0] in (min(tried), max(tried)):
            yield f"{WORDS[model]}, {grid}: the best learning rate {best[0]:g} is at the edge of those tried"


def _failures(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.quantity == "accuracy") & (frame.n_failed > 0)].itertuples():
        where = f"{WORDS[r.model]}, {r.grid}, q {r.cue}, jitter {r.jitter}, {r.n_train} images"
        yield f"{where}: {r.n_failed} seeds diverged"


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    curves = Curves(frame)
    return " ".join([*_order_in_words(curves), *_main_in_words(frame, curves)])


def shown(found: Interval) -> str:
    """A difference with its interval."""
    ends = "" if math.isnan(found.low) else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.value:+.3f}{ends}"


def _order_in_words(curves: Curves) -> Iterator[str]:
    orders = {
        other: {place: order(found) for place in curves.places() if (found := curves.lead(place, other))}
        for other in (ADDITIVE, "cnn")
    }
    orders = {other: found for other, found in orders.items() if found}
    if not orders:
        return
    sizes = [n for curve in curves.found.values() for n in curve]
    turned = [made.word == "reverses" for found in orders.values() for made in found.values()]
    word = "yes, everywhere" if all(turned) else "in some settings" if any(turned) else "no"
    over = " and ".join(
        f"the {WORDS[other]} in {_count(found, 'reverses')} of {len(found)}" for other, found in orders.items()
    )
    rest = [
        f"{said} in {' and '.join(counts)}"
        for name, said in (("ahead", "leads from the start"), ("behind", "stays behind"), ("open", "is open"))
        if any(_count(found, name) for found in orders.values())
        and (counts := [str(_count(found, name)) for found in orders.values()])
    ]
    more = f"; it {', '.join(rest)}" if rest else ""
    yield (
        f"{word[0].upper()}{word[1:]}: from {min(sizes)} to {max(sizes)} training images the ViT overtakes {over}"
        f" settings (95 % intervals){more}."
    )
    parts = {
        "reverses": "the order reverses at {}",
        "ahead": "it leads without ever having been behind at {}",
        "behind": "it stays behind, no reversal, at {}",
        "open": "it is open at {}",
    }
    for other, found in orders.items():
        words: dict[str, list[str]] = {word: [] for word in parts}
        for place, made in found.items():
            words[made.word].append(_case(place, curves.lead(place, other), made))
        said = [parts[word].format("; ".join(places)) for word, places in words.items() if places]
        yield f"ViT less {WORDS[other]}: {'. Then '.join(said)}."


def _count(found: Mapping[Place, Order], word: str) -> int:
    """How often an order was found."""
    return sum(made.word == word for made in found.values())


def _case(place: Place, found: Curve, made: Order) -> str:
    """A place; with differences where it is the main one, with the crossing where there is one."""
    told = []
    if place.cue == MAIN[0] and place.jitter == MAIN[1]:
        ends = {"reverses": [*made.behind[-1:], *made.ahead[:1]], "ahead": made.ahead[:1]}.get(made.word, [max(found)])
        told += [f"{shown(interval(found[n]))} at {n}" for n in ends]
    if made.word == "reverses" and math.isfinite(at := crossing(found)):
        low, high, _ = resampled(found)
        told.append(f"crossing at {at:.0f} [{low:.0f}, {high:.0f}]")
    return f"{place} ({', '.join(told)})" if told else str(place)


def _main_in_words(frame: pd.DataFrame, curves: Curves) -> Iterator[str]:
    cue, jitter = MAIN
    aligned = Place("aligned", cue, jitter)
    if by_seed := curves.found.get((aligned, VIT), {}).get(LEARNED):
        found = interval(by_seed)
        ends = "" if math.isnan(found.low) else f" [{found.low:.3f}, {found.high:.3f}]"
        there = sum(value >= REACHED for value in by_seed.values())
        yield (
            f"At {aligned} the ViT reaches {found.value:.3f}{ends} on {LEARNED} images ({there} of {len(by_seed)} seeds"
            f" {REACHED:g} or more, the least {min(by_seed.values()):.3f})."
        )
    error, bound = _levels(frame, "cue_accuracy_se").get(cue), _levels(frame, "accuracy_bound").get(cue)
    above = [
        (interval(by_seed).value - cue, len(by_seed), place.jitter, n)
        for (place, model), curve in curves.found.items()
        for n, by_seed in curve.items()
        if model == ADDITIVE and place.cue == cue
    ]
    if above and error is not None and bound is not None:
        most, seeds, at_jitter, n = max(above)
        beyond = sum(value > ABOVE_CUE * error / math.sqrt(count) for value, count, _, _ in above)
        yield (
            "The additive CNN's accuracy less that of this cue alone, which its training aims at, is"
            f" {most:+.3f} at most (jitter {at_jitter}, {n} images, {seeds} seeds; above it by more than {ABOVE_CUE}"
            " standard errors at"
            f" {beyond} of {len(above)} points); no sum over local windows can exceed {bound:.3g}."
        )


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Who leads where, accuracy of all models with the cue's, the ViT's lead over both CNNs, and the rates."""
    from attnrepro.results.charts import curves as drawn
    from attnrepro.results.charts import rates

    found = _maps(frame)
    accuracy = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")].copy()
    accuracy["line"] = accuracy.model + accuracy.grid.map({"shifted": ", patches shifted"}).fillna("")
    turns = frame[frame.statistic == "crossover"].copy()
    turns["what"] = turns.model.str.replace(" - ", " = ")
    for cue, jitter in (MAIN, (MAIN[0], 1), (0.5, 0)):
        rows = accuracy[(accuracy.cue == f"{cue:g}") & (accuracy.jitter == str(jitter))]
        # Of glyphs whole in their patches: marks of the shifted ones too would hide the lines.
        whole = turns[(turns.grid == "aligned") & turns.model.isin([f"{VIT} - {ADDITIVE}", f"{VIT} - cnn"])]
        found.append(
            drawn(
                rows,
                *("n_train", "line"),
                title=f"accuracy, cue right in {cue:g}, jitter {jitter}",
                x_title="training images",
                y_title="test accuracy",
                log=True,
                zero=cue,
                crossings=whole[(whole.cue == f"{cue:g}") & (whole.jitter == str(jitter))],
            )
        )
    leads = frame[(frame.quantity == "accuracy_difference") & frame.cue.isin(["0.5", f"{MAIN[0]:g}"])]
    # As many lines as the page has colours for: where glyphs move, patches cut them anyway.
    leads = leads[(leads.jitter == "0") | (leads.grid == "aligned")].copy()
    for rows in (leads, turns):
        rows["place"] = "q " + rows.cue + ", jitter " + rows.jitter + ", " + rows.grid
    turns["what"] = turns.place
    for other in (ADDITIVE, "cnn"):
        shown = leads[leads.model == f"{VIT} - {other}"]
        found.append(
            drawn(
                shown,
                *("n_train", "place"),
                title=f"lead of the ViT over the {WORDS[other]}",
                x_title="training images",
                y_title="paired difference of accuracy",
                log=True,
                zero=0.0,
                crossings=turns[(turns.model == f"{VIT} - {other}") & turns.place.isin(shown.place)],
            )
        )
    tuning = frame[frame.quantity == "validation_accuracy"].copy()
    tuning["line"] = tuning.model + tuning.grid.map({"shifted": ", shifted"}).fillna("")
    found.append(rates(tuning, "line", title="search for the rates, on seeds that are not reported"))
    return [chart for chart in found if chart]


def _maps(frame: pd.DataFrame) -> list[Mapping[str, Any] | None]:
    """The ViT's lead by cue and number of images, a map for each rival and jitter."""
    from attnrepro.results.charts import grid

    leads = frame[(frame.quantity == "accuracy_difference") & (frame.grid == "aligned")].copy()
    leads["q"] = "q " + leads.cue
    leads = leads.sort_values("cue", ascending=False)
    if leads.cue.nunique() < 2:
        return []
    return [
        grid(
            leads[(leads.model == f"{VIT} - {other}") & (leads.jitter == jitter)],
            *("n_train", "q"),
            title=f"lead of the ViT over the {WORDS[other]}, jitter {jitter}",
            x_title="training images",
            y_title="cue",
            of="paired difference of accuracy",
            zero=0.0,
            said="patches aligned; q: accuracy of the cue; pale: the 95 % interval holds 0",
        )
        for other in (ADDITIVE, "cnn")
        for jitter in ("0", "1")
    ]
