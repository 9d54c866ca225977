"""What the rows of long_range_consistency say: leads of attention, who got there, controls, answer and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.derived import over_seeds
from attnrepro.results.verdicts import HOLDS_EPS
from attnrepro.tables.long_range_consistency.table import AXES, GENERATORS, NAME
from attnrepro.theory.long_range_consistency import is_linked

if TYPE_CHECKING:
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "roundoff"]

HIDDEN = ("pixel_error",)

BASE = "attention"
WORDS = {
    "local": "one local layer",
    "wide": "one wider layer",
    "short": "two layers, one too few",
    "deep": "three layers at attention's cost",
    "deep_full": "three layers at full width",
    "mean": "mean of all places",
    "attention": "attention",
}
# The same beside a chart.
LABELS = {
    "local": "1 layer",
    "wide": "1 wider layer",
    "short": "2 layers",
    "deep": "3 layers, equal cost",
    "deep_full": "3 layers, full width",
    "mean": "mean",
    "attention": "attention",
}
# Standard errors by which a share may lie off what is exactly expected of it.
OFF_SE = 4.0
# A far gradient of this size, over the near one, is not round-off.
LEAST_GRADIENT = 1e-9

Found = dict[tuple[str, ...], Mapping[str, Any]]


def _rows(frame: pd.DataFrame, quantity: str, *axes: str) -> Found:
    """Measured rows of a quantity by the values of some axes, whose empty ones are left out."""
    rows = frame[(frame.quantity == quantity) & frame.statistic.isin(("mean", "exact", "share"))].to_dict("records")
    return {tuple(r[a] for a in axes): r for r in rows if all(r[a] for a in axes) and (r["n"] or r["n_failed"])}


def _line(quantity: str, statistic: str, axes: Mapping[str, Any], **more: object) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | {"quantity": quantity, "statistic": statistic}
    return line | {"theory": math.nan, "sd": math.nan, "n_failed": 0, "estimate": math.nan, "n": 0} | {**axes, **more}


# --- what follows from the rows ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Leads of attention, updates that it saved, and shares of seeds that got there."""
    return [*_leads(frame), *_reached(frame)]


