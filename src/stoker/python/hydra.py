"""The Hydra launcher: runs the jobs of a multirun from the queue."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import functools
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra import version
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.errors import CompactHydraException
from msgspec.structs import replace
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from stoker.app.jobs.context import working_directory
from stoker.app.jobs.options import JobOptions
from stoker.core.errors import StokerError
from stoker.core.units import count_text
from stoker.python import submitting
from stoker.python.calls import Call
from stoker.python.connection import Link, find_link
from stoker.python.job import Job, cancel_all, handles_of
from stoker.python.keywords import read_keywords

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction


log = logging.getLogger(__name__)


def set_id(config: DictConfig, shown_id: str) -> None:
    with read_write(config.hydra.job):
        config.hydra.job.id = shown_id


@contextlib.contextmanager
def current(config: DictConfig) -> Iterator[None]:
    """Resolve ${hydra:...} with this configuration."""
    hydra = HydraConfig.instance()
    before = hydra.cfg
    hydra.set_config(config)
    try:
        yield
    finally:
        hydra.cfg = before


class Multirun(NamedTuple):
    """The arguments that Hydra passes to a launcher."""

    context: HydraContext
    function: TaskFunction
    config: DictConfig


class MultirunFunction:
    """The function of all jobs of a multirun, under the name of the program."""

    def __init__(self, sweep: Multirun) -> None:
        functools.update_wrapper(self, sweep.function)
        self.__name__ = self.__module__ = str(sweep.config.hydra.job.name)  # else it would be __main__
        self._function = sweep.function
        self._context = sweep.context
        self._state = Singleton.get_state()
        self._program = os.path.abspath(sys.argv[0])

    def __call__(self, config: DictConfig, /, **_shown: str) -> JobReturn:
        """Run the function in the job. `_shown` are overrides that only name the call."""
        Singleton.set_state(self._state)
        setup_globals()
        # As without a launcher: some programs start themselves again.
        sys.argv = [self._program, *config.hydra.overrides.task]
        set_id(config, f"{os.environ['STOKER_ARRAY_ID']}.{os.environ['STOKER_ARRAY_INDEX']}")
        returned = run_job(self._function, config, "hydra.sweep.dir", "hydra.sweep.subdir", self._context)
        _ = returned.return_value  # raises an exception of the function, so that the queue sees the failure and retries
        return returned


def failure_of(config: DictConfig, shown_id: str, error: Exception) -> JobReturn:
    """The JobReturn of a failed job; reading its value raises the error."""
    set_id(config, shown_id)
    own = copy.deepcopy(config)
    with read_write(own), open_dict(own):
        del own["hydra"]
    failure = JobReturn(
        overrides=list(config.hydra.overrides.task),
        cfg=own,
        working_dir=_settle_directory(config),
        hydra_cfg=OmegaConf.masked_copy(config, "hydra"),
        task_name=config.hydra.job.name,
        status=JobStatus.FAILED,
    )
    failure.return_value = error.with_traceback(None)  # the traceback of this process is of no use
    return failure


def _settle_directory(config: DictConfig) -> str | None:
    """Set the output directory in the configuration and return the working directory; None where only the job knows."""
    try:
        with current(config):
            folder = os.path.join(str(config.hydra.sweep.dir), str(config.hydra.sweep.subdir))
    except OmegaConfBaseException:
        return None
    with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
        config.hydra.runtime.output_dir = os.path.abspath(folder)
    is_moved = config.hydra.job.chdir
    return folder if is_moved or (is_moved is None and not version.base_at_least("1.2")) else os.getcwd()


class MultirunJob(NamedTuple):
    """One job of a multirun."""

    number: int
    overrides: Sequence[str]
    config: DictConfig


class MultirunArray(NamedTuple):
    """Jobs of a multirun with the same options: the tasks of an array."""

    options: JobOptions
    at_once: int | None
    runs: list[MultirunJob]

    @property
    def array(self) -> str:
        return f"0-{len(self.runs) - 1}" + ("" if self.at_once is None else f"%{self.at_once}")


def launch(sweep: Multirun, job_overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Run a job for each list of overrides, numbered from `first`. A failure does not stop the others."""
    setup_globals()
    configure_log(sweep.config.hydra.hydra_logging, sweep.config.hydra.verbose)
    Path(str(sweep.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    try:
        returned = _run_all(sweep, [_composed(sweep, *numbered) for numbered in enumerate(job_overrides, first)])
    except StokerError as error:  # Hydra shows this class without a traceback
        raise CompactHydraException("\n".join(filter(None, (error.message, error.hint)))) from error
    return [returned[number] for number in sorted(returned)]


def _composed(sweep: Multirun, number: int, overrides: Sequence[str]) -> MultirunJob:
    """Compose the configuration now: later changes of its files must not change a waiting job."""
    config = sweep.context.config_loader.load_sweep_config(sweep.config, list(overrides))
    with open_dict(config):
        config.hydra.job.num = number
        config.hydra.job.id = str(number)  # until the queue gives it one
    return MultirunJob(number, filter_overrides(overrides), config)


def _run_all(sweep: Multirun, runs: Sequence[MultirunJob]) -> dict[int, JobReturn]:
    link = find_link()
    batches = _batches(runs)
    for batch in batches:
        submitting.check(link, replace(batch.options, array=batch.array))
    submitted: dict[Job, MultirunJob] = {}
    try:
        for batch in batches:
            submitted |= _submit(link, sweep, batch)
        return dict(_wait(submitted))
    except BaseException:  # Ctrl-C, above all
        _stop(link, list(submitted))
        raise


def _batches(runs: Sequence[MultirunJob]) -> list[MultirunArray]:
    """Runs with the same options, which may depend on the overrides."""
    arrays: dict[str, MultirunArray] = {}
    for run in runs:
        words = _words(run.config)
        if (key := repr(words)) not in arrays:
            arrays[key] = MultirunArray(*_read(words), [])
        arrays[key].runs.append(run)
    return list(arrays.values())


def _words(config: DictConfig) -> dict[str, Any]:
    with current(config):
        words = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    assert isinstance(words, dict)
    return {str(key): value for key, value in words.items() if key != "_target_"}


def _read(words: dict[str, Any]) -> tuple[JobOptions, int | None]:
    """Jobs start in this directory, since Hydra's folders are relative to it."""
    given = {key: value for key, value in words.items() if key != "max_parallel"}
    return read_keywords({**given, "chdir": working_directory()}), words["max_parallel"]


def _submit(link: Link, sweep: Multirun, batch: MultirunArray) -> dict[Job, MultirunJob]:
    calls = [Call((run.config,), _shown(run)) for run in batch.runs]
    jobs = handles_of(link, submitting.submit_calls(link, MultirunFunction(sweep), calls, batch.options, batch.array))
    follow = f"follow one: stoker logs -f {jobs[0].shown_id}"
    log.info(f"Submitted {count_text(len(jobs), 'job')} to Stoker ({follow})")
    for job, run in zip(jobs, batch.runs, strict=True):
        log.info(f"\t#{run.number} (job {job.shown_id}) : {' '.join(run.overrides)}")
    return dict(zip(jobs, batch.runs, strict=True))


def _shown(run: MultirunJob) -> dict[str, str]:
    """The overrides, which distinguish the jobs on screens and in what is learnt."""
    return {key.lstrip("+"): value for key, _, value in (override.partition("=") for override in run.overrides)}


def _wait(submitted: Mapping[Job, MultirunJob]) -> Iterator[tuple[int, JobReturn]]:
    for job in concurrent.futures.as_completed(submitted):
        assert isinstance(job, Job)
        run = submitted[job]
        returned = _returned(job, run)
        log.info(f"\t#{run.number} (job {job.shown_id}) : {_ending(job, returned)}")
        yield run.number, returned


def _returned(job: Job, run: MultirunJob) -> JobReturn:
    try:
        returned = job.result()
    except StokerError as error:  # it names the log itself
        return failure_of(run.config, job.shown_id, error)
    except Exception as error:
        error.add_note(f"in job {job.shown_id}, whose log is {job.log}")
        return failure_of(run.config, job.shown_id, error)
    assert isinstance(returned, JobReturn)
    return returned


def _ending(job: Job, returned: JobReturn) -> str:
    if returned.status is JobStatus.COMPLETED:
        return job.state
    error = returned._return_value  # the public property would raise it
    first_line, _, _ = traceback.format_exception_only(error)[0].partition("\n")
    return f"{job.state}: {first_line}"


def _stop(link: Link, jobs: Sequence[Job]) -> None:
    """Cancel the jobs and wait for their end; a second Ctrl-C ends the waiting."""
    open_jobs = [job for job in jobs if not job.done()]
    if open_jobs:
        log.warning(f"Stopping {count_text(len(open_jobs), 'job')}; press Ctrl-C again to exit at once")
        cancel_all(link, open_jobs)
        concurrent.futures.wait(open_jobs)
