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
from collections.abc import Sequence

from stoker.runner import processes
from stoker.runner.inherited import NUMBERS, inherited_locks
from stoker.runner.spawn import ForkedJob, Image
from stoker.runner.worker import Worker

IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def main() -> None:
    """Serve until the engine's end of the socket closes."""
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(control: socket.socket, image: Image | None = None, streams: Sequence[int] = (0, 1, 2)) -> None:
    """Fork a worker for every message: a byte each for sharing our input and output, and its folder.

    The descriptors with it are the listener, the lock, the journal, and the lock that jobs inherit. If no process can
    be made, the answer is the error's number and the folder. `image` has modules for jobs that the workers fork; then
    our streams have other numbers.
    """
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
            _leave_streams(share_input=bool(data[0]), share_output=bool(data[1]), streams=streams)
            _become_worker(os.fsdecode(data[2:]), boot, descriptors, image)
        for descriptor in descriptors:
            os.close(descriptor)


def _leave_streams(*, share_input: bool, share_output: bool, streams: Sequence[int] = (0, 1, 2)) -> None:
    """Close streams that jobs do not use: a worker outlives the engine and must not keep a terminal or pipe open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, (stream, shared) in enumerate(zip(streams, (share_input, share_output, share_output), strict=True)):
        source = stream if shared else nothing
        if source != number:
            os.dup2(source, number)
    os.close(nothing)
    for stream in {*streams} - {0, 1, 2}:
        os.close(stream)


def _become_worker(folder: str, boot: str, descriptors: Sequence[int], image: Image | None) -> None:
    """Never return, but raise ForkedJob in a process of a job that has the modules of the image.

    The lock is held as long as this process lives, because its descriptor stays open. The inherited lock is held as
    long as this process or one of its jobs lives that did not close the descriptor.
    """
    try:
        _work(folder, boot, descriptors, image)
    except ForkedJob:
        raise
    except BaseException:
        import traceback  # seldom needed, and slow to import

        with contextlib.suppress(OSError), open(f"{folder}/error", "w") as report:
            traceback.print_exc(file=report)
    os._exit(0)


def _work(folder: str, boot: str, descriptors: Sequence[int], image: Image | None) -> None:
    listener, _lock, journal, inherited = descriptors
    os.setsid()
    processes.become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    passed = [_pass_on(inherited), *NUMBERS]
    worker = Worker(socket.socket(fileno=listener), journal, boot, image)
    try:
        worker.serve()
    except ForkedJob:
        worker.let_go()
        raise
    if worker.lost_engine:
        for number in passed:  # the engine would keep the lock
            with contextlib.suppress(OSError):
                os.set_inheritable(number, False)
        _restart_engine(os.path.dirname(os.path.dirname(folder)))


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
