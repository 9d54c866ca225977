"""What would have counted as agreement: the tolerance of a printed line in words, whatever the verdict was."""

from attnrepro import stats
from attnrepro.results.protocols import ALPHA
from attnrepro.results.published import PublishedLine
from attnrepro.results.verdicts import HOLDS_EPS, REFUTED_EPS, STRUCTURAL_DRAWS, Case


def tolerance(case: Case) -> str:
    """One sentence with the numbers that the rule of the line's class holds against ours (docs/statistics.md)."""
    line = case.line
    if line.klass == "exact":
        return f"agrees if the theory lies in {_band(line)}"
    if line.klass == "structural":
        unit = case.eps * case.scale
        return (
            f"holds up to an error of {HOLDS_EPS * unit:.2g} ({HOLDS_EPS:g} eps of its scale) in at least"
            f" {STRUCTURAL_DRAWS} draws; refuted from {REFUTED_EPS * unit:.2g} on"
        )
    if line.klass == "ordinal":
        return f"holds if the difference lies above 0 with p of at most {100 * ALPHA:g} %, after Holm over the table"
    if line.klass == "scaling":
        if not line.margin:
            return "none declared: shown for information"
        percent = 100 * float(line.margin)
        return f"agrees if our 95 % interval lies in {_ends(*line.widened)}: {_print(line)} and {percent:g} % of it"
    if line.klass == "literature":
        return "a reference that was looked up says so, or says otherwise"
    return _as_a_draw(case)


def _as_a_draw(case: Case) -> str:
    """Classes sampling and single_run: the printed number as one more result of a declared protocol."""
    rule = f"p of more than {100 * ALPHA:g} % after Holm over the table"
    if case.protocols:
        count = len(case.protocols)
        which = f"at least one of {count} declared protocols" if count > 1 else f"the protocol {case.protocols[0].name}"
        return f"within noise if {_print(case.line)} is an ordinary result of {which}: {rule}"
    estimate = case.estimate
    if case.line.margin.isdigit() and estimate is not None and estimate.sd:
        n = int(case.line.margin)
        center = estimate.value if case.theory is None else case.theory
        half = stats.bonferroni_z(1, ALPHA) * (estimate.sd**2 / n + case.line.resolution**2 / 3) ** 0.5
        return (
            f"within noise if {_print(case.line)} is an ordinary mean of the source's {n} draws: {rule};"
            f" by itself, in {_ends(center - half, center + half)}"
        )
    return "none: the source states no protocol and none was declared"


def _print(line: PublishedLine) -> str:
    return f"the printed {_ends(*line.bounds) if line.has_range else line.printed}"


def _band(line: PublishedLine) -> str:
    rounding = "" if line.has_range else f", what {line.printed} stands for with its rounding"
    return f"{_ends(*line.bounds)}{rounding}"


def _ends(low: float, high: float) -> str:
    return f"[{low:.6g}, {high:.6g}]"
