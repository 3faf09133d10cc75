"""`schedule`: run one command on a free GPU and show it in gpu_scheduler_info."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from msgspec import Struct

from stoker.cli.console import open_missing_streams, to_stderr, write_past_buffer
from stoker.compat.schedule_info import (
    GPUS_WHERE_NONE_IS_FOUND,
    MOST_GPUS,
    Board,
    Entries,
    Entry,
    InfoFile,
    InfoUnusable,
    Numbered,
    clock_text,
    initialised,
    numbered,
    place_of_info,
    released,
)
from stoker.core.device import Device
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.job import Assigned, Ended, Exited, Job, JobEvent, Lost
from stoker.core.launch import INHERIT, device_words
from stoker.core.planner.policy import Policy
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.devices.detect import found_by_driver
from stoker.devices.nvidia import NvidiaDevices
from stoker.engine.foreground import Complaints, Foreground, Setup
from stoker.ledger import Ledger, find_ledger
from stoker.queue.job_files import Listed, ListSource
from stoker.queue.options import current_umask, current_user
from stoker.store.paths import find_paths

STANDARD_OUTPUT = 1

DEAF_SECONDS = 3.0
"""Seconds after a stop within which further presses of Ctrl-C are not heard."""

UNTIL_TOLD = 10 * 365 * 86_400.0
"""Seconds between TERM and KILL where only the person decides on KILL."""

GRACE = 30.0
"""Seconds between TERM and KILL where we ourselves were asked to end."""


class Request(Struct, frozen=True):
    """What was asked for on the command line."""

    words: tuple[str, ...]
    gpus: int = 1
    forced: tuple[int, ...] = ()
    forced_text: str = ""
    """The forced GPUs as the waiting line names them."""
    preferred: tuple[int, ...] = ()
    later: bool = False
    """Whether it was put in the way of the tool's later versions."""
    out: str = INHERIT
    err: str = INHERIT
    verbose: bool = False


