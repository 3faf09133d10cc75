"""The process that runs the engine of a GPUTaskScheduler script."""

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

from stoker.compat.gpu_task.folder import begin, finish, mark
from stoker.compat.gpu_task.process import SIGNALS, Ending, Failure, Instance, Message, Note, Refusal, RunRequest
from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Ended, Exited, JobEvent, Lost, Queued, Started
from stoker.core.planner.policy import Policy
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.core.text import outcome, printable
from stoker.devices.detect import declare
from stoker.devices.interface import Devices
from stoker.engine.foreground import Complaints, Foreground, Setup, by_stages
from stoker.ledger import find_ledger
from stoker.queue.options import LONGEST_NAME, check_name, current_umask, current_user
from stoker.runner.forkserver_client import Forkserver
from stoker.sites.machine.site import MachineConfig
from stoker.store.logs import last_line
from stoker.store.paths import find_paths


class Watcher:
    """The view of a run of instances."""

    interval: float | None = None

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._complaints = Complaints(self.say)
        self._instances: dict[tuple[str, ...], Instance] = {}
        """Those of the round, by their commands."""
        self._unheard: dict[str, None] = {}
        """Folders of instances of which nothing has happened yet."""
        self._received: set[int] = set()
        """Jobs whose start is in the log."""
        self._failures: list[Failure] = []
        self._elsewhere: list[str] = []

    def expect(self, instances: Sequence[Instance]) -> None:
        """Another round begins; what was not heard of in the last one was in other hands."""
        self._elsewhere += self._unheard
        self._instances = {instance.words: instance for instance in instances}
        self._unheard = dict.fromkeys(instance.folder for instance in instances)

    def happened(self, job_event: JobEvent) -> None:
        """Called for an assignment before its worker hears of it, so that the folder is there for its log."""
        job, event = job_event.job, job_event.event
        instance = self._instances.get(job.command.words)
        if instance is None:
            return
        match event:
            case Assigned():
                _prepare(instance, event.log)
            case Started():
                self._receive(job_event, instance, event.at)
            case Lost():
                self._received.discard(job.id)
        if isinstance(job.state, Ended):
            self._end(job_event, instance, job.state)

    def refresh(self, run: Foreground) -> None:
        """Say once what keeps everything from starting."""
        self._complaints.check(run)

    def say(self, text: str) -> None:
        """A sentence to the person."""
        self._tell(printable(text))

    def close(self) -> None:
        """Nothing to undo."""

    def ending(self, run: Foreground, not_begun: Sequence[str]) -> Ending:
        """What became of all; the instances of rounds that were not begun are left too."""
        unheard = (*self._unheard, *not_begun)
        stopped = run.engine.draining
        return Ending(
            failures=tuple(self._failures),
            left=unheard if stopped else (),
            elsewhere=(*self._elsewhere, *(() if stopped else unheard)),
            stopped_by=run.stopped_by or 0,
        )

    def _receive(self, job_event: JobEvent, instance: Instance, at: float) -> None:
        self._received.add(job_event.job.id)
        self._unheard.pop(instance.folder, None)
        self._tell(Note(at, _slot(job_event), "receives", instance))

    def _end(self, job_event: JobEvent, instance: Instance, state: Ended) -> None:
        self._unheard.pop(instance.folder, None)
        if isinstance(job_event.event, Exited | Lost):
            if job_event.job.id not in self._received:  # started by an engine that died
                self._receive(job_event, instance, state.at if job_event.started is None else job_event.started)
            self._tell(Note(state.at, _slot(job_event), "finishes", instance))
            _settle(instance, done=state.result == "done")
        if state.result != "done":
            self._failures.append(_failure(instance, state, job_event.log))


def _slot(job_event: JobEvent) -> str:
    return job_event.devices[0].label if job_event.devices else ""


def _prepare(instance: Instance, log: str) -> None:
    """The folder with its marker, and an empty log; where that fails, the worker finds out and says why."""
    with contextlib.suppress(OSError):
        begin(instance.folder)
    with contextlib.suppress(OSError):
        os.truncate(log, 0)


def _settle(instance: Instance, *, done: bool) -> None:
    """Its own process has done so already, unless it ended at the very last moment or in a way of its own."""
    with contextlib.suppress(OSError):  # somebody removed the folder, and then it will be run again anyway
        (finish if done else mark)(instance.folder)


def _failure(instance: Instance, state: Ended, log: str) -> Failure:
    path = log or instance.log
    said = state.note or last_line(path)
    return Failure(instance.text, instance.folder, outcome(state), path, said)


NOT_STARTED = "not started; the next start() of its script runs it"

_ALL = 1_000_000_000

_KILLING_SECONDS = 1.0
"""For how long after a kill further signals change nothing: what is left half-way would end in the next run."""


def main(forkserver: Forkserver) -> None:
    """Do what standard input says, and tell standard output how it goes."""
    tell = _voice()
    try:
        run_request = pickle.load(sys.stdin.buffer)  # noqa: S301
        tell(_run(run_request, forkserver, tell))
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


def _run(run_request: RunRequest, forkserver: Forkserver, tell: Callable[[Message], None]) -> Ending:
    watcher = Watcher(tell)
    with (
        contextlib.closing(declare(run_request.slots)) as devices,
        contextlib.closing(Foreground(_setup(run_request, devices, forkserver), watcher)) as run,
    ):
        _tie_to_scheduler(run)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        spec = _spec(run)
        rounds = list(run_request.rounds)
        try:
            while rounds and not run.engine.draining:
                watcher.expect(rounds[0])
                run.run(Instances(rounds.pop(0), spec))
            ending = watcher.ending(run, [instance.folder for instances in rounds for instance in instances])
            _withdraw(run)
        finally:
            run.retire()  # one more Ctrl-C while we leave does not change what is told
        return ending


def _setup(run_request: RunRequest, devices: Devices, forkserver: Forkserver) -> Setup:
    return Setup(
        paths=find_paths(os.environ, socket.gethostname(), simulated=False),
        site=MachineConfig(ledger=find_ledger(os.environ), devices=devices, user=current_user(), forkserver=forkserver),
        policy=Policy(),
        label=run_request.label,
        resume=True,
        interrupted=_interruption(),
        redo=True,  # the folders say what is done
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


def _spec(run: Foreground) -> JobSpec:
    return JobSpec(
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

    def __init__(self, instances: Sequence[Instance], spec: JobSpec) -> None:
        self._left = iter(instances)
        self._spec = spec
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
        spec = msgspec.structs.replace(self._spec, out=instance.log.replace("%", "%%"))
        return NewJob(Command(instance.words), spec, _name(instance.text))


def _name(text: str) -> str:
    """A name by which a job can be called; of very long ones the beginning must do."""
    try:
        check_name(text[:LONGEST_NAME])
    except StokerError:
        return f"task {text}".replace("\0", "")[:LONGEST_NAME]
    return text[:LONGEST_NAME]
