"""multihead, read: best rates, differences by seed, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.derived import over_seeds
from attnrepro.tables.multihead.table import AXES, OPTIMIZERS

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "HIDDEN", "answer", "charts", "controls", "derive"]

# Rows that other rows are made from, not shown in the table.
HIDDEN = ("layer_of_best",)

# The head that others are compared with.
BASE_DIM = "64"
# What a head may come to attend to.
ROLES = {"previous": "the token before", "induction": "what followed the same token", "same": "the same token"}
# Weights of untrained heads may be so far from equal ones, on average over heads.
NEAR_CHANCE = 0.05
# What a probe may find where there is nothing; below 0 it has learned noise.
NOTHING = 0.01
TOLERANCE = 1e-9


# --- what follows from the seeds ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Steps at the best rate of the other half of the seeds, against head_dim 64, and how many seeds got there."""
    best = _best_steps(frame)
    result = [_line(at, "best_steps", "mean", list(steps.values()), failed) for at, (steps, failed) in best.items()]
    for (optimizer, head_dim), (steps, failed) in best.items():
        base = best.get((optimizer, BASE_DIM))
        if base and head_dim != BASE_DIM:
            ratios = [math.log2(steps[seed] / base[0][seed]) for seed in steps if seed in base[0]]
            total = len(steps) + failed
            line = _line((optimizer, head_dim), "slowdown_log2", "paired_difference", ratios, total - len(ratios))
            result.append(line)
    return result


def _best_steps(frame: pd.DataFrame) -> dict[tuple[str, str], tuple[dict[str, float], int]]:
    """By optimiser and head_dim: steps of each seed that got there, and how many did not.

    A seed trains at the rate at which the other half of the seeds needed fewest steps, so that none has a say in the
    choice of its own. What never got there counts there as slower than everything that did.
    """
    rows = frame[(frame.quantity == "steps_to_target") & (frame.optimizer != "")].to_dict("records")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault((r["optimizer"], r["head_dim"]), []).append(r)
    found = {}
    for at, members in groups.items():
        seeds = sorted({seed for r in members for seed in r["by_seed"]}, key=int)
        total = max(r["n"] + r["n_failed"] for r in members)
        slowest = 2 * max((s for r in members for s in r["by_seed"].values()), default=1.0)
        halves = (seeds[::2], seeds[1::2])
        steps = {}
        for mine, others in (halves, halves[::-1]):
            if others:
                rate = min(members, key=lambda r: sum(r["by_seed"].get(s, slowest) for s in others))
                steps |= {s: rate["by_seed"][s] for s in mine if s in rate["by_seed"]}
        found[at] = (steps, total - len(steps))
    return found


def _line(
    at: tuple[str, str], quantity: str, statistic: str, values: Sequence[float], failed: int
) -> dict[str, object]:
    line: dict[str, object] = dict.fromkeys(AXES, "") | dict(zip(("optimizer", "head_dim"), at, strict=True))
    line |= {"quantity": quantity, "statistic": statistic, "n_failed": failed, "theory": math.nan}
    return line | over_seeds(values)


# --- what must hold ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_exact_controls(frame), *_trained_controls(frame), *_head_controls(frame)]


def _exact_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[(frame.statistic == "exact") & frame.theory.notna()].itertuples():
        where = " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))
        if not r.n:
            yield f"{r.quantity} at {where} was not measured"
        elif not abs(r.estimate - r.theory) <= TOLERANCE * max(1.0, abs(r.theory)):
            yield f"{r.quantity} at {where} is {r.estimate:.9g}, the closed form {r.theory:.9g}"


def _trained_controls(frame: pd.DataFrame) -> Iterator[str]:
    models = frame[frame.depth != ""]
    for r in models[models.quantity == "steps_to_target"].itertuples():
        if r.depth == "1" and r.n:
            yield f"{r.n} models of one layer reached the target: the task needs no two layers"
        elif r.depth != "1" and r.n_failed:
            yield f"{r.n_failed} models of {r.depth} layers and {r.num_heads} heads did not reach the target"
    ended = {(r.depth, r.num_heads, r.phase): r.estimate for r in models[models.quantity == "accuracy"].itertuples()}
    for (depth, heads, phase), value in ended.items():
        if phase == "last_layer_off" and depth != "1" and not value < ended[depth, heads, "end"] / 2:
            yield f"accuracy is {value:.2f} without any head of the last of {depth} layers: switching off does nothing"
    for r in frame[frame.quantity == "best_steps"].itertuples():
        if r.n_failed:
            yield f"{r.n_failed} heads of {r.head_dim} components did not reach the target with {r.optimizer}"


