"""What ssh and servers complain of, in words that help."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.app.service.ssh import ssh_trouble
from stoker.features.slurm.private_servers import SCRIPT, is_local, on_servers


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("me@gpu1: Permission denied (publickey,password).", "ssh-copy-id gpu1"),
        ("Host key verification failed.", "accept it once: ssh gpu1"),
        ("ssh: connect to host gpu1 port 22: No route to host", "does not reach it: ssh: connect to host gpu1"),
        ("", "ssh says nothing"),
    ],
)
def test_ssh_trouble(said: str, words: str) -> None:
    """Each trouble comes with what to type."""
    assert words in ssh_trouble(said, "gpu1")


def test_local_names() -> None:
    """This machine is reached without ssh."""
    assert is_local("localhost")
    assert not is_local("gpu1")


def test_the_script_is_part_of_the_package() -> None:
    """It is sent to servers, and lies beside the module."""
    assert SCRIPT.read_text().endswith('"$@"\n')


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (str(os.getpid()), "[time] error: cannot find cgroup plugin"),
        ("none", "slurmd has ended: [time] error: cannot find cgroup plugin"),
    ],
    ids=["lives", "ended"],
)
def test_the_last_error_of_a_slurmd(tmp_path: Path, process: str, words: str) -> None:
    """It is read from its log, with whether the daemon lives; later lines without an error do not count."""
    (tmp_path / "slurmd.gpu1.log").write_text("error: first\n[time] error: cannot find cgroup plugin\ndebug: bye\n")
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    (tmp_path / "gpu1.process").write_text(f"{process} {ticks}\n")
    [answer] = on_servers((), ["localhost"], lambda _: ["complaint", str(tmp_path), "gpu1"])
    assert f"stoker:complaint {words}\n" in answer.text
