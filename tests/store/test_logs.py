"""Tails of logs are read without waiting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.logs.oom import find_oom
from stoker.store.logs import Tail, last_line, open_log, read_tail, size_of, start_of_last_lines
from support.wait import PATIENCE_SECONDS

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB "
    "of which 1.58 GiB is free. Process 2493055 has 12.02 GiB memory in use. Including non-PyTorch memory, this "
    "process has 966.00 MiB memory in use.\n"
)


def test_a_short_log_is_read_as_a_whole(tmp_path: Path) -> None:
    """A log shorter than the limit is read in full."""
    (tmp_path / "log").write_text("one\ntwo\n")
    assert read_tail(str(tmp_path / "log")) == "one\ntwo\n"


def test_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    """A log of gigabytes costs no more than one of a few pages."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.seek(5 * 2**30)
        file.write(b"the end\n")
    assert read_tail(str(log), limit=8) == "the end\n"
    assert len(read_tail(str(log))) == 128 * 1024


def test_text_before_since_is_left_out(tmp_path: Path) -> None:
    """A log is read from `since`; one that was rewritten is read in full."""
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
    """A tail never begins with a part of a character."""
    (tmp_path / "log").write_text("€𝄞é█x")
    assert "€𝄞é█x".endswith(read_tail(str(tmp_path / "log"), limit=limit))


def test_a_character_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    """The next read has all of it."""
    (tmp_path / "log").write_bytes("progress █".encode()[:-1])
    assert read_tail(str(tmp_path / "log")) == "progress "


def test_invalid_bytes_are_replaced(tmp_path: Path) -> None:
    """An invalid byte does not hide the rest."""
    (tmp_path / "log").write_bytes(b"\x80a\xffb")
    assert read_tail(str(tmp_path / "log")) == "\ufffda\ufffdb"


@pytest.mark.parametrize(
    "path", ["", "-", "missing", "missing/log", ".", "nul\0", "/dev/null", "/dev/zero", "/dev/tty"]
)
def test_other_files_have_no_tail(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from the terminal, a directory or a device."""
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("a file of that name is not meant")
    assert read_tail(path) == ""
    assert size_of(path) == 0


def test_a_pipe_is_not_even_opened(tmp_path: Path) -> None:
    """The writer of a pipe is not unblocked."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read_tail(str(pipe)) == ""
    with pytest.raises(OSError, match="No such device"):
        os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)


def test_an_unreadable_log_has_no_tail(tmp_path: Path) -> None:
    """An error while opening is an empty log."""
    (tmp_path / "log").symlink_to("log")
    assert read_tail(str(tmp_path / "log")) == ""


def test_a_message_written_in_pieces_is_found(tmp_path: Path) -> None:
    """A message that was written in several pieces is found."""
    log = tmp_path / "log"
    write = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"
    half = len(MESSAGE) // 2
    for span in ("epoch 1\r", MESSAGE[:half], MESSAGE[half:], "bye\n"):
        subprocess.run([sys.executable, "-c", write, str(log), span], check=True, timeout=PATIENCE_SECONDS)
    found = find_oom(read_tail(str(log)))
    assert found is not None
    assert found.own == 966 * 2**20


def test_a_log_that_was_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    """A file that shrank is read in full."""
    log = tmp_path / "log"
    log.write_text("x" * 300_000)
    assert len(read_tail(str(log))) == 128 * 1024
    os.truncate(log, 5)
    assert read_tail(str(log)) == "xxxxx"


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
    """The last lines are found over any number of blocks."""
    path = tmp_path / "log"
    path.write_text(written)
    with path.open("rb") as file:
        assert written[start_of_last_lines(file, count) :] == last


def test_a_file_that_comes_grows_and_is_emptied(tmp_path: Path) -> None:
    """Each byte is yielded once; a truncated file is read from its start."""
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


def test_other_files_read_as_empty(tmp_path: Path) -> None:
    """A pipe or an endless device reads as empty, without waiting for a writer."""
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with open_log(path) as file:
            assert file.read() == b""


TORCHRUN = b"""\
W1117 23:00:00.123000 1234 torch/distributed/elastic/api.py:900] Sending process 1235 closing signal SIGTERM
E1117 23:00:00.234000 1234 torch/distributed/elastic/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: 1236)
Traceback (most recent call last):
  File "/usr/local/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
%b
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
bad.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-17_23:00:00
  host      : box
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 1236)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
""" % b"\n".join(b'  File "launch.py", line 7, in call\n    return f(*args)\n           ^^^^^^^' for _ in range(8))
ACCELERATE = b"""\
Traceback (most recent call last):
  File "/usr/local/bin/accelerate", line 8, in <module>
    sys.exit(main())
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"", ""),
        (b"[rank1]: ValueError: bad shape in layer 3\n" + TORCHRUN, "[rank1]: ValueError: bad shape in layer 3"),
        (b"step 3\n" + TORCHRUN, TORCHRUN.splitlines()[1].decode()),
        (b"KeyError: 'x'\n" + ACCELERATE, "KeyError: 'x'"),
        (b"step 3\n" + ACCELERATE, ACCELERATE.splitlines()[-1].decode()),
        (
            TORCHRUN[TORCHRUN.index(b"torch.distributed") :],
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        ),
        (b"one\ntwo\n\n  \n", "two"),
        (b"10%\r50%\r100%\r\n", "100%"),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07end\x1b[K\n\x1b[0m\n", "red end"),
        (b"bytes \xff\n", "bytes \\xff"),
        (b"x" * 50_000 + b"\nlast", "last"),
        (b"RuntimeError: loss is nan\n 45%|####   | 45/100 [00:01<00:01]\n=======\n", "RuntimeError: loss is nan"),
        (b"[rank0]: ValueError: bad\nerrors.ChildFailedError: \ntrain.py FAILED\n------\n", "[rank0]: ValueError: bad"),
        (b"KeyError: 'x' was ignored\n" + b"fine\n" * 60 + b"fatal: no space\n", "fatal: no space"),
        (
            b"2 ok, 1 failed\n  \xe2\x9c\x97 #3 a: exit 1\n  logs: x/\n  rerun the rest: stoker run --resume l\n",
            "✗ #3 a: exit 1",
        ),
        (b" 45%|####   | 45/100\n", "45%|####   | 45/100"),
    ],
)
def test_the_last_line_with_text(tmp_path: Path, log: bytes, said: str) -> None:
    """Blank lines, progress bars, colours and titles are skipped; an exception counts more than what follows it."""
    path = tmp_path / "log"
    path.write_bytes(log)
    assert last_line(str(path)) == said


def test_a_missing_log_has_no_last_line(tmp_path: Path) -> None:
    """A missing log, or a directory in its place, gives an empty line."""
    assert last_line(str(tmp_path / "no")) == last_line(str(tmp_path)) == ""
