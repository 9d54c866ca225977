"""`make why CLAIM=<id>`: what is said of a printed value, and that the command it gives measures that value."""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnrepro import paths
from attnrepro.environment import environment
from attnrepro.results.store import Store

from .toy import REPOSITORY, Copy, Inside, clean_environment, read_table

slow = pytest.mark.slow  # what needs the repository that takes some seconds to make
HERE = environment("cpu")


def answer(checkout: Inside, claim: str) -> str:
    from attnrepro.app.why import why

    checkout.refresh()
    return why(claim, checkout.copy.root, Store(checkout.results))


def told(text: str, word: str) -> list[str]:
    """What stands in the lines of one kind."""
    return re.findall(rf"^  {word} +(.*)$", text, re.MULTILINE)


def planned(command: str) -> list[tuple[str, dict[str, object]]]:
    """Key and configuration of each cell that a command plans."""
    from attnrepro.app.precheck import make_plan

    name, *overrides = shlex.split(command)
    assert name == "attnrepro"
    plan = make_plan(overrides)
    assert plan.one_cell
    return [(cell.cell.key, cell.cell.science()) for cell in plan.cells]


def key_of(path: Path, **at: str) -> str:
    """Key of the cell whose reference has a measured row there."""
    with path.open(newline="") as file:
        (key,) = {r["key"] for r in csv.DictReader(file) if r["source"] == "measured" and at.items() <= r.items()}
    return key


@slow
def test_a_value_of_one_cell(checkout: Inside) -> None:
    text = answer(checkout, "toy-sampling")
    assert text.splitlines()[0] == "toy-sampling: document 000, section: The first"
    assert told(text, "what") == ["level mean (point=2)"]
    assert told(text, "printed") == ["2.30 ± 0.005"]
    assert told(text, "class") == ["sampling, margin 100"]
    assert told(text, "reason") == ["from 100 draws"]
    (row,) = [r for r in read_table(checkout.results, "toy") if r["claim"] == "toy-sampling"]
    numbers = [float(number) for number in re.findall(r"[\d.]+", told(text, "measured")[0])]
    assert numbers == pytest.approx([float(row[c]) for c in ("estimate", "ci_low", "ci_high", "n")], rel=1e-8)
    assert told(text, "where") == [f"yours, {HERE}, scale cpu"]
    assert told(text, "theory") == ["2.25"]
    assert told(text, "verdict") == [f"WITHIN_NOISE, p = {float(row['p']):.3g}"]
    assert told(text, "note") == [row["note"].removesuffix("; from 100 draws")]
    ((key, science),) = planned(told(text, "again")[0])
    assert key == key_of(checkout.results / "raw" / HERE / "toy.csv", point="2")
    assert science["params"] == {"point": 2, "n": 400, "shift": 0.25, "fail": [], "bulky": []}
    for name in told(text, "files")[0].split():
        assert (checkout.copy.root / name).is_file()


@slow
def test_the_reference_where_there_are_no_own_rows(checkout: Inside) -> None:
    own = answer(checkout, "toy-sampling")
    shutil.rmtree(checkout.results / "runs")
    reference = answer(checkout, "toy-sampling")
    assert reference == own.replace("yours,", "reference,")


@slow
def test_the_printed_command_makes_the_cell_again(checkout: Inside) -> None:
    command = told(answer(checkout, "toy-exact"), "again")[0]
    shutil.rmtree(checkout.results / "runs")
    done = checkout.attnrepro(*shlex.split(command)[1:])
    assert done.code == 0
    assert "toy: 1 ran, 0 reused" in done.err
    from attnrepro.app.check import check

    ((result,), _) = check(["toy"], Store(checkout.results), checkout.results / "raw")
    assert result.said == [f"not run: 5 cells ({HERE}, scale cpu)", f"1 cells byte for byte ({HERE}, scale cpu)"]
    assert result.failures == []


