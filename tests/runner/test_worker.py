"""One worker and its attempts, as real processes: how they run, how they end, and how they are ended."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from stoker.core.spec import EarlySignal, JobSpec
from stoker.runner.journal import AttemptExited, AttemptReturned, AttemptStarted
from stoker.runner.worker import LINGER_SECONDS
from support.cli import until
from support.local import Yard, lives, wait_pid
from support.wait import wait_until

SHORT_SLEEPS = "while :; do sleep 0.02; done"
FOREVER = "while :; do sleep 1000; done"
WRITES_ITS_NUMBER = "echo $$ > pid; exec sleep 1000"

ESCAPES = {
    "child in the same group": f"sh -c '{WRITES_ITS_NUMBER}' & wait",
    "child in a session of its own": f"setsid sh -c '{WRITES_ITS_NUMBER}' & wait",
    "child in a group of its own": f"set -m; sh -c '{WRITES_ITS_NUMBER}' & wait",
    "daemon": f"(setsid sh -c '{WRITES_ITS_NUMBER}' &); {FOREVER}",
    "daemon without environment": f"(setsid env -i /bin/sh -c '{WRITES_ITS_NUMBER}' &); {FOREVER}",
    "process that ignores TERM": f"trap '' TERM; echo $$ > pid; {FOREVER}",
    "stopped process": f"sh -c 'echo $$ > pid; kill -STOP $$' & {FOREVER}",
}
"""Ways in which processes got away from other kill methods; each writes its number into the file `pid`."""


class TestEnds:
    """What is recorded of an end."""

    @pytest.mark.parametrize("code", [0, 1, 7, 137, 255])
    def test_exit_code(self, works: Yard, code: int) -> None:
        """The exit code is recorded as it was, also where it looks like a signal's."""
        over = works.run(f"exit {code}", shell="/bin/sh")
        assert (over.code, over.signal, over.why, over.note) == (code, 0, "exited", "")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP])
    def test_signal(self, works: Yard, number: signal.Signals) -> None:
        """A death by signal is recorded with the signal and with the code that a shell gives it."""
        over = works.run(f"kill -{number.value} $$", shell="/bin/sh")
        assert (over.code, over.signal, over.why) == (128 + number, number, "exited")

    def test_times(self, works: Yard) -> None:
        """Start and end are moments of the wall clock, between the order and the answer."""
        before = time.time()
        over = works.run("sleep", "0.1")
        (began,) = works.records(AttemptStarted)
        assert before - 0.001 <= began.at <= over.at - 0.1 <= time.time()

    def test_peak_memory(self, works: Yard) -> None:
        """The peak is that of the largest process, even if it is not the command itself."""
        over = works.run(f"{sys.executable} -c 'b\"x\" * 100_000_000'; true", shell="/bin/sh")
        assert 100_000_000 < over.peak < 200_000_000


class TestStop:
    """TERM, grace, KILL, for all that an attempt started."""

    def test_term_comes_first(self, works: Yard) -> None:
        """A command that handles TERM ends in its own way, and its code is kept."""
        worker = works.begin(
            "trap 'echo saved; exit 9' TERM; echo ready; while :; do sleep 0.01; done", shell="/bin/sh"
        )
        works.wait_log("ready\n")
        works.runner.stop(worker, "1.1", 10.0)
        over = works.wait_over()
        assert (over.code, over.why) == (9, "stopped")
        assert works.log().read_text().endswith("saved\n")

    def test_kill_comes_after_the_grace(self, works: Yard) -> None:
        """A command that ignores TERM is killed when the grace is over, not before."""
        worker = works.begin(f"trap '' TERM; echo ready; {FOREVER}", shell="/bin/sh")
        works.wait_log("ready\n")
        asked = time.time()
        works.runner.stop(worker, "1.1", 0.5)
        over = works.wait_over()
        assert (over.signal, over.why) == (signal.SIGKILL, "stopped")
        assert over.at - asked >= 0.49

    def test_second_stop_shortens_the_grace(self, works: Yard) -> None:
        """A stop without grace kills at once, also when a patient one was asked for before."""
        worker = works.begin(f"trap '' TERM; echo ready; {FOREVER}", shell="/bin/sh")
        works.wait_log("ready\n")
        works.runner.stop(worker, "1.1", 1000.0)
        works.runner.stop(worker, "1.1", 0.0)
        assert works.wait_over().signal == signal.SIGKILL

    @pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
    def test_nothing_escapes(self, works: Yard, escape: str) -> None:
        """When an attempt is over, nothing that it started lives, wherever it went."""
        worker = works.begin(escape, shell="/bin/bash")
        runaway = wait_pid(works.directory / "pid")
        works.runner.stop(worker, "1.1", 0.3)
        assert works.wait_over().why == "stopped"
        assert not lives(runaway)

    def test_stopped_process_hears_term(self, works: Yard) -> None:
        """A process that is stopped is woken to hear TERM, and need not be killed."""
        worker = works.begin("echo $$ > pid; kill -STOP $$", shell="/bin/sh")
        wait_pid(works.directory / "pid")
        works.runner.stop(worker, "1.1", 1000.0)
        assert works.wait_over().signal == signal.SIGTERM

    def test_attempt_that_is_not_there(self, works: Yard) -> None:
        """A stop that comes too late, or for another attempt, changes nothing."""
        worker = works.begin("sleep 0.2; exit 4", shell="/bin/sh")
        works.runner.stop(worker, "2.1", 0.0)
        over = works.wait_over()
        works.runner.stop(worker, "1.1", 0.0)
        works.start(worker, "3.1", "true")
        assert (over.code, works.wait_over("3.1").code) == (4, 0)


