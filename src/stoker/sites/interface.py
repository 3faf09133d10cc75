"""A site: where an engine's jobs are placed and run. The engine and its site know no more of each other than this."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from stoker.core.booking import Booking
from stoker.core.device import Device, Snapshot
from stoker.core.job import Event, Job
from stoker.core.learning import Learnt, Live
from stoker.core.lease import Lease
from stoker.core.planner.forecast import Forecast
from stoker.core.planner.order import QueuePosition
from stoker.core.planner.queue import ReasonKey, WaitingJobs
from stoker.core.planner.reasons import InCluster, Reason
from stoker.core.settings import Policy
from stoker.store.paths import Paths
from stoker.store.schema import Measured
from stoker.store.writer import Store

RETRY_INTERVAL = 1.0
"""Seconds after which an engine or a site tries again what failed for a reason outside of the job."""


class EngineJobs(Protocol):
    """The engine's jobs as a site sees them."""

    plan_due: bool
    """Whether something happened since the last plan that may change it; both sides set it."""

    @property
    def leaving(self) -> Collection[int]:
        """Running jobs that were asked to give way."""

    @property
    def waiting(self) -> WaitingJobs:
        """The jobs to be placed."""

    @property
    def waiting_since(self) -> float:
        """When the oldest of them began to wait."""

    def clock(self) -> float:
        """The time, which no change of the system clock moves."""

    def active(self, job_id: int) -> Job | None:
        """A job that was assigned and is not over, or None."""

    def attempt(self, key: str) -> Job | None:
        """The job of an attempt, unless that attempt is known to be over."""

    def apply(self, job: Job, event: Event) -> Job:
        """The job after an event, which will be recorded before the next `dispatch`."""

    def resume(self, job_id: int) -> None:
        """Let a job be planned again whose attempt was returned for a shortage, unless it is over meanwhile."""

    def learn(self, news: tuple[str, Learnt] | None) -> None:
        """Record facts about a kind of work, together with the events."""

    def measure(self, measured: Measured) -> None:
        """Record measurements of an attempt, together with the events."""


class StartObserver(Protocol):
    """A part of a feature that hears of each attempt before its machine starts it; it returns at once."""

    def starting(self, job: Job, environment: Mapping[str, str], devices: Sequence[Device], at: float) -> None:
        """A job is about to start, with the environment that it was submitted with; `devices` are the machine's."""

    def close(self) -> None:
        """No job starts any more."""


class SiteStatus(Struct, frozen=True):
    """A site as users see it."""

    snapshot: Snapshot
    leases: Sequence[Lease] = ()
    """Those of other engines."""
    waits: Sequence[tuple[ReasonKey, Reason]] = ()
    reserved: int | None = None
    """The waiting job that devices are kept free for."""
    uses: Mapping[int, Live] = {}
    """GPU memory and load of the running jobs."""
    trouble: str = ""
    """Why the site cannot work as it should, for the user; empty if it can."""
    warnings: Sequence[str] = ()
    survivors: Mapping[int, str] = {}
    """Active jobs that do not go on, each with the reason, such as processes that outlive their worker."""
    order: Sequence[QueuePosition] = ()
    """The first waiting jobs in the order of the plan, one for each array."""
    handed_over: Mapping[str, InCluster] = {}
    """Why jobs that were handed over to a cluster have not started, by the bundle that is a part of their ref."""
    summary: str = ""
    """Where its jobs are, in one line, if devices do not show that."""
    bookings: Sequence[Booking] = ()
    """Those of all users of the machine."""