def _leads(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    places = ("generator", "cells", "updates")
    shares, updates = _rows(frame, "consistency", *places), _rows(frame, "updates_to_target", *places)
    for (generator, cells, trained), other in shares.items():
        own = shares.get((BASE, cells, trained))
        if generator == BASE or own is None:
            continue
        axes = {"generator": f"{BASE} - {generator}", "cells": cells, "updates": trained}
        values, failed = _paired(own, other, lambda a, b: a - b)
        yield _line("consistency_lead", "paired_difference", axes, n_failed=failed) | over_seeds(values)
        own, other = updates[BASE, cells, trained], updates[generator, cells, trained]
        values, failed = _paired(own, other, lambda a, b: math.log2(b / a))
        if values:
            yield _line("updates_saved_log2", "paired_difference", axes, n_failed=failed) | over_seeds(values)


def _paired(a: Mapping[str, Any], b: Mapping[str, Any], of: Any) -> tuple[list[float], int]:
    """A function of the two values of each seed that has both, and how many seeds do not."""
    both = [seed for seed in a["by_seed"] if seed in b["by_seed"]]
    total = max(r["n"] + r["n_failed"] for r in (a, b))
    return [of(a["by_seed"][seed], b["by_seed"][seed]) for seed in both], total - len(both)


def _reached(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    from attnrepro import stats

    axes = ("generator", "cells", "updates")
    for place, r in _rows(frame, "updates_to_target", *axes).items():
        total = r["n"] + r["n_failed"]
        share = stats.share_interval(r["n"], total)
        ends = {"estimate": share.value, "ci_low": share.low, "ci_high": share.high}
        yield _line("share_reached", "share", dict(zip(axes, place, strict=True)), n=total, **ends)


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Gradients are in eps of the largest near one already."""
    return 1.0, 1.0


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_structure(frame), *_judge(frame), *_trained(frame), *_tuned(frame)]


def _structure(frame: pd.DataFrame) -> Iterator[str]:
    for quantity in ("parameters", "flops", "linked"):
        for (generator, cells), r in _rows(frame, quantity, "generator", "cells").items():
            if r["estimate"] != r["theory"]:
                yield (
                    f"{quantity} of {WORDS[generator]} on {cells} cells is {r['estimate']:g}, by the closed form"
                    f" {r['theory']:g}"
                )
    for (generator,), r in _rows(frame, "far_gradient_eps", "generator").items():
        if not r["estimate"] <= HOLDS_EPS:
            yield f"{WORDS[generator]}: what is painted depends on the other glyph ({r['estimate']:.3g} eps)"
    for (generator,), r in _rows(frame, "far_gradient", "generator").items():
        if not r["estimate"] >= LEAST_GRADIENT:
            yield f"{WORDS[generator]}: the other glyph's gradient is {r['estimate']:.3g} of the near one"


def _judge(frame: pd.DataFrame) -> Iterator[str]:
    bounds = _rows(frame, "misreading_bound", "cells")
    for cells, r in _rows(frame, "misreading", "cells").items():
        bound = bounds[cells]["estimate"]
        if r["estimate"] > bound + OFF_SE * math.sqrt(bound * (1 - bound) / r["n"]) + 1 / r["n"]:
            yield f"the judge misreads {r['estimate']:.3g} of noisy glyphs, at most {bound:.3g} are expected"


def _trained(frame: pd.DataFrame) -> Iterator[str]:
    draws = _params("n_test")
    for (generator, cells, updates), r in _rows(frame, "consistency", "generator", "cells", "updates").items():
        where = f"{WORDS[generator]}, {updates} updates"
        if r["n_failed"]:
            yield f"{where}: {r['n_failed']} seeds diverged"
        if not is_linked(generator, int(cells)) and r["n"]:
            chance = r["theory"]
            if abs(r["estimate"] - chance) > OFF_SE * math.sqrt(chance * (1 - chance) / (draws * r["n"])):
                yield f"{where}: {r['estimate']:.4f} are consistent, {chance:.4f} whatever is trained"
    reached: dict[tuple[str, str], list[float]] = {}
    for r in frame[frame.quantity == "share_reached"].to_dict("records"):
        if is_linked(r["generator"], int(r["cells"])):
            reached.setdefault((r["cells"], r["updates"]), []).append(r["estimate"])
    for (_, updates), shares in reached.items():
        if max(shares) < 1:
            yield f"no generator that is linked got there in all seeds: {updates} updates are too few"


def _params(name: str) -> int:
    """A size of scale cpu, which scale full shares."""
    found: int = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["scales"]["cpu"][name]
    return found


def _tuned(frame: pd.DataFrame) -> Iterator[str]:
    grids: dict[str, dict[float, float]] = {}
    for (generator, rate), r in _rows(frame, "validation_error", "generator", "learning_rate").items():
        if r["n"] and not r["n_failed"]:
            grids.setdefault(generator, {})[float(rate)] = r["estimate"]
    chosen = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["presets"]
    for generator, found in grids.items():
        best, used = min(found, key=lambda rate: found[rate]), float(chosen[generator])
        if used != best:
            yield f"{WORDS[generator]}: the presets have rate {used:g}, the best on validation images is {best:g}"
        if best in (min(found), max(found)):
            yield f"{WORDS[generator]}: the best rate {best:g} is at the edge of those tried"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    shares = _rows(frame, "consistency", "generator", "cells", "updates")
    trainings = sorted({(int(cells), int(updates)) for _, cells, updates in shares})
    said = [sentence for at in trainings for sentence in _in_words(frame, *map(str, at))]
    first = next((told for at in trainings for told in _told(frame, *map(str, at))), "")
    return " ".join(filter(None, [first, *said]))


def _told(frame: pd.DataFrame, cells: str, updates: str) -> Iterator[str]:
    """Whether attention leads convolutions of its cost, and which generators can do without it."""
    leads = frame[(frame.quantity == "consistency_lead") & (frame.updates == updates) & (frame.n > 1)]
    leads = leads[leads.cells == cells]
    found = {r["generator"].split(" - ")[1]: r for r in leads.to_dict("records")}
    shares = _rows(frame, "consistency", "generator", "cells", "updates")
    own = shares.get(("attention", cells, updates))
    if "deep" not in found or not own:
        return
    r = found["deep"]
    word = "yes" if r["ci_low"] > 0 else "no" if r["ci_high"] < 0 else "not shown"
    told = f"{r['estimate']:+.3f}{_ends(r, '+.3f')}"
    level = [WORDS[name] for name, r in found.items() if not r["ci_low"] > 0]
    without = f"; not seen to do worse: {', '.join(level)}" if level else "; none of the others does as well"
    yield (
        f"{word[0].upper()}{word[1:]}: with attention both glyphs agree in {own['estimate']:.3f} of samples after"
        f" {updates} updates, {told} more than with convolutions of its cost ({r['n']} seeds){without}."
    )


def _in_words(frame: pd.DataFrame, cells: str, updates: str) -> Iterator[str]:
    shares = _rows(frame, "consistency", "generator", "cells", "updates")
    here = {g: shares[g, cells, updates] for g in reversed(GENERATORS) if (g, cells, updates) in shares}
    here = {generator: r for generator, r in here.items() if r["n"] > 1}
    there = frame[(frame.quantity == "share_reached") & (frame.updates == updates)].to_dict("records")
    reached = {r["generator"]: f"{round(r['n'] * r['estimate'])} of {r['n']} seeds got there" for r in there}
    unlinked = {g: r for g, r in here.items() if not is_linked(g, int(cells))}
    linked = {g: r for g, r in here.items() if g not in unlinked}
    if not here:
        return
    parts = [f"{WORDS[g]} {_shown(r)} ({reached[g]})" for g, r in linked.items()]
    yield f"Samples whose glyphs agree after {updates} updates: {', '.join(parts)}."
    if unlinked:
        chance = next(iter(unlinked.values()))["theory"]
        parts = [f"{WORDS[g]} {_shown(r)}" for g, r in unlinked.items()]
        yield f"Where nothing links them, {chance:g} at best, whatever is trained: {', '.join(parts)}."
    leads = frame[(frame.quantity == "consistency_lead") & (frame.updates == updates) & (frame.n > 1)]
    parts = [
        f"{r['estimate']:+.3f}{_ends(r, '+.3f')} against {WORDS[r['generator'].split(' - ')[1]]}"
        for r in leads.to_dict("records")
    ]
    if parts:
        yield f"Attention less another generator, seed by seed: {', '.join(parts)}."
    saved = frame[(frame.quantity == "updates_saved_log2") & (frame.updates == updates) & (frame.n > 1)]
    parts = [
        f"{WORDS[r['generator'].split(' - ')[1]]} {2 ** r['estimate']:.2g} times{_ends(r, '.2g', 2.0)} as many"
        + (f" ({r['n']} seeds)" if r["n_failed"] else "")
        for r in saved.to_dict("records")
    ]
    if parts:
        yield f"To get there, in updates of attention: {', '.join(parts)}."


def _shown(r: Mapping[str, Any]) -> str:
    return f"{r['estimate']:.3f}{_ends(r, '.3f')}"


def _ends(r: Mapping[str, Any], style: str, base: float | None = None) -> str:
    """The interval, of a logarithm to ``base`` where that is given; nothing where there is none."""
    low, high = r["ci_low"], r["ci_high"]
    if not high > low:
        return ""
    if base is not None:
        low, high = base**low, base**high
    return f" [{low:{style}}, {high:{style}}]"


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Consistent samples while training, with what is expected of generators that nothing links."""
    from attnrepro.results.charts import curves, rates

    rows = frame[(frame.quantity == "consistency_at") & (frame.n > 0)].copy()
    rows["line"] = rows.generator.map(LABELS)
    known = frame[(frame.quantity == "consistency") & frame.theory.notna()].theory
    found = [
        curves(
            rows[(rows.updates == updates)].sort_values("generator", key=lambda g: -g.map(GENERATORS.index)),
            *("step", "line"),
            title=f"glyphs that agree, of {updates} updates",
            x_title="updates",
            y_title="share of completed images",
            zero=float(known.iloc[0]) if len(known) else None,
        )
        for updates in sorted(set(rows.updates), key=int)
    ]
    tuning = frame[frame.quantity == "validation_error"].copy()
    tuning["line"] = tuning.generator.map(LABELS)
    of = "mean validation error"
    found.append(rates(tuning, "line", title="search for the rates", best="smallest", of=of))
    return [chart for chart in found if chart]
