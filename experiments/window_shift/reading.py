"""window_shift, read: what must hold, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attnrepro.tables.window_shift.table import AXES, HOLDS_EPS

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "roundoff"]

# What breaks the symmetry does so by this share of the largest output, at the gentlest shift of the gentlest draw.
BROKEN = 1e-3
WORDS = {
    "swin": "Swin",
    "cyclic": "without the mask",
    "merging": "with merging",
    "attention": "full attention",
    "convolution": "convolution",
}


def roundoff(line: PublishedLine, frame: pd.DataFrame) -> tuple[float, float]:
    """Errors of this table are in units of eps times their scale already."""
    return 1.0, 1.0


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_symmetry_controls(frame), *_reach_controls(frame)]


def _symmetry_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame.itertuples():
        at = f"{r.network} ({r.border})"
        if r.quantity == "listed_error_eps" and not r.estimate <= HOLDS_EPS:
            yield f"{at} moves {r.estimate:.3g} eps under a shift that it should commute with: at most {HOLDS_EPS:g}"
        if r.quantity == "unlisted_error" and not r.estimate >= BROKEN:
            yield f"{at} moves only {r.estimate:.3g} of its output under a shift that should break it"
        if r.quantity == "commuting_rolls" and r.n and r.estimate != r.theory:
            yield f"{at} commutes with {r.estimate:g} rolls of the torus at {r.shape}, not {r.theory:g}"


def _reach_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.quantity.isin(("reach", "layers_to_all")) & (frame.n > 0)].itertuples():
        if r.estimate != r.theory:
            where = f"{r.network} on {r.windows}" + (f", {r.place} at depth {r.depth}" if r.depth else "")
            yield f"{r.quantity} of {where} is {r.estimate:g}, not {r.theory:g}"


# --- in words ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_shifts_in_words(frame), *_reach_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether Swin commutes with every shift, and after how many layers every place sees all."""
    parts = []
    rolls = frame[(frame.quantity == "commuting_rolls") & (frame.network == "swin") & (frame.n > 0)]
    if len(rolls):
        r = rolls.iloc[-1]
        window, windows = map(int, str(r["shape"]).split("x")[:2])
        of = (window * windows) ** 2
        word = "yes" if r.estimate == of else "no"
        parts.append(
            f"{word}: Swin commutes with {r.estimate:g} of the {of} shifts of a map of {windows} x {windows} windows"
        )
    reach = frame[(frame.quantity == "reach") & (frame.network == "swin") & (frame.n > 0)]
    if len(reach):
        name = str(reach.windows.iloc[-1])
        window, windows = map(int, name.split("x"))
        of = (window * windows) ** 2
        seen = {
            int(r.depth): r.estimate for r in reach[(reach.windows == name) & (reach.place == "corner")].itertuples()
        }
        full = min((depth for depth, count in seen.items() if count == of), default=0)
        known = f"after {full} layers" if full else f"not yet after {max(seen, default=0)} layers"
        parts.append(f"of {windows} x {windows} windows the corner sees every place {'only ' if full else ''}{known}")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _shifts_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rolls = frame[(frame.quantity == "commuting_rolls") & (frame.n > 0)]
    if rolls.empty:
        return
    shape = str(rolls["shape"].iloc[-1])
    window, windows = map(int, shape.split("x")[:2])
    found = {r.network: r for r in rolls[rolls["shape"] == shape].itertuples()}
    of = (window * windows) ** 2

    def count(network: str) -> str:
        return f"{found[network].estimate:g}"

    yield (
        f"Of the {of} rolls of a map of {windows} x {windows} windows of {window} x {window}, Swin commutes with"
        f" {count('swin')} (the identity), without its mask with {count('cyclic')} (whole windows, with or without"
        f" relative bias: {count('cyclic_unbiased')}), after patch merging with {count('merging')}; full attention"
        f" without positions with {count('attention')}, a circular convolution with {count('convolution')}."
    )
    errors = frame[frame.quantity == "equivariance_error_eps"]
    inside = {
        r.shift: r.estimate for r in errors[(errors.network == "swin") & (errors.border == "constant")].itertuples()
    }
    if "one" in inside and "window" in inside:
        eps = 2.0**-52
        yield (
            f"Within a constant surround, which hides the mask, Swin moves {inside['one'] * eps:.2g} of its largest"
            f" output at a shift by one place and {inside['window']:.2g} eps at one by a window."
        )


