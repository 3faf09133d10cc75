"""What `stoker run` does after its options are parsed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from stoker.app.control.engine_process import simulated_gpus
from stoker.app.jobs.config import cluster_site
from stoker.app.jobs.context import check_directory, context_here, current_user
from stoker.app.jobs.job_files import COMMAND_LINE, Lines, ListSource, ParsedJob, RejectedLine, StreamSource
from stoker.app.jobs.job_spec import spec_of
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.parent import Parent, find_parent, ledger_here
from stoker.app.jobs.preflight import Checkouts
from stoker.app.jobs.script import Script
from stoker.app.jobs.submit import RUNS, JobBuilder, new_log_directory
from stoker.app.views.engines import EngineStatuses
from stoker.app.views.facts import QueueFacts
from stoker.app.views.model import RunStatus
from stoker.app.views.processes import jobs_of_processes
from stoker.app.views.run import FinishedRun, Recent, run_result, run_status
from stoker.cli.commands.demo import Demonstration
from stoker.cli.console import is_written_pipe, say, tell
from stoker.cli.output_options import write_json
from stoker.cli.relay import Relay
from stoker.cli.screens.counts import terminal_width
from stoker.cli.screens.run_lines import FollowingView, LineView, QuietView, summary_lines
from stoker.cli.session import SessionView, end_by_signal
from stoker.core.device import resolve
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Exited, JobEvent, Lost
from stoker.core.launch import INHERIT, log_pattern
from stoker.core.planner.forecast import Forecast
from stoker.core.planner.queue import CPU_JOBS
from stoker.core.run_result import Tally, parse_halt
from stoker.core.settings import ClusterSettings, EngineSettings, Policy, policy_of
from stoker.core.spec import Command, Dependency, NewJob, digest_of
from stoker.core.text import shortened
from stoker.core.units import parse_duration
from stoker.devices.detect import NoDevices, detect, simulate
from stoker.devices.interface import Devices
from stoker.devices.mps.daemon import without_given
from stoker.engine.adoption import Supply
from stoker.engine.foreground import Complaints, Foreground, Setup, Source, View
from stoker.engine.status_writer import engine_status
from stoker.ledger import prepare_ledger
from stoker.runner.forkserver_client import Forkserver
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import Paths, find_paths
from stoker.store.queries import Owned
from stoker.store.writer import Store, open_store

if TYPE_CHECKING:
    from stoker.cli.screens.run import LiveView

Items = Sequence[ParsedJob | RejectedLine] | Lines
ONE_COMMAND = "--"
LONGEST_LABEL = 200
TIMED_OUT = 124
"""As timeout(1) has it."""
_ANY_LINE = ParsedJob(Command(("true",)), COMMAND_LINE)
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
    relay: Relay | None = None
    """The terminal of an interactive session."""
    idle: str | None = None
    """After how long a session without use is ended."""
    script: Script | None = None
    """Set where the command is a script."""
    typed: tuple[str, ...] = ()
    """The words after `stoker run`."""
    on_cluster: ClusterSettings | None = None
    """The cluster that `options` name; None is this machine."""

    @property
    def cluster(self) -> str:
        return str(self.options.cluster) if self.on_cluster else ""

    @property
    def simulation(self) -> str:
        """The simulated GPUs; empty for real ones."""
        return self.sim or ("4x24G" if self.demo else "")


class Batch:
    """The jobs of one run, and where their output goes."""

    def __init__(
        self,
        request: Request,
        label: str,
        items: Items,
        devices: Devices,
        paths: Paths,
        *,
        parent: str = "",
    ) -> None:
        """`parent` is the worker of the job that this process runs in."""
        self.request = request
        self.label = label
        self.items = items
        self.one_command = label == ONE_COMMAND
        self.policy = _policy(request)
        self.logs = ""
        # Inside a job that is a client of MPS, its children are clients of the same server.
        self.environment = dict(os.environ) if parent else without_given(os.environ)
        self.files = paths.share(request.cluster, Path(request.on_cluster.shared)) if request.on_cluster else paths
        """Where files of jobs go that their nodes have to see."""
        snapshot = devices.snapshot(time.time())
        context = context_here(
            **(request.script.context if request.script else {}),
            environment=digest_of(self.environment),
            default_out=os.devnull if not self.one_command else self._followed_log() or INHERIT,
            resolve=partial(resolve, snapshot),
            earlier=cache(partial(_earlier, paths)),
            commit=Checkouts(self.environment).commit,
            terminal=request.relay.terminal if request.relay else "",
            parent=parent,
        )
        command = request.script.copied(self.files) if request.script else None
        self.builder = JobBuilder(request.options, context, self.environment, say, policy=self.policy, command=command)
        self.builder.snapshot = snapshot

    def _followed_log(self) -> str:
        """The log of one command on a cluster, which is shown here as it grows; empty on this machine."""
        return log_pattern(self.files.logs) if self.request.cluster else ""

    @property
    def what(self) -> str:
        """What runs, as other users see it in the ledger."""
        words = [item.command.text for item in self.listed] if self.one_command else []
        return shortened(" ".join(["stoker run", self.label, *words]), LONGEST_LABEL)

    @property
    def listed(self) -> list[ParsedJob]:
        """The jobs that are known from the start; those of a stream are not."""
        return [] if isinstance(self.items, Lines) else [item for item in self.items if isinstance(item, ParsedJob)]

    def check(self) -> None:
        """Refuse what cannot be understood or can never run, before anything has started."""
        spec = spec_of(self.request.options, self.builder.context)
        if self.request.options.chdir:
            check_directory(spec.cwd)
        specs = self.builder.check(self.listed or [_ANY_LINE])
        if any(each.cluster != self.request.cluster for each in specs):
            raise UsageError("a run has one place for all its jobs", "give -M to the run; stoker submit takes several")
        if self.request.cluster and any(INHERIT in (each.out, each.err) for each in specs):
            raise UsageError("-o - is this terminal, which no node has", "name a file")

    def make_log_directory(self, paths: Paths) -> None:
        """Make it before anything starts, so that a directory that cannot be written is refused at once."""
        if self.request.cluster:
            self.files.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.one_command or self.request.options.out:
            return
        try:
            chosen = self._log_directory(paths)
        except OSError as error:
            raise UsageError(
                f"cannot create the log directory: {error.strerror}"
                + (f" ({error.filename})" if error.filename else ""),
                "choose another with --results DIR",
            ) from error
        if not os.access(chosen, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write to the log directory {chosen}", "choose another with --results DIR")
        self.logs = str(chosen)
        self.builder.know(self.builder.snapshot, default_out=log_pattern(chosen, label=True))

    def _log_directory(self, paths: Paths) -> Path:
        """--results may name an existing directory; otherwise it is a new one."""
        cwd = self.builder.context.cwd
        if self.request.results:
            chosen = Path(cwd, self.request.results)
            chosen.mkdir(parents=True, exist_ok=True)
            return chosen
        return new_log_directory(paths.logs if self.request.demo else Path(cwd, RUNS))

    def logs_kept(self) -> str:
        """The log directory as a user would type it; an empty one that was made for this run is removed."""
        if self.logs and not self.request.results:
            with contextlib.suppress(OSError):
                Path(self.logs).rmdir()
                return ""
        near = os.path.relpath(self.logs, self.builder.context.cwd) if self.logs else ""
        return self.logs if near.startswith("..") else near

    def keep(self, store: Store, paths: Paths) -> None:
        """Store the environment and the script that the jobs refer to."""
        with store.writing():
            store.add_environment(self.environment)
            if self.request.script:
                self.request.script.keep(self.files)

    def jobs(self) -> list[NewJob]:
        """All jobs at once, for a dry run; a stream is read to its end."""
        lines = self.items
        read = [*lines.feed(sys.stdin.buffer.read()), *lines.end()] if isinstance(lines, Lines) else self.listed
        return [self.builder.make(item) for item in read if isinstance(item, ParsedJob)]

    def source(self, foreground: Foreground, view: View) -> Source:
        """The jobs as the run takes them."""

        def refuse(item: RejectedLine) -> None:
            foreground.tally.unusable += 1
            view.say(f"{item.where} is left out: {item.sentence}")

        self.builder.preflight.say = view.say
        if isinstance(self.items, Lines):
            return StreamSource(sys.stdin.fileno(), self.items, self.builder.make, refuse)
        foreground.tally.expected = len(self.items)
        return ListSource(self.items, self.builder.make, refuse)

    def shares_output(self) -> bool:
        """Whether a job writes to the terminal of this process."""
        if self.request.relay:
            return False
        all_options = [self.request.options, *(item.options for item in self.listed)]
        if self.request.cluster:
            return False
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
    from stoker.app.jobs.select import resolve_after

    with contextlib.closing(open_store(paths)) as store:
        return resolve_after(store, text)


HEADER = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"


class JobLog:
    """Appends to a file in GNU parallel's format; one write per line, so that a crash leaves whole lines."""

    def __init__(self, path: str) -> None:
        self._host = socket.gethostname()
        try:
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - open until close()
            if os.fstat(self._file.fileno()).st_size == 0:
                self._file.write(HEADER.encode())
        except OSError as error:
            raise UsageError(f"cannot write the job log {path}: {error.strerror}", "give another --joblog") from error

    def note(self, job_event: JobEvent) -> None:
        """Write the line of an attempt that ended."""
        job, event, size = job_event.job, job_event.event, 0
        if not isinstance(event, Exited | Lost):
            return
        started = event.at if job_event.started is None else job_event.started
        number = signal.SIGKILL if isinstance(event, Lost) else event.signal  # a lost worker counts as killed
        code = 0 if number or isinstance(event, Lost) else event.code
        with contextlib.suppress(OSError):
            size = os.stat(job_event.log).st_size if job_event.log != INHERIT else 0
        command = job.command.text.replace("\n", " ").replace("\t", " ")
        ran = f"{event.at - started:10.3f}"
        fields = [job.id, self._host, f"{started:.3f}", ran, 0, size, code, int(number), command]
        self._file.write(("\t".join(map(str, fields)) + "\n").encode(errors="surrogateescape"))

    def close(self) -> None:
        self._file.close()


