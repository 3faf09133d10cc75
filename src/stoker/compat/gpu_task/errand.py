"""What a GPUTaskScheduler and the process that runs its instances tell each other."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import NamedTuple

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that the scheduler passes on, and that wait until they can be heard."""


class Instance(NamedTuple):
    """One test instance that is to be run."""

    place: int
    """In the order of the configuration."""
    text: str
    """As the logs call it."""
    folder: str
    words: tuple[str, ...]
    """The command of its process."""
    log: str
    """Where its output goes."""


class Errand(NamedTuple):
    """All that is to be done."""

    label: str
    """Whose instances they are, for people."""
    slots: tuple[str, ...]
    """GPU entries, as CUDA_VISIBLE_DEVICES has them."""
    rounds: Sequence[Sequence[Instance]]
    """Instances that may run side by side; those that share a folder are in different rounds."""


class Note(NamedTuple):
    """A line for the scheduler's log."""

    at: float
    slot: str
    deed: str
    """`receives` or `finishes`."""
    instance: Instance


class Failure(NamedTuple):
    """An instance that did not succeed."""

    text: str
    folder: str
    outcome: str
    """How it ended, in words."""
    log: str
    last_line: str
    """The last that it said."""


class Ending(NamedTuple):
    """How it went."""

    failures: tuple[Failure, ...]
    left: tuple[str, ...]
    """Folders of instances that were not started, because somebody stopped it."""
    elsewhere: tuple[str, ...]
    """Folders of instances that another run has in hand."""
    stopped_by: int
    """The signal that stopped it, 0 where none did."""


class Refusal(NamedTuple):
    """Why it could not be done at all."""

    message: str
    hint: str


Message = str | Note | Ending | Refusal
"""A sentence for people, or something that happened."""
