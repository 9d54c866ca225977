"""``make wandb-dashboard``: a saved workspace and a report for Weights & Biases, built from judged rows.

Built without network, with ``wandb-workspaces`` (``pip install 'attnrepro[workspaces]'``), and written beside the other
results. Only with ``--post`` are they sent, after the runs of the tables, whose history is what they draw.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnrepro import paths
from attnrepro.app import tracking
from attnrepro.app.documents import errata
from attnrepro.app.headline import Headline, headline
from attnrepro.app.report import TableReport, report_table
from attnrepro.app.run import say
from attnrepro.app.wandb_rebuild import NotTaken, send_table, sources, table_run_id
from attnrepro.app.wandb_sync import BAD, FAILED, OK, server, tracking_config
from attnrepro.config import BadInput, TrackingConfig
from attnrepro.results.claims import Claim, load_claims
from attnrepro.results.store import to_json, write_text

NAME = "attnrepro tables"
TITLE = "Attention lectures: printed, measured, exact"
# How each part of a chart is drawn.
MARKS = {
    "ci_low": "dotted",
    "ci_high": "dotted",
    "theory": "dashed",
    "published": "points",
    "published_low": "dotdash",
    "published_high": "dotdash",
}
# Curves of trainings, against the optimiser's step.
CURVES = {"train/loss": "Training loss", "val/accuracy": "Validation accuracy", "val/loss": "Validation loss"}
# Where a user without an account builds them.
NOBODY = "entity"


def by_document(reports: Iterable[TableReport]) -> dict[str, list[TableReport]]:
    """Tables of each document, documents in order."""
    found: dict[str, list[TableReport]] = {}
    for report in reports:
        found.setdefault(str(report.about["document"]), []).append(report)
    return dict(sorted(found.items()))


def panel(report: TableReport, drawn: Headline) -> Any:
    """The chart of a table: what was measured with its interval, theory and print, a line each."""
    import wandb_workspaces.reports.v2 as wr

    run = table_run_id(report.name)
    return wr.LinePlot(
        title=f"{report.about['title']}: {drawn.quantity} {drawn.statistic}",
        x=drawn.x_metric,
        y=list(drawn.titles),
        title_x=drawn.x or "line of the table",
        title_y=f"{drawn.quantity} {drawn.statistic}",
        log_x=drawn.log,
        smoothing_type="none",
        line_titles={f"{run}:{metric}": words for metric, words in drawn.titles.items()},
        line_marks={f"{run}:{m}": MARKS[drawn.part(m)] for m in drawn.titles if drawn.part(m) in MARKS},
    )


def workspace(reports: Sequence[TableReport], *, entity: str, project: str) -> Any:
    """A section a document, a panel a table; shows the runs of the tables only."""
    import wandb_workspaces.workspaces as ws

    sections = []
    for document, members in by_document(reports).items():
        panels = [panel(report, drawn) for report in members if (drawn := headline(report))]
        if panels:
            sections.append(ws.Section(name=f"Document {document}", panels=panels, is_open=True))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=sections,
        settings=ws.WorkspaceSettings(max_runs=100, smoothing_type="none"),
        runset_settings=ws.RunsetSettings(filters=ws.And(ws.Config("kind") == "table")),
    )


def report_page(reports: Sequence[TableReport], claims: Mapping[str, Claim], *, entity: str, project: str) -> Any:
    """What was asked and found, document by document, with its errata, and the curves of all trainings."""
    import wandb_workspaces.reports.v2 as wr

    wrong = _errata_by_document(errata(reports, claims))
    counts: dict[str, int] = {}
    for one in reports:
        for word, count in one.verdicts().items():
            counts[word] = counts.get(word, 0) + count
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    blocks: list[Any] = [
        wr.H1(TITLE),
        wr.MarkdownBlock(
            f"{sum(counts.values())} printed values and claims of {len(by_document(reports))} documents, each held"
            f" against a measurement with its interval and against exact theory where there is one: {told}."
        ),
        wr.TableOfContents(),
    ]
    for document, members in by_document(reports).items():
        blocks.append(wr.H2(f"Document {document}"))
        for one in members:
            blocks += [wr.H3(str(one.about["title"])), wr.MarkdownBlock(_story(one))]
        panels = [panel(one, drawn) for one in members if (drawn := headline(one))]
        if panels:
            # No entity and project: a set of runs without them is of the report's own, and nothing is looked up.
            runs = wr.Runset(name="Tables", filters="Config('kind') = 'table'")
            blocks.append(wr.PanelGrid(runsets=[runs], panels=panels))
        if document in wrong:
            blocks += [wr.H3(f"Errata of document {document}"), wr.MarkdownBlock(wrong[document])]
    curves = [
        wr.LinePlot(title=words, x="trainer/global_step", y=[metric], groupby=wr.Config("table"), smoothing_type="none")
        for metric, words in CURVES.items()
    ]
    cells = wr.Runset(name="Cells", filters="Config('kind') = 'cell'")
    blocks += [wr.H2("Learning curves"), wr.PanelGrid(runsets=[cells], panels=curves)]
    return wr.Report(entity=entity, project=project, title=TITLE, blocks=blocks, width="fluid")


def _story(report: TableReport) -> str:
    parts = [f"**{report.about['question']}**", report.answer, str(report.about["how_to_read"]).strip()]
    verdicts = ", ".join(f"{count} {word}" for word, count in sorted(report.verdicts().items()))
    return "\n\n".join(part for part in [*parts, verdicts] if part)


def _errata_by_document(page: str) -> dict[str, str]:
    """The parts of docs/errata.md by document, without links that lead nowhere outside of the repository."""
    parts = page.split("\n## Document ")[1:]
    return {part.split("\n", 1)[0].strip(): _without_rows(part.split("\n", 1)[1]) for part in parts}


def _without_rows(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("Rows: ")).strip()


def as_json(model: Any) -> str:
    """A workspace or report as it would be sent, with ids that do not change from one call to the next."""
    seen: dict[str, str] = {}

    def steady(value: Any) -> Any:
        if isinstance(value, list):
            return [steady(item) for item in value]
        if not isinstance(value, dict):
            return value
        found = {}
        for key, item in value.items():
            if key in ("__id__", "id") and isinstance(item, str) and item:
                found[key] = seen.setdefault(item, f"id{len(seen)}")
            else:
                found[key] = steady(item)
        return found

    # The library has no public way to see what it sends.
    plain = json.loads(model._to_model().model_dump_json(by_alias=True, exclude_none=True))
    return to_json(steady(plain))


def judged() -> tuple[list[TableReport], dict[str, Claim]]:
    """All tables, judged, and the claims of the documents."""
    store, raw = sources()
    repository = paths.repository()
    claims = load_claims(repository / "results" / "claims.csv") if repository else {}
    return [report_table(table, store, raw) for table in paths.table_names()], claims


def post(
    config: TrackingConfig, reports: Sequence[TableReport], claims: Mapping[str, Claim], memory: Path
) -> tuple[str, str]:
    """Send the runs of the tables, then workspace and report; returns their addresses.

    The file ``memory`` keeps the ids of what was posted where, so that the next time the same pages are changed.

    Raises:
        NotTaken: the server did not take a run or a page.
    """
    os.environ |= {"WANDB_BASE_URL": tracking.base_url(), "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    import wandb

    with tempfile.TemporaryDirectory(prefix="attnrepro-") as folder:
        for one in reports:
            send_table(config, Path(folder), one)
    try:
        entity = config.entity or str(wandb.Api().default_entity)
        known = json.loads(memory.read_text(encoding="utf-8")) if memory.is_file() else {}
        place = f"{tracking.base_url()}/{entity}/{config.project}"
        ids = known.get(place, {})
        saved = workspace(reports, entity=entity, project=config.project)
        saved._internal_name, saved._internal_id = ids.get("workspace", ("", ""))
        saved.save()
        page = report_page(reports, claims, entity=entity, project=config.project)
        page.id = ids.get("report", "")
        page.save()
        known[place] = {"workspace": (saved._internal_name, saved._internal_id), "report": page.id}
        write_text(memory, to_json(known))
        return saved.url, page.url
    except Exception as error:  # whatever the server or the library dislikes is one sentence
        raise NotTaken(f"The page was not taken ({str(error).splitlines()[0] if str(error) else error!r}).") from error


def main(argv: Sequence[str]) -> int:
    """Build and write; with ``--post`` send. 0 done, 1 not taken, 2 bad arguments or no wandb-workspaces."""
    folder = paths.results_dir() / "wandb"
    try:
        config = tracking_config([argument for argument in argv if argument != "--post"])
        reports, claims = judged()
        where = {"entity": config.entity or NOBODY, "project": config.project}
        for name, model in (
            ("workspace", workspace(reports, **where)),
            ("report", report_page(reports, claims, **where)),
        ):
            write_text(folder / f"{name}.json", as_json(model))
            say(f"wandb-dashboard: {folder / name}.json")
        if "--post" not in argv:
            say("wandb-dashboard: nothing was sent; POST=1 sends it")
            return OK
        if reason := server(config):
            raise NotTaken(reason)
        for address in post(config, reports, claims, folder / "posted.json"):
            say(f"wandb-dashboard: {address}")
    except BadInput as error:
        say(f"wandb-dashboard: {error}")
        return BAD
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "wandb_workspaces":
            raise
        say("wandb-dashboard: wandb-workspaces is not installed: pip install 'attnrepro[workspaces]'")
        return BAD
    except NotTaken as error:
        say(f"wandb-dashboard: nothing more was sent. {error}")
        return FAILED
    return OK
