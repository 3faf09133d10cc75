"""The background engine of the queue: serve, prune, exit when idle."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from stoker.core.errors import StokerError
from stoker.core.job import JobEvent, Lost
from stoker.core.units import count_text
from stoker.engine.adoption import order_of_running, take_in
from stoker.engine.loop import Engine
from stoker.engine.resources import EngineRuntime, Site
from stoker.engine.signals import SignalSocket
from stoker.store.engine_lock import QUEUE, engine_lives, living_engines
from stoker.store.ownership import held_orphans
from stoker.store.paths import UNFINISHED, Paths
from stoker.store.prune import Position, needed_jobs, prune, prune_unused, unused_scripts
from stoker.store.writer import Store, open_store

INTERVAL = 86_400.0
"""Seconds between two rounds."""

STEP = 200
"""Jobs looked at in one transaction."""

PAUSE = 0.05
"""Seconds between two transactions, so that everybody else has a turn."""


class Pruner:
    """Goes through the oldest jobs once a day, a few at a time."""

    def __init__(self, paths: Paths, store: Store, engine: str, keep: float | None) -> None:
        """`engine` is the name of the one that this belongs to; `keep` is for how many seconds jobs stay."""
        self._paths = paths
        self._store = store
        self._engine = engine
        self.keep = keep
        self._position: Position | None = None
        self._due = 0.0
        self._next = 0.0
        self._needed: set[int] = set()
        self._pruned = 0

    @property
    def busy(self) -> bool:
        """Whether a round is not over."""
        return self._position is not None and self.keep is not None

    def step(self, now: float) -> int:
        """Forget a few, if it is time; how many the whole round was, when it is over."""
        if self.keep is None or now < self._next or not self._begin(now):
            return 0
        assert self._position is not None
        self._next = now + PAUSE
        start, self._position = self._position, None  # what fails is not tried again before the next round
        before = now - self.keep
        found = prune(self._store, before, start, self._needed, STEP)
        self._remove(found.logs)
        self._remove_words(found.ids)
        self._pruned += found.jobs
        if found.position is not None:
            self._position = found.position
            return 0
        if self._pruned:
            prune_unused(self._store, before, self._exclusive)
        self._remove_unfinished(now)
        self._remove_scripts()
        return self._pruned

    def _begin(self, now: float) -> bool:
        """Whether a round is under way, after beginning one if it is time."""
        if self._position is None and now >= self._due:
            self._due = now + INTERVAL
            self._position, self._pruned = Position(), 0
            self._needed = needed_jobs(self._store)
        return self._position is not None

    def _exclusive(self) -> bool:
        """Whether no run in the foreground is under way, which may need what no job has yet."""
        return set(living_engines(self._paths)) <= {QUEUE, self._engine}

    def _remove_words(self, ids: Iterable[int]) -> None:
        """What the jobs told of themselves, and the functions they ran with all that these returned."""
        for job_id in ids:
            with contextlib.suppress(OSError):
                self._paths.report(job_id).unlink()
            shutil.rmtree(self._paths.function(job_id), ignore_errors=True)

    def _remove_unfinished(self, now: float) -> None:
        """Functions of programs that died before their jobs were in the queue."""
        for folder in self._paths.functions.glob(f"{UNFINISHED}*"):
            with contextlib.suppress(OSError):
                if now - folder.stat().st_mtime > INTERVAL:
                    shutil.rmtree(folder, ignore_errors=True)

    def _remove_scripts(self) -> None:
        """Copies that no job runs; nobody can add a job meanwhile, so none is removed under its feet."""
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._paths.scripts)
            with self._store.writing():
                for name in unused_scripts(self._store, str(self._paths.scripts), names) if self._exclusive() else ():
                    shutil.rmtree(self._paths.scripts / name, ignore_errors=True)

    def _remove(self, logs: Iterable[str]) -> None:
        """Only what is in the directory of logs: all others are files of the user's."""
        for path in map(Path, logs):
            if path.is_relative_to(self._paths.logs) and ".." not in path.parts:
                with contextlib.suppress(OSError):
                    path.unlink()
                if path.parent != self._paths.logs:
                    with contextlib.suppress(OSError):  # others of its array may still be there
                        path.parent.rmdir()


HEARTBEAT = 10.0
"""Seconds after which an idle engine looks for itself whether somebody left something."""

ROUNDS_INTERVAL = 10.0
"""Seconds between two looks at what changes seldom and calls nobody."""


class ServiceConfig(Site, frozen=True):
    """What the engine in the background is made of."""

    idle_exit: float | None = 600.0
    """Seconds without any job after which it leaves; None is never."""
    keep: float | None = None
    """Seconds for which ended jobs stay in the history; None is for ever."""


