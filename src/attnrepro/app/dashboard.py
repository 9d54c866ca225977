"""The dashboard: every table as one self-contained HTML page that opens from disk and asks for no network.

Text from the rows reaches the page in two ways only: escaped HTML text (cards and errata, written here) and JSON in
inert ``<script type="application/json">`` blocks, which ``assets/page.js`` inserts as text nodes. A content
security policy names the two scripts of the page by hash and forbids every request, so that a string that
slipped through could neither run nor call anywhere. The rows of a table are compressed (JSON, gzip, base64) and
unpacked when somebody opens the table or searches: the page stays small and opens at once.

One file has several views, chosen by the part of the address behind ``#``: the overview, a table by its name, a row of
it by ``<table>/<claim>``, ``page-errata``, ``page-machines`` and ``page-playground`` (`attnrepro.app.playground`).

Charts are Vega-Lite specifications. The page gives them width, fonts, colours for light and dark, and four
mark styles to be used instead of literal colours: ``measured``, ``interval``, ``theory`` and ``published``
(``mark_line(style="theory")``).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from attnrepro.app import playground
from attnrepro.app.documents import first_sentence
from attnrepro.app.headline import DECADES, Headline
from attnrepro.results.rows import TABLE_COLUMNS
from attnrepro.results.store import write_text

# word: (kind, meaning). The kind selects colour and sign of a chip; the order, worst first, is the page's.
VERDICTS = {
    "FAILED": ("broken", "Our own measurement and theory disagree: a bug of ours, not a finding."),
    "SOURCE_ERROR": ("disagrees", "Theory and an independent measurement both exclude the printed value."),
    "CONTRADICTED": ("disagrees", "A checked reference says otherwise."),
    "DIFFERS": ("disagrees", "The printed number is not a plausible draw of the protocols that were tried."),
    "TREND_FAILS": ("disagrees", "The interval of the paired difference lies on the other side of zero."),
    "INCONCLUSIVE": ("open", "The measurement cannot decide."),
    "NOT_RUN": ("none", "Not measured; the note has the reason."),
    "NOT_JUDGED": ("none", "Shown for information: milliseconds of one machine, or no reference was found."),
    "WITHIN_NOISE": ("agrees", "The printed number is a plausible draw, given its sample size and rounding."),
    "TREND_HOLDS": ("agrees", "The interval of the paired difference lies on the claimed side of zero."),
    "CONFIRMED": ("agrees", "A checked reference agrees."),
    "REPRODUCED": ("agrees", "Theory and measurement agree with the printed value within its rounding."),
}

# What stands behind a verdict and is too long for the CSV: see `TablePage.hover`.
HOVER = ("tolerance", "found", "reason")

_STYLE_KEY = {
    "measured": "points: measured",
    "interval": "bars: 95 % interval",
    "theory": "dashed line: theory",
    "published": "×: published",
}


@dataclass(frozen=True)
class TablePage:
    """What the page shows of one table.

    ``document`` is a document id (000-004) with its section, ``answer`` the sentence made from the rows,
    ``command`` the exact command line. ``frame`` has the axes and then ``TABLE_COLUMNS``; a cell is a number, or a
    string as read with ``dtype=str, keep_default_na=False``. An empty string, ``None`` and a float NaN are
    missing values, while the string ``nan`` is a measured NaN and is shown as such. ``charts`` are Vega-Lite
    specifications; ``description`` (else ``title``) of each becomes its accessible name. ``yaml`` is the table's own
    file, ``runs`` what is known of the runs behind the rows, a mapping each. ``hover`` has, for each row of the frame,
    what opens at its verdict: the tolerance, what was found, and the reason for class and margin; empty: the note.
    ``headline`` is what the card sketches.
    """

    table: str
    title: str
    document: str
    question: str
    answer: str
    command: str
    how_to_read: str
    frame: pd.DataFrame
    axes: tuple[str, ...]
    charts: tuple[dict[str, Any], ...]
    yaml: str = ""
    runs: tuple[Mapping[str, str], ...] = ()
    hover: tuple[Mapping[str, str], ...] = ()
    headline: Headline | None = None

    @cached_property
    def card(self) -> str:
        """Its part of the page: most of the time that rendering takes."""
        return _card(self)


@dataclass(frozen=True)
class Erratum:
    """A statement of a document that does not hold, with the rows that say so.

    ``lines`` are (verdict, sentence, table) of each row; ``reasons`` say why, and when the statement would hold.
    """

    document: str
    section: str
    claim: str
    lines: tuple[tuple[str, str, str], ...]
    reasons: tuple[str, ...]


def render(pages: Sequence[TablePage], heading: str, subtitle: str, errata: Sequence[Erratum] = ()) -> str:
    """Return the HTML page; the same input gives the same text.

    The first call in a process that has a chart takes about a second, to bundle the chart library. Raises
    ``ValueError`` if a frame lacks a column or two pages have the same table name.
    """
    _check(pages)
    script = _asset("page.js") + _asset("playground.js")
    library = _chart_library() if any(page.charts for page in pages) else ""
    counts = Counter(str(word) for page in pages for word in page.frame["verdict"] if _cell(word))
    rows = sum(len(page.frame) for page in pages)
    verdicts = {word: {"kind": kind, "meaning": meaning} for word, (kind, meaning) in VERDICTS.items()}
    page = _fill(
        _asset("template.html"),
        policy=_policy(script, library),
        heading=_text(heading),
        subtitle=_text(subtitle),
        totals=f"{_plural(len(pages), 'table')}, {_plural(rows, 'row')}, {counts.total()} with a verdict",
        filters="".join(_filter_chip(word, counts[word]) for word in _ranked(counts)),
        documents=_options(sorted({_number(page) for page in pages} - {""})),
        scales=_options(sorted({_cell(scale) for page in pages for scale in page.frame["scale"]} - {""})),
        meanings="".join(
            f"<div><dt>{_chip(word)}</dt><dd>{_text(meaning)}</dd></div>" for word, (_, meaning) in VERDICTS.items()
        ),
        contents="".join(
            f'<option value="{_text(p.table)}"{_chinese(p.table)}>{_text(p.title)}</option>' for p in pages
        ),
        errata=_errata(errata),
        playground=playground.section(),
        cards="".join(page.card for page in pages),
        verdicts=_json(verdicts),
        labels=_json({"quantities": labels()["quantities"], "words": labels()["words"]}),
        chart_config=_json(chart_config()),
        style=_asset("page.css") + _asset("playground.css"),
        script=script,
        library=library,
    )
    # A lone surrogate is no text; it must not keep the whole page from being written.
    return page.encode("utf-8", "replace").decode("utf-8")


def write(pages: Sequence[TablePage], path: Path, heading: str, subtitle: str, errata: Sequence[Erratum] = ()) -> bool:
    """Write the page to ``path``; return False and touch nothing if the file already has these bytes.

    The file appears whole: a reader sees the old page or the new one. Raises what ``render`` raises.
    """
    return write_text(path, render(pages, heading, subtitle, errata))


def _check(pages: Sequence[TablePage]) -> None:
    for page in pages:
        missing = [name for name in (*page.axes, *TABLE_COLUMNS) if name not in page.frame.columns]
        if missing:
            raise ValueError(f"table {page.table} lacks the column(s) {', '.join(missing)}")
        if page.hover and len(page.hover) != len(page.frame):
            raise ValueError(f"table {page.table} has {len(page.frame)} rows and hover texts for {len(page.hover)}")
    name, times = Counter(page.table for page in pages).most_common(1)[0] if pages else ("", 0)
    if times > 1:
        raise ValueError(f"table {name} is given {times} times")


def _card(page: TablePage) -> str:
    names = [_chart_name(page, number) for number in range(len(page.charts))]
    counts = Counter(str(word) for word in page.frame["verdict"] if _cell(word))
    first, more = first_sentence(page.answer)
    return _fill(
        _asset("card.html"),
        table=_text(page.table),
        layout="one-chart" if len(page.charts) == 1 else "",
        number=_text(_number(page)),
        title=_text(page.title),
        title_zh=_chinese(page.table),
        document=_text(page.document),
        question=_text(page.question),
        answer=_text(first),
        more=_more(more),
        counts=" ".join(f"{_chip(word, counts[word])}" for word in _ranked(counts)),
        sparkline=_sparkline(page),
        command=_text(page.command),
        how_to_read=_text(page.how_to_read),
        charts="".join(
            f'<div class="chart" role="img" aria-label="{_text(name)}" style="min-height:{_height(chart)}px"></div>'
            if _has_rows(chart)
            else f"<p>{_text(name)}: no values to draw yet.</p>"
            for name, chart in zip(names, page.charts, strict=True)
        ),
        key=_text("; ".join(text for style, text in _STYLE_KEY.items() if style in _styles(page.charts))),
        runs=_text(_plural(len(page.runs), "group") + " of cells" if page.runs else "no runs yet"),
        provenance=_runs(page.runs),
        data=_json(
            _packed(
                {
                    "axes": page.axes,
                    "rows": len(page.frame),
                    "columns": {name: _column(page.frame[name]) for name in (*page.axes, *TABLE_COLUMNS)},
                    "hover": {name: _column(row[name] for row in page.hover) for name in HOVER} if page.hover else {},
                    "charts": [
                        {**chart, "description": name}
                        for name, chart in zip(names, page.charts, strict=True)
                        if _has_rows(chart)
                    ],
                    "yaml": page.yaml,
                }
            )
        ),
    )


def _more(text: str) -> str:
    """What follows an answer's first sentence; folded up where it would push the charts off the screen."""
    if len(text) <= _LONGEST:
        return f'<p class="more full">{_text(text)}</p>' if text else ""
    words = 'data-zh="回答的其餘部分"'
    return f'<details class="more full"><summary {words}>More of the answer</summary><p>{_text(text)}</p></details>'