def run(request: Request, label: str, items: Items, forkserver: Forkserver | None = None) -> int:
    """Run the jobs and return the exit code."""
    paths = find_paths(os.environ, socket.gethostname(), simulated=bool(request.simulation))
    request = msgspec.structs.replace(request, sim=simulated_gpus(request.sim, paths))
    parent = find_parent(os.environ, simulated=bool(request.simulation)) if not request.demo else None
    if parent:
        request = msgspec.structs.replace(request, settings=parent.restrict(request.settings))
    devices = _find_devices(request, items, paths, parent)
    with contextlib.closing(devices):
        batch = Batch(request, label, items, devices, paths, parent=parent.worker if parent else "")
        batch.check()
        if request.dry_run:
            return _show_plan(batch, paths, devices)
        return _run_batch(batch, paths, devices, parent, forkserver)


def _show_plan(batch: Batch, paths: Paths, devices: Devices) -> int:
    from stoker.app.jobs.dry_run import plan_run
    from stoker.cli.screens.dry_run import show_run_plan

    with contextlib.closing(open_store(paths)) as store:
        succeeded = Supply(store.times_done).spend if batch.request.resume else lambda _: False
        planned = plan_run(batch.jobs(), succeeded, devices.snapshot(time.time()), batch.policy, store)
        return show_run_plan(planned, as_json=batch.request.as_json)


