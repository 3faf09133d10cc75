"""`stoker engine start|stop|status` as people type them, and how the engine is detached from its starter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from stoker import __version__
from stoker.app.service.engine_status import EngineOverview
from stoker.store.engine_lock import QUEUE, engine_lives
from stoker.store.restart import read_restart
from support.background import SIMULATED, Background
from support.cli import PROGRAM, until
from support.disk import fill, small_disk
from support.terminal import open_terminal
from support.wait import PATIENCE_SECONDS, wait_until

_BURDENED = """
import fcntl, os, subprocess, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
for descriptor in (lock.fileno(), int(sys.argv[2])):
    os.set_inheritable(descriptor, True)
os.umask(0)
subprocess.run([sys.argv[3], "engine", "start"], check=True, close_fds=False)
"""


def status(background: Background) -> EngineOverview:
    """What the engine is said to do, as JSON."""
    return msgspec.json.decode(background("engine", "status", "--json").out, type=EngineOverview)


class TestStatus:
    """`stoker engine status`."""

    def test_without_an_engine(self, background: Background) -> None:
        """It says so and what to type, with exit code 3; what waits is counted from the store."""
        background.submit("true", "true", start=False)
        background.submit("true", held="held by you", start=False)
        outcome = background("engine", "status")
        assert outcome.code == 3
        assert "not running" in outcome.out
        assert "stoker engine start" in outcome.out
        assert "0 running, 2 waiting, 1 blocked" in outcome.out
        assert str(background.paths.log) in outcome.out
        assert status(background).pid is None

    def test_of_a_living_engine(self, background: Background) -> None:
        """Process, version, devices and jobs."""
        running = background.submit(until("go"), until("go"))
        background.submit("true", "true")
        background.submit("true", held="held by you")
        background.wait_word("running", *running)
        found = status(background)
        assert (found.running, found.answers, found.pid) == (True, True, background.engine_process)
        assert found.version == __version__
        assert [device.label for device in found.devices] == ["0", "1"]
        assert (found.active, found.waiting, found.parked) == (2, 2, 1)
        assert found.trouble == ""
        outcome = background("engine", "status")
        assert outcome.code == 0
        assert outcome.err == ""
        for text in (f"running (process {found.pid}, {__version__})", "24.0G", "2 running, 2 waiting, 1 blocked"):
            assert text in outcome.out

    def test_an_engine_that_does_not_answer(self, background: Background) -> None:
        """An engine that was stopped by a signal lives, and is shown as silent."""
        background.start_engine()
        pid = background.hang_engine()
        try:
            outcome = background("engine", "status")
            wait_until(lambda: "the engine does not answer" in background("status").err, pause=0.1)
        finally:
            os.kill(pid, 18)
        assert outcome.code == 3
        assert "does not answer" in outcome.out
        wait_until(lambda: background("status").err == "", pause=0.1)


class TestStop:
    """`stoker engine stop`."""

    def test_without_an_engine(self, background: Background) -> None:
        """Nothing is to be done, which is well."""
        outcome = background("engine", "stop")
        assert (outcome.code, outcome.err) == (0, "engine not running\n")

    def test_jobs_go_on_and_the_next_engine_has_their_codes(self, background: Background) -> None:
        """A stop does not end the jobs."""
        ends, stays = background.submit(f"{until('alone')}; exit 7", f"{until('go')}; exit 8")
        background.wait_word("running", ends, stays)
        assert background("engine", "stop").code == 0
        background.open_gate("alone")
        assert not engine_lives(background.paths, QUEUE)
        assert background.word(stays) == "running"
        background.start_engine()
        background.open_gate("go")
        background.wait_over(ends, stays)
        assert [background.ended(job).code for job in (ends, stays)] == [7, 8]
        assert background.job(stays).attempts == 1

    def test_drain_lets_run_finish_and_starts_nothing_more(self, background: Background) -> None:
        """It leaves when the last job is over, and the others still wait."""
        first, second = background.submit(until("go"), until("go"))
        (third,) = background.submit("true")
        background.wait_word("running", first, second)
        assert background("engine", "stop", "--drain").code == 0
        wait_until(lambda: status(background).draining)
        background.open_gate("go")
        wait_until(lambda: not engine_lives(background.paths, QUEUE))
        assert [background.word(job) for job in (first, second, third)] == ["done", "done", "waiting"]

    def test_jobs_are_ended_where_that_is_wanted(self, background: Background) -> None:
        """What runs is cancelled; what waits, waits."""
        first, second = background.submit("sleep 100", "sleep 100")
        (third,) = background.submit("true")
        background.wait_word("running", first, second)
        assert background("engine", "stop", "--jobs").code == 0
        assert not engine_lives(background.paths, QUEUE)
        assert [background.word(job) for job in (first, second, third)] == ["cancelled", "cancelled", "waiting"]

    def test_an_engine_that_does_not_leave(self, background: Background) -> None:
        """The refusal says what helps, and with --force it is killed; its job goes on, and its end is recorded."""
        (job,) = background.submit(until("go") + "; exit 3")
        background.wait_word("running", job)
        pid = background.hang_engine()
        refused = impatiently(background, "engine", "stop")
        assert refused.returncode == 125
        assert f"stoker engine stop --force (or kill -9 {pid})" in refused.stderr
        assert impatiently(background, "engine", "stop", "--force").returncode == 0
        assert background.engine_process is None
        background.open_gate("go")
        background.start_engine()
        background.wait_over(job)
        assert background.ended(job).code == 3

    def test_draining_and_ending_at_once(self, background: Background) -> None:
        """They contradict each other."""
        assert background("engine", "stop", "--drain", "--jobs").code == 2


def impatiently(background: Background, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command line that does not wait long for an engine to leave."""
    program = "from stoker.cli import main; from stoker.cli.commands import engine; "
    program += "engine.STOP_SECONDS = 0.5; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        env=background.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


