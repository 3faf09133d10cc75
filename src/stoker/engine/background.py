"""The background engine of the queue: serve, prune, exit when idle."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Literal

from stoker.core.errors import StokerError
from stoker.core.job import Ended, JobEvent, Lost
from stoker.core.units import count_text
from stoker.engine.adoption import adopt_gone, end_nested
from stoker.engine.job_table import order_of_running
from stoker.engine.loop import Engine
from stoker.engine.pruner import PAUSE, Pruner
from stoker.engine.resources import EngineConfig, EngineRuntime
from stoker.engine.signals import SignalSocket
from stoker.store.engine_lock import (
    QUEUE,
    cluster_of,
    engine_lives,
)
from stoker.store.writer import open_store

HEARTBEAT = 10.0
"""Seconds after which an idle engine checks for work."""

ROUNDS_INTERVAL = 10.0
"""Seconds between two checks of what changes seldom."""


class ServiceConfig(EngineConfig, frozen=True):
    """Configuration of the background engine."""

    idle_exit: float | None = 600.0
    """Seconds without any job after which it exits; None is never."""
    owner: str = QUEUE
    """The name that its jobs are stored under."""
    start_queue: Callable[[], None] = lambda: None
    """Start the engine of this machine, which runs on-finish jobs of a cluster's jobs too."""
    keep: float | None = None
    """Seconds for which ended jobs stay in the history; None is for ever."""


