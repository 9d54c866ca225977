"""Bad input is one sentence before anything runs; and what a command asks for is what its jobs compose."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnrepro import environment
from attnrepro.app import main as entry
from attnrepro.app.precheck import Plan, _compose, _composer, make_plan, resolve
from attnrepro.codeversion import code_version
from attnrepro.config import BadInput, typed
from attnrepro.results.store import Store

from .toy import Copy, Done, Inside, snapshot
from .toy import inside as run_inside

TOY = "experiment=toy scale=smoke "
ONE = TOY + "hydra.mode=RUN "


@pytest.fixture
def here(
    toy_copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Inside]:
    """This process as if the package lay in the copy with the toy tables; nothing of it is changed."""
    for made in run_inside(toy_copy, monkeypatch, capfd):
        made.results = tmp_path / "results"
        yield made


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Plans that would have been run, instead of running them."""
    plans: list[Plan] = []

    def execute(plan: Plan) -> int:
        plans.append(plan)
        return entry.OK

    monkeypatch.setattr(entry, "execute", execute)
    return plans


def plan(here: Inside, line: str) -> Plan:
    words = shlex.split(line)
    return make_plan([w for w in words if w != "-m"] + [f"results={here.results}"], multirun="-m" in words)


def sentence(done: Done) -> str:
    """The one sentence of a refusal."""
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(r"attnrepro: [^\n]+\n", done.err), done.err
    return done.err.removeprefix("attnrepro: ").strip()


def refused(here: Inside, ran: list[Plan], line: str) -> str:
    """The sentence with which a command line is refused, before it did anything."""
    here.refresh()
    here.capture.readouterr()
    words = shlex.split(line)
    if not any(word.startswith("results") for word in words):
        words.append(f"results={here.results}")
    code = entry.main(words)
    said = sentence(Done(code, *here.capture.readouterr()))
    assert ran == []
    assert not here.results.exists()
    # What the reader never wrote and cannot know.
    assert not re.search(r"Traceback|OmegaConf|ListConfig|DictConfig|AnyNode|NoneType|ChoiceSweep|subclass", said), said
    return said


# --- bad input ---


