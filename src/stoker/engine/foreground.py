"""An engine for one run in the foreground."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from stoker.core.errors import StokerError
from stoker.core.job import Active, Job, JobEvent, slot_of
from stoker.core.launch import attempt_key
from stoker.core.planner.reasons import sentence
from stoker.core.run_result import Halt, Tally
from stoker.core.spec import NewJob
from stoker.engine.adoption import sieve
from stoker.engine.loop import RETRY_INTERVAL
from stoker.engine.resources import EngineRuntime, Site
from stoker.engine.signals import SignalSocket

FULL = 20_000
"""Waiting jobs at which a source is left alone for a while, so that an endless one cannot fill the memory."""

CHUNK = 500
"""Jobs taken from a list in one turn, so that what runs is not left waiting."""


class View(Protocol):
    """Shows a run to a person."""

    interval: float | None
    """Seconds after which it wants to draw again, None for never."""

    def happened(self, job_event: JobEvent) -> None:
        """Something happened to a job."""

    def refresh(self, run: Foreground) -> None:
        """A turn is over."""

    def say(self, text: str) -> None:
        """A sentence to the person."""

    def close(self) -> None:
        """Leave the screen in order."""


class Source(Protocol):
    """Where the jobs of a run come from."""

    exhausted: bool

    def fileno(self) -> int:
        """Readable when there are jobs, or -1 where they are at hand all the time."""

    def take(self, limit: int) -> Sequence[NewJob]:
        """The next jobs, as many as there are now up to the limit."""


class Setup(Site, frozen=True):
    """What a run is made of."""

    halt: Halt | None = None
    resume: bool = False
    redo: bool = False
    """Whether a run that resumes runs again what succeeded before, and goes on only with what is open."""
    interrupted: Callable[[Foreground, signal.Signals, int], None] | None = None
    """What an interrupt does at its first, second and later times; None lets run finish, then ends it, then kills."""


class Foreground:
    """The resources of a run and its loop."""

    def __init__(self, setup: Setup, view: View) -> None:
        self.setup = setup
        self.tally = Tally()
        self.stopped_by: signal.Signals | None = None
        self.started = time.time()
        self._view = view
        self._interrupts = 0
        self._source_watched = False
        self._taken: Sequence[NewJob] = ()
        """Jobs that a source gave and that are not yet in the store."""
        self._arrays: dict[int, int] = {}
        """The ids that name the arrays of which tasks were given."""
        self._feed_after = 0.0
        self._runtime = EngineRuntime(setup, self._happened)
        self.engine = self._runtime.engine
        self.store = self._runtime.store
        try:
            self._move_in()
        except BaseException:
            self._runtime.close()
            raise

    def _move_in(self) -> None:
        paths = self.setup.paths
        self.batch = self.store.add_batch(self.setup.label, self.started)
        self._sieve = sieve(paths, self.store, self.engine, self.batch, resume=self.setup.resume, redo=self.setup.redo)
        self._runtime.sweep()
        self._signals = self._runtime.keep(SignalSocket())
        self.engine.watch(self._signals, self._signalled)
        if paths.note:
            self._view.say(paths.note)

    def close(self) -> None:
        """Give everything back; jobs that still run go on under their workers."""
        self._runtime.close()

    # -- the loop --------------------------------------------------------------------------------

    def run(self, source: Source) -> None:
        """Work until the source is exhausted and all is over, or until somebody stops it."""
        gc.freeze()  # all modules, which stay for good, need not be looked through again and again
        while not self._finished(source):
            at_hand = self._hungry(source) and not self._watch(source)
            if at_hand or self._taken:
                self._feed(source)
            self.engine.turn(self._patience(source, at_hand=at_hand))
            self._runtime.publish()
            self._view.refresh(self)

    def _patience(self, source: Source, *, at_hand: bool) -> float | None:
        """Seconds until the loop must come round again for our sake."""
        if self._taken:
            return max(0.0, self._feed_after - time.monotonic())
        return 0.0 if at_hand and not source.exhausted else self._view.interval

    def _finished(self, source: Source) -> bool:
        if self.engine.draining:
            return self.engine.at_rest
        return source.exhausted and not self._taken and self.engine.idle

    def _hungry(self, source: Source) -> bool:
        room = self.engine.waiting < FULL and not self._taken
        return room and not source.exhausted and not self.engine.draining

    def _watch(self, source: Source) -> bool:
        """Let the engine wake us when there are jobs; False where they are at hand all the time."""
        if source.fileno() < 0:
            return False
        if not self._source_watched:
            try:
                self.engine.watch(source, lambda: self._feed(source))
            except PermissionError:  # a plain file is always readable and cannot be waited for
                return False
            self._source_watched = True
        return True

    def _unwatch(self, source: Source) -> None:
        if self._source_watched:
            self.engine.unwatch(source)
            self._source_watched = False

    def _feed(self, source: Source) -> None:
        if not self._hungry(source) and not self._taken:
            self._unwatch(source)
            return
        if not self._taken:
            self._taken = self._sieve.unfinished(source.take(CHUNK), self.tally)
        self._submit()
        if source.exhausted:
            self.tally.expected = self.tally.given + self.tally.unusable
            self._unwatch(source)

    def _submit(self) -> None:
        """Put what was taken into the store; where that cannot be written, keep it and try again later."""
        if not self._taken or time.monotonic() < self._feed_after:
            return
        try:
            arrays = dict(self._arrays)
            self.store.add_jobs(self.batch, self.engine.name, self._taken, self.engine.now, arrays=arrays)
        except StokerError as error:
            self.engine.trouble = f"{error.message}; {error.hint}"
            self._feed_after = time.monotonic() + RETRY_INTERVAL
            return
        self._arrays = arrays
        self.tally.given += len(self._taken)
        self._taken = ()
        self.engine.poke()

    # -- what happens ----------------------------------------------------------------------------

    def _happened(self, job_event: JobEvent) -> None:
        if job_event.job.batch != self.batch:
            return
        self.tally.note(job_event)
        self._view.happened(job_event)
        halt = self.setup.halt
        if halt is not None and not self.engine.draining and halt.reached(self.tally):
            self._view.say("stopping as --halt says; what has not started is left for --resume")
            if halt.now:
                self.engine.stop(None, "stopped by --halt")
            else:
                self.engine.drain()

    def _signalled(self) -> None:
        for number in self._signals.received():
            match number:
                case signal.SIGUSR1:
                    self._view.say(self.status())
                case signal.SIGHUP:
                    self.stopped_by = self.stopped_by or number
                    self._view.say("hung up: starting nothing more, and waiting for what runs")
                    self.engine.drain()
                case signal.SIGINT:
                    self._interrupted(number, self._interrupts + 1)
                case signal.SIGTERM:
                    self._interrupted(number, max(2, self._interrupts + 1))

    def _interrupted(self, number: signal.Signals, stage: int) -> None:
        self._interrupts = stage
        (self.setup.interrupted or by_stages)(self, number, stage)

    def say(self, text: str) -> None:
        """A sentence to the person."""
        self._view.say(text)

    def process_of(self, job: Job) -> int | None:
        """The number of a job's process, which leads a group of its own; None where nobody knows it."""
        if not isinstance(job.state, Active):
            return None
        return self._runtime.backend.process_of(slot_of(job.state.ref), attempt_key(job.id, job.state.attempt))

    def retire(self) -> None:
        """Let no signal change any more how this ends."""
        self._signals.retire()

    def status(self) -> str:
        """The run in one line."""
        results = self.tally.results
        failed = self.tally.failed
        return (
            f"{self.tally.ended} of {self.tally.given} over ({results['done']} ok, {failed} failed), "
            f"{len(self.engine.held)} running, {self.engine.waiting} waiting"
        )


