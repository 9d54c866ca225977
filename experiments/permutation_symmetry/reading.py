"""permutation_symmetry, read: what follows from the seeds, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import records
from attnrepro.tables.permutation_symmetry.table import AXES, EPS, MODELS, NONLINEAR, RULES, limit
from attnrepro.theory import set_functions

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "monte_carlo", "roundoff"]

# Rows that other rows are made from, not shown in the table.
HIDDEN = ("count_", "correlation_sq")
# An equality holds to so many eps of its scale; what breaks it does so by so many, and by this share of the scale.
HOLDS_EPS = 32.0
BROKEN_EPS = 1e6
BROKEN_SHARE = 0.1
# What the two models whose values are not linear have to reach for the training to count as done: seven eighths of
# the way from the sign of the mean to the best invariant rule, at 8 tokens.
TARGET = 0.634
# How far the linear pool may end from its limit, beside 3 standard errors.
LINEAR_TOLERANCE = 0.005


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Simulated rules that are judged against theory over the whole table; those of one length share their draws."""
    chosen = frame[frame.quantity.isin(RULES) & frame.theory.notna()]
    return chosen, float(frame[frame.quantity == "correlation_sq"].estimate.sum())


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """How often an error is exactly zero, and how far trained models are above the rule that was called the limit."""
    return [*_zero_shares(frame), *_above_mean_rule(frame)]


def _zero_shares(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    from attnrepro.stats import share_interval

    for r in frame[frame.quantity == "count_zero"].itertuples():
        share = share_interval(round(r.estimate), r.n)
        yield {
            **{axis: getattr(r, axis) for axis in AXES},
            "quantity": "equivariance_error_zero",
            "statistic": "share",
            "estimate": share.value,
            "n": r.n,
            # Nothing is known of the spread of a share of 0 or 1 but its exact interval.
            "sd": math.nan,
            "ci_low": share.low,
            "ci_high": share.high,
            "theory": math.nan,
        }


def _above_mean_rule(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    for r in _means(frame):
        rule = set_functions.mean_sign_accuracy(int(r.length))
        yield {
            "length": r.length,
            "model": r.model,
            "quantity": "accuracy_above_mean_rule",
            "statistic": "paired_difference",
            "estimate": r.estimate - rule,
            "n": r.n,
            "sd": r.sd,
            "seeds": tuple(value - rule for value in r.seeds),
            "theory": math.nan,
        }


def _means(frame: pd.DataFrame) -> list[Any]:
    """Mean accuracies over seeds that there are."""
    rows = frame[(frame.quantity == "accuracy") & (frame.statistic == "mean") & (frame.n > 0)]
    return list(rows.itertuples())


def _members(frame: pd.DataFrame, model: str) -> list[Any]:
    """Accuracies of single seeds, those that failed included."""
    return list(frame[(frame.quantity == "accuracy") & (frame.member != "") & (frame.model == model)].itertuples())


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """What the round-off of a printed error is relative to: its own layer's median max|Attn(x)|, and the eps."""
    if line.quantity.endswith("_eps"):
        return 1.0, 1.0
    axes = dict(line.axes)
    same = frame.quantity == "output_scale"
    for axis in ("shape", "init", "dtype"):
        same &= frame[axis] == axes[axis]
    found = frame[same].estimate
    return (float(found.iloc[0]) if len(found) else 1.0), EPS[axes["dtype"]]


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_symmetry_controls(frame), *_training_controls(frame)]


def _symmetry_controls(frame: pd.DataFrame) -> Iterator[str]:
    # In bfloat16 equality is shown, not judged: rounding hides small differences and shows others as whole units.
    held = ("equivariance_error_eps", "pooled_error_eps", "weights_error_eps", "trained_error_eps")
    least = {"breakage_eps": BROKEN_EPS, "breakage_relative": BROKEN_SHARE}
    for r in frame.itertuples():
        at = f"{r.quantity} is {r.estimate:.3g} at " + " ".join(
            f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis)
        )
        if r.quantity in held and r.statistic == "exact" and r.dtype != "bfloat16" and not r.estimate <= HOLDS_EPS:
            yield f"{at}: at most {HOLDS_EPS:g} eps is round-off"
        if r.quantity == "breakage_eps" and r.dtype != "float64":
            continue
        if r.quantity in least and not r.estimate >= least[r.quantity]:
            yield f"{at}, below {least[r.quantity]:g}: what must break the symmetry did not"
        if r.quantity == "mask_mismatches" and r.n and r.estimate != 0:
            yield f"{at}: so many pairs of positions see each other otherwise than the mask is defined"


