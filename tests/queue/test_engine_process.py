"""Starting the engine: what whoever starts it is told, whatever becomes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.queue.engine_process import READY, EngineFailed, ensure_engine, tell_failure, tell_ready
from stoker.store.engine_lock import QUEUE, EngineLock, lock_path
from stoker.store.paths import Paths


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


def test_one_that_lives_is_not_started_again(paths: Paths) -> None:
    """Whoever asks for an engine has one."""
    engine_lock = EngineLock(paths, QUEUE)
    assert not ensure_engine(paths, [], {})
    engine_lock.close()


def test_an_engine_that_is_ready(paths: Paths, tmp_path: Path) -> None:
    """It says so through the pipe, and whoever started it goes on while it lives."""
    program = f"import os, sys, time; os.write(int(sys.argv[-1]), {READY!r}); time.sleep(0.5)"
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
    """Its exit code is told, and where its last words are."""
    environment = in_place_of_stoker(tmp_path, "import sys; print('alas', file=sys.stderr); sys.exit(9)")
    with pytest.raises(EngineFailed) as caught:
        ensure_engine(paths, [], environment)
    assert caught.value.message == "the engine ended with 9"
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


def test_an_engine_that_failed_because_another_was_faster(paths: Paths, tmp_path: Path) -> None:
    """There is one, which is all that was wanted."""
    paths.engines.mkdir()
    program = f"""
import fcntl, os, sys, time
lock = os.open({str(lock_path(paths, QUEUE))!r}, os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork():
    os._exit(3)
os.close(int(sys.argv[-1]))
time.sleep(2)
"""
    assert ensure_engine(paths, [], in_place_of_stoker(tmp_path, program))


@pytest.mark.parametrize("error", [UsageError("what", "hint"), StokerError("what")])
def test_what_is_told_through_the_pipe(error: StokerError) -> None:
    """One answer, and then the end; without a pipe nobody is told."""
    tell_ready(None)
    tell_failure(None, error)
    reader, writer = os.pipe()
    tell_failure(writer, error)
    with open(reader, "rb") as pipe:
        assert b'"what"' in pipe.read()
