"""recurrent_vs_attention, read: growth, differences by seed, controls, answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.derived import over_seeds
from attnrepro.tables.recurrent_vs_attention.table import AXES

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive"]

RECURRENT = ("rnn", "gru", "lstm")
BASE = "attention"
CONTROL = "convs2s_short"
WORDS = {
    "linear": "linear recurrence",
    "rnn": "RNN",
    "gru": "GRU",
    "lstm": "LSTM",
    "lstm_chrono": "LSTM started open",
    "convs2s": "ConvS2S stack",
    "bytenet": "ByteNet stack",
    "attention": "attention",
    "attention_naive": "attention step by step",
    "convs2s_short": "one layer too few",
}
# What a closed form and a count may differ by.
TOLERANCE = 1e-9
# Parameters of the largest trained network over those of the smallest, at most.
EQUAL = 1.15
# Gradients of attention at the start may lose no more than this from the shortest distance to the longest, in log10.
LEVEL = 0.5
# Standard errors by which the control may lie above chance.
CHANCE_SE = 5.0


# --- what follows from the rows ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Growth with length, losses with distance, leads of attention, shares that learned, ratios and laws of times."""
    return [*_growth(frame), *_decay(frame), *_accuracies(frame), *_reached(frame), *_times(frame)]


def _line(quantity: str, statistic: str, axes: Mapping[str, Any], **more: object) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | {"quantity": quantity, "statistic": statistic}
    return line | {"theory": math.nan, "sd": math.nan, "n_failed": 0, "estimate": math.nan, "n": 0} | {**axes, **more}


def _over_seeds(quantity: str, statistic: str, axes: Mapping[str, Any], values: Sequence[float], failed: int = 0,
                unit: str = "") -> dict[str, object]:  # fmt: skip
    """Mean and interval of one value a seed."""
    return _line(quantity, statistic, axes, n_failed=failed, unit=unit) | over_seeds(values)


def _rows(frame: pd.DataFrame, quantity: str, *axes: str) -> dict[Any, Mapping[str, Any]]:
    """Measured rows of a quantity by the values of some axes, whose empty ones are left out."""
    statistics = ("exact", "value", "mean")
    rows = frame[(frame.quantity == quantity) & frame.statistic.isin(statistics)].to_dict("records")
    chosen = [r for r in rows if all(r[axis] for axis in axes) and (r["n"] or r["n_failed"])]
    return {tuple(r[axis] for axis in axes): r for r in chosen}