class TestGivingWay:
    """A job that is asked to leave for another."""

    SAVES = "trap 'echo saved; exit 75' USR1; echo ready; "

    def ask(self, works: Yard, worker: str, seconds: float = 60.0, *, saves: bool = True) -> None:
        number = signal.SIGUSR1 if saves else signal.SIGTERM
        works.runner.give_way(worker, "1.1", number, seconds, saves=saves)

    def test_job_that_saves(self, works: Yard) -> None:
        """It gets the signal once, however often it is asked, and the reason of its end is told."""
        worker = works.begin(f"{self.SAVES} {SHORT_SLEEPS}", shell="/bin/sh")
        works.wait_log("ready\n")
        self.ask(works, worker)
        self.ask(works, worker)
        over = works.wait_over()
        assert (over.code, over.why, works.log().read_text()) == (75, "preempted", "ready\nsaved\n")

    def test_program_behind_a_shell(self, works: Yard) -> None:
        """The shell would die of the signal, so only the program gets it, and what it exits with counts."""
        program = f"sh -c \"trap 'exit 75' USR1; echo ready; {SHORT_SLEEPS}\""
        worker = works.begin(f"{program}; exit $?", shell="/bin/sh")
        works.wait_log("ready\n")
        self.ask(works, worker)
        over = works.wait_over()
        assert (over.code, over.why) == (75, "preempted")

    def test_job_that_knows_no_signal(self, works: Yard) -> None:
        """It is not killed by it: all its work would be lost."""
        worker = works.begin("echo ready; exec sleep 1000", shell="/bin/sh")
        works.wait_log("ready\n")
        self.ask(works, worker, 0.1)
        works.start(worker, "2.1", "true")
        works.runner.recall(worker)
        works.wait_back("2.1")  # it has read the orders
        assert not works.records(AttemptExited)
        works.runner.stop(worker, "1.1", 10.0)
        assert works.wait_over().why == "stopped"

    def test_job_that_stays(self, works: Yard) -> None:
        """After its time to save its end is its own again, and it can be asked again."""
        worker = works.begin(f"trap 'echo asked' USR1; echo ready; {until('gate')}; exit 3", shell="/bin/sh")
        works.wait_log("ready\n")
        self.ask(works, worker, 0.05)
        works.wait_log("ready\nasked\n")

        def asked_again() -> bool:
            self.ask(works, worker, 0.05)
            return works.log().read_text().count("asked") > 1

        wait_until(asked_again)
        (works.directory / "gate").touch()
        over = works.wait_over()
        assert over.code == 3

    def test_leftovers_may_save(self, works: Yard) -> None:
        """A command that ends at the signal does not end the time of the processes that still save."""
        child = f"trap 'sleep {LINGER_SECONDS + 0.5}; echo saved; exit' USR1; echo ready; {SHORT_SLEEPS}"
        worker = works.begin(f"trap 'exit 1' USR1; sh -c \"{child}\" & while :; do wait; done", shell="/bin/sh")
        works.wait_log("ready\n")
        self.ask(works, worker)
        over = works.wait_over()
        assert (over.code, over.why, over.note) == (1, "preempted", "")
        assert works.log().read_text() == "ready\nsaved\n"

    def test_job_that_starts_again(self, works: Yard) -> None:
        """It gets TERM, and KILL after the grace."""
        worker = works.begin(f"trap '' TERM; echo ready; {SHORT_SLEEPS}", shell="/bin/sh")
        works.wait_log("ready\n")
        self.ask(works, worker, 0.1, saves=False)
        over = works.wait_over()
        assert (over.signal, over.why) == (signal.SIGKILL, "preempted")

    def test_cancel_comes_before_the_save(self, works: Yard) -> None:
        worker = works.begin(f"trap 'echo asked' USR1; echo ready; {SHORT_SLEEPS}", shell="/bin/sh")
        works.wait_log("ready\n")
        self.ask(works, worker)
        works.wait_log("ready\nasked\n")
        works.runner.stop(worker, "1.1", 10.0)
        assert works.wait_over().why == "stopped"

    def test_limit_while_it_saves(self, works: Yard) -> None:
        """A job that passes its limit has timed out, though it was asked to leave."""
        worker = works.begin(f"trap 'echo asked' USR1; echo ready; {SHORT_SLEEPS}", shell="/bin/sh", limit=1000.0)
        works.wait_log("ready\n")
        self.ask(works, worker)
        works.runner.set_limits(worker, "1.1", JobSpec(limit=0.01, grace=10.0))
        assert works.wait_over().why == "timeout"

    def test_attempt_that_is_over(self, works: Yard) -> None:
        """The order comes too late, and changes nothing for the next attempt."""
        worker = works.begin("true")
        works.wait_over()
        self.ask(works, worker, saves=False)
        works.start(worker, "2.1", "true")
        assert works.wait_over("2.1").why == "exited"