# Characters of an answer, after its first sentence, that a table's page shows at once.
_LONGEST = 400


def _packed(value: object) -> str:
    """JSON, gzip, base64: `unpack` of the page undoes it. The same value gives the same text."""
    # gzip's header would name the time and the system.
    return base64.b64encode(gzip.compress(_json(value).encode("utf-8", "replace"), 9, mtime=0)).decode()


def _number(page: TablePage) -> str:
    """Number of the document a table belongs to."""
    found = re.search(r"\d{3}", page.document)
    return found[0] if found else ""


def _options(words: Sequence[str]) -> str:
    return "".join(f"<option>{_text(word)}</option>" for word in words)


def _chinese(table: str) -> str:
    """The attribute with a table's Chinese title, where there is one."""
    title = labels()["titles"].get(table)
    return f' data-zh="{_text(title)}"' if title else ""


def _ranked(counts: Mapping[str, int]) -> list[str]:
    return sorted(counts, key=lambda word: (_rank(word), word))


def _runs(runs: Sequence[Mapping[str, str]]) -> str:
    """What is known of the runs, a column each."""
    if not runs:
        return ""
    lines = []
    for name in dict.fromkeys(name for run in runs for name in run):
        cells = "".join(f"<td>{_link(run.get(name, ''))}</td>" for run in runs)
        lines.append(f'<tr><th scope="row">{_text(name)}</th>{cells}</tr>')
    return f'<div class="sheet" tabindex="0"><table>{"".join(lines)}</table></div>'


