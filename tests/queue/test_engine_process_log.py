"""The engine's log, and how it is kept from growing for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stoker.queue.engine_process import LIMIT, open_log
from support.wait import PATIENCE_SECONDS

_WRITER = """
import pathlib, sys
from stoker.queue import engine_process
path = pathlib.Path(sys.argv[1])
engine_process.log(path, "before")
sys.stderr.write("x" * int(sys.argv[2]) + "\\n")
engine_process.log(path, "after")
print("also what is printed", flush=True)
"""


def write(log: Path, target: Path, size: int) -> None:
    """Be an engine that writes so much between two lines of its log."""
    with open(target, "ab") as stream:
        command = [sys.executable, "-c", _WRITER, str(log), str(size)]
        subprocess.run(command, stdout=stream, stderr=stream, check=True, timeout=PATIENCE_SECONDS)


def test_a_log_that_has_grown_is_put_aside_while_it_is_written(tmp_path: Path) -> None:
    """The next line begins a new file, and everything goes there from then on."""
    log = tmp_path / "engine.log"
    write(log, log, LIMIT)
    assert log.read_text().endswith("also what is printed\n")
    assert "after" in log.read_text()
    assert "before" not in log.read_text()
    assert "before" in (tmp_path / "engine.log.1").read_text()[:100]


def test_a_short_log_stays(tmp_path: Path) -> None:
    """Lines are added with their time."""
    log = tmp_path / "engine.log"
    write(log, log, 100)
    assert "before" in log.read_text()
    assert "after" in log.read_text()
    assert not (tmp_path / "engine.log.1").exists()


def test_a_stream_that_is_not_the_log_is_left_alone(tmp_path: Path) -> None:
    """Under systemd the engine writes to the journal, however long its own log is."""
    log, other = tmp_path / "engine.log", tmp_path / "journal"
    log.write_bytes(b"x" * (LIMIT + 1))
    write(log, other, LIMIT)
    assert other.stat().st_size > LIMIT
    assert not (tmp_path / "engine.log.1").exists()


def test_a_new_engine_begins_a_new_log_where_the_old_is_long(tmp_path: Path) -> None:
    """One old log is kept, and the files are private."""
    log = tmp_path / "engine.log"
    for text in (b"first", b"second"):
        log.write_bytes(text + b"x" * LIMIT)
        open_log(log).close()
        assert log.stat().st_size == 0
        assert (tmp_path / "engine.log.1").read_bytes().startswith(text)
    assert log.stat().st_mode & 0o777 == 0o600
