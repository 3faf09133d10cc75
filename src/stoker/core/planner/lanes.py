"""Waiting jobs in lanes: to the plan the jobs of a lane differ only in age, so it examines only the oldest.

Every kind of work is a group, so there may be as many groups as jobs. Few of them differ in what is reserved for them
and in their work, so there are few lanes. Lanes that differ only in memory and load make a row, and on a full machine
the plan refuses a row as a whole.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush, heapreplace, merge
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from stoker.core.job import Job
from stoker.core.planner.displacement import VainSearch
from stoker.core.planner.order import Order, QueuePosition
from stoker.core.planner.queue import Cap, JobKind, ReasonKey, WaitingGroup, WaitingJobs, without_memory
from stoker.core.spec import Resources

Thing = TypeVar("Thing")

Estimate = Callable[[JobKind], Resources]
"""The resources to reserve for jobs of one kind."""
JobsOf = Callable[[WaitingGroup], Iterator[Job]]


class LaneKey(NamedTuple):
    """The properties that all jobs of a lane share."""

    priority: int
    caps: tuple[Cap, ...]
    work: float
    """By which the order ranks them."""
    resources: Resources
    """Reserved for each job."""
    returned: float | None = None
    """When it gave way: then the lane has no other job, since the order counts its waiting time from there."""


def reason_key(key: LaneKey) -> ReasonKey:
    return ReasonKey(key.resources, key.priority, key.caps)


class RowKey(NamedTuple):
    """The properties that all jobs of a row share."""

    reason: ReasonKey
    """Without memory and load."""
    work: float
    returned: float | None = None


def row_key_of(key: LaneKey) -> RowKey:
    return RowKey(without_memory(reason_key(key)), key.work, key.returned)


class ByAge(Generic[Thing]):
    """Things sorted by the id of their oldest job."""

    __slots__ = ("_ids", "_things")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._things: dict[int, Thing] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Thing]:
        return (self._things[head] for head in self._ids)

    @property
    def oldest(self) -> int:
        return self._ids[0]

    @property
    def first(self) -> Thing:
        return self._things[self._ids[0]]

    def add(self, head: int, thing: Thing) -> None:
        insort(self._ids, head)
        self._things[head] = thing

    def remove(self, head: int) -> None:
        del self._ids[bisect_left(self._ids, head)]
        del self._things[head]


class Lane:
    """Groups of one lane."""

    __slots__ = ("groups", "key", "row", "size")

    def __init__(self, key: LaneKey, row: LaneRow) -> None:
        self.key = key
        self.row = row
        self.groups: ByAge[WaitingGroup] = ByAge()
        self.size = 0


class LaneRow:
    """Lanes of one row."""

    __slots__ = ("key", "lanes")

    def __init__(self, key: RowKey) -> None:
        self.key = key
        self.lanes: ByAge[Lane] = ByAge()

    @property
    def priority(self) -> int:
        return self.key.reason.priority

    @property
    def size(self) -> int:
        return sum(lane.size for lane in self.lanes)

    @property
    def job(self) -> Job:
        """The oldest job."""
        return next(iter(self.lanes.first.groups.first))

    def oldest(self, most: int, jobs_of: JobsOf = iter) -> Iterator[Job]:
        """So many of the oldest jobs, among those of each group that `jobs_of` gives."""
        walks = [LaneCursor(lane.key, lane.groups, jobs_of).walk() for lane in islice(self.lanes, most)]
        return islice(merge(*walks, key=lambda job: job.id), most)

    @property
    def resources(self) -> Resources:
        """Reserved for the oldest job."""
        return self.lanes.first.key.resources


class LaneCursor:
    """Walks through the jobs of a lane by age, without changing the lane; false at its end."""

    def __init__(self, key: LaneKey, groups: Iterable[WaitingGroup], jobs_of: JobsOf = iter) -> None:
        self.key = key
        self._jobs_of = jobs_of
        self._groups = iter(groups)
        self._next = next(self._groups, None)
        self._open: list[tuple[int, Job, Iterator[Job]]] = []
        self._fill()

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def priority(self) -> int:
        return self.key.priority

    @property
    def job(self) -> Job:
        return self._open[0][1]

    @property
    def size(self) -> int:
        """How many jobs are left. To count them ends the walk."""
        return sum(1 for _ in self.walk())

    def walk(self) -> Iterator[Job]:
        """All jobs from here on."""
        while self:
            yield self.job
            self.advance()

    def advance(self) -> None:
        """Go on to the next job."""
        jobs = self._open[0][2]
        if job := next(jobs, None):
            heapreplace(self._open, (job.id, job, jobs))
        else:
            heappop(self._open)
        self._fill()

    def split(self, work: float) -> LaneCursor:
        """Take the group of the current job, which is now other work, out of this walk into one of its own."""
        alone = LaneCursor(self.key._replace(work=work), (), self._jobs_of)
        alone._open.append(heappop(self._open))
        self._fill()
        return alone

    def split_until(self, wanted: Callable[[Job], bool], most: int) -> LaneCursor:
        """Take the groups before the next wanted job out of this walk into one of their own.

        All groups, if none of the next `most` is wanted: then this walk is at its end.
        """
        skipped = LaneCursor(self.key, ())
        for _ in range(most):
            if not self or wanted(self.job):
                return skipped
            heappush(skipped._open, heappop(self._open))
            self._fill()
        for opened in self._open:
            heappush(skipped._open, opened)
        skipped._groups, skipped._next = self._groups, self._next
        self._open, self._next = [], None
        return skipped

    def _fill(self) -> None:
        """Open the groups whose oldest job is older than all jobs of open groups."""
        while self._next is not None and (not self._open or self._next.oldest < self._open[0][0]):
            jobs = self._jobs_of(self._next)
            job = next(jobs)
            heappush(self._open, (job.id, job, jobs))
            self._next = next(self._groups, None)


class _Filed(NamedTuple):
    """Where a group is filed, and under which numbers."""

    lane: Lane
    head: int
    size: int


class _Least:
    """The least memory and load of alike lanes: a lower bound, since lanes that go are not subtracted."""

    def __init__(self) -> None:
        self.seen = self.there = 0
        self._memory: int | None = None
        self._floor: int | None = None
        self._predicted: dict[str, int] = {}
        self._loads: dict[str, int] = {}
        self._resources: Resources | None = None
        """The last answer of `resources`; None after a change."""

    def add(self, resources: Resources) -> None:
        loads = dict(resources.loads)
        if self.seen:
            self._loads = {model: min(load, loads.get(model, 0)) for model, load in self._loads.items()}
        else:
            self._loads = loads
        self.seen += 1
        self.there += 1
        self._resources = None
        self._floor = resources.floor if self._floor is None else min(self._floor, resources.floor)
        if resources.memory is not None:
            self._memory = resources.memory if self._memory is None else min(self._memory, resources.memory)
        for model, amount in resources.predicted:
            self._predicted[model] = min(amount, self._predicted.get(model, amount))

    def resources(self, rough: Resources) -> Resources:
        """Resources of the row with the bounds."""
        if self._resources is None:
            self._resources = replace(
                rough,
                memory=self._memory,
                predicted=tuple(sorted(self._predicted.items())),
                loads=tuple((model, load) for model, load in sorted(self._loads.items()) if load),
                floor=self._floor or 0,
            )
        return self._resources


class Lanes:
    """All waiting jobs in lanes and rows. An engine keeps them from plan to plan, and refiles only what changed."""

    def __init__(self, waiting: WaitingJobs, estimate: Estimate) -> None:
        self._waiting = waiting
        self.estimate = estimate
        self._work: Callable[[Job], float] = lambda job: 0.0
        self._filed: dict[JobKind, _Filed] = {}
        self._kinds: dict[str, set[JobKind]] = {}
        self._lanes: dict[LaneKey, Lane] = {}
        self._rows: dict[RowKey, LaneRow] = {}
        self._least: dict[Resources, _Least] = {}
        self._running: Mapping[str, int] = {}
        self._learnt: set[str] = set()
        self.vain: VainSearch | None = None
        """The last search for jobs that give way to these, if it found none and no lane has changed since."""

    @property
    def rows(self) -> Iterable[LaneRow]:
        return self._rows.values()

    def least(self, row: LaneRow) -> Resources:
        """Resources that no job of a row needs less than."""
        rough = row.key.reason.resources
        return self._least[rough].resources(rough)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def standings(self, order: Order, most: int) -> list[QueuePosition]:
        """The first jobs in the order of the plan, one for each array. Lanes must have been refreshed."""
        walks = [row.oldest(most, WaitingGroup.heads) for row in self._rows.values()]
        jobs = merge(*walks, key=lambda job: (-job.spec.priority, order.key(job), job.id))
        return [order.standing(job, self._waiting.tasks(job)) for job in islice(jobs, most)]

    def learnt(self, kind: str) -> None:
        """Refile the jobs of a kind of which more is known now, at the next refresh."""
        self._learnt.add(kind)

    def refresh(self, order: Order, touched: Iterable[JobKind]) -> None:
        """Refile the groups that were touched, and those of kinds of which more or fewer jobs run."""
        self._work = order.work
        before, self._running = self._running, order.running()
        kinds = {kind for kind in before.keys() | self._running.keys() if before.get(kind) != self._running.get(kind)}
        job_kinds = set(touched)
        for kind in kinds | self._learnt:
            job_kinds |= self._kinds.get(kind, set())
        self._learnt.clear()
        groups = [group for job_kind in job_kinds if (group := self._waiting.group(job_kind)) is not None]
        gone = job_kinds & self._filed.keys()
        # All of them first: a job may have moved from one to the other. At their ends the sorted lists change fast.
        for job_kind in sorted(gone, key=lambda job_kind: self._filed[job_kind].head, reverse=True):
            self._remove(job_kind)
        for group in sorted(groups, key=lambda group: group.oldest):
            self._file(group)
        if job_kinds:
            self.vain = None

    def _file(self, group: WaitingGroup) -> None:
        job_kind, head = group.job_kind, group.oldest
        work = self._work(next(iter(group)))
        key = LaneKey(job_kind.priority, job_kind.caps, work, self.estimate(job_kind), job_kind.returned)
        lane = self._lanes.get(key) or self._open(key)
        if not lane.groups or head < lane.groups.oldest:
            if lane.groups:
                lane.row.lanes.remove(lane.groups.oldest)
            lane.row.lanes.add(head, lane)
        lane.groups.add(head, group)
        lane.size += len(group)
        self._filed[job_kind] = _Filed(lane, head, len(group))
        if job_kind.kind:
            self._kinds.setdefault(job_kind.kind, set()).add(job_kind)

    def _open(self, key: LaneKey) -> Lane:
        """A new lane, and a row for it if there is none."""
        row_key = row_key_of(key)
        row = self._rows.get(row_key)
        if row is None:
            row = self._rows[row_key] = LaneRow(row_key)
        self._least.setdefault(row_key.reason.resources, _Least()).add(key.resources)
        lane = self._lanes[key] = Lane(key, row)
        return lane

    def _remove(self, job_kind: JobKind) -> None:
        lane, head, size = self._filed.pop(job_kind)
        was_oldest = head == lane.groups.oldest
        lane.groups.remove(head)
        lane.size -= size
        if was_oldest:
            lane.row.lanes.remove(head)
            if lane.groups:
                lane.row.lanes.add(lane.groups.oldest, lane)
            else:
                self._close(lane)
        if job_kind.kind:
            job_kinds = self._kinds[job_kind.kind]
            job_kinds.discard(job_kind)
            if not job_kinds:
                del self._kinds[job_kind.kind]

    def _close(self, lane: Lane) -> None:
        """Remove a lane without groups, and its row if that has no other."""
        row = lane.row
        del self._lanes[lane.key]
        self._forget(row.key.reason.resources)
        if not row.lanes:
            del self._rows[row.key]

    def _forget(self, rough: Resources) -> None:
        """Find the bound anew once half of the lanes that made it are gone."""
        least = self._least[rough]
        least.there -= 1
        if not least.there:
            del self._least[rough]
        elif least.seen > 2 * least.there:
            self._least[rough] = least = _Least()
            for lane in self._lanes.values():
                if lane.row.key.reason.resources == rough:
                    least.add(lane.key.resources)