def _run_batch(
    batch: Batch, paths: Paths, devices: Devices, parent: Parent | None, forkserver: Forkserver | None
) -> int:
    request = batch.request
    batch.make_log_directory(paths)
    # Simulated GPUs are private, unless STOKER_LEDGER names a ledger to share them.
    private = request.simulation and not parent and not os.environ.get("STOKER_LEDGER")
    setup = Setup(
        paths=paths,
        site=cluster_site(request.cluster, request.on_cluster)
        if request.on_cluster
        else MachineConfig(
            ledger=prepare_ledger(paths.state / "ledger") if private else ledger_here(parent),
            devices=devices,
            user=current_user(),
            within=parent.worker if parent else "",
            share_output=batch.shares_output(),
            share_input=batch.one_command and _input_is_ours(),
            forkserver=forkserver,
        ),
        policy=batch.policy,
        label=batch.what,
        halt=parse_halt(request.halt) if request.halt else None,
        resume=request.resume,
        interrupted=end_by_signal if request.relay else None,
        hangup_stops=request.relay is not None,
    )
    with contextlib.ExitStack() as closing:
        joblog = closing.enter_context(contextlib.closing(JobLog(request.joblog))) if request.joblog else None
        shown = closing.enter_context(contextlib.closing(_view(batch, joblog)))
        demonstration = Demonstration(shown) if request.demo else None
        foreground = closing.enter_context(contextlib.closing(Foreground(setup, demonstration or shown)))
        batch.keep(foreground.store, paths)
        if isinstance(shown, SessionView):
            shown.attach(foreground)
        if isinstance(batch.items, Lines) and is_written_pipe(1):
            foreground.watch_reader(1)
        foreground.run(batch.source(foreground, shown))
        shown.close()
        if foreground.stopped_by is None and _is_empty(foreground.tally, batch):
            raise UsageError(f"there is no job in {batch.label}", "write one command on each line")
        _sum_up(foreground, batch, shown.ids)
        if demonstration and foreground.stopped_by is None:
            return demonstration.judge()
        return exit_code(foreground, one_command=batch.one_command)


def _input_is_ours() -> bool:
    """Whether a job may read standard input. In the background it would take the keys from the user's shell.

    The kernel does not prevent that: a job has a session of its own, so that terminal is not its controlling one.
    """
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # it is not our controlling terminal either, so no shell reads it
        return True


