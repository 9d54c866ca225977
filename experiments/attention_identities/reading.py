"""attention_identities, read: what must hold, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import records
from attnrepro.tables.attention_identities.table import AXES, HOLDS_EPS

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "monte_carlo", "roundoff"]

# What breaks an equality does so by so many eps of its scale.
BROKEN_EPS = 1e6
# A measurement without chance is its theory to this relative difference.
EXACT = 1e-9


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Spreads of outputs and residuals of single heads, all from draws of their own."""
    chosen = frame[frame.quantity.isin(["output_sd", "one_head_residual"]) & frame.theory.notna() & (frame.sd > 0)]
    return chosen, float(len(chosen))


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors and breakages are in units of eps times their scale already."""
    return 1.0, 1.0


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    found = []
    for r in frame.itertuples():
        at = f"{r.quantity} is {r.estimate:.4g} at " + " ".join(
            f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis)
        )
        if r.quantity in ("error_eps", "soft_error_eps") and not r.estimate <= HOLDS_EPS:
            found.append(f"{at}: at most {HOLDS_EPS:g} eps is round-off")
        if r.quantity == "breakage_eps" and not r.estimate >= BROKEN_EPS:
            found.append(f"{at}, below {BROKEN_EPS:g}: what must break the equality did not")
        if r.quantity == "mismatches" and bool(r.breaker) is not bool(r.estimate > 0):
            found.append(f"{at}: it must be {'above 0' if r.breaker else '0'}")
        exact = r.statistic in ("exact", "slope") and r.quantity not in ("error_eps", "mismatches") and r.n
        if exact and r.theory == r.theory and not math.isclose(r.estimate, r.theory, rel_tol=EXACT):
            found.append(f"{at}: theory says {r.theory:.12g}")
    return found


# --- answer and charts ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_equalities(frame), *_refuted(frame), *_scales(frame), *_limits(frame)])


def _equalities(frame: pd.DataFrame) -> Iterator[str]:
    held = frame[(frame.quantity == "error_eps") & (frame.dtype == "float64") & (frame["shape"] == "")]
    broken = frame[frame.quantity == "breakage_eps"]
    if held.empty or broken.empty:
        return
    worst = held.loc[held.estimate.idxmax()]
    weakest = broken.loc[broken.estimate.idxmin()]
    yield (
        f"{(held.estimate <= HOLDS_EPS).sum()} of {len(held)} equalities hold in float64 to {worst.estimate:.2g} eps or"
        f" better ({int(held.n.min())} draws each; worst: {worst.identity}), and"
        f" {(broken.estimate >= BROKEN_EPS).sum()} of {len(broken)} breakers break theirs in every draw, by"
        f" {weakest.estimate:.1g} eps at least ({weakest.identity}, {weakest.breaker})."
    )


def _refuted(frame: pd.DataFrame) -> Iterator[str]:
    shares = frame[frame.quantity == "breakage_relative"].set_index(["identity", "breaker"]).estimate
    told = {
        ("per_word", "same_positions"): "in another order a sentence has other outputs, position by position ({:.2g})",
        ("pooled", "causal"): "under a causal mask no position code is needed to see the order ({:.2g})",
        ("one_head_kernel", "signed_kernel"): "one head cannot be a kernel with two signs ({:.2g})",
        ("graph_reflection", "convolution"): "a graph network without edge types cannot be a convolution ({:.2g})",
    }
    found = [words.format(shares[at]) for at, words in told.items() if at in shares.index]
    if found:
        yield f"Refuted, with the smallest violation relative to the output: {'; '.join(found)}."


def _scales(frame: pd.DataFrame) -> Iterator[str]:
    spread = frame[(frame.quantity == "output_sd") & (frame.n > 0)]
    if spread.empty:
        return
    last = spread.loc[spread.n_keys.astype(int).idxmax()]
    yield (
        f"Values of spread 1 are averaged down to {last.estimate:.4f} [{last.ci_low:.4f}, {last.ci_high:.4f}] over"
        f" {last.n_keys} keys (theory {last.theory:.4f}): the output keeps the range of the values, not their scale."
    )


def _limits(frame: pd.DataFrame) -> Iterator[str]:
    slopes = frame[(frame.quantity == "leak_rate") & (frame.n > 0)]
    if slopes.empty:
        return
    last = slopes[slopes.logit_scale.astype(float) == slopes.logit_scale.astype(float).max()]
    told = " and ".join(f"exp(-{r.estimate:.3g} a) with a {r.case.replace('_', '-')} code" for r in last.itertuples())
    yield f"Attention by position codes becomes a convolution as {told}, a the factor of the logits."


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Equalities beside what breaks them, the soft limit of convolution, and the spread of outputs."""
    return [chart for chart in (_error_chart(frame), _leak_chart(frame), _spread_chart(frame)) if chart]


