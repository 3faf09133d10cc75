"""The task function of a Hydra program on its way into jobs, and what it needs there to run as Hydra would run it."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals

from stoker.hydra.settings import set_id

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig


class Sweep(NamedTuple):
    """All that Hydra tells a launcher of a multirun."""

    context: HydraContext
    function: TaskFunction
    config: DictConfig


class Task:
    """The function, once for all jobs of a multirun, under the name of the program."""

    def __init__(self, sweep: Sweep) -> None:
        functools.update_wrapper(self, sweep.function)
        self.__name__ = self.__module__ = str(sweep.config.hydra.job.name)  # every program calls itself __main__
        self._function = sweep.function
        self._context = sweep.context
        self._state = Singleton.get_state()
        self._program = os.path.abspath(sys.argv[0])

    def __call__(self, config: DictConfig, /, **_shown: str) -> JobReturn:
        """In the job: what the function returned; raises what it raised. All that is shown is in the configuration."""
        Singleton.set_state(self._state)
        setup_globals()
        sys.argv = [self._program, *config.hydra.overrides.task]  # as if it ran alone; some programs start themselves
        set_id(config, f"{os.environ['STOKER_ARRAY_ID']}.{os.environ['STOKER_ARRAY_INDEX']}")
        returned = run_job(self._function, config, "hydra.sweep.dir", "hydra.sweep.subdir", self._context)
        _ = returned.return_value  # raises: the queue has to see that, to tell of it and to try again
        return returned
