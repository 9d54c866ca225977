"""efficient_attention, read: ratios to chance, differences by seed, controls, answer and charts. Makes no row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.config import load_yaml
from attnrepro.results.derived import over_seeds
from attnrepro.tables.efficient_attention.table import AXES, NAME, PARTS
from attnrepro.theory.efficient_attention import KINDS

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive", "monte_carlo"]

BASE = "full"
CHEAPER = tuple(kind for kind in KINDS if kind != BASE)
# By so much a weight is more than that of chance, and a share of right answers less than that of full attention.
LOCAL, LOST = 0.1, 0.1
WORDS = {
    "full": "full attention",
    "linear": "linear",
    "low_rank": "low rank",
    "window": "window",
    "strided": "strided",
    "patches": "patches",
}
# An equality holds to so many eps; what breaks it does so by this share of the largest output.
HOLDS_EPS = 32.0
BROKEN = 1e-2
# Share of parameters by which encoders may differ: a width is a multiple of the heads, and the next one is further off.
EQUAL = 0.05
# Mean accuracy that full attention has to reach on both parts, and a window on what is near.
ENOUGH = 0.9
# Standard errors by which a window may lie off chance on what it does not reach.
CHANCE_SE = 5.0
# Standard errors, over the tuning seeds, by which the rate that is used may lie below the best on validation data.
RATE_SE = 2.0


def monte_carlo(frame: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Random weights against chance; kinds have draws of their own."""
    chosen = frame[(frame.quantity == "random_locality") & (frame.n > 0)]
    return chosen, float(len(chosen))


# --- what follows from the rows ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Ratios to chance, leads of full attention, gains of locality, preferences for what is near, shares of seeds."""
    return [*_ratios(frame), *_costs(frame), *_differences(frame), *_reached(frame)]


def _line(quantity: str, statistic: str, axes: Mapping[str, Any], **more: object) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | {"quantity": quantity, "statistic": statistic}
    return line | {"theory": math.nan, "sd": math.nan, "n_failed": 0, "estimate": math.nan, "n": 0} | {**axes, **more}


def _measured(frame: pd.DataFrame, quantity: str, *axes: str, statistic: str) -> dict[Any, Mapping[str, Any]]:
    rows = frame[(frame.quantity == quantity) & (frame.statistic == statistic)].to_dict("records")
    return {tuple(r[axis] for axis in axes): r for r in rows if r["n"] or r["n_failed"]}


def _ratios(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Locality of weights that know nothing, over that of full attention, whose equal weights are chance."""
    equal = _measured(frame, "uniform_locality", "network", statistic="exact")
    drawn = _measured(frame, "random_locality", "network", statistic="mean")
    if (BASE,) not in equal:
        return
    chance = equal[BASE,]["estimate"]
    for (network,), r in equal.items():
        if network != BASE:
            theory = r["theory"] / equal[BASE,]["theory"]
            yield _line(
                "chance_ratio", "exact", {"network": network}, estimate=r["estimate"] / chance, n=1, theory=theory
            )
    for (network,), r in drawn.items():
        if network not in {name for (name,) in equal}:
            scaled = {name: r[name] / chance for name in ("estimate", "ci_low", "ci_high", "sd")}
            yield _line("chance_ratio", "mean", {"network": network}, **scaled, n=r["n"], theory=r["theory"] / chance)


def _costs(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    rows = _measured(frame, "flops", "network", "length", statistic="exact")
    for (network, length), r in rows.items():
        if network != BASE and (BASE, length) in rows:
            base = rows[BASE, length]
            axes = {"network": network, "length": length}
            theory = r["theory"] / base["theory"]
            yield _line("attention_share", "exact", axes, estimate=r["estimate"] / base["estimate"], n=1, theory=theory)


def _by_seed(rows: Mapping[Any, Mapping[str, Any]], *at: str) -> Mapping[str, float]:
    found: Mapping[str, float] = rows[at]["by_seed"] if at in rows else {}
    return found


def _differences(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    right = _measured(frame, "accuracy", "network", "part", statistic="mean")
    near = _measured(frame, "locality", "network", "part", "phase", statistic="mean")

    def paired(quantity: str, axes: Mapping[str, Any], values: Mapping[str, Mapping[str, float]], of: Any) -> Any:
        seeds = [seed for seed in next(iter(values.values())) if all(seed in each for each in values.values())]
        total = max((len(each) for each in values.values()), default=0)
        line = _line(quantity, "paired_difference", axes, n_failed=total - len(seeds))
        return line | over_seeds([of({name: each[seed] for name, each in values.items()}) for seed in seeds])

    for network in CHEAPER:
        for part in PARTS:
            values = {"base": _by_seed(right, BASE, part), "own": _by_seed(right, network, part)}
            if all(values.values()):
                axes = {"network": network, "part": part}
                yield paired("accuracy_lost", axes, values, lambda v: v["base"] - v["own"])
        values = {f"{k} {part}": _by_seed(right, k, part) for k in (BASE, network) for part in PARTS}
        if all(values.values()):

            def preference(v: Mapping[str, float], own: str = network) -> float:
                return (v[f"{own} near"] - v[f"{own} far"]) - (v[f"{BASE} near"] - v[f"{BASE} far"])

            yield paired("near_preference", {"network": network}, values, preference)
        values = {f"{k} {part}": _by_seed(near, k, part, "end") for k in (BASE, network) for part in PARTS}
        if all(values.values()):

            def gain(v: Mapping[str, float], own: str = network) -> float:
                return sum(v[f"{own} {part}"] - v[f"{BASE} {part}"] for part in PARTS) / len(PARTS)

            yield paired("locality_gain", {"network": network}, values, gain)


def _reached(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Share of seeds that learned a part; one that diverged did not."""
    from attnrepro.stats import share_interval

    for (network, part), r in _measured(frame, "accuracy", "network", "part", statistic="mean").items():
        total = r["n"] + r["n_failed"]
        share = share_interval(sum(value >= ENOUGH for value in r["by_seed"].values()), total)
        axes = {"network": network, "part": part}
        ends = {"ci_low": share.low, "ci_high": share.high}
        yield _line("share_reached", "share", axes, estimate=share.value, n=total, **ends)


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_structure_controls(frame), *_training_controls(frame), *_rate_controls(frame)]


