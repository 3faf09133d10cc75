"""The data of all screens: `status`, the live display of `run`, and JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from stoker.app.views.job import JobLine
from stoker.core.outcomes import JobStateName

FEW = 4
"""How many jobs a terminal shows in full."""


class Mark(Struct, frozen=True):
    """Something that a user set, since when."""

    note: str
    since: datetime | None = None


class EngineLine(Struct, frozen=True):
    """The engine in the background."""

    running: bool
    pid: int | None = None
    version: str = ""
    since: datetime | None = None
    seen: datetime | None = None
    """When it wrote the status that devices and reasons come from."""
    trouble: str = ""
    draining: bool = False
    paused: Mark | None = None
    silence: str = ""
    """A warning if it lives but does not answer, so that its status is old."""


class ForeignProcess(Struct, frozen=True):
    """A process on a device that is none of our jobs."""

    pid: int
    owner: str
    command: str
    memory_bytes: int | None
    graphics: bool = False


class LeaseLine(Struct, frozen=True):
    """The claim of another user, or of another queue, on a device."""

    owner: str
    pid: int
    """The first process of its job; that of its engine where `job` is empty."""
    what: str
    memory_bytes: int | None
    """None is all of it."""
    since: datetime
    yours: bool = False
    """Whether another queue of this user has it."""
    job: str = ""
    """Its job, by the id in the queue of its owner; empty where the engine does not tell."""
    until: datetime | None = None
    """When that job ends at the latest; null where it has no limit."""
    expected_end: datetime | None = None
    """When it will probably end; null where its engine does not expect that before the limit."""


class OtherJob(Struct, frozen=True):
    """A job of another queue of this user."""

    label: str
    """Its id in that queue."""
    name: str
    pid: int
    """Its oldest process."""
    memory_bytes: int | None
    """Reserved for it on the device; null where unknown."""


class BookedTime(Struct, frozen=True):
    """A time for which a user has booked the device."""

    user: str
    yours: bool
    begin: datetime
    end: datetime
    why: str = ""


class DeviceLine(Struct, frozen=True):
    """One device, and who has what of it."""

    id: str
    label: str
    model: str
    kind: str
    memory_bytes: int | None
    used_bytes: int | None
    """By all processes, as the driver reports."""
    ours_bytes: int
    """By our jobs."""
    reserved_bytes: int
    """For our jobs, whether they use it or not."""
    others_bytes: int
    """Used or claimed by others."""
    utilisation_percent: int | None
    temperature_celsius: int | None
    power_watts: float | None
    problem: str
    drained: Mark | None
    jobs: list[str]
    leases: list[LeaseLine]
    strangers: list[ForeignProcess]
    combined_speed: float | None = None
    """The sum of the speeds of our jobs, each a part of its speed alone; null for a single job, or if unknown."""
    elsewhere: list[OtherJob] = []
    """Jobs of other queues of this user."""
    bookings: list[BookedTime] = []
    """In the order in which they begin."""


class Counts(Struct, frozen=True):
    """How many jobs are where."""

    active: int
    waiting: int
    held: int


class GroupLine(Struct, frozen=True):
    """The open jobs of one group."""

    group: str
    """Empty for jobs without a group."""
    active: int
    waiting: int
    held: int
    gpus: int
    """GPUs that its jobs have; one that two of them share counts twice."""
    limit: int | None = None
    """How many of its jobs may run at once."""


class UserLine(Struct, frozen=True):
    """The GPUs that one user has, and waits for."""

    user: str
    you: bool
    running: int
    """Jobs of yours; leases of another user, each for one job at a time."""
    gpus: int
    vram_bytes: int | None
    """Reserved on all GPUs; null if another user has whole GPUs."""
    waiting: int | None
    """Waiting jobs; null where the engines of another user do not tell."""
    waiting_gpus: int | None
    """GPUs that the waiting jobs could take now: less than they need, where a limit or the queue holds them back."""
    waiting_since: datetime | None
    recent_gpu_hours: float | None
    """As fair share counts them, with a half-life of one hour; only known of users who wait."""


class InterruptedRun(Struct, frozen=True):
    """A foreground run that ended before all its jobs had started."""

    label: str
    """The command line of the user."""
    jobs: int
    """How many did not start."""
    submitted: datetime
    resume: str
    """The command that continues it."""
    discard: str = ""
    """The command that removes its jobs from the queue."""


class FailedJob(Struct, frozen=True):
    """A job that failed lately."""

    id: int
    label: str
    title: str
    state: JobStateName
    how: str
    """`exit 1`, `oom`, `timeout`."""
    ended: datetime
    why: str
    """The note about its end, or the line of its log that tells most."""


class Status(Struct, frozen=True):
    """The queue: `stoker status --json`."""

    schema: str
    at: datetime
    host: str
    version: str
    simulated: bool
    engine: EngineLine
    devices: list[DeviceLine]
    jobs: list[JobLine]
    counts: Counts
    hidden: Counts
    """How many of the counted jobs are not listed."""
    today: dict[str, int]
    """How many jobs ended since midnight, by how they ended."""
    expected_empty: datetime | None
    notes: list[str]
    filtered: bool = False
    """Whether jobs and counts are only those that a filter chose."""
    groups: list[GroupLine] = []
    """With --by-group."""
    users: list[UserLine] = []
    """With --by-user."""
    interrupted: list[InterruptedRun] = []
    """Runs whose waiting jobs no engine has; they are listed among the jobs, too."""
    failures: list[FailedJob] = []
    """The last failures within an hour, the newest first."""
    total: Counts | None = None
    """With a filter, the counts of all jobs."""
    web: str = ""
    """The address of the web page, without its token, while a server runs."""


NoticeMark = Literal["failed", "again", "note"]


class Notice(Struct, frozen=True):
    """The end of an attempt that gets a line of its own in the live display."""

    mark: NoticeMark
    id: int
    name: str
    what: str
    """How it ended: `exit 1 after 00:09`."""
    said: str = ""
    """The last line of its log, or the note of the worker or the engine."""


class RunCounts(Struct, frozen=True):
    """How many jobs of a foreground run are where."""

    total: int
    ok: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    open_ended: bool = False
    """Whether more jobs may come."""
    cancelled: int = 0
    """Also those that were stopped early."""

    @property
    def ended(self) -> int:
        return self.ok + self.failed + self.cancelled


class RunStatus(Struct, frozen=True):
    """A foreground run: the live display of `stoker run`."""

    label: str
    at: datetime
    elapsed: float
    simulated: bool
    logs: str
    """The directory of the logs, empty if there is none."""
    devices: list[DeviceLine]
    jobs: list[JobLine]
    """Those that run, each with a short name."""
    counts: RunCounts
    left: float | None = None
    """Seconds until all jobs are over, if that can be estimated."""
    next: str = ""
    """The next job and why it waits, or why there is none."""
    notices: tuple[Notice, ...] = ()
    successes: tuple[int, ...] = ()
    """Ids of jobs, oldest first."""
