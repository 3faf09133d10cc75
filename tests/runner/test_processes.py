"""Finding and signalling whole trees of real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from stoker.runner import processes
from stoker.runner.processes import SeenProcess, descendants, marked, send
from support.local import end, engine_process, lives, wait_pid
from support.wait import PATIENCE_SECONDS, ending, line_from, wait_until

LINE_OF_FOUR = "sh -c 'sh -c \"sleep 1000 & echo \\$! > pid; wait\" & wait' & wait"

SUBREAPER = """
import os, subprocess
from stoker.runner.processes import become_subreaper
become_subreaper()
subprocess.run(["sh", "-c", "setsid sleep 1000 & echo $! > pid"])
print(open(f"/proc/{open('pid').read().strip()}/stat").read().split()[3] == str(os.getpid()))
os.kill(int(open("pid").read()), 9)
"""

OLD_PYTHON = """
import os, signal, subprocess
del os.pidfd_open, signal.pidfd_send_signal
from stoker.runner.processes import descendants, send
child = subprocess.Popen(["sleep", "1000"])
send(descendants(os.getpid()), signal.SIGTERM)
print(child.wait())
"""


@contextmanager
def tree(script: str, directory: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that runs the script, and whose whole tree is ended afterwards."""
    environment = {"PATH": os.environ["PATH"], **variables}
    with ending(subprocess.Popen(["/bin/sh", "-c", script], cwd=directory, env=environment)) as shell:
        root = psutil.Process(shell.pid)
        try:
            yield shell
        finally:
            if shell.poll() is None:
                end([*root.children(recursive=True), root])


def numbers(found: list[SeenProcess]) -> list[int]:
    return [process.pid for process in found]


class TestSignalsThatAreHandled:
    """A process that does not die of a signal, as /proc shows it."""

    BLOCKED = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {}); print('ready', flush=True); {}"

    def handles(self, program: str, state: str) -> bool:
        command = [sys.executable, "-c", program]
        with ending(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as child:
            line_from(child.stdout)
            wait_until(lambda: f"State:\t{state}" in Path(f"/proc/{child.pid}/status").read_text())
            (seen,) = (process for process in descendants(os.getpid()) if process.pid == child.pid)
            child_handles = processes.handles(seen, signal.SIGUSR1)
            child.kill()
            return child_handles

    def test_one_that_keeps_it_for_later(self) -> None:
        """It blocks the signal, or all of them, and sleeps; another thread may wait for them."""
        waits = "signal.pause()"
        assert self.handles(self.BLOCKED.format("[signal.SIGUSR1]", waits), "S")
        assert self.handles(self.BLOCKED.format("signal.valid_signals()", waits), "S")

    def test_one_that_blocks_it_and_works(self) -> None:
        """It asks for the signal when it has time."""
        assert self.handles(self.BLOCKED.format("[signal.SIGUSR1]", "\nwhile True: pass"), "R")

    def test_one_that_is_starting_a_process(self) -> None:
        """A shell blocks all signals for a moment then, and would die of this one afterwards."""
        assert not self.handles(self.BLOCKED.format("signal.valid_signals()", "\nwhile True: pass"), "R")

    def test_copies_of_one(self) -> None:
        """A program gets the signal once: its copies by fork have its handler, but need not know what to save."""
        program = "import os, signal; signal.signal(10, print); os.fork(); os.write(1, b'ready\\n'); signal.pause()"
        with ending(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)) as child:
            assert [line_from(child.stdout) for _ in range(2)] == ["ready\n"] * 2
            family = [process for process in descendants(os.getpid()) if child.pid in (process.pid, process.parent)]
            told = processes.that_handle(family, signal.SIGUSR1)
            for process in family:
                os.kill(process.pid, signal.SIGKILL)
        assert (len(family), numbers(told)) == (2, [child.pid])

    def test_one_that_is_gone(self) -> None:
        """It handles nothing."""
        child = subprocess.Popen(["true"])
        child.wait(PATIENCE_SECONDS)
        assert not processes.handles(SeenProcess(child.pid, 0, 0), signal.SIGUSR1)


