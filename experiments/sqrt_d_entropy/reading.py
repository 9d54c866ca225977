"""sqrt_d_entropy, read: what follows from the rows, the answer and the chart. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import records
from attnrepro.results.rows import text
from attnrepro.tables.sqrt_d_entropy.table import AXES, JUDGED, NUMBERS

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import numpy as np
    import pandas as pd

    from attnrepro.results.published import PublishedLine
    from attnrepro.results.verdicts import Protocol

__all__ = ["AXES", "HIDDEN", "answer", "charts", "derive", "monte_carlo", "protocols"]

# Rows that other rows are made from, not shown in the table.
HIDDEN = ("design_", "correlation_sq_")


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Rows that are judged against theory over the whole table, and the squared norm of their correlations.

    A row with theory belongs to them whether it was measured or not: a measurement that got lost must be missed.
    """
    pairs = set(JUDGED.values())
    chosen = [(row.quantity, row.statistic) in pairs and _enough(row) for row in frame.itertuples()]
    correlations = frame[frame.quantity.str.startswith("correlation_sq_")].estimate.sum()
    # The check of initialisers has two independent quantities and no correlation row.
    return frame[chosen], float(correlations) + float((frame.quantity == "init_output_variance").sum())


def _enough(row: Any) -> bool:
    if math.isnan(row.theory) or row.quantity != "gap_over_8":
        return not math.isnan(row.theory)
    return bool(row.n * row.theory >= 20 and row.n * (1 - row.theory) >= 20)


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Statistics of several cells together: slopes over d, ranges over d, plausibility of the published table."""
    import numpy as np

    from attnrepro.theory.softmax_logits import entropy_sqrt_d_limit

    own = frame[(frame["keys"] == "own") & (frame.n_keys == "16") & (frame.head_dim != "inf")].copy()
    own["d"] = own.head_dim.astype(float)
    result: list[dict[str, object]] = []
    for quantity, scaled, name, sign in (
        ("entropy", "false", "entropy_fall_rate", -1),
        ("logit_sd", "false", "logit_sd_growth_rate", 1),
    ):
        rows = _select(own, quantity, scaled).sort_values("d")
        if len(rows) >= 3:
            slope, se = _power(rows.d, rows.estimate, rows.sd / np.sqrt(rows.n))
            exact = np.polyfit(np.log(rows.d), np.log(rows.theory), 1)[0] if quantity == "logit_sd" else math.nan
            n = int(rows.n.min())
            result.append(_line(name, "slope", sign * slope, n, se * math.sqrt(n), theory=sign * exact))
    rows = _select(own, "logit_sd", "false").sort_values("d")
    if len(rows) >= 2:
        low, high = rows.iloc[0], rows.iloc[-1]
        # The variance of the logits is d: how far it moved says how many decades of d were covered.
        value = 2 * math.log10(high.estimate / low.estimate)
        spread = 2 / math.log(10) * math.sqrt(sum((r.sd / r.estimate) ** 2 / r.n for r in (low, high)))
        n = int(low.n)
        exact = math.log10(high.d / low.d)
        result.append(_line("head_dim_decades", "value", value, n, spread * math.sqrt(n), theory=exact))
    for quantity in ("logit_sd", "entropy", "max_weight"):
        rows = _select(own, quantity, "true")
        if len(rows) >= 2:
            for which, index in (("smallest", rows.theory.idxmin()), ("largest", rows.theory.idxmax())):
                row = rows.loc[index]
                line = _line(f"{quantity}_{which}_over_d", "value", row.estimate, int(row.n), row.sd, theory=row.theory)
                result.append({**line, "scaled": "true"})
        result += _printed_ends(quantity, published)
    for d in sorted(own.d.unique()):
        pair = [_select(own[own.d == d], "logit_sd", flag) for flag in ("false", "true")]
        if all(len(part) == 1 for part in pair):
            ratio = float(pair[0].estimate.iloc[0] / pair[1].estimate.iloc[0] / math.sqrt(d))
            line = _line("logit_sd_ratio_over_sqrt_d", "exact", ratio, 1, math.nan, theory=1.0)
            result.append({**line, "head_dim": text(d), "n_keys": "16", "keys": "own"})
    limit = _line("entropy_sqrt_d", "mean", math.nan, 0, math.nan, theory=entropy_sqrt_d_limit(16))
    result.append({**limit, "head_dim": "inf", "n_keys": "16", "keys": "own", "scaled": "false"})
    return result + _joint(frame, published)


def _power(x: pd.Series, y: pd.Series, se: pd.Series) -> tuple[float, float]:
    """Exponent of y against x and its standard error, each point weighted by its own Monte-Carlo error."""
    import numpy as np

    log_x, log_y, weight = np.log(x), np.log(y), (y / se) ** 2
    centred = log_x - np.average(log_x, weights=weight)
    information = float((weight * centred**2).sum())
    return float((weight * centred * log_y).sum() / information), 1 / math.sqrt(information)


def _printed_ends(quantity: str, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """The ends of a printed scaled column, to hold against the range that the text around it names."""
    column = [
        line.published
        for line in published
        if line.quantity == quantity and line.published is not None and line.klass == "sampling"
        if dict(line.axes).get("scaled") == "true"
    ]
    ends = {"smallest": min(column, default=None), "largest": max(column, default=None)}
    return [
        {**_line(f"printed_{quantity}_{which}", "exact", end, 1, math.nan, theory=end), "scaled": "true"}
        for which, end in ends.items()
        if end is not None
    ]


def _select(frame: pd.DataFrame, quantity: str, scaled: str) -> pd.DataFrame:
    return frame[(frame.quantity == quantity) & (frame.scaled == scaled) & (frame.statistic != "median")]


def _line(
    quantity: str, statistic: str, value: float, n: int, sd: float, *, theory: float = math.nan
) -> dict[str, object]:
    return {
        "quantity": quantity,
        "statistic": statistic,
        "estimate": value,
        "n": n,
        "sd": sd,
        "theory": theory,
    }


def _printed(published: Sequence[PublishedLine]) -> dict[float, list[float]]:
    """The published five independent numbers for each d, in the order of ``NUMBERS``."""
    found: dict[float, dict[str, float]] = {}
    for line in published:
        axes = dict(line.axes)
        d, scaled = axes.get("head_dim", ""), axes.get("scaled", "")
        if line.klass == "sampling" and line.quantity in ("logit_sd", "entropy", "max_weight") and d and scaled:
            name = f"{line.quantity}_{'scaled' if scaled == 'true' else 'unscaled'}"
            if line.published is not None and name in NUMBERS:
                found.setdefault(float(d), {})[name] = line.published
    return {d: [numbers[n] for n in NUMBERS] for d, numbers in found.items() if len(numbers) == len(NUMBERS)}


def _joint(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """p of the whole published table under each design: T² summed over the independent d.

    Under a design each d gives T² = (x - m)' C^-1 (x - m) with the mean and covariance of that design's samples.
    The sum's distribution is a gamma with the mean and variance that the samples of T² themselves had (Satterthwaite
    1946), because entropies of a few dozen saturated queries are far from normal.
    """
    import numpy as np
    from scipy import stats as distributions

    printed = _printed(published)
    hidden = frame[frame.quantity.str.startswith("design_") & (frame.n_keys == "16")]
    result = []
    largest = 0.0
    for (keys, design), part in hidden.groupby(["keys", "design"], sort=False):
        t2, mean_t2, variance, n = 0.0, 0.0, 0.0, 0
        for d, numbers in printed.items():
            cell = part[part.head_dim == text(d)].set_index("quantity").estimate
            if cell.empty:
                break
            mean = np.array([cell[f"design_{name}"] for name in NUMBERS])
            covariance = _covariance(part[part.head_dim == text(d)])
            x = np.array(numbers) - mean
            t2 += float(x @ np.linalg.solve(covariance, x))
            mean_t2 += len(NUMBERS)
            variance += cell["design_t2_variance"]
            n = int(part[part.head_dim == text(d)].n.min())
        else:
            p = float(distributions.gamma.sf(t2, mean_t2**2 / variance, scale=variance / mean_t2))
            largest = max(largest, p)
            result.append({**_line("published_table_p", "value", p, n, math.nan), "keys": keys, "design": design})
    if result:
        result.append(_line("published_table_largest_p", "value", largest, len(result), math.nan))
    return result


def _covariance(cell: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.float64]]:
    import numpy as np

    values = cell.set_index("quantity")
    matrix = np.diag([float(values.sd[f"design_{name}"]) ** 2 for name in NUMBERS])
    for i, name in enumerate(NUMBERS):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = values.estimate[f"design_cov_{name}_{NUMBERS[j]}"]
    return matrix


def protocols(line: PublishedLine, frame: pd.DataFrame) -> list[Protocol]:
    """The designs under which a printed number of the table may have been made."""
    from attnrepro.results.verdicts import Protocol

    if line.quantity == "published_table_largest_p":
        value = frame.loc[frame.quantity == line.quantity, "estimate"]
        return [Protocol("the best design", float(value.iloc[0]), 0.0)] if len(value) else []
    axes = dict(line.axes)
    d, scaled = axes.get("head_dim", ""), axes.get("scaled", "")
    column, factor = f"{line.quantity}_{'scaled' if scaled == 'true' else 'unscaled'}", 1.0
    if column == "logit_sd_scaled":
        column, factor = "logit_sd_unscaled", 1 / math.sqrt(float(d))
    chosen = frame[(frame.quantity == f"design_{column}") & (frame.head_dim == d) & (frame.n_keys == axes["n_keys"])]
    return [
        Protocol(
            f"{r.design} queries, {r.keys} keys",
            r.estimate * factor,
            r.sd * factor,
            number=f"{column} at d={d}",
        )
        for r in chosen.itertuples()
    ]


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in one or two sentences."""
    own = frame[(frame["keys"] == "own") & (frame.n_keys == "16") & (frame.statistic == "mean")]

    def entropy_at(d: str, scaled: str) -> str:
        row = own[(own.quantity == "entropy") & (own.head_dim == d) & (own.scaled == scaled)]
        if row.empty:
            return "not measured"
        r = row.iloc[0]
        return f"{r.estimate:.4f} nats [{r.ci_low:.4f}, {r.ci_high:.4f}]"

    finite = sorted({float(d) for d in own.head_dim if d not in ("", "inf")})
    if not finite:
        return ""
    low, high = text(finite[0]), text(finite[-1])
    parts = [
        f"From d = {low} to d = {high} the entropy of attention over 16 keys falls from {entropy_at(low, 'false')} to"
        f" {entropy_at(high, 'false')} without the scale, and stays between {entropy_at(low, 'true')} and"
        f" {entropy_at(high, 'true')} with it."
    ]
    grads = frame[(frame.quantity == "grad_query_norm") & (frame.head_dim == high) & (frame.n_keys == "16")]
    rms = {r.scaled: r.estimate for r in grads[grads.statistic == "rms"].itertuples()}
    trace = frame[(frame.quantity == "jacobian_trace") & (frame.head_dim == high) & (frame.scaled == "false")]
    median = trace[(trace.statistic == "median") & (trace.n_keys == "16")].estimate
    if len(rms) == 2 and len(median):
        parts.append(
            f"Without it the typical gradient vanishes (median Jacobian trace {median.iloc[0]:.1g} at d = {high}), but"
            f" the root mean square gradient of the query is {rms['false'] / rms['true']:.1f} times that with it."
        )
    return " ".join(parts + _designs_in_words(frame))


