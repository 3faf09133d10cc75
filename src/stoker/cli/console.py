"""The standard streams: there from the start, and never the end of a run when nobody reads them any more."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import NoReturn


def open_missing_streams() -> None:
    """Where one is closed, the next file we open would take its number, and jobs would write into that file."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def json_is_default() -> bool:
    """Whether STOKER_OUTPUT asks every command for JSON."""
    return os.environ.get("STOKER_OUTPUT") == "json"


def flush_output() -> None:
    """Have all that was printed written; an OSError where it cannot be, or where there was no output from the start."""
    sys.stdout.flush()
    if sys.stdout.name == 1:  # one that we opened ourselves
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def silence_output() -> None:
    """Nobody takes our output any more: what is still in the buffer must not fail a second time at the very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def to_stderr(text: str) -> None:
    """Write to whoever looks; when nobody does any more, the run goes on all the same."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def say(text: str) -> None:
    """One sentence to the user, on standard error."""
    from stoker.core.text import printable  # help needs neither this nor all that it brings along

    to_stderr(f"stoker: {printable(text)}\n")


def write_past_buffer(descriptor: int, text: str) -> None:
    """Write so that everybody reads it at once; a reader who left does not end the run."""
    rest = os.fsencode(text)
    with contextlib.suppress(OSError):
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def leave(code: int) -> NoReturn:
    """End at once: Python would take 15 ms more to free one by one what the kernel frees in one."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)