def _reach_in_words(frame: pd.DataFrame) -> Iterator[str]:
    rows = frame[(frame.quantity == "reach") & (frame.network == "swin") & (frame.n > 0)]
    if rows.empty:
        return
    name = str(rows.windows.iloc[-1])
    window, windows = map(int, name.split("x"))
    chosen = {(r.place, int(r.depth)): r.estimate for r in rows[rows.windows == name].itertuples()}
    deepest = max(depth for _, depth in chosen)
    of = (window * windows) ** 2
    complete = min((depth for place, depth in chosen if place == "corner" and chosen[place, depth] == of), default=0)
    end = f"the corner sees all after {complete} layers" if complete else f"not all after {deepest}"
    yield (
        f"On {windows} x {windows} windows of {window} x {window} places, a pair of blocks sees"
        f" {chosen['corner', 2]:g} of {of} places from the corner and {chosen['centre', 2]:g} from the centre; {end}."
    )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Errors against the shift, and reach against depth."""
    return [chart for chart in (_shift_chart(frame), _reach_chart(frame)) if chart]


def _shift_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    from attnrepro.results.charts import records

    rows = frame[(frame.quantity == "shift_error") & frame.network.isin(WORDS)].copy()
    if rows.empty:
        return None
    lowest = 2.0**-53
    # An exact zero stands at the bottom of the axis.
    rows["way"] = [
        WORDS[r.network] + (", constant surround" if r.border == "constant" else "") for r in rows.itertuples()
    ]
    # As many as the page has colours for; the others differ from one of these in nothing that is seen here.
    kept = [WORDS[name] for name in ("swin", "cyclic", "merging", "attention", "convolution")]
    rows = rows[rows.way.isin([*kept, f"{WORDS['swin']}, constant surround"])]
    rows["by"] = rows["shift"].astype(int)
    rows["error"] = rows.estimate.clip(lower=lowest)
    shape = str(rows["shape"].iloc[0])
    columns = ["by", "way", "error", "estimate", "n"]
    tip = [alt.Tooltip(f"{column}:{'N' if column == 'way' else 'Q'}") for column in columns]
    order = list(dict.fromkeys(rows.way))
    base = alt.Chart(alt.Data(values=records(rows.sort_values("by"), columns))).encode(
        x=alt.X("by:Q", title="shift down and to the right, in places").axis(tickMinStep=1),
        y=alt.Y("error:Q", title="error / largest output")
        .scale(type="log", domain=[lowest, 10])
        .axis(format="~e", tickCount=4),
        color=alt.Color("way:N", sort=order, legend=alt.Legend(title=None, columns=2, orient="bottom")),
    )
    title = f"equivariance error, shape {shape}"
    spec: Mapping[str, Any] = (
        alt.layer(base.mark_line(opacity=0.5), base.mark_point(style="measured").encode(tooltip=tip))
        .properties(title=title, description=f"{title}: against the shift, by network, zero at the bottom")
        .to_dict()
    )
    return spec


def _reach_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    from attnrepro.results.charts import curves

    rows = frame[(frame.quantity == "reach_share") & (frame.n > 0)].copy()
    if rows.empty:
        return None
    name = str(rows.windows.iloc[-1])
    rows = rows[rows.windows == name]
    rows["from"] = [f"{r.place}{'' if r.network == 'swin' else ', no mask'}" for r in rows.itertuples()]
    return curves(
        rows,
        "depth",
        "from",
        title=f"places that an output depends on, map {name}",
        x_title="layers",
        y_title="share of all places",
    )
