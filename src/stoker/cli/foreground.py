"""What `stoker run` does after its options are parsed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from stoker.cli.commands.demo import Demonstration
from stoker.cli.console import say, to_stderr
from stoker.cli.views.run_lines import LineView, QuietView, summary_lines
from stoker.core.device import resolve
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Exited, JobEvent, Lost
from stoker.core.launch import INHERIT, log_pattern
from stoker.core.planner.forecast import Forecast
from stoker.core.planner.queue import CPU_JOBS
from stoker.core.run_result import parse_halt
from stoker.core.settings import EngineSettings, Policy, policy_of
from stoker.core.spec import Command, Dependency, NewJob, digest_of
from stoker.core.text import printable
from stoker.devices.detect import NoDevices, detect, simulate
from stoker.devices.interface import Devices
from stoker.devices.mps.daemon import without_given
from stoker.engine.adoption import Supply
from stoker.engine.foreground import Complaints, Foreground, Setup, Source, View
from stoker.engine.status_writer import engine_status
from stoker.ledger import find_ledger, prepare_ledger
from stoker.queue.job_files import COMMAND_LINE, Lines, Listed, ListSource, StreamSource, Unusable
from stoker.queue.knowledge import EngineStatuses, Knowledge, jobs_of_processes
from stoker.queue.options import (
    JobOptions,
    Surroundings,
    check_directory,
    current_umask,
    current_user,
    spec_of,
    working_directory,
)
from stoker.queue.preflight import Checkouts
from stoker.queue.run_view import FinishedRun, Recent, run_result, run_status
from stoker.queue.script import Script
from stoker.queue.submit import RUNS, JobBuilder, new_log_directory
from stoker.queue.view_model import RunStatus
from stoker.runner.forkserver_client import Forkserver
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import Paths, find_paths
from stoker.store.queries import Owned
from stoker.store.writer import Store, open_store

Items = Sequence[Listed | Unusable] | Lines

ONE_COMMAND = "--"

_ANY_LINE = Listed(Command(("true",)), COMMAND_LINE)
"""Stands for the lines of a stream, which all have the options of the batch."""


class Request(Struct, frozen=True):
    """The options of `stoker run`."""

    options: JobOptions
    settings: EngineSettings = EngineSettings()
    """Configured for all engines of this user."""
    devices: str | None = None
    sim: str | None = None
    jobs: int | None = None
    max_use: int | None = None
    min_free: int | None = None
    halt: str | None = None
    resume: bool = False
    results: str | None = None
    joblog: str | None = None
    dry_run: bool = False
    as_json: bool = False
    no_bar: bool = False
    demo: bool = False
    script: Script | None = None
    """Set where the command is a script."""
    typed: tuple[str, ...] = ()
    """The words after `stoker run`."""

    @property
    def simulation(self) -> str:
        """The simulated GPUs; empty for real ones."""
        return self.sim or ("4x24G" if self.demo else "")


class Batch:
    """The jobs of one run, and where their output goes."""

    def __init__(self, request: Request, label: str, items: Items, devices: Devices, paths: Paths) -> None:
        self.request = request
        self.label = label
        self.items = items
        self.one_command = label == ONE_COMMAND
        self.policy = _policy(request)
        self.logs = ""
        self.environment = without_given(os.environ)
        snapshot = devices.snapshot(time.time())
        around = Surroundings(
            cwd=working_directory(),
            umask=current_umask(),
            environment=digest_of(self.environment),
            default_out=INHERIT if self.one_command else os.devnull,
            resolve=partial(resolve, snapshot),
            earlier=cache(partial(_earlier, paths)),
            commit=Checkouts(self.environment).commit,
            now=time.time(),
        )
        command = request.script.copied(paths) if request.script else None
        self.builder = JobBuilder(request.options, around, self.environment, say, policy=self.policy, command=command)
        self.builder.snapshot = snapshot

    @property
    def listed(self) -> list[Listed]:
        """The jobs that are known from the start; those of a stream are not."""
        return [] if isinstance(self.items, Lines) else [item for item in self.items if isinstance(item, Listed)]

    def check(self) -> None:
        """Refuse what cannot be understood or can never run, before anything has started."""
        spec = spec_of(self.request.options, self.builder.around)
        if self.request.options.chdir:
            check_directory(spec.cwd)
        self.builder.check(self.listed or [_ANY_LINE])

    def make_log_directory(self, paths: Paths) -> None:
        """Make it before anything starts, so that a directory that cannot be written is refused at once."""
        if self.one_command or self.request.options.out:
            return
        try:
            chosen = self._log_directory(paths)
        except OSError as error:
            raise UsageError(
                f"cannot make the log directory: {error.strerror}" + (f" ({error.filename})" if error.filename else ""),
                "choose another with --results DIR",
            ) from error
        if not os.access(chosen, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write to the log directory {chosen}", "choose another with --results DIR")
        self.logs = str(chosen)
        self.builder.know(self.builder.snapshot, default_out=log_pattern(chosen))

    def _log_directory(self, paths: Paths) -> Path:
        """--results may name an existing directory; otherwise it is a new one."""
        cwd = self.builder.around.cwd
        if self.request.results:
            chosen = Path(cwd, self.request.results)
            chosen.mkdir(parents=True, exist_ok=True)
            return chosen
        return new_log_directory(paths.logs if self.request.demo else Path(cwd, RUNS))

    def keep(self, store: Store, paths: Paths) -> None:
        """Store the environment and the script that the jobs refer to."""
        with store.writing():
            store.add_environment(self.environment)
            if self.request.script:
                self.request.script.keep(paths)

    def jobs(self) -> list[NewJob]:
        """All jobs at once, for a dry run; a stream is read to its end."""
        lines = self.items
        read = [*lines.feed(sys.stdin.buffer.read()), *lines.end()] if isinstance(lines, Lines) else self.listed
        return [self.builder.make(item) for item in read if isinstance(item, Listed)]

    def source(self, foreground: Foreground, view: View) -> Source:
        """The jobs as the run takes them."""

        def refuse(item: Unusable) -> None:
            foreground.tally.unusable += 1
            view.say(f"{item.where} is left out: {item.sentence}")

        self.builder.preflight.say = view.say
        if isinstance(self.items, Lines):
            return StreamSource(sys.stdin.fileno(), self.items, self.builder.make, refuse)
        foreground.tally.expected = len(self.items)
        return ListSource(self.items, self.builder.make, refuse)

    def shares_output(self) -> bool:
        """Whether a job writes to the terminal of this process."""
        all_options = [self.request.options, *(item.options for item in self.listed)]
        named = any(INHERIT in (options.out, options.err) for options in all_options)
        return named or (self.one_command and not self.request.options.out)


def _policy(request: Request) -> Policy:
    configured = policy_of(request.settings, os.cpu_count() or 1)
    # -j counts jobs without GPU too.
    limits = dict(configured.limits) if request.jobs is None else {**configured.limits, CPU_JOBS.name: request.jobs}
    return msgspec.structs.replace(
        configured,
        max_running=request.jobs,
        max_use=configured.max_use if request.max_use is None else request.max_use,
        min_free=configured.min_free if request.min_free is None else request.min_free,
        limits=limits,
    )


def _earlier(paths: Paths, text: str) -> tuple[Dependency, ...]:
    from stoker.queue.select import resolve_after

    with contextlib.closing(open_store(paths)) as store:
        return resolve_after(store, text)


HEADER = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"


class JobLog:
    """Appends to a file in GNU parallel's format; one write per line, so that a crash leaves whole lines."""

    def __init__(self, path: str, host: str) -> None:
        self._host = host
        try:
            self._file = _open(path)
        except OSError as error:
            raise UsageError(f"cannot write the job log {path}: {error.strerror}", "give another --joblog") from error

    def note(self, job_event: JobEvent) -> None:
        """Write the line of an attempt that ended."""
        event = job_event.event
        if not isinstance(event, Exited | Lost):
            return
        job = job_event.job
        started = event.at if job_event.started is None else job_event.started
        code, number = _ending(event)
        command = job.command.text.replace("\n", " ").replace("\t", " ")
        ran = f"{event.at - started:10.3f}"
        fields = [job.id, self._host, f"{started:.3f}", ran, 0, _size(job_event.log), code, number, command]
        os.write(self._file, ("\t".join(map(str, fields)) + "\n").encode(errors="surrogateescape"))

    def close(self) -> None:
        os.close(self._file)


