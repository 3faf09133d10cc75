"""What `stoker run` does once its words are understood: set up, run, sum up."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import time

from stoker.backends.forking import Forkserver
from stoker.changes import Happening
from stoker.cli.foreground.batch import Batch, Items, Request
from stoker.cli.foreground.demo import Demonstration
from stoker.cli.foreground.joblog import JobLog
from stoker.cli.foreground.lines import LineView, QuietView
from stoker.cli.foreground.summary import run_result, summary_lines
from stoker.core.errors import UsageError
from stoker.core.job import Ended
from stoker.devices.detect import NoDevices, detect, simulate
from stoker.devices.kind import Devices
from stoker.foreground import Foreground, Setup, View
from stoker.joblist import Lines, Listed
from stoker.ledger import find_ledger, prepare_ledger
from stoker.mps.environment import without_given
from stoker.places import Places, find_places
from stoker.queue import open_store
from stoker.resume import Supply
from stoker.streams import to_stderr
from stoker.tally import parse_halt
from stoker.words import printable


def run(request: Request, label: str, items: Items, forkserver: Forkserver | None = None) -> int:
    """Run the jobs and return the exit code."""
    if request.jobs is not None and request.jobs < 1:
        raise UsageError(f"-j {request.jobs} lets nothing run", "give -j 1 or more")
    if request.max_use is not None and request.max_use < 1:
        raise UsageError(f"--max-use {request.max_use} lets nothing run", "give --max-use 1 or more")
    if request.min_free is not None and request.min_free < 0:
        raise UsageError(f"--min-free {request.min_free} is less than none", "give --min-free 0 or more")
    places = find_places(os.environ, socket.gethostname(), simulated=bool(request.simulation))
    devices = _find_devices(request, items, places)
    with contextlib.closing(devices):
        batch = Batch(request, label, devices, places)
        batch.check(items)
        if request.dry_run:
            return _show_plan(batch, items, places, devices)
        return _run_batch(batch, items, places, devices, forkserver)


def _show_plan(batch: Batch, items: Items, places: Places, devices: Devices) -> int:
    from stoker.cli.foreground.dry_run import show_plan

    with contextlib.closing(open_store(places)) as store:
        succeeded = Supply(store.times_done).spend if batch.request.resume else lambda _: False
        jobs = batch.jobs_of(items)
        return show_plan(batch.policy(), devices, jobs, succeeded, as_json=batch.request.as_json)


def _run_batch(batch: Batch, items: Items, places: Places, devices: Devices, forkserver: Forkserver | None) -> int:
    request = batch.request
    batch.make_log_directory(places)
    setup = Setup(
        places=places,
        ledger=prepare_ledger(places.state / "ledger") if _private_ledger(request) else find_ledger(os.environ),
        devices=devices,
        policy=batch.policy(),
        user=batch.user,
        label=f"stoker run {batch.label}",
        share_output=batch.shares_output(items),
        halt=parse_halt(request.halt) if request.halt else None,
        resume=request.resume,
        forkserver=forkserver,
    )
    with contextlib.ExitStack() as closing:
        view = closing.enter_context(contextlib.closing(_view(batch, items)))
        recorder = Recorder(view, _joblog(request, closing), keep_ids=request.as_json)
        foreground = closing.enter_context(contextlib.closing(Foreground(setup, recorder)))
        batch.settle(foreground.store.add_environment(without_given(os.environ)))
        if request.options.vram and not any(device.memory for device in foreground.engine.snapshot.devices):
            view.say("the memory of these devices is not known, so each runs one job at a time")
        foreground.run(batch.source(items, foreground, view))
        view.close()
        _sum_up(foreground, batch, recorder.ids)
        if isinstance(view, Demonstration) and foreground.stopped_by is None:
            return _judge(view)
        return exit_code(foreground, one_command=batch.one_command)


def _private_ledger(request: Request) -> bool:
    """Simulated GPUs are the user's own, unless a ledger is named to share them."""
    return bool(request.simulation) and not os.environ.get("STOKER_LEDGER")


def _joblog(request: Request, closing: contextlib.ExitStack) -> JobLog | None:
    if not request.joblog:
        return None
    return closing.enter_context(contextlib.closing(JobLog(request.joblog, socket.gethostname())))


