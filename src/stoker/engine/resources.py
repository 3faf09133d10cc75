"""Open an engine with its locks, store and site, and close all of it in reverse order."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct

from stoker.core.errors import StokerError
from stoker.core.job import Job, JobEvent
from stoker.core.launch import log_pattern, notification_job, on_finish_job
from stoker.core.planner.queue import WaitingGroup
from stoker.core.settings import EngineSettings, Policy
from stoker.core.spec import NewJob, shell_of
from stoker.engine.job_table import Jobs
from stoker.engine.loop import Engine
from stoker.engine.recorder import FollowUp
from stoker.engine.sampler import Sampler
from stoker.engine.status_writer import StatusWriter
from stoker.features import FEATURES, load
from stoker.sites.interface import SiteConfig, SiteContext, UsesLedger
from stoker.store.engine_lock import QUEUE, EngineLock, WakeFifo, is_background, sweep_locks
from stoker.store.paths import Paths
from stoker.store.status_file import EngineStatus
from stoker.store.writer import Store, open_store


class Closable(Protocol):
    """Anything that holds something."""

    def close(self) -> None:
        """Release it."""


Resource = TypeVar("Resource", bound=Closable)


class Publisher(Protocol):
    """A feature's part that tells other users what an engine of this machine does, about once a second."""

    def publish(
        self, status: EngineStatus, running: Sequence[tuple[Job, int | None]], waiting: Collection[WaitingGroup]
    ) -> None:
        """Publish what has changed; `running` are active jobs with their first processes."""

    def close(self) -> None:
        """The engine leaves."""


class EngineConfig(Struct, frozen=True):
    """Configuration of an engine."""

    paths: Paths
    site: SiteConfig
    """Where its jobs run."""
    policy: Policy
    label: str
    """Name of the engine that other users see."""
    on_finish: str = ""
    """A shell line to run whenever a job has ended; empty is none."""
    announces: bool = True
    """Whether it starts a notification as soon as all jobs of a batch have ended. A run may get more jobs."""
    settings: EngineSettings | None = None
    """The whole configuration, for front ends to show."""
    durable: bool = True
    """Whether its store has to survive a crash of the machine; that of a pilot is gone with the pilot."""


class EngineRuntime:
    """An open engine: its locks, store, site, wake FIFO and status file."""

    def __init__(
        self,
        config: EngineConfig,
        notify: Callable[[JobEvent], None],
        owner: str = "",
        heartbeat: float | None = None,
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        """`owner` is the name that its jobs are stored under; by default that of this process.

        `woken` is called whenever a front end has written to the wake FIFO, before the engine looks why.
        """
        self._config = config
        self._woken = woken
        self._closing = contextlib.ExitStack()
        self._publishers: list[Publisher] = []
        try:
            self._open(notify, owner, heartbeat)
        except BaseException:
            self._closing.close()
            raise

    def _open(self, notify: Callable[[JobEvent], None], owner: str, heartbeat: float | None) -> None:
        paths, config = self._config.paths, self._config
        owned = self.keep(EngineLock(paths, owner)) if owner else None
        self.engine_lock = self.keep(EngineLock(paths))
        self._engine_locks = [engine_lock for engine_lock in (owned, self.engine_lock) if engine_lock]
        instance = self.engine_lock.name
        name = owner or instance
        self.store: Store = self.keep(open_store(paths, durable=config.durable))
        jobs = Jobs(self.store, steady_clock(), _follow_up(config, name))
        site = config.site.open(SiteContext(name, instance, config.label, paths, self.store, jobs))
        engine = Engine(name, jobs, site, config.policy, notify=notify, label=config.label, heartbeat=heartbeat)
        self.engine = self.keep(engine)
        self._wake_fifo = self.keep(WakeFifo(paths, name))
        self.engine.watch(self._wake_fifo, self._wake)
        self._status_writer = self.keep(StatusWriter(paths.status_file(name), stays=bool(owner)))
        self._status_writer.settings = config.settings
        self._sampler = Sampler()
        if isinstance(config.site, UsesLedger):
            publishers = [load(feature.publisher) for feature in FEATURES.values() if feature.publisher]
            self._publishers = [
                self.keep(publisher(config.site.ledger, paths.state, self.store)) for publisher in publishers
            ]

    def keep(self, resource: Resource) -> Resource:
        """Close a resource together with the engine, before all that was opened earlier."""
        self._closing.callback(resource.close)
        return resource

    def adapt(self, config: EngineConfig) -> None:
        """Use another policy and other settings from now on; paths and site stay what they are."""
        self._config = config
        self._status_writer.settings = config.settings
        self.engine.set_policy(config.policy, _follow_up(config, self.engine.name))

    @property
    def in_place(self) -> bool:
        """Whether the state directory is still the one that others find at its path."""
        return all(engine_lock.in_place for engine_lock in self._engine_locks)

    def publish(self) -> None:
        """Write the status file, if it is time, and take a sample of the devices."""
        if (status := self._status_writer.write(self.engine)) is not None:
            self.engine.take_sample(self._sampler, status.snapshot)
            running = (
                [(job, self.engine.process_of(job)) for job in self.engine.active_jobs] if self._publishers else []
            )
            for publisher in self._publishers:
                publisher.publish(status, running, self.engine.waiting_groups)

    def sweep(self) -> None:
        """Remove the locks of dead engines that own nothing any more."""
        sweep_locks(self._config.paths, self.store)

    def close(self) -> None:
        """Close everything; running jobs go on."""
        with contextlib.suppress(StokerError):  # this engine may have taken the last job of a dead one over
            self.sweep()
        self._closing.close()

    def _wake(self) -> None:
        self._wake_fifo.drain()
        self._woken()
        self._status_writer.write_soon()
        self.engine.wake()


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch, which no later change of the system clock moves."""
    offset = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: offset + time.clock_gettime(time.CLOCK_BOOTTIME)


def _follow_up(config: EngineConfig, engine: str) -> FollowUp | None:
    """The jobs that run when another ends, or a batch."""
    shell, out, line = shell_of(os.environ), log_pattern(config.paths.logs), config.on_finish
    with contextlib.suppress(OSError):  # on a full disk the command cannot write, and reports that itself
        config.paths.logs.mkdir(mode=0o700, exist_ok=True)
    return FollowUp(
        QUEUE if is_background(engine) else engine,
        (lambda job, log: on_finish_job(job, log, line, shell, out)) if line else None,
        partial(notification, config.paths) if config.announces else None,
        partial(notification, config.paths) if config.announces else None,
    )


def notification(paths: Paths, job: Job, sentence: str = "") -> NewJob:
    """The job that tells the user that the batch of a job has ended, or a sentence about the job."""
    program = (sys.executable, "-E", "-P", "-m", "stoker.app.service.notify", str(paths.state))
    return notification_job(job, program, log_pattern(paths.logs), sentence)
