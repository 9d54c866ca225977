"""capsule_routing, read: differences by seed, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.derived import over_seeds
from attnrepro.results.verdicts import HOLDS_EPS, REFUTED_EPS
from attnrepro.tables.capsule_routing.table import AXES, CAPSULES, CLASSES, NAME
from attnrepro.theory.capsules import first_parent_sum_as_printed

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive"]

ROUTED, UNROUTED = "capsules_3", "capsules_1"
# What the capsule net is held against.
OTHERS = ("cnn_dense", "cnn", UNROUTED)
WORDS = {"cnn_dense": "dense head", "cnn": "CNN with mean pooling", UNROUTED: "capsules without routing"}
SHORT = {"cnn_dense": "CNN with a dense head", "cnn": "CNN that pools"}
WHOLE = "shifted"
EPS = 2.0**-52
# What each has to break, and the fewest iterations from which it does.
BREAKERS = {
    ("as_printed", "sum_over_parents_error"): 1,
    ("routing", "sum_over_children_error"): 1,
    ("routing", "rival_effect"): 2,
    ("routing", "attention_error"): 1,
    ("capsules", "order_error"): 1,
}
HOLDERS = {("attention_zero", "weights_change"), ("routing", "sum_over_parents_error"), ("routing", "length_excess")}
# Parameters of all nets lie within this share of each other.
EQUAL = 0.02
# What a net that has seen the most images has to get right, not to be a straw man; what it may get from single pixels
# in any order; and what a training that is stuck stays below, on validation images.
LEARNED, NOTHING_LEFT, STUCK = 0.85, 0.3, 0.5
TOLERANCE, TIE = 1e-5, 1e-9

# Values by seed, by model, number of images and test.
Found = dict[tuple[str, int, str], dict[str, float]]


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Differences by seed, what is lost from one test to another, and how many trainings were stuck."""
    accuracy, told = trained(frame, "accuracy"), trained(frame, "told_apart")
    return [
        *_differences("accuracy_difference", accuracy),
        *_differences("told_apart_difference", told),
        *_iterations(accuracy),
        *_chance(accuracy),
        *_drops(accuracy),
        *_leads_lost(accuracy),
        *_stuck(frame),
    ]


def trained(frame: pd.DataFrame, quantity: str) -> Found:
    """What trained nets came to, without the trainings that chose learning rates."""
    rows = frame[(frame.quantity == quantity) & (frame.statistic == "mean") & (frame.learning_rate == "")]
    return {(r.model, int(r.n_train), r.test): dict(r.by_seed) for r in rows.itertuples() if r.n_train and r.by_seed}


def minus(first: Mapping[str, float], second: Mapping[str, float]) -> list[float]:
    """Differences of equal seeds."""
    return [value - second[seed] for seed, value in first.items() if seed in second]


def _line(quantity: str, statistic: str, values: Sequence[float], **axes: object) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | {name: str(value) for name, value in axes.items()}
    line |= {"quantity": quantity, "statistic": statistic, "n_failed": 0, "theory": math.nan}
    return line | over_seeds(values)


def _differences(quantity: str, found: Found) -> Iterator[dict[str, object]]:
    """The others less the capsule net on digits as in training, the capsule net less the others on changed ones."""
    for (model, n_train, test), values in found.items():
        routed = found.get((ROUTED, n_train, test))
        if model in OTHERS and routed:
            names, pair = (model, ROUTED), (values, routed)
            if test != WHOLE:
                names, pair = names[::-1], pair[::-1]
            difference = minus(*pair)
            yield _line(quantity, "paired_difference", difference, model=" - ".join(names), n_train=n_train, test=test)


def _iterations(found: Found) -> Iterator[dict[str, object]]:
    """Every other capsule net less the one without routing, on digits as in training."""
    for (model, n_train, test), values in found.items():
        base = found.get((UNROUTED, n_train, test))
        if model in CAPSULES and model not in (UNROUTED, ROUTED) and test == WHOLE and base:
            difference = minus(values, base)
            name = f"{model} - {UNROUTED}"
            yield _line("accuracy_difference", "paired_difference", difference, model=name, n_train=n_train, test=test)


def _chance(found: Found) -> Iterator[dict[str, object]]:
    for (model, n_train, test), values in found.items():
        if test in ("scattered", "dust"):
            above = [value - 1 / CLASSES for value in values.values()]
            yield _line("above_chance", "paired_difference", above, model=model, n_train=n_train, test=test)


