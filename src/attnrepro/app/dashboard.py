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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd

from attnrepro.app import playground
from attnrepro.app.documents import first_sentence
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
    file, ``runs`` what is known of the runs behind the rows, a mapping each.
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
            f'<div class="chart" role="img" aria-label="{_text(name)}"></div>'
            if _has_rows(chart)
            else f"<p>{_text(name)}: no values to draw yet.</p>"
            for name, chart in zip(names, page.charts, strict=True)
        ),
        key=_text("; ".join(text for style, text in _STYLE_KEY.items() if style in _styles(page.charts))),
        runs=_text(_plural(len(page.runs), "set of runs") if page.runs else "no runs yet"),
        provenance=_runs(page.runs),
        data=_json(
            _packed(
                {
                    "axes": page.axes,
                    "rows": len(page.frame),
                    "columns": {name: _column(page.frame[name]) for name in (*page.axes, *TABLE_COLUMNS)},
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


# Size of a sparkline, and the most values that one shows.
_SPARK = (132, 34)
_SPARK_POINTS = 24


def _sparkline(page: TablePage) -> str:
    """A small picture of the quantity with the most printed numbers: crosses, and what was measured as dots."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    columns = (page.frame[name] for name in ("quantity", "statistic", "published", "estimate", "variant"))
    for quantity, statistic, published, estimate, variant in zip(*columns, strict=True):
        pair = (_float(_cell(published)), _float(_cell(estimate)))
        if all(map(math.isfinite, pair)) and not _cell(variant):
            points.setdefault((_cell(quantity), _cell(statistic)), []).append(pair)
    if not points:
        return ""
    (quantity, _), chosen = max(points.items(), key=lambda item: len(item[1]))
    chosen = chosen[:_SPARK_POINTS]
    if len(chosen) < 2:
        return ""
    low, high = min(map(min, chosen)), max(map(max, chosen))
    width, height = _SPARK

    def at(index: int, value: float) -> tuple[float, float]:
        share = (value - low) / (high - low) if high > low else 0.5
        return round(6 + index * (width - 12) / (len(chosen) - 1), 1), round(height - 6 - share * (height - 12), 1)

    dots = "".join('<circle cx="{}" cy="{}" r="2.2"/>'.format(*at(i, ours)) for i, (_, ours) in enumerate(chosen))
    line = " ".join("{},{}".format(*at(i, ours)) for i, (_, ours) in enumerate(chosen))
    crosses = "".join(
        "M{} {}l5 5m0 -5l-5 5".format(*(round(place - 2.5, 1) for place in at(i, printed)))
        for i, (printed, _) in enumerate(chosen)
    )
    words = f"{quantity}: {len(chosen)} measured values (dots) beside the printed ones (crosses)"
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{_text(words)}"><title>{_text(words)}</title><polyline points="{line}"/>{dots}'
        f'<path d="{crosses}"/></svg>'
    )


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _errata(errata: Sequence[Erratum]) -> str:
    out = []
    document = ""
    for one in errata:
        if one.document != document:
            document = one.document
            out.append(f"<h3>Document {_text(document)}</h3>")
        verdicts = " ".join(dict.fromkeys(_text(verdict) for verdict, _, _ in one.lines))
        row = f"#/{_text(one.lines[0][2])}/{_text(one.claim)}"
        lines = "".join(
            f'<li>{_chip(verdict)} {_text(words)} <a href="#/{_text(table)}/{_text(one.claim)}">{_text(table)}</a></li>'
            for verdict, words, table in one.lines
        )
        out.append(
            f'<div class="erratum" data-document="{_text(one.document)}" data-verdicts="{verdicts}">'
            f'<h4><a href="{row}">'
            f"<code>{_text(one.claim)}</code></a> <small>{_text(one.section)}</small></h4><ul>{lines}</ul>"
            + "".join(f"<p>{_text(reason)}</p>" for reason in one.reasons)
            + "</div>"
        )
    return "".join(out) or "<p>Nothing that does not hold has been found.</p>"


def _chart_name(page: TablePage, number: int) -> str:
    chart = page.charts[number]
    title = chart.get("title")
    text = chart.get("description") or (title.get("text") if isinstance(title, dict) else title) or page.title
    return f"{page.table}, chart {number + 1}: {text}"


def _styles(spec: object) -> set[str]:
    """Names of the mark styles used anywhere in a specification."""
    found: set[str] = set()
    for node in _dicts(spec):
        style = node.get("style", ())
        found.update([style] if isinstance(style, str) else style)
    return found


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


def _column(values: pd.Series[Any]) -> str | list[str]:
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
