"""What Hydra gets for a job that failed, also where that job could not tell anything any more."""

from __future__ import annotations

import copy
import os

from hydra import version
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from stoker.hydra.settings import current, set_id


def failure_of(config: DictConfig, shown_id: str, error: Exception) -> JobReturn:
    """The failure, in which the error is raised for whoever asks for the job's value."""
    set_id(config, shown_id)
    failure = JobReturn(
        overrides=list(config.hydra.overrides.task),
        cfg=_without_hydra(config),
        working_dir=_settle_directory(config),
        hydra_cfg=OmegaConf.masked_copy(config, "hydra"),
        task_name=config.hydra.job.name,
        status=JobStatus.FAILED,
    )
    failure.return_value = error.with_traceback(None)  # how it came to us tells nobody anything
    return failure


def _without_hydra(config: DictConfig) -> DictConfig:
    own = copy.deepcopy(config)
    with read_write(own), open_dict(own):
        del own["hydra"]
    return own


def _settle_directory(config: DictConfig) -> str | None:
    """Enter the job's folder into its configuration, and return where it worked; None where only the job could tell."""
    try:
        with current(config):
            folder = os.path.join(str(config.hydra.sweep.dir), str(config.hydra.sweep.subdir))
    except OmegaConfBaseException:
        return None
    with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
        config.hydra.runtime.output_dir = os.path.abspath(folder)
    is_moved = config.hydra.job.chdir
    return folder if is_moved or (is_moved is None and not version.base_at_least("1.2")) else os.getcwd()
