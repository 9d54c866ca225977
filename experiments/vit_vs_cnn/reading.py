"""What the rows of vit_vs_cnn say: paired differences, exponents, crossovers, and the rule about more data."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.published import PublishedLine
from attnrepro.tables.vit_vs_cnn.table import AXES

if TYPE_CHECKING:
    import pandas as pd

    from attnrepro.stats import Interval

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive"]

HIDDEN = ("last_step", "best_step")

# What is compared: the first less the second. A ViT's preset names its patch.
PAIRS = (("cnn", "vit"), ("vit", "cnn"), ("cnn", "mlp"), ("cnn", "logistic_regression"), ("vit", "mlp"))
# Resamples of seeds behind the interval of a crossover.
RESAMPLES = 2000
# Accuracy whose price in images is compared.
LEVEL = 0.75
# Power laws are fitted from this many images on, where errors have begun to fall like one.
LEAST = 1000
# Training images of CIFAR-10 and of ImageNet-1k, to which the curves are extended.
FAR = (50000, 1281167)
# No straw men: what models of this size reach on all of Fashion-MNIST without augmentation, by any recipe.
REACHED = {"cnn": 0.92, "vit": 0.89}
ALL = 55000
WORDS = {"cnn": "CNN", "vit": "ViT", "mlp": "MLP", "logistic_regression": "logistic regression"}
# Means of equally many right answers differ in their last bits.
TIE = 1e-9
# The case that the documents speak of, and the main figure.
MAIN = ("fashion_mnist", "none", "equal_updates")

Place = tuple[str, str, str]
# Values by number of images and seed.
Curve = dict[int, dict[str, float]]


def kind(model: str) -> str:
    """A model without its patch."""
    return model.split("_patch")[0]


class Curves:
    """A quantity by image set, augmentation and recipe, model, number of images and seed."""

    def __init__(self, frame: pd.DataFrame, quantity: str = "accuracy") -> None:
        self.names: dict[Place, dict[str, str]] = {}
        self.curves: dict[tuple[Place, str], Curve] = {}
        chosen = frame[(frame.quantity == quantity) & (frame.statistic == "mean") & (frame.learning_rate == "")]
        for r in chosen.itertuples():
            place, one = (r.data, r.augmentation, r.recipe), kind(r.model)
            if r.by_seed:
                self.names.setdefault(place, {})[one] = r.model
                self.curves.setdefault((place, one), {})[int(r.n_train)] = dict(r.by_seed)

    def difference(self, place: Place, first: str, second: str) -> Curve:
        """Differences of equal seeds, at sizes where both models were trained."""
        a, b = self.curves.get((place, first), {}), self.curves.get((place, second), {})
        paired = {n: {s: a[n][s] - b[n][s] for s in a[n] if s in b[n]} for n in sorted(a.keys() & b.keys())}
        return {n: by_seed for n, by_seed in paired.items() if by_seed}

    def pairs(self) -> Iterator[tuple[Place, str, str, Curve]]:
        """Every comparison that there are rows for."""
        for place in self.names:
            for first, second in PAIRS:
                if found := self.difference(place, first, second):
                    yield place, first, second, found

    def axes(self, place: Place, *models: str) -> dict[str, object]:
        """Axes of a derived row; several models stand with a minus between them."""
        names = " - ".join(self.names[place][one] for one in models)
        return dict(zip(("data", "augmentation", "recipe"), place, strict=True)) | {"model": names}


def _line(quantity: str, statistic: str, axes: Mapping[str, object], values: Sequence[float]) -> dict[str, object]:
    """A derived row over seeds, with its t interval."""
    import statistics

    from attnrepro.stats import mean_interval

    found = mean_interval(values)
    return {
        **axes,
        "quantity": quantity,
        "statistic": statistic,
        "estimate": found.value,
        "n": len(values),
        "sd": statistics.stdev(values) if len(values) > 1 else math.nan,
        "ci_low": found.low,
        "ci_high": found.high,
        "seeds": tuple(values),
        "theory": math.nan,
    }


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Differences, gains of more data, exponents and what they foretell, prices in images, crossovers, the rule."""
    curves = Curves(frame)
    return [
        *_differences(curves),
        *_gains(curves),
        *_exponents(curves),
        *_prices(curves),
        *_crossovers(curves),
        *_rule(curves),
    ]