class Service:
    """The background engine and its loop."""

    def __init__(
        self, config: ServiceConfig, say: Callable[[str], None], news: Callable[[], ServiceConfig | None]
    ) -> None:
        """`news` returns the configuration if it has changed since the last call."""
        self.config = config
        self._say = say
        self._news = news
        self._runtime = EngineRuntime(
            config, self._happened, owner=config.owner, heartbeat=HEARTBEAT, woken=self._reread
        )
        self.leaving: Literal["", "now", "at rest", "again"] = ""
        """Whether a signal told it to exit, and when; `again` is for a site with other settings."""
        self._hooks_due = False
        self._dispensable = False
        """Whether the process that started it has no job for it after all, so that it need not wait for idle_exit."""
        self._busy_at = time.monotonic()
        self._pruner = self._new_pruner(config)
        self._rounds_at = 0.0
        self._lost = True
        """Whether jobs may have been lost in which runs had jobs of their own."""
        self._trouble = ""
        try:
            self._start()
        except BaseException:
            self._runtime.close()
            raise

    @property
    def _engine(self) -> Engine:
        return self._runtime.engine

    def _start(self) -> None:
        """Take over the active jobs of an earlier engine of this queue."""
        for job in sorted(self._runtime.store.active_jobs(self.config.owner), key=order_of_running):
            self._engine.adopt(job, adopted=False)
        self._runtime.sweep()
        self._signals = self._runtime.keep(SignalSocket(signal.SIGUSR2))
        self._engine.watch(self._signals, self._signalled)
        self._runtime.publish()

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run until it is time to exit; `ready` is called after the first turn, which may fail if others died."""
        self._turn(0.0)
        ready()
        while not self._is_over():
            self._turn(self._timeout())

    def _turn(self, timeout: float | None) -> None:
        self._engine.turn(timeout)
        self._make_rounds()
        if self._hooks_due and self.config.on_finish:
            self.config.start_queue()
        self._hooks_due = False
        self._prune()
        self._complain()
        self._runtime.publish()

    def close(self) -> None:
        """Close everything; running jobs go on."""
        self._runtime.close()

    # -- when to exit -----------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self.leaving:
            return self.leaving in ("now", "again") or self._engine.at_rest
        now = time.monotonic()
        if not self._engine.idle:
            self._busy_at = now
            return False
        limit = 0.0 if self._dispensable else self.config.idle_exit
        return limit is not None and now - self._busy_at >= limit

    def _timeout(self) -> float | None:
        """Seconds after which the turn must end for the pruner or the idle exit."""
        moments = [PAUSE] if self._pruner.busy else []
        if self.config.idle_exit is not None and self._engine.idle:
            moments.append(max(0.0, self._busy_at + self.config.idle_exit - time.monotonic()))
        return min(moments, default=None)

    def _signalled(self) -> None:
        for signal_number in self._signals.received():
            match signal_number:
                case signal.SIGUSR1:
                    self._say(f"{len(self._engine.active_jobs)} running, {self._engine.waiting} waiting")
                case signal.SIGUSR2:
                    self._dispensable = True
                case signal.SIGHUP:
                    self._leave("at rest", "draining: starting no more jobs, stopping when the running jobs have ended")
                    self._engine.drain()
                case signal.SIGINT:
                    self._leave("at rest", "stopping all jobs, then the engine")
                    self._engine.stop(None, "stopped by stoker engine stop --jobs")
                case _:
                    self._leave("now", "engine stopped; running jobs continue")

    def _leave(self, when: Literal["now", "at rest", "again"], words: str) -> None:
        self._say(words)
        self.leaving = when

    # -- from time to time ------------------------------------------------------------------------

    def _make_rounds(self) -> None:
        now = time.monotonic()
        if now < self._rounds_at:
            return
        self._rounds_at = now + ROUNDS_INTERVAL
        self._reread()
        if self._runtime.in_place:
            adopt_gone(self.config.paths, self._runtime.store, self._engine, self._runtime.engine_lock.name)
            if self._lost and self.config.owner == QUEUE:
                self._lost = False
                end_nested(self.config.paths, self._runtime.store, self._engine)
        else:  # no front end reads what is written there, and the next engine does not know of this one
            self._leave(
                "now", f"{self.config.paths.state} was removed or replaced: engine stopped; jobs continue if possible"
            )

    def _reread(self) -> None:
        """Use the new configuration, if there is one."""
        if (config := self._news()) is not None:
            if cluster_of(config.owner) and config.site != self.config.site:
                self._leave("again", "the settings of the cluster have changed: starting again with them")
            if config.keep != self.config.keep:
                self._pruner = self._new_pruner(config)
            self.config = config
            self._runtime.adapt(config)
            self._say("the configuration has changed and is now in effect")

    def _new_pruner(self, config: ServiceConfig) -> Pruner:
        return Pruner(config.paths, self._runtime.store, self._runtime.engine_lock.name, config.keep)

    def _prune(self) -> None:
        """Remove a few old jobs from the history; after a failure the next try is tomorrow."""
        try:
            pruned = self._pruner.step(self._engine.now)
        except StokerError as error:
            self._say(f"cannot remove old jobs from the history: {error}")
            return
        if pruned:
            self._say(f"{count_text(pruned, 'job')} removed from the history (setting keep)")

    def _happened(self, job_event: JobEvent) -> None:
        if isinstance(job_event.event, Lost):
            self._lost = True
            self._say(f"job {job_event.job.id} was lost: {job_event.event.note or 'its worker died'}")
        self._hooks_due = self._hooks_due or isinstance(job_event.job.state, Ended)

    def _complain(self) -> None:
        trouble = self._engine.trouble
        if trouble and trouble != self._trouble:
            self._say(trouble)
        self._trouble = trouble


def serve(
    config: ServiceConfig,
    say: Callable[[str], None],
    ready: Callable[[], None],
    news: Callable[[], ServiceConfig | None] = lambda: None,
    leaving: Callable[[], None] = lambda: None,
) -> None:
    """Be the engine of the queue until it is time to exit; `leaving` is called before workers can notice that.

    A front end looks for an engine after its job is in the store, and this looks into the store after it has released
    the engine lock: so no job falls between the two.
    """
    while True:
        service = Service(config, say, news)
        try:
            service.run(ready)
            leaving()
        finally:
            service.close()
        config = service.config
        if service.leaving != "again" and (service.leaving or not _has_work(config)):
            return


def _has_work(config: ServiceConfig) -> bool:
    with contextlib.closing(open_store(config.paths)) as store:
        left = store.open_jobs(config.owner, 0, 1) or store.requests(config.owner)
        return bool(left) and not engine_lives(config.paths, config.owner)
