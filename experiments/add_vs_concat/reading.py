"""add_vs_concat, read: trained heads paired by seed, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.derived import over_seeds
from attnrepro.tables.add_vs_concat.table import AXES, CODES

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive", "monte_carlo", "roundoff"]

BASE = "add"
# An identity holds to so many eps of its scale; what breaks it does so by so many.
HOLDS_EPS = 32.0
BROKEN_EPS = 1e6
# Parameters that count as equal, and the accuracy from which a head has learned its task.
SAME_PARAMETERS = 0.01
LEARNED = 0.9
WORDS = {
    "equal_width": "half the components each",
    "equal_parameters": "as many parameters",
    "double_width": "d beside d",
}


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors are in units of eps times their scale already."""
    return 1.0, 1.0


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Shares that no code absorbs, dense content that a sum loses, and the best guess without positions."""
    names = ["residual_share", "dense_residual", "bag_accuracy"]
    chosen = frame[frame.quantity.isin(names) & (frame.n > 0)]
    return chosen, float(len(chosen))


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Accuracy, loss and steps of every head over those of the sum, seed by seed."""
    found: list[dict[str, object]] = []
    names = {"accuracy": "accuracy_ratio", "loss": "log_loss_ratio", "steps_to_target": "steps_ratio"}
    for name, quantity in names.items():
        rows = {r["code"]: r for r in frame[(frame.quantity == name) & (frame.n > 0)].to_dict("records")}
        if BASE in rows:
            found += [_over(quantity, r, rows[BASE]) for code, r in rows.items() if code != BASE]
    return found


def _over(quantity: str, r: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, object]:
    both = [seed for seed in r["by_seed"] if seed in base["by_seed"]]
    values = [r["by_seed"][seed] / base["by_seed"][seed] for seed in both]
    if quantity == "log_loss_ratio":
        values = [math.log10(value) for value in values]
    total = max(x["n"] + x["n_failed"] for x in (r, base))
    line: dict[str, object] = {axis: r[axis] for axis in AXES}
    line |= {"quantity": quantity, "statistic": "paired_difference", "theory": math.nan}
    return line | {"n_failed": total - len(values)} | over_seeds(values)


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_algebra(frame), *_counts(frame), *_training(frame)]


def _algebra(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.quantity == "error_eps") & (frame.n > 0)].itertuples():
        where = f"{r.direction}, positions {r.positions}, outputs {r.outputs_over_d} d"
        absorbed = r.positions == "learned" and float(r.outputs_over_d) < 1
        if r.direction == "add_in_concat" or absorbed:
            if not r.estimate <= HOLDS_EPS:
                yield f"{where}: {r.estimate:.3g} eps apart, although the maps are the same"
        elif not r.estimate >= BROKEN_EPS:
            yield f"{where}: {r.estimate:.3g} eps apart, although no such map exists"


def _counts(frame: pd.DataFrame) -> Iterator[str]:
    exact = frame[(frame.statistic == "exact") & frame.theory.notna() & (frame.n > 0)]
    for r in exact.itertuples():
        if r.estimate != r.theory:
            at = " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))
            yield f"{r.quantity} at {at} is {r.estimate:.9g}, the closed form {r.theory:.9g}"
    parameters = {r.code: r.estimate for r in exact[exact.quantity == "parameters"].itertuples()}
    if {BASE, "equal_parameters"} <= parameters.keys():
        gap = parameters["equal_parameters"] / parameters[BASE] - 1
        if not abs(gap) <= SAME_PARAMETERS:
            yield f"equal_parameters has {gap:+.1%} parameters against the sum"