def _differences(curves: Curves) -> Iterator[dict[str, object]]:
    for place, first, second, found in curves.pairs():
        for n, by_seed in found.items():
            axes = curves.axes(place, first, second) | {"n_train": str(n)}
            yield _line("accuracy_difference", "paired_difference", axes, list(by_seed.values()))
        few, many = _ends(found)
        if few and many > few:
            shared = found[few].keys() & found[many].keys()
            shrinks = [found[few][s] - found[many][s] for s in sorted(shared)]
            axes = curves.axes(place, first, second) | {"n_train": f"{few} - {many}"}
            yield _line("accuracy_difference", "paired_difference", axes, shrinks)


def _ends(found: Curve) -> tuple[int, int]:
    """The smallest size, and the largest with as many seeds."""
    few = min(found)
    return few, max(n for n in found if found[n].keys() >= found[few].keys())


def _gains(curves: Curves) -> Iterator[dict[str, object]]:
    """What about three times as many images add, the smaller set within the larger."""
    for (place, one), curve in curves.curves.items():
        for n, more in _steps(curve):
            values = [curve[more][s] - curve[n][s] for s in curve[n] if s in curve[more]]
            axes = curves.axes(place, one) | {"n_train": f"{more} - {n}"}
            yield _line("gain_of_more_data", "paired_difference", axes, values)


def _steps(curve: Curve) -> list[tuple[int, int]]:
    """Sizes and those about three times as large."""
    return [(n, more) for n in sorted(curve) for more in curve if 3 < more / n < 3.5]


def _fits(curve: Curve) -> dict[str, tuple[float, float]]:
    """By seed: exponent and log error at one image of error = c n^-b, over the seed's sizes from `LEAST` on."""
    import numpy as np

    found = {}
    for seed in {s for by_seed in curve.values() for s in by_seed}:
        points = [(math.log(n), math.log(1 - v[seed])) for n, v in curve.items() if seed in v and n >= LEAST]
        if len(points) >= 3 and len(points) == sum(n >= LEAST for n in curve):
            slope, level = np.polyfit(*np.array(points).T, 1)
            found[seed] = (-float(slope), float(level))
    return dict(sorted(found.items()))


def _exponents(curves: Curves) -> Iterator[dict[str, object]]:
    fits = {key: found for key, curve in curves.curves.items() if (found := _fits(curve))}
    for (place, one), found in fits.items():
        axes = curves.axes(place, one)
        yield _line("error_exponent", "slope", axes, [b for b, _ in found.values()])
    for place in curves.names:
        a, b = (fits.get((place, one), {}) for one in ("cnn", "vit"))
        for far in FAR:
            values = [_error(b[s], far) - _error(a[s], far) for s in a if s in b]
            if values:
                axes = curves.axes(place, "cnn", "vit") | {"n_train": str(far)}
                yield _line("extrapolated_difference", "paired_difference", axes, values)


def _error(fit: tuple[float, float], n: int) -> float:
    return math.exp(fit[1] - fit[0] * math.log(n))


def _prices(curves: Curves) -> Iterator[dict[str, object]]:
    """How many times as many images a ViT needs as a CNN for the same accuracy, as a logarithm to the base 10."""
    for place in curves.names:
        curve = [curves.curves.get((place, one), {}) for one in ("vit", "cnn")]
        seeds = sorted({s for by_seed in curve[0].values() for s in by_seed})
        pairs = [(_price(curve[0], s), _price(curve[1], s)) for s in seeds]
        values = [vit - cnn for vit, cnn in pairs if math.isfinite(vit) and math.isfinite(cnn)]
        if values:
            axes = curves.axes(place, "vit", "cnn")
            failed = {"n_failed": len(pairs) - len(values)}
            yield _line("log10_images_for_0.75", "paired_difference", axes, values) | failed


def _price(curve: Curve, seed: str) -> float:
    """log10 of the images at which a seed's curve first passes `LEVEL`, by interpolation; nan if it does not."""
    points = [(math.log10(n), curve[n][seed]) for n in sorted(curve) if seed in curve[n]]
    for (x, low), (more, high) in itertools.pairwise(points):
        if low < LEVEL <= high:
            return x + (more - x) * (LEVEL - low) / (high - low)
    return math.nan


