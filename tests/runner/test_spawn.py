"""How a command is started: what it finds around it, where its output goes, and what if it cannot be started."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from support.local import VARIABLES, Yard, engine_process
from support.wait import PATIENCE_SECONDS

SPAWNS_ON_A_TERMINAL = """
import os, sys
from stoker.runner import spawn
terminal, directory, old = sys.argv[1:]
if old:
    def refuse(*words, setsid=False, **more):
        raise NotImplementedError
    os.posix_spawn = refuse
os.setsid()
program = (
    "import os, sys; leads = os.getsid(0) == os.getpid() == os.tcgetpgrp(0);"
    "open('/dev/tty').close(); print(*map(os.ttyname, range(3)), leads); sys.exit(7)"
)
order = {"umask": 0o22, "cwd": directory, "out": "-", "err": "-", "terminal": terminal, "shell": ""}
pid = spawn.launch({**order, "words": [sys.executable, "-c", program]}, dict(os.environ))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class TestSurroundings:
    """What a command finds around it."""

    def test_directory_and_umask(self, works: Yard) -> None:
        """The command runs in its directory, and files it makes have the submitter's umask, its log too."""
        (works.directory / "there").mkdir()
        works.run("pwd; umask", shell="/bin/sh", cwd=str(works.directory / "there"), umask=0o027)
        assert works.log().read_text() == f"{works.directory}/there\n0027\n"
        assert works.log().stat().st_mode & 0o777 == 0o640

    def test_environment(self, works: Yard) -> None:
        """The environment is the submitter's, then the order's additions and the worker's mark, nothing else."""
        variables = {"PATH": VARIABLES["PATH"], "A": "1", "B": "two\nlines", "C": "\udcff"}
        worker = works.begin("env", "-0", variables=variables, extra={"A": "2"})
        works.wait_over()
        seen = dict(line.split("=", 1) for line in os.fsdecode(works.log().read_bytes()).split("\0") if line)
        assert seen == {**variables, "A": "2", "STOKER_WORKER": worker}

    def test_names_that_are_no_text(self, works: Yard) -> None:
        """Words, directories and logs may be any bytes that the kernel allows."""
        odd = os.fsdecode(b"\xff \xe4'\"$x")
        (works.directory / odd).mkdir()
        over = works.run("touch", odd, cwd=str(works.directory / odd), out=odd + ".log")
        assert over.code == 0
        assert sorted(os.listdir(works.directory / odd)) == sorted([odd, odd + ".log"])

    @pytest.mark.parametrize("sessions", [True, False])
    def test_terminal(self, tmp_path: Path, sessions: bool) -> None:
        """The terminal of an order is the controlling one and all streams, also under a Python that cannot spawn so."""
        master, slave = os.openpty()
        terminal = os.ttyname(slave)
        done = subprocess.run(
            [sys.executable, "-c", SPAWNS_ON_A_TERMINAL, terminal, str(tmp_path), "" if sessions else "old"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        shown = b""
        while select.select([master], [], [], 0.0)[0]:  # one read may end between two writes
            shown += os.read(master, 4096)
        os.close(master)
        os.close(slave)
        assert (done.returncode, shown) == (7, f"{terminal} {terminal} {terminal} True\r\n".encode())

    def test_standard_input_is_empty(self, works: Yard) -> None:
        """Standard input is /dev/null."""
        works.run("readlink", "/proc/self/fd/0")
        assert works.log().read_text() == "/dev/null\n"

    def test_session(self, works: Yard) -> None:
        """The command leads a session of its own."""
        works.run(sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid() == os.getpgrp())")
        assert works.log().read_text() == "True\n"

    def test_descriptors(self, works: Yard) -> None:
        """The command inherits standard input, output and error, and a lock that shows that it lives, by a high number.

        It inherits neither the worker's own lock nor its journal.
        """
        works.run("ls", "/proc/self/fd")
        assert sorted(works.log().read_text().split()) == ["0", "1", "2", "3", "60"], "3 is the directory that ls reads"


class TestOutputs:
    """Where output goes."""

    def test_joined(self, works: Yard) -> None:
        """Both outputs in one file keep their order, behind what the file had before."""
        works.log().write_text("before\n")
        works.run("echo one; echo two >&2; echo three", shell="/bin/sh")
        assert works.log().read_text() == "before\none\ntwo\nthree\n"

    def test_separate(self, works: Yard) -> None:
        """Standard error can have a file of its own; relative names start from the command's directory."""
        works.run("echo one; echo two >&2", shell="/bin/sh", out="out", err="err")
        assert (works.directory / "out").read_text() == "one\n"
        assert (works.directory / "err").read_text() == "two\n"

    def test_closed_by_the_command(self, works: Yard) -> None:
        """A command that closes its outputs is not over before it ends."""
        assert works.run("exec >&- 2>&-; sleep 0.1; exit 3", shell="/bin/sh").code == 3

    def test_full_disk(self, works: Yard) -> None:
        """A command that cannot write its output keeps its own exit code."""
        assert works.run("echo in vain; exit 5", shell="/bin/sh", out="/dev/full").code == 5

    def test_directory_that_is_missing(self, works: Yard) -> None:
        """Where the log cannot be created the command does not start, and the note says why."""
        over = works.run("touch", "ran", out="missing/log")
        assert (over.code, over.why) == (126, "refused")
        assert over.note == f"cannot write its output to {works.directory}/missing/log: No such file or directory"
        assert not (works.directory / "ran").exists()

    def test_fifo_that_nobody_reads(self, works: Yard) -> None:
        """A FIFO without a reader does not hold the worker up."""
        os.mkfifo(works.directory / "fifo")
        over = works.run("true", out="fifo")
        assert (over.code, over.why) == (126, "refused")

    def test_fifo_with_a_slow_reader(self, works: Yard) -> None:
        """Into a FIFO that is read the command writes all it has, and waits where it must."""
        os.mkfifo(works.directory / "fifo")
        reader = os.open(works.directory / "fifo", os.O_RDONLY | os.O_NONBLOCK)
        works.begin("seq", "100000", out="fifo")
        with open(reader, "rb") as fifo:
            os.set_blocking(reader, True)
            # The journal tells of the start before the command opens the FIFO; a read before that finds its end.
            assert select.select([reader], [], [], PATIENCE_SECONDS)[0]
            assert fifo.read().split()[-1] == b"100000"
        assert works.wait_over().code == 0


class TestRefusals:
    """Commands that cannot be started end with the code of a shell and say why in the log."""

    @pytest.mark.parametrize(
        ("words", "code", "note"),
        [
            (("no-such-program",), 127, "no-such-program: command not found"),
            (("./no-such-program",), 127, "./no-such-program: command not found"),
            (("",), 127, ": command not found"),
            (("./plain",), 126, "./plain: Permission denied"),
            (("plain",), 126, "plain: not executable"),
            (("echo", "x" * 300_000), 126, "the command is too long for the kernel (300000 bytes); put it in a script"),
            (("echo", "a\0b"), 126, "the command contains a NUL byte, which cannot be passed to a program"),
        ],
    )
    def test_command(self, works: Yard, words: tuple[str, ...], code: int, note: str) -> None:
        """Not found is 127, not executable 126; the note is in the record and at the end of the log."""
        (works.directory / "plain").write_text("not a program")
        over = works.run(*words, extra={"PATH": f"{VARIABLES['PATH']}:{works.directory}"})
        assert (over.code, over.signal, over.why, over.note) == (code, 0, "refused", note)
        assert works.log().read_text() == f"stoker: {note}\n"

    def test_directory(self, works: Yard) -> None:
        """A directory that is gone is named."""
        over = works.run("true", cwd="/gone")
        assert (over.code, over.why, over.note) == (126, "refused", "cannot enter /gone: No such file or directory")

    def test_log_that_takes_no_note(self, works: Yard) -> None:
        """The exit code does not depend on the note fitting into the log."""
        assert works.run("no-such-program", out="/dev/full").code == 127

    def test_long_line_of_short_words(self, works: Yard) -> None:
        """An order larger than a socket takes at once arrives whole."""
        words = [f"{number:01000}" for number in range(300)]
        works.run("echo", *words)
        assert works.log().read_text().split() == words

    def test_next_attempt_starts(self, works: Yard) -> None:
        """A refused attempt does not keep the next one from starting."""
        worker = works.runner.start_worker()
        works.start(worker, "1.1", "no-such-program")
        works.start(worker, "2.1", "true")
        assert [works.wait_over("1.1").code, works.wait_over("2.1").code] == [127, 0]


class TestOldPython:
    """Pythons that were built for an older C library, as conda's are."""

    PROGRAM = """
import os, sys
newer = os.posix_spawn
def posix_spawn(*arguments, **options):
    if "setsid" in options:
        raise NotImplementedError("The 'setsid' option is not supported on this system")
    return newer(*arguments, **options)
os.posix_spawn = posix_spawn
from stoker.runner.spawn import launch
words = [sys.executable, "-c", "import os; print(os.getpgrp() == os.getpid())"]
order = {"words": words, "shell": "", "cwd": "/", "umask": 0, "out": "-", "err": "-"}
os.waitpid(launch(order, dict(os.environ)), 0)
"""

    def test_group_of_its_own(self) -> None:
        """Where spawning cannot make a session, the command at least leads a process group."""
        with engine_process(self.PROGRAM) as process:
            assert process.communicate(timeout=60) == ("True\n", "")
