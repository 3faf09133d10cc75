"""The process that runs the engine of a GPUTaskScheduler script."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from stoker.app.jobs.config import cluster_site, load_config
from stoker.app.jobs.job_files import ListSource, ParsedJob
from stoker.app.jobs.option_values import LONGEST_NAME, check_name
from stoker.app.jobs.parent import declare_here
from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Ended, Exited, JobEvent, Lost, Started
from stoker.core.launch import literal
from stoker.core.settings import Policy
from stoker.core.spec import Command, NewJob, Resources
from stoker.core.text import outcome, printable
from stoker.devices.interface import Devices
from stoker.engine.foreground import Foreground, Setup, by_stages
from stoker.features.compat.foreground import ToolView, inherited_spec, tool_setup, withdraw
from stoker.features.compat.gpu_task.instance import begin, finish, mark
from stoker.features.compat.gpu_task.process import (
    SIGNALS,
    Instance,
    InstanceFailure,
    InstanceRequest,
    InstanceResult,
    Message,
    Note,
)
from stoker.runner.forkserver_client import Forkserver
from stoker.store.logs import last_line

NOT_STARTED = "not started; the next start() of its script runs it"

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
        send(StokerError(f"{error.strerror or error}"))
    except KeyboardInterrupt:
        send("a running process cannot be killed; see stoker status")
        send(InstanceResult(stopped_by=signal.SIGINT))


def _message_writer() -> Send:
    """Take standard output for messages; all else that is printed here goes to standard error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def send(message: Message) -> None:
        with contextlib.suppress(OSError):  # the end of standard input tells that the script is gone
            pickle.dump(message, output)
            output.flush()

    return send


def _run(request: InstanceRequest, forkserver: Forkserver, send: Send) -> InstanceResult:
    view = InstanceView(request.instances, send)
    shared = _shared_folders(request.instances)
    with (
        contextlib.closing(declare_here(request.slots)) as devices,
        contextlib.closing(Foreground(_setup(request, devices, forkserver, shared), view)) as run,
    ):
        _stop_with_script(run)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        run.run(_source(request, shared, run))
        result = view.result(run)
        withdraw(run, NOT_STARTED)  # the script would submit it a second time
        return result


def _shared_folders(instances: Sequence[Instance]) -> dict[str, int]:
    """Limits for groups of instances with the same folder, which run one after the other."""
    counts = Counter(instance.folder for instance in instances)
    return {f"group {folder}": 1 for folder, count in counts.items() if count > 1}


def _setup(request: InstanceRequest, devices: Devices, forkserver: Forkserver, limits: Mapping[str, int]) -> Setup:
    setup = tool_setup(devices, request.label, forkserver=forkserver)
    if request.cluster:
        settings = load_config(os.environ, None).cluster(request.cluster)
        setup = replace(setup, site=cluster_site(request.cluster, settings))
    return replace(
        setup,
        policy=Policy(limits=limits),
        resume=True,
        redo=True,  # the folders show what is done
        interrupted=_interruption(),
    )


def _interruption() -> Callable[[Foreground, signal.Signals, int], None]:
    """As for any run, but further signals right after a kill do not leave before its end."""
    ignored_until = 0.0

    def interrupted(run: Foreground, signal_number: signal.Signals, stage: int) -> None:
        nonlocal ignored_until
        if stage <= 3 or time.monotonic() > ignored_until:
            ignored_until = time.monotonic() + _KILLING_SECONDS
            by_stages(run, signal_number, stage)

    return interrupted


def _stop_with_script(run: Foreground) -> None:
    """Standard input ends when the script does."""

    def stop() -> None:
        run.engine.unwatch(sys.stdin)
        by_stages(run, signal.SIGTERM, 2)

    run.engine.watch(sys.stdin, stop)


def _source(request: InstanceRequest, shared: Mapping[str, int], run: Foreground) -> ListSource:
    spec = replace(inherited_spec(run), extra_env=(("PYTHONUNBUFFERED", "1"),), cluster=request.cluster)
    if request.cluster:
        spec = replace(spec, resources=Resources(gpus=len(request.slots[0].split(","))))
    by_command = {instance.words: instance for instance in request.instances}

    def job(item: ParsedJob) -> NewJob:
        instance = by_command[item.command.words]
        group = instance.folder if f"group {instance.folder}" in shared else ""
        return NewJob(item.command, replace(spec, out=literal(instance.log), group=group), _name(instance.text))

    return ListSource([ParsedJob(Command(words), "") for words in by_command], job, lambda item: None)


def _name(text: str) -> str:
    """A valid job name; the beginning of a long one."""
    try:
        check_name(text[:LONGEST_NAME])
    except StokerError:
        return f"task {text}".replace("\0", "")[:LONGEST_NAME]
    return text[:LONGEST_NAME]


class InstanceView(ToolView):
    """Prepares and finishes the folders of instances, and tells the script what happens."""

    def __init__(self, instances: Sequence[Instance], send: Send) -> None:
        super().__init__(lambda text: send(printable(text)))
        self._send = send
        self._instances = {instance.words: instance for instance in instances}
        self._silent = dict(self._instances)
        """Those without an event."""
        self._received: set[int] = set()
        """Jobs whose start is in the log."""
        self._failures: list[InstanceFailure] = []

    def happened(self, job_event: JobEvent) -> None:
        """At an assignment, the folder is created before the worker opens the log in it."""
        job, event = job_event.job, job_event.event
        instance = self._instances.get(job.command.words)
        if instance is None:
            return
        if isinstance(job.state, Ended):
            self._end(job_event, instance, job.state)
        elif isinstance(event, Assigned):
            _prepare(instance, event.log)
        elif isinstance(event, Started):
            self._receive(job_event, instance, event.at)
        elif isinstance(event, Lost):
            self._received.discard(job.id)
            self.say(f"the worker of task {instance.text} was killed; retrying")

    def result(self, run: Foreground) -> InstanceResult:
        """Instances without an event were not started, or another scheduler has them."""
        silent, none = tuple(self._silent.values()), ()
        left, elsewhere = (silent, none) if run.engine.draining else (none, silent)
        return InstanceResult(tuple(self._failures), left, elsewhere, run.stopped_by or 0)

    def _receive(self, job_event: JobEvent, instance: Instance, at: float) -> None:
        self._received.add(job_event.job.id)
        self._silent.pop(instance.words, None)
        self._send(Note(at, _slot(job_event), "receives", instance))

    def _end(self, job_event: JobEvent, instance: Instance, state: Ended) -> None:
        self._silent.pop(instance.words, None)
        if isinstance(job_event.event, Exited | Lost):
            if job_event.job.id not in self._received:  # an engine that died had started it
                self._receive(job_event, instance, state.at if job_event.started is None else job_event.started)
            self._send(Note(state.at, _slot(job_event), "finishes", instance))
            # Its process has done so, unless it was killed at the last moment or did not exit the usual way.
            with contextlib.suppress(OSError):  # the user removed the folder, so it will run again anyway
                (finish if state.result == "done" else mark)(instance.folder)
        if state.result != "done":
            log = job_event.log or instance.log
            reason = state.note or last_line(log)
            self._failures.append(InstanceFailure(instance.text, instance.folder, outcome(state), log, reason))


def _slot(job_event: JobEvent) -> str:
    return job_event.devices[0].label if job_event.devices else ""


def _prepare(instance: Instance, log: str) -> None:
    """Create the folder with its marker, and empty the log; if that fails, the worker reports why."""
    with contextlib.suppress(OSError):
        begin(instance.folder)
    with contextlib.suppress(OSError):
        os.truncate(log, 0)