def _structure_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame.itertuples():
        if r.quantity == "permutation_error_eps" and not r.estimate <= HOLDS_EPS:
            yield f"{r.network} changes by {r.estimate:.3g} eps when its tokens are permuted: at most {HOLDS_EPS:g}"
        if r.quantity == "order_broken" and not r.estimate >= BROKEN:
            yield f"{r.network} changes by {r.estimate:.3g} only when its tokens are permuted: it knows their order"
        counted = r.quantity in ("uniform_locality", "parameters", "flops") and r.n and r.statistic == "exact"
        if counted and not abs(r.estimate - r.theory) <= 1e-12 * abs(r.theory):
            yield f"{r.quantity} of {r.network} is {r.estimate:g}, not {r.theory:g}"
    counts = _measured(frame, "parameters", "network", statistic="exact")
    base = counts[BASE,]["estimate"] if (BASE,) in counts else math.nan
    for (network,), r in counts.items():
        if abs(r["estimate"] / base - 1) > EQUAL:
            yield f"{network} has {r['estimate']:g} parameters and full attention {base:g}: more than {EQUAL:.0%} apart"


def _training_controls(frame: pd.DataFrame) -> Iterator[str]:
    right = _measured(frame, "accuracy", "network", "part", statistic="mean")
    for network, part in ((BASE, "near"), (BASE, "far"), ("window", "near")):
        r = right.get((network, part))
        if r is not None and not r["estimate"] >= ENOUGH:
            yield f"{network} answers {r['estimate']:.3f} of the {part} questions: below {ENOUGH}, too little training"
    r = right.get(("window", "far"))
    if r is not None and r["n"] > 1 and r["sd"] > 0:
        off = abs(r["estimate"] - r["theory"]) * math.sqrt(r["n"]) / r["sd"]
        if not off <= CHANCE_SE:
            yield f"a window answers {r['estimate']:.3f} of the far questions, which it cannot see: {r['theory']:.3f}"
    near = _measured(frame, "locality", "network", "part", "phase", statistic="mean")
    for (network, part, phase), r in near.items():
        if network == "window" and r["n"] and not abs(r["estimate"] - 1) <= 1e-6:
            yield f"locality of a window is {r['estimate']:.4f} ({part}, {phase}), not 1"


def _rate_controls(frame: pd.DataFrame) -> Iterator[str]:
    """The rate that is used is the best on validation data, as far as the tuning seeds tell, and no end of the grid."""
    grids: dict[str, dict[float, Mapping[str, float]]] = {}
    rows = _measured(frame, "validation_accuracy", "network", "learning_rate", statistic="mean")
    for (network, rate), r in rows.items():
        # A rate at which a seed diverged is none to choose.
        grids.setdefault(network, {})[float(rate)] = {} if r["n_failed"] else r["by_seed"]
    chosen = load_yaml(paths.conf_dir() / "experiment" / f"{NAME}.yaml")["params"]
    for network, grid in grids.items():
        used = float(chosen[f"{network}_rate"])
        if not grid.get(used):
            yield f"{network} uses learning rate {used:g}, which was not tried on validation data or diverged there"
            continue
        if used in (min(grid), max(grid)):
            yield f"{network} uses learning rate {used:g}, an end of the grid"
        tried = {rate: by_seed for rate, by_seed in grid.items() if by_seed}
        best = max(tried, key=lambda rate: sum(tried[rate].values()))
        gains = [tried[best][seed] - right for seed, right in tried[used].items()]
        gain = over_seeds(gains)
        if not gain["estimate"] <= RATE_SE * gain["sd"] / math.sqrt(len(gains)):  # type: ignore[operator]
            yield f"{network} uses learning rate {used:g}, the best on validation data is {best:g}"