class Service:
    """One engine that owns the queue, and its loop."""

    def __init__(
        self, config: ServiceConfig, say: Callable[[str], None], news: Callable[[], ServiceConfig | None]
    ) -> None:
        """`news` is what was configured since it was asked last, if anything was."""
        self.config = config
        self._say = say
        self._news = news
        self._runtime = EngineRuntime(config, self._happened, owner=QUEUE, heartbeat=HEARTBEAT, rung=self._reread)
        self.leaving: Literal["", "now", "at rest"] = ""
        """Whether somebody wants it to leave, and when."""
        self._dispensable = False
        """Whether whoever started it has nothing for it after all, so that it need not wait for idle_exit."""
        self._busy_at = time.monotonic()
        self._pruner = Pruner(config.paths, self._runtime.store, self._runtime.engine_lock.name, config.keep)
        self._rounds_at = 0.0
        self._trouble = ""
        try:
            self._move_in()
        except BaseException:
            self._runtime.close()
            raise

    @property
    def _engine(self) -> Engine:
        return self._runtime.engine

    def _move_in(self) -> None:
        """Go on with what an earlier engine of this queue had given to workers."""
        for job in sorted(self._runtime.store.active_jobs(QUEUE), key=order_of_running):
            self._engine.adopt(job, adopted=False)
        self._runtime.sweep()
        self._signals = self._runtime.keep(SignalSocket(signal.SIGUSR2))
        self._engine.watch(self._signals, self._signalled)
        self._runtime.publish()

    def run(self) -> None:
        """Work until it is time to leave."""
        while not self._is_over():
            self._engine.turn(self._patience())
            self._make_rounds()
            self._prune()
            self._complain()
            self._runtime.publish()

    def close(self) -> None:
        """Leave; what runs goes on under its workers."""
        self._runtime.close()

    # -- when to leave ---------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self.leaving:
            return self.leaving == "now" or self._engine.at_rest
        now = time.monotonic()
        if not self._engine.idle:
            self._busy_at = now
            return False
        limit = 0.0 if self._dispensable else self.config.idle_exit
        return limit is not None and now - self._busy_at >= limit

    def _patience(self) -> float | None:
        """Seconds after which a turn must be over for our sake."""
        moments = [PAUSE] if self._pruner.busy else []
        if self.config.idle_exit is not None and self._engine.idle:
            moments.append(max(0.0, self._busy_at + self.config.idle_exit - time.monotonic()))
        return min(moments, default=None)

    def _signalled(self) -> None:
        for number in self._signals.received():
            match number:
                case signal.SIGUSR1:
                    self._say(f"{len(self._engine.held)} running, {self._engine.waiting} waiting")
                case signal.SIGUSR2:
                    self._dispensable = True
                case signal.SIGHUP:
                    self._leave("at rest", "starting nothing more, and leaving when nothing runs")
                    self._engine.drain()
                case signal.SIGINT:
                    self._leave("at rest", "stopping all jobs, and leaving")
                    self._engine.stop(None, "the engine was told to stop its jobs")
                case _:
                    self._leave("now", "leaving; what runs goes on under its workers")

    def _leave(self, when: Literal["now", "at rest"], words: str) -> None:
        self._say(words)
        self.leaving = when

    # -- now and then ----------------------------------------------------------------------------

    def _make_rounds(self) -> None:
        now = time.monotonic()
        if now < self._rounds_at:
            return
        self._rounds_at = now + ROUNDS_INTERVAL
        self._reread()
        if self._runtime.in_place:
            self._settle_orphans()
        else:  # what is written there reaches nobody, and the next engine does not know of us
            self._leave("now", f"{self.config.paths.state} was removed or replaced: leaving; jobs go on if they can")

    def _reread(self) -> None:
        """Go by what was configured meanwhile."""
        if (config := self._news()) is not None:
            self.config = config
            self._pruner.keep = config.keep
            self._runtime.adapt(config)
            self._say("the configuration has changed, and is gone by from now on")

    def _settle_orphans(self) -> None:
        """Record how jobs of dead foreground runs ended, which nobody else would; what still runs is left for now."""
        runtime = self._runtime
        left = held_orphans(self.config.paths, runtime.store)
        dead = [orphan for orphan in left if self._engine.worker_is_dead(orphan.job)]
        take_in(dead, runtime.store, self._engine, runtime.engine_lock.name)

    def _prune(self) -> None:
        """Forget a few of the jobs that ended long ago; where that fails, tomorrow is another day."""
        try:
            pruned = self._pruner.step(self._engine.now)
        except StokerError as error:
            self._say(f"old jobs stay in the history for now: {error.message}; {error.hint}")
            return
        if pruned:
            self._say(f"{count_text(pruned, 'job')} that ended long ago left the history")

    def _happened(self, job_event: JobEvent) -> None:
        if isinstance(job_event.event, Lost):
            self._say(f"job {job_event.job.id} lost its worker")

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
) -> None:
    """Be the engine of the queue until it is time to leave.

    Whoever submits looks for an engine after the job is in the store, and this looks into the store after it is no
    engine any more: so no job falls between the two.
    """
    while True:
        service = Service(config, say, news)
        ready()
        try:
            service.run()
        finally:
            service.close()
        config = service.config
        if service.leaving or not _somebody_came(config):
            return


def _somebody_came(config: ServiceConfig) -> bool:
    with contextlib.closing(open_store(config.paths)) as store:
        left = store.open_jobs(QUEUE, 0, 1) or store.requests(QUEUE)
        return bool(left) and not engine_lives(config.paths, QUEUE)