def _find_devices(request: Request, items: Items, places: Places) -> Devices:
    now = time.time()
    pool = "" if request.simulation else request.settings.devices
    named = request.devices.split(",") if request.devices is not None else pool.split(",") if pool else []
    if request.devices is not None and not all(word.strip() for word in named):
        raise UsageError(f"--devices {request.devices!r} has an empty name in it", "write it as --devices 0,1")
    if not all(word.isprintable() for word in named):
        raise UsageError(f"--devices {request.devices!r} has a name that cannot be shown", "use plainer names")
    if request.simulation:
        return simulate(request.simulation, str(places.simulator), named, now)
    own = [item.options.gpus for item in items if isinstance(item, Listed)] if not isinstance(items, Lines) else []
    wanted = [request.options.gpus if gpus is None else gpus for gpus in own] or [request.options.gpus]
    if not named and all(gpus == 0 for gpus in wanted):
        return NoDevices()
    return detect(named, now)


class Recorder:
    """Passes a run's news on to the view, and to the job log where there is one."""

    def __init__(self, view: View, joblog: JobLog | None, *, keep_ids: bool) -> None:
        self._view = view
        self._joblog = joblog
        self._keep_ids = keep_ids
        self.interval = view.interval
        self.ids: dict[int, None] = {}

    def happened(self, happening: Happening) -> None:
        """Tell everybody."""
        if self._keep_ids:
            self.ids[happening.job.id] = None
        if self._joblog is not None:
            try:
                self._joblog.note(happening)
            except OSError as error:  # the jobs matter more than their list
                self._view.say(f"the job log cannot be written any more: {error.strerror}")
                self._joblog = None
        self._view.happened(happening)

    def refresh(self, run: Foreground) -> None:
        """Only the view draws."""
        self._view.refresh(run)

    def say(self, text: str) -> None:
        """Only the view speaks."""
        self._view.say(text)

    def close(self) -> None:
        """The view is closed by whoever made it."""


def exit_code(run: Foreground, *, one_command: bool) -> int:
    """The job's own code for one command; else 1 where something failed, or by the signal that stopped us."""
    last = run.tally.last_ended
    if one_command and last is not None and isinstance(last.state, Ended) and last.state.code is not None:
        return last.state.code
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    return 1 if run.tally.failed else 0


def _sum_up(run: Foreground, batch: Batch, ids: dict[int, None]) -> None:
    if batch.request.as_json:
        import msgspec

        sys.stdout.write(msgspec.json.encode(run_result(run, sorted(ids))).decode() + "\n")
    elif batch.one_command and run.tally.skipped:
        to_stderr("stoker: this command succeeded here before; leave out --resume to run it again\n")
    elif not batch.one_command:
        logs = "stoker logs --sim" if batch.request.simulation else "stoker logs"
        for line in summary_lines(run, _again(batch), logs):
            to_stderr(line + "\n")


def _again(batch: Batch) -> str:
    """What to type to run what is missing; a stream cannot be read twice."""
    if batch.label in ("-", "--demo"):
        return ""
    typed = [word for word in batch.request.typed if word != "--resume"]
    return printable(shlex.join(["stoker", "run", "--resume", *typed]))


def _judge(demonstration: Demonstration) -> int:
    differences = demonstration.differences()
    for difference in differences:
        to_stderr(f"stoker: not as the demonstration should go: {difference}\n")
    if not differences:
        to_stderr("stoker: everything went as the demonstration should, failures included\n")
    return 1 if differences else 0


def _view(batch: Batch, items: Items) -> View:
    if batch.one_command:
        return QuietView()
    view = _live_view(batch, items) if _can_draw(batch, items) else LineView()
    return Demonstration(view) if batch.request.demo else view


def _can_draw(batch: Batch, items: Items) -> bool:
    """Whether there is a terminal that can be drawn on, and no job writes to it as well."""
    able = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    readable = sys.stderr.encoding.lower().startswith("utf")
    return able and readable and not batch.request.no_bar and not batch.shares_output(items)


def _live_view(batch: Batch, items: Items) -> View:
    from stoker.cli.foreground.live import LiveView

    return LiveView(expected=None if isinstance(items, Lines) else len(items), logs=batch.logs)