def _training_controls(frame: pd.DataFrame) -> Iterator[str]:
    from attnrepro.stats import monte_carlo_interval

    members = {model: _members(frame, model) for model in MODELS}
    count = sum(len(rows) for rows in members.values())
    for model, rows in members.items():
        for r in rows:
            if not r.n:
                yield f"{model}, seed {r.member}: training diverged"
                continue
            best, mean_rule = (
                set_functions.bayes_accuracy(int(r.length)),
                set_functions.mean_sign_accuracy(int(r.length)),
            )
            # Together all intervals hold with 95 %: one of many seeds at the limit would lie above it by chance.
            interval = monte_carlo_interval(r.estimate, r.sd, r.n, 1 - 0.05 / count)
            if interval.low > best:
                yield f"{model}, seed {r.member}: accuracy {r.estimate:.5f} is above what an invariant model can reach"
            if model in NONLINEAR and not interval.low > mean_rule:
                yield f"{model}, seed {r.member}: accuracy {r.estimate:.5f} is not above {mean_rule:.5f}"
    for r in _means(frame):
        bound, se = limit(r.model, int(r.length)), r.sd / math.sqrt(r.n) if r.n > 1 else 0.0
        if r.model in NONLINEAR and int(r.length) == 8 and not r.estimate >= TARGET:
            yield f"{r.model}: mean accuracy {r.estimate:.5f} of {r.n} seeds is below {TARGET}, too little training"
        if r.model not in NONLINEAR and not abs(r.estimate - bound) <= LINEAR_TOLERANCE + 3 * se:
            yield f"{r.model}: mean accuracy {r.estimate:.5f} of {r.n} seeds is not at its limit {bound:.5f}"


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_accuracy_in_words(frame), *_symmetry_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether attention is blind to order, and whether the sign of the mean is the best there is."""
    parts = []
    errors = frame[(frame.quantity == "equivariance_error_eps") & (frame.statistic == "exact")]
    errors = errors[(errors["shape"] == "") & (errors.dtype == "float64") & (errors.n > 0)]
    if len(errors):
        r = errors.iloc[0]
        word = "exactly blind" if r.estimate <= HOLDS_EPS else "not blind"
        parts.append(f"attention without positions is {word} to order ({r.estimate:.2g} eps in {r.n} draws)")
    means = [r for r in _means(frame) if r.n]
    if means:
        length = int(means[0].length)
        rule = set_functions.mean_sign_accuracy(length)
        best = max((r for r in means if int(r.length) == length), key=lambda r: r.estimate)
        word = "is not the best" if best.ci_low > rule else "was not exceeded"
        ends = "" if math.isnan(best.ci_low) else f" [{best.ci_low:.4f}, {best.ci_high:.4f}]"
        parts.append(
            f"{rule:.4f} {word} on {length} tokens: a trained model reaches {best.estimate:.4f}{ends} ({best.n} seeds),"
            f" any such model at most {set_functions.bayes_accuracy(length):.4f}"
        )
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _accuracy_in_words(frame: pd.DataFrame) -> Iterator[str]:
    words = {
        "deep_sets": "DeepSets",
        "attention_mlp": "an attention pool with MLP values",
        "attention_linear": "one with linear values",
    }
    means = {r.model: r for r in _means(frame)}
    if not means:
        return
    length = int(next(iter(means.values())).length)
    best, rule = set_functions.bayes_accuracy(length), set_functions.mean_sign_accuracy(length)

    def reached(model: str) -> str:
        r = means[model]
        interval = "" if math.isnan(r.ci_low) else f" [{r.ci_low:.4f}, {r.ci_high:.4f}]"
        failed = f", {r.n_failed} diverged" if r.n_failed else ""
        return f"{words[model]} {r.estimate:.4f}{interval} ({r.n} seeds{failed})"

    yield (
        f"On {length} tokens a permutation-invariant model can reach {best:.5f} (majority of signs), more than the"
        f" {rule:.4f} of the sign of the mean; trained: {', '.join(reached(m) for m in MODELS if m in means)}."
    )


def _symmetry_in_words(frame: pd.DataFrame) -> Iterator[str]:
    pooled = frame[(frame["shape"] == "") & (frame.dtype == "float64")].set_index(["quantity", "statistic"])
    if ("equivariance_error_eps", "exact") not in pooled.index:
        return
    error = pooled.loc[("equivariance_error_eps", "exact")]
    yield (
        f"Without positions and masks self-attention is permutation-equivariant up to {error.estimate:.2g} eps of its"
        f" largest output in float64 ({error.n} draws)."
    )
    broken = frame[frame.quantity == "breakage_relative"]
    if len(broken):
        yield (
            f"A position encoding or a mask breaks the symmetry by at least {broken.estimate.min():.2f} of the largest"
            " output."
        )


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Ceiling against length, trained seeds against both limits, and what breaks the symmetry."""
    return [chart for chart in (_ceiling_chart(frame), _seeds_chart(frame), _breaker_chart(frame)) if chart]


