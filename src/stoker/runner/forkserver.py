"""The forkserver: a small single-threaded process that only forks workers.

Standard library only, and little of that: no command starts before all of it is imported. It is a program of its own,
so that no worker carries a copy of the engine's threads, SQLite files or driver state. It exits when the engine's end
of its socket closes; workers live on.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys

from stoker.runner import processes
from stoker.runner.inherited import NUMBERS, inherited_locks
from stoker.runner.worker import Worker

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def main() -> None:
    """Fork a worker for every message: a byte each for sharing our input and output, and its folder.

    The descriptors with it are the listener, the lock, the journal, and the lock that jobs inherit. If no process can
    be made, the answer is the error's number and the folder.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a worker that inherited a blocked SIGCHLD would miss ends
    for signal_number in IGNORED:
        signal.signal(signal_number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    boot = processes.boot_id()
    gc.freeze()  # else a worker's first collection would copy every shared page
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 4096, 4)
        for descriptor in descriptors:  # a job that inherited the lock would make a dead worker look alive
            os.set_inheritable(descriptor, False)
        if not data:
            os._exit(0)  # the engine waits for it, and there is nothing to clean up
        try:
            is_worker = os.fork() == 0
        except OSError as error:
            is_worker = False
            with contextlib.suppress(OSError):  # the engine may be dead, or not read answers for long
                control.send(b"%d " % (error.errno or 0) + data[2:], socket.MSG_DONTWAIT)
        if is_worker:
            control.close()
            _leave_streams(share_input=bool(data[0]), share_output=bool(data[1]))
            _become_worker(os.fsdecode(data[2:]), boot, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _leave_streams(*, share_input: bool, share_output: bool) -> None:
    """Close streams that jobs do not use: a worker outlives the engine and must not keep a terminal or pipe open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, shared in ((0, share_input), (1, share_output), (2, share_output)):
        if not shared:
            os.dup2(nothing, number)
    os.close(nothing)


def _become_worker(folder: str, boot: str, listener: int, _lock: int, journal: int, inherited: int) -> None:
    """Never return. The lock is held as long as this process lives, because its descriptor stays open.

    The inherited lock is held as long as this process or one of its jobs lives that did not close the descriptor.
    """
    try:
        os.setsid()
        processes.become_subreaper()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        passed = [_pass_on(inherited), *NUMBERS]
        worker = Worker(socket.socket(fileno=listener), journal, boot)
        worker.serve()
        if worker.lost_engine:
            for number in passed:  # the engine would keep the lock
                with contextlib.suppress(OSError):
                    os.set_inheritable(number, False)
            _restart_engine(os.path.dirname(os.path.dirname(folder)))
    except BaseException:
        import traceback  # seldom needed, and slow to import

        with open(f"{folder}/error", "w") as report:
            traceback.print_exc(file=report)
        raise
    finally:
        os._exit(0)


def _pass_on(descriptor: int) -> int:
    """Let jobs inherit a descriptor, under a high number if one is free and the limit on open files allows that.

    Inside a job the first of them is the lock of that job's worker, which jobs inside it inherit too.
    """
    held = inherited_locks()
    number = next((number for number in NUMBERS if number not in held), descriptor)
    try:
        os.dup2(descriptor, number, inheritable=True)
    except OSError:
        number = descriptor
    os.set_inheritable(number, True)
    if number != descriptor:
        os.close(descriptor)
    return number


def _restart_engine(state: str) -> None:
    """Become the command that starts the engine again, if that was killed: one that exits removes the file first.

    It cannot be a child: the worker is the subreaper of all that descends from it.
    """
    try:
        with open(f"{state}/engine.restart", "rb") as file:
            record = json.load(file)
        for signal_number in IGNORED:
            signal.signal(signal_number, signal.SIG_DFL)
        _leave_streams(share_input=False, share_output=False)
        os.execve(record["command"][0], record["command"], record["environment"])  # noqa: S606
    except (OSError, LookupError, TypeError, ValueError):
        return  # there is none, or it is damaged; the next command that a user types starts the engine