def crossing(found: Curve, choose: Mapping[int, Sequence[str]] | None = None) -> float:
    """log10 of the first size at which the mean difference changes sign for good, by interpolation; nan if none."""
    means = []
    for n in sorted(found):
        seeds = choose[n] if choose else list(found[n])
        means.append((math.log10(n), sum(found[n][s] for s in seeds) / len(seeds)))
    last = means[-1][1] > 0
    for (x, low), (more, high) in reversed(list(itertools.pairwise(means))):
        if (low > 0) != last:
            return x + (more - x) * low / (low - high)
    return math.nan


def _crossovers(curves: Curves) -> Iterator[dict[str, object]]:
    for place, first, second, found in curves.pairs():
        if (first, second) == ("vit", "cnn") or math.isnan(at := crossing(found)):
            continue
        low, high, share = _resampled(found)
        yield {
            **curves.axes(place, first, second),
            "quantity": "crossover_n_train",
            "statistic": "crossover",
            "estimate": 10**at,
            "n": min(len(by_seed) for by_seed in found.values()),
            "sd": math.nan,
            "ci_low": 10**low,
            "ci_high": 10**high,
            "theory": math.nan,
        }
        yield {
            **curves.axes(place, first, second),
            "quantity": "crossover_in_resamples",
            "statistic": "share",
            "estimate": share,
            "n": RESAMPLES,
            "sd": math.nan,
            "theory": math.nan,
        }