class TestStart:
    """`stoker engine start`, and what the engine inherits from the process that started it."""

    def test_a_second_start_changes_nothing(self, background: Background) -> None:
        """It succeeds, and the engine is the same."""
        background.start_engine()
        pid = background.engine_process
        outcome = background("engine", "start")
        assert (outcome.code, outcome.err) == (0, f"the engine is already running (process {pid})\n")
        assert background.engine_process == pid
        assert "it keeps its settings" in background("engine", "start", "--max-use", "1").err

    def test_flags_hold_for_the_engine(self, background: Background) -> None:
        """--max-use 1 leaves the second GPU alone."""
        assert background("engine", "start", "--max-use", "1").code == 0
        first, second = background.submit(until("go"), "true")
        background.wait_word("running", first)
        wait_until(lambda: status(background).waiting == 1)
        background.open_gate("go")
        background.wait_over(first, second)

    def test_engines_started_at_once_are_one(self, background: Background) -> None:
        """All commands succeed, and exactly one engine serves."""
        started = [background.start("engine", "start") for _ in range(3)]
        outcomes = [background.finish(process) for process in started]
        assert [outcome.code for outcome in outcomes] == [0, 0, 0]
        wait_until(lambda: status(background).answers)
        (job,) = background.submit("exit 3")
        background.wait_over(job)
        assert background.ended(job).code == 3
        serving = [pid for pid in background.job_processes() if _has_open(pid, background.paths.database)]
        assert serving == [background.engine_process]

    def test_nothing_of_the_starter_is_inherited(self, background: Background, tmp_path: Path) -> None:
        """No lock, no pipe, no terminal, no directory, no umask; standard input is empty and output is the log."""
        reader, writer = os.pipe()
        lock = tmp_path / "lock"
        command = [sys.executable, "-c", _BURDENED, str(lock), str(writer), PROGRAM]
        subprocess.run(
            command, env=background.environment, cwd=tmp_path, pass_fds=[writer], check=True, timeout=PATIENCE_SECONDS
        )
        os.close(writer)
        with open(reader, "rb") as pipe:
            assert pipe.read() == b""  # an end of file: nobody else has the other end
        assert (
            subprocess.run(["flock", "--nonblock", str(lock), "true"], check=False, timeout=PATIENCE_SECONDS).returncode
            == 0
        )
        pid = background.engine_process
        assert pid is not None
        _assert_apart(pid, background.paths.log)

    def test_the_end_of_the_terminal_is_not_the_end_of_the_engine(self, background: Background, tmp_path: Path) -> None:
        """It was started from a shell in a terminal, which then is closed."""
        with open_terminal(tmp_path, STOKER_SIM="2x24G") as terminal:
            terminal.start([PROGRAM, "engine", "start"], 80, 24)
            terminal.wait_for("exit code 0")
            pid = background.engine_process
            (job,) = background.submit(f"{until('go')}; exit 9")
            background.wait_word("running", job)
        background.open_gate("go")
        background.wait_over(job)
        assert background.ended(job).code == 9
        assert pid is not None
        assert background.engine_process == pid

    def test_a_failure_is_told_by_the_command(self, background: Background) -> None:
        """What the engine could not use is printed, and in the log."""
        background.environment["STOKER_PATIENCE"] = "soon"
        outcome = background("engine", "start")
        assert outcome.code == 3
        assert "STOKER_PATIENCE" in outcome.err
        assert "STOKER_PATIENCE" in background.paths.log.read_text()


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return str(path) in {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    return False


def _assert_apart(pid: int, log: Path) -> None:
    process = Path(f"/proc/{pid}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    group, session, terminal = (int(fields[place]) for place in (2, 3, 4))
    assert (group, session, terminal) == (pid, pid, 0)
    assert os.readlink(process / "cwd") == "/"
    assert "Umask:\t0077\n" in (process / "status").read_text()
    assert os.readlink(process / "fd/0") == "/dev/null"
    assert {os.readlink(process / f"fd/{number}") for number in (1, 2)} == {str(log)}
    opened = [os.readlink(path) for path in (process / "fd").iterdir()]
    outside = [path for path in opened if path.startswith("/") and not path.startswith(str(log.parent))]
    own_files = {path for path in outside if path.endswith(".board")}  # the engine publishes it in the ledger
    assert set(outside) - own_files <= {"/dev/null"}


class TestRestart:
    """`stoker engine restart`, and engines that have other devices than the user wants."""

    def test_a_new_engine_takes_over_the_running_jobs(self, background: Background) -> None:
        """Options of the old one stay unless they are given again; the exit code of the job is recorded."""
        assert background("engine", "start", "--max-use", "1", "--stay").code == 0
        (job,) = background.submit(f"{until('gate')}; exit 7")
        background.wait_word("running", job)
        before = background.engine_process
        assert background("engine", "restart", "--max-use", "2").code == 0
        assert background.engine_process not in (None, before)
        record = read_restart(background.paths)
        assert record is not None
        assert sorted(record.arguments) == sorted(["--sim", SIMULATED, "--stay", "--max-use", "2"])
        background.open_gate("gate")
        background.wait_over(job)
        assert background.ended(job).code == 7

    def test_without_an_engine_it_starts_one(self, background: Background) -> None:
        """As `engine start` does."""
        assert background("engine", "restart").code == 0
        assert background.engine_process is not None

    def test_other_simulated_gpus(self, background: Background) -> None:
        """The command that fixes it is named, whether the job can run or not, and it fixes it."""
        background.start_engine()
        wide = background("submit", "--sim", "4x80G", "-G", "4", "--", "true")
        assert wide.code == 5
        assert "has 2x24G, not 4x80G" in wide.err
        assert "stoker engine restart --sim 4x80G" in wide.err
        assert "stoker engine restart --sim 4x80G" in background("submit", "--sim", "4x80G", "--", "true").err
        assert background("engine", "restart", "--sim", "4x80G").code == 0
        done = background("submit", "--sim", "4x80G", "-G", "4", "--", "true")
        assert (done.code, done.err) == (0, "")

    def test_other_named_devices(self, background: Background) -> None:
        """STOKER_DEVICES is for the engine, which reads it when it starts."""
        background.start_engine()
        same = background("submit", "--", "true")
        assert same.err == ""
        other = background("submit", "--", "true", STOKER_DEVICES="1")
        assert "has 0,1, not 1" in other.err
        assert "STOKER_DEVICES=1 stoker engine restart" in other.err
        assert background("engine", "restart", STOKER_DEVICES="1").code == 0
        assert background("submit", "--", "true", STOKER_DEVICES="1").err == ""


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """An engine that cannot write its status is not said to hang."""
    with small_disk(tmp_path / "disk", "size=16m") as disk, closing(Background(disk)) as background:
        background.start_engine()
        ballast = fill(disk)
        shown = background("engine", "status")
        ballast.unlink()
        assert shown.code == 3
        assert "cannot be written to: No space left on device" in shown.out
        assert "--force" not in shown.out
        wait_until(lambda: background("engine", "status").code == 0, pause=0.1)


@pytest.mark.parametrize("error", ["MemoryError()", "ImportError('libx.so: failed to map segment from shared object')"])
def test_without_memory_there_is_a_sentence(error: str) -> None:
    """No traceback, as under a small ulimit -v."""
    program = f"""
import sys
from stoker.cli import main
import stoker.cli.main
def fail(): raise {error}
sys.modules["stoker.cli.main"].main = fail
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (125, 1)
    assert "not enough memory" in ended.stderr