def _head_controls(frame: pd.DataFrame) -> Iterator[str]:
    means = frame[frame.quantity == "mean_score"]
    equal = {(r.depth, r.num_heads, r.role): r.theory for r in means[means.phase == "uniform"].itertuples()}
    for r in means[means.phase == "start"].itertuples():
        chance = equal.get((r.depth, r.num_heads, r.role), math.nan)
        if not abs(r.estimate - chance) <= NEAR_CHANCE:
            yield f"untrained heads have a score of {r.estimate:.3f} as {r.role}, equal weights {chance:.3f}"
    for r in frame[(frame.quantity == "explained") & (frame.relation == "shuffled")].itertuples():
        if not r.estimate <= NOTHING:
            yield f"a probe explains {r.estimate:.3f} of tokens of another sequence"


# --- the answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    parts = (_told, _cost_in_words, _select_in_words, _roles_in_words, _redundancy_in_words)
    return " ".join(sentence for part in parts for sentence in part(frame))


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """All four questions in one sentence."""
    parts = []
    spread = frame[frame.quantity.isin(["flops_spread", "parameters_spread"]) & (frame.n > 0)]
    times = frame[(frame.quantity == "time_ratio") & (frame.phase == "training") & (frame.n > 0)]
    if len(spread):
        word = "free" if (spread.estimate == 0).all() else "not free"
        said = f"several heads are {word} in FLOPs and parameters"
        if len(times):
            r = max(times.itertuples(), key=lambda r: (int(r.num_heads), r.kernel == "fused"))
            side = "not in time" if r.ci_low > 1 else "cost no time that is seen"
            said += f", {side} (x {r.estimate:.2f} with {r.num_heads}, {r.kernel})"
        parts.append(said)
    steps = frame[(frame.quantity == "best_steps") & (frame.optimizer == "adam") & (frame.n > 1)]
    if len(steps) > 1:
        ordered = sorted(steps.itertuples(), key=lambda r: int(r.head_dim))
        small, large = ordered[0], ordered[-1]
        easier = small.ci_high < large.ci_low
        harder = small.ci_low > large.ci_high
        word = "is easier" if easier else "is harder" if harder else "is not seen to be easier or harder"
        told = (
            f"{small.estimate:.0f} updates for {small.head_dim} components, {large.estimate:.0f} for {large.head_dim}"
        )
        parts.append(f"a small head {word} to train ({told})")
    shares = frame[(frame.quantity == "redundant_share") & (frame.depth == "2") & (frame.num_heads == "4")]
    for r in shares[shares.n > 1].itertuples():
        parts.append(f"{r.estimate:.0%} of 2 x 4 trained heads can go")
    scores = frame[(frame.quantity == "best_score") & (frame.depth == "2") & (frame.num_heads == "4") & (frame.n > 1)]
    ends = {(r.role, r.phase): r for r in scores.itertuples()}
    found = [role for role, phase in ends if phase == "end" and (role, "start") in ends]
    grown = [
        f"{ROLES[role]} {ends[role, 'end'].estimate:.2f}"
        for role in found
        if role in ROLES and ends[role, "end"].ci_low > ends[role, "start"].ci_high
    ]
    if found:
        parts.append(f"they come to attend to {', '.join(grown) or 'nothing that was asked about'}")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _ends(r: Any) -> str:
    return f"[{r.ci_low:.2g}, {r.ci_high:.2g}]"


def _cost_in_words(frame: pd.DataFrame) -> Iterator[str]:
    spread = frame[frame.quantity.isin(["flops_spread", "parameters_spread"]) & (frame.n > 0)]
    if len(spread) and (spread.estimate == 0).all():
        yield "FLOPs and parameters are the same for every number of heads."
    times = frame[(frame.quantity == "time_ratio") & (frame.phase == "training") & (frame.n > 0)]
    parts = []
    for kernel, rows in times.groupby("kernel", sort=False):
        most = max(rows.itertuples(), key=lambda r: int(r.num_heads))
        parts.append(f"x {most.estimate:.2f} {_ends(most)} with {most.num_heads} heads and the {kernel} kernel")
    if parts:
        yield f"Time of forward and backward over that of one head: {', '.join(parts)}."


def _select_in_words(frame: pd.DataFrame) -> Iterator[str]:
    steps = frame[(frame.quantity == "best_steps") & (frame.n > 0)]
    for optimizer in OPTIMIZERS:
        rows = sorted(steps[steps.optimizer == optimizer].itertuples(), key=lambda r: int(r.head_dim))
        if rows:
            parts = [f"{r.estimate:.1f} {_ends(r)} for {r.head_dim}" for r in rows]
            yield f"Updates until a head of so many components finds its key, {optimizer}: {', '.join(parts)}."
    entropies = frame[(frame.quantity == "entropy") & (frame.phase == "start") & (frame.n > 0)]
    if len(entropies):
        low, high = entropies.estimate.min(), entropies.estimate.max()
        yield f"Their weights start with an entropy of {low:.2f} to {high:.2f} nats whatever head_dim is."


