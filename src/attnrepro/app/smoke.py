"""Smoke: every table from configuration to dashboard in seconds, in a folder that is thrown away."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from attnrepro import paths
from attnrepro.app import report
from attnrepro.app.main import BAD, FAILED, INTERRUPTED, OK, execute, lacks_data
from attnrepro.app.precheck import make_plan
from attnrepro.app.reproduce import in_order
from attnrepro.app.run import say
from attnrepro.config import BadInput


def smoke(tables: Sequence[str], root: Path) -> int:
    """Run the smoke grid of the tables into ``root`` and build everything generated from it."""
    code = OK
    lacking: list[str] = []
    names = in_order(tables or paths.table_names())
    for table in names:
        started = time.monotonic()
        try:
            plan = make_plan([f"experiment={table}", "scale=smoke", "tracking=disabled", f"results={root}"])
            ended = execute(plan)
            if ended == FAILED and lacks_data(plan, plan.to_run):
                # Smoke is about the path. Where data cannot be had it has been walked as far as it goes here.
                lacking.append(table)
            else:
                code = max(code, ended)
        except BadInput as error:  # what it needs did not come about
            say(f"smoke {table}: not run, {error}")
            code = FAILED
        say(f"smoke {table}: {time.monotonic() - started:.1f} s")
    outcome = report.build(root, scales=("smoke",), raw=root / "raw")
    # Not every problem counts here: at this size theory and measurement may disagree by chance.
    for problem in outcome.broken:
        say(f"smoke {problem}")
        code = FAILED
    for made in outcome.reports:
        if made.name in names and made.name not in lacking and not any(line.get("n") for line in made.lines):
            say(f"smoke {made.name}: its table has no measured row")
            code = FAILED
    return code


def main(argv: Sequence[str]) -> int:
    """Command line of ``scripts/smoke.py``: table names, none for all."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
    root = Path(tempfile.mkdtemp(prefix="attnrepro-smoke-"))
    os.environ["ATTNREPRO_SCRATCH"] = str(root / "scratch")
    started = time.monotonic()
    try:
        code = smoke(argv, root)
    except BadInput as error:
        say(f"smoke: {error}")
        return BAD
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        shutil.rmtree(root, ignore_errors=True)
    say(f"smoke {'passed' if code == OK else 'FAILED'} in {time.monotonic() - started:.1f} s")
    return code
