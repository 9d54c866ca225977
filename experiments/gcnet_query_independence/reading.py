"""gcnet_query_independence, read: what training did to the maps, leads, what one map costs, controls and the answer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.derived import over_seeds
from attnrepro.results.pictures import Canvas
from attnrepro.results.published import PublishedLine
from attnrepro.results.verdicts import HOLDS_EPS, REFUTED_EPS
from attnrepro.tables.gcnet_query_independence.table import AXES, EVERY, PICTURED_BLOCKS, QUERIES, places

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "roundoff"]

# Pixels of the pictures, not shown in the table; and how wide one is drawn.
HIDDEN = ("map_",)
PIXELS = 100

BASE, GC, NL = "none", "global_context", "non_local"
NAMES = {BASE: "no block", GC: "global context", NL: "Non-local"}
WORDS = {"same_different": "the relation of two glyphs", "far_cue": "a label at each place",
         "fashion_mnist": "Fashion-MNIST"}  # fmt: skip
DISTANCES = ("attention_distance", "attention_distance_largest", "input_distance")
# The paper's block has to answer to its weights: by this share of what it adds, at least.
EFFECT = 1e-3
# Where the same vector for all is as good as any, sharing a map may move single images by rounding.
SHARED = 0.002
# Median test accuracy that a training has to reach to be one; without a block only photographs can be told apart.
LEAST = {"same_different": 0.9, "far_cue": 0.9, "fashion_mnist": 0.75}
# Maps of two queries that are no further apart than this are the same, of a largest distance of 1.
ONE_MAP = 0.01
FAR = ("same_different", "far_cue")
# The task whose rates this table chooses; those of the others are of predecessor_global_context.
TUNED = "fashion_mnist"

Seeds = dict[str, float]


class Seen:
    """Values of measured rows by quantity, task, block and phase, and how many seeds failed."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.found: dict[tuple[str, str, str, str], Seeds] = {}
        self.failed: dict[tuple[str, str, str, str], int] = {}
        self.readout: dict[str, str] = {}
        chosen = frame[(frame.statistic == "mean") & (frame.task != "") & (frame.learning_rate == "")]
        for r in chosen.itertuples():
            at = (r.quantity, r.task, r.block, r.phase)
            self.found[at], self.failed[at] = dict(r.by_seed), int(r.n_failed)
            self.readout[r.task] = r.readout

    def get(self, quantity: str, task: str, block: str, phase: str = "") -> Seeds:
        """By seed; empty where there are none."""
        return self.found.get((quantity, task, block, phase), {})

    def arms(self) -> list[tuple[str, str]]:
        """Tasks and blocks that were trained."""
        return [(task, block) for quantity, task, block, _ in self.found if quantity == "accuracy"]


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """How training changed the distances, how alike maps are, leads, and the cost of one map."""
    seen = Seen(frame)
    return [*_growth(seen), *_alikeness(seen), *_leads(seen), *_costs(seen)]


def _paired(quantity: str, seen: Seen, task: str, block: str, phase: str, first: Seeds, second: Seeds) -> Iterator[
        dict[str, object]]:  # fmt: skip
    values = [first[seed] - second[seed] for seed in first if seed in second]
    if values:
        line: dict[str, object] = dict.fromkeys(AXES, "")
        line |= {"task": task, "readout": seen.readout.get(task, ""), "block": block, "phase": phase}
        line |= {"quantity": quantity, "statistic": "paired_difference", "n_failed": 0, "theory": math.nan}
        yield line | over_seeds(values)


def _growth(seen: Seen) -> Iterator[dict[str, object]]:
    for task, block in seen.arms():
        for name in DISTANCES:
            end, start = (seen.get(name, task, block, phase) for phase in ("end", "start"))
            if block != GC or name == "input_distance":
                yield from _paired(f"{name}_growth", seen, task, block, "end - start", end, start)


