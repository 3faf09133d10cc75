"""Code of jobs on its way to another machine; a feature packs and unpacks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import Struct

from stoker.core.spec import Command
from stoker.features import FEATURES, load
from stoker.store.paths import Paths


class Parcel(Struct, frozen=True):
    """The code of jobs, named by its content."""

    head: bytes
    """For the feature that packed it."""
    parts: list[str]
    """Names of contents, each of which travels once."""


class Traveller(Protocol):
    """The part of a feature that takes code to another machine."""

    def carries(self, code: str) -> bool:
        """Whether a job with this field `code` has code that can travel."""

    def pack(self, code: str, paths: Paths, there: Callable[[str], str]) -> Parcel:
        """The code of a job here; `there` gives the place that a path has on the other machine."""

    def read(self, part: str, paths: Paths) -> bytes:
        """A content of a parcel that was packed here."""

    def lacking(self, parcel: Parcel, paths: Paths) -> list[str]:
        """The parts that are not here yet."""

    def store(self, part: str, data: bytes, paths: Paths) -> None:
        """Keep a part that arrived; refuses one that was damaged."""

    def unpack(self, parcel: Parcel, paths: Paths, here: Callable[[str], str]) -> str:
        """The field `code` for jobs of this machine, when no part is lacking."""

    def needs(self, command: Command, cwd: str, code: str, paths: Paths) -> Iterable[str]:
        """Paths here that the command of a job names and that are not part of its code."""


def traveller() -> Traveller | None:
    """That of this installation, if it has one."""
    path = next((feature.travel for feature in FEATURES.values() if feature.travel), "")
    made: Traveller | None = load(path)() if path else None
    return made
