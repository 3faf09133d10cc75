"""priority_scheduler: profile the tasks of a CSV file, then train them together as GPU memory allows."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from stoker.app.jobs.config import load_config
from stoker.app.jobs.context import SubmitContext, context_here, working_directory
from stoker.app.jobs.parent import Parent, find_parent
from stoker.app.jobs.submit import RUNS, new_log_directory
from stoker.core.device import resolve
from stoker.core.errors import Impossible, UsageError
from stoker.core.job import Ended, JobEvent, Lost
from stoker.core.settings import EngineSettings, Policy, policy_of
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.devices.detect import detect, simulate
from stoker.devices.interface import Devices
from stoker.devices.mps.daemon import PROGRAM as MPS_CONTROL
from stoker.engine.foreground import Foreground, Setup
from stoker.features.compat.foreground import ToolView, tool_setup, withdraw
from stoker.features.compat.priority_scheduler.stages import PROFILES, Batches, TaskJobs
from stoker.features.compat.priority_scheduler.task_file import TaskFile, TaskRows, Tickets, find_counter
from stoker.features.compat.tool import Parser, announce, run_tool, say
from stoker.store.paths import Paths, paths_for

PROGRAM = "priority_scheduler"
DEFAULT_FILE = "./scheduler_files/commands_1.csv"
DEFAULT_SIZE = 20
LARGEST_SIZE = 1_000_000
ANY_LOAD = 10**9
"""Percent: only memory limits how many tasks run on a GPU."""
PEAK_INTERVAL_SECONDS = 0.1
"""Seconds between two checks for the peak memory of profile runs."""
YES, NO = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0", "")

_EXAMPLES = """\
examples:
  priority_scheduler                            the tasks in ./scheduler_files/commands_1.csv, 20 at a time
  priority_scheduler -c tasks.csv -n 5          another file, 5 at a time
  priority_scheduler -c tasks.csv --keep        leave the file as it is

Ctrl-C lets running tasks finish, a second one stops them, a third kills them. What has not succeeded stays in the file.
"""


_say = partial(say, PROGRAM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tasks of the file, and return the exit code."""
    return run_tool(PROGRAM, lambda: _run(_parser().parse_args(arguments)))


# -- the command line ------------------------------------------------------------------------------


def _parser() -> Parser:
    description = (
        "Train the tasks of a CSV file (Directory, Executable, Filename, Epochs, Priority) together on the "
        "GPUs, as many at a time as their memory allows. A short profile run of each task measures it first."
    )
    parser = Parser(PROGRAM, description, _EXAMPLES)
    add, size_help = parser.add_argument, "tasks picked at a time, default 20"
    mps_help = "use NVIDIA MPS (Multi-Process Service), default yes"
    add("-c", "--csv", default=DEFAULT_FILE, metavar="FILE", help=f"path of the CSV file, default {DEFAULT_FILE}")
    add(
        "-n",
        "--num",
        type=partial(_whole, "a number of tasks", 1, LARGEST_SIZE),
        default=DEFAULT_SIZE,
        metavar="N",
        help=size_help,
    )
    add("--header", type=_header, default=0, metavar="ROW", help="row of the header, from 0; None if there is none")
    add("-m", "--mps", type=_decided, default=True, nargs="?", const=True, metavar="YES|NO", help=mps_help)
    add(
        *("--thread_percentage", "--threads_percentage"),
        dest="percentage",
        type=_percentage,
        metavar="PERCENT",
        help="limit of a GPU's threads for each task; only with MPS",
    )
    add("--keep", action="store_true", help="do not remove the rows of tasks that succeeded")
    return parser


def _header(text: str) -> int | None:
    if text.strip().lower() == "none":
        return None
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is neither the number of a row, counted from 0, nor None")
    return int(text)


def _decided(text: str) -> bool:
    word = text.strip().lower()
    if word not in YES + NO:
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no")
    return word in YES


def _percentage(text: str) -> int:
    return _whole("a percentage", 1, 100, text.strip().removesuffix("%"))


def _whole(what: str, least: int, most: int, text: str) -> int:
    if not text.isdecimal() or not least <= int(text[:12]) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {least} to {most}")
    return int(text)