class Showing:
    """Shows the task on standard output and in the info file, and obeys Ctrl-C as the older tool did."""

    interval: float | None = None

    def __init__(self, wish: Request, board: Board, ids: Sequence[str], user: str, say: Callable[[str], None]) -> None:
        self.say = say
        self._wish = wish
        self._board = board
        self._ids = ids
        self._user = user
        self._complaints = Complaints(say)
        self._assigned: Job | None = None
        """The job as it was when it got its GPUs."""
        self._devices: tuple[Device, ...] = ()
        self._process: int | None = None
        self._started: float | None = None
        self._waiting_told = False
        self._presses = 0
        self._deaf_until = 0.0
        self._said_of_file = ""
        self.run: Foreground | None = None

    # -- what happens ----------------------------------------------------------------------------

    def happened(self, job_event: JobEvent) -> None:
        """Called for an assignment before its worker hears of it, so files are empty before the task writes to them."""
        event = job_event.event
        if isinstance(event, Assigned):
            self._assigned, self._devices = job_event.job, job_event.devices
            for path in {self._wish.out, self._wish.err} - {INHERIT}:
                empty(path)
            self._note(event.at)
        elif isinstance(event, Exited | Lost):
            self._started = job_event.started
            self._announce()
        if isinstance(job_event.job.state, Ended):
            self._report(job_event.job.state)

    def refresh(self, run: Foreground) -> None:
        """A turn is over: see what else there is to say and to write."""
        if self._assigned is None:
            self._tell_waiting(run)
        else:
            self._announce()
            self._board.heal()
        self._complaints.check(run)
        self.complain_of_file()

    def close(self) -> None:
        """Nothing to undo."""

    def complain_of_file(self) -> None:
        """Say once what is wrong with the info file."""
        if self._board.trouble not in ("", self._said_of_file):
            self.say(f"warning: {self._board.trouble}")
            self._said_of_file = self._board.trouble

    # -- before it starts ------------------------------------------------------------------------

    def _tell_waiting(self, run: Foreground) -> None:
        job = run.engine.next_waiting
        if self._waiting_told or not self._wish.forced or job is None or run.engine.reason(job) is None:
            return
        self._waiting_told = True
        _print(f"Scheduler (PID: {os.getpid()}) is waiting for {self._wish.forced_text}.\n")

    # -- while it runs ---------------------------------------------------------------------------

    @property
    def _gpu(self) -> str:
        return ",".join(dict(device.variables)["GPU"] for device in self._devices)

    @property
    def _words(self) -> tuple[str, ...]:
        return device_words(self._wish.words, self._devices)

    def _announce(self) -> None:
        """Say where the task runs, once its number is known."""
        if self._process is not None or self.run is None or self._assigned is None:
            return
        self._process = self.run.process_of(self._assigned)
        if self._process is None:
            return
        _print(
            f"GPU: {self._gpu}\nSCH PID: {os.getpid()}\nTASK PID: {self._process}\n"
            f"SCH PGID: {os.getpgid(0)}\nTASK PGID: {self._process}\n"
        )
        self._note(time.time())

    def _note(self, at: float) -> None:
        entry = Entry(False, self._gpu, self._words, self._process, clock_text(at), self._user)
        self._board.own = {self._ids.index(device.id): entry for device in self._devices}
        self._board.sync()

    # -- signals ---------------------------------------------------------------------------------

    def interrupted(self, run: Foreground, number: signal.Signals, _stage: int) -> None:
        """Ctrl-C: tell, then TERM, then KILL. SIGTERM: TERM, and KILL after the grace or at the second one."""
        if not run.engine.held:
            run.stopped_by = number
            run.engine.drain()
        elif number == signal.SIGTERM:
            grace = GRACE if run.stopped_by is None else 0.0
            run.stopped_by = number
            run.engine.stop(grace, "stopped by SIGTERM")
        elif time.monotonic() >= self._deaf_until:
            self._presses += 1
            self._pressed(run)

    def _pressed(self, run: Foreground) -> None:
        task = f"the task (PGID: {self._process})" if self._process else "the task"
        if self._presses == 1:
            _print(f"\nNext Ctrl-C terminate {task}.\n")
            return
        run.stopped_by = signal.SIGINT
        self._deaf_until = time.monotonic() + DEAF_SECONDS
        if self._presses == 2:
            run.engine.stop(UNTIL_TOLD, "stopped by Ctrl-C")
            _print(f"\n{task[0].upper()}{task[1:]} was terminated.\n")
        elif self._presses == 3:
            run.engine.stop(0.0, "killed by Ctrl-C")
            _print(f"\n{task[0].upper()}{task[1:]} was killed.\n")
        else:
            raise KeyboardInterrupt  # it cannot be killed, and whoever presses again wants to leave

    # -- when it is over -------------------------------------------------------------------------

    def _report(self, state: Ended) -> None:
        if state.note and state.result != "cancelled" and (self._process or self._wish.err != INHERIT):
            self.say(f"{self._wish.words[0]}: {state.note}")
        if self._wish.verbose and self._started is not None:
            _print(self._summary(self._started, state.at))

    def _summary(self, start: float, end: float) -> str:
        minutes, seconds = divmod(int(end) - int(start), 60)
        hours, minutes = divmod(minutes, 60)
        files = "" if self._wish.later else f"stdout: {_file(self._wish.out, 1)}\nstderr: {_file(self._wish.err, 2)}\n"
        return (
            f"\ntask: {list(self._words)}\n{files}start: {clock_text(start)}\nend: {clock_text(end)}\n"
            f"total time: {hours}:{minutes}:{seconds}\n\n"
        )


def empty(path: str) -> None:
    """Make a file that a task is going to write to, or cut what it holds; a pipe or a device is only opened."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o666))


def _file(path: str, number: int) -> str:
    return ("<stdout>", "<stderr>")[number - 1] if path == INHERIT else path


def _print(text: str) -> None:
    write_past_buffer(STANDARD_OUTPUT, text)


PROGRAM = "schedule"

NOT_RELEASED = 1

Value = TypeVar("Value")

_EXAMPLES = """\
examples:
  schedule "train.py foo --bar 5" --forced_gpu 2 --verbose    start the task as soon as GPU 2 is free
  schedule -i 5 3 4                                           there are 5 GPUs; 3 and 4 are left alone
  schedule -s                                                 which GPUs are free

