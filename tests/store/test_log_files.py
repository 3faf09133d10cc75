"""Files that jobs write to, read from their end and while they grow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.store.logs import Tail, open_log, start_of_last_lines


@pytest.mark.parametrize(
    ("written", "count", "last"),
    [
        ("", 3, ""),
        ("a\nb\nc\n", 0, ""),
        ("a\nb\nc\n", 1, "c\n"),
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\nb\nc\n", 9, "a\nb\nc\n"),
        ("\n\n\n", 2, "\n\n"),
        ("x" * 200_000 + "\nlast\n", 1, "last\n"),
        ("first\n" + "x" * 200_000, 1, "x" * 200_000),
    ],
)
def test_the_last_lines(tmp_path: Path, written: str, count: int, last: str) -> None:
    """They are found from the end, over any number of blocks."""
    path = tmp_path / "log"
    path.write_text(written)
    with path.open("rb") as file:
        assert written[start_of_last_lines(file, count) :] == last


def test_a_file_that_comes_grows_and_is_emptied(tmp_path: Path) -> None:
    """Each byte is given once; a file that was emptied is read from its start."""
    path = tmp_path / "log"
    tail = Tail(str(path))
    assert list(tail.read()) == []
    path.write_bytes(b"one")
    assert b"".join(tail.read()) == b"one"
    assert list(tail.read()) == []
    with path.open("ab") as file:
        file.write(b" two")
    assert b"".join(tail.read()) == b" two"
    with path.open("wb") as file:
        file.write(b"new")
    assert b"".join(tail.read()) == b"new"
    tail.close()


def test_what_is_no_file(tmp_path: Path) -> None:
    """A pipe or an endless device reads as empty, and nobody waits for a writer."""
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with open_log(path) as file:
            assert file.read() == b""