def _resampled(found: Curve) -> tuple[float, float, float]:
    """2.5 % and 97.5 % of the crossing over resampled seeds, and the share of resamples that have one.

    A seed's differences at all sizes go together: its sets are nested. The draws are the same in every run.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    every = sorted({s for by_seed in found.values() for s in by_seed})
    ends = []
    for _ in range(RESAMPLES):
        drawn = [every[i] for i in rng.integers(len(every), size=len(every))]
        choose = {n: [s for s in drawn if s in found[n]] for n in found}
        if all(choose.values()):
            ends.append(crossing(found, choose))
    crossed = [x for x in ends if math.isfinite(x)]
    low, high = (float(x) for x in np.percentile(crossed, [2.5, 97.5]))
    return low, high, len(crossed) / len(ends)


def cases(curves: Curves) -> list[tuple[str, int, float, float, float]]:
    """Where the documents' rule can be tried: model, size, its last gain, and what more data and the CNN then gained.

    Only the main place: the rule's slope is the gain of the last tripling before the size.
    """
    found = []
    for one in ("vit", "mlp", "logistic_regression"):
        curve, ahead = curves.curves.get((MAIN, one), {}), curves.difference(MAIN, "cnn", one)
        gains = {n: _mean([curve[m][s] - curve[n][s] for s in curve[n] if s in curve[m]]) for n, m in _steps(curve)}
        before = {m: n for n, m in _steps(curve)}
        found += [
            (one, n, gains[before[n]], gains[n], _mean(list(ahead[n].values())))
            for n in gains
            if n in before and n in ahead
        ]
    return found


def right(case: tuple[str, int, float, float, float]) -> bool:
    """Whether the rule chose the greater gain: more data where the last tripling gained more than the CNN would."""
    _, _, slope, data, cnn = case
    return (slope > cnn) == (data > cnn)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rule(curves: Curves) -> Iterator[dict[str, object]]:
    from attnrepro.stats import share_interval

    if tried := cases(curves):
        share = share_interval(sum(map(right, tried)), len(tried))
        yield {
            **dict(zip(("data", "augmentation", "recipe"), MAIN, strict=True)),
            "quantity": "slope_rule_right",
            "statistic": "share",
            "estimate": share.value,
            "n": len(tried),
            "sd": math.nan,
            "ci_low": share.low,
            "ci_high": share.high,
            "theory": math.nan,
        }


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_tuning_controls(frame), *_training_controls(frame)]


def _tuned(frame: pd.DataFrame) -> dict[tuple[str, str, int], dict[tuple[float, float], tuple[float, int]]]:
    """Mean validation accuracy and failed seeds of every pair of rates, by image set, model and size."""
    found: dict[tuple[str, str, int], dict[tuple[float, float], tuple[float, int]]] = {}
    chosen = frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate != "")]
    for r in chosen.itertuples():
        pair = (float(r.learning_rate), float(r.weight_decay))
        found.setdefault((r.data, r.model, int(r.n_train)), {})[pair] = (r.estimate, r.n_failed)
    return found


def _tuning_controls(frame: pd.DataFrame) -> Iterator[str]:
    rates = load_yaml(paths.conf_dir() / "rates" / "images.yaml")
    for (data, model, n), grid in _tuned(frame).items():
        sound = {pair: accuracy for pair, (accuracy, failed) in grid.items() if not failed}
        if not sound:
            yield f"{model} on {n} images of {data}: every pair of rates diverged"
            continue
        best = max(sound, key=lambda pair: sound[pair])
        chosen, used = rates.get(data, {}), best
        if n in chosen.get("tuned_at", ()) and model in chosen:
            index = chosen["tuned_at"].index(n)
            used = (float(chosen[model]["learning_rate"][index]), float(chosen[model]["weight_decay"][index]))
            if sound.get(used, 0.0) < sound[best] - TIE:
                yield (
                    f"{model} on {n} images of {data}: conf/rates/images.yaml has learning rate {used[0]:g} and weight"
                    f" decay {used[1]:g}, the best on validation images is {best[0]:g} and {best[1]:g}"
                )
        for which, name in enumerate(("learning rate", "weight decay")):
            tried = sorted({pair[which] for pair in grid})
            if len(tried) > 1 and used[which] in (tried[0], tried[-1]):
                yield f"{model} on {n} images of {data}: {name} {used[which]:g} is at the edge of those tried"


def _training_controls(frame: pd.DataFrame) -> Iterator[str]:
    chosen = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")]
    for r in chosen.itertuples():
        if r.n_failed:
            yield f"{r.model} on {r.n_train} images of {r.data} ({r.recipe}): {r.n_failed} seeds diverged"
    for one, least in REACHED.items():
        every = chosen[(chosen.data == MAIN[0]) & (chosen.n_train == str(ALL)) & (chosen.augmentation == MAIN[1])]
        found = [(r.estimate, r.n) for r in every.itertuples() if kind(r.model) == one and r.n >= 2]
        if found and max(found)[0] < least:
            yield (
                f"{WORDS[one]} reaches {max(found)[0]:.4f} on {ALL} images, {least} is known for its size: a straw man"
            )


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    curves = Curves(frame)
    sentences = [*_order_in_words(curves), *_simple_in_words(curves), *_far_in_words(frame, curves)]
    return " ".join([*sentences, *_recipes_in_words(curves), *_rule_in_words(curves)])


def _interval(by_seed: Mapping[str, float]) -> Interval:
    from attnrepro.stats import mean_interval

    return mean_interval(list(by_seed.values()))


def _shown(found: Interval) -> str:
    ends = "" if math.isnan(found.low) else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.value:+.3f}{ends}"


def _order_in_words(curves: Curves) -> Iterator[str]:
    for place in curves.names:
        found = curves.difference(place, "cnn", "vit")
        if place[1:] != MAIN[1:] or not found:
            continue
        few, many = min(found), max(found)
        least, most = _interval(found[few]), _interval(found[many])
        yield (
            f"On {_name(place[0])} the CNN leads the ViT by {_shown(least)} at {few} images ({len(found[few])} seeds)"
            f" and {_shown(most)} at {many} ({len(found[many])}); {_crossing_in_words(found, 'the order')}."
        )


def _crossing_in_words(found: Curve, what: str) -> str:
    many = max(found)
    at = crossing(found)
    if math.isnan(at):
        last = _interval(found[many])
        sure = last.low > 0 or last.high < 0
        return f"{what} does not reverse up to {many}" if sure else f"whether {what} reverses by {many} is open"
    low, high, share = _resampled(found)
    ends = f"[{10**low:.0f}, {10**high:.0f}]"
    return f"{what} reverses at {10**at:.0f} {ends} images (in {share:.0%} of the resamples of seeds)"


def _name(data: str) -> str:
    return {"fashion_mnist": "Fashion-MNIST", "digits": "the digits"}.get(data, data)


def _simple_in_words(curves: Curves) -> Iterator[str]:
    for other in ("mlp", "logistic_regression"):
        found = curves.difference(MAIN, "cnn", other)
        if found:
            few = min(found)
            yield (
                f"Against {'an ' if other == 'mlp' else ''}{WORDS[other]} the CNN is {_shown(_interval(found[few]))} at"
                f" {few} images; {_crossing_in_words(found, 'that order')}."
            )


def _far_in_words(frame: pd.DataFrame, curves: Curves) -> Iterator[str]:
    rows = frame[(frame.quantity == "extrapolated_difference") & (frame.data == MAIN[0])]
    rows = rows[(rows.augmentation == MAIN[1]) & (rows.recipe == MAIN[2])]
    if len(rows):
        parts = [f"{r.estimate:+.3f} [{r.ci_low:+.3f}, {r.ci_high:+.3f}] at {r.n_train}" for r in rows.itertuples()]
        yield (
            "Power laws of the errors, extended to the sizes of CIFAR-10 and ImageNet-1k, put the CNN less the ViT at"
            f" {' and '.join(parts)}: a forecast for images like these, not a measurement."
        )


def _recipes_in_words(curves: Curves) -> Iterator[str]:
    others = []
    for place in curves.names:
        found = curves.difference(place, "cnn", "vit")
        if place[0] == MAIN[0] and place != MAIN and found:
            few, many = min(found), max(found)
            way = "with shifts and flips" if place[1] != "none" else "trained to convergence"
            ends = [f"{_shown(_interval(found[n]))} at {n}" for n in dict.fromkeys((few, many))]
            others.append(f"{way} {' and '.join(ends)}")
    if others:
        yield f"CNN less ViT {'; '.join(others)}."


def _rule_in_words(curves: Curves) -> Iterator[str]:
    if tried := cases(curves):
        good = sum(map(right, tried))
        yield (
            "The advice to add data while the learning curve is steep, and to change to the stronger assumption when it"
            f" is flat, chose the greater gain in {good} of {len(tried)} cases."
        )


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Learning curves with their bands, differences with crossovers, other recipes, and the grid of rates."""
    from attnrepro.results.charts import curves as drawn
    from attnrepro.results.charts import rates

    found = []
    accuracy = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean")]
    turns = frame[(frame.statistic == "crossover") & (frame.augmentation == "none")]
    turns = turns.assign(what=turns.model.str.replace(" - ", " = "))
    for data in accuracy.data.unique():
        rows = accuracy[(accuracy.data == data) & (accuracy.augmentation == "none") & (accuracy.recipe == MAIN[2])]
        found.append(
            drawn(
                rows,
                *("n_train", "model"),
                title=f"accuracy on {_name(data)}",
                x_title="training images",
                y_title="test accuracy",
                log=True,
                crossings=turns[(turns.data == data) & (turns.recipe == MAIN[2])].drop(columns="model"),
            )
        )
    differences = frame[(frame.quantity == "accuracy_difference") & (~frame.n_train.str.contains("-"))]
    main = differences[(differences.data == MAIN[0]) & differences.model.str.startswith("cnn - ")]
    found.append(
        drawn(
            main[(main.augmentation == MAIN[1]) & (main.recipe == MAIN[2])],
            *("n_train", "model"),
            title="lead of the CNN (above 0: it wins)",
            x_title="training images",
            y_title="paired difference of accuracy",
            log=True,
            zero=0.0,
            crossings=turns[(turns.data == MAIN[0]) & (turns.recipe == MAIN[2]) & turns.model.isin(main.model)],
        )
    )
    recipes = main[main.model == "cnn - vit_patch7"].copy()
    turned = turns[(turns.data == MAIN[0]) & (turns.model == "cnn - vit_patch7")].copy()
    for rows in (recipes, turned):
        ways = rows.augmentation.map({"none": ""}).fillna(", augmented")
        rows["way"] = rows.recipe.str.replace("_", " ") + ways
    found.append(
        drawn(
            recipes,
            *("n_train", "way"),
            title="lead of the CNN over the ViT, by recipe",
            x_title="training images",
            y_title="paired difference of accuracy",
            log=True,
            zero=0.0,
            crossings=turned,
        )
    )
    tuning = frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate != "")]
    for data, rows in tuning.groupby("data"):
        size = rows.n_train.astype(int).max()
        title = f"search for the rates on {size} images of {_name(str(data))}"
        found.append(rates(rows[rows.n_train == str(size)], "model", title=title))
    return [chart for chart in found if chart]
