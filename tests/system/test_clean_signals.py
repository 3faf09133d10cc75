"""The tests mean the same however they are started: in a terminal, under nohup, from cron."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

PROGRAM = """
import os, signal, sys
from support.signals import reset_for_children
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGINT])
reset_for_children()
os.kill(os.getpid(), signal.SIGHUP)
os.execvp("cat", ["cat", "/proc/self/status"])
"""


def signals_of(status: str, field: str) -> set[signal.Signals]:
    """The signals in a set of the kernel's table."""
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    bits = int(line.split()[1], 16)
    return {number for number in signal.Signals if bits >> (number - 1) & 1}


def test_programs_start_with_clean_signals() -> None:
    """Whatever was ignored or blocked, programs get it; a hang-up that was ignored still ends nothing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert signals_of(done.stdout, "SigIgn") <= {signal.SIGPIPE, signal.SIGXFSZ}  # which Python itself ignores
    assert signals_of(done.stdout, "SigBlk") == set()


def test_this_run_has_clean_signals() -> None:
    """What a test starts right now has no signal ignored and none blocked."""
    command = ["cat", "/proc/self/status"]
    status = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert (signals_of(status, "SigIgn"), signals_of(status, "SigBlk")) == (set(), set())
