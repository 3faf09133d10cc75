"""`stoker top` on a real terminal, beside a real engine."""

from __future__ import annotations

import re
import signal
import sys

import psutil
import pytest

from stoker.core.spec import Resources
from support.background import Background
from support.cli import until
from support.terminal import Terminal, open_terminal
from support.wait import PATIENCE_SECONDS, wait_until

STOKER = [sys.executable, "-m", "stoker"]


def test_a_job_is_seen_followed_and_cancelled(background: Background) -> None:
    """It shows a job when it comes, its log as it grows, and stops it after a question; q leaves the rest running."""
    first, second = background.submit(f"echo hello; {until('go')}; echo more", until("never"), names=["talks", "stays"])
    background.wait_word("running", first, second)
    with open_terminal(background.cwd, **_state(background)) as terminal:
        terminal.start([*STOKER, "top"], 100, 30)
        terminal.wait_for("SIM", "2 running", "talks", "stays", "q quit")
        terminal.press("Enter")
        terminal.wait_for("log (following)", "hello")
        background.open_gate("go")
        terminal.wait_for("1 running")
        (third,) = background.submit(until("never"), names=["late"])
        terminal.wait_for("late")
        terminal.press("/")
        terminal.wait_for("part of a name")
        for letter in "late":
            terminal.press(letter)
        terminal.press("Enter")
        terminal.wait_for("filter: late", f"▸ {third} ", f"job {third} running")
        terminal.press("c")
        terminal.wait_for(f"cancel {third} late (running)?")
        terminal.press("y")
        background.wait_word("cancelled", third)
        terminal.press("q")
        terminal.wait_for("exit code 0")
    assert background.word(second) == "running"


def test_a_key_lets_a_job_give_way(background: Background) -> None:
    """After a question; the line then says to whom. A job that is not preemptible stays."""
    saves = f"trap 'exit 75' USR1; touch ready; {until('enough')}"
    (long,) = background.submit(saves, names=["long"], resources=Resources(gpus=2), preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    (short,) = background.submit(until("gate"), names=["short"], resources=Resources(gpus=2), priority=1)
    with open_terminal(background.cwd, **_state(background)) as terminal:
        terminal.start([*STOKER, "top"], 120, 30)
        terminal.wait_for("1 running", "long", "short", "q quit")
        terminal.press("g")
        terminal.wait_for(f"preempt {long} long (running)?")
        terminal.press("y")
        background.wait_word("running", short)
        terminal.wait_for(f"preempted: gave way to job {short} (preempted by")
        terminal.press("g")
        terminal.wait_for(f"{long} does not run (queued)")
        terminal.press("Up")
        terminal.press("g")
        terminal.wait_for(f"preempt {short} short (running)?")
        terminal.press("y")
        terminal.wait_for(f"not preemptible: {short}")
        terminal.press("q")
        terminal.wait_for("exit code 0")
    for gate in ("gate", "enough"):
        background.open_gate(gate)
    background.wait_over(long, short)


def test_colours_are_those_of_the_terminal(background: Background) -> None:
    """Only its own ones, which fit light and dark backgrounds; with NO_COLOR there are none."""
    (job,) = background.submit(until("never"))
    background.wait_word("running", job)
    with open_terminal(background.cwd, **_state(background), NO_COLOR="1") as terminal:
        terminal.start([*STOKER, "watch", "--readonly"], 80, 24)
        terminal.wait_for("read-only", "running")
        assert not re.search(r"\x1b\[[\d;]*\b(3[0-8]|9\d)\b", terminal.painted())
    with open_terminal(background.cwd, **_state(background)) as terminal:
        terminal.start([*STOKER, "status", "-w"], 80, 24)
        terminal.wait_for("running")
        wait_until(lambda: "\x1b[32m" in terminal.painted())
        assert "38;2" not in terminal.painted()
        terminal.press("C-c")
        terminal.wait_for("exit code 0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(background: Background, number: signal.Signals) -> None:
    """As after `q`; the exit code tells the signal, as for a program that died of it."""
    with open_terminal(background.cwd, **_state(background)) as terminal:
        terminal.start([*STOKER, "top"], 80, 24)
        terminal.wait_for("q quit")
        assert terminal.modes() == "1 1 0"
        _top_in(terminal).send_signal(number)
        terminal.wait_for(f"exit code {128 + number}")
        assert terminal.modes() == "0 0 1"


def test_it_ends_with_its_terminal(background: Background) -> None:
    """Nothing is left running when the window is closed."""
    with open_terminal(background.cwd, **_state(background)) as terminal:
        terminal.start([*STOKER, "top"], 80, 24)
        terminal.wait_for("q quit")
        top = _top_in(terminal)
        terminal.close()
        top.wait(PATIENCE_SECONDS)


def test_ctrl_z_suspends_it(background: Background) -> None:
    """The shell is there meanwhile, and `fg` brings the view back."""
    with open_terminal(background.cwd, **_state(background)) as terminal:
        terminal.start(["bash", "--norc", "--noprofile", "-i"], 100, 24)
        terminal.press(f"{sys.executable} -m stoker top")
        terminal.press("Enter")
        terminal.wait_for("q quit")
        terminal.press("C-z")
        terminal.wait_for("Stopped")
        assert terminal.modes() == "0 0 1"
        terminal.press("fg")
        terminal.press("Enter")
        terminal.wait_for("q quit")
        terminal.press("q")
        terminal.wait_for("Stopped")


def test_it_needs_a_terminal(background: Background) -> None:
    """A program is told what to type instead."""
    told = background("top")
    assert told.code == 2
    assert "stoker status --json" in told.err


def _top_in(terminal: Terminal) -> psutil.Process:
    (top,) = psutil.Process(terminal.process()).children()
    return top


def _state(background: Background) -> dict[str, str]:
    return {name: value for name, value in background.environment.items() if name.startswith("STOKER_")}


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_move_its_cursor(background: Background, term: str) -> None:
    """No control sequence is written to it."""
    names = ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "PATH")
    with open_terminal(background.home, **{name: background.environment[name] for name in names}) as terminal:
        terminal.start(["env", f"TERM={term}", "stoker", "top"], 80, 24)
        assert "the live view needs a terminal that can move its cursor" in terminal.wait_for("exit code 2")