def _error_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    chosen = frame[frame.quantity.isin(["error_eps", "breakage_eps"]) & (frame["shape"] == "")].copy()
    chosen = chosen[chosen.dtype == "float64"]
    if chosen.empty:
        return None
    chosen["what"] = ["must break it" if name else "holds" for name in chosen.breaker]
    # An error of exactly zero has no place on a logarithmic axis: it stands at the left end.
    chosen["shown"] = chosen.estimate.clip(lower=2.0**-4)
    columns = ["identity", "what", "breaker", "estimate", "shown"]
    tip = [alt.Tooltip(f"{column}:{'Q' if column == 'estimate' else 'N'}") for column in columns[:-1]]
    title = "difference of the two sides, in eps"
    spec: Mapping[str, Any] = (
        alt.Chart(alt.Data(values=records(chosen, columns)))
        .mark_point(style="measured")
        .encode(
            x=alt.X("shown:Q", title="eps of the output (float64)").scale(type="log").axis(format="~e", tickCount=5),
            y=alt.Y("identity:N", title=None, sort=None),
            color=alt.Color("what:N", title=None),
            tooltip=tip,
        )
        .properties(
            title=title,
            description=f"{title}: largest where it must hold, smallest where it must break",
            height=16 * chosen.identity.nunique(),
        )
        .to_dict()
    )
    return spec


def _leak_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    chosen = frame[frame.quantity == "leak"].copy()
    if chosen.empty:
        return None
    chosen["scale"], chosen["code"] = chosen.logit_scale.astype(float), chosen.case
    columns = ["scale", "code", "estimate", "theory"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'code' else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=records(chosen.sort_values("scale"), columns))).encode(
        x=alt.X("scale:Q", title="factor of the position code's dot products"),
        color=alt.Color("code:N", title=None),
    )

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="weight beside the tap").scale(type="log").axis(format="~e", tickCount=5)

    title = "attention as a convolution: what leaks"
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_line(style="theory").encode(y=y("theory")),
            base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
        )
        .properties(title=title, description=f"{title}, against the scale of the logits, measured and in theory")
        .to_dict()
    )
    return spec


def _spread_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    chosen = frame[(frame.quantity == "output_sd") & (frame.n > 0)].copy()
    if chosen.empty:
        return None
    chosen["keys"] = chosen.n_keys.astype(int)
    columns = ["keys", "estimate", "ci_low", "ci_high", "theory"]
    tip = [alt.Tooltip(f"{column}:Q") for column in columns]
    base = alt.Chart(alt.Data(values=records(chosen.sort_values("keys"), columns))).encode(
        x=alt.X("keys:Q", title="keys").scale(type="log").axis(tickCount=4)
    )

    def y(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title="spread of an output").scale(domainMin=0)

    title = "values of spread 1, after one attention"
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_line(style="theory").encode(y=y("theory")),
            base.mark_rule(style="interval").encode(y=y("ci_low"), y2="ci_high:Q"),
            base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
        )
        .properties(title=title, description=f"{title}, against the number of keys")
        .to_dict()
    )
    return spec
