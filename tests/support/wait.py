"""Waiting for what a test expects, instead of sleeping for luck, and never without end."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, AnyStr

PATIENCE_SECONDS = 60.0
"""More than anything takes on a machine with far too much to do."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS, pause: float = 0.01) -> None:
    """Wait until the condition holds, and look again after each pause; fail when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(pause)


def line_from(stream: IO[AnyStr] | None) -> AnyStr:
    """The next line of a process; empty where it has closed its end without one."""
    assert stream is not None
    lines: list[AnyStr] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(PATIENCE_SECONDS)
    assert lines, "no line came"
    return lines[0]


@contextmanager
def ending(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """A process that ends with the block, by itself or because its pipes are closed; killed where anything fails."""
    late = threading.Timer(PATIENCE_SECONDS, process.kill)
    with process:
        try:
            yield process
            late.start()
        except BaseException:
            process.kill()
            raise
    assert not late.finished.is_set(), f"{process.args!r} did not end"
    late.cancel()
