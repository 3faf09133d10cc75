"""schedule: run one task on a free GPU, and show it in gpu_scheduler_info."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.context import current_user
from stoker.app.jobs.job_files import ListSource, ParsedJob
from stoker.app.jobs.parent import Parent, find_parent
from stoker.core.device import Device
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.job import Assigned, Ended, Exited, Job, JobEvent, Lost
from stoker.core.launch import INHERIT, device_words, literal
from stoker.core.spec import Command, NewJob, Resources
from stoker.core.units import count_text
from stoker.devices.detect import found_by_driver
from stoker.devices.nvidia import NvidiaDevices
from stoker.engine.foreground import Foreground
from stoker.features.compat.foreground import ToolView, inherited_spec, tool_setup, withdraw
from stoker.features.compat.schedule.info import (
    MOST_GPUS,
    Entry,
    InfoFile,
    InfoUnusable,
    NumberedDevices,
    clock_text,
    find_info,
    number_devices,
    status_text,
)
from stoker.features.compat.tool import Parser, announce, run_tool, say, whole_number
from stoker.ledger import Ledger, find_ledger

PROGRAM = "schedule"

DEFAULT_GPUS = 4
"""How many GPUs there are if neither the file nor a driver says it."""

DEAF_SECONDS = 3.0
"""Seconds after a stop within which further presses of Ctrl-C are ignored."""

UNTIL_PRESSED_SECONDS = 10 * 365 * 86_400.0
"""Seconds between TERM and KILL if only another Ctrl-C sends KILL."""

GRACE_SECONDS = 30.0
"""Seconds between TERM and KILL if the scheduler itself got SIGTERM."""

_OPEN = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

_EXAMPLES = """\
examples:
  schedule "train.py foo --bar 5" --forced_gpu 2 --verbose    start the task as soon as GPU 2 is free
  schedule -i 5 3 4                                           there are 5 GPUs; 3 and 4 are not used
  schedule -s                                                 which GPUs are free

The task finds its GPU in the variable GPU, as cuda2. Ctrl-C asks once, then stops the task, then kills it.
"""

_INIT_HELP = (
    "initialize the info file: the total count of GPUs, then those that are unavailable; "
    "-i 5 3 4 means 5 GPUs, of which 3 and 4 are unavailable"
)
_QUOTE = "quote the task, and put it first"

Value = TypeVar("Value")

_say = partial(say, PROGRAM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for, and return the exit code of the task."""
    return run_tool(PROGRAM, lambda: _run(_parsed(sys.argv[1:] if arguments is None else arguments)))


# -- the command line ------------------------------------------------------------------------------


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Options may follow the task; everything after -- belongs to the task."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = _parser().parse_intermixed_args(arguments[:end])
    options.task += arguments[end + 1 :]
    return options


