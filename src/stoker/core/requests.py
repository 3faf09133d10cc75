"""Requests of front ends to the engine that owns a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.outcomes import CancelResult
from stoker.core.spec import JobSpec


class JobRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request about one job, or about several with consecutive ids."""

    count: int = 1
    """How many jobs, from `job` on."""


class Cancel(JobRequest, frozen=True, tag="cancel"):
    """End the job, whatever it is doing."""

    job: int
    note: str = ""
    grace: float | None = None
    """Seconds between the signal and KILL; None is the grace of the job."""
    signal: int = 0
    """Sent first in place of TERM; 0 is TERM."""
    result: CancelResult = "cancelled"
    """How the job then ends: `stopped` is for jobs that a rule finds not worth finishing."""


class Hold(JobRequest, frozen=True, tag="hold"):
    """Do not start the job."""

    job: int
    note: str = ""


class Release(JobRequest, frozen=True, tag="release"):
    """The job may start; also one that was adopted from another engine."""

    job: int


class Preempt(JobRequest, frozen=True, tag="preempt"):
    """Let a running job give way to another, if it can."""

    job: int
    to: int | None = None
    """The job that gets its devices; None is the next one that waits, 0 is none."""
    note: str = ""


class Edit(JobRequest, frozen=True, tag="edit"):
    """Change spec and name of the job."""

    job: int
    spec: JobSpec
    name: str | None = None
    """None leaves it."""


class Again(JobRequest, frozen=True, tag="again"):
    """Run an ended job once more, with this spec if one is given."""

    job: int
    spec: JobSpec | None = None


Request = Cancel | Hold | Release | Preempt | Edit | Again


def merged(requests: Iterable[Request]) -> Iterator[Request]:
    """The same requests, where those that are alike and about consecutive ids are one."""
    first: Request | None = None
    count = 0
    for request in requests:
        is_next = first is not None and request.job == first.job + count
        if first is not None and is_next and replace(request, job=first.job, count=first.count) == first:
            count += request.count
            continue
        if first is not None:
            yield replace(first, count=count)
        first, count = request, request.count
    if first is not None:
        yield replace(first, count=count)


def split(request: Request, most: int) -> tuple[Request, Request | None]:
    """The request for the first jobs, at most so many, and the one for the others; None if there are none."""
    if request.count <= most:
        return request, None
    return replace(request, count=most), replace(request, job=request.job + most, count=request.count - most)
