"""simple_hypersearch as a program: pipes, signals and errors of the system; tests/compat has what it prints."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.wait import PATIENCE_SECONDS, ending, line_from

PROGRAMS = Path(sys.executable).parent
HYPERSEARCH = str(PROGRAMS / "simple_hypersearch")
ENDLESS = ["{a}{b}{c}{d}{e}{f}", *(word for name in "abcdef" for word in ("-p", name, *map(str, range(200))))]


def typed(line: str, directory: Path) -> str:
    """What a line typed into bash prints."""
    path = f"{PROGRAMS}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    command = ["bash", "-c", line]
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout.decode()


def test_document_example_help(tmp_path: Path) -> None:
    """`simple_hypersearch -h` names every option."""
    text = typed("simple_hypersearch -h", tmp_path)
    assert text.startswith("usage: simple_hypersearch ")
    for option in ("-p NAME [VALUES ...]", "--parameter", "--sampling-mode", "--n-samples", "--seed"):
        assert option in text


def test_document_appending_to_a_queue_file(tmp_path: Path) -> None:
    """Commands appended to the queue file come after those that are there."""
    line = (
        "touch gpu.queue; echo first >> gpu.queue;"
        ' simple_hypersearch "train {lr}" --sampling-mode grid -p lr 1 2 >> gpu.queue; cat gpu.queue'
    )
    assert typed(line, tmp_path).splitlines() == ["first", "train 1", "train 2"]


def test_undecodable_bytes_pass_through() -> None:
    """File names that are no UTF-8 come out as they went in."""
    command = [os.fsencode(HYPERSEARCH), b"cat \xff{a}", b"-p", b"a", b"\xfe"]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}
    assert subprocess.check_output(command, env=environment, timeout=60) == b"cat \xff\xfe\n"


def test_each_line_is_one_write() -> None:
    """Every command leaves in a write of its own, so a scheduler behind the pipe can start on the first."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [HYPERSEARCH, "p {a}", "-p", "a", "1", "2", "3", "--sampling-mode", "grid"]
    with ours, theirs:
        subprocess.run(command, stdout=theirs.fileno(), timeout=60, check=True)
        ours.settimeout(PATIENCE_SECONDS)
        assert [ours.recv(100) for _ in range(3)] == [b"p 1\n", b"p 2\n", b"p 3\n"]


@pytest.mark.parametrize("mode", ["grid", "shuffled_grid"])
def test_closed_pipe_ends_quietly(mode: str, tmp_path: Path) -> None:
    """`| head` on an endless grid gets its lines and ends the tool as SIGPIPE would, without a word."""
    arguments = " ".join([*ENDLESS, "--sampling-mode", mode])
    printed = typed(f"simple_hypersearch {arguments} | head -2; echo ${{PIPESTATUS[0]}}", tmp_path).split()
    assert len(printed) == 3
    assert printed[2] == str(128 + signal.SIGPIPE)


def test_interrupt_ends_quietly() -> None:
    """Ctrl-C in the middle of an endless grid leaves no traceback."""
    command = [HYPERSEARCH, *ENDLESS]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as process:
        line_from(process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + signal.SIGINT, b"")


def test_full_disk_gets_a_sentence() -> None:
    """A queue file that cannot be written is reported, and shows in the exit code."""
    with open("/dev/full", "wb") as full:
        command = [HYPERSEARCH, "{a}", "-p", "a", "1"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert result.returncode == 1
    expected = b"simple_hypersearch: error: cannot write the commands: No space left on device\n"
    assert result.stderr == expected


def test_module_runs_as_the_script() -> None:
    """`python -m simple_gpu_scheduler.hypersearch` is the console script."""
    command = [sys.executable, "-m", "simple_gpu_scheduler.hypersearch"]
    assert subprocess.check_output([*command, "p {a}", "-p", "a", "1"], timeout=60) == b"p 1\n"
    assert subprocess.run([*command, "{b}"], capture_output=True, timeout=60, check=False).returncode == 2


def test_start_is_light() -> None:
    """The tool starts without the libraries of the large command line."""
    program = (
        "import sys, stoker.features.compat.simple_hypersearch; print({'click', 'rich', 'msgspec'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "set()\n"


PRESSING = """\
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "stoker.core":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""
"""Presses Ctrl-C in the middle of a program's imports."""


@pytest.mark.parametrize(
    "program", ["simple_hypersearch", "simple_gpu_scheduler", "schedule", "priority_scheduler", "stoker"]
)
def test_interrupt_during_the_imports(tmp_path: Path, program: str) -> None:
    """Ctrl-C right after the start of any of the programs ends it by the signal, without a traceback."""
    (tmp_path / "sitecustomize.py").write_text(PRESSING)
    command = ["env", "--default-signal=INT", str(PROGRAMS / program), "-h"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")
