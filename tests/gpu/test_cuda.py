"""What holds on a CUDA device only; skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnrepro import paths
from attnrepro.app.main import OK, main
from attnrepro.app.precheck import make_plan
from attnrepro.config import Cell
from attnrepro.results.store import Store
from attnrepro.tables.position_strength import measure
from attnrepro.training.trainer import make_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

STEPS = 30
# Every kind of pool, three of them at two strengths and placements.
ENCODINGS = "[sinusoidal,learned,concat_one_hot,logit_bias,rotary_key_bias,orthogonal,alibi_far,layer_norm]"


@pytest.mark.parametrize("table", paths.table_names())
def test_every_table_runs_on_the_device(table: str, tmp_path: Path) -> None:
    overrides = ["scale=smoke", "trainer=gpu", "tracking=disabled", f"results={tmp_path}"]
    assert main([f"experiment={table}", *overrides]) == OK
    records = Store(tmp_path).finished(table)
    assert records
    assert {record.run["device"] for record in records} == {"cuda"}


def cell(trainer: str) -> Cell:
    study = ["params.study=alternatives", "params.protocol=A", f"params.encoding={ENCODINGS}", "params.strength=[1,3]"]
    sizes = ["params.n_train=[200]", f"params.steps=[{STEPS}]", "seeds=[0,1,2]", "trainer.precision=64-true"]
    frame = ["experiment=position_strength", "scale=smoke", f"trainer={trainer}", "hydra.mode=RUN"]
    (planned,) = make_plan([*frame, *study, *sizes]).cells
    return planned.cell


def trained(cell: Cell) -> list[torch.Tensor]:
    """Parameters of all members after the last step, on the CPU."""
    members = measure.Members(cell)
    make_trainer(cell, max_steps=STEPS).fit(members, members.loader())
    return [parameter.detach().cpu() for parameter in members.parameters()]


def test_an_ensemble_on_the_device_is_the_one_on_the_cpu() -> None:
    """The same data and starts: in float64 the order of sums alone differs."""
    on_device, on_cpu = trained(cell("gpu")), trained(cell("cpu"))
    starts = list(measure.Members(cell("cpu")).parameters())
    moved = 0.0
    for there, here, start in zip(on_device, on_cpu, starts, strict=True):
        assert here.dtype == torch.float64
        moved = max(moved, float((here - start).abs().max()))
        torch.testing.assert_close(there, here, rtol=0, atol=1e-9)
    assert moved > 0.05  # something was learned
