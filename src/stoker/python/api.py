"""Functions for Python programs: submit, find and wait for jobs."""

from __future__ import annotations

import concurrent.futures
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from stoker.app.jobs.installation import how_to_add
from stoker.app.jobs.select import find
from stoker.core.errors import NoSuchJob, UsageError
from stoker.python.connection import find_link
from stoker.python.job import Job, handles_of
from stoker.python.keywords import read_keywords, takes_job_options
from stoker.python.submitting import submit_command

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.python.keywords import Keywords

    Meant = Job | int | str


class Waited(NamedTuple):
    """Jobs by whether they are done."""

    done: set[Job]
    not_done: set[Job]


@takes_job_options
def submit(command: Sequence[str] | str, **options: Unpack[Keywords]) -> Job:
    """Submit a command: words are executed, text goes through the shell."""
    given = read_keywords(options)
    if given.array is not None:
        raise UsageError("submit() makes one job", "submit_array() makes an array")
    link = find_link()
    return handles_of(link, submit_command(link, command, given))[0]


@takes_job_options
def submit_array(command: Sequence[str] | str, array: str, **options: Unpack[Keywords]) -> list[Job]:
    """Many tasks of one command, such as `0-9%4`; {i} in it is the index."""
    link = find_link()
    return handles_of(link, submit_command(link, command, read_keywords({**options, "array": array})))


def job(job_id: int | str) -> Job:
    """One job by its id: 12, or "12.3" for a task of an array; also "last" or its name."""
    link = find_link()
    with link.opened() as store:
        ids = find(store, [str(job_id)])
    if len(ids) != 1:
        raise NoSuchJob(f"{job_id} is {len(ids)} jobs", f'jobs("{job_id}") gives all of them')
    return handles_of(link, ids)[0]


def jobs(*ids: Meant, ended: bool = False) -> list[Job]:
    """The jobs that the ids or names mean; without any, all open jobs, or all ended ones."""
    link = find_link()
    with link.opened() as store:
        job_ids = find(store, [_word(word) for word in ids] or ["all"], "ended" if ended else "open")
    return handles_of(link, job_ids)


def wait(
    meant: Meant | Iterable[Meant], timeout: float | None = None, return_when: str = concurrent.futures.ALL_COMPLETED
) -> Waited:
    """Wait for jobs, or ids of jobs; `return_when` is a word of concurrent.futures."""
    jobs = _handles(meant)
    done, _ = concurrent.futures.wait(jobs, timeout, return_when)
    return Waited({job for job in jobs if job in done}, {job for job in jobs if job not in done})


def as_completed(
    meant: Meant | Iterable[Meant], timeout: float | None = None, *, progress: bool = False
) -> Iterator[Job]:
    """The jobs in the order in which they end; `progress` shows a bar of tqdm, where that is installed."""
    handles = _handles(meant)
    ended: Iterator[Job] = concurrent.futures.as_completed(handles, timeout)  # type: ignore[assignment]
    return _with_bar(ended, len(handles)) if progress else ended


def _with_bar(ended: Iterator[Job], count: int) -> Iterator[Job]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        text = f"no progress bar: tqdm is not installed; {how_to_add('tqdm')}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return ended
    return iter(tqdm(ended, total=count, unit="job"))


def _handles(meant: Meant | Iterable[Meant]) -> list[Job]:
    things = [meant] if isinstance(meant, Job | int | str) else list(meant)
    words = [thing for thing in things if not isinstance(thing, Job)]
    return [*(thing for thing in things if isinstance(thing, Job)), *(jobs(*words) if words else [])]


def _word(meant: Meant) -> str:
    return meant.shown_id if isinstance(meant, Job) else str(meant)
