"""attention_memory, read: growth laws, controls, the answer and charts. Makes no row of a cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnrepro.results.charts import panel
from attnrepro.tables.attention_memory.table import ATTENTIONS, AXES, PHASES
from attnrepro.theory import attention_memory as closed

if TYPE_CHECKING:  # a typo is answered without these: they cost more than the whole precheck
    import pandas as pd

    from attnrepro.results.published import PublishedLine

__all__ = ["AXES", "answer", "charts", "controls", "derive"]

# Score matrices that naive attention has at its peak, and exponents of memory against length.
BUFFERS = {"forward": 2, "training": 3}
EXPONENTS = {"naive": 2, "fused": 1}
# From this length on the peak is held against the score matrices alone.
LONG = 2048
MARGIN = 0.1
# An exact count may be off by rounding.
TOLERANCE = 1e-9
# Two kernels that compute the same differ by round-off: in eps of the largest output.
SAME_EPS = 32.0
# Where the logarithmic axes of charts are labelled.
DECADES = [10.0**power for power in range(-3, 7)]


# --- growth ---


def derive(frame: pd.DataFrame, published: Sequence[PublishedLine]) -> list[dict[str, object]]:
    """Peaks in score matrices, and exponents of memory against length."""
    return [*_buffers(frame), *_growth(frame)]


def _peaks(frame: pd.DataFrame) -> pd.DataFrame:
    """Measured peaks with the bytes of all heads' score matrices at their length beside them."""
    matrices = frame[(frame.quantity == "matrix_bytes") & (frame.n > 0)]
    beside = dict(zip(matrices.length, matrices.estimate, strict=True))
    chosen = frame[(frame.quantity == "peak_bytes") & frame.length.isin(list(beside)) & (frame.n > 0)].copy()
    chosen["tokens"], chosen["matrix"] = chosen.length.astype(int), chosen.length.map(beside)
    return chosen.sort_values("tokens", kind="stable")