def by_stages(run: Foreground, number: signal.Signals, stage: int) -> None:
    """First let what runs finish, then ask it to end, then end it."""
    run.stopped_by = number
    running = len(run.engine.held)
    if stage == 1:
        run.engine.drain()
        if running:
            run.say(f"starting nothing more; {running} running; press again to stop them")
    elif stage == 2:
        if running:
            run.say(f"stopping {running} (TERM, then KILL after the grace); once more kills at once")
        run.engine.stop(None, f"stopped by {number.name}")
    elif stage == 3:
        run.engine.stop(0.0, f"killed by {number.name}")
    else:
        raise KeyboardInterrupt  # something cannot be killed, and whoever presses again wants to leave


PATIENCE = 2.0
"""Seconds after which a run in which nothing can start says why."""


class Complaints:
    """Says once what keeps a run from going on, and again only when that changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = ""
        self._stuck_since: float | None = None

    def check(self, run: Foreground) -> None:
        """Look whether there is something to say."""
        engine = run.engine
        text = engine.trouble or engine.snapshot.note or next(iter(engine.observation.warnings), "")
        if not text and engine.waiting and not engine.held and not engine.draining:
            text = self._why_stuck(run)
        else:
            self._stuck_since = None
        if text and text != self._said:
            self._say(text)
        if text or not self._stuck_since:
            self._said = text

    def _why_stuck(self, run: Foreground) -> str:
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        job = run.engine.next_waiting
        reason = run.engine.reason(job) if job is not None else None
        if job is None or reason is None or now - self._stuck_since < PATIENCE:
            return ""
        return f"#{job.id} waits: {sentence(reason)}"