@slow
def test_other_environments_and_stale_cells_are_said(checkout: Inside) -> None:
    raw = checkout.results / "raw"
    shutil.copytree(raw / HERE, raw / "cuda-Another-torch2.13")
    checkout.copy.edit("experiments/toy/table.py", 'NAME = "toy"', 'NAME = "to" + "y"')
    text = answer(checkout, "toy-sampling")
    assert told(text, "where") == [f"yours, {HERE}, scale cpu, stale: made by other code than today's"]
    (also,) = told(text, "also")
    assert also.startswith("cuda-Another-torch2.13, scale cpu: 2.2")
    assert also.endswith(": WITHIN_NOISE")


@slow
def test_several_ids_as_they_stand_in_a_table(checkout: Inside) -> None:
    one, other = answer(checkout, "toy-exact"), answer(checkout, "toy-trend")
    assert one != other
    for asked in (
        "toy-exact;toy-trend",
        " toy-exact ;  toy-trend;",
        "toy-exact toy-trend",
        "toy-exact;toy-trend;toy-exact",
    ):
        assert answer(checkout, asked) == f"{one}\n\n{other}"
    for asked in ("toy-exact;toy-exat", "toy-exat"):
        with pytest.raises(ValueError, match="CLAIM=toy-exat: there is no such claim; the closest: toy-exact,"):
            answer(checkout, asked)


@slow
def test_an_id_of_a_table_itself(checkout: Inside) -> None:
    """What is in no list of claims, or in the list for no table, is answered where a table has it."""
    listed = checkout.copy.root / "results" / "claims.csv"
    whole = listed.read_text()
    before = answer(checkout, "toy-exact").splitlines()
    listed.write_text(whole.replace("toy-exact,000,The first,toy\n", "toy-exact,000,The first,\n"))
    assert answer(checkout, "toy-exact").splitlines() == before
    listed.write_text(whole.replace("toy-exact,000,The first,toy\n", ""))
    head, *rest = answer(checkout, "toy-exact").splitlines()
    assert head == "toy-exact: document 000, an id of the table toy itself, not listed in results/claims.csv"
    assert rest == before[1:]
    listed.write_text(whole.replace("toy-open,002,The third,toy\n", ""))
    assert answer(checkout, "toy-open").splitlines() == [
        "toy-open: an id of its own, not listed in results/claims.csv",
        "  not measured: nobody knows how",
    ]


@slow
def test_a_number_that_is_ranked_among_several_ways_has_a_command_for_each(checkout: Inside) -> None:
    """Points 1 to 3 of toy with seeds for draws; the printed number may be of 1 or 3."""
    root = checkout.copy.root
    checkout.copy.edit("conf/experiment/toy.yaml", "seeds: [0]", "seeds: [0,1,2,3,4]")
    checkout.copy.edit("experiments/toy/measure.py", "n=len(all_of_them), sd=sd", "n=1")
    checkout.copy.edit("experiments/toy/table.py", "def monte_carlo(frame):", "def unused(frame):")
    table = root / "experiments" / "toy" / "table.py"
    table.write_text(
        table.read_text()
        + "\n\ndef protocols(line, frame):\n"
        + "    from attnrepro.results.verdicts import Protocol\n\n"
        + "    rows = frame[frame.point.isin(['1', '3'])].to_dict('records')\n"
        + "    return [Protocol(r['point'], r['estimate'], 0.0, tuple(r['by_seed'].values())) for r in rows]\n"
    )
    published = root / "results" / "published" / "toy.csv"
    published.write_text(published.read_text().replace("sampling,100,", "single_run,,"))
    assert checkout.attnrepro("experiment=toy", "scale=cpu").code == 0
    text = answer(checkout, "toy-sampling")
    commands = [*told(text, "again"), *told(text, "other way")]
    assert [planned(command)[0][1]["params"]["point"] for command in commands] == [2, 1, 3]  # type: ignore[index]
    assert told(answer(checkout, "toy-exact"), "other way") == []


