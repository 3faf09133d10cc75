"""The plugin that Hydra discovers: `hydra/launcher=stoker` and its options."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


# Hydra runs this file before it is in sys.modules, so annotations must not be strings: dataclasses would look it up.
@dataclass
class StokerConf:
    """The options of a job, named as on the command line, with the same defaults."""

    _target_: str = "hydra_plugins.stoker_launcher.StokerLauncher"
    max_parallel: int | None = None
    gpus: int | None = None
    vram: str | None = None
    cluster: str | None = None
    nodes: int | None = None
    slurm: dict[str, Any] = field(default_factory=dict)
    on: Any = None
    prefer: Any = None
    gpu_type: str | None = None
    priority: int | None = None
    group: str | None = None
    time: Any = None
    grace: Any = None
    signal: str | None = None
    first_output: str | None = None
    silent: str | None = None
    idle: str | None = None
    begin: str | None = None
    start_within: str | None = None
    nonblock: bool | None = None
    after: Any = None
    retries: int | None = None
    retry_on: Any = None
    no_requeue: bool | None = None
    preemptible: Any = None
    save_signal: str | None = None
    save_time: Any = None
    save_exit: int | None = None
    urgent: bool | None = None
    cap: bool | None = None
    mps: Any = None
    mps_optional: bool | None = None
    freeze: Any = None
    warm: Any = None
    env: dict[str, Any] = field(default_factory=dict)
    out: str | None = None
    err: str | None = None
    name: str | None = None
    tag: dict[str, Any] = field(default_factory=dict)
    notify: Any = None


class StokerLauncher(Launcher):
    """Runs the jobs of a multirun on GPUs from Stoker's queue."""

    def __init__(self, **_options: Any) -> None:
        """Ignore the options: they are read from the configuration of each job, where they may differ."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra passes for a multirun."""
        self._parts = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run a job for each list of overrides, and return their results in the same order."""
        from stoker.python.hydra import Multirun, launch

        return launch(Multirun(*self._parts), job_overrides, initial_job_idx)


ConfigStore.instance().store(group="hydra/launcher", name="stoker", node=StokerConf, provider="stoker")