class TestTimeLimit:
    """A limit on running time."""

    def test_limit(self, works: Yard) -> None:
        """At its limit a command gets TERM, and the reason is told."""
        over = works.run("sleep", "1000", limit=0.2)
        (began,) = works.records(AttemptStarted)
        assert (over.signal, over.why) == (signal.SIGTERM, "timeout")
        assert over.at - began.at >= 0.19

    def test_signal_before_the_limit(self, works: Yard) -> None:
        """All processes of the command get the early signal, and may end before the limit."""
        child = f'trap "echo child; exit" USR1; {SHORT_SLEEPS}'
        over = works.run(
            f"trap 'wait; echo parent; exit 7' USR1; sh -c '{child}' & {SHORT_SLEEPS}",
            shell="/bin/sh",
            limit=1000.0,
            signal=EarlySignal(signal.SIGUSR1, 998.5),
        )
        assert {"child", "parent"} <= set(works.log().read_text().split())
        assert (over.code, over.why) == (7, "exited")

    def test_signal_for_the_command_alone(self, works: Yard) -> None:
        """With B: only the command gets the early signal."""
        child = f'trap "echo child" USR1; {SHORT_SLEEPS}'
        over = works.run(
            f"trap 'exit 7' USR1; sh -c '{child}' & {SHORT_SLEEPS}",
            shell="/bin/sh",
            limit=1000.0,
            signal=EarlySignal(signal.SIGUSR1, 998.5, command_only=True),
        )
        assert ("child" in works.log().read_text(), over.code, over.why) == (False, 7, "exited")

    def test_new_limit(self, works: Yard) -> None:
        """A new limit counts from the start of the command, and an early signal is sent once for each limit."""
        worker = works.begin(f"trap 'echo signalled' USR1; echo ready; {SHORT_SLEEPS}", shell="/bin/sh", limit=1000.0)
        works.wait_log("ready\n")
        early = EarlySignal(signal.SIGUSR1, 900.0)
        works.runner.set_limits(worker, "1.1", JobSpec(limit=900.5, signal=early))
        wait_until(lambda: "signalled" in works.log().read_text())
        works.runner.set_limits(worker, "1.1", JobSpec(limit=900.5, signal=early))  # as the next engine does
        works.runner.set_limits(worker, "1.1", JobSpec(limit=0.01, grace=0.2))
        over = works.wait_over()
        assert (works.log().read_text().count("signalled"), over.why) == (1, "timeout")

    def test_new_limit_of_a_queued_attempt(self, works: Yard) -> None:
        """An attempt that waits behind another one in its worker gets the new limit too."""
        worker = works.begin("sleep", "1000")
        works.start(worker, "2.1", "sleep", "1000")
        works.runner.set_limits(worker, "2.1", JobSpec(limit=0.05))
        works.runner.stop(worker, "1.1", 0.0)
        assert works.wait_over("2.1").why == "timeout"

    def test_limit_that_is_ignored(self, works: Yard) -> None:
        """Who ignores TERM at the limit is killed after the order's grace."""
        worker = works.begin(f"trap '' TERM; echo ready; {FOREVER}", shell="/bin/sh", limit=1000.0)
        works.wait_log("ready\n")
        works.runner.set_limits(worker, "1.1", JobSpec(limit=0.01, grace=0.2))
        over = works.wait_over()
        assert (over.signal, over.why) == (signal.SIGKILL, "timeout")

    def test_first_reason_stands(self, works: Yard) -> None:
        """A limit that is reached while the command is being stopped does not change why it ended."""
        worker = works.begin(f"trap '' TERM; echo ready; {FOREVER}", shell="/bin/sh", limit=1000.0)
        works.wait_log("ready\n")
        (began,) = works.records(AttemptStarted)
        limit = time.time() - began.at + 2.0
        works.runner.set_limits(worker, "1.1", JobSpec(limit=limit))
        works.runner.stop(worker, "1.1", 1000.0)
        wait_until(lambda: time.time() > began.at + limit + 0.1)
        works.runner.stop(worker, "1.1", 0.0)
        assert works.wait_over().why == "stopped"

    def test_worker_rests_while_leftovers_end(self, works: Yard) -> None:
        """A limit that passes after the command's own end neither counts nor keeps the worker busy."""
        worker = works.begin("setsid sleep 1000 & exit 6", shell="/bin/sh", limit=0.1)
        over = works.wait_over()
        times = works.process_of(worker).cpu_times()
        assert (over.code, over.why) == (6, "exited")
        assert times.user + times.system < LINGER_SECONDS / 3


