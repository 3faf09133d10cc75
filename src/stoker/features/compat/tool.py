"""Argument parser, messages and exit codes of the older tools.

It imports next to nothing: simple_hypersearch prints its first line in a few milliseconds.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from stoker.cli.console import open_missing_streams, write_past_buffer
from stoker.core.errors import StokerError, UsageError

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = range(3)


class Parser(argparse.ArgumentParser):
    """Raises a wrong argument as a UsageError with a hint, instead of printing the whole usage."""

    def __init__(self, program: str, description: str, epilog: str, hints: Mapping[str, str] | None = None) -> None:
        """`hints` are for messages of argparse that contain the key."""
        super().__init__(
            prog=program,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._hints = hints or {}

    def error(self, message: str) -> NoReturn:
        """Called by argparse."""
        hint = next((hint for part, hint in self._hints.items() if part in message), f"see {self.prog} -h")
        raise UsageError(message, hint)


def whole_number(text: str) -> int:
    """The type of an option that takes a number from 0 up."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return min(int(text), sys.maxsize)


def run_tool(program: str, body: Callable[[], int]) -> int:
    """Run a tool that starts programs, and return its exit code."""
    open_missing_streams()
    return report_errors(program, body)


def report_errors(program: str, body: Callable[[], int]) -> int:
    """The exit code of the body; an error is one sentence on standard error."""
    try:
        return body()
    except StokerError as error:
        say(program, f"error: {error}")
        return error.exit_code
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        say(program, f"error: {error.strerror}{where}")
        return StokerError.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def lock_within(descriptor: int, kind: int, patience: float) -> None:
    """Lock a file; BlockingIOError if another program holds it for longer than `patience` seconds."""
    from stoker.store.paths import try_lock
    from stoker.store.waiting import wait_until

    if not wait_until(lambda: try_lock(descriptor, kind), patience):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def write_all(descriptor: int, data: bytes) -> None:
    """Write past Python's buffer: readers get the data at once, and no write is left to fail at exit."""
    while data:
        data = data[os.write(descriptor, data) :]


def say(program: str, text: str) -> None:
    """Write a sentence to standard error."""
    from stoker.core.text import printable

    write_past_buffer(STANDARD_ERROR, f"{program}: {printable(text)}\n")


def announce(text: str) -> None:
    """Write text to standard output past Python's buffer, so that readers get it at once."""
    write_past_buffer(STANDARD_OUTPUT, text)
