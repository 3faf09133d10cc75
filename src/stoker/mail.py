"""What doors leave in the store for an engine: requests about its jobs, and settings for all."""

from __future__ import annotations

import msgspec

from stoker.core.policy import Policy
from stoker.core.request import Request
from stoker.store import Store

INTERVAL = 1.0
"""Seconds after which an engine looks for itself whether anybody has written; a poke only makes it faster."""


def paused_key(engine: str) -> str:
    """The setting that keeps an engine from starting anything."""
    return f"paused {engine}"


def drained_key(device_id: str) -> str:
    """The setting that keeps all engines of this queue off a device."""
    return _DRAINED + device_id


_DRAINED = "drained "


class Mail:
    """Finds out cheaply whether there is something new, and reads each request once."""

    def __init__(self, store: Store, engine: str) -> None:
        self.due = True
        self.opened = False
        """Whether it was ever read."""
        self._store = store
        self._engine = engine
        self._version = -1
        self._looked_at = 0.0
        self._read_up_to = 0

    def has_come(self, now: float) -> bool:
        """Whether somebody else has written since the last time; asked now and then only."""
        if now - self._looked_at < INTERVAL:
            return False
        self._looked_at = now
        version, self._version = self._version, self._store.version_of_data()
        self.due = self.due or version != self._version
        return version != self._version

    def requests(self) -> list[tuple[int, Request]]:
        """What has not been read before; a request stays in the store until its answer is recorded."""
        self.due = False
        self.opened = True
        found = [(number, request) for number, request in self._store.requests(self._engine) if self._is_new(number)]
        self._read_up_to = max((number for number, _ in found), default=self._read_up_to)
        return found

    def overlaid(self, policy: Policy) -> Policy:
        """The policy with what users have set."""
        settings = self._store.settings()
        paused = settings.get(paused_key(self._engine), {}).get("note", "")
        drained = {key.removeprefix(_DRAINED): value for key, value in settings.items() if key.startswith(_DRAINED)}
        closed = {device: value.get("note", "drained") for device, value in drained.items()}
        return msgspec.structs.replace(policy, paused=paused, closed=closed)

    def _is_new(self, number: int) -> bool:
        return number > self._read_up_to
