"""Jobs: their states and events, and `advance`, the only code that changes a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct

from stoker.core.device import Device
from stoker.core.learning import kind_of
from stoker.core.outcomes import RETRIED, AskedResult, Result
from stoker.core.ranges import Ranges
from stoker.core.selectors import tasks_text
from stoker.core.spec import RUNNING_FIELDS, Command, JobSpec, Member, Resources, with_fields

LOSSES_ALLOWED = 3
"""How often a job may lose its worker and still be requeued."""

SHARED_FAILURES_ALLOWED = 2
"""How often an attempt may fail because of co-tenants before the job runs exclusively."""

Why = Literal["exited", "timeout", "hung", "stopped", "refused", "preempted"]

Cause = Literal["", "oom", "fault"]
"""The cause of a failure in the log: out of GPU memory, or a fault that MPS reports to all its clients."""


class GivingWay(Struct, frozen=True, omit_defaults=True):
    """Why a job leaves its devices, or has left them, before it is over."""

    since: float
    to: int = 0
    """The job that the devices are for; 0 is none in particular."""
    note: str = ""
    """Who asked for it, or why."""
    devices: tuple[str, ...] = ()


class Waiting(Struct, frozen=True, tag="waiting", omit_defaults=True):
    """In the queue."""

    since: float
    shortage: str = ""
    """Why its last start was not possible. It is not planned until its site resumes it; empty for all others."""
    gave_way: GivingWay | None = None
    """Set if its last attempt was preempted."""


class OnHold(Struct, frozen=True, tag="held"):
    """In the queue, but held by a user."""

    since: float
    note: str = ""
    """Who asked for it, or why."""


class Placed(Struct, frozen=True, omit_defaults=True):
    """The fields of every active job."""

    attempt: int
    ref: str
    """The site's reference. Only the site reads it, except for the first word (`slot_of`)."""
    devices: tuple[str, ...]
    since: float
    log: str = ""
    """File of its standard error; "-" is the terminal."""
    resources: Resources | None = None
    """The reserved resources; None is those of the spec."""


class Starting(Placed, frozen=True, tag="starting"):
    """Given to a worker that has not reported its start yet."""


class Running(Placed, frozen=True, tag="running", omit_defaults=True):
    """Its process has been started."""

    giving_way: GivingWay | None = None
    """Set while it is to save its state and leave, or is stopped to be started again."""
    idle_since: float | None = None
    """Since when its GPUs have shown no utilisation, if that was reported."""


class Stopping(Placed, frozen=True, tag="stopping", kw_only=True):
    """Asked to stop; the worker has not reported the end of all processes yet."""

    note: str = ""
    """Who asked for it, or why."""
    started: float | None = None
    """When its process started; None before that."""
    result: AskedResult = "cancelled"


class Ended(Struct, frozen=True, tag="ended", omit_defaults=True):
    """Ended; only a retry changes this state."""

    result: Result
    at: float
    code: int | None = None
    signal: int = 0
    note: str = ""
    said: str = ""
    """The telling line of the log of a failure without a note: the user may delete the log."""


State = Waiting | OnHold | Starting | Running | Stopping | Ended

Active = Starting | Running | Stopping
"""A worker holds the job."""

Queued = Waiting | OnHold
"""No worker holds the job."""


class Assigned(Struct, frozen=True, tag="assigned", omit_defaults=True):
    """The plan gave the job devices and a worker."""

    ref: str
    devices: tuple[str, ...]
    log: str
    at: float
    errors: str = ""
    """File of standard error, if it is separate from the log."""
    resources: Resources | None = None
    """The reserved resources; None is those of the spec."""


class Started(Struct, frozen=True, tag="started", omit_defaults=True):
    """The worker started the process."""

    attempt: int
    at: float
    devices: tuple[str, ...] = ()
    """The devices, if they are known only now, as on a cluster; empty for those of the assignment."""


class Exited(Struct, frozen=True, tag="exited", omit_defaults=True):
    """The process and all its descendants have ended."""

    attempt: int
    code: int
    signal: int
    at: float
    why: Why = "exited"
    peak_memory: int = 0
    """Host memory of the largest process, in bytes."""
    note: str = ""
    cause: Cause = ""
    shared: bool = False
    """Whether its GPUs had co-tenants at any time."""
    floor: int = 0
    """Bytes that it needs at least on each GPU, if this end showed it."""
    said: str = ""
    """The telling line of its log, of a failure without a note."""
    kept: float = 0.0
    """Seconds of its work that were saved before it was stopped to start again."""


