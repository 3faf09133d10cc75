"""What every control program has to do: functions that are the whole program of a process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from stoker.devices.mps.daemon import DaemonPaths, MpsTrouble, lock_client, prepare
from stoker.devices.mps.supervisor import Deadlines, MpsDaemon
from stoker.devices.mps.supervisor import main as supervisor
from support.mps import GPU, log_of
from support.wait import PATIENCE_SECONDS, wait_until

SHORT = Deadlines(start=1.0, ask=0.3, quit=0.3, gone=0.2)


def starts_and_quits(program: str, root: str) -> None:
    """A daemon answers from its start until it quits, and can be started again where its sockets lie about."""
    paths, control = _prepared(program, root)
    assert not control.alive()
    for _ in range(2):
        control.start(GPU)
        assert control.alive()
        assert control.holder() is not None
        control.quit()
        assert not control.alive()
        assert control.holder() is None
        assert stat.S_ISSOCK(Path(paths.pipe, "control").stat().st_mode)


def runs_already(program: str, root: str) -> None:
    """A daemon that runs already is left as it is."""
    _, control = _prepared(program, root)
    control.start(GPU)
    before = control.holder()
    control.start(GPU)
    assert control.holder() == before
    control.quit()


def was_killed(program: str, root: str) -> None:
    """Where a daemon was killed, the next start makes another."""
    _, control = _prepared(program, root)
    control.start(GPU)
    before = control.holder()
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: control.holder() is None)
    assert not control.alive()
    control.start(GPU)
    assert control.alive()
    assert control.holder() != before
    control.quit()


def was_stopped(program: str, root: str) -> None:
    """A daemon that does not answer is not alive, cannot be started over, and is killed where it has to quit."""
    paths, willing = _prepared(program, root)
    willing.start(GPU)
    control = MpsDaemon(program, paths, os.environ, SHORT)
    holder = control.holder()
    assert holder is not None
    os.kill(holder, signal.SIGSTOP)
    assert not control.alive()
    with pytest.raises(MpsTrouble, match=rf"does not answer \(process {holder}\)"):
        control.start(GPU)
    control.quit()
    assert control.holder() is None


def quits_unasked(program: str, root: str) -> None:
    """To quit without a daemon is no trouble."""
    _, control = _prepared(program, root)
    control.quit()


def has_no_clients(program: str, root: str) -> None:
    """Without a client there is nothing to terminate."""
    _, control = _prepared(program, root)
    control.start(GPU)
    assert control.terminate({1, os.getpid()}, 1.0) == []
    control.quit()


def says_so_in_words(program: str, root: str) -> None:
    """Return codes mean nothing: what is unknown, out of range or missing is said in words."""
    paths, control = _prepared(program, root)
    control.start(GPU)
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": paths.pipe}

    def say(command: str) -> tuple[int, str]:
        done = subprocess.run(
            [program],
            input=f"{command}\n",
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        return done.returncode, done.stdout

    assert say("sing") == (0, 'Unknown command "sing"\n')
    assert say("set_default_active_thread_percentage 50") == (0, "50.0\n")
    assert say("set_default_active_thread_percentage 150") == (0, "50.0\n")
    assert say("get_server_list") == (0, "")
    assert say("get_client_list 1") == (0, "Server 1 not found\n")
    assert say("terminate_client 1 2") == (0, "Server 1 not found\nServer 1 not found!\n1\n")
    control.quit()
    assert say("get_server_list") == (1, "")


def is_watched(program: str, root: str) -> None:
    """The daemon is there when the supervisor says so, and leaves when the last of its clients has let go."""
    paths, control = _prepared(program, root)
    clients = [client for client in (lock_client(paths), lock_client(paths)) if client is not None]
    for _ in clients:
        _call_supervisor([program, root, GPU], clients)
        assert control.alive()
    holder = control.holder()
    for client in clients:
        assert control.holder() == holder
        os.close(client)
    wait_until(lambda: control.holder() is None)
    assert "Cmd:quit" in log_of(paths)


DIALOGUES = (
    starts_and_quits,
    runs_already,
    was_killed,
    was_stopped,
    quits_unasked,
    has_no_clients,
    says_so_in_words,
    is_watched,
)


def _call_supervisor(words: list[str], clients: list[int]) -> None:
    """In a process of its own, without what it would not have if it were started as a program."""
    if (pid := os.fork()) == 0:
        try:
            for other in clients[1:]:
                os.close(other)
            supervisor(["supervise", *words, str(clients[0]), ""])
        finally:
            os._exit(0)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0])


def _prepared(program: str, root: str) -> tuple[DaemonPaths, MpsDaemon]:
    paths = DaemonPaths(root)
    prepare(paths)
    return paths, MpsDaemon(program, paths, os.environ)
