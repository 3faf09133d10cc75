"""Assign attempts to workers and send start orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.job import Assigned, Job, Returned, Stopping, need_of
from stoker.core.launch import Order, order_of, output_paths, variables
from stoker.core.planner.plan import Start
from stoker.devices.interface import Devices
from stoker.devices.mps.daemon import MpsTrouble
from stoker.engine.job_table import Book
from stoker.sites.machine.allocations import Post, Posts
from stoker.sites.machine.mps import PLAIN, Served, Tending
from stoker.sites.machine.observation import Sight
from stoker.sites.machine.resources import Equipment
from stoker.sites.machine.worker_events import Hearing
from stoker.store.logs import size_of
from stoker.store.writer import Store


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


class Dispatch:
    """The way of a job from the plan to its keeper, which a client of MPS has to wait on for its daemon."""

    def __init__(self, book: Book, posts: Posts, sight: Sight, hearing: Hearing, equipment: Equipment) -> None:
        self.trouble = ""
        """What people should know of MPS, in words; empty where all goes well."""
        self._book = book
        self._posts = posts
        self._sight = sight
        self._hearing = hearing
        self._backend = equipment.backend
        self._user = equipment.user
        self._orders = Orders(equipment.store, equipment.devices, equipment.report)
        self._tending = Tending(equipment.backend)

    @property
    def waits(self) -> bool:
        """Whether assignments wait for a daemon of MPS."""
        return self._tending.busy

    def assign(self, start: Start, now: float) -> bool:
        """Put a job on the devices that the plan gave it; False where somebody else was faster to claim them."""
        devices = self._sight.devices(start.devices)
        post = self._posts[start.behind] if start.behind else self._posts.open(start.need, devices, now)
        if post is None:
            return False
        job = self._book.roster.waiting.remove(start.job.id)
        assert job is not None
        out, err = output_paths(job, self._user)
        errors = "" if err == out else err
        need = None if start.need == job.terms.need else start.need
        lease, log_start = post.lease.rpartition("/")[2], size_of(err) if start.devices else 0
        assigned = Assigned(post.keeper, start.devices, out, now, errors, lease, need, log_start)
        self._take(post, self._book.happen(job, assigned), (out, err), now)
        if start.need.shares:
            self._posts.note_company(self._sight.leases)
        return True

    def hand_over(self, *, draining: bool, exclusive: bool) -> None:
        """Give recorded assignments to their keepers; `exclusive` is about the compute mode of GPUs under MPS."""
        self._tending.exclusive = exclusive
        for assignment in self._orders.take():
            job, post, _ = assignment
            now = self._book.roster.active(job.id)
            if now is None or now.attempts != job.attempts:  # came back while the disk was full
                self._tending.forget(job)
            elif draining or _is_called_off(now):  # somebody stopped it between the decision and this
                self._return(now, post)
            elif (served := self._served(assignment, now)) is not None:
                self._give(assignment, now, served)
        self._backend.flush()

    def close(self) -> None:
        """Want nothing of MPS any more."""
        self._tending.close()

    def _take(self, post: Post, job: Job, outputs: tuple[str, str], now: float) -> None:
        if not post.jobs:  # now that it is busy, more may be handed over ahead
            self._book.plan_due = True
        post.take(job.id, now)
        self._orders.put(Assignment(job, post, outputs))

    def _return(self, job: Job, post: Post) -> None:
        self._tending.forget(job)
        self._book.happen(job, Returned(job.attempts, self._book.clock()))
        self._hearing.leave_post(post.keeper, job)

    def _give(self, assignment: Assignment, job: Job, served: Served) -> None:
        keeper = assignment.post.keeper
        order, environment = self._orders.order(assignment, served)
        self._backend.start(keeper, order, environment)
        if isinstance(job.state, Stopping):
            self._backend.stop(keeper, order.attempt, 0.0)

    def _served(self, assignment: Assignment, job: Job) -> Served | None:
        """What MPS has for the attempt; None where that is not ready yet, or never will be."""
        if need_of(job).mps is None:
            return PLAIN
        try:
            served = self._tending.serve(job, assignment.post, self._orders.environment(job), self._book.clock())
        except MpsTrouble as error:
            return self._without(assignment, job, error)
        if served is None:
            self._orders.put(assignment)
        self.trouble = self._tending.trouble or self._tending.news()
        return served

    def _without(self, assignment: Assignment, job: Job, error: MpsTrouble) -> Served | None:
        """There will be no daemon: the job goes without it where that was allowed, else it is over."""
        if job.terms.mps_optional:
            self.trouble = f"MPS is not used: {error.message}"
            return PLAIN
        self._hearing.refuse(assignment.post.keeper, job, f"{error.message}; {error.hint}")
        return None


def _is_called_off(job: Job) -> bool:
    """Whether nobody wants a job any more that may still have to wait for its MPS daemon."""
    return isinstance(job.state, Stopping) and need_of(job).mps is not None
