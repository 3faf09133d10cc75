"""The end of a log is read as it is, and reading never waits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.logs.oom import find_oom
from stoker.store.logs import read_tail, size_of
from support.wait import PATIENCE_SECONDS

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB "
    "of which 1.58 GiB is free. Process 2493055 has 12.02 GiB memory in use. Including non-PyTorch memory, this "
    "process has 966.00 MiB memory in use.\n"
)


def test_a_short_log_is_read_as_a_whole(tmp_path: Path) -> None:
    """What is shorter than the limit is all there."""
    (tmp_path / "log").write_text("one\ntwo\n")
    assert read_tail(str(tmp_path / "log")) == "one\ntwo\n"


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    """A log of gigabytes costs no more than one of a few pages."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.seek(5 * 2**30)
        file.write(b"the end\n")
    assert read_tail(str(log), limit=8) == "the end\n"
    assert len(read_tail(str(log))) == 128 * 1024


def test_what_was_there_before_is_left_out(tmp_path: Path) -> None:
    """A log that others wrote to is read from where it had ended; one that was begun anew is read as a whole."""
    log = tmp_path / "log"
    assert size_of(str(log)) == 0
    log.write_text("theirs\n")
    before = size_of(str(log))
    log.write_text("theirs\nours\n")
    assert read_tail(str(log), since=before) == "ours\n"
    assert read_tail(str(log), limit=3, since=before) == "rs\n"
    log.write_text("anew\n")
    assert read_tail(str(log), since=before) == "anew\n"


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_character_that_was_cut_off_is_left_out(tmp_path: Path, limit: int) -> None:
    """Whatever byte the tail begins with, no half of a character is shown as a wrong one."""
    (tmp_path / "log").write_text("€𝄞é█x")
    assert "€𝄞é█x".endswith(read_tail(str(tmp_path / "log"), limit=limit))


def test_a_character_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    """The rest of it will be there the next time."""
    (tmp_path / "log").write_bytes("progress █".encode()[:-1])
    assert read_tail(str(tmp_path / "log")) == "progress "


def test_what_is_no_text_is_replaced(tmp_path: Path) -> None:
    """A byte that belongs to no character does not hide the rest."""
    (tmp_path / "log").write_bytes(b"\x80a\xffb")
    assert read_tail(str(tmp_path / "log")) == "\ufffda\ufffdb"


@pytest.mark.parametrize(
    "path", ["", "-", "missing", "missing/log", ".", "nul\0", "/dev/null", "/dev/zero", "/dev/tty"]
)
def test_what_is_no_file_has_no_end(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from the terminal, a directory or a device."""
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("a file of that name is not meant")
    assert read_tail(path) == ""
    assert size_of(path) == 0


def test_a_pipe_is_not_even_opened(tmp_path: Path) -> None:
    """Whoever waits to write into it goes on waiting for the reader that it is for."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read_tail(str(pipe)) == ""
    with pytest.raises(OSError, match="No such device"):
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)


def test_a_log_that_nobody_may_read_has_no_end(tmp_path: Path) -> None:
    """An error while opening is an empty log."""
    (tmp_path / "log").symlink_to("log")
    assert read_tail(str(tmp_path / "log")) == ""


def test_a_message_written_in_pieces_is_found(tmp_path: Path) -> None:
    """A message counts as long as it is in one piece in the file, whoever wrote which part of it."""
    log = tmp_path / "log"
    write = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    half = len(MESSAGE) // 2
    for span in ("epoch 1\r", MESSAGE[:half], MESSAGE[half:], "bye\n"):
        subprocess.run([sys.executable, "-c", write, str(log), span], check=True, timeout=PATIENCE_SECONDS)
    found = find_oom(read_tail(str(log)))
    assert found is not None
    assert found.own == 966 * 2**20


def test_a_log_that_was_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    """A file that shrinks gives what is left of it."""
    log = tmp_path / "log"
    log.write_text("x" * 300_000)
    assert len(read_tail(str(log))) == 128 * 1024
    os.truncate(log, 5)
    assert read_tail(str(log)) == "xxxxx"