def _find_devices(request: Request, items: Items, paths: Paths, parent: Parent | None) -> Devices:
    now = time.time()
    if request.cluster:
        return NoDevices()
    pool = "" if request.simulation else request.settings.devices
    named = request.devices.split(",") if request.devices is not None else pool.split(",") if pool else []
    if request.devices is not None and not all(word.strip() for word in named):
        raise UsageError(f"--devices {request.devices!r} contains an empty name", "write it as --devices 0,1")
    if len({word.strip() for word in named}) < len(named):
        raise UsageError(f"--devices {','.join(named)} contains a device twice", "name each device once")
    if not all(word.isprintable() for word in named):
        raise UsageError(f"--devices {request.devices!r} contains an unprintable name", "use plainer names")
    if request.simulation and not parent:
        return simulate(request.simulation, str(paths.simulator), named, now)
    own = [item.options.gpus for item in items if isinstance(item, ParsedJob)] if not isinstance(items, Lines) else []
    wanted = [request.options.gpus if gpus is None else gpus for gpus in own] or [request.options.gpus]
    if not named and all(gpus == 0 for gpus in wanted):
        return NoDevices()
    return parent.devices(named) if parent else detect(named, now)


class RunView:
    """Passes job events to a display and to the job log, and says why nothing starts."""

    def __init__(self, display: LineView | LiveView, batch: Batch | None = None, joblog: JobLog | None = None) -> None:
        expected = len(batch.items) if batch and not isinstance(batch.items, Lines) else None
        self.interval = display.interval
        self.say = display.say
        self.close = display.close
        self.ids: dict[int, None] = {}
        """The jobs of the run, if they are needed in the end."""
        self._keep_ids = batch is not None and batch.request.as_json
        self._display = display
        self._joblog = joblog
        self._reader = RunReader(expected, batch.logs if batch else "")
        self._complaints = Complaints(display.say)

    def happened(self, job_event: JobEvent) -> None:
        if self._keep_ids:
            self.ids[job_event.job.id] = None
        if self._joblog is not None:
            try:
                self._joblog.note(job_event)
            except OSError as error:  # the jobs go on without it
                self.say(f"cannot write the job log any more: {error.strerror}")
                self._joblog = None
        self._display.happened(job_event)

    def refresh(self, run: Foreground) -> None:
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
        facts = QueueFacts(
            run.store,
            EngineStatuses(None, lives=False, runs=(engine_status(engine, run.started, self._forecast),)),
            time.time(),
            simulated=any(device.kind == "simulated" for device in snapshot.devices),
            active=[Owned(job, engine.name) for job in sorted(engine.held, key=lambda job: job.id)],
            jobs_by_process=self._processes[1],
        )
        return run_status(
            facts,
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


def exit_code(run: Foreground, *, one_command: bool) -> int:
    """The job's own code for one command, or 124 after its time limit.

    Of a list: 1 after a failure, or 128 + the signal that stopped the run.
    """
    last = run.tally.last_ended
    if one_command and last is not None and isinstance(last.state, Ended) and last.state.result == "timeout":
        return TIMED_OUT
    if one_command and last is not None and isinstance(last.state, Ended) and last.state.code is not None:
        return last.state.code
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    return 1 if run.tally.failed else 0


def _is_empty(tally: Tally, batch: Batch) -> bool:
    """Whether a file has no job; a stream may be empty."""
    given = tally.given or tally.skipped or tally.elsewhere or tally.unusable
    return not (given or batch.one_command or batch.label in ("-", "--demo"))


def _sum_up(foreground: Foreground, batch: Batch, ids: dict[int, None]) -> None:
    engine = foreground.engine
    run = FinishedRun(foreground.tally, foreground.store, engine.snapshot.devices, engine.waiting, foreground.started)
    if batch.request.as_json:
        write_json(run_result(run, sorted(ids)))
    elif batch.one_command and run.tally.skipped:
        say("already done; leave out --resume to run it again")
    elif not batch.one_command:
        logs = "stoker logs --sim" if batch.request.simulation else "stoker logs"
        logs = "" if batch.request.demo else logs  # its queue is removed
        typed = [word for word in batch.request.typed if word != "--resume"]
        # A stream cannot be read twice.
        again = "" if batch.label in ("-", "--demo") else shlex.join(["stoker", "run", "--resume", *typed])
        folder = "" if batch.request.demo else batch.logs_kept()
        width = terminal_width() if sys.stderr.isatty() else None
        for line in summary_lines(run, again, logs, folder, width):
            tell(line)


def _view(batch: Batch, joblog: JobLog | None) -> RunView | SessionView:
    request = batch.request
    if request.relay:
        return SessionView(request.relay, None if request.idle is None else parse_duration(request.idle))
    return RunView(_display(batch), batch, joblog)


def _display(batch: Batch) -> LineView | LiveView:
    """Live on a capable terminal that no job writes to, else a line for each event."""
    if batch.one_command:
        return FollowingView() if batch.request.cluster else QuietView()
    able = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    readable = sys.stderr.encoding.lower().startswith("utf")
    if not able or not readable or batch.request.no_bar or batch.shares_output():
        return LineView()
    from stoker.cli.screens.run import LiveView

    return LiveView()
