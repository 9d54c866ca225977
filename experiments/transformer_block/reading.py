"""transformer_block, read: shares, differences by seed, powers of depth, controls, the answer and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.derived import over_seeds
from attnrepro.tables.transformer_block.table import AXES

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive", "monte_carlo", "roundoff"]

# Rows that other rows are made from, not shown in the table.
HIDDEN = ("seed_",)

# What breaks an identity does so by so many eps.
BROKEN_EPS = 1e6
# Powers of a distance and of depth are met to this.
POWER_MARGIN = 0.1


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Sizes of tokens after the first block, by order; later ones contain it.

    Both orders have the same weights: their correlation is counted as 1.
    """
    chosen = frame[(frame.quantity == "token_square") & (frame.n > 1) & (frame.layer == "1")]
    return chosen, float(len(chosen) ** 2)


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors of this table are in units of eps times their scale already."""
    return 1.0, 1.0


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Shares of seeds, what orders and warm-ups gain, evenness of gradients, and gaps between arms."""
    return [*_shares(frame), *_rates_reached(frame), *_gradients(frame), *_gaps(frame)]


def _line(at: Mapping[str, object], quantity: str, statistic: str, values: Sequence[float]) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | dict(at)
    line |= {"quantity": quantity, "statistic": statistic, "n_failed": 0, "theory": math.nan}
    return line | over_seeds(values)


