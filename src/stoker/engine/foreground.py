"""An engine for one run in the foreground."""

from __future__ import annotations

import contextlib
import gc
import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from stoker.core.errors import StokerError
from stoker.core.job import Job, JobEvent
from stoker.core.planner.reasons import sentence
from stoker.core.run_result import Halt, Tally
from stoker.core.spec import NewJob
from stoker.engine.adoption import Resumer, adopt_gone
from stoker.engine.resources import EngineConfig, EngineRuntime, notification
from stoker.engine.signals import SignalSocket
from stoker.sites.interface import RETRY_INTERVAL
from stoker.store.schema import AfterBatch, FollowUps

NOTIFICATION_PATIENCE = 3.0
"""Seconds for which a run waits at its end for its notification to be sent."""
FULL = 20_000
"""Waiting jobs at which no more are taken from a source, so that an endless one cannot fill the memory."""

CHUNK = 500
"""Jobs taken from a source in one turn, so that running ones do not have to wait."""


class View(Protocol):
    """Shows a run to the user."""

    interval: float | None
    """Seconds between two refreshes although nothing happens; None is never."""

    def happened(self, job_event: JobEvent) -> None:
        """An event of a job was recorded."""

    def refresh(self, run: Foreground) -> None:
        """A turn is over."""

    def say(self, text: str) -> None:
        """Show a message."""

    def close(self) -> None:
        """Restore the screen."""


class Source(Protocol):
    """Where the jobs of a run come from."""

    exhausted: bool

    def fileno(self) -> int:
        """Readable when there are jobs; -1 if there always are until it is exhausted."""

    def take(self, limit: int) -> Sequence[NewJob]:
        """The next jobs, as many as there are now, at most `limit`."""


class Setup(EngineConfig, frozen=True):
    """Configuration of a foreground run."""

    announces: bool = False
    halt: Halt | None = None
    resume: bool = False
    redo: bool = False
    """Whether a run that resumes repeats what succeeded before."""
    interrupted: Callable[[Foreground, signal.Signals, int], None] | None = None
    """Called at each interrupt with its count; by default `by_stages`."""
    hangup_stops: bool = False
    """Whether a hangup counts as an interrupt; otherwise running jobs may finish."""