def _link(text: str) -> str:
    """Addresses of the web become links, everything else stays text."""
    parts = [
        f'<a href="{_text(part)}" rel="noreferrer">{_text(part)}</a>' if re.match(r"https?://", part) else _text(part)
        for part in text.split(" ")
    ]
    return " ".join(parts)


# Size of a sparkline.
_SPARK = (132, 34)


def _sparkline(page: TablePage) -> str:
    """A small picture of what stands for the table: dots for what was measured, crosses for what was printed.

    Without three measured values there is nothing to see; then the verdicts are drawn, as parts of a bar.
    """
    if page.headline is None or len(_points(page.headline, "measured")) < 3:
        return _verdict_bar(page)
    shown = page.headline
    measured, printed = _points(shown, "measured"), _points(shown, "published")
    width, height = _SPARK
    across = _along([x for x, _ in measured + printed], shown.log, 6, width - 6)
    values = [value for _, value in measured + printed]
    wide = min(values) > 0 and max(values) / min(values) >= DECADES
    up = _along(values, wide, height - 6, 6)
    marks = []
    for number, series in enumerate(shown.of("measured"), 1):
        dots = [(across(x), up(value)) for x, value in series]
        # Without an axis of numbers neighbours have nothing to do with each other.
        line = " ".join(f"{x},{y}" for x, y in dots) if shown.x and len(dots) > 1 else ""
        marks.append(
            f'<g class="of-{number}">'
            + (f'<polyline points="{line}"/>' if line else "")
            + "".join(f'<circle cx="{x}" cy="{y}" r="{2.2 if len(dots) < 15 else 1.2}"/>' for x, y in dots)
            + "</g>"
        )
    crosses = "".join(f"M{round(across(x) - 2.5, 1)} {round(up(value) - 2.5, 1)}l5 5m0 -5l-5 5" for x, value in printed)
    words = f"{shown.quantity}{f' against {shown.x}' if shown.x else ''}: {len(measured)} measured values (dots)" + (
        f" beside {len(printed)} printed ones (crosses)" if printed else ""
    )
    return _picture(words, "".join(marks) + (f'<path d="{crosses}"/>' if crosses else ""))


