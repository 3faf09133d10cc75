"""What Hydra finds of Stoker, in every program that uses Hydra: `hydra/launcher=stoker` and its options."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


# Hydra runs this file before it is a module, so annotations must not be text here: dataclasses would look it up.
@dataclass
class StokerConf:
    """The options of a job, in the words of the command line; what is not given is as configured there."""

    _target_: str = "hydra_plugins.stoker_launcher.StokerLauncher"
    max_parallel: int | None = None
    gpus: int | None = None
    vram: str | None = None
    on: Any = None
    prefer: Any = None
    gpu_type: str | None = None
    priority: int | None = None
    group: str | None = None
    time: Any = None
    grace: Any = None
    begin: str | None = None
    after: Any = None
    retries: int | None = None
    retry_on: Any = None
    no_requeue: bool | None = None
    cap: bool | None = None
    mps: Any = None
    mps_optional: bool | None = None
    env: dict[str, Any] = field(default_factory=dict)
    out: str | None = None
    err: str | None = None
    name: str | None = None
    tag: dict[str, Any] = field(default_factory=dict)


class StokerLauncher(Launcher):
    """Runs the jobs of a multirun on GPUs from Stoker's queue."""

    def __init__(self, **_options: Any) -> None:
        """The options are read from the configuration of each job, which may differ in them."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Remember what a multirun consists of."""
        self._parts = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a job for each list of overrides, and return what they returned, in the same order."""
        from stoker.python.hydra import Sweep, launch

        return launch(Sweep(*self._parts), job_overrides, initial_job_idx)


ConfigStore.instance().store(group="hydra/launcher", name="stoker", node=StokerConf, provider="stoker")
