"""Workers that outlive their engine, and an engine that outlives its workers: every row of the recovery table."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stoker.core.errors import StokerError
from stoker.runner.interface import WorkerLost
from stoker.runner.journal import SIZE, AttemptExited, AttemptReturned, AttemptStarted
from support.disk import fill, small_disk
from support.local import Yard, end, engine_process, holders, lives, wait_pid, yard
from support.reaper import is_alive
from support.wait import PATIENCE_SECONDS, line_from, wait_until

WAITS = "while ! [ -e go ]; do sleep 0.01; done; exit 7"
"""Runs until the test makes the file `go`, and ends with 7."""
HOSTILE = "state & 'single' \"double\" $HOME `id` ünïcode 路径 " + "long" * 40
PRIVATE_SIGNALS = 1 << (32 - 1) | 1 << (33 - 1)
"""The two that the C library keeps to itself and sets as it likes."""

ENGINE = """
import sys
from pathlib import Path
from support.local import Yard
works = Yard(Path(sys.argv[1]), "first")
worker = works.runner.start_worker()
for number, line in enumerate(sys.argv[2:], 1):
    works.start(worker, f"{number}.1", line, shell="/bin/sh")
works.wait_began()
print(worker, flush=True)
sys.stdin.read()
"""

TIED_ENGINE = """
import sys
from pathlib import Path
from support.local import Yard
works = Yard(Path(sys.argv[1]), "first", tied_to="allocation")
worker = works.runner.start_worker()
works.start(worker, "1.1", sys.argv[2], shell="/bin/sh")
works.start(worker, "2.1", "touch second", shell="/bin/sh")
works.wait_began()
print(worker, flush=True)
sys.stdin.read()
"""

HASTY_ENGINE = """
import os, signal, sys
from pathlib import Path
from support.local import Yard
works = Yard(Path(sys.argv[1]), "first")
os.kill(int(sys.stdin.readline()), signal.SIGSTOP)
worker = works.runner.start_worker()
works.start(worker, "1.1", sys.argv[2], shell="/bin/sh")
print(worker, flush=True)
sys.stdin.read()
"""

DEAF_ENGINE = """
import signal, sys
from pathlib import Path
catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
for number in catchable - {signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, catchable)
from support.local import Yard
works = Yard(Path(sys.argv[1]))
works.run("cat", "/proc/self/status")
works.close()
"""

SHARING_ENGINE = """
import sys
from pathlib import Path
from support.local import Yard
works = Yard(Path(sys.argv[1]), share_output=True)
works.run("echo to the caller; echo also >&2", shell="/bin/sh", out="-", err="-")
works.close()
"""


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path, "second") as made:
        yield made


def killed_engine(directory: Path, *lines: str) -> str:
    """The name of a worker that runs the lines, and whose engine was killed."""
    with engine_process(ENGINE, directory, *lines) as engine:
        return last_words(engine)


@pytest.mark.parametrize("paused", [False, True])
def test_attempts_of_an_allocation_end_with_its_engine(tmp_path: Path, paused: bool) -> None:
    """All processes are killed, none starts any more, and each has the name of the allocation in its environment."""
    line = "trap '' TERM; setsid sh -c 'echo $$ > daemon; exec sleep 60' & echo $STOKER_BUNDLE > name; sleep 60"
    with engine_process(TIED_ENGINE, tmp_path, line) as engine:
        worker = line_from(engine.stdout).strip()
        daemon = psutil.Process(wait_pid(tmp_path / "daemon"))
        [process] = holders(tmp_path / "workers" / worker / "lock")
        if paused:
            process.suspend()
        engine.kill()
        engine.wait(PATIENCE_SECONDS)
    if paused:
        assert daemon.is_running()
        process.resume()
    wait_until(lambda: not is_alive(daemon.pid) and not is_alive(process.pid))
    assert (tmp_path / "name").read_text() == "allocation\n"
    assert not (tmp_path / "second").exists()


def last_words(engine: subprocess.Popen[str]) -> str:
    """The next line of an engine, which is killed after it."""
    line = line_from(engine.stdout)
    assert line, engine.communicate(timeout=PATIENCE_SECONDS)[1]
    engine.kill()
    engine.wait(PATIENCE_SECONDS)
    return line.strip()


def forkserver(works: Yard) -> psutil.Process:
    """The process that forks the workers."""
    worker = works.runner.start_worker()
    wait_until(lambda: len(holders(works.workers / worker / "lock")) == 1)
    parent = works.process_of(worker).parent()
    assert parent
    return parent


class TestWorkerAlive:
    """The lock is held: connect again, and change nothing."""

    def test_running_attempt(self, works: Yard) -> None:
        """An attempt goes on when its engine is killed, and its exit code reaches the next engine."""
        worker = killed_engine(works.directory, WAITS)
        assert not works.runner.is_dead(worker)
        assert works.runner.adopt(worker)
        works.wait_began()
        (works.directory / "go").touch()
        assert works.wait_over().code == 7

    def test_attempts_behind_it(self, works: Yard) -> None:
        """Attempts that were handed over ahead run too, each once."""
        worker = killed_engine(works.directory, WAITS, "echo ran >> ran", "exit 3")
        assert works.runner.adopt(worker)
        (works.directory / "go").touch()
        assert [works.wait_over(f"{number}.1").code for number in (1, 2, 3)] == [7, 0, 3]
        assert (works.directory / "ran").read_text() == "ran\n"

    def test_adopted_worker_takes_orders(self, works: Yard) -> None:
        """An adopted worker is stopped, and takes new attempts, like one of our own."""
        worker = killed_engine(works.directory, "sleep 1000")
        works.runner.adopt(worker)
        works.wait_began()
        works.runner.stop(worker, "1.1", 10.0)
        assert works.wait_over().why == "stopped"
        works.start(worker, "2.1", "true")
        assert works.wait_over("2.1").code == 0

    def test_engine_that_leaves(self, works: Yard) -> None:
        """An engine that closes in good order leaves its busy workers at work as well."""
        first = Yard(works.directory, "first")
        worker = first.begin(WAITS, shell="/bin/sh")
        first.runner.close()
        assert works.runner.adopt(worker)
        (works.directory / "go").touch()
        assert works.wait_over().code == 7

    def test_order_that_was_on_its_way(self, works: Yard) -> None:
        """What an engine ordered before it was killed is done, even if its worker was not yet there."""
        with engine_process(HASTY_ENGINE, works.directory, "exit 5") as engine:
            (server,) = wait_children(engine.pid)
            assert engine.stdin
            engine.stdin.write(f"{server.pid}\n")
            engine.stdin.flush()
            worker = last_words(engine)
        assert not works.runner.is_dead(worker)
        assert works.runner.adopt(worker)
        server.resume()
        assert works.wait_over().code == 5

    def test_time_limit(self, works: Yard) -> None:
        """The time limit holds although no engine lives."""
        first = Yard(works.directory, "first")
        worker = first.begin("sleep", "1000", limit=0.3)
        first.runner.close()
        wait_until(lambda: works.runner.is_dead(worker))
        works.runner.adopt(worker)
        assert works.wait_over().why == "timeout"


class TestWorkerDead:
    """The lock is free: the journal says what happened."""

    def test_ended_while_nobody_looked(self, works: Yard) -> None:
        """An end that nobody saw is told by the journal, and the worker has left."""
        worker = killed_engine(works.directory, "exit 7")
        wait_until(lambda: works.runner.is_dead(worker))
        assert works.runner.adopt(worker)
        works.wait_gone(worker)
        assert [type(record) for record in works.said[worker]] == [AttemptStarted, AttemptExited, WorkerLost]
        assert works.wait_over().code == 7

    def test_killed_while_it_worked(self, works: Yard) -> None:
        """Of an attempt whose worker was killed no end is told, only that all of it is gone, and then it is."""
        script = "sh -c 'echo $$ > pid; exec sleep 1000' & env -i /bin/sh -c 'echo $$ > bare; exec sleep 1000' & wait"
        worker = works.begin(script, shell="/bin/sh")
        left = [wait_pid(works.directory / name) for name in ("pid", "bare")]
        works.process_of(worker).kill()
        works.wait_gone(worker)
        assert not any(map(lives, left))
        assert [type(record) for record in works.said[worker]] == [AttemptStarted, WorkerLost]

    def test_killed_with_its_engine(self, works: Yard) -> None:
        """The same holds where the engine was killed too: its successor makes sure that nothing lives."""
        worker = killed_engine(works.directory, "echo $$ > pid; exec sleep 1000")
        left = wait_pid(works.directory / "pid")
        works.process_of(worker).kill()
        works.runner.adopt(worker)
        works.wait_gone(worker)
        assert not lives(left)
        assert AttemptExited not in map(type, works.said[worker])

    def test_lease_outlives_the_worker(self, works: Yard) -> None:
        """The lease of a killed worker is held by its job until that is dead as well."""
        with (works.directory / "lease").open("wb") as lease:
            fcntl.flock(lease, fcntl.LOCK_EX)
            worker = works.runner.start_worker()
            works.runner.give_lease(worker, lease.name, os.dup(lease.fileno()))
        works.start(worker, "1.1", "sleep", "1000")
        (job,) = wait_children(works.process_of(worker).pid)
        works.process_of(worker).kill()
        wait_until(lambda: works.runner.is_dead(worker))
        assert holders(works.directory / "lease") == [job]
        works.wait_gone(worker)
        assert holders(works.directory / "lease") == []

    def test_killed_before_it_started_anything(self, works: Yard) -> None:
        """A journal without a word means that nothing was started."""
        worker = works.runner.start_worker()
        works.process_of(worker).kill()
        works.start(worker, "1.1", "touch", "ran")
        works.wait_gone(worker)
        assert works.said[worker] == [WorkerLost()]
        assert not (works.directory / "ran").exists()

    def test_orders_to_the_dead(self, works: Yard) -> None:
        """Orders to a worker that is gone are dropped, and the lease that came with one is closed."""
        worker = works.runner.start_worker()
        works.runner.stop_worker(worker)
        works.wait_gone(worker)
        descriptor = os.open(works.directory / "lease", os.O_RDWR | os.O_CREAT)
        works.runner.give_lease(worker, str(works.directory / "lease"), descriptor)
        works.start(worker, "1.1", "true")
        works.runner.stop(worker, "1.1", 0.0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)

    @pytest.mark.parametrize("prepared", [False, True])
    def test_no_trace(self, works: Yard, prepared: bool) -> None:
        """A worker without a folder, or without a journal in it, cannot be adopted and counts as dead."""
        if prepared:
            (works.workers / "first-1").mkdir()
        assert works.runner.is_dead("first-1")
        assert not works.runner.adopt("first-1")

    def test_forget(self, works: Yard) -> None:
        """Nothing of a worker is left once it is forgotten."""
        worker = works.runner.start_worker()
        works.runner.stop_worker(worker)
        works.wait_gone(worker)
        works.runner.forget(worker)
        assert list(works.workers.iterdir()) == []


class TestForkserver:
    """The process that forks workers."""

    def test_killed(self, works: Yard) -> None:
        """A killed forkserver is replaced at the next start of a worker, and its workers do not notice."""
        worker = works.begin(WAITS, shell="/bin/sh")
        end([forkserver(works)])
        other = works.runner.start_worker()
        works.start(other, "2.1", "true")
        assert works.wait_over("2.1").code == 0
        (works.directory / "go").touch()
        assert works.wait_over("1.1").code == 7
        assert worker != other

    def test_leaves_with_the_engine(self, works: Yard) -> None:
        """Forkserver and idle workers end when their engine does."""
        first = Yard(works.directory, "first")
        worker = first.runner.start_worker()
        server = forkserver(first)
        first.runner.close()
        assert not lives(server.pid)
        wait_until(lambda: works.runner.is_dead(worker))

    def test_signals_of_the_engine(self, works: Yard) -> None:
        """Commands have no signal blocked, ignored or caught, even if the engine had them all."""
        with engine_process(DEAF_ENGINE, works.directory) as engine:
            _, said = engine.communicate(timeout=PATIENCE_SECONDS)
            assert engine.returncode == 0, said
        status = dict(line.split(":\t") for line in works.log().read_text().splitlines())
        masks = [int(status[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")]
        assert [mask & ~PRIVATE_SIGNALS for mask in masks] == [0, 0, 0]

    def test_shared_output(self, works: Yard) -> None:
        """A command may write straight to the outputs of the engine."""
        with engine_process(SHARING_ENGINE, works.directory) as engine:
            assert engine.communicate(timeout=60) == ("to the caller\n", "also\n")


class TestTroubles:
    """Places and disks that make it hard."""

    def test_hostile_path(self, tmp_path: Path) -> None:
        """The state directory may have a long path with blanks, quotes and letters of any script."""
        (tmp_path / HOSTILE).mkdir()
        with yard(tmp_path / HOSTILE) as works:
            assert works.run("echo here; exit 4", shell="/bin/sh").code == 4
            assert works.log().read_text() == "here\n"

    def test_private_files(self, works: Yard) -> None:
        """Nobody else can read a worker's folder or anything in it, whatever the umask."""
        before = os.umask(0)
        try:
            folder = works.workers / works.runner.start_worker()
        finally:
            os.umask(before)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.name != "socket"} == {
            "lock": 0o600,
            "jobs": 0o600,
            "journal": 0o600,
        }

    def test_disk_that_gets_full(self, tmp_path: Path) -> None:
        """On a full disk exit codes are kept all the same, since their space was set aside."""
        with small_disk(tmp_path / "disk", "size=3m") as disk, yard(disk) as works:
            worker = works.begin(WAITS, shell="/bin/sh")
            (disk / "go").touch()
            fill(disk)
            works.start(worker, "2.1", "echo nowhere to write to; exit 3", shell="/bin/sh")
            assert works.wait_over("1.1").code == 7
            assert works.wait_over("2.1").code == 3

    @pytest.mark.parametrize("options", ["size=64k", *(f"size=8m,nr_inodes={count}" for count in (2, 3, 4, 5, 6))])
    def test_no_room_for_a_worker(self, tmp_path: Path, options: str) -> None:
        """Where there is no space or no file left, hiring fails with advice and leaves nothing behind."""
        with small_disk(tmp_path / "disk", options) as disk, yard(disk) as works:
            before = os.listdir("/proc/self/fd")
            with pytest.raises(StokerError, match="No space left on device") as caught:
                works.runner.start_worker()
            assert "full disk" in caught.value.hint
            assert list(works.workers.iterdir()) == []
            assert os.listdir("/proc/self/fd") == before

    def test_log_on_a_read_only_disk(self, works: Yard) -> None:
        """A log that cannot be written for now gives the attempt back with a note, and nothing runs."""
        with small_disk(works.directory / "disk", "ro") as disk:
            works.begin("touch", "ran", out=str(disk / "log"))
            works.wait_back("1.1")
        (back,) = works.records(AttemptReturned)
        assert back[2:] == (errno.EROFS, f"cannot write its output to {disk}/log: Read-only file system")
        assert not (works.directory / "ran").exists()

    def test_journal_wears_out(self, works: Yard) -> None:
        """A worker says when its journal is nearly full; whatever is still given to it is recorded too."""
        worker = works.runner.start_worker()
        long_note = "ü" * 600
        attempts = 0
        while not works.runner.journal_is_full(worker):
            assert attempts < 10_000, "it never wears out"
            attempts += 50
            for number in range(attempts - 49, attempts + 1):
                works.start(worker, f"{number}.1", long_note)
            works.wait_over(f"{attempts}.1")
        for number in range(attempts + 1, 2 * attempts + 1):
            works.start(worker, f"{number}.1", long_note)
        works.wait_over(f"{2 * attempts}.1")
        ends = [record.attempt for record in works.said[worker] if isinstance(record, AttemptExited)]
        assert ends == [f"{number}.1" for number in range(1, 2 * attempts + 1)]
        assert (works.workers / worker / "journal").stat().st_size > SIZE

    def test_large_environment(self, works: Yard) -> None:
        """An environment larger than a socket takes at once arrives, although the worker has nothing to say yet."""
        variables = {"PATH": os.environ["PATH"], **{f"V{number}": "x" * 100_000 for number in range(10)}}
        worker = works.runner.start_worker()
        works.start(worker, "1.1", "env", variables=variables)
        wait_readable(works)
        works.wait_over()
        assert works.log().read_text().count("x" * 100_000) == 10


