"""The process that runs the instances of one GPUTaskScheduler: an engine of its own, like that of any run.

It is apart from the user's script so that the script may call it from any thread, hold any memory and have any
library loaded; and so that nothing runs on when the script is gone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from stoker.backends.forking import Forkserver
from stoker.compat.gpu_task.errand import SIGNALS, Ending, Errand, Instance, Message, Refusal
from stoker.compat.gpu_task.view import Watcher
from stoker.core.errors import StokerError
from stoker.core.job import Queued
from stoker.core.policy import Policy
from stoker.core.submission import NewJob
from stoker.core.terms import Command, Terms
from stoker.devices.detect import declare
from stoker.devices.kind import Devices
from stoker.foreground import Foreground, Setup, by_stages
from stoker.ledger import find_ledger
from stoker.options import LONGEST_NAME, check_name, current_umask, current_user
from stoker.places import find_places

NOT_STARTED = "not started; the next start() of its script runs it"
_ALL = 1_000_000_000
_KILLING_SECONDS = 1.0
"""For how long after a kill further signals change nothing: what is left half-way would end in the next run."""


def main(forkserver: Forkserver) -> None:
    """Do what standard input says, and tell standard output how it goes."""
    tell = _voice()
    try:
        errand = pickle.load(sys.stdin.buffer)  # noqa: S301
        tell(_run(errand, forkserver, tell))
    except StokerError as error:
        tell(Refusal(error.message, error.hint))
    except OSError as error:
        tell(Refusal(f"the system refuses: {error.strerror or error}", ""))
    except KeyboardInterrupt:
        tell("something that runs cannot be killed; see stoker status")
        tell(Ending((), (), (), signal.SIGINT))


def _voice() -> Callable[[Message], None]:
    """Whatever else is printed here goes to standard error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def tell(message: Message) -> None:
        with contextlib.suppress(OSError):  # a scheduler that is gone is noticed in another way
            pickle.dump(message, output)
            output.flush()

    return tell


def _run(errand: Errand, forkserver: Forkserver, tell: Callable[[Message], None]) -> Ending:
    watcher = Watcher(tell)
    with (
        contextlib.closing(declare(errand.slots)) as devices,
        contextlib.closing(Foreground(_setup(errand, devices, forkserver), watcher)) as run,
    ):
        _tie_to_scheduler(run)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        terms = _terms(run)
        rounds = list(errand.rounds)
        try:
            while rounds and not run.engine.draining:
                watcher.expect(rounds[0])
                run.run(Instances(rounds.pop(0), terms))
            ending = watcher.ending(run, [instance.folder for instances in rounds for instance in instances])
            _withdraw(run)
        finally:
            run.retire()  # one more Ctrl-C while we leave does not change what is told
        return ending


def _setup(errand: Errand, devices: Devices, forkserver: Forkserver) -> Setup:
    return Setup(
        places=find_places(os.environ, socket.gethostname(), simulated=False),
        ledger=find_ledger(os.environ),
        devices=devices,
        policy=Policy(),
        user=current_user(),
        label=errand.label,
        resume=True,
        interrupted=_interruption(),
        redo=True,  # the folders say what is done
        forkserver=forkserver,
    )


def _interruption() -> Callable[[Foreground, signal.Signals, int], None]:
    """As for any run, but whoever presses again and again waits for the end of what was killed."""
    patience_ends = 0.0

    def interrupted(run: Foreground, number: signal.Signals, stage: int) -> None:
        nonlocal patience_ends
        if stage <= 3 or time.monotonic() > patience_ends:
            patience_ends = time.monotonic() + _KILLING_SECONDS
            by_stages(run, number, stage)

    return interrupted


def _terms(run: Foreground) -> Terms:
    return Terms(
        cwd=os.getcwd(),
        environment=run.store.add_environment(os.environ),
        extra_env=(("PYTHONUNBUFFERED", "1"),),
        umask=current_umask(),
    )


def _tie_to_scheduler(run: Foreground) -> None:
    """Stop everything when standard input ends: the process that wants it is gone."""

    def gone() -> None:
        run.engine.unwatch(sys.stdin)
        by_stages(run, signal.SIGTERM, 2)

    run.engine.watch(sys.stdin, gone)


def _withdraw(run: Foreground) -> None:
    """Take what was not started out of the queue: the script knows it, and would hand it in a second time."""
    for job in run.store.open_jobs(run.engine.name, 0, _ALL):
        if isinstance(job.state, Queued):
            run.engine.cancel(job.id, None, NOT_STARTED)


class Instances:
    """The instances of a round, as the run takes them."""

    def __init__(self, instances: Sequence[Instance], terms: Terms) -> None:
        self._left = iter(instances)
        self._terms = terms
        self.exhausted = not instances

    def fileno(self) -> int:
        """They are at hand."""
        return -1

    def take(self, limit: int) -> Sequence[NewJob]:
        """The next of them."""
        jobs = [self._job(instance) for _, instance in zip(range(limit), self._left, strict=False)]
        self.exhausted = len(jobs) < limit
        return jobs

    def _job(self, instance: Instance) -> NewJob:
        terms = msgspec.structs.replace(self._terms, out=instance.log.replace("%", "%%"))
        return NewJob(Command(instance.words), terms, _name(instance.text))


def _name(text: str) -> str:
    """A name by which a job can be called; of very long ones the beginning must do."""
    try:
        check_name(text[:LONGEST_NAME])
    except StokerError:
        return f"task {text}".replace("\0", "")[:LONGEST_NAME]
    return text[:LONGEST_NAME]