def _training(frame: pd.DataFrame) -> Iterator[str]:
    best = frame[(frame.quantity == "bag_accuracy") & frame.theory.notna()]
    for r in frame[frame.quantity == "accuracy"].itertuples():
        if r.n_failed:
            yield f"{r.code}: {r.n_failed} seeds diverged"
        if r.code == "none" and r.n and len(best) and r.ci_low > best.theory.iloc[0]:
            limit = best.theory.iloc[0]
            yield f"without positions: accuracy {r.estimate:.4f} is above {limit:.4f}, the best there is"
        if r.code in (BASE, "double_width") and r.n and not r.estimate >= LEARNED:
            yield f"{r.code}: accuracy {r.estimate:.3f} is below {LEARNED:g}: trained too little to compare"


# --- answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_absorbed(frame), *_kept(frame), *_trained(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Both questions in one sentence: what the sum can do, and who learns more at equal parameters."""
    parts = []
    errors = frame[(frame.quantity == "error_eps") & (frame.direction == "concat_in_add") & (frame.n > 0)]
    errors = errors[errors.positions == "learned"]
    missed = errors[errors.estimate > HOLDS_EPS]
    shares = frame[(frame.quantity == "residual_share") & (frame.n > 0)]
    shares = shares[shares.outputs_over_d.isin(list(missed.outputs_over_d))]
    if len(shares):
        r = shares.loc[shares.outputs_over_d.astype(float).idxmax()]
        parts.append(
            f"no: a layer on the sum with its code learned anew misses {r.estimate:.3f}"
            f" [{r.ci_low:.3f}, {r.ci_high:.3f}] of the squares of a map with {r.outputs_over_d} outputs a component"
        )
    elif len(missed):
        parts.append("no: a layer on the sum with its code learned anew misses some maps of the pair")
    elif len(errors):
        parts.append("yes: what a layer makes of the pair one on the sum with its code learned anew makes too")
    accuracy, loss = (
        frame[(frame.quantity == quantity) & (frame.code == "equal_parameters") & (frame.n > 1)]
        for quantity in ("accuracy_ratio", "log_loss_ratio")
    )
    if len(accuracy):
        parts.append(f"at equal parameters {_who(accuracy.iloc[0], loss)}")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _who(accuracy: Any, loss: pd.DataFrame) -> str:
    """Who is right more often, and whose loss is lower, as far as the intervals show."""
    known = accuracy.ci_low > 1 or accuracy.ci_high < 1
    words = f"the {'pair' if accuracy.ci_low > 1 else 'sum'} is" if known else "neither is seen to be"
    said = f"{words} right more often ({accuracy.n} seeds)"
    if loss.empty:
        return said
    low, value, high = (10**x for x in (loss.ci_low.iloc[0], loss.estimate.iloc[0], loss.ci_high.iloc[0]))
    lower = "lower than" if high < 1 else "higher than" if low > 1 else "not seen to differ from"
    return f"{said}, the pair's loss is {lower} the sum's (x {value:.2f} [{low:.2f}, {high:.2f}])"


def _absorbed(frame: pd.DataFrame) -> Iterator[str]:
    errors = frame[(frame.quantity == "error_eps") & (frame.n > 0)]
    if errors.empty:
        return
    tied = errors[errors.direction == "add_in_concat"].estimate.max()
    learned = errors[errors.positions == "learned"]
    holds = learned[learned.outputs_over_d.astype(float) < 1].estimate.max()
    yield (
        f"Every map of the sum is one of the pair (to {tied:.2g} eps). The other way round, a code that is learned anew"
        f" absorbs a map of fewer outputs than components (to {holds:.2g} eps) and no larger one:"
    )
    shares = frame[(frame.quantity == "residual_share") & (frame.n > 0)]
    told = [f"{r.estimate:.3f} at {r.outputs_over_d} d outputs (1 - d/m: {r.theory:.3f})" for r in shares.itertuples()]
    yield f"of the squares it misses {', '.join(told)}."


