"""Features prepare the jobs of a submit before these are in the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from msgspec import Struct

from stoker.core.spec import Command, JobSpec
from stoker.features import preparations
from stoker.store.paths import Paths


class PreparedJob(NamedTuple):
    """A job that was prepared."""

    spec: JobSpec
    has_files: bool = False
    """Whether the files that its words name are kept for it."""


class PreparationContext(Struct, frozen=True):
    """A submit, as far as preparations depend on it."""

    place_of: Callable[[str], Paths]
    """Where the files of jobs go, by the name of their cluster."""
    environment: Mapping[str, str]
    say: Callable[[str], None]
    """Gets warnings for the user."""
    starts_now: bool = False
    """Whether the jobs do not wait in the queue."""
    arrived: str = ""
    """The code of the jobs, if it came from another machine."""


class Preparation(Protocol):
    """The part of a feature in one submit; made with the context."""

    def prepare(self, command: Command, spec: JobSpec) -> PreparedJob:
        """The spec of a job with what the feature adds; called for every job, more than once."""

    def keep(self) -> None:
        """Make sure that the jobs find their files; called in the transaction that adds them: pruning waits for it."""


class Preparations:
    """Those of all features; without a context there are none."""

    def __init__(self, context: PreparationContext | None = None) -> None:
        self._parts: list[Preparation] = [make(context) for make in preparations()] if context else []

    def prepare(self, command: Command, spec: JobSpec) -> PreparedJob:
        has_files = False
        for part in self._parts:
            spec, has_own = part.prepare(command, spec)
            has_files = has_files or has_own
        return PreparedJob(spec, has_files)

    def keep(self) -> None:
        for part in self._parts:
            part.keep()