def _points(shown: Headline, part: str) -> list[tuple[float, float]]:
    return [point for series in shown.of(part) for point in series]


def _along(values: Sequence[float], log: bool, start: float, end: float) -> Callable[[float], float]:
    """Where a value stands between ``start`` and ``end``, in pixels."""
    scale = math.log if log else float
    low, high = scale(min(values)), scale(max(values))

    def place(value: float) -> float:
        share = (scale(value) - low) / (high - low) if high > low else 0.5
        return round(start + share * (end - start), 1)

    return place


def _verdict_bar(page: TablePage) -> str:
    """The verdicts of a table as parts of a bar, the best ones first; empty without any."""
    counts = Counter(str(word) for word in page.frame["verdict"] if _cell(word))
    width, height = _SPARK
    at, parts = 0.0, []
    for word in reversed(_ranked(counts)):
        size = width * counts[word] / counts.total()
        kind = VERDICTS.get(word, ("none", ""))[0]
        parts.append(
            f'<rect class="{kind}" x="{at:.1f}" y="{height / 2 - 6:.1f}" width="{max(1.0, size - 1):.1f}" height="12"/>'
        )
        at += size
    words = ", ".join(f"{counts[word]} {word}" for word in reversed(_ranked(counts)))
    return _picture(f"verdicts: {words}", "".join(parts)) if parts else ""


def _picture(words: str, content: str) -> str:
    width, height = _SPARK
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{_text(words)}"><title>{_text(words)}</title>{content}</svg>'
    )


def _errata(errata: Sequence[Erratum]) -> str:
    """Contents, and a part for each document; of a statement the first figures show, the rest is folded up."""
    parts: dict[str, list[Erratum]] = {}
    for one in errata:
        parts.setdefault(one.document, []).append(one)
    if not parts:
        return "<p>Nothing that does not hold has been found.</p>"
    contents = "".join(
        f'<li data-document="{_text(document)}">'
        f'<a href="#/page-errata/{_text(document)}">Document {_text(document)}</a>'
        f" {_text(_plural(len(members), 'statement'))} {_verdict_counts(members)}</li>"
        for document, members in parts.items()
    )
    return f'<ul class="contents">{contents}</ul>' + "".join(
        f'<section data-part="{_text(document)}"><h3 tabindex="-1">Document {_text(document)}</h3>'
        + "".join(map(_erratum, members))
        + "</section>"
        for document, members in parts.items()
    )


def _verdict_counts(errata: Sequence[Erratum]) -> str:
    counts = Counter(verdict for one in errata for verdict in dict.fromkeys(verdict for verdict, _, _ in one.lines))
    return " ".join(_chip(word, counts[word]) for word in _ranked(counts))


def _erratum(one: Erratum) -> str:
    verdicts = list(dict.fromkeys(verdict for verdict, _, _ in one.lines))
    lines = "".join(
        f'<li>{_chip(verdict)} {_text(words)} <a href="#/{_text(table)}/{_text(one.claim)}">{_text(table)}</a></li>'
        for verdict, words, table in one.lines
    )
    rest = _plural(len(one.lines) - 1, "more line")
    more = f" <small>and {_text(rest)}</small>" if len(one.lines) > 1 else ""
    return (
        f'<details class="erratum" data-document="{_text(one.document)}" data-verdicts="{_text(" ".join(verdicts))}">'
        f"<summary>{' '.join(map(_chip, verdicts))} <code>{_text(one.claim)}</code>"
        f' <span class="first">{_text(one.lines[0][1])}</span>{more}</summary>'
        f"<p><small>{_text(one.section)}</small></p><ul>{lines}</ul>"
        + "".join(f"<p>{_text(reason)}</p>" for reason in one.reasons)
        + "</details>"
    )


