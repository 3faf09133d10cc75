"""Starts the engine in the background, so that nothing of whoever submitted holds on to it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence

from stoker.core.errors import Impossible, StokerError
from stoker.enginelog import open_log
from stoker.places import Places
from stoker.presence import QUEUE, engine_lives

READY_SECONDS = 60.0
"""How long an engine may take until it works; a driver may need 20 s for its first answer."""
READY = b"ready\n"


class EngineFailed(StokerError):
    """The engine could not be started."""

    exit_code = 3


def ensure_engine(places: Places, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Start the engine of the queue unless one runs; True where it was started. Jobs wait safely if it fails."""
    if engine_lives(places, QUEUE):
        return False
    read_end, write_end = os.pipe()
    try:
        process = _spawn(places, [*arguments, "--ready-fd", str(write_end)], environment, write_end)
    finally:
        os.close(write_end)
    with open(read_end, "rb", buffering=0) as answers:
        answer = _answer(answers.fileno())
    if answer != READY:
        there = _still_there(process)  # before the look at the lock: one that is dying may have it to the last
        if not engine_lives(places, QUEUE):  # else another was faster, which is just as well
            raise _failure(places, answer, process, there=there)
    elif process.poll():
        raise _failure(places, b"", process, there=False)
    process.returncode = 0  # it outlives us, and nobody waits for it
    return True


def tell_ready(descriptor: int | None) -> None:
    """Let whoever started the engine go on."""
    if descriptor is not None:
        os.write(descriptor, READY)
        os.close(descriptor)


def tell_failure(descriptor: int | None, error: StokerError) -> None:
    """Let whoever started the engine know why there is none."""
    if descriptor is not None:
        body = {"message": error.message, "hint": error.hint, "code": error.exit_code}
        os.write(descriptor, json.dumps(body).encode())
        os.close(descriptor)


def _spawn(
    places: Places, arguments: Sequence[str], environment: Mapping[str, str], descriptor: int
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, with no terminal and no descriptor of ours but the log and the pipe."""
    with open_log(places.log) as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker", "engine", "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=dict(environment),
            umask=0o077,
            start_new_session=True,
            pass_fds=[descriptor],
        )


def _answer(descriptor: int) -> bytes:
    """What the new engine has to say, until it has said all or time is up."""
    said = b""
    while select.select([descriptor], [], [], READY_SECONDS)[0]:
        part = os.read(descriptor, 65_536)
        said += part
        if not part or said == READY:
            break
    return said


def _failure(places: Places, answer: bytes, process: subprocess.Popen[bytes], *, there: bool) -> StokerError:
    try:
        body = json.loads(answer)
    except ValueError:
        how = "did not get ready in time" if there else f"ended with {process.returncode}"
        return EngineFailed(f"the engine {how}", f"see {places.log}; the queue is as it was")
    kind = Impossible if body["code"] == Impossible.exit_code else EngineFailed
    return kind(body["message"], body["hint"])


def _still_there(process: subprocess.Popen[bytes]) -> bool:
    """Whether it lives on; one that has just closed its end of the pipe gets a moment to be gone."""
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it is left to itself
        return True
    return False
