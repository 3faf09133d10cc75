"""A job's life: what it is, the states it can be in, and the only code that changes a state."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

LOSSES_ALLOWED = 3
"""How often a job may lose its keeper before it is no longer queued again."""

Result = Literal["done", "failed", "oom", "timeout", "cancelled", "skipped", "lost"]
Why = Literal["exited", "timeout", "stopped", "refused"]


class Need(Struct, frozen=True):
    """What a job asks for. Jobs with equal needs are interchangeable to the plan."""

    gpus: int = 1
    memory: int | None = None
    """Bytes on each GPU, which may then be shared; None is the whole card, alone."""
    allowed: tuple[str, ...] = ()
    """Device ids; empty is any."""
    preferred: tuple[str, ...] = ()


class Terms(Struct, frozen=True):
    """The conditions a job runs under; most jobs of a batch have the same ones and share this object."""

    need: Need = Need()
    priority: int = 0
    cwd: str = "/"
    environment: str = ""
    """Digest of the environment kept in the store."""
    extra_env: tuple[tuple[str, str], ...] = ()
    umask: int = 0o022
    limit: float | None = None
    """Seconds of running time."""
    grace: float = 30.0
    """Seconds between TERM and KILL."""
    retries: int = 0
    requeue: bool = True
    """Whether a lost attempt may be run again."""
    out: str = ""
    """Path pattern of standard output; "-" is the caller's own, empty the log file of the attempt."""
    err: str = ""
    """Path pattern of standard error; empty follows standard output."""


class Command(Struct, frozen=True):
    """Words to execute, or one line for a shell."""

    words: tuple[str, ...]
    shell: str = ""
    """The shell that reads the single word; empty executes the words as they are."""

    @property
    def text(self) -> str:
        """The command as a person would type it."""
        if self.shell:
            return self.words[0]
        import shlex

        return shlex.join(self.words)


class Waiting(Struct, frozen=True, tag="waiting"):
    """In the queue since a moment."""

    since: float


class Starting(Struct, frozen=True, tag="starting"):
    """Given to a keeper, which has not yet said that it started."""

    attempt: int
    keeper: str
    devices: tuple[str, ...]
    since: float
    log: str = ""
    """Where its errors can be read; "-" is the terminal."""
    lease: str = ""
    """Name of its lease in the ledger, empty where nothing had to be claimed."""


class Running(Struct, frozen=True, tag="running"):
    """Its process has been started."""

    attempt: int
    keeper: str
    devices: tuple[str, ...]
    since: float
    log: str = ""
    lease: str = ""


class Stopping(Struct, frozen=True, tag="stopping"):
    """Asked to stop; the keeper has not yet said that all of it is gone."""

    attempt: int
    keeper: str
    devices: tuple[str, ...]
    since: float
    log: str = ""
    lease: str = ""
    note: str = ""
    """Who wanted that, or why."""
    started: float | None = None
    """When its process was started, if it was."""


class Ended(Struct, frozen=True, tag="ended"):
    """Over for good."""

    result: Result
    at: float
    code: int | None = None
    signal: int = 0
    note: str = ""


State = Waiting | Starting | Running | Stopping | Ended
Held = Starting | Running | Stopping


class Assigned(Struct, frozen=True, tag="assigned"):
    """The plan gave the job devices, and a keeper will run it."""

    keeper: str
    devices: tuple[str, ...]
    log: str
    at: float
    errors: str = ""
    """File of the standard error, where it is apart from the log."""
    lease: str = ""
    """Name of the lease, empty where nothing had to be claimed."""


class Started(Struct, frozen=True, tag="started"):
    """The keeper started the process."""

    attempt: int
    at: float


class Exited(Struct, frozen=True, tag="exited"):
    """The process and all that came from it is gone."""

    attempt: int
    code: int
    signal: int
    at: float
    why: Why = "exited"
    peak_memory: int = 0
    """Bytes of host memory of the largest process."""
    note: str = ""


class Returned(Struct, frozen=True, tag="returned"):
    """The keeper gave the attempt back, or died, before it started anything."""

    attempt: int
    at: float


class Lost(Struct, frozen=True, tag="lost"):
    """The keeper died while the attempt ran; nothing of it is left."""

    attempt: int
    at: float


class Cancelled(Struct, frozen=True, tag="cancelled"):
    """Somebody wants the job to end."""

    at: float
    note: str = ""


Event = Assigned | Started | Exited | Returned | Lost | Cancelled