def _growth(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Operations that a further token adds to the longest chain, and the factor of memory for twice the length."""
    depths = _rows(frame, "graph_depth", "network", "length")
    for network in dict.fromkeys(network for network, _ in depths):
        lengths = sorted((int(length) for name, length in depths if name == network))
        low, high = (depths[network, str(length)]["estimate"] for length in (lengths[0], lengths[-1]))
        growth = (high - low) / (lengths[-1] - lengths[0])
        yield _line("graph_growth", "exact", {"network": network}, estimate=growth, n=1)
    peaks = _rows(frame, "peak_bytes", "network", "phase", "length")
    for network, phase in dict.fromkeys((network, phase) for network, phase, _ in peaks):
        longest = max(int(length) for name, what, length in peaks if (name, what) == (network, phase))
        after, before = (peaks[network, phase, str(length)]["estimate"] for length in (longest, longest // 2))
        theory = 1.0 if phase == "inference" and network in RECURRENT else math.nan
        axes = {"network": network, "phase": phase}
        yield _line("memory_growth", "exact", axes, estimate=after / before, n=1, theory=theory)


def _ends(rows: Mapping[Any, Mapping[str, Any]], network: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A network's rows at its shortest and its longest distance."""
    distances = sorted((int(distance) for name, distance in rows if name == network))
    near, far = (rows[network, str(distance)] for distance in (distances[0], distances[-1]))
    return near, far


def _paired(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[list[float], int]:
    """Differences a - b of the seeds that both have, and how many seeds do not."""
    both = [seed for seed in a["by_seed"] if seed in b["by_seed"]]
    total = max(r["n"] + r["n_failed"] for r in (a, b))
    return [a["by_seed"][seed] - b["by_seed"][seed] for seed in both], total - len(both)


def _decay(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    kept = _rows(frame, "gradient_kept_log10", "network", "distance")
    for network in dict.fromkeys(network for network, _ in kept):
        values, failed = _paired(*_ends(kept, network))
        yield _over_seeds("decay_log10", "paired_difference", {"network": network}, values, failed)


def _accuracies(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Right answers lost from the shortest distance to the longest, and how far attention is ahead."""
    rows = _rows(frame, "accuracy", "network", "distance")
    for network in dict.fromkeys(network for network, _ in rows):
        if network != CONTROL and len([name for name, _ in rows if name == network]) > 1:
            values, failed = _paired(*_ends(rows, network))
            yield _over_seeds("accuracy_lost", "paired_difference", {"network": network}, values, failed)
    for (network, distance), r in rows.items():
        if network != BASE and (BASE, distance) in rows:
            values, failed = _paired(rows[BASE, distance], r)
            axes = {"network": network, "distance": distance}
            yield _over_seeds("accuracy_lead", "paired_difference", axes, values, failed)


def _reached(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    from attnrepro import stats

    for (network, distance), r in _rows(frame, "updates_to_target", "network", "distance").items():
        axes, total = {"network": network, "distance": distance}, r["n"] + r["n_failed"]
        share = stats.share_interval(r["n"], total)
        ends = {"estimate": share.value, "ci_low": share.low, "ci_high": share.high}
        yield _line("share_reached", "share", axes, n=total, **ends)
        # A seed that never got there took longer than any number of updates: the median knows that, a mean does not.
        never = 1e300
        median = stats.median_interval([*r["seeds"], *[never] * r["n_failed"]])
        known = median.value < never / 2
        yield _line(
            "updates_to_target",
            "median",
            axes,
            unit="updates",
            n=r["n"] if known else 0,
            n_failed=r["n_failed"],
            estimate=median.value if known else math.nan,
            ci_low=median.low if known else math.nan,
            ci_high=median.high if known and median.high < never else math.nan,
        )


def _times(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Ratios over attention, exponents of length, and the length from which attention takes longer."""
    from attnrepro import stats

    rows = _rows(frame, "milliseconds", "network", "phase", "length")
    for network, phase in dict.fromkeys((network, phase) for network, phase, _ in rows):
        axes = {"network": network, "phase": phase}
        lengths = sorted(int(length) for name, what, length in rows if (name, what) == (network, phase))
        times = [rows[network, phase, str(length)]["by_seed"] for length in lengths]
        seeds = [seed for seed in times[0] if all(seed in one for one in times)]
        slopes = [stats.loglog_slope(lengths, [one[seed] for one in times]).value for seed in seeds]
        yield _over_seeds("time_exponent", "slope", axes, slopes)
        if network == BASE:
            continue
        base = [rows[BASE, phase, str(length)]["by_seed"] for length in lengths]
        for length, own, other in zip(lengths, times, base, strict=True):
            ratios = [own[seed] / other[seed] for seed in seeds]
            yield _over_seeds("time_ratio", "mean", {**axes, "length": str(length)}, ratios)
        if network in RECURRENT:
            logs = [[math.log(a[seed] / b[seed]) for a, b in zip(times, base, strict=True)] for seed in seeds]
            found = [at for at in (_crossing(lengths, one) for one in logs) if at is not None]
            if found:
                failed = len(seeds) - len(found)
                yield _over_seeds("crossover", "crossover", axes, found, failed, unit="tokens")


def _crossing(lengths: Sequence[int], logs: Sequence[float]) -> float | None:
    """The last length at which a log ratio falls through 0, between two measured ones; None if it does nowhere."""
    for index in range(len(logs) - 1, 0, -1):
        before, after = logs[index - 1], logs[index]
        if before >= 0 > after:
            low, high = math.log(lengths[index - 1]), math.log(lengths[index])
            return math.exp(low + (high - low) * before / (before - after))
    return None


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_counted(frame), *_started(frame), *_trained(frame)]


def _at(r: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={r[axis]}" for axis in AXES if r[axis])


def _counted(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.statistic == "exact") & frame.theory.notna()].to_dict("records"):
        if not r["n"]:
            yield f"{r['quantity']} at {_at(r)} was not measured: theory says {r['theory']:.6g}"
        elif not abs(r["estimate"] - r["theory"]) <= TOLERANCE * max(1.0, abs(r["theory"])):
            yield f"{r['quantity']} at {_at(r)} is {r['estimate']:.6g}, the closed form {r['theory']:.6g}"
    for r in frame[frame.quantity == "graph_growth"].to_dict("records"):
        grows = r["estimate"] >= 1
        if r["network"] in RECURRENT and not grows:
            yield f"{WORDS[r['network']]}: a token adds {r['estimate']:.3g} operations in a row, less than one"
        if r["network"] == BASE and r["estimate"] != 0:
            yield f"attention: a token adds {r['estimate']:.3g} operations in a row"


def _started(frame: pd.DataFrame) -> Iterator[str]:
    for (network, distance), r in _rows(frame, "gradient_kept_log10", "network", "distance").items():
        if network == "linear" and not abs(r["estimate"] - r["theory"]) <= TOLERANCE * max(1.0, abs(r["theory"])):
            yield f"linear recurrence keeps 10^{r['estimate']:.6g} at {distance} tokens, theory 10^{r['theory']:.6g}"
        if r["n_failed"]:
            yield f"{WORDS[network]}: {r['n_failed']} seeds have no gradient in float64 at {distance} tokens"
    for r in frame[(frame.quantity == "decay_log10") & (frame.network == BASE)].to_dict("records"):
        if not abs(r["estimate"]) <= LEVEL:
            yield f"attention: the gradient at the start changes by 10^{-r['estimate']:.3g} with distance"


def _trained(frame: pd.DataFrame) -> Iterator[str]:
    rows = _rows(frame, "accuracy", "network", "distance")
    for (network, distance), r in rows.items():
        if r["n_failed"]:
            yield f"{WORDS[network]}: {r['n_failed']} seeds diverged at distance {distance}"
        above = CHANCE_SE * max(r["sd"] / math.sqrt(max(r["n"], 1)), TOLERANCE)
        if network == CONTROL and r["estimate"] > r["theory"] + above:
            yield f"a stack that cannot see the symbol recalls {r['estimate']:.3f} of them at distance {distance}"
    reached = frame[frame.quantity == "share_reached"].to_dict("records")
    for r in reached:
        if r["network"] == BASE and r["estimate"] < 1:
            share = f"{r['estimate']:.2f} of its seeds at distance {r['distance']}"
            yield f"attention learned in {share}: too little training"
    nearest = min((int(r["distance"]) for r in reached), default=0)
    near = [r["estimate"] for r in reached if r["network"] in RECURRENT and r["distance"] == str(nearest)]
    if near and max(near) < 1:
        yield f"no recurrent network learned in all seeds at distance {nearest}: the task is not one of distance"
    counts = _rows(frame, "parameters", "network", "distance")
    for distance in dict.fromkeys(distance for _, distance in counts):
        sizes = [r["estimate"] for (network, at), r in counts.items() if at == distance and network != CONTROL]
        if max(sizes) > EQUAL * min(sizes):
            yield f"networks at distance {distance} have {min(sizes):.0f} to {max(sizes):.0f} parameters"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    parts = (_told, _steps_in_words, _gradients_in_words, _recall_in_words, _times_in_words)
    return " ".join(sentence for part in parts for sentence in part(frame))


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Steps, influence before and after training, and who is slower, in one sentence."""
    parts = []
    paths = _rows(frame, "path_length", "network", "distance")
    if paths:
        far = str(max(int(distance) for _, distance in paths))
        if ("rnn", far) in paths and (BASE, far) in paths:
            steps = [f"{paths[network, far]['estimate']:.0f}" for network in ("rnn", BASE)]
            parts.append(
                f"between words {far} apart lie {steps[0]} steps in a recurrent network, {steps[1]} in attention"
            )
    decays = {r["network"]: r for r in frame[(frame.quantity == "decay_log10") & (frame.n > 1)].to_dict("records")}
    if "rnn" in decays and BASE in decays:
        # Adding 0 takes a minus off a rounded 0.
        powers = [_power(round(-decays[network]["estimate"], 2) + 0.0) for network in ("rnn", BASE)]
        parts.append(f"at the start 10^{powers[0]} and 10^{powers[1]} of a word's gradient gets through")
    shares = frame[(frame.quantity == "share_reached") & frame.network.isin([*RECURRENT, BASE]) & (frame.n > 0)]
    if len(shares):
        far = str(max(shares.distance.astype(int)))
        there = shares[shares.distance == far]
        counts = []
        for words, rows in (("recurrent", there[there.network != BASE]), ("attention", there[there.network == BASE])):
            counts.append(f"{round((rows.estimate * rows.n).sum())} of {rows.n.sum()} {words} trainings")
        parts.append(f"a word {far} back is learned in {' and '.join(counts)}")
    times = frame[(frame.quantity == "time_ratio") & (frame.phase == "training") & (frame.n > 1)]
    times = times[times.network.isin(RECURRENT)]
    if len(times):
        longest = str(max(times.length.astype(int)))
        told = []
        for r in times[times.length == longest].itertuples():
            side = "slower" if r.ci_low > 1 else "faster" if r.ci_high < 1 else "level"
            told.append(f"{WORDS[r.network]} {side} (x {_ratio(r.estimate)})")
        parts.append(f"at {longest} tokens training is, against attention, {', '.join(told)}")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _steps_in_words(frame: pd.DataFrame) -> Iterator[str]:
    paths = _rows(frame, "path_length", "network", "distance")
    if not paths:
        return
    far = str(max(int(distance) for _, distance in paths))
    names = {"rnn": "a recurrent network", "convs2s": "ConvS2S", "bytenet": "ByteNet", "scan": "a linear scan"}
    parts = [f"{paths[network, far]['estimate']:.0f} in {words}" for network, words in names.items()]
    yield f"Between tokens {far} apart lie {', '.join(parts)}, and {paths[BASE, far]['estimate']:.0f} in attention."


def _gradients_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = {r["network"]: r for r in frame[(frame.quantity == "decay_log10") & (frame.n > 1)].to_dict("records")}
    kept = _rows(frame, "gradient_kept_log10", "network", "distance")
    names = ("rnn", "gru", "lstm", "lstm_chrono", "convs2s", "bytenet", BASE)
    if any(network not in rows for network in names):
        return
    near, far = (_ends(kept, BASE)[index]["distance"] for index in (0, 1))

    def lost(network: str) -> str:
        r = rows[network]
        low, high = sorted((-r["ci_low"], -r["ci_high"]))
        return f"{WORDS[network]} 10^{_power(-r['estimate'])} [{_power(low)}, {_power(high)}]"

    yield (
        f"Of the gradient by a token {near} back, one {far} back has at the start, as a factor:"
        f" {', '.join(lost(network) for network in names)}."
    )


def _power(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2f}"


def _recall_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = _rows(frame, "accuracy", "network", "distance")
    if not rows:
        return
    far = str(max(int(distance) for _, distance in rows))
    names = (BASE, "rnn", "gru", "lstm", "lstm_chrono", "convs2s", "bytenet")
    reached = {
        r["network"]: r for r in frame[(frame.quantity == "share_reached") & (frame.distance == far)].to_dict("records")
    }
    parts = []
    for network in names:
        r = rows[network, far]
        if r["n"] < 2 or network not in reached:
            return
        total, count = reached[network]["n"], round(reached[network]["n"] * reached[network]["estimate"])
        interval = f" [{r['ci_low']:.2f}, {r['ci_high']:.2f}]" if r["ci_high"] > r["ci_low"] else ""
        parts.append(f"{WORDS[network]} {r['estimate']:.2f}{interval} ({count} of {total} seeds learned it)")
    yield f"After equal training at equal parameters, right answers at distance {far}: {', '.join(parts)}."


def _times_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "time_ratio") & (frame.phase == "training") & (frame.n > 1)]
    rows = rows[rows.network.isin(RECURRENT)]
    if rows.empty:
        return
    lengths = sorted(set(rows.length.astype(int)))
    parts = []
    for network in RECURRENT:
        found = {int(r.length): r for r in rows[rows.network == network].itertuples()}
        ends = [found[length] for length in (lengths[0], lengths[-1])]
        words = [f"{_ratio(r.estimate)} [{_ratio(r.ci_low)}, {_ratio(r.ci_high)}]" for r in ends]
        parts.append(f"{WORDS[network]} {words[0]} and {words[1]}")
    yield (
        f"Time of a training step over that of fused attention on this device, {lengths[0]} and {lengths[-1]} tokens:"
        f" {', '.join(parts)}."
    )


def _ratio(value: float) -> str:
    """Two digits without an exponent."""
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Gradients and right answers against distance, times against length."""
    return [chart for chart in (_gradient_chart(frame), _recall_chart(frame), _time_chart(frame)) if chart]


def _named(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    rows = frame[(frame.quantity == quantity) & (frame.statistic == "mean") & (frame.n > 0)].copy()
    rows["way"] = rows.network.map(WORDS)
    return rows


def _gradient_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = _named(frame, "gradient_kept_log10")
    rows = rows[rows.network != "linear"]  # a control, and the chart has colours for seven
    lowest = -20.0
    return _lines(
        rows,
        "distance",
        "distance in tokens",
        "log10 of the gradient kept",
        "gradient at the start",
        domain=(lowest, 0.0),
    )


def _recall_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = _named(frame, "accuracy")
    rows = rows[rows.network != CONTROL]
    return _lines(rows, "distance", "distance in tokens", "right answers", "recall after training", domain=(0.0, 1.05))


def _time_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = _named(frame, "milliseconds")
    rows = rows[rows.phase == "training"]
    turns = frame[(frame.quantity == "crossover") & (frame.phase == "training")].copy()
    turns["what"] = turns.network.map(WORDS) + " = " + WORDS[BASE]
    return _lines(rows, "length", "tokens", "milliseconds", "a training step on this device", None, turns)


def _lines(
    rows: pd.DataFrame,
    x: str,
    x_title: str,
    y_title: str,
    title: str,
    domain: tuple[float, float] | None,
    crossings: pd.DataFrame | None = None,
) -> Mapping[str, Any] | None:
    """Estimates with intervals against ``x`` on a log axis, a line a network; without a domain y is logarithmic too."""
    import altair as alt

    from attnrepro.results.charts import crossed, records

    if rows.empty:
        return None
    rows = rows.copy()
    rows[x] = rows[x].astype(float)
    columns = [x, "way", "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'way' else 'Q'}") for column in columns]
    order = [words for words in WORDS.values() if words in set(rows.way)]
    base = alt.Chart(alt.Data(values=records(rows.sort_values(x), columns))).encode(
        x=alt.X(f"{x}:Q", title=x_title).scale(type="log", nice=False, padding=8).axis(format="~s", tickCount=5),
        color=alt.Color("way:N", sort=order, legend=alt.Legend(title=None, columns=2, orient="bottom")),
    )
    scale = alt.Scale(type="log") if domain is None else alt.Scale(domain=list(domain))

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", title=y_title, scale=scale)

    marks = [] if crossings is None else crossed(crossings, rows[x].min(), rows[x].max(), x_title=x_title)
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_rule(clip=True, style="interval").encode(y=y("ci_low"), y2="ci_high:Q"),
            base.mark_line(clip=True).encode(y=y("estimate")),
            base.mark_point(clip=True, style="measured").encode(y=y("estimate"), tooltip=tip),
            *marks,
        )
        .properties(title=title, description=f"{title}: {y_title} against {x_title}, by network")
        .to_dict()
    )
    return spec
