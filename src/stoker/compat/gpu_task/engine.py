"""The process that runs the engine of a GPUTaskScheduler script."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from stoker.compat.foreground import ToolView, inherited_spec, tool_setup
from stoker.compat.gpu_task.folder import begin, finish, mark
from stoker.compat.gpu_task.process import SIGNALS, Failure, Instance, Message, Note, RunRequest, RunResult
from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Ended, Exited, JobEvent, Lost, Queued, Started
from stoker.core.launch import literal
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.core.text import outcome, printable
from stoker.devices.interface import Devices
from stoker.engine.foreground import Foreground, Setup, by_stages
from stoker.queue.job_files import Listed, ListSource
from stoker.queue.options import LONGEST_NAME, check_name
from stoker.queue.parent import declare_here
from stoker.runner.forkserver_client import Forkserver
from stoker.store.logs import last_line

NOT_STARTED = "not started; the next start() of its script runs it"

_ALL = 1_000_000_000

_KILLING_SECONDS = 1.0
"""Seconds after a kill in which further signals are ignored, so that the ends of killed instances are recorded."""

Send = Callable[[Message], None]


def main(forkserver: Forkserver) -> None:
    """Read a run request from standard input, and write messages to standard output."""
    send = _message_writer()
    try:
        request = pickle.load(sys.stdin.buffer)  # noqa: S301
        send(_run(request, forkserver, send))
    except StokerError as error:
        send(StokerError(error.message, error.hint))
    except OSError as error:
        send(StokerError(f"the system refuses: {error.strerror or error}"))
    except KeyboardInterrupt:
        send("something that runs cannot be killed; see stoker status")
        send(RunResult(stopped_by=signal.SIGINT))


def _message_writer() -> Send:
    """Take standard output for messages; all else that is printed here goes to standard error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(message: Message) -> None:
        with contextlib.suppress(OSError):  # the end of standard input tells that the script is gone
            pickle.dump(message, output)
            output.flush()

    return send


def _run(request: RunRequest, forkserver: Forkserver, send: Send) -> RunResult:
    view = InstanceView(send)
    with (
        contextlib.closing(declare_here(request.slots)) as devices,
        contextlib.closing(Foreground(_setup(request, devices, forkserver), view)) as run,
    ):
        _stop_with_script(run)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        spec = replace(inherited_spec(run), extra_env=(("PYTHONUNBUFFERED", "1"),))
        rounds = list(request.rounds)
        try:
            while rounds and not run.engine.draining:
                view.expect(rounds[0])
                run.run(_source(rounds.pop(0), spec))
            result = view.result(run, [instance.folder for instances in rounds for instance in instances])
            _withdraw(run)
        finally:
            run.retire()  # another Ctrl-C while we leave must not change the result
        return result


def _setup(request: RunRequest, devices: Devices, forkserver: Forkserver) -> Setup:
    return replace(
        tool_setup(devices, request.label, forkserver=forkserver),
        resume=True,
        redo=True,  # the folders show what is done
        interrupted=_interruption(),
    )


def _interruption() -> Callable[[Foreground, signal.Signals, int], None]:
    """As for any run, but further signals right after a kill do not leave before its end."""
    ignored_until = 0.0

    def interrupted(run: Foreground, number: signal.Signals, stage: int) -> None:
        nonlocal ignored_until
        if stage <= 3 or time.monotonic() > ignored_until:
            ignored_until = time.monotonic() + _KILLING_SECONDS
            by_stages(run, number, stage)

    return interrupted


def _stop_with_script(run: Foreground) -> None:
    """Standard input ends when the script does."""

    def stop() -> None:
        run.engine.unwatch(sys.stdin)
        by_stages(run, signal.SIGTERM, 2)

    run.engine.watch(sys.stdin, stop)


def _withdraw(run: Foreground) -> None:
    """Cancel jobs that were not started: the script would submit them a second time."""
    for job in run.store.open_jobs(run.engine.name, 0, _ALL):
        if isinstance(job.state, Queued):
            run.engine.cancel(job.id, None, NOT_STARTED)


def _source(instances: Sequence[Instance], spec: JobSpec) -> ListSource:
    jobs = {
        instance.words: NewJob(Command(instance.words), replace(spec, out=literal(instance.log)), _name(instance.text))
        for instance in instances
    }
    listed = [Listed(job.command, "") for job in jobs.values()]
    return ListSource(listed, lambda item: jobs[item.command.words], lambda item: None)


def _name(text: str) -> str:
    """A valid job name; the beginning of a long one."""
    try:
        check_name(text[:LONGEST_NAME])
    except StokerError:
        return f"task {text}".replace("\0", "")[:LONGEST_NAME]
    return text[:LONGEST_NAME]


class InstanceView(ToolView):
    """Prepares and settles the folders of instances, and sends what happens to the script."""

    def __init__(self, send: Send) -> None:
        super().__init__(lambda text: send(printable(text)))
        self._send = send
        self._instances: dict[tuple[str, ...], Instance] = {}
        """Those of the round, by their commands."""
        self._silent: dict[str, None] = {}
        """Folders of instances without an event."""
        self._received: set[int] = set()
        """Jobs whose start is in the log."""
        self._failures: list[Failure] = []
        self._elsewhere: list[str] = []

    def expect(self, instances: Sequence[Instance]) -> None:
        """Begin a round. Instances of the last one without an event belong to another scheduler."""
        self._elsewhere += self._silent
        self._instances = {instance.words: instance for instance in instances}
        self._silent = dict.fromkeys(instance.folder for instance in instances)

    def happened(self, job_event: JobEvent) -> None:
        """At an assignment, the folder is created before the worker opens the log in it."""
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

    def result(self, run: Foreground, not_begun: Sequence[str]) -> RunResult:
        """`not_begun` are the folders of later rounds."""
        silent = (*self._silent, *not_begun)
        stopped = run.engine.draining
        return RunResult(
            failures=tuple(self._failures),
            left=silent if stopped else (),
            elsewhere=(*self._elsewhere, *(() if stopped else silent)),
            stopped_by=run.stopped_by or 0,
        )

    def _receive(self, job_event: JobEvent, instance: Instance, at: float) -> None:
        self._received.add(job_event.job.id)
        self._silent.pop(instance.folder, None)
        self._send(Note(at, _slot(job_event), "receives", instance))

    def _end(self, job_event: JobEvent, instance: Instance, state: Ended) -> None:
        self._silent.pop(instance.folder, None)
        if isinstance(job_event.event, Exited | Lost):
            if job_event.job.id not in self._received:  # an engine that died had started it
                self._receive(job_event, instance, state.at if job_event.started is None else job_event.started)
            self._send(Note(state.at, _slot(job_event), "finishes", instance))
            # Its process has done so, unless it was killed at the last moment or did not exit the usual way.
            with contextlib.suppress(OSError):  # the user removed the folder, so it will run again anyway
                (finish if state.result == "done" else mark)(instance.folder)
        if state.result != "done":
            log = job_event.log or instance.log
            said = state.note or last_line(log)
            self._failures.append(Failure(instance.text, instance.folder, outcome(state), log, said))


def _slot(job_event: JobEvent) -> str:
    return job_event.devices[0].label if job_event.devices else ""


def _prepare(instance: Instance, log: str) -> None:
    """Create the folder with its marker, and empty the log; if that fails, the worker reports why."""
    with contextlib.suppress(OSError):
        begin(instance.folder)
    with contextlib.suppress(OSError):
        os.truncate(log, 0)
