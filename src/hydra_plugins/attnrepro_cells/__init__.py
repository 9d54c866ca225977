"""Hydra sweeper of the suite: launches the cells that the precheck found to be run, and no others."""

from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class CellSweeper(Sweeper):
    """Launches the prepared jobs with whatever launcher is configured."""

    def __init__(self, params: dict[str, str] | None = None, also: list[dict[str, str]] | None = None) -> None:
        self.params = params or {}
        self.also = also or []
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Instantiate the launcher."""
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Run the jobs; ``arguments`` went into them already."""
        from attnrepro.app.grid import jobs

        if self.launcher is None:
            raise RuntimeError("setup() was not called")
        results: Sequence[Any] = self.launcher.launch(jobs, initial_job_idx=0)
        for result in results:
            _ = result.return_value  # raises what the job raised
        return results


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="cells",
    node={"_target_": "hydra_plugins.attnrepro_cells.CellSweeper", "params": {}, "also": []},
    provider="attnrepro",
)
