"""Which engines live, their process and version, wake-ups and signals."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stoker import __version__
from stoker.core.errors import StokerError
from stoker.store.engine_lock import (
    QUEUE,
    EngineLock,
    EngineRuns,
    WakeFifo,
    engine_lives,
    living_engines,
    lock_path,
    process_of,
    signal_engine,
    sweep_engine,
    version_of,
    wake,
)
from stoker.store.paths import Paths
from support.disk import fill, small_disk
from support.wait import PATIENCE_SECONDS, ending, line_from

_ENGINE = """
import pathlib, signal, sys
from stoker.store.paths import Paths
from stoker.store.engine_lock import EngineLock
here = EngineLock(Paths(pathlib.Path(sys.argv[1])), "queue")
print("here", flush=True)
signal.pause()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A state directory."""
    return Paths(tmp_path)


def test_an_engine_lives_while_its_lock_is_held(paths: Paths) -> None:
    """An engine lives from the making of its lock to its close, and shows process and version."""
    engine_lock = EngineLock(paths, QUEUE)
    assert engine_lives(paths, QUEUE)
    assert process_of(paths, QUEUE) == os.getpid()
    assert version_of(paths, QUEUE) == __version__
    engine_lock.close()
    assert not engine_lives(paths, QUEUE)
    assert process_of(paths, QUEUE) is None
    assert version_of(paths, QUEUE) == ""


def test_there_is_one_engine_of_a_name(paths: Paths) -> None:
    """A second engine of a name is refused; engines without a name get different ones."""
    first = EngineLock(paths, QUEUE)
    with pytest.raises(EngineRuns):
        EngineLock(paths, QUEUE)
    others = [EngineLock(paths), EngineLock(paths)]
    assert set(living_engines(paths)) == {QUEUE, *(other.name for other in others)}
    for engine_lock in (first, *others):
        engine_lock.close()


def test_a_lock_left_by_a_dead_engine_is_taken_again(paths: Paths) -> None:
    """The kernel released the lock, so the file and its contents do not count."""
    paths.engines.mkdir()
    lock_path(paths, QUEUE).write_text("1\n9.9.9\n")
    assert process_of(paths, QUEUE) is None
    EngineLock(paths, QUEUE).close()


def test_an_unreadable_lock_has_no_process_and_version(paths: Paths) -> None:
    """An unreadable lock gives no process and no version, and no error."""
    paths.engines.mkdir()
    lock_path(paths, QUEUE).write_bytes(b"\xff\xfe nonsense")
    with open(lock_path(paths, QUEUE), "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert engine_lives(paths, QUEUE)
        assert process_of(paths, QUEUE) is None
        assert signal_engine(paths, QUEUE, signal.SIGTERM) is None


def test_a_signal_reaches_the_living_engine(paths: Paths) -> None:
    """The process id is returned; without a living engine no process gets a signal."""
    assert signal_engine(paths, QUEUE, signal.SIGTERM) is None
    command = [sys.executable, "-c", _ENGINE, str(paths.state)]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as engine:
        assert line_from(engine.stdout) == "here\n"
        assert signal_engine(paths, QUEUE, signal.SIGTERM) == engine.pid
        assert engine.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert signal_engine(paths, QUEUE, signal.SIGTERM) is None


def test_wake_ups_are_received_once(paths: Paths) -> None:
    """Any number of wake-ups counts as one; without a listener wake() returns False."""
    paths.engines.mkdir()
    assert not wake(paths, QUEUE)
    wake_fifo = WakeFifo(paths, QUEUE)
    capacity = fcntl.fcntl(wake_fifo.fileno(), fcntl.F_SETPIPE_SZ, 4096)
    for _ in range(capacity + 1):  # more than there is room for
        assert wake(paths, QUEUE)
    wake_fifo.drain()
    wake_fifo.drain()
    wake_fifo.close()
    assert not wake(paths, QUEUE)


def test_files_of_a_dead_engine_are_removed(paths: Paths) -> None:
    """Lock, FIFO and status file are removed."""
    paths.engines.mkdir()
    for path in (lock_path(paths, "x"), paths.engines / "x.wake", paths.status_file("x")):
        path.touch()
    sweep_engine(paths, "x")
    assert list(paths.engines.iterdir()) == []


def test_a_probe_does_not_keep_an_engine_from_starting(tmp_path: Path) -> None:
    """A process that only probes the lock is not taken for an engine."""
    paths = Paths(tmp_path)
    paths.engines.mkdir()
    glance = os.open(lock_path(paths, QUEUE), os.O_RDWR | os.O_CREAT)
    fcntl.flock(glance, fcntl.LOCK_SH)
    end = threading.Timer(0.05, os.close, [glance])
    end.start()
    engine_lock = EngineLock(paths, QUEUE)
    assert engine_lives(paths, QUEUE)
    engine_lock.close()
    end.join(PATIENCE_SECONDS)


def test_an_engine_without_room_for_its_lock(tmp_path: Path) -> None:
    """On a full disk the engine fails with a message and leaves no lock."""
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        paths = Paths(disk)
        paths.engines.mkdir()
        fill(disk)
        with pytest.raises(StokerError, match="No space left"):
            EngineLock(paths, QUEUE)
        assert not engine_lives(paths, QUEUE)
        assert list(paths.engines.iterdir()) == []


def test_an_engine_whose_lock_was_replaced_leaves_the_other_alone(paths: Paths) -> None:
    """It notices, and its close removes neither the lock nor the FIFO of the other."""
    first, wake_fifo = EngineLock(paths, QUEUE), WakeFifo(paths, QUEUE)
    paths.engines.rename(paths.state / "elsewhere")
    assert not first.in_place
    second, other_fifo = EngineLock(paths, QUEUE), WakeFifo(paths, QUEUE)
    wake_fifo.close()
    first.close()
    assert second.in_place
    assert wake(paths, QUEUE)
    other_fifo.close()
    second.close()
