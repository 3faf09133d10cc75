"""The engine in the background: serves what was submitted, until it has been idle for a while."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from typing import Literal

from stoker.changes import Happening
from stoker.core.errors import StokerError
from stoker.core.job import Lost
from stoker.core.units import count_text
from stoker.engine import Engine
from stoker.presence import QUEUE, engine_lives
from stoker.pruner import PAUSE, Pruner
from stoker.queue import held_orphans, open_store
from stoker.resume import order_of_running, take_in
from stoker.signals import SignalSocket
from stoker.workplace import Site, Workplace

HEARTBEAT = 10.0
"""Seconds after which an idle engine looks for itself whether somebody left something."""
ROUNDS_INTERVAL = 10.0
"""Seconds between two looks at what changes seldom and calls nobody."""


class Duty(Site, frozen=True):
    """What the engine in the background is made of."""

    idle_exit: float | None = 600.0
    """Seconds without any job after which it leaves; None is never."""
    keep: float | None = None
    """Seconds for which ended jobs stay in the history; None is for ever."""


class Service:
    """One engine that owns the queue, and its loop."""

    def __init__(self, duty: Duty, say: Callable[[str], None], news: Callable[[], Duty | None]) -> None:
        """`news` is what was configured since it was asked last, if anything was."""
        self.duty = duty
        self._say = say
        self._news = news
        self._workplace = Workplace(duty, self._happened, owner=QUEUE, heartbeat=HEARTBEAT, rung=self._reread)
        self.leaving: Literal["", "now", "at rest"] = ""
        """Whether somebody wants it to leave, and when."""
        self._dispensable = False
        """Whether whoever started it has nothing for it after all, so that it need not wait for idle_exit."""
        self._busy_at = time.monotonic()
        self._pruner = Pruner(duty.places, self._workplace.store, self._workplace.presence.name, duty.keep)
        self._rounds_at = 0.0
        self._trouble = ""
        try:
            self._move_in()
        except BaseException:
            self._workplace.close()
            raise

    @property
    def _engine(self) -> Engine:
        return self._workplace.engine

    def _move_in(self) -> None:
        """Go on with what an earlier engine of this queue had given to keepers."""
        for job in sorted(self._workplace.store.active_jobs(QUEUE), key=order_of_running):
            self._engine.adopt(job, guest=False)
        self._workplace.sweep()
        self._signals = self._workplace.keep(SignalSocket(signal.SIGUSR2))
        self._engine.watch(self._signals, self._signalled)
        self._workplace.publish()

    def run(self) -> None:
        """Work until it is time to leave."""
        while not self._is_over():
            self._engine.turn(self._patience())
            self._make_rounds()
            self._prune()
            self._complain()
            self._workplace.publish()

    def close(self) -> None:
        """Leave; what runs goes on under its keepers."""
        self._workplace.close()

    # -- when to leave ---------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self.leaving:
            return self.leaving == "now" or self._engine.at_rest
        now = time.monotonic()
        if not self._engine.idle:
            self._busy_at = now
            return False
        limit = 0.0 if self._dispensable else self.duty.idle_exit
        return limit is not None and now - self._busy_at >= limit

    def _patience(self) -> float | None:
        """Seconds after which a turn must be over for our sake."""
        moments = [PAUSE] if self._pruner.busy else []
        if self.duty.idle_exit is not None and self._engine.idle:
            moments.append(max(0.0, self._busy_at + self.duty.idle_exit - time.monotonic()))
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
                    self._leave("now", "leaving; what runs goes on under its keepers")

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
        if self._workplace.in_place:
            self._settle_orphans()
        else:  # what is written there reaches nobody, and the next engine does not know of us
            self._leave("now", f"{self.duty.places.state} was removed or replaced: leaving; jobs go on if they can")

    def _reread(self) -> None:
        """Go by what was configured meanwhile."""
        if (duty := self._news()) is not None:
            self.duty = duty
            self._pruner.keep = duty.keep
            self._workplace.adapt(duty)
            self._say("the configuration has changed, and is gone by from now on")

    def _settle_orphans(self) -> None:
        """Record how jobs of dead foreground runs ended, which nobody else would; what still runs is left for now."""
        workplace = self._workplace
        left = held_orphans(self.duty.places, workplace.store)
        dead = [orphan for orphan in left if self._engine.keeper_is_dead(orphan.job)]
        take_in(dead, workplace.store, self._engine, workplace.presence.name)

    def _prune(self) -> None:
        """Forget a few of the jobs that ended long ago; where that fails, tomorrow is another day."""
        try:
            pruned = self._pruner.step(self._engine.now)
        except StokerError as error:
            self._say(f"old jobs stay in the history for now: {error.message}; {error.hint}")
            return
        if pruned:
            self._say(f"{count_text(pruned, 'job')} that ended long ago left the history")

    def _happened(self, happening: Happening) -> None:
        if isinstance(happening.event, Lost):
            self._say(f"job {happening.job.id} lost its keeper")

    def _complain(self) -> None:
        trouble = self._engine.trouble
        if trouble and trouble != self._trouble:
            self._say(trouble)
        self._trouble = trouble


def serve(
    duty: Duty, say: Callable[[str], None], ready: Callable[[], None], news: Callable[[], Duty | None] = lambda: None
) -> None:
    """Be the engine of the queue until it is time to leave.

    Whoever submits looks for an engine after the job is in the store, and this looks into the store after it is no
    engine any more: so no job falls between the two.
    """
    while True:
        service = Service(duty, say, news)
        ready()
        try:
            service.run()
        finally:
            service.close()
        duty = service.duty
        if service.leaving or not _somebody_came(duty):
            return


def _somebody_came(duty: Duty) -> bool:
    with contextlib.closing(open_store(duty.places)) as store:
        left = store.open_jobs(QUEUE, 0, 1) or store.requests(QUEUE)
        return bool(left) and not engine_lives(duty.places, QUEUE)