def _designs_in_words(frame: pd.DataFrame) -> list[str]:
    """Which sizes of sample the published table, taken as one run, allows and which it rules out."""
    rows = frame[frame.quantity == "published_table_p"]
    words = {"own": "queries with keys of their own", "shared": "queries on one shared key set"}

    def named(chosen: pd.DataFrame) -> str:
        parts = [
            f"{', '.join(str(r.design) for r in part.itertuples())} {words[str(keys)]}"
            for keys, part in chosen.groupby("keys", sort=False)
        ]
        return " and for ".join(parts) or "none"

    if rows.empty:
        return []
    allowed, ruled_out = named(rows[rows.estimate > 0.05]), named(rows[rows.estimate < 0.001])
    return [
        f"As one run the published table is plausible (p > 0.05) for {allowed}; ruled out (p < 0.001): {ruled_out}."
    ]


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """What the table prints, and the gradient, against d: theory lines, measured intervals, published crosses."""
    import altair as alt

    titles = {
        ("entropy", "mean"): "attention entropy (nats)",
        ("max_weight", "mean"): "largest weight",
        ("logit_sd", "sd"): "logit sd",
        ("grad_query_norm", "rms"): "root mean square gradient of the query",
    }
    rows = frame[(frame["keys"] == "own") & (frame.n_keys == "16") & ~frame.head_dim.isin(["", "inf"])].copy()
    rows["d"] = rows.head_dim.astype(float)
    rows["scale"] = rows.scaled.map({"true": "with 1/√d", "false": "without"})
    columns = ["d", "scale", "estimate", "ci_low", "ci_high", "theory", "published"]
    x = alt.X("d:Q", title="head dimension d").scale(type="log", base=2).axis(values=sorted(rows.d.unique()))
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'scale' else 'Q'}") for column in columns]
    panels = []
    for (quantity, statistic), title in titles.items():
        data = rows[(rows.quantity == quantity) & (rows.statistic == statistic)]
        base = alt.Chart(alt.Data(values=records(data, columns))).encode(x=x, color=alt.Color("scale:N", title=None))
        powers = quantity in ("logit_sd", "grad_query_norm")
        scale = alt.Scale(type="log", nice=False, padding=8) if powers else alt.Scale(zero=True)

        def y(field: str, title: str = title, scale: alt.Scale = scale) -> alt.Y:
            return alt.Y(f"{field}:Q", title=title, scale=scale)

        layers = [
            base.mark_line(style="theory").encode(y=y("theory")),
            base.mark_rule(style="interval").encode(y=y("ci_low"), y2="ci_high:Q"),
            base.mark_point(style="measured").encode(y=y("estimate"), tooltip=tip),
        ]
        if data.published.notna().any():
            layers.append(base.mark_point(style="published").encode(y=y("published"), tooltip=tip))
        panels.append(alt.layer(*layers).properties(title=title, description=f"{title} against d").to_dict())
    return panels