# --- in words ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_ratios_in_words(frame), *_trained_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Who brings locality back by definition, and what each loses against full attention."""
    rows = {r.network: r for r in frame[frame.quantity == "chance_ratio"].itertuples()}
    names = [name for name in ("patches", "window", "strided", "linear", "low_rank") if name in rows]
    local = {True: [], False: []}  # type: dict[bool, list[str]]
    for name in names:
        local[rows[name].estimate > 1 + LOCAL].append(f"{WORDS[name]} {rows[name].estimate:.2f}")
    parts = []
    if names:
        told = [f"{', '.join(local[True])} bring locality back"] if local[True] else []
        told += [f"{', '.join(local[False])} do not"] if local[False] else []
        parts.append(f"by definition {' and '.join(told)} (weight on what is near, times full attention's)")
    right = _measured(frame, "accuracy", "network", "part", statistic="mean")
    lost = []
    for kind in CHEAPER:
        both = {part: (right.get((kind, part)), right.get((BASE, part))) for part in PARTS}
        if all(own and full and own["n"] and full["n"] for own, full in both.values()):
            gone = [
                f"the {part} ({own['estimate']:.2f})"
                for part, (own, full) in both.items()
                if own and full and own["estimate"] < full["estimate"] - LOST
            ]
            lost.append(f"{WORDS[kind]} loses {' and '.join(gone) or 'nothing'}")
    if lost:
        seeds = max(r["n"] for r in right.values())
        parts.append(f"trained, {', '.join(lost)} (share right, {seeds} seeds)")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _ratios_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = {r.network: r for r in frame[frame.quantity == "chance_ratio"].itertuples()}
    names = [name for name in ("patches", "window", "strided", "linear", "low_rank") if name in rows]
    if not names:
        return
    parts = ", ".join(f"{WORDS[name]} {rows[name].estimate:.2f}" for name in names)
    known = f"as their definitions have it, no training: {parts}; 1 is no locality"
    yield f"Weight on what is near, over that of full attention, {known}."


def _trained_in_words(frame: pd.DataFrame) -> Iterator[str]:
    right = _measured(frame, "accuracy", "network", "part", statistic="mean")
    if not all((kind, part) in right and right[kind, part]["n"] > 1 for kind in KINDS for part in PARTS):
        return
    parts = [f"{WORDS[k]} {right[k, 'near']['estimate']:.2f} and {right[k, 'far']['estimate']:.2f}" for k in KINDS]
    yield f"Trained at parameters equal within {EQUAL:.0%}, right answers near and far: {', '.join(parts)}."
    for quantity, words in (
        ("near_preference", "Accuracy near less far, beyond that of full attention"),
        ("locality_gain", "Locality of the questions' weights less that of full attention"),
    ):
        rows = {r.network: r for r in frame[frame.quantity == quantity].itertuples()}
        if all(k in rows and rows[k].n > 1 for k in CHEAPER):
            found = [
                f"{WORDS[k]} {rows[k].estimate:+.2f} [{rows[k].ci_low:+.2f}, {rows[k].ci_high:+.2f}]" for k in CHEAPER
            ]
            yield f"{words}: {', '.join(found)}."
    yield "That a window leans to what is near is its definition and no finding."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Right answers and locality by network and part."""
    from attnrepro.results.charts import rates

    ends = frame[(frame.quantity == "accuracy") & (frame.n > 0)]
    weights = frame[(frame.quantity == "locality") & (frame.phase == "end") & (frame.n > 0)]
    tuning = frame[frame.quantity == "validation_accuracy"].copy()
    tuning["way"] = tuning.network.map(WORDS)
    drawn = (
        _chart(ends, "right answers", "accuracy after training"),
        _chart(weights, "locality", "where weights lie"),
        rates(tuning, "way", title="search for the rates"),
    )
    return [chart for chart in drawn if chart]


def _chart(rows: pd.DataFrame, x_title: str, title: str) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = rows[rows.part.isin(PARTS)].copy()
    if rows.empty:
        return None
    rows["way"] = rows.network.map(WORDS)
    columns = ["way", "part", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column in ('way', 'part') else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(
        y=alt.Y("way:N", title=None, sort=[WORDS[k] for k in KINDS]),
        yOffset=alt.YOffset("part:N", sort=list(PARTS)),
        color=alt.Color("part:N", sort=list(PARTS), legend=alt.Legend(title=None)),
    )
    x = alt.X("estimate:Q", title=x_title, scale=alt.Scale(domain=[0, 1]))
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_rule(clip=True, style="interval").encode(x=alt.X("ci_low:Q", title=x_title), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=title, description=f"{title}: {x_title} by network, questions near and far")
        .to_dict()
    )
    return spec