@pytest.mark.parametrize(
    ("line", "words"),
    [
        # a key that is not there
        ("params.pont=4", "unknown key params.pont; did you mean params.point?"),
        ("param.point=4", "unknown key param.point; did you mean params.point?"),
        ("point=4", "unknown key point; did you mean params.point?"),
        ("Params.point=4", "unknown key Params.point; did you mean params.point?"),
        ("nonsense=4", "unknown key nonsense; keys: "),
        ("params.point.x=4", "unknown key params.point.x"),
        ("trainer.thread=1", "unknown key trainer.thread; did you mean trainer.threads?"),
        ("params={pont:4}", "unknown key params.pont"),
        ("trainer={thread:4}", "unknown key trainer.thread"),
        ("kind=derived", "unknown key kind"),
        # nothing is added, nothing taken away
        ("+params.point=4", "+params.point=4: nothing can be added to a table; write params.point=..."),
        ("+params.new=4", "+params.new=4: nothing can be added"),
        ("+experiment=toy_timing", "+experiment=toy_timing: nothing can be added"),
        ("++params.new=4", "unknown key params.new"),
        ("++new=4", "unknown key new"),
        ("~params.point", "~params.point: keys cannot be removed"),
        ("~params.point=1", "~params.point=1: keys cannot be removed"),
        ("~params", "~params: keys cannot be removed"),
        ("~trainer", "~trainer: keys cannot be removed"),
        # a choice that is not there
        ("experiment=toi", "experiment=toi: there is no such table; did you mean toy?"),
        ("experiment=tabel1", "experiment=tabel1: there is no such table; choices: toy, "),
        ("experiment=", "experiment=: there is no such table"),
        ("experiment=null", "experiment=null"),
        ("experiment=3", "experiment=3"),
        ("experiment=true", "experiment=true"),
        ("experiment=../trainer/cpu", "experiment=../trainer/cpu"),
        ("experiment=[toy,toy_timing]", "experiment="),
        ("experiment={a:1}", "experiment"),
        ("experiment@params=toy", "experiment@params"),
        ("trainer=tpu", "trainer=tpu: there is no such trainer; did you mean gpu? choices: auto, cpu, gpu"),
        ("trainer=null", "trainer=null"),
        ("trainer=3", "trainer=3"),
        ("tracking=nowhere", "tracking=nowhere: there is no such tracking; choices: "),
        ("table=another", "table"),
        ("table=toy_timing", "table"),
        ("hydra/launcher=far", "hydra/launcher=far: there is no such hydra/launcher"),
        # the wrong type
        ("params.point=x", "params.point"),
        ("params.point=2.5", "params.point"),
        ("params.point=true", "params.point"),
        ("params.point=[2]", "params.point"),
        ("params.shift=x", "params.shift"),
        ("params.fail=3", "params.fail"),
        ("params.fail=[x]", "params.fail"),
        ("params=3", "params"),
        ("seeds=0", "seeds"),
        ("seeds=[a]", "seeds"),
        ("seeds=[0.5]", "seeds"),
        ("trainer.threads=all", "trainer.threads"),
        ("title=[a]", "title"),
        ("results=[a]", "results"),
        # nothing where something must be
        ("params.point=", "params.point"),
        ("params.point=null", "params.point"),
        ("params.point=???", "params.point has no value"),
        ("params=", "params"),
        ("params=null", "params"),
        ("seeds=", "seeds"),
        ("seeds=null", "seeds"),
        ("trainer.precision=", "trainer.precision"),
        ("scale=", "scale="),
        # out of range
        ("params.point=0", "params.point=0 must lie between 1 and 6"),
        ("params.point=7", "params.point=7 must lie between 1 and 6"),
        ("params.n=1", "params.n=1 must lie between 8 and 1000000"),
        ("seeds=[]", "seeds=[] must list at least one value"),
        ("seeds=[0,0]", "seeds=[0,0] must list at least one value, each once"),
        ("seeds=[-1]", "seeds=[-1] must lie between 0"),
        ("scale=tiny", "scale=tiny must be one of auto, smoke, cpu, full"),
        ("scale=[cpu]", "must be one of auto, smoke, cpu, full"),
        ("scale=null", "must be one of auto, smoke, cpu, full"),
        ("stale=drop", "stale=drop must be one of keep, rerun"),
        ("trainer.threads=0", "trainer.threads=0 must lie between 1 and 1024"),
        ("trainer.precision=8-true", "trainer.precision=8-true must be one of"),
        ("trainer.accelerator=tpu", "trainer.accelerator=tpu must be one of auto, cpu, gpu"),
        ("tracking.mode=sometimes", "tracking.mode=sometimes must be one of"),
        ("tracking.mode='\"a\nb\"'", "tracking.mode=a"),
        ("tracking.project=a/b", "tracking.project="),
        # what is no setting at all
        ("word", "'word' is not a setting of the form key=value"),
        ("=3", "'=3' is not a setting"),
        ("''", "'' is not a setting"),
        ("params.fail=[3", "'params.fail=[3' is not a setting"),
        ("'params.fail[0]=3'", "'params.fail[0]=3' is not a setting"),
        ("--nonsense", "unknown option --nonsense"),
        ("-x", "unknown option -x"),
        ("--multirun=1", "unknown option --multirun=1"),
        # what leads nowhere
        ("'params.point=${nowhere}'", "params.point"),
        ("'params.point=${params.point}'", "params.point"),
        ("'params.point=${oc.env:SURELY_NOT_SET}'", "params.point"),
        ("'params.point=${nosuch:1}'", "params.point"),
        ("scales=", "scales"),
        # Hydra's own keys
        ("hydra.typo=1", "unknown key hydra.typo"),
        ("+hydra.typo=1", "hydra.typo"),
        ("++hydra.typo=1", "unknown key hydra.typo"),
        ("hydra.job.num=x", "hydra.job.num"),
        ("hydra.job.num=1,2", "hydra.job.num"),
        ("hydra.job.chdir=true", "hydra.job.chdir"),  # relative results would be looked for elsewhere
        ("hydra.mode=SOMETIMES", "hydra.mode=SOMETIMES must be RUN or MULTIRUN"),
        ("hydra.mode=", "hydra.mode= must be RUN or MULTIRUN"),
        ("hydra.mode=null", "hydra.mode"),
        ("hydra.mode=RUN,MULTIRUN", "hydra.mode"),
        ("hydra.sweeper.params.x=1", "hydra.sweeper.params.x"),
        ("hydra.sweeper.params.params.point=4", "hydra.sweeper.params.params.point"),  # it would change nothing
        ("hydra.sweeper=other", "hydra.sweeper"),
        ("hydra/sweeper=basic", "hydra/sweeper"),
        # a grid that cannot be
        ("hydra.mode=RUN params.point=1,2", "hydra.mode=RUN is one cell, but params.point has several values"),
        ("experiment=toy,toy_timing", "experiment cannot be swept"),
        ("scale=smoke,cpu", "scale cannot be swept"),
        ("stale=keep,rerun", "stale cannot be swept"),
        # no part of the key: their cells would be one cell
        ("trainer=cpu,auto", "trainer cannot be swept"),
        ("trainer.accelerator=cpu,auto", "trainer.accelerator cannot be swept"),
        ("tracking=offline,disabled", "tracking cannot be swept"),
        ("tracking.mode=offline,disabled", "tracking.mode cannot be swept"),
        ("'results=a,b'", "results cannot be swept"),
        ("'params.point=range(1,1)'", "params.point"),
        ("'params.point=interval(1,4)'", "params.point: only a list of values"),
        ("'params.point=glob(*)'", "params.point"),
        ("seeds=0,1,2", "seeds"),  # seeds=[0],[1],[2] is meant
    ],
)
def test_bad_input_is_one_sentence_that_names_the_full_key(
    here: Inside, ran: list[Plan], line: str, words: str
) -> None:
    assert words in refused(here, ran, TOY + line)


