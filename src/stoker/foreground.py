"""A foreground run: an engine held by this process for the jobs that only it was given."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from stoker.backends.local import LocalBackend
from stoker.changes import Happening
from stoker.core.errors import StokerError
from stoker.core.plan import Policy
from stoker.core.submission import NewJob
from stoker.devices.kind import Devices
from stoker.engine import RETRY_INTERVAL, Engine, Equipment, steady_clock
from stoker.ledger import Ledger
from stoker.places import Places
from stoker.queue import Presence, forgotten_keepers, open_store, sweep_locks
from stoker.resume import sieve
from stoker.signals import SignalSocket
from stoker.store import Store
from stoker.tally import Halt, Tally

FULL = 20_000
"""Waiting jobs at which a source is left alone for a while, so that an endless one cannot fill the memory."""
CHUNK = 500
"""Jobs taken from a list in one turn, so that what runs is not left waiting."""


class Closable(Protocol):
    """Anything that holds something."""

    def close(self) -> None:
        """Give it back."""


Resource = TypeVar("Resource", bound=Closable)


class View(Protocol):
    """Shows a run to a person."""

    interval: float | None
    """Seconds after which it wants to draw again, None for never."""

    def happened(self, happening: Happening) -> None:
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


@dataclass(frozen=True)
class Setup:
    """What a run is made of."""

    places: Places
    ledger: Path
    devices: Devices
    policy: Policy
    user: str
    label: str
    share_output: bool = False
    halt: Halt | None = None
    resume: bool = False


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
        self._feed_after = 0.0
        self._closing = contextlib.ExitStack()
        try:
            self._open()
        except BaseException:
            self._closing.close()
            raise

    def _open(self) -> None:
        """The keepers' forkserver comes first: it must not carry a copy of anything that follows."""
        places = self.setup.places
        presence = self._keep(Presence(places))
        backend = self._keep(LocalBackend(places.keepers, presence.name, share_output=self.setup.share_output))
        self.store: Store = self._keep(open_store(places))
        ledger = Ledger(self.setup.ledger)
        equipment = Equipment(self.store, ledger, self.setup.devices, backend, self.setup.user, steady_clock())
        self.engine = self._keep(
            Engine(presence.name, equipment, self.setup.policy, self._happened, label=self.setup.label)
        )
        self.batch = self.store.add_batch(self.setup.label, self.started)
        self._sieve = sieve(places, self.store, self.engine, self.batch, resume=self.setup.resume)
        sweep_locks(places, self.store)
        for keeper in forgotten_keepers(places, self.store):
            if backend.is_dead(keeper):
                backend.forget(keeper)
        self._signals = self._keep(SignalSocket())
        self.engine.watch(self._signals, self._signalled)
        if places.note:
            self._view.say(places.note)

    def _keep(self, resource: Resource) -> Resource:
        self._closing.callback(resource.close)
        return resource

    def close(self) -> None:
        """Give everything back; jobs that still run go on under their keepers."""
        with contextlib.suppress(StokerError):  # those whose last job was taken over by us own nothing any more
            sweep_locks(self.setup.places, self.store)
        self._closing.close()

    # -- the loop --------------------------------------------------------------------------------

    def run(self, source: Source) -> None:
        """Work until the source is exhausted and all is over, or until somebody stops it."""
        while not self._finished(source):
            at_hand = self._hungry(source) and not self._watch(source)
            if at_hand or self._taken:
                self._feed(source)
            self.engine.turn(self._patience(source, at_hand=at_hand))
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
            self.store.add_jobs(self.batch, self.engine.name, self._taken, self.engine.now)
        except StokerError as error:
            self.engine.trouble = f"{error.message}; {error.hint}"
            self._feed_after = time.monotonic() + RETRY_INTERVAL
            return
        self.tally.given += len(self._taken)
        self._taken = ()
        self.engine.poke()

    # -- what happens ----------------------------------------------------------------------------

    def _happened(self, happening: Happening) -> None:
        if happening.job.batch != self.batch:
            return
        self.tally.note(happening)
        self._view.happened(happening)
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
        """First let what runs finish, then ask it to end, then end it."""
        self._interrupts = stage
        self.stopped_by = number
        running = len(self.engine.held)
        if stage == 1:
            self.engine.drain()
            if running:
                self._view.say(f"starting nothing more; {running} running; press again to stop them")
        elif stage == 2:
            if running:
                self._view.say(f"stopping {running} (TERM, then KILL after the grace); once more kills at once")
            self.engine.stop(None, f"stopped by {number.name}")
        elif stage == 3:
            self.engine.stop(0.0, f"killed by {number.name}")
        else:
            raise KeyboardInterrupt  # something cannot be killed, and whoever presses again wants to leave

    def status(self) -> str:
        """The run in one line."""
        results = self.tally.results
        failed = self.tally.failed
        return (
            f"{self.tally.ended} of {self.tally.given} over ({results['done']} ok, {failed} failed), "
            f"{len(self.engine.held)} running, {self.engine.waiting} waiting"
        )
