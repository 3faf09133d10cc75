"""Starting the engine in the background, and its log."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stoker.app.control.engine_process import (
    LIMIT,
    READY,
    Background,
    EngineFailed,
    died_again,
    ensure_engine,
    open_log,
    tell_failure,
    tell_ready,
)
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.store.engine_lock import QUEUE, EngineLock, engine_lives, lock_path
from stoker.store.paths import Paths
from support.wait import PATIENCE_SECONDS, wait_until


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A state directory."""
    return Paths(tmp_path)


def in_place_of_stoker(directory: Path, program: str) -> Mapping[str, str]:
    """An environment in which `python -m stoker` is a program of the test's."""
    package = directory / "instead"
    package.mkdir()
    (package / "stoker.py").write_text(program)
    return {**os.environ, "PYTHONPATH": str(package)}


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[str]:
    """A statement that lets a process wait until the test is over."""
    with (tmp_path / "gate").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield f"import fcntl; fcntl.flock(open({gate.name!r}), fcntl.LOCK_SH)"


def test_one_that_lives_is_not_started_again(paths: Paths) -> None:
    """There is an engine already."""
    engine_lock = EngineLock(paths, QUEUE)
    assert not ensure_engine(paths, [], {})
    engine_lock.close()


def test_an_engine_that_is_ready(paths: Paths, tmp_path: Path, waiting: str) -> None:
    """It says so through the pipe, and the process that started it goes on while it lives."""
    program = f"import os, sys; os.write(int(sys.argv[-1]), {READY!r}); {waiting}"
    assert ensure_engine(paths, [], in_place_of_stoker(tmp_path, program))


def test_an_engine_that_says_why_it_cannot(paths: Paths, tmp_path: Path) -> None:
    """The sentence and the hint arrive; what the machine can never do keeps its exit code."""
    program = 'import os, sys; os.write(int(sys.argv[-1]), b\'{"message": "no", "hint": "try", "code": %d}\')'
    for code, kind in ((125, EngineFailed), (5, Impossible)):
        (tmp_path / str(code)).mkdir()
        with pytest.raises(kind) as caught:
            ensure_engine(paths, [], in_place_of_stoker(tmp_path / str(code), program % code))
        assert (caught.value.message, caught.value.hint) == ("no", "try")


def test_an_engine_that_dies_without_a_word(paths: Paths, tmp_path: Path) -> None:
    """Its exit code and the last line of its log are told, and where the log is."""
    environment = in_place_of_stoker(tmp_path, "import sys; print('alas', file=sys.stderr); sys.exit(9)")
    with pytest.raises(EngineFailed) as caught:
        ensure_engine(paths, [], environment)
    assert caught.value.message == "the engine ended with 9: alas"
    assert str(paths.log) in caught.value.hint
    assert paths.log.read_text() == "alas\n"


def test_an_engine_that_has_its_lock_while_it_dies(paths: Paths, tmp_path: Path) -> None:
    """It is not taken for another that was faster."""
    paths.engines.mkdir()
    program = f"""
import fcntl, os, sys, time
lock = os.open({str(lock_path(paths, QUEUE))!r}, os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
os.close(int(sys.argv[-1]))
time.sleep(0.3)
sys.exit(9)
"""
    with pytest.raises(EngineFailed, match="ended with 9"):
        ensure_engine(paths, [], in_place_of_stoker(tmp_path, program))


def test_an_engine_that_failed_because_another_was_faster(paths: Paths, tmp_path: Path, waiting: str) -> None:
    """There is one, which is all that was wanted."""
    paths.engines.mkdir()
    program = f"""
import fcntl, os, sys
lock = os.open({str(lock_path(paths, QUEUE))!r}, os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork():
    os._exit(3)
os.close(int(sys.argv[-1]))
{waiting}
"""
    assert ensure_engine(paths, [], in_place_of_stoker(tmp_path, program))


def test_one_more_try_where_another_was_faster_and_is_gone(paths: Paths, tmp_path: Path) -> None:
    """An engine that was killed between its lock and our look does not fail the start; twice in a row it does."""
    program = f"""
import os, pathlib, sys
marker = pathlib.Path({str(tmp_path)!r}, "tried")
runs = b'{{"message": "an engine is already running here", "hint": "", "code": 3}}'
first = not marker.exists()
marker.touch()
os.write(int(sys.argv[-1]), runs if first else {READY!r})
"""
    environment = in_place_of_stoker(tmp_path, program)
    assert ensure_engine(paths, [], environment)
    (tmp_path / "instead/stoker.py").write_text(program.replace("if first else", "if True else"))
    with pytest.raises(EngineFailed, match="already running"):
        ensure_engine(paths, [], environment)


def test_an_engine_that_dies_right_after_its_start(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of its log is told; the restart record tells a death from an exit."""
    program = f"""
import os, sys
open({str(paths.restart)!r}, "w").close()
print("alas", file=sys.stderr, flush=True)
os.write(int(sys.argv[-1]), {READY!r})
"""
    monkeypatch.setenv("PYTHONPATH", in_place_of_stoker(tmp_path, program)["PYTHONPATH"])
    engine = Background(paths)
    engine.wake()
    wait_until(lambda: not engine_lives(paths, QUEUE))
    engine.wake()
    assert engine.failure is not None
    assert engine.failure.exit_code == 3
    assert "died: alas" in engine.failure.message
    paths.restart.unlink()
    assert died_again(paths) is None


@pytest.mark.parametrize("error", [UsageError("what", "hint"), StokerError("what")])
def test_what_is_told_through_the_pipe(error: StokerError) -> None:
    """One answer, and then the end; without a pipe nobody is told."""
    tell_ready(None)
    tell_failure(None, error)
    reader, writer = os.pipe()
    tell_failure(writer, error)
    with open(reader, "rb") as pipe:
        assert b'"what"' in pipe.read()


_WRITER = """
import pathlib, sys
from stoker.app.control import engine_process
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
