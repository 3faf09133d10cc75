"""Show a run in the foreground: its live display or lines, its job log, its summary."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker.app.control.engine_process import simulated_gpus
from stoker.app.jobs.job_files import JobLines
from stoker.app.jobs.run import ForegroundRequest, Items, PreparedRun, RunBatch, exit_code, prepared_run
from stoker.app.views.engines import EngineStatuses
from stoker.app.views.facts import QueueFacts, jobs_of_processes
from stoker.app.views.model import RunStatus
from stoker.app.views.run import FinishedRun, Recent, run_result, run_status
from stoker.cli.commands.demo import Demonstration
from stoker.cli.console import is_written_pipe, say, tell
from stoker.cli.options import write_json
from stoker.cli.relay import Relay
from stoker.cli.screens.counts import terminal_width
from stoker.cli.screens.run_lines import FollowingView, LineView, QuietView, summary_lines
from stoker.cli.session import SessionView, end_by_signal
from stoker.core.errors import UsageError
from stoker.core.job import Exited, JobEvent, Lost
from stoker.core.launch import INHERIT
from stoker.core.planner.forecast import Forecast
from stoker.core.units import parse_duration
from stoker.engine.foreground import Complaints, Foreground
from stoker.engine.status_writer import engine_status
from stoker.runner.forkserver_client import Forkserver
from stoker.store.paths import Paths
from stoker.store.queries import Owned

if TYPE_CHECKING:
    from stoker.cli.screens.run import LiveView


class RunOptions(ForegroundRequest, frozen=True, kw_only=True):
    """The options of `stoker run`."""

    paths: Paths
    joblog: str | None = None
    dry_run: bool = False
    as_json: bool = False
    no_bar: bool = False
    relay: Relay | None = None
    """The process that connects the terminal of an interactive session with that of the user."""
    idle: str | None = None
    """After how long a session without use is ended."""
    typed: tuple[str, ...] = ()
    """The words after `stoker run`."""


def run(request: RunOptions, label: str, items: Items, forkserver: Forkserver | None = None) -> int:
    """Run the jobs and return the exit code."""
    paths = msgspec.structs.replace(request.paths, gpus=simulated_gpus(request.paths))
    with prepared_run(request, label, items, paths, say) as prepared:
        if request.dry_run:
            from stoker.cli.screens.dry_run import show_run_plan

            return show_run_plan(prepared.plan(), as_json=request.as_json)
        return _run_batch(request, prepared, forkserver)


def _run_batch(request: RunOptions, prepared: PreparedRun, forkserver: Forkserver | None) -> int:
    batch = prepared.batch
    setup = prepared.setup(forkserver)
    if request.relay:
        setup = msgspec.structs.replace(setup, interrupted=end_by_signal)
    with contextlib.ExitStack() as closing:
        joblog = closing.enter_context(contextlib.closing(JobLog(request.joblog))) if request.joblog else None
        shown = closing.enter_context(contextlib.closing(_view(request, batch, joblog)))
        demonstration = Demonstration(shown) if request.demo else None
        foreground = closing.enter_context(contextlib.closing(Foreground(setup, demonstration or shown)))
        batch.keep(foreground.store)
        if isinstance(shown, SessionView):
            shown.attach(foreground)
        if isinstance(batch.items, JobLines) and is_written_pipe(1):
            foreground.watch_reader(1)
        foreground.run(batch.source(foreground, shown))
        shown.close()
        if foreground.stopped_by is None and batch.is_empty(foreground.tally):
            raise UsageError(f"there is no job in {batch.label}", "write one command on each line")
        _sum_up(request, foreground, batch, shown.ids)
        if demonstration and foreground.stopped_by is None:
            return demonstration.judge()
        return exit_code(foreground, one_command=batch.one_command)


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


class RunView:
    """Passes job events to a display and to the job log, and says why nothing starts."""

    def __init__(
        self,
        display: LineView | LiveView,
        batch: RunBatch | None = None,
        joblog: JobLog | None = None,
        *,
        keep_ids: bool = False,
    ) -> None:
        expected = len(batch.items) if batch and not isinstance(batch.items, JobLines) else None
        self.interval = display.interval
        self.say = display.say
        self.close = display.close
        self.ids: dict[int, None] = {}
        """The jobs of the run, if they are needed in the end."""
        self._keep_ids = keep_ids
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
            active=[Owned(job, engine.name) for job in sorted(engine.active_jobs, key=lambda job: job.id)],
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


def _sum_up(request: RunOptions, foreground: Foreground, batch: RunBatch, ids: dict[int, None]) -> None:
    engine = foreground.engine
    run = FinishedRun(foreground.tally, foreground.store, engine.snapshot.devices, engine.waiting, foreground.started)
    if request.as_json:
        write_json(run_result(run, sorted(ids)))
    elif batch.one_command and run.tally.skipped:
        say("already done; leave out --resume to run it again")
    elif not batch.one_command:
        logs = "stoker logs --sim" if request.paths.is_simulated else "stoker logs"
        logs = "" if request.demo else logs  # its queue is removed
        typed = [word for word in request.typed if word != "--resume"]
        # A stream cannot be read twice.
        again = "" if batch.label in ("-", "--demo") else shlex.join(["stoker", "run", "--resume", *typed])
        folder = "" if request.demo else batch.logs_kept()
        width = terminal_width() if sys.stderr.isatty() else None
        for line in summary_lines(run, again, logs, folder, width):
            tell(line)


def _view(request: RunOptions, batch: RunBatch, joblog: JobLog | None) -> RunView | SessionView:
    if request.relay:
        return SessionView(request.relay, None if request.idle is None else parse_duration(request.idle))
    return RunView(_display(request, batch), batch, joblog, keep_ids=request.as_json)


def _display(request: RunOptions, batch: RunBatch) -> LineView | LiveView:
    """Live on a capable terminal that no job writes to, else a line for each event."""
    if batch.one_command:
        return FollowingView() if request.cluster else QuietView()
    able = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    readable = sys.stderr.encoding.lower().startswith("utf")
    if not able or not readable or request.no_bar or batch.shares_output():
        return LineView()
    from stoker.cli.screens.run import LiveView

    return LiveView()
