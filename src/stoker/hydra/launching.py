"""Submits the jobs of a Hydra multirun, waits for them, and gives Hydra what became of each."""

from __future__ import annotations

import concurrent.futures
import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from hydra.errors import CompactHydraException
from msgspec.structs import replace
from omegaconf import DictConfig, OmegaConf, open_dict

from stoker.core.errors import StokerError
from stoker.core.units import count_text
from stoker.hydra.failure import failure_of
from stoker.hydra.settings import current
from stoker.hydra.task import Sweep, Task
from stoker.options import JobOptions, working_directory
from stoker.python import submitting
from stoker.python.calls import Call
from stoker.python.handle import Job, cancel_all, handles_of
from stoker.python.keywords import read_keywords
from stoker.python.link import Link, find_link

log = logging.getLogger(__name__)


class Run(NamedTuple):
    """One job of a multirun."""

    number: int
    overrides: Sequence[str]
    config: DictConfig


class Batch(NamedTuple):
    """Jobs of a multirun with the same options: the tasks of an array."""

    options: JobOptions
    at_once: int | None
    runs: list[Run]

    @property
    def array(self) -> str:
        """The array, as it would be typed."""
        return f"0-{len(self.runs) - 1}" + ("" if self.at_once is None else f"%{self.at_once}")


def launch(sweep: Sweep, job_overrides: Sequence[Sequence[str]], first: int) -> list[JobReturn]:
    """Run a job for each list of overrides, numbered from `first`; one that fails does not keep the others from it."""
    setup_globals()
    configure_log(sweep.config.hydra.hydra_logging, sweep.config.hydra.verbose)
    Path(str(sweep.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
    try:
        returned = _run_all(sweep, [_composed(sweep, *each) for each in enumerate(job_overrides, first)])
    except StokerError as error:  # which Hydra is to show without a traceback
        raise CompactHydraException("\n".join(filter(None, (error.message, error.hint)))) from error
    return [returned[number] for number in sorted(returned)]


def _composed(sweep: Sweep, number: int, overrides: Sequence[str]) -> Run:
    """Now, so that a change of the files while a job waits does not change the job."""
    config = sweep.context.config_loader.load_sweep_config(sweep.config, list(overrides))
    with open_dict(config):
        config.hydra.job.num = number
        config.hydra.job.id = str(number)  # until it has one
    return Run(number, filter_overrides(overrides), config)


def _run_all(sweep: Sweep, runs: Sequence[Run]) -> dict[int, JobReturn]:
    link = find_link()
    batches = _batches(runs)
    for batch in batches:
        submitting.check(link, replace(batch.options, array=batch.array))
    submitted: dict[Job, Run] = {}
    try:
        for batch in batches:
            submitted |= _submit(link, sweep, batch)
        return dict(_wait(submitted))
    except BaseException:  # Ctrl-C, above all
        _stop(link, list(submitted))
        raise


def _batches(runs: Sequence[Run]) -> list[Batch]:
    """By the options, which may depend on what is overridden."""
    found: dict[str, Batch] = {}
    for run in runs:
        words = _words(run.config)
        if (key := repr(words)) not in found:
            found[key] = Batch(*_read(words), [])
        found[key].runs.append(run)
    return list(found.values())


def _words(config: DictConfig) -> dict[str, Any]:
    with current(config):
        words = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    assert isinstance(words, dict)
    return {str(key): value for key, value in words.items() if key != "_target_"}


def _read(words: dict[str, Any]) -> tuple[JobOptions, int | None]:
    """Hydra's folders are told from here, so jobs begin here, whatever is configured for others."""
    given = {key: value for key, value in words.items() if key != "max_parallel"}
    return read_keywords({**given, "chdir": working_directory()}), words["max_parallel"]


def _submit(link: Link, sweep: Sweep, batch: Batch) -> dict[Job, Run]:
    calls = [Call((run.config,), _shown(run)) for run in batch.runs]
    jobs = handles_of(link, submitting.submit_calls(link, Task(sweep), calls, batch.options, batch.array))
    log.info(f"Launching {_count(jobs)} in Stoker's queue; stoker logs -f {jobs[0].shown_id} shows what one writes")
    for job, run in zip(jobs, batch.runs, strict=True):
        log.info(f"\t#{run.number} (job {job.shown_id}) : {' '.join(run.overrides)}")
    return dict(zip(jobs, batch.runs, strict=True))


def _shown(run: Run) -> dict[str, str]:
    """The overrides, by which people and what is learnt tell one job from another."""
    return {key.lstrip("+"): value for key, _, value in (override.partition("=") for override in run.overrides)}


def _wait(submitted: Mapping[Job, Run]) -> Iterator[tuple[int, JobReturn]]:
    for job in concurrent.futures.as_completed(submitted):
        assert isinstance(job, Job)
        run = submitted[job]
        returned = _returned(job, run)
        log.info(f"\t#{run.number} (job {job.shown_id}) : {_ending(job, returned)}")
        yield run.number, returned


def _returned(job: Job, run: Run) -> JobReturn:
    try:
        returned = job.result()
    except StokerError as error:  # says itself where to look
        return failure_of(run.config, job.shown_id, error)
    except Exception as error:
        error.add_note(f"in job {job.shown_id}, whose log is {job.log}")
        return failure_of(run.config, job.shown_id, error)
    assert isinstance(returned, JobReturn)
    return returned


def _ending(job: Job, returned: JobReturn) -> str:
    if returned.status is JobStatus.COMPLETED:
        return job.state
    error = returned._return_value  # asking for it as one should would raise it
    first_line, _, _ = traceback.format_exception_only(error)[0].partition("\n")
    return f"{job.state}: {first_line}"


def _stop(link: Link, jobs: Sequence[Job]) -> None:
    """As the end of a program ends what it runs in the foreground; a second Ctrl-C leaves that to the queue."""
    left = [job for job in jobs if not job.done()]
    if left:
        log.warning(f"Stopping {_count(left)}; Ctrl-C again leaves before that is over")
        cancel_all(link, left)
        concurrent.futures.wait(left)


def _count(jobs: Sequence[Job]) -> str:
    return count_text(len(jobs), "job")