class Job(Struct, frozen=True):
    """One command with its needs; one row for life."""

    id: int
    batch: int
    command: Command
    terms: Terms
    state: State
    submitted: float
    name: str = ""
    attempts: int = 0
    """How many attempts were made so far; the newest has this number."""
    failures: int = 0
    losses: int = 0


def state_word(job: Job) -> str:
    """The job's state in one word: how it ended, or what it is doing."""
    if isinstance(job.state, Ended):
        return job.state.result
    return str(job.state.__struct_config__.tag)


def event_word(event: Event) -> str:
    """An event in one word."""
    return str(event.__struct_config__.tag)


class InvalidTransition(Exception):
    """An event that cannot happen to a job in its state: always a bug, never the user's fault."""

    def __init__(self, job: Job, event: Event) -> None:
        story = f"job {job.id} is {job.state!r} after {job.attempts} attempts"
        super().__init__(f"{story}, and then came {event!r}")
        self.job = job
        self.event = event


def advance(job: Job, event: Event) -> Job:
    """The job after the event."""
    match job.state, event:
        case Waiting(), Assigned():
            attempt = job.attempts + 1
            log = event.errors or event.log
            starting = Starting(attempt, event.keeper, event.devices, event.at, log, event.lease)
            return msgspec.structs.replace(job, state=starting, attempts=attempt)
        case Waiting(), Cancelled():
            return _ended(job, Ended("cancelled", event.at, note=event.note))
        case Starting(attempt=attempt) as state, Started() if event.attempt == attempt:
            running = Running(attempt, state.keeper, state.devices, event.at, state.log, state.lease)
            return msgspec.structs.replace(job, state=running)
        case Stopping(attempt=attempt) as state, Started() if event.attempt == attempt:
            return msgspec.structs.replace(job, state=msgspec.structs.replace(state, started=event.at))
        case (Starting() | Running() | Stopping()) as state, Cancelled():
            return msgspec.structs.replace(job, state=_stopping(state, event))
        case ((Running(attempt=attempt) | Stopping(attempt=attempt)), Exited()) if event.attempt == attempt:
            return _exited(job, event)
        case ((Starting(attempt=attempt) | Stopping(attempt=attempt)), Returned()) if event.attempt == attempt:
            return _returned(job, event)
        case ((Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt)), Lost()) if (
            event.attempt == attempt
        ):
            return _lost(job, event)
        case _:
            raise InvalidTransition(job, event)


def result_of(event: Exited) -> Result:
    """What an exit means for an attempt that nobody asked to stop."""
    match event.why:
        case "timeout":
            return "timeout"
        case "stopped":
            return "cancelled"
        case _:
            return "done" if event.code == 0 and event.signal == 0 else "failed"


def started_at(job: Job) -> float | None:
    """When the process of a job that a keeper holds was started, if it was."""
    match job.state:
        case Running(since=since):
            return since
        case Stopping(started=started):
            return started
        case _:
            return None


def _stopping(state: Held, event: Cancelled) -> Stopping:
    """The first who wanted it stays the reason."""
    if isinstance(state, Stopping):
        return state
    started = state.since if isinstance(state, Running) else None
    return Stopping(state.attempt, state.keeper, state.devices, event.at, state.log, state.lease, event.note, started)


def _ended(job: Job, ended: Ended) -> Job:
    return msgspec.structs.replace(job, state=ended)


def _exited(job: Job, event: Exited) -> Job:
    result, note = result_of(event), event.note
    if isinstance(job.state, Stopping) and result != "done":
        result, note = "cancelled", job.state.note or event.note
    ended = Ended(result, event.at, event.code, event.signal, note)
    if result not in ("failed", "timeout"):
        return _ended(job, ended)
    failures = job.failures + 1
    state = Waiting(event.at) if failures <= job.terms.retries and event.why != "refused" else ended
    return msgspec.structs.replace(job, state=state, failures=failures)


def _returned(job: Job, event: Returned) -> Job:
    if isinstance(job.state, Stopping):
        return _ended(job, Ended("cancelled", event.at, note="cancelled before it started"))
    since = event.at if job.failures or job.losses else job.submitted
    return msgspec.structs.replace(job, state=Waiting(since))


def _lost(job: Job, event: Lost) -> Job:
    if isinstance(job.state, Stopping):
        return _ended(job, Ended("cancelled", event.at, note="its keeper died while it was being stopped"))
    losses = job.losses + 1
    if job.terms.requeue and losses <= LOSSES_ALLOWED:
        return msgspec.structs.replace(job, state=Waiting(event.at), losses=losses)
    note = "its keeper was killed or the machine went down"
    return msgspec.structs.replace(job, state=Ended("lost", event.at, note=note), losses=losses)