def _chart_name(page: TablePage, number: int) -> str:
    chart = page.charts[number]
    title = chart.get("title")
    text = chart.get("description") or (title.get("text") if isinstance(title, dict) else title) or page.title
    words = text if isinstance(text, str) else " ".join(text)
    return f"{page.table}, chart {number + 1}: {words}"


def _styles(spec: object) -> set[str]:
    """Names of the mark styles used anywhere in a specification."""
    found: set[str] = set()
    for node in _dicts(spec):
        style = node.get("style", ())
        found.update([style] if isinstance(style, str) else style)
    return found


def _height(spec: Mapping[str, Any]) -> int:
    """About how high a chart will be, so that little moves when it is drawn: plot, title, axis and legend."""
    height = spec.get("height", 260)
    if isinstance(height, dict):  # so many pixels a line
        places = {str(row.get("where")) for node in _dicts(spec) for row in node.get("values", ()) if "where" in row}
        height = height.get("step", 20) * len(places)
    return 100 + int(height) if isinstance(height, int | float) else 300


def _has_rows(spec: Mapping[str, Any]) -> bool:
    """False if a specification carries data sets and all of them are empty."""
    data = [node["data"] for node in _dicts(spec) if isinstance(node.get("data"), dict)]
    sets = [*(part["values"] for part in data if "values" in part), *spec.get("datasets", {}).values()]
    return not sets or any(sets)


def _dicts(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ()
    for child in children:
        yield from _dicts(child)


def _column(values: Iterable[Any]) -> str | list[str]:
    """Cells as strings; one string stands for a column that is the same in every row."""
    cells = [_cell(value) for value in values]
    return cells[0] if len(set(cells)) == 1 else cells


def _cell(value: Any) -> str:
    """Text of a cell: strings as they are, numbers with ``repr`` precision, missing values empty."""
    if isinstance(value, str):
        return value
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return ""
    return repr(value.item() if hasattr(value, "item") else value)


def _rank(word: str) -> int:
    return list(VERDICTS).index(word) if word in VERDICTS else len(VERDICTS)


def _chip(word: str, count: int | None = None) -> str:
    kind = VERDICTS.get(word, ("none", ""))[0]
    return f'<span class="chip {kind}">{_text(word)}{"" if count is None else f" <b>{count}</b>"}</span>'


def _filter_chip(word: str, count: int) -> str:
    kind = VERDICTS.get(word, ("none", ""))[0]
    return (
        f'<button type="button" class="chip {kind}" data-verdict="{_text(word)}" aria-pressed="false">'
        f"{_text(word)} <b>{count}</b></button>"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _text(value: object) -> str:
    return html.escape(str(value))


def _json(value: object) -> str:
    """JSON that can stand inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _plain(value: Any) -> Any:
    """Turn numpy scalars into Python's, and numbers that JSON does not have into null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


@cache
def labels() -> dict[str, dict[str, str]]:
    """Chinese titles of tables, names of quantities, and words of the page; what is missing stays English."""
    found: dict[str, dict[str, str]] = json.loads(_asset("zh.json"))
    return found


def chart_config() -> dict[str, Any]:
    """Look of all charts, as a Vega-Lite ``config`` whose colours are variables of the style sheet."""
    config: dict[str, Any] = json.loads(_asset("chart.json"))
    return config


def light_colours() -> dict[str, str]:
    """The style sheet's variables, as they are in the light."""
    block = re.search(r":root \{(.*?)\}", _asset("page.css"), re.DOTALL)
    assert block is not None, "the style sheet begins with the light colours"
    return dict(re.findall(r"(--[\w-]+): ([^;]+);", block[1]))


@cache
def _chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that defines ``vegaEmbed`` and nothing else.

    The function around it keeps the bundle's thousands of one-letter constants out of the global scope.
    """
    import vl_convert

    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return "(() => {" + bundle.replace("</script", r"<\/script").replace("<!--", r"<\!--") + "\n})();"


def _policy(*scripts: str) -> str:
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts if script)
    sources = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _fill(template: str, **values: str) -> str:
    """Replace each ``{{name}}`` once; what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)