@slow
def test_several_lines_of_one_claim_and_several_claims_of_one_line(checkout: Inside) -> None:
    path = checkout.copy.root / "results" / "published" / "toy.csv"
    path.write_text(path.read_text() + "toy-sampling,3,level,mean,,3.0,3.5,exact,,a range\n")
    text = answer(checkout, "toy-sampling")
    assert told(text, "what") == ["level mean (point=2)", "level mean (point=3)"]
    assert told(text, "printed") == ["2.30 ± 0.005", "read as 3 to 3.5"]
    keys = [planned(command)[0][0] for command in told(text, "again")]
    assert keys == [key_of(checkout.results / "raw" / HERE / "toy.csv", point=p) for p in ("2", "3")]
    path.write_text(path.read_text() + "toy-open,2,level,mean,2.30,,,sampling,100,the same number again\n")
    (checkout.copy.root / "results" / "published" / "not_measured.csv").write_text("claim,reason\n")
    assert told(answer(checkout, "toy-open"), "what") == ["level mean (point=2)"]


@slow
@pytest.mark.parametrize(
    ("claim", "command"),
    [
        ("toy-trend", "attnrepro experiment=toy_training scale=cpu hydra.mode=RUN"),
        ("toy-timing", "attnrepro experiment=toy_timing scale=cpu params.point=1 hydra.mode=RUN"),
        ("toy-derived", "make reproduce TABLE=toy_derived SCALE=cpu"),
    ],
)
def test_the_command_of_other_kinds_of_tables(checkout: Inside, claim: str, command: str) -> None:
    assert told(answer(checkout, claim), "again") == [command]


@slow
def test_words_without_a_number(checkout: Inside) -> None:
    text = answer(checkout, "toy-trend")
    assert told(text, "printed") == ["words, no number"]
    assert "(n=6, 1 failed)" in told(text, "measured")[0]
    assert told(text, "theory") == ["none"]


@slow
def test_a_line_from_several_cells(checkout: Inside) -> None:
    """A derived line has no cell of its own."""
    table = checkout.copy.root / "experiments" / "toy" / "table.py"
    table.write_text(
        table.read_text()
        + "\n\ndef derive(frame, published):\n"
        + "    mean = float(frame.estimate.mean())\n"
        + "    line = {'quantity': 'all', 'statistic': 'mean', 'n': 2400, 'sd': 1.0}\n"
        + "    return [{**line, 'estimate': mean, 'theory': 3.75}]\n"
    )
    path = checkout.copy.root / "results" / "published" / "toy.csv"
    path.write_text(path.read_text() + "toy-open,,all,mean,3.75,,,exact,,of all points\n")
    (checkout.copy.root / "results" / "published" / "not_measured.csv").write_text("claim,reason\n")
    text = answer(checkout, "toy-open")
    assert told(text, "measured")[0].startswith("3.7")
    assert told(text, "again") == ["make reproduce TABLE=toy SCALE=cpu"]


@slow
def test_nothing_measured_yet(checkout: Inside) -> None:
    shutil.rmtree(checkout.results / "runs")
    shutil.rmtree(checkout.results / "raw")
    text = answer(checkout, "toy-sampling")
    assert (told(text, "measured"), told(text, "verdict")) == (["nothing"], ["NOT_RUN"])
    assert told(text, "again") == ["make reproduce TABLE=toy"]


@slow
def test_claims_that_no_table_answers(checkout: Inside) -> None:
    assert answer(checkout, "toy-open").splitlines()[1:] == ["  not measured: nobody knows how"]
    for claim in ("toy-later", "toy-nobody"):
        assert answer(checkout, claim).splitlines() == [
            f"{claim}: document 003, section: The fourth",
            "  no table measures it yet",
        ]
    path = checkout.copy.root / "results" / "published" / "toy.csv"
    path.write_text(path.read_text().replace("toy-exact", "toy-exacd"))
    assert answer(checkout, "toy-exact").splitlines()[1:] == [
        "  results/published/toy.csv has no line for it: make verify"
    ]