def _open(path: str) -> int:
    """Open the file; a new one gets the header."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        if os.fstat(file).st_size == 0:
            os.write(file, HEADER.encode())
    except OSError:
        os.close(file)
        raise
    return file


def _size(log: str) -> int:
    if not log or log == INHERIT:
        return 0
    try:
        return os.stat(log).st_size
    except OSError:
        return 0


def _ending(event: Exited | Lost) -> tuple[int, int]:
    """Exit value and signal as in GNU parallel; a lost worker counts as SIGKILL."""
    if isinstance(event, Lost):
        return 0, signal.SIGKILL
    return (0, event.signal) if event.signal else (event.code, 0)


def run(request: Request, label: str, items: Items, forkserver: Forkserver | None = None) -> int:
    """Run the jobs and return the exit code."""
    if request.jobs is not None and request.jobs < 1:
        raise UsageError(f"-j {request.jobs} lets nothing run", "give -j 1 or more")
    if request.max_use is not None and request.max_use < 1:
        raise UsageError(f"--max-use {request.max_use} lets nothing run", "give --max-use 1 or more")
    if request.min_free is not None and request.min_free < 0:
        raise UsageError(f"--min-free {request.min_free} is less than none", "give --min-free 0 or more")
    paths = find_paths(os.environ, socket.gethostname(), simulated=bool(request.simulation))
    devices = _find_devices(request, items, paths)
    with contextlib.closing(devices):
        batch = Batch(request, label, items, devices, paths)
        batch.check()
        if request.dry_run:
            return _show_plan(batch, paths, devices)
        return _run_batch(batch, paths, devices, forkserver)


def _show_plan(batch: Batch, paths: Paths, devices: Devices) -> int:
    from stoker.cli.views.dry_run import show_run_plan
    from stoker.queue.dry_run import plan_run

    with contextlib.closing(open_store(paths)) as store:
        succeeded = Supply(store.times_done).spend if batch.request.resume else lambda _: False
        planned = plan_run(batch.jobs(), succeeded, devices.snapshot(time.time()), batch.policy, store)
        return show_run_plan(planned, as_json=batch.request.as_json)


def _run_batch(batch: Batch, paths: Paths, devices: Devices, forkserver: Forkserver | None) -> int:
    request = batch.request
    batch.make_log_directory(paths)
    setup = Setup(
        paths=paths,
        site=MachineConfig(
            ledger=prepare_ledger(paths.state / "ledger") if _private_ledger(request) else find_ledger(os.environ),
            devices=devices,
            user=current_user(),
            share_output=batch.shares_output(),
            forkserver=forkserver,
        ),
        policy=batch.policy,
        label=f"stoker run {batch.label}",
        halt=parse_halt(request.halt) if request.halt else None,
        resume=request.resume,
    )
    with contextlib.ExitStack() as closing:
        view = closing.enter_context(contextlib.closing(_view(batch)))
        recorder = Recorder(view, _joblog(request, closing), keep_ids=request.as_json)
        foreground = closing.enter_context(contextlib.closing(Foreground(setup, recorder)))
        batch.keep(foreground.store, paths)
        foreground.run(batch.source(foreground, view))
        view.close()
        _sum_up(foreground, batch, recorder.ids)
        if isinstance(view, Demonstration) and foreground.stopped_by is None:
            return _judge(view)
        return exit_code(foreground, one_command=batch.one_command)


def _private_ledger(request: Request) -> bool:
    """Simulated GPUs are private, unless STOKER_LEDGER names a ledger to share them."""
    return bool(request.simulation) and not os.environ.get("STOKER_LEDGER")


def _joblog(request: Request, closing: contextlib.ExitStack) -> JobLog | None:
    if not request.joblog:
        return None
    return closing.enter_context(contextlib.closing(JobLog(request.joblog, socket.gethostname())))


def _find_devices(request: Request, items: Items, paths: Paths) -> Devices:
    now = time.time()
    pool = "" if request.simulation else request.settings.devices
    named = request.devices.split(",") if request.devices is not None else pool.split(",") if pool else []
    if request.devices is not None and not all(word.strip() for word in named):
        raise UsageError(f"--devices {request.devices!r} has an empty name in it", "write it as --devices 0,1")
    if not all(word.isprintable() for word in named):
        raise UsageError(f"--devices {request.devices!r} has a name that cannot be shown", "use plainer names")
    if request.simulation:
        return simulate(request.simulation, str(paths.simulator), named, now)
    own = [item.options.gpus for item in items if isinstance(item, Listed)] if not isinstance(items, Lines) else []
    wanted = [request.options.gpus if gpus is None else gpus for gpus in own] or [request.options.gpus]
    if not named and all(gpus == 0 for gpus in wanted):
        return NoDevices()
    return detect(named, now)


class Display(Protocol):
    """Shows a run: line by line, or live."""

    interval: float | None

    def happened(self, job_event: JobEvent) -> None: ...

    def refresh(self, read: Callable[[Recent], RunStatus]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class Displayed:
    """Connects a run to a display, and says why nothing starts."""

    def __init__(self, display: Display, *, expected: int | None = None, logs: str = "") -> None:
        self.interval = display.interval
        self.happened = display.happened
        self.say = display.say
        self.close = display.close
        self._display = display
        self._reader = RunReader(expected, logs)
        self._complaints = Complaints(display.say)

    def refresh(self, run: Foreground) -> None:
        """Let the display read the run, if it wants to."""
        self._display.refresh(partial(self._reader.read, run))
        self._complaints.check(run)


class RunReader:
    """Reads a running engine into the data of the live display; `expected` is the number of jobs, if known."""

    def __init__(self, expected: int | None, logs: str) -> None:
        self._expected = expected
        self._logs = logs
        self._forecast = Forecast()
        self._forecast_due = 0.0
        self._processes: tuple[float, dict[int, int | None]] = (-1.0, {})

    def read(self, run: Foreground, recent: Recent) -> RunStatus:
        """The run now."""
        engine, snapshot = run.engine, run.engine.snapshot
        self._look_ahead(run)
        if self._processes[0] != snapshot.at:
            shown = (process.pid for reading in snapshot.readings.values() for process in reading.processes)
            self._processes = snapshot.at, jobs_of_processes(shown)
        knowledge = Knowledge(
            run.store,
            EngineStatuses(None, lives=False, runs=(engine_status(engine, run.started, self._forecast),)),
            time.time(),
            simulated=any(device.kind == "simulated" for device in snapshot.devices),
            active=[Owned(job, engine.name) for job in sorted(engine.held, key=lambda job: job.id)],
            jobs_by_process=self._processes[1],
        )
        return run_status(
            knowledge,
            run.tally,
            recent,
            next_job=engine.next_waiting,
            seen_at=snapshot.at,
            expected=self._expected,
            logs=self._logs,
        )

    def _look_ahead(self, run: Foreground) -> None:
        """Forecast once a second; a forecast costs dozens of plans, so it never takes more than 2 % of the time."""
        began = time.monotonic()
        if began >= self._forecast_due:
            self._forecast = run.engine.site.forecast(run.tally.typical_seconds)
            self._forecast_due = began + max(1.0, 50 * (time.monotonic() - began))


class Recorder:
    """Passes job events to the view and to the job log."""

    def __init__(self, view: View, joblog: JobLog | None, *, keep_ids: bool) -> None:
        self._view = view
        self._joblog = joblog
        self._keep_ids = keep_ids
        self.interval = view.interval
        self.ids: dict[int, None] = {}

    def happened(self, job_event: JobEvent) -> None:
        if self._keep_ids:
            self.ids[job_event.job.id] = None
        if self._joblog is not None:
            try:
                self._joblog.note(job_event)
            except OSError as error:  # the jobs go on without it
                self._view.say(f"the job log cannot be written any more: {error.strerror}")
                self._joblog = None
        self._view.happened(job_event)

    def refresh(self, run: Foreground) -> None:
        self._view.refresh(run)

    def say(self, text: str) -> None:
        self._view.say(text)

    def close(self) -> None:
        """Nothing: the run closes the view itself."""


def exit_code(run: Foreground, *, one_command: bool) -> int:
    """The job's own code for one command; else 1 after a failure, or 128 + the signal that stopped the run."""
    last = run.tally.last_ended
    if one_command and last is not None and isinstance(last.state, Ended) and last.state.code is not None:
        return last.state.code
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    return 1 if run.tally.failed else 0