def _drops(found: Found) -> Iterator[dict[str, object]]:
    drops: dict[tuple[str, int], dict[str, float]] = {}
    for (model, n_train, test), values in found.items():
        changed = found.get((model, n_train, "affine"))
        if test == WHOLE and changed:
            drops[model, n_train] = {seed: value - changed[seed] for seed, value in values.items() if seed in changed}
            yield _line("drop", "mean", list(drops[model, n_train].values()), model=model, n_train=n_train)
    for (model, n_train), values in drops.items():
        routed = drops.get((ROUTED, n_train))
        if model in OTHERS and routed:
            name = f"{model} - {ROUTED}"
            yield _line("drop_difference", "paired_difference", minus(values, routed), model=name, n_train=n_train)


def _leads_lost(found: Found) -> Iterator[dict[str, object]]:
    sizes = sorted({n_train for model, n_train, _ in found if model == ROUTED})
    for model in OTHERS:
        ends = []
        for n_train in (sizes[0], sizes[-1]) if len(sizes) > 1 else ():
            values, routed = found.get((model, n_train, WHOLE)), found.get((ROUTED, n_train, WHOLE))
            if values and routed:
                ends.append({seed: value - routed[seed] for seed, value in values.items() if seed in routed})
        if len(ends) > 1:
            name = f"{model} - {ROUTED}"
            yield _line("lead_lost", "paired_difference", minus(*ends), model=name, test=WHOLE)


def _stuck(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Share of trainings that diverged or ended below half of the answers, over all sizes and seeds of a model."""
    from attnrepro.stats import share_interval

    rows = frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate == "")]
    for model, group in rows.groupby("model", sort=False):
        low = sum(value < STUCK for by_seed in group.by_seed for value in by_seed.values())
        count, failed = int(group.n.sum() + group.n_failed.sum()), int(group.n_failed.sum())
        share = share_interval(low + failed, count)
        line = _line("stuck_share", "share", [], model=model)
        yield line | {"n": count, "estimate": share.value, "ci_low": share.low, "ci_high": share.high}


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_exact_controls(frame), *_size_controls(frame), *_trained_controls(frame), *_tuning_controls(frame)]


def _exact_controls(frame: pd.DataFrame) -> Iterator[str]:
    shapes = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["params"]["shapes"]
    sizes = [tuple(map(int, shape.split("x")))[:2] for shape in shapes]
    first = max(abs(float(first_parent_sum_as_printed(*size)) - 1) for size in sizes)
    for r in frame[(frame.statistic == "exact") & (frame.n > 0)].itertuples():
        at = (r.model, r.quantity)
        where = f"{r.quantity} of {r.model}" + (f" after {r.iterations} iterations" if r.iterations else "")
        least = BREAKERS.get(at)
        if least is not None and int(r.iterations) >= least and not r.estimate >= REFUTED_EPS * EPS:
            yield f"{where} is {r.estimate:.3g}: what must break it did not"
        at_first = at == ("as_printed", "sum_over_parents_error") and r.iterations == "1"
        if at_first and not math.isclose(r.estimate, first):
            yield f"{where} is {r.estimate:.6g}, that of equal weights {first:.6g}"
        if at in HOLDERS and not r.estimate <= HOLDS_EPS * EPS:
            yield f"{where} is {r.estimate:.3g}, which is no round-off"
        if not math.isnan(r.theory) and not math.isclose(r.estimate, r.theory, rel_tol=1e-9):
            yield f"{where} is {r.estimate:.9g}, the closed form {r.theory:.9g}"


def _size_controls(frame: pd.DataFrame) -> Iterator[str]:
    sizes = {r.model: r.estimate for r in frame[(frame.quantity == "parameters") & (frame.n > 0)].itertuples()}
    for model, size in sizes.items():
        if ROUTED in sizes and abs(size / sizes[ROUTED] - 1) > EQUAL:
            yield f"{model} has {size:.0f} parameters, {ROUTED} {sizes[ROUTED]:.0f}: not as many"


def _trained_controls(frame: pd.DataFrame) -> Iterator[str]:
    accuracy = trained(frame, "accuracy")
    most = max((n_train for _, n_train, _ in accuracy), default=0)
    for (model, n_train, test), values in accuracy.items():
        mean = sum(values.values()) / len(values)
        if n_train == most and test == WHOLE and mean < LEARNED:
            yield f"{model} on {n_train} images gets {mean:.3f} right: it was not trained well enough to be compared"
        if test == "dust" and mean > NOTHING_LEFT:
            yield f"{model} on {n_train} images gets {mean:.3f} of shuffled pixels right, where nothing is to be seen"
    for r in frame[(frame.quantity == "coupling_entropy") & (frame.iterations == "1")].itertuples():
        if r.n and not abs(r.estimate - r.theory) <= TOLERANCE:
            yield f"{r.model}: entropy of the first shares is {r.estimate:.6f}, that of equal ones {r.theory:.6f}"


def _tuning_controls(frame: pd.DataFrame) -> Iterator[str]:
    grids: dict[str, dict[float, float]] = {}
    for r in frame[(frame.quantity == "validation_accuracy") & (frame.learning_rate != "")].itertuples():
        if r.n and not r.n_failed:
            grids.setdefault(r.model, {})[float(r.learning_rate)] = r.estimate
    chosen = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]
    for model, found in grids.items():
        best, used = max(found, key=lambda rate: found[rate]), float(chosen[model])
        # Of rates that are equally good any may be used.
        if not found.get(used, -math.inf) >= found[best] - TIE:
            yield f"{model} uses learning rate {used:g}, the best on validation images is {best:g}"
        elif len(found) > 1 and used in (min(found), max(found)):
            yield f"{model}: the best learning rate {used:g} is at the edge of those tried"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    parts = (_told, _formula_in_words, _data_in_words, _changed_in_words, _routing_in_words, _cost_in_words)
    return " ".join(sentence for part in parts for sentence in part(frame))


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether the printed formula routes, and how capsules do against the convolutional network."""
    parts = []
    exact = frame[(frame.statistic == "exact") & (frame.iterations == "3") & (frame.n > 0)]
    off = exact[(exact.model == "as_printed") & (exact.quantity == "sum_over_parents_error")]
    if len(off):
        error = off.estimate.max()
        known = "does not route" if error > HOLDS_EPS * EPS else "routes"
        parts.append(f"the printed formula {known} (what a child hands out is off 1 by up to {error:.3g})")
    model = f"{ROUTED} - {OTHERS[1]}"
    few = {other: _of(frame, "accuracy_difference", f"{other} - {ROUTED}", WHOLE)[:1] for other in OTHERS[:2]}
    told = []
    for other, ends in few.items():
        for end in ends:
            low, high = -end.ci_high, -end.ci_low
            told.append(f"{_side(low, high)} the {SHORT[other]} ({_plus(-end.estimate, low, high)})")
    shown = [end for ends in few.values() for end in ends]
    last = "latter" if all(few.values()) else SHORT[OTHERS[1]]
    if shown:
        parts.append(f"on {shown[0].n_train} digits capsules are {' and '.join(told)}")
    for quantity, test, words in (
        ("accuracy_difference", "affine", "under affine changes"),
        ("told_apart_difference", "scattered", "at telling scattered parts"),
    ):
        if rows := _of(frame, quantity, model, test):
            r = rows[-1]
            side = _side(r.ci_low, r.ci_high)
            parts.append(f"{words} {side} the {last} ({_plus(r.estimate, r.ci_low, r.ci_high)})")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}{f' ({shown[0].n} seeds)' if shown else ''}."


