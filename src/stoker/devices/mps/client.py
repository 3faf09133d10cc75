"""Ask an MPS daemon about its clients."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stoker.devices.mps.daemon import MpsTrouble, Place, join, prepare

_PARENT = str(Path(__file__).resolve().parents[3])


def supervisor_words(program: str, place: Place, visible: str, membership: int, *, exclusive: bool) -> tuple[str, ...]:
    """The command that makes a daemon ready, for whoever hands down the descriptor of a client."""
    wish = "exclusive" if exclusive else ""
    return (*_words("supervisor"), program, place.root, visible, str(membership), wish)


def terminate_words(program: str, place: Place) -> tuple[str, ...]:
    """The command that ends the work of clients; the numbers of their processes follow."""
    return (*_words("terminate"), program, place.root)


def _words(module: str) -> tuple[str, ...]:
    start = "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    start += f"from stoker.devices.mps.{module} import main; main(sys.argv[1:])"
    return (sys.executable, "-I", "-S", "-c", start, _PARENT)


TRIES = 3

PAUSE = 0.5
"""Seconds between two tries: a daemon that hangs is ended meanwhile, if nobody else is its client."""

PATIENCE = 60.0
"""Seconds for the warden, whose own deadlines are shorter, to say anything."""


class Client(NamedTuple):
    """What a client is told, and what keeps its daemon from being stopped."""

    place: Place
    membership: int
    """A descriptor, to be held for as long as there is anything of the client."""
    mps_terminate: tuple[str, ...]
    """The program to run before it is killed."""
    note: str = ""
    """What a person should know, though all is well."""


class Inquiry:
    """Makes the daemon of one GPU ready; whoever asks keeps asking until there is an answer."""

    def __init__(
        self, program: str, place: Place, visible: str, environment: Mapping[str, str], *, exclusive: bool
    ) -> None:
        """The GPU as it is called in CUDA_VISIBLE_DEVICES, and the environment that a daemon starts in."""
        prepare(place)
        self._place = place
        self._words = partial(supervisor_words, program, place, visible, exclusive=exclusive)
        self._farewell = terminate_words(program, place)
        self._environment = environment
        self._membership: int | None = None
        self._supervisor: subprocess.Popen[str] | None = None
        self._since = 0.0
        self._again_at = 0.0
        self._tries = 0
        self.trouble: MpsTrouble | None = None
        """What the last try came to."""

    def answer(self, now: float) -> Client | None:
        """The client, as soon as the daemon is ready; MpsTrouble where it will not be."""
        if self._supervisor is None:
            self._begin(now)
            return None
        if self._supervisor.poll() is None:
            if now - self._since > PATIENCE:
                self._supervisor.kill()
            return None
        return self._hear(now)

    def close(self) -> None:
        """Want it no more; what was started by then is stopped by whom the warden left behind."""
        self._leave()
        if self._supervisor is not None:
            self._supervisor.kill()
            self._supervisor.communicate()
            self._supervisor = None

    def _begin(self, now: float) -> None:
        if now < self._again_at:
            return
        self._membership = join(self._place)
        if self._membership is None:  # one is just being stopped, which must be over before another starts
            return
        self._since = now
        self._supervisor = subprocess.Popen(
            self._words(self._membership),
            pass_fds=[self._membership],
            env=self._environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def _hear(self, now: float) -> Client | None:
        assert self._supervisor is not None
        said = [line.split("\t") for line in self._supervisor.communicate()[0].splitlines()]
        self._supervisor = None
        if ["ready"] in said and self._membership is not None:
            membership, self._membership = self._membership, None
            note = next((line[1] for line in said if line[0] == "note"), "")
            return Client(self._place, membership, self._farewell, note)
        self._leave()  # so that a daemon that hangs can be ended
        self._tries += 1
        self._again_at = now + PAUSE
        self.trouble = _trouble(said)
        if self._tries >= TRIES:
            raise self.trouble
        return None

    def _leave(self) -> None:
        if self._membership is not None:
            with contextlib.suppress(OSError):
                os.close(self._membership)
            self._membership = None


def _trouble(said: list[list[str]]) -> MpsTrouble:
    for line in said:
        if line[0] == "failed":
            return MpsTrouble(*line[1:3])
    return MpsTrouble("the MPS daemon cannot be made ready: the program that does that was killed", "see who did that")
