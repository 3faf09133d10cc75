"""Standard streams: open missing ones, and survive readers that are gone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from typing import NoReturn


def open_missing_streams() -> None:
    """Open closed standard streams: the next file we open would take the number, and jobs would write into it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def json_is_default() -> bool:
    return os.environ.get("STOKER_OUTPUT") == "json"


def watch_reads() -> bool:
    """Whether watch(1) shows what we print: it sets COLUMNS and LINES, and has the pipe that is our output."""
    if not {"COLUMNS", "LINES"} <= os.environ.keys():
        return False
    from stoker.devices.interface import ancestors, has_open, process_file  # only needed without a terminal

    try:
        output = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return False
    if not stat.S_ISFIFO(output.st_mode):
        return False
    return any(process_file(pid, "comm") == b"watch\n" and has_open(pid, output) for pid in ancestors(os.getppid()))


def is_written_pipe(descriptor: int) -> bool:
    """Whether the descriptor is the end of a pipe to which one writes."""
    access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and access == os.O_WRONLY


def flush_output() -> None:
    """Flush standard output; raises OSError if that fails, or if it was closed from the start."""
    sys.stdout.flush()
    if sys.stdout.name == 1:  # opened by open_missing_streams
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def silence_output() -> None:
    """Discard further output: the buffer must not fail a second time at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def to_stderr(text: str) -> None:
    """Write to standard error; if it is gone, the run goes on."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def say(text: str) -> None:
    """Write a sentence of the program to standard error, with control characters escaped."""
    tell(f"stoker: {text}")


def say_progress(done: int, total: int) -> None:
    """Tell a user who waits for many jobs how far the engine is."""
    say(f"{done} of {total} jobs so far")


def tell(text: str) -> None:
    """Write a line to standard error, with control characters escaped."""
    to_stderr(f"{_escaped(text)}\n")


def print_line(text: str) -> None:
    """Write a line to standard output, with control characters escaped."""
    print(_escaped(text), flush=True)


def _escaped(text: str) -> str:
    from stoker.core.text import printable  # help needs neither this nor all that it brings along

    return printable(text)


def write_past_buffer(descriptor: int, text: str) -> None:
    """Write without a buffer; a reader that is gone does not end the run."""
    rest = os.fsencode(text)
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def leave(code: int) -> NoReturn:
    """Exit at once: an orderly shutdown of Python takes 15 ms more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone
            stream.flush()
    os._exit(code)
