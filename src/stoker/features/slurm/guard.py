"""The first process of a task on a node: runs a program as its child, and ends all that came from it before it ends.

Slurm takes a task for over when its first process ends, and if it keeps processes by descent it loses sight of those
whose parent died. So this process is the parent of all orphans. It does nothing that could fail, and is easily killed
only by hand; then the kernel tells the child. Standard library only: imports over a network file system are slow.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

from stoker.features.slurm.shared import GONE, BundleFolder, append
from stoker.runner import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

LOOK_INTERVAL = 1.0
"""Seconds between two checks whether Slurm's process of the task lives."""
PATIENCE_SECONDS = 60.0
"""Seconds after which a check of a node gives up killing processes; the head asks again."""
EVENTS = "events"
"""File by which a pilot tells what happens."""
OWN_CLAIM = "pilot"
"""The claim of a pilot itself: by its first process, or by the head, which has no more use for it."""
OVER = '{"type":"over"}'
"""The line by which the folder of a pilot tells that nothing is left of it."""
_FORWARDED = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))


def guard(run: Callable[[], None], over: Callable[[int], None], at_death: int) -> NoReturn:
    """Run a program in a child, kill all that it leaves, and only then call `over` with its exit code and exit.

    `at_death` is the signal that the child gets when this process is killed.
    """
    processes.become_subreaper()
    step, own = os.getppid(), os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_FORWARDED})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        processes.get_signal_at_death_of(own, at_death)
        run()
        os._exit(0)
    code = _wait(child, step)
    while _has_children():  # a look alone may miss a process whose parent ends meanwhile
        processes.end(lambda: processes.descendants(own))
    over(code)
    os._exit(code)


def _wait(child: int, step: int) -> int:
    """Wait for the end of the child, or of Slurm's process of the task, and pass signals on; the exit code."""
    while True:
        received = signal.sigtimedwait({signal.SIGCHLD, *_FORWARDED}, LOOK_INTERVAL)
        if received is not None and received.si_signo in _FORWARDED:
            os.kill(child, received.si_signo)
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
        if os.getppid() != step:
            return 128 + signal.SIGKILL


def _has_children() -> bool:
    """Whether anything is left below this process, which is the parent of all orphans there; it collects the dead."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def gone_line(attempt: str) -> str:
    """The line of a journal by which a node tells that no process of an attempt is left."""
    return f"{GONE} {attempt}"


def tell(path: str, line: str) -> None:
    """Append a line to a file whose writer is dead, perhaps in the middle of a line."""
    append(path, f"\n{line}\n".encode())


def check(allocation: str, path: str, line: str) -> None:
    """Kill all that is left of an allocation on this node, and say in a file of its folder that nothing is."""
    mark = f"{processes.ALLOCATION}={allocation}".encode()
    if processes.end(lambda: processes.marked(mark), PATIENCE_SECONDS):
        tell(path, line)


def main() -> None:
    """Guard the pilot of a folder, or check what is left of an allocation."""
    if sys.argv[1] == "check":
        check(*sys.argv[2:])
        return
    folder, *words = sys.argv[2:]
    if not BundleFolder(folder).claim(OWN_CLAIM):  # a second job for this pilot must not tell that the first is over
        return
    pilot = partial(os.execv, words[0], words)
    guard(pilot, lambda _: tell(f"{folder}/{EVENTS}", OVER), signal.SIGKILL)


if __name__ == "__main__":
    main()