def _ceiling_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    names = {"bayes_accuracy": "majority of signs (best possible)", "mean_sign_accuracy": "sign of the mean"}
    rows = frame[frame.quantity.isin(names)].copy()
    if rows.empty:
        return None
    rows["rule"], rows["tokens"] = rows.quantity.map(names), rows.length.astype(int)
    columns = ["tokens", "rule", "estimate", "ci_low", "ci_high", "theory", "published"]
    # Printed as a limit for every rule, the number belongs to one of them: one cross.
    rows.loc[rows.duplicated(["tokens", "published"]), "published"] = math.nan
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'rule' else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=records(rows.sort_values("tokens"), columns))).encode(
        x=alt.X("tokens:Q", title="tokens in the set"), color=alt.Color("rule:N", title=None)
    )

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="accuracy", scale=alt.Scale(zero=False))

    layers_ = [
        base.mark_line(style="theory").encode(y=y("theory")),
        base.mark_rule(style="interval").encode(y=y("ci_low"), y2="ci_high:Q"),
        base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
    ]
    if rows.published.notna().any():
        layers_.append(base.mark_point(style="published").encode(y=y("published"), tooltip=tip))
    title = "accuracy from the multiset alone"
    spec: Mapping[str, Any] = (
        alt.layer(*layers_)
        .properties(title=title, description=f"{title}, two rules, against the number of tokens")
        .to_dict()
    )
    return spec


def _seeds_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = frame[(frame.quantity == "accuracy") & (frame.member != "") & (frame.n > 0)].copy()
    if rows.empty:
        return None
    length = int(rows.length.iloc[0])
    limits = {
        "sign of the mean": set_functions.mean_sign_accuracy(length),
        "best possible": set_functions.bayes_accuracy(length),
    }
    rows["seed"] = [f"{r.model} {r.member}" for r in rows.itertuples()]
    tip = [
        alt.Tooltip(f"{column}:{'N' if column == 'seed' else 'Q'}")
        for column in ("seed", "estimate", "ci_low", "ci_high")
    ]
    x = alt.X("estimate:Q", title="accuracy on fresh sequences").scale(zero=False).axis(tickCount=4)
    base = alt.Chart(alt.Data(values=records(rows, ["seed", "model", "estimate", "ci_low", "ci_high"]))).encode(
        y=alt.Y("seed:N", title=None), color=alt.Color("model:N", title=None, legend=None)
    )
    lines = alt.Chart(alt.Data(values=[{"limit": name, "at": value} for name, value in limits.items()]))
    title = f"trained on {length} tokens, each seed"
    spec: Mapping[str, Any] = (
        alt.layer(
            lines.mark_rule(style="theory").encode(x="at:Q", tooltip=[alt.Tooltip("limit:N"), alt.Tooltip("at:Q")]),
            base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q"), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=title, description=f"{title}: accuracy beside both limits")
        .to_dict()
    )
    return spec


def _breaker_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    broken = frame[frame.quantity == "breakage_relative"].copy()
    whole = frame[
        (frame.quantity == "equivariance_error_eps") & (frame.statistic == "exact") & (frame["shape"] != "")
    ].copy()
    # An error of exactly zero has no place on a logarithmic axis.
    whole = whole[(whole.init == "scaled") & (whole.estimate > 0)]
    if broken.empty or whole.empty:
        return None
    whole["estimate"] *= whole.dtype.map(EPS)
    whole["breaker"] = "nothing added"
    columns = ["breaker", "dtype", "shape", "estimate"]
    values = records(whole, columns) + records(broken, columns)
    title = "violation of the symmetry"
    spec: Mapping[str, Any] = (
        alt.Chart(alt.Data(values=values))
        .mark_point(style="measured")
        .encode(
            x=alt.X("estimate:Q", title="|Attn(Px) - P Attn(x)| / max|Attn(x)|")
            .scale(type="log")
            .axis(format="~e", tickCount=5),
            y=alt.Y("breaker:N", title=None, sort=["nothing added"]),
            yOffset=alt.YOffset("dtype:N"),
            color=alt.Color("dtype:N", title=None),
            tooltip=[alt.Tooltip(f"{column}:{'Q' if column == 'estimate' else 'N'}") for column in columns],
        )
        .properties(title=title, description=f"{title}, without and with what must break it")
        .to_dict()
    )
    return spec
