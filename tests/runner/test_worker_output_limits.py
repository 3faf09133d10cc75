"""Limits of the time without output: what counts as output, what stops the count, and how an attempt then ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.core.spec import JobSpec
from stoker.runner import processes, worker
from stoker.runner.worker import LOOKS, RunningAttempt
from support.local import Yard
from support.wait import PATIENCE_SECONDS, wait_until

SECONDS = 120.0
STEP = SECONDS / LOOKS


class Clock:
    """The worker's clock; each call of `look` is one look later."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Attempt(RunningAttempt):
    """An attempt whose output is told by the test."""

    sizes: tuple[int, ...] | None = (0, 0, 0)

    def output_sizes(self) -> tuple[int, ...] | None:
        return self.sizes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(worker, "_boot_clock", clock)
    monkeypatch.setattr(worker, "_descendants", list)
    return clock


def order(**limits: float) -> dict[str, Any]:
    return {
        "attempt": "1.1",
        "extra": {},
        "grace": 30.0,
        "limit": None,
        "first_output": None,
        "silent": None,
        **limits,
    }


def looks(attempt: Attempt, clock: Clock, count: int, seconds: float = STEP) -> list[bool]:
    """Whether the only limit is reached at each of the next looks."""
    (limit,) = attempt.limits
    reached = []
    for _ in range(count):
        clock.now = max(clock.now + seconds, limit.at)
        reached.append(limit.is_reached(attempt, clock.now))
    return reached


def test_silence_counts_from_the_last_output(clock: Clock) -> None:
    attempt = Attempt(order(silent=SECONDS), 1, (0, 0, 0))
    assert not any(looks(attempt, clock, LOOKS - 1))
    attempt.sizes = (7, 7, 0)
    assert looks(attempt, clock, LOOKS + 1) == [False] * LOOKS + [True]
    assert attempt.limits[0].note == "no output for 2 min"


def test_only_the_first_output_is_waited_for(clock: Clock) -> None:
    attempt = Attempt(order(first_output=SECONDS), 1, (5, 5, 0))
    attempt.sizes = (5, 5, 0)
    assert not any(looks(attempt, clock, LOOKS - 1))
    attempt.sizes = (6, 6, 0)
    assert looks(attempt, clock, 1) == [False]
    assert attempt.limits[0].at == worker.NEVER


def test_output_that_is_not_seen_ends_nothing(clock: Clock) -> None:
    attempt = Attempt(order(silent=SECONDS), 1, (0, 0, 0))
    attempt.sizes = None
    assert not any(looks(attempt, clock, 3 * LOOKS))


def test_a_jump_of_the_clock_counts_as_two_looks(clock: Clock) -> None:
    """The clock goes on while the machine sleeps, or while the worker is stopped."""
    attempt = Attempt(order(silent=SECONDS), 1, (0, 0, 0))
    assert looks(attempt, clock, 1, 50 * SECONDS) == [False]
    assert looks(attempt, clock, LOOKS - 2) == [False] * (LOOKS - 3) + [True]


def test_stopped_processes_are_not_silent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        monkeypatch.setattr(worker, "_descendants", lambda: processes.descendants(os.getpid()))
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: processes.stopped(process.pid))
        attempt = Attempt(order(silent=SECONDS), 1, (0, 0, 0))
        assert not any(looks(attempt, clock, 3 * LOOKS))
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not processes.stopped(process.pid))
        assert looks(attempt, clock, LOOKS)[-1]
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


def test_a_new_engine_repeats_the_order(clock: Clock) -> None:
    """The count goes on, with the new time if that has changed."""
    attempt = Attempt(order(silent=SECONDS), 1, (0, 0, 0))
    looks(attempt, clock, LOOKS - 1)
    attempt.set_limits(order(silent=SECONDS))
    assert looks(attempt, clock, 1) == [True]
    attempt.set_limits(order(silent=2 * SECONDS))
    assert looks(attempt, clock, 1) == [False]


def test_sizes(tmp_path: Path) -> None:
    """Both streams and what a program reports show that it lives, also in files that were renamed meanwhile."""
    out, report = tmp_path / "out", tmp_path / "report"
    with out.open("wb") as stream:
        process = subprocess.Popen(["sleep", "1000"], stdout=stream, stderr=stream)
    try:
        attempt = RunningAttempt({**order(silent=SECONDS), "extra": {"STOKER_REPORT": str(report)}}, process.pid, ())
        assert attempt.output_sizes() == (0, 0, 0)
        out = out.rename(tmp_path / "rotated")
        out.write_text("a line\n")
        report.write_text("{}\n")
        assert attempt.output_sizes() == (7, 7, 3)
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    assert attempt.output_sizes() is None


class TestEnds:
    """Real commands."""

    def test_no_output_at_all(self, works: Yard) -> None:
        """The lines of earlier attempts in the same file do not count."""
        works.log().write_text("of an earlier attempt\n")
        over = works.run("sleep", "1000", first_output=0.3)
        assert (over.why, over.signal, over.note) == ("hung", signal.SIGTERM, "no output in the first 0.3 s")

    def test_output_and_then_nothing(self, works: Yard) -> None:
        """The first output is enough for one limit, and not for the other."""
        worker = works.begin("echo started; sleep 1000", shell="/bin/sh", first_output=900.0)
        works.wait_log("started\n")
        works.runner.set_limits(worker, "1.1", JobSpec(first_output=900.0, silent=0.3))
        over = works.wait_over()
        assert (over.why, over.note, works.log().read_text()) == ("hung", "no output for 0.3 s", "started\n")

    def test_it_may_not_ignore_that(self, works: Yard) -> None:
        worker = works.begin("trap '' TERM; echo ready; while :; do sleep 0.02; done", shell="/bin/sh")
        works.wait_log("ready\n")
        works.runner.set_limits(worker, "1.1", JobSpec(silent=0.3, grace=0.2))
        over = works.wait_over()
        assert (over.why, over.signal) == ("hung", signal.SIGKILL)

    @pytest.mark.parametrize("place", ["/dev/null", "pipe"])
    def test_output_elsewhere(self, works: Yard, tmp_path: Path, place: str) -> None:
        """A device or a FIFO does not show how much was written, so nothing is concluded from it."""
        fifo = tmp_path / "pipe"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            over = works.run("sleep 0.5; exit 3", shell="/bin/sh", out=str(tmp_path / place), silent=0.1)
        finally:
            os.close(reader)
        assert (over.why, over.code) == ("exited", 3)

    def test_while_it_waits_in_its_worker(self, works: Yard) -> None:
        """An attempt behind another one gets the limit before it starts."""
        worker = works.begin("sleep", "1000")
        works.start(worker, "2.1", "sleep", "1000")
        works.runner.set_limits(worker, "2.1", JobSpec(silent=0.2))
        works.runner.stop(worker, "1.1", 0.0)
        assert works.wait_over("2.1").why == "hung"