The task finds its GPU in the variable GPU, as cuda2. Ctrl-C asks once, then stops the task, then kills it.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for, and return the task's exit code."""
    open_missing_streams()
    try:
        return _run(_parsed(sys.argv[1:] if arguments is None else arguments))
    except StokerError as error:
        _say(f"error: {error.message}; {error.hint}")
        return error.exit_code
    except OSError as error:
        _say(f"error: the system refuses: {error.strerror}")
        return StokerError.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


# -- the command line ------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, with what to type next."""

    def error(self, message: str) -> NoReturn:
        hint = "quote the task, and put it first" if "-i/--init" in message or "-rg/" in message else "see schedule -h"
        raise UsageError(message, hint)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Options may come after the task; what follows -- is the task whatever it looks like."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = _parser().parse_intermixed_args(arguments[:end])
    options.task += arguments[end + 1 :]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Start a task as soon as a GPU is free, and keep the GPU for it until it ends.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task", nargs="*", help="the task with its arguments: one quoted string, or after -- word by word"
    )
    add = parser.add_argument
    add("-gc", "--gpu_count", type=_count, help="the count of GPUs that the task needs, 1 unless given")
    add(
        "-i",
        "--init",
        nargs="+",
        type=_count,
        help="initialize the info file: the total count of GPUs, then those that are unavailable; "
        "-i 5 3 4 means 5 GPUs, of which 3 and 4 are unavailable",
    )
    add("-v", "--verbose", action="store_true", help="print info about the process when the task is completed")
    add("-o", "--out", nargs="?", const="-", default="-", help="file for the task's stdout, emptied when it starts")
    add("-e", "--err", nargs="?", const="-", default="-", help="file for the task's stderr, likewise")
    add("-pg", "--prefered_gpu", type=_count, help="take this GPU if it is free, else any free one")
    add("-fg", "--forced_gpu", type=_count, help="wait until this GPU is free")
    add("-s", "--status", action="store_true", help="show info about GPU usage: user, GPU, PID of the task, start")
    add("-rg", "--release_gpu", nargs="+", type=_count, help="make GPUs available again: -rg 0 2")
    add_later = parser.add_argument_group("options of the tool's later versions").add_argument
    add_later("-n", "--num", type=_count, help="as -gc")
    add_later("-p", "--prefer", type=_numbers, metavar="LIST", help='as -pg, also several: "[3,2]"')
    add_later("-f", "--force", type=_numbers, metavar="LIST", help='as -fg, also several: "[1,3]"')
    add_later("-r", "--release", nargs="+", type=_count, help="as -rg")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _numbers(text: str) -> tuple[int, ...]:
    """One number, or several as JSON or with commas only."""
    try:
        said = json.loads(text if text.lstrip().startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        said = []
    if not said or not all(type(number) is int and number >= 0 for number in said) or len(set(said)) < len(said):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a GPU nor a list such as [1,3]")
    return tuple(said)


def _wish(options: argparse.Namespace) -> Request | None:
    """What task there is to run, if any."""
    words = _words(options.task)
    if not words:
        return None
    one = None if options.forced_gpu is None else (options.forced_gpu,)
    forced = _either(one, options.force, "-fg", "-f") or ()
    likes = None if options.prefered_gpu is None else (options.prefered_gpu,)
    gpus = _either(options.gpu_count, options.num, "-gc", "-n")
    later = len(options.task) > 1 or any(given is not None for given in (options.num, options.prefer, options.force))
    return Request(
        words=words,
        gpus=max(1, len(forced)) if gpus is None else gpus,
        forced=forced,
        forced_text=f"GPU {options.forced_gpu}" if one else f"GPU(s) {list(forced)}",
        preferred=_either(likes, options.prefer, "-pg", "-p") or (),
        later=later,
        out=_output(options.out, "-o"),
        err=_output(options.err, "-e"),
        verbose=options.verbose,
    )


def _words(task: Sequence[str]) -> tuple[str, ...]:
    """Several words are the task as it is; one is a line to be taken apart as a shell does."""
    if len(task) != 1:
        return tuple(task)
    try:
        return tuple(shlex.split(task[0]))
    except ValueError as error:
        raise UsageError(f"the task cannot be taken apart: {error}", "see to its quotes") from None


def _either(documented: Value | None, later: Value | None, name: str, later_name: str) -> Value | None:
    if documented is not None and later is not None:
        raise UsageError(f"{name} and {later_name} mean the same", "give one of them")
    return later if documented is None else documented


def _output(name: str, option: str) -> str:
    """The file's full path, seen to be writable before the task may have to wait for hours."""
    if name == INHERIT:
        return INHERIT
    path = os.path.join(os.getcwd(), os.path.expanduser(name))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o666))
    except OSError as error:
        raise UsageError(f"{option} {name} cannot be written: {error.strerror}", "name another file") from None
    return path