@slow
def test_the_command(committed: Copy) -> None:
    found = committed.run("why.py", "toy-later")
    assert (found.code, found.err) == (0, "")
    unknown = committed.run("why.py", "toy-exat")
    assert (unknown.code, unknown.out) == (2, "")
    assert re.fullmatch(
        r"why: CLAIM=toy-exat: there is no such claim; the closest: toy-exact, [\w-]+, [\w-]+\n", unknown.err
    )
    for arguments in ((), ("",), (" ; ",)):
        none = committed.run("why.py", *arguments)
        assert none.code == 2
        assert none.err.startswith("why: which claim? make why CLAIM=<id>")
        assert none.err.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("s0-quiz1", "s0-quiz1"),
        ("a;touch spy", "a;touch spy"),
        ("a b ; c", "a b ; c"),
        ("'; touch spy; '", "'; touch spy; '"),
        ("$(touch spy) $$(touch spy) `touch spy` $HOME", "$(touch spy) $$(touch spy) `touch spy` $HOME"),
        ("$(shell touch spy)", "$(shell touch spy)"),
        ("a\ntouch spy #", "a touch spy #"),
        ("a\\", "a\\"),
        ("", ""),
    ],
)
def test_make_hands_an_id_on_and_runs_nothing_of_it(tmp_path: Path, asked: str, given: str) -> None:
    """With a program for Python that shows what it is given."""
    show = tmp_path / "show"
    show.write_text('#!/bin/sh\nprintf \'%s|\' "$#" "$@"\n')
    show.chmod(0o755)
    command = ["make", "-s", "-f", str(REPOSITORY / "Makefile"), "-o", "setup", "why", f"PY={show}"]
    for arguments, variables in (([f"CLAIM={asked}"], {}), ([], {"CLAIM": asked})):
        done = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=clean_environment() | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout == f"2|scripts/why.py|{given}|"
        assert [path.name for path in tmp_path.iterdir()] == ["show"]


def test_every_printed_value_of_the_first_table_has_its_command() -> None:
    """On the repository itself: each line's command is its own cell's, or the table's where cells are combined."""
    from attnrepro.app.precheck import make_plan
    from attnrepro.app.report import published_lines, report_table
    from attnrepro.app.why import Commands

    raw = REPOSITORY / "results" / "raw"
    store = Store(REPOSITORY / "nowhere")
    report = report_table("sqrt_d_entropy", None, raw)
    shown = report.shown
    assert shown is not None
    path = raw / shown.environment / "sqrt_d_entropy.csv"
    columns = (*report.axes, "quantity", "statistic")
    here = (shown.environment, shown.scale)
    rows = [row for row in report.lines if row.get("claim") and (row["environment"], row["scale"]) == here]
    assert sum(len(row["claim"].split(";")) for row in rows) == len(published_lines("sqrt_d_entropy"))
    again = Commands(report, store, raw)
    commands: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        line = again.of(row)
        commands.setdefault(line, []).append({c: row[c] for c in columns})
    keys = {cell.cell.key: cell for cell in make_plan(["experiment=sqrt_d_entropy", f"scale={shown.scale}"]).cells}
    combined = commands.pop(f"make reproduce TABLE=sqrt_d_entropy SCALE={shown.scale}")
    assert 0 < len(combined) < len(rows) / 2
    with path.open(newline="") as file:
        raw_rows = [r for r in csv.DictReader(file) if (r["source"], r["scale"]) == ("measured", shown.scale)]
    assert not any(at.items() <= row.items() for at in combined for row in raw_rows)
    for line, places in commands.items():
        ((key, _),) = planned(line)
        assert key in keys
        for at in places:
            assert {row["key"] for row in raw_rows if at.items() <= row.items()} == {key}


def test_an_answer_of_the_repository_itself_loads_no_torch() -> None:
    program = (
        "import sys; from attnrepro.app.why import main; code = main(['s0-sqrtd-64-u-H']);"
        "print('torch' in sys.modules, code, file=sys.stderr)"
    )
    assert paths.repository() == REPOSITORY
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment() | {"PYTHONPATH": str(REPOSITORY / "src"), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == "False 0\n"
    assert "document 000, section: " in done.stdout
    assert told(done.stdout, "printed") == ["0.4317 ± 5e-05"]