class TestLeftovers:
    """What a command leaves behind when it ends by itself."""

    def test_process_substitution(self, works: Yard) -> None:
        """A short-lived rest, as in `cmd > >(tee log)`, may finish, and nothing of the output is lost."""
        over = works.run("seq 1000 > >(sleep 0.3; tee copy)", shell="/bin/bash")
        assert (over.code, over.note) == (0, "")
        assert (works.directory / "copy").read_text().split()[-1] == "1000"
        assert works.log().read_text() == (works.directory / "copy").read_text()

    def test_daemon(self, works: Yard) -> None:
        """A daemon is stopped, which is noted, and the command's exit code stands."""
        over = works.run(
            f"setsid sh -c '{WRITES_ITS_NUMBER}' & while ! [ -s pid ]; do :; done; exit 8", shell="/bin/sh"
        )
        assert (over.code, over.why) == (8, "exited")
        assert over.note.startswith("left 1 process behind")
        assert not lives(wait_pid(works.directory / "pid"))


class TestQueue:
    """Attempts that are handed over ahead."""

    def test_order(self, works: Yard) -> None:
        """Attempts of one worker run one after the other, in the order in which they came."""
        worker = works.runner.start_worker()
        for number in range(1, 21):
            works.start(worker, f"{number}.1", f"echo {number} >> all", shell="/bin/sh")
        works.wait_over("20.1")
        assert (works.directory / "all").read_text().split() == [str(number) for number in range(1, 21)]
        ends = [record.attempt for record in works.said[worker] if isinstance(record, AttemptExited)]
        assert ends == [f"{number}.1" for number in range(1, 21)]

    def test_recall(self, works: Yard) -> None:
        """What has not started comes back; what runs goes on."""
        worker = works.begin("while ! [ -e go ]; do sleep 0.01; done", shell="/bin/sh")
        works.start(worker, "2.1", "touch", "ran")
        works.start(worker, "3.1", "touch", "ran")
        works.runner.recall(worker)
        works.wait_back("3.1")
        (works.directory / "go").touch()
        assert works.wait_over().code == 0
        assert [type(record) for record in works.said[worker]] == [
            AttemptStarted,
            AttemptReturned,
            AttemptReturned,
            AttemptExited,
        ]
        assert not (works.directory / "ran").exists()

    def test_stop_of_a_queued_attempt(self, works: Yard) -> None:
        """An attempt that is stopped before its turn comes back and never runs."""
        worker = works.begin("while ! [ -e go ]; do sleep 0.01; done", shell="/bin/sh")
        works.start(worker, "2.1", "touch", "ran")
        works.start(worker, "3.1", "true")
        works.runner.stop(worker, "2.1", 0.0)
        works.wait_back("2.1")
        (works.directory / "go").touch()
        assert works.wait_over("3.1").code == 0
        assert not (works.directory / "ran").exists()