class Returned(Struct, frozen=True, tag="returned", omit_defaults=True):
    """The worker returned the attempt, or died, before the process started."""

    attempt: int
    at: float
    shortage: str = ""
    """The resource that the machine lacked when the worker tried to start it."""


class Lost(Struct, frozen=True, tag="lost", omit_defaults=True):
    """The worker died while the attempt ran."""

    attempt: int
    at: float
    note: str = ""
    """The cause of the end, if known."""
    preempted: bool = False
    """Whether a scheduler took the machine away for other jobs: not counted as a loss."""


class Cancelled(Struct, frozen=True, tag="cancelled", omit_defaults=True):
    """A user or program cancelled the job, or a program that judges it stopped it early."""

    at: float
    note: str = ""
    result: AskedResult = "cancelled"


class Paused(Struct, frozen=True, tag="paused"):
    """A user holds the job."""

    at: float
    note: str = ""


class Resumed(Struct, frozen=True, tag="resumed"):
    """A user released the job, or its site tries again to start it."""

    at: float


class Edited(Struct, frozen=True, tag="edited"):
    """A user changed spec or name of the job."""

    at: float
    spec: JobSpec
    name: str | None = None
    """None leaves it."""


class Retried(Struct, frozen=True, tag="retried"):
    """A user retries an ended job."""

    at: float


class Displaced(Struct, frozen=True, tag="displaced", omit_defaults=True):
    """The job has to leave its devices, and will run again later."""

    at: float
    to: int = 0
    """The job that the devices are for; 0 is none in particular."""
    note: str = ""


class Stayed(Struct, frozen=True, tag="stayed"):
    """The job did not leave in time, so it keeps its devices and is not asked again."""

    at: float


class Idled(Struct, frozen=True, tag="idled", omit_defaults=True):
    """The GPUs of the job have shown no utilisation for a while, or are used again."""

    at: float
    since: float | None = None
    """None if they are used again."""
    note: str = ""


class Skipped(Struct, frozen=True, tag="skipped"):
    """A dependency of the job can never be satisfied."""

    at: float
    note: str


Event = (
    Assigned
    | Started
    | Exited
    | Returned
    | Lost
    | Cancelled
    | Paused
    | Resumed
    | Edited
    | Retried
    | Displaced
    | Stayed
    | Idled
    | Skipped
)


class Differences(Protocol):
    """The fields in which jobs that share a row differ."""

    def fields(self, job: Job, first: int) -> dict[str, Any]:
        """Those of one of the jobs that another one stands for."""


class Job(Struct, frozen=True, gc=False):
    """One command and its spec, in its current state."""

    id: int
    batch: int
    command: Command
    spec: JobSpec
    state: State
    submitted: float
    name: str = ""
    attempts: int = 0
    """Number of the newest attempt."""
    failures: int = 0
    """Failures since it was submitted or retried last."""
    losses: int = 0
    tries: int = 0
    """Runs that have ended."""
    preemptions: int = 0
    """Runs that were preempted."""
    kept_seconds: float = 0.0
    """Seconds of work of preempted runs that were saved."""
    array: int = 0
    """Id of the first task of its array; 0 outside of arrays."""
    task: int | None = None
    """Its index in the array."""
    kind: str = ""
    """Signature of its kind of work, only if it may share a GPU: then history matters."""
    shared_failures: int = 0
    """Attempts that failed because of co-tenants since it was submitted or retried last."""
    floor: int = 0
    """Bytes that it needs at least on each GPU, as an attempt showed; 0 if unknown."""
    member: Member | None = None
    """Set if the jobs of its batch have parameters."""
    count: int = 1
    """How many jobs with consecutive ids it stands for: tasks of an array, lines of a list or points of a grid that
    never started and differ in nothing else. Id, task, command, name and member are those of the first."""
    step: int = 1
    """Distance of their indices."""
    differences: Differences | None = None
    """Set if it is a line of a list or a point of a grid that shared a row with others: what each of them has."""

    @property
    def last(self) -> int:
        """The id of the last job that it stands for."""
        return self.id + self.count - 1

    @property
    def indices(self) -> range:
        """The indices of the tasks that it stands for; 0 outside of arrays."""
        first = self.task or 0
        return range(first, first + self.count * self.step, self.step)

    @property
    def run(self) -> int:
        """Number of its last run if it has ended, else of the one that runs or comes next: what STOKER_ATTEMPT says.

        An attempt that was returned before its start has a number too, but was no run.
        """
        return self.tries + (not isinstance(self.state, Ended))