# -- what is done ----------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    """In the documented order: initialize, release, show, run the task."""
    wish = _wish(options)
    file = InfoFile(place_of_info(os.environ))
    with contextlib.ExitStack() as closing:
        driver = found_by_driver()
        if driver is not None:
            closing.callback(driver.close)
        count = _gpu_count(options, file, driver)
        devices = numbered(driver, count, visible=wish is not None and wish.later)
        board = Board(file, Ledger(find_ledger(os.environ)), devices.claims)
        devices.closed = board.closed
        code = _prepare(options, board)
        if options.status:
            write_past_buffer(STANDARD_OUTPUT, status_text(board.entries))
        if wish is not None:
            return _run_task(wish, board, devices)
    if not (options.init or options.release_gpu or options.release or options.status):
        _say('there is no task; write it as schedule "train.py foo --bar 5", or see schedule -h')
    return code


def _gpu_count(options: argparse.Namespace, file: InfoFile, driver: NvidiaDevices | None) -> int:
    """As many as -i says, else the file, else as were found."""
    if options.init:
        return _checked_init(options.init)
    try:
        entries = file.read()
    except InfoUnusable as unusable:
        _say(f"warning: {unusable.message}")
        entries = None
    found = 0 if driver is None else len(driver.snapshot(time.time()).devices)
    return len(entries or ()) or min(found, MOST_GPUS) or GPUS_WHERE_NONE_IS_FOUND


def _checked_init(numbers: Sequence[int]) -> int:
    count, *unavailable = numbers
    if not 1 <= count <= MOST_GPUS:
        raise UsageError(f"-i {count} is not a count of GPUs", f"give one from 1 to {MOST_GPUS}")
    if absent := [number for number in unavailable if number >= count]:
        raise UsageError(f"there is no GPU {absent[0]} among {count}", f"they are 0 to {count - 1}")
    return count


def _prepare(options: argparse.Namespace, board: Board) -> int:
    """Bring the file in step, with what -i and -rg want; the exit code tells whether they got it."""
    board.sync()
    if options.init:
        board.sync(initialised(options.init[0], options.init[1:]))
    if board.trouble:
        _say(f"{'error' if options.init else 'warning'}: {board.trouble}")
    numbers = _either(options.release_gpu, options.release, "-rg", "-r")
    return max(NOT_RELEASED if options.init and board.trouble else 0, _release(numbers or [], board))


def _release(numbers: Sequence[int], board: Board) -> int:
    board.sync(released(numbers))
    for number in numbers:
        if number >= len(board.entries):
            _say(f"warning: there is no GPU {number}; they are 0 to {len(board.entries) - 1}")
    kept = [number for number in numbers if number < len(board.entries) and not board.entries[number].avail]
    for number in kept:
        entry = board.entries[number]
        process = "" if entry.task_pid is None else f", process {entry.task_pid}"
        _say(f"GPU {number} stays with the task of {entry.user}{process}: it is free as soon as that ends")
    return NOT_RELEASED if kept else 0