def _alikeness(seen: Seen) -> Iterator[dict[str, object]]:
    """How much nearer to each other maps are than what the block reads: untrained, trained, and what training adds."""
    for task, block in seen.arms():
        if block == GC:
            continue
        found: dict[str, Seeds] = {}
        for phase in ("start", "end"):
            read, maps = (seen.get(name, task, block, phase) for name in ("input_distance", "attention_distance"))
            found[phase] = {seed: read[seed] - maps[seed] for seed in read if seed in maps}
            yield from _paired("alikeness", seen, task, block, phase, read, maps)
        yield from _paired("alikeness_growth", seen, task, block, "end - start", found["end"], found["start"])


def _leads(seen: Seen) -> Iterator[dict[str, object]]:
    """Of every block over no block, and of global context over every other block."""
    for task, block in seen.arms():
        own = seen.get("accuracy", task, block)
        if block != BASE:
            base = seen.get("accuracy", task, BASE)
            yield from _paired("lead", seen, task, f"{block} - {BASE}", "", own, base)
        if block not in (BASE, GC):
            yield from _paired("lead", seen, task, f"{GC} - {block}", "", seen.get("accuracy", task, GC), own)


def _costs(seen: Seen) -> Iterator[dict[str, object]]:
    for task, block in seen.arms():
        own, shared = seen.get("accuracy", task, block), seen.get("accuracy_shared_map", task, block, "end")
        yield from _paired("shared_map_cost", seen, task, block, "", own, shared)


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors ending in _eps are in eps already; the effect of weights is relative to the output."""
    return (1.0, 1.0) if line.quantity.endswith("_eps") else (1.0, 2.0**-52)


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_algebra(frame), *_maps(frame), *_reached(frame), *_tuning(frame), *_failures(frame)]


def _algebra(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.statistic == "exact") & (frame.n > 0)].itertuples():
        where = f"{r.form or r.readout}"
        if r.quantity.endswith("_error_eps") or r.quantity == "received_variation_eps":
            if not r.estimate <= HOLDS_EPS:
                yield f"{where}: {r.quantity} is {r.estimate:.3g}: at most {HOLDS_EPS:g} is round-off"
        elif r.quantity.endswith("_breakage_eps") and not r.estimate >= REFUTED_EPS:
            yield f"{where}: {r.quantity} is {r.estimate:.3g}: what must break it did not"
        elif r.quantity == "weights_effect" and r.form == "paper" and not r.estimate >= EFFECT:
            yield f"GCNet's block answers to other weights by {r.estimate:.3g} of what it adds only"


def _maps(frame: pd.DataFrame) -> Iterator[str]:
    seen = Seen(frame)
    for task, block in seen.arms():
        alike = seen.get("attention_distance", task, block, "end")
        if block == GC and alike and max(map(abs, alike.values())) > HOLDS_EPS * 2.0**-52:
            yield f"global context on {WORDS[task]}: its one map differs from itself by {max(alike.values()):.3g}"
        costs = list(_paired("", seen, task, block, "", seen.get("accuracy", task, block),
                             seen.get("accuracy_shared_map", task, block, "end")))  # fmt: skip
        for line in costs:
            worst = max(abs(value) for value in line["seeds"])  # type: ignore[attr-defined]
            if seen.readout[task] == "mean" and worst > SHARED:
                yield f"{block} on {WORDS[task]}: one map for all changed accuracy by {worst:.3g} before a linear mean"


def _reached(frame: pd.DataFrame) -> Iterator[str]:
    """Whoever is compared has learned its task, and what needs a block is out of reach without one."""
    seen = Seen(frame)
    for task, block in seen.arms():
        values = list(seen.get("accuracy", task, block).values())
        if len(values) < 2:
            continue
        median, far = statistics.median(values), block == BASE and task in FAR
        if far and median >= LEAST[task]:
            yield f"no block on {WORDS[task]}: median accuracy {median:.3f}: the task needs no block"
        elif not far and median < LEAST[task]:
            yield f"{NAMES.get(block, block)} on {WORDS[task]}: median accuracy {median:.3f}, not {LEAST[task]}"


def rates() -> dict[str, Any]:
    """The chosen rates, by task, read-out and block."""
    return load_yaml(paths.conf_dir() / "rates" / "blocks.yaml")


def _tuning(frame: pd.DataFrame) -> Iterator[str]:
    chosen = rates()
    grids: dict[tuple[str, str], dict[float, float]] = {}
    for r in frame[(frame.learning_rate != "") & (frame.quantity == "validation_accuracy")].itertuples():
        if r.n and not r.n_failed:
            grids.setdefault((r.task, r.block), {})[float(r.learning_rate)] = r.estimate
    tuned = {arm for arm, found in grids.items() if len(found) > 1}
    if any(task == TUNED for task, _ in tuned):
        for arm in Seen(frame).arms():
            if arm[0] == TUNED and arm not in tuned:
                yield f"{arm[1]} on {WORDS[TUNED]}: its rate was never chosen, those of others were"
    for task, block in tuned:
        found = grids[task, block]
        best, used = max(found, key=lambda rate: found[rate]), float(chosen[task]["linear"][block])
        if used != best:
            yield f"{block} on {WORDS[task]}: the rate used is {used:g}, the best on validation images {best:g}"
        if best in (min(found), max(found)):
            yield f"{block} on {WORDS[task]}: the best rate {best:g} is at the edge of those tried"


def _failures(frame: pd.DataFrame) -> Iterator[str]:
    for (quantity, task, block, _), failed in Seen(frame).failed.items():
        if failed and quantity == "accuracy":
            yield f"{block} on {WORDS[task]}: {failed} seeds diverged"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_formula_in_words(frame), *_maps_in_words(frame), *_leads_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether trained maps are one, and whether one map for all queries is as accurate."""
    rows = frame[(frame.block == NL) & (frame.phase == "end") & (frame.n > 1)]
    maps = rows[rows.quantity == "attention_distance"].sort_values("estimate")
    parts = []
    if len(maps):
        apart = maps[maps.ci_low > ONE_MAP]
        word = "no" if len(apart) == len(maps) else "yes" if apart.empty else "not everywhere"
        ends = [
            f"{r.estimate:.2f} [{r.ci_low:.2f}, {r.ci_high:.2f}] ({WORDS[r.task]})"
            for r in (maps.iloc[0], maps.iloc[-1])
        ]
        if len(apart) == 0:
            said = f"trained maps of two queries are at most {ends[-1]} apart (0 is one map)"
        else:
            said = f"trained maps of two queries are {' to '.join(dict.fromkeys(ends))} apart (0 is one map)"
        parts.append(f"{word}: {said}")
    leads = frame[(frame.quantity == "lead") & (frame.block == f"{GC} - {NL}") & (frame.n > 1)]
    told: dict[str, list[str]] = {}
    for r in leads.sort_values("task").itertuples():
        word = "ahead" if r.ci_low > 0 else "behind" if r.ci_high < 0 else "level"
        told.setdefault(word, []).append(f"{WORDS[r.task]} {_shown(r)}")
    if told:
        shown = " and ".join(f"{word} ({', '.join(cases)})" for word, cases in told.items())
        parts.append(f"against Non-local global context is {shown}")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _shown(r: Any, digits: int = 3) -> str:
    ends = "" if math.isnan(r.ci_low) else f" [{r.ci_low:+.{digits}f}, {r.ci_high:+.{digits}f}]"
    return f"{r.estimate:+.{digits}f}{ends}"