class TestLease:
    """The descriptor that proves a claim on devices."""

    def test_held_by_worker_and_job(self, works: Yard) -> None:
        """Worker and job both hold the lease; an idle worker that is told so gives it up and removes the file."""
        lease = works.directory / "lease"
        worker = works.runner.start_worker()
        works.runner.give_lease(worker, str(lease), locked(lease))
        works.start(worker, "1.1", "ls", "-l", "/proc/self/fd")
        works.wait_over()
        assert str(lease) in works.log().read_text()
        assert is_locked(lease)
        descriptor = os.open(lease, os.O_RDONLY)
        works.runner.release(worker)
        wait_until(lambda: not lease.exists())
        wait_until(lambda: takes_lock(descriptor))
        os.close(descriptor)

    def test_kept_while_busy(self, works: Yard) -> None:
        """A worker that works does not give its lease up, whatever it is told."""
        lease = works.directory / "lease"
        worker = works.runner.start_worker()
        works.runner.give_lease(worker, str(lease), locked(lease))
        works.start(worker, "1.1", "while ! [ -e go ]; do sleep 0.01; done", shell="/bin/sh")
        works.runner.release(worker)
        works.start(worker, "2.1", "true")
        works.wait_began("1.1")
        assert is_locked(lease)
        (works.directory / "go").touch()
        works.wait_over("2.1")
        assert is_locked(lease)

    def test_released_at_the_end(self, works: Yard) -> None:
        """A worker that leaves removes its lease."""
        lease = works.directory / "lease"
        worker = works.runner.start_worker()
        works.runner.give_lease(worker, str(lease), locked(lease))
        works.runner.stop_worker(worker)
        works.wait_gone(worker)
        assert not lease.exists()

    def test_half_an_order(self, works: Yard) -> None:
        """A lease that came with half an order of an engine that died is not kept."""
        lease = works.directory / "lease"
        worker = works.begin("sleep", "1000")
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(str(works.workers / worker / "socket"))
            descriptor = locked(lease)
            socket.send_fds(engine, [json.dumps({"do": "lease"}).encode()[:-2]], [descriptor])
            os.close(descriptor)
            assert is_locked(lease)
        wait_until(lambda: not is_locked(lease))


def locked(path: Path) -> int:
    """A descriptor of a new file, locked."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether anybody holds a lock on the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not takes_lock(descriptor)
    finally:
        os.close(descriptor)


def takes_lock(descriptor: int) -> bool:
    """Whether nobody else holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_no_descriptors(works: Yard) -> None:
    """A worker without descriptors gives attempts back, with all behind them, and starts others when it has some."""
    worker = works.runner.start_worker()
    works.start(worker, "0.1", "true")
    assert works.wait_over("0.1").code == 0
    process = works.process_of(worker)
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    idle = min(process.num_fds() for _ in range(50))  # it may have one more for a moment, at its start and after a job
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (idle - 1, before[1]))
    works.start(worker, "1.1", "true")
    works.start(worker, "2.1", "true")
    works.wait_back("1.1")
    works.wait_back("2.1")
    (back,) = works.records(AttemptReturned, "1.1")
    assert isinstance(back, AttemptReturned)
    assert (back.errno, "Too many open files" in back.note) == (errno.EMFILE, True)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
    works.start(worker, "1.2", "true")
    assert works.wait_over("1.2").code == 0