def _buffers(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Peak over score matrices at every length; without a length, at the longest."""
    for (attention, phase), rows in _peaks(frame).groupby(["attention", "phase"], sort=False):
        for r in rows.itertuples():
            line = _line("score_buffers", attention, phase, r.estimate / r.matrix)
            if attention == "naive":
                line["theory"] = r.theory / r.matrix
            yield {**line, "length": r.length}
        yield line


def _growth(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    from attnrepro.stats import loglog_slope

    for (attention, phase), rows in _peaks(frame).groupby(["attention", "phase"], sort=False):
        if len(rows) < 3:
            continue
        slope = loglog_slope(rows.tokens, rows.estimate)
        line = _line("memory_exponent", attention, phase, slope.value)
        line |= {"statistic": "slope", "n": len(rows), "theory": EXPONENTS[str(attention)]}
        yield {**line, "ci_low": slope.low, "ci_high": slope.high}


def _line(quantity: str, attention: object, phase: object, value: float) -> dict[str, object]:
    """A number that follows from counts: it has no spread of its own."""
    return {
        "quantity": quantity,
        "statistic": "exact",
        "attention": attention,
        "phase": phase,
        "estimate": value,
        "n": 1,
        "sd": math.nan,
        "theory": math.nan,
    }


# --- controls ---


def controls(frame: pd.DataFrame) -> list[str]:
    """What must hold for the table to be believed, each breach a sentence."""
    return [*_size_controls(frame), *_peak_controls(frame), *_kernel_controls(frame)]


def _at(r: Any) -> str:
    return " ".join(f"{axis}={getattr(r, axis)}" for axis in AXES if getattr(r, axis))


def _size_controls(frame: pd.DataFrame) -> Iterator[str]:
    sizes = frame[(frame.statistic == "exact") & frame.theory.notna() & ~frame.quantity.isin(["score_buffers"])]
    for r in sizes.itertuples():
        if not r.n:
            yield f"{r.quantity} at {_at(r)} was not measured: theory says {r.theory:.6g}"
        elif not abs(r.estimate - r.theory) <= TOLERANCE * abs(r.theory):
            yield f"{r.quantity} at {_at(r)} is {r.estimate:.9g}, the closed form {r.theory:.9g}"


def _peak_controls(frame: pd.DataFrame) -> Iterator[str]:
    peaks = frame[frame.quantity.isin(["peak_bytes", "held_bytes"]) & frame.theory.notna()]
    for r in peaks.itertuples():
        if not r.n or (int(r.length) >= LONG and abs(r.estimate / r.theory - 1) > MARGIN):
            yield f"{r.quantity} at {_at(r)} is {r.estimate:.6g}, not {r.theory:.6g} within {MARGIN:.0%}"
    buffers = frame[(frame.quantity == "score_buffers") & (frame.attention == "naive") & (frame.length != "")]
    for r in buffers.itertuples():
        if int(r.length) >= LONG and abs(r.estimate / BUFFERS[r.phase] - 1) > MARGIN:
            yield f"score_buffers at {_at(r)} is {r.estimate:.4g}, not {BUFFERS[r.phase]} within {MARGIN:.0%}"
    for r in frame[frame.quantity == "memory_exponent"].itertuples():
        if not (r.theory - MARGIN <= r.ci_low and r.ci_high <= r.theory + MARGIN):
            yield (
                f"memory_exponent at {_at(r)} is {r.estimate:.3f} [{r.ci_low:.3f}, {r.ci_high:.3f}], not {r.theory:g}"
                f" within {MARGIN:g}"
            )


def _kernel_controls(frame: pd.DataFrame) -> Iterator[str]:
    for r in frame[frame.quantity == "output_difference_eps"].itertuples():
        if not r.estimate <= SAME_EPS:
            yield f"naive and fused attention differ by {r.estimate:.3g} eps at {_at(r)}"


# --- answer ---


def answer(frame: pd.DataFrame) -> str:
    """What the rows say, in a few sentences."""
    return " ".join([*_told(frame), *_units_in_words(frame), *_store_in_words(frame), *_peaks_in_words(frame)])


def _told(frame: pd.DataFrame) -> Iterator[str]:
    """Whether the matrix has to be stored, and what it takes of the smallest and the largest image."""
    parts = []
    peaks = _peaks(frame)
    if not peaks.empty:
        last = peaks[(peaks.tokens == max(peaks.tokens)) & (peaks.phase == "forward")]
        found = {r.attention: r.estimate / r.matrix for r in last.itertuples()}
        if "fused" in found:
            word = "need not be stored" if found["fused"] < 1 else "is stored"
            other = f", step by step {found['naive']:.3g}" if "naive" in found else ""
            parts.append(
                f"the N x N matrix {word}: at {max(peaks.tokens)} tokens the fused kernel holds {found['fused']:.3g}"
                f" of it at its peak{other}"
            )
    sizes = frame[(frame.quantity == "score_size") & (frame.n > 0) & (frame.dtype == "float16") & (frame.patch != "1")]
    sizes = sizes[sizes.prefix == "binary"].sort_values("side", key=lambda s: s.astype(int))
    if len(sizes):
        ends = [f"{r.estimate:.4g} {r.unit} at {r.side} pixels" for r in (sizes.iloc[0], sizes.iloc[-1])]
        parts.append(f"one head's scores of an image take {' and '.join(dict.fromkeys(ends))} in fp16")
    shown = _kept(frame)
    if shown:
        ends = [shown[0], shown[-1]]
        parts.append(f"the whole model keeps {' and '.join(dict.fromkeys(ends))} of them")
    if parts:
        said = "; ".join(parts)
        yield f"{said[0].upper()}{said[1:]}."


def _kept(frame: pd.DataFrame) -> list[str]:
    """What the whole model keeps of an image for the backward pass, small images first."""
    stored = frame[(frame.quantity == "stored_size") & (frame.n > 0) & (frame.dtype == "float16")]
    if stored.empty:
        return []
    rows = stored[stored.batch == str(min(stored.batch.astype(int)))].sort_values("side", key=lambda s: s.astype(int))
    base, units = closed.PREFIXES["binary"]
    shown = [closed.in_unit(round(gib * base ** units.index("GiB")), "binary") for gib in rows.estimate]
    return [f"{value:.3g} {unit}" for value, unit in shown]


def _units_in_words(frame: pd.DataFrame) -> Iterator[str]:
    sizes = frame[(frame.quantity == "score_size") & (frame.n > 0) & (frame.dtype == "float16") & (frame.patch != "1")]
    if sizes.empty:
        return

    def listed(prefix: str) -> str:
        rows = sizes[sizes.prefix == prefix].sort_values("side", key=lambda s: s.astype(int))
        return ", ".join(f"{r.estimate:.4g} {r.unit}" for r in rows.itertuples())

    sides = sorted(set(sizes.side.astype(int)))
    yield (
        f"In fp16 one head's scores of images of {', '.join(map(str, sides))} pixels take {listed('binary')}"
        f" ({listed('decimal')})."
    )
    factor = frame[(frame.quantity == "patching_factor") & (frame.n > 0)]
    if len(factor):
        yield f"Pixels have {factor.estimate.iloc[0]:.0f} times as many scores as patches."


def _store_in_words(frame: pd.DataFrame) -> Iterator[str]:
    if shown := _kept(frame):
        yield f"For the backward pass explicit softmax keeps {', '.join(shown)} an image in the whole model."


def _peaks_in_words(frame: pd.DataFrame) -> Iterator[str]:
    peaks = _peaks(frame)
    if peaks.empty:
        return
    longest = peaks[peaks.tokens == max(peaks.tokens)]
    buffers = {(r.attention, r.phase): r.estimate / r.matrix for r in longest.itertuples()}
    exponents = frame[frame.quantity == "memory_exponent"]
    powers = {
        (r.attention, r.phase): f" (growing as length^{r.estimate:.2f} [{r.ci_low:.2f}, {r.ci_high:.2f}])"
        for r in exponents.itertuples()
    }

    def told(attention: str, phase: str) -> str:
        at = attention, phase
        return f"{buffers[at]:.3g}{powers.get(at, '')}" if at in buffers else "unknown"

    yield (
        f"At {max(peaks.tokens)} tokens the forward peak of softmax(QK^T)V step by step is, in score matrices,"
        f" {told('naive', 'forward')}, that of the fused kernel {told('fused', 'forward')}; in training"
        f" {told('naive', 'training')} against {told('fused', 'training')}."
    )


# --- charts ---


def charts(frame: pd.DataFrame) -> list[Mapping[str, Any]]:
    """Size of the scores against the image's side, and peaks against length."""
    return [chart for chart in (_size_chart(frame), _peak_chart(frame)) if chart]


def _size_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt
    import pandas as pd

    known = frame[(frame.n > 0) & (frame.dtype == "float16") & (frame.patch != "1")]
    one = known[(known.quantity == "score_size") & (known.prefix == "binary")].copy()
    stored = known[known.quantity == "stored_size"].copy()
    if one.empty or stored.empty:
        return None
    stored = stored[stored.batch.astype(int) == min(stored.batch.astype(int))].copy()
    one["what"], stored["what"] = "one head", "all heads and layers"
    stored["published"] = math.nan  # a limit that a claim is read by, not a printed size
    rows = pd.concat([one, stored])
    base, units = closed.PREFIXES["binary"]
    scale = rows.unit.map({unit: float(base) ** (power - units.index("MiB")) for power, unit in enumerate(units)})
    for column in ("estimate", "theory", "published"):
        rows[column] = rows[column] * scale
    rows["pixels"] = rows.side.astype(int)
    x = alt.X("pixels:Q", title="side of the image, pixels").scale(type="log", base=2, nice=False, padding=12)
    x = x.axis(values=sorted(set(rows.pixels)))
    y = alt.Y("estimate:Q", title="MiB").scale(type="log", nice=False, padding=8).axis(values=DECADES, format="~g")
    return panel(rows, x, y, "scores in fp16", ["one head", "all heads and layers"])


def _peak_chart(frame: pd.DataFrame) -> Mapping[str, Any] | None:
    import altair as alt

    rows = _peaks(frame)
    if rows.empty:
        return None
    rows["what"] = [f"{attention}, {phase}" for attention, phase in zip(rows.attention, rows.phase, strict=True)]
    mib = float(closed.PREFIXES["binary"][0]) ** 2
    rows["published"] = math.nan
    for column in ("estimate", "theory"):
        rows[column] = rows[column] / mib
    x = alt.X("tokens:Q", title="tokens").scale(type="log", base=2, nice=False, padding=12)
    x = x.axis(values=[n for n in sorted(set(rows.tokens)) if n & (n - 1) == 0])
    y = alt.Y("estimate:Q", title="peak, MiB").scale(type="log", nice=False, padding=8)
    y = y.axis(values=DECADES, format="~g")
    order = [f"{attention}, {phase}" for attention in ATTENTIONS for phase in PHASES]
    return panel(rows, x, y, "peak memory", order)
