"""What every kind of devices offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stoker.core.device import Snapshot


class Devices(Protocol):
    """A kind of devices: what it looks like now, and when to look again."""

    def look(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The newest snapshot, without waiting; one that is not newer than wanted is followed by another at once."""

    def fileno(self) -> int:
        """Readable when there is news, or -1."""

    def close(self) -> None:
        """Give everything back."""

    @property
    def variables(self) -> Mapping[str, str]:
        """What jobs on these devices need in their environment."""
