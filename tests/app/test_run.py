"""A cell starts the same in any process."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnrepro.app import run
from attnrepro.app.precheck import make_plan


def test_what_draws_from_torchs_own_stream_starts_from_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers draw their weights from it: a cell that leaves them so depended on what its process had run before."""
    first, second = (planned.cell for planned in make_plan(["experiment=sqrt_d_entropy", "scale=smoke"]).cells[:2])

    def build(cell: Any) -> list[Any]:
        return [SimpleNamespace(weight=torch.nn.Linear(4, 4).weight.detach().clone())]

    monkeypatch.setattr(run, "_measure_module", lambda cell: SimpleNamespace(build=build))
    (one,) = run._built(first)
    torch.rand(7)
    (again,), (other,) = run._built(first), run._built(second)
    assert torch.equal(one.weight, again.weight)
    assert not torch.equal(one.weight, other.weight)
