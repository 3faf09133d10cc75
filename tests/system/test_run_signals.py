"""Signals to `stoker run`: draining, stopping, killing, and asking how it goes."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, Signals

import pytest

from support.cli import TIMEOUT_SECONDS, Stoker, until

PATIENT = f"trap 'echo termed >> ends; exit 5' TERM; echo up >> ups; {until('go')}; echo finished >> ends"
STUBBORN = f"trap '' TERM; echo up >> ups; {until('go')}"


class Told:
    """What a run says on standard error or at a terminal, as it comes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""

    def wait(self, words: str) -> None:
        """Wait until it has said the words."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while words not in self.text:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"never said {words!r}: {self.text}"
            more = os.read(self._descriptor, 65536)
            assert more, f"ended without {words!r}: {self.text}"
            self.text += more.decode(errors="replace")


def started(stoker: Stoker, *jobs: str) -> tuple[subprocess.Popen[bytes], Told]:
    """A run of which the first job runs and another waits."""
    stoker.write("jobs.txt", *jobs, "echo second >> ends")
    run = stoker.start("run", "--devices", "0", "jobs.txt")
    stoker.wait_lines("ups", 1)
    assert run.stderr
    told = Told(run.stderr.fileno())
    told.wait("start #1")
    return run, told


@contextmanager
def at_terminal(stoker: Stoker, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A run at a terminal of its own, which is hung up at the end, and the far end of that terminal."""
    far, near = pty.openpty()
    run = subprocess.Popen(
        ["setsid", "--ctty", "stoker", "run", "--devices", "0", *arguments],
        cwd=stoker.cwd,
        env={**stoker.environment, **environment},
        stdin=near,
        stdout=near,
        stderr=near,
    )
    os.close(near)
    try:
        yield run, far
    finally:
        os.close(far)


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGHUP, 129)])
def test_the_first_lets_running_jobs_finish(stoker: Stoker, number: Signals, code: int) -> None:
    """After Ctrl-C or a hang-up no more jobs start, running jobs finish, and the rest is kept."""
    run, told = started(stoker, PATIENT)
    run.send_signal(number)
    run.send_signal(SIGUSR1)
    told.wait("1 running, 1 waiting")
    (stoker.cwd / "go").touch()
    told.wait("not started")
    assert stoker.finish(run).code == code
    assert stoker.lines("ends") == ["finished"]
    assert "1 ok, 1 not started" in told.text


def test_the_second_stops_running_jobs(stoker: Stoker) -> None:
    """A second Ctrl-C sends TERM, which a job may use to put things in order."""
    run, told = started(stoker, PATIENT)
    run.send_signal(SIGINT)
    told.wait("starting no more jobs; 1 running; press again to stop them")
    run.send_signal(SIGINT)
    told.wait("1 cancelled, 1 not started")
    assert stoker.finish(run).code == 130
    assert stoker.lines("ends") == ["termed"]


@pytest.mark.parametrize(
    "steps",
    [
        [(SIGINT, "press again to stop them"), (SIGINT, "press again to kill at once"), (SIGINT, "1 cancelled")],
        [(SIGTERM, "press again to kill at once"), (SIGTERM, "1 cancelled")],
    ],
)
def test_the_last_kills_them(stoker: Stoker, steps: list[tuple[Signals, str]]) -> None:
    """A third Ctrl-C, or a second SIGTERM, kills what does not listen, long before the grace is over."""
    run, told = started(stoker, STUBBORN)
    for number, words in steps:
        run.send_signal(number)
        told.wait(words)
    assert stoker.finish(run).code == 128 + steps[-1][0]
    assert stoker.job_processes() == []


def test_a_termination_stops_at_once(stoker: Stoker) -> None:
    """SIGTERM is the second Ctrl-C: jobs are asked to end, and what waits is kept for --resume."""
    run, told = started(stoker, PATIENT)
    run.send_signal(SIGTERM)
    told.wait("1 cancelled, 1 not started")
    assert stoker.finish(run).code == 143
    assert stoker.lines("ends") == ["termed"]
    (stoker.cwd / "go").touch()
    assert stoker("run", "--devices", "0", "--resume", "jobs.txt").code == 0
    assert sorted(stoker.lines("ends")) == ["finished", "second", "termed"]


def test_the_grace_ends_in_a_kill(stoker: Stoker) -> None:
    """After --grace what did not end by itself is killed without another signal."""
    run = stoker.start("run", "--devices", "0", "--grace", "0.2s", "--", "sh", "-c", STUBBORN)
    stoker.wait_lines("ups", 1)
    run.send_signal(SIGTERM)
    assert stoker.finish(run).code == 128 + SIGKILL


def test_status_on_request(stoker: Stoker) -> None:
    """SIGUSR1 prints how far the run is, and changes nothing."""
    run, told = started(stoker, PATIENT)
    run.send_signal(SIGUSR1)
    told.wait("stoker: 0 of 2 finished (0 ok, 0 failed), 1 running, 1 waiting")
    (stoker.cwd / "go").touch()
    told.wait("2 ok")
    assert stoker.finish(run).code == 0


def test_jobs_do_not_get_the_terminals_signals(stoker: Stoker) -> None:
    """Ctrl-C at a terminal reaches the run alone: its job goes on and finishes."""
    with at_terminal(stoker, "--", "sh", "-c", PATIENT) as (run, master):
        stoker.wait_lines("ups", 1)
        os.write(master, b"\x03")
        Told(master).wait("press again")
        (stoker.cwd / "go").touch()
        assert run.wait(TIMEOUT_SECONDS) == 0
    assert stoker.lines("ends") == ["finished"]


@pytest.mark.parametrize("terminal", ["dumb", "xterm"])
def test_a_hang_up_of_the_terminal_drains(stoker: Stoker, terminal: str) -> None:
    """When the terminal goes away the job is finished and recorded, though nobody can be told."""
    stoker.write("jobs.txt", PATIENT, "echo second >> ends")
    with at_terminal(stoker, "jobs.txt", TERM=terminal) as (run, _):
        stoker.wait_lines("ups", 1)
    (stoker.cwd / "go").touch()
    assert run.wait(TIMEOUT_SECONDS) == 128 + SIGHUP
    assert stoker.lines("ends")[0] == "finished"
    assert stoker("run", "--devices", "0", "--resume", "jobs.txt").code == 0
    assert stoker.lines("ends") == ["finished", "second"]


def test_an_ignored_hang_up_stays_ignored(stoker: Stoker) -> None:
    """Under nohup a hang-up changes nothing."""
    stoker.write("jobs.txt", PATIENT, "echo second >> ends")
    command = ["nohup", "stoker", "run", "--devices", "0", "jobs.txt"]
    run = subprocess.Popen(
        command, cwd=stoker.cwd, env=stoker.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stoker.wait_lines("ups", 1)
    run.send_signal(signal.SIGHUP)
    (stoker.cwd / "go").touch()
    assert run.wait(TIMEOUT_SECONDS) == 0
    assert stoker.lines("ends") == ["finished", "second"]
