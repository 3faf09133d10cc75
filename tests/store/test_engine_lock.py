"""Which engines live, what they say of themselves, and how they are woken and told to leave."""

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
    Bell,
    EngineRuns,
    Presence,
    engine_lives,
    living_engines,
    lock_path,
    process_of,
    ring,
    signal_engine,
    sweep_engine,
    version_notice,
    version_of,
)
from stoker.store.paths import Places
from support.disk import fill, small_disk

_ENGINE = """
import pathlib, signal, sys
from stoker.store.paths import Places
from stoker.store.engine_lock import Presence
here = Presence(Places(pathlib.Path(sys.argv[1])), "queue")
print("here", flush=True)
signal.pause()
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A state directory."""
    return Places(tmp_path)


def test_an_engine_lives_while_its_lock_is_held(places: Places) -> None:
    """From its making to its closing, and it tells process and version."""
    presence = Presence(places, QUEUE)
    assert engine_lives(places, QUEUE)
    assert process_of(places, QUEUE) == os.getpid()
    assert version_of(places, QUEUE) == __version__
    presence.close()
    assert not engine_lives(places, QUEUE)
    assert process_of(places, QUEUE) is None
    assert version_of(places, QUEUE) == ""


def test_there_is_one_engine_of_a_name(places: Places) -> None:
    """A second one is refused; those without a name are all different."""
    first = Presence(places, QUEUE)
    with pytest.raises(EngineRuns):
        Presence(places, QUEUE)
    others = [Presence(places), Presence(places)]
    assert set(living_engines(places)) == {QUEUE, *(other.name for other in others)}
    for presence in (first, *others):
        presence.close()


def test_a_lock_left_by_a_dead_engine_is_taken_again(places: Places) -> None:
    """The kernel gave the lock back; the file alone means nothing, nor does what it says."""
    places.engines.mkdir()
    lock_path(places, QUEUE).write_text("1\n9.9.9\n")
    assert process_of(places, QUEUE) is None
    assert version_notice(places) == ""
    Presence(places, QUEUE).close()


def test_another_version_is_told(places: Places) -> None:
    """In one line that says what to type; the same version is not worth a word."""
    presence = Presence(places, QUEUE)
    assert version_notice(places) == ""
    lock_path(places, QUEUE).write_text(f"{os.getpid()}\n0.0.7\n")
    assert version_notice(places).startswith("the engine runs 0.0.7")
    assert "stoker engine stop && stoker engine start; jobs go on" in version_notice(places)
    presence.close()


def test_a_lock_of_an_unknown_form_tells_nothing(places: Places) -> None:
    """What cannot be read is no process and no version, and never an error."""
    places.engines.mkdir()
    lock_path(places, QUEUE).write_bytes(b"\xff\xfe nonsense")
    with open(lock_path(places, QUEUE), "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert engine_lives(places, QUEUE)
        assert process_of(places, QUEUE) is None
        assert signal_engine(places, QUEUE, signal.SIGTERM) is None


def test_a_signal_reaches_the_living_engine(places: Places) -> None:
    """And its process is told; where none lives, nobody is signalled."""
    assert signal_engine(places, QUEUE, signal.SIGTERM) is None
    command = [sys.executable, "-c", _ENGINE, str(places.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == "here\n"
        assert signal_engine(places, QUEUE, signal.SIGTERM) == engine.pid
        assert engine.wait() == -signal.SIGTERM
    assert signal_engine(places, QUEUE, signal.SIGTERM) is None


def test_a_bell_is_heard_once(places: Places) -> None:
    """Any number of rings is one; where nobody hears, the ringer knows."""
    places.engines.mkdir()
    assert not ring(places, QUEUE)
    bell = Bell(places, QUEUE)
    for _ in range(70_000):  # more than there is room for
        assert ring(places, QUEUE)
    bell.silence()
    bell.silence()
    bell.close()
    assert not ring(places, QUEUE)


def test_what_a_dead_engine_left_is_swept(places: Places) -> None:
    """Lock, bell and what it showed."""
    places.engines.mkdir()
    for path in (lock_path(places, "x"), places.engines / "x.bell", places.bulletin("x")):
        path.touch()
    sweep_engine(places, "x")
    assert list(places.engines.iterdir()) == []


def test_a_glance_does_not_keep_an_engine_from_starting(tmp_path: Path) -> None:
    """Whoever looks, just then, whether an engine lives that was killed is not taken for one."""
    places = Places(tmp_path)
    places.engines.mkdir()
    glance = os.open(lock_path(places, QUEUE), os.O_RDWR | os.O_CREAT)
    fcntl.flock(glance, fcntl.LOCK_SH)
    end = threading.Timer(0.05, os.close, [glance])
    end.start()
    presence = Presence(places, QUEUE)
    assert engine_lives(places, QUEUE)
    presence.close()
    end.join()


def test_an_engine_that_cannot_say_who_it_is(tmp_path: Path) -> None:
    """On a full disk there is none, with a sentence, and no lock is left."""
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        places = Places(disk)
        places.engines.mkdir()
        fill(disk)
        with pytest.raises(StokerError, match="No space left"):
            Presence(places, QUEUE)
        assert not engine_lives(places, QUEUE)
        assert list(places.engines.iterdir()) == []


def test_an_engine_whose_lock_was_replaced_leaves_the_other_alone(places: Places) -> None:
    """It can tell, and neither its lock nor its bell takes another's away."""
    first, bell = Presence(places, QUEUE), Bell(places, QUEUE)
    places.engines.rename(places.state / "elsewhere")
    assert not first.in_place
    second, other_bell = Presence(places, QUEUE), Bell(places, QUEUE)
    bell.close()
    first.close()
    assert second.in_place
    assert ring(places, QUEUE)
    other_bell.close()
    second.close()
