"""What `stoker run` does once its words are understood: set up, run, sum up."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time

from stoker.changes import Happening
from stoker.cli.batch import Batch, Items, Request
from stoker.cli.joblog import JobLog
from stoker.cli.lines import LineView, QuietView
from stoker.cli.summary import run_result, summary_lines
from stoker.core.errors import UsageError
from stoker.devices.detect import NoDevices, detect, simulate
from stoker.devices.kind import Devices
from stoker.foreground import Foreground, Setup, View
from stoker.joblist import Lines, Listed
from stoker.ledger import find_ledger, prepare_ledger
from stoker.places import Places, find_places
from stoker.tally import parse_halt


def run(request: Request, label: str, items: Items) -> int:
    """Run the jobs and return the exit code."""
    if request.jobs is not None and request.jobs < 1:
        raise UsageError(f"-j {request.jobs} lets nothing run", "give -j 1 or more")
    places = find_places(os.environ, socket.gethostname(), simulated=bool(request.simulation))
    devices = _find_devices(request, items, places)
    with contextlib.closing(devices):
        batch = Batch(request, label, devices)
        batch.check(items)
        if request.dry_run:
            from stoker.cli.dry_run import show_plan

            return show_plan(batch.policy(), devices, batch.jobs_of(items))
        return _run_batch(batch, items, places, devices)


def _run_batch(batch: Batch, items: Items, places: Places, devices: Devices) -> int:
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
    )
    with contextlib.ExitStack() as closing:
        view = closing.enter_context(contextlib.closing(_view(batch)))
        recorder = Recorder(view, _joblog(request, closing), keep_ids=request.as_json)
        foreground = closing.enter_context(contextlib.closing(Foreground(setup, recorder)))
        batch.settle(foreground.store.add_environment(os.environ))
        foreground.run(batch.source(items, foreground, view))
        closing.callback(_sum_up, foreground, batch, recorder.ids)
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
    named = request.devices.split(",") if request.devices is not None else []
    if request.devices is not None and not all(word.strip() for word in named):
        raise UsageError(f"--devices {request.devices!r} has an empty name in it", "write it as --devices 0,1")
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
            self._joblog.note(happening)
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
    from stoker.core.job import Ended

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
    elif not batch.one_command:
        again = f"stoker run --resume {batch.label}" if batch.label not in ("-", "--demo") else ""
        for line in summary_lines(run, again):
            print(line, file=sys.stderr)


def _view(batch: Batch) -> View:
    if batch.one_command:
        return QuietView()
    return LineView()
