"""worked_examples, read: what would give the prints, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attnrepro.tables.worked_examples.table import AXES, VARIANCES
from attnrepro.theory import decimal_attention as paper
from attnrepro.theory import printed_weights

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "monte_carlo"]

# Rows that other rows are made from, not shown in the table.
HIDDEN = ("printed_", "correlation_sq")

# The document's second version of an example, by the first.
AGAIN = {"two_tokens": "exercise_2", "cat": "cat_again"}
# Measurement and decimal theory agree to so much, relative and, near zero, absolute.
AGREE = 1e-10
# Half a unit of the second decimal, to which the documents print their weights.
ROUNDING = 0.005


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The variances of random dot products; all from the same draws."""
    chosen = frame[frame.quantity.isin(VARIANCES) & frame.theory.notna()]
    return chosen, float(frame[frame.quantity == "correlation_sq"].estimate.sum())


# --- what follows from the rows ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Changes between two versions of an example, what would give the prints, and how parameters grow."""
    return [*_changes(frame), *_prints(frame, published), *_growth(frame)]


def _line(quantity: str, estimate: float, theory: float = math.nan, **axes: object) -> dict[str, object]:
    at = dict.fromkeys(AXES, "") | {name: str(value) for name, value in axes.items()}
    line = {"quantity": quantity, "statistic": "exact", "estimate": estimate, "theory": theory}
    return {**at, **line, "n": 1, "sd": math.nan}


def _measured(frame: pd.DataFrame, quantity: str) -> list[Any]:
    return list(frame[(frame.quantity == quantity) & (frame.n > 0)].itertuples())