def wait_children(pid: int) -> list[psutil.Process]:
    """The children of a process, as soon as it has any."""
    wait_until(lambda: psutil.Process(pid).children())
    return psutil.Process(pid).children()


def wait_readable(works: Yard) -> None:
    """Wait as an engine does, for the one descriptor of its backend."""
    poller = select.poll()
    poller.register(works.runner, select.POLLIN)
    assert poller.poll(30_000)


def test_number_of_a_process(works: Yard) -> None:
    """The worker tells it of its newest attempt, also after the end; of any other nobody knows."""
    worker = works.begin("sh", "-c", "echo $$")
    works.wait_over()
    assert str(works.runner.process_of(worker, "1.1")) == works.log().read_text().strip()
    assert works.runner.process_of(worker, "2.1") is None
    assert works.runner.process_of("nobody", "1.1") is None


@pytest.mark.parametrize("line", ["kill -STOP $PPID; exit 5", "sleep 0.3; kill -STOP $PPID; sleep 1000"])
def test_a_stopped_worker_goes_on(works: Yard, line: str) -> None:
    """Whether or not its journal names its process yet: limit and end of its job come, and users are told."""
    worker = works.runner.start_worker()
    works.start(worker, "1.1", line, shell="/bin/sh", limit=3.0, grace=0.5)
    over = works.wait_over()
    assert (over.code, over.why) in ((5, "exited"), (143, "timeout")), over
    assert f"worker {worker} (process " in works.runner.trouble
    assert "was stopped by a signal or a debugger, and continued" in works.runner.trouble
