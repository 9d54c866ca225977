"""The playground's data: what Python knows, and pools trained by position_strength, as one small JSON for the page.

``python scripts/export_playground.py`` writes ``src/attnrepro/app/assets/playground.json`` again (15 s on one core).
"""

import importlib
import json
import logging
import sys
from typing import Any

from attnrepro.app import playground
from attnrepro.app.precheck import make_plan
from attnrepro.codeversion import code_version
from attnrepro.environment import environment
from attnrepro.results.store import write_text

# One seed at every strength of the table's own curve; everything else is the table's.
TABLE = "position_strength"
COMMAND = (
    f"experiment={TABLE}",
    *("hydra.mode=RUN", "scale=cpu", "trainer=cpu", "params.study=strength", "params.protocol=A"),
    *("params.placement=[keys_values]", "seeds=[0]"),
)


def trained_pools() -> dict[str, Any]:
    """Train as the table does and give the pools as they are folded, float32 weights written as float64.

    ``key`` and ``value`` are ``[strength, embed_dim]``, ``bias`` and ``test_accuracy`` ``[strength]``. Source: document
    000, the 8-token task.
    """
    from attnrepro.training.trainer import make_trainer

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    (planned,) = make_plan([*COMMAND, "tracking=disabled"]).cells
    cell = planned.cell
    job = importlib.import_module(f"attnrepro.tables.{TABLE}.measure").build(cell)
    trainer = make_trainer(cell, max_steps=job.max_steps)
    trainer.fit(job.module, job.fit)
    trainer.test(job.module, job.test, verbose=False)
    members: Any = job.module
    ((_, (folded,)),) = members.snapshots.items()
    tested = {r.axes["strength"]: r.value for r in members.rows() if r.quantity == "test_accuracy"}
    p: Any = cell.params
    return {
        "command": " ".join(("attnrepro", *COMMAND)),
        "environment": environment("cpu"),
        "code": code_version(TABLE),
        "length": p.length[0],
        "embed_dim": p.embed_dim[0],
        "n_train": int(p.n_train[0]),
        "steps": p.steps[0],
        "n_test": p.n_test,
        "strength": [float(s) for s in p.strength],
        "key": folded.key[0, 0].double().tolist(),
        "value": folded.value[0, 0].double().tolist(),
        "bias": folded.bias[0].double().tolist(),
        "test_accuracy": [tested[s] for s in p.strength],
    }


def main() -> int:
    """Write the file; 1 and a sentence when a pool diverged."""
    pools = trained_pools()
    try:
        # A pool that diverged has weights that JSON does not have.
        text = json.dumps({**playground.figures(), "pools": pools}, ensure_ascii=False, allow_nan=False, indent=1)
    except ValueError as error:
        print(f"export_playground: {error}", file=sys.stderr)
        return 1
    changed = write_text(playground.FILE, text + "\n")
    print(f"{playground.FILE.name}: {'written' if changed else 'as it was'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
