"""Waiting jobs grouped by kind, and what makes a queued job not eligible."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.job import Job, OnHold, Waiting, needs_exclusive, part, single
from stoker.core.jobs_by_id import JobsById
from stoker.core.learning import Learnt, estimated
from stoker.core.outcomes import JobStateName
from stoker.core.planner.reasons import Behind, HeldBack, NotBefore, OutOfResources
from stoker.core.spec import Blocked, Dependency, NeverSatisfied, Outcome, Resources, judge

SLACK = 64
"""Removed ids that a group may keep before it is compacted."""


class Cap(NamedTuple):
    """A limit on how many jobs of some kind run at once."""

    name: str
    """As shown to users: `group vision`, `array 12`, `executor 4711-3f`, `CPU jobs`."""
    limit: int | None = None
    """None if the policy sets it."""


class JobKind(NamedTuple):
    """All properties of a waiting job that the plan uses, except for its age. Jobs of one kind are interchangeable."""

    resources: Resources
    priority: int
    caps: tuple[Cap, ...] = ()
    kind: str = ""
    """The kind of work, if history matters."""
    floor: int = 0
    """Bytes that it needs at least, as an earlier attempt showed."""
    exclusive: bool = False
    """Whether it may not share any more, after failures with co-tenants."""
    limit: float | None = None
    """Its time limit, which tells how much work it is."""
    nodes: int = 1
    slurm: tuple[tuple[str, str], ...] = ()
    urgent: bool = False
    """Whether running jobs give way to it even if they have less work left."""
    returned: float | None = None
    """When it gave way; None if it did not."""


class ReasonKey(NamedTuple):
    """The properties that decide why a job waits."""

    resources: Resources
    """To be reserved for it."""
    priority: int
    caps: tuple[Cap, ...] = ()


def without_memory(key: ReasonKey) -> ReasonKey:
    """The same without memory and load. The plan refuses jobs that are alike in this together, if none of them fits."""
    resources = key.resources
    memory = None if resources.memory is None else 0
    return key._replace(resources=replace(resources, memory=memory, predicted=(), loads=(), floor=0))


CPU_JOBS = Cap("CPU jobs")
ON_FINISH_JOBS = Cap("hooks", 4)
"""On-finish jobs are short and have a cap of their own, so that they do not queue behind long jobs."""


def job_kind_of(job: Job) -> JobKind:
    """The kind of a job, which is the key of its group."""
    spec = job.spec
    if spec.group or spec.at_once is not None or not spec.resources.gpus or job.kind:
        caps, exclusive = caps_of(job), needs_exclusive(job)
        given = spec.limit, spec.nodes, spec.slurm, spec.urgent, returned_at(job)
        return JobKind(spec.resources, spec.priority, caps, job.kind, job.floor, exclusive, *given)
    return JobKind(
        spec.resources,
        spec.priority,
        limit=spec.limit,
        nodes=spec.nodes,
        slurm=spec.slurm,
        urgent=spec.urgent,
        returned=returned_at(job),
    )


def returned_at(job: Job) -> float | None:
    """When a waiting job gave way; None if it did not."""
    state = job.state
    return state.since if isinstance(state, Waiting) and state.gave_way is not None else None


def caps_of(job: Job) -> tuple[Cap, ...]:
    """The limits that a job counts towards."""
    spec = job.spec
    caps = [Cap(f"group {spec.group}")] if spec.group else []
    if spec.at_once is not None:
        caps.append(Cap(f"executor {spec.pool}" if spec.pool else f"array {job.array}", spec.at_once))
    if not spec.resources.gpus:
        caps.append(ON_FINISH_JOBS if spec.role == "hook" else CPU_JOBS)
    return tuple(caps)


class WaitingGroup:
    """The waiting jobs of one kind; iterating gives them one by one, oldest first.

    First ids of entries are kept sorted and removed lazily: an id counts while the table has an entry of this kind
    for it.
    """

    __slots__ = ("_arrays", "_entries", "_head", "_ids", "_jobs", "_size", "job_kind")

    def __init__(self, job_kind: JobKind, jobs: dict[int, Job]) -> None:
        self.job_kind = job_kind
        self._jobs = jobs
        self._ids: list[int] = []
        self._head = 0
        self._size = 0
        self._entries = 0
        self._arrays: dict[int, tuple[int, int]] = {}
        """How many tasks of each array are here, and the largest id that was."""

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Job]:
        return single(job for job_id in islice(self._ids, self._head, None) if (job := self._job(job_id)))

    def heads(self) -> Iterator[Job]:
        """The jobs oldest first, of each array only the first task: its tasks have consecutive ids.

        Lines that share a row come with the command of the first: the order of the plan needs none.
        """
        position = self._head
        while position < len(self._ids):
            job = self._job(self._ids[position])
            position += 1
            if job is not None:
                if not job.array:
                    yield from (replace(job, id=job_id, count=1) for job_id in range(job.id, job.last + 1))
                    continue
                yield part(job, job.id, job.id)
                position = bisect_right(self._ids, self._arrays[job.array][1], position)

    def tasks(self, array: int) -> int:
        """How many tasks of an array are in the group."""
        return self._arrays.get(array, (0, 0))[0]

    @property
    def oldest(self) -> int:
        """The id of the first job."""
        return self._ids[self._head]

    def place(self, job_id: int) -> int:
        """How many jobs of the group come before this one."""
        position = bisect_left(self._ids, job_id, self._head)
        if len(self._ids) - self._head == self._size:
            return position - self._head
        before = (self._job(first) for first in islice(self._ids, self._head, position))
        return sum(min(job.last, job_id - 1) - job.id + 1 for job in before if job is not None)

    def enter(self, job: Job) -> None:
        """Add an entry that is already in the table of jobs."""
        self._count(job, 1)
        self._insert(job.id)

    def leave(self, job: Job, left: Sequence[Job]) -> None:
        """Remove an entry that the table of jobs has replaced by its remaining parts."""
        self._count(job, -1)
        for rest in left:
            self.enter(rest)
        ids = self._ids
        while self._head < len(ids) and self._job(ids[self._head]) is None:
            self._head += 1
        if self._head > SLACK and self._head * 2 > len(ids):
            del ids[: self._head]
            self._head = 0
        if len(ids) - self._head > 2 * self._entries + SLACK:
            self._ids = [job_id for job_id in ids[self._head :] if self._job(job_id) is not None]
            self._head = 0

    def _count(self, job: Job, sign: int) -> None:
        self._size += sign * job.count
        self._entries += sign
        if job.array:
            count, last = self._arrays.pop(job.array, (0, 0))
            if count + sign * job.count:
                self._arrays[job.array] = count + sign * job.count, max(last, job.last)

    def _insert(self, job_id: int) -> None:
        ids, head = self._ids, self._head
        if not ids or job_id > ids[-1]:
            ids.append(job_id)
        elif head and job_id < ids[head]:
            # A retried job is mostly older than all waiting ones: reuse the gap that its own start left.
            self._head = head - 1
            ids[head - 1] = job_id
        else:
            position = bisect_left(ids, job_id, head)
            if ids[position] != job_id:
                ids.insert(position, job_id)

    def _job(self, job_id: int) -> Job | None:
        job = self._jobs.get(job_id)
        return job if job is not None and job_kind_of(job) == self.job_kind else None


class WaitingJobs:
    """All waiting jobs, grouped by kind and sorted by id."""

    __slots__ = ("_groups", "_jobs", "_touched")

    def __init__(self) -> None:
        self._jobs = JobsById()
        self._groups: dict[JobKind, WaitingGroup] = {}
        self._touched: set[JobKind] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def add(self, job: Job) -> None:
        """Add a job, or replace the one with the same id; likewise several jobs that one entry stands for."""
        self.remove(job.id, job.count)
        job_kind = job_kind_of(job)
        group = self._groups.get(job_kind)
        if group is None:
            group = self._groups[job_kind] = WaitingGroup(job_kind, self._jobs.entries)
        self._jobs.add(job)
        group.enter(job)
        self._touched.add(job_kind)

    def remove(self, job_id: int, count: int = 1) -> Job | None:
        """Remove a job, if it is here, or so many of one entry."""
        removed = self._jobs.remove(job_id, count)
        if removed is None:
            return None
        job, left = removed
        job_kind = job_kind_of(job)
        group = self._groups[job_kind]
        group.leave(job, left)
        self._touched.add(job_kind)
        if not group:
            del self._groups[job_kind]
        return part(job, job_id, job_id + count - 1)

    def get(self, job_id: int) -> Job | None:
        return self._jobs.get(job_id)

    def between(self, first: int, last: int) -> list[Job]:
        """The jobs with ids in a range; one may stand for several."""
        return self._jobs.between(first, last)

    def groups(self) -> Collection[WaitingGroup]:
        return self._groups.values()

    def group(self, job_kind: JobKind) -> WaitingGroup | None:
        return self._groups.get(job_kind)

    def touch_all(self) -> None:
        self._touched = set(self._groups)

    def take_touched(self) -> set[JobKind]:
        """The kinds whose jobs have changed since the last call."""
        touched, self._touched = self._touched, set()
        return touched

    def place(self, job: Job) -> int:
        """How many jobs of the same kind come before this one."""
        return self._groups[job_kind_of(job)].place(job.id)

    def tasks(self, job: Job) -> int:
        """How many tasks of the same array and kind there are; 1 for a job outside of arrays."""
        return self._groups[job_kind_of(job)].tasks(job.array) if job.array else 1


NotEligible = HeldBack | NotBefore | Behind | OutOfResources


def is_gated(job: Job) -> bool:
    """Whether a job may have to wait for something other than devices; most never do."""
    state = job.state
    return (
        bool(job.spec.after)
        or job.spec.begin is not None
        or isinstance(state, OnHold)
        or (isinstance(state, Waiting) and bool(state.shortage))
    )


def why_not_eligible(
    job: Job, now: float, outcome: Callable[[Dependency], Outcome]
) -> NotEligible | NeverSatisfied | None:
    """Why a queued job is not planned yet; NeverSatisfied if it can never start."""
    verdict = judge(job.spec.after, outcome)
    if isinstance(verdict, NeverSatisfied):
        return verdict
    if isinstance(job.state, OnHold):
        return HeldBack(job.state.note)
    if isinstance(verdict, Blocked):
        return Behind(verdict.dependencies)
    begin = job.spec.begin
    if begin is not None and begin > now:
        return NotBefore(begin)
    return OutOfResources(job.state.shortage) if isinstance(job.state, Waiting) and job.state.shortage else None


def waiting_word(job: Job, now: float, outcome: Callable[[Dependency], Outcome]) -> JobStateName:
    """The word for a job that waits: queued, blocked by another job, or scheduled for later."""
    hindered = why_not_eligible(job, now, outcome) if is_gated(job) else None
    return "queued" if hindered is None else queued_word(job, hindered)


def queued_word(job: Job, why: NotEligible | NeverSatisfied) -> JobStateName:
    """The same, if the hindrance is known."""
    if isinstance(job.state, OnHold):
        return "held"
    if isinstance(why, NotBefore):
        return "scheduled"
    if isinstance(why, OutOfResources):
        return "queued"
    return "blocked" if isinstance(why, Behind | NeverSatisfied) else "held"


def resolved(job_kind: JobKind, learnt: Learnt, margin: int) -> Resources:
    """The resources to reserve for jobs of a kind; a whole GPU for those that may not share any more."""
    if not job_kind.resources.shares:
        return job_kind.resources
    if job_kind.exclusive:
        return replace(job_kind.resources, memory=None, auto=False)
    return estimated(job_kind.resources, learnt, margin, job_kind.floor)