def _changes(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    dots, logits, weights = (_measured(frame, name) for name in ("dot_product", "logit", "weight"))
    for first, second in AGAIN.items():
        before = [r for r in dots if r.example == first]
        after = {(r.query, r.token): r for r in dots if r.example == second}
        pairs = [(r, after[r.query, r.token]) for r in before if (r.query, r.token) in after]
        for old, new in pairs:
            difference = (new.estimate - old.estimate, new.theory - old.theory)
            yield _line("score_change", *difference, example=second, query=new.query, token=new.token)
        for query in dict.fromkeys(old.query for old, _ in pairs):
            same = [_leading(before, list(after.values()), query, column) for column in ("estimate", "theory")]
            yield _line("equal_leading_scores", *same, example=second, query=query)
        plain = {(r.query, r.token, r.head_dim): r for r in weights if r.example == second and r.mask == "none"}
        moved: dict[str, list[tuple[float, float]]] = {}
        for r in weights:
            if r.example == first and r.mask == "none" and (new := plain.get((r.query, r.token, r.head_dim))):
                change = (abs(new.estimate - r.estimate), abs(new.theory - r.theory))
                moved.setdefault(r.query, []).append(change)
        for query, found in moved.items():
            yield _line("weight_change", *map(max, zip(*found, strict=True)), example=second, query=query)
        if moved:
            every = [change for found in moved.values() for change in found]
            yield _line("weight_change", *map(max, zip(*every, strict=True)), example=second)
    for rows in _by(logits, "example", "query", "head_dim").values():
        at = {name: getattr(rows[0], name) for name in ("example", "query", "head_dim")}
        gaps = [_lead([getattr(r, column) for r in rows]) for column in ("estimate", "theory")]
        yield _line("logit_gap", *gaps, **at)


def _leading(before: Sequence[Any], after: Sequence[Any], query: str, column: str) -> float:
    """How many scores of a row two lists share before the first that differs, whatever tokens they stand beside."""
    count = 0
    rows = ([getattr(r, column) for r in side if r.query == query] for side in (before, after))
    for a, b in zip(*rows, strict=False):
        if abs(a - b) > AGREE:
            break
        count += 1
    return count


def _lead(logits: Sequence[float]) -> float:
    """The largest logit above the second."""
    top = sorted(logits)[-2:]
    return top[1] - top[0] if len(top) == 2 else math.nan


def _by(rows: Sequence[Any], *axes: str) -> dict[tuple[str, ...], list[Any]]:
    found: dict[tuple[str, ...], list[Any]] = {}
    for r in rows:
        found.setdefault(tuple(getattr(r, axis) for axis in axes), []).append(r)
    return found


def _prints(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> Iterator[dict[str, object]]:
    """For each row of printed weights: the scores and temperatures that would give them."""
    printed = {}
    for line in published:
        # A statement such as "more than half" is no printed weight.
        closed = line.printed or (line.low is not None and line.high is not None)
        if line.quantity == "weight" and line.klass == "exact" and closed:
            printed[tuple(text for _, text in line.axes)] = line
    logits = {(r.example, r.query, r.token, r.head_dim): r for r in _measured(frame, "logit")}
    for rows in _by(_measured(frame, "weight"), "example", "query", "mask", "head_dim").values():
        lines = [printed.get(tuple(getattr(r, axis) for axis in AXES)) for r in rows]
        own = [logits[r.example, r.query, r.token, r.head_dim] for r in rows]
        for index, (r, line) in enumerate(zip(rows, lines, strict=True)):
            if line is not None:
                yield from _print(r, line, own, index)
        # A row that is masked is a row of fewer tokens; none of them is printed.
        if rows[0].mask == "none" and all(line is not None for line in lines):
            yield from _temperatures(rows, [line for line in lines if line is not None], own)


def _at(r: Any) -> dict[str, str]:
    return {axis: getattr(r, axis) for axis in AXES}


def _print(r: Any, line: PublishedLine, logits: Sequence[Any], index: int) -> Iterator[dict[str, object]]:
    """What is printed of a weight and, where that is wrong, the logit that would give it."""
    low, high = line.bounds
    if line.published is not None:
        yield _line("printed_value", line.published, **_at(r))
    yield _line("printed_low", low, **_at(r))
    yield _line("printed_high", high, **_at(r))
    wanted = line.nearest(r.estimate)
    if line.contains(r.estimate) or not 0 < wanted < 1 or len(logits) < 2:
        return
    found = printed_weights.score_for([logit.estimate for logit in logits], index, wanted)
    exact = paper.needed_logit([Decimal(logit.theory) for logit in logits], index, Decimal(wanted))
    yield _line("needed_score", found, float(exact), **_at(r))


def _temperatures(
    rows: Sequence[Any], lines: Sequence[PublishedLine], logits: Sequence[Any]
) -> Iterator[dict[str, object]]:
    scores = [logit.estimate for logit in logits]
    top = max(range(len(rows)), key=lambda i: scores[i])
    wanted = lines[top].nearest(rows[top].estimate)
    at = {name: getattr(rows[top], name) for name in ("example", "query", "head_dim")}
    wrong = not lines[top].contains(rows[top].estimate)
    if wrong and 1 / len(rows) < wanted < 1 and _lead(scores) > 0:
        found = printed_weights.temperature_for(scores, wanted)
        gap = Decimal(logits[top].theory) - Decimal(min(logit.theory for logit in logits))
        exact = paper.needed_temperature(gap, Decimal(wanted)) if len(rows) == 2 else math.nan
        yield _line("needed_temperature", found, float(exact), token=rows[top].token, **at)
    if len(rows) < 3:  # two tokens have one temperature and one weight
        return
    temperature, miss, weights = printed_weights.best_temperature(scores, [line.nearest for line in lines])
    yield _line("best_temperature", temperature, **at)
    yield _line("best_temperature_miss", miss, **at)
    for r, line, weight in zip(rows, lines, weights, strict=True):
        yield _line("residual", r.estimate - line.nearest(r.estimate), token=r.token, **at)
        yield _line("best_temperature_weight", weight, token=r.token, **at)
        yield _line("best_temperature_residual", weight - line.nearest(weight), token=r.token, **at)


def _growth(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """How parameters depend on the number of heads, and whether heads and layers can be chosen apart."""
    rows = _measured(frame, "parameters")
    for (module, embed_dim), group in _by([r for r in rows if r.num_layers == "1"], "module", "embed_dim").items():
        at = {"module": module, "embed_dim": embed_dim}
        first, last = group[0], group[-1]
        if first.num_heads == last.num_heads:
            continue
        decades = math.log(int(last.num_heads) / int(first.num_heads))
        columns = ("estimate", "theory")
        spread = [max(getattr(r, c) for r in group) - min(getattr(r, c) for r in group) for c in columns]
        growth = [math.log(getattr(last, c) / getattr(first, c)) / decades for c in columns]
        yield _line("parameters_spread", *spread, **at)
        yield _line("parameters_growth_exponent", *growth, **at)
        every = [r for r in rows if (r.module, r.embed_dim) == (module, embed_dim)]
        apart = [
            max(abs(getattr(r, c) - int(r.num_layers) * getattr(first, c)) / getattr(r, c) for r in every)
            for c in columns
        ]
        yield _line("parameters_not_separable", *apart, **at)
    dims = _measured(frame, "head_dim")
    if dims:
        errors = [
            max(abs(getattr(r, c) * int(r.num_heads) - int(r.embed_dim)) for r in dims) for c in ("estimate", "theory")
        ]
        yield _line("head_dim_times_heads_error", *errors, embed_dim=dims[0].embed_dim)


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_agreement(frame), *_breakers(frame)]


def _agreement(frame: pd.DataFrame) -> Iterator[str]:
    """Every exact row agrees with its theory, printed or not."""
    for r in frame[(frame.statistic == "exact") & frame.theory.notna() & (frame.n > 0)].itertuples():
        if not abs(r.estimate - r.theory) <= AGREE * max(1e-3, abs(r.theory)):
            at = " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))
            yield f"{r.quantity} is {r.estimate:.12g} at {at}, in decimal arithmetic {r.theory:.12g}"


def _breakers(frame: pd.DataFrame) -> Iterator[str]:
    for r in _measured(frame, "parameters_growth_exponent"):
        if r.module == "fixed_head_dim" and not abs(r.estimate - 1) <= AGREE:
            yield f"heads of fixed width cost parameters with exponent {r.estimate:.6g} instead of 1"
    # The search for a temperature must find the one that was used, where there is one.
    weights = {
        (r.example, r.query, r.token, r.head_dim): r.estimate for r in _measured(frame, "weight") if r.mask == "none"
    }
    found = {(r.example, r.query, r.head_dim) for r in _measured(frame, "best_temperature")}
    for place, rows in _by(_measured(frame, "logit"), "example", "query", "head_dim").items():
        if place in found:
            own = [weights[r.example, r.query, r.token, r.head_dim] for r in rows]
            scores = [r.estimate for r in rows]
            temperature, miss, _ = printed_weights.best_temperature(scores, [_always(weight) for weight in own])
            if not (abs(temperature - 1) <= 1e-6 and miss <= 1e-6):
                yield f"{place[0]}: the search finds temperature {temperature:.6g} for weights made at temperature 1"


def _always(value: float) -> Callable[[float], float]:
    return lambda _: value


# --- for the reader ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join(
        [*_told(frame), *_weights_in_words(frame), *_temperature_in_words(frame), *_variance_in_words(frame)]
    )


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Which of the four come out as printed."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    if rows := _with_bounds(frame):
        right = sum(low <= r.estimate <= high for r, low, high in rows)
        parts[right == len(rows)].append(f"the weights ({right} of {len(rows)} do)")
    found = {r.quantity: r for r in frame[frame.quantity.isin(VARIANCES) & (frame.n > 0)].itertuples()}
    if r := found.get("dot_product_variance"):
        ends = f"{r.estimate:.2f} [{r.ci_low:.2f}, {r.ci_high:.2f}] for {r.head_dim} components"
        parts[r.ci_low <= r.theory <= r.ci_high].append(f"the variance ({ends})")
    for quantity, module, words in (
        ("head_dim_times_heads_error", "", "the sizes of heads"),
        ("parameters_spread", "torch", "the parameters (the same for any number of heads)"),
    ):
        if made := [r.estimate for r in _measured(frame, quantity) if r.module == module]:
            parts[max(made) == 0].append(words)
    right_ones, wrong = (", ".join(parts[known]) for known in (True, False))
    if wrong and right_ones:
        yield f"In part: {right_ones} come out as printed, but not all of {wrong}."
    elif right_ones or wrong:
        yield (
            f"Yes: {right_ones} come out as printed." if right_ones else f"No: not all of {wrong} come out as printed."
        )


def _weights_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = _with_bounds(frame)
    if not rows:
        return
    right = sum(low <= r.estimate <= high for r, low, high in rows)
    yield f"Of weights, {right} of the {len(rows)} printed softmax weights are what softmax gives."
    needed = {tuple(_at(r).values()): r.estimate for r in _measured(frame, "needed_score")}
    used = {(r.example, r.query, r.token, r.head_dim): r.estimate for r in _measured(frame, "logit")}
    printed = {tuple(_at(r).values()): r.estimate for r in _measured(frame, "printed_value")}
    words = {}
    for r, low, high in sorted(rows, key=lambda row: -row[0].estimate):
        place = tuple(_at(r).values())
        if low <= r.estimate <= high or place not in needed or place not in printed:
            continue
        words.setdefault(
            r.example,
            f"{r.example} has {r.estimate:.4f} for token {r.token} (the printed {printed[place]:g} needs a score of"
            f" {needed[place]:.2f} instead of {used[r.example, r.query, r.token, r.head_dim]:.2f})",
        )
    if words:
        yield f"Of the others the largest of each example: {'; '.join(words.values())}."


def _temperature_in_words(frame: pd.DataFrame) -> Iterator[str]:
    misses = {r.example: r for r in _measured(frame, "best_temperature_miss")}
    for r in _measured(frame, "best_temperature"):
        if r.example in misses:
            yield (
                f"No temperature gives the printed row of {r.example}: at the best, {r.estimate:.2f}, a weight is still"
                f" {misses[r.example].estimate:.3f} off."
                if misses[r.example].estimate > ROUNDING
                else f"Temperature {r.estimate:.2f} gives the printed row of {r.example}."
            )


def _variance_in_words(frame: pd.DataFrame) -> Iterator[str]:
    found = {r.quantity: r for r in frame[frame.quantity.isin(VARIANCES) & (frame.n > 0)].itertuples()}
    if len(found) == len(VARIANCES):
        variance, error = found["dot_product_variance"], found["variance_standard_error"]
        yield (
            f"The variance of a dot product of {variance.head_dim} components is {variance.estimate:.3f}"
            f" [{variance.ci_low:.3f}, {variance.ci_high:.3f}], and its standard error"
            f" {error.estimate:.3f} for as many draws as the document made."
        )


def _with_bounds(frame: pd.DataFrame) -> list[tuple[Any, float, float]]:
    """Measured weights with both ends of what is printed of them."""
    ends = [
        {tuple(_at(r).values()): r.estimate for r in _measured(frame, name)} for name in ("printed_low", "printed_high")
    ]
    rows = [(r, tuple(_at(r).values())) for r in _measured(frame, "weight")]
    return [(r, ends[0][at], ends[1][at]) for r, at in rows if at in ends[0]]


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Printed beside computed weights, the scores that would give them, and what no temperature can repair."""
    return [chart for chart in (_weight_chart(frame), _score_chart(frame), _residual_chart(frame)) if chart]


def _label(r: Any) -> str:
    """A token of a row; of a matrix also whose row it is."""
    return f"{r.example}: {r.query} to {r.token}" if r.query.isdigit() else f"{r.example}: {r.token}"


def _chart(layers: Sequence[Any], title: str, height: int) -> Mapping[str, Any]:
    import altair as alt

    spec: Mapping[str, Any] = alt.layer(*layers).properties(title=title, description=title, height=height).to_dict()
    return spec


def _weight_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    points = {tuple(_at(r).values()): r.estimate for r in _measured(frame, "printed_value")}
    values: list[dict[str, object]] = []
    for r, low, high in _with_bounds(frame):
        row = {"key": _label(r), "computed": r.estimate, "low": low, "high": high}
        if high > low:  # what a mask hides is not shown
            # A number is one cross, a range its two ends.
            one = points.get(tuple(_at(r).values()))
            values += [{**row, "printed": value} for value in ([low, high] if one is None else [one])]
    if not values:
        return None
    tip = [alt.Tooltip("key:N"), *(alt.Tooltip(f"{name}:Q") for name in ("computed", "low", "high"))]
    base = alt.Chart(alt.Data(values=values)).encode(y=alt.Y("key:N", title=None, sort=None))
    layers = [
        base.mark_point(style="published").encode(x=alt.X("printed:Q", title="attention weight"), tooltip=tip),
        base.mark_point(style="measured").encode(x="computed:Q", tooltip=tip),
    ]
    return _chart(layers, "weights, computed and printed", 18 * len(values))


def _score_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    logits = {(r.example, r.query, r.token, r.head_dim): r.estimate for r in _measured(frame, "logit")}
    values = [
        {"key": _label(r), "used": logits[r.example, r.query, r.token, r.head_dim], "needed": r.estimate}
        for r in _measured(frame, "needed_score")
    ]
    if not values:
        return None
    tip = [alt.Tooltip("key:N"), alt.Tooltip("used:Q"), alt.Tooltip("needed:Q")]
    base = alt.Chart(alt.Data(values=values)).encode(y=alt.Y("key:N", title=None, sort=None))
    layers = [
        base.mark_rule().encode(x=alt.X("used:Q", title="score"), x2="needed:Q"),
        base.mark_point(style="published").encode(x="needed:Q", tooltip=tip),
        base.mark_point(style="measured").encode(x="used:Q", tooltip=tip),
    ]
    return _chart(layers, "scores used, and what the prints need", 18 * len(values))


def _residual_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    kinds = {"residual": "temperature 1", "best_temperature_residual": "best temperature"}
    values = [
        {"token": r.token, "temperature": kinds[r.quantity], "residual": r.estimate}
        for name in kinds
        for r in _measured(frame, name)
    ]
    if not values:
        return None
    tip = [alt.Tooltip("token:N"), alt.Tooltip("temperature:N"), alt.Tooltip("residual:Q")]
    base = alt.Chart(alt.Data(values=values)).encode(y=alt.Y("token:N", title=None, sort=None))
    zero = alt.Chart(alt.Data(values=[{"at": 0}])).mark_rule().encode(x="at:Q")
    points = base.mark_point(style="measured").encode(
        x=alt.X("residual:Q", title="computed minus printed weight"),
        color=alt.Color("temperature:N", title=None, sort=list(kinds.values())),
        tooltip=tip,
    )
    return _chart([zero, points], "what no temperature repairs", 260)