def _sum_up(foreground: Foreground, batch: Batch, ids: dict[int, None]) -> None:
    engine = foreground.engine
    run = FinishedRun(foreground.tally, foreground.store, engine.snapshot.devices, engine.waiting, foreground.started)
    if batch.request.as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(run_result(run, sorted(ids))).decode() + "\n")
    elif batch.one_command and run.tally.skipped:
        say("this command succeeded here before; leave out --resume to run it again")
    elif not batch.one_command:
        logs = "stoker logs --sim" if batch.request.simulation else "stoker logs"
        for line in summary_lines(run, _again(batch), logs):
            to_stderr(line + "\n")


def _again(batch: Batch) -> str:
    """The command line that runs the rest; empty for a stream, which cannot be read twice."""
    if batch.label in ("-", "--demo"):
        return ""
    typed = [word for word in batch.request.typed if word != "--resume"]
    return printable(shlex.join(["stoker", "run", "--resume", *typed]))


def _judge(demonstration: Demonstration) -> int:
    differences = demonstration.differences()
    for difference in differences:
        say(f"not as the demonstration should go: {difference}")
    if not differences:
        say("everything went as the demonstration should, failures included")
    return 1 if differences else 0


def _view(batch: Batch) -> View:
    if batch.one_command:
        return Displayed(QuietView())
    view = _live_view(batch) if _can_draw(batch) else Displayed(LineView())
    return Demonstration(view) if batch.request.demo else view


def _can_draw(batch: Batch) -> bool:
    """Whether the live display has a capable terminal that no job writes to."""
    able = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    readable = sys.stderr.encoding.lower().startswith("utf")
    return able and readable and not batch.request.no_bar and not batch.shares_output()


def _live_view(batch: Batch) -> View:
    from stoker.cli.views.run_live import LiveView

    expected = None if isinstance(batch.items, Lines) else len(batch.items)
    return Displayed(LiveView(), expected=expected, logs=batch.logs)
