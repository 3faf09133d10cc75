"""`stoker shell`: interactive sessions on real terminals."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from support.cli import PROGRAM, Stoker, until
from support.terminal import open_terminal
from support.typist import Typist, typing
from support.wait import wait_until

SIM = ("--sim", "1x24G")


def sessions(stoker: Stoker) -> list[dict[str, object]]:
    """All sessions that are over, newest first."""
    told = stoker("history", "--sim", "--json")
    jobs: list[dict[str, object]] = json.loads(told.out)["jobs"]
    return jobs


def relay_of(typist: Typist) -> psutil.Process:
    """The process that passes bytes on: the only child that has the same program."""
    found = [child for child in psutil.Process(typist.process.pid).children() if "shell" in child.cmdline()]
    return found[0]


class TestTerminal:
    """What a program in a session finds."""

    def test_a_whole_session(self, stoker: Stoker) -> None:
        """A shell has the GPU, job control and the size of the window; keys are its own, and so is the exit code."""
        with typing(stoker, "shell", *SIM, "-G", "1") as typist:
            typist.wait_for("stoker: job 1 on GPU 0 (stoker cancel 1 ends it)")
            typist.wait_for("ready> ")
            typist.type("stty size; echo gpu=$CUDA_VISIBLE_DEVICES; printf '\\033[31mred\\033[0m\\n'\r")
            typist.wait_for("24 80")
            typist.wait_for("gpu=0")
            typist.wait_for("\x1b[31mred\x1b[0m")
            typist.resize(30, 100)
            typist.type("sh -c 'echo u\"\"p; exec sleep 1000'\r")
            typist.wait_for("up")
            typist.type("\x1a")
            typist.wait_for("Stopped")
            typist.type("kill -9 %1; wait; stty size\r")
            typist.wait_for("30 100")
            typist.type('sh -c \'trap "echo caught; exit" INT; echo u""p; while :; do sleep 0.1; done\'\r')
            typist.wait_for("up\r\n")
            typist.type("\x03")
            typist.wait_for("caught\r\n")
            typist.wait_for("ready> ")
            # Keys typed before the command starts are read in the shell's own mode, where \x04 is not the end of input.
            typist.type("sh -c 'echo u\"\"p; exec cat'\r")
            typist.wait_for("up\r\n")
            typist.type("typed\r\x04")
            typist.wait_for("typed\r\ntyped")
            typist.wait_for("ready> ")
            typist.type("exit 7\r")
            assert typist.wait_end() == 7
            assert typist.restored
        (job,) = sessions(stoker)
        assert (job["state"], job["exit_code"], job["command"]) == ("failed", 7, "/bin/bash")

    def test_run_with_a_terminal(self, stoker: Stoker) -> None:
        """`run --pty` is the same."""
        with typing(stoker, "run", "--pty", *SIM, "--", "sh", "-c", "test -t 0 && test -t 2 && exit 4") as typist:
            assert typist.wait_end() == 4

    def test_long_input_arrives(self, stoker: Stoker) -> None:
        """What is pasted while the program does not read waits, and arrives whole."""
        program = "stty raw -echo; echo go; sleep 0.5; head -c 60000 | cksum"
        with typing(stoker, "shell", *SIM, "sh", "-c", program) as typist:
            typist.wait_for("go")
            typist.type("x" * 60000)
            typist.wait_for("60000")
            assert typist.wait_end() == 0

    def test_port_of_a_server(self, stoker: Stoker) -> None:
        """A server that names a local port is followed, once, by the ssh command that forwards it."""
        program = "echo ' http://localhost:8888/lab?token=x'; echo ' http://127.0.0.1:8888/lab'; sleep 0.2; echo end"
        with typing(stoker, "shell", *SIM, "sh", "-c", program) as typist:
            assert typist.wait_end() == 0
            assert typist.seen.count("ssh -L 8888:localhost:8888 ") == 1

    def test_a_command_that_does_not_exist(self, stoker: Stoker) -> None:
        """It is named, with the code of a shell."""
        with typing(stoker, "shell", *SIM, "no-such-program") as typist:
            assert typist.wait_end() == 127
            assert "no-such-program: command not found" in typist.seen
            assert typist.restored


class TestEnds:
    """However a session ends, its processes end too and the terminal is as before."""

    @pytest.mark.parametrize("how", ["cancel", "limit", "relay killed", "terminated", "shell killed"])
    def test_ends(self, stoker: Stoker, how: str) -> None:
        """A cancel from elsewhere, the time limit, a killed relay, a signal to Stoker, a killed shell."""
        limit = ("-t", "4s") if how == "limit" else ()
        with typing(stoker, "shell", *SIM, *limit) as typist:
            if how != "limit":
                typist.wait_for("ready> ")
            match how:
                case "cancel":
                    assert stoker("cancel", "--sim", "last").code == 0
                case "relay killed":
                    relay_of(typist).kill()
                case "terminated":
                    typist.process.terminate()
                case "shell killed":
                    typist.type("kill -9 $$\r")
            code = typist.wait_end()
            ends = {"limit": 124, "shell killed": 128 + signal.SIGKILL}
            assert code == ends.get(how, 128 + signal.SIGHUP)
            assert typist.restored
        (job,) = sessions(stoker)
        states = {"limit": "timeout", "shell killed": "failed"}
        assert job["state"] == states.get(how, "cancelled")
        assert stoker.job_processes() == []

    def test_stoker_is_killed(self, stoker: Stoker) -> None:
        """The relay restores the terminal, and the kernel hangs the session up."""
        with typing(stoker, "shell", *SIM) as typist:
            typist.wait_for("ready> ")
            typist.process.kill()
            typist.wait_end()
            wait_until(lambda: typist.restored)
            wait_until(lambda: not stoker.job_processes())

    def test_hangup(self, stoker: Stoker) -> None:
        """A lost connection ends the session and what it left in the background, as with a login shell."""
        with typing(stoker, "shell", *SIM) as typist:
            typist.wait_for("ready> ")
            typist.type('nohup sleep 1000 & echo le""ft\r')
            typist.wait_for("left")  # nohup prints a line of its own, before or after it
            typist.hang_up()
            wait_until(lambda: typist.process.poll() is not None)
        wait_until(lambda: not stoker.job_processes())
        (job,) = sessions(stoker)
        assert job["state"] == "cancelled"

    def test_idle(self, stoker: Stoker) -> None:
        """A session that nobody uses is warned and then ended."""
        with typing(stoker, "shell", *SIM, "--idle", "6s") as typist:
            typist.wait_for("ready> ")
            typist.wait_for("this session ends in")
            assert typist.wait_end() == 128 + signal.SIGHUP
            assert "(--idle)" in typist.seen
            assert typist.restored


class TestWaiting:
    """Before it starts."""

    def test_ctrl_c_gives_up(self, stoker: Stoker) -> None:
        """The user sees why it waits; Ctrl-C takes it out of the queue."""
        busy = stoker.start("run", *SIM, "--", "sh", "-c", f"touch began; {until('gate')}")
        wait_until((stoker.cwd / "began").exists)
        with typing(stoker, "shell", *SIM) as typist:
            typist.wait_for("stoker: waiting")
            typist.wait_for("for your job 1")
            typist.type("\x03")
            assert typist.wait_end() == 130
            assert typist.restored
        (stoker.cwd / "gate").touch()
        assert stoker.finish(busy).code == 0
        assert {job["state"] for job in sessions(stoker)} == {"cancelled", "done"}

    def test_it_starts_when_the_gpu_is_free(self, stoker: Stoker) -> None:
        """The line about waiting names the own job that has the GPU and its end, and makes room for the session."""
        busy = stoker.start("run", *SIM, "-t", "1h", "--", "sh", "-c", f"touch began; {until('gate')}")
        wait_until((stoker.cwd / "began").exists)
        with typing(stoker, "shell", *SIM) as typist:
            typist.wait_for("stoker: waiting until about ")
            typist.wait_for(" (Ctrl-C to stop waiting): for your job 1 ")
            (stoker.cwd / "gate").touch()
            typist.wait_for("ready> ")
            typist.type("exit\r")
            assert typist.wait_end() == 0
        assert stoker.finish(busy).code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("shell",), "a session needs a terminal"),
        (("run", "--pty", "--resume", "true"), "--resume cannot be used with --pty"),
        (("run", "--pty", "--idle", "5m:stop"), "'5m:stop' is not a duration"),
        (("shell", "--idle", "often"), "'often' is not a duration"),
        (("shell", "-o", "log"), "--out has no meaning for a session"),
        (("shell", "-a", "1-3"), "--array has no meaning for a session"),
    ],
)
def test_bad_input(stoker: Stoker, words: tuple[str, ...], told: str) -> None:
    """It is refused with a hint before anything starts."""
    outcome = stoker(*words)
    assert (outcome.code, told in outcome.err) == (2, True), outcome.err


def test_in_tmux(tmp_path: Path) -> None:
    """Inside tmux it shows in status from within, and leaves the screen to the shell that started it."""
    (tmp_path / ".bashrc").write_text("PS1='ready> '; HISTFILE=\n")
    variables = {"SHELL": "/bin/bash", "HOME": str(tmp_path), "STOKER_SIM": "2x24G"}
    path = f"{os.path.dirname(PROGRAM)}:{os.environ['PATH']}"
    with open_terminal(tmp_path, PATH=path, **variables) as terminal:
        terminal.start([PROGRAM, "shell", "-m", "8G"], 80, 24)
        terminal.wait_for("ready>")
        terminal.press("stoker status; echo size $COLUMNS $LINES\n")
        terminal.wait_for("/bin/bash", "size 80 24")
        terminal.press("exit 3\n")
        terminal.wait_for("exit code 3")
