"""Standard input of `stoker run`: one command reads ours, the jobs of a list read nothing."""

from __future__ import annotations

import hashlib
import os
import pty
import subprocess
from pathlib import Path

from support.cli import PROGRAM, Stoker
from support.wait import wait_until

RUN = ("run", "--devices", "0")


def test_one_command_reads_our_pipe(stoker: Stoker) -> None:
    """`echo hi | stoker run -- cat` prints hi."""
    assert stoker(*RUN, "--", "cat", stdin="hi\n").out == "hi\n"


def test_a_script_reads_our_pipe(stoker: Stoker) -> None:
    """A script is one command."""
    stoker.write("job.sh", 'read line; echo "got $line"')
    assert stoker(*RUN, "job.sh", stdin="a b\n").out == "got a b\n"


def test_a_large_pipe_arrives_complete(stoker: Stoker) -> None:
    """100 MB are the same bytes on the other side."""
    digest = hashlib.sha1(bytes(100_000_000)).hexdigest()
    done = stoker.typed("head -c 100000000 /dev/zero | stoker run --devices 0 -- sha1sum")
    assert done.out.split()[0] == digest


def test_one_command_reads_our_file(stoker: Stoker) -> None:
    """`stoker run -- cat < file` works, and the file may be closed by the caller at once."""
    stoker.write("numbers", "1", "2")
    assert stoker.typed("stoker run --devices 0 -- cat < numbers").out == "1\n2\n"


def test_a_retry_reads_a_file_from_its_start(stoker: Stoker) -> None:
    """Both attempts read the first line."""
    stoker.write("numbers", "1", "2")
    line = "stoker run --devices 0 --retries 1 -- sh -c 'read a; echo $a; exit 3' < numbers"
    assert stoker.typed(line).out == "1\n1\n"


def test_a_retry_never_reads_the_rest_of_a_pipe(stoker: Stoker) -> None:
    """The second attempt reads nothing: half an input would look like a whole one."""
    command = ("sh", "-c", 'read a; echo "<$a>"; exit 3')
    done = stoker(*RUN, "--retries", "1", "--", *command, stdin="1\n2\n3\n")
    assert (done.code, done.out.splitlines()[1]) == (3, "<>")


def test_jobs_of_a_list_read_nothing(stoker: Stoker) -> None:
    """Neither a list from a file nor an array takes our input."""
    stoker.write("jobs.txt", "cat; echo one >> ran", "cat; echo two >> ran")
    assert stoker(*RUN, "jobs.txt", stdin="hi\n").code == 0
    assert stoker(*RUN, "-a", "0-1", "--", "cat", stdin="hi\n").code == 0
    assert sorted(stoker.lines("ran")) == ["one", "two"]
    assert stoker.logs() == [""] * 4


def test_one_command_reads_our_terminal(stoker: Stoker) -> None:
    """What the user types arrives, and the command sees a terminal."""
    ours, theirs = pty.openpty()
    command = ["sh", "-c", "test -t 0 && read line && echo $line > typed"]
    process = subprocess.Popen(
        [PROGRAM, *RUN, "--", *command], cwd=stoker.cwd, env=stoker.environment, stdin=theirs, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, b"hello\n")
    wait_until(lambda: process.poll() is not None)
    os.close(ours)
    assert (process.returncode, stoker.lines("typed")) == (0, ["hello"])


def test_in_the_background_a_command_does_not_take_the_keys(stoker: Stoker, tmp_path: Path) -> None:
    """With `stoker run ... &` the terminal belongs to the shell, so the command reads nothing."""
    ours, theirs = pty.openpty()
    shell = f"set -m; {PROGRAM} {' '.join(RUN)} -- sh -c 'test -t 0 || echo no > input' & wait"
    process = subprocess.Popen(
        ["setsid", "-c", "bash", "-c", shell], cwd=stoker.cwd, env=stoker.environment, stdin=theirs
    )
    os.close(theirs)
    wait_until(lambda: process.poll() is not None)
    os.close(ours)
    assert stoker.lines("input") == ["no"]