class Site(Protocol):
    """Where jobs are placed and run. It reports what happens to them through `EngineJobs.apply`.

    The classes below are capabilities, which a site offers only if it has them.
    """

    @property
    def cluster(self) -> str:
        """Name of the cluster that it is; empty for this machine. It can adopt jobs of this place only."""

    def due_in(self, now: float, *, placing: bool) -> float | None:
        """Seconds until the next turn is due; None is never. `placing` is whether it may place jobs then."""

    def poll(self) -> None:
        """Report what happened to attempts and see what the devices look like."""

    def place(self, now: float, policy: Policy) -> None:
        """Plan, if that is due, and assign jobs: each gets the event `Assigned`."""

    def dispatch(self, *, recorded: bool) -> None:
        """End a turn: start the assigned jobs if all events are recorded, and release what is not used."""

    def drain(self) -> None:
        """Start nothing more; return what was assigned and has not started."""

    def adopt(self, job: Job) -> None:
        """Take over an active job of a dead engine."""

    def stop(self, job: Job, grace: float | None, signal_number: int = 0) -> None:
        """Send TERM, or the signal with this number, and KILL after the grace or else the job's own."""

    def close(self, *, recorded: bool) -> None:
        """Leave; what runs goes on. `recorded` is whether all events are."""

    def reason(self, job: Job) -> Reason | None:
        """Why a waiting job was not placed by the last plan."""

    def status(self) -> SiteStatus:
        """Describe the site for users."""

    def forecast(self, typical: float | None = None) -> Forecast:
        """When jobs are expected to start and end; `typical` are the seconds of jobs of which nothing is known."""

    def devices(self, device_ids: Sequence[str]) -> tuple[Device, ...]:
        """The devices with these ids, as far as they are known."""


@runtime_checkable
class HasSources(Protocol):
    """A site with files that become readable when something happens."""

    def sources(self) -> Sequence[tuple[object, Callable[[], None]]]:
        """Files to wait for, each with the function to call when it is readable."""


@runtime_checkable
class SeesProcesses(Protocol):
    """A site whose jobs are processes of this machine."""

    def process_of(self, job: Job) -> int | None:
        """The process of a running job, if it is known."""

    def is_gone(self, job: Job) -> bool:
        """Whether nothing runs an active job of a dead engine any more, so that adopting it tells how it ended.

        For a waiting job of a dead run inside another job: whether nothing runs that other job any more.
        """


@runtime_checkable
class Recalls(Protocol):
    """A site whose jobs may wait long for their start after they were assigned."""

    def recall(self, job: Job) -> None:
        """Return an active job that has not started, if that is possible at once."""


@runtime_checkable
class SetsLimits(Protocol):
    """A site that can change the time limit of a job that runs."""

    def set_limit(self, job: Job) -> bool:
        """Give an active job the limits of its spec; False if its worker cannot."""


@runtime_checkable
class GivesWay(Protocol):
    """A site whose jobs can be asked to leave their devices."""

    def can_give_way(self, job: Job) -> bool:
        """Whether this running job can be asked."""

    def give_way(self, job: Job) -> None:
        """Ask a running job to save its state and leave, or stop it to start it again; may be repeated.

        If it leaves, the reason of its end is `preempted`.
        """


@runtime_checkable
class Measures(Protocol):
    """A site that measures its jobs."""

    def finish(self) -> None:
        """Report the last measurements, to be recorded before `close`."""


@runtime_checkable
class SeesIdleJobs(Protocol):
    """A site that sees whether jobs use their GPUs."""

    def idle_since(self) -> Mapping[int, float | None]:
        """Since when the GPUs of running jobs have shown no utilisation; None for those that are used."""


class SiteContext(Struct, frozen=True):
    """The engine as its site knows it."""

    engine: str
    """Name that the engine's jobs are stored under."""
    instance: str
    """Name of this process, which no other engine ever had."""
    label: str
    """The engine's name for other users."""
    paths: Paths
    store: Store
    jobs: EngineJobs


class SiteConfig(Protocol):
    """The configuration of a site, which can open it."""

    def open(self, context: SiteContext) -> Site:
        """Open the site for one engine."""


@runtime_checkable
class UsesLedger(Protocol):
    """The configuration of a site whose GPUs other users have too."""

    @property
    def ledger(self) -> Path:
        """The directory that these users share."""
