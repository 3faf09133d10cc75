"""An engine with all that it works with, opened in the one right order and closed in the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from stoker.core.errors import StokerError
from stoker.core.job import JobEvent
from stoker.core.launch import log_pattern, on_finish_job
from stoker.core.planner.policy import Policy
from stoker.core.settings import EngineSettings
from stoker.core.spec import shell_of
from stoker.devices.interface import Devices
from stoker.engine.loop import Engine
from stoker.engine.recorder import FollowUp
from stoker.engine.status_writer import StatusWriter
from stoker.ledger import Ledger
from stoker.runner.forkserver_client import Forkserver
from stoker.runner.local import LocalBackend
from stoker.sites.machine.resources import EngineResources, steady_clock
from stoker.store.engine_lock import EngineLock, WakeFifo
from stoker.store.ownership import leftover_workers, sweep_locks
from stoker.store.paths import Paths
from stoker.store.writer import Store, open_store


class Closable(Protocol):
    """Anything that holds something."""

    def close(self) -> None:
        """Give it back."""


Resource = TypeVar("Resource", bound=Closable)


class Site(Struct, frozen=True):
    """Where an engine works, with what, and for whom."""

    paths: Paths
    ledger: Path
    devices: Devices
    policy: Policy
    user: str
    label: str
    share_output: bool = False
    share_input: bool = False
    on_finish: str = ""
    """A line for the shell, to be run whenever a job has ended; empty is none."""
    settings: EngineSettings | None = None
    """All that was configured, for others to see."""
    forkserver: Forkserver | None = None
    """One that was started before, where there was something else to do meanwhile."""


class EngineRuntime:
    """The resources of an engine."""

    def __init__(
        self,
        site: Site,
        tell: Callable[[JobEvent], None],
        owner: str = "",
        heartbeat: float | None = None,
        rung: Callable[[], None] = lambda: None,
    ) -> None:
        """`owner` is a name that jobs were given to; without one, the engine owns what it is given itself.

        `rung` is called whenever somebody has rung, before the engine looks why.
        """
        self._site = site
        self._heed = rung
        self._closing = contextlib.ExitStack()
        try:
            self._open(tell, owner, heartbeat)
        except BaseException:
            self._closing.close()
            raise

    def _open(self, tell: Callable[[JobEvent], None], owner: str, heartbeat: float | None) -> None:
        """The workers' forkserver comes first: it must not carry a copy of anything that follows."""
        paths, site = self._site.paths, self._site
        owned = self.keep(EngineLock(paths, owner)) if owner else None
        self.engine_lock = self.keep(EngineLock(paths))
        self._engine_locks = [engine_lock for engine_lock in (owned, self.engine_lock) if engine_lock]
        name = self.engine_lock.name
        self.backend = self.keep(
            LocalBackend(
                paths.workers,
                name,
                share_output=site.share_output,
                share_input=site.share_input,
                forkserver=site.forkserver,
            )
        )
        self.store: Store = self.keep(open_store(paths))
        engine_resources = EngineResources(
            self.store,
            Ledger(site.ledger),
            site.devices,
            self.backend,
            site.user,
            steady_clock(),
            lambda job_id: str(paths.report(job_id)),
        )
        name = owner or name
        engine = Engine(
            name,
            engine_resources,
            site.policy,
            tell,
            label=site.label,
            heartbeat=heartbeat,
            follow_up=_follow_up(site, name),
        )
        self.engine = self.keep(engine)
        self._wake_fifo = self.keep(WakeFifo(paths, name))
        self.engine.watch(self._wake_fifo, self._rung)
        self._status_writer = self.keep(StatusWriter(paths.status_file(name), stays=bool(owner)))
        self._status_writer.settings = site.settings

    def keep(self, resource: Resource) -> Resource:
        """Close a resource when the workplace is closed, before all that was there earlier."""
        self._closing.callback(resource.close)
        return resource

    def adapt(self, site: Site) -> None:
        """Go by another policy and other settings from now on; place and devices stay what they are."""
        self._site = site
        self._status_writer.settings = site.settings
        self.engine.govern(site.policy, _follow_up(site, self.engine.name))

    @property
    def in_place(self) -> bool:
        """Whether the state directory is still the one that others find at its path."""
        return all(engine_lock.in_place for engine_lock in self._engine_locks)

    def publish(self) -> None:
        """Show others what the engine is doing, now and then."""
        self._status_writer.allocation(self.engine)

    def sweep(self) -> None:
        """Remove what dead engines left and nobody needs any more."""
        sweep_locks(self._site.paths, self.store)
        for worker in leftover_workers(self._site.paths, self.store):
            if self.backend.is_dead(worker):
                self.backend.forget(worker)

    def close(self) -> None:
        """Give everything back; jobs that still run go on under their workers."""
        with contextlib.suppress(StokerError):  # those whose last job was taken over by us own nothing any more
            sweep_locks(self._site.paths, self.store)
        self._closing.close()

    def _rung(self) -> None:
        self._wake_fifo.silence()
        self._heed()
        self._status_writer.hurry()
        self.engine.poke()


def _follow_up(site: Site, engine: str) -> FollowUp | None:
    """What follows when a job ends, where something was configured."""
    if not site.on_finish:
        return None
    shell = shell_of(os.environ)
    out = log_pattern(site.paths.logs)
    with contextlib.suppress(OSError):  # on a full disk the command has nowhere to write, which it tells itself
        site.paths.logs.mkdir(mode=0o700, exist_ok=True)
    return FollowUp(engine, lambda job, log: on_finish_job(job, log, site.on_finish, shell, out))
