"""Orders to keepers, made of a job and where it was assigned, and given only once that is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.attempt import Order, order_of, variables
from stoker.core.job import Job
from stoker.devices.kind import Devices
from stoker.posts import Post
from stoker.store import Store
from stoker.tending import Served


class Assignment(NamedTuple):
    """An assignment that is to be given to a keeper once it is recorded."""

    job: Job
    post: Post
    outputs: tuple[str, str]


class Orders:
    """Assignments that wait to be given, and the environments they refer to."""

    def __init__(self, store: Store, devices: Devices, report: Callable[[int], str]) -> None:
        """`report` is where a job may tell of itself."""
        self._report = report
        self._store = store
        self._devices = devices
        self._waiting: list[Assignment] = []
        self._environments: dict[str, dict[str, str]] = {}

    def put(self, assignment: Assignment) -> None:
        """Keep an assignment until it is recorded."""
        self._waiting.append(assignment)

    def take(self) -> Iterator[Assignment]:
        """All that was put; each is given once."""
        waiting, self._waiting = self._waiting, []
        return iter(waiting)

    def order(self, assignment: Assignment, served: Served) -> tuple[Order, dict[str, str]]:
        """What the keeper has to know, and the environment that the order names."""
        job, post, outputs = assignment
        base = self.environment(job)
        given = {**variables(job, post.devices, base), **served.variables}
        extra = {**self._devices.variables, **given, "STOKER_REPORT": self._report(job.id)}
        order = order_of(job, outputs, extra, post.devices)
        return replace(order, farewell=served.farewell) if served.farewell else order, base

    def environment(self, job: Job) -> dict[str, str]:
        """The environment that the job was submitted with."""
        digest = job.terms.environment
        if digest not in self._environments:
            self._environments[digest] = self._store.environment(digest)
        return self._environments[digest]
