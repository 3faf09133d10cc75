"""What ssh complains of, in words that help."""

from __future__ import annotations

import pytest

from stoker.queue.private_slurm import SCRIPT, is_local, ssh_trouble


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