def limit_of(job: Job) -> float | None:
    """The time limit of a job in seconds."""
    return job.spec.limit


def start_limit(job: Job) -> float | None:
    """Seconds in which a waiting job has to start, 0 for at once; None if it may wait, or has run before."""
    if job.tries or not isinstance(job.state, Waiting | Starting):
        return None
    return 0.0 if job.spec.nonblock else job.spec.start_within


def needs_exclusive(job: Job) -> bool:
    """Whether a job failed too often because of co-tenants, and may not share any more."""
    return job.shared_failures >= SHARED_FAILURES_ALLOWED


def resources_of(job: Job) -> Resources:
    """The reserved resources of an active job; the requested ones of a queued job."""
    return (job.state.resources if isinstance(job.state, Active) else None) or job.spec.resources


def slot_of(ref: str) -> str:
    """The first word of a ref: attempts with the same slot run one after another."""
    return ref.partition(" ")[0]


def is_delegated(job: Job) -> bool:
    """Whether a job waits in the queue of a cluster, from which it can be taken back."""
    return isinstance(job.state, Starting) and bool(job.spec.cluster)


def part(job: Job, first: int, last: int) -> Job:
    """Those of the jobs that it stands for whose ids are in a range."""
    first, last = max(first, job.id), min(last, job.last)
    if (first, last) == (job.id, job.last):
        return job
    task = None if job.task is None else job.task + (first - job.id) * job.step
    own = job.differences.fields(job, first) if job.differences is not None and first != job.id else {}
    return msgspec.structs.replace(job, id=first, count=last - first + 1, task=task, **own)


def single(jobs: Iterable[Job]) -> Iterator[Job]:
    """Each job by itself."""
    for job in jobs:
        if job.count == 1:
            yield job
        else:
            yield from (part(job, job_id, job_id) for job_id in range(job.id, job.last + 1))


def ids_of(jobs: Iterable[Job]) -> Ranges:
    """The ids of all that the jobs stand for."""
    return Ranges(range(job.id, job.last + 1) for job in jobs)


def id_text(job: Job) -> str:
    """The id as users type it: `12`, or `12.3` for a task of an array; of several tasks `12.[3-9]`."""
    return str(job.id) if job.task is None else tasks_text(job.array, job.indices)


def state_word(job: Job) -> str:
    """The job's state in one word; for an ended job its result."""
    if isinstance(job.state, Ended):
        return job.state.result
    return str(job.state.__struct_config__.tag)


def event_word(event: Event) -> str:
    return str(event.__struct_config__.tag)


class InvalidTransition(Exception):
    """An event that is not possible in the state of a job: always a bug."""

    def __init__(self, job: Job, event: Event) -> None:
        details = f"job {job.id} is {job.state!r} after {job.attempts} attempts"
        super().__init__(f"{details}, and then came {event!r}")
        self.job = job
        self.event = event


def advance(job: Job, event: Event) -> Job:
    """The job after the event."""
    match job.state, event:
        case Waiting(), Assigned():
            attempt = job.attempts + 1
            return msgspec.structs.replace(job, state=_starting(attempt, event), attempts=attempt)
        case ((Waiting() | OnHold()), _) if isinstance(event, Cancelled | Paused | Resumed | Edited | Skipped):
            return _changed_in_the_queue(job, event)
        case Starting(attempt=attempt) as state, Started() if event.attempt == attempt:
            return msgspec.structs.replace(job, state=Running(**_place(_on(state, event), since=event.at)))
        case Stopping(attempt=attempt) as state, Started() if event.attempt == attempt:
            return msgspec.structs.replace(job, state=msgspec.structs.replace(_on(state, event), started=event.at))
        case (Starting() | Running() | Stopping()) as state, (
            Cancelled() | Edited() | Displaced() | Stayed() | Idled()
        ):
            return _changed_while_active(job, state, event)
        case ((Running(attempt=attempt) | Stopping(attempt=attempt)), Exited()) if event.attempt == attempt:
            return _exited(job, event)
        case ((Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt)), Returned()) if (
            event.attempt == attempt
        ):
            return _returned(job, event)
        case ((Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt)), Lost()) if (
            event.attempt == attempt
        ):
            return _lost(job, event)
        case Ended(), Retried():
            return msgspec.structs.replace(job, state=Waiting(event.at), failures=0, losses=0, shared_failures=0)
        case _:
            raise InvalidTransition(job, event)