def _formula_in_words(frame: pd.DataFrame) -> Iterator[str]:
    exact = {(r.quantity, r.form): r for r in frame[(frame.statistic == "exact") & (frame.n > 0)].itertuples()}
    if ("weights_effect", "as_printed") in exact and ("weights_effect", "paper") in exact:
        printed, paper = exact["weights_effect", "as_printed"], exact["weights_effect", "paper"]
        yield (
            f"As printed the weights cancel: others change the output by {printed.estimate:.1g} of it at most, which is"
            f" the plain mean of all places; in GCNet's block by {paper.estimate:.2g} at least."
        )


def _maps_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = {(r.quantity, r.task, r.phase): r for r in frame[(frame.block == NL) & (frame.n > 1)].itertuples()}
    parts = []
    for task, words in WORDS.items():
        maps, read = (
            [rows.get((name, task, phase)) for phase in ("end", "start")]
            for name in ("attention_distance", "input_distance")
        )
        growth = rows.get(("attention_distance_growth", task, "end - start"))
        if all(maps) and all(read) and growth:
            end, start = (f"{m.estimate:.3f} against {x.estimate:.3f}" for m, x in zip(maps, read, strict=True))
            parts.append(f"{words} trained {end}, untrained {start} (maps {_shown(growth)} by training)")
    if parts:
        yield f"Distance between two queries' maps in Non-local, against that of what they read: {'; '.join(parts)}."
    parts, already = [], True
    for task, words in WORDS.items():
        end, start = (rows.get(("alikeness", task, phase)) for phase in ("end", "start"))
        change = rows.get(("alikeness_growth", task, "end - start"))
        if end and start and change:
            already = already and start.ci_low > 0
            parts.append(f"{words} {_shown(change)} ({start.estimate:+.3f} before, {end.estimate:+.3f} after)")
    if parts:
        of = "is true of an untrained block already" if already else "is not true of every untrained block"
        yield (
            f"That maps are nearer to each other than what is read {of}; what training adds to that gap:"
            f" {'; '.join(parts)}."
        )
    costs = frame[(frame.quantity == "shared_map_cost") & (frame.block == NL) & (frame.n > 1)]
    parts = [f"{WORDS[r.task]} {_shown(r)}" for r in costs.itertuples()]
    if parts:
        yield (
            f"Accuracy lost when all queries get one map: {'; '.join(parts)}. Before a linear read-out of the mean it"
            " cannot be anything but 0, whatever the maps."
        )


