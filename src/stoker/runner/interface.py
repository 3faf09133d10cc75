"""The interface of a runner, and the events that it reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from stoker.core.errors import StokerError
from stoker.core.launch import LaunchOrder
from stoker.core.spec import JobSpec
from stoker.core.warm import Template
from stoker.runner.journal import AttemptExited, AttemptReturned, AttemptStarted

__all__ = [
    "AttemptExited",
    "AttemptReturned",
    "AttemptStarted",
    "Event",
    "ProcessIds",
    "Runner",
    "ShortOfResources",
    "WorkerLost",
    "WorkerRunner",
    "Workers",
]


class WorkerLost(NamedTuple):
    """The worker is dead and none of its processes is left; its journal was reported before."""

    errno: int = 0
    """Why no process could be made for it; 0 if there was one."""
    damaged: bool = False
    """Whether its journal could not be read to the end: what it did not report may have run."""
    warm: bool = False
    """Whether a template should have forked it, or has."""


class ShortOfResources(StokerError):
    """No worker can be started, because the machine is short of something or a disk does not work."""


Event = AttemptStarted | AttemptExited | AttemptReturned | WorkerLost


class Runner(Protocol):
    """Runs attempts. Each belongs to a worker, which runs its attempts one after another."""

    def fileno(self) -> int:
        """Readable when there are events."""

    @property
    def next_cleanup(self) -> float | None:
        """Seconds after which `poll` is due although no event comes; None is never."""

    def start(self, worker: str, order: LaunchOrder, variables: Mapping[str, str]) -> None:
        """Queue an attempt behind those that the worker has; it is sent with the next `flush`."""

    def flush(self) -> None:
        """Send the queued attempts."""

    def stop(self, worker: str, attempt: str, grace: float, signal_number: int = 0) -> None:
        """Send TERM, or the signal with this number, and KILL after the grace."""

    def give_way(self, worker: str, attempt: str, signal_number: int, seconds: float, *, saves: bool) -> None:
        """Ask an attempt to leave, once: it saves its state in so many seconds or stays, or else is killed after them.

        If it leaves, the reason of its end is `preempted`.
        """

    def set_limits(self, worker: str, attempt: str, spec: JobSpec) -> None:
        """Give an attempt the limits of a spec; its time limit counts from its start."""

    def adopt(self, worker: str) -> bool:
        """Take over a worker of a dead engine; its events are reported again. False if it left no trace."""

    def account(self, worker: str, attempt: str) -> None:
        """Ask for an attempt that may never have been sent: a worker that does not know it returns it."""

    def poll(self) -> Iterable[tuple[str, Event]]:
        """Events since the last call with their workers, for each worker in order."""

    @property
    def survivors(self) -> Mapping[int, str]:
        """Jobs that cannot be over, because processes of theirs outlive their dead worker, each with the reason."""

    @property
    def trouble(self) -> str:
        """A problem with workers, for the user; empty if there is none."""

    def forget(self, worker: str) -> None:
        """Remove what is left of a lost worker, once all its events are recorded."""

    def close(self) -> None:
        """Leave; busy workers go on."""


class Workers(Protocol):
    """The operations for allocations: workers that hold leases."""

    def start_worker(self, template: Template | None = None) -> str:
        """Start a worker, which has the modules of a template, and return its name."""

    def refusal(self, template: Template) -> str:
        """Why a job that wants the template starts cold; empty if workers can have its modules."""

    def stop_worker(self, worker: str) -> None:
        """Let the worker exit when it is idle."""

    def give_lease(self, worker: str, path: str, descriptor: int) -> None:
        """Pass a locked descriptor on; the worker holds it until it is told to release it."""

    def release(self, worker: str) -> None:
        """Let an idle worker release its leases."""

    def recall(self, worker: str) -> None:
        """Ask for the attempts back that have not started."""

    def journal_is_full(self, worker: str) -> bool:
        """Whether the worker should get no more attempts."""

    def is_dead(self, worker: str) -> bool:
        """Whether a worker of any engine is dead, or never existed."""


class ProcessIds(Protocol):
    """The operations for telemetry: the processes of workers and attempts."""

    def process_of(self, worker: str, attempt: str) -> int | None:
        """The first process of a worker's newest attempt, if this is that attempt and it is known."""

    def root_of(self, worker: str) -> int | None:
        """The worker's own process, once it has started an attempt."""


class WorkerRunner(Runner, Workers, ProcessIds, Protocol):
    """All that the machine site needs of a runner."""