def result_of(why: str | None, code: int | None, signal: int | None) -> Result:
    """The result of an attempt that was not cancelled, by how its process ended."""
    match why:
        case "timeout" | "hung":
            return why
        case "stopped":
            return "cancelled"
        case _:
            return "failed" if code or signal else "done"


def started_at(job: Job) -> float | None:
    """When the process of an active job started; None before that."""
    match job.state:
        case Running(since=since):
            return since
        case Stopping(started=started):
            return started
        case _:
            return None


def _starting(attempt: int, event: Assigned) -> Starting:
    log = event.errors or event.log
    return Starting(attempt, event.ref, event.devices, event.at, log, event.resources)


def _on(state: Active, event: Started) -> Active:
    return msgspec.structs.replace(state, devices=event.devices) if event.devices else state


def _place(state: Placed, since: float) -> dict[str, Any]:
    """The fields of every active state, with a new `since`."""
    return {**{name: getattr(state, name) for name in Placed.__struct_fields__}, "since": since}


def _stopping(state: Active, event: Cancelled) -> Stopping:
    """The first cancellation stays the reason."""
    if isinstance(state, Stopping):
        return state
    started = state.since if isinstance(state, Running) else None
    return Stopping(**_place(state, since=event.at), note=event.note, started=started, result=event.result)


def _changed_in_the_queue(job: Job, event: Cancelled | Paused | Resumed | Edited | Skipped) -> Job:
    match job.state, event:
        case _, Cancelled():
            return _ended(job, Ended(event.result, event.at, note=event.note))
        case _, Skipped():
            return _ended(job, Ended("skipped", event.at, note=event.note))
        case _, Edited():
            return _edited(job, event)
        case Waiting(), Paused():
            return msgspec.structs.replace(job, state=OnHold(event.at, event.note))
        case Waiting(since=since, shortage=shortage), Resumed() if shortage:
            return msgspec.structs.replace(job, state=Waiting(since))
        case OnHold(), Resumed():
            return msgspec.structs.replace(job, state=Waiting(event.at))
        case _:
            raise InvalidTransition(job, event)


def _edited(job: Job, event: Edited) -> Job:
    """The edited job; its memory floor is void if it asks for other resources."""
    floor = job.floor if event.spec.resources == job.spec.resources else 0
    kind = kind_of(job.command, event.spec, job.member)
    return msgspec.structs.replace(job, spec=event.spec, name=_name(job, event), kind=kind, floor=floor)


def _name(job: Job, event: Edited) -> str:
    return job.name if event.name is None else event.name


def _changed_while_active(job: Job, state: Active, event: Cancelled | Edited | Displaced | Stayed | Idled) -> Job:
    """Stopping, edited, giving way or idle: what it reserves and how it was started stays."""
    if isinstance(event, Displaced | Stayed):
        return _displaced(job, state, event)
    if isinstance(event, Idled) and isinstance(state, Running):
        return msgspec.structs.replace(job, state=msgspec.structs.replace(state, idle_since=event.since))
    if isinstance(event, Cancelled):
        return msgspec.structs.replace(job, state=_stopping(state, event))
    if (
        isinstance(event, Idled)
        or isinstance(state, Stopping)
        or with_fields(event.spec, job.spec, RUNNING_FIELDS) != job.spec
    ):
        raise InvalidTransition(job, event)
    return msgspec.structs.replace(job, spec=event.spec, name=_name(job, event))


def _displaced(job: Job, state: Active, event: Displaced | Stayed) -> Job:
    """Asked to leave, or back to running for good."""
    if not isinstance(state, Running) or isinstance(event, Displaced) == (state.giving_way is not None):
        raise InvalidTransition(job, event)
    if isinstance(event, Displaced):
        way = GivingWay(event.at, event.to, event.note, state.devices)
        return msgspec.structs.replace(job, state=msgspec.structs.replace(state, giving_way=way))
    spec = msgspec.structs.replace(job.spec, preemptible="")
    return msgspec.structs.replace(job, spec=spec, state=msgspec.structs.replace(state, giving_way=None))


def _ended(job: Job, ended: Ended) -> Job:
    return msgspec.structs.replace(job, state=ended)