def status_text(entries: Entries) -> str:
    """Who uses which GPU, and which are free."""
    used = [(number, entry) for number, entry in enumerate(entries) if not entry.avail]
    free = [f"GPU {number}\n" for number, entry in enumerate(entries) if entry.avail]
    blocks = [
        f"GPU: {printable(entry.gpu_name or f'cuda{number}')}\nUser: {printable(str(entry.user))}\n"
        f"Task: {None if entry.task is None else list(entry.task)}\nTask PID: {entry.task_pid}\n"
        f"Started: {printable(str(entry.task_start))}\n\n"
        for number, entry in used
    ]
    heads = "Currently used GPU:\n-------------------\n" if used else ""
    tail = "Free GPU:\n---------\n" + "".join(free) if free else "No GPU available.\n"
    return heads + "".join(blocks) + tail


def _run_task(wish: Request, board: Board, devices: Numbered) -> int:
    resources = _resources(wish, devices)
    showing = Showing(wish, board, devices.ids, current_user(), _say)
    setup = Setup(
        paths=find_paths(os.environ, socket.gethostname(), simulated=False),
        ledger=find_ledger(os.environ),
        devices=devices,
        policy=Policy(),
        user=current_user(),
        label=f"{PROGRAM} {shlex.join(wish.words)}",
        share_output=True,
        share_input=True,
        interrupted=showing.interrupted,
    )
    try:
        with contextlib.closing(Foreground(setup, showing)) as run:
            showing.run = run
            run.run(_source(wish, resources, run))
            if (left := run.engine.next_waiting) is not None:
                run.engine.cancel(left.id, None, "its scheduler was stopped")
            code = _exit_code(run)
            run.retire()  # one more Ctrl-C while we leave does not change the task's code
    finally:  # the lease is gone only now, unless the task lives on
        board.own = {}
        board.sync()
    return code


def _resources(wish: Request, devices: Numbered) -> Resources:
    """The GPUs that the task asks for, by their ids."""
    count = len(devices.ids)
    if wish.gpus < 1 or wish.gpus < len(wish.forced):
        raise UsageError(f"{count_text(wish.gpus, 'GPU')} cannot be", "ask for as many as are forced, or more")
    if wish.gpus > count:
        raise Impossible(f"the task needs {wish.gpus} GPUs and there are {count}", "schedule -i N says how many")
    if absent := [number for number in wish.forced if number >= count]:
        raise Impossible(f"there is no GPU {absent[0]}", f"they are 0 to {count - 1}; schedule -i N says how many")
    forced = tuple(devices.ids[number] for number in wish.forced)
    likes = tuple(devices.ids[number] for number in wish.preferred if number < count)
    if len(likes) < len(wish.preferred):
        _say(f"warning: a preferred GPU is not there; they are 0 to {count - 1}")
    if len(forced) == wish.gpus:
        return Resources(gpus=wish.gpus, allowed=forced, preferred=forced)
    return Resources(gpus=wish.gpus, required=forced, preferred=likes)


def _source(wish: Request, resources: Resources, run: Foreground) -> ListSource:
    """The one task. It is never run twice: what it read of our standard input is gone."""
    spec = JobSpec(
        resources=resources,
        cwd=os.getcwd(),
        environment=run.store.add_environment(os.environ),
        umask=current_umask(),
        requeue=False,
        out=wish.out.replace("%", "%%"),
        err=wish.err.replace("%", "%%"),
    )
    task = Listed(Command(wish.words), "command line")
    return ListSource([task], lambda item: NewJob(item.command, spec), lambda item: None)


def _exit_code(run: Foreground) -> int:
    last = run.tally.last_ended
    if last is not None and isinstance(last.state, Ended) and last.state.code is not None:
        return last.state.code
    return StokerError.exit_code if run.stopped_by is None else 128 + run.stopped_by


def _say(text: str) -> None:
    to_stderr(f"{PROGRAM}: {printable(text)}\n")
