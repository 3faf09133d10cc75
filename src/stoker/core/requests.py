"""Requests of front ends to the engine that owns a job."""

from __future__ import annotations

from msgspec import Struct

from stoker.core.outcomes import CancelResult
from stoker.core.spec import JobSpec


class Cancel(Struct, frozen=True, tag="cancel"):
    """End the job, whatever it is doing."""

    job: int
    note: str = ""
    grace: float | None = None
    """Seconds between the signal and KILL; None is the grace of the job."""
    signal: int = 0
    """Sent first in place of TERM; 0 is TERM."""
    result: CancelResult = "cancelled"
    """How the job then ends: `stopped` is for jobs that a rule finds not worth finishing."""


class Hold(Struct, frozen=True, tag="hold"):
    """Do not start the job."""

    job: int
    note: str = ""


class Release(Struct, frozen=True, tag="release"):
    """The job may start; also one that was adopted from another engine."""

    job: int


class Edit(Struct, frozen=True, tag="edit"):
    """Change spec and name of the job."""

    job: int
    spec: JobSpec
    name: str


class Again(Struct, frozen=True, tag="again"):
    """Run an ended job once more, with this spec if one is given."""

    job: int
    spec: JobSpec | None = None


Request = Cancel | Hold | Release | Edit | Again