# -- the run ---------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    file = TaskFile(options.csv, options.header)
    if not file.read():  # a file that cannot be parsed is refused before anything is opened
        _say(f"{file.name} contains no tasks")
        return 0
    if not options.keep and not os.access(file.path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{file.name} cannot be updated in place", "make its directory writable, or give --keep")
    paths = paths_for()
    kept = paths.tasklist(hashlib.sha256(os.fsencode(file.path)).hexdigest()[:16])
    parent = find_parent(os.environ, paths)
    settings = load_config(os.environ, None).engine
    settings = parent.restrict(settings) if parent else settings
    with contextlib.ExitStack() as closing:
        tickets = closing.enter_context(contextlib.closing(Tickets(kept.with_suffix(".tickets"), file.path)))
        devices = closing.enter_context(contextlib.closing(_find_devices(settings, paths, parent)))
        counter = find_counter(Path(working_directory()), file.path, kept.with_suffix(".counter"))
        rows = TaskRows(file, tickets, counter, size=options.num, keep=options.keep)
        label = f"{PROGRAM} --csv {options.csv}"
        setup = tool_setup(devices, label, paths)
        code = _work(rows, replace(setup, policy=_policy(settings), resume=bool(tickets)), options)
        _sum_up(rows, file, interrupted=code > 128)
        return code


def _find_devices(settings: EngineSettings, paths: Paths, parent: Parent | None) -> Devices:
    if parent:
        return parent.devices()
    if paths.gpus:
        return simulate(paths.gpus, str(paths.simulator), (), time.time())
    try:
        return detect(settings.devices.split(",") if settings.devices else (), time.time())
    except Impossible as error:
        hint = "name the devices (STOKER_DEVICES=0,1), or try it on simulated ones (STOKER_SIM=4x24G)"
        raise Impossible(error.message, hint) from None


def _policy(settings: EngineSettings) -> Policy:
    """As configured, but profile runs go one by one, and only memory limits how many tasks share a GPU."""
    policy = policy_of(settings, os.cpu_count() or 1)
    return replace(policy, limits={**policy.limits, f"group {PROFILES}": 1}, busy=ANY_LOAD)


def _work(rows: TaskRows, setup: Setup, options: argparse.Namespace) -> int:
    view = BatchView()
    with contextlib.closing(Foreground(setup, view)) as run:
        devices, logs = run.engine.snapshot.devices, _log_directory(setup.paths)
        jobs = TaskJobs(_context(run), devices, setup.policy, logs, _mps(options))
        with contextlib.closing(Batches(rows, jobs, run, _print)) as batches:
            view.batches = batches
            try:
                run.run(batches)
            finally:
                rows.close(interrupted=run.stopped_by is not None or sys.exc_info()[0] is not None)
            view.batches = None
        if run.stopped_by is not None:
            withdraw(run, "not started; the next priority_scheduler runs its row")
            return 128 + run.stopped_by
        return 0 if rows.all_well else 1


def _context(run: Foreground) -> SubmitContext:
    return context_here(
        environment=run.store.add_environment(os.environ),
        default_out=os.devnull,
        resolve=lambda word: resolve(run.engine.snapshot, word),
    )


def _log_directory(paths: Paths) -> str:
    """In the current directory, as for other runs; if that is not writable, among the logs of the queue."""
    try:
        return str(new_log_directory(Path(working_directory(), RUNS)))
    except OSError:
        return str(new_log_directory(paths.logs))


def _mps(options: argparse.Namespace) -> int | None:
    """Percent of the threads for each task; None if MPS is off or not installed."""
    if not options.mps:
        return None
    if shutil.which(MPS_CONTROL) is None:
        _say(f"MPS is not used: {MPS_CONTROL} is not found (to avoid this message: --mps no)")
        return None
    if options.percentage is not None:
        _print(f"env_value: {options.percentage}")
    return options.percentage or 100


class BatchView(ToolView):
    """Passes the ends of jobs to the batches, and prints when tasks wait for memory."""

    def __init__(self) -> None:
        super().__init__(_say)
        self.batches: Batches | None = None
        self._waiting_announced = False

    def happened(self, job_event: JobEvent) -> None:
        job, state = job_event.job, job_event.job.state
        if self.batches is not None and isinstance(state, Ended):
            self.batches.ended(job, state, job_event.started, job_event.log)
        elif isinstance(job_event.event, Lost):
            _say(f"the worker of {job.name} was killed; retrying")

    def refresh(self, run: Foreground) -> None:
        """Print once for each batch that tasks wait."""
        if self.batches is not None:
            self.batches.check_progress()
            self.interval = PEAK_INTERVAL_SECONDS if self.batches.waits_for_peaks else None
            waits = self.batches.trains and bool(run.engine.waiting and run.engine.active_jobs)
            if waits and not self._waiting_announced:
                _print("Waiting...")
            self._waiting_announced = waits or (self._waiting_announced and self.batches.trains)
        super().refresh(run)


def _sum_up(rows: TaskRows, file: TaskFile, *, interrupted: bool) -> None:
    for trouble in rows.troubles:
        _say(f"error: {trouble}")
    for row in rows.unremoved:
        _say(f"error: {row.title} succeeded, but its row is still in {file.name}")
    failed = f", {len(rows.failures)} failed and left in {file.name}" if rows.failures else ""
    _say(f"{count_text(rows.done, 'task')} done{failed}")
    for failure in rows.failures:
        _say(f"  {failure}")
    if interrupted:
        _say(f"unfinished tasks stay in {file.name}; run {PROGRAM} again to continue")


def _print(text: str) -> None:
    announce(f"{printable(text)}\n")