def _side(low: float, high: float) -> str:
    """Where an interval of a lead lies."""
    return "ahead of" if low > 0 else "behind" if high < 0 else "level with"


def _plus(value: float, low: float, high: float) -> str:
    return f"{value:+.3f}" + ("" if math.isnan(low) else f" [{low:+.3f}, {high:+.3f}]")


def _shown(r: Any) -> str:
    ends = "" if math.isnan(r.ci_low) else f" [{r.ci_low:+.3f}, {r.ci_high:+.3f}]"
    return f"{r.estimate:+.3f}{ends}"


def _formula_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.statistic == "exact") & (frame.iterations == "3") & (frame.n > 0)]
    found = {(r.model, r.quantity): r.estimate for r in rows.itertuples()}
    if ("as_printed", "sum_over_parents_error") in found:
        yield (
            "What a child hands out to all parents is 1 within"
            f" {found['routing', 'sum_over_parents_error']:.1e} in the paper's form, and off 1 by up to"
            f" {found['as_printed', 'sum_over_parents_error']:.2f} as printed, which is attention of each parent"
            f" by itself; its parents are up to {found['as_printed', 'length_excess']:.1f} longer than 1, with squash"
            " none is."
        )


def _of(frame: pd.DataFrame, quantity: str, model: str, test: str | None = None) -> list[Any]:
    """Rows of a quantity by number of images."""
    rows = frame[(frame.quantity == quantity) & (frame.model == model) & (frame.n > 0) & (frame.n_train != "")]
    rows = rows if test is None else rows[rows.test == test]
    return sorted(rows.itertuples(), key=lambda r: int(r.n_train))