class TestDescendants:
    """All that is below a process."""

    def test_every_generation(self, tmp_path: Path) -> None:
        """Children's children are found too, parents first."""
        with tree(LINE_OF_FOUR, tmp_path) as shell:
            youngest = wait_pid(tmp_path / "pid")
            found = descendants(shell.pid)
            assert len(found) == 3
            assert [process.parent for process in found] == [shell.pid, *numbers(found)[:-1]]
            assert found[-1].pid == youngest

    def test_other_sessions(self, tmp_path: Path) -> None:
        """A child that left the session is still below its parent."""
        with tree("setsid sleep 1000 & echo $! > pid; wait", tmp_path) as shell:
            assert wait_pid(tmp_path / "pid") in numbers(descendants(shell.pid))

    def test_hostile_name(self, tmp_path: Path) -> None:
        """A program whose name looks like the fields behind it is read right."""
        program = tmp_path / "a) Z 1 (b"
        program.symlink_to("/bin/sleep")
        with tree(f"'{program}' 1000 & echo $! > pid; wait", tmp_path) as shell:
            wait_pid(tmp_path / "pid")
            wait_until(lambda: b"a) Z 1" in Path(f"/proc/{numbers(descendants(shell.pid))[0]}/comm").read_bytes())
            assert [process.parent for process in descendants(shell.pid)] == [shell.pid]

    def test_dead_are_not_found(self, tmp_path: Path) -> None:
        """A process that ended and was not yet collected is not among the living."""
        with tree("true & echo $! > pid; exec sleep 1000", tmp_path) as shell:
            wait_until(lambda: not lives(wait_pid(tmp_path / "pid")))
            assert descendants(shell.pid) == []

    def test_subreaper_gets_orphans(self, tmp_path: Path) -> None:
        """Orphans of a subreaper become its children."""
        with engine_process(f"import os; os.chdir({str(tmp_path)!r})\n{SUBREAPER}") as process:
            assert process.communicate(timeout=60) == ("True\n", "")


class TestMarked:
    """What a dead worker left behind."""

    def test_marker(self, tmp_path: Path) -> None:
        """Processes with the very marker are found, and no others."""
        with tree("exec sleep 1000", tmp_path, MARK="one") as one, tree("exec sleep 1000", tmp_path, MARK="one2"):
            wait_until(lambda: numbers(marked(b"MARK=one")) == [one.pid])
            assert marked(b"MARK=on") == []

    def test_cleared_environment(self, tmp_path: Path) -> None:
        """A child that cleared its environment is found below a parent that did not."""
        with tree("env -i /bin/sh -c 'echo $$ > pid; exec sleep 1000' & wait", tmp_path, MARK="two") as shell:
            bare = wait_pid(tmp_path / "pid")
            assert numbers(marked(b"MARK=two")) == [shell.pid, bare]


class TestSend:
    """Signals."""

    def test_all_of_them(self, tmp_path: Path) -> None:
        """Each process gets the signal."""
        with tree(LINE_OF_FOUR, tmp_path) as shell:
            wait_pid(tmp_path / "pid")
            found = descendants(shell.pid)
            send(found, signal.SIGKILL)
            wait_until(lambda: not any(map(lives, numbers(found))))

    def test_stopped_process(self, tmp_path: Path) -> None:
        """A stopped process is woken, so that it can act on the signal."""
        with tree("exec sleep 1000", tmp_path) as shell:
            wait_until(lambda: psutil.Process(shell.pid).name() == "sleep")
            shell.send_signal(signal.SIGSTOP)
            wait_until(lambda: psutil.Process(shell.pid).status() == psutil.STATUS_STOPPED)
            send([seen(shell.pid)], signal.SIGTERM)
            assert shell.wait(60) == -signal.SIGTERM

    def test_number_that_was_given_away(self, tmp_path: Path) -> None:
        """A process that only has the number of the one seen, and not its start time, is left alone."""
        with tree("exec sleep 1000", tmp_path) as shell:
            now = seen(shell.pid)
            send([now._replace(started=now.started - 1)], signal.SIGKILL)
            send([now], signal.SIGTERM)
            assert shell.wait(60) == -signal.SIGTERM

    def test_dead_process(self) -> None:
        """A process that is gone does not keep the others from their signal."""
        with ending(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)) as process:
            last = seen(process.pid)
        send([last], signal.SIGKILL)

    def test_python_without_pidfds(self) -> None:
        """A Python that was built for older kernels, as conda's is, can signal too."""
        with engine_process(OLD_PYTHON) as process:
            assert process.communicate(timeout=60) == (f"{-signal.SIGTERM}\n", "")


def seen(pid: int) -> SeenProcess:
    """The child of ours as it is seen."""
    (found,) = [process for process in descendants(os.getpid()) if process.pid == pid]
    return found


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_found() -> None:
    """Linux shows it as dead, though its other threads go on."""
    with ending(subprocess.Popen([sys.executable, "-c", HEADLESS])) as process:
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
        assert process.pid in numbers(descendants(os.getpid()))
        assert processes.end(lambda: [one for one in descendants(os.getpid()) if one.pid == process.pid], 60.0)


def test_a_look_that_fails_is_repeated() -> None:
    """A machine without descriptors does not tell which processes there are."""
    with ending(subprocess.Popen(["sleep", "60"])) as process:
        looks: list[OSError | list[SeenProcess]] = [OSError(errno.ENFILE, ""), [seen(process.pid)], []]

        def find() -> list[SeenProcess]:
            if isinstance(look := looks.pop(0), OSError):
                raise look
            return look

        assert processes.end(find)
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
