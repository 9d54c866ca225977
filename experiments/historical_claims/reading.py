"""historical_claims, read: what disagrees, whether declared words fit, the answer and the timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attnrepro import paths
from attnrepro.results.published import load_published

if TYPE_CHECKING:
    import pandas as pd

NAME = "historical_claims"
AXES = ("place", "work", "field", "against")
TRANSFORMER = "vaswani2017"


def controls(frame: pd.DataFrame) -> list[str]:
    """The word of every literature line must be what the bibliography says of the printed detail."""
    agreed = _agreed(frame)
    found = []
    for line in load_published(paths.published_dir() / f"{NAME}.csv"):
        if line.klass != "literature" or not line.margin or line.quantity != "agrees":
            continue
        at = dict(line.axes)
        where = (at["place"], at["work"], at["field"])
        said = {True: "confirmed", False: "contradicted", None: "nothing"}[agreed.get(where)]
        if said != line.margin:
            found.append(f"{line.claim}: {' '.join(where)} is declared {line.margin}, the bibliography says {said}")
    return found


def _agreed(frame: pd.DataFrame) -> dict[tuple[str, str, str], bool]:
    rows = frame[(frame.quantity == "agrees") & (frame.n > 0)]
    return {(r["place"], r["work"], r["field"]): r["estimate"] == 1 for r in rows.to_dict("records")}


def answer(frame: pd.DataFrame) -> str:
    """How many details agree, which kinds do not, and what came before the Transformer."""
    agreed = _agreed(frame)
    wrong: dict[str, int] = {}
    for (_, _, field), holds in agreed.items():
        wrong[field] = wrong.get(field, 0) + (not holds)
    kinds = ", ".join(f"{field.replace('_', ' ')} {count}" for field, count in wrong.items() if count)
    rows = _timeline(frame)
    later = rows[rows.estimate > 0].sort_values("estimate")
    every = "all" if agreed and all(agreed.values()) else "not all" if any(agreed.values()) else "none"
    parts = []
    if agreed:
        parts.append(
            f"{every[0].upper()}{every[1:]}: of {len(agreed)} printed details {sum(agreed.values())} agree with a"
            f" checked reference and {sum(wrong.values())} do not"
        )
    if len(rows):
        parts.append(
            f"of {len(rows)} dated works {len(rows) - len(later)} came before the Transformer or in its month and"
            f" {len(later)} first appeared in a later month"
        )
    said = [f"{'; '.join(parts)}."] if parts else []
    if kinds:
        said.append(f"What does not agree, by kind ({kinds}).")
    if len(later):
        ends = dict.fromkeys(f"{r.work} ({r.estimate:.0f} months)" for r in later.iloc[[0, -1]].itertuples())
        said.append(f"After the Transformer came works from {' to '.join(ends)}.")
    return " ".join(said)


def _timeline(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[(frame.quantity == "months_after") & (frame.against == TRANSFORMER) & (frame.n > 0)]


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """First versions against that of the Transformer."""
    import altair as alt

    from attnrepro.results.charts import records

    rows = _timeline(frame)
    if rows.empty:
        return []
    columns = ["work", "estimate", "theory"]
    title = "first versions"
    x_title = "months after the Transformer"
    level = alt.Chart(alt.Data(values=[{"at": 0}])).mark_rule(strokeDash=[2, 2]).encode(x=alt.X("at:Q", title=x_title))
    points = (
        alt.Chart(alt.Data(values=records(rows, columns)))
        .mark_point(style="measured")
        .encode(
            x=alt.X("estimate:Q", title=x_title),
            y=alt.Y("work:N", title=None, sort=list(rows.work)),
            tooltip=[alt.Tooltip("work:N"), alt.Tooltip("estimate:Q"), alt.Tooltip("theory:Q")],
        )
    )
    about = f"{title}: {x_title}, by work"
    spec: Mapping[str, Any] = alt.layer(level, points).properties(title=title, description=about).to_dict()
    return [spec]