def _data_in_words(frame: pd.DataFrame) -> Iterator[str]:
    for model in OTHERS[:2]:
        rows = _of(frame, "accuracy_difference", f"{model} - {ROUTED}", WHOLE)
        if rows:
            parts = ", ".join(f"{_shown(r)} on {r.n_train}" for r in rows)
            yield (
                f"Accuracy of the {WORDS[model]} less that of the capsules ({rows[0].n} seeds, equal parameters):"
                f" {parts}."
            )
    stuck = frame[(frame.quantity == "stuck_share") & (frame.model == ROUTED) & (frame.n > 0)]
    for r in stuck.itertuples():
        yield f"Of {r.n} trainings with routing {round(r.estimate * r.n)} were stuck."


def _changed_in_words(frame: pd.DataFrame) -> Iterator[str]:
    for test, words in (("affine", "affine changes"), ("rotated", "turns of 20 to 40 degrees")):
        found = {model: _of(frame, "accuracy_difference", f"{ROUTED} - {model}", test) for model in OTHERS}
        last = {model: rows[-1] for model, rows in found.items() if rows}
        if last:
            sizes = " and ".join(sorted({r.n_train for r in last.values()}, key=int))
            parts = ", ".join(f"{_shown(r)} against {WORDS[model]}" for model, r in last.items())
            yield f"Lead of the capsules under {words} that no training showed, on {sizes} images: {parts}."
    scattered = []
    for model in (ROUTED, *OTHERS[:2]):
        right, told = _of(frame, "accuracy", model, "scattered"), _of(frame, "told_apart", model)
        if right and told:
            name = "capsules" if model == ROUTED else WORDS[model]
            scattered.append(f"{name} {right[-1].estimate:.2f} right and {told[-1].estimate:.2f} told apart")
    if scattered:
        yield f"Of digits with shuffled patches (guess 0.1; told from whole ones, guess 0.5): {', '.join(scattered)}."


def _routing_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = _of(frame, "accuracy_difference", f"{UNROUTED} - {ROUTED}", WHOLE)
    if rows:
        parts = ", ".join(f"{_shown(r)} on {r.n_train}" for r in rows)
        yield f"One iteration less three, as trained: {parts}."
    entropies = frame[(frame.quantity == "coupling_entropy") & (frame.model == ROUTED) & (frame.n > 0)]
    if len(entropies):
        most = max(entropies.n_train, key=int)
        by = {int(r.iterations): r.estimate for r in entropies[entropies.n_train == most].itertuples()}
        parts = ", ".join(f"{by[r]:.2f}" for r in sorted(by))
        yield f"Entropy of a child's shares after 1 to {max(by)} iterations, in nats: {parts}."


def _cost_in_words(frame: pd.DataFrame) -> Iterator[str]:
    found = {r.model: r.estimate for r in frame[(frame.quantity == "step_flops") & (frame.n > 0)].itertuples()}
    if ROUTED in found:
        ratios = ", ".join(f"x {found[ROUTED] / found[m]:.2f} that of the {WORDS[m]}" for m in OTHERS[:2])
        yield f"FLOPs of a training step with three iterations: {ratios}."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Accuracy against images for three tests, and what iterations do to accuracy and entropy."""
    from attnrepro.results.charts import curves

    found = []
    accuracy = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean") & (frame.learning_rate == "")]
    compared = accuracy[accuracy.model.isin([ROUTED, *OTHERS])]
    for test, title in (
        (WHOLE, "accuracy, shifted as in training"),
        ("affine", "accuracy under affine changes"),
        ("scattered", "accuracy on scattered patches"),
    ):
        rows = compared[compared.test == test]
        found.append(
            curves(rows, "n_train", "model", title=title, x_title="training images", y_title="accuracy", log=True)
        )
    entropies = frame[(frame.quantity == "coupling_entropy") & (frame.model == ROUTED)].copy()
    entropies["images"] = entropies.n_train + " images"
    found.append(
        curves(
            entropies,
            *("iterations", "images"),
            title="entropy of a child's shares",
            x_title="iterations",
            y_title="nats",
            zero=math.log(CLASSES),
        )
    )
    counts = {model: str(iterations) for model, (iterations, printed) in CAPSULES.items() if not printed}
    nets = accuracy[accuracy.model.isin(list(counts)) & (accuracy.n_train == "316")].copy()
    nets["iterations"] = nets.model.map(counts)
    found.append(
        curves(
            nets[nets.test.isin([WHOLE, "affine"])],
            *("iterations", "test"),
            title="accuracy by iterations trained",
            x_title="iterations",
            y_title="accuracy",
        )
    )
    return [chart for chart in found if chart]