def _kept(frame: pd.DataFrame) -> Iterator[str]:
    words = frame[(frame.quantity == "word_readout") & (frame.n > 0)]
    if words.empty:
        return
    lost = frame[(frame.quantity == "lost_share") & (frame.n > 0)].estimate.max()
    dense = frame[(frame.quantity == "dense_residual") & (frame.n > 0)]
    ordered = sorted(words.itertuples(), key=lambda r: int(r.embed_dim))
    told = ", ".join(f"{r.estimate:.3f} (d = {r.embed_dim})" for r in ordered)
    yield f"The nearest sum gives back all but {lost:.2g} of words and positions, a linear readout {told} of words."
    if len(dense):
        r = dense.iloc[0]
        yield f"Of dense content it misses {r.estimate:.3f} [{r.ci_low:.3f}, {r.ci_high:.3f}]."


def _trained(frame: pd.DataFrame) -> Iterator[str]:
    accuracy = {r.code: r for r in frame[(frame.quantity == "accuracy") & (frame.n > 0)].itertuples()}
    if BASE not in accuracy:
        return
    ratios = {r.code: r for r in frame[(frame.quantity == "log_loss_ratio") & (frame.n > 1)].itertuples()}
    steps = {r.code: r for r in frame[frame.quantity == "steps_to_target"].itertuples()}
    pace = {r.code: r for r in frame[(frame.quantity == "steps_ratio") & (frame.n > 1)].itertuples()}
    parts = []
    for code, words in WORDS.items():
        if code in accuracy and code in ratios:
            r = ratios[code]
            low, value, high = (f"{10**x:.2g}" for x in (r.ci_low, r.estimate, r.ci_high))
            told = f"loss x {value} [{low}, {high}]"
            if code in pace:
                one = pace[code]
                told += f", steps x {one.estimate:.2f} [{one.ci_low:.2f}, {one.ci_high:.2f}]"
            parts.append(f"{words} {accuracy[code].estimate:.4f} ({told})")
    own = accuracy[BASE].estimate
    yield f"Trained, the sum is right in {own:.4f} of cases, the pair with {'; '.join(parts)}."
    late = {code: r.n_failed for code, r in steps.items() if code != "none" and r.n_failed}
    total = max((r.n + r.n_failed for r in steps.values()), default=0)
    if late:
        told = ", ".join(f"{count} of {total} with {code}" for code, count in late.items())
        yield f"Never at the target: {told}."
    if "none" in accuracy:
        yield f"Without positions it is {accuracy['none'].estimate:.3f}."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """What a relearned code misses, what a linear readout names, and losses of trained heads."""
    return [chart for chart in (_missed(frame), _readouts(frame), _losses(frame)) if chart]


def _missed(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "residual_share") & (frame.n > 0)].assign(series="measured")
    return curves(
        rows,
        "outputs_over_d",
        "series",
        title="what a relearned code misses",
        x_title="outputs of the layer / d",
        y_title="share of squares",
        zero=0.0,
    )


def _readouts(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[frame.quantity.isin(["word_readout", "position_readout"]) & (frame.n > 0)]
    rows = rows.assign(what=[str(name).removesuffix("_readout") for name in rows.quantity])
    return curves(
        rows,
        "embed_dim",
        "what",
        title="read out of a sum",
        x_title="components",
        y_title="share named right",
        log=True,
        zero=1.0,
    )


def _losses(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "loss") & (frame.n > 0)].copy()
    if rows.empty:
        return None
    rows["way"] = [str(code).replace("_", " ") for code in rows.code]
    # An interval that reaches 0 has no place on a log axis.
    rows.loc[rows.ci_low <= 0, ["ci_low", "ci_high"]] = math.nan
    columns = ["way", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'way' else 'Q'}") for column in columns]
    order = [code.replace("_", " ") for code in CODES]
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(y=alt.Y("way:N", title=None, sort=order))
    x = alt.X("estimate:Q", title="cross-entropy in nats", scale=alt.Scale(type="log")).axis(tickCount=4)
    title = "loss after training"
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q"), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=title, description=f"{title}: of a head without a code, with the sum and with pairs")
        .to_dict()
    )
    return spec
