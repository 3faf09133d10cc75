"""The program that makes a daemon ready for one more client, stops it after the last one, and ends the work of clients.

Standard library only: it is started often, and without site packages.
"""

from __future__ import annotations

import os

from stoker.core.errors import StokerError
from stoker.devices.mps.control import Control, make_exclusive, restore_mode
from stoker.devices.mps.daemon import DaemonPaths, lock_supervisor, wait_last_client

TERMINATE_SECONDS = 5.0
"""A worker waits a little longer than that."""


def main(words: list[str]) -> None:
    """The words are a task, the control program, the daemon's directory, and what the task needs."""
    task, program, root, *rest = words
    if task == "terminate":
        terminate(program, DaemonPaths(root), rest)
    else:
        supervise(program, DaemonPaths(root), *rest)


def terminate(program: str, paths: DaemonPaths, pids: list[str]) -> None:
    """End the GPU work of processes before they are killed: a kill in the midst of it may wedge the MPS server."""
    control = Control(program, paths, {"PATH": os.defpath})
    control.terminate({int(pid) for pid in pids}, TERMINATE_SECONDS)


def supervise(program: str, paths: DaemonPaths, visible: str, client_lock: str, mode: str) -> None:
    """Print `ready`, or `failed` with a reason and a hint, once the daemon is ready or will not be.

    A child stays behind that stops the daemon after the last client: the kernel tells it, so no engine has to be
    there for that. As long as this process has the client's lock, nothing stops the daemon it starts; when it is
    killed, the child does.
    """
    control = Control(program, paths, os.environ)
    supervisor_lock = lock_supervisor(paths)
    if supervisor_lock is not None:
        _fork_supervisor(control, paths, visible, supervisor_lock, int(client_lock))
    try:
        _make_ready(control, paths, visible, exclusive=mode == "exclusive")
    except StokerError as error:
        print(f"failed\t{error.message}\t{error.hint}", flush=True)
    else:
        print("ready", flush=True)


def _make_ready(control: Control, paths: DaemonPaths, visible: str, *, exclusive: bool) -> None:
    if control.alive():
        return
    if exclusive and (note := make_exclusive(visible, paths)):
        print(f"note\t{note}")
    control.start(visible)


def _fork_supervisor(
    control: Control, paths: DaemonPaths, visible: str, supervisor_lock: int, client_lock: int
) -> None:
    """Let a child wait for the last client; it keeps the supervisor's lock and is no client itself."""
    if os.fork() > 0:
        os.close(supervisor_lock)
        return
    try:
        os.close(client_lock)
        _detach()
        last = wait_last_client(paths)
        control.quit()
        restore_mode(visible, paths)
        os.close(supervisor_lock)  # before others may become clients: the next supervisor must find it free
        os.close(last)
    finally:
        os._exit(0)


def _detach() -> None:
    """Survive the end of the terminal, and keep no stream of the parent open."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