def has_given_way(job: Job, event: Exited) -> bool:
    """Whether an attempt that had to leave will run again: neither done, nor cancelled, nor failed while it saved."""
    if event.why != "preempted" or not isinstance(job.state, Running):
        return False
    return is_end_of_giving_way(job.spec, event.code, event.signal)


def is_end_of_giving_way(spec: JobSpec, code: int | None, signal: int | None) -> bool:
    """Whether the process of a job that had to leave ended as one that will run again ends."""
    if spec.preemptible == "restart" or spec.save_exit is None:
        return bool(code or signal)
    return code == spec.save_exit


def _exited(job: Job, event: Exited) -> Job:
    result, note = result_of(event.why, event.code, event.signal), event.note
    if isinstance(job.state, Stopping) and result != "done":
        result, note = job.state.result, job.state.note or event.note
    given_way = has_given_way(job, event)
    job = msgspec.structs.replace(job, tries=job.tries + 1)
    if given_way:
        return _preempted(job, event)
    if result == "failed" and event.cause:
        if event.shared and job.shared_failures <= SHARED_FAILURES_ALLOWED:
            return _requeued(job, event)
        result = "oom" if event.cause == "oom" else result
    ended = Ended(result, event.at, event.code, event.signal, note, event.said)
    if result not in RETRIED:
        return _ended(job, ended)
    failures = job.failures + 1
    again = failures <= job.spec.retries and event.why != "refused" and _is_worth_a_retry(job.spec, ended)
    return msgspec.structs.replace(job, state=Waiting(event.at) if again else ended, failures=failures)


def _preempted(job: Job, event: Exited) -> Job:
    """Wait again, and spend no retry."""
    assert isinstance(job.state, Running)
    way = job.state.giving_way or GivingWay(event.at, devices=job.state.devices)
    kept = event.kept if job.spec.preemptible == "restart" else max(0.0, event.at - job.state.since)
    state = Waiting(event.at, gave_way=way)
    return msgspec.structs.replace(
        job, state=state, preemptions=job.preemptions + 1, kept_seconds=job.kept_seconds + kept
    )


def _requeued(job: Job, event: Exited) -> Job:
    """Requeue without spending a retry: with more memory reserved, or exclusively."""
    least = 0 if event.cause == "oom" else SHARED_FAILURES_ALLOWED
    shared_failures = max(job.shared_failures + 1, least)
    floor = max(job.floor, event.floor)
    return msgspec.structs.replace(job, state=Waiting(event.at), shared_failures=shared_failures, floor=floor)


def _is_worth_a_retry(spec: JobSpec, ended: Ended) -> bool:
    if ended.result == "oom":  # it had the whole GPU, and cannot get more
        return "oom" in spec.retry_on
    return not spec.retry_on or ended.result in spec.retry_on or str(ended.code) in spec.retry_on


def _returned(job: Job, event: Returned) -> Job:
    if isinstance(job.state, Running) and not event.shortage:  # `Started` is recorded before there is a process
        raise InvalidTransition(job, event)
    if isinstance(job.state, Stopping):
        note = job.state.note if job.state.result == "expired" else f"{job.state.result} before it started"
        return _ended(job, Ended(job.state.result, event.at, note=note))
    since = event.at if job.tries else job.submitted
    return msgspec.structs.replace(job, state=Waiting(since, event.shortage))


def _lost(job: Job, event: Lost) -> Job:
    job = msgspec.structs.replace(job, tries=job.tries + 1)
    if isinstance(job.state, Stopping):
        return _ended(job, Ended(job.state.result, event.at, note="its worker died while stopping it"))
    losses = job.losses + (not event.preempted)
    if job.spec.requeue and (losses <= LOSSES_ALLOWED or job.spec.always_requeue):
        way = GivingWay(event.at, note=event.note) if event.preempted else None
        preemptions = job.preemptions + event.preempted
        state = Waiting(event.at, gave_way=way)
        return msgspec.structs.replace(job, state=state, losses=losses, preemptions=preemptions)
    note = event.note or "its worker was killed, or the machine went down"
    return msgspec.structs.replace(job, state=Ended("lost", event.at, note=note), losses=losses)


class JobEvent(Struct, frozen=True):
    """A recorded event, with the job right after it."""

    job: Job
    event: Event
    devices: tuple[Device, ...]
    log: str = ""
    """File of the attempt's standard error; "-" is the terminal."""
    started: float | None = None
    """When the attempt of this event started; None before that."""