class Foreground:
    """A run in the foreground and its loop."""

    def __init__(self, setup: Setup, view: View) -> None:
        self.setup = setup
        self.tally = Tally()
        self.stopped_by: signal.Signals | None = None
        self.started = time.time()
        self._view = view
        self._interrupts = 0
        self._source_watched = False
        self._taken: Sequence[NewJob] = ()
        """Jobs of a source that are not yet in the store."""
        self._arrays: dict[int, int] = {}
        """Ids of the arrays whose tasks were submitted."""
        self._feed_after = 0.0
        self._to_announce: Job | None = None
        """A job of the run that asked for a notification."""
        self._runtime = EngineRuntime(setup, self._happened)
        self.engine = self._runtime.engine
        self.store = self._runtime.store
        try:
            self._start()
        except BaseException:
            self._runtime.close()
            raise

    def _start(self) -> None:
        setup, paths = self.setup, self.setup.paths
        self.batch = self.store.add_batch(setup.label, self.started)
        self._resumer: Resumer | None = None
        if setup.resume:
            self._resumer = Resumer(paths, self.store, self.engine, self.batch, redo=setup.redo)
        else:
            adopt_gone(paths, self.store, self.engine)
        self._runtime.sweep()
        self._signals = self._runtime.keep(SignalSocket())
        self.engine.watch(self._signals, self._signalled)
        if paths.note:
            self._view.say(paths.note)

    def close(self) -> None:
        """Close everything; running jobs go on."""
        self._runtime.close()

    # -- the loop --------------------------------------------------------------------------------

    def run(self, source: Source) -> None:
        """Run until the source is exhausted and all jobs are over, or until the user stops it."""
        gc.freeze()  # modules stay for good: the collector need not look through them again and again
        while not self._finished(source):
            ready = self._wants_jobs(source) and not self._watch(source)
            if ready or self._taken:
                self._feed(source)
            self.engine.turn(self._timeout(source, ready=ready))
            self._runtime.publish()
            self._view.refresh(self)
        self._announce()

    def _announce(self) -> None:
        """Start the notification that jobs asked for, and wait a little; its worker goes on without this engine."""
        job, engine = self._to_announce, self.engine
        if job is None or engine.draining:
            return
        new = AfterBatch(self.batch, job.id, notification(self.setup.paths, job))
        with contextlib.suppress(StokerError):  # the store cannot be written, which `engine.trouble` has told
            self.store.follow(FollowUps(engine.name, (), engine.now, after_batches=[new]))
            engine.wake()
            deadline = time.monotonic() + NOTIFICATION_PATIENCE
            while not engine.idle and time.monotonic() < deadline:
                engine.turn(0.1)

    def _timeout(self, source: Source, *, ready: bool) -> float | None:
        """Seconds after which the turn must end for the source or the view."""
        if self._taken:
            return max(0.0, self._feed_after - time.monotonic())
        return 0.0 if ready and not source.exhausted else self._view.interval

    def _finished(self, source: Source) -> bool:
        if self.engine.draining:
            return self.engine.at_rest
        over = source.exhausted and not self._taken and self.engine.idle
        return over and not self._reclaimed()

    def _reclaimed(self) -> bool:
        """Whether a run has died meanwhile that had jobs of our list in hand, which are now ours."""
        if self._resumer is None or not self._resumer.reclaim(self.tally):
            return False
        self.tally.expected = self.tally.given + self.tally.unusable
        return True

    def _wants_jobs(self, source: Source) -> bool:
        room = self.engine.waiting < FULL and not self._taken
        return room and not source.exhausted and not self.engine.draining

    def _watch(self, source: Source) -> bool:
        """Let the engine watch the source; False if that cannot be watched because it is always ready."""
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
        if not self._wants_jobs(source) and not self._taken:
            self._unwatch(source)
            return
        if not self._taken:
            taken = source.take(CHUNK)
            self._taken = self._resumer.unfinished(taken, self.tally) if self._resumer else taken
        self._submit()
        if source.exhausted:
            self.tally.expected = self.tally.given + self.tally.unusable
            self._unwatch(source)

    def _submit(self) -> None:
        """Put the taken jobs into the store; if that cannot be written, keep them and try again later."""
        if not self._taken or time.monotonic() < self._feed_after:
            return
        try:
            arrays = dict(self._arrays)
            self.store.add_jobs(self.batch, self.engine.name, self._taken, self.engine.now, arrays=arrays)
        except StokerError as error:
            self.engine.trouble = str(error)
            self._feed_after = time.monotonic() + RETRY_INTERVAL
            return
        if self._feed_after:
            self._feed_after, self.engine.trouble = 0.0, ""
        self._arrays = arrays
        self.tally.given += len(self._taken)
        self._taken = ()
        self.engine.wake()

    # -- events and signals -----------------------------------------------------------------------

    def _happened(self, job_event: JobEvent) -> None:
        if job_event.job.batch != self.batch:
            return
        self.tally.note(job_event)
        if job_event.job.spec.notify:
            self._to_announce = job_event.job
        self._view.happened(job_event)
        halt = self.setup.halt
        if halt is not None and not self.engine.draining and halt.reached(self.tally):
            self._view.say("stopping (--halt); continue the rest later with --resume")
            if halt.now:
                self.engine.stop(None, "stopped by --halt")
            else:
                self.engine.drain()

    def _signalled(self) -> None:
        for signal_number in self._signals.received():
            match signal_number:
                case signal.SIGUSR1:
                    self._view.say(self.status())
                case signal.SIGHUP if not self.setup.hangup_stops:
                    self._wind_down(signal_number, "hung up")
                case signal.SIGINT:
                    self._interrupted(signal_number, self._interrupts + 1)
                case signal.SIGTERM | signal.SIGHUP:
                    self._interrupted(signal_number, max(2, self._interrupts + 1))

    def watch_reader(self, pipe: int) -> None:
        """Start no more jobs once the reader has closed the pipe; this counts as SIGPIPE."""

        def leave() -> None:
            self.engine.unwatch(pipe)
            self._wind_down(signal.SIGPIPE, "the reader of the output is gone")

        self.engine.watch(pipe, leave)  # the end that is written to is never readable, but reports an error

    def _wind_down(self, signal_number: signal.Signals, why: str) -> None:
        self.stopped_by = self.stopped_by or signal_number
        self._view.say(f"{why}: starting no more jobs, waiting for the running ones")
        self.engine.drain()

    def _interrupted(self, signal_number: signal.Signals, stage: int) -> None:
        self._interrupts = stage
        (self.setup.interrupted or by_stages)(self, signal_number, stage)

    def say(self, text: str) -> None:
        """Show the user a message."""
        self._view.say(text)

    def process_of(self, job: Job) -> int | None:
        """The process of a running job, which leads a group of its own; None if it is not known."""
        return self.engine.process_of(job)

    def retire(self) -> None:
        """Ignore signals from now on."""
        self._signals.retire()

    def status(self) -> str:
        """The run in one line."""
        results = self.tally.results
        failed = self.tally.failed
        return (
            f"{self.tally.ended} of {self.tally.given} finished ({results['done']} ok, {failed} failed), "
            f"{len(self.engine.active_jobs)} running, {self.engine.waiting} waiting"
        )


def by_stages(run: Foreground, signal_number: signal.Signals, stage: int) -> None:
    """First let running jobs finish, then send TERM, then KILL."""
    run.stopped_by = signal_number
    running = len(run.engine.active_jobs)
    if stage == 1:
        run.engine.drain()
        if running:
            run.say(f"starting no more jobs; {running} running; press again to stop them")
    elif stage == 2:
        if running:
            run.say(f"stopping {running} (TERM, then KILL after the grace time); press again to kill at once")
        run.engine.stop(None, f"stopped by {signal_number.name}")
    elif stage == 3:
        run.engine.stop(0.0, f"killed by {signal_number.name}")
    else:
        raise KeyboardInterrupt  # a process cannot be killed, and the user wants to leave


PATIENCE = 2.0
"""Seconds after which a run in which nothing can start says why."""


class Complaints:
    """Tells the user once what keeps a run from going on, and again only when that changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said = ""
        self._stuck_since: float | None = None

    def check(self, run: Foreground) -> None:
        """Say what is wrong, if that is new."""
        engine, site = run.engine, run.engine.site.status()
        text = engine.trouble or site.snapshot.note or next(iter(site.warnings), "")
        if not text and engine.waiting and not engine.active_jobs and not engine.draining:
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