def _leads_in_words(frame: pd.DataFrame) -> Iterator[str]:
    leads = {(r.task, r.block): r for r in frame[(frame.quantity == "lead") & (frame.n > 1)].itertuples()}
    parts, idle = [], []
    for task, words in WORDS.items():
        over = [(NAMES[block], leads.get((task, f"{block} - {BASE}"))) for block in (GC, NL)]
        shown = [f"{name} {_shown(r)}" for name, r in over if r]
        if shown:
            parts.append(f"{words} {', '.join(shown)}")
        if len(shown) > 1 and all(r.ci_low <= 0 for _, r in over if r):
            idle.append(words)
    if parts:
        yield f"Accuracy over the same CNN without a block, at an equal budget: {'; '.join(parts)}."
    parts = [f"{words} {_shown(r)}" for task, words in WORDS.items() if (r := leads.get((task, f"{GC} - {NL}")))]
    if parts:
        yield f"Global context less Non-local: {'; '.join(parts)}."
    if idle:
        where = ", ".join(idle)
        yield f"That one is as good as the other says little on {where}, where neither was seen to add anything."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Distances between queries, and maps of some of them."""
    return [chart for chart in (_distances(frame), *(_pictures(frame, block) for block in PICTURED_BLOCKS)) if chart]


def _distances(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    """Of inputs, maps and outputs at the start and at the end, by task."""
    import altair as alt

    from attnrepro.results.charts import records

    names = {"input_distance": "input", "attention_distance": "maps", "output_distance": "added"}
    rows = frame[(frame.statistic == "mean") & (frame.block == NL) & frame.quantity.isin(list(names)) & (frame.n > 0)]
    if rows.empty:
        return None
    shown = rows.copy()
    shown["what"] = shown.quantity.map(names) + ", " + shown.phase.map({"start": "untrained", "end": "trained"})
    shown["where"] = shown.task.map(WORDS)
    columns = ["what", "where", "estimate", "ci_low", "ci_high", "n"]
    data = alt.Data(values=records(shown, columns))  # type: ignore[no-untyped-call]
    title = "distance between two queries, Non-local"
    base = alt.Chart(data).encode(
        y=alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=200)),
        yOffset=alt.YOffset("where:N"),
        color=alt.Color("where:N", legend=alt.Legend(title=None)),
        tooltip=[alt.Tooltip(f"{c}:{'N' if c in ('what', 'where') else 'Q'}") for c in columns],
    )
    x = alt.X("estimate:Q", title="(1 - cos) / 2")
    layers = [
        base.mark_rule().encode(x=alt.X("ci_low:Q", title="(1 - cos) / 2"), x2="ci_high:Q"),
        base.mark_point(style="measured").encode(x=x),
    ]
    described = f"{title}: input, maps, added, by task"
    spec: Mapping[str, Any] = alt.layer(*layers).properties(title=title, description=described).to_dict()
    return spec


def _pictures(frame: pd.DataFrame, block: str) -> Mapping[str, Any] | None:
    """Test images, each beside the maps of some of its queries, which are outlined."""
    import altair as alt

    rows = frame[(frame.block == block) & (frame.n > 0)]
    images, maps = (rows[rows.quantity == name] for name in ("map_grey", "map_attention"))
    if images.empty or maps.empty:
        return None
    names = sorted(dict.fromkeys(images.image), key=lambda name: int(name.partition(" ")[0]))
    queries = [name for name in (*QUERIES, EVERY) if name in set(maps["query"])]
    canvas = Canvas(1 + len(queries), len(names), PIXELS * (1 + len(queries)))
    words = [((i, k), word) for k, name in enumerate(names) for i, word in enumerate((name, *queries))]
    grey = canvas.grey(images, [(0, names.index(r.image)) for r in images.itertuples()])
    of = [(1 + queries.index(r["query"]), names.index(r["image"])) for r in maps.to_dict("records")]
    tint = canvas.squares(maps, of, {"color": "var(--series-2)"}).encode(
        opacity=alt.Opacity("value:Q", legend=None).scale(domain=[0, maps.estimate.max()], range=[0, 1]),
        tooltip=alt.Tooltip("value:Q", title="share of attention"),
    )
    height, width = (int(maps[axis].astype(int).max()) + 1 for axis in ("row", "column"))
    at = places(height, width)
    marks = canvas.marks([(picture, at[word]) for picture, word in words if word in at], (height, width))
    shown = "one attention map for all queries" if EVERY in queries else "attention maps of single queries"
    subtitle = _about_maps(maps, Seen(frame), queries, f"{height} x {width}")
    frames = canvas.frames(picture for picture, _ in words)
    return canvas.drawn(f"{shown}, {NAMES[block]}", subtitle, words, grey, tint, frames, marks)


def _about_maps(maps: pd.DataFrame, seen: Seen, queries: Sequence[str], size: str) -> list[str]:
    """Of which training and queries the maps are, and what their opacity says."""
    first = maps.iloc[0]
    (seed,) = first.by_seed
    accuracy = seen.get("accuracy", first.task, first.block).get(seed, math.nan)
    which = "" if EVERY in queries else f"; queries {', '.join(queries)} (outlined)"
    keys = len(maps[["row", "column"]].drop_duplicates())
    return [
        f"trained, seed {seed}: test accuracy {accuracy:.3f}",
        f"{size} places{which}",
        f"opacity: share of attention, 0 to {maps.estimate.max():.2g}; equal shares: {1 / keys:.2g}",
    ]
