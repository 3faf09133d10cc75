"""What a door asks of the engine that owns a job."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.spec import JobSpec


class Cancel(Struct, frozen=True, tag="cancel"):
    """End the job, whatever it is doing."""

    job: int
    note: str = ""
    grace: float | None = None
    """Seconds between the signal and KILL, where they are not the job's own."""
    signal: int = 0
    """What is sent first in place of TERM."""


class Hold(Struct, frozen=True, tag="hold"):
    """Do not start the job."""

    job: int
    note: str = ""


class Release(Struct, frozen=True, tag="release"):
    """The job may start; also one that another engine left and that is now this one's."""

    job: int


class Edit(Struct, frozen=True, tag="edit"):
    """Let the job run under other terms."""

    job: int
    spec: JobSpec
    name: str


class Again(Struct, frozen=True, tag="again"):
    """Run a job that is over once more, under these terms where any are given."""

    job: int
    spec: JobSpec | None = None


Request = Cancel | Hold | Release | Edit | Again