def _shares(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Share of seeds that reached the target, got stuck or diverged, with exact binomial intervals."""
    from attnrepro import stats

    names = ("seed_reached", "seed_stuck", "seed_diverged")
    for r in frame[frame.quantity.isin(names)].to_dict("records"):
        share = stats.share_interval(round(sum(r["seeds"])), r["n"])
        line = {axis: r[axis] for axis in AXES} | {"quantity": r["quantity"].removeprefix("seed_"), "n": r["n"]}
        line |= {"statistic": "share", "sd": math.nan, "theory": math.nan, "estimate": share.value}
        yield {**line, "ci_low": share.low, "ci_high": share.high}


def _rates_reached(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Share of the learning rates at which each seed arrives, and its differences."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for r in frame[frame.quantity == "seed_reached"].to_dict("records"):
        place = found.setdefault((r["order"], r["depth"], r["warm_up"]), {})
        for seed, value in r["by_seed"].items():
            place.setdefault(seed, []).append(value)
    shares = {at: {seed: sum(v) / len(v) for seed, v in by_seed.items()} for at, by_seed in found.items()}
    for at, by_seed in shares.items():
        yield _line(
            dict(zip(("order", "depth", "warm_up"), at, strict=True)), "reached_rates", "mean", [*by_seed.values()]
        )
    for (order, depth, warm_up), by_seed in shares.items():
        for first, second in (("pre", "post"), ("pre", "none"), ("post", "none"), ("pre_qk_norm", "pre")):
            if order == first and (second, depth, warm_up) in shares:
                name = {"order": f"{first} - {second}", "depth": depth, "warm_up": warm_up}
                yield _difference(name, by_seed, shares[second, depth, warm_up])
        if warm_up != "0" and (order, depth, "0") in shares:
            name = {"order": order, "depth": depth, "warm_up": f"{warm_up} - 0"}
            yield _difference(name, by_seed, shares[order, depth, "0"])


def _difference(at: Mapping[str, object], first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, object]:
    return _line(at, "reached_gain", "paired_difference", [first[s] - second[s] for s in first if s in second])


def _gradients(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    from attnrepro import stats
    from attnrepro.theory.layer_norm_order import last_gradient

    norms = frame[(frame.quantity == "gradient_norm") & (frame.n > 0) & (frame.depth == frame.layer)]
    for (order, arm), rows in norms.groupby(["order", "arm"], sort=False):
        by_seed: dict[str, list[tuple[int, float]]] = {}
        for r in rows.to_dict("records"):
            for seed, value in r["by_seed"].items():
                by_seed.setdefault(seed, []).append((int(r["depth"]), value))
        if len(rows) > 2:
            slopes = [stats.loglog_slope(*zip(*points, strict=True)).value for points in by_seed.values()]
            depths = sorted(int(d) for d in rows.depth)
            line = _line({"order": order, "arm": arm}, "last_gradient_exponent", "slope", slopes)
            if arm:
                line["theory"] = stats.loglog_slope(depths, [last_gradient(str(order), d) for d in depths]).value
            yield line
    drops = frame[(frame.quantity == "gradient_drop_log10") & (frame.arm == "") & (frame.n > 0)].to_dict("records")
    by_place = {(r["order"], r["depth"]): r["by_seed"] for r in drops}
    for (order, depth), post in by_place.items():
        pre = by_place.get(("pre", depth), {})
        if order == "post" and depth != "1" and pre:
            values = [abs(post[s]) - abs(pre[s]) for s in post if s in pre]
            yield _line({"order": "pre - post", "depth": depth}, "gradient_evenness", "paired_difference", values)


def _gaps(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    logs = frame[(frame.quantity == "log_residual") & (frame.n > 0)].to_dict("records")
    base = {r["layer"]: r["by_seed"] for r in logs if r["arm"] == "attention"}
    for r in logs:
        if r["arm"] != "attention" and r["layer"] in base:
            values = [r["by_seed"][s] - base[r["layer"]][s] for s in r["by_seed"] if s in base[r["layer"]]]
            at = {"arm": f"{r['arm']} - attention", "layer": r["layer"]}
            yield _line(at, "residual_gap", "paired_difference", values)


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_exact_controls(frame), *_start_controls(frame), *_trained_controls(frame)]


def _exact_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.quantity == "order_error_eps"].itertuples():
        if not r.estimate >= BROKEN_EPS:
            yield f"{r.module} of order {r.order} is torch's block of the other order, but for {r.estimate:.3g} eps"
    means = frame[(frame.quantity == "mean_error_eps") & (frame.order == "pre")]
    for r in means.itertuples():
        if not r.estimate >= BROKEN_EPS:
            yield f"tokens leave a block of order pre with mean 0, but for {r.estimate:.3g} eps"


def _start_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.quantity == "collapse_power"].itertuples():
        if r.n and not abs(r.estimate - r.theory) <= POWER_MARGIN:
            yield f"{r.arm} leaves the power {r.estimate:.3f} of a small distance, theory {r.theory:g}"
    for r in frame[(frame.quantity == "last_gradient_exponent") & frame.theory.notna()].itertuples():
        if not abs(r.estimate - r.theory) <= POWER_MARGIN:
            yield f"the last gradient goes as depth^{r.estimate:.3f} in order {r.order}, closed form {r.theory:.3f}"
    for r in frame[(frame.quantity == "residual") & (frame.layer == "0")].itertuples():
        if not r.estimate >= 1 / 2:
            yield f"tokens of {r.arm} are nearly equal before the first layer: {r.estimate:.3g}"


def _trained_controls(frame: pd.DataFrame) -> Iterator[str]:
    rates = frame[frame.quantity == "reached_rates"]
    if rates.empty:
        return
    depths = sorted(set(rates.depth), key=int)
    for r in rates.itertuples():
        if r.order == "none" and r.depth == depths[-1] and r.estimate > 0:
            yield f"{r.estimate:.2f} of the rates train {r.depth} blocks without residual connections"
        if r.order == "pre" and r.depth == depths[0] and not r.estimate >= 1 / 2:
            yield f"only {r.estimate:.2f} of the rates train {r.depth} blocks of order pre: too little training"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    parts = (_told, _trained_in_words, _gradients_in_words, _rank_in_words)
    return " ".join(sentence for part in parts for sentence in part(frame))


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """From which depth on one order is more stable than the other, and what no residual connections do."""
    rates = frame[(frame.quantity == "reached_rates") & (frame.warm_up == "0") & (frame.n > 0)]
    found = {(r.order, r.depth): r.seeds for r in rates.itertuples()}
    depths = sorted({depth for _, depth in found}, key=int)
    parts = []
    if both := [depth for depth in depths if ("pre", depth) in found and ("post", depth) in found]:
        gains = frame[(frame.quantity == "reached_gain") & (frame.order == "pre - post") & (frame.warm_up == "0")]
        better = [d for d in both if (gains[gains.depth == d].ci_low > 0).any()]
        worse = [d for d in both if (gains[gains.depth == d].ci_high < 0).any()]
        at = [*better, *worse, both[-1]][0]
        parts.append(
            f"{_stable(both, better, worse)}: at {at} blocks, without warm-up, {_arrive(found['pre', at])} arrive at"
            f" every learning rate with LayerNorm before, {_arrive(found['post', at])} with it after"
        )
    if bare := [depth for depth in depths if ("none", depth) in found]:
        values = found["none", bare[-1]]
        share = sum(values) / len(values)
        words = "does not train" if share == 0 else f"trains at {share:.0%} of the rates"
        parts.append(f"without residual connections attention {words} at {bare[-1]} blocks")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _stable(depths: Sequence[str], better: Sequence[str], worse: Sequence[str]) -> str:
    """Where LayerNorm before is the more stable."""
    if better and worse:
        return f"yes at {', '.join(better)} blocks, no at {', '.join(worse)}"
    if worse:
        return f"no, it is the less stable at {', '.join(worse)} blocks"
    if not better:
        return "no difference is seen"
    if list(better) == list(depths[depths.index(better[0]) :]):
        return f"yes, from {better[0]} blocks on"
    return f"yes at {', '.join(better)} blocks"


def _arrive(values: Sequence[float]) -> str:
    """How many seeds arrive at every learning rate, with the interval of a share."""
    from attnrepro.stats import share_interval

    all_of_them = sum(value == 1 for value in values)
    share = share_interval(all_of_them, len(values))
    return f"{all_of_them} of {len(values)} seeds [{share.low:.2f}, {share.high:.2f}]"


def _ends(r: Any, form: str = ".2g") -> str:
    return f"[{r.ci_low:{form}}, {r.ci_high:{form}}]"


def _share(r: Any) -> str:
    """A mean of shares; its t interval only where that lies between 0 and 1 and says anything."""
    ends = f" {_ends(r)}" if 0 <= r.ci_low < r.ci_high <= 1 else ""
    return f"{r.estimate:.2f}{ends}"


def _trained_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rates = {(r.order, r.depth, r.warm_up): r for r in frame[frame.quantity == "reached_rates"].itertuples()}
    depths = sorted({depth for _, depth, _ in rates}, key=int)
    for warm_up in sorted({w for _, _, w in rates}, key=int):
        parts = []
        for depth in depths:
            there = [
                (order, rates[order, depth, warm_up])
                for order in ("post", "pre", "pre_qk_norm", "none")
                if (order, depth, warm_up) in rates
            ]
            parts.append(f"{depth} blocks " + ", ".join(f"{order} {_share(r)}" for order, r in there))
        if parts:
            words = "without warm-up" if warm_up == "0" else f"with {warm_up} updates of warm-up"
            yield f"Share of the learning rates that lead to the target {words}: {'; '.join(parts)}."
    lost = frame[frame.quantity.isin(["stuck", "diverged"])]
    if len(lost):
        parts = []
        for order, rows in lost.groupby("order", sort=False):
            counts = {
                name: round((part.estimate * part.n).sum()) for name, part in rows.groupby("quantity", sort=False)
            }
            runs = int(rows[rows.quantity == "stuck"].n.sum())
            parts.append(f"{order} {counts.get('stuck', 0)} and {counts.get('diverged', 0)} of {runs}")
        yield f"Runs that ended stuck and that diverged, over all depths, rates and warm-ups: {', '.join(parts)}."


def _gradients_in_words(frame: pd.DataFrame) -> Iterator[str]:
    drops = frame[(frame.quantity == "gradient_drop_log10") & (frame.arm == "") & (frame.n > 1)]
    if drops.empty:
        return
    deepest = max(drops.depth, key=int)
    there = drops[drops.depth == deepest].itertuples()
    parts = [f"{10**r.estimate:.2g} [{10**r.ci_low:.2g}, {10**r.ci_high:.2g}] in order {r.order}" for r in there]
    yield f"At the start the gradient of the first of {deepest} layers is that of the last times {', '.join(parts)}."
    slopes = frame[(frame.quantity == "last_gradient_exponent") & (frame.n > 1)].itertuples()
    parts = [f"{r.estimate:.2f} {_ends(r)} in order {r.order}" for r in slopes if not r.arm]
    if parts:
        yield f"The last layer's goes with depth to the power {', '.join(parts)}."


def _rank_in_words(frame: pd.DataFrame) -> Iterator[str]:
    logs = frame[(frame.quantity == "log_residual") & (frame.n > 1)]
    if logs.empty:
        return
    last = max(logs.layer, key=int)
    found = {(r.arm, r.layer): r for r in logs.itertuples()}
    bare = [found["attention", str(layer)] for layer in (1, 2, 3, 4) if ("attention", str(layer)) in found]
    told = ", ".join(f"{10**r.estimate:.1g}" for r in bare)
    rest = ", ".join(
        f"{10 ** found[arm, last].estimate:.2g} {arm.replace('_', ' with ')}"
        for arm in ("attention_mlp", "attention_norm", "skip", "post", "pre")
        if (arm, last) in found
    )
    yield (
        f"Attention alone leaves tokens a distance of {told} from being all equal after 1, 2, 3 and 4 layers; after"
        f" {last} layers: {rest}."
    )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Rates that train against depth, gradients by layer, and distance from equal tokens by layer."""
    return [chart for chart in (*_rate_charts(frame), _gradient_chart(frame), _rank_chart(frame)) if chart]


def _rate_charts(frame: pd.DataFrame) -> Iterator[Mapping[str, Any] | None]:
    from attnrepro.results.charts import curves

    rates = frame[frame.quantity == "reached_rates"]
    for warm_up in sorted(set(rates.warm_up), key=int):
        words = "without warm-up" if warm_up == "0" else f"{warm_up} updates of warm-up"
        rows = rates[rates.warm_up == warm_up].copy()
        # A share has no values beyond 0 and 1.
        rows["ci_low"], rows["ci_high"] = rows.ci_low.clip(0, 1), rows.ci_high.clip(0, 1)
        title = f"learning rates that train, {words}"
        yield curves(rows, "depth", "order", title=title, x_title="blocks", y_title="share of rates")


def _gradient_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "gradient_norm") & (frame.arm == "") & (frame.n > 0)]
    if rows.empty:
        return None
    deepest = max(rows.depth, key=int)
    title = f"gradient of the second MLP weight, {deepest} layers"
    return curves(rows[rows.depth == deepest], "layer", "order", title=title, x_title="layer", y_title="norm")


def _rank_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "log_residual") & (frame.n > 0)].copy()
    rows["arm"] = rows.arm.str.replace("_", " + ")
    title = "distance from equal tokens"
    return curves(rows, "layer", "arm", title=title, x_title="layer", y_title="log10 of the distance")