@pytest.mark.parametrize("mode", ["hydra.mode=RUN ", ""])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("params.point=0", "params.point=0"),
        ("params=3", "params"),
        ("seeds=0", "seeds"),
        ("params.fail=3", "params.fail"),
    ],
)
def test_a_sentence_is_as_good_for_one_cell_as_for_a_grid(
    here: Inside, ran: list[Plan], mode: str, line: str, words: str
) -> None:
    assert refused(here, ran, f"{TOY} {mode} {line}").startswith(words)


@pytest.mark.parametrize("line", ["", "scale=smoke", "params.point=4", "-m"])
def test_without_a_table_there_is_a_choice(here: Inside, ran: list[Plan], line: str) -> None:
    assert "choose a table with experiment=<table>; there are: toy, " in refused(here, ran, line)


@pytest.mark.parametrize("axis", ["1,2,9,4", "1,x", "9,1"])
def test_one_bad_cell_of_a_grid_stops_it_before_its_first_cell(here: Inside, ran: list[Plan], axis: str) -> None:
    said = refused(here, ran, f"{TOY} params.n=40,50 params.point={axis}")
    bad = "x" if "x" in axis else "9"
    assert said.startswith("params.point")
    assert f"(in the cell params.point={bad}, params.n=40" in said


@pytest.mark.parametrize("line", ["trainer=gpu", "trainer.accelerator=gpu", "trainer=gpu scale=auto"])
def test_a_gpu_that_is_not_there_is_refused(
    here: Inside, ran: list[Plan], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(environment, "cuda_device", lambda: None)
    said = refused(here, ran, TOY + line)
    assert said.startswith("trainer.accelerator=gpu: no CUDA device can be used here; choose trainer=cpu")


def test_a_table_that_reads_rows_which_are_not_there_says_how_to_get_them(here: Inside, ran: list[Plan]) -> None:
    said = refused(here, ran, "experiment=toy_derived scale=smoke")
    assert said.startswith("toy_derived reads the rows of toy, and there are none at scale smoke")
    assert "make reproduce TABLE=toy_derived" in said


@pytest.mark.parametrize("kind", ["file", "in a file", "nothing"])
def test_results_that_can_lie_nowhere_are_refused(here: Inside, ran: list[Plan], tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    where = {"file": tmp_path / "file", "in a file": tmp_path / "file" / "results", "nothing": ""}[kind]
    assert f"results={where}" in refused(here, ran, f"{ONE} results={where}")


@pytest.mark.parametrize("line", ["experiment=toi", "experiment=toy params.pont=4", "experiment=toy nonsense=4"])
def test_showing_a_configuration_that_is_wrong_is_refused_in_the_same_words(
    here: Inside, ran: list[Plan], line: str
) -> None:
    assert refused(here, ran, f"--cfg job {line}") == refused(here, ran, line)


def test_a_trace_is_shown_to_those_who_ask_for_it(here: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(BadInput, match=r"params\.pont"):
        here.attnrepro("experiment=toy", "params.pont=4")


# --- what a command asks for ---


def points(asked: Plan) -> list[int]:
    return [planned.cell.params.point for planned in asked.cells]


def test_a_table_is_its_grid_and_a_run_is_one_cell(here: Inside) -> None:
    assert points(plan(here, "experiment=toy")) == [1, 2, 3, 4, 5, 6]
    one = plan(here, "experiment=toy hydra.mode=RUN")
    assert (points(one), one.one_cell) == ([1], True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("params.point=4", [4]),
        ("params.point=4,2", [4, 2]),
        ("params.point=4,2 params.n=40,41", [4, 4, 2, 2]),
        ("params.point=4,4", [4]),
        ("params.point=1 params.point=5", [5]),
        ("++params.point=4", [4]),
        ("'params.point=range(2,5)'", [2, 3, 4]),
    ],
)
def test_the_command_line_wins_over_an_axis(here: Inside, line: str, expected: list[int]) -> None:
    assert points(plan(here, "experiment=toy " + line)) == expected


@pytest.mark.parametrize("flag", ["-m ", ""])
def test_seeds_in_several_lists_are_several_cells(here: Inside, flag: str) -> None:
    asked = plan(here, flag + "experiment=toy params.point=3 seeds=[0],[1],[2]")
    assert [planned.cell.seeds for planned in asked.cells] == [(0,), (1,), (2,)]
    assert len({planned.cell.key for planned in asked.cells}) == 3
    assert len(plan(here, flag + "experiment=toy params.point=3 seeds=[0,1,2]").cells) == 1


def test_values_that_mean_the_same_are_one_cell(here: Inside) -> None:
    assert len(plan(here, "experiment=toy params.point=3 params.shift=1,1.0,1e0").cells) == 1


def test_smoke_takes_every_value_once(here: Inside) -> None:
    asked = plan(here, TOY + "params.point=1,2,3 params.n=40,41")
    assert [(p.cell.params.point, p.cell.params.n) for p in asked.cells] == [(1, 40), (2, 40), (3, 40), (1, 41)]


@pytest.mark.parametrize(
    ("device", "line", "scale", "accelerator"),
    [
        (None, "", "cpu", "cpu"),
        (None, "scale=auto", "cpu", "cpu"),
        (None, "trainer=cpu", "cpu", "cpu"),
        (None, "scale=full", "full", "cpu"),
        ("NVIDIA H200", "", "full", "cuda"),
        ("NVIDIA H200", "scale=auto trainer=gpu", "full", "cuda"),
        ("NVIDIA H200", "trainer=cpu", "cpu", "cpu"),
        ("NVIDIA H200", "trainer.accelerator=cpu", "cpu", "cpu"),
        ("NVIDIA H200", "scale=cpu", "cpu", "cuda"),
        ("NVIDIA H200", "scale=smoke", "smoke", "cuda"),
    ],
)
def test_the_scale_is_resolved_by_the_device_before_the_key(
    here: Inside, monkeypatch: pytest.MonkeyPatch, device: str | None, line: str, scale: str, accelerator: str
) -> None:
    monkeypatch.setattr(environment, "cuda_device", lambda: device)
    asked = plan(here, "experiment=toy params.point=1 " + line)
    (planned,) = asked.cells
    assert (planned.cell.scale, planned.cell.accelerator) == (scale, accelerator)
    assert planned.cell.params.n == {"smoke": 40, "cpu": 400, "full": 800}[scale]
    named = plan(here, f"experiment=toy params.point=1 {line.replace('scale=auto', '')} scale={scale}")
    assert named.cells[0].cell.key == planned.cell.key


def test_a_list_of_truths_is_swept_like_any_list(tmp_path: Path) -> None:
    """On the first real table, whose grids besides the main one are fixed here to be the same."""
    fixed = [
        *("params.study=draws", "params.head_dim=4", "params.n_keys=[16]", "params.keys=[own]", "params.max_normals=0"),
        *("experiment=sqrt_d_entropy", "scale=smoke", f"results={tmp_path}"),
    ]
    asked = make_plan([*fixed, "params.scaled=[true],[false]"], multirun=True)
    assert [planned.cell.params.scaled for planned in asked.cells] == [[True], [False]]
    asked = make_plan([*fixed, "params.scaled=[true,false],[yes,no],[1,0]"])
    assert [planned.cell.params.scaled for planned in asked.cells] == [[True, False]]


@pytest.mark.parametrize(
    "line",
    [
        "params.point=2,3 params.shift=0.5,1e-3,-1",
        "params.point=1 params.fail=[],[3],[1,2] params.n=40",
        "params.point=1 seeds=[0],[1,2]",
        "params.point=1 trainer.precision=32-true,64-true trainer.threads=1,2",
        "params.point=1 trainer=cpu",
        "params.point=1 trainer={threads:2}",
        "params.point=1 params={n:50}",
        "params.point=1 params={n:50,shift:2},{n:60}",
        "params.point=1 scales={smoke:{n:50}}",
        "params.point=1 scales.smoke.n=50",
        "params.point=1 ++params.n=50",
        "params.point=1 'params.n=${scales.cpu.n}'",
        "params.point=1 'params.n=${scales.cpu.n},50'",
        "params.point=1 'tracking.project=\"a b, c=d\"'",
        "params.point=1 tracking=offline tracking.entity=null",
        "params.point=1 'title=\"\"'",
    ],
)
def test_the_jobs_that_hydra_composes_are_the_cells_that_were_checked(here: Inside, line: str) -> None:
    asked = plan(here, TOY + line)
    with _composer():
        for planned in asked.cells:
            config = typed(_compose(planned.overrides, with_hydra=False))
            assert config == planned.config
            assert resolve(config)[0] == planned.cell


@pytest.mark.parametrize("mode", ["RUN", "MULTIRUN"])
def test_the_mode_may_be_said_in_every_way(here: Inside, mode: str) -> None:
    lengths = {len(plan(here, f"experiment=toy {key}={mode}").cells) for key in ("hydra.mode", "++hydra.mode")}
    assert lengths == {1 if mode == "RUN" else 6}


# --- what is done already ---


def finish(here: Inside, *keys: str, code: str | None = None) -> None:
    """Record cells as finished without measuring them."""
    files = {"rows.csv": "key\n", "config.yaml": '{"scale": "smoke"}\n', "run.json": '{"wall_seconds": 1}\n'}
    for key in keys:
        Store(here.results).write("toy", key, files, code=code or code_version("toy"))


def test_a_dry_run_says_what_would_run_and_what_is_reused(here: Inside, ran: list[Plan]) -> None:
    keys = [planned.cell.key for planned in plan(here, TOY).cells]
    finish(here, keys[1])
    finish(here, keys[2], code="0ther")
    before = snapshot(here.results)
    done = here.attnrepro(*TOY.split(), "--dry-run")
    assert (done.code, done.err, ran) == (0, "", [])
    *cells, total = done.out.splitlines()
    states = ["run", "reuse", "reuse (stale)", "run", "run", "run"]
    for line, key, state, point in zip(cells, keys, states, range(1, 7), strict=True):
        assert line.split()[0] == key
        assert f"  {state}  " in line
        assert f"params.point={point} " in line
    assert total.startswith("toy at scale smoke: 6 cells, 4 to run, 2 reused, predicted ")
    done = here.attnrepro(*TOY.split(), "--dry-run", "stale=rerun")
    assert "6 cells, 5 to run, 1 reused" in done.out
    assert snapshot(here.results) == before


def test_a_dry_run_writes_nothing(here: Inside, ran: list[Plan]) -> None:
    assert here.attnrepro("experiment=toy", "--dry-run").code == 0
    assert not here.results.exists()


def test_a_damaged_cell_is_run_again(here: Inside) -> None:
    (planned,) = plan(here, ONE).cells
    finish(here, planned.cell.key)
    assert plan(here, ONE).to_run == []
    (here.results / "runs" / "toy" / planned.cell.key / "rows.csv").write_text("key\nx\n")
    assert [p.cell.key for p in plan(here, ONE).to_run] == [planned.cell.key]


def test_what_is_all_done_is_answered_without_hydras_loop(here: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(here, *(planned.cell.key for planned in plan(here, TOY).cells))
    monkeypatch.setattr(entry, "_hydra", lambda arguments: pytest.fail("Hydra was started"))
    before = snapshot(here.results)
    done = here.attnrepro(*TOY.split())
    assert done.code == 0
    assert done.err.startswith("toy: 0 ran, 6 reused, 0 failed or not run")
    assert snapshot(here.results) == before


def test_only_what_is_missing_is_run(here: Inside, ran: list[Plan]) -> None:
    """Killed after the third of six cells, a command goes on with the fourth."""
    finish(here, *(planned.cell.key for planned in plan(here, TOY).cells[:3]))
    assert here.attnrepro(*TOY.split()).code == 0
    assert [planned.cell.params.point for planned in ran[0].to_run] == [4, 5, 6]


# --- from any folder, in processes of their own ---


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A working directory with folders that are named like ours and must not be taken for them."""
    folder = tmp_path / "foreign"
    for name in ("experiments/toy/table.py", "experiments/toy/measure.py", "experiments/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise RuntimeError('not ours')\n")
    for name in ("conf/config.yaml", "conf/experiment/toy.yaml", "conf/experiment/theirs.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("what: this is not ours\n")
    (folder / "results" / "published").mkdir(parents=True)
    return folder


# What the package loads is written at the end of the process.
TELL = """
import atexit, os, pathlib, sys
atexit.register(lambda: pathlib.Path(os.environ["TELL_LOADED"]).write_text(" ".join(sys.modules)))
"""


def test_a_cell_runs_from_a_folder_with_folders_named_like_ours(toy_copy: Copy, foreign: Path, tmp_path: Path) -> None:
    there = snapshot(foreign)
    line = [*ONE.split(), "tracking=disabled", "results=out"]
    first = toy_copy.run("attnrepro", *line, cwd=foreign)
    assert (first.code, first.out) == (0, ""), first.err
    assert "toy: 1 ran, 0 reused, 0 failed or not run" in first.err
    # Relative results lie in the working directory, and nothing else was written there.
    (rows,) = (foreign / "out").rglob("rows.csv")
    after = snapshot(foreign)
    assert {name for name in after if Path(name).parts[0] != "out"} == set(there)
    # From another folder the finished cell is found, and nothing heavy is loaded to say so.
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(TELL)
    path = os.pathsep.join((str(tmp_path / "site"), str(toy_copy.root / "src")))
    told = {"PYTHONPATH": path, "TELL_LOADED": str(tmp_path / "loaded")}
    second = toy_copy.run("attnrepro", *line[:-1], f"results={foreign / 'out'}", cwd=tmp_path, env=told)
    assert (second.code, second.out) == (0, ""), second.err
    assert "toy: 0 ran, 1 reused, 0 failed or not run" in second.err
    assert snapshot(foreign) == after
    loaded = {name.split(".")[0] for name in (tmp_path / "loaded").read_text().split()}
    assert "hydra" in loaded
    assert loaded & {"torch", "lightning", "wandb", "altair"} == set()
    assert rows.read_bytes()


def test_a_typo_is_refused_in_a_process_of_its_own(toy_copy: Copy, foreign: Path) -> None:
    there = snapshot(foreign)
    done = toy_copy.run("attnrepro", *ONE.split(), "params.pont=4", "results=out", cwd=foreign)
    assert sentence(done) == "unknown key params.pont; did you mean params.point?"
    done = toy_copy.run("attnrepro", "experiment=theirs", "results=out", cwd=foreign)
    assert sentence(done).startswith("experiment=theirs: there is no such table; choices: toy, ")
    assert snapshot(foreign) == there
