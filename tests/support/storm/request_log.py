"""The jobs that a storm submitted and the requests that it sent, with their times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from support.storm.jobs import Work

HOLD, RELEASE, CANCEL, EDIT, AGAIN, PREEMPT = "hold", "release", "cancel", "edit", "again", "preempt"


@dataclass
class SentRequest:
    """Something that was asked for."""

    kind: str
    job: int
    asked: float
    edition: str = ""
    answered: float = inf
    """When the request was first seen to be gone."""
    count: int = 1
    """About how many jobs it is, from `job` on."""

    @property
    def jobs(self) -> range:
        """The jobs that it is about."""
        return range(self.job, self.job + self.count)


@dataclass(frozen=True)
class SubmittedJob:
    """A job that was submitted."""

    work: Work
    at: float
    """When, by the storm's own clock, it was about to be."""
    array: int = 0
    held: bool = False


@dataclass
class RequestLog:
    """All jobs by their ids, and all requests in the order in which they were sent."""

    submitted: dict[int, SubmittedJob] = field(default_factory=dict)
    requests: dict[int, SentRequest] = field(default_factory=dict)
    """By the number of the request."""

    def of(self, job: int, kind: str) -> list[SentRequest]:
        """The requests for a job."""
        return [request for request in self.requests.values() if request.kind == kind and job in request.jobs]

    def unanswered(self) -> Iterator[tuple[int, SentRequest]]:
        """Requests that are not yet seen to be gone."""
        return ((number, request) for number, request in self.requests.items() if request.answered == inf)

    def is_targeted(self, job: int) -> bool:
        """Whether other jobs come after it, so that its end must stay what it was."""
        names = {job, self.submitted[job].array}
        return any(after.target in names for entry in self.submitted.values() for after in entry.work.after)