def _roles_in_words(frame: pd.DataFrame) -> Iterator[str]:
    known = frame[(frame.n > 1) & (frame.num_heads == "4")]
    best = {(r.depth, r.role, r.phase): r for r in known[known.quantity == "best_score"].itertuples()}
    if ("2", "induction", "end") in best:
        parts = [
            f"{role} {best['2', role, 'end'].estimate:.2f} {_ends(best['2', role, 'end'])} from"
            f" {best['2', role, 'start'].estimate:.2f}"
            for role in ("previous", "induction")
        ]
        yield f"The best head of two layers of 4 ends with a score of: {', '.join(parts)} at the start."
    ended = {(r.depth, r.phase): r for r in known[known.quantity == "accuracy"].itertuples()}
    if ("1", "end") in ended and ("2", "end") in ended:
        one, two = ended["1", "end"], ended["2", "end"]
        yield (
            f"Two layers continue the sequence with accuracy {two.estimate:.2f} {_ends(two)}, one layer with"
            f" {one.estimate:.2f} {_ends(one)}."
        )
    carried = known[(known.quantity == "explained") & (known.depth == "2")]
    if len(carried):
        parts = [f"{r.relation} {r.estimate:.3f} {_ends(r)}" for r in carried.itertuples()]
        yield f"Share that a probe explains from the output of the best previous-token head: {', '.join(parts)}."


def _redundancy_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.n > 1) & (frame.depth == "2")]
    for quantity, words in (
        ("redundant_share", "Share of heads that can each be switched off for less than 0.01 of accuracy"),
        ("unclear_share", "Share of heads without a clear role"),
    ):
        found = sorted(rows[rows.quantity == quantity].itertuples(), key=lambda r: int(r.num_heads))
        if found:
            parts = [f"{r.estimate:.2f} {_ends(r)} of 2 x {r.num_heads}" for r in found]
            yield f"{words}: {', '.join(parts)}."


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Time and steps against heads, scores by layer and rank, and what each head is worth."""
    made = (_time_chart(frame), _steps_chart(frame), _score_chart(frame), _worth_chart(frame))
    return [chart for chart in made if chart]


def _time_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "time_ratio") & (frame.n > 0)].copy()
    rows["way"] = rows.kernel + ", " + rows.phase
    title = "time of a layer, over one head"
    return curves(rows, "num_heads", "way", title=title, x_title="heads", y_title="time ratio", log=True, zero=1)


def _steps_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "best_steps") & (frame.n > 0)].copy()
    title = "updates until one head finds its key"
    return curves(rows, "head_dim", "optimizer", title=title, x_title="head_dim", y_title="updates", log=True)


def _score_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = frame[(frame.quantity == "score") & (frame.depth == "2") & (frame.num_heads == "4") & (frame.n > 0)]
    rows = rows[(rows.phase == "end") & rows.role.isin(["previous", "induction"])].copy()
    rows["place"] = "layer " + rows.layer + ", rank " + rows["rank"]
    return _points(rows, "place", "role", "roles of trained heads, 2 layers of 4", "mean weight on the role's position")


def _worth_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    rows = frame[(frame.quantity == "accuracy_drop") & (frame.depth == "2") & (frame.n > 0)]
    rows = rows[rows.num_heads.isin(["4", "8"])].copy()
    rows["place"] = "head " + rows["rank"]
    rows["way"] = rows.num_heads + " heads a layer"
    return _points(rows, "place", "way", "accuracy that one head is worth", "accuracy lost when switched off")


def _points(rows: pd.DataFrame, y: str, series: str, title: str, x_title: str) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    if rows.empty:
        return None
    columns = [y, series, "estimate", "ci_low", "ci_high", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column in (y, series) else 'Q'}") for column in columns]
    base = alt.Chart(alt.Data(values=records(rows, columns))).encode(  # type: ignore[no-untyped-call]
        y=alt.Y(f"{y}:N", title=None, sort=list(dict.fromkeys(rows[y]))),
        color=alt.Color(f"{series}:N", title=None, sort=list(rows[series].unique())),
        yOffset=f"{series}:N",
    )
    x = alt.X("estimate:Q", title=x_title)
    spec: Mapping[str, Any] = (
        alt.layer(
            base.mark_rule(style="interval").encode(x=alt.X("ci_low:Q"), x2="ci_high:Q"),
            base.mark_point(style="measured").encode(x=x, tooltip=tip),
        )
        .properties(title=title, description=f"{title}: {x_title}, by {y} and {series}")
        .to_dict()
    )
    return spec
