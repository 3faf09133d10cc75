"""A launcher that has the work done by a process in a session of its own, as torchrun does."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def launch(work: Callable[[], int]) -> int:
    """Do the work in a child, pass SIGTERM on to it, and end as it ends."""
    # Until it is settled who has to hear it, the signal waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        os._exit(_isolated(work))

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _isolated(work: Callable[[], int]) -> int:
    code = 1
    try:
        os.setsid()
        # Without a handler of its own the child would die of a signal that came early, like any program.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        code = work()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code