def _parser() -> Parser:
    description = "Start a task as soon as a GPU is free, and reserve the GPU until it ends."
    parser = Parser(PROGRAM, description, _EXAMPLES, {"-i/--init": _QUOTE, "-rg/": _QUOTE})
    add = parser.add_argument
    add("task", nargs="*", help="the task with its arguments: one quoted string, or after -- word by word")
    add("-gc", "--gpu_count", type=whole_number, help="number of GPUs that the task needs, default 1")
    add("-i", "--init", nargs="+", type=whole_number, help=_INIT_HELP)
    add("-v", "--verbose", action="store_true", help="print info about the process when the task is completed")
    add("-o", "--out", nargs="?", const="-", default="-", help="file for the task's stdout, emptied when it starts")
    add("-e", "--err", nargs="?", const="-", default="-", help="file for the task's stderr, emptied when it starts")
    add("-pg", "--prefered_gpu", type=whole_number, help="take this GPU if it is free, else any free one")
    add("-fg", "--forced_gpu", type=whole_number, help="wait until this GPU is free")
    add("-s", "--status", action="store_true", help="show info about GPU usage: user, GPU, PID of the task, start")
    add("-rg", "--release_gpu", nargs="+", type=whole_number, help="make GPUs available again: -rg 0 2")
    add_later = parser.add_argument_group("options of the tool's later versions").add_argument
    add_later("-n", "--num", type=whole_number, help="as -gc")
    add_later("-p", "--prefer", type=_numbers, metavar="LIST", help='as -pg, also several: "[3,2]"')
    add_later("-f", "--force", type=_numbers, metavar="LIST", help='as -fg, also several: "[1,3]"')
    add_later("-r", "--release", nargs="+", type=whole_number, help="as -rg")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    """One number, or several as JSON or with commas only."""
    try:
        given = json.loads(text if text.lstrip().startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        given = []
    if not given or not all(type(number) is int and number >= 0 for number in given) or len(set(given)) < len(given):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a GPU nor a list such as [1,3]")
    return tuple(given)


class TaskRequest(Struct, frozen=True):
    """The task of the command line and the GPUs that it asks for."""

    words: tuple[str, ...]
    gpus: int = 1
    forced: tuple[int, ...] = ()
    forced_text: str = ""
    """The forced GPUs as the waiting line names them."""
    preferred: tuple[int, ...] = ()
    later: bool = False
    """Whether it was typed in the way of the tool's later versions."""
    out: str = INHERIT
    err: str = INHERIT
    given_names: tuple[str, str] = (INHERIT, INHERIT)
    """Of the two files, for the summary."""
    verbose: bool = False


def _request(options: argparse.Namespace) -> TaskRequest | None:
    words = _words(options.task)
    if not words:
        return None
    single = None if options.forced_gpu is None else (options.forced_gpu,)
    forced = _either(single, options.force, "-fg", "-f") or ()
    preferred = None if options.prefered_gpu is None else (options.prefered_gpu,)
    gpus = _either(options.gpu_count, options.num, "-gc", "-n")
    later = len(options.task) > 1 or any(given is not None for given in (options.num, options.prefer, options.force))
    return TaskRequest(
        words=words,
        gpus=max(1, len(forced)) if gpus is None else gpus,
        forced=forced,
        forced_text=f"GPU {options.forced_gpu}" if single else f"GPU(s) {list(forced)}",
        preferred=_either(preferred, options.prefer, "-pg", "-p") or (),
        later=later,
        out=_output(options.out, "-o"),
        err=_output(options.err, "-e"),
        given_names=(options.out, options.err),
        verbose=options.verbose,
    )


def _words(task: Sequence[str]) -> tuple[str, ...]:
    """Several words are the task as it is; one word is split as a shell does it."""
    if len(task) != 1:
        return tuple(task)
    try:
        return tuple(shlex.split(task[0]))
    except ValueError as error:
        raise UsageError(f"the task cannot be split into words: {error}", "check its quotes") from None


def _either(documented: Value | None, later: Value | None, name: str, later_name: str) -> Value | None:
    if documented is not None and later is not None:
        raise UsageError(f"{name} and {later_name} mean the same", "give one of them")
    return later if documented is None else documented


def _output(name: str, option: str) -> str:
    """The absolute path. It must be writable now, since the task may have to wait for hours."""
    if name == INHERIT:
        return INHERIT
    path = os.path.join(os.getcwd(), os.path.expanduser(name))
    try:
        os.close(os.open(path, _OPEN, 0o666))
    except OSError as error:
        raise UsageError(f"{option} {name} cannot be written: {error.strerror}", "name another file") from None
    return path


# -- actions ---------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    """In the documented order: initialize, release, show the status, run the task."""
    request = _request(options)
    if (parent := find_parent(os.environ)) is not None:
        return _run_inside(parent, request, options)
    info = InfoFile(find_info(os.environ), Ledger(find_ledger(os.environ)))
    with contextlib.ExitStack() as closing:
        driver = found_by_driver()
        if driver is not None:
            closing.callback(driver.close)
        count = _gpu_count(options, info, driver)
        devices = number_devices(driver, count, visible=request is not None and request.later)
        return _act(options, request, info, devices)


def _run_inside(parent: Parent, request: TaskRequest | None, options: argparse.Namespace) -> int:
    """Inside a job, its GPUs are all there are, numbered as the job sees them, with an info file of their own."""
    if options.init:
        hint = "leave -i out: the GPUs of the job are known"
        raise UsageError(f"this runs inside {parent.allocation.whose}, but -i is for the whole machine", hint)
    if request is not None:
        request = replace(request, forced=parent.numbers(request.forced), preferred=_preferred(parent, request))
    info = InfoFile(parent.file("gpu_scheduler_info"), Ledger(parent.ledger))
    with contextlib.closing(parent.devices()) as source:
        devices = NumberedDevices(source, MOST_GPUS, visible=request is not None and request.later)
        if request is not None and not request.later:
            devices.variables = {**devices.variables, "CUDA_VISIBLE_DEVICES": parent.visible}
        return _act(options, request, info, devices)


def _preferred(parent: Parent, request: TaskRequest) -> tuple[int, ...]:
    """The preferred GPUs; any other will do if the job does not have them."""
    try:
        return parent.numbers(request.preferred)
    except Impossible as error:
        _say(f"warning: {error.message}")
        return ()


def _act(options: argparse.Namespace, request: TaskRequest | None, info: InfoFile, devices: NumberedDevices) -> int:
    info.claims = devices.claims
    devices.closed = info.closed
    code = _prepare(options, info)
    if options.status:
        announce(status_text(info.entries))
    if request is not None:
        return _run_task(request, info, devices)
    if not (options.init or options.release_gpu or options.release or options.status):
        _say('no task given; write it as schedule "train.py foo --bar 5", or see schedule -h')
    return code


def _gpu_count(options: argparse.Namespace, info: InfoFile, driver: NvidiaDevices | None) -> int:
    """The number of GPUs: that of -i, else the length of the file's lists, else the number that the driver shows."""
    if options.init:
        return _checked_init(options.init)
    entries = None
    try:
        entries = info.read()
    except InfoUnusable as unusable:
        _say(f"warning: {unusable.message}")
    gpus = 0 if driver is None else len(driver.snapshot(time.time()).devices)
    return len(entries or ()) or min(gpus, MOST_GPUS) or DEFAULT_GPUS


def _checked_init(numbers: Sequence[int]) -> int:
    count, *unavailable = numbers
    if not 1 <= count <= MOST_GPUS:
        raise UsageError(f"-i {count} is not a count of GPUs", f"give one from 1 to {MOST_GPUS}")
    if absent := [number for number in unavailable if number >= count]:
        raise UsageError(f"there is no GPU {absent[0]} among {count}", f"they are 0 to {count - 1}")
    return count


def _prepare(options: argparse.Namespace, info: InfoFile) -> int:
    """Bring the file up to date and apply -i and -rg; returns 1 if one of them failed."""
    info.sync(init=options.init or ())
    if info.trouble:
        _say(f"{'error' if options.init else 'warning'}: {info.trouble}")
    failed = bool(options.init and info.trouble)
    numbers = _either(options.release_gpu, options.release, "-rg", "-r")
    return int(not _release(numbers or [], info) or failed)


def _release(numbers: Sequence[int], info: InfoFile) -> bool:
    """Whether all of these GPUs are free now."""
    info.sync(released=numbers)
    count = len(info.entries)
    for number in numbers:
        if number >= count:
            _say(f"warning: there is no GPU {number}; they are 0 to {count - 1}")
    kept = [number for number in numbers if number < count and not info.entries[number].avail]
    for number in kept:
        entry = info.entries[number]
        process = "" if entry.task_pid is None else f", process {entry.task_pid}"
        _say(f"GPU {number} stays with the task of {entry.user}{process}: it is free as soon as that ends")
    return not kept


# -- the task --------------------------------------------------------------------------------------


def _run_task(request: TaskRequest, info: InfoFile, devices: NumberedDevices) -> int:
    resources = _resources(request, devices)
    view = TaskView(request, info, devices.ids)
    setup = replace(
        tool_setup(devices, f"{PROGRAM} {shlex.join(request.words)}", share_output=True, share_input=True),
        interrupted=view.interrupted,
    )
    try:
        with contextlib.closing(Foreground(setup, view)) as run:
            view.run = run
            run.run(_source(request, resources, run))
            code = _exit_code(run)
            withdraw(run, "its scheduler was stopped")
    finally:  # the lease is released only now, unless the task is still running
        info.own = {}
        info.sync()
    return code


def _resources(request: TaskRequest, devices: NumberedDevices) -> Resources:
    count = len(devices.ids)
    if request.gpus < 1 or request.gpus < len(request.forced):
        raise UsageError(f"{count_text(request.gpus, 'GPU')} cannot be", "request at least as many as are forced")
    if request.gpus > count:
        raise Impossible(
            f"the task needs {request.gpus} GPUs and there are {count}", "set the number with: schedule -i N"
        )
    if absent := [number for number in request.forced if number >= count]:
        raise Impossible(
            f"there is no GPU {absent[0]}", f"they are 0 to {count - 1}; set the number with: schedule -i N"
        )
    forced = tuple(devices.ids[number] for number in request.forced)
    preferred = tuple(devices.ids[number] for number in request.preferred if number < count)
    if len(preferred) < len(request.preferred):
        _say(f"warning: a preferred GPU does not exist; GPUs are 0 to {count - 1}")
    if len(forced) == request.gpus:
        return Resources(gpus=request.gpus, allowed=forced, preferred=forced)
    return Resources(gpus=request.gpus, required=forced, preferred=preferred)


def _source(request: TaskRequest, resources: Resources, run: Foreground) -> ListSource:
    """The one task. It never runs twice, because a first run may have read our standard input."""
    spec = replace(
        inherited_spec(run),
        resources=resources,
        requeue=False,
        out=literal(request.out),
        err=literal(request.err),
    )
    task = ParsedJob(Command(request.words), "command line")
    return ListSource([task], lambda item: NewJob(item.command, spec), lambda item: None)


def _exit_code(run: Foreground) -> int:
    last = run.tally.last_ended
    if last is not None and isinstance(last.state, Ended) and last.state.code is not None:
        return last.state.code
    return StokerError.exit_code if run.stopped_by is None else 128 + run.stopped_by


class TaskView(ToolView):
    """Shows the task on standard output and in the info file; Ctrl-C works as in the older tool."""

    def __init__(self, request: TaskRequest, info: InfoFile, ids: Sequence[str]) -> None:
        super().__init__(_say)
        self.run: Foreground | None = None
        self._request = request
        self._info = info
        self._ids = ids
        self._assigned: Job | None = None
        """The job as it was when it got its GPUs."""
        self._devices: tuple[Device, ...] = ()
        self._gpu = ""
        self._words = request.words
        self._process: int | None = None
        self._started: float | None = None
        self._waiting_announced = False
        self._presses = 0
        self._deaf_until = 0.0
        self._reported_trouble = ""

    def happened(self, job_event: JobEvent) -> None:
        """At an assignment, output files are emptied before the task writes to them."""
        event, state = job_event.event, job_event.job.state
        if isinstance(event, Assigned):
            self._assigned, self._devices = job_event.job, job_event.devices
            self._gpu = ",".join(dict(device.variables)["GPU"] for device in self._devices)
            self._words = device_words(self._request.words, self._devices)
            for path in {self._request.out, self._request.err} - {INHERIT}:
                os.close(os.open(path, _OPEN | os.O_TRUNC, 0o666))
            self._enter(event.at)
        elif isinstance(event, Exited | Lost):
            self._started = job_event.started
            self._announce_start()
        if isinstance(state, Ended):
            self._report(state)

    def refresh(self, run: Foreground) -> None:
        """Announce the task, and repair the file."""
        if self._assigned is None:
            self._announce_wait(run)
        else:
            self._announce_start()
            self._info.repair()
        super().refresh(run)
        if self._info.trouble not in ("", self._reported_trouble):
            self._reported_trouble = self._info.trouble
            self.say(f"warning: {self._info.trouble}")

    def _announce_wait(self, run: Foreground) -> None:
        job = run.engine.next_waiting
        if self._waiting_announced or not self._request.forced or job is None or run.engine.reason(job) is None:
            return
        self._waiting_announced = True
        announce(f"Scheduler (PID: {os.getpid()}) is waiting for {self._request.forced_text}.\n")

    def _announce_start(self) -> None:
        """Once, when the pid of the task is known."""
        if self._process is not None or self.run is None or self._assigned is None:
            return
        self._process = self.run.process_of(self._assigned)
        if self._process is not None:
            announce(
                f"GPU: {self._gpu}\nSCH PID: {os.getpid()}\nTASK PID: {self._process}\n"
                f"SCH PGID: {os.getpgid(0)}\nTASK PGID: {self._process}\n"
            )
            self._enter(time.time())

    def _enter(self, at: float) -> None:
        entry = Entry(False, self._gpu, self._words, self._process, clock_text(at), current_user())
        self._info.own = {self._ids.index(device.id): entry for device in self._devices}
        self._info.sync()

    def interrupted(self, run: Foreground, signal_number: signal.Signals, _stage: int) -> None:
        """Ctrl-C: announce, then TERM, then KILL. SIGTERM: TERM, and KILL after the grace or at the second one."""
        if not run.engine.active_jobs:
            run.stopped_by = signal_number
            run.engine.drain()
        elif signal_number == signal.SIGTERM:
            grace = GRACE_SECONDS if run.stopped_by is None else 0.0
            run.stopped_by = signal_number
            run.engine.stop(grace, "stopped by SIGTERM")
        elif time.monotonic() >= self._deaf_until:
            self._presses += 1
            self._pressed(run)

    def _pressed(self, run: Foreground) -> None:
        group = f" (PGID: {self._process})" if self._process else ""
        if self._presses == 1:
            announce(f"\nNext Ctrl-C terminate the task{group}.\n")
            return
        run.stopped_by = signal.SIGINT
        self._deaf_until = time.monotonic() + DEAF_SECONDS
        if self._presses == 2:
            run.engine.stop(UNTIL_PRESSED_SECONDS, "stopped by Ctrl-C")
            announce(f"\nThe task{group} was terminated.\n")
        elif self._presses == 3:
            run.engine.stop(0.0, "killed by Ctrl-C")
            announce(f"\nThe task{group} was killed.\n")
        else:
            raise KeyboardInterrupt  # it cannot be killed, and the user wants to leave

    def _report(self, state: Ended) -> None:
        if state.note and state.result != "cancelled" and (self._process or self._request.err != INHERIT):
            self.say(f"{self._request.words[0]}: {state.note}")
        if self._request.verbose and self._started is not None:
            announce(self._summary(self._started, state.at))

    def _summary(self, start: float, end: float) -> str:
        minutes, seconds = divmod(int(end) - int(start), 60)
        hours, minutes = divmod(minutes, 60)
        out, err = self._request.given_names
        shown = f"stdout: {'<stdout>' if out == INHERIT else out}\nstderr: {'<stderr>' if err == INHERIT else err}\n"
        files = "" if self._request.later else shown
        return (
            f"\ntask: {list(self._words)}\n{files}start: {clock_text(start)}\nend: {clock_text(end)}\n"
            f"total time: {hours}:{minutes}:{seconds}\n\n"
        )
